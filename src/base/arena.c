/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include <string.h>

struct ist__arena_block {
	struct ist__arena_block *next;
	uint64_t room; /* of this block; the two keep what follows at 16 */
};

#define BLOCK_MIN UINT64_C(4096)
#define BLOCK_MAX (UINT64_C(1) << 20)

void
ist__arena_init(struct ist__arena *a, const struct ist__ctx *ctx)
{
	*a = (struct ist__arena){ .ctx = ctx };
}

void
ist__arena_fini(struct ist__arena *a)
{
	while (a->blocks) {
		struct ist__arena_block *b = a->blocks;

		a->blocks = b->next;
		ist__free(a->ctx, b);
	}
	*a = (struct ist__arena){ .ctx = a->ctx };
}

/* Blocks grow with the arena: few for much, little for few. */
static uint64_t
block_bytes(const struct ist__arena *a, uint64_t need)
{
	uint64_t n = a->blocks ? a->blocks->room * 2 : BLOCK_MIN;

	if (n > BLOCK_MAX)
		n = BLOCK_MAX;
	return n < need ? need : n;
}

void *
ist__arena_alloc(struct ist__arena *a, uint64_t bytes)
{
	uint64_t need, room, total;
	struct ist__arena_block *b;
	void *p;

	if (__builtin_add_overflow(bytes, 7u, &need))
		return NULL;
	need &= ~UINT64_C(7);
	if (need > a->left || !a->at) {
		room = block_bytes(a, need);
		if (__builtin_add_overflow(room, sizeof(*b), &total))
			return NULL;
		b = ist__alloc(a->ctx, total);
		if (!b)
			return NULL;
		b->next = a->blocks;
		b->room = room;
		a->blocks = b;
		a->at = (uint8_t *)(b + 1);
		a->left = room;
	}
	p = a->at;
	a->at += need;
	a->left -= need;
	return p;
}

char *
ist__arena_text(struct ist__arena *a, const void *text, uint64_t n)
{
	char *p = n == UINT64_MAX ? NULL : ist__arena_alloc(a, n + 1);

	if (p && n > 0)
		memcpy(p, text, n);
	return p;
}
