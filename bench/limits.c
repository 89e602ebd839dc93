/* SPDX-License-Identifier: Apache-2.0
 *
 * limits.c - what this machine can do without any library: copies in one process, reads out of another one's memory, bytes
 * through loopback sockets. Same command line and lines as the peers (peers/peer.h); what the rows of a result are
 * compared with. The limit of a broadcast by all ranks together is measured by the isthmus program, among its own ranks.
 *
 *     memcpy, memcpy2   libc's copy by one thread, by two    BYTES each
 *     stream, stream2   the best of three copies with stores that go past the caches
 *     readv             process_vm_readv from one process into another
 *     socket            one byte stream into each of ranks-1 receivers at once, from cold into cold buffers
 *     file, mapped      reads of a cached file: read(2), and a copy from its mapping
 */
#define _GNU_SOURCE
#include "crew.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PAGE 4096
#define PIECE (UINT64_C(512) << 10)
#define LOW_WATER (128 << 10)
#define WAIT_S 20

struct self {
	const struct peer_args *args;
	struct crew *crew;
	int rank, ranks;
	struct peer_arena from, to;
	int out, in;                 /* sockets to the next rank, from the one before; -1: none */
	int way;                     /* of receiving */
	int low;                     /* SO_RCVLOWAT as it is */
};

typedef void copy_fn(uint8_t *to, const uint8_t *from, uint64_t bytes);

/* ---- copies ---- */

static void
copy_libc(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
}

#if defined(__x86_64__)
static void
copy_rep(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

/* bytes: a multiple of streams pages. As many pages side by side as the prefetcher follows. */
__attribute__((target("avx2"))) static inline void
copy_pages(uint8_t *to, const uint8_t *from, uint64_t bytes, uint64_t streams)
{
	for (uint64_t at = 0; at < bytes; at += streams * PAGE)
		for (uint64_t i = 0; i < PAGE; i += 32)
			for (uint64_t s = 0; s < streams; s++) {
				uint64_t place = at + s * PAGE + i;

				_mm256_stream_si256((void *)(to + place), _mm256_load_si256((const void *)(from + place)));
			}
	_mm_sfence();
}

__attribute__((target("avx2"))) static void
copy_stream1(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	copy_pages(to, from, bytes, 1);
}

__attribute__((target("avx2"))) static void
copy_stream4(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	copy_pages(to, from, bytes, 4);
}
#endif

struct copy {
	copy_fn *fn;
	uint8_t *to;
	const uint8_t *from;
	uint64_t bytes;
	pthread_barrier_t *go;
};

static void *
copy_half(void *arg)
{
	struct copy *c = arg;

	pthread_barrier_wait(c->go);
	c->fn(c->to, c->from, c->bytes);
	pthread_barrier_wait(c->go);
	return NULL;
}

static double
copy_by_two(struct copy c)
{
	pthread_barrier_t go;
	struct copy other = c;
	pthread_t thread;
	double start;

	pthread_barrier_init(&go, NULL, 2);
	c.bytes /= 2;
	other.bytes = c.bytes;
	other.to += c.bytes;
	other.from += c.bytes;
	c.go = other.go = &go;
	if (pthread_create(&thread, NULL, copy_half, &other))
		return 0;
	pthread_barrier_wait(&go);
	start = peer_now();
	c.fn(c.to, c.from, c.bytes);
	pthread_barrier_wait(&go);
	start = peer_now() - start;
	pthread_join(thread, NULL);
	return start;
}

static double
copy_once(struct self *self, copy_fn *fn, uint64_t bytes, bool two)
{
	struct copy c = { .fn = fn, .to = peer_cut(&self->to, bytes), .from = peer_cut(&self->from, bytes), .bytes = bytes };
	double start = peer_now();

	if (two)
		return copy_by_two(c);
	fn(c.to, c.from, bytes);
	return peer_now() - start;
}

/* The copy that is fastest here, by a try of each. */
static copy_fn *
best_copy(struct self *self, uint64_t bytes, bool two, const char **name)
{
#if defined(__x86_64__)
	static const struct { copy_fn *fn; const char *name; } all[] = { { copy_rep, "rep movsb" }, { copy_stream1, "one stream" }, { copy_stream4, "four streams" } };
	copy_fn *best = copy_rep;
	double least = 1e9;

	for (size_t i = 0; __builtin_cpu_supports("avx2") && i < sizeof(all) / sizeof(all[0]); i++)
		for (int k = 0; k < 3; k++) {
			double t = copy_once(self, all[i].fn, bytes, two);

			if (k && t < least) {
				least = t;
				best = all[i].fn;
				*name = all[i].name;
			}
		}
	return best;
#else
	(void)self, (void)bytes, (void)two;
	*name = "libc";
	return copy_libc;
#endif
}

/* ---- another process's memory ---- */

static double
readv_once(struct self *self, uint64_t bytes)
{
	uint8_t *here = peer_cut(&self->to, bytes), *there = peer_cut(&self->from, bytes);
	double start;

	self->crew->word[self->rank] = self->rank ? 0 : (uint64_t)(uintptr_t)there;
	self->crew->word[PEER_RANKS - 1 - self->rank] = (uint64_t)getpid();
	crew_meet(self->crew);
	start = peer_now();
	for (uint64_t at = 0; self->rank == 1 && at < bytes; at += 1 << 20) {
		struct iovec to = { here + at, bytes - at < 1 << 20 ? bytes - at : 1 << 20 };
		struct iovec from = { (uint8_t *)(uintptr_t)self->crew->word[0] + at, to.iov_len };

		if (process_vm_readv((pid_t)self->crew->word[PEER_RANKS - 1], &to, 1, &from, 1, 0) != (ssize_t)to.iov_len)
			return -1;
	}
	start = peer_now() - start;
	crew_meet(self->crew);
	return start;
}

/* ---- sockets ---- */

static int
tuned(int fd)
{
	struct timeval wait = { .tv_sec = WAIT_S };
	const int on = 1;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
	return fd;
}

/* Rank r is connected to r + 1: the edges of a chain. */
static bool
open_sockets(struct self *self)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(listener, (struct sockaddr *)&at, n) || listen(listener, 1) || getsockname(listener, (struct sockaddr *)&at, &n))
		return false;
	self->crew->word[self->rank] = at.sin_port;
	crew_meet(self->crew);
	if (self->rank + 1 < self->ranks) {
		self->out = tuned(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
		at.sin_port = (in_port_t)self->crew->word[self->rank + 1];
		if (connect(self->out, (struct sockaddr *)&at, sizeof(at)))
			return false;
	}
	if (self->rank)
		self->in = tuned(accept(listener, NULL, NULL));
	close(listener);
	crew_meet(self->crew);
	return true;
}

static void *
send_all(void *arg)
{
	struct self *self = arg;
	uint64_t bytes = self->crew->word[PEER_RANKS - 1];
	const uint8_t *p = peer_cut(&self->from, bytes);

	for (uint64_t at = 0; at < bytes;) {
		ssize_t n = send(self->out, p + at, bytes - at < PIECE ? bytes - at : PIECE, MSG_NOSIGNAL);

		if (n <= 0)
			return arg;
		at += (uint64_t)n;
	}
	return NULL;
}

/* Sleeps until a good deal has come, or the rest. */
static void
await_more(struct self *self, uint64_t left)
{
	int low = left < LOW_WATER ? 1 : LOW_WATER;
	struct pollfd look = { .fd = self->in, .events = POLLIN };

	if (low != self->low)
		setsockopt(self->in, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
	self->low = low;
	poll(&look, 1, 1000);
}

static bool
receive_all(struct self *self, uint64_t bytes)
{
	uint8_t *p = peer_cut(&self->to, bytes);
	double until = peer_now() + WAIT_S;

	for (uint64_t at = 0; at < bytes;) {
		ssize_t n = recv(self->in, p + at, bytes - at < PIECE ? bytes - at : PIECE, self->way == 1 ? MSG_WAITALL : self->way ? MSG_DONTWAIT : 0);

		if (n < 0 && errno == EAGAIN && self->way >= 2 && peer_now() < until) {
			if (self->way == 2)
				await_more(self, bytes - at);
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

/* Ways of receiving: whatever is there; whole pieces; woken when an eighth of a MiB is there; never asleep. */
static const char *const ways[] = { "as it comes", "whole pieces", "low water", "spinning" };
#define WAYS 4

static void
set_way(struct self *self, int way)
{
	const int low = 1;

	self->way = way;
	self->low = low;
	if (self->in >= 0)
		setsockopt(self->in, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
}

/* What a rank in the middle sends is not what it receives: no edge waits for another one, so no chain is faster. */
static double
socket_once(struct self *self, uint64_t bytes)
{
	pthread_t thread;
	void *bad = NULL;
	bool middle = self->rank && self->rank + 1 < self->ranks, good = true;
	double start;

	self->crew->word[PEER_RANKS - 1] = bytes;
	crew_meet(self->crew);
	start = peer_now();
	if (middle && pthread_create(&thread, NULL, send_all, self))
		return -1;
	if (self->rank)
		good = receive_all(self, bytes);
	else
		bad = send_all(self);
	if (middle)
		pthread_join(thread, &bad);
	start = peer_now() - start;
	crew_meet(self->crew);
	return bad || !good ? -1 : start;
}

/* The way that is fastest here; ranks agree, since they all take the slowest one's time. */
static const char *
best_way(struct self *self, uint64_t bytes)
{
	double least = 1e9;
	int best = 0;

	for (int i = 0; i < 3 * WAYS; i++) {
		double t;

		set_way(self, i % WAYS);
		t = crew_slowest(self->crew, self->rank, self->ranks, socket_once(self, bytes));
		if (i >= WAYS && t > 0 && t < least) {
			least = t;
			best = i % WAYS;
		}
	}
	set_way(self, best);
	return ways[best];
}

/* ---- a cached file ---- */

static int
make_file(uint64_t bytes, const uint8_t *from)
{
	int fd = (int)syscall(SYS_memfd_create, "bench-limits", 1u);

	for (uint64_t at = 0; fd >= 0 && at < bytes;) {
		ssize_t n = write(fd, from + at, bytes - at);

		if (n <= 0)
			return -1;
		at += (uint64_t)n;
	}
	return fd;
}

static double
file_once(int fd, const uint8_t *map, uint8_t *piece, uint64_t bytes)
{
	double start = peer_now();

	for (uint64_t at = 0; at < bytes; at += PIECE) {
		if (map)
			memcpy(piece, map + at, PIECE);
		else if (pread(fd, piece, PIECE, (off_t)at) != (ssize_t)PIECE)
			return -1;
		__asm__ volatile("" : : "r"(piece) : "memory");
	}
	return peer_now() - start;
}

/* ---- rows ---- */

struct row {
	copy_fn *fn;
	bool two;
	int fd;
	const uint8_t *map;
	const char *how;
};

static bool
prepare(struct self *self, const struct peer_item *item, struct row *row)
{
	const char *what = item->what;

	*row = (struct row){ .fd = -1, .how = "" };
	row->two = what[strlen(what) - 1] == '2';
	if (!strncmp(what, "memcpy", 6))
		row->fn = copy_libc;
	else if (!strncmp(what, "stream", 6))
		row->fn = best_copy(self, item->bytes, row->two, &row->how);
	else if (!strcmp(what, "socket")) {
		if (self->out < 0 && self->in < 0 && !open_sockets(self))
			return false;
		row->how = best_way(self, item->bytes < 64 << 20 ? item->bytes : 64 << 20);
	} else if (!strcmp(what, "file") || !strcmp(what, "mapped")) {
		row->fd = make_file(item->bytes, self->from.base);
		if (row->fd >= 0 && what[0] == 'm')
			row->map = mmap(NULL, item->bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, row->fd, 0);
		return row->fd >= 0 && row->map != MAP_FAILED;
	}
	return true;
}

static double
once(struct self *self, const struct peer_item *item, const struct row *row)
{
	if (row->fn)
		return self->rank ? 0 : copy_once(self, row->fn, item->bytes, row->two);
	if (row->fd >= 0)
		return self->rank ? 0 : file_once(row->fd, row->map, self->to.base, item->bytes);
	return !strcmp(item->what, "socket") ? socket_once(self, item->bytes) : readv_once(self, item->bytes);
}

static int
measure(struct self *self, const struct peer_item *item)
{
	double at[PEER_REPEAT], seconds[PEER_REPEAT], t = 0;
	struct row row;

	if (!prepare(self, item, &row))
		return 1;
	for (int i = -1; t >= 0 && i < self->args->repeat; i++) {
		crew_meet(self->crew);
		at[i < 0 ? 0 : i] = peer_now();
		t = once(self, item, &row);
		seconds[i < 0 ? 0 : i] = crew_slowest(self->crew, self->rank, self->ranks, t);
	}
	if (row.map)
		munmap((void *)(uintptr_t)row.map, item->bytes);
	if (row.fd >= 0)
		close(row.fd);
	if (t >= 0 && self->rank == 0)
		peer_print(self->args, item, row.how, 1, at, seconds, self->args->repeat);
	return t < 0;
}

static int
member(struct crew *crew, int rank, void *arg)
{
	struct self self = { .args = arg, .crew = crew, .rank = rank, .out = -1, .in = -1 };
	int bad = !peer_arena_new(&self.from, arg) || !peer_arena_new(&self.to, arg);

	self.ranks = self.args->ranks;
	for (int i = 0; !bad && i < self.args->n_items; i++) {
		bad = measure(&self, &self.args->items[i]);
		if (bad && rank <= 1)
			fprintf(stderr, "limits: %s can't be measured here\n", self.args->items[i].what);
	}
	return bad;
}

int
main(int argc, char **argv)
{
	struct peer_args args;

	return peer_parse(&args, argc, argv) ? crew_run(args.ranks, member, &args) : 2;
}
