/* SPDX-License-Identifier: Apache-2.0 */
#include "plug/wrap.h"

#include "base/clock.h"
#include "base/fail.h"

#include <stdio.h>
#include <string.h>

static void
tell(struct ist_chan *chan, const char *what, ist_err result)
{
	if (chan->wrap->hooks->event)
		chan->wrap->hooks->event(chan, what, result);
}

static void
wrap_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_probe *out)
{
	const struct ist__wrap *wrap = self;

	wrap->inner->ops.probe(wrap->inner->ops.self, host, level, out);
}

static ist_err
wrap_open(void *self, const struct ist_host *host, const struct ist_open *args, struct ist_chan **out, struct ist_status *why)
{
	const struct ist__wrap *wrap = self;
	struct ist_chan *chan = ist__alloc(wrap->ctx, sizeof(*chan));
	ist_err e;

	if (!chan)
		return IST_NO_MEMORY;
	chan->wrap = wrap;
	chan->host = host;
	chan->rank = args->rank;
	chan->size = args->size;
	e = wrap->inner->ops.open(wrap->inner->ops.self, host, args, &chan->inner, why);
	tell(chan, "open", e);
	if (!e && !chan->inner)
		e = IST_BAD_PLUGIN;
	if (e) {
		ist__free(wrap->ctx, chan);
		return e;
	}
	*out = chan;
	return IST_OK;
}

static struct ist_task *
task_new(struct ist_chan *chan, const struct ist_op *const *ops, uint64_t n)
{
	uint64_t bytes;
	struct ist_task *task;

	if (__builtin_mul_overflow(n, sizeof(struct ist_op), &bytes) || __builtin_add_overflow(bytes, sizeof(*task), &bytes))
		return NULL;
	task = ist__alloc(chan->wrap->ctx, bytes);
	if (!task)
		return NULL;
	task->n = n;
	task->began = ist__now();
	for (uint64_t i = 0; i < n; i++) {
		/* as much as both sides know of an op */
		size_t have = ops[i]->struct_size < sizeof(struct ist_op) ? ops[i]->struct_size : sizeof(struct ist_op);

		memcpy(&task->ops[i], ops[i], have);
		task->ops[i].struct_size = (uint32_t)have;
	}
	return task;
}

static void
task_end(struct ist_chan *chan, struct ist_task *task)
{
	if (task->temp && task->temp_is_chan)
		chan->wrap->inner->ops.free(chan->inner, task->temp);
	else if (task->temp)
		ist__free(chan->wrap->ctx, task->temp);
	ist__free(chan->wrap->ctx, task);
}

static void
task_link(struct ist_chan *chan, struct ist_task *task)
{
	task->next = chan->tasks;
	chan->tasks = task;
}

/* What offer, connect and region have in common: a task of the inner one gets one of ours around it. */
static ist_err
adopt(struct ist_chan *chan, const char *what, ist_err e, struct ist_task *task, struct ist_task **out)
{
	tell(chan, what, e);
	if (!e && !task->inner)
		e = IST_BAD_PLUGIN;
	if (e) {
		task_end(chan, task);
		return e;
	}
	task_link(chan, task);
	*out = task;
	return IST_OK;
}

static ist_err
wrap_offer(struct ist_chan *chan, struct ist_wire *mine, struct ist_task **out, struct ist_status *why)
{
	struct ist_task *task = task_new(chan, NULL, 0);

	if (!task)
		return IST_NO_MEMORY;
	return adopt(chan, "offer", chan->wrap->inner->ops.offer(chan->inner, mine, &task->inner, why), task, out);
}

static ist_err
wrap_connect(struct ist_chan *chan, const struct ist_connect *args, struct ist_task **out, struct ist_status *why)
{
	struct ist_task *task = task_new(chan, NULL, 0);

	if (!task)
		return IST_NO_MEMORY;
	return adopt(chan, "connect", chan->wrap->inner->ops.connect(chan->inner, args, &task->inner, why), task, out);
}

/* The set is the caller's during start alone. To who does not take it nothing comes. */
static void
forget_takers(const struct ist_chan *chan, struct ist_op *op)
{
	if (!IST_HAS(op, takers) || !op->takers)
		return;
	if (op->peer != chan->rank && !(op->takers[chan->rank / 64] >> (chan->rank % 64) & 1))
		op->dst = (struct ist_buf){ .device = -1 };
	op->takers = NULL;
}

static ist_err
start_inner(struct ist_chan *chan, struct ist_task *task, struct ist_status *why)
{
	const struct ist_op **list = ist__alloc(chan->wrap->ctx, (task->n + 1) * sizeof(const struct ist_op *));
	ist_err e;

	if (!list)
		return IST_NO_MEMORY;
	for (uint64_t i = 0; i < task->n; i++)
		list[i] = &task->ops[i];
	e = chan->wrap->inner->ops.start(chan->inner, list, task->n, &task->inner, why);
	ist__free(chan->wrap->ctx, list);
	for (uint64_t i = 0; i < task->n; i++)
		forget_takers(chan, &task->ops[i]);
	return e || task->inner ? e : IST_BAD_PLUGIN;
}

static ist_err
wrap_start(struct ist_chan *chan, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	ist_err e = atomic_load(&chan->why);
	struct ist_task *task;

	if (e)
		return e;
	task = task_new(chan, ops, n);
	if (!task)
		return IST_NO_MEMORY;
	task->no = ++chan->starts;
	e = chan->wrap->hooks->start ? chan->wrap->hooks->start(chan, task, why) : IST_OK;
	if (!e && task->mode == IST__WRAP_PASS)
		e = start_inner(chan, task, why);
	if (e) {
		tell(chan, "start", e);
		task_end(chan, task);
		return e;
	}
	if (task->mode == IST__WRAP_DROP) {
		task->counted = true;
		chan->extra++;
	}
	task_link(chan, task);
	*out = task;
	return IST_OK;
}

static bool
late_enough(const struct ist_chan *chan, const struct ist_task *task)
{
	return task->not_before == 0 || ist__now() >= task->not_before || atomic_load(&chan->why);
}

/* Ends that only we know of must show in ended: a delay that is over, a stalled task that was aborted. */
static void
count_ends(struct ist_chan *chan)
{
	ist_err gone = atomic_load(&chan->why);

	for (struct ist_task *t = chan->tasks; t; t = t->next) {
		bool now = t->mode == IST__WRAP_STALL ? gone != IST_OK : t->not_before != 0 && late_enough(chan, t);

		if (now && !t->counted) {
			t->counted = true;
			chan->extra++;
		}
	}
}

static ist_err
wrap_progress(struct ist_chan *chan, struct ist_progress *out)
{
	ist_err e = chan->wrap->inner->ops.progress(chan->inner, out);

	count_ends(chan);
	out->ended += chan->extra;
	return e;
}

static ist_err
wrap_arm(struct ist_chan *chan, int32_t *fd)
{
	bool waits = false;
	int32_t inner = -1;
	ist_err e;

	for (struct ist_task *t = chan->tasks; t; t = t->next) {
		if (t->mode == IST__WRAP_STALL && !t->counted && atomic_load(&chan->why))
			return IST_BUSY;
		waits |= t->not_before != 0 && !t->counted;
	}
	e = chan->wrap->inner->ops.arm(chan->inner, &inner);
	if (!e)
		*fd = waits ? -1 : inner; /* a delay has no descriptor: progress must look now and then */
	return e;
}

static uint64_t
bytes_of(const struct ist_task *task)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < task->n; i++)
		sum += task->ops[i].src.bytes + task->ops[i].dst.bytes;
	return sum;
}

static ist_err
test_local(struct ist_chan *chan, struct ist_task *task, struct ist_status *out)
{
	ist_err gone = atomic_load(&chan->why);

	if (task->mode == IST__WRAP_DROP) {
		out->state = IST_DONE;
		out->moved = bytes_of(task);
		return IST_OK;
	}
	out->state = gone ? IST_DONE : IST_PENDING;
	return gone;
}

static ist_err
wrap_test(struct ist_chan *chan, struct ist_task *task, struct ist_status *out)
{
	ist_err e;

	if (!task->inner) {
		e = test_local(chan, task, out);
	} else {
		e = chan->wrap->inner->ops.test(chan->inner, task->inner, out);
		if (!e && out->state != IST_PENDING && !late_enough(chan, task)) {
			out->state = IST_PENDING;
			return IST_OK;
		}
	}
	if ((e || out->state >= IST_DONE) && !task->seen) {
		task->seen = true;
		if (chan->wrap->hooks->done)
			chan->wrap->hooks->done(chan, task, e, out);
	}
	if (task->view.addr)
		out->view = task->view;
	return e;
}

static void
wrap_task_free(struct ist_chan *chan, struct ist_task *task)
{
	struct ist_task **at = &chan->tasks;

	while (*at && *at != task)
		at = &(*at)->next;
	if (*at)
		*at = task->next;
	if (task->inner)
		chan->wrap->inner->ops.task_free(chan->inner, task->inner);
	task_end(chan, task);
}

static void
wrap_abort(struct ist_chan *chan, ist_err why)
{
	ist_err none = IST_OK;

	atomic_compare_exchange_strong(&chan->why, &none, why); /* before the inner one wakes the sleeper */
	chan->wrap->inner->ops.abort(chan->inner, why);
}

static ist_err
wrap_close(struct ist_chan *chan, struct ist_status *why)
{
	const struct ist__wrap *wrap;
	ist_err e;

	if (!chan)
		return IST_OK;
	wrap = chan->wrap;
	tell(chan, "close", IST_OK);
	e = wrap->inner->ops.close(chan->inner, why); /* frees what the inner one lent, temp among it */
	while (chan->tasks) {
		struct ist_task *t = chan->tasks;

		chan->tasks = t->next;
		if (t->temp_is_chan)
			t->temp = NULL;
		task_end(chan, t);
	}
	ist__free(wrap->ctx, chan);
	return e;
}

static ist_err
wrap_region(struct ist_chan *chan, const struct ist_buf *buf, uint32_t flags, struct ist_region **out, struct ist_wire *handle,
	struct ist_task **task, struct ist_status *why)
{
	struct ist_task *ours = task_new(chan, NULL, 0);

	if (!ours)
		return IST_NO_MEMORY;
	return adopt(chan, "region", chan->wrap->inner->ops.region(chan->inner, buf, flags, out, handle, &ours->inner, why), ours, task);
}

static void
wrap_region_free(struct ist_chan *chan, struct ist_region *region)
{
	chan->wrap->inner->ops.region_free(chan->inner, region);
}

static ist_err
wrap_drop(struct ist_chan *chan, uint32_t rank)
{
	ist_err e = chan->wrap->inner->ops.drop(chan->inner, rank);

	tell(chan, "drop", e);
	return e;
}

static ist_err
wrap_alloc(struct ist_chan *chan, uint64_t bytes, uint32_t mem, int32_t device, void **out, struct ist_status *why)
{
	return chan->wrap->inner->ops.alloc(chan->inner, bytes, mem, device, out, why);
}

static void
wrap_free(struct ist_chan *chan, void *addr)
{
	chan->wrap->inner->ops.free(chan->inner, addr);
}

static const struct ist_backend wrap_table = {
	.struct_size = sizeof(struct ist_backend),
	.abi = IST_BACKEND_ABI,
	.probe = wrap_probe,
	.open = wrap_open,
	.offer = wrap_offer,
	.connect = wrap_connect,
	.start = wrap_start,
	.progress = wrap_progress,
	.arm = wrap_arm,
	.test = wrap_test,
	.task_free = wrap_task_free,
	.abort = wrap_abort,
	.close = wrap_close,
	.region = wrap_region,
	.region_free = wrap_region_free,
	.drop = wrap_drop,
	.alloc = wrap_alloc,
	.free = wrap_free,
};

ist_err
ist__wrap_new(const struct ist__ctx *ctx, const char *name, const char *kind, const char *spec,
	const struct ist__admitted *inner, struct ist__wrap **out, struct ist_error *err)
{
	struct ist__wrap *wrap = ist__alloc(ctx, sizeof(*wrap));
	ist_err e;

	if (!wrap)
		return ist__fail_memory(err, "backend_get");
	wrap->inner = inner;
	wrap->ctx = ctx;
	wrap->made = *inner;
	wrap->made.ops = wrap_table;
	wrap->made.ops.self = wrap;
	wrap->made.ops.name = kind;
	wrap->made.builtin = false;
	wrap->made.name = ist__strdup(ctx, name);
	e = !wrap->made.name ? ist__fail_memory(err, "backend_get") : *kind == 't' ? ist__wrap_trace(wrap, spec, err) :
		ist__wrap_fault(wrap, spec, err);
	if (e) {
		ist__wrap_free(wrap);
		return e;
	}
	*out = wrap;
	return IST_OK;
}

void
ist__wrap_free(struct ist__wrap *wrap)
{
	if (!wrap)
		return;
	if (wrap->hooks && wrap->hooks->free)
		wrap->hooks->free(wrap);
	ist__free(wrap->ctx, (void *)(uintptr_t)wrap->made.name);
	ist__free(wrap->ctx, wrap);
}
