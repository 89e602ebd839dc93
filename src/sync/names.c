/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/names.h"

#include "base/hash.h"

#include <string.h>

void
ist__names_init(struct ist__names *set, const struct ist__ctx *ctx)
{
	*set = (struct ist__names){ .ctx = ctx, .seed = ist__hash_seed() };
}

void
ist__names_fini(struct ist__names *set)
{
	if (set->slots)
		ist__free(set->ctx, set->slots);
	*set = (struct ist__names){ .ctx = set->ctx, .seed = set->seed };
}

/* The place where name is, or the empty one where it would go. */
static uint64_t
place_of(const struct ist__name *slots, uint64_t room, const char *name, uint64_t bytes, uint64_t hash)
{
	uint64_t i = hash & (room - 1);

	while (slots[i].at &&
	       !(slots[i].hash == hash && slots[i].bytes == bytes && (bytes == 0 || memcmp(slots[i].at, name, bytes) == 0)))
		i = (i + 1) & (room - 1);
	return i;
}

bool
ist__names_reserve(struct ist__names *set, uint64_t n)
{
	uint64_t room = set->room ? set->room : 16;
	struct ist__name *slots;

	if (n > UINT32_MAX)
		return false;
	while (room < n * 2)
		room *= 2;
	if (room == set->room)
		return true;
	slots = ist__alloc(set->ctx, room * sizeof(*slots));
	if (!slots)
		return false;
	for (uint64_t i = 0; i < set->room; i++) {
		const struct ist__name *s = &set->slots[i];

		if (s->at)
			slots[place_of(slots, room, s->at, s->bytes, s->hash)] = *s;
	}
	ist__free(set->ctx, set->slots);
	set->slots = slots;
	set->room = room;
	return true;
}

uint32_t
ist__names_find(const struct ist__names *set, const char *name, uint64_t bytes)
{
	uint64_t i;

	if (set->n == 0)
		return IST__NO_NAME;
	i = place_of(set->slots, set->room, name, bytes, ist__hash64(name, bytes, set->seed));
	return set->slots[i].at ? set->slots[i].id : IST__NO_NAME;
}

bool
ist__names_add(struct ist__names *set, const char *name, uint64_t bytes, uint32_t id, uint32_t *known)
{
	uint64_t hash = ist__hash64(name, bytes, set->seed), i;

	if (!ist__names_reserve(set, set->n + 1))
		return false;
	i = place_of(set->slots, set->room, name, bytes, hash);
	if (set->slots[i].at) {
		*known = set->slots[i].id;
		return true;
	}
	set->slots[i] = (struct ist__name){ .at = name, .bytes = bytes, .hash = hash, .id = id };
	set->n++;
	*known = IST__NO_NAME;
	return true;
}
