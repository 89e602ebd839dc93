/* SPDX-License-Identifier: Apache-2.0
 *
 * move.c - moves the tasks of a channel on: hands the oldest one over when the device is free for it, sees it put on its
 * stream, and sees what is on streams done; and after an abort, lets go of what can be let go.
 */
#include "backends/nccl/chan.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

#define LETTING_GO_NS (100 * IST__MS) /* that a stream gets, once the library has aborted ... */
#define ABANDON_NS (900 * IST__MS)    /* ... and that all of it gets */

/* ---- offer and connect ---- */

static void
look_at_job(struct ist_chan *chan, struct ist_task *task)
{
	struct nccl_comm_state *c = chan->c;

	if (!ist__nccl_did(c, task->job))
		return;
	if (c->failed)
		ist__nccl_task_fail(chan, task, c->failed, IST_NO_RANK, c->sys, c->text);
	else if (task->job == NCCL_JOB_JOIN)
		chan->ready = true;
	else
		chan->mine.id = c->id;
	ist__nccl_task_end(chan, task, IST_DONE);
}

/* ---- operations ---- */

static void
fail_call(struct ist_chan *chan, struct ist_task *task, const char *what, int rc)
{
	char words[160], text[200];

	ist__nccl_words(chan->c->calls, chan->c->comm, rc, words, sizeof(words));
	snprintf(text, sizeof(text), "%s: %s", what, words);
	ist__nccl_task_fail(chan, task, ist__nccl_code(rc), IST_NO_RANK, rc, text);
}

/* Records the event behind what was put on the stream. False: it can't be told any more when that is done. */
static bool
record(struct ist_chan *chan, struct ist_task *task)
{
	struct ist_status why = { .struct_size = sizeof(why) };
	const struct ist_device *d = chan->c->device;
	ist_err e = task->event ? IST_OK : ist__nccl_event(chan->c, &task->event, &why);

	if (!e)
		e = d->event_record(d->self, chan->c->index, task->event, task->stream, &why);
	if (e)
		ist__nccl_task_fail(chan, task, e, IST_NO_RANK, why.sys, why.text);
	return !e;
}

static void
abandon(struct ist_chan *chan, struct ist_task *task)
{
	chan->c->stuck = true;
	ist__nccl_task_end(chan, task, IST_ABANDONED);
}

void
ist__nccl_leave_gate(struct ist_chan *chan)
{
	const void *ours = chan;

	atomic_compare_exchange_strong(&chan->c->gate->owner, &ours, NULL);
}

static void
issued(struct ist_chan *chan, struct ist_task *task)
{
	ist__nccl_leave_gate(chan);
	if (!record(chan, task))
		return;
	task->step = NCCL_RUNS;
	if (task->on_stream) {
		task->state = IST_ISSUED;
		chan->ended++;
	}
}

/* The library puts a group on its stream by itself, some time after it was told. */
static void
look_at_handed(struct ist_chan *chan, struct ist_task *task)
{
	int rc = NCCL_IN_PROGRESS, now;

	if (!chan->c->comm)
		return;
	now = chan->c->calls->async_error(chan->c->comm, &rc);
	rc = now != NCCL_SUCCESS ? now : rc;
	if (rc == NCCL_SUCCESS)
		issued(chan, task);
	else if (rc != NCCL_IN_PROGRESS)
		fail_call(chan, task, "the operation", rc);
}

static void
hand_over(struct ist_chan *chan, struct ist_task *task)
{
	int rc = chan->c->comm ? ist__nccl_enqueue(chan, task) : NCCL_IN_PROGRESS;

	task->step = NCCL_HANDED;
	atomic_store(&chan->c->gate->owner, chan);
	if (rc == NCCL_SUCCESS)
		issued(chan, task);
	else if (rc != NCCL_IN_PROGRESS)
		fail_call(chan, task, "the operation", rc);
}

static void
look_at_running(struct ist_chan *chan, struct ist_task *task)
{
	struct ist_status why = { .struct_size = sizeof(why) };
	const struct ist_device *d = chan->c->device;
	uint32_t done = 0;
	ist_err e = d->event_query(d->self, chan->c->index, task->event, &done, &why);

	if (e) { /* the device itself has failed */
		ist__nccl_task_fail(chan, task, e, IST_NO_RANK, why.sys, why.text);
		abandon(chan, task);
		return;
	}
	if (done)
		task->step = NCCL_OVER;
	ist__nccl_look_heads(chan, task);
	if (done) {
		task->step = NCCL_RUNS;
		ist__nccl_task_end(chan, task, IST_DONE);
	}
}

/* What the library noticed since: of the network it tells, of a peer on this host it mostly doesn't. */
static void
look_for_errors(struct ist_chan *chan)
{
	int rc = NCCL_SUCCESS;

	if (!chan->c->comm || chan->c->calls->async_error(chan->c->comm, &rc) != NCCL_SUCCESS || rc == NCCL_SUCCESS || rc == NCCL_IN_PROGRESS)
		return;
	for (struct ist_task *t = chan->first; t; t = t->next)
		if (t->step != NCCL_OVER)
			fail_call(chan, t, "the communicator", rc);
}

/* The oldest task that is not on its stream yet. */
static struct ist_task *
next_task(const struct ist_chan *chan)
{
	struct ist_task *t = chan->first;

	while (t && (t->job || t->step >= NCCL_RUNS))
		t = t->next;
	return t && !t->result ? t : NULL;
}

static bool
is_ours(struct nccl_gate *gate, const struct ist_chan *chan)
{
	const void *owner = atomic_load(&gate->owner);

	return !owner || owner == chan;
}

/* One after the other; and none while another channel of this device has one handed over. */
static void
issue(struct ist_chan *chan)
{
	struct nccl_gate *gate = chan->c->gate;
	struct ist_task *t;

	if (pthread_mutex_trylock(&gate->calls))
		return;
	while ((t = next_task(chan)) != NULL && is_ours(gate, chan)) {
		if (t->step == NCCL_QUEUED)
			hand_over(chan, t);
		else
			look_at_handed(chan, t);
		if (t->step < NCCL_RUNS)
			break;
	}
	pthread_mutex_unlock(&gate->calls);
}

static void
run(struct ist_chan *chan)
{
	bool flying = false;

	pthread_mutex_lock(&chan->c->lock);
	if (!atomic_load(&chan->c->aborted) && next_task(chan))
		issue(chan);
	for (struct ist_task *t = chan->first; t; t = t->next)
		if (t->step == NCCL_RUNS) {
			look_at_running(chan, t);
			flying = flying || t->step == NCCL_RUNS;
		}
	if (flying && !atomic_load(&chan->c->aborted) && !next_task(chan)) /* else it has been asked just now */
		look_for_errors(chan);
	pthread_mutex_unlock(&chan->c->lock);
}

/* The device is made current, and put back: these calls come from any thread. */
static void
inside(struct ist_chan *chan, void (*what)(struct ist_chan *chan))
{
	struct ist_status why = { .struct_size = sizeof(why) };
	const struct ist_device *d = chan->c->device;
	void *was;
	ist_err e = d->enter(d->self, chan->c->index, &was, &why);

	if (!e) {
		what(chan);
		d->leave(d->self, chan->c->index, was);
		return;
	}
	for (struct ist_task *t = chan->first; t; t = t->next)
		if (t->step != NCCL_OVER)
			ist__nccl_task_fail(chan, t, e, IST_NO_RANK, why.sys, why.text);
}

void
ist__nccl_move(struct ist_chan *chan)
{
	uint64_t before = chan->ended;
	bool work = false;

	for (struct ist_task *t = chan->first; t; t = t->next)
		if (t->job && t->step != NCCL_OVER)
			look_at_job(chan, t);
		else
			work = work || t->step != NCCL_OVER;
	if (chan->ready && work)
		inside(chan, run);
	if (chan->ended != before)
		chan->news = ist__now();
}

/* ---- after an abort ---- */

/* What was handed over when the abort came: had it been put on the stream, this event comes after it. */
static void
let_go_handed(struct ist_chan *chan, struct ist_task *task)
{
	if (chan->gone_at == 0)
		return;
	if (record(chan, task))
		task->step = NCCL_RUNS;
	else
		abandon(chan, task);
}

static void
let_go(struct ist_chan *chan)
{
	int64_t now = ist__now();
	bool late = now - chan->aborted_at >= ABANDON_NS || (chan->gone_at > 0 && now - chan->gone_at >= LETTING_GO_NS);

	for (struct ist_task *t = chan->first; t; t = t->next) {
		if (t->step == NCCL_HANDED)
			let_go_handed(chan, t);
		if (t->step == NCCL_RUNS)
			look_at_running(chan, t);
		if (late && t->step != NCCL_OVER && t->step != NCCL_QUEUED)
			abandon(chan, t);
	}
}

/* Whatever the library has not seen ends at once. */
void
ist__nccl_drain(struct ist_chan *chan, ist_err why)
{
	bool held = false;

	if (chan->aborted_at == 0)
		chan->aborted_at = ist__now();
	if (chan->gone_at == 0 && (!chan->c->running || ist__nccl_did(chan->c, NCCL_JOB_ABORT))) {
		chan->gone_at = ist__now();
		ist__nccl_leave_gate(chan);
	}
	for (struct ist_task *t = chan->first; t; t = t->next) {
		if (t->step != NCCL_OVER)
			ist__nccl_task_fail(chan, t, why, IST_NO_RANK, 0, "aborted");
		if (t->job || t->step == NCCL_QUEUED)
			ist__nccl_task_end(chan, t, IST_DONE);
		held = held || t->step != NCCL_OVER;
	}
	if (held)
		inside(chan, let_go);
}

/* Is there anything that progress must look after? */
bool
ist__nccl_waits(const struct ist_chan *chan)
{
	for (const struct ist_task *t = chan->first; t; t = t->next)
		if (t->step != NCCL_OVER && !(t->job && t->result))
			return true;
	return false;
}
