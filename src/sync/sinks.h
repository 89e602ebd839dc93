/* SPDX-License-Identifier: Apache-2.0
 *
 * sinks.h - the sinks that one member has registered, as one.
 */
#ifndef ISTHMUS_SYNC_SINKS_H
#define ISTHMUS_SYNC_SINKS_H

#include "ckpt/sink.h"

struct ist__sinks {
	const struct ist__ctx *ctx;
	struct ist_sink **list;
	uint64_t n, room;
	bool raw, in_place;   /* any of them */
	uint64_t begun;       /* the first ones, in this update */
};

void ist__sinks_init(struct ist__sinks *k, const struct ist__ctx *ctx);
void ist__sinks_fini(struct ist__sinks *k); /* the sinks themselves are their owner's */
ist_err ist__sinks_add(struct ist__sinks *k, struct ist_sink *sink, struct ist_error *err);
/* Also finds those that were freed meanwhile: BAD_HANDLE. */
ist_err ist__sinks_begin(struct ist__sinks *k, const struct ist__manifest *m, uint64_t version, struct ist_error *err);
ist_err ist__sinks_piece(struct ist__sinks *k, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err);
/* On that device: those that take the bytes there, as copies; and the others, which need them in host memory. */
ist_err ist__sinks_copies(struct ist__sinks *k, const struct ist__far *far, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes,
	struct ist__copies *out, struct ist_error *err);
ist_err ist__sinks_piece_near(struct ist__sinks *k, const struct ist__far *far, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes,
	struct ist_error *err);
bool ist__sinks_any_near(const struct ist__sinks *k, const struct ist__far *far);
ist_err ist__sinks_prepare(struct ist__sinks *k, struct ist_error *err);
/* All of them; the first error is told. */
ist_err ist__sinks_commit(struct ist__sinks *k, uint64_t version, struct ist_error *err);
/* True: one of them is left with bytes of both versions. */
bool ist__sinks_abort(struct ist__sinks *k);

#endif
