/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_loss_test.c - what goes wrong with NCCL: members that die, a library that does not come back, libraries that do not fit each
 * other, calls that fail. Over doubles, which do all this when told; deaths also on real devices, with NCCL_MULTI_RANK_GPU_ENABLE=1
 * several ranks on each. Real processes.
 */
#include "nccl_kit.h"

#include "plug/plug.h"

#include <isthmus.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

enum { MIB = 1 << 20 };
#define SLACK (256 * UINT64_C(1048576)) /* what the library's kernels take of a device, of each process that has loaded them */

static void
play_killing(uint32_t n, int (*run)(struct ranks *r, uint32_t rank, void *arg), uint64_t killed)
{
	struct ranks r;

	ranks_init(&r, n);
	ranks_start_all(&r, run, NULL);
	assert_int_equal(ranks_join(&r, 100, killed), 0);
	ranks_fini(&r);
}

static void
play(uint32_t n, int (*run)(struct ranks *r, uint32_t rank, void *arg))
{
	play_killing(n, run, 0);
}

/* Of a group that is gone: nothing is left in the library, but one id that the next group takes. */
static void
nothing_left(void)
{
	int comms, ids;

	if (!kit_is_double())
		return;
	kit_left(&comms, &ids);
	CHECK(comms == 0 && ids <= 1);
}

/* Bytes that the device has left, asked when nobody else of n is at work; at: a counter of its own for each question. */
static uint64_t
memory_left(struct kit *k, _Atomic uint32_t *at, uint32_t n)
{
	struct ist_device_info info = { .struct_size = sizeof(info) };
	struct ist_status why = { .struct_size = sizeof(why) };

	atomic_fetch_add(&at[0], 1);
	ranks_await(&at[0], n);
	CHECK(!k->d->info(k->d->self, k->device, &info, &why));
	atomic_fetch_add(&at[1], 1);
	ranks_await(&at[1], n);
	return info.bytes_free;
}

static struct ist_coll_args
args_of(struct kit *k, uint32_t root, uint64_t bytes)
{
	struct ist_coll_args a = { .struct_size = sizeof(a), .peer = root, .dtype = IST_F32, .reduce = IST_SUM };

	a.src = a.dst = kit_buf(k, bytes);
	return a;
}

/* ---- deaths ---- */

static void
tell_time(const char *who, uint32_t rank, double s)
{
	if (!kit_is_double())
		printf("%s was killed: rank %u knew after %.1f ms\n", who, rank, s * 1e3);
	fflush(stdout);
}

/* The survivors, renumbered, in the same processes. */
static void
goes_on(struct kit *k, struct ranks *r, uint32_t rank, uint32_t dead)
{
	struct ranks few = *r;
	struct ist_coll_args a = args_of(k, 0, 1000);

	few.n = r->n - 1;
	CHECK_ERR(IST_OK, kit_join(k, &few, "again", rank > dead ? rank - 1 : rank, NULL), &k->m.err);
	CHECK_ERR(IST_OK, kit_do(k, IST_OP_ALL_REDUCE, &a), &k->m.err);
	kit_free(k, &a.src);
	kit_part(k);
	nothing_left();
}

/* Root and others wait for one that is inside the operation, and dies there. */
static int
loses_a_receiver(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *started = r->shared;
	double *killed_at = (double *)r->shared + 8, at;
	struct ist_coll_args a;
	struct ist_req *req;
	struct kit k;
	uint64_t left, now;
	int live;
	ist_err e;

	(void)arg;
	kit_init(&k, rank);
	live = lazy_live();
	left = memory_left(&k, started + 1, r->n);
	CHECK_ERR(IST_OK, kit_join(&k, r, "receiver", rank, NULL), &k.m.err);
	a = args_of(&k, 0, kit_is_double() ? 64 * MIB : 4096 * UINT64_C(1048576)); /* some hundredths of a second of a real device */
	if (rank == 2) {
		ranks_await(started, 3);
		setenv("FAKE_NCCL_STOP", "1000000", 1); /* in the middle of it, for sure */
	}
	CHECK_ERR(IST_OK, kit_start(&k, IST_OP_BROADCAST, &a, &req), &k.m.err);
	atomic_fetch_add(started, 1);
	if (rank == 2) {
		if (kit_is_double())
			kit_await_running();
		*killed_at = now_s();
		kill(getpid(), SIGKILL);
	}
	at = now_s();
	e = kit_wait(&k, req);
	if (rank == 0 || e) {
		CHECK_ERR(IST_PEER_LOST, e, &k.m.err);
		CHECK(error_names(&k.m.err, 2) && now_s() - at < 10);
		tell_time("a receiver", rank, now_s() - *killed_at);
	}
	CHECK_ERR(IST_PEER_LOST, ist_barrier(k.m.g, 0, &k.m.err), &k.m.err);
	kit_free(&k, &a.src); /* back, not abandoned: the device has let go of it */
	kit_leave(&k);
	CHECK(k.busy == 0 && lazy_live() == live);
	goes_on(&k, r, rank, 2);
	now = memory_left(&k, started + 3, r->n - 1);
	if (now < left - r->n * SLACK)
		fprintf(stderr, "the device had %.1f MiB left, and has %.1f\n", (double)left / MIB, (double)now / MIB);
	CHECK(now >= left - r->n * SLACK);
	kit_fini(&k);
	return 0;
}

static void
a_receiver_dies_in_a_broadcast(void **state)
{
	(void)state;
	play_killing(4, loses_a_receiver, 1 << 2);
}

/* Everybody waits on the device for bytes that never come. */
static int
loses_the_root(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *started = r->shared;
	double *killed_at = (double *)r->shared + 8, at;
	struct ist_coll_args a;
	struct ist_req *req;
	struct kit k;
	int live;

	(void)arg;
	kit_init(&k, rank);
	live = lazy_live();
	CHECK_ERR(IST_OK, kit_join(&k, r, "root", rank, NULL), &k.m.err);
	if (rank == 1) {
		ranks_await(started, 3);
		*killed_at = now_s();
		kill(getpid(), SIGKILL);
	}
	a = args_of(&k, 1, MIB);
	CHECK_ERR(IST_OK, kit_start(&k, IST_OP_BROADCAST, &a, &req), &k.m.err);
	at = now_s();
	atomic_fetch_add(started, 1);
	CHECK_ERR(IST_PEER_LOST, kit_wait(&k, req), &k.m.err);
	CHECK(error_names(&k.m.err, 1) && now_s() - at < 10);
	tell_time("the root", rank, now_s() - *killed_at);
	kit_free(&k, &a.src);
	kit_leave(&k);
	CHECK(k.busy == 0 && lazy_live() == live);
	goes_on(&k, r, rank, 1);
	kit_fini(&k);
	return 0;
}

static void
the_root_of_a_broadcast_dies(void **state)
{
	(void)state;
	play_killing(4, loses_the_root, 1 << 1);
}

/* ---- a library that does not come back ---- */

static int
is_left_hanging(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *running = r->shared;
	const char *how = arg;
	struct ist_coll_args a;
	struct ist_req *req;
	struct kit k;
	double at;

	setenv("FAKE_NCCL_ABORT", rank == 1 ? how : "", 1);
	kit_init(&k, rank);
	CHECK_ERR(IST_OK, kit_join(&k, r, how, rank, NULL), &k.m.err);
	a = args_of(&k, 2, MIB); /* which has better things to do */
	if (rank < 2) {
		CHECK_ERR(IST_OK, kit_start(&k, IST_OP_BROADCAST, &a, &req), &k.m.err);
		kit_await_running();
		atomic_fetch_add(running, 1);
		ranks_await(running, 2);
	}
	if (rank == 0)
		CHECK(ist_group_abort(k.m.g, "enough") == IST_OK);
	if (rank < 2) {
		at = now_s();
		CHECK_ERR(IST_ABORTED, kit_wait(&k, req), &k.m.err);
		CHECK(now_s() - at < 10);
		atomic_fetch_add(running, 1);
	}
	ranks_await(running, 4);
	at = now_s();
	kit_leave(&k);
	CHECK(now_s() - at < 5 && k.busy == (rank == 1));
	if (rank == 1)
		CHECK(strstr(k.m.err.detail, "may still")); /* the memory is lost, and the user is told */
	if (rank == 1)
		_exit(0); /* its stream is stuck for good */
	kit_free(&k, &a.src);
	nothing_left();
	kit_fini(&k);
	return 0;
}

static void
play_hanging(char *how)
{
	struct ranks r;

	ranks_init(&r, 3);
	ranks_start_all(&r, is_left_hanging, how);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

static void
an_abort_that_hangs_is_left_behind(void **state)
{
	char how[] = "hangs";

	(void)state;
	play_hanging(how);
}

static void
a_device_that_holds_on_is_told(void **state)
{
	char how[] = "stuck";

	(void)state;
	play_hanging(how);
}

/* ---- one goes, the others stay ---- */

static int
goes_alone(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *gone = r->shared;
	struct ist_coll_args a;
	struct kit k;
	double at;

	(void)arg;
	setenv("FAKE_NCCL_FINALIZE", "waits", 1);
	kit_init(&k, rank);
	CHECK_ERR(IST_OK, kit_join(&k, r, "alone", rank, NULL), &k.m.err);
	a = args_of(&k, 0, 1000);
	CHECK_ERR(IST_OK, kit_do(&k, IST_OP_ALL_REDUCE, &a), &k.m.err);
	CHECK_ERR(IST_OK, ist_barrier(k.m.g, 0, &k.m.err), &k.m.err);
	if (rank == 1)
		ranks_await(gone, 1); /* the library's end in good order would need this one */
	at = now_s();
	kit_leave(&k);
	CHECK(now_s() - at < 3 && k.busy == 0);
	atomic_fetch_add(gone, 1);
	kit_free(&k, &a.src);
	nothing_left();
	kit_fini(&k);
	return 0;
}

static void
who_goes_waits_for_nobody(void **state)
{
	(void)state;
	play(2, goes_alone);
}

/* ---- libraries that don't fit ---- */

/* What a group_new over that library and these settings gives, on all ranks. */
struct mix {
	const char *version[2], *variable, *value[2], *options[2];
	ist_err want;
	const char *words;
};

static int
mixes(struct ranks *r, uint32_t rank, void *arg)
{
	const struct mix *m = arg;
	struct kit k;

	if (m->version[rank])
		setenv("FAKE_NCCL_VERSION", m->version[rank], 1);
	if (m->variable && m->value[rank])
		setenv(m->variable, m->value[rank], 1);
	if (m->want)
		setenv("FAKE_NCCL_LEAKS", "1", 1); /* an id that was made for it waits for the next group, which does not come */
	kit_init(&k, rank);
	CHECK_ERR(m->want, kit_join(&k, r, "mix", rank, m->options[rank]), &k.m.err);
	if (m->words)
		CHECK(strstr(k.m.err.detail, m->words) || (fprintf(stderr, "%s\n", k.m.err.detail), 0));
	if (m->want == IST_VERSION_MISMATCH || m->want == IST_MISMATCH)
		CHECK(k.m.err.n_ranks == 2 || error_names(&k.m.err, 0) || error_names(&k.m.err, 1));
	kit_leave(&k);
	kit_fini(&k);
	return 0;
}

static void
play_mix(struct mix m)
{
	struct ranks r;

	ranks_init(&r, 2);
	ranks_start_all(&r, mixes, &m);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

static void
versions_must_fit(void **state)
{
	(void)state;
	play_mix((struct mix){ .version = { "22809", "22105" }, .want = IST_VERSION_MISMATCH, .words = "2.21" });
	play_mix((struct mix){ .version = { "22809", "22803" }, .want = IST_OK });
	play_mix((struct mix){ .version = { "21801", "21801" }, .want = IST_OK });
	play_mix((struct mix){ .version = { "23203", "23203" }, .want = IST_OK });
	play_mix((struct mix){ .version = { "21705", "21705" }, .want = IST_UNSUPPORTED, .words = "2.18.1" });
}

static void
settings_must_fit(void **state)
{
	(void)state;
	play_mix((struct mix){ .variable = "NCCL_ALGO", .value = { "Ring", "Tree" }, .want = IST_MISMATCH, .words = "NCCL_ALGO" });
	play_mix((struct mix){ .variable = "NCCL_CUMEM_ENABLE", .value = { NULL, "0" }, .want = IST_MISMATCH, .words = "NCCL_CUMEM_ENABLE" });
	play_mix((struct mix){ .options = { "verify=0", "verify=1" }, .want = IST_MISMATCH, .words = "verify" });
	play_mix((struct mix){ .options = { "verify=0", "verify=0" }, .want = IST_OK });
	play_mix((struct mix){ .options = { "speed=9", "speed=9" }, .want = IST_BAD_CONFIG, .words = "verify" });
	play_mix((struct mix){ .variable = "NCCL_COMM_ID", .value = { "10.0.0.1:5", "10.0.0.1:5" }, .want = IST_BAD_CONFIG, .words = "unset" });
	play_mix((struct mix){ .variable = "NCCL_COMM_BLOCKING", .value = { "1", "1" }, .want = IST_BAD_CONFIG, .words = "unset" });
}

static void
a_library_can_be_chosen(void **state)
{
	static const char old[] = "library=" OLD_NCCL;

	(void)state;
	play_mix((struct mix){ .options = { old, old }, .want = IST_OK });
	play_mix((struct mix){ .options = { old, NULL }, .want = IST_VERSION_MISMATCH, .words = "2.19" });
	play_mix((struct mix){ .variable = "ISTHMUS_NCCL_LIBRARY", .value = { OLD_NCCL, OLD_NCCL }, .want = IST_OK });
	play_mix((struct mix){ .variable = "ISTHMUS_NCCL_LIBRARY", .value = { "/nowhere/libnccl.so.2", "/nowhere/libnccl.so.2" }, .want = IST_UNSUPPORTED,
		.words = "/nowhere" });
	play_mix((struct mix){ .options = { "library=/nowhere/x.so", "library=/nowhere/x.so" }, .want = IST_BAD_CONFIG, .words = "/nowhere" });
}

/* ---- two ranks on one device ---- */

static int
shares_a_card(struct ranks *r, uint32_t rank, void *arg)
{
	struct kit k;
	int comms = 0, ids = 0;

	(void)arg;
	lazy_twin = 3;
	kit_init(&k, rank);
	CHECK_ERR(IST_DEVICE_CONFLICT, kit_join(&k, r, "card", rank, NULL), &k.m.err);
	CHECK(k.m.err.n_ranks == 2 && error_names(&k.m.err, 0) && error_names(&k.m.err, 1));
	kit_left(&comms, &ids);
	CHECK(comms == 0 && ids == 0); /* found before the library was asked for anything */
	kit_fini(&k);
	return 0;
}

static void
one_card_is_for_one_rank(void **state)
{
	(void)state;
	play(2, shares_a_card);
}

/* ---- calls that fail ---- */

static int
can_not_join(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_coll_args a;
	struct kit k;
	double at;

	kit_init(&k, rank);
	if (rank == 1)
		setenv("FAKE_NCCL_FAIL", arg, 1);
	setenv("FAKE_NCCL_LEAKS", "1", 1); /* of an id that not all have come to; the library can't take it back */
	at = now_s();
	CHECK_ERR(IST_IO, kit_join(&k, r, "fails", rank, NULL), &k.m.err);
	CHECK(error_names(&k.m.err, 1) && now_s() - at < 20);
	CHECK(strstr(k.m.err.detail, "error"));
	unsetenv("FAKE_NCCL_FAIL");
	CHECK_ERR(IST_OK, kit_join(&k, r, "better", rank, NULL), &k.m.err);
	a = args_of(&k, 0, 1000);
	CHECK_ERR(IST_OK, kit_do(&k, IST_OP_ALL_REDUCE, &a), &k.m.err);
	kit_free(&k, &a.src);
	kit_part(&k);
	nothing_left();
	kit_fini(&k);
	return 0;
}

static void
play_failing(char *what)
{
	struct ranks r;

	ranks_init(&r, 3);
	ranks_start_all(&r, can_not_join, what);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

static void
a_rank_can_not_join(void **state)
{
	char init[] = "init=3", ready[] = "ready=1";

	(void)state;
	play_failing(init);
	play_failing(ready);
}

static int
hears_of_a_loss(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_coll_args a;
	struct kit k;

	(void)arg;
	kit_init(&k, rank);
	CHECK_ERR(IST_OK, kit_join(&k, r, "hears", rank, NULL), &k.m.err);
	if (rank == 0)
		setenv("FAKE_NCCL_FAIL", "poll=6", 1);
	a = args_of(&k, 0, 1000);
	CHECK_ERR(IST_PEER_LOST, kit_do(&k, IST_OP_ALL_REDUCE, &a), &k.m.err);
	CHECK(strstr(k.m.err.detail, "remote process exited"));
	kit_free(&k, &a.src);
	kit_leave(&k);
	nothing_left();
	kit_fini(&k);
	return 0;
}

static void
the_library_tells_of_a_loss(void **state)
{
	(void)state;
	play(2, hears_of_a_loss);
}

static int
can_not_issue(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_coll_args a;
	struct kit k;

	(void)arg;
	kit_init(&k, rank);
	CHECK_ERR(IST_OK, kit_join(&k, r, "issue", rank, NULL), &k.m.err);
	if (rank == 1)
		setenv("FAKE_NCCL_FAIL", "group=1", 1);
	a = args_of(&k, 0, 1000);
	CHECK_ERR(IST_IO, kit_do(&k, IST_OP_ALL_REDUCE, &a), &k.m.err);
	CHECK(error_names(&k.m.err, 1) && strstr(k.m.err.detail, "unhandled cuda error"));
	kit_free(&k, &a.src);
	kit_leave(&k);
	nothing_left();
	kit_fini(&k);
	return 0;
}

static void
an_operation_can_not_be_issued(void **state)
{
	(void)state;
	play(2, can_not_issue);
}

/* ---- 8-bit floats ---- */

static int
adds_tiny_floats(struct ranks *r, uint32_t rank, void *arg)
{
	bool known = arg != NULL;
	struct kit k;

	setenv("FAKE_NCCL_VERSION", known ? "22400" : "22304", 1);
	kit_init(&k, rank);
	CHECK_ERR(IST_OK, kit_join(&k, r, "tiny", rank, NULL), &k.m.err);
	for (uint32_t dtype = IST_F8E4M3; dtype <= IST_F8E5M2; dtype++) {
		struct ist_coll_args a = args_of(&k, 0, 3);
		uint8_t plain[3], want[3];

		a.dtype = dtype;
		for (uint32_t i = 0; i < 3; i++) {
			kit_put(dtype, &plain[i], i + rank);
			kit_put(dtype, &want[i], 2 * i + 1);
		}
		kit_up(&k, &a.src, plain);
		CHECK_ERR(known ? IST_OK : IST_UNSUPPORTED, kit_do(&k, IST_OP_ALL_REDUCE, &a), &k.m.err);
		kit_down(&k, plain, &a.dst);
		CHECK(!known || !memcmp(plain, want, 3));
		kit_free(&k, &a.src);
	}
	kit_part(&k);
	kit_fini(&k);
	return 0;
}

static void
tiny_floats_come_with_2_24(void **state)
{
	char yes[] = "yes";
	struct ranks r;

	(void)state;
	ranks_init(&r, 2);
	ranks_start_all(&r, adds_tiny_floats, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_start_all(&r, adds_tiny_floats, yes);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

int
main(void)
{
	const struct CMUnitTest real[] = {
		cmocka_unit_test(a_receiver_dies_in_a_broadcast),
		cmocka_unit_test(the_root_of_a_broadcast_dies),
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_receiver_dies_in_a_broadcast),
		cmocka_unit_test(the_root_of_a_broadcast_dies),
		cmocka_unit_test(an_abort_that_hangs_is_left_behind),
		cmocka_unit_test(a_device_that_holds_on_is_told),
		cmocka_unit_test(who_goes_waits_for_nobody),
		cmocka_unit_test(versions_must_fit),
		cmocka_unit_test(settings_must_fit),
		cmocka_unit_test(a_library_can_be_chosen),
		cmocka_unit_test(one_card_is_for_one_rank),
		cmocka_unit_test(a_rank_can_not_join),
		cmocka_unit_test(the_library_tells_of_a_loss),
		cmocka_unit_test(an_operation_can_not_be_issued),
		cmocka_unit_test(tiny_floats_come_with_2_24),
	};

	char why[256] = "";
	uint32_t devices = kit_devices(why);

	if (kit_is_double())
		return cmocka_run_group_tests(tests, NULL, NULL);
	if (kit_ranks(devices) < 4) {
		printf("skipped: it needs the doubles (NCCL_DOUBLE, and LD_LIBRARY_PATH to their folder), or room for four ranks %s\n", why);
		return 77;
	}
	return cmocka_run_group_tests(real, NULL, NULL);
}
