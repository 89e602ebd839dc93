/* SPDX-License-Identifier: Apache-2.0
 *
 * How long after a SIGKILL do all others of the same host know it, and whom? Not a test: prints milliseconds.
 *
 *     bench_death [GIB [KILLS]]
 *
 * Four members; the last one has GIB GiB resident and is killed while the others wait in a barrier, KILLS times. A sample is
 * the time from just before the kill until the last of them has PEER_LOST with that rank in hand.
 */
#include "ranks.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMBERS = 4, VICTIM = MEMBERS - 1 };

struct board {
	_Atomic uint32_t round, waiting, told;
	_Atomic int64_t at[MEMBERS];
	uint64_t bytes;
};

static int64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
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

	member_init(&m, IST_TRANSPORT_AUTO);
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
	if (b->bytes) {
		big = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(big != MAP_FAILED);
		madvise(big, b->bytes, MADV_NOHUGEPAGE); /* the slow way to go: page by page */
		for (uint64_t i = 0; i < b->bytes; i += 4096)
			big[i] = 1;
	}
	member_init(&m, IST_TRANSPORT_AUTO);
	join(&m, r, rank, atomic_load(&b->round));
	atomic_fetch_add(&b->waiting, 1);
	for (;;)
		pause();
}

static int
by_size(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

int
main(int argc, char **argv)
{
	double gib = argc > 1 ? strtod(argv[1], NULL) : 0;
	uint32_t kills = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 50;
	int64_t *ns = calloc(kills + 1, sizeof(*ns));
	struct ranks r;
	struct board *b;

	ranks_init(&r, VICTIM);
	b = r.shared;
	b->bytes = (uint64_t)(gib * (1 << 30));
	ranks_start_all(&r, survive, &kills);
	for (uint32_t i = 1; ns && i <= kills; i++) {
		int64_t start;
		pid_t pid;

		atomic_store(&b->round, i);
		pid = fork();
		if (pid == 0)
			_exit(die(&r, VICTIM, NULL));
		ranks_await(&b->waiting, i * MEMBERS);
		usleep(20000); /* until all are asleep: the bare case */
		start = now_ns();
		kill(pid, SIGKILL);
		ranks_await(&b->told, i * VICTIM);
		for (uint32_t k = 0; k < VICTIM; k++)
			if (atomic_load(&b->at[k]) - start > ns[i - 1])
				ns[i - 1] = atomic_load(&b->at[k]) - start;
		waitpid(pid, NULL, 0);
	}
	CHECK(ns && ranks_join(&r, 60, 0) == 0);
	for (uint32_t i = 0; i < kills; i++) /* for bench/run */
		printf("death %.3f\n", (double)ns[i] / 1e6);
	qsort(ns, kills, sizeof(*ns), by_size);
	printf("%.1f GiB resident, %u kills, ms until all know: p50 %.2f, p99 %.2f, max %.2f\n", gib, kills, (double)ns[kills / 2] / 1e6,
		(double)ns[(uint64_t)(kills - 1) * 99 / 100] / 1e6, (double)ns[kills - 1] / 1e6);
	ranks_fini(&r);
	free(ns);
	return 0;
}
