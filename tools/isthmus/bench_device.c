/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_device.c - what devices can do at best, with nothing to agree on: sources bring pinned host memory onto their devices, all at
 * once; or every receiver copies out of a source's device onto its own, where both are in one process.
 */
#include "bench.h"
#include "value.h"

#include <stdlib.h>

#define BYTES (UINT64_C(512) << 20)

struct ends {
	void *from, *to;
	uint32_t from_mem;
	int32_t from_device;
	bool works;              /* this rank copies */
	double payload;          /* bytes that all copies together stand for */
	struct ist_env *env;
	uint32_t mem;
	int32_t device;
};

static void
end(void *arg)
{
	struct ends *e = arg;

	if (e->from)
		(void)ist_device_free(e->env, e->from_mem, e->from_device, e->from);
	if (e->to)
		(void)ist_device_free(e->env, e->mem, e->device, e->to);
	free(e);
}

static int
sample(struct bench *b, void *arg, double *gbps)
{
	struct ends *e = arg;
	struct ist_error err;
	double slow = 0;
	int status = bench_barrier(b);
	int64_t start = now_ns();

	ist_error_init(&err);
	if (status == EXIT_DONE && e->works && ist_device_copy(e->env, e->mem, e->device, e->to, e->from, BYTES, &err))
		status = cli_fail(b->cli, &err);
	if (status == EXIT_DONE)
		status = bench_slowest(b, (double)(now_ns() - start) / 1e9, &slow);
	*gbps = slow > 0 ? e->payload / slow / 1e9 : 0;
	return status;
}

/* Which device the rank has whose memory this one's copies come from. */
static int
device_of(struct bench *b, uint32_t rank, int32_t *out)
{
	struct ist_blob *all = calloc(b->s.world, sizeof(*all));
	int status = all ? bench_tell(b, &b->s.device, sizeof(b->s.device), all) : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");

	if (status == EXIT_DONE) {
		*out = all[rank].bytes == sizeof(*out) ? *(const int32_t *)all[rank].addr : b->s.device;
		ist_blobs_free(b->s.group, all, b->s.world);
	}
	free(all);
	return status;
}

static int
prepare(struct bench *b, struct ends *e, uint32_t n_sources, bool from_host)
{
	uint32_t rank = b->s.rank;
	struct ist_error err;
	int status = device_of(b, rank < n_sources ? rank : (rank - n_sources) % n_sources, &e->from_device);

	ist_error_init(&err);
	e->env = b->s.env;
	e->mem = b->s.mem;
	e->device = b->s.device;
	e->works = (rank < n_sources) == from_host;
	e->payload = (double)BYTES * (from_host ? n_sources : 1);
	e->from_mem = from_host ? IST_MEM_PINNED : b->s.mem;
	if (status == EXIT_DONE && e->works &&
	    (ist_device_alloc(e->env, e->from_mem, e->from_device, BYTES, &e->from, &err) ||
	     ist_device_alloc(e->env, e->mem, e->device, BYTES, &e->to, &err)))
		status = cli_fail(b->cli, &err);
	return status;
}

int
bench_device_limit(struct bench *b, uint32_t n_sources, bool from_host)
{
	struct ends *e = calloc(1, sizeof(*e));
	int status = e ? prepare(b, e, n_sources, from_host) : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");

	b->limit_gbps = 0;
	for (int i = 0; status == EXIT_DONE && i < 3; i++) { /* the first wakes the device */
		double gbps;

		status = sample(b, e, &gbps);
		if (status == EXIT_DONE && gbps > b->limit_gbps)
			b->limit_gbps = gbps;
	}
	if (e && status == EXIT_DONE)
		b->limit = (struct bench_limit){ .sample = sample, .close = end, .arg = e };
	else if (e)
		end(e);
	return status;
}
