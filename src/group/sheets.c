/* SPDX-License-Identifier: Apache-2.0
 *
 * sheets.c - short byte strings that all members of a group on one host get: each has two sheets behind the board, which it
 * alone writes, and writes on them in turns.
 *
 * Why two are enough. All enter the same operations in the same order, one at a time, and none ends well before all have
 * entered it. Who writes for its n+2nd has seen all others in the n+1st, and who is in that one has read what it wanted of the
 * n-th. Where operations differ somebody finds out, and the group ends; until then a sheet that was not written for the
 * operation at hand is known by its number.
 */
#include "group/board.h"
#include "group/group.h"

#include <string.h>

enum { ROOM_MAX = 4096, ROOM_MIN = 512, ALL_MAX = 1 << 20 /* bytes of a group's sheets, while they have more than the least */, SHEETS = 2 };

struct sheet {
	_Atomic uint64_t seq;   /* the operation */
	_Atomic uint64_t bytes; /* more than there is room: they come as a message */
	uint8_t at[];
};

uint64_t
ist__sheet_room(uint32_t n)
{
	uint64_t room = ROOM_MAX;

	while (room > ROOM_MIN && room * SHEETS * n > ALL_MAX)
		room /= 2;
	return room;
}

/* Cache lines of its own. */
static uint64_t
stride(uint32_t n)
{
	return ist__sheet_room(n) + 64;
}

uint64_t
ist__sheets_bytes(uint32_t n)
{
	return SHEETS * n * stride(n);
}

static struct sheet *
sheet_of(const struct ist__group *g, uint32_t rank, uint64_t use)
{
	return (struct sheet *)(void *)(g->sheets + (SHEETS * (uint64_t)rank + use % SHEETS) * stride(g->size));
}

bool
ist__sheet_put(struct ist__group *g, uint64_t seq, const void *addr, uint64_t bytes)
{
	struct sheet *s = sheet_of(g, g->rank, ++g->sheets_used);
	bool fits = bytes <= ist__sheet_room(g->size);

	if (fits && bytes > 0)
		memcpy(s->at, addr, bytes);
	atomic_store_explicit(&s->bytes, fits ? bytes : UINT64_MAX, memory_order_relaxed);
	atomic_store_explicit(&s->seq, seq, memory_order_release);
	return fits;
}

bool
ist__sheet_get(const struct ist__group *g, uint64_t seq, uint32_t rank, const void **at, uint64_t *bytes)
{
	const struct sheet *s = sheet_of(g, rank, g->sheets_used);
	uint64_t n;

	if (atomic_load_explicit(&s->seq, memory_order_acquire) != seq)
		return false;
	n = atomic_load_explicit(&s->bytes, memory_order_relaxed);
	*at = n <= ist__sheet_room(g->size) ? s->at : NULL;
	*bytes = *at ? n : 0;
	return true;
}
