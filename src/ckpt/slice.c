/* SPDX-License-Identifier: Apache-2.0
 *
 * slice.c - boxes of tensors. All arithmetic is bounded by the tensor's size in bits, which fits into 64 bits.
 */
#include "ckpt/slice.h"

#include "base/bytes.h"
#include "base/fail.h"

#include <stdio.h>
#include <string.h>

static ist_err
fail_slice(const struct ist__item *t, ist_err code, const char *op, const char *what, struct ist_error *err)
{
	ist__fail(err, code, op, "slice of tensor \"%.200s\": %s", t->name, what);
	ist__fail_tensor(err, t->name);
	return code;
}

bool
ist__slice_is_all(const uint64_t *shape, const uint64_t *begin, const uint64_t *whole, uint32_t rank)
{
	for (uint32_t d = 0; d < rank; d++)
		if (begin[d] != 0 || shape[d] != whole[d])
			return false;
	return true;
}

/* From this dimension on the slice is as wide as its tensor. At least 1: a slice is less than the whole. */
static uint32_t
whole_from(const struct ist__item *t)
{
	uint32_t d = t->rank;

	while (d > 1 && t->shape[d - 1] == t->whole[d - 1])
		d--;
	return d;
}

static ist_err
check_box(const struct ist__item *t, const char *op, struct ist_error *err)
{
	for (uint32_t d = 0; d < t->rank; d++)
		if (t->begin[d] > t->whole[d] || t->shape[d] > t->whole[d] - t->begin[d]) {
			ist__fail(err, IST_BAD_OFFSETS, op, "slice of tensor \"%.200s\": in dimension %u it is %llu:+%llu of %llu", t->name, d,
				(unsigned long long)t->begin[d], (unsigned long long)t->shape[d], (unsigned long long)t->whole[d]);
			ist__fail_tensor(err, t->name);
			return IST_BAD_OFFSETS;
		}
	if (ist__slice_is_all(t->shape, t->begin, t->whole, t->rank))
		return fail_slice(t, IST_BAD_ENTRY, op, "it is all of the tensor", err);
	return IST_OK;
}

ist_err
ist__slice_check(const struct ist__item *t, const char *op, struct ist_error *err)
{
	uint64_t bytes, bits = ist__dtype_bits(t->dtype);
	uint32_t d;
	ist_err e = ist__dtype_bytes(t->dtype, t->whole, t->rank, &bytes);

	if (e)
		return fail_slice(t, e, op, e == IST_OVERFLOW ? "the size of its tensor does not fit into 64 bits" :
			"the tensor's bits are no whole number of bytes", err);
	e = check_box(t, op, err);
	if (e || t->bytes == 0)
		return e;
	/* no extent is 0, so none of these products is more than the tensor's bits */
	d = whole_from(t);
	for (uint32_t i = d; i < t->rank; i++)
		bits *= t->whole[i];
	if ((t->shape[d - 1] * bits) % 8 || (t->begin[d - 1] * bits) % 8 || (d > 1 && (t->whole[d - 1] * bits) % 8))
		return fail_slice(t, IST_BAD_ENTRY, op, "its rows do not begin and end at whole bytes", err);
	return IST_OK;
}

void
ist__scatter_init(struct ist__scatter *s, const struct ist__item *t)
{
	uint64_t bits = ist__dtype_bits(t->dtype), stride;
	uint32_t d;

	*s = (struct ist__scatter){ .run = 0 };
	if (t->bytes == 0)
		return;
	d = whole_from(t);
	for (uint32_t i = d; i < t->rank; i++)
		bits *= t->whole[i];
	s->run = t->shape[d - 1] * bits / 8;
	s->base = t->begin[d - 1] * bits / 8;
	if (--d == 0)
		return;
	stride = t->whole[d] * bits / 8;
	for (; d > 0; d--) {
		s->base += t->begin[d - 1] * stride;
		/* one with the level inside it where that ends as wide as the tensor */
		if (s->levels > 0 && s->level[s->levels - 1].count * s->level[s->levels - 1].stride == stride)
			s->level[s->levels - 1].count *= t->shape[d - 1];
		else if (t->shape[d - 1] > 1) {
			s->level[s->levels].count = t->shape[d - 1];
			s->level[s->levels++].stride = stride;
		}
		stride *= t->whole[d - 1];
	}
}

/* Where run number n begins in the tensor; *row is its number in the innermost level. */
static uint64_t
run_at(const struct ist__scatter *s, uint64_t n, uint64_t *row)
{
	uint64_t at = s->base;

	*row = 0;
	for (uint32_t i = 0; i < s->levels; i++) {
		uint64_t k = n % s->level[i].count;

		if (i == 0)
			*row = k;
		at += k * s->level[i].stride;
		n /= s->level[i].count;
	}
	return at;
}

uint64_t
ist__scatter_next(const struct ist__scatter *s, uint64_t at, uint64_t left, struct ist__runs *out)
{
	uint64_t in = at % s->run, row, runs, offset = run_at(s, at / s->run, &row);

	*out = (struct ist__runs){ .offset = offset + in, .count = 1 };
	out->bytes = left < s->run - in ? left : s->run - in;
	if (out->bytes < s->run || s->levels == 0)
		return out->bytes;
	runs = left / s->run;
	if (runs > s->level[0].count - row)
		runs = s->level[0].count - row;
	out->count = runs;
	out->stride = s->level[0].stride;
	return runs * s->run;
}

/* A length that the compiler knows: tiny runs cost a move each, not a call. */
#define COPY_EACH(n)                                              \
	case n:                                                   \
		for (uint64_t i = 0; i < r->count; i++)           \
			memcpy(at + i * r->stride, src + i * n, n); \
		return

void
ist__runs_copy(void *to, const struct ist__runs *r, const void *from)
{
	uint8_t *at = to;
	const uint8_t *src = from;

	switch (r->bytes) {
		COPY_EACH(1);
		COPY_EACH(2);
		COPY_EACH(4);
		COPY_EACH(8);
		COPY_EACH(16);
		COPY_EACH(32);
	default:
		break;
	}
	for (uint64_t i = 0; i < r->count; i++)
		memcpy(at + i * r->stride, src + i * r->bytes, r->bytes);
}

int
ist__slice_order(const struct ist__item *a, const struct ist__item *b)
{
	for (uint32_t d = 0; d < a->rank && d < b->rank; d++)
		if (a->begin[d] != b->begin[d])
			return a->begin[d] < b->begin[d] ? -1 : 1;
	for (uint32_t d = 0; d < a->rank && d < b->rank; d++)
		if (a->shape[d] != b->shape[d])
			return a->shape[d] < b->shape[d] ? -1 : 1;
	return 0;
}

static void
hash_dims(struct ist__hasher *h, const uint64_t *dims, uint32_t rank)
{
	for (uint32_t d = 0; d < rank; d++) {
		uint8_t b[8];

		ist__store_u64(b, dims[d]);
		ist__hasher_add(h, b, sizeof(b));
	}
}

void
ist__slice_hash(struct ist__hasher *h, const struct ist__item *t, const struct ist__digest *digest)
{
	if (t->bytes == 0)
		return;
	hash_dims(h, t->begin, t->rank);
	hash_dims(h, t->shape, t->rank);
	ist__hasher_add(h, digest->b, sizeof(digest->b));
}

void
ist__box_text(const uint64_t *begin, const uint64_t *end, uint32_t rank, char *text, uint64_t room)
{
	uint64_t at = 0;

	for (uint32_t d = 0; d < rank && at < room; d++)
		at += (uint64_t)snprintf(text + at, room - at, "%s%llu:%llu", d ? ", " : "[", (unsigned long long)begin[d],
			(unsigned long long)end[d]);
	if (at < room)
		snprintf(text + at, room - at, rank ? "]" : "[]");
}
