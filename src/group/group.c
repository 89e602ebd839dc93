/* SPDX-License-Identifier: Apache-2.0
 *
 * group.c - groups as values: made, published, used, closed; and the env's list of them, for abort-all and the end.
 */
#include "group/group.h"

#include "base/clock.h"
#include "base/fail.h"
#include "plug/plug.h"

#include <stdio.h>
#include <string.h>

struct forming {
	struct forming *next;
	struct ist_req *req;
};

struct ist__groups {
	struct ist_env *env;
	struct ist__loop *loop;
	struct ist__keeper *keeper;
	int called; /* atomic: something was asked of a group */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct ist__group *groups;
	struct ist_req *forming[4096]; /* requests of formings under way */
	uint32_t n_forming;
};

/* ---- the env's part ---- */

/* A group that something was asked of from outside the loop; held. NULL: none is left. */
static struct ist__group *
next_called(struct ist__groups *gs, int *what)
{
	struct ist__group *g;

	pthread_mutex_lock(&gs->lock);
	for (g = gs->groups; g; g = g->next) {
		*what = __atomic_exchange_n(&g->called, 0, __ATOMIC_ACQ_REL);
		if (*what) {
			__atomic_add_fetch(&g->refs, 1, __ATOMIC_RELAXED);
			break;
		}
	}
	pthread_mutex_unlock(&gs->lock);
	return g;
}

static void
answer_calls(void *arg)
{
	struct ist__groups *gs = arg;
	struct ist__group *g;
	struct ist_error e;
	int what;

	if (!__atomic_exchange_n(&gs->called, 0, __ATOMIC_ACQ_REL))
		return;
	while ((g = next_called(gs, &what))) {
		if (what & IST__CALLED_ABORT) {
			ist_error_init(&e);
			ist__fail(&e, IST_ABORTED, "abort", "rank %u was told to abort by a signal", g->rank);
			ist__fail_rank(&e, g->rank);
			ist__mesh_break(g, &e, true);
		}
		if (what & IST__CALLED_LOOK)
			ist__mesh_look(g);
		ist__group_unref(g);
	}
}

void
ist__group_call(struct ist__group *g, int what)
{
	__atomic_fetch_or(&g->called, what, __ATOMIC_ACQ_REL);
	__atomic_store_n(&g->groups->called, 1, __ATOMIC_RELEASE);
	ist__loop_wake(g->loop);
}

/* On the life thread: somebody of this host has died. Each group finds out whom it lost. */
static void
somebody_died(void *arg)
{
	struct ist__groups *gs = arg;

	pthread_mutex_lock(&gs->lock);
	for (struct ist__group *g = gs->groups; g; g = g->next)
		__atomic_fetch_or(&g->called, IST__CALLED_LOOK, __ATOMIC_ACQ_REL);
	pthread_mutex_unlock(&gs->lock);
	__atomic_store_n(&gs->called, 1, __ATOMIC_RELEASE);
	ist__loop_wake(gs->loop);
}

struct hook {
	struct ist__loop *loop;
	void *arg;
};

static void
hook_here(void *arg)
{
	struct hook *h = arg;

	ist__loop_each(h->loop, h->arg ? answer_calls : NULL, h->arg);
}

static void *
groups_make(struct ist_env *env, struct ist_error *err)
{
	struct ist__groups *gs = ist__alloc(ist__env_ctx(env), sizeof(*gs));
	struct ist__loop *loop = ist__loop_get(env, err);
	struct hook hook = { loop, gs };

	if (!gs)
		ist__fail_memory(err, "group_new");
	/* asked for here, so that it is ended after us */
	if (!gs || !loop || !ist__plug_host(env, err)) {
		ist__free(ist__env_ctx(env), gs);
		return NULL;
	}
	gs->env = env;
	gs->loop = loop;
	pthread_mutex_init(&gs->lock, NULL);
	pthread_cond_init(&gs->cond, NULL);
	gs->keeper = ist__keeper_new(env, somebody_died, gs, err);
	if (!gs->keeper) {
		ist__free(ist__env_ctx(env), gs);
		return NULL;
	}
	ist__loop_run(loop, hook_here, &hook);
	return gs;
}

static void
break_all(struct ist__groups *gs, const char *reason)
{
	struct ist_error e;

	ist_error_init(&e);
	ist__fail(&e, IST_ABORTED, "abort", "%s", reason);
	/* every group is flagged and told first; nothing is freed here */
	for (;;) {
		struct ist__group *g;

		pthread_mutex_lock(&gs->lock);
		for (g = gs->groups; g && __atomic_load_n(&g->broken_code, __ATOMIC_ACQUIRE); g = g->next)
			continue;
		if (g)
			__atomic_add_fetch(&g->refs, 1, __ATOMIC_RELAXED);
		pthread_mutex_unlock(&gs->lock);
		if (!g)
			return;
		ist__mesh_break(g, &e, true);
		ist__group_unref(g);
	}
}

static void
groups_stop(struct ist_env *env, void *part)
{
	struct ist__groups *gs = part;
	struct hook hook = { ist__loop_get(env, NULL), NULL };

	pthread_mutex_lock(&gs->lock);
	for (uint32_t i = 0; i < gs->n_forming; i++)
		ist_req_cancel(gs->forming[i]);
	while (gs->n_forming > 0)
		pthread_cond_wait(&gs->cond, &gs->lock);
	pthread_mutex_unlock(&gs->lock);
	break_all(gs, "the env was freed");
	for (;;) {
		struct ist__group *g;

		pthread_mutex_lock(&gs->lock);
		g = gs->groups;
		pthread_mutex_unlock(&gs->lock);
		if (!g)
			break;
		ist__group_close(g);
		ist__group_unref(g);
	}
	ist__loop_run(hook.loop, hook_here, &hook);
	ist__keeper_free(gs->keeper);
	pthread_cond_destroy(&gs->cond);
	pthread_mutex_destroy(&gs->lock);
	ist__free(ist__env_ctx(env), gs);
}

ist_err
ist__groups_get(struct ist_env *env, struct ist__groups **out, struct ist_error *err)
{
	struct ist_error why;
	struct ist__groups *gs;

	ist_error_init(&why);
	gs = ist__env_part(env, IST__PART_GROUP, groups_make, groups_stop, &why);
	if (!gs) {
		ist__error_copy(err, &why);
		return why.code ? why.code : ist__fail_memory(err, "group_new");
	}
	*out = gs;
	return IST_OK;
}

struct ist__keeper *
ist__groups_keeper(struct ist__groups *groups)
{
	return groups->keeper;
}

void
ist__groups_form_began(struct ist__groups *gs, struct ist_req *req)
{
	pthread_mutex_lock(&gs->lock);
	if (gs->n_forming < sizeof(gs->forming) / sizeof(gs->forming[0]))
		gs->forming[gs->n_forming++] = req;
	pthread_mutex_unlock(&gs->lock);
}

void
ist__groups_form_ended(struct ist__groups *gs, struct ist_req *req)
{
	pthread_mutex_lock(&gs->lock);
	for (uint32_t i = 0; i < gs->n_forming; i++)
		if (gs->forming[i] == req) {
			gs->forming[i] = gs->forming[--gs->n_forming];
			break;
		}
	pthread_cond_broadcast(&gs->cond);
	pthread_mutex_unlock(&gs->lock);
}

/* ---- one group ---- */

static void
group_free(struct ist__group *g)
{
	const struct ist__ctx *ctx = g->ctx;
	struct ist__tally *tally = g->tally;

	while (g->arrived) {
		struct ist__msg *m = g->arrived;

		g->arrived = m->next;
		ist__msg_free(g->loop, m);
	}
	for (uint32_t i = 0; i < g->n_links; i++)
		while (g->links[i].partials) {
			struct ist__msg *m = g->links[i].partials;

			g->links[i].partials = m->next;
			ist__msg_free(g->loop, m);
		}
	if (g->line)
		ist__line_drop(g->line);
	ist__ep_unref(g->ep);
	ist__free(ctx, g->name);
	ist__free(ctx, g->backend_name);
	ist__free(ctx, g->backend_options);
	ist__free(ctx, g->members);
	ist__free(ctx, g->links);
	ist__free(ctx, g->link_of);
	ist__free(ctx, g->gone);
	ist__free(ctx, g->p2p_in);
	ist__free(ctx, g->p2p_out);
	ist__free(ctx, g->prints);
	ist__free(ctx, g->ops_compared);
	ist__free(ctx, g->compared);
	ist__free(ctx, g->here);
	ist__free(ctx, g->marks);
	ist__free(ctx, g->who_seen);
	ist__free(ctx, g->answers);
	pthread_mutex_destroy(&g->lock);
	pthread_mutex_destroy(&g->op_lock);
	pthread_cond_destroy(&g->cond);
	ist__free(ctx, g);
	ist__tally_drop(tally);
}

void
ist__group_unref(struct ist__group *g)
{
	if (__atomic_sub_fetch(&g->refs, 1, __ATOMIC_ACQ_REL) == 0)
		group_free(g);
}

struct ist__group *
ist__group_make(struct ist__ep *ep, uint32_t size, struct ist_error *err)
{
	struct ist__tally *tally = ist__tally_new(ist__env_ctx(ep->env));
	const struct ist__ctx *ctx = tally ? ist__tally_ctx(tally) : NULL;
	struct ist__group *g = tally ? ist__alloc(ctx, sizeof(*g)) : NULL;
	pthread_condattr_t attr;

	if (!g) {
		ist__tally_drop(tally);
		ist__fail_memory(err, "group_new");
		return NULL;
	}
	g->env = ep->env;
	g->tally = tally;
	g->ctx = ctx;
	g->loop = ep->loop;
	g->ep = ep;
	ist__ep_ref(ep);
	g->refs = 1;
	g->size = size;
	while ((1u << g->rounds) < size)
		g->rounds++;
	g->arrived_last = &g->arrived;
	pthread_mutex_init(&g->lock, NULL);
	pthread_mutex_init(&g->op_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&g->cond, &attr);
	pthread_condattr_destroy(&attr);
	g->members = ist__alloc(ctx, size * sizeof(*g->members));
	g->link_of = ist__alloc(ctx, size * sizeof(*g->link_of));
	g->gone = ist__alloc(ctx, size);
	g->p2p_in = ist__alloc(ctx, size * sizeof(*g->p2p_in));
	g->p2p_out = ist__alloc(ctx, size * sizeof(*g->p2p_out));
	g->ops_compared = ist__alloc(ctx, size * sizeof(*g->ops_compared));
	g->compared = ist__alloc(ctx, size * sizeof(*g->compared));
	g->here = ist__alloc(ctx, size * sizeof(*g->here));
	g->marks = ist__alloc(ctx, size * sizeof(*g->marks));
	g->who_seen = ist__alloc(ctx, size * sizeof(*g->who_seen));
	g->answers = ist__alloc(ctx, size);
	if (!g->members || !g->link_of || !g->gone || !g->p2p_in || !g->p2p_out || !g->ops_compared || !g->compared || !g->here || !g->marks ||
	    !g->who_seen || !g->answers) {
		group_free(g);
		ist__fail_memory(err, "group_new");
		return NULL;
	}
	return g;
}

ist_err
ist__group_publish(struct ist__group *g, struct ist_group **out, struct ist_error *err)
{
	struct ist_group *handle = ist__handle_new(g->env, IST__GROUP, sizeof(*handle));
	struct ist__groups *gs = NULL;

	if (!handle)
		return ist__fail_memory(err, "group_new");
	ist__groups_get(g->env, &gs, NULL);
	handle->impl = g;
	g->groups = gs;
	ist__handle_owned(handle, NULL); /* groups_stop ends what is behind it */
	pthread_mutex_lock(&gs->lock);
	g->next = gs->groups;
	g->link_in = &gs->groups;
	if (g->next)
		g->next->link_in = &g->next;
	gs->groups = g;
	pthread_mutex_unlock(&gs->lock);
	ist__mesh_start(g);
	ist__log(g->ctx, 2, "group \"%s\" of %u has formed: rank %u, generation %016llx, backend %s, %u hosts, %u links", g->name, g->size, g->rank,
		(unsigned long long)g->generation, g->backend_name, g->n_hosts, g->n_links);
	*out = handle;
	return IST_OK;
}

static void
unlist(struct ist__group *g)
{
	struct ist__groups *gs = ist__env_has(g->env, IST__PART_GROUP);

	pthread_mutex_lock(&gs->lock);
	if (g->link_in) {
		*g->link_in = g->next;
		if (g->next)
			g->next->link_in = g->link_in;
		g->link_in = NULL;
	}
	pthread_mutex_unlock(&gs->lock);
}

/* Once. Whoever waits inside is woken with ABORTED; nobody is waited for but our own threads. */
void
ist__group_close(struct ist__group *g)
{
	struct ist_error e;
	bool first;

	pthread_mutex_lock(&g->lock);
	first = !g->closed;
	g->closed = true;
	g->leaving = true;
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->lock);
	if (!first)
		return;
	unlist(g);
	ist_error_init(&e);
	ist__fail(&e, IST_ABORTED, "free", "the group was freed while the call was under way");
	ist__lease_free(g->lease);
	g->lease = NULL;
	if (g->line) {
		/* data that is on its way goes out while the mesh still stands */
		ist__line_free(g->line);
	}
	ist__mesh_stop(g);
	pthread_mutex_lock(&g->lock);
	while (g->waiters > 0)
		pthread_cond_wait(&g->cond, &g->lock);
	g->board = NULL;
	g->sheets = NULL;
	pthread_mutex_unlock(&g->lock);
	ist__vigil_end(g->vigil);
	g->vigil = NULL;
	ist__life_free(g->life); /* with the board, on which they looked */
	g->life = NULL;
}

ist_err
ist__group_use(struct ist_group *handle, const char *op, struct ist__group **out, struct ist_error *err)
{
	ist_err e = ist__handle_check(handle, IST__GROUP, op, err);

	if (e)
		return e;
	__atomic_add_fetch(&handle->impl->refs, 1, __ATOMIC_RELAXED);
	*out = handle->impl;
	return IST_OK;
}

ist_err
ist__group_broken(struct ist__group *g, struct ist_error *err)
{
	if (g->closed)
		return ist__fail(err, IST_ABORTED, "group", "the group was freed while the call was under way");
	if (!g->broken_code)
		return IST_OK;
	if (g->broken)
		ist__error_copy(err, g->broken);
	else
		ist__fail(err, g->broken_code, "group", "the group has ended");
	return g->broken_code;
}

struct ist__line *
ist__group_line(struct ist_group *handle, const char *op, uint32_t peer, struct ist_error *err)
{
	struct ist__group *g;
	struct ist__line *line = NULL;
	ist_err e = ist__group_use(handle, op, &g, err);

	if (e)
		return NULL;
	pthread_mutex_lock(&g->lock);
	if (!ist__group_broken(g, err)) {
		uint32_t r = 0;

		while (r < g->size && (g->gone[r] != IST__GONE_LEFT || (peer != IST_NO_RANK && peer != r)))
			r++;
		if (r == g->size) {
			line = g->line;
			ist__line_hold(line);
		} else {
			ist__fail(err, IST_PEER_LEFT, op, "rank %u has left the group", r);
			ist__fail_rank(err, r);
		}
	}
	pthread_mutex_unlock(&g->lock);
	ist__group_unref(g);
	return line;
}

int64_t
ist__group_timeout(struct ist_group *group)
{
	return group->impl->timeout_ns;
}

ist_err
ist_abort_all(struct ist_env *env, const char *reason)
{
	struct ist__groups *gs;

	if (!ist__handle_ok(env, IST__ENV))
		return IST_BAD_HANDLE;
	gs = ist__env_has(env, IST__PART_GROUP);
	if (gs)
		break_all(gs, reason ? reason : "all groups were aborted");
	return IST_OK;
}
