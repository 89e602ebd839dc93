/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_mem.c - memory of the GPU and pinned memory of the host, copies, streams and events.
 */
#include "devices/cuda_int.h"

/* A call inside the device's context. */
#define INSIDE(c, index, why, what, call) \
	do { \
		ist_err e_ = ist__cuda_enter(c, index, why); \
\
		if (!e_) { \
			e_ = ist__cuda_said(c, call, what, why); \
			ist__cuda_leave(c); \
		} \
		return e_; \
	} while (0)

/* ---- memory ---- */

static ist_err
cuda_alloc(void *self, int32_t index, uint32_t mem, uint32_t flags, uint64_t bytes, void **out, struct ist_status *why)
{
	struct ist__cuda *c = self;
	cu_ptr at = 0;
	ist_err e;

	(void)flags; /* what cuMemAlloc gives can be shared */
	if (mem != IST_MEM_CUDA && mem != IST_MEM_PINNED)
		return ist__cuda_say(why, IST_UNSUPPORTED, 0, "memory of kind %u", mem);
	e = ist__cuda_enter(c, index, why);
	if (e)
		return e;
	if (mem == IST_MEM_PINNED)
		e = ist__cuda_said(c, c->api.host_alloc(out, bytes, CU_HOST_PORTABLE), "cuMemHostAlloc", why);
	else
		e = ist__cuda_said(c, c->api.mem_alloc(&at, bytes), "cuMemAlloc", why);
	if (!e && mem == IST_MEM_CUDA)
		*out = (void *)(uintptr_t)at;
	ist__cuda_leave(c);
	return e;
}

static void
cuda_free(void *self, int32_t index, uint32_t mem, void *addr)
{
	struct ist__cuda *c = self;

	if (!addr || ist__cuda_enter(c, index, NULL))
		return;
	if (mem == IST_MEM_PINNED)
		(void)c->api.host_free(addr);
	else
		(void)c->api.mem_free(ist__cu(addr));
	ist__cuda_leave(c);
}

/* ---- pinning ---- */

static bool
is_pinned(const struct ist__cuda *c, const void *addr)
{
	unsigned type = 0;

	return c->api.pointer(&type, CU_POINTER_TYPE, ist__cu(addr)) == CU_OK && type == CU_TYPE_HOST;
}

static bool
note_pin(struct ist__cuda *c, void *addr, uint64_t bytes)
{
	struct ist__cuda_pin *p = ist__alloc(c->ctx, sizeof(*p));

	if (!p)
		return false;
	*p = (struct ist__cuda_pin){ .addr = addr, .bytes = bytes };
	pthread_mutex_lock(&c->lock);
	p->next = c->pins;
	c->pins = p;
	pthread_mutex_unlock(&c->lock);
	return true;
}

static ist_err
pin(struct ist__cuda *c, int32_t index, void *addr, uint64_t bytes, uint32_t flags, struct ist_status *why)
{
	unsigned how = CU_HOST_PORTABLE;
	int can = 0, code;

	if (flags & IST_PIN_READ_ONLY) {
		if (c->api.device_attribute(&can, CU_READ_ONLY_REGISTER, c->at[index].device) != CU_OK || !can)
			return ist__cuda_say(why, IST_UNSUPPORTED, 0, "this GPU can't pin memory that is mapped read-only");
		how |= CU_HOST_READ_ONLY;
	}
	code = c->api.host_register(addr, bytes, how);
	if (code == CU_OK && !note_pin(c, addr, bytes)) {
		(void)c->api.host_unregister(addr);
		return IST_NO_MEMORY;
	}
	if (code != CU_ALREADY_REGISTERED)
		return ist__cuda_said(c, code, "cuMemHostRegister", why);
	if (is_pinned(c, addr) && is_pinned(c, (const char *)addr + bytes - 1))
		return IST_OK; /* by somebody else, whose it stays */
	return ist__cuda_say(why, IST_UNSUPPORTED, code, "a part of it is pinned by somebody else");
}

static ist_err
cuda_pin(void *self, int32_t index, void *addr, uint64_t bytes, uint32_t flags, struct ist_status *why)
{
	struct ist__cuda *c = self;
	ist_err e;

	if (!addr || bytes == 0)
		return ist__cuda_say(why, IST_INVALID_ARGUMENT, 0, "no memory to pin");
	e = ist__cuda_enter(c, index, why);
	if (e)
		return e;
	e = pin(c, index, addr, bytes, flags, why);
	ist__cuda_leave(c);
	return e;
}

/* What was pinned before we came stays so. */
static void
cuda_unpin(void *self, int32_t index, void *addr, uint64_t bytes)
{
	struct ist__cuda *c = self;
	struct ist__cuda_pin *p, **at;

	pthread_mutex_lock(&c->lock);
	for (at = &c->pins; *at && !((*at)->addr == addr && (*at)->bytes == bytes); at = &(*at)->next)
		continue;
	p = *at;
	if (p)
		*at = p->next;
	pthread_mutex_unlock(&c->lock);
	if (p && ist__cuda_enter(c, index, NULL) == IST_OK) {
		(void)c->api.host_unregister(addr);
		ist__cuda_leave(c);
	}
	ist__free(c->ctx, p);
}

/* ---- streams, copies, events ---- */

static ist_err
cuda_stream_new(void *self, int32_t index, void **out, struct ist_status *why)
{
	struct ist__cuda *c = self;

	INSIDE(c, index, why, "cuStreamCreate", c->api.stream_create(out, CU_STREAM_NON_BLOCKING));
}

static void
cuda_stream_free(void *self, int32_t index, void *stream)
{
	struct ist__cuda *c = self;

	if (!stream || ist__cuda_enter(c, index, NULL))
		return;
	(void)c->api.stream_destroy(stream);
	ist__cuda_leave(c);
}

static ist_err
cuda_copy(void *self, int32_t index, const struct ist_copy *list, uint64_t n, void *stream, struct ist_status *why)
{
	struct ist__cuda *c = self;
	ist_err e = ist__cuda_enter(c, index, why);

	if (e)
		return e;
	for (uint64_t i = 0; i < n && !e; i++)
		if (list[i].bytes > 0)
			e = ist__cuda_said(c, c->api.copy(ist__cu(list[i].dst), ist__cu(list[i].src), list[i].bytes, stream), "cuMemcpyAsync", why);
	ist__cuda_leave(c);
	return e;
}

static ist_err
cuda_event_new(void *self, int32_t index, uint32_t flags, void **out, struct ist_status *why)
{
	struct ist__cuda *c = self;
	unsigned how = flags & IST_EVENT_SHARE ? CU_EVENT_NO_TIMING | CU_EVENT_INTERPROCESS : flags & IST_EVENT_TIME ? 0 : CU_EVENT_NO_TIMING;

	INSIDE(c, index, why, "cuEventCreate", c->api.event_create(out, how));
}

static ist_err
cuda_event_record(void *self, int32_t index, void *event, void *stream, struct ist_status *why)
{
	struct ist__cuda *c = self;

	INSIDE(c, index, why, "cuEventRecord", c->api.event_record(event, stream));
}

static ist_err
cuda_event_query(void *self, int32_t index, void *event, uint32_t *done, struct ist_status *why)
{
	struct ist__cuda *c = self;
	int code;
	ist_err e = ist__cuda_enter(c, index, why);

	if (e)
		return e;
	code = c->api.event_query(event);
	ist__cuda_leave(c);
	*done = code == CU_OK;
	return code == CU_NOT_READY ? IST_OK : ist__cuda_said(c, code, "cuEventQuery", why);
}

static ist_err
cuda_stream_wait(void *self, int32_t index, void *stream, void *event, struct ist_status *why)
{
	struct ist__cuda *c = self;

	INSIDE(c, index, why, "cuStreamWaitEvent", c->api.stream_wait(stream, event, 0));
}

static void
cuda_event_free(void *self, int32_t index, void *event)
{
	struct ist__cuda *c = self;

	if (!event || ist__cuda_enter(c, index, NULL))
		return;
	(void)c->api.event_destroy(event);
	ist__cuda_leave(c);
}

static ist_err
cuda_event_ns(void *self, int32_t index, void *from, void *to, int64_t *ns, struct ist_status *why)
{
	struct ist__cuda *c = self;
	float ms = 0;
	ist_err e = ist__cuda_enter(c, index, why);

	if (e)
		return e;
	e = ist__cuda_said(c, c->api.event_elapsed(&ms, from, to), "cuEventElapsedTime", why);
	ist__cuda_leave(c);
	if (!e)
		*ns = (int64_t)((double)ms * 1e6);
	return e;
}

void
ist__cuda_mem_slots(struct ist_device *table)
{
	table->alloc = cuda_alloc;
	table->free = cuda_free;
	table->pin = cuda_pin;
	table->unpin = cuda_unpin;
	table->stream_new = cuda_stream_new;
	table->stream_free = cuda_stream_free;
	table->copy = cuda_copy;
	table->event_new = cuda_event_new;
	table->event_record = cuda_event_record;
	table->event_query = cuda_event_query;
	table->stream_wait = cuda_stream_wait;
	table->event_free = cuda_event_free;
	table->event_ns = cuda_event_ns;
}
