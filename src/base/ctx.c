/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ctx.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *
plain_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	void *p = NULL;

	(void)ctx, (void)kind, (void)numa;
	if (align <= 16)
		return malloc(bytes ? bytes : 1);
	return posix_memalign(&p, align, bytes ? bytes : 1) ? NULL : p;
}

static void
plain_free(void *ctx, void *p)
{
	(void)ctx;
	free(p);
}

void
ist__ctx_init(struct ist__ctx *ctx)
{
	*ctx = (struct ist__ctx){ .log_level = -1, .numa = -1, .alloc = plain_alloc, .free = plain_free };
}

void
ist__log(const struct ist__ctx *ctx, int32_t level, const char *fmt, ...)
{
	int saved = errno;
	char text[1024];
	va_list ap;

	if (!ctx->log || level > ctx->log_level)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	ctx->log(ctx->log_ctx, level, text);
	errno = saved;
}

void *
ist__alloc_aligned(const struct ist__ctx *ctx, uint64_t bytes, uint64_t align)
{
	return ctx->alloc(ctx->mem_ctx, bytes, align, 0, ctx->numa);
}

void *
ist__alloc(const struct ist__ctx *ctx, uint64_t bytes)
{
	void *p = ist__alloc_aligned(ctx, bytes, 16);

	if (p)
		memset(p, 0, bytes);
	return p;
}

void
ist__free(const struct ist__ctx *ctx, void *p)
{
	if (p)
		ctx->free(ctx->mem_ctx, p);
}

char *
ist__strdup(const struct ist__ctx *ctx, const char *s)
{
	size_t n = strlen(s) + 1;
	char *copy = ist__alloc(ctx, n);

	if (copy)
		memcpy(copy, s, n);
	return copy;
}

bool
ist__grow(const struct ist__ctx *ctx, void **array, uint64_t *room, uint64_t need, uint64_t elem)
{
	uint64_t n = *room ? *room : 8, bytes;
	void *p;

	if (need <= *room)
		return true;
	while (n < need)
		n = n > UINT64_MAX / 2 ? need : n * 2;
	if (__builtin_mul_overflow(n, elem, &bytes))
		return false;
	p = ist__alloc(ctx, bytes);
	if (!p)
		return false;
	if (*array)
		memcpy(p, *array, *room * elem);
	ist__free(ctx, *array);
	*array = p;
	*room = n;
	return true;
}
