/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/folder.h"

#include "base/fail.h"
#include "base/openfd.h"
#include "ckpt/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define OP "checkpoint_open"

bool
ist__ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n >= m && !strcasecmp(text + n - m, end);
}

/* Weights in formats that are not ours: never taken along. */
static bool
other_weights(const char *name)
{
	static const char *const ends[] = { ".bin", ".pt", ".pth", ".gguf", ".ggml", ".h5", ".onnx", ".onnx_data", ".msgpack", ".ckpt",
		".npz", ".npy", ".tflite", ".pkl", ".pdparams", ".ot" };

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		if (ist__ends_with(name, ends[i]))
			return true;
	return false;
}

bool
ist__folder_add(struct ist__folder *f, const char *name, enum ist__role role)
{
	const char *copy = ist__arena_text(&f->arena, name, strlen(name));
	void *entries = f->entries;

	if (!copy || !ist__grow(f->ctx, &entries, &f->room, f->n + 1, sizeof(*f->entries)))
		return false;
	f->entries = entries;
	f->entries[f->n++] = (struct ist__folder_entry){ .name = copy, .role = role };
	return true;
}

static int
by_name(const void *a, const void *b)
{
	const struct ist__folder_entry *x = a, *y = b;

	return strcmp(x->name, y->name);
}

void
ist__folder_filter(struct ist__folder *f, bool (*keep)(void *ctx, const struct ist__folder_entry *entry), void *keep_ctx)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < f->n; i++)
		if (keep(keep_ctx, &f->entries[i]))
			f->entries[n++] = f->entries[i];
	f->n = n;
}

/* Regular files and links to them; one that can't be looked at, as a link to nothing, is left to whoever opens it. */
static bool
is_file(int dir, const char *name)
{
	struct stat st;

	return fstatat(dir, name, &st, 0) || S_ISREG(st.st_mode);
}

static ist_err
take(struct ist__folder *f, const char *name, struct ist_error *err)
{
	enum ist__role role = IST__ROLE_OTHER;

	if (other_weights(name) || !is_file(f->fd, name))
		return IST_OK;
	if (ist__ends_with(name, ".safetensors"))
		role = IST__ROLE_SHARD;
	else if (ist__ends_with(name, ".index.json"))
		role = IST__ROLE_INDEX;
	if (!ist__file_name_ok(name, strlen(name))) {
		if (role == IST__ROLE_SHARD)
			return ist__fail(err, IST_BAD_NAME, OP, "%s: a file's name is not UTF-8 or holds control characters", f->path);
		ist__log(f->ctx, 1, "file left behind, its name can't travel: %s", f->path);
		return IST_OK;
	}
	return ist__folder_add(f, name, role) ? IST_OK : ist__fail_memory(err, OP);
}

static ist_err
scan(struct ist__folder *f, struct ist_error *err)
{
	int fd = ist__open(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	ist_err e = IST_OK;
	struct dirent *d;

	if (!dir) {
		e = ist__fail_sys(err, IST_IO, errno, OP, "%s", f->path);
		if (fd >= 0)
			close(fd);
		return e;
	}
	for (errno = 0; !e && (d = readdir(dir)); errno = 0)
		if (strcmp(d->d_name, ".") && strcmp(d->d_name, ".."))
			e = take(f, d->d_name, err);
	if (!e && errno)
		e = ist__fail_sys(err, IST_IO, errno, OP, "%s", f->path);
	closedir(dir);
	if (!e && f->n > 0)
		qsort(f->entries, f->n, sizeof(*f->entries), by_name);
	return e;
}

ist_err
ist__folder_enter(const struct ist__ctx *ctx, const char *path, struct ist__folder *out, struct ist_error *err)
{
	struct ist__folder f = { .ctx = ctx, .path = path };

	f.fd = ist__open(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	if (f.fd < 0)
		return ist__fail_sys(err, IST_IO, errno, OP, "%s", path);
	ist__arena_init(&f.arena, ctx);
	*out = f;
	return IST_OK;
}

ist_err
ist__folder_scan(const struct ist__ctx *ctx, const char *path, struct ist__folder *out, struct ist_error *err)
{
	struct ist__folder f;
	ist_err e = ist__folder_enter(ctx, path, &f, err);

	if (e)
		return e;
	e = scan(&f, err);
	if (e)
		ist__folder_fini(&f);
	else
		*out = f;
	return e;
}

void
ist__folder_fini(struct ist__folder *f)
{
	if (!f->ctx)
		return;
	if (f->fd >= 0)
		close(f->fd);
	ist__free(f->ctx, f->entries);
	ist__arena_fini(&f->arena);
	memset(f, 0, sizeof(*f));
	f->fd = -1;
}

static ist_err
fail_missing(const struct ist__folder *f, const char *name, int sys, struct ist_error *err)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(f->fd, name, target, sizeof(target) - 1);

	if (n < 0)
		return ist__fail_sys(err, IST_MISSING_SHARD, sys, OP, "%s/%s", f->path, name);
	target[n] = 0;
	return ist__fail_sys(err, IST_MISSING_SHARD, sys, OP, "%s/%s is a link to %s, which can't be opened", f->path, name, target);
}

ist_err
ist__folder_open(const struct ist__folder *f, const char *name, int *out_fd, struct ist_error *err)
{
	int fd = ist__open(f->fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
	struct stat st;

	if (fd < 0 && (errno == ENOENT || errno == ELOOP || errno == ENOTDIR))
		return fail_missing(f, name, errno, err);
	if (fd < 0)
		return ist__fail_sys(err, IST_IO, errno, OP, "%s/%s", f->path, name);
	if (fstat(fd, &st)) {
		int sys = errno;

		close(fd);
		return ist__fail_sys(err, IST_IO, sys, OP, "%s/%s", f->path, name);
	}
	if (!S_ISREG(st.st_mode)) {
		close(fd);
		return ist__fail(err, IST_BAD_FORMAT, OP, "%s/%s is no regular file", f->path, name);
	}
	*out_fd = fd;
	return IST_OK;
}

/* ---- a folder with nothing to take ---- */

static bool
is_folder(int dir, const char *name)
{
	struct stat st;

	return !fstatat(dir, name, &st, 0) && S_ISDIR(st.st_mode);
}

/* The revision that refs/main names, else the first snapshot there is; false: none. */
static bool
snapshot(const struct ist__folder *f, char *to, size_t room)
{
	int fd = ist__open(f->fd, "refs/main", O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
	ssize_t n = fd < 0 ? -1 : read(fd, to, room - 1);
	DIR *dir = NULL;
	struct dirent *d;
	bool found = false;

	if (fd >= 0)
		close(fd);
	if (n > 0) {
		to[n] = 0;
		to[strcspn(to, "\r\n/ ")] = 0;
		if (to[0])
			return true;
	}
	fd = ist__open(f->fd, "snapshots", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir && fd >= 0)
		close(fd);
	while (dir && !found && (d = readdir(dir))) {
		found = d->d_name[0] != '.';
		if (found)
			snprintf(to, room, "%s", d->d_name);
	}
	if (dir)
		closedir(dir);
	return found;
}

static unsigned
count_incomplete(int dir, const char *name)
{
	int fd = ist__open(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	unsigned n = 0;

	if (!d && fd >= 0)
		close(fd);
	while (d && (entry = readdir(d)))
		n += ist__ends_with(entry->d_name, ".incomplete");
	if (d)
		closedir(d);
	return n;
}

ist_err
ist__folder_explain(const struct ist__folder *f, struct ist_error *err)
{
	char revision[128];
	unsigned unfinished;

	if (is_folder(f->fd, "snapshots") && is_folder(f->fd, "blobs")) {
		unfinished = count_incomplete(f->fd, "blobs");
		if (!snapshot(f, revision, sizeof(revision)))
			return ist__fail(err, IST_MISSING_SHARD, OP, "%s is a hub cache without a snapshot; %u downloads are unfinished", f->path, unfinished);
		ist__fail(err, IST_BAD_FORMAT, OP, "%s is a whole hub cache; a checkpoint is %s/snapshots/%s", f->path, f->path, revision);
		ist__fail_next(err, "give %s/snapshots/%s", f->path, revision);
		return IST_BAD_FORMAT;
	}
	if (is_folder(f->fd, "../../blobs") && is_folder(f->fd, "../../snapshots")) {
		unfinished = count_incomplete(f->fd, "../../blobs");
		return ist__fail(err, IST_MISSING_SHARD, OP, "%s is a snapshot without safetensors files; %u downloads are unfinished", f->path, unfinished);
	}
	return ist__fail(err, IST_NOT_SAFETENSORS, OP, "%s holds no .safetensors file and no index of such files", f->path);
}
