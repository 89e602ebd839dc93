/* SPDX-License-Identifier: Apache-2.0 */
#include "base/tally.h"

#include <stdatomic.h>

struct ist__tally {
	struct ist__ctx ctx, under;
	_Atomic uint64_t bytes;
	_Atomic uint64_t holds; /* the owner, and each piece that is out */
};

/* Before each piece, at its end: how long it is, and how far before it what was got from below begins. */
struct head {
	uint64_t bytes, offset;
};

static void
let_go(struct ist__tally *t)
{
	struct ist__ctx under = t->under;

	if (atomic_fetch_sub(&t->holds, 1) == 1)
		ist__free(&under, t);
}

static void *
tally_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	struct ist__tally *t = ctx;
	uint64_t offset = align > sizeof(struct head) ? align : sizeof(struct head), whole;
	struct head *h;
	uint8_t *p;

	if (__builtin_add_overflow(bytes, offset, &whole))
		return NULL;
	p = t->under.alloc(t->under.mem_ctx, whole, offset, kind, numa);
	if (!p)
		return NULL;
	h = (struct head *)(void *)(p + offset) - 1;
	*h = (struct head){ .bytes = whole, .offset = offset };
	atomic_fetch_add(&t->bytes, whole);
	atomic_fetch_add(&t->holds, 1);
	return p + offset;
}

static void
tally_free(void *ctx, void *at)
{
	struct ist__tally *t = ctx;
	struct head h = ((struct head *)at)[-1];

	t->under.free(t->under.mem_ctx, (uint8_t *)at - h.offset);
	atomic_fetch_sub(&t->bytes, h.bytes);
	let_go(t);
}

struct ist__tally *
ist__tally_new(const struct ist__ctx *under)
{
	struct ist__tally *t = ist__alloc(under, sizeof(*t));

	if (!t)
		return NULL;
	t->ctx = t->under = *under;
	t->ctx.alloc = tally_alloc;
	t->ctx.free = tally_free;
	t->ctx.mem_ctx = t;
	atomic_store(&t->bytes, sizeof(*t));
	atomic_store(&t->holds, 1);
	return t;
}

const struct ist__ctx *
ist__tally_ctx(struct ist__tally *tally)
{
	return &tally->ctx;
}

uint64_t
ist__tally_bytes(const struct ist__tally *tally)
{
	return atomic_load(&tally->bytes);
}

void
ist__tally_drop(struct ist__tally *tally)
{
	if (tally)
		let_go(tally);
}
