/* SPDX-License-Identifier: Apache-2.0
 *
 * inbox.h - connections for a thread that waits: what the loop hears of any of several connections becomes an event in
 * one queue, so that a protocol can be written from top to bottom with one deadline and one way to cancel it.
 */
#ifndef ISTHMUS_NET_INBOX_H
#define ISTHMUS_NET_INBOX_H

#include "net/conn.h"

enum ist__event_kind { IST__EVENT_READY, IST__EVENT_FRAME, IST__EVENT_CLOSED };

struct ist__event {
	struct ist__event *next;
	enum ist__event_kind kind;
	struct ist__post *post;
	struct ist__frame *frame;
	struct ist_error *error; /* CLOSED; NULL: there was no memory for the words, see ist__conn_end_code */
};

/* One connection of an inbox. tag is the user's. */
struct ist__post {
	struct ist__inbox *inbox;
	struct ist__conn *conn;
	struct ist__post *next;
	uint64_t tag;
	bool deaf;               /* loop: an event of it was lost for want of memory, and it ends */
	struct ist__event last;  /* for its end, should there be no memory then either */
};

struct ist__inbox {
	struct ist__loop *loop;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct ist__event *first, **last;
	struct ist__post *posts;
	bool cancelled, starved;
	int cancel_fd;
};

ist_err ist__inbox_init(struct ist__inbox *inbox, struct ist__loop *loop, struct ist_error *err);
/* Closes every connection that is still its own. */
void ist__inbox_fini(struct ist__inbox *inbox);
/* Any thread: every wait returns ABORTED from now on. */
void ist__inbox_cancel(struct ist__inbox *inbox);

/* The inbox owns conn from now on; callbacks begin. NULL: no memory, conn is closed. */
struct ist__post *ist__inbox_add(struct ist__inbox *inbox, struct ist__conn *conn, uint64_t tag);
/* The same in two steps, for who must know that there will be memory before its connection says a word to the other side: room
 * first (NULL: no memory), then with the connection, or given back. */
struct ist__post *ist__inbox_reserve(struct ist__inbox *inbox, uint64_t tag);
void ist__inbox_fill(struct ist__post *post, struct ist__conn *conn);
void ist__inbox_unreserve(struct ist__inbox *inbox, struct ist__post *post);
/* The same for a connection that is open already and has another owner. Loop's thread. */
struct ist__post *ist__inbox_adopt(struct ist__inbox *inbox, struct ist__conn *conn, uint64_t tag);
/* Puts a frame in as if it had just come. Loop's thread. */
void ist__inbox_put(struct ist__inbox *inbox, struct ist__post *post, struct ist__frame *frame);
/* What was to come can't, for want of memory: waits return NO_MEMORY from now on. Any thread. */
void ist__inbox_starve(struct ist__inbox *inbox);
/* Ends one connection; events of it that wait are dropped. Not on the loop's thread. */
void ist__inbox_drop(struct ist__inbox *inbox, struct ist__post *post, bool linger);
/* Takes the connection out, for another owner, together with the frames of it that wait (*frames, linked, may be
 * NULL; *gone: it had already ended). The hand-over runs on the loop: take(arg, conn, frames) is called there. */
void ist__inbox_release(struct ist__inbox *inbox, struct ist__post *post,
	void (*take)(void *arg, struct ist__conn *conn, struct ist__frame *frames, bool gone), void *arg);

/* Waits for the next event (deadline 0: looks). TIMEOUT or ABORTED fill err. The caller frees what the event holds with
 * ist__event_done. */
ist_err ist__inbox_wait(struct ist__inbox *inbox, int64_t deadline, struct ist__event *out, struct ist_error *err);
void ist__event_done(struct ist__inbox *inbox, struct ist__event *event);

#endif
