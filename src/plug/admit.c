/* SPDX-License-Identifier: Apache-2.0 */
#include "plug/admit.h"

#include "base/fail.h"

#include <string.h>

#define OP "backend_load"

/* Slots of version 1's device table that may not be empty end with event_free. Frozen. */
#define DEVICE_SIZE_MIN (offsetof(struct ist_device, event_free) + sizeof(void *))

static ist_err
no_offer(struct ist_chan *chan, struct ist_wire *mine, struct ist_task **out, struct ist_status *why)
{
	(void)chan, (void)mine, (void)out, (void)why;
	return IST_UNSUPPORTED;
}

static ist_err
no_region(struct ist_chan *chan, const struct ist_buf *buf, uint32_t flags, struct ist_region **out, struct ist_wire *handle,
	struct ist_task **task, struct ist_status *why)
{
	(void)chan, (void)buf, (void)flags, (void)out, (void)handle, (void)task, (void)why;
	return IST_UNSUPPORTED;
}

static void
no_region_free(struct ist_chan *chan, struct ist_region *region)
{
	(void)chan, (void)region;
}

static ist_err
no_drop(struct ist_chan *chan, uint32_t rank)
{
	(void)chan, (void)rank;
	return IST_UNSUPPORTED;
}

static ist_err
no_alloc(struct ist_chan *chan, uint64_t bytes, uint32_t mem, int32_t device, void **out, struct ist_status *why)
{
	(void)chan, (void)bytes, (void)mem, (void)device, (void)out, (void)why;
	return IST_UNSUPPORTED;
}

static void
no_free(struct ist_chan *chan, void *addr)
{
	(void)chan, (void)addr;
}

static void
fill_optional(struct ist_backend *ops, uint32_t *slots)
{
	if (ops->offer)
		*slots |= IST__SLOT_OFFER;
	else
		ops->offer = no_offer;
	if (ops->region) {
		*slots |= IST__SLOT_REGION;
	} else {
		ops->region = no_region;
		ops->region_free = no_region_free;
	}
	if (ops->drop)
		*slots |= IST__SLOT_DROP;
	else
		ops->drop = no_drop;
	if (ops->alloc) {
		*slots |= IST__SLOT_ALLOC;
	} else {
		ops->alloc = no_alloc;
		ops->free = no_free;
	}
}

static const char *
missing_slot(const struct ist_backend *ops)
{
	return !ops->probe ? "probe" : !ops->open ? "open" : !ops->connect ? "connect" : !ops->start ? "start" :
		!ops->progress ? "progress" : !ops->arm ? "arm" : !ops->test ? "test" : !ops->task_free ? "task_free" :
		!ops->abort ? "abort" : !ops->close ? "close" : !ops->region != !ops->region_free ? "one of region and region_free" :
		!ops->alloc != !ops->free ? "one of alloc and free" : NULL;
}

/* What can be said before anything else of the table is believed. */
static ist_err
check_head(uint32_t size, uint32_t abi, size_t size_min, struct ist_error *err)
{
	if (abi != IST_BACKEND_ABI)
		return ist__fail(err, IST_BAD_PLUGIN, OP, "abi version %u, this library speaks %u", abi, IST_BACKEND_ABI);
	if (size < size_min)
		return ist__fail(err, IST_BAD_PLUGIN, OP, "the table has %u bytes, the shortest ever was %zu", size, size_min);
	return IST_OK;
}

/* Names are typed by users, and a colon ends a wrapper's. */
static bool
name_ok(const char *name)
{
	size_t n = name ? strnlen(name, 64) : 0;

	return n > 0 && n < 64 && strcspn(name, ":/, \t\n") == n && strcmp(name, "auto") != 0;
}

ist_err
ist__backend_admit(const struct ist_backend *table, struct ist__admitted *out, struct ist_error *err)
{
	struct ist__admitted full = { .slots = 0 };
	const char *missing;
	size_t have;
	ist_err e;

	if (!table)
		return ist__fail(err, IST_BAD_PLUGIN, OP, "there is no table");
	e = check_head(table->struct_size, table->abi, IST_BACKEND_SIZE_MIN, err);
	if (e)
		return e;
	have = table->struct_size;
	if (have > sizeof(full.ops))
		have = sizeof(full.ops); /* a newer plug-in: its further slots are not ours to call */
	memcpy(&full.ops, table, have);
	full.ops.struct_size = (uint32_t)sizeof(full.ops);
	if (!name_ok(full.ops.name))
		return ist__fail(err, IST_BAD_PLUGIN, OP, "its name is empty, longer than 63 bytes, \"auto\", or holds one of ':/, '");
	missing = missing_slot(&full.ops);
	if (missing)
		return ist__fail(err, IST_BAD_PLUGIN, OP, "slot %s is empty", missing);
	fill_optional(&full.ops, &full.slots);
	out->ops = full.ops;
	out->slots = full.slots;
	return IST_OK;
}

static ist_err
no_share(void *self, const struct ist_buf *buf, void *handle, uint64_t *bytes, int32_t *fd, struct ist_status *why)
{
	(void)self, (void)buf, (void)handle, (void)bytes, (void)fd, (void)why;
	return IST_UNSUPPORTED;
}

static ist_err
no_map(void *self, int32_t index, const struct ist_wire *handle, struct ist_buf *out, struct ist_status *why)
{
	(void)self, (void)index, (void)handle, (void)out, (void)why;
	return IST_UNSUPPORTED;
}

static void
no_unmap(void *self, struct ist_buf *buf)
{
	(void)self, (void)buf;
}

static ist_err
no_event_share(void *self, int32_t index, void *event, void *handle, uint64_t *bytes, struct ist_status *why)
{
	(void)self, (void)index, (void)event, (void)handle, (void)bytes, (void)why;
	return IST_UNSUPPORTED;
}

static ist_err
no_event_map(void *self, int32_t index, const struct ist_wire *handle, void **event, struct ist_status *why)
{
	(void)self, (void)index, (void)handle, (void)event, (void)why;
	return IST_UNSUPPORTED;
}

static ist_err
no_event_ns(void *self, int32_t index, void *from, void *to, int64_t *ns, struct ist_status *why)
{
	(void)self, (void)index, (void)from, (void)to, (void)ns, (void)why;
	return IST_UNSUPPORTED;
}

static ist_err
no_digest(void *self, int32_t index, const struct ist_copy *list, uint64_t n, void *stream, struct ist_status *why)
{
	(void)self, (void)index, (void)list, (void)n, (void)stream, (void)why;
	return IST_UNSUPPORTED;
}

static void
fill_optional_device(struct ist_device *ops, uint32_t *slots)
{
	if (ops->share && ops->map && ops->unmap) {
		*slots |= IST__DEVICE_SHARE;
	} else {
		ops->share = no_share;
		ops->map = no_map;
		ops->unmap = no_unmap;
	}
	if (ops->event_share && ops->event_map) {
		*slots |= IST__DEVICE_EVENT_SHARE;
	} else {
		ops->event_share = no_event_share;
		ops->event_map = no_event_map;
	}
	if (ops->event_ns)
		*slots |= IST__DEVICE_EVENT_NS;
	else
		ops->event_ns = no_event_ns;
	if (ops->digest)
		*slots |= IST__DEVICE_DIGEST;
	else
		ops->digest = no_digest;
}

static const char *
missing_device_slot(const struct ist_device *d)
{
	return !d->probe ? "probe" : !d->info ? "info" : !d->owner ? "owner" : !d->enter ? "enter" : !d->leave ? "leave" :
		!d->alloc ? "alloc" : !d->free ? "free" : !d->pin ? "pin" : !d->unpin ? "unpin" : !d->stream_new ? "stream_new" :
		!d->stream_free ? "stream_free" : !d->copy ? "copy" : !d->event_new ? "event_new" :
		!d->event_record ? "event_record" : !d->event_query ? "event_query" : !d->stream_wait ? "stream_wait" :
		!d->event_free ? "event_free" : NULL;
}

ist_err
ist__device_admit(const struct ist_device *table, struct ist__admitted_device *out, struct ist_error *err)
{
	struct ist__admitted_device full = { .slots = 0 };
	const char *missing;
	size_t have;
	ist_err e;

	if (!table)
		return ist__fail(err, IST_BAD_PLUGIN, OP, "there is no table");
	e = check_head(table->struct_size, table->abi, DEVICE_SIZE_MIN, err);
	if (e)
		return e;
	have = table->struct_size < sizeof(full.ops) ? table->struct_size : sizeof(full.ops);
	memcpy(&full.ops, table, have);
	full.ops.struct_size = (uint32_t)sizeof(full.ops);
	if (!name_ok(full.ops.name))
		return ist__fail(err, IST_BAD_PLUGIN, OP, "its name is empty, longer than 63 bytes, \"auto\", or holds one of ':/, '");
	missing = missing_device_slot(&full.ops);
	if (missing)
		return ist__fail(err, IST_BAD_PLUGIN, OP, "slot %s is empty", missing);
	if (full.ops.mem == 0)
		return ist__fail(err, IST_BAD_PLUGIN, OP, "it allocates no kind of memory (mem is 0)");
	fill_optional_device(&full.ops, &full.slots);
	out->ops = full.ops;
	out->slots = full.slots;
	return IST_OK;
}
