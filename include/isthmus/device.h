/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - memory that is not plain host memory, and the streams that order work on it.
 *
 * Same rules as backend.h, blocking apart. One table serves all devices of a kind; index says which. Any thread may
 * call any slot; a slot, enter apart, never changes the caller's current device or context (it puts it back).
 * Streams are the vendor's own handles, so a framework's can be given. The first slot that names an index, info
 * apart, may make the device's context (0.5 s, 0.5 GB).
 *
 * Blocking: copy, event_*, stream_wait, owner, enter and leave take microseconds (host memory PINNED, context made). info,
 * alloc, pin, unpin, stream_*, share, map, digest may take seconds. free, unmap, unpin and stream_free may also wait for
 * all work on the device, for ever behind a kernel whose peer died: never call them between abort and DONE, nor for
 * what is ABANDONED.
 */
#ifndef ISTHMUS_DEVICE_H
#define ISTHMUS_DEVICE_H

#include <isthmus/backend.h>

struct ist_device_probe {
	uint32_t struct_size;
	uint32_t count;       /* 0: reason says why */
	const char *reason;
	const char *library;
	const char *version;
};

struct ist_device_info {
	uint32_t struct_size;
	int32_t numa_node;    /* -1: unknown */
	uint64_t bytes_free;  /* UINT64_MAX: unknown without a context, and info makes none */
	uint64_t bytes_total;
	uint64_t copy_align;  /* of both ends of a copy inside one device (Ascend: 64) */
	uint8_t uuid[16];     /* the same in every process and container */
	char name[64];
};

struct ist_copy {
	void *dst;
	const void *src;
	uint64_t bytes;
};

enum { IST_ALLOC_SHARE = 1, IST_ALLOC_WINDOW = 2 }; /* share will be called; for a region of all members */
enum { IST_PIN_READ_ONLY = 1 };                        /* mapped read-only */
enum { IST_EVENT_SHARE = 1, IST_EVENT_TIME = 2 };

struct ist_device {
	uint32_t struct_size;
	uint32_t abi;
	const char *name;     /* "cuda", "ascend" */
	void *self;
	uint64_t mem;         /* bit 1 << enum ist_mem_kind: what it allocates (CUDA and PINNED) */

	void (*probe)(void *self, const struct ist_host *host, uint32_t level, struct ist_device_probe *out); /* count is known at IST_START */
	ist_err (*info)(void *self, int32_t index, struct ist_device_info *out, struct ist_status *why);
	/* Whose memory: fills mem, how, device, and the bytes left of its allocation. Not ours, or nothing started yet: IST_OK, IST_MEM_HOST, 0 bytes. */
	ist_err (*owner)(void *self, const void *addr, struct ist_buf *out, struct ist_status *why);

	/* Make the device current on this thread, for a library that works on "the current device"; leave puts back what was. */
	ist_err (*enter)(void *self, int32_t index, void **was, struct ist_status *why);
	void (*leave)(void *self, int32_t index, void *was);

	ist_err (*alloc)(void *self, int32_t index, uint32_t mem, uint32_t flags, uint64_t bytes, void **out, struct ist_status *why); /* IST_ALLOC_* */
	void (*free)(void *self, int32_t index, uint32_t mem, void *addr);
	ist_err (*pin)(void *self, int32_t index, void *addr, uint64_t bytes, uint32_t flags, struct ist_status *why); /* in place, for all devices of the kind; IST_PIN_*; UNSUPPORTED: use alloc */
	void (*unpin)(void *self, int32_t index, void *addr, uint64_t bytes);

	ist_err (*stream_new)(void *self, int32_t index, void **out, struct ist_status *why); /* not ordered with the default stream */
	void (*stream_free)(void *self, int32_t index, void *stream);
	ist_err (*copy)(void *self, int32_t index, const struct ist_copy *list, uint64_t n, void *stream, struct ist_status *why); /* any direction, any order within the list; after an error some may be under way */
	ist_err (*event_new)(void *self, int32_t index, uint32_t flags, void **out, struct ist_status *why); /* IST_EVENT_* */
	ist_err (*event_record)(void *self, int32_t index, void *event, void *stream, struct ist_status *why);
	ist_err (*event_query)(void *self, int32_t index, void *event, uint32_t *done, struct ist_status *why);
	ist_err (*stream_wait)(void *self, int32_t index, void *stream, void *event, struct ist_status *why); /* the stream waits, the caller doesn't; index is the stream's */
	void (*event_free)(void *self, int32_t index, void *event);

	/* ---- optional ---- */
	/* For another process of this host. The caller gives room (256 bytes are enough), is told the length, and closes *fd; -1: the bytes are enough. */
	ist_err (*share)(void *self, const struct ist_buf *buf, void *handle, uint64_t *bytes, int32_t *fd, struct ist_status *why);
	ist_err (*map)(void *self, int32_t index, const struct ist_wire *handle, struct ist_buf *out, struct ist_status *why); /* never the same process's; the handle's descriptors stay the caller's */
	void (*unmap)(void *self, struct ist_buf *buf); /* as map filled it in; once for each map */
	ist_err (*event_share)(void *self, int32_t index, void *event, void *handle, uint64_t *bytes, struct ist_status *why);
	ist_err (*event_map)(void *self, int32_t index, const struct ist_wire *handle, void **event, struct ist_status *why); /* undone by event_free */
	ist_err (*event_ns)(void *self, int32_t index, void *from, void *to, int64_t *ns, struct ist_status *why);
	/* XXH3-128, seed 0, canonical (big-endian), of each 64 KiB of src and of what is left; dst: 16 bytes a leaf, same device. One launch for the list. */
	ist_err (*digest)(void *self, int32_t index, const struct ist_copy *list, uint64_t n, void *stream, struct ist_status *why);
};

#define IST_DEVICE_ENTRY "isthmus_device_v1"
typedef const struct ist_device *(*ist_device_entry)(void);

#endif
