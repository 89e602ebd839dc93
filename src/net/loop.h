/* SPDX-License-Identifier: Apache-2.0
 *
 * loop.h - the one thread of an env that waits for sockets and for time ("ist-io"). What it owns is touched by one thread
 * at a time, in turns: its own thread takes the turn when something came, and whoever wants to touch it takes a turn of
 * his own (ist__loop_run), or posts a job. "On the loop" means inside such a turn. All callbacks run there, with no other
 * lock held; they must not block.
 */
#ifndef ISTHMUS_NET_LOOP_H
#define ISTHMUS_NET_LOOP_H

#include "base/env.h"
#include "base/slab.h"

#include <sys/epoll.h>

struct ist__loop;

struct ist__watch {
	int fd;
	void (*on)(struct ist__watch *watch, uint32_t events); /* EPOLL* */
};

struct ist__timer {
	int64_t at; /* IST__NEVER: not set */
	void (*on)(struct ist__timer *timer);
	struct ist__timer *next, **link; /* link NULL: not set */
};

struct ist__job {
	void (*run)(struct ist__job *job);
	struct ist__job *next;
};

/* The env's loop, started at first need. */
struct ist__loop *ist__loop_get(struct ist_env *env, struct ist_error *err);
struct ist_env *ist__loop_env(struct ist__loop *loop);
struct ist__slab *ist__loop_slab(struct ist__loop *loop);
bool ist__loop_here(const struct ist__loop *loop); /* am I on the loop? */

/* On the loop only, ist__loop_post apart. 0 or an errno. Changed and ended watches get no further event, not even
 * one that was already fetched. */
int ist__loop_watch(struct ist__loop *loop, struct ist__watch *watch, uint32_t events);
/* What such an errno means. */
ist_err ist__loop_unwatched(struct ist_error *err, int sys, const char *op, const char *what);
void ist__loop_change(struct ist__loop *loop, struct ist__watch *watch, uint32_t events);
void ist__loop_unwatch(struct ist__loop *loop, struct ist__watch *watch);
void ist__timer_set(struct ist__loop *loop, struct ist__timer *timer, int64_t at);
void ist__timer_stop(struct ist__timer *timer);

/* Any thread, a signal handler excepted. The job's memory is the loop's until run is called; run may free it. Jobs of
 * one thread run in the order posted. */
void ist__loop_post(struct ist__loop *loop, struct ist__job *job);
/* Runs fn(arg) on the loop, by the calling thread, as soon as the turn is free; who is on the loop already: at once. */
void ist__loop_run(struct ist__loop *loop, void (*fn)(void *arg), void *arg);
/* What has come by now is looked at, by the calling thread: for who is about to end what it may be for. No locks held. */
void ist__loop_settle(struct ist__loop *loop);
/* Who waits for what callbacks bring drives the loop himself meanwhile, which saves the change of threads: done(arg) is asked
 * on the loop. False: somebody drives already, or we are on the loop, and nothing was waited for. True also when the time is
 * over. No locks held. A callback that may have brought what a driver waits for says ist__loop_tell (on the loop); what
 * becomes true elsewhere is followed by ist__loop_wake. */
bool ist__loop_drive(struct ist__loop *loop, bool (*done)(void *arg), void *arg, int64_t until);
void ist__loop_tell(struct ist__loop *loop);
/* Wakes the loop; the one thing here that a signal handler may do. */
void ist__loop_wake(struct ist__loop *loop);
/* The loop does not stop before what holds it has released it; each holder bounds that by a timer. On the loop. */
void ist__loop_hold(struct ist__loop *loop);
void ist__loop_release(struct ist__loop *loop);
/* Some descriptors are held back for the moment in which the process can get no others: so that it can still meet the
 * others and say so. Any thread. fill: false when they are not all there, and can't be had. spend, after a call that
 * failed with sys: true when it was for want of a descriptor, and there is one more now. */
bool ist__loop_spares_fill(struct ist__loop *loop);
bool ist__loop_spares_spend(struct ist__loop *loop, int sys);
/* Called in each round of the loop's thread; for flags that signal handlers set. One a loop. */
void ist__loop_each(struct ist__loop *loop, void (*fn)(void *arg), void *arg);

#endif
