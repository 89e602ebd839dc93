/* SPDX-License-Identifier: Apache-2.0 */
#include "net/conn.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { IN_BYTES = 32768, OUT_IOV = 32, READ_BUDGET = 1 << 20, FDS_KEPT = 64, SHORT_MS = 1000 };

enum phase { HELLO, PROOF, OPEN, OVER };

struct ist__conn {
	struct ist__watch watch;
	struct ist__timer timer; /* end of the hello, or of lingering */
	struct ist__loop *loop;
	const struct ist__conn_ops *ops;
	void *owner;
	enum ist__side side;
	enum phase phase;
	bool is_unix, lingering;
	atomic_bool ready;
	struct ist__self self;
	struct ist__agreed agreed;
	struct ist_error *late; /* found in the other side's hello, told once its proof holds */
	int64_t hello_deadline;
	_Atomic int64_t heard;
	uint8_t ours[IST__HELLO_BYTES], theirs[IST__HELLO_BYTES];
	char peer[128];

	uint32_t n_in;
	struct ist__frame *partial; /* header known, body still coming */
	uint32_t partial_bytes;
	int32_t fds[FDS_KEPT];
	uint32_t n_fds;
	bool fds_lost; /* of those that came last, some could not be had */

	pthread_mutex_t lock; /* what follows */
	struct ist__frame *first, **last;
	struct ist__frame *urgent, **urgent_last;
	uint32_t sent;        /* of the frame at hand */
	struct ist__frame *at_hand;
	uint64_t queued;
	uint8_t raw[IST__HELLO_BYTES + IST__PROOF_BYTES]; /* hello bytes to send, before all frames */
	uint32_t n_raw, at_raw;
	bool attached, wants_out, broken, gone, starved;
	ist_err end_code;
	int64_t short_since; /* when the kernel had no memory for what we send; 0: it has */
	struct ist__job job;

	uint8_t in[IN_BYTES]; /* last: it is not zeroed */
};

static void on_event(struct ist__watch *watch, uint32_t events);
static void on_timer(struct ist__timer *timer);

struct ist__frame *
ist__frame_new(struct ist__loop *loop, uint16_t type, const void *body, uint64_t bytes)
{
	struct ist__frame *f;

	if (bytes > IST__FRAME_MAX)
		return NULL;
	f = ist__slab_get(ist__loop_slab(loop), sizeof(*f) + bytes);
	if (!f)
		return NULL;
	memset(f, 0, sizeof(*f));
	f->type = type;
	f->bytes = (uint32_t)bytes;
	if (body && bytes > 0)
		memcpy(f->body, body, bytes);
	return f;
}

void
ist__frame_free(struct ist__loop *loop, struct ist__frame *frame)
{
	if (!frame)
		return;
	for (uint32_t i = 0; i < frame->n_fds && !frame->lent; i++)
		close(frame->fds[i]);
	ist__slab_put(ist__loop_slab(loop), frame);
}

/* For messages. At a local socket any user of this machine may knock, and the kernel says who it is. */
static bool
name_peer(struct ist__conn *c, int fd)
{
	union ist__sockaddr a = { .sa = { 0 } };
	socklen_t n = sizeof(a.storage);
	struct ucred who;

	if (getsockname(fd, &a.sa, &n)) /* what kind it is, others go by */
		return false;
	c->is_unix = a.sa.sa_family == AF_UNIX;
	n = c->is_unix ? sizeof(who) : sizeof(a.storage);
	if (c->is_unix && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0)
		snprintf(c->peer, sizeof(c->peer), "local socket of process %ld, user %ld", (long)who.pid, (long)who.uid);
	else if (!c->is_unix && getpeername(fd, &a.sa, &n) == 0)
		ist__sockaddr_text(&a, c->peer, sizeof(c->peer));
	else
		snprintf(c->peer, sizeof(c->peer), c->is_unix ? "local socket" : "the meeting place");
	return true;
}

/* What comes in is written before it is read: only the rest is zeroed. */
static struct ist__conn *
conn_alloc(const struct ist__ctx *ctx)
{
	struct ist__conn *c = ist__alloc_aligned(ctx, sizeof(*c), 16);

	if (c)
		memset(c, 0, offsetof(struct ist__conn, in));
	return c;
}

static struct ist__conn *
conn_make(struct ist__loop *loop, int fd, enum ist__side side, const struct ist__self *self)
{
	const struct ist__ctx *ctx = ist__env_ctx(ist__loop_env(loop));
	struct ist__conn *c = conn_alloc(ctx);

	if (c && !name_peer(c, fd)) {
		ist__free(ctx, c);
		c = NULL;
	}
	if (!c) {
		close(fd);
		return NULL;
	}
	c->loop = loop;
	c->watch = (struct ist__watch){ .fd = fd, .on = on_event };
	c->timer.on = on_timer;
	c->side = side;
	c->self = *self;
	c->last = &c->first;
	c->urgent_last = &c->urgent;
	pthread_mutex_init(&c->lock, NULL);
	atomic_store(&c->heard, ist__now());
	return c;
}

struct ist__conn *
ist__conn_new(struct ist__loop *loop, int fd, enum ist__side side, const struct ist__self *self, int64_t hello_deadline)
{
	struct ist__conn *c = conn_make(loop, fd, side, self);

	if (!c)
		return NULL;
	c->hello_deadline = hello_deadline;
	ist__hello_make(self, c->ours);
	if (side == IST__INITIATOR) {
		memcpy(c->raw, c->ours, IST__HELLO_BYTES);
		c->n_raw = IST__HELLO_BYTES;
	}
	return c;
}

struct ist__conn *
ist__conn_handed(struct ist__loop *loop, int fd, const struct ist__self *self, const struct ist__agreed *agreed)
{
	struct ist__conn *c = conn_make(loop, fd, IST__INITIATOR, self);

	if (!c)
		return NULL;
	c->agreed = *agreed;
	c->hello_deadline = IST__NEVER;
	c->phase = OPEN;
	atomic_store(&c->ready, true);
	return c;
}

static void
free_here(struct ist__job *job)
{
	struct ist__conn *c = (struct ist__conn *)(void *)((char *)job - offsetof(struct ist__conn, job));
	const struct ist__ctx *ctx = ist__env_ctx(ist__loop_env(c->loop));

	while (c->urgent) {
		struct ist__frame *f = c->urgent;

		c->urgent = f->next;
		ist__frame_free(c->loop, f);
	}
	while (c->first) {
		struct ist__frame *f = c->first;

		c->first = f->next;
		ist__frame_free(c->loop, f);
	}
	ist__frame_free(c->loop, c->at_hand);
	ist__frame_free(c->loop, c->partial);
	for (uint32_t i = 0; i < c->n_fds; i++)
		close(c->fds[i]);
	ist__free(ctx, c->late);
	pthread_mutex_destroy(&c->lock);
	ist__free(ctx, c);
}

/* Later: a callback of this very connection may be on the stack. */
static void
conn_free(struct ist__conn *c)
{
	c->phase = OVER;
	close(c->watch.fd);
	c->job.run = free_here;
	ist__loop_post(c->loop, &c->job);
}

/* ---- sending ---- */

static void
encode(struct ist__frame *f)
{
	uint8_t *w = f->wire;

	ist__store_u32(w, f->bytes);
	w[4] = (uint8_t)f->type, w[5] = (uint8_t)(f->type >> 8);
	w[6] = (uint8_t)f->flags, w[7] = (uint8_t)(f->flags >> 8);
	ist__store_u64(w + 8, f->seq);
	ist__store_u64(w + 16, f->generation);
	ist__store_u32(w + 24, f->from);
	ist__store_u32(w + 28, f->to);
}

static struct ist__frame *
next_frame(struct ist__conn *c)
{
	struct ist__frame *f = c->urgent;

	if (f) {
		c->urgent = f->next;
		if (!c->urgent)
			c->urgent_last = &c->urgent;
	} else if ((f = c->first)) {
		c->first = f->next;
		if (!c->first)
			c->last = &c->first;
	}
	return f;
}

static void
send_fds(struct msghdr *m, void *control, const struct ist__frame *f)
{
	struct cmsghdr *h;

	m->msg_control = control;
	m->msg_controllen = CMSG_SPACE(f->n_fds * sizeof(int32_t));
	h = CMSG_FIRSTHDR(m);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(f->n_fds * sizeof(int32_t));
	memcpy(CMSG_DATA(h), f->fds, f->n_fds * sizeof(int32_t));
}

/* After a send that failed: is it worth another try? The kernel may be short of memory for a moment; where it lasts, the end is
 * ours, not the other side's. */
static bool
may_wait(struct ist__conn *c)
{
	if (errno == EAGAIN || errno == EINTR)
		return true;
	if (errno != ENOBUFS && errno != ENOMEM)
		return false;
	if (!c->short_since)
		c->short_since = ist__now();
	if (ist__now() - c->short_since < SHORT_MS * IST__MS)
		return true;
	c->starved = true;
	return false;
}

/* Sends what the socket takes. Under the lock. False: the connection is broken. */
static bool
flush(struct ist__conn *c)
{
	union {
		char bytes[CMSG_SPACE(IST__FRAME_FDS * sizeof(int32_t))];
		struct cmsghdr align;
	} control;

	while (c->at_raw < c->n_raw) {
		ssize_t n = send(c->watch.fd, c->raw + c->at_raw, c->n_raw - c->at_raw, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0)
			return may_wait(c);
		c->at_raw += (uint32_t)n;
	}
	if (!atomic_load(&c->ready))
		return true;
	for (;;) {
		struct iovec v[2];
		struct msghdr m = { .msg_iov = v };
		struct ist__frame *f = c->at_hand;
		ssize_t n;

		if (!f) {
			f = c->at_hand = next_frame(c);
			if (!f)
				return true;
			encode(f);
			c->sent = 0;
		}
		if (c->sent < IST__FRAME_HEADER)
			v[m.msg_iovlen++] = (struct iovec){ f->wire + c->sent, IST__FRAME_HEADER - c->sent };
		if (f->bytes > 0) {
			uint32_t skip = c->sent < IST__FRAME_HEADER ? 0 : c->sent - IST__FRAME_HEADER;

			v[m.msg_iovlen++] = (struct iovec){ f->body + skip, f->bytes - skip };
		}
		if (c->sent == 0 && f->n_fds > 0)
			send_fds(&m, control.bytes, f);
		n = sendmsg(c->watch.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0)
			return may_wait(c);
		c->short_since = 0;
		c->sent += (uint32_t)n;
		c->queued -= (uint64_t)n;
		if (c->sent == IST__FRAME_HEADER + f->bytes) {
			ist__frame_free(c->loop, f);
			c->at_hand = NULL;
		}
	}
}

static bool
has_out(const struct ist__conn *c)
{
	return c->at_raw < c->n_raw || (atomic_load(&c->ready) && (c->at_hand || c->first || c->urgent));
}

/* Flushes and says whether it wants to hear of room. Under the lock. */
static void
pump(struct ist__conn *c)
{
	bool wants;

	if (c->gone || c->broken || !c->attached)
		return;
	if (!flush(c)) {
		c->broken = true; /* the loop hears it from the socket */
		shutdown(c->watch.fd, SHUT_RDWR);
		return;
	}
	wants = has_out(c);
	if (wants != c->wants_out) {
		c->wants_out = wants;
		ist__loop_change(c->loop, &c->watch, EPOLLIN | (wants ? (uint32_t)EPOLLOUT : 0u));
	}
}

/* Behind what waits already. Under the lock. */
static void
enqueue(struct ist__conn *c, struct ist__frame *f)
{
	struct ist__frame ***last = f->flags & IST__FRAME_URGENT ? &c->urgent_last : &c->last;

	f->next = NULL;
	**last = f;
	*last = &f->next;
	c->queued += IST__FRAME_HEADER + f->bytes;
	if (!c->wants_out)
		pump(c);
}

bool
ist__conn_send(struct ist__conn *c, struct ist__frame *f)
{
	bool ok;

	pthread_mutex_lock(&c->lock);
	ok = !c->gone && !c->broken;
	if (ok)
		enqueue(c, f);
	pthread_mutex_unlock(&c->lock);
	if (!ok)
		ist__frame_free(c->loop, f);
	return ok;
}

/* 0, or the errno; then they are lent as before. */
static int
own_fds(struct ist__frame *f)
{
	int32_t own[IST__FRAME_FDS];

	for (uint32_t i = 0; i < f->n_fds; i++) {
		own[i] = fcntl(f->fds[i], F_DUPFD_CLOEXEC, 0);
		if (own[i] < 0) {
			int sys = errno;

			while (i > 0)
				close(own[--i]);
			return sys;
		}
	}
	memcpy(f->fds, own, f->n_fds * sizeof(*own));
	f->lent = false;
	return 0;
}

/* It may have left at once: then it is gone, or its descriptors are. Under the lock. 0, or the errno: it was not sent. */
static int
send_idle(struct ist__conn *c, struct ist__frame *f)
{
	int sys;

	enqueue(c, f);
	if (c->at_hand != f || c->broken)
		return 0;
	if (c->sent > 0) {
		f->n_fds = 0; /* the other side has them: they go with the first byte */
		return 0;
	}
	sys = own_fds(f);
	if (sys) {
		c->at_hand = NULL;
		c->queued -= IST__FRAME_HEADER + f->bytes;
	}
	return sys;
}

int
ist__conn_send_lent(struct ist__conn *c, struct ist__frame *f)
{
	bool ok, idle;
	int sys = 0;

	f->lent = true;
	pthread_mutex_lock(&c->lock);
	ok = !c->gone && !c->broken;
	idle = c->attached && atomic_load(&c->ready) && !c->wants_out && !has_out(c);
	if (ok && idle) {
		sys = send_idle(c, f);
	} else if (ok) {
		sys = own_fds(f);
		if (!sys)
			enqueue(c, f);
	}
	pthread_mutex_unlock(&c->lock);
	if (!ok || sys)
		ist__frame_free(c->loop, f);
	return sys;
}

void
ist__conn_starve(struct ist__conn *c)
{
	pthread_mutex_lock(&c->lock);
	if (!c->gone && !c->broken) {
		c->starved = c->broken = true;
		shutdown(c->watch.fd, SHUT_RDWR); /* the loop hears it from the socket */
	}
	pthread_mutex_unlock(&c->lock);
}

bool
ist__conn_has_starved(struct ist__conn *c)
{
	bool has;

	pthread_mutex_lock(&c->lock);
	has = c->starved;
	pthread_mutex_unlock(&c->lock);
	return has;
}

ist_err
ist__conn_end_code(struct ist__conn *c)
{
	ist_err e;

	pthread_mutex_lock(&c->lock);
	e = c->starved ? IST_NO_MEMORY : c->end_code;
	pthread_mutex_unlock(&c->lock);
	return e;
}

bool
ist__conn_is_over(struct ist__conn *c)
{
	bool is;

	pthread_mutex_lock(&c->lock);
	is = c->gone || c->broken;
	pthread_mutex_unlock(&c->lock);
	return is;
}

/* ---- the end ---- */

/* Tells the owner, once. */
static void
end(struct ist__conn *c, const struct ist_error *err)
{
	if (c->phase == OVER)
		return;
	c->phase = OVER;
	ist__timer_stop(&c->timer);
	ist__loop_unwatch(c->loop, &c->watch);
	pthread_mutex_lock(&c->lock);
	c->gone = true;
	c->end_code = err->code;
	pthread_mutex_unlock(&c->lock);
	if (c->lingering) {
		ist__loop_release(c->loop);
		conn_free(c);
		return;
	}
	c->ops->closed(c, c->owner, err);
}

static void
end_with(struct ist__conn *c, ist_err code, int sys, const char *what)
{
	struct ist_error e;

	ist_error_init(&e);
	if (sys)
		ist__fail_sys(&e, code, sys, "connection", "%s: %s", c->peer, what);
	else
		ist__fail(&e, code, "connection", "%s: %s", c->peer, what);
	end(c, &e);
}

static void
end_as(struct ist__conn *c, struct ist_error *err)
{
	ist__fail_prefix(err, "%s: ", c->peer);
	end(c, err);
}

struct closing {
	struct ist__conn *c;
	bool linger;
};

static void
close_here(void *arg)
{
	struct closing *closing = arg;
	struct ist__conn *c = closing->c;
	bool over = c->phase == OVER, keep;

	pthread_mutex_lock(&c->lock);
	keep = closing->linger && !over && !c->broken && c->phase == OPEN;
	if (!keep)
		c->gone = true;
	pthread_mutex_unlock(&c->lock);
	if (keep) {
		c->lingering = true; /* end() frees it */
		ist__loop_hold(c->loop);
		ist__timer_set(c->loop, &c->timer, ist__now() + 1000 * IST__MS);
		pthread_mutex_lock(&c->lock);
		pump(c);
		if (!has_out(c))
			shutdown(c->watch.fd, SHUT_WR); /* then read until the other side has closed, or its unread bytes would reset what we sent */
		pthread_mutex_unlock(&c->lock);
		return;
	}
	if (!over) {
		ist__timer_stop(&c->timer);
		ist__loop_unwatch(c->loop, &c->watch);
	}
	conn_free(c);
}

void
ist__conn_close(struct ist__conn *c, bool linger)
{
	struct closing closing = { c, linger };

	if (c)
		ist__loop_run(c->loop, close_here, &closing);
}

static void
on_timer(struct ist__timer *timer)
{
	struct ist__conn *c = (struct ist__conn *)(void *)((char *)timer - offsetof(struct ist__conn, timer));

	end_with(c, IST_WRONG_PEER, 0, c->n_in == 0 && c->phase == HELLO ? "accepts, but does not answer as Isthmus" : "the hello took too long");
}

/* ---- receiving ---- */

static void
send_raw(struct ist__conn *c, const void *at, uint32_t n)
{
	pthread_mutex_lock(&c->lock);
	memcpy(c->raw + c->n_raw, at, n);
	c->n_raw += n;
	pump(c);
	pthread_mutex_unlock(&c->lock);
}

static void
take(struct ist__conn *c, uint32_t n)
{
	c->n_in -= n;
	memmove(c->in, c->in + n, c->n_in);
}

static bool
keep_late(struct ist__conn *c, const struct ist_error *err)
{
	c->late = ist__alloc(ist__env_ctx(ist__loop_env(c->loop)), sizeof(*err));
	if (c->late)
		*c->late = *err;
	return c->late != NULL;
}

static void
opened(struct ist__conn *c)
{
	c->phase = OPEN;
	ist__timer_stop(&c->timer);
	if (c->late) {
		end_as(c, c->late);
		return;
	}
	atomic_store(&c->ready, true);
	pthread_mutex_lock(&c->lock);
	pump(c);
	pthread_mutex_unlock(&c->lock);
	if (c->ops->ready)
		c->ops->ready(c, c->owner);
}

static bool
hello_in(struct ist__conn *c)
{
	uint8_t proof[IST__PROOF_BYTES];
	struct ist_error err;
	ist_err e;

	ist_error_init(&err);
	if (ist__hello_look(c->in, c->n_in, &err)) {
		end_as(c, &err);
		return false;
	}
	if (c->n_in < IST__HELLO_BYTES)
		return false;
	memcpy(c->theirs, c->in, IST__HELLO_BYTES);
	take(c, IST__HELLO_BYTES);
	e = ist__hello_read(&c->self, c->theirs, &c->agreed, &err);
	if (e == IST_VERSION_MISMATCH && !keep_late(c, &err))
		e = IST_NO_MEMORY;
	if (c->side == IST__RESPONDER) {
		ist__hello_prove(&c->self, IST__RESPONDER, c->theirs, c->ours, c->ours + IST__PROOF_AT);
		send_raw(c, c->ours, IST__HELLO_BYTES); /* also when it does not fit: the other side must learn why */
	}
	if (e && e != IST_VERSION_MISMATCH) {
		end_as(c, &err);
		return false;
	}
	c->phase = PROOF;
	if (c->side == IST__RESPONDER)
		return true;
	if (ist__hello_check(&c->self, IST__RESPONDER, c->ours, c->theirs, c->theirs + IST__PROOF_AT, &err)) {
		memset(proof, 0, sizeof(proof)); /* no proof: it tells the other side why we go, and nothing of our secret */
		send_raw(c, proof, sizeof(proof));
		end_as(c, &err);
		return false;
	}
	ist__hello_prove(&c->self, IST__INITIATOR, c->ours, c->theirs, proof);
	send_raw(c, proof, sizeof(proof));
	opened(c);
	return c->phase == OPEN;
}

static bool
proof_in(struct ist__conn *c)
{
	struct ist_error err;

	ist_error_init(&err);
	if (c->n_in < IST__PROOF_BYTES)
		return false;
	if (ist__hello_check(&c->self, IST__INITIATOR, c->theirs, c->ours, c->in, &err)) {
		end_as(c, &err);
		return false;
	}
	take(c, IST__PROOF_BYTES);
	opened(c);
	return c->phase == OPEN;
}

/* Gives a whole frame its descriptors and the owner the frame. */
static bool
deliver(struct ist__conn *c, struct ist__frame *f)
{
	if (f->flags & IST__FRAME_HAS_FDS) {
		uint32_t n = f->bytes > 0 ? f->body[0] : 0;

		if (n > c->n_fds && c->fds_lost) {
			while (c->n_fds > 0)
				close(c->fds[--c->n_fds]);
			f->fds_lost = true;
			n = 0;
		}
		c->fds_lost = false;
		if (n > IST__FRAME_FDS || n > c->n_fds) {
			ist__frame_free(c->loop, f);
			end_with(c, IST_BAD_FORMAT, 0, "descriptors were announced that did not come");
			return false;
		}
		memcpy(f->fds, c->fds, n * sizeof(int32_t));
		f->n_fds = n;
		c->n_fds -= n;
		memmove(c->fds, c->fds + n, c->n_fds * sizeof(int32_t));
	}
	if (c->lingering)
		ist__frame_free(c->loop, f);
	else
		c->ops->frame(c, c->owner, f);
	return c->phase == OPEN;
}

/* Starts a frame from the header at at. */
static bool
header_in(struct ist__conn *c, const uint8_t *at)
{
	uint32_t bytes = ist__load_u32(at);
	struct ist__frame *f;

	if (bytes > IST__FRAME_MAX) {
		end_with(c, IST_BAD_FORMAT, 0, "a frame is longer than frames may be");
		return false;
	}
	f = ist__frame_new(c->loop, (uint16_t)(at[4] | (uint32_t)at[5] << 8), NULL, bytes);
	if (!f) {
		end_with(c, IST_NO_MEMORY, 0, "no memory for a frame");
		return false;
	}
	f->flags = (uint16_t)(at[6] | (uint32_t)at[7] << 8);
	f->seq = ist__load_u64(at + 8);
	f->generation = ist__load_u64(at + 16);
	f->from = ist__load_u32(at + 24);
	f->to = ist__load_u32(at + 28);
	c->partial = f;
	c->partial_bytes = 0;
	return true;
}

/* Eats what lies in the buffer. False: the connection is over, or gone from under us. */
static bool
parse(struct ist__conn *c)
{
	uint32_t at = 0;

	while (c->phase == OPEN) {
		struct ist__frame *f = c->partial;
		uint32_t n;

		if (!f) {
			if (c->n_in - at < IST__FRAME_HEADER)
				break;
			if (!header_in(c, c->in + at))
				return false;
			at += IST__FRAME_HEADER;
			f = c->partial;
		}
		n = f->bytes - c->partial_bytes;
		if (n > c->n_in - at)
			n = c->n_in - at;
		memcpy(f->body + c->partial_bytes, c->in + at, n);
		c->partial_bytes += n;
		at += n;
		if (c->partial_bytes < f->bytes)
			break;
		c->partial = NULL;
		if (!deliver(c, f))
			return false;
	}
	take(c, at);
	return true;
}

static void
keep_fds(struct ist__conn *c, struct msghdr *m)
{
	for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
		uint32_t n;
		int32_t fds[FDS_KEPT];

		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		n = (uint32_t)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int32_t));
		memcpy(fds, CMSG_DATA(h), n * sizeof(int32_t));
		for (uint32_t i = 0; i < n; i++)
			if (c->n_fds < FDS_KEPT && c->phase >= PROOF) /* the first frame may have come right behind the proof */
				c->fds[c->n_fds++] = fds[i];
			else
				close(fds[i]); /* nobody asked for them */
	}
}

/* One read. False: nothing more for now, or over. */
static bool
read_some(struct ist__conn *c, uint32_t *budget)
{
	union {
		char bytes[CMSG_SPACE(FDS_KEPT * sizeof(int32_t))];
		struct cmsghdr align;
	} control;
	struct iovec v[2];
	struct msghdr m = { .msg_iov = v };
	struct ist__frame *f = c->partial;
	uint32_t body = 0, room;
	ssize_t n;

	if (f && c->n_in == 0) /* straight to its place */
		v[m.msg_iovlen++] = (struct iovec){ f->body + c->partial_bytes, body = f->bytes - c->partial_bytes };
	v[m.msg_iovlen++] = (struct iovec){ c->in + c->n_in, IN_BYTES - c->n_in };
	room = body + IN_BYTES - c->n_in;
	if (c->is_unix) {
		m.msg_control = control.bytes;
		m.msg_controllen = sizeof(control.bytes);
	}
	n = recvmsg(c->watch.fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (n <= 0 && ist__conn_has_starved(c)) {
		end_with(c, IST_NO_MEMORY, 0, "no memory for a frame");
		return false;
	}
	if (n <= 0) {
		end_with(c, IST_PEER_LOST, n < 0 ? errno : 0, c->phase == OPEN ? "the connection ended" : "the connection ended in the hello");
		return false;
	}
	keep_fds(c, &m);
	/* the frame is told so, and the connection stays: it is needed to tell the others */
	c->fds_lost |= (m.msg_flags & MSG_CTRUNC) && c->n_fds < FDS_KEPT;
	atomic_store_explicit(&c->heard, ist__now(), memory_order_relaxed);
	*budget = *budget > (uint32_t)n && (uint32_t)n == room ? *budget - (uint32_t)n : 0; /* less than asked for: it is empty */
	if ((uint32_t)n < body) {
		c->partial_bytes += (uint32_t)n;
		return true;
	}
	if (body) {
		c->partial = NULL;
		c->n_in = (uint32_t)n - body;
		if (!deliver(c, f))
			return false;
	} else
		c->n_in += (uint32_t)n;
	return true;
}

/* The proof was not among it: nobody asked this one for descriptors. */
static void
drop_fds(struct ist__conn *c)
{
	while (c->n_fds > 0 && c->phase < OPEN)
		close(c->fds[--c->n_fds]);
}

static void
on_event(struct ist__watch *watch, uint32_t events)
{
	struct ist__conn *c = (struct ist__conn *)(void *)watch;
	uint32_t budget = READ_BUDGET;

	if (events & EPOLLOUT) {
		pthread_mutex_lock(&c->lock);
		pump(c);
		if (c->lingering && !has_out(c))
			shutdown(c->watch.fd, SHUT_WR);
		pthread_mutex_unlock(&c->lock);
	}
	if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		return;
	while (budget > 0 && read_some(c, &budget)) {
		if (c->phase == HELLO && !hello_in(c) && c->phase != HELLO)
			return;
		if (c->phase == PROOF && !proof_in(c) && c->phase != PROOF)
			return;
		drop_fds(c);
		if (c->phase == OPEN && !parse(c))
			return;
	}
}

/* ---- the rest ---- */

static void
attach_here(void *arg)
{
	struct ist__conn *c = arg;
	int sys = ist__loop_watch(c->loop, &c->watch, EPOLLIN);

	if (sys) {
		struct ist_error e;

		ist_error_init(&e);
		ist__loop_unwatched(&e, sys, "connection", "epoll");
		end_as(c, &e);
		return;
	}
	ist__timer_set(c->loop, &c->timer, c->hello_deadline);
	pthread_mutex_lock(&c->lock);
	c->attached = true;
	pump(c);
	pthread_mutex_unlock(&c->lock);
}

void
ist__conn_attach(struct ist__conn *c, const struct ist__conn_ops *ops, void *owner)
{
	c->ops = ops;
	c->owner = owner;
	ist__loop_run(c->loop, attach_here, c);
}

void
ist__conn_give(struct ist__conn *c, const struct ist__conn_ops *ops, void *owner)
{
	c->ops = ops;
	c->owner = owner;
}

void
ist__conn_replay(struct ist__conn *c, struct ist__frame *frame)
{
	c->ops->frame(c, c->owner, frame);
}

uint64_t
ist__conn_held(struct ist__conn *c)
{
	return sizeof(*c) + ist__conn_queued(c);
}

uint64_t
ist__conn_queued(struct ist__conn *c)
{
	uint64_t n;

	pthread_mutex_lock(&c->lock);
	n = c->queued;
	pthread_mutex_unlock(&c->lock);
	return n;
}

int64_t
ist__conn_heard(const struct ist__conn *c)
{
	return atomic_load_explicit(&c->heard, memory_order_relaxed);
}

bool
ist__conn_is_ready(const struct ist__conn *c)
{
	return atomic_load(&c->ready);
}

const struct ist__agreed *
ist__conn_agreed(const struct ist__conn *c)
{
	return &c->agreed;
}

uint32_t
ist__conn_group(const struct ist__conn *c)
{
	return ist__hello_group(c->theirs);
}

const char *
ist__conn_peer(const struct ist__conn *c)
{
	return c->peer;
}

bool
ist__conn_is_unix(const struct ist__conn *c)
{
	return c->is_unix;
}

bool
ist__conn_local(const struct ist__conn *c, union ist__sockaddr *out)
{
	socklen_t n = sizeof(out->storage);

	return getsockname(c->watch.fd, &out->sa, &n) == 0;
}

struct ist__loop *
ist__conn_loop(const struct ist__conn *c)
{
	return c->loop;
}
