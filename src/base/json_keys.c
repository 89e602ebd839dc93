/* SPDX-License-Identifier: Apache-2.0
 *
 * json_keys.c - a set of 128-bit hashes of (object, key), open addressing. The texts are not kept: two keys of one hash
 * would be called equal, which refuses a document and never lets a duplicate pass. The seed is random for each document,
 * so that nobody can choose keys that fall onto one place.
 */
#include "base/json_keys.h"

#include "base/hash.h"

#include <string.h>

static bool
same(struct ist__json_mark a, struct ist__json_mark b)
{
	return a.lo == b.lo && a.hi == b.hi;
}

static bool
is_free(struct ist__json_mark m)
{
	return m.lo == 0 && m.hi == 0;
}

/* Where m is, or the free place where it belongs. */
static uint64_t
place_of(const struct ist__json *j, struct ist__json_mark m)
{
	uint64_t i = m.lo & (j->table_room - 1);

	while (!is_free(j->table[i]) && !same(j->table[i], m))
		i = (i + 1) & (j->table_room - 1);
	return i;
}

/* Half of the places stay free. */
static bool
grow(struct ist__json *j)
{
	uint64_t room = j->table_room ? j->table_room * 2 : 64;
	struct ist__json_mark *old = j->table;

	if (2 * (j->n_keys + 1) <= j->table_room)
		return true;
	j->table = ist__alloc(j->ctx, room * sizeof(*j->table));
	if (!j->table) {
		j->table = old;
		return false;
	}
	j->table_room = room;
	for (uint64_t i = 0; i < j->n_keys; i++)
		j->table[place_of(j, j->keys[i])] = j->keys[i];
	ist__free(j->ctx, old);
	return true;
}

enum ist__json_keys_answer
ist__json_keys_add(struct ist__json *j, uint64_t object, const char *key, uint64_t bytes)
{
	struct ist__json_mark m;
	void *keys = j->keys;
	uint64_t at;

	if (j->seed == 0)
		j->seed = ist__hash_seed();
	ist__hash128(key, bytes, j->seed + object * UINT64_C(0x9E3779B97F4A7C15), &m.lo, &m.hi);
	if (is_free(m))
		m.lo = 1;
	if (!grow(j) || !ist__grow(j->ctx, &keys, &j->keys_room, j->n_keys + 1, sizeof(*j->keys)))
		return IST__JSON_KEYS_MEMORY;
	j->keys = keys;
	at = place_of(j, m);
	if (!is_free(j->table[at]))
		return IST__JSON_KEYS_TWICE;
	j->table[at] = m;
	j->keys[j->n_keys++] = m;
	return IST__JSON_KEYS_NEW;
}

/* Takes one out and moves those after it that would no longer be found. */
static void
take_out(struct ist__json *j, struct ist__json_mark m)
{
	uint64_t mask = j->table_room - 1, hole = place_of(j, m), i = hole;

	for (;;) {
		uint64_t home;

		i = (i + 1) & mask;
		if (is_free(j->table[i]))
			break;
		home = j->table[i].lo & mask;
		if (((i - home) & mask) >= ((i - hole) & mask)) {
			j->table[hole] = j->table[i];
			hole = i;
		}
	}
	j->table[hole] = (struct ist__json_mark){ 0, 0 };
}

void
ist__json_keys_forget(struct ist__json *j, uint64_t n)
{
	while (j->n_keys > n)
		take_out(j, j->keys[--j->n_keys]);
}
