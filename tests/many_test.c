/* SPDX-License-Identifier: Apache-2.0
 *
 * Many members on one machine: they form, gather, move bytes, lose three at once and name exactly those; the others split
 * off a group and work on. What each member keeps stays small: connections O(log n), descriptors and mappings bounded.
 *
 *     many_test [MEMBERS]       prints what it took; MANY in the environment says the same
 */
#include "ranks.h"

#include <isthmus.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOST = 3, HANG_S = 500, DESCRIPTORS = 1024, BULK = 200 << 10, ROOM = 48, KEEP = 64, SPARES = 16 /* held back by the loop */ };

struct cost {
	uint32_t fds, sockets, maps, threads;
	uint64_t rss_kib, pss_kib, shm_kib;
};

struct shared {
	_Atomic uint32_t told[8]; /* members that are through a step */
	uint32_t n, victims[LOST];
	double formed, split;     /* seconds it took rank 0 */
	struct cost cost[];
};

enum step { FORMED, WAITING, NAMED, SPLIT, DONE };

static void
tell(struct shared *s, enum step step)
{
	atomic_fetch_add(&s->told[step], 1);
	syscall(SYS_futex, &s->told[step], FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* A member that failed has said why; the others would wait for it. */
static void
look_for_failed(struct ranks *r)
{
	for (uint32_t i = 0; r && i < r->n; i++) {
		siginfo_t info = { .si_pid = 0 };

		if (waitid(P_PID, (id_t)r->pid[i], &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid == 0)
			continue;
		CHECK(info.si_code == CLD_EXITED ? info.si_status == 0 : r->may_die[i]);
	}
}

/* Asleep: hundreds that spin would be the load. r: NULL in a member. */
static void
await(struct shared *s, enum step step, uint32_t n, struct ranks *r)
{
	double until = now_s() + HANG_S;
	uint32_t v;

	while ((v = atomic_load(&s->told[step])) < n) {
		struct timespec t = { .tv_sec = 1 };

		CHECK(now_s() < until);
		look_for_failed(r);
		syscall(SYS_futex, &s->told[step], FUTEX_WAIT, v, &t, NULL, 0);
	}
}

/* ---- what a member keeps ---- */

static uint32_t
count_sockets(void)
{
	uint32_t n = 0;

	for (int fd = 0; fd < DESCRIPTORS; fd++) {
		struct stat st;

		n += fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
	}
	return n;
}

static uint64_t
kib_of(const char *path, const char *key)
{
	FILE *f = fopen(path, "re");
	unsigned long long kib = 0;
	size_t len = strlen(key);
	char line[256];

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, key, len))
			kib = strtoull(line + len, NULL, 10);
	fclose(f);
	return kib;
}

/* Those of the group: what a sanitizer maps is its own affair. */
static uint32_t
count_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	uint32_t n = 0;
	char line[512];

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:isthmus") != NULL;
	fclose(f);
	return n;
}

static void
look(struct cost *c)
{
	*c = (struct cost){ .fds = count_fds() - 3, .sockets = count_sockets(), .maps = count_maps(), .threads = count_threads() - 2,
		.rss_kib = kib_of("/proc/self/smaps_rollup", "Rss:"), .pss_kib = kib_of("/proc/self/smaps_rollup", "Pss:"),
		.shm_kib = kib_of("/proc/self/status", "RssShmem:") };
}

/* How many share memory: all, or rooms of equal size, see first_of_room in src/group/wire_up.c. */
static uint32_t
room_least(uint32_t n)
{
	return n / ((n + ROOM - 1) / ROOM);
}

static uint32_t
log2_of(uint32_t n)
{
	uint32_t k = 0;

	while (1u << k < n)
		k++;
	return k;
}

/* The links, and a few beside: what it listens on, its lease, data to the rooms beside its own. Rank 0 hosts the meeting
 * place, where the first members keep a connection. Two descriptors and two mappings for each of its room. */
static void
check_costs(const struct cost *before, const struct cost *now, uint32_t rank, uint32_t n)
{
	uint32_t sockets = 2 * log2_of(n) + 10 + (rank == 0 ? KEEP : 0);

	CHECK(now->sockets - before->sockets <= sockets);
	CHECK(now->fds - before->fds <= sockets + 2 * ROOM + 16 + SPARES);
	CHECK(now->maps - before->maps <= 2 * ROOM + 8);
	CHECK(now->shm_kib <= 16 << 10);
}

/* ---- a member ---- */

static void
gather(struct ist_group *g, uint32_t rank, uint32_t n, struct ist_error *err)
{
	struct ist_blob *all = calloc(n, sizeof(*all));
	char mine[64], want[64];
	int bytes = snprintf(mine, sizeof(mine), "rank %u of %u", rank, n);

	CHECK_ERR(IST_OK, ist_all_gather_bytes(g, mine, (uint64_t)bytes, 0, all, err), err);
	for (uint32_t r = 0; r < n; r++) {
		bytes = snprintf(want, sizeof(want), "rank %u of %u", r, n);
		CHECK(all[r].bytes == (uint64_t)bytes && !memcmp(all[r].addr, want, (size_t)bytes));
	}
	ist_blobs_free(g, all, n);
	free(all);
	for (int i = 0; i < 3; i++)
		CHECK_ERR(IST_OK, ist_barrier(g, 0, err), err);
}

static void
wait_for(struct ist_req *req, struct ist_error *err)
{
	CHECK_ERR(IST_OK, ist_req_wait(req, 0, err), err);
	ist_req_free(req);
}

/* By the backend: a broadcast from the last one, and bytes round the ring. */
static void
move(struct ist_group *g, uint32_t rank, uint32_t n, struct ist_error *err)
{
	uint8_t *a = malloc(BULK), *b = malloc(BULK);
	struct ist_coll_args cast = { .struct_size = sizeof(cast), .peer = n - 1 };
	struct ist_coll_args to = { .struct_size = sizeof(to), .peer = (rank + 1) % n };
	struct ist_coll_args from = { .struct_size = sizeof(from), .peer = (rank + n - 1) % n };
	struct ist_req *req, *other;

	CHECK(a && b);
	for (uint32_t i = 0; i < BULK; i++)
		a[i] = rank == n - 1 ? (uint8_t)(i * 31 + i / 999) : 0;
	cast.src = cast.dst = (struct ist_buf){ .addr = a, .bytes = BULK, .device = -1 };
	CHECK_ERR(IST_OK, ist_broadcast(g, &cast, &req, err), err);
	wait_for(req, err);
	for (uint32_t i = 0; i < BULK; i++)
		CHECK(a[i] == (uint8_t)(i * 31 + i / 999));
	memset(a, (int)(rank & 255), BULK);
	to.src = (struct ist_buf){ .addr = a, .bytes = BULK, .device = -1 };
	from.dst = (struct ist_buf){ .addr = b, .bytes = BULK, .device = -1 };
	CHECK_ERR(IST_OK, ist_recv(g, &from, &req, err), err);
	CHECK_ERR(IST_OK, ist_send(g, &to, &other, err), err);
	wait_for(req, err);
	wait_for(other, err);
	for (uint32_t i = 0; i < BULK; i++)
		CHECK(b[i] == (from.peer & 255));
	free(a);
	free(b);
}

/* PEER_LOST names one; that all three are known, and nobody else, says the list. */
static void
name_the_lost(struct shared *s, struct ist_group *g, struct ist_error *err)
{
	double until = now_s() + HANG_S;
	uint32_t ranks[DESCRIPTORS], n;
	bool named = false;

	CHECK_ERR(IST_PEER_LOST, ist_barrier(g, 0, err), err);
	CHECK(err->n_ranks == 1);
	for (uint32_t i = 0; i < LOST; i++)
		named |= err->ranks[0] == s->victims[i];
	CHECK(named);
	do {
		struct timespec t = { .tv_nsec = 10000000 };

		n = s->n;
		CHECK_ERR(IST_OK, ist_group_lost(g, ranks, &n, err), err);
		CHECK(now_s() < until);
		if (n < LOST)
			nanosleep(&t, NULL);
	} while (n < LOST);
	CHECK(n == LOST);
	for (uint32_t i = 0; i < LOST; i++)
		CHECK(ranks[i] == s->victims[i]);
}

static void
go_on(struct shared *s, struct ist_group *g, uint32_t rank, struct ist_error *err)
{
	uint32_t *left = calloc(s->n, sizeof(*left)), n = 0, place = 0;
	struct ist_split_args args = { .struct_size = sizeof(args), .name = "left", .timeout_ns = HANG_S * IST_NS_PER_S };
	struct ist_group *child;
	double start = now_s();

	for (uint32_t r = 0; r < s->n; r++) {
		if (r == rank)
			place = n;
		if (r != s->victims[0] && r != s->victims[1] && r != s->victims[2])
			left[n++] = r;
	}
	args.ranks = left;
	args.n_ranks = n;
	CHECK_ERR(IST_OK, ist_group_split(g, &args, &child, err), err);
	if (rank == 0)
		s->split = now_s() - start;
	tell(s, SPLIT);
	gather(child, place, n, err);
	await(s, SPLIT, n, NULL);
	CHECK_ERR(IST_OK, ist_group_free(child), err);
	free(left);
}

static int
live(struct ranks *r, uint32_t rank, void *arg)
{
	struct shared *s = arg;
	struct cost *c = &s->cost[rank];
	struct ist_group_info info = { .struct_size = sizeof(info) };
	double start = now_s();
	struct cost before;
	struct member m;

	look(&before);
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "many", rank, s->n, HANG_S, 0), &m.err);
	if (rank == 0)
		s->formed = now_s() - start;
	gather(m.g, rank, s->n, &m.err);
	move(m.g, rank, s->n, &m.err);
	CHECK_ERR(IST_OK, ist_group_info(m.g, &info, &m.err), &m.err);
	tell(s, FORMED);
	await(s, FORMED, s->n, NULL); /* nobody's links of forming linger */
	look(c);
	check_costs(&before, c, rank, s->n);
	CHECK(info.shm_pairs + 1 >= room_least(s->n) && info.shm_pairs < ROOM && info.n_same_host == s->n);
	CHECK(info.n_links <= 2 * log2_of(s->n));
	tell(s, WAITING);
	for (uint32_t i = 0; i < LOST; i++)
		while (rank == s->victims[i])
			pause();
	name_the_lost(s, m.g, &m.err);
	tell(s, NAMED);
	go_on(s, m.g, rank, &m.err);
	name_the_lost(s, m.g, &m.err); /* still these, and nobody else */
	tell(s, DONE);
	await(s, DONE, s->n - LOST, NULL);
	member_fini(&m);
	return 0;
}

/* ---- the report ---- */

#define SUMMARY(field) \
	do { \
		uint64_t sum_ = 0, top_ = 0; \
		for (uint32_t r_ = 0; r_ < s->n; r_++) { \
			sum_ += s->cost[r_].field; \
			top_ = s->cost[r_].field > top_ ? s->cost[r_].field : top_; \
		} \
		printf("  %-9s mean %llu, most %llu\n", #field, (unsigned long long)(sum_ / s->n), (unsigned long long)top_); \
	} while (0)

static void
report(const struct shared *s, double named)
{
	printf("%u members: formed in %.2f s, named %u lost in %.3f s, split in %.2f s\n", s->n, s->formed, LOST, named, s->split);
	SUMMARY(fds);
	SUMMARY(sockets);
	SUMMARY(maps);
	SUMMARY(threads);
	SUMMARY(rss_kib);
	SUMMARY(pss_kib);
	SUMMARY(shm_kib);
	fflush(stdout);
}

int
main(int argc, char **argv)
{
	const char *many = argc > 1 ? argv[1] : getenv("MANY");
	uint32_t n = many ? (uint32_t)strtoul(many, NULL, 10) : 128;
	size_t bytes = sizeof(struct shared) + n * sizeof(struct cost);
	struct shared *s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct rlimit few = { DESCRIPTORS, DESCRIPTORS };
	struct ranks r;
	double start, named;

	CHECK(n >= 8 && s != MAP_FAILED);
	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
	ranks_init(&r, n);
	s->n = n;
	s->victims[0] = 1;
	s->victims[1] = n / 2;
	s->victims[2] = n - 1;
	ranks_start_all(&r, live, s);
	await(s, WAITING, n, &r);
	start = now_s();
	for (uint32_t i = 0; i < LOST; i++) {
		r.may_die[s->victims[i]] = true;
		kill(r.pid[s->victims[i]], SIGKILL);
	}
	await(s, NAMED, n - LOST, &r);
	named = now_s() - start;
	CHECK(ranks_join(&r, HANG_S, 0) == 0);
	report(s, named);
	ranks_fini(&r);
	return 0;
}
