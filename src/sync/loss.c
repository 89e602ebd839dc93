/* SPDX-License-Identifier: Apache-2.0
 *
 * loss.c - going on without the lost. A group that lost a member is finished; those that are left make a new one. Each
 * looks at whom it knows to be lost; those that know the same meet, since the name of the new group carries the list.
 * Whoever does not come, or goes, although the old group has nothing against it is left behind too, after two tries.
 */
#include "sync/sync.h"

#include "base/fail.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define OP "sync_update"
#define SETTLE_NS (150 * IST__MS)
#define LOOK_NS (10 * IST__MS)
#define TRY_NS (5 * IST_NS_PER_S)
enum { TRIES = 6 };

bool
ist__sync_is_loss(const struct ist__sync_body *s, ist_err code)
{
	return s->args.on_loss == IST_ON_LOSS_CONTINUE &&
		/* ABORTED: another member that saw the loss first may have said so */
		(code == IST_ABORTED || code == IST_PEER_LOST || code == IST_PEER_LEFT || code == IST_NO_PROGRESS ||
		 code == IST_SLOW_PEER);
}

/* rank: in the group. True: it is new. */
static bool
mark(struct ist__sync_body *s, bool *lost, uint32_t rank)
{
	if (rank >= s->size || rank == s->rank || lost[rank])
		return false;
	lost[rank] = true;
	return true;
}

static void
pause_ns(int64_t ns)
{
	struct timespec t = { .tv_nsec = ns };

	nanosleep(&t, NULL); /* woken early by a signal: looked once more */
}

/* Adds whom the group knows to be lost; waits until nobody has been added for a while. */
static ist_err
settle(struct ist__sync_body *s, bool *lost, uint32_t *room, struct ist_error *err)
{
	int64_t quiet = ist__now() + SETTLE_NS;

	while (ist__now() < quiet && ist__now() < s->up.deadline) {
		uint32_t n = s->size;
		ist_err e = ist_group_lost(s->group, room, &n, err);

		if (e)
			return e;
		for (uint32_t i = 0; i < n && i < s->size; i++)
			if (mark(s, lost, room[i]))
				quiet = ist__now() + SETTLE_NS;
		pause_ns(LOOK_NS);
	}
	return IST_OK;
}

/* Survivors in the order of their ranks. */
static uint32_t
list_left(const struct ist__sync_body *s, const bool *lost, uint32_t *left)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->size; i++)
		if (!lost[i])
			left[n++] = i;
	return n;
}

/* An error of the new group counts in its ranks; here the old one's count. */
static void
to_old_ranks(struct ist_error *e, const uint32_t *left, uint32_t n)
{
	for (uint32_t i = 0; i < e->n_ranks; i++)
		if (e->ranks[i] < n)
			e->ranks[i] = left[e->ranks[i]];
	for (uint32_t i = 0; i < e->n_per_rank; i++)
		if (e->per_rank[i].rank < n)
			e->per_rank[i].rank = left[e->per_rank[i].rank];
}

static ist_err
try_split(struct ist__sync_body *s, const uint32_t *left, uint32_t n, struct ist_group **out, struct ist_error *err)
{
	struct ist__digest digest;
	char text[IST_DIGEST_TEXT], name[64];
	int64_t limit = ist__left(s->up.deadline);
	ist_err e;
	struct ist_split_args args = { .struct_size = sizeof(args), .n_ranks = n, .ranks = left, .name = name };

	ist__digest_flat(left, n * sizeof(*left), &digest);
	ist__digest_text(&digest, text);
	snprintf(name, sizeof(name), "sync-%u-%s", s->losses + 1, text);
	args.timeout_ns = limit > 0 && limit < TRY_NS ? limit : TRY_NS;
	e = ist_group_split(s->group, &args, out, err);
	if (e)
		to_old_ranks(err, left, n);
	return e;
}

/* What a lost rank is reported with. */
static ist_err
code_of(const struct ist_error *why, uint32_t rank)
{
	for (uint32_t i = 0; i < why->n_per_rank; i++)
		if (why->per_rank[i].rank == rank)
			return why->per_rank[i].code;
	for (uint32_t i = 0; i < why->n_ranks; i++)
		if (why->ranks[i] == rank && why->code != IST_ABORTED)
			return why->code;
	return IST_PEER_LOST; /* who told first did not say */
}

static void
note_lost(struct ist__sync_body *s, const bool *lost, const struct ist_error *why)
{
	for (uint32_t i = 0; i < s->size; i++) {
		ist_err code = code_of(why, i);

		if (!lost[i])
			continue;
		s->ranks[s->names[i]] = UINT32_MAX;
		if (s->table)
			s->table->members[s->names[i]].gone = true;
		if (s->n_lost < IST_ERROR_RANKS)
			s->lost[s->n_lost++] = (struct ist_rank_error){ s->names[i], code };
		ist__log(s->ctx, IST_LOG_WARN, "rank %u is lost (%s); going on without it", s->names[i], ist_err_name(code));
	}
}

/* Whom the old group has not lost by itself, its user must not wait for: who left, and who did not come. One tells. */
static void
give_up(const struct ist__sync_body *s, const bool *lost, uint32_t first, const struct ist_error *why)
{
	for (uint32_t i = 0; i < s->size && s->rank == first; i++)
		if (lost[i])
			(void)ist_group_evict(s->group, i, why, NULL); /* gone already: all the better */
}

/* Makes group the one that the sync lives in. left: old ranks of its members. */
static ist_err
move_in(struct ist__sync_body *s, struct ist_group *group, const uint32_t *left, uint32_t n, struct ist_error *err)
{
	struct ist_group *old = s->group;
	bool had_ring = s->ring.n > 0 && !s->gathering; /* else READY will make it */
	ist_err e;

	ist__stage_quiet(&s->stage);
	ist__ring_fini(&s->ring);
	ist__agree_fini(&s->agree);
	for (uint32_t i = 0; i < n; i++) {
		s->names[i] = s->names[left[i]]; /* left[i] >= i */
		s->ranks[s->names[i]] = i;
	}
	s->group = group;
	if (old != s->given)
		(void)ist_group_free(old); /* ours alone, and finished */
	s->losses++;
	e = ist__sync_adopt(s, err);
	ist__sync_show_role(s);
	if (!e && s->table && had_ring) {
		struct ist_error why;

		/* the others hear of a failure when all meet in the new group */
		ist_error_init(&why);
		if (ist__sync_make_ring(s, &why) != IST_OK)
			ist__sync_fail_here(s, &why);
	}
	return e;
}

static void
mark_error(struct ist__sync_body *s, bool *lost, const struct ist_error *e)
{
	for (uint32_t i = 0; i < e->n_ranks; i++)
		(void)mark(s, lost, e->ranks[i]);
}

ist_err
ist__sync_shrink(struct ist__sync_body *s, const struct ist_error *why, struct ist_error *err)
{
	bool *lost = ist__alloc(s->ctx, s->size * sizeof(*lost));
	uint32_t *left = ist__alloc(s->ctx, 2 * s->size * sizeof(*left));
	struct ist_group *group = NULL;
	struct ist_error last = *why;
	uint32_t n = 0, vain = 0;
	ist_err e = lost && left ? IST_OK : ist__fail_memory(err, OP);

	ist__pace_end(&s->pace);
	ist__stage_quiet(&s->stage);
	ist__ring_drop(&s->ring);
	if (!e)
		mark_error(s, lost, why);
	for (int i = 0; i < TRIES && !e && !group; i++) {
		e = settle(s, lost, left + s->size, err);
		if (e)
			break;
		n = list_left(s, lost, left);
		if (n == s->size || ist__now() >= s->up.deadline) {
			e = last.code;
			if (err)
				ist__error_copy(err, &last); /* nobody to leave behind, or no time */
			break;
		}
		ist_error_init(&last);
		if (try_split(s, left, n, &group, &last) == IST_OK || last.code == IST_EVICTED)
			break; /* evicted: whatever is tried, the others go on without this one */
		/* who leaves a forming because another is lost is taken for lost in it as well: the old group knows better, mostly */
		if ((ist__sync_is_loss(s, last.code) || last.code == IST_TIMEOUT) && ++vain == 2) {
			mark_error(s, lost, &last);
			vain = 0;
		}
	}
	if (!e && !group) {
		e = last.code;
		if (err)
			ist__error_copy(err, &last);
	}
	if (!e) {
		give_up(s, lost, left[0], why);
		note_lost(s, lost, why);
		e = move_in(s, group, left, n, err);
	}
	ist__free(s->ctx, lost);
	ist__free(s->ctx, left);
	return e;
}
