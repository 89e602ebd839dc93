/* SPDX-License-Identifier: Apache-2.0
 *
 * The public bulk operations, with a group that is nothing but a line: each call starts the operation of its name.
 */
#include "mem_world.h"

#include "base/fail.h"

#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

static struct world w;

struct ist_group {
	uint32_t rank;
};

struct ist__line *
ist__group_line(struct ist_group *group, const char *op, uint32_t peer, struct ist_error *err)
{
	(void)peer;
	if (!group) {
		ist__fail(err, IST_BAD_HANDLE, op, "the handle is NULL");
		return NULL;
	}
	ist__line_hold(w.lines[group->rank]);
	return w.lines[group->rank];
}

int64_t
ist__group_timeout(struct ist_group *group)
{
	(void)group;
	return 60 * IST_NS_PER_S;
}

typedef ist_err (*call)(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err);

static int32_t src[2][4], dst[2][4];

/* Starts it on both ranks with so many elements, waits. */
static void
both(call f0, call f1, uint64_t n_src, uint64_t n_dst, uint32_t peer0, uint32_t peer1)
{
	struct ist_group g[2] = { { 0 }, { 1 } };
	struct ist_req *reqs[2];
	call f[] = { f0, f1 };

	for (uint32_t r = 0; r < 2; r++) {
		struct ist_coll_args a = { .struct_size = sizeof(a), .peer = r ? peer1 : peer0, .dtype = IST_I32, .reduce = IST_SUM,
			.src = { .addr = src[r], .bytes = n_src * 4 }, .dst = { .addr = dst[r], .bytes = n_dst * 4 } };

		for (int i = 0; i < 4; i++) {
			src[r][i] = 1 + (int32_t)r * 10 + i;
			dst[r][i] = 0;
		}
		assert_int_equal(f[r](&g[r], &a, &reqs[r], NULL), IST_OK);
	}
	for (uint32_t r = 0; r < 2; r++) {
		assert_int_equal(ist_req_wait(reqs[r], 0, NULL), IST_OK);
		assert_int_equal(ist_req_free(reqs[r]), IST_OK);
	}
}

#define SEEN(r, ...) assert_memory_equal(dst[r], ((int32_t[4]){ __VA_ARGS__ }), sizeof(dst[r]))

static void
each_call_does_what_it_is_called(void **state)
{
	(void)state;
	world_open(&w, 2, NULL, 0);
	both(ist_broadcast, ist_broadcast, 2, 2, 1, 1);
	SEEN(0, 11, 12, 0, 0);
	SEEN(1, 0, 0, 0, 0);
	both(ist_all_gather, ist_all_gather, 2, 4, 0, 0);
	SEEN(0, 1, 2, 11, 12);
	SEEN(1, 1, 2, 11, 12);
	both(ist_gather, ist_gather, 2, 4, 1, 1);
	SEEN(0, 0, 0, 0, 0);
	SEEN(1, 1, 2, 11, 12);
	both(ist_scatter, ist_scatter, 4, 2, 0, 0);
	SEEN(0, 1, 2, 0, 0);
	SEEN(1, 3, 4, 0, 0);
	both(ist_all_to_all, ist_all_to_all, 4, 4, 0, 0);
	SEEN(0, 1, 2, 11, 12);
	SEEN(1, 3, 4, 13, 14);
	both(ist_all_reduce, ist_all_reduce, 4, 4, 0, 0);
	SEEN(0, 12, 14, 16, 18);
	SEEN(1, 12, 14, 16, 18);
	both(ist_reduce_scatter, ist_reduce_scatter, 4, 2, 0, 0);
	SEEN(0, 12, 14, 0, 0);
	SEEN(1, 16, 18, 0, 0);
	both(ist_send, ist_recv, 3, 3, 1, 0);
	SEEN(1, 1, 2, 3, 0);
	assert_true(world_close(&w));
}

static void
bad_calls_are_refused(void **state)
{
	struct ist_group g = { 0 };
	struct ist_coll_args a = { .struct_size = sizeof(a), .peer = 1 };
	struct ist_req *req = NULL;
	struct ist_error err = { .struct_size = sizeof(err) };

	(void)state;
	ist_error_init(&err);
	world_open(&w, 2, NULL, 0);
	assert_int_equal(ist_broadcast(NULL, &a, &req, NULL), IST_BAD_HANDLE);
	assert_int_equal(ist_broadcast(NULL, &a, &req, &err), IST_BAD_HANDLE);
	assert_string_equal(err.op, "broadcast");
	assert_int_equal(ist_send(&g, NULL, &req, &err), IST_INVALID_ARGUMENT);
	assert_int_equal(ist_send(&g, &a, NULL, &err), IST_INVALID_ARGUMENT);
	assert_null(req);
	assert_true(world_close(&w));
}

int
main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(each_call_does_what_it_is_called), cmocka_unit_test(bad_calls_are_refused) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
