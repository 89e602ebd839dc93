/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_names.h"

#include "fake_group.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/fail.h"
#include "ckpt/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOLD_ROOM = 1 << 16, CHILDREN = 16 };

/* One exchange or vote. */
struct round {
	struct round *next;
	uint64_t seq;
	void *addr[FAKE_RANKS];
	uint64_t bytes[FAKE_RANKS];
	struct ist_error votes[FAKE_RANKS];
	uint32_t in;
	bool have[FAKE_RANKS];
	bool cut; /* only some hear the result */
};

/* One broadcast. */
struct cast {
	struct cast *next;
	uint64_t seq, bytes;
	const uint8_t *src;
	bool posted;
	int64_t ready_at;
	uint32_t takers;
	uint32_t gone; /* receivers that need the source no more */
};

struct memory {
	struct memory *next;
	void *addr;
};

struct fake_world {
	pthread_mutex_t *lock;     /* shared by a world and its children */
	pthread_cond_t *cond;
	struct fake_world *top;    /* where the faults are */
	struct fake_faults faults;
	uint32_t size;
	uint32_t rank_in_top[FAKE_RANKS];
	bool dead[FAKE_RANKS];     /* in top only, by rank in top */
	bool broken;
	struct round *rounds, *votes;
	struct cast *casts;
	uint64_t broadcasts[FAKE_RANKS], gathers[FAKE_RANKS], decides[FAKE_RANKS];
	uint64_t fault_casts[FAKE_RANKS], fault_gathers[FAKE_RANKS], fault_votes[FAKE_RANKS]; /* top: since calm */
	uint64_t bytes_taken;
	uint64_t bytes;
	int64_t channel_free_at;
	char *told[FAKE_RANKS];
	uint64_t marks[FAKE_RANKS][IST_MARK_WORDS];
	struct memory *memory;     /* top: what group_alloc gave; lives as long as the world, since views may be held */
	/* children under way of being made */
	struct fake_world *children[CHILDREN];
	uint32_t n_children;
	char child_name[256];
	uint32_t joined;
};

struct ist_group {
	struct ist__handle handle;
	struct fake_world *world;
	uint32_t rank;
};

struct ist_req {
	struct ist_group *group;
	struct cast *cast;
	uint8_t *dst;
	uint64_t bytes, fault_seq;
	bool idle;
	bool root, view, done;
	void *lent; /* a private copy with a flipped byte */
	ist_err result;
};

static struct fake_world *
world_new(uint32_t size, struct fake_world *top)
{
	struct fake_world *w = calloc(1, sizeof(*w));

	w->size = size;
	w->top = top ? top : w;
	if (top) {
		w->lock = top->lock;
		w->cond = top->cond;
		return w;
	}
	w->lock = calloc(1, sizeof(*w->lock));
	w->cond = calloc(1, sizeof(*w->cond));
	pthread_mutex_init(w->lock, NULL);
	pthread_cond_init(w->cond, NULL);
	for (uint32_t i = 0; i < FAKE_RANKS; i++) {
		w->told[i] = calloc(1, TOLD_ROOM);
		w->rank_in_top[i] = i;
	}
	fake_world_calm(w);
	return w;
}

struct fake_world *
fake_world_new(uint32_t size)
{
	return world_new(size, NULL);
}

static void
free_rounds(struct round *r)
{
	while (r) {
		struct round *next = r->next;

		for (uint32_t i = 0; i < FAKE_RANKS; i++)
			free(r->addr[i]);
		free(r);
		r = next;
	}
}

static void
world_fini(struct fake_world *w)
{
	for (uint32_t i = 0; i < w->n_children; i++) {
		world_fini(w->children[i]);
		free(w->children[i]);
	}
	free_rounds(w->rounds);
	free_rounds(w->votes);
	while (w->casts) {
		struct cast *next = w->casts->next;

		free(w->casts);
		w->casts = next;
	}
}

void
fake_world_free(struct fake_world *world)
{
	world_fini(world);
	while (world->memory) {
		struct memory *next = world->memory->next;

		free(world->memory->addr);
		free(world->memory);
		world->memory = next;
	}
	for (uint32_t i = 0; i < FAKE_RANKS; i++)
		free(world->told[i]);
	free(world->lock);
	free(world->cond);
	free(world);
}

struct fake_faults *
fake_world_faults(struct fake_world *world)
{
	return &world->faults;
}

void
fake_world_calm(struct fake_world *w)
{
	w->faults = (struct fake_faults){ .flip_at = FAKE_NEVER, .kill_at = FAKE_NEVER, .kill_gather = FAKE_NEVER, .kill_vote = FAKE_NEVER };
	memset(w->fault_casts, 0, sizeof(w->fault_casts));
	memset(w->fault_gathers, 0, sizeof(w->fault_gathers));
	memset(w->fault_votes, 0, sizeof(w->fault_votes));
	w->bytes = w->bytes_taken = 0;
}

uint64_t
fake_world_broadcasts(struct fake_world *world)
{
	return world->fault_casts[0];
}

uint64_t
fake_world_gathers(struct fake_world *world)
{
	return world->fault_gathers[0];
}

uint64_t
fake_world_taken(struct fake_world *world)
{
	return world->bytes_taken;
}

uint64_t
fake_world_bytes(struct fake_world *world)
{
	return world->bytes;
}

const char *
fake_world_told(struct fake_world *world, uint32_t rank)
{
	return world->told[rank];
}

bool
fake_world_dead(struct fake_world *world, uint32_t rank)
{
	bool dead;

	pthread_mutex_lock(world->lock);
	dead = world->dead[rank];
	pthread_mutex_unlock(world->lock);
	return dead;
}

struct ist_group *
fake_group_new(struct ist_env *env, struct fake_world *world, uint32_t rank)
{
	struct ist_group *g = ist__handle_new(env, IST__GROUP, sizeof(*g));

	g->world = world;
	g->rank = rank;
	return g;
}

/* ---- under the lock ---- */

static uint32_t
top_rank(const struct ist_group *g)
{
	return g->world->rank_in_top[g->rank];
}

static void
look_for_dead(struct fake_world *w)
{
	for (uint32_t i = 0; i < w->size; i++)
		if (w->top->dead[w->rank_in_top[i]])
			__atomic_store_n(&w->broken, true, __ATOMIC_RELAXED);
}

static ist_err
fail_lost(struct ist_group *g, struct ist_error *err)
{
	struct fake_world *w = g->world;

	bool lost = false;

	for (uint32_t i = 0; i < w->size; i++)
		lost = lost || w->top->dead[w->rank_in_top[i]];
	if (!lost)
		return ist__fail(err, IST_ABORTED, "fake", "half an operation was given up");
	ist__fail(err, IST_PEER_LOST, "fake", "a member is gone");
	for (uint32_t i = 0; i < w->size; i++)
		if (w->top->dead[w->rank_in_top[i]])
			ist__fail_rank(err, i);
	return IST_PEER_LOST;
}

static void
die(struct ist_group *g)
{
	g->world->top->dead[top_rank(g)] = true;
	look_for_dead(g->world);
	pthread_cond_broadcast(g->world->cond);
}

/* False at the deadline. May come back early. */
static bool
wait_on(struct fake_world *w, int64_t deadline)
{
	struct timespec at;
	int64_t now = ist__now();

	if (now >= deadline)
		return false;
	clock_gettime(CLOCK_REALTIME, &at);
	at.tv_nsec += deadline - now < 20 * IST__MS ? deadline - now : 20 * IST__MS;
	if (at.tv_nsec >= 1000000000) {
		at.tv_sec++;
		at.tv_nsec -= 1000000000;
	}
	pthread_cond_timedwait(w->cond, w->lock, &at);
	look_for_dead(w);
	return true;
}

static struct round *
round_at(struct round **list, uint64_t seq)
{
	struct round *r;

	while (*list && (*list)->seq != seq)
		list = &(*list)->next;
	if (*list)
		return *list;
	r = calloc(1, sizeof(*r));
	r->seq = seq;
	*list = r;
	return r;
}

static struct cast *
cast_at(struct fake_world *w, uint64_t seq)
{
	struct cast **list = &w->casts, *c;

	while (*list && (*list)->seq != seq)
		list = &(*list)->next;
	if (*list)
		return *list;
	c = calloc(1, sizeof(*c));
	c->seq = seq;
	*list = c;
	return c;
}

/* ---- the group ---- */

ist_err
ist_group_info(struct ist_group *group, struct ist_group_info *out, struct ist_error *err)
{
	ist_err e = ist__handle_check(group, IST__GROUP, "fake", err);

	if (e)
		return e;
	*out = (struct ist_group_info){
		.struct_size = sizeof(*out),
		.rank = group->rank,
		.size = group->world->size,
		.broken = __atomic_load_n(&group->world->broken, __ATOMIC_RELAXED) ? IST_PEER_LOST : 0,
		.name = "fake",
		.backend = "fake",
		.timeout_ns = 20 * IST_NS_PER_S,
		.no_progress_ns = 20 * IST_NS_PER_S,
		.takers = !group->world->top->faults.all_take,
	};
	return IST_OK;
}

ist_err
ist_group_alloc(struct ist_group *group, uint64_t bytes, uint32_t mem, int32_t device, void **out, struct ist_error *err)
{
	(void)mem, (void)device;
	if (group->world->top->faults.no_memory)
		return ist__fail(err, IST_UNSUPPORTED, "fake", "no memory of its own");
	struct fake_world *top = group->world->top;
	struct memory *m = calloc(1, sizeof(*m));

	m->addr = malloc(bytes);
	pthread_mutex_lock(top->lock);
	m->next = top->memory;
	top->memory = m;
	pthread_mutex_unlock(top->lock);
	*out = m->addr;
	return IST_OK;
}

ist_err
ist_group_alloc_free(struct ist_group *group, void *addr)
{
	(void)group, (void)addr;
	return IST_OK;
}

ist_err
ist_group_tell(struct ist_group *group, const char *state, uint64_t version, uint64_t to, uint64_t serves)
{
	struct fake_world *w = group->world;
	char *told;
	size_t n;

	(void)serves;
	pthread_mutex_lock(w->lock);
	told = w->top->told[top_rank(group)];
	n = strlen(told);
	if (to)
		snprintf(told + n, TOLD_ROOM - n, "%s %llu->%llu;", state, (unsigned long long)version, (unsigned long long)to);
	else
		snprintf(told + n, TOLD_ROOM - n, "%s %llu;", state, (unsigned long long)version);
	pthread_mutex_unlock(w->lock);
	return IST_OK;
}

ist_err
ist_group_mark(struct ist_group *group, const uint64_t *words)
{
	struct fake_world *w = group->world;

	pthread_mutex_lock(w->lock);
	memcpy(w->marks[group->rank], words, sizeof(w->marks[group->rank]));
	pthread_mutex_unlock(w->lock);
	return IST_OK;
}

ist_err
ist_group_marks(struct ist_group *group, int64_t ask_ns, uint64_t *words, uint8_t *known, struct ist_error *err)
{
	struct fake_world *w = group->world;

	(void)err;
	pthread_mutex_lock(w->lock);
	for (uint32_t i = 0; i < w->size; i++) {
		bool asked = ask_ns > 0 && !w->top->dead[w->rank_in_top[i]];

		memcpy(words + (uint64_t)i * IST_MARK_WORDS, w->marks[i], sizeof(w->marks[i]));
		known[i] = asked ? IST_MARK_NOW : IST_MARK_ONCE;
	}
	pthread_mutex_unlock(w->lock);
	return IST_OK;
}

/* It is as good as dead. */
ist_err
ist_group_evict(struct ist_group *group, uint32_t rank, const struct ist_error *why, struct ist_error *err)
{
	struct fake_world *w = group->world;

	(void)why, (void)err;
	pthread_mutex_lock(w->lock);
	w->top->dead[w->rank_in_top[rank]] = true;
	look_for_dead(w);
	pthread_cond_broadcast(w->cond);
	pthread_mutex_unlock(w->lock);
	return IST_OK;
}

ist_err
ist_group_lost(struct ist_group *group, uint32_t *ranks, uint32_t *n, struct ist_error *err)
{
	struct fake_world *w = group->world;
	uint32_t room = *n, count = 0;

	(void)err;
	pthread_mutex_lock(w->lock);
	for (uint32_t i = 0; i < w->size; i++)
		if (w->top->dead[w->rank_in_top[i]] && count < room)
			ranks[count++] = i;
	pthread_mutex_unlock(w->lock);
	*n = count;
	return IST_OK;
}

ist_err
ist_group_free(struct ist_group *group)
{
	if (!ist__handle_kill(group, IST__GROUP))
		return IST_BAD_HANDLE;
	ist__handle_bury(group);
	return IST_OK;
}

ist_err
ist_group_split(struct ist_group *group, const struct ist_split_args *args, struct ist_group **out, struct ist_error *err)
{
	struct fake_world *w = group->world, *child = NULL;
	int64_t deadline = ist__deadline(args->timeout_ns, 20 * IST_NS_PER_S);
	uint32_t mine = UINT32_MAX;
	ist_err e = IST_OK;

	pthread_mutex_lock(w->lock);
	for (uint32_t i = 0; i < w->n_children && !child; i++) {
		struct fake_world *c = w->children[i];
		bool same = c->size == args->n_ranks && !strcmp(c->child_name, args->name);

		for (uint32_t k = 0; same && k < c->size; k++)
			same = c->rank_in_top[k] == w->rank_in_top[args->ranks[k]];
		if (same)
			child = c;
	}
	if (!child) {
		child = world_new(args->n_ranks, w->top);
		snprintf(child->child_name, sizeof(child->child_name), "%s", args->name);
		for (uint32_t k = 0; k < child->size; k++)
			child->rank_in_top[k] = w->rank_in_top[args->ranks[k]];
		w->children[w->n_children++] = child;
	}
	for (uint32_t k = 0; k < args->n_ranks; k++)
		if (args->ranks[k] == group->rank)
			mine = k;
	child->joined++;
	pthread_cond_broadcast(w->cond);
	while (child->joined < child->size && !child->broken && wait_on(child, deadline))
		;
	if (mine == UINT32_MAX) {
		e = ist__fail(err, IST_NOT_MEMBER, "fake", "not in the list");
	} else if (child->joined < child->size) {
		child->joined--;
		e = child->broken ? fail_lost(group, err) : ist__fail(err, IST_TIMEOUT, "fake", "split");
	}
	pthread_mutex_unlock(w->lock);
	if (!e)
		*out = fake_group_new(group->handle.env, child, mine);
	return e;
}

/* ---- exchanges ---- */

static ist_err
meet(struct ist_group *g, struct round *r, int64_t deadline, struct ist_error *err)
{
	struct fake_world *w = g->world;

	r->have[g->rank] = true;
	r->in++;
	pthread_cond_broadcast(w->cond);
	while (r->in < w->size && !w->broken)
		if (!wait_on(w, deadline))
			return ist__fail(err, IST_TIMEOUT, "fake", "exchange %llu", (unsigned long long)r->seq);
	return r->in < w->size ? fail_lost(g, err) : IST_OK;
}

static bool
told_are_under_way(const struct fake_world *w)
{
	for (uint32_t i = 0; i < w->size; i++)
		if (w->top->faults.kill_told >> w->rank_in_top[i] & 1 && w->top->fault_casts[w->rank_in_top[i]] < 2 &&
		    w->top->fault_gathers[w->rank_in_top[i]] < w->top->faults.kill_gather + 2)
			return false;
	return true;
}

/* The last act of one that dies when some have heard of it and gone on. */
static void
die_half_heard(struct ist_group *g, const void *addr, uint64_t bytes, int64_t deadline)
{
	struct fake_world *w = g->world;
	struct round *r = round_at(&w->rounds, w->gathers[g->rank]);

	r->addr[g->rank] = malloc(bytes + 1);
	memcpy(r->addr[g->rank], addr, bytes);
	r->bytes[g->rank] = bytes;
	r->cut = true;
	(void)meet(g, r, deadline, NULL);
	while (!told_are_under_way(w) && wait_on(w, deadline))
		;
	die(g);
}

/* After a full round: is its result for this member? */
static ist_err
hear(struct ist_group *g, const struct round *r, int64_t deadline, struct ist_error *err)
{
	struct fake_world *w = g->world;

	if (!r->cut || w->top->faults.kill_told >> top_rank(g) & 1)
		return IST_OK;
	while (!w->broken && wait_on(w, deadline))
		;
	return fail_lost(g, err);
}

ist_err
ist_all_gather_bytes(
	struct ist_group *group, const void *addr, uint64_t bytes, int64_t timeout_ns, struct ist_blob *out, struct ist_error *err)
{
	struct fake_world *w = group->world;
	int64_t deadline = ist__deadline(timeout_ns, 20 * IST_NS_PER_S);
	uint32_t me = group->rank, top = top_rank(group);
	struct round *r;
	ist_err e;

	pthread_mutex_lock(w->lock);
	if (top == w->top->faults.kill_rank && w->top->fault_gathers[top] == w->top->faults.kill_gather) {
		if (w->top->faults.kill_told)
			die_half_heard(group, addr, bytes, deadline);
		else
			die(group);
	}
	w->top->fault_gathers[top]++;
	if (w->broken || w->top->dead[top]) {
		e = fail_lost(group, err);
		pthread_mutex_unlock(w->lock);
		return e;
	}
	r = round_at(&w->rounds, w->gathers[me]++);
	r->addr[me] = malloc(bytes + 1);
	if (bytes)
		memcpy(r->addr[me], addr, bytes);
	r->bytes[me] = bytes;
	e = meet(group, r, deadline, err);
	if (!e)
		e = hear(group, r, deadline, err);
	for (uint32_t i = 0; !e && i < w->size; i++) {
		out[i].addr = malloc(r->bytes[i] + 1);
		memcpy(out[i].addr, r->addr[i], r->bytes[i]);
		out[i].bytes = r->bytes[i];
	}
	pthread_mutex_unlock(w->lock);
	return e;
}

void
ist_blobs_free(struct ist_group *group, struct ist_blob *blobs, uint64_t n)
{
	(void)group;
	for (uint64_t i = 0; i < n; i++) {
		free(blobs[i].addr);
		blobs[i] = (struct ist_blob){ NULL, 0 };
	}
}

ist_err
ist_decide(struct ist_group *group, const struct ist_error *vote, int64_t timeout_ns, uint32_t *doubt, struct ist_error *err)
{
	struct fake_world *w = group->world;
	int64_t deadline = ist__deadline(timeout_ns, 20 * IST_NS_PER_S);
	uint32_t me = group->rank, top = top_rank(group);
	struct round *r;
	ist_err e;

	*doubt = 0;
	pthread_mutex_lock(w->lock);
	r = round_at(&w->votes, w->decides[me]++);
	if (top == w->top->faults.kill_rank && w->top->fault_votes[top] == w->top->faults.kill_vote) {
		if (w->top->faults.kill_heard) {
			r->have[me] = true;
			r->in++;
		}
		die(group);
	}
	w->top->fault_votes[top]++;
	if (w->top->dead[top]) {
		e = fail_lost(group, err);
		pthread_mutex_unlock(w->lock);
		return e;
	}
	if (vote)
		r->votes[me] = *vote;
	r->have[me] = true;
	r->in++;
	pthread_cond_broadcast(w->cond);
	e = IST_OK;
	/* a member that is gone has voted, or never will */
	for (;;) {
		uint32_t open = 0, never = 0;

		for (uint32_t i = 0; i < w->size; i++)
			if (!r->have[i]) {
				open++;
				never += w->top->dead[w->rank_in_top[i]];
			}
		if (open == never) {
			if (never)
				e = fail_lost(group, err);
			break;
		}
		if (!wait_on(w, deadline)) {
			e = ist__fail(err, IST_TIMEOUT, "fake", "vote");
			break;
		}
	}
	for (uint32_t i = 0; !e && i < w->size; i++)
		if (r->votes[i].code) {
			if (err)
				ist__error_copy(err, &r->votes[i]);
			e = r->votes[i].code;
		}
	pthread_mutex_unlock(w->lock);
	return e;
}

/* ---- broadcasts ---- */

static bool
takes(const struct fake_world *w, const struct ist_coll_args *args, uint32_t rank)
{
	return w->top->faults.all_take || !args->takers || args->takers[rank / 64] >> (rank % 64) & 1;
}

ist_err
ist_broadcast(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err)
{
	struct fake_world *w = group->world;
	uint32_t me = group->rank, top = top_rank(group);
	struct ist_req *req;
	ist_err e;

	pthread_mutex_lock(w->lock);
	if (top == w->top->faults.kill_rank && w->top->fault_casts[top] == w->top->faults.kill_at)
		die(group);
	if (w->broken || w->top->dead[top]) {
		e = fail_lost(group, err);
		pthread_mutex_unlock(w->lock);
		return e;
	}
	req = calloc(1, sizeof(*req));
	req->fault_seq = w->top->fault_casts[top]++;
	req->group = group;
	req->cast = cast_at(w, w->broadcasts[me]++);
	req->root = args->peer == me;
	req->view = args->flags & IST_OP_VIEW;
	req->dst = args->dst.addr;
	req->bytes = req->root ? args->src.bytes : args->dst.bytes;
	req->idle = req->done = !req->root && !takes(w, args, me); /* has no part in it, and no bytes */
	if (req->root) {
		for (uint32_t i = 0; i < w->size; i++)
			req->cast->takers += i != me && takes(w, args, i);
		w->top->bytes_taken += req->bytes * req->cast->takers;
		req->cast->src = args->src.addr;
		req->cast->bytes = req->bytes;
		req->cast->posted = true;
		req->cast->ready_at = ist__now() > w->channel_free_at ? ist__now() : w->channel_free_at;
		req->cast->ready_at += w->top->faults.cast_ns;
		w->channel_free_at = req->cast->ready_at;
		w->top->bytes += req->bytes;
	}
	pthread_cond_broadcast(w->cond);
	pthread_mutex_unlock(w->lock);
	*out = req;
	return IST_OK;
}

static ist_err
receive(struct ist_req *req, struct ist_error *err)
{
	struct fake_world *w = req->group->world;
	struct fake_faults *f = &w->top->faults;
	bool flip = f->flip_rank == top_rank(req->group) && f->flip_at == req->fault_seq;

	if (req->cast->bytes != req->bytes)
		return ist__fail(err, IST_MISMATCH, "fake", "broadcast of %llu bytes into %llu", (unsigned long long)req->cast->bytes,
			(unsigned long long)req->bytes);
	if (f->do_nothing || (req->view && !flip))
		return IST_OK;
	memcpy(req->dst, req->cast->src, req->bytes);
	if (flip)
		req->dst[f->flip_byte] ^= 1;
	return IST_OK;
}

ist_err
ist_req_wait(struct ist_req *req, int64_t timeout_ns, struct ist_error *err)
{
	struct fake_world *w = req->group->world;
	int64_t deadline = ist__deadline(timeout_ns, 20 * IST_NS_PER_S);
	struct fake_faults *f = &w->top->faults;
	ist_err e = IST_OK;

	pthread_mutex_lock(w->lock);
	while (!req->done && !e) {
		bool moved = req->cast->posted && req->cast->ready_at <= ist__now();
		bool ready = moved && (!req->root || req->cast->gone == req->cast->takers);

		if (ready) {
			e = req->root ? IST_OK : receive(req, err);
			req->lent = f->do_nothing || !req->view || (f->flip_rank == top_rank(req->group) && f->flip_at == req->fault_seq) ? req->dst : NULL;
			if (!req->root && (!req->view || e))
				req->cast->gone++;
			req->done = !e;
			pthread_cond_broadcast(w->cond);
		} else if (w->broken) {
			e = fail_lost(req->group, err);
		} else if (req->cast->posted && !moved) {
			(void)wait_on(w, req->cast->ready_at);
		} else if (!wait_on(w, deadline)) {
			e = ist__fail(err, IST_TIMEOUT, "fake", "broadcast %llu", (unsigned long long)req->cast->seq);
		}
	}
	pthread_mutex_unlock(w->lock);
	return e;
}

ist_err
ist_req_view(struct ist_req *req, struct ist_buf *out, struct ist_error *err)
{
	const void *src = req->lent ? req->lent : req->cast->src;

	(void)err;
	*out = (struct ist_buf){ .bytes = req->bytes, .device = -1 };
	memcpy(&out->addr, &src, sizeof(src));
	return IST_OK;
}

ist_err
ist_req_free(struct ist_req *req)
{
	struct fake_world *w = req->group->world;

	pthread_mutex_lock(w->lock);
	if (!req->done)
		w->broken = true; /* half an operation ends the group */
	else if (!req->root && !req->idle && req->view)
		req->cast->gone++;
	pthread_cond_broadcast(w->cond);
	pthread_mutex_unlock(w->lock);
	free(req);
	return IST_OK;
}

/* ---- reading ---- */

static _Atomic int64_t fetch_ns;
ist_err (ist__checkpoint_fetch)(
	const struct ist_checkpoint *ck, uint64_t item, uint64_t offset, uint64_t bytes, void *to, struct ist_error *err);

void
fake_fetch_takes(int64_t ns)
{
	fetch_ns = ns;
}

ist_err
ist__checkpoint_fetch(const struct ist_checkpoint *ck, uint64_t item, uint64_t offset, uint64_t bytes, void *to, struct ist_error *err)
{
	struct timespec t = { .tv_nsec = (long)fetch_ns };

	if (fetch_ns)
		nanosleep(&t, NULL);
	return (ist__checkpoint_fetch)(ck, item, offset, bytes, to, err);
}
