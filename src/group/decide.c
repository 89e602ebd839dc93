/* SPDX-License-Identifier: Apache-2.0
 *
 * decide.c - one outcome for all, also when members die in the middle.
 *
 *   1. Votes are all-gathered. Who has them all, and all are yes, HOLDS the outcome.
 *   2. A barrier closes: who leaves it knows that everybody holds. Who holds and sees it fail floods HELD.
 *   3. Who failed in 1 is FROZEN: it will never hold by itself. It floods HELD_ASK, which also says that it holds nothing.
 *      Everybody who hears that and holds answers HELD; who does not hold freezes as well and answers HELD_ASK.
 *      HELD from anybody: the outcome is yes. HELD_ASK from all that are left: nobody holds, the outcome is no.
 *      Silence from somebody who is not known to be gone, or who was lost and may live: in doubt. That a connection ended is
 *      no proof of a death: who is lost is looked for (decide_alive.c), and one that lives gets time to answer by others.
 *
 * Freezing and holding exclude each other under the group's lock: that is what makes 3 safe. `seq` of the frames is the
 * number of the vote, `from` is who tells of itself.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/group.h"
#include "net/wire.h"

#include <string.h>

enum { RESOLVE_MS = 10000, LOOK_MS = 1500, CUT_MS = 1000 };

static void
flood_from(struct ist__group *g, uint16_t type, uint64_t vote, uint32_t from)
{
	ist__mesh_flood(g, type, IST__FRAME_URGENT, vote, from, NULL, 0, g->size);
}

/* Lock held: we hold nothing in this vote, and say so, once. */
static void
freeze(struct ist__group *g, uint64_t vote)
{
	if (g->frozen >= vote)
		return;
	g->frozen = vote;
	flood_from(g, IST__HELD_ASK, vote, g->rank);
}

static void
note_answer(struct ist__group *g, uint64_t vote, uint32_t from)
{
	if (vote < g->answers_vote || from >= g->size)
		return;
	if (vote > g->answers_vote) {
		memset(g->answers, 0, g->size);
		g->answers_vote = vote;
	}
	if (g->answers[from])
		return;
	g->answers[from] = 1;
	flood_from(g, IST__HELD_ASK, vote, from); /* not everybody is its neighbour */
	pthread_cond_broadcast(&g->cond);
}

void
ist__decide_take(struct ist__group *g, struct ist__msg *m)
{
	if (m->type == IST__HELD) {
		if (g->held < m->seq) {
			g->held = m->seq;
			flood_from(g, IST__HELD, m->seq, m->from);
			pthread_cond_broadcast(&g->cond);
		}
		return;
	}
	note_answer(g, m->seq, m->from);
	if (g->held >= m->seq)
		flood_from(g, IST__HELD, m->seq, g->rank);
	else
		freeze(g, m->seq);
}

struct missing {
	bool here;   /* somebody is left who has not answered */
	bool cut;    /* somebody was lost and lives: its answer may come by others */
	bool silent; /* somebody was given up who may live and hold */
	bool alone;  /* all the others have died, or were given up, without an answer */
	uint32_t lost; /* of this one nobody has looked yet whether it is dead; IST_NO_RANK: of all */
};

/* HELD of a member that holds goes out before its LEFT, on every way: who has left without it holds nothing. */
static bool
has_answered(const struct ist__group *g, uint64_t vote, uint32_t r)
{
	return (g->answers_vote == vote && g->answers[r]) || g->gone[r] == IST__GONE_LEFT;
}

/* Lock held. */
static struct missing
unanswered(const struct ist__group *g, uint64_t vote)
{
	struct missing m = { .alone = true, .lost = IST_NO_RANK };

	for (uint32_t r = 0; r < g->size; r++) {
		if (r == g->rank)
			continue;
		if (has_answered(g, vote, r)) {
			m.alone = false;
			continue;
		}
		switch (g->gone[r]) {
		case IST__GONE_DIED: break;
		case IST__GONE_LOST: m.lost = r; break;
		case IST__GONE_CUT: m.cut = m.silent = true; break;
		case IST__GONE_SILENT: m.silent = true; break;
		default: m.here = true; m.alone = false; break;
		}
	}
	return m;
}

/* Lock held, and given away meanwhile. */
static void
look_for(struct ist__group *g, uint32_t rank, int64_t until)
{
	int64_t at = ist__now() + LOOK_MS * IST__MS;
	bool died;

	pthread_mutex_unlock(&g->lock);
	died = ist__decide_died(g, rank, at < until ? at : until);
	pthread_mutex_lock(&g->lock);
	if (g->gone[rank] == IST__GONE_LOST)
		g->gone[rank] = died ? IST__GONE_DIED : IST__GONE_CUT;
}

/* Lock held. Without any, no answer can come. */
static bool
has_link(const struct ist__group *g)
{
	for (uint32_t i = 0; i < g->n_links; i++)
		if (g->links[i].conn)
			return true;
	return false;
}

/* Step 3. *doubt as in ist_decide; the outcome otherwise. */
static bool
resolve(struct ist__group *g, uint64_t vote, uint32_t *doubt)
{
	int64_t until = ist__now() + RESOLVE_MS * IST__MS, cut_until = 0;
	struct missing m;
	bool held;

	pthread_mutex_lock(&g->lock);
	if (g->held < vote)
		freeze(g, vote);
	while (m = unanswered(g, vote), g->held < vote && !g->closed && ist__now() < until) {
		int64_t end = until;
		struct timespec at;

		if (m.lost != IST_NO_RANK) {
			look_for(g, m.lost, until);
			continue;
		}
		if (!m.here && !m.cut)
			break;
		if (m.cut && !cut_until)
			cut_until = ist__now() + CUT_MS * IST__MS;
		if (!m.here && cut_until < end)
			end = cut_until;
		if (ist__now() >= end || !has_link(g))
			break;
		at = (struct timespec){ .tv_sec = (time_t)(end / 1000000000), .tv_nsec = (long)(end % 1000000000) };
		pthread_cond_timedwait(&g->cond, &g->lock, &at);
	}
	held = g->held >= vote;
	*doubt = held ? 0 : m.here || m.alone ? 1 : m.silent || m.lost != IST_NO_RANK ? 2 : 0;
	pthread_mutex_unlock(&g->lock);
	return held;
}

/* The first no, by rank. Not inlined: its errors would lie on the stack while the others are waited for. */
static __attribute__((noinline)) ist_err
outcome_of(struct ist__group *g, const struct ist_blob *votes, struct ist_error *err)
{
	struct ist_error first;
	ist_err e = IST_OK;

	ist_error_init(&first);
	for (uint32_t r = 0; r < g->size; r++) {
		struct ist__reader in;
		struct ist_error no;

		ist_error_init(&no);
		ist__reader_init(&in, votes[r].addr, votes[r].bytes);
		if (ist__get_u8(&in) == 0 && !in.bad)
			continue;
		if (!ist__get_error(&in, &no))
			ist__fail(&no, IST_BAD_FORMAT, "decide", "a vote that can't be read");
		if (!e) {
			first = no;
			e = no.code;
		}
		if (first.n_ranks == 0) { /* one that says whom it is about may count in other ranks than this group's */
			ist__fail_rank(&first, r);
			ist__fail_prefix(&first, "rank %u: ", r);
		}
		ist__fail_per_rank(&first, r, no.code);
	}
	if (e)
		ist__error_copy(err, &first);
	return e;
}

static ist_err
vote_on(struct ist__group *g, const struct ist_error *vote, uint64_t seq, int64_t deadline, uint32_t *doubt, struct ist_error *err)
{
	uint64_t room = g->size * (sizeof(struct ist_blob) + sizeof(bool));
	struct ist_blob *have = ist__slab_get(ist__loop_slab(g->loop), room);
	struct ist__writer w;
	struct ist_error why;
	bool holds = false, told = false;
	ist_err e;

	ist_error_init(&why);
	if (!have) {
		ist__fail_memory(&why, "decide");
		ist__fail_rank(&why, g->rank);
		ist__mesh_break(g, &why, true); /* the others wait for our vote */
		ist__error_copy(err, &why);
		return why.code;
	}
	memset(have, 0, room);
	ist__writer_init_slab(&w, ist__loop_slab(g->loop));
	ist__put_u8(&w, vote ? 1 : 0);
	if (vote)
		ist__put_error(&w, vote);
	e = w.bad ? ist__fail_memory(&why, "decide") :
		ist__objects_all_gather(g, IST__VOTE, seq, w.at, w.bytes, deadline, have, (bool *)(have + g->size), &why);
	ist__writer_fini(&w);
	if (e == IST_NO_MEMORY)
		ist__fail_rank(&why, g->rank);
	if (e) /* they wait; where the group has ended already this says nothing new */
		ist__mesh_break(g, &why, true);
	if (!e) {
		e = outcome_of(g, have, &why);
		told = e != IST_OK;
		if (!e) {
			pthread_mutex_lock(&g->lock);
			holds = g->frozen < seq; /* otherwise somebody was told that we hold nothing */
			if (holds)
				g->held = seq;
			pthread_mutex_unlock(&g->lock);
		}
		if (!e && !holds)
			e = ist__group_broken(g, &why) ? why.code : IST_PEER_LOST;
		else if (!e && ist__objects_barrier(g, IST__VOTE, seq, deadline, NULL)) {
			pthread_mutex_lock(&g->lock);
			flood_from(g, IST__HELD, seq, g->rank);
			pthread_mutex_unlock(&g->lock);
		}
	}
	ist__objects_drop(g, have, g->size);
	ist__slab_put(ist__loop_slab(g->loop), have);
	if (!e || told) { /* decided by votes: the error of a link may have a list of members as well */
		if (e)
			ist__error_copy(err, &why);
		return e;
	}
	if (resolve(g, seq, doubt))
		return IST_OK;
	if (why.n_ranks == 0) { /* we were told of a loss before we saw it */
		pthread_mutex_lock(&g->lock);
		if (!ist__group_broken(g, &why))
			ist__fail(&why, e, "decide", "others saw a loss while the votes were gathered");
		pthread_mutex_unlock(&g->lock);
		e = why.code;
	}
	ist__error_copy(err, &why);
	return e;
}

ist_err
ist_decide(struct ist_group *group, const struct ist_error *vote, int64_t timeout_ns, uint32_t *doubt, struct ist_error *err)
{
	struct ist__group *g;
	uint32_t in_doubt = 0;
	uint64_t seq;
	ist_err e = ist__group_use(group, "decide", &g, err);

	if (e)
		return e;
	e = ist__objects_begin(g, "decide", IST__VOTE, 0, &seq, err);
	if (!e) {
		e = vote_on(g, vote, seq, ist__deadline(timeout_ns, g->timeout_ns), &in_doubt, err);
		ist__objects_end(g);
	}
	if (doubt)
		*doubt = in_doubt;
	ist__group_unref(g);
	return e;
}
