/* SPDX-License-Identifier: Apache-2.0
 *
 * self.c - the smallest complete backend: one rank, talking to itself. Meant to be read, and copied by who writes one.
 */
#include <isthmus/backend.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { PIECE = 1 << 20, PIECES = 4 }; /* what one progress copies: about a millisecond */

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
	uint64_t moved, ended;
	ist_err broken;       /* a mismatch: the order is lost for good */
	_Atomic ist_err gone; /* set by abort */
};

static ist_err
say(struct ist_status *why, ist_err e, const char *text)
{
	snprintf(why->text, sizeof(why->text), "%s", text);
	return e;
}

/* Unknown bits are ignored, unless IST_MUST stands beside them. */
static int
refused(uint32_t flags, uint32_t known)
{
	return (flags & IST_MUST) && (flags & ~(IST_MUST | known));
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
	struct ist_chan *chan;

	(void)self;
	if (args->size != 1 || args->rank != 0)
		return say(why, IST_UNSUPPORTED, "self is for groups of one");
	if (refused(args->flags, 0))
		return say(why, IST_UNSUPPORTED, "an unknown flag of open");
	if (args->options && *args->options)
		return say(why, IST_BAD_CONFIG, "self has no options");
	chan = host->alloc(host->ctx, sizeof(*chan), 16, IST_MEM_HOST, -1);
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
	if (!task->result)
		task->result = result;
	chan->ended++;
}

static struct ist_task *
task_new(struct ist_chan *chan, uint64_t n)
{
	struct ist_task *task;
	uint64_t bytes;

	if (__builtin_mul_overflow(n, sizeof(struct part), &bytes) || __builtin_add_overflow(bytes, sizeof(*task), &bytes))
		return NULL;
	task = chan->host->alloc(chan->host->ctx, bytes, 16, IST_MEM_HOST, -1);
	if (!task)
		return NULL;
	memset(task, 0, bytes);
	task->left = n;
	task->next = chan->tasks;
	chan->tasks = task;
	if (n == 0)
		end(chan, task, IST_OK);
	return task;
}

static ist_err
self_connect(struct ist_chan *chan, const struct ist_connect *args, struct ist_task **out, struct ist_status *why)
{
	struct ist_task *task;

	if (args->size != 1)
		return say(why, IST_INVALID_ARGUMENT, "self is for groups of one");
	task = task_new(chan, 0);
	if (!task)
		return IST_NO_MEMORY;
	*out = task;
	return IST_OK;
}

static ist_err
check(const struct ist_op *op, struct ist_status *why)
{
	const struct ist_buf *buf = op->kind == IST_OP_SEND ? &op->src : &op->dst;

	if (op->kind != IST_OP_SEND && op->kind != IST_OP_RECV)
		return say(why, IST_UNSUPPORTED, "self can send and receive");
	if (refused(op->flags, 0))
		return say(why, IST_UNSUPPORTED, "an unknown flag of an operation");
	if (buf->mem != IST_MEM_HOST && buf->mem != IST_MEM_PINNED)
		return say(why, IST_UNSUPPORTED, "self moves host memory");
	if (op->peer != 0 || (buf->bytes > 0 && !buf->addr))
		return say(why, IST_INVALID_ARGUMENT, op->peer ? "there is no such peer" : "a buffer without an address");
	return IST_OK;
}

static ist_err
self_start(struct ist_chan *chan, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	ist_err e = atomic_load(&chan->gone);
	struct ist_task *task;

	if (!e)
		e = chan->broken;
	for (uint64_t i = 0; i < n && !e; i++) /* all of them first: a refusal leaves nothing begun */
		e = check(ops[i], why);
	if (e)
		return e;
	task = task_new(chan, n);
	if (!task)
		return IST_NO_MEMORY;
	for (uint64_t i = 0; i < n; i++) {
		struct queue *q = ops[i]->kind == IST_OP_SEND ? &chan->send : &chan->recv;
		struct part *part = &task->parts[i];

		part->op = *ops[i];
		part->task = task;
		*q->last = part;
		q->last = &part->next;
	}
	*out = task;
	return IST_OK;
}

static void
pop(struct ist_chan *chan, struct queue *q, ist_err result)
{
	struct part *part = q->first;

	q->first = part->next;
	if (!q->first)
		q->last = &q->first;
	if (result)
		part->task->result = result; /* known at once, even if other parts never end */
	if (--part->task->left == 0)
		end(chan, part->task, result);
}

/* Copies up to a piece of the oldest message. */
static void
step(struct ist_chan *chan)
{
	struct part *s = chan->send.first, *r = chan->recv.first;
	uint64_t n = s->op.src.bytes - s->at < PIECE ? s->op.src.bytes - s->at : PIECE;

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
		if (s->at < s->op.src.bytes)
			return;
	}
	pop(chan, &chan->send, chan->broken);
	pop(chan, &chan->recv, chan->broken);
}

static int
ready(struct ist_chan *chan)
{
	return !chan->broken && chan->send.first && chan->recv.first;
}

static ist_err
self_progress(struct ist_chan *chan, struct ist_progress *out)
{
	ist_err gone = atomic_load(&chan->gone);

	for (struct ist_task *t = chan->tasks; gone && t; t = t->next)
		end(chan, t, gone);
	for (int i = 0; i < PIECES && !gone && ready(chan); i++)
		step(chan);
	out->more = !gone && ready(chan);
	out->moved = chan->moved;
	out->ended = chan->ended;
	return IST_OK;
}

static ist_err
self_arm(struct ist_chan *chan, int32_t *fd)
{
	ist_err gone = atomic_load(&chan->gone);

	for (struct ist_task *t = chan->tasks; gone && t; t = t->next)
		if (t->state != IST_DONE)
			return IST_BUSY;
	if (!gone && ready(chan))
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
	if (task->result)
		say(out, task->result, task->result == IST_MISMATCH ? "sender and receiver differ in bytes" :
			task->result == IST_ORDER_MISMATCH ? "sender and receiver differ in seq" : "aborted");
	return task->result;
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
	ist_err none = IST_OK;

	atomic_compare_exchange_strong(&chan->gone, &none, why);
}

static ist_err
self_close(struct ist_chan *chan, struct ist_status *why)
{
	(void)why;
	if (!chan)
		return IST_OK;
	while (chan->tasks)
		self_task_free(chan, chan->tasks);
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
