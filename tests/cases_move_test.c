/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes under way when callers change their minds: cancelled buffers, several groups and threads at once, updates of a part
 * beside each other, a sink that fails and is tried again, models that grow.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <isthmus/sync.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

static uint8_t
byte_at(uint64_t i, uint32_t salt)
{
	return (uint8_t)(i * 29 + (i >> 11) + salt * 61 + 5);
}

static struct ist_coll_args
args_of(void *addr, uint64_t bytes, uint32_t root)
{
	struct ist_buf buf = { .addr = addr, .bytes = bytes, .device = -1 };

	return (struct ist_coll_args){ .struct_size = sizeof(struct ist_coll_args), .peer = root, .src = buf, .dst = buf };
}

static void
all_run(uint32_t n, int (*run)(struct ranks *r, uint32_t rank, void *arg), void *arg)
{
	struct ranks r;

	ranks_init(&r, n);
	ranks_start_all(&r, run, arg);
	assert_int_equal(ranks_join(&r, 100, 0), 0);
	ranks_fini(&r);
}

static ist_err
finish(struct ist_req *req, struct ist_error *err)
{
	ist_err e = ist_req_wait(req, 0, err);

	CHECK(ist_req_free(req) == IST_OK);
	return e;
}

/* ---- cancelled ---- */

/* A broadcast is cancelled somewhere in the middle; once its request is done the memory is gone, here and at once. */
static int
takes_its_memory_away(struct ranks *r, uint32_t rank, void *arg)
{
	uint64_t n = 24 << 20;
	unsigned seed = (unsigned)getpid();
	char name[16];
	struct member m;

	member_init(&m, *(uint32_t *)arg);
	for (uint32_t i = 0; i < 12; i++) {
		uint8_t *mem = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct ist_coll_args a = args_of(mem, n, i % 2);
		struct ist_req *req;
		ist_err e;

		CHECK(mem != MAP_FAILED);
		snprintf(name, sizeof(name), "c%u", i);
		CHECK_ERR(IST_OK, member_join(&m, r->at, name, rank, r->n, 60, 30), &m.err);
		e = ist_broadcast(m.g, &a, &req, &m.err);
		if (!e && rank == i % 3) {
			usleep((useconds_t)(rand_r(&seed) % 6000)); /* where it strikes is this test's input */
			CHECK(ist_req_cancel(req) == IST_OK);
		}
		if (!e)
			e = finish(req, &m.err);
		CHECK(munmap(mem, n) == 0); /* whoever still wrote there would die of it */
		/* cancelled before it began: undone here alone, so that whoever cancelled has to go, and the others hear that */
		CHECK(e == IST_OK || e == IST_ABORTED || e == IST_PEER_LEFT);
		if (!e)
			e = ist_barrier(m.g, 0, &m.err);
		CHECK(e == IST_OK || e == IST_ABORTED || e == IST_PEER_LEFT);
		CHECK(ist_group_free(m.g) == IST_OK);
		m.g = NULL;
	}
	member_fini(&m);
	return 0;
}

static void
cancelled_memory_may_go_at_once(void **state)
{
	(void)state;
	for (uint32_t t = IST_TRANSPORT_SHM; t <= IST_TRANSPORT_TCP; t++)
		all_run(3, takes_its_memory_away, &t);
}

/* ---- threads and groups ---- */

struct lane {
	struct member *m;
	struct ist_group *g;
	uint32_t rank, size, salt;
};

/* What one thread does with one group: always the same mix. */
static void *
mix(void *arg)
{
	struct lane *l = arg;
	uint8_t mem[3000];
	struct ist_error err;

	ist_error_init(&err);
	for (uint32_t i = 0; i < 200; i++) {
		uint32_t root = i % l->size;
		struct ist_coll_args a = args_of(mem, sizeof(mem), root);
		struct ist_blob all[8];
		struct ist_req *req;

		for (uint64_t k = 0; k < sizeof(mem); k++)
			mem[k] = l->rank == root ? byte_at(k, i + l->salt) : 0;
		CHECK_ERR(IST_OK, ist_broadcast(l->g, &a, &req, &err), &err);
		CHECK_ERR(IST_OK, finish(req, &err), &err);
		for (uint64_t k = 0; k < sizeof(mem); k++)
			CHECK(mem[k] == byte_at(k, i + l->salt));
		CHECK_ERR(IST_OK, ist_all_gather_bytes(l->g, &l->rank, sizeof(l->rank), 0, all, &err), &err);
		for (uint32_t r = 0; r < l->size; r++)
			CHECK(!memcmp(all[r].addr, &r, sizeof(r)));
		ist_blobs_free(l->g, all, l->size);
		if (i % 16 == 0)
			CHECK_ERR(IST_OK, ist_barrier(l->g, 0, &err), &err);
	}
	return NULL;
}

static int
two_lanes(struct ranks *r, uint32_t rank, void *arg)
{
	struct lane lanes[2];
	pthread_t threads[2];
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	for (uint32_t i = 0; i < 2; i++) {
		CHECK_ERR(IST_OK, member_join(&m, r->at, i ? "right" : "left", i ? r->n - 1 - rank : rank, r->n, 60, 30), &m.err);
		lanes[i] = (struct lane){ .m = &m, .g = m.g, .rank = i ? r->n - 1 - rank : rank, .size = r->n, .salt = i * 1000 };
	}
	m.g = NULL;
	for (uint32_t i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, mix, &lanes[i]) == 0);
	for (uint32_t i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t i = 0; i < 2; i++) {
		CHECK_ERR(IST_OK, ist_barrier(lanes[i].g, 0, &m.err), &m.err);
		CHECK(ist_group_free(lanes[i].g) == IST_OK);
	}
	member_fini(&m);
	return 0;
}

static void
a_thread_for_each_group(void **state)
{
	(void)state;
	all_run(3, two_lanes, NULL);
}

enum { PRODUCERS = 4 };

/* Producers gather a bucket at one of them, who sends it on to the consumers by another group; the others run ahead. */
static int
produces(struct ranks *r, uint32_t rank, void *arg)
{
	uint64_t n = 20000;
	uint8_t *all = malloc(PRODUCERS * n), *mine = malloc(n);
	struct ist_group *gather = NULL, *spread = NULL;
	unsigned seed = rank;
	struct ist_req *req;
	struct member m;

	(void)arg;
	CHECK(all && mine);
	member_init(&m, IST_TRANSPORT_AUTO);
	if (rank < PRODUCERS) {
		CHECK_ERR(IST_OK, member_join(&m, r->at, "gather", rank, PRODUCERS, 60, 30), &m.err);
		gather = m.g;
	}
	if (rank == 0 || rank >= PRODUCERS) {
		CHECK_ERR(IST_OK, member_join(&m, r->at, "spread", rank ? rank - PRODUCERS + 1 : 0, 3, 60, 30), &m.err);
		spread = m.g;
	}
	m.g = NULL;
	for (uint32_t i = 0; i < 100; i++) {
		struct ist_coll_args a = args_of(mine, n, 0), b = args_of(all, PRODUCERS * n, 0);

		usleep((useconds_t)(rand_r(&seed) % 1000)); /* who is late when is this test's input */
		a.dst = (struct ist_buf){ .addr = all, .bytes = PRODUCERS * n, .device = -1 };
		memset(mine, (int)(rank * 16 + i % 16), n);
		if (gather) {
			CHECK_ERR(IST_OK, ist_gather(gather, &a, &req, &m.err), &m.err);
			CHECK_ERR(IST_OK, finish(req, &m.err), &m.err);
		}
		if (spread) {
			CHECK_ERR(IST_OK, ist_broadcast(spread, &b, &req, &m.err), &m.err);
			CHECK_ERR(IST_OK, finish(req, &m.err), &m.err);
			for (uint64_t k = 0; k < PRODUCERS * n; k += 997)
				CHECK(all[k] == k / n * 16 + i % 16);
		}
	}
	if (gather) {
		CHECK_ERR(IST_OK, ist_barrier(gather, 0, &m.err), &m.err);
		CHECK(ist_group_free(gather) == IST_OK);
	}
	if (spread) {
		CHECK_ERR(IST_OK, ist_barrier(spread, 0, &m.err), &m.err);
		CHECK(ist_group_free(spread) == IST_OK);
	}
	member_fini(&m);
	free(all);
	free(mine);
	return 0;
}

static void
producers_may_run_ahead(void **state)
{
	(void)state;
	all_run(PRODUCERS + 2, produces, NULL);
}

/* ---- updates ---- */

struct keep {
	uint8_t *at;
	uint64_t bytes, taken, fail_from; /* fails a piece that ends behind it, once */
	uint64_t committed;
	uint32_t aborts;
};

static ist_err
keep_piece(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct keep *k = ctx;

	CHECK(index == 0 && offset + bytes <= k->bytes);
	if (k->fail_from && offset + bytes >= k->fail_from) {
		k->fail_from = 0;
		err->code = IST_IO;
		snprintf(err->detail, sizeof(err->detail), "disk full");
		return IST_IO;
	}
	memcpy(k->at + offset, addr, bytes);
	k->taken += bytes;
	return IST_OK;
}

static void
keep_commit(void *ctx, uint64_t version)
{
	((struct keep *)ctx)->committed = version;
}

static void
keep_abort(void *ctx, uint32_t dirty)
{
	(void)dirty;
	((struct keep *)ctx)->aborts++;
}

static void
fill(struct keep *k, uint32_t salt)
{
	for (uint64_t i = 0; i < k->bytes; i++)
		k->at[i] = byte_at(i, salt);
}

static void
holds(const struct keep *k, uint32_t salt)
{
	for (uint64_t i = 0; i < k->bytes; i++)
		CHECK(k->at[i] == byte_at(i, salt));
}

struct party {
	struct ist_sync *sync;
	struct ist_checkpoint *ck;
	struct ist_sink *sink;
	struct keep keep;
};

/* One tensor of so many bytes: given by rank 0 of the group, taken by all others. */
static void
party_init(struct party *p, struct member *m, struct ist_group *g, bool source, uint64_t bytes)
{
	struct ist_sync_args sa = { .struct_size = sizeof(sa), .bucket_bytes = 256 << 10 };
	struct ist_sink_ops ops = { .struct_size = sizeof(ops), .ctx = &p->keep, .piece = keep_piece, .commit = keep_commit, .abort = keep_abort };
	struct ist_tensor t = { .struct_size = sizeof(t), .rank = 1, .name = "w", .dtype = "U8", .shape = { bytes }, .bytes = bytes };

	memset(p, 0, sizeof(*p));
	p->keep.at = calloc(1, bytes);
	p->keep.bytes = bytes;
	t.addr = p->keep.at;
	CHECK_ERR(IST_OK, ist_sync_new(g, &sa, &p->sync, &m->err), &m->err);
	if (source) {
		CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(m->env, &t, 1, &p->ck, &m->err), &m->err);
		CHECK_ERR(IST_OK, ist_sync_source(p->sync, p->ck, 0, 0, &m->err), &m->err);
	} else {
		CHECK_ERR(IST_OK, ist_sink_custom(m->env, &ops, &p->sink, &m->err), &m->err);
		CHECK_ERR(IST_OK, ist_sync_sink(p->sync, p->sink, &m->err), &m->err);
	}
}

static void
party_fini(struct party *p)
{
	ist_sync_free(p->sync);
	ist_sink_free(p->sink);
	ist_checkpoint_free(p->ck);
	free(p->keep.at);
}

static ist_err
update(struct party *p, struct member *m, uint64_t version, struct ist_report *out)
{
	struct ist_update_args ua = { .struct_size = sizeof(ua), .version = version };

	*out = (struct ist_report){ .struct_size = sizeof(*out) };
	return ist_sync_update(p->sync, &ua, out, &m->err);
}

static int
fails_once(struct ranks *r, uint32_t rank, void *arg)
{
	uint64_t bytes = (2 << 20) + 77;
	struct ist_report rep;
	struct party p;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "again", rank, r->n, 60, 30), &m.err);
	party_init(&p, &m, m.g, rank == 0, bytes);
	if (rank == 0)
		fill(&p.keep, 1);
	CHECK_ERR(IST_OK, ist_sync_gather(p.sync, 0, &m.err), &m.err);
	CHECK_ERR(IST_OK, update(&p, &m, 1, &rep), &m.err);
	if (rank == 0)
		fill(&p.keep, 2);
	p.keep.taken = 0;
	if (rank == 2)
		p.keep.fail_from = bytes; /* the last piece of all */
	CHECK_ERR(IST_IO, update(&p, &m, 2, &rep), &m.err);
	CHECK(strstr(m.err.detail, "disk full") && m.err.n_ranks == 1 && m.err.ranks[0] == 2);
	if (rank > 0)
		CHECK(p.keep.committed == 1 && p.keep.aborts == 1);
	p.keep.taken = 0;
	CHECK_ERR(IST_OK, update(&p, &m, 2, &rep), &m.err); /* the same version once more: all of it, to all */
	CHECK(rep.version == 2 && rep.bytes == bytes && rep.verified);
	if (rank > 0) {
		CHECK(p.keep.committed == 2 && p.keep.taken == bytes);
		holds(&p.keep, 2);
	}
	party_fini(&p);
	member_fini(&m);
	return 0;
}

static void
a_sink_that_failed_gets_all_of_it_again(void **state)
{
	(void)state;
	all_run(3, fails_once, NULL);
}

/* Two parts update on their own at one time, then all together; the parts' groups stay as they are. */
static int
updates_in_parts(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t left[] = { 0, 1 }, right[] = { 2, 3 };
	struct ist_split_args sa = { .struct_size = sizeof(sa), .n_ranks = 2, .ranks = rank < 2 ? left : right, .timeout_ns = 60 * IST_NS_PER_S };
	struct ist_report rep;
	struct ist_group *part;
	struct party mine, all;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "parts", rank, r->n, 60, 30), &m.err);
	CHECK_ERR(IST_OK, ist_group_split(m.g, &sa, &part, &m.err), &m.err);
	party_init(&mine, &m, part, rank % 2 == 0, rank < 2 ? 3 << 20 : 5000); /* the left ones take much longer */
	party_init(&all, &m, m.g, rank == 0, 100003);
	CHECK_ERR(IST_OK, ist_sync_gather(mine.sync, 0, &m.err), &m.err);
	for (uint32_t v = 1; v <= 4; v++) {
		for (uint32_t i = 0; i < 3; i++) {
			if (rank % 2 == 0)
				fill(&mine.keep, v * 10 + i + rank);
			CHECK_ERR(IST_OK, update(&mine, &m, 0, &rep), &m.err);
			if (rank % 2)
				holds(&mine.keep, v * 10 + i + rank - 1);
		}
		if (rank == 0)
			fill(&all.keep, v);
		CHECK_ERR(IST_OK, ist_sync_gather(all.sync, 0, &m.err), &m.err);
		CHECK_ERR(IST_OK, update(&all, &m, 0, &rep), &m.err);
		CHECK(rep.version == v);
		if (rank)
			holds(&all.keep, v);
	}
	party_fini(&mine);
	party_fini(&all);
	CHECK(ist_group_free(part) == IST_OK);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
parts_update_beside_each_other(void **state)
{
	(void)state;
	all_run(4, updates_in_parts, NULL);
}

/* One group, one sync; the model is replaced by a larger one, a smaller one, and by none. */
static int
changes_its_model(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint64_t sizes[] = { 100000, 3000001, 5, 1 << 20 };
	struct ist_sync_args sa = { .struct_size = sizeof(sa), .bucket_bytes = 512 << 10 };
	struct ist_sink_ops ops = { .struct_size = sizeof(ops), .piece = keep_piece, .commit = keep_commit };
	struct ist_report rep = { .struct_size = sizeof(rep) };
	struct keep keep = { .at = calloc(1, 3000001) };
	struct ist_sink *sink = NULL;
	struct ist_sync *sync;
	struct member m;

	(void)arg;
	ops.ctx = &keep;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "grows", rank, r->n, 60, 30), &m.err);
	CHECK_ERR(IST_OK, ist_sync_new(m.g, &sa, &sync, &m.err), &m.err);
	if (rank) {
		CHECK_ERR(IST_OK, ist_sink_custom(m.env, &ops, &sink, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_sync_sink(sync, sink, &m.err), &m.err);
	}
	for (uint32_t i = 0; i < 4; i++) {
		struct ist_tensor t = { .struct_size = sizeof(t), .rank = 1, .name = "w", .dtype = "U8", .shape = { sizes[i] }, .bytes = sizes[i], .addr = keep.at };
		struct ist_checkpoint *ck = NULL;

		keep.bytes = sizes[i];
		if (rank == 0) {
			fill(&keep, i);
			CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(m.env, &t, 1, &ck, &m.err), &m.err);
			CHECK_ERR(IST_OK, ist_sync_source(sync, ck, 0, 0, &m.err), &m.err);
		}
		CHECK_ERR(IST_OK, ist_sync_gather(sync, 0, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_sync_update(sync, NULL, &rep, &m.err), &m.err);
		CHECK(rep.bytes == sizes[i] && rep.version == i + 1);
		if (rank)
			holds(&keep, i);
		if (rank == 0) {
			CHECK_ERR(IST_OK, ist_sync_unregister(sync, ck, &m.err), &m.err);
			CHECK_ERR(IST_BAD_STATE, ist_sync_unregister(sync, ck, &m.err), &m.err);
			ist_checkpoint_free(ck);
		}
		CHECK_ERR(IST_EMPTY_UPDATE, ist_sync_gather(sync, 0, &m.err), &m.err);
	}
	ist_sync_free(sync);
	ist_sink_free(sink);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	free(keep.at);
	return 0;
}

static void
a_model_may_grow_and_shrink(void **state)
{
	(void)state;
	all_run(3, changes_its_model, NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cancelled_memory_may_go_at_once),
		cmocka_unit_test(a_thread_for_each_group),
		cmocka_unit_test(producers_may_run_ahead),
		cmocka_unit_test(a_sink_that_failed_gets_all_of_it_again),
		cmocka_unit_test(parts_update_beside_each_other),
		cmocka_unit_test(a_model_may_grow_and_shrink),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
