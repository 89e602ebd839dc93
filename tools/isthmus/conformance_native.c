/* SPDX-License-Identifier: Apache-2.0
 *
 * conformance_native.c - checks of what a backend says it does itself: collectives against plain loops over what each
 * rank is known to have given, views, memory of the channel, regions, dropping a member.
 */
#include "conformance_rig.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t group_sizes[] = { 1, 2, 3, 4, 7 };
static const uint64_t sizes[] = { 0, 1, 5, 4096, 100003, 1500000 };
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]), PART = 1000 };

/* What rank gave for to: PART seeds for each rank. */
static uint64_t
seed_of(uint64_t round, uint32_t rank, uint32_t to)
{
	return round * 100000 + rank * PART + to;
}

static bool
many_src(uint32_t kind)
{
	return kind == IST_OP_SCATTER || kind == IST_OP_ALL_TO_ALL;
}

static bool
many_dst(uint32_t kind)
{
	return kind == IST_OP_GATHER || kind == IST_OP_ALL_GATHER || kind == IST_OP_ALL_TO_ALL;
}

static bool
gives(uint32_t kind, bool is_root)
{
	return is_root || (kind != IST_OP_BROADCAST && kind != IST_OP_SCATTER);
}

static bool
takes(uint32_t kind, bool is_root)
{
	return kind == IST_OP_BROADCAST ? !is_root : is_root || kind != IST_OP_GATHER;
}

/* Which rank's seed stands in part i of what rank me receives, and what it was meant for. */
static uint64_t
expected(uint32_t kind, uint64_t round, uint32_t root, uint32_t me, uint32_t i)
{
	switch (kind) {
	case IST_OP_BROADCAST:
		return seed_of(round, root, 0);
	case IST_OP_SCATTER:
		return seed_of(round, root, me);
	case IST_OP_ALL_TO_ALL:
		return seed_of(round, i, me);
	default:
		return seed_of(round, i, 0);
	}
}

/* False: the backend leaves this one to the core (it must then do so on every rank). */
static bool
one_move(struct cf_rank *r, uint32_t kind, uint64_t round, uint32_t root, uint64_t n)
{
	bool is_root = r->rank == root, rooted = kind == IST_OP_BROADCAST || kind == IST_OP_GATHER || kind == IST_OP_SCATTER;
	uint32_t src_parts = gives(kind, is_root || !rooted) ? (many_src(kind) ? r->n : 1) : 0;
	uint32_t dst_parts = takes(kind, is_root || !rooted) ? (many_dst(kind) ? r->n : 1) : 0;
	struct cf_buf src = cf_buf_new(r->t, src_parts * n, (uint32_t)round), dst = cf_buf_new(r->t, dst_parts * n, (uint32_t)round + 3);
	struct ist_op op = cf_send(rooted ? root : 0, round, src.addr, src.bytes);
	struct ist_task *task = NULL;
	struct ist_status st;
	ist_err e;

	op.kind = kind;
	op.dst.addr = dst.addr;
	op.dst.bytes = dst.bytes;
	for (uint32_t i = 0; i < src_parts; i++)
		cf_fill(src.addr + i * n, n, seed_of(round, r->rank, i));
	cf_stage(r->t, "operation kind %u of %llu bytes on %u ranks, root %u", kind, (unsigned long long)n, r->n, root);
	e = cf_try_start(r, &op, 1, &task, &st);
	if (e == IST_UNSUPPORTED)
		return false;
	CF_CHECK(r->t, !e && task, "start failed: %s %.200s", cf_name(e), st.text);
	cf_done(r, task);
	for (uint32_t i = 0; i < dst_parts; i++)
		CF_CHECK(r->t, cf_differs(dst.addr + i * n, n, expected(kind, round, root, r->rank, i)) == UINT64_MAX,
			"%u ranks, root %u, %llu bytes: part %u arrived wrong at rank %u", r->n, root, (unsigned long long)n, i, r->rank);
	CF_CHECK(r->t, cf_walls_stand(&dst), "%llu bytes: it wrote outside of dst", (unsigned long long)n);
	cf_buf_free(&src);
	cf_buf_free(&dst);
	return true;
}

static void
moves_body(struct cf_rank *r, uint32_t kind)
{
	for (uint64_t i = 0; i < N_SIZES; i++)
		for (uint32_t root = 0; root < r->n; root += r->n > 1 ? r->n - 1 : 1)
			if (!one_move(r, kind, 1 + i * 16 + root, root, sizes[i]))
				return;
}

static void
for_groups(struct cf *t, uint32_t kind, void (*body)(struct cf_rank *r))
{
	if (!(t->shared->native >> kind & 1))
		cf_skip(t, "the core composes it");
	for (uint32_t i = 0; i < sizeof(group_sizes) / sizeof(group_sizes[0]); i++)
		if (t->shared->size_ok[group_sizes[i]])
			cf_ranks(t, group_sizes[i], CF_THREADS, body);
	if (t->shared->size_ok[3])
		cf_ranks(t, 3, CF_PROCESSES, body);
}

#define MOVE(name, kind)                        \
	static void                             \
	name##_body(struct cf_rank *r)          \
	{                                       \
		moves_body(r, kind);            \
	}                                       \
	static void                             \
	native_##name(struct cf *t)             \
	{                                       \
		for_groups(t, kind, name##_body); \
	}
MOVE(broadcast, IST_OP_BROADCAST)
MOVE(gather, IST_OP_GATHER)
MOVE(scatter, IST_OP_SCATTER)
MOVE(all_gather, IST_OP_ALL_GATHER)
MOVE(all_to_all, IST_OP_ALL_TO_ALL)
#undef MOVE

static void
several_roots_body(struct cf_rank *r)
{
	struct cf_buf buf[CF_RANKS_MAX];
	struct ist_op ops[CF_RANKS_MAX];
	struct ist_task *task = NULL;
	struct ist_status st;
	const uint64_t n = 700001;
	ist_err e;

	for (uint32_t k = 0; k < r->n; k++) {
		buf[k] = cf_buf_new(r->t, n, k);
		if (k == r->rank)
			cf_fill(buf[k].addr, n, 77 + k);
		ops[k] = k == r->rank ? cf_send(k, 9 + k, buf[k].addr, n) : cf_recv(k, 9 + k, buf[k].addr, n);
		ops[k].kind = IST_OP_BROADCAST;
	}
	cf_stage(r->t, "a broadcast from each of %u ranks in one start", r->n);
	e = cf_try_start(r, ops, r->n, &task, &st);
	if (e == IST_UNSUPPORTED)
		return;
	CF_CHECK(r->t, !e && task, "start failed: %s %.200s", cf_name(e), st.text);
	cf_done(r, task);
	for (uint32_t k = 0; k < r->n; k++) {
		CF_CHECK(r->t, cf_differs(buf[k].addr, n, 77 + k) == UINT64_MAX, "of broadcasts from all ranks at once, rank %u's arrived wrong", k);
		cf_buf_free(&buf[k]);
	}
}

static void
broadcasts_of_several_roots(struct cf *t)
{
	if (!(t->shared->native >> IST_OP_BROADCAST & 1))
		cf_skip(t, "the core composes it");
	cf_need(t, 3);
	cf_ranks(t, 3, CF_THREADS, several_roots_body);
}

/* ---- takers ---- */

enum { SET_SIZES = 4, IN_FLIGHT = 6 };

/* A broadcast to a set. Who does not take has room, which must stay as it is, or no address at all. */
struct set_op {
	struct cf_buf buf;
	struct ist_task *task;
	uint64_t set, n, seed;
	uint32_t root;
	bool takes, nowhere;
};

static bool
set_begin(struct cf_rank *r, struct set_op *s, uint64_t round)
{
	uint64_t set = s->set | (round % 2 ? UINT64_C(1) << s->root : 0); /* the root's bit says nothing */
	struct ist_op op;
	struct ist_status st;
	ist_err e;

	s->takes = r->rank != s->root && s->set >> r->rank & 1;
	s->nowhere = !s->takes && r->rank != s->root && round % 3 == 0;
	s->seed = seed_of(round, s->root, 0);
	s->task = NULL;
	s->buf = cf_buf_new(r->t, s->n, (uint32_t)round);
	cf_fill(s->buf.addr, s->n, r->rank == s->root ? s->seed : s->seed + 1);
	op = r->rank == s->root ? cf_send(s->root, round, s->buf.addr, s->n) : cf_recv(s->root, round, s->nowhere ? NULL : s->buf.addr, s->n);
	op.kind = IST_OP_BROADCAST;
	op.takers = &set;
	cf_stage(r->t, "a broadcast of %llu bytes on %u ranks, root %u, that the ranks of set 0x%llx take", (unsigned long long)s->n, r->n, s->root,
		(unsigned long long)s->set);
	e = cf_try_start(r, &op, 1, &s->task, &st);
	set = ~set; /* copied, or it is the wrong one now */
	if (e == IST_UNSUPPORTED)
		return false;
	CF_CHECK(r->t, !e && s->task, "start failed: %s %.200s", cf_name(e), st.text);
	return true;
}

static void
set_end(struct cf_rank *r, struct set_op *s)
{
	uint64_t differs;

	cf_done(r, s->task);
	differs = cf_differs(s->buf.addr, s->n, s->takes || r->rank == s->root ? s->seed : s->seed + 1);
	CF_CHECK(r->t, s->takes || r->rank == s->root || differs == UINT64_MAX,
		"%u ranks, root %u, takers 0x%llx: rank %u does not take, and its memory was written to", r->n, s->root, (unsigned long long)s->set, r->rank);
	CF_CHECK(r->t, differs == UINT64_MAX, "%u ranks, root %u, takers 0x%llx: %llu bytes arrived wrong at rank %u", r->n, s->root,
		(unsigned long long)s->set, (unsigned long long)s->n, r->rank);
	CF_CHECK(r->t, cf_walls_stand(&s->buf), "it wrote outside of dst");
	cf_buf_free(&s->buf);
}

/* All sets of a small group from all roots, one by one and several at once: nothing may be lost between different sets. */
static void
takers_body(struct cf_rank *r)
{
	static const uint64_t set_sizes[SET_SIZES] = { 0, 5, 100003, 1500000 };
	struct set_op flight[IN_FLIGHT];
	uint64_t round = 1;

	for (uint64_t set = 0; set < UINT64_C(1) << r->n; set++)
		for (uint32_t root = 0; root < r->n; root++, round++) {
			struct set_op s = { .set = set & ~(UINT64_C(1) << root), .root = root, .n = set_sizes[(set + root) % (SET_SIZES - 1)] };

			if (!set_begin(r, &s, round))
				return;
			set_end(r, &s);
		}
	for (uint32_t i = 0; i < 5; i++) {
		for (uint32_t k = 0; k < IN_FLIGHT; k++, round++) {
			uint32_t root = (i + k) % r->n;

			flight[k] = (struct set_op){ .set = (round * 5 + k) & ((UINT64_C(1) << r->n) - 1) & ~(UINT64_C(1) << root), .root = root,
				.n = set_sizes[(i + k) % SET_SIZES] };
			if (!set_begin(r, &flight[k], round))
				return;
		}
		for (uint32_t k = 0; k < IN_FLIGHT; k++)
			set_end(r, &flight[k]);
	}
}

static void
takers_alone_get_the_bytes(struct cf *t)
{
	if (!(t->shared->native >> IST_OP_BROADCAST & 1))
		cf_skip(t, "the core composes broadcasts");
	if (!(t->shared->traits & IST_TRAIT_TAKERS))
		cf_skip(t, "it gives all broadcasts to everybody");
	for (uint32_t i = 1; i < 4; i++)
		if (t->shared->size_ok[group_sizes[i]])
			cf_ranks(t, group_sizes[i], CF_THREADS, takers_body);
	if (t->shared->size_ok[3])
		cf_ranks(t, 3, CF_PROCESSES, takers_body);
}

/* Small whole numbers: every order of additions gives the same. */
static bool
one_reduction(struct cf_rank *r, uint32_t kind, uint64_t round, uint64_t count)
{
	uint64_t src_n = kind == IST_OP_REDUCE_SCATTER ? count * r->n : count;
	struct cf_buf src = cf_buf_new(r->t, src_n * 4, 0), dst = cf_buf_new(r->t, count * 4, 4);
	struct ist_op op = cf_send(0, round, src.addr, src.bytes);
	struct ist_task *task = NULL;
	struct ist_status st;
	ist_err e;

	op.kind = kind;
	op.dtype = IST_I32;
	op.reduce = IST_SUM;
	op.dst.addr = dst.addr;
	op.dst.bytes = dst.bytes;
	for (uint64_t i = 0; i < src_n; i++) {
		int32_t v = (int32_t)(i % 1000) * (int32_t)(r->rank + 1);

		memcpy(src.addr + 4 * i, &v, 4);
	}
	cf_stage(r->t, "reduction kind %u of %llu numbers on %u ranks", kind, (unsigned long long)count, r->n);
	e = cf_try_start(r, &op, 1, &task, &st);
	if (e == IST_UNSUPPORTED)
		return false;
	CF_CHECK(r->t, !e && task, "start failed: %s %.200s", cf_name(e), st.text);
	cf_done(r, task);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t at = kind == IST_OP_REDUCE_SCATTER ? r->rank * count + i : i;
		int32_t want = (int32_t)(at % 1000) * (int32_t)(r->n * (r->n + 1) / 2), got;

		memcpy(&got, dst.addr + 4 * i, 4);
		CF_CHECK(r->t, got == want, "%u ranks: sum %llu of %llu is %d, not %d", r->n, (unsigned long long)i, (unsigned long long)count, got, want);
	}
	cf_buf_free(&src);
	cf_buf_free(&dst);
	return true;
}

static void
all_reduce_body(struct cf_rank *r)
{
	for (uint64_t i = 0; i < N_SIZES && one_reduction(r, IST_OP_ALL_REDUCE, 1 + i, sizes[i] / 4); i++)
		;
}

static void
reduce_scatter_body(struct cf_rank *r)
{
	for (uint64_t i = 0; i < N_SIZES && one_reduction(r, IST_OP_REDUCE_SCATTER, 1 + i, sizes[i] / 4); i++)
		;
}

static void
native_all_reduce(struct cf *t)
{
	for_groups(t, IST_OP_ALL_REDUCE, all_reduce_body);
}

static void
native_reduce_scatter(struct cf *t)
{
	for_groups(t, IST_OP_REDUCE_SCATTER, reduce_scatter_body);
}

static void
barrier_body(struct cf_rank *r)
{
	_Atomic uint64_t *cell = &r->t->shared->cell[r->n];
	uint64_t base = 0;

	cf_barrier(r); /* of the suite's own */
	base = atomic_load(cell);
	cf_barrier(r);
	for (uint64_t i = 0; i < 40; i++) {
		struct ist_op op = cf_send(0, i, NULL, 0);
		struct ist_task *task = NULL;
		struct ist_status st;
		ist_err e;

		op.kind = IST_OP_BARRIER;
		if (i % r->n == r->rank)
			cf_pause_us(300);
		atomic_fetch_add(cell, 1);
		e = cf_try_start(r, &op, 1, &task, &st);
		if (e == IST_UNSUPPORTED)
			return;
		CF_CHECK(r->t, !e && task, "start failed: %s %.200s", cf_name(e), st.text);
		cf_done(r, task);
		CF_CHECK(r->t, atomic_load(cell) - base >= (i + 1) * r->n, "rank %u left barrier %llu before all of %u had come", r->rank,
			(unsigned long long)i, r->n);
	}
}

static void
native_barrier(struct cf *t)
{
	for_groups(t, IST_OP_BARRIER, barrier_body);
}

/* ---- memory of the channel, views ---- */

static void
alloc_body(struct cf_rank *r)
{
	void *p[4] = { NULL };
	struct ist_status st;

	for (int i = 0; i < 4; i++) {
		uint64_t bytes = UINT64_C(1000003) * (uint64_t)(i + 1);
		ist_err e;

		cf_status(&st);
		cf_stage(r->t, "alloc of %llu bytes", (unsigned long long)bytes);
		e = r->t->b->alloc(r->chan, bytes, IST_MEM_HOST, -1, &p[i], &st);
		if (e == IST_UNSUPPORTED)
			return;
		CF_CHECK(r->t, !e && p[i], "alloc failed: %s %.200s", cf_name(e), st.text);
		cf_fill(p[i], bytes, (uint64_t)i);
	}
	for (int i = 0; i < 4; i++)
		CF_CHECK(r->t, cf_differs(p[i], UINT64_C(1000003) * (uint64_t)(i + 1), (uint64_t)i) == UINT64_MAX, "two pieces of alloc's memory overlap");
	r->t->b->free(r->chan, p[1]);
	r->t->b->free(r->chan, p[2]);
	cf_ring(r, 1000, 0); /* the rest is freed by close */
}

static void
alloc_lends_memory(struct cf *t)
{
	if (!IST_HAS(t->b, free) || !t->b->alloc)
		cf_skip(t, "it has no alloc");
	cf_ranks(t, cf_pair(t), CF_THREADS, alloc_body);
	CF_CHECK(t, atomic_load(&t->blocks) == 0, "close left %lld pieces of memory", (long long)atomic_load(&t->blocks));
}

enum { VIEW_GOT = 0, VIEW_LENT, VIEW_GO, VIEW_BACK };

static void
view_root(struct cf_rank *r, struct ist_task *task)
{
	_Atomic uint64_t *cell = r->t->shared->cell;
	int64_t until = cf_now() + CF_PATIENCE_NS;
	struct ist_status st;

	while (atomic_load(&cell[VIEW_GOT]) < r->n - 1) {
		CF_CHECK(r->t, cf_now() < until, "not all receivers of a view were done");
		cf_turn(r);
	}
	for (int i = 0; i < 20 && atomic_load(&cell[VIEW_LENT]) > 0; i++) {
		cf_turn(r);
		cf_status(&st);
		r->t->b->test(r->chan, task, &st);
		CF_CHECK(r->t, st.state != IST_DONE, "the root of a broadcast is done while its memory is still lent");
	}
	atomic_store(&cell[VIEW_GO], 1);
	cf_done(r, task);
}

static void
view_receiver(struct cf_rank *r, struct ist_task *task, void *room, uint64_t bytes)
{
	_Atomic uint64_t *cell = r->t->shared->cell;
	struct ist_status st;
	ist_err e = cf_finish(r, task, &st);

	CF_CHECK(r->t, !e, "a broadcast with IST_OP_VIEW failed: %s %.200s", cf_name(e), st.text);
	CF_CHECK(r->t, st.view.bytes == bytes && (st.view.addr || bytes == 0), "the view has %llu bytes, not %llu", (unsigned long long)st.view.bytes,
		(unsigned long long)bytes);
	CF_CHECK(r->t, cf_differs(st.view.addr, bytes, 5) == UINT64_MAX, "a view does not show what the root has");
	if (st.view.addr != room)
		atomic_fetch_add(&cell[VIEW_LENT], 1);
	atomic_fetch_add(&cell[VIEW_GOT], 1);
	while (!atomic_load(&cell[VIEW_GO]))
		cf_turn(r);
	CF_CHECK(r->t, cf_differs(st.view.addr, bytes, 5) == UINT64_MAX, "a view changed while it was lent");
	r->t->b->task_free(r->chan, task);
}

static void
view_body(struct cf_rank *r)
{
	const uint64_t bytes = 3000001;
	void *room = NULL;
	struct cf_buf plain = { .bytes = 0 };
	struct ist_status st;
	struct ist_task *task = NULL;
	ist_err e;

	cf_status(&st);
	e = r->t->b->alloc(r->chan, bytes, IST_MEM_HOST, -1, &room, &st);
	if (e == IST_UNSUPPORTED) { /* plain memory does as well, it says */
		plain = cf_buf_new(r->t, bytes, 0);
		room = plain.addr;
		e = IST_OK;
	}
	CF_CHECK(r->t, !e && room, "alloc failed: %s %.200s", cf_name(e), st.text);
	struct ist_op op = r->rank == 0 ? cf_send(0, 3, room, bytes) : cf_recv(0, 3, room, bytes);

	op.kind = IST_OP_BROADCAST;
	op.flags = IST_OP_VIEW;
	if (r->rank == 0)
		cf_fill(room, bytes, 5);
	cf_stage(r->t, "a broadcast with views");
	e = cf_try_start(r, &op, 1, &task, &st);
	CF_CHECK(r->t, !e && task, "start failed: %s %.200s", cf_name(e), st.text);
	if (r->rank == 0)
		view_root(r, task);
	else
		view_receiver(r, task, room, bytes);
	cf_barrier(r);
	if (!plain.addr)
		r->t->b->free(r->chan, room);
	cf_buf_free(&plain);
}

static void
views_show_and_stay(struct cf *t)
{
	if (!(t->shared->traits & IST_TRAIT_CAN_VIEW))
		cf_skip(t, "it lends no views");
	cf_need(t, 3);
	cf_ranks(t, 3, CF_THREADS, view_body);
	memset(t->shared->cell, 0, sizeof(t->shared->cell));
	cf_ranks(t, 3, CF_PROCESSES, view_body);
}

/* ---- regions ---- */

static struct ist_region *
region_of(struct cf_rank *r, struct cf_buf *buf, struct ist_wire *handle)
{
	struct ist_buf of = { .addr = buf->addr, .bytes = buf->bytes, .device = -1 };
	struct ist_region *region = NULL;
	struct ist_task *task = NULL;
	struct ist_status st;
	ist_err e;

	cf_status(&st);
	cf_stage(r->t, "region");
	e = r->t->b->region(r->chan, &of, 0, &region, handle, &task, &st);
	if (e == IST_UNSUPPORTED)
		return NULL;
	CF_CHECK(r->t, !e && region && task, "region failed: %s %.200s", e ? cf_name(e) : "OK without a region or task", st.text);
	cf_done(r, task);
	CF_CHECK(r->t, handle->bytes <= 256, "a region's handle has %llu bytes, at most 256 are allowed", (unsigned long long)handle->bytes);
	return region;
}

static void
region_body(struct cf_rank *r)
{
	struct cf_buf mine = cf_buf_new(r->t, 1 << 20, 0), got = cf_buf_new(r->t, 5000, 3);
	struct ist_wire handle = { .bytes = 0 };
	struct ist_region *region;
	struct cf_wires *w = calloc(1, sizeof(*w));

	cf_fill(mine.addr, mine.bytes, r->rank);
	region = region_of(r, &mine, &handle);
	cf_exchange(r, &handle, w);
	if (region && (r->t->shared->native >> IST_OP_READ & 1)) {
		struct ist_op op = cf_recv(cf_next(r), 1, got.addr, got.bytes);

		op.kind = IST_OP_READ;
		op.region = w->all[cf_next(r)].addr;
		op.region_bytes = w->all[cf_next(r)].bytes;
		op.offset = 8000; /* of eight: the pattern goes on */
		cf_done(r, cf_start(r, &op, 1));
		cf_fill(mine.addr, mine.bytes, cf_next(r));
		CF_CHECK(r->t, memcmp(got.addr, mine.addr + 8000, got.bytes) == 0 && cf_walls_stand(&got), "a READ brought other bytes than its region holds");
	}
	cf_barrier(r); /* nobody reads any more */
	cf_wires_free(w, r->n);
	free(w);
	if (region)
		r->t->b->region_free(r->chan, region);
	cf_buf_free(&got);
	cf_buf_free(&mine);
}

static void
regions_are_read(struct cf *t)
{
	if (!IST_HAS(t->b, region_free) || !t->b->region)
		cf_skip(t, "it has no regions; reads are staged");
	cf_ranks(t, cf_pair(t), CF_THREADS, region_body);
}

static void
drop_body(struct cf_rank *r)
{
	struct cf_buf a = cf_buf_new(r->t, 1000, 0), b = cf_buf_new(r->t, 1000, 0);
	struct ist_status st;
	ist_err e;

	cf_fill(a.addr, 1000, r->rank);
	if (r->rank < 2) { /* rank 2 is the one that is dropped */
		struct ist_op lost = cf_recv(2, 1, b.addr, 1000);
		struct ist_task *task = cf_start(r, &lost, 1);

		cf_stage(r->t, "drop");
		e = r->t->b->drop(r->chan, 2);
		if (e == IST_UNSUPPORTED)
			cf_skip(r->t, "it drops nobody");
		CF_CHECK(r->t, !e, "drop failed: %s", cf_name(e));
		do {
			cf_turn(r);
			cf_status(&st);
			e = r->t->b->test(r->chan, task, &st);
		} while (st.state < IST_DONE);
		CF_CHECK(r->t, e == IST_PEER_LOST, "a task with a member that was dropped ended with %s", cf_name(e));
		r->t->b->task_free(r->chan, task);
		struct ist_op ops[2] = { cf_send(1 - r->rank, 1, a.addr, 1000), cf_recv(1 - r->rank, 1, b.addr, 1000) };

		cf_done(r, cf_start(r, ops, 2));
		CF_CHECK(r->t, cf_differs(b.addr, 1000, 1 - r->rank) == UINT64_MAX, "after a drop the others' bytes arrive wrong");
	}
	cf_buf_free(&a);
	cf_buf_free(&b);
}

static void
drop_ends_one_member_alone(struct cf *t)
{
	if (!IST_HAS(t->b, drop) || !t->b->drop)
		cf_skip(t, "it has no drop; the core opens a new channel");
	cf_need(t, 3);
	cf_ranks(t, 3, CF_THREADS, drop_body);
}

const struct cf_entry cf_native_checks[] = {
	{ "native_broadcast", native_broadcast, 120 },
	{ "broadcasts_of_several_roots", broadcasts_of_several_roots, 0 },
	{ "takers_alone_get_the_bytes", takers_alone_get_the_bytes, 120 },
	{ "native_gather", native_gather, 120 },
	{ "native_scatter", native_scatter, 120 },
	{ "native_all_gather", native_all_gather, 120 },
	{ "native_all_to_all", native_all_to_all, 120 },
	{ "native_all_reduce", native_all_reduce, 120 },
	{ "native_reduce_scatter", native_reduce_scatter, 120 },
	{ "native_barrier", native_barrier, 120 },
	{ "alloc_lends_memory", alloc_lends_memory, 0 },
	{ "views_show_and_stay", views_show_and_stay, 0 },
	{ "regions_are_read", regions_are_read, 0 },
	{ "drop_ends_one_member_alone", drop_ends_one_member_alone, 0 },
	{ NULL, NULL, 0 },
};
