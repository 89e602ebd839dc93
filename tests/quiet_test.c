/* SPDX-License-Identifier: Apache-2.0
 *
 * What costs nothing: a steady state asks the env's allocator for nothing (updates 2 to 10 of real processes count 0 calls),
 * and a group that has ended takes no CPU until it is freed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <isthmus/sync.h>

#include <stdatomic.h>
#include <time.h>

static atomic_uint calls, trap;

static void *
count_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	void *p = NULL;

	(void)ctx, (void)kind, (void)numa;
	atomic_fetch_add(&calls, 1);
	if (atomic_load(&trap) && getenv("TEST_TRAP"))
		abort(); /* for a debugger's eyes: who asked? */
	return posix_memalign(&p, align < 16 ? 16 : align, bytes ? bytes : 1) ? NULL : p;
}

static void
count_free(void *ctx, void *p)
{
	(void)ctx;
	free(p);
}

enum { TENSORS = 400, EACH = 20000 };

static int
updates(struct ranks *r, uint32_t rank, void *arg)
{
	static uint8_t weights[TENSORS * EACH];
	static char names[TENSORS][16];
	struct ist_tensor tensors[TENSORS];
	struct ist_env_args ea = { .struct_size = sizeof(ea), .alloc = count_alloc, .free = count_free };
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa) };
	struct ist_update_args ua = { .struct_size = sizeof(ua) };
	struct ist_report report = { .struct_size = sizeof(report) };
	struct ist_checkpoint *ck = NULL;
	struct ist_sink *sink = NULL;
	struct ist_sync *sync;
	struct member m;
	unsigned before = 0;

	(void)arg;
	memset(&m, 0, sizeof(m));
	ist_error_init(&m.err);
	CHECK_ERR(IST_OK, ist_env_new(&ea, &m.env, &m.err), &m.err);
	CHECK_ERR(IST_OK, ist_endpoint_new(m.env, &pa, &m.ep, &m.err), &m.err);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "quiet", rank, r->n, 60, 30), &m.err);
	CHECK_ERR(IST_OK, ist_sync_new(m.g, NULL, &sync, &m.err), &m.err);
	for (uint32_t i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "layer.%u", i);
		tensors[i] = (struct ist_tensor){ .struct_size = sizeof(tensors[i]), .rank = 1, .name = names[i], .dtype = "U8", .shape = { EACH },
			.bytes = EACH, .file = "", .alias_of = "", .addr = weights + i * EACH };
	}
	if (rank == 0) {
		CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(m.env, tensors, TENSORS, &ck, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_sync_source(sync, ck, 0, 0, &m.err), &m.err);
	} else {
		CHECK_ERR(IST_OK, ist_sink_open(m.env, "null:", 0, &sink, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_sync_sink(sync, sink, &m.err), &m.err);
	}
	CHECK_ERR(IST_OK, ist_sync_gather(sync, 0, &m.err), &m.err);
	for (uint32_t i = 1; i <= 10; i++) {
		memset(weights, (int)i, sizeof(weights));
		CHECK_ERR(IST_OK, ist_sync_update(sync, &ua, &report, &m.err), &m.err);
		CHECK(report.verified && report.version == i && report.bytes == sizeof(weights));
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
		if (i == 1) {
			before = atomic_load(&calls);
			atomic_store(&trap, 1);
		}
		if (i == 10)
			atomic_store(&trap, 0);
	}
	if (atomic_load(&calls) != before)
		fprintf(stderr, "rank %u: %u calls after the first update's %u\n", rank, atomic_load(&calls) - before, before);
	CHECK(atomic_load(&calls) == before);
	ist_sync_free(sync);
	ist_checkpoint_free(ck);
	ist_sink_free(sink);
	member_fini(&m);
	return 0;
}

static void
asks_for_nothing_after_the_first_update(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 3);
	ranks_start_all(&r, updates, NULL);
	assert_int_equal(ranks_join(&r, 120, 0), 0);
	ranks_fini(&r);
}

/* ---- after the end ---- */

static double
cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Longer than an abort waits for a plug-in; then a second of which the CPU's part is looked at. */
static int
end_and_stay(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_coll_args ca = { .struct_size = sizeof(ca) };
	struct timespec grace = { .tv_sec = 2 }, second = { .tv_sec = 1 };
	uint8_t bytes[64] = { 0 };
	struct ist_req *req;
	struct member m;
	double before;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "ended", rank, r->n, 60, 30), &m.err);
	ca.src = ca.dst = (struct ist_buf){ .addr = bytes, .bytes = sizeof(bytes), .device = -1 };
	CHECK_ERR(IST_OK, ist_broadcast(m.g, &ca, &req, &m.err), &m.err); /* now it has a line's thread */
	CHECK_ERR(IST_OK, ist_req_wait(req, 0, &m.err), &m.err);
	ist_req_free(req);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	if (rank == 0)
		CHECK(ist_group_abort(m.g, "enough") == IST_OK);
	else
		CHECK_ERR(IST_ABORTED, ist_barrier(m.g, 0, &m.err), &m.err);
	nanosleep(&grace, NULL);
	before = cpu_s();
	nanosleep(&second, NULL);
	CHECK(cpu_s() - before < 0.05);
	member_fini(&m);
	return 0;
}

static void
takes_no_cpu_after_the_end(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 2);
	ranks_start_all(&r, end_and_stay, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(asks_for_nothing_after_the_first_update),
		cmocka_unit_test(takes_no_cpu_after_the_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
