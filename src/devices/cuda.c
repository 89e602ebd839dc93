/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.c - finding the library and the GPUs, contexts, whose memory an address is.
 */
#include "devices/cuda_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

ist_err
ist__cuda_say(struct ist_status *why, ist_err e, int sys, const char *fmt, ...)
{
	va_list ap;

	if (!why)
		return e;
	why->sys = sys;
	va_start(ap, fmt);
	vsnprintf(why->text, sizeof(why->text), fmt, ap);
	va_end(ap);
	return e;
}

static ist_err
code_of(int code)
{
	switch (code) {
	case CU_OK: return IST_OK;
	case CU_OUT_OF_MEMORY: return IST_NO_MEMORY;
	case CU_INVALID_VALUE: return IST_INVALID_ARGUMENT;
	case CU_NO_DEVICE:
	case CU_INVALID_DEVICE:
	case CU_STUB:
	case CU_NOT_SUPPORTED: return IST_UNSUPPORTED;
	default: return IST_IO;
	}
}

ist_err
ist__cuda_said(const struct ist__cuda *c, int code, const char *what, struct ist_status *why)
{
	const char *name = NULL, *text = NULL;

	if (code == CU_OK)
		return IST_OK;
	(void)c->api.error_name(code, &name);
	(void)c->api.error_text(code, &text);
	return ist__cuda_say(why, code_of(code), code, "%s: %s (%s)", what, text ? text : "unknown error", name ? name : "?");
}

/* ---- starting ---- */

static void
list_devices(struct ist__cuda *c)
{
	int n = 0;

	c->state = c->api.device_count(&n);
	if (n > IST__CUDA_DEVICES)
		n = IST__CUDA_DEVICES;
	for (int i = 0; i < n && c->state == CU_OK; i++)
		c->state = c->api.device_get(&c->at[i].device, i);
	c->count = c->state == CU_OK ? n : 0;
	if (c->state == CU_OK && n == 0)
		c->state = CU_NO_DEVICE;
}

static void
start(struct ist__cuda *c)
{
	struct ist_status said = { .struct_size = sizeof(said) };
	int version = 0;

	if (ist__cuda_load(&c->api, 1, c->reason, sizeof(c->reason)) != IST__CUDA_LOADED) {
		c->state = CU_NO_DEVICE;
		return;
	}
	c->state = c->api.init(0);
	if (c->state == CU_OK && c->api.driver_version(&version) == CU_OK)
		snprintf(c->version, sizeof(c->version), "%d.%d", version / 1000, version % 1000 / 10);
	if (c->state == CU_OK)
		list_devices(c);
	if (c->state != CU_OK) {
		(void)ist__cuda_said(c, c->state, "cuInit", &said);
		snprintf(c->reason, sizeof(c->reason), "%s", said.text);
	}
}

ist_err
ist__cuda_start(struct ist__cuda *c, struct ist_status *why)
{
	pthread_mutex_lock(&c->lock);
	if (!c->looked)
		start(c);
	c->looked = true;
	pthread_mutex_unlock(&c->lock);
	return c->state == CU_OK ? IST_OK : ist__cuda_say(why, IST_UNSUPPORTED, c->state, "%s", c->reason);
}

/* Has somebody else in this process brought the library along? Then it may be asked. */
static bool
is_there(struct ist__cuda *c)
{
	struct ist__cuda_api api;
	char text[sizeof(c->reason)];
	bool looked;

	pthread_mutex_lock(&c->lock);
	looked = c->looked;
	pthread_mutex_unlock(&c->lock);
	if (!looked && ist__cuda_load(&api, 0, text, sizeof(text)) != IST__CUDA_LOADED)
		return false;
	return ist__cuda_start(c, NULL) == IST_OK;
}

static void
cuda_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_device_probe *out)
{
	struct ist__cuda *c = self;
	struct ist__cuda_api api;
	char text[64];
	bool looked;

	(void)host;
	out->library = out->reason = out->version = "";
	if (level >= IST_LOAD)
		(void)ist__cuda_start(c, NULL);
	pthread_mutex_lock(&c->lock);
	looked = c->looked;
	pthread_mutex_unlock(&c->lock);
	if (!looked) {
		/* nothing is loaded for a look; where there is no driver there is nothing to load */
		if (access("/dev/nvidiactl", F_OK) && ist__cuda_load(&api, 0, text, sizeof(text)) == IST__CUDA_NONE)
			out->reason = "there is no NVIDIA driver: no /dev/nvidiactl";
		return;
	}
	out->count = (uint32_t)c->count;
	out->reason = c->reason;
	out->library = c->api.library;
	out->version = c->version;
}

/* ---- contexts ---- */

ist_err
ist__cuda_enter(struct ist__cuda *c, int32_t index, struct ist_status *why)
{
	ist_err e = ist__cuda_start(c, why);
	void *context;
	int code = CU_OK;

	if (e)
		return e;
	if (index < 0 || index >= c->count)
		return ist__cuda_say(why, IST_INVALID_ARGUMENT, CU_INVALID_DEVICE, "there is no GPU %d: there are %d", index, c->count);
	pthread_mutex_lock(&c->lock);
	if (!c->at[index].context)
		code = c->api.context_retain(&c->at[index].context, c->at[index].device);
	context = c->at[index].context;
	pthread_mutex_unlock(&c->lock);
	e = ist__cuda_said(c, code, "cuDevicePrimaryCtxRetain", why);
	return e ? e : ist__cuda_said(c, c->api.context_push(context), "cuCtxPushCurrent", why);
}

void
ist__cuda_leave(struct ist__cuda *c)
{
	void *was;

	(void)c->api.context_pop(&was); /* fails when the context is broken, and then there is nothing to put back */
}

static ist_err
cuda_enter(void *self, int32_t index, void **was, struct ist_status *why)
{
	*was = NULL;
	return ist__cuda_enter(self, index, why);
}

static void
cuda_leave(void *self, int32_t index, void *was)
{
	(void)index, (void)was;
	ist__cuda_leave(self);
}

/* ---- what there is ---- */

static int32_t
numa_of(const struct ist__cuda *c, int device)
{
	int node = -1, domain = 0, bus = 0, slot = 0;
	char path[128];
	FILE *f;

	if (c->api.device_attribute(&node, CU_HOST_NUMA, device) == CU_OK && node >= 0)
		return node;
	node = -1;
	if (c->api.device_attribute(&domain, CU_PCI_DOMAIN, device) || c->api.device_attribute(&bus, CU_PCI_BUS, device) ||
	    c->api.device_attribute(&slot, CU_PCI_DEVICE, device))
		return -1;
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%04x:%02x:%02x.0/numa_node", (unsigned)domain, (unsigned)bus, (unsigned)slot);
	f = fopen(path, "re");
	if (f && fscanf(f, "%d", &node) != 1)
		node = -1;
	if (f)
		fclose(f);
	return node;
}

static ist_err
cuda_info(void *self, int32_t index, struct ist_device_info *out, struct ist_status *why)
{
	struct ist__cuda *c = self;
	struct ist_device_info info = { .bytes_free = UINT64_MAX, .copy_align = 1 };
	size_t left = 0, all = 0;
	bool made;
	ist_err e = ist__cuda_start(c, why);

	if (e)
		return e;
	if (index < 0 || index >= c->count)
		return ist__cuda_say(why, IST_INVALID_ARGUMENT, CU_INVALID_DEVICE, "there is no GPU %d: there are %d", index, c->count);
	e = ist__cuda_said(c, c->api.device_total(&all, c->at[index].device), "cuDeviceTotalMem", why);
	if (!e)
		e = ist__cuda_said(c, c->api.device_uuid(info.uuid, c->at[index].device), "cuDeviceGetUuid", why);
	if (!e)
		e = ist__cuda_said(c, c->api.device_name(info.name, (int)sizeof(info.name), c->at[index].device), "cuDeviceGetName", why);
	if (e)
		return e;
	info.bytes_total = all;
	info.numa_node = numa_of(c, c->at[index].device);
	pthread_mutex_lock(&c->lock);
	made = c->at[index].context != NULL;
	pthread_mutex_unlock(&c->lock);
	if (made && ist__cuda_enter(c, index, why) == IST_OK) {
		if (c->api.mem_info(&left, &all) == CU_OK)
			info.bytes_free = left;
		ist__cuda_leave(c);
	}
	info.struct_size = out->struct_size < sizeof(info) ? out->struct_size : (uint32_t)sizeof(info);
	memcpy(out, &info, info.struct_size);
	return IST_OK;
}

static uint16_t
how_of(const struct ist__cuda *c, cu_ptr addr)
{
	unsigned managed = 0, legacy = 0;
	void *pool = NULL;

	if (c->api.pointer(&managed, CU_POINTER_MANAGED, addr) == CU_OK && managed)
		return IST_MEM_MANAGED;
	if (c->api.pointer(&legacy, CU_POINTER_LEGACY_IPC, addr) == CU_OK && legacy)
		return IST_MEM_PLAIN;
	if (c->api.pointer(&pool, CU_POINTER_POOL, addr) == CU_OK && pool)
		return IST_MEM_POOL;
	return IST_MEM_MAPPED;
}

static ist_err
cuda_owner(void *self, const void *addr, struct ist_buf *out, struct ist_status *why)
{
	struct ist__cuda *c = self;
	cu_ptr at = ist__cu(addr), first = 0;
	unsigned type = 0;
	size_t bytes = 0;
	int ordinal = -1;

	(void)why;
	*out = (struct ist_buf){ .addr = (void *)(uintptr_t)addr, .mem = IST_MEM_HOST, .device = -1 };
	if (!is_there(c) || c->api.pointer(&type, CU_POINTER_TYPE, at) != CU_OK)
		return IST_OK;
	if (c->api.pointer(&first, CU_POINTER_START, at) == CU_OK && c->api.pointer(&bytes, CU_POINTER_SIZE, at) == CU_OK && at >= first &&
	    at - first <= bytes)
		out->bytes = bytes - (at - first);
	if (type != CU_TYPE_DEVICE) {
		out->mem = IST_MEM_PINNED;
		return IST_OK;
	}
	out->mem = IST_MEM_CUDA;
	out->how = how_of(c, at);
	if (c->api.pointer(&ordinal, CU_POINTER_DEVICE, at) == CU_OK)
		out->device = ordinal;
	return IST_OK;
}

/* ---- the table ---- */

struct ist__cuda *
ist__cuda_new(const struct ist__ctx *ctx, struct ist_device *table)
{
	struct ist__cuda *c = ist__alloc(ctx, sizeof(*c));

	if (!c)
		return NULL;
	c->ctx = ctx;
	pthread_mutex_init(&c->lock, NULL);
	*table = (struct ist_device){
		.struct_size = sizeof(*table),
		.abi = IST_BACKEND_ABI,
		.name = "cuda",
		.self = c,
		.mem = 1u << IST_MEM_CUDA | 1u << IST_MEM_PINNED,
		.probe = cuda_probe,
		.info = cuda_info,
		.owner = cuda_owner,
		.enter = cuda_enter,
		.leave = cuda_leave,
	};
	ist__cuda_mem_slots(table);
	ist__cuda_share_slots(table);
	ist__cuda_digest_slots(table);
	return c;
}

void
ist__cuda_free(struct ist__cuda *c)
{
	if (!c)
		return;
	for (int i = 0; i < c->count; i++) {
		if (c->at[i].module && ist__cuda_enter(c, i, NULL) == IST_OK) {
			(void)c->api.module_unload(c->at[i].module);
			ist__cuda_leave(c);
		}
		if (c->at[i].context)
			(void)c->api.context_release(c->at[i].device);
	}
	while (c->pins) {
		struct ist__cuda_pin *p = c->pins;

		c->pins = p->next;
		ist__free(c->ctx, p);
	}
	pthread_mutex_destroy(&c->lock);
	ist__free(c->ctx, c);
}
