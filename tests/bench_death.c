/* SPDX-License-Identifier: Apache-2.0
 *
 * How long after a SIGKILL do all others know it, and whom? Not a test: prints milliseconds.
 *
 *     bench_death [GIB [KILLS [far]]]
 *
 * Four members; the last one has GIB GiB resident and is killed while the others wait in a barrier, KILLS times. A sample is
 * the time from just before the kill until the last of them has PEER_LOST with that rank in hand. The kernel closes what a
 * dead process had open when its memory is freed; a pipe tells when, and the time from there on is printed too.
 *
 * far: it is on another host, as far as the library can see: in a network namespace of its own, at the other end of a veth
 * pair. Needs root and iproute2.
 */
#include "ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMBERS = 4, VICTIM = MEMBERS - 1 };

struct board {
	_Atomic uint32_t round, waiting, told;
	_Atomic int64_t at[MEMBERS];
	uint64_t bytes;
	pid_t far; /* whose network namespace the victim is in; 0: ours */
};

struct sample {
	int64_t from_kill, to_close, from_close;
};

static int64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- the other host ---- */

/* A process that keeps a namespace, joined with ours, which is new too, by a veth pair. */
static pid_t
far_host(void)
{
	char line[512];
	int ready[2];
	pid_t pid;
	char c;

	CHECK(unshare(CLONE_NEWNET) == 0 && pipe(ready) == 0);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(unshare(CLONE_NEWNET) == 0 && system("ip link set lo up") == 0 && write(ready[1], "", 1) == 1);
		for (;;)
			pause();
	}
	CHECK(pid > 0 && read(ready[0], &c, 1) == 1);
	close(ready[0]);
	close(ready[1]);
	snprintf(line, sizeof(line), "ip link set lo up && ip link add near0 type veth peer name far0 netns %d && ip addr add 10.78.0.1/24 dev near0 && "
		"ip link set near0 up && nsenter -t %d -n sh -c 'ip addr add 10.78.0.2/24 dev far0 && ip link set far0 up'", (int)pid, (int)pid);
	CHECK(system(line) == 0);
	return pid;
}

static void
go_far(pid_t pid)
{
	char path[64];
	int fd;

	if (pid == 0)
		return;
	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && setns(fd, CLONE_NEWNET) == 0);
	close(fd);
}

/* ---- members ---- */

static void
begin(struct member *m)
{
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .insecure = 1 };

	memset(m, 0, sizeof(*m));
	ist_error_init(&m->err);
	CHECK_ERR(IST_OK, ist_env_new(NULL, &m->env, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_endpoint_new(m->env, &pa, &m->ep, &m->err), &m->err);
}

static void
join(struct member *m, struct ranks *r, uint32_t rank, uint32_t round)
{
	char name[32];

	snprintf(name, sizeof(name), "death-%u", round);
	CHECK_ERR(IST_OK, member_join(m, r->at, name, rank, MEMBERS, 60, 30), &m->err);
	CHECK_ERR(IST_OK, ist_barrier(m->g, 60 * IST_NS_PER_S, &m->err), &m->err);
}

static int
survive(struct ranks *r, uint32_t rank, void *arg)
{
	struct board *b = r->shared;
	uint32_t kills = *(uint32_t *)arg;
	struct member m;

	begin(&m);
	for (uint32_t i = 1; i <= kills; i++) {
		join(&m, r, rank, i);
		atomic_fetch_add(&b->waiting, 1);
		CHECK_ERR(IST_PEER_LOST, ist_barrier(m.g, 60 * IST_NS_PER_S, &m.err), &m.err);
		atomic_store(&b->at[rank], now_ns());
		CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == VICTIM);
		ist_group_free(m.g);
		m.g = NULL;
		atomic_fetch_add(&b->told, 1);
	}
	member_fini(&m);
	return 0;
}

static int
die(struct ranks *r, uint32_t rank, void *arg)
{
	struct board *b = r->shared;
	struct member m;
	char *big = NULL;

	(void)arg;
	go_far(b->far);
	if (b->bytes) {
		big = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(big != MAP_FAILED);
		madvise(big, b->bytes, MADV_NOHUGEPAGE); /* the slow way to go: page by page */
		for (uint64_t i = 0; i < b->bytes; i += 4096)
			big[i] = 1;
	}
	begin(&m);
	join(&m, r, rank, atomic_load(&b->round));
	atomic_fetch_add(&b->waiting, 1);
	for (;;)
		pause();
}

/* ---- the one who kills ---- */

static struct sample
kill_one(struct ranks *r, struct board *b, uint32_t round)
{
	struct pollfd p = { .events = 0 };
	int64_t start, closed, last = 0;
	int held[2];
	pid_t pid;

	CHECK(pipe2(held, O_CLOEXEC) == 0);
	atomic_store(&b->round, round);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(die(r, VICTIM, NULL));
	}
	close(held[1]); /* the victim alone has it now */
	ranks_await(&b->waiting, round * MEMBERS);
	usleep(20000); /* until all are asleep: the bare case */
	p.fd = held[0];
	start = now_ns();
	kill(pid, SIGKILL);
	CHECK(poll(&p, 1, 60000) == 1 && p.revents & POLLHUP);
	closed = now_ns();
	ranks_await(&b->told, round * VICTIM);
	for (uint32_t k = 0; k < VICTIM; k++)
		last = atomic_load(&b->at[k]) > last ? atomic_load(&b->at[k]) : last;
	waitpid(pid, NULL, 0);
	close(held[0]);
	return (struct sample){ last - start, closed - start, last - closed };
}

static int
by_size(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static void
show(const char *what, const struct sample *samples, size_t field, uint32_t n)
{
	int64_t *ns = calloc(n, sizeof(*ns));

	CHECK(ns);
	for (uint32_t i = 0; i < n; i++)
		memcpy(&ns[i], (const char *)&samples[i] + field, sizeof(*ns));
	qsort(ns, n, sizeof(*ns), by_size);
	printf("  %s: p50 %.2f, p99 %.2f, max %.2f\n", what, (double)ns[n / 2] / 1e6, (double)ns[(uint64_t)(n - 1) * 99 / 100] / 1e6, (double)ns[n - 1] / 1e6);
	free(ns);
}

int
main(int argc, char **argv)
{
	double gib = argc > 1 ? strtod(argv[1], NULL) : 0;
	uint32_t kills = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 50;
	struct sample *samples = calloc(kills + 1, sizeof(*samples));
	struct ranks r;
	struct board *b;

	ranks_init(&r, VICTIM);
	b = r.shared;
	b->bytes = (uint64_t)(gib * (1 << 30));
	if (argc > 3 && !strcmp(argv[3], "far")) {
		b->far = far_host();
		snprintf(r.at, sizeof(r.at), "tcp://10.78.0.1:29700");
	}
	ranks_start_all(&r, survive, &kills);
	for (uint32_t i = 1; samples && i <= kills; i++)
		samples[i - 1] = kill_one(&r, b, i);
	CHECK(samples && ranks_join(&r, 60, 0) == 0);
	for (uint32_t i = 0; i < kills; i++) /* for bench/run */
		printf("death %.3f\n", (double)samples[i].from_kill / 1e6);
	printf("%.1f GiB resident%s, %u kills, ms\n", gib, b->far ? ", on another host" : "", kills);
	show("from the kill until all know", samples, offsetof(struct sample, from_kill), kills);
	show("from the kill until the kernel closes", samples, offsetof(struct sample, to_close), kills);
	show("from there until all know", samples, offsetof(struct sample, from_close), kills);
	if (b->far)
		kill(b->far, SIGKILL);
	ranks_fini(&r);
	free(samples);
	return 0;
}
