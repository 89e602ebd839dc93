/* SPDX-License-Identifier: Apache-2.0
 *
 * table.c - NCCL as the core sees it: the slots of struct ist_backend. The library is opened when a group asks for it, never by
 * looking. Not here: any wait; what may take long is the thread's (comm.c).
 */
#include "backends/nccl/chan.h"

#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MIN_NS (20 * INT64_C(1000)) /* between two looks at what is on a stream: an eighth of how long it lasts */

/* ---- probe ---- */

/* Strings are the lib's, or constants. */
struct found {
	const char *reason, *library, *version;
	uint64_t naps;
	bool shares; /* several ranks may have one device */
};

static void
look(struct nccl_lib *lib, const struct ist_host *host, uint32_t level, struct found *f)
{
	if (!host->device(host->ctx, IST_MEM_CUDA))
		f->reason = "NCCL moves the memory of CUDA devices, and there are none here";
	f->library = ist__nccl_guess(lib);
	if (!*f->reason && level == IST_LOOK && !*f->library)
		f->reason = "no libnccl.so.2 in sight; install NCCL, or set ISTHMUS_NCCL_LIBRARY to its file";
	if (*f->reason || level == IST_LOOK)
		return;
	if (!ist__nccl_load(lib, host)) {
		f->reason = lib->reason;
		return;
	}
	f->library = lib->open.path;
	f->version = lib->version;
	f->shares = ist__nccl_shares(&lib->open);
	f->naps = lib->open.calls.suspend && lib->open.calls.resume ? NCCL_NAPS : 0;
}

static void
nccl_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_probe *out)
{
	struct nccl_lib *lib = ist__nccl_lib(host);
	struct found f = { .reason = "", .library = "", .version = "" };

	(void)self;
	if (lib)
		look(lib, host, level, &f);
	else
		f.reason = "no memory, or a library older than this backend";
	if (IST_HAS(out, version)) {
		out->usable = !*f.reason;
		out->reason = f.reason;
		out->library = f.library;
		out->version = f.version;
	}
	if (IST_HAS(out, traits)) {
		out->native_ops = NCCL_OPS | f.naps;
		out->mem = 1u << IST_MEM_CUDA;
		out->traits = IST_TRAIT_ONE_ORDER | IST_TRAIT_NO_ABORT | IST_TRAIT_TELLS_LOSS | (f.shares ? 0 : IST_TRAIT_ONE_RANK);
	}
	if (IST_HAS(out, n_settings) && lib && out->usable && level > IST_LOOK) {
		out->settings = lib->settings;
		out->n_settings = lib->n_settings;
	}
}

/* ---- open, close ---- */

static ist_err
choose_library(struct nccl_lib *lib, const struct ist_host *host, const struct nccl_options *opt, struct nccl_open *out, struct ist_status *why)
{
	char reason[NCCL_TEXT];

	if (!opt->library[0] && !ist__nccl_load(lib, host))
		return ist__nccl_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "%.230s", lib->reason);
	if (opt->library[0] && !ist__nccl_open_at(opt->library, out, reason, sizeof(reason)))
		return ist__nccl_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0, "%.230s", reason);
	if (!opt->library[0])
		*out = lib->open;
	return IST_OK;
}

static ist_err
check_args(const struct ist_open *args, struct ist_status *why)
{
	if (args->size == 0 || args->rank >= args->size)
		return ist__nccl_say(why, IST_INVALID_ARGUMENT, IST_NO_RANK, 0, "rank %u of %u", args->rank, args->size);
	if (args->flags & IST_MUST && args->flags & ~IST_MUST)
		return ist__nccl_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "flags 0x%x", args->flags);
	if (args->mem != IST_MEM_CUDA || args->device < 0)
		return ist__nccl_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0, "this rank has no CUDA device: give its endpoint one");
	return IST_OK;
}

static ist_err
nccl_open(void *self, const struct ist_host *host, const struct ist_open *args, struct ist_chan **out, struct ist_status *why)
{
	struct nccl_lib *lib = ist__nccl_lib(host);
	const struct ist_device *device = host->device(host->ctx, IST_MEM_CUDA);
	struct nccl_options opt;
	struct nccl_open open;
	struct ist_chan *chan;
	ist_err e = check_args(args, why);

	(void)self;
	if (!e)
		e = ist__nccl_options(args->options, &opt, why);
	if (!e && (!lib || !device))
		e = ist__nccl_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "no CUDA device, or no memory");
	if (!e)
		e = choose_library(lib, host, &opt, &open, why);
	if (e)
		return e;
	chan = host->alloc(host->ctx, sizeof(*chan), 16, IST_MEM_HOST, -1);
	if (!chan)
		return IST_NO_MEMORY;
	*chan = (struct ist_chan){ .host = host, .opt = opt, .version = open.version, .news = ist__now() };
	chan->mine = (struct nccl_wire){ .magic = NCCL_WIRE_MAGIC, .version = (uint32_t)open.version, .verify = opt.verify, .has_id = args->rank == 0 };
	chan->c = ist__nccl_comm_new(&open, lib, device, args);
	if (!chan->c) {
		host->free(host->ctx, chan);
		return ist__nccl_say(why, errno == EMFILE || errno == ENFILE ? IST_LIMIT : IST_NO_MEMORY, IST_NO_RANK, errno, "a descriptor to sleep on");
	}
	chan->c->own_library = opt.library[0];
	*out = chan;
	return IST_OK;
}

static void
nccl_task_free(struct ist_chan *chan, struct ist_task *task)
{
	if (task)
		ist__nccl_task_free(chan, task);
}

static ist_err
nccl_close(struct ist_chan *chan, struct ist_status *why)
{
	char text[200] = "";
	ist_err e;

	if (!chan)
		return IST_OK;
	for (struct ist_task *t = chan->first; t; t = t->next)
		if (!t->job && t->step != NCCL_QUEUED && t->step != NCCL_OVER)
			atomic_store(&chan->c->aborted, IST_ABORTED); /* under way: an end in good order would wait for it */
	ist__nccl_leave_gate(chan);
	while (chan->first) {
		if (chan->first->step != NCCL_OVER)
			chan->first->state = IST_ABANDONED; /* its event and heads may still be written to */
		ist__nccl_task_free(chan, chan->first);
	}
	e = ist__nccl_comm_close(chan->c, text, sizeof(text));
	chan->host->free(chan->host->ctx, chan);
	return e ? ist__nccl_say(why, e, IST_NO_RANK, 0, "%s", text) : IST_OK;
}

/* ---- wire-up ---- */

static ist_err
ask(struct ist_chan *chan, uint32_t job, struct ist_task **out, struct ist_status *why)
{
	struct ist_task *task = ist__nccl_task_new(chan, 0);
	ist_err e;

	if (!task)
		return IST_NO_MEMORY;
	task->job = job;
	e = job ? ist__nccl_ask(chan->c, chan->host, job) : IST_OK;
	if (e) {
		ist__nccl_task_free(chan, task);
		return ist__nccl_say(why, e, IST_NO_RANK, 0, "no thread for the library's longer calls");
	}
	if (!job)
		ist__nccl_task_end(chan, task, IST_DONE);
	*out = task;
	return IST_OK;
}

static ist_err
nccl_offer(struct ist_chan *chan, struct ist_wire *mine, struct ist_task **out, struct ist_status *why)
{
	ist_err e = atomic_load(&chan->c->aborted);

	if (e)
		return e;
	if (chan->offered)
		return ist__nccl_say(why, IST_BAD_STATE, IST_NO_RANK, 0, "offered already");
	e = ask(chan, chan->c->rank == 0 ? NCCL_JOB_ID : 0, out, why);
	if (e)
		return e;
	chan->offered = true;
	*mine = (struct ist_wire){ .addr = &chan->mine, .bytes = sizeof(chan->mine) };
	return IST_OK;
}

/* What came is another process's: nothing in it is believed. */
static ist_err
read_wire(struct ist_chan *chan, uint32_t rank, const struct ist_wire *from, struct nccl_wire *w, struct ist_status *why)
{
	int ours = (int)chan->mine.version / 100, theirs;

	memset(w, 0, sizeof(*w));
	if (from->bytes == sizeof(*w) && from->addr)
		memcpy(w, from->addr, sizeof(*w));
	theirs = (int)(w->version / 100);
	if (w->magic != NCCL_WIRE_MAGIC || w->verify > 1 || w->has_id != (rank == 0) || w->version > 1000000)
		return ist__nccl_say(why, IST_BAD_FORMAT, rank, 0, "what rank %u says is none of this backend's", rank);
	if (theirs != ours)
		return ist__nccl_say(why, IST_VERSION_MISMATCH, rank, 0, "rank %u has NCCL %d.%d, rank %u has %d.%d: give both the same", rank, theirs / 100,
			theirs % 100, chan->c->rank, ours / 100, ours % 100);
	if (w->verify != chan->mine.verify)
		return ist__nccl_say(why, IST_MISMATCH, rank, 0, "rank %u has verify=%u, rank %u verify=%u", rank, w->verify, chan->c->rank, chan->mine.verify);
	return IST_OK;
}

static ist_err
nccl_connect(struct ist_chan *chan, const struct ist_connect *args, struct ist_task **out, struct ist_status *why)
{
	struct nccl_wire w;
	ist_err e = atomic_load(&chan->c->aborted);

	if (!e && (args->size != chan->c->size || !chan->offered || atomic_load(&chan->c->asked) & NCCL_JOB_JOIN))
		return ist__nccl_say(why, IST_BAD_STATE, IST_NO_RANK, 0, "connect comes once, after offer, with the wires of all");
	for (uint32_t r = 0; !e && r < args->size; r++) {
		e = read_wire(chan, r, &args->all[r], &w, why);
		if (!e && r == 0)
			chan->c->id = w.id;
		if (!e && (int)w.version < chan->version)
			chan->version = (int)w.version;
	}
	return e ? e : ask(chan, NCCL_JOB_JOIN, out, why);
}

/* ---- operations ---- */

/* A copy, with zeros for what the caller's version doesn't have. */
static void
copy_op(struct ist_op *to, const struct ist_op *from)
{
	memset(to, 0, sizeof(*to));
	memcpy(to, from, from->struct_size < sizeof(*to) ? from->struct_size : sizeof(*to));
}

static bool
has_others(const struct ist_chan *chan, const struct ist_task *task)
{
	for (const struct ist_task *t = chan->first; t; t = t->next)
		if (t != task && t->step != NCCL_OVER)
			return true;
	return false;
}

/* What the core never asks for together, and what asks for another order of things. */
static ist_err
check_whole(struct ist_chan *chan, const struct ist_task *task, struct ist_status *why)
{
	bool nap = task->n > 0 && task->ops[0].kind >= IST_OP_SUSPEND, resume = nap && task->ops[0].kind == IST_OP_RESUME;
	int64_t left = 0;

	if (chan->suspended != resume)
		return ist__nccl_say(why, IST_BAD_STATE, IST_NO_RANK, 0, chan->suspended ? "it is suspended" : "it is not suspended");
	for (uint64_t i = 0; i < task->n; i++) {
		const struct ist_op *op = &task->ops[i];

		if (op->kind >= IST_OP_SUSPEND && (task->n > 1 || has_others(chan, task)))
			return ist__nccl_say(why, IST_BAD_STATE, IST_NO_RANK, 0, "suspend and resume come alone, with nothing else under way");
		if (op->peer == chan->c->rank)
			left += op->kind == IST_OP_SEND ? 1 : op->kind == IST_OP_RECV ? -1 : 0;
	}
	return left ? ist__nccl_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "NCCL sends to its own rank only what that receives in the same start") : IST_OK;
}

static ist_err
fill(struct ist_chan *chan, struct ist_task *task, const struct ist_op *const *ops, struct ist_status *why)
{
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < task->n && !e; i++) {
		struct ist_op *op = &task->ops[i];
		bool out;

		copy_op(op, ops[i]);
		e = ist__nccl_check(chan, op, why);
		out = op->kind != IST_OP_RECV && !(op->kind == IST_OP_BROADCAST && op->peer != chan->c->rank);
		task->bytes += (out ? op->src.bytes : 0) + (op->kind != IST_OP_SEND && !(op->kind == IST_OP_BROADCAST && out) ? op->dst.bytes : 0);
		task->on_stream = task->on_stream || op->stream;
		if (!task->stream)
			task->stream = op->stream;
	}
	if (!task->stream)
		task->stream = chan->c->stream;
	if (!e)
		e = check_whole(chan, task, why);
	return e ? e : ist__nccl_ready_heads(chan, task) ? IST_OK : IST_NO_MEMORY;
}

static ist_err
nccl_start(struct ist_chan *chan, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	ist_err e = atomic_load(&chan->c->aborted);
	struct ist_task *task;

	e = e ? e : chan->broken;
	if (e)
		return e;
	if (!chan->ready)
		return ist__nccl_say(why, IST_BAD_STATE, IST_NO_RANK, 0, "not connected");
	task = ist__nccl_task_new(chan, n);
	if (!task)
		return IST_NO_MEMORY;
	e = fill(chan, task, ops, why);
	if (e) {
		ist__nccl_task_free(chan, task);
		return e;
	}
	if (n == 0)
		ist__nccl_task_end(chan, task, IST_DONE);
	else if (task->ops[0].kind >= IST_OP_SUSPEND)
		chan->suspended = task->ops[0].kind == IST_OP_SUSPEND;
	chan->news = ist__now();
	ist__nccl_move(chan);
	*out = task;
	return IST_OK;
}

/* ---- progress ---- */

static ist_err
nccl_progress(struct ist_chan *chan, struct ist_progress *out)
{
	ist_err gone = atomic_load(&chan->c->aborted);
	uint64_t n;

	while (read(chan->c->timer_fd, &n, sizeof(n)) == (ssize_t)sizeof(n))
		;
	if (gone)
		ist__nccl_drain(chan, gone);
	else
		ist__nccl_move(chan);
	if (IST_HAS(out, more))
		out->more = 0;
	if (IST_HAS(out, moved))
		out->moved = chan->moved;
	if (IST_HAS(out, ended))
		out->ended = chan->ended;
	return IST_OK;
}

/* Nothing of the library's or the device's can be slept on: what is under way is looked at now and then. The thread and abort
 * make the same descriptor readable: it is set first and their word is looked for afterwards, so that none gets lost. */
static ist_err
nccl_arm(struct ist_chan *chan, int32_t *fd)
{
	struct nccl_comm_state *c = chan->c;
	int64_t ns = (ist__now() - chan->news) / 8;
	uint32_t before = atomic_load(&c->done);

	ns = ns < LOOK_MIN_NS ? LOOK_MIN_NS : ns > IST__MS ? IST__MS : ns;
	ist__nccl_wake_in(c, ist__nccl_waits(chan) ? ns : 0);
	if ((atomic_load(&c->aborted) && chan->aborted_at == 0) || atomic_load(&c->done) != before)
		return IST_BUSY;
	*fd = c->timer_fd;
	return IST_OK;
}

static ist_err
nccl_test(struct ist_chan *chan, struct ist_task *task, struct ist_status *out)
{
	(void)chan;
	if (IST_HAS(out, state))
		out->state = task->state;
	if (IST_HAS(out, rank) && task->rank != IST_NO_RANK)
		out->rank = task->rank;
	if (IST_HAS(out, sys))
		out->sys = task->sys;
	if (IST_HAS(out, moved))
		out->moved = task->state == IST_DONE && !task->result ? task->bytes : 0;
	if (IST_HAS(out, text))
		snprintf(out->text, sizeof(out->text), "%s", task->text);
	return task->result;
}

static void
nccl_abort(struct ist_chan *chan, ist_err why)
{
	ist_err none = IST_OK;
	int saved = errno;

	atomic_compare_exchange_strong(&chan->c->aborted, &none, why ? why : IST_ABORTED);
	sem_post(&chan->c->bell);
	ist__nccl_wake_in(chan->c, 1);
	errno = saved;
}

static const struct ist_backend nccl_backend = {
	.struct_size = sizeof(struct ist_backend),
	.abi = IST_BACKEND_ABI,
	.name = "nccl",
	.probe = nccl_probe,
	.open = nccl_open,
	.offer = nccl_offer,
	.connect = nccl_connect,
	.start = nccl_start,
	.progress = nccl_progress,
	.arm = nccl_arm,
	.test = nccl_test,
	.task_free = nccl_task_free,
	.abort = nccl_abort,
	.close = nccl_close,
};

IST_BACKEND_DEFINE(nccl_backend);
