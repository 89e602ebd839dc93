/* SPDX-License-Identifier: Apache-2.0
 *
 * calls_test.c - what is asked of the system, counted and not timed: a checkpoint is read in long runs and never mapped, and
 * a group of two costs in a large world what it costs in a small one. The calls are replaced here, to be counted.
 */
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <isthmus/sync.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

/* ---- the replaced calls ---- */

static _Atomic uint64_t reads, read_bytes, sockets, sends;

ssize_t
pread(int fd, void *to, size_t bytes, off_t at)
{
	ssize_t n = syscall(SYS_pread64, fd, to, bytes, at);

	reads++;
	read_bytes += n > 0 ? (uint64_t)n : 0;
	return n;
}

int
socket(int domain, int type, int protocol)
{
	sockets++;
	return (int)syscall(SYS_socket, domain, type, protocol);
}

ssize_t
sendmsg(int fd, const struct msghdr *msg, int flags)
{
	sends++;
	return syscall(SYS_sendmsg, fd, msg, flags);
}

/* ---- a checkpoint ---- */

enum { TENSORS = 512, READS_MAX = 400 };
#define EACH (2 * MIB)

struct place {
	char folder[64], file[96];
};

/* 1 GiB of zeros that takes no room on the disk. */
static void
make_checkpoint(struct place *p)
{
	size_t room = TENSORS * 96 + 64, at = 8;
	char *text = malloc(room);
	uint64_t bytes;
	int fd;

	snprintf(p->folder, sizeof(p->folder), "/tmp/ist-calls-XXXXXX");
	assert_non_null(mkdtemp(p->folder));
	snprintf(p->file, sizeof(p->file), "%s/model.safetensors", p->folder);
	assert_non_null(text);
	for (uint64_t i = 0; i < TENSORS; i++)
		at += (size_t)snprintf(text + at, room - at, "%c\"t.%04u\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[%llu,%llu]}", i ? ',' : '{', (unsigned)i,
			(unsigned long long)EACH, (unsigned long long)(i * EACH), (unsigned long long)((i + 1) * EACH));
	at += (size_t)snprintf(text + at, room - at, "}");
	bytes = at - 8;
	memcpy(text, &bytes, 8);
	fd = open(p->file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0 && write(fd, text, at) == (ssize_t)at && ftruncate(fd, (off_t)(at + TENSORS * EACH)) == 0);
	close(fd);
	free(text);
}

/* Does this process map that file? */
static bool
maps(const char *file)
{
	char line[512];
	bool found = false;
	FILE *f = fopen("/proc/self/maps", "re");

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		found = found || strstr(line, file);
	fclose(f);
	return found;
}

struct watch {
	const char *file;
	bool mapped;
	uint32_t looks;
};

static void
look(void *ctx, uint64_t bytes, uint64_t total)
{
	struct watch *w = ctx;

	(void)bytes, (void)total;
	w->mapped = w->mapped || maps(w->file);
	w->looks++;
}

static void
give(struct member *m, struct ist_sync *sync, const struct place *p, struct watch *w)
{
	struct ist_report rep = { .struct_size = sizeof(rep) };
	struct ist_checkpoint *ck;

	CHECK_ERR(IST_OK, ist_checkpoint_open(m->env, p->folder, NULL, &ck, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_sync_source(sync, ck, 0, 0, &m->err), &m->err);
	CHECK(!maps(p->file));
	CHECK(read_bytes >= TENSORS * EACH); /* its digests */
	printf("registering 1 GiB: %llu reads\n", (unsigned long long)reads);
	CHECK(reads <= READS_MAX);
	CHECK_ERR(IST_OK, ist_sync_gather(sync, 0, &m->err), &m->err);
	reads = read_bytes = 0;
	CHECK_ERR(IST_OK, ist_sync_update(sync, NULL, &rep, &m->err), &m->err);
	CHECK(rep.verified && rep.tensors == TENSORS && rep.bytes == TENSORS * EACH);
	CHECK(read_bytes >= TENSORS * EACH && read_bytes < TENSORS * EACH + MIB);
	printf("giving it away: %llu reads\n", (unsigned long long)reads);
	fflush(stdout);
	CHECK(reads <= READS_MAX);
	CHECK(w->looks > 0 && !w->mapped);
	ist_checkpoint_free(ck);
}

static int
gives_or_takes(struct ranks *r, uint32_t rank, void *arg)
{
	const struct place *p = arg;
	struct watch w = { .file = p->file };
	struct ist_sync_args sa = { .struct_size = sizeof(sa), .bucket_bytes = 8 * MIB, .progress = look, .progress_ctx = &w };
	struct ist_sync *sync;
	struct ist_sink *to;
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "reads", rank, r->n, 100, 60), &m.err);
	CHECK_ERR(IST_OK, ist_sync_new(m.g, &sa, &sync, &m.err), &m.err);
	if (rank == 0) {
		give(&m, sync, p, &w);
	} else {
		CHECK_ERR(IST_OK, ist_sink_open(m.env, "null:", 0, &to, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_sync_sink(sync, to, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_sync_gather(sync, 0, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_sync_update(sync, NULL, NULL, &m.err), &m.err);
	}
	ist_sync_free(sync);
	if (rank)
		ist_sink_free(to);
	member_fini(&m);
	return 0;
}

static void
few_long_reads(void **unused)
{
	struct place p;
	struct ranks r;

	(void)unused;
	make_checkpoint(&p);
	ranks_init(&r, 2);
	ranks_start_all(&r, gives_or_takes, &p);
	assert_int_equal(ranks_join(&r, 150, 0), 0);
	ranks_fini(&r);
	assert_int_equal(unlink(p.file), 0);
	assert_int_equal(rmdir(p.folder), 0);
}

/* ---- a group of two ---- */

enum { ROUNDS = 10, SMALL = 4, LARGE = 48 };

/* What ROUNDS groups of two cost member 0, and what the rest of their world had to do with it. */
struct cost {
	_Atomic uint32_t ready, counted, over, left;
	uint64_t sockets, sends, messages, fds, threads;
	_Atomic uint64_t others_sockets, others_messages;
};

static uint64_t
messages_of(struct member *m)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };

	CHECK_ERR(IST_OK, ist_group_info(m->g, &info, &m->err), &m->err);
	return info.messages;
}

static void
make_pairs(struct member *m, uint32_t rank, struct cost *c)
{
	static const uint32_t pair[] = { 0, 1 };
	struct ist_split_args sa = { .struct_size = sizeof(sa), .n_ranks = 2, .ranks = pair, .timeout_ns = 60 * IST_NS_PER_S };
	uint64_t before = messages_of(m), fds, threads;
	struct ist_group *g[ROUNDS];

	fds = count_fds();
	threads = count_threads();
	sockets = sends = 0;
	for (int i = 0; i < ROUNDS; i++) { /* side by side: what each keeps is seen as well */
		CHECK_ERR(IST_OK, ist_group_split(m->g, &sa, &g[i], &m->err), &m->err);
		CHECK_ERR(IST_OK, ist_barrier(g[i], 0, &m->err), &m->err);
	}
	if (rank == 0) {
		c->sends = sends;
		c->sockets = sockets;
		c->messages = messages_of(m) - before;
		c->fds = count_fds() - fds;
		c->threads = count_threads() - threads;
	}
	for (int i = 0; i < ROUNDS; i++)
		CHECK_ERR(IST_OK, ist_group_free(g[i]), &m->err);
}

static int
lives_in_a_world(struct ranks *r, uint32_t rank, void *arg)
{
	struct cost *c = r->shared;
	uint64_t before;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "world", rank, r->n, 100, 60), &m.err);
	all_gather_ranks(&m, rank, r->n);
	atomic_fetch_add(&c->ready, 1);
	ranks_await(&c->ready, r->n); /* nobody is in the barrier any more */
	before = messages_of(&m);
	sockets = 0;
	atomic_fetch_add(&c->counted, 1);
	ranks_await(&c->counted, r->n);
	if (rank < 2) {
		make_pairs(&m, rank, c);
		atomic_fetch_add(&c->over, 1);
	} else {
		while (atomic_load(&c->over) < 2)
			usleep(1000); /* not in a busy loop: dozens of them would keep the two from the CPUs */
		atomic_fetch_add(&c->others_sockets, sockets);
		atomic_fetch_add(&c->others_messages, messages_of(&m) - before);
	}
	atomic_fetch_add(&c->left, 1);
	ranks_await(&c->left, r->n);
	member_fini(&m);
	return 0;
}

static struct cost
cost_in(uint32_t n)
{
	struct ranks r;
	struct cost c;

	ranks_init(&r, n);
	ranks_start_all(&r, lives_in_a_world, NULL);
	assert_int_equal(ranks_join(&r, 100, 0), 0);
	memcpy(&c, r.shared, sizeof(c));
	ranks_fini(&r);
	printf("%d groups of two in a world of %u: %llu sockets, %llu sends, %llu messages of the world, %llu descriptors, %llu threads; the others: %llu "
		"sockets, %llu messages\n", ROUNDS, n, (unsigned long long)c.sockets, (unsigned long long)c.sends, (unsigned long long)c.messages,
		(unsigned long long)c.fds, (unsigned long long)c.threads, (unsigned long long)c.others_sockets, (unsigned long long)c.others_messages);
	fflush(stdout);
	return c;
}

static void
two_of_many_cost_two(void **unused)
{
	struct cost small = cost_in(SMALL), large = cost_in(LARGE);

	(void)unused;
	assert_true(small.sockets > 0 && small.sends > 0 && small.fds > 0);
	assert_int_equal(large.sockets, small.sockets);
	assert_true(large.fds <= small.fds + small.fds / 2); /* a link may still be about to end */
	assert_int_equal(large.threads, small.threads);
	assert_true(large.messages <= small.messages + small.messages / 2);
	assert_true(large.sends <= small.sends + small.sends / 2); /* heartbeats of the world are among them */
	assert_int_equal(small.others_sockets + small.others_messages, 0);
	assert_int_equal(large.others_sockets + large.others_messages, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(few_long_reads),
		cmocka_unit_test(two_of_many_cost_two),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
