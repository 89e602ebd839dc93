/* SPDX-License-Identifier: Apache-2.0
 *
 * takers.c - what an operation keeps for a broadcast that not everybody takes: its own copy of the set, and, where the
 * backend can't leave anybody out, room for bytes that nobody here wants.
 */
#include "coll/takers.h"

#include "coll/line_int.h"

#include <string.h>

bool
ist__op_set_takers(const struct ist__line *line, struct ist__op *op)
{
	uint32_t words = ist__takers_words(line->args.size), root = op->args.peer;
	uint64_t *set = op->set;

	if (!op->args.takers)
		return true;
	if (words > IST__SET_WORDS)
		set = op->more = ist__alloc(&line->ctx, words * sizeof(*set));
	if (!set)
		return false;
	memcpy(set, op->args.takers, words * sizeof(*set));
	set[root / 64] &= ~(UINT64_C(1) << (root % 64));
	op->args.takers = set;
	return true;
}

const uint64_t *
ist__op_native_takers(const struct ist__line *line, const struct ist__op *op)
{
	return line->args.traits & IST_TRAIT_TAKERS ? op->args.takers : NULL;
}

/* A view's receiver gives room of the channel's, if it has any. */
bool
ist__op_make_room(struct ist__line *line, struct ist__op *op, bool left_out)
{
	struct ist_coll_args *a = &op->args;

	if (op->kind != IST_OP_BROADCAST || a->peer == line->args.rank || a->dst.addr || a->dst.bytes == 0 || left_out)
		return true;
	if (op->view_native) {
		struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };

		op->room_of_chan = line->ops->alloc(line->chan, a->dst.bytes, IST_MEM_HOST, -1, &op->room, &why) == IST_OK && op->room;
	}
	if (!op->room_of_chan)
		op->room = ist__alloc_aligned(&line->ctx, a->dst.bytes, 4096);
	a->dst.addr = op->room;
	return op->room;
}

void
ist__op_clear(struct ist__line *line, struct ist__op *op, bool keep_room)
{
	ist__free(&line->ctx, op->more);
	op->more = NULL;
	op->args.takers = NULL;
	if (op->room_of_chan || keep_room)
		return; /* close sees to it; or nobody ever does */
	ist__free(&line->ctx, op->room);
	op->room = NULL;
}

void
ist__op_free_room(struct ist__line *line, struct ist__op *op)
{
	if (!op->room_of_chan)
		return;
	line->ops->free(line->chan, op->room);
	op->room = NULL;
	op->room_of_chan = false;
}
