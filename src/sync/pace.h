/* SPDX-License-Identifier: Apache-2.0
 *
 * pace.h - who holds the others up while buckets move. Each member keeps account of how it spends its time, at work or
 * waiting for others, and shows it to the others (ist_group_mark). A thread that the updating one knows nothing of looks
 * at it: who has waited for long asks all, and gives up whom all others wait for.
 *
 *     slow    with on_loss continue: a sink alone that in the last 2 * slow_ns was at work while every other member waited
 *             for slow_ns of them, and that needs more than 4 times as long for a bucket as the middle one of the sinks.
 *             SLOW_PEER. No source, no idle member, never half of the sinks or more.
 *     still   a sink that has a bucket in hand and has taken no piece for no_progress, while all others wait. NO_PROGRESS.
 */
#ifndef ISTHMUS_SYNC_PACE_H
#define ISTHMUS_SYNC_PACE_H

#include "base/clock.h"
#include "base/env.h"

#include <isthmus.h>
#include <pthread.h>

/* SHOWN: it is in a gather, or past it, with what it says; before that nobody knows what it will bring. */
enum ist__role { IST__ROLE_SOURCE = 1, IST__ROLE_SINK = 2, IST__ROLE_MASK = 3, IST__ROLE_SHOWN = 4 };

/* A mark, word by word. */
enum ist__mark_word {
	IST__MARK_WHAT,  /* role, and state << 8 */
	IST__MARK_EPOCH, /* which move; 0: none */
	IST__MARK_DONE,  /* of the window: buckets finished */
	IST__MARK_BUSY,  /* nanoseconds at work */
	IST__MARK_WAIT,  /* nanoseconds waiting */
	IST__MARK_STILL  /* since when nothing moves here, nanoseconds */
};
enum ist__pace_state { IST__PACE_OFF = 0, IST__PACE_WAIT = 1, IST__PACE_WORK = 2 };

enum { IST__PACE_SLICES = 16, IST__PACE_TIMES = 4 };

struct ist__pace_slice {
	int64_t busy, wait;
	uint64_t done;
};

struct ist__pace {
	const struct ist__ctx *ctx;
	struct ist_env *env;
	pthread_mutex_t lock;     /* all that follows */
	pthread_cond_t cond;
	pthread_t thread;
	bool made, started, stop;
	bool looking;             /* the thread is in a call on group */
	struct ist_group *group;  /* NULL: nothing moves */
	uint32_t rank, size;
	uint32_t role;
	bool evicts;              /* slow ones too */
	int64_t slow_ns, still_ns; /* slow_ns: half the window; still_ns 0: never */
	uint64_t epoch;
	enum ist__pace_state state;
	int64_t counted;          /* until then the slices hold all */
	int64_t moved;            /* when a piece was last taken, or the state changed */
	struct ist__pace_slice slices[IST__PACE_SLICES];
	uint32_t at;
	int64_t slice_end;
	int64_t ask_at, ask_gap;
	/* the thread's */
	uint64_t *words;
	uint8_t *known;
};

/* What a judge sees of one member, and who is to be given up. Pure, for tests. */
struct ist__pace_view {
	int64_t slow_ns, still_ns; /* slow_ns 0: nobody is too slow */
	uint64_t epoch;
	uint32_t size;
	const uint64_t *words;
	const uint8_t *known;
};
/* IST_SLOW_PEER, IST_NO_PROGRESS, or IST_OK: nobody. out: one byte a member, 1: this one. */
ist_err ist__pace_judge(const struct ist__pace_view *view, uint8_t *out);

bool ist__pace_init(struct ist__pace *p, struct ist_env *env, uint32_t size);
/* Nothing may be moving. */
void ist__pace_fini(struct ist__pace *p);
/* What this member is from now on, shown in group. */
void ist__pace_role(struct ist__pace *p, struct ist_group *group, uint32_t role);
/* Buckets begin to move in group. False: no thread could be made, and nobody looks. */
bool ist__pace_begin(struct ist__pace *p, struct ist_group *group, uint32_t rank, uint32_t size, uint64_t epoch);
/* They don't any more. After it no call on the group is under way here. */
void ist__pace_end(struct ist__pace *p);
void ist__pace_state(struct ist__pace *p, enum ist__pace_state state);
void ist__pace_piece(struct ist__pace *p);  /* one was taken */
void ist__pace_bucket(struct ist__pace *p); /* one is finished */

#endif
