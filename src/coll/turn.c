/* SPDX-License-Identifier: Apache-2.0
 *
 * turn.c - a turn of a line, and the thread that makes them. Each turn: read the mail, begin and issue what can be, let the
 * backend move, look at the tasks, end what is complete, see to deadlines; asleep when a turn brought nothing. Every call of
 * the plug-in but abort is made from here, so the channel has one user at a time. Callers may make turns too: drive.c.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "coll/line_int.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

enum {
	STOOD_STILL_MS = 500, /* this much too late: the process did not run */
	HOT = 64,          /* sleeps that the channel cut short for nothing, until it is no longer asked */
	IDLE_MS = 256      /* longest sleep where the backend has no descriptor and there are no tasks */
};

static bool
deserted(const struct ist__line *line)
{
	return atomic_load(&line->deserted);
}

/* ---- ending operations ---- */

void
ist__op_end(struct ist__line *line, struct ist__op *op, const struct ist_error *err)
{
	bool lent = !err && (op->args.flags & IST_OP_VIEW), keep = false;
	struct ist_buf view = op->req.view; /* by ist__op_look, or below */

	pthread_mutex_lock(&line->lock);
	if (deserted(line)) {
		pthread_mutex_unlock(&line->lock);
		return;
	}
	ist__list_remove(&line->active, op);
	if (lent) {
		if (!view.addr)
			view = op->args.peer == line->args.rank ? op->args.src : op->args.dst;
		ist__req_lend(&op->req, &view);
		keep = op->slots[0].task != NULL;
	}
	if (keep)
		ist__list_add(&line->lent, op);
	else
		ist__op_clear(line, op, op->abandoned || !ist__op_quiet(op));
	if (line->door == op)
		line->door = NULL;
	if (keep)
		ist__req_finish(&op->req, err);
	else
		ist__req_end(&op->req, err);
	pthread_cond_broadcast(&line->changed);
	pthread_mutex_unlock(&line->lock);
	line->busy = true;
}

/* Ends those whose buffers are back, or all when time is up. */
static void
wind_down(struct ist__line *line)
{
	bool give_up = line->now >= line->give_up_at;
	struct ist_error why, lost;

	if (line->swept && !line->active.first)
		return;
	pthread_mutex_lock(&line->lock);
	why = line->why;
	while (!line->swept && line->queue.first) {
		struct ist__op *op = line->queue.first;

		ist__list_remove(&line->queue, op);
		ist__op_clear(line, op, false);
		ist__req_end(&op->req, &why);
	}
	pthread_cond_broadcast(&line->changed);
	pthread_mutex_unlock(&line->lock);
	line->swept = true;
	lost = why;
	ist__abandon_text(&lost, line->args.name);
	for (struct ist__op *op = line->active.first, *next; op && !deserted(line); op = next) {
		next = op->next;
		if (ist__op_quiet(op))
			ist__op_end(line, op, op->abandoned ? &lost : &why);
		else if (give_up)
			ist__op_end(line, op, &lost);
	}
}

/* ---- mail ---- */

static void
read_cancels(struct ist__line *line)
{
	struct ist_error err = { .struct_size = sizeof(err) };
	const struct ist__op *begun = NULL;

	ist__fail(&err, IST_ABORTED, "req_cancel", "cancelled before it began");
	pthread_mutex_lock(&line->lock);
	for (struct ist__op *op = line->queue.first, *next; op; op = next) {
		next = op->next;
		if (!atomic_load(&op->cancelled))
			continue;
		ist__list_remove(&line->queue, op);
		ist__op_clear(line, op, false);
		ist__req_end(&op->req, &err);
	}
	for (const struct ist__op *op = line->active.first; op && !begun; op = op->next)
		if (atomic_load(&op->cancelled))
			begun = op;
	pthread_mutex_unlock(&line->lock);
	if (!begun)
		return;
	ist__fail(&err, IST_ABORTED, ist__kind_name(begun->kind), "rank %u cancelled it after it had begun", line->args.rank);
	ist__fail_rank(&err, line->args.rank);
	ist__line_fail(line, &err);
}

/* Views that their users have given back; all: the channel ends. */
static void
read_releases(struct ist__line *line, bool all)
{
	for (struct ist__op *op = line->lent.first, *next; op; op = next) {
		next = op->next;
		if (!all && !atomic_load(&op->released))
			continue;
		pthread_mutex_lock(&line->lock);
		ist__list_remove(&line->lent, op);
		pthread_mutex_unlock(&line->lock);
		line->ops->task_free(line->chan, op->slots[0].task);
		if (deserted(line))
			return;
		op->slots[0].task = NULL;
		line->busy = true;
		ist__op_free_room(line, op);
		ist__op_clear(line, op, false);
		ist__req_drop(&op->req);
	}
}

static void
do_call(struct ist__line *line, struct ist__call *call)
{
	call->status = (struct ist_status){ .struct_size = sizeof(call->status), .rank = IST_NO_RANK };
	if (call->is_free)
		line->ops->free(line->chan, call->addr);
	else if (line->ending)
		call->code = line->why.code;
	else
		call->code = line->ops->alloc(line->chan, call->bytes, call->mem, call->device, &call->addr, &call->status);
	if (deserted(line))
		return;
	call->status.text[sizeof(call->status.text) - 1] = 0;
	if (!line->ending)
		ist__line_look_held(line); /* who asked may ask what the group holds next */
	if (deserted(line))
		return;
	pthread_mutex_lock(&line->lock);
	if (!call->orphan) {
		call->over = true;
		pthread_cond_broadcast(&line->changed);
		call = NULL;
	}
	pthread_mutex_unlock(&line->lock);
	if (!call)
		return;
	if (!call->is_free && call->code == IST_OK && call->addr)
		line->ops->free(line->chan, call->addr);
	ist__free(&line->ctx, call);
}

static void
read_calls(struct ist__line *line)
{
	while (!deserted(line)) {
		struct ist__call *call;

		pthread_mutex_lock(&line->lock);
		call = line->calls;
		if (call)
			line->calls = call->next;
		pthread_mutex_unlock(&line->lock);
		if (!call)
			return;
		do_call(line, call);
	}
}

static void
read_mail(struct ist__line *line)
{
	unsigned mail = atomic_exchange(&line->mail, 0);

	if (mail & IST__MAIL_NEW)
		line->queued = true;
	if (mail & IST__MAIL_CANCEL)
		read_cancels(line);
	if (mail & IST__MAIL_STATE) {
		pthread_mutex_lock(&line->lock);
		if (line->aborted && !line->ending) {
			line->ending = true;
			line->give_up_at = line->abort_at + IST__ABORT_NS;
		}
		line->stopping = line->stop;
		pthread_mutex_unlock(&line->lock);
		ist__line_tell(line);
	}
	if (mail & IST__MAIL_RELEASE)
		read_releases(line, false);
	if (mail & IST__MAIL_CALL)
		read_calls(line);
}

/* ---- moving ---- */

static void
begin_more(struct ist__line *line)
{
	while (line->queued && !line->door && line->active.count < IST__IN_FLIGHT) {
		struct ist__op *op;

		pthread_mutex_lock(&line->lock);
		op = deserted(line) || line->failing ? NULL : line->queue.first;
		if (op) {
			ist__list_remove(&line->queue, op);
			ist__list_add(&line->active, op);
		}
		pthread_mutex_unlock(&line->lock);
		line->queued = op != NULL;
		if (!op)
			return;
		line->busy = true;
		ist__op_begin(line, op);
		ist__op_pump(line, op);
	}
}

static void
pump_all(struct ist__line *line)
{
	line->retry = false;
	for (struct ist__op *op = line->active.first, *next; op && !deserted(line); op = next) {
		next = op->next;
		ist__op_pump(line, op);
	}
	begin_more(line);
}

static void
fail_slot(struct ist__line *line, const char *slot, ist_err e)
{
	struct ist_error err = { .struct_size = sizeof(err) };

	if (line->ending)
		return;
	if (!strcmp(ist_err_name(e), "UNKNOWN"))
		ist__fail(&err, IST_BAD_PLUGIN, slot, "backend %s returned %d from %s, which is no error code", line->args.name, e, slot);
	else
		ist__fail(&err, e, slot, "backend %s: %s: %s", line->args.name, slot, ist_err_text(e));
	ist__line_fail(line, &err);
}

static void
note_held(struct ist__line *line, const struct ist_progress *p)
{
	atomic_store_explicit(&line->chan_memory, p->memory, memory_order_relaxed);
	atomic_store_explicit(&line->chan_shared, p->shared, memory_order_relaxed);
}

/* What else it says is said again at the next one. */
void
ist__line_look_held(struct ist__line *line)
{
	struct ist_progress p = { .struct_size = sizeof(p) };

	if (line->ops->progress(line->chan, &p) == IST_OK && !deserted(line))
		note_held(line, &p);
}

/* True: tasks may have ended. */
static bool
progress(struct ist__line *line)
{
	struct ist_progress p = { .struct_size = sizeof(p) };
	ist_err e = line->ops->progress(line->chan, &p);
	bool ended;

	if (deserted(line))
		return false;
	note_held(line, &p);
	if (e)
		fail_slot(line, "progress", e);
	if (p.moved != atomic_load_explicit(&line->moved, memory_order_relaxed)) {
		atomic_store_explicit(&line->moved, p.moved, memory_order_relaxed);
		line->moved_at = line->now;
		line->busy = true;
	}
	ended = p.ended != line->ended;
	line->ended = p.ended;
	if (ended || p.more)
		line->busy = true;
	return ended;
}

static void
look_all(struct ist__line *line)
{
	for (struct ist__op *op = line->active.first; op && !deserted(line); op = op->next)
		ist__op_look(line, op);
}

static void
end_complete(struct ist__line *line)
{
	for (struct ist__op *op = line->active.first, *next; op && !deserted(line); op = next) {
		next = op->next;
		if (ist__op_complete(op))
			ist__op_end(line, op, NULL);
	}
}

/* What the group knows of the others' operations without a message. True: it was news. */
static bool
compare(struct ist__line *line, bool asleep)
{
	struct ist_error err = { .struct_size = sizeof(err), .bucket = IST_NO_BUCKET };
	uint64_t agreed = 0;
	uint32_t before = line->unsure;

	if (line->unsure == 0 || line->ending)
		return false;
	if (line->args.compare(line->args.owner, asleep, &agreed, &err)) {
		line->unsure = 0; /* asked no more */
		ist__line_fail(line, &err);
		return true;
	}
	for (struct ist__op *op = line->active.first; op && line->unsure > 0; op = op->next)
		if (op->compared && op->seq < agreed && !atomic_load(&op->checked)) {
			atomic_store(&op->checked, true);
			line->unsure--;
			line->busy = true;
		}
	return line->unsure != before;
}

/* ---- time ---- */

static int64_t
sooner(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Looks after deadlines and frozen members; returns when to do so next. */
static int64_t
look_at_clock(struct ist__line *line)
{
	const struct ist__op *late = NULL;
	int64_t next = line->ending && line->active.first ? line->give_up_at : IST__NEVER; /* with nothing left: asleep until closed */
	struct ist_error err;
	bool failing;

	line->looked_at = line->now;
	if (line->ending)
		return next;
	if (line->look_by && line->now - line->look_by > STOOD_STILL_MS * IST__MS)
		line->awake_since = line->now; /* this process was stopped, and the others may have been as well */
	if (line->suspect_at != 0) {
		if (line->now >= line->suspect_at)
			ist__line_fail(line, &line->suspect);
		else
			next = line->suspect_at;
	}
	for (struct ist__op *op = line->active.first; op; op = op->next) {
		int64_t frozen;

		if (!op->checked_seen && atomic_load(&op->checked)) {
			op->checked_seen = true;
			op->since = line->now;
		}
		frozen = ist__op_frozen_at(line, op);
		next = sooner(next, sooner(op->req.deadline, frozen));
		if (!late && op->req.deadline <= line->now)
			late = op;
		if (!late && frozen <= line->now) {
			ist__op_frozen(line, op, &err);
			ist__line_fail(line, &err);
		}
	}
	pthread_mutex_lock(&line->lock);
	for (const struct ist__op *op = line->queue.first; op; op = op->next) {
		next = sooner(next, op->req.deadline);
		if (!late && op->req.deadline <= line->now)
			late = op;
	}
	failing = line->failing;
	if (failing)
		next = line->abort_at;
	pthread_mutex_unlock(&line->lock);
	if (failing) {
		ist__line_tell(line); /* its grace may be over */
	} else if (late) {
		ist__op_timeout(line, late, line->active.first, &err);
		ist__line_fail(line, &err);
	}
	line->look_by = next == IST__NEVER ? 0 : next;
	return next;
}

static void
drain(int fd)
{
	uint64_t n;

	while (read(fd, &n, sizeof(n)) == (ssize_t)sizeof(n))
		;
}

/* What the backend wants to be woken by: false, nothing may be slept for. */
static bool
arm(struct ist__line *line, int32_t *fd)
{
	ist_err e;

	*fd = -1;
	if (line->hot > HOT)
		return true;
	e = line->ops->arm(line->chan, fd);
	if (deserted(line))
		return false;
	if (e == IST_OK)
		return true;
	*fd = -1;
	if (e != IST_BUSY)
		fail_slot(line, "arm", e);
	else
		line->hot++;
	return e != IST_BUSY;
}

/* Nothing is left that the channel could do. */
static bool
is_over(const struct ist__line *line)
{
	return line->ending && !line->active.first;
}

bool
ist__line_may_sleep(struct ist__line *line, enum ist__asleep who, int32_t *fd)
{
	*fd = -1;
	atomic_store(&line->asleep, who);
	if (!atomic_load(&line->mail) && (is_over(line) || arm(line, fd)) && !deserted(line) && !compare(line, true))
		return true;
	atomic_store(&line->asleep, IST__AWAKE);
	return false;
}

static void
doze(struct ist__line *line, int64_t until)
{
	struct pollfd p[3] = { { .fd = line->wake_fd, .events = POLLIN }, { .fd = -1, .events = POLLIN },
		{ .fd = line->later_fd, .events = POLLIN } };
	bool over = is_over(line);
	int cap = line->unsure > 0 ? IST__LOOK_MS : -1;

	if (!ist__line_may_sleep(line, IST__THREAD_ASLEEP, &p[1].fd))
		return;
	if (line->retry || line->hot > HOT || (!over && p[1].fd < 0 && line->tasks > 0))
		cap = 1;
	else if (!over && p[1].fd < 0) /* it may still hold bytes for peers */
		cap = line->idle < 8 ? 1 << line->idle : IDLE_MS;
	ist__wheel_free(line);
	poll(p, 3, ist__poll_ms(until, cap));
	ist__wheel_take(line);
	if (deserted(line))
		return;
	if (p[0].revents)
		drain(line->wake_fd);
	if (p[2].revents)
		drain(line->later_fd);
	if (line->hot > HOT)
		line->hot = HOT / 2;
	else if (p[1].revents)
		line->hot++;
	line->idle++;
}

/* ---- the thread ---- */

static void
rest(struct ist__line *line, int64_t until)
{
	if (line->driven)
		ist__line_rest(line, until);
	else
		doze(line, until);
}

static bool
empty(struct ist__line *line)
{
	bool none;

	pthread_mutex_lock(&line->lock);
	none = line->queue.count + line->active.count == 0;
	pthread_mutex_unlock(&line->lock);
	return none;
}

void
ist__line_turn(struct ist__line *line)
{
	int64_t next = IST__NEVER;
	bool look;

	line->busy = false;
	line->now = ist__now();
	if (atomic_load(&line->mail))
		read_mail(line);
	if (deserted(line))
		return;
	if (!line->ending)
		pump_all(line);
	if (deserted(line))
		return;
	look = !line->ending || line->active.first ? progress(line) : false;
	if (deserted(line))
		return;
	if (look || !line->busy)
		look_all(line);
	if (deserted(line))
		return;
	compare(line, false);
	if (line->ending)
		wind_down(line);
	else
		end_complete(line);
	if (!line->busy || line->now - line->looked_at > IST__MS)
		next = look_at_clock(line);
	if (line->busy)
		line->idle = line->hot = 0, line->lull = 0;
	else if (!deserted(line) && !(line->stopping && empty(line)))
		rest(line, next);
}

/* Closes the channel, once no abort is inside it any more. */
static void
shut(struct ist__line *line)
{
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	struct timespec until;
	ist_err e;

	read_releases(line, true);
	if (deserted(line))
		return;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec++;
	pthread_mutex_lock(&line->lock);
	line->closing = true;
	while (line->aborters > 0 && !deserted(line))
		if (pthread_cond_timedwait(&line->changed, &line->lock, &until))
			break;
	if (line->aborters > 0)
		atomic_store(&line->deserted, true); /* stuck in there: the channel can't be closed */
	for (struct ist__call *c = line->calls; c; c = c->next) {
		c->code = IST_ABORTED;
		c->over = true;
	}
	pthread_cond_broadcast(&line->changed);
	pthread_mutex_unlock(&line->lock);
	if (deserted(line))
		return;
	e = line->ops->close(line->chan, &why);
	if (deserted(line))
		return;
	why.text[sizeof(why.text) - 1] = 0;
	if (e)
		ist__log(&line->ctx, IST_LOG_WARN, "backend %s could not close everything: %s: %s", line->args.name, ist_err_name(e), why.text);
	pthread_mutex_lock(&line->lock);
	line->exited = true;
	pthread_cond_broadcast(&line->changed);
	pthread_mutex_unlock(&line->lock);
}

void *
ist__turn(void *arg)
{
	struct ist__line *line = arg;

	ist__wheel_take(line);
	line->moved_at = line->now = ist__now();
	while (!deserted(line) && !(line->stopping && empty(line)))
		ist__line_turn(line);
	if (!deserted(line))
		shut(line);
	return NULL;
}
