/* SPDX-License-Identifier: Apache-2.0
 *
 * held_test.c - what a group says that it holds is what it has asked for: counted by an allocator of the test's own, and by the
 * memory files of all members. When it is freed, all of that is back.
 */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)
/* What the loop keeps for the next messages of all groups, frames on the way, and a group's dead handles. */
#define AROUND (UINT64_C(16) << 10)
enum { GROUPS = 4 };

static uint8_t bulk[64 << 10];
static _Atomic int64_t out; /* bytes that the library has now */

/* The size stands before the piece; it begins where align says. */
static void *
count_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	uint64_t before = align > 16 ? align : 16;
	uint8_t *p = aligned_alloc(before, (bytes + 2 * before) & ~(before - 1));

	(void)ctx, (void)kind, (void)numa;
	if (!p)
		return NULL;
	p += before;
	((uint64_t *)(void *)p)[-1] = bytes;
	((uint64_t *)(void *)p)[-2] = before;
	out += (int64_t)bytes;
	return p;
}

static void
count_free(void *ctx, void *at)
{
	const uint64_t *head = (uint64_t *)at - 2;

	(void)ctx;
	out -= (int64_t)head[1];
	free((uint8_t *)at - head[0]);
}

static struct ist_group_info
info_of(struct member *m)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };

	CHECK_ERR(IST_OK, ist_group_info(m->g, &info, &m->err), &m->err);
	return info;
}

/* What stands still: links of forming linger for a moment. */
static int64_t
settled(void)
{
	double until = now_s() + 60;
	int64_t last = -1, now = out;

	while (last != now) {
		CHECK(now_s() < until);
		last = now;
		usleep(1100000); /* connections linger for a second at most */
		now = out;
	}
	return now;
}

static void
open_counted(struct member *m, uint32_t transport)
{
	struct ist_env_args ea = { .struct_size = sizeof(ea), .alloc = count_alloc, .free = count_free };
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .transport = transport };

	memset(m, 0, sizeof(*m));
	ist_error_init(&m->err);
	CHECK_ERR(IST_OK, ist_env_new(&ea, &m->env, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_endpoint_new(m->env, &pa, &m->ep, &m->err), &m->err);
}

/* The library's memory files that this process has open, or mapped where nobody needs it open any more. */
struct file {
	uint64_t inode, bytes;
};
enum { FILES = 64 };

static void
add_file(struct file *f, uint32_t *n, uint64_t inode, uint64_t bytes)
{
	for (uint32_t i = 0; i < *n; i++)
		if (f[i].inode == inode)
			return;
	CHECK(*n < FILES);
	f[(*n)++] = (struct file){ inode, bytes };
}

static uint32_t
files(struct file *f)
{
	char line[512];
	uint32_t n = 0;
	FILE *maps;

	for (int fd = 3; fd < 1024; fd++) {
		char path[32], name[64];
		struct stat st;
		ssize_t len;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		len = readlink(path, name, sizeof(name) - 1);
		name[len > 0 ? len : 0] = 0;
		if (strncmp(name, "/memfd:isthmus", 14) == 0 && fstat(fd, &st) == 0)
			add_file(f, &n, st.st_ino, (uint64_t)st.st_blocks * 512);
	}
	maps = fopen("/proc/self/maps", "re");
	CHECK(maps);
	while (fgets(line, sizeof(line), maps)) {
		unsigned long from, to, inode;

		if (strstr(line, "/memfd:isthmus-life") && sscanf(line, "%lx-%lx %*s %*s %*s %lu", &from, &to, &inode) == 3)
			add_file(f, &n, inode, to - from);
	}
	fclose(maps);
	return n;
}

/* What all say that they share is what all see, each file once. */
static void
check_shared(struct member *m, uint32_t rank, uint32_t size)
{
	struct said {
		uint64_t shared;
		uint32_t n;
		struct file f[FILES];
	} mine = { .shared = info_of(m).shared_bytes }, one;
	struct ist_blob all[64];
	struct file seen[FILES];
	uint64_t shared = 0, bytes = 0;
	uint32_t n = 0;

	mine.n = files(mine.f);
	CHECK_ERR(IST_OK, ist_all_gather_bytes(m->g, &mine, sizeof(mine), 0, all, &m->err), &m->err);
	for (uint32_t r = 0; r < size; r++) {
		memcpy(&one, all[r].addr, sizeof(one));
		shared += one.shared;
		for (uint32_t i = 0; i < one.n; i++)
			add_file(seen, &n, one.f[i].inode, one.f[i].bytes);
	}
	for (uint32_t i = 0; i < n; i++)
		bytes += seen[i].bytes;
	ist_blobs_free(m->g, all, size);
	if (rank == 0)
		printf("  all together share %llu, in %u files there are %llu\n", (unsigned long long)shared, n, (unsigned long long)bytes);
	fflush(stdout);
	CHECK(shared == bytes);
}

static void
cast(struct member *m, void *buf, uint64_t bytes)
{
	struct ist_coll_args ca = { .struct_size = sizeof(ca), .peer = 0 };
	struct ist_req *req;

	ca.src = ca.dst = (struct ist_buf){ .addr = buf, .bytes = bytes, .device = -1 };
	CHECK_ERR(IST_OK, ist_broadcast(m->g, &ca, &req, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_req_wait(req, 0, &m->err), &m->err);
	ist_req_free(req);
	CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
}

static void
join(struct member *m, const char *at, uint32_t n, uint32_t rank)
{
	CHECK_ERR(IST_OK, member_join(m, at, "held", rank, n, 60, 30), &m->err);
	all_gather_ranks(m, rank, n);
}

/* Lent memory is counted while it is lent, to the page. */
static void
lends(struct member *m)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), before = info_of(m).shared_bytes;
	void *at;

	CHECK_ERR(IST_OK, ist_group_alloc(m->g, 3 * MIB + 1, IST_MEM_HOST, -1, &at, &m->err), &m->err);
	CHECK(info_of(m).shared_bytes == before + 3 * MIB + page);
	CHECK_ERR(IST_OK, ist_group_alloc_free(m->g, at), &m->err);
	CHECK(info_of(m).shared_bytes == before);
}

static void
use(struct member *m, uint32_t rank, uint32_t n, uint32_t transport)
{
	cast(m, bulk, sizeof(bulk));
	if (transport == IST_TRANSPORT_SHM)
		lends(m);
	CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err); /* nobody has anything lent any more */
	check_shared(m, rank, n);
}

/* They meet in a folder: connections to a meeting place are not the group's. */
struct job {
	uint32_t transport;
	char at[64];
};

/* One group from its making to its end; before: what was out when it began. */
static void
live(struct member *m, const struct job *job, uint32_t rank, uint32_t n, int64_t before)
{
	struct ist_group_info info;
	int64_t mine;

	join(m, job->at, n, rank);
	cast(m, bulk, sizeof(bulk));
	mine = settled() - before;
	info = info_of(m);
	if (before > 0) {
		if (rank == 0)
			printf("%u members, transport %u: %llu bytes alone (%lld counted), %llu shared\n", n, job->transport, (unsigned long long)info.memory_bytes,
				(long long)mine, (unsigned long long)info.shared_bytes);
		fflush(stdout);
		CHECK((int64_t)info.memory_bytes <= mine + 4096 && mine <= (int64_t)(info.memory_bytes + AROUND));
	}
	use(m, rank, n, job->transport);
	CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
	CHECK(ist_group_free(m->g) == IST_OK);
	m->g = NULL;
}

/* What the env keeps for all groups comes with the first one; from then on each gives back all that it took, but for the handles of
 * its requests: the last dead ones are kept, so that they are known for dead. */
static int
holds(struct ranks *r, uint32_t rank, void *arg)
{
	const struct job *job = arg;
	struct file left[FILES];
	int64_t after[GROUPS];
	struct member m;

	open_counted(&m, job->transport);
	for (int i = 0; i < GROUPS; i++) {
		live(&m, job, rank, r->n, i > 0 ? after[i - 1] : 0);
		after[i] = settled();
		CHECK(files(left) == 0);
	}
	if (rank == 0)
		printf("  after each group: %lld, %lld, %lld, %lld\n", (long long)after[0], (long long)after[1], (long long)after[2], (long long)after[3]);
	fflush(stdout);
	for (int i = 1; i < GROUPS; i++)
		CHECK(after[i] <= after[i - 1] + (int64_t)AROUND);
	member_fini(&m);
	CHECK(out == 0);
	return 0;
}

static void
says_what_it_holds(void **state)
{
	static const uint32_t transports[] = { IST_TRANSPORT_SHM, IST_TRANSPORT_TCP };

	(void)state;
	for (int t = 0; t < 2; t++)
		for (uint32_t n = 2; n <= 5; n += 3) {
			struct job job = { .transport = transports[t], .at = "dir:/tmp/ist-held-XXXXXX" };
			struct ranks r;

			assert_non_null(mkdtemp(job.at + 4));
			ranks_init(&r, n);
			ranks_start_all(&r, holds, &job);
			assert_int_equal(ranks_join(&r, 100, 0), 0);
			ranks_fini(&r);
			assert_int_equal(rmdir(job.at + 4), 0);
		}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(says_what_it_holds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
