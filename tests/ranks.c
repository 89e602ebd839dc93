/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

double
now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void
ranks_init(struct ranks *r, uint32_t n)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	memset(r, 0, sizeof(*r));
	CHECK(n <= RANKS_MAX);
	r->n = n;
	CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && getsockname(fd, (struct sockaddr *)&a, &len) == 0);
	/* bound and not listening: no other socket gets the port by chance, ours may share it by SO_REUSEADDR */
	snprintf(r->at, sizeof(r->at), "tcp://127.0.0.1:%u", ntohs(a.sin_port));
	r->shared = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(r->shared != MAP_FAILED);
	(void)fd; /* kept until the test ends */
}

void
ranks_start(struct ranks *r, uint32_t rank, int (*run)(struct ranks *r, uint32_t rank, void *arg), void *arg)
{
	fflush(NULL);
	r->pid[rank] = fork();
	CHECK(r->pid[rank] >= 0);
	if (r->pid[rank] == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		exit(run(r, rank, arg)); /* not _exit: the leak checker looks at the end */
	}
}

void
ranks_start_all(struct ranks *r, int (*run)(struct ranks *r, uint32_t rank, void *arg), void *arg)
{
	for (uint32_t i = 0; i < r->n; i++)
		ranks_start(r, i, run, arg);
}

int
ranks_join(struct ranks *r, int seconds, uint64_t killed)
{
	double until = now_s() + seconds;
	uint32_t left = 0;
	int bad = 0;

	for (uint32_t i = 0; i < r->n; i++) {
		left += r->pid[i] > 0;
		r->may_die[i] |= i < 64 && killed >> i & 1;
	}
	while (left > 0) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG);

		if (pid <= 0) {
			struct timespec t = { 0, 2000000 };

			if (now_s() > until)
				for (uint32_t i = 0; i < r->n; i++)
					if (r->pid[i] > 0) {
						fprintf(stderr, "rank %u did not end in %d s\n", i, seconds);
						kill(r->pid[i], SIGKILL);
						r->may_die[i] = false;
					}
			nanosleep(&t, NULL);
			continue;
		}
		for (uint32_t i = 0; i < r->n; i++) {
			if (r->pid[i] != pid)
				continue;
			r->pid[i] = 0;
			r->status[i] = status;
			left--;
			if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
				continue;
			if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && r->may_die[i])
				continue;
			fprintf(stderr, "rank %u ended with %s %d\n", i, WIFEXITED(status) ? "status" : "signal",
				WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
			bad++;
		}
	}
	return bad;
}

void
ranks_fini(struct ranks *r)
{
	munmap(r->shared, 65536);
}

void
ranks_await(_Atomic uint32_t *flag, uint32_t value)
{
	double until = now_s() + 60;

	while (atomic_load(flag) < value) {
		CHECK(now_s() < until);
		sched_yield();
	}
}

static void
say(void *ctx, int32_t level, const char *msg)
{
	(void)ctx;
	fprintf(stderr, "[%d] %d: %s\n", (int)getpid(), level, msg);
}

void
member_init(struct member *m, uint32_t transport)
{
	struct ist_env_args ea = { .struct_size = sizeof(ea), .log_level = IST_LOG_TRACE };
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .transport = transport };

	if (getenv("TEST_LOG"))
		ea.log = say;
	memset(m, 0, sizeof(*m));
	ist_error_init(&m->err);
	CHECK_ERR(IST_OK, ist_env_new(&ea, &m->env, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_endpoint_new(m->env, &pa, &m->ep, &m->err), &m->err);
}

ist_err
member_join(struct member *m, const char *at, const char *name, uint32_t rank, uint32_t size, double timeout_s, double no_progress_s)
{
	struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = rank, .size = size, .name = name, .at = at,
		.timeout_ns = (int64_t)(timeout_s * 1e9), .no_progress_ns = (int64_t)(no_progress_s * 1e9) };

	return ist_group_new(m->ep, &ga, &m->g, &m->err);
}

void
member_fini(struct member *m)
{
	if (m->g)
		ist_group_free(m->g);
	ist_endpoint_free(m->ep);
	ist_env_free(m->env);
}

static uint32_t
count_dir(const char *path)
{
	DIR *d = opendir(path);
	uint32_t n = 0;

	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

uint32_t
count_fds(void)
{
	return count_dir("/proc/self/fd");
}

uint32_t
count_threads(void)
{
	return count_dir("/proc/self/task");
}

bool
error_names(const struct ist_error *err, uint32_t rank)
{
	for (uint32_t i = 0; i < err->n_ranks; i++)
		if (err->ranks[i] == rank)
			return true;
	return false;
}

void
all_gather_ranks(struct member *m, uint32_t rank, uint32_t size)
{
	struct ist_blob all[64];

	CHECK_ERR(IST_OK, ist_all_gather_bytes(m->g, &rank, sizeof(rank), 0, all, &m->err), &m->err);
	for (uint32_t i = 0; i < size; i++)
		CHECK(all[i].bytes == sizeof(i) && !memcmp(all[i].addr, &i, sizeof(i)));
	ist_blobs_free(m->g, all, size);
	CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
}
