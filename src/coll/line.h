/* SPDX-License-Identifier: Apache-2.0
 *
 * line.h - one open channel of one group, with a thread of its own. Requests go in from any thread and are done there, in
 * the order in which they came; the group above hears of the first failure and tells the other members. It knows of no
 * group, mesh or address.
 *
 * Lifetime: the line is ended by ist__line_free, and its memory goes when the last ist__line_hold is dropped and the
 * last request is freed. After free every call still answers (with the reason of the end).
 */
#ifndef ISTHMUS_COLL_LINE_H
#define ISTHMUS_COLL_LINE_H

#include "coll/check.h"
#include "coll/req.h"
#include "plug/admit.h"

struct ist__line;

struct ist__line_args {
	struct ist_env *env;
	const struct ist__admitted *backend; /* must outlive the line */
	struct ist_chan *chan;               /* connected; the line's from a successful ist__line_new on, which closes it */
	uint32_t rank, size;
	const char *name;                    /* for messages; NULL: backend->name */
	uint64_t mem, max_ops, traits;       /* 0: as backend->probe says */
	int64_t no_progress_ns;              /* 0: 30 s; negative: never */
	int64_t timeout_ns;                  /* default of ist_req_wait; 0: 300 s */
	bool all_take;                       /* a member knows of no sets of takers: every broadcast goes to all */
	const struct ist__ctx *ctx;          /* what memory it asks for; NULL: the env's */
	bool drive;                          /* the backend never blocks: who waits for a request may turn the line himself */
	void *owner;
	/* The first failure seen here, once. On the thread that turns the line; on another one only where that thread is stuck inside
	 * the plug-in. No locks held. The group tells the others and calls ist__line_abort, now or soon, with this error or
	 * one that says more; the line does so itself after half a second. May be NULL. */
	void (*failed)(void *owner, const struct ist_error *err);
	/* An operation begins that must be the same on all members: compare print, then call ist__line_checked, from within
	 * or later. On the thread that turns the line, no locks held. NULL: nothing is compared. */
	void (*entered)(void *owner, uint64_t seq, const uint8_t print[IST__PRINT_BYTES]);
	/* Where members can compare without messages: *agreed, all operations told to entered with lower numbers are the same
	 * everywhere. Asked now and then while one isn't, by the thread that called entered; asleep: it is about to sleep, and
	 * ist__line_nudge comes when there is more. Fails with what differs. May be NULL: then ist__line_checked tells. */
	ist_err (*compare)(void *owner, bool asleep, uint64_t *agreed, struct ist_error *err);
	/* Who has not entered operation seq: fills at most room ranks, returns how many there are. Short, takes no lock that
	 * is held around a call into the line. May be NULL. */
	uint32_t (*absent)(void *owner, uint64_t seq, uint32_t *ranks, uint32_t room);
};

ist_err ist__line_new(const struct ist__line_args *args, struct ist__line **out, struct ist_error *err);
/* Ends what is under way (ABORTED), closes the channel; 2 s at most, whatever the plug-in does. Once; NULL is allowed.
 * False: the plug-in is stuck, and the thread with all that it may touch was left behind. */
bool ist__line_free(struct ist__line *line);
void ist__line_hold(struct ist__line *line);
void ist__line_drop(struct ist__line *line);

/* Any thread, microseconds. Collectives are numbered from 0 in the order in which they begin, which is the order of the
 * submits less those that were cancelled before they began. */
ist_err ist__line_submit(struct ist__line *line, uint32_t kind, const struct ist_coll_args *args, int64_t deadline,
	struct ist_req **out, struct ist_error *err);
/* All members do the same in operation seq (NULL), or not: then the line fails with that error. */
void ist__line_checked(struct ist__line *line, uint64_t seq, const struct ist_error *err);
/* Does a broadcast with takers cost the others nothing? The same on all members. */
bool ist__line_leaves_out(const struct ist__line *line);
/* Does the channel carry memory of that kind? *views_alone: see struct ist_group_info. */
bool ist__line_reaches(const struct ist__line *line, uint32_t mem, bool *views_alone);
/* Bytes that the line, its channel and the requests that it keeps hold now: of this process alone, and of shared memory. */
void ist__line_held(struct ist__line *line, uint64_t *memory, uint64_t *shared);
/* Wakes whoever turns the line: compare has more to say. */
void ist__line_nudge(struct ist__line *line);
/* Every request ends with why, within about a second even if the plug-in is stuck. The first call counts. */
void ist__line_abort(struct ist__line *line, const struct ist_error *why);
/* For a thread that comes by now and then (the mesh's): ends the line if its thread is stuck inside the plug-in while an
 * operation is past its deadline. ist_req_wait and ist_req_test do the same for theirs. */
void ist__line_watch(struct ist__line *line);
/* Is anything under way or waiting? *moved: bytes that the channel has moved so far, as of its thread's last turn. */
bool ist__line_is_busy(struct ist__line *line, uint64_t *moved);
/* Does anything under way need one of the members that gone ([size], not 0: gone) lists? Who; IST_NO_RANK: none. */
uint32_t ist__line_needs(struct ist__line *line, const uint8_t *gone);

/* The channel's alloc and free, called on its thread. */
ist_err ist__line_alloc(
	struct ist__line *line, uint64_t bytes, uint32_t mem, int32_t device, int64_t deadline, void **out, struct ist_error *err);
ist_err ist__line_free_mem(struct ist__line *line, void *addr);
/* As ist__choose_print. */
uint64_t ist__line_print(struct ist__line *line, char *room, uint64_t room_bytes);

/* What api.c needs of the group, implemented there. The line of a live group, held (api.c drops it); NULL: err is filled
 * with BAD_HANDLE or with what ended the group. */
#define IST__ANY_PEER (IST_NO_RANK - 1)
/* peer: the one member that must be there; IST_NO_RANK: all must; IST__ANY_PEER: none. */
struct ist__line *ist__group_line(struct ist_group *group, const char *op, uint32_t peer, struct ist_error *err);
int64_t ist__group_timeout(struct ist_group *group);

#endif
