/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixed fleets: members of this library and of its "next" version, which speaks one protocol more, offers a feature that
 * nobody here knows, and says things that nobody here understands. Next is this library with another ist__self.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include "group/group.h"
#include "net/wire.h"

#include <isthmus/sync.h>

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define NEW_FEATURE (UINT64_C(1) << 40)
enum { FUTURE = 999, BYTES = 3 << 20 };

static void
make_next(struct member *m)
{
	m->ep->ep->self.proto_max = IST__PROTO_MAX + 1;
	m->ep->ep->self.features |= NEW_FEATURE;
}

/* Short, long and many: all without the critical flag. */
static void
say_something_new(struct member *m, uint32_t rank, uint32_t size)
{
	struct ist__group *g = m->g->impl;
	struct ist__msg head = { .type = FUTURE + 1, .generation = g->generation, .from = rank };
	uint8_t *big = calloc(1, 600 << 10);

	pthread_mutex_lock(&g->lock);
	ist__mesh_flood(g, FUTURE, IST__FRAME_URGENT, 7, rank, NULL, 0, size);
	ist__mesh_flood(g, UINT16_MAX, 0, UINT64_MAX, rank, "news", 4, size);
	for (uint32_t r = 0; r < size; r++) {
		head.to = r;
		if (r != rank)
			CHECK(ist__mesh_send(g, &head, big, 600 << 10));
	}
	pthread_mutex_unlock(&g->lock);
	free(big);
}

static void
move_bytes(struct member *m, uint32_t rank, uint32_t size)
{
	struct ist_coll_args ca = { .struct_size = sizeof(ca), .peer = size - 1 };
	uint8_t *buf = calloc(1, BYTES);
	struct ist_req *req;
	struct ist_blob all[8];

	for (uint32_t i = 0; rank == ca.peer && i < BYTES; i++)
		buf[i] = (uint8_t)(i * 31 + i / 1000);
	ca.src = ca.dst = (struct ist_buf){ .addr = buf, .bytes = BYTES, .device = -1 };
	CHECK_ERR(IST_OK, ist_broadcast(m->g, &ca, &req, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_req_wait(req, 0, &m->err), &m->err);
	ist_req_free(req);
	for (uint32_t i = 0; i < BYTES; i++)
		CHECK(buf[i] == (uint8_t)(i * 31 + i / 1000));
	free(buf);
	CHECK_ERR(IST_OK, ist_all_gather_bytes(m->g, &rank, sizeof(rank), 0, all, &m->err), &m->err);
	for (uint32_t r = 0; r < size; r++)
		CHECK(all[r].bytes == sizeof(r) && !memcmp(all[r].addr, &r, sizeof(r)));
	ist_blobs_free(m->g, all, size);
	CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_decide(m->g, NULL, 0, &(uint32_t){ 0 }, &m->err), &m->err);
}

static void
run_update(struct member *m, uint32_t rank)
{
	struct ist_sync_args args = { .struct_size = sizeof(args), .bucket_bytes = 256 << 10 };
	struct ist_tensor t = { .struct_size = sizeof(t), .rank = 1, .name = "w", .dtype = "U8", .shape = { BYTES }, .bytes = BYTES,
		.file = "", .alias_of = "" };
	struct ist_report rep = { .struct_size = sizeof(rep) };
	struct ist_checkpoint *ck = NULL;
	struct ist_sink *sink = NULL;
	struct ist_sync *sync;
	uint8_t *bytes = malloc(BYTES);

	for (uint32_t i = 0; i < BYTES; i++)
		bytes[i] = (uint8_t)(i * 7 + i / 977);
	CHECK_ERR(IST_OK, ist_sync_new(m->g, &args, &sync, &m->err), &m->err);
	if (rank == 0) {
		t.addr = bytes;
		CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(m->env, &t, 1, &ck, &m->err), &m->err);
		CHECK_ERR(IST_OK, ist_sync_source(sync, ck, 0, 0, &m->err), &m->err);
	} else {
		CHECK_ERR(IST_OK, ist_sink_open(m->env, "mem:", 0, &sink, &m->err), &m->err);
		CHECK_ERR(IST_OK, ist_sync_sink(sync, sink, &m->err), &m->err);
	}
	CHECK_ERR(IST_OK, ist_sync_gather(sync, 0, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_sync_update(sync, NULL, &rep, &m->err), &m->err);
	CHECK(rep.verified && rep.bytes == BYTES);
	if (sink) {
		CHECK_ERR(IST_OK, ist_sink_tensor(sink, "w", &t, &m->err), &m->err);
		CHECK(t.bytes == BYTES && !memcmp(t.addr, bytes, BYTES));
	}
	ist_sync_free(sync);
	ist_sink_free(sink);
	ist_checkpoint_free(ck);
	free(bytes);
}

static int
in_mixed_company(struct ranks *r, uint32_t rank, void *arg)
{
	uint32_t next = *(uint32_t *)arg; /* bit mask of ranks */
	struct ist_group_info info = { .struct_size = sizeof(info) };
	uint32_t want = next == (1u << r->n) - 1 ? IST__PROTO_MAX + 1 : IST__PROTO_MAX;
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	if (next >> rank & 1)
		make_next(&m);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "fleet", rank, r->n, 60, 30), &m.err);
	CHECK_ERR(IST_OK, ist_group_info(m.g, &info, &m.err), &m.err);
	CHECK(info.proto == want);
	CHECK(m.g->impl->features == (want > IST__PROTO_MAX ? IST__FEATURES | NEW_FEATURE : IST__FEATURES));
	for (int i = 0; i < 3; i++) {
		if (next >> rank & 1)
			say_something_new(&m, rank, r->n);
		move_bytes(&m, rank, r->n);
	}
	run_update(&m, rank);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
works_with_the_next_version(void **state)
{
	static const uint32_t masks[] = { 0x1, 0x2, 0x8, 0xe, 0xf };

	(void)state;
	for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
		struct ranks r;
		uint32_t mask = masks[i];

		ranks_init(&r, 4);
		ranks_start_all(&r, in_mixed_company, &mask);
		assert_int_equal(ranks_join(&r, 100, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- no way together ---- */

struct odd {
	uint32_t who;       /* which rank is odd */
	bool requires;      /* an unknown feature; else: a range that does not meet ours */
	bool by_address;
};

static void
make_odd(struct member *m, const struct odd *o)
{
	make_next(m);
	if (o->requires)
		m->ep->ep->self.required = NEW_FEATURE;
	else
		m->ep->ep->self.proto_min = IST__PROTO_MAX + 1;
}

/* Addresses go through shared memory: room of 256 bytes for each rank, behind the flags. */
static ist_err
join_by_address(struct ranks *r, struct member *m, uint32_t rank)
{
	_Atomic uint32_t *flags = r->shared;
	char *book = (char *)r->shared + 4096;
	struct ist_address a[8];
	struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = rank, .size = r->n, .name = "odd", .addresses = a,
		.timeout_ns = 60 * IST_NS_PER_S };
	uint64_t n = IST_ADDRESS_BYTES;

	CHECK_ERR(IST_OK, ist_endpoint_address(m->ep, book + 512 * rank + 8, &n, &m->err), &m->err);
	memcpy(book + 512 * rank, &n, sizeof(n));
	atomic_fetch_add(&flags[0], 1);
	ranks_await(&flags[0], r->n);
	for (uint32_t i = 0; i < r->n; i++) {
		memcpy(&n, book + 512 * i, sizeof(n));
		a[i] = (struct ist_address){ book + 512 * i + 8, n };
	}
	return ist_group_new(m->ep, &ga, &m->g, &m->err);
}

static int
does_not_fit(struct ranks *r, uint32_t rank, void *arg)
{
	const struct odd *o = arg;
	char ours[16], theirs[16];
	struct member m;
	ist_err e;

	member_init(&m, IST_TRANSPORT_AUTO);
	if (rank == o->who)
		make_odd(&m, o);
	e = o->by_address ? join_by_address(r, &m, rank) : member_join(&m, r->at, "odd", rank, r->n, 60, 30);
	CHECK_ERR(IST_VERSION_MISMATCH, e, &m.err);
	snprintf(ours, sizeof(ours), "%u-%u", IST__PROTO_MIN, IST__PROTO_MAX);
	snprintf(theirs, sizeof(theirs), "%u-%u", o->requires ? IST__PROTO_MIN : IST__PROTO_MAX + 1, IST__PROTO_MAX + 1);
	CHECK(strstr(m.err.detail, ours) && strstr(m.err.detail, theirs));
	if (o->requires)
		CHECK(strstr(m.err.detail, "0x10000000000"));
	if (rank == 0)
		CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == 1);
	member_fini(&m);
	return 0;
}

static void
refuses_what_does_not_fit(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		struct odd o = { .who = i & 1, .requires = i >> 1 & 1, .by_address = i >> 2 & 1 };
		struct ranks r;

		ranks_init(&r, 2);
		ranks_start_all(&r, does_not_fit, &o);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* A third member, which fits, is told too instead of waiting. */
static int
tells_the_third(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = rank, .size = 3, .name = "third", .at = r->at, .timeout_ns = 60 * IST_NS_PER_S };
	uint32_t done = 0;
	struct ist_req *req;
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	if (rank == 2) {
		make_odd(&m, arg);
		ranks_await(&flags[0], 1);
	}
	CHECK_ERR(IST_OK, ist_group_new_start(m.ep, &ga, &req, &m.err), &m.err);
	while (rank == 0 && !flags[0]) {
		CHECK_ERR(IST_OK, ist_req_test(req, &done, &m.err), &m.err);
		if (!done && m.err.n_ranks == 1)
			atomic_store(&flags[0], 1); /* only the odd one is missing */
		sched_yield();
	}
	CHECK_ERR(IST_VERSION_MISMATCH, ist_req_wait(req, 60 * IST_NS_PER_S, &m.err), &m.err);
	if (rank < 2)
		CHECK(m.err.n_ranks >= 1 && m.err.ranks[0] == 2);
	ist_req_free(req);
	member_fini(&m);
	return 0;
}

static void
tells_all_members(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		struct odd o = { .who = 2, .requires = i };
		struct ranks r;

		ranks_init(&r, 3);
		ranks_start_all(&r, tells_the_third, &o);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* A stranger of another version, who comes for another group, costs the one that forms here nothing. */
static int
is_not_meant(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct odd odd = { .who = 2 };
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	if (rank == 2) {
		make_odd(&m, &odd);
		CHECK_ERR(IST_VERSION_MISMATCH, member_join(&m, r->at, "elsewhere", 1, 2, 60, 30), &m.err);
		atomic_store(&flags[0], 1);
		member_fini(&m);
		return 0;
	}
	if (rank == 1)
		ranks_await(&flags[0], 1);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "here", rank, 2, 60, 30), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
a_stranger_loses_only_itself(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 3);
	ranks_start_all(&r, is_not_meant, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* A critical frame that somebody does not know ends the group: on all, with the type. */
static int
says_something_critical(struct ranks *r, uint32_t rank, void *arg)
{
	struct member m;
	ist_err e;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "critical", rank, r->n, 60, 30), &m.err);
	if (rank == 1) {
		struct ist__group *g = m.g->impl;
		struct ist__msg head = { .type = FUTURE, .flags = IST__FRAME_CRITICAL, .generation = g->generation, .from = 1, .to = 2 };

		pthread_mutex_lock(&g->lock);
		CHECK(ist__mesh_send(g, &head, NULL, 0));
		pthread_mutex_unlock(&g->lock);
	}
	do
		e = ist_barrier(m.g, 0, &m.err);
	while (!e);
	CHECK_ERR(IST_VERSION_MISMATCH, e, &m.err);
	CHECK(strstr(m.err.detail, "999") && m.err.n_ranks == 1 && m.err.ranks[0] == 1);
	member_fini(&m);
	return 0;
}

static void
gives_up_at_a_critical_frame(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, says_something_critical, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(works_with_the_next_version),
		cmocka_unit_test(refuses_what_does_not_fit),
		cmocka_unit_test(tells_all_members),
		cmocka_unit_test(a_stranger_loses_only_itself),
		cmocka_unit_test(gives_up_at_a_critical_frame),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
