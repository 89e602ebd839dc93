/* SPDX-License-Identifier: Apache-2.0
 *
 * drive.c - who turns a line. Its own thread does, but while that sleeps a caller who waits for a request may take the
 * wheel and turn the line himself, which saves two changes of threads an operation. Only where the backend is known never
 * to block: elsewhere a plug-in that hangs would hang its caller. The thread takes over whatever a caller leaves.
 */
#include "base/clock.h"
#include "coll/line_int.h"

#include <poll.h>
#include <sched.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LINGER_NS (200 * INT64_C(1000)) /* that a driver without news gives the CPU away before it sleeps */
#define LATER_NS (30 * INT64_C(1000))   /* from a submit until the thread takes it for one that nobody waits for */
#define TRY_NS (20 * INT64_C(1000))     /* that a waiter stands by while the thread is awake */

void
ist__line_post_later(struct ist__line *line, unsigned mail)
{
	struct itimerspec at = { .it_value = { .tv_nsec = LATER_NS } };

	if (!line->args.drive) {
		ist__line_post(line, mail);
		return;
	}
	atomic_fetch_or(&line->mail, mail);
	if (atomic_load(&line->asleep) == IST__THREAD_ASLEEP && timerfd_settime(line->later_fd, 0, &at, NULL))
		ist__line_post(line, mail);
	else if (atomic_load(&line->asleep) == IST__DRIVER_ASLEEP)
		ist__line_post(line, mail);
}

/* ---- the thread's side ---- */

void
ist__wheel_free(struct ist__line *line)
{
	pthread_mutex_lock(&line->lock);
	line->wheel = IST__WHEEL_FREE;
	line->dozing = true;
	pthread_mutex_unlock(&line->lock);
}

void
ist__wheel_take(struct ist__line *line)
{
	pthread_mutex_lock(&line->lock);
	line->dozing = false;
	while (line->wheel == IST__WHEEL_DRIVER && !atomic_load(&line->deserted)) {
		line->parked = true;
		pthread_cond_wait(&line->turn_free, &line->lock);
	}
	line->parked = false;
	line->wheel = IST__WHEEL_THREAD;
	pthread_mutex_unlock(&line->lock);
	atomic_store(&line->asleep, IST__AWAKE);
}

/* ---- the driver's ---- */

static bool
is_done(struct ist_req *req)
{
	return atomic_load_explicit(&req->done, memory_order_acquire);
}

static bool
take(struct ist__line *line)
{
	bool mine;

	pthread_mutex_lock(&line->lock);
	mine = line->wheel == IST__WHEEL_FREE && !line->stop && !line->exited && !atomic_load(&line->deserted);
	if (mine) {
		line->wheel = IST__WHEEL_DRIVER;
		line->lull = 0;
	}
	pthread_mutex_unlock(&line->lock);
	if (mine)
		atomic_store(&line->asleep, IST__AWAKE); /* from here on it's for us to read the mail */
	return mine;
}

/* The thread goes on with what there is left. */
static void
leave(struct ist__line *line)
{
	bool left;

	pthread_mutex_lock(&line->lock);
	line->wheel = IST__WHEEL_FREE;
	left = line->queue.count + line->active.count > 0 || line->stop;
	if (line->parked)
		pthread_cond_signal(&line->turn_free);
	else if (line->dozing)
		atomic_store(&line->asleep, IST__THREAD_ASLEEP);
	pthread_mutex_unlock(&line->lock);
	if (left || atomic_load(&line->mail))
		ist__line_post(line, IST__MAIL_NEWS);
}

void
ist__line_drive(struct ist__line *line, struct ist_req *req, int64_t until)
{
	int64_t give_up = 0, now;
	int cancel;

	while (!take(line)) {
		now = ist__now();
		if (give_up == 0)
			give_up = now + TRY_NS;
		if (is_done(req) || now >= give_up || now >= until)
			return;
		sched_yield();
	}
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* nobody else could free the wheel */
	line->driven = true;
	line->drive_until = until;
	do
		ist__line_turn(line);
	while (!atomic_load(&line->deserted) && !is_done(req) && line->now < until && !line->stopping &&
	       !(atomic_load(&line->mail) & IST__MAIL_CALL)); /* what may take long is the thread's */
	if (!atomic_load(&line->deserted)) {
		line->driven = false;
		leave(line);
	}
	pthread_setcancelstate(cancel, NULL);
}

void
ist__line_rest(struct ist__line *line, int64_t until)
{
	struct pollfd p[2] = { { .fd = line->drive_fd, .events = POLLIN }, { .fd = -1, .events = POLLIN } };
	uint64_t n;

	if (line->lull == 0)
		line->lull = line->now;
	if (line->now - line->lull < line->patience_ns) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
		return;
	}
	if (line->now - line->lull < LINGER_NS) {
		sched_yield();
		return;
	}
	if (until > line->drive_until)
		until = line->drive_until;
	if (!ist__line_may_sleep(line, IST__DRIVER_ASLEEP, &p[1].fd))
		return;
	poll(p, 2, ist__poll_ms(until, line->retry || p[1].fd < 0 ? 1 : IST__LOOK_MS));
	atomic_store(&line->asleep, IST__AWAKE);
	while (p[0].revents && read(line->drive_fd, &n, sizeof(n)) == (ssize_t)sizeof(n))
		;
}
