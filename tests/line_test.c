/* SPDX-License-Identifier: Apache-2.0
 *
 * A line with everything that can go wrong under it and above it: plug-ins that fail, stick, never end; members that do
 * not come, do something else, cancel; users that abort, free early, use two threads.
 */
#include "mem_world.h"

#include "base/clock.h"
#include "base/fail.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#define MS INT64_C(1000000)

static struct world w;
extern struct world left_behind[2];
struct world left_behind[2]; /* what stuck plug-ins keep, so that it can be reached */

static struct ist_coll_args
args(uint32_t peer, const void *src, uint64_t src_bytes, void *dst, uint64_t dst_bytes)
{
	struct ist_coll_args a = { .struct_size = sizeof(a), .peer = peer, .dtype = IST_I32, .reduce = IST_SUM,
		.src = { .bytes = src_bytes, .device = -1 }, .dst = { .addr = dst, .bytes = dst_bytes, .device = -1 } };

	memcpy(&a.src.addr, &src, sizeof(src));
	return a;
}

static struct ist_req *
submit(uint32_t rank, uint32_t kind, struct ist_coll_args a, int64_t timeout_ns)
{
	struct ist_req *req = NULL;
	struct ist_error err = { .struct_size = sizeof(err) };
	ist_err e;

	ist_error_init(&err);
	e = ist__line_submit(w.lines[rank], kind, &a, ist__now() + timeout_ns, &req, &err);
	if (e)
		fail_msg("%s: %s", ist_err_name(e), err.detail);
	return req;
}

/* The outcome of a request that must come to an end by itself; frees it. */
static ist_err
outcome(struct ist_req *req, struct ist_error *err)
{
	ist_err e;

	ist_error_init(err);
	e = ist_req_wait(req, 60 * IST_NS_PER_S, err);
	assert_int_equal(ist_req_free(req), IST_OK);
	return e;
}

static int32_t in[WORLD_MAX][1 << 18], out[WORLD_MAX][1 << 18];

static void
reduce_all(uint64_t count, struct ist_req **reqs)
{
	for (uint32_t r = 0; r < w.size; r++)
		reqs[r] = submit(r, IST_OP_ALL_REDUCE, args(0, in[r], count * 4, out[r], count * 4), 60 * IST_NS_PER_S);
}

/* ---- arguments ---- */

static void
wrong_arguments_are_refused_at_once(void **state)
{
	static char room[64];
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_req *req = NULL;
	struct ist_coll_args good = args(0, room, 16, room + 16, 32), a;
	const uint64_t huge = UINT64_MAX / 2 + 1, outside = 4, one_set = 2;

	(void)state;
	world_open(&w, 2, NULL, 0);
	ist_error_init(&err);
#define REFUSED(kind, want, ...)                                                                                  \
	do {                                                                                                      \
		a = good;                                                                                         \
		__VA_ARGS__;                                                                                      \
		assert_int_equal(ist__line_submit(w.lines[0], kind, &a, IST__NEVER, &req, &err), want);            \
		assert_int_equal(err.code, want);                                                                 \
		assert_true(err.detail[0] && err.op[0]);                                                          \
		assert_null(req);                                                                                 \
	} while (0)
	assert_int_equal(ist__line_submit(w.lines[0], IST_OP_ALL_GATHER, NULL, IST__NEVER, &req, &err), IST_INVALID_ARGUMENT);
	REFUSED(IST_OP_ALL_GATHER, IST_INVALID_ARGUMENT, a.struct_size = 8);
	REFUSED(IST_OP_ALL_GATHER, IST_INVALID_ARGUMENT, a.dst.bytes = 31);
	REFUSED(IST_OP_ALL_GATHER, IST_INVALID_ARGUMENT, a.src.addr = NULL);
	REFUSED(IST_OP_ALL_GATHER, IST_INVALID_ARGUMENT, a.src.addr = room + 20);
	REFUSED(IST_OP_ALL_GATHER, IST_INVALID_ARGUMENT, a.flags = 0x40);
	REFUSED(IST_OP_ALL_GATHER, IST_INVALID_ARGUMENT, a.flags = IST_OP_VIEW);
	REFUSED(IST_OP_ALL_GATHER, IST_INVALID_ARGUMENT, a.src.mem = 9);
	REFUSED(IST_OP_ALL_GATHER, IST_UNSUPPORTED, a.src.mem = IST_MEM_CUDA);
	REFUSED(IST_OP_ALL_GATHER, IST_OVERFLOW, a.src.bytes = huge);
	REFUSED(IST_OP_BROADCAST, IST_INVALID_ARGUMENT, a.peer = 2);
	REFUSED(IST_OP_BROADCAST, IST_INVALID_ARGUMENT, a.takers = &outside);
	REFUSED(IST_OP_ALL_GATHER, IST_INVALID_ARGUMENT, a.takers = &one_set);
	REFUSED(IST_OP_BROADCAST, IST_INVALID_ARGUMENT, a.src.bytes = UINT64_MAX);
	REFUSED(IST_OP_SEND, IST_INVALID_ARGUMENT, a.peer = 0); /* itself */
	REFUSED(IST_OP_SEND, IST_INVALID_ARGUMENT, a.peer = 7);
	REFUSED(IST_OP_ALL_TO_ALL, IST_INVALID_ARGUMENT, a.src.bytes = 15, a.dst.bytes = 15);
	REFUSED(IST_OP_ALL_REDUCE, IST_INVALID_ARGUMENT, a.dst.bytes = 8);
	REFUSED(IST_OP_ALL_REDUCE, IST_INVALID_ARGUMENT, a.src.bytes = a.dst.bytes = 14);
	REFUSED(IST_OP_ALL_REDUCE, IST_INVALID_ARGUMENT, a.dst.bytes = 16, a.reduce = 5);
	REFUSED(IST_OP_ALL_REDUCE, IST_INVALID_ARGUMENT, a.dst.bytes = 16, a.dtype = 77);
	REFUSED(IST_OP_ALL_REDUCE, IST_UNSUPPORTED, a.dst.bytes = 16, a.dtype = IST_F8E4M3);
	assert_non_null(strstr(err.detail, "F8E4M3"));
	REFUSED(IST_OP_ALL_REDUCE, IST_INVALID_ARGUMENT, a.dst.bytes = 16, a.dst.addr = room + 4);
	REFUSED(IST_OP_REDUCE_SCATTER, IST_INVALID_ARGUMENT, a.src.bytes = 16, a.dst.bytes = 16);
	REFUSED(IST_OP_READ, IST_UNSUPPORTED, a.flags = 0);
	assert_int_equal(mem_starts(w.hub), 0);
	assert_true(world_close(&w));
}

static void
prints_say_who_does_what(void **state)
{
	uint8_t a[IST__PRINT_BYTES], b[IST__PRINT_BYTES];
	struct ist_coll_args x = args(0, NULL, 0, NULL, 0);
	struct ist_error err = { .struct_size = sizeof(err) };

	(void)state;
	x.dtype = IST_F32;
	ist__print_make(IST_OP_ALL_REDUCE, &x, 2, 8192, a);
	ist__print_make(IST_OP_BROADCAST, &x, 2, 4096, b);
	assert_int_equal(ist__print_compare(1, a, 0, a, 3, &err), IST_OK);
	assert_int_equal(ist__print_compare(1, a, 0, b, 3, &err), IST_ORDER_MISMATCH);
	assert_string_equal(err.detail, "operation 3: rank 1: all_reduce of 8192 bytes F32 sum; rank 0: broadcast of 4096 bytes from 0");
	assert_int_equal(err.n_ranks, 2);
	x.dtype = IST_I32;
	ist__print_make(IST_OP_ALL_REDUCE, &x, 2, 8192, b);
	assert_int_equal(ist__print_compare(1, a, 0, b, 3, &err), IST_MISMATCH);
	x.flags = IST_COLL_AGREED; /* no part of it */
	ist__print_make(IST_OP_ALL_REDUCE, &x, 2, 8192, a);
	assert_int_equal(ist__print_compare(1, a, 0, b, 3, &err), IST_OK);
}

/* ---- pairs ---- */

static void
sends_meet_their_receives_in_order(void **state)
{
	enum { MANY = 300 };
	static int32_t got[MANY];
	struct ist_req *s[MANY], *r[MANY];
	struct ist_error err = { .struct_size = sizeof(err) };

	(void)state;
	world_open(&w, 3, NULL, 0);
	for (int i = 0; i < MANY; i++) {
		in[2][i] = i * 7;
		s[i] = submit(2, IST_OP_SEND, args(1, &in[2][i], 4, NULL, 0), 60 * IST_NS_PER_S);
	}
	for (int i = 0; i < MANY; i++)
		r[i] = submit(1, IST_OP_RECV, args(2, NULL, 0, &got[i], 4), 60 * IST_NS_PER_S);
	for (int i = 0; i < MANY; i++) {
		assert_int_equal(outcome(s[i], &err), IST_OK);
		assert_int_equal(outcome(r[i], &err), IST_OK);
		assert_int_equal(got[i], i * 7);
	}
	assert_true(world_close(&w));
}

static void
pairs_of_unequal_size_fail_on_both(void **state)
{
	struct ist_req *s, *r;
	struct ist_error err = { .struct_size = sizeof(err) };

	(void)state;
	world_open(&w, 2, NULL, 0);
	memset(out[1], 0, 64);
	s = submit(0, IST_OP_SEND, args(1, in[0], 32, NULL, 0), 60 * IST_NS_PER_S);
	r = submit(1, IST_OP_RECV, args(0, NULL, 0, out[1], 16), 60 * IST_NS_PER_S);
	assert_int_equal(outcome(s, &err), IST_MISMATCH);
	assert_int_equal(outcome(r, &err), IST_MISMATCH);
	assert_true(world_close(&w));
}

static void
one_rank_can_talk_to_itself(void **state)
{
	struct ist_req *s, *r;
	struct ist_error err = { .struct_size = sizeof(err) };

	(void)state;
	world_open(&w, 1, NULL, 0);
	in[0][0] = 99;
	s = submit(0, IST_OP_SEND, args(0, in[0], 4, NULL, 0), 60 * IST_NS_PER_S);
	r = submit(0, IST_OP_RECV, args(0, NULL, 0, out[0], 4), 60 * IST_NS_PER_S);
	assert_int_equal(outcome(s, &err), IST_OK);
	assert_int_equal(outcome(r, &err), IST_OK);
	assert_int_equal(out[0][0], 99);
	assert_true(world_close(&w));
}

/* ---- members disagree ---- */

static void
different_operations_fail_on_all(void **state)
{
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_req *reqs[3];

	(void)state;
	world_open(&w, 3, NULL, 0);
	for (uint32_t r = 0; r < 3; r++) { /* rank 2 comes when the backend has already found bytes that do not fit */
		while (r == 2 && mem_starts(w.hub) < 2)
			poll(NULL, 0, 1);
		reqs[r] = submit(r, r == 1 ? IST_OP_ALL_REDUCE : IST_OP_BROADCAST,
			r == 1 ? args(0, in[1], 128, out[1], 128) : args(0, in[r], r ? 0 : 64, out[r], r ? 64 : 0), 60 * IST_NS_PER_S);
	}
	for (uint32_t r = 0; r < 3; r++) {
		assert_int_equal(outcome(reqs[r], &err), IST_ORDER_MISMATCH);
		assert_non_null(strstr(err.detail, "all_reduce of 128 bytes I32 sum"));
	}
	assert_true(world_close(&w));
}

static void
different_sizes_fail_on_all_and_write_nothing_behind(void **state)
{
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_req *reqs[3];

	(void)state;
	world_open(&w, 3, NULL, 0);
	memset(out, 0x11, sizeof(out[0]) * 3);
	for (uint32_t r = 0; r < 3; r++)
		reqs[r] = submit(r, IST_OP_BROADCAST, args(0, in[0], r == 0 ? 8192 : 0, out[r], r == 0 ? 0 : r == 1 ? 4096 : 8192), 60 * IST_NS_PER_S);
	for (uint32_t r = 0; r < 3; r++)
		assert_int_equal(outcome(reqs[r], &err), IST_MISMATCH);
	assert_int_equal(out[1][1024], 0x11111111);
	assert_true(world_close(&w));
}

static void
agreed_operations_are_not_compared(void **state)
{
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_req *reqs[3];

	(void)state;
	world_open(&w, 3, NULL, 0);
	w.mute = true;
	for (uint32_t r = 0; r < 3; r++) {
		struct ist_coll_args a = args(0, in[r], 64, out[r], 64);

		a.flags = IST_COLL_AGREED;
		reqs[r] = submit(r, IST_OP_ALL_REDUCE, a, 60 * IST_NS_PER_S);
	}
	for (uint32_t r = 0; r < 3; r++)
		assert_int_equal(outcome(reqs[r], &err), IST_OK);
	assert_int_equal(w.n_entered, 0);
	assert_true(world_close(&w));
}

/* ---- late members ---- */

static void
the_deadline_names_who_is_absent(void **state)
{
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_req *a, *b, *behind;

	(void)state;
	world_open(&w, 3, NULL, 10 * MS); /* absent members are not frozen */
	a = submit(0, IST_OP_ALL_REDUCE, args(0, in[0], 64, out[0], 64), 300 * MS);
	behind = submit(0, IST_OP_ALL_REDUCE, args(0, in[0], 64, out[0], 64), 60 * IST_NS_PER_S);
	b = submit(2, IST_OP_ALL_REDUCE, args(0, in[2], 64, out[2], 64), 60 * IST_NS_PER_S);
	assert_int_equal(outcome(a, &err), IST_TIMEOUT);
	assert_int_equal(err.n_ranks, 1);
	assert_int_equal(err.ranks[0], 1);
	assert_non_null(strstr(err.detail, "have not entered"));
	assert_string_equal(err.op, "all_reduce");
	assert_int_equal(outcome(b, &err), IST_TIMEOUT);
	assert_int_equal(err.ranks[0], 1);
	assert_int_equal(outcome(behind, &err), IST_TIMEOUT);
	assert_int_equal(w.n_failed, 1);
	assert_true(world_close(&w));
}

static void
a_receive_names_its_peer(void **state)
{
	struct ist_error err = { .struct_size = sizeof(err) };

	(void)state;
	world_open(&w, 3, NULL, 10 * MS);
	assert_int_equal(outcome(submit(0, IST_OP_RECV, args(2, NULL, 0, out[0], 64), 200 * MS), &err), IST_TIMEOUT);
	assert_int_equal(err.n_ranks, 1);
	assert_int_equal(err.ranks[0], 2);
	assert_non_null(strstr(err.detail, "recv of 64 bytes from 2"));
	assert_true(world_close(&w));
}

static void
bytes_that_stand_still_are_no_progress(void **state)
{
	const struct mem_options o = { .hold_after = 300 * 1024 };
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_req *reqs[3];

	(void)state;
	world_open(&w, 3, &o, 200 * MS);
	reduce_all(1 << 17, reqs);
	for (uint32_t r = 0; r < 3; r++) {
		assert_int_equal(outcome(reqs[r], &err), IST_NO_PROGRESS);
		assert_true(err.n_ranks > 0);
	}
	assert_true(world_close(&w));
}

/* Slow, but moving: longer than the limit in all. */
static void
slow_is_not_frozen(void **state)
{
	const struct mem_options o = { .slice = 4096, .no_fd = true };
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_req *reqs[2];

	(void)state;
	world_open(&w, 2, &o, 400 * MS);
	reduce_all(1 << 18, reqs);
	for (uint32_t r = 0; r < 2; r++)
		assert_int_equal(outcome(reqs[r], &err), IST_OK);
	assert_true(world_close(&w));
}

/* ---- the plug-in fails ---- */

static void
failures_of_the_plugin_reach_all(void **state)
{
	static const struct {
		struct mem_options o;
		ist_err want;
		const char *text;
	} cases[] = {
		{ { .fail_rank = 1, .fail_at = 1, .fail_code = IST_IO }, IST_IO, "told to fail" },
		{ { .fail_rank = 1, .fail_at = 2, .fail_code = IST_PEER_LOST }, IST_PEER_LOST, "told to fail" },
		{ { .fail_rank = 2, .fail_at = 1, .fail_code = IST_OK }, IST_BAD_PLUGIN, "without giving its task" },
		{ { .fail_rank = 0, .fail_at = 1, .fail_code = 9999 }, IST_BAD_PLUGIN, "9999" },
		{ { .fail_rank = 2, .fail_at = 1, .fail_code = IST_IO, .fail_test = true, .hold = true }, IST_IO, "told to fail" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ist_error err = { .struct_size = sizeof(err) };
		struct ist_req *reqs[3];
		ist_err e[3];

		world_open(&w, 3, &cases[i].o, 0);
		for (uint32_t r = 0; r < 3; r++) {
			struct ist_coll_args a = args(0, in[r], 400, out[r], 400);

			reqs[r] = NULL; /* a rank that comes after the failure is refused with it */
			e[r] = ist__line_submit(w.lines[r], IST_OP_ALL_REDUCE, &a, IST__NEVER, &reqs[r], &err);
			assert_true(!e[r] || (e[r] == cases[i].want && strstr(err.detail, cases[i].text)));
		}
		for (uint32_t r = 0; r < 3; r++)
			if (!e[r]) {
				assert_int_equal(outcome(reqs[r], &err), cases[i].want);
				assert_non_null(strstr(err.detail, cases[i].text));
			}
		assert_int_equal(mem_live_tasks(w.hub), 0);
		assert_true(world_close(&w));
	}
}

/* The group above does not answer: the line ends by itself. */
static void
a_deaf_group_does_not_hang_its_requests(void **state)
{
	const struct mem_options o = { .fail_rank = 0, .fail_at = 1, .fail_code = IST_IO };
	struct ist_error err = { .struct_size = sizeof(err) };

	(void)state;
	world_open(&w, 2, &o, 0);
	w.deaf = true;
	assert_int_equal(outcome(submit(0, IST_OP_SEND, args(1, in[0], 4, NULL, 0), 60 * IST_NS_PER_S), &err), IST_IO);
	assert_int_equal(err.sys, 42);
	assert_int_equal(w.n_failed, 1);
	assert_true(world_close(&w));
}

/* What a native operation refuses and what can't be composed ends alone. */
static void
a_refused_reduction_ends_alone(void **state)
{
	const struct mem_options o = { .native = 1u << IST_OP_ALL_REDUCE };
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_req *reqs[2];

	(void)state;
	world_open(&w, 2, &o, 0);
	for (uint32_t r = 0; r < 2; r++) {
		struct ist_coll_args a = args(0, in[r], 64, out[r], 64);

		a.dtype = IST_F8E5M2;
		reqs[r] = submit(r, IST_OP_ALL_REDUCE, a, 60 * IST_NS_PER_S);
	}
	for (uint32_t r = 0; r < 2; r++)
		assert_int_equal(outcome(reqs[r], &err), IST_UNSUPPORTED);
	reduce_all(16, reqs);
	for (uint32_t r = 0; r < 2; r++)
		assert_int_equal(outcome(reqs[r], &err), IST_OK);
	assert_int_equal(w.n_failed, 0);
	assert_true(world_close(&w));
}

/* ---- abort ---- */

static void *
abort_all(void *arg)
{
	struct ist_error why = { .struct_size = sizeof(why) };

	(void)arg;
	ist__fail(&why, IST_PEER_LOST, "mesh", "rank 1 is gone");
	ist__fail_rank(&why, 1);
	for (uint32_t r = 0; r < w.size; r++)
		ist__line_abort(w.lines[r], &why);
	return NULL;
}

static void
abort_ends_what_runs_and_what_waits(void **state)
{
	static const struct mem_options held = { .hold = true }, deaf = { .hold = true, .ignore_abort = true },
		gone = { .hold = true, .abandon = true };
	const struct mem_options *options[] = { &held, &deaf, &gone };

	(void)state;
	for (int i = 0; i < 3; i++) {
		enum { MANY = 20 };
		struct ist_req *reqs[MANY][2], *late = NULL;
		struct ist_error err = { .struct_size = sizeof(err) };
		pthread_t t;
		int64_t begin;

		world_open(&w, 2, options[i], 0);
		for (int k = 0; k < MANY; k++)
			reduce_all(10, reqs[k]);
		while (mem_starts(w.hub) < 2)
			poll(NULL, 0, 1);
		begin = ist__now();
		assert_int_equal(pthread_create(&t, NULL, abort_all, NULL), 0);
		for (int k = 0; k < MANY; k++)
			for (uint32_t r = 0; r < 2; r++) {
				assert_int_equal(outcome(reqs[k][r], &err), IST_PEER_LOST);
				assert_int_equal(err.ranks[0], 1);
				assert_int_equal(strstr(err.detail, "abandoned") != NULL, i > 0 && k == 0);
			}
		pthread_join(t, NULL);
		assert_true(ist__now() - begin < 10 * IST_NS_PER_S);
		ist_error_init(&err);
		assert_int_equal(ist__line_submit(w.lines[0], IST_OP_BARRIER, &(struct ist_coll_args){ .struct_size = sizeof(struct ist_coll_args) },
			IST__NEVER, &late, &err), IST_PEER_LOST);
		assert_null(late);
		assert_true(world_close(&w));
	}
}

/* start does not come back at all: the requests end, free returns, the thread stays behind. */
static void
a_stuck_plugin_holds_up_nobody(void **state)
{
	const struct mem_options o = { .block_rank = 1, .block_at = 1 };
	struct ist_req *reqs[2], *queued;
	struct ist_error err = { .struct_size = sizeof(err) };
	struct mem_hub *hub;
	int64_t begin;

	(void)state;
	if (world_drive) /* is for backends that never block */
		skip();
	world_open(&w, 2, &o, 0);
	hub = w.hub;
	reduce_all(10, reqs);
	queued = submit(1, IST_OP_RECV, args(0, NULL, 0, out[1], 4), 60 * IST_NS_PER_S);
	while (mem_starts(w.hub) < 2)
		poll(NULL, 0, 1);
	begin = ist__now();
	abort_all(NULL);
	assert_int_equal(outcome(reqs[0], &err), IST_PEER_LOST);
	assert_int_equal(outcome(reqs[1], &err), IST_PEER_LOST);
	assert_non_null(strstr(err.detail, "abandoned"));
	assert_int_equal(outcome(queued, &err), IST_PEER_LOST);
	assert_null(strstr(err.detail, "abandoned"));
	assert_false(world_close(&w));
	assert_true(ist__now() - begin < 20 * IST_NS_PER_S);
	left_behind[0] = w;
	mem_release(hub); /* it comes back late, and finds that it was left */
}

static void
a_stuck_plugin_is_found_by_the_waiter(void **state)
{
	const struct mem_options o = { .block_rank = 0, .block_at = 1 };
	struct ist_error err = { .struct_size = sizeof(err) };
	struct mem_hub *hub;

	(void)state;
	if (world_drive)
		skip();
	world_open(&w, 2, &o, 0);
	hub = w.hub;
	assert_int_equal(outcome(submit(0, IST_OP_SEND, args(1, in[0], 4, NULL, 0), 100 * MS), &err), IST_TIMEOUT);
	assert_non_null(strstr(err.detail, "does not come back"));
	assert_int_equal(w.n_failed, 1);
	assert_false(world_close(&w));
	left_behind[1] = w;
	mem_release(hub);
}

/* In a process of its own: stopped while its plug-in is in a call, which comes back once the process goes on. 0: that is well. */
static int
is_stopped_meanwhile(void)
{
	const struct mem_options o = { .block_rank = 1, .block_at = 1 };
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_req *reqs[2];

	world_open(&w, 2, &o, 0);
	reduce_all(10, reqs);
	while (mem_starts(w.hub) < 2)
		poll(NULL, 0, 1);
	abort_all(NULL);
	raise(SIGSTOP);
	mem_release(w.hub);
	if (outcome(reqs[0], &err) != IST_PEER_LOST || outcome(reqs[1], &err) != IST_PEER_LOST)
		return 2;
	return strstr(err.detail, "abandoned") ? 3 : world_close(&w) ? 0 : 4;
}

static void
a_stopped_process_has_no_stuck_plugin(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	if (world_drive)
		skip();
	pid = fork();
	if (pid == 0)
		_exit(is_stopped_meanwhile());
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	poll(NULL, 0, 1500); /* longer than a plug-in may take to come back from an abort: this test's input */
	kill(pid, SIGCONT);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* Free with everything under way, the requests still in the user's hands. */
static void
requests_outlive_their_line(void **state)
{
	const struct mem_options o = { .hold = true };
	struct ist_req *reqs[2];
	struct ist_error err = { .struct_size = sizeof(err) };
	uint32_t done = 0;

	(void)state;
	world_open(&w, 2, &o, 0);
	reduce_all(10, reqs);
	ist__line_hold(w.lines[0]);
	for (uint32_t r = 0; r < 2; r++)
		assert_true(ist__line_free(w.lines[r]));
	ist_error_init(&err);
	assert_int_equal(ist_req_test(reqs[0], &done, &err), IST_ABORTED);
	assert_int_equal(done, 1);
	assert_int_equal(ist__line_submit(w.lines[0], IST_OP_BARRIER, &(struct ist_coll_args){ .struct_size = sizeof(struct ist_coll_args) },
		IST__NEVER, &reqs[0], &err), IST_ABORTED);
	ist__line_drop(w.lines[0]);
	for (uint32_t r = 0; r < 2; r++)
		assert_int_equal(outcome(reqs[r], &err), IST_ABORTED);
	w.lines[0] = w.lines[1] = NULL;
	assert_true(world_close(&w));
}

/* ---- cancel ---- */

static void
cancel_undoes_what_has_not_begun(void **state)
{
	const struct mem_options o = { .hold = true };
	struct ist_req *first[2], *second[2], *third[2];
	struct ist_error err = { .struct_size = sizeof(err) };

	(void)state;
	world_open(&w, 2, &o, 0);
	in[0][0] = 1, in[1][0] = 2;
	reduce_all(10, first);
	reduce_all(20, second);
	reduce_all(30, third);
	for (uint32_t r = 0; r < 2; r++)
		assert_int_equal(ist_req_cancel(second[r]), IST_OK);
	for (uint32_t r = 0; r < 2; r++) {
		assert_int_equal(outcome(second[r], &err), IST_ABORTED);
		assert_non_null(strstr(err.detail, "before it began"));
	}
	mem_release(w.hub);
	for (uint32_t r = 0; r < 2; r++) {
		assert_int_equal(outcome(first[r], &err), IST_OK);
		assert_int_equal(outcome(third[r], &err), IST_OK);
		assert_int_equal(out[r][0], 3);
	}
	assert_int_equal(w.n_failed, 0);
	assert_true(world_close(&w));
}

static void
cancel_of_what_has_begun_ends_the_group(void **state)
{
	const struct mem_options o = { .hold = true };
	struct ist_req *reqs[2];
	struct ist_error err = { .struct_size = sizeof(err) };

	(void)state;
	for (int by_free = 0; by_free < 2; by_free++) {
		world_open(&w, 2, &o, 0);
		reduce_all(10, reqs);
		while (mem_starts(w.hub) < 2)
			poll(NULL, 0, 1);
		if (by_free)
			assert_int_equal(ist_req_free(reqs[1]), IST_OK);
		else
			assert_int_equal(ist_req_cancel(reqs[1]), IST_OK);
		assert_int_equal(outcome(reqs[0], &err), IST_ABORTED);
		assert_int_equal(err.ranks[0], 1);
		if (!by_free)
			assert_int_equal(outcome(reqs[1], &err), IST_ABORTED);
		assert_true(world_close(&w));
	}
}

/* ---- views and memory ---- */

static void
views_are_lent_until_given_back(void **state)
{
	const struct mem_options o = { .native = 1u << IST_OP_BROADCAST, .traits = IST_TRAIT_CAN_VIEW };
	struct ist_req *reqs[3];
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_buf view;
	void *root = NULL;
	uint32_t done = 9;

	(void)state;
	world_open(&w, 3, &o, 0);
	ist_error_init(&err);
	assert_int_equal(ist__line_alloc(w.lines[0], 4096, IST_MEM_HOST, -1, ist__now() + 60 * IST_NS_PER_S, &root, &err), IST_OK);
	memset(root, 0x5A, 4096);
	for (uint32_t r = 0; r < 3; r++) {
		struct ist_coll_args a = args(0, root, r ? 0 : 4096, out[r], r ? 4096 : 0);

		a.flags = IST_OP_VIEW;
		out[r][0] = 0;
		reqs[r] = submit(r, IST_OP_BROADCAST, a, 60 * IST_NS_PER_S);
	}
	for (uint32_t r = 1; r < 3; r++) {
		assert_int_equal(ist_req_wait(reqs[r], 0, &err), IST_OK);
		assert_int_equal(ist_req_view(reqs[r], &view, &err), IST_OK);
		assert_ptr_equal(view.addr, root);
		assert_int_equal(view.bytes, 4096);
		assert_int_equal(out[r][0], 0); /* no copy was made */
	}
	assert_int_equal(ist_req_test(reqs[0], &done, &err), IST_OK);
	assert_int_equal(done, 0); /* its memory is lent */
	assert_int_equal(ist_req_free(reqs[1]), IST_OK);
	assert_int_equal(ist_req_free(reqs[2]), IST_OK);
	assert_int_equal(outcome(reqs[0], &err), IST_OK);
	assert_int_equal(ist__line_free_mem(w.lines[0], root), IST_OK);
	assert_int_equal(ist__line_alloc(w.lines[0], 16, IST_MEM_CUDA, 0, ist__now() + 60 * IST_NS_PER_S, &root, &err), IST_UNSUPPORTED);
	abort_all(NULL);
	assert_int_equal(ist__line_alloc(w.lines[0], 16, IST_MEM_HOST, -1, ist__now() + 60 * IST_NS_PER_S, &root, &err), IST_PEER_LOST);
	assert_true(world_close(&w));
}

static void
without_views_the_bytes_are_in_dst(void **state)
{
	static const struct mem_options composed = { .native = 0 }, native = { .native = 1u << IST_OP_BROADCAST };
	const struct mem_options *options[] = { &composed, &native };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct ist_req *reqs[3];
		struct ist_error err = { .struct_size = sizeof(err) };
		struct ist_buf view;

		world_open(&w, 3, options[i], 0);
		in[0][5] = 77;
		for (uint32_t r = 0; r < 3; r++) {
			struct ist_coll_args a = args(0, in[0], r ? 0 : 64, out[r], r ? 64 : 0);

			a.flags = IST_OP_VIEW;
			out[r][5] = 0;
			reqs[r] = submit(r, IST_OP_BROADCAST, a, 60 * IST_NS_PER_S);
		}
		for (uint32_t r = 0; r < 3; r++) {
			assert_int_equal(ist_req_wait(reqs[r], 0, &err), IST_OK);
			assert_int_equal(ist_req_view(reqs[r], &view, &err), IST_OK);
			assert_ptr_equal(view.addr, r ? (void *)out[r] : (void *)in[0]);
			assert_int_equal(((int32_t *)view.addr)[5], 77);
			assert_int_equal(ist_req_free(reqs[r]), IST_OK);
		}
		assert_true(world_close(&w));
	}
}

static void
nothing_is_allocated_once_it_runs(void **state)
{
	struct ist_req *reqs[3];
	struct ist_error err = { .struct_size = sizeof(err) };
	int64_t before = 0;

	(void)state;
	world_open(&w, 3, NULL, 0);
	for (int i = 0; i < 200; i++) {
		if (i == 20)
			before = w.allocs;
		reduce_all(i % 2 ? 100 : 50000, reqs);
		for (uint32_t r = 0; r < 3; r++)
			assert_int_equal(outcome(reqs[r], &err), IST_OK);
	}
	assert_int_equal(w.allocs, before);
	assert_true(world_close(&w));
}

/* Whichever allocation fails: an error, on all ranks, and nothing lost. */
static bool
has_failed(void)
{
	bool is;

	pthread_mutex_lock(&w.lock);
	is = w.n_failed > 0;
	pthread_mutex_unlock(&w.lock);
	return is;
}

static void
memory_may_run_out_anywhere(void **state)
{
	(void)state;
	for (int k = 1; k < 8; k++) {
		struct ist_req *reqs[30][2];
		struct ist_error err = { .struct_size = sizeof(err) };
		ist_err e[30][2];

		world_open(&w, 2, NULL, 0);
		w.fail_at = w.allocs + k;
		for (int i = 0; i < 30; i++)
			for (uint32_t r = 0; r < 2; r++) {
				struct ist_coll_args a = args(0, in[r], 40000, out[r], 40000);

				e[i][r] = ist__line_submit(w.lines[r], IST_OP_ALL_REDUCE, &a, ist__now() + 2 * IST_NS_PER_S, &reqs[i][r], &err);
				if (e[i][r] == IST_NO_MEMORY && !has_failed()) /* here it never was in the queue: the user tells the others */
					abort_all(NULL);
			}
		for (int i = 0; i < 30; i++)
			for (uint32_t r = 0; r < 2; r++)
				if (!e[i][r]) {
					e[i][r] = outcome(reqs[i][r], &err);
					assert_true(e[i][r] == IST_OK || e[i][r] == IST_NO_MEMORY || e[i][r] == IST_PEER_LOST);
				}
		assert_true(world_close(&w));
	}
}

static void
a_line_that_gets_no_memory_is_not_made(void **state)
{
	struct mem_hub *hub = mem_hub_new(1, NULL);
	int made = 0;

	(void)state;
	for (int k = 1; !made; k++) {
		struct ist__line_args a = { .backend = mem_admitted(hub), .chan = mem_chan(hub, 0), .size = 1 };
		struct ist__line *line = NULL;
		struct ist_error err = { .struct_size = sizeof(err) };
		ist_err e;

		assert_true(k < 1000);
		world_env(&w);
		a.env = w.env;
		w.fail_at = k;
		e = ist__line_new(&a, &line, &err);
		made = e == IST_OK && w.allocs < k;
		assert_true(e == IST_OK || (e == IST_NO_MEMORY && !line));
		if (!e)
			assert_true(ist__line_free(line));
		ist_env_free(w.env);
		assert_int_equal(w.live, 0);
	}
	mem_hub_free(hub);
}

/* ---- threads ---- */

enum { CALLS = 500, WORDS = 64 };

struct side {
	uint32_t rank;
	int32_t mark;
	uint32_t seen[2];
};

static void *
talk(void *arg)
{
	struct side *s = arg;
	int32_t words[WORDS];
	struct ist_error err = { .struct_size = sizeof(err) };

	for (int i = 0; i < CALLS; i++) {
		for (int k = 0; k < WORDS; k++)
			words[k] = s->mark;
		if (outcome(submit(s->rank, s->rank ? IST_OP_RECV : IST_OP_SEND,
			s->rank ? args(0, NULL, 0, words, sizeof(words)) : args(1, words, sizeof(words), NULL, 0), 60 * IST_NS_PER_S), &err))
			return s;
		for (int k = 0; k < WORDS; k++)
			if (words[k] != words[0])
				return s;
		if (s->rank)
			s->seen[words[0]]++;
	}
	return NULL;
}

static void
two_threads_share_a_line(void **state)
{
	struct side sides[4] = { { .rank = 0, .mark = 0 }, { .rank = 0, .mark = 1 }, { .rank = 1, .mark = 5 }, { .rank = 1, .mark = 5 } };
	pthread_t t[4];
	void *bad;

	(void)state;
	world_open(&w, 2, NULL, 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, talk, &sides[i]), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(t[i], &bad);
		assert_null(bad);
	}
	assert_int_equal(sides[2].seen[0] + sides[3].seen[0], CALLS);
	assert_int_equal(sides[2].seen[1] + sides[3].seen[1], CALLS);
	assert_true(world_close(&w));
}

/* Abort at a random moment, again and again. */
static void
abort_at_any_moment(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 60; i++) {
		struct ist_req *reqs[8][3];
		struct ist_error err = { .struct_size = sizeof(err) };
		pthread_t t;
		ist_err e;

		world_open(&w, 3, NULL, 0);
		for (int k = 0; k < 8; k++) {
			if (k == (int)(i % 8))
				assert_int_equal(pthread_create(&t, NULL, abort_all, NULL), 0);
			for (uint32_t r = 0; r < 3; r++) {
				struct ist_coll_args a = args(0, in[r], 40000, out[r], 40000);

				reqs[k][r] = NULL;
				e = ist__line_submit(w.lines[r], IST_OP_ALL_REDUCE, &a, IST__NEVER, &reqs[k][r], &err);
				assert_true(e == IST_OK || e == IST_PEER_LOST);
			}
		}
		for (int k = 0; k < 8; k++)
			for (uint32_t r = 0; r < 3; r++)
				if (reqs[k][r]) {
					e = outcome(reqs[k][r], &err);
					assert_true(e == IST_OK || e == IST_PEER_LOST);
				}
		pthread_join(t, NULL);
		assert_true(world_close(&w));
	}
}

/* Nothing to do costs nothing: before the first operation, after one, and after an abort. */
static void
an_idle_line_sleeps(void **state)
{
	static const struct mem_options with_fd = { .hold = false }, without = { .no_fd = true };
	const struct mem_options *options[] = { &with_fd, &without };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct ist_req *reqs[2];
		struct ist_error err = { .struct_size = sizeof(err) };
		uint64_t turns;

		world_open(&w, 2, options[i], 0);
		for (int phase = 0; phase < 3; phase++) {
			if (phase == 1) {
				reduce_all(10, reqs);
				for (uint32_t r = 0; r < 2; r++)
					assert_int_equal(outcome(reqs[r], &err), IST_OK);
			}
			if (phase == 2)
				abort_all(NULL);
			turns = mem_turns(w.hub);
			poll(NULL, 0, 300);
			assert_true(mem_turns(w.hub) - turns < 100); /* about 20; one that spins has thousands */
		}
		assert_true(world_close(&w));
	}
}

static void
the_choice_can_be_printed(void **state)
{
	const struct mem_options o = { .native = 1u << IST_OP_BROADCAST };
	char text[2000], little[10];
	uint64_t n;

	(void)state;
	world_open(&w, 2, &o, 0);
	n = ist__line_print(w.lines[0], text, sizeof(text));
	assert_int_equal(n, strlen(text));
	assert_non_null(strstr(text, "broadcast: native\n"));
	assert_non_null(strstr(text, "all_reduce: recursive doubling to 32768 bytes, ring above\n"));
	assert_int_equal(ist__line_print(w.lines[0], little, sizeof(little)), n);
	assert_int_equal(strlen(little), 9);
	assert_int_equal(ist__line_print(w.lines[0], NULL, 0), n);
	assert_true(world_close(&w));
}

/* Four threads wait for different requests of one line that nothing moves; abort wakes all, whoever drives. */
static void *
wait_for_it(void *req)
{
	struct ist_error err = { .struct_size = sizeof(err) };

	return (void *)(uintptr_t)(outcome(req, &err) == IST_PEER_LOST);
}

static void
all_who_wait_are_woken(void **state)
{
	const struct mem_options o = { .hold = true };
	struct ist_error err = { .struct_size = sizeof(err) };

	(void)state;
	for (int round = 0; round < 20; round++) {
		struct ist_req *reqs[4][2], *late;
		pthread_t t[8];
		void *well;

		world_open(&w, 2, &o, 0);
		for (int k = 0; k < 4; k++) {
			reduce_all(10, reqs[k]);
			for (uint32_t r = 0; r < 2; r++)
				assert_int_equal(pthread_create(&t[2 * k + (int)r], NULL, wait_for_it, reqs[k][r]), 0);
		}
		/* a wait that ends early leaves the line to others */
		late = submit(0, IST_OP_RECV, args(1, NULL, 0, out[0], 4), 60 * IST_NS_PER_S);
		assert_int_equal(ist_req_wait(late, (round % 3) * MS / 2 + 1, &err), IST_TIMEOUT);
		abort_all(NULL);
		for (int i = 0; i < 8; i++) {
			pthread_join(t[i], &well);
			assert_non_null(well);
		}
		assert_int_equal(outcome(late, &err), IST_PEER_LOST);
		assert_true(world_close(&w));
	}
}

/* What is started goes on while nobody waits for it, and after a wait that came to nothing. */
static void
what_nobody_waits_for_goes_on(void **state)
{
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_req *s, *r;
	uint32_t done = 0;

	(void)state;
	world_open(&w, 2, NULL, 0);
	for (int round = 0; round < 50; round++) {
		r = submit(1, IST_OP_RECV, args(0, NULL, 0, out[1], 4096), 60 * IST_NS_PER_S);
		if (round % 2)
			assert_int_equal(ist_req_wait(r, round * 20000, &err), IST_TIMEOUT);
		s = submit(0, IST_OP_SEND, args(1, in[0], 4096, NULL, 0), 60 * IST_NS_PER_S);
		for (int64_t until = ist__now() + 20 * IST_NS_PER_S; !done && ist__now() < until; poll(NULL, 0, 1))
			assert_int_equal(ist_req_test(r, &done, &err), IST_OK);
		assert_int_equal(done, 1);
		done = 0;
		assert_int_equal(outcome(r, &err), IST_OK);
		assert_int_equal(outcome(s, &err), IST_OK);
	}
	assert_true(world_close(&w));
}

int
main(int argc, char **argv)
{
#define T(f) cmocka_unit_test(f)
	const struct CMUnitTest tests[] = {
		T(wrong_arguments_are_refused_at_once), T(prints_say_who_does_what), T(sends_meet_their_receives_in_order),
		T(pairs_of_unequal_size_fail_on_both), T(one_rank_can_talk_to_itself), T(different_operations_fail_on_all),
		T(different_sizes_fail_on_all_and_write_nothing_behind), T(agreed_operations_are_not_compared),
		T(the_deadline_names_who_is_absent), T(a_receive_names_its_peer), T(bytes_that_stand_still_are_no_progress),
		T(slow_is_not_frozen), T(failures_of_the_plugin_reach_all), T(a_deaf_group_does_not_hang_its_requests),
		T(a_refused_reduction_ends_alone), T(abort_ends_what_runs_and_what_waits), T(a_stuck_plugin_holds_up_nobody),
		T(a_stuck_plugin_is_found_by_the_waiter), T(a_stopped_process_has_no_stuck_plugin),
		T(requests_outlive_their_line), T(cancel_undoes_what_has_not_begun),
		T(cancel_of_what_has_begun_ends_the_group), T(views_are_lent_until_given_back), T(without_views_the_bytes_are_in_dst),
		T(nothing_is_allocated_once_it_runs), T(memory_may_run_out_anywhere),
		T(a_line_that_gets_no_memory_is_not_made), T(two_threads_share_a_line), T(abort_at_any_moment), T(an_idle_line_sleeps),
		T(the_choice_can_be_printed), T(all_who_wait_are_woken), T(what_nobody_waits_for_goes_on),
	};

	world_drive = argc > 1 && !strcmp(argv[1], "drive");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
