/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_share.c - memory and events for other processes of this host, by the driver's own handles. A handle stands for a whole
 * allocation, so what is shared is that and an offset. Only what cuMemAlloc gave has one; both processes have to live in one
 * PID namespace.
 */
#include "devices/cuda_int.h"

#include <string.h>

enum { MAGIC = 0x31756349, KIND_MEMORY = 1, KIND_EVENT = 2 };

struct handle {
	uint32_t magic, kind;
	uint64_t offset, bytes; /* of the buffer in its allocation */
	struct cu_ipc ipc;
};

static ist_err
cuda_share(void *self, const struct ist_buf *buf, void *handle, uint64_t *bytes, int32_t *fd, struct ist_status *why)
{
	struct ist__cuda *c = self;
	struct handle h = { .magic = MAGIC, .kind = KIND_MEMORY, .bytes = buf->bytes };
	unsigned legacy = 0;
	cu_ptr base = 0;
	size_t all = 0;
	ist_err e;

	if (*bytes < sizeof(h))
		return ist__cuda_say(why, IST_INVALID_ARGUMENT, 0, "a handle has %zu bytes", sizeof(h));
	e = ist__cuda_enter(c, buf->device, why);
	if (e)
		return e;
	if (c->api.pointer(&legacy, CU_POINTER_LEGACY_IPC, ist__cu(buf->addr)) != CU_OK || !legacy)
		e = ist__cuda_say(why, IST_UNSUPPORTED, 0, "memory of a pool, or mapped piece by piece, has no handle: copy it to plain memory first");
	if (!e)
		e = ist__cuda_said(c, c->api.mem_range(&base, &all, ist__cu(buf->addr)), "cuMemGetAddressRange", why);
	if (!e)
		e = ist__cuda_said(c, c->api.ipc_get(&h.ipc, base), "cuIpcGetMemHandle", why);
	ist__cuda_leave(c);
	if (e)
		return e;
	h.offset = ist__cu(buf->addr) - base;
	memcpy(handle, &h, sizeof(h));
	*bytes = sizeof(h);
	*fd = -1;
	return IST_OK;
}

static ist_err
read_handle(const struct ist_wire *wire, uint32_t kind, struct handle *out, struct ist_status *why)
{
	if (wire->bytes != sizeof(*out))
		return ist__cuda_say(why, IST_BAD_HANDLE, 0, "a handle has %zu bytes, this one %llu", sizeof(*out), (unsigned long long)wire->bytes);
	memcpy(out, wire->addr, sizeof(*out));
	return out->magic == MAGIC && out->kind == kind ? IST_OK : ist__cuda_say(why, IST_BAD_HANDLE, 0, "it is no handle of this device");
}

static ist_err
cuda_map(void *self, int32_t index, const struct ist_wire *handle, struct ist_buf *out, struct ist_status *why)
{
	struct ist__cuda *c = self;
	struct handle h;
	cu_ptr at = 0, base = 0;
	size_t all = 0;
	ist_err e = read_handle(handle, KIND_MEMORY, &h, why);

	if (!e)
		e = ist__cuda_enter(c, index, why);
	if (e)
		return e;
	e = ist__cuda_said(c, c->api.ipc_open(&at, h.ipc, CU_IPC_LAZY_PEER), "cuIpcOpenMemHandle", why);
	if (!e && (c->api.mem_range(&base, &all, at) != CU_OK || h.offset > all || h.bytes > all - h.offset)) {
		(void)c->api.ipc_close(at);
		e = ist__cuda_say(why, IST_BAD_HANDLE, 0, "the handle says more bytes than its memory has");
	}
	ist__cuda_leave(c);
	if (!e)
		*out = (struct ist_buf){ .addr = (void *)(uintptr_t)(at + h.offset), .bytes = h.bytes, .mem = IST_MEM_CUDA, .how = IST_MEM_IMPORTED,
			.device = index };
	return e;
}

static void
cuda_unmap(void *self, struct ist_buf *buf)
{
	struct ist__cuda *c = self;
	cu_ptr base = 0;
	size_t all = 0;

	if (ist__cuda_enter(c, buf->device, NULL))
		return;
	if (c->api.mem_range(&base, &all, ist__cu(buf->addr)) == CU_OK)
		(void)c->api.ipc_close(base);
	ist__cuda_leave(c);
}

static ist_err
cuda_event_share(void *self, int32_t index, void *event, void *handle, uint64_t *bytes, struct ist_status *why)
{
	struct ist__cuda *c = self;
	struct handle h = { .magic = MAGIC, .kind = KIND_EVENT };
	ist_err e;

	if (*bytes < sizeof(h))
		return ist__cuda_say(why, IST_INVALID_ARGUMENT, 0, "a handle has %zu bytes", sizeof(h));
	e = ist__cuda_enter(c, index, why);
	if (e)
		return e;
	e = ist__cuda_said(c, c->api.ipc_event_get(&h.ipc, event), "cuIpcGetEventHandle", why);
	ist__cuda_leave(c);
	if (e)
		return e;
	memcpy(handle, &h, sizeof(h));
	*bytes = sizeof(h);
	return IST_OK;
}

static ist_err
cuda_event_map(void *self, int32_t index, const struct ist_wire *handle, void **event, struct ist_status *why)
{
	struct ist__cuda *c = self;
	struct handle h;
	ist_err e = read_handle(handle, KIND_EVENT, &h, why);

	if (!e)
		e = ist__cuda_enter(c, index, why);
	if (e)
		return e;
	e = ist__cuda_said(c, c->api.ipc_event_open(event, h.ipc), "cuIpcOpenEventHandle", why);
	ist__cuda_leave(c);
	return e;
}

void
ist__cuda_share_slots(struct ist_device *table)
{
	table->share = cuda_share;
	table->map = cuda_map;
	table->unmap = cuda_unmap;
	table->event_share = cuda_event_share;
	table->event_map = cuda_event_map;
}
