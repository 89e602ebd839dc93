/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.c - gather and scatter, straight between the root and each of the others, several of them at a time. What the
 * root's link carries is the same for every algorithm, and no other rank needs memory.
 *
 *   gather:  1 -> 0 <- 2      scatter:  1 <- 0 -> 2
 *                 ^- 3                       `-> 3
 */
#include "coll/run.h"

/* The root's last step copies its own block, while the last blocks of others travel. */
static void
setup(struct ist__run *run)
{
	uint64_t others = run->size - 1;

	run->window = 2;
	if (run->n == 0)
		run->steps = 0;
	else if (run->rank == run->root)
		run->steps = others / run->max_moves + (others % run->max_moves != 0) + 1;
	else
		run->steps = 1;
}

/* The other ranks of step k: first to end - 1, in numbers that leave the root out. */
static uint64_t
others(const struct ist__run *run, uint64_t k, uint64_t *first)
{
	*first = k * run->max_moves;
	return *first + run->max_moves < run->size - 1 ? *first + run->max_moves : run->size - 1;
}

static void
gather_step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	uint64_t first, end = others(run, k, &first);

	if (run->rank != run->root) {
		ist__step_send(out, run->root, 0, run->src, run->n);
		return;
	}
	for (uint64_t i = first; i < end; i++) {
		uint64_t peer = i < run->root ? i : i + 1;

		ist__step_recv(out, (uint32_t)peer, 0, run->dst + peer * run->n, run->n);
	}
	if (k + 1 == run->steps)
		ist__step_copy(out, run->dst + run->root * run->n, run->src, run->n);
}

static void
scatter_step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	uint64_t first, end = others(run, k, &first);

	if (run->rank != run->root) {
		ist__step_recv(out, run->root, 0, run->dst, run->n);
		return;
	}
	for (uint64_t i = first; i < end; i++) {
		uint64_t peer = i < run->root ? i : i + 1;

		ist__step_send(out, (uint32_t)peer, 0, run->src + peer * run->n, run->n);
	}
	if (k + 1 == run->steps)
		ist__step_copy(out, run->dst, run->src + run->root * run->n, run->n);
}

const struct ist__algorithm ist__gather_linear = {
	.name = "linear", .kind = IST_OP_GATHER, .min_size = 1, .max_bytes = UINT64_MAX, .setup = setup, .step = gather_step,
};

const struct ist__algorithm ist__scatter_linear = {
	.name = "linear", .kind = IST_OP_SCATTER, .min_size = 1, .max_bytes = UINT64_MAX, .setup = setup, .step = scatter_step,
};
