/* SPDX-License-Identifier: Apache-2.0
 *
 * The one parser of addresses, the grammar of --bind, and names that have addresses of both families. socket and
 * getaddrinfo are replaced here, so that a kernel without IPv6 can be had at will.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "netns.h"
#include "ranks.h"

#include "base/clock.h"
#include "net/addr.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the replaced calls ---- */

static bool no_v6;      /* the kernel refuses AF_INET6, and localhost is ::1 first */
static _Atomic unsigned sockets; /* asked for */

int
socket(int domain, int type, int protocol)
{
	if (domain == AF_INET || domain == AF_INET6)
		sockets++;
	if (no_v6 && domain == AF_INET6) {
		errno = EAFNOSUPPORT;
		return -1;
	}
	return (int)syscall(SYS_socket, domain, type, protocol);
}

typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int
getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
	resolver *real;
	struct addrinfo *six, *four;
	void *at = dlsym(RTLD_NEXT, "getaddrinfo");

	memcpy(&real, &at, sizeof(real));
	if (!no_v6 || !node || strcmp(node, "localhost") != 0)
		return real(node, service, hints, out);
	if (real("::1", service, hints, &six))
		return EAI_NONAME;
	if (real("127.0.0.1", service, hints, &four)) {
		freeaddrinfo(six);
		return EAI_NONAME;
	}
	six->ai_next = four;
	*out = six;
	return 0;
}

/* ---- text ---- */

struct text {
	const char *url, *host; /* host NULL: refused */
	uint16_t port;
};

static const struct text urls[] = {
	{ "tcp://[::1]:4000", "::1", 4000 },
	{ "tcp://127.0.0.1:1", "127.0.0.1", 1 },
	{ "tcp://localhost:65535", "localhost", 65535 },
	{ "tcp://node-7.example_net:80", "node-7.example_net", 80 },
	{ "tcp://7up:80", "7up", 80 },
	{ "tcp://[fe80::1%lo]:80", "fe80::1%lo", 80 },
	{ "tcp://::1:4000", NULL, 0 },
	{ "tcp://482:4000", NULL, 0 },
	{ "tcp://127.1:4000", NULL, 0 },
	{ "tcp://0x7f.1:4000", NULL, 0 },
	{ "tcp://0x7f000001:4000", NULL, 0 },
	{ "tcp://127.0.0.0x1:4000", NULL, 0 },
	{ "tcp://127.0.0.1.1:4000", NULL, 0 },
	{ "tcp://256.0.0.1:4000", NULL, 0 },
	{ "tcp://localhost:", NULL, 0 },
	{ "tcp://localhost", NULL, 0 },
	{ "tcp://localhost:99999", NULL, 0 },
	{ "tcp://localhost:65536", NULL, 0 },
	{ "tcp://localhost:-1", NULL, 0 },
	{ "tcp://localhost:+1", NULL, 0 },
	{ "tcp://localhost: 1", NULL, 0 },
	{ "tcp://localhost:1x", NULL, 0 },
	{ "tcp://localhost:0", NULL, 0 },
	{ "tcp://:4000", NULL, 0 },
	{ "tcp://[]:4000", NULL, 0 },
	{ "tcp://[::1:4000", NULL, 0 },
	{ "tcp://[::1]4000", NULL, 0 },
	{ "tcp://[::1]", NULL, 0 },
	{ "tcp://[127.0.0.1]:4000", NULL, 0 },
	{ "tcp://[nonsense]:4000", NULL, 0 },
	{ "tcp://user@host:4000", NULL, 0 },
	{ "tcp://host/path:4000", NULL, 0 },
	{ "tcp://ho st:4000", NULL, 0 },
	{ "tcp://0.0.0.0:4000", NULL, 0 },
	{ "tcp://[::]:4000", NULL, 0 },
	{ "tcp://[0:0:0:0:0:0:0:0]:4000", NULL, 0 },
	{ "tcp://", NULL, 0 },
	{ "tcp:/127.0.0.1:4000", NULL, 0 },
	{ "http://127.0.0.1:4000", NULL, 0 },
	{ "127.0.0.1:4000", NULL, 0 },
	{ "", NULL, 0 },
};

static void
reads_urls_strictly(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
		struct ist__hostport hp = { .port = 7 };
		struct ist_error err;
		ist_err e;

		ist_error_init(&err);
		e = ist__tcp_url_parse(urls[i].url, false, &hp, &err);
		if (urls[i].host) {
			CHECK_ERR(IST_OK, e, &err);
			assert_string_equal(hp.host, urls[i].host);
			assert_int_equal(hp.port, urls[i].port);
			assert_true(hp.has_port);
			continue;
		}
		if (e != IST_INVALID_ARGUMENT)
			fail_msg("\"%s\" was taken", urls[i].url);
		assert_int_equal(hp.port, 7); /* written on success only */
		if (strlen(urls[i].url) > 6)
			assert_non_null(strstr(err.detail, urls[i].url + (strncmp(urls[i].url, "tcp://", 6) ? 0 : 6)));
	}
}

static void
what_is_told_to_others_can_be_dialled(void **state)
{
	static const char *const bad[] = { "0.0.0.0", "0.0.0.0:4000", "::", "[::]", "[::]:4000", "10.0.0.1:0", "" };
	struct ist__hostport hp = { .port = 7 };

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(ist__advertise_parse(bad[i], &hp, NULL), IST_INVALID_ARGUMENT);
	assert_int_equal(hp.port, 7); /* written on success only */
	assert_int_equal(ist__advertise_parse("trainer-0:4000", &hp, NULL), IST_OK);
	assert_int_equal(hp.port, 4000);
	assert_int_equal(ist__advertise_parse("10.0.0.1", &hp, NULL), IST_OK);
	assert_false(hp.has_port);
}

static void
reads_hosts_without_a_port(void **state)
{
	struct ist__hostport hp;

	(void)state;
	assert_int_equal(ist__hostport_parse("::1", false, &hp, NULL), IST_OK);
	assert_string_equal(hp.host, "::1");
	assert_false(hp.has_port);
	assert_int_equal(ist__hostport_parse("[::1]", false, &hp, NULL), IST_OK);
	assert_int_equal(ist__hostport_parse("10.0.0.1", false, &hp, NULL), IST_OK);
	assert_false(hp.has_port);
	assert_int_equal(ist__hostport_parse("10.0.0.1:0", false, &hp, NULL), IST_OK);
	assert_true(hp.has_port);
	assert_int_equal(ist__hostport_parse("1:2:3", false, &hp, NULL), IST_INVALID_ARGUMENT);
	assert_int_equal(ist__hostport_parse(NULL, false, &hp, NULL), IST_INVALID_ARGUMENT);
}

static void
holds_any_text_within_its_room(void **state)
{
	char text[1024], url[1200];
	struct ist__hostport hp;

	(void)state;
	for (size_t n = 0; n < sizeof(text); n++) {
		memset(text, 'a', n);
		text[n] = 0;
		snprintf(url, sizeof(url), "tcp://%s:1", text);
		assert_int_equal(ist__tcp_url_parse(url, false, &hp, NULL), n > 0 && n < 256 ? IST_OK : IST_INVALID_ARGUMENT);
		memset(text, ':', n);
		assert_int_equal(ist__hostport_parse(text, true, &hp, NULL), IST_INVALID_ARGUMENT);
	}
}

/* A wrong text is told at once, before a socket is asked for. */
static void
refuses_before_it_dials(void **state)
{
	struct member m;

	(void)state;
	member_init(&m, IST_TRANSPORT_AUTO);
	for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
		unsigned before = sockets;

		if (urls[i].host)
			continue;
		for (uint32_t rank = 0; rank < 2; rank++)
			CHECK_ERR(IST_INVALID_ARGUMENT, member_join(&m, urls[i].url, "x", rank, 2, 600, 30), &m.err);
		assert_int_equal(sockets, before);
	}
	member_fini(&m);
}

/* ---- --bind ---- */

struct bound {
	const char *text, *want; /* the address picked, or NULL: BAD_CONFIG */
};

static void
check_binds(const struct bound *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		union ist__sockaddr at;
		struct ist_error err;
		char text[128];
		ist_err e;

		ist_error_init(&err);
		e = ist__bind_pick(rows[i].text, &at, &err);
		if (!rows[i].want) {
			if (e != IST_BAD_CONFIG)
				fprintf(stderr, "\"%s\" was taken\n", rows[i].text);
			CHECK_ERR(IST_BAD_CONFIG, e, &err);
			CHECK(strstr(err.detail, "lo 127.0.0.1")); /* what there is */
			continue;
		}
		if (e)
			fprintf(stderr, "\"%s\"\n", rows[i].text);
		CHECK_ERR(IST_OK, e, &err);
		ist__sockaddr_text(&at, text, sizeof(text));
		if (strcmp(text, rows[i].want) != 0)
			fprintf(stderr, "\"%s\" gives %s\n", rows[i].text, text);
		CHECK(!strcmp(text, rows[i].want));
	}
}

static void
picks_what_bind_says(void **state)
{
	static const struct bound rows[] = {
		{ "lo", "127.0.0.1:0" },
		{ "=lo", "127.0.0.1:0" },
		{ "l", "127.0.0.1:0" },   /* a prefix */
		{ "=l", NULL },           /* exact */
		{ "127.0.0.0/8", "127.0.0.1:0" },
		{ "127.0.0.1/32", "127.0.0.1:0" },
		{ "127.128.0.0/9", NULL },
		{ "127.0.0.1", "127.0.0.1:0" },
		{ "127.0.0.1:77", "127.0.0.1:77" },
		{ "nosuch0,lo", "127.0.0.1:0" },
		{ "nosuch0,10.99.99.0/24,127.0.0.9:5,lo", "127.0.0.9:5" },
		{ "0.0.0.0", "0.0.0.0:0" }, /* a wildcard may be listened on */
		{ "[::1]:9", "[::1]:9" },
		{ "192.0.2.77", NULL },     /* a literal address, but not of this machine */
		{ "192.0.2.77:80", NULL },
		{ "[2001:db8::77]", NULL },
		{ "192.0.2.77,lo", "127.0.0.1:0" },
		{ "nosuch0", NULL },
		{ "=nosuch0", NULL },
		{ "10.99.99.0/24", NULL },
		{ "127.0.0.0/33", NULL },
		{ "127.0.0.0/x", NULL },
		{ "127.1", NULL },
		{ "482", NULL },
		{ "", NULL },
		{ ",", NULL },
		{ "lo:99999", NULL },
		{ "^0.0.0.0/0,::/0", NULL }, /* all that is here */
	};

	(void)state;
	check_binds(rows, sizeof(rows) / sizeof(rows[0]));
}

static int
binds_far(struct ranks *r, uint32_t rank, void *arg)
{
	static const struct bound rows[] = {
		{ "far0", "10.77.0.1:0" },
		{ "far", "10.77.0.1:0" },
		{ "=far0", "10.77.0.1:0" },
		{ "=far", NULL },
		{ "10.77.0.0/24", "10.77.0.1:0" },
		{ "10.0.0.0/8", "10.77.0.1:0" },
		{ "10.77.1.0/24", NULL },
		{ "10.77.0.0/31", "10.77.0.1:0" },
		{ "10.77.0.2/31", NULL },
		{ "^lo,docker", "10.77.0.1:0" },
		{ "^=lo", "10.77.0.1:0" },
		{ "^127.0.0.0/8", "10.77.0.1:0" },
		{ "nosuch0,far0,lo", "10.77.0.1:0" },
		{ "lo,far0", "127.0.0.1:0" },
	};

	(void)r, (void)rank, (void)arg;
	if (!netns_enter())
		return 77;
	check_binds(rows, sizeof(rows) / sizeof(rows[0]));
	return 0;
}

static void
picks_among_interfaces(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 1);
	ranks_start_all(&r, binds_far, NULL);
	if (ranks_join(&r, 30, 0) && WIFEXITED(r.status[0]) && WEXITSTATUS(r.status[0]) == 77) {
		print_message("no network namespace can be made here\n");
		skip();
	}
	assert_int_equal(r.status[0], 0);
	ranks_fini(&r);
}

static void
tells_of_bad_bind_at_the_endpoint(void **state)
{
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .bind = "nosuch0" };
	struct ist_endpoint *ep;
	struct ist_error err;
	struct ist_env *env;

	(void)state;
	ist_error_init(&err);
	CHECK_ERR(IST_OK, ist_env_new(NULL, &env, &err), &err);
	CHECK_ERR(IST_BAD_CONFIG, ist_endpoint_new(env, &pa, &ep, &err), &err);
	assert_non_null(strstr(err.detail, "127.0.0.1"));
	pa.bind = "";
	CHECK_ERR(IST_BAD_CONFIG, ist_endpoint_new(env, &pa, &ep, &err), &err);
	pa.bind = NULL;
	pa.advertise = "1:2:3";
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_endpoint_new(env, &pa, &ep, &err), &err);
	ist_env_free(env);
}

/* ---- both families ---- */

static int
join_without_v6(struct ranks *r, uint32_t rank, void *arg)
{
	struct member m;
	char at[64];

	(void)arg;
	no_v6 = true;
	snprintf(at, sizeof(at), "tcp://localhost:%s", strrchr(r->at, ':') + 1);
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, at, "g", rank, r->n, 60, 30), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
passes_over_a_family_that_is_off(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 3);
	ranks_start_all(&r, join_without_v6, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

static void
lists_every_address_that_failed(void **state)
{
	struct ist__addrs to;
	struct ist__hostport hp;
	struct ist_error err;
	struct member m;
	bool refused = false;
	char at[64], want[64];
	struct ranks r; /* its port is bound, and nobody listens */
	int fd;

	(void)state;
	ranks_init(&r, 1);
	no_v6 = true;
	ist_error_init(&err);
	snprintf(at, sizeof(at), "tcp://localhost:%s", strrchr(r.at, ':') + 1);
	CHECK_ERR(IST_OK, ist__tcp_url_parse(at, false, &hp, &err), &err);
	CHECK_ERR(IST_OK, ist__resolve(&hp, &to, &err), &err);
	assert_int_equal(to.n, 2);
	CHECK_ERR(IST_IO, ist__dial(&to, ist__now() + 10000 * IST__MS, -1, &fd, &refused, &err), &err);
	assert_true(refused);
	snprintf(want, sizeof(want), "[::1]:%u: EAFNOSUPPORT", hp.port);
	assert_non_null(strstr(err.detail, want));
	snprintf(want, sizeof(want), "127.0.0.1:%u: ECONNREFUSED", hp.port);
	assert_non_null(strstr(err.detail, want));
	/* and so says a member that waited for its meeting place in vain */
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_TIMEOUT, member_join(&m, at, "g", 1, 2, 0.5, 30), &m.err);
	assert_non_null(strstr(m.err.detail, want));
	assert_non_null(strstr(m.err.detail, "EAFNOSUPPORT"));
	member_fini(&m);
	no_v6 = false;
	ranks_fini(&r);
}

static int
listen_on(const char *text, uint16_t *port)
{
	struct ist__hostport hp;
	struct ist__addrs at;
	int fd;

	if (ist__hostport_parse(text, false, &hp, NULL) || ist__resolve(&hp, &at, NULL) || ist__listen(&at.at[0], &fd, NULL))
		return -1;
	*port = ist__sockaddr_port(&at.at[0]);
	return fd;
}

/* The name's first address does not answer; the second does. */
static void
takes_the_family_that_answers(void **state)
{
	struct ist__addrs to;
	struct ist__hostport hp = { .host = "localhost", .has_port = true };
	bool refused;
	int fd, l = listen_on("127.0.0.1", &hp.port);

	(void)state;
	assert_true(l >= 0);
	no_v6 = true;
	assert_int_equal(ist__resolve(&hp, &to, NULL), IST_OK);
	no_v6 = false; /* from here on ::1 merely refuses */
	assert_int_equal(to.n, 2);
	assert_int_equal(to.at[0].sa.sa_family, AF_INET6);
	assert_int_equal(ist__dial(&to, ist__now() + 10000 * IST__MS, -1, &fd, &refused, NULL), IST_OK);
	close(fd);
	close(l);
}

/* A member that starts long before its meeting place finds it as soon as it is there; here "long" is a number of
 * refused attempts, which it counts itself. */
static int
early(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	if (rank == 0)
		ranks_await(&flags[0], 5);
	else {
		struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = 1, .size = 2, .name = "late", .at = r->at, .timeout_ns = 60 * IST_NS_PER_S };
		struct ist_req *req;
		uint32_t done = 0;

		CHECK_ERR(IST_OK, ist_group_new_start(m.ep, &ga, &req, &m.err), &m.err);
		for (unsigned n = 0, before = sockets; !done; n = sockets - before) { /* only this thread's library dials here */
			ist_err e = ist_req_test(req, &done, &m.err);

			CHECK(e == IST_OK);
			if (n >= 6)
				atomic_store(&flags[0], 5);
			usleep(1000);
		}
		CHECK_ERR(IST_OK, ist_req_group(req, &m.g, &m.err), &m.err);
		ist_req_free(req);
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
		member_fini(&m);
		return 0;
	}
	CHECK_ERR(IST_OK, member_join(&m, r->at, "late", 0, 2, 60, 30), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
finds_a_place_that_comes_later(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 2);
	ranks_start_all(&r, early, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_urls_strictly),
		cmocka_unit_test(what_is_told_to_others_can_be_dialled),
		cmocka_unit_test(reads_hosts_without_a_port),
		cmocka_unit_test(holds_any_text_within_its_room),
		cmocka_unit_test(refuses_before_it_dials),
		cmocka_unit_test(picks_what_bind_says),
		cmocka_unit_test(picks_among_interfaces),
		cmocka_unit_test(tells_of_bad_bind_at_the_endpoint),
		cmocka_unit_test(passes_over_a_family_that_is_off),
		cmocka_unit_test(lists_every_address_that_failed),
		cmocka_unit_test(takes_the_family_that_answers),
		cmocka_unit_test(finds_a_place_that_comes_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
