/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_test.c - the vectors of docs/digest.md, and that every way to a digest leads to the same one.
 */
#include "ckpt_help.h"

#include "base/digest.h"

static uint8_t *
pattern(uint64_t n)
{
	uint8_t *b = malloc(n + 1);

	for (uint64_t i = 0; i < n; i++)
		b[i] = (uint8_t)(i % 251);
	return b;
}

static void
is(const struct ist__digest *d, const char *text)
{
	char got[33];

	ist__digest_text(d, got);
	assert_string_equal(got, text);
}

static void
vectors(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} rows[] = {
		{ 0, "2c0a8a99dc147d5445c3b49d035665b2" },
		{ 1, "78dc71f1613a3d954c6772ce20003542" },
		{ 65536, "c6b376fb2f8a1d0b49fc7fdbb3f8ae1c" },
		{ 65537, "93e9486e4b7818e2e83741711834356a" },
	};
	struct ist__digest d;

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		uint8_t *b = pattern(rows[i].bytes);

		ist__digest_memory(b, rows[i].bytes, &d);
		is(&d, rows[i].text);
		free(b);
	}
}

/* 5 GiB of zeros: every leaf is the same one. */
static void
more_than_32_bits(void **state)
{
	uint64_t bytes = UINT64_C(5) << 30, n = ist__leaf_count(bytes);
	uint8_t *zeros = calloc(1, IST__LEAF_BYTES);
	struct ist__digest *leaves = malloc(n * sizeof(*leaves)), d;

	(void)state;
	ist__digest_leaves(zeros, IST__LEAF_BYTES, leaves);
	for (uint64_t i = 1; i < n; i++)
		leaves[i] = leaves[0];
	ist__digest_fold(leaves, bytes, &d);
	is(&d, "ed2fdcd79e254dec2dee5876caf8ba19");
	free(leaves);
	free(zeros);
}

static void
every_way_gives_the_same(void **state)
{
	static const uint64_t sizes[] = { 0, 1, 65535, 65536, 65537, 131072, 300001 };
	static const uint64_t steps[] = { 1, 7, 65535, 65536, 65537, 100000 };
	struct ist__digest leaves[8], whole, other;
	struct ist__digester g;

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t n = sizes[i];
		uint8_t *b = pattern(n);

		ist__digest_memory(b, n, &whole);
		/* leaves, the last one first, from an odd address */
		for (uint64_t l = ist__leaf_count(n); l-- > 0;) {
			uint64_t from = l * IST__LEAF_BYTES, left = n - from < IST__LEAF_BYTES ? n - from : IST__LEAF_BYTES;
			uint8_t *odd = malloc(left + 1);

			memcpy(odd + 1, b + from, left);
			ist__digest_leaves(odd + 1, left, &leaves[l]);
			free(odd);
		}
		ist__digest_fold(leaves, n, &other);
		assert_true(ist__digest_equal(&whole, &other));
		for (size_t s = 0; s < sizeof(steps) / sizeof(steps[0]); s++) {
			ist__digester_init(&g);
			for (uint64_t at = 0; at < n; at += steps[s])
				ist__digester_add(&g, b + at, n - at < steps[s] ? n - at : steps[s]);
			ist__digester_end(&g, &other);
			assert_true(ist__digest_equal(&whole, &other));
		}
		if (n > 0) {
			b[n / 2] ^= 1;
			ist__digest_memory(b, n, &other);
			assert_false(ist__digest_equal(&whole, &other));
		}
		free(b);
	}
}

static void
text_and_back(void **state)
{
	struct ist__digest d, back;
	char text[33];

	(void)state;
	ist__digest_memory("abc", 3, &d);
	ist__digest_text(&d, text);
	assert_true(ist__digest_parse(text, &back));
	assert_true(ist__digest_equal(&d, &back));
	assert_false(ist__digest_parse("0123", &back));
	text[3] = 'G';
	assert_false(ist__digest_parse(text, &back));
	text[3] = 'A';
	assert_false(ist__digest_parse(text, &back));
	assert_false(ist__digest_parse("00000000000000000000000000000000 ", &back));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vectors),
		cmocka_unit_test(more_than_32_bits),
		cmocka_unit_test(every_way_gives_the_same),
		cmocka_unit_test(text_and_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
