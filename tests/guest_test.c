/* SPDX-License-Identifier: Apache-2.0
 *
 * A good guest in somebody's process: what a host has set up is as it was, whatever the library did meanwhile; its
 * threads, descriptors and memory keep to themselves; a forked child is not touched.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include <isthmus/sync.h>

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { BYTES = 1 << 20 };

/* ---- two members in one process, and all that they can do ---- */

struct pair {
	struct ist_env *env;
	struct ist_endpoint *ep[2];
	struct ist_group *g[2];
	struct ist_error err;
};

static void
pair_init(struct pair *p, const struct ist_env_args *ea)
{
	memset(p, 0, sizeof(*p));
	ist_error_init(&p->err);
	CHECK_ERR(IST_OK, ist_env_new(ea, &p->env, &p->err), &p->err);
	for (int i = 0; i < 2; i++)
		CHECK_ERR(IST_OK, ist_endpoint_new(p->env, NULL, &p->ep[i], &p->err), &p->err);
}

static void
pair_form(struct pair *p)
{
	uint8_t room[2][IST_ADDRESS_BYTES];
	struct ist_address a[2];
	struct ist_req *req[2];

	for (int i = 0; i < 2; i++) {
		a[i] = (struct ist_address){ room[i], IST_ADDRESS_BYTES };
		CHECK_ERR(IST_OK, ist_endpoint_address(p->ep[i], room[i], &a[i].bytes, &p->err), &p->err);
	}
	for (uint32_t i = 0; i < 2; i++) {
		struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = i, .size = 2, .name = "guest", .addresses = a, .timeout_ns = 60 * IST_NS_PER_S };

		CHECK_ERR(IST_OK, ist_group_new_start(p->ep[i], &ga, &req[i], &p->err), &p->err);
	}
	for (int i = 0; i < 2; i++) {
		CHECK_ERR(IST_OK, ist_req_wait(req[i], 60 * IST_NS_PER_S, &p->err), &p->err);
		CHECK_ERR(IST_OK, ist_req_group(req[i], &p->g[i], &p->err), &p->err);
		ist_req_free(req[i]);
	}
}

struct half {
	struct pair *p;
	uint32_t rank;
	struct ist_checkpoint *ck;
	struct ist_sink *sink;
	struct ist_sync *sync;
	uint8_t *bytes;
};

static void *
half_main(void *arg)
{
	struct half *h = arg;
	struct ist_tensor t = { .struct_size = sizeof(t), .rank = 1, .name = "w", .dtype = "U8", .shape = { BYTES }, .bytes = BYTES, .addr = h->bytes,
		.file = "", .alias_of = "" };
	struct ist_sync_args sa = { .struct_size = sizeof(sa), .bucket_bytes = 128 << 10 };
	struct ist_coll_args ca = { .struct_size = sizeof(ca), .src = { h->bytes, BYTES, 0, 0, -1 }, .dst = { h->bytes, BYTES, 0, 0, -1 } };
	struct ist_report rep = { .struct_size = sizeof(rep) };
	struct ist_group *g = h->p->g[h->rank];
	struct ist_error err;
	struct ist_req *req;

	ist_error_init(&err);
	CHECK_ERR(IST_OK, ist_barrier(g, 0, &err), &err);
	CHECK_ERR(IST_OK, ist_broadcast(g, &ca, &req, &err), &err);
	CHECK_ERR(IST_OK, ist_req_wait(req, 0, &err), &err);
	ist_req_free(req);
	CHECK_ERR(IST_OK, ist_sync_new(g, &sa, &h->sync, &err), &err);
	if (h->rank == 0) {
		CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(h->p->env, &t, 1, &h->ck, &err), &err);
		CHECK_ERR(IST_OK, ist_sync_source(h->sync, h->ck, 0, 0, &err), &err);
	} else {
		CHECK_ERR(IST_OK, ist_sink_open(h->p->env, "mem:", 0, &h->sink, &err), &err);
		CHECK_ERR(IST_OK, ist_sync_sink(h->sync, h->sink, &err), &err);
	}
	CHECK_ERR(IST_OK, ist_sync_gather(h->sync, 0, &err), &err);
	CHECK_ERR(IST_OK, ist_sync_update(h->sync, NULL, &rep, &err), &err);
	CHECK(rep.verified && rep.bytes == BYTES);
	return NULL;
}

static void
pair_work(struct pair *p, struct half h[2])
{
	pthread_t t[2];

	for (uint32_t i = 0; i < 2; i++) {
		h[i] = (struct half){ .p = p, .rank = i, .bytes = calloc(1, BYTES) };
		CHECK(pthread_create(&t[i], NULL, half_main, &h[i]) == 0);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
}

static void
pair_fini(struct pair *p, struct half h[2])
{
	for (int i = 0; h && i < 2; i++) {
		ist_sync_free(h[i].sync);
		ist_sink_free(h[i].sink);
		ist_checkpoint_free(h[i].ck);
		free(h[i].bytes);
	}
	for (int i = 0; i < 2; i++) {
		if (p->g[i])
			CHECK(ist_group_free(p->g[i]) == IST_OK);
		ist_endpoint_free(p->ep[i]);
	}
	ist_env_free(p->env);
}

/* ---- the host's own things ---- */

static atomic_uint signals_seen, forks_seen;

static void
on_host_signal(int sig)
{
	(void)sig;
	atomic_fetch_add(&signals_seen, 1);
}

static void
on_host_fork(void)
{
	atomic_fetch_add(&forks_seen, 1);
}

struct host {
	struct sigaction actions[65];
	sigset_t mask;
	char env[65536], cwd[4096];
	mode_t umask;
	struct rlimit limits[RLIM_NLIMITS];
	cpu_set_t cpus;
};

static void
host_look(struct host *h)
{
	size_t n = 0;

	memset(h, 0, sizeof(*h));
	for (int s = 1; s <= 64; s++)
		sigaction(s, NULL, &h->actions[s]);
	pthread_sigmask(SIG_SETMASK, NULL, &h->mask);
	for (char **e = environ; *e && n < sizeof(h->env) - 1; e++)
		n += (size_t)snprintf(h->env + n, sizeof(h->env) - n, "%s\n", *e);
	CHECK(getcwd(h->cwd, sizeof(h->cwd)));
	h->umask = umask(0);
	umask(h->umask);
	for (unsigned i = 0; i < RLIM_NLIMITS; i++)
		getrlimit((__rlimit_resource_t)i, &h->limits[i]);
	sched_getaffinity(0, sizeof(h->cpus), &h->cpus);
}

static void
host_set_up(void)
{
	static const int handled[] = { SIGPIPE, SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGIO, SIGURG };
	struct sigaction sa = { .sa_handler = on_host_signal, .sa_flags = SA_RESTART };
	sigset_t some;

	for (size_t i = 0; i < sizeof(handled) / sizeof(handled[0]); i++)
		sigaction(handled[i], &sa, NULL);
	sigemptyset(&some);
	sigaddset(&some, SIGWINCH);
	pthread_sigmask(SIG_BLOCK, &some, NULL);
	CHECK(pthread_atfork(on_host_fork, NULL, NULL) == 0);
	umask(0137);
	setenv("ISTHMUS_LOG_LEVEL", "trace", 1);
	setenv("ISTHMUS_SECRET_FILE", "/nonexistent", 1);
	setenv("LD_LIBRARY_PATH", "/odd/place", 1);
}

static int
hosts_a_guest(struct ranks *r, uint32_t rank, void *arg)
{
	char path[] = "/tmp/isthmus-guest-XXXXXX";
	struct host *before = malloc(sizeof(*before)), *after = malloc(sizeof(*after));
	int fd = mkstemp(path), keep = dup(2);
	struct half h[2];
	struct pair p;
	struct stat st;

	(void)r, (void)rank, (void)arg;
	CHECK(fd >= 0 && unlink(path) == 0);
	host_set_up();
	fflush(NULL);
	CHECK(dup2(fd, 1) == 1 && dup2(fd, 2) == 2);
	host_look(before);
	pair_init(&p, NULL);
	pair_form(&p);
	pair_work(&p, h);
	pair_fini(&p, h);
	host_look(after);
	fflush(NULL);
	CHECK(fstat(fd, &st) == 0);
	CHECK(dup2(keep, 2) == 2);
	CHECK(st.st_size == 0); /* not a word on 1 and 2 */
	for (int s = 1; s <= 64; s++)
		CHECK(before->actions[s].sa_handler == after->actions[s].sa_handler && before->actions[s].sa_flags == after->actions[s].sa_flags &&
			!memcmp(&before->actions[s].sa_mask, &after->actions[s].sa_mask, 8)); /* the rest of a mask is never written */
	CHECK(!memcmp(&before->mask, &after->mask, sizeof(before->mask)));
	CHECK(!strcmp(before->env, after->env) && !strcmp(before->cwd, after->cwd) && before->umask == after->umask);
	CHECK(!memcmp(before->limits, after->limits, sizeof(before->limits)));
	CHECK(CPU_EQUAL(&before->cpus, &after->cpus));
	CHECK(signals_seen == 0 && forks_seen == 0); /* no signal came, and nothing was forked behind the host's back */
	free(before);
	free(after);
	close(keep);
	close(fd);
	return 0;
}

static void
leaves_its_host_as_it_was(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 1);
	ranks_start_all(&r, hosts_a_guest, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* A peer dies while we send: no SIGPIPE. */
static int
sends_to_the_dead(struct ranks *r, uint32_t rank, void *arg)
{
	struct sigaction sa = { .sa_handler = on_host_signal };
	_Atomic uint32_t *flags = r->shared;
	uint8_t *bytes = calloc(1, BYTES);
	struct member m;
	ist_err e;

	(void)arg;
	sigaction(SIGPIPE, &sa, NULL);
	member_init(&m, IST_TRANSPORT_TCP);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "pipe", rank, 2, 60, 30), &m.err);
	if (rank == 1) {
		ranks_await(&flags[0], 1);
		raise(SIGKILL);
	}
	do {
		e = ist_send_bytes(m.g, bytes, BYTES, 1, 60 * IST_NS_PER_S, &m.err);
		atomic_store(&flags[0], 1);
	} while (!e);
	CHECK_ERR(IST_PEER_LOST, e, &m.err);
	CHECK(signals_seen == 0);
	member_fini(&m);
	CHECK(signals_seen == 0);
	free(bytes);
	return 0;
}

static void
raises_no_sigpipe(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 2);
	ranks_start_all(&r, sends_to_the_dead, NULL);
	assert_int_equal(ranks_join(&r, 60, 2), 0);
	ranks_fini(&r);
}

/* ---- threads and descriptors ---- */

static uint32_t
for_threads(void (*each)(pid_t tid, const char *name, uint64_t blocked, void *arg), void *arg)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	uint32_t n = 0;

	CHECK(d);
	while ((e = readdir(d))) {
		char path[300], line[256], name[64] = "";
		unsigned long long blocked = 0;
		FILE *f;

		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", e->d_name);
		f = fopen(path, "re");
		if (!f)
			continue; /* it has just ended */
		while (fgets(line, sizeof(line), f)) {
			sscanf(line, "Name: %63s", name);
			sscanf(line, "SigBlk: %llx", &blocked);
		}
		fclose(f);
		if (strncmp(name, "ist-", 4) != 0)
			continue;
		each((pid_t)atoi(e->d_name), name, blocked, arg);
		n++;
	}
	closedir(d);
	return n;
}

static void
blocks_all(pid_t tid, const char *name, uint64_t blocked, void *arg)
{
	uint64_t can = ~UINT64_C(0);

	(void)tid, (void)name, (void)arg;
	can &= ~(UINT64_C(1) << (SIGKILL - 1) | UINT64_C(1) << (SIGSTOP - 1));
	can &= ~(UINT64_C(3) << 31); /* 32 and 33 are the C library's own */
	CHECK((blocked & can) == can);
}

static void
runs_on_cpu_0(pid_t tid, const char *name, uint64_t blocked, void *arg)
{
	cpu_set_t set;

	(void)blocked, (void)arg;
	CPU_ZERO(&set);
	if (sched_getaffinity(tid, sizeof(set), &set) == 0 && (CPU_COUNT(&set) != 1 || !CPU_ISSET(0, &set))) {
		fprintf(stderr, "%s runs on %d CPUs\n", name, CPU_COUNT(&set));
		CHECK(0);
	}
}

static void *
ends_at_once(void *arg)
{
	return arg;
}

static void
marks_threads_and_descriptors(void **state)
{
	uint32_t before, ours;
	uint8_t known[4096] = { 0 };
	struct half h[2];
	struct pair p;
	pthread_t t;

	(void)state;
	assert_int_equal(pthread_create(&t, NULL, ends_at_once, NULL), 0); /* a sanitizer starts its own thread with the first */
	pthread_join(t, NULL);
	before = count_threads();
	for (int fd = 0; fd < 4096; fd++)
		known[fd] = fcntl(fd, F_GETFD) >= 0;
	pair_init(&p, NULL);
	pair_form(&p);
	pair_work(&p, h);
	ours = for_threads(blocks_all, NULL);
	assert_true(ours >= 2);
	assert_int_equal(count_threads() - before, ours); /* each of them by its name */
	for (int fd = 0; fd < 4096; fd++) {
		int flags = fcntl(fd, F_GETFD);

		if (flags >= 0 && !known[fd] && !(flags & FD_CLOEXEC))
			fail_msg("descriptor %d would be inherited", fd);
	}
	pair_fini(&p, h);
	for (int fd = 0; fd < 4096; fd++)
		if (fcntl(fd, F_GETFD) >= 0 && !known[fd])
			fail_msg("descriptor %d was left behind", fd);
	/* a joined thread's entry may show for a moment longer */
	for (int i = 0; i < 1000 && count_threads() > before; i++)
		usleep(1000);
	assert_int_equal(count_threads(), before);
}

static void
keeps_to_its_cpus(void **state)
{
	struct ist_env_args ea = { .struct_size = sizeof(ea), .cpus = "0" };
	static const char *const bad[] = { "", "x", "0-", "3-1", "-1", "0,,1", "99999", "0 1" };
	struct ist_env *env;
	struct half h[2];
	cpu_set_t set;
	struct pair p;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
	if (!CPU_ISSET(0, &set)) {
		print_message("CPU 0 is not ours to use\n");
		skip();
	}
	pair_init(&p, &ea);
	pair_form(&p);
	pair_work(&p, h);
	assert_true(for_threads(runs_on_cpu_0, NULL) >= 2);
	pair_fini(&p, h);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		ea.cpus = bad[i];
		if (ist_env_new(&ea, &env, NULL) == IST_OK)
			fail_msg("CPU list \"%s\" was taken", bad[i]);
	}
}

/* ---- memory ---- */

struct counts {
	atomic_ullong allocs, live;
};

static void *
count_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	struct counts *c = ctx;
	void *p = NULL;

	(void)kind, (void)numa;
	if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes ? bytes : 1))
		return NULL;
	atomic_fetch_add(&c->allocs, 1);
	atomic_fetch_add(&c->live, 1);
	return p;
}

static void
count_free(void *ctx, void *p)
{
	struct counts *c = ctx;

	if (!p)
		return;
	atomic_fetch_sub(&c->live, 1);
	free(p);
}

static void
gives_all_memory_back(void **state)
{
	struct counts c = { 0 };
	struct ist_env_args ea = { .struct_size = sizeof(ea), .alloc = count_alloc, .free = count_free, .mem_ctx = &c };
	struct half h[2];
	struct pair p;

	(void)state;
	pair_init(&p, &ea);
	pair_form(&p);
	pair_work(&p, h);
	assert_true(c.allocs > 50);
	pair_fini(&p, h);
	assert_int_equal(c.live, 0);
	/* and so when the env is freed under all of it */
	pair_init(&p, &ea);
	pair_form(&p);
	ist_env_free(p.env);
	assert_int_equal(c.live, 0);
}

/* ---- a forked child ---- */

static void
child_sees_nothing(struct pair *p, struct half h[2])
{
	struct ist_group_args ga = { .struct_size = sizeof(ga), .size = 1, .at = "tcp://127.0.0.1:9" };
	uint8_t room[IST_ADDRESS_BYTES];
	uint64_t n = sizeof(room);
	struct ist_env_args ea = { .struct_size = sizeof(ea) };
	struct ist_endpoint *ep;
	struct ist_group *g;
	struct ist_blob b;
	struct ist_error err;
	struct ist_env *fresh;

	ist_error_init(&err);
	CHECK_ERR(IST_BAD_HANDLE, ist_endpoint_new(p->env, NULL, &ep, &err), &err);
	CHECK_ERR(IST_BAD_HANDLE, ist_endpoint_address(p->ep[0], room, &n, &err), &err);
	CHECK_ERR(IST_BAD_HANDLE, ist_group_new(p->ep[0], &ga, &g, &err), &err);
	for (int i = 0; i < 2; i++) {
		CHECK_ERR(IST_BAD_HANDLE, ist_barrier(p->g[i], 0, &err), &err);
		CHECK_ERR(IST_BAD_HANDLE, ist_send_bytes(p->g[i], "x", 1, 0, 0, &err), &err);
		CHECK_ERR(IST_BAD_HANDLE, ist_recv_bytes(p->g[i], 0, 0, &b, &err), &err);
		CHECK_ERR(IST_BAD_HANDLE, ist_sync_gather(h[i].sync, 0, &err), &err);
		CHECK_ERR(IST_BAD_HANDLE, ist_sync_update(h[i].sync, NULL, NULL, &err), &err);
		CHECK(ist_group_abort(p->g[i], "no") == IST_BAD_HANDLE);
		ist_group_abort_async_signal(p->g[i]);
		CHECK(ist_group_free(p->g[i]) == IST_BAD_HANDLE);
		ist_sync_free(h[i].sync);
		ist_sink_free(h[i].sink);
		ist_checkpoint_free(h[i].ck);
		ist_endpoint_free(p->ep[i]);
	}
	CHECK(ist_abort_all(p->env, "no") == IST_BAD_HANDLE);
	ist_env_free(p->env);
#ifdef __SANITIZE_THREAD__
	return; /* ends a forked child that starts a thread */
#endif
	/* an env of its own is another matter */
	CHECK_ERR(IST_OK, ist_env_new(&ea, &fresh, &err), &err);
	CHECK_ERR(IST_OK, ist_endpoint_new(fresh, NULL, &ep, &err), &err);
	n = sizeof(room);
	CHECK_ERR(IST_OK, ist_endpoint_address(ep, room, &n, &err), &err);
	ga.at = NULL;
	ga.addresses = &(struct ist_address){ room, n };
	CHECK_ERR(IST_OK, ist_group_new(ep, &ga, &g, &err), &err);
	CHECK_ERR(IST_OK, ist_barrier(g, 0, &err), &err);
	ist_env_free(fresh);
}

static int
forks(struct ranks *r, uint32_t rank, void *arg)
{
	struct half h[2];
	struct pair p;

	(void)r, (void)rank, (void)arg;
	pair_init(&p, NULL);
	pair_form(&p);
	pair_work(&p, h);
	for (int i = 0; i < 3; i++) {
		int status;
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid == 0) {
			child_sees_nothing(&p, h);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
		for (int k = 0; k < 2; k++) { /* the parent's group works on */
			struct ist_sync *sync = h[k].sync;
			uint32_t kind;
			uint64_t v, to;

			CHECK_ERR(IST_OK, ist_sync_state(sync, &kind, &v, &to, &p.err), &p.err);
			CHECK(kind == IST_CLEAN && v == 1);
			CHECK_ERR(IST_OK, ist_send_bytes(p.g[k], "x", 1, 1 - (uint32_t)k, 0, &p.err), &p.err);
		}
		for (int k = 0; k < 2; k++) {
			struct ist_blob b;

			CHECK_ERR(IST_OK, ist_recv_bytes(p.g[k], 1 - (uint32_t)k, 0, &b, &p.err), &p.err);
			CHECK(b.bytes == 1);
			ist_blobs_free(p.g[k], &b, 1);
		}
	}
	pair_fini(&p, h);
	return 0;
}

static void
is_not_touched_by_a_forked_child(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 1);
	ranks_start_all(&r, forks, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* ---- whose thread it was ---- */

static void *
form_and_end(void *arg)
{
	pair_form(arg);
	return NULL;
}

/* The thread that made the groups ends; signs of life and connections stay. */
static void
outlives_the_thread_that_made_it(void **state)
{
	struct half h[2];
	struct pair p;
	pthread_t t;

	(void)state;
	pair_init(&p, NULL);
	assert_int_equal(pthread_create(&t, NULL, form_and_end, &p), 0);
	pthread_join(t, NULL);
	for (int i = 0; i < 3; i++) {
		uint32_t n = 0;

		if (i)
			usleep(150000); /* a look for the dead happens every 100 ms at least: one goes by */
		assert_int_equal(ist_group_lost(p.g[0], NULL, &n, &p.err), IST_OK);
		assert_int_equal(n, 0);
	}
	pair_work(&p, h);
	pair_fini(&p, h);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(leaves_its_host_as_it_was),
		cmocka_unit_test(raises_no_sigpipe),
		cmocka_unit_test(marks_threads_and_descriptors),
		cmocka_unit_test(keeps_to_its_cpus),
		cmocka_unit_test(gives_all_memory_back),
		cmocka_unit_test(is_not_touched_by_a_forked_child),
		cmocka_unit_test(outlives_the_thread_that_made_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
