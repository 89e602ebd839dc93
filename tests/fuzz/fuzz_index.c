/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_index.c - any bytes as an index.json: read, or refused; what was read is sorted, is found again, and names nothing
 * outside its folder.
 */
#include "fuzz.h"

#include "ckpt/index.h"

static bool
read_memory(void *ctx, uint64_t offset, void *to, uint64_t bytes, struct ist_error *err)
{
	const struct input *in = ctx;

	(void)err;
	must(offset <= in->left && bytes <= in->left - offset);
	if (bytes > 0)
		memcpy(to, in->at + offset, bytes);
	return true;
}

static void
check(const struct ist__index *x)
{
	for (uint64_t i = 0; i < x->n; i++) {
		const struct ist__index_row *row = &x->rows[i];

		must(ist__name_ok(row->tensor, strlen(row->tensor)) && ist__file_name_ok(row->file, strlen(row->file)));
		must(!strchr(row->file, '/'));
		must(i == 0 || strcmp(x->rows[i - 1].tensor, row->tensor) < 0); /* no name stands twice */
		must(ist__index_find(x, row->tensor) == row);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct ist__bytes_source source = { .ctx = &in, .read = read_memory, .bytes = size, .name = "fuzz" };
	struct ist__index x = { 0 };
	struct ist__arena arena;
	struct ist_error err;
	struct ist__ctx ctx;
	ist_err e;

	ist__ctx_init(&ctx);
	ist__arena_init(&arena, &ctx);
	ist_error_init(&err);
	e = ist__index_read(&arena, &source, &x, &err);
	must(e == err.code && e != IST_INTERNAL);
	if (!e)
		check(&x);
	else
		must(!x.rows);
	ist__free(&ctx, x.rows);
	ist__arena_fini(&arena);
	return 0;
}
