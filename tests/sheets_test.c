/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte strings that members of one host give each other on sheets in shared memory: lengths around a sheet's, disorder,
 * deaths at each point, members that stay away, leave, lie, or know nothing of sheets, and several threads.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "group/group.h"
#include "net/wire.h"
#include "ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MOST = 9 };

static uint8_t
byte_of(uint32_t rank, uint64_t salt, uint64_t i)
{
	return (uint8_t)(i * 13 + rank * 101 + salt * 29 + (i >> 8));
}

static void
fill(uint8_t *at, uint64_t bytes, uint32_t rank, uint64_t salt)
{
	for (uint64_t i = 0; i < bytes; i++)
		at[i] = byte_of(rank, salt, i);
}

static void
check_blob(const struct ist_blob *b, uint64_t bytes, uint32_t rank, uint64_t salt)
{
	const uint8_t *at = b->addr;

	CHECK(b->bytes == bytes && b->addr);
	for (uint64_t i = 0; i < bytes; i++)
		CHECK(at[i] == byte_of(rank, salt, i));
}

/* As long as a sheet and around it, shorter, much longer. */
static uint64_t
length_of(uint64_t room, uint64_t which)
{
	const uint64_t lengths[] = { 0, 1, room - 1, room, room + 1, 100, 20 * room + 3, 64 };

	return lengths[which % 8];
}

/* All give strings whose lengths follow from what: 0-7 all the same; 8 each another; 9 one long and the others short. */
static void
gather_once(struct ist_group *g, uint32_t rank, uint32_t size, uint64_t what, uint64_t salt)
{
	uint64_t room = ist__sheet_room(size), bytes[MOST];
	struct ist_blob all[MOST];
	struct ist_error err;
	uint8_t *mine;

	ist_error_init(&err);
	for (uint32_t r = 0; r < size; r++)
		bytes[r] = what < 8 ? length_of(room, what) : what == 8 ? length_of(room, r + salt) : r == salt % size ? room + 1 + salt : salt % (room + 1);
	mine = malloc(bytes[rank] + 1);
	CHECK(mine);
	fill(mine, bytes[rank], rank, salt);
	CHECK_ERR(IST_OK, ist_all_gather_bytes(g, mine, bytes[rank], 0, all, &err), &err);
	for (uint32_t r = 0; r < size; r++)
		check_blob(&all[r], bytes[r], r, salt);
	ist_blobs_free(g, all, size);
	free(mine);
}

static void
decide_once(struct ist_group *g, struct ist_error *err)
{
	uint32_t doubt = 9;

	CHECK_ERR(IST_OK, ist_decide(g, NULL, 0, &doubt, err), err);
	CHECK(doubt == 0);
}

static int
all_lengths(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_blob one;
	uint64_t used;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "g", rank, r->n, 30, 30), &m.err);
	CHECK(m.g->impl->sheets && (m.g->impl->features & IST__FEATURE_SHEETS));
	for (uint64_t i = 0; i < 120; i++) {
		used = m.g->impl->sheets_used;
		gather_once(m.g, rank, r->n, i % 10, i);
		CHECK(m.g->impl->sheets_used == used + 1);
		if (i % 7 == 0) { /* other operations between them use no sheet, or two */
			CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
			CHECK_ERR(IST_OK, ist_broadcast_bytes(m.g, &i, sizeof(i), (uint32_t)i % r->n, 0, &one, &m.err), &m.err);
			ist_blobs_free(m.g, &one, 1);
		}
		if (i % 5 == 0)
			decide_once(m.g, &m.err);
	}
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
every_length_arrives(void **state)
{
	static const uint32_t sizes[] = { 2, 3, 4, 5, 9 };

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct ranks r;

		ranks_init(&r, sizes[i]);
		ranks_start_all(&r, all_lengths, NULL);
		assert_int_equal(ranks_join(&r, 120, 0), 0);
		ranks_fini(&r);
	}
}

/* Nobody is out before all are in, nor reads what was written later: quick ones in a row, and some whose members come late. */
static int
in_a_row(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint64_t *in = (_Atomic uint64_t *)r->shared + 1;
	uint32_t seed = rank + 1;
	struct ist_blob all[MOST];
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "r", rank, r->n, 30, 30), &m.err);
	for (uint64_t i = 1; i <= 3000; i++) {
		seed = seed * 1664525 + 1013904223;
		if (i % 100 == 0)
			usleep((seed >> 16) % 3000); /* so that the others sleep */
		*in += 1;
		CHECK_ERR(IST_OK, ist_all_gather_bytes(m.g, &i, sizeof(i), 0, all, &m.err), &m.err);
		CHECK(*in >= i * r->n);
		for (uint32_t k = 0; k < r->n; k++)
			CHECK(all[k].bytes == sizeof(i) && !memcmp(all[k].addr, &i, sizeof(i)));
		ist_blobs_free(m.g, all, r->n);
	}
	member_fini(&m);
	return 0;
}

static void
one_after_another(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= 5; n++) {
		struct ranks r;

		ranks_init(&r, n);
		ranks_start_all(&r, in_a_row, NULL);
		assert_int_equal(ranks_join(&r, 120, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- who has another idea ---- */

enum other { BARRIER, GATHER, BROADCAST, FROM_ME, DECIDE, AHEAD, OTHERS };

static ist_err
do_other(struct member *m, enum other what, uint32_t rank, uint32_t size)
{
	struct ist_blob one = { 0 }, all[MOST];
	ist_err e = IST_OK;

	switch (what) {
	case BARRIER: return ist_barrier(m->g, 0, &m->err);
	case GATHER: /* ours is on its way, and then the next operation tells */
		e = ist_gather_bytes(m->g, "g", 1, (rank + 1) % size, 0, NULL, &m->err);
		break;
	case BROADCAST: return ist_broadcast_bytes(m->g, NULL, 0, (rank + 1) % size, 0, &one, &m->err);
	case DECIDE: return ist_decide(m->g, NULL, 0, NULL, &m->err);
	default: /* a root waits for nobody, and may be far ahead of what the board remembers */
		for (int i = 0; !e && i < (what == AHEAD ? 3 * IST__BOARD_OPS : 1); i++) {
			e = ist_broadcast_bytes(m->g, "b", 1, rank, 0, &one, &m->err);
			if (!e)
				ist_blobs_free(m->g, &one, 1);
		}
	}
	return e ? e : ist_all_gather_bytes(m->g, "x", 1, 0, all, &m->err);
}

struct disorder {
	enum other what;
	bool late; /* the odd one comes when the others are in, asleep maybe */
	bool long_string;
};

static int
in_disorder(struct ranks *r, uint32_t rank, void *arg)
{
	const struct disorder *d = arg;
	uint64_t bytes = d->long_string ? 2 * ist__sheet_room(r->n) : 10;
	uint8_t *mine = calloc(1, bytes);
	struct ist_blob all[MOST];
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "o", rank, r->n, 30, 30), &m.err);
	if (rank == 1) {
		for (uint32_t k = 0; d->late && k < r->n; k++)
			while (k != rank && atomic_load(&m.g->impl->board[k].op) == 0)
				sched_yield();
		CHECK_ERR(IST_ORDER_MISMATCH, do_other(&m, d->what, rank, r->n), &m.err);
	} else {
		CHECK_ERR(IST_ORDER_MISMATCH, ist_all_gather_bytes(m.g, mine, bytes, 0, all, &m.err), &m.err);
	}
	CHECK(m.err.n_ranks == 2 && error_names(&m.err, 1));
	free(mine);
	member_fini(&m);
	return 0;
}

static void
disorder_is_named(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < OTHERS * 4; i++) {
		struct disorder d = { .what = (enum other)(i / 4), .late = i & 1, .long_string = i & 2 };
		struct ranks r;

		ranks_init(&r, 2 + i % 2);
		ranks_start_all(&r, in_disorder, &d);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- deaths ---- */

enum point { OUTSIDE, BEGUN, WRITTEN, ENTERED, ENTERED_LONG, ENTERED_AMONG_LONG, POINTS };

static void
await_entered(struct ist__group *g, uint64_t seq)
{
	for (uint32_t k = 0; k < g->size; k++)
		while (k != g->rank && atomic_load(&g->board[k].op) < seq)
			sched_yield();
}

/* The others are in; this one gets as far as that point. */
static void
die_at(struct ist__group *g, enum point point)
{
	uint64_t seq = 0, bytes = point == ENTERED_LONG ? ist__sheet_room(g->size) + 1 : 6;
	static uint8_t much[8192] = "victim";

	CHECK(bytes <= sizeof(much));
	await_entered(g, 3);
	if (point >= BEGUN)
		CHECK(ist__objects_begin(g, "all_gather_bytes", IST__ALL_GATHER, 0, &seq, NULL) == IST_OK && seq == 3);
	if (point >= WRITTEN)
		CHECK(ist__sheet_put(g, seq, much, bytes) == (point != ENTERED_LONG));
	if (point >= ENTERED) {
		pthread_mutex_lock(&g->lock);
		ist__board_enter(g, seq, IST__ALL_GATHER, 0);
		pthread_mutex_unlock(&g->lock);
	}
	raise(SIGKILL);
}

struct death {
	enum point point;
	uint32_t victim;
};

static int
loses_one(struct ranks *r, uint32_t rank, void *arg)
{
	const struct death *d = arg;
	bool is_long = d->point == ENTERED_AMONG_LONG && rank == (d->victim + 1) % r->n;
	uint64_t bytes = is_long ? 2 * ist__sheet_room(r->n) : 5;
	uint8_t *mine = calloc(1, bytes);
	struct ist_blob all[MOST];
	struct member m;
	ist_err e;

	CHECK(mine);
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "d", rank, r->n, 30, 30), &m.err);
	gather_once(m.g, rank, r->n, 3, 1);
	gather_once(m.g, rank, r->n, 4, 2);
	if (rank == d->victim)
		die_at(m.g->impl, d->point);
	memcpy(mine, "alive", 5);
	e = ist_all_gather_bytes(m.g, mine, bytes, 0, all, &m.err);
	if (d->point == ENTERED) { /* it was the last one in: what it wrote is there, whatever came of it */
		CHECK_ERR(IST_OK, e, &m.err);
		for (uint32_t k = 0; k < r->n; k++)
			CHECK(k == d->victim ? all[k].bytes == 6 && !memcmp(all[k].addr, "victim", 6) : all[k].bytes == 5 && !memcmp(all[k].addr, "alive", 5));
		ist_blobs_free(m.g, all, r->n);
		e = ist_all_gather_bytes(m.g, mine, bytes, 0, all, &m.err);
	}
	CHECK_ERR(IST_PEER_LOST, e, &m.err);
	CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == d->victim);
	free(mine);
	member_fini(&m);
	return 0;
}

static void
a_death_at_each_point(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < POINTS * 4; i++) {
		struct death d = { .point = (enum point)(i / 4), .victim = i % 4 };
		struct ranks r;

		ranks_init(&r, 4);
		ranks_start_all(&r, loses_one, &d);
		assert_int_equal(ranks_join(&r, 60, UINT64_C(1) << d.victim), 0);
		ranks_fini(&r);
	}
}

/* The victim is killed from outside, in the middle of whatever it does. What ends well is right, and alike. */
static int
goes_on_until(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct member m;
	ist_err e = IST_OK;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "k", rank, r->n, 30, 30), &m.err);
	for (uint64_t i = 0; !e; i++) {
		uint64_t bytes = i % 3 == 2 ? ist__sheet_room(r->n) + i % 2 : i % 50;
		uint8_t mine[5000];
		struct ist_blob all[MOST];

		fill(mine, bytes, rank, i);
		e = ist_all_gather_bytes(m.g, mine, bytes, 0, all, &m.err);
		for (uint32_t k = 0; !e && k < r->n; k++)
			check_blob(&all[k], bytes, k, i);
		if (!e)
			ist_blobs_free(m.g, all, r->n);
		if (rank == 0)
			atomic_store(&flags[0], (uint32_t)i + 1);
	}
	CHECK_ERR(IST_PEER_LOST, e, &m.err);
	CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == r->n - 1);
	member_fini(&m);
	return 0;
}

static void
a_death_at_any_moment(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 12; i++) {
		struct ranks r;

		ranks_init(&r, 3);
		ranks_start_all(&r, goes_on_until, NULL);
		ranks_await(r.shared, 20 + i * 7);
		kill(r.pid[2], SIGKILL);
		assert_int_equal(ranks_join(&r, 60, 4), 0);
		ranks_fini(&r);
	}
}

/* ---- who stays away, leaves, aborts ---- */

enum absence { AWAY, LEAVES, ABORTS, ABSENCES };

static int
without_one(struct ranks *r, uint32_t rank, void *arg)
{
	static const ist_err want[] = { [AWAY] = IST_TIMEOUT, [LEAVES] = IST_PEER_LEFT, [ABORTS] = IST_ABORTED };
	enum absence how = *(enum absence *)arg;
	_Atomic uint32_t *flags = r->shared;
	struct ist_blob all[MOST];
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "a", rank, r->n, 30, 30), &m.err);
	gather_once(m.g, rank, r->n, 1, 1);
	if (rank == 1) {
		await_entered(m.g->impl, 2);
		if (how == AWAY)
			ranks_await(&flags[0], r->n - 1);
		if (how == ABORTS)
			CHECK(ist_group_abort(m.g, "enough") == IST_OK);
	} else {
		CHECK_ERR(want[how], ist_all_gather_bytes(m.g, "x", 1, how == AWAY ? IST_NS_PER_S : 0, all, &m.err), &m.err);
		CHECK(how == ABORTS || (m.err.n_ranks == 1 && m.err.ranks[0] == 1));
		atomic_fetch_add(&flags[0], 1);
	}
	member_fini(&m);
	return 0;
}

static void
one_is_missing(void **state)
{
	(void)state;
	for (enum absence how = AWAY; how < ABSENCES; how++) {
		struct ranks r;

		ranks_init(&r, 3);
		ranks_start_all(&r, without_one, &how);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* Who leaves as soon as it has what it wanted takes nothing from those who are slower. */
static int
leaves_at_once(struct ranks *r, uint32_t rank, void *arg)
{
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "l", rank, r->n, 30, 30), &m.err);
	gather_once(m.g, rank, r->n, 3, 5);
	member_fini(&m);
	return 0;
}

static void
the_quick_may_leave(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 10; i++) {
		struct ranks r;

		ranks_init(&r, 5);
		ranks_start_all(&r, leaves_at_once, NULL);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- lies ---- */

/* A length beyond the sheet is never read: the string should come as a message then, and does not. */
static int
lies(struct ranks *r, uint32_t rank, void *arg)
{
	const uint64_t room = ist__sheet_room(r->n), lengths[] = { room + 1, room + 4096, UINT64_C(1) << 32, UINT64_MAX - 16 };
	struct ist_blob all[MOST];
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "l", rank, r->n, 30, 30), &m.err);
	if (rank == 1) {
		struct ist__group *g = m.g->impl;
		_Atomic uint64_t *words = (_Atomic uint64_t *)(void *)(g->sheets + 3 * (ist__sheets_bytes(2) / 4)); /* rank 1's for the first use */
		struct ist__msg *got = NULL;
		uint64_t seq;

		CHECK(ist__objects_begin(g, "all_gather_bytes", IST__ALL_GATHER, 0, &seq, NULL) == IST_OK);
		CHECK(ist__sheet_put(g, seq, "lie", 3) && words[0] == seq && words[1] == 3);
		words[1] = lengths[*(uint32_t *)arg];
		pthread_mutex_lock(&g->lock);
		ist__board_enter(g, seq, IST__ALL_GATHER, 0);
		pthread_mutex_unlock(&g->lock);
		CHECK(ist__objects_send(g, IST__ALL_GATHER, seq << 8, 0, "\0\0\0\0", 4, NULL) == IST_OK); /* nothing at all */
		/* what the other sends in that round is taken, so that it does not meet the barrier; or the end comes first */
		if (ist__objects_recv(g, IST__ALL_GATHER, seq << 8, 0, INT64_MAX, &got, NULL) == IST_OK)
			ist__msg_free(g->loop, got);
		ist__objects_end(g);
		CHECK_ERR(IST_BAD_FORMAT, ist_barrier(m.g, 0, &m.err), &m.err);
	} else {
		CHECK_ERR(IST_BAD_FORMAT, ist_all_gather_bytes(m.g, "x", 1, 0, all, &m.err), &m.err);
	}
	CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == 1);
	member_fini(&m);
	return 0;
}

static void
lengths_are_not_believed(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		struct ranks r;

		ranks_init(&r, 2);
		ranks_start_all(&r, lies, &i);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- an older member ---- */

static int
knows_no_sheets(struct ranks *r, uint32_t rank, void *arg)
{
	uint64_t without = *(uint64_t *)arg;
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	if (rank == 1)
		m.ep->ep->self.features &= ~without;
	CHECK_ERR(IST_OK, member_join(&m, r->at, "f", rank, r->n, 30, 30), &m.err);
	CHECK(!m.g->impl->sheets && !(m.g->impl->features & without));
	CHECK(!m.g->impl->board == !!(without & IST__FEATURE_BOARD));
	for (uint64_t i = 0; i < 20; i++) {
		gather_once(m.g, rank, r->n, i % 10, i);
		decide_once(m.g, &m.err);
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	}
	member_fini(&m);
	return 0;
}

static void
one_knows_no_sheets(void **state)
{
	static uint64_t without[] = { IST__FEATURE_SHEETS, IST__FEATURE_BOARD, IST__FEATURE_BOARD | IST__FEATURE_SHEETS };

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct ranks r;

		ranks_init(&r, 3);
		ranks_start_all(&r, knows_no_sheets, &without[i]);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- threads ---- */

struct worker {
	struct ist_group *g;
	uint32_t rank, size;
	uint64_t salt;
	pthread_t thread;
};

static void *
works(void *arg)
{
	struct worker *w = arg;
	struct ist_error err;

	ist_error_init(&err);
	for (uint64_t i = 0; i < 100; i++) {
		gather_once(w->g, w->rank, w->size, i % 10, w->salt + i);
		if (i % 10 == 0)
			decide_once(w->g, &err);
	}
	return NULL;
}

/* All threads of all members say the same length: which of them meet is left to chance. */
static void *
works_on_one(void *arg)
{
	struct worker *w = arg;
	struct ist_blob all[MOST];
	struct ist_error err;
	uint8_t mine[3000];

	ist_error_init(&err);
	for (uint64_t i = 0; i < 100; i++) {
		fill(mine, sizeof(mine), w->rank, w->salt);
		CHECK_ERR(IST_OK, ist_all_gather_bytes(w->g, mine, sizeof(mine), 0, all, &err), &err);
		for (uint32_t r = 0; r < w->size; r++) {
			uint64_t salt = !memcmp(all[r].addr, &(uint8_t){ byte_of(r, 1, 0) }, 1) ? 1 : 2;

			check_blob(&all[r], sizeof(mine), r, salt); /* of one thread, whole */
		}
		ist_blobs_free(w->g, all, w->size);
	}
	return NULL;
}

static int
with_threads(struct ranks *r, uint32_t rank, void *arg)
{
	uint32_t everybody[MOST] = { 0, 1, 2, 3 };
	struct ist_split_args sa = { .struct_size = sizeof(sa), .n_ranks = r->n, .ranks = everybody, .timeout_ns = 20 * IST_NS_PER_S };
	struct worker w[4] = { 0 };
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "t", rank, r->n, 30, 30), &m.err);
	for (uint32_t i = 0; i < 4; i++) {
		w[i] = (struct worker){ .g = i < 2 ? NULL : m.g, .rank = rank, .size = r->n, .salt = i < 2 ? 1000 * i : i - 1 };
		if (i < 2)
			CHECK_ERR(IST_OK, ist_group_split(m.g, &sa, &w[i].g, &m.err), &m.err);
	}
	for (uint32_t i = 0; i < 4; i++)
		CHECK(pthread_create(&w[i].thread, NULL, i < 2 ? works : works_on_one, &w[i]) == 0);
	for (uint32_t i = 0; i < 4; i++)
		CHECK(pthread_join(w[i].thread, NULL) == 0);
	for (uint32_t i = 0; i < 2; i++)
		CHECK(ist_group_free(w[i].g) == IST_OK);
	member_fini(&m);
	return 0;
}

static void
threads_and_groups(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 3);
	ranks_start_all(&r, with_threads, NULL);
	assert_int_equal(ranks_join(&r, 100, 0), 0);
	ranks_fini(&r);
}

static void
memory_is_bounded(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= 4096; n++) {
		uint64_t room = ist__sheet_room(n);

		assert_true(room >= 512 && room <= 4096 && ist__sheets_bytes(n) % 64 == 0);
		assert_true(ist__sheets_bytes(n) >= 2 * n * room && ist__sheets_bytes(n) <= 2 * n * (room + 64));
		assert_true(2 * n * room <= 1 << 20 || room == 512);
	}
	assert_int_equal(ist__board_bytes(4, 0), 0);
	assert_int_equal(ist__board_bytes(4, IST__FEATURE_SHEETS), 0); /* they lie behind a board */
	assert_int_equal(ist__board_bytes(4, IST__FEATURES), ist__board_bytes(4, IST__FEATURE_BOARD) + ist__sheets_bytes(4));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_is_bounded),
		cmocka_unit_test(every_length_arrives),
		cmocka_unit_test(one_after_another),
		cmocka_unit_test(disorder_is_named),
		cmocka_unit_test(a_death_at_each_point),
		cmocka_unit_test(a_death_at_any_moment),
		cmocka_unit_test(one_is_missing),
		cmocka_unit_test(the_quick_may_leave),
		cmocka_unit_test(lengths_are_not_believed),
		cmocka_unit_test(one_knows_no_sheets),
		cmocka_unit_test(threads_and_groups),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
