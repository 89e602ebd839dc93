/* SPDX-License-Identifier: Apache-2.0
 *
 * slice_test.c - slices without a group: do boxes fill a tensor, where do a slice's bytes belong, what may be registered.
 * Boxes and runs are compared with maps that have one entry for each element. */
#include "ckpt_help.h"

#include "base/clock.h"
#include "ckpt/outfile.h"
#include "ckpt/slice.h"
#include "sync/cover.h"

static uint64_t seed;

static uint64_t
rnd(uint64_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return n ? seed % n : 0;
}

/* ---- boxes ---- */

enum { BOXES = 64, ELEMENTS = 4096 };

struct heap {
	struct ist__box boxes[BOXES];
	uint64_t dims[BOXES][2][4];
	uint64_t whole[4], n, elements;
	uint32_t rank;
	uint8_t count[ELEMENTS];
};

static void
add_box(struct heap *h, const uint64_t *begin, const uint64_t *extent)
{
	if (h->n == BOXES)
		return;
	memcpy(h->dims[h->n][0], begin, sizeof(h->dims[0][0]));
	memcpy(h->dims[h->n][1], extent, sizeof(h->dims[0][1]));
	h->n++;
}

/* Cuts a box in two, and those again. */
static void
cut(struct heap *h, const uint64_t *begin, const uint64_t *extent, uint32_t depth)
{
	uint64_t b[4], e[4], at;
	uint32_t d = (uint32_t)rnd(h->rank);

	memcpy(b, begin, sizeof(b));
	memcpy(e, extent, sizeof(e));
	at = rnd(e[d] + 1);
	if (depth == 0 || rnd(8) == 0) {
		add_box(h, b, e);
		return;
	}
	e[d] = at;
	cut(h, b, e, depth - 1);
	b[d] += at;
	e[d] = extent[d] - at;
	cut(h, b, e, depth - 1);
}

static uint64_t
volume_of(const uint64_t *extent, uint32_t rank)
{
	uint64_t v = 1;

	for (uint32_t d = 0; d < rank; d++)
		v *= extent[d];
	return v;
}

/* Is element number i of the whole in the box? */
static bool
inside(const struct heap *h, uint64_t i, const uint64_t *begin, const uint64_t *end)
{
	for (uint32_t d = h->rank; d-- > 0;) {
		uint64_t x = i % h->whole[d];

		if (x < begin[d] || x >= end[d])
			return false;
		i /= h->whole[d];
	}
	return true;
}

static void
ends_of(const struct heap *h, uint64_t box, uint64_t *end)
{
	for (uint32_t d = 0; d < h->rank; d++)
		end[d] = h->dims[box][0][d] + h->dims[box][1][d];
}

static void
make_heap(struct heap *h)
{
	static const uint64_t zero[4];

	memset(h, 0, sizeof(*h));
	h->rank = 1 + (uint32_t)rnd(4);
	for (uint32_t d = 0; d < h->rank; d++)
		h->whole[d] = rnd(40) ? 1 + rnd(h->rank == 1 ? 50 : 7) : 0;
	h->elements = volume_of(h->whole, h->rank);
	cut(h, zero, h->whole, (uint32_t)rnd(6));
	for (uint64_t i = h->n; i-- > 1;) { /* in any order */
		uint64_t k = rnd(i + 1), swap[2][4];

		memcpy(swap, h->dims[i], sizeof(swap));
		memcpy(h->dims[i], h->dims[k], sizeof(swap));
		memcpy(h->dims[k], swap, sizeof(swap));
	}
}

/* Most often something is wrong with it. */
static void
spoil(struct heap *h)
{
	uint64_t i = rnd(h->n), d = rnd(h->rank);

	if (h->n == 0)
		return;
	switch (rnd(5)) {
	case 0:
		h->n--;
		break;
	case 1:
		add_box(h, h->dims[i][0], h->dims[i][1]);
		break;
	case 2:
		if (h->dims[i][1][d] > 0)
			h->dims[i][1][d]--;
		break;
	case 3:
		if (h->dims[i][0][d] > 0) {
			h->dims[i][0][d]--;
			h->dims[i][1][d] += rnd(2);
		}
		break;
	default:
		break;
	}
}

static void
check_heap(struct heap *h, uint64_t *seen)
{
	struct ist__ctx ctx;
	struct ist__cover_flaw flaw;
	enum ist__cover want = IST__COVERED, got;
	uint64_t holes = 0, end[4];

	ist__ctx_init(&ctx);
	memset(h->count, 0, sizeof(h->count));
	for (uint64_t b = 0; b < h->n; b++) {
		h->boxes[b] = (struct ist__box){ h->dims[b][0], h->dims[b][1] };
		ends_of(h, b, end);
		for (uint64_t i = 0; i < h->elements; i++)
			h->count[i] += inside(h, i, h->dims[b][0], end);
	}
	for (uint64_t i = 0; i < h->elements; i++) {
		if (h->count[i] > 1)
			want = IST__COVER_TWICE;
		holes += h->count[i] == 0;
	}
	if (want == IST__COVERED && holes > 0)
		want = IST__COVER_MISSING;
	got = ist__cover_check(&ctx, h->boxes, h->n, h->whole, h->rank, &flaw);
	assert_int_equal(got, want);
	seen[got]++;
	if (got == IST__COVERED)
		return;
	for (uint32_t d = 0; d < h->rank; d++)
		assert_true(flaw.begin[d] < flaw.end[d] && flaw.end[d] <= h->whole[d]);
	for (uint64_t i = 0; i < h->elements; i++) {
		bool in = inside(h, i, flaw.begin, flaw.end);

		if (got == IST__COVER_MISSING) {
			assert_true(!in || h->count[i] == 0);
			continue;
		}
		assert_true(flaw.a < flaw.b && flaw.b < h->n);
		ends_of(h, flaw.a, end);
		assert_true(!in || inside(h, i, h->dims[flaw.a][0], end));
		if (inside(h, i, h->dims[flaw.a][0], end)) {
			ends_of(h, flaw.b, end);
			assert_true(in == inside(h, i, h->dims[flaw.b][0], end));
		}
	}
}

static void
boxes_against_a_map(void **state)
{
	static struct heap h;
	uint64_t seen[4] = { 0 };

	(void)state;
	seed = 20240517;
	for (int i = 0; i < 30000; i++) {
		make_heap(&h);
		for (uint64_t n = rnd(3); n > 0; n--)
			spoil(&h);
		check_heap(&h, seen);
	}
	print_message("covered %d, twice %d, missing %d\n", (int)seen[IST__COVERED], (int)seen[IST__COVER_TWICE], (int)seen[IST__COVER_MISSING]);
	assert_true(seen[IST__COVERED] > 1000 && seen[IST__COVER_TWICE] > 1000 && seen[IST__COVER_MISSING] > 1000);
}

/* The hole is named as one would name it. */
static void
the_missing_box(void **state)
{
	struct ist__ctx ctx;
	struct ist__cover_flaw flaw;
	struct ist__box boxes[64];
	uint64_t dims[64][2][2], n, rows[2] = { 4096, 1024 };
	char text[64];

	(void)state;
	ist__ctx_init(&ctx);
	for (uint64_t gone = 0; gone < 8; gone++) {
		n = 0;
		for (uint64_t i = 0; i < 8; i++) {
			dims[n][0][0] = i * 512;
			dims[n][0][1] = 0;
			dims[n][1][0] = 512;
			dims[n][1][1] = 1024;
			boxes[n] = (struct ist__box){ dims[n][0], dims[n][1] };
			n += i != gone;
		}
		assert_int_equal(ist__cover_check(&ctx, boxes, n, rows, 2, &flaw), IST__COVER_MISSING);
		assert_true(flaw.begin[0] == gone * 512 && flaw.end[0] == gone * 512 + 512 && flaw.begin[1] == 0 && flaw.end[1] == 1024);
	}
	ist__box_text(flaw.begin, flaw.end, 2, text, sizeof(text));
	assert_string_equal(text, "[3584:4096, 0:1024]");
	ist__box_text(flaw.begin, flaw.end, 2, text, 5);
	assert_string_equal(text, "[358");
	/* two neighbours of a grid: one box */
	n = 0;
	for (uint64_t i = 0; i < 64; i++) {
		dims[n][0][0] = i / 8 * 512;
		dims[n][0][1] = i % 8 * 128;
		dims[n][1][0] = 512;
		dims[n][1][1] = 128;
		boxes[n] = (struct ist__box){ dims[n][0], dims[n][1] };
		n += i != 27 && i != 28;
	}
	assert_int_equal(ist__cover_check(&ctx, boxes, n, rows, 2, &flaw), IST__COVER_MISSING);
	assert_true(flaw.begin[0] == 1536 && flaw.end[0] == 2048 && flaw.begin[1] == 384 && flaw.end[1] == 640);
	assert_int_equal(ist__cover_check(&ctx, boxes, 0, rows, 2, &flaw), IST__COVER_MISSING);
	assert_true(flaw.begin[0] == 0 && flaw.end[0] == 4096 && flaw.begin[1] == 0 && flaw.end[1] == 1024);
}

/* A row of 100,000 along the second dimension, and a grid of 300 x 300. The bound is a guard against squares. */
static void
many_boxes(void **state)
{
	enum { N = 100000 };
	struct ist__ctx ctx;
	struct ist__cover_flaw flaw;
	struct ist__box *boxes = calloc(N, sizeof(*boxes));
	uint64_t (*dims)[2][2] = calloc(N, sizeof(*dims)), row[2] = { 64, N }, grid[2] = { 300 * 7, 300 * 5 };
	int64_t began = ist__now();

	(void)state;
	ist__ctx_init(&ctx);
	for (uint64_t i = 0; i < N; i++) {
		dims[i][0][1] = (i * 7919) % N; /* any order */
		dims[i][1][0] = 64;
		dims[i][1][1] = 1;
		boxes[i] = (struct ist__box){ dims[i][0], dims[i][1] };
	}
	assert_int_equal(ist__cover_check(&ctx, boxes, N, row, 2, &flaw), IST__COVERED);
	dims[N / 2][0][1] = (dims[N / 2][0][1] + 1) % N;
	assert_int_equal(ist__cover_check(&ctx, boxes, N, row, 2, &flaw), IST__COVER_TWICE);
	dims[N / 2][1][0] = 0;
	assert_int_equal(ist__cover_check(&ctx, boxes, N, row, 2, &flaw), IST__COVER_MISSING);
	for (uint64_t i = 0; i < 90000; i++) {
		dims[i][0][0] = i / 300 * 7;
		dims[i][0][1] = i % 300 * 5;
		dims[i][1][0] = 7;
		dims[i][1][1] = 5;
	}
	assert_int_equal(ist__cover_check(&ctx, boxes, 90000, grid, 2, &flaw), IST__COVERED);
	assert_true(ist__now() - began < 20 * INT64_C(1000000000));
	free(boxes);
	free(dims);
}

/* ---- runs ---- */

struct shape {
	uint64_t shape[5], begin[5], whole[5];
	struct ist__item item;
	uint64_t whole_bytes;
};

static void
make_shape(struct shape *s)
{
	static const char *const dtypes[] = { "U8", "BF16", "F32", "C64" };
	const char *dtype = dtypes[rnd(4)];
	uint32_t rank = 1 + (uint32_t)rnd(5);

	memset(s, 0, sizeof(*s));
	do {
		for (uint32_t d = 0; d < rank; d++) {
			s->whole[d] = 1 + rnd(6);
			s->begin[d] = rnd(2) ? 0 : rnd(s->whole[d]);
			s->shape[d] = rnd(2) ? s->whole[d] - s->begin[d] : 1 + rnd(s->whole[d] - s->begin[d]);
		}
	} while (ist__slice_is_all(s->shape, s->begin, s->whole, rank));
	s->item = (struct ist__item){ .name = "w", .kind = IST__ITEM_SLICE, .rank = rank, .shape = s->shape, .begin = s->begin,
		.whole = s->whole, .dtype = ist__dtype_find(dtype, strlen(dtype)), .file = IST__NO_FILE, .alias = IST__NO_ALIAS };
	assert_int_equal(ist__dtype_bytes(s->item.dtype, s->shape, rank, &s->item.bytes), IST_OK);
	assert_int_equal(ist__dtype_bytes(s->item.dtype, s->whole, rank, &s->whole_bytes), IST_OK);
}

/* Where each byte of the slice belongs, element by element. */
static void
map_shape(const struct shape *s, uint64_t *to)
{
	uint64_t elem = ist__dtype_bits(s->item.dtype) / 8;

	for (uint64_t b = 0; b < s->item.bytes; b++) {
		uint64_t i = b / elem, at = 0, stride = elem;

		for (uint32_t d = s->item.rank; d-- > 0;) {
			at += (s->begin[d] + i % s->shape[d]) * stride;
			stride *= s->whole[d];
			i /= s->shape[d];
		}
		to[b] = at + b % elem;
	}
}

static void
runs_against_a_map(void **state)
{
	static uint64_t to[8 * 7776];
	struct ist_error err;

	(void)state;
	seed = 77;
	for (int round = 0; round < 20000; round++) {
		struct ist__scatter sc;
		struct shape s;
		uint64_t at = 0, stretch, together = 1, runs = 0;
		bool cut_up = rnd(2);

		make_shape(&s);
		map_shape(&s, to);
		ist_error_init(&err);
		assert_int_equal(ist__slice_check(&s.item, "test", &err), IST_OK);
		ist__scatter_init(&sc, &s.item);
		for (uint64_t b = 1; b < s.item.bytes; b++)
			together += to[b] != to[b - 1] + 1;
		while (at < s.item.bytes) {
			stretch = cut_up ? 1 + rnd(s.item.bytes - at) : s.item.bytes - at;
			while (stretch > 0) {
				struct ist__runs r;
				uint64_t n = ist__scatter_next(&sc, at, stretch, &r);

				assert_true(n > 0 && n <= stretch && n == r.bytes * r.count);
				for (uint64_t b = 0; b < n; b++)
					assert_int_equal(r.offset + b / r.bytes * r.stride + b % r.bytes, to[at + b]);
				runs += r.count;
				at += n;
				stretch -= n;
			}
		}
		if (!cut_up)
			assert_int_equal(runs, together); /* as long as can be */
	}
}

/* Elements narrower than a byte lie as pairs do in a tensor of bytes. */
static void
narrow_types(void **state)
{
	static const struct {
		uint64_t shape[2], begin[2], whole[2];
		const char *dtype;
		ist_err want;
	} cases[] = {
		{ { 8, 4 }, { 0, 4 }, { 8, 12 }, "F4", IST_OK },
		{ { 8, 4 }, { 0, 3 }, { 8, 12 }, "F4", IST_BAD_ENTRY },
		{ { 8, 3 }, { 0, 0 }, { 8, 12 }, "F4", IST_BAD_ENTRY },
		{ { 8, 2 }, { 0, 0 }, { 8, 3 }, "F4", IST_BAD_ENTRY },   /* rows of the whole share bytes */
		{ { 4, 3 }, { 2, 0 }, { 8, 3 }, "F4", IST_OK },          /* but all of some rows are whole bytes */
		{ { 4, 3 }, { 1, 0 }, { 8, 3 }, "F4", IST_BAD_ENTRY },
		{ { 2, 4 }, { 0, 4 }, { 2, 8 }, "F6_E2M3", IST_OK },
		{ { 2, 2 }, { 0, 4 }, { 2, 8 }, "F6_E2M3", IST_BAD_ENTRY },
		{ { 0, 3 }, { 1, 0 }, { 8, 3 }, "F4", IST_OK },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ist__item t = { .name = "w", .kind = IST__ITEM_SLICE, .rank = 2, .shape = cases[i].shape, .begin = cases[i].begin,
			.whole = cases[i].whole, .dtype = ist__dtype_find(cases[i].dtype, strlen(cases[i].dtype)) };
		struct ist_error err;
		struct ist__scatter s;

		ist_error_init(&err);
		assert_int_equal(ist__dtype_bytes(t.dtype, t.shape, 2, &t.bytes), IST_OK);
		assert_int_equal(ist__slice_check(&t, "test", &err), cases[i].want);
		assert_int_equal(err.code, cases[i].want);
		if (i > 0)
			continue;
		ist__scatter_init(&s, &t);
		assert_true(s.base == 2 && s.run == 2 && s.levels == 1 && s.level[0].count == 8 && s.level[0].stride == 6);
	}
}

/* A file gets runs of every length and distance right, and nothing beside them. */
static void
runs_in_a_file(void **state)
{
	struct help *h = *state;
	static const uint64_t cases[][3] = { { 1, 2, 1000 }, { 1, 1024, 3000 }, { 3, 1025, 700 }, { 1024, 1024, 600 }, { 500, 777, 1500 },
		{ 70000, 90000, 3 }, { 4, 4, 999 }, { 8, 17, 999 }, { 16, 40, 999 }, { 32, 100, 999 }, { 2, 16, 100000 }, { 5, 9, 1 } };
	static uint8_t want[4 << 20], have[4 << 20], from[4 << 20];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ist__runs r = { .offset = 3, .bytes = cases[i][0], .stride = cases[i][1], .count = cases[i][2] };
		uint64_t offsets[1] = { 40 }, end = 40 + 3 + (r.count - 1) * r.stride + r.bytes + 50;
		char path[300];
		struct ist__ctx ctx;
		struct ist__one_file f = { .offsets = offsets };

		ist__ctx_init(&ctx);
		f.ctx = &ctx;
		f.window = malloc(256 << 10);
		snprintf(path, sizeof(path), "%s/runs-%zu", h->dir, i);
		f.fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
		assert_true(f.fd >= 0 && end <= sizeof(want));
		for (uint64_t b = 0; b < end; b++)
			want[b] = have[b] = (uint8_t)(b * 7 + b / 300);
		for (uint64_t b = 0; b < r.bytes * r.count; b++)
			from[b] = (uint8_t)~(b * 5 + b / 200);
		assert_int_equal(pwrite(f.fd, want, end, 0), end);
		for (uint64_t k = 0; k < r.count; k++)
			memcpy(want + 43 + k * r.stride, from + k * r.bytes, r.bytes);
		assert_int_equal(ist__one_file_runs(&f, 0, &r, from, path, NULL), IST_OK);
		assert_int_equal(pread(f.fd, have, end, 0), end);
		assert_memory_equal(have, want, end);
		close(f.fd);
		free(f.window);
	}
}

/* ---- registering ---- */

static struct ist_tensor
part_of(const char *name, uint64_t rows, uint64_t columns, const void *addr)
{
	return (struct ist_tensor){ .struct_size = sizeof(struct ist_tensor), .rank = 2, .name = name, .dtype = "U8", .shape = { rows, columns },
		.bytes = rows * columns, .addr = addr };
}

static struct ist_slice
at(uint64_t row, uint64_t column, uint64_t rows, uint64_t columns)
{
	return (struct ist_slice){ .struct_size = sizeof(struct ist_slice), .whole = { rows, columns }, .begin = { row, column } };
}

static void
what_may_be_registered(void **state)
{
	struct help *h = *state;
	static const uint8_t bytes[64];
	struct ist_checkpoint *ck;
	struct ist_error err;
	struct ist_tensor t[2];
	struct ist_slice s[2];

#define TRY(want, change)                                                                             \
	do {                                                                                          \
		t[0] = part_of("w", 2, 4, bytes);                                                     \
		t[1] = part_of("w", 2, 4, bytes);                                                     \
		s[0] = at(0, 0, 4, 4);                                                                \
		s[1] = at(2, 0, 4, 4);                                                                \
		change;                                                                               \
		ist_error_init(&err);                                                                 \
		assert_int_equal(ist_checkpoint_from_slices(h->env, t, s, 2, &ck, &err), want);       \
		assert_int_equal(err.code, want);                                                     \
		if (want)                                                                             \
			assert_true(err.detail[0]);                                                   \
		else                                                                                  \
			ist_checkpoint_free(ck);                                                      \
	} while (0)
	TRY(IST_OK, (void)0);
	TRY(IST_OK, s[1] = at(0, 0, 4, 4)); /* the others must know too: gather tells */
	TRY(IST_OK, t[1].name = "v");
	TRY(IST_OK, (t[1] = part_of("v", 4, 4, bytes), s[1] = at(0, 0, 4, 4)));
	TRY(IST_OK, (t[1] = part_of("w", 0, 4, NULL), s[1] = at(2, 0, 4, 4)));
	TRY(IST_DUPLICATE_KEY, (t[1] = part_of("w", 4, 4, bytes), s[1] = at(0, 0, 4, 4)));
	TRY(IST_DUPLICATE_KEY, (t[0] = part_of("w", 4, 4, bytes), s[0] = at(0, 0, 4, 4)));
	TRY(IST_BAD_ENTRY, s[1] = at(2, 0, 5, 4));
	TRY(IST_BAD_ENTRY, t[1].dtype = "I8");
	TRY(IST_BAD_ENTRY, t[1].bytes = 7);
	TRY(IST_BAD_OFFSETS, s[1] = at(3, 0, 4, 4));
	TRY(IST_BAD_OFFSETS, s[1] = at(UINT64_MAX, 0, 4, 4));
	TRY(IST_BAD_OFFSETS, s[1] = at(2, 1, 4, 4));
	TRY(IST_OVERFLOW, (s[0] = at(0, 0, UINT64_MAX, 4), s[1] = s[0]));
	TRY(IST_INVALID_ARGUMENT, s[0].struct_size = 8);
	TRY(IST_INVALID_ARGUMENT, t[1].addr = NULL);
	TRY(IST_LIMIT, t[1].rank = 17);
#undef TRY
	assert_int_equal(ist_checkpoint_from_slices(h->env, t, NULL, 2, &ck, &err), IST_INVALID_ARGUMENT);
	assert_int_equal(ist_checkpoint_from_slices(h->env, NULL, NULL, 0, &ck, &err), IST_OK);
	ist_checkpoint_free(ck);
}

/* Each allocation fails once: an error, and nothing is kept. */
static void
no_memory(void **state)
{
	struct help *h = *state;
	static const uint8_t bytes[64];
	struct ist_tensor t[2] = { part_of("w", 2, 4, bytes), part_of("w", 2, 4, bytes) };
	struct ist_slice s[2] = { at(0, 0, 4, 4), at(2, 0, 4, 4) };
	long before = h->live, tries = 0;
	ist_err e = IST_NO_MEMORY;

	while (e) {
		struct ist_checkpoint *ck;
		struct ist_error err;

		ist_error_init(&err);
		h->fail_at = h->allocations + ++tries;
		e = ist_checkpoint_from_slices(h->env, t, s, 2, &ck, &err);
		h->fail_at = 0;
		assert_true(e == IST_OK || e == IST_NO_MEMORY);
		if (e)
			assert_int_equal(h->live, before);
		else
			ist_checkpoint_free(ck); /* the env keeps the handle, to know it again */
	}
	assert_true(tries > 5);
}

static void
what_is_told_of_it(void **state)
{
	struct help *h = *state;
	uint8_t bytes[24], out[8];
	char digest[IST_DIGEST_TEXT], other[IST_DIGEST_TEXT], whole[IST_DIGEST_TEXT];
	struct ist_tensor t[3], got = { .struct_size = sizeof(got) };
	struct ist_slice s[3], where = { .struct_size = sizeof(where) };
	struct ist_checkpoint *ck;
	struct ist_error err;
	uint64_t index;

	ist_error_init(&err);
	for (uint32_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)i;
	/* the tied ones have one address: no aliases */
	t[0] = part_of("w", 2, 4, bytes);
	t[1] = part_of("tied", 4, 4, bytes);
	t[2] = part_of("w", 2, 4, bytes);
	s[0] = at(2, 0, 4, 4);
	s[1] = at(0, 0, 4, 4);
	s[2] = at(0, 0, 4, 4);
	assert_int_equal(ist_checkpoint_from_slices(h->env, t, s, 3, &ck, &err), IST_OK);
	assert_int_equal(ist_checkpoint_count(ck), 3);
	assert_int_equal(ist_checkpoint_bytes(ck), 32);
	assert_int_equal(ist_checkpoint_find(ck, "w", &index, &err), IST_OK);
	assert_int_equal(index, 0);
	assert_int_equal(ist_checkpoint_tensor(ck, 2, &got, &err), IST_OK);
	assert_true(got.shape[0] == 2 && got.bytes == 8 && got.addr == bytes && !got.alias_of[0] && !strcmp(got.name, "w"));
	assert_int_equal(ist_checkpoint_slice(ck, 0, &where, &err), IST_OK);
	assert_true(where.whole[0] == 4 && where.whole[1] == 4 && where.begin[0] == 2 && where.begin[1] == 0);
	assert_int_equal(ist_checkpoint_slice(ck, 1, &where, &err), IST_OK);
	assert_true(where.whole[0] == 4 && where.begin[0] == 0);
	assert_int_equal(ist_checkpoint_slice(ck, 3, &where, &err), IST_INVALID_ARGUMENT);
	assert_int_equal(ist_checkpoint_read(ck, 2, 0, 8, out, &err), IST_OK);
	assert_memory_equal(out, bytes, 8);
	assert_int_equal(ist_checkpoint_digest(ck, 2, digest, &err), IST_OK);
	assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, whole, &err), IST_OK);
	ist_checkpoint_free(ck);
	/* the order of registering does not count, where they begin does */
	assert_int_equal(ist_checkpoint_from_slices(h->env, (struct ist_tensor[]){ t[2], t[0], t[1] },
		(struct ist_slice[]){ s[2], s[0], s[1] }, 3, &ck, &err), IST_OK);
	assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, other, &err), IST_OK);
	assert_string_equal(other, whole);
	ist_checkpoint_free(ck);
	s[0] = at(0, 0, 4, 4);
	s[2] = at(1, 0, 4, 4);
	assert_int_equal(ist_checkpoint_from_slices(h->env, t, s, 3, &ck, &err), IST_OK);
	assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, other, &err), IST_OK);
	assert_string_not_equal(other, whole);
	ist_checkpoint_free(ck);
}

/* docs/digest.md, word by word. */
static void
the_digest_of_slices(void **state)
{
	struct help *h = *state;
	uint8_t bytes[16], parts[2 * (16 + 16 + 16)], record[4 + 1 + 2 + 4 + 16 + 16], *to = parts;
	struct ist_tensor t[3] = { part_of("w", 4, 2, bytes + 8), part_of("w", 0, 4, NULL), part_of("w", 4, 2, bytes) };
	struct ist_slice s[3] = { at(0, 2, 4, 4), at(1, 0, 4, 4), at(0, 0, 4, 4) };
	char want[IST_DIGEST_TEXT], have[IST_DIGEST_TEXT];
	struct ist__digest d;
	struct ist_checkpoint *ck;
	struct ist_error err;

	ist_error_init(&err);
	for (uint32_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 3);
	assert_int_equal(ist_checkpoint_from_slices(h->env, t, s, 3, &ck, &err), IST_OK);
	assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, have, &err), IST_OK);
	ist_checkpoint_free(ck);
	for (uint32_t i = 0; i < 2; i++) {
		const uint64_t dims[4] = { 0, 2 * i, 4, 2 };

		for (uint32_t k = 0; k < 4; k++, to += 8)
			ist__store_u64(to, dims[k]);
		ist__digest_memory(bytes + 8 * i, 8, &d);
		memcpy(to, d.b, 16);
		to += 16;
	}
	ist__digest_flat(parts, sizeof(parts), &d);
	to = record;
	ist__store_u32(to, 1);
	memcpy(to + 4, "wU8", 3);
	ist__store_u32(to + 7, 2);
	ist__store_u64(to + 11, 4);
	ist__store_u64(to + 19, 4);
	memcpy(to + 27, d.b, 16);
	ist__digest_flat(record, sizeof(record), &d);
	ist__digest_text(&d, want);
	assert_string_equal(have, want);
}

/* ---- the wire ---- */

static uint64_t
encoded(const struct ist__manifest *m, struct ist__writer *w)
{
	ist__writer_init(w, m->ctx);
	ist__manifest_encode(m, w);
	assert_false(w->bad);
	return w->bytes;
}

/* There and back; every prefix is refused, every flipped bit gives an error or a sealed manifest that means what it says. */
static void
slices_on_the_wire(void **state)
{
	static const uint64_t shape[3] = { 2, 3, 4 }, begin[2][3] = { { 0, 3, 0 }, { 2, 0, 4 } }, whole[3] = { 4, 6, 8 };
	struct ist__item t = { .name = "w", .kind = IST__ITEM_SLICE, .rank = 3, .shape = shape, .whole = whole, .bytes = 48,
		.dtype = ist__dtype_find("BF16", 4), .file = IST__NO_FILE, .alias = IST__NO_ALIAS };
	struct ist__manifest *m, *back;
	struct ist__writer w, again;
	struct ist__reader r;
	struct ist__ctx ctx;
	struct ist_error err;

	(void)state;
	ist__ctx_init(&ctx);
	ist_error_init(&err);
	m = ist__manifest_new(&ctx);
	for (int i = 0; i < 2; i++) {
		t.begin = begin[i];
		assert_true(ist__manifest_add_item(m, &t, NULL));
	}
	assert_int_equal(ist__manifest_seal(m, "test", &err), IST_OK);
	assert_true(m->n_tensors == 2 && m->payload == 96 && m->raw == 0);
	/* front, counts; item, its name, two bytes, three times three dimensions */
	assert_int_equal(encoded(m, &w), 4 + 8 + 8 + 2 * (21 + 5 + 2 + 72));
	ist__reader_init(&r, w.at, w.bytes);
	assert_int_equal(ist__manifest_decode(&ctx, &r, &back, &err), IST_OK);
	assert_true(r.left == 0 && back->items[1].begin[2] == 4 && back->items[0].whole[1] == 6 && back->items[1].kind == IST__ITEM_SLICE);
	assert_int_equal(encoded(back, &again), w.bytes);
	assert_memory_equal(again.at, w.at, w.bytes);
	ist__writer_fini(&again);
	ist__manifest_free(back);
	for (uint64_t n = 0; n < w.bytes; n++) {
		uint8_t *exact = malloc(n + 1);

		memcpy(exact, w.at, n);
		ist__reader_init(&r, exact, n);
		assert_int_not_equal(ist__manifest_decode(&ctx, &r, &back, &err), IST_OK);
		free(exact);
	}
	for (uint64_t bit = 0; bit < 8 * w.bytes; bit++) {
		w.at[bit / 8] ^= (uint8_t)(1u << bit % 8);
		ist__reader_init(&r, w.at, w.bytes);
		if (!ist__manifest_decode(&ctx, &r, &back, &err)) {
			assert_int_equal(encoded(back, &again), w.bytes - r.left);
			assert_memory_equal(again.at, w.at, again.bytes);
			ist__writer_fini(&again);
			ist__manifest_free(back);
		}
		w.at[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	ist__writer_fini(&w);
	ist__manifest_free(m);
}

static void
lies_about_slices(void **state)
{
	static const uint64_t shape[2] = { 2, 4 }, begin[2] = { 2, 0 }, whole[2] = { 4, 4 }, beyond[2] = { 3, 0 }, zero[2], none[2] = { 0, 4 },
		huge[2] = { UINT64_C(1) << 62, 4 };
	struct ist__ctx ctx;

	(void)state;
	ist__ctx_init(&ctx);
#define LIE(want, change)                                                                                                  \
	do {                                                                                                               \
		struct ist__item t = { .name = "w", .kind = IST__ITEM_SLICE, .rank = 2, .shape = shape, .begin = begin,    \
			.whole = whole, .bytes = 8, .dtype = ist__dtype_find("U8", 2), .file = IST__NO_FILE,               \
			.alias = IST__NO_ALIAS };                                                                          \
		struct ist__manifest *m = ist__manifest_new(&ctx);                                                         \
		struct ist_error err;                                                                                      \
		ist_error_init(&err);                                                                                      \
		change;                                                                                                    \
		assert_true(ist__manifest_add_item(m, &t, NULL));                                                          \
		assert_int_equal(ist__manifest_seal(m, "test", &err), want);                                               \
		assert_int_equal(err.code, want);                                                                          \
		ist__manifest_free(m);                                                                                     \
	} while (0)
	LIE(IST_OK, (void)0);
	LIE(IST_OK, (t.shape = none, t.bytes = 0));
	LIE(IST_BAD_ENTRY, (t.shape = whole, t.begin = zero, t.bytes = 16)); /* all of it */
	LIE(IST_BAD_ENTRY, t.rank = 0);
	LIE(IST_BAD_ENTRY, t.bytes = 9);
	LIE(IST_BAD_OFFSETS, t.begin = beyond);
	LIE(IST_BAD_OFFSETS, t.whole = shape);
	LIE(IST_OVERFLOW, t.whole = huge);
	LIE(IST_UNKNOWN_DTYPE, t.dtype = 99);
	LIE(IST_BAD_FORMAT, t.file = 0);
	LIE(IST_BAD_FORMAT, t.alias = 0);
	LIE(IST_BAD_OFFSETS, t.offset = 1);
	LIE(IST_BAD_FORMAT, t.part_of = 1);
	LIE(IST_BAD_NAME, t.name = "\xFF");
	LIE(IST_BAD_FORMAT, t.kind = 6);
#undef LIE
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(boxes_against_a_map),
		cmocka_unit_test(the_missing_box),
		cmocka_unit_test(many_boxes),
		cmocka_unit_test(runs_against_a_map),
		cmocka_unit_test(narrow_types),
		cmocka_unit_test_setup_teardown(runs_in_a_file, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(what_may_be_registered, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(no_memory, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(what_is_told_of_it, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(the_digest_of_slices, help_setup, help_teardown),
		cmocka_unit_test(slices_on_the_wire),
		cmocka_unit_test(lies_about_slices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
