/* SPDX-License-Identifier: Apache-2.0
 *
 * takers.c - who takes a broadcast, and the way that it goes to them: which member gives it to a host, and in which order
 * the hosts are reached. All of it follows from what is equal on all members, root and takers, and from who is near, which
 * is equal on all members of a host.
 */
#include "backends/host/host.h"

#include <string.h>

static uint64_t *
served_of(const struct ist_chan *chan, const struct part *part)
{
	return part->set + chan->words;
}

/* Where the chain begins: with the first one above the root that takes. Of roots side by side that take nothing the second
 * begins with the second one, and so on: so those who take pass on equal shares of what several roots give them. */
static uint32_t
first_of(const struct ist_chan *chan, const struct part *part)
{
	uint32_t size = chan->size, root = part->op.peer, lead = 0, n = 0;

	while (lead + 1 < size && !ist__host_has(part->set, (root + size - 1 - lead) % size))
		lead++;
	for (uint32_t w = 0; w < chan->words; w++)
		n += (uint32_t)__builtin_popcountll(part->set[w]);
	if (n == 0)
		return IST_NO_RANK;
	lead %= n;
	for (uint32_t i = 1; i < size; i++)
		if (ist__host_has(part->set, (root + i) % size) && lead-- == 0)
			return (root + i) % size;
	return IST_NO_RANK;
}

bool
ist__host_set_takers(const struct ist_chan *chan, struct part *part)
{
	uint32_t root = part->op.peer, over = chan->size % 64;

	part->set = chan->words == 1 ? part->set_here : ist__alloc(&chan->ctx, 2 * (uint64_t)chan->words * sizeof(*part->set));
	if (!part->set)
		return false;
	if (part->op.takers)
		memcpy(part->set, part->op.takers, chan->words * sizeof(*part->set));
	else
		memset(part->set, 0xFF, chan->words * sizeof(*part->set));
	if (over)
		part->set[chan->words - 1] &= (UINT64_C(1) << over) - 1;
	part->set[root / 64] &= ~(UINT64_C(1) << (root % 64));
	part->op.takers = NULL;
	part->first = first_of(chan, part);
	return true;
}

void
ist__host_set_free(const struct ist_chan *chan, struct part *part)
{
	if (part->set != part->set_here)
		ist__free(&chan->ctx, part->set);
	part->set = NULL;
}

/* ---- on this host ---- */

uint32_t
ist__host_publisher(const struct ist_chan *chan, const struct part *part)
{
	uint32_t best = IST_NO_RANK, size = chan->size;

	if (ist__host_is_near(chan, part->op.peer))
		return part->op.peer;
	if (ist__host_has(part->set, chan->rank))
		best = chan->rank;
	for (uint32_t i = 0; i < chan->n_near; i++) {
		uint32_t r = chan->near[i];

		if (ist__host_has(part->set, r) &&
		    (best == IST_NO_RANK || (r + size - part->first) % size < (best + size - part->first) % size))
			best = r;
	}
	return best;
}

uint32_t
ist__host_readers(const struct ist_chan *chan, const struct part *part, uint32_t publisher)
{
	uint32_t n = chan->rank != publisher && ist__host_has(part->set, chan->rank);

	for (uint32_t i = 0; i < chan->n_near; i++)
		n += chan->near[i] != publisher && ist__host_has(part->set, chan->near[i]);
	return n;
}

void
ist__host_bell_takers(struct ist_chan *chan, const struct part *part)
{
	for (uint32_t i = 0; i < chan->n_near; i++)
		if (chan->near[i] == part->op.peer || ist__host_has(part->set, chan->near[i]))
			ist__host_bell(chan, &chan->peers[chan->near[i]]);
}

/* ---- between hosts ---- */

void
ist__host_route(const struct ist_chan *chan, struct part *part)
{
	uint64_t *served = served_of(chan, part);

	served[chan->rank / 64] |= UINT64_C(1) << (chan->rank % 64);
	for (uint32_t i = 0; i < chan->n_near; i++)
		served[chan->near[i] / 64] |= UINT64_C(1) << (chan->near[i] % 64);
	part->hop = IST_NO_RANK;
	for (uint32_t i = 0; i < chan->size && part->first != IST_NO_RANK && part->hop == IST_NO_RANK; i++) {
		uint32_t r = (part->first + i) % chan->size;

		if (ist__host_has(part->set, r) && !ist__host_has(served, r))
			part->hop = r;
	}
	if (part->hop != IST_NO_RANK)
		part->pass = chan->peers[part->op.peer].passing++;
	part->routed = true;
}

/* Members that disagree on who takes should hear of it; what it is made of matters to nobody else. */
uint64_t
ist__host_set_print(const struct ist_chan *chan, const struct part *part)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (uint32_t w = 0; w < chan->words; w++) {
		h = (h ^ part->set[w]) * UINT64_C(0x9E3779B97F4A7C15);
		h ^= h >> 29;
	}
	return h;
}
