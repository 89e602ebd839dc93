/* SPDX-License-Identifier: Apache-2.0
 *
 * 03_backend.c - a third party's backend, whole: ranks that talk over TCP, one connection for each pair.
 *
 *     cc -shared -fPIC $(pkg-config --cflags isthmus) 03_backend.c -o wire.so
 *     isthmus check ./wire.so          what is native, what the core composes, what is wrong
 *     isthmus push DIR --backend ./wire.so ...
 *
 * Options: listen=A.B.C.D, the address to be reached at (127.0.0.1). The bytes travel as they are: for a trusted network.
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

enum { PIECE = 256 << 10, SLICE_NS = 1000000, MAGIC = 0x57495245 };

struct offer { uint32_t magic, ip, port, reserved; uint8_t cookie[16]; }; /* ip and port in network order */
struct hello { uint32_t magic, rank; uint8_t cookie[16]; };                /* the first bytes of a connection, to who listens */
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
	uint64_t left, moved, n;
	uint32_t state, rank;
	ist_err result;
	const char *text;
	struct part parts[];
};

struct queue { struct part *first, **last; };

struct peer { /* in and out are one socket, or the two ends of a pair where the peer is this rank */
	struct queue send, recv;
	int in, out;
	uint32_t watched; /* epoll events asked for */
	struct hello hello;
	uint32_t said; /* bytes of hello sent */
};

struct ist_chan {
	const struct ist_host *host;
	struct ist_task *tasks, *connecting;
	uint32_t rank, size, linked, broken_rank;
	int64_t deadline_ns;
	int listener, epoll, wake;
	struct offer mine;
	struct { int fd; struct hello hello; uint32_t heard; int64_t until_ns; } guest; /* one at a time, until it has said who it is */
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
	if (task->state == IST_DONE)
		return;
	task->state = IST_DONE;
	if (!task->result)
		task->result = result;
	c->ended++;
}

static struct ist_task *
task_new(struct ist_chan *c, uint64_t n)
{
	struct ist_task *task = n > UINT32_MAX ? NULL : c->host->alloc(c->host->ctx, sizeof(*task) + n * sizeof(struct part), 16, IST_MEM_HOST, -1);

	if (!task)
		return NULL;
	memset(task, 0, sizeof(*task) + n * sizeof(struct part));
	task->n = task->left = n;
	task->rank = IST_NO_RANK;
	task->next = c->tasks;
	c->tasks = task;
	return task;
}

/* A connection or the order on it is lost: nothing more can be trusted here. */
static void
break_down(struct ist_chan *c, ist_err e, uint32_t rank, const char *text)
{
	if (c->broken)
		return;
	c->broken = e;
	c->broken_rank = rank;
	c->broken_text = text;
	for (struct ist_task *t = c->tasks; t; t = t->next)
		if (t->state != IST_DONE) {
			t->rank = rank;
			t->text = text;
			end(c, t, e);
		}
}

static ist_err
listen_at(struct ist_chan *c, const char *ip, struct ist_status *why)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t n = sizeof(a);

	if (inet_pton(AF_INET, ip, &a.sin_addr) != 1)
		return say(why, IST_BAD_CONFIG, 0, "listen= takes an IPv4 address");
	c->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	c->epoll = epoll_create1(EPOLL_CLOEXEC);
	c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->listener < 0 || c->epoll < 0 || c->wake < 0 || bind(c->listener, (struct sockaddr *)&a, sizeof(a)) ||
	    listen(c->listener, 64) || getsockname(c->listener, (struct sockaddr *)&a, &n))
		return say(why, IST_IO, errno, "no socket to listen on");
	c->mine = (struct offer){ .magic = MAGIC, .ip = a.sin_addr.s_addr, .port = a.sin_port };
	if (getrandom(c->mine.cookie, sizeof(c->mine.cookie), 0) != sizeof(c->mine.cookie) ||
	    epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->wake, &(struct epoll_event){ .events = EPOLLIN }))
		return say(why, IST_IO, errno, "no randomness or no epoll");
	return IST_OK;
}

static ist_err wire_close(struct ist_chan *c, struct ist_status *why);

static ist_err
wire_open(void *self, const struct ist_host *host, const struct ist_open *args, struct ist_chan **out, struct ist_status *why)
{
	const char *ip = args->options && *args->options ? args->options : "listen=127.0.0.1";
	struct ist_chan *c;
	ist_err e;

	(void)self;
	if ((args->flags & IST_MUST) && (args->flags & ~IST_MUST))
		return say(why, IST_UNSUPPORTED, 0, "an unknown flag of open");
	if (strncmp(ip, "listen=", 7) != 0)
		return say(why, IST_BAD_CONFIG, 0, "the only option is listen=A.B.C.D");
	if (args->size == 0 || args->size > 4096 || args->rank >= args->size)
		return say(why, IST_UNSUPPORTED, 0, "groups of 1 to 4096");
	c = host->alloc(host->ctx, sizeof(*c) + args->size * sizeof(struct peer), 16, IST_MEM_HOST, -1);
	if (!c)
		return IST_NO_MEMORY;
	memset(c, 0, sizeof(*c) + args->size * sizeof(struct peer));
	c->host = host;
	c->rank = args->rank;
	c->size = args->size;
	c->deadline_ns = args->deadline_ns;
	c->listener = c->epoll = c->wake = c->guest.fd = -1;
	for (uint32_t i = 0; i < c->size; i++) {
		c->peers[i].in = c->peers[i].out = -1;
		c->peers[i].send.last = &c->peers[i].send.first;
		c->peers[i].recv.last = &c->peers[i].recv.first;
	}
	e = listen_at(c, ip + 7, why);
	if (e) {
		wire_close(c, why);
		return e;
	}
	*out = c;
	return IST_OK;
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

/* Ranks below ours listen, we dial; a dialled connection says hello first, so that a stranger's is told apart. */
static ist_err
dial(struct ist_chan *c, uint32_t rank, const struct offer *to)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = (in_port_t)to->port, .sin_addr.s_addr = to->ip };
	struct peer *p = &c->peers[rank];
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return IST_IO;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)); /* small messages don't wait for more */
	p->in = p->out = fd;
	p->hello = (struct hello){ .magic = MAGIC, .rank = c->rank };
	memcpy(p->hello.cookie, to->cookie, sizeof(to->cookie));
	return connect(fd, (struct sockaddr *)&a, sizeof(a)) && errno != EINPROGRESS ? IST_IO : IST_OK;
}

static ist_err
wire_connect(struct ist_chan *c, const struct ist_connect *args, struct ist_task **out, struct ist_status *why)
{
	struct offer offers;
	int pair[2];

	if (args->size != c->size)
		return say(why, IST_INVALID_ARGUMENT, 0, "another size than at open");
	for (uint32_t i = 0; i < c->size; i++) { /* all of it before anything is begun: it comes from outside */
		if (args->all[i].bytes != sizeof(offers) || memcpy(&offers, args->all[i].addr, sizeof(offers)) == NULL || offers.magic != MAGIC) {
			why->rank = i;
			return say(why, IST_BAD_FORMAT, 0, "this is not the wire-up of this backend");
		}
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
		return say(why, IST_IO, errno, "socketpair");
	c->peers[c->rank].out = pair[0]; /* what we send to ourselves */
	c->peers[c->rank].in = pair[1];
	c->peers[c->rank].said = sizeof(struct hello);
	c->linked = 1;
	for (uint32_t i = 0; i < c->rank; i++) {
		memcpy(&offers, args->all[i].addr, sizeof(offers));
		if (dial(c, i, &offers)) {
			why->rank = i;
			return say(why, IST_IO, errno, "can't dial a member");
		}
	}
	epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->listener, &(struct epoll_event){ .events = EPOLLIN });
	c->connecting = task_new(c, 0);
	if (!c->connecting)
		return IST_NO_MEMORY;
	*out = c->connecting;
	return IST_OK;
}

/* Takes callers one after the other; the wrong cookie is shown the door. */
static void
accept_guests(struct ist_chan *c)
{
	for (int i = 0; i < 64 && c->linked < c->size; i++) {
		if (c->guest.fd < 0) {
			c->guest.fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
			c->guest.heard = 0;
			c->guest.until_ns = now() + 1000000000;
			if (c->guest.fd < 0)
				return;
			epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->guest.fd, &(struct epoll_event){ .events = EPOLLIN });
		}
		ssize_t n = recv(c->guest.fd, (char *)&c->guest.hello + c->guest.heard, sizeof(struct hello) - c->guest.heard, 0);

		if (n < 0 && (errno == EAGAIN || errno == EINTR) && now() < c->guest.until_ns)
			return;
		if (n > 0 && (c->guest.heard += (uint32_t)n) < sizeof(struct hello))
			continue;
		uint32_t r = c->guest.hello.rank;

		epoll_ctl(c->epoll, EPOLL_CTL_DEL, c->guest.fd, NULL);
		if (n <= 0 || c->guest.hello.magic != MAGIC || r <= c->rank || r >= c->size || c->peers[r].in >= 0 ||
		    memcmp(c->guest.hello.cookie, c->mine.cookie, sizeof(c->mine.cookie)) != 0) {
			close(c->guest.fd);
		} else {
			setsockopt(c->guest.fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
			c->peers[r].in = c->peers[r].out = c->guest.fd;
			c->peers[r].said = sizeof(struct hello);
			c->linked++;
		}
		c->guest.fd = -1;
	}
}

static void
say_hello(struct ist_chan *c, uint32_t rank)
{
	struct peer *p = &c->peers[rank];
	ssize_t n = send(p->out, (char *)&p->hello + p->said, sizeof(struct hello) - p->said, MSG_NOSIGNAL);

	if (n > 0 && (p->said += (uint32_t)n) == sizeof(struct hello))
		c->linked++;
	else if (n < 0 && errno != EAGAIN && errno != EINTR && errno != ENOTCONN)
		break_down(c, IST_PEER_LOST, rank, "a member can't be reached");
}

static void
go_on_connecting(struct ist_chan *c)
{
	for (uint32_t i = 0; i < c->rank && !c->broken; i++)
		if (c->peers[i].said < sizeof(struct hello))
			say_hello(c, i);
	accept_guests(c);
	if (c->linked == c->size) {
		end(c, c->connecting, IST_OK);
		c->connecting = NULL;
		epoll_ctl(c->epoll, EPOLL_CTL_DEL, c->listener, NULL);
	} else if (now() > c->deadline_ns) {
		break_down(c, IST_TIMEOUT, IST_NO_RANK, "members did not connect in time");
	}
}

static ist_err
check(const struct ist_chan *c, const struct ist_op *op, struct ist_status *why)
{
	const struct ist_buf *buf = op->kind == IST_OP_SEND ? &op->src : &op->dst;

	if (op->kind != IST_OP_SEND && op->kind != IST_OP_RECV)
		return say(why, IST_UNSUPPORTED, 0, "only SEND and RECV");
	if ((op->flags & IST_MUST) && (op->flags & ~IST_MUST))
		return say(why, IST_UNSUPPORTED, 0, "an unknown flag of an operation");
	if (buf->mem != IST_MEM_HOST && buf->mem != IST_MEM_PINNED)
		return say(why, IST_UNSUPPORTED, 0, "only host memory");
	return op->peer >= c->size ? say(why, IST_INVALID_ARGUMENT, 0, "there is no such peer") : IST_OK;
}

static ist_err
wire_start(struct ist_chan *c, const struct ist_op *const *ops, uint64_t n, struct ist_task **out, struct ist_status *why)
{
	ist_err e = atomic_load(&c->gone) ? atomic_load(&c->gone) : c->broken;
	struct ist_task *task;

	for (uint64_t i = 0; i < n && !e; i++) /* all of them first: a refusal leaves nothing begun */
		e = check(c, ops[i], why);
	if (e)
		return e;
	task = task_new(c, n);
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

/* Moves a piece of the oldest part of one direction: the header, then the bytes. False: nothing can be done now. */
static int
step(struct ist_chan *c, uint32_t rank, struct queue *q, int sending)
{
	struct peer *p = &c->peers[rank];
	struct part *part = q->first;
	struct ist_buf *buf = sending ? &part->op.src : &part->op.dst;
	uint64_t head = sizeof(part->head), left = part->at < head ? head - part->at : head + buf->bytes - part->at;
	char *at = part->at < head ? (char *)&part->head + part->at : (char *)buf->addr + (part->at - head);
	size_t want = left < PIECE ? left : PIECE;
	ssize_t n = left == 0 ? 0 : sending ? send(p->out, at, want, MSG_NOSIGNAL) : recv(p->in, at, want, 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n < 0 || (n == 0 && left > 0)) {
		break_down(c, IST_PEER_LOST, rank, "a member closed its connection");
		return 0;
	}
	if (part->at >= head) {
		part->task->moved += (uint64_t)n;
		c->moved += (uint64_t)n;
	}
	part->at += (uint64_t)n;
	if (!sending && part->at == head && (part->head.seq != part->op.seq || part->head.bytes != buf->bytes)) {
		int order = part->head.seq != part->op.seq;

		break_down(c, order ? IST_ORDER_MISMATCH : IST_MISMATCH, rank, order ? "seq differs from the sender's" : "bytes differ from the sender's");
		return 0;
	}
	if (part->at == head + buf->bytes) {
		q->first = part->next;
		if (!q->first)
			q->last = &q->first;
		if (--part->task->left == 0)
			end(c, part->task, IST_OK);
	}
	return 1;
}

static ist_err
wire_progress(struct ist_chan *c, struct ist_progress *out)
{
	int64_t until = now() + SLICE_NS;
	ist_err gone = atomic_load(&c->gone);
	uint64_t told;
	int busy = 1;

	if (read(c->wake, &told, sizeof(told)) == sizeof(told))
		gone = atomic_load(&c->gone);
	if (gone)
		break_down(c, gone, IST_NO_RANK, "aborted");
	if (c->connecting && !c->broken)
		go_on_connecting(c);
	while (busy && !c->broken && now() < until) {
		busy = 0;
		for (uint32_t i = 0; i < c->size && !c->broken && !c->connecting; i++) { /* a piece each way and on: nobody waits for another */
			if (c->peers[i].send.first)
				busy |= step(c, i, &c->peers[i].send, 1);
			if (!c->broken && c->peers[i].recv.first)
				busy |= step(c, i, &c->peers[i].recv, 0);
		}
	}
	out->more = busy && !c->broken;
	out->moved = c->moved;
	out->ended = c->ended;
	return IST_OK;
}

static void
watch(struct ist_chan *c, int fd, uint32_t *watched, uint32_t want)
{
	struct epoll_event e = { .events = want };

	if (fd < 0 || *watched == want)
		return;
	epoll_ctl(c->epoll, want == 0 ? EPOLL_CTL_DEL : *watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &e);
	*watched = want;
}

/* Asks to be woken for what there is to do, and for nothing else: a message that nobody waits for stays where it is. */
static ist_err
wire_arm(struct ist_chan *c, int32_t *fd)
{
	for (uint32_t i = 0; i < c->size; i++) {
		struct peer *p = &c->peers[i];
		uint32_t out = p->said < sizeof(struct hello) || p->send.first ? EPOLLOUT : 0, in = p->recv.first ? EPOLLIN : 0;

		if (c->broken)
			in = out = 0;
		if (i == c->rank && !c->broken && p->send.first && p->recv.first)
			return IST_BUSY;
		if (i != c->rank)
			watch(c, p->in, &p->watched, in | out);
	}
	*fd = c->epoll;
	return IST_OK;
}

static ist_err
wire_test(struct ist_chan *c, struct ist_task *task, struct ist_status *out)
{
	(void)c;
	out->state = task->state;
	out->moved = task->moved;
	if (!task->result)
		return IST_OK;
	if (task->rank != IST_NO_RANK)
		out->rank = task->rank;
	return say(out, task->result, 0, task->text ? task->text : "");
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
	ist_err none = IST_OK;
	uint64_t one = 1;

	atomic_compare_exchange_strong(&c->gone, &none, why);
	if (write(c->wake, &one, sizeof(one)) < 0)
		return; /* full: it is readable already */
}

static ist_err
wire_close(struct ist_chan *c, struct ist_status *why)
{
	(void)why;
	if (!c)
		return IST_OK;
	for (uint32_t i = 0; i < c->size; i++) {
		if (c->peers[i].in >= 0)
			close(c->peers[i].in);
		if (c->peers[i].out >= 0 && c->peers[i].out != c->peers[i].in)
			close(c->peers[i].out);
	}
	int own[] = { c->listener, c->epoll, c->wake, c->guest.fd };

	for (int i = 0; i < 4; i++)
		if (own[i] >= 0)
			close(own[i]);
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
