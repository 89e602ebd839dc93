/* SPDX-License-Identifier: Apache-2.0
 *
 * table.c - the host backend as the core sees it: the slots of struct ist_backend, and the loop that moves all tasks of a
 * channel on a little.
 */
#include "backends/host/host.h"

#include "base/memfd.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/utsname.h>
#include <unistd.h>

#define NATIVE (1u << IST_OP_SEND | 1u << IST_OP_RECV | 1u << IST_OP_BROADCAST | 1u << IST_OP_BARRIER)
#define MEMORY (1u << IST_MEM_HOST | 1u << IST_MEM_PINNED | 1u << IST_MEM_CUDA | 1u << IST_MEM_ASCEND) /* the last two: far.c */
#define SIZE_MAX_RANKS 65536u
#define LOOK_NS (100 * INT64_C(1000))

static void
host_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_probe *out)
{
	int fd = ist__memfd("isthmus-probe");
	bool shm = fd >= 0 && !ist__host_reserve(fd, 0, 1);

	(void)self, (void)host, (void)level;
	if (fd >= 0)
		close(fd);
	if (IST_HAS(out, usable))
		out->usable = 1;
	if (IST_HAS(out, reason))
		out->reason = shm ? "" : "no memory files here: tcp only";
	if (IST_HAS(out, library))
		out->library = "";
	if (IST_HAS(out, version))
		out->version = shm ? "1 (shm, tcp)" : "1 (tcp)";
	if (IST_HAS(out, native_ops))
		out->native_ops = NATIVE;
	if (IST_HAS(out, mem))
		out->mem = MEMORY;
	if (IST_HAS(out, traits))
		out->traits = IST_TRAIT_TELLS_LOSS | IST_TRAIT_CAN_VIEW | IST_TRAIT_WANTS_FDS | IST_TRAIT_TAKERS | IST_TRAIT_FAR_VIEWS;
}

static struct ist_task *
task_at_once(struct ist_chan *chan)
{
	struct ist_task *task = ist__host_task_new(chan, 0);

	if (task)
		ist__host_task_end(chan, task, IST_OK);
	return task;
}

/* ---- open, close ---- */

static void
chan_free(struct ist_chan *chan)
{
	struct ist__tally *tally = chan->tally;
	struct ist__ctx ctx = chan->ctx;

	ist__host_net_fini(chan);
	ist__host_coop_fini(chan);
	for (uint32_t r = 0; chan->peers && r < chan->size; r++)
		ist__host_detach(chan, &chan->peers[r]);
	ist__host_heap_fini(chan);
	ist__host_segment_free(chan);
	for (struct ist_task *task = chan->tasks, *next; task; task = next) {
		next = task->next;
		ist__host_sets_free(chan, task);
		ist__free(&ctx, task);
	}
	for (struct ist_task *task = chan->spare, *next; task; task = next) {
		next = task->next;
		ist__free(&ctx, task);
	}
	if (chan->wake_fd >= 0)
		close(chan->wake_fd);
	if (chan->epoll_fd >= 0)
		close(chan->epoll_fd);
	ist__free(&ctx, chan->wire);
	ist__free(&ctx, chan->near);
	ist__free(&ctx, chan->peers);
	ist__free(&ctx, chan);
	ist__tally_drop(tally);
}

static ist_err
chan_fds(struct ist_chan *chan, struct ist_status *why)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &chan->wake_fd };

	chan->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	chan->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (chan->wake_fd < 0 || chan->epoll_fd < 0 || epoll_ctl(chan->epoll_fd, EPOLL_CTL_ADD, chan->wake_fd, &ev))
		return ist__host_say(why, errno == ENOSPC ? IST_LIMIT /* of watches */ : ist__host_no_room(errno), IST_NO_RANK, errno, "descriptors to sleep on: %s", strerror(errno));
	return IST_OK;
}

static void
chan_fill(struct ist_chan *chan, const struct ist_open *args)
{
	chan->rank = args->rank;
	chan->size = args->size;
	chan->words = (args->size + 63) / 64;
	chan->group = args->group;
	chan->generation = args->generation;
	chan->deadline = args->deadline_ns > 0 ? args->deadline_ns : IST__NEVER;
	chan->ctl_fd = chan->heap_fd = chan->listen_fd = chan->timer_fd = chan->wake_fd = chan->epoll_fd = -1;
	chan->wire_fds[0] = chan->wire_fds[1] = chan->wire_fds[2] = -1;
	chan->cpus = 1;
	chan->casts_last = &chan->casts;
	ist__host_layout(chan->size, &chan->lay);
	for (uint32_t r = 0; r < chan->size; r++)
		chan->peers[r] = (struct peer){ .rank = r, .heap_fd = -1, .wake_fd = -1 };
}

static ist_err
host_open(void *self, const struct ist_host *host, const struct ist_open *args, struct ist_chan **out, struct ist_status *why)
{
	struct ist__ctx under = { .log_level = INT32_MAX, .numa = -1, .log = host->log, .log_ctx = host->ctx, .alloc = host->alloc,
		.free = host->free, .mem_ctx = host->ctx }, ctx;
	struct ist__tally *tally;
	struct ist_chan *chan;
	struct options opt;
	ist_err err;

	(void)self;
	if (args->size == 0 || args->rank >= args->size || args->size > SIZE_MAX_RANKS)
		return ist__host_say(why, IST_INVALID_ARGUMENT, IST_NO_RANK, 0, "rank %u of %u", args->rank, args->size);
	if (args->flags & IST_MUST)
		return ist__host_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "flags 0x%x", args->flags);
	err = ist__host_options(args, &opt, why);
	if (err)
		return err;
	tally = ist__tally_new(&under);
	if (!tally)
		return IST_NO_MEMORY;
	ctx = *ist__tally_ctx(tally);
	chan = ist__alloc(&ctx, sizeof(*chan));
	if (!chan) {
		ist__tally_drop(tally);
		return IST_NO_MEMORY;
	}
	chan->ctx = ctx;
	chan->tally = tally;
	chan->host = host;
	chan->opt = opt;
	chan->peers = ist__alloc(&ctx, (uint64_t)args->size * sizeof(*chan->peers));
	chan->near = ist__alloc(&ctx, (uint64_t)args->size * sizeof(*chan->near));
	if (!chan->peers || !chan->near) {
		chan->wake_fd = chan->epoll_fd = chan->listen_fd = chan->timer_fd = chan->ctl_fd = chan->heap_fd = -1;
		chan->wire_fds[0] = chan->wire_fds[1] = -1;
		ist__free(&ctx, chan->peers);
		chan->peers = NULL;
		err = IST_NO_MEMORY;
	} else {
		chan_fill(chan, args);
		err = ist__host_copiers_open(chan, why);
		err = err ? err : chan_fds(chan, why);
	}
	if (err) {
		chan_free(chan);
		return err;
	}
	ist__host_tasks_warm(chan);
	*out = chan;
	return IST_OK;
}

static ist_err
host_close(struct ist_chan *chan, struct ist_status *why)
{
	(void)why;
	if (!chan)
		return IST_OK;
	chan_free(chan);
	return IST_OK;
}

/* ---- wire-up ---- */

static ist_err
host_offer(struct ist_chan *chan, struct ist_wire *mine, struct ist_task **out, struct ist_status *why)
{
	struct ist_wire wire;
	struct ist_task *task;
	ist_err err = atomic_load(&chan->aborted);

	if (err)
		return err;
	if (chan->offered)
		return ist__host_say(why, IST_BAD_STATE, IST_NO_RANK, 0, "offered already");
	err = ist__host_offer(chan, &wire, why);
	if (err)
		return err;
	task = task_at_once(chan);
	if (!task)
		return IST_NO_MEMORY;
	chan->offered = true;
	*mine = wire;
	*out = task;
	return IST_OK;
}

static ist_err
host_connect(struct ist_chan *chan, const struct ist_connect *args, struct ist_task **out, struct ist_status *why)
{
	struct ist_task *task;
	ist_err err = atomic_load(&chan->aborted);

	if (err)
		return err;
	if (!chan->offered || chan->linking || chan->connected)
		return ist__host_say(why, IST_BAD_STATE, IST_NO_RANK, 0, "connect comes once, after offer");
	err = ist__host_connect(chan, args, why);
	if (err)
		return err;
	task = ist__host_task_new(chan, 0);
	if (!task)
		return IST_NO_MEMORY;
	chan->linking = task;
	chan->fresh = true;
	*out = task;
	return IST_OK;
}

/* ---- start ---- */

static bool
buf_right(const struct ist_buf *buf)
{
	return buf->bytes == 0 || (buf->addr && buf->bytes <= INT64_MAX && buf->mem < 64 && (MEMORY >> buf->mem & 1));
}

/* A copy, with zeros for what the caller's version doesn't have. */
static struct ist_op
op_copy(const struct ist_op *op)
{
	struct ist_op copy = { 0 };

	memcpy(&copy, op, op->struct_size < sizeof(copy) ? op->struct_size : sizeof(copy));
	return copy;
}

static ist_err
op_check(struct ist_chan *chan, const struct ist_op *op, struct ist_status *why)
{
	bool sends = op->kind == IST_OP_SEND || (op->kind == IST_OP_BROADCAST && op->peer == chan->rank);
	bool takes = sends || op->kind != IST_OP_BROADCAST || !op->takers || ist__host_has(op->takers, chan->rank);

	if (op->kind > IST_OP_RESUME || !(NATIVE >> op->kind & 1) || op->flags & IST_MUST || op->stream)
		return ist__host_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "operation %u, flags 0x%x%s", op->kind, op->flags,
			op->stream ? ", on a stream" : "");
	if (op->kind == IST_OP_BARRIER)
		return chan->n_near + 1 == chan->size ? IST_OK :
			ist__host_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "a barrier of members that do not all share memory");
	if ((ist__host_is_far(&op->src) || ist__host_is_far(&op->dst)) && !(op->kind == IST_OP_BROADCAST && op->flags & IST_OP_VIEW && chan->n_near + 1 == chan->size))
		return ist__host_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "device memory: only broadcasts with views, among members that share memory");
	if (op->peer >= chan->size || (takes && !buf_right(sends ? &op->src : &op->dst)))
		return ist__host_say(why, IST_INVALID_ARGUMENT, IST_NO_RANK, 0, "peer %u of %u, or a buffer of no host memory", op->peer, chan->size);
	return IST_OK;
}

/* Space in shared memory, so that nothing can fail for want of it once begun. */
static ist_err
part_ready(struct ist_chan *chan, struct part *part, struct ist_status *why)
{
	const struct ist_op *op = &part->op;

	if (op->kind == IST_OP_SEND && chan->peers[op->peer].near)
		return ist__host_reserve_ring(chan, &chan->peers[op->peer], why);
	if (op->kind != IST_OP_BROADCAST)
		return IST_OK;
	return ist__host_set_takers(chan, part) ? ist__host_cast_ready(chan, part, why) : IST_NO_MEMORY;
}

static void
part_start(struct ist_chan *chan, struct part *part)
{
	switch (part->op.kind) {
	case IST_OP_SEND:
		ist__host_push(&chan->peers[part->op.peer].send, part);
		break;
	case IST_OP_RECV:
		ist__host_push(&chan->peers[part->op.peer].recv, part);
		break;
	case IST_OP_BROADCAST:
		ist__host_cast_start(chan, part);
		break;
	default:
		ist__host_gate_start(chan, part);
	}
}

static ist_err
host_start(struct ist_chan *chan, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	struct ist_task *task;
	ist_err err = atomic_load(&chan->aborted);

	if (err)
		return err;
	if (!chan->connected)
		return ist__host_say(why, IST_BAD_STATE, IST_NO_RANK, 0, "not connected");
	task = ist__host_task_new(chan, n);
	if (!task)
		return IST_NO_MEMORY;
	for (uint64_t i = 0; i < n && !err; i++) {
		task->parts[i].op = op_copy(ops[i]);
		err = op_check(chan, &task->parts[i].op, why);
	}
	for (uint64_t i = 0; i < n && !err; i++)
		err = part_ready(chan, &task->parts[i], why);
	if (err) {
		ist__host_task_free(chan, task);
		return err;
	}
	for (uint64_t i = 0; i < n; i++)
		part_start(chan, &task->parts[i]);
	if (n == 0)
		ist__host_task_end(chan, task, IST_OK);
	chan->fresh = true;
	*out = task;
	return IST_OK;
}

/* ---- progress ---- */

static bool
late(const struct ist_chan *chan)
{
	return ist__now() >= chan->until || atomic_load_explicit(&chan->aborted, memory_order_relaxed);
}

static bool
peer_step(struct ist_chan *chan, struct peer *peer)
{
	bool did = false;

	if (peer->rank == chan->rank)
		return ist__host_self_step(chan);
	if (peer->send.first && (peer->near ? ist__host_ring_send(chan, peer) : ist__host_stream_send(chan, peer)))
		did = true;
	if (peer->recv.first && (peer->near ? ist__host_ring_recv(chan, peer) : ist__host_stream_recv(chan, peer)))
		did = true;
	return did;
}

/* One step with each peer, beginning with another one each time, for as long as there is time. */
static bool
peers_step(struct ist_chan *chan)
{
	uint32_t first = chan->turn % chan->size;
	bool did = false;

	for (uint32_t i = 0; i < chan->size && !(did && late(chan)); i++) {
		struct peer *peer = &chan->peers[(first + i) % chan->size];
		if ((peer->send.first || peer->recv.first) && peer_step(chan, peer)) {
			chan->turn = peer->rank + 1;
			did = true;
		}
	}
	return did;
}

/* One step of everything that is under way. Messages and broadcasts go first in turn. */
static bool
round_of(struct ist_chan *chan)
{
	bool did = chan->gates.first && ist__host_gate_step(chan);

	chan->casts_first = !chan->casts_first;
	for (int i = 0; i < 2 && !(did && late(chan)); i++) {
		bool casts = (i == 0) == chan->casts_first;
		if (casts ? chan->casts && ist__host_cast_step(chan) : peers_step(chan))
			did = true;
	}
	return did;
}

/* True: the channel is over. */
static bool
see_abort(struct ist_chan *chan)
{
	ist_err why = atomic_load(&chan->aborted);

	if (!why)
		return false;
	if (!chan->abort_told) {
		chan->abort_told = true;
		chan->armed = true; /* so that the descriptor is emptied */
		ist__host_end_all(chan, why);
	} else if (chan->casts) {
		ist__host_coop_drain(chan, why);
	}
	return true;
}

/* In the middle of a long message from a member of this host: looks again and again for a while before it sleeps. */
static bool
look_again(struct ist_chan *chan)
{
	int64_t until = ist__now() + LOOK_NS;

	while (ist__host_net_look(chan) && !late(chan) && ist__now() < until) {
		if (round_of(chan))
			return true;
		sched_yield();
	}
	return false;
}

static void
move(struct ist_chan *chan)
{
	chan->until = ist__now() + SLICE_NS;
	if (chan->ctl)
		ist__host_hear(chan);
	ist__host_net_poll(chan);
	if (chan->linking && !ist__host_link(chan))
		return;
	if (!chan->connected)
		return;
	while (round_of(chan) || look_again(chan))
		if (late(chan)) {
			chan->more = true;
			return;
		}
	if (chan->gates.first) {
		ist__host_gate_spin(chan);
		(void)ist__host_gate_step(chan);
	}
}

static ist_err
host_progress(struct ist_chan *chan, struct ist_progress *out)
{
	bool over = see_abort(chan);

	if (chan->armed)
		ist__host_disarm(chan);
	chan->fresh = chan->more = false;
	if (over)
		ist__host_net_poll(chan); /* or its events would go on waking */
	else
		move(chan);
	if (IST_HAS(out, more))
		out->more = chan->more;
	if (IST_HAS(out, moved))
		out->moved = chan->moved;
	if (IST_HAS(out, ended))
		out->ended = chan->ended;
	if (IST_HAS(out, shared)) {
		out->memory = ist__tally_bytes(chan->tally);
		out->shared = chan->shared;
	}
	return over ? IST_OK : ist__host_net_starved(chan);
}

static ist_err
host_arm(struct ist_chan *chan, int32_t *fd)
{
	if (atomic_load(&chan->aborted) ? !chan->abort_told : chan->fresh || chan->more)
		return IST_BUSY;
	if (chan->abort_told && chan->casts)
		return IST_BUSY; /* others are still to leave our memory */
	chan->armed = true; /* what abort writes is emptied too */
	if (!chan->abort_told && !ist__host_arm(chan))
		return IST_BUSY;
	*fd = chan->epoll_fd;
	return IST_OK;
}

static ist_err
host_test(struct ist_chan *chan, struct ist_task *task, struct ist_status *out)
{
	see_abort(chan);
	if (IST_HAS(out, state))
		out->state = task->state;
	if (IST_HAS(out, rank) && task->rank != IST_NO_RANK)
		out->rank = task->rank;
	if (IST_HAS(out, sys))
		out->sys = task->sys;
	if (IST_HAS(out, moved))
		out->moved = task->moved;
	if (IST_HAS(out, view))
		out->view = task->view;
	if (IST_HAS(out, text))
		memcpy(out->text, task->text, sizeof(out->text));
	return task->result;
}

static void
host_task_free(struct ist_chan *chan, struct ist_task *task)
{
	for (uint64_t i = 0; task && i < task->n; i++)
		if (task->parts[i].viewed)
			ist__host_cast_back(chan, &task->parts[i]);
	ist__host_task_free(chan, task);
}

static void
host_abort(struct ist_chan *chan, ist_err why)
{
	uint64_t one = 1;
	ist_err none = IST_OK;
	int saved = errno;

	atomic_compare_exchange_strong(&chan->aborted, &none, why ? why : IST_ABORTED);
	if (write(chan->wake_fd, &one, sizeof(one)) < 0)
		one = 0; /* full: it is readable as it is */
	errno = saved;
}

static ist_err
host_alloc(struct ist_chan *chan, uint64_t bytes, uint32_t mem, int32_t device, void **out, struct ist_status *why)
{
	if (mem > IST_MEM_PINNED)
		return ist__host_far_alloc(chan, bytes, mem, device, out, why);
	if (mem != IST_MEM_HOST)
		return ist__host_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "memory of kind %u", mem);
	return ist__host_heap_alloc(chan, bytes, device, out, why);
}

static void
host_free(struct ist_chan *chan, void *addr)
{
	if (addr)
		ist__host_heap_free(chan, addr);
}

static const struct ist_backend host_backend = {
	.struct_size = sizeof(struct ist_backend),
	.abi = IST_BACKEND_ABI,
	.name = "host",
	.probe = host_probe,
	.open = host_open,
	.offer = host_offer,
	.connect = host_connect,
	.start = host_start,
	.progress = host_progress,
	.arm = host_arm,
	.test = host_test,
	.task_free = host_task_free,
	.abort = host_abort,
	.close = host_close,
	.alloc = host_alloc,
	.free = host_free,
};

IST_BACKEND_DEFINE(host_backend);
