/* SPDX-License-Identifier: Apache-2.0
 *
 * Forming under bad conditions: members that are held up at any moment, or stop on the way; ports that others grab; sockets
 * and addresses that the caller chooses; a control path that is slow.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- held up at any moment ---- */

static int
forms_and_uses(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_buf buf = { .addr = calloc(1, 4096), .bytes = 4096, .device = -1 };
	struct ist_coll_args a = { .struct_size = sizeof(a), .peer = 0, .src = buf, .dst = buf };
	struct ist_req *req;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "slow", rank, r->n, 60, 30), &m.err);
	memset(buf.addr, rank == 0 ? 0x5A : 0, 4096);
	CHECK_ERR(IST_OK, ist_broadcast(m.g, &a, &req, &m.err), &m.err); /* straight after */
	CHECK_ERR(IST_OK, ist_req_wait(req, 0, &m.err), &m.err);
	CHECK(ist_req_free(req) == IST_OK);
	for (uint32_t i = 0; i < 4096; i++)
		CHECK(((uint8_t *)buf.addr)[i] == 0x5A);
	all_gather_ranks(&m, rank, r->n);
	member_fini(&m);
	free(buf.addr);
	ranks_await(r->shared, 1); /* a leak checker that is stopped at the end of a process never comes back */
	return 0;
}

/* Each member is stopped and goes on at random moments, so at each step of forming somebody is somewhere else. */
static void
forms_however_long_a_step_takes(void **state)
{
	unsigned seed = (unsigned)time(NULL);

	(void)state;
	fprintf(stderr, "seed %u\n", seed);
	for (int round = 0; round < 25; round++) {
		struct ranks r;

		ranks_init(&r, 4);
		ranks_start_all(&r, forms_and_uses, NULL);
		for (int i = 0; i < 40; i++) {
			pid_t pid = r.pid[rand_r(&seed) % 4];

			kill(pid, SIGSTOP);
			usleep((useconds_t)(rand_r(&seed) % 3000)); /* how long, and where, is this test's input */
			kill(pid, SIGCONT);
		}
		atomic_store((_Atomic uint32_t *)r.shared, 1);
		assert_int_equal(ranks_join(&r, 100, 0), 0);
		ranks_fini(&r);
	}
}

/* ---- stops on the way ---- */

/* Ranks 2 and 5 of six come to the roll-call and stop before it is closed: rank 4 comes only then. */
static int
stops_on_the_way(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = rank, .size = 6, .name = "stops", .at = r->at, .timeout_ns = 4 * IST_NS_PER_S };
	uint32_t done = 0;
	struct ist_req *req;
	struct member m;
	double t;
	ist_err e;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	if (rank == 4)
		ranks_await(&flags[1], 1);
	t = now_s();
	CHECK_ERR(IST_OK, ist_group_new_start(m.ep, &ga, &req, &m.err), &m.err);
	while (rank != 4 && !done) {
		e = ist_req_test(req, &done, &m.err);
		if (!done && m.err.n_ranks == 1 && m.err.ranks[0] == 4)
			break; /* all but the last are there */
		usleep(1000);
	}
	atomic_fetch_add(&flags[0], rank != 4);
	if (rank == 2 || rank == 5) {
		raise(SIGSTOP); /* for good */
		_exit(1);
	}
	e = ist_req_wait(req, 60 * IST_NS_PER_S, &m.err);
	CHECK_ERR(IST_TIMEOUT, e, &m.err);
	CHECK(now_s() - t < 40);
	CHECK(m.err.n_ranks == 2 && m.err.ranks[0] == 2 && m.err.ranks[1] == 5);
	CHECK(ist_req_free(req) == IST_OK);
	member_fini(&m);
	atomic_fetch_add(&flags[2], 1);
	return 0;
}

static void
names_who_stopped_on_the_way(void **state)
{
	_Atomic uint32_t *flags;
	struct ranks r;

	(void)state;
	ranks_init(&r, 6);
	flags = r.shared;
	ranks_start_all(&r, stops_on_the_way, NULL);
	ranks_await(&flags[0], 5);
	for (uint32_t i = 2; i < 6; i += 3) {
		int status;

		assert_int_equal(waitpid(r.pid[i], &status, WUNTRACED), r.pid[i]);
		assert_true(WIFSTOPPED(status));
	}
	atomic_store(&flags[1], 1);
	ranks_await(&flags[2], 4);
	kill(r.pid[2], SIGKILL);
	kill(r.pid[5], SIGKILL);
	assert_int_equal(ranks_join(&r, 60, 1 << 2 | 1 << 5), 0);
	ranks_fini(&r);
}

/* ---- no room for what others hand over ---- */

/* So many more descriptors than are open. */
static void
leave_room(rlim_t room)
{
	struct rlimit lim;

	CHECK(getrlimit(RLIMIT_NOFILE, &lim) == 0);
	lim.rlim_cur = 0;
	while (room > 0) /* the numbers that are free, gaps too */
		room -= fcntl((int)lim.rlim_cur++, F_GETFD) < 0;
	CHECK(setrlimit(RLIMIT_NOFILE, &lim) == 0);
}

static int
has_no_room(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t all[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	struct ist_split_args a = { .struct_size = sizeof(a), .n_ranks = 8, .ranks = all, .name = "child", .timeout_ns = 60 * IST_NS_PER_S };
	struct ist_group *child;
	struct rlimit before;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_TCP);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "room", rank, r->n, 60, 30), &m.err);
	CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
	for (int round = 0; round < 30; round++) {
		if (rank == 0)
			leave_room(1); /* for its own, and none for the first that come */
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
		ist_error_init(&m.err);
		CHECK_ERR(IST_LIMIT, ist_group_split(m.g, &a, &child, &m.err), &m.err);
		CHECK(rank == 0 || (m.err.n_ranks == 1 && m.err.ranks[0] == 0));
		CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	}
	CHECK_ERR(IST_OK, ist_group_split(m.g, &a, &child, &m.err), &m.err);
	CHECK(ist_group_free(child) == IST_OK);
	member_fini(&m);
	return 0;
}

/* Rank 0 of a split can't have the connections that the others make for it: that is LIMIT, and no want of memory. */
static void
a_split_without_descriptors_is_a_limit(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 8);
	ranks_start_all(&r, has_no_room, NULL);
	assert_int_equal(ranks_join(&r, 100, 0), 0);
	ranks_fini(&r);
}

/* ---- the caller's own socket ---- */

static int
socket_on_loopback(int type, bool listens, struct sockaddr_in *at)
{
	socklen_t n = sizeof(*at);
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

	*at = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)at, sizeof(*at)) == 0 && getsockname(fd, (struct sockaddr *)at, &n) == 0);
	CHECK(!listens || listen(fd, 16) == 0);
	return fd;
}

static int
brings_a_socket(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa) };
	struct sockaddr_in at;
	char address[IST_ADDRESS_BYTES], port[16];
	uint64_t n = sizeof(address);
	struct member m;

	(void)arg;
	memset(&m, 0, sizeof(m));
	ist_error_init(&m.err);
	CHECK_ERR(IST_OK, ist_env_new(NULL, &m.env, &m.err), &m.err);
	pa.listen_fd = socket_on_loopback(SOCK_STREAM, true, &at);
	snprintf(port, sizeof(port), ":%u", ntohs(at.sin_port));
	CHECK_ERR(IST_OK, ist_endpoint_new(m.env, &pa, &m.ep, &m.err), &m.err);
	CHECK_ERR(IST_OK, ist_endpoint_address(m.ep, address, &n, &m.err), &m.err);
	CHECK(memmem(address, n, port, strlen(port))); /* that one, and no other */
	CHECK_ERR(IST_OK, member_join(&m, r->at, "own", rank, r->n, 60, 30), &m.err);
	all_gather_ranks(&m, rank, r->n);
	member_fini(&m);
	return 0;
}

/* What is no listening TCP socket is told with the endpoint or with its first use, and never becomes a hang. */
static void
refuses_other_sockets(void)
{
	struct sockaddr_in at;
	int pipes[2], kinds[4];
	char address[IST_ADDRESS_BYTES];
	struct ist_error err;
	struct ist_env *env;

	ist_error_init(&err);
	assert_int_equal(ist_env_new(NULL, &env, NULL), IST_OK);
	assert_int_equal(pipe(pipes), 0);
	close(pipes[1]);
	kinds[0] = pipes[0];
	kinds[1] = socket_on_loopback(SOCK_DGRAM, false, &at);
	kinds[2] = socket_on_loopback(SOCK_STREAM, false, &at);
	kinds[3] = 4000; /* not open at all */
	for (int i = 0; i < 4; i++) {
		struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .listen_fd = kinds[i] };
		struct ist_endpoint *ep = NULL;
		uint64_t n = sizeof(address);
		ist_err e = ist_endpoint_new(env, &pa, &ep, &err);

		if (!e)
			e = ist_endpoint_address(ep, address, &n, &err);
		if (e != IST_INVALID_ARGUMENT)
			fail_msg("kind %d: %s %s", i, ist_err_name(e), err.detail);
		ist_endpoint_free(ep);
	}
	ist_env_free(env);
}

static void
takes_the_callers_socket(void **state)
{
	struct ranks r;

	(void)state;
	refuses_other_sockets();
	ranks_init(&r, 3);
	ranks_start_all(&r, brings_a_socket, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* ---- ports that others grab ---- */

static void *
grab_ports(void *arg)
{
	_Atomic int *stop = arg;
	int held[400], n = 0, next = 0;

	while (!atomic_load(stop)) {
		struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0)
			continue;
		if (bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0)
			listen(fd, 1);
		if (n == 400)
			close(held[next]);
		else
			n++;
		held[next] = fd;
		next = (next + 1) % 400;
	}
	while (n-- > 0)
		close(held[n]);
	return NULL;
}

enum { FORMERS = 64, TIMES = 16 }; /* 512 groups, 32 at a time */

/* All have left in good order: their groups leave nothing in the place where they met. */
static void
store_is_empty(struct member *m, const char *at)
{
	struct ist_status_args sa = { .struct_size = sizeof(sa), .at = at, .timeout_ns = 20 * IST_NS_PER_S };
	struct ist_member_status rows[4];
	uint32_t n = 1;

	for (int i = 0; n > 0; i++) {
		CHECK(i < 1000);
		n = 4;
		CHECK_ERR(IST_OK, ist_status(m->env, &sa, rows, &n, &m->err), &m->err);
		usleep(n ? 20000 : 0);
	}
}

/* The last one is the store. */
static int
forms_many_times(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_store_args sa = { .struct_size = sizeof(sa), .bind = r->at + 6 };
	_Atomic uint32_t *flags = r->shared;
	struct ist_store *store = NULL;
	char name[32];
	struct member m;

	(void)arg;
	if (rank == FORMERS) {
		member_init(&m, IST_TRANSPORT_AUTO);
		CHECK_ERR(IST_OK, ist_store_new(m.env, &sa, &store, &m.err), &m.err);
		atomic_store(&flags[1], 1);
		ranks_await(&flags[0], FORMERS);
		store_is_empty(&m, r->at);
		ist_store_free(store);
		member_fini(&m);
	}
	ranks_await(&flags[1], 1);
	for (uint32_t i = 0; rank < FORMERS && i < TIMES; i++) {
		member_init(&m, IST_TRANSPORT_AUTO); /* each time a port of its own */
		snprintf(name, sizeof(name), "pair%u.%u", rank / 2, i);
		CHECK_ERR(IST_OK, member_join(&m, r->at, name, rank % 2, 2, 60, 30), &m.err);
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
		member_fini(&m);
	}
	atomic_fetch_add(&flags[0], 1);
	return 0;
}

static void
forms_while_others_grab_ports(void **state)
{
	_Atomic int stop = 0;
	pthread_t thread;
	struct ranks r;

	(void)state;
	ranks_init(&r, FORMERS + 1);
	ranks_start_all(&r, forms_many_times, NULL);
	assert_int_equal(pthread_create(&thread, NULL, grab_ports, &stop), 0);
	assert_int_equal(ranks_join(&r, 100, 0), 0);
	atomic_store(&stop, 1);
	pthread_join(thread, NULL);
	ranks_fini(&r);
}

/* ---- a slow way between members ---- */

enum { MEMBERS = 3, PAIRS = 64 };

struct relay {
	int listens, member; /* the relay's socket, and the member's own */
	struct sockaddr_in at, to;
};

/* Carries bytes both ways, each time after a random while. */
static void
carry(int a, int b, unsigned *seed)
{
	char piece[700]; /* frames arrive in parts, too */
	struct pollfd p[2] = { { .fd = a, .events = POLLIN }, { .fd = b, .events = POLLIN } };

	for (;;) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return;
		for (int i = 0; i < 2; i++) {
			ssize_t n = p[i].revents ? recv(p[i].fd, piece, sizeof(piece), 0) : -2;

			if (n == -2)
				continue;
			if (n <= 0)
				return;
			usleep((useconds_t)(rand_r(seed) % 4000)); /* the delay is what is tried */
			for (ssize_t k = 0, sent; k < n; k += sent)
				if ((sent = send(p[1 - i].fd, piece + k, (size_t)(n - k), MSG_NOSIGNAL)) <= 0)
					return;
		}
	}
}

struct pair {
	int in, out;
	unsigned seed;
};

static void *
carry_pair(void *arg)
{
	struct pair *p = arg;

	carry(p->in, p->out, &p->seed);
	close(p->in);
	close(p->out);
	return NULL;
}

static void *
accept_pairs(void *arg)
{
	static struct pair pairs[PAIRS * MEMBERS];
	static _Atomic unsigned used;
	struct relay *relay = arg;
	int fd;

	while ((fd = accept4(relay->listens, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		struct pair *p = &pairs[atomic_fetch_add(&used, 1) % (PAIRS * MEMBERS)];
		pthread_t thread;

		*p = (struct pair){ .in = fd, .out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .seed = (unsigned)fd };
		if (connect(p->out, (struct sockaddr *)&relay->to, sizeof(relay->to)) || pthread_create(&thread, NULL, carry_pair, p)) {
			close(p->in);
			close(p->out);
			continue;
		}
		pthread_detach(thread);
	}
	return NULL;
}

/* All that members dial of each other goes by way of a relay: the meeting place apart. */
static int
goes_through_a_relay(struct ranks *r, uint32_t rank, void *arg)
{
	struct relay *relays = arg;
	char told[64];
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .transport = IST_TRANSPORT_TCP, .listen_fd = relays[rank].member, .advertise = told };
	struct member m;

	snprintf(told, sizeof(told), "127.0.0.1:%u", ntohs(relays[rank].at.sin_port));
	for (uint32_t i = 0; i < MEMBERS; i++) {
		close(relays[i].listens);
		if (i != rank)
			close(relays[i].member);
	}
	memset(&m, 0, sizeof(m));
	ist_error_init(&m.err);
	CHECK_ERR(IST_OK, ist_env_new(NULL, &m.env, &m.err), &m.err);
	CHECK_ERR(IST_OK, ist_endpoint_new(m.env, &pa, &m.ep, &m.err), &m.err);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "relayed", rank, r->n, 60, 20), &m.err);
	for (uint32_t i = 0; i < 15; i++) {
		uint32_t doubt;
		struct ist_blob one;

		all_gather_ranks(&m, rank, r->n);
		CHECK_ERR(IST_OK, ist_decide(m.g, NULL, 0, &doubt, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_broadcast_bytes(m.g, &i, sizeof(i), i % r->n, 0, &one, &m.err), &m.err);
		CHECK(one.bytes == sizeof(i) && !memcmp(one.addr, &i, sizeof(i)));
		ist_blobs_free(m.g, &one, 1);
	}
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
bears_a_slow_way_between_members(void **state)
{
	struct relay relays[MEMBERS];
	pthread_t threads[MEMBERS];
	struct ranks r;

	(void)state;
	ranks_init(&r, MEMBERS);
	for (uint32_t i = 0; i < MEMBERS; i++) {
		relays[i].listens = socket_on_loopback(SOCK_STREAM, true, &relays[i].at);
		relays[i].member = socket_on_loopback(SOCK_STREAM, true, &relays[i].to);
	}
	ranks_start_all(&r, goes_through_a_relay, relays);
	for (uint32_t i = 0; i < MEMBERS; i++)
		close(relays[i].member);
	for (uint32_t i = 0; i < MEMBERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, accept_pairs, &relays[i]), 0);
	assert_int_equal(ranks_join(&r, 100, 0), 0);
	for (uint32_t i = 0; i < MEMBERS; i++) {
		shutdown(relays[i].listens, SHUT_RDWR);
		pthread_join(threads[i], NULL);
		close(relays[i].listens);
	}
	ranks_fini(&r);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forms_however_long_a_step_takes),
		cmocka_unit_test(names_who_stopped_on_the_way),
		cmocka_unit_test(a_split_without_descriptors_is_a_limit),
		cmocka_unit_test(takes_the_callers_socket),
		cmocka_unit_test(forms_while_others_grab_ports),
		cmocka_unit_test(bears_a_slow_way_between_members),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
