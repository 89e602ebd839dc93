/* SPDX-License-Identifier: Apache-2.0
 *
 * takers.c - who takes the buckets of an update, and how many of them are under way. Members with a sink take all buckets; a
 * source that only gives has no part in what other sources give, if the group can leave it out. Then several sources give
 * at once, each its own bucket, and who takes needs a slot for each; who only gives needs slots for its own alone.
 */
#include "sync/sync.h"

#include "base/fail.h"

#include <string.h>

static bool
takes(const struct ist__sync_body *s, const struct ist__table *t, uint32_t name)
{
	return !s->leaves_out || t->members[name].n_sinks > 0;
}

static bool
has_part(const struct ist__sync_body *s, const struct ist__table *t, uint64_t b)
{
	const struct ist__plan_bucket *k = &t->plan->buckets[b];
	const struct ist__offer *giver;

	if (takes(s, t, s->name))
		return true;
	giver = ist__table_giver(t, k->set, k->part);
	return giver && giver->member == s->name;
}

static uint64_t
count_parts(const struct ist__sync_body *s, const struct ist__table *t)
{
	uint64_t n = 0;

	for (uint64_t b = 0; b < t->plan->n_buckets; b++)
		n += has_part(s, t, b);
	return n;
}

/* Enough for all that is under way here at once, but no more memory than as many full buckets as were asked for, and none
 * for more buckets than this member has part in (it then has one small slot, since nothing is no memory). */
static uint32_t
slots_of(const struct ist__sync_body *s, const struct ist__table *t, uint64_t parts)
{
	uint64_t asked = s->args.slots, bytes = t->plan->slot_bytes ? t->plan->slot_bytes : 1, want = asked;
	uint64_t may = asked * t->plan->bucket_bytes / bytes;

	if (s->leaves_out && takes(s, t, s->name) && ist__table_at_once(t) > asked)
		want = ist__table_at_once(t);
	want = want < may ? want : may;
	want = want > asked ? want : asked;
	want = want < parts ? want : parts;
	want = want < IST__SLOTS_MAX ? want : IST__SLOTS_MAX;
	return want > 0 ? (uint32_t)want : 1;
}

/* Where the buckets lie: on the members' devices if the group carries such memory. */
static ist_err
find_device(struct ist__sync_body *s, struct ist_error *err)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	ist_err e = ist_group_info(s->group, &info, err);

	if (e || !ist__is_far(info.mem)) {
		s->ring.far.dev = NULL;
		return e;
	}
	if (s->ring.far.dev && s->ring.far.mem == info.mem && s->ring.far.index == info.device)
		return IST_OK;
	return ist__far_find(s->env, info.mem, info.device, "sync_update", &s->ring.far, err);
}

ist_err
ist__sync_make_ring(struct ist__sync_body *s, struct ist_error *err)
{
	const struct ist__table *t = s->table;
	uint64_t parts = count_parts(s, t);
	ist_err e = find_device(s, err);

	if (!e)
		e = ist__ring_prepare(&s->ring, s->ctx, s->group, slots_of(s, t, parts), 1, parts ? t->plan->slot_bytes : 0, err);

	if (!e)
		s->ring.ahead = 1;
	return e ? e : ist__stage_prepare(s, err);
}

ist_err
ist__sync_check_ring(const struct ist__sync_body *s, const struct ist__table *t, struct ist_error *err)
{
	uint64_t parts = count_parts(s, t), bucket = t->plan->bucket_bytes < t->plan->payload ? t->plan->bucket_bytes : t->plan->payload;

	ist_err e;

	/* the plan may do with less than the bucket asked for; one that could never be had is refused all the same */
	for (uint32_t n = slots_of(s, t, parts); n > 0; n--) {
		e = ist__ring_check(&s->ring, s->group, n, parts ? t->plan->slot_bytes : 0, bucket, err);
		if (e != IST_NO_MEMORY)
			return e;
	}
	return IST_NO_MEMORY; /* not even for one; err is from it */
}

uint8_t
ist__sync_reach(const struct ist__sync_body *s)
{
	const struct ist__table *t = s->table;
	uint64_t at[IST__SLOTS_MAX], parts = 0, least = UINT8_MAX;
	uint32_t n = s->ring.n;

	for (uint64_t b = 0; n > 0 && b < t->plan->n_buckets; b++) {
		if (!has_part(s, t, b))
			continue;
		if (parts >= n && b - at[parts % n] < least)
			least = b - at[parts % n];
		at[parts++ % n] = b;
	}
	return n > 0 ? (uint8_t)least : 0;
}

void
ist__sync_set_takers(struct ist__sync_body *s)
{
	const struct ist__table *t = s->table;
	uint32_t givers = ist__table_givers(t);

	memset(s->takers, 0, (s->size + UINT64_C(63)) / 64 * sizeof(*s->takers));
	for (uint32_t r = 0; r < s->size; r++)
		if (takes(s, t, s->names[r]))
			s->takers[r / 64] |= UINT64_C(1) << (r % 64);
	s->takes = s->takers[s->rank / 64] >> (s->rank % 64) & 1;
	/* the least reach must be more than what is still under way when all meet at a check: see may_issue in run.c */
	if (s->ring.least < 2)
		s->ring.ahead = 0;
	else
		s->ring.ahead = !s->leaves_out || s->ring.least < 3 || givers < 2 ? 1 : givers < s->ring.least - 1 ? givers : s->ring.least - 1;
}
