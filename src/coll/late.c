/* SPDX-License-Identifier: Apache-2.0
 *
 * late.c - when is an operation too late, and who is to blame: members that have not entered it (only the deadline speaks
 * then), or, once all are inside, those whose bytes do not come.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "coll/line_int.h"

#include <stdio.h>
#include <string.h>

enum { NAMED = 64 };

void
ist__op_text(const struct ist__op *op, char *room, uint64_t room_bytes)
{
	uint8_t print[IST__PRINT_BYTES];
	size_t n;

	ist__print_make(op->kind, &op->args, op->line->args.size, op->n, print);
	ist__print_text(print, room, room_bytes);
	n = strlen(room);
	if (op->kind == IST_OP_SEND || op->kind == IST_OP_RECV)
		snprintf(room + n, room_bytes - n, " %s %u", op->kind == IST_OP_SEND ? "to" : "from", op->args.peer);
}

/* Whom the oldest unfinished step waits for: those it receives from, else those it sends to. */
static uint32_t
waits_for(const struct ist__op *op, uint32_t *peers)
{
	struct ist__step step = { .n_moves = 0, .n_works = 0 };
	uint32_t n = 0;

	if (op->how == IST__PAIR) {
		peers[0] = op->args.peer;
		return 1;
	}
	if (op->how != IST__COMPOSED || op->done >= op->run.steps)
		return 0;
	op->algorithm->step(&op->run, op->done, &step);
	for (int kind = IST_OP_RECV; kind >= IST_OP_SEND && n == 0; kind--)
		for (uint32_t i = 0; i < step.n_moves; i++)
			if (step.moves[i].kind == (uint32_t)kind)
				peers[n++] = step.moves[i].peer;
	return n;
}

/* With whom the backend moves the bytes of an operation of its own, as far as that is known here: the root, or, at the
 * root, those who take; all others where there is no root. */
static uint32_t
moves_with(const struct ist__op *op, uint32_t *peers)
{
	const struct ist__line *line = op->line;
	bool rooted = op->kind == IST_OP_BROADCAST || op->kind == IST_OP_GATHER || op->kind == IST_OP_SCATTER;
	uint32_t n = 0;

	if (rooted && op->args.peer != line->args.rank) {
		peers[0] = op->args.peer;
		return 1;
	}
	for (uint32_t r = 0; r < line->args.size && n < NAMED; r++)
		if (ist__takes(op->args.takers, line->args.rank, r))
			peers[n++] = r;
	return n;
}

int64_t
ist__op_frozen_at(const struct ist__line *line, const struct ist__op *op)
{
	int64_t since = op->since, at;

	if (line->args.no_progress_ns < 0 || ist__op_quiet(op))
		return IST__NEVER;
	if (op->kind == IST_OP_RECV) {
		if (op->moved == 0)
			return IST__NEVER; /* its sender may not have entered */
	} else if (!op->compared || !op->checked_seen) {
		return IST__NEVER; /* not known whether all have */
	} else if (line->moved_at > since) {
		since = line->moved_at;
	}
	if (line->awake_since > since)
		since = line->awake_since;
	return __builtin_add_overflow(since, line->args.no_progress_ns, &at) ? IST__NEVER : at;
}

/* ", from rank 3 and 2 more" is enough for a text; the ranks themselves stand in err. */
static void
add_ranks(struct ist_error *err, const uint32_t *ranks, uint32_t n)
{
	for (uint32_t i = 0; i < n && i < NAMED; i++)
		ist__fail_rank(err, ranks[i]);
}

void
ist__op_frozen(const struct ist__line *line, const struct ist__op *op, struct ist_error *err)
{
	uint32_t peers[IST__MOVES];
	uint32_t n = waits_for(op, peers);
	char what[160];

	err->struct_size = sizeof(*err);
	ist__op_text(op, what, sizeof(what));
	ist__fail(err, IST_NO_PROGRESS, ist__kind_name(op->kind), "%s: all members are inside, and not a byte has moved for %.1f s", what,
		(double)line->args.no_progress_ns / 1e9);
	add_ranks(err, peers, n);
}

void
ist__op_timeout(const struct ist__line *line, const struct ist__op *op, const struct ist__op *head, struct ist_error *err)
{
	const struct ist__op *held = op->since ? op : head ? head : op; /* since 0: still in the queue */
	uint32_t ranks[NAMED], n = 0;
	char what[160], front[160];

	err->struct_size = sizeof(*err);
	ist__op_text(op, what, sizeof(what));
	ist__op_text(held, front, sizeof(front));
	if (held->compared && !atomic_load(&held->checked) && line->args.absent)
		n = line->args.absent(line->args.owner, held->seq, ranks, NAMED);
	if (n > 0)
		ist__fail(err, IST_TIMEOUT, ist__kind_name(op->kind), "%s: %u of %u members have not entered %s (operation %llu)", what, n,
			line->args.size, held == op ? "it" : front, (unsigned long long)held->seq);
	else if (held != op)
		ist__fail(err, IST_TIMEOUT, ist__kind_name(op->kind), "%s: it waits behind %s", what, front);
	else if (op->how == IST__COMPOSED)
		ist__fail(err, IST_TIMEOUT, ist__kind_name(op->kind), "%s: step %llu of %llu (%s) has not ended", what,
			(unsigned long long)op->done + 1, (unsigned long long)op->run.steps, op->algorithm->name);
	else
		ist__fail(err, IST_TIMEOUT, ist__kind_name(op->kind), "%s: it has not ended", what);
	if (n == 0 && held->since)
		n = held->how == IST__NATIVE ? moves_with(held, ranks) : waits_for(held, ranks);
	add_ranks(err, ranks, n);
}
