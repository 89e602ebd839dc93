/* SPDX-License-Identifier: Apache-2.0 */
#include "net/loop.h"

#include "base/clock.h"
#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BATCH = 64, SPARES = 16, LINGER_NS = 200000 };

struct ist__loop {
	struct ist_env *env;
	struct ist__slab slab;
	int epoll, event;
	int outer;                 /* what its thread sleeps on: epoll, unless somebody drives */
	pthread_t thread;
	pthread_mutex_t turn;      /* held by whoever touches what the loop owns: its thread between two waits, or a caller */
	_Atomic(uintptr_t) owner;  /* who holds it; 0: nobody */
	int64_t awake_at;          /* when its thread wakes by itself */
	bool driven, drives_asleep, told; /* somebody drives; he sleeps; there may be what he waits for */
	int64_t driver_at;         /* when he wakes by himself */
	uint64_t unwatched;        /* watches ended so far */
	pthread_mutex_t lock; /* jobs */
	struct ist__job *first, **last;
	struct ist__timer *timers; /* soonest first */
	struct epoll_event fetched[BATCH]; /* by its thread */
	struct epoll_event *batch; /* what the turn at hand goes through */
	int n_batch, at_batch;
	atomic_bool stop;
	uint32_t held;
	uint32_t n_spares; /* under lock */
	int spares[SPARES];
	void (*each)(void *arg);
	void *each_arg;
};

struct ist_env *
ist__loop_env(struct ist__loop *loop)
{
	return loop->env;
}

struct ist__slab *
ist__loop_slab(struct ist__loop *loop)
{
	return &loop->slab;
}

bool
ist__loop_here(const struct ist__loop *loop)
{
	return atomic_load_explicit(&loop->owner, memory_order_relaxed) == (uintptr_t)pthread_self();
}

static void
turn_begin(struct ist__loop *loop)
{
	pthread_mutex_lock(&loop->turn);
	atomic_store_explicit(&loop->owner, (uintptr_t)pthread_self(), memory_order_relaxed);
}

/* Whoever drives looks when another's turn may have brought what he waits for. */
static void
turn_end(struct ist__loop *loop)
{
	bool wake = loop->told && loop->drives_asleep;

	loop->told = loop->told && !wake;
	atomic_store_explicit(&loop->owner, 0, memory_order_relaxed);
	pthread_mutex_unlock(&loop->turn);
	if (wake)
		ist__loop_wake(loop);
}

int
ist__loop_watch(struct ist__loop *loop, struct ist__watch *watch, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = watch };

	return epoll_ctl(loop->epoll, EPOLL_CTL_ADD, watch->fd, &e) ? errno : 0;
}

ist_err
ist__loop_unwatched(struct ist_error *err, int sys, const char *op, const char *what)
{
	return ist__fail_sys(err, sys == ENOSPC ? IST_LIMIT : IST_IO, sys, op, "%s", what);
}

void
ist__loop_change(struct ist__loop *loop, struct ist__watch *watch, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = watch };

	epoll_ctl(loop->epoll, EPOLL_CTL_MOD, watch->fd, &e);
}

void
ist__loop_unwatch(struct ist__loop *loop, struct ist__watch *watch)
{
	epoll_ctl(loop->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
	loop->unwatched++;
	for (int i = loop->at_batch; i < loop->n_batch; i++)
		if (loop->batch[i].data.ptr == watch)
			loop->batch[i].data.ptr = NULL;
}

void
ist__timer_stop(struct ist__timer *timer)
{
	if (!timer->link)
		return;
	*timer->link = timer->next;
	if (timer->next)
		timer->next->link = timer->link;
	timer->link = NULL;
}

void
ist__timer_set(struct ist__loop *loop, struct ist__timer *timer, int64_t at)
{
	struct ist__timer **p = &loop->timers;

	ist__timer_stop(timer);
	timer->at = at;
	if (at == IST__NEVER)
		return;
	while (*p && (*p)->at <= at)
		p = &(*p)->next;
	timer->next = *p;
	timer->link = p;
	if (*p)
		(*p)->link = &timer->next;
	*p = timer;
}

void
ist__loop_wake(struct ist__loop *loop)
{
	uint64_t one = 1;
	ssize_t n = write(loop->event, &one, sizeof(one));

	(void)n; /* full means that it will wake anyway */
}

void
ist__loop_post(struct ist__loop *loop, struct ist__job *job)
{
	job->next = NULL;
	pthread_mutex_lock(&loop->lock);
	*loop->last = job;
	loop->last = &job->next;
	pthread_mutex_unlock(&loop->lock);
	if (!ist__loop_here(loop)) /* else it is run before the turn ends */
		ist__loop_wake(loop);
}

static void
run_jobs(struct ist__loop *loop)
{
	struct ist__job *job;

	do {
		pthread_mutex_lock(&loop->lock);
		job = loop->first;
		loop->first = NULL;
		loop->last = &loop->first;
		pthread_mutex_unlock(&loop->lock);
		for (struct ist__job *next; job; job = next) {
			next = job->next;
			job->run(job);
		}
		pthread_mutex_lock(&loop->lock);
		job = loop->first;
		pthread_mutex_unlock(&loop->lock);
	} while (job);
}

/* Is there a timer that whoever sleeps would sleep through? */
static bool
wants_earlier(const struct ist__loop *loop)
{
	return loop->timers && loop->timers->at < (loop->driven ? loop->driver_at : loop->awake_at);
}

void
ist__loop_run(struct ist__loop *loop, void (*fn)(void *arg), void *arg)
{
	bool wake;

	if (ist__loop_here(loop)) {
		fn(arg);
		return;
	}
	turn_begin(loop);
	fn(arg);
	run_jobs(loop);
	wake = wants_earlier(loop);
	turn_end(loop);
	if (wake)
		ist__loop_wake(loop);
}

void
ist__loop_hold(struct ist__loop *loop)
{
	loop->held++;
}

void
ist__loop_release(struct ist__loop *loop)
{
	loop->held--;
}

void
ist__loop_each(struct ist__loop *loop, void (*fn)(void *arg), void *arg)
{
	loop->each_arg = arg;
	loop->each = fn;
}

static void
run_timers(struct ist__loop *loop)
{
	int64_t now = ist__now();

	/* bounded: one that sets itself to a time gone by must not keep the sockets waiting */
	for (int i = 0; i < BATCH && loop->timers && loop->timers->at <= now; i++) {
		struct ist__timer *t = loop->timers;

		ist__timer_stop(t);
		t->on(t);
	}
}

/* Sleeps until something comes, and takes the turn. What was fetched while a watch ended under us may be that watch's:
 * it is left, and fetched again. */
static int
await_turn(struct ist__loop *loop)
{
	uint64_t unwatched = loop->unwatched;
	struct epoll_event any;
	int n;

	loop->awake_at = loop->timers ? loop->timers->at : IST__NEVER;
	n = ist__poll_ms(loop->awake_at, -1);
	turn_end(loop);
	n = epoll_wait(loop->outer, &any, 1, n) > 0 ? epoll_wait(loop->epoll, loop->fetched, BATCH, 0) : 0;
	turn_begin(loop);
	loop->awake_at = INT64_MIN; /* nobody need wake us */
	loop->told |= n > 0; /* it may have been the driver's bell */
	return n < 0 || loop->unwatched != unwatched ? 0 : n;
}

static void
dispatch(struct ist__loop *loop, struct epoll_event *batch, int n)
{
	uint64_t count;

	loop->batch = batch;
	loop->n_batch = n;
	for (loop->at_batch = 0; loop->at_batch < loop->n_batch;) {
		struct epoll_event e = loop->batch[loop->at_batch++];
		struct ist__watch *w = e.data.ptr;

		if (w)
			w->on(w, e.events);
		else if (e.events & EPOLLIN && read(loop->event, &count, sizeof(count)) < 0)
			continue; /* somebody's ended watch, or nothing to empty */
	}
	loop->n_batch = 0;
}

void
ist__loop_settle(struct ist__loop *loop)
{
	struct epoll_event batch[BATCH];
	bool wake = false;
	int n;

	if (ist__loop_here(loop))
		return;
	turn_begin(loop);
	n = epoll_wait(loop->epoll, batch, BATCH, 0);
	for (int i = 0; i < n; i++)
		wake |= !batch[i].data.ptr; /* what was told to the loop's thread */
	dispatch(loop, batch, n < 0 ? 0 : n);
	run_jobs(loop);
	wake |= wants_earlier(loop);
	turn_end(loop);
	if (wake)
		ist__loop_wake(loop);
}

/* What a turn of the loop's thread, or of a driver, does with what has come. */
static void
round_of(struct ist__loop *loop, struct epoll_event *batch, int n)
{
	dispatch(loop, batch, n);
	if (loop->each)
		loop->each(loop->each_arg);
	run_jobs(loop);
	run_timers(loop);
}

/* ---- driving: who waits for something that the loop brings waits for the sockets himself ---- */

static void
listen_outside(struct ist__loop *loop, bool on)
{
	struct epoll_event e = { .events = on ? (uint32_t)EPOLLIN : 0u, .data.ptr = NULL };

	epoll_ctl(loop->outer, EPOLL_CTL_MOD, loop->epoll, &e);
}

void
ist__loop_tell(struct ist__loop *loop)
{
	loop->told = true;
}

/* Looks for a moment before it sleeps, giving the CPU away meanwhile: to be woken costs more, on both sides. */
static int
linger(struct ist__loop *loop, struct epoll_event *batch, int ms)
{
	int64_t until = ist__now() + LINGER_NS;
	int n;

	do {
		n = epoll_wait(loop->epoll, batch, BATCH, 0);
		if (n != 0 || ms == 0)
			return n;
		sched_yield();
	} while (ist__now() < until);
	return epoll_wait(loop->epoll, batch, BATCH, ms);
}

bool
ist__loop_drive(struct ist__loop *loop, bool (*done)(void *arg), void *arg, int64_t until)
{
	struct epoll_event batch[BATCH];
	bool wake;

	if (ist__loop_here(loop))
		return false;
	turn_begin(loop);
	if (loop->driven) {
		turn_end(loop);
		return false;
	}
	loop->driven = true;
	listen_outside(loop, false);
	while (!done(arg) && ist__now() < until) {
		uint64_t unwatched = loop->unwatched;
		int n;

		loop->driver_at = loop->timers && loop->timers->at < until ? loop->timers->at : until;
		loop->told = false;
		loop->drives_asleep = true;
		n = ist__poll_ms(loop->driver_at, -1);
		turn_end(loop);
		n = linger(loop, batch, n);
		turn_begin(loop);
		loop->drives_asleep = false;
		loop->driver_at = INT64_MIN;
		round_of(loop, batch, n < 0 || loop->unwatched != unwatched ? 0 : n);
	}
	loop->driven = false;
	listen_outside(loop, true);
	wake = wants_earlier(loop);
	turn_end(loop);
	if (wake)
		ist__loop_wake(loop);
	return true;
}

static void *
loop_main(void *arg)
{
	struct ist__loop *loop = arg;

	turn_begin(loop);
	while (!atomic_load(&loop->stop) || loop->held > 0) {
		int n = await_turn(loop);

		round_of(loop, loop->fetched, n);
	}
	run_jobs(loop); /* nobody else posts any more */
	turn_end(loop);
	return NULL;
}

static void
loop_free(struct ist__loop *loop)
{
	const struct ist__ctx *ctx = ist__env_ctx(loop->env);

	while (loop->n_spares > 0)
		close(loop->spares[--loop->n_spares]);
	if (loop->outer >= 0)
		close(loop->outer);
	if (loop->epoll >= 0)
		close(loop->epoll);
	if (loop->event >= 0)
		close(loop->event);
	ist__slab_fini(&loop->slab);
	pthread_mutex_destroy(&loop->lock);
	pthread_mutex_destroy(&loop->turn);
	ist__free(ctx, loop);
}

bool
ist__loop_spares_fill(struct ist__loop *loop)
{
	bool full;

	pthread_mutex_lock(&loop->lock);
	while (loop->n_spares < SPARES && (loop->spares[loop->n_spares] = fcntl(loop->event, F_DUPFD_CLOEXEC, 0)) >= 0)
		loop->n_spares++;
	full = loop->n_spares == SPARES;
	pthread_mutex_unlock(&loop->lock);
	return full;
}

bool
ist__loop_spares_spend(struct ist__loop *loop, int sys)
{
	bool spent = false;

	if (sys != EMFILE && sys != ENFILE)
		return false;
	pthread_mutex_lock(&loop->lock);
	if (loop->n_spares > 0) {
		close(loop->spares[--loop->n_spares]);
		spent = true;
	}
	pthread_mutex_unlock(&loop->lock);
	return spent;
}

static void *
loop_make(struct ist_env *env, struct ist_error *err)
{
	struct ist__loop *loop = ist__alloc(ist__env_ctx(env), sizeof(*loop));
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = NULL };
	int rc = 0;

	if (!loop) {
		ist__fail_memory(err, "loop");
		return NULL;
	}
	loop->env = env;
	loop->last = &loop->first;
	ist__slab_init(&loop->slab, ist__env_ctx(env));
	ist__slab_warm(&loop->slab, 4096, 16);
	ist__slab_warm(&loop->slab, 65536, 6);
	pthread_mutex_init(&loop->lock, NULL);
	pthread_mutex_init(&loop->turn, NULL);
	loop->epoll = epoll_create1(EPOLL_CLOEXEC);
	loop->outer = epoll_create1(EPOLL_CLOEXEC);
	loop->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (loop->epoll < 0 || loop->outer < 0 || loop->event < 0 || epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->event, &e) ||
	    epoll_ctl(loop->outer, EPOLL_CTL_ADD, loop->epoll, &e))
		rc = errno;
	if (rc)
		ist__loop_unwatched(err, rc, "loop", "what the library's event thread waits on");
	else if ((rc = ist__thread(env, "io", loop_main, loop, &loop->thread)))
		ist__fail_thread(err, rc, "loop", "the library's event thread");
	if (rc) {
		loop_free(loop);
		return NULL;
	}
	ist__loop_spares_fill(loop); /* whoever needs them looks again */
	return loop;
}

static void
loop_stop(struct ist_env *env, void *part)
{
	struct ist__loop *loop = part;

	(void)env;
	atomic_store(&loop->stop, true);
	ist__loop_wake(loop);
	pthread_join(loop->thread, NULL);
	loop_free(loop);
}

struct ist__loop *
ist__loop_get(struct ist_env *env, struct ist_error *err)
{
	return ist__env_part(env, IST__PART_NET, loop_make, loop_stop, err);
}
