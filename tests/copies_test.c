/* SPDX-License-Identifier: Apache-2.0
 *
 * copies_test.c - which copy loops members use: tried once in the life of an env, with the first large transfer and not
 * before, however many groups there are; or the one that the user names; and that a name which is none is told.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <stdatomic.h>
#include <stdbool.h>

#define SMALL (UINT64_C(5) << 20) /* by all hands, but no transfer to learn from */
#define LARGE (UINT64_C(24) << 20)
enum { RANKS = 2, ROUNDS = 6 };

struct heard {
	_Atomic uint32_t chosen; /* lines that tell of a loop by all hands that was chosen */
};

static void
listen_to(void *ctx, int32_t level, const char *msg)
{
	struct heard *heard = ctx;

	(void)level;
	if (strstr(msg, "copy loop by all hands"))
		atomic_fetch_add(&heard->chosen, 1);
}

static void
start(struct member *m, struct heard *heard)
{
	struct ist_env_args ea = { .struct_size = sizeof(ea), .log_level = IST_LOG_DEBUG, .log = listen_to, .log_ctx = heard };
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .transport = IST_TRANSPORT_SHM };

	memset(m, 0, sizeof(*m));
	ist_error_init(&m->err);
	CHECK_ERR(IST_OK, ist_env_new(&ea, &m->env, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_endpoint_new(m->env, &pa, &m->ep, &m->err), &m->err);
}

/* Broadcasts between memory of the group, checked at the receiver. */
static void
broadcasts(struct ist_group *g, uint32_t rank, uint64_t bytes, struct ist_error *err)
{
	void *p;

	CHECK_ERR(IST_OK, ist_group_alloc(g, bytes, IST_MEM_HOST, -1, &p, err), err);
	for (int i = 0; i < ROUNDS; i++) {
		struct ist_buf buf = { .addr = p, .bytes = bytes, .device = -1 };
		struct ist_coll_args a = { .struct_size = sizeof(a), .timeout_ns = INT64_C(60000000000), .src = buf, .dst = buf };
		struct ist_req *req;

		memset(p, rank ? 0 : 17 + i, bytes);
		CHECK_ERR(IST_OK, ist_broadcast(g, &a, &req, err), err);
		CHECK_ERR(IST_OK, ist_req_wait(req, -1, err), err);
		ist_req_free(req);
		for (uint64_t at = 0; at < bytes; at++)
			CHECK(((const uint8_t *)p)[at] == 17 + i);
	}
	CHECK_ERR(IST_OK, ist_group_alloc_free(g, p), err);
}

/* Has each member tried all loops? One that comes late to each broadcast finds nothing left to copy. */
static bool
all_have_chosen(struct ist_group *g, struct heard *heard, struct ist_error *err)
{
	uint32_t mine = atomic_load(&heard->chosen), theirs, n = 0;
	struct ist_blob all[RANKS];

	CHECK_ERR(IST_OK, ist_all_gather_bytes(g, &mine, sizeof(mine), 0, all, err), err);
	for (uint32_t i = 0; i < RANKS; i++) {
		CHECK(all[i].bytes == sizeof(theirs));
		memcpy(&theirs, all[i].addr, sizeof(theirs));
		n += theirs > 0;
	}
	ist_blobs_free(g, all, RANKS);
	return n == RANKS;
}

static int
two_groups(struct ranks *r, uint32_t rank, void *arg)
{
	const char *named = arg;
	struct heard heard = { 0 };
	struct member m;
	struct ist_group *first;

	if (named)
		setenv("ISTHMUS_COPY", named, 1);
	else
		unsetenv("ISTHMUS_COPY");
	start(&m, &heard);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "first", rank, r->n, 60, 60), &m.err);
	first = m.g;
	CHECK_ERR(IST_OK, member_join(&m, r->at, "second", rank, r->n, 60, 60), &m.err);
	broadcasts(first, rank, SMALL, &m.err);
	CHECK(atomic_load(&heard.chosen) == 0);
	broadcasts(first, rank, LARGE, &m.err);
	for (uint32_t i = 0; !(named && named[0]) && i < 200 && !all_have_chosen(first, &heard, &m.err); i++)
		broadcasts(first, rank, LARGE, &m.err);
	CHECK(atomic_load(&heard.chosen) == (named && named[0] ? 0u : 1u));
	broadcasts(m.g, rank, LARGE, &m.err);
	broadcasts(first, rank, LARGE, &m.err);
	CHECK(atomic_load(&heard.chosen) == (named && named[0] ? 0u : 1u));
	ist_group_free(first);
	member_fini(&m);
	return 0;
}

static int
is_refused(struct ranks *r, uint32_t rank, void *arg)
{
	struct heard heard = { 0 };
	struct member m;

	(void)arg;
	setenv("ISTHMUS_COPY", "quickest", 1);
	start(&m, &heard);
	CHECK_ERR(IST_BAD_CONFIG, member_join(&m, r->at, "refused", rank, r->n, 60, 60), &m.err);
	CHECK(strstr(m.err.detail, "ISTHMUS_COPY") && strstr(m.err.detail, "quickest") && strstr(m.err.detail, "libc"));
	m.g = NULL;
	member_fini(&m);
	return 0;
}

static void
run_all(int (*run)(struct ranks *r, uint32_t rank, void *arg), const char *named)
{
	union { const char *c; void *p; } u = { .c = named };
	struct ranks r;

	ranks_init(&r, RANKS);
	ranks_start_all(&r, run, u.p);
	assert_int_equal(ranks_join(&r, 120, 0), 0);
	ranks_fini(&r);
}

static void
loops_are_tried_once_an_env(void **state)
{
	(void)state;
	run_all(two_groups, NULL);
	run_all(two_groups, ""); /* as good as not set */
}

static void
a_named_loop_is_taken(void **state)
{
	(void)state;
	run_all(two_groups, "libc");
}

static void
a_wrong_name_is_told(void **state)
{
	(void)state;
	run_all(is_refused, NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loops_are_tried_once_an_env),
		cmocka_unit_test(a_named_loop_is_taken),
		cmocka_unit_test(a_wrong_name_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
