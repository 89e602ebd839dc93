/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_manifest.c - any bytes as a manifest from the wire: refused, or a sealed one whose encoding is what was read.
 */
#include "ckpt/manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
		if (ist__manifest_find(m, m->items[m->tensors[i]].name) != i)
			abort();
	ist__writer_fini(&w);
	ist__manifest_free(m);
	return 0;
}
