/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_socket.c - how fast plain sockets carry bytes from each rank to the next one, none waiting for another: the edges of
 * a chain, which is how a broadcast over TCP can't be beaten as long as each byte enters every receiver through a socket.
 * Cold buffers, half a MiB a call, the congestion control that Isthmus takes (cubic within a host), and the best of four
 * ways of receiving: whatever is there, whole pieces, woken by a low-water mark, never asleep.
 */
#include "bench.h"
#include "value.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define BYTES (UINT64_C(64) << 20)
#define PIECE (UINT64_C(512) << 10)
#define WAYS 4
#define TRIES (3 * WAYS)
#define LOW_WATER (128 << 10)
#define WAIT_MS 10000

/* What a rank tells the others: where it listens, and what a caller must say. */
struct place {
	uint32_t there;
	uint32_t family;
	uint8_t address[16];
	uint16_t port;
	uint8_t token[16];
	uint8_t host[16];        /* first bytes of the boot id: who shares it shares a loopback */
};

struct edges {
	uint32_t rank, n;
	int in, out, listener;
	uint8_t *from, *to;      /* BENCH_ARENA each */
	uint64_t at;
	uint32_t only;           /* just the edge that leaves this rank; n: all of them */
	int way;                 /* of receiving */
	int low;                 /* SO_RCVLOWAT as it is */
	bool failed;
	bool one_host;
};

/* The address of ours from which the meeting place is reached. */
static void
own_address(const struct bench *b, struct place *p)
{
	char host[512], *port;
	struct addrinfo want = { .ai_socktype = SOCK_DGRAM }, *found = NULL;
	struct sockaddr_storage here;
	socklen_t n = sizeof(here);
	int fd;

	p->family = AF_INET;
	p->address[0] = 127;
	p->address[3] = 1;
	if (strncmp(b->s.at, "tcp://", 6))
		return;
	snprintf(host, sizeof(host), "%s", b->s.at + 6 + (b->s.at[6] == '['));
	port = strrchr(host, ':');
	if (!port)
		return;
	*port++ = 0;
	host[strcspn(host, "]")] = 0;
	if (getaddrinfo(host, port, &want, &found))
		return;
	fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 && getsockname(fd, (struct sockaddr *)&here, &n) == 0) {
		p->family = here.ss_family;
		if (here.ss_family == AF_INET)
			memcpy(p->address, &((struct sockaddr_in *)(void *)&here)->sin_addr, 4);
		else
			memcpy(p->address, &((struct sockaddr_in6 *)(void *)&here)->sin6_addr, 16);
	}
	if (fd >= 0)
		close(fd);
	freeaddrinfo(found);
}

static socklen_t
sockaddr_of(const struct place *p, struct sockaddr_storage *out)
{
	memset(out, 0, sizeof(*out));
	out->ss_family = (sa_family_t)p->family;
	if (p->family == AF_INET6) {
		memcpy(&((struct sockaddr_in6 *)(void *)out)->sin6_addr, p->address, 16);
		((struct sockaddr_in6 *)(void *)out)->sin6_port = p->port;
		return sizeof(struct sockaddr_in6);
	}
	memcpy(&((struct sockaddr_in *)(void *)out)->sin_addr, p->address, 4);
	((struct sockaddr_in *)(void *)out)->sin_port = p->port;
	return sizeof(struct sockaddr_in);
}

static int
tune(int fd, bool near)
{
	struct timeval wait = { .tv_sec = WAIT_MS / 1000 };
	const int on = 1;

	if (fd < 0)
		return fd;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	if (near)
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
	return fd;
}

static void
listen_here(const struct bench *b, struct edges *e, struct place *p)
{
	struct sockaddr_storage at;
	socklen_t n;
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	memset(p, 0, sizeof(*p));
	own_address(b, p);
	if (f) {
		if (fread(p->host, 1, sizeof(p->host), f) != sizeof(p->host))
			p->host[0] = (uint8_t)e->rank;
		fclose(f);
	}
	n = sockaddr_of(p, &at);
	e->listener = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (e->listener < 0 || getrandom(p->token, sizeof(p->token), 0) != sizeof(p->token) || bind(e->listener, (struct sockaddr *)&at, n) ||
	    listen(e->listener, 4) || getsockname(e->listener, (struct sockaddr *)&at, &n))
		return;
	p->port = at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&at)->sin6_port : ((struct sockaddr_in *)(void *)&at)->sin_port;
	p->there = 1;
}

static int
call(const struct place *to, bool near)
{
	struct sockaddr_storage at;
	socklen_t n = sockaddr_of(to, &at);
	int fd = tune(socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), near);

	if (fd >= 0 && (connect(fd, (struct sockaddr *)&at, n) || send(fd, to->token, sizeof(to->token), MSG_NOSIGNAL) != sizeof(to->token))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Strangers that come by are sent away. */
static int
answer(struct edges *e, const struct place *p, bool near)
{
	int64_t until = now_ns() + WAIT_MS * (IST_NS_PER_S / 1000);
	uint8_t token[16];

	while (now_ns() < until) {
		struct pollfd look = { .fd = e->listener, .events = POLLIN };
		int fd = poll(&look, 1, 100) == 1 ? tune(accept4(e->listener, NULL, NULL, SOCK_CLOEXEC), near) : -1;

		if (fd >= 0 && recv(fd, token, sizeof(token), MSG_WAITALL) == sizeof(token) && !memcmp(token, p->token, sizeof(token)))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -1;
}

/* *good is the same on all ranks. */
static int
connect_edges(struct bench *b, struct edges *e, bool *good)
{
	struct ist_blob *said = calloc(e->n, sizeof(*said));
	struct place *all = calloc(e->n, sizeof(*all)), own;
	double worst = 2;
	bool mine = true;
	int status = said && all ? EXIT_DONE : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");

	listen_here(b, e, &own);
	if (status == EXIT_DONE)
		status = bench_tell(b, &own, sizeof(own), said);
	if (status == EXIT_DONE) {
		e->one_host = true;
		for (uint32_t i = 0; i < e->n; i++) {
			if (said[i].bytes == sizeof(own))
				memcpy(&all[i], said[i].addr, sizeof(own));
			mine = mine && all[i].there;
			e->one_host = e->one_host && !memcmp(all[i].host, own.host, sizeof(own.host)) && !memcmp(all[i].address, own.address, 16);
		}
		ist_blobs_free(b->s.group, said, e->n);
		if (mine && e->rank + 1 < e->n)
			e->out = call(&all[e->rank + 1], e->one_host);
		if (mine && e->rank)
			e->in = answer(e, &own, e->one_host);
		mine = mine && (e->out >= 0 || e->rank + 1 == e->n) && (e->in >= 0 || !e->rank);
		status = bench_slowest(b, mine ? 1 : 2, &worst);
	}
	*good = status == EXIT_DONE && worst < 1.5;
	free(all);
	free(said);
	return status;
}

static uint8_t *
cut(struct edges *e, uint8_t *arena)
{
	return arena + e->at % (BENCH_ARENA / BYTES) * BYTES;
}

static void *
send_all(void *arg)
{
	struct edges *e = arg;
	const uint8_t *p = cut(e, e->from);

	for (uint64_t at = 0; at < BYTES;) {
		ssize_t n = send(e->out, p + at, BYTES - at < PIECE ? BYTES - at : PIECE, MSG_NOSIGNAL);

		if (n <= 0)
			return arg;
		at += (uint64_t)n;
	}
	return NULL;
}

/* Sleeps until a good deal has come, or the rest. */
static void
await_more(struct edges *e, uint64_t left)
{
	int low = left < LOW_WATER ? 1 : LOW_WATER;
	struct pollfd look = { .fd = e->in, .events = POLLIN };

	if (low != e->low)
		setsockopt(e->in, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
	e->low = low;
	poll(&look, 1, 1000);
}

static bool
receive_all(struct edges *e)
{
	uint8_t *p = cut(e, e->to);
	int64_t until = now_ns() + WAIT_MS * (IST_NS_PER_S / 1000);

	for (uint64_t at = 0; at < BYTES;) {
		ssize_t n = recv(e->in, p + at, BYTES - at < PIECE ? BYTES - at : PIECE, e->way == 1 ? MSG_WAITALL : e->way ? MSG_DONTWAIT : 0);

		if (n < 0 && errno == EAGAIN && e->way >= 2 && now_ns() < until) {
			if (e->way == 2)
				await_more(e, BYTES - at);
			else
				sched_yield();
			continue;
		}
		if (n <= 0)
			return false;
		at += (uint64_t)n;
	}
	return true;
}

/* What a rank in the middle sends is not what it receives, so no edge waits for another. */
static int
edges_once(struct bench *b, void *arg)
{
	struct edges *e = arg;
	bool sends = e->out >= 0 && (e->only == e->n || e->only == e->rank), takes = e->in >= 0 && (e->only == e->n || e->only + 1 == e->rank);
	pthread_t thread;
	void *bad = NULL;

	(void)b;
	if (sends && takes && pthread_create(&thread, NULL, send_all, e)) {
		e->failed = true;
		return EXIT_DONE;
	}
	if (takes)
		e->failed |= !receive_all(e);
	if (sends && takes)
		pthread_join(thread, &bad);
	else if (sends)
		bad = send_all(e);
	e->failed |= bad != NULL;
	e->at++;
	return EXIT_DONE;
}

static void
set_way(struct edges *e, int way)
{
	e->way = way;
	e->low = 1;
	if (e->in >= 0)
		setsockopt(e->in, SOL_SOCKET, SO_RCVLOWAT, &e->low, sizeof(e->low));
}

static double
best_of(struct bench *b, struct edges *e, uint32_t only, int *way, int *status)
{
	struct bench_row row = { .inner = 1, .once = edges_once, .arg = e };
	double best = 0, t, worst;

	e->only = only;
	for (int i = 0; *status == EXIT_DONE && i < TRIES; i++) {
		set_way(e, i % WAYS);
		*status = bench_sample(b, &row, &t);
		if (*status == EXIT_DONE && i >= WAYS && (best == 0 || t < best)) {
			best = t;
			*way = e->way;
		}
	}
	if (*status == EXIT_DONE)
		*status = bench_slowest(b, e->failed ? 2 : 1, &worst);
	return *status == EXIT_DONE && worst < 1.5 && best > 0 ? (double)BYTES / best / 1e9 : 0;
}

/* One edge after the other would take as many times longer as there are edges. */
static int
sample(struct bench *b, void *arg, double *gbps)
{
	struct edges *e = arg;
	struct bench_row row = { .inner = 1, .once = edges_once, .arg = e };
	double t = 0;
	int status = bench_sample(b, &row, &t);

	*gbps = t > 0 ? (double)BYTES / t / 1e9 / (e->only == e->n ? 1 : e->n - 1) : 0;
	return status;
}

static void
end(void *arg)
{
	struct edges *e = arg;

	if (e->in >= 0)
		close(e->in);
	if (e->out >= 0)
		close(e->out);
	if (e->listener >= 0)
		close(e->listener);
	free(e->from);
	free(e->to);
	free(e);
}

int
bench_socket_limit(struct bench *b, double *out)
{
	struct edges *e;
	double one = 0, all = 0;
	int status, way_one = 0, way_all = 0;
	bool good = false;

	*out = 0;
	if (b->s.world < 2)
		return EXIT_DONE;
	e = calloc(1, sizeof(*e));
	if (!e)
		return cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");
	*e = (struct edges){ .rank = b->s.rank, .n = b->s.world, .in = -1, .out = -1, .listener = -1 };
	e->from = bench_buffer(BENCH_ARENA);
	e->to = bench_buffer(BENCH_ARENA);
	status = e->from && e->to ? connect_edges(b, e, &good) : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "two buffers");
	if (status == EXIT_DONE && good) {
		one = best_of(b, e, 0, &way_one, &status);
		all = e->n > 2 ? best_of(b, e, e->n, &way_all, &status) : one;
		/* one host: the edges share its cores, and may do better one after the other */
		e->only = e->n > 2 && (!e->one_host || all >= one / (e->n - 1)) ? e->n : 0;
		set_way(e, e->only ? way_all : way_one);
		*out = e->only ? all : one / (e->n - 1);
		json_object_set_new(b->machine, "socket_gbps", json_real(one));
		json_object_set_new(b->machine, "socket_chain_gbps", json_real(all));
	}
	if (status == EXIT_DONE && *out > 0)
		b->limit = (struct bench_limit){ .sample = sample, .close = end, .arg = e };
	else
		end(e);
	return status;
}

void
bench_limit_end(struct bench *b)
{
	if (b->limit.close)
		b->limit.close(b->limit.arg);
	b->limit = (struct bench_limit){ .sample = NULL };
}

/* Memory counts where nobody reaches anybody over TCP; the same answer on all ranks. */
int
bench_limit(struct bench *b)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	double far;
	int status;

	b->limit_gbps = 0;
	if (b->s.world < 2)
		return EXIT_DONE;
	far = ist_group_info(b->s.group, &info, NULL) == IST_OK && !info.tcp_pairs && info.n_same_host == info.size ? 1 : 2;
	status = bench_slowest(b, far, &far);
	if (status != EXIT_DONE)
		return status;
	return far > 1.5 ? bench_socket_limit(b, &b->limit_gbps) : bench_memory_limit(b, &b->limit_gbps);
}
