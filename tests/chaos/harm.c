/* SPDX-License-Identifier: Apache-2.0 */
#include "harm.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

const char *const phase_names[PHASES] = { "create", "split", "gather", "update", "free", "idle", "retry" };

static struct {
	struct harm plan;
	pthread_t thread;
	bool running;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	enum phase at;
	bool quit;
	struct ist_group *group;
	struct ist_req *forming;
	_Atomic int64_t to_go;   /* allocations until the first that fails; INT64_MAX: never */
	_Atomic int64_t fails;   /* how many still fail */
	_Atomic bool told;
	_Atomic int64_t clock_s; /* added to the time of day */
} self = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER, .at = IDLE, .to_go = INT64_MAX };

double
now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void
say(const char *fmt, ...)
{
	char line[8192];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line) - 1, fmt, ap);
	va_end(ap);
	if (n > (int)sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	line[n++] = '\n';
	for (int done = 0; done < n;) {
		ssize_t k = write(1, line + done, (size_t)(n - done));

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return; /* nobody listens any more */
		done += (int)k;
	}
}

bool
harm_parse(struct harm *h, const char *text)
{
	char phase[16];
	long long us;
	unsigned arg;

	memset(h, 0, sizeof(*h));
	if (!*text)
		return true;
	if (sscanf(text, "%15[a-z]:%15[a-z]:%lld:%u", h->kind, phase, &us, &arg) != 4)
		return false;
	h->after_us = us;
	h->arg = arg;
	for (h->phase = CREATE; h->phase < IDLE; h->phase++)
		if (!strcmp(phase, phase_names[h->phase]))
			return true;
	return false;
}

/* Half of arg in seconds, back where it is odd. */
static void
turn_clock(uint32_t arg)
{
	atomic_store(&self.clock_s, arg % 2 ? -(int64_t)(arg / 2) : arg / 2);
}

/* In front of the system's, for the library too. */
int
clock_gettime(clockid_t clock, struct timespec *t)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, t);

	if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		t->tv_sec += atomic_load(&self.clock_s);
	return rc;
}

static void
on_storm(int number)
{
	(void)number;
}

/* Until the round ends: whoever waits in a system call is interrupted, again and again. Lock held, and given away meanwhile. */
static void
storm(void)
{
	struct timespec t = { .tv_nsec = 100000 };

	while (self.at != IDLE && !self.quit) {
		pthread_mutex_unlock(&self.lock);
		kill(getpid(), SIGUSR1);
		nanosleep(&t, NULL);
		pthread_mutex_lock(&self.lock);
	}
}

/* Lock held, and kept: the phase told is the phase hit. */
static void
strike(void)
{
	const char *kind = self.plan.kind;

	if (self.at == IDLE) {
		say("{\"ev\":\"missed\"}");
		return;
	}
	say("{\"ev\":\"hit\",\"phase\":\"%s\",\"t\":%.6f}", phase_names[self.at], now_s());
	if (!strcmp(kind, "kill"))
		kill(getpid(), SIGKILL);
	else if (!strcmp(kind, "exit"))
		_exit(7);
	else if (!strcmp(kind, "stop"))
		kill(getpid(), SIGSTOP);
	else if (!strcmp(kind, "storm"))
		storm();
	else if (!strcmp(kind, "clock"))
		turn_clock(self.plan.arg);
	else if (!strcmp(kind, "abort") && self.group)
		ist_group_abort(self.group, "chaos");
	else if (!strcmp(kind, "abort") && self.forming)
		ist_req_cancel(self.forming);
}

static void *
harm_main(void *arg)
{
	struct timespec t = { .tv_sec = self.plan.after_us / 1000000, .tv_nsec = self.plan.after_us % 1000000 * 1000 };
	sigset_t storms;

	(void)arg;
	sigemptyset(&storms);
	sigaddset(&storms, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &storms, NULL);
	pthread_mutex_lock(&self.lock);
	while (self.at != self.plan.phase && !self.quit)
		pthread_cond_wait(&self.cond, &self.lock);
	pthread_mutex_unlock(&self.lock);
	if (t.tv_sec || t.tv_nsec)
		nanosleep(&t, NULL);
	pthread_mutex_lock(&self.lock);
	strike();
	pthread_mutex_unlock(&self.lock);
	return NULL;
}

bool
harm_start(const struct harm *h)
{
	self.plan = *h;
	atomic_store(&self.clock_s, 0);
	sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = on_storm }, NULL); /* without SA_RESTART */
	self.running = h->kind[0] && strcmp(h->kind, "alloc") != 0 && pthread_create(&self.thread, NULL, harm_main, NULL) == 0;
	return self.running || !h->kind[0] || !strcmp(h->kind, "alloc");
}

void
harm_phase(enum phase phase)
{
	bool alloc = !strcmp(self.plan.kind, "alloc");

	pthread_mutex_lock(&self.lock);
	self.at = phase;
	pthread_cond_broadcast(&self.cond);
	pthread_mutex_unlock(&self.lock);
	if (alloc && phase == self.plan.phase) {
		atomic_store(&self.fails, self.plan.arg ? self.plan.arg : INT64_MAX);
		atomic_store(&self.to_go, self.plan.after_us);
	} else if (alloc && phase == IDLE)
		atomic_store(&self.to_go, INT64_MAX);
}

void
harm_group(struct ist_group *group)
{
	pthread_mutex_lock(&self.lock);
	self.group = group;
	pthread_mutex_unlock(&self.lock);
}

void
harm_forming(struct ist_req *req)
{
	pthread_mutex_lock(&self.lock);
	self.forming = req;
	pthread_mutex_unlock(&self.lock);
}

void
harm_stop(void)
{
	pthread_mutex_lock(&self.lock);
	self.at = IDLE;
	self.quit = true;
	pthread_cond_broadcast(&self.cond);
	pthread_mutex_unlock(&self.lock);
	if (self.running)
		pthread_join(self.thread, NULL);
	self.running = false;
}

static bool
must_fail(void)
{
	if (atomic_load(&self.to_go) == INT64_MAX || atomic_fetch_sub(&self.to_go, 1) > 0 || atomic_fetch_sub(&self.fails, 1) <= 0)
		return false;
	if (!atomic_exchange(&self.told, true))
		say("{\"ev\":\"hit\",\"phase\":\"%s\",\"t\":%.6f}", phase_names[__atomic_load_n(&self.at, __ATOMIC_RELAXED)], now_s());
	return true;
}

void *
harm_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	void *p = NULL;

	(void)ctx, (void)kind, (void)numa;
	if (must_fail())
		return NULL;
	if (align <= 16)
		return malloc(bytes ? bytes : 1);
	return posix_memalign(&p, align, bytes ? bytes : 1) ? NULL : p;
}

void
harm_free(void *ctx, void *p)
{
	(void)ctx;
	free(p);
}
