/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_load.c - reading a checkpoint into memory, beside plain reads of the same files. One process, no group.
 */
#include "bench.h"
#include "make.h"
#include "scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <isthmus/sync.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE (UINT64_C(16) << 20)

struct load {
	const char *path;
	struct ist_checkpoint *ck;
	uint8_t *room;
	uint64_t plain_bytes;
};

static int
tensors_once(struct bench *b, void *arg)
{
	struct load *l = arg;
	struct ist_error err;

	ist_error_init(&err);
	for (uint64_t i = 0; i < ist_checkpoint_count(l->ck); i++) {
		struct ist_tensor t = { .struct_size = sizeof(t) };
		ist_err code = ist_checkpoint_tensor(l->ck, i, &t, &err);

		for (uint64_t at = 0; code == IST_OK && at < t.bytes; at += PIECE)
			code = ist_checkpoint_read(l->ck, i, at, t.bytes - at < PIECE ? t.bytes - at : PIECE, l->room, &err);
		if (code)
			return cli_fail(b->cli, &err);
	}
	return EXIT_DONE;
}

static int
read_file(struct bench *b, struct load *l, int dir, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	ssize_t n = 1;

	if (fd < 0)
		return cli_fail_sys(b->cli, IST_IO, errno, "bench", "%s", name);
	while (n > 0) {
		n = read(fd, l->room, PIECE);
		l->plain_bytes += n > 0 ? (uint64_t)n : 0;
	}
	close(fd);
	return n < 0 ? cli_fail_sys(b->cli, IST_IO, errno, "bench", "%s", name) : EXIT_DONE;
}

static int
plain_once(struct bench *b, void *arg)
{
	struct load *l = arg;
	DIR *d = opendir(l->path);
	struct dirent *e;
	int status = EXIT_DONE;

	l->plain_bytes = 0;
	if (!d)
		return read_file(b, l, AT_FDCWD, l->path);
	while (status == EXIT_DONE && (e = readdir(d)) != NULL) {
		size_t n = strlen(e->d_name);

		if (n > 12 && !strcmp(e->d_name + n - 12, ".safetensors"))
			status = read_file(b, l, dirfd(d), e->d_name);
	}
	closedir(d);
	return status;
}

static int
measure(struct bench *b, struct load *l)
{
	struct bench_row row = { .name = "read", .inner = 1, .once = plain_once, .arg = l };
	int status = plain_once(b, l);
	double best_s;

	row.bytes = l->plain_bytes;
	if (status == EXIT_DONE)
		status = bench_measure(b, &row);
	if (status != EXIT_DONE)
		return status;
	best_s = json_number_value(json_object_get(json_object_get(json_array_get(b->rows, 0), "seconds"), "min"));
	return bench_measure(b, &(struct bench_row){ .name = "load", .inner = 1, .once = tensors_once, .arg = l, .bytes = ist_checkpoint_bytes(l->ck),
		.limit_gbps = best_s > 0 ? (double)row.bytes / best_s / 1e9 : 0 });
}

int
bench_load(struct bench *b)
{
	struct load l = { .path = option_text(&b->cli->o, OPT_CHECKPOINT, NULL), .room = bench_buffer(PIECE) };
	struct scratch scratch = { .path = "" };
	char made[4200];
	struct ist_error err;
	int status = l.room ? session_env(&b->s, b->cli) : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");

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
	scratch_close(&scratch);
	free(l.room);
	return status;
}
