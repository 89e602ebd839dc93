/* SPDX-License-Identifier: Apache-2.0
 *
 * req.c - testing, waiting for, cancelling and freeing requests. Not: how they get done.
 */
#include "coll/req.h"

#include "base/clock.h"
#include "base/fail.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_NS (300 * IST_NS_PER_S)
#define OVERDUE_NS IST_NS_PER_S       /* after the deadline, before a waiter takes the maker for stuck */
#define FREE_NS (5 * IST_NS_PER_S)    /* how long free waits for what it has cancelled */
#define SLICE_NS (IST_NS_PER_S / 4)   /* of that */

static const struct ist__ctx *
ctx_of(const struct ist_req *req)
{
	return ist__env_ctx(req->handle.env);
}

static void
locks_init(struct ist_req *req)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&req->lock, NULL);
	pthread_cond_init(&req->cond, &attr);
	pthread_condattr_destroy(&attr);
}

/* All but the handle, the locks and what its maker keeps behind it. */
static void
set_up(struct ist_req *req, const struct ist__req_ops *ops, void *owner)
{
	req->ops = ops;
	req->owner = owner;
	req->next = NULL;
	req->deadline = IST__NEVER;
	req->default_ns = DEFAULT_NS;
	req->err = NULL;
	req->payload = NULL;
	req->fd = -1;
	req->code = IST_OK;
	req->has_view = false;
	atomic_store(&req->done, 0);
	atomic_store(&req->refs, 2); /* the user's and the maker's */
}

/* The env ends, and the user has never freed it. */
static void
on_left(void *handle)
{
	struct ist_req *req = handle;

	if (!ist__handle_kill(req, IST__REQ))
		return; /* its maker is stuck, and has it still */
	if (req->has_view && req->ops->release)
		req->ops->release(req->owner, req);
	ist__req_drop(req);
}

ist_err
ist__req_new(struct ist_env *env, const struct ist__req_ops *ops, void *owner, struct ist_req **out)
{
	struct ist_req *req = ist__handle_new(env, IST__REQ, sizeof(*req));

	if (!req)
		return IST_NO_MEMORY;
	locks_init(req);
	set_up(req, ops, owner);
	ist__handle_left(req, on_left);
	*out = req;
	return IST_OK;
}

static void
bury(struct ist_req *req)
{
	pthread_cond_destroy(&req->cond);
	pthread_mutex_destroy(&req->lock);
	ist__handle_bury(req);
}

/* ---- pool ---- */

void
ist__pool_init(struct ist__req_pool *pool, struct ist_env *env, uint64_t bytes, const struct ist__req_ops *ops, void *owner,
	void (*gone)(void *owner))
{
	*pool = (struct ist__req_pool){ .env = env, .bytes = bytes, .ops = ops, .owner = owner, .gone = gone, .refs = 1 };
	pthread_mutex_init(&pool->lock, NULL);
}

/* Takes one reference away; the last caller ends the pool. */
static void
pool_put(struct ist__req_pool *pool, struct ist_req *req)
{
	bool closed, last;

	pthread_mutex_lock(&pool->lock);
	closed = pool->closed;
	if (req && !closed) {
		req->next = NULL;
		if (pool->last)
			pool->last->next = req;
		else
			pool->first = req;
		pool->last = req;
	}
	last = --pool->refs == 0;
	pthread_mutex_unlock(&pool->lock);
	if (req && closed)
		bury(req);
	if (last) {
		pthread_mutex_destroy(&pool->lock);
		if (pool->gone)
			pool->gone(pool->owner);
	}
}

static struct ist_req *
pool_new(struct ist__req_pool *pool)
{
	struct ist_req *req = ist__handle_new(pool->env, IST__REQ, pool->bytes);

	if (!req)
		return NULL;
	locks_init(req);
	set_up(req, pool->ops, pool->owner);
	req->pool = pool;
	ist__handle_left(req, on_left);
	pthread_mutex_lock(&pool->lock);
	pool->alive = req->handle.magic;
	pool->made++;
	pthread_mutex_unlock(&pool->lock);
	return req;
}

struct ist_req *
ist__pool_get(struct ist__req_pool *pool)
{
	struct ist_req *req;

	pthread_mutex_lock(&pool->lock);
	req = pool->first; /* the one that was freed longest ago: a stale handle is then noticed longer */
	if (req) {
		pool->first = req->next;
		if (!pool->first)
			pool->last = NULL;
	}
	pool->refs++;
	pthread_mutex_unlock(&pool->lock);
	if (req) {
		memset(req + 1, 0, pool->bytes - sizeof(*req));
		set_up(req, pool->ops, pool->owner);
		__atomic_store_n(&req->handle.magic, pool->alive, __ATOMIC_RELEASE); /* pairs with the checks of handles */
		return req;
	}
	req = pool_new(pool);
	if (!req)
		pool_put(pool, NULL);
	return req;
}

uint64_t
ist__pool_bytes(struct ist__req_pool *pool)
{
	uint64_t bytes;

	pthread_mutex_lock(&pool->lock);
	bytes = pool->made * pool->bytes;
	pthread_mutex_unlock(&pool->lock);
	return bytes;
}

bool
ist__pool_fill(struct ist__req_pool *pool, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct ist_req *req = pool_new(pool);

		if (!req)
			return false;
		ist__handle_kill(req, IST__REQ);
		pthread_mutex_lock(&pool->lock);
		pool->refs++;
		pthread_mutex_unlock(&pool->lock);
		pool_put(pool, req);
	}
	return true;
}

void
ist__pool_close(struct ist__req_pool *pool)
{
	struct ist_req *req;

	pthread_mutex_lock(&pool->lock);
	pool->closed = true;
	req = pool->first;
	pool->first = pool->last = NULL;
	pthread_mutex_unlock(&pool->lock);
	while (req) {
		struct ist_req *next = req->next;

		bury(req);
		req = next;
	}
	pool_put(pool, NULL);
}

/* ---- the maker's side ---- */

/* Nobody holds it any more. */
static void
recycle(struct ist_req *req)
{
	ist__free(ctx_of(req), req->err);
	req->err = NULL;
	if (req->fd >= 0)
		close(req->fd);
	req->fd = -1;
	if (req->pool)
		pool_put(req->pool, req);
	else
		bury(req);
}

void
ist__req_drop(struct ist_req *req)
{
	if (atomic_fetch_sub(&req->refs, 1) == 1)
		recycle(req);
}

static void
signal_fd(int fd)
{
	uint64_t one = 1;
	ssize_t n;

	do
		n = write(fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR); /* EAGAIN can't be: it is written once */
}

/* Under lock. */
static bool
finish(struct ist_req *req, const struct ist_error *err)
{
	if (atomic_load_explicit(&req->done, memory_order_relaxed))
		return false;
	if (err) {
		req->code = err->code ? err->code : IST_INTERNAL;
		req->err = ist__alloc(ctx_of(req), sizeof(*req->err));
		if (req->err) {
			ist_error_init(req->err);
			ist__error_copy(req->err, err);
		}
	}
	atomic_store_explicit(&req->done, 1, memory_order_release); /* pairs with ist_req_test's look without the lock */
	pthread_cond_broadcast(&req->cond);
	if (req->fd >= 0)
		signal_fd(req->fd);
	return true;
}

bool
ist__req_finish(struct ist_req *req, const struct ist_error *err)
{
	bool first;

	pthread_mutex_lock(&req->lock);
	first = finish(req, err);
	pthread_mutex_unlock(&req->lock);
	return first;
}

void
ist__req_end(struct ist_req *req, const struct ist_error *err)
{
	bool last;

	pthread_mutex_lock(&req->lock);
	last = atomic_fetch_sub(&req->refs, 1) == 1; /* the user did not wait */
	finish(req, err);
	pthread_mutex_unlock(&req->lock); /* ist_req_free takes the lock once before it drops: not touched after this */
	if (last)
		recycle(req);
}

void
ist__req_lend(struct ist_req *req, const struct ist_buf *view)
{
	pthread_mutex_lock(&req->lock);
	req->view = *view;
	req->has_view = true;
	pthread_mutex_unlock(&req->lock);
}

void
ist__req_set_payload(struct ist_req *req, void *payload)
{
	pthread_mutex_lock(&req->lock);
	req->payload = payload;
	pthread_mutex_unlock(&req->lock);
}

void *
ist__req_take_payload(struct ist_req *req)
{
	void *payload;

	pthread_mutex_lock(&req->lock);
	payload = req->payload;
	req->payload = NULL;
	pthread_mutex_unlock(&req->lock);
	return payload;
}

/* ---- the user's side ---- */

/* The result of one that is done. */
static ist_err
result(struct ist_req *req, struct ist_error *err)
{
	if (req->code == IST_OK) {
		if (err) {
			struct ist_error well = { .struct_size = sizeof(well), .bucket = IST_NO_BUCKET };

			ist__error_copy(err, &well);
		}
		return IST_OK;
	}
	if (req->err)
		ist__error_copy(err, req->err);
	else
		ist__fail(err, req->code, "request", "%s", ist_err_text(req->code));
	return req->code;
}

static bool
is_done(struct ist_req *req)
{
	return atomic_load_explicit(&req->done, memory_order_acquire);
}

/* Tells the maker of a request that is long past its deadline. */
static void
look_overdue(struct ist_req *req)
{
	if (req->ops->overdue && req->deadline < IST__NEVER - OVERDUE_NS && !is_done(req) && ist__now() > req->deadline + OVERDUE_NS)
		req->ops->overdue(req->owner, req);
}

ist_err
ist_req_test(struct ist_req *req, uint32_t *done, struct ist_error *err)
{
	ist_err e = ist__handle_check(req, IST__REQ, "req_test", err);

	if (e)
		return e;
	if (!done)
		return ist__fail(err, IST_INVALID_ARGUMENT, "req_test", "done is NULL");
	look_overdue(req);
	if (is_done(req)) {
		*done = 1;
		return result(req, err);
	}
	if (err) {
		struct ist_error well = { .struct_size = sizeof(well), .bucket = IST_NO_BUCKET };

		ist__error_copy(err, &well);
		pthread_mutex_lock(&req->lock);
		if (!is_done(req) && req->ops->pending)
			req->ops->pending(req->owner, req, err);
		pthread_mutex_unlock(&req->lock);
	}
	*done = 0;
	return IST_OK;
}

/* Waits under the lock until done or until; true: done. */
static bool
wait_locked(struct ist_req *req, int64_t until)
{
	struct timespec at = { .tv_sec = (time_t)(until / IST_NS_PER_S), .tv_nsec = (long)(until % IST_NS_PER_S) };

	while (!is_done(req)) {
		if (until == IST__NEVER)
			pthread_cond_wait(&req->cond, &req->lock);
		else if (pthread_cond_timedwait(&req->cond, &req->lock, &at) == ETIMEDOUT)
			break;
	}
	return is_done(req);
}

/* The same, without the lock, and looking after makers that are stuck. */
static bool
wait_until(struct ist_req *req, int64_t until)
{
	int64_t look = req->ops->overdue && req->deadline < IST__NEVER - 2 * OVERDUE_NS ? req->deadline + OVERDUE_NS : IST__NEVER;
	bool done;

	for (;;) {
		if (req->ops->wait && !is_done(req))
			req->ops->wait(req->owner, req, until < look ? until : look);
		pthread_mutex_lock(&req->lock);
		done = wait_locked(req, until < look ? until : look);
		pthread_mutex_unlock(&req->lock);
		if (done || until <= ist__now())
			return done;
		look_overdue(req);
		look = ist__now() + OVERDUE_NS / 4;
	}
}

/* Time in which this process was stopped is nobody's: its maker had nothing of it either. So no slice counts for more than
 * its length, however long it took. */
static bool
wait_awake(struct ist_req *req, int64_t for_ns)
{
	bool done = is_done(req);

	for (; !done && for_ns > 0; for_ns -= SLICE_NS)
		done = wait_until(req, ist__now() + SLICE_NS);
	return done;
}

ist_err
ist_req_wait(struct ist_req *req, int64_t timeout_ns, struct ist_error *err)
{
	ist_err e = ist__handle_check(req, IST__REQ, "req_wait", err);

	if (e)
		return e;
	if (is_done(req) || wait_until(req, ist__deadline(timeout_ns, req->default_ns)))
		return result(req, err);
	e = ist__fail(err, IST_TIMEOUT, "req_wait", "the request is still under way; only this wait has ended");
	ist__fail_next(err, "wait again, or cancel the request");
	if (err && req->ops->pending) {
		pthread_mutex_lock(&req->lock);
		if (!is_done(req))
			req->ops->pending(req->owner, req, err);
		pthread_mutex_unlock(&req->lock);
	}
	return e;
}

static void
cancel(struct ist_req *req)
{
	pthread_mutex_lock(&req->lock);
	if (!is_done(req))
		req->ops->cancel(req->owner, req);
	pthread_mutex_unlock(&req->lock);
}

ist_err
ist_req_cancel(struct ist_req *req)
{
	ist_err e = ist__handle_check(req, IST__REQ, "req_cancel", NULL);

	if (!e)
		cancel(req);
	return e;
}

ist_err
ist_req_free(struct ist_req *req)
{
	bool done;

	if (!ist__handle_kill(req, IST__REQ))
		return IST_BAD_HANDLE;
	done = is_done(req);
	if (!done) {
		cancel(req);
		done = wait_awake(req, FREE_NS);
	}
	pthread_mutex_lock(&req->lock); /* whoever finished it may still hold it */
	pthread_mutex_unlock(&req->lock);
	if (req->has_view && req->ops->release)
		req->ops->release(req->owner, req);
	ist__req_drop(req);
	return done ? IST_OK : IST_TIMEOUT;
}

ist_err
ist_req_fd(struct ist_req *req, int32_t *fd, struct ist_error *err)
{
	ist_err e = ist__handle_check(req, IST__REQ, "req_fd", err);

	if (e)
		return e;
	if (!fd)
		return ist__fail(err, IST_INVALID_ARGUMENT, "req_fd", "fd is NULL");
	pthread_mutex_lock(&req->lock);
	if (req->fd < 0) {
		req->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (req->fd < 0)
			e = ist__fail_sys(err, IST_IO, errno, "req_fd", "eventfd");
		else if (is_done(req))
			signal_fd(req->fd);
	}
	if (!e)
		*fd = req->fd;
	pthread_mutex_unlock(&req->lock);
	return e;
}

ist_err
ist_req_view(struct ist_req *req, struct ist_buf *out, struct ist_error *err)
{
	ist_err e = ist__handle_check(req, IST__REQ, "req_view", err);

	if (e)
		return e;
	if (!out)
		return ist__fail(err, IST_INVALID_ARGUMENT, "req_view", "out is NULL");
	if (!is_done(req))
		return ist__fail(err, IST_BAD_STATE, "req_view", "the request is still under way");
	if (req->code)
		return result(req, err);
	if (!req->has_view)
		return ist__fail(err, IST_BAD_STATE, "req_view", "this operation was started without IST_OP_VIEW");
	*out = req->view;
	return IST_OK;
}
