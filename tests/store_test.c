/* SPDX-License-Identifier: Apache-2.0
 *
 * store_test.c - a meeting place is for meeting: 100,000 barriers of a group that met there leave nothing in it, wake it up
 * for nothing, and go on while it is stopped. The place is a program of its own.
 *
 *     store_test PATH/TO/isthmus
 */
#include "ranks.h"

#include <dirent.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMBERS = 3, COLD = 1000, BARRIERS = 100000, GATHERS = 2000, WAKES_MAX = BARRIERS / 100, GROWTH_MAX = 1 << 20 };

struct place {
	pid_t pid;
	char at[64];
};

struct state { /* of the place's process */
	uint64_t bytes, fds, wakes;
	uint32_t records;
};

static uint64_t
count_in(pid_t pid, const char *what)
{
	char path[64];
	uint64_t n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, what);
	d = opendir(path);
	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static uint64_t
resident(pid_t pid)
{
	unsigned long all, pages = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
	f = fopen(path, "re");
	CHECK(f && fscanf(f, "%lu %lu", &all, &pages) == 2);
	fclose(f);
	return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* How often its threads went to sleep so far. */
static uint64_t
wakes(pid_t pid)
{
	char path[320], line[128];
	uint64_t sum = 0;
	const struct dirent *e;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	d = opendir(path);
	CHECK(d);
	while ((e = readdir(d)) != NULL) {
		unsigned long n;
		FILE *f;

		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/status", (int)pid, e->d_name);
		f = fopen(path, "re");
		CHECK(f);
		while (fgets(line, sizeof(line), f))
			if (sscanf(line, "voluntary_ctxt_switches: %lu", &n) == 1)
				sum += n;
		fclose(f);
	}
	closedir(d);
	return sum;
}

/* Asking opens a connection of its own, which is gone again a moment later. */
static uint32_t
records(struct member *m, const char *at)
{
	struct ist_status_args qa = { .struct_size = sizeof(qa), .at = at, .timeout_ns = 60 * IST_NS_PER_S };
	uint32_t n = 0;

	CHECK_ERR(IST_OK, ist_status(m->env, &qa, NULL, &n, &m->err), &m->err);
	return n;
}

static struct state
look(struct member *m, const struct place *p)
{
	struct state s = { .records = records(m, p->at) };
	double until = now_s() + 60;

	for (uint64_t n = count_in(p->pid, "fd"), last = 0; n != last; ) { /* until it stands still for 0.3 s */
		CHECK(now_s() < until);
		last = n;
		usleep(300000);
		n = count_in(p->pid, "fd");
		s.fds = n;
	}
	s.bytes = resident(p->pid);
	s.wakes = wakes(p->pid);
	return s;
}

static void
barriers(struct member *m, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
}

static void
gathers(struct member *m, uint32_t rank, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		all_gather_ranks(m, rank, MEMBERS);
}

static int
run(struct ranks *r, uint32_t rank, void *arg)
{
	const struct place *p = arg;
	struct state before = { 0 }, after;
	struct member m;
	double t[3];

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, p->at, "store", rank, r->n, 60, 30), &m.err);
	barriers(&m, COLD);
	if (rank == 0)
		before = look(&m, p);
	barriers(&m, 1);
	t[0] = now_s();
	barriers(&m, BARRIERS / 2);
	t[1] = now_s();
	barriers(&m, BARRIERS - BARRIERS / 2);
	t[2] = now_s();
	gathers(&m, rank, GATHERS);
	if (rank == 0) {
		uint64_t slept = wakes(p->pid) - before.wakes;

		after = look(&m, p);
		printf("%d barriers: %.1f us each, then %.1f us; the place has grown by %lld KiB, was woken %llu times, has %llu descriptors\n", BARRIERS,
			(t[1] - t[0]) * 2e6 / BARRIERS, (t[2] - t[1]) * 2e6 / BARRIERS, ((long long)after.bytes - (long long)before.bytes) / 1024,
			(unsigned long long)slept, (unsigned long long)after.fds);
		fflush(stdout);
		CHECK(before.records == MEMBERS && after.records == MEMBERS);
		CHECK(after.fds == before.fds);
		CHECK(after.bytes < before.bytes + GROWTH_MAX);
		CHECK(slept < WAKES_MAX);
		CHECK(kill(p->pid, SIGSTOP) == 0);
	}
	barriers(&m, BARRIERS / 10);
	gathers(&m, rank, GATHERS);
	if (rank == 0)
		CHECK(kill(p->pid, SIGCONT) == 0);
	barriers(&m, 1);
	member_fini(&m);
	return 0;
}

static void
start(struct place *p, const char *tool)
{
	int ends[2];
	FILE *f;

	CHECK(pipe(ends) == 0);
	p->pid = fork();
	CHECK(p->pid >= 0);
	if (p->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(ends[1], 1);
		close(ends[0]);
		close(ends[1]);
		execl(tool, tool, "store", "--bind", "127.0.0.1:0", "-q", (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	f = fdopen(ends[0], "r");
	CHECK(f && fgets(p->at, sizeof(p->at), f));
	p->at[strcspn(p->at, "\n")] = 0;
	fclose(f);
}

int
main(int argc, char **argv)
{
	struct place p;
	struct ranks r;
	int bad, status;

	CHECK(argc == 2);
	start(&p, argv[1]);
	ranks_init(&r, MEMBERS);
	ranks_start_all(&r, run, &p);
	bad = ranks_join(&r, 200, 0);
	ranks_fini(&r);
	kill(p.pid, SIGCONT);
	kill(p.pid, SIGTERM);
	CHECK(waitpid(p.pid, &status, 0) == p.pid);
	return bad != 0;
}
