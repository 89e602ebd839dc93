/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/ledger.h"

#include "base/dtype.h"
#include "base/fail.h"
#include "ckpt/manifest.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 511 }; /* what an error has room for */

void
ist__ledger_init(struct ist__ledger *l, const struct ist__ctx *ctx)
{
	*l = (struct ist__ledger){ .n = 0 };
	ist__arena_init(&l->arena, ctx);
	ist__names_init(&l->names, ctx);
}

void
ist__ledger_fini(struct ist__ledger *l)
{
	if (!l->arena.ctx)
		return;
	ist__free(l->arena.ctx, l->entries);
	ist__names_fini(&l->names);
	ist__arena_fini(&l->arena);
	*l = (struct ist__ledger){ .n = 0 };
}

static ist_err
check(const struct ist_tensor *t, uint32_t *dtype, const char *op, struct ist_error *err)
{
	uint64_t bytes;
	ist_err e;

	if (!t->name || !t->dtype)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "a tensor needs a name and a dtype");
	if (strlen(t->name) > NAME_MAX_BYTES || !ist__name_ok(t->name, strlen(t->name)))
		return ist__fail(err, IST_BAD_NAME, op, "a name is at most %d bytes of UTF-8 without control characters", NAME_MAX_BYTES);
	*dtype = ist__dtype_find(t->dtype, strlen(t->dtype));
	if (*dtype == IST__DTYPE_NONE)
		e = ist__fail(err, IST_UNKNOWN_DTYPE, op, "tensor %s: dtype \"%.32s\" is not one of the safetensors format", t->name, t->dtype);
	else if (t->rank > IST_DIMS_MAX)
		e = ist__fail(err, IST_LIMIT, op, "tensor %s: %u dimensions are more than %d", t->name, t->rank, IST_DIMS_MAX);
	else if ((e = ist__dtype_bytes(*dtype, t->shape, t->rank, &bytes)) != IST_OK)
		e = ist__fail(err, e, op, "tensor %s: the bits of its elements are no whole number of bytes in 64 bits", t->name);
	else if (bytes != t->bytes)
		e = ist__fail(err, IST_BAD_ENTRY, op, "tensor %s: dtype and shape make %llu bytes, not %llu", t->name,
			(unsigned long long)bytes, (unsigned long long)t->bytes);
	if (e)
		ist__fail_tensor(err, t->name);
	return e;
}

ist_err
ist__ledger_add(struct ist__ledger *l, const struct ist_tensor *t, const char *op, struct ist_error *err)
{
	void *array = l->entries;
	struct ist__entry x = { .rank = t->rank, .bytes = t->bytes };
	uint32_t dtype = 0, known;
	ist_err e = check(t, &dtype, op, err);

	if (e)
		return e;
	if (ist__names_find(&l->names, t->name, strlen(t->name)) != IST__NO_NAME) {
		e = ist__fail(err, IST_DUPLICATE_KEY, op, "tensor %s stands twice in one stream", t->name);
		ist__fail_tensor(err, t->name);
		return e;
	}
	x.dtype = ist__dtype_name(dtype);
	x.name = ist__arena_text(&l->arena, t->name, strlen(t->name));
	x.alias_of = t->alias_of && *t->alias_of ? ist__arena_text(&l->arena, t->alias_of, strlen(t->alias_of)) : "";
	x.shape = ist__arena_alloc(&l->arena, (t->rank ? t->rank : 1) * sizeof(*x.shape));
	if (!x.name || !x.alias_of || !x.shape || !ist__grow(l->arena.ctx, &array, &l->room, l->n + 1, sizeof(*l->entries)))
		return ist__fail_memory(err, op);
	l->entries = array;
	memcpy(x.shape, t->shape, t->rank * sizeof(*x.shape));
	if (!ist__names_add(&l->names, x.name, strlen(x.name), (uint32_t)l->n, &known))
		return ist__fail_memory(err, op);
	l->entries[l->n++] = x;
	l->bytes += x.bytes;
	return IST_OK;
}

void
ist__ledger_tensor(const struct ist__ledger *l, uint64_t i, struct ist_tensor *out)
{
	const struct ist__entry *x = &l->entries[i];

	*out = (struct ist_tensor){
		.struct_size = sizeof(*out),
		.rank = x->rank,
		.name = x->name,
		.dtype = x->dtype,
		.bytes = x->bytes,
		.file = "",
		.alias_of = x->alias_of,
	};
	memcpy(out->shape, x->shape, x->rank * sizeof(*x->shape));
}

static int
by_name(const void *a, const void *b)
{
	const struct ist__entry *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name); /* as unsigned bytes */
}

bool
ist__ledger_digest(const struct ist__ledger *l, struct ist__digest *out)
{
	const struct ist__entry **order = ist__alloc(l->arena.ctx, l->n * sizeof(*order));
	struct ist__hasher h;

	if (!order)
		return false;
	for (uint64_t i = 0; i < l->n; i++)
		order[i] = &l->entries[i];
	if (l->n > 0)
		qsort(order, l->n, sizeof(*order), by_name);
	ist__hasher_init(&h);
	for (uint64_t i = 0; i < l->n; i++)
		ist__digest_add_tensor(&h, order[i]->name, order[i]->dtype, order[i]->shape, order[i]->rank, &order[i]->digest);
	ist__hasher_end(&h, out);
	ist__free(l->arena.ctx, order);
	return true;
}
