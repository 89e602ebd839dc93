/* SPDX-License-Identifier: Apache-2.0 */
#include "net/loop.h"

#include "base/clock.h"
#include "base/fail.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BATCH = 64 };

struct ist__loop {
	struct ist_env *env;
	struct ist__slab slab;
	int epoll, event;
	pthread_t thread;
	pthread_mutex_t lock; /* jobs */
	struct ist__job *first, **last;
	struct ist__timer *timers; /* soonest first */
	struct epoll_event batch[BATCH];
	int n_batch, at_batch;
	atomic_bool stop;
	uint32_t held;
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
	return pthread_equal(loop->thread, pthread_self());
}

int
ist__loop_watch(struct ist__loop *loop, struct ist__watch *watch, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = watch };

	return epoll_ctl(loop->epoll, EPOLL_CTL_ADD, watch->fd, &e) ? errno : 0;
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
	ist__loop_wake(loop);
}

struct call {
	struct ist__job job;
	void (*fn)(void *arg);
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done;
};

static void
call_run(struct ist__job *job)
{
	struct call *c = (struct call *)job;

	c->fn(c->arg);
	pthread_mutex_lock(&c->lock);
	c->done = true;
	pthread_cond_signal(&c->cond); /* under the lock: c is gone as soon as the waiter has it */
	pthread_mutex_unlock(&c->lock);
}

void
ist__loop_run(struct ist__loop *loop, void (*fn)(void *arg), void *arg)
{
	struct call c = { .job.run = call_run, .fn = fn, .arg = arg };

	if (ist__loop_here(loop)) {
		fn(arg);
		return;
	}
	pthread_mutex_init(&c.lock, NULL);
	pthread_cond_init(&c.cond, NULL);
	ist__loop_post(loop, &c.job);
	pthread_mutex_lock(&c.lock);
	while (!c.done)
		pthread_cond_wait(&c.cond, &c.lock);
	pthread_mutex_unlock(&c.lock);
	pthread_cond_destroy(&c.cond);
	pthread_mutex_destroy(&c.lock);
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
run_jobs(struct ist__loop *loop)
{
	struct ist__job *job;

	pthread_mutex_lock(&loop->lock);
	job = loop->first;
	loop->first = NULL;
	loop->last = &loop->first;
	pthread_mutex_unlock(&loop->lock);
	while (job) {
		struct ist__job *next = job->next;

		job->run(job);
		job = next;
	}
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

static void *
loop_main(void *arg)
{
	struct ist__loop *loop = arg;
	uint64_t count;

	while (!atomic_load(&loop->stop) || loop->held > 0) {
		int64_t next = loop->timers ? loop->timers->at : IST__NEVER;
		int n = epoll_wait(loop->epoll, loop->batch, BATCH, ist__poll_ms(next, -1));

		loop->n_batch = n < 0 ? 0 : n;
		for (loop->at_batch = 0; loop->at_batch < loop->n_batch;) {
			struct epoll_event e = loop->batch[loop->at_batch++];
			struct ist__watch *w = e.data.ptr;

			if (w)
				w->on(w, e.events);
			else if (e.events & EPOLLIN && read(loop->event, &count, sizeof(count)) < 0)
				continue; /* somebody's ended watch, or nothing to empty */
		}
		loop->n_batch = 0;
		if (loop->each)
			loop->each(loop->each_arg);
		run_jobs(loop);
		run_timers(loop);
	}
	while (loop->first) /* nobody else posts any more */
		run_jobs(loop);
	return NULL;
}

static void
loop_free(struct ist__loop *loop)
{
	const struct ist__ctx *ctx = ist__env_ctx(loop->env);

	if (loop->epoll >= 0)
		close(loop->epoll);
	if (loop->event >= 0)
		close(loop->event);
	ist__slab_fini(&loop->slab);
	pthread_mutex_destroy(&loop->lock);
	ist__free(ctx, loop);
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
	loop->epoll = epoll_create1(EPOLL_CLOEXEC);
	loop->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (loop->epoll < 0 || loop->event < 0 || epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->event, &e))
		rc = errno;
	if (!rc)
		rc = ist__thread(env, "io", loop_main, loop, &loop->thread);
	if (rc) {
		ist__fail_sys(err, rc == ENOMEM ? IST_NO_MEMORY : IST_IO, rc, "loop", "the library's event thread");
		loop_free(loop);
		return NULL;
	}
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
