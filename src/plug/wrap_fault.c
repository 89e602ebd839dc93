/* SPDX-License-Identifier: Apache-2.0
 *
 * wrap_fault.c - "fault:SPEC:NAME": breaks what a backend does, for tests. SPEC is a comma separated list of
 *   flip[=N]    one byte of the Nth payload of 64 KiB or more arrives changed; at a sender in a copy of what it sends
 *   fail[=N]    the Nth start fails
 *   stall[=N]   from the Nth start on nothing ends, until an abort
 *   drop[=N]    from the Nth start on all is reported as done, nothing moves
 *   delay=MS    a start is not seen to end before MS milliseconds have passed
 * N counts from 1, the default. Only host memory can be flipped.
 */
#include "plug/wrap.h"

#include "base/clock.h"
#include "base/fail.h"

#include <isthmus.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define OP "backend_get"

enum { FLIP_MIN = 65536 };

struct fault {
	uint64_t flip, fail, stall, drop, delay; /* 0: not asked for */
};

static bool
is_host(const struct ist_buf *buf)
{
	return buf->mem == IST_MEM_HOST || buf->mem == IST_MEM_PINNED;
}

static bool
sends(const struct ist_chan *chan, const struct ist_op *op)
{
	return op->kind == IST_OP_SEND || (op->kind == IST_OP_BROADCAST && op->peer == chan->rank);
}

static bool
receives(const struct ist_chan *chan, const struct ist_op *op)
{
	return op->kind == IST_OP_RECV || (op->kind == IST_OP_BROADCAST && op->peer != chan->rank);
}

/* True for the one payload that is to be damaged. */
static bool
is_it(struct ist_chan *chan, const struct fault *f, const struct ist_buf *buf)
{
	return f->flip && buf->bytes >= FLIP_MIN && is_host(buf) && ++chan->flips == f->flip;
}

/* mask: another bit at senders than at receivers, since two flips of one bit undo each other. */
static void
flip_at(const struct ist_chan *chan, uint8_t *bytes, uint64_t n, uint8_t mask)
{
	bytes[n / 2] ^= mask;
	ist__log(chan->wrap->ctx, IST_LOG_WARN, "fault: flipped a bit of byte %llu of %llu at rank %u", (unsigned long long)(n / 2),
		(unsigned long long)n, chan->rank);
}

/* A src is never written through, so that what is sent is a damaged copy of it. */
static ist_err
flip_sent(struct ist_chan *chan, struct ist_task *task, struct ist_op *op)
{
	const struct ist_backend *inner = &chan->wrap->inner->ops;
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };

	if (op->flags & IST_OP_VIEW) { /* a view's root must send from the channel's own memory */
		ist_err e = inner->alloc(chan->inner, op->src.bytes, op->src.mem, op->src.device, &task->temp, &why);

		if (e)
			return e;
		task->temp_is_chan = true;
	} else {
		task->temp = ist__alloc_aligned(chan->wrap->ctx, op->src.bytes, 64);
		if (!task->temp)
			return IST_NO_MEMORY;
	}
	memcpy(task->temp, op->src.addr, op->src.bytes);
	op->src.addr = task->temp;
	op->src.how = 0;
	flip_at(chan, task->temp, op->src.bytes, 0x40);
	return IST_OK;
}

static ist_err
fault_start(struct ist_chan *chan, struct ist_task *task, struct ist_status *why)
{
	const struct fault *f = chan->wrap->state;
	ist_err e = IST_OK;

	if (f->fail && task->no == f->fail) {
		strcpy(why->text, "a fault was asked for: this start fails");
		return IST_IO;
	}
	if (f->stall && task->no >= f->stall)
		task->mode = IST__WRAP_STALL;
	else if (f->drop && task->no >= f->drop)
		task->mode = IST__WRAP_DROP;
	if (f->delay)
		task->not_before = ist__now() + (int64_t)f->delay * IST__MS;
	if (task->mode != IST__WRAP_PASS)
		return IST_OK;
	for (uint64_t i = 0; i < task->n && !e; i++)
		if (!task->temp && sends(chan, &task->ops[i]) && is_it(chan, f, &task->ops[i].src))
			e = flip_sent(chan, task, &task->ops[i]);
	return e;
}

static void
flip_received(struct ist_chan *chan, struct ist_task *task, const struct ist_op *op, const struct ist_status *status)
{
	const void *lent = (op->flags & IST_OP_VIEW) ? status->view.addr : NULL;

	if (lent && lent != op->dst.addr) { /* another member's memory: damage a copy, in the receiver's own room */
		uint64_t n = status->view.bytes < op->dst.bytes ? status->view.bytes : op->dst.bytes;

		memcpy(op->dst.addr, lent, n);
		task->view = op->dst;
		task->view.bytes = n;
	}
	flip_at(chan, op->dst.addr, op->dst.bytes, 0x20);
}

static void
fault_done(struct ist_chan *chan, struct ist_task *task, ist_err result, const struct ist_status *status)
{
	const struct fault *f = chan->wrap->state;

	if (result || task->mode != IST__WRAP_PASS)
		return;
	for (uint64_t i = 0; i < task->n; i++)
		if (receives(chan, &task->ops[i]) && is_it(chan, f, &task->ops[i].dst))
			flip_received(chan, task, &task->ops[i], status);
}

static void
fault_free(struct ist__wrap *wrap)
{
	ist__free(wrap->ctx, wrap->state);
}

static const struct ist__wrap_hooks fault_hooks = { .start = fault_start, .done = fault_done, .free = fault_free };

/* One "key" or "key=N" of n bytes. */
static bool
parse_one(struct fault *f, const char *at, size_t n)
{
	static const struct {
		const char *key;
		size_t offset;
		uint64_t otherwise; /* 0: a number is needed */
	} keys[] = {
		{ "flip", offsetof(struct fault, flip), 1 },
		{ "fail", offsetof(struct fault, fail), 1 },
		{ "stall", offsetof(struct fault, stall), 1 },
		{ "drop", offsetof(struct fault, drop), 1 },
		{ "delay", offsetof(struct fault, delay), 0 },
	};
	const char *eq = memchr(at, '=', n);
	size_t key = eq ? (size_t)(eq - at) : n;

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		uint64_t v = keys[i].otherwise;
		char *end = NULL;

		if (strlen(keys[i].key) != key || memcmp(at, keys[i].key, key) != 0)
			continue;
		if (eq) {
			v = isdigit((unsigned char)eq[1]) && n - key < 12 ? strtoull(eq + 1, &end, 10) : 0;
			if (end != at + n)
				return false;
		}
		if (v == 0)
			return false;
		memcpy((char *)f + keys[i].offset, &v, sizeof(v));
		return true;
	}
	return false;
}

ist_err
ist__wrap_fault(struct ist__wrap *wrap, const char *spec, struct ist_error *err)
{
	struct fault f = { .flip = 0 }, *state;
	const char *at = spec;

	do {
		size_t n = strcspn(at, ",");

		if (!parse_one(&f, at, n))
			return ist__fail(err, IST_BAD_CONFIG, OP, "\"%.*s\" in fault:%s is not flip[=N], fail[=N], stall[=N], drop[=N] or delay=MS",
				(int)n, at, spec);
		at += n + (at[n] == ',');
	} while (*at);
	state = ist__alloc(wrap->ctx, sizeof(*state));
	if (!state)
		return ist__fail_memory(err, OP);
	*state = f;
	wrap->state = state;
	wrap->hooks = &fault_hooks;
	return IST_OK;
}
