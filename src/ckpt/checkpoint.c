/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.c - the public face of checkpoints. What they are made of: open.c, memory.c; their bytes: read.c, digests.c.
 */
#include "ckpt/checkpoint.h"

#include "base/fail.h"
#include "ckpt/folder.h"
#include "ckpt/open.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

struct ist__checkpoint_body *
ist__checkpoint_body_new(const struct ist__ctx *ctx, struct ist_error *err)
{
	struct ist__checkpoint_body *b = ist__alloc(ctx, sizeof(*b));

	if (b) {
		b->ctx = ctx;
		b->m = ist__manifest_new(ctx);
		pthread_mutex_init(&b->lock, NULL);
	}
	if (!b || !b->m) {
		ist__checkpoint_body_free(b);
		ist__fail_memory(err, "checkpoint");
		return NULL;
	}
	return b;
}

void
ist__checkpoint_body_free(struct ist__checkpoint_body *b)
{
	if (!b)
		return;
	if (b->m)
		ist__checkpoint_unpin(b);
	for (uint64_t i = 0; b->files && b->m && i < b->m->n_files; i++)
		close(b->files[i].fd);
	ist__manifest_free(b->m);
	ist__free(b->ctx, b->files);
	ist__free(b->ctx, b->addrs);
	ist__free(b->ctx, b->far);
	if (b->ferry)
		ist__ferry_close(b->ferry);
	ist__free(b->ctx, b->ferry);
	ist__free(b->ctx, b->digests);
	ist__free(b->ctx, b->known);
	ist__free(b->ctx, b->path);
	pthread_mutex_destroy(&b->lock);
	ist__free(b->ctx, b);
}

static void
end_checkpoint(void *handle)
{
	ist_checkpoint_free(handle);
}

ist_err
ist__checkpoint_make(struct ist_env *env, struct ist__checkpoint_body *body, struct ist_checkpoint **out, struct ist_error *err)
{
	struct ist_checkpoint *ck;

	if (!body->addrs) {
		body->digests = ist__alloc(body->ctx, body->m->n_items * sizeof(*body->digests));
		body->known = ist__alloc(body->ctx, body->m->n_items);
		if (!body->digests || !body->known)
			return ist__fail_memory(err, "checkpoint");
	}
	ck = ist__handle_new(env, IST__CHECKPOINT, sizeof(*ck));
	if (!ck)
		return ist__fail_memory(err, "checkpoint");
	ck->body = body;
	ist__handle_owned(ck, end_checkpoint);
	*out = ck;
	return IST_OK;
}

/* ---- opening ---- */

static ist_err
args_of(const struct ist_checkpoint_args *args, struct ist__open_args *to, struct ist_error *err)
{
	struct ist_checkpoint_args a = { 0 };
	uint64_t n;

	if (args) {
		n = args->struct_size && args->struct_size < sizeof(a) ? args->struct_size : sizeof(a);
		memcpy(&a, args, n);
	}
	if (a.how > IST_READ_READ)
		return ist__fail(err, IST_INVALID_ARGUMENT, "checkpoint_open", "how is %u, which is no way to read", a.how);
	to->how = a.how;
	to->header_bytes_max = a.header_bytes_max;
	to->weights_only = a.weights_only != 0;
	to->allow_trailing = a.allow_trailing != 0;
	return IST_OK;
}

/* A path that can't be followed: a link to nowhere says so. */
static ist_err
fail_path(const char *path, int sys, struct ist_error *err)
{
	char target[PATH_MAX];
	ssize_t n = readlink(path, target, sizeof(target) - 1);

	if (n >= 0 && sys == ENOENT) {
		target[n] = 0;
		return ist__fail_sys(err, IST_MISSING_SHARD, sys, "checkpoint_open", "%s is a link to %s, which can't be opened", path, target);
	}
	return ist__fail_sys(err, IST_IO, sys, "checkpoint_open", "%s", path);
}

/* path becomes a folder and, for a file, its name in there. copy is as long as path and is cut in two. */
static ist_err
split_path(const char *path, char *copy, struct ist__open_args *to, struct ist_error *err)
{
	struct stat st;
	char *slash;
	const char *name;

	if (stat(path, &st))
		return fail_path(path, errno, err);
	if (S_ISDIR(st.st_mode)) {
		to->folder = copy;
		return IST_OK;
	}
	if (!S_ISREG(st.st_mode))
		return ist__fail(err, IST_BAD_FORMAT, "checkpoint_open", "%s is neither a regular file nor a folder", path);
	slash = strrchr(copy, '/');
	name = slash ? slash + 1 : copy;
	if (!ist__file_name_ok(name, strlen(name)))
		return ist__fail(err, IST_BAD_NAME, "checkpoint_open", "the file's name is not UTF-8 or holds control characters");
	to->folder = slash == copy ? "/" : slash ? copy : ".";
	if (slash)
		*slash = 0;
	if (ist__ends_with(name, ".json"))
		to->index = name;
	else
		to->file = name;
	return IST_OK;
}

ist_err
ist_checkpoint_open(struct ist_env *env, const char *path, const struct ist_checkpoint_args *args, struct ist_checkpoint **out,
	struct ist_error *err)
{
	struct ist__open_args a = { 0 };
	struct ist__checkpoint_body *b;
	char *copy;
	ist_err e = ist__handle_check(env, IST__ENV, "checkpoint_open", err);

	if (e)
		return e;
	if (!path || !path[0] || !out)
		return ist__fail(err, IST_INVALID_ARGUMENT, "checkpoint_open", "path or out is missing");
	b = ist__checkpoint_body_new(ist__env_ctx(env), err);
	if (!b)
		return IST_NO_MEMORY;
	copy = ist__strdup(b->ctx, path);
	b->path = ist__strdup(b->ctx, path);
	e = copy && b->path ? args_of(args, &a, err) : ist__fail_memory(err, "checkpoint_open");
	if (!e)
		e = split_path(path, copy, &a, err);
	if (!e)
		e = ist__checkpoint_open_body(b, &a, err);
	if (!e)
		e = ist__checkpoint_make(env, b, out, err);
	ist__free(ist__env_ctx(env), copy);
	if (e)
		ist__checkpoint_body_free(b);
	return e;
}

void
ist_checkpoint_free(struct ist_checkpoint *ck)
{
	if (!ck || !ist__handle_kill(ck, IST__CHECKPOINT))
		return;
	ist__checkpoint_body_free(ck->body);
	ck->body = NULL;
	ist__handle_bury(ck);
}

/* ---- asking ---- */

uint64_t
ist_checkpoint_count(struct ist_checkpoint *ck)
{
	return ist__handle_ok(ck, IST__CHECKPOINT) ? ck->body->m->n_tensors : 0;
}

uint64_t
ist_checkpoint_bytes(struct ist_checkpoint *ck)
{
	return ist__handle_ok(ck, IST__CHECKPOINT) ? ck->body->m->payload : 0;
}

static ist_err
check_index(struct ist_checkpoint *ck, uint64_t index, const char *op, struct ist_error *err)
{
	ist_err e = ist__handle_check(ck, IST__CHECKPOINT, op, err);

	if (!e && index >= ck->body->m->n_tensors)
		e = ist__fail(err, IST_INVALID_ARGUMENT, op, "index %llu of %llu tensors", (unsigned long long)index,
			(unsigned long long)ck->body->m->n_tensors);
	return e;
}

static void
place_of(const struct ist__checkpoint_body *b, uint64_t item, struct ist_tensor *t)
{
	t->addr = b->addrs[item];
	if (b->far && b->far[item]) {
		t->mem = b->ferry->far.mem;
		t->device = b->ferry->far.index;
	}
}

ist_err
ist_checkpoint_tensor(struct ist_checkpoint *ck, uint64_t index, struct ist_tensor *out, struct ist_error *err)
{
	ist_err e = check_index(ck, index, "checkpoint_tensor", err);
	struct ist_tensor t;
	uint32_t size;

	if (!e && !out)
		e = ist__fail(err, IST_INVALID_ARGUMENT, "checkpoint_tensor", "out is missing");
	if (e)
		return e;
	ist__manifest_public(ck->body->m, ck->body->m->tensors[index], &t);
	if (ck->body->addrs)
		place_of(ck->body, ck->body->m->tensors[index], &t);
	size = out->struct_size && out->struct_size < sizeof(t) ? out->struct_size : (uint32_t)sizeof(t);
	t.struct_size = size;
	memcpy(out, &t, size);
	return IST_OK;
}

ist_err
ist_checkpoint_slice(struct ist_checkpoint *ck, uint64_t index, struct ist_slice *out, struct ist_error *err)
{
	ist_err e = check_index(ck, index, "checkpoint_slice", err);
	struct ist_slice s = { .reserved = 0 };
	const struct ist__item *t;
	uint32_t size;

	if (!e && !out)
		e = ist__fail(err, IST_INVALID_ARGUMENT, "checkpoint_slice", "out is missing");
	if (e)
		return e;
	t = &ck->body->m->items[ck->body->m->tensors[index]];
	for (uint32_t d = 0; d < t->rank; d++) {
		s.whole[d] = t->whole ? t->whole[d] : t->shape[d];
		s.begin[d] = t->begin ? t->begin[d] : 0;
	}
	size = out->struct_size && out->struct_size < sizeof(s) ? out->struct_size : (uint32_t)sizeof(s);
	s.struct_size = size;
	memcpy(out, &s, size);
	return IST_OK;
}

ist_err
ist_checkpoint_find(struct ist_checkpoint *ck, const char *name, uint64_t *index, struct ist_error *err)
{
	ist_err e = ist__handle_check(ck, IST__CHECKPOINT, "checkpoint_find", err);
	uint64_t i;

	if (e)
		return e;
	if (!name || !index)
		return ist__fail(err, IST_INVALID_ARGUMENT, "checkpoint_find", "name or index is missing");
	i = ist__manifest_find(ck->body->m, name);
	if (i == UINT64_MAX) {
		ist__fail(err, IST_MISSING_TENSOR, "checkpoint_find", "there is no tensor \"%.200s\"", name);
		ist__fail_tensor(err, name);
		return IST_MISSING_TENSOR;
	}
	*index = i;
	return IST_OK;
}

ist_err
ist_checkpoint_read(
	struct ist_checkpoint *ck, uint64_t index, uint64_t offset, uint64_t bytes, void *addr, struct ist_error *err)
{
	ist_err e = check_index(ck, index, "checkpoint_read", err);

	if (!e && !addr && bytes > 0)
		e = ist__fail(err, IST_INVALID_ARGUMENT, "checkpoint_read", "addr is missing");
	return e ? e : ist__checkpoint_fetch(ck, ck->body->m->tensors[index], offset, bytes, addr, err);
}
