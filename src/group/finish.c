/* SPDX-License-Identifier: Apache-2.0
 *
 * finish.c - from the roll-call to a group: the steps, the group's own parts, and the hand-over of the connections
 * that it keeps.
 */
#include "base/fail.h"
#include "group/form_int.h"

#include <sched.h>
#include <string.h>

struct hand_over {
	struct ist__link *link;
	struct ist__conn *conn;
	struct ist__frame *later;
	bool ended;
};

static void
take_link(void *arg, struct ist__conn *conn, struct ist__frame *frames, bool gone)
{
	struct hand_over *h = arg;
	struct ist__frame **last = &h->later;

	while (*last)
		last = &(*last)->next;
	*last = frames;
	h->ended |= gone;
	h->conn = h->link->conn = conn;
	ist__conn_give(conn, &ist__link_ops, h->link);
}

/* What came on a link while the group was forming. */
static void
replay(struct hand_over *h)
{
	struct ist_error e;
	ist_err code = ist__conn_end_code(h->conn);

	while (h->later) {
		struct ist__frame *x = h->later;

		h->later = x->next;
		x->next = NULL;
		ist__link_ops.frame(h->conn, h->link, x);
	}
	if (h->ended) {
		ist_error_init(&e);
		if (ist__fail_is_own(code)) /* that member is not to blame */
			ist__fail(&e, code, "group_new", "%s: %s", ist__conn_peer(h->conn), ist_err_text(code));
		else
			ist__fail(&e, IST_PEER_LOST, "group_new", "%s: the connection ended", ist__conn_peer(h->conn));
		ist__link_ops.closed(h->conn, h->link, &e);
	}
}

static struct ist__spoke *
spoke_to(struct ist__form *f, uint32_t rank)
{
	if (f->args.rank == 0)
		return &f->star[rank];
	return rank == 0 ? &f->star[0] : &f->links[rank];
}

/* On the loop's thread, in one go: every link stands before anything that came on one is looked at, since what is flooded
 * on (an abort, a loss) must reach them all, in that order. */
static void
hand_here(void *arg)
{
	struct ist__form *f = arg;
	struct ist__group *g = f->group;
	struct hand_over hands[64]; /* as many as ist__mesh_neighbours gives at most */

	for (uint32_t i = 0; i < g->n_links; i++) {
		struct ist__spoke *s = spoke_to(f, g->links[i].rank);

		hands[i] = (struct hand_over){ .link = &g->links[i], .later = s->later, .ended = s->ended };
		s->later = NULL;
		ist__inbox_release(&f->inbox, s->post, take_link, &hands[i]);
		s->post = NULL;
	}
	for (uint32_t i = 0; i < g->n_links; i++)
		replay(&hands[i]);
}

static void
hand_links_over(struct ist__form *f)
{
	ist__loop_run(f->inbox.loop, hand_here, f);
}

static void
share_board(struct ist__group *g)
{
	cpu_set_t cpus;

	if (!g->life || g->n_same_host != g->size || ist__board_bytes(g->size, g->features) == 0)
		return;
	ist__board_share(g, ist__life_more(g->life));
	/* who has no CPU of his own gives it away at once */
	if (!sched_getaffinity(0, sizeof(cpus), &cpus) && (uint32_t)CPU_COUNT(&cpus) >= g->size)
		g->patience = IST__BOARD_PAUSES;
}

/* Our own backend hands over descriptors where it has memory to share. */
static bool
shares_memory(const struct ist__form *f, uint32_t r)
{
	if (r == f->args.rank || f->room[r] != f->room[f->args.rank] || f->claims[r].transport == IST_TRANSPORT_TCP ||
	    f->ep->transport == IST_TRANSPORT_TCP)
		return false;
	return !f->admitted->builtin || (f->offered.n_fds > 0 && f->wires[r].n > 0);
}

static ist_err
make_group(struct ist__form *f, struct ist_error *err)
{
	struct ist__group *g = ist__group_make(f->ep, f->args.size, err);
	uint32_t nb[64], n = ist__mesh_neighbours(f->args.rank, f->args.size, nb);
	ist_err e;

	if (!g)
		return IST_NO_MEMORY;
	f->group = g;
	if (f->life && (e = ist__life_await_hold(f->life, err)))
		return e;
	g->rank = f->args.rank;
	g->timeout_ns = f->args.timeout_ns;
	g->no_progress_ns = f->args.no_progress_ns;
	g->proto = f->proto;
	g->features = f->features;
	g->bucket_bytes = f->bucket_bytes;
	g->generation = f->generation;
	memcpy(g->key, f->key, sizeof(g->key));
	g->name = ist__strdup(g->ctx, f->name);
	g->backend_name = ist__strdup(g->ctx, f->admitted->name);
	g->backend_options = ist__strdup(g->ctx, f->options);
	g->links = ist__alloc(g->ctx, (n ? n : 1) * sizeof(*g->links));
	if (!g->name || !g->backend_name || !g->backend_options || !g->links)
		return ist__fail_memory(err, "group_new");
	g->n_links = n;
	for (uint32_t r = 0; r < f->args.size; r++) {
		g->members[r] = (struct ist__member){ .card = f->claims[r].card, .host = f->host[r], .slot = f->slot[r] };
		g->link_of[r] = -1;
		g->n_hosts += f->host[r] == r;
		g->shm_pairs += shares_memory(f, r);
	}
	for (uint32_t i = 0; i < n; i++) {
		g->links[i] = (struct ist__link){ .group = g, .rank = nb[i] };
		g->link_of[nb[i]] = (int32_t)i;
	}
	g->n_same_host = f->n_here;
	g->tcp_pairs = f->args.size - 1 - g->shm_pairs;
	g->backend = f->admitted;
	g->life = f->life;
	if (g->life)
		ist__life_held(g->life, &g->life_memory, &g->life_shared);
	f->life = NULL;
	share_board(g);
	return ist__check_prepare(g, err);
}

/* The channel says that a peer is gone. It may be right, or that peer may have closed because it heard of another's
 * death sooner: the mesh knows better, if it is given a moment. */
static void
line_failed(void *owner, const struct ist_error *err)
{
	struct ist_error e = *err;

	if (ist__fail_is_own(e.code) && e.n_ranks == 0)
		ist__fail_rank(&e, ((struct ist__group *)owner)->rank); /* ours: the others could not know whose it is */
	if (e.code == IST_PEER_LOST && e.n_ranks > 0 && ist__mesh_await_news(owner, e.ranks[0]) == IST__GONE_LEFT) {
		ist__fail(&e, IST_PEER_LEFT, "group", "rank %u has left, and the operation under way needs it", err->ranks[0]);
		ist__fail_rank(&e, err->ranks[0]);
	}
	ist__mesh_break(owner, &e, true);
}

/* A group carries device memory where all have a device of one kind and the backend can reach it. All come to the same. */
static void
see_devices(struct ist__form *f)
{
	struct ist__group *g = f->group;
	uint32_t mem = f->claims[0].mem;

	for (uint32_t r = 1; r < f->args.size; r++)
		if (f->claims[r].mem != mem)
			return;
	if (mem > IST_MEM_PINNED && ist__line_reaches(g->line, mem, &g->views_alone) && !(g->views_alone && g->n_hosts > 1))
		g->mem = mem;
}

static ist_err
make_line(struct ist__form *f, struct ist_error *err)
{
	struct ist__line_args args = { .env = f->env, .backend = f->admitted, .chan = f->chan, .rank = f->args.rank, .size = f->args.size,
		.no_progress_ns = f->args.no_progress_ns, .timeout_ns = f->args.timeout_ns, .owner = f->group, .failed = line_failed,
		.entered = f->args.size > 1 ? ist__check_entered : NULL, .absent = ist__check_absent,
		.compare = f->group->board ? ist__check_compare : NULL, .ctx = f->group->ctx, .drive = f->admitted->builtin,
		.all_take = !(f->features & IST__FEATURE_TAKERS) || f->takers_differ };
	ist_err e = ist__line_new(&args, &f->group->line, err);

	if (e)
		return e;
	f->chan = NULL;
	see_devices(f);
	ist__line_hold(f->group->line); /* the mesh looks at it until the group's memory goes */
	return IST_OK;
}

/* What a member does alone: it dials its neighbours and opens its channel, while their answers are on the way. Most of these
 * are needed at the end only. */
static ist_err
prepare(struct ist__form *f, struct ist__writer *w, struct ist_error *err)
{
	ist_err e = ist__form_scarce(f, err);

	if (!e)
		e = ist__form_dial_links(f, err);
	if (!e) {
		ist__put_u8(w, 0);
		e = ist__form_open(f, w, err);
	}
	if (!e && ist__form_at_once(f))
		e = ist__form_offer(f, w, err);
	if (!e)
		e = ist__form_give_fds(f, err);
	if (!e)
		e = ist__form_await_links(f, false, err);
	if (!e)
		w->at[0] = f->stands = ist__form_together(f);
	return e;
}

/* Who is on which host, and do the channels fit? */
static ist_err
compare(struct ist__form *f, struct ist__reader *all, struct ist_error *err)
{
	ist_err e = ist__form_hosts(f, all, err);

	return e ? e : ist__form_compare(f, all, f->settings, err);
}

/* Rank 0 is the first of its host, and has the descriptors of its room: what it says of them goes out with the answers. */
static ist_err
compare_early(struct ist__form *f, struct ist__reader *all, struct ist_error *err)
{
	ist_err e = compare(f, all, err);

	return e ? e : ist__form_pass(f, all, err);
}

/* After it nothing can fail any more. */
static ist_err
wire_up(struct ist__form *f, struct ist__reader *all, struct ist_error *err)
{
	ist_err e = ist__form_connect(f, all, f->settings, err);

	if (!e)
		e = ist__form_await_links(f, true, err);
	if (!e)
		e = make_group(f, err);
	return e ? e : make_line(f, err);
}

static ist_err
steps(struct ist__form *f, struct ist__reader *all, struct ist__writer *w, struct ist_error *err)
{
	struct ist__settings settings;
	bool early = f->features & IST__FEATURE_LANES && ist__form_at_once(f); /* else descriptors are shown later */
	ist_err e;

	f->settings = &settings;
	e = prepare(f, w, err);
	e = ist__form_exchange(f, 1, "open", e, err, w->at, w->bytes, all, early ? compare_early : NULL);
	if (e)
		return e;
	if (!early || f->args.rank != 0)
		e = compare(f, all, err);
	if (!ist__form_at_once(f)) {
		w->bytes = 0;
		if (!e)
			e = ist__form_offer(f, w, err);
		e = ist__form_exchange(f, 2, "offer", e, err, w->at, w->bytes, all, NULL);
		if (e)
			return e;
	}
	if (!e && (!early || f->args.rank != 0))
		e = ist__form_pass(f, all, err);
	if (!e)
		e = wire_up(f, all, err);
	f->voted = !e;
	/* where all look at one memory, that tells; who has failed tells why */
	if (!e && f->n_here == f->args.size && f->group->life && f->features & IST__FEATURE_LANES)
		return ist__form_vote(f, f->group->life, IST__STEP_VOTE, "connect", all, err);
	return ist__form_exchange(f, IST__STEP_VOTE, "connect", e, err, NULL, 0, all, NULL);
}

ist_err
ist__form_finish(struct ist__form *f, struct ist_group **out, struct ist_error *err)
{
	struct ist__reader *all = ist__alloc(f->ctx, f->args.size * sizeof(*all));
	struct ist__writer w;
	ist_err e;

	if (!all)
		return ist__fail_memory(err, "group_new");
	ist__writer_init(&w, f->ctx);
	e = steps(f, all, &w, err);
	ist__writer_fini(&w);
	ist__free(f->ctx, all);
	if (e)
		return e;
	hand_links_over(f);
	e = ist__group_publish(f->group, out, err);
	if (!e) {
		if (ist__rdv_keeps(&f->rdv))
			f->group->lease = ist__lease_new(f->group, &f->rdv);
		f->group = NULL;
	}
	return e;
}
