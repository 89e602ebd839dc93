/* SPDX-License-Identifier: Apache-2.0
 *
 * wrap_test.c - the trace and fault wrappers around self, each fault seen and nothing else changed; and the conformance
 * suite on a wrapper and on the host device.
 */
#include "base/clock.h"
#include "conformance.h"
#include "plug/plug.h"

#include <isthmus.h>

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { BIG = 100000 };

static struct ist_error err;
static struct conformance_report report;
static _Atomic uint32_t traced;

static void
on_log(void *ctx, int32_t level, const char *msg)
{
	(void)ctx, (void)level;
	if (!strncmp(msg, "trace ", 6))
		atomic_fetch_add(&traced, 1);
}

struct line {
	struct ist_env *env;
	const struct ist__admitted *a;
	struct ist_chan *chan;
	uint64_t seq;
	uint8_t src[BIG], dst[BIG];
};

static struct ist_env *
env_new(void)
{
	struct ist_env_args args = { .struct_size = sizeof(args), .log_level = IST_LOG_TRACE, .log = on_log };
	struct ist_env *env;

	ist_error_init(&err);
	assert_int_equal(ist_env_new(&args, &env, &err), IST_OK);
	return env;
}

static struct ist_status
status(void)
{
	return (struct ist_status){ .struct_size = sizeof(struct ist_status), .rank = IST_NO_RANK };
}

static ist_err
finish(struct line *l, struct ist_task *task, struct ist_status *st)
{
	int64_t until = ist__now() + 20000 * IST__MS;
	ist_err e;

	do {
		struct ist_progress p = { .struct_size = sizeof(p) };
		int32_t fd;

		assert_int_equal(l->a->ops.progress(l->chan, &p), IST_OK);
		l->a->ops.arm(l->chan, &fd);
		*st = status();
		e = l->a->ops.test(l->chan, task, st);
		assert_true(ist__now() < until);
	} while (st->state < IST_DONE);
	return e;
}

static struct line *
line_new(const char *name)
{
	struct line *l = calloc(1, sizeof(*l));
	struct ist_open args = { .struct_size = sizeof(args), .size = 1, .device = -1, .generation = 1, .deadline_ns = INT64_MAX, .options = "" };
	struct ist_wire wire = { .bytes = 0 };
	struct ist_connect with = { .struct_size = sizeof(with), .size = 1, .all = &wire };
	struct ist_task *task = NULL;
	struct ist_status st = status();

	assert_non_null(l);
	l->env = env_new();
	if (ist__plug_get(l->env, name, &l->a, &err))
		fail_msg("%s: %s", name, err.detail);
	assert_string_equal(l->a->name, name);
	assert_string_equal(l->a->plain, "self");
	assert_int_equal(l->a->ops.open(l->a->ops.self, l->a->host, &args, &l->chan, &st), IST_OK);
	assert_int_equal(l->a->ops.connect(l->chan, &with, &task, &st), IST_OK);
	assert_int_equal(finish(l, task, &st), IST_OK);
	l->a->ops.task_free(l->chan, task);
	for (size_t i = 0; i < BIG; i++)
		l->src[i] = (uint8_t)(i * 7 + 1);
	return l;
}

static void
line_free(struct line *l)
{
	struct ist_status st = status();

	assert_int_equal(l->a->ops.close(l->chan, &st), IST_OK);
	ist_env_free(l->env);
	free(l);
}

static ist_err
start(struct line *l, uint64_t bytes, struct ist_task **out)
{
	struct ist_op send = { .struct_size = sizeof(send), .kind = IST_OP_SEND, .seq = l->seq, .src = { l->src, bytes, 0, 0, -1 } };
	struct ist_op recv = { .struct_size = sizeof(recv), .kind = IST_OP_RECV, .seq = l->seq, .dst = { l->dst, bytes, 0, 0, -1 } };
	const struct ist_op *list[2] = { &send, &recv };
	struct ist_status st = status();

	memset(l->dst, 0, sizeof(l->dst));
	l->seq++;
	return l->a->ops.start(l->chan, list, 2, out, &st);
}

/* How many bytes of an exchange arrive changed. */
static uint32_t
wrong_bytes(struct line *l, uint64_t bytes)
{
	uint32_t wrong = 0;
	struct ist_task *task = NULL;
	struct ist_status st;
	uint8_t *before = malloc(BIG);

	assert_non_null(before);
	memcpy(before, l->src, BIG);
	assert_int_equal(start(l, bytes, &task), IST_OK);
	assert_int_equal(finish(l, task, &st), IST_OK);
	l->a->ops.task_free(l->chan, task);
	assert_memory_equal(before, l->src, BIG); /* a src is never written */
	for (uint64_t i = 0; i < bytes; i++)
		wrong += l->src[i] != l->dst[i];
	free(before);
	return wrong;
}

static void
flip_changes_one_byte_once(void **state)
{
	struct line *l = line_new("fault:flip:self");

	(void)state;
	assert_int_equal(wrong_bytes(l, 1000), 0);
	assert_int_equal(wrong_bytes(l, 65535), 0);
	assert_int_equal(wrong_bytes(l, 65536), 1);
	assert_int_equal(wrong_bytes(l, BIG), 0);
	line_free(l);
	l = line_new("fault:flip=2:self"); /* the second payload of the first exchange: what it receives */
	assert_int_equal(wrong_bytes(l, BIG), 1);
	assert_int_equal(wrong_bytes(l, BIG), 0);
	line_free(l);
}

static void
fail_fails_one_start(void **state)
{
	struct line *l = line_new("fault:fail=2:self");
	struct ist_task *task = NULL;

	(void)state;
	assert_int_equal(wrong_bytes(l, 10), 0);
	assert_int_equal(start(l, 10, &task), IST_IO);
	assert_null(task);
	assert_int_equal(wrong_bytes(l, 10), 0);
	line_free(l);
}

static void
stall_waits_for_an_abort(void **state)
{
	struct line *l = line_new("fault:stall=2:self");
	struct ist_progress p = { .struct_size = sizeof(p) };
	struct ist_task *task = NULL;
	struct ist_status st;
	uint64_t ended;

	(void)state;
	assert_int_equal(wrong_bytes(l, 10), 0);
	assert_int_equal(start(l, 10, &task), IST_OK);
	for (int i = 0; i < 100; i++) {
		l->a->ops.progress(l->chan, &p);
		st = status();
		assert_int_equal(l->a->ops.test(l->chan, task, &st), IST_OK);
		assert_int_equal(st.state, IST_PENDING);
	}
	ended = p.ended;
	l->a->ops.abort(l->chan, IST_NO_PROGRESS);
	assert_int_equal(finish(l, task, &st), IST_NO_PROGRESS);
	l->a->ops.progress(l->chan, &p);
	assert_int_equal(p.ended, ended + 1);
	l->a->ops.task_free(l->chan, task);
	assert_int_equal(start(l, 10, &task), IST_NO_PROGRESS);
	line_free(l);
}

static void
drop_says_done_and_moves_nothing(void **state)
{
	struct line *l = line_new("fault:drop:self");

	(void)state;
	assert_int_equal(wrong_bytes(l, 200), 200 - 1); /* i * 7 + 1 is 0 once in 256 */
	line_free(l);
}

static void
delay_delays(void **state)
{
	struct line *l = line_new("fault:delay=30:self");
	int64_t at = ist__now();

	(void)state;
	assert_int_equal(wrong_bytes(l, BIG), 0);
	assert_true(ist__now() - at >= 30 * IST__MS);
	line_free(l);
}

static void
faults_come_together_and_are_checked(void **state)
{
	static const char *const bad[] = { "fault:self", "fault::self", "fault:flip=0:self", "fault:flip=x:self", "fault:flip=1x:self", "fault:nonsense:self",
		"fault:delay:self", "fault:flip,:self,", "fault:flip", "trace:nonesuch", "fault:flip:nonesuch", "trace:" };
	struct line *l = line_new("fault:flip=1,fail=3,delay=1:self");
	struct ist_task *task;
	struct ist_env *env;
	const struct ist__admitted *a;

	(void)state;
	assert_int_equal(wrong_bytes(l, BIG), 1);
	assert_int_equal(wrong_bytes(l, BIG), 0);
	assert_int_equal(start(l, 10, &task), IST_IO);
	line_free(l);
	env = env_new();
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		ist_err e = ist__plug_get(env, bad[i], &a, &err);

		if (e != IST_BAD_CONFIG && e != IST_INVALID_ARGUMENT)
			fail_msg("%s: %s", bad[i], ist_err_name(e));
	}
	ist_env_free(env);
}

static void
trace_tells(void **state)
{
	struct line *l = line_new("trace:fault:delay=1:self");
	uint32_t before = atomic_load(&traced);

	(void)state;
	assert_int_equal(wrong_bytes(l, BIG), 0);
	assert_true(atomic_load(&traced) >= before + 3); /* two operations and their end */
	line_free(l);
}

static void
conforms(const char *name)
{
	struct ist_env *env = env_new();
	const struct ist__admitted *a;

	if (ist__plug_get(env, name, &a, &err)) {
		ist_env_free(env);
		skip();
	}
	if (conformance_run(name, &a->ops, &report))
		for (uint32_t i = 0; i < report.n; i++)
			if (report.checks[i].result == CONFORMANCE_FAILED)
				print_error("%s: %s: %s\n", name, report.checks[i].name, report.checks[i].text);
	assert_int_equal(report.failed, 0);
	assert_true(report.passed > 20);
	ist_env_free(env);
}

static void
a_wrapper_conforms(void **state)
{
	(void)state;
	conforms("trace:self");
}

static void
a_wrapper_of_host_conforms(void **state)
{
	(void)state;
	conforms("trace:host");
}

static void
the_host_device_conforms(void **state)
{
	struct ist_env *env = env_new();

	(void)state;
	if (conformance_run_device("host", ist__plug_device(env, IST_MEM_HOST), &report))
		for (uint32_t i = 0; i < report.n; i++)
			if (report.checks[i].result == CONFORMANCE_FAILED)
				print_error("host: %s: %s\n", report.checks[i].name, report.checks[i].text);
	assert_int_equal(report.failed, 0);
	assert_int_equal(report.passed, 7);
	ist_env_free(env);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(flip_changes_one_byte_once),
		cmocka_unit_test(fail_fails_one_start),
		cmocka_unit_test(stall_waits_for_an_abort),
		cmocka_unit_test(drop_says_done_and_moves_nothing),
		cmocka_unit_test(delay_delays),
		cmocka_unit_test(faults_come_together_and_are_checked),
		cmocka_unit_test(trace_tells),
		cmocka_unit_test(a_wrapper_conforms),
		cmocka_unit_test(a_wrapper_of_host_conforms),
		cmocka_unit_test(the_host_device_conforms),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
