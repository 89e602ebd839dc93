/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h - one collective composed of SEND and RECV, as numbered steps. An algorithm is two pure functions: setup says how
 * many steps there are, step says what step k holds. Whoever runs it (turn.c) begins step k when step k - window has
 * ended: first the step's work in local memory, then its moves, as one start of the backend. So up to window steps are
 * on the wire while the next one's work is done.
 *
 * What makes an algorithm right, whatever the backend:
 *   - the moves from p to q stand in the same order in p's steps and in q's, with equal tags and bytes;
 *   - it ends even if a backend does starts strictly one after the other;
 *   - the moves of the last window steps leave tmp alone, since the next operation may take it as soon as they are issued;
 *   - a place that step k reads or writes is not written by steps k - window + 1 ... k - 1 (nor read, if k writes it).
 */
#ifndef ISTHMUS_COLL_RUN_H
#define ISTHMUS_COLL_RUN_H

#include <isthmus/backend.h>
#include <stdbool.h>

enum {
	IST__WINDOW = 4,               /* most steps under way */
	IST__MOVES = 16,               /* most moves in a step */
	IST__WORKS = 2,                /* most works in a step */
	IST__CHUNK = 256 * 1024        /* bytes of a piece in a pipeline */
};

/* What is to be done, and what setup has made of it. */
struct ist__run {
	uint32_t kind;      /* enum ist_op_kind */
	uint32_t rank, size, root;
	uint32_t dtype, reduce;
	uint32_t elem;      /* bytes of an element; moves: 1 */
	uint32_t max_moves; /* in one step */
	uint64_t n;         /* bytes, n of the table in isthmus.h */
	const char *src;
	char *dst;
	char *tmp;          /* tmp_bytes, given after setup */
	const uint64_t *takers; /* broadcast: see takers.h; NULL: all */
	/* by setup */
	uint64_t steps;     /* may be 0: nothing to do */
	uint64_t tmp_bytes;
	uint64_t chunk;     /* bytes of a piece */
	uint64_t chunks;    /* pieces of a block */
	uint32_t window;    /* 1 to IST__WINDOW */
	uint32_t place, places; /* broadcast: this rank's, counted from the root, among root and takers */
	uint32_t before, after; /* broadcast: the ranks at the places beside it, where there are any */
};

/* SEND or RECV. Every buffer of a move lies in src, dst or tmp. */
struct ist__move {
	uint32_t kind;
	uint32_t peer;
	uint8_t tag;        /* equal at both ends: goes into the wire's seq */
	union {
		const void *from;
		void *to;
	} at;
	uint64_t bytes;
};

/* to = a, or with b: to = a op b. */
struct ist__work {
	void *to;
	const void *a;
	const void *b;
	uint64_t bytes;
};

struct ist__step {
	uint32_t n_moves, n_works;
	struct ist__move moves[IST__MOVES];
	struct ist__work works[IST__WORKS];
};

struct ist__algorithm {
	const char *name;
	uint32_t kind;
	uint32_t min_size;  /* ranks */
	uint64_t max_bytes; /* of n: above it the next algorithm of that kind in the table */
	void (*setup)(struct ist__run *run);
	void (*step)(const struct ist__run *run, uint64_t k, struct ist__step *out);
};

static inline void
ist__step_send(struct ist__step *s, uint32_t peer, uint64_t tag, const void *from, uint64_t bytes)
{
	s->moves[s->n_moves++] =
		(struct ist__move){ .kind = IST_OP_SEND, .peer = peer, .tag = (uint8_t)tag, .at.from = from, .bytes = bytes };
}

static inline void
ist__step_recv(struct ist__step *s, uint32_t peer, uint64_t tag, void *to, uint64_t bytes)
{
	s->moves[s->n_moves++] =
		(struct ist__move){ .kind = IST_OP_RECV, .peer = peer, .tag = (uint8_t)tag, .at.to = to, .bytes = bytes };
}

static inline void
ist__step_copy(struct ist__step *s, void *to, const void *from, uint64_t bytes)
{
	if (bytes > 0 && to != from)
		s->works[s->n_works++] = (struct ist__work){ .to = to, .a = from, .bytes = bytes };
}

static inline void
ist__step_reduce(struct ist__step *s, void *to, const void *a, const void *b, uint64_t bytes)
{
	if (bytes > 0)
		s->works[s->n_works++] = (struct ist__work){ .to = to, .a = a, .b = b, .bytes = bytes };
}

/* Rank r moved by d around the ring, d from -size on. */
static inline uint32_t
ist__around(const struct ist__run *run, uint64_t r, int64_t d)
{
	return (uint32_t)((r + (uint64_t)((int64_t)run->size + d)) % run->size);
}

/* Cuts a block of bytes into pieces of whole elements, and sets the window that so many pieces allow. */
static inline void
ist__run_cut(struct ist__run *run, uint64_t block)
{
	run->chunk = IST__CHUNK / run->elem * run->elem;
	run->chunks = block / run->chunk + (block % run->chunk != 0);
	run->window = run->chunks < IST__WINDOW ? (uint32_t)run->chunks : IST__WINDOW;
	if (run->window == 0)
		run->window = 1;
}

/* Bytes of piece c of a block. */
static inline uint64_t
ist__run_piece(const struct ist__run *run, uint64_t block, uint64_t c)
{
	uint64_t at = c * run->chunk;

	return at >= block ? 0 : block - at < run->chunk ? block - at : run->chunk;
}

/* The algorithms, one a file. */
extern const struct ist__algorithm ist__bcast_binomial, ist__bcast_chain, ist__all_gather_ring, ist__all_reduce_doubling,
	ist__all_reduce_ring, ist__reduce_scatter_ring, ist__gather_linear, ist__scatter_linear, ist__all_to_all_pairwise,
	ist__barrier_dissemination;

#endif
