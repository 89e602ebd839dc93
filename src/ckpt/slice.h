/* SPDX-License-Identifier: Apache-2.0
 *
 * slice.h - where a slice lies in the tensor that it is a box of. Its own bytes are dense; in the tensor they are runs,
 * each contiguous, at regular distances. This file turns a stretch of the one into runs of the other. It moves nothing.
 */
#ifndef ISTHMUS_CKPT_SLICE_H
#define ISTHMUS_CKPT_SLICE_H

#include "ckpt/manifest.h"

/* count runs of bytes each, the first at offset in the tensor, the next ones stride bytes apart. Those of a slice rise. */
struct ist__runs {
	uint64_t offset, bytes, stride, count;
};

/* A slice seen from its tensor. Dimensions that are whole are one with their neighbour, so that runs are as long as can be. */
struct ist__scatter {
	uint64_t base;   /* first byte in the tensor */
	uint64_t run;    /* bytes that lie together; 0: the slice has none */
	uint32_t levels;
	struct {
		uint64_t count, stride;
	} level[IST_DIMS_MAX]; /* the innermost first */
};

/* The rules: inside its tensor, less than all of it, and every run at a whole byte. t has passed ist__tensor_check. */
ist_err ist__slice_check(const struct ist__item *t, const char *op, struct ist_error *err);
/* Is a box of extents shape at begin all of a tensor of shape whole? */
bool ist__slice_is_all(const uint64_t *shape, const uint64_t *begin, const uint64_t *whole, uint32_t rank);
/* t has passed ist__slice_check. */
void ist__scatter_init(struct ist__scatter *s, const struct ist__item *t);
/* Runs for as many as it can say at once of the bytes from at on, of left bytes. Returns how many bytes they are. */
uint64_t ist__scatter_next(const struct ist__scatter *s, uint64_t at, uint64_t left, struct ist__runs *out);

/* Copies the runs from dense bytes to where they belong, counted from the first one's place. */
void ist__runs_copy(void *to, const struct ist__runs *r, const void *from);

/* Enters a slice into a digest over all slices of a tensor; those without bytes do not enter. */
void ist__slice_hash(struct ist__hasher *h, const struct ist__item *t, const struct ist__digest *digest);
/* By begin, then by extents. */
int ist__slice_order(const struct ist__item *a, const struct ist__item *b);

/* "[3584:4096, 0:1024]"; cut off where it does not fit. */
void ist__box_text(const uint64_t *begin, const uint64_t *end, uint32_t rank, char *text, uint64_t room);

#endif
