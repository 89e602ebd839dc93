/* SPDX-License-Identifier: Apache-2.0
 *
 * bcast.c - broadcast by a binomial tree (few bytes: few rounds) and by a chain of pieces (many: every link busy, each
 * rank sends the payload once). Ranks are counted from the root: v = rank - root.
 *
 *   tree of 8:   0 -> 4, 2, 1      chain:   0 --k--> 1 --k-w--> 2 --k-2w--> 3
 *                4 -> 6, 5   2 -> 3         while piece k comes in, piece k - w goes on
 *                6 -> 7
 *
 * source: binomial: Johnsson and Ho, "Optimum broadcasting and personalized communication in hypercubes", IEEE Trans.
 * Comput. 38 (1989). Pipelined chain: Watts and van de Geijn, "A pipelined broadcast for multidimensional meshes",
 * Parallel Process. Lett. 5 (1995).
 */
#include "coll/run.h"

static uint32_t
from_root(const struct ist__run *run)
{
	return ist__around(run, run->rank, -(int64_t)run->root);
}

static const char *
payload(const struct ist__run *run)
{
	return run->rank == run->root ? run->src : run->dst;
}

/* ---- tree ---- */

/* The largest subtree that hangs from v begins at v + this; 0: it is a leaf. */
static uint32_t
top_bit(const struct ist__run *run, uint32_t v)
{
	uint32_t low = v & (~v + 1), top = 1;

	while (top < run->size && (v == 0 || top < low))
		top *= 2;
	for (top /= 2; top > 0 && v + top >= run->size; top /= 2)
		;
	return top;
}

static void
tree_setup(struct ist__run *run)
{
	uint32_t children = 0;

	run->window = 1;
	run->steps = 0;
	if (run->n == 0 || run->size == 1)
		return;
	for (uint32_t bit = top_bit(run, from_root(run)); bit > 0; bit /= 2)
		children++;
	run->steps = 1 + children / run->max_moves + (children % run->max_moves != 0);
}

/* Step 0: from the parent. Then to the children, as many at once as may be, the largest subtree first. */
static void
tree_step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	uint32_t v = from_root(run), low = v & (~v + 1);
	uint64_t child = 0;

	if (k == 0) {
		if (v > 0)
			ist__step_recv(out, ist__around(run, run->root, (int64_t)(v - low)), 0, run->dst, run->n);
		return;
	}
	for (uint32_t bit = top_bit(run, v); bit > 0; bit /= 2, child++)
		if (child / run->max_moves == k - 1)
			ist__step_send(out, ist__around(run, run->root, (int64_t)(v + bit)), 0, payload(run), run->n);
}

const struct ist__algorithm ist__bcast_binomial = {
	.name = "binomial tree", .kind = IST_OP_BROADCAST, .min_size = 1, .max_bytes = 32 * 1024, .setup = tree_setup, .step = tree_step,
};

/* ---- chain ---- */

static void
chain_setup(struct ist__run *run)
{
	uint32_t v = from_root(run);

	ist__run_cut(run, run->n);
	run->steps = run->size == 1 ? 0 : run->chunks;
	if (v > 0 && v + 1 < run->size && run->chunks > 0)
		run->steps += run->window;
}

static void
chain_step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	uint32_t v = from_root(run);
	uint64_t lag = v == 0 ? 0 : run->window;

	if (v > 0 && k < run->chunks)
		ist__step_recv(out, ist__around(run, run->rank, -1), k, run->dst + k * run->chunk, ist__run_piece(run, run->n, k));
	if (v + 1 < run->size && k >= lag)
		ist__step_send(out, ist__around(run, run->rank, 1), k - lag, payload(run) + (k - lag) * run->chunk,
			ist__run_piece(run, run->n, k - lag));
}

const struct ist__algorithm ist__bcast_chain = {
	.name = "chain of pieces", .kind = IST_OP_BROADCAST, .min_size = 1, .max_bytes = UINT64_MAX, .setup = chain_setup, .step = chain_step,
};
