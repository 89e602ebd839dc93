/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.h - the two ends of the pipeline where the buckets lie on a device. What leaves a source goes there on one stream, what
 * comes to the sinks leaves on another, and digests of what is given are taken on a third. Giving and taking are begun and ended
 * in two calls each, so that the bytes of several buckets move at a time; nobody waits for the whole device. Bytes that the
 * device can't reach by itself (files, pageable memory) pass through pinned memory.
 */
#ifndef ISTHMUS_SYNC_STAGE_H
#define ISTHMUS_SYNC_STAGE_H

#include "sync/ring.h"
#include "sync/sinks.h"

struct ist__sync_body;
struct ist__offer;

/* One end of a slot of the ring. */
struct ist__stage_slot {
	void *event;                /* of the copies that were last begun, */
	void *looked;               /* and of the digests of what was given */
	uint8_t *host;              /* pinned, a bucket's bytes on their way; NULL until needed */
	void *leaves_far;           /* of a bucket, on the device, */
	struct ist__digest *leaves; /* and in pinned memory */
	uint64_t bucket;            /* which it is */
	bool busy;                  /* copies are under way, and nobody has seen their end */
	bool looking;               /* digests are */
	bool pinned;                /* the device reads some of it out of files */
};

struct ist__stage {
	const struct ist__ctx *ctx;
	struct ist__far far;        /* dev NULL: there is no device, and the rest is unused */
	void *in, *look, *out;      /* streams: to the slots, digests of what is given, from the slots */
	struct ist__stage_slot givers[IST__SLOTS_MAX], takers[IST__SLOTS_MAX];
	uint8_t *room;              /* pinned, of a bucket: for sinks in host memory, which take one at a time; NULL until needed */
	uint32_t n;
	uint64_t slot_bytes, n_leaves; /* room in each slot */
	struct ist__copies copies, digests;
	bool no_kernel;             /* the device can't digest: the host does */
	bool stuck;                 /* work on the device did not end: what it may still touch stays where it is, and is lost */
};

/* Makes it fit the ring, the plan and what is registered; what is there is kept where it does. */
ist_err ist__stage_prepare(struct ist__sync_body *s, struct ist_error *err);
/* Waits until nothing is under way on its streams. */
void ist__stage_quiet(struct ist__stage *g);
void ist__stage_fini(struct ist__stage *g);

/* Room for a bucket in pinned memory, when nothing is under way. NULL: NO_MEMORY. */
uint8_t *ist__stage_room(struct ist__stage *g, struct ist_error *err);
/* Begins to fill slot i, which nobody else uses. What goes wrong is remembered as this member's failure. */
void ist__stage_give(struct ist__sync_body *s, uint64_t b, const struct ist__offer *giver, uint32_t i);
/* Until slot i is filled; begun or not. */
void ist__stage_given(struct ist__sync_body *s, uint64_t b, const struct ist__offer *giver, uint32_t i);
/* Until the digests of all that was given are here. */
void ist__stage_looked(struct ist__sync_body *s);
/* Begins what ist__ends_take does, for the bucket of slot i, whose bytes lie at from. */
void ist__stage_take(struct ist__sync_body *s, uint64_t b, const uint8_t *from, bool mine, uint32_t i);
/* Until it is done; buckets in their order. */
void ist__stage_taken(struct ist__sync_body *s, uint64_t b, bool mine, uint32_t i);
/* Has what was begun there come to its end, as far as is known without waiting? */
bool ist__stage_is_done(struct ist__stage *g, const struct ist__stage_slot *slot);

#endif
