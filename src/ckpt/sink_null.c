/* SPDX-License-Identifier: Apache-2.0
 *
 * sink_null.c - receives and drops. What arrives was verified by the engine before.
 */
#include "ckpt/sink.h"

static ist_err
begin(void *self, const struct ist__manifest *m, uint64_t version, struct ist_error *err)
{
	(void)self, (void)m, (void)version, (void)err;
	return IST_OK;
}

static ist_err
piece(void *self, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	(void)self, (void)item, (void)offset, (void)addr, (void)bytes, (void)err;
	return IST_OK;
}

static ist_err
runs(void *self, uint64_t item, const struct ist__runs *r, const void *addr, struct ist_error *err)
{
	(void)self, (void)item, (void)r, (void)addr, (void)err;
	return IST_OK;
}

static ist_err
prepare(void *self, struct ist_error *err)
{
	(void)self, (void)err;
	return IST_OK;
}

static ist_err
commit(void *self, uint64_t version, struct ist_error *err)
{
	(void)self, (void)version, (void)err;
	return IST_OK;
}

static void
abort_it(void *self, bool dirty)
{
	(void)self, (void)dirty;
}

static void
free_it(void *self)
{
	(void)self;
}

static const struct ist__sink_kind null_kind = {
	.name = "null",
	.begin = begin,
	.piece = piece,
	.runs = runs,
	.prepare = prepare,
	.commit = commit,
	.abort = abort_it,
	.free = free_it,
	.one_place = true,
	.drops = true,
};

ist_err
ist__sink_null_open(struct ist_env *env, struct ist_sink **out, struct ist_error *err)
{
	return ist__sink_make(env, &null_kind, NULL, false, false, out, err);
}
