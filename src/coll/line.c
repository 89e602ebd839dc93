/* SPDX-License-Identifier: Apache-2.0
 *
 * line.c - a line as seen from outside its thread: making it, handing requests in, failing, aborting, freeing. None of
 * these calls the plug-in, but for abort, which the plug-in's contract allows from any thread.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "coll/line_int.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
	SIZE_MAX_RANKS = 65536,
	REQS = 16 /* made beforehand: what a pipeline holds at a time */
};
#define PATIENCE_NS (3 * INT64_C(1000))

void
ist__list_add(struct ist__list *list, struct ist__op *op)
{
	op->next = NULL;
	op->prev = list->last;
	if (list->last)
		list->last->next = op;
	else
		list->first = op;
	list->last = op;
	list->count++;
}

void
ist__list_remove(struct ist__list *list, struct ist__op *op)
{
	if (op->prev)
		op->prev->next = op->next;
	else
		list->first = op->next;
	if (op->next)
		op->next->prev = op->prev;
	else
		list->last = op->prev;
	list->count--;
}

/* The sleeper first says that it sleeps, then looks for mail; we first put the mail, then look whether it sleeps. */
void
ist__line_post(struct ist__line *line, unsigned mail)
{
	uint64_t one = 1;
	unsigned who;
	ssize_t n;

	atomic_fetch_or(&line->mail, mail);
	who = atomic_exchange(&line->asleep, IST__AWAKE);
	if (who == IST__AWAKE)
		return;
	do
		n = write(who == IST__DRIVER_ASLEEP ? line->drive_fd : line->wake_fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR); /* EAGAIN: it is readable anyway */
}

/* Waits on changed until at most at; false: the time is over. */
static bool
wait_changed(struct ist__line *line, int64_t at)
{
	struct timespec t = { .tv_sec = (time_t)(at / IST_NS_PER_S), .tv_nsec = (long)(at % IST_NS_PER_S) };

	if (at == IST__NEVER)
		return pthread_cond_wait(&line->changed, &line->lock) == 0;
	return pthread_cond_timedwait(&line->changed, &line->lock, &t) != ETIMEDOUT;
}

/* ---- hooks of the requests ---- */

static void
on_cancel(void *owner, struct ist_req *req)
{
	atomic_store(&((struct ist__op *)req)->cancelled, true);
	ist__line_post(owner, IST__MAIL_CANCEL);
}

static void
on_release(void *owner, struct ist_req *req)
{
	atomic_store(&((struct ist__op *)req)->released, true);
	ist__line_post(owner, IST__MAIL_RELEASE);
}

static void
on_overdue(void *owner, struct ist_req *req)
{
	(void)req;
	ist__line_watch(owner);
}

static void
on_wait(void *owner, struct ist_req *req, int64_t until)
{
	struct ist__line *line = owner;

	if (line->args.drive)
		ist__line_drive(line, req, until);
}

static const struct ist__req_ops req_ops = { .cancel = on_cancel, .overdue = on_overdue, .release = on_release, .wait = on_wait };

/* ---- making ---- */

static void
line_gone(void *owner)
{
	struct ist__line *line = owner;
	const struct ist__ctx ctx = line->ctx;

	if (line->wake_fd >= 0)
		close(line->wake_fd);
	if (line->drive_fd >= 0)
		close(line->drive_fd);
	if (line->later_fd >= 0)
		close(line->later_fd);
	pthread_cond_destroy(&line->turn_free);
	pthread_cond_destroy(&line->changed);
	pthread_mutex_destroy(&line->lock);
	ist__free(&ctx, line->sent);
	ist__free(&ctx, line->received);
	ist__free(&ctx, line->scratch);
	ist__free(&ctx, line);
}

static void
set_limits(struct ist__line *line)
{
	struct ist__line_args *a = &line->args;
	const struct ist_probe *probe = &a->backend->probe;
	const uint64_t all = ist__composable();

	if (!a->name)
		a->name = a->backend->name ? a->backend->name : a->backend->ops.name;
	if (a->mem == 0)
		a->mem = probe->mem ? probe->mem : 1u << IST_MEM_HOST | 1u << IST_MEM_PINNED;
	if (a->max_ops == 0)
		a->max_ops = probe->max_ops;
	if (a->traits == 0)
		a->traits = probe->traits;
	if (a->no_progress_ns == 0)
		a->no_progress_ns = IST__NO_PROGRESS_NS;
	line->limits = (struct ist__limits){ .rank = a->rank, .size = a->size, .mem = a->mem, .native = a->backend->native & all,
		.takers = !a->all_take, .far_views = a->traits & IST_TRAIT_FAR_VIEWS };
	line->limits.leaves_out = line->limits.takers && (!(line->limits.native >> IST_OP_BROADCAST & 1) || (a->traits & IST_TRAIT_TAKERS));
	line->choice = (struct ist__choice){ .native = line->limits.native, .size = a->size };
}

/* 0, or the errno. */
static int
open_fds(struct ist__line *line)
{
	cpu_set_t cpus;

	line->drive_fd = line->later_fd = -1;
	line->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (line->wake_fd < 0)
		return errno;
	if (!line->args.drive)
		return 0;
	line->drive_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (line->drive_fd < 0)
		return errno;
	line->later_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (line->later_fd < 0)
		return errno;
	/* waiting for a member that has no CPU of its own at the moment helps nobody */
	if (!sched_getaffinity(0, sizeof(cpus), &cpus) && (uint32_t)CPU_COUNT(&cpus) >= line->args.size)
		line->patience_ns = PATIENCE_NS;
	return 0;
}

ist_err
ist__line_new(const struct ist__line_args *args, struct ist__line **out, struct ist_error *err)
{
	const struct ist__ctx *ctx = args->ctx ? args->ctx : ist__env_ctx(args->env);
	struct ist__line *line;
	pthread_condattr_t attr;
	int rc;

	if (args->size == 0 || args->rank >= args->size)
		return ist__fail(err, IST_INVALID_ARGUMENT, "channel", "rank %u is outside the group of %u", args->rank, args->size);
	if (args->size > SIZE_MAX_RANKS)
		return ist__fail(err, IST_LIMIT, "channel", "%u members are more than %d", args->size, SIZE_MAX_RANKS);
	if (args->size > 1 && (args->max_ops ? args->max_ops : args->backend->probe.max_ops) == 1)
		return ist__fail(err, IST_BAD_PLUGIN, "channel", "backend %s takes one operation at a time, which deadlocks", args->backend->ops.name);
	line = ist__alloc(ctx, sizeof(*line));
	if (!line)
		return ist__fail_memory(err, "channel");
	line->env = args->env;
	line->ctx = *ctx;
	line->args = *args;
	line->ops = &args->backend->ops;
	line->chan = args->chan;
	set_limits(line);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&line->changed, &attr);
	pthread_cond_init(&line->turn_free, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&line->lock, NULL);
	atomic_store(&line->holds, 1);
	line->sent = ist__alloc(ctx, args->size * sizeof(*line->sent));
	line->received = ist__alloc(ctx, args->size * sizeof(*line->received));
	rc = open_fds(line);
	if (rc == 0 && (!line->sent || !line->received))
		rc = ENOMEM;
	if (rc == 0) {
		ist__pool_init(&line->pool, args->env, sizeof(struct ist__op), &req_ops, line, line_gone);
		if (args->drive) /* it never blocks, and nobody else calls it yet */
			ist__line_look_held(line);
		ist__pool_fill(&line->pool, REQS); /* without memory for them, later ones may fail too, and say so */
		*out = line;
		return IST_OK;
	}
	line_gone(line);
	if (rc == ENOMEM)
		return ist__fail_memory(err, "channel");
	return ist__fail_sys(err, IST_IO, rc, "channel", "no descriptor");
}

/* The thread comes with the first thing there is to do: many groups only talk over their mesh. Under lock. */
static ist_err
start_locked(struct ist__line *line, struct ist_error *err)
{
	int rc = line->started ? 0 : ist__thread(line->env, "chan", ist__turn, line, &line->thread);

	if (rc)
		return ist__fail_thread(err, rc, "channel", "no thread");
	line->started = true;
	return IST_OK;
}

void
ist__line_hold(struct ist__line *line)
{
	atomic_fetch_add(&line->holds, 1);
}

void
ist__line_held(struct ist__line *line, uint64_t *memory, uint64_t *shared)
{
	*memory = atomic_load_explicit(&line->chan_memory, memory_order_relaxed) + ist__pool_bytes(&line->pool);
	*shared = atomic_load_explicit(&line->chan_shared, memory_order_relaxed);
}

void
ist__line_drop(struct ist__line *line)
{
	if (atomic_fetch_sub(&line->holds, 1) == 1)
		ist__pool_close(&line->pool);
}

/* ---- handing in ---- */

/* Why nothing more is taken, under lock. IST_OK: it is. */
static ist_err
refusal(struct ist__line *line, const char *op, struct ist_error *err)
{
	if (line->aborted || line->failing) {
		ist__error_copy(err, &line->why);
		return line->why.code;
	}
	if (line->stop || line->exited)
		return ist__fail(err, IST_ABORTED, op, "the group was freed");
	return IST_OK;
}

/* Local work needs memory that this process can touch. */
static ist_err
check_composed(struct ist__line *line, uint32_t kind, const struct ist_coll_args *a, struct ist_error *err)
{
	bool device = (a->src.bytes > 0 && a->src.mem > IST_MEM_PINNED) || (a->dst.bytes > 0 && a->dst.mem > IST_MEM_PINNED);

	if (!device || kind == IST_OP_SEND || kind == IST_OP_RECV || kind == IST_OP_BROADCAST || (line->limits.native >> kind & 1))
		return IST_OK;
	return ist__fail(err, IST_UNSUPPORTED, ist__kind_name(kind), "backend %s has no %s of its own, and device memory can't be worked on here",
		line->args.name, ist__kind_name(kind));
}

ist_err
ist__line_submit(struct ist__line *line, uint32_t kind, const struct ist_coll_args *args, int64_t deadline, struct ist_req **out,
	struct ist_error *err)
{
	bool pair = kind == IST_OP_SEND || kind == IST_OP_RECV;
	struct ist_coll_args a;
	bool alone = false;
	struct ist_error why;
	struct ist__op *op;
	uint64_t n;
	ist_err e;

	if (!pair && (kind >= 64 || !(ist__composable() >> kind & 1)))
		return ist__fail(err, IST_UNSUPPORTED, ist__kind_name(kind), "operation %u is not one of the bulk operations", kind);
	e = ist__coll_check(&line->limits, kind, args, &a, &n, err);
	if (!e)
		e = check_composed(line, kind, &a, err);
	if (e)
		return e;
	op = (struct ist__op *)ist__pool_get(&line->pool);
	if (!op)
		return ist__fail_memory(err, ist__kind_name(kind));
	op->line = line;
	op->kind = kind;
	op->args = a;
	op->n = n;
	op->req.deadline = deadline;
	if (line->args.timeout_ns)
		op->req.default_ns = line->args.timeout_ns;
	op->compared = !pair && line->args.size > 1 && line->args.entered && !(a.flags & IST_COLL_AGREED);
	if (!ist__op_set_takers(line, op))
		e = ist__fail_memory(err, ist__kind_name(kind));
	pthread_mutex_lock(&line->lock);
	if (!e)
		e = refusal(line, ist__kind_name(kind), err);
	if (!e) {
		ist_error_init(&why);
		e = start_locked(line, &why);
		alone = e != IST_OK;
	}
	if (!e)
		ist__list_add(&line->queue, op);
	pthread_mutex_unlock(&line->lock);
	if (alone) {
		if (line->args.failed)
			line->args.failed(line->args.owner, &why); /* the others are in it, and would wait */
		ist__error_copy(err, &why);
	}
	if (e) {
		ist__op_clear(line, op, false);
		ist__handle_kill(op, IST__REQ);
		ist__req_drop(&op->req);
		ist__req_drop(&op->req);
		return e;
	}
	*out = &op->req;
	ist__line_post_later(line, IST__MAIL_NEW);
	return IST_OK;
}

void
ist__line_checked(struct ist__line *line, uint64_t seq, const struct ist_error *err)
{
	if (err) {
		ist__line_fail(line, err);
		return;
	}
	pthread_mutex_lock(&line->lock);
	for (struct ist__op *op = line->active.first; op; op = op->next)
		if (op->compared && op->seq == seq)
			atomic_store(&op->checked, true);
	pthread_mutex_unlock(&line->lock);
	ist__line_post(line, IST__MAIL_STATE);
}

bool
ist__line_reaches(const struct ist__line *line, uint32_t mem, bool *views_alone)
{
	*views_alone = mem > IST_MEM_PINNED && line->limits.far_views;
	return line->limits.mem >> mem & 1;
}

bool
ist__line_leaves_out(const struct ist__line *line)
{
	return line->limits.leaves_out;
}

void
ist__line_nudge(struct ist__line *line)
{
	ist__line_post(line, IST__MAIL_NEWS);
}

/* ---- failing and aborting ---- */

void
ist__line_fail(struct ist__line *line, const struct ist_error *err)
{
	pthread_mutex_lock(&line->lock);
	if (!line->failing && !line->aborted) {
		line->failing = true;
		ist_error_init(&line->why);
		ist__error_copy(&line->why, err);
		line->abort_at = ist__now() + IST__GRACE_NS;
	}
	pthread_mutex_unlock(&line->lock);
	ist__line_post(line, IST__MAIL_STATE);
}

void
ist__line_tell(struct ist__line *line)
{
	struct ist_error why;
	bool tell, abort;

	pthread_mutex_lock(&line->lock);
	tell = line->failing && !line->told && !line->aborted;
	if (tell)
		line->told = true;
	abort = line->failing && !line->aborted && (ist__now() >= line->abort_at || !line->args.failed);
	why = line->why;
	pthread_mutex_unlock(&line->lock);
	if (tell && line->args.failed)
		line->args.failed(line->args.owner, &why);
	if (abort)
		ist__line_abort(line, &why);
}

void
ist__abandon_text(struct ist_error *err, const char *backend)
{
	size_t n = strlen(err->detail);
	static const char more[] = "; the buffers are abandoned: backend ";
	static const char rest[] = " may still touch them, so never free or reuse them";

	if (n + sizeof(more) + sizeof(rest) + strlen(backend) > sizeof(err->detail))
		n = sizeof(err->detail) - sizeof(more) - sizeof(rest) - strlen(backend);
	memcpy(err->detail + n, more, sizeof(more));
	n += sizeof(more) - 1;
	memcpy(err->detail + n, backend, strlen(backend));
	memcpy(err->detail + n + strlen(backend), rest, sizeof(rest));
}

/* The thread is stuck inside the plug-in: everything that waits for it ends here. Its list entries stay as they are, and
 * its references too, so that nothing it may still touch goes away. */
static void
desert_locked(struct ist__line *line)
{
	struct ist_error lost = line->why;

	if (line->exited || atomic_load(&line->deserted))
		return;
	atomic_store(&line->deserted, true);
	ist__abandon_text(&lost, line->args.name);
	for (struct ist__op *op = line->queue.first; op; op = op->next)
		ist__req_finish(&op->req, &line->why);
	for (struct ist__op *op = line->active.first; op; op = op->next)
		ist__req_finish(&op->req, &lost);
	pthread_cond_broadcast(&line->changed);
	pthread_cond_broadcast(&line->turn_free);
}

/* Is a time over that the thread had until at? Where the whole process was stopped, the thread had nothing of it: who finds
 * the time over for the first time gives it a little more. *doubted: when that was; 0: never. */
static bool
is_over(int64_t at, int64_t now, int64_t *doubted)
{
	if (now < at)
		return false;
	if (*doubted == 0)
		*doubted = now;
	return now >= *doubted + IST__CONFIRM_NS;
}

static bool
is_stuck_locked(struct ist__line *line, int64_t now)
{
	return is_over(line->abort_at + IST__STUCK_NS - IST__CONFIRM_NS, now, &line->stuck_seen);
}

/* Comes with an abort, and goes when all requests have ended, or ends them itself. */
static void *
reap(void *arg)
{
	struct ist__line *line = arg;

	pthread_mutex_lock(&line->lock);
	while (!line->exited && !atomic_load(&line->deserted) && line->queue.count + line->active.count > 0) {
		int64_t at = line->stuck_seen ? line->stuck_seen + IST__CONFIRM_NS : line->abort_at + IST__STUCK_NS - IST__CONFIRM_NS;

		if (!wait_changed(line, at) && is_stuck_locked(line, ist__now()))
			desert_locked(line);
	}
	pthread_mutex_unlock(&line->lock);
	return NULL;
}

void
ist__line_abort(struct ist__line *line, const struct ist_error *why)
{
	bool call;

	pthread_mutex_lock(&line->lock);
	if (line->aborted) {
		pthread_mutex_unlock(&line->lock);
		return;
	}
	line->aborted = true;
	ist_error_init(&line->why);
	ist__error_copy(&line->why, why);
	if (line->why.code == IST_OK)
		line->why.code = IST_ABORTED;
	line->abort_at = ist__now();
	call = !line->closing && !line->exited && !atomic_load(&line->deserted);
	if (call)
		line->aborters++;
	if (call && line->queue.count + line->active.count > 0)
		line->has_reaper = ist__thread(line->env, "reap", reap, line, &line->reaper) == 0;
	pthread_mutex_unlock(&line->lock);
	ist__line_post(line, IST__MAIL_STATE);
	if (!call)
		return;
	line->ops->abort(line->chan, line->why.code); /* why no longer changes */
	pthread_mutex_lock(&line->lock);
	line->aborters--;
	pthread_cond_broadcast(&line->changed);
	pthread_mutex_unlock(&line->lock);
	ist__line_post(line, IST__MAIL_STATE);
}

/* The first request that is a second past its deadline: the thread, if it turned, would have ended it. */
static const struct ist__op *
overdue_locked(const struct ist__line *line, int64_t now)
{
	const struct ist__op *lists[] = { line->active.first, line->queue.first };

	for (int i = 0; i < 2; i++)
		for (const struct ist__op *op = lists[i]; op; op = op->next)
			if (op->req.deadline < now - IST_NS_PER_S)
				return op;
	return NULL;
}

void
ist__line_watch(struct ist__line *line)
{
	int64_t now = ist__now();
	struct ist_error err = { .struct_size = sizeof(err) };
	const struct ist__op *late = NULL;

	pthread_mutex_lock(&line->lock);
	if (line->aborted) {
		if (line->queue.count + line->active.count > 0 && is_stuck_locked(line, now))
			desert_locked(line); /* as the reaper does, where none could be started */
	} else if (!line->exited) {
		late = overdue_locked(line, now);
		if (!late)
			line->late_seen = 0;
		else if (!is_over(late->req.deadline + IST_NS_PER_S, now, &line->late_seen))
			late = NULL;
	}
	if (late)
		ist__fail(&err, IST_TIMEOUT, ist__kind_name(late->kind), "the deadline passed while backend %s does not come back from a call",
			line->args.name);
	ist__fail_rank(&err, line->args.rank); /* ours: the others would not know whose backend it is */
	pthread_mutex_unlock(&line->lock);
	if (!late)
		return;
	ist__line_fail(line, &err);
	ist__line_tell(line);
	pthread_mutex_lock(&line->lock);
	err = line->why; /* an earlier failure counts more */
	pthread_mutex_unlock(&line->lock);
	ist__line_abort(line, &err);
}

bool
ist__line_is_busy(struct ist__line *line, uint64_t *moved)
{
	bool busy;

	*moved = atomic_load_explicit(&line->moved, memory_order_relaxed);
	pthread_mutex_lock(&line->lock);
	busy = line->queue.count + line->active.count > 0;
	pthread_mutex_unlock(&line->lock);
	return busy;
}

/* A pair needs its peer, a collective everybody; but a broadcast not those who do not take, once they are known to be in it. */
static bool
needs(const struct ist__op *op, uint32_t rank)
{
	if (op->kind == IST_OP_SEND || op->kind == IST_OP_RECV)
		return op->args.peer == rank;
	return op->kind != IST_OP_BROADCAST || rank == op->args.peer || ist__takes(op->args.takers, op->args.peer, rank) ||
		(op->compared && !atomic_load(&op->checked));
}

/* The first of those who are gone that an operation of the list needs. */
static uint32_t
list_needs(const struct ist__list *list, const uint8_t *gone, uint32_t size)
{
	for (const struct ist__op *op = list->first; op; op = op->next)
		for (uint32_t r = 0; r < size; r++)
			if (gone[r] && needs(op, r))
				return r;
	return IST_NO_RANK;
}

uint32_t
ist__line_needs(struct ist__line *line, const uint8_t *gone)
{
	uint32_t r;

	pthread_mutex_lock(&line->lock);
	r = list_needs(&line->active, gone, line->args.size);
	if (r == IST_NO_RANK)
		r = list_needs(&line->queue, gone, line->args.size);
	pthread_mutex_unlock(&line->lock);
	return r;
}

/* ---- the end ---- */

bool
ist__line_free(struct ist__line *line)
{
	int64_t until = ist__now() + IST__FREE_NS;
	bool busy, exited, reaper, here;
	struct ist_error why = { .struct_size = sizeof(why) };

	if (!line)
		return true;
	pthread_mutex_lock(&line->lock);
	line->stop = true;
	busy = line->queue.count + line->active.count > 0;
	/* a plug-in may get stuck in its close, which must hold up nobody: it gets the thread for that. Not so our own */
	here = !line->started && (line->args.backend->builtin || start_locked(line, NULL));
	pthread_mutex_unlock(&line->lock);
	if (busy) {
		ist__fail(&why, IST_ABORTED, "group_free", "the group was freed while operations were under way");
		ist__line_abort(line, &why);
	}
	ist__line_post(line, IST__MAIL_STATE);
	if (here)
		ist__turn(line);
	pthread_mutex_lock(&line->lock);
	for (int64_t seen = 0; !line->exited && !atomic_load(&line->deserted) && !is_over(until, ist__now(), &seen);)
		(void)wait_changed(line, seen ? seen + IST__CONFIRM_NS : until);
	exited = line->exited;
	if (!exited && !atomic_load(&line->deserted)) {
		if (!line->aborted) {
			ist_error_init(&line->why);
			ist__fail(&line->why, IST_ABORTED, "group_free", "the group was freed");
		}
		desert_locked(line);
	}
	reaper = line->has_reaper;
	line->has_reaper = false;
	pthread_mutex_unlock(&line->lock);
	if (reaper)
		pthread_join(line->reaper, NULL);
	if (!exited) {
		if (!here)
			pthread_detach(line->thread);
		ist__log(&line->ctx, IST_LOG_WARN, "backend %s does not come back from a call: its thread and channel are left behind",
			line->args.name);
		return false;
	}
	if (!here)
		pthread_join(line->thread, NULL);
	ist__line_drop(line);
	return true;
}

/* ---- memory of the channel ---- */

/* Hands a call to the thread and waits. What comes back in *call is the thread's answer. */
static ist_err
call_thread(struct ist__line *line, struct ist__call *call, int64_t deadline, struct ist_error *err)
{
	ist_err e;

	pthread_mutex_lock(&line->lock);
	e = line->exited || atomic_load(&line->deserted) ? IST_ABORTED : IST_OK;
	if (!call->is_free && !e)
		e = refusal(line, "group_alloc", err);
	else if (e)
		ist__fail(err, e, "group_alloc", "the group was freed");
	if (!e)
		e = start_locked(line, err);
	if (e) {
		pthread_mutex_unlock(&line->lock);
		ist__free(&line->ctx, call);
		return e;
	}
	call->next = line->calls;
	line->calls = call;
	pthread_mutex_unlock(&line->lock);
	ist__line_post(line, IST__MAIL_CALL);
	pthread_mutex_lock(&line->lock);
	while (!call->over && !line->exited && !atomic_load(&line->deserted) && wait_changed(line, deadline))
		;
	if (!call->over) {
		call->orphan = true;
		e = ist__fail(err, IST_TIMEOUT, "group_alloc", "backend %s does not come back", line->args.name);
	}
	pthread_mutex_unlock(&line->lock);
	return e;
}

ist_err
ist__line_alloc(struct ist__line *line, uint64_t bytes, uint32_t mem, int32_t device, int64_t deadline, void **out, struct ist_error *err)
{
	struct ist__call *call = ist__alloc(&line->ctx, sizeof(*call));
	ist_err e;

	if (!call)
		return ist__fail_memory(err, "group_alloc");
	call->bytes = bytes;
	call->mem = mem;
	call->device = device;
	e = call_thread(line, call, deadline, err);
	if (e)
		return e;
	e = call->code;
	if (!e && !call->addr)
		e = IST_BAD_PLUGIN;
	if (!e)
		*out = call->addr;
	else
		ist__fail(err, e, "group_alloc", "backend %s: %llu bytes: %s", line->args.name, (unsigned long long)bytes,
			call->status.text[0] ? call->status.text : ist_err_text(e));
	ist__free(&line->ctx, call);
	return e;
}

ist_err
ist__line_free_mem(struct ist__line *line, void *addr)
{
	struct ist__call *call;
	ist_err e;

	if (!addr)
		return IST_OK;
	call = ist__alloc(&line->ctx, sizeof(*call));
	if (!call)
		return IST_NO_MEMORY;
	call->is_free = true;
	call->addr = addr;
	e = call_thread(line, call, ist__now() + 10 * IST_NS_PER_S, NULL);
	if (!e)
		ist__free(&line->ctx, call);
	return e;
}

uint64_t
ist__line_print(struct ist__line *line, char *room, uint64_t room_bytes)
{
	return ist__choose_print(&line->choice, room, room_bytes);
}
