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

/* fd: listening, taken over. self: copied, its key lent. own: the group of the member that hosts it, "" for a place on
 * its own; it is used to find typing errors in names. */
struct ist__store *ist__store_new(struct ist__loop *loop, int fd, const struct ist__self *self, const char *own, struct ist_error *err);
/* Tells owner of visitors whose hello did not hold, as an acceptor does. At once after new. */
void ist__store_on_refused(struct ist__store *store, void (*refused)(void *owner, const struct ist_error *err, bool proven), void *owner);
void ist__store_free(struct ist__store *store);

#endif
