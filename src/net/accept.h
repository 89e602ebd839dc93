/* SPDX-License-Identifier: Apache-2.0
 *
 * accept.h - a listening socket whose visitors are nobody until their hello has held and their first frame is there.
 * Visitors in that state are bounded in number and in time; the oldest goes first.
 */
#ifndef ISTHMUS_NET_ACCEPT_H
#define ISTHMUS_NET_ACCEPT_H

#include "net/conn.h"

struct ist__acceptor;

struct ist__acceptor_args {
	struct ist__loop *loop;
	int fd;                        /* listening, non-blocking; taken over */
	const struct ist__self *self;  /* lent until the acceptor is freed */
	int64_t patience_ns;           /* how long a visitor may take until its first frame; 0: 10 s */
	void *owner;
	/* A visitor with its first frame. The frame is the callee's. True: conn is too, with another owner or closed. False:
	 * the frame says nothing (it is from a newer library), and the next one is the first. Loop's thread. */
	bool (*visitor)(void *owner, struct ist__conn *conn, struct ist__frame *frame);
	/* A hello that did not hold; proven: the other side does know the secret (a version that does not fit). */
	void (*refused)(void *owner, const struct ist_error *err, bool proven, uint32_t group);
	/* Somebody could not be let in for want of memory. group: the mark in its hello, 0 where that was not read yet: then it
	 * knows, and may come again. Loop's thread; may be NULL. */
	void (*starved)(void *owner, uint32_t group);
};

struct ist__acceptor *ist__acceptor_new(const struct ist__acceptor_args *args, struct ist_error *err);
void ist__acceptor_free(struct ist__acceptor *acceptor); /* any thread */

#endif
