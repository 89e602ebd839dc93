/* SPDX-License-Identifier: Apache-2.0
 *
 * stream_test.c - tensors one by one from one rank to all others, over the fake group. */
#include "crew.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

struct job {
	uint64_t n;                  /* tensors */
	uint64_t (*bytes)(uint64_t i);
	uint64_t bucket;
	uint32_t fail_rank;          /* this rank fails ... */
	uint64_t fail_bucket;        /* ... this bucket; UINT64_MAX: none */
	uint64_t abort_after;        /* the root gives up after so many tensors */
	ist_err want;
	uint64_t buckets_seen[FAKE_RANKS];
	uint64_t bucket_of_error[FAKE_RANKS];
	char digest[FAKE_RANKS][IST_DIGEST_TEXT];
	char detail[FAKE_RANKS][200], tensor[FAKE_RANKS][100];
};

static uint8_t
byte_of(uint64_t tensor, uint64_t i)
{
	return (uint8_t)(tensor * 131 + i % 251 + (i >> 16));
}

static struct ist_tensor
tensor_of(uint64_t i, uint64_t bytes, char *name)
{
	struct ist_tensor t = { .struct_size = sizeof(t), .rank = 1, .name = name, .dtype = "U8", .shape = { bytes }, .bytes = bytes };

	snprintf(name, 64, "layers.%llu.weight", (unsigned long long)i);
	return t;
}

static void
end_with(struct hand *h, struct job *j, ist_err code, const struct ist_error *e, const struct ist_report *r)
{
	CHECK_CODE(code, j->want, e);
	if (code) {
		j->bucket_of_error[h->rank] = e->bucket;
		snprintf(j->detail[h->rank], sizeof(j->detail[0]), "%s", e->detail);
		snprintf(j->tensor[h->rank], sizeof(j->tensor[0]), "%s", e->tensor);
		return;
	}
	CHECK(r->verified == 1 && r->tensors == j->n && r->version == 7);
	memcpy(j->digest[h->rank], r->digest, IST_DIGEST_TEXT);
}

static void
push(struct hand *h, struct job *j)
{
	struct ist_stream_args args = { .struct_size = sizeof(args), .bucket_bytes = j->bucket, .version = 7 };
	struct ist_report r = { .struct_size = sizeof(r) };
	struct ist_push *p = NULL;
	struct ist_error e;
	ist_err code;

	ist_error_init(&e);
	code = ist_push_begin(h->group, &args, &p, &e);
	for (uint64_t i = 0; i < j->n && !code; i++) {
		char name[64];
		uint64_t bytes = j->bytes(i);
		struct ist_tensor t = tensor_of(i, bytes, name);
		uint8_t *at = malloc(bytes + 1);

		for (uint64_t k = 0; k < bytes; k++)
			at[k] = byte_of(i, k);
		t.addr = at;
		code = ist_push_tensor(p, &t, &e);
		memset(at, 0, bytes); /* the caller's again */
		free(at);
		if (j->abort_after && i + 1 == j->abort_after) {
			ist_push_abort(p, "no more tensors");
			return;
		}
	}
	if (p) {
		ist_err end = ist_push_end(p, &r, &e);

		CHECK(!code || end == code); /* the same error again */
		code = end;
		CHECK(ist_push_end(p, &r, NULL) == IST_BAD_HANDLE);
	}
	end_with(h, j, code, &e, &r);
}

struct taken {
	uint64_t tensor, filled;
};

static void
look_at(struct job *j, struct taken *x, const struct ist_piece *p)
{
	char name[64];
	const uint8_t *at = p->addr;

	snprintf(name, sizeof(name), "layers.%llu.weight", (unsigned long long)x->tensor);
	CHECK(!strcmp(p->tensor.name, name));
	CHECK(p->tensor.bytes == j->bytes(x->tensor) && p->tensor.rank == 1 && !strcmp(p->tensor.dtype, "U8"));
	CHECK(p->offset == x->filled);
	for (uint64_t k = 0; k < p->bytes; k += k + 1 < p->bytes && k % 1000 == 999 ? 1 : 97)
		CHECK(at[k] == byte_of(x->tensor, p->offset + k));
	x->filled += p->bytes;
	CHECK(p->last == (x->filled == p->tensor.bytes));
	if (p->last) {
		x->tensor++;
		x->filled = 0;
	}
}

static void
pull(struct hand *h, struct job *j)
{
	struct ist_stream_args args = { .struct_size = sizeof(args), .bucket_bytes = j->bucket };
	struct ist_report r = { .struct_size = sizeof(r) };
	struct ist_piece piece = { .struct_size = sizeof(piece) };
	struct taken x = { 0, 0 };
	struct ist_pull *p = NULL;
	struct ist_error e;
	uint32_t more = 1, end = 0;
	ist_err code;

	ist_error_init(&e);
	code = ist_pull_begin(h->group, &args, &p, &e);
	while (!code && more) {
		code = ist_pull_next(p, &piece, &more, &end, &e);
		if (code || !more)
			break;
		look_at(j, &x, &piece);
		if (!end)
			continue;
		CHECK(ist_pull_next(p, &piece, &more, &end, NULL) == IST_BAD_STATE);
		if (h->rank == j->fail_rank && j->buckets_seen[h->rank] == j->fail_bucket) {
			CHECK(ist_pull_fail(p, "disk full") == IST_OK);
			code = ist_pull_next(p, &piece, &more, &end, &e);
			CHECK(code != IST_OK);
			break;
		}
		j->buckets_seen[h->rank]++;
		code = ist_pull_done(p, &e);
	}
	if (!code)
		CHECK(x.tensor == j->n && x.filled == 0);
	if (p)
		code = ist_pull_end(p, &r, &e);
	end_with(h, j, code, &e, &r);
}

static void
push_or_pull(struct hand *h, void *arg)
{
	if (h->rank == 0)
		push(h, arg);
	else
		pull(h, arg);
}

static uint64_t
mixed(uint64_t i)
{
	static const uint64_t sizes[] = { 0, 1, 65536, 65537, 5 * MIB + 3, 100, 100, 300000, 0, 2 * MIB };

	return sizes[i % 10];
}

static uint64_t
tiny(uint64_t i)
{
	return 64 + i % 3;
}

static void
same_digests(const struct crew *c, const struct job *j)
{
	for (uint32_t i = 1; i < c->n; i++)
		assert_string_equal(j->digest[i], j->digest[0]);
	assert_int_equal(strlen(j->digest[0]), 32);
}

static void
all_arrive(void **unused)
{
	uint64_t buckets[] = { 128 << 10, MIB, 64 * MIB };

	(void)unused;
	for (int plain = 0; plain < 2; plain++)
		for (int k = 0; k < 3; k++) {
			struct job j = { .n = 30, .bytes = mixed, .bucket = buckets[k], .fail_bucket = UINT64_MAX };
			struct crew c;

			crew_new(&c, 4);
			fake_world_faults(c.world)->no_memory = plain;
			crew_run(&c, push_or_pull, &j);
			same_digests(&c, &j);
			/* once more over the same group */
			memset(j.buckets_seen, 0, sizeof(j.buckets_seen));
			crew_run(&c, push_or_pull, &j);
			same_digests(&c, &j);
			assert_string_equal(fake_world_told(c.world, 1), "UPDATING 0->7;CLEAN 7;UPDATING 0->7;CLEAN 7;");
			crew_free(&c);
		}
}

static void
no_message_for_a_tensor(void **unused)
{
	struct job j = { .n = 20000, .bytes = tiny, .bucket = MIB, .fail_bucket = UINT64_MAX };
	struct crew c;

	(void)unused;
	crew_new(&c, 3);
	crew_run(&c, push_or_pull, &j);
	same_digests(&c, &j);
	assert_true(fake_world_gathers(c.world) <= j.buckets_seen[1] + 4);
	crew_free(&c);
}

static void
a_failing_receiver_stops_all_at_its_bucket(void **unused)
{
	(void)unused;
	for (uint64_t bucket = 0;; bucket++) {
		struct job j = { .n = 30, .bytes = mixed, .bucket = MIB, .fail_rank = 2, .fail_bucket = bucket, .want = IST_ABORTED };
		struct crew c;

		crew_new(&c, 4);
		if (bucket == 3) { /* how many are there? */
			j.fail_bucket = UINT64_MAX;
			j.want = IST_OK;
			crew_run(&c, push_or_pull, &j);
			bucket = j.buckets_seen[1] - 2; /* the last two come next */
			assert_true(bucket > 4);
			crew_free(&c);
			continue;
		}
		if (bucket > 3 && bucket > j.n * 5)
			fail();
		crew_run(&c, push_or_pull, &j);
		for (uint32_t i = 0; i < 4; i++) {
			assert_string_equal(j.detail[i], "disk full");
			assert_int_equal(j.bucket_of_error[i], bucket);
			if (i > 0)
				assert_true(j.buckets_seen[i] <= bucket + 1);
		}
		assert_non_null(strstr(fake_world_told(c.world, 1), "DIRTY 0->7;"));
		/* the group is whole */
		memset(j.buckets_seen, 0, sizeof(j.buckets_seen));
		j.fail_bucket = UINT64_MAX;
		j.want = IST_OK;
		crew_run(&c, push_or_pull, &j);
		same_digests(&c, &j);
		crew_free(&c);
		if (j.buckets_seen[1] == bucket + 1)
			break; /* that was the last */
	}
}

static void
a_sender_that_gives_up_tells_all(void **unused)
{
	struct job j = { .n = 30, .bytes = mixed, .bucket = MIB, .abort_after = 12, .fail_bucket = UINT64_MAX, .want = IST_ABORTED };
	struct crew c;

	(void)unused;
	crew_new(&c, 3);
	crew_run(&c, push_or_pull, &j);
	assert_string_equal(j.detail[1], "no more tensors");
	assert_string_equal(j.detail[2], "no more tensors");
	crew_free(&c);
}

static void
nothing_pushed_is_an_error(void **unused)
{
	struct job j = { .n = 0, .bytes = mixed, .bucket = MIB, .fail_bucket = UINT64_MAX, .want = IST_EMPTY_UPDATE };
	struct crew c;

	(void)unused;
	crew_new(&c, 3);
	crew_run(&c, push_or_pull, &j);
	crew_free(&c);
	crew_new(&c, 1);
	j.want = IST_NO_RECEIVERS;
	crew_run(&c, push_or_pull, &j);
	crew_free(&c);
}

static void
a_changed_byte_is_found(void **unused)
{
	struct job j = { .n = 30, .bytes = mixed, .bucket = MIB, .fail_bucket = UINT64_MAX, .want = IST_DIGEST };
	struct crew c;

	(void)unused;
	crew_new(&c, 3);
	fake_world_faults(c.world)->flip_rank = 2;
	fake_world_faults(c.world)->flip_at = 1;
	fake_world_faults(c.world)->flip_byte = 1000;
	crew_run(&c, push_or_pull, &j);
	for (uint32_t i = 0; i < 3; i++)
		assert_string_equal(j.tensor[i], "layers.4.weight");
	crew_free(&c);
}

static void
a_backend_that_moves_nothing_is_found(void **unused)
{
	struct job j = { .n = 5, .bytes = mixed, .bucket = 16 * MIB, .fail_bucket = UINT64_MAX, .want = IST_OK };
	struct crew c;

	(void)unused;
	crew_new(&c, 2);
	crew_run(&c, push_or_pull, &j); /* the right bytes lie there now */
	fake_world_faults(c.world)->do_nothing = true;
	memset(j.buckets_seen, 0, sizeof(j.buckets_seen));
	for (int i = 0; i < 2; i++) {
		j.want = IST_DIGEST;
		crew_run(&c, push_or_pull, &j);
	}
	crew_free(&c);
}

static void
push_on_two(struct hand *h, void *arg)
{
	struct ist_stream_args args = { .struct_size = sizeof(args), .root = h->rank };
	struct ist_push *p;
	struct ist_error e;

	(void)arg;
	ist_error_init(&e);
	CHECK_CODE(ist_push_begin(h->group, &args, &p, &e), IST_MISMATCH, &e);
	CHECK(e.n_ranks > 0);
}

static void
two_roots_are_refused(void **unused)
{
	struct crew c;

	(void)unused;
	crew_new(&c, 2);
	crew_run(&c, push_on_two, NULL);
	crew_free(&c);
}

static void
push_badly(struct hand *h, void *arg)
{
	struct ist_stream_args args = { .struct_size = sizeof(args) };
	struct ist_tensor t = { .struct_size = sizeof(t), .name = "a", .dtype = "F32", .rank = 1, .shape = { 2 }, .bytes = 8, .addr = "12345678" };
	struct ist_piece piece = { .struct_size = sizeof(piece) };
	struct ist_report r = { .struct_size = sizeof(r) };
	uint32_t more, end;
	struct ist_error e;

	(void)arg;
	ist_error_init(&e);
	if (h->rank == 0) {
		struct ist_push *p;

		CHECK_CODE(ist_push_begin(h->group, &args, &p, &e), IST_OK, &e);
		CHECK_CODE(ist_push_tensor(p, &t, &e), IST_OK, &e);
		CHECK_CODE(ist_push_tensor(p, &t, &e), IST_DUPLICATE_KEY, &e);
		t.name = "b";
		t.bytes = 7;
		CHECK_CODE(ist_push_tensor(p, &t, &e), IST_BAD_ENTRY, &e);
		t.dtype = "F3";
		CHECK_CODE(ist_push_tensor(p, &t, &e), IST_UNKNOWN_DTYPE, &e);
		CHECK(!strcmp(e.tensor, "b"));
		t.name = "b\n";
		CHECK_CODE(ist_push_tensor(p, &t, &e), IST_BAD_NAME, &e);
		CHECK_CODE(ist_push_end(p, &r, &e), IST_OK, &e); /* none of this hurt the stream */
		CHECK(r.tensors == 1);
	} else {
		struct ist_pull *p;

		CHECK_CODE(ist_pull_begin(h->group, &args, &p, &e), IST_OK, &e);
		CHECK_CODE(ist_pull_next(p, &piece, &more, &end, &e), IST_OK, &e);
		CHECK(more && end && piece.bytes == 8 && !memcmp(piece.addr, "12345678", 8));
		CHECK_CODE(ist_pull_done(p, &e), IST_OK, &e);
		CHECK_CODE(ist_pull_next(p, &piece, &more, &end, &e), IST_OK, &e);
		CHECK(!more);
		CHECK_CODE(ist_pull_end(p, &r, &e), IST_OK, &e);
	}
}

static void
bad_tensors_are_refused_alone(void **unused)
{
	struct crew c;

	(void)unused;
	crew_new(&c, 2);
	crew_run(&c, push_badly, NULL);
	crew_free(&c);
}

static void
lose_one(struct hand *h, void *arg)
{
	struct job *j = arg;

	__atomic_store_n(&j->want, IST_PEER_LOST, __ATOMIC_RELAXED); /* the same from every hand */
	push_or_pull(h, arg);
}

static void
a_lost_member_ends_the_stream(void **unused)
{
	(void)unused;
	for (uint32_t who = 0; who < 3; who++)
		for (uint64_t when = 0; when < 4; when++) {
			struct job j = { .n = 30, .bytes = mixed, .bucket = MIB, .fail_bucket = UINT64_MAX };
			struct crew c;

			crew_new(&c, 3);
			fake_world_faults(c.world)->kill_rank = who;
			fake_world_faults(c.world)->kill_gather = 1 + when;
			crew_run(&c, lose_one, &j);
			crew_free(&c);
		}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_arrive),
		cmocka_unit_test(no_message_for_a_tensor),
		cmocka_unit_test(a_failing_receiver_stops_all_at_its_bucket),
		cmocka_unit_test(a_sender_that_gives_up_tells_all),
		cmocka_unit_test(nothing_pushed_is_an_error),
		cmocka_unit_test(a_changed_byte_is_found),
		cmocka_unit_test(a_backend_that_moves_nothing_is_found),
		cmocka_unit_test(two_roots_are_refused),
		cmocka_unit_test(bad_tensors_are_refused_alone),
		cmocka_unit_test(a_lost_member_ends_the_stream),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
