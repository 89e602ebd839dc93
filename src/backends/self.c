/* SPDX-License-Identifier: Apache-2.0
 *
 * self.c - the smallest complete backend: one rank, talking to itself. Meant to be read, and copied by who writes one.
 */
#include <isthmus/backend.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { PIECE = 1 << 20, PIECES = 4 }; /* what one progress copies: about a millisecond */

/* Unknown flags are ignored, unless IST_MUST stands beside them; self knows none. */
#define REFUSED(flags) (((flags) & IST_MUST) && ((flags) & ~IST_MUST))

/* One operation of a start. */
struct part {
	struct part *next; /* waiting; first in, first out */
	struct ist_task *task;
	struct ist_op op;
	uint64_t at; /* bytes moved */
};

struct ist_task {
	struct ist_task *next; /* of the channel */
	uint64_t left, moved;
	uint32_t state; /* enum ist_state */
	ist_err result;
	struct part parts[];
};

struct queue {
	struct part *first, **last;
};

struct ist_chan {
	const struct ist_host *host;
	struct ist_task *tasks;
	struct queue send, recv;
	uint64_t moved, begun, ended;
	ist_err broken;       /* a mismatch: the order is lost for good */
	_Atomic ist_err gone; /* set by abort */
};

static ist_err
say(struct ist_status *why, ist_err e, const char *text)
{
	snprintf(why->text, sizeof(why->text), "%s", text);
	return e;
}

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
self_open(void *self, const struct ist_host *host, const struct ist_open *args, struct ist_chan **out, struct ist_status *why)
{
	(void)self;
	if (args->size != 1 || args->rank != 0)
		return say(why, IST_UNSUPPORTED, "self is for groups of one");
	if (REFUSED(args->flags))
		return say(why, IST_UNSUPPORTED, "an unknown flag of open");
	if (args->options && *args->options)
		return say(why, IST_BAD_CONFIG, "self has no options");
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

static void
end(struct ist_chan *chan, struct ist_task *task, ist_err result)
{
	if (task->state == IST_DONE)
		return;
	task->state = IST_DONE;
	task->result = task->result ? task->result : result;
	chan->ended++;
}

static struct ist_task *
task_new(struct ist_chan *chan, uint64_t n)
{
	uint64_t bytes;

	if (__builtin_mul_overflow(n, sizeof(struct part), &bytes) || __builtin_add_overflow(bytes, sizeof(struct ist_task), &bytes))
		return NULL;
	struct ist_task *task = chan->host->alloc(chan->host->ctx, bytes, 16, IST_MEM_HOST, -1);
	if (!task)
		return NULL;
	memset(task, 0, bytes);
	task->left = n;
	task->next = chan->tasks;
	chan->tasks = task;
	chan->begun++;
	if (n == 0)
		end(chan, task, IST_OK);
	return task;
}

static ist_err
self_connect(struct ist_chan *chan, const struct ist_connect *args, struct ist_task **out, struct ist_status *why)
{
	struct ist_task *task = args->size == 1 ? task_new(chan, 0) : NULL;

	if (!task)
		return args->size == 1 ? IST_NO_MEMORY : say(why, IST_INVALID_ARGUMENT, "self is for groups of one");
	*out = task;
	return IST_OK;
}

static ist_err
check(const struct ist_op *op, struct ist_status *why)
{
	const struct ist_buf *buf = op->kind == IST_OP_SEND ? &op->src : &op->dst;

	if (op->kind != IST_OP_SEND && op->kind != IST_OP_RECV)
		return say(why, IST_UNSUPPORTED, "self can send and receive");
	if (REFUSED(op->flags) || (buf->mem != IST_MEM_HOST && buf->mem != IST_MEM_PINNED))
		return say(why, IST_UNSUPPORTED, "an unknown flag, or memory that is not the host's");
	return op->peer ? say(why, IST_INVALID_ARGUMENT, "there is no such peer") : IST_OK;
}

static ist_err
self_start(struct ist_chan *chan, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	ist_err gone = atomic_load(&chan->gone), e = gone ? gone : chan->broken;

	for (uint64_t i = 0; i < n && !e; i++) /* all of them first: a refusal leaves nothing begun */
		e = check(ops[i], why);
	if (e)
		return e;
	struct ist_task *task = task_new(chan, n);
	if (!task)
		return IST_NO_MEMORY;
	for (uint64_t i = 0; i < n; i++) {
		struct queue *q = ops[i]->kind == IST_OP_SEND ? &chan->send : &chan->recv;

		task->parts[i] = (struct part){ .task = task, .op = *ops[i] };
		*q->last = &task->parts[i];
		q->last = &task->parts[i].next;
	}
	*out = task;
	return IST_OK;
}

static void
pop(struct ist_chan *chan, struct queue *q)
{
	struct part *part = q->first;

	q->first = part->next;
	if (!q->first)
		q->last = &q->first;
	if (chan->broken)
		part->task->result = chan->broken; /* known at once, even where other parts of the task never end */
	if (--part->task->left == 0)
		end(chan, part->task, IST_OK);
}

/* Copies up to a piece of the oldest message. */
static void
step(struct ist_chan *chan)
{
	struct part *s = chan->send.first, *r = chan->recv.first;
	uint64_t left = s->op.src.bytes - s->at, n = left < PIECE ? left : PIECE;

	if (s->op.seq != r->op.seq)
		chan->broken = IST_ORDER_MISMATCH;
	else if (s->op.src.bytes != r->op.dst.bytes)
		chan->broken = IST_MISMATCH;
	else if (n > 0)
		memcpy((char *)r->op.dst.addr + s->at, (const char *)s->op.src.addr + s->at, n);
	if (!chan->broken) {
		s->at += n;
		s->task->moved += n; /* once for each direction */
		r->task->moved += n;
		chan->moved += 2 * n;
	}
	if (chan->broken || n == left) {
		pop(chan, &chan->send);
		pop(chan, &chan->recv);
	}
}

/* There is something for progress to do. */
static int
busy(struct ist_chan *chan)
{
	return atomic_load(&chan->gone) ? chan->begun != chan->ended : !chan->broken && chan->send.first && chan->recv.first;
}

static ist_err
self_progress(struct ist_chan *chan, struct ist_progress *out)
{
	ist_err gone = atomic_load(&chan->gone);

	for (struct ist_task *t = chan->tasks; gone && t; t = t->next)
		end(chan, t, gone);
	for (int i = 0; i < PIECES && !gone && !chan->broken && chan->send.first && chan->recv.first; i++)
		step(chan);
	out->more = busy(chan) != 0;
	out->moved = chan->moved;
	out->ended = chan->ended;
	return IST_OK;
}

static ist_err
self_arm(struct ist_chan *chan, int32_t *fd)
{
	if (busy(chan))
		return IST_BUSY;
	*fd = -1; /* nobody else ever sends anything here */
	return IST_OK;
}

static ist_err
self_test(struct ist_chan *chan, struct ist_task *task, struct ist_status *out)
{
	(void)chan;
	out->state = task->state;
	out->moved = task->moved;
	return task->result ? say(out, task->result, "a SEND and its RECV differ, or an abort") : IST_OK;
}

static void
self_task_free(struct ist_chan *chan, struct ist_task *task)
{
	struct ist_task **at = &chan->tasks;

	while (*at != task)
		at = &(*at)->next;
	*at = task->next;
	chan->host->free(chan->host->ctx, task);
}

static void
self_abort(struct ist_chan *chan, ist_err why)
{
	atomic_compare_exchange_strong(&chan->gone, &(ist_err){ IST_OK }, why); /* the first one counts */
}

static ist_err
self_close(struct ist_chan *chan, struct ist_status *why)
{
	(void)why;
	while (chan && chan->tasks)
		self_task_free(chan, chan->tasks);
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
	.arm = self_arm,
	.test = self_test,
	.task_free = self_task_free,
	.abort = self_abort,
	.close = self_close,
};

IST_BACKEND_DEFINE(self_backend);
