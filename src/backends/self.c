/* SPDX-License-Identifier: Apache-2.0
 *
 * self.c - the smallest complete backend: one rank, talking to itself. */
#include <isthmus/backend.h>
#include <stdatomic.h>
#include <string.h>

struct ist_task {
	struct ist_task *next; /* waiting; first in, first out */
	struct ist_op op;
	struct ist_task *whole; /* the task of the start that this is part of */
	uint64_t left;
	uint32_t state; /* enum ist_state */
	ist_err result;
};

struct queue {
	struct ist_task *first, **last;
};

struct ist_chan {
	const struct ist_host *host;
	struct queue send, recv;
	uint64_t moved, ended;
	_Atomic ist_err why; /* set by abort */
	uint32_t told;
};

static void
self_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_probe *out)
{
	(void)self, (void)host, (void)level;
	out->usable = 1;
	out->reason = out->library = "";
	out->version = "1";
	out->native_ops = 1u << IST_OP_SEND | 1u << IST_OP_RECV;
	out->mem = 1u << IST_MEM_HOST | 1u << IST_MEM_PINNED;
}

static ist_err
self_open(void *self, const struct ist_host *host, const struct ist_open *args, struct ist_chan **out,
          struct ist_status *why)
{
	(void)self, (void)why;
	if (args->size != 1)
		return IST_UNSUPPORTED;
	struct ist_chan *chan = host->alloc(host->ctx, sizeof(*chan), 16, IST_MEM_HOST, -1);
	if (!chan)
		return IST_NO_MEMORY;
	memset(chan, 0, sizeof(*chan));
	chan->host = host;
	chan->send.last = &chan->send.first;
	chan->recv.last = &chan->recv.first;
	*out = chan;
	return IST_OK;
}

/* n parts in one piece of memory; the first stands for all */
static struct ist_task *
task_new(struct ist_chan *chan, uint64_t n)
{
	struct ist_task *task = chan->host->alloc(chan->host->ctx, n * sizeof(*task), 16, IST_MEM_HOST, -1);

	if (task)
		memset(task, 0, n * sizeof(*task));
	return task;
}

static ist_err
self_connect(struct ist_chan *chan, const struct ist_connect *args, struct ist_task **out, struct ist_status *why)
{
	(void)args, (void)why;
	struct ist_task *task = task_new(chan, 1);
	if (!task)
		return IST_NO_MEMORY;
	task->state = IST_DONE;
	chan->ended++;
	*out = task;
	return IST_OK;
}

static ist_err
self_start(struct ist_chan *chan, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	ist_err gone = atomic_load(&chan->why);

	(void)why;
	if (gone)
		return gone;
	for (uint64_t i = 0; i < n; i++) /* all rights first: a refusal leaves nothing begun */
		if (ops[i]->kind != IST_OP_SEND && ops[i]->kind != IST_OP_RECV)
			return IST_UNSUPPORTED;
	struct ist_task *task = task_new(chan, n);
	if (!task)
		return IST_NO_MEMORY;
	task->left = n;
	for (uint64_t i = 0; i < n; i++) {
		struct queue *q = ops[i]->kind == IST_OP_SEND ? &chan->send : &chan->recv;
		task[i].op = *ops[i];
		task[i].whole = task;
		*q->last = &task[i];
		q->last = &task[i].next;
	}
	*out = task;
	return IST_OK;
}

static void
pop(struct ist_chan *chan, struct queue *q, ist_err result)
{
	struct ist_task *part = q->first, *task = part->whole;

	q->first = part->next;
	if (!q->first)
		q->last = &q->first;
	if (result)
		task->result = result;
	if (--task->left == 0) {
		task->state = IST_DONE;
		chan->ended++;
	}
}

static ist_err
self_progress(struct ist_chan *chan, struct ist_progress *out)
{
	while (!atomic_load(&chan->why) && chan->send.first && chan->recv.first) {
		struct ist_op *s = &chan->send.first->op, *r = &chan->recv.first->op;
		ist_err e = s->seq != r->seq ? IST_ORDER_MISMATCH : s->src.bytes != r->dst.bytes ? IST_MISMATCH : IST_OK;
		if (!e && s->src.bytes > 0)
			memcpy(r->dst.addr, s->src.addr, s->src.bytes);
		chan->moved += e ? 0 : s->src.bytes;
		pop(chan, &chan->send, e);
		pop(chan, &chan->recv, e);
	}
	if (atomic_load(&chan->why) && !chan->told++)
		chan->ended++;
	out->moved = chan->moved;
	out->ended = chan->ended;
	return IST_OK;
}

static ist_err
self_test(struct ist_chan *chan, struct ist_task *task, struct ist_status *out)
{
	ist_err gone = atomic_load(&chan->why);

	if (task->state != IST_DONE && gone) {
		task->state = IST_DONE;
		task->result = gone;
	}
	out->state = task->state;
	return task->result;
}

static void
self_task_free(struct ist_chan *chan, struct ist_task *task)
{
	chan->host->free(chan->host->ctx, task);
}

static ist_err
self_arm(struct ist_chan *chan, int32_t *fd)
{
	*fd = -1;
	return chan->send.first && chan->recv.first ? IST_BUSY : IST_OK;
}

static void
self_abort(struct ist_chan *chan, ist_err why)
{
	ist_err none = IST_OK;

	atomic_compare_exchange_strong(&chan->why, &none, why);
}

static ist_err
self_close(struct ist_chan *chan, struct ist_status *why)
{
	(void)why;
	if (chan)
		chan->host->free(chan->host->ctx, chan);
	return IST_OK;
}

static const struct ist_backend self_backend = {
	.struct_size = sizeof(struct ist_backend),
	.abi = IST_BACKEND_ABI,
	.name = "self",
	.probe = self_probe,
	.open = self_open,
	.connect = self_connect,
	.start = self_start,
	.progress = self_progress,
	.test = self_test,
	.task_free = self_task_free,
	.arm = self_arm,
	.abort = self_abort,
	.close = self_close,
};

IST_BACKEND_DEFINE(self_backend);
