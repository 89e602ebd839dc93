/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.h - copying large pieces of memory with whatever is fastest here. Which loop wins differs between machines that
 * call themselves alike, by factors, so a copier tries each on pieces of the first large transfer, keeps the fastest and
 * costs nothing more. All channels of an env share their copiers; ISTHMUS_COPY, or the option copy, names the loop instead.
 */
#ifndef IST_HOST_COPY_H
#define IST_HOST_COPY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define COPY_WAYS 6u

struct copier {
	uint32_t ways[COPY_WAYS]; /* the loops that this CPU can run */
	uint32_t n_ways;
	_Atomic uint32_t pick;    /* the one in use */
	_Atomic uint32_t turns;   /* trials begun */
	_Atomic uint32_t tried;   /* and ended */
	_Atomic bool learning;
	_Atomic uint64_t best[COPY_WAYS]; /* nanoseconds for a MiB */
};

/* Those of an env. */
struct copiers {
	struct copier out;    /* ring or stage to memory */
	struct copier direct; /* memory to memory */
	struct copier coop;   /* memory to several */
};

#define COPY_LEARN (UINT64_C(8) << 20) /* smaller transfers are not worth a trial */

/* calibrate false: takes what is usually best. */
void ist__host_copier_init(struct copier *copier, bool calibrate);
/* False: no loop of that name, or this CPU can't run it. From then on nothing is tried. */
bool ist__host_copier_fix(struct copier *copier, const char *name);
/* What was written is visible to whoever sees a later release store. The areas never overlap. whole: bytes of the transfer
 * of which this is a piece. True: with this piece the copier has chosen. */
bool ist__host_copy(struct copier *copier, uint64_t whole, void *to, const void *from, uint64_t bytes);
/* The same bytes to several places: each block is read from memory once. */
bool ist__host_copy_many(struct copier *copier, uint64_t whole, void *const *to, uint32_t n, const void *from, uint64_t bytes);
/* Names of the loops that this CPU can run, for messages. */
void ist__host_copy_names(char *to, uint64_t room);
/* Name of the loop in use; for logs. */
const char *ist__host_copier_name(const struct copier *copier);
/* All loops, for tests: NULL past the last. False: this CPU can't. */
const char *ist__host_copy_name(uint32_t way);
bool ist__host_copy_with(uint32_t way, void *to, const void *from, uint64_t bytes);

#endif
