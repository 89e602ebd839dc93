/* SPDX-License-Identifier: Apache-2.0
 *
 * barrier.c - dissemination: in round k every rank tells the one 2^k to its right and hears from the one 2^k to its left;
 * after log2(size) rounds, rounded up, it has heard from all. The messages hold no bytes.
 *
 *   5 ranks, what 0 has heard of:  {0} -> {0,4} -> {0,4,3,2} -> {all}
 *
 * source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", Int. J. Parallel Program. 17 (1988).
 */
#include "coll/run.h"

static void
setup(struct ist__run *run)
{
	run->window = 1;
	run->steps = 0;
	while ((UINT64_C(1) << run->steps) < run->size)
		run->steps++;
}

static void
step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	ist__step_send(out, ist__around(run, run->rank, INT64_C(1) << k), k, NULL, 0);
	ist__step_recv(out, ist__around(run, run->rank, -(INT64_C(1) << k)), k, NULL, 0);
}

const struct ist__algorithm ist__barrier_dissemination = {
	.name = "dissemination", .kind = IST_OP_BARRIER, .min_size = 1, .max_bytes = UINT64_MAX, .setup = setup, .step = step,
};
