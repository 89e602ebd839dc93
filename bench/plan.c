/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - how long a member thinks about which bytes go when: a plan of many tensors that many sources hold, each its own,
 * small ones, every second with a scale. Seconds of each try. bench_plan [TENSORS [RANKS [TRIES]]].
 */
#include "sync/mates.h"
#include "sync/plan.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>

struct work {
	uint64_t *bytes;
	uint32_t *ids, *mate;
	struct ist__plan_set *sets;
	uint32_t n, n_sets;
};

static int
fill(struct work *w)
{
	uint32_t each = w->n / w->n_sets;

	w->bytes = malloc(w->n * sizeof(*w->bytes));
	w->ids = malloc(w->n * sizeof(*w->ids));
	w->mate = malloc(w->n * sizeof(*w->mate));
	w->sets = calloc(w->n_sets, sizeof(*w->sets));
	if (!w->bytes || !w->ids || !w->mate || !w->sets)
		return 1;
	for (uint32_t i = 0; i < w->n; i++) {
		w->bytes[i] = 4096 + i % 977 * 1000;
		w->ids[i] = i;
		w->mate[i] = i % each % 2 ? i % each - 1 : IST__NO_MATE;
	}
	for (uint32_t s = 0; s < w->n_sets; s++)
		w->sets[s] = (struct ist__plan_set){ .bytes = w->bytes + s * each, .ids = w->ids + s * each, .mate = w->mate + s * each, .n_items = each,
			.parts = 1 };
	return 0;
}

int
main(int argc, char **argv)
{
	struct work w = { .n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 200000, .n_sets = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 64 };
	int tries = argc > 3 ? atoi(argv[3]) : 3, bad;
	struct ist__ctx ctx;

	if (!w.n_sets || w.n < w.n_sets)
		return 2;
	ist__ctx_init(&ctx);
	bad = fill(&w);
	for (int i = 0; !bad && i < tries; i++) {
		struct ist__plan_args args = { .sets = w.sets, .n_sets = w.n_sets, .bucket_bytes = IST__BUCKET_DEFAULT };
		struct ist__plan *plan;
		int64_t began = ist__now();

		bad = ist__plan_make(&ctx, &args, &plan, NULL) != IST_OK;
		if (!bad) {
			printf("plan %.6f\n", (double)(ist__now() - began) / 1e9);
			ist__plan_free(plan);
		}
	}
	free(w.bytes);
	free(w.ids);
	free(w.mate);
	free(w.sets);
	return bad;
}
