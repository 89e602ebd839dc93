/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/choose.h"

#include <stdio.h>

/* In order of bytes within a kind. */
static const struct ist__algorithm *const table[] = {
	&ist__bcast_binomial, &ist__bcast_chain, &ist__all_gather_ring, &ist__all_reduce_doubling, &ist__all_reduce_ring,
	&ist__reduce_scatter_ring, &ist__gather_linear, &ist__scatter_linear, &ist__all_to_all_pairwise, &ist__barrier_dissemination,
};
enum { ROWS = sizeof(table) / sizeof(table[0]) };

static const char *const names[] = {
	[IST_OP_SEND] = "send", [IST_OP_RECV] = "recv", [IST_OP_BROADCAST] = "broadcast", [IST_OP_ALL_GATHER] = "all_gather",
	[IST_OP_ALL_REDUCE] = "all_reduce", [IST_OP_REDUCE_SCATTER] = "reduce_scatter", [IST_OP_GATHER] = "gather",
	[IST_OP_SCATTER] = "scatter", [IST_OP_ALL_TO_ALL] = "all_to_all", [IST_OP_BARRIER] = "barrier", [IST_OP_READ] = "read",
	[IST_OP_SUSPEND] = "suspend", [IST_OP_RESUME] = "resume",
};

const char *
ist__kind_name(uint32_t kind)
{
	return kind < sizeof(names) / sizeof(names[0]) && names[kind] ? names[kind] : "operation";
}

const struct ist__algorithm *
ist__compose(const struct ist__choice *choice, uint32_t kind, uint64_t bytes)
{
	for (int i = 0; i < ROWS; i++)
		if (table[i]->kind == kind && choice->size >= table[i]->min_size && bytes <= table[i]->max_bytes)
			return table[i];
	return NULL;
}

const struct ist__algorithm *
ist__choose(const struct ist__choice *choice, uint32_t kind, uint64_t bytes)
{
	if (kind < 64 && (choice->native >> kind & 1))
		return NULL;
	return ist__compose(choice, kind, bytes);
}

uint64_t
ist__composable(void)
{
	uint64_t bits = 0;

	for (int i = 0; i < ROWS; i++)
		bits |= UINT64_C(1) << table[i]->kind;
	return bits;
}

/* Adds to the text, or only counts. */
static uint64_t
add(char *room, uint64_t room_bytes, uint64_t at, const char *text)
{
	for (; *text; text++, at++)
		if (at + 1 < room_bytes)
			room[at] = *text;
	if (room_bytes > 0)
		room[at < room_bytes ? at : room_bytes - 1] = 0;
	return at;
}

uint64_t
ist__choose_print(const struct ist__choice *choice, char *room, uint64_t room_bytes)
{
	uint64_t at = 0;
	uint32_t kind = 0;
	char line[128];

	for (int i = 0; i < ROWS; i++) {
		const struct ist__algorithm *a = table[i];
		bool last = i + 1 == ROWS || table[i + 1]->kind != a->kind;

		if (choice->size < a->min_size)
			continue;
		if (a->kind != kind)
			at = add(room, room_bytes, at, ist__kind_name(a->kind)), at = add(room, room_bytes, at, ": ");
		if (choice->native >> a->kind & 1) {
			if (a->kind != kind)
				at = add(room, room_bytes, at, "native");
		} else if (!last) {
			snprintf(line, sizeof(line), "%s to %llu bytes, ", a->name, (unsigned long long)a->max_bytes);
			at = add(room, room_bytes, at, line);
		} else {
			snprintf(line, sizeof(line), "%s%s", a->name, a->kind == kind ? " above" : "");
			at = add(room, room_bytes, at, line);
		}
		kind = a->kind;
		if (last)
			at = add(room, room_bytes, at, "\n");
	}
	return at;
}
