/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h - which bytes go into which bucket, in which order, and whose they are. A pure and linear function of the
 * manifest: all members compute it alike, and compare its digest before a byte moves.
 *
 * Items stand in sets: those of sources with equal manifests. The buckets of a set follow the manifest's order and are
 * dealt out to the set's parts, each to the one that has given least so far: the parts carry equal shares, all inject
 * at once, and a sink sees the manifest's order whatever the number of sources and the size of buckets. The buckets of
 * several sets are mixed so that all sets end together.
 */
#ifndef ISTHMUS_SYNC_PLAN_H
#define ISTHMUS_SYNC_PLAN_H

#include "base/ctx.h"
#include "base/digest.h"

#define IST__PIECE_CUT IST__LEAF_BYTES   /* offsets inside an item at which it may be cut */
#define IST__PIECE_ALIGN UINT64_C(64)    /* of pieces inside a bucket */
#define IST__BUCKET_MIN IST__PIECE_CUT
#define IST__BUCKET_DEFAULT (UINT64_C(128) << 20)

struct ist__plan_set {
	const uint64_t *bytes;   /* n_items, in manifest order */
	const uint32_t *mate;    /* index in this set of the item that should be in the same bucket, or UINT32_MAX; may be NULL */
	const uint32_t *ids;     /* what an item is called in the whole; NULL: by its index here */
	uint32_t n_items;
	uint32_t parts;          /* at least 1 */
	uint32_t whole;          /* 1: all of an item comes from one part (memory that is alive has no digests beforehand) */
};

struct ist__plan_args {
	const struct ist__plan_set *sets;
	uint32_t n_sets;
	uint64_t bucket_bytes;   /* agreed; rounded down to a multiple of IST__PIECE_CUT */
	uint32_t at_once;        /* so many buckets are to be under way in the memory of three full ones; up to 3: no matter */
	struct ist__digest salt; /* digest of what the items are */
};

struct ist__plan_piece {
	uint32_t item;           /* in the whole */
	uint32_t last;           /* 1: the item ends with it */
	uint64_t offset;         /* in the item, a multiple of IST__PIECE_CUT */
	uint64_t bytes;
	uint64_t at;             /* in the bucket */
};

struct ist__plan_bucket {
	uint32_t set, part;
	uint64_t first_piece;
	uint32_t n_pieces;
	uint32_t joined;         /* 1: begins in the middle of an item */
	uint64_t bytes;
};

struct ist__plan {
	const struct ist__ctx *ctx;
	struct ist__plan_bucket *buckets;
	struct ist__plan_piece *pieces;
	uint64_t n_buckets, n_pieces;
	uint64_t bucket_bytes;   /* agreed */
	uint64_t slot_bytes;     /* of the largest bucket */
	uint64_t payload;
	struct ist__digest digest;
};

/* Errors: NO_MEMORY, LIMIT. */
ist_err ist__plan_make(const struct ist__ctx *ctx, const struct ist__plan_args *args, struct ist__plan **out, struct ist_error *err);
void ist__plan_free(struct ist__plan *plan);

#endif
