/* SPDX-License-Identifier: Apache-2.0
 *
 * ctx.h - what every layer needs of an env: a log sink and an allocator. Nothing here is global.
 */
#ifndef ISTHMUS_BASE_CTX_H
#define ISTHMUS_BASE_CTX_H

#include <isthmus/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ist__ctx {
	int32_t log_level; /* enum ist_log_level; -1: silent */
	int32_t numa;      /* node of big memory, -1: any */
	void (*log)(void *ctx, int32_t level, const char *msg);
	void *log_ctx;
	void *(*alloc)(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa);
	void (*free)(void *ctx, void *p);
	void *mem_ctx;
};

/* A ctx that is silent and uses malloc. */
void ist__ctx_init(struct ist__ctx *ctx);

/* Levels as in enum ist_log_level. Lower case, no full stop, values after their noun; errno is kept. */
void ist__log(const struct ist__ctx *ctx, int32_t level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* All memory of the library comes from here. Zeroed; NULL when there is none; bytes may be 0. */
void *ist__alloc(const struct ist__ctx *ctx, uint64_t bytes);
void *ist__alloc_aligned(const struct ist__ctx *ctx, uint64_t bytes, uint64_t align); /* not zeroed */
void ist__free(const struct ist__ctx *ctx, void *p);
char *ist__strdup(const struct ist__ctx *ctx, const char *s);
/* Makes room for need elements of elem bytes in *array (*room have room now), doubling. False: no memory, nothing
 * changed. New elements are zero. */
bool ist__grow(const struct ist__ctx *ctx, void **array, uint64_t *room, uint64_t need, uint64_t elem);

#endif
