/* SPDX-License-Identifier: Apache-2.0
 *
 * task.c - tasks and their parts: how they begin, fail and end, and the queues in which they wait.
 */
#include "backends/host/host.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SPARE_PARTS 16u /* a task with so many parts is kept for the next start */
#define SPARE_TASKS 32u
#define WARM_TASKS 8

ist_err
ist__host_say(struct ist_status *why, ist_err err, uint32_t rank, int32_t sys, const char *fmt, ...)
{
	va_list ap;

	if (!why)
		return err;
	if (IST_HAS(why, rank))
		why->rank = rank;
	if (IST_HAS(why, sys))
		why->sys = sys;
	if (IST_HAS(why, text)) {
		va_start(ap, fmt);
		vsnprintf(why->text, sizeof(why->text), fmt, ap);
		va_end(ap);
	}
	return err;
}

struct ist_task *
ist__host_task_new(struct ist_chan *chan, uint64_t n)
{
	uint64_t room = n < SPARE_PARTS ? SPARE_PARTS : n, bytes;
	struct ist_task *task = chan->spare;

	if (task && room == SPARE_PARTS) {
		chan->spare = task->next;
		chan->n_spare--;
		memset(task, 0, sizeof(*task) + n * sizeof(task->parts[0]));
	} else {
		if (__builtin_mul_overflow(room, sizeof(task->parts[0]), &bytes) || __builtin_add_overflow(bytes, sizeof(*task), &bytes))
			return NULL;
		task = ist__alloc(&chan->ctx, bytes);
		if (!task)
			return NULL;
	}
	task->room = room;
	task->rank = IST_NO_RANK;
	task->n = task->left = n;
	for (uint64_t i = 0; i < n; i++)
		task->parts[i].task = task;
	task->next = chan->tasks;
	if (chan->tasks)
		chan->tasks->prev = task;
	chan->tasks = task;
	return task;
}

/* How many tasks are under way at once varies; the usual number is at hand from the beginning. Lack of memory shows later. */
void
ist__host_tasks_warm(struct ist_chan *chan)
{
	struct ist_task *warm[WARM_TASKS];

	for (uint32_t i = 0; i < WARM_TASKS; i++)
		warm[i] = ist__host_task_new(chan, 1);
	for (uint32_t i = 0; i < WARM_TASKS; i++)
		ist__host_task_free(chan, warm[i]);
}

void
ist__host_sets_free(const struct ist_chan *chan, struct ist_task *task)
{
	for (uint64_t i = 0; i < task->n; i++)
		ist__host_set_free(chan, &task->parts[i]);
}

void
ist__host_task_free(struct ist_chan *chan, struct ist_task *task)
{
	if (!task)
		return;
	if (task->prev)
		task->prev->next = task->next;
	else
		chan->tasks = task->next;
	if (task->next)
		task->next->prev = task->prev;
	ist__host_sets_free(chan, task);
	if (task->room == SPARE_PARTS && chan->n_spare < SPARE_TASKS) {
		task->next = chan->spare;
		chan->spare = task;
		chan->n_spare++;
	} else {
		ist__free(&chan->ctx, task);
	}
}

void
ist__host_task_end(struct ist_chan *chan, struct ist_task *task, ist_err result)
{
	if (task->state >= IST_DONE)
		return;
	if (!task->result)
		task->result = result;
	task->state = IST_DONE;
	chan->ended++;
}

/* Its memory is lost for good: somebody may still write there. */
void
ist__host_task_abandon(struct ist_chan *chan, struct ist_task *task, ist_err why)
{
	if (task->state == IST_DONE)
		return;
	if (!task->result)
		task->result = why;
	task->state = IST_ABANDONED;
	chan->ended++;
}

void
ist__host_part_end(struct ist_chan *chan, struct part *part)
{
	if (part->ended)
		return;
	part->ended = true;
	if (--part->task->left == 0)
		ist__host_task_end(chan, part->task, IST_OK);
}

__attribute__((format(printf, 6, 0))) static void
note(struct ist_chan *chan, struct ist_task *task, ist_err err, uint32_t rank, int32_t sys, const char *fmt, va_list ap)
{
	if (task->result)
		return;
	task->result = err;
	task->rank = rank;
	task->sys = sys;
	vsnprintf(task->text, sizeof(task->text), fmt, ap);
	chan->ended++; /* so that the core looks at it, though other parts may go on */
}

void
ist__host_part_note(struct ist_chan *chan, struct part *part, ist_err err, uint32_t rank, int32_t sys, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	note(chan, part->task, err, rank, sys, fmt, ap);
	va_end(ap);
}

void
ist__host_part_fail(struct ist_chan *chan, struct part *part, ist_err err, uint32_t rank, int32_t sys, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	note(chan, part->task, err, rank, sys, fmt, ap);
	va_end(ap);
	if (part->crew && part->publisher != IST_NO_RANK)
		return; /* others may be writing to its memory: follow ends it when they have left */
	ist__host_part_end(chan, part);
}

void
ist__host_part_moved(struct ist_chan *chan, struct part *part, uint64_t bytes)
{
	part->task->moved += bytes;
	chan->moved += bytes;
}

bool
ist__host_part_fits(struct ist_chan *chan, struct part *part, uint32_t rank, uint64_t seq, uint64_t bytes)
{
	uint64_t want = part->op.dst.bytes;

	if (seq != part->op.seq)
		ist__host_part_fail(chan, part, IST_ORDER_MISMATCH, rank, 0, "rank %u is at operation %llu, rank %u at %llu", rank,
			(unsigned long long)seq, chan->rank, (unsigned long long)part->op.seq);
	else if (bytes != want)
		ist__host_part_fail(chan, part, IST_MISMATCH, rank, 0, "rank %u gives %llu bytes, rank %u expects %llu (operation %llu)", rank,
			(unsigned long long)bytes, chan->rank, (unsigned long long)want, (unsigned long long)seq);
	else
		return true;
	return false;
}

void
ist__host_push(struct queue *q, struct part *part)
{
	part->next = NULL;
	if (!q->first)
		q->last = &q->first;
	*q->last = part;
	q->last = &part->next;
}

struct part *
ist__host_pop(struct queue *q)
{
	struct part *part = q->first;

	q->first = part->next;
	if (!q->first)
		q->last = &q->first;
	return part;
}

void
ist__host_end_all(struct ist_chan *chan, ist_err why)
{
	for (uint32_t r = 0; r < chan->size; r++)
		chan->peers[r].send.first = chan->peers[r].recv.first = NULL;
	chan->aborted_at = ist__now();
	/* what others may be writing to is not the caller's yet */
	for (struct part **at = &chan->casts; *at;)
		if (!(*at)->crew) {
			*at = (*at)->next;
		} else {
			(*at)->task->held++;
			at = &(*at)->next;
		}
	chan->casts_last = &chan->casts;
	while (*chan->casts_last)
		chan->casts_last = &(*chan->casts_last)->next;
	chan->gates.first = NULL;
	chan->linking = NULL;
	for (struct ist_task *task = chan->tasks; task; task = task->next)
		if (task->held == 0)
			ist__host_task_end(chan, task, why);
	ist__host_coop_drain(chan, why);
}
