/* SPDX-License-Identifier: Apache-2.0
 *
 * all_to_all.c - in step k every rank sends to the k-th on its right and receives from the k-th on its left, so that all
 * links are busy and nobody is sent to by two. The own block is copied last, while blocks travel.
 *
 *   step 1:  0->1 1->2 2->3 3->0     step 2:  0->2 1->3 2->0 3->1     step 3:  0->3 1->0 2->1 3->2
 *
 * source: pairwise exchange: Thakur, Rabenseifner, Gropp (2005), see all_reduce.c.
 */
#include "coll/run.h"

static void
setup(struct ist__run *run)
{
	run->window = IST__WINDOW;
	run->steps = run->n > 0 ? run->size : 0;
}

static void
step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	uint64_t right = ist__around(run, run->rank, (int64_t)k + 1), left = ist__around(run, run->rank, -(int64_t)k - 1);

	if (k + 1 == run->size) {
		ist__step_copy(out, run->dst + run->rank * run->n, run->src + run->rank * run->n, run->n);
		return;
	}
	ist__step_send(out, (uint32_t)right, k, run->src + right * run->n, run->n);
	ist__step_recv(out, (uint32_t)left, k, run->dst + left * run->n, run->n);
}

const struct ist__algorithm ist__all_to_all_pairwise = {
	.name = "pairwise", .kind = IST_OP_ALL_TO_ALL, .min_size = 1, .max_bytes = UINT64_MAX, .setup = setup, .step = step,
};
