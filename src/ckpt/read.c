/* SPDX-License-Identifier: Apache-2.0
 *
 * read.c - bytes of a checkpoint, and whether its files are still what they were.
 */
#include "ckpt/checkpoint.h"

#include "base/fail.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define OP "checkpoint_read"
#define READ_MAX (UINT64_C(1) << 30)
typedef unsigned long long ull;

bool
ist__pread_all(int fd, uint64_t offset, void *to, uint64_t bytes, int *sys)
{
	uint8_t *at = to;

	*sys = 0;
	while (bytes > 0) {
		ssize_t n = pread(fd, at, bytes < READ_MAX ? bytes : READ_MAX, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			*sys = n < 0 ? errno : 0;
			return false;
		}
		at += n;
		offset += (uint64_t)n;
		bytes -= (uint64_t)n;
	}
	return true;
}

static ist_err
check_file(const struct ist__checkpoint_body *b, uint64_t i, struct ist_error *err)
{
	const struct ist__open_file *f = &b->files[i];
	struct stat st;

	if (fstat(f->fd, &st))
		return ist__fail_sys(err, errno == ESTALE ? IST_FILE_CHANGED : IST_IO, errno, OP, "%s: %s", b->path, b->m->files[i].name);
	if ((uint64_t)st.st_size != f->bytes)
		return ist__fail(err, IST_FILE_CHANGED, OP, "%s: %s had %llu bytes when it was opened, and has %llu", b->path,
			b->m->files[i].name, (ull)f->bytes, (ull)st.st_size);
	if (st.st_mtim.tv_sec != f->mtime.tv_sec || st.st_mtim.tv_nsec != f->mtime.tv_nsec)
		return ist__fail(err, IST_FILE_CHANGED, OP, "%s: %s was written to after it was opened", b->path, b->m->files[i].name);
	return IST_OK;
}

ist_err
ist__checkpoint_check(const struct ist_checkpoint *ck, struct ist_error *err)
{
	const struct ist__checkpoint_body *b = ck->body;
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < b->m->n_files && !e; i++)
		e = check_file(b, i, err);
	return e;
}

/* The check comes after the read: what was read before a change is what was there before it. */
ist_err
ist__checkpoint_read_file(
	const struct ist__checkpoint_body *b, uint32_t file, uint64_t offset, uint64_t bytes, void *to, struct ist_error *err)
{
	const char *name = b->m->files[file].name;
	int sys;
	bool all = ist__pread_all(b->files[file].fd, offset, to, bytes, &sys);
	ist_err e;

	if (sys)
		return ist__fail_sys(err, sys == ESTALE ? IST_FILE_CHANGED : IST_IO, sys, OP, "%s: %s", b->path, name);
	e = check_file(b, file, err);
	if (!e && !all)
		e = ist__fail(err, IST_FILE_CHANGED, OP, "%s: %s ended early, and grew again", b->path, name);
	return e;
}

ist_err
ist__checkpoint_fetch_file(
	const struct ist_checkpoint *ck, uint32_t file, uint64_t offset, uint64_t bytes, void *to, struct ist_error *err)
{
	const struct ist__manifest *m = ck->body->m;

	if (file >= m->n_files || offset > m->files[file].bytes || bytes > m->files[file].bytes - offset)
		return ist__fail(err, IST_INVALID_ARGUMENT, OP, "%llu bytes at %llu are outside of the file", (ull)bytes, (ull)offset);
	return ist__checkpoint_read_file(ck->body, file, offset, bytes, to, err);
}

/* The item that owns the bytes. */
static uint64_t
owner_of(const struct ist__manifest *m, uint64_t item)
{
	return m->items[item].alias == IST__NO_ALIAS ? item : m->items[item].alias;
}

ist_err
ist__checkpoint_read_memory(
	const struct ist__checkpoint_body *b, uint64_t item, uint64_t offset, uint64_t bytes, void *to, struct ist_error *err)
{
	struct ist_copy c = { .dst = to, .src = (const uint8_t *)b->addrs[item] + offset, .bytes = bytes };
	ist_err e = IST_OK;

	if (bytes > 0 && b->far && b->far[item])
		e = ist__ferry_copy(b->ferry, &c, 1, err);
	else if (bytes > 0)
		memcpy(to, c.src, bytes);
	if (e)
		ist__fail_tensor(err, b->m->items[item].name);
	return e;
}

ist_err
ist__checkpoint_fetch(
	const struct ist_checkpoint *ck, uint64_t item, uint64_t offset, uint64_t bytes, void *to, struct ist_error *err)
{
	const struct ist__checkpoint_body *b = ck->body;
	const struct ist__item *t;
	ist_err e;

	if (item >= b->m->n_items || offset > b->m->items[item].bytes || bytes > b->m->items[item].bytes - offset) {
		ist__fail(err, IST_INVALID_ARGUMENT, OP, "%llu bytes at %llu are outside of the tensor", (ull)bytes, (ull)offset);
		ist__fail_tensor(err, item < b->m->n_items ? b->m->items[item].name : "");
		return IST_INVALID_ARGUMENT;
	}
	t = &b->m->items[owner_of(b->m, item)];
	if (t->file == IST__NO_FILE)
		return ist__checkpoint_read_memory(b, owner_of(b->m, item), offset, bytes, to, err);
	e = ist__checkpoint_read_file(b, t->file, t->offset + offset, bytes, to, err);
	if (e)
		ist__fail_tensor(err, t->name);
	return e;
}

bool
ist__checkpoint_lend(const struct ist_checkpoint *ck, uint64_t item, uint64_t offset, uint64_t bytes, struct ist_buf *out)
{
	const struct ist__checkpoint_body *b = ck->body;
	const struct ist__item *t = item < b->m->n_items ? &b->m->items[item] : NULL;

	if (!t || t->file != IST__NO_FILE || offset > t->bytes || bytes > t->bytes - offset)
		return false;
	item = owner_of(b->m, item);
	*out = (struct ist_buf){ .addr = (uint8_t *)(uintptr_t)b->addrs[item] + offset, .bytes = bytes, .device = -1 };
	if (b->pins.far.dev && ist__pins_have(&b->pins, out->addr, bytes))
		out->mem = IST_MEM_PINNED;
	if (b->far && b->far[item]) {
		out->mem = (uint16_t)b->ferry->far.mem;
		out->device = b->ferry->far.index;
	}
	return true;
}

const void *
ist__checkpoint_pinned_file(const struct ist_checkpoint *ck, uint32_t file, uint64_t offset, uint64_t bytes)
{
	const struct ist__checkpoint_body *b = ck->body;

	if (!b->pins.files || file >= b->m->n_files || !b->pins.files[file] || offset > b->files[file].bytes || bytes > b->files[file].bytes - offset)
		return NULL;
	return b->pins.files[file] + offset;
}

bool
ist__checkpoint_live(const struct ist_checkpoint *ck)
{
	return ck->body->addrs != NULL;
}

const struct ist__manifest *
ist__checkpoint_manifest(const struct ist_checkpoint *ck)
{
	return ck->body->m;
}
