/* SPDX-License-Identifier: Apache-2.0
 *
 * Whom a member trusts: secrets, what is bound, what is refused off loopback, records and ranks that somebody else
 * claims, addresses that lead elsewhere.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "netns.h"
#include "ranks.h"
#include "stranger.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fail.h"
#include "net/wire.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char secret_a[] = "the first of two secrets";
static const char secret_b[] = "the second of two secrets";

/* ---- a member whose log is kept ---- */

struct kept {
	pthread_mutex_t lock;
	size_t n;
	char text[1 << 20];
};

static void
keep(void *ctx, int32_t level, const char *msg)
{
	struct kept *k = ctx;

	(void)level;
	pthread_mutex_lock(&k->lock);
	if (k->n + strlen(msg) + 2 < sizeof(k->text))
		k->n += (size_t)snprintf(k->text + k->n, sizeof(k->text) - k->n, "%s\n", msg);
	pthread_mutex_unlock(&k->lock);
}

static void
with_secret(struct member *m, const char *secret, const char *bind, struct kept *k)
{
	struct ist_env_args ea = { .struct_size = sizeof(ea), .log_level = IST_LOG_TRACE, .log = k ? keep : NULL, .log_ctx = k };
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .secret = secret, .secret_bytes = secret ? strlen(secret) : 0, .bind = bind };

	memset(m, 0, sizeof(*m));
	if (k)
		pthread_mutex_init(&k->lock, NULL);
	ist_error_init(&m->err);
	CHECK_ERR(IST_OK, ist_env_new(&ea, &m->env, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_endpoint_new(m->env, &pa, &m->ep, &m->err), &m->err);
}

static void
holds_no_secret(const char *text, const char *secret)
{
	char hex[256];

	for (size_t i = 0; secret[i]; i++)
		snprintf(hex + 2 * i, 3, "%02x", (unsigned char)secret[i]);
	CHECK(!strstr(text, secret) && !strstr(text, hex));
}

/* ---- secrets ---- */

/* 0 and 1 share one, 2 has another, 3 none; 0 and 1 form their group all the same. */
static int
knows_its_own(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	const char *secret = rank < 2 ? secret_a : rank == 2 ? secret_b : NULL;
	struct ist_status_args sa = { .struct_size = sizeof(sa), .at = r->at, .secret = secret, .secret_bytes = secret ? strlen(secret) : 0,
		.timeout_ns = 20 * IST_NS_PER_S };
	struct ist_member_status rows[4];
	struct kept *k = calloc(1, sizeof(*k));
	uint32_t n = 4;
	struct member m;
	ist_err e;

	(void)arg;
	with_secret(&m, secret, NULL, k);
	if (rank == 1)
		ranks_await(&flags[0], 2); /* strangers first */
	e = member_join(&m, r->at, "secret", rank < 2 ? rank : 1, 2, 60, 30);
	CHECK_ERR(rank < 2 ? IST_OK : IST_BAD_SECRET, e, &m.err);
	holds_no_secret(m.err.detail, secret_a);
	if (rank >= 2) {
		CHECK_ERR(IST_BAD_SECRET, ist_status(m.env, &sa, rows, &n, &m.err), &m.err);
		atomic_fetch_add(&flags[0], 1);
	} else {
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_status(m.env, &sa, rows, &n, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	}
	member_fini(&m);
	CHECK(k->n > 0 || rank >= 2); /* it did log */
	holds_no_secret(k->text, secret_a);
	holds_no_secret(k->text, secret_b);
	free(k);
	return 0;
}

static void
asks_for_one_secret(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, knows_its_own, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

static void
refuses_a_short_secret(void **state)
{
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .secret = "fifteen bytes..", .secret_bytes = 15 };
	struct ist_endpoint *ep;
	struct ist_error err;
	struct ist_env *env;

	(void)state;
	ist_error_init(&err);
	assert_int_equal(ist_env_new(NULL, &env, NULL), IST_OK);
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_endpoint_new(env, &pa, &ep, &err), &err);
	assert_null(strstr(err.detail, "fifteen"));
	ist_env_free(env);
}

/* ---- off loopback ---- */

/* Calls seen for every TCP socket of this process that listens. */
static uint32_t
for_listeners(bool v6, void (*each)(const char *addr, unsigned port, void *arg), void *arg)
{
	unsigned long mine[1024];
	uint32_t n_mine = 0, n = 0;
	char line[512], addr[64];
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	FILE *f;

	while ((e = readdir(d)) && n_mine < 1024) {
		char to[64] = "";

		if (readlinkat(dirfd(d), e->d_name, to, sizeof(to) - 1) > 0 && sscanf(to, "socket:[%lu]", &mine[n_mine]) == 1)
			n_mine++;
	}
	closedir(d);
	f = fopen(v6 ? "/proc/self/net/tcp6" : "/proc/self/net/tcp", "r");
	while (f && fgets(line, sizeof(line), f)) {
		unsigned port, state;
		unsigned long inode;

		if (sscanf(line, " %*d: %63[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %*d %*d %lu", addr, &port, &state, &inode) != 4 || state != 0x0a)
			continue;
		for (uint32_t i = 0; i < n_mine; i++)
			if (mine[i] == inode) {
				each(addr, port, arg);
				n++;
			}
	}
	if (f)
		fclose(f);
	return n;
}

static void
must_be(const char *addr, unsigned port, void *arg)
{
	char want[16];

	(void)port;
	snprintf(want, sizeof(want), "%08" PRIX32, ((struct in_addr *)arg)->s_addr);
	CHECK(!strcmp(addr, want));
}

static void
must_not_be(const char *addr, unsigned port, void *arg)
{
	(void)addr, (void)port, (void)arg;
	CHECK(0);
}

static void
must_refuse_far(const char *addr, unsigned port, void *arg)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)addr, (void)arg;
	inet_pton(AF_INET, "10.77.0.1", &a.sin_addr);
	CHECK(connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 && errno == ECONNREFUSED);
	close(fd);
}

static void
listens_only_on(const char *text)
{
	struct in_addr a;

	CHECK(inet_pton(AF_INET, text, &a) == 1);
	CHECK(for_listeners(false, must_be, &a) > 0);
	CHECK(for_listeners(true, must_not_be, NULL) == 0);
}

static void
refuses_off_loopback(void)
{
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .bind = "10.77.0.1" };
	struct ist_store_args sa = { .struct_size = sizeof(sa), .bind = "10.77.0.1:0" };
	struct ist_status_args qa = { .struct_size = sizeof(qa), .at = "tcp://10.77.0.1:4444", .timeout_ns = 20 * IST_NS_PER_S };
	struct ist_endpoint *ep;
	struct ist_store *store;
	uint32_t n = 0;
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_INSECURE, ist_endpoint_new(m.env, &pa, &ep, &m.err), &m.err);
	CHECK(strstr(m.err.detail, "10.77.0.1"));
	pa.bind = "0.0.0.0";
	CHECK_ERR(IST_INSECURE, ist_endpoint_new(m.env, &pa, &ep, &m.err), &m.err);
	CHECK_ERR(IST_INSECURE, ist_store_new(m.env, &sa, &store, &m.err), &m.err);
	/* as the host of a meeting place, and as its visitor */
	CHECK_ERR(IST_INSECURE, member_join(&m, "tcp://10.77.0.1:4444", "x", 0, 2, 20, 30), &m.err);
	sa.insecure = 1;
	sa.bind = "10.77.0.1:4444";
	CHECK_ERR(IST_OK, ist_store_new(m.env, &sa, &store, &m.err), &m.err);
	CHECK_ERR(IST_INSECURE, member_join(&m, "tcp://10.77.0.1:4444", "x", 1, 2, 20, 30), &m.err);
	CHECK_ERR(IST_INSECURE, ist_status(m.env, &qa, NULL, &n, &m.err), &m.err);
	qa.insecure = 1;
	CHECK_ERR(IST_OK, ist_status(m.env, &qa, NULL, &n, &m.err), &m.err);
	ist_store_free(store);
	pa.bind = "10.77.0.1";
	pa.insecure = 1;
	CHECK_ERR(IST_OK, ist_endpoint_new(m.env, &pa, &ep, &m.err), &m.err);
	ist_endpoint_free(ep);
	member_fini(&m);
}

static void
use_far_with_secret(void)
{
	struct ist_group_args ga = { .struct_size = sizeof(ga), .size = 2, .at = "tcp://10.77.0.1:4445", .timeout_ns = 60 * IST_NS_PER_S };
	struct member m[2];
	struct ist_req *req;

	with_secret(&m[0], secret_a, NULL, NULL);
	with_secret(&m[1], secret_a, "far0", NULL);
	CHECK_ERR(IST_OK, ist_group_new_start(m[0].ep, &ga, &req, &m[0].err), &m[0].err);
	CHECK_ERR(IST_OK, member_join(&m[1], ga.at, "", 1, 2, 60, 30), &m[1].err);
	CHECK_ERR(IST_OK, ist_req_wait(req, 60 * IST_NS_PER_S, &m[0].err), &m[0].err);
	CHECK_ERR(IST_OK, ist_req_group(req, &m[0].g, &m[0].err), &m[0].err);
	ist_req_free(req);
	listens_only_on("10.77.0.1"); /* where the meeting place was reached, and where bind says */
	member_fini(&m[0]);
	member_fini(&m[1]);
}

static void
stay_on_loopback(struct ranks *r)
{
	struct ist_group_args ga = { .struct_size = sizeof(ga), .size = 2, .at = r->at, .timeout_ns = 60 * IST_NS_PER_S };
	struct member m[2];
	struct ist_req *req;

	for (int i = 0; i < 2; i++)
		member_init(&m[i], IST_TRANSPORT_TCP);
	CHECK_ERR(IST_OK, ist_group_new_start(m[0].ep, &ga, &req, &m[0].err), &m[0].err);
	CHECK_ERR(IST_OK, member_join(&m[1], ga.at, "", 1, 2, 60, 30), &m[1].err);
	CHECK_ERR(IST_OK, ist_req_wait(req, 60 * IST_NS_PER_S, &m[0].err), &m[0].err);
	CHECK_ERR(IST_OK, ist_req_group(req, &m[0].g, &m[0].err), &m[0].err);
	ist_req_free(req);
	listens_only_on("127.0.0.1"); /* store, control and data */
	CHECK(for_listeners(false, must_refuse_far, NULL) > 0);
	member_fini(&m[0]);
	member_fini(&m[1]);
}

static int
far_and_near(struct ranks *r, uint32_t rank, void *arg)
{
	(void)rank, (void)arg;
	if (!netns_enter())
		return 77;
	refuses_off_loopback();
	use_far_with_secret();
	stay_on_loopback(r);
	return 0;
}

static void
listens_where_told(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 1);
	ranks_start_all(&r, far_and_near, NULL);
	if (ranks_join(&r, 100, 0) && WIFEXITED(r.status[0]) && WEXITSTATUS(r.status[0]) == 77) {
		print_message("no network namespace can be made here\n");
		skip();
	}
	assert_int_equal(r.status[0], 0);
	ranks_fini(&r);
}

/* ---- claims ---- */

static uint32_t
publish_body(uint8_t *room, const char *name, const uint8_t *card, uint64_t n)
{
	struct ist__ctx ctx;
	struct ist__writer w;
	uint32_t bytes;

	ist__ctx_init(&ctx);
	ist__writer_init(&w, &ctx);
	ist__put_str(&w, name);
	ist__put_str(&w, "elsewhere");
	ist__put_u64(&w, 1);
	ist__put_blob(&w, card, n);
	bytes = (uint32_t)w.bytes;
	memcpy(room, w.at, bytes);
	ist__writer_fini(&w);
	return bytes;
}

static uint32_t
claim_body(uint8_t *room, const uint8_t key[IST__GROUP_KEY], const char *name, uint32_t rank, uint32_t size, const struct ist__card *card)
{
	struct ist__ctx ctx;
	struct ist__writer w;
	uint32_t bytes;

	ist__ctx_init(&ctx);
	ist__writer_init(&w, &ctx);
	ist__put_bytes(&w, key, IST__GROUP_KEY);
	ist__put_str(&w, name);
	ist__put_u32(&w, rank);
	ist__put_u32(&w, size);
	for (int i = 0; i < 3; i++) /* transport, memory, device */
		ist__put_u32(&w, 0);
	ist__put_u64(&w, 0);
	ist__put_str(&w, "auto");
	ist__card_put(&w, card);
	bytes = (uint32_t)w.bytes;
	memcpy(room, w.at, bytes);
	ist__writer_fini(&w);
	return bytes;
}

static ist_err
refusal(struct stranger *s, uint16_t type, struct ist_error *err)
{
	uint8_t back[8192];
	struct ist__reader r;
	uint32_t n;
	uint16_t got;

	do
		got = stranger_answer(s, back, sizeof(back), &n);
	while (got == IST__WAIT);
	assert_int_equal(got, type);
	ist_error_init(err);
	ist__reader_init(&r, back, n);
	assert_true(ist__get_error(&r, err));
	return err->code;
}

/* The record of rank 0 is its own as long as it is there; a rank is claimed under one's own name only. */
static void
keeps_records_and_ranks_to_their_owners(void **state)
{
	struct ist_group_args ga = { .struct_size = sizeof(ga), .size = 2, .name = "mine", .timeout_ns = 60 * IST_NS_PER_S };
	uint8_t body[1024], back[8192], card[IST_ADDRESS_BYTES], key[IST__GROUP_KEY];
	uint64_t n_card = sizeof(card);
	struct ist__reader in;
	struct ist__card theirs;
	struct ist__hostport hp;
	struct ist__addrs place;
	struct ist_error err;
	struct member m, other;
	struct stranger s;
	struct ist_req *req;
	struct ranks r;
	uint32_t n, done;

	(void)state;
	ranks_init(&r, 1);
	ga.at = r.at;
	assert_int_equal(ist__tcp_url_parse(r.at, false, &hp, NULL), IST_OK);
	assert_int_equal(ist__resolve(&hp, &place, NULL), IST_OK);
	with_secret(&m, secret_a, NULL, NULL);
	with_secret(&other, secret_a, NULL, NULL);
	CHECK_ERR(IST_OK, ist_endpoint_address(m.ep, card, &n_card, &m.err), &m.err);
	CHECK_ERR(IST_OK, ist_group_new_start(m.ep, &ga, &req, &m.err), &m.err);
	/* find it as a member would: answered as soon as it is published */
	stranger_init(&s, secret_a, strlen(secret_a));
	for (int i = 0; i < 2000 && s.fd < 0; i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (connect(fd, &place.at[0].sa, ist__sockaddr_bytes(&place.at[0])) == 0)
			s.fd = fd;
		else {
			close(fd);
			usleep(1000);
		}
	}
	assert_true(s.fd >= 0 && stranger_hello(&s));
	ist__store_u32(body, 4);
	memcpy(body + 4, "mine", 4);
	ist__store_u32(body + 8, 1);
	ist__store_u32(body + 12, 2);
	stranger_frame(&s, IST__FIND, 0, 5, body, 16);
	assert_int_equal(stranger_answer(&s, back, sizeof(back), &n), IST__FOUND);
	ist__reader_init(&in, back, n);
	assert_true(ist__card_get(&in, &theirs));
	assert_memory_equal(theirs.id, m.ep->ep->self.member, IST__MEMBER_BYTES);

	/* another one's record in its place */
	memset(card + 1, 0xee, 16);
	stranger_frame(&s, IST__PUBLISH, 0, 6, body, publish_body(body, "mine", card, n_card));
	CHECK_ERR(IST_CONFLICT, refusal(&s, IST__REFUSED, &err), &err);
	stranger_frame(&s, IST__FIND, 0, 7, "\4\0\0\0mine\1\0\0\0\2\0\0\0", 16);
	assert_int_equal(stranger_answer(&s, back, sizeof(back), &n), IST__FOUND);
	ist__reader_init(&in, back, n);
	assert_true(ist__card_get(&in, &theirs));
	assert_memory_equal(theirs.id, m.ep->ep->self.member, IST__MEMBER_BYTES); /* unchanged */
	stranger_close(&s);

	/* rank 1 under somebody else's name */
	stranger_group_key("mine", key);
	stranger_init(&s, secret_a, strlen(secret_a));
	stranger_dial(&s, &m.ep->ep->listeners[0].at);
	assert_true(stranger_hello(&s));
	stranger_frame(&s, IST__JOIN, 0, 0, body, claim_body(body, key, "mine", 1, 2, &other.ep->ep->card));
	CHECK_ERR(IST_BAD_FORMAT, refusal(&s, IST__FAIL, &err), &err);
	stranger_close(&s);
	CHECK_ERR(IST_OK, ist_req_test(req, &done, &m.err), &m.err);
	assert_false(done);

	CHECK_ERR(IST_OK, member_join(&other, r.at, "mine", 1, 2, 60, 30), &other.err);
	CHECK_ERR(IST_OK, ist_req_wait(req, 60 * IST_NS_PER_S, &m.err), &m.err);
	CHECK_ERR(IST_OK, ist_req_group(req, &m.g, &m.err), &m.err);
	ist_req_free(req);
	member_fini(&m);
	member_fini(&other);
	ranks_fini(&r);
}

/* By addresses the list says who is who: another member that claims a rank is denied. */
static void
denies_who_is_not_in_the_list(void **state)
{
	uint8_t room[2][IST_ADDRESS_BYTES], body[1024];
	struct ist_address a[2];
	struct ist_group_args ga = { .struct_size = sizeof(ga), .size = 2, .name = "list", .addresses = a, .timeout_ns = 60 * IST_NS_PER_S };
	struct ist__card card;
	struct ist_error err;
	struct member m[3];
	struct stranger s;
	struct ist_req *req;

	(void)state;
	for (int i = 0; i < 3; i++)
		with_secret(&m[i], secret_a, NULL, NULL);
	for (int i = 0; i < 2; i++) {
		a[i] = (struct ist_address){ room[i], IST_ADDRESS_BYTES };
		CHECK_ERR(IST_OK, ist_endpoint_address(m[i].ep, room[i], &a[i].bytes, &m[i].err), &m[i].err);
	}
	CHECK_ERR(IST_NOT_MEMBER, ist_group_new(m[2].ep, &ga, &m[2].g, &m[2].err), &m[2].err);
	CHECK_ERR(IST_OK, ist_group_new_start(m[0].ep, &ga, &req, &m[0].err), &m[0].err);
	/* it knows the list, so it knows the group's key */
	{
		struct ist__ctx ctx;
		uint8_t key[IST__GROUP_KEY];
		static const char label[] = "isthmus group 1";
		crypto_generichash_state st;

		ist__ctx_init(&ctx);
		crypto_generichash_init(&st, NULL, 0, IST__GROUP_KEY);
		crypto_generichash_update(&st, (const uint8_t *)label, sizeof(label));
		crypto_generichash_update(&st, (const uint8_t *)"list", 5);
		for (int i = 0; i < 2; i++)
			crypto_generichash_update(&st, m[i].ep->ep->self.member, IST__MEMBER_BYTES);
		crypto_generichash_final(&st, key, IST__GROUP_KEY);
		stranger_init(&s, secret_a, strlen(secret_a));
		stranger_dial(&s, &m[0].ep->ep->listeners[0].at);
		assert_true(stranger_hello(&s));
		card = m[1].ep->ep->card;
		memcpy(card.id, s.self.member, sizeof(card.id));
		stranger_frame(&s, IST__JOIN, 0, 0, body, claim_body(body, key, "list", 1, 2, &card));
	}
	CHECK_ERR(IST_DENIED, refusal(&s, IST__FAIL, &err), &err);
	stranger_close(&s);
	ga.rank = 1;
	CHECK_ERR(IST_OK, ist_group_new(m[1].ep, &ga, &m[1].g, &m[1].err), &m[1].err);
	CHECK_ERR(IST_OK, ist_req_wait(req, 60 * IST_NS_PER_S, &m[0].err), &m[0].err);
	CHECK_ERR(IST_OK, ist_req_group(req, &m[0].g, &m[0].err), &m[0].err);
	ist_req_free(req);
	for (int i = 0; i < 3; i++)
		member_fini(&m[i]);
}

/* ---- a membership record that leads to a rogue ---- */

struct rogue {
	int listen_fd;
	bool speaks;      /* it answers as one of us would, without the secret */
	uint8_t got[65536];
	size_t n;
	char secret[64];
};

static void *
rogue_main(void *arg)
{
	struct rogue *rogue = arg;
	struct stranger s;
	int fd;

	while ((fd = accept(rogue->listen_fd, NULL, NULL)) >= 0) { /* until it is shut down */
		ssize_t n = recv(fd, rogue->got + rogue->n, IST__HELLO_BYTES, MSG_WAITALL);

		if (n == IST__HELLO_BYTES) {
			stranger_init(&s, rogue->secret[0] ? rogue->secret : NULL, strlen(rogue->secret));
			s.self.has_secret = true;
			ist__hello_make(&s.self, s.said);
			ist__hello_prove(&s.self, IST__RESPONDER, rogue->got + rogue->n, s.said, s.said + IST__PROOF_AT);
			send(fd, s.said, sizeof(s.said), MSG_NOSIGNAL);
		}
		while (n > 0) {
			rogue->n += (size_t)n;
			n = recv(fd, rogue->got + rogue->n, sizeof(rogue->got) - rogue->n > 4096 ? 4096 : sizeof(rogue->got) - rogue->n, 0);
		}
		close(fd);
	}
	return NULL;
}

static void
is_not_led_astray(void **state)
{
	static const char name[] = "a name that nobody else may learn";

	(void)state;
	for (int knows = 0; knows < 2; knows++) {
		struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		socklen_t len = sizeof(v4);
		struct rogue *rogue = calloc(1, sizeof(*rogue));
		struct ist_address a[2];
		struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = 1, .size = 2, .name = name, .addresses = a, .timeout_ns = IST_NS_PER_S };
		uint8_t room[2][IST_ADDRESS_BYTES];
		struct ist__reader in;
		struct ist__writer w;
		struct ist__ctx ctx;
		struct ist__card card;
		struct member m[2];
		char text[64];
		pthread_t t;

		rogue->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		assert_int_equal(bind(rogue->listen_fd, (struct sockaddr *)&v4, sizeof(v4)), 0);
		assert_int_equal(listen(rogue->listen_fd, 16), 0);
		assert_int_equal(getsockname(rogue->listen_fd, (struct sockaddr *)&v4, &len), 0);
		snprintf(rogue->secret, sizeof(rogue->secret), "%s", knows ? secret_a : secret_b);
		assert_int_equal(pthread_create(&t, NULL, rogue_main, rogue), 0);
		for (int i = 0; i < 2; i++) {
			with_secret(&m[i], secret_a, NULL, NULL);
			a[i] = (struct ist_address){ room[i], IST_ADDRESS_BYTES };
			CHECK_ERR(IST_OK, ist_endpoint_address(m[i].ep, room[i], &a[i].bytes, &m[i].err), &m[i].err);
		}
		ist__reader_init(&in, room[0], a[0].bytes);
		assert_true(ist__card_get(&in, &card));
		snprintf(text, sizeof(text), "127.0.0.1:%u", ntohs(v4.sin_port));
		snprintf(card.addr, sizeof(card.addr), "%s", text);
		card.local[0] ^= 1; /* and no socket of the true one to be found by */
		ist__ctx_init(&ctx);
		ist__writer_init(&w, &ctx);
		ist__card_put(&w, &card);
		memcpy(room[0], w.at, w.bytes);
		a[0].bytes = w.bytes;
		ist__writer_fini(&w);

		if (knows) /* one of us, but not the one: it is not taken for rank 0 */
			CHECK_ERR(IST_TIMEOUT, ist_group_new(m[1].ep, &ga, &m[1].g, &m[1].err), &m[1].err);
		else
			CHECK_ERR(IST_BAD_SECRET, ist_group_new(m[1].ep, &ga, &m[1].g, &m[1].err), &m[1].err);
		assert_non_null(strstr(m[1].err.detail, text));
		member_fini(&m[0]);
		member_fini(&m[1]);
		shutdown(rogue->listen_fd, SHUT_RDWR);
		pthread_join(t, NULL);
		assert_true(rogue->n >= IST__HELLO_BYTES);
		assert_null(memmem(rogue->got, rogue->n, secret_a, strlen(secret_a)));
		if (!knows) {
			static const uint8_t none[IST__PROOF_BYTES];

			assert_int_equal(rogue->n % (IST__HELLO_BYTES + sizeof(none)), 0); /* hellos, zeros for a proof, and not a word more */
			for (size_t at = IST__HELLO_BYTES; at < rogue->n; at += IST__HELLO_BYTES + sizeof(none))
				assert_memory_equal(rogue->got + at, none, sizeof(none));
			assert_null(memmem(rogue->got, rogue->n, name, strlen(name)));
		}
		close(rogue->listen_fd);
		free(rogue);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(asks_for_one_secret),
		cmocka_unit_test(refuses_a_short_secret),
		cmocka_unit_test(listens_where_told),
		cmocka_unit_test(keeps_records_and_ranks_to_their_owners),
		cmocka_unit_test(denies_who_is_not_in_the_list),
		cmocka_unit_test(is_not_led_astray),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
