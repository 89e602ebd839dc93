/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/ring.h"

#include "base/fail.h"
#include "base/memroom.h"
#include "sync/plan.h"

#include <string.h>

#define OP "sync_ring"
#define POISON_STEP UINT64_C(65536)
#define PATIENCE_NS (2 * IST_NS_PER_S)

/* An operation ends by itself at the deadline, and says whom it waited for: who waits for it waits a little longer. */
static int64_t
patience(int64_t deadline)
{
	int64_t left = ist__left(deadline);

	return left < 0 || left > INT64_MAX - PATIENCE_NS ? -1 : left + PATIENCE_NS;
}

/* Where memory is short the rings of this host's members together take a quarter of what is there. */
uint64_t
ist__ring_bucket(uint32_t slots, uint32_t members)
{
	uint64_t may = ist__memory_left() / 4 / slots / (members ? members : 1) & ~(IST__PIECE_CUT - 1);

	if (may >= IST__BUCKET_DEFAULT)
		return IST__BUCKET_DEFAULT;
	return may > 64 * IST__BUCKET_MIN ? may : 64 * IST__BUCKET_MIN;
}

/* The sum over the members is held against the limit, less an eighth for all else: some of them may have their rings
 * already, so what is left says nothing of the sum. alone: what this member must have room for, whatever the others do; held:
 * bytes that will be given back before. */
static ist_err
check_room(uint64_t bytes, uint64_t alone, uint64_t held, uint32_t members, struct ist_error *err)
{
	uint64_t limit, room, all;

	if (!ist__memory_room(&limit, &room))
		return IST_OK;
	if (alone > room || alone > limit - limit / 8) {
		bytes = alone;
		members = 1;
	} else if ((bytes <= held || bytes - held <= room) && !__builtin_mul_overflow(bytes, (uint64_t)(members ? members : 1), &all) &&
		   all <= limit - limit / 8) {
		return IST_OK;
	}
	return ist__fail(err, IST_NO_MEMORY, OP, "need %llu bytes for buckets, and as many for each of the %u members on this host; the control group's "
		"limit is %llu, and %llu are left of it", (unsigned long long)bytes, members ? members : 1, (unsigned long long)limit, (unsigned long long)room);
}

static void
free_plain(struct ist__ring *ring, void *addr)
{
	if (ring->far.dev)
		ist__far_free(&ring->far, ring->far.mem, addr);
	else
		ist__free(ring->ctx, addr);
}

static void
free_memory(struct ist__ring *ring)
{
	for (uint32_t i = 0; i < ring->n; i++) {
		struct ist__slot *s = &ring->slots[i];

		if (s->addr && ring->from_group)
			(void)ist_group_alloc_free(ring->group, s->addr); /* fails when the group is gone, and the memory with it */
		else
			free_plain(ring, s->addr);
		s->addr = NULL;
	}
	ring->n = 0;
	ring->slot_bytes = 0;
	ring->from_group = ring->view = false;
}

void
ist__ring_drop(struct ist__ring *ring)
{
	for (uint32_t i = 0; i < ring->n; i++) {
		if (ring->slots[i].req)
			(void)ist_req_free(ring->slots[i].req); /* only a dead env makes this fail */
		ring->slots[i].req = NULL;
	}
	for (uint32_t i = 0; i < IST__SKIPS; i++) {
		if (ring->skips[i])
			(void)ist_req_free(ring->skips[i]);
		ring->skips[i] = NULL;
	}
}

void
ist__ring_fini(struct ist__ring *ring)
{
	ist__ring_drop(ring);
	free_memory(ring);
}

/* All slots from the group, or none. */
static bool
alloc_from_group(struct ist__ring *ring, uint32_t n, uint64_t bytes)
{
	for (uint32_t i = 0; i < n; i++) {
		void *addr = NULL;

		if (ist_group_alloc(ring->group, bytes, ring->far.dev ? ring->far.mem : IST_MEM_HOST, ring->far.dev ? ring->far.index : -1, &addr, NULL) != IST_OK) {
			while (i-- > 0) {
				(void)ist_group_alloc_free(ring->group, ring->slots[i].addr); /* just made */
				ring->slots[i].addr = NULL;
			}
			return false;
		}
		ring->slots[i].addr = addr;
	}
	return true;
}

static void *
plain(struct ist__ring *ring, uint64_t bytes)
{
	void *addr = NULL;

	if (!ring->far.dev)
		return ist__alloc_aligned(ring->ctx, bytes, 4096);
	return ist__far_alloc(&ring->far, ring->far.mem, 0, bytes, &addr, NULL) ? NULL : addr;
}

static bool
alloc_plain(struct ist__ring *ring, uint32_t n, uint64_t bytes)
{
	for (uint32_t i = 0; i < n; i++) {
		ring->slots[i].addr = plain(ring, bytes);
		if (!ring->slots[i].addr) {
			while (i-- > 0) {
				free_plain(ring, ring->slots[i].addr);
				ring->slots[i].addr = NULL;
			}
			return false;
		}
	}
	return true;
}

static bool
is_made(const struct ist__ring *ring, const struct ist_group *group, uint32_t n, uint64_t slot_bytes)
{
	return ring->group == group && ring->n > 0 && ring->wanted == n && ring->slot_bytes >= slot_bytes;
}

ist_err
ist__ring_check(const struct ist__ring *ring, struct ist_group *group, uint32_t n, uint64_t slot_bytes, uint64_t alone, struct ist_error *err)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	ist_err e = ist_group_info(group, &info, err);

	if (e || ring->far.dev || is_made(ring, group, n, slot_bytes))
		return e;
	return check_room(slot_bytes > UINT64_MAX / n ? UINT64_MAX : n * slot_bytes, alone, ring->n * ring->slot_bytes, info.n_same_host, err);
}

/* All slots, or none. */
static ist_err
make_slots(struct ist__ring *ring, uint32_t n, uint64_t bytes, struct ist_error *err)
{
	ist_err e = ist__ring_check(ring, ring->group, n, bytes, 0, err);

	if (e)
		return e;
	ring->from_group = ring->size > 1 && alloc_from_group(ring, n, bytes);
	if (!ring->from_group && !alloc_plain(ring, n, bytes))
		return ist__fail(err, IST_NO_MEMORY, OP, "no memory for %u buckets of %llu bytes", n, (unsigned long long)bytes);
	ring->n = n;
	ring->slot_bytes = bytes;
	return IST_OK;
}

ist_err
ist__ring_prepare(struct ist__ring *ring, const struct ist__ctx *ctx, struct ist_group *group, uint32_t n, uint32_t least, uint64_t slot_bytes,
	struct ist_error *err)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	ist_err e = ist_group_info(group, &info, err);

	if (e)
		return e;
	ist__ring_drop(ring);
	if (slot_bytes == 0)
		slot_bytes = 1;
	if (is_made(ring, group, n, slot_bytes))
		return IST_OK;
	free_memory(ring);
	ring->ctx = ctx;
	ring->group = group;
	ring->size = info.size;
	ring->wanted = n;
	do
		e = make_slots(ring, n, slot_bytes, err);
	while (e == IST_NO_MEMORY && n-- > least);
	if (!e && n < ring->wanted)
		ist__log(ctx, IST_LOG_WARN, "there is memory for %u of %u buckets of %llu bytes%s", n, ring->wanted, (unsigned long long)slot_bytes,
			n == 1 ? ": serial, one is read, moved and delivered before the next" : "");
	return e;
}

void
ist__ring_hear(struct ist__ring *ring, bool first, struct ist__reader *r)
{
	uint32_t n = r->left > 0 ? ist__get_u8(r) : 2;

	if (first || n < ring->least)
		ring->least = n;
}

static void
poison(struct ist__ring *ring, uint8_t *addr, uint64_t bytes)
{
	ring->poison = (ring->poison + 1) * UINT64_C(0x9E3779B97F4A7C15);
	for (uint64_t at = 0; at < bytes; at += POISON_STEP)
		memcpy(addr + at, &ring->poison, bytes - at < sizeof(ring->poison) ? bytes - at : sizeof(ring->poison));
}

static struct ist_buf
buf_of(const struct ist__ring *ring, void *addr, uint64_t bytes)
{
	const struct ist__far *far = &ring->far;

	return (struct ist_buf){ .addr = addr, .bytes = bytes, .mem = (uint16_t)(far->dev ? far->mem : IST_MEM_HOST), .device = far->dev ? far->index : -1 };
}

ist_err
ist__ring_start(struct ist__ring *ring, uint32_t i, uint32_t root, bool am_root, const uint64_t *takers, uint64_t bytes, int64_t deadline,
	struct ist_error *err)
{
	struct ist__slot *s = &ring->slots[i];
	struct ist_buf buf = buf_of(ring, s->addr, bytes);
	struct ist_coll_args args = {
		.struct_size = sizeof(args),
		.peer = root,
		.flags = (uint32_t)IST_COLL_AGREED | (ring->view ? (uint32_t)IST_OP_VIEW : 0),
		.timeout_ns = ist__left(deadline),
		.takers = takers,
	};

	s->root = am_root;
	if (ring->size == 1 || bytes == 0)
		return IST_OK;
	if (am_root) {
		args.src = buf;
	} else {
		if (!ring->far.dev) /* there digests alone tell old from new */
			poison(ring, s->addr, bytes);
		args.dst = buf;
	}
	return ist_broadcast(ring->group, &args, &s->req, err);
}

ist_err
ist__ring_take(struct ist__ring *ring, uint32_t i, int64_t deadline, const uint8_t **at, struct ist_error *err)
{
	struct ist__slot *s = &ring->slots[i];
	struct ist_buf view = { .addr = s->addr };
	ist_err e;

	if (!s->root && s->req) {
		e = ist_req_wait(s->req, patience(deadline), err);
		if (!e && ring->view)
			e = ist_req_view(s->req, &view, err);
		if (e)
			return e;
	}
	*at = view.addr;
	return IST_OK;
}

bool
ist__ring_idle(struct ist__ring *ring, uint32_t i)
{
	uint32_t done = 1;

	if (ring->slots[i].req)
		(void)ist_req_test(ring->slots[i].req, &done, NULL); /* how it ended, who releases it is told */
	return done;
}

ist_err
ist__ring_release(struct ist__ring *ring, uint32_t i, int64_t deadline, struct ist_error *err)
{
	struct ist__slot *s = &ring->slots[i];
	ist_err e;

	if (!s->req)
		return IST_OK;
	e = ist_req_wait(s->req, patience(deadline), err);
	if (e)
		return e;
	e = ist_req_free(s->req);
	s->req = NULL;
	return e ? ist__fail(err, e, OP, "the request of bucket slot %u could not be freed", i) : IST_OK;
}

static ist_err
end_skip(struct ist__ring *ring, uint64_t i, int64_t deadline, struct ist_error *err)
{
	struct ist_req **req = &ring->skips[i % IST__SKIPS];
	ist_err e = *req ? ist_req_wait(*req, patience(deadline), err) : IST_OK;

	if (e || !*req)
		return e;
	e = ist_req_free(*req);
	*req = NULL;
	return e ? ist__fail(err, e, OP, "the request of a bucket that was not taken could not be freed") : IST_OK;
}

ist_err
ist__ring_skip(struct ist__ring *ring, uint32_t root, const uint64_t *takers, uint64_t bytes, int64_t deadline, struct ist_error *err)
{
	struct ist_coll_args args = {
		.struct_size = sizeof(args),
		.peer = root,
		.flags = (uint32_t)IST_COLL_AGREED | (ring->view ? (uint32_t)IST_OP_VIEW : 0),
		.dst = buf_of(ring, NULL, bytes),
		.timeout_ns = ist__left(deadline),
		.takers = takers,
	};
	ist_err e = end_skip(ring, ring->skipped, deadline, err);

	if (e || ring->size == 1 || bytes == 0)
		return e;
	return ist_broadcast(ring->group, &args, &ring->skips[ring->skipped++ % IST__SKIPS], err);
}

ist_err
ist__ring_skip_end(struct ist__ring *ring, int64_t deadline, struct ist_error *err)
{
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < IST__SKIPS && !e; i++)
		e = end_skip(ring, ring->skipped + i, deadline, err);
	return e;
}
