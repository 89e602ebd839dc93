/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - a checkpoint of tensors that lie in the caller's memory.
 */
#include "ckpt/checkpoint.h"

#include "base/fail.h"
#include "base/hash.h"

#include <stddef.h>
#include <string.h>

#define OP "checkpoint_from_tensors"

/* Which item owns an address; open addressing. */
struct owners {
	uint64_t *item; /* plus 1 */
	uint64_t room, seed;
};

/* The caller's structs may be longer than ours: they are that far apart. */
static const struct ist_tensor *
tensor_at(const struct ist_tensor *tensors, uint64_t i)
{
	const void *at = (const uint8_t *)tensors + i * tensors->struct_size;

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

static ist_err
add(struct ist__checkpoint_body *b, const struct ist_tensor *t, struct owners *o, struct ist_error *err)
{
	struct ist__item item = { .file = IST__NO_FILE, .alias = IST__NO_ALIAS };
	uint64_t i = b->m->n_items, owner;
	ist_err e;

	if (!t->name || !t->dtype || (!t->addr && t->bytes > 0))
		return ist__fail(err, IST_INVALID_ARGUMENT, OP, "tensor %llu: name, dtype or addr is missing", (unsigned long long)i);
	item.name = t->name;
	item.dtype = ist__dtype_find(t->dtype, strlen(t->dtype));
	item.rank = t->rank;
	item.shape = t->shape;
	item.bytes = t->bytes;
	e = ist__tensor_check(&item, OP, "", err); /* before anything is copied by its rank */
	if (e)
		return e;
	if (!ist__manifest_add_item(b->m, &item, NULL))
		return ist__fail_memory(err, OP);
	b->addrs[i] = t->addr ? t->addr : "";
	owner = t->bytes > 0 ? owner_of(o, b, i) : i;
	b->m->items[i].alias = owner == i ? IST__NO_ALIAS : owner;
	return IST_OK;
}

static ist_err
add_all(struct ist__checkpoint_body *b, const struct ist_tensor *tensors, uint64_t n, struct ist_error *err)
{
	struct owners o = { .room = 16, .seed = ist__hash_seed() };
	ist_err e = IST_OK;

	while (o.room < 2 * n)
		o.room *= 2;
	o.item = ist__alloc(b->ctx, o.room * sizeof(*o.item));
	b->addrs = ist__alloc(b->ctx, (n + 1) * sizeof(*b->addrs));
	if (!o.item || !b->addrs)
		e = ist__fail_memory(err, OP);
	for (uint64_t i = 0; i < n && !e; i++)
		e = add(b, tensor_at(tensors, i), &o, err);
	ist__free(b->ctx, o.item);
	return e;
}

ist_err
ist_checkpoint_from_tensors(
	struct ist_env *env, const struct ist_tensor *tensors, uint64_t n, struct ist_checkpoint **out, struct ist_error *err)
{
	struct ist__checkpoint_body *b;
	ist_err e = ist__handle_check(env, IST__ENV, OP, err);

	if (e)
		return e;
	if (!out || (!tensors && n > 0) || n > UINT32_MAX)
		return ist__fail(err, IST_INVALID_ARGUMENT, OP, "tensors or out is missing, or there are too many");
	if (n > 0 && tensors->struct_size < sizeof(*tensors))
		return ist__fail(err, IST_INVALID_ARGUMENT, OP, "struct_size of the tensors is %u; this library needs %zu", tensors->struct_size, sizeof(*tensors));
	b = ist__checkpoint_body_new(ist__env_ctx(env), err);
	if (!b)
		return IST_NO_MEMORY;
	b->path = ist__strdup(b->ctx, "memory");
	e = b->path ? add_all(b, tensors, n, err) : ist__fail_memory(err, OP);
	if (!e)
		e = ist__manifest_seal(b->m, OP, err);
	if (!e)
		e = ist__checkpoint_make(env, b, out, err);
	if (e)
		ist__checkpoint_body_free(b);
	return e;
}
