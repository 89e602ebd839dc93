/* SPDX-License-Identifier: Apache-2.0
 *
 * slab.h - pieces of memory that come and go all the time (frames, byte strings). What is given back is kept for the
 * next taker, up to a bound, so that a steady state asks the allocator for nothing. Any thread.
 */
#ifndef ISTHMUS_BASE_SLAB_H
#define ISTHMUS_BASE_SLAB_H

#include "base/ctx.h"

#include <pthread.h>

enum { IST__SLAB_CLASSES = 15, IST__SLAB_KEEP = 64 }; /* 64 B ... 1 MiB */

struct ist__piece;
struct ist__slab {
	const struct ist__ctx *ctx;
	pthread_mutex_t lock;
	struct ist__piece *free[IST__SLAB_CLASSES];
	uint32_t kept[IST__SLAB_CLASSES];
};

void ist__slab_init(struct ist__slab *slab, const struct ist__ctx *ctx);
/* Puts count pieces of every class up to bytes_max by, since how many are out at once varies. Best effort. */
void ist__slab_warm(struct ist__slab *slab, uint64_t bytes_max, uint32_t count);
void ist__slab_fini(struct ist__slab *slab);
void *ist__slab_get(struct ist__slab *slab, uint64_t bytes); /* not zeroed, 16-aligned; NULL: no memory */
void ist__slab_put(struct ist__slab *slab, void *p);         /* NULL is allowed */

#endif
