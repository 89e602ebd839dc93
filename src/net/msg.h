/* SPDX-License-Identifier: Apache-2.0
 *
 * msg.h - messages of any length over frames. A short one is one frame; a long one is cut into several, so that urgent
 * frames (heartbeats, aborts) get through in between, and put together again here.
 */
#ifndef ISTHMUS_NET_MSG_H
#define ISTHMUS_NET_MSG_H

#include "net/conn.h"

enum { IST__MSG_PIECE = 256 << 10 };

struct ist__msg {
	struct ist__msg *next;
	uint16_t type, flags;
	uint64_t seq, generation;
	uint32_t from, to;
	uint64_t bytes, have, room; /* that it says it has, that have come, that body has room for */
	uint8_t *body; /* from the loop's pool; NULL when empty */
};

void ist__msg_free(struct ist__loop *loop, struct ist__msg *msg);
/* head gives type, flags, seq, generation, from, to. False: the connection is over; it also ends where there is no memory
 * for the whole message (ist__conn_starve). */
bool ist__msg_send(struct ist__conn *conn, const struct ist__msg *head, const void *body, uint64_t bytes);
/* For what may be lost, and fits into one frame: without memory nothing is sent, and that is all. */
void ist__msg_try(struct ist__conn *conn, const struct ist__msg *head, const void *body, uint64_t bytes);
/* The same to a memory of frames: calls put for each, which takes it. */
bool ist__msg_cut(struct ist__loop *loop, const struct ist__msg *head, const void *body, uint64_t bytes,
	bool (*put)(void *arg, struct ist__frame *frame), void *arg);
/* Takes a frame (and frees it). *done: the message that it completed, NULL: more to come. partials is where unfinished
 * ones wait. Memory is taken as the bytes come: what a
 * sender only says costs nothing. BAD_FORMAT, LIMIT, NO_MEMORY. */
ist_err ist__msg_take(struct ist__loop *loop, struct ist__msg **partials, struct ist__frame *frame, uint64_t limit,
	struct ist__msg **done, struct ist_error *err);

#endif
