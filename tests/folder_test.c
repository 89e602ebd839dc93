/* SPDX-License-Identifier: Apache-2.0
 *
 * folder_test.c - folders, indexes and hub caches: which files count, whose bytes they are, and who is to blame.
 */
#include "ckpt_help.h"

#include "ckpt/checkpoint.h"

#define ONE(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"

static void
text_file(const char *path, const char *text)
{
	help_write(path, text, strlen(text));
}

/* The first byte of a tensor, and how many tensors there are. */
static int
first_byte(struct help *h, const char *path, const char *tensor, uint64_t count)
{
	struct ist_checkpoint *ck;
	struct ist_error err;
	uint8_t byte = 0;
	uint64_t i;

	ist_error_init(&err);
	if (ist_checkpoint_open(h->env, path, NULL, &ck, &err))
		fail_msg("%s", err.detail);
	assert_int_equal(ist_checkpoint_count(ck), count);
	assert_int_equal(ist_checkpoint_find(ck, tensor, &i, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_read(ck, i, 0, 1, &byte, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_find(ck, "nobody", &i, &err), IST_MISSING_TENSOR);
	assert_string_equal(err.tensor, "nobody");
	ist_checkpoint_free(ck);
	return byte;
}

static void
shards_without_an_index(void **state)
{
	struct help *h = *state;
	struct ist_error err;

	help_st(help_path(h, "b.safetensors"), ONE("w"), 4, 10);
	help_st(help_path(h, "a.safetensors"), ONE("v"), 4, 20);
	text_file(help_path(h, "config.json"), "{}");
	assert_int_equal(first_byte(h, h->dir, "w", 2), 10);
	assert_int_equal(first_byte(h, h->dir, "v", 2), 20);
	help_st(help_path(h, "c.safetensors"), ONE("w"), 4, 30);
	assert_int_equal(help_open(h, h->dir, NULL, &err), IST_DUPLICATE_ACROSS_FILES);
	assert_string_equal(err.tensor, "w");
	assert_non_null(strstr(err.detail, "b.safetensors"));
	assert_non_null(strstr(err.detail, "c.safetensors"));
}

struct logged {
	unsigned lines;
	char last[512];
};

static void
keep_log(void *ctx, int32_t level, const char *msg)
{
	struct logged *l = ctx;

	(void)level;
	l->lines++;
	snprintf(l->last, sizeof(l->last), "%s", msg);
}

static void
the_index_decides(void **state)
{
	struct help *h = *state;
	struct logged log = { 0 };
	struct ist_env_args args = { .struct_size = sizeof(args), .log_level = IST_LOG_INFO, .log = keep_log, .log_ctx = &log };
	struct ist_checkpoint *ck;
	struct ist_error err;
	struct ist_env *env;

	help_st(help_path(h, "base.safetensors"),
		"{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"v\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", 8, 10);
	help_st(help_path(h, "overlay.safetensors"), ONE("w"), 4, 50);
	help_st(help_path(h, "consolidated.safetensors"), ONE("w"), 4, 90);
	mkdir(help_path(h, "original"), 0755);
	help_st(help_path(h, "original/base.safetensors"), ONE("w"), 4, 91);
	assert_int_equal(help_open(h, h->dir, NULL, &err), IST_DUPLICATE_ACROSS_FILES);
	text_file(help_path(h, "model.safetensors.index.json"),
		"{\"weight_map\":{\"w\":\"overlay.safetensors\",\"v\":\"base.safetensors\"}}");
	assert_int_equal(first_byte(h, h->dir, "w", 2), 50);
	assert_int_equal(first_byte(h, h->dir, "v", 2), 14);
	assert_int_equal(first_byte(h, help_path(h, "model.safetensors.index.json"), "w", 2), 50);

	assert_int_equal(ist_env_new(&args, &env, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_open(env, h->dir, NULL, &ck, NULL), IST_OK);
	assert_int_equal(log.lines, 1);
	assert_non_null(strstr(log.last, "1 files"));
	assert_non_null(strstr(log.last, "1 tensors"));
	assert_int_equal(ist_checkpoint_bytes(ck), 8);
	ist_checkpoint_free(ck);
	ist_env_free(env);
}

static void
metadata_of_an_index_is_not_believed(void **state)
{
	struct help *h = *state;
	static const char *const good[] = {
		"{\"weight_map\":{\"w\":\"a.safetensors\"}}",
		"{\"metadata\":{},\"weight_map\":{\"w\":\"a.safetensors\"}}",
		"{\"metadata\":{\"total_size\":99999999999},\"weight_map\":{\"w\":\"a.safetensors\"}}",
		"{\"metadata\":{\"total_size\":4.5e1},\"x\":[{}],\"weight_map\":{\"w\":\"a.safetensors\"}}",
		"{\"metadata\":null,\"weight_map\":{\"w\":\"a.safetensors\"}}",
	};

	help_st(help_path(h, "a.safetensors"), ONE("w"), 4, 10);
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		text_file(help_path(h, "model.safetensors.index.json"), good[i]);
		assert_int_equal(first_byte(h, h->dir, "w", 1), 10);
	}
}

static void
bad_indexes(void **state)
{
	struct help *h = *state;
	static const struct {
		const char *text;
		ist_err code;
		const char *tensor;
	} rows[] = {
		{ "{\"weight_map\":{\"w\":\"../a.safetensors\"}}", IST_BAD_NAME, "w" },
		{ "{\"weight_map\":{\"w\":\"/etc/a.safetensors\"}}", IST_BAD_NAME, "w" },
		{ "{\"weight_map\":{\"w\":\"..\"}}", IST_BAD_NAME, "w" },
		{ "{\"weight_map\":{\"w\":\"\"}}", IST_BAD_NAME, "w" },
		{ "{\"weight_map\":{\"w\":\"a.safetensors\\u0000\"}}", IST_BAD_NAME, "w" },
		{ "{\"weight_map\":{\"w\\u0001\":\"a.safetensors\"}}", IST_BAD_NAME, NULL },
		{ "{\"weight_map\":{\"w\":\"a.safetensors\",\"\\u0077\":\"a.safetensors\"}}", IST_DUPLICATE_KEY, "w" },
		{ "{\"weight_map\":{\"w\":7}}", IST_BAD_FORMAT, "w" },
		{ "{\"weight_map\":[]}", IST_BAD_FORMAT, NULL },
		{ "{\"metadata\":{}}", IST_BAD_FORMAT, NULL },
		{ "[]", IST_BAD_FORMAT, NULL },
		{ "{\"weight_map\":{\"w\":\"a.safetensors\"}} x", IST_BAD_FORMAT, NULL },
		{ "{\"weight_map\":{\"w\":\"a.safe", IST_TRUNCATED, NULL },
		{ "{\"weight_map\":{\"w\":\"a.safetensors\",\"x\":\"a.safetensors\"}}", IST_MISSING_TENSOR, "x" },
		{ "{\"weight_map\":{\"w\":\"gone.safetensors\"}}", IST_MISSING_SHARD, NULL },
	};
	struct ist_error err;

	help_st(help_path(h, "a.safetensors"), ONE("w"), 4, 10);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		ist_err e;

		text_file(help_path(h, "model.safetensors.index.json"), rows[i].text);
		e = help_open(h, h->dir, NULL, &err);
		if (e != rows[i].code)
			fail_msg("%s: %s: %s", rows[i].text, ist_err_name(e), err.detail);
		if (rows[i].tensor)
			assert_string_equal(err.tensor, rows[i].tensor);
	}
	assert_non_null(strstr(err.detail, "gone.safetensors"));
}

/* A hub cache as the download tool lays it out. */
static void
hub_caches(void **state)
{
	struct help *h = *state;
	static const char *const dirs[] = { "models--o--m", "models--o--m/blobs", "models--o--m/refs", "models--o--m/snapshots",
		"models--o--m/snapshots/R" };
	struct ist_checkpoint *ck;
	struct ist_tensor t = { .struct_size = sizeof(t) };
	struct ist_error err;

	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
		assert_int_equal(mkdir(help_path(h, dirs[i]), 0755), 0);
	text_file(help_path(h, "models--o--m/refs/main"), "R\n");
	help_st(help_path(h, "models--o--m/blobs/0123abcd"), ONE("w"), 4, 10);
	assert_int_equal(symlink("../../blobs/0123abcd", help_path(h, "models--o--m/snapshots/R/model.safetensors")), 0);
	assert_int_equal(first_byte(h, help_path(h, "models--o--m/snapshots/R"), "w", 1), 10);
	assert_int_equal(first_byte(h, help_path(h, "models--o--m/snapshots/R/model.safetensors"), "w", 1), 10);
	assert_int_equal(ist_checkpoint_open(h->env, help_path(h, "models--o--m/snapshots/R"), NULL, &ck, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_tensor(ck, 0, &t, NULL), IST_OK);
	assert_string_equal(t.file, "model.safetensors");
	ist_checkpoint_free(ck);

	assert_int_equal(help_open(h, help_path(h, "models--o--m"), NULL, &err), IST_BAD_FORMAT);
	assert_non_null(strstr(err.next, "models--o--m/snapshots/R"));

	/* a blob by its own name */
	assert_int_equal(ist_checkpoint_open(h->env, help_path(h, "models--o--m/blobs/0123abcd"), NULL, &ck, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_tensor(ck, 0, &t, NULL), IST_OK);
	assert_string_equal(t.file, "model.safetensors");
	ist_checkpoint_free(ck);

	assert_int_equal(rename(help_path(h, "models--o--m/blobs/0123abcd"), help_path(h, "models--o--m/blobs/0123abcd.incomplete")), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(help_open(h, help_path(h, i ? "models--o--m/snapshots/R/model.safetensors" : "models--o--m/snapshots/R"), NULL, &err),
			IST_MISSING_SHARD);
		assert_non_null(strstr(err.detail, "model.safetensors"));
		assert_non_null(strstr(err.detail, "../../blobs/0123abcd"));
	}
	assert_int_equal(unlink(help_path(h, "models--o--m/snapshots/R/model.safetensors")), 0);
	assert_int_equal(help_open(h, help_path(h, "models--o--m/snapshots/R"), NULL, &err), IST_MISSING_SHARD);
	assert_non_null(strstr(err.detail, "1 downloads"));
}

static void
what_is_no_checkpoint(void **state)
{
	struct help *h = *state;
	struct ist_error err;

	assert_int_equal(help_open(h, h->dir, NULL, &err), IST_NOT_SAFETENSORS);
	assert_int_equal(help_open(h, help_path(h, "nowhere"), NULL, &err), IST_IO);
	assert_int_equal(err.sys, ENOENT);
	assert_int_equal(mkfifo(help_path(h, "fifo.safetensors"), 0644), 0);
	assert_int_equal(help_open(h, help_path(h, "fifo.safetensors"), NULL, &err), IST_BAD_FORMAT); /* and never waits */
	assert_int_equal(help_open(h, h->dir, NULL, &err), IST_NOT_SAFETENSORS);
	assert_int_equal(ist_checkpoint_open(h->env, NULL, NULL, NULL, &err), IST_INVALID_ARGUMENT);
	assert_int_equal(ist_checkpoint_open(NULL, h->dir, NULL, NULL, &err), IST_BAD_HANDLE);
	assert_int_equal(ist_checkpoint_count(NULL), 0);
}

/* ---- what comes along ---- */

static unsigned
count_kind(const struct ist__manifest *m, uint32_t kind)
{
	unsigned n = 0;

	for (uint64_t i = 0; i < m->n_items; i++)
		n += m->items[i].kind == kind;
	return n;
}

static void
items_cover_the_files(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint_args weights = { .struct_size = sizeof(weights), .weights_only = 1 };
	const struct ist__manifest *m;
	struct ist_checkpoint *ck;
	uint64_t at = 0;
	uint32_t file = 0;

	help_st(help_path(h, "base.safetensors"),
		"{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"v\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", 8, 10);
	help_st(help_path(h, "overlay.safetensors"), ONE("w"), 4, 50);
	text_file(help_path(h, "model.safetensors.index.json"),
		"{\"weight_map\":{\"w\":\"overlay.safetensors\",\"v\":\"base.safetensors\"}}");
	text_file(help_path(h, "config.json"), "{}");
	text_file(help_path(h, "empty.txt"), "");
	text_file(help_path(h, "pytorch_model.bin"), "no");
	text_file(help_path(h, "x.gguf"), "no");
	mkdir(help_path(h, "folder"), 0755);
	assert_int_equal(ist_checkpoint_open(h->env, h->dir, NULL, &ck, NULL), IST_OK);
	m = ist__checkpoint_manifest(ck);
	assert_int_equal(m->n_files, 5);
	assert_int_equal(count_kind(m, IST__ITEM_HEADER), 2);
	assert_int_equal(count_kind(m, IST__ITEM_INDEX), 1);
	assert_int_equal(count_kind(m, IST__ITEM_OTHER), 1);
	assert_int_equal(count_kind(m, IST__ITEM_FILLER), 1);
	for (uint64_t i = 0; i < m->n_items; i++) {
		uint8_t back[512], straight[512];

		while (m->items[i].file != file) {
			assert_true(at == m->files[file].bytes);
			file++;
			at = 0;
		}
		assert_true(m->items[i].offset == at);
		assert_int_equal(ist__checkpoint_fetch(ck, i, 0, m->items[i].bytes, back, NULL), IST_OK);
		assert_int_equal(ist__checkpoint_fetch_file(ck, file, at, m->items[i].bytes, straight, NULL), IST_OK);
		assert_memory_equal(back, straight, m->items[i].bytes);
		at += m->items[i].bytes;
	}
	assert_int_equal(ist__checkpoint_digest_all(ck, 2, NULL), IST_OK);
	for (uint64_t i = 0; i < m->n_items; i++) {
		struct ist__digest d, want;
		uint8_t back[512];

		assert_true(ist__checkpoint_item_digest(ck, i, &d));
		assert_int_equal(ist__checkpoint_fetch(ck, i, 0, m->items[i].bytes, back, NULL), IST_OK);
		ist__digest_memory(back, m->items[i].bytes, &want);
		assert_true(ist__digest_equal(&d, &want));
	}
	ist_checkpoint_free(ck);

	assert_int_equal(ist_checkpoint_open(h->env, h->dir, &weights, &ck, NULL), IST_OK);
	m = ist__checkpoint_manifest(ck);
	assert_int_equal(count_kind(m, IST__ITEM_INDEX), 1);
	assert_int_equal(count_kind(m, IST__ITEM_OTHER), 0);
	assert_int_equal(m->n_files, 3);
	ist_checkpoint_free(ck);
}

static void
too_much_beside_the_weights(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint_args weights = { .struct_size = sizeof(weights), .weights_only = 1 };
	struct ist_error err;

	help_st(help_path(h, "a.safetensors"), ONE("w"), 4, 10);
	text_file(help_path(h, "big.txt"), "");
	text_file(help_path(h, "more.txt"), "");
	assert_int_equal(truncate(help_path(h, "big.txt"), 64 << 20), 0);
	assert_int_equal(help_open(h, h->dir, NULL, &err), IST_OK);
	assert_int_equal(truncate(help_path(h, "more.txt"), 1), 0);
	assert_int_equal(help_open(h, h->dir, NULL, &err), IST_LIMIT);
	assert_non_null(strstr(err.detail, "more.txt"));
	assert_int_equal(help_open(h, h->dir, &weights, &err), IST_OK);
}

/* ---- digests ---- */

/* Many small tensors and a large one: whatever the runs are, the digests are those of each tensor alone. */
static void
digests_do_not_depend_on_threads(void **state)
{
	struct help *h = *state;
	enum { SMALL = 2000, LARGE = 9000001 };
	char *header = malloc(SMALL * 96 + 256), texts[3][33], one[33];
	uint8_t *data = malloc(SMALL * 33 + LARGE);
	const char *path = help_path(h, "many.safetensors");
	struct ist_checkpoint *ck;
	struct ist__digest want;
	size_t n = (size_t)sprintf(header, "{");
	int fd;

	for (int i = 0; i < SMALL; i++)
		n += (size_t)sprintf(header + n, "\"s%d\":{\"dtype\":\"U8\",\"shape\":[33],\"data_offsets\":[%d,%d]},", i, i * 33, i * 33 + 33);
	sprintf(header + n, "\"l\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}", LARGE, SMALL * 33, SMALL * 33 + LARGE);
	for (size_t i = 0; i < SMALL * 33 + LARGE; i++)
		data[i] = (uint8_t)(i * 2654435761u >> 11);
	help_st(path, header, 0, 0);
	fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	assert_int_equal(write(fd, data, SMALL * 33 + LARGE), SMALL * 33 + LARGE);
	close(fd);
	for (uint32_t threads = 1; threads <= 3; threads++) {
		assert_int_equal(ist_checkpoint_open(h->env, path, NULL, &ck, NULL), IST_OK);
		assert_int_equal(ist__checkpoint_digest_all(ck, threads, NULL), IST_OK);
		assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, texts[threads - 1], NULL), IST_OK);
		for (uint64_t i = 0; i <= SMALL; i += 400) {
			struct ist_tensor t = { .struct_size = sizeof(t) };

			assert_int_equal(ist_checkpoint_tensor(ck, i, &t, NULL), IST_OK);
			assert_int_equal(ist_checkpoint_digest(ck, i, one, NULL), IST_OK);
			ist__digest_memory(data + i * 33, t.bytes, &want);
			ist__digest_text(&want, texts[2]);
			assert_string_equal(one, texts[2]);
		}
		assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, texts[2], NULL), IST_OK);
		assert_string_equal(texts[0], texts[2]);
		ist_checkpoint_free(ck);
	}
	free(header);
	free(data);
}

/* Memory and a file of the same tensors have one digest; memory is looked at anew each time. */
static void
memory_is_live(void **state)
{
	struct help *h = *state;
	uint8_t a[6] = { 1, 2, 3, 4, 5, 6 };
	struct ist_tensor t[3] = {
		{ .struct_size = sizeof(t[0]), .name = "x", .dtype = "U8", .rank = 1, .shape = { 6 }, .bytes = 6, .addr = a },
		{ .struct_size = sizeof(t[0]), .name = "e", .dtype = "F32", .rank = 2, .shape = { 2, 0 } },
		{ .struct_size = sizeof(t[0]), .name = "tied", .dtype = "I16", .rank = 1, .shape = { 3 }, .bytes = 6, .addr = a },
	}, out = { .struct_size = sizeof(out) };
	struct ist_checkpoint *ck, *file;
	struct ist_error err;
	struct ist_buf lent;
	char one[33], two[33], was[33];

	ist_error_init(&err);
	assert_int_equal(ist_checkpoint_from_tensors(h->env, t, 3, &ck, &err), IST_OK);
	assert_int_equal(ist_checkpoint_bytes(ck), 6);
	assert_int_equal(ist_checkpoint_tensor(ck, 2, &out, NULL), IST_OK);
	assert_string_equal(out.alias_of, "x");
	assert_string_equal(out.file, "");
	assert_ptr_equal(out.addr, a);
	assert_true(ist__checkpoint_live(ck));
	assert_true(ist__checkpoint_lend(ck, 2, 1, 5, &lent));
	assert_ptr_equal(lent.addr, a + 1);
	assert_false(ist__checkpoint_lend(ck, 2, 2, 5, &lent));
	help_st(help_path(h, "same.safetensors"),
		"{\"x\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[0,6]},\"tied\":{\"dtype\":\"I16\",\"shape\":[3],\"data_offsets\":[6,12]},"
		"\"e\":{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[0,0]}}",
		12, 1);
	{
		int fd = open(help_path(h, "same.safetensors"), O_WRONLY | O_CLOEXEC);

		assert_int_equal(pwrite(fd, a, 6, lseek(fd, -6, SEEK_END)), 6);
		close(fd);
	}
	assert_int_equal(ist_checkpoint_open(h->env, help_path(h, "same.safetensors"), NULL, &file, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, one, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_digest(file, IST_WHOLE, two, NULL), IST_OK);
	assert_string_equal(one, two);
	assert_int_equal(ist_checkpoint_digest(ck, 2, was, NULL), IST_OK);
	a[3] ^= 1;
	assert_int_equal(ist_checkpoint_digest(ck, 2, two, NULL), IST_OK);
	assert_string_not_equal(was, two);
	assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, two, NULL), IST_OK);
	assert_string_not_equal(one, two);
	ist_checkpoint_free(file);
	ist_checkpoint_free(ck);

	t[2].name = "x";
	assert_int_equal(ist_checkpoint_from_tensors(h->env, t, 3, &ck, &err), IST_DUPLICATE_KEY);
	assert_string_equal(err.tensor, "x");
	t[2].name = "a\nb";
	assert_int_equal(ist_checkpoint_from_tensors(h->env, t, 3, &ck, &err), IST_BAD_NAME);
	t[2].name = "t";
	t[2].bytes = 5;
	assert_int_equal(ist_checkpoint_from_tensors(h->env, t, 3, &ck, &err), IST_BAD_ENTRY);
	t[2].dtype = "X9";
	assert_int_equal(ist_checkpoint_from_tensors(h->env, t, 3, &ck, &err), IST_UNKNOWN_DTYPE);
	assert_string_equal(err.tensor, "t");
	t[2].addr = NULL;
	assert_int_equal(ist_checkpoint_from_tensors(h->env, t, 3, &ck, &err), IST_INVALID_ARGUMENT);
	t[0].struct_size = 8;
	assert_int_equal(ist_checkpoint_from_tensors(h->env, t, 3, &ck, &err), IST_INVALID_ARGUMENT);
	assert_int_equal(ist_checkpoint_from_tensors(h->env, NULL, 0, &ck, &err), IST_OK);
	assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, one, NULL), IST_OK);
	ist_checkpoint_free(ck);
}

static void
every_allocation_fails_once(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = NULL;
	char text[33];
	long live = h->live, n;

	help_st(help_path(h, "a.safetensors"), ONE("v"), 4, 10);
	help_st(help_path(h, "b.safetensors"), ONE("w"), 4, 10);
	text_file(help_path(h, "config.json"), "{}");
	for (int index = 0; index < 2; index++) {
		if (index)
			text_file(help_path(h, "model.safetensors.index.json"), "{\"weight_map\":{\"w\":\"b.safetensors\",\"v\":\"a.safetensors\"}}");
		for (n = 1;; n++) {
			ist_err e;

			assert_true(n < 1000);
			h->allocations = 0;
			h->fail_at = n;
			e = ist_checkpoint_open(h->env, h->dir, NULL, &ck, NULL);
			if (!e)
				e = ist_checkpoint_digest(ck, IST_WHOLE, text, NULL);
			if (!e && h->allocations >= n)
				fail_msg("allocation %ld failed unnoticed", n);
			h->fail_at = 0;
			if (!e)
				break;
			assert_int_equal(e, IST_NO_MEMORY);
			ist_checkpoint_free(ck);
			assert_true(h->live - live <= (ck ? n : 0)); /* freed handles stay until the env goes */
			ck = NULL;
			live = h->live;
		}
		assert_true(n > 20);
		ist_checkpoint_free(ck);
		ck = NULL;
		live = h->live;
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(shards_without_an_index, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(the_index_decides, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(metadata_of_an_index_is_not_believed, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(bad_indexes, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(hub_caches, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(what_is_no_checkpoint, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(items_cover_the_files, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(too_much_beside_the_weights, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(digests_do_not_depend_on_threads, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(memory_is_live, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(every_allocation_fails_once, help_setup, help_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
