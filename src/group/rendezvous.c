/* SPDX-License-Identifier: Apache-2.0 */
#include "group/rendezvous.h"

#include "base/clock.h"
#include "base/fail.h"
#include "meet/dir.h"
#include "net/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMELESS_MS = 1000, MOVED_MS = 15000 };
enum { TELL_MS = 1000, RETRY_MS = 50, DIAL_MS = 3000, KV_MS = 200, KEY = 1024, KEEP = 64 /* connections that one group leaves the store with */ };

static const struct ist__ctx *
ctx_of(const struct ist__rdv *rdv)
{
	return ist__env_ctx(rdv->ep->env);
}

ist_err
ist__rdv_check(const struct ist_group_args *a, struct ist_error *err)
{
	struct ist__hostport hp;
	int ways = (a->at != NULL) + (a->kv != NULL) + (a->addresses != NULL);

	if (ways != 1)
		return ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "one of at, kv and addresses says how the members meet; %d are given", ways);
	if (a->kv && (!a->kv->set || !a->kv->get))
		return ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "the key-value store lacks set or get");
	if (a->kv && strlen(a->prefix ? a->prefix : "") + strlen(a->name ? a->name : "") + sizeof("/rank0") > KEY)
		return ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "prefix and name are longer than %d bytes together", KEY);
	if (a->at && !strncmp(a->at, "dir:", 4))
		return a->at[4] ? IST_OK : ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "\"%s\": the folder is missing", a->at);
	return a->at ? ist__tcp_url_parse(a->at, false, &hp, err) : IST_OK;
}

/* The host of the place; a client where somebody was faster. */
static ist_err
host_it(struct ist__rdv *rdv, struct ist_error *err)
{
	bool must = rdv->host_meeting == IST_HOST_MEETING_YES, fresh;
	ist_err e = ist__ep_host(rdv->ep, &rdv->at, rdv->name, &fresh, err);
	const struct ist__ctx *ctx = ctx_of(rdv);

	if (!e && fresh)
		ist__log(ctx, 2, "hosting the meeting place %s:%u", rdv->hp.host, rdv->hp.port);
	if (e == IST_CONFLICT) { /* a place of ours, or a stranger: its hello will show */
		ist__log(ctx, 3, "port %u is taken: joining what is there as a client", rdv->hp.port);
		return IST_OK;
	}
	if (e == IST_IO && !must) /* not an address of this host */
		return IST_OK;
	return e;
}

static ist_err
usable(const char *dir, struct ist_error *err)
{
	struct stat st;

	if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
		return ist__fail(err, IST_BAD_CONFIG, "meet", "%s is no folder", dir);
	if (access(dir, R_OK | W_OK | X_OK)) {
		int sys = errno;
		ist_err e = ist__fail_sys(err, IST_IO, sys, "meet", "folder %s can't be used", dir);

		if (sys == ENOENT)
			ist__fail_next(err, "make the folder first, on a file system that all members share");
		return e;
	}
	return IST_OK;
}

/* Where hosts are made on demand a name is known once its host runs, and leads elsewhere when that was made anew. False: it
 * leads nowhere yet, and rdv->last says so. */
static bool
look_up(struct ist__rdv *rdv)
{
	struct ist__addrs at;

	if (ist__now() < rdv->look_up)
		return rdv->at.n > 0;
	if (!ist__resolve(&rdv->hp, &at, &rdv->last))
		rdv->at = at;
	rdv->look_up = ist__now() + (rdv->at.n ? MOVED_MS : NAMELESS_MS) * IST__MS;
	return rdv->at.n > 0;
}

ist_err
ist__rdv_open(struct ist__rdv *rdv, const struct ist_group_args *a, struct ist_error *err)
{
	ist_err e;

	rdv->lock_fd = -1;
	rdv->tell = ist__now() + TELL_MS * IST__MS;
	ist_error_init(&rdv->last);
	rdv->prefix = a->prefix ? a->prefix : "";
	if (a->addresses)
		return IST_OK;
	if (a->kv) {
		rdv->kind = IST__RDV_KV;
		rdv->kv = a->kv;
		return IST_OK;
	}
	if (!strncmp(a->at, "dir:", 4)) {
		rdv->kind = IST__RDV_DIR;
		rdv->dir = a->at + 4;
		return usable(rdv->dir, err);
	}
	rdv->kind = IST__RDV_TCP;
	e = ist__tcp_url_parse(a->at, false, &rdv->hp, err);
	if (!e && !look_up(rdv))
		ist__log(ctx_of(rdv), IST_LOG_WARN, "%s; asking again until it is known", rdv->last.detail);
	rdv->hosts = rdv->host_meeting == IST_HOST_MEETING_YES || (rdv->host_meeting == IST_HOST_MEETING_AUTO && rdv->rank == 0);
	return e;
}

/* ---- the store ---- */

static void
ask_store(struct ist__rdv *rdv, const struct ist__card *card)
{
	struct ist__frame *f = NULL;
	struct ist__writer w, c;

	ist__writer_init(&w, ctx_of(rdv));
	ist__put_str(&w, rdv->name);
	if (rdv->rank == 0) {
		ist__writer_init(&c, ctx_of(rdv));
		ist__card_put(&c, card);
		ist__put_str(&w, card->host);
		ist__put_u64(&w, card->pid);
		ist__put_blob(&w, c.at, c.bytes);
		w.bad |= c.bad;
		ist__writer_fini(&c);
	} else {
		ist__put_u32(&w, rdv->rank);
		ist__put_u32(&w, rdv->size);
	}
	if (!w.bad)
		f = ist__frame_new(rdv->inbox->loop, rdv->rank == 0 ? IST__PUBLISH : IST__FIND, w.at, w.bytes);
	ist__writer_fini(&w);
	if (f)
		rdv->asked = ist__conn_send(rdv->post->conn, f);
	else
		ist__conn_starve(rdv->post->conn); /* it is dialled again, and asked then */
}

static ist_err
connect_store(struct ist__rdv *rdv, int64_t deadline, struct ist_error *err)
{
	int64_t until = ist__now() + DIAL_MS * IST__MS;
	struct ist__conn *conn;
	bool refused;
	int fd;
	ist_err e;

	do
		e = ist__dial(&rdv->at, until < deadline ? until : deadline, rdv->inbox->cancel_fd, &fd, &refused, &rdv->last);
	while (e == IST_LIMIT && ist__loop_spares_spend(rdv->inbox->loop, EMFILE));
	if (e == IST_ABORTED)
		return ist__fail(err, e, "meet", "cancelled");
	if (e == IST_LIMIT) {
		ist__error_copy(err, &rdv->last);
		return e;
	}
	if (e) {
		rdv->next = ist__now() + RETRY_MS * IST__MS;
		return IST_OK;
	}
	/* a place that never answers is told at the call's deadline, by ist__rdv_silent */
	conn = ist__conn_new(rdv->inbox->loop, fd, IST__INITIATOR, rdv->self, IST__NEVER);
	rdv->post = conn ? ist__inbox_add(rdv->inbox, conn, IST__TAG_MEET) : NULL;
	if (!rdv->post)
		return ist__fail_memory(err, "meet");
	rdv->asked = false;
	if (!ist__conn_local(conn, &rdv->local)) { /* where we would listen is not known */
		ist__fail_sys(&rdv->last, IST_IO, errno, "meet", "the local address of a connection");
		ist__inbox_drop(rdv->inbox, rdv->post, false);
		rdv->post = NULL;
		rdv->next = ist__now() + RETRY_MS * IST__MS;
		return IST_OK;
	}
	return ist__ep_may_use(rdv->ep, &rdv->local, err);
}

static ist_err
found_card(struct ist__rdv *rdv, const void *at, uint64_t n, struct ist_error *err)
{
	struct ist__reader r;
	struct ist__card card;

	ist__reader_init(&r, at, n);
	if (!ist__card_get(&r, &card))
		return ist__fail(err, IST_BAD_FORMAT, "meet", "what the meeting place says of rank 0 is no address");
	rdv->card = card;
	rdv->found = true;
	return IST_OK;
}

static void
on_note(struct ist__rdv *rdv, struct ist__frame *f)
{
	struct ist__reader r;
	struct ist__frame *back;
	char name[256];
	uint32_t rank, size;

	ist__reader_init(&r, f->body, f->bytes);
	ist__get_str(&r, name, sizeof(name));
	rank = ist__get_u32(&r);
	size = ist__get_u32(&r);
	if (r.bad || !rdv->stray || !rdv->stray(rdv->arg, name, rank, size))
		return;
	back = ist__frame_new(rdv->inbox->loop, IST__NOTE, f->body, f->bytes);
	if (back)
		ist__conn_send(rdv->post->conn, back);
}

static ist_err
on_refused(struct ist__frame *f, struct ist_error *err)
{
	struct ist__reader r;
	struct ist_error e;

	ist_error_init(&e);
	ist__reader_init(&r, f->body, f->bytes);
	if (!ist__get_error(&r, &e))
		return ist__fail(err, IST_BAD_FORMAT, "meet", "the meeting place refuses, and can't say why");
	ist__error_copy(err, &e);
	return e.code;
}

/* What ended a connection to the store: time heals a dead one, not a stranger or a wrong secret. */
static ist_err
on_closed(struct ist__rdv *rdv, struct ist__event *event, struct ist_error *err)
{
	const struct ist_error *why = event->error;
	ist_err code = why ? why->code : IST_NO_MEMORY;

	if (why)
		rdv->last = *why;
	ist__inbox_drop(rdv->inbox, rdv->post, false);
	rdv->post = NULL;
	rdv->next = ist__now() + RETRY_MS * IST__MS;
	if (code == IST_PEER_LOST || code == IST_NO_MEMORY)
		return IST_OK;
	ist__error_copy(err, &rdv->last);
	if (code == IST_WRONG_PEER && rdv->host_meeting == IST_HOST_MEETING_YES)
		code = ist__fail(err, IST_CONFLICT, "meet", "%s:%u can't be hosted here: %s", rdv->hp.host, rdv->hp.port, rdv->last.detail);
	else
		ist__fail_prefix(err, "meeting place ");
	return code;
}

ist_err
ist__rdv_event(struct ist__rdv *rdv, struct ist__event *event, struct ist_error *err)
{
	struct ist__frame *f = event->frame;

	if (event->kind == IST__EVENT_READY)
		rdv->met = true;
	if (event->kind == IST__EVENT_CLOSED)
		return on_closed(rdv, event, err);
	if (event->kind != IST__EVENT_FRAME)
		return IST_OK;
	switch (f->type) {
	case IST__PUBLISHED: rdv->published = true; return IST_OK;
	case IST__FOUND: return found_card(rdv, f->body, f->bytes, err);
	case IST__REFUSED: return on_refused(f, err);
	case IST__NOTE: on_note(rdv, f); return IST_OK;
	case IST__ASK: {
		struct ist__frame *back = ist__frame_new(rdv->inbox->loop, IST__ANSWER, NULL, 0);

		if (back)
			ist__conn_send(rdv->post->conn, back);
		else
			ist__conn_starve(rdv->post->conn); /* a silent one would be taken for dead */
		return IST_OK;
	}
	default: return IST_OK;
	}
}

/* ---- what 'status' shows meanwhile ---- */

/* Most groups have formed before it is time to tell anything. */
static void
tell_joining(struct ist__rdv *rdv, const struct ist__card *card)
{
	struct ist__status s = { .rank = rdv->rank, .pid = card->pid, .state = "JOINING" };
	struct ist__writer w;
	struct ist__frame *f = NULL;

	snprintf(s.group, sizeof(s.group), "%s", rdv->name);
	snprintf(s.host, sizeof(s.host), "%s", card->host);
	rdv->tell = ist__now() + IST__LEASE_RENEW_NS;
	if (rdv->kind == IST__RDV_DIR) {
		ist__dir_tell(rdv->dir, ctx_of(rdv), &s);
		rdv->told_pid = card->pid;
		return;
	}
	ist__writer_init(&w, ctx_of(rdv));
	ist__status_put(&w, &s);
	if (!w.bad)
		f = ist__frame_new(rdv->inbox->loop, IST__TELL, w.at, w.bytes);
	ist__writer_fini(&w);
	if (f)
		ist__conn_send(rdv->post->conn, f);
}

static bool
may_tell(const struct ist__rdv *rdv)
{
	return rdv->kind == IST__RDV_DIR || (rdv->kind == IST__RDV_TCP && rdv->post && rdv->asked);
}

/* ---- folder and key-value store ---- */

static ist_err
step_dir(struct ist__rdv *rdv, const struct ist__card *card, struct ist_error *err)
{
	uint8_t room[IST_ADDRESS_BYTES];
	uint64_t n = sizeof(room);
	struct ist__writer w;
	char who[128];
	ist_err e;

	rdv->next = ist__now() + RETRY_MS * IST__MS;
	if (rdv->rank == 0) {
		if (rdv->published || !card)
			return IST_OK;
		snprintf(who, sizeof(who), "host %s pid %llu", card->host, (unsigned long long)card->pid);
		ist__writer_init(&w, ctx_of(rdv));
		ist__card_put(&w, card);
		e = w.bad ? ist__fail_memory(err, "meet") : ist__dir_publish(rdv->dir, rdv->name, who, w.at, w.bytes, &rdv->lock_fd, err);
		ist__writer_fini(&w);
		rdv->published = !e;
		return e;
	}
	e = ist__dir_find(rdv->dir, rdv->name, room, &n, err);
	return e || n == 0 ? e : found_card(rdv, room, n, err);
}

static ist_err
step_kv(struct ist__rdv *rdv, const struct ist__card *card, int64_t deadline, struct ist_error *err)
{
	uint8_t room[IST_ADDRESS_BYTES];
	uint64_t n = sizeof(room);
	int64_t wait = KV_MS * IST__MS, left = deadline == IST__NEVER ? wait : deadline - ist__now();
	struct ist__writer w;
	char key[KEY];
	ist_err e;

	snprintf(key, sizeof(key), "%s%s/rank0", rdv->prefix, rdv->name);
	rdv->next = ist__now() + RETRY_MS * IST__MS;
	if (rdv->rank == 0) {
		if (rdv->published || !card)
			return IST_OK;
		ist__writer_init(&w, ctx_of(rdv));
		ist__card_put(&w, card);
		e = w.bad ? IST_NO_MEMORY : rdv->kv->set(rdv->kv->ctx, key, w.at, w.bytes);
		ist__writer_fini(&w);
		rdv->published = !e;
	} else {
		e = rdv->kv->get(rdv->kv->ctx, key, room, &n, left < wait ? left > 0 ? left : 1 : wait);
		if (e == IST_TIMEOUT)
			return IST_OK;
		if (!e && n <= sizeof(room))
			return found_card(rdv, room, n, err);
	}
	return e ? ist__fail(err, e, "meet", "the caller's key-value store failed on \"%s\"", key) : IST_OK;
}

ist_err
ist__rdv_step(struct ist__rdv *rdv, const struct ist__card *card, int64_t deadline, struct ist_error *err)
{
	ist_err e = IST_OK;

	if (rdv->kind == IST__RDV_NONE || rdv->rests)
		return IST_OK;
	if (card && may_tell(rdv) && ist__now() >= rdv->tell)
		tell_joining(rdv, card);
	if (ist__now() < rdv->next && !rdv->post)
		return IST_OK;
	if (rdv->kind == IST__RDV_DIR)
		return ist__now() < rdv->next ? IST_OK : step_dir(rdv, card, err);
	if (rdv->kind == IST__RDV_KV)
		return ist__now() < rdv->next ? IST_OK : step_kv(rdv, card, deadline, err);
	if (!rdv->post && !look_up(rdv)) {
		rdv->next = rdv->look_up;
		return IST_OK;
	}
	if (!rdv->post && rdv->hosts)
		e = host_it(rdv, err); /* again each time: who held the port may have died meanwhile */
	if (!e && !rdv->post)
		e = connect_store(rdv, deadline, err);
	if (!e && rdv->post && !rdv->asked && card)
		ask_store(rdv, card);
	return e;
}

void
ist__rdv_silent(struct ist__rdv *rdv)
{
	if (rdv->kind == IST__RDV_TCP && rdv->post && !rdv->met)
		ist__fail(&rdv->last, IST_WRONG_PEER, "meet", "meeting place %s:%u: something takes connections, but not as Isthmus: it says nothing",
			rdv->hp.host, rdv->hp.port);
}

int64_t
ist__rdv_next(const struct ist__rdv *rdv)
{
	int64_t next = rdv->next;

	if (rdv->rests)
		return IST__NEVER;
	if (rdv->kind == IST__RDV_NONE || rdv->post || (rdv->rank == 0 && rdv->published && rdv->kind != IST__RDV_TCP))
		next = IST__NEVER;
	return may_tell(rdv) && rdv->tell < next ? rdv->tell : next;
}

bool
ist__rdv_keeps(const struct ist__rdv *rdv)
{
	return rdv->kind == IST__RDV_DIR || (rdv->kind == IST__RDV_TCP && rdv->rank < KEEP);
}

void
ist__rdv_rest(struct ist__rdv *rdv, bool on)
{
	rdv->rests = on && rdv->kind == IST__RDV_TCP && !ist__rdv_keeps(rdv);
	if (!rdv->rests || !rdv->post)
		return;
	ist__inbox_drop(rdv->inbox, rdv->post, false);
	rdv->post = NULL;
}

void
ist__rdv_close(struct ist__rdv *rdv)
{
	if (rdv->post)
		ist__inbox_drop(rdv->inbox, rdv->post, false);
	rdv->post = NULL;
	if (rdv->told_pid) {
		struct ist__status s = { .rank = rdv->rank, .pid = rdv->told_pid };

		snprintf(s.group, sizeof(s.group), "%s", rdv->name);
		ist__dir_untell(rdv->dir, &s);
	}
	rdv->told_pid = 0;
	if (rdv->lock_fd >= 0)
		ist__dir_withdraw(rdv->dir, rdv->name, rdv->lock_fd);
	rdv->lock_fd = -1;
}
