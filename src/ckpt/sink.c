/* SPDX-License-Identifier: Apache-2.0
 *
 * sink.c - what all sinks share: the order of calls, aliases, slices, which kind a destination's text means.
 */
#include "ckpt/sink.h"

#include "base/fail.h"
#include "base/memroom.h"

#include <string.h>

static void
end_sink(void *handle)
{
	ist_sink_free(handle);
}

ist_err
ist__sink_make(struct ist_env *env, const struct ist__sink_kind *kind, void *self, bool raw, bool in_place, struct ist_sink **out,
	struct ist_error *err)
{
	struct ist_sink *s = ist__handle_new(env, IST__SINK, sizeof(*s));

	if (!s) {
		kind->free(self);
		return ist__fail_memory(err, "sink_open");
	}
	s->kind = kind;
	s->self = self;
	s->raw = raw;
	s->in_place = in_place;
	ist__handle_owned(s, end_sink);
	*out = s;
	return IST_OK;
}

static const struct ist__ctx *
ctx_of(const struct ist_sink *sink)
{
	return ist__env_ctx(sink->handle.env);
}

static ist_err
fail_state(const char *op, struct ist_error *err)
{
	return ist__fail(err, IST_BAD_STATE, op, "the sink is not at this step of an update");
}

/* ---- aliases ---- */

/* A chain from each owner through its aliases. Item 0 is never an alias, so that 0 can end a chain. */
static ist_err
chain_aliases(struct ist_sink *s, const struct ist__manifest *m, struct ist_error *err)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < m->n_items; i++)
		n += m->items[i].alias != IST__NO_ALIAS;
	if (n == 0 || s->kind->one_place)
		return IST_OK;
	s->next_alias = ist__alloc(ctx_of(s), m->n_items * sizeof(*s->next_alias));
	if (!s->next_alias)
		return ist__fail_memory(err, "sink");
	for (uint64_t i = m->n_items; i-- > 0;) {
		uint64_t owner = m->items[i].alias;

		if (owner == IST__NO_ALIAS)
			continue;
		s->next_alias[i] = s->next_alias[owner];
		s->next_alias[owner] = i;
	}
	return IST_OK;
}

static void
rest(struct ist_sink *s)
{
	ist__free(ctx_of(s), s->next_alias);
	s->next_alias = NULL;
	s->m = NULL;
	s->state = IST__SINK_IDLE;
	s->touched = 0;
}

/* ---- slices ---- */

static ist_err
put_runs(struct ist_sink *sink, uint64_t item, const struct ist__runs *r, const uint8_t *at, struct ist_error *err)
{
	ist_err e = IST_OK;

	if (sink->kind->runs && r->count > 1)
		return sink->kind->runs(sink->self, item, r, at, err);
	for (uint64_t i = 0; i < r->count && !e; i++)
		e = sink->kind->piece(sink->self, item, r->offset + i * r->stride, at + i * r->bytes, r->bytes, err);
	return e;
}

/* A stretch of a slice into its tensor. */
static ist_err
put_slice(struct ist_sink *sink, const struct ist__item *t, uint64_t offset, const uint8_t *at, uint64_t bytes, struct ist_error *err)
{
	struct ist__scatter s;
	struct ist__runs r;
	ist_err e = IST_OK;

	if (t->part_of == 0)
		return ist__fail(err, IST_INTERNAL, "sink_piece", "a slice without its tensor");
	ist__scatter_init(&s, t);
	for (uint64_t done = 0, n; done < bytes && !e; done += n) {
		n = ist__scatter_next(&s, offset + done, bytes - done, &r);
		e = put_runs(sink, t->part_of - 1, &r, at + done, err);
	}
	return e;
}

/* ---- an update ---- */

ist_err
ist__sink_begin(struct ist_sink *sink, const struct ist__manifest *m, uint64_t version, struct ist_error *err)
{
	ist_err e;

	if (sink->state != IST__SINK_IDLE)
		return fail_state("sink_begin", err);
	e = chain_aliases(sink, m, err);
	if (!e)
		e = sink->kind->begin(sink->self, m, version, err);
	if (e) {
		rest(sink);
		return e;
	}
	sink->m = m;
	sink->state = IST__SINK_BEGUN;
	return IST_OK;
}

static ist_err
check_piece(const struct ist_sink *sink, uint64_t item, uint64_t offset, uint64_t bytes, struct ist_error *err)
{
	const struct ist__manifest *m = sink->m;

	if (sink->state != IST__SINK_BEGUN)
		return fail_state("sink_piece", err);
	if (item >= m->n_items || offset > m->items[item].bytes || bytes > m->items[item].bytes - offset)
		return ist__fail(err, IST_INVALID_ARGUMENT, "sink_piece", "the piece lies outside of the tensor");
	return IST_OK;
}

ist_err
ist__sink_piece(struct ist_sink *sink, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	const struct ist__manifest *m = sink->m;
	ist_err e = check_piece(sink, item, offset, bytes, err);

	if (e)
		return e;
	if (bytes == 0 || (ist__item_is_raw(&m->items[item]) && !sink->raw))
		return IST_OK;
	__atomic_store_n(&sink->touched, 1, __ATOMIC_RELAXED);
	if (m->items[item].kind == IST__ITEM_SLICE)
		return put_slice(sink, &m->items[item], offset, addr, bytes, err);
	do {
		e = sink->kind->piece(sink->self, item, offset, addr, bytes, err);
		item = sink->next_alias ? sink->next_alias[item] : 0;
	} while (!e && item);
	return e;
}

/* ---- on a device ---- */

bool
ist__copies_add(struct ist__copies *c, void *dst, const void *src, uint64_t bytes)
{
	void *at = c->at;

	if (!ist__grow(c->ctx, &at, &c->room, c->n + 1, sizeof(*c->at)))
		return false;
	c->at = at;
	c->at[c->n++] = (struct ist_copy){ .dst = dst, .src = src, .bytes = bytes };
	return true;
}

void
ist__sink_set_far(struct ist_sink *sink, uint32_t mem, int32_t device)
{
	sink->mem = mem;
	sink->device = device;
}

enum { RUNS_AT_ONCE = 64 };

ist_err
ist__sink_ferry_runs(struct ist__ferry *y, void *place, const struct ist__runs *r, const void *addr, struct ist_error *err)
{
	struct ist_copy list[RUNS_AT_ONCE];
	ist_err e = IST_OK;

	for (uint64_t i = 0, n; i < r->count && !e; i += n) {
		for (n = 0; n < RUNS_AT_ONCE && i + n < r->count; n++)
			list[n] = (struct ist_copy){ .dst = (uint8_t *)place + r->offset + (i + n) * r->stride,
				.src = (const uint8_t *)addr + (i + n) * r->bytes, .bytes = r->bytes };
		e = ist__ferry_copy(y, list, n, err);
	}
	return e;
}

bool
ist__sink_is_on(const struct ist_sink *sink, uint32_t mem, int32_t device)
{
	return sink->kind->drops || (sink->kind->place && sink->mem == mem && sink->device == device);
}

static bool
copy_slice(struct ist_sink *sink, const struct ist__item *t, uint64_t offset, const uint8_t *at, uint64_t bytes, struct ist__copies *out)
{
	uint8_t *place = sink->kind->place(sink->self, t->part_of - 1);
	struct ist__scatter s;
	struct ist__runs r;

	ist__scatter_init(&s, t);
	for (uint64_t done = 0, n; place && done < bytes; done += n) {
		n = ist__scatter_next(&s, offset + done, bytes - done, &r);
		for (uint64_t i = 0; i < r.count; i++)
			if (!ist__copies_add(out, place + r.offset + i * r.stride, at + done + i * r.bytes, r.bytes))
				return false;
	}
	return true;
}

ist_err
ist__sink_copies(struct ist_sink *sink, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist__copies *out,
	struct ist_error *err)
{
	const struct ist__item *items = sink->m ? sink->m->items : NULL;
	ist_err e = check_piece(sink, item, offset, bytes, err);
	bool room = true;

	if (e || bytes == 0 || sink->kind->drops || ist__item_is_raw(&items[item]))
		return e;
	__atomic_store_n(&sink->touched, 1, __ATOMIC_RELAXED);
	if (items[item].kind == IST__ITEM_SLICE) {
		if (items[item].part_of == 0)
			return ist__fail(err, IST_INTERNAL, "sink_piece", "a slice without its tensor");
		room = copy_slice(sink, &items[item], offset, addr, bytes, out);
	}
	while (room && items[item].kind != IST__ITEM_SLICE) {
		uint8_t *place = sink->kind->place(sink->self, item);

		room = !place || ist__copies_add(out, place + offset, addr, bytes);
		item = sink->next_alias ? sink->next_alias[item] : 0;
		if (!item)
			break;
	}
	return room ? IST_OK : ist__fail_memory(err, "sink_piece");
}

ist_err
ist__sink_prepare(struct ist_sink *sink, struct ist_error *err)
{
	ist_err e;

	if (sink->state != IST__SINK_BEGUN)
		return fail_state("sink_prepare", err);
	e = sink->kind->prepare(sink->self, err);
	if (!e)
		sink->state = IST__SINK_READY;
	return e;
}

ist_err
ist__sink_commit(struct ist_sink *sink, uint64_t version, struct ist_error *err)
{
	ist_err e;

	if (sink->state != IST__SINK_READY)
		return fail_state("sink_commit", err);
	e = sink->kind->commit(sink->self, version, err);
	rest(sink);
	return e;
}

bool
ist__sink_abort(struct ist_sink *sink)
{
	bool dirty = sink->in_place && __atomic_load_n(&sink->touched, __ATOMIC_RELAXED);

	if (sink->state == IST__SINK_IDLE)
		return false;
	sink->kind->abort(sink->self, dirty);
	rest(sink);
	return dirty;
}

bool
ist__sink_wants_raw(const struct ist_sink *sink)
{
	return sink->raw;
}

ist_err
ist__sink_check_memory(uint64_t need, struct ist_error *err)
{
	uint64_t limit, room;

	if (!ist__memory_room(&limit, &room) || need <= room)
		return IST_OK;
	return ist__fail(err, IST_NO_MEMORY, "sink", "need %llu bytes; the control group's limit is %llu, and %llu are left of it",
		(unsigned long long)need, (unsigned long long)limit, (unsigned long long)room);
}

/* ---- the public face ---- */

ist_err
ist_sink_open(struct ist_env *env, const char *dest, uint32_t flags, struct ist_sink **out, struct ist_error *err)
{
	struct ist_sink_args args = { .struct_size = sizeof(args), .flags = flags, .device = -1 };

	return ist_sink_open_at(env, dest, &args, out, err);
}

ist_err
ist_sink_open_at(struct ist_env *env, const char *dest, const struct ist_sink_args *args, struct ist_sink **out, struct ist_error *err)
{
	ist_err e = ist__handle_check(env, IST__ENV, "sink_open", err);
	uint32_t flags;

	if (e)
		return e;
	if (!args || args->struct_size < sizeof(*args))
		return ist__fail(err, IST_INVALID_ARGUMENT, "sink_open", "args is missing, or struct_size is too small");
	flags = args->flags;
	if (dest && !dest[0])
		return ist__fail(err, IST_INVALID_ARGUMENT, "sink_open", "the destination is empty");
	if (!dest || !out || (flags & ~(uint32_t)(IST_SINK_NO_REPLACE | IST_SINK_WEIGHTS_ONLY)))
		return ist__fail(err, IST_INVALID_ARGUMENT, "sink_open", "dest or out is missing, or flags is not made of those there are");
	if (!strcmp(dest, "mem:"))
		return ist__sink_mem_open(env, args, out, err);
	if (args->mem != IST_MEM_HOST || args->places)
		return ist__fail(err, IST_INVALID_ARGUMENT, "sink_open", "mem: has a device, or places; %s has neither", dest);
	if (!strcmp(dest, "null:"))
		return ist__sink_null_open(env, out, err);
	if (!strncmp(dest, "shm:", 4))
		return ist__sink_shm_open(env, dest + 4, flags, out, err);
	if (!strncmp(dest, "mem:", 4) || !strncmp(dest, "null:", 5))
		return ist__fail(err, IST_INVALID_ARGUMENT, "sink_open", "\"%s\": nothing stands after mem: and null:", dest);
	return ist__sink_dir_open(env, dest, flags, out, err);
}

void
ist_sink_free(struct ist_sink *sink)
{
	if (!sink || !ist__handle_kill(sink, IST__SINK))
		return;
	ist__sink_abort(sink);
	sink->kind->free(sink->self);
	sink->self = NULL;
	ist__handle_bury(sink);
}

ist_err
ist_sink_tensor(struct ist_sink *sink, const char *name, struct ist_tensor *out, struct ist_error *err)
{
	ist_err e = ist__handle_check(sink, IST__SINK, "sink_tensor", err);
	struct ist_tensor t;
	uint32_t size;

	if (e)
		return e;
	if (!name || !out)
		return ist__fail(err, IST_INVALID_ARGUMENT, "sink_tensor", "name or out is missing");
	if (!sink->kind->tensor)
		return ist__fail(err, IST_UNSUPPORTED, "sink_tensor", "a sink of kind %s keeps no tensors", sink->kind->name);
	e = sink->kind->tensor(sink->self, name, &t, err);
	if (e)
		return e;
	size = out->struct_size && out->struct_size < sizeof(t) ? out->struct_size : (uint32_t)sizeof(t);
	t.struct_size = size;
	memcpy(out, &t, size);
	return IST_OK;
}
