/* SPDX-License-Identifier: Apache-2.0
 *
 * conformance_end.c - checks of time, sleep, abort, loss and of what is left behind.
 */
#include "conformance_rig.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The budgets of backend.h times ten, and of several tries the median: a busy machine is no fault. */
#define SLOT_NS (100 * CF_MS)
enum { TRIES = 5 };

static int
compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static int64_t
median(int64_t *v, size_t n)
{
	qsort(v, n, sizeof(*v), compare);
	return v[n / 2];
}

static void
times_body(struct cf_rank *r)
{
	enum { START, PROGRESS, ARM, TEST, SLOTS };
	static const char *const names[] = { "start", "progress", "arm", "test" };
	const uint64_t bytes = 24 << 20;
	struct cf_buf src = cf_buf_new(r->t, bytes, 0), dst = cf_buf_new(r->t, bytes, 0);
	int64_t took[SLOTS][TRIES];

	for (int i = 0; i < TRIES; i++) {
		struct ist_op ops[2] = { cf_send(cf_next(r), (uint64_t)i, src.addr, bytes), cf_recv(cf_prev(r), (uint64_t)i, dst.addr, bytes) };
		struct ist_progress p;
		struct ist_status st;
		struct ist_task *task;
		int64_t at = cf_now();
		int32_t fd;

		cf_stage(r->t, "start, with nothing done by the peer yet");
		task = cf_start(r, ops, 2);
		took[START][i] = cf_now() - at;
		cf_barrier(r);
		at = cf_now();
		cf_progress(r, &p);
		took[PROGRESS][i] = cf_now() - at;
		at = cf_now();
		r->t->b->arm(r->chan, &fd);
		took[ARM][i] = cf_now() - at;
		cf_status(&st);
		at = cf_now();
		r->t->b->test(r->chan, task, &st);
		took[TEST][i] = cf_now() - at;
		cf_done(r, task);
		cf_barrier(r);
	}
	cf_buf_free(&src);
	cf_buf_free(&dst);
	for (int s = 0; s < SLOTS; s++) {
		int64_t m = median(took[s], TRIES);

		CF_CHECK(r->t, m < SLOT_NS, "%s takes %lld ms, it may take %s", names[s], (long long)(m / CF_MS), s == PROGRESS ? "1" : "10");
	}
}

static void
slots_do_not_block(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, times_body);
}

/* arm with nothing under way must allow to sleep, or an idle group burns a processor. */
static void
idle_body(struct cf_rank *r)
{
	int awake = 0;

	cf_ring(r, 5000, 0);
	cf_barrier(r);
	for (int i = 0; i < 50; i++) {
		struct ist_progress p;
		int32_t fd = -1;

		cf_progress(r, &p);
		if (p.more || r->t->b->arm(r->chan, &fd) == IST_BUSY || poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, fd >= 0, 2) > 0)
			awake++;
	}
	CF_CHECK(r->t, awake < 25, "nothing is under way, and %d of 50 times it would not let the caller sleep", awake);
	cf_barrier(r);
}

static void
an_idle_channel_sleeps(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, idle_body);
}

enum { ROUNDS = 150 };

/* Sleeps on arm's descriptor alone, as the core does. */
static void
sleep_until_done(struct cf_rank *r, struct ist_task *task)
{
	for (;;) {
		struct ist_progress p;
		struct ist_status st;
		int32_t fd = -1;
		ist_err e;

		cf_progress(r, &p);
		cf_status(&st);
		e = r->t->b->test(r->chan, task, &st);
		CF_CHECK(r->t, !e, "a task failed: %s %.200s", cf_name(e), st.text);
		if (st.state == IST_DONE)
			break;
		if (p.more)
			continue;
		e = r->t->b->arm(r->chan, &fd);
		if (e == IST_BUSY)
			continue;
		CF_CHECK(r->t, !e, "arm failed: %s", cf_name(e));
		if (fd < 0)
			poll(NULL, 0, 1);
		else
			CF_CHECK(r->t, poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 5000) != 0,
				"a wake-up was lost: its peer had sent, and arm's descriptor did not become readable in 5 s");
	}
	r->t->b->task_free(r->chan, task);
}

/* Ping and pong: one sleeps while the other's message is on its way, at every moment of its falling asleep. */
static void
wake_body(struct cf_rank *r)
{
	struct cf_buf buf = cf_buf_new(r->t, 300000, 0);

	for (uint64_t i = 0; i < ROUNDS; i++) {
		uint64_t bytes = i % 10 == 9 ? 300000 : i % 3;
		bool mine = i % r->n == r->rank;
		struct ist_op op = mine ? cf_send(cf_next(r), i, buf.addr, bytes) : cf_recv(cf_prev(r), i, buf.addr, bytes);

		cf_stage(r->t, "sleeping for message %llu", (unsigned long long)i);
		for (volatile uint32_t spin = 0; mine && spin < (i * 977) % 20000; spin = spin + 1)
			;
		sleep_until_done(r, cf_start(r, &op, 1));
	}
	cf_buf_free(&buf);
}

static void
wake_ups_are_not_lost(struct cf *t)
{
	cf_need(t, 2);
	cf_ranks(t, 2, CF_THREADS, wake_body);
	cf_ranks(t, 2, CF_PROCESSES, wake_body);
}

/* ---- abort ---- */

struct aborter {
	struct cf_rank *r;
	_Atomic uint32_t go;
	ist_err why;
};

static void *
abort_main(void *arg)
{
	struct aborter *a = arg;

	while (!atomic_load(&a->go))
		cf_pause_us(100);
	a->r->t->b->abort(a->r->chan, a->why);
	return NULL;
}

/* A RECV that nobody answers, in a thread that sleeps. */
static struct ist_task *
lonely_recv(struct cf_rank *r, struct cf_buf *buf)
{
	struct ist_op op = cf_recv(cf_prev(r), 1, buf->addr, buf->bytes);

	return cf_start(r, &op, 1);
}

static void
abort_body(struct cf_rank *r)
{
	struct cf_buf buf = cf_buf_new(r->t, 1 << 20, 0);
	struct ist_task *tasks[2];
	struct aborter a = { .r = r, .why = IST_PEER_LOST };
	struct ist_op op = cf_recv(cf_prev(r), 2, buf.addr, 10);
	struct ist_progress p;
	struct ist_status st;
	uint64_t ended;
	int64_t until;
	pthread_t id;
	int32_t fd = -1;

	tasks[0] = lonely_recv(r, &buf);
	tasks[1] = cf_start(r, &op, 1);
	CF_CHECK(r->t, !pthread_create(&id, NULL, abort_main, &a), "the suite has no threads");
	cf_progress(r, &p);
	ended = p.ended;
	cf_stage(r->t, "sleeping until an abort");
	for (int i = 0; i < 1000 && r->t->b->arm(r->chan, &fd) == IST_BUSY; i++)
		cf_progress(r, &p);
	atomic_store(&a.go, 1);
	if (fd >= 0)
		CF_CHECK(r->t, poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 5000) != 0,
			"abort from another thread did not make arm's descriptor readable in 5 s");
	pthread_join(id, NULL);
	until = cf_now() + 1000 * CF_MS; /* ten times what it may take */
	for (int i = 0; i < 2; i++) {
		ist_err e;

		do {
			cf_progress(r, &p);
			cf_status(&st);
			e = r->t->b->test(r->chan, tasks[i], &st);
			CF_CHECK(r->t, cf_now() < until || st.state >= IST_DONE, "a second after an abort a task has not ended (it may take 100 ms)");
		} while (st.state < IST_DONE);
		CF_CHECK(r->t, e == IST_PEER_LOST, "a task that was aborted with PEER_LOST ended with %s", cf_name(e));
		CF_CHECK(r->t, st.state == IST_DONE || (r->t->shared->traits & IST_TRAIT_NO_ABORT),
			"a task ended ABANDONED, and the backend does not say IST_TRAIT_NO_ABORT");
	}
	cf_progress(r, &p);
	CF_CHECK(r->t, p.ended >= ended + 2, "an abort ended 2 tasks and ended rose by %llu", (unsigned long long)(p.ended - ended));
	for (int i = 0; i < 2; i++)
		r->t->b->task_free(r->chan, tasks[i]);
	cf_barrier(r);
	cf_buf_free(&buf);
}

static void
abort_wakes_and_ends_all(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, abort_body);
}

/* In the middle of a big transfer, which can't end by itself: its last message is never sent. */
static void
abort_busy_body(struct cf_rank *r)
{
	const uint64_t bytes = 32 << 20;
	struct cf_buf src = cf_buf_new(r->t, bytes, 0), dst = cf_buf_new(r->t, bytes, 0), never = cf_buf_new(r->t, 10, 0);
	struct ist_op ops[3] = { cf_send(cf_next(r), 1, src.addr, bytes), cf_recv(cf_prev(r), 1, dst.addr, bytes),
		cf_recv(cf_prev(r), 2, never.addr, 10) };
	struct ist_task *task = cf_start(r, ops, 3);
	struct aborter a = { .r = r, .why = IST_ABORTED };
	int64_t until;
	struct ist_status st;
	pthread_t id;
	ist_err e;

	CF_CHECK(r->t, !pthread_create(&id, NULL, abort_main, &a), "the suite has no threads");
	for (int i = 0; i < 3; i++)
		cf_turn(r);
	atomic_store(&a.go, 1);
	until = cf_now() + 3000 * CF_MS;
	do {
		cf_turn(r);
		cf_status(&st);
		e = r->t->b->test(r->chan, task, &st);
		CF_CHECK(r->t, cf_now() < until || st.state >= IST_DONE, "seconds after an abort in the middle of a transfer its task has not ended");
	} while (st.state < IST_DONE);
	pthread_join(id, NULL);
	CF_CHECK(r->t, e == IST_ABORTED || ((r->t->shared->traits & IST_TRAIT_TELLS_LOSS) && e == IST_PEER_LOST),
		"a transfer that was aborted ended with %s", cf_name(e));
	r->t->b->task_free(r->chan, task);
	if (st.state == IST_ABANDONED)
		return; /* its buffers are not ours any more */
	cf_buf_free(&src);
	cf_buf_free(&dst);
	cf_buf_free(&never);
}

static void
abort_in_mid_transfer(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, abort_busy_body);
}

static void
after_abort_body(struct cf_rank *r)
{
	struct ist_task *task = NULL;
	struct ist_status st;
	char a = 0;
	struct ist_op op = cf_send(cf_next(r), 1, &a, 1);
	ist_err e;

	r->t->b->abort(r->chan, IST_PEER_LOST);
	e = cf_try_start(r, &op, 1, &task, &st);
	CF_CHECK(r->t, e == IST_PEER_LOST, "start after an abort with PEER_LOST must answer the same, it is %s", e ? cf_name(e) : "OK");
	r->t->b->abort(r->chan, IST_ABORTED);
	e = cf_try_start(r, &op, 1, &task, &st);
	CF_CHECK(r->t, e == IST_PEER_LOST, "the first abort's reason counts; after a second one start says %s", cf_name(e));
}

static void
start_after_abort_is_refused(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, after_abort_body);
}

/* ---- close and what is left ---- */

/* Rank 0 has a SEND that is too big for any buffer on the way and a RECV that nobody answers. */
static void
close_body(struct cf_rank *r)
{
	const uint64_t bytes = 64 << 20;
	struct cf_buf src = cf_buf_new(r->t, bytes, 0), dst = cf_buf_new(r->t, 100, 0);
	struct ist_op s = cf_send(cf_next(r), 1, src.addr, bytes), v = cf_recv(cf_prev(r), 1, dst.addr, 100);
	struct ist_progress p;
	int64_t at;

	if (r->rank == 0)
		cf_start(r, &s, 1);
	if (r->rank == 0 && r->n > 1) { /* else it would meet our own */
		cf_start(r, &v, 1);
		cf_progress(r, &p);
	}
	cf_barrier(r);
	if (r->rank != 0) /* one after the other: who closes last has nobody left */
		cf_barrier(r);
	at = cf_now();
	cf_leave(r);
	at = cf_now() - at;
	CF_CHECK(r->t, at < 10000 * CF_MS, "close with tasks under way took %lld ms, it may take 1000", (long long)(at / CF_MS));
	if (r->rank == 0)
		cf_barrier(r);
	cf_buf_free(&src);
	cf_buf_free(&dst);
}

static void
close_waits_for_nobody(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, close_body);
	CF_CHECK(t, atomic_load(&t->blocks) == 0, "close with tasks under way did not give back %lld pieces of memory (%lld bytes)",
		(long long)atomic_load(&t->blocks), (long long)atomic_load(&t->bytes));
}

static void
tidy_body(struct cf_rank *r)
{
	uint64_t seen[2] = { 0, 0 };

	for (int i = 0; i < 150; i++) {
		if (i == 50 || i == 149) {
			cf_barrier(r);
			if (r->rank == 0) {
				seen[i == 149] = (uint64_t)atomic_load(&r->t->blocks);
				atomic_store(&r->t->shared->cell[i == 149], cf_open_fds());
			}
			cf_barrier(r);
		}
		cf_ring(r, (uint64_t)(i % 7) * 1000, 0);
	}
	if (r->rank != 0)
		return;
	CF_CHECK(r->t, seen[1] < seen[0] + 30, "100 exchanges on each rank left %llu pieces of memory", (unsigned long long)(seen[1] - seen[0]));
	CF_CHECK(r->t, atomic_load(&r->t->shared->cell[1]) < atomic_load(&r->t->shared->cell[0]) + 10, "100 exchanges on each rank left %llu descriptors",
		(unsigned long long)(atomic_load(&r->t->shared->cell[1]) - atomic_load(&r->t->shared->cell[0])));
}

static void
operations_leave_nothing(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, tidy_body);
}

/* ---- threads ---- */

struct hop {
	struct cf_rank *r;
	struct ist_task *task;
	int what;
};

static void *
hop_main(void *arg)
{
	struct hop *h = arg;

	if (h->what == 0)
		cf_turn(h->r);
	else
		cf_done(h->r, h->task);
	return NULL;
}

/* One slot after the other, each from a thread of its own. */
static void
hop_body(struct cf_rank *r)
{
	struct cf_buf src = cf_buf_new(r->t, 200000, 0), dst = cf_buf_new(r->t, 200000, 0);
	struct ist_op ops[2] = { cf_send(cf_next(r), 1, src.addr, src.bytes), cf_recv(cf_prev(r), 1, dst.addr, dst.bytes) };
	struct hop h = { .r = r };

	cf_fill(src.addr, src.bytes, r->rank);
	h.task = cf_start(r, ops, 2);
	for (h.what = 0; h.what < 2; h.what++) {
		pthread_t id;

		CF_CHECK(r->t, !pthread_create(&id, NULL, hop_main, &h), "the suite has no threads");
		pthread_join(id, NULL);
	}
	CF_CHECK(r->t, cf_differs(dst.addr, dst.bytes, cf_prev(r)) == UINT64_MAX, "bytes arrived wrong where the calling thread changed");
	cf_buf_free(&src);
	cf_buf_free(&dst);
}

static void
any_thread_may_call(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, hop_body);
}

/* ---- death of a peer ---- */

/* Rank 1 is killed in the middle of a transfer. Who notices is another matter; an abort must end it, and close return. */
static void
death_body(struct cf_rank *r)
{
	const uint64_t bytes = 64 << 20;
	struct cf_buf src, dst;
	struct ist_progress p;
	struct ist_status st;
	struct ist_task *task;
	int64_t until = cf_now() + CF_PATIENCE_NS / 10; /* not all say how far they have come */
	ist_err e;

	cf_join(r);
	src = cf_buf_new(r->t, bytes, 0);
	dst = cf_buf_new(r->t, bytes, 0);
	struct ist_op ops[2] = { cf_send(1 - r->rank, 1, src.addr, bytes), cf_recv(1 - r->rank, 1, dst.addr, bytes) };

	task = cf_start(r, ops, 2 - r->rank); /* rank 1 never takes what rank 0 sends: that can't be over before the end */
	do {
		cf_progress(r, &p);
		cf_status(&st);
		e = r->t->b->test(r->chan, task, &st);
	} while (!e && st.state < IST_DONE && st.moved < 4 << 20 && cf_now() < until);
	if (r->rank == 1) {
		atomic_store(&r->t->shared->cell[CF_CELLS - 1], 2);
		kill(getpid(), SIGKILL);
	}
	cf_stage(r->t, "going on with a dead peer");
	until = cf_now() + 300 * CF_MS;
	do {
		cf_turn(r);
		cf_status(&st);
		e = r->t->b->test(r->chan, task, &st);
	} while (!e && st.state < IST_DONE && cf_now() < until);
	CF_CHECK(r->t, e || st.state < IST_DONE, "a transfer of 64 MiB with a peer that was killed is said to be done");
	CF_CHECK(r->t, !e || e == IST_PEER_LOST, "the death of a peer is %s, it must be PEER_LOST or nothing", cf_name(e));
	cf_stage(r->t, "abort and close with a dead peer");
	r->t->b->abort(r->chan, IST_PEER_LOST);
	e = cf_finish(r, task, &st);
	CF_CHECK(r->t, e == IST_PEER_LOST, "a task that was aborted with PEER_LOST ended with %s", cf_name(e));
	r->t->b->task_free(r->chan, task);
	cf_leave(r);
}

static void
death_of_a_peer_is_survived(struct cf *t)
{
	cf_need(t, 2);
	cf_bare_ranks(t, 2, CF_PROCESSES, death_body);
}

const struct cf_entry cf_end_checks[] = {
	{ "slots_do_not_block", slots_do_not_block, 120 },
	{ "an_idle_channel_sleeps", an_idle_channel_sleeps, 0 },
	{ "wake_ups_are_not_lost", wake_ups_are_not_lost, 0 },
	{ "abort_wakes_and_ends_all", abort_wakes_and_ends_all, 0 },
	{ "abort_in_mid_transfer", abort_in_mid_transfer, 0 },
	{ "start_after_abort_is_refused", start_after_abort_is_refused, 0 },
	{ "close_waits_for_nobody", close_waits_for_nobody, 20 },
	{ "operations_leave_nothing", operations_leave_nothing, 0 },
	{ "any_thread_may_call", any_thread_may_call, 0 },
	{ "death_of_a_peer_is_survived", death_of_a_peer_is_survived, 0 },
	{ NULL, NULL, 0 },
};
