/* SPDX-License-Identifier: Apache-2.0
 *
 * wrap.h - a backend around another one. wrap.c passes every slot on and keeps the books; a kind (trace, fault) looks on
 * and meddles through its hooks. Channels and tasks of the inner backend are opaque here, as they are to the core.
 */
#ifndef ISTHMUS_PLUG_WRAP_H
#define ISTHMUS_PLUG_WRAP_H

#include "base/ctx.h"
#include "plug/admit.h"

#include <stdatomic.h>

struct ist__wrap {
	struct ist__admitted made;          /* what the wrapper itself looks like */
	const struct ist__admitted *inner;
	const struct ist__ctx *ctx;
	const struct ist__wrap_hooks *hooks;
	void *state;                        /* the kind's */
};

struct ist_chan {
	const struct ist__wrap *wrap;
	const struct ist_host *host;
	struct ist_chan *inner;
	uint32_t rank, size;
	struct ist_task *tasks;
	uint64_t starts;                    /* begun here, from 1 */
	uint64_t extra;                     /* of ended: those that the inner one doesn't know of */
	_Atomic ist_err why;                /* set by abort */
	uint64_t flips;                     /* payloads that fault might have damaged so far */
};

enum ist__wrap_mode { IST__WRAP_PASS = 0, IST__WRAP_STALL, IST__WRAP_DROP };

struct ist_task {
	struct ist_task *next;
	struct ist_task *inner;             /* NULL: the inner backend never saw it */
	uint32_t mode;                      /* enum ist__wrap_mode */
	bool counted;                       /* its end is in extra */
	bool seen;                          /* hooks->done was called */
	uint64_t no;                        /* which start; 0: offer, connect, region */
	uint64_t n;
	int64_t began, not_before;
	struct ist_buf view;                /* instead of the inner one's, where addr is set */
	void *temp;                         /* a damaged copy of a src */
	bool temp_is_chan;                  /* temp is from the inner channel's alloc */
	struct ist_op ops[];                /* as handed to the inner backend */
};

struct ist__wrap_hooks {
	/* Before the inner start: may refuse, change task->mode, not_before and ops. */
	ist_err (*start)(struct ist_chan *chan, struct ist_task *task, struct ist_status *why);
	/* The task was found to have ended, once. */
	void (*done)(struct ist_chan *chan, struct ist_task *task, ist_err result, const struct ist_status *status);
	/* Anything else that happened. */
	void (*event)(struct ist_chan *chan, const char *what, ist_err result);
	void (*free)(struct ist__wrap *wrap);
};

/* Either takes what stands behind its own name ("trace" or "fault:SPEC") and fills wrap->hooks and state. */
ist_err ist__wrap_trace(struct ist__wrap *wrap, const char *spec, struct ist_error *err);
ist_err ist__wrap_fault(struct ist__wrap *wrap, const char *spec, struct ist_error *err);

/* name is the whole of what was asked for. The wrapper lives until ist__wrap_free; the inner one must live longer. */
ist_err ist__wrap_new(const struct ist__ctx *ctx, const char *name, const char *kind, const char *spec,
	const struct ist__admitted *inner, struct ist__wrap **out, struct ist_error *err);
void ist__wrap_free(struct ist__wrap *wrap);

#endif
