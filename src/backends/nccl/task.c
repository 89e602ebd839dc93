/* SPDX-License-Identifier: Apache-2.0
 *
 * task.c - tasks of a channel: how they begin, fail and end.
 */
#include "backends/nccl/chan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

ist_err
ist__nccl_say(struct ist_status *why, ist_err e, uint32_t rank, int32_t sys, const char *fmt, ...)
{
	va_list ap;

	if (IST_HAS(why, rank) && rank != IST_NO_RANK)
		why->rank = rank;
	if (IST_HAS(why, sys))
		why->sys = sys;
	if (IST_HAS(why, text)) {
		va_start(ap, fmt);
		vsnprintf(why->text, sizeof(why->text), fmt, ap);
		va_end(ap);
	}
	return e;
}

struct ist_task *
ist__nccl_task_new(struct ist_chan *chan, uint64_t n)
{
	struct ist_task *task;
	uint64_t bytes;

	if (__builtin_mul_overflow(n, sizeof(task->ops[0]), &bytes) || __builtin_add_overflow(bytes, sizeof(*task), &bytes))
		return NULL;
	task = chan->host->alloc(chan->host->ctx, bytes, 16, IST_MEM_HOST, -1);
	if (!task)
		return NULL;
	memset(task, 0, bytes);
	task->n = n;
	task->rank = IST_NO_RANK;
	task->prev = chan->last;
	if (chan->last)
		chan->last->next = task;
	else
		chan->first = task;
	chan->last = task;
	return task;
}

static void
give_heads_back(struct ist_chan *chan, struct ist_task *task)
{
	for (uint64_t i = 0; task->heads && i * NCCL_HEADS < task->n; i++)
		if (task->heads[i] && task->state != IST_ABANDONED)
			ist__nccl_heads_back(chan->c, task->heads[i]);
	chan->host->free(chan->host->ctx, task->heads);
}

void
ist__nccl_task_free(struct ist_chan *chan, struct ist_task *task)
{
	if (task->prev)
		task->prev->next = task->next;
	else
		chan->first = task->next;
	if (task->next)
		task->next->prev = task->prev;
	else
		chan->last = task->prev;
	if (task->event && task->state == IST_DONE)
		ist__nccl_event_back(chan->c, task->event);
	give_heads_back(chan, task);
	chan->host->free(chan->host->ctx, task);
}

/* The reason; the task ends when its buffers are free. */
void
ist__nccl_task_fail(struct ist_chan *chan, struct ist_task *task, ist_err e, uint32_t rank, int32_t sys, const char *text)
{
	if (task->result)
		return;
	task->result = e;
	task->rank = rank;
	task->sys = sys;
	snprintf(task->text, sizeof(task->text), "%s", text);
	if (task->state < IST_DONE)
		chan->ended++; /* so that the core looks at it */
}

void
ist__nccl_task_end(struct ist_chan *chan, struct ist_task *task, uint32_t state)
{
	if (task->step == NCCL_OVER)
		return;
	task->step = NCCL_OVER;
	task->state = state;
	chan->ended++;
	if (!task->result)
		chan->moved += task->bytes;
}
