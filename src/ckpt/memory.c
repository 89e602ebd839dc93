/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - a checkpoint of tensors, and of slices of tensors, that lie in the caller's memory: in that of the host, of one
 * device, or some in each.
 */
#include "ckpt/checkpoint.h"

#include "base/fail.h"
#include "base/hash.h"
#include "ckpt/slice.h"

#include <stddef.h>
#include <string.h>

#define OP "checkpoint_from_tensors"
#define OP_SLICES "checkpoint_from_slices"

/* What the caller gave. */
struct given {
	const struct ist_tensor *tensors;
	const struct ist_slice *slices; /* NULL: whole tensors only */
	uint64_t n;
	const char *op;
	struct ist_env *env;
};

/* Which item owns an address; open addressing. */
struct owners {
	uint64_t *item; /* plus 1 */
	uint64_t room, seed;
};

/* The caller's structs may be longer than ours: they are that far apart. */
static const struct ist_tensor *
tensor_at(const struct given *g, uint64_t i)
{
	const void *at = (const uint8_t *)g->tensors + i * g->tensors->struct_size;

	return at;
}

static const struct ist_slice *
slice_at(const struct given *g, uint64_t i)
{
	const void *at = g->slices ? (const uint8_t *)g->slices + i * g->slices->struct_size : NULL;

	return at;
}

/* The owner of the bytes of item i, which may be i. */
static uint64_t
owner_of(struct owners *o, const struct ist__checkpoint_body *b, uint64_t i)
{
	struct {
		const void *addr;
		uint64_t bytes;
	} key = { b->addrs[i], b->m->items[i].bytes };
	uint64_t at = ist__hash64(&key, sizeof(key), o->seed) & (o->room - 1);

	while (o->item[at]) {
		uint64_t j = o->item[at] - 1;

		if (b->addrs[j] == key.addr && b->m->items[j].bytes == key.bytes)
			return j;
		at = (at + 1) & (o->room - 1);
	}
	o->item[at] = i + 1;
	return i;
}

/* What lies on a device is reached by a ferry, which is made for the first such tensor. */
static ist_err
add_place(struct ist__checkpoint_body *b, const struct given *g, const struct ist_tensor *t, uint64_t i, struct ist_error *err)
{
	const struct ist__far *far = b->ferry ? &b->ferry->far : NULL;

	b->addrs[i] = t->addr ? t->addr : "";
	if (!IST_HAS(t, device) || !ist__is_far(t->mem) || t->bytes == 0)
		return IST_OK;
	if (far && (far->mem != t->mem || far->index != t->device))
		return ist__fail(err, IST_INVALID_ARGUMENT, g->op, "tensor %s lies on device %d, and another on %s:%d: a checkpoint for each", t->name,
			t->device, far->dev->name, far->index);
	if (!far) {
		ist_err e;

		b->ferry = ist__alloc(b->ctx, sizeof(*b->ferry));
		e = b->ferry ? ist__ferry_open(g->env, t->mem, t->device, g->op, b->ferry, err) : ist__fail_memory(err, g->op);
		if (e)
			return e;
	}
	if (!b->far)
		b->far = ist__alloc(b->ctx, g->n);
	if (!b->far)
		return ist__fail_memory(err, g->op);
	b->far[i] = 1;
	return IST_OK;
}

static ist_err
add(struct ist__checkpoint_body *b, const struct given *g, struct owners *o, struct ist_error *err)
{
	struct ist__item item = { .file = IST__NO_FILE, .alias = IST__NO_ALIAS };
	uint64_t i = b->m->n_items, owner = i;
	const struct ist_tensor *t = tensor_at(g, i);
	const struct ist_slice *slice = slice_at(g, i);
	ist_err e;

	if (!t->name || !t->dtype || (!t->addr && t->bytes > 0))
		return ist__fail(err, IST_INVALID_ARGUMENT, g->op, "tensor %llu: name, dtype or addr is missing", (unsigned long long)i);
	item.name = t->name;
	item.dtype = ist__dtype_find(t->dtype, strlen(t->dtype));
	item.rank = t->rank;
	item.shape = t->shape;
	item.bytes = t->bytes;
	e = ist__tensor_check(&item, g->op, "", err); /* before anything is copied by its rank */
	if (e)
		return e;
	if (slice && !ist__slice_is_all(t->shape, slice->begin, slice->whole, t->rank)) {
		item.kind = IST__ITEM_SLICE;
		item.whole = slice->whole;
		item.begin = slice->begin;
	}
	if (!ist__manifest_add_item(b->m, &item, NULL))
		return ist__fail_memory(err, g->op);
	e = add_place(b, g, t, i, err);
	if (!e && t->bytes > 0 && item.kind == IST__ITEM_TENSOR)
		owner = owner_of(o, b, i);
	b->m->items[i].alias = owner == i ? IST__NO_ALIAS : owner;
	return e;
}

static ist_err
add_all(struct ist__checkpoint_body *b, const struct given *g, struct ist_error *err)
{
	struct owners o = { .room = 16, .seed = ist__hash_seed() };
	ist_err e = IST_OK;

	while (o.room < 2 * g->n)
		o.room *= 2;
	o.item = ist__alloc(b->ctx, o.room * sizeof(*o.item));
	b->addrs = ist__alloc(b->ctx, (g->n + 1) * sizeof(*b->addrs));
	if (!o.item || !b->addrs)
		e = ist__fail_memory(err, g->op);
	for (uint64_t i = 0; i < g->n && !e; i++)
		e = add(b, g, &o, err);
	ist__free(b->ctx, o.item);
	return e;
}

static ist_err
check_given(const struct given *g, struct ist_checkpoint **out, struct ist_error *err)
{
	if (!out || (!g->tensors && g->n > 0) || g->n > UINT32_MAX)
		return ist__fail(err, IST_INVALID_ARGUMENT, g->op, "tensors or out is missing, or there are too many");
	if (g->n > 0 && g->tensors->struct_size < offsetof(struct ist_tensor, mem))
		return ist__fail(err, IST_INVALID_ARGUMENT, g->op, "struct_size of the tensors is %u; this library needs %zu",
			g->tensors->struct_size, offsetof(struct ist_tensor, mem));
	if (g->n > 0 && g->slices && g->slices->struct_size < sizeof(*g->slices))
		return ist__fail(err, IST_INVALID_ARGUMENT, g->op, "struct_size of the slices is %u; this library needs %zu",
			g->slices->struct_size, sizeof(*g->slices));
	return IST_OK;
}

static ist_err
make(struct ist_env *env, const struct given *g, struct ist_checkpoint **out, struct ist_error *err)
{
	struct ist__checkpoint_body *b;
	ist_err e = ist__handle_check(env, IST__ENV, g->op, err);

	if (!e)
		e = check_given(g, out, err);
	if (e)
		return e;
	b = ist__checkpoint_body_new(ist__env_ctx(env), err);
	if (!b)
		return IST_NO_MEMORY;
	b->path = ist__strdup(b->ctx, "memory");
	e = b->path ? add_all(b, g, err) : ist__fail_memory(err, g->op);
	if (!e)
		e = ist__manifest_seal(b->m, g->op, err);
	if (!e)
		e = ist__checkpoint_make(env, b, out, err);
	if (e)
		ist__checkpoint_body_free(b);
	return e;
}

ist_err
ist_checkpoint_from_tensors(
	struct ist_env *env, const struct ist_tensor *tensors, uint64_t n, struct ist_checkpoint **out, struct ist_error *err)
{
	struct given g = { .tensors = tensors, .n = n, .op = OP, .env = env };

	return make(env, &g, out, err);
}

ist_err
ist_checkpoint_from_slices(struct ist_env *env, const struct ist_tensor *tensors, const struct ist_slice *slices, uint64_t n,
	struct ist_checkpoint **out, struct ist_error *err)
{
	struct given g = { .tensors = tensors, .slices = slices, .n = n, .op = OP_SLICES, .env = env };

	if (!slices && n > 0)
		return ist__fail(err, IST_INVALID_ARGUMENT, OP_SLICES, "slices is missing");
	return make(env, &g, out, err);
}
