/* SPDX-License-Identifier: Apache-2.0
 *
 * star.c - rank 0 and the members while a group forms: sorting what comes in, and the one exchange that every step is.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/form_int.h"
#include "net/wire.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ASK_MS = 700, LOOK_MS = 50, RUMOUR_MS = 1000, LATE_MS = 500, REDIALS = 3 /* as often as the other side turns somebody away in silence */ };

void
ist__spoke_clear(struct ist__form *f, struct ist__spoke *s, bool linger)
{
	if (s->post)
		ist__inbox_drop(&f->inbox, s->post, linger);
	ist__msg_free(f->inbox.loop, s->phase);
	while (s->partials) {
		struct ist__msg *m = s->partials;

		s->partials = m->next;
		ist__msg_free(f->inbox.loop, m);
	}
	while (s->later) {
		struct ist__frame *x = s->later;

		s->later = x->next;
		ist__frame_free(f->inbox.loop, x);
	}
	*s = (struct ist__spoke){ .post = NULL };
}

bool
ist__form_send(struct ist__spoke *s, struct ist__form *f, uint16_t type, uint64_t seq, const void *body, uint64_t bytes)
{
	struct ist__msg head = { .type = type, .seq = seq, .generation = f->generation, .from = f->args.rank };

	return !s->post || ist__msg_send(s->post->conn, &head, body, bytes) || !ist__conn_has_starved(s->post->conn);
}

void
ist__form_send_error(struct ist__spoke *s, struct ist__form *f, uint16_t type, const struct ist_error *err)
{
	struct ist__writer w;

	ist__writer_init(&w, f->ctx);
	ist__put_error(&w, err);
	if (!w.bad)
		ist__form_send(s, f, type, 0, w.at, w.bytes);
	else if (s->post)
		ist__conn_starve(s->post->conn); /* it must hear something */
	ist__writer_fini(&w);
}

bool
ist__form_is_missing(struct ist__form *f, uint32_t rank)
{
	bool is;

	pthread_mutex_lock(&f->missing_lock);
	is = f->missing[rank];
	pthread_mutex_unlock(&f->missing_lock);
	return is;
}

static void
set_missing(struct ist__form *f, uint32_t rank, bool is)
{
	pthread_mutex_lock(&f->missing_lock);
	f->missing[rank] = is;
	pthread_mutex_unlock(&f->missing_lock);
}

void
ist__form_note_refused(struct ist__form *f, const struct ist_error *err)
{
	pthread_mutex_lock(&f->missing_lock);
	if (!f->passer.code)
		f->passer = *err;
	pthread_mutex_unlock(&f->missing_lock);
}

/* ---- roll-call on rank 0: who claims which rank ---- */

static bool
claim_get(const struct ist__msg *m, struct ist__claim *c, char *name, size_t room)
{
	struct ist__reader r;

	ist__reader_init(&r, m->body, m->bytes);
	ist__get_bytes(&r, IST__GROUP_KEY);
	ist__get_str(&r, name, room);
	c->rank = ist__get_u32(&r);
	c->size = ist__get_u32(&r);
	c->transport = ist__get_u32(&r);
	c->mem = ist__get_u32(&r);
	c->device = (int32_t)ist__get_u32(&r);
	c->bucket_bytes = ist__get_u64(&r);
	ist__get_str(&r, c->backend, sizeof(c->backend));
	return ist__card_get(&r, &c->card) && !r.bad;
}

static void
refuse(struct ist__form *f, struct ist__spoke *s, const struct ist_error *err)
{
	ist__log(f->ctx, 1, "refused: %s", err->detail);
	ist__form_note_refused(f, err);
	ist__form_send_error(s, f, IST__FAIL, err);
	ist__spoke_clear(f, s, true);
}

static void
refuse_conflict(struct ist__form *f, struct ist__spoke *s, const struct ist__claim *second)
{
	const struct ist__card *holder = second->rank == f->args.rank ? &f->card : &f->claims[second->rank].card;
	struct ist_error e;

	ist_error_init(&e);
	ist__fail(&e, IST_CONFLICT, "group_new", "rank %u of group \"%s\" is held by host %s pid %llu; host %s pid %llu claims it too", second->rank,
		f->name, holder->host, (unsigned long long)holder->pid, second->card.host, (unsigned long long)second->card.pid);
	ist__fail_rank(&e, second->rank);
	refuse(f, s, &e);
}

static void
accept_claim(struct ist__form *f, const struct ist__claim *c, struct ist__spoke *s)
{
	f->star[c->rank] = *s;
	if (s->post)
		s->post->tag = IST__TAG(IST__TAG_STAR, c->rank);
	if (!s->later)
		f->star[c->rank].later_last = &f->star[c->rank].later;
	f->claims[c->rank] = *c;
	set_missing(f, c->rank, false);
	ist__log(f->ctx, 2, "rank %u of group \"%s\" is here: %s pid %llu", c->rank, f->name, c->card.host, (unsigned long long)c->card.pid);
}

static void
on_join(struct ist__form *f, struct ist__spoke *s, const struct ist__msg *m)
{
	struct ist__claim c;
	struct ist_error e;
	char name[256];

	ist_error_init(&e);
	if (!claim_get(m, &c, name, sizeof(name)) ||
	    memcmp(ist__conn_agreed(s->post->conn)->peer.member, c.card.id, IST__MEMBER_BYTES) != 0) {
		ist__fail(&e, IST_BAD_FORMAT, "group_new", "a claim that can't be read, or is another member's");
		refuse(f, s, &e);
	} else if (c.size != f->args.size || c.rank >= f->args.size) {
		ist__fail(&e, IST_MISMATCH, "group_new", "rank %u (%s pid %llu) says a world of %u, rank 0 says %u", c.rank, c.card.host,
			(unsigned long long)c.card.pid, c.size, f->args.size);
		ist__fail_rank(&e, c.rank);
		ist__fail_rank(&e, 0);
		refuse(f, s, &e);
	} else if (f->cards && memcmp(f->cards[c.rank].id, c.card.id, IST__MEMBER_BYTES) != 0) {
		ist__fail(&e, IST_DENIED, "group_new", "rank %u is another member by the list of addresses", c.rank);
		refuse(f, s, &e);
	} else if (c.rank == f->args.rank)
		refuse_conflict(f, s, &c);
	else if (f->star[c.rank].post) {
		struct ist__contest *x = ist__alloc(f->ctx, sizeof(*x));

		if (!x) {
			ist__spoke_clear(f, s, false);
			return;
		}
		*x = (struct ist__contest){ .next = f->contests, .spoke = *s, .claim = c, .until = ist__now() + ASK_MS * IST__MS };
		x->spoke.post->tag = IST__TAG(IST__TAG_STAR, IST_NO_RANK - 1); /* nobody's events but its end */
		f->contests = x;
		ist__form_send(&f->star[c.rank], f, IST__ASK, 0, NULL, 0);
	} else
		accept_claim(f, &c, s);
}

/* answered: the holder of that rank lives; IST_NO_RANK: look at the time only. */
static void
settle_contests(struct ist__form *f, uint32_t answered)
{
	int64_t now = ist__now();

	for (struct ist__contest **p = &f->contests; *p;) {
		struct ist__contest *x = *p;

		if (f->star[x->claim.rank].post && x->claim.rank != answered && now < x->until) {
			p = &x->next;
			continue;
		}
		*p = x->next;
		if (f->star[x->claim.rank].post)
			refuse_conflict(f, &x->spoke, &x->claim);
		else
			accept_claim(f, &x->claim, &x->spoke);
		ist__free(f->ctx, x);
	}
}

static bool
contest_ended(struct ist__form *f, struct ist__post *post)
{
	for (struct ist__contest **p = &f->contests; *p; p = &(*p)->next)
		if ((*p)->spoke.post == post) {
			struct ist__contest *x = *p;

			*p = x->next;
			ist__spoke_clear(f, &x->spoke, false);
			ist__free(f->ctx, x);
			return true;
		}
	return false;
}

/* ---- events ---- */

static struct ist__spoke *
spoke_of(struct ist__form *f, const struct ist__post *post)
{
	uint32_t kind = (uint32_t)(post->tag >> 32), rank = (uint32_t)post->tag;

	if (kind == IST__TAG_STAR && rank < f->args.size)
		return &f->star[f->args.rank == 0 ? rank : 0];
	if (kind == IST__TAG_LINK && rank < f->args.size)
		return &f->links[rank];
	if (kind == IST__TAG_LOCAL && rank < f->args.size)
		return &f->local[rank];
	return NULL;
}

static void
keep_for_later(struct ist__spoke *s, struct ist__event *ev)
{
	if (!s->later)
		s->later_last = &s->later;
	ev->frame->next = NULL;
	*s->later_last = ev->frame;
	s->later_last = &ev->frame->next;
	ev->frame = NULL;
}

static ist_err
keep_fds(struct ist__form *f, uint32_t from, const int32_t *fds, uint32_t n, struct ist_error *err)
{
	if (from >= f->args.size || f->wires[from].came || n > IST__OFFER_FDS)
		return ist__fail(err, IST_BAD_FORMAT, "group_new", "descriptors from rank %u came twice or from nowhere", from);
	f->wires[from].n = n;
	memcpy(f->wires[from].fd, fds, n * sizeof(*fds));
	f->wires[from].came = true;
	return IST_OK;
}

/* One member's, or those of several, which then are said. What was not kept goes with the frame. */
static ist_err
take_fds(struct ist__form *f, struct ist__event *ev, struct ist_error *err)
{
	struct ist__frame *x = ev->frame;
	struct ist__reader r;
	ist_err e = IST_OK;

	if (x->bytes == 1) {
		e = keep_fds(f, x->from, x->fds, x->n_fds, err);
		x->n_fds = e ? x->n_fds : 0;
		return e;
	}
	ist__reader_init(&r, x->body + 1, x->bytes - 1);
	while (!e && r.left > 0) {
		uint32_t from = ist__get_u32(&r), n = ist__get_u8(&r);

		if (r.bad || n > x->n_fds)
			return ist__fail(err, IST_BAD_FORMAT, "group_new", "a bundle of descriptors that can't be read");
		e = keep_fds(f, from, x->fds, n, err);
		if (e)
			break;
		x->n_fds -= n;
		memmove(x->fds, x->fds + n, x->n_fds * sizeof(*x->fds));
	}
	return e;
}

static void
on_wait(struct ist__form *f, const struct ist__msg *m)
{
	pthread_mutex_lock(&f->missing_lock);
	for (uint32_t r = 0; r < f->args.size && r < m->bytes; r++)
		f->missing[r] = m->body[r];
	pthread_mutex_unlock(&f->missing_lock);
}

static ist_err
on_fail(const struct ist__form *f, const struct ist__msg *m, struct ist_error *err)
{
	struct ist__reader r;
	struct ist_error e;

	ist_error_init(&e);
	ist__reader_init(&r, m->body, m->bytes);
	if (!ist__get_error(&r, &e))
		return ist__fail(err, IST_BAD_FORMAT, "group_new", "rank 0 refuses, and can't say why");
	ist__hear_loss(&e, f->args.rank, "group_new");
	ist__error_copy(err, &e);
	return e.code;
}

/* Rank 0: a member failed in its step. What it says of that goes to all, unless it is only that its time is over: then
 * ist__form_collect waits for better stories. */
static ist_err
failed_step(struct ist__form *f, uint32_t rank, const struct ist__msg *m, struct ist_error *err)
{
	struct ist__reader in;
	struct ist_error e;

	ist_error_init(&e);
	ist__reader_init(&in, m->body, m->bytes);
	ist__get_u8(&in);
	if (in.bad || !ist__get_error(&in, &e))
		ist__fail(&e, IST_BAD_FORMAT, "group_new", "a failure that can't be read");
	if (e.code == IST_TIMEOUT)
		return IST_OK;
	ist__fail_told_by(&e, rank);
	f->told = true;
	ist__error_copy(err, &e);
	return e.code;
}

static ist_err
on_message(struct ist__form *f, struct ist__spoke *s, struct ist__msg *m, struct ist_error *err)
{
	ist_err e = IST_OK;

	switch (m->type) {
	case IST__WAIT: on_wait(f, m); break;
	case IST__FAIL: e = on_fail(f, m, err); break;
	case IST__ASK: ist__form_send(s, f, IST__ANSWER, m->seq, NULL, 0); break;
	case IST__ANSWER: settle_contests(f, m->from); break;
	case IST__ROLL:
	case IST__PHASE:
		ist__msg_free(f->inbox.loop, s->phase);
		s->phase = m;
		if (f->args.rank == 0 && s->post->tag >> 32 == IST__TAG_STAR && (m->bytes == 0 || m->body[0] != 0))
			return failed_step(f, (uint32_t)s->post->tag, m, err); /* told at once: we may wait for something else of it */
		return IST_OK;
	default:
		if (m->flags & IST__FRAME_CRITICAL) {
			e = ist__fail(err, IST_VERSION_MISMATCH, "group_new", "rank %u sent a critical frame of type %u, which this library does not know", m->from, m->type);
			ist__fail_rank(err, m->from);
		}
		break;
	}
	ist__msg_free(f->inbox.loop, m);
	return e;
}

static ist_err
on_frame(struct ist__form *f, struct ist__spoke *s, struct ist__event *ev, struct ist_error *err)
{
	struct ist__frame *frame = ev->frame;
	struct ist__msg *m;
	ist_err e;

	if (frame->fds_lost) {
		ist__form_fds_lost(f, frame->from);
		return IST_OK;
	}
	if (frame->type == IST__FDS)
		return take_fds(f, ev, err);
	if (frame->type == IST__HOSTLINK && frame->n_fds == 1 && f->life_fd < 0) {
		f->life_fd = frame->fds[0];
		frame->n_fds = 0;
		return IST_OK;
	}
	if (frame->type == IST__HOSTLINK && frame->n_fds == 0 && frame->bytes == 1 && frame->body[0] == 0) {
		f->lifeless = true;
		return IST_OK;
	}
	if (frame->type >= IST__PING) { /* the mesh's: the other side has finished forming already */
		f->others_through |= frame->generation == f->generation;
		keep_for_later(s, ev);
		return IST_OK;
	}
	ev->frame = NULL;
	e = ist__msg_take(f->inbox.loop, &s->partials, frame, IST_OBJECT_BYTES_MAX, &m, err);
	return e || !m ? e : on_message(f, s, m, err);
}

/* A claimant's first message: its spoke is not in any table yet. */
static ist_err
on_newcomer(struct ist__form *f, struct ist__event *ev, struct ist_error *err)
{
	struct ist__spoke s = { .post = ev->post };
	struct ist__msg *m = NULL;
	struct ist__frame *frame = ev->frame;

	if (ev->kind == IST__EVENT_CLOSED) {
		ist__spoke_clear(f, &s, false);
		return IST_OK;
	}
	if (ev->kind != IST__EVENT_FRAME)
		return IST_OK;
	ev->frame = NULL;
	if (ist__msg_take(f->inbox.loop, &s.partials, frame, IST__FRAME_MAX, &m, err) || !m) {
		ist__spoke_clear(f, &s, false);
		return IST_OK; /* a stranger's mistake is his */
	}
	on_join(f, &s, m);
	ist__msg_free(f->inbox.loop, m);
	return IST_OK;
}

/* Trouble of our own, which others can only guess at. */
static bool
is_ours(const struct ist__form *f, const struct ist_error *err)
{
	return err && ist__fail_is_own(err->code) && (err->n_ranks == 0 || (err->n_ranks == 1 && err->ranks[0] == f->args.rank));
}

/* What a connection ended with; for the words there may have been no memory. */
static ist_err
end_code(const struct ist__event *ev)
{
	ist_err e = ev->error ? ev->error->code : ist__conn_end_code(ev->post->conn);

	return e ? e : IST_PEER_LOST;
}

static ist_err
lost_member(const struct ist__form *f, struct ist__event *ev, uint32_t rank, struct ist_error *err)
{
	ist_err e = end_code(ev);

	if (ist__fail_is_own(e)) { /* ours, not that member's */
		ist__fail(err, e, "group_new", "the connection with rank %u was given up: %s", rank, ev->error ? ev->error->detail : ist_err_text(e));
		ist__fail_rank(err, f->args.rank);
		return e;
	}
	ist__fail(err, e, "group_new", "rank %u went away while the group was forming: %s", rank, ev->error ? ev->error->detail : "");
	ist__fail_rank(err, rank);
	return e;
}

/* What we dialled ended before the other side had taken it, or what was handed over: it may have had nothing to take it with. */
static bool
may_come_again(const struct ist__form *f, const struct ist__spoke *s)
{
	return !f->voted && s->tries < REDIALS && (s->lane || (s->dialled && !s->ready));
}

static ist_err
come_again(struct ist__form *f, struct ist__spoke *s, uint64_t tag, struct ist_error *err)
{
	uint32_t tries = s->tries + 1;

	ist__spoke_clear(f, s, false);
	s->tries = tries;
	return ist__form_redial(f, tag, err);
}

static ist_err
lost_spoke(struct ist__form *f, struct ist__event *ev, struct ist__spoke *s, struct ist_error *err)
{
	uint32_t kind = (uint32_t)(ev->post->tag >> 32), rank = (uint32_t)ev->post->tag;
	bool early = f->generation == 0; /* roll-call */
	struct ist_error why;
	ist_err e;

	ist_error_init(&why);
	if (kind == IST__TAG_STAR && f->args.rank == 0 && early) {
		ist__spoke_clear(f, s, false); /* it may come again, or somebody else in its place */
		set_missing(f, rank, true);
		settle_contests(f, IST_NO_RANK);
		return IST_OK;
	}
	if (kind != IST__TAG_STAR && ist__fail_is_own(end_code(ev)) && !f->voted)
		return lost_member(f, ev, rank, err); /* at once: the other side takes us for lost, and will say so */
	if (may_come_again(f, s)) {
		e = come_again(f, s, ev->post->tag, &why);
		if (!e || is_ours(f, &why)) {
			ist__error_copy(err, &why);
			return e;
		}
	} else
		lost_member(f, ev, rank, &why);
	if (kind == IST__TAG_LOCAL && !f->stands) {
		ist__spoke_clear(f, s, false); /* then the two are not together, and TCP serves */
		return IST_OK;
	}
	if (f->voted && kind != IST__TAG_STAR) { /* a member that is through already may have ended its group again */
		s->ended = true;
		return IST_OK;
	}
	if (kind != IST__TAG_STAR && f->star[0].post && f->args.rank != 0) {
		/* it may have gone because another did, rank 0 even, and we are the last to see that */
		s->ended = true;
		if (!f->rumour.code) {
			f->rumour = why;
			f->rumour_until = ist__now() + RUMOUR_MS * IST__MS;
		}
		return IST_OK;
	}
	if (kind == IST__TAG_STAR && f->args.rank != 0)
		rank = 0;
	e = lost_member(f, ev, rank, err);
	if (f->vote) /* all may have said yes before: then there is a group, which has lost that one */
		s->ended = true;
	else
		ist__spoke_clear(f, s, false);
	return e;
}

/* Of a visitor that was taken, and could not be heard for want of memory: it takes itself for let in, and won't come again. */
static ist_err
lost_visitor(const struct ist__form *f, struct ist__event *ev, const struct ist__spoke *s, struct ist_error *err)
{
	bool ours = s && ev->kind == IST__EVENT_CLOSED && !f->voted && ist__fail_is_own(end_code(ev));

	return ours ? lost_member(f, ev, (uint32_t)ev->post->tag, err) : IST_OK;
}

static ist_err
sort(struct ist__form *f, struct ist__event *ev, struct ist_error *err)
{
	struct ist__spoke *s;

	if (ev->post->tag == IST__TAG_MEET)
		return ist__rdv_event(&f->rdv, ev, err);
	if (ev->post->tag == 0)
		return on_newcomer(f, ev, err);
	if (ev->kind == IST__EVENT_CLOSED && contest_ended(f, ev->post))
		return IST_OK;
	s = spoke_of(f, ev->post);
	if (s && !s->post && ev->kind == IST__EVENT_FRAME && (ev->frame->type == IST__LINK || ev->frame->type == IST__HOSTLINK)) {
		s->post = ev->post; /* a visitor, checked by take_visitor */
		s->ready = true;
		return IST_OK;
	}
	if (!s || s->post != ev->post)
		return lost_visitor(f, ev, s, err);
	if (ev->kind == IST__EVENT_READY) {
		s->ready = true;
		return IST_OK;
	}
	if (ev->kind == IST__EVENT_CLOSED)
		return lost_spoke(f, ev, s, err);
	return on_frame(f, s, ev, err);
}

ist_err
ist__form_wait(struct ist__form *f, int64_t until, struct ist_error *err)
{
	struct ist__event ev;
	int64_t at = until < f->deadline ? until : f->deadline;
	ist_err e;

	for (struct ist__contest *x = f->contests; x; x = x->next)
		if (x->until < at)
			at = x->until;
	if (f->rumour.code && f->rumour_until < at)
		at = f->rumour_until;
	e = ist__inbox_wait(&f->inbox, at, &ev, err);
	if (e == IST_TIMEOUT) {
		settle_contests(f, IST_NO_RANK);
		if (f->rumour.code && ist__now() >= f->rumour_until) {
			ist__error_copy(err, &f->rumour);
			return f->rumour.code;
		}
		return IST_OK;
	}
	if (e)
		return e;
	e = sort(f, &ev, err);
	ist__event_done(&f->inbox, &ev);
	return e;
}

/* ---- the exchange ---- */

void
ist__form_own(struct ist__form *f, struct ist_error *err)
{
	/* ours: nobody else can know whose it is. A call that was cancelled, too: what another cancelled names that one */
	if ((ist__fail_is_own(err->code) || err->code == IST_ABORTED) && err->n_ranks == 0) {
		ist__fail_rank(err, f->args.rank);
		ist__fail_per_rank(err, f->args.rank, err->code);
		ist__fail_prefix(err, "rank %u: ", f->args.rank);
	}
}

ist_err
ist__form_fail_all(struct ist__form *f, struct ist_error *err)
{
	ist__form_own(f, err);
	for (uint32_t r = 1; r < f->args.size; r++)
		ist__form_send_error(&f->star[r], f, IST__FAIL, err);
	return err->code;
}

/* What rank r says of its failure. Not inlined: it would lie on the stack while others are waited for. */
static __attribute__((noinline)) void
read_failure(uint32_t r, struct ist__reader *in, struct ist_error *out)
{
	struct ist_error said;

	ist_error_init(&said);
	if (!ist__get_error(in, &said))
		ist__fail(&said, IST_BAD_FORMAT, "group_new", "a failure that can't be read");
	ist__fail_told_by(&said, r);
	if (!out->code || said.code != IST_TIMEOUT)
		*out = said;
}

/* Until when may a wait in the exchange sleep? Who settles a vote in memory may be stopped before it has woken us: we look. */
static int64_t
next_look(const struct ist__form *f)
{
	return f->vote ? ist__now() + LOOK_MS * IST__MS : IST__NEVER;
}

/* Rank 0's half: all answers, or the first failure. At the deadline a member that waits for one that stopped can only say
 * that its time is over; who says nothing, not even that, is the one to name. */
static ist_err
collect_until(struct ist__form *f, uint32_t step, const char *what, struct ist_error *err)
{
	for (;;) {
		struct ist_error e, late;
		uint32_t missing = 0;

		ist_error_init(&e);
		ist_error_init(&late);
		ist__fail(&e, IST_TIMEOUT, "group_new", "the deadline passed in step \"%s\"", what);
		if (f->vote && ist__life_outcome(f->vote))
			return IST_OK;
		for (uint32_t r = 1; r < f->args.size; r++) {
			const struct ist__msg *m = f->star[r].phase;
			struct ist__reader in;

			if (f->vote && ist__life_voted(f->vote, f->slot[r]))
				continue;
			if (!m || m->seq != step) {
				missing++;
				ist__fail_rank(&e, r);
				continue;
			}
			ist__reader_init(&in, m->body, m->bytes);
			if (ist__get_u8(&in) != 0 || in.bad) {
				read_failure(r, &in, &late);
				if (late.code != IST_TIMEOUT) {
					ist__error_copy(err, &late);
					return late.code;
				}
			}
		}
		if (missing == 0) {
			if (late.code)
				ist__error_copy(err, &late);
			return late.code;
		}
		if (ist__now() >= f->deadline) {
			ist__error_copy(err, &e);
			return e.code;
		}
		e.code = ist__form_wait(f, next_look(f), err);
		if (e.code)
			return e.code;
	}
}

ist_err
ist__form_collect(struct ist__form *f, uint32_t step, const char *what, struct ist_error *err)
{
	int64_t own = f->deadline;
	ist_err e;

	if (own != IST__NEVER)
		f->deadline += LATE_MS * IST__MS;
	e = collect_until(f, step, what, err);
	f->deadline = own;
	return e;
}

/* Puts the bytes of all, by rank, behind each other. */
static ist_err
gather(struct ist__form *f, uint32_t step, const void *bytes, uint64_t n, struct ist_error *err)
{
	struct ist__writer w;
	struct ist__msg *keep = NULL;

	ist__writer_init(&w, f->ctx);
	for (uint32_t r = 0; r < f->args.size; r++) {
		struct ist__msg *m = r ? f->star[r].phase : NULL;

		if (r)
			ist__put_blob(&w, m->body + 1, m->bytes - 1);
		else
			ist__put_blob(&w, bytes, n);
	}
	if (!w.bad)
		keep = ist__slab_get(ist__loop_slab(f->inbox.loop), sizeof(*keep));
	if (keep) {
		*keep = (struct ist__msg){ .type = IST__PHASE, .seq = step, .bytes = w.bytes };
		keep->body = ist__slab_get(ist__loop_slab(f->inbox.loop), w.bytes + 1);
	}
	if (!keep || !keep->body) {
		ist__writer_fini(&w);
		ist__msg_free(f->inbox.loop, keep);
		return ist__fail_memory(err, "group_new");
	}
	memcpy(keep->body, w.at, w.bytes);
	ist__writer_fini(&w);
	ist__msg_free(f->inbox.loop, f->star[0].phase);
	f->star[0].phase = keep;
	return IST_OK;
}

static ist_err
hand_on(struct ist__form *f, struct ist_error *err)
{
	const struct ist__msg *m = f->star[0].phase;
	bool sent = true;

	for (uint32_t r = 1; r < f->args.size; r++)
		sent &= ist__form_send(&f->star[r], f, IST__PHASE, m->seq, m->body, m->bytes);
	/* the last word counts once one member may have it: who could not be told loses us, and we him */
	return sent || f->voted ? IST_OK : ist__fail_memory(err, "group_new");
}

static ist_err
spread(struct ist__form *f, struct ist__reader *all, struct ist_error *err)
{
	const struct ist__msg *m = f->star[0].phase;
	struct ist__reader r;

	ist__reader_init(&r, m->body, m->bytes);
	for (uint32_t i = 0; i < f->args.size; i++) {
		uint64_t n;
		const void *at = ist__get_blob(&r, &n);

		ist__reader_init(&all[i], at, at ? n : 0);
	}
	return r.bad ? ist__fail(err, IST_BAD_FORMAT, "group_new", "what rank 0 sent can't be read") : IST_OK;
}

static bool
root_said(const struct ist__form *f, uint16_t type, uint64_t seq)
{
	const struct ist__msg *m = f->star[0].phase;

	return m && m->type == type && m->seq == seq;
}

static bool
all_voted(const struct ist__form *f)
{
	for (uint32_t r = 0; r < f->args.size; r++)
		if (!ist__life_voted(f->vote, f->slot[r]))
			return false;
	return true;
}

/* Rank 0, or whoever was to wake us, may be stopped between its words: then others tell, by having the group, or the memory that
 * all look at. */
static bool
vote_is_over(const struct ist__form *f, uint16_t type, uint64_t seq)
{
	if (!f->voted || type != IST__PHASE || seq != IST__STEP_VOTE)
		return false;
	return f->others_through || (f->vote && (ist__life_outcome(f->vote) || all_voted(f)));
}

/* A member waits a little past its own deadline for rank 0's word, so that both sides end alike. */
ist_err
ist__form_await_word(struct ist__form *f, uint16_t type, uint64_t seq, const char *what, struct ist_error *err)
{
	int64_t own = f->deadline;
	ist_err e = IST_OK;

	if (f->deadline != IST__NEVER)
		f->deadline += 1000 * IST__MS;
	while (!e && !root_said(f, type, seq) && !vote_is_over(f, type, seq)) {
		if (!f->star[0].post) { /* heard already, while we waited for something else */
			e = ist__fail(err, IST_PEER_LOST, "group_new", "rank 0 went away before step \"%s\" ended", what);
			ist__fail_rank(err, 0);
		} else if (ist__now() >= f->deadline) {
			e = ist__fail(err, IST_TIMEOUT, "group_new", "rank 0 said nothing in step \"%s\"", what);
			ist__fail_rank(err, 0);
		} else
			e = ist__form_wait(f, next_look(f), err);
	}
	f->deadline = own;
	return e;
}

ist_err
ist__form_exchange(struct ist__form *f, uint32_t step, const char *what, ist_err mine, struct ist_error *err,
	const void *bytes, uint64_t n, struct ist__reader *all, ist__form_between *between)
{
	struct ist__writer w;
	struct ist_error told;
	bool sent;
	ist_err e;

	if (f->args.rank == 0) {
		if (mine == IST_TIMEOUT) { /* others may know better whose fault it is, or say it by their silence */
			ist_error_init(&told);
			if (ist__form_collect(f, step, what, &told))
				ist__error_copy(err, &told);
		}
		if (mine) {
			if (!f->told)
				ist__fail_per_rank(err, 0, err ? err->code : mine);
			return ist__form_fail_all(f, err);
		}
		e = ist__form_collect(f, step, what, err);
		if (!e)
			e = gather(f, step, bytes, n, err);
		if (!e)
			e = spread(f, all, err);
		if (!e && between)
			e = between(f, all, err);
		if (!e)
			e = hand_on(f, err);
		return e ? ist__form_fail_all(f, err) : IST_OK;
	}
	ist__writer_init(&w, f->ctx);
	ist__put_u8(&w, mine ? 1 : 0);
	if (mine)
		ist__put_error(&w, err);
	else
		ist__put_bytes(&w, bytes, n);
	sent = !w.bad && ist__form_send(&f->star[0], f, IST__PHASE, step, w.at, w.bytes);
	ist__writer_fini(&w);
	if (!sent) /* nobody will answer what was not said; rank 0 sees us go */
		return mine ? mine : ist__fail_memory(err, "group_new");
	ist_error_init(&told);
	e = ist__form_await_word(f, IST__PHASE, step, what, &told);
	if (mine == IST_TIMEOUT && e == IST_TIMEOUT && told.n_ranks > 0 && told.ranks[0] != 0)
		mine = IST_OK; /* rank 0 has heard all */
	if (mine && e != IST_ABORTED && (e == IST_OK || e == IST_PEER_LOST || e == IST_TIMEOUT || is_ours(f, err))) {
		ist__form_own(f, err); /* ours is the better story */
		return mine;
	}
	if (e) {
		ist__error_copy(err, &told);
		return e;
	}
	return root_said(f, IST__PHASE, step) ? spread(f, all, err) : IST_OK; /* the vote hands nothing on */
}
