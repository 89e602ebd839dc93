/* SPDX-License-Identifier: Apache-2.0
 *
 * table.h - what all members have said in a gather, made into one: members, the manifests they offer, the one manifest of
 * the whole, and the plan. Built alike on every member from equal bytes; whatever is wrong with it is wrong for all.
 */
#ifndef ISTHMUS_SYNC_TABLE_H
#define ISTHMUS_SYNC_TABLE_H

#include "base/bytes.h"
#include "ckpt/manifest.h"
#include "sync/plan.h"

#define IST__NO_ITEM UINT32_MAX

/* What a member is and wants. */
struct ist__member {
	uint32_t on_loss;
	uint32_t n_sinks;
	uint64_t bucket;      /* wish; 0: none */
	uint32_t first_offer, n_offers;
	bool no_verify, raw, in_place;
	bool gone;            /* lost since */
};

/* A checkpoint that a member has registered. */
struct ist__offer {
	uint32_t member, index;  /* which one there */
	struct ist__digest manifest, content;
	bool live;               /* nobody knows its digests beforehand: they are taken on the way */
	bool late;               /* live, but of files: they can be had, should they be needed to compare */
	uint32_t part, parts;    /* 0 parts: shared equally */
	uint32_t set;
};

/* Offers with one manifest. */
struct ist__set {
	struct ist__manifest *m;
	struct ist__digest *digests; /* like m->items; live: none */
	bool live, late;
	uint32_t parts;
	bool by_hand;
	uint32_t *whole;         /* item of m -> item of the whole, or IST__NO_ITEM */
	/* those that move, in order: */
	uint64_t *bytes;
	uint32_t *ids, *mate;
	uint32_t n;
};

struct ist__table {
	const struct ist__ctx *ctx;
	struct ist__digest key;      /* of the records that it is made from */
	struct ist__member *members; /* by their rank in the first group */
	struct ist__offer *offers;
	struct ist__set *sets;
	uint32_t n_members, n_offers, n_sets;
	uint64_t bucket_bytes;
	uint32_t on_loss;
	bool verify, raw;
	bool needs_digests;          /* a late one gives what another gives as well: whether it is the same only they can tell */
	bool side_by_side;           /* several givers give at once: see takers.c */

	const struct ist__manifest *m;    /* the whole */
	struct ist__manifest *made;       /* m where it had to be made; else NULL, and it is the one set's */
	uint32_t *item_set, *item_local;  /* item of m -> where it comes from; a tensor in parts: where the first one does */
	uint32_t *parts;                  /* slices of m, by tensor, then by where they begin */
	uint64_t n_parts;
	uint32_t *order;                  /* tensors of m (items), by name once ist__table_sort was called */
	bool sorted;
	uint32_t *last_bucket;            /* item of m -> bucket with its last piece */
	uint64_t *leaf_first;             /* item of m -> its first leaf; n_items + 1 of them */
	struct ist__plan *plan;
};

/* One member's record, and its reading. */
struct ist__say {
	uint32_t on_loss, n_sinks;
	uint64_t bucket;
	bool no_verify, raw, in_place;
	uint32_t n_offers;
};
void ist__table_say(struct ist__writer *w, const struct ist__say *say);
void ist__table_say_offer(struct ist__writer *w, const struct ist__offer *o); /* after it, each */

struct ist__table *ist__table_new(const struct ist__ctx *ctx, uint32_t n_members);
void ist__table_free(struct ist__table *t);
/* Reads the record of member i; in order of i. bytes: of the record alone. */
ist_err ist__table_hear(struct ist__table *t, uint32_t i, const void *record, uint64_t bytes, struct ist_error *err);
/* After the last record: sets, agreed values, and what can't go on: EMPTY_UPDATE, NO_RECEIVERS, MISMATCH, INCOMPLETE. */
ist_err ist__table_settle(struct ist__table *t, struct ist_error *err);

/* The second round. True: offer i is the first of its manifest and content, so its member sends them. */
bool ist__table_must_send(const struct ist__table *t, uint32_t i);
/* What was sent for offer i: the manifest, and for files the digests of its items. */
ist_err ist__table_manifest(struct ist__table *t, uint32_t i, struct ist__reader *r, struct ist_error *err);
/* After the last: the whole and the plan. OVERLAP, INCOMPLETE, EMPTY_UPDATE. */
ist_err ist__table_merge(struct ist__table *t, struct ist_error *err);
ist_err ist__table_plan(struct ist__table *t, struct ist_error *err);
/* Brings order into the order of names: for the digest of the whole, which a gather has no use for. */
void ist__table_sort(struct ist__table *t);

/* Members that have something to give; and how many buckets are under way where they give at once: two of each, one that is
 * taken, one to come. */
uint32_t ist__table_givers(const struct ist__table *t);
uint32_t ist__table_at_once(const struct ist__table *t);
/* The lowest member that offers set. */
uint32_t ist__table_member_of(const struct ist__table *t, uint32_t set);
/* The offer that gives part of set: its own, or another that can stand in for a lost one. NULL: nobody is left. */
const struct ist__offer *ist__table_giver(const struct ist__table *t, uint32_t set, uint32_t part);
/* Digest of item of the whole as known beforehand; false: it is live. */
bool ist__table_digest(const struct ist__table *t, uint64_t item, struct ist__digest *out);

#endif
