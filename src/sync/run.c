/* SPDX-License-Identifier: Apache-2.0
 *
 * run.c - the pipeline of an update. Bucket after bucket: its giver reads it into a slot of the ring, a broadcast carries
 * it, sinks take it from there. The broadcast of the next buckets is under way while one is handed over; no message is
 * sent for a tensor.
 *
 * A member that fails goes on taking part, as cheaply as it can, until the next check: before every n-th bucket, n so
 * that there are at most 16 checks an update and no more messages than buckets, all members say how they stand. So all
 * stop at the same bucket with the same error, and the group stays whole for the next try.
 */
#include "sync/sync.h"

#include "base/fail.h"
#include "sync/ends.h"

#include <string.h>

#define OP "sync_update"
#define PROGRESS_NS (50 * IST__MS)
enum {
	CHECKS = 16,
	EXCHANGES = 5, /* of an update beside the checks: START, READY, PROVE, and two of the vote; one more where members may leave */
	SPARE = 18     /* messages that a member may send beyond one for each bucket */
};

void
ist__sync_fail_here(struct ist__sync_body *s, const struct ist_error *why)
{
	if (s->up.failed)
		return;
	s->up.failed = true;
	s->up.why = *why;
	s->up.why.n_ranks = 0;
	ist__fail_rank(&s->up.why, s->name);
}

const struct ist__offer *
ist__sync_giver(const struct ist__sync_body *s, uint64_t b)
{
	const struct ist__plan_bucket *k = &s->table->plan->buckets[b];

	return ist__table_giver(s->table, k->set, k->part);
}

static void
show_progress(struct ist__sync_body *s, uint64_t bytes, bool last)
{
	int64_t now;

	s->up.moved += bytes;
	if (!s->args.progress)
		return;
	now = ist__now();
	if (now < s->up.progress_at && !last)
		return;
	s->up.progress_at = now + PROGRESS_NS;
	s->args.progress(s->args.progress_ctx, s->up.moved, s->table->plan->payload);
}

/* ---- the pipeline ---- */

struct runner {
	struct ist__sync_body *s;
	uint64_t first, check_every;
	struct ist_error *err;
	enum ist__end how;
	uint64_t put, got;       /* buckets that this member has part in: issued, finished; they go round its slots */
	/* on a device: */
	uint64_t ahead, ahead_put; /* buckets before it have begun to be filled, and put as it was there */
	struct taking {
		uint64_t b;
		uint32_t slot;
		bool mine;
	} taking[IST__SLOTS_MAX];  /* those that the sinks have begun to take, in order */
	uint32_t n_taking;
};

/* Does this member give bucket b? */
static bool
gives(const struct ist__sync_body *s, uint64_t b)
{
	return ist__sync_giver(s, b)->member == s->name;
}

/* What it neither gives nor takes needs no slot. */
static bool
has_part(const struct ist__sync_body *s, uint64_t b)
{
	return s->takes || gives(s, b);
}

static uint32_t
slot_of(const struct runner *r, uint64_t count)
{
	return (uint32_t)(count % r->s->ring.n);
}

static bool
is_checked(const struct runner *r, uint64_t b)
{
	return b > r->first && b % r->check_every == 0;
}

/* Before a check all but the last ones of what has been issued is done with. A sink has something better to do than to wait
 * there while the giver still reads; and who waits there with a view of another's bucket would hold up the member that passes
 * it on, which can't come to the check before it has its slot back: so fewer are left than anybody has slots. One is enough
 * where one member gives; of several each has one under way. A giver's own buckets hold up nobody, nor does what others take. */
static bool
may_issue(const struct runner *r, uint64_t b, uint64_t at)
{
	const struct ist__sync_body *s = r->s;
	bool delivers = s->sinks.begun > 0 && !s->up.failed;

	if (has_part(s, b) && r->put - r->got >= s->ring.n)
		return false;
	for (uint64_t k = at; is_checked(r, b) && k + s->ring.ahead < b; k++)
		if (has_part(s, k) && (delivers || !gives(s, k)))
			return false;
	return true;
}

/* How does everybody stand? */
static ist_err
check_all(struct runner *r)
{
	struct ist__sync_body *s = r->s;
	ist_err e;

	ist__sync_say(s);
	ist__pace_state(&s->pace, IST__PACE_WAIT);
	e = ist__sync_hear(s, &r->how, r->err);
	ist__pace_state(&s->pace, IST__PACE_WORK);
	return e;
}

static ist_err
release(struct runner *r, uint32_t slot)
{
	struct ist__sync_body *s = r->s;
	ist_err e;

	if (!s->ring.slots[slot].req)
		return IST_OK;
	ist__pace_state(&s->pace, IST__PACE_WAIT);
	e = ist__ring_release(&s->ring, slot, s->up.deadline, r->err);
	ist__pace_state(&s->pace, IST__PACE_WORK);
	return e;
}

static ist_err
take(struct runner *r, uint32_t slot, const uint8_t **at)
{
	struct ist__sync_body *s = r->s;
	ist_err e;

	ist__pace_state(&s->pace, IST__PACE_WAIT);
	e = ist__ring_take(&s->ring, slot, s->up.deadline, at, r->err);
	ist__pace_state(&s->pace, IST__PACE_WORK);
	return e;
}

/* Bucket b is delivered here, or there was nothing to deliver. */
static void
delivered(struct runner *r, uint64_t b)
{
	struct ist__sync_body *s = r->s;

	if (b < s->up.next)
		return;
	s->up.next = b + 1;
	ist__pace_bucket(&s->pace);
	show_progress(s, s->table->plan->buckets[b].bytes, b + 1 == s->table->plan->n_buckets);
}

/* On a device: the first bucket that was begun to be taken is done with. */
static ist_err
end_taking(struct runner *r)
{
	struct ist__sync_body *s = r->s;
	struct taking t = r->taking[0];

	memmove(r->taking, r->taking + 1, --r->n_taking * sizeof(t));
	ist__stage_taken(s, t.b, t.mine, t.slot);
	delivered(r, t.b);
	return t.mine ? IST_OK : release(r, t.slot);
}

/* Down to n of them, and all that have come to their end. */
static ist_err
settle(struct runner *r, uint32_t n)
{
	struct ist__sync_body *s = r->s;
	ist_err e = IST_OK;

	while (!e && r->n_taking > 0 && (r->n_taking > n || ist__stage_is_done(&s->stage, &s->stage.takers[r->taking[0].slot])))
		e = end_taking(r);
	return e;
}

static bool
is_taking(const struct runner *r, uint32_t slot)
{
	bool taking = false;

	for (uint32_t i = 0; i < r->n_taking; i++)
		taking = taking || r->taking[i].slot == slot;
	return taking;
}

/* Until slot is no longer being taken from. */
static ist_err
settle_slot(struct runner *r, uint32_t slot)
{
	ist_err e = IST_OK;

	while (!e && is_taking(r, slot))
		e = settle(r, r->n_taking - 1);
	return e;
}

/* Buckets that this member gives after b are begun, as far as there are slots that nobody uses. */
static void
look_ahead(struct runner *r)
{
	struct ist__sync_body *s = r->s;
	uint64_t n = s->table->plan->n_buckets;

	for (; r->ahead < n && r->ahead_put - r->got < s->ring.n; r->ahead++) {
		uint32_t slot = slot_of(r, r->ahead_put);

		if (gives(s, r->ahead)) {
			if (!ist__ring_idle(&s->ring, slot) || is_taking(r, slot))
				return;
			ist__stage_give(s, r->ahead, ist__sync_giver(s, r->ahead), slot);
			if (s->up.failed)
				return;
		}
		r->ahead_put += has_part(s, r->ahead);
	}
}

/* Fills slot, which is free, with bucket b. */
static void
give(struct runner *r, uint64_t b, const struct ist__offer *giver, uint32_t slot)
{
	struct ist__sync_body *s = r->s;

	if (!s->stage.far.dev) {
		ist__ends_give(s, b, giver, s->ring.slots[slot].addr);
		return;
	}
	if (r->ahead <= b) {
		r->ahead = b + 1;
		r->ahead_put = r->put + 1;
		ist__stage_give(s, b, giver, slot);
	}
	/* meanwhile others give slots back: what is to fill them is begun at once */
	for (int64_t began = ist__now(); look_ahead(r), !ist__stage_is_done(&s->stage, &s->stage.givers[slot]) && ist__now() < s->up.deadline;)
		ist__far_pause(began);
	ist__stage_given(s, b, giver, slot);
}

static ist_err
issue(struct runner *r, uint64_t b)
{
	struct ist__sync_body *s = r->s;
	const struct ist__offer *giver = ist__sync_giver(s, b);
	uint64_t bytes = s->table->plan->buckets[b].bytes;
	uint32_t slot = slot_of(r, r->put);
	bool mine = giver->member == s->name, part = has_part(s, b);
	ist_err e = IST_OK;

	r->how = IST__END_BROKEN;
	e = part ? settle_slot(r, slot) : IST_OK;
	if (!e && part)
		e = release(r, slot);
	if (e)
		return e;
	/* what goes wrong is remembered; a failed member goes on sending, and right bytes as long as the others may go on with them */
	if (mine && (!s->up.failed || s->up.own))
		give(r, b, giver, slot);
	/* after the fetch: the others come here when they are through with what the slot held, and that takes time as well */
	if (is_checked(r, b)) {
		e = settle(r, 0); /* others may wait for what is looked at here */
		if (!e)
			e = check_all(r);
	}
	if (e)
		return e;
	r->how = IST__END_BROKEN;
	if (!part)
		return ist__ring_skip(&s->ring, s->ranks[giver->member], s->takers, bytes, s->up.deadline, r->err);
	r->put++;
	return ist__ring_start(&s->ring, slot, s->ranks[giver->member], mine, s->takers, bytes, s->up.deadline, r->err);
}

static ist_err
begin_taking(struct runner *r, uint64_t b, uint32_t slot, bool mine)
{
	struct ist__sync_body *s = r->s;
	const uint8_t *at = NULL;
	ist_err e = settle(r, IST__SLOTS_MAX - 1);

	if (!e)
		e = take(r, slot, &at);
	if (e)
		return e;
	ist__stage_take(s, b, at, mine, slot);
	r->taking[r->n_taking++] = (struct taking){ .b = b, .slot = slot, .mine = mine };
	return settle(r, s->stage.room ? 0 : IST__SLOTS_MAX); /* one at a time passes through host memory */
}

static ist_err
finish(struct runner *r, uint64_t b)
{
	struct ist__sync_body *s = r->s;
	uint32_t slot = slot_of(r, r->got);
	bool mine = gives(s, b), part = has_part(s, b), delivers = part && s->sinks.begun > 0 && !s->up.failed && b >= s->up.next;
	const uint8_t *at = NULL;
	ist_err e;

	r->got += part;
	if (delivers && s->stage.far.dev)
		return begin_taking(r, b, slot, mine);
	e = settle(r, 0); /* buckets are delivered in their order */
	if (!e && delivers)
		e = take(r, slot, &at);
	if (e)
		return e;
	if (delivers)
		ist__ends_take(s, b, at, mine);
	delivered(r, b);
	/* what was given stays in its slot until all have taken it; nobody waits for that here */
	return mine || !part ? IST_OK : release(r, slot);
}

static ist_err
drain(struct runner *r)
{
	struct ist__sync_body *s = r->s;
	ist_err e = settle(r, 0);

	ist__stage_looked(s);
	for (uint32_t i = 0; i < s->ring.n && !e; i++)
		e = release(r, i);
	return e ? e : ist__ring_skip_end(&s->ring, s->up.deadline, r->err);
}

static ist_err
run_all(struct runner *r)
{
	struct ist__sync_body *s = r->s;
	uint64_t n = s->table->plan->n_buckets, issued = r->first;
	ist_err e;

	for (uint64_t b = r->first; b < n; b++) {
		while (issued < n && may_issue(r, issued, b)) {
			e = issue(r, issued);
			if (e)
				return e;
			issued++;
		}
		r->how = IST__END_BROKEN;
		e = finish(r, b);
		if (e)
			return e;
	}
	return drain(r);
}

/* An exchange costs each member a message for each doubling of the group. What the messages allow is the same on all. */
static uint64_t
checks_of(const struct ist__sync_body *s)
{
	uint64_t rounds = 1, may, exchanges;

	while (UINT64_C(1) << rounds < s->size)
		rounds++;
	may = (s->table->plan->n_buckets + SPARE) / rounds;
	exchanges = EXCHANGES + (uint64_t)s->up.may_leave;
	may = may > exchanges ? may - exchanges : 0;
	return may < CHECKS ? may : CHECKS;
}

ist_err
ist__sync_run(struct ist__sync_body *s, uint64_t first, enum ist__end *how, struct ist_error *err)
{
	uint64_t n = s->table->plan->n_buckets, checks = checks_of(s);
	struct runner r = { .s = s, .first = first, .err = err, .how = IST__END_BROKEN, .ahead = first,
		.check_every = checks > 0 ? n / checks + 1 : n + 1 };
	ist_err e;

	ist__sync_set_takers(s);
	if (s->size > 1 && !ist__pace_begin(&s->pace, s->group, s->rank, s->size, s->up.version << 8 | (s->losses & 0xFF)))
		ist__log(s->ctx, IST_LOG_WARN, "no thread could be made: nobody here sees who is slow");
	e = run_all(&r);
	if (e && r.how != IST__END_BROKEN) {
		struct ist_error late;

		/* all have started the same broadcasts: they end, and the group stays whole */
		ist_error_init(&late);
		r.err = &late;
		if (drain(&r) != IST_OK)
			ist__log(s->ctx, IST_LOG_WARN, "after a failed update the group failed too: %s", late.detail);
	}
	if (e) {
		ist__stage_quiet(&s->stage);
		ist__ring_drop(&s->ring);
	}
	*how = r.how;
	return e;
}

/* ---- digests of live memory ---- */

static ist_err
digest_again(struct ist__sync_body *s, const struct ist__offer *o, uint32_t item, struct ist_error *err)
{
	const struct ist__table *t = s->table;
	uint64_t bytes = t->m->items[item].bytes, room = s->ring.slot_bytes & ~(IST__LEAF_BYTES - 1);
	struct ist__digest *leaves = &s->leaves[t->leaf_first[item]];
	uint8_t *to = s->stage.far.dev ? ist__stage_room(&s->stage, err) : s->ring.slots[0].addr;
	ist_err e = IST_OK;

	if (!to)
		return IST_NO_MEMORY;

	/* the tensor is larger than a leaf when it was cut, and so is the slot then */
	if (bytes > s->ring.slot_bytes && room == 0)
		return ist__fail(err, IST_INTERNAL, OP, "a slot is smaller than a leaf");
	for (uint64_t at = 0; at < bytes && !e;) {
		uint64_t n = bytes - at <= s->ring.slot_bytes ? bytes - at : room;

		e = ist__checkpoint_fetch(s->sources[o->index].ck, t->item_local[item], at, n, to, err);
		if (!e)
			ist__digest_leaves(to, n, leaves + at / IST__LEAF_BYTES);
		at += n;
	}
	return e;
}

ist_err
ist__sync_live_digests(struct ist__sync_body *s, struct ist_error *err)
{
	const struct ist__table *t = s->table;
	ist_err e = IST_OK;

	for (uint32_t i = 0; i < t->m->n_items && !e && t->verify; i++) {
		const struct ist__offer *o;
		struct ist__digest given;

		if (t->last_bucket[i] == UINT32_MAX || t->sets[t->item_set[i]].digests)
			continue;
		o = ist__sync_giver(s, t->last_bucket[i]);
		if (!o || o->member != s->name)
			continue;
		/* after a loss a tensor may have been given by two: the one that gave its end answers for all of it */
		if (s->got[i] != t->m->items[i].bytes)
			e = digest_again(s, o, i, err);
		if (e)
			return e;
		ist__digest_fold(&s->leaves[t->leaf_first[i]], t->m->items[i].bytes, &given);
		if (s->sinks.begun > 0 && !s->up.failed && !ist__digest_equal(&given, &s->digests[i])) {
			e = ist__fail(err, IST_DIGEST, OP, "tensor %s arrived with other bytes than its source has", t->m->items[i].name);
			ist__fail_tensor(err, t->m->items[i].name);
		}
		s->digests[i] = given;
		s->have[i] = 1;
	}
	return e;
}
