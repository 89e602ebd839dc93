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
fail_piece(struct ist__sync_body *s, struct ist_error *why, uint64_t b, const struct ist__plan_piece *p)
{
	const struct ist__item *item = &s->table->m->items[p->item];

	ist__fail_bucket(why, b);
	if (!why->tensor[0])
		ist__fail_tensor(why, item->name);
	ist__sync_fail_here(s, why);
}

/* ---- giving ---- */

/* Pieces from i on that lie back to back in a file and in the bucket: one read. */
static uint32_t
run_of_file(const struct ist__table *t, const struct ist__manifest *m, const struct ist__plan_piece *p, uint32_t n, uint64_t *bytes)
{
	const struct ist__item *first = &m->items[t->item_local[p[0].item]];
	uint32_t count = 1;

	*bytes = p[0].bytes;
	while (count < n) {
		const struct ist__item *item = &m->items[t->item_local[p[count].item]];

		if (item->file != first->file || item->offset + p[count].offset != first->offset + p[0].offset + *bytes ||
		    p[count].at != p[0].at + *bytes)
			break;
		*bytes += p[count++].bytes;
	}
	return count;
}

static ist_err
fetch_bucket(struct ist__sync_body *s, uint64_t b, const struct ist__offer *giver, uint8_t *to)
{
	const struct ist__table *t = s->table;
	const struct ist__plan_bucket *k = &t->plan->buckets[b];
	const struct ist__plan_piece *pieces = &t->plan->pieces[k->first_piece];
	const struct ist__source *source = &s->sources[giver->index];
	const struct ist__manifest *m = ist__checkpoint_manifest(source->ck);
	struct ist_error why;
	ist_err e = IST_OK;

	ist_error_init(&why);
	for (uint32_t i = 0, n = 1; i < k->n_pieces && !e; i += n) {
		const struct ist__plan_piece *p = &pieces[i];
		uint64_t local = t->item_local[p->item], bytes = p->bytes;

		n = 1;
		if (giver->live) {
			e = ist__checkpoint_fetch(source->ck, local, p->offset, bytes, to + p->at, &why);
			if (!e && t->verify) {
				if (p->offset == 0)
					s->got[p->item] = 0; /* given before, to a group that lost a member */
				ist__digest_leaves(to + p->at, bytes, &s->leaves[t->leaf_first[p->item] + p->offset / IST__LEAF_BYTES]);
				s->got[p->item] += bytes;
			}
		} else {
			n = run_of_file(t, m, p, k->n_pieces - i, &bytes);
			e = ist__checkpoint_fetch_file(source->ck, m->items[local].file, m->items[local].offset + p->offset, bytes, to + p->at, &why);
		}
		if (e) {
			if (s->up.own) /* what it can't read concerns all, unlike its sink */
				s->up.failed = s->up.own = false;
			fail_piece(s, &why, b, p);
		}
	}
	return e;
}

/* ---- taking ---- */

/* An item is complete: is it what its source has? Of live memory nobody knows yet. */
static ist_err
check_item(struct ist__sync_body *s, const struct ist__plan_piece *p, struct ist_error *why)
{
	const struct ist__table *t = s->table;
	const struct ist__item *item = &t->m->items[p->item];
	struct ist__digest want, have;

	ist__digest_fold(&s->leaves[t->leaf_first[p->item]], item->bytes, &have);
	if (!ist__table_digest(t, p->item, &want)) {
		s->digests[p->item] = have; /* compared with the source's at the end */
		return IST_OK;
	}
	if (ist__digest_equal(&want, &have))
		return IST_OK;
	if (!ist__item_is_raw(item))
		return ist__fail(why, IST_DIGEST, OP, "tensor %s arrived with other bytes than its source has", item->name);
	return ist__fail(why, IST_DIGEST, OP, "file %s arrived with other bytes than its source has", t->m->files[item->file].name);
}

static ist_err
take_piece(struct ist__sync_body *s, const struct ist__plan_piece *p, const uint8_t *at, bool mine, struct ist_error *why)
{
	const struct ist__table *t = s->table;
	ist_err e;

	/* what this member gave from live memory has its leaves already, and its bytes counted */
	if (t->verify && !(mine && !t->sets[t->item_set[p->item]].digests)) {
		ist__digest_leaves(at, p->bytes, &s->leaves[t->leaf_first[p->item] + p->offset / IST__LEAF_BYTES]);
		s->got[p->item] += p->bytes;
	}
	e = ist__sinks_piece(&s->sinks, p->item, p->offset, at, p->bytes, why);
	s->up.own = e != IST_OK;
	ist__pace_piece(&s->pace);
	if (!e && p->last && t->verify)
		e = check_item(s, p, why);
	return e;
}

static void
take_bucket(struct ist__sync_body *s, uint64_t b, const uint8_t *from, bool mine)
{
	const struct ist__plan_bucket *k = &s->table->plan->buckets[b];
	const struct ist__plan_piece *pieces = &s->table->plan->pieces[k->first_piece];
	struct ist_error why;

	ist_error_init(&why);
	for (uint32_t i = 0; i < k->n_pieces && !s->up.failed; i++)
		if (take_piece(s, &pieces[i], from + pieces[i].at, mine, &why) != IST_OK)
			fail_piece(s, &why, b, &pieces[i]);
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
	e = part ? release(r, slot) : IST_OK;
	if (e)
		return e;
	/* what goes wrong is remembered; a failed member goes on sending, and right bytes as long as the others may go on with them */
	if (mine && (!s->up.failed || s->up.own))
		(void)fetch_bucket(s, b, giver, s->ring.slots[slot].addr);
	/* after the fetch: the others come here when they are through with what the slot held, and that takes time as well */
	if (is_checked(r, b))
		e = check_all(r);
	if (e)
		return e;
	r->how = IST__END_BROKEN;
	if (!part)
		return ist__ring_skip(&s->ring, s->ranks[giver->member], s->takers, bytes, s->up.deadline, r->err);
	r->put++;
	return ist__ring_start(&s->ring, slot, s->ranks[giver->member], mine, s->takers, bytes, s->up.deadline, r->err);
}

static ist_err
finish(struct runner *r, uint64_t b)
{
	struct ist__sync_body *s = r->s;
	uint32_t slot = slot_of(r, r->got);
	bool mine = gives(s, b), part = has_part(s, b);
	const uint8_t *at = NULL;
	ist_err e;

	r->got += part;
	if (part && s->sinks.begun > 0 && !s->up.failed && b >= s->up.next) {
		e = take(r, slot, &at);
		if (e)
			return e;
		take_bucket(s, b, at, mine);
	}
	if (b >= s->up.next) {
		s->up.next = b + 1;
		ist__pace_bucket(&s->pace);
		show_progress(s, s->table->plan->buckets[b].bytes, b + 1 == s->table->plan->n_buckets);
	}
	/* what was given stays in its slot until all have taken it; nobody waits for that here */
	return mine || !part ? IST_OK : release(r, slot);
}

static ist_err
drain(struct runner *r)
{
	struct ist__sync_body *s = r->s;
	ist_err e = IST_OK;

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
	struct runner r = { .s = s, .first = first, .err = err, .how = IST__END_BROKEN,
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
	if (e)
		ist__ring_drop(&s->ring);
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
	ist_err e = IST_OK;

	/* the tensor is larger than a leaf when it was cut, and so is the slot then */
	if (bytes > s->ring.slot_bytes && room == 0)
		return ist__fail(err, IST_INTERNAL, OP, "a slot is smaller than a leaf");
	for (uint64_t at = 0; at < bytes && !e;) {
		uint64_t n = bytes - at <= s->ring.slot_bytes ? bytes - at : room;

		e = ist__checkpoint_fetch(s->sources[o->index].ck, t->item_local[item], at, n, s->ring.slots[0].addr, err);
		if (!e)
			ist__digest_leaves(s->ring.slots[0].addr, n, leaves + at / IST__LEAF_BYTES);
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
