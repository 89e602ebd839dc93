/* SPDX-License-Identifier: Apache-2.0 */
#include "net/inbox.h"

#include "base/clock.h"
#include "base/fail.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const struct ist__ctx *
ctx_of(struct ist__inbox *inbox)
{
	return ist__env_ctx(ist__loop_env(inbox->loop));
}

ist_err
ist__inbox_init(struct ist__inbox *inbox, struct ist__loop *loop, struct ist_error *err)
{
	pthread_condattr_t attr;

	*inbox = (struct ist__inbox){ .loop = loop };
	do
		inbox->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	while (inbox->cancel_fd < 0 && ist__loop_spares_spend(loop, errno));
	if (inbox->cancel_fd < 0)
		return ist__fail_sys(err, IST_IO, errno, "inbox", "eventfd");
	inbox->last = &inbox->first;
	pthread_mutex_init(&inbox->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&inbox->cond, &attr);
	pthread_condattr_destroy(&attr);
	return IST_OK;
}

void
ist__event_done(struct ist__inbox *inbox, struct ist__event *event)
{
	ist__frame_free(inbox->loop, event->frame);
	ist__free(ctx_of(inbox), event->error);
	event->frame = NULL;
	event->error = NULL;
}

static void
nothing(void *arg)
{
	(void)arg;
}

void
ist__inbox_fini(struct ist__inbox *inbox)
{
	while (inbox->posts)
		ist__inbox_drop(inbox, inbox->posts, true);
	ist__loop_run(inbox->loop, nothing, NULL); /* nobody is inside push any more */
	close(inbox->cancel_fd);
	pthread_cond_destroy(&inbox->cond);
	pthread_mutex_destroy(&inbox->lock);
}

void
ist__inbox_cancel(struct ist__inbox *inbox)
{
	uint64_t one = 1;
	ssize_t n;

	pthread_mutex_lock(&inbox->lock);
	inbox->cancelled = true;
	pthread_cond_broadcast(&inbox->cond);
	pthread_mutex_unlock(&inbox->lock);
	ist__loop_wake(inbox->loop);
	n = write(inbox->cancel_fd, &one, sizeof(one));
	(void)n;
}

void
ist__inbox_starve(struct ist__inbox *inbox)
{
	pthread_mutex_lock(&inbox->lock);
	inbox->starved = true;
	pthread_cond_broadcast(&inbox->cond);
	pthread_mutex_unlock(&inbox->lock);
	ist__loop_wake(inbox->loop);
}

/* A connection's end is never lost. */
static struct ist__event *
event_new(struct ist__post *post, enum ist__event_kind kind)
{
	struct ist__event *e = post->deaf && kind != IST__EVENT_CLOSED ? NULL : ist__alloc(ctx_of(post->inbox), sizeof(*e));

	return !e && kind == IST__EVENT_CLOSED ? &post->last : e;
}

static void
event_free(struct ist__inbox *inbox, struct ist__event *e)
{
	if (e != &e->post->last)
		ist__free(ctx_of(inbox), e);
}

/* Without memory an event is lost, and what it told of may never come again: the connection ends with that, and whoever waits
 * hears of its end. */
static void
push(struct ist__post *post, enum ist__event_kind kind, struct ist__frame *frame, const struct ist_error *err)
{
	struct ist__inbox *inbox = post->inbox;
	struct ist__event *e = event_new(post, kind);

	if (!e) {
		post->deaf = true;
		ist__frame_free(inbox->loop, frame);
		ist__conn_starve(post->conn);
		return;
	}
	*e = (struct ist__event){ .kind = kind, .post = post, .frame = frame };
	if (err) {
		e->error = ist__alloc(ctx_of(inbox), sizeof(*err));
		if (e->error)
			*e->error = *err;
	}
	pthread_mutex_lock(&inbox->lock);
	*inbox->last = e;
	inbox->last = &e->next;
	pthread_mutex_unlock(&inbox->lock);
	ist__loop_tell(inbox->loop);
	pthread_cond_signal(&inbox->cond); /* not under the lock, which the woken one would run into; fini waits for our turn's end */
}

static void
on_ready(struct ist__conn *conn, void *owner)
{
	(void)conn;
	push(owner, IST__EVENT_READY, NULL, NULL);
}

static void
on_frame(struct ist__conn *conn, void *owner, struct ist__frame *frame)
{
	(void)conn;
	push(owner, IST__EVENT_FRAME, frame, NULL);
}

static void
on_closed(struct ist__conn *conn, void *owner, const struct ist_error *err)
{
	(void)conn;
	push(owner, IST__EVENT_CLOSED, NULL, err);
}

static const struct ist__conn_ops ops = { on_ready, on_frame, on_closed };

static void
post_link(struct ist__inbox *inbox, struct ist__post *post)
{
	pthread_mutex_lock(&inbox->lock);
	post->next = inbox->posts;
	inbox->posts = post;
	pthread_mutex_unlock(&inbox->lock);
}

struct ist__post *
ist__inbox_reserve(struct ist__inbox *inbox, uint64_t tag)
{
	struct ist__post *post = ist__alloc(ctx_of(inbox), sizeof(*post));

	if (post)
		*post = (struct ist__post){ .inbox = inbox, .tag = tag };
	return post;
}

void
ist__inbox_fill(struct ist__post *post, struct ist__conn *conn)
{
	post->conn = conn;
	post_link(post->inbox, post);
	ist__conn_attach(conn, &ops, post);
}

void
ist__inbox_unreserve(struct ist__inbox *inbox, struct ist__post *post)
{
	ist__free(ctx_of(inbox), post);
}

struct ist__post *
ist__inbox_add(struct ist__inbox *inbox, struct ist__conn *conn, uint64_t tag)
{
	struct ist__post *post = ist__inbox_reserve(inbox, tag);

	if (!post)
		ist__conn_close(conn, false);
	else
		ist__inbox_fill(post, conn);
	return post;
}

struct ist__post *
ist__inbox_adopt(struct ist__inbox *inbox, struct ist__conn *conn, uint64_t tag)
{
	struct ist__post *post = ist__inbox_reserve(inbox, tag);

	if (!post) {
		ist__conn_close(conn, false);
		return NULL;
	}
	post->conn = conn;
	post_link(inbox, post);
	ist__conn_give(conn, &ops, post);
	return post;
}

void
ist__inbox_put(struct ist__inbox *inbox, struct ist__post *post, struct ist__frame *frame)
{
	(void)inbox;
	push(post, IST__EVENT_FRAME, frame, NULL);
}

/* Unlinks the post and its events; the frames among them are handed back in order. */
static struct ist__frame *
post_remove(struct ist__inbox *inbox, struct ist__post *post, bool *gone)
{
	struct ist__frame *frames = NULL, **last = &frames;
	struct ist__event **p;

	*gone = false;
	pthread_mutex_lock(&inbox->lock);
	for (struct ist__post **q = &inbox->posts; *q; q = &(*q)->next)
		if (*q == post) {
			*q = post->next;
			break;
		}
	for (p = &inbox->first; *p;) {
		struct ist__event *e = *p;

		if (e->post != post) {
			p = &e->next;
			continue;
		}
		*p = e->next;
		if (e->kind == IST__EVENT_CLOSED)
			*gone = true;
		if (e->frame) {
			e->frame->next = NULL;
			*last = e->frame;
			last = &e->frame->next;
		}
		e->frame = NULL;
		ist__event_done(inbox, e);
		event_free(inbox, e);
	}
	inbox->last = p;
	pthread_mutex_unlock(&inbox->lock);
	ist__free(ctx_of(inbox), post);
	return frames;
}

void
ist__inbox_drop(struct ist__inbox *inbox, struct ist__post *post, bool linger)
{
	struct ist__frame *frames;
	bool gone;

	ist__conn_close(post->conn, linger); /* no event of it comes after this */
	frames = post_remove(inbox, post, &gone);
	while (frames) {
		struct ist__frame *f = frames;

		frames = f->next;
		ist__frame_free(inbox->loop, f);
	}
}

struct release {
	struct ist__inbox *inbox;
	struct ist__post *post;
	void (*take)(void *arg, struct ist__conn *conn, struct ist__frame *frames, bool gone);
	void *arg;
};

static void
release_here(void *arg)
{
	struct release *r = arg;
	struct ist__conn *conn = r->post->conn;
	bool gone;
	struct ist__frame *frames = post_remove(r->inbox, r->post, &gone);

	r->take(r->arg, conn, frames, gone);
}

void
ist__inbox_release(struct ist__inbox *inbox, struct ist__post *post,
	void (*take)(void *arg, struct ist__conn *conn, struct ist__frame *frames, bool gone), void *arg)
{
	struct release r = { inbox, post, take, arg };

	ist__loop_run(inbox->loop, release_here, &r);
}

static bool
has_something(void *arg)
{
	struct ist__inbox *inbox = arg;
	bool has;

	pthread_mutex_lock(&inbox->lock);
	has = inbox->first || inbox->cancelled || inbox->starved;
	pthread_mutex_unlock(&inbox->lock);
	return has;
}

ist_err
ist__inbox_wait(struct ist__inbox *inbox, int64_t deadline, struct ist__event *out, struct ist_error *err)
{
	struct timespec until = { .tv_sec = (time_t)(deadline / 1000000000), .tv_nsec = (long)(deadline % 1000000000) };
	struct ist__event *e;
	int rc = 0;

	if (deadline > 0 && !has_something(inbox))
		ist__loop_drive(inbox->loop, has_something, inbox, deadline);
	pthread_mutex_lock(&inbox->lock);
	while (!inbox->first && !inbox->cancelled && !inbox->starved && rc == 0 && deadline > 0)
		rc = deadline == IST__NEVER ? pthread_cond_wait(&inbox->cond, &inbox->lock) :
			pthread_cond_timedwait(&inbox->cond, &inbox->lock, &until);
	e = inbox->cancelled ? NULL : inbox->first;
	if (e) {
		inbox->first = e->next;
		if (!inbox->first)
			inbox->last = &inbox->first;
	}
	rc = inbox->cancelled ? IST_ABORTED : inbox->starved ? IST_NO_MEMORY : IST_TIMEOUT;
	pthread_mutex_unlock(&inbox->lock);
	if (!e && rc == IST_NO_MEMORY)
		return ist__fail_memory(err, "wait");
	if (!e)
		return rc == IST_ABORTED ? ist__fail(err, IST_ABORTED, "wait", "cancelled") : ist__fail(err, IST_TIMEOUT, "wait", "the deadline passed");
	*out = *e;
	event_free(inbox, e);
	return IST_OK;
}
