/* SPDX-License-Identifier: Apache-2.0
 *
 * Lives of groups, as they end elsewhere in hangs, leaks and crashes: clients that die again and again, members that go
 * without a word, splits that fail, children beside and after their parents, many groups in one process.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint8_t
byte_at(uint64_t i, uint32_t salt)
{
	return (uint8_t)(i * 31 + (i >> 12) + salt * 57 + 3);
}

/* One broadcast from root; what arrives is looked at when all is well. */
static ist_err
cast(struct member *m, struct ist_group *g, uint32_t rank, uint32_t root, uint64_t n, uint32_t salt)
{
	uint8_t *mem = malloc(n);
	struct ist_buf buf = { .addr = mem, .bytes = n, .device = -1 };
	struct ist_coll_args a = { .struct_size = sizeof(a), .peer = root, .src = buf, .dst = buf };
	struct ist_req *req;
	ist_err e;

	CHECK(mem);
	for (uint64_t i = 0; rank == root && i < n; i++)
		mem[i] = byte_at(i, salt);
	e = ist_broadcast(g, &a, &req, &m->err);
	if (!e) {
		e = ist_req_wait(req, 0, &m->err);
		CHECK(ist_req_free(req) == IST_OK);
	}
	for (uint64_t i = 0; !e && i < n; i++)
		CHECK(mem[i] == byte_at(i, salt));
	free(mem);
	return e;
}

static void
all_run(uint32_t n, int (*run)(struct ranks *r, uint32_t rank, void *arg), void *arg, uint64_t killed)
{
	struct ranks r;

	ranks_init(&r, n);
	ranks_start_all(&r, run, arg);
	assert_int_equal(ranks_join(&r, 100, killed), 0);
	ranks_fini(&r);
}

/* ---- a server outlives its clients ---- */

enum { CLIENTS = 25, WAYS_TO_DIE = 4, GROWTH_MAX = 2 << 20 };

/* Of the sanitizers, where they are: resident pages tell nothing there. */
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static uint64_t
memory_now(void)
{
	unsigned long all, resident = 0;
	FILE *f;

	if (__sanitizer_get_current_allocated_bytes)
		return __sanitizer_get_current_allocated_bytes();
	f = fopen("/proc/self/statm", "re");
	CHECK(f && fscanf(f, "%lu %lu", &all, &resident) == 2);
	fclose(f);
	return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Some clients send much. */
static uint64_t
first_bytes(uint32_t i)
{
	return (i % 12 == 1 ? UINT64_C(64) << 20 : UINT64_C(1) << 20) + i;
}
/* What client i does: is killed while idle, or in mid-broadcast, or leaves in good order. */
enum { KILLED_IDLE, KILLED_BUSY, REPLACED, LEAVES };

static int
be_server(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	uint32_t server = *(uint32_t *)arg, fds = 0, threads = 0;
	uint64_t bytes = 0;
	struct ist_group *old = NULL;
	struct member m;

	(void)rank;
	member_init(&m, IST_TRANSPORT_AUTO);
	for (uint32_t i = 0; i < CLIENTS; i++) {
		ist_err e = IST_OK;

		CHECK_ERR(IST_OK, member_join(&m, r->at, "weights", server, 2, 60, 30), &m.err);
		if (old) /* it was never told that its client is gone: the new group comes first */
			CHECK(ist_group_free(old) == IST_OK);
		old = NULL;
		CHECK_ERR(IST_OK, cast(&m, m.g, server, 1 - server, first_bytes(i), i), &m.err);
		atomic_store(&flags[2], i + 1);
		if (i % WAYS_TO_DIE == KILLED_BUSY)
			while (!e)
				e = cast(&m, m.g, server, 1 - server, 1 << 22, 1);
		else if (i % WAYS_TO_DIE == KILLED_IDLE)
			e = ist_barrier(m.g, 0, &m.err);
		if (i % WAYS_TO_DIE <= KILLED_BUSY) {
			CHECK_ERR(IST_PEER_LOST, e, &m.err);
			CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == 1 - server);
		}
		if (i % WAYS_TO_DIE == REPLACED)
			old = m.g;
		else
			CHECK(ist_group_free(m.g) == IST_OK);
		m.g = NULL;
		if (i == WAYS_TO_DIE) {
			fds = count_fds();
			threads = count_threads();
		}
		if (i == 2 * WAYS_TO_DIE)
			bytes = memory_now();
		atomic_store(&flags[1], i + 1);
	}
	for (int i = 0; i < 3000 && (count_fds() > fds + 4 || count_threads() > threads); i++)
		usleep(1000); /* lingering connections are bounded in time; what is asserted is the count */
	CHECK(count_fds() <= fds + 4 && count_threads() <= threads);
	CHECK(memory_now() < bytes + GROWTH_MAX);
	member_fini(&m);
	return 0;
}

static int
be_client(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	uint32_t mine = 1 - *(uint32_t *)arg, i = flags[1];
	struct member m;

	(void)rank;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "weights", mine, 2, 60, 30), &m.err);
	CHECK_ERR(IST_OK, cast(&m, m.g, mine, mine, first_bytes(i), i), &m.err);
	ranks_await(&flags[2], i + 1); /* who gave is done before it is taken */
	atomic_store(&flags[0], i + 1);
	while (i % WAYS_TO_DIE == KILLED_BUSY)
		CHECK_ERR(IST_OK, cast(&m, m.g, mine, mine, 1 << 22, 1), &m.err);
	while (i % WAYS_TO_DIE != LEAVES)
		pause();
	member_fini(&m);
	return 0;
}

static void
a_server_outlives_its_clients(void **state)
{
	(void)state;
	for (uint32_t server = 0; server < 2; server++) { /* it hosts the meeting place, or the clients do */
		_Atomic uint32_t *flags;
		struct ranks r;

		ranks_init(&r, 2);
		flags = r.shared;
		ranks_start(&r, 0, be_server, &server);
		for (uint32_t i = 0; i < CLIENTS; i++) {
			int status;

			ranks_start(&r, 1, be_client, &server);
			ranks_await(&flags[0], i + 1);
			if (i % WAYS_TO_DIE == REPLACED)
				ranks_await(&flags[1], i + 1);
			if (i % WAYS_TO_DIE != LEAVES)
				kill(r.pid[1], SIGKILL);
			assert_int_equal(waitpid(r.pid[1], &status, 0), r.pid[1]);
			assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
			r.pid[1] = 0;
			ranks_await(&flags[1], i + 1);
		}
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- going without a word ---- */

static int
goes_without_a_word(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	uint32_t busy = *(uint32_t *)arg;
	struct member m;
	double t;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "w", rank, r->n, 60, 30), &m.err);
	atomic_fetch_add(&flags[0], 1);
	ranks_await(&flags[0], r->n);
	if (rank == 1)
		_exit(0); /* no free, no goodbye */
	if (busy)
		CHECK_ERR(IST_PEER_LOST, cast(&m, m.g, rank, 1, 1 << 20, 0), &m.err);
	t = now_s();
	CHECK(ist_group_free(m.g) == IST_OK); /* whether or not it knows yet */
	m.g = NULL;
	member_fini(&m);
	CHECK(now_s() - t < 10);
	return 0;
}

static void
exits_without_a_word(void **state)
{
	(void)state;
	for (uint32_t busy = 0; busy < 2; busy++)
		all_run(3, goes_without_a_word, &busy, 0);
}

/* The process that hosts the meeting place is the first to go, right after the last barrier: the others end well. */
static int
host_goes_first(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	uint32_t how = *(uint32_t *)arg;
	struct member m;
	ist_err e;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "h", rank, r->n, 60, 30), &m.err);
	e = ist_barrier(m.g, 0, &m.err);
	CHECK(rank > 0 || e == IST_OK);
	if (rank == 0 && how)
		_exit(0); /* a loss: it may overtake what the others still send each other */
	if (rank > 0) {
		struct ist_blob one;

		if (!e)
			e = ist_send_bytes(m.g, "x", 1, 3 - rank, 0, &m.err);
		if (!e)
			e = ist_recv_bytes(m.g, 3 - rank, 0, &one, &m.err);
		if (!e)
			ist_blobs_free(m.g, &one, 1);
		CHECK(e == IST_OK || (how && e == IST_PEER_LOST && m.err.ranks[0] == 0));
		atomic_fetch_add(&flags[0], 1);
		ranks_await(&flags[0], 2);
	}
	CHECK(ist_group_free(m.g) == IST_OK);
	m.g = NULL;
	member_fini(&m);
	return 0;
}

static void
the_host_may_go_first(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 30; i++) {
		uint32_t how = i % 2;

		all_run(3, host_goes_first, &how, 0);
	}
}

/* ---- splits that fail ---- */

static void *
no_memory(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	uint32_t *left = ctx;
	void *p;

	(void)kind, (void)numa;
	if (*left != UINT32_MAX && (*left)-- == 0) {
		*left = 0;
		return NULL;
	}
	return posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes) ? NULL : p;
}

static void
give_back(void *ctx, void *p)
{
	(void)ctx;
	free(p);
}

static int
splits_badly(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t all[] = { 2, 1, 0 }, other[] = { 1, 2, 0 }, far[] = { 0, 7 }, pair[] = { 0, 1 };
	struct ist_split_args sa = { .struct_size = sizeof(sa), .n_ranks = 3, .ranks = all, .timeout_ns = 30 * IST_NS_PER_S };
	uint32_t left = UINT32_MAX;
	struct ist_env_args ea = { .struct_size = sizeof(ea), .alloc = no_memory, .free = give_back, .mem_ctx = &left };
	struct ist_group *child = NULL;
	struct member m;
	ist_err e;

	(void)arg;
	memset(&m, 0, sizeof(m));
	ist_error_init(&m.err);
	CHECK_ERR(IST_OK, ist_env_new(&ea, &m.env, &m.err), &m.err);
	CHECK_ERR(IST_OK, ist_endpoint_new(m.env, NULL, &m.ep, &m.err), &m.err);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "p", rank, r->n, 60, 30), &m.err);
	/* lists that can't be */
	sa.n_ranks = 0;
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
	sa.n_ranks = 2;
	sa.ranks = far;
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
	sa.ranks = NULL;
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
	/* a backend that is not there, on one member alone */
	sa.ranks = all;
	sa.n_ranks = 3;
	sa.backend = rank == 1 ? "nosuch" : NULL;
	CHECK(ist_group_split(m.g, &sa, &child, &m.err) != IST_OK);
	sa.backend = NULL;
	CHECK_ERR(IST_OK, cast(&m, m.g, rank, 0, 100000, 1), &m.err);
	/* no memory on one member, at each of the first steps and then here and there: nobody hangs, all fail or none */
	sa.timeout_ns = IST_NS_PER_S;
	for (uint32_t n = 0; n < 400; n = n < 3 ? n + 1 : n * 3) {
		_Atomic uint32_t *flags = r->shared;
		uint32_t ok = 0;

		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
		left = rank == 2 ? n : UINT32_MAX;
		e = ist_group_split(m.g, &sa, &child, &m.err);
		left = UINT32_MAX;
		CHECK(e == IST_OK || e == IST_NO_MEMORY || e == IST_TIMEOUT || e == IST_PEER_LOST); /* lost: the child's rank 0, in mid-forming */
		if (!e) {
			CHECK_ERR(IST_OK, cast(&m, child, 2 - rank, 0, 1000, n), &m.err);
			CHECK(ist_group_free(child) == IST_OK);
		}
		atomic_fetch_add(&flags[1], e == IST_OK);
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
		ok = atomic_load(&flags[1]);
		CHECK(ok % 3 == 0);
	}
	CHECK_ERR(IST_OK, cast(&m, m.g, rank, 1, 100000, 2), &m.err);
	/* different orders of one list: nobody may end in a group that is not his */
	sa.ranks = rank == 1 ? other : all;
	sa.timeout_ns = 2 * IST_NS_PER_S;
	CHECK(ist_group_split(m.g, &sa, &child, &m.err) != IST_OK);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	/* one of two never comes */
	sa.ranks = pair;
	sa.n_ranks = 2;
	sa.timeout_ns = IST_NS_PER_S;
	if (rank == 0) {
		CHECK_ERR(IST_TIMEOUT, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
		CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == 1);
	}
	CHECK_ERR(IST_OK, cast(&m, m.g, rank, 2, 100000, 3), &m.err);
	/* and a good one at last */
	sa.ranks = all;
	sa.n_ranks = 3;
	sa.timeout_ns = 30 * IST_NS_PER_S;
	CHECK_ERR(IST_OK, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
	CHECK_ERR(IST_OK, cast(&m, child, 2 - rank, 0, 100000, 4), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(child, 0, &m.err), &m.err);
	CHECK(ist_group_free(child) == IST_OK);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
a_split_that_fails_costs_nothing(void **state)
{
	(void)state;
	all_run(3, splits_badly, NULL, 0);
}

/* A member of the child dies while it is made: the others' child fails by its name, the rest of the parent lives. */
static int
dies_in_a_split(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t three[] = { 0, 1, 2 }, two[] = { 0, 3 };
	struct ist_split_args sa = { .struct_size = sizeof(sa), .n_ranks = 3, .ranks = three, .timeout_ns = 30 * IST_NS_PER_S };
	_Atomic uint32_t *flags = r->shared;
	struct ist_group *child;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "p", rank, r->n, 60, 30), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	if (rank == 1) {
		ranks_await(&flags[0], 2);
		raise(SIGKILL);
	}
	if (rank != 3) {
		atomic_fetch_add(&flags[0], 1);
		CHECK_ERR(IST_PEER_LOST, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
		CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == 1);
	}
	if (rank == 0 || rank == 3) { /* who is left makes another */
		sa.ranks = two;
		sa.n_ranks = 2;
		CHECK_ERR(IST_OK, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
		CHECK_ERR(IST_OK, cast(&m, child, rank ? 1 : 0, 0, 100000, 4), &m.err);
		CHECK_ERR(IST_OK, ist_barrier(child, 0, &m.err), &m.err);
		CHECK(ist_group_free(child) == IST_OK);
	}
	member_fini(&m);
	return 0;
}

static void
a_death_in_a_split_has_a_name(void **state)
{
	(void)state;
	all_run(4, dies_in_a_split, NULL, 2);
}

/* ---- parents and children ---- */

static int
child_runs_first(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t pair[] = { 0, 1 };
	struct ist_split_args sa = { .struct_size = sizeof(sa), .n_ranks = 2, .ranks = pair, .timeout_ns = 30 * IST_NS_PER_S };
	struct ist_group *child = NULL;
	struct member m;

	member_init(&m, *(uint32_t *)arg);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "p", rank, r->n, 60, 30), &m.err);
	if (rank < 2) {
		CHECK_ERR(IST_OK, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
		CHECK_ERR(IST_OK, cast(&m, child, rank, 0, 100, 1), &m.err);
	}
	CHECK_ERR(IST_OK, cast(&m, m.g, rank, 0, (32 << 20) + 11, 2), &m.err);
	if (child) {
		CHECK_ERR(IST_OK, cast(&m, child, rank, 1, (32 << 20) + 7, 3), &m.err);
		CHECK_ERR(IST_OK, ist_barrier(child, 0, &m.err), &m.err);
		CHECK(ist_group_free(child) == IST_OK);
	}
	CHECK_ERR(IST_OK, cast(&m, m.g, rank, 2, 1000, 4), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
a_small_child_runs_first(void **state)
{
	(void)state;
	for (uint32_t t = IST_TRANSPORT_SHM; t <= IST_TRANSPORT_TCP; t++)
		all_run(3, child_runs_first, &t, 0);
}

static int
lives_apart(struct ranks *r, uint32_t rank, void *arg)
{
	uint32_t all[] = { 0, 1, 2 }, self[] = { rank };
	struct ist_split_args sa = { .struct_size = sizeof(sa), .n_ranks = 3, .ranks = all, .timeout_ns = 30 * IST_NS_PER_S };
	struct ist_group_info a = { .struct_size = sizeof(a) }, b = a;
	struct ist_group *child, *grandchild, *alone;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "p", rank, r->n, 60, 30), &m.err);
	CHECK_ERR(IST_OK, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
	CHECK_ERR(IST_OK, ist_group_info(m.g, &a, &m.err), &m.err);
	CHECK_ERR(IST_OK, ist_group_info(child, &b, &m.err), &m.err);
	CHECK(child != m.g && a.generation != b.generation);
	/* of one member, who is told that there is nobody; beside the others, who make theirs */
	sa.ranks = self;
	sa.n_ranks = 1;
	CHECK_ERR(IST_OK, ist_group_split(m.g, &sa, &alone, &m.err), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(alone, 0, &m.err), &m.err);
	CHECK_ERR(IST_OK, cast(&m, alone, 0, 0, 1000, 1), &m.err);
	CHECK(ist_group_free(alone) == IST_OK);
	sa.ranks = all;
	sa.n_ranks = 3;
	CHECK_ERR(IST_OK, ist_group_split(child, &sa, &grandchild, &m.err), &m.err);
	/* an abort is the child's alone: neither above nor below */
	CHECK_ERR(IST_OK, ist_barrier(child, 0, &m.err), &m.err);
	if (rank == 1)
		CHECK(ist_group_abort(child, "enough") == IST_OK);
	CHECK_ERR(IST_ABORTED, cast(&m, child, rank, 1, 1000, 2), &m.err);
	CHECK_ERR(IST_OK, cast(&m, m.g, rank, 0, 1000, 3), &m.err);
	CHECK_ERR(IST_OK, cast(&m, grandchild, rank, 2, 1000, 4), &m.err);
	CHECK(ist_group_free(child) == IST_OK);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(grandchild, 0, &m.err), &m.err);
	/* the parent goes first */
	CHECK(ist_group_free(m.g) == IST_OK);
	m.g = NULL;
	CHECK_ERR(IST_OK, cast(&m, grandchild, rank, 0, 1000, 5), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(grandchild, 0, &m.err), &m.err);
	CHECK(ist_group_free(grandchild) == IST_OK);
	member_fini(&m);
	return 0;
}

static void
parents_and_children_live_apart(void **state)
{
	(void)state;
	all_run(3, lives_apart, NULL, 0);
}

/* ---- many groups in one process ---- */

/* Rank 2 of the test is an engine with two trainers, each by a group of its own; a third one claims the first one's. */
static int
serves_two(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct ist_group *g[2] = { NULL, NULL };
	char name[8];
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	for (uint32_t i = 0; i < 2; i++)
		if (rank == 2 || rank == i) {
			snprintf(name, sizeof(name), "g%u", i);
			CHECK_ERR(IST_OK, member_join(&m, r->at, name, rank == 2 ? 0 : 1, 2, 60, 30), &m.err);
			g[i] = m.g;
			m.g = NULL;
		}
	atomic_fetch_add(&flags[0], 1);
	if (rank == 3) {
		ranks_await(&flags[0], 4);
		CHECK_ERR(IST_CONFLICT, member_join(&m, r->at, "g0", 1, 2, 60, 30), &m.err);
		atomic_store(&flags[1], 1);
	}
	for (uint32_t i = 0; i < 100; i++)
		for (uint32_t k = 0; k < 2; k++)
			if (g[k])
				CHECK_ERR(IST_OK, cast(&m, g[k], rank == 2 ? 0 : 1, 1, 5000 + i, k), &m.err);
	ranks_await(&flags[1], 1);
	for (uint32_t k = 0; k < 2; k++)
		if (g[k]) {
			CHECK_ERR(IST_OK, cast(&m, g[k], rank == 2 ? 0 : 1, 1, 5000, k), &m.err);
			CHECK(ist_group_free(g[k]) == IST_OK);
		}
	member_fini(&m);
	return 0;
}

static void
an_engine_serves_two_trainers(void **state)
{
	(void)state;
	all_run(4, serves_two, NULL, 0);
}

enum { MANY = 4 };

/* One member has broadcasts under way in many groups, in which nobody else takes part; one call ends all of them. */
static int
ends_all(struct ranks *r, uint32_t rank, void *arg)
{
	uint64_t n = 8 << 20;
	uint8_t *mem = calloc(1, n);
	struct ist_buf buf = { .addr = mem, .bytes = n, .device = -1 };
	struct ist_coll_args a = { .struct_size = sizeof(a), .src = buf, .dst = buf };
	struct ist_group *g[MANY];
	struct ist_req *req[MANY];
	char name[16];
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	for (uint32_t i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "many%u", i);
		CHECK_ERR(IST_OK, member_join(&m, r->at, name, rank, r->n, 60, 30), &m.err);
		g[i] = m.g;
		m.g = NULL;
	}
	for (uint32_t i = 0; i < MANY && rank == 0; i++)
		CHECK_ERR(IST_OK, ist_broadcast(g[i], &a, &req[i], &m.err), &m.err);
	if (rank == 0)
		CHECK(ist_abort_all(m.env, "all of it") == IST_OK);
	for (uint32_t i = 0; i < MANY; i++) {
		if (rank == 0) {
			CHECK_ERR(IST_ABORTED, ist_req_wait(req[i], 30 * IST_NS_PER_S, &m.err), &m.err);
			CHECK(ist_req_free(req[i]) == IST_OK);
		} else
			CHECK_ERR(IST_ABORTED, ist_barrier(g[i], 30 * IST_NS_PER_S, &m.err), &m.err);
		CHECK(strstr(m.err.detail, "all of it"));
	}
	for (uint32_t i = 0; i < MANY; i++)
		CHECK(ist_group_free(g[i]) == IST_OK);
	member_fini(&m);
	free(mem);
	return 0;
}

static void
one_call_ends_all_groups(void **state)
{
	(void)state;
	all_run(2, ends_all, NULL, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_server_outlives_its_clients),
		cmocka_unit_test(exits_without_a_word),
		cmocka_unit_test(the_host_may_go_first),
		cmocka_unit_test(a_split_that_fails_costs_nothing),
		cmocka_unit_test(a_death_in_a_split_has_a_name),
		cmocka_unit_test(a_small_child_runs_first),
		cmocka_unit_test(parents_and_children_live_apart),
		cmocka_unit_test(an_engine_serves_two_trainers),
		cmocka_unit_test(one_call_ends_all_groups),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
