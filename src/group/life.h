/* SPDX-License-Identifier: Apache-2.0
 *
 * life.h - who of this host is alive, told by robust mutexes in shared memory. A kernel closes the sockets of a dead
 * process only after it has freed its memory (some 40 ms a GiB); a robust mutex that it held says so at once.
 *
 * The first member of a host makes the segment: one slot a member of that host. Each member's slot is locked by its
 * env's life thread ("ist-life"), which lives as long as the env, so that the end of a caller's thread means nothing.
 * Nobody ever makes a dead one's mutex consistent: it stays dead for all. The same thread waits for the end of others,
 * for up to 127 of them at once (futex_waitv); where the kernel can't, and for those beyond, the mesh looks by itself.
 */
#ifndef ISTHMUS_GROUP_LIFE_H
#define ISTHMUS_GROUP_LIFE_H

#include "base/env.h"

struct ist__keeper; /* the life thread */
struct ist__life;   /* a mapped segment */
struct ist__vigil;  /* the wait for the end of some of its members */

enum ist__alive { IST__ALIVE_YES, IST__ALIVE_DEAD, IST__ALIVE_LEFT };

struct ist__watched { /* another one's slot */
	uint32_t slot;
	bool over;    /* nothing more comes from it; the keeper's lock */
	uint64_t who; /* the same in other segments: it is waited for once */
};

/* died: on the life thread, when somebody who is watched has died. Which one, ist__life_look tells. */
struct ist__keeper *ist__keeper_new(struct ist_env *env, void (*died)(void *arg), void *arg, struct ist_error *err);
bool ist__keeper_waits(struct ist__keeper *keeper); /* false: somebody has to look, often */
void ist__keeper_free(struct ist__keeper *keeper);

/* A segment for n members, with more bytes beside the slots, zeros; *fd is for the others, the caller closes it. */
ist_err ist__life_new(const struct ist__ctx *ctx, uint32_t n, uint64_t more, struct ist__life **out, int *fd, struct ist_error *err);
/* Maps another's: checked, then the descriptor is no longer needed (and stays the caller's). */
ist_err ist__life_map(const struct ist__ctx *ctx, int fd, uint32_t n, uint64_t more, struct ist__life **out, struct ist_error *err);
/* Where these bytes are: at a cache line. */
void *ist__life_more(struct ist__life *life);
/* Has the keeper's thread lock slot i; waits for nothing. */
void ist__life_hold(struct ist__life *life, struct ist__keeper *keeper, uint32_t i);
/* Waits until it has: before that others would take the slot for one that was never held. */
ist_err ist__life_await_hold(struct ist__life *life, struct ist_error *err);
/* One more owner, for a group of the same members or fewer. NULL stays NULL. */
struct ist__life *ist__life_share(struct ist__life *life);
/* Waits for the end of these; the array is taken over. After ist__life_await_hold; ended before the life is freed. NULL: no memory. */
struct ist__vigil *ist__life_watch(struct ist__life *life, struct ist__watched *watched, uint32_t n);
void ist__vigil_end(struct ist__vigil *vigil);
uint64_t ist__vigil_memory(const struct ist__vigil *vigil);
/* A look, no wait. A slot that was never held is taken for alive. */
enum ist__alive ist__life_look(struct ist__life *life, uint32_t i);
/* Bytes that it takes: of this process alone, and of the segment if this member has made it. */
void ist__life_held(const struct ist__life *life, uint64_t *memory, uint64_t *shared);
/* The last owner leaves in good order (if a slot was held); the segment goes soon after. Waits for nobody. */
void ist__life_free(struct ist__life *life);

/* One vote of all n, by whoever holds a slot. The outcome is a word that is set once: yes by who sees that all have said
 * yes, no by who gives up. So nobody is ever in doubt, whoever dies when. */
enum ist__outcome { IST__OPEN = 0, IST__ALL_YES = 1, IST__NO = 2 };
/* Says yes. True: with it all have, and it is we who know it first. */
bool ist__life_vote(struct ist__life *life);
bool ist__life_voted(struct ist__life *life, uint32_t i);
enum ist__outcome ist__life_outcome(struct ist__life *life);
/* Sets it, unless it is set; returns what it is. *first: by us. */
enum ist__outcome ist__life_settle(struct ist__life *life, enum ist__outcome wish, bool *first);
/* Who waits in some other way from now on says so, then looks at the outcome again. Who settles it wakes those. */
void ist__life_sleeps(struct ist__life *life);
bool ist__life_asleep(struct ist__life *life, uint32_t i);

#endif
