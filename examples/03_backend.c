/* SPDX-License-Identifier: Apache-2.0
 *
 * 03_backend.c - a third party's backend, whole: ranks that talk over TCP, one connection for each pair.
 *
 *     cc -shared -fPIC $(pkg-config --cflags isthmus) 03_backend.c -o wire.so
 *     isthmus check ./wire.so          what is native, what the core composes, what is wrong
 *     isthmus push DIR --backend ./wire.so ...
 *
 * Option: listen=A.B.C.D, the address to be reached at (127.0.0.1). The bytes travel as they are: for a trusted network.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <isthmus/backend.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 256 << 10, SLICE_NS = 1000000, GUEST_NS = 1000000000, MAGIC = 0x57495245, RANKS_MAX = 4096 };
#define REFUSED(flags) (((flags) & IST_MUST) && ((flags) & ~IST_MUST)) /* else an unknown flag is ignored */

struct offer { uint32_t magic, ip, port, reserved; uint8_t cookie[16]; }; /* ip and port in network order */
struct hello { uint32_t magic, rank; uint8_t cookie[16]; };               /* what who dials says first */
struct header { uint64_t seq, bytes; };

struct part { /* one operation */
	struct part *next;
	struct ist_task *task;
	struct ist_op op;
	struct header head;
	uint64_t at; /* bytes moved, the header among them */
};
struct ist_task {
	struct ist_task *next;
	uint64_t n, left, moved;
	uint32_t state;
	ist_err result;
	struct part parts[];
};
struct queue { struct part *first, **last; };
struct peer { /* in and out are one socket, or the two ends of a pair where the peer is this rank */
	struct queue send, recv;
	int in, out;
	uint32_t watched; /* epoll events asked for */
	int silent;       /* we dialled and have not said hello yet */
	struct hello hello;
};

struct ist_chan {
	const struct ist_host *host;
	struct ist_task *tasks, *connecting;
	uint32_t rank, size, linked, broken_rank;
	int64_t deadline_ns, guest_until_ns;
	int listener, epoll, wake, guest; /* guest: a caller that has not said who it is, one at a time */
	struct offer mine;
	uint64_t moved, ended;
	ist_err broken;
	const char *broken_text;
	_Atomic ist_err gone; /* set by abort */
	struct peer peers[];
};

static int64_t
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static ist_err
say(struct ist_status *why, ist_err e, int sys, const char *text)
{
	why->sys = sys;
	snprintf(why->text, sizeof(why->text), "%s", text);
	return e;
}

static void
wire_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_probe *out)
{
	(void)self, (void)host, (void)level;
	out->usable = 1;
	out->reason = out->library = "";
	out->version = "1";
	out->native_ops = 1u << IST_OP_SEND | 1u << IST_OP_RECV;
	out->mem = 1u << IST_MEM_HOST | 1u << IST_MEM_PINNED;
	out->traits = IST_TRAIT_TELLS_LOSS;
}

static void
end(struct ist_chan *c, struct ist_task *task, ist_err result)
{
	c->ended += task->state != IST_DONE;
	task->result = task->state == IST_DONE ? task->result : result;
	task->state = IST_DONE;
}

static struct ist_task *
task_new(struct ist_chan *c, uint64_t n)
{
	size_t bytes = sizeof(struct ist_task) + n * sizeof(struct part);
	struct ist_task *task = n > UINT32_MAX ? NULL : c->host->alloc(c->host->ctx, bytes, 16, IST_MEM_HOST, -1);

	if (!task)
		return NULL;
	memset(task, 0, bytes);
	task->n = task->left = n;
	task->next = c->tasks;
	c->tasks = task;
	return task;
}

/* A connection, or the order on it, is lost: nothing more can be trusted here. */
static void
break_down(struct ist_chan *c, ist_err e, uint32_t rank, const char *text)
{
	if (c->broken)
		return;
	c->broken = e;
	c->broken_rank = rank;
	c->broken_text = text;
	for (struct ist_task *t = c->tasks; t; t = t->next)
		end(c, t, e);
}

static ist_err
listen_at(struct ist_chan *c, const char *ip, struct ist_status *why)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	struct epoll_event in = { .events = EPOLLIN };
	socklen_t n = sizeof(a);

	if (inet_pton(AF_INET, ip, &a.sin_addr) != 1)
		return say(why, IST_BAD_CONFIG, 0, "listen= takes an IPv4 address");
	c->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	c->epoll = epoll_create1(EPOLL_CLOEXEC);
	c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->listener < 0 || c->epoll < 0 || c->wake < 0 || bind(c->listener, (struct sockaddr *)&a, n) || listen(c->listener, 64) ||
	    getsockname(c->listener, (struct sockaddr *)&a, &n) || epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->wake, &in))
		return say(why, IST_IO, errno, "no socket to listen on");
	c->mine = (struct offer){ .magic = MAGIC, .ip = a.sin_addr.s_addr, .port = a.sin_port };
	return getrandom(c->mine.cookie, 16, 0) == 16 ? IST_OK : say(why, IST_IO, errno, "no randomness");
}

static ist_err wire_close(struct ist_chan *c, struct ist_status *why);

static ist_err
wire_open(void *self, const struct ist_host *host, const struct ist_open *args, struct ist_chan **out, struct ist_status *why)
{
	const char *option = args->options && *args->options ? args->options : "listen=127.0.0.1";
	size_t bytes = sizeof(struct ist_chan) + args->size * sizeof(struct peer);

	(void)self;
	if (REFUSED(args->flags) || args->size == 0 || args->size > RANKS_MAX || args->rank >= args->size)
		return say(why, IST_UNSUPPORTED, 0, "an unknown flag, or not a group of 1 to 4096");
	if (strncmp(option, "listen=", 7) != 0)
		return say(why, IST_BAD_CONFIG, 0, "the only option is listen=A.B.C.D");
	struct ist_chan *c = host->alloc(host->ctx, bytes, 16, IST_MEM_HOST, -1);
	if (!c)
		return IST_NO_MEMORY;
	memset(c, 0, bytes);
	c->host = host;
	c->rank = args->rank;
	c->size = args->size;
	c->deadline_ns = args->deadline_ns;
	c->listener = c->epoll = c->wake = c->guest = -1;
	for (struct peer *p = c->peers; p < c->peers + c->size; p++) {
		p->in = p->out = -1;
		p->send.last = &p->send.first;
		p->recv.last = &p->recv.first;
	}
	ist_err e = listen_at(c, option + 7, why);
	if (e)
		wire_close(c, why);
	else
		*out = c;
	return e;
}

static ist_err
wire_offer(struct ist_chan *c, struct ist_wire *mine, struct ist_task **out, struct ist_status *why)
{
	struct ist_task *task = task_new(c, 0);

	(void)why;
	if (!task)
		return IST_NO_MEMORY;
	*mine = (struct ist_wire){ .addr = &c->mine, .bytes = sizeof(c->mine) };
	end(c, task, IST_OK);
	*out = task;
	return IST_OK;
}

/* Ranks below ours listen, we dial; the cookie tells us from a stranger. */
static int
dial(struct ist_chan *c, struct peer *p, const struct offer *to)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = (in_port_t)to->port, .sin_addr.s_addr = to->ip };

	p->in = p->out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	p->hello = (struct hello){ .magic = MAGIC, .rank = c->rank };
	p->silent = 1;
	memcpy(p->hello.cookie, to->cookie, sizeof(to->cookie));
	return p->in >= 0 && (!connect(p->in, (struct sockaddr *)&a, sizeof(a)) || errno == EINPROGRESS);
}

static ist_err
wire_connect(struct ist_chan *c, const struct ist_connect *args, struct ist_task **out, struct ist_status *why)
{
	struct offer theirs;
	int pair[2];

	for (uint32_t i = 0; i < c->size; i++) { /* all of it before anything is begun: it comes from outside */
		why->rank = i;
		if (args->size != c->size || args->all[i].bytes != sizeof(theirs))
			return say(why, IST_BAD_FORMAT, 0, "this is not the wire-up of this backend");
		memcpy(&theirs, args->all[i].addr, sizeof(theirs));
		if (theirs.magic != MAGIC)
			return say(why, IST_BAD_FORMAT, 0, "this is not the wire-up of this backend");
	}
	for (uint32_t i = 0; i < c->rank; i++) {
		memcpy(&theirs, args->all[i].addr, sizeof(theirs));
		why->rank = i;
		if (!dial(c, &c->peers[i], &theirs))
			return say(why, IST_IO, errno, "can't dial a member");
	}
	why->rank = IST_NO_RANK;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
		return say(why, IST_IO, errno, "socketpair");
	c->peers[c->rank].out = pair[0]; /* what we send to ourselves */
	c->peers[c->rank].in = pair[1];
	c->linked = 1;
	epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->listener, &(struct epoll_event){ .events = EPOLLIN });
	struct ist_task *task = c->connecting = task_new(c, 0);
	if (!task)
		return IST_NO_MEMORY;
	*out = task;
	return IST_OK;
}

/* Takes callers one after the other; who has no cookie, or says nothing for a second, is shown the door. */
static void
receive_guests(struct ist_chan *c)
{
	struct hello h;

	for (int i = 0; i < 64; i++) {
		if (c->guest < 0) {
			c->guest = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
			c->guest_until_ns = now() + GUEST_NS;
			if (c->guest < 0)
				return;
			epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->guest, &(struct epoll_event){ .events = EPOLLIN });
		}
		ssize_t n = recv(c->guest, &h, sizeof(h), MSG_PEEK);

		if (n != 0 && n != sizeof(h) && now() < c->guest_until_ns)
			return;
		epoll_ctl(c->epoll, EPOLL_CTL_DEL, c->guest, NULL);
		if (n == sizeof(h) && h.magic == MAGIC && h.rank > c->rank && h.rank < c->size && c->peers[h.rank].in < 0 &&
		    memcmp(h.cookie, c->mine.cookie, sizeof(h.cookie)) == 0 && recv(c->guest, &h, sizeof(h), 0) == sizeof(h)) {
			c->peers[h.rank].in = c->peers[h.rank].out = c->guest;
			c->linked++;
		} else {
			close(c->guest);
		}
		c->guest = -1;
	}
}

static void
go_on_connecting(struct ist_chan *c)
{
	for (uint32_t i = 0; i < c->rank && !c->broken; i++) {
		struct peer *p = &c->peers[i];
		ssize_t n = p->silent ? send(p->out, &p->hello, sizeof(p->hello), MSG_NOSIGNAL) : 0;

		if (n < 0 && errno != EAGAIN && errno != EINTR && errno != ENOTCONN)
			break_down(c, IST_PEER_LOST, i, "a member can't be reached");
		if (n > 0) { /* the first bytes of a connection: all of them or none */
			p->silent = 0;
			c->linked++;
		}
	}
	receive_guests(c);
	if (c->linked < c->size && now() > c->deadline_ns)
		break_down(c, IST_TIMEOUT, IST_NO_RANK, "members did not connect in time");
	if (c->linked < c->size || c->broken)
		return;
	for (uint32_t i = 0; i < c->size; i++) /* small messages don't wait for more */
		setsockopt(c->peers[i].out, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
	epoll_ctl(c->epoll, EPOLL_CTL_DEL, c->listener, NULL);
	end(c, c->connecting, IST_OK);
	c->connecting = NULL;
}

static ist_err
check(const struct ist_chan *c, const struct ist_op *op, struct ist_status *why)
{
	const struct ist_buf *buf = op->kind == IST_OP_SEND ? &op->src : &op->dst;

	if (op->kind != IST_OP_SEND && op->kind != IST_OP_RECV)
		return say(why, IST_UNSUPPORTED, 0, "only SEND and RECV");
	if (REFUSED(op->flags) || (buf->mem != IST_MEM_HOST && buf->mem != IST_MEM_PINNED))
		return say(why, IST_UNSUPPORTED, 0, "an unknown flag, or memory that is not the host's");
	return op->peer >= c->size ? say(why, IST_INVALID_ARGUMENT, 0, "there is no such peer") : IST_OK;
}

static ist_err
wire_start(struct ist_chan *c, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	ist_err gone = atomic_load(&c->gone), e = gone ? gone : c->broken;

	for (uint64_t i = 0; i < n && !e; i++) /* all of them first: a refusal leaves nothing begun */
		e = check(c, ops[i], why);
	if (e)
		return e;
	struct ist_task *task = task_new(c, n);
	if (!task)
		return IST_NO_MEMORY;
	for (uint64_t i = 0; i < n; i++) {
		struct peer *p = &c->peers[ops[i]->peer];
		struct queue *q = ops[i]->kind == IST_OP_SEND ? &p->send : &p->recv;

		task->parts[i] = (struct part){ .task = task, .op = *ops[i], .head = { ops[i]->seq, ops[i]->src.bytes } };
		*q->last = &task->parts[i];
		q->last = &task->parts[i].next;
	}
	if (n == 0)
		end(c, task, IST_OK);
	*out = task;
	return IST_OK;
}

/* Moves a piece of the oldest part of one direction: the header, then the bytes. 0: nothing can be done now. */
static int
step(struct ist_chan *c, uint32_t rank, struct queue *q, int sending)
{
	struct part *part = q->first;
	struct ist_buf *buf = sending ? &part->op.src : &part->op.dst;
	uint64_t head = sizeof(part->head), left = part->at < head ? head - part->at : head + buf->bytes - part->at;
	char *at = part->at < head ? (char *)&part->head + part->at : (char *)buf->addr + (part->at - head);
	size_t want = left < PIECE ? left : PIECE;
	ssize_t n = sending ? send(c->peers[rank].out, at, want, MSG_NOSIGNAL) : recv(c->peers[rank].in, at, want, 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0) {
		break_down(c, IST_PEER_LOST, rank, "a member closed its connection");
		return 0;
	}
	if (part->at >= head) {
		part->task->moved += (uint64_t)n;
		c->moved += (uint64_t)n;
	}
	part->at += (uint64_t)n;
	if (!sending && part->at == head && part->head.seq != part->op.seq)
		break_down(c, IST_ORDER_MISMATCH, rank, "seq differs from the sender's");
	else if (!sending && part->at == head && part->head.bytes != buf->bytes)
		break_down(c, IST_MISMATCH, rank, "bytes differ from the sender's");
	if (c->broken || part->at < head + buf->bytes)
		return 1;
	q->first = part->next;
	if (!q->first)
		q->last = &q->first;
	if (--part->task->left == 0)
		end(c, part->task, IST_OK);
	return 1;
}

static ist_err
wire_progress(struct ist_chan *c, struct ist_progress *out)
{
	int64_t until = now() + SLICE_NS;
	uint64_t woken;
	int busy = 1;

	if (read(c->wake, &woken, sizeof(woken)) > 0 || atomic_load(&c->gone)) /* emptied before gone is looked at */
		break_down(c, atomic_load(&c->gone), IST_NO_RANK, "aborted");
	if (c->connecting && !c->broken)
		go_on_connecting(c);
	while (busy && !c->connecting && !c->broken && now() < until) {
		busy = 0;
		for (uint32_t i = 0; i < c->size && !c->broken; i++) { /* a piece each way and on: nobody waits for another */
			if (c->peers[i].send.first)
				busy |= step(c, i, &c->peers[i].send, 1);
			if (!c->broken && c->peers[i].recv.first)
				busy |= step(c, i, &c->peers[i].recv, 0);
		}
	}
	out->more = busy && !c->connecting && !c->broken;
	out->moved = c->moved;
	out->ended = c->ended;
	return IST_OK;
}

/* Asks to be woken for what there is to do and for nothing else: a message that nobody waits for stays where it is. */
static ist_err
wire_arm(struct ist_chan *c, int32_t *fd)
{
	for (uint32_t i = 0; i < c->size; i++) {
		struct peer *p = &c->peers[i];
		uint32_t out = p->silent || p->send.first ? EPOLLOUT : 0, in = p->recv.first ? EPOLLIN : 0, want = c->broken ? 0 : in | out;
		int how = want == 0 ? EPOLL_CTL_DEL : p->watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;

		if (i == c->rank && in && out && !c->broken)
			return IST_BUSY;
		if (i == c->rank || p->in < 0 || p->watched == want)
			continue;
		epoll_ctl(c->epoll, how, p->in, &(struct epoll_event){ .events = want });
		p->watched = want;
	}
	*fd = c->epoll;
	return IST_OK;
}

static ist_err
wire_test(struct ist_chan *c, struct ist_task *task, struct ist_status *out)
{
	out->state = task->state;
	out->moved = task->moved;
	if (!task->result)
		return IST_OK;
	out->rank = c->broken_rank;
	return say(out, task->result, 0, c->broken_text);
}

static void
wire_task_free(struct ist_chan *c, struct ist_task *task)
{
	struct ist_task **at = &c->tasks;

	while (*at != task)
		at = &(*at)->next;
	*at = task->next;
	c->host->free(c->host->ctx, task);
}

static void
wire_abort(struct ist_chan *c, ist_err why)
{
	uint64_t one = 1;

	atomic_compare_exchange_strong(&c->gone, &(ist_err){ IST_OK }, why); /* the first one counts */
	if (write(c->wake, &one, sizeof(one)) < 0)
		return; /* full: it is readable already */
}

static void
shut(int fd)
{
	if (fd >= 0)
		close(fd);
}

static ist_err
wire_close(struct ist_chan *c, struct ist_status *why)
{
	(void)why;
	if (!c)
		return IST_OK;
	for (struct peer *p = c->peers; p < c->peers + c->size; p++) {
		shut(p->in);
		shut(p->out != p->in ? p->out : -1);
	}
	shut(c->listener);
	shut(c->epoll);
	shut(c->wake);
	shut(c->guest);
	while (c->tasks)
		wire_task_free(c, c->tasks);
	c->host->free(c->host->ctx, c);
	return IST_OK;
}

static const struct ist_backend wire = {
	.struct_size = sizeof(struct ist_backend),
	.abi = IST_BACKEND_ABI,
	.name = "wire",
	.probe = wire_probe,
	.open = wire_open,
	.offer = wire_offer,
	.connect = wire_connect,
	.start = wire_start,
	.progress = wire_progress,
	.arm = wire_arm,
	.test = wire_test,
	.task_free = wire_task_free,
	.abort = wire_abort,
	.close = wire_close,
};

IST_BACKEND_DEFINE(wire);
