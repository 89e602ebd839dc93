/* SPDX-License-Identifier: Apache-2.0
 *
 * Nobody is taken for dead because the machine is busy: many processes on few CPUs, each computing besides with a thread of
 * its own, work together at the default limits, and not one of them is lost.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { MEMBERS = 64, LOAD_S = 8, BULK = 64 << 10, AT_LEAST = 3 };

static atomic_bool enough;
static volatile uint64_t work; /* so that the compiler keeps it */

static void *
compute(void *arg)
{
	uint64_t x = 1;

	(void)arg;
	while (!atomic_load_explicit(&enough, memory_order_relaxed))
		for (int i = 0; i < 100000; i++)
			x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
	work = x;
	return NULL;
}

/* One of everything: a barrier, bytes of all, bytes of one, bulk bytes. */
static void
work_together(struct member *m, uint32_t rank, uint32_t n, uint32_t round)
{
	struct ist_coll_args ca = { .struct_size = sizeof(ca), .peer = round % n };
	struct ist_blob all[MEMBERS];
	uint8_t *buf = malloc(BULK);
	struct ist_req *req;

	CHECK(buf);
	CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_all_gather_bytes(m->g, &rank, sizeof(rank), 0, all, &m->err), &m->err);
	for (uint32_t r = 0; r < n; r++)
		CHECK(all[r].bytes == sizeof(r) && !memcmp(all[r].addr, &r, sizeof(r)));
	ist_blobs_free(m->g, all, n);
	memset(buf, rank == ca.peer ? (int)(round & 255) : 0, BULK);
	ca.src = ca.dst = (struct ist_buf){ .addr = buf, .bytes = BULK, .device = -1 };
	CHECK_ERR(IST_OK, ist_broadcast(m->g, &ca, &req, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_req_wait(req, 0, &m->err), &m->err);
	ist_req_free(req);
	for (uint32_t i = 0; i < BULK; i++)
		CHECK(buf[i] == (round & 255));
	free(buf);
}

static int
busy_member(struct ranks *r, uint32_t rank, void *arg)
{
	double start;
	uint32_t n = MEMBERS, lost[MEMBERS];
	uint8_t more = 1;
	pthread_t thread;
	struct member m;

	(void)arg;
	CHECK(pthread_create(&thread, NULL, compute, NULL) == 0);
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "load", rank, r->n, 0, 0), &m.err); /* the defaults */
	start = now_s();
	for (uint32_t round = 0; more; round++) {
		struct ist_blob blob;

		work_together(&m, rank, r->n, round);
		more = round + 1 < AT_LEAST || now_s() - start < LOAD_S;
		CHECK_ERR(IST_OK, ist_broadcast_bytes(m.g, &more, 1, 0, 0, &blob, &m.err), &m.err);
		more = *(uint8_t *)blob.addr;
		ist_blobs_free(m.g, &blob, 1);
		if (rank == 0 && !more && getenv("TEST_LOG"))
			fprintf(stderr, "%u rounds in %.1f s\n", round + 1, now_s() - start);
	}
	CHECK_ERR(IST_OK, ist_group_lost(m.g, lost, &n, &m.err), &m.err);
	CHECK(n == 0);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	atomic_store(&enough, true);
	pthread_join(thread, NULL);
	member_fini(&m);
	return 0;
}

static void
nobody_is_lost_under_load(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, MEMBERS);
	ranks_start_all(&r, busy_member, NULL);
	assert_int_equal(ranks_join(&r, 200, 0), 0);
	ranks_fini(&r);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_is_lost_under_load),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
