/* SPDX-License-Identifier: Apache-2.0
 *
 * tally.h - a ctx that counts what it has given out and not yet got back: how much memory one thing holds. It goes with the
 * last of its memory, so that what outlives its owner for a while can still be given back.
 */
#ifndef ISTHMUS_BASE_TALLY_H
#define ISTHMUS_BASE_TALLY_H

#include "base/ctx.h"

struct ist__tally;

/* Over a ctx, which is copied; what it takes its memory from must live as long. NULL: no memory. */
struct ist__tally *ist__tally_new(const struct ist__ctx *under);
const struct ist__ctx *ist__tally_ctx(struct ist__tally *tally);
/* Bytes asked for below and not given back, its own among them. Any thread. */
uint64_t ist__tally_bytes(const struct ist__tally *tally);
/* The owner needs it no more. NULL is allowed. */
void ist__tally_drop(struct ist__tally *tally);

#endif
