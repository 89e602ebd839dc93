/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/ends.h"

#include "base/fail.h"

#define OP "sync_update"

void
ist__ends_take_failed(struct ist__sync_body *s, struct ist_error *why, uint64_t b, const struct ist__plan_piece *p)
{
	const struct ist__item *item = &s->table->m->items[p->item];

	ist__fail_bucket(why, b);
	if (!why->tensor[0])
		ist__fail_tensor(why, item->name);
	ist__sync_fail_here(s, why);
}

void
ist__ends_give_failed(struct ist__sync_body *s, struct ist_error *why, uint64_t b, const struct ist__plan_piece *p)
{
	if (s->up.own)
		s->up.failed = s->up.own = false;
	ist__ends_take_failed(s, why, b, p);
}

struct ist__digest *
ist__ends_leaves(const struct ist__sync_body *s, const struct ist__plan_piece *p)
{
	return &s->leaves[s->table->leaf_first[p->item] + p->offset / IST__LEAF_BYTES];
}

/* ---- giving ---- */

uint32_t
ist__ends_run_of_file(const struct ist__table *t, const struct ist__manifest *m, const struct ist__plan_piece *p, uint32_t n, uint64_t *bytes)
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

static void
digest_given(struct ist__sync_body *s, const struct ist__plan_piece *p, const uint8_t *at)
{
	if (p->offset == 0)
		s->got[p->item] = 0; /* given before, to a group that lost a member */
	ist__digest_leaves(at, p->bytes, ist__ends_leaves(s, p));
	s->got[p->item] += p->bytes;
}

void
ist__ends_give(struct ist__sync_body *s, uint64_t b, const struct ist__offer *giver, uint8_t *to)
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
		if (ist__checkpoint_live(source->ck)) {
			e = ist__checkpoint_fetch(source->ck, local, p->offset, bytes, to + p->at, &why);
		} else {
			n = ist__ends_run_of_file(t, m, p, k->n_pieces - i, &bytes);
			e = ist__checkpoint_fetch_file(source->ck, m->items[local].file, m->items[local].offset + p->offset, bytes, to + p->at, &why);
		}
		for (uint32_t q = 0; q < n && !e && giver->live && t->verify; q++)
			digest_given(s, &p[q], to + p[q].at);
		if (e)
			ist__ends_give_failed(s, &why, b, p);
	}
}

/* ---- taking ---- */

ist_err
ist__ends_check_item(struct ist__sync_body *s, const struct ist__plan_piece *p, struct ist_error *why)
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

bool
ist__ends_digests(const struct ist__sync_body *s, const struct ist__plan_piece *p, bool mine)
{
	const struct ist__table *t = s->table;

	return t->verify && !(mine && !t->sets[t->item_set[p->item]].digests);
}

static ist_err
take_piece(struct ist__sync_body *s, const struct ist__plan_piece *p, const uint8_t *at, bool mine, struct ist_error *why)
{
	const struct ist__table *t = s->table;
	ist_err e;

	if (ist__ends_digests(s, p, mine)) {
		ist__digest_leaves(at, p->bytes, ist__ends_leaves(s, p));
		s->got[p->item] += p->bytes;
	}
	e = ist__sinks_piece(&s->sinks, p->item, p->offset, at, p->bytes, why);
	s->up.own = e != IST_OK;
	ist__pace_piece(&s->pace);
	if (!e && p->last && t->verify)
		e = ist__ends_check_item(s, p, why);
	return e;
}

void
ist__ends_take(struct ist__sync_body *s, uint64_t b, const uint8_t *from, bool mine)
{
	const struct ist__plan_bucket *k = &s->table->plan->buckets[b];
	const struct ist__plan_piece *pieces = &s->table->plan->pieces[k->first_piece];
	struct ist_error why;

	ist_error_init(&why);
	for (uint32_t i = 0; i < k->n_pieces && !s->up.failed; i++)
		if (take_piece(s, &pieces[i], from + pieces[i].at, mine, &why) != IST_OK)
			ist__ends_take_failed(s, &why, b, &pieces[i]);
}
