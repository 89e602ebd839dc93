/* SPDX-License-Identifier: Apache-2.0
 *
 * conn.h - one connection: hello, then frames both ways, never blocking. Owned by the loop; its callbacks come on the
 * loop's thread. One owner at a time, who may send from any thread as long as he keeps it from being closed meanwhile.
 *
 * A frame on the wire, little-endian, is a header of 32 bytes and a body:
 *
 *     0  4 body bytes   4  2 type   6  2 flags   8  8 sequence   16  8 generation   24  4 from   28  4 to
 *
 * An unknown type without the critical flag is skipped.
 */
#ifndef ISTHMUS_NET_CONN_H
#define ISTHMUS_NET_CONN_H

#include "net/addr.h"
#include "net/hello.h"
#include "net/loop.h"

enum { IST__FRAME_HEADER = 32, IST__FRAME_MAX = (1 << 20) + 4096, IST__FRAME_FDS = 32 };

enum ist__frame_flag {
	IST__FRAME_CRITICAL = 1, /* whoever does not know the type must give up */
	IST__FRAME_FIRST = 2,    /* first of several: the body begins with the u64 total of the message's bytes */
	IST__FRAME_MORE = 4,     /* the message goes on in the next frame of this type, sequence and sender */
	IST__FRAME_HAS_FDS = 8,  /* descriptors came with it; the first body byte says how many */
	IST__FRAME_URGENT = 16   /* overtakes what is queued */
};

struct ist__frame {
	struct ist__frame *next;
	uint32_t bytes;
	uint16_t type, flags;
	uint64_t seq, generation;
	uint32_t from, to;
	bool fds_lost; /* descriptors came with it, and this process could not have them */
	uint32_t n_fds;
	int32_t fds[IST__FRAME_FDS]; /* owned, unless lent */
	bool lent;
	uint8_t wire[IST__FRAME_HEADER];
	uint8_t body[];
};

/* From the loop's pool; the body is not zeroed. NULL: no memory. free closes what descriptors are left. */
struct ist__frame *ist__frame_new(struct ist__loop *loop, uint16_t type, const void *body, uint64_t bytes);
void ist__frame_free(struct ist__loop *loop, struct ist__frame *frame);

struct ist__conn;

struct ist__conn_ops {
	void (*ready)(struct ist__conn *conn, void *owner);                            /* the hello held; may be NULL */
	void (*frame)(struct ist__conn *conn, void *owner, struct ist__frame *frame);  /* the frame is the owner's */
	/* It ended, well or not; the owner calls ist__conn_close, now or later. err says why. */
	void (*closed)(struct ist__conn *conn, void *owner, const struct ist_error *err);
};

/* fd: connected, non-blocking, taken over in every outcome. Any thread; callbacks start after attach. self is copied,
 * its key is lent. NULL: no memory. */
struct ist__conn *ist__conn_new(struct ist__loop *loop, int fd, enum ist__side side, const struct ist__self *self,
	int64_t hello_deadline);
/* The same for one end of a pair whose other end was handed to, or by, a member that is known already: no hello is said, it
 * is ready at once. */
struct ist__conn *ist__conn_handed(struct ist__loop *loop, int fd, const struct ist__self *self, const struct ist__agreed *agreed);
/* Begins to read and to say hello, with this owner. Any thread. */
void ist__conn_attach(struct ist__conn *conn, const struct ist__conn_ops *ops, void *owner);
/* Another owner from now on. Loop's thread. */
void ist__conn_give(struct ist__conn *conn, const struct ist__conn_ops *ops, void *owner);
/* Gives the owner a frame that came before he was it. Loop's thread. */
void ist__conn_replay(struct ist__conn *conn, struct ist__frame *frame);
/* No callback comes after it has returned, and conn is gone. linger: what is queued is still sent, for at most a second,
 * in the background. Any thread but under a lock that a callback takes. */
void ist__conn_close(struct ist__conn *conn, bool linger);

/* Takes the frame over. Never blocks; false when the connection is already over (the frame is freed). Any thread. */
bool ist__conn_send(struct ist__conn *conn, struct ist__frame *frame);
/* The same for a frame whose descriptors are only lent for the call: copies are made only where they can't leave at once. 0: as
 * above; else the errno of a copy that could not be had, and nothing was sent. */
int ist__conn_send_lent(struct ist__conn *conn, struct ist__frame *frame);
/* There was no memory for a frame that had to be sent: a connection that lost one is of no use any more. It ends for both
 * sides; the owner on this side is told NO_MEMORY. Any thread. */
void ist__conn_starve(struct ist__conn *conn);
bool ist__conn_has_starved(struct ist__conn *conn);
ist_err ist__conn_end_code(struct ist__conn *conn); /* what it ended with; OK: it has not */
bool ist__conn_is_over(struct ist__conn *conn); /* it ended, or can't be sent on any more */
uint64_t ist__conn_queued(struct ist__conn *conn);          /* bytes that wait to be sent */
uint64_t ist__conn_held(struct ist__conn *conn);            /* bytes that it takes, these among them */
int64_t ist__conn_heard(const struct ist__conn *conn);      /* when the last byte came */
bool ist__conn_is_ready(const struct ist__conn *conn);
const struct ist__agreed *ist__conn_agreed(const struct ist__conn *conn); /* after ready */
uint32_t ist__conn_group(const struct ist__conn *conn); /* the mark in the other side's hello, once that is there; 0 before */
const char *ist__conn_peer(const struct ist__conn *conn);   /* address, for messages */
bool ist__conn_is_unix(const struct ist__conn *conn); /* so both ends are on one host, and descriptors may be sent */
bool ist__conn_local(const struct ist__conn *conn, union ist__sockaddr *out); /* our end */
struct ist__loop *ist__conn_loop(const struct ist__conn *conn);

#endif
