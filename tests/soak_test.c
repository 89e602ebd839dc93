/* SPDX-License-Identifier: Apache-2.0
 *
 * soak_test.c - the same thing thousands of times leaves nothing behind: barriers, updates of 8 MiB, whole groups. Each
 * member looks a hundred times at what it holds: a least-squares line through what it saw must not rise, nor the least number of
 * descriptors.
 *
 *     soak_test [BARRIERS UPDATES GROUPS]     without numbers a short run, as the test suite has it
 */
#include "ranks.h"

#include <dirent.h>
#include <isthmus/sync.h>
#include <stdbool.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
enum { MEMBERS = 3, LOOKS = 100, COLD = 20 /* of them, while caches fill */, TENSORS = 16, GROWTH_MAX = 512 << 10 };

/* Of the sanitizers, where they are: bytes that are allocated now. Resident pages tell nothing there. */
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

enum { BYTES, FDS, THREADS, FILES, KINDS };
static const char *const kinds[KINDS] = { "bytes", "descriptors", "threads", "files in /dev/shm" };

struct soak {
	uint64_t barriers, updates, groups;
	char shm[64];              /* name of the sink that lies in /dev/shm */
};

struct looks {
	double at[LOOKS], seen[KINDS][LOOKS];
	uint32_t n;
};

static uint64_t
memory_now(void)
{
	unsigned long all, resident = 0;
	FILE *f;

	if (__sanitizer_get_current_allocated_bytes)
		return __sanitizer_get_current_allocated_bytes();
	f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%lu %lu", &all, &resident) == 2);
	fclose(f);
	return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Of this test; others run beside it. */
static uint32_t
files_now(const char *name)
{
	DIR *d = opendir("/dev/shm");
	const struct dirent *e;
	uint32_t n = 0;

	if (!d)
		return 0;
	while ((e = readdir(d)) != NULL)
		n += strstr(e->d_name, name) != NULL;
	closedir(d);
	return n;
}

/* Call i of n: at every hundredth part of the way. */
static void
look(struct looks *l, const struct soak *s, uint64_t i, uint64_t n)
{
	uint64_t every = n / LOOKS ? n / LOOKS : 1;

	if (i % every != 0 || l->n == LOOKS)
		return;
	l->at[l->n] = (double)i;
	l->seen[FDS][l->n] = count_fds();
	l->seen[THREADS][l->n] = count_threads();
	l->seen[FILES][l->n] = files_now(s->shm);
	l->seen[BYTES][l->n++] = (double)memory_now();
}

/* How much the line through the looks rises from the first warm one to the last. */
static double
rise_of(const struct looks *l, const double *y)
{
	uint32_t from = l->n * COLD / LOOKS;
	double n = l->n - from, sx = 0, sy = 0, sxx = 0, sxy = 0, slope;

	CHECK(n > 3);
	for (uint32_t i = from; i < l->n; i++) {
		sx += l->at[i];
		sy += y[i];
		sxx += l->at[i] * l->at[i];
		sxy += l->at[i] * y[i];
	}
	slope = (n * sxy - sx * sy) / (n * sxx - sx * sx);
	return slope * (l->at[l->n - 1] - l->at[from]);
}

/* The same of what comes and goes by itself, as the links of a freed group do that linger for a moment: how much the least of
 * the later half of the warm looks lies above that of the earlier half. What stays lifts the least, and what goes does not. */
static double
floor_rise_of(const struct looks *l, const double *y)
{
	uint32_t from = l->n * COLD / LOOKS, middle = from + (l->n - from) / 2;
	double before = y[from], after = y[middle];

	for (uint32_t i = from; i < middle; i++)
		before = y[i] < before ? y[i] : before;
	for (uint32_t i = middle; i < l->n; i++)
		after = y[i] < after ? y[i] : after;
	return after - before;
}

static void
judge(const struct looks *l, const char *what, uint64_t n, uint32_t rank)
{
	bool bad = false;

	for (int k = 0; k < KINDS; k++) {
		double rise = k == FDS ? floor_rise_of(l, l->seen[k]) : rise_of(l, l->seen[k]);

		bad = bad || rise > (k == BYTES ? GROWTH_MAX : 0.5);
		if (rank == 0 || bad)
			printf("  rank %u, %llu %s: %s %.0f, rise %+.1f\n", rank, (unsigned long long)n, what, kinds[k], l->seen[k][l->n - 1], rise);
	}
	fflush(stdout);
	CHECK(!bad);
}

/* ---- what is done so often ---- */

static void
barriers(struct member *m, const struct soak *s, uint32_t rank)
{
	struct looks l = { .n = 0 };

	for (uint64_t i = 0; i < s->barriers; i++) {
		CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
		look(&l, s, i, s->barriers);
	}
	judge(&l, "barriers", s->barriers, rank);
}

static void
updates(struct member *m, const struct soak *s, uint32_t rank)
{
	static uint8_t weights[8 * MIB];
	struct ist_tensor t[TENSORS];
	char names[TENSORS][16], dest[80] = "mem:";
	struct ist_checkpoint *ck = NULL;
	struct ist_sink *sink = NULL;
	struct ist_sync *sync;
	struct looks l = { .n = 0 };

	memset(t, 0, sizeof(t));
	for (uint32_t i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "t.%u", i);
		t[i] = (struct ist_tensor){ .struct_size = sizeof(t[i]), .rank = 1, .name = names[i], .dtype = "U8",
			.shape = { sizeof(weights) / TENSORS }, .bytes = sizeof(weights) / TENSORS, .addr = weights + i * (sizeof(weights) / TENSORS) };
	}
	CHECK_ERR(IST_OK, ist_sync_new(m->g, NULL, &sync, &m->err), &m->err);
	if (rank == 0) {
		CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(m->env, t, TENSORS, &ck, &m->err), &m->err);
		CHECK_ERR(IST_OK, ist_sync_source(sync, ck, 0, 0, &m->err), &m->err);
	} else {
		if (rank == 2)
			snprintf(dest, sizeof(dest), "shm:%s", s->shm);
		CHECK_ERR(IST_OK, ist_sink_open(m->env, dest, 0, &sink, &m->err), &m->err);
		CHECK_ERR(IST_OK, ist_sync_sink(sync, sink, &m->err), &m->err);
	}
	for (uint64_t i = 0; i < s->updates; i++) {
		struct ist_report rep = { .struct_size = sizeof(rep) };

		weights[i % sizeof(weights)]++;
		if (i % 100 == 0)
			CHECK_ERR(IST_OK, ist_sync_gather(sync, 0, &m->err), &m->err);
		CHECK_ERR(IST_OK, ist_sync_update(sync, NULL, &rep, &m->err), &m->err);
		CHECK(rep.verified && rep.version == i + 1);
		look(&l, s, i, s->updates);
	}
	ist_sync_free(sync);
	ist_sink_free(sink);
	ist_checkpoint_free(ck);
	judge(&l, "updates", s->updates, rank);
}

static void
groups(struct member *m, const struct soak *s, struct ranks *r, uint32_t rank)
{
	struct looks l = { .n = 0 };

	for (uint64_t i = 0; i < s->groups; i++) {
		CHECK_ERR(IST_OK, member_join(m, r->at, "again", rank, r->n, 60, 30), &m->err);
		CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
		CHECK(ist_group_free(m->g) == IST_OK);
		m->g = NULL;
		look(&l, s, i, s->groups);
	}
	judge(&l, "groups", s->groups, rank);
}

static int
run(struct ranks *r, uint32_t rank, void *arg)
{
	const struct soak *s = arg;
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "soak", rank, r->n, 60, 30), &m.err);
	if (s->barriers)
		barriers(&m, s, rank);
	if (s->updates)
		updates(&m, s, rank);
	CHECK(ist_group_free(m.g) == IST_OK);
	m.g = NULL;
	if (s->groups)
		groups(&m, s, r, rank);
	member_fini(&m);
	return 0;
}

int
main(int argc, char **argv)
{
	struct soak s = { .barriers = 10000, .updates = 500, .groups = 80 };
	char path[96];
	struct ranks r;
	int bad;

	if (argc == 4) {
		s.barriers = strtoull(argv[1], NULL, 10);
		s.updates = strtoull(argv[2], NULL, 10);
		s.groups = strtoull(argv[3], NULL, 10);
	}
	snprintf(s.shm, sizeof(s.shm), "ist-soak-%d", (int)getpid());
	ranks_init(&r, MEMBERS);
	ranks_start_all(&r, run, &s);
	bad = ranks_join(&r, argc == 4 ? 7200 : 200, 0);
	ranks_fini(&r);
	snprintf(path, sizeof(path), "/dev/shm/%s", s.shm);
	(void)unlink(path); /* the sink's, which stays by intention */
	return bad != 0;
}
