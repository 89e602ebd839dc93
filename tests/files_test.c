/* SPDX-License-Identifier: Apache-2.0
 *
 * files_test.c - descriptors that end at any moment while a group forms, or is split: one member of three may open k more
 * files, for each k until it needs no more. Each time all come to an end long before any deadline and with one outcome;
 * whoever fails says LIMIT, and all others name it. Then a member that can take no connection in the middle of a broadcast.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SIZE = 3, MOST = 60, DEADLINE_S = 100, GUARD_S = 90 };

struct how {
	uint32_t victim, transport;
	bool split;
};

struct seen {
	_Atomic uint32_t here, gone;
	ist_err code[MOST][SIZE];
};

/* So many more, wherever there are holes. */
static struct rlimit
leave(uint32_t more)
{
	struct rlimit old, now;
	int fd = 0;

	for (uint32_t unused = 0; unused <= more; fd++)
		unused += fcntl(fd, F_GETFD) < 0;
	CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
	now = old;
	now.rlim_cur = (rlim_t)fd - 1;
	CHECK(setrlimit(RLIMIT_NOFILE, &now) == 0);
	return old;
}

static ist_err
split_all(struct member *m, const char *name, struct ist_group **out)
{
	static const uint32_t all[SIZE] = { 0, 1, 2 };
	struct ist_split_args a = { .struct_size = sizeof(a), .n_ranks = SIZE, .ranks = all, .name = name, .timeout_ns = DEADLINE_S * IST_NS_PER_S };

	return ist_group_split(m->g, &a, out, &m->err);
}

/* A group as ever: what an attempt has used up is there again. */
static void
be_well(struct ranks *r, const struct how *how, struct member *m, uint32_t rank, uint32_t k)
{
	struct ist_group *child = NULL;
	char name[32];

	snprintf(name, sizeof(name), "well%u", k);
	if (how->split) {
		CHECK_ERR(IST_OK, split_all(m, name, &child), &m->err);
		ist_group_free(child);
		return;
	}
	CHECK_ERR(IST_OK, member_join(m, r->at, name, rank, SIZE, DEADLINE_S, 60), &m->err);
	ist_group_free(m->g);
	m->g = NULL;
}

/* One attempt, with k more files for the victim. */
static ist_err
attempt(struct ranks *r, const struct how *how, struct member *m, uint32_t rank, uint32_t k)
{
	struct ist_group *child = NULL;
	struct rlimit old;
	char name[32];
	ist_err e;

	snprintf(name, sizeof(name), "files%u", k);
	if (rank == how->victim)
		old = leave(k);
	e = how->split ? split_all(m, name, &child) : member_join(m, r->at, name, rank, SIZE, DEADLINE_S, 60);
	if (rank == how->victim)
		CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
	if (!e)
		CHECK_ERR(IST_OK, ist_barrier(how->split ? child : m->g, 0, &m->err), &m->err);
	if (child)
		ist_group_free(child);
	if (!how->split && m->g)
		ist_group_free(m->g);
	if (!how->split)
		m->g = NULL;
	return e;
}

static int
rank_main(struct ranks *r, uint32_t rank, void *arg)
{
	const struct how *how = arg;
	struct seen *seen = r->shared;
	struct member m;
	uint32_t failed = 0, k = 0;
	ist_err e = IST_LIMIT;

	member_init(&m, how->transport);
	if (how->split)
		CHECK_ERR(IST_OK, member_join(&m, r->at, "parent", rank, SIZE, DEADLINE_S, 60), &m.err);
	for (; e && k < MOST; k++) {
		ist_error_init(&m.err);
		e = seen->code[k][rank] = attempt(r, how, &m, rank, k);
		if (e) {
			CHECK_ERR(IST_LIMIT, e, &m.err);
			CHECK(rank == how->victim || error_names(&m.err, how->victim));
			CHECK(strstr(m.err.next, "open files"));
			failed++;
		}
		atomic_fetch_add(&seen->here, 1);
		ranks_await(&seen->here, SIZE * (k + 1));
		for (uint32_t q = 0; q < SIZE; q++)
			CHECK(seen->code[k][q] == e);
		be_well(r, how, &m, rank, k);
	}
	CHECK(failed > 0 && e == IST_OK);
	atomic_fetch_add(&seen->gone, 1);
	ranks_await(&seen->gone, SIZE); /* rank 0 hosts the meeting place */
	member_fini(&m);
	return 0;
}

static void
play(struct how how)
{
	struct ranks r;

	ranks_init(&r, SIZE);
	ranks_start_all(&r, rank_main, &how);
	assert_int_equal(ranks_join(&r, GUARD_S, 0), 0);
	ranks_fini(&r);
}

static void
a_group_that_forms(void **unused)
{
	(void)unused;
	for (uint32_t victim = 0; victim < SIZE; victim++) {
		play((struct how){ .victim = victim, .transport = IST_TRANSPORT_AUTO });
		play((struct how){ .victim = victim, .transport = IST_TRANSPORT_TCP });
	}
}

static void
a_group_that_is_split(void **unused)
{
	(void)unused;
	for (uint32_t victim = 0; victim < SIZE; victim++)
		play((struct how){ .victim = victim, .split = true, .transport = victim == 1 ? IST_TRANSPORT_TCP : IST_TRANSPORT_AUTO });
}

static int
cast_main(struct ranks *r, uint32_t rank, void *arg)
{
	enum { BYTES = 1 << 20 };
	struct seen *seen = r->shared;
	struct ist_coll_args a = { .struct_size = sizeof(a), .peer = 2, .timeout_ns = DEADLINE_S * IST_NS_PER_S };
	struct ist_req *req = NULL;
	struct member m;
	struct rlimit old;
	uint8_t *at = calloc(1, BYTES);
	ist_err e;

	(void)arg;
	member_init(&m, IST_TRANSPORT_TCP);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "cast", rank, SIZE, DEADLINE_S, 60), &m.err);
	CHECK(at);
	a.src = a.dst = (struct ist_buf){ .addr = at, .bytes = BYTES, .device = -1 };
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	if (rank == 1)
		old = leave(0); /* the way from another root than 0 is made at first need; the kernel holds some bytes of it */
	do {
		e = ist_broadcast(m.g, &a, &req, &m.err);
		if (!e)
			e = ist_req_wait(req, DEADLINE_S * IST_NS_PER_S, &m.err);
		if (req)
			ist_req_free(req);
		req = NULL;
	} while (!e);
	CHECK_ERR(IST_LIMIT, e, &m.err);
	CHECK(error_names(&m.err, 1));
	atomic_fetch_add(&seen->here, 1);
	ranks_await(&seen->here, SIZE);
	if (rank == 1)
		CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
	member_fini(&m);
	free(at);
	return 0;
}

static void
connections_that_cannot_be_taken(void **unused)
{
	struct ranks r;

	(void)unused;
	ranks_init(&r, SIZE);
	ranks_start_all(&r, cast_main, NULL);
	assert_int_equal(ranks_join(&r, GUARD_S, 0), 0);
	ranks_fini(&r);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_group_that_forms),
		cmocka_unit_test(a_group_that_is_split),
		cmocka_unit_test(connections_that_cannot_be_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
