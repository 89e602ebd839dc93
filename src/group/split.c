/* SPDX-License-Identifier: Apache-2.0
 *
 * split.c - a split as the parent sees it. Who can't take part, for want of memory or descriptors of its own, may fail before it
 * has said a word to rank 0 of the child; so it says so over the parent's mesh (CANT), and nobody waits for it in vain.
 * Attempts of one list and name are counted on all its members alike: word of an earlier one ends no later one.
 *
 * Body of CANT: digest of name and list, number of the attempt, an error.
 */
#include "base/bytes.h"
#include "base/fail.h"
#include "group/group.h"
#include "net/wire.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

static uint64_t
key_of(const char *name, const uint32_t *ranks, uint32_t n)
{
	uint8_t out[crypto_generichash_BYTES_MIN], word[4];
	crypto_generichash_state st;

	crypto_generichash_init(&st, NULL, 0, sizeof(out));
	crypto_generichash_update(&st, (const uint8_t *)name, strlen(name) + 1);
	for (uint32_t i = 0; i < n; i++) {
		ist__store_u32(word, ranks[i]);
		crypto_generichash_update(&st, word, sizeof(word));
	}
	crypto_generichash_final(&st, out, sizeof(out));
	return ist__load_u64(out);
}

/* Lock held. The oldest gives way where there are too many: then its members wait for their deadline, as ever. */
static struct ist__try *
try_of(struct ist__group *g, uint64_t key)
{
	struct ist__try *t;

	for (uint32_t i = 0; i < IST__TRIES; i++)
		if (g->tries[i].key == key && (g->tries[i].ours || g->tries[i].theirs))
			return &g->tries[i];
	t = &g->tries[g->next_try++ % IST__TRIES];
	memset(t, 0, sizeof(*t));
	t->key = key;
	return t;
}

struct ist__attempt
ist__split_begin(struct ist__group *g, const char *name, const uint32_t *ranks, uint32_t n)
{
	struct ist__attempt a = { .key = key_of(name, ranks, n) };

	pthread_mutex_lock(&g->lock);
	a.n = ++try_of(g, a.key)->ours;
	pthread_mutex_unlock(&g->lock);
	return a;
}

/* Is that our own trouble, of which nobody else can know? */
static bool
is_own(const struct ist_error *err, uint32_t mine)
{
	if (!ist__fail_is_own(err->code))
		return false;
	for (uint32_t i = 0; i < err->n_ranks; i++)
		if (err->ranks[i] == mine)
			return true;
	return err->n_ranks == 0;
}

void
ist__split_failed(struct ist__group *g, const struct ist__attempt *a, const uint32_t *ranks, uint32_t n, uint32_t mine, const struct ist_error *err)
{
	struct ist__writer w;

	if (!is_own(err, mine))
		return;
	ist__writer_init_slab(&w, ist__loop_slab(g->loop));
	ist__put_u64(&w, a->key);
	ist__put_u32(&w, a->n);
	ist__put_error(&w, err);
	pthread_mutex_lock(&g->lock);
	for (uint32_t i = 0; !w.bad && i < n; i++) {
		struct ist__msg head = { .type = IST__CANT, .flags = IST__FRAME_URGENT, .generation = g->generation, .from = g->rank, .to = ranks[i] };

		if (i != mine)
			ist__mesh_send(g, &head, w.at, w.bytes);
	}
	pthread_mutex_unlock(&g->lock);
	ist__writer_fini(&w);
}

void
ist__split_take(struct ist__group *g, const struct ist__msg *m)
{
	struct ist__reader r;
	struct ist_error e;
	struct ist__try *t;
	uint64_t key;
	uint32_t n;

	ist_error_init(&e);
	ist__reader_init(&r, m->body, m->bytes);
	key = ist__get_u64(&r);
	n = ist__get_u32(&r);
	if (m->from >= g->size || !ist__get_error(&r, &e) || n == 0)
		return;
	pthread_mutex_lock(&g->lock);
	t = try_of(g, key);
	if (n >= t->ours && n > t->theirs) {
		t->theirs = n;
		t->from = m->from;
		t->code = e.code;
		snprintf(t->detail, sizeof(t->detail), "%s", e.detail);
		snprintf(t->next, sizeof(t->next), "%s", e.next);
	}
	pthread_mutex_unlock(&g->lock);
}

ist_err
ist__split_look(struct ist__group *g, const struct ist__attempt *a, const uint32_t *ranks, uint32_t n, struct ist_error *err)
{
	struct ist__try t = { 0 };
	uint32_t rank = 0;

	pthread_mutex_lock(&g->lock);
	for (uint32_t i = 0; i < IST__TRIES; i++)
		if (g->tries[i].key == a->key)
			t = g->tries[i];
	pthread_mutex_unlock(&g->lock);
	if (!t.code || t.theirs != a->n)
		return IST_OK;
	while (rank < n && ranks[rank] != t.from)
		rank++;
	if (rank == n)
		return IST_OK;
	ist__fail(err, t.code, "group_split", "rank %u of the new group, which was rank %u, can't take part: %s", rank, t.from, t.detail);
	ist__fail_next(err, "%s", t.next);
	ist__fail_rank(err, rank);
	ist__fail_per_rank(err, rank, t.code);
	return t.code;
}
