/* SPDX-License-Identifier: Apache-2.0
 *
 * all_reduce.c - few bytes: recursive doubling, log2(size) rounds of everything. Many: a ring that reduces and scatters,
 * then a ring that gathers; each rank sends 2 (size - 1) / size times the payload.
 *
 *   doubling, 5 ranks:   0->1   1<->2  3<->4   {1,2}<->{3,4}   1->0
 *                        fold   distance 1     distance 2      unfold
 *
 * Doubling always combines (lower ranks, higher ranks), in the ring one rank makes each block and the others get it: so
 * all ranks end with the same bits.
 *
 * source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", Int. J. High
 * Perform. Comput. Appl. 19 (2005); ring: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009).
 */
#include "coll/run.h"

/* ---- doubling ---- */

static uint32_t
rounds_of(uint32_t size)
{
	return 31 - (uint32_t)__builtin_clz(size);
}

static void
doubling_setup(struct ist__run *run)
{
	run->steps = run->n > 0 ? rounds_of(run->size) + 2 : 0;
	run->tmp_bytes = run->size > 1 ? run->n : 0;
	run->window = 1;
}

/* Among the power of two that takes part: the first 2 * extra ranks stand there in pairs, by their odd one. */
static uint32_t
rank_of(uint32_t seat, uint32_t extra)
{
	return seat < extra ? 2 * seat + 1 : seat + extra;
}

static void
doubling_step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	uint32_t rounds = rounds_of(run->size), extra = run->size - (1u << rounds), r = run->rank;
	bool folded = r < 2 * extra, out_of_it = folded && r % 2 == 0;
	uint32_t seat = folded ? r / 2 : r - extra;

	if (k == 0)
		ist__step_copy(out, run->dst, run->src, run->n);
	if (out_of_it) { /* gives its part to the next rank, gets the result from there */
		if (k == 0)
			ist__step_send(out, r + 1, k, run->dst, run->n);
		if (k == rounds + 1)
			ist__step_recv(out, r + 1, k, run->dst, run->n);
		return;
	}
	if (k == 0) {
		if (folded)
			ist__step_recv(out, r - 1, k, run->tmp, run->n);
		return;
	}
	if (k == 1 && folded)
		ist__step_reduce(out, run->dst, run->tmp, run->dst, run->n);
	if (k > 1) { /* what came in the round before */
		bool lower = (seat ^ 1u << (k - 2)) < seat;

		ist__step_reduce(out, run->dst, lower ? run->tmp : run->dst, lower ? run->dst : run->tmp, run->n);
	}
	if (k <= rounds) {
		uint32_t peer = rank_of(seat ^ 1u << (k - 1), extra);

		ist__step_send(out, peer, k, run->dst, run->n);
		ist__step_recv(out, peer, k, run->tmp, run->n);
	} else if (folded) {
		ist__step_send(out, r - 1, k, run->dst, run->n);
	}
}

const struct ist__algorithm ist__all_reduce_doubling = {
	.name = "recursive doubling", .kind = IST_OP_ALL_REDUCE, .min_size = 1, .max_bytes = 32 * 1024,
	.setup = doubling_setup, .step = doubling_step,
};

/* ---- ring ---- */

/* Block b of size blocks that differ by one element at most. */
static uint64_t
block_at(const struct ist__run *run, uint64_t b)
{
	uint64_t count = run->n / run->elem, each = count / run->size, left = count % run->size;

	return (b * each + (b < left ? b : left)) * run->elem;
}

static void
ring_setup(struct ist__run *run)
{
	if (run->size == 1) {
		doubling_setup(run);
		return;
	}
	ist__run_cut(run, block_at(run, 1));
	run->tmp_bytes = run->window * run->chunk;
	run->steps = 2 * run->chunks * (run->size - 1);
}

/* Piece c of block b: where it begins, and its bytes, perhaps 0. */
static uint64_t
piece(const struct ist__run *run, uint64_t b, uint64_t c, uint64_t *bytes)
{
	uint64_t at = block_at(run, b);

	*bytes = ist__run_piece(run, block_at(run, b + 1) - at, c);
	return at + c * run->chunk;
}

static void
ring_step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	uint64_t half = run->chunks * (run->size - 1), place, round, c, first, sent_bytes, got_bytes, sent, got;
	bool gathering = k >= half;

	if (run->size == 1) {
		doubling_step(run, k, out);
		return;
	}
	place = k % run->window * run->chunk;
	round = k % half / run->chunks;
	c = k % half % run->chunks;
	first = ist__around(run, run->rank, gathering ? 0 : -1); /* block of round 0 */
	if (k >= run->window && k - run->window < half) {
		uint64_t e = k - run->window, bytes;
		uint64_t block = ist__around(run, run->rank, -(int64_t)(e / run->chunks) - 2 + (int64_t)run->size);
		uint64_t at = piece(run, block, e % run->chunks, &bytes);

		ist__step_reduce(out, run->dst + at, run->src + at, run->tmp + place, bytes);
	}
	sent = piece(run, ist__around(run, first, -(int64_t)round), c, &sent_bytes);
	got = piece(run, ist__around(run, first, -(int64_t)round - 1), c, &got_bytes);
	if (sent_bytes > 0)
		ist__step_send(out, ist__around(run, run->rank, 1), k, (k < run->chunks ? run->src : run->dst) + sent, sent_bytes);
	if (got_bytes > 0)
		ist__step_recv(out, ist__around(run, run->rank, -1), k, gathering ? run->dst + got : run->tmp + place, got_bytes);
}

const struct ist__algorithm ist__all_reduce_ring = {
	.name = "ring", .kind = IST_OP_ALL_REDUCE, .min_size = 1, .max_bytes = UINT64_MAX, .setup = ring_setup, .step = ring_step,
};
