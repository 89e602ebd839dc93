/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_load.c - reading a checkpoint into memory, beside plain reads of the same files, or onto a device. One process, no group.
 */
#include "bench.h"
#include "make.h"
#include "scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <isthmus/sync.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE (UINT64_C(16) << 20)
#define SMALL (UINT64_C(256) << 10) /* stays in the nearest caches */

struct file {
	char *name;
	int fd;
	uint64_t bytes;
	uint8_t *map;
};

struct load {
	const char *path;
	struct ist_checkpoint *ck;
	uint8_t *room;
	struct file *files;
	size_t n;
	uint64_t bytes;        /* of all of them */
};

/* Where a page of a mapping is gone, the kernel sends SIGBUS to whoever reads it: to this thread. */
static sigjmp_buf page_gone;

static void
on_bus(int sig)
{
	(void)sig;
	siglongjmp(page_gone, 1);
}

static int
fail_shrunk(const struct bench *b, const struct file *f)
{
	return cli_fail_code(b->cli, IST_IO, "bench", "%s has become shorter than the %llu bytes that it had", f->name, (unsigned long long)f->bytes);
}

static int
tensors_once(struct bench *b, void *arg)
{
	struct load *l = arg;
	int status = EXIT_DONE;
	struct ist_error err;

	ist_error_init(&err);
	for (uint64_t i = 0; status == EXIT_DONE && i < ist_checkpoint_count(l->ck); i++) {
		struct ist_tensor t = { .struct_size = sizeof(t) };
		ist_err code = ist_checkpoint_tensor(l->ck, i, &t, &err);

		for (uint64_t at = 0; code == IST_OK && status == EXIT_DONE && at < t.bytes; at += PIECE) {
			code = ist_checkpoint_read(l->ck, i, at, t.bytes - at < PIECE ? t.bytes - at : PIECE, l->room, &err);
			status = bench_goes_on(b);
		}
		if (code)
			return cli_fail(b->cli, &err);
	}
	return status;
}

static int
add_file(struct bench *b, struct load *l, int dir, const char *name)
{
	struct file f = { .name = strdup(name), .fd = (int)TEMP_FAILURE_RETRY(openat(dir, name, O_RDONLY | O_CLOEXEC)) }, *more = realloc(l->files, (l->n + 1) * sizeof(*more));
	struct stat st;

	if (more)
		l->files = more;
	if (f.fd < 0 || !f.name || !more || fstat(f.fd, &st)) {
		int sys = errno;

		if (f.fd >= 0)
			close(f.fd);
		free(f.name);
		return cli_fail_sys(b->cli, IST_IO, sys, "bench", "%s", name);
	}
	f.bytes = (uint64_t)st.st_size;
	f.map = f.bytes ? mmap(NULL, f.bytes, PROT_READ, MAP_SHARED, f.fd, 0) : MAP_FAILED;
	l->files[l->n++] = f;
	l->bytes += f.bytes;
	return EXIT_DONE;
}

static int
add_files(struct bench *b, struct load *l)
{
	DIR *d = opendir(l->path);
	struct dirent *e;
	int status = EXIT_DONE;

	if (!d)
		return add_file(b, l, AT_FDCWD, l->path);
	while (status == EXIT_DONE && (e = readdir(d)) != NULL) {
		size_t n = strlen(e->d_name);

		if (n > 12 && !strcmp(e->d_name + n - 12, ".safetensors"))
			status = add_file(b, l, dirfd(d), e->d_name);
	}
	closedir(d);
	return status;
}

static void
close_files(struct load *l)
{
	for (size_t i = 0; i < l->n; i++) {
		if (l->files[i].map != MAP_FAILED)
			munmap(l->files[i].map, l->files[i].bytes);
		close(l->files[i].fd);
		free(l->files[i].name);
	}
	free(l->files);
}

static int
read_once(struct bench *b, void *arg)
{
	struct load *l = arg;
	int status = EXIT_DONE;

	for (size_t i = 0; i < l->n; i++) {
		ssize_t n = 1;

		for (uint64_t at = 0; status == EXIT_DONE && n > 0 && at < l->files[i].bytes; at += (uint64_t)n) {
			n = pread(l->files[i].fd, l->room, PIECE, (off_t)at);
			if (n < 0)
				return cli_fail_sys(b->cli, IST_IO, errno, "bench", "%s", l->files[i].name);
			if (n == 0)
				return fail_shrunk(b, &l->files[i]);
			status = bench_goes_on(b);
		}
	}
	return status;
}

static int
copy_file(struct bench *b, struct load *l, const struct file *f)
{
	int status = EXIT_DONE;

	if (sigsetjmp(page_gone, 1))
		return fail_shrunk(b, f);
	for (uint64_t at = 0; status == EXIT_DONE && at < f->bytes; at += SMALL) {
		memcpy(l->room, f->map + at, f->bytes - at < SMALL ? f->bytes - at : SMALL);
		if (at % PIECE == 0)
			status = bench_goes_on(b);
	}
	return status;
}

/* The mapping stays; its pages are touched by the sample that is not counted. */
static int
map_once(struct bench *b, void *arg)
{
	struct sigaction ours = { .sa_handler = on_bus }, before;
	struct load *l = arg;
	int status = EXIT_DONE;

	sigaction(SIGBUS, &ours, &before);
	for (size_t i = 0; status == EXIT_DONE && i < l->n; i++)
		if (l->files[i].map != MAP_FAILED)
			status = copy_file(b, l, &l->files[i]);
	sigaction(SIGBUS, &before, NULL);
	return status;
}

/* Best of the rows so far, in bytes a second / 10^9. */
static double
best_gbps(const struct bench *b, uint64_t bytes)
{
	double best = 0, s;
	json_t *row;
	size_t i;

	json_array_foreach(b->rows, i, row) {
		s = json_number_value(json_object_get(json_object_get(row, "seconds"), "min"));
		best = s > 0 && (double)bytes / s / 1e9 > best ? (double)bytes / s / 1e9 : best;
	}
	return best;
}

/* The files are in memory: what is measured is the way from there to the caller, by read, from a map, and by the library. A
 * copy from a map to where it stays in the cache is what nothing beats; a caller who wants the bytes in memory can't have it. */
static int
measure(struct bench *b, struct load *l)
{
	struct bench_row row = { .name = "read", .inner = 1, .once = read_once, .arg = l };
	int status = b->s.mem == IST_MEM_HOST ? add_files(b, l) : bench_load_into(b, l->ck, 0);

	if (b->s.mem != IST_MEM_HOST)
		return status;
	row.bytes = l->bytes;
	if (status == EXIT_DONE)
		status = bench_measure(b, &row);
	row.name = "map";
	row.once = map_once;
	if (status == EXIT_DONE)
		status = bench_measure(b, &row);
	if (status != EXIT_DONE)
		return status;
	status = bench_measure(b, &(struct bench_row){ .name = "load", .inner = 1, .once = tensors_once, .arg = l, .bytes = ist_checkpoint_bytes(l->ck),
		.limit_gbps = best_gbps(b, l->bytes) });
	return status == EXIT_DONE ? bench_load_into(b, l->ck, 0) : status;
}

int
bench_load(struct bench *b)
{
	struct load l = { .path = option_text(&b->cli->o, OPT_CHECKPOINT, NULL), .room = bench_buffer(PIECE) };
	struct scratch scratch = { .path = "" };
	char made[4200];
	struct ist_error err;
	int status = l.room ? session_plan_device(&b->s, b->cli) : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");

	if (status == EXIT_DONE)
		status = session_env(&b->s, b->cli);

	if (status == EXIT_DONE && !l.path) {
		status = scratch_open(b->cli, &scratch, UINT64_C(400) << 20);
		snprintf(made, sizeof(made), "%s/model", scratch.path);
		l.path = made;
		if (status == EXIT_DONE)
			status = make_small(b->cli, made);
	}
	ist_error_init(&err);
	if (status == EXIT_DONE && ist_checkpoint_open(b->s.env, l.path, NULL, &l.ck, &err))
		status = cli_fail(b->cli, &err);
	if (status == EXIT_DONE)
		status = measure(b, &l);
	if (l.ck)
		ist_checkpoint_free(l.ck);
	close_files(&l);
	scratch_close(&scratch);
	free(l.room);
	return status;
}
