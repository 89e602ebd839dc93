/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_host.c - how fast the host backend is by itself, without a core: GB/s of payload at each receiver and microseconds
 * of a barrier; median of some repeats with warm memory. Not a test.
 */
#include "host_rig.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum what { CAST_STAGED, CAST_DIRECT, CAST_COOP, CAST_VIEW, PAIR, PAIR_DIRECT, BARRIER };
static const char *const names[] = { "broadcast, private memory", "broadcast, root's of channel", "broadcast, channel's memory", "broadcast, view", "send",
	"send, channel's memory", "barrier" };

struct job {
	enum what what;
	uint64_t bytes;
	double *out; /* shared: seconds */
};

static double
seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int
ascending(const void *a, const void *b)
{
	double x, y;

	memcpy(&x, a, sizeof(x));
	memcpy(&y, b, sizeof(y));
	return (x > y) - (x < y);
}

static void
meet(struct node *node, uint64_t seq)
{
	char c = 0;

	for (int way = 0; way < 2; way++)
		for (uint32_t i = 1; i < node->size; i++) {
			struct ist_op op = (node->rank == 0) == (way == 0) ? op_recv(node->rank ? 0 : i, &c, 1, seq) : op_send(node->rank ? 0 : i, &c, 1, seq);
			if (node->rank == 0 || node->rank == i)
				CHECK(node_do(node, &op) == IST_OK);
		}
}

static void
once(struct node *node, const struct job *job, void *buf, uint64_t seq)
{
	struct ist_op op = op_cast(node, 0, buf, job->bytes, seq, job->what == CAST_VIEW ? IST_OP_VIEW : 0);

	if (job->what == PAIR || job->what == PAIR_DIRECT)
		op = node->rank ? op_recv(0, buf, job->bytes, seq) : op_send(1, buf, job->bytes, seq);
	if (job->what == BARRIER)
		op = op_barrier(seq);
	CHECK(node_do(node, &op) == IST_OK);
}

static void
bench_member(struct node *node, void *arg)
{
	const struct job *job = arg;
	enum { N = 15 };
	double took[N];
	uint64_t inner = job->what == BARRIER ? 2000 : 1, seq = 10;
	bool own = job->what == CAST_VIEW || job->what == CAST_COOP || ((job->what == CAST_DIRECT || job->what == PAIR_DIRECT) && node->rank == 0);
	void *buf = NULL;

	if (!own || isthmus_backend_host()->alloc(node->chan, job->bytes, IST_MEM_HOST, -1, &buf, NULL))
		buf = mmap(NULL, job->bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(buf && buf != MAP_FAILED);
	memset(buf, (int)node->rank, job->bytes);
	for (int k = 0; k < N; k++) {
		meet(node, seq++);
		double begun = seconds();
		for (uint64_t i = 0; i < inner; i++)
			once(node, job, buf, seq++);
		if (job->what != BARRIER)
			meet(node, seq++);
		took[k] = (seconds() - begun) / (double)inner;
	}
	qsort(took + 2, N - 2, sizeof(took[0]), ascending);
	if (node->rank == 0)
		*job->out = took[2 + (N - 2) / 2];
}

static void
row(const char *kind, const struct rig *rig, enum what what, uint64_t bytes)
{
	double *out = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct job job = { .what = what, .bytes = bytes, .out = out };

	CHECK(out != MAP_FAILED);
	fork_run(rig, bench_member, &job, IST_NO_RANK);
	if (what == BARRIER)
		printf("%-5s 1 -> %u  %-28s %10.2f us\n", kind, rig->n - 1, names[what], *out * 1e6);
	else
		printf("%-5s 1 -> %u  %-28s %10.2f GB/s\n", kind, rig->n - 1, names[what], (double)bytes / *out * 1e-9);
	fflush(stdout);
	munmap(out, 4096);
}

int
main(int argc, char **argv)
{
	uint64_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 128) << 20;
	static const uint32_t members[] = { 2, 4 };

	for (uint32_t i = 0; i < 2; i++) {
		struct rig shm = { .n = members[i], .options = argc > 2 ? argv[2] : NULL }, tcp = { .n = members[i], .options = "transport=tcp" };
		for (enum what w = CAST_STAGED; w <= BARRIER; w++)
			if (members[i] == 2 || (w != PAIR && w != PAIR_DIRECT))
				row("shm", &shm, w, bytes);
		row("tcp", &tcp, CAST_STAGED, bytes);
		if (members[i] == 2)
			row("tcp", &tcp, PAIR, bytes);
	}
	return 0;
}
