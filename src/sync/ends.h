/* SPDX-License-Identifier: Apache-2.0
 *
 * ends.h - the two ends of the pipeline, as host memory has them: how a bucket is filled from a source, and how it comes to the
 * sinks. Where the buckets lie on a device the ends are stage.h's, which share what is here.
 */
#ifndef ISTHMUS_SYNC_ENDS_H
#define ISTHMUS_SYNC_ENDS_H

#include "sync/sync.h"

/* Fills a bucket. What goes wrong is remembered as this member's failure. */
void ist__ends_give(struct ist__sync_body *s, uint64_t b, const struct ist__offer *giver, uint8_t *to);
/* Brings it to the sinks, and digests. mine: this member gave it. */
void ist__ends_take(struct ist__sync_body *s, uint64_t b, const uint8_t *from, bool mine);

/* ---- for both kinds ---- */

/* This member failed at a piece of its source: it concerns all, unlike a failure of its sink. */
void ist__ends_give_failed(struct ist__sync_body *s, struct ist_error *why, uint64_t b, const struct ist__plan_piece *p);
void ist__ends_take_failed(struct ist__sync_body *s, struct ist_error *why, uint64_t b, const struct ist__plan_piece *p);
/* Pieces from p on, of n, that lie back to back in a file and in the bucket: one read of *bytes. */
uint32_t ist__ends_run_of_file(const struct ist__table *t, const struct ist__manifest *m, const struct ist__plan_piece *p, uint32_t n, uint64_t *bytes);
/* Does what this member takes of a piece have to be digested here? What it gave from live memory has its leaves already. */
bool ist__ends_digests(const struct ist__sync_body *s, const struct ist__plan_piece *p, bool mine);
/* Where the leaves of a piece are kept. */
struct ist__digest *ist__ends_leaves(const struct ist__sync_body *s, const struct ist__plan_piece *p);
/* The last piece of an item has come: is it what its source has? Of live memory nobody knows yet. */
ist_err ist__ends_check_item(struct ist__sync_body *s, const struct ist__plan_piece *p, struct ist_error *why);

#endif
