/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_table.c - what members say in a gather: records, then manifests with the digests of files, all from the input. Either
 * refused, or one plan that moves every byte of every item once, piece behind piece.
 *
 * Input: u8 members, then pieces (u16 length, bytes): a record each, then what is sent for each offer.
 */
#include "fuzz.h"

#include "sync/table.h"

static void
check_plan(const struct ist__table *t)
{
	const struct ist__plan *p = t->plan;
	uint64_t *seen = calloc(t->m->n_items + 1, sizeof(*seen));

	must(seen != NULL && p->slot_bytes <= (p->bucket_bytes < IST__BUCKET_MIN ? IST__BUCKET_MIN : p->bucket_bytes));
	for (uint64_t b = 0; b < p->n_buckets; b++) {
		const struct ist__plan_bucket *k = &p->buckets[b];
		uint64_t end = 0;

		must(k->set < t->n_sets && k->part < t->sets[k->set].parts && k->first_piece + k->n_pieces <= p->n_pieces && k->bytes <= p->slot_bytes);
		must(ist__table_giver(t, k->set, k->part) != NULL);
		for (uint64_t i = 0; i < k->n_pieces; i++) {
			const struct ist__plan_piece *c = &p->pieces[k->first_piece + i];

			must(c->item < t->m->n_items && c->at >= end && c->at + c->bytes <= k->bytes);
			must(c->offset == seen[c->item] && c->bytes <= t->m->items[c->item].bytes - c->offset);
			must(c->last == (c->offset + c->bytes == t->m->items[c->item].bytes));
			seen[c->item] += c->bytes;
			end = c->at + c->bytes;
		}
	}
	for (uint64_t i = 0; i < t->m->n_items; i++)
		must(t->last_bucket[i] == UINT32_MAX ? seen[i] == 0 : seen[i] == t->m->items[i].bytes && t->last_bucket[i] < p->n_buckets);
	free(seen);
}

static ist_err
hear(struct ist__table *t, struct input *in, struct ist_error *err)
{
	struct ist__reader r;
	ist_err e = IST_OK;
	size_t n;

	for (uint32_t i = 0; i < t->n_members && !e; i++) {
		const uint8_t *at = take_piece(in, &n);

		e = ist__table_hear(t, i, at, n, err);
	}
	if (!e)
		e = ist__table_settle(t, err);
	for (uint32_t i = 0; !e && i < t->n_offers; i++)
		if (ist__table_must_send(t, i)) {
			const uint8_t *at = take_piece(in, &n);

			ist__reader_init(&r, at, n);
			e = ist__table_manifest(t, i, &r, err);
		}
	return e;
}

/* A plan of so many bytes is right, and too large to be made here a thousand times a second. */
static bool
too_large(const struct ist__table *t)
{
	uint64_t all = 0;

	for (uint32_t s = 0; s < t->n_sets; s++)
		for (uint64_t i = 0; i < t->sets[s].m->n_items; i++) {
			uint64_t bytes = t->sets[s].m->items[i].bytes;

			if (bytes > UINT64_C(1) << 33 || (all += bytes) > UINT64_C(1) << 33)
				return true;
		}
	return false;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct ist__table *t;
	struct ist_error err;
	struct ist__ctx ctx;
	ist_err e;

	ist__ctx_init(&ctx);
	ist_error_init(&err);
	t = ist__table_new(&ctx, 1 + take_u8(&in) % 4);
	must(t != NULL);
	e = hear(t, &in, &err);
	if (!e && too_large(t)) {
		ist__table_free(t);
		return 0;
	}
	if (!e)
		e = ist__table_merge(t, &err);
	if (!e)
		e = ist__table_plan(t, &err);
	must(e == err.code && e != IST_INTERNAL && e != IST_NO_MEMORY);
	if (!e)
		check_plan(t);
	ist__table_free(t);
	return 0;
}
