/* SPDX-License-Identifier: Apache-2.0
 *
 * parts.h - tensors that sources give in slices, in the manifest of the whole: there is an item for the tensor, which does
 * not move, and one for each slice, which does.
 */
#ifndef ISTHMUS_SYNC_PARTS_H
#define ISTHMUS_SYNC_PARTS_H

#include "sync/table.h"

/* What who gave the same memory twice does next. */
#define IST__NEXT_ALIKE "register what several ranks hold alike as a checkpoint of its own, equal on those ranks"

/* Slices in the manifests of all sets. */
uint64_t ist__parts_count(const struct ist__table *t);
/* After the merge: lists the slices of the whole by tensor, and sees that they are all of it, once. INCOMPLETE, OVERLAP. */
ist_err ist__parts_settle(struct ist__table *t, struct ist_error *err);
/* The slices of a tensor of the whole, by where they begin. */
const uint32_t *ist__parts_of(const struct ist__table *t, uint64_t item, uint64_t *n);
/* The digest that stands for an item of the whole: its own, or one over those of its slices. No memory is taken. */
void ist__parts_digest(const struct ist__table *t, const struct ist__digest *digests, uint64_t item, struct ist__digest *out);

#endif
