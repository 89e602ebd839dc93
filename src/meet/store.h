/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h - a meeting place over TCP. It keeps, for each group name, where its rank 0 can be reached, as long as rank 0's
 * connection stands; and what members tell of themselves, as long as their lease. It never carries anything else: a
 * group that has formed does not need it.
 */
#ifndef ISTHMUS_MEET_STORE_H
#define ISTHMUS_MEET_STORE_H

#include "meet/status.h"
#include "net/accept.h"

struct ist__store;

struct ist__store_args {
	struct ist__loop *loop;
	int fd;                       /* listening, taken over */
	const struct ist__self *self; /* copied, its key lent */
	/* The group of the member that hosts it, "" for a place on its own; it is used to find typing errors in names. */
	const char *own;
	/* Tells owner of visitors whose hello did not hold, as an acceptor does; may be NULL. */
	void (*refused)(void *owner, const struct ist_error *err, bool proven, uint32_t group);
	void *owner;
};
struct ist__store *ist__store_new(const struct ist__store_args *args, struct ist_error *err);
void ist__store_free(struct ist__store *store);

#endif
