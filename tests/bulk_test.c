/* SPDX-License-Identifier: Apache-2.0
 *
 * Bulk operations of real processes over the host backend, on shared memory and on TCP: right bytes, disagreement, death
 * in the middle, abort from another thread, two old worlds beside a new group.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct how {
	uint32_t transport, victim;
	uint64_t bytes, ballast;
};

static double
milliseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static uint8_t
byte_at(uint64_t i, uint32_t who)
{
	return (uint8_t)(i * 31 + (i >> 13) + who * 101 + 7);
}

static uint8_t *
pattern(uint64_t n, uint32_t who)
{
	uint8_t *b = malloc(n ? n : 1);

	CHECK(b);
	for (uint64_t i = 0; i < n; i++)
		b[i] = byte_at(i, who);
	return b;
}

static void
expect(const uint8_t *b, uint64_t n, uint32_t who)
{
	for (uint64_t i = 0; i < n; i++)
		CHECK(b[i] == byte_at(i, who));
}

static struct ist_buf
buf(void *addr, uint64_t bytes)
{
	return (struct ist_buf){ .addr = addr, .bytes = bytes, .device = -1 };
}

static ist_err
finish(struct ist_req *req, struct ist_error *err)
{
	ist_err e = ist_req_wait(req, 0, err);

	CHECK(ist_req_free(req) == IST_OK);
	return e;
}

typedef ist_err (*operation)(struct ist_group *, const struct ist_coll_args *, struct ist_req **, struct ist_error *);

static void
run(struct member *m, operation op, struct ist_coll_args *a)
{
	struct ist_req *req;

	a->struct_size = sizeof(*a);
	CHECK_ERR(IST_OK, op(m->g, a, &req, &m->err), &m->err);
	CHECK_ERR(IST_OK, finish(req, &m->err), &m->err);
}

static void
every_operation(struct member *m, uint32_t rank, uint32_t size, uint64_t n)
{
	uint8_t *mine = pattern(n * size, rank), *out = malloc(n * size + 1);
	struct ist_coll_args a;
	struct ist_req *req, *req2;
	int32_t sum, one = (int32_t)rank + 1;

	CHECK(out);
	for (uint32_t root = 0; root < size; root++) {
		a = (struct ist_coll_args){ .peer = root, .src = buf(mine, n), .dst = buf(out, n) };
		run(m, ist_broadcast, &a);
		if (rank != root)
			expect(out, n, root);
		a = (struct ist_coll_args){ .peer = root, .src = buf(mine, n), .dst = buf(out, n * size) };
		run(m, ist_gather, &a);
		for (uint32_t r = 0; rank == root && r < size; r++)
			expect(out + r * n, n, r);
		a = (struct ist_coll_args){ .peer = root, .src = buf(mine, n * size), .dst = buf(out, n) };
		run(m, ist_scatter, &a);
		for (uint64_t i = 0; i < n; i++)
			CHECK(out[i] == byte_at(rank * n + i, root));
	}
	a = (struct ist_coll_args){ .src = buf(mine, n), .dst = buf(out, n * size) };
	run(m, ist_all_gather, &a);
	for (uint32_t r = 0; r < size; r++)
		expect(out + r * n, n, r);
	a = (struct ist_coll_args){ .src = buf(mine, n * size), .dst = buf(out, n * size) };
	run(m, ist_all_to_all, &a);
	for (uint32_t r = 0; r < size; r++)
		for (uint64_t i = 0; i < n; i++)
			CHECK(out[r * n + i] == byte_at(rank * n + i, r));
	a = (struct ist_coll_args){ .dtype = IST_I32, .reduce = IST_SUM, .src = buf(&one, 4), .dst = buf(&sum, 4) };
	run(m, ist_all_reduce, &a);
	CHECK(sum == (int32_t)(size * (size + 1) / 2));
	if (size > 1) {
		a = (struct ist_coll_args){ .struct_size = sizeof(a), .peer = (rank + 1) % size, .src = buf(mine, n) };
		CHECK_ERR(IST_OK, ist_send(m->g, &a, &req, &m->err), &m->err);
		a = (struct ist_coll_args){ .struct_size = sizeof(a), .peer = (rank + size - 1) % size, .dst = buf(out, n) };
		CHECK_ERR(IST_OK, ist_recv(m->g, &a, &req2, &m->err), &m->err);
		CHECK_ERR(IST_OK, finish(req2, &m->err), &m->err);
		CHECK_ERR(IST_OK, finish(req, &m->err), &m->err);
		expect(out, n, (rank + size - 1) % size);
	}
	free(mine);
	free(out);
}

static int
moves(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint64_t sizes[] = { 0, 1, 4097, 300001, (3u << 20) + 3 };
	struct how *how = arg;
	struct member m;

	member_init(&m, how->transport);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "b", rank, r->n, 60, 30), &m.err);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		every_operation(&m, rank, r->n, sizes[i]);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
moves_everything(void **state)
{
	static const uint32_t sizes[] = { 1, 2, 3, 5 };

	(void)state;
	for (uint32_t t = IST_TRANSPORT_SHM; t <= IST_TRANSPORT_TCP; t++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			struct how how = { .transport = t };
			struct ranks r;

			ranks_init(&r, sizes[i]);
			ranks_start_all(&r, moves, &how);
			assert_int_equal(ranks_join(&r, 120, 0), 0);
			ranks_fini(&r);
		}
}

/* ---- disagreement ---- */

enum disagreement { OTHER_SIZE, OTHER_ROOT, OTHER_DTYPE, OTHER_OPERATION, DISAGREEMENTS };

static int
disagrees(struct ranks *r, uint32_t rank, void *arg)
{
	uint32_t what = *(uint32_t *)arg;
	uint64_t n = what == OTHER_SIZE && rank == 2 ? 8192 : 4096;
	uint8_t *mem = calloc(1, 65536), *guard = mem + n;
	struct ist_coll_args a = { .struct_size = sizeof(a), .src = buf(mem, n), .dst = buf(mem, n) };
	operation op = ist_broadcast;
	struct ist_req *req;
	struct member m;
	ist_err e;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "x", rank, r->n, 60, 30), &m.err);
	memset(guard, 0xA5, 8);
	if (what == OTHER_ROOT && rank == 2)
		a.peer = 1;
	if (what == OTHER_DTYPE || (what == OTHER_OPERATION && rank == 1)) {
		op = ist_all_reduce;
		a.reduce = IST_SUM;
		a.dtype = what == OTHER_DTYPE && rank == 1 ? IST_I32 : IST_F32;
	}
	e = op(m.g, &a, &req, &m.err);
	if (!e) /* else the others found it before this one began */
		e = finish(req, &m.err);
	CHECK_ERR(what == OTHER_OPERATION ? IST_ORDER_MISMATCH : IST_MISMATCH, e, &m.err);
	CHECK(m.err.n_ranks >= 2 && m.err.detail[0]);
	for (int i = 0; i < 8; i++)
		CHECK(guard[i] == 0xA5);
	member_fini(&m);
	free(mem);
	return 0;
}

static void
finds_disagreement_everywhere(void **state)
{
	(void)state;
	for (uint32_t what = 0; what < DISAGREEMENTS; what++) {
		struct ranks r;

		ranks_init(&r, 3);
		ranks_start_all(&r, disagrees, &what);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- death ---- */

static int
dies_in_mid_broadcast(struct ranks *r, uint32_t rank, void *arg)
{
	struct how *how = arg;
	_Atomic uint32_t *flags = r->shared;
	uint8_t *mem = mmap(NULL, how->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ist_coll_args a = { .struct_size = sizeof(a), .src = buf(mem, how->bytes), .dst = buf(mem, how->bytes) };
	uint32_t next = rank > how->victim ? rank - 1 : rank;
	struct member m;
	ist_err e = IST_OK;

	CHECK(mem != MAP_FAILED);
	if (rank == how->victim && how->ballast)
		CHECK(mmap(NULL, how->ballast, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) != MAP_FAILED);
	member_init(&m, how->transport);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "d", rank, r->n, 60, 30), &m.err);
	atomic_fetch_add(&flags[0], 1);
	ranks_await(&flags[0], r->n);
	while (!e) { /* over and over, until the blow */
		struct ist_req *req;

		e = ist_broadcast(m.g, &a, &req, &m.err);
		if (!e)
			e = finish(req, &m.err);
		atomic_fetch_add(&flags[1], 1);
	}
	((double *)r->shared)[64 + rank] = milliseconds();
	CHECK_ERR(IST_PEER_LOST, e, &m.err);
	CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == how->victim);
	CHECK(ist_group_free(m.g) == IST_OK);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "after", next, r->n - 1, 60, 30), &m.err);
	every_operation(&m, next, r->n - 1, 100001);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	munmap(mem, how->bytes);
	return 0;
}

static void
death(uint32_t transport, uint32_t victim, uint64_t bytes, uint64_t ballast)
{
	struct how how = { .transport = transport, .victim = victim, .bytes = bytes, .ballast = ballast };
	_Atomic uint32_t *flags;
	struct ranks r;
	double at;

	ranks_init(&r, 4);
	flags = r.shared;
	ranks_start_all(&r, dies_in_mid_broadcast, &how);
	ranks_await(&flags[1], 5);
	at = milliseconds();
	kill(r.pid[victim], SIGKILL);
	assert_int_equal(ranks_join(&r, 120, UINT64_C(1) << victim), 0);
	for (uint32_t i = 0; i < 4; i++)
		if (i != victim)
			fprintf(stderr, "%s, rank %u with %llu MiB resident killed: rank %u knew after %.1f ms\n", transport == IST_TRANSPORT_TCP ? "tcp" : "shm",
				victim, (unsigned long long)ballast >> 20, i, ((double *)r.shared)[64 + i] - at);
	ranks_fini(&r);
}

static void
survives_death_in_mid_broadcast(void **state)
{
	(void)state;
	for (uint32_t t = IST_TRANSPORT_SHM; t <= IST_TRANSPORT_TCP; t++)
		for (uint32_t victim = 0; victim < 4; victim++)
			death(t, victim, 16 << 20, 0);
}

static void
survives_the_death_of_a_big_one(void **state)
{
	const char *want = getenv("ISTHMUS_TEST_BALLAST_MIB");
	uint64_t ballast = (want ? strtoull(want, NULL, 10) : 256) << 20;

	(void)state;
	death(IST_TRANSPORT_SHM, 1, 16 << 20, ballast);
	death(IST_TRANSPORT_TCP, 1, 16 << 20, ballast);
}

/* ---- abort from another thread ---- */

static void *
abort_it(void *arg)
{
	struct member *m = arg;

	CHECK(ist_group_abort(m->g, "changed my mind") == IST_OK);
	return NULL;
}

static int
aborted_from_another_thread(struct ranks *r, uint32_t rank, void *arg)
{
	uint64_t n = UINT64_C(1) << 28;
	uint8_t *mem = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct ist_coll_args a = { .struct_size = sizeof(a), .src = buf(mem, n), .dst = buf(mem, n) };
	struct ist_req *req;
	pthread_t thread;
	struct member m;
	uint32_t done = 0;
	ist_err e;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "t", rank, r->n, 60, 30), &m.err);
	if (rank == 1) /* never enters */
		e = ist_barrier(m.g, 0, &m.err);
	else {
		e = ist_broadcast(m.g, &a, &req, &m.err);
		CHECK(rank != 0 || !e); /* on rank 2 the abort may be there first */
		if (rank == 0) {
			CHECK_ERR(IST_OK, ist_req_test(req, &done, &m.err), &m.err);
			CHECK(!done && pthread_create(&thread, NULL, abort_it, &m) == 0);
		}
		if (!e)
			e = finish(req, &m.err);
	}
	CHECK_ERR(IST_ABORTED, e, &m.err);
	CHECK(strstr(m.err.detail, "changed my mind"));
	if (rank == 0)
		pthread_join(thread, NULL);
	member_fini(&m);
	munmap(mem, n);
	return 0;
}

static void
ends_on_abort_from_another_thread(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 3);
	ranks_start_all(&r, aborted_from_another_thread, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* ---- leaving ---- */

/* A member that leaves in good order takes nothing from the others but itself. */
static int
leaves_early(struct ranks *r, uint32_t rank, void *arg)
{
	struct how *how = arg;
	uint64_t n = (1 << 20) + 5;
	uint8_t *mine = pattern(n, rank), *out = malloc(n);
	struct ist_coll_args a;
	struct ist_blob left;
	struct member m;

	member_init(&m, how->transport);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "e", rank, r->n, 60, 30), &m.err);
	every_operation(&m, rank, r->n, 5001);
	if (rank != 2) {
		struct ist_req *req;

		CHECK_ERR(IST_PEER_LEFT, ist_recv_bytes(m.g, 2, 0, &left, &m.err), &m.err);
		for (int i = 0; i < 5; i++) {
			a = (struct ist_coll_args){ .peer = 1 - rank, .src = buf(mine, n), .dst = buf(out, n) };
			run(&m, rank == 0 ? ist_send : ist_recv, &a);
			if (rank == 1)
				expect(out, n, 0);
		}
		a = (struct ist_coll_args){ .struct_size = sizeof(a), .src = buf(mine, n), .dst = buf(out, n) };
		CHECK_ERR(IST_PEER_LEFT, ist_broadcast(m.g, &a, &req, &m.err), &m.err);
		CHECK(m.err.n_ranks == 1 && (m.err.ranks[0] == 2 || m.err.ranks[0] == 1 - rank));
	}
	member_fini(&m);
	free(mine);
	free(out);
	return 0;
}

static void
goes_on_after_somebody_left(void **state)
{
	(void)state;
	for (uint32_t t = IST_TRANSPORT_SHM; t <= IST_TRANSPORT_TCP; t++) {
		struct how how = { .transport = t };
		struct ranks r;

		ranks_init(&r, 3);
		ranks_start_all(&r, leaves_early, &how);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- two worlds ---- */

/* Memory of our own; the pages of shared rings are touched bit by bit, up to their fixed size. */
static long
resident_kib(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	long kib = -1;

	CHECK(f);
	while (fgets(line, sizeof(line), f) && sscanf(line, "RssAnon: %ld", &kib) != 1)
		continue;
	fclose(f);
	CHECK(kib > 0);
	return kib;
}

static int
two_worlds(struct ranks *r, uint32_t rank, void *arg)
{
	int trainer = rank < 2;
	uint32_t mine = trainer ? rank : rank - 2, size = trainer ? 2 : 3, rounds = *(uint32_t *)arg, fds = 0, threads = 0;
	struct member m, old;
	long kib = 0;

	member_init(&old, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&old, r->at, trainer ? "trainers" : "engines", mine, size, 60, 30), &old.err);
	m = old;
	for (uint32_t i = 0; i < rounds; i++) {
		CHECK_ERR(IST_OK, ist_barrier(old.g, 0, &old.err), &old.err);
		CHECK_ERR(IST_OK, member_join(&m, r->at, "all", rank, 5, 60, 30), &m.err);
		every_operation(&m, rank, 5, 20001);
		every_operation(&old, mine, size, 3001);
		CHECK(ist_group_free(m.g) == IST_OK);
		m.g = NULL;
		if (i == 4) {
			fds = count_fds();
			threads = count_threads();
			kib = resident_kib();
		}
	}
	for (int i = 0; i < 3000 && (count_fds() > fds + 4 || count_threads() > threads); i++) {
		struct timespec t = { 0, 1000000 };

		nanosleep(&t, NULL); /* lingering connections are bounded in time; what is asserted is the count */
	}
	CHECK(count_fds() <= fds + 4 && count_threads() <= threads);
	fprintf(stderr, "rank %u: %ld KiB of its own after 5 rounds, %ld after %u\n", rank, kib, resident_kib(), rounds);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they keep what was freed */
	CHECK(resident_kib() < kib + 4096);
#endif
	every_operation(&old, mine, size, 3001);
	CHECK_ERR(IST_OK, ist_barrier(old.g, 0, &old.err), &old.err);
	member_fini(&old);
	return 0;
}

static void
joins_two_worlds_again_and_again(void **state)
{
	const char *want = getenv("ISTHMUS_TEST_ROUNDS");
	uint32_t rounds = want ? (uint32_t)strtoul(want, NULL, 10) : 12;
	struct ranks r;

	(void)state;
	ranks_init(&r, 5);
	ranks_start_all(&r, two_worlds, &rounds);
	assert_int_equal(ranks_join(&r, 280, 0), 0);
	ranks_fini(&r);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(moves_everything),
		cmocka_unit_test(finds_disagreement_everywhere),
		cmocka_unit_test(survives_death_in_mid_broadcast),
		cmocka_unit_test(survives_the_death_of_a_big_one),
		cmocka_unit_test(ends_on_abort_from_another_thread),
		cmocka_unit_test(goes_on_after_somebody_left),
		cmocka_unit_test(joins_two_worlds_again_and_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
