/* SPDX-License-Identifier: Apache-2.0
 *
 * sink_shm.c - one safetensors file in /dev/shm. It has no name until it is whole, where the system can do that: the kernel
 * takes it back when its maker dies.
 */
#include "ckpt/sink.h"

#include "base/fail.h"
#include "base/openfd.h"
#include "ckpt/outfile.h"
#include "ckpt/place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define OP "sink"
#define WHERE "/dev/shm"

struct shm {
	const struct ist__ctx *ctx;
	struct ist__place place; /* temp_fd: the file; temp: its name, if it has one already */
	uint32_t flags;
	struct ist__one_file file;
	const struct ist__manifest *m;
};

/* Only a safetensors file of ours to replace is replaced. */
static bool
read_fd(void *ctx, uint64_t offset, void *to, uint64_t bytes, struct ist_error *err)
{
	const int *fd = ctx;

	while (bytes > 0) {
		ssize_t n = pread(*fd, to, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			ist__fail_sys(err, IST_IO, errno, OP, "can't be read");
		else if (n == 0)
			ist__fail(err, IST_IO, OP, "has become shorter while it was read");
		if (n <= 0)
			return false;
		to = (uint8_t *)to + n;
		offset += (uint64_t)n;
		bytes -= (uint64_t)n;
	}
	return true;
}

static ist_err
look_into(const struct shm *s, int fd, uint64_t bytes, struct ist_error *err)
{
	struct ist__bytes_source source = { .ctx = &fd, .read = read_fd, .bytes = bytes, .name = s->place.name };
	struct ist__st_args args = { .allow_trailing = true, .header_bytes_max = UINT64_C(1) << 40 };
	struct ist__st_file file = { 0 };
	struct ist__arena arena;
	ist_err e;

	ist__arena_init(&arena, s->ctx);
	e = ist__safetensors_read(&arena, &source, &args, &file, err);
	ist__free(s->ctx, file.tensors);
	ist__arena_fini(&arena);
	return e;
}

static ist_err
check_place(const struct shm *s, struct ist_error *err)
{
	struct ist_error why;
	struct stat st;
	bool taken;
	ist_err e = ist__place_look(&s->place, &taken, &st, err);
	int fd;

	if (e || !taken)
		return e;
	if (s->flags & IST_SINK_NO_REPLACE)
		return ist__fail(err, IST_CONFLICT, OP, "%s exists", s->place.path);
	fd = ist__open(s->place.parent, s->place.name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	if (fd < 0 && errno == ENOENT)
		return IST_OK; /* somebody has taken it away */
	if (fd < 0 && errno != ELOOP && errno != ENXIO) /* a link, a socket: what it is, is known */
		return ist__fail_sys(err, IST_IO, errno, OP, "a look into %s", s->place.path);
	ist_error_init(&why);
	e = IST_CONFLICT;
	if (fd >= 0 && fstat(fd, &st))
		e = ist__fail_sys(&why, IST_IO, errno, OP, "can't be looked at");
	else if (fd >= 0 && S_ISREG(st.st_mode))
		e = look_into(s, fd, (uint64_t)st.st_size, &why);
	if (fd >= 0)
		close(fd);
	if (ist__fail_is_own(e)) { /* what it is, is not known */
		ist__fail_prefix(&why, "%s: ", s->place.path);
		ist__error_copy(err, &why);
		return e;
	}
	return !e ? IST_OK : ist__fail(err, IST_CONFLICT, OP, "%s exists and is no safetensors file; it is not replaced", s->place.path);
}

/* ---- building ---- */

static ist_err
fail_make(const struct shm *s, struct ist_error *err)
{
	return ist__fail_sys(err, IST_IO, errno, OP, "%s", s->place.path);
}

static ist_err
make_file(struct shm *s, struct ist_error *err)
{
	struct ist__place *p = &s->place;

	p->temp_fd = ist__open(p->parent, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (p->temp_fd < 0) {
		if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)
			return fail_make(s, err);
		ist__place_new_name(p);
		p->temp_fd = ist__open(p->parent, p->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (p->temp_fd < 0) {
			p->temp[0] = 0;
			return fail_make(s, err);
		}
	}
	flock(p->temp_fd, LOCK_EX | LOCK_NB); /* for the sweep; nobody else knows the file yet */
	return fchmod(p->temp_fd, 0600) ? fail_make(s, err) : IST_OK;
}

static void
abort_it(void *self, bool dirty)
{
	struct shm *s = self;

	(void)dirty;
	ist__one_file_fini(&s->file);
	ist__place_drop(&s->place);
	s->m = NULL;
}

static ist_err
begin(void *self, const struct ist__manifest *m, uint64_t version, struct ist_error *err)
{
	struct shm *s = self;
	ist_err e = check_place(s, err);

	(void)version;
	s->m = m;
	if (!e)
		e = ist__sink_check_memory(m->payload, err);
	if (!e)
		e = make_file(s, err);
	if (!e)
		e = ist__one_file_begin(&s->file, m, s->place.temp_fd, s->place.path, err);
	if (e)
		abort_it(s, false);
	return e;
}

static ist_err
piece(void *self, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	const struct shm *s = self;

	return ist__one_file_piece(&s->file, item, offset, addr, bytes, s->place.path, err);
}

static ist_err
runs(void *self, uint64_t item, const struct ist__runs *r, const void *addr, struct ist_error *err)
{
	struct shm *s = self;

	return ist__one_file_runs(&s->file, item, r, addr, s->place.path, err);
}

static ist_err
prepare(void *self, struct ist_error *err)
{
	return check_place(self, err);
}

static bool
link_as(const struct shm *s, const char *name)
{
	char from[32];

	snprintf(from, sizeof(from), "/proc/self/fd/%d", s->place.temp_fd);
	return !linkat(AT_FDCWD, from, s->place.parent, name, AT_SYMLINK_FOLLOW) ||
		(errno != EEXIST && !linkat(s->place.temp_fd, "", s->place.parent, name, AT_EMPTY_PATH));
}

/* A file without a name takes a free one at once; where there is something to replace it needs a name of its own for the
 * moment before the rename. */
static ist_err
put_in_place(struct shm *s, struct ist_error *err)
{
	if (!s->place.temp[0]) {
		if (link_as(s, s->place.name))
			return IST_OK;
		if (errno != EEXIST)
			return fail_make(s, err);
		if (s->flags & IST_SINK_NO_REPLACE)
			return ist__fail(err, IST_CONFLICT, OP, "%s exists", s->place.path);
		ist__place_new_name(&s->place);
		if (!link_as(s, s->place.temp)) {
			s->place.temp[0] = 0;
			return fail_make(s, err);
		}
	}
	return ist__place_swap(&s->place, s->flags & IST_SINK_NO_REPLACE, err);
}

static ist_err
commit(void *self, uint64_t version, struct ist_error *err)
{
	struct shm *s = self;
	ist_err e;

	(void)version;
	ist__one_file_fini(&s->file);
	e = put_in_place(s, err);
	ist__place_drop(&s->place);
	s->m = NULL;
	return e;
}

static void
free_it(void *self)
{
	struct shm *s = self;

	ist__one_file_fini(&s->file);
	ist__place_fini(&s->place);
	ist__free(s->ctx, s);
}

static const struct ist__sink_kind shm_kind = {
	.name = "shm",
	.begin = begin,
	.piece = piece,
	.runs = runs,
	.prepare = prepare,
	.commit = commit,
	.abort = abort_it,
	.free = free_it,
};

ist_err
ist__sink_shm_open(struct ist_env *env, const char *name, uint32_t flags, struct ist_sink **out, struct ist_error *err)
{
	char path[sizeof(WHERE) + 1 + NAME_MAX + 1];
	struct shm *s;
	ist_err e;

	if (!ist__file_name_ok(name, strlen(name)))
		return ist__fail(err, IST_INVALID_ARGUMENT, "sink_open", "\"shm:%.255s\": a name of 1 to 255 bytes without '/' is due", name);
	snprintf(path, sizeof(path), WHERE "/%s", name);
	s = ist__alloc(ist__env_ctx(env), sizeof(*s));
	if (!s)
		return ist__fail_memory(err, "sink_open");
	s->ctx = ist__env_ctx(env);
	s->flags = flags;
	s->file.fd = -1;
	e = ist__place_open(s->ctx, path, false, &s->place, err);
	if (!e && strcmp(s->place.parent_path, WHERE))
		e = ist__fail(err, IST_CONFLICT, "sink_open", "%s is a link that leads out of " WHERE, path);
	if (!e) {
		ist__place_sweep(&s->place);
		e = check_place(s, err);
	}
	if (e) {
		free_it(s);
		return e;
	}
	return ist__sink_make(env, &shm_kind, s, false, false, out, err);
}
