/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_test.c - groups over the nccl backend: every operation in every type and many sizes against a plain loop, streams,
 * groups one after the other and side by side. Over doubles, where NCCL_DOUBLE says so; else on the devices that there are, one rank
 * each (with one a group of one), or four each with NCCL_MULTI_RANK_GPU_ENABLE=1. Real processes.
 */
#include "nccl_kit.h"

#include "plug/plug.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sched.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

static uint32_t most = 1; /* ranks that can be had */

static void
play(uint32_t n, int (*run)(struct ranks *r, uint32_t rank, void *arg), void *arg)
{
	struct ranks r;

	ranks_init(&r, n);
	ranks_start_all(&r, run, arg);
	assert_int_equal(ranks_join(&r, 240, 0), 0);
	ranks_fini(&r);
}

static void
play_all(int (*run)(struct ranks *r, uint32_t rank, void *arg), void *arg)
{
	for (uint32_t n = 1; n <= most; n++)
		play(n, run, arg);
}

/* ---- every operation ---- */

/* One operation, as this rank sees it. */
struct act {
	uint32_t kind, root, dtype, reduce, rank, size;
	uint64_t count; /* elements of a part */
};

static uint32_t
value(const struct act *a, uint32_t rank, uint64_t i)
{
	uint32_t v = (uint32_t)((i * 7 + rank * 5 + i / 11) % 3);

	return a->reduce == IST_PROD ? 1 + v % 2 : v;
}

/* Element i of what rank gives. */
static void
give(const struct act *a, uint32_t rank, char *at, uint64_t i)
{
	if (a->dtype)
		kit_put(a->dtype, at, value(a, rank, i));
	else
		*at = (char)((i * 31 + rank * 97 + i / 255) & 0xff);
}

static uint32_t
combined(const struct act *a, uint64_t i)
{
	uint32_t v = value(a, 0, i);

	for (uint32_t r = 1; r < a->size; r++) {
		uint32_t w = value(a, r, i);

		v = a->reduce == IST_SUM ? v + w : a->reduce == IST_PROD ? v * w : (a->reduce == IST_MAX) == (w > v) ? w : v;
	}
	return v;
}

/* Element i of what this rank must get. */
static void
want(const struct act *a, char *at, uint64_t i)
{
	uint32_t from = (uint32_t)(a->count ? i / a->count : 0);
	uint64_t k = a->count ? i % a->count : 0;

	switch (a->kind) {
	case IST_OP_BROADCAST: give(a, a->root, at, i); break;
	case IST_OP_SCATTER: give(a, a->root, at, a->rank * a->count + i); break;
	case IST_OP_ALL_TO_ALL: give(a, from, at, a->rank * a->count + k); break;
	case IST_OP_GATHER:
	case IST_OP_ALL_GATHER: give(a, from, at, k); break;
	case IST_OP_REDUCE_SCATTER: kit_put(a->dtype, at, combined(a, a->rank * a->count + i)); break;
	default: kit_put(a->dtype, at, combined(a, i));
	}
}

static uint64_t
src_count(const struct act *a)
{
	bool root = a->rank == a->root;

	switch (a->kind) {
	case IST_OP_BROADCAST: return root ? a->count : 0;
	case IST_OP_SCATTER: return root ? a->count * a->size : 0;
	case IST_OP_ALL_TO_ALL:
	case IST_OP_REDUCE_SCATTER: return a->count * a->size;
	default: return a->count;
	}
}

static uint64_t
dst_count(const struct act *a)
{
	bool root = a->rank == a->root;

	switch (a->kind) {
	case IST_OP_BROADCAST: return root ? 0 : a->count;
	case IST_OP_GATHER: return root ? a->count * a->size : 0;
	case IST_OP_ALL_TO_ALL:
	case IST_OP_ALL_GATHER: return a->count * a->size;
	default: return a->count;
	}
}

static void
compare(const struct act *a, const char *got, uint64_t n, uint32_t elem)
{
	char right[8] = { 0 };

	for (uint64_t i = 0; i < n; i++) {
		want(a, right, i);
		if (!memcmp(got + i * elem, right, elem))
			continue;
		fprintf(stderr, "rank %u of %u: operation %u, root %u, dtype %u, reduce %u, %llu elements: element %llu is wrong\n", a->rank, a->size, a->kind,
			a->root, a->dtype, a->reduce, (unsigned long long)a->count, (unsigned long long)i);
		_Exit(1);
	}
}

static void
one_act(struct kit *k, const struct act *a, bool in_place)
{
	uint32_t elem = kit_elem(a->dtype);
	uint64_t n_src = src_count(a), n_dst = dst_count(a), room = (n_src > n_dst ? n_src : n_dst) * elem + 1;
	struct ist_buf src = kit_buf(k, n_src * elem), dst = in_place ? src : kit_buf(k, n_dst * elem);
	struct ist_coll_args args = { .struct_size = sizeof(args), .peer = a->root, .dtype = a->dtype, .reduce = a->reduce, .src = src, .dst = dst };
	char *plain = calloc(1, room);

	CHECK(plain);
	for (uint64_t i = 0; i < n_src; i++)
		give(a, a->rank, plain + i * elem, i);
	kit_up(k, &src, plain);
	CHECK_ERR(IST_OK, kit_do(k, a->kind, &args), &k->m.err);
	memset(plain, 0x55, room);
	kit_down(k, plain, &dst);
	compare(a, plain, n_dst, elem);
	free(plain);
	kit_free(k, &src);
	if (!in_place)
		kit_free(k, &dst);
}

static const uint64_t counts[] = { 0, 1, 3, 1000, 65537 };
enum { COUNTS = sizeof(counts) / sizeof(counts[0]) };

static int
moves(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t kinds[] = { IST_OP_BROADCAST, IST_OP_GATHER, IST_OP_SCATTER, IST_OP_ALL_GATHER, IST_OP_ALL_TO_ALL };
	struct kit k;

	(void)arg;
	kit_init(&k, rank);
	CHECK_ERR(IST_OK, kit_join(&k, r, "moves", rank, NULL), &k.m.err);
	for (uint32_t kind = 0; kind < 5; kind++)
		for (uint32_t root = 0; root < r->n; root++)
			for (uint32_t c = 0; c < COUNTS; c++)
				one_act(&k, &(struct act){ .kind = kinds[kind], .root = root, .rank = rank, .size = r->n, .count = counts[c] }, false);
	kit_part(&k);
	kit_fini(&k);
	return 0;
}

static void
every_move_is_right(void **state)
{
	(void)state;
	play_all(moves, NULL);
}

static int
reductions(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t dtypes[] = { IST_I8, IST_U8, IST_I32, IST_U32, IST_I64, IST_U64, IST_F16, IST_BF16, IST_F32, IST_F64 };
	struct kit k;

	(void)arg;
	kit_init(&k, rank);
	CHECK_ERR(IST_OK, kit_join(&k, r, "reductions", rank, NULL), &k.m.err);
	for (uint32_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
		for (uint32_t reduce = IST_SUM; reduce <= IST_MAX; reduce++)
			for (uint32_t c = 0; c < COUNTS - 1; c++) {
				struct act a = { .dtype = dtypes[d], .reduce = reduce, .rank = rank, .size = r->n, .count = counts[c] };

				a.kind = IST_OP_ALL_REDUCE;
				one_act(&k, &a, false);
				one_act(&k, &a, true);
				a.kind = IST_OP_REDUCE_SCATTER;
				one_act(&k, &a, false);
			}
	kit_part(&k);
	kit_fini(&k);
	return 0;
}

static void
every_reduction_is_right(void **state)
{
	(void)state;
	play_all(reductions, NULL);
}

/* What NCCL has no type for is refused, and the group goes on: nobody has begun. */
static int
refuses(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_coll_args args = { .struct_size = sizeof(args), .dtype = IST_I16, .reduce = IST_SUM };
	struct kit k;

	(void)arg;
	kit_init(&k, rank);
	CHECK_ERR(IST_OK, kit_join(&k, r, "refuses", rank, NULL), &k.m.err);
	args.src = kit_buf(&k, 64);
	args.dst = kit_buf(&k, 64);
	CHECK_ERR(IST_UNSUPPORTED, kit_do(&k, IST_OP_ALL_REDUCE, &args), &k.m.err);
	one_act(&k, &(struct act){ .kind = IST_OP_ALL_REDUCE, .dtype = IST_F32, .reduce = IST_SUM, .rank = rank, .size = r->n, .count = 100 }, false);
	args.src.mem = args.dst.mem = IST_MEM_HOST; /* nor does it take host memory for the device's */
	args.dtype = IST_F32;
	CHECK_ERR(IST_UNSUPPORTED, kit_do(&k, IST_OP_ALL_REDUCE, &args), &k.m.err);
	kit_free(&k, &args.src);
	kit_free(&k, &args.dst);
	kit_part(&k);
	kit_fini(&k);
	return 0;
}

static void
unknown_types_are_refused(void **state)
{
	(void)state;
	play_all(refuses, NULL);
}

/* ---- streams ---- */

/* Before it on the stream: the copy that fills src. After it, put there once it is issued: the copy that fetches dst. */
static int
orders(struct ranks *r, uint32_t rank, void *arg)
{
	enum { N = 300000 };
	struct ist_status why = { .struct_size = sizeof(why) };
	char *from = malloc(N), *to = calloc(1, N);
	struct ist_coll_args args = { .struct_size = sizeof(args) };
	struct kit k;

	(void)arg;
	CHECK(from && to);
	kit_init(&k, rank);
	CHECK_ERR(IST_OK, kit_join(&k, r, "orders", rank, NULL), &k.m.err);
	args.stream = k.stream;
	args.src = args.dst = kit_buf(&k, N);
	for (int round = 0; round < 10; round++) {
		struct ist_copy in = { .dst = args.src.addr, .src = from, .bytes = N };

		memset(from, round + 1, N);
		args.peer = (uint32_t)round % r->n;
		if (rank == args.peer)
			CHECK(!k.d->copy(k.d->self, k.device, &in, 1, k.stream, &why));
		CHECK_ERR(IST_OK, kit_do(&k, IST_OP_BROADCAST, &args), &k.m.err);
		kit_down(&k, to, &args.dst);
		CHECK(to[0] == round + 1 && !memcmp(from, to, N));
	}
	kit_free(&k, &args.src);
	kit_part(&k);
	kit_fini(&k);
	free(from);
	free(to);
	return 0;
}

static void
a_stream_orders_operations(void **state)
{
	(void)state;
	play_all(orders, NULL);
}

/* ---- messages ---- */

/* A ring, with messages of nothing among them. */
static int
sends(struct ranks *r, uint32_t rank, void *arg)
{
	uint32_t next = (rank + 1) % r->n, prev = (rank + r->n - 1) % r->n;
	struct kit k;

	(void)arg;
	kit_init(&k, rank);
	CHECK_ERR(IST_OK, kit_join(&k, r, "sends", rank, NULL), &k.m.err);
	for (uint32_t c = 0; c < COUNTS; c++) {
		struct ist_buf src = kit_buf(&k, counts[c]), dst = kit_buf(&k, counts[c]);
		struct ist_coll_args s = { .struct_size = sizeof(s), .peer = next, .src = src }, v = { .struct_size = sizeof(v), .peer = prev, .dst = dst };
		char *got = malloc(counts[c] + 1), *mine = malloc(counts[c] + 1);

		CHECK(got && mine);
		memset(mine, (int)(rank + 1), counts[c] + 1);
		kit_up(&k, &src, mine);
		if (rank % 2 == 0) { /* one first, the other afterwards: so nobody waits for all the others */
			CHECK_ERR(IST_OK, kit_do(&k, IST_OP_SEND, &s), &k.m.err);
			CHECK_ERR(IST_OK, kit_do(&k, IST_OP_RECV, &v), &k.m.err);
		} else {
			CHECK_ERR(IST_OK, kit_do(&k, IST_OP_RECV, &v), &k.m.err);
			CHECK_ERR(IST_OK, kit_do(&k, IST_OP_SEND, &s), &k.m.err);
		}
		kit_down(&k, got, &dst);
		memset(mine, (int)(prev + 1), counts[c] + 1);
		CHECK(!memcmp(got, mine, counts[c]));
		free(got);
		free(mine);
		kit_free(&k, &src);
		kit_free(&k, &dst);
	}
	kit_part(&k);
	kit_fini(&k);
	return 0;
}

static void
messages_go_around(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= most; n += 2)
		play(n, sends, NULL);
	if (most < 2)
		skip(); /* a rank alone has nobody to send to */
}

/* ---- groups ---- */

/* What the device has left; doubles never say less. */
static uint64_t
device_left(struct kit *k)
{
	struct ist_device_info info = { .struct_size = sizeof(info) };
	struct ist_status why = { .struct_size = sizeof(why) };

	CHECK(!k->d->info(k->d->self, k->device, &info, &why));
	return info.bytes_free;
}

static int
joins_often(struct ranks *r, uint32_t rank, void *arg)
{
	uint32_t fds = 0, threads = 0, rounds = *(uint32_t *)arg;
	uint64_t left = 0;
	int live = 0;
	double until;
	struct kit k;

	kit_init(&k, rank);
	for (uint32_t i = 0; i < rounds; i++) {
		char name[32];

		if (i == rounds / 10) {
			fds = count_fds();
			threads = count_threads();
			live = lazy_live();
			left = device_left(&k) - (64 << 20); /* of a group that another is still about to leave */
		}
		snprintf(name, sizeof(name), "often%u", i);
		CHECK_ERR(IST_OK, kit_join(&k, r, name, rank, NULL), &k.m.err);
		one_act(&k, &(struct act){ .kind = IST_OP_BROADCAST, .root = i % r->n, .rank = rank, .size = r->n, .count = 100 + i }, false);
		kit_part(&k);
	}
	for (until = now_s() + 5; (count_threads() > threads || count_fds() > fds || device_left(&k) < left) && now_s() < until;)
		sched_yield(); /* what ends by itself is on its way */
	if (count_threads() > threads || count_fds() > fds + 1 || lazy_live() > live)
		fprintf(stderr, "threads %u -> %u, descriptors %u -> %u, device %d -> %d\n", threads, count_threads(), fds, count_fds(), live, lazy_live());
	if (device_left(&k) < left)
		fprintf(stderr, "the device had %.1f MiB left, and has %.1f\n", (double)left / (1 << 20), (double)device_left(&k) / (1 << 20));
	CHECK(count_threads() <= threads && count_fds() <= fds + 1 && lazy_live() <= live && device_left(&k) >= left);
	CHECK(k.busy == 0);
	kit_fini(&k);
	return 0;
}

static void
a_hundred_groups_leave_nothing(void **state)
{
	uint32_t rounds = 100, few = 20;

	(void)state;
	play(1, joins_often, &few);
	if (most > 1)
		play(2, joins_often, &rounds);
}

/* Two groups of the same members on the same devices: what both ask for is done in the order asked. */
static int
uses_two(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_group *g[2];
	struct ist_buf buf[2];
	struct kit k;

	(void)arg;
	kit_init(&k, rank);
	for (int i = 0; i < 2; i++) {
		CHECK_ERR(IST_OK, kit_join(&k, r, i ? "second" : "first", rank, NULL), &k.m.err);
		g[i] = k.m.g;
		buf[i] = kit_buf(&k, 100000);
	}
	for (int round = 0; round < 40; round++) {
		struct ist_req *reqs[2];

		for (int i = 0; i < 2; i++) {
			struct ist_coll_args args = { .struct_size = sizeof(args), .src = buf[i], .dst = buf[i], .dtype = IST_I32, .reduce = IST_MAX };

			k.m.g = g[i];
			CHECK_ERR(IST_OK, kit_start(&k, IST_OP_ALL_REDUCE, &args, &reqs[i]), &k.m.err);
		}
		for (int i = 0; i < 2; i++)
			CHECK_ERR(IST_OK, kit_wait(&k, reqs[i]), &k.m.err);
	}
	for (int i = 0; i < 2; i++) {
		k.m.g = g[i];
		kit_free(&k, &buf[i]);
		kit_part(&k);
	}
	kit_fini(&k);
	return 0;
}

static void
two_groups_on_one_device(void **state)
{
	(void)state;
	play_all(uses_two, NULL);
}

/* ---- sleep, as the core does not ask for it yet: by the table ---- */

static void
finish(const struct ist__admitted *a, struct ist_chan *chan, struct ist_task *task)
{
	struct ist_progress p = { .struct_size = sizeof(p) };
	struct ist_status st = { .struct_size = sizeof(st) };
	double until = now_s() + 60;

	while (st.state != IST_DONE) {
		CHECK(now_s() < until && !a->ops.progress(chan, &p));
		if (a->ops.test(chan, task, &st)) {
			fprintf(stderr, "%s\n", st.text);
			_Exit(1);
		}
		sched_yield();
	}
	a->ops.task_free(chan, task);
}

static ist_err
try(const struct ist__admitted *a, struct ist_chan *chan, uint32_t kind, struct ist_task **task)
{
	struct ist_op op = { .struct_size = sizeof(op), .kind = kind };
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	const struct ist_op *list[] = { &op };

	return a->ops.start(chan, list, 1, task, &why);
}

static int
sleeps(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	struct ist_open open = { .struct_size = sizeof(open), .size = 1, .mem = IST_MEM_CUDA, .generation = 1 };
	struct ist_wire mine;
	struct ist_connect with = { .struct_size = sizeof(with), .size = 1, .all = &mine };
	const struct ist__admitted *a;
	struct ist_chan *chan;
	struct ist_task *task;
	struct kit k;

	(void)r, (void)rank, (void)arg;
	kit_init(&k, 0);
	CHECK_ERR(IST_OK, ist__plug_get(k.m.env, "nccl", &a, &k.m.err), &k.m.err);
	CHECK(!a->ops.open(a->ops.self, a->host, &open, &chan, &why) && !a->ops.offer(chan, &mine, &task, &why));
	finish(a, chan, task);
	CHECK(!a->ops.connect(chan, &with, &task, &why));
	finish(a, chan, task);
	if (!(a->native >> IST_OP_SUSPEND & 1)) {
		CHECK(try(a, chan, IST_OP_SUSPEND, &task) == IST_UNSUPPORTED);
	} else {
		CHECK(try(a, chan, IST_OP_RESUME, &task) == IST_BAD_STATE);
		CHECK(!try(a, chan, IST_OP_SUSPEND, &task));
		finish(a, chan, task);
		CHECK(try(a, chan, IST_OP_BARRIER, &task) == IST_BAD_STATE); /* it sleeps */
		CHECK(!try(a, chan, IST_OP_RESUME, &task));
		finish(a, chan, task);
	}
	CHECK(!try(a, chan, IST_OP_BARRIER, &task));
	finish(a, chan, task);
	CHECK(!a->ops.close(chan, &why));
	kit_fini(&k);
	return 0;
}

static void
a_channel_sleeps(void **state)
{
	(void)state;
	play(1, sleeps, NULL);
}

int
main(void)
{
	char why[256] = "";
	uint32_t devices = kit_devices(why);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_move_is_right),
		cmocka_unit_test(every_reduction_is_right),
		cmocka_unit_test(unknown_types_are_refused),
		cmocka_unit_test(a_stream_orders_operations),
		cmocka_unit_test(messages_go_around),
		cmocka_unit_test(a_hundred_groups_leave_nothing),
		cmocka_unit_test(two_groups_on_one_device),
		cmocka_unit_test(a_channel_sleeps),
	};

	if (devices == 0) {
		printf("skipped: %s\n", why);
		return 77;
	}
	most = kit_ranks(devices);
	most = most < 4 ? most : 4;
	printf("%u devices, %s: groups of up to %u ranks\n", devices, kit_is_double() ? "doubles" : "real", most);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
