/* SPDX-License-Identifier: Apache-2.0
 *
 * bcast.c - broadcast by a binomial tree (few bytes: few rounds) and by a chain of pieces (many: every link busy, each
 * rank sends the payload once). Places are counted from the root up, among the root and those who take: v. Where all take,
 * v = rank - root. Who does not take has no steps at all.
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
#include "coll/takers.h"

/* The rank at place v. */
static uint32_t
rank_at(const struct ist__run *run, uint32_t v)
{
	uint32_t r = run->root;

	if (!run->takers)
		return ist__around(run, run->root, v);
	while (v > 0) {
		r = ist__around(run, r, 1);
		v -= ist__takes(run->takers, run->root, r);
	}
	return r;
}

/* Finds this rank's place. False: it has nothing to do here, since it does not take, or nobody does. */
static bool
find_place(struct ist__run *run)
{
	run->place = ist__around(run, run->rank, -(int64_t)run->root);
	run->places = run->size;
	if (run->takers) {
		uint32_t v = 0;

		for (uint32_t i = 1; i <= run->place; i++)
			v += ist__takes(run->takers, run->root, ist__around(run, run->root, i));
		run->place = v;
		run->places = 1 + ist__takers_count(run->takers, run->root, run->size);
	}
	return run->places > 1 && (run->rank == run->root || ist__takes(run->takers, run->root, run->rank));
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

	while (top < run->places && (v == 0 || top < low))
		top *= 2;
	for (top /= 2; top > 0 && v + top >= run->places; top /= 2)
		;
	return top;
}

static void
tree_setup(struct ist__run *run)
{
	uint32_t children = 0;

	run->window = 1;
	run->steps = 0;
	if (!find_place(run) || run->n == 0)
		return;
	for (uint32_t bit = top_bit(run, run->place); bit > 0; bit /= 2)
		children++;
	run->steps = 1 + children / run->max_moves + (children % run->max_moves != 0);
}

/* Step 0: from the parent. Then to the children, as many at once as may be, the largest subtree first. */
static void
tree_step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	uint32_t v = run->place, low = v & (~v + 1);
	uint64_t child = 0;

	if (k == 0) {
		if (v > 0)
			ist__step_recv(out, rank_at(run, v - low), 0, run->dst, run->n);
		return;
	}
	for (uint32_t bit = top_bit(run, v); bit > 0; bit /= 2, child++)
		if (child / run->max_moves == k - 1)
			ist__step_send(out, rank_at(run, v + bit), 0, payload(run), run->n);
}

const struct ist__algorithm ist__bcast_binomial = {
	.name = "binomial tree", .kind = IST_OP_BROADCAST, .min_size = 1, .max_bytes = 32 * 1024, .setup = tree_setup, .step = tree_step,
};

/* ---- chain ---- */

static void
chain_setup(struct ist__run *run)
{
	bool has_part = find_place(run);

	ist__run_cut(run, run->n);
	run->steps = has_part ? run->chunks : 0;
	if (!has_part)
		return;
	if (run->place > 0)
		run->before = rank_at(run, run->place - 1);
	if (run->place + 1 < run->places)
		run->after = rank_at(run, run->place + 1);
	if (run->place > 0 && run->place + 1 < run->places && run->chunks > 0)
		run->steps += run->window;
}

static void
chain_step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	uint32_t v = run->place;
	uint64_t lag = v == 0 ? 0 : run->window;

	if (v > 0 && k < run->chunks)
		ist__step_recv(out, run->before, k, run->dst + k * run->chunk, ist__run_piece(run, run->n, k));
	if (v + 1 < run->places && k >= lag)
		ist__step_send(out, run->after, k - lag, payload(run) + (k - lag) * run->chunk,
			ist__run_piece(run, run->n, k - lag));
}

const struct ist__algorithm ist__bcast_chain = {
	.name = "chain of pieces", .kind = IST_OP_BROADCAST, .min_size = 1, .max_bytes = UINT64_MAX, .setup = chain_setup, .step = chain_step,
};
