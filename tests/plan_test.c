/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_test.c - the plan as a pure function: every byte once, bounds, alignment, order, shares; by random search. */
#include "sync/mates.h"
#include "sync/plan.h"

#include "base/clock.h"
#include "base/fail.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t state;

static uint64_t
rnd(uint64_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return n ? state % n : 0;
}

struct world {
	struct ist__ctx ctx;
	struct ist__plan_set sets[5];
	uint64_t *bytes[5];
	uint32_t *mate[5], *ids[5];
	uint32_t n_sets, n_items;
	uint64_t bucket;
};

static uint64_t
random_size(uint64_t bucket)
{
	switch (rnd(8)) {
	case 0: return 0;
	case 1: return rnd(64);
	case 2: return IST__PIECE_CUT * rnd(8);
	case 3: return bucket;
	case 4: return bucket + rnd(bucket * 3);
	case 5: return bucket / 2 + rnd(200);
	default: return rnd(100000);
	}
}

static void
world_make(struct world *w)
{
	ist__ctx_init(&w->ctx);
	w->n_sets = 1 + (uint32_t)rnd(5);
	w->bucket = IST__BUCKET_MIN * (1 + rnd(40)) + rnd(2) * rnd(60000);
	w->n_items = 0;
	for (uint32_t s = 0; s < w->n_sets; s++) {
		uint32_t n = (uint32_t)rnd(rnd(4) ? 40 : 400);

		w->bytes[s] = calloc(n + 1, sizeof(uint64_t));
		w->mate[s] = calloc(n + 1, sizeof(uint32_t));
		w->ids[s] = calloc(n + 1, sizeof(uint32_t));
		for (uint32_t i = 0; i < n; i++) {
			w->bytes[s][i] = random_size(w->bucket);
			w->mate[s][i] = i > 0 && rnd(3) == 0 ? (uint32_t)(i - 1 - rnd(i < 5 ? i : 5)) : IST__NO_MATE;
			w->ids[s][i] = w->n_items++;
		}
		w->sets[s] = (struct ist__plan_set){
			.bytes = w->bytes[s],
			.mate = rnd(2) ? w->mate[s] : NULL,
			.ids = w->ids[s],
			.n_items = n,
			.parts = 1 + (uint32_t)rnd(5),
			.whole = (uint32_t)rnd(2),
		};
	}
}

static void
world_free(struct world *w)
{
	for (uint32_t s = 0; s < w->n_sets; s++) {
		free(w->bytes[s]);
		free(w->mate[s]);
		free(w->ids[s]);
	}
}

/* Which set, and which item in it. */
static void
find_item(const struct world *w, uint32_t id, uint32_t *set, uint32_t *item)
{
	for (*set = 0; *set + 1 < w->n_sets && (w->sets[*set].n_items == 0 || id > w->ids[*set][w->sets[*set].n_items - 1]);)
		(*set)++;
	*item = id - w->ids[*set][0];
}

static void
check_buckets(const struct world *w, const struct ist__plan *plan)
{
	uint64_t *filled = calloc(w->n_items + 1, sizeof(*filled));
	uint32_t *seen = calloc(w->n_items + 1, sizeof(*seen)), at[5] = { 0 }, *owner = calloc(w->n_items + 1, sizeof(*owner));

	for (uint64_t b = 0; b < plan->n_buckets; b++) {
		const struct ist__plan_bucket *k = &plan->buckets[b];
		uint64_t end = 0;

		assert_true(k->set < w->n_sets);
		assert_true(k->part < w->sets[k->set].parts);
		assert_true(k->bytes <= plan->bucket_bytes && plan->slot_bytes >= k->bytes);
		assert_true(k->n_pieces > 0);
		for (uint64_t i = k->first_piece; i < k->first_piece + k->n_pieces; i++) {
			const struct ist__plan_piece *p = &plan->pieces[i];
			uint32_t set, item;

			find_item(w, p->item, &set, &item);
			assert_int_equal(set, k->set);
			assert_true(item >= at[set]); /* the manifest's order, in each set */
			at[set] = item;
			assert_int_equal(p->offset, filled[p->item]);
			assert_int_equal(p->offset % IST__PIECE_CUT, 0);
			assert_int_equal(p->at % IST__PIECE_ALIGN, 0);
			assert_true(p->at >= end);
			end = p->at + p->bytes;
			assert_true(end <= k->bytes);
			filled[p->item] += p->bytes;
			assert_int_equal(p->last, filled[p->item] == w->bytes[set][item]);
			if (w->sets[set].whole && seen[p->item])
				assert_int_equal(owner[p->item], k->part);
			/* what a bucket can hold is cut only where several share a set */
			if (seen[p->item] && (w->sets[set].parts == 1 || w->sets[set].whole))
				assert_true(w->bytes[set][item] > plan->bucket_bytes);
			owner[p->item] = k->part;
			seen[p->item]++;
		}
		assert_int_equal(end, k->bytes);
	}
	for (uint32_t s = 0; s < w->n_sets; s++)
		for (uint32_t i = 0; i < w->sets[s].n_items; i++) {
			assert_int_equal(filled[w->ids[s][i]], w->bytes[s][i]);
			assert_true(seen[w->ids[s][i]] > 0);
		}
	free(filled);
	free(seen);
	free(owner);
}

static void
every_byte_goes_once(void **unused)
{
	(void)unused;
	state = (uint64_t)ist__now() | 1;
	print_message("seed %" PRIu64 "\n", state);
	for (int round = 0; round < 400; round++) {
		struct world w;
		struct ist__plan_args args;
		struct ist__plan *plan, *again;

		world_make(&w);
		args = (struct ist__plan_args){ .sets = w.sets, .n_sets = w.n_sets, .bucket_bytes = w.bucket };
		assert_int_equal(ist__plan_make(&w.ctx, &args, &plan, NULL), IST_OK);
		check_buckets(&w, plan);
		assert_int_equal(ist__plan_make(&w.ctx, &args, &again, NULL), IST_OK);
		assert_true(ist__digest_equal(&plan->digest, &again->digest));
		args.salt.b[0] = 1;
		ist__plan_free(again);
		assert_int_equal(ist__plan_make(&w.ctx, &args, &again, NULL), IST_OK);
		assert_false(ist__digest_equal(&plan->digest, &again->digest));
		ist__plan_free(again);
		ist__plan_free(plan);
		world_free(&w);
	}
}

static void
shares_are_equal(void **unused)
{
	enum { N = 399 };
	struct ist__ctx ctx;
	uint64_t bytes[N], given[4] = { 0 }, all = 0;
	struct ist__plan_set set = { .bytes = bytes, .n_items = N, .parts = 4 };
	struct ist__plan_args args = { .sets = &set, .n_sets = 1, .bucket_bytes = IST__BUCKET_DEFAULT };
	struct ist__plan *plan;

	(void)unused;
	ist__ctx_init(&ctx);
	for (int i = 0; i < N; i++)
		all += bytes[i] = i == 0 ? UINT64_C(1244659712) : i % 3 ? UINT64_C(33554432) : 8192;
	assert_int_equal(ist__plan_make(&ctx, &args, &plan, NULL), IST_OK);
	for (uint64_t b = 0; b < plan->n_buckets; b++) {
		given[plan->buckets[b].part] += plan->buckets[b].bytes;
		if (b < 4)
			assert_int_equal(plan->buckets[b].part, b); /* all begin at once */
	}
	for (int i = 0; i < 4; i++) {
		assert_true(given[i] > all / 4 - all / 20);
		assert_true(given[i] < all / 4 + all / 20);
	}
	ist__plan_free(plan);
}

/* q, k, v, then their scales: nothing between them is torn out where a bucket can hold it. */
static void
scales_stay_with_their_weights(void **unused)
{
	enum { LAYERS = 200, N = LAYERS * 7 };
	static const char *const kinds[7] = { "q.weight", "k.weight", "v.weight", "q.weight_scale_inv", "k.weight_scale_inv", "v.weight_scale_inv", "norm" };
	struct ist__ctx ctx;
	static char text[N][64];
	static const char *names[N];
	static uint64_t bytes[N];
	static uint32_t mate[N], in[N];
	struct ist__plan_set set = { .bytes = bytes, .mate = mate, .n_items = N, .parts = 1 };
	uint64_t sizes[3] = { UINT64_C(64) << 10, UINT64_C(1) << 20, UINT64_C(128) << 20 };

	(void)unused;
	ist__ctx_init(&ctx);
	for (int i = 0; i < N; i++) {
		snprintf(text[i], sizeof(text[i]), "layers.%d.%s", i / 7, kinds[i % 7]);
		names[i] = text[i];
		bytes[i] = i % 7 < 3 ? 12000 : 96;
	}
	assert_true(ist__mates_find(&ctx, names, N, mate));
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(mate[i], i % 7 >= 3 && i % 7 < 6 ? i - 3 : IST__NO_MATE);
	for (int k = 0; k < 3; k++) {
		struct ist__plan_args args = { .sets = &set, .n_sets = 1, .bucket_bytes = sizes[k] };
		struct ist__plan *plan;

		assert_int_equal(ist__plan_make(&ctx, &args, &plan, NULL), IST_OK);
		for (uint64_t b = 0; b < plan->n_buckets; b++)
			for (uint64_t i = 0; i < plan->buckets[b].n_pieces; i++)
				in[plan->pieces[plan->buckets[b].first_piece + i].item] = (uint32_t)b;
		for (uint32_t i = 0; i < N; i++)
			if (mate[i] != IST__NO_MATE)
				assert_int_equal(in[i], in[mate[i]]);
		ist__plan_free(plan);
	}
}

static void
scales_are_known_by_name(void **unused)
{
	static const char *const names[] = { "a.weight", "a.weight_scale", "b", "b_scale_inv", "b.scale", "c.qweight", "c.scales",
		"d_blocks", "d_scales", "a.input_scale", "scale", "rescaled", "lonely_scale", NULL };
	static const uint32_t want[] = { IST__NO_MATE, 0, IST__NO_MATE, 2, 2, IST__NO_MATE, 5, IST__NO_MATE, 7, 0, IST__NO_MATE,
		IST__NO_MATE, IST__NO_MATE, IST__NO_MATE };
	enum { N = sizeof(want) / sizeof(want[0]) };
	struct ist__ctx ctx;
	uint32_t mate[N];

	(void)unused;
	ist__ctx_init(&ctx);
	assert_true(ist__mates_find(&ctx, names, N, mate));
	for (int i = 0; i < N; i++)
		assert_int_equal(mate[i], want[i]);
}

static void
two_hundred_thousand_tensors_from_64_ranks(void **unused)
{
	enum { N = 200000, SETS = 64 };
	struct ist__ctx ctx;
	struct ist__plan_set sets[SETS];
	struct ist__plan *plan;
	uint64_t *bytes = malloc(N * sizeof(*bytes));
	uint32_t *ids = malloc(N * sizeof(*ids)), *mate = malloc(N * sizeof(*mate));
	struct ist__plan_args args = { .sets = sets, .n_sets = SETS, .bucket_bytes = UINT64_C(16) << 20 };
	int64_t began;

	(void)unused;
	ist__ctx_init(&ctx);
	for (uint32_t i = 0; i < N; i++) {
		bytes[i] = 4096 + i % 977 * 1000;
		ids[i] = i;
		mate[i] = i % 2 && i % (N / SETS) ? (i - 1) % (N / SETS) : IST__NO_MATE;
	}
	for (uint32_t s = 0; s < SETS; s++)
		sets[s] = (struct ist__plan_set){
			.bytes = bytes + s * (N / SETS),
			.ids = ids + s * (N / SETS),
			.mate = mate + s * (N / SETS),
			.n_items = N / SETS,
			.parts = 1,
		};
	began = ist__now();
	assert_int_equal(ist__plan_make(&ctx, &args, &plan, NULL), IST_OK);
	print_message("%llu buckets in %.3f s\n", (unsigned long long)plan->n_buckets, (double)(ist__now() - began) / 1e9);
	assert_true(ist__now() - began < 20 * INT64_C(1000000000)); /* a guard against what is not linear */
	ist__plan_free(plan);
	free(bytes);
	free(ids);
	free(mate);
}

static void
what_can_not_be_is_refused(void **unused)
{
	struct ist__ctx ctx;
	uint64_t bytes[2] = { UINT64_MAX - 5, 10 };
	struct ist__plan_set set = { .bytes = bytes, .n_items = 2, .parts = 1 };
	struct ist__plan_args args = { .sets = &set, .n_sets = 1, .bucket_bytes = IST__BUCKET_DEFAULT };
	struct ist__plan *plan = NULL;

	(void)unused;
	ist__ctx_init(&ctx);
	assert_int_equal(ist__plan_make(&ctx, &args, &plan, NULL), IST_OVERFLOW);
	bytes[0] = UINT64_C(1) << 60;
	assert_int_equal(ist__plan_make(&ctx, &args, &plan, NULL), IST_LIMIT);
	bytes[0] = 1;
	args.bucket_bytes = 100;
	assert_int_equal(ist__plan_make(&ctx, &args, &plan, NULL), IST_INVALID_ARGUMENT);
	assert_null(plan);
	args.bucket_bytes = IST__BUCKET_MIN;
	set.n_items = 0;
	assert_int_equal(ist__plan_make(&ctx, &args, &plan, NULL), IST_OK);
	assert_int_equal(plan->n_buckets, 0);
	ist__plan_free(plan);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte_goes_once),
		cmocka_unit_test(shares_are_equal),
		cmocka_unit_test(scales_stay_with_their_weights),
		cmocka_unit_test(scales_are_known_by_name),
		cmocka_unit_test(two_hundred_thousand_tensors_from_64_ranks),
		cmocka_unit_test(what_can_not_be_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
