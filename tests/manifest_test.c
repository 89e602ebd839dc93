/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest_test.c - the wire form: there and back, every cut and every lie refused, large ones quickly.
 */
#include "ckpt_help.h"

#include "ckpt/manifest.h"

#include <time.h>

static struct ist__item
tensor(const char *name, uint32_t file, uint64_t offset, const uint64_t *dim)
{
	return (struct ist__item){
		.name = name, .file = file, .offset = offset, .bytes = *dim, .dtype = ist__dtype_find("U8", 2), .rank = 1, .shape = dim,
		.alias = IST__NO_ALIAS
	};
}

static struct ist__item
raw(uint32_t kind, uint32_t file, uint64_t offset, uint64_t bytes)
{
	return (struct ist__item){ .name = "", .kind = kind, .file = file, .offset = offset, .bytes = bytes, .alias = IST__NO_ALIAS };
}

static const uint64_t four = 4, eight = 8;

/* Two files and one piece of memory with an alias; what is wrong is up to the caller. */
struct parts {
	struct ist__file files[2];
	struct ist__item items[7];
	uint64_t n_files, n_items;
};

static struct parts
sound(void)
{
	return (struct parts){
		.files = { { "a.safetensors", 34, 20 }, { "config.json", 2, 0 } },
		.items = { raw(IST__ITEM_HEADER, 0, 0, 20), tensor("w", 0, 20, &four), raw(IST__ITEM_FILLER, 0, 24, 2), tensor("v", 0, 26, &eight),
			raw(IST__ITEM_OTHER, 1, 0, 2), tensor("m", IST__NO_FILE, 0, &four), tensor("n", IST__NO_FILE, 0, &four) },
		.n_files = 2,
		.n_items = 7,
	};
}

static ist_err
build(struct parts *p, struct ist__manifest **out, struct ist_error *err)
{
	struct ist__ctx *ctx = malloc(sizeof(*ctx));
	struct ist__manifest *m;
	ist_err e;

	ist__ctx_init(ctx);
	m = ist__manifest_new(ctx);
	assert_non_null(m);
	for (uint64_t i = 0; i < p->n_files; i++)
		assert_true(ist__manifest_add_file(m, &p->files[i], NULL));
	for (uint64_t i = 0; i < p->n_items; i++)
		assert_true(ist__manifest_add_item(m, &p->items[i], NULL));
	ist_error_init(err);
	e = ist__manifest_seal(m, "test", err);
	assert_int_equal(err->code, e);
	*out = m;
	return e;
}

static void
done(struct ist__manifest *m)
{
	const void *ctx = m->ctx;

	ist__manifest_free(m);
	free((void *)(uintptr_t)ctx);
}

static void
there_and_back(void **state)
{
	struct parts p = sound();
	struct ist__manifest *m, *back;
	struct ist__writer w, again;
	struct ist__reader r;
	struct ist__digest one, two;
	struct ist_error err;
	struct ist_tensor t;

	(void)state;
	p.items[6].alias = 5;
	assert_int_equal(build(&p, &m, &err), IST_OK);
	assert_int_equal(m->n_tensors, 4);
	assert_int_equal(m->payload, 16);
	assert_int_equal(m->raw, 24);
	assert_int_equal(ist__manifest_find(m, "v"), 1);
	assert_true(ist__manifest_find(m, "x") == UINT64_MAX);
	assert_false(ist__manifest_has_files(m));
	ist__writer_init(&w, m->ctx);
	ist__manifest_encode(m, &w);
	assert_false(w.bad);
	ist__reader_init(&r, w.at, w.bytes);
	assert_int_equal(ist__manifest_decode(m->ctx, &r, &back, &err), IST_OK);
	assert_int_equal(r.left, 0);
	ist__writer_init(&again, m->ctx);
	ist__manifest_encode(back, &again);
	assert_int_equal(again.bytes, w.bytes);
	assert_memory_equal(again.at, w.at, w.bytes);
	assert_int_equal(ist__manifest_digest(m, &one, NULL), IST_OK);
	assert_int_equal(ist__manifest_digest(back, &two, NULL), IST_OK);
	assert_true(ist__digest_equal(&one, &two));
	ist__manifest_public(back, back->tensors[3], &t);
	assert_string_equal(t.name, "n");
	assert_string_equal(t.alias_of, "m");
	assert_string_equal(t.dtype, "U8");
	ist__manifest_public(back, back->tensors[0], &t);
	assert_string_equal(t.file, "a.safetensors");
	ist__manifest_free(back);
	ist__writer_fini(&again);

	/* every prefix is refused, and every single flipped bit gives a sealed manifest or an error */
	for (uint64_t n = 0; n < w.bytes; n++) {
		uint8_t *exact = malloc(n + 1);

		memcpy(exact, w.at, n);
		ist__reader_init(&r, exact, n);
		assert_int_not_equal(ist__manifest_decode(m->ctx, &r, &back, &err), IST_OK);
		free(exact);
	}
	for (uint64_t bit = 0; bit < 8 * w.bytes; bit++) {
		w.at[bit / 8] ^= (uint8_t)(1u << bit % 8);
		ist__reader_init(&r, w.at, w.bytes);
		if (!ist__manifest_decode(m->ctx, &r, &back, &err)) {
			assert_true(back->n_items <= 7);
			ist__manifest_free(back);
		}
		w.at[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	ist__writer_fini(&w);
	done(m);
}

static void
rules(void **state)
{
	static const uint64_t zero = 0, huge[2] = { UINT64_C(1) << 40, UINT64_C(1) << 40 }, many[17] = { 0 };
	struct parts p;
	struct ist__manifest *m;
	struct ist_error err;

	(void)state;
#define CHECK(code, change)                                       \
	do {                                                      \
		p = sound();                                      \
		change;                                           \
		assert_int_equal(build(&p, &m, &err), code);      \
		done(m);                                          \
	} while (0)
	CHECK(IST_OK, (void)0);
	CHECK(IST_OK, p.items[6].alias = 5);
	CHECK(IST_BAD_FORMAT, p.items[5].alias = 6);
	CHECK(IST_BAD_FORMAT, p.items[6].alias = 6);
	CHECK(IST_BAD_FORMAT, p.items[6].alias = 1);
	CHECK(IST_BAD_FORMAT, p.items[3].alias = 1);
	CHECK(IST_BAD_FORMAT, p.items[4].alias = 1);
	CHECK(IST_DUPLICATE_KEY, p.items[3].name = "w");
	CHECK(IST_BAD_NAME, p.items[1].name = "a\x01");
	CHECK(IST_BAD_NAME, p.items[1].name = "\xFF");
	CHECK(IST_UNKNOWN_DTYPE, p.items[1].dtype = 99);
	CHECK(IST_UNKNOWN_DTYPE, p.items[1].dtype = 0);
	CHECK(IST_BAD_ENTRY, p.items[1].bytes = 5);
	CHECK(IST_BAD_ENTRY, p.items[1].shape = &zero);
	CHECK(IST_OVERFLOW, (p.items[1].shape = huge, p.items[1].rank = 2));
	CHECK(IST_LIMIT, (p.items[1].shape = many, p.items[1].rank = 17));
	CHECK(IST_BAD_OFFSETS, p.items[1].offset = 21);
	CHECK(IST_BAD_OFFSETS, p.items[1].offset = 19);
	CHECK(IST_BAD_OFFSETS, p.items[3].offset = UINT64_MAX - 3);
	CHECK(IST_BAD_OFFSETS, p.items[5].offset = 1);
	CHECK(IST_BAD_OFFSETS, p.files[0].bytes = 35);
	CHECK(IST_BAD_OFFSETS, p.files[0].bytes = 33);
	CHECK(IST_BAD_OFFSETS, p.files[0].header_bytes = 19);
	CHECK(IST_BAD_OFFSETS, p.files[0].header_bytes = 40);
	CHECK(IST_BAD_OFFSETS, p.files[1].header_bytes = 2);
	CHECK(IST_BAD_OFFSETS, p.items[1].file = 1);
	CHECK(IST_BAD_OFFSETS, p.items[1].file = 7);
	CHECK(IST_BAD_OFFSETS, p.items[1].file = IST__NO_FILE);
	CHECK(IST_BAD_FORMAT, p.items[2].file = IST__NO_FILE);
	CHECK(IST_BAD_FORMAT, p.items[2].kind = 9);
	CHECK(IST_BAD_OFFSETS, p.items[2].kind = IST__ITEM_OTHER);
	CHECK(IST_BAD_OFFSETS, p.items[4].kind = IST__ITEM_FILLER);
	CHECK(IST_BAD_NAME, p.files[0].name = "../x");
	CHECK(IST_BAD_NAME, p.files[0].name = "..");
	CHECK(IST_BAD_NAME, p.files[0].name = "");
	CHECK(IST_BAD_NAME, p.files[0].name = "a/b");
	CHECK(IST_BAD_NAME, p.files[0].name = "a\n");
	CHECK(IST_BAD_FORMAT, p.files[0].name = "z");
	CHECK(IST_DUPLICATE_KEY, p.files[0].name = "config.json");
	CHECK(IST_BAD_OFFSETS, p.n_items = 4);
	CHECK(IST_BAD_OFFSETS, p.n_items = 1);
	CHECK(IST_BAD_OFFSETS, p.files[1].bytes = UINT64_C(1) << 63);
}

/* What members of other versions read, byte by byte. */
static void
the_form_is_fixed(void **state)
{
	static const uint8_t want[] = { 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, /* format, files, items */
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0,                   /* kind, no file, offset, bytes */
		1, 0, 0, 0, 'm', 5, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };          /* name, U8, shape, no alias */
	struct parts p = { .items = { tensor("m", IST__NO_FILE, 0, &four) }, .n_items = 1 };
	struct ist__manifest *m;
	struct ist__writer w;
	struct ist_error err;

	(void)state;
	assert_int_equal(build(&p, &m, &err), IST_OK);
	ist__writer_init(&w, m->ctx);
	ist__manifest_encode(m, &w);
	assert_int_equal(w.bytes, sizeof(want));
	assert_memory_equal(w.at, want, sizeof(want));
	ist__writer_fini(&w);
	done(m);
}

static void
counts_are_not_believed(void **state)
{
	struct ist__ctx ctx;
	struct ist__manifest *m;
	struct ist__writer w;
	struct ist__reader r;

	(void)state;
	ist__ctx_init(&ctx);
	for (int which = 0; which < 3; which++) {
		ist__writer_init(&w, &ctx);
		ist__put_u32(&w, which == 2 ? 2 : 1);
		ist__put_u64(&w, which == 0 ? UINT64_MAX / 2 : 0);
		ist__put_u64(&w, which == 1 ? UINT64_MAX / 2 : 0);
		ist__put_u64(&w, 0);
		ist__reader_init(&r, w.at, w.bytes);
		assert_int_equal(ist__manifest_decode(&ctx, &r, &m, NULL), which == 2 ? IST_VERSION_MISMATCH : IST_BAD_FORMAT);
		ist__writer_fini(&w);
	}
}

/* 200,000 tensors: built, encoded, decoded, compared, found. The bound is a guard against squares, not a measurement. */
static void
large_ones(void **state)
{
	enum { N = 200000 };
	struct ist__ctx ctx;
	struct ist__manifest *m, *back;
	struct ist__writer w;
	struct ist__reader r;
	struct ist__digest one, two;
	struct timespec a, b;
	char name[64];

	(void)state;
	ist__ctx_init(&ctx);
	m = ist__manifest_new(&ctx);
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (uint64_t i = 0; i < N; i++) {
		struct ist__item t;

		snprintf(name, sizeof(name), "model.layers.%llu.mlp.experts.weight", (unsigned long long)i);
		t = tensor(name, IST__NO_FILE, 0, &four);
		assert_true(ist__manifest_add_item(m, &t, NULL));
	}
	assert_int_equal(ist__manifest_seal(m, "test", NULL), IST_OK);
	ist__writer_init(&w, &ctx);
	ist__manifest_encode(m, &w);
	ist__reader_init(&r, w.at, w.bytes);
	assert_int_equal(ist__manifest_decode(&ctx, &r, &back, NULL), IST_OK);
	assert_int_equal(ist__manifest_digest(m, &one, NULL), IST_OK);
	assert_int_equal(ist__manifest_digest(back, &two, NULL), IST_OK);
	assert_true(ist__digest_equal(&one, &two));
	for (uint64_t i = 0; i < N; i++)
		assert_true(ist__manifest_find(back, m->items[m->tensors[i]].name) == i);
	clock_gettime(CLOCK_MONOTONIC, &b);
	print_message("%d tensors, there and back: %.0f ms\n", N, (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6);
	assert_true(b.tv_sec - a.tv_sec < 20);
	ist__writer_fini(&w);
	ist__manifest_free(back);
	ist__manifest_free(m);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(there_and_back),
		cmocka_unit_test(rules),
		cmocka_unit_test(the_form_is_fixed),
		cmocka_unit_test(counts_are_not_believed),
		cmocka_unit_test(large_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
