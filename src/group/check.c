/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - do all members enter the same bulk operation? Fingerprints travel the mesh as in a dissemination barrier,
 * beside the data: in round k a member tells r + 2^k what it is about to do, once it has heard rounds 0 .. k-1. Who has
 * heard all rounds knows that everybody is in the same operation; the first who sees a difference ends it for all. Members
 * of one host have a board for it (board.h), where each compares with all.
 */
#include "base/fail.h"
#include "group/group.h"
#include "net/wire.h"

#include <string.h>

static struct ist__print *
print_of(struct ist__group *g, uint64_t seq)
{
	struct ist__print *p = &g->prints[seq % IST__PRINTS];

	if (!p->used) {
		*p = (struct ist__print){ .seq = seq, .used = true };
		return p;
	}
	return p->seq == seq ? p : NULL;
}

/* Lock held. IST_OK and *done when all have agreed; otherwise what differs. */
static ist_err
advance(struct ist__group *g, struct ist__print *p, bool *done, struct ist_error *err)
{
	*done = false;
	if (!p->entered)
		return IST_OK;
	for (uint32_t k = 0; k < g->rounds; k++) {
		uint32_t from = (g->rank + g->size - (1u << k)) % g->size;
		struct ist__msg head = { .type = IST__CHECK, .flags = (uint16_t)(IST__FRAME_URGENT | k << 8), .seq = p->seq, .generation = g->generation,
			.from = g->rank, .to = (g->rank + (1u << k)) % g->size };

		if (p->sent == k) {
			ist__mesh_send(g, &head, p->ours, IST__PRINT_BYTES);
			p->sent++;
		}
		if (!(p->got & 1u << k))
			return IST_OK;
		if (memcmp(p->theirs[k], p->ours, IST__PRINT_BYTES) != 0)
			return ist__print_compare(g->rank, p->ours, from, p->theirs[k], p->seq, err);
	}
	*done = true;
	p->used = false;
	return IST_OK;
}

static void
tell_line(struct ist__group *g, uint64_t seq, ist_err e, bool done, const struct ist_error *err)
{
	if (e) {
		ist__mesh_break(g, err, true);
		ist__line_checked(g->line, seq, err);
	} else if (done)
		ist__line_checked(g->line, seq, NULL);
}

ist_err
ist__check_prepare(struct ist__group *g, struct ist_error *err)
{
	if (!g->board)
		g->prints = ist__alloc(g->ctx, IST__PRINTS * sizeof(*g->prints));
	return g->board || g->prints ? IST_OK : ist__fail_memory(err, "group_new");
}

void
ist__check_entered(void *group, uint64_t seq, const uint8_t print[IST__PRINT_BYTES])
{
	struct ist__group *g = group;
	struct ist__print *p;
	struct ist_error err;
	bool done = false;
	ist_err e;

	ist_error_init(&err);
	if (g->board) {
		pthread_mutex_lock(&g->lock);
		g->coll_entered = seq + 1;
		pthread_mutex_unlock(&g->lock);
		ist__board_print(g, seq, print);
		return;
	}
	pthread_mutex_lock(&g->lock);
	p = print_of(g, seq);
	if (!p)
		e = ist__fail(&err, IST_INTERNAL, "check", "operation %llu is too far ahead of others", (unsigned long long)seq);
	else {
		p->entered = true;
		memcpy(p->ours, print, IST__PRINT_BYTES);
		g->coll_entered = seq + 1;
		e = advance(g, p, &done, &err);
	}
	pthread_mutex_unlock(&g->lock);
	tell_line(g, seq, e, done, &err);
}

ist_err
ist__check_compare(void *group, bool asleep, uint64_t *agreed, struct ist_error *err)
{
	struct ist__group *g = group;
	ist_err e = ist__board_compare(g, asleep, agreed, err);

	if (e)
		ist__mesh_break(g, err, true);
	return e;
}

void
ist__check_take(struct ist__group *g, const struct ist__msg *m)
{
	uint32_t k = m->flags >> 8;
	struct ist__print *p;
	struct ist_error err;
	bool done = false;
	ist_err e = IST_OK;

	ist_error_init(&err);
	if (k >= g->rounds || m->bytes != IST__PRINT_BYTES || m->from != (g->rank + g->size - (1u << k)) % g->size)
		return;
	pthread_mutex_lock(&g->lock);
	p = g->prints ? print_of(g, m->seq) : NULL; /* members with a board need no messages */
	if (p) {
		memcpy(p->theirs[k], m->body, IST__PRINT_BYTES);
		p->got |= 1u << k;
		e = advance(g, p, &done, &err);
	}
	pthread_mutex_unlock(&g->lock);
	tell_line(g, m->seq, e, done, &err);
}

/* Those who have not told us, as far as the rounds say; ist__mesh_name_absent asks everybody, and may wait. */
uint32_t
ist__check_absent(void *group, uint64_t seq, uint32_t *ranks, uint32_t room)
{
	struct ist__group *g = group;
	struct ist_error err;
	uint32_t n = 0;

	ist_error_init(&err);
	ist__mesh_name_absent(g, 0, seq + 1, &err);
	for (; n < err.n_ranks && n < room; n++)
		ranks[n] = err.ranks[n];
	return n;
}
