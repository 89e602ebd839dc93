/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce_scatter.c - partial sums go around the ring. In round k a rank sends its partial of block r - k - 1 to the right
 * and adds what comes from the left to its own block r - k - 2; after size - 1 rounds that is block r, complete.
 *
 *   block 0 of 3:   1 --x1--> 2 --x1+x2--> 0 (+x0: done)
 *
 * dst holds the one partial that is on its way; pieces are received into a ring of window places.
 *
 * source: as all_gather.c, backwards; Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009).
 */
#include "coll/run.h"

static void
setup(struct ist__run *run)
{
	ist__run_cut(run, run->n);
	run->tmp_bytes = run->size > 1 && run->n > 0 ? run->window * run->chunk : 0;
	run->steps = run->size > 1 && run->n > 0 ? run->chunks * (run->size - 1) + run->window : run->chunks;
}

static void
step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	uint64_t all = run->chunks * (run->size - 1), place = k % run->window * run->chunk;
	uint64_t round = k / run->chunks, c = k % run->chunks, bytes = ist__run_piece(run, run->n, c);

	if (run->size == 1) {
		ist__step_copy(out, run->dst + c * run->chunk, run->src + c * run->chunk, bytes);
		return;
	}
	if (k >= run->window) { /* what step k - window has received, which lies in the place that this step wants */
		uint64_t e = k - run->window, at = e % run->chunks * run->chunk;
		uint64_t block = ist__around(run, run->rank, -(int64_t)(e / run->chunks) - 2 + (int64_t)run->size);

		ist__step_reduce(out, run->dst + at, run->src + block * run->n + at, run->tmp + place,
			ist__run_piece(run, run->n, e % run->chunks));
	}
	if (k >= all)
		return;
	ist__step_send(out, ist__around(run, run->rank, 1), k,
		round == 0 ? run->src + ist__around(run, run->rank, -1) * run->n + c * run->chunk : run->dst + c * run->chunk, bytes);
	ist__step_recv(out, ist__around(run, run->rank, -1), k, run->tmp + place, bytes);
}

const struct ist__algorithm ist__reduce_scatter_ring = {
	.name = "ring", .kind = IST_OP_REDUCE_SCATTER, .min_size = 1, .max_bytes = UINT64_MAX, .setup = setup, .step = step,
};
