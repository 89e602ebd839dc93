/* SPDX-License-Identifier: Apache-2.0
 *
 * all_gather.c - every block goes once around the ring. In round k a rank sends block r - k to the right and gets block
 * r - k - 1 from the left; blocks are cut into pieces, so that a piece goes on while the next one comes.
 *
 *   round 0:  0 -a-> 1 -b-> 2 -c-> 0      round 1:  0 -c-> 1 -a-> 2 -b-> 0
 *
 * source: the bucket algorithm: Barnett, Shuler, van de Geijn, Gupta, Payne, Watts, "Interprocessor collective
 * communication library (InterCom)", Scalable High Performance Computing Conf. (1994).
 */
#include "coll/run.h"

static void
setup(struct ist__run *run)
{
	ist__run_cut(run, run->n);
	run->steps = run->chunks * (run->size > 1 ? run->size - 1 : 1);
}

static void
step(const struct ist__run *run, uint64_t k, struct ist__step *out)
{
	uint64_t round = k / run->chunks, c = k % run->chunks, at = c * run->chunk, bytes = ist__run_piece(run, run->n, c);
	uint64_t sent = ist__around(run, run->rank, -(int64_t)round), got = ist__around(run, sent, -1);

	if (round == 0)
		ist__step_copy(out, run->dst + run->rank * run->n + at, run->src + at, bytes);
	if (run->size == 1)
		return;
	ist__step_send(out, ist__around(run, run->rank, 1), k, round == 0 ? run->src + at : run->dst + sent * run->n + at, bytes);
	ist__step_recv(out, ist__around(run, run->rank, -1), k, run->dst + got * run->n + at, bytes);
}

const struct ist__algorithm ist__all_gather_ring = {
	.name = "ring", .kind = IST_OP_ALL_GATHER, .min_size = 1, .max_bytes = UINT64_MAX, .setup = setup, .step = step,
};
