/* SPDX-License-Identifier: Apache-2.0
 *
 * ops.c - what an operation is in NCCL's terms. Moves are bytes, counted in bytes; what the library has no call for is sends and
 * receives of one group.
 */
#include "backends/nccl/chan.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ---- what can be done ---- */

/* -1: the library does not know it. Not all that move can be added up. */
static int
type_of(uint32_t dtype, int version)
{
	static const int8_t types[] = { [IST_I8] = NCCL_I8 + 1, [IST_U8] = NCCL_U8 + 1, [IST_I32] = NCCL_I32 + 1, [IST_U32] = NCCL_U32 + 1,
		[IST_I64] = NCCL_I64 + 1, [IST_U64] = NCCL_U64 + 1, [IST_F16] = NCCL_F16 + 1, [IST_BF16] = NCCL_BF16 + 1, [IST_F32] = NCCL_F32 + 1,
		[IST_F64] = NCCL_F64 + 1, [IST_F8E4M3] = NCCL_F8E4M3 + 1, [IST_F8E5M2] = NCCL_F8E5M2 + 1 };

	if (dtype >= sizeof(types) || ((dtype == IST_F8E4M3 || dtype == IST_F8E5M2) && version < NCCL_FP8))
		return -1;
	return types[dtype] - 1;
}

static int
reduce_of(uint32_t reduce)
{
	static const int8_t ops[] = { [IST_SUM] = NCCL_SUM + 1, [IST_PROD] = NCCL_PROD + 1, [IST_MIN] = NCCL_MIN + 1, [IST_MAX] = NCCL_MAX + 1 };

	return reduce < sizeof(ops) ? ops[reduce] - 1 : -1;
}

static uint32_t
elem_bytes(int type)
{
	static const uint8_t bytes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };

	return bytes[type];
}

static bool
is_pair(const struct ist_op *op)
{
	return op->kind == IST_OP_SEND || op->kind == IST_OP_RECV;
}

static bool
is_reduction(const struct ist_op *op)
{
	return op->kind == IST_OP_ALL_REDUCE || op->kind == IST_OP_REDUCE_SCATTER;
}

static uint64_t
parts(const struct ist_chan *chan, bool many)
{
	return many ? chan->c->size : 1;
}

/* Bytes of a member's part; what src and dst must hold here. */
static uint64_t
part_bytes(const struct ist_chan *chan, const struct ist_op *op, uint64_t *src, uint64_t *dst)
{
	bool root = op->peer == chan->c->rank;
	uint64_t n = op->src.bytes;

	*src = *dst = 0;
	switch (op->kind) {
	case IST_OP_SEND: *src = n; break;
	case IST_OP_RECV: *dst = n = op->dst.bytes; break;
	case IST_OP_BROADCAST: n = root ? op->src.bytes : op->dst.bytes, *src = root ? n : 0, *dst = root ? 0 : n; break;
	case IST_OP_GATHER: *src = n, *dst = root ? n * chan->c->size : 0; break;
	case IST_OP_SCATTER: *dst = n = op->dst.bytes, *src = root ? n * chan->c->size : 0; break;
	case IST_OP_ALL_GATHER: *src = n, *dst = n * chan->c->size; break;
	case IST_OP_REDUCE_SCATTER: *dst = n = op->dst.bytes, *src = n * chan->c->size; break;
	case IST_OP_ALL_TO_ALL: *src = *dst = n, n /= chan->c->size; break;
	case IST_OP_ALL_REDUCE: *src = *dst = n; break;
	default: n = 0;
	}
	return n;
}

static bool
buf_right(const struct ist_chan *chan, const struct ist_buf *buf, uint64_t bytes)
{
	return bytes == 0 || (buf->bytes == bytes && buf->addr && buf->mem == IST_MEM_CUDA && (buf->device < 0 || buf->device == chan->c->index));
}

static ist_err
check_bufs(const struct ist_chan *chan, const struct ist_op *op, struct ist_status *why)
{
	uint64_t src, dst, n = part_bytes(chan, op, &src, &dst), whole;
	bool many = op->kind != IST_OP_SEND && op->kind != IST_OP_RECV;

	if (n > INT64_MAX || __builtin_mul_overflow(n, parts(chan, many), &whole) || !buf_right(chan, &op->src, src) || !buf_right(chan, &op->dst, dst) ||
	    (op->kind == IST_OP_ALL_TO_ALL && n * chan->c->size != src))
		return ist__nccl_say(why, IST_INVALID_ARGUMENT, IST_NO_RANK, 0, "a buffer of operation %u is not as long as it must be, or not memory of device %d",
			op->kind, chan->c->index);
	return IST_OK;
}

static ist_err
check_reduction(const struct ist_chan *chan, const struct ist_op *op, struct ist_status *why)
{
	int type = type_of(op->dtype, chan->version);
	uint64_t src, dst, n = part_bytes(chan, op, &src, &dst);

	if (type < 0 || reduce_of(op->reduce) < 0)
		return ist__nccl_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "reduction %u of dtype %u: NCCL %d.%d does not know it", op->reduce, op->dtype,
			chan->version / 10000, chan->version / 100 % 100);
	if (n % elem_bytes(type) != 0)
		return ist__nccl_say(why, IST_INVALID_ARGUMENT, IST_NO_RANK, 0, "%llu bytes are no whole number of elements", (unsigned long long)n);
	return IST_OK;
}

ist_err
ist__nccl_check(const struct ist_chan *chan, const struct ist_op *op, struct ist_status *why)
{
	uint32_t known = NCCL_OPS | (chan->c->calls->suspend && chan->c->calls->resume ? NCCL_NAPS : 0);

	if (op->kind > IST_OP_RESUME || !(known >> op->kind & 1) || (op->flags & IST_MUST && op->flags & ~IST_MUST))
		return ist__nccl_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "operation %u, flags 0x%x", op->kind, op->flags);
	if (op->stream == (void *)2)
		return ist__nccl_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "a thread's own default stream means another one in every thread");
	if (op->peer >= chan->c->size)
		return ist__nccl_say(why, IST_INVALID_ARGUMENT, IST_NO_RANK, 0, "peer %u of %u", op->peer, chan->c->size);
	if (is_reduction(op)) {
		ist_err e = check_reduction(chan, op, why);

		if (e)
			return e;
	}
	return check_bufs(chan, op, why);
}

/* ---- heads ---- */

static struct nccl_head *
head_of(const struct ist_task *task, uint64_t i)
{
	return &task->heads[i / NCCL_HEADS][i % NCCL_HEADS];
}

/* False: no memory. */
bool
ist__nccl_ready_heads(struct ist_chan *chan, struct ist_task *task)
{
	uint64_t pieces = (task->n + NCCL_HEADS - 1) / NCCL_HEADS;
	bool any = false;

	for (uint64_t i = 0; i < task->n; i++)
		any = any || is_pair(&task->ops[i]);
	if (!any || !chan->opt.verify)
		return true;
	task->heads = chan->host->alloc(chan->host->ctx, pieces * sizeof(*task->heads), 16, IST_MEM_HOST, -1);
	if (!task->heads)
		return false;
	memset(task->heads, 0, pieces * sizeof(*task->heads));
	for (uint64_t i = 0; i < pieces; i++)
		if (!(task->heads[i] = ist__nccl_heads(chan->c)))
			return false;
	for (uint64_t i = 0; i < task->n; i++) {
		const struct ist_op *op = &task->ops[i];

		if (op->kind == IST_OP_SEND)
			*head_of(task, i) = (struct nccl_head){ .seq = NCCL_HEAD_WORD ^ op->seq, .bytes = NCCL_HEAD_WORD ^ op->src.bytes };
	}
	return true;
}

/* Of another length or another place in the order. */
static void
fail_head(struct ist_chan *chan, struct ist_task *task, const struct ist_op *op, uint64_t seq, uint64_t bytes)
{
	char text[200];

	chan->broken = seq != op->seq ? IST_ORDER_MISMATCH : IST_MISMATCH;
	if (seq != op->seq)
		snprintf(text, sizeof(text), "rank %u is at operation %llu, rank %u at %llu", op->peer, (unsigned long long)seq, chan->c->rank,
			(unsigned long long)op->seq);
	else
		snprintf(text, sizeof(text), "rank %u gives %llu bytes, rank %u expects %llu (operation %llu)", op->peer, (unsigned long long)bytes,
			chan->c->rank, (unsigned long long)op->dst.bytes, (unsigned long long)op->seq);
	ist__nccl_task_fail(chan, task, chan->broken, op->peer, 0, text);
}

/* A message that does not fit may leave the library waiting for ever: so this looks while it works as well. */
void
ist__nccl_look_heads(struct ist_chan *chan, struct ist_task *task)
{
	for (uint64_t i = 0; task->heads && i < task->n && !task->result; i++) {
		const struct ist_op *op = &task->ops[i];
		uint64_t seq, bytes;

		if (op->kind != IST_OP_RECV)
			continue;
		seq = __atomic_load_n(&head_of(task, i)->seq, __ATOMIC_ACQUIRE); /* pair with the device's writes */
		bytes = __atomic_load_n(&head_of(task, i)->bytes, __ATOMIC_ACQUIRE);
		if (task->step != NCCL_OVER && (seq == 0 || bytes == 0))
			continue;
		seq ^= NCCL_HEAD_WORD;
		bytes ^= NCCL_HEAD_WORD;
		if (seq != op->seq || bytes != op->dst.bytes)
			fail_head(chan, task, op, seq, bytes);
	}
}

/* ---- handing over ---- */

struct call {
	const struct nccl_calls *nccl;
	nccl_comm_t comm;
	void *stream;
	const struct ist_op *op;
	uint64_t n;
	uint32_t rank, size;
	char *spare; /* a byte to send, a byte to receive */
};

static int
both(int a, int b)
{
	return a != NCCL_SUCCESS ? a : b;
}

/* A message of nothing is one of a byte: its RECV waits for its SEND, as that of any other. */
static int
pair(const struct call *c, struct nccl_head *head)
{
	bool out = c->op->kind == IST_OP_SEND;
	char *addr = c->n > 0 ? (out ? c->op->src.addr : c->op->dst.addr) : c->spare + (out ? 0 : 1);
	size_t n = c->n > 0 ? c->n : 1;
	int peer = (int)c->op->peer, rc = NCCL_SUCCESS;

	if (head)
		rc = out ? c->nccl->send(head, sizeof(*head), NCCL_U8, peer, c->comm, c->stream) :
			c->nccl->recv(head, sizeof(*head), NCCL_U8, peer, c->comm, c->stream);
	return both(rc, out ? c->nccl->send(addr, n, NCCL_U8, peer, c->comm, c->stream) : c->nccl->recv(addr, n, NCCL_U8, peer, c->comm, c->stream));
}

static int
gather_by_pairs(const struct call *c)
{
	int rc = c->nccl->send(c->op->src.addr, c->n, NCCL_U8, (int)c->op->peer, c->comm, c->stream);

	for (uint32_t r = 0; r < c->size && c->op->peer == c->rank; r++)
		rc = both(rc, c->nccl->recv((char *)c->op->dst.addr + r * c->n, c->n, NCCL_U8, (int)r, c->comm, c->stream));
	return rc;
}

static int
scatter_by_pairs(const struct call *c)
{
	int rc = c->nccl->recv(c->op->dst.addr, c->n, NCCL_U8, (int)c->op->peer, c->comm, c->stream);

	for (uint32_t r = 0; r < c->size && c->op->peer == c->rank; r++)
		rc = both(rc, c->nccl->send((const char *)c->op->src.addr + r * c->n, c->n, NCCL_U8, (int)r, c->comm, c->stream));
	return rc;
}

static int
all_to_all_by_pairs(const struct call *c)
{
	int rc = NCCL_SUCCESS;

	for (uint32_t r = 0; r < c->size; r++) {
		rc = both(rc, c->nccl->send((const char *)c->op->src.addr + r * c->n, c->n, NCCL_U8, (int)r, c->comm, c->stream));
		rc = both(rc, c->nccl->recv((char *)c->op->dst.addr + r * c->n, c->n, NCCL_U8, (int)r, c->comm, c->stream));
	}
	return rc;
}

static int
reduction(const struct call *c, int version)
{
	const struct ist_op *op = c->op;
	int type = type_of(op->dtype, version), what = reduce_of(op->reduce);
	size_t n = c->n / elem_bytes(type);

	return op->kind == IST_OP_ALL_REDUCE ? c->nccl->all_reduce(op->src.addr, op->dst.addr, n, type, what, c->comm, c->stream) :
		c->nccl->reduce_scatter(op->src.addr, op->dst.addr, n, type, what, c->comm, c->stream);
}

static int
collective(const struct call *c, int version)
{
	bool native = version >= NCCL_ALL_NATIVE && c->nccl->all_to_all && c->nccl->gather && c->nccl->scatter;
	const struct ist_op *op = c->op;
	const void *src = op->src.addr;
	void *dst = op->dst.addr;
	int root = (int)op->peer;

	switch (op->kind) {
	case IST_OP_BROADCAST:
		return c->nccl->broadcast(root == (int)c->rank ? src : dst, root == (int)c->rank ? op->src.addr : dst, c->n, NCCL_U8, root, c->comm, c->stream);
	case IST_OP_ALL_GATHER:
		return c->nccl->all_gather(src, dst, c->n, NCCL_U8, c->comm, c->stream);
	case IST_OP_GATHER:
		return native ? c->nccl->gather(src, dst, c->n, NCCL_U8, root, c->comm, c->stream) : gather_by_pairs(c);
	case IST_OP_SCATTER:
		return native ? c->nccl->scatter(src, dst, c->n, NCCL_U8, root, c->comm, c->stream) : scatter_by_pairs(c);
	case IST_OP_ALL_TO_ALL:
		return native ? c->nccl->all_to_all(src, dst, c->n, NCCL_U8, c->comm, c->stream) : all_to_all_by_pairs(c);
	default:
		return reduction(c, version);
	}
}

/* Collectives of no bytes are nothing, on all members. */
static int
put(const struct ist_chan *chan, const struct ist_task *task, uint64_t i)
{
	const struct nccl_comm_state *s = chan->c;
	const struct ist_op *op = &task->ops[i];
	uint64_t src, dst;
	struct call c = { .nccl = s->calls, .comm = s->comm, .stream = op->stream ? op->stream : s->stream, .op = op,
		.n = part_bytes(chan, op, &src, &dst), .rank = s->rank, .size = s->size, .spare = (char *)(s->scratch + 1) };

	if (op->kind == IST_OP_BARRIER)
		return c.nccl->all_reduce(s->scratch, s->scratch, 1, NCCL_I32, NCCL_SUM, c.comm, c.stream);
	if (is_pair(op))
		return pair(&c, task->heads ? head_of(task, i) : NULL);
	return c.n > 0 ? collective(&c, chan->version) : NCCL_SUCCESS;
}

int
ist__nccl_enqueue(struct ist_chan *chan, struct ist_task *task)
{
	const struct nccl_calls *nccl = chan->c->calls;
	int rc, end;

	if (task->n == 1 && task->ops[0].kind == IST_OP_SUSPEND)
		return nccl->suspend(chan->c->comm, NCCL_SUSPEND_MEM);
	if (task->n == 1 && task->ops[0].kind == IST_OP_RESUME)
		return nccl->resume(chan->c->comm);
	rc = nccl->group_start();
	if (rc != NCCL_SUCCESS)
		return rc;
	for (uint64_t i = 0; i < task->n && (rc == NCCL_SUCCESS || rc == NCCL_IN_PROGRESS); i++)
		rc = put(chan, task, i);
	end = nccl->group_end(); /* also after a failure, or this thread would stay inside the group */
	return rc != NCCL_SUCCESS && rc != NCCL_IN_PROGRESS ? rc : end;
}
