/* SPDX-License-Identifier: Apache-2.0
 *
 * sink_places.c - tensors into memory of the caller's, an engine's parameters, on the host or on a device. They are written
 * while they are in use: who fails after the first piece is DIRTY. An alias is written to its own place, which may be its
 * owner's.
 */
#include "ckpt/sink.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

struct place {
	char *name;
	uint8_t *addr;
	uint64_t bytes;
	uint32_t dtype;
	bool used;    /* the update at hand has a tensor for it */
};

struct places {
	const struct ist__ctx *ctx;
	struct ist__ferry ferry;  /* far.dev NULL: host memory */
	struct place *list;       /* by name */
	uint64_t n;
	uint8_t **of_item;        /* while an update is under way; NULL: no tensor */
};

static int
by_name(const void *a, const void *b)
{
	return strcmp(((const struct place *)a)->name, ((const struct place *)b)->name);
}

/* The caller's structs may be longer than ours: they are that far apart. */
static const struct ist_tensor *
tensor_at(const struct ist_sink_args *a, uint64_t i)
{
	const void *at = (const uint8_t *)a->places + i * a->places->struct_size;

	return at;
}

/* ---- making ---- */

static ist_err
copy_place(struct places *s, const struct ist_sink_args *a, uint64_t i, struct ist_error *err)
{
	const struct ist_tensor *t = tensor_at(a, i);
	struct ist__item item = { .rank = t->rank, .shape = t->shape, .bytes = t->bytes, .file = IST__NO_FILE, .alias = IST__NO_ALIAS };
	struct place *p = &s->list[i];
	ist_err e;

	if (!t->name || !t->dtype || (!t->addr && t->bytes > 0) || t->mem != a->mem || (ist__is_far(a->mem) && t->device != a->device))
		return ist__fail(err, IST_INVALID_ARGUMENT, "sink_open", "place %llu: name, dtype or addr is missing, or it lies elsewhere than the sink",
			(unsigned long long)i);
	item.name = t->name;
	item.dtype = ist__dtype_find(t->dtype, strlen(t->dtype));
	e = ist__tensor_check(&item, "sink_open", "", err);
	if (e)
		return e;
	*p = (struct place){ .name = ist__strdup(s->ctx, t->name), .addr = (uint8_t *)(uintptr_t)t->addr, .bytes = t->bytes, .dtype = item.dtype };
	return p->name ? IST_OK : ist__fail_memory(err, "sink_open");
}

static ist_err
copy_places(struct places *s, const struct ist_sink_args *a, struct ist_error *err)
{
	ist_err e = IST_OK;

	s->list = ist__alloc(s->ctx, a->n_places * sizeof(*s->list));
	if (!s->list)
		return ist__fail_memory(err, "sink_open");
	for (s->n = 0; s->n < a->n_places && !e; s->n++)
		e = copy_place(s, a, s->n, err);
	if (e)
		return e;
	qsort(s->list, s->n, sizeof(*s->list), by_name);
	for (uint64_t i = 1; i < s->n; i++)
		if (!strcmp(s->list[i - 1].name, s->list[i].name)) {
			ist__fail(err, IST_CONFLICT, "sink_open", "there are two places for tensor \"%.200s\"", s->list[i].name);
			ist__fail_tensor(err, s->list[i].name);
			return IST_CONFLICT;
		}
	return IST_OK;
}

/* ---- an update ---- */

static void
forget(struct places *s)
{
	ist__free(s->ctx, s->of_item);
	s->of_item = NULL;
}

static ist_err
bad_fit(const struct place *p, const struct ist__item *t, ist_err e, struct ist_error *err)
{
	const char *have = ist__dtype_name(p->dtype), *come = ist__dtype_name(t->dtype);

	ist__fail(err, e, "sink", "tensor \"%.200s\" comes as %s of %llu bytes, and its place is %s of %llu", t->name, come ? come : "?",
		(unsigned long long)t->bytes, have ? have : "?", (unsigned long long)p->bytes);
	ist__fail_tensor(err, t->name);
	return e;
}

static ist_err
fit(struct places *s, const struct ist__item *t, uint8_t **out, struct ist_error *err)
{
	struct place key = { .name = (char *)(uintptr_t)t->name };
	struct place *p = s->n > 0 ? bsearch(&key, s->list, s->n, sizeof(*p), by_name) : NULL;

	if (!p) {
		ist__fail(err, IST_MISSING_TENSOR, "sink", "there is no place for tensor \"%.200s\"", t->name);
		ist__fail_tensor(err, t->name);
		return IST_MISSING_TENSOR;
	}
	if (p->dtype != t->dtype)
		return bad_fit(p, t, IST_DTYPE_MISMATCH, err);
	if (p->bytes != t->bytes)
		return bad_fit(p, t, IST_MISMATCH, err);
	p->used = true;
	*out = p->addr;
	return IST_OK;
}

static ist_err
fit_all(struct places *s, const struct ist__manifest *m, struct ist_error *err)
{
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < s->n; i++)
		s->list[i].used = false;
	for (uint64_t i = 0; i < m->n_items && !e; i++)
		if (m->items[i].kind == IST__ITEM_TENSOR)
			e = fit(s, &m->items[i], &s->of_item[i], err);
	for (uint64_t i = 0; i < s->n && !e; i++)
		if (!s->list[i].used) {
			e = ist__fail(err, IST_MISSING_TENSOR, "sink", "the update has no tensor \"%.200s\", for which there is a place", s->list[i].name);
			ist__fail_tensor(err, s->list[i].name);
		}
	return e;
}

static ist_err
begin(void *self, const struct ist__manifest *m, uint64_t version, struct ist_error *err)
{
	struct places *s = self;
	ist_err e;

	(void)version;
	s->of_item = ist__alloc(s->ctx, m->n_items * sizeof(*s->of_item));
	if (!s->of_item)
		return ist__fail_memory(err, "sink");
	e = fit_all(s, m, err);
	if (e)
		forget(s);
	return e;
}

static void *
place(const void *self, uint64_t item)
{
	return ((const struct places *)self)->of_item[item];
}

static ist_err
piece(void *self, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct places *s = self;
	struct ist_copy c = { .dst = s->of_item[item] + offset, .src = addr, .bytes = bytes };

	if (s->ferry.far.dev)
		return ist__ferry_copy(&s->ferry, &c, 1, err);
	memcpy(c.dst, addr, bytes);
	return IST_OK;
}

static ist_err
runs(void *self, uint64_t item, const struct ist__runs *r, const void *addr, struct ist_error *err)
{
	struct places *s = self;

	if (s->ferry.far.dev)
		return ist__sink_ferry_runs(&s->ferry, s->of_item[item], r, addr, err);
	ist__runs_copy(s->of_item[item] + r->offset, r, addr);
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
	(void)version, (void)err;
	forget(self);
	return IST_OK;
}

static void
abort_it(void *self, bool dirty)
{
	(void)dirty;
	forget(self);
}

static void
free_it(void *self)
{
	struct places *s = self;

	forget(s);
	for (uint64_t i = 0; s->list && i < s->n; i++)
		ist__free(s->ctx, s->list[i].name);
	ist__free(s->ctx, s->list);
	ist__ferry_close(&s->ferry);
	ist__free(s->ctx, s);
}

static const struct ist__sink_kind places_kind = {
	.name = "mem",
	.begin = begin,
	.piece = piece,
	.runs = runs,
	.prepare = prepare,
	.commit = commit,
	.abort = abort_it,
	.free = free_it,
	.place = place,
};

ist_err
ist__sink_places_open(struct ist_env *env, const struct ist_sink_args *args, struct ist_sink **out, struct ist_error *err)
{
	struct places *s;
	ist_err e = IST_OK;

	if (args->n_places > UINT32_MAX || (args->n_places > 0 && args->places->struct_size < sizeof(*args->places)))
		return ist__fail(err, IST_INVALID_ARGUMENT, "sink_open", "there are too many places, or their struct_size is too small");
	s = ist__alloc(ist__env_ctx(env), sizeof(*s));
	if (!s)
		return ist__fail_memory(err, "sink_open");
	s->ctx = ist__env_ctx(env);
	if (ist__is_far(args->mem))
		e = ist__ferry_open(env, args->mem, args->device, "sink_open", &s->ferry, err);
	if (!e)
		e = copy_places(s, args, err);
	if (e) {
		free_it(s);
		return e;
	}
	e = ist__sink_make(env, &places_kind, s, false, true, out, err);
	if (!e)
		ist__sink_set_far(*out, args->mem, args->device);
	return e;
}
