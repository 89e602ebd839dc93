/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_up.c - after the roll-call: links to the neighbours, and members of one host find each other by handing over a
 * descriptor. Where they are many, they share memory in rooms of a few: see first_of_room.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/form_int.h"
#include "net/wire.h"

#include <errno.h>
#include <string.h>

enum { ROOM = 48 /* members that share memory, at most: each keeps descriptors and mappings of all others in its room */ };

/* ---- links ---- */

static ist_err
add_conn(struct ist__form *f, struct ist__spoke *s, int fd, uint64_t tag, uint16_t type, struct ist_error *err)
{
	struct ist__conn *conn = ist__conn_new(f->inbox.loop, fd, IST__INITIATOR, &f->self, f->deadline);

	s->post = conn ? ist__inbox_add(&f->inbox, conn, tag) : NULL;
	s->dialled = true;
	if (!s->post)
		return ist__fail_memory(err, "group_new");
	ist__form_send(s, f, type, 0, NULL, 0); /* leaves when the hello has held */
	return IST_OK;
}

/* By the parent's link, if there is one. */
static bool
lane(struct ist__form *f, struct ist__spoke *s, uint32_t to, uint64_t tag, uint16_t type)
{
	s->post = ist__form_lane(f, to, tag, type, NULL, 0);
	s->ready = s->lane = s->post != NULL;
	return s->lane;
}

static ist_err
dial_link(struct ist__form *f, uint32_t to, struct ist_error *err)
{
	struct ist_error why;
	bool ours;
	int fd;
	ist_err e;

	ist_error_init(&why);
	e = ist__reach(f, &f->claims[to].card, f->deadline, &fd, &why);
	if (!e)
		e = add_conn(f, &f->links[to], fd, IST__TAG(IST__TAG_LINK, to), IST__LINK, &why);
	ours = (ist__fail_is_own(e) && e != IST_IO) || why.sys == EADDRNOTAVAIL; /* no port is left to dial from */
	if (e)
		ist__error_copy(err, &why);
	if (e == IST_IO && !ours && ist__may_share(&f->claims[to].card, &f->card)) {
		/* it was at the roll-call, and neither its socket nor its port is on this host any more */
		e = ist__fail(err, IST_PEER_LOST, "group_new", "rank %u went away while the group was forming: nobody answers at %s", to,
			f->claims[to].card.addr);
		ist__fail_rank(err, to);
	} else if (e) {
		if (!ours) /* else it is not to blame */
			ist__fail_rank(err, to);
		ist__fail_prefix(err, "rank %u at %s can't be reached: ", to, f->claims[to].card.addr);
	}
	return e;
}

static uint32_t
first_of_host(const struct ist__form *f, uint32_t r)
{
	uint32_t first = 0;

	while (first < r && !ist__may_share(&f->claims[first].card, &f->claims[r].card))
		first++;
	return first;
}

/* Who asks for shared memory alone gets it with all of its host, whatever that costs. */
static bool
wants_shm(const struct ist__form *f, uint32_t r)
{
	return f->claims[r].transport == IST_TRANSPORT_SHM;
}

/* The members of a host that hand descriptors to each other: what all of them would have to keep grows with the square of
 * their number. With more than ROOM of them there are several rooms, equally large, and between these the data go as between
 * hosts. Sign of life and board serve the whole host. */
static uint32_t
first_of_room(const struct ist__form *f, uint32_t r)
{
	uint32_t first = first_of_host(f, r), n = 0, place = 0, rooms, start;

	for (uint32_t i = first; i < f->args.size; i++) {
		if (!ist__may_share(&f->claims[i].card, &f->claims[r].card))
			continue;
		if (wants_shm(f, i))
			return first;
		if (i == r)
			place = n;
		n++;
	}
	rooms = (n + ROOM - 1) / ROOM;
	start = (place * rooms / n * n + rooms - 1) / rooms; /* of whom place * rooms / n is the same */
	for (n = 0; n < start || !ist__may_share(&f->claims[first].card, &f->claims[r].card); first++)
		n += ist__may_share(&f->claims[first].card, &f->claims[r].card);
	return first;
}

uint32_t
ist__form_room(const struct ist__form *f, uint32_t r)
{
	return first_of_room(f, r);
}

static ist_err
join_link(struct ist__form *f, uint32_t to, struct ist_error *err)
{
	return lane(f, &f->links[to], to, IST__TAG(IST__TAG_LINK, to), IST__LINK) ? IST_OK : dial_link(f, to, err);
}

/* Nobody there: then the member stands alone. */
static ist_err
dial_local(struct ist__form *f, uint32_t first, struct ist_error *err)
{
	int fd;
	ist_err e = ist__reach_local(f, &f->claims[first].card, &fd, err);

	if (e == IST_UNSUPPORTED)
		return IST_OK;
	return e ? e : add_conn(f, &f->local[first], fd, IST__TAG(IST__TAG_LOCAL, first), IST__HOSTLINK, err);
}

static ist_err
join_local(struct ist__form *f, uint32_t first, struct ist_error *err)
{
	return lane(f, &f->local[first], first, IST__TAG(IST__TAG_LOCAL, first), IST__HOSTLINK) ? IST_OK : dial_local(f, first, err);
}

ist_err
ist__form_redial(struct ist__form *f, uint64_t tag, struct ist_error *err)
{
	uint32_t to = (uint32_t)tag;

	if (to == first_of_room(f, f->args.rank))
		f->gave = false; /* what went that way is lost */
	return tag >> 32 == IST__TAG_LINK ? dial_link(f, to, err) : dial_local(f, to, err);
}

static bool
right_member(struct ist__form *f, const struct ist__spoke *s, uint32_t rank)
{
	return !memcmp(ist__conn_agreed(s->post->conn)->peer.member, f->claims[rank].card.id, IST__MEMBER_BYTES);
}

static ist_err
wrong_member(struct ist__form *f, uint32_t rank, struct ist_error *err)
{
	ist__fail(err, IST_WRONG_PEER, "group_new", "another process answers at %s, where rank %u should be", f->claims[rank].card.addr, rank);
	ist__fail_rank(err, rank);
	return IST_WRONG_PEER;
}

/* Is there a link between these two, other than by the star? */
static bool
linked(const uint32_t *nb, uint32_t n, uint32_t me, uint32_t to)
{
	for (uint32_t i = 0; i < n; i++)
		if (nb[i] == to)
			return to != 0 && me != 0;
	return false;
}

ist_err
ist__form_dial_links(struct ist__form *f, struct ist_error *err)
{
	uint32_t nb[64], n = ist__mesh_neighbours(f->args.rank, f->args.size, nb), me = f->args.rank;
	uint32_t first = first_of_host(f, me), room = first_of_room(f, me);
	ist_err e;

	for (uint32_t i = 0; i < n; i++)
		if (nb[i] < me && linked(nb, n, me, nb[i]) && (e = join_link(f, nb[i], err)))
			return e;
	/* the star or a link may join us already, or have shown that nothing does */
	if (first != me && first != 0 && !linked(nb, n, me, first) && (e = join_local(f, first, err)))
		return e;
	if (room != me && room != first && !linked(nb, n, me, room))
		return join_local(f, room, err);
	return IST_OK;
}

ist_err
ist__form_await_links(struct ist__form *f, bool all, struct ist_error *err)
{
	uint32_t nb[64], n = ist__mesh_neighbours(f->args.rank, f->args.size, nb), me = f->args.rank;
	uint32_t first = first_of_host(f, me), room = first_of_room(f, me);

	for (;;) {
		bool waits = (f->local[first].post && !f->local[first].ready) || (f->local[room].post && !f->local[room].ready);
		ist_err e;

		for (uint32_t i = 0; i < n; i++) {
			struct ist__spoke *s = &f->links[nb[i]];

			if (!linked(nb, n, me, nb[i]) || (!all && nb[i] != first && nb[i] != room))
				continue; /* the star serves, or there is time */
			if (!s->post || !s->ready)
				waits = true;
			else if (!right_member(f, s, nb[i]))
				return wrong_member(f, nb[i], err);
		}
		if (!waits)
			return IST_OK;
		if (ist__now() >= f->deadline) {
			e = ist__fail(err, IST_TIMEOUT, "group_new", "links to the neighbours did not come about in time");
			for (uint32_t i = 0; i < n; i++)
				if (linked(nb, n, me, nb[i]) && !f->links[nb[i]].ready)
					ist__fail_rank(err, nb[i]);
			return e;
		}
		e = ist__form_scarce(f, err);
		if (!e)
			e = ist__form_wait(f, IST__NEVER, err);
		if (e)
			return e;
	}
}

static bool
stands_with(struct ist__form *f, uint32_t first)
{
	const struct ist__spoke *s = first != f->args.rank ? ist__form_near(f, first) : NULL;

	return first == f->args.rank || (s && (first == 0 || s->ready));
}

bool
ist__form_together(struct ist__form *f)
{
	return stands_with(f, first_of_host(f, f->args.rank)) && stands_with(f, first_of_room(f, f->args.rank));
}

/* ---- hosts ---- */

/* All members are here and know of boards: they share one. */
static uint64_t
board_bytes(const struct ist__form *f)
{
	return f->n_here == f->args.size ? ist__board_bytes(f->args.size, f->features) : 0;
}

/* Those whose first member we are: their sockets may still be on their way in; they have told that they stand. */
static ist_err
await_followers(struct ist__form *f, const uint32_t *first, struct ist_error *err)
{
	uint32_t me = f->args.rank;
	ist_err e;

	for (uint32_t r = 0; r < f->args.size; r++)
		while (r != me && first[r] == me && !ist__form_near(f, r)) {
			if (ist__now() >= f->deadline) {
				ist__fail(err, IST_TIMEOUT, "group_new", "rank %u did not show itself on this host", r);
				ist__fail_rank(err, r);
				return IST_TIMEOUT;
			}
			e = ist__form_scarce(f, err);
			if (!e)
				e = ist__form_wait(f, IST__NEVER, err);
			if (e)
				return e;
		}
	return IST_OK;
}

static ist_err
lead_host(struct ist__form *f, struct ist_error *err)
{
	uint32_t me = f->args.rank;
	struct ist_error none;
	ist_err e = await_followers(f, f->host, err);

	if (e)
		return e;
	ist_error_init(&none);
	e = ist__life_new(f->ctx, f->n_here, board_bytes(f), &f->life, &f->life_fd, &none);
	if (e && e != IST_UNSUPPORTED)
		ist__error_copy(err, &none);
	if (e == IST_UNSUPPORTED) {
		ist__log(f->ctx, 1, "no sign of life on this host: %s; a death is known by its connections alone", none.detail);
		f->lifeless = true;
		e = IST_OK;
	}
	for (uint32_t r = 0; !e && r < f->args.size; r++) {
		struct ist__frame *x;
		int sys;

		if (r == me || f->host[r] != me)
			continue;
		x = ist__frame_new(f->inbox.loop, IST__HOSTLINK, f->lifeless ? "\0" : "\1", 1);
		if (!x)
			return ist__fail_memory(err, "group_new");
		if (f->lifeless) {
			ist__conn_send(ist__form_near(f, r)->post->conn, x);
			continue;
		}
		x->flags = IST__FRAME_HAS_FDS;
		x->fds[0] = f->life_fd;
		x->n_fds = 1;
		sys = ist__conn_send_lent(ist__form_near(f, r)->post->conn, x);
		if (sys)
			return ist__fail_sys(err, IST_LIMIT, sys, "group_new", "a descriptor for rank %u", r);
	}
	return e;
}

static ist_err
follow_host(struct ist__form *f, struct ist_error *err)
{
	while (f->life_fd < 0 && !f->lifeless) {
		ist_err e = ist__form_scarce(f, err);

		if (e)
			return e;
		if (ist__now() >= f->deadline) {
			ist__fail(err, IST_TIMEOUT, "group_new", "rank %u handed over no sign of life", f->host[f->args.rank]);
			ist__fail_rank(err, f->host[f->args.rank]);
			return IST_TIMEOUT;
		}
		e = ist__form_wait(f, IST__NEVER, err);
		if (e)
			return e;
	}
	return f->lifeless ? IST_OK : ist__life_map(f->ctx, f->life_fd, f->n_here, board_bytes(f), &f->life, err);
}

ist_err
ist__form_hosts(struct ist__form *f, struct ist__reader *all, struct ist_error *err)
{
	uint32_t me = f->args.rank;
	struct ist__groups *groups;
	ist_err e;

	for (uint32_t r = 0; r < f->args.size; r++) {
		f->host[r] = ist__get_u8(&all[r]) ? first_of_host(f, r) : r;
		f->slot[r] = 0;
		for (uint32_t i = 0; i < r; i++)
			f->slot[r] += f->host[i] == f->host[r];
	}
	for (uint32_t r = 0; r < f->args.size; r++) {
		uint32_t room = first_of_room(f, r);

		f->room[r] = f->host[r] == f->host[room] ? room : r; /* a room without its first member is none */
	}
	f->n_here = 0;
	for (uint32_t r = 0; r < f->args.size; r++)
		f->n_here += f->host[r] == f->host[me];
	if (f->n_here != f->args.size && f->ep->transport == IST_TRANSPORT_SHM)
		return ist__fail(err, IST_UNSUPPORTED, "group_new", "transport shm is asked for, and only %u of %u members share this host's memory", f->n_here, f->args.size);
	if (f->n_here == 1)
		return IST_OK;
	e = ist__groups_get(f->env, &groups, err);
	if (!e)
		e = await_followers(f, f->room, err);
	if (!e)
		e = f->host[me] == me ? lead_host(f, err) : follow_host(f, err);
	if (!e && !f->lifeless)
		ist__life_hold(f->life, ist__groups_keeper(groups), f->slot[me]); /* make_group waits for it */
	return e;
}
