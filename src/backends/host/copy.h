/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.h - copying large pieces of memory with whatever is fastest here. Which loop wins differs between machines that
 * call themselves alike, so a copier tries each on the first real pieces, keeps the fastest and costs nothing more.
 */
#ifndef IST_HOST_COPY_H
#define IST_HOST_COPY_H

#include <stdbool.h>
#include <stdint.h>

#define COPY_WAYS 6u

struct copier {
	uint32_t ways[COPY_WAYS]; /* the loops that this CPU can run */
	uint32_t n_ways;
	uint32_t pick;            /* the one in use */
	uint32_t turns;           /* trials so far */
	bool learning;
	uint64_t best[COPY_WAYS]; /* nanoseconds for a MiB */
};

/* calibrate false: takes what is usually best. */
void ist__host_copier_init(struct copier *copier, bool calibrate);
/* What was written is visible to whoever sees a later release store. The areas never overlap. */
void ist__host_copy(struct copier *copier, void *to, const void *from, uint64_t bytes);
/* The same bytes to several places: each block is read from memory once. */
void ist__host_copy_many(struct copier *copier, void *const *to, uint32_t n, const void *from, uint64_t bytes);
/* Name of the loop in use; for logs. */
const char *ist__host_copier_name(const struct copier *copier);
/* All loops, for tests: NULL past the last. False: this CPU can't. */
const char *ist__host_copy_name(uint32_t way);
bool ist__host_copy_with(uint32_t way, void *to, const void *from, uint64_t bytes);

#endif
