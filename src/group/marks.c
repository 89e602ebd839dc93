/* SPDX-License-Identifier: Apache-2.0
 *
 * marks.c - a few words that each member keeps for the others: what they mean is the user's business. Heartbeats carry
 * them to the neighbours, who so know the last ones of a member that is gone; who asks gets them from all. And the
 * other half of looking after each other: giving a member up.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/group.h"

#include <isthmus.h>

#include <string.h>

void
ist__mark_put(const struct ist__group *g, uint8_t body[IST__FAR_BYTES])
{
	ist__store_u64(body, g->op_seq);
	ist__store_u64(body + 8, g->coll_entered);
	for (uint32_t i = 0; i < IST_MARK_WORDS; i++)
		ist__store_u64(body + 16 + UINT64_C(8) * i, g->marks[g->rank].word[i]);
}

void
ist__mark_take(struct ist__group *g, uint32_t from, const uint8_t *body, uint64_t bytes)
{
	struct ist__mark *mark = from < g->size && from != g->rank ? &g->marks[from] : NULL;

	if (!mark || bytes < IST__FAR_BYTES)
		return; /* an older member has none */
	for (uint32_t i = 0; i < IST_MARK_WORDS; i++)
		mark->word[i] = ist__load_u64(body + 16 + UINT64_C(8) * i);
	mark->known = true;
}

ist_err
ist_group_mark(struct ist_group *group, const uint64_t *words)
{
	struct ist__group *g;
	ist_err e = ist__group_use(group, "group_mark", &g, NULL);

	if (e)
		return e;
	if (words) {
		pthread_mutex_lock(&g->lock);
		memcpy(g->marks[g->rank].word, words, sizeof(g->marks[g->rank].word));
		g->marks[g->rank].known = true;
		pthread_mutex_unlock(&g->lock);
	} else {
		e = IST_INVALID_ARGUMENT;
	}
	ist__group_unref(g);
	return e;
}

static void
read_marks(struct ist__group *g, bool asked, uint64_t *words, uint8_t *known)
{
	for (uint32_t r = 0; r < g->size; r++) {
		bool answered = asked && (r == g->rank || g->here[r].round == g->who_round);

		memcpy(words + (uint64_t)r * IST_MARK_WORDS, g->marks[r].word, sizeof(g->marks[r].word));
		known[r] = !g->marks[r].known ? IST_MARK_NONE : answered ? IST_MARK_NOW : IST_MARK_ONCE;
	}
}

ist_err
ist_group_marks(struct ist_group *group, int64_t ask_ns, uint64_t *words, uint8_t *known, struct ist_error *err)
{
	struct ist__group *g;
	ist_err e = ist__group_use(group, "group_marks", &g, err);

	if (e)
		return e;
	if (words && known) {
		pthread_mutex_lock(&g->lock);
		if (ask_ns > 0)
			ist__mesh_ask(g, ask_ns);
		read_marks(g, ask_ns > 0, words, known);
		pthread_mutex_unlock(&g->lock);
	} else {
		e = ist__fail(err, IST_INVALID_ARGUMENT, "group_marks", "words or known is NULL");
	}
	ist__group_unref(g);
	return e;
}

struct eviction {
	struct ist__group *g;
	uint32_t rank;
	struct ist_error err;
};

/* On the loop's thread, which alone says who is gone. */
static void
evict_here(void *arg)
{
	struct eviction *x = arg;

	ist__mesh_lost(x->g, x->rank, &x->err, true);
}

ist_err
ist_group_evict(struct ist_group *group, uint32_t rank, const struct ist_error *why, struct ist_error *err)
{
	struct eviction x = { .rank = rank };
	struct ist__group *g;
	ist_err rc = ist__group_use(group, "group_evict", &g, err);

	if (rc)
		return rc;
	x.g = g;
	if (!why || !why->code || rank >= g->size || rank == g->rank) {
		rc = ist__fail(err, IST_INVALID_ARGUMENT, "group_evict", "rank %u evicts rank %u of %u, or there is no reason", g->rank, rank, g->size);
	} else {
		ist_error_init(&x.err);
		ist__fail(&x.err, why->code, "group_evict", "rank %u (%s pid %llu) is given up: %s", rank, g->members[rank].card.host,
			(unsigned long long)g->members[rank].card.pid, why->detail);
		ist__fail_rank(&x.err, rank);
		ist__fail_per_rank(&x.err, rank, why->code);
		ist__loop_run(g->loop, evict_here, &x);
	}
	ist__group_unref(g);
	return rc;
}
