/* SPDX-License-Identifier: Apache-2.0
 *
 * sink_test.c - where updates end: equal files, one step from old to new, nothing left behind by failures and the dead.
 */
#include "ckpt_help.h"

#include "ckpt/checkpoint.h"
#include "ckpt/sink.h"

#include "base/memroom.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define TWO \
	"{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"v\":{\"dtype\":\"I16\",\"shape\":[2,2],\"data_offsets\":[4,12]}," \
	"\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[12,12]}}"
#define INDEX "{\"weight_map\":{\"w\":\"overlay.safetensors\",\"v\":\"base.safetensors\",\"e\":\"base.safetensors\"}}"
#define ONE "{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"

static const char *const all_files[] = { "base.safetensors", "overlay.safetensors", "model.safetensors.index.json", "config.json", "empty.txt" };

/* A folder of all that there can be: shards, a superseded tensor, an index, another file, an empty one. */
static struct ist_checkpoint *
source(struct help *h, const char *name)
{
	char text[512];
	struct ist_checkpoint *ck;

	mkdir(help_path(h, name), 0755);
	for (size_t i = 0; i < 5; i++) {
		snprintf(text, sizeof(text), "%s/%s/%s", h->dir, name, all_files[i]);
		if (i == 0)
			help_st(text, TWO, 12, 10);
		else if (i == 1)
			help_st(text, ONE, 4, 50);
		else if (i == 2)
			help_write(text, INDEX, sizeof(INDEX) - 1);
		else
			help_write(text, "{}", i == 3 ? 2 : 0);
	}
	assert_int_equal(ist_checkpoint_open(h->env, help_path(h, name), NULL, &ck, NULL), IST_OK);
	return ck;
}

static const uint8_t memory_bytes[6] = { 1, 2, 3, 4, 5, 6 };

static struct ist_checkpoint *
memory(struct help *h)
{
	struct ist_tensor t[3] = {
		{ .struct_size = sizeof(t[0]), .name = "x\"\\y", .dtype = "U8", .rank = 1, .shape = { 6 }, .bytes = 6, .addr = memory_bytes },
		{ .struct_size = sizeof(t[0]), .name = "e", .dtype = "F32", .rank = 2, .shape = { 2, 0 } },
		{ .struct_size = sizeof(t[0]), .name = "tied", .dtype = "I16", .rank = 1, .shape = { 3 }, .bytes = 6, .addr = memory_bytes },
	};
	struct ist_checkpoint *ck;

	assert_int_equal(ist_checkpoint_from_tensors(h->env, t, 3, &ck, NULL), IST_OK);
	return ck;
}

/* The payload, the last item first, three bytes at a time. */
static ist_err
feed(struct ist_sink *s, struct ist_checkpoint *ck, struct ist_error *err)
{
	const struct ist__manifest *m = ist__checkpoint_manifest(ck);
	ist_err e = IST_OK;

	for (uint64_t i = m->n_items; i-- > 0 && !e;)
		for (uint64_t at = 0; at < m->items[i].bytes && m->items[i].alias == IST__NO_ALIAS && !e; at += 3) {
			uint8_t b[3];
			uint64_t n = m->items[i].bytes - at < 3 ? m->items[i].bytes - at : 3;

			assert_int_equal(ist__checkpoint_fetch(ck, i, at, n, b, NULL), IST_OK);
			e = ist__sink_piece(s, i, at, b, n, err);
		}
	return e;
}

static ist_err
update(struct ist_sink *s, struct ist_checkpoint *ck, struct ist_error *err)
{
	ist_err e;

	ist_error_init(err);
	e = ist__sink_begin(s, ist__checkpoint_manifest(ck), 1, err);
	if (e)
		return e;
	e = feed(s, ck, err);
	if (!e)
		e = ist__sink_prepare(s, err);
	if (!e)
		return ist__sink_commit(s, 1, err);
	ist__sink_abort(s);
	return e;
}

static bool
same_folder(struct help *h, const char *a, const char *b)
{
	char x[512], y[512];
	bool same = true;

	for (size_t i = 0; i < 5 && same; i++) {
		snprintf(x, sizeof(x), "%s/%s/%s", h->dir, a, all_files[i]);
		snprintf(y, sizeof(y), "%s/%s/%s", h->dir, b, all_files[i]);
		same = help_same_file(x, y);
	}
	return same;
}

static struct ist_sink *
open_sink(struct help *h, const char *dest, uint32_t flags)
{
	struct ist_sink *s = NULL;
	struct ist_error err;

	ist_error_init(&err);
	if (ist_sink_open(h->env, dest, flags, &s, &err))
		fail_msg("%s: %s", dest, err.detail);
	return s;
}

static ist_err
open_code(struct help *h, const char *dest, uint32_t flags)
{
	struct ist_sink *s = NULL;
	ist_err e = ist_sink_open(h->env, dest, flags, &s, NULL);

	assert_true((e == IST_OK) == (s != NULL));
	ist_sink_free(s);
	return e;
}

/* ---- folders ---- */

static void
a_folder_becomes_equal(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = source(h, "src"), *got;
	struct ist_sink *s = open_sink(h, help_path(h, "dst"), 0);
	struct ist_error err;
	struct stat st;
	char one[33], two[33];
	mode_t mask = umask(027);

	assert_int_equal(update(s, ck, &err), IST_OK);
	umask(mask);
	assert_true(same_folder(h, "src", "dst"));
	assert_int_equal(help_count_entries(help_path(h, "dst")), 5);
	assert_int_equal(help_count_entries(h->dir), 2);
	assert_int_equal(stat(help_path(h, "dst"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0750);
	assert_int_equal(stat(help_path(h, "dst/config.json"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(ist_checkpoint_open(h->env, help_path(h, "dst"), NULL, &got, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, one, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_digest(got, IST_WHOLE, two, NULL), IST_OK);
	assert_string_equal(one, two);
	ist_checkpoint_free(got);
	/* again, over the old one, which somebody added a file to */
	help_write(help_path(h, "dst/notes.txt"), "x", 1);
	assert_int_equal(update(s, ck, &err), IST_OK);
	assert_true(same_folder(h, "src", "dst"));
	assert_int_equal(help_count_entries(help_path(h, "dst")), 5);
	assert_int_equal(help_count_entries(h->dir), 2);
	ist_sink_free(s);
	ist_checkpoint_free(ck);
}

static void
weights_only_leaves_the_rest(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = source(h, "src");
	struct ist_sink *s = open_sink(h, help_path(h, "dst/"), IST_SINK_WEIGHTS_ONLY);
	struct ist_error err;

	assert_int_equal(update(s, ck, &err), IST_OK);
	assert_int_equal(help_count_entries(help_path(h, "dst")), 3);
	assert_true(help_same_file(help_path(h, "src/base.safetensors"), help_path(h, "dst/base.safetensors")));
	assert_int_equal(access(help_path(h, "dst/config.json"), F_OK), -1);
	ist_sink_free(s);
	ist_checkpoint_free(ck);
}

static void
memory_becomes_one_file(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = memory(h), *got;
	struct ist_sink *s = open_sink(h, help_path(h, "dst"), 0);
	struct ist_tensor t = { .struct_size = sizeof(t) };
	struct ist_error err;
	char one[33], two[33];
	uint8_t back[6];
	size_t n;
	uint8_t *file;

	assert_int_equal(update(s, ck, &err), IST_OK);
	assert_int_equal(help_count_entries(help_path(h, "dst")), 1);
	assert_int_equal(ist_checkpoint_open(h->env, help_path(h, "dst/model.safetensors"), NULL, &got, &err), IST_OK);
	assert_int_equal(ist_checkpoint_count(got), 3);
	assert_int_equal(ist_checkpoint_bytes(got), 12); /* the alias has its own copy */
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(ist_checkpoint_tensor(got, i, &t, NULL), IST_OK);
		if (t.bytes) {
			assert_int_equal(ist_checkpoint_read(got, i, 0, 6, back, NULL), IST_OK);
			assert_memory_equal(back, memory_bytes, 6);
		}
	}
	assert_int_equal(ist_checkpoint_digest(ck, IST_WHOLE, one, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_digest(got, IST_WHOLE, two, NULL), IST_OK);
	assert_string_equal(one, two);
	file = help_slurp(help_path(h, "dst/model.safetensors"), &n);
	assert_int_equal(file[0] % 8, 0);
	free(file);
	ist_checkpoint_free(got);
	ist_sink_free(s);
	ist_checkpoint_free(ck);
}

static void
what_is_not_replaced(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = source(h, "src");
	struct ist_sink *s;
	struct ist_error err;

	assert_int_equal(mkdir(help_path(h, "empty"), 0755), 0);
	assert_int_equal(open_code(h, help_path(h, "empty"), 0), IST_OK);
	assert_int_equal(open_code(h, help_path(h, "empty"), IST_SINK_NO_REPLACE), IST_CONFLICT);
	assert_int_equal(open_code(h, help_path(h, "src"), IST_SINK_NO_REPLACE), IST_CONFLICT);
	assert_int_equal(open_code(h, help_path(h, "src"), 0), IST_OK);
	mkdir(help_path(h, "home"), 0755);
	help_write(help_path(h, "home/letter.txt"), "dear", 4);
	assert_int_equal(open_code(h, help_path(h, "home"), 0), IST_CONFLICT);
	help_st(help_path(h, "home/m.safetensors"), ONE, 4, 1);
	assert_int_equal(open_code(h, help_path(h, "home"), 0), IST_OK);
	mkdir(help_path(h, "home/folder"), 0755);
	assert_int_equal(open_code(h, help_path(h, "home"), 0), IST_CONFLICT);
	help_write(help_path(h, "plain"), "x", 1);
	assert_int_equal(open_code(h, help_path(h, "plain"), 0), IST_CONFLICT);
	assert_int_equal(symlink("nowhere", help_path(h, "dangling")), 0);
	assert_int_equal(open_code(h, help_path(h, "dangling"), 0), IST_CONFLICT);
	assert_int_equal(open_code(h, help_path(h, "no/where"), 0), IST_OK); /* made, and gone with a sink that brought nothing */
	assert_int_not_equal(access(help_path(h, "no"), F_OK), 0);
	assert_int_equal(open_code(h, help_path(h, "plain/no/where"), 0), IST_IO);
	assert_int_equal(open_code(h, "/", 0), IST_INVALID_ARGUMENT);
	assert_int_equal(open_code(h, "/proc/self", 0), IST_CONFLICT);
	assert_int_equal(open_code(h, "", 0), IST_INVALID_ARGUMENT);
	assert_int_equal(open_code(h, "mem:x", 0), IST_INVALID_ARGUMENT);
	assert_int_equal(open_code(h, "shm:", 0), IST_INVALID_ARGUMENT);
	assert_int_equal(open_code(h, "shm:../x", 0), IST_INVALID_ARGUMENT);
	assert_int_equal(open_code(h, help_path(h, "dst"), 8), IST_INVALID_ARGUMENT);

	/* taken between open and begin, and between prepare and commit */
	s = open_sink(h, help_path(h, "dst"), IST_SINK_NO_REPLACE);
	mkdir(help_path(h, "dst"), 0755);
	assert_int_equal(update(s, ck, &err), IST_CONFLICT);
	rmdir(help_path(h, "dst"));
	assert_int_equal(ist__sink_begin(s, ist__checkpoint_manifest(ck), 1, NULL), IST_OK);
	assert_int_equal(feed(s, ck, NULL), IST_OK);
	assert_int_equal(ist__sink_prepare(s, NULL), IST_OK);
	mkdir(help_path(h, "dst"), 0755);
	help_write(help_path(h, "dst/letter.txt"), "dear", 4);
	assert_int_equal(ist__sink_commit(s, 1, &err), IST_CONFLICT);
	assert_int_equal(access(help_path(h, "dst/letter.txt"), F_OK), 0);
	assert_int_equal(help_count_entries(help_path(h, "dst")), 1);
	assert_int_equal(help_count_entries(h->dir), 6);
	ist_sink_free(s);
	ist_checkpoint_free(ck);
}

static void
a_link_keeps_leading_there(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = source(h, "src");
	struct ist_sink *s;
	struct ist_error err;
	struct stat st;

	mkdir(help_path(h, "real"), 0755);
	assert_int_equal(symlink("real", help_path(h, "link")), 0);
	s = open_sink(h, help_path(h, "link"), 0);
	assert_int_equal(update(s, ck, &err), IST_OK);
	assert_int_equal(lstat(help_path(h, "link"), &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_true(same_folder(h, "src", "real"));
	ist_sink_free(s);
	ist_checkpoint_free(ck);
}

static void
failures_leave_nothing(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = source(h, "src");
	struct ist_sink *s = open_sink(h, help_path(h, "dst"), 0);
	const struct ist__manifest *m = ist__checkpoint_manifest(ck);
	struct ist_error err;

	assert_int_equal(ist__sink_begin(s, m, 1, &err), IST_OK);
	assert_int_equal(help_count_entries(h->dir), 2);
	assert_int_equal(feed(s, ck, &err), IST_OK);
	assert_false(ist__sink_abort(s)); /* the old version, none, still stands */
	assert_int_equal(help_count_entries(h->dir), 1);
	assert_int_equal(ist__sink_begin(s, m, 1, &err), IST_OK);
	assert_int_equal(ist__sink_begin(s, m, 1, &err), IST_BAD_STATE);
	assert_int_equal(ist__sink_commit(s, 1, &err), IST_BAD_STATE);
	assert_int_equal(ist__sink_piece(s, m->n_items, 0, "x", 1, &err), IST_INVALID_ARGUMENT);
	assert_int_equal(ist__sink_piece(s, 0, m->items[0].bytes, "x", 1, &err), IST_INVALID_ARGUMENT);
	assert_int_equal(ist__sink_prepare(s, &err), IST_OK);
	assert_int_equal(ist__sink_piece(s, 0, 0, "x", 1, &err), IST_BAD_STATE);
	ist_sink_free(s); /* in mid-update */
	assert_int_equal(help_count_entries(h->dir), 1);
	assert_int_equal(ist_sink_tensor(s, "w", &(struct ist_tensor){ .struct_size = sizeof(struct ist_tensor) }, &err), IST_BAD_HANDLE);
	ist_checkpoint_free(ck);
}

/* A child that has begun and waits to be killed. */
static pid_t
begin_in_child(struct help *h, const char *dest, struct ist_checkpoint *ck)
{
	int ready[2];
	char c;
	pid_t pid;

	(void)ck;
	assert_int_equal(pipe(ready), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct ist_env *env;
		struct ist_checkpoint *mine;
		struct ist_sink *s;

		if (ist_env_new(NULL, &env, NULL) || ist_checkpoint_open(env, help_path(h, "src"), NULL, &mine, NULL) ||
		    ist_sink_open(env, dest, 0, &s, NULL) || ist__sink_begin(s, ist__checkpoint_manifest(mine), 1, NULL) ||
		    feed(s, mine, NULL) || ist__sink_prepare(s, NULL) || write(ready[1], "r", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &c, 1), 1);
	close(ready[0]);
	return pid;
}

static void
what_the_dead_left_is_removed(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = source(h, "src");
	char dest[128];
	pid_t pid;

	snprintf(dest, sizeof(dest), "%s/dst", h->dir);
	pid = begin_in_child(h, dest, ck);
	assert_int_equal(help_count_entries(h->dir), 2);
	assert_int_equal(open_code(h, dest, 0), IST_OK); /* the living keep theirs */
	assert_int_equal(help_count_entries(h->dir), 2);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(help_count_entries(h->dir), 2);
	/* names that only look alike stay */
	mkdir(help_path(h, ".dst.isthmus-12-short"), 0755);
	mkdir(help_path(h, ".dst.isthmus-0123456789abcdef"), 0755);
	mkdir(help_path(h, ".other.isthmus-12-0123456789abcdef"), 0755);
	assert_int_equal(open_code(h, dest, 0), IST_OK);
	assert_int_equal(help_count_entries(h->dir), 4);
	ist_checkpoint_free(ck);
}

/* Run by a child in a mount namespace of its own: a file system of 1 MiB. 77: not possible here. */
static int
on_a_small_disk(struct help *h)
{
	struct ist_env *env;
	struct ist_checkpoint *ck;
	struct ist_sink *s;
	struct ist_error err;
	static uint8_t big[4 << 20];
	struct ist_tensor t = { .struct_size = sizeof(t), .name = "big", .dtype = "U8", .rank = 1, .shape = { sizeof(big) }, .bytes = sizeof(big), .addr = big };
	const char *const dests[] = { help_path(h, "mnt/dst"), "shm:ist-test-small" };

	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mkdir(help_path(h, "mnt"), 0755) ||
	    mount("tmpfs", help_path(h, "mnt"), "tmpfs", 0, "size=1m") || mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m"))
		return 77;
	if (ist_env_new(NULL, &env, NULL) || ist_checkpoint_from_tensors(env, &t, 1, &ck, NULL))
		return 1;
	for (int i = 0; i < 2; i++) {
		ist_error_init(&err);
		if (ist_sink_open(env, dests[i], 0, &s, &err))
			return 2;
		if (ist__sink_begin(s, ist__checkpoint_manifest(ck), 1, &err) != IST_NO_SPACE || err.sys != ENOSPC)
			return 3;
		if (help_count_entries(i ? "/dev/shm" : help_path(h, "mnt")) != 0)
			return 4;
		ist_sink_free(s);
	}
	if (ist_sink_open(env, help_path(h, "mnt"), 0, &s, &err) != IST_UNSUPPORTED)
		return 5;
	ist_checkpoint_free(ck);
	ist_env_free(env);
	return 0;
}

static void
no_space_is_said_before_the_first_byte(void **state)
{
	struct help *h = *state;
	int status;
	pid_t pid = fork();

	if (pid == 0)
		_exit(on_a_small_disk(h));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* The limit on file sizes would be a signal in the host. */
static void
a_file_size_limit_is_no_signal(void **state)
{
	struct help *h = *state;
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct rlimit small = { 16, 16 };
		struct ist_env *env;
		struct ist_checkpoint *ck;
		struct ist_sink *s;
		struct ist_tensor t = { .struct_size = sizeof(t), .name = "x", .dtype = "U8", .rank = 1, .shape = { 6 }, .bytes = 6, .addr = memory_bytes };

		if (ist_env_new(NULL, &env, NULL) || ist_checkpoint_from_tensors(env, &t, 1, &ck, NULL) || setrlimit(RLIMIT_FSIZE, &small) ||
		    ist_sink_open(env, help_path(h, "dst"), 0, &s, NULL))
			_exit(1);
		_exit(ist__sink_begin(s, ist__checkpoint_manifest(ck), 1, NULL) == IST_NO_SPACE ? 0 : 2);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- limits of control groups ---- */

static void
text_at(struct help *h, const char *name, const char *text)
{
	help_write(help_path(h, name), text, strlen(text));
}

static void
the_tightest_group_counts(void **state)
{
	struct help *h = *state;
	uint64_t limit = 1, room = 2;

	mkdir(help_path(h, "fs"), 0755);
	mkdir(help_path(h, "fs/a"), 0755);
	mkdir(help_path(h, "fs/a/b"), 0755);
	text_at(h, "cgroup", "0::/a/b\n");
	assert_false(ist__memory_room_at(help_path(h, "cgroup"), help_path(h, "fs"), &limit, &room));
	text_at(h, "fs/a/b/memory.max", "max\n");
	assert_false(ist__memory_room_at(help_path(h, "cgroup"), help_path(h, "fs"), &limit, &room));
	assert_int_equal(limit, 1);
	text_at(h, "fs/a/memory.max", "1000\n");
	text_at(h, "fs/a/memory.stat", "anon 100\nfile 700\nkernel 20\nshmem 80\nanon_thp 999\n");
	assert_true(ist__memory_room_at(help_path(h, "cgroup"), help_path(h, "fs"), &limit, &room));
	assert_int_equal(limit, 1000);
	assert_int_equal(room, 800);
	text_at(h, "fs/a/b/memory.max", "500\n");
	text_at(h, "fs/a/b/memory.stat", "anon 600\n");
	assert_true(ist__memory_room_at(help_path(h, "cgroup"), help_path(h, "fs"), &limit, &room));
	assert_int_equal(limit, 500);
	assert_int_equal(room, 0);
	/* the first version, beside an empty second one */
	mkdir(help_path(h, "fs/memory"), 0755);
	mkdir(help_path(h, "fs/memory/c"), 0755);
	text_at(h, "cgroup", "5:cpu:/x\n4:hugetlb,memory:/c\n0::/\n");
	text_at(h, "fs/memory/c/memory.limit_in_bytes", "9223372036854771712\n");
	assert_false(ist__memory_room_at(help_path(h, "cgroup"), help_path(h, "fs"), &limit, &room));
	text_at(h, "fs/memory/c/memory.limit_in_bytes", "4096\n");
	text_at(h, "fs/memory/c/memory.stat", "rss 7\ntotal_rss 1000\ntotal_shmem 96\n");
	assert_true(ist__memory_room_at(help_path(h, "cgroup"), help_path(h, "fs"), &limit, &room));
	assert_int_equal(limit, 4096);
	assert_int_equal(room, 3000);
	text_at(h, "cgroup", "nonsense\n::\n:\n1:memory\n");
	ist__memory_room_at(help_path(h, "cgroup"), help_path(h, "fs"), &limit, &room);
	assert_false(ist__memory_room_at(help_path(h, "nothing"), help_path(h, "fs"), &limit, &room));
}

/* ---- shared memory ---- */

static void
shm_is_one_file(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = source(h, "src"), *mem = memory(h), *got;
	char dest[64], path[64], one[33], two[33];
	struct ist_sink *s;
	struct ist_error err;
	struct stat st;
	pid_t pid;

	snprintf(dest, sizeof(dest), "shm:ist-test-%d", (int)getpid());
	snprintf(path, sizeof(path), "/dev/shm/%s", dest + 4);
	s = open_sink(h, dest, 0);
	for (int pass = 0; pass < 2; pass++) {
		assert_int_equal(update(s, pass ? mem : ck, &err), IST_OK);
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_mode & 07777, 0600);
		assert_int_equal(help_count_like("/dev/shm", dest + 4), 1);
		assert_int_equal(ist_checkpoint_open(h->env, path, NULL, &got, NULL), IST_OK);
		assert_int_equal(ist_checkpoint_digest(pass ? mem : ck, IST_WHOLE, one, NULL), IST_OK);
		assert_int_equal(ist_checkpoint_digest(got, IST_WHOLE, two, NULL), IST_OK);
		assert_string_equal(one, two);
		ist_checkpoint_free(got);
	}
	assert_int_equal(open_code(h, dest, IST_SINK_NO_REPLACE), IST_CONFLICT);
	ist_sink_free(s);
	help_write(path, "somebody else's", 15);
	assert_int_equal(open_code(h, dest, 0), IST_CONFLICT);
	unlink(path);
	/* killed when everything was ready: the kernel takes it back */
	pid = begin_in_child(h, dest, ck);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(help_count_like("/dev/shm", dest + 4), 0);
	ist_checkpoint_free(ck);
	ist_checkpoint_free(mem);
}

/* ---- memory ---- */

static void
mem_keeps_the_old_until_commit(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = source(h, "src"), *mem = memory(h);
	struct ist_sink *s = open_sink(h, "mem:", 0);
	struct ist_tensor t = { .struct_size = sizeof(t) }, u = { .struct_size = sizeof(u) };
	struct ist_error err;

	assert_int_equal(ist_sink_tensor(s, "w", &t, &err), IST_BAD_STATE);
	assert_int_equal(update(s, ck, &err), IST_OK);
	assert_int_equal(ist_sink_tensor(s, "w", &t, &err), IST_OK);
	assert_int_equal((uintptr_t)t.addr % 256, 0);
	assert_int_equal(*(const uint8_t *)t.addr, 50);
	assert_int_equal(ist_sink_tensor(s, "nobody", &t, &err), IST_MISSING_TENSOR);
	assert_int_equal(ist_sink_tensor(s, "e", &t, &err), IST_OK);
	assert_int_equal(t.bytes, 0);
	assert_non_null(t.addr);

	assert_int_equal(ist__sink_begin(s, ist__checkpoint_manifest(mem), 2, &err), IST_OK);
	assert_int_equal(feed(s, mem, &err), IST_OK);
	assert_int_equal(ist_sink_tensor(s, "w", &t, &err), IST_OK);
	assert_int_equal(*(const uint8_t *)t.addr, 50);
	assert_false(ist__sink_abort(s));
	assert_int_equal(ist_sink_tensor(s, "w", &t, &err), IST_OK);
	assert_int_equal(*(const uint8_t *)t.addr, 50);

	assert_int_equal(update(s, mem, &err), IST_OK);
	assert_int_equal(ist_sink_tensor(s, "w", &t, &err), IST_MISSING_TENSOR);
	assert_int_equal(ist_sink_tensor(s, "x\"\\y", &t, &err), IST_OK);
	assert_int_equal(ist_sink_tensor(s, "tied", &u, &err), IST_OK);
	assert_ptr_equal(t.addr, u.addr);
	assert_string_equal(u.alias_of, "x\"\\y");
	assert_memory_equal(u.addr, memory_bytes, 6);
	ist_sink_free(s);

	s = open_sink(h, "null:", 0);
	assert_int_equal(update(s, ck, &err), IST_OK);
	assert_int_equal(ist_sink_tensor(s, "w", &t, &err), IST_UNSUPPORTED);
	ist_sink_free(s);
	ist_checkpoint_free(ck);
	ist_checkpoint_free(mem);
}

/* ---- a consumer's own ---- */

struct consumer {
	char calls[256];
	uint8_t bytes[8][256];
	uint64_t n, raw;
	uint32_t dirty;
	ist_err begin_code, piece_code;
};

static ist_err
on_begin(void *ctx, const struct ist_tensor *tensors, uint64_t n, uint64_t version, struct ist_error *err)
{
	struct consumer *c = ctx;

	assert_int_equal(version, 1);
	strcat(c->calls, "b");
	c->n = n;
	for (uint64_t i = 0; i < n; i++) {
		assert_int_equal(tensors[i].struct_size, sizeof(tensors[i]));
		c->raw += !tensors[i].dtype[0];
	}
	if (c->begin_code) {
		err->code = c->begin_code;
		snprintf(err->detail, sizeof(err->detail), "not with me");
	}
	return c->begin_code;
}

static ist_err
on_piece(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct consumer *c = ctx;

	(void)err;
	assert_true(index < c->n && index < 8 && offset + bytes <= sizeof(c->bytes[0]));
	memcpy(c->bytes[index] + offset, addr, bytes);
	return c->piece_code;
}

static ist_err
on_prepare(void *ctx, struct ist_error *err)
{
	(void)err;
	strcat(((struct consumer *)ctx)->calls, "p");
	return IST_OK;
}

static void
on_commit(void *ctx, uint64_t version)
{
	(void)version;
	strcat(((struct consumer *)ctx)->calls, "c");
}

static void
on_abort(void *ctx, uint32_t dirty)
{
	strcat(((struct consumer *)ctx)->calls, "a");
	((struct consumer *)ctx)->dirty = dirty;
}

static void
custom_sinks(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = source(h, "src"), *mem = memory(h);
	struct consumer c = { 0 };
	struct ist_sink_ops ops = { .struct_size = sizeof(ops), .ctx = &c, .begin = on_begin, .piece = on_piece, .prepare = on_prepare,
		.commit = on_commit, .abort = on_abort }, nothing = { .struct_size = sizeof(nothing) };
	struct ist_sink *s;
	struct ist_error err;

	assert_int_equal(ist_sink_custom(h->env, &ops, &s, NULL), IST_OK);
	assert_int_equal(update(s, mem, &err), IST_OK);
	assert_string_equal(c.calls, "bpc");
	assert_int_equal(c.n, 3);
	assert_int_equal(c.raw, 0);
	assert_memory_equal(c.bytes[0], memory_bytes, 6);
	assert_memory_equal(c.bytes[2], memory_bytes, 6); /* the alias too */
	c = (struct consumer){ .piece_code = IST_NO_SPACE };
	assert_int_equal(update(s, ck, &err), IST_NO_SPACE);
	assert_string_equal(c.calls, "ba");
	assert_int_equal(c.dirty, 0);
	assert_int_equal(err.code, IST_NO_SPACE);
	assert_true(err.detail[0]);
	c = (struct consumer){ .begin_code = IST_DTYPE_MISMATCH };
	assert_int_equal(update(s, ck, &err), IST_DTYPE_MISMATCH);
	assert_string_equal(err.detail, "not with me");
	assert_string_equal(c.calls, "b");
	ist_sink_free(s);

	ops.in_place = 1;
	ops.raw_files = 1;
	c = (struct consumer){ .piece_code = IST_IO };
	assert_int_equal(ist_sink_custom(h->env, &ops, &s, NULL), IST_OK);
	assert_int_equal(ist__sink_begin(s, ist__checkpoint_manifest(ck), 1, NULL), IST_OK);
	assert_int_equal(c.n, ist__checkpoint_manifest(ck)->n_items);
	assert_int_equal(c.raw, c.n - 3);
	assert_false(ist__sink_abort(s)); /* before the first piece */
	assert_int_equal(ist__sink_begin(s, ist__checkpoint_manifest(ck), 1, NULL), IST_OK);
	assert_int_equal(feed(s, ck, NULL), IST_IO);
	assert_true(ist__sink_abort(s));
	assert_int_equal(c.dirty, 1);
	ist_sink_free(s);

	assert_int_equal(ist_sink_custom(h->env, &nothing, &s, NULL), IST_OK);
	assert_int_equal(update(s, ck, &err), IST_OK);
	ist_sink_free(s);
	ist_checkpoint_free(ck);
	ist_checkpoint_free(mem);
}

/* ---- no memory ---- */

static void
every_allocation_fails_once(void **state)
{
	struct help *h = *state;
	struct ist_checkpoint *ck = source(h, "src"), *mem = memory(h);
	char dir[128], shm[64];
	const char *const dests[] = { dir, shm, "mem:" };
	struct ist_sink *s;
	struct ist_error err;

	snprintf(dir, sizeof(dir), "%s/dst", h->dir);
	snprintf(shm, sizeof(shm), "shm:ist-test-%d", (int)getpid());
	for (int which = 0; which < 6; which++)
		for (long n = 1;; n++) {
			ist_err e;

			assert_true(n < 1000);
			h->allocations = 0;
			h->fail_at = n;
			s = NULL;
			e = ist_sink_open(h->env, dests[which / 2], 0, &s, &err);
			if (!e)
				e = update(s, which % 2 ? mem : ck, &err);
			if (!e && h->allocations >= n)
				fail_msg("%s: allocation %ld failed unnoticed", dests[which / 2], n);
			h->fail_at = 0;
			if (e) {
				assert_int_equal(e, IST_NO_MEMORY);
				assert_int_equal(help_count_entries(h->dir), which < 2 ? which == 1 ? 2 : 1 : 2);
			}
			ist_sink_free(s);
			if (!e)
				break;
		}
	snprintf(dir, sizeof(dir), "/dev/shm/%s", shm + 4);
	unlink(dir);
	ist_checkpoint_free(ck);
	ist_checkpoint_free(mem);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_folder_becomes_equal, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(weights_only_leaves_the_rest, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(memory_becomes_one_file, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(what_is_not_replaced, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(a_link_keeps_leading_there, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(failures_leave_nothing, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(what_the_dead_left_is_removed, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(no_space_is_said_before_the_first_byte, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(a_file_size_limit_is_no_signal, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(the_tightest_group_counts, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(shm_is_one_file, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(mem_keeps_the_old_until_commit, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(custom_sinks, help_setup, help_teardown),
		cmocka_unit_test_setup_teardown(every_allocation_fails_once, help_setup, help_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
