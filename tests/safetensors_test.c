/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors_test.c - one file: what is taken, what is refused, with exactly which code and which tensor's name.
 */
#include "ckpt_help.h"

#include "ckpt/checkpoint.h"

#define F32x2 "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

static void
expect(struct help *h, const char *header, size_t data, ist_err code, const char *tensor)
{
	const char *path = help_path(h, "x.safetensors");
	struct ist_error err;
	ist_err e;

	help_st(path, header, data, 1);
	e = help_open(h, path, NULL, &err);
	if (e != code)
		fail_msg("%s: %s, expected %s: %s", header, ist_err_name(e), ist_err_name(code), err.detail);
	if (tensor)
		assert_string_equal(err.tensor, tensor);
	if (e)
		assert_non_null(strstr(err.detail, "x.safetensors"));
}

/* ---- cut files ---- */

static void
cut_files_are_truncated(void **state)
{
	struct help *h = *state;
	const char *header = "{\"a\":" F32x2 "}", *path = help_path(h, "cut.safetensors");
	size_t n = strlen(header), cuts[] = { 0, 4, 8, 9, 8 + n - 1, 8 + n, 8 + n + 7 };
	struct ist_error err;

	for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
		char have[64], need[64];

		help_st(path, header, 8, 1);
		assert_int_equal(truncate(path, (off_t)cuts[i]), 0);
		assert_int_equal(help_open(h, path, NULL, &err), IST_TRUNCATED);
		snprintf(have, sizeof(have), "have %zu bytes", cuts[i]);
		snprintf(need, sizeof(need), "%zu", cuts[i] < 8 ? 8 : cuts[i] < 8 + n ? 8 + n : 8 + n + 8);
		assert_non_null(strstr(err.detail, have));
		assert_non_null(strstr(err.detail, need));
	}
	help_st(path, header, 8, 1);
	assert_int_equal(help_open(h, path, NULL, &err), IST_OK);
}

/* ---- ranges ---- */

static void
ranges_cover_the_data(void **state)
{
	struct help *h = *state;
#define U8(name, n, b, e) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" n "],\"data_offsets\":[" b "," e "]}"
	struct ist_checkpoint_args lax = { .struct_size = sizeof(lax), .allow_trailing = 1 };
	struct ist_error err;

	expect(h, "{" U8("b", "4", "4", "8") "," U8("a", "4", "0", "4") "}", 8, IST_OK, NULL);
	expect(h, "{" U8("a", "4", "0", "4") "," U8("b", "4", "5", "9") "}", 9, IST_BAD_OFFSETS, "b");
	expect(h, "{" U8("a", "4", "0", "4") "," U8("b", "4", "3", "7") "}", 7, IST_BAD_OFFSETS, "b");
	expect(h, "{" U8("a", "4", "0", "4") "," U8("b", "4", "0", "4") "}", 4, IST_BAD_OFFSETS, "b");
	expect(h, "{" U8("a", "4", "1", "5") "}", 5, IST_BAD_OFFSETS, "a");
	expect(h, "{" U8("a", "4", "0", "4") "}", 20, IST_BAD_OFFSETS, "a");
	expect(h, "{}", 1, IST_BAD_OFFSETS, "");
	expect(h, "{" U8("a", "4", "0", "4") "}", 20, IST_BAD_OFFSETS, "a");
	assert_int_equal(help_open(h, help_path(h, "x.safetensors"), &lax, &err), IST_OK);
	/* an empty tensor inside another one */
	expect(h, "{" U8("a", "4", "0", "4") "," U8("z", "0", "2", "2") "}", 4, IST_BAD_OFFSETS, "z");
}

static void
empty_things_are_legal(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck;
	struct ist_tensor t = { .struct_size = sizeof(t) };
	char text[IST_DIGEST_TEXT];
	uint64_t i;

	expect(h, "{}", 0, IST_OK, NULL);
	expect(h, "{\"__metadata__\":{\"format\":\"pt\"}}", 0, IST_OK, NULL);
	expect(h, "{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, IST_OK, NULL);
	expect(h, "{\"only\":{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[0,0]}}", 0, IST_OK, NULL);
	expect(h, "{" U8("a", "4", "0", "4") "," U8("m", "3,0,5", "4", "4") "," U8("b", "2", "4", "6") "," U8("z", "0", "6", "6") "}", 6,
		IST_OK, NULL);
	assert_int_equal(ist_checkpoint_open(h->env, help_path(h, "x.safetensors"), NULL, &ck, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_count(ck), 4);
	assert_int_equal(ist_checkpoint_bytes(ck), 6);
	assert_int_equal(ist_checkpoint_find(ck, "m", &i, NULL), IST_OK);
	assert_int_equal(i, 1);
	assert_int_equal(ist_checkpoint_tensor(ck, i, &t, NULL), IST_OK);
	assert_int_equal(t.rank, 3);
	assert_int_equal(t.shape[2], 5);
	assert_int_equal(t.bytes, 0);
	assert_string_equal(t.file, "x.safetensors");
	assert_int_equal(ist_checkpoint_digest(ck, i, text, NULL), IST_OK);
	assert_string_equal(text, "2c0a8a99dc147d5445c3b49d035665b2");
	assert_int_equal(ist_checkpoint_read(ck, i, 0, 0, NULL, NULL), IST_OK);
	ist_checkpoint_free(ck);
}

/* ---- lengths that lie ---- */

static void
lying_lengths(void **state)
{
	struct help *h = *state;
	const char *header = "{\"a\":" F32x2 "}", *path = help_path(h, "lie.safetensors");
	size_t n = strlen(header), size = 8 + n + 8;
	uint64_t lies[] = { 0, 1, size, UINT64_C(1) << 31, UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX - 4, n - 1, n + 1, n + 8 };
	struct ist_error err;

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		ist_err e;

		help_raw(path, lies[i], header, n, 8, 1);
		e = help_open(h, path, NULL, &err);
		if (e != IST_BAD_HEADER)
			fail_msg("length %llu: %s: %s", (unsigned long long)lies[i], ist_err_name(e), err.detail);
	}
}

static void
big_headers(void **state)
{
	struct help *h = *state;
	const char *path = help_path(h, "big.safetensors");
	struct ist_checkpoint_args more = { .struct_size = sizeof(more), .header_bytes_max = 110000000 };
	size_t at[] = { 99991, 99992, 99993, 99999, 100000, 100001, 101000000 };
	struct ist_error err;

	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		char *text = malloc(at[i] + 1);
		size_t n = (size_t)sprintf(text, "{\"a\":" F32x2 "}");

		memset(text + n, ' ', at[i] - n);
		help_raw(path, at[i], text, at[i], 8, 1);
		free(text);
		assert_int_equal(help_open(h, path, &more, &err), IST_OK);
		assert_int_equal(help_open(h, path, NULL, &err), at[i] > 100000000 ? IST_LIMIT : IST_OK);
		if (at[i] > 100000000)
			assert_non_null(strstr(err.detail, "100000000"));
	}
}

static void
strangers_are_named(void **state)
{
	struct help *h = *state;
	static const struct {
		const char *bytes;
		size_t n;
		const char *what;
	} rows[] = {
		{ "PK\3\4\x14\0\0\0\0\0\0\0", 12, "zip" },
		{ "\x80\x02}q\0X\1\0\0\0a", 12, "pickle" },
		{ "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", 70, "LFS" },
		{ "\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\3\0", 18, "ELF" },
		{ "GGUF\3\0\0\0\1\0\0\0\0\0\0\0", 16, "GGUF" },
		{ "{\"a\": 1, \"b\": [2, 3]}", 21, "JSON" },
		{ "<!DOCTYPE html><html></html>", 28, "HTML" },
	};
	struct ist_error err;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		help_write(help_path(h, "s.safetensors"), rows[i].bytes, rows[i].n);
		assert_int_equal(help_open(h, help_path(h, "s.safetensors"), NULL, &err), IST_NOT_SAFETENSORS);
		assert_non_null(strstr(err.detail, rows[i].what));
	}
}

/* ---- entries ---- */

static void
entries(void **state)
{
	struct help *h = *state;
#define A(dtype, shape, offsets) "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
	static const struct {
		const char *header;
		ist_err code;
	} rows[] = {
		{ A("\"F32\"", "[128,128]", "[0,128]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[2]", "[8,0]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[2]", "[0]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[2]", "[0,8,8]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[2]", "[]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[2]", "[\"0\",\"8\"]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[2]", "[0.0,8.0]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[2]", "[0,8e0]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[2]", "[-8,0]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[250]", "[0,1e3]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[2]", "[0,18446744073709551616]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[2]", "[0,9007199254740993]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[-0]", "[0,8]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[true]", "[0,8]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "[[2]]", "[0,8]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "2", "[0,8]"), IST_BAD_ENTRY },
		{ A("\"F32\"", "null", "[0,8]"), IST_BAD_ENTRY },
		{ A("7", "[2]", "[0,8]"), IST_BAD_ENTRY },
		{ "{\"a\":null}", IST_BAD_ENTRY },
		{ "{\"a\":[1,2]}", IST_BAD_ENTRY },
		{ "{\"a\":{}}", IST_BAD_ENTRY },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", IST_BAD_ENTRY },
		{ A("\"F4\"", "[3,3]", "[0,5]"), IST_BAD_ENTRY },
		{ A("\"F4\"", "[2,8]", "[0,8]"), IST_OK },
		{ A("\"F32\"", "[1099511627776,1099511627776]", "[0,8]"), IST_OVERFLOW },
		{ A("\"F32\"", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,8]"), IST_LIMIT },
		{ A("\"F32\"", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,8]"), IST_OK },
		{ A("\"f32\"", "[2]", "[0,8]"), IST_UNKNOWN_DTYPE },
		{ A("\"F3\"", "[2]", "[0,8]"), IST_UNKNOWN_DTYPE },
		{ A("\"X9\"", "[2]", "[16,24]"), IST_BAD_OFFSETS },
		{ A("\"X9\"", "[2]", "[8,0]"), IST_BAD_OFFSETS },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		expect(h, rows[i].header, 8, rows[i].code, rows[i].code ? "a" : NULL);
	expect(h, "[]", 0, IST_BAD_ENTRY, NULL);
	expect(h, "[1]", 8, IST_BAD_ENTRY, NULL);
}

static void
narrow_types(void **state)
{
	struct help *h = *state;

	expect(h, A("\"F6_E2M3\"", "[4,2]", "[0,6]"), 6, IST_OK, NULL);
	expect(h, A("\"F8_E8M0\"", "[5]", "[0,5]"), 5, IST_OK, NULL);
	expect(h, A("\"BOOL\"", "[3]", "[0,3]"), 3, IST_OK, NULL);
	expect(h, A("\"C64\"", "[1]", "[0,8]"), 8, IST_OK, NULL);
}

/* ---- names and JSON at the edges ---- */

static void
duplicate_names(void **state)
{
	struct help *h = *state;

	expect(h, "{\"w\":" F32x2 ",\"w\":" F32x2 "}", 8, IST_DUPLICATE_KEY, "w");
	expect(h, "{\"w\":" F32x2 ",\"\\u0077\":" F32x2 "}", 8, IST_DUPLICATE_KEY, "w");
	expect(h, "{\"__metadata__\":{},\"__metadata__\":{}}", 0, IST_DUPLICATE_KEY, "__metadata__");
	expect(h, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,8]}}", 8, IST_DUPLICATE_KEY, "shape");
}

static void
names_with_control_characters(void **state)
{
	struct help *h = *state;
	char *header = malloc(70000);
	size_t n;

	expect(h, "{\"w\\u0000evil\":" F32x2 "," U8("w", "1", "8", "9") "}", 9, IST_BAD_NAME, NULL);
	expect(h, "{\"a\\nb\":" F32x2 "}", 8, IST_BAD_NAME, NULL);
	expect(h, "{\"a\x7F\":" F32x2 "}", 8, IST_BAD_NAME, NULL);
	expect(h, "{\"a\\u0085\":" F32x2 "}", 8, IST_BAD_NAME, NULL);
	expect(h, "{\"\\ud800\":" F32x2 "}", 8, IST_BAD_HEADER, NULL);
	expect(h, "{\"\xF0\x9F\x98\x80\":" F32x2 "}", 8, IST_OK, NULL);
	/* two spellings of one glyph are two names */
	expect(h, "{" U8("\xC3\xA9", "1", "0", "1") "," U8("e\xCC\x81", "1", "1", "2") "}", 2, IST_OK, NULL);
	for (int over = 0; over < 2; over++) {
		n = (size_t)sprintf(header, "{\"");
		memset(header + n, 'n', 65536 + (size_t)over);
		sprintf(header + n + 65536 + over, "\":" F32x2 "}");
		expect(h, header, 8, over ? IST_BAD_HEADER : IST_OK, NULL);
	}
	free(header);
}

static void
edges_of_json(void **state)
{
	struct help *h = *state;
	static const char *const good[] = { "{\"a\":" F32x2 "}     ", "{\"a\":" F32x2 "}\n\t\r ", " {\"a\":" F32x2 "}",
		"{\"__metadata__\":{},\"a\":" F32x2 "}", "{\"__metadata__\":null,\"a\":" F32x2 "}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"extra\":[1,{\"b\":null}]}}", "{\"\\u0061\":" F32x2 "}" };
	static const char *const bad[] = { "\xEF\xBB\xBF{\"a\":" F32x2 "}", "{/* c */\"a\":" F32x2 "}", "{\"a\":" F32x2 ",}",
		"{\"a\":" F32x2 "}{}", "{\"a\xFF\":" F32x2 "}", "{\"a\xC0\x80\":" F32x2 "}", "{\"__metadata__\":7,\"a\":" F32x2 "}",
		"{\"__metadata__\":{\"x\":{\"y\":\"z\"}},\"a\":" F32x2 "}", "{\"__metadata__\":[],\"a\":" F32x2 "}",
		"{\"__metadata__\":{\"x\":7},\"a\":" F32x2 "}", "{\"__metadata__\":{\"x\":null},\"a\":" F32x2 "}" };
	const char *path = help_path(h, "nul.safetensors"), *header = "{\"a\":" F32x2 "}";
	struct ist_checkpoint *ck;
	struct ist_error err;
	char padded[128] = { 0 };
	uint64_t i;

	for (size_t k = 0; k < sizeof(good) / sizeof(good[0]); k++) {
		expect(h, good[k], 8, IST_OK, NULL);
		assert_int_equal(ist_checkpoint_open(h->env, help_path(h, "x.safetensors"), NULL, &ck, NULL), IST_OK);
		assert_int_equal(ist_checkpoint_find(ck, "a", &i, NULL), IST_OK);
		ist_checkpoint_free(ck);
	}
	for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++)
		expect(h, bad[k], 8, IST_BAD_HEADER, NULL);
	strcpy(padded, header);
	help_raw(path, strlen(header) + 3, padded, strlen(header) + 3, 8, 1);
	assert_int_equal(help_open(h, path, NULL, &err), IST_BAD_HEADER);
	snprintf(padded, sizeof(padded), "byte %zu", 8 + strlen(header));
	assert_non_null(strstr(err.detail, padded));
}

/* ---- bytes ---- */

static void
any_alignment(void **state)
{
	struct help *h = *state;
	char header[256];
	struct ist_checkpoint *ck;
	struct ist__digest want;
	char text[33], got[33];
	uint8_t bytes[8000], back[16];
	uint64_t i;

	strcpy(header, "{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
		       "\"d\":{\"dtype\":\"F64\",\"shape\":[1000],\"data_offsets\":[1,8001]}}");
	while (strlen(header) % 8 != 1)
		strcat(header, " ");
	help_st(help_path(h, "odd.safetensors"), header, 8001, 7);
	assert_int_equal(ist_checkpoint_open(h->env, help_path(h, "odd.safetensors"), NULL, &ck, NULL), IST_OK);
	for (size_t k = 0; k < sizeof(bytes); k++)
		bytes[k] = (uint8_t)(8 + k);
	ist__digest_memory(bytes, sizeof(bytes), &want);
	ist__digest_text(&want, text);
	assert_int_equal(ist_checkpoint_find(ck, "d", &i, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_digest(ck, i, got, NULL), IST_OK);
	assert_string_equal(got, text);
	assert_int_equal(ist_checkpoint_read(ck, i, 7990, 10, back, NULL), IST_OK);
	assert_memory_equal(back, bytes + 7990, 10);
	assert_int_equal(ist_checkpoint_read(ck, i, 7990, 11, back, NULL), IST_INVALID_ARGUMENT);
	assert_int_equal(ist_checkpoint_read(ck, i, UINT64_MAX, 2, back, NULL), IST_INVALID_ARGUMENT);
	ist_checkpoint_free(ck);
}

/* A tensor of 5 GiB without its blocks: offsets past 32 bits. */
static void
past_four_gib(void **state)
{
	struct help *h = *state;
	const char *path = help_path(h, "far.safetensors");
	uint64_t big = UINT64_C(5) << 30, i;
	struct ist_checkpoint *ck;
	char header[256];
	uint8_t back[3];
	int fd;

	snprintf(header, sizeof(header), "{\"z\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[0,%llu]},"
					 "\"t\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[%llu,%llu]}}",
		(unsigned long long)big, (unsigned long long)big, (unsigned long long)big, (unsigned long long)big + 3);
	help_st(path, header, 0, 0);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "xyz", 3, (off_t)(8 + strlen(header) + big)), 3);
	close(fd);
	assert_int_equal(ist_checkpoint_open(h->env, path, NULL, &ck, NULL), IST_OK);
	assert_true(ist_checkpoint_bytes(ck) == big + 3);
	assert_int_equal(ist_checkpoint_find(ck, "t", &i, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_read(ck, i, 0, 3, back, NULL), IST_OK);
	assert_memory_equal(back, "xyz", 3);
	assert_int_equal(ist_checkpoint_find(ck, "z", &i, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_read(ck, i, big - 3, 3, back, NULL), IST_OK);
	assert_memory_equal(back, "\0\0\0", 3);
	if (getenv("ISTHMUS_LONG_TESTS")) {
		char text[33];

		assert_int_equal(ist_checkpoint_digest(ck, i, text, NULL), IST_OK);
		assert_string_equal(text, "ed2fdcd79e254dec2dee5876caf8ba19");
	}
	ist_checkpoint_free(ck);
}

/* ---- files that change ---- */

static void
changed_files(void **state)
{
	struct help *h = *state;
	const char *path = help_path(h, "c.safetensors"), *aside = help_path(h, "new.safetensors");
	struct ist_checkpoint *ck;
	struct ist_error err;
	uint8_t back[4096];
	char text[33];
	int fd;

	for (int how = 0; how < 3; how++) {
		struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };

		help_st(path, "{" U8("a", "4096", "0", "4096") "}", 4096, 1);
		assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0); /* so that a write shows, however coarse the clock is */
		assert_int_equal(ist_checkpoint_open(h->env, path, NULL, &ck, NULL), IST_OK);
		assert_int_equal(ist_checkpoint_digest(ck, 0, text, NULL), IST_OK);
		if (how == 0) {
			assert_int_equal(truncate(path, 2048), 0);
		} else if (how == 1) {
			fd = open(path, O_WRONLY | O_CLOEXEC);
			assert_int_equal(pwrite(fd, "!", 1, 2000), 1);
			close(fd);
		} else {
			help_st(aside, "{" U8("a", "4096", "0", "4096") "}", 4096, 99);
			assert_int_equal(rename(aside, path), 0);
		}
		ist_error_init(&err);
		assert_int_equal(ist_checkpoint_read(ck, 0, 0, 4096, back, &err), how == 2 ? IST_OK : IST_FILE_CHANGED);
		assert_int_equal(ist__checkpoint_check(ck, NULL), how == 2 ? IST_OK : IST_FILE_CHANGED);
		assert_int_equal(ist_checkpoint_digest(ck, 0, text, NULL), how == 2 ? IST_OK : IST_FILE_CHANGED);
		if (how == 2)
			assert_int_equal(back[0], 1);
		else
			assert_non_null(strstr(err.detail, "c.safetensors"));
		ist_checkpoint_free(ck);
	}
}

static void
a_flipped_bit_has_a_name(void **state)
{
	struct help *h = *state;
	char header[2048] = "{", before[10][33], after[33], whole[2][33];
	const char *path = help_path(h, "flip.safetensors");
	struct ist_checkpoint *ck;
	uint8_t byte;
	int fd;

	for (int i = 0; i < 10; i++)
		sprintf(header + strlen(header), "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[100000],\"data_offsets\":[%d,%d]}", i ? "," : "", i,
			i * 100000, (i + 1) * 100000);
	strcat(header, "}");
	help_st(path, header, 1000000, 3);
	for (int pass = 0; pass < 2; pass++) {
		assert_int_equal(ist_checkpoint_open(h->env, path, NULL, &ck, NULL), IST_OK);
		assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, whole[pass], NULL), IST_OK);
		for (uint64_t i = 0; i < 10; i++) {
			assert_int_equal(ist_checkpoint_digest(ck, i, pass ? after : before[i], NULL), IST_OK);
			if (pass)
				assert_true((strcmp(before[i], after) != 0) == (i == 7));
		}
		ist_checkpoint_free(ck);
		fd = open(path, O_RDWR | O_CLOEXEC);
		assert_int_equal(pread(fd, &byte, 1, (off_t)(8 + strlen(header) + 750000)), 1);
		byte ^= 16;
		assert_int_equal(pwrite(fd, &byte, 1, (off_t)(8 + strlen(header) + 750000)), 1);
		close(fd);
	}
	assert_string_not_equal(whole[0], whole[1]);
}

/* ---- no memory ---- */

static void
every_allocation_fails_once(void **state)
{
	struct help *h = *state;
	const char *path = help_path(h, "m.safetensors");
	struct ist_checkpoint *ck = NULL;
	struct ist_error err;
	long live = h->live, n;

	help_st(path, "{\"__metadata__\":{\"k\":\"v\"}," U8("a", "4", "0", "4") "," U8("b", "4", "4", "8") "}", 8, 1);
	for (n = 1;; n++) {
		ist_err e;

		assert_true(n < 1000);
		ist_error_init(&err);
		h->allocations = 0;
		h->fail_at = n;
		e = ist_checkpoint_open(h->env, path, NULL, &ck, &err);
		h->fail_at = 0;
		if (!e)
			break;
		assert_int_equal(e, IST_NO_MEMORY);
		assert_int_equal(err.code, IST_NO_MEMORY);
		assert_null(ck);
		assert_int_equal(h->live, live);
	}
	assert_true(n > 8);
	ist_checkpoint_free(ck);
	assert_int_equal(ist_checkpoint_read(ck, 0, 0, 0, NULL, &err), IST_BAD_HANDLE);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(cut_files_are_truncated, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(ranges_cover_the_data, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(empty_things_are_legal, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(lying_lengths, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(big_headers, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(strangers_are_named, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(entries, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(narrow_types, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(duplicate_names, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(names_with_control_characters, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(edges_of_json, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(any_alignment, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(past_four_gib, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(changed_files, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(a_flipped_bit_has_a_name, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(every_allocation_fails_once, help_setup, help_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
