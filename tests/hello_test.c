/* SPDX-License-Identifier: Apache-2.0
 *
 * The first bytes of a connection: golden bytes that hold for ever, what versions and secrets lead to, and strangers of
 * all kinds at a real listener, which goes on serving.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"
#include "stranger.h"

#include "base/clock.h"
#include "net/wire.h"

#include <netinet/in.h>
#include <sched.h>
#include <sodium.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- golden bytes; made with another implementation of BLAKE2b, and never changed ---- */

static const char secret[] = "correct horse battery staple";
static const char golden_key[] = "b2f8d4f07c7075e3b6a356b92542451fdda68331fa9b7c73b6c409e4b29e5a66";
static const char golden_no_key[] = "a4bbdbc93fc44fd6ea852a5f0cd787814ec313a50acfc95ceb4e37186f9a469f";
static const char golden_first[] =
	"89495354484d5553" "80000000" "01000000" "01000000" "01000000" "0300000000000000" "0000000000000000" "00010000" "00000000"
	"404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f" "000102030405060708090a0b0c0d0e0f"
	"0000000000000000000000000000000000000000000000000000000000000000";
static const char golden_second[] =
	"89495354484d5553" "80000000" "01000000" "01000000" "01000000" "0300000000000000" "0000000000000000" "00010000" "00000000"
	"a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf" "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
	"0000000000000000000000000000000000000000000000000000000000000000";
static const char golden_responder[] = "0a19c0b4036a4f869c86f21175324e733b0fca32454b7eb030220ab90c46980f";
static const char golden_initiator[] = "0bc0bd89b69cc31642c38f1b00e59178e981cf3469f4b426134c463b88894206";

static void
from_hex(const char *hex, uint8_t *out, size_t n)
{
	size_t got = 0;

	assert_int_equal(strlen(hex), 2 * n);
	assert_int_equal(sodium_hex2bin(out, n, hex, 2 * n, NULL, &got, NULL), 0);
	assert_int_equal(got, n);
}

static void
keeps_its_golden_bytes(void **state)
{
	uint8_t want[IST__HELLO_BYTES], got[IST__HELLO_BYTES], key[IST__KEY_BYTES], want_key[IST__KEY_BYTES];
	unsigned major, minor, patch;
	struct stranger s;

	(void)state;
	stranger_init(&s, secret, strlen(secret));
	from_hex(golden_key, want_key, sizeof(want_key));
	assert_memory_equal(s.key, want_key, sizeof(want_key));
	ist__hello_key(NULL, 0, key);
	from_hex(golden_no_key, want_key, sizeof(want_key));
	assert_memory_equal(key, want_key, sizeof(want_key));

	for (uint8_t i = 0; i < IST__MEMBER_BYTES; i++)
		s.self.member[i] = i;
	s.self.features = IST__FEATURE_DECIDE | IST__FEATURE_FDS; /* those that there were when the bytes were written down */
	ist__hello_make(&s.self, got);
	from_hex(golden_first, want, sizeof(want));
	assert_int_equal(sscanf(ist_version(), "%u.%u.%u", &major, &minor, &patch), 3);
	ist__store_u32(want + 40, major << 16 | minor << 8 | patch);
	assert_memory_equal(got, want, 48);
	assert_memory_equal(got + 80, want + 80, 48);
	ist__hello_make(&s.self, want);
	assert_memory_not_equal(got + 48, want + 48, 32); /* a nonce is never used twice */
}

static void
keeps_its_golden_proofs(void **state)
{
	uint8_t first[IST__HELLO_BYTES], second[IST__HELLO_BYTES], want[IST__PROOF_BYTES], got[IST__PROOF_BYTES];
	struct ist__agreed a;
	struct stranger s;

	(void)state;
	stranger_init(&s, secret, strlen(secret));
	from_hex(golden_first, first, sizeof(first));
	from_hex(golden_second, second, sizeof(second));
	from_hex(golden_responder, want, sizeof(want));
	ist__hello_prove(&s.self, IST__RESPONDER, first, second, got);
	assert_memory_equal(got, want, sizeof(want));
	assert_int_equal(ist__hello_check(&s.self, IST__RESPONDER, first, second, want, NULL), IST_OK);
	assert_int_equal(ist__hello_check(&s.self, IST__INITIATOR, first, second, want, NULL), IST_BAD_SECRET); /* no mirror */
	from_hex(golden_initiator, want, sizeof(want));
	ist__hello_prove(&s.self, IST__INITIATOR, first, second, got);
	assert_memory_equal(got, want, sizeof(want));
	/* every bit that is said counts */
	for (unsigned bit = 0; bit < 8 * IST__PROOF_AT; bit++) {
		first[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_int_equal(ist__hello_check(&s.self, IST__INITIATOR, first, second, want, NULL), IST_BAD_SECRET);
		first[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	assert_int_equal(ist__hello_read(&s.self, second, &a, NULL), IST_OK);
	assert_int_equal(a.proto, 1);
	assert_int_equal(a.features, 3);
	assert_int_equal(a.peer.member[0], 0xf0);
}

/* ---- what two sides lead to ---- */

static void
agrees_on_the_lowest_of_the_maxima(void **state)
{
	static const struct { uint32_t min, max, their_min, their_max, proto; } rows[] = {
		{ 1, 1, 1, 1, 1 }, { 1, 1, 1, 2, 1 }, { 1, 2, 1, 1, 1 }, { 1, 3, 2, 2, 2 }, { 2, 3, 1, 2, 2 }, { 1, 9, 4, 7, 7 },
		{ 1, 1, 2, 2, 0 }, { 2, 2, 1, 1, 0 }, { 1, 2, 3, 9, 0 }, { 5, 9, 1, 4, 0 }, { 1, 1, 2, 1, 0 }, { 1, 1, 0, 0, 0 },
		{ 1, 1, UINT32_MAX, UINT32_MAX, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t hello[IST__HELLO_BYTES];
		struct stranger us, them;
		struct ist__agreed a = { .proto = 99 };
		struct ist_error err;
		char ours[32], theirs[48];
		ist_err e;

		stranger_init(&us, NULL, 0);
		stranger_init(&them, NULL, 0);
		us.self.proto_min = rows[i].min, us.self.proto_max = rows[i].max;
		them.self.proto_min = rows[i].their_min, them.self.proto_max = rows[i].their_max;
		ist__hello_make(&them.self, hello);
		ist_error_init(&err);
		e = ist__hello_read(&us.self, hello, &a, &err);
		if (rows[i].proto) {
			assert_int_equal(e, IST_OK);
			assert_int_equal(a.proto, rows[i].proto);
			continue;
		}
		assert_int_equal(e, IST_VERSION_MISMATCH);
		assert_int_equal(a.proto, 99);
		snprintf(ours, sizeof(ours), "ours %u-%u", rows[i].min, rows[i].max);
		snprintf(theirs, sizeof(theirs), "the other side's %u-%u", rows[i].their_min, rows[i].their_max);
		assert_non_null(strstr(err.detail, ours));
		assert_non_null(strstr(err.detail, theirs));
	}
}

static void
keeps_to_features_of_both(void **state)
{
	uint8_t hello[IST__HELLO_BYTES];
	struct stranger us, them;
	struct ist__agreed a;
	struct ist_error err;

	(void)state;
	ist_error_init(&err);
	stranger_init(&us, NULL, 0);
	stranger_init(&them, NULL, 0);
	us.self.features = 0xff, them.self.features = UINT64_C(0x8000000000000f0f);
	ist__hello_make(&them.self, hello);
	assert_int_equal(ist__hello_read(&us.self, hello, &a, NULL), IST_OK);
	assert_int_equal(a.features, 0x0f);
	them.self.required = UINT64_C(1) << 63; /* what we don't know */
	ist__hello_make(&them.self, hello);
	assert_int_equal(ist__hello_read(&us.self, hello, &a, &err), IST_VERSION_MISMATCH);
	assert_non_null(strstr(err.detail, "0x8000000000000000"));
	them.self.required = 0x0f;
	us.self.required = 0x10; /* what they don't know */
	ist__hello_make(&them.self, hello);
	assert_int_equal(ist__hello_read(&us.self, hello, &a, &err), IST_VERSION_MISMATCH);
	assert_non_null(strstr(err.detail, "0x10"));
}

static void
tells_a_stranger_from_one_of_us(void **state)
{
	uint8_t hello[IST__HELLO_BYTES], bad[IST__HELLO_BYTES];
	struct stranger us, them;
	struct ist__agreed a;

	(void)state;
	stranger_init(&us, secret, strlen(secret));
	stranger_init(&them, NULL, 0);
	ist__hello_make(&them.self, hello);
	assert_int_equal(ist__hello_read(&us.self, hello, &a, NULL), IST_BAD_SECRET); /* one side has none */
	assert_int_equal(ist__hello_read(&them.self, hello, &a, NULL), IST_OK);
	for (uint64_t n = 0; n <= IST__HELLO_BYTES; n++)
		assert_int_equal(ist__hello_look(hello, n, NULL), IST_OK);
	for (uint64_t n = 1; n <= 12; n++) { /* found at the first byte that can't be ours; the length as a whole */
		memcpy(bad, hello, sizeof(bad));
		bad[n - 1] ^= 1;
		assert_int_equal(ist__hello_look(bad, n - 1, NULL), IST_OK);
		assert_int_equal(ist__hello_look(bad, n <= 8 ? n : 12, NULL), IST_WRONG_PEER);
		assert_int_equal(ist__hello_read(&them.self, bad, &a, NULL), IST_WRONG_PEER);
	}
}

/* ---- strangers at a real listener ---- */

struct service {
	struct member m;
	union ist__sockaddr at;
};

static void
service_init(struct service *s, bool has_secret)
{
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .secret = has_secret ? secret : NULL, .secret_bytes = has_secret ? strlen(secret) : 0 };

	member_init(&s->m, IST_TRANSPORT_AUTO);
	ist_endpoint_free(s->m.ep);
	CHECK_ERR(IST_OK, ist_endpoint_new(s->m.env, &pa, &s->m.ep, &s->m.err), &s->m.err);
	s->at = stranger_at(s->m.ep);
}

/* Somebody who knows the secret still gets through. */
static void
service_goes_on(struct service *s, bool has_secret)
{
	struct stranger good;
	uint8_t key[IST__GROUP_KEY] = { 0 };

	stranger_init(&good, has_secret ? secret : NULL, has_secret ? strlen(secret) : 0);
	stranger_dial(&good, &s->at);
	assert_true(stranger_hello(&good));
	stranger_frame(&good, IST__JOIN, 0, 0, key, sizeof(key)); /* waits there for a group that never comes */
	stranger_close(&good);
}

static void
survives_what_is_no_hello(void **state)
{
	static const char http[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
	struct stranger s;
	struct service here;
	uint8_t noise[4096];

	(void)state;
	service_init(&here, true);
	for (int i = 0; i < 20; i++) {
		stranger_init(&s, NULL, 0);
		stranger_dial(&s, &here.at);
		randombytes_buf(noise, sizeof(noise));
		noise[0] &= 0x7f; /* never the magic's first byte */
		stranger_send(&s, noise, i % 2 ? 4 : sizeof(noise));
		assert_true(stranger_ended(&s));
		stranger_close(&s);
	}
	stranger_init(&s, NULL, 0);
	stranger_dial(&s, &here.at);
	stranger_send(&s, http, sizeof(http));
	assert_true(stranger_ended(&s));
	stranger_close(&s);
	service_goes_on(&here, true);
	member_fini(&here.m);
}

static void
takes_a_hello_in_any_pieces(void **state)
{
	struct stranger s;
	struct service here;

	(void)state;
	service_init(&here, true);
	for (uint64_t step = 1; step < IST__HELLO_BYTES; step += 41) {
		stranger_init(&s, secret, strlen(secret));
		stranger_dial(&s, &here.at);
		ist__hello_make(&s.self, s.said);
		for (uint64_t at = 0; at < IST__HELLO_BYTES; at += step) {
			stranger_send(&s, s.said + at, step < IST__HELLO_BYTES - at ? step : IST__HELLO_BYTES - at);
			sched_yield();
		}
		assert_true(stranger_read(&s, s.heard, sizeof(s.heard)));
		assert_int_equal(ist__hello_check(&s.self, IST__RESPONDER, s.said, s.heard, s.heard + IST__PROOF_AT, NULL), IST_OK);
		stranger_close(&s);
	}
	for (uint64_t n = 0; n < IST__HELLO_BYTES; n += n < 14 ? 1 : 37) { /* cut */
		stranger_init(&s, secret, strlen(secret));
		stranger_dial(&s, &here.at);
		ist__hello_make(&s.self, s.said);
		stranger_send(&s, s.said, n);
		shutdown(s.fd, SHUT_WR);
		assert_true(stranger_ended(&s));
		stranger_close(&s);
	}
	service_goes_on(&here, true);
	member_fini(&here.m);
}

static void
asks_for_the_secret(void **state)
{
	struct stranger s;
	struct service here;
	uint8_t proof[IST__PROOF_BYTES] = { 0 };

	(void)state;
	service_init(&here, true);
	/* another secret: the service's own proof does not hold for us, and ours is not believed */
	stranger_init(&s, "another secret altogether", 25);
	stranger_dial(&s, &here.at);
	assert_false(stranger_hello(&s));
	ist__hello_prove(&s.self, IST__INITIATOR, s.said, s.heard, proof);
	stranger_send(&s, proof, sizeof(proof));
	assert_true(stranger_ended(&s));
	stranger_close(&s);
	/* none */
	stranger_init(&s, NULL, 0);
	stranger_dial(&s, &here.at);
	assert_false(stranger_hello(&s));
	assert_true(stranger_ended(&s));
	stranger_close(&s);
	/* the service's proof sent back to it */
	stranger_init(&s, NULL, 0);
	s.self.has_secret = true;
	stranger_dial(&s, &here.at);
	ist__hello_make(&s.self, s.said);
	stranger_send(&s, s.said, sizeof(s.said));
	assert_true(stranger_read(&s, s.heard, sizeof(s.heard)));
	stranger_send(&s, s.heard + IST__PROOF_AT, IST__PROOF_BYTES);
	assert_true(stranger_ended(&s));
	stranger_close(&s);
	service_goes_on(&here, true);
	member_fini(&here.m);
}

/* All that a good member once sent, sent again by somebody who listened. */
static void
refuses_a_replay(void **state)
{
	struct stranger good, s;
	struct service here;

	(void)state;
	service_init(&here, true);
	stranger_init(&good, secret, strlen(secret));
	stranger_dial(&good, &here.at);
	assert_true(stranger_hello(&good));
	stranger_close(&good);
	stranger_init(&s, NULL, 0);
	stranger_dial(&s, &here.at);
	stranger_send(&s, good.said, sizeof(good.said));
	assert_true(stranger_read(&s, s.heard, sizeof(s.heard)));
	assert_memory_not_equal(s.heard + 48, good.heard + 48, 32);
	stranger_send(&s, good.proof, sizeof(good.proof));
	assert_true(stranger_ended(&s));
	stranger_close(&s);
	service_goes_on(&here, true);
	member_fini(&here.m);
}

static void
says_why_a_version_does_not_fit(void **state)
{
	struct stranger s;
	struct service here;
	struct ist__agreed a;

	(void)state;
	service_init(&here, true);
	stranger_init(&s, secret, strlen(secret));
	s.self.proto_min = s.self.proto_max = IST__PROTO_MAX + 1;
	stranger_dial(&s, &here.at);
	assert_true(stranger_hello(&s)); /* the answer is proven all the same, so that it can be believed */
	assert_int_equal(ist__hello_read(&s.self, s.heard, &a, NULL), IST_VERSION_MISMATCH);
	assert_true(stranger_ended(&s));
	stranger_close(&s);
	service_goes_on(&here, true);
	member_fini(&here.m);
}

static void
bounds_frames(void **state)
{
	uint8_t header[IST__FRAME_HEADER], body[64] = { 255 };
	struct stranger s;
	struct service here;

	(void)state;
	service_init(&here, false);
	/* longer than frames may be: ended on the header alone */
	for (int i = 0; i < 2; i++) {
		stranger_init(&s, NULL, 0);
		stranger_dial(&s, &here.at);
		assert_true(stranger_hello(&s));
		stranger_header(header, i ? UINT32_MAX : IST__FRAME_MAX + 1, IST__JOIN, 0, 0, 0, 0, 0);
		stranger_send(&s, header, sizeof(header));
		assert_true(stranger_ended(&s));
		stranger_close(&s);
	}
	/* descriptors announced that can't come */
	stranger_init(&s, NULL, 0);
	stranger_dial(&s, &here.at);
	assert_true(stranger_hello(&s));
	stranger_frame(&s, IST__JOIN, IST__FRAME_HAS_FDS, 0, body, sizeof(body));
	assert_true(stranger_ended(&s));
	stranger_close(&s);
	/* critical, and nobody knows it */
	stranger_init(&s, NULL, 0);
	stranger_dial(&s, &here.at);
	assert_true(stranger_hello(&s));
	stranger_frame(&s, 999, IST__FRAME_CRITICAL, 0, body, sizeof(body));
	assert_true(stranger_ended(&s));
	stranger_close(&s);
	/* half a frame, and gone */
	stranger_init(&s, NULL, 0);
	stranger_dial(&s, &here.at);
	assert_true(stranger_hello(&s));
	stranger_header(header, 1 << 20, IST__JOIN, 0, 0, 0, 0, 0);
	stranger_send(&s, header, sizeof(header));
	stranger_send(&s, body, sizeof(body));
	stranger_close(&s);
	service_goes_on(&here, false);
	member_fini(&here.m);
}

/* ---- a group forms among all that ---- */

/* Claims that can't be read, or come after frames of a later version: rank 0 answers or ignores, and the group forms. */
static void
forms_among_strangers(void **state)
{
	struct ist_group_args ga = { .struct_size = sizeof(ga), .size = 2, .name = "among", .timeout_ns = 60 * IST_NS_PER_S };
	uint8_t body[512], back[4096];
	struct stranger s;
	struct service here;
	struct member other;
	struct ist_req *req;
	struct ranks r;
	uint32_t n;

	(void)state;
	ranks_init(&r, 1);
	service_init(&here, false);
	ga.at = r.at;
	CHECK_ERR(IST_OK, ist_group_new_start(here.m.ep, &ga, &req, &here.m.err), &here.m.err);
	randombytes_buf(body, sizeof(body));
	stranger_group_key("among", body);
	for (uint32_t bytes = IST__GROUP_KEY; bytes < sizeof(body); bytes += 61) {
		stranger_init(&s, NULL, 0);
		stranger_dial(&s, &here.at);
		assert_true(stranger_hello(&s));
		stranger_frame(&s, 999, 0, 0, "something new", 13); /* skipped */
		stranger_frame(&s, IST__JOIN, 0, 0, body, bytes);
		assert_int_equal(stranger_answer(&s, back, sizeof(back), &n), IST__FAIL);
		stranger_close(&s);
	}
	/* the first of many pieces, whose others never come; and pieces that can't be */
	for (uint16_t flags = IST__FRAME_FIRST; flags <= (IST__FRAME_FIRST | IST__FRAME_MORE); flags = (uint16_t)(flags + 2)) {
		stranger_init(&s, NULL, 0);
		stranger_dial(&s, &here.at);
		assert_true(stranger_hello(&s));
		stranger_frame(&s, IST__JOIN, flags, 0, body, sizeof(body)); /* the key's bytes read as a length */
		assert_true(stranger_ended(&s));
		stranger_close(&s);
	}
	member_init(&other, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&other, r.at, "among", 1, 2, 60, 30), &other.err);
	CHECK_ERR(IST_OK, ist_req_wait(req, 0, &here.m.err), &here.m.err);
	CHECK_ERR(IST_OK, ist_req_group(req, &here.m.g, &here.m.err), &here.m.err);
	ist_req_free(req);
	CHECK_ERR(IST_OK, ist_send_bytes(other.g, "x", 1, 0, 0, &other.err), &other.err);
	member_fini(&other);
	member_fini(&here.m);
	ranks_fini(&r);
}

/* ---- bounds ---- */

/* Takes nobody: every frame is one from the future. */
static bool
takes_nobody(void *owner, struct ist__conn *conn, struct ist__frame *frame)
{
	(void)owner;
	ist__frame_free(ist__conn_loop(conn), frame);
	return false;
}

/* Nothing at all, part of a hello, or a hello and then nothing: all are sent away when their time is over. */
static void
bounds_the_time_of_visitors(void **state)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct stranger us, s[3];
	struct ist__acceptor_args args = { .self = &us.self, .patience_ns = 300 * IST__MS, .visitor = takes_nobody };
	struct ist__acceptor *acceptor;
	union ist__sockaddr at = { .sa = { 0 } };
	struct ist_env *env;

	(void)state;
	stranger_init(&us, NULL, 0);
	memcpy(&at, &v4, sizeof(v4));
	assert_int_equal(ist_env_new(NULL, &env, NULL), IST_OK);
	args.loop = ist__loop_get(env, NULL);
	assert_int_equal(ist__listen(&at, &args.fd, NULL), IST_OK);
	acceptor = ist__acceptor_new(&args, NULL);
	assert_non_null(acceptor);
	for (int i = 0; i < 3; i++) {
		stranger_init(&s[i], NULL, 0);
		stranger_dial(&s[i], &at);
	}
	stranger_send(&s[1], "\x89ISTH", 5);
	assert_true(stranger_hello(&s[2]));
	stranger_frame(&s[2], 999, 0, 0, NULL, 0); /* which says nothing */
	for (int i = 0; i < 3; i++) {
		assert_true(stranger_ended(&s[i]));
		stranger_close(&s[i]);
	}
	ist__acceptor_free(acceptor);
	ist_env_free(env);
}

/* More silent visitors than there is room for: the oldest goes, and the newest is served. */
static void
bounds_the_number_of_visitors(void **state)
{
	enum { MANY = 1200 };
	struct rlimit lim;
	struct stranger *s;
	struct service here;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &lim), 0);
	lim.rlim_cur = lim.rlim_max < 8192 ? lim.rlim_max : 8192;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &lim), 0);
	if (lim.rlim_cur < 3 * MANY) {
		print_message("only %llu descriptors\n", (unsigned long long)lim.rlim_cur);
		skip();
	}
	service_init(&here, true);
	s = calloc(MANY, sizeof(*s));
	for (uint32_t i = 0; i < MANY; i++) {
		stranger_init(&s[i], NULL, 0);
		stranger_dial(&s[i], &here.at);
	}
	for (uint32_t i = 0; i < MANY - 1024; i++)
		assert_true(stranger_ended(&s[i]));
	service_goes_on(&here, true);
	assert_true(count_fds() < 1024 + 64 + MANY);
	for (uint32_t i = 0; i < MANY; i++)
		stranger_close(&s[i]);
	free(s);
	member_fini(&here.m);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keeps_its_golden_bytes),
		cmocka_unit_test(keeps_its_golden_proofs),
		cmocka_unit_test(agrees_on_the_lowest_of_the_maxima),
		cmocka_unit_test(keeps_to_features_of_both),
		cmocka_unit_test(tells_a_stranger_from_one_of_us),
		cmocka_unit_test(survives_what_is_no_hello),
		cmocka_unit_test(takes_a_hello_in_any_pieces),
		cmocka_unit_test(asks_for_the_secret),
		cmocka_unit_test(refuses_a_replay),
		cmocka_unit_test(says_why_a_version_does_not_fit),
		cmocka_unit_test(bounds_frames),
		cmocka_unit_test(forms_among_strangers),
		cmocka_unit_test(bounds_the_time_of_visitors),
		cmocka_unit_test(bounds_the_number_of_visitors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
