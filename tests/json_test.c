/* SPDX-License-Identifier: Apache-2.0
 *
 * json_test.c - the JSON reader: what it takes, what it refuses and at which byte, duplicates, memory.
 */
#include "ckpt_help.h"

#include "base/json.h"

/* Gives one byte at a time, so that every token lies across two windows. */
static bool
drip(void *ctx, void *to, uint64_t room, uint64_t *bytes)
{
	return ist__json_from_memory(ctx, to, room > 1 ? 1 : room, bytes);
}

static enum ist__json_fault
run_with(ist__json_source source, const char *text, uint64_t n, uint64_t *at)
{
	struct ist__json_memory m = { (const uint8_t *)text, n };
	enum ist__json_event event;
	enum ist__json_fault fault;
	struct ist__ctx ctx;
	struct ist__json j;

	ist__ctx_init(&ctx);
	ist__json_init(&j, &ctx, source, &m, 64);
	do
		event = ist__json_next(&j);
	while (event != IST__JSON_BAD && event != IST__JSON_END);
	fault = j.fault;
	*at = j.fault_at;
	if (event == IST__JSON_BAD)
		assert_int_equal(ist__json_next(&j), IST__JSON_BAD);
	ist__json_fini(&j);
	return fault;
}

static enum ist__json_fault
run_n(const char *text, uint64_t n, uint64_t *at)
{
	uint64_t at2 = 0;
	enum ist__json_fault fault = run_with(ist__json_from_memory, text, n, at);

	assert_int_equal(run_with(drip, text, n, &at2), fault);
	assert_int_equal(*at, at2);
	return fault;
}

static void
takes_what_is_json(void **state)
{
	static const char *const good[] = { "{}", "[]", " {} ", "\n\t\r {}\n\t\r ", "null", "true", "false", "0", "-0", "-1.5e+3", "1E9",
		"\"\"", "\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\"", "\"\\ud83d\\ude00\"", "\"\xF0\x9F\x98\x80\"", "[1,2,[3,{\"a\":[]}]]",
		"{\"a\":1,\"b\":{\"a\":2}}", "[{\"a\":1},{\"a\":1}]", "123456789012345678901234567890", "\"\x7F\"" };
	uint64_t at;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_int_equal(run_n(good[i], strlen(good[i]), &at), IST__JSON_SOUND);
}

static void
refuses_and_names_the_byte(void **state)
{
	static const struct {
		const char *text;
		uint64_t at;
	} bad[] = { { "{a:1}", 1 }, { "{\"a\" 1}", 5 }, { "{\"a\":1,}", 7 }, { "[1,]", 3 }, { "{}{}", 2 }, { "{}x", 2 }, { "[1 2]", 3 },
		{ "01", 1 }, { "-x", 1 }, { "+1", 0 }, { ".5", 0 }, { "1.x", 2 }, { "1ex", 2 }, { "nul!", 3 }, { "True", 0 },
		{ "'a'", 0 }, { "\"\x01\"", 1 }, { "\"\\x41\"", 2 }, { "\"\\u12g4\"", 5 }, { "/* */{}", 0 }, { "\xEF\xBB\xBF{}", 0 },
		{ "\"\xC0\x80\"", 2 }, { "\"\xED\xA0\x80\"", 3 }, { "\"a\xFF\"", 3 }, { "\"\\ud800\"", 7 }, { "\"\\ud800\\u0041\"", 13 },
		{ "\"\\udc00\"", 7 }, { "{]", 1 }, { "[}", 1 }, { "NaN", 0 }, { "Infinity", 0 }, { "[1]]", 3 } };
	uint64_t at;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		enum ist__json_fault fault = run_n(bad[i].text, strlen(bad[i].text), &at);

		if (fault != IST__JSON_SYNTAX || at != bad[i].at)
			fail_msg("%s: fault %d at %lu", bad[i].text, (int)fault, (unsigned long)at);
	}
	assert_int_equal(run_n("{}\0\0\0", 5, &at), IST__JSON_SYNTAX);
	assert_int_equal(at, 2);
}

static void
every_prefix_is_cut_off(void **state)
{
	static const char whole[] = "{\"a\\u00e9\\ud83d\\ude00\":[1.5e-3,true,null,\"\xC3\xA9\"]}";
	uint64_t at;

	(void)state;
	for (uint64_t n = 0; n + 1 < sizeof(whole); n++) {
		assert_int_equal(run_n(whole, n, &at), IST__JSON_ENDED);
		assert_int_equal(at, n);
	}
	assert_int_equal(run_n(whole, sizeof(whole) - 1, &at), IST__JSON_SOUND);
}

static void
finds_duplicates_after_unescaping(void **state)
{
	static const char *const twice[] = { "{\"w\":1,\"w\":2}", "{\"w\":1,\"\\u0077\":2}", "{\"\":1,\"\":2}", "[{\"a\":{\"b\":1,\"b\":1}}]",
		"{\"\\u00e9\":1,\"\xC3\xA9\":2}", "{\"a\":{\"x\":1},\"b\":{},\"a\":0}" };
	uint64_t at;

	(void)state;
	for (size_t i = 0; i < sizeof(twice) / sizeof(twice[0]); i++)
		assert_int_equal(run_n(twice[i], strlen(twice[i]), &at), IST__JSON_DUPLICATE);
	/* NUL is part of a key */
	assert_int_equal(run_n("{\"w\":1,\"w\\u0000\":2}", 19, &at), IST__JSON_SOUND);
	/* combining characters are not merged */
	assert_int_equal(run_n("{\"\xC3\xA9\":1,\"e\xCC\x81\":2}", 16, &at), IST__JSON_SOUND);
}

static void
has_limits(void **state)
{
	char deep[2 * IST__JSON_DEPTH + 3], key[100] = "{\"";
	uint64_t at;

	(void)state;
	memset(deep, '[', IST__JSON_DEPTH);
	memset(deep + IST__JSON_DEPTH, ']', IST__JSON_DEPTH);
	assert_int_equal(run_n(deep, 2 * IST__JSON_DEPTH, &at), IST__JSON_SOUND);
	memset(deep, '[', IST__JSON_DEPTH + 1);
	assert_int_equal(run_n(deep, 2 * IST__JSON_DEPTH, &at), IST__JSON_LIMIT);
	memset(key + 2, 'k', 64);
	strcpy(key + 66, "\":1}");
	assert_int_equal(run_n(key, strlen(key), &at), IST__JSON_SOUND);
	memset(key + 2, 'k', 65);
	strcpy(key + 67, "\":1}");
	assert_int_equal(run_n(key, strlen(key), &at), IST__JSON_LIMIT);
	assert_int_equal(at, 1);
}

static void
gives_events_and_texts(void **state)
{
	static const char text[] = "{\"a\\n\":[12, \"x\\u0000y\"],\"b\":{\"c\":[1,{\"d\":2}]},\"e\":3}";
	struct ist__json_memory m = { (const uint8_t *)text, sizeof(text) - 1 };
	struct ist__ctx ctx;
	struct ist__json j;
	uint64_t v;

	(void)state;
	ist__ctx_init(&ctx);
	ist__json_init(&j, &ctx, ist__json_from_memory, &m, 64);
	assert_int_equal(ist__json_next(&j), IST__JSON_OBJECT);
	assert_int_equal(ist__json_next(&j), IST__JSON_KEY);
	assert_string_equal(j.text, "a\n");
	assert_int_equal(j.start, 1);
	assert_int_equal(ist__json_next(&j), IST__JSON_ARRAY);
	assert_int_equal(ist__json_next(&j), IST__JSON_NUMBER);
	assert_true(ist__json_u64(j.text, &v));
	assert_int_equal(v, 12);
	assert_int_equal(ist__json_next(&j), IST__JSON_STRING);
	assert_int_equal(j.text_bytes, 3);
	assert_memory_equal(j.text, "x\0y", 4);
	assert_int_equal(ist__json_next(&j), IST__JSON_ARRAY_END);
	assert_int_equal(ist__json_next(&j), IST__JSON_KEY);
	assert_true(ist__json_skip(&j, ist__json_next(&j)));
	assert_int_equal(ist__json_next(&j), IST__JSON_KEY);
	assert_string_equal(j.text, "e");
	assert_true(ist__json_skip(&j, ist__json_next(&j)));
	assert_int_equal(ist__json_next(&j), IST__JSON_OBJECT_END);
	assert_int_equal(ist__json_next(&j), IST__JSON_END);
	assert_int_equal(ist__json_next(&j), IST__JSON_END);
	ist__json_fini(&j);
}

static void
numbers_are_exact(void **state)
{
	uint64_t v = 7;

	(void)state;
	assert_true(ist__json_u64("18446744073709551615", &v));
	assert_true(v == UINT64_MAX);
	assert_false(ist__json_u64("18446744073709551616", &v));
	assert_false(ist__json_u64("-0", &v));
	assert_false(ist__json_u64("1e3", &v));
	assert_false(ist__json_u64("8.0", &v));
	assert_false(ist__json_u64("", &v));
	assert_true(v == UINT64_MAX);
}

/* Many keys, many objects: linear, and memory only for those that are open. */
static void
many_keys(void **state)
{
	enum { N = 200000 };
	char *text = malloc(N * 32), *p = text;
	struct ist__json_memory m;
	struct ist__ctx ctx;
	struct ist__json j;
	enum ist__json_event event;

	(void)state;
	p += sprintf(p, "{");
	for (int i = 0; i < N; i++)
		p += sprintf(p, "%s\"k%d\":{\"a\":1,\"b\":2}", i ? "," : "", i);
	p += sprintf(p, "}");
	m = (struct ist__json_memory){ (const uint8_t *)text, (uint64_t)(p - text) };
	ist__ctx_init(&ctx);
	ist__json_init(&j, &ctx, ist__json_from_memory, &m, 64);
	do
		event = ist__json_next(&j);
	while (event != IST__JSON_BAD && event != IST__JSON_END);
	assert_int_equal(event, IST__JSON_END);
	assert_int_equal(j.n_keys, 0);
	assert_true(j.table_room <= 4 * N);
	ist__json_fini(&j);
	free(text);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes_what_is_json),
		cmocka_unit_test(refuses_and_names_the_byte),
		cmocka_unit_test(every_prefix_is_cut_off),
		cmocka_unit_test(finds_duplicates_after_unescaping),
		cmocka_unit_test(has_limits),
		cmocka_unit_test(gives_events_and_texts),
		cmocka_unit_test(numbers_are_exact),
		cmocka_unit_test(many_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
