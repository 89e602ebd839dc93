/* SPDX-License-Identifier: Apache-2.0
 *
 * mesh.c - the control connections of a formed group: routing, heartbeats, loss, leaving, abort.
 *
 * Bodies: PING how far we are, and our mark (marks.c); LOST and ABORT an error (the rank that is gone is `from` of LOST);
 * LEFT nothing; WHO and BELL nothing; HERE as PING; CANT see split.c. `from` is the member that the frame tells of, or its first sender.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/group.h"
#include "net/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { LOOK_MS = 5, BUSY_MS = 10, IDLE_MS = 100, STOOD_STILL_MS = 500, LEFT_MS = 500, NEWS_MS = 100, WHO_MS = 600, WATCH_ALL = 32, GLANCE = 32 };

uint32_t
ist__mesh_neighbours(uint32_t rank, uint32_t size, uint32_t *out)
{
	uint32_t n = 0;

	for (uint32_t step = 1; step < size; step *= 2)
		for (int side = 0; side < 2; side++) {
			uint32_t r = side ? (rank + size - step) % size : (rank + step) % size, i = 0;

			while (i < n && out[i] != r)
				i++;
			if (i == n && r != rank)
				out[n++] = r;
		}
	return n;
}

/* ---- sending; lock held ---- */

static uint32_t
distance(uint32_t a, uint32_t b, uint32_t size)
{
	uint32_t d = (a + size - b) % size;

	return d < size - d ? d : size - d;
}

static struct ist__link *
way_to(struct ist__group *g, uint32_t to)
{
	struct ist__link *best = NULL;

	if (g->link_of[to] >= 0 && g->links[g->link_of[to]].conn)
		return &g->links[g->link_of[to]];
	for (uint32_t i = 0; i < g->n_links; i++) {
		struct ist__link *l = &g->links[i];

		/* each hop comes nearer, so that nothing runs in circles */
		if (l->conn && distance(l->rank, to, g->size) < distance(best ? best->rank : g->rank, to, g->size))
			best = l;
	}
	return best;
}

bool
ist__mesh_starved(struct ist__group *g, uint32_t to)
{
	struct ist__link *l = to < g->size ? way_to(g, to) : NULL;

	return g->starved || (l && ist__conn_has_starved(l->conn));
}

bool
ist__mesh_send(struct ist__group *g, const struct ist__msg *head, const void *body, uint64_t bytes)
{
	struct ist__link *l = head->to < g->size ? way_to(g, head->to) : NULL;

	g->messages++;
	return l && ist__msg_send(l->conn, head, body, bytes);
}

uint64_t
ist__mesh_queued(struct ist__group *g, uint32_t to)
{
	struct ist__link *l = way_to(g, to);

	return l ? ist__conn_queued(l->conn) : 0;
}

void
ist__mesh_flood(struct ist__group *g, uint16_t type, uint16_t flags, uint64_t seq, uint32_t from, const void *body, uint64_t bytes,
	uint32_t but)
{
	struct ist__msg head = { .type = type, .flags = flags, .seq = seq, .generation = g->generation, .from = from, .to = IST__ALL };

	for (uint32_t i = 0; i < g->n_links; i++)
		if (g->links[i].conn && g->links[i].rank != but) {
			g->messages++;
			ist__msg_send(g->links[i].conn, &head, body, bytes);
		}
}

static void
flood_error(struct ist__group *g, uint16_t type, uint32_t from, const struct ist_error *err, uint32_t but)
{
	struct ist__writer w;

	ist__writer_init_slab(&w, ist__loop_slab(g->loop));
	ist__put_error(&w, err);
	if (!w.bad)
		ist__mesh_flood(g, type, IST__FRAME_URGENT, 0, from, w.at, w.bytes, but);
	for (uint32_t i = 0; w.bad && i < g->n_links; i++)
		if (g->links[i].conn)
			ist__conn_starve(g->links[i].conn); /* they must hear something */
	ist__writer_fini(&w);
}

/* ---- the end of the group, or of a member ---- */

/* Lock held. True for the one who did it. */
static bool
set_broken(struct ist__group *g, const struct ist_error *err)
{
	if (g->broken_code)
		return false;
	g->broken_room = *err;
	g->broken = &g->broken_room;
	__atomic_store_n(&g->broken_code, err->code, __ATOMIC_RELEASE);
	if (g->board)
		ist__board_break(g);
	pthread_cond_broadcast(&g->cond);
	return true;
}

/* told: what the others hear; NULL: nothing. */
static void
break_from(struct ist__group *g, const struct ist_error *err, const struct ist_error *told, uint32_t from, uint32_t but)
{
	bool first, leaving;

	pthread_mutex_lock(&g->lock);
	leaving = g->leaving;
	first = set_broken(g, err);
	if (first && told)
		flood_error(g, IST__ABORT, from, told, but);
	pthread_mutex_unlock(&g->lock);
	if (!first)
		return;
	ist__log(g->ctx, leaving ? 3 : 1, "group \"%s\" rank %u ended: %s: %s", g->name, g->rank, ist_err_name(err->code), err->detail);
	ist__line_abort(g->line, err);
}

void
ist__mesh_break(struct ist__group *g, const struct ist_error *err, bool flood)
{
	break_from(g, err, flood ? err : NULL, g->rank, g->size);
}

static void
lost_from(struct ist__group *g, uint32_t rank, const struct ist_error *err, bool flood, uint32_t but)
{
	struct ist_error e = *err;
	bool news;

	pthread_mutex_lock(&g->lock);
	news = rank < g->size && rank != g->rank && g->gone[rank] == IST__HERE_STILL;
	if (news) {
		g->gone[rank] = err->code == IST_NO_PROGRESS ? IST__GONE_SILENT : IST__GONE_LOST;
		pthread_cond_broadcast(&g->cond);
		if (flood)
			flood_error(g, IST__LOST, rank, err, but);
	} else if (rank == g->rank) {
		ist__given_up(&e, rank, "group");
		g->given_up = true; /* also where the group has ended by what this member saw of the same: it is not waited for */
		news = true;
	}
	pthread_mutex_unlock(&g->lock);
	if (news)
		break_from(g, &e, NULL, rank, but);
}

enum ist__gone
ist__mesh_await_news(struct ist__group *g, uint32_t rank)
{
	int64_t until = ist__now() + NEWS_MS * IST__MS;
	struct timespec at = { .tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000) };
	enum ist__gone how = IST__HERE_STILL;
	int rc = 0;

	pthread_mutex_lock(&g->lock);
	while (rc == 0 && !g->broken_code && !g->closed && rank < g->size && g->gone[rank] == IST__HERE_STILL)
		rc = pthread_cond_timedwait(&g->cond, &g->lock, &at);
	if (rank < g->size)
		how = g->gone[rank];
	pthread_mutex_unlock(&g->lock);
	return how;
}

void
ist__mesh_lost(struct ist__group *g, uint32_t rank, const struct ist_error *err, bool flood)
{
	lost_from(g, rank, err, flood, g->size);
}

static void
lose(struct ist__group *g, uint32_t rank, ist_err code, const char *why)
{
	const struct ist__card *card = &g->members[rank].card;
	struct ist_error e;

	ist_error_init(&e);
	ist__fail(&e, code, "group", "rank %u (%s pid %llu) is lost: %s", rank, card->host, (unsigned long long)card->pid, why);
	ist__fail_rank(&e, rank);
	ist__mesh_lost(g, rank, &e, true);
}

static void
left_from(struct ist__group *g, uint32_t rank, uint32_t but)
{
	pthread_mutex_lock(&g->lock);
	if (rank < g->size && g->gone[rank] == IST__HERE_STILL && rank != g->rank) {
		g->gone[rank] = IST__GONE_LEFT;
		if (!g->left_since)
			g->left_since = ist__now();
		pthread_cond_broadcast(&g->cond);
		ist__mesh_flood(g, IST__LEFT, 0, 0, rank, NULL, 0, but);
	}
	pthread_mutex_unlock(&g->lock);
}

/* ---- receiving ---- */

static void
on_error_frame(struct ist__group *g, struct ist__link *l, const struct ist__msg *m)
{
	struct ist__reader r;
	struct ist_error e, own;

	ist_error_init(&e);
	ist__reader_init(&r, m->body, m->bytes);
	if (!ist__get_error(&r, &e))
		ist__fail(&e, IST_BAD_FORMAT, "group", "rank %u sent an error that can't be read", l->rank);
	if (m->type == IST__LOST) {
		lost_from(g, m->from, &e, true, l->rank);
		return;
	}
	own = e;
	ist__hear_loss(&own, g->rank, "group"); /* somebody's data no longer reach us */
	break_from(g, &own, &e, m->from, l->rank);
}

static void
on_who(struct ist__group *g, struct ist__link *l, const struct ist__msg *m)
{
	struct ist__msg back = { .type = IST__HERE, .flags = IST__FRAME_URGENT, .seq = m->seq, .generation = g->generation, .from = g->rank, .to = m->from };
	uint8_t body[IST__FAR_BYTES];

	pthread_mutex_lock(&g->lock);
	if (m->from < g->size && m->from != g->rank && g->who_seen[m->from] < m->seq) {
		g->who_seen[m->from] = m->seq;
		ist__mark_put(g, body);
		ist__mesh_flood(g, IST__WHO, IST__FRAME_URGENT, m->seq, m->from, NULL, 0, l->rank);
		ist__mesh_send(g, &back, body, sizeof(body));
	}
	pthread_mutex_unlock(&g->lock);
}

static void
on_here(struct ist__group *g, const struct ist__msg *m)
{
	if (m->from >= g->size || m->bytes < 16)
		return;
	pthread_mutex_lock(&g->lock);
	g->here[m->from] = (struct ist__here){ .round = m->seq, .op = ist__load_u64(m->body), .coll = ist__load_u64(m->body + 8) };
	ist__mark_take(g, m->from, m->body, m->bytes);
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->lock);
}

/* There is something new on the board. */
static void
on_bell(struct ist__group *g)
{
	pthread_mutex_lock(&g->lock);
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->lock);
	ist__line_nudge(g->line);
}

/* For us, whole. */
static void
on_message(struct ist__group *g, struct ist__link *l, struct ist__msg *m)
{
	switch (m->type) {
	case IST__LOST:
	case IST__ABORT: on_error_frame(g, l, m); break;
	case IST__LEFT: left_from(g, m->from, l->rank); break;
	case IST__WHO: on_who(g, l, m); break;
	case IST__HERE: on_here(g, m); break;
	case IST__CHECK: ist__check_take(g, m); break;
	case IST__BELL: on_bell(g); break;
	case IST__CANT: ist__split_take(g, m); break;
	case IST__HELD:
	case IST__HELD_ASK:
		pthread_mutex_lock(&g->lock);
		ist__decide_take(g, m);
		pthread_mutex_unlock(&g->lock);
		break;
	case IST__BARRIER:
	case IST__BROADCAST:
	case IST__GATHER:
	case IST__ALL_GATHER:
	case IST__SEND:
	case IST__VOTE:
		pthread_mutex_lock(&g->lock);
		ist__objects_take(g, m);
		pthread_mutex_unlock(&g->lock);
		pthread_cond_broadcast(&g->cond); /* not under the lock, which the woken one would run into */
		return; /* kept */
	default:
		if (m->flags & IST__FRAME_CRITICAL) {
			struct ist_error e;

			ist_error_init(&e);
			ist__fail(&e, IST_VERSION_MISMATCH, "group", "rank %u sent a critical frame of type %u, which this library does not know", l->rank, m->type);
			ist__fail_rank(&e, l->rank);
			ist__mesh_break(g, &e, true);
		}
		break;
	}
	ist__msg_free(g->loop, m);
}

/* What gathers carries the strings of several members, each of which may be as long as one. */
static uint64_t
message_max(const struct ist__group *g, uint16_t type)
{
	uint64_t strings = type == IST__GATHER || type == IST__ALL_GATHER ? g->size : 1;

	return strings * IST_OBJECT_BYTES_MAX + 65536;
}

static void
on_frame(struct ist__conn *conn, void *owner, struct ist__frame *f)
{
	struct ist__link *l = owner;
	struct ist__group *g = l->group;
	struct ist__msg *m;
	struct ist_error e;

	if (f->generation != g->generation) { /* of an earlier group on this connection, or a forged one */
		ist__frame_free(g->loop, f);
		return;
	}
	if (f->type == IST__PING) {
		pthread_mutex_lock(&g->lock);
		ist__mark_take(g, l->rank, f->body, f->bytes);
		pthread_mutex_unlock(&g->lock);
		ist__frame_free(g->loop, f);
		return;
	}
	if (f->type == IST__LANE) {
		ist__lane_take(g, conn, f);
		return;
	}
	if (f->to != g->rank && f->to != IST__ALL) {
		struct ist__link *next;

		pthread_mutex_lock(&g->lock);
		next = f->to < g->size ? way_to(g, f->to) : NULL;
		if (next && next != l) {
			g->messages++;
			ist__conn_send(next->conn, f);
		} else {
			ist__frame_free(g->loop, f);
		}
		pthread_mutex_unlock(&g->lock);
		return;
	}
	ist_error_init(&e);
	if (ist__msg_take(g->loop, &l->partials, f, message_max(g, f->type), &m, &e)) {
		ist__fail_rank(&e, e.code == IST_NO_MEMORY ? g->rank : l->rank);
		ist__mesh_break(g, &e, true);
	} else if (m)
		on_message(g, l, m);
}

/* A connection ended for a reason of ours: no memory, no descriptors. The other side is not to blame. */
static void
own_end(struct ist__group *g, const struct ist_error *err)
{
	struct ist_error e;

	ist_error_init(&e);
	ist__fail(&e, err->code, "group", "rank %u had to give up a connection: %s", g->rank, err->detail);
	ist__fail_rank(&e, g->rank);
	ist__mesh_break(g, &e, true);
}

/* The kernel gave the connection up: the process at its other end may live. Where that has ended, its kernel says so. */
static bool
fell_silent(const struct ist_error *err)
{
	return err->sys == ETIMEDOUT || err->sys == EHOSTUNREACH || err->sys == ENETUNREACH;
}

static void
on_closed(struct ist__conn *conn, void *owner, const struct ist_error *err)
{
	struct ist__link *l = owner;
	struct ist__group *g = l->group;
	bool expected;

	pthread_mutex_lock(&g->lock);
	l->conn = NULL;
	g->starved |= err->code == IST_NO_MEMORY;
	pthread_cond_broadcast(&g->cond); /* who waits for last words knows that none come */
	expected = g->gone[l->rank] != IST__HERE_STILL || g->leaving;
	pthread_mutex_unlock(&g->lock);
	ist__conn_close(conn, false);
	if (expected)
		return;
	if (ist__fail_is_own(err->code))
		own_end(g, err);
	else
		lose(g, l->rank, fell_silent(err) ? IST_NO_PROGRESS : IST_PEER_LOST, err->detail);
}

const struct ist__conn_ops ist__link_ops = { .frame = on_frame, .closed = on_closed };

/* ---- time ---- */

static void
beat(struct ist__group *g, int64_t now)
{
	int64_t every = g->no_progress_ns / 6;
	uint8_t body[IST__FAR_BYTES];

	if (every > 1000 * IST__MS || g->no_progress_ns < 0)
		every = 1000 * IST__MS;
	if (every < 20 * IST__MS)
		every = 20 * IST__MS;
	pthread_mutex_lock(&g->lock);
	ist__mark_put(g, body);
	for (uint32_t i = 0; i < g->n_links; i++) {
		struct ist__link *l = &g->links[i];
		struct ist__msg head = { .type = IST__PING, .flags = IST__FRAME_URGENT, .generation = g->generation, .from = g->rank, .to = l->rank };

		if (!l->conn || now - l->sent < every || ist__conn_queued(l->conn) > 0)
			continue;
		l->sent = now;
		ist__msg_try(l->conn, &head, body, sizeof(body));
	}
	pthread_mutex_unlock(&g->lock);
}

/* Somebody who was stopped heard nothing, which says nothing about the others: what they said is still in the sockets, and
 * they may have been stopped as well. They get the whole time again. */
static void
look_at_self(struct ist__group *g, int64_t now)
{
	if (now - g->ticked_at > STOOD_STILL_MS * IST__MS)
		g->awake_since = now;
	g->ticked_at = now;
}

static void
look_for_silence(struct ist__group *g, int64_t now)
{
	for (uint32_t i = 0; i < g->n_links && g->no_progress_ns > 0; i++) {
		struct ist__link *l = &g->links[i];
		int64_t heard = l->conn ? ist__conn_heard(l->conn) : now;
		int64_t silent = now - (heard > g->awake_since ? heard : g->awake_since);
		char why[96];

		if (silent <= g->no_progress_ns || g->gone[l->rank] != IST__HERE_STILL)
			continue;
		snprintf(why, sizeof(why), "nothing was heard from it for %.1f s", (double)silent / 1e9);
		lose(g, l->rank, IST_NO_PROGRESS, why);
	}
}

static void
look_at(struct ist__group *g, uint32_t r)
{
	if (r == g->rank || g->members[r].host != g->members[g->rank].host || g->gone[r] != IST__HERE_STILL)
		return;
	if (ist__life_look(g->life, g->members[r].slot) == IST__ALIVE_DEAD)
		lose(g, r, IST_PEER_LOST, "the process has died");
}

void
ist__mesh_look(struct ist__group *g)
{
	for (uint32_t r = 0; g->life && r < g->size; r++)
		look_at(g, r);
}

/* At each tick. Of many all looking at all would be the load: each looks at its neighbours, and at some of the others. */
static void
glance(struct ist__group *g)
{
	if (g->n_same_host <= WATCH_ALL) {
		ist__mesh_look(g);
		return;
	}
	for (uint32_t i = 0; g->life && i < g->n_links; i++)
		look_at(g, g->links[i].rank);
	for (uint32_t i = 0; g->life && i < GLANCE; i++, g->glance = (g->glance + 1) % g->size)
		look_at(g, g->glance);
}

/* A member left in good order, and an operation needs it. What it sent may still be on its way; when nothing moves any
 * more, the operation ends. */
static void
look_for_left(struct ist__group *g, int64_t now)
{
	uint64_t moved = 0;
	uint32_t r = g->left_since && !g->broken_code ? ist__line_needs(g->line, g->gone) : IST_NO_RANK;
	struct ist_error e;

	ist__line_is_busy(g->line, &moved);
	if (r == IST_NO_RANK || moved != g->moved_seen) {
		g->moved_seen = moved;
		if (g->left_since)
			g->left_since = now;
		return;
	}
	if (now - g->left_since < LEFT_MS * IST__MS)
		return;
	ist_error_init(&e);
	ist__fail(&e, IST_PEER_LEFT, "group", "rank %u has left, and the operation under way needs it", r);
	ist__fail_rank(&e, r);
	ist__mesh_break(g, &e, true);
}

static void
on_tick(struct ist__timer *timer)
{
	struct ist__group *g = (struct ist__group *)(void *)((char *)timer - offsetof(struct ist__group, tick));
	int64_t now = ist__now();
	uint64_t moved = 0;
	bool busy;

	look_at_self(g, now);
	glance(g);
	look_for_silence(g, now);
	look_for_left(g, now);
	beat(g, now);
	ist__line_watch(g->line);
	pthread_mutex_lock(&g->lock);
	busy = g->waiters > 0;
	pthread_mutex_unlock(&g->lock);
	busy |= ist__line_is_busy(g->line, &moved);
	ist__timer_set(g->loop, &g->tick, now + (g->life && !ist__keeper_waits(ist__groups_keeper(g->groups)) ? LOOK_MS : busy ? BUSY_MS : IDLE_MS) * IST__MS);
}

/* Who claims, from what stands behind the rank in a claim. */
static bool
claimant_get(struct ist__reader *r, struct ist__card *card)
{
	char backend[256];

	ist__get_bytes(r, 4 * sizeof(uint32_t) + sizeof(uint64_t)); /* size, transport, mem, device, bucket */
	ist__get_str(r, backend, sizeof(backend));
	return ist__card_get(r, card);
}

bool
ist__mesh_is_over(struct ist__group *g)
{
	uint32_t here = 0;
	bool over;

	pthread_mutex_lock(&g->lock);
	for (uint32_t r = 0; r < g->size; r++)
		here += g->gone[r] == IST__HERE_STILL;
	over = g->broken_code || (g->size > 1 && here <= 1);
	pthread_mutex_unlock(&g->lock);
	return over;
}

/* Late claimants of a rank that is held: they are told by whom. An early one of the next group of that name waits, since
 * the holder has left or will. */
static bool
take_claimant(struct ist__expect *expect, struct ist__conn *conn, struct ist__frame *f)
{
	struct ist__group *g = (struct ist__group *)(void *)((char *)expect - offsetof(struct ist__group, expect));
	const struct ist__card *card;
	struct ist__card second;
	struct ist__reader r;
	struct ist__writer w;
	struct ist__msg head = { .type = IST__FAIL };
	struct ist_error e;
	char name[256];
	uint32_t rank;

	if (f->type != IST__JOIN || f->bytes < IST__GROUP_KEY || memcmp(f->body, g->key, IST__GROUP_KEY) != 0)
		return false;
	ist__reader_init(&r, f->body + IST__GROUP_KEY, f->bytes - IST__GROUP_KEY);
	ist__get_str(&r, name, sizeof(name));
	rank = ist__get_u32(&r);
	if (r.bad || rank >= g->size || ist__mesh_is_over(g) || g->gone[rank] != IST__HERE_STILL)
		return false;
	card = &g->members[rank].card;
	if (!memcmp(ist__conn_agreed(conn)->peer.member, card->id, IST__MEMBER_BYTES))
		return false; /* the holder itself: it wants the next one */
	if (g->life && g->members[rank].host == g->members[g->rank].host && ist__life_look(g->life, g->members[rank].slot) != IST__ALIVE_YES)
		return false;
	ist_error_init(&e);
	ist__fail(&e, IST_CONFLICT, "group_new", "rank %u of group \"%s\" is held by host %s pid %llu", rank, g->name, card->host, (unsigned long long)card->pid);
	if (claimant_get(&r, &second))
		ist__fail_suffix(&e, "; host %s pid %llu claims it too", second.host, (unsigned long long)second.pid);
	ist__fail_rank(&e, rank);
	ist__writer_init_slab(&w, ist__loop_slab(g->loop));
	ist__put_error(&w, &e);
	if (!w.bad)
		ist__msg_send(conn, &head, w.at, w.bytes);
	ist__writer_fini(&w);
	ist__frame_free(g->loop, f);
	ist__conn_close(conn, true);
	return true;
}

static void
start_here(void *arg)
{
	struct ist__group *g = arg;

	g->tick.on = on_tick;
	g->ticked_at = g->awake_since = ist__now(); /* nobody owed us a heartbeat before; forming may have taken long */
	ist__timer_set(g->loop, &g->tick, ist__now() + IDLE_MS * IST__MS);
}

/* All of this host are watched where they are few; of many each watches its neighbours, and the news is flooded. */
static void
watch_host(struct ist__group *g)
{
	struct ist__watched *w = ist__alloc(ist__env_ctx(g->env), (g->n_same_host + 1) * sizeof(*w));
	uint32_t n = 0;

	for (uint32_t r = 0; w && r < g->size; r++)
		if (r != g->rank && g->members[r].host == g->members[g->rank].host && (g->n_same_host <= WATCH_ALL || g->link_of[r] >= 0)) {
			w[n].slot = g->members[r].slot;
			w[n++].who = ist__load_u64(g->members[r].card.id);
		}
	if (w)
		g->vigil = ist__life_watch(g->life, w, n); /* without memory the tick alone looks */
	ist__life_held(g->life, &g->life_memory, &g->life_shared);
	g->life_memory += ist__vigil_memory(g->vigil);
}

void
ist__mesh_start(struct ist__group *g)
{
	if (g->life)
		watch_host(g);
	ist__loop_run(g->loop, start_here, g);
	if (g->rank == 0) {
		g->expect.take = take_claimant;
		ist__ep_expect(g->ep, &g->expect);
	}
}

static void
stop_here(void *arg)
{
	struct ist__group *g = arg;

	ist__timer_stop(&g->tick);
	pthread_mutex_lock(&g->lock);
	/* also of a group that has ended: a vote under way elsewhere has to know that this member gave none, and lives */
	ist__mesh_flood(g, IST__LEFT, 0, 0, g->rank, NULL, 0, g->size);
	pthread_mutex_unlock(&g->lock);
	for (uint32_t i = 0; i < g->n_links; i++) {
		struct ist__conn *conn;

		pthread_mutex_lock(&g->lock);
		conn = g->links[i].conn;
		g->links[i].conn = NULL;
		pthread_mutex_unlock(&g->lock);
		ist__conn_close(conn, true);
	}
}

void
ist__mesh_stop(struct ist__group *g)
{
	if (g->expect.take)
		ist__ep_unexpect(g->ep, &g->expect);
	ist__loop_settle(g->loop); /* we may be on somebody's way to another */
	ist__loop_run(g->loop, stop_here, g);
}

/* ---- who is behind ---- */

void
ist__mesh_ask(struct ist__group *g, int64_t for_ns)
{
	int64_t until = ist__now() + for_ns;
	struct timespec at = { .tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000) };
	uint32_t open;
	int rc = 0;

	g->who_round++;
	ist__mesh_flood(g, IST__WHO, IST__FRAME_URGENT, g->who_round, g->rank, NULL, 0, g->size);
	do {
		open = 0;
		for (uint32_t r = 0; r < g->size; r++)
			open += r != g->rank && g->gone[r] == IST__HERE_STILL && g->here[r].round != g->who_round;
		if (open > 0)
			rc = pthread_cond_timedwait(&g->cond, &g->lock, &at);
	} while (open > 0 && rc == 0 && !g->closed && !g->broken_code);
}

void
ist__mesh_name_absent(struct ist__group *g, uint64_t op, uint64_t coll, struct ist_error *err)
{
	pthread_mutex_lock(&g->lock);
	ist__mesh_ask(g, WHO_MS * IST__MS);
	for (uint32_t r = 0; r < g->size; r++)
		if (r != g->rank && (g->here[r].round != g->who_round || g->here[r].op < op || g->here[r].coll < coll))
			ist__fail_rank(err, r);
	pthread_mutex_unlock(&g->lock);
}
