/* SPDX-License-Identifier: Apache-2.0
 *
 * scarce_test.c - memory that ends at any moment of a group's life: one member of two has an allocator whose k-th call
 * fails, for each k (or each so many) until nothing fails any more. Each time both members come to an end before any
 * deadline, the scarce one says NO_MEMORY (or is well: what is only a convenience may fail), the other one names it, and
 * after that the same envs make a group that works, and nothing stays allocated.
 *
 * A group's life: forming, byte strings, a vote, a split, the end. A sync's: gather, two updates, the end; the
 * same with a tensor in slices. A stream's: some tensors, the end.
 * Strided unless ISTHMUS_LONG_TESTS is set; ISTHMUS_SCARCE_AT=K shows one moment.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <isthmus/sync.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

enum { LIMIT = 10000, TENSORS = 3, GUARD_S = 60 };

struct memory {
	_Atomic long calls, fail_at, live;
	_Atomic bool for_good; /* all calls from fail_at on fail */
	_Atomic bool cold;     /* the pool of frames gets nothing beforehand, so that frames are among the calls */
};

struct life {
	struct memory mem;
	struct ist_env *env;
	struct ist_endpoint *ep;
	uint32_t rank;
	_Atomic bool over;            /* it has given up, or is through */
	_Atomic bool back;            /* out of the split */
	struct life *other;
	const struct ist_address *addresses;
	void (*use)(struct life *l, struct ist_group *g);
	ist_err code;                 /* first failure */
	struct ist_error err;
	const char *where;
	uint8_t bytes[TENSORS][70000];
	bool committed, sliced;
};

static void *
scarce_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	struct memory *m = ctx;
	uint64_t room = bytes - 16; /* behind the head of a piece of the pool */
	void *p = NULL;
	long call;

	(void)kind, (void)numa;
	if (m->cold && bytes > 16 && room >= 64 && !(room & (room - 1)))
		return NULL;
	call = atomic_fetch_add(&m->calls, 1) + 1;
	if (call == m->fail_at || (m->for_good && m->fail_at && call > m->fail_at) || posix_memalign(&p, align < 16 ? 16 : align, bytes ? bytes : 1))
		return NULL;
	atomic_fetch_add(&m->live, 1);
	return p;
}

static void
scarce_free(void *ctx, void *p)
{
	struct memory *m = ctx;

	atomic_fetch_sub(&m->live, p != NULL);
	free(p);
}

static bool
went(struct life *l, const char *where, ist_err e)
{
	if (e && !l->code) {
		l->code = e;
		l->where = where;
	}
	return !e;
}

/* ---- what is lived through ---- */

/* Whoever waits for a member that has given up is called off: by addresses nobody can know that it won't come. */
static ist_err
form(struct life *l, struct ist_group **out)
{
	struct ist_group_args args = { .struct_size = sizeof(args), .rank = l->rank, .size = 2, .name = "scarce", .addresses = l->addresses,
		.timeout_ns = GUARD_S * IST_NS_PER_S };
	struct ist_req *req = NULL;
	uint32_t done = 0;
	ist_err e = ist_group_new_start(l->ep, &args, &req, &l->err);

	if (e)
		return e;
	while (!e && !done) {
		(void)ist_req_wait(req, 2 * 1000 * 1000, NULL);
		if (atomic_load(&l->other->over))
			(void)ist_req_cancel(req);
		e = ist_req_test(req, &done, &l->err);
	}
	if (!e)
		e = ist_req_group(req, out, &l->err);
	ist_req_free(req);
	return e;
}

static void
use_group(struct life *l, struct ist_group *g)
{
	static const uint32_t both[] = { 0, 1 };
	struct ist_split_args split = { .struct_size = sizeof(split), .n_ranks = 2, .ranks = both, .name = "half", .timeout_ns = GUARD_S * IST_NS_PER_S };
	struct ist_group *child = NULL;
	struct ist_blob all[2] = { { 0 } }, one = { 0 };
	uint32_t doubt = 0;
	bool ok = went(l, "all_gather", ist_all_gather_bytes(g, "some bytes", 10, 0, all, &l->err));

	if (ok) {
		CHECK(all[1].bytes == 10 && !memcmp(all[1].addr, "some bytes", 10));
		ist_blobs_free(g, all, 2);
	}
	ok = ok && went(l, "broadcast", ist_broadcast_bytes(g, "more", 4, 0, 0, &one, &l->err));
	if (ok)
		ist_blobs_free(g, &one, 1);
	ok = ok && went(l, "barrier", ist_barrier(g, 0, &l->err));
	ok = ok && went(l, "decide", ist_decide(g, NULL, 0, &doubt, &l->err));
	ok = ok && went(l, "split", ist_group_split(g, &split, &child, &l->err));
	(void)(ok && went(l, "barrier of the half", ist_barrier(child, 0, &l->err)));
	if (child)
		ist_group_free(child);
}

/* Nobody ends the parent before all are back: only by word of it can the other one know that it waits in vain. */
static void
use_split(struct life *l, struct ist_group *g)
{
	static const uint32_t both[] = { 0, 1 };
	struct ist_split_args split = { .struct_size = sizeof(split), .n_ranks = 2, .ranks = both, .name = "half", .timeout_ns = GUARD_S * IST_NS_PER_S };
	struct ist_group *child = NULL;

	if (went(l, "split", ist_group_split(g, &split, &child, &l->err)))
		(void)went(l, "barrier of the half", ist_barrier(child, 0, &l->err));
	atomic_store(&l->back, true);
	while (!atomic_load(&l->other->back) && !atomic_load(&l->other->over))
		sched_yield();
	if (child)
		ist_group_free(child);
}

static ist_err
take_piece(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct life *l = ctx;

	(void)err;
	CHECK(index < TENSORS && offset + bytes <= sizeof(l->bytes[0]));
	memcpy(l->bytes[index] + offset, addr, bytes);
	return IST_OK;
}

static void
take_commit(void *ctx, uint64_t version)
{
	(void)version;
	((struct life *)ctx)->committed = true;
}

/* The last tensor in two slices. */
static ist_err
give_slices(struct life *l, const struct ist_tensor *whole, struct ist_checkpoint **ck)
{
	struct ist_slice where[TENSORS + 1];
	struct ist_tensor t[TENSORS + 1];
	uint64_t half = sizeof(l->bytes[0]) / 2;

	for (uint32_t i = 0; i <= TENSORS; i++) {
		t[i] = whole[i < TENSORS ? i : TENSORS - 1];
		where[i] = (struct ist_slice){ .struct_size = sizeof(where[i]), .whole = { t[i].shape[0] } };
	}
	t[TENSORS - 1].shape[0] = t[TENSORS - 1].bytes = half;
	t[TENSORS].shape[0] = t[TENSORS].bytes = sizeof(l->bytes[0]) - half;
	t[TENSORS].addr = l->bytes[TENSORS - 1] + half;
	where[TENSORS].begin[0] = half;
	return ist_checkpoint_from_slices(l->env, t, where, TENSORS + 1, ck, &l->err);
}

static bool
take_part(struct life *l, struct ist_sync *sync, struct ist_checkpoint **ck, struct ist_sink **sink)
{
	struct ist_sink_ops ops = { .struct_size = sizeof(ops), .ctx = l, .piece = take_piece, .commit = take_commit };
	static const char *const names[TENSORS] = { "a", "b", "c" };
	struct ist_tensor t[TENSORS];

	if (l->rank == 1)
		return went(l, "sink", ist_sink_custom(l->env, &ops, sink, &l->err)) && went(l, "sync_sink", ist_sync_sink(sync, *sink, &l->err));
	memset(t, 0, sizeof(t));
	for (uint32_t i = 0; i < TENSORS; i++)
		t[i] = (struct ist_tensor){ .struct_size = sizeof(t[i]), .rank = 1, .name = names[i], .dtype = "U8", .shape = { sizeof(l->bytes[i]) },
			.bytes = sizeof(l->bytes[i]), .addr = l->bytes[i] };
	return went(l, "checkpoint", l->sliced ? give_slices(l, t, ck) : ist_checkpoint_from_tensors(l->env, t, TENSORS, ck, &l->err)) &&
		went(l, "sync_source", ist_sync_source(sync, *ck, 0, 0, &l->err));
}

static void
use_sync(struct life *l, struct ist_group *g)
{
	struct ist_sync_args args = { .struct_size = sizeof(args), .bucket_bytes = 65536 };
	struct ist_checkpoint *ck = NULL;
	struct ist_sink *sink = NULL;
	struct ist_sync *sync = NULL;
	bool ok = went(l, "sync_new", ist_sync_new(g, &args, &sync, &l->err)) && take_part(l, sync, &ck, &sink) &&
		went(l, "gather", ist_sync_gather(sync, 0, &l->err));

	for (uint32_t round = 1; ok && round <= 2; round++) {
		if (l->rank == 0)
			memset(l->bytes, (int)round, sizeof(l->bytes));
		l->committed = false;
		ok = went(l, "update", ist_sync_update(sync, NULL, NULL, &l->err));
		if (ok && l->rank == 1)
			CHECK(l->committed && l->bytes[0][0] == round && l->bytes[TENSORS - 1][sizeof(l->bytes[0]) - 1] == round);
	}
	ist_sync_free(sync);
	ist_sink_free(sink);
	ist_checkpoint_free(ck);
}

static void
use_slices(struct life *l, struct ist_group *g)
{
	l->sliced = true;
	use_sync(l, g);
}

static void
push_all(struct life *l, struct ist_group *g, const struct ist_stream_args *args)
{
	static const char *const names[TENSORS] = { "a", "b", "c" };
	struct ist_push *push = NULL;
	bool ok = went(l, "push_begin", ist_push_begin(g, args, &push, &l->err));

	memset(l->bytes, 7, sizeof(l->bytes));
	for (uint32_t i = 0; ok && i < TENSORS; i++) {
		struct ist_tensor t = { .struct_size = sizeof(t), .rank = 1, .name = names[i], .dtype = "U8", .shape = { sizeof(l->bytes[i]) },
			.bytes = sizeof(l->bytes[i]), .addr = l->bytes[i] };

		ok = went(l, "push_tensor", ist_push_tensor(push, &t, &l->err));
	}
	if (push)
		(void)went(l, "push_end", ist_push_end(push, NULL, ok ? &l->err : NULL));
}

static void
pull_all(struct life *l, struct ist_group *g, const struct ist_stream_args *args)
{
	struct ist_piece piece = { .struct_size = sizeof(piece) };
	struct ist_pull *pull = NULL;
	uint32_t more = 1, end = 0;
	uint64_t came = 0;
	bool ok = went(l, "pull_begin", ist_pull_begin(g, args, &pull, &l->err));

	while (ok) {
		ok = went(l, "pull_next", ist_pull_next(pull, &piece, &more, &end, &l->err));
		if (!ok || !more)
			break;
		CHECK(((const uint8_t *)piece.addr)[0] == 7);
		came += piece.bytes;
		ok = !end || went(l, "pull_done", ist_pull_done(pull, &l->err));
	}
	if (pull)
		ok = went(l, "pull_end", ist_pull_end(pull, NULL, ok ? &l->err : NULL));
	CHECK(!ok || came == sizeof(l->bytes));
}

static void
use_stream(struct life *l, struct ist_group *g)
{
	struct ist_stream_args args = { .struct_size = sizeof(args), .bucket_bytes = 65536 };

	if (l->rank == 0)
		push_all(l, g, &args);
	else
		pull_all(l, g, &args);
}

static void *
live(void *arg)
{
	struct life *l = arg;
	struct ist_group *g = NULL;

	if (went(l, "group_new", form(l, &g))) {
		l->use(l, g);
		ist_group_free(g);
	}
	atomic_store(&l->over, true);
	return NULL;
}

/* ---- one moment ---- */

static bool
begin(struct life *l, uint8_t room[IST_ADDRESS_BYTES], struct ist_address *out)
{
	struct ist_endpoint_args ep = { .struct_size = sizeof(ep), .bind = "127.0.0.1" };
	bool ok;

	l->code = IST_OK;
	l->where = "well";
	atomic_store(&l->over, false);
	atomic_store(&l->back, false);
	ist_error_init(&l->err);
	*out = (struct ist_address){ room, IST_ADDRESS_BYTES };
	atomic_store(&l->mem.cold, true);
	ok = went(l, "endpoint_new", ist_endpoint_new(l->env, &ep, &l->ep, &l->err));
	atomic_store(&l->mem.cold, false);
	return ok && went(l, "address", ist_endpoint_address(l->ep, room, &out->bytes, &l->err));
}

/* Both, from their endpoints to the end. */
static void
live_both(struct life l[2])
{
	uint8_t room[2][IST_ADDRESS_BYTES];
	struct ist_address at[2];
	pthread_t thread[2];
	bool ok[2];

	for (int i = 0; i < 2; i++) {
		ok[i] = begin(&l[i], room[i], &at[i]);
		l[i].addresses = at;
	}
	for (int i = 0; i < 2 && ok[0] && ok[1]; i++)
		CHECK(pthread_create(&thread[i], NULL, live, &l[i]) == 0);
	for (int i = 0; i < 2; i++) {
		if (ok[0] && ok[1])
			CHECK(pthread_join(thread[i], NULL) == 0);
		ist_endpoint_free(l[i].ep);
		l[i].ep = NULL;
	}
}

/* What may be said where the scarce one's memory has ended. */
static bool
is_told(const struct life *l, uint32_t scarce)
{
	if (l->code == IST_OK)
		return true;
	if (l->code == IST_ABORTED && !strcmp(l->where, "group_new")) /* called off, since the other one had its end already */
		return l->rank == scarce ? error_names(&l->other->err, scarce) : l->other->code == IST_NO_MEMORY;
	if (l->rank == scarce)
		return l->code == IST_NO_MEMORY || (l->mem.for_good && l->code != IST_INTERNAL && l->code != IST_TIMEOUT && l->code != IST_BAD_HANDLE);
	return (l->code == IST_NO_MEMORY || l->code == IST_PEER_LOST || l->code == IST_PEER_LEFT || l->code == IST_ABORTED) && error_names(&l->err, scarce);
}

static void
show(long k, const struct life *l)
{
	fprintf(stderr, "call %ld: rank %u: %s %s: %s\n", k, l->rank, l->where, ist_err_name(l->code), l->code ? l->err.detail : "");
}

/* True when the k-th call was never made. */
static bool
one_life(long k, uint32_t scarce, bool for_good, void (*use)(struct life *l, struct ist_group *g), bool tell)
{
	static struct life l[2];
	bool untouched, told;

	memset(l, 0, sizeof(l));
	for (uint32_t i = 0; i < 2; i++) {
		struct ist_env_args args = { .struct_size = sizeof(args), .alloc = scarce_alloc, .free = scarce_free, .mem_ctx = &l[i].mem };

		l[i].rank = i;
		l[i].other = &l[1 - i];
		l[i].use = use;
		l[i].mem.fail_at = i == scarce ? k : 0;
		ist_error_init(&l[i].err);
		CHECK_ERR(IST_OK, ist_env_new(&args, &l[i].env, &l[i].err), &l[i].err);
	}
	l[scarce].mem.for_good = for_good;
	alarm(3 * GUARD_S);
	live_both(l);
	untouched = l[scarce].mem.calls < k;
	told = is_told(&l[0], scarce) && is_told(&l[1], scarce) && (!untouched || (!l[0].code && !l[1].code));
	for (int i = 0; i < 2 && (tell || !told); i++)
		show(k, &l[i]);
	CHECK(told);
	l[scarce].mem.fail_at = 0;
	live_both(l); /* memory is there again */
	for (int i = 0; i < 2; i++) {
		if (l[i].code)
			show(k, &l[i]);
		CHECK(l[i].code == IST_OK);
		ist_env_free(l[i].env);
		CHECK(atomic_load(&l[i].mem.live) == 0);
	}
	alarm(0);
	return untouched;
}

static void
wherever_memory_ends(uint32_t scarce, void (*use)(struct life *l, struct ist_group *g))
{
	bool all = getenv("ISTHMUS_LONG_TESTS") != NULL;
	const char *only = getenv("ISTHMUS_SCARCE_AT");
	long stride = all ? 1 : 4;

	if (only) {
		(void)one_life(atol(only), scarce, getenv("ISTHMUS_SCARCE_FOR_GOOD") != NULL, use, true);
		return;
	}
	for (long k = 1; !one_life(k, scarce, (k / stride) & 1, use, all); k += stride)
		assert_true(k < LIMIT);
	for (long k = 2; all && !one_life(k, scarce, k & 1, use, all); k++)
		assert_true(k < LIMIT);
}

static void
a_group_where_rank_1_is_scarce(void **state)
{
	(void)state;
	wherever_memory_ends(1, use_group);
}

static void
a_group_where_rank_0_is_scarce(void **state)
{
	(void)state;
	wherever_memory_ends(0, use_group);
}

static void
a_split_where_rank_1_is_scarce(void **state)
{
	(void)state;
	wherever_memory_ends(1, use_split);
}

static void
a_split_where_rank_0_is_scarce(void **state)
{
	(void)state;
	wherever_memory_ends(0, use_split);
}

static void
a_sync_whose_sink_is_scarce(void **state)
{
	(void)state;
	wherever_memory_ends(1, use_sync);
}

static void
a_sync_whose_source_is_scarce(void **state)
{
	(void)state;
	wherever_memory_ends(0, use_sync);
}

static void
slices_whose_sink_is_scarce(void **state)
{
	(void)state;
	wherever_memory_ends(1, use_slices);
}

static void
slices_whose_source_is_scarce(void **state)
{
	(void)state;
	wherever_memory_ends(0, use_slices);
}

static void
a_stream_whose_taker_is_scarce(void **state)
{
	(void)state;
	wherever_memory_ends(1, use_stream);
}

static void
a_stream_whose_giver_is_scarce(void **state)
{
	(void)state;
	wherever_memory_ends(0, use_stream);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_group_where_rank_1_is_scarce),
		cmocka_unit_test(a_group_where_rank_0_is_scarce),
		cmocka_unit_test(a_split_where_rank_1_is_scarce),
		cmocka_unit_test(a_split_where_rank_0_is_scarce),
		cmocka_unit_test(a_sync_whose_sink_is_scarce),
		cmocka_unit_test(a_sync_whose_source_is_scarce),
		cmocka_unit_test(slices_whose_sink_is_scarce),
		cmocka_unit_test(slices_whose_source_is_scarce),
		cmocka_unit_test(a_stream_whose_taker_is_scarce),
		cmocka_unit_test(a_stream_whose_giver_is_scarce),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
