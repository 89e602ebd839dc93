/* SPDX-License-Identifier: Apache-2.0
 *
 * sink.h - where an update ends. The engine sees the ist__sink_* calls; each kind of sink is a table of operations. All
 * but pieces come from one thread; pieces of different ranges may come from several at once (custom sinks apart).
 *
 *     begin -> piece ... -> prepare -> commit, and abort instead from any of them on
 */
#ifndef ISTHMUS_CKPT_SINK_H
#define ISTHMUS_CKPT_SINK_H

#include "base/env.h"
#include "ckpt/slice.h"
#include "plug/far.h"

/* m is lent until commit or abort has returned. */
struct ist__sink_kind {
	const char *name;
	ist_err (*begin)(void *self, const struct ist__manifest *m, uint64_t version, struct ist_error *err);
	ist_err (*piece)(void *self, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err);
	/* The runs of a slice: r->count pieces of r->bytes each, dense at addr. NULL: each becomes a piece. */
	ist_err (*runs)(void *self, uint64_t item, const struct ist__runs *r, const void *addr, struct ist_error *err);
	ist_err (*prepare)(void *self, struct ist_error *err);
	/* Does what prepare has made sure of. It can still fail where the system changes its mind: the old version stands. */
	ist_err (*commit)(void *self, uint64_t version, struct ist_error *err);
	void (*abort)(void *self, bool dirty);
	void (*free)(void *self);
	/* Where an item's bytes go on the sink's device; NULL: into none of its places. Only of sinks that have a device. */
	void *(*place)(const void *self, uint64_t item);
	ist_err (*tensor)(void *self, const char *name, struct ist_tensor *out, struct ist_error *err); /* NULL: has none */
	bool one_place; /* aliases share their place here: pieces come for the owner alone */
	bool drops;     /* what comes is not looked at */
};

enum ist__sink_state { IST__SINK_IDLE, IST__SINK_BEGUN, IST__SINK_READY };

struct ist_sink {
	struct ist__handle handle;
	const struct ist__sink_kind *kind;
	void *self;
	enum ist__sink_state state;
	const struct ist__manifest *m;  /* while an update is under way */
	uint64_t *next_alias;           /* by item: the next one of the same bytes, 0: none. NULL: no aliases */
	uint32_t touched;               /* a piece has come; atomic */
	bool raw;                       /* wants raw items too */
	bool in_place;                  /* pieces overwrite what is in use */
	uint32_t mem;                   /* of its places, where the kind tells them; else IST_MEM_HOST */
	int32_t device;
};

/* Copies to be made, in one go. */
struct ist__copies {
	const struct ist__ctx *ctx;
	struct ist_copy *at;
	uint64_t n, room;
};

ist_err ist__sink_begin(struct ist_sink *sink, const struct ist__manifest *m, uint64_t version, struct ist_error *err);
/* bytes of item from offset on. Those of a slice go to where they belong in its tensor: kinds hear of tensors alone.
 * Aliases get the bytes of their owner here: pass owners only. Raw items are dropped by sinks that do not want them; zero
 * bytes may be passed or not. */
ist_err ist__sink_piece(
	struct ist_sink *sink, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err);
/* Does what it takes come to rest on that device, or nowhere? Then copies there can be made instead of pieces. */
bool ist__sink_is_on(const struct ist_sink *sink, uint32_t mem, int32_t device);
/* What ist__sink_piece would do, as copies from addr, which is memory of the device; who makes them makes them before prepare. */
ist_err ist__sink_copies(struct ist_sink *sink, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist__copies *out,
	struct ist_error *err);
bool ist__copies_add(struct ist__copies *c, void *dst, const void *src, uint64_t bytes);
ist_err ist__sink_prepare(struct ist_sink *sink, struct ist_error *err);
ist_err ist__sink_commit(struct ist_sink *sink, uint64_t version, struct ist_error *err);
/* True: DIRTY, bytes of the old version are gone. Nothing under way: false. */
bool ist__sink_abort(struct ist_sink *sink);
bool ist__sink_wants_raw(const struct ist_sink *sink);

/* Makes one; takes self over also when it fails (kind->free). */
ist_err ist__sink_make(struct ist_env *env, const struct ist__sink_kind *kind, void *self, bool raw, bool in_place,
	struct ist_sink **out, struct ist_error *err);

/* NO_MEMORY where a control group would kill who takes that much, with its limit. */
ist_err ist__sink_check_memory(uint64_t need, struct ist_error *err);

ist_err ist__sink_dir_open(struct ist_env *env, const char *path, uint32_t flags, struct ist_sink **out, struct ist_error *err);
ist_err ist__sink_shm_open(struct ist_env *env, const char *name, uint32_t flags, struct ist_sink **out, struct ist_error *err);
ist_err ist__sink_mem_open(struct ist_env *env, const struct ist_sink_args *args, struct ist_sink **out, struct ist_error *err);
/* The same into memory of the callers. */
ist_err ist__sink_places_open(struct ist_env *env, const struct ist_sink_args *args, struct ist_sink **out, struct ist_error *err);

/* Between the kinds: the sink has its places on that device; the runs of a slice go to a tensor there. */
void ist__sink_set_far(struct ist_sink *sink, uint32_t mem, int32_t device);
ist_err ist__sink_ferry_runs(struct ist__ferry *y, void *place, const struct ist__runs *r, const void *addr, struct ist_error *err);
ist_err ist__sink_null_open(struct ist_env *env, struct ist_sink **out, struct ist_error *err);

#endif
