/* SPDX-License-Identifier: Apache-2.0
 *
 * cover.h - do boxes fill a tensor, each element once? Exact, in any number of dimensions. Boxes of one tensor are few or
 * stand in a grid: then it takes about n log n steps and n times the boxes of a row; n squared at the very worst.
 */
#ifndef ISTHMUS_SYNC_COVER_H
#define ISTHMUS_SYNC_COVER_H

#include "base/ctx.h"

#include <isthmus/sync.h>

struct ist__box {
	const uint64_t *begin, *extent; /* rank of them; inside the whole. An extent of 0: it holds nothing */
};

enum ist__cover { IST__COVERED, IST__COVER_TWICE, IST__COVER_MISSING, IST__COVER_NO_MEMORY };

struct ist__cover_flaw {
	uint64_t a, b;                                /* TWICE: numbers of two boxes, a < b */
	uint64_t begin[IST_DIMS_MAX], end[IST_DIMS_MAX]; /* TWICE: what both have; MISSING: a box that nobody has */
};

/* The product of whole fits into 64 bits. *flaw is written for TWICE and MISSING; the same for equal boxes in equal order. */
enum ist__cover ist__cover_check(const struct ist__ctx *ctx, const struct ist__box *boxes, uint64_t n, const uint64_t *whole,
	uint32_t rank, struct ist__cover_flaw *flaw);

#endif
