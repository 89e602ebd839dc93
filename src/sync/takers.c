/* SPDX-License-Identifier: Apache-2.0
 *
 * takers.c - who takes the buckets of an update, and how many of them are under way. Members with a sink take all buckets; a
 * source that only gives has no part in what other sources give, if the group can leave it out. Then several sources give
 * at once, each its own bucket, and who takes needs a slot for each.
 */
#include "sync/sync.h"

#include <string.h>

/* Enough for all that is under way at once, but no more memory than as many full buckets as were asked for. */
static uint32_t
slots_of(const struct ist__sync_body *s, const struct ist__table *t)
{
	uint64_t asked = s->args.slots, bytes = t->plan->slot_bytes ? t->plan->slot_bytes : 1, want = ist__table_at_once(t);
	uint64_t may = asked * t->plan->bucket_bytes / bytes;

	if (!s->leaves_out)
		return (uint32_t)asked;
	want = want < may ? want : may;
	want = want > asked ? want : asked;
	return (uint32_t)(want < IST__SLOTS_MAX ? want : IST__SLOTS_MAX);
}

ist_err
ist__sync_make_ring(struct ist__sync_body *s, struct ist_group *group, const struct ist__table *t, struct ist_error *err)
{
	ist_err e = ist__ring_prepare(&s->ring, s->ctx, group, slots_of(s, t), 1, t->plan->slot_bytes, err);

	if (!e)
		s->ring.ahead = 1;
	return e;
}

void
ist__sync_set_takers(struct ist__sync_body *s)
{
	const struct ist__table *t = s->table;
	uint32_t givers = ist__table_givers(t);

	memset(s->takers, 0, (s->size + UINT64_C(63)) / 64 * sizeof(*s->takers));
	for (uint32_t r = 0; r < s->size; r++)
		if (!s->leaves_out || t->members[s->names[r]].n_sinks > 0)
			s->takers[r / 64] |= UINT64_C(1) << (r % 64);
	s->takes = s->takers[s->rank / 64] >> (s->rank % 64) & 1;
	/* the least ring must hold more than what is still under way when all meet at a check: see may_issue in run.c */
	if (s->ring.least < 2)
		s->ring.ahead = 0;
	else
		s->ring.ahead = !s->leaves_out || s->ring.least < 3 || givers < 2 ? 1 : givers < s->ring.least - 1 ? givers : s->ring.least - 1;
}
