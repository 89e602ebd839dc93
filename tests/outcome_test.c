/* SPDX-License-Identifier: Apache-2.0
 *
 * outcome_test.c - rank 0 of a group that forms is stopped behind each of its messages in turn, also between the words with which it
 * tells the members that all have voted. Whoever has not heard must hear it from whoever has: either all others have the group, and
 * it has lost its rank 0, or nobody has. Real processes. "outcome_test long": also where all vote in memory.
 */
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { SIZE = 4, OTHERS = SIZE - 1, AT_ONCE = 6, MOST = 120 };

/* Seen by all processes of one attempt. */
struct seen {
	_Atomic uint32_t over;     /* rank 0 stands still, or is through */
	_Atomic uint32_t through;
	_Atomic uint32_t told;     /* others that have an outcome */
	_Atomic uint32_t have_it;
	_Atomic uint32_t done;     /* others that need nobody any more */
};

/* ---- a process that stops itself ---- */

static _Atomic int64_t left = INT64_MAX; /* messages until then */
static struct seen *watched;

/* Instead of the C library's. */
ssize_t
sendmsg(int fd, const struct msghdr *m, int flags)
{
	ssize_t n = syscall(SYS_sendmsg, fd, m, flags);
	int saved = errno;

	if (n > 0 && atomic_fetch_sub(&left, 1) == 1) {
		atomic_store(&watched->over, 1);
		kill(getpid(), SIGSTOP);
	}
	errno = saved;
	return n;
}

/* Whoever can't say where he is, is alone on his host: then the vote goes by messages, and not by memory that all see. */
static bool apart;

int
stat(const char *restrict path, struct stat *restrict out)
{
	if (apart && !strcmp(path, "/proc/self/ns/net")) {
		errno = ENOENT;
		return -1;
	}
	return fstatat(AT_FDCWD, path, out, 0);
}

/* ---- members ---- */

struct attempt {
	int64_t stop_after;
	uint32_t transport;
	bool split; /* else the group is made by strangers */
	struct ranks r;
};

static ist_err
form(struct member *m, struct attempt *a, uint32_t rank, struct ist_group **out)
{
	static const uint32_t all[SIZE] = { 0, 1, 2, 3 };
	struct ist_split_args args = { .struct_size = sizeof(args), .n_ranks = SIZE, .ranks = all, .name = "inner", .timeout_ns = 2 * IST_NS_PER_S };
	ist_err e;

	if (a->split)
		return ist_group_split(m->g, &args, out, &m->err);
	e = member_join(m, a->r.at, "strangers", rank, SIZE, 2, 0.5);
	*out = m->g;
	m->g = NULL;
	return e;
}

/* Whoever has the group finds out what has become of rank 0. */
static void
live_on(struct member *m, struct ist_group *g)
{
	ist_err e = ist_barrier(g, 5 * IST_NS_PER_S, &m->err);

	CHECK(e == IST_NO_PROGRESS || e == IST_PEER_LOST);
	CHECK(error_names(&m->err, 0));
}

static int
member(struct ranks *r, uint32_t rank, void *arg)
{
	struct attempt *a = arg;
	struct seen *seen = r->shared;
	struct ist_group *g = NULL;
	struct member m;
	ist_err e;

	member_init(&m, a->transport);
	if (a->split) {
		CHECK_ERR(IST_OK, member_join(&m, r->at, "outer", rank, SIZE, 60, 0.5), &m.err);
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	}
	watched = seen;
	if (rank == 0)
		atomic_store(&left, a->stop_after);
	e = form(&m, a, rank, &g);
	if (rank == 0) {
		atomic_store(&left, INT64_MAX);
		atomic_store(&seen->through, e == IST_OK);
		atomic_store(&seen->over, 1);
		for (;;)
			pause(); /* the others are what counts */
	}
	atomic_fetch_add(&seen->have_it, e == IST_OK);
	atomic_fetch_add(&seen->told, 1);
	ranks_await(&seen->told, OTHERS);
	ranks_await(&seen->over, 1);
	if (e && atomic_load(&seen->have_it) > 0)
		fprintf(stderr, "rank 0 was stopped behind message %d, others have the group, rank %u has %s: %s\n", (int)a->stop_after, rank, ist_err_name(e),
			m.err.detail);
	CHECK(atomic_load(&seen->have_it) == (e ? 0 : OTHERS));
	if (!e && !atomic_load(&seen->through))
		live_on(&m, g);
	if (g)
		ist_group_free(g);
	member_fini(&m);
	atomic_fetch_add(&seen->done, 1);
	return 0;
}

/* ---- attempts ---- */

/* A process of its own. */
enum { STOPPED = 0, FAILED = 1, THROUGH = 3 };

static int
attempt(int64_t stop_after, uint32_t transport, bool split)
{
	struct attempt a = { .stop_after = stop_after, .transport = transport, .split = split };
	struct seen *seen;
	int bad;

	ranks_init(&a.r, SIZE);
	seen = a.r.shared;
	ranks_start_all(&a.r, member, &a);
	ranks_await(&seen->done, OTHERS);
	kill(a.r.pid[0], SIGKILL);
	bad = ranks_join(&a.r, 30, 1);
	if (!bad && !atomic_load(&seen->through) && atomic_load(&seen->have_it) > 0)
		fprintf(stderr, "stopped behind message %d: the others have the group all the same\n", (int)stop_after);
	return bad ? FAILED : atomic_load(&seen->through) ? THROUGH : STOPPED;
}

static void
sweep(uint32_t transport, bool split)
{
	uint32_t running = 0;
	bool through = false;

	for (int64_t n = 1; running > 0 || (n <= MOST && !through); n++) {
		int status;

		if (n <= MOST && !through && fork() == 0)
			_exit(attempt(n, transport, split));
		running += n <= MOST && !through;
		if (running < AT_ONCE && n < MOST && !through)
			continue;
		assert_true(wait(&status) > 0);
		running--;
		assert_true(WIFEXITED(status));
		assert_true(WEXITSTATUS(status) == STOPPED || WEXITSTATUS(status) == THROUGH);
		through |= WEXITSTATUS(status) == THROUGH;
	}
	assert_true(through); /* else MOST is too small */
}

static void
a_split_over_tcp(void **state)
{
	(void)state;
	sweep(IST_TRANSPORT_TCP, true);
}

static void
a_split_in_shared_memory(void **state)
{
	(void)state;
	sweep(IST_TRANSPORT_SHM, true);
}

static void
a_split_between_hosts(void **state)
{
	(void)state;
	apart = true;
	sweep(IST_TRANSPORT_AUTO, true);
	apart = false;
}

static void
strangers_on_several_hosts(void **state)
{
	(void)state;
	apart = true;
	sweep(IST_TRANSPORT_AUTO, false);
	apart = false;
}

static void
strangers_over_tcp(void **state)
{
	(void)state;
	sweep(IST_TRANSPORT_TCP, false);
}

static void
strangers_in_shared_memory(void **state)
{
	(void)state;
	sweep(IST_TRANSPORT_SHM, false);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_split_between_hosts),
		cmocka_unit_test(strangers_on_several_hosts),
	};
	const struct CMUnitTest rest[] = {
		cmocka_unit_test(a_split_over_tcp),
		cmocka_unit_test(a_split_in_shared_memory),
		cmocka_unit_test(strangers_over_tcp),
		cmocka_unit_test(strangers_in_shared_memory),
	};
	int bad = cmocka_run_group_tests(tests, NULL, NULL);

	return bad || argc < 2 || strcmp(argv[1], "long") != 0 ? bad : cmocka_run_group_tests(rest, NULL, NULL);
}
