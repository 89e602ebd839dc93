/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of real processes: forming, byte strings, split, wrong use, loss, leaving, abort, conflicts, leaks.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Everything that the mesh offers, against plain expectations. */
static void
use_bytes(struct ist_group *g, uint32_t rank, uint32_t size, uint64_t salt)
{
	struct ist_error err;
	struct ist_blob all[64], one;
	char mine[64], want[64];

	ist_error_init(&err);
	for (uint32_t root = 0; root < size; root++) {
		snprintf(mine, sizeof(mine), "r%u s%llu", root, (unsigned long long)salt);
		CHECK_ERR(IST_OK, ist_broadcast_bytes(g, mine, strlen(mine), root, 0, &one, &err), &err);
		CHECK(one.bytes == strlen(mine) && !memcmp(one.addr, mine, one.bytes));
		ist_blobs_free(g, &one, 1);
		snprintf(mine, sizeof(mine), "%u/%llu", rank, (unsigned long long)salt);
		CHECK_ERR(IST_OK, ist_gather_bytes(g, mine, strlen(mine), root, 0, rank == root ? all : NULL, &err), &err);
		for (uint32_t r = 0; rank == root && r < size; r++) {
			snprintf(want, sizeof(want), "%u/%llu", r, (unsigned long long)salt);
			CHECK(all[r].bytes == strlen(want) && !memcmp(all[r].addr, want, all[r].bytes));
		}
		if (rank == root)
			ist_blobs_free(g, all, size);
	}
	/* some give nothing */
	CHECK_ERR(IST_OK, ist_all_gather_bytes(g, mine, rank % 2 ? 0 : strlen(mine), 0, all, &err), &err);
	for (uint32_t r = 0; r < size; r++) {
		snprintf(want, sizeof(want), "%u/%llu", r, (unsigned long long)salt);
		CHECK(all[r].bytes == (r % 2 ? 0 : strlen(want)) && !memcmp(all[r].addr, want, all[r].bytes));
	}
	ist_blobs_free(g, all, size);
	CHECK_ERR(IST_OK, ist_barrier(g, 0, &err), &err);
	for (uint32_t d = 0; d < size; d++) { /* to everybody, oneself too, also where there is no link */
		uint32_t to = (rank + d) % size, from = (rank + size - d) % size;

		CHECK_ERR(IST_OK, ist_send_bytes(g, &rank, sizeof(rank), to, 0, &err), &err);
		CHECK_ERR(IST_OK, ist_recv_bytes(g, from, 0, &one, &err), &err);
		CHECK(one.bytes == sizeof(from) && !memcmp(one.addr, &from, sizeof(from)));
		ist_blobs_free(g, &one, 1);
	}
}

static int
form_and_use(struct ranks *r, uint32_t rank, void *arg)
{
	struct member m;
	struct ist_group_info info = { .struct_size = sizeof(info) };

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, arg ? arg : "g", rank, r->n, 30, 30), &m.err);
	use_bytes(m.g, rank, r->n, 1);
	CHECK_ERR(IST_OK, ist_group_info(m.g, &info, &m.err), &m.err);
	CHECK(info.rank == rank && info.size == r->n && info.broken == 0 && info.n_hosts == 1 && info.n_same_host == r->n);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
forms_at_any_size(void **state)
{
	static const uint32_t sizes[] = { 1, 2, 3, 4, 5, 7, 8, 13 };

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct ranks r;

		ranks_init(&r, sizes[i]);
		ranks_start_all(&r, form_and_use, NULL);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

static int
big_bytes(struct ranks *r, uint32_t rank, void *arg)
{
	uint64_t n = (3u << 20) + 17;
	uint8_t *mine = malloc(n);
	struct ist_blob all[64];
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "big", rank, r->n, 60, 30), &m.err);
	for (uint64_t i = 0; i < n; i++)
		mine[i] = (uint8_t)(i * 7 + rank);
	CHECK_ERR(IST_OK, ist_all_gather_bytes(m.g, mine, n, 0, all, &m.err), &m.err);
	for (uint32_t k = 0; k < r->n; k++) {
		const uint8_t *b = all[k].addr;

		CHECK(all[k].bytes == n);
		for (uint64_t i = 0; i < n; i++)
			CHECK(b[i] == (uint8_t)(i * 7 + k));
	}
	ist_blobs_free(m.g, all, r->n);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	free(mine);
	member_fini(&m);
	return 0;
}

static void
carries_long_byte_strings(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, big_bytes, NULL);
	assert_int_equal(ranks_join(&r, 120, 0), 0);
	ranks_fini(&r);
}

static int
splits(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t some[] = { 3, 0, 2 }, pair[] = { 1, 3 }, twice[] = { 1, 1 };
	struct ist_split_args sa = { .struct_size = sizeof(sa), .n_ranks = 3, .ranks = some, .timeout_ns = 20 * IST_NS_PER_S };
	struct ist_group *child = NULL, *same;
	uint32_t everybody[64];
	struct ist_blob all[64];
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "p", rank, r->n, 30, 30), &m.err);
	if (rank == 1)
		CHECK_ERR(IST_NOT_MEMBER, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
	else {
		CHECK_ERR(IST_OK, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_all_gather_bytes(child, &rank, sizeof(rank), 0, all, &m.err), &m.err);
		for (uint32_t i = 0; i < 3; i++)
			CHECK(!memcmp(all[i].addr, &some[i], sizeof(rank))); /* the list's order is the rank */
		ist_blobs_free(child, all, 3);
	}
	CHECK(child || rank == 1);
	sa.ranks = twice;
	sa.n_ranks = 2;
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_split(m.g, &sa, &same, &m.err), &m.err);
	/* the parent and the child live side by side; a split of all is a group of its own */
	for (uint32_t i = 0; i < r->n; i++)
		everybody[i] = i;
	sa.ranks = everybody;
	sa.n_ranks = r->n;
	CHECK_ERR(IST_OK, ist_group_split(m.g, &sa, &same, &m.err), &m.err);
	CHECK(same != m.g);
	CHECK(ist_group_free(same) == IST_OK);
	use_bytes(m.g, rank, r->n, 2);
	if (child)
		use_bytes(child, rank == 3 ? 0 : rank == 0 ? 1 : 2, 3, 3);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	CHECK(ist_group_free(m.g) == IST_OK);
	m.g = NULL;
	if (child) {
		use_bytes(child, rank == 3 ? 0 : rank == 0 ? 1 : 2, 3, 4); /* after its parent has gone */
		CHECK_ERR(IST_OK, ist_barrier(child, 0, &m.err), &m.err);
		CHECK(ist_group_free(child) == IST_OK);
	}
	(void)pair;
	member_fini(&m);
	return 0;
}

static void
splits_by_list(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, splits, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* Members that sleep, or are dead, take no part in others' split. */
static int
split_without(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t pair[] = { 1, 3 };
	struct ist_split_args sa = { .struct_size = sizeof(sa), .n_ranks = 2, .ranks = pair, .timeout_ns = 20 * IST_NS_PER_S };
	_Atomic uint32_t *flags = r->shared;
	struct ist_group *child;
	uint32_t dead = *(uint32_t *)arg;
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "p", rank, r->n, 30, 30), &m.err);
	atomic_fetch_add(&flags[0], 1);
	ranks_await(&flags[0], r->n);
	if (rank == 0 || rank == 2) {
		if (dead)
			raise(SIGKILL);
		ranks_await(&flags[1], 2);
	} else {
		for (uint32_t lost = 0, n = 0; dead && lost < 2; lost = n) {
			n = 0;
			CHECK(ist_group_lost(m.g, NULL, &n, &m.err) == IST_OK);
			sched_yield();
		}
		CHECK_ERR(IST_OK, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
		use_bytes(child, rank == 1 ? 0 : 1, 2, 9);
		CHECK(ist_group_free(child) == IST_OK);
		atomic_fetch_add(&flags[1], 1);
		ranks_await(&flags[1], 2);
	}
	member_fini(&m);
	return 0;
}

static void
splits_without_the_others(void **state)
{
	(void)state;
	for (uint32_t dead = 0; dead < 2; dead++) {
		struct ranks r;

		ranks_init(&r, 4);
		ranks_start_all(&r, split_without, &dead);
		assert_int_equal(ranks_join(&r, 60, dead ? 5 : 0), 0);
		ranks_fini(&r);
	}
}

/* ---- the missing, the wrong ---- */

static int
misses(struct ranks *r, uint32_t rank, void *arg)
{
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_TIMEOUT, member_join(&m, r->at, "few", rank, 6, 2, 30), &m.err);
	CHECK(m.err.n_ranks == 2 && m.err.ranks[0] == 2 && m.err.ranks[1] == 5);
	CHECK(strstr(m.err.detail, "2, 5"));
	member_fini(&m);
	return 0;
}

static void
names_who_is_missing(void **state)
{
	static const uint32_t here[] = { 0, 1, 3, 4 };
	struct ranks r;

	(void)state;
	ranks_init(&r, 6);
	for (size_t i = 0; i < 4; i++)
		ranks_start(&r, here[i], misses, NULL);
	assert_int_equal(ranks_join(&r, 30, 0), 0);
	ranks_fini(&r);
}

static int
other_world(struct ranks *r, uint32_t rank, void *arg)
{
	struct member m;
	ist_err e;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	e = member_join(&m, r->at, "w", rank, rank == 1 ? 3 : 2, rank == 1 ? 20 : 2, 30);
	if (rank == 1)
		CHECK_ERR(IST_MISMATCH, e, &m.err);
	else
		CHECK_ERR(IST_TIMEOUT, e, &m.err);
	member_fini(&m);
	return 0;
}

static void
tells_sizes_that_differ(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 2);
	ranks_start_all(&r, other_world, NULL);
	assert_int_equal(ranks_join(&r, 30, 0), 0);
	ranks_fini(&r);
}

static int
other_name(struct ranks *r, uint32_t rank, void *arg)
{
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_UNKNOWN_GROUP, member_join(&m, r->at, rank ? "weights" : "weight", rank, 2, 20, 30), &m.err);
	CHECK(strstr(m.err.detail, "\"weights\"") && strstr(m.err.detail, "\"weight\""));
	member_fini(&m);
	return 0;
}

static void
tells_names_that_differ(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 2);
	ranks_start_all(&r, other_name, NULL);
	assert_int_equal(ranks_join(&r, 30, 0), 0);
	ranks_fini(&r);
}

static int
same_rank(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	char pid[32];
	struct member m;
	ist_err e;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	if (rank < 3) {
		CHECK_ERR(IST_OK, member_join(&m, r->at, "c", rank, 3, 30, 30), &m.err);
		if (rank == 1)
			atomic_store(&flags[2], (uint32_t)getpid());
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
		atomic_fetch_add(&flags[0], 1);
		ranks_await(&flags[1], 1);
		use_bytes(m.g, rank, 3, 5); /* nobody was disturbed */
	} else { /* a second claimant of rank 1 */
		ranks_await(&flags[0], 3);
		e = member_join(&m, r->at, "c", 1, 3, 20, 30);
		CHECK_ERR(IST_CONFLICT, e, &m.err);
		snprintf(pid, sizeof(pid), "pid %u", atomic_load(&flags[2]));
		CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == 1 && strstr(m.err.detail, pid));
		atomic_store(&flags[1], 1);
	}
	member_fini(&m);
	return 0;
}

static void
refuses_a_second_claimant(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, same_rank, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* Two claim one rank in the same moment: exactly one gets it. */
static int
race_rank(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	uint32_t claim = rank ? 1 : 0, round = *(uint32_t *)arg;
	struct member m;
	ist_err e;

	(void)round;
	member_init(&m, IST_TRANSPORT_AUTO);
	atomic_fetch_add(&flags[0], 1);
	ranks_await(&flags[0], 3);
	e = member_join(&m, r->at, "race", claim, 2, 20, 30);
	if (claim == 0)
		CHECK_ERR(IST_OK, e, &m.err);
	else if (e == IST_OK)
		atomic_fetch_add(&flags[1], 1);
	else
		CHECK_ERR(IST_CONFLICT, e, &m.err);
	atomic_fetch_add(&flags[2], 1);
	ranks_await(&flags[2], 3);
	member_fini(&m);
	return 0;
}

static void
gives_a_rank_to_one(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 20; i++) {
		struct ranks r;

		ranks_init(&r, 3);
		ranks_start_all(&r, race_rank, &i);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		assert_int_equal(((_Atomic uint32_t *)r.shared)[1], 1);
		ranks_fini(&r);
	}
}

static int
in_another_order(struct ranks *r, uint32_t rank, void *arg)
{
	uint32_t what = *(uint32_t *)arg;
	struct ist_blob one, all[4];
	struct member m;
	ist_err e;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "o", rank, r->n, 30, 30), &m.err);
	if (what == 0) { /* two operations */
		e = rank == 1 ? ist_all_gather_bytes(m.g, "x", 1, 0, all, &m.err) : ist_broadcast_bytes(m.g, "y", 1, 0, 0, &one, &m.err);
		if (e == IST_OK && rank != 1) { /* a root is done early: the next operation tells */
			ist_blobs_free(m.g, &one, 1);
			e = ist_barrier(m.g, 0, &m.err);
		}
		CHECK_ERR(IST_ORDER_MISMATCH, e, &m.err);
		CHECK(strstr(m.err.detail, "operation ") && strstr(m.err.detail, "all_gather_bytes"));
		CHECK(strstr(m.err.detail, "broadcast_bytes") || strstr(m.err.detail, "barrier"));
	} else if (what == 2) { /* a barrier, which may be asleep by then, and something that waits for the one in it */
		e = rank == 0 ? ist_barrier(m.g, 0, &m.err) : ist_broadcast_bytes(m.g, NULL, 0, 0, 0, &one, &m.err);
		CHECK_ERR(IST_ORDER_MISMATCH, e, &m.err);
		CHECK(strstr(m.err.detail, "operation 1") && strstr(m.err.detail, "broadcast_bytes") && strstr(m.err.detail, "barrier"));
	} else { /* two roots */
		e = ist_broadcast_bytes(m.g, "y", 1, rank, 0, &one, &m.err);
		if (e == IST_OK) {
			ist_blobs_free(m.g, &one, 1);
			e = ist_barrier(m.g, 0, &m.err);
		}
		CHECK(e == IST_MISMATCH || e == IST_ORDER_MISMATCH);
	}
	CHECK(m.err.n_ranks == 2);
	member_fini(&m);
	return 0;
}

/* Nobody is out before all are in: quick ones in a row, and some whose members come late, so that the others sleep. */
static int
counts_barriers(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint64_t *in = (_Atomic uint64_t *)r->shared + 1;
	uint32_t seed = rank + 1;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "b", rank, r->n, 30, 30), &m.err);
	for (uint64_t i = 1; i <= 2000; i++) {
		seed = seed * 1664525 + 1013904223;
		if (i % 100 == 0)
			usleep((seed >> 16) % 3000);
		*in += 1;
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
		CHECK(*in >= i * r->n);
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	}
	member_fini(&m);
	return 0;
}

static void
barriers_hold_all(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= 5; n++) {
		struct ranks r;

		ranks_init(&r, n);
		ranks_start_all(&r, counts_barriers, NULL);
		assert_int_equal(ranks_join(&r, 120, 0), 0);
		ranks_fini(&r);
	}
}

static void
finds_disorder(void **state)
{
	(void)state;
	for (uint32_t what = 0; what < 3; what++) {
		struct ranks r;

		ranks_init(&r, 2);
		ranks_start_all(&r, in_another_order, &what);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- loss ---- */

static int
dies(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	uint32_t victim = *(uint32_t *)arg;
	struct member m;
	double t;
	ist_err e;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "d", rank, r->n, 30, 30), &m.err);
	atomic_fetch_add(&flags[0], 1);
	ranks_await(&flags[0], r->n);
	if (rank == victim)
		raise(SIGKILL);
	t = now_s();
	e = ist_barrier(m.g, 0, &m.err);
	CHECK_ERR(IST_PEER_LOST, e, &m.err);
	CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == victim);
	CHECK(now_s() - t < 5);
	/* the same name, a new generation, without the dead one */
	CHECK(ist_group_free(m.g) == IST_OK);
	CHECK(ist_group_free(m.g) == IST_BAD_HANDLE);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "d2", rank > victim ? rank - 1 : rank, r->n - 1, 30, 30), &m.err);
	use_bytes(m.g, rank > victim ? rank - 1 : rank, r->n - 1, 7);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
names_the_dead(void **state)
{
	(void)state;
	for (uint32_t victim = 0; victim < 4; victim++) {
		struct ranks r;

		ranks_init(&r, 4);
		ranks_start_all(&r, dies, &victim);
		assert_int_equal(ranks_join(&r, 60, UINT64_C(1) << victim), 0);
		ranks_fini(&r);
	}
}

static int
freezes(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct member m;
	ist_err e;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "f", rank, r->n, 60, 1), &m.err);
	atomic_fetch_add(&flags[0], 1);
	ranks_await(&flags[0], r->n);
	if (rank == 1) {
		raise(SIGSTOP); /* the parent wakes it at the end */
		e = ist_barrier(m.g, 0, &m.err);
		CHECK_ERR(IST_EVICTED, e, &m.err); /* it blames nobody for what it slept through */
	} else {
		e = ist_barrier(m.g, 0, &m.err);
		CHECK_ERR(IST_NO_PROGRESS, e, &m.err);
		CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == 1);
		atomic_fetch_add(&flags[1], 1);
	}
	member_fini(&m);
	return 0;
}

static void
names_the_frozen(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 3);
	ranks_start_all(&r, freezes, NULL);
	ranks_await(&((_Atomic uint32_t *)r.shared)[1], 2);
	kill(r.pid[1], SIGCONT);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* A terminal's Ctrl-Z, or a machine that is paused: all stand still for longer than the limit, and go on. */
static int
stands_still_with_all(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "p", rank, r->n, 60, 1), &m.err);
	atomic_fetch_add(&flags[0], 1);
	ranks_await(&flags[0], r->n);
	raise(SIGSTOP);
	for (int i = 0; i < 10; i++)
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
a_pause_of_all_is_no_loss(void **state)
{
	struct timespec longer = { .tv_sec = 2 };
	struct ranks r;
	siginfo_t info;

	(void)state;
	ranks_init(&r, 3);
	ranks_start_all(&r, stands_still_with_all, NULL);
	for (uint32_t i = 0; i < r.n; i++)
		assert_int_equal(waitid(P_PID, (id_t)r.pid[i], &info, WSTOPPED | WNOWAIT), 0);
	nanosleep(&longer, NULL); /* the pause itself */
	for (uint32_t i = 0; i < r.n; i++)
		kill(r.pid[i], SIGCONT);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* A live member that does not come is no loss: TIMEOUT, with its name. */
static int
stays_away(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "s", rank, r->n, 60, 0.3), &m.err);
	if (rank == 3)
		ranks_await(&flags[0], r->n - 1);
	else {
		CHECK_ERR(IST_TIMEOUT, ist_barrier(m.g, 1500 * INT64_C(1000000), &m.err), &m.err);
		CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == 3);
		atomic_fetch_add(&flags[0], 1);
	}
	member_fini(&m);
	return 0;
}

static void
names_who_stays_away(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 5);
	ranks_start_all(&r, stays_away, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

static int
leaves(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_blob one;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "l", rank, r->n, 30, 30), &m.err);
	if (rank != 1) {
		CHECK_ERR(IST_PEER_LEFT, ist_recv_bytes(m.g, 1, 0, &one, &m.err), &m.err);
		CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == 1);
		CHECK_ERR(IST_PEER_LEFT, ist_send_bytes(m.g, "x", 1, 1, 0, &m.err), &m.err);
		CHECK_ERR(IST_PEER_LEFT, ist_barrier(m.g, 0, &m.err), &m.err);
	}
	member_fini(&m);
	return 0;
}

static void
names_who_left(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 3);
	ranks_start_all(&r, leaves, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

static struct ist_group *signalled;

static void
on_signal(int sig)
{
	(void)sig;
	ist_group_abort_async_signal(signalled);
}

static int
aborts(struct ranks *r, uint32_t rank, void *arg)
{
	uint32_t how = *(uint32_t *)arg;
	struct member m;
	ist_err e;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "a", rank, r->n, 30, 30), &m.err);
	if (rank == 2) {
		if (how == 0)
			CHECK(ist_group_abort(m.g, "enough of this") == IST_OK);
		else if (how == 1)
			CHECK(ist_abort_all(m.env, "enough of this") == IST_OK);
		else {
			struct sigaction sa = { .sa_handler = on_signal };

			signalled = m.g;
			sigaction(SIGUSR1, &sa, NULL);
			raise(SIGUSR1);
		}
	}
	while (!(e = ist_barrier(m.g, 0, &m.err)))
		CHECK(how == 2); /* a signal takes effect a moment later */
	CHECK_ERR(IST_ABORTED, e, &m.err);
	if (how < 2)
		CHECK(strstr(m.err.detail, "enough of this"));
	member_fini(&m);
	return 0;
}

static void
aborts_everywhere(void **state)
{
	(void)state;
	for (uint32_t how = 0; how < 3; how++) {
		struct ranks r;

		ranks_init(&r, 4);
		ranks_start_all(&r, aborts, &how);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- votes ---- */

static int
votes(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	uint32_t doubt = 7;
	struct ist_error no;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "v", rank, r->n, 30, 30), &m.err);
	for (int i = 0; i < 20; i++) {
		CHECK_ERR(IST_OK, ist_decide(m.g, NULL, 0, &doubt, &m.err), &m.err);
		CHECK(doubt == 0);
	}
	ist_error_init(&no);
	no.code = IST_DIGEST;
	snprintf(no.detail, sizeof(no.detail), "a bit fell over");
	CHECK_ERR(IST_DIGEST, ist_decide(m.g, rank == 2 ? &no : NULL, 0, &doubt, &m.err), &m.err);
	CHECK(doubt == 0 && strstr(m.err.detail, "a bit fell over") && m.err.ranks[0] == 2);
	CHECK_ERR(IST_OK, ist_decide(m.g, NULL, 0, &doubt, &m.err), &m.err);
	atomic_fetch_add(&flags[0], 1);
	ranks_await(&flags[0], r->n);
	if (rank == 1)
		raise(SIGKILL);
	{
		ist_err e = ist_decide(m.g, NULL, 0, &doubt, &m.err);

		CHECK_ERR(IST_PEER_LOST, e, &m.err);
		CHECK(doubt == 0);
	}
	member_fini(&m);
	return 0;
}

static void
decides_alike(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 5);
	ranks_start_all(&r, votes, NULL);
	assert_int_equal(ranks_join(&r, 60, 2), 0);
	ranks_fini(&r);
}

/* A member that is only silent may hold what the others don't know of: they are in doubt, and say so. */
static int
vote_of_the_silent(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	uint32_t doubt = 7;
	struct member m;
	ist_err e;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "vs", rank, r->n, 30, 1), &m.err);
	CHECK_ERR(IST_OK, ist_decide(m.g, NULL, 0, &doubt, &m.err), &m.err);
	if (rank == 1)
		raise(SIGSTOP); /* the parent wakes it at the end */
	e = ist_decide(m.g, NULL, 0, &doubt, &m.err); /* rank 1 may have the votes of all, and yes */
	if (rank != 1) {
		CHECK_ERR(IST_NO_PROGRESS, e, &m.err);
		CHECK(doubt == 2 && m.err.n_ranks == 1 && m.err.ranks[0] == 1);
	}
	atomic_fetch_add(&flags[0], 1);
	member_fini(&m);
	return 0;
}

static void
the_silent_leave_doubt(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, vote_of_the_silent, NULL);
	ranks_await((_Atomic uint32_t *)r.shared, 3);
	kill(r.pid[1], SIGCONT);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* A member dies at a random moment of a vote: the survivors end alike. */
static int
vote_race(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	uint32_t doubt = 0;
	struct member m;
	ist_err e = IST_OK;
	uint32_t n = 0;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "vr", rank, r->n, 30, 30), &m.err);
	atomic_fetch_add(&flags[0], 1);
	while (!e) {
		e = ist_decide(m.g, NULL, 0, &doubt, &m.err);
		if (doubt)
			fprintf(stderr, "rank %u is in doubt %u: %s: %s\n", rank, doubt, ist_err_name(e), m.err.detail);
		CHECK(doubt == 0);
		n += e == IST_OK;
	}
	CHECK_ERR(IST_PEER_LOST, e, &m.err);
	atomic_store(&flags[8 + rank], n + 1);
	member_fini(&m);
	return 0;
}

static void
decides_alike_when_somebody_dies(void **state)
{
	unsigned seed = (unsigned)time(NULL);

	(void)state;
	fprintf(stderr, "seed %u\n", seed);
	srand(seed);
	for (int i = 0; i < 25; i++) {
		struct ranks r;
		_Atomic uint32_t *flags;
		struct timespec t = { 0, (rand() % 8000) * 1000 };
		uint32_t victim = (uint32_t)rand() % 5, first = 0;

		ranks_init(&r, 5);
		flags = r.shared;
		ranks_start_all(&r, vote_race, NULL);
		ranks_await(&flags[0], 5);
		nanosleep(&t, NULL); /* where in the vote it strikes is the random input of this test */
		kill(r.pid[victim], SIGKILL);
		assert_int_equal(ranks_join(&r, 60, UINT64_C(1) << victim), 0);
		for (uint32_t k = 0; k < 5; k++) {
			if (k == victim)
				continue;
			if (!first)
				first = flags[8 + k];
			assert_int_equal(flags[8 + k], first);
		}
		ranks_fini(&r);
	}
}

/* ---- many, again and again ---- */

static int
again(struct ranks *r, uint32_t rank, void *arg)
{
	uint32_t fds = 0, threads = 0, rounds = *(uint32_t *)arg;
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	for (uint32_t i = 0; i < rounds; i++) {
		struct timespec jitter = { 0, (long)((rank * 7919 + i * 104729) % 20) * 100000 };

		nanosleep(&jitter, NULL); /* members come back at different moments; that is what is tried */
		CHECK_ERR(IST_OK, member_join(&m, r->at, "again", rank, r->n, 60, 30), &m.err);
		use_bytes(m.g, rank, r->n, i);
		CHECK(ist_group_free(m.g) == IST_OK);
		m.g = NULL;
		if (i == 5) {
			fds = count_fds();
			threads = count_threads();
		}
	}
	/* lingering connections of the last round end by themselves: bounded, so wait for the count, not for a time */
	for (int i = 0; i < 3000 && (count_fds() > fds + 4 || count_threads() > threads); i++) {
		struct timespec t = { 0, 1000000 };

		nanosleep(&t, NULL);
	}
	CHECK(count_fds() <= fds + 4 && count_threads() <= threads);
	member_fini(&m);
	return 0;
}

static void
comes_and_goes_without_growth(void **state)
{
	uint32_t rounds = 60;
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, again, &rounds);
	assert_int_equal(ranks_join(&r, 300, 0), 0);
	ranks_fini(&r);
}

static void
refuses_wrong_handles(void **state)
{
	struct member m;
	struct ist_blob one;

	(void)state;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_BAD_HANDLE, ist_barrier(NULL, 0, &m.err), &m.err);
	CHECK_ERR(IST_BAD_HANDLE, ist_barrier((struct ist_group *)(void *)m.ep, 0, &m.err), &m.err);
	CHECK_ERR(IST_BAD_HANDLE, ist_recv_bytes((struct ist_group *)(void *)m.env, 0, 0, &one, &m.err), &m.err);
	CHECK_ERR(IST_INVALID_ARGUMENT, member_join(&m, "tcp://482:1", "x", 0, 1, 5, 5), &m.err);
	CHECK_ERR(IST_INVALID_ARGUMENT, member_join(&m, "tcp://0.0.0.0:1", "x", 0, 1, 5, 5), &m.err);
	CHECK_ERR(IST_INVALID_ARGUMENT, member_join(&m, "tcp://::1:1", "x", 0, 1, 5, 5), &m.err);
	CHECK_ERR(IST_INVALID_ARGUMENT, member_join(&m, "tcp://127.0.0.1:1", "x", 3, 2, 5, 5), &m.err);
	member_fini(&m);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refuses_wrong_handles),
		cmocka_unit_test(forms_at_any_size),
		cmocka_unit_test(carries_long_byte_strings),
		cmocka_unit_test(splits_by_list),
		cmocka_unit_test(splits_without_the_others),
		cmocka_unit_test(names_who_is_missing),
		cmocka_unit_test(tells_sizes_that_differ),
		cmocka_unit_test(tells_names_that_differ),
		cmocka_unit_test(refuses_a_second_claimant),
		cmocka_unit_test(gives_a_rank_to_one),
		cmocka_unit_test(finds_disorder),
		cmocka_unit_test(barriers_hold_all),
		cmocka_unit_test(names_the_dead),
		cmocka_unit_test(names_the_frozen),
		cmocka_unit_test(a_pause_of_all_is_no_loss),
		cmocka_unit_test(names_who_stays_away),
		cmocka_unit_test(names_who_left),
		cmocka_unit_test(aborts_everywhere),
		cmocka_unit_test(decides_alike),
		cmocka_unit_test(the_silent_leave_doubt),
		cmocka_unit_test(decides_alike_when_somebody_dies),
		cmocka_unit_test(comes_and_goes_without_growth),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
