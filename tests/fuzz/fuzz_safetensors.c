/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_safetensors.c - any bytes as a safetensors file: read, or refused, and what was read keeps its promises.
 */
#include "ckpt/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct file {
	const uint8_t *at;
	uint64_t bytes;
};

static bool
read_memory(void *ctx, uint64_t offset, void *to, uint64_t bytes, struct ist_error *err)
{
	const struct file *f = ctx;

	(void)err;
	if (offset > f->bytes || bytes > f->bytes - offset)
		abort(); /* the reader asks for what is there, and for nothing else */
	if (bytes > 0)
		memcpy(to, f->at + offset, bytes);
	return true;
}

static void
check(const struct ist__st_file *st, uint64_t size)
{
	uint64_t due = st->header_bytes, bytes;

	for (uint64_t i = 0; i < st->n; i++) {
		const struct ist__item *t = &st->tensors[i];

		if (t->offset != due || ist__dtype_bytes(t->dtype, t->shape, t->rank, &bytes) || bytes != t->bytes ||
		    !ist__name_ok(t->name, strlen(t->name)))
			abort();
		due += t->bytes;
	}
	if (due != st->data_end || due > size)
		abort();
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct file f = { data, size };
	struct ist__bytes_source source = { .ctx = &f, .read = read_memory, .bytes = size, .name = "fuzz" };
	struct ist__st_args args = { .allow_trailing = size > 0 && (data[size - 1] & 1) };
	struct ist__st_file st = { 0 };
	struct ist__arena arena;
	struct ist_error err;
	struct ist__ctx ctx;
	ist_err e;

	ist__ctx_init(&ctx);
	ist__arena_init(&arena, &ctx);
	ist_error_init(&err);
	e = ist__safetensors_read(&arena, &source, &args, &st, &err);
	if (e != err.code || e == IST_INTERNAL)
		abort();
	if (!e)
		check(&st, size);
	ist__free(&ctx, st.tensors);
	ist__arena_fini(&arena);
	return 0;
}
