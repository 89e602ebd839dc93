/* SPDX-License-Identifier: Apache-2.0
 *
 * names.h - a set of texts, each with a number: finding a tensor by its name in constant time. The texts are lent and
 * must outlive the set.
 */
#ifndef ISTHMUS_SYNC_NAMES_H
#define ISTHMUS_SYNC_NAMES_H

#include "base/ctx.h"

#define IST__NO_NAME UINT32_MAX

struct ist__name {
	const char *at; /* NULL: an empty place */
	uint64_t bytes;
	uint64_t hash;
	uint32_t id;
};

struct ist__names {
	const struct ist__ctx *ctx;
	struct ist__name *slots;
	uint64_t n, room; /* room: a power of two, or 0 */
	uint64_t seed;    /* the names come from outside: nobody can aim for long chains */
};

void ist__names_init(struct ist__names *set, const struct ist__ctx *ctx);
void ist__names_fini(struct ist__names *set);
/* Makes room for n names in one go. False: no memory. */
bool ist__names_reserve(struct ist__names *set, uint64_t n);
/* Number of a name, or IST__NO_NAME. */
uint32_t ist__names_find(const struct ist__names *set, const char *name, uint64_t bytes);
/* Adds a name, unless it is there: *known is then its number, else IST__NO_NAME. False: no memory. */
bool ist__names_add(struct ist__names *set, const char *name, uint64_t bytes, uint32_t id, uint32_t *known);

#endif
