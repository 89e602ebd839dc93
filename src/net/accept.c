/* SPDX-License-Identifier: Apache-2.0 */
#include "net/accept.h"

#include "base/clock.h"
#include "base/fail.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { VISITORS = 1024, PATIENCE_MS = 10000, PAUSE_MS = 20 };

struct visitor {
	struct visitor *next, **link;
	struct ist__acceptor *acceptor;
	struct ist__conn *conn;
	int64_t until; /* the first frame must be there */
};

struct ist__acceptor {
	struct ist__watch watch;
	struct ist__timer timer; /* out of descriptors: look again later */
	struct ist__timer sweep; /* who said hello and then nothing */
	struct ist__acceptor_args args;
	struct visitor *visitors;
	uint32_t n;
	uint64_t refused;
	bool starved;          /* of descriptors; told once */
};

static const struct ist__ctx *
ctx_of(struct ist__acceptor *a)
{
	return ist__env_ctx(ist__loop_env(a->args.loop));
}

static void
visitor_remove(struct visitor *v)
{
	struct ist__acceptor *a = v->acceptor;

	*v->link = v->next;
	if (v->next)
		v->next->link = v->link;
	a->n--;
	ist__free(ctx_of(a), v);
}

static void
on_frame(struct ist__conn *conn, void *owner, struct ist__frame *frame)
{
	struct visitor *v = owner;
	struct ist__acceptor *a = v->acceptor;

	if (a->args.visitor(a->args.owner, conn, frame))
		visitor_remove(v);
}

static void
tell_starved(struct ist__acceptor *a, uint32_t group)
{
	if (a->args.starved)
		a->args.starved(a->args.owner, group);
}

static void
on_closed(struct ist__conn *conn, void *owner, const struct ist_error *err)
{
	struct visitor *v = owner;
	struct ist__acceptor *a = v->acceptor;
	bool proven = err->code == IST_VERSION_MISMATCH;

	visitor_remove(v);
	a->refused++;
	ist__log(ctx_of(a), a->refused < 10 || (a->refused & (a->refused - 1)) == 0 ? 1 : 3,
		"connection refused: %s; %llu so far", err->detail, (unsigned long long)a->refused);
	if (err->code == IST_NO_MEMORY)
		tell_starved(a, ist__conn_group(conn));
	else if (a->args.refused)
		a->args.refused(a->args.owner, err, proven, ist__conn_group(conn));
	ist__conn_close(conn, false);
}

static const struct ist__conn_ops visitor_ops = { .frame = on_frame, .closed = on_closed };

static void
drop_oldest(struct ist__acceptor *a)
{
	struct visitor *v = a->visitors;
	struct ist__conn *conn;

	while (v->next)
		v = v->next;
	conn = v->conn;
	visitor_remove(v);
	ist__conn_close(conn, false);
}

static void
on_sweep(struct ist__timer *timer)
{
	struct ist__acceptor *a = (struct ist__acceptor *)(void *)((char *)timer - offsetof(struct ist__acceptor, sweep));
	int64_t now = ist__now(), next = IST__NEVER;

	for (struct visitor *v = a->visitors, *older; v; v = older) {
		struct ist__conn *conn = v->conn;

		older = v->next;
		if (v->until > now) {
			next = v->until < next ? v->until : next;
			continue;
		}
		visitor_remove(v);
		ist__conn_close(conn, false);
	}
	ist__timer_set(a->args.loop, &a->sweep, next);
}

static void
welcome(struct ist__acceptor *a, int fd)
{
	struct visitor *v = ist__alloc(ctx_of(a), sizeof(*v));
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* fails on a Unix socket, which needs none */
	if (!v) {
		close(fd);
		tell_starved(a, 0);
		return;
	}
	v->acceptor = a;
	v->until = ist__now() + a->args.patience_ns;
	v->conn = ist__conn_new(a->args.loop, fd, IST__RESPONDER, a->args.self, v->until);
	if (!v->conn) {
		ist__free(ctx_of(a), v);
		tell_starved(a, 0);
		return;
	}
	if (a->n >= VISITORS)
		drop_oldest(a);
	v->next = a->visitors;
	v->link = &a->visitors;
	if (v->next)
		v->next->link = &v->next;
	a->visitors = v;
	a->n++;
	if (!a->sweep.link)
		ist__timer_set(a->args.loop, &a->sweep, v->until);
	ist__conn_attach(v->conn, &visitor_ops, v);
}

static void
on_timer(struct ist__timer *timer)
{
	struct ist__acceptor *a = (struct ist__acceptor *)(void *)((char *)timer - offsetof(struct ist__acceptor, timer));

	ist__loop_change(a->args.loop, &a->watch, EPOLLIN);
}

static void
on_event(struct ist__watch *watch, uint32_t events)
{
	struct ist__acceptor *a = (struct ist__acceptor *)(void *)watch;

	(void)events;
	for (int i = 0; i < 64; i++) {
		int fd;

		do /* whoever forms a group sees that its spares are used, and says so to those that it lets in here */
			fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		while (fd < 0 && ist__loop_spares_spend(a->args.loop, errno));
		if (fd >= 0) {
			a->starved = false;
			welcome(a, fd);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
			if (!a->starved)
				ist__log(ctx_of(a), 1, "out of descriptors: connections wait");
			a->starved = true;
			ist__loop_change(a->args.loop, &a->watch, 0);
			ist__timer_set(a->args.loop, &a->timer, ist__now() + PAUSE_MS * IST__MS);
		}
		if (errno != EINTR && errno != ECONNABORTED)
			return;
	}
}

struct start {
	struct ist__acceptor *a;
	int sys;
};

static void
start_here(void *arg)
{
	struct start *s = arg;

	s->sys = ist__loop_watch(s->a->args.loop, &s->a->watch, EPOLLIN);
}

struct ist__acceptor *
ist__acceptor_new(const struct ist__acceptor_args *args, struct ist_error *err)
{
	struct ist__acceptor *a = ist__alloc(ist__env_ctx(ist__loop_env(args->loop)), sizeof(*a));
	struct start start = { a, 0 };

	if (!a) {
		close(args->fd);
		ist__fail_memory(err, "listen");
		return NULL;
	}
	a->args = *args;
	a->watch = (struct ist__watch){ .fd = args->fd, .on = on_event };
	if (!a->args.patience_ns)
		a->args.patience_ns = PATIENCE_MS * IST__MS;
	a->timer.on = on_timer;
	a->sweep.on = on_sweep;
	ist__loop_run(args->loop, start_here, &start);
	if (start.sys) {
		close(args->fd);
		ist__free(ctx_of(a), a);
		ist__loop_unwatched(err, start.sys, "listen", "epoll");
		return NULL;
	}
	return a;
}

static void
stop_here(void *arg)
{
	struct ist__acceptor *a = arg;

	ist__loop_unwatch(a->args.loop, &a->watch);
	ist__timer_stop(&a->timer);
	ist__timer_stop(&a->sweep);
	while (a->visitors)
		drop_oldest(a);
	close(a->watch.fd);
}

void
ist__acceptor_free(struct ist__acceptor *a)
{
	if (!a)
		return;
	ist__loop_run(a->args.loop, stop_here, a);
	ist__free(ctx_of(a), a);
}
