/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.h - many small things that die together: names, shapes. Pieces are zeroed and aligned to 8.
 */
#ifndef ISTHMUS_BASE_ARENA_H
#define ISTHMUS_BASE_ARENA_H

#include "base/ctx.h"

struct ist__arena_block;

struct ist__arena {
	const struct ist__ctx *ctx;
	struct ist__arena_block *blocks;
	uint64_t left;
	uint8_t *at;
};

void ist__arena_init(struct ist__arena *a, const struct ist__ctx *ctx);
void ist__arena_fini(struct ist__arena *a);
void *ist__arena_alloc(struct ist__arena *a, uint64_t bytes); /* NULL: no memory */
/* n bytes and a closing 0. */
char *ist__arena_text(struct ist__arena *a, const void *text, uint64_t n);

#endif
