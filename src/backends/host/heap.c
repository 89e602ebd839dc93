/* SPDX-License-Identifier: Apache-2.0
 *
 * heap.c - memory that the others of this host can read in place: each allocation is a range of the heap file of its own.
 * Ranges are never used twice, so a peer's mapping of a freed one can't show anything else; their pages are given back.
 */
#include "backends/host/host.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAPS_MAX 32u /* of a peer, beyond those in use */
#define PREFERRED 1

/* A wish: where it can't be had, memory is memory. */
static void
prefer_node(void *addr, uint64_t bytes, int32_t numa)
{
	unsigned long mask;

	if (numa < 0 || numa >= 63)
		return;
	mask = 1UL << numa;
	(void)syscall(SYS_mbind, addr, (unsigned long)bytes, PREFERRED, &mask, 64UL, 0U);
}

static int
chunk_map(struct ist_chan *chan, struct chunk *chunk, int32_t numa)
{
	void *p = mmap(NULL, chunk->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, chan->heap_fd, (off_t)chunk->at);
	int err;

	if (p == MAP_FAILED)
		return errno;
	madvise(p, chunk->bytes, MADV_DONTFORK);
	prefer_node(p, chunk->bytes, numa);
	err = ist__host_reserve(chan->heap_fd, chunk->at, chunk->bytes);
	if (err) {
		munmap(p, chunk->bytes);
		fallocate(chan->heap_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)chunk->at, (off_t)chunk->bytes);
		return err;
	}
	chunk->addr = p;
	chan->shared += chunk->bytes;
	return 0;
}

ist_err
ist__host_heap_alloc(struct ist_chan *chan, uint64_t bytes, int32_t numa, void **out, struct ist_status *why)
{
	struct chunk *chunk;
	uint64_t whole, end;
	int err;

	if (!chan->shm || (chan->connected && chan->n_near == 0))
		return ist__host_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "nobody on this host would share it: plain memory does as well");
	if (__builtin_add_overflow(bytes ? bytes : 1, chan->lay.page - 1, &whole) || whole > INT64_MAX ||
	    __builtin_add_overflow(chan->heap_end, whole & ~(chan->lay.page - 1), &end) || end > INT64_MAX)
		return ist__host_say(why, IST_NO_MEMORY, IST_NO_RANK, 0, "%llu bytes", (unsigned long long)bytes);
	chunk = ist__alloc(&chan->ctx, sizeof(*chunk));
	if (!chunk)
		return IST_NO_MEMORY;
	chunk->at = chan->heap_end;
	chunk->bytes = whole & ~(chan->lay.page - 1);
	err = chunk_map(chan, chunk, numa);
	if (err) {
		ist__free(&chan->ctx, chunk);
		return ist__host_say(why, ist__host_no_room(err), IST_NO_RANK, err, "%llu bytes of shared memory: %s",
			(unsigned long long)bytes, strerror(err));
	}
	chan->heap_end = end;
	chunk->next = chan->chunks;
	chan->chunks = chunk;
	*out = chunk->addr;
	return IST_OK;
}

static void
chunk_free(struct ist_chan *chan, struct chunk *chunk)
{
	ist__host_far_free(chan, chunk);
	munmap(chunk->addr, chunk->bytes);
	chan->shared -= chunk->bytes;
	fallocate(chan->heap_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)chunk->at, (off_t)chunk->bytes);
	ist__free(&chan->ctx, chunk);
}

void
ist__host_heap_free(struct ist_chan *chan, const void *addr)
{
	for (struct chunk **at = &chan->chunks; *at; at = &(*at)->next)
		if (((*at)->far.addr ? (*at)->far.addr : (*at)->addr) == addr) {
			struct chunk *chunk = *at;
			*at = chunk->next;
			chunk_free(chan, chunk);
			return;
		}
}

const struct chunk *
ist__host_heap_find(const struct ist_chan *chan, const struct ist_buf *buf)
{
	uintptr_t a = (uintptr_t)buf->addr;

	for (const struct chunk *chunk = chan->chunks; chunk; chunk = chunk->next) {
		bool far = ist__host_is_far(buf);
		uintptr_t from = far ? (uintptr_t)chunk->far.addr : (uintptr_t)chunk->addr;
		uint64_t bytes = far ? chunk->far.bytes : chunk->bytes;

		if ((chunk->far.addr != NULL) == far && a >= from && a - from <= bytes && buf->bytes <= bytes - (a - from))
			return chunk;
	}
	return NULL;
}

void
ist__host_heap_fini(struct ist_chan *chan)
{
	while (chan->chunks) {
		struct chunk *chunk = chan->chunks;
		chan->chunks = chunk->next;
		chunk_free(chan, chunk);
	}
}

/* Is it a range that the peer's file has? */
static bool
where_right(const struct ist_chan *chan, const struct peer *peer, const struct record *where)
{
	uint64_t end, chunk_end, mask = chan->lay.page - 1;
	struct stat st;

	if ((where->chunk_at & mask) || (where->chunk_bytes & mask) || where->chunk_bytes == 0 || where->at < where->chunk_at ||
	    __builtin_add_overflow(where->at, where->bytes, &end) ||
	    __builtin_add_overflow(where->chunk_at, where->chunk_bytes, &chunk_end) || end > chunk_end)
		return false;
	return !fstat(peer->heap_fd, &st) && st.st_size >= 0 && chunk_end <= (uint64_t)st.st_size;
}

static void
map_drop(struct ist_chan *chan, struct peer *peer, struct map **at)
{
	struct map *map = *at;

	*at = map->next;
	ist__host_far_drop(chan, map);
	munmap(map->addr, map->bytes);
	ist__free(&chan->ctx, map);
	peer->n_maps--;
}

/* The one that was made first, among those that nobody uses. */
static void
maps_trim(struct ist_chan *chan, struct peer *peer)
{
	struct map **oldest = NULL;

	if (peer->n_maps < MAPS_MAX)
		return;
	for (struct map **at = &peer->maps; *at; at = &(*at)->next)
		if ((*at)->refs == 0)
			oldest = at;
	if (oldest)
		map_drop(chan, peer, oldest);
}

static struct map *
map_new(struct ist_chan *chan, struct peer *peer, const struct record *where, bool write)
{
	uint64_t words = where->chunk_bytes / MAP_STRETCH / 64 + 1;
	struct map *map;
	void *p;

	maps_trim(chan, peer);
	map = ist__alloc(&chan->ctx, sizeof(*map) + 8 * words);
	if (!map)
		return NULL;
	p = mmap(NULL, where->chunk_bytes, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, peer->heap_fd, (off_t)where->chunk_at);
	if (p == MAP_FAILED) {
		ist__free(&chan->ctx, map);
		return NULL;
	}
	madvise(p, where->chunk_bytes, MADV_DONTFORK);
	map->next = peer->maps;
	map->at = where->chunk_at;
	map->bytes = where->chunk_bytes;
	map->addr = p;
	map->write = write;
	peer->maps = map;
	peer->n_maps++;
	return map;
}

ist_err
ist__host_map(struct ist_chan *chan, struct peer *peer, const struct record *where, bool write, struct map **out)
{
	struct map *map;

	for (map = peer->maps; map; map = map->next)
		if (map->write == write && where->at >= map->at && where->at - map->at <= map->bytes &&
		    where->bytes <= map->bytes - (where->at - map->at))
			break;
	if (!map) {
		if (!where_right(chan, peer, where))
			return IST_BAD_HANDLE;
		map = map_new(chan, peer, where, write);
		if (!map)
			return errno == EACCES ? IST_DENIED : IST_NO_MEMORY;
	}
	map->refs++;
	*out = map;
	return IST_OK;
}

const uint8_t *
ist__host_borrow(struct ist_chan *chan, struct peer *peer, struct part *part, const struct record *where, struct map **out)
{
	struct map *map;

	switch (ist__host_map(chan, peer, where, false, &map)) {
	case IST_OK:
		*out = map;
		return map->addr + (where->at - map->at);
	case IST_BAD_HANDLE:
		ist__host_part_fail(chan, part, IST_BAD_HANDLE, peer->rank, 0, "rank %u names bytes %llu+%llu that its segment doesn't have",
			peer->rank, (unsigned long long)where->at, (unsigned long long)where->bytes);
		return NULL;
	default:
		/* this member's fault, not the peer's */
		ist__host_part_fail(chan, part, IST_NO_MEMORY, chan->rank, errno, "can't map %llu bytes of rank %u",
			(unsigned long long)where->chunk_bytes, peer->rank);
		return NULL;
	}
}

/* By reading a byte of each page: the kernel then maps those around it, writable where the mapping is, for a fifth of what a
 * write to each would cost. */
void
ist__host_map_pages(struct map *map, const uint8_t *from, uint64_t bytes)
{
	uint64_t at = (uint64_t)(from - map->addr), end = at + bytes;

	for (uint64_t s = at / MAP_STRETCH; bytes > 0 && s <= (end - 1) / MAP_STRETCH; s++) {
		uint64_t until = least((s + 1) * MAP_STRETCH, map->bytes);

		if (map->paged[s / 64] >> (s % 64) & 1)
			continue;
		for (uint64_t i = s * MAP_STRETCH; i < until; i += 4096)
			(void)*(const volatile uint8_t *)(map->addr + i);
		map->paged[s / 64] |= UINT64_C(1) << (s % 64);
	}
}

void
ist__host_unborrow(struct map *map)
{
	if (map)
		map->refs--;
}

void
ist__host_maps_fini(struct ist_chan *chan, struct peer *peer)
{
	while (peer->maps)
		map_drop(chan, peer, &peer->maps);
}
