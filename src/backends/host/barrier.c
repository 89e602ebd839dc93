/* SPDX-License-Identifier: Apache-2.0
 *
 * barrier.c - the barrier of members that all share memory: each counts the barriers that it has entered, and waits until
 * everybody's count is there. Only who finds himself last rings, so that nobody is woken to find that he must wait on.
 */
#include "backends/host/host.h"

#include <string.h>

#define SPIN_NS (20 * INT64_C(1000))

void
ist__host_gate_start(struct ist_chan *chan, struct part *part)
{
	part->entry = chan->gates_started++;
	ist__host_push(&chan->gates, part);
}

/* Rank of a member that has not entered it yet, or IST_NO_RANK. */
static uint32_t
absent(const struct ist_chan *chan, uint64_t entry)
{
	for (uint32_t i = 0; i < chan->n_near; i++)
		if (atomic_load_explicit(&chan->peers[chan->near[i]].ctl->entered, memory_order_seq_cst) <= entry)
			return chan->near[i];
	return IST_NO_RANK;
}

/* A member in another barrier than we think, or with a count that can't be. */
static uint32_t
disordered(const struct ist_chan *chan, const struct part *part, uint64_t *seq)
{
	for (uint32_t i = 0; i < chan->n_near; i++) {
		const struct ctl *ctl = chan->peers[chan->near[i]].ctl;
		*seq = atomic_load_explicit(&ctl->gate_seq[part->entry % GATES], memory_order_relaxed);
		if (*seq != part->op.seq || atomic_load_explicit(&ctl->entered, memory_order_relaxed) > part->entry + GATES)
			return chan->near[i];
	}
	return IST_NO_RANK;
}

static bool
enter(struct ist_chan *chan)
{
	bool did = false;

	for (struct part *part = chan->gates.first; part; part = part->next) {
		if (part->posted)
			continue;
		/* a member is at most half a board ahead of another one, so no number is overwritten before all have read it */
		if (part->entry >= chan->gates_done + GATES / 2)
			break;
		atomic_store_explicit(&chan->ctl->gate_seq[part->entry % GATES], part->op.seq, memory_order_relaxed);
		atomic_store_explicit(&chan->ctl->entered, part->entry + 1, memory_order_seq_cst);
		part->posted = did = true;
		/* of several that enter at once, the last one sees all others here */
		if (absent(chan, part->entry) == IST_NO_RANK)
			ist__host_bell_near(chan);
	}
	return did;
}

bool
ist__host_gate_step(struct ist_chan *chan)
{
	bool did;
	uint64_t seq = 0;

	if (!chan->gates.first)
		return false;
	did = chan->n_near ? enter(chan) : false;
	while (chan->gates.first && (!chan->n_near || chan->gates.first->posted) &&
	       absent(chan, chan->gates.first->entry) == IST_NO_RANK) {
		struct part *part = chan->gates.first;
		uint32_t rank = disordered(chan, part, &seq);
		ist__host_pop(&chan->gates);
		chan->gates_done++;
		did = true;
		if (rank == IST_NO_RANK)
			ist__host_part_end(chan, part);
		else
			ist__host_part_fail(chan, part, IST_ORDER_MISMATCH, rank, 0, "rank %u is in the barrier of operation %llu, rank %u in that of %llu",
				rank, (unsigned long long)seq, chan->rank, (unsigned long long)part->op.seq);
	}
	return did;
}

/* A short look before sleeping pays where everybody has a CPU of his own. */
void
ist__host_gate_spin(struct ist_chan *chan)
{
	int64_t until;

	if (!chan->gates.first || chan->n_near >= chan->cpus || chan->casts)
		return;
	for (until = ist__now() + SPIN_NS; ist__now() < until;) {
		if (absent(chan, chan->gates.first->entry) == IST_NO_RANK)
			return;
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
	}
}
