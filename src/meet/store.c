/* SPDX-License-Identifier: Apache-2.0
 *
 * What travels (bodies; the sequence number of an answer is its question's):
 *   PUBLISH   name, host, pid, card of rank 0        -> PUBLISHED, or REFUSED with the error
 *   FIND      name, rank, size                       -> FOUND card, as soon as there is one; again each time it changes
 *   TELL      a status                               -> nothing
 *   LIST      name or ""                             -> ROWS: count, then status and u64 ms since it was heard, each
 *   ASK                                              -> ANSWER (also the other way: is a holder still there?)
 *   NOTE      text                                   what a waiting member should tell its user
 *
 * Everything here runs on the loop's thread.
 */
#include "meet/store.h"

#include "base/clock.h"
#include "base/fail.h"
#include "net/wire.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ASK_MS = 700, TYPO_MS = 700, SESSIONS = 8192, CARD = 256 };

struct session {
	struct session *next, **link;
	struct ist__store *store;
	struct ist__conn *conn;
	/* a FIND that waits */
	bool finds;
	uint64_t find_seq;
	char find_name[256];
	uint32_t find_rank, find_size;
	int64_t find_since;
	/* a PUBLISH that waits for the holder's answer */
	struct record *contests;
	int64_t contest_until;
	uint64_t publish_seq;
	struct record *offer;
};

struct record { /* where rank 0 of a group is */
	struct record *next;      /* of the store */
	struct session *holder;
	char name[256], host[64];
	uint64_t pid;
	uint32_t card_bytes;
	uint8_t card[CARD];
};

struct row { /* what a member told */
	struct row *next;
	struct ist__status status;
	struct session *teller; /* NULL: gone */
	int64_t heard;
};

struct ist__store {
	struct ist__loop *loop;
	struct ist__acceptor *acceptor;
	struct ist__self self;
	struct ist__timer timer;
	struct session *sessions;
	struct record *records;
	struct row *rows;
	uint32_t n_sessions, n_rows;
	char own[256];
	void (*refused)(void *owner, const struct ist_error *err, bool proven, uint32_t group);
	void *owner;
};

static const struct ist__ctx *
ctx_of(struct ist__store *store)
{
	return ist__env_ctx(ist__loop_env(store->loop));
}

static void
send_frame(struct session *s, uint16_t type, uint64_t seq, const void *body, uint64_t bytes)
{
	struct ist__frame *f = ist__frame_new(s->store->loop, type, body, bytes);

	if (!f) {
		ist__conn_starve(s->conn); /* it waits for this, and will ask again */
		return;
	}
	f->seq = seq;
	ist__conn_send(s->conn, f);
}

static void
send_refusal(struct session *s, uint64_t seq, const struct ist_error *err)
{
	struct ist__writer w;

	ist__writer_init(&w, ctx_of(s->store));
	ist__put_error(&w, err);
	if (!w.bad)
		send_frame(s, IST__REFUSED, seq, w.at, w.bytes);
	else
		ist__conn_starve(s->conn); /* as there */
	ist__writer_fini(&w);
}

/* ---- records ---- */

static struct record *
record_of(struct ist__store *store, const char *name)
{
	for (struct record *r = store->records; r; r = r->next)
		if (!strcmp(r->name, name))
			return r;
	return NULL;
}

static void
record_remove(struct ist__store *store, struct record *r)
{
	for (struct record **p = &store->records; *p; p = &(*p)->next)
		if (*p == r) {
			*p = r->next;
			break;
		}
	for (struct session *s = store->sessions; s; s = s->next)
		if (s->contests == r)
			s->contests = NULL; /* its offer is taken below */
	ist__free(ctx_of(store), r);
}

static void
answer_finders(struct ist__store *store, const struct record *r)
{
	for (struct session *s = store->sessions; s; s = s->next)
		if (s->finds && !strcmp(s->find_name, r->name))
			send_frame(s, IST__FOUND, s->find_seq, r->card, r->card_bytes);
}

static void
record_take(struct session *s, struct record *offer, uint64_t seq)
{
	struct ist__store *store = s->store;

	offer->holder = s;
	offer->next = store->records;
	store->records = offer;
	send_frame(s, IST__PUBLISHED, seq, NULL, 0);
	answer_finders(store, offer);
}

static void
conflict(struct session *s, const struct record *holder)
{
	struct ist_error e;

	ist_error_init(&e);
	ist__fail(&e, IST_CONFLICT, "meet", "rank 0 of group \"%s\" is held by host %s pid %llu; host %s pid %llu claims it too", holder->name,
		holder->host, (unsigned long long)holder->pid, s->offer->host, (unsigned long long)s->offer->pid);
	ist__fail_rank(&e, 0);
	send_refusal(s, s->publish_seq, &e);
	ist__free(ctx_of(s->store), s->offer);
	s->offer = NULL;
	s->contests = NULL;
}

static void
on_publish(struct session *s, struct ist__frame *f)
{
	struct ist__store *store = s->store;
	struct record *r = ist__alloc(ctx_of(store), sizeof(*r)), *old;
	struct ist__reader in;
	const void *card;
	uint64_t n;

	if (!r) {
		ist__conn_starve(s->conn); /* it waits to be told that it is known, and will come again */
		return;
	}
	ist__reader_init(&in, f->body, f->bytes);
	ist__get_str(&in, r->name, sizeof(r->name));
	ist__get_str(&in, r->host, sizeof(r->host));
	r->pid = ist__get_u64(&in);
	card = ist__get_blob(&in, &n);
	if (!card || n > CARD || s->offer) {
		ist__free(ctx_of(store), r);
		return;
	}
	memcpy(r->card, card, n);
	r->card_bytes = (uint32_t)n;
	old = record_of(store, r->name);
	if (old && !memcmp(ist__conn_agreed(old->holder->conn)->peer.member, ist__conn_agreed(s->conn)->peer.member, IST__MEMBER_BYTES))
		record_remove(store, old), old = NULL; /* its own earlier record */
	if (!old) {
		record_take(s, r, f->seq);
		return;
	}
	s->offer = r;
	s->contests = old;
	s->publish_seq = f->seq;
	s->contest_until = ist__now() + ASK_MS * IST__MS;
	send_frame(old->holder, IST__ASK, 0, NULL, 0);
	if (store->timer.at > s->contest_until || !store->timer.link)
		ist__timer_set(store->loop, &store->timer, s->contest_until);
}

/* The holder has answered, or was silent long enough to be taken for busy: it keeps its place. */
static void
settle_contests(struct ist__store *store, const struct session *answered)
{
	int64_t now = ist__now();

	for (struct session *s = store->sessions; s; s = s->next) {
		struct record *now_held = s->offer && !s->contests ? record_of(store, s->offer->name) : NULL;

		if (s->offer && s->contests && (s->contests->holder == answered || s->contest_until <= now))
			conflict(s, s->contests);
		else if (now_held)
			conflict(s, now_held); /* another contender was faster */
	}
}

/* ---- a name that only one side knows ---- */

static void
send_unknown(struct session *s, const char *have, uint64_t seq)
{
	struct ist_error e;

	ist_error_init(&e);
	ist__fail(&e, IST_UNKNOWN_GROUP, "meet", "this meeting place waits for rank %u of group \"%s\", and rank %u asks for group \"%s\"",
		s->find_rank, have, s->find_rank, s->find_name);
	send_refusal(s, seq, &e);
}

/* A place that one member hosts for its own group: somebody of the right size and of a rank that is missing there asks
 * for another name. Told to both, since both would wait for ever. A place on its own serves any names. */
static void
find_typos(struct ist__store *store)
{
	struct record *own = store->own[0] ? record_of(store, store->own) : NULL;
	int64_t now = ist__now();
	struct ist__writer w;

	if (!own)
		return;
	for (struct session *s = store->sessions; s; s = s->next) {
		if (!s->finds || record_of(store, s->find_name) || now - s->find_since < TYPO_MS * IST__MS)
			continue;
		/* rank 0 of the place's own group knows who is missing there: it is asked, and answers with a NOTE */
		ist__writer_init(&w, ctx_of(store));
		ist__put_str(&w, s->find_name);
		ist__put_u32(&w, s->find_rank);
		ist__put_u32(&w, s->find_size);
		if (!w.bad)
			send_frame(own->holder, IST__NOTE, s->find_seq, w.at, w.bytes);
		ist__writer_fini(&w);
		s->find_since = now; /* asked again at the next round */
	}
}

/* Rank 0 says that the asker must be one of its missing members. */
static void
on_note(struct session *holder, struct ist__frame *f)
{
	struct ist__store *store = holder->store;
	struct ist__reader in;
	char name[256];
	uint32_t rank;

	ist__reader_init(&in, f->body, f->bytes);
	ist__get_str(&in, name, sizeof(name));
	rank = ist__get_u32(&in);
	if (in.bad)
		return;
	for (struct session *s = store->sessions; s; s = s->next)
		if (s->finds && s->find_rank == rank && !strcmp(s->find_name, name)) {
			s->finds = false;
			send_unknown(s, store->own, s->find_seq);
		}
}

static void
on_find(struct session *s, struct ist__frame *f)
{
	struct ist__store *store = s->store;
	struct ist__reader in;
	struct record *r;

	ist__reader_init(&in, f->body, f->bytes);
	ist__get_str(&in, s->find_name, sizeof(s->find_name));
	s->find_rank = ist__get_u32(&in);
	s->find_size = ist__get_u32(&in);
	s->find_seq = f->seq;
	s->find_since = ist__now();
	s->finds = !in.bad;
	r = s->finds ? record_of(store, s->find_name) : NULL;
	if (r)
		send_frame(s, IST__FOUND, s->find_seq, r->card, r->card_bytes);
	else if (store->own[0] && s->finds && !store->timer.link)
		ist__timer_set(store->loop, &store->timer, ist__now() + TYPO_MS * IST__MS);
}

/* ---- leases ---- */

static void
forget_old_rows(struct ist__store *store)
{
	int64_t now = ist__now();

	for (struct row **p = &store->rows; *p;) {
		struct row *r = *p;

		if (r->teller && now - r->heard <= IST__LEASE_NS) {
			p = &r->next;
			continue;
		}
		*p = r->next;
		store->n_rows--;
		ist__free(ctx_of(store), r);
	}
}

static void
on_tell(struct session *s, struct ist__frame *f)
{
	struct ist__store *store = s->store;
	struct ist__status status;
	struct ist__reader in;
	struct row *r;

	ist__reader_init(&in, f->body, f->bytes);
	if (!ist__status_get(&in, &status))
		return;
	for (r = store->rows; r; r = r->next)
		if (r->status.rank == status.rank && !strcmp(r->status.group, status.group) && (r->teller == s || !r->teller))
			break;
	if (!r) {
		forget_old_rows(store);
		r = store->n_rows < 100000 ? ist__alloc(ctx_of(store), sizeof(*r)) : NULL;
		if (!r)
			return;
		r->next = store->rows;
		store->rows = r;
		store->n_rows++;
	}
	r->status = status;
	r->teller = s;
	r->heard = ist__now();
}

static void
on_list(struct session *s, struct ist__frame *f)
{
	struct ist__store *store = s->store;
	struct ist__reader in;
	struct ist__writer w;
	char name[256];
	uint32_t n = 0;

	ist__reader_init(&in, f->body, f->bytes);
	if (!ist__get_str(&in, name, sizeof(name)))
		return;
	forget_old_rows(store);
	ist__writer_init(&w, ctx_of(store));
	ist__put_u32(&w, 0);
	for (struct row *r = store->rows; r && w.bytes < IST__FRAME_MAX - 1024; r = r->next) {
		if (name[0] && strcmp(name, r->status.group) != 0)
			continue;
		ist__status_put(&w, &r->status);
		ist__put_u64(&w, (uint64_t)((ist__now() - r->heard) / IST__MS));
		n++;
	}
	if (!w.bad) {
		ist__store_u32(w.at, n);
		send_frame(s, IST__ROWS, f->seq, w.at, w.bytes);
	} else
		ist__conn_starve(s->conn);
	ist__writer_fini(&w);
}

/* ---- sessions ---- */

static void
session_end(struct session *s)
{
	struct ist__store *store = s->store;

	*s->link = s->next;
	if (s->next)
		s->next->link = s->link;
	store->n_sessions--;
	for (struct row *r = store->rows; r; r = r->next)
		if (r->teller == s)
			r->teller = NULL;
	for (struct record *r = store->records, *next; r; r = next) {
		struct session *heir = NULL;

		next = r->next;
		if (r->holder != s)
			continue;
		for (struct session *c = store->sessions; c; c = c->next)
			if (c->contests == r)
				heir = c;
		record_remove(store, r);
		if (heir) {
			struct record *offer = heir->offer;

			heir->offer = NULL;
			record_take(heir, offer, heir->publish_seq);
		}
	}
	ist__free(ctx_of(store), s->offer);
	ist__conn_close(s->conn, false);
	ist__free(ctx_of(store), s);
}

static void
on_frame(struct ist__conn *conn, void *owner, struct ist__frame *f)
{
	struct session *s = owner;
	struct ist__store *store = s->store;
	bool critical = false;

	(void)conn;
	switch (f->type) {
	case IST__PUBLISH: on_publish(s, f); break;
	case IST__FIND: on_find(s, f); break;
	case IST__TELL: on_tell(s, f); break;
	case IST__LIST: on_list(s, f); break;
	case IST__NOTE: on_note(s, f); break;
	case IST__ASK: send_frame(s, IST__ANSWER, f->seq, NULL, 0); break;
	case IST__ANSWER: settle_contests(store, s); break;
	default: critical = (f->flags & IST__FRAME_CRITICAL) != 0; break; /* from a newer library */
	}
	ist__frame_free(store->loop, f);
	if (critical)
		session_end(s);
}

static void
on_closed(struct ist__conn *conn, void *owner, const struct ist_error *err)
{
	(void)conn, (void)err;
	session_end(owner);
}

static const struct ist__conn_ops session_ops = { .frame = on_frame, .closed = on_closed };

static bool
on_visitor(void *owner, struct ist__conn *conn, struct ist__frame *frame)
{
	struct ist__store *store = owner;
	struct session *s = store->n_sessions < SESSIONS ? ist__alloc(ctx_of(store), sizeof(*s)) : NULL;

	if (!s) {
		ist__frame_free(store->loop, frame);
		ist__conn_close(conn, false);
		return true;
	}
	s->store = store;
	s->conn = conn;
	s->next = store->sessions;
	s->link = &store->sessions;
	if (s->next)
		s->next->link = &s->next;
	store->sessions = s;
	store->n_sessions++;
	ist__conn_give(conn, &session_ops, s);
	on_frame(conn, s, frame);
	return true;
}

static void
on_refused(void *owner, const struct ist_error *err, bool proven, uint32_t group)
{
	struct ist__store *store = owner;

	if (store->refused)
		store->refused(store->owner, err, proven, group);
}

static void
on_timer(struct ist__timer *timer)
{
	struct ist__store *store = (struct ist__store *)(void *)((char *)timer - offsetof(struct ist__store, timer));
	int64_t now = ist__now(), next = IST__NEVER;

	settle_contests(store, NULL);
	find_typos(store);
	for (struct session *s = store->sessions; s; s = s->next) {
		if (s->offer && s->contest_until < next)
			next = s->contest_until;
		if (store->own[0] && s->finds && !record_of(store, s->find_name) && s->find_since + TYPO_MS * IST__MS < next)
			next = s->find_since + TYPO_MS * IST__MS;
	}
	if (next <= now) /* what could not be settled now: a timer that is due at once would never let go of the loop */
		next = now + TYPO_MS * IST__MS;
	ist__timer_set(store->loop, &store->timer, next);
}

struct ist__store *
ist__store_new(const struct ist__store_args *a, struct ist_error *err)
{
	struct ist__store *store = ist__alloc(ist__env_ctx(ist__loop_env(a->loop)), sizeof(*store));
	struct ist__acceptor_args args = { .loop = a->loop, .fd = a->fd, .owner = store, .visitor = on_visitor, .refused = on_refused };

	if (!store) {
		close(a->fd);
		ist__fail_memory(err, "meet");
		return NULL;
	}
	store->loop = a->loop;
	store->self = *a->self;
	store->refused = a->refused;
	store->owner = a->owner;
	store->timer.on = on_timer;
	snprintf(store->own, sizeof(store->own), "%s", a->own);
	args.self = &store->self;
	store->acceptor = ist__acceptor_new(&args, err);
	if (!store->acceptor) {
		ist__free(ctx_of(store), store);
		return NULL;
	}
	return store;
}

static void
stop_here(void *arg)
{
	struct ist__store *store = arg;

	ist__timer_stop(&store->timer);
	while (store->sessions)
		session_end(store->sessions);
	while (store->rows) {
		struct row *r = store->rows;

		store->rows = r->next;
		ist__free(ctx_of(store), r);
	}
}

void
ist__store_free(struct ist__store *store)
{
	if (!store)
		return;
	ist__loop_settle(store->loop); /* a last word may be for somebody who waits here */
	ist__acceptor_free(store->acceptor);
	ist__loop_run(store->loop, stop_here, store);
	ist__free(ctx_of(store), store);
}
