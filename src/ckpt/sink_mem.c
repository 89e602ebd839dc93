/* SPDX-License-Identifier: Apache-2.0
 *
 * sink_mem.c - each tensor in its own place, in host memory or on a device. The old version stands until the new one is
 * committed, so that an update needs room for both. What goes into places of the caller's is sink_places.c.
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
	struct ist__ferry ferry; /* far.dev NULL: host memory */
	struct generation old, new;
	uint64_t *number;        /* item of the update -> item of new.m; UINT64_MAX: no tensor */
};

static void
drop_place(struct mem *s, void *place)
{
	if (s->ferry.far.dev)
		ist__far_free(&s->ferry.far, s->ferry.far.mem, place);
	else
		ist__free(s->ctx, place);
}

static void
drop(struct mem *s, struct generation *g)
{
	for (uint64_t i = 0; g->places && i < g->m->n_items; i++)
		drop_place(s, g->places[i]);
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

static void *
make_place(struct mem *s, uint64_t bytes)
{
	void *place = NULL;

	if (!s->ferry.far.dev)
		return ist__alloc_aligned(s->ctx, bytes, ALIGN);
	return ist__far_alloc(&s->ferry.far, s->ferry.far.mem, 0, bytes, &place, NULL) ? NULL : place;
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
		s->new.places[i] = make_place(s, m->items[i].bytes);
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
	if (!e && !s->ferry.far.dev)
		e = ist__sink_check_memory(m->payload, err);
	if (!e)
		e = make_places(s, err);
	if (e)
		drop_new(s);
	return e;
}

static void *
place(const void *self, uint64_t item)
{
	const struct mem *s = self;
	uint64_t at = s->number[item];

	return at == UINT64_MAX ? NULL : s->new.places[at];
}

static ist_err
piece(void *self, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct mem *s = self;
	uint8_t *to = place(s, item);
	struct ist_copy c = { .src = addr, .bytes = bytes };

	if (!to)
		return ist__fail(err, IST_INTERNAL, "sink", "a piece for a tensor that has no bytes of its own");
	c.dst = to + offset;
	if (s->ferry.far.dev)
		return ist__ferry_copy(&s->ferry, &c, 1, err);
	memcpy(c.dst, addr, bytes);
	return IST_OK;
}

static ist_err
runs(void *self, uint64_t item, const struct ist__runs *r, const void *addr, struct ist_error *err)
{
	struct mem *s = self;
	uint8_t *to = place(s, item);

	if (!to)
		return ist__fail(err, IST_INTERNAL, "sink", "a piece for a tensor that has no bytes of its own");
	if (s->ferry.far.dev)
		return ist__sink_ferry_runs(&s->ferry, to, r, addr, err);
	ist__runs_copy(to + r->offset, r, addr);
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
	ist__ferry_close(&s->ferry);
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
	if (s->old.places[item] && s->ferry.far.dev) {
		out->mem = s->ferry.far.mem;
		out->device = s->ferry.far.index;
	}
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
	.place = place,
	.tensor = tensor,
	.one_place = true,
};

ist_err
ist__sink_mem_open(struct ist_env *env, const struct ist_sink_args *args, struct ist_sink **out, struct ist_error *err)
{
	struct mem *s;
	ist_err e = IST_OK;

	if (args->places)
		return ist__sink_places_open(env, args, out, err);
	s = ist__alloc(ist__env_ctx(env), sizeof(*s));
	if (!s)
		return ist__fail_memory(err, "sink_open");
	s->ctx = ist__env_ctx(env);
	if (ist__is_far(args->mem))
		e = ist__ferry_open(env, args->mem, args->device, "sink_open", &s->ferry, err);
	if (e) {
		free_it(s);
		return e;
	}
	e = ist__sink_make(env, &mem_kind, s, false, false, out, err);
	if (!e)
		ist__sink_set_far(*out, args->mem, args->device);
	return e;
}
