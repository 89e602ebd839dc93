/* SPDX-License-Identifier: Apache-2.0
 *
 * cover.c - boxes that do not meet fill a tensor when their volumes add up to its own. So the check is a sweep for two that
 * meet, and a sum. Only where the sum is short somebody has to look for the hole: dimension by dimension, in the first
 * stretch whose boxes are too few.
 */
#include "sync/cover.h"

#include <stdlib.h>
#include <string.h>

struct cover {
	const struct ist__box *boxes;
	const uint64_t *whole;
	uint32_t rank, dim;  /* dim: of the sweep */
	uint64_t *list, n;   /* boxes that hold something */
	uint64_t *room;      /* as many again */
};

/* Where a box begins or ends, and the volume that begins or ends with it. */
struct edge {
	uint64_t at, volume;
	bool ends;
};

static bool
holds_nothing(const struct ist__box *b, uint32_t rank)
{
	for (uint32_t d = 0; d < rank; d++)
		if (b->extent[d] == 0)
			return true;
	return false;
}

/* Of the dimensions from d on. */
static uint64_t
volume(const uint64_t *extent, uint32_t d, uint32_t rank)
{
	uint64_t v = 1;

	for (; d < rank; d++)
		v *= extent[d];
	return v;
}

/* ---- two that meet ---- */

static int
by_begin(const void *x, const void *y, void *arg)
{
	const struct cover *c = arg;
	uint64_t i = *(const uint64_t *)x, k = *(const uint64_t *)y;
	uint64_t a = c->boxes[i].begin[c->dim], b = c->boxes[k].begin[c->dim];

	return a != b ? (a < b ? -1 : 1) : (i > k) - (i < k);
}

static uint64_t
count_begins(struct cover *c)
{
	uint64_t n = 0, last = 0;

	qsort_r(c->list, c->n, sizeof(*c->list), by_begin, c);
	for (uint64_t i = 0; i < c->n; i++) {
		uint64_t at = c->boxes[c->list[i]].begin[c->dim];

		if (i == 0 || at != last)
			n++;
		last = at;
	}
	return n;
}

/* Sorts along the dimension that is cut most often: there the fewest stand side by side. */
static void
choose_dim(struct cover *c)
{
	uint64_t most = 0;
	uint32_t best = 0;

	for (c->dim = 0; c->dim < c->rank; c->dim++) {
		uint64_t n = count_begins(c);

		if (n > most) {
			most = n;
			best = c->dim;
		}
	}
	c->dim = best;
	(void)count_begins(c);
}

static bool
meet(const struct cover *c, uint64_t i, uint64_t k, struct ist__cover_flaw *flaw)
{
	const struct ist__box *a = &c->boxes[i], *b = &c->boxes[k];

	for (uint32_t d = 0; d < c->rank; d++)
		if (a->begin[d] >= b->begin[d] + b->extent[d] || b->begin[d] >= a->begin[d] + a->extent[d])
			return false;
	flaw->a = i < k ? i : k;
	flaw->b = i < k ? k : i;
	for (uint32_t d = 0; d < c->rank; d++) {
		uint64_t x = a->begin[d] + a->extent[d], y = b->begin[d] + b->extent[d];

		flaw->begin[d] = a->begin[d] > b->begin[d] ? a->begin[d] : b->begin[d];
		flaw->end[d] = x < y ? x : y;
	}
	return true;
}

/* room holds those that the sweep has reached and not passed. */
static bool
find_twice(struct cover *c, struct ist__cover_flaw *flaw)
{
	uint64_t open = 0;

	choose_dim(c);
	for (uint64_t i = 0; i < c->n; i++) {
		uint64_t now = c->boxes[c->list[i]].begin[c->dim], kept = 0;

		for (uint64_t k = 0; k < open; k++) {
			const struct ist__box *b = &c->boxes[c->room[k]];

			if (b->begin[c->dim] + b->extent[c->dim] > now)
				c->room[kept++] = c->room[k];
		}
		open = kept;
		for (uint64_t k = 0; k < open; k++)
			if (meet(c, c->room[k], c->list[i], flaw))
				return true;
		c->room[open++] = c->list[i];
	}
	return false;
}

/* ---- a hole ---- */

static int
by_edge(const void *x, const void *y)
{
	const struct edge *a = x, *b = y;

	return a->at != b->at ? (a->at < b->at ? -1 : 1) : (int)b->ends - (int)a->ends;
}

/* The first stretch of dimension d in which the boxes of list have less volume than there is. */
static void
short_stretch(const struct cover *c, uint32_t d, struct edge *edges, struct ist__cover_flaw *flaw)
{
	uint64_t due = volume(c->whole, d + 1, c->rank), here = 0, n = 0;

	for (uint64_t i = 0; i < c->n; i++) {
		const struct ist__box *b = &c->boxes[c->list[i]];
		uint64_t v = volume(b->extent, d + 1, c->rank);

		edges[n++] = (struct edge){ .at = b->begin[d], .volume = v };
		edges[n++] = (struct edge){ .at = b->begin[d] + b->extent[d], .volume = v, .ends = true };
	}
	if (n > 0)
		qsort(edges, n, sizeof(*edges), by_edge);
	flaw->begin[d] = 0;
	flaw->end[d] = c->whole[d];
	for (uint64_t i = 0; i < n; i++) {
		if (edges[i].at > flaw->begin[d] && here < due) {
			flaw->end[d] = edges[i].at;
			return;
		}
		here = edges[i].ends ? here - edges[i].volume : here + edges[i].volume;
		flaw->begin[d] = edges[i].at;
	}
}

/* As far as nobody is in the way. */
static void
widen(const struct cover *c, uint64_t n, struct ist__cover_flaw *flaw)
{
	for (uint32_t d = 0; d < c->rank; d++) {
		uint64_t end = c->whole[d];

		for (uint64_t i = 0; i < n; i++) {
			const struct ist__box *b = &c->boxes[i];
			bool beside = !holds_nothing(b, c->rank) && b->begin[d] >= flaw->end[d] && b->begin[d] < end;

			for (uint32_t k = 0; beside && k < c->rank; k++)
				beside = k == d || (b->begin[k] < flaw->end[k] && flaw->begin[k] < b->begin[k] + b->extent[k]);
			if (beside)
				end = b->begin[d];
		}
		flaw->end[d] = end;
	}
}

static bool
find_hole(struct cover *c, const struct ist__ctx *ctx, uint64_t n, struct ist__cover_flaw *flaw)
{
	struct edge *edges = ist__alloc(ctx, 2 * c->n * sizeof(*edges));

	if (!edges)
		return false;
	for (uint32_t d = 0; d < c->rank; d++) {
		uint64_t kept = 0;

		short_stretch(c, d, edges, flaw);
		for (uint64_t i = 0; i < c->n; i++) {
			const struct ist__box *b = &c->boxes[c->list[i]];

			if (b->begin[d] <= flaw->begin[d] && b->begin[d] + b->extent[d] >= flaw->end[d])
				c->list[kept++] = c->list[i];
		}
		c->n = kept;
	}
	ist__free(ctx, edges);
	widen(c, n, flaw);
	return true;
}

enum ist__cover
ist__cover_check(const struct ist__ctx *ctx, const struct ist__box *boxes, uint64_t n, const uint64_t *whole, uint32_t rank,
	struct ist__cover_flaw *flaw)
{
	struct cover c = { .boxes = boxes, .whole = whole, .rank = rank };
	struct ist__cover_flaw found = { .a = 0 };
	enum ist__cover result = IST__COVERED;
	uint64_t sum = 0;

	c.list = ist__alloc(ctx, n * sizeof(*c.list));
	c.room = ist__alloc(ctx, n * sizeof(*c.room));
	for (uint64_t i = 0; c.list && c.room && i < n; i++)
		if (!holds_nothing(&boxes[i], rank))
			c.list[c.n++] = i;
	if (!c.list || !c.room)
		result = IST__COVER_NO_MEMORY;
	else if (c.n > 1 && find_twice(&c, &found))
		result = IST__COVER_TWICE;
	for (uint64_t i = 0; result == IST__COVERED && i < c.n; i++)
		sum += volume(boxes[c.list[i]].extent, 0, rank); /* they do not meet: no more than the whole */
	if (result == IST__COVERED && sum < volume(whole, 0, rank))
		result = find_hole(&c, ctx, n, &found) ? IST__COVER_MISSING : IST__COVER_NO_MEMORY;
	if (result == IST__COVER_TWICE || result == IST__COVER_MISSING)
		*flaw = found;
	ist__free(ctx, c.list);
	ist__free(ctx, c.room);
	return result;
}
