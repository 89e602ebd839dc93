/* SPDX-License-Identifier: Apache-2.0
 *
 * far.c - memory of a device that the others of this host can look at. A piece of heap stands for it, and holds the handle by
 * which the device's library lets another process map it; what is posted on the board names that piece, and the bytes in the
 * device's memory. No byte passes through the host, and no kernel runs: who looks copies by itself, over the link between the
 * devices.
 *
 * The owner's memory may be freed while others have it mapped: the library keeps it until the last one has let go.
 */
#include "backends/host/host.h"

#include <isthmus/device.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define FAR_MAGIC UINT64_C(0x3172616673687469)
enum { HANDLE_BYTES = 256 };

/* What the piece of heap holds. */
struct far {
	uint64_t magic, bytes, handle_bytes;
	uint32_t mem, pid;
	uint8_t handle[HANDLE_BYTES];
};

static const struct ist_device *
device_of(const struct ist_chan *chan, uint32_t mem)
{
	const struct ist_device *d = chan->host->device ? chan->host->device(chan->host->ctx, mem) : NULL;

	return d && IST_HAS(d, unmap) && d->share && d->map && d->unmap ? d : NULL;
}

static ist_err
say_device(ist_err e, const struct ist_status *said, const char *what, struct ist_status *why)
{
	return ist__host_say(why, e, IST_NO_RANK, said->sys, "%s: %s", what, said->text[0] ? said->text : "the device refuses");
}

/* Takes the memory and shares it. */
static ist_err
make(const struct ist_device *d, struct ist_buf *buf, struct far *far, struct ist_status *why)
{
	struct ist_status said = { .struct_size = sizeof(said), .rank = IST_NO_RANK };
	int32_t fd = -1;
	ist_err e = d->alloc(d->self, buf->device, buf->mem, IST_ALLOC_SHARE, buf->bytes, &buf->addr, &said);

	if (e)
		return say_device(e, &said, "no memory", why);
	*far = (struct far){ .magic = FAR_MAGIC, .bytes = buf->bytes, .handle_bytes = HANDLE_BYTES, .mem = buf->mem, .pid = (uint32_t)getpid() };
	buf->how = IST_MEM_PLAIN;
	e = d->share(d->self, buf, far->handle, &far->handle_bytes, &fd, &said);
	if (!e && fd >= 0) {
		close(fd);
		e = IST_UNSUPPORTED;
	}
	if (e) {
		d->free(d->self, buf->device, buf->mem, buf->addr);
		return say_device(e, &said, "memory can't be shared", why);
	}
	return IST_OK;
}

ist_err
ist__host_far_alloc(struct ist_chan *chan, uint64_t bytes, uint32_t mem, int32_t device, void **out, struct ist_status *why)
{
	const struct ist_device *d = device_of(chan, mem);
	struct ist_buf buf = { .bytes = bytes, .mem = (uint16_t)mem, .device = device };
	struct chunk *chunk;
	struct far far;
	void *at = NULL;
	ist_err e;

	if (!d || bytes == 0)
		return ist__host_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "memory of kind %u can't be shared here", mem);
	e = ist__host_heap_alloc(chan, sizeof(far), -1, &at, why);
	if (e)
		return e;
	e = make(d, &buf, &far, why);
	if (e) {
		ist__host_heap_free(chan, at);
		return e;
	}
	memcpy(at, &far, sizeof(far));
	chunk = chan->chunks; /* heap_alloc put it first */
	chunk->far = buf;
	*out = buf.addr;
	return IST_OK;
}

void
ist__host_far_free(struct ist_chan *chan, struct chunk *chunk)
{
	const struct ist_device *d = chunk->far.addr ? device_of(chan, chunk->far.mem) : NULL;

	if (d)
		d->free(d->self, chunk->far.device, chunk->far.mem, chunk->far.addr);
}

/* ---- looking ---- */

static ist_err
map_it(struct ist_chan *chan, struct map *map, const struct ist_buf *dst, struct ist_status *why)
{
	const struct ist_device *d = device_of(chan, dst->mem);
	struct ist_status said = { .struct_size = sizeof(said), .rank = IST_NO_RANK };
	struct ist_wire handle;
	struct far far;
	ist_err e;

	memcpy(&far, map->addr, sizeof(far)); /* once: the owner may write there */
	if (far.magic != FAR_MAGIC || far.handle_bytes > HANDLE_BYTES || far.mem != dst->mem)
		return ist__host_say(why, IST_BAD_HANDLE, IST_NO_RANK, 0, "it is no memory of a device");
	if (!d)
		return ist__host_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "there is no such device here");
	handle = (struct ist_wire){ .addr = far.handle, .bytes = far.handle_bytes };
	e = d->map(d->self, dst->device, &handle, &map->far, &said);
	if (e)
		return say_device(e, &said, far.pid == (uint32_t)getpid() ? "members of one process can't share a device's memory" : "memory can't be mapped", why);
	map->far.bytes = far.bytes < map->far.bytes || map->far.bytes == 0 ? far.bytes : map->far.bytes;
	return IST_OK;
}

const uint8_t *
ist__host_far_borrow(struct ist_chan *chan, struct peer *peer, struct part *part, const struct record *rec, struct map **out)
{
	struct record handle = { .at = rec->chunk_at, .bytes = sizeof(struct far), .chunk_at = rec->chunk_at, .chunk_bytes = rec->chunk_bytes };
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	ist_err e;

	if (!ist__host_borrow(chan, peer, part, &handle, out))
		return NULL;
	e = (*out)->far.addr ? IST_OK : map_it(chan, *out, &part->op.dst, &why);
	if (!e && (rec->at > (*out)->far.bytes || rec->bytes > (*out)->far.bytes - rec->at))
		e = ist__host_say(&why, IST_BAD_HANDLE, IST_NO_RANK, 0, "bytes %llu+%llu are outside of it", (unsigned long long)rec->at, (unsigned long long)rec->bytes);
	if (!e)
		return (const uint8_t *)(*out)->far.addr + rec->at;
	ist__host_unborrow(*out);
	*out = NULL;
	ist__host_part_fail(chan, part, e, e == IST_BAD_HANDLE ? peer->rank : chan->rank, why.sys, "device memory of rank %u: %s", peer->rank, why.text);
	return NULL;
}

void
ist__host_far_drop(struct ist_chan *chan, struct map *map)
{
	const struct ist_device *d = map->far.addr ? device_of(chan, map->far.mem) : NULL;

	if (d)
		d->unmap(d->self, &map->far);
	map->far.addr = NULL;
}
