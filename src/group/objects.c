/* SPDX-License-Identifier: Apache-2.0
 *
 * objects.c - byte strings and barrier over the mesh, written from top to bottom for the calling thread.
 *
 * A message is matched by type, operation and sender; its sequence number is operation << 8 | step. All collectives use
 * edges of the mesh only:
 *   barrier      dissemination: in round k tell r + 2^k, hear r - 2^k (Hensgen, Finkel and Manber, 1988); on one host no
 *                message at all, but the board (board.h)
 *   broadcast    binomial tree along the same distances
 *   gather, all_gather   see gathers.c
 * A member that is in another operation of the same number is found by the first message that meets it.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/group.h"
#include "net/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define QUEUED_MAX (UINT64_C(64) << 20)

static const char *
type_name(uint16_t type)
{
	switch (type) {
	case IST__BARRIER: return "barrier";
	case IST__BROADCAST: return "broadcast_bytes";
	case IST__GATHER: return "gather_bytes";
	case IST__ALL_GATHER: return "all_gather_bytes";
	case IST__SEND: return "send_bytes";
	case IST__VOTE: return "decide";
	default: return "?";
	}
}

/* ---- what has come; lock held ---- */

/* The root is told in the flags' upper half, so that two roots are found out. */
static uint32_t
root_of(const struct ist__msg *m)
{
	return m->flags >> 8;
}

/* A message of the operation at hand that is not ours, or of an earlier one that nobody here waited for. */
static bool
clashes(const struct ist__group *g, const struct ist__msg *m)
{
	uint64_t seq = m->seq >> 8;

	if (m->type == IST__SEND || g->op_type == 0)
		return false;
	return seq < g->op_seq || (seq == g->op_seq && (m->type != g->op_type || root_of(m) != (g->op_root & 0xFF)));
}

static void
clash_error(const struct ist__group *g, const struct ist__msg *m, struct ist_error *err)
{
	bool now = m->seq >> 8 == g->op_seq;
	uint16_t type = now ? g->op_type : g->last_type;
	uint32_t root = now ? g->op_root : g->last_root;

	if (m->type == type)
		ist__fail(err, IST_MISMATCH, type_name(type), "operation %llu: rank %u is in %s with root %u, rank %u with root %u",
			(unsigned long long)m->seq >> 8, g->rank, type_name(type), root, m->from, root_of(m));
	else
		ist__fail(err, IST_ORDER_MISMATCH, type_name(type), "operation %llu: rank %u is in %s, rank %u in %s",
			(unsigned long long)m->seq >> 8, g->rank, type_name(type), m->from, type_name(m->type));
	ist__fail_rank(err, g->rank);
	ist__fail_rank(err, m->from);
}

void
ist__objects_take(struct ist__group *g, struct ist__msg *m)
{
	m->next = NULL;
	*g->arrived_last = m;
	g->arrived_last = &m->next;
}

struct ist__msg *
ist__objects_find(struct ist__group *g, uint16_t type, uint64_t seq, uint32_t from)
{
	for (struct ist__msg **p = &g->arrived; *p; p = &(*p)->next) {
		struct ist__msg *m = *p;

		if (m->type != type || m->seq != seq || m->from != from)
			continue;
		*p = m->next;
		if (!*p)
			g->arrived_last = p;
		m->next = NULL;
		return m;
	}
	return NULL;
}

static const struct ist__msg *
find_clash(const struct ist__group *g)
{
	for (const struct ist__msg *m = g->arrived; m; m = m->next)
		if (clashes(g, m))
			return m;
	return NULL;
}

/* ---- waiting ---- */

static ist_err
timed_out(struct ist__group *g, uint16_t type, uint32_t from, struct ist_error *err)
{
	ist__fail(err, IST_TIMEOUT, type_name(type), "the deadline passed while rank %u waited for rank %u", g->rank, from);
	if (type == IST__SEND) {
		ist__fail_rank(err, from);
		return IST_TIMEOUT;
	}
	ist__mesh_name_absent(g, g->op_seq, 0, err);
	if (err && err->n_ranks == 0 && from < g->size)
		ist__fail_rank(err, from); /* all are inside: then it is the one whose word is under way */
	return IST_TIMEOUT;
}

/* What a caller waits for: a message, or (board) that all others have entered the operation. */
struct await {
	uint16_t type;
	uint64_t seq;       /* of the message */
	uint32_t from;      /* board: the one who is missing */
	bool board;
	struct ist__msg *m; /* the message, in the end */
	struct ist__msg odd;
};

static struct timespec
to_timespec(int64_t at)
{
	return (struct timespec){ .tv_sec = (time_t)(at / 1000000000), .tv_nsec = (long)(at % 1000000000) };
}

/* Lock held. Something that has no place here, or NULL. */
static const struct ist__msg *
await_clash(struct ist__group *g, struct await *w)
{
	if (!w->board)
		return find_clash(g);
	ist__board_sleep(g, g->op_seq, true); /* whoever enters from now on rings */
	return ist__board_clash(g, g->op_seq, &w->odd) ? &w->odd : find_clash(g);
}

/* Lock held. */
static bool
await_came(struct ist__group *g, struct await *w)
{
	if (!w->board)
		return (w->m = ist__objects_find(g, w->type, w->seq, w->from)) != NULL;
	w->from = ist__board_absent(g, g->op_seq);
	return w->from == IST_NO_RANK;
}

/* Lock held. On a board a bell may be lost with the one who was to ring it. */
static int
await_wait(struct ist__group *g, const struct await *w, int64_t deadline)
{
	int64_t look = w->board ? ist__now() + 50 * IST__MS : IST__NEVER;
	struct timespec until = to_timespec(look < deadline ? look : deadline);
	int rc;

	if (deadline == IST__NEVER && look == IST__NEVER)
		return pthread_cond_wait(&g->cond, &g->lock);
	rc = pthread_cond_timedwait(&g->cond, &g->lock, &until);
	return look < deadline ? 0 : rc;
}

static ist_err
await(struct ist__group *g, struct await *w, int64_t deadline, struct ist_error *err)
{
	const struct ist__msg *clash = NULL;
	uint16_t type = w->type;
	struct ist_error why;
	uint32_t from;
	bool left = false, came = false;
	int64_t left_at = 0;
	ist_err e = IST_OK;
	int rc = 0;

	ist_error_init(&why);
	pthread_mutex_lock(&g->lock);
	while (!(clash = await_clash(g, w)) && !(came = await_came(g, w)) && !(e = ist__group_broken(g, err)) && rc != ETIMEDOUT) {
		from = w->from;
		if (g->gone[from] == IST__GONE_LEFT) { /* its last words may come by another way than the news */
			struct timespec soon;
			int64_t now = ist__now();

			if (!left_at)
				left_at = now + (g->link_of[from] >= 0 ? 2000 : 500) * IST__MS;
			/* a link of our own says when there is nothing more: when it ends */
			left = now >= left_at || (g->link_of[from] >= 0 && !g->links[g->link_of[from]].conn);
			if (left)
				break;
			soon = to_timespec(left_at);
			pthread_cond_timedwait(&g->cond, &g->lock, &soon);
			continue;
		}
		rc = await_wait(g, w, deadline);
	}
	if (came && w->board)
		clash = await_clash(g, w); /* the last one to enter may be the odd one */
	if (w->board)
		ist__board_sleep(g, 0, false);
	if (clash)
		clash_error(g, clash, &why);
	pthread_mutex_unlock(&g->lock);
	if (came && !clash)
		return IST_OK;
	from = w->from;
	if (e)
		return e;
	if (left) {
		ist__fail(&why, IST_PEER_LEFT, type_name(type), "rank %u has left the group", from);
		ist__fail_rank(&why, from);
	} else if (!clash)
		timed_out(g, type, from, &why);
	if (type != IST__SEND) {
		ist__mesh_break(g, &why, true); /* half a collective is of no use to anybody */
		pthread_mutex_lock(&g->lock);
		if (g->broken)
			ist__error_copy(&why, g->broken); /* one story on all members: whoever told it first */
		pthread_mutex_unlock(&g->lock);
	}
	ist__error_copy(err, &why);
	return why.code;
}

ist_err
ist__objects_recv(struct ist__group *g, uint16_t type, uint64_t seq, uint32_t from, int64_t deadline, struct ist__msg **out,
	struct ist_error *err)
{
	struct await w = { .type = type, .seq = seq, .from = from };
	ist_err e = await(g, &w, deadline, err);

	if (!e)
		*out = w.m;
	return e;
}

ist_err
ist__objects_send(struct ist__group *g, uint16_t type, uint64_t seq, uint32_t to, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct ist__msg head = { .type = type, .flags = (uint16_t)((g->op_root & 0xFF) << 8), .seq = seq, .generation = g->generation, .from = g->rank, .to = to };
	ist_err e;
	bool sent = false;

	pthread_mutex_lock(&g->lock);
	e = ist__group_broken(g, err);
	if (!e && g->gone[to] == IST__GONE_LEFT) {
		/* it needed nothing more of this operation */
		e = type == IST__SEND ? ist__fail(err, IST_PEER_LEFT, type_name(type), "rank %u has left the group", to) : IST_OK;
		if (e)
			ist__fail_rank(err, to);
	} else if (!e)
		sent = ist__mesh_send(g, &head, addr, bytes);
	if (!e && !sent && ist__mesh_starved(g, to)) {
		e = ist__fail_memory(err, type_name(type));
		ist__fail_rank(err, g->rank);
	} else if (!e && !sent && g->gone[to] == IST__HERE_STILL) {
		e = ist__fail(err, IST_PEER_LOST, type_name(type), "no way to rank %u is left", to);
		ist__fail_rank(err, to);
	}
	pthread_mutex_unlock(&g->lock);
	return e;
}

ist_err
ist__objects_begin(struct ist__group *g, const char *op, uint16_t type, uint32_t root, uint64_t *seq, struct ist_error *err)
{
	ist_err e;

	if (root >= g->size)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "root %u in a group of %u", root, g->size);
	pthread_mutex_lock(&g->lock);
	g->waiters++;
	pthread_mutex_unlock(&g->lock);
	pthread_mutex_lock(&g->op_lock);
	pthread_mutex_lock(&g->lock);
	e = ist__group_broken(g, err);
	if (!e) {
		g->last_type = g->prev_type;
		g->last_root = g->prev_root;
		g->op_type = g->prev_type = type;
		g->op_root = g->prev_root = root;
		*seq = ++g->op_seq;
		if (g->board && !(g->sheets && (type == IST__ALL_GATHER || type == IST__VOTE)))
			ist__board_enter(g, *seq, type, root);
	}
	pthread_mutex_unlock(&g->lock);
	if (e)
		ist__objects_end(g);
	return e;
}

void
ist__objects_end(struct ist__group *g)
{
	pthread_mutex_lock(&g->lock);
	g->op_type = 0;
	pthread_mutex_unlock(&g->lock);
	pthread_mutex_unlock(&g->op_lock);
	pthread_mutex_lock(&g->lock);
	g->waiters--;
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->lock);
}

/* ---- the operations ---- */

static ist_err
barrier(struct ist__group *g, uint16_t type, uint64_t seq, uint32_t base, int64_t deadline, struct ist_error *err)
{
	ist_err e = IST_OK;

	for (uint32_t k = 0, step = 1; !e && step < g->size; k++, step *= 2) {
		struct ist__msg *m = NULL;

		e = ist__objects_send(g, type, seq << 8 | (base + k), (g->rank + step) % g->size, NULL, 0, err);
		if (!e)
			e = ist__objects_recv(g, type, seq << 8 | (base + k), (g->rank + g->size - step) % g->size, deadline, &m, err);
		ist__msg_free(g->loop, m);
	}
	return e;
}

/* All are on one host: entering is all there is to say. */
ist_err
ist__objects_await_all(struct ist__group *g, uint16_t type, int64_t deadline, struct ist_error *err)
{
	struct await w = { .type = type, .board = true };
	struct ist__msg odd;

	if (ist__board_linger(g, g->op_seq) && !ist__board_clash(g, g->op_seq, &odd))
		return IST_OK;
	return await(g, &w, deadline, err);
}

ist_err
ist__objects_blob(struct ist__group *g, const void *addr, uint64_t bytes, struct ist_blob *out, struct ist_error *err)
{
	void *p = ist__slab_get(ist__loop_slab(g->loop), bytes ? bytes : 1);

	if (!p)
		return ist__fail_memory(err, "bytes");
	if (bytes > 0)
		memcpy(p, addr, bytes);
	*out = (struct ist_blob){ p, bytes };
	return IST_OK;
}

/* The message's memory becomes the blob's. */
static void
msg_to_blob(struct ist__group *g, struct ist__msg *m, struct ist_blob *out)
{
	*out = (struct ist_blob){ m->body, m->bytes };
	if (!m->body)
		out->addr = ist__slab_get(ist__loop_slab(g->loop), 1);
	m->body = NULL;
	ist__msg_free(g->loop, m);
}

static ist_err
broadcast(struct ist__group *g, uint64_t seq, const void *addr, uint64_t bytes, uint32_t root, int64_t deadline, struct ist_blob *out,
	struct ist_error *err)
{
	uint32_t v = (g->rank + g->size - root) % g->size, step = 1; /* v: place in the tree, root is 0 */
	struct ist_blob got = { 0 };
	struct ist__msg *m = NULL;
	ist_err e = IST_OK;

	if (v == 0)
		e = ist__objects_blob(g, addr, bytes, &got, err);
	while (step <= v)
		step *= 2; /* the parent is v less its highest bit; children are v + step, v + 2 step, ... */
	if (v != 0) {
		uint32_t parent = (v - step / 2 + root) % g->size;

		e = ist__objects_recv(g, IST__BROADCAST, seq << 8, parent, deadline, &m, err);
		if (!e)
			msg_to_blob(g, m, &got);
	}
	for (; !e && v + step < g->size; step *= 2)
		e = ist__objects_send(g, IST__BROADCAST, seq << 8, (v + step + root) % g->size, got.addr, got.bytes, err);
	if (e)
		ist__slab_put(ist__loop_slab(g->loop), got.addr);
	else
		*out = got;
	return e;
}

/* ---- the public side ---- */

void
ist__objects_drop(struct ist__group *g, struct ist_blob *blobs, uint64_t n)
{
	for (uint64_t i = 0; blobs && i < n; i++) {
		ist__slab_put(ist__loop_slab(g->loop), blobs[i].addr);
		blobs[i] = (struct ist_blob){ 0 };
	}
}

void
ist_blobs_free(struct ist_group *group, struct ist_blob *blobs, uint64_t n)
{
	struct ist__group *g;

	if (group && blobs && !ist__handle_check(group, IST__GROUP, "blobs_free", NULL)) {
		g = group->impl;
		ist__objects_drop(g, blobs, n);
	}
}

static ist_err
check_bytes(const void *addr, uint64_t bytes, const char *op, struct ist_error *err)
{
	if (bytes > IST_OBJECT_BYTES_MAX)
		return ist__fail(err, IST_LIMIT, op, "%llu bytes; at most %llu (bulk data goes by ist_broadcast)", (unsigned long long)bytes,
			(unsigned long long)IST_OBJECT_BYTES_MAX);
	return bytes > 0 && !addr ? ist__fail(err, IST_INVALID_ARGUMENT, op, "addr is NULL") : IST_OK;
}

/* Failure inside a collective that the group does not know of yet (memory, format) ends it for all. */
static ist_err
settle(struct ist__group *g, ist_err e, struct ist_error *err)
{
	struct ist_error own;

	if (!e)
		return e;
	ist_error_init(&own);
	pthread_mutex_lock(&g->lock);
	if (ist__group_broken(g, NULL) == IST_OK) {
		pthread_mutex_unlock(&g->lock);
		if (err && err->code == e)
			ist__error_copy(&own, err);
		else
			ist__fail(&own, e, "bytes", "a collective failed on rank %u", g->rank);
		if (e == IST_NO_MEMORY && own.n_ranks == 0)
			ist__fail_rank(&own, g->rank);
		ist__mesh_break(g, &own, true);
		return e;
	}
	pthread_mutex_unlock(&g->lock);
	return e;
}

ist_err
ist_barrier(struct ist_group *group, int64_t timeout_ns, struct ist_error *err)
{
	struct ist__group *g;
	uint64_t seq;
	ist_err e = ist__group_use(group, "barrier", &g, err);

	if (e)
		return e;
	e = ist__objects_begin(g, "barrier", IST__BARRIER, 0, &seq, err);
	if (!e) {
		int64_t deadline = ist__deadline(timeout_ns, g->timeout_ns);

		e = settle(g, g->board ? ist__objects_await_all(g, IST__BARRIER, deadline, err) : barrier(g, IST__BARRIER, seq, 0, deadline, err), err);
		ist__objects_end(g);
	}
	ist__group_unref(g);
	return e;
}

ist_err
ist_broadcast_bytes(struct ist_group *group, const void *addr, uint64_t bytes, uint32_t root, int64_t timeout_ns, struct ist_blob *out,
	struct ist_error *err)
{
	struct ist__group *g;
	uint64_t seq;
	ist_err e = ist__group_use(group, "broadcast_bytes", &g, err);

	if (e)
		return e;
	e = out ? IST_OK : ist__fail(err, IST_INVALID_ARGUMENT, "broadcast_bytes", "out is NULL");
	if (!e && g->rank == root)
		e = check_bytes(addr, bytes, "broadcast_bytes", err);
	if (!e)
		e = ist__objects_begin(g, "broadcast_bytes", IST__BROADCAST, root, &seq, err);
	if (!e) {
		e = settle(g, broadcast(g, seq, addr, bytes, root, ist__deadline(timeout_ns, g->timeout_ns), out, err), err);
		ist__objects_end(g);
	}
	ist__group_unref(g);
	return e;
}

/* gather (root < size) and all_gather. */
static ist_err
gather_any(struct ist_group *group, const void *addr, uint64_t bytes, uint32_t root, bool all, int64_t timeout_ns, struct ist_blob *out,
	struct ist_error *err)
{
	const char *op = all ? "all_gather_bytes" : "gather_bytes";
	struct ist__group *g;
	struct ist_blob *have;
	bool *is = NULL;
	uint64_t seq;
	ist_err e = ist__group_use(group, op, &g, err);

	if (e)
		return e;
	have = ist__slab_get(ist__loop_slab(g->loop), g->size * (sizeof(*have) + sizeof(*is)));
	e = have ? check_bytes(addr, bytes, op, err) : settle(g, ist__fail_memory(err, op), err); /* the others wait for ours */
	if (!e && !out && (all || g->rank == root))
		e = ist__fail(err, IST_INVALID_ARGUMENT, op, "out is NULL");
	if (have) {
		memset(have, 0, g->size * (sizeof(*have) + sizeof(*is)));
		is = (bool *)(have + g->size);
	}
	if (!e)
		e = ist__objects_begin(g, op, all ? IST__ALL_GATHER : IST__GATHER, all ? 0 : root, &seq, err);
	if (!e) {
		int64_t deadline = ist__deadline(timeout_ns, g->timeout_ns);

		e = all ? ist__objects_all_gather(g, IST__ALL_GATHER, seq, addr, bytes, deadline, have, is, err) :
			ist__objects_gather(g, seq, addr, bytes, root, deadline, have, is, err);
		e = settle(g, e, err);
		ist__objects_end(g);
		if (!e && (all || g->rank == root))
			memcpy(out, have, g->size * sizeof(*have));
		else
			ist__objects_drop(g, have, g->size);
	}
	ist__slab_put(ist__loop_slab(g->loop), have);
	ist__group_unref(g);
	return e;
}

ist_err
ist_all_gather_bytes(struct ist_group *group, const void *addr, uint64_t bytes, int64_t timeout_ns, struct ist_blob *out, struct ist_error *err)
{
	return gather_any(group, addr, bytes, 0, true, timeout_ns, out, err);
}

ist_err
ist_gather_bytes(struct ist_group *group, const void *addr, uint64_t bytes, uint32_t root, int64_t timeout_ns, struct ist_blob *out,
	struct ist_error *err)
{
	return gather_any(group, addr, bytes, root, false, timeout_ns, out, err);
}

/* On sheets the end has a number of its own, and a root that no vote begins with. */
static ist_err
board_end(struct ist__group *g, uint16_t type, int64_t deadline, struct ist_error *err)
{
	ist_err e;

	pthread_mutex_lock(&g->lock);
	e = ist__group_broken(g, err);
	if (!e) {
		g->last_type = g->prev_type;
		g->last_root = g->prev_root;
		g->op_root = g->prev_root = 1;
		ist__board_enter(g, ++g->op_seq, type, g->op_root);
	}
	pthread_mutex_unlock(&g->lock);
	return e ? e : ist__objects_await_all(g, type, deadline, err);
}

ist_err
ist__objects_barrier(struct ist__group *g, uint16_t type, uint64_t seq, int64_t deadline, struct ist_error *err)
{
	/* steps of their own: another part of the operation has used the first ones */
	return g->sheets ? board_end(g, type, deadline, err) : barrier(g, type, seq, 64, deadline, err);
}

/* What waits to be sent is bounded: a peer that does not read holds up its sender, not this process's memory. */
static ist_err
await_room(struct ist__group *g, uint32_t to, int64_t deadline, struct ist_error *err)
{
	ist_err e;

	pthread_mutex_lock(&g->lock);
	g->waiters++;
	while (!(e = ist__group_broken(g, err)) && ist__mesh_queued(g, to) > QUEUED_MAX) {
		int64_t now = ist__now(), at = now + 5 * IST__MS;
		struct timespec soon = { .tv_sec = (time_t)(at / 1000000000), .tv_nsec = (long)(at % 1000000000) };

		if (now >= deadline) {
			e = ist__fail(err, IST_TIMEOUT, "send_bytes", "rank %u does not read: %llu bytes wait for it", to, (unsigned long long)ist__mesh_queued(g, to));
			ist__fail_rank(err, to);
			break;
		}
		pthread_cond_timedwait(&g->cond, &g->lock, &soon);
	}
	g->waiters--;
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->lock);
	return e;
}

ist_err
ist_send_bytes(struct ist_group *group, const void *addr, uint64_t bytes, uint32_t to, int64_t timeout_ns, struct ist_error *err)
{
	struct ist__group *g;
	uint64_t seq;
	ist_err e = ist__group_use(group, "send_bytes", &g, err);

	if (e)
		return e;
	e = check_bytes(addr, bytes, "send_bytes", err);
	if (!e && to >= g->size)
		e = ist__fail(err, IST_INVALID_ARGUMENT, "send_bytes", "rank %u in a group of %u", to, g->size);
	if (!e && to != g->rank)
		e = await_room(g, to, ist__deadline(timeout_ns, g->timeout_ns), err);
	if (!e) {
		pthread_mutex_lock(&g->lock);
		seq = g->p2p_out[to]++;
		pthread_mutex_unlock(&g->lock);
		if (to == g->rank) {
			struct ist__msg *m = ist__slab_get(ist__loop_slab(g->loop), sizeof(*m));
			struct ist_blob own = { 0 };

			e = m ? ist__objects_blob(g, addr, bytes, &own, err) : ist__fail_memory(err, "send_bytes");
			if (!e) {
				*m = (struct ist__msg){ .type = IST__SEND, .seq = seq, .from = to, .to = to, .bytes = bytes, .body = own.addr };
				pthread_mutex_lock(&g->lock);
				ist__objects_take(g, m);
				pthread_mutex_unlock(&g->lock);
				pthread_cond_broadcast(&g->cond);
			} else
				ist__slab_put(ist__loop_slab(g->loop), m);
		} else
			e = ist__objects_send(g, IST__SEND, seq, to, addr, bytes, err);
	}
	ist__group_unref(g);
	return e;
}

ist_err
ist_recv_bytes(struct ist_group *group, uint32_t from, int64_t timeout_ns, struct ist_blob *out, struct ist_error *err)
{
	struct ist__group *g;
	struct ist__msg *m = NULL;
	uint64_t seq;
	ist_err e = ist__group_use(group, "recv_bytes", &g, err);

	if (e)
		return e;
	if (!out || from >= g->size) {
		e = ist__fail(err, IST_INVALID_ARGUMENT, "recv_bytes", out ? "rank %u in a group of %u" : "out is NULL (rank %u of %u)", from, g->size);
		ist__group_unref(g);
		return e;
	}
	pthread_mutex_lock(&g->lock);
	g->waiters++;
	seq = g->p2p_in[from]++;
	pthread_mutex_unlock(&g->lock);
	e = ist__objects_recv(g, IST__SEND, seq, from, ist__deadline(timeout_ns, g->timeout_ns), &m, err);
	pthread_mutex_lock(&g->lock);
	if (e && g->p2p_in[from] == seq + 1)
		g->p2p_in[from] = seq; /* the message may still come, and is the next one's then */
	g->waiters--;
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->lock);
	if (!e)
		msg_to_blob(g, m, out);
	ist__group_unref(g);
	return e;
}
