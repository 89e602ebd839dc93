/* SPDX-License-Identifier: Apache-2.0
 *
 * table.c - the records of the members. Manifests are put together in merge.c.
 */
#include "sync/table.h"

#include "base/fail.h"

#include <string.h>

#define OP "sync_gather"
enum { PARTS_MAX = 1 << 16 };
enum { KNOWN = 0, LIVE = 1, LATE = 2 }; /* digests of an offer: said in the second round, on the way, or either */

struct ist__table *
ist__table_new(const struct ist__ctx *ctx, uint32_t n_members)
{
	struct ist__table *t = ist__alloc(ctx, sizeof(*t));

	if (!t)
		return NULL;
	t->ctx = ctx;
	t->n_members = n_members;
	t->members = ist__alloc(ctx, n_members * sizeof(*t->members));
	if (!t->members) {
		ist__free(ctx, t);
		return NULL;
	}
	return t;
}

void
ist__table_free(struct ist__table *t)
{
	if (!t)
		return;
	for (uint32_t i = 0; t->sets && i < t->n_sets; i++) {
		struct ist__set *s = &t->sets[i];

		ist__manifest_free(s->m);
		ist__free(t->ctx, s->digests);
		ist__free(t->ctx, s->whole);
		ist__free(t->ctx, s->bytes);
		ist__free(t->ctx, s->ids);
		ist__free(t->ctx, s->mate);
	}
	ist__manifest_free(t->made);
	ist__plan_free(t->plan);
	ist__free(t->ctx, t->members);
	ist__free(t->ctx, t->offers);
	ist__free(t->ctx, t->sets);
	ist__free(t->ctx, t->item_set);
	ist__free(t->ctx, t->item_local);
	ist__free(t->ctx, t->parts);
	ist__free(t->ctx, t->order);
	ist__free(t->ctx, t->last_bucket);
	ist__free(t->ctx, t->leaf_first);
	ist__free(t->ctx, t);
}

void
ist__table_say(struct ist__writer *w, const struct ist__say *say)
{
	ist__put_u32(w, say->on_loss);
	ist__put_u32(w, say->n_sinks);
	ist__put_u64(w, say->bucket);
	ist__put_u8(w, say->no_verify);
	ist__put_u8(w, say->raw);
	ist__put_u8(w, say->in_place);
	ist__put_u32(w, say->n_offers);
}

void
ist__table_say_offer(struct ist__writer *w, const struct ist__offer *o)
{
	ist__put_bytes(w, o->manifest.b, sizeof(o->manifest.b));
	ist__put_bytes(w, o->content.b, sizeof(o->content.b));
	ist__put_u8(w, o->late ? LATE : o->live ? LIVE : KNOWN);
	ist__put_u32(w, o->part);
	ist__put_u32(w, o->parts);
}

static bool
get_digest(struct ist__reader *r, struct ist__digest *out)
{
	const void *at = ist__get_bytes(r, sizeof(out->b));

	if (at)
		memcpy(out->b, at, sizeof(out->b));
	return at != NULL;
}

ist_err
ist__table_hear(struct ist__table *t, uint32_t i, const void *record, uint64_t bytes, struct ist_error *err)
{
	struct ist__member *m = &t->members[i];
	struct ist__reader r;
	void *offers = t->offers;
	uint64_t room = t->n_offers;

	ist__reader_init(&r, record, bytes);
	m->on_loss = ist__get_u32(&r);
	m->n_sinks = ist__get_u32(&r);
	m->bucket = ist__get_u64(&r);
	m->no_verify = ist__get_u8(&r);
	m->raw = ist__get_u8(&r);
	m->in_place = ist__get_u8(&r);
	m->n_offers = ist__get_u32(&r);
	m->first_offer = t->n_offers;
	if (r.bad || m->n_offers > r.left / 41 || (m->bucket && m->bucket < IST__BUCKET_MIN))
		return ist__fail(err, IST_BAD_FORMAT, OP, "the record of rank %u can't be read", i);
	if (!ist__grow(t->ctx, &offers, &room, (uint64_t)t->n_offers + m->n_offers, sizeof(*t->offers)))
		return ist__fail_memory(err, OP);
	t->offers = offers;
	for (uint32_t k = 0; k < m->n_offers; k++) {
		struct ist__offer o = { .member = i, .index = k };
		uint8_t digests;

		get_digest(&r, &o.manifest);
		get_digest(&r, &o.content);
		digests = ist__get_u8(&r);
		o.live = digests != KNOWN;
		o.late = digests == LATE;
		o.part = ist__get_u32(&r);
		o.parts = ist__get_u32(&r);
		if (r.bad || o.parts > PARTS_MAX || (o.parts ? o.part >= o.parts : o.part != 0))
			return ist__fail(err, IST_BAD_FORMAT, OP, "the record of rank %u can't be read", i);
		t->offers[t->n_offers++] = o;
	}
	return IST_OK;
}

/* ---- settling ---- */

/* Nobody gives, or nobody takes: those that were lost may have been the ones. */
static ist_err
nobody(const struct ist__table *t, ist_err code, const char *what, struct ist_error *err)
{
	uint32_t gone = 0;

	ist__fail(err, code, OP, "no member has registered a %s", what);
	for (uint32_t i = 0; i < t->n_members; i++)
		if (t->members[i].gone) {
			ist__fail_rank(err, i);
			gone++;
		}
	if (gone > 0)
		ist__fail_suffix(err, " of those that are left; %u of %u are lost", gone, t->n_members);
	return code;
}

static ist_err
settle_members(struct ist__table *t, struct ist_error *err)
{
	uint32_t sinks = 0;

	t->bucket_bytes = UINT64_MAX;
	t->on_loss = t->members[0].on_loss;
	for (uint32_t i = 0; i < t->n_members; i++) {
		const struct ist__member *m = &t->members[i];

		sinks += m->n_sinks;
		t->verify = t->verify || !m->no_verify;
		t->raw = t->raw || (m->raw && m->n_sinks > 0);
		if (m->bucket && m->bucket < t->bucket_bytes)
			t->bucket_bytes = m->bucket;
		if (m->on_loss != t->on_loss) {
			ist__fail(err, IST_MISMATCH, OP, "rank %u says on-loss %s, rank 0 says %s", i, m->on_loss ? "continue" : "fail",
				t->on_loss ? "continue" : "fail");
			ist__fail_rank(err, i);
			return IST_MISMATCH;
		}
	}
	if (t->bucket_bytes == UINT64_MAX)
		t->bucket_bytes = IST__BUCKET_DEFAULT;
	if (t->n_offers == 0)
		return nobody(t, IST_EMPTY_UPDATE, "source", err);
	if (sinks == 0)
		return nobody(t, IST_NO_RECEIVERS, "sink", err);
	return IST_OK;
}

static ist_err
make_sets(struct ist__table *t, struct ist_error *err)
{
	t->sets = ist__alloc(t->ctx, t->n_offers * sizeof(*t->sets));
	if (!t->sets)
		return ist__fail_memory(err, OP);
	for (uint32_t i = 0; i < t->n_offers; i++) {
		struct ist__offer *o = &t->offers[i];

		o->set = t->n_sets;
		for (uint32_t k = 0; k < i && o->set == t->n_sets; k++)
			if (ist__digest_equal(&t->offers[k].manifest, &o->manifest))
				o->set = t->offers[k].set;
		if (o->set == t->n_sets)
			t->n_sets++;
		else if (o->late || t->sets[o->set].late)
			t->needs_digests = true;
		t->sets[o->set].live = t->sets[o->set].live || o->live;
		t->sets[o->set].late = t->sets[o->set].late || o->late;
	}
	return IST_OK;
}

/* Parts given by hand must all be there; one set is shared in one way. */
static ist_err
settle_parts(struct ist__table *t, uint32_t set, struct ist_error *err)
{
	struct ist__set *s = &t->sets[set];
	uint32_t n = 0, missing = 0;
	const struct ist__offer *first = NULL;
	uint8_t *have;

	for (uint32_t i = 0; i < t->n_offers; i++) {
		const struct ist__offer *o = &t->offers[i];

		if (o->set != set)
			continue;
		n++;
		if (!first)
			first = o;
		if (o->parts != first->parts) {
			ist__fail(err, IST_MISMATCH, OP, "ranks %u and %u give one checkpoint in %u and in %u parts", first->member, o->member,
				first->parts, o->parts);
			ist__fail_rank(err, o->member);
			return IST_MISMATCH;
		}
	}
	s->by_hand = first->parts > 0;
	s->parts = s->by_hand ? first->parts : n;
	if (!s->by_hand)
		return IST_OK;
	have = ist__alloc(t->ctx, s->parts);
	if (!have)
		return ist__fail_memory(err, OP);
	for (uint32_t i = 0; i < t->n_offers; i++)
		if (t->offers[i].set == set)
			have[t->offers[i].part] = 1;
	while (missing < s->parts && have[missing])
		missing++;
	ist__free(t->ctx, have);
	if (missing == s->parts)
		return IST_OK;
	return ist__fail(err, IST_INCOMPLETE, OP, "nobody has registered part %u/%u of the checkpoint that rank %u gives", missing, s->parts,
		first->member);
}

ist_err
ist__table_settle(struct ist__table *t, struct ist_error *err)
{
	ist_err e = settle_members(t, err);

	if (!e)
		e = make_sets(t, err);
	for (uint32_t s = 0; s < t->n_sets && !e; s++)
		e = settle_parts(t, s, err);
	return e;
}

bool
ist__table_must_send(const struct ist__table *t, uint32_t i)
{
	const struct ist__offer *o = &t->offers[i];

	for (uint32_t k = 0; k < i; k++)
		if (ist__digest_equal(&t->offers[k].manifest, &o->manifest) && ist__digest_equal(&t->offers[k].content, &o->content))
			return false;
	return true;
}

uint32_t
ist__table_givers(const struct ist__table *t)
{
	uint32_t n = 0;

	for (uint32_t m = 0; m < t->n_members; m++)
		n += !t->members[m].gone && t->members[m].n_offers > 0;
	return n;
}

uint32_t
ist__table_at_once(const struct ist__table *t)
{
	uint32_t givers = ist__table_givers(t);

	return givers > 1 ? 2 * givers + 2 : 0;
}

uint32_t
ist__table_member_of(const struct ist__table *t, uint32_t set)
{
	for (uint32_t i = 0; i < t->n_offers; i++)
		if (t->offers[i].set == set)
			return t->offers[i].member;
	return 0;
}

const struct ist__offer *
ist__table_giver(const struct ist__table *t, uint32_t set, uint32_t part)
{
	const struct ist__set *s = &t->sets[set];
	const struct ist__offer *stand_in = NULL;
	uint32_t seen = 0, alive = 0;

	for (uint32_t i = 0; i < t->n_offers; i++) {
		const struct ist__offer *o = &t->offers[i];

		if (o->set != set)
			continue;
		if ((s->by_hand ? o->part : seen) == part && !t->members[o->member].gone)
			return o;
		seen++;
		alive += !t->members[o->member].gone;
	}
	/* all of a set hold all of its bytes */
	for (uint32_t i = 0, k = 0; alive > 0 && i < t->n_offers && !stand_in; i++) {
		const struct ist__offer *o = &t->offers[i];

		if (o->set == set && !t->members[o->member].gone && k++ == part % alive)
			stand_in = o;
	}
	return stand_in;
}

bool
ist__table_digest(const struct ist__table *t, uint64_t item, struct ist__digest *out)
{
	const struct ist__set *s = &t->sets[t->item_set[item]];

	if (!s->digests || t->m->items[item].in_parts)
		return false;
	*out = s->digests[t->item_local[item]];
	return true;
}
