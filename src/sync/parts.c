/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/parts.h"

#include "base/fail.h"
#include "ckpt/slice.h"
#include "sync/cover.h"

#include <stdlib.h>
#include <string.h>

#define OP "sync_gather"
enum { BOX_TEXT = IST_DIMS_MAX * 44 };

uint64_t
ist__parts_count(const struct ist__table *t)
{
	uint64_t n = 0;

	for (uint32_t s = 0; s < t->n_sets; s++)
		for (uint64_t k = 0; k < t->sets[s].m->n_items; k++)
			n += t->sets[s].m->items[k].kind == IST__ITEM_SLICE;
	return n;
}

static int
by_tensor(const void *x, const void *y, void *items)
{
	const struct ist__item *list = items, *a = &list[*(const uint32_t *)x], *b = &list[*(const uint32_t *)y];
	int c = (a->part_of > b->part_of) - (a->part_of < b->part_of);

	if (!c)
		c = ist__slice_order(a, b);
	return c ? c : (a > b) - (a < b);
}

static bool
list_parts(struct ist__table *t)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < t->m->n_items; i++)
		n += t->m->items[i].kind == IST__ITEM_SLICE;
	t->parts = ist__alloc(t->ctx, n * sizeof(*t->parts));
	if (!t->parts)
		return false;
	for (uint64_t i = 0; i < t->m->n_items; i++)
		if (t->m->items[i].kind == IST__ITEM_SLICE)
			t->parts[t->n_parts++] = (uint32_t)i;
	if (n > 1)
		qsort_r(t->parts, n, sizeof(*t->parts), by_tensor, t->m->items);
	return true;
}

/* First place in parts of a tensor with a number of at least item. */
static uint64_t
first_of(const struct ist__table *t, uint64_t item)
{
	uint64_t lo = 0, hi = t->n_parts;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (t->m->items[t->parts[mid]].part_of < item + 1)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

const uint32_t *
ist__parts_of(const struct ist__table *t, uint64_t item, uint64_t *n)
{
	uint64_t first = first_of(t, item), end = first;

	while (end < t->n_parts && t->m->items[t->parts[end]].part_of == item + 1)
		end++;
	*n = end - first;
	return t->parts + first;
}

static ist_err
fail_flaw(const struct ist__table *t, uint64_t item, const uint32_t *parts, const struct ist__cover_flaw *f, bool twice,
	struct ist_error *err)
{
	const struct ist__item *tensor = &t->m->items[item];
	uint32_t a = 0, b = 0;
	char box[BOX_TEXT];

	ist__box_text(f->begin, f->end, tensor->rank, box, sizeof(box));
	if (twice) {
		a = ist__table_member_of(t, t->item_set[parts[f->a]]);
		b = ist__table_member_of(t, t->item_set[parts[f->b]]);
		ist__fail(err, IST_OVERLAP, OP, "%s of tensor %s is given by rank %u and by rank %u, in slices that overlap", box, tensor->name, a, b);
		ist__fail_rank(err, a);
		ist__fail_rank(err, b);
		if (ist__slice_order(&t->m->items[parts[f->a]], &t->m->items[parts[f->b]]) == 0)
			ist__fail_next(err, IST__NEXT_ALIKE);
	} else {
		ist__fail(err, IST_INCOMPLETE, OP, "%s of tensor %s is in no slice that anybody has registered", box, tensor->name);
	}
	ist__fail_tensor(err, tensor->name);
	return twice ? IST_OVERLAP : IST_INCOMPLETE;
}

static ist_err
check_tensor(const struct ist__table *t, uint64_t item, struct ist__box *boxes, struct ist_error *err)
{
	const struct ist__item *tensor = &t->m->items[item];
	struct ist__cover_flaw flaw;
	uint64_t n;
	const uint32_t *parts = ist__parts_of(t, item, &n);

	for (uint64_t i = 0; i < n; i++)
		boxes[i] = (struct ist__box){ t->m->items[parts[i]].begin, t->m->items[parts[i]].shape };
	switch (ist__cover_check(t->ctx, boxes, n, tensor->shape, tensor->rank, &flaw)) {
	case IST__COVERED:
		return IST_OK;
	case IST__COVER_NO_MEMORY:
		return ist__fail_memory(err, OP);
	case IST__COVER_TWICE:
		return fail_flaw(t, item, parts, &flaw, true, err);
	case IST__COVER_MISSING:
		break;
	}
	return fail_flaw(t, item, parts, &flaw, false, err);
}

ist_err
ist__parts_settle(struct ist__table *t, struct ist_error *err)
{
	struct ist__box *boxes;
	ist_err e = IST_OK;

	if (!list_parts(t))
		return ist__fail_memory(err, OP);
	boxes = ist__alloc(t->ctx, t->n_parts * sizeof(*boxes));
	if (!boxes)
		return ist__fail_memory(err, OP);
	for (uint64_t i = 0; i < t->m->n_items && !e; i++)
		if (t->m->items[i].in_parts)
			e = check_tensor(t, i, boxes, err);
	ist__free(t->ctx, boxes);
	return e;
}

void
ist__parts_digest(const struct ist__table *t, const struct ist__digest *digests, uint64_t item, struct ist__digest *out)
{
	struct ist__hasher h;
	const uint32_t *parts;
	uint64_t n;

	if (!t->m->items[item].in_parts) {
		*out = digests[item];
		return;
	}
	parts = ist__parts_of(t, item, &n);
	ist__hasher_init(&h);
	for (uint64_t i = 0; i < n; i++)
		ist__slice_hash(&h, &t->m->items[parts[i]], &digests[parts[i]]);
	ist__hasher_end(&h, out);
}
