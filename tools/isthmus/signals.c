/* SPDX-License-Identifier: Apache-2.0 */
#include "signals.h"

#include "progress.h"
#include "value.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define GRACE_FIRST_S 20
#define GRACE_SECOND_S 1

static struct {
	pthread_mutex_t lock;
	pthread_cond_t came;
	const struct cli *cli;
	sigset_t set, before;
	struct ist_group *group;
	struct ist_req *req;
	int got;
} the = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Locked: whoever takes group or req away waits until this is over. Neither call waits for a peer. */
static void
end_all(void)
{
	char reason[64];

	snprintf(reason, sizeof(reason), "interrupted by SIG%s", sigabbrev_np(the.got));
	if (the.req)
		ist_req_cancel(the.req);
	if (the.group)
		ist_group_abort(the.group, reason);
}

static void *
watch(void *unused)
{
	struct timespec grace = { .tv_sec = GRACE_FIRST_S };
	siginfo_t info;
	int sig;

	(void)unused;
	while ((sig = sigwaitinfo(&the.set, &info)) < 0)
		if (errno != EINTR)
			return NULL;
	cli_say(the.cli, IST_LOG_WARN, "SIG%s: ending in good order", sigabbrev_np(sig));
	pthread_mutex_lock(&the.lock);
	the.got = sig;
	end_all();
	pthread_cond_broadcast(&the.came);
	pthread_mutex_unlock(&the.lock);
	while (sigtimedwait(&the.set, &info, &grace) < 0 && errno == EINTR)
		;
	grace.tv_sec = GRACE_SECOND_S;
	while (sigtimedwait(&the.set, &info, &grace) > 0)
		; /* a third one and more change nothing */
	progress_end();
	_exit(EXIT_SIGNAL + sig);
}

int
signals_start(const struct cli *cli)
{
	static const int ours[] = { SIGINT, SIGTERM, SIGHUP };
	pthread_condattr_t attr;
	pthread_t thread;
	int sys;

	the.cli = cli;
	signal(SIGPIPE, SIG_IGN); /* a reader of our messages who leaves must not end a member in the midst of an update */
	signal(SIGXFSZ, SIG_IGN); /* a file that may not grow so large is an error, and what was begun is removed */
	sigemptyset(&the.set);
	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
		struct sigaction now;

		/* nohup: a hangup that is ignored stays ignored. A shell's '&' makes SIGINT ignored too, but whoever sends that
		 * to us by hand means it. */
		if (ours[i] == SIGHUP && sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN)
			continue;
		sigaddset(&the.set, ours[i]);
		signal(ours[i], SIG_DFL);
	}
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&the.came, &attr);
	pthread_condattr_destroy(&attr);
	pthread_sigmask(SIG_BLOCK, &the.set, &the.before);
	sys = pthread_create(&thread, NULL, watch, NULL);
	if (sys)
		return cli_fail_sys(cli, IST_IO, sys, "signals", "thread");
	pthread_detach(thread);
	return EXIT_DONE;
}

void
signals_ends(struct ist_group *group, struct ist_req *req)
{
	pthread_mutex_lock(&the.lock);
	the.group = group;
	the.req = req;
	if (the.got)
		end_all();
	pthread_mutex_unlock(&the.lock);
}

int
signals_got(void)
{
	int got;

	pthread_mutex_lock(&the.lock);
	got = the.got;
	pthread_mutex_unlock(&the.lock);
	return got;
}

int
signals_wait(int64_t timeout_ns)
{
	int64_t at = now_ns() + (timeout_ns < 0 ? 0 : timeout_ns);
	struct timespec t = { .tv_sec = (time_t)(at / IST_NS_PER_S), .tv_nsec = (long)(at % IST_NS_PER_S) };
	int got, sys = 0;

	pthread_mutex_lock(&the.lock);
	while (!the.got && sys == 0)
		sys = timeout_ns < 0 ? pthread_cond_wait(&the.came, &the.lock) : pthread_cond_timedwait(&the.came, &the.lock, &t);
	got = the.got;
	pthread_mutex_unlock(&the.lock);
	return got;
}

int
signals_status(int status)
{
	int got = signals_got();

	return got ? EXIT_SIGNAL + got : status;
}

void
signals_restore(void)
{
	pthread_sigmask(SIG_SETMASK, &the.before, NULL);
}
