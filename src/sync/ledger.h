/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger.h - a list of named tensors with their digests, as a stream writes it down on either side: no name twice, and
 * the digest of the whole at the end. Texts are copied.
 */
#ifndef ISTHMUS_SYNC_LEDGER_H
#define ISTHMUS_SYNC_LEDGER_H

#include "base/arena.h"
#include "base/digest.h"
#include "sync/names.h"

#include <isthmus/sync.h>

struct ist__entry {
	const char *name;
	const char *dtype;     /* static */
	const char *alias_of;
	uint64_t *shape;
	uint32_t rank;
	uint64_t bytes;
	struct ist__digest digest;
};

struct ist__ledger {
	struct ist__arena arena;
	struct ist__names names;
	struct ist__entry *entries;
	uint64_t n, room;
	uint64_t bytes;
};

void ist__ledger_init(struct ist__ledger *l, const struct ist__ctx *ctx);
void ist__ledger_fini(struct ist__ledger *l);
/* Adds t after checking it: name, dtype, shape and bytes must fit together, the name be new. */
ist_err ist__ledger_add(struct ist__ledger *l, const struct ist_tensor *t, const char *op, struct ist_error *err);
/* Entry i as the public struct, without an address. */
void ist__ledger_tensor(const struct ist__ledger *l, uint64_t i, struct ist_tensor *out);
/* Digest of the whole. False: no memory. */
bool ist__ledger_digest(const struct ist__ledger *l, struct ist__digest *out);

#endif
