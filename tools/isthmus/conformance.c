/* SPDX-License-Identifier: Apache-2.0
 *
 * conformance.c - runs the checks, each in a process of its own, and keeps the books.
 */
#include "conformance.h"

#include "conformance_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GUARD_S = 60, ASK_MS = 100 };

struct run {
	const struct conformance_args *args;
	const struct ist_backend *backend;
	const struct ist_device *device;
	struct cf_shared *shared;
	struct conformance_report *report;
	bool stopped;
};

const char *
conformance_op_name(uint32_t kind)
{
	static const char *const names[] = { NULL, "send", "recv", "broadcast", "all_gather", "all_reduce", "reduce_scatter", "gather", "scatter",
		"all_to_all", "barrier", "read", "suspend", "resume" };

	return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : NULL;
}

static bool
stopped(struct run *run)
{
	run->stopped = run->stopped || (run->args->stop && run->args->stop(run->args->ctx));
	return run->stopped;
}

/* True when the process ended in time; its status. */
static bool
wait_for(struct run *run, pid_t pid, int64_t until, int *status)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	for (;;) {
		int64_t left = until - cf_now();
		pid_t got = waitpid(pid, status, WNOHANG);

		if (got == pid || (got < 0 && errno != EINTR)) {
			if (fd >= 0)
				close(fd);
			return true;
		}
		if (left <= 0 || stopped(run))
			break;
		left = left / CF_MS + 1;
		poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, fd >= 0, fd < 0 ? 10 : left < ASK_MS ? (int)left : ASK_MS);
	}
	if (fd >= 0)
		close(fd);
	return false;
}

static void
in_child(struct run *run, void (*check)(struct cf *t), pid_t parent)
{
	sigset_t none;
	struct cf t;

	setpgid(0, 0); /* with what it forks it is ended as one */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL); /* who runs the suite may hold some back */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(CF_EXIT_FAILED);
	signal(SIGPIPE, SIG_DFL); /* a backend must not rely on somebody ignoring it */
	cf_init(&t, run->backend, run->device, run->args->options, run->shared);
	check(&t);
	_exit(0);
}

static void explain(struct conformance_check *c, const struct cf_shared *s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void
explain(struct conformance_check *c, const struct cf_shared *s, const char *fmt, ...)
{
	size_t n;
	va_list ap;

	va_start(ap, fmt);
	n = (size_t)vsnprintf(c->text, sizeof(c->text), fmt, ap);
	va_end(ap);
	if (n < sizeof(c->text))
		snprintf(c->text + n, sizeof(c->text) - n, "%s%s", *s->stage ? " in: " : "", s->stage);
	c->result = CONFORMANCE_FAILED;
}

static void
run_one(struct run *run, const char *name, void (*check)(struct cf *t), uint32_t guard_s, struct conformance_check *c)
{
	struct cf_shared *s = run->shared;
	int64_t began = cf_now();
	pid_t parent = getpid(), pid;
	int status = 0;
	bool ended;

	*c = (struct conformance_check){ .name = name };
	atomic_store(&s->told, 0);
	atomic_store(&s->staging, 0);
	s->text[0] = s->stage[0] = 0;
	for (int i = 0; i < CF_CELLS; i++)
		atomic_store(&s->cell[i], 0);
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		in_child(run, check, parent);
	if (pid < 0) {
		explain(c, s, "the suite can't fork: errno %d", errno);
		return;
	}
	setpgid(pid, pid);
	ended = wait_for(run, pid, began + (int64_t)guard_s * 1000 * CF_MS, &status);
	kill(-pid, SIGKILL); /* what it left running too */
	if (!ended)
		waitpid(pid, &status, 0);
	s->text[sizeof(s->text) - 1] = s->stage[sizeof(s->stage) - 1] = 0;
	c->seconds = (double)(cf_now() - began) / 1e9;
	if (!ended && run->stopped)
		c->result = CONFORMANCE_SKIPPED;
	else if (!ended)
		explain(c, s, "it hung: not over after %u s", guard_s);
	else if (WIFSIGNALED(status))
		explain(c, s, "it crashed: signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status) == CF_EXIT_FAILED || WEXITSTATUS(status) == CF_EXIT_SKIPPED) {
		c->result = WEXITSTATUS(status) == CF_EXIT_FAILED ? CONFORMANCE_FAILED : CONFORMANCE_SKIPPED;
		snprintf(c->text, sizeof(c->text), "%s", s->text);
	} else if (WEXITSTATUS(status) != 0)
		explain(c, s, "it ended the process with status %d", WEXITSTATUS(status));
}

static void
keep(struct run *run, const struct conformance_check *c)
{
	struct conformance_report *r = run->report;

	r->passed += c->result == CONFORMANCE_PASSED;
	r->failed += c->result == CONFORMANCE_FAILED;
	r->skipped += c->result == CONFORMANCE_SKIPPED;
	if (r->n < CONFORMANCE_CHECKS_MAX)
		r->checks[r->n++] = *c;
	if (run->args->tell)
		run->args->tell(run->args->ctx, c);
}

static bool
asked_for(const char *only, const char *name)
{
	size_t n = strlen(name);

	for (const char *at = only; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
		if (!strncmp(at, name, n) && (at[n] == ',' || at[n] == 0))
			return true;
	return !only;
}

static uint32_t
guard_of(const struct run *run, const struct cf_entry *check)
{
	uint32_t own = check->guard_s ? check->guard_s : GUARD_S, most = run->args->guard_s;

	return most && most < own ? most : own;
}

/* why_not: all are skipped for that reason. */
static void
run_list(struct run *run, const struct cf_entry *list, const char *why_not)
{
	for (; list->name; list++) {
		struct conformance_check c = { .name = list->name, .result = CONFORMANCE_SKIPPED };

		if (!asked_for(run->args->only, list->name))
			continue;
		if (stopped(run))
			return;
		if (why_not)
			snprintf(c.text, sizeof(c.text), "%s", why_not);
		else
			run_one(run, list->name, list->run, guard_of(run, list), &c);
		if (!run->stopped)
			keep(run, &c);
	}
}

/* What the plug-in can do decides what is checked; finding out may crash as well. */
static void
run_backend(struct run *run)
{
	const uint64_t moves = UINT64_C(1) << IST_OP_SEND | UINT64_C(1) << IST_OP_RECV, all = (UINT64_C(2) << IST_OP_BARRIER) - 2;
	struct conformance_check facts;
	char why[512] = "";

	if (!run->backend->probe || !run->backend->open || !run->backend->close) {
		run_list(run, cf_shape_checks, NULL);
		return;
	}
	run_one(run, "it_opens", cf_facts, 30, &facts);
	if (!facts.result && run->shared->usable && !run->shared->size_ok[1] && !run->shared->size_ok[2]) {
		facts.result = CONFORMANCE_FAILED;
		snprintf(facts.text, sizeof(facts.text), "open takes a group neither of 1 nor of 2: %s", run->shared->refusal);
	}
	run->report->native_ops = run->shared->native;
	run->report->composed_ops = all & ~run->shared->native & ~moves;
	if (run->stopped)
		return;
	keep(run, &facts);
	if (facts.result)
		snprintf(why, sizeof(why), "it does not open");
	else if (!run->shared->usable)
		snprintf(why, sizeof(why), "it can't run here: %s", run->shared->reason);
	if (*why) { /* the first three need nothing opened */
		struct cf_entry head[4] = { cf_shape_checks[0], cf_shape_checks[1], cf_shape_checks[2], { NULL, NULL, 0 } };

		run_list(run, head, NULL);
	}
	run_list(run, cf_shape_checks + (*why ? 3 : 0), *why ? why : NULL);
	run_list(run, cf_move_checks, *why ? why : NULL);
	run_list(run, cf_end_checks, *why ? why : NULL);
	run_list(run, cf_native_checks, *why ? why : NULL);
}

/* Loads the file in a child first: one that takes its process with it is then known. */
static void
load_check(struct cf *t)
{
	const char *path = t->options;
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		cf_fail(t, "%.400s", dlerror());
	if (!dlsym(lib, IST_BACKEND_ENTRY) && !dlsym(lib, IST_DEVICE_ENTRY))
		cf_fail(t, "it exports neither %s nor %s", IST_BACKEND_ENTRY, IST_DEVICE_ENTRY);
}

static bool
load(struct run *run, const char *path)
{
	struct conformance_args args = { .options = NULL };
	struct run first = *run;
	struct conformance_check c;
	char *real = realpath(path, NULL);
	void *lib, *sym = NULL;

	args.options = real;
	args.stop = run->args->stop;
	args.ctx = run->args->ctx;
	first.args = &args;
	if (real)
		run_one(&first, "loads", load_check, 30, &c);
	else
		c = (struct conformance_check){ .name = "loads", .result = CONFORMANCE_FAILED };
	if (!real)
		snprintf(c.text, sizeof(c.text), "%s: %s", path, strerror(errno));
	keep(run, &c);
	if (c.result) {
		free(real);
		return false;
	}
	lib = dlopen(real, RTLD_NOW | RTLD_LOCAL);
	free(real);
	sym = lib ? dlsym(lib, IST_BACKEND_ENTRY) : NULL;
	if (sym) {
		ist_backend_entry get;

		memcpy(&get, &sym, sizeof(get));
		run->backend = get();
	} else if (lib && (sym = dlsym(lib, IST_DEVICE_ENTRY))) {
		ist_device_entry get;

		memcpy(&get, &sym, sizeof(get));
		run->device = get();
	}
	return run->backend || run->device;
}

/* Texts of a table that may be nonsense. */
static void
copy_name(struct conformance_report *r, const char *name)
{
	snprintf(r->name, sizeof(r->name), "%s", name ? name : "");
}

int
conformance_run_args(const struct conformance_args *args, struct conformance_report *out)
{
	struct run run = { .args = args, .backend = args->backend, .device = args->device, .report = out };
	bool there;

	memset(out, 0, sizeof(*out));
	run.shared = mmap(NULL, sizeof(*run.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (run.shared == MAP_FAILED)
		return 2;
	there = run.backend || run.device || (args->path && load(&run, args->path));
	if (run.backend && run.backend->struct_size >= offsetof(struct ist_backend, self)) {
		strcpy(out->kind, "backend");
		copy_name(out, run.backend->name);
		if (run.backend->struct_size >= IST_BACKEND_SIZE_MIN && run.backend->abi == IST_BACKEND_ABI)
			run_backend(&run);
		else
			run_list(&run, (const struct cf_entry[]){ cf_shape_checks[0], { NULL, NULL, 0 } }, NULL);
	} else if (run.device && run.device->struct_size >= offsetof(struct ist_device, self)) {
		strcpy(out->kind, "device");
		copy_name(out, run.device->name);
		run_list(&run, cf_device_checks, NULL);
	} else if (there || out->n == 0) {
		struct conformance_check c = { .name = "loads", .result = CONFORMANCE_FAILED, .text = "there is no table" };

		there = false;
		keep(&run, &c);
	}
	munmap(run.shared, sizeof(*run.shared));
	return !there ? 2 : out->failed ? 1 : 0;
}

int
conformance_run(const char *path, const struct ist_backend *table, struct conformance_report *out)
{
	return conformance_run_args(&(struct conformance_args){ .path = path, .backend = table }, out);
}

int
conformance_run_device(const char *path, const struct ist_device *table, struct conformance_report *out)
{
	return conformance_run_args(&(struct conformance_args){ .path = path, .device = table }, out);
}
