/* SPDX-License-Identifier: Apache-2.0
 *
 * load_files_test.c - files into sinks of this process, by several threads: into memory, folders, an engine's own places, onto a device
 * (a double, or with ISTHMUS_TEST_DEVICE=cuda a real one). Runs that span many tensors, tensors of many runs, files that are not in
 * the page cache; and what goes wrong.
 */
#include "ckpt_help.h"
#include "far_device.h"

enum { SMALL = 700, TENSORS = SMALL + 3, RUN = 64 << 10 };

static uint64_t
bytes_of(uint32_t i)
{
	return i < SMALL ? 1 + i * 37 % 400 : i == SMALL ? 5000003 : i == SMALL + 1 ? 0 : 3 * RUN;
}

static uint8_t
byte_at(uint32_t tensor, uint64_t i)
{
	return (uint8_t)(tensor * 31 + i * 7 + (i >> 8) + (i >> 16));
}

static void
name_of(uint32_t i, char out[16])
{
	snprintf(out, 16, "t%05u", i);
}

/* What stands in front of the bytes of tensors [first, end); *n: its length. */
static char *
header_of(uint32_t first, uint32_t end, size_t *n)
{
	char *header = malloc(200 * (end - first) + 2);
	uint64_t at = 0;

	*n = 0;
	for (uint32_t i = first; i < end; at += bytes_of(i++)) {
		char name[16];

		name_of(i, name);
		*n += (size_t)sprintf(header + *n, "%c\"%s\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[%llu,%llu]}", i == first ? '{' : ',', name,
			(unsigned long long)bytes_of(i), (unsigned long long)at, (unsigned long long)(at + bytes_of(i)));
	}
	header[(*n)++] = '}';
	return header;
}

/* One file; the first to read it may have it read past the page cache. */
static void
write_file(const char *path, uint32_t first, uint32_t end)
{
	size_t n, at;
	char *header = header_of(first, end, &n);
	uint8_t *all;
	int fd;

	at = 8 + n;
	for (uint32_t i = first; i < end; i++)
		at += bytes_of(i);
	all = malloc(at);
	for (int k = 0; k < 8; k++)
		all[k] = (uint8_t)((uint64_t)n >> (8 * k));
	memcpy(all + 8, header, n);
	at = 8 + n;
	for (uint32_t i = first; i < end; i++)
		for (uint64_t k = 0; k < bytes_of(i); k++)
			all[at++] = byte_at(i, k);
	help_write(path, all, at);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(fsync(fd), 0);
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	free(all);
	free(header);
}

static struct ist_checkpoint *
open_model(struct help *h)
{
	struct ist_checkpoint *ck;

	if (mkdir(help_path(h, "model"), 0755) == 0) {
		write_file(help_path(h, "model/a.safetensors"), 0, SMALL + 2);
		write_file(help_path(h, "model/b.safetensors"), SMALL + 2, TENSORS);
		help_write(help_path(h, "model/config.json"), "{}", 2);
	}
	assert_int_equal(ist_checkpoint_open(h->env, help_path(h, "model"), NULL, &ck, NULL), IST_OK);
	return ck;
}

static const struct ist_load_args by_four = { .struct_size = sizeof(by_four), .threads = 4, .run_bytes = RUN };

static void
check_bytes(uint32_t i, const uint8_t *at)
{
	for (uint64_t k = 0; k < bytes_of(i); k++)
		if (at[k] != byte_at(i, k))
			fail_msg("tensor %u, byte %llu", i, (unsigned long long)k);
}

/* ---- on the host ---- */

static void
into_memory(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = open_model(h);
	struct ist_error err;
	struct ist_sink *sink;

	ist_error_init(&err);
	assert_int_equal(ist_sink_open(h->env, "mem:", 0, &sink, &err), IST_OK);
	for (int round = 0; round < 2; round++) {
		assert_int_equal(ist_checkpoint_load(ck, sink, round ? NULL : &by_four, &err), IST_OK);
		for (uint32_t i = 0; i < TENSORS; i++) {
			struct ist_tensor t = { .struct_size = sizeof(t) };
			char name[16];

			name_of(i, name);
			assert_int_equal(ist_sink_tensor(sink, name, &t, &err), IST_OK);
			assert_int_equal(t.bytes, bytes_of(i));
			check_bytes(i, t.addr);
		}
	}
	ist_sink_free(sink);
	ist_checkpoint_free(ck);
}

static void
into_a_folder(void **state)
{
	static const char *const files[] = { "a.safetensors", "b.safetensors", "config.json" };
	struct help *h = *state;
	struct ist_checkpoint *ck = open_model(h);
	struct ist_error err;
	struct ist_sink *sink;

	ist_error_init(&err);
	assert_int_equal(ist_sink_open(h->env, help_path(h, "copy"), 0, &sink, &err), IST_OK);
	assert_int_equal(ist_checkpoint_load(ck, sink, &by_four, &err), IST_OK);
	for (int i = 0; i < 3; i++) {
		char from[32], to[32];

		snprintf(from, sizeof(from), "model/%s", files[i]);
		snprintf(to, sizeof(to), "copy/%s", files[i]);
		assert_true(help_same_file(help_path(h, from), help_path(h, to)));
	}
	ist_sink_free(sink);
	ist_checkpoint_free(ck);
}

/* ---- into places, on a device or not ---- */

struct places {
	struct ist_tensor t[TENSORS];
	char names[TENSORS][16];
	struct far_device *d;
	bool far;
	struct ist_sink *sink;
};

static bool
is_real(void)
{
	const char *device = getenv("ISTHMUS_TEST_DEVICE");

	return device && !strcmp(device, "cuda");
}

static void
make_places(struct help *h, struct places *p, bool far, const struct far_device_options *opt)
{
	struct ist_sink_args args = { .struct_size = sizeof(args), .mem = far ? IST_MEM_CUDA : IST_MEM_HOST, .places = p->t, .n_places = TENSORS };
	struct ist_error err;

	ist_error_init(&err);
	p->far = far;
	p->d = far && !is_real() ? far_device_new(opt) : NULL;
	if (p->d)
		assert_int_equal(ist_device_add(h->env, far_device_table(p->d), &err), IST_OK);
	for (uint32_t i = 0; i < TENSORS; i++) {
		void *at = NULL;

		name_of(i, p->names[i]);
		if (far && bytes_of(i) > 0)
			assert_int_equal(ist_device_alloc(h->env, IST_MEM_CUDA, 0, bytes_of(i), &at, &err), IST_OK);
		else if (bytes_of(i) > 0)
			at = calloc(1, bytes_of(i));
		p->t[i] = (struct ist_tensor){ .struct_size = sizeof(p->t[i]), .name = p->names[i], .dtype = "U8", .rank = 1, .shape = { bytes_of(i) },
			.bytes = bytes_of(i), .addr = at, .mem = args.mem };
	}
	assert_int_equal(ist_sink_open_at(h->env, "mem:", &args, &p->sink, &err), IST_OK);
}

static void
check_places(struct help *h, const struct places *p)
{
	for (uint32_t i = 0; i < TENSORS; i++) {
		uint8_t *have = malloc(bytes_of(i) + 1);

		if (p->far && bytes_of(i) > 0)
			assert_int_equal(ist_device_copy(h->env, IST_MEM_CUDA, 0, have, p->t[i].addr, bytes_of(i), NULL), IST_OK);
		else if (bytes_of(i) > 0)
			memcpy(have, p->t[i].addr, bytes_of(i));
		check_bytes(i, have);
		free(have);
	}
}

static void
free_places(struct help *h, struct places *p)
{
	ist_sink_free(p->sink);
	for (uint32_t i = 0; i < TENSORS; i++) {
		void *at = (void *)(uintptr_t)p->t[i].addr;

		if (p->far && at)
			assert_int_equal(ist_device_free(h->env, IST_MEM_CUDA, 0, at), IST_OK);
		else
			free(at);
	}
}

static void
into_places(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = open_model(h);
	struct places *p = calloc(1, sizeof(*p));
	struct ist_error err;

	ist_error_init(&err);
	make_places(h, p, false, NULL);
	assert_int_equal(ist_checkpoint_load(ck, p->sink, &by_four, &err), IST_OK);
	check_places(h, p);
	free_places(h, p);
	free(p);
	ist_checkpoint_free(ck);
}

/* With an env of its own, since the double is the env's. */
static void
onto_a_device(void **state)
{
	static const struct far_device_options how[3] = { { .copies = 0 }, { .copies = 20 }, { .no_pin = true } };
	struct help *outer = *state, own = *outer, *h = &own;
	struct places *p = calloc(1, sizeof(*p));
	struct ist_checkpoint *ck;
	struct ist_error err;

	for (int k = 0; k < (is_real() ? 1 : 3); k++) {
		ist_error_init(&err);
		assert_int_equal(ist_env_new(NULL, &h->env, &err), IST_OK);
		ck = open_model(h);
		make_places(h, p, true, &how[k]);
		if (how[k].copies) {
			assert_int_equal(ist_checkpoint_load(ck, p->sink, &by_four, &err), IST_IO);
			far_device_options(p->d)->copies = 0;
		}
		for (uint32_t threads = 0; threads < 8; threads += 3) {
			struct ist_load_args args = { .struct_size = sizeof(args), .threads = threads, .run_bytes = threads == 3 ? RUN : 0 };

			assert_int_equal(ist_checkpoint_load(ck, p->sink, &args, &err), IST_OK);
			check_places(h, p);
		}
		free_places(h, p);
		ist_checkpoint_free(ck);
		ist_env_free(h->env);
		if (p->d)
			far_device_free(p->d); /* nothing is left on it */
	}
	free(p);
}

/* ---- what goes wrong ---- */

static void
what_does_not_fit(void **state)
{
	struct ist_load_args tiny = { .struct_size = sizeof(tiny), .run_bytes = 100 };
	struct ist_sink_args args = { .struct_size = sizeof(args), .n_places = 1 };
	uint8_t byte = 1;
	struct ist_tensor t = { .struct_size = sizeof(t), .name = "t00000", .dtype = "U8", .rank = 1, .shape = { 1 }, .bytes = 1, .addr = &byte };
	struct help *h = *state;
	struct ist_checkpoint *ck = open_model(h), *memory;
	struct ist_error err;
	struct ist_sink *sink;

	ist_error_init(&err);
	args.places = &t;
	assert_int_equal(ist_sink_open_at(h->env, "mem:", &args, &sink, &err), IST_OK);
	assert_int_equal(ist_checkpoint_load(ck, sink, NULL, &err), IST_MISSING_TENSOR);
	assert_string_equal(err.tensor, "t00001");
	ist_sink_free(sink);
	assert_int_equal(ist_sink_open(h->env, "null:", 0, &sink, &err), IST_OK);
	assert_int_equal(ist_checkpoint_load(ck, sink, &tiny, &err), IST_INVALID_ARGUMENT);
	assert_int_equal(ist_checkpoint_from_tensors(h->env, &t, 1, &memory, &err), IST_OK);
	assert_int_equal(ist_checkpoint_load(memory, sink, NULL, &err), IST_UNSUPPORTED);
	assert_int_not_equal(ist_checkpoint_load(ck, NULL, NULL, &err), IST_OK);
	assert_int_equal(ist_checkpoint_load(ck, sink, NULL, &err), IST_OK); /* it is well all the same */
	ist_checkpoint_free(memory);
	ist_sink_free(sink);
	ist_checkpoint_free(ck);
}

static void
a_file_that_changes(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = open_model(h);
	struct ist_error err;
	struct ist_sink *sink;

	ist_error_init(&err);
	assert_int_equal(ist_sink_open(h->env, help_path(h, "old"), 0, &sink, &err), IST_OK);
	assert_int_equal(ist_checkpoint_load(ck, sink, &by_four, &err), IST_OK);
	assert_int_equal(truncate(help_path(h, "model/a.safetensors"), 100000), 0);
	assert_int_equal(ist_checkpoint_load(ck, sink, &by_four, &err), IST_FILE_CHANGED);
	assert_non_null(strstr(err.detail, "a.safetensors"));
	assert_true(help_same_file(help_path(h, "model/b.safetensors"), help_path(h, "old/b.safetensors"))); /* it stands */
	ist_sink_free(sink);
	ist_checkpoint_free(ck);
	help_remove(help_path(h, "model"));
}

/* Each allocation fails in turn. */
static void
without_memory(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = open_model(h);
	struct ist_error err;
	struct ist_sink *sink;
	long live, n = 0;
	ist_err e;

	ist_error_init(&err);
	assert_int_equal(ist_sink_open(h->env, "null:", 0, &sink, &err), IST_OK);
	live = h->live;
	do {
		h->allocations = 0;
		h->fail_at = ++n;
		e = ist_checkpoint_load(ck, sink, &by_four, &err);
		assert_true(e == IST_OK || e == IST_NO_MEMORY);
		assert_int_equal(h->live, live);
	} while (h->allocations >= n);
	h->fail_at = 0;
	assert_true(n > 5);
	assert_int_equal(e, IST_OK);
	ist_sink_free(sink);
	ist_checkpoint_free(ck);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(into_memory),
		cmocka_unit_test(into_a_folder),
		cmocka_unit_test(into_places),
		cmocka_unit_test(onto_a_device),
		cmocka_unit_test(what_does_not_fit),
		cmocka_unit_test(without_memory),
		cmocka_unit_test(a_file_that_changes),
	};

	return cmocka_run_group_tests(tests, help_setup, help_teardown);
}
