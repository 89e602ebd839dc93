/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_group.h - a group of threads in one process, with the group's functions that weight sync calls, and faults on
 * demand. It keeps to the words of isthmus.h: fail-stop after a loss, one outcome of a vote, views held until freed.
 */
#ifndef ISTHMUS_TESTS_FAKE_GROUP_H
#define ISTHMUS_TESTS_FAKE_GROUP_H

#include <isthmus.h>
#include <pthread.h>
#include <stdbool.h>

enum { FAKE_RANKS = 16 };
#define FAKE_NEVER UINT64_MAX

struct fake_faults {
	uint64_t flip_at;      /* this broadcast (counted from 0) ... */
	uint32_t flip_rank;    /* ... reaches this rank ... */
	uint64_t flip_byte;    /* ... with this byte changed */
	bool do_nothing;       /* broadcasts succeed and move nothing */
	bool no_memory;        /* group_alloc: UNSUPPORTED */
	bool all_take;         /* broadcasts leave nobody out */
	uint32_t kill_rank;    /* this rank dies ... */
	uint64_t kill_at;      /* ... when it starts this broadcast, */
	uint64_t kill_gather;  /* or enters this exchange, */
	uint64_t kill_vote;    /* or this vote: it has voted, and the others hear it or not (kill_heard) */
	bool kill_heard;
	int64_t cast_ns;       /* a broadcast takes so long, one after the other: the channel is one */
	uint32_t kill_told;    /* of kill_gather: it has given its part, and the ranks of this mask get the result; they have started
	                          two broadcasts each, or are in the next exchange, when it dies */
};

struct fake_world;

struct fake_world *fake_world_new(uint32_t size);
void fake_world_free(struct fake_world *world);
struct fake_faults *fake_world_faults(struct fake_world *world);
/* No faults from here on, and counts from 0 again. */
void fake_world_calm(struct fake_world *world);
uint64_t fake_world_broadcasts(struct fake_world *world); /* of rank 0 so far, since calm */
uint64_t fake_world_gathers(struct fake_world *world);
/* Bytes that broadcasts carried, once each. */
uint64_t fake_world_bytes(struct fake_world *world);
/* The same, once for each that took them. */
uint64_t fake_world_taken(struct fake_world *world);
/* States told by rank so far, as "CLEAN 1;UPDATING 1->2;": lent. */
const char *fake_world_told(struct fake_world *world, uint32_t rank);
/* True for a rank that a fault has killed: its calls all fail, and its thread should end. */
bool fake_world_dead(struct fake_world *world, uint32_t rank);

/* Reading a piece of live memory takes so long, for all worlds; 0 again at the end of a test. */
void fake_fetch_takes(int64_t ns);

struct ist_group *fake_group_new(struct ist_env *env, struct fake_world *world, uint32_t rank);

#endif
