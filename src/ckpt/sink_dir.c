/* SPDX-License-Identifier: Apache-2.0
 *
 * sink_dir.c - a folder. Where every tensor came from a file, the files become what they were at the source, byte for byte;
 * else all tensors go into one model.safetensors.
 */
#include "ckpt/sink.h"

#include "base/fail.h"
#include "base/openfd.h"
#include "ckpt/folder.h"
#include "ckpt/outfile.h"
#include "ckpt/place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OP "sink"
#define ONE_NAME "model.safetensors"

struct dir {
	const struct ist__ctx *ctx;
	struct ist__place place;
	uint32_t flags;
	const struct ist__manifest *m;
	bool one;                   /* all in one file */
	struct ist__one_file file;
	int *fds;                   /* as m->files, or one; -1: left out */
	uint64_t n;
};

/* ---- what may be replaced ---- */

struct look {
	bool shard;
	uint64_t others;
	char strange[NAME_MAX + 1];
	int sys; /* why something could not be looked at */
};

static void
look_at(int fd, const char *name, struct look *l)
{
	struct stat st;

	if (l->strange[0])
		return;
	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW)) {
		if (errno != ENOENT) /* it may be anything: better not taken away */
			l->sys = errno;
	} else if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
		snprintf(l->strange, sizeof(l->strange), "%s", name);
	else if (ist__ends_with(name, ".safetensors"))
		l->shard = true;
	else
		l->others += (uint64_t)st.st_size;
}

/* Only what an update could have made is replaced: a folder that is empty, or one of files alone, with a safetensors file
 * among them and no more beside these than an update takes along. */
static ist_err
check_replaceable(const struct dir *s, struct ist_error *err)
{
	struct look l = { 0 };
	struct dirent *d;
	DIR *dir;
	bool empty = true;
	int sys;
	int fd = ist__open(s->place.parent, s->place.name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);

	if (fd < 0 && errno == ENOENT)
		return IST_OK;
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
		return ist__fail(err, IST_CONFLICT, OP, "%s exists and is no folder", s->place.path);
	if (fd < 0)
		return ist__fail_sys(err, IST_IO, errno, OP, "%s", s->place.path);
	dir = fdopendir(fd);
	if (!dir) {
		sys = errno;
		close(fd);
		return ist__fail_sys(err, IST_IO, sys, OP, "%s", s->place.path);
	}
	for (errno = 0; (d = readdir(dir)); errno = 0)
		if (strcmp(d->d_name, ".") && strcmp(d->d_name, "..")) {
			empty = false;
			look_at(fd, d->d_name, &l);
		}
	sys = errno ? errno : l.sys;
	closedir(dir);
	if (sys)
		return ist__fail_sys(err, IST_IO, sys, OP, "%s", s->place.path);
	if (!empty && l.strange[0])
		return ist__fail(err, IST_CONFLICT, OP, "%s holds \"%s\", which is no file of a checkpoint; it is not replaced", s->place.path, l.strange);
	if (!empty && (!l.shard || l.others > IST__OTHERS_MAX))
		return ist__fail(err, IST_CONFLICT, OP, "%s is no checkpoint (%s); it is not replaced", s->place.path,
			l.shard ? "too much beside the weights" : "no .safetensors file in it");
	return IST_OK;
}

static ist_err
check_place(const struct dir *s, struct ist_error *err)
{
	struct stat st, around;
	bool taken;
	ist_err e = ist__place_look(&s->place, &taken, &st, err);

	if (e || !taken)
		return e;
	if (s->flags & IST_SINK_NO_REPLACE)
		return ist__fail(err, IST_CONFLICT, OP, "%s exists", s->place.path);
	if (!fstat(s->place.parent, &around) && around.st_dev != st.st_dev) {
		ist__fail(err, IST_UNSUPPORTED, OP, "%s is a mount point, which can't be exchanged", s->place.path);
		ist__fail_next(err, "give a folder inside of it");
		return IST_UNSUPPORTED;
	}
	return check_replaceable(s, err);
}

/* ---- building ---- */

static void
close_files(struct dir *s)
{
	for (uint64_t i = 0; s->fds && i < s->n; i++)
		if (s->fds[i] >= 0)
			close(s->fds[i]);
	ist__free(s->ctx, s->fds);
	s->fds = NULL;
	s->n = 0;
	ist__one_file_fini(&s->file);
	s->m = NULL;
}

static ist_err
create(struct dir *s, uint64_t i, const char *name, struct ist_error *err)
{
	s->fds[i] = ist__open(s->place.temp_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (s->fds[i] < 0)
		return ist__fail_sys(err, IST_IO, errno, OP, "%s: %s", s->place.path, name);
	return IST_OK;
}

/* A file that holds more than others is wanted, whatever the flags say. */
static bool *
wanted_files(const struct dir *s, const struct ist__manifest *m)
{
	bool *wanted = ist__alloc(s->ctx, m->n_files * sizeof(*wanted));

	for (uint64_t i = 0; wanted && i < m->n_items; i++)
		if (m->items[i].file != IST__NO_FILE && (m->items[i].kind != IST__ITEM_OTHER || !(s->flags & IST_SINK_WEIGHTS_ONLY)))
			wanted[m->items[i].file] = true;
	for (uint64_t i = 0; wanted && i < m->n_files; i++) /* empty files have no items */
		if (m->files[i].bytes == 0 && !(s->flags & IST_SINK_WEIGHTS_ONLY))
			wanted[i] = true;
	return wanted;
}

static ist_err
create_files(struct dir *s, const struct ist__manifest *m, struct ist_error *err)
{
	bool *wanted = wanted_files(s, m);
	ist_err e = wanted ? IST_OK : ist__fail_memory(err, OP);

	for (uint64_t i = 0; i < m->n_files && !e; i++) {
		if (!wanted[i])
			continue;
		e = create(s, i, m->files[i].name, err);
		if (!e)
			e = ist__file_reserve(s->fds[i], m->files[i].bytes, m->files[i].name, err);
	}
	ist__free(s->ctx, wanted);
	return e;
}

static ist_err
create_one(struct dir *s, const struct ist__manifest *m, struct ist_error *err)
{
	ist_err e = create(s, 0, ONE_NAME, err);

	return e ? e : ist__one_file_begin(&s->file, m, s->fds[0], ONE_NAME, err);
}

static void
abort_it(void *self, bool dirty)
{
	struct dir *s = self;

	(void)dirty;
	close_files(s);
	ist__place_drop(&s->place);
}

static ist_err
begin(void *self, const struct ist__manifest *m, uint64_t version, struct ist_error *err)
{
	struct dir *s = self;
	ist_err e = check_place(s, err);

	(void)version;
	if (e)
		return e;
	s->m = m;
	s->one = !ist__manifest_has_files(m);
	s->n = s->one ? 1 : m->n_files;
	s->fds = ist__alloc(s->ctx, s->n * sizeof(*s->fds));
	if (!s->fds)
		return ist__fail_memory(err, OP);
	memset(s->fds, 0xFF, s->n * sizeof(*s->fds)); /* -1 */
	e = ist__place_make_folder(&s->place, err);
	if (!e)
		e = s->one ? create_one(s, m, err) : create_files(s, m, err);
	if (e)
		abort_it(s, false);
	return e;
}

static ist_err
piece(void *self, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	const struct dir *s = self;
	const struct ist__item *t = &s->m->items[item];

	if (s->one)
		return ist__item_is_raw(t) ? IST_OK : ist__one_file_piece(&s->file, item, offset, addr, bytes, ONE_NAME, err);
	if (s->fds[t->file] < 0)
		return IST_OK;
	return ist__file_write(s->fds[t->file], t->offset + offset, addr, bytes, s->m->files[t->file].name, err);
}

/* Slices are of memory, and so all is in one file. */
static ist_err
runs(void *self, uint64_t item, const struct ist__runs *r, const void *addr, struct ist_error *err)
{
	struct dir *s = self;

	return ist__one_file_runs(&s->file, item, r, addr, ONE_NAME, err);
}

static ist_err
prepare(void *self, struct ist_error *err)
{
	struct dir *s = self;
	ist_err e;

	for (uint64_t i = 0; i < s->n; i++)
		if (s->fds[i] >= 0 && fsync(s->fds[i]))
			return ist__fail_sys(err, IST_IO, errno, OP, "%s", s->place.path);
	e = ist__place_set_mode(&s->place, err);
	if (e)
		return e;
	if (fsync(s->place.temp_fd))
		return ist__fail_sys(err, IST_IO, errno, OP, "%s", s->place.path);
	return check_place(s, err);
}

static ist_err
commit(void *self, uint64_t version, struct ist_error *err)
{
	struct dir *s = self;
	ist_err e;

	(void)version;
	close_files(s);
	e = ist__place_swap(&s->place, s->flags & IST_SINK_NO_REPLACE, err);
	if (e)
		ist__place_drop(&s->place);
	return e;
}

static void
free_it(void *self)
{
	struct dir *s = self;

	close_files(s);
	ist__place_fini(&s->place);
	ist__free(s->ctx, s);
}

static const struct ist__sink_kind dir_kind = {
	.name = "directory",
	.begin = begin,
	.piece = piece,
	.runs = runs,
	.prepare = prepare,
	.commit = commit,
	.abort = abort_it,
	.free = free_it,
};

/* That nothing can be made there is told now, before others have met and wait for it. */
static ist_err
try_place(struct dir *s, struct ist_error *err)
{
	int fd = ist__open(s->place.parent, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	ist_err e;

	if (fd >= 0) { /* it has no name, and is gone with its descriptor */
		close(fd);
		return IST_OK;
	}
	/* not every file system has such files: a folder says what is wrong, if anything is */
	e = ist__place_make_folder(&s->place, err);
	ist__place_drop(&s->place);
	return e;
}

ist_err
ist__sink_dir_open(struct ist_env *env, const char *path, uint32_t flags, struct ist_sink **out, struct ist_error *err)
{
	struct dir *s = ist__alloc(ist__env_ctx(env), sizeof(*s));
	ist_err e;

	if (!s)
		return ist__fail_memory(err, "sink_open");
	s->ctx = ist__env_ctx(env);
	s->flags = flags;
	s->file.fd = -1;
	e = ist__place_open(s->ctx, path, true, &s->place, err);
	if (!e) {
		ist__place_sweep(&s->place);
		e = check_place(s, err);
	}
	if (!e)
		e = try_place(s, err);
	if (e) {
		free_it(s);
		return e;
	}
	return ist__sink_make(env, &dir_kind, s, true, false, out, err);
}
