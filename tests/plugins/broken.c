/* SPDX-License-Identifier: Apache-2.0
 *
 * broken.c - the example's backend with one fault planted, chosen with -DBUG_NAME. Each fault shows only where one check
 * looks for it, so that a test can say by name which checks must fail.
 */
#include <isthmus/backend.h>
#undef IST_BACKEND_DEFINE
#define IST_BACKEND_DEFINE(table) _Static_assert(sizeof(table) > 0, "")
#include "../../examples/03_backend.c"

#include <stdlib.h>
#include <sys/socket.h>

/* Planted faults happen once for each operation: at is not looked at any more when a part is over. */
static int
first_time(struct part *part)
{
	int first = part->at != UINT64_MAX;

	part->at = UINT64_MAX;
	return first;
}

#ifdef BUG_LAST_BYTE
static ist_err
broken_test(struct ist_chan *c, struct ist_task *task, struct ist_status *out)
{
	ist_err e = wire_test(c, task, out);

	for (uint64_t i = 0; !e && out->state == IST_DONE && i < task->n; i++) {
		struct ist_buf *dst = &task->parts[i].op.dst;

		if (task->parts[i].op.kind == IST_OP_RECV && dst->bytes == 1048577 && first_time(&task->parts[i]))
			((uint8_t *)dst->addr)[dst->bytes - 1] ^= 1;
	}
	return e;
}
#define TEST broken_test
#endif

#ifdef BUG_WRITES_PAST
static ist_err
broken_test(struct ist_chan *c, struct ist_task *task, struct ist_status *out)
{
	ist_err e = wire_test(c, task, out);

	for (uint64_t i = 0; !e && out->state == IST_DONE && i < task->n; i++) {
		struct ist_buf *dst = &task->parts[i].op.dst;

		if (task->parts[i].op.kind == IST_OP_RECV && dst->bytes == 4097 && first_time(&task->parts[i]))
			((uint8_t *)dst->addr)[dst->bytes] ^= 1;
	}
	return e;
}
#define TEST broken_test
#endif

#ifdef BUG_REORDER
static ist_err
broken_start(struct ist_chan *c, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	ist_err e = wire_start(c, ops, n, out, why);
	struct part *p = e || n != 1 || ops[0]->kind != IST_OP_SEND ? NULL : c->peers[ops[0]->peer].send.first;

	for (; p && p->next; p = p->next) /* the newest two change places, their numbers don't */
		if (!p->next->next && p->at == 0 && p->op.src.bytes == p->next->op.src.bytes) {
			void *addr = p->op.src.addr;

			p->op.src.addr = p->next->op.src.addr;
			p->next->op.src.addr = addr;
		}
	return e;
}
#define START broken_start
#endif

#ifdef BUG_BLOCKS
static ist_err
broken_start(struct ist_chan *c, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	if (n == 2 && ops[0]->src.bytes == 24 << 20)
		usleep(250000);
	return wire_start(c, ops, n, out, why);
}
#define START broken_start
#endif

#ifdef BUG_NO_MOVE
static ist_err
broken_start(struct ist_chan *c, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	struct ist_op copy[2];
	const struct ist_op *list[2] = { &copy[0], &copy[1] };

	if (n != 2 || ops[0]->src.bytes != (64 << 20) + 5)
		return wire_start(c, ops, n, out, why);
	copy[0] = *ops[0];
	copy[1] = *ops[1];
	copy[0].src.bytes = copy[1].dst.bytes = 0;
	return wire_start(c, list, n, out, why);
}
#define START broken_start
#endif

#ifdef BUG_LEAKS_MEMORY
static ist_err
broken_start(struct ist_chan *c, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	if (!c->host->alloc(c->host->ctx, 24, 16, IST_MEM_HOST, -1))
		return IST_NO_MEMORY;
	return wire_start(c, ops, n, out, why);
}
#define START broken_start
#endif

#ifdef BUG_LEAKS_FD
static ist_err
broken_start(struct ist_chan *c, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	if (eventfd(0, EFD_CLOEXEC) < 0)
		return IST_LIMIT;
	return wire_start(c, ops, n, out, why);
}
#define START broken_start
#endif

#ifdef BUG_BAD_CODE
static ist_err
broken_start(struct ist_chan *c, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	return n == 1 && ops[0]->peer >= c->size ? 12345 : wire_start(c, ops, n, out, why);
}
#define START broken_start
#endif

#ifdef BUG_WRITES_OUTPUT
static ist_err
broken_start(struct ist_chan *c, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	ist_err e = wire_start(c, ops, n, out, why);

	if (e)
		*out = NULL;
	return e;
}
#define START broken_start
#endif

#ifdef BUG_IGNORES_ABORT
static void
broken_abort(struct ist_chan *c, ist_err why)
{
	(void)c, (void)why;
}
#define ABORT broken_abort
#endif

#ifdef BUG_NO_MISMATCH
static ist_err
broken_test(struct ist_chan *c, struct ist_task *task, struct ist_status *out)
{
	ist_err e = wire_test(c, task, out);

	return e == IST_MISMATCH ? IST_OK : e;
}
#define TEST broken_test
#endif

#ifdef BUG_LOST_WAKE_UP
static ist_err
broken_arm(struct ist_chan *c, int32_t *fd)
{
	*fd = c->wake;
	return IST_OK;
}
#define ARM broken_arm
#endif

#ifdef BUG_NEVER_SLEEPS
static ist_err
broken_arm(struct ist_chan *c, int32_t *fd)
{
	(void)c, (void)fd;
	return IST_BUSY;
}
#define ARM broken_arm
#endif

#ifdef BUG_MOVED_FALLS
static ist_err
broken_progress(struct ist_chan *c, struct ist_progress *out)
{
	ist_err e = wire_progress(c, out);

	out->moved = out->moved > 1 << 20 ? out->moved % (1 << 20) : out->moved;
	return e;
}
#define PROGRESS broken_progress
#endif

#ifdef BUG_CRASHES
static ist_err
broken_connect(struct ist_chan *c, const struct ist_connect *args, struct ist_task **out, struct ist_status *why)
{
	if (args->all[0].bytes == 1)
		abort();
	return wire_connect(c, args, out, why);
}
#define CONNECT broken_connect
#endif

/* A broadcast of its own, made of the example's messages, in which not everybody gets what is his: all get it, or the last
 * one does not. */
#if defined(BUG_ALL_TAKE) || defined(BUG_TAKER_LEFT_OUT)
enum { CAST_RANKS = 8 };

static int
gets(const struct ist_chan *c, const struct ist_op *op, uint32_t rank)
{
	int takes = rank != op->peer && (!op->takers || op->takers[0] >> rank & 1);

#ifdef BUG_ALL_TAKE
	return takes || (rank != op->peer && rank + 1 == c->size && op->src.bytes + op->dst.bytes == 100003);
#else
	return takes && !(rank + 1 == c->size && op->takers && op->src.bytes + op->dst.bytes == 100003);
#endif
}

static ist_err
broken_start(struct ist_chan *c, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	struct ist_op moves[CAST_RANKS];
	const struct ist_op *list[CAST_RANKS];
	uint64_t k = 0;

	if (n != 1 || ops[0]->kind != IST_OP_BROADCAST)
		return wire_start(c, ops, n, out, why);
	for (uint32_t r = 0; r < c->size && r < CAST_RANKS; r++) {
		uint32_t to = ops[0]->peer == c->rank ? r : c->rank;

		if (!gets(c, ops[0], to) || (ops[0]->peer != c->rank && r != c->rank))
			continue;
		moves[k] = *ops[0];
		moves[k].kind = ops[0]->peer == c->rank ? IST_OP_SEND : IST_OP_RECV;
		moves[k].peer = ops[0]->peer == c->rank ? r : ops[0]->peer;
		if (moves[k].kind == IST_OP_RECV && !moves[k].dst.addr)
			moves[k].dst.addr = malloc(moves[k].dst.bytes + 1); /* left lying about */
		list[k] = &moves[k];
		k++;
	}
	return wire_start(c, list, k, out, why);
}

static void
broken_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_probe *out)
{
	wire_probe(self, host, level, out);
	out->native_ops |= 1u << IST_OP_BROADCAST;
	out->traits |= IST_TRAIT_TAKERS;
}
#define START broken_start
#define PROBE broken_probe
#endif

#ifdef BUG_CLOSE_WAITS
static ist_err
broken_close(struct ist_chan *c, struct ist_status *why)
{
	for (struct ist_task *t = c ? c->tasks : NULL; t; t = t->next)
		while (t->n == 1 && t->state != IST_DONE && t->parts[0].op.src.bytes == 64 << 20)
			usleep(1000);
	return wire_close(c, why);
}
#define CLOSE broken_close
#endif

#ifndef PROBE
#define PROBE wire_probe
#endif
#ifndef TEST
#define TEST wire_test
#endif
#ifndef START
#define START wire_start
#endif
#ifndef ABORT
#define ABORT wire_abort
#endif
#ifndef ARM
#define ARM wire_arm
#endif
#ifndef PROGRESS
#define PROGRESS wire_progress
#endif
#ifndef CONNECT
#define CONNECT wire_connect
#endif
#ifndef CLOSE
#define CLOSE wire_close
#endif

static const struct ist_backend broken = {
	.struct_size = sizeof(struct ist_backend),
	.abi = IST_BACKEND_ABI,
	.name = "broken",
	.probe = PROBE,
	.open = wire_open,
	.offer = wire_offer,
	.connect = CONNECT,
	.start = START,
	.progress = PROGRESS,
	.arm = ARM,
	.test = TEST,
	.task_free = wire_task_free,
	.abort = ABORT,
	.close = CLOSE,
};

const struct ist_backend *
isthmus_backend_v1(void)
{
	(void)first_time;
	(void)&wire;
	return &broken;
}
