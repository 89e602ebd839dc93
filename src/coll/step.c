/* SPDX-License-Identifier: Apache-2.0
 *
 * step.c - one operation on the line's thread: what it becomes (an operation of the backend, or steps of an algorithm),
 * issuing the steps, and reading how their tasks stand.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "coll/line_int.h"
#include "coll/reduce.h"

#include <string.h>

static bool
deserted(struct ist__line *line)
{
	return atomic_load(&line->deserted);
}

/* ---- the wire's sequence numbers: below 2^40, two ranges ---- */

#define PAIR_RANGE (UINT64_C(1) << 39)

static uint64_t
wire_seq(const struct ist__op *op, uint8_t tag)
{
	if (op->how == IST__PAIR)
		return PAIR_RANGE | (op->seq & (PAIR_RANGE - 1));
	return (op->seq & 0x7FFFFFFF) << 8 | tag;
}

/* ---- beginning ---- */

/* Makes it a composed one. False: it can't be; err says why. */
static bool
compose(struct ist__line *line, struct ist__op *op, struct ist_error *err)
{
	const struct ist_coll_args *a = &op->args;
	const struct ist__algorithm *algorithm = ist__compose(&line->choice, op->kind, op->n);
	const char *name = ist__kind_name(op->kind);
	bool device = (a->src.bytes > 0 && a->src.mem > IST_MEM_PINNED) || (a->dst.bytes > 0 && a->dst.mem > IST_MEM_PINNED);
	bool reduction = op->kind == IST_OP_ALL_REDUCE || op->kind == IST_OP_REDUCE_SCATTER;
	struct ist__run *run = &op->run;

	err->struct_size = sizeof(*err);
	if (!algorithm || (device && op->kind != IST_OP_BROADCAST) || (reduction && !ist__reduce_has(a->dtype, a->reduce))) {
		ist__fail(err, IST_UNSUPPORTED, name, "backend %s refuses it, and it can't be composed for this memory or dtype", line->args.name);
		return false;
	}
	if (!ist__op_make_room(line, op, a->takers)) {
		ist__fail_memory(err, name);
		return false;
	}
	*run = (struct ist__run){ .kind = op->kind, .rank = line->args.rank, .size = line->args.size, .root = a->peer,
		.dtype = a->dtype, .reduce = a->reduce, .elem = reduction ? ist__elem_bytes(a->dtype) : 1, .n = op->n,
		.src = a->src.addr, .dst = a->dst.addr, .takers = a->takers };
	run->max_moves = line->args.max_ops > 0 && line->args.max_ops < IST__MOVES ? (uint32_t)line->args.max_ops : IST__MOVES;
	algorithm->setup(run);
	if (run->tmp_bytes > line->scratch_bytes) {
		char *p = ist__alloc_aligned(&line->ctx, run->tmp_bytes, 64);

		if (!p) {
			ist__fail_memory(err, name);
			return false;
		}
		ist__free(&line->ctx, line->scratch);
		line->scratch = p;
		line->scratch_bytes = run->tmp_bytes;
	}
	run->tmp = line->scratch;
	op->algorithm = algorithm;
	op->how = IST__COMPOSED;
	return true;
}

static void
fail(struct ist__line *line, struct ist__op *op, const struct ist_error *err)
{
	op->failed = true;
	ist__line_fail(line, err);
}

void
ist__op_begin(struct ist__line *line, struct ist__op *op)
{
	struct ist_error err;

	op->since = line->now;
	line->door = op;
	if (op->kind == IST_OP_SEND || op->kind == IST_OP_RECV) {
		uint64_t *counts = op->kind == IST_OP_SEND ? line->sent : line->received;

		op->how = IST__PAIR;
		op->seq = counts[op->args.peer]++;
		return;
	}
	pthread_mutex_lock(&line->lock);
	op->seq = line->next_seq++; /* ist__line_checked looks for it */
	pthread_mutex_unlock(&line->lock);
	op->how = IST__NATIVE;
	op->view_native = (op->args.flags & IST_OP_VIEW) && (line->args.traits & IST_TRAIT_CAN_VIEW);
	if (ist__choose(&line->choice, op->kind, op->n) && !compose(line, op, &err)) {
		fail(line, op, &err);
		return;
	}
	if (op->compared) {
		uint8_t print[IST__PRINT_BYTES];

		ist__print_make(op->kind, &op->args, line->args.size, op->n, print);
		line->unsure += line->args.compare != NULL;
		line->args.entered(line->args.owner, op->seq, print);
	}
}

/* ---- errors of the backend ---- */

static void
plugin_error(struct ist__line *line, const struct ist__op *op, const char *slot, ist_err e, const struct ist_status *st,
	struct ist_error *err)
{
	char what[160];

	err->struct_size = sizeof(*err); /* the caller's is not set up: most never need it */
	ist__op_text(op, what, sizeof(what));
	if (!strcmp(ist_err_name(e), "UNKNOWN"))
		ist__fail(err, IST_BAD_PLUGIN, ist__kind_name(op->kind), "backend %s returned %d from %s, which is no error code", line->args.name, e,
			slot);
	else
		ist__fail(err, e, ist__kind_name(op->kind), "%s: backend %s: %.*s", what, line->args.name, (int)sizeof(st->text) - 1,
			st->text[0] ? st->text : ist_err_text(e));
	err->sys = st->sys;
	if (st->rank < line->args.size)
		ist__fail_rank(err, st->rank);
	if (e != IST_MISMATCH && e != IST_ORDER_MISMATCH)
		return;
	if (op->how == IST__PAIR)
		ist__fail_rank(err, op->args.peer);
	ist__fail_rank(err, line->args.rank); /* two disagree: this one, and the other */
}

/* A backend that sees members disagree knows bytes and numbers; the comparison of prints, which is on its way, knows who
 * does what, and the same on all members. It gets a moment to say so. */
static bool
await_comparison(struct ist__line *line, struct ist__op *op, ist_err e, const struct ist_error *err)
{
	if ((e != IST_MISMATCH && e != IST_ORDER_MISMATCH) || !op->compared || atomic_load(&op->checked))
		return false;
	op->failed = true;
	if (line->suspect_at == 0) {
		line->suspect = *err;
		line->suspect_at = line->now + IST__GRACE_NS;
	}
	return true;
}

static void
bad_plugin(struct ist__line *line, struct ist__op *op, const char *what)
{
	struct ist_error err = { .struct_size = sizeof(err) };

	ist__fail(&err, IST_BAD_PLUGIN, ist__kind_name(op->kind), "backend %s %s", line->args.name, what);
	fail(line, op, &err);
}

/* ---- issuing ---- */

/* What start did, to the one operation that was to be issued. */
enum outcome { ISSUED, LATER, REFUSED, FAILED };

static enum outcome
start(struct ist__line *line, struct ist__op *op, const struct ist_op *const *ops, uint64_t n, struct ist__leg *slot)
{
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	struct ist_task *task = NULL;
	struct ist_error err;
	ist_err e = line->ops->start(line->chan, ops, n, &task, &why);

	if (deserted(line))
		return FAILED;
	if (e == IST_BUSY) {
		line->retry = true;
		return LATER;
	}
	if (e == IST_UNSUPPORTED && op->how == IST__NATIVE)
		return REFUSED;
	line->busy = true;
	if (e == IST_OK && task) {
		*slot = (struct ist__leg){ .task = task, .begun = true };
		line->tasks++;
		return ISSUED;
	}
	why.text[sizeof(why.text) - 1] = 0;
	if (e == IST_OK) {
		bad_plugin(line, op, "started an operation without giving its task");
	} else {
		plugin_error(line, op, "start", e, &why, &err);
		fail(line, op, &err);
	}
	return FAILED;
}

static void
pump_whole(struct ist__line *line, struct ist__op *op)
{
	const struct ist_coll_args *a = &op->args;
	struct ist_op o = { .struct_size = sizeof(o), .kind = op->kind, .peer = a->peer, .dtype = a->dtype, .reduce = a->reduce,
		.flags = op->view_native ? IST_OP_VIEW : 0, .seq = wire_seq(op, 0), .stream = a->stream };
	const struct ist_op *list[] = { &o };
	struct ist_error err = { .struct_size = sizeof(err) };

	if (op->slots[0].begun)
		return;
	if (!ist__op_make_room(line, op, ist__op_native_takers(line, op))) {
		ist__fail_memory(&err, ist__kind_name(op->kind));
		fail(line, op, &err);
		return;
	}
	o.src = a->src;
	o.dst = a->dst;
	o.takers = ist__op_native_takers(line, op);
	if (start(line, op, list, 1, &op->slots[0]) != REFUSED)
		return;
	line->busy = true; /* something else is tried in the next turn, the same on all members */
	if (op->view_native)
		op->view_native = false;
	else if (!compose(line, op, &err)) {
		if (err.code == IST_UNSUPPORTED)
			ist__op_end(line, op, &err);
		else
			fail(line, op, &err);
	}
}

/* Where the bytes of a move lie, in the caller's words where they are the caller's. */
static struct ist_buf
buf_of(const struct ist__op *op, void *addr, uint64_t bytes)
{
	const struct ist_coll_args *a = &op->args;
	const struct ist_buf *whole = NULL;
	uintptr_t p = (uintptr_t)addr, tmp = (uintptr_t)op->run.tmp;

	if (bytes > 0 && !(tmp && p >= tmp && p - tmp < op->run.tmp_bytes)) {
		uintptr_t src = (uintptr_t)a->src.addr;

		whole = a->src.bytes > 0 && p >= src && p - src < a->src.bytes ? &a->src : &a->dst;
	}
	if (!whole)
		return (struct ist_buf){ .addr = addr, .bytes = bytes, .device = -1 };
	return (struct ist_buf){ .addr = addr, .bytes = bytes, .mem = whole->mem, .how = whole->how, .device = whole->device };
}

static enum outcome
start_moves(struct ist__line *line, struct ist__op *op, const struct ist__step *step, struct ist__leg *slot)
{
	struct ist_op ops[IST__MOVES];
	const struct ist_op *list[IST__MOVES];

	if (step->n_moves == 0) {
		*slot = (struct ist__leg){ .begun = true, .over = true };
		line->busy = true;
		return ISSUED;
	}
	for (uint32_t i = 0; i < step->n_moves; i++) {
		const struct ist__move *m = &step->moves[i];
		struct ist_buf buf = buf_of(op, m->at.to, m->bytes), none = { .device = -1 };

		ops[i] = (struct ist_op){ .struct_size = sizeof(ops[i]), .kind = m->kind, .peer = m->peer, .seq = wire_seq(op, m->tag),
			.src = m->kind == IST_OP_SEND ? buf : none, .dst = m->kind == IST_OP_SEND ? none : buf, .stream = op->args.stream };
		list[i] = &ops[i];
	}
	return start(line, op, list, step->n_moves, slot);
}

/* Does one slice of the step's local work; true: there is none left. */
static bool
work(struct ist__line *line, struct ist__op *op, const struct ist__step *step)
{
	const struct ist__run *run = &op->run;
	const struct ist__work *w;
	uint64_t bytes, slice = IST__SLICE / run->elem * run->elem;

	if (op->work >= step->n_works)
		return true;
	w = &step->works[op->work];
	bytes = w->bytes - op->work_at < slice ? w->bytes - op->work_at : slice;
	if (w->b)
		ist__reduce(run->dtype, run->reduce, (char *)w->to + op->work_at, (const char *)w->a + op->work_at,
			(const char *)w->b + op->work_at, bytes / run->elem);
	else
		memcpy((char *)w->to + op->work_at, (const char *)w->a + op->work_at, bytes);
	line->busy = true;
	op->since = line->now;
	op->work_at += bytes;
	if (op->work_at == w->bytes) {
		op->work++;
		op->work_at = 0;
	}
	return op->work >= step->n_works;
}

static void
pump_steps(struct ist__line *line, struct ist__op *op)
{
	while (!op->failed && op->begun < op->run.steps && op->begun - op->done < op->run.window) {
		struct ist__step step = { .n_moves = 0, .n_works = 0 };

		op->algorithm->step(&op->run, op->begun, &step);
		if (!work(line, op, &step) || start_moves(line, op, &step, &op->slots[op->begun % IST__WINDOW]) != ISSUED)
			return;
		op->begun++;
		op->work = 0;
		while (op->done < op->begun && op->slots[op->done % IST__WINDOW].over)
			op->done++;
	}
}

void
ist__op_pump(struct ist__line *line, struct ist__op *op)
{
	if (op->failed)
		return;
	if (op->how == IST__COMPOSED)
		pump_steps(line, op);
	else
		pump_whole(line, op);
	if (!deserted(line) && line->door == op && ist__op_issued(op))
		line->door = NULL;
}

/* ---- looking ---- */

static void
task_over(struct ist__line *line, struct ist__op *op, struct ist__leg *slot, const struct ist_status *st, ist_err e)
{
	slot->over = true;
	line->tasks--;
	line->busy = true;
	op->since = line->now;
	if (st->state == IST_ABANDONED) {
		op->abandoned = true;
		if (!e)
			bad_plugin(line, op, "gave up a task without saying why");
	}
	if (op->view_native && !e && !op->failed) {
		op->req.view = st->view; /* the task lends it, until the user frees the request */
		return;
	}
	line->ops->task_free(line->chan, slot->task);
	slot->task = NULL;
}

static uint64_t
look_slot(struct ist__line *line, struct ist__op *op, struct ist__leg *slot)
{
	struct ist_status st = { .struct_size = sizeof(st), .rank = IST_NO_RANK };
	struct ist_error err;
	ist_err e = line->ops->test(line->chan, slot->task, &st);

	if (deserted(line))
		return 0;
	st.text[sizeof(st.text) - 1] = 0;
	if (e && !op->failed) {
		plugin_error(line, op, "test", e, &st, &err);
		if (!await_comparison(line, op, e, &err))
			fail(line, op, &err);
	}
	if (st.state > IST_ABANDONED) {
		if (!op->failed)
			bad_plugin(line, op, "tells a state of a task that there is not");
		return st.moved;
	}
	if (st.state >= IST_DONE)
		task_over(line, op, slot, &st, e);
	return st.moved;
}

void
ist__op_look(struct ist__line *line, struct ist__op *op)
{
	uint64_t moved = 0;

	for (int i = 0; i < IST__WINDOW; i++)
		if (op->slots[i].task && !op->slots[i].over) {
			moved += look_slot(line, op, &op->slots[i]);
			if (deserted(line))
				return;
		}
	if (moved != op->moved) {
		op->moved = moved;
		op->since = line->now;
	}
	while (op->how == IST__COMPOSED && op->done < op->begun && op->slots[op->done % IST__WINDOW].over)
		op->done++;
}

/* ---- how it stands ---- */

bool
ist__op_quiet(const struct ist__op *op)
{
	for (int i = 0; i < IST__WINDOW; i++)
		if (op->slots[i].task && !op->slots[i].over)
			return false;
	return true;
}

bool
ist__op_issued(const struct ist__op *op)
{
	if (op->how != IST__COMPOSED)
		return op->slots[0].begun;
	return op->begun == op->run.steps; /* whose tmp is free again by then */
}

bool
ist__op_complete(const struct ist__op *op)
{
	bool over = op->how == IST__COMPOSED ? op->done == op->run.steps : op->slots[0].over;

	return over && !op->failed && (!op->compared || atomic_load(&op->checked));
}
