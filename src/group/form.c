/* SPDX-License-Identifier: Apache-2.0
 *
 * form.c - forming a group from the first dial to the vote. See form_int.h for the picture.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/form_int.h"
#include "net/wire.h"
#include "plug/plug.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STARVED = 3, TELL_MS = 200, LOOK_MS = 20, LEFT_MS = 200, TIMEOUT_S = 300, NO_PROGRESS_S = 30 };

/* ---- visitors, on the loop's thread ---- */

/* Who wants to join comes again, and who was turned away before it had said a word. Who turned some away in a row has no memory
 * to speak of, and says so; also at once where somebody takes itself for let in, and would be waited for in vain. */
static bool
on_starved(struct ist__expect *expect, uint32_t group)
{
	struct ist__form *f = (struct ist__form *)(void *)((char *)expect - offsetof(struct ist__form, expect));
	bool joins = f->args.rank == 0 && __atomic_load_n(&f->generation, __ATOMIC_ACQUIRE) == 0;

	if ((group == f->self.group && !joins) || ++f->starved >= STARVED)
		ist__inbox_starve(&f->inbox);
	return group == f->self.group;
}

static bool
take_visitor(struct ist__expect *expect, struct ist__conn *conn, struct ist__frame *frame)
{
	struct ist__form *f = (struct ist__form *)(void *)((char *)expect - offsetof(struct ist__form, expect));
	uint64_t generation = __atomic_load_n(&f->generation, __ATOMIC_ACQUIRE); /* pairs with set_generation */
	uint32_t from = frame->from, group;
	struct ist__post *post;
	uint64_t tag;

	if (frame->type == IST__JOIN) {
		if (f->args.rank != 0 || generation != 0 || frame->bytes < IST__GROUP_KEY || memcmp(frame->body, f->key, IST__GROUP_KEY) != 0)
			return false;
		tag = 0;
	} else {
		if (generation == 0 || frame->generation != generation || from >= f->args.size ||
		    memcmp(ist__conn_agreed(conn)->peer.member, f->claims[from].card.id, IST__MEMBER_BYTES) != 0)
			return false;
		tag = IST__TAG(frame->type == IST__LINK ? IST__TAG_LINK : IST__TAG_LOCAL, from);
	}
	group = tag ? ist__conn_group(conn) : 0;
	post = ist__inbox_adopt(&f->inbox, conn, tag);
	if (post) {
		f->starved = 0;
		ist__inbox_put(&f->inbox, post, frame);
	} else {
		on_starved(expect, group);
		ist__frame_free(f->inbox.loop, frame);
	}
	return true;
}

static bool
on_refused(struct ist__expect *expect, const struct ist_error *err, uint32_t group)
{
	struct ist__form *f = (struct ist__form *)(void *)((char *)expect - offsetof(struct ist__form, expect));

	if (f->args.rank != 0 || __atomic_load_n(&f->generation, __ATOMIC_ACQUIRE) != 0)
		return false;
	pthread_mutex_lock(&f->missing_lock);
	if (group == f->self.group && !f->refused.code)
		f->refused = *err;
	pthread_mutex_unlock(&f->missing_lock);
	if (group == 0)
		ist__form_note_refused(f, err); /* it may have meant us, or not: no reason to end */
	return group == f->self.group;
}

static void
set_generation(struct ist__form *f, uint64_t generation)
{
	__atomic_store_n(&f->generation, generation, __ATOMIC_RELEASE); /* the claims are complete; pairs with take_visitor */
	ist__ep_offer_parked(f->ep);
}

/* ---- the roll-call ---- */

static ist_err
missing_error(struct ist__form *f, struct ist_error *err)
{
	char list[1024] = "";
	size_t n = 0;
	uint32_t count = 0;
	struct ist_error e;

	ist_error_init(&e);
	ist__fail(&e, IST_TIMEOUT, "group_new", "x");
	for (uint32_t r = 0; r < f->args.size; r++)
		if (ist__form_is_missing(f, r)) {
			ist__fail_rank(&e, r);
			count++;
			if (n < sizeof(list) - 16)
				n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%u", n ? ", " : "", r);
		}
	snprintf(e.detail, sizeof(e.detail), "group \"%s\": missing of %u: %s", f->name, f->args.size, count ? list : "nobody, but a step did not end");
	ist__rdv_silent(&f->rdv);
	if (count == f->args.size - 1 && f->rdv.last.code && (f->args.rank != 0 || !f->rdv.published))
		ist__fail_suffix(&e, "; %s", f->rdv.last.detail);
	pthread_mutex_lock(&f->missing_lock);
	if (f->passer.code) {
		ist__fail_suffix(&e, "; somebody was refused meanwhile: %s", f->passer.detail);
		ist__fail_next(&e, "%s; for who was refused: %s", ist_err_next(IST_TIMEOUT), f->passer.next);
	}
	pthread_mutex_unlock(&f->missing_lock);
	ist__error_copy(err, &e);
	return IST_TIMEOUT;
}

static void
tell_missing(struct ist__form *f)
{
	for (uint32_t r = 1; r < f->args.size; r++)
		if (f->star[r].post)
			ist__form_send(&f->star[r], f, IST__WAIT, 0, f->missing, f->args.size);
}

bool
ist__form_misses(struct ist__form *f)
{
	for (uint32_t r = 0; r < f->args.size; r++)
		if (ist__form_is_missing(f, r))
			return true;
	return false;
}

/* Somebody of our size, of a rank that we miss, asks at our own place for a name that nobody there has. */
static bool
stray(void *arg, const char *name, uint32_t rank, uint32_t size)
{
	struct ist__form *f = arg;

	if (f->generation || size != f->args.size || rank >= size || !ist__form_is_missing(f, rank))
		return false;
	ist__fail(&f->stray, IST_UNKNOWN_GROUP, "group_new", "group \"%s\" waits for rank %u, and rank %u asks here for group \"%s\"", f->name, rank, rank, name);
	ist__fail_rank(&f->stray, rank);
	return true;
}

/* Listens as soon as it is known where. */
static ist_err
listen_now(struct ist__form *f, struct ist_error *err)
{
	bool tcp = f->rdv.kind == IST__RDV_TCP;
	ist_err e;

	if (f->listening || (tcp && !f->rdv.post && !f->rdv.met))
		return IST_OK;
	e = ist__ep_listen(f->ep, tcp ? &f->rdv.local : NULL, &f->card, f->bound, err);
	f->listening = !e;
	return e;
}

static ist_err
refused_error(struct ist__form *f, struct ist_error *err)
{
	struct ist_error e;

	pthread_mutex_lock(&f->missing_lock);
	e = f->refused;
	pthread_mutex_unlock(&f->missing_lock);
	if (!e.code && f->stray.code)
		e = f->stray;
	if (e.code) {
		for (uint32_t r = 0; e.n_ranks == 0 && r < f->args.size; r++)
			if (ist__form_is_missing(f, r))
				ist__fail_rank(&e, r); /* one of these; a hello does not say which */
		ist__error_copy(err, &e);
		for (uint32_t r = 1; r < f->args.size; r++)
			ist__form_send_error(&f->star[r], f, IST__FAIL, &e);
	}
	return e.code;
}

/* A split waits for nobody whom the parent knows to be gone. Somebody who has left the parent can't be on his way either:
 * it is by the parent that he would come. */
static ist_err
gone_error(struct ist__form *f, struct ist_error *err)
{
	for (uint32_t r = 0; f->parent && r < f->args.size; r++) {
		uint32_t there = f->parent_ranks[r];
		enum ist__gone how;
		bool given_up;

		pthread_mutex_lock(&f->parent->lock);
		how = f->parent->gone[there];
		given_up = f->parent->given_up;
		pthread_mutex_unlock(&f->parent->lock);
		if (given_up && r == f->args.rank) {
			ist__fail(err, IST_EVICTED, "group_split", "the others have given this member up, and come without it");
			ist__fail_rank(err, r);
			return IST_EVICTED;
		}
		if (how == IST__HERE_STILL || r == f->args.rank)
			continue;
		if (how == IST__GONE_LEFT && ist__now() < (f->left_at ? f->left_at : (f->left_at = ist__now())) + LEFT_MS * IST__MS)
			continue; /* it may have heard why this group can't be, and that is on its way to us too */
		ist__fail(err, how == IST__GONE_LEFT ? IST_PEER_LEFT : IST_PEER_LOST, "group_split", "rank %u of the new group, which was rank %u (%s pid %llu), is gone",
			r, there, f->cards[r].host, (unsigned long long)f->cards[r].pid);
		ist__fail_rank(err, r);
		return how == IST__GONE_LEFT ? IST_PEER_LEFT : IST_PEER_LOST;
	}
	return f->parent ? ist__split_look(f->parent, &f->attempt, f->parent_ranks, f->args.size, err) : IST_OK;
}

static void
own_claim(struct ist__form *f, struct ist__claim *c)
{
	*c = (struct ist__claim){ .card = f->card, .rank = f->args.rank, .size = f->args.size, .transport = f->ep->transport,
		.mem = f->ep->mem, .device = f->ep->device, .bucket_bytes = f->args.bucket_bytes };
	snprintf(c->backend, sizeof(c->backend), "%s", f->backend);
}

/* Rank 0 takes visitors as soon as it can be reached. */
static void
expect_now(struct ist__form *f)
{
	if (f->args.rank != 0 || !f->listening || f->expecting)
		return;
	own_claim(f, &f->claims[0]);
	f->expecting = true;
	ist__ep_expect(f->ep, &f->expect);
}

ist_err
ist__form_round(struct ist__form *f, int64_t cap, struct ist_error *err)
{
	int64_t next = ist__rdv_next(&f->rdv), look = ist__now() + LOOK_MS * IST__MS;
	ist_err e = ist__rdv_step(&f->rdv, f->listening ? &f->card : NULL, f->deadline, err);

	if (f->parent && look < cap)
		cap = look;
	if (f->scarce_until && f->scarce_until < cap && ist__now() < f->scarce_until)
		cap = f->scarce_until;
	if (!e)
		e = listen_now(f, err);
	if (!e) {
		expect_now(f);
		e = ist__rdv_step(&f->rdv, f->listening ? &f->card : NULL, f->deadline, err);
	}
	if (!e)
		e = ist__form_wait(f, next < cap ? next : cap, err);
	return e;
}

static ist_err
send_roll(struct ist__form *f, struct ist_error *err)
{
	uint64_t generation = 0, features = f->ep->self.features, bucket = f->claims[0].bucket_bytes;
	uint32_t proto = f->ep->self.proto_max;
	struct ist__writer w;
	bool sent = true;

	while (generation == 0)
		randombytes_buf(&generation, sizeof(generation));
	for (uint32_t r = 1; r < f->args.size; r++) {
		const struct ist__agreed *a = ist__conn_agreed(f->star[r].post->conn);

		proto = a->proto < proto ? a->proto : proto;
		features &= a->features;
		if (f->claims[r].bucket_bytes && (!bucket || f->claims[r].bucket_bytes < bucket))
			bucket = f->claims[r].bucket_bytes;
	}
	ist__writer_init(&w, f->ctx);
	ist__put_u64(&w, generation);
	ist__put_u32(&w, proto);
	ist__put_u64(&w, features);
	ist__put_u64(&w, bucket);
	for (uint32_t r = 0; r < f->args.size; r++) {
		ist__put_u32(&w, f->claims[r].transport);
		ist__put_u32(&w, f->claims[r].mem);
		ist__put_u32(&w, (uint32_t)f->claims[r].device);
		ist__put_str(&w, f->claims[r].backend);
		ist__card_put(&w, &f->claims[r].card);
	}
	if (w.bad) {
		ist__writer_fini(&w);
		return ist__fail_memory(err, "group_new");
	}
	f->proto = proto;
	f->features = features;
	f->bucket_bytes = bucket;
	set_generation(f, generation);
	for (uint32_t r = 1; r < f->args.size; r++)
		sent &= ist__form_send(&f->star[r], f, IST__ROLL, 0, w.at, w.bytes);
	ist__writer_fini(&w);
	return sent ? IST_OK : ist__fail_memory(err, "group_new");
}

static ist_err
call_roll(struct ist__form *f, struct ist_error *err)
{
	int64_t tell = 0;
	ist_err e = IST_OK;

	while (!e && (!f->listening || ist__form_misses(f) || f->contests || (f->rdv.kind == IST__RDV_TCP && !f->rdv.published))) {
		int64_t now = ist__now();

		if (now >= f->deadline) {
			e = missing_error(f, err);
			break;
		}
		if (now >= tell) {
			tell_missing(f);
			tell = now + TELL_MS * IST__MS;
		}
		e = ist__form_round(f, tell, err);
		if (!e)
			e = gone_error(f, err);
		if (!e)
			e = refused_error(f, err);
		if (!e)
			e = ist__form_scarce_roll(f, err);
	}
	if (!e)
		e = send_roll(f, err);
	if (f->generation == 0 && ist__form_may_tell(f, e)) {
		struct ist_error told;

		ist_error_init(&told);
		ist__error_copy(&told, err);
		told.code = e;
		ist__form_own(f, &told);
		ist__error_copy(err, &told);
		ist__form_farewell(f, &told);
		return e;
	}
	if (e == IST_TIMEOUT || e == IST_ABORTED || e == IST_NO_MEMORY || (e && f->parent)) {
		struct ist_error told;

		ist_error_init(&told);
		if (err)
			told = *err;
		told.code = e;
		ist__form_fail_all(f, &told);
	}
	return e;
}

/* ---- a member's side ---- */

static ist_err
join_body(struct ist__form *f, struct ist__writer *w)
{
	ist__put_bytes(w, f->key, IST__GROUP_KEY);
	ist__put_str(w, f->name);
	ist__put_u32(w, f->args.rank);
	ist__put_u32(w, f->args.size);
	ist__put_u32(w, f->ep->transport);
	ist__put_u32(w, f->ep->mem);
	ist__put_u32(w, (uint32_t)f->ep->device);
	ist__put_u64(w, f->args.bucket_bytes);
	ist__put_str(w, f->backend);
	ist__card_put(w, &f->card);
	return w->bad ? IST_NO_MEMORY : IST_OK;
}

/* In a split a link of the parent may lead to rank 0. False: it has to be dialled. */
static bool
join_by_parent(struct ist__form *f, const struct ist__card *root)
{
	struct ist__writer w;

	if (!f->parent || f->by_parent)
		return false;
	f->by_parent = true; /* once: should it end, dialling tells why */
	ist__writer_init(&w, f->ctx);
	if (!join_body(f, &w))
		f->star[0].post = ist__form_lane(f, 0, IST__TAG(IST__TAG_STAR, 0), IST__JOIN, w.at, w.bytes);
	ist__writer_fini(&w);
	memcpy(f->dialled, root->id, sizeof(f->dialled));
	f->star[0].ready = f->star[0].post != NULL;
	return f->star[0].ready;
}

/* Dials rank 0 and claims our rank there. What time may heal is kept in rdv.last. */
static ist_err
dial_root(struct ist__form *f, const struct ist__card *root, struct ist_error *err)
{
	int64_t until = ist__now() + 3000 * IST__MS;
	struct ist__msg head = { .type = IST__JOIN, .from = f->args.rank };
	union ist__sockaddr local;
	struct ist__conn *conn;
	struct ist__writer w;
	int fd;
	ist_err e;

	f->scarce_said = false; /* not on this one */
	if (join_by_parent(f, root))
		return IST_OK;
	e = ist__reach(f, root, until, &fd, &f->rdv.last);
	if (e == IST_LIMIT)
		ist__error_copy(err, &f->rdv.last);
	if (e)
		return e == IST_ABORTED ? ist__fail(err, e, "group_new", "cancelled") : e == IST_LIMIT ? e : IST_OK;
	conn = ist__conn_new(f->inbox.loop, fd, IST__INITIATOR, &f->self, f->deadline);
	if (conn && !ist__conn_is_unix(conn) && ist__conn_local(conn, &local) && (e = ist__ep_may_use(f->ep, &local, err))) {
		ist__conn_close(conn, false);
		return e;
	}
	memcpy(f->dialled, root->id, sizeof(f->dialled));
	f->star[0].post = conn ? ist__inbox_add(&f->inbox, conn, IST__TAG(IST__TAG_STAR, 0)) : NULL;
	if (!f->star[0].post)
		return ist__fail_memory(err, "group_new");
	ist__writer_init(&w, f->ctx);
	e = join_body(f, &w);
	if (!e)
		ist__msg_send(f->star[0].post->conn, &head, w.at, w.bytes); /* where it can't, the connection ends, and says so */
	else
		ist__spoke_clear(f, &f->star[0], false); /* nothing is claimed on it */
	ist__writer_fini(&w);
	return e ? ist__fail_memory(err, "group_new") : IST_OK;
}

/* Rank 0 went away before the roll-call was closed: an old one, a stranger in its place, or a real end. */
static bool
may_retry(ist_err e)
{
	return e == IST_PEER_LOST || e == IST_WRONG_PEER || e == IST_IO;
}

/* Is star[0] the connection to root? Not when the record has changed since, or when another member answers there: the
 * record outlived its writer, or somebody altered it. */
static bool
is_root(struct ist__form *f, const struct ist__card *root)
{
	const struct ist__spoke *s = &f->star[0];

	if (memcmp(f->dialled, root->id, IST__MEMBER_BYTES) != 0)
		return false;
	if (!s->ready || !memcmp(ist__conn_agreed(s->post->conn)->peer.member, root->id, IST__MEMBER_BYTES))
		return true;
	ist__fail(&f->rdv.last, IST_WRONG_PEER, "group_new", "another process answers at %s, where rank 0 should be", root->addr);
	return false;
}

/* Rank 0 may not know of that one yet, and would take us for lost when we go. */
static ist_err
gone_before_roll(struct ist__form *f, struct ist_error *err)
{
	struct ist_error why;
	ist_err e;

	ist_error_init(&why);
	e = gone_error(f, &why);
	if (!e)
		return IST_OK;
	if (e != IST_EVICTED && why.ranks[0] != 0) /* what befell itself rank 0 knows best */
		ist__form_tell_root(f, &why); /* where it can't be, the connection's end is all that it hears */
	ist__error_copy(err, &why);
	return e;
}

static ist_err
await_roll(struct ist__form *f, struct ist_error *err)
{
	int64_t own = f->deadline, next = 0;
	ist_err e = IST_OK;

	if (f->deadline != IST__NEVER)
		f->deadline += 1000 * IST__MS; /* rank 0's roll-call of who is missing comes at the deadline */
	while (!e && !(f->star[0].phase && f->star[0].phase->type == IST__ROLL)) {
		const struct ist__card *root = f->cards ? &f->cards[0] : f->rdv.found ? &f->rdv.card : NULL;
		int64_t now = ist__now(), over = f->star[0].post ? f->deadline : own;

		if (now >= over) {
			e = missing_error(f, err);
			break;
		}
		if (root && (f->listening || f->scarce_until) && !f->star[0].post && now >= next) {
			next = now + 20 * IST__MS;
			e = dial_root(f, root, err);
			if (e && !ist__form_confess(f, e, err))
				break;
		}
		e = ist__form_round(f, f->star[0].post || !root ? over : next, err);
		if (e == IST_WRONG_PEER && !root)
			break; /* a stranger at the meeting place, not where rank 0 was */
		if (e && may_retry(e) && !f->star[0].post) {
			ist__error_copy(&f->rdv.last, err);
			e = IST_OK;
		}
		if (e && ist__form_confess(f, e, err))
			e = IST_OK;
		if (!e)
			e = gone_before_roll(f, err);
		if (!e)
			e = ist__form_scarce_roll(f, err);
		root = f->cards ? root : f->rdv.found ? &f->rdv.card : NULL;
		if (!e && root && f->star[0].post && !is_root(f, root)) {
			ist__spoke_clear(f, &f->star[0], false);
			next = ist__now() + 100 * IST__MS;
		}
		ist__rdv_rest(&f->rdv, f->star[0].post && f->star[0].ready);
		if (!e && !root)
			pthread_mutex_lock(&f->missing_lock), f->missing[0] = 1, pthread_mutex_unlock(&f->missing_lock);
	}
	if ((e == IST_PEER_LEFT || e == IST_PEER_LOST) && f->scarce.code) { /* rank 0 was told what is wrong here, and ended with it */
		ist__error_copy(err, &f->scarce);
		ist__form_own(f, err);
		e = err->code;
	}
	f->deadline = own;
	return e;
}

static ist_err
read_roll(struct ist__form *f, struct ist_error *err)
{
	const struct ist__msg *m = f->star[0].phase;
	struct ist__reader r;
	uint64_t generation;

	ist__reader_init(&r, m->body, m->bytes);
	generation = ist__get_u64(&r);
	f->proto = ist__get_u32(&r);
	f->features = ist__get_u64(&r);
	f->bucket_bytes = ist__get_u64(&r);
	for (uint32_t i = 0; i < f->args.size; i++) {
		struct ist__claim *c = &f->claims[i];

		c->rank = i;
		c->transport = ist__get_u32(&r);
		c->mem = ist__get_u32(&r);
		c->device = (int32_t)ist__get_u32(&r);
		ist__get_str(&r, c->backend, sizeof(c->backend));
		if (!ist__card_get(&r, &c->card))
			break;
	}
	if (r.bad || generation == 0 || f->proto < f->ep->self.proto_min || f->proto > f->ep->self.proto_max)
		return ist__fail(err, IST_BAD_FORMAT, "group_new", "rank 0's roll-call can't be read");
	if (memcmp(f->claims[f->args.rank].card.id, f->card.id, IST__MEMBER_BYTES) != 0)
		return ist__fail(err, IST_CONFLICT, "group_new", "rank 0 took somebody else for rank %u", f->args.rank);
	set_generation(f, generation);
	return IST_OK;
}

/* ---- start, run, end ---- */

static void
form_free(struct ist__form *f)
{
	const struct ist__ctx *ctx = f->ctx;

	if (f->expecting)
		ist__ep_unexpect(f->ep, &f->expect);
	ist__rdv_close(&f->rdv);
	while (f->contests) {
		struct ist__contest *x = f->contests;

		f->contests = x->next;
		ist__spoke_clear(f, &x->spoke, false);
		ist__free(ctx, x);
	}
	for (uint32_t r = 0; r < f->args.size; r++) {
		if (f->args.rank == 0 || r == 0)
			ist__spoke_clear(f, &f->star[r], true);
		ist__spoke_clear(f, &f->links[r], true);
		ist__spoke_clear(f, &f->local[r], true);
		for (uint32_t i = 0; f->wires[r].came && i < f->wires[r].n; i++)
			close(f->wires[r].fd[i]);
	}
	ist__inbox_fini(&f->inbox);
	ist__loop_spares_fill(f->ep->loop); /* what was used of them, for the next one */
	if (f->chan)
		f->admitted->ops.close(f->chan, &(struct ist_status){ .struct_size = sizeof(struct ist_status) });
	if (f->group) {
		ist__group_close(f->group);
		ist__group_unref(f->group);
	}
	ist__life_free(f->life);
	if (f->life_fd >= 0)
		close(f->life_fd);
	ist__ep_unref(f->ep);
	pthread_mutex_destroy(&f->missing_lock);
	ist__free(ctx, f->name);
	ist__free(ctx, f->at);
	ist__free(ctx, f->prefix);
	ist__free(ctx, f->backend);
	ist__free(ctx, f->options);
	ist__free(ctx, f->cards);
	ist__free(ctx, f->star);
	ist__free(ctx, f->claims);
	ist__free(ctx, f->links);
	ist__free(ctx, f->local);
	ist__free(ctx, f->host);
	ist__free(ctx, f->slot);
	ist__free(ctx, f->room);
	ist__free(ctx, f->wires);
	ist__free(ctx, f->n_fds);
	ist__free(ctx, f->missing);
	ist__free(ctx, f);
}

static ist_err
form_all(struct ist__form *f, struct ist_group **out, struct ist_error *err)
{
	const struct ist__admitted *wish;
	ist_err e = IST_OK;

	if (strcmp(f->backend, "auto") != 0) /* a wish that can't be met is told before anybody is waited for */
		e = ist__plug_get(f->env, f->backend, &wish, err);
	if (!e)
		e = ist__rdv_open(&f->rdv, &f->args, err);
	if (!e)
		e = f->args.rank == 0 ? call_roll(f, err) : await_roll(f, err);
	if (!e && f->args.rank != 0) {
		e = read_roll(f, err);
		if (!e) {
			f->expecting = true;
			ist__ep_expect(f->ep, &f->expect);
			if (ist__ep_has_starved(f->ep, f->self.group))
				ist__inbox_starve(&f->inbox);
		}
	}
	return e ? e : ist__form_finish(f, out, err);
}

static void *
form_main(void *arg)
{
	struct ist__form *f = arg;
	struct ist_req *req = f->req;
	struct ist_group *group = NULL;
	struct ist__groups *groups = NULL;
	struct ist_error err;
	ist_err e;

	ist_error_init(&err);
	ist__groups_get(f->env, &groups, NULL);
	e = form_all(f, &group, &err);
	if (e == IST_LIMIT && (err.sys == EMFILE || err.sys == ENFILE) && !err.next[0])
		ist__fail_next(&err, "raise the limit of open descriptors (ulimit -n)%s", f->ep->transport == IST_TRANSPORT_SHM ? ", or let the transport be auto" : "");
	if (e)
		ist__log(f->ctx, 1, "group \"%s\" did not form: %s: %s", f->name, ist_err_name(e), err.detail);
	pthread_mutex_lock(&req->lock); /* the hooks below are called under it: from now on they find nothing */
	req->owner = NULL;
	pthread_mutex_unlock(&req->lock);
	form_free(f);
	if (!e)
		ist__req_set_payload(req, group);
	ist__req_finish(req, e ? &err : NULL);
	ist__req_drop(req);
	ist__groups_form_ended(groups, req);
	return NULL;
}

static void
on_cancel(void *owner, struct ist_req *req)
{
	struct ist__form *f = owner;

	(void)req;
	if (f)
		ist__inbox_cancel(&f->inbox);
}

static void
on_pending(void *owner, struct ist_req *req, struct ist_error *err)
{
	struct ist__form *f = owner;

	(void)req;
	if (!f)
		return;
	pthread_mutex_lock(&f->missing_lock);
	for (uint32_t r = 0; r < f->args.size; r++)
		if (f->missing[r])
			ist__fail_rank(err, r);
	pthread_mutex_unlock(&f->missing_lock);
}

static const struct ist__req_ops req_ops = { .cancel = on_cancel, .pending = on_pending };

static char *
copy(const struct ist__ctx *ctx, const char *s, const char *fallback)
{
	return ist__strdup(ctx, s ? s : fallback);
}

/* The identity that claims are matched by. By addresses: name and list; by a meeting place: the name, so that sizes that
 * differ meet and are told. */
static void
make_key(struct ist__form *f, const struct ist__form_args *a)
{
	static const char label[] = "isthmus group 1";
	crypto_generichash_state st;

	crypto_generichash_init(&st, NULL, 0, IST__GROUP_KEY);
	crypto_generichash_update(&st, (const uint8_t *)label, sizeof(label));
	crypto_generichash_update(&st, (const uint8_t *)f->name, strlen(f->name) + 1);
	if (a->salt)
		crypto_generichash_update(&st, a->salt, 16);
	for (uint32_t r = 0; f->cards && r < f->args.size; r++)
		crypto_generichash_update(&st, f->cards[r].id, IST__MEMBER_BYTES);
	crypto_generichash_final(&st, f->key, IST__GROUP_KEY);
}

static ist_err
copy_cards(struct ist__form *f, const struct ist__form_args *a, struct ist_error *err)
{
	uint32_t n = f->args.size;

	if (!a->cards && !a->args->addresses)
		return IST_OK;
	f->parent = a->parent;
	f->parent_ranks = a->parent_ranks;
	f->attempt = a->attempt;
	f->cards = ist__alloc(f->ctx, n * sizeof(*f->cards));
	if (!f->cards)
		return ist__fail_memory(err, "group_new");
	for (uint32_t r = 0; r < n; r++) {
		struct ist__reader in;

		if (a->cards) {
			f->cards[r] = a->cards[r];
			continue;
		}
		ist__reader_init(&in, a->args->addresses[r].addr, a->args->addresses[r].bytes);
		if (!ist__card_get(&in, &f->cards[r]))
			return ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "address %u is not what ist_endpoint_address gives", r);
		for (uint32_t q = 0; q < r; q++)
			if (!memcmp(f->cards[q].id, f->cards[r].id, IST__MEMBER_BYTES))
				return ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "addresses %u and %u are one member's", q, r);
	}
	if (memcmp(f->cards[f->args.rank].id, f->ep->card.id, IST__MEMBER_BYTES) != 0)
		return ist__fail(err, IST_NOT_MEMBER, "group_new", "address %u is not this endpoint's", f->args.rank);
	return IST_OK;
}

static ist_err
check_args(const struct ist__form_args *a, struct ist_error *err)
{
	const struct ist_group_args *g = a->args;
	const char *name = g->name ? g->name : "";

	if (g->size == 0 || g->rank >= g->size)
		return ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "rank %u of a world of %u", g->rank, g->size);
	if (g->size > 4096)
		return ist__fail(err, IST_LIMIT, "group_new", "a world of %u; at most 4096", g->size);
	if (strlen(name) > 255 || ist__utf8_valid(name, strlen(name)) != strlen(name))
		return ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "the name is longer than 255 bytes, or no UTF-8");
	if (g->backend && strlen(g->backend) > 255)
		return ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "the backend's name is longer than 255 bytes");
	return a->cards ? IST_OK : ist__rdv_check(g, err);
}

static ist_err
form_new(const struct ist__form_args *a, struct ist__form **out, struct ist_error *err)
{
	const struct ist_group_args *g = a->args;
	struct ist__form *f;
	ist_err e;

	e = check_args(a, err);
	if (e)
		return e;
	f = ist__alloc(ist__env_ctx(a->ep->env), sizeof(*f));
	if (!f)
		return ist__fail_memory(err, "group_new");
	f->env = a->ep->env;
	f->ctx = ist__env_ctx(f->env);
	f->life_fd = -1;
	f->rdv.lock_fd = -1;
	ist__loop_spares_fill(a->ep->loop); /* where it can't, ist__form_scarce says so */
	e = ist__inbox_init(&f->inbox, a->ep->loop, err);
	if (e) {
		ist__free(f->ctx, f);
		return e;
	}
	f->ep = a->ep;
	ist__ep_ref(f->ep);
	pthread_mutex_init(&f->missing_lock, NULL);
	f->args = *g;
	f->args.timeout_ns = g->timeout_ns ? g->timeout_ns : TIMEOUT_S * IST_NS_PER_S;
	f->args.no_progress_ns = g->no_progress_ns ? g->no_progress_ns : NO_PROGRESS_S * IST_NS_PER_S;
	f->deadline = ist__deadline(f->args.timeout_ns, 0);
	f->name = copy(f->ctx, g->name, "");
	f->at = g->at ? copy(f->ctx, g->at, "") : NULL;
	f->prefix = copy(f->ctx, g->prefix, "");
	f->backend = copy(f->ctx, a->parent_backend ? a->parent_backend : g->backend, "auto");
	f->options = copy(f->ctx, g->backend_options, "");
	f->star = ist__alloc(f->ctx, (g->rank == 0 ? g->size : 1) * sizeof(*f->star));
	f->claims = ist__alloc(f->ctx, g->size * sizeof(*f->claims));
	f->links = ist__alloc(f->ctx, g->size * sizeof(*f->links));
	f->local = ist__alloc(f->ctx, g->size * sizeof(*f->local));
	f->host = ist__alloc(f->ctx, g->size * sizeof(*f->host));
	f->slot = ist__alloc(f->ctx, g->size * sizeof(*f->slot));
	f->room = ist__alloc(f->ctx, g->size * sizeof(*f->room));
	f->wires = ist__alloc(f->ctx, g->size * sizeof(*f->wires));
	f->n_fds = ist__alloc(f->ctx, g->size * sizeof(*f->n_fds));
	f->missing = ist__alloc(f->ctx, g->size);
	if (!f->name || (g->at && !f->at) || !f->prefix || !f->backend || !f->options || !f->star || !f->claims || !f->links || !f->local ||
	    !f->host || !f->slot || !f->room || !f->wires || !f->n_fds || !f->missing) {
		f->args.size = 0; /* the arrays may not be there */
		form_free(f);
		return ist__fail_memory(err, "group_new");
	}
	e = copy_cards(f, a, err);
	if (e) {
		form_free(f);
		return e;
	}
	memset(f->missing, 1, g->size);
	f->missing[g->rank] = 0;
	f->args.at = f->at;
	f->args.prefix = f->prefix;
	f->args.addresses = f->cards ? (const void *)f->cards : NULL; /* only whether it is there counts from here on */
	f->rdv = (struct ist__rdv){ .ep = f->ep, .self = &f->self, .inbox = &f->inbox, .name = f->name, .rank = g->rank, .size = g->size,
		.host_meeting = g->host_meeting, .lock_fd = -1, .stray = stray, .arg = f };
	f->expect = (struct ist__expect){ .take = take_visitor, .refused = on_refused, .starved = on_starved };
	make_key(f, a);
	f->self = f->ep->self;
	f->self.group = ist__load_u32(f->key) | 1; /* never 0 */
	(void)ist__ep_has_starved(f->ep, f->self.group); /* what an earlier attempt left behind */
	*out = f;
	return IST_OK;
}

ist_err
ist__form_start(const struct ist__form_args *args, struct ist_req **out, struct ist_error *err)
{
	struct ist__groups *groups = NULL;
	struct ist__form *f = NULL;
	struct ist_req *req;
	pthread_t thread;
	int rc;
	ist_err e = ist__groups_get(args->ep->env, &groups, err);

	if (!e)
		e = form_new(args, &f, err);
	if (e)
		return e;
	e = ist__req_new(f->env, &req_ops, f, &f->req);
	if (e) {
		form_free(f);
		return ist__fail_memory(err, "group_new");
	}
	f->req->deadline = f->deadline;
	f->req->default_ns = f->args.timeout_ns;
	req = f->req;
	ist__groups_form_began(groups, req);
	if (args->here) {
		form_main(f);
		*out = req;
		return IST_OK;
	}
	rc = ist__thread(f->env, "new", form_main, f, &thread);
	if (rc) {
		struct ist_error why;

		ist_error_init(&why);
		e = ist__fail_thread(&why, rc, "group_new", "a thread");
		form_free(f);
		ist__req_finish(req, &why);
		ist__req_drop(req);
		ist_req_free(req);
		ist__groups_form_ended(groups, req);
		ist__error_copy(err, &why);
		return e;
	}
	pthread_detach(thread);
	*out = req;
	return IST_OK;
}
