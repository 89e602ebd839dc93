/* SPDX-License-Identifier: Apache-2.0
 *
 * sink_custom.c - a consumer's own operations. A sink that asks for raw_files sees every item, in manifest order: raw ones
 * have an empty name and dtype, and lie back to back with the tensors of their file. Others see the tensors alone. An
 * alias gets its owner's bytes as pieces of its own.
 */
#include "ckpt/sink.h"

#include "base/fail.h"

#include <stddef.h>
#include <string.h>

struct custom {
	const struct ist__ctx *ctx;
	struct ist_sink_ops ops;
	uint64_t *number; /* item -> index told to the consumer */
};

static void
forget(struct custom *s)
{
	ist__free(s->ctx, s->number);
	s->number = NULL;
}

/* A consumer's error without a code is still one; without a text it gets one. */
static ist_err
forward(ist_err e, const char *slot, struct ist_error *err)
{
	if (e && err && (err->code != e || !err->detail[0]))
		ist__fail(err, e, "sink", "the sink's %s answered %s", slot, ist_err_name(e));
	return e;
}

static ist_err
begin(void *self, const struct ist__manifest *m, uint64_t version, struct ist_error *err)
{
	struct custom *s = self;
	uint64_t n = 0, room = s->ops.raw_files ? m->n_items : m->n_tensors;
	struct ist_tensor *tensors = ist__alloc(s->ctx, room * sizeof(*tensors));
	ist_err e = IST_OK;

	s->number = ist__alloc(s->ctx, m->n_items * sizeof(*s->number));
	if (!tensors || !s->number) {
		e = ist__fail_memory(err, "sink");
	} else {
		for (uint64_t i = 0; i < m->n_items; i++) {
			if (m->items[i].kind == IST__ITEM_SLICE || (ist__item_is_raw(&m->items[i]) && !s->ops.raw_files))
				continue;
			ist__manifest_public(m, i, &tensors[n]);
			s->number[i] = n++;
		}
		if (s->ops.begin)
			e = forward(s->ops.begin(s->ops.ctx, tensors, n, version, err), "begin", err);
	}
	ist__free(s->ctx, tensors);
	if (e)
		forget(s);
	return e;
}

static ist_err
piece(void *self, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct custom *s = self;

	if (!s->ops.piece)
		return IST_OK;
	return forward(s->ops.piece(s->ops.ctx, s->number[item], offset, addr, bytes, err), "piece", err);
}

static ist_err
prepare(void *self, struct ist_error *err)
{
	struct custom *s = self;

	return s->ops.prepare ? forward(s->ops.prepare(s->ops.ctx, err), "prepare", err) : IST_OK;
}

static ist_err
commit(void *self, uint64_t version, struct ist_error *err)
{
	struct custom *s = self;

	(void)err;
	if (s->ops.commit)
		s->ops.commit(s->ops.ctx, version);
	forget(s);
	return IST_OK;
}

static void
abort_it(void *self, bool dirty)
{
	struct custom *s = self;

	if (s->ops.abort)
		s->ops.abort(s->ops.ctx, dirty);
	forget(s);
}

static void
free_it(void *self)
{
	struct custom *s = self;

	forget(s);
	ist__free(s->ctx, s);
}

static const struct ist__sink_kind custom_kind = {
	.name = "custom",
	.begin = begin,
	.piece = piece,
	.prepare = prepare,
	.commit = commit,
	.abort = abort_it,
	.free = free_it,
};

ist_err
ist_sink_custom(struct ist_env *env, const struct ist_sink_ops *ops, struct ist_sink **out, struct ist_error *err)
{
	ist_err e = ist__handle_check(env, IST__ENV, "sink_custom", err);
	struct custom *s;

	if (e)
		return e;
	if (!ops || !out || ops->struct_size < offsetof(struct ist_sink_ops, begin))
		return ist__fail(err, IST_INVALID_ARGUMENT, "sink_custom", "ops or out is missing, or struct_size is not set");
	s = ist__alloc(ist__env_ctx(env), sizeof(*s));
	if (!s)
		return ist__fail_memory(err, "sink_custom");
	s->ctx = ist__env_ctx(env);
	memcpy(&s->ops, ops, ops->struct_size < sizeof(s->ops) ? ops->struct_size : sizeof(s->ops));
	return ist__sink_make(env, &custom_kind, s, s->ops.raw_files != 0, s->ops.in_place != 0, out, err);
}
