/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_manifest.c - any bytes as a manifest from the wire: refused, or a sealed one whose encoding is what was read.
 */
#include "ckpt/slice.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* It is found by its name, or the first slice of the name is; what a slice's runs say lies in its tensor. */
static void
check_item(const struct ist__manifest *m, uint64_t i)
{
	const struct ist__item *t = &m->items[m->tensors[i]];
	uint64_t found = ist__manifest_find(m, t->name), whole;
	struct ist__scatter s;
	struct ist__runs r;

	if (found > i || (found < i && t->kind != IST__ITEM_SLICE))
		abort();
	if (t->kind != IST__ITEM_SLICE)
		return;
	if (ist__dtype_bytes(t->dtype, t->whole, t->rank, &whole))
		abort();
	ist__scatter_init(&s, t);
	for (uint64_t at = 0, n = 0, steps = 0; at < t->bytes && steps < 1000; at += n, steps++) {
		n = ist__scatter_next(&s, at, t->bytes - at, &r);
		if (n == 0 || n > t->bytes - at || r.bytes * r.count != n || r.offset > whole || (r.count - 1) * r.stride > whole - r.offset ||
		    r.bytes > whole - r.offset - (r.count - 1) * r.stride)
			abort();
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ist__manifest *m = NULL;
	struct ist__reader r;
	struct ist__writer w;
	struct ist_error err;
	struct ist__ctx ctx;
	struct ist_tensor t;
	ist_err e;

	ist__ctx_init(&ctx);
	ist_error_init(&err);
	ist__reader_init(&r, data, size);
	e = ist__manifest_decode(&ctx, &r, &m, &err);
	if (e != err.code || e == IST_INTERNAL)
		abort();
	if (e)
		return 0;
	ist__writer_init(&w, &ctx);
	ist__manifest_encode(m, &w);
	if (w.bad || w.bytes != size - r.left || memcmp(w.at, data, w.bytes))
		abort();
	for (uint64_t i = 0; i < m->n_items; i++)
		ist__manifest_public(m, i, &t);
	for (uint64_t i = 0; i < m->n_tensors; i++)
		check_item(m, i);
	ist__writer_fini(&w);
	ist__manifest_free(m);
	return 0;
}
