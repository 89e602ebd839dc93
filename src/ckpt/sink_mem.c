/* SPDX-License-Identifier: Apache-2.0
 *
 * sink_mem.c - each tensor in its own place in host memory. The old version stands until the new one is committed, so
 * that an update needs room for both.
 */
#include "ckpt/sink.h"

#include "base/fail.h"

#include <string.h>

#define ALIGN 256u

struct generation {
	struct ist__manifest *m; /* tensors alone */
	void **places;           /* as m->items; NULL: alias, or no bytes */
};

struct mem {
	const struct ist__ctx *ctx;
	struct generation old, new;
	uint64_t *number;        /* item of the update -> item of new.m; UINT64_MAX: no tensor */
};

static void
drop(struct mem *s, struct generation *g)
{
	for (uint64_t i = 0; g->places && i < g->m->n_items; i++)
		ist__free(s->ctx, g->places[i]);
	ist__free(s->ctx, g->places);
	ist__manifest_free(g->m);
	*g = (struct generation){ 0 };
}

static void
drop_new(struct mem *s)
{
	drop(s, &s->new);
	ist__free(s->ctx, s->number);
	s->number = NULL;
}

static ist_err
copy_manifest(struct mem *s, const struct ist__manifest *m, struct ist_error *err)
{
	s->number = ist__alloc(s->ctx, m->n_items * sizeof(*s->number));
	s->new.m = ist__manifest_new(s->ctx);
	if (!s->number || !s->new.m)
		return ist__fail_memory(err, "sink");
	for (uint64_t i = 0; i < m->n_items; i++) {
		struct ist__item t = m->items[i];

		s->number[i] = UINT64_MAX;
		if (t.kind != IST__ITEM_TENSOR)
			continue;
		t.in_parts = false;
		t.file = IST__NO_FILE;
		t.offset = 0;
		t.alias = t.alias == IST__NO_ALIAS ? t.alias : s->number[t.alias];
		if (!ist__manifest_add_item(s->new.m, &t, &s->number[i]))
			return ist__fail_memory(err, "sink");
	}
	return ist__manifest_seal(s->new.m, "sink", err);
}

static ist_err
make_places(struct mem *s, struct ist_error *err)
{
	const struct ist__manifest *m = s->new.m;

	s->new.places = ist__alloc(s->ctx, m->n_items * sizeof(*s->new.places));
	if (!s->new.places)
		return ist__fail_memory(err, "sink");
	for (uint64_t i = 0; i < m->n_items; i++) {
		if (m->items[i].alias != IST__NO_ALIAS || m->items[i].bytes == 0)
			continue;
		s->new.places[i] = ist__alloc_aligned(s->ctx, m->items[i].bytes, ALIGN);
		if (!s->new.places[i]) {
			ist__fail(err, IST_NO_MEMORY, "sink", "no room for tensor \"%.200s\" of %llu bytes; all need %llu, beside the version before",
				m->items[i].name, (unsigned long long)m->items[i].bytes, (unsigned long long)m->payload);
			ist__fail_tensor(err, m->items[i].name);
			return IST_NO_MEMORY;
		}
	}
	return IST_OK;
}

static ist_err
begin(void *self, const struct ist__manifest *m, uint64_t version, struct ist_error *err)
{
	struct mem *s = self;
	ist_err e = copy_manifest(s, m, err);

	(void)version;
	if (!e)
		e = ist__sink_check_memory(m->payload, err);
	if (!e)
		e = make_places(s, err);
	if (e)
		drop_new(s);
	return e;
}

static ist_err
piece(void *self, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	const struct mem *s = self;
	uint64_t at = s->number[item];
	uint8_t *place = at == UINT64_MAX ? NULL : s->new.places[at];

	if (!place)
		return ist__fail(err, IST_INTERNAL, "sink", "a piece for a tensor that has no bytes of its own");
	memcpy(place + offset, addr, bytes);
	return IST_OK;
}

static ist_err
runs(void *self, uint64_t item, const struct ist__runs *r, const void *addr, struct ist_error *err)
{
	const struct mem *s = self;
	uint64_t at = s->number[item];
	uint8_t *place = at == UINT64_MAX ? NULL : s->new.places[at];

	if (!place)
		return ist__fail(err, IST_INTERNAL, "sink", "a piece for a tensor that has no bytes of its own");
	ist__runs_copy(place + r->offset, r, addr);
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
	struct mem *s = self;

	(void)version, (void)err;
	drop(s, &s->old);
	s->old = s->new;
	s->new = (struct generation){ 0 };
	drop_new(s);
	return IST_OK;
}

static void
abort_it(void *self, bool dirty)
{
	(void)dirty;
	drop_new(self);
}

static void
free_it(void *self)
{
	struct mem *s = self;

	drop_new(s);
	drop(s, &s->old);
	ist__free(s->ctx, s);
}

static ist_err
tensor(void *self, const char *name, struct ist_tensor *out, struct ist_error *err)
{
	const struct mem *s = self;
	uint64_t i, item;

	if (!s->old.m)
		return ist__fail(err, IST_BAD_STATE, "sink_tensor", "no version was committed yet");
	i = ist__manifest_find(s->old.m, name);
	if (i == UINT64_MAX) {
		ist__fail(err, IST_MISSING_TENSOR, "sink_tensor", "there is no tensor \"%.200s\"", name);
		ist__fail_tensor(err, name);
		return IST_MISSING_TENSOR;
	}
	item = s->old.m->tensors[i];
	ist__manifest_public(s->old.m, item, out);
	if (s->old.m->items[item].alias != IST__NO_ALIAS)
		item = s->old.m->items[item].alias;
	out->addr = s->old.places[item] ? s->old.places[item] : (const void *)"";
	return IST_OK;
}

static const struct ist__sink_kind mem_kind = {
	.name = "mem",
	.begin = begin,
	.piece = piece,
	.runs = runs,
	.prepare = prepare,
	.commit = commit,
	.abort = abort_it,
	.free = free_it,
	.tensor = tensor,
	.one_place = true,
};

ist_err
ist__sink_mem_open(struct ist_env *env, struct ist_sink **out, struct ist_error *err)
{
	struct mem *s = ist__alloc(ist__env_ctx(env), sizeof(*s));

	if (!s)
		return ist__fail_memory(err, "sink_open");
	s->ctx = ist__env_ctx(env);
	return ist__sink_make(env, &mem_kind, s, false, false, out, err);
}
