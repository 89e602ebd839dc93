/* SPDX-License-Identifier: Apache-2.0
 *
 * takers.h - who takes the bytes of a broadcast: a set of ranks, bit rank % 64 of word rank / 64. NULL is everybody but the
 * root. A set that was checked has no other bits than those of the group's members, and not the root's.
 */
#ifndef ISTHMUS_COLL_TAKERS_H
#define ISTHMUS_COLL_TAKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline uint32_t
ist__takers_words(uint32_t size)
{
	return size / 64 + (size % 64 != 0);
}

static inline bool
ist__takes(const uint64_t *takers, uint32_t root, uint32_t rank)
{
	return rank != root && (!takers || (takers[rank / 64] >> (rank % 64) & 1));
}

/* How many of a group of size. */
static inline uint32_t
ist__takers_count(const uint64_t *takers, uint32_t root, uint32_t size)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < size; r++)
		n += ist__takes(takers, root, r);
	return n;
}

#endif
