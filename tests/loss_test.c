/* SPDX-License-Identifier: Apache-2.0
 *
 * loss_test.c - what members are told of losses when more than one thing goes wrong: of themselves, and by which number
 * others go in a group that was made anew. The backend is host's, with a fault where a test wants one. Real processes.
 */
#include "ranks.h"

#include <isthmus/sync.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

const struct ist_backend *isthmus_backend_host(void);

/* One a process: the slots after open get no self. */
static struct {
	bool blames;       /* start says that rank 1 is gone */
	uint32_t dies_at;  /* the process dies when the channel of so many a group is opened; 0: never */
	uint32_t opened;
	struct ist_backend table;
} odd;

static ist_err
odd_open(void *self, const struct ist_host *host, const struct ist_open *args, struct ist_chan **out, struct ist_status *why)
{
	if (++odd.opened == odd.dies_at)
		raise(SIGKILL);
	return isthmus_backend_host()->open(self, host, args, out, why);
}

static ist_err
odd_start(struct ist_chan *chan, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	if (!odd.blames)
		return isthmus_backend_host()->start(chan, ops, n, out, why);
	why->rank = 1;
	snprintf(why->text, sizeof(why->text), "the way to rank 1 is cut");
	return IST_PEER_LOST;
}

static void
join(struct member *m, struct ranks *r, uint32_t rank)
{
	struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = rank, .size = r->n, .name = "loss", .at = r->at, .backend = "odd",
		.timeout_ns = 60 * IST_NS_PER_S };

	member_init(m, IST_TRANSPORT_AUTO);
	odd.table = *isthmus_backend_host();
	odd.table.name = "odd";
	odd.table.open = odd_open;
	odd.table.start = odd_start;
	CHECK_ERR(IST_OK, ist_backend_add(m->env, &odd.table, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_group_new(m->ep, &ga, &m->g, &m->err), &m->err);
}

static bool
names_only(const struct ist_error *e, uint32_t rank)
{
	return e->n_ranks == 1 && e->ranks[0] == rank;
}

/* ---- data that do not arrive at one that lives ---- */

static int
finds_no_way(struct ranks *r, uint32_t rank, void *arg)
{
	struct member m;
	struct ist_req *req;
	struct ist_coll_args a = { .struct_size = sizeof(a), .dtype = IST_F32, .reduce = IST_SUM };
	float *room = calloc(1 << 16, sizeof(*room));
	ist_err e;

	(void)arg;
	CHECK(room);
	join(&m, r, rank);
	odd.blames = rank == 2;
	a.src = a.dst = (struct ist_buf){ .addr = room, .bytes = (1 << 16) * sizeof(*room), .device = -1 };
	e = ist_all_reduce(m.g, &a, &req, &m.err); /* rank 2 may have been sooner */
	if (!e) {
		e = ist_req_wait(req, -1, &m.err);
		ist_req_free(req);
	}
	CHECK_ERR(rank == 1 ? IST_EVICTED : IST_PEER_LOST, e, &m.err);
	CHECK(names_only(&m.err, 1));
	if (rank == 1)
		CHECK(m.err.n_per_rank == 1 && m.err.per_rank[0].rank == 1 && m.err.per_rank[0].code == IST_PEER_LOST && strstr(m.err.detail, "the way to rank 1"));
	e = ist_barrier(m.g, 0, &m.err); /* and so in all that is asked of the group later */
	CHECK_ERR(rank == 1 ? IST_EVICTED : IST_PEER_LOST, e, &m.err);
	member_fini(&m);
	free(room);
	return 0;
}

static void
is_told_that_it_is_given_up(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, finds_no_way, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* ---- the first of a split is given up meanwhile ---- */

static int
splits_without_the_evicted(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t order[] = { 2, 0, 1, 3 };
	struct ist_split_args sa = { .struct_size = sizeof(sa), .n_ranks = 4, .ranks = order, .name = "rest", .timeout_ns = 30 * IST_NS_PER_S };
	struct ist_group *child;
	struct ist_error why;
	struct member m;

	(void)arg;
	join(&m, r, rank);
	ist_error_init(&why);
	why.code = IST_SLOW_PEER;
	if (rank == 3)
		CHECK_ERR(IST_OK, ist_group_evict(m.g, 2, &why, &m.err), &m.err);
	CHECK_ERR(rank == 2 ? IST_EVICTED : IST_PEER_LOST, ist_group_split(m.g, &sa, &child, &m.err), &m.err);
	CHECK(names_only(&m.err, 0));
	member_fini(&m);
	return 0;
}

static void
alone_says_evicted(void **state)
{
	struct ranks r;

	(void)state;
	for (int i = 0; i < 10; i++) {
		ranks_init(&r, 4);
		ranks_start_all(&r, splits_without_the_evicted, NULL);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- a second one dies while those that are left make a group ---- */

static ist_err
take(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	(void)index, (void)offset, (void)addr, (void)bytes, (void)err;
	if (ctx)
		raise(SIGKILL);
	return IST_OK;
}

static ist_err
can_not(void *ctx, struct ist_error *err)
{
	(void)ctx;
	err->code = IST_NO_SPACE;
	snprintf(err->detail, sizeof(err->detail), "the shelf is full");
	return IST_NO_SPACE;
}

/* Rank 0 dies in the update. Then rank 2, which is rank 1 of those that are left, has no room in the end (arg; it is the last
 * sink then, and can't be missed), or dies when it opens the channel of the group without rank 0. */
static int
loses_more(struct ranks *r, uint32_t rank, void *arg)
{
	static uint8_t bytes[1 << 20];
	struct ist_sync_args sa = { .struct_size = sizeof(sa), .on_loss = IST_ON_LOSS_CONTINUE, .bucket_bytes = 1 << 16 };
	struct ist_sink_ops ops = { .struct_size = sizeof(ops), .ctx = rank == 0 ? &sa : NULL, .piece = take };
	struct ist_tensor t = { .struct_size = sizeof(t), .rank = 1, .name = "w", .dtype = "U8", .shape = { sizeof(bytes) }, .bytes = sizeof(bytes), .addr = bytes };
	struct ist_report rep = { .struct_size = sizeof(rep) };
	struct ist_checkpoint *ck = NULL;
	struct ist_sink *sink = NULL;
	struct ist_sync *sync;
	struct member m;

	odd.dies_at = rank == 2 && !arg ? 2 : 0;
	if (arg && rank == 2)
		ops.prepare = can_not;
	join(&m, r, rank);
	CHECK_ERR(IST_OK, ist_sync_new(m.g, &sa, &sync, &m.err), &m.err);
	if (rank == 1) {
		CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(m.env, &t, 1, &ck, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_sync_source(sync, ck, 0, 0, &m.err), &m.err);
	} else {
		CHECK_ERR(IST_OK, ist_sink_custom(m.env, &ops, &sink, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_sync_sink(sync, sink, &m.err), &m.err);
	}
	CHECK_ERR(IST_OK, ist_sync_gather(sync, 0, &m.err), &m.err);
	CHECK_ERR(arg ? IST_NO_SPACE : IST_OK, ist_sync_update(sync, NULL, &rep, &m.err), &m.err);
	if (arg) {
		CHECK(names_only(&m.err, 2) && strstr(m.err.detail, "the shelf is full"));
		CHECK(m.err.n_per_rank == 1 && m.err.per_rank[0].rank == 2 && m.err.per_rank[0].code == IST_NO_SPACE);
	} else {
		CHECK(rep.verified && rep.n_lost == 2);
		CHECK(rep.lost[0].rank + rep.lost[1].rank == 2 && rep.lost[0].rank != 1); /* 0 and 2 */
	}
	ist_sync_free(sync);
	ist_sink_free(sink);
	ist_checkpoint_free(ck);
	member_fini(&m);
	return 0;
}

static void
goes_by_its_old_rank(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, loses_more, NULL);
	assert_int_equal(ranks_join(&r, 60, 1 << 0 | 1 << 2), 0);
	ranks_fini(&r);
}

static void
fails_by_its_old_rank(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 3);
	ranks_start_all(&r, loses_more, &r);
	assert_int_equal(ranks_join(&r, 60, 1 << 0), 0);
	ranks_fini(&r);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_told_that_it_is_given_up),
		cmocka_unit_test(alone_says_evicted),
		cmocka_unit_test(goes_by_its_old_rank),
		cmocka_unit_test(fails_by_its_old_rank),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
