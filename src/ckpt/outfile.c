/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/outfile.h"

#include "base/fail.h"
#include "ckpt/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define WRITE_MAX (UINT64_C(1) << 30)
#define WINDOW_BYTES (UINT64_C(256) << 10)
#define STRIDE_MAX UINT64_C(1024) /* of runs that are written together: from there on a call a run is cheaper than the bytes between */
typedef unsigned long long ull;

static ist_err
fail_write(int sys, const char *name, uint64_t bytes, struct ist_error *err)
{
	return ist__fail_sys(err, sys == EFBIG ? IST_NO_SPACE : IST_IO, sys, "sink", "%s: %llu bytes", name, (ull)bytes);
}

/* Where blocks can't be reserved: as good a look as there is. */
static ist_err
look_for_room(int fd, uint64_t bytes, const char *name, struct ist_error *err)
{
	struct statvfs vfs;

	if (!fstatvfs(fd, &vfs) && vfs.f_frsize > 0 && bytes / vfs.f_frsize > vfs.f_bavail)
		return fail_write(ENOSPC, name, bytes, err);
	return ftruncate(fd, (off_t)bytes) ? fail_write(errno, name, bytes, err) : IST_OK;
}

ist_err
ist__file_reserve(int fd, uint64_t bytes, const char *name, struct ist_error *err)
{
	struct rlimit limit;
	int rc;

	/* past this limit a write is a signal, and the signals are the host's */
	if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
		return fail_write(EFBIG, name, bytes, err);
	if (bytes == 0)
		return IST_OK;
	if (bytes > INT64_MAX)
		return fail_write(EFBIG, name, bytes, err);
	do
		rc = fallocate(fd, 0, 0, (off_t)bytes);
	while (rc && errno == EINTR);
	if (rc && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL))
		return look_for_room(fd, bytes, name, err);
	return rc ? fail_write(errno, name, bytes, err) : IST_OK;
}

ist_err
ist__file_write(int fd, uint64_t offset, const void *addr, uint64_t bytes, const char *name, struct ist_error *err)
{
	const uint8_t *at = addr;

	while (bytes > 0) {
		ssize_t n = pwrite(fd, at, bytes < WRITE_MAX ? bytes : WRITE_MAX, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fail_write(n < 0 ? errno : EIO, name, bytes, err);
		at += n;
		offset += (uint64_t)n;
		bytes -= (uint64_t)n;
	}
	return IST_OK;
}

static bool
has_slices(const struct ist__manifest *m)
{
	for (uint64_t i = 0; i < m->n_items; i++)
		if (m->items[i].kind == IST__ITEM_SLICE)
			return true;
	return false;
}

ist_err
ist__one_file_begin(struct ist__one_file *f, const struct ist__manifest *m, int fd, const char *name, struct ist_error *err)
{
	struct ist__writer w;
	uint64_t bytes = 0;
	ist_err e = IST_OK;

	f->ctx = m->ctx;
	f->fd = fd;
	f->offsets = ist__alloc(m->ctx, m->n_items * sizeof(*f->offsets));
	if (has_slices(m))
		f->window = ist__alloc(m->ctx, WINDOW_BYTES);
	ist__writer_init(&w, m->ctx);
	if (!f->offsets || (has_slices(m) && !f->window))
		e = ist__fail_memory(err, "sink");
	if (!e)
		e = ist__safetensors_header(m, &w, f->offsets, &bytes, err);
	if (!e)
		e = ist__file_reserve(fd, bytes, name, err);
	if (!e)
		e = ist__file_write(fd, 0, w.at, w.bytes, name, err);
	ist__writer_fini(&w);
	return e;
}

ist_err
ist__one_file_piece(const struct ist__one_file *f, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, const char *name,
	struct ist_error *err)
{
	return ist__file_write(f->fd, f->offsets[item] + offset, addr, bytes, name, err);
}

/* ---- slices ---- */

/* Runs that fit into the window, the first of them at at in the file. */
static ist_err
put_window(struct ist__one_file *f, uint64_t at, const struct ist__runs *r, const uint8_t *from, const char *name, struct ist_error *err)
{
	uint64_t bytes = (r->count - 1) * r->stride + r->bytes;
	int sys;

	if (!ist__pread_all(f->fd, at, f->window, bytes, &sys))
		return ist__fail_sys(err, IST_IO, sys ? sys : EIO, "sink", "%s: what lies between two rows can't be read", name);
	ist__runs_copy(f->window, r, from);
	return ist__file_write(f->fd, at, f->window, bytes, name, err);
}

ist_err
ist__one_file_runs(struct ist__one_file *f, uint64_t item, const struct ist__runs *r, const void *addr, const char *name,
	struct ist_error *err)
{
	uint64_t at = f->offsets[item] + r->offset, n = 1;
	const uint8_t *from = addr;
	ist_err e = IST_OK;

	if (r->stride <= STRIDE_MAX)
		n = (WINDOW_BYTES - r->bytes) / r->stride + 1;
	for (uint64_t i = 0; i < r->count && !e; i += n) {
		struct ist__runs some = *r;

		if (n > r->count - i)
			n = r->count - i;
		some.count = n;
		if (n > 1)
			e = put_window(f, at + i * r->stride, &some, from + i * r->bytes, name, err);
		else
			e = ist__file_write(f->fd, at + i * r->stride, from + i * r->bytes, r->bytes, name, err);
	}
	return e;
}

void
ist__one_file_fini(struct ist__one_file *f)
{
	if (f->ctx) {
		ist__free(f->ctx, f->offsets);
		ist__free(f->ctx, f->window);
	}
	memset(f, 0, sizeof(*f));
	f->fd = -1;
}
