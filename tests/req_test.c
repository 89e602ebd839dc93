/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/fail.h"
#include "coll/req.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

struct maker {
	struct ist_env *env;
	atomic_int cancels, overdues, releases, gone;
	bool end_on_cancel;
	pthread_t helper;
	struct ist_req *req;
};

static void *
end_it(void *arg)
{
	struct maker *m = arg;
	struct ist_error err = { .struct_size = sizeof(err) };

	ist__fail(&err, IST_ABORTED, "test", "cancelled");
	ist__req_finish(m->req, &err);
	ist__req_drop(m->req);
	return NULL;
}

static void
on_cancel(void *owner, struct ist_req *req)
{
	struct maker *m = owner;

	m->cancels++;
	m->req = req;
	if (m->end_on_cancel)
		assert_int_equal(pthread_create(&m->helper, NULL, end_it, m), 0);
}

static void
on_pending(void *owner, struct ist_req *req, struct ist_error *err)
{
	(void)owner, (void)req;
	ist__fail_rank(err, 7);
}

static void
on_overdue(void *owner, struct ist_req *req)
{
	struct maker *m = owner;
	struct ist_error err = { .struct_size = sizeof(err) };

	m->overdues++;
	ist__fail(&err, IST_TIMEOUT, "test", "stuck");
	if (ist__req_finish(req, &err))
		ist__req_drop(req);
}

static void
on_release(void *owner, struct ist_req *req)
{
	(void)req;
	((struct maker *)owner)->releases++;
}

static void
on_gone(void *owner)
{
	((struct maker *)owner)->gone++;
}

static const struct ist__req_ops ops = { .cancel = on_cancel, .pending = on_pending, .overdue = on_overdue, .release = on_release };

static int
setup(void **state)
{
	static struct maker m;

	memset(&m, 0, sizeof(m));
	*state = &m;
	return ist_env_new(NULL, &m.env, NULL);
}

static int
teardown(void **state)
{
	ist_env_free(((struct maker *)*state)->env);
	return 0;
}

static void
done_well_is_seen_by_all(void **state)
{
	struct maker *m = *state;
	struct ist_req *req;
	struct ist_error err = { .struct_size = sizeof(err) };
	struct pollfd p = { .events = POLLIN };
	struct ist_buf view;
	uint32_t done = 9;

	ist_error_init(&err);
	assert_int_equal(ist__req_new(m->env, &ops, m, &req), IST_OK);
	assert_int_equal(ist_req_test(req, &done, &err), IST_OK);
	assert_int_equal(done, 0);
	assert_int_equal(err.n_ranks, 1); /* who is missing */
	assert_int_equal(err.ranks[0], 7);
	assert_int_equal(ist_req_wait(req, 1, &err), IST_TIMEOUT);
	assert_int_equal(ist_req_fd(req, &p.fd, &err), IST_OK);
	assert_int_equal(poll(&p, 1, 0), 0);
	assert_int_equal(ist_req_view(req, &view, &err), IST_BAD_STATE);
	ist__req_set_payload(req, m);
	assert_true(ist__req_finish(req, NULL));
	assert_false(ist__req_finish(req, NULL)); /* once */
	assert_int_equal(poll(&p, 1, 0), 1);
	assert_int_equal(ist_req_test(req, &done, &err), IST_OK);
	assert_int_equal(done, 1);
	assert_int_equal(err.code, IST_OK);
	assert_int_equal(ist_req_wait(req, -1, &err), IST_OK);
	assert_int_equal(ist_req_cancel(req), IST_OK); /* too late, does nothing */
	assert_int_equal(m->cancels, 0);
	assert_int_equal(ist_req_view(req, &view, &err), IST_BAD_STATE);
	assert_ptr_equal(ist__req_take_payload(req), m);
	assert_null(ist__req_take_payload(req));
	ist__req_drop(req);
	assert_int_equal(ist_req_free(req), IST_OK);
	assert_int_equal(ist_req_free(req), IST_BAD_HANDLE);
	assert_int_equal(m->releases, 0);
}

static void
an_error_arrives_whole(void **state)
{
	struct maker *m = *state;
	struct ist_req *req;
	struct ist_error err = { .struct_size = sizeof(err) }, got;
	int32_t fd;
	uint32_t done = 0;

	assert_int_equal(ist__req_new(m->env, &ops, m, &req), IST_OK);
	ist__fail(&err, IST_PEER_LOST, "broadcast", "rank 3 is gone");
	ist__fail_rank(&err, 3);
	ist__req_finish(req, &err);
	ist__req_drop(req);
	ist_error_init(&got);
	assert_int_equal(ist_req_wait(req, 0, &got), IST_PEER_LOST);
	assert_memory_equal(&got, &err, sizeof(got));
	assert_int_equal(ist_req_wait(req, 0, NULL), IST_PEER_LOST);
	assert_int_equal(ist_req_test(req, &done, NULL), IST_PEER_LOST);
	assert_int_equal(done, 1);
	assert_int_equal(ist_req_fd(req, &fd, NULL), IST_OK); /* made after the end: readable at once */
	assert_int_equal(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 0), 1);
	assert_int_equal(ist_req_free(req), IST_OK);
}

static void
free_cancels_and_waits(void **state)
{
	struct maker *m = *state;
	struct ist_req *req;

	m->end_on_cancel = true;
	assert_int_equal(ist__req_new(m->env, &ops, m, &req), IST_OK);
	assert_int_equal(ist_req_free(req), IST_OK);
	assert_int_equal(m->cancels, 1);
	pthread_join(m->helper, NULL);
}

/* The child's two ends: it says that it has cancelled, and hears when its maker may end. */
static int says, hears;

/* A maker that still has something to do, which takes it a moment. */
static void *
end_when_told(void *arg)
{
	struct timespec work = { .tv_nsec = 300000000 };
	char c;

	if (read(hears, &c, 1) != 1)
		return NULL;
	nanosleep(&work, NULL);
	return end_it(arg);
}

static void
say_cancelled(void *owner, struct ist_req *req)
{
	struct maker *m = owner;

	m->req = req;
	if (pthread_create(&m->helper, NULL, end_when_told, m) || write(says, "c", 1) != 1)
		_exit(2);
}

static void
free_while_stopped(void)
{
	static const struct ist__req_ops told = { .cancel = say_cancelled, .pending = on_pending, .release = on_release };
	static struct maker m;
	struct ist_req *req;

	if (ist_env_new(NULL, &m.env, NULL) || ist__req_new(m.env, &told, &m, &req))
		_exit(3);
	if (ist_req_free(req))
		_exit(1);
	pthread_join(m.helper, NULL);
	ist_env_free(m.env);
	_exit(0);
}

/* Longer than free waits, so that counting that time would end the wait at once. */
static void
free_does_not_count_time_in_which_the_process_was_stopped(void **state)
{
	int up[2], down[2], status;
	struct timespec stopped = { .tv_sec = 6 };
	pid_t pid;
	char c;

	(void)state;
	assert_true(!pipe(up) && !pipe(down));
	says = up[1];
	hears = down[0];
	pid = fork();
	if (pid == 0)
		free_while_stopped();
	assert_int_equal(read(up[0], &c, 1), 1);
	kill(pid, SIGSTOP);
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	nanosleep(&stopped, NULL);
	kill(pid, SIGCONT);
	assert_int_equal(write(down[1], "e", 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	for (int i = 0; i < 2; i++) {
		close(up[i]);
		close(down[i]);
	}
}

/* A maker that is stuck is found by whoever waits, or looks. */
static void
a_second_past_its_deadline_the_waiter_looks(void **state)
{
	struct maker *m = *state;
	struct ist_req *req;
	uint32_t done = 0;

	for (int by_test = 0; by_test < 2; by_test++) {
		assert_int_equal(ist__req_new(m->env, &ops, m, &req), IST_OK);
		req->deadline = ist__now() - 2 * IST_NS_PER_S;
		if (by_test)
			assert_int_equal(ist_req_test(req, &done, NULL), IST_TIMEOUT);
		else
			assert_int_equal(ist_req_wait(req, -1, NULL), IST_TIMEOUT);
		assert_int_equal(m->overdues, by_test + 1);
		assert_int_equal(ist_req_free(req), IST_OK);
	}
}

static void
bad_handles_are_refused(void **state)
{
	struct maker *m = *state;
	struct ist_req *req;
	uint32_t done;
	int32_t fd;
	int status;
	pid_t pid;

	assert_int_equal(ist__req_new(m->env, &ops, m, &req), IST_OK);
	assert_int_equal(ist_req_test(NULL, &done, NULL), IST_BAD_HANDLE);
	assert_int_equal(ist_req_wait((struct ist_req *)m->env, 0, NULL), IST_BAD_HANDLE); /* another kind */
	assert_int_equal(ist_req_cancel(NULL), IST_BAD_HANDLE);
	assert_int_equal(ist_req_free(NULL), IST_BAD_HANDLE);
	assert_int_equal(ist_req_test(req, NULL, NULL), IST_INVALID_ARGUMENT);
	assert_int_equal(ist_req_fd(req, NULL, NULL), IST_INVALID_ARGUMENT);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(ist_req_wait(req, 0, NULL) != IST_BAD_HANDLE || ist_req_free(req) != IST_BAD_HANDLE);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	ist__req_finish(req, NULL);
	ist__req_drop(req);
	assert_int_equal(ist_req_free(req), IST_OK);
	assert_int_equal(ist_req_wait(req, 0, NULL), IST_BAD_HANDLE);
	assert_int_equal(ist_req_fd(req, &fd, NULL), IST_BAD_HANDLE);
}

static void
a_pool_uses_its_requests_again(void **state)
{
	struct maker *m = *state;
	struct ist__req_pool pool;
	struct ist_req *a, *b;
	const struct ist_buf view = { .bytes = 5 };
	struct ist_buf got;

	ist__pool_init(&pool, m->env, sizeof(struct ist_req) + 64, &ops, m, on_gone);
	a = ist__pool_get(&pool);
	memset(a + 1, 1, 64);
	ist__req_lend(a, &view);
	ist__req_finish(a, NULL);
	ist__req_drop(a);
	assert_int_equal(ist_req_view(a, &got, NULL), IST_OK);
	assert_int_equal(got.bytes, 5);
	assert_int_equal(ist_req_free(a), IST_OK);
	assert_int_equal(m->releases, 1);
	assert_int_equal(ist_req_wait(a, 0, NULL), IST_BAD_HANDLE); /* recognised while it lies in the pool */
	b = ist__pool_get(&pool);
	assert_ptr_equal(a, b);
	assert_int_equal(*(char *)(b + 1), 0);
	assert_int_equal(ist_req_wait(b, 1, NULL), IST_TIMEOUT);
	ist__pool_close(&pool);
	assert_int_equal(m->gone, 0); /* b is still out */
	ist__req_finish(b, NULL);
	ist__req_drop(b);
	assert_int_equal(ist_req_wait(b, 0, NULL), IST_OK);
	assert_int_equal(ist_req_free(b), IST_OK);
	assert_int_equal(m->gone, 1);
}

static void *
wait_for(void *req)
{
	return (void *)(intptr_t)ist_req_wait(req, -1, NULL);
}

static void
many_threads_wait_for_one(void **state)
{
	struct maker *m = *state;
	struct ist_req *req;
	pthread_t t[4];
	void *rc;

	assert_int_equal(ist__req_new(m->env, &ops, m, &req), IST_OK);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, wait_for, req), 0);
	ist__req_finish(req, NULL);
	ist__req_drop(req);
	for (int i = 0; i < 4; i++) {
		pthread_join(t[i], &rc);
		assert_null(rc);
	}
	assert_int_equal(ist_req_free(req), IST_OK);
}

struct counted {
	atomic_long live;
};

static void *
counted_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	void *p = NULL;

	(void)kind, (void)numa;
	if (posix_memalign(&p, align < 16 ? 16 : align, bytes ? bytes : 1))
		return NULL;
	((struct counted *)ctx)->live++;
	return p;
}

static void
counted_free(void *ctx, void *p)
{
	((struct counted *)ctx)->live -= p != NULL;
	free(p);
}

/* One of a pool with a view, one that failed and has a descriptor, one that lies in the pool: all go with the env. */
static void
what_nobody_freed_goes_with_the_env(void **state)
{
	struct counted mem = { 0 };
	struct ist_env_args args = { .struct_size = sizeof(args), .alloc = counted_alloc, .free = counted_free, .mem_ctx = &mem };
	struct maker *m = *state;
	const struct ist_buf view = { .bytes = 5 };
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_req *pooled, *idle, *own;
	struct ist__req_pool pool;
	struct ist_env *env;
	int32_t fd = -1;

	assert_int_equal(ist_env_new(&args, &env, NULL), IST_OK);
	ist__pool_init(&pool, env, sizeof(struct ist_req), &ops, m, on_gone);
	pooled = ist__pool_get(&pool);
	idle = ist__pool_get(&pool);
	ist__req_end(idle, NULL);
	assert_int_equal(ist_req_free(idle), IST_OK);
	ist__req_lend(pooled, &view);
	ist__req_end(pooled, NULL);
	ist__pool_close(&pool);
	assert_int_equal(m->gone, 0);
	assert_int_equal(ist__req_new(env, &ops, m, &own), IST_OK);
	assert_int_equal(ist_req_fd(own, &fd, NULL), IST_OK);
	ist__fail(&err, IST_IO, "test", "it failed");
	ist__req_end(own, &err);
	ist_env_free(env);
	assert_int_equal(m->releases, 1);
	assert_int_equal(m->gone, 1);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	assert_int_equal(mem.live, 0);
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(done_well_is_seen_by_all), T(an_error_arrives_whole), T(free_cancels_and_waits), T(free_does_not_count_time_in_which_the_process_was_stopped),
		T(a_second_past_its_deadline_the_waiter_looks),
		T(bad_handles_are_refused), T(a_pool_uses_its_requests_again), T(many_threads_wait_for_one),
		T(what_nobody_freed_goes_with_the_env),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
