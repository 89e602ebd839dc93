/* SPDX-License-Identifier: Apache-2.0 */
#include "mem_backend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct part {
	struct part *next;
	struct ist_task *task;
	const char *from;
	char *to;
	uint64_t bytes, at, seq;
	bool by_view;
};

struct ist_task {
	struct ist_chan *chan;
	struct ist_task *next; /* of the channel, oldest first */
	uint64_t left;         /* parts */
	uint64_t moved;
	uint32_t state;
	ist_err result;
	bool will_fail;
	struct ist_buf view;
	struct ist_task *lender; /* whose part ends with this task */
	uint64_t n;
	struct part parts[];
};

struct queue {
	struct part *first, *last;
};

struct ist_chan {
	struct mem_hub *hub;
	uint32_t rank;
	int fd;
	_Atomic ist_err why;
	struct ist_task *tasks;
	uint32_t n_tasks;
	uint64_t moved, ended, starts;
};

struct mem_hub {
	pthread_mutex_t lock;
	pthread_cond_t released_cond;
	struct mem_options o;
	struct ist__admitted admitted;
	uint32_t size, closed;
	bool released;
	uint64_t moved, starts, live, turns;
	struct queue *send, *recv; /* [from * size + to] */
	struct ist_chan *chans;
};

static void
kick(struct ist_chan *chan)
{
	uint64_t one = 1;

	if (write(chan->fd, &one, sizeof(one)) < 0)
		return; /* full is as good */
}

static void
push(struct queue *q, struct part *p)
{
	if (q->last)
		q->last->next = p;
	else
		q->first = p;
	q->last = p;
}

static void
part_over(struct part *p)
{
	if (--p->task->left > 0)
		return;
	p->task->state = IST_DONE;
	p->task->chan->ended++;
	kick(p->task->chan);
}

static struct part *
pop(struct queue *q)
{
	struct part *p = q->first;

	q->first = p->next;
	if (!q->first)
		q->last = NULL;
	p->next = NULL;
	return p;
}

/* With serial: is this part of the first start of its channel that has not ended? */
static bool
may_move(const struct mem_hub *hub, const struct part *p)
{
	const struct ist_task *t = p->task->chan->tasks;

	while (t && t->state >= IST_DONE)
		t = t->next;
	return !hub->o.serial || t == p->task;
}

static void
move_pair(struct mem_hub *hub, uint32_t from, uint32_t to)
{
	struct queue *send = &hub->send[from * hub->size + to], *recv = &hub->recv[from * hub->size + to];

	while (send->first && recv->first && may_move(hub, send->first) && may_move(hub, recv->first)) {
		struct part *s = send->first, *r = recv->first;
		ist_err e = s->seq != r->seq ? IST_ORDER_MISMATCH : s->bytes != r->bytes ? IST_MISMATCH : IST_OK;
		uint64_t n = s->bytes - s->at;

		if (e) {
			s->task->result = r->task->result = e;
		} else if (s->by_view && r->by_view) {
			r->task->view = (struct ist_buf){ .bytes = s->bytes, .device = -1 };
			memcpy(&r->task->view.addr, &s->from, sizeof(s->from));
			r->task->lender = s->task;
			pop(send);
			part_over(pop(recv));
			continue;
		} else {
			if (hub->o.slice && n > hub->o.slice)
				n = hub->o.slice;
			if (n > 0)
				memcpy(r->to + s->at, s->from + s->at, n);
			s->at += n;
			s->task->moved += n;
			r->task->moved += n;
			s->task->chan->moved += n;
			r->task->chan->moved += n;
			hub->moved += n;
			kick(s->task->chan);
			kick(r->task->chan);
			if (s->at < s->bytes)
				return;
		}
		part_over(pop(send));
		part_over(pop(recv));
	}
}

static void
forget(struct queue *q, const struct ist_chan *chan)
{
	struct queue kept = { NULL, NULL };

	while (q->first) {
		struct part *p = pop(q);

		if (p->task->chan != chan)
			push(&kept, p);
	}
	*q = kept;
}

static void
end_all(struct ist_chan *chan, ist_err why)
{
	struct mem_hub *hub = chan->hub;

	for (uint32_t i = 0; i < hub->size * hub->size; i++) {
		forget(&hub->send[i], chan);
		forget(&hub->recv[i], chan);
	}
	for (struct ist_task *t = chan->tasks; t; t = t->next)
		if (t->state < IST_DONE) {
			t->result = why;
			t->state = hub->o.abandon ? IST_ABANDONED : IST_DONE;
			chan->ended++;
		}
}

static ist_err
mem_progress(struct ist_chan *chan, struct ist_progress *out)
{
	struct mem_hub *hub = chan->hub;
	uint64_t n;
	bool held;

	while (read(chan->fd, &n, sizeof(n)) > 0)
		;
	pthread_mutex_lock(&hub->lock);
	hub->turns++;
	held = !hub->released && (hub->o.hold || (hub->o.hold_after && hub->moved >= hub->o.hold_after));
	if (atomic_load(&chan->why) && !hub->o.ignore_abort)
		end_all(chan, atomic_load(&chan->why));
	for (uint32_t i = 0; i < hub->size && !held && !atomic_load(&chan->why); i++) {
		move_pair(hub, chan->rank, i);
		if (i != chan->rank)
			move_pair(hub, i, chan->rank);
	}
	out->moved = chan->moved;
	out->ended = chan->ended;
	pthread_mutex_unlock(&hub->lock);
	return IST_OK;
}

static ist_err
refuse(struct ist_chan *chan, const struct ist_op *const *ops, uint64_t n)
{
	const struct mem_options *o = &chan->hub->o;

	if (atomic_load(&chan->why))
		return atomic_load(&chan->why);
	if (o->max_tasks && chan->n_tasks >= o->max_tasks)
		return IST_BUSY;
	if (o->max_ops && n > o->max_ops)
		return IST_LIMIT;
	for (uint64_t i = 0; i < n; i++) {
		if (ops[i]->peer >= chan->hub->size || ops[i]->seq >= UINT64_C(1) << 40)
			return IST_INVALID_ARGUMENT;
		if (ops[i]->kind == IST_OP_SEND || ops[i]->kind == IST_OP_RECV)
			continue;
		if (ops[i]->kind != IST_OP_BROADCAST || n != 1 || !(o->native >> IST_OP_BROADCAST & 1))
			return IST_UNSUPPORTED;
		if ((ops[i]->flags & IST_OP_VIEW) && !(o->traits & IST_TRAIT_CAN_VIEW))
			return IST_UNSUPPORTED;
	}
	return IST_OK;
}

static void
put_part(struct ist_task *task, bool is_send, uint32_t peer, const struct ist_op *op)
{
	struct ist_chan *chan = task->chan;
	struct mem_hub *hub = chan->hub;
	struct part *p = &task->parts[task->n++];

	*p = (struct part){ .task = task, .from = op->src.addr, .to = op->dst.addr, .bytes = is_send ? op->src.bytes : op->dst.bytes,
		.seq = op->seq, .by_view = op->flags & IST_OP_VIEW };
	if (is_send)
		push(&hub->send[chan->rank * hub->size + peer], p);
	else
		push(&hub->recv[peer * hub->size + chan->rank], p);
	task->left++;
	kick(&hub->chans[peer]);
}

static bool
takes(const struct mem_hub *hub, const struct ist_op *op, uint32_t rank)
{
	const uint64_t *takers = hub->o.traits & IST_TRAIT_TAKERS ? op->takers : NULL;

	return rank != op->peer && (!takers || takers[rank / 64] >> (rank % 64) & 1);
}

static void
put_op(struct ist_task *task, const struct ist_op *op)
{
	uint32_t me = task->chan->rank;

	if (op->kind != IST_OP_BROADCAST) {
		put_part(task, op->kind == IST_OP_SEND, op->peer, op);
		return;
	}
	for (uint32_t i = 0; i < task->chan->hub->size && op->peer == me; i++)
		if (takes(task->chan->hub, op, i))
			put_part(task, true, i, op);
	if (takes(task->chan->hub, op, me))
		put_part(task, false, op->peer, op);
}

static ist_err
mem_start(struct ist_chan *chan, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	struct mem_hub *hub = chan->hub;
	const struct mem_options *o = &hub->o;
	struct ist_task *task, **last;
	bool mine;
	ist_err e;

	pthread_mutex_lock(&hub->lock);
	e = refuse(chan, ops, n);
	if (e) {
		pthread_mutex_unlock(&hub->lock);
		return e;
	}
	chan->starts++;
	hub->starts++;
	if (o->block_at == chan->starts && (uint32_t)o->block_rank == chan->rank)
		while (!hub->released)
			pthread_cond_wait(&hub->released_cond, &hub->lock);
	mine = o->fail_at == chan->starts && (uint32_t)o->fail_rank == chan->rank;
	if (mine && !o->fail_test) {
		pthread_mutex_unlock(&hub->lock);
		strcpy(why->text, "told to fail");
		why->sys = 42;
		return o->fail_code;
	}
	task = calloc(1, sizeof(*task) + (n + hub->size) * sizeof(task->parts[0]));
	task->chan = chan;
	task->will_fail = mine;
	for (uint64_t i = 0; i < n; i++)
		put_op(task, ops[i]);
	for (last = &chan->tasks; *last; last = &(*last)->next)
		;
	*last = task;
	chan->n_tasks++;
	hub->live++;
	if (task->left == 0) {
		task->state = IST_DONE;
		chan->ended++;
	}
	pthread_mutex_unlock(&hub->lock);
	*out = task;
	return IST_OK;
}

static ist_err
mem_test(struct ist_chan *chan, struct ist_task *task, struct ist_status *out)
{
	ist_err e;

	pthread_mutex_lock(&chan->hub->lock);
	out->state = task->state;
	out->moved = task->moved;
	out->view = task->view;
	e = task->will_fail ? chan->hub->o.fail_code : task->result;
	pthread_mutex_unlock(&chan->hub->lock);
	if (e)
		strcpy(out->text, "told to fail");
	return e;
}

static void
mem_task_free(struct ist_chan *chan, struct ist_task *task)
{
	struct ist_task **p;

	pthread_mutex_lock(&chan->hub->lock);
	for (p = &chan->tasks; *p != task; p = &(*p)->next)
		;
	*p = task->next;
	chan->n_tasks--;
	chan->hub->live--;
	if (task->lender)
		part_over(&task->lender->parts[0]);
	pthread_mutex_unlock(&chan->hub->lock);
	free(task);
}

static ist_err
mem_arm(struct ist_chan *chan, int32_t *fd)
{
	*fd = chan->hub->o.no_fd ? -1 : chan->fd;
	return IST_OK;
}

static void
mem_abort(struct ist_chan *chan, ist_err why)
{
	ist_err none = IST_OK;

	atomic_compare_exchange_strong(&chan->why, &none, why);
	kick(chan);
}

static ist_err
mem_close(struct ist_chan *chan, struct ist_status *why)
{
	(void)why;
	pthread_mutex_lock(&chan->hub->lock);
	end_all(chan, IST_ABORTED);
	chan->hub->closed++;
	while (chan->tasks) {
		struct ist_task *t = chan->tasks;

		chan->tasks = t->next;
		free(t);
	}
	pthread_mutex_unlock(&chan->hub->lock);
	return IST_OK;
}

static ist_err
mem_alloc(struct ist_chan *chan, uint64_t bytes, uint32_t mem, int32_t device, void **out, struct ist_status *why)
{
	(void)chan, (void)device, (void)why;
	if (mem != IST_MEM_HOST)
		return IST_UNSUPPORTED;
	*out = malloc(bytes);
	return *out ? IST_OK : IST_NO_MEMORY;
}

static void
mem_free(struct ist_chan *chan, void *addr)
{
	(void)chan;
	free(addr);
}

static const struct ist_backend table = {
	.struct_size = sizeof(struct ist_backend), .abi = IST_BACKEND_ABI, .name = "mem", .start = mem_start, .progress = mem_progress,
	.arm = mem_arm, .test = mem_test, .task_free = mem_task_free, .abort = mem_abort, .close = mem_close, .alloc = mem_alloc, .free = mem_free,
};

struct mem_hub *
mem_hub_new(uint32_t size, const struct mem_options *options)
{
	struct mem_hub *hub = calloc(1, sizeof(*hub));

	pthread_mutex_init(&hub->lock, NULL);
	pthread_cond_init(&hub->released_cond, NULL);
	hub->size = size;
	if (options)
		hub->o = *options;
	hub->send = calloc((size_t)size * size, sizeof(*hub->send));
	hub->recv = calloc((size_t)size * size, sizeof(*hub->recv));
	hub->chans = calloc(size, sizeof(*hub->chans));
	for (uint32_t i = 0; i < size; i++) {
		hub->chans[i].hub = hub;
		hub->chans[i].rank = i;
		hub->chans[i].fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	}
	hub->admitted.ops = table;
	hub->admitted.name = "mem";
	hub->admitted.native = 1u << IST_OP_SEND | 1u << IST_OP_RECV | hub->o.native;
	hub->admitted.probe = (struct ist_probe){ .struct_size = sizeof(struct ist_probe), .usable = 1, .native_ops = hub->admitted.native,
		.mem = 1u << IST_MEM_HOST, .traits = hub->o.traits, .max_ops = hub->o.max_ops };
	return hub;
}

void
mem_hub_free(struct mem_hub *hub)
{
	for (uint32_t i = 0; i < hub->size; i++)
		close(hub->chans[i].fd);
	pthread_mutex_destroy(&hub->lock);
	pthread_cond_destroy(&hub->released_cond);
	free(hub->send);
	free(hub->recv);
	free(hub->chans);
	free(hub);
}

struct ist_chan *
mem_chan(struct mem_hub *hub, uint32_t rank)
{
	return &hub->chans[rank];
}

const struct ist__admitted *
mem_admitted(struct mem_hub *hub)
{
	return &hub->admitted;
}

void
mem_release(struct mem_hub *hub)
{
	pthread_mutex_lock(&hub->lock);
	hub->released = true;
	pthread_cond_broadcast(&hub->released_cond);
	for (uint32_t i = 0; i < hub->size; i++)
		kick(&hub->chans[i]);
	pthread_mutex_unlock(&hub->lock);
}

#define GET(name, type, field)                         \
	type name(struct mem_hub *hub)                 \
	{                                              \
		type v;                                \
		pthread_mutex_lock(&hub->lock);        \
		v = hub->field;                        \
		pthread_mutex_unlock(&hub->lock);      \
		return v;                              \
	}
GET(mem_starts, uint64_t, starts)
GET(mem_live_tasks, uint64_t, live)
GET(mem_closed, uint32_t, closed)
GET(mem_turns, uint64_t, turns)
