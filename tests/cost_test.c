/* SPDX-License-Identifier: Apache-2.0
 *
 * cost_test.c - what planning, gathering and many small tensors cost. Counts are asserted; seconds are printed, and bounded
 * only so that nothing quadratic gets by. In a release build it is the bench of these figures.
 */
#include "ranks.h"

#include "base/clock.h"
#include "base/env.h"
#include "sync/plan.h"

#include <isthmus/sync.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

static double
since(int64_t began)
{
	return (double)(ist__now() - began) / 1e9;
}

/* ---- the plan, a pure function ---- */

enum { PLANNED = 200000, GIVERS = 32 };

static void
a_large_plan(void **unused)
{
	static uint64_t bytes[PLANNED];
	static uint32_t mate[PLANNED];
	struct ist__plan_set set = { .bytes = bytes, .mate = mate, .n_items = PLANNED, .parts = GIVERS };
	struct ist__plan_args args = { .sets = &set, .n_sets = 1, .bucket_bytes = IST__BUCKET_DEFAULT };
	struct ist__plan *plan = NULL;
	struct ist_env *env;
	struct ist_error err;
	int64_t began;
	double seconds;

	(void)unused;
	ist_error_init(&err);
	assert_int_equal(ist_env_new(NULL, &env, &err), IST_OK);
	for (uint32_t i = 0; i < PLANNED; i++) { /* a weight and its scale, in turn */
		bytes[i] = i % 2 ? 4096 : 7 * MIB + i;
		mate[i] = i % 2 ? i - 1 : UINT32_MAX;
	}
	began = ist__now();
	assert_int_equal(ist__plan_make(ist__env_ctx(env), &args, &plan, &err), IST_OK);
	seconds = since(began);
	printf("plan of %d tensors for %d sources: %.3f s\n", PLANNED, GIVERS, seconds);
	assert_true(seconds < 20);
	assert_true(plan->n_pieces >= PLANNED);
	ist__plan_free(plan);
	ist_env_free(env);
}

/* ---- real members ---- */

struct load {
	uint64_t tensors, each;
	uint32_t n_sources, on_loss;
};

struct party {
	struct member m;
	struct ist_sync *sync;
	struct ist_checkpoint *ck;
	struct ist_sink *to;
	uint8_t *memory;
	double gather_s, again_s, update_s;
	uint64_t messages, buckets;
};

static uint64_t
sent(struct party *p)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };

	CHECK_ERR(IST_OK, ist_group_info(p->m.g, &info, &p->m.err), &p->m.err);
	return info.messages;
}

static void
offer(struct party *p, const struct load *l)
{
	struct ist_tensor *t = calloc(l->tensors, sizeof(*t));
	char (*names)[24] = calloc(l->tensors, sizeof(*names));

	p->memory = calloc(l->tensors, l->each);
	for (uint64_t i = 0; i < l->tensors; i++) {
		snprintf(names[i], sizeof(names[i]), "layers.%06u.w", (unsigned)i);
		t[i] = (struct ist_tensor){ .struct_size = sizeof(*t), .rank = 1, .name = names[i], .dtype = "U8", .shape = { l->each },
			.bytes = l->each, .addr = p->memory + i * l->each };
	}
	CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(p->m.env, t, l->tensors, &p->ck, &p->m.err), &p->m.err);
	CHECK_ERR(IST_OK, ist_sync_source(p->sync, p->ck, 0, 0, &p->m.err), &p->m.err);
	free(t);
	free(names);
}

static void
gather_once(struct party *p, double *seconds)
{
	int64_t began;

	CHECK_ERR(IST_OK, ist_barrier(p->m.g, 0, &p->m.err), &p->m.err);
	began = ist__now();
	CHECK_ERR(IST_OK, ist_sync_gather(p->sync, 0, &p->m.err), &p->m.err);
	*seconds = since(began);
}

/* The best of three, after one that brings the memory. */
static void
update_some(struct party *p, const struct load *l)
{
	for (uint32_t i = 0; i < 4; i++) {
		struct ist_report rep = { .struct_size = sizeof(rep) };
		uint64_t before;
		int64_t began;
		double seconds;

		if (p->ck)
			memset(p->memory, (int)i, l->tensors * l->each);
		CHECK_ERR(IST_OK, ist_barrier(p->m.g, 0, &p->m.err), &p->m.err);
		before = sent(p);
		began = ist__now();
		CHECK_ERR(IST_OK, ist_sync_update(p->sync, NULL, &rep, &p->m.err), &p->m.err);
		seconds = since(began);
		p->messages = sent(p) - before;
		p->buckets = rep.buckets;
		CHECK(rep.verified && rep.tensors == l->tensors && rep.bytes == l->tensors * l->each);
		CHECK(p->messages <= rep.buckets + 20);
		if (i == 1 || (i > 1 && seconds < p->update_s))
			p->update_s = seconds;
	}
}

/* A sync from the first to the last call. */
static void
carry(struct party *p, const struct load *l, bool update)
{
	bool source;
	struct ist_group_info info = { .struct_size = sizeof(info) };
	struct ist_sync_args args = { .struct_size = sizeof(args), .on_loss = l->on_loss };

	CHECK_ERR(IST_OK, ist_group_info(p->m.g, &info, &p->m.err), &p->m.err);
	source = info.rank < l->n_sources;
	CHECK_ERR(IST_OK, ist_sync_new(p->m.g, &args, &p->sync, &p->m.err), &p->m.err);
	if (source) {
		offer(p, l);
	} else {
		CHECK_ERR(IST_OK, ist_sink_open(p->m.env, "mem:", 0, &p->to, &p->m.err), &p->m.err);
		CHECK_ERR(IST_OK, ist_sync_sink(p->sync, p->to, &p->m.err), &p->m.err);
	}
	gather_once(p, &p->gather_s);
	gather_once(p, &p->again_s);
	if (update)
		update_some(p, l);
	ist_sync_free(p->sync);
	ist_sink_free(p->to);
	ist_checkpoint_free(p->ck);
	free(p->memory);
	p->sync = NULL;
	p->to = NULL;
	p->ck = NULL;
	p->memory = NULL;
}

static int
many_and_one(struct ranks *r, uint32_t rank, void *arg)
{
	static const struct load many = { 20000, 4096, 1, IST_ON_LOSS_FAIL }, one = { 1, 20000 * 4096, 1, IST_ON_LOSS_CONTINUE };
	struct party p;
	double seconds;

	(void)arg;
	memset(&p, 0, sizeof(p));
	member_init(&p.m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&p.m, r->at, "cost", rank, r->n, 60, 30), &p.m.err);
	carry(&p, &one, true);
	seconds = p.update_s;
	if (rank == 0)
		printf("1 tensor of 80 MB to %u sinks: %.3f s, %u buckets, %u messages\n", r->n - 1, seconds, (unsigned)p.buckets, (unsigned)p.messages);
	carry(&p, &many, true);
	if (rank == 0)
		printf("20000 of 4 KiB: %.3f s, %u buckets, %u messages, gather %.3f s\n", p.update_s, (unsigned)p.buckets, (unsigned)p.messages,
			p.gather_s);
	CHECK(p.update_s < 30 * seconds);
	member_fini(&p.m);
	return 0;
}

static void
play(uint32_t n, int (*run)(struct ranks *r, uint32_t rank, void *arg))
{
	struct ranks r;

	ranks_init(&r, n);
	ranks_start_all(&r, run, NULL);
	assert_int_equal(ranks_join(&r, 120, 0), 0);
	ranks_fini(&r);
}

static void
small_tensors_cost_little(void **unused)
{
	(void)unused;
	play(2, many_and_one);
	play(5, many_and_one);
}

static int
gather(struct ranks *r, uint32_t rank, void *arg)
{
	static const struct load l = { 400, 4096, 2, IST_ON_LOSS_FAIL };
	struct party p;

	(void)arg;
	memset(&p, 0, sizeof(p));
	member_init(&p.m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&p.m, r->at, "cost", rank, r->n, 60, 30), &p.m.err);
	for (int i = 0; i < 3; i++)
		carry(&p, &l, false);
	if (rank == r->n - 1)
		printf("gather of 400 tensors, %u members: %.2f ms, again %.2f ms\n", r->n, 1e3 * p.gather_s, 1e3 * p.again_s);
	CHECK(p.gather_s < 5 && p.again_s < 5);
	member_fini(&p.m);
	return 0;
}

static void
gathering(void **unused)
{
	(void)unused;
	play(5, gather);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_large_plan),
		cmocka_unit_test(small_tensors_cost_little),
		cmocka_unit_test(gathering),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
