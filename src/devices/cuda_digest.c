/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_digest.c - leaves of digests, computed on the GPU by the kernel of digest.cu. Its text is compiled by the driver, for
 * the GPU at hand, when it is first needed; a driver that can't is no reason to fail, the host takes the digests then.
 */
#include "devices/cuda_int.h"

#include "base/digest.h"

#include <string.h>

enum { ENTRIES = 140, LANES = 8, THREADS = 64 };

/* As in digest.cu. */
struct batch {
	uint32_t n, leaves;
	uint32_t first[ENTRIES + 2];
	uint64_t src[ENTRIES], dst[ENTRIES], bytes[ENTRIES];
};
_Static_assert(sizeof(struct batch) <= 4096, "what a kernel can be given");

/* Inside the context. Errors but UNSUPPORTED don't come: without a kernel there is none, and why says what was wrong. */
static ist_err
kernel_of(struct ist__cuda *c, int32_t index, void **out, struct ist_status *why)
{
	int code;

	pthread_mutex_lock(&c->lock);
	if (!c->at[index].digest && c->at[index].module_state == CU_OK) {
		code = c->api.module_load(&c->at[index].module, ist__cuda_digest_ptx);
		if (code == CU_OK)
			code = c->api.module_function(&c->at[index].digest, c->at[index].module, "isthmus_digest");
		c->at[index].module_state = code;
	}
	*out = c->at[index].digest;
	code = c->at[index].module_state;
	pthread_mutex_unlock(&c->lock);
	if (code == CU_OK)
		return IST_OK;
	(void)ist__cuda_said(c, code, "the kernel for digests", why);
	return IST_UNSUPPORTED;
}

static ist_err
launch(const struct ist__cuda *c, void *kernel, struct batch *b, void *stream, struct ist_status *why)
{
	void *args[] = { b };
	unsigned blocks = (unsigned)(((uint64_t)b->leaves * LANES + THREADS - 1) / THREADS);
	int code;

	if (b->n == 0)
		return IST_OK;
	b->first[b->n] = b->leaves;
	code = c->api.launch(kernel, blocks, 1, 1, THREADS, 1, 1, 0, stream, args, NULL);
	b->n = b->leaves = 0;
	return ist__cuda_said(c, code, "cuLaunchKernel", why);
}

static ist_err
launch_all(const struct ist__cuda *c, void *kernel, const struct ist_copy *list, uint64_t n, void *stream, struct ist_status *why)
{
	struct batch b = { .n = 0 };
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < n && !e; i++) {
		uint64_t done = 0;

		/* a launch counts its leaves in 32 bits, and its threads */
		while (done < list[i].bytes && !e) {
			uint64_t most = ((UINT32_MAX / LANES) - b.leaves) * IST__LEAF_BYTES, bytes = list[i].bytes - done < most ? list[i].bytes - done : most;

			if (b.n == ENTRIES || most == 0) {
				e = launch(c, kernel, &b, stream, why);
				continue;
			}
			b.first[b.n] = b.leaves;
			b.src[b.n] = ist__cu(list[i].src) + done;
			b.dst[b.n] = ist__cu(list[i].dst) + done / IST__LEAF_BYTES * 16;
			b.bytes[b.n++] = bytes;
			b.leaves += (uint32_t)ist__leaf_count(bytes);
			done += bytes;
		}
	}
	return e ? e : launch(c, kernel, &b, stream, why);
}

static ist_err
cuda_digest(void *self, int32_t index, const struct ist_copy *list, uint64_t n, void *stream, struct ist_status *why)
{
	struct ist__cuda *c = self;
	void *kernel;
	ist_err e = ist__cuda_enter(c, index, why);

	if (e)
		return e;
	e = kernel_of(c, index, &kernel, why);
	if (!e)
		e = launch_all(c, kernel, list, n, stream, why);
	ist__cuda_leave(c);
	return e;
}

void
ist__cuda_digest_slots(struct ist_device *table)
{
	table->digest = cuda_digest;
}
