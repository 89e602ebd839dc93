/* SPDX-License-Identifier: Apache-2.0 */
#include "plug/far.h"

#include "base/clock.h"
#include "base/fail.h"
#include "plug/plug.h"

#include <isthmus.h>

#include <sched.h>
#include <time.h>

#define SPIN_NS INT64_C(200000)
#define NAP_NS 20000
#define PATIENCE_NS (60 * IST_NS_PER_S) /* a copy that takes longer is not one that will end */

static ist_err
fail_far(const struct ist__far *f, ist_err e, const struct ist_status *why, const char *what, struct ist_error *err)
{
	ist__fail(err, e, f->op, "device %s:%d: %s: %s", f->dev->name, f->index, what, why->text[0] ? why->text : ist_err_text(e));
	if (err)
		err->sys = why->sys;
	return e;
}

#define ASK(f, what, err, slot, ...) \
	do { \
		struct ist_status why_ = { .struct_size = sizeof(why_), .rank = IST_NO_RANK }; \
		ist_err e_ = (f)->dev->slot((f)->dev->self, __VA_ARGS__, &why_); \
\
		return e_ ? fail_far(f, e_, &why_, what, err) : IST_OK; \
	} while (0)

static const char *
kind_name(uint32_t mem)
{
	return mem == IST_MEM_CUDA ? "cuda" : mem == IST_MEM_ASCEND ? "ascend" : "unknown";
}

ist_err
ist__far_find(struct ist_env *env, uint32_t mem, int32_t index, const char *op, struct ist__far *out, struct ist_error *err)
{
	struct ist_device_info info = { .struct_size = sizeof(info) };
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	ist_err e;

	*out = (struct ist__far){ .op = op, .mem = mem, .index = index };
	if (!ist__is_far(mem) || mem > IST_MEM_ASCEND || index < 0)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "there can be no memory of kind %u on device %d", mem, index);
	out->dev = ist__plug_device(env, mem);
	if (!out->dev) {
		ist__fail(err, IST_UNSUPPORTED, op, "no %s device can be used here", kind_name(mem));
		ist__fail_next(err, "isthmus backends says why");
		return IST_UNSUPPORTED;
	}
	e = out->dev->info(out->dev->self, index, &info, &why);
	return e ? fail_far(out, e, &why, "info", err) : IST_OK;
}

ist_err
ist__far_alloc(const struct ist__far *f, uint32_t mem, uint32_t flags, uint64_t bytes, void **out, struct ist_error *err)
{
	ASK(f, "no memory", err, alloc, f->index, mem, flags, bytes, out);
}

void
ist__far_free(const struct ist__far *f, uint32_t mem, void *addr)
{
	if (addr)
		f->dev->free(f->dev->self, f->index, mem, addr);
}

ist_err
ist__far_stream_new(const struct ist__far *f, void **out, struct ist_error *err)
{
	ASK(f, "no stream", err, stream_new, f->index, out);
}

void
ist__far_stream_free(const struct ist__far *f, void *stream)
{
	if (stream)
		f->dev->stream_free(f->dev->self, f->index, stream);
}

ist_err
ist__far_event_new(const struct ist__far *f, void **out, struct ist_error *err)
{
	ASK(f, "no event", err, event_new, f->index, 0, out);
}

void
ist__far_event_free(const struct ist__far *f, void *event)
{
	if (event)
		f->dev->event_free(f->dev->self, f->index, event);
}

ist_err
ist__far_copy(const struct ist__far *f, const struct ist_copy *list, uint64_t n, void *stream, struct ist_error *err)
{
	if (n == 0)
		return IST_OK;
	ASK(f, "copy", err, copy, f->index, list, n, stream);
}

ist_err
ist__far_digest(const struct ist__far *f, const struct ist_copy *list, uint64_t n, void *stream, struct ist_error *err)
{
	if (n == 0)
		return IST_OK;
	ASK(f, "digest", err, digest, f->index, list, n, stream);
}

ist_err
ist__far_mark(const struct ist__far *f, void *event, void *stream, struct ist_error *err)
{
	ASK(f, "event", err, event_record, f->index, event, stream);
}

ist_err
ist__far_after(const struct ist__far *f, void *stream, void *event, struct ist_error *err)
{
	ASK(f, "stream", err, stream_wait, f->index, stream, event);
}

static ist_err
query(const struct ist__far *f, void *event, uint32_t *done, struct ist_error *err)
{
	ASK(f, "event", err, event_query, f->index, event, done);
}

ist_err
ist__far_query(const struct ist__far *f, void *event, bool *done, struct ist_error *err)
{
	uint32_t come = 0;
	ist_err e = query(f, event, &come, err);

	*done = !e && come;
	return e;
}

void
ist__far_pause(int64_t began)
{
	const struct timespec nap = { .tv_nsec = NAP_NS };

	if (ist__now() - began < SPIN_NS)
		sched_yield();
	else
		nanosleep(&nap, NULL);
}

ist_err
ist__far_wait(const struct ist__far *f, void *event, int64_t deadline, struct ist_error *err)
{
	int64_t began = ist__now();
	bool done = false;
	ist_err e = IST_OK;

	while (!e && !done) {
		e = ist__far_query(f, event, &done, err);
		if (!e && !done && ist__now() >= deadline)
			e = ist__fail(err, IST_TIMEOUT, f->op, "device %s:%d has not finished in time", f->dev->name, f->index);
		if (!e && !done)
			ist__far_pause(began);
	}
	return e;
}

/* ---- the ferry ---- */

ist_err
ist__ferry_open(struct ist_env *env, uint32_t mem, int32_t index, const char *op, struct ist__ferry *y, struct ist_error *err)
{
	ist_err e;

	*y = (struct ist__ferry){ .far = { .op = op } };
	e = ist__far_find(env, mem, index, op, &y->far, err);
	if (e) {
		y->far.dev = NULL;
		return e;
	}
	pthread_mutex_init(&y->lock, NULL);
	e = ist__far_stream_new(&y->far, &y->stream, err);
	if (!e)
		e = ist__far_event_new(&y->far, &y->event, err);
	if (e)
		ist__ferry_close(y);
	return e;
}

void
ist__ferry_close(struct ist__ferry *y)
{
	if (!y->far.dev)
		return;
	ist__far_event_free(&y->far, y->event);
	ist__far_stream_free(&y->far, y->stream);
	pthread_mutex_destroy(&y->lock);
	y->far.dev = NULL;
}

ist_err
ist__ferry_copy(struct ist__ferry *y, const struct ist_copy *list, uint64_t n, struct ist_error *err)
{
	ist_err e, marked;

	pthread_mutex_lock(&y->lock);
	e = ist__far_copy(&y->far, list, n, y->stream, err);
	/* also after an error: some of them may be under way */
	marked = ist__far_mark(&y->far, y->event, y->stream, e ? NULL : err);
	if (!marked)
		marked = ist__far_wait(&y->far, y->event, ist__now() + PATIENCE_NS, e ? NULL : err);
	pthread_mutex_unlock(&y->lock);
	return e ? e : marked;
}
