/* SPDX-License-Identifier: Apache-2.0
 *
 * wrap_trace.c - "trace:NAME": says in the log what is asked of a backend and how it ends. Level debug, one line a start
 * and one a task's end.
 */
#include "plug/wrap.h"

#include "base/clock.h"
#include "base/fail.h"

#include <isthmus.h>

static const char *
kind_name(uint32_t kind)
{
	static const char *const names[] = { "?", "send", "recv", "broadcast", "all_gather", "all_reduce", "reduce_scatter",
		"gather", "scatter", "all_to_all", "barrier", "read", "suspend", "resume" };

	return names[kind < sizeof(names) / sizeof(names[0]) ? kind : 0];
}

static ist_err
trace_start(struct ist_chan *chan, struct ist_task *task, struct ist_status *why)
{
	(void)why;
	for (uint64_t i = 0; i < task->n; i++) {
		const struct ist_op *op = &task->ops[i];

		ist__log(chan->wrap->ctx, IST_LOG_DEBUG, "trace %s rank %u start %llu op %llu of %llu %s peer %u seq %llu src %llu dst %llu",
			chan->wrap->inner->name, chan->rank, (unsigned long long)task->no, (unsigned long long)i + 1,
			(unsigned long long)task->n, kind_name(op->kind), op->peer, (unsigned long long)op->seq,
			(unsigned long long)op->src.bytes, (unsigned long long)op->dst.bytes);
	}
	return IST_OK;
}

static void
trace_done(struct ist_chan *chan, struct ist_task *task, ist_err result, const struct ist_status *status)
{
	ist__log(chan->wrap->ctx, IST_LOG_DEBUG, "trace %s rank %u start %llu ended %s state %u moved %llu us %lld",
		chan->wrap->inner->name, chan->rank, (unsigned long long)task->no, ist_err_name(result), status->state,
		(unsigned long long)status->moved, (long long)((ist__now() - task->began) / 1000));
}

static void
trace_event(struct ist_chan *chan, const char *what, ist_err result)
{
	ist__log(chan->wrap->ctx, IST_LOG_DEBUG, "trace %s rank %u of %u %s %s", chan->wrap->inner->name, chan->rank, chan->size, what,
		ist_err_name(result));
}

static const struct ist__wrap_hooks trace_hooks = { .start = trace_start, .done = trace_done, .event = trace_event };

ist_err
ist__wrap_trace(struct ist__wrap *wrap, const char *spec, struct ist_error *err)
{
	if (*spec)
		return ist__fail(err, IST_BAD_CONFIG, "backend_get", "trace takes no settings, \"%s\" was given; write trace:NAME", spec);
	wrap->hooks = &trace_hooks;
	return IST_OK;
}
