/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.h - a few buckets in turn, each with at most one broadcast under way. Memory is the group's own where it has a
 * kind that it moves best; then receivers may look at the sender's bytes instead of having a copy. It lies on the members'
 * devices where the group carries such memory.
 */
#ifndef ISTHMUS_SYNC_RING_H
#define ISTHMUS_SYNC_RING_H

#include "base/bytes.h"
#include "base/clock.h"
#include "base/ctx.h"

#include "plug/far.h"

#include <isthmus.h>

enum { IST__SLOTS_MAX = 16, IST__SKIPS = 16 };

struct ist__slot {
	uint8_t *addr;
	struct ist_req *req;
	bool root;
};

struct ist__ring {
	const struct ist__ctx *ctx;
	struct ist_group *group;
	struct ist__far far;    /* where the slots lie; dev NULL: in host memory. Set by the owner before ist__ring_prepare */
	struct ist__slot slots[IST__SLOTS_MAX];
	uint32_t n;
	uint32_t wanted;        /* slots; there are fewer where there was no memory for so many */
	uint32_t size;          /* of the group */
	uint64_t slot_bytes;
	uint64_t poison;
	bool from_group;        /* all slots are the group's memory */
	bool view;              /* all members' are, as they have told each other */
	uint32_t least;         /* reach of the member that reaches least far, as they have told each other: see ist__sync_reach */
	uint32_t ahead;         /* buckets that may still be under way here at a check */
	struct ist_req *skips[IST__SKIPS]; /* broadcasts that this member has no part in: over as soon as they have begun */
	uint64_t skipped;
};

/* What an API call may still take until deadline. */
static inline int64_t
ist__left(int64_t deadline)
{
	int64_t left;

	if (deadline == IST__NEVER)
		return -1;
	left = deadline - ist__now();
	return left > 0 ? left : 1;
}

/* How large a bucket is where nobody says: 128 MiB, less where the machine or the control group is short of memory.
 * members: of the group, on this host. */
uint64_t ist__ring_bucket(uint32_t slots, uint32_t members);
/* NO_MEMORY when the control group can't hold what ist__ring_prepare would ask for, and every member of this host with it, or not
 * even alone bytes of this one: better now than killed later. */
ist_err ist__ring_check(const struct ist__ring *ring, struct ist_group *group, uint32_t n, uint64_t slot_bytes, uint64_t alone, struct ist_error *err);
/* n slots of slot_bytes, or as many as there is memory for, but not fewer than least; keeps what is there where it is large
 * enough and of the same group. */
ist_err ist__ring_prepare(struct ist__ring *ring, const struct ist__ctx *ctx, struct ist_group *group, uint32_t n, uint32_t least,
	uint64_t slot_bytes, struct ist_error *err);
/* How far another member's slots reach, as it has put it behind what it says else; an older one says nothing. first: of all members. */
void ist__ring_hear(struct ist__ring *ring, bool first, struct ist__reader *r);
/* Ends what is under way (which may abort the group) and frees all. */
void ist__ring_fini(struct ist__ring *ring);

/* Starts the broadcast of slot i; a receiver's slot is poisoned first, so that nothing old can pass for new. takers: as in
 * struct ist_coll_args. */
ist_err ist__ring_start(struct ist__ring *ring, uint32_t i, uint32_t root, bool am_root, const uint64_t *takers, uint64_t bytes, int64_t deadline,
	struct ist_error *err);
/* The same for a member that does not take. */
ist_err ist__ring_skip(struct ist__ring *ring, uint32_t root, const uint64_t *takers, uint64_t bytes, int64_t deadline, struct ist_error *err);
/* Waits until all that were skipped are over. */
ist_err ist__ring_skip_end(struct ist__ring *ring, int64_t deadline, struct ist_error *err);
/* Waits until the bytes of slot i can be read, at *at. The root's can at once. */
ist_err ist__ring_take(struct ist__ring *ring, uint32_t i, int64_t deadline, const uint8_t **at, struct ist_error *err);
/* Waits until slot i can be written again; gives a view back. */
ist_err ist__ring_release(struct ist__ring *ring, uint32_t i, int64_t deadline, struct ist_error *err);
/* Has what was last begun in slot i ended, well or not? */
bool ist__ring_idle(struct ist__ring *ring, uint32_t i);
/* Ends all that is under way, well or not. */
void ist__ring_drop(struct ist__ring *ring);

#endif
