/* SPDX-License-Identifier: Apache-2.0
 *
 * net.c - TCP connections: listening, dialling, the greeting in which both ends prove that they know the cookies of the
 * wire-up, and reading and writing without waiting. Whoever can't prove it within a few seconds is dropped, and there are
 * never more than a fixed number of such. Events are edge-triggered: a peer's bytes that nobody wants yet wake nobody twice.
 */
#include "backends/host/host.h"

#include "base/bytes.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#define HELLO_SIGNED 56u
#define HELLO (HELLO_SIGNED + MAC)
#define HELLO_REPLY 0x80u      /* xor'ed into the version: a reply is never a hello */
#define LOW_WATER (UINT64_C(256) << 10)
#define PENDING_MAX 64u        /* strangers at a time, beside the members themselves */
#define GREET_NS (5 * INT64_C(1000000000))
#define STARVED_NS (300 * IST__MS) /* no connection can be taken for so long: the others wait in vain */
#define DIAL_NS (60 * INT64_C(1000000000))
#define CHOKED_NS (1000 * IST__MS) /* without memory for what is sent */
#define SHORT_TRIES 20

uint64_t
ist__host_conn_buf(const struct ist_chan *chan)
{
	uint64_t frame = 48 + 8 * (uint64_t)chan->words;

	return frame > HELLO ? frame : HELLO;
}

static socklen_t
addr_bytes(const struct sockaddr_storage *addr)
{
	return addr->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* ---- one connection ---- */

void
ist__host_conn_kill(struct conn *conn, int err)
{
	if (conn->state == CONN_DEAD)
		return;
	conn->state = CONN_DEAD;
	conn->err = err;
	if (conn->fd >= 0)
		close(conn->fd);
	conn->fd = -1;
	conn->readable = conn->writable = false;
}

static bool
same_host(int fd)
{
	struct sockaddr_storage a, b;
	socklen_t an = sizeof(a), bn = sizeof(b);
	struct sockaddr_in x, y;
	struct sockaddr_in6 x6, y6;

	if (getsockname(fd, (struct sockaddr *)&a, &an) || getpeername(fd, (struct sockaddr *)&b, &bn) || a.ss_family != b.ss_family)
		return false;
	if (a.ss_family == AF_INET) {
		memcpy(&x, &a, sizeof(x));
		memcpy(&y, &b, sizeof(y));
		return x.sin_addr.s_addr == y.sin_addr.s_addr || ntohl(y.sin_addr.s_addr) >> 24 == 127;
	}
	memcpy(&x6, &a, sizeof(x6));
	memcpy(&y6, &b, sizeof(y6));
	return !memcmp(&x6.sin6_addr, &y6.sin6_addr, sizeof(x6.sin6_addr));
}

/* None of these is needed for being right. No TCP_USER_TIMEOUT unless asked for: it also ends a connection whose reader is
 * alive and does not read yet, which is no error here; who is alive is the mesh's business. */
static void
conn_tune(const struct ist_chan *chan, struct conn *conn)
{
	const int on = 1, idle = 10, interval = 5, probes = 6;
	unsigned timeout = chan->opt.user_timeout_ms;

	(void)setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(conn->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(conn->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	(void)setsockopt(conn->fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	(void)setsockopt(conn->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	if (timeout)
		(void)setsockopt(conn->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
	conn->local = same_host(conn->fd);
	if (conn->local) /* what suits long lines costs a third here */
		(void)setsockopt(conn->fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
}

static struct conn *
conn_new(struct ist_chan *chan, int fd)
{
	struct conn *conn = ist__alloc(&chan->ctx, sizeof(*conn) + ist__host_conn_buf(chan));

	if (!conn)
		return NULL;
	conn->fd = fd;
	conn->low = 1;
	conn->more = &chan->more;
	conn->peer = IST_NO_RANK;
	conn->buf = (uint8_t *)(conn + 1);
	conn->next = chan->conns;
	chan->conns = conn;
	return conn;
}

static bool
conn_watch(struct ist_chan *chan, struct conn *conn)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = conn };

	if (!epoll_ctl(chan->epoll_fd, EPOLL_CTL_ADD, conn->fd, &ev))
		return true;
	ist__host_conn_kill(conn, errno);
	return false;
}

uint64_t
ist__host_conn_recv(struct conn *conn, void *to, uint64_t bytes)
{
	ssize_t n;

	if (conn->state == CONN_DEAD || !conn->readable || bytes == 0)
		return 0;
	do
		n = recv(conn->fd, to, bytes, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n > 0) {
		if ((uint64_t)n < bytes && !conn->hung)
			conn->readable = false; /* that was all; more is a new edge */
		return (uint64_t)n;
	}
	if (n == 0)
		ist__host_conn_kill(conn, 0);
	else if (errno == EAGAIN)
		conn->readable = false;
	else
		ist__host_conn_kill(conn, errno);
	return 0;
}

/* Being woken for every segment of a long message costs more than it brings. What has come is read without waiting all the
 * same; this only says when to be told. */
void
ist__host_conn_expect(struct conn *conn, uint64_t left)
{
	int low = left >= LOW_WATER ? (int)LOW_WATER : 1;

	if (conn->state == CONN_DEAD || conn->low == low)
		return;
	conn->low = low;
	(void)setsockopt(conn->fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
}

/* Inside a host the sender fills what the receiver empties, on another CPU: whoever sleeps in between is woken every time, and
 * both wait for that. Where there are CPUs for all. */
bool
ist__host_net_look(struct ist_chan *chan)
{
	bool any = false;

	for (struct conn *conn = chan->size <= chan->cpus ? chan->conns : NULL; conn; conn = conn->next)
		if (conn->state == CONN_READY && conn->local && conn->in && conn->low > 1)
			any = conn->readable = true;
	return any;
}

/* The kernel is short of memory for a moment: then the connection stays as it is, and no event will tell when that is over. */
static bool
chokes(struct conn *conn, int sys)
{
	int64_t now = ist__now();

	if (sys != ENOBUFS && sys != ENOMEM)
		return false;
	if (!conn->choked)
		conn->choked = now;
	*conn->more = true;
	return now - conn->choked < CHOKED_NS;
}

uint64_t
ist__host_conn_send(struct conn *conn, const void *head, uint64_t head_bytes, const void *body, uint64_t body_bytes)
{
	union { const void *c; void *p; } h = { .c = head }, b = { .c = body };
	struct iovec iov[2] = { { .iov_base = h.p, .iov_len = head_bytes }, { .iov_base = b.p, .iov_len = body_bytes } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	ssize_t n;

	if (conn->state == CONN_DEAD || !conn->writable || head_bytes + body_bytes == 0)
		return 0;
	if (conn->hung) { /* the reader is gone: what we wrote would be lost without a word */
		ist__host_conn_kill(conn, 0);
		return 0;
	}
	do
		n = sendmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n >= 0) {
		conn->choked = 0;
		if ((uint64_t)n < head_bytes + body_bytes)
			conn->writable = false;
		return (uint64_t)n;
	}
	if (errno == EAGAIN)
		conn->writable = false;
	else if (!chokes(conn, errno))
		ist__host_conn_kill(conn, errno);
	return 0;
}

/* Some bytes at the beginning of a connection. */
static bool
say_short(struct conn *conn, const void *at, uint64_t bytes)
{
	uint64_t n = ist__host_conn_send(conn, at, bytes, NULL, 0);

	for (int i = 0; n == 0 && conn->choked && conn->state != CONN_DEAD && i < SHORT_TRIES; i++) {
		poll(NULL, 0, 1);
		n = ist__host_conn_send(conn, at, bytes, NULL, 0);
	}
	return n == bytes;
}

void
ist__host_conn_lost(struct ist_chan *chan, struct part *part, const struct conn *conn)
{
	bool limit = conn->err == EMFILE || conn->err == ENFILE || conn->err == EADDRNOTAVAIL || conn->err == ENOSPC; /* of descriptors, ports, watches */
	char addr[80];

	ist__host_addr_text(&chan->peers[conn->peer].addr, addr, sizeof(addr));
	if (limit || conn->err == ENOMEM || conn->err == ENOBUFS) { /* ours, not the peer's */
		ist__host_part_fail(chan, part, limit ? IST_LIMIT : IST_NO_MEMORY, chan->rank, conn->err,
			"connection %s rank %u (%s): %s", conn->in ? "from" : "to", conn->peer, addr, strerror(conn->err));
		return;
	}
	ist__host_part_fail(chan, part, IST_PEER_LOST, conn->peer, conn->err, "connection %s rank %u (%s) is gone: %s", conn->in ? "from" : "to",
		conn->peer, addr, conn->err ? strerror(conn->err) : "closed by the other side");
}

/* ---- greeting ---- */

static void
hello_write(const struct ist_chan *chan, const struct conn *conn, uint8_t to[HELLO])
{
	ist__store_u64(to, HOST_MAGIC);
	ist__store_u32(to + 8, HOST_VERSION);
	ist__store_u32(to + 12, conn->class);
	ist__store_u32(to + 16, chan->rank);
	ist__store_u32(to + 20, conn->peer);
	ist__store_u32(to + 24, conn->root);
	ist__store_u32(to + 28, chan->size);
	ist__store_u64(to + 32, chan->group);
	ist__store_u64(to + 40, chan->generation);
	memcpy(to + 48, conn->nonce, sizeof(conn->nonce));
	ist__host_mac(chan->cookie, chan->peers[conn->peer].cookie, to, HELLO_SIGNED, to + HELLO_SIGNED);
}

/* from: the dialler's cookie. */
static void
reply_mac(const uint8_t *hello, const uint8_t *from, const uint8_t *to, uint8_t out[MAC])
{
	uint8_t msg[HELLO_SIGNED];

	memcpy(msg, hello, sizeof(msg));
	msg[8] ^= HELLO_REPLY;
	ist__host_mac(from, to, msg, sizeof(msg), out);
}

/* Where an incoming connection with that hello belongs; NULL: it proves nothing, or there is one already. */
static struct conn **
hello_place(struct ist_chan *chan, const uint8_t *hello)
{
	uint32_t class = ist__load_u32(hello + 12), from = ist__load_u32(hello + 16), root = ist__load_u32(hello + 24);
	struct conn **place, *old;
	uint8_t mac[MAC];

	if (ist__load_u64(hello) != HOST_MAGIC || ist__load_u32(hello + 8) != HOST_VERSION || from >= chan->size || from == chan->rank ||
	    ist__load_u32(hello + 20) != chan->rank || ist__load_u32(hello + 28) != chan->size || ist__load_u64(hello + 32) != chan->group ||
	    ist__load_u64(hello + 40) != chan->generation)
		return NULL;
	ist__host_mac(chan->peers[from].cookie, chan->cookie, hello, HELLO_SIGNED, mac);
	if (!ist__host_equal(mac, hello + HELLO_SIGNED, MAC))
		return NULL;
	if (class == CLASS_P2P)
		place = &chan->peers[from].in;
	else if (class == CLASS_CHAIN && root < chan->size && root != chan->rank)
		place = &chan->peers[root].chains_in;
	else
		return NULL;
	for (old = *place; old && old->peer != from; old = old->mate)
		;
	return old ? NULL : place;
}

static void
greet_in(struct ist_chan *chan, struct conn *conn)
{
	struct conn **place;
	uint8_t mac[MAC];

	conn->fill += ist__host_conn_recv(conn, conn->buf + conn->fill, HELLO - conn->fill);
	if (conn->state == CONN_DEAD || conn->fill < HELLO)
		return;
	place = hello_place(chan, conn->buf);
	if (!place) {
		ist__log(&chan->ctx, 2, "dropped a connection that could not prove where it comes from");
		ist__host_conn_kill(conn, EACCES);
		return;
	}
	conn->peer = ist__load_u32(conn->buf + 16);
	conn->class = ist__load_u32(conn->buf + 12);
	conn->root = ist__load_u32(conn->buf + 24);
	reply_mac(conn->buf, chan->peers[conn->peer].cookie, chan->cookie, mac);
	conn->fill = 0;
	if (!say_short(conn, mac, sizeof(mac)))
		ist__host_conn_kill(conn, conn->choked ? ENOBUFS : EPIPE);
	else
		conn->state = CONN_READY;
	chan->n_pending--;
	conn->mate = *place;
	*place = conn;
}

static void
greet_out(struct ist_chan *chan, struct conn *conn)
{
	uint8_t hello[HELLO], mac[MAC];
	int err = 0;
	socklen_t n = sizeof(err);

	if (conn->state == CONN_DIALING && conn->writable) {
		if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &err, &n) || err) {
			ist__host_conn_kill(conn, err ? err : errno);
			return;
		}
		conn_tune(chan, conn);
		hello_write(chan, conn, hello);
		if (!say_short(conn, hello, HELLO)) {
			ist__host_conn_kill(conn, conn->err ? conn->err : conn->choked ? ENOBUFS : EPIPE);
			return;
		}
		conn->state = CONN_WAIT_REPLY;
	}
	if (conn->state != CONN_WAIT_REPLY)
		return;
	conn->fill += ist__host_conn_recv(conn, conn->buf + conn->fill, MAC - conn->fill);
	if (conn->fill < MAC)
		return;
	hello_write(chan, conn, hello);
	reply_mac(hello, chan->cookie, chan->peers[conn->peer].cookie, mac);
	if (!ist__host_equal(mac, conn->buf, MAC)) {
		ist__host_conn_kill(conn, EACCES);
		return;
	}
	conn->fill = 0;
	conn->state = CONN_READY;
}

/* ---- all of a channel ---- */

static void
timer_set(struct ist_chan *chan)
{
	int64_t until = IST__NEVER;
	struct itimerspec at = { .it_value = { 0 } };

	if (chan->accepting) /* no descriptors left: a waiting connection makes no second edge */
		until = ist__now() + 100 * IST__MS;
	for (const struct conn *conn = chan->conns; conn; conn = conn->next)
		if (conn->state != CONN_READY && conn->state != CONN_DEAD && conn->until < until)
			until = conn->until;
	if (until != IST__NEVER) {
		at.it_value.tv_sec = until / INT64_C(1000000000);
		at.it_value.tv_nsec = until % INT64_C(1000000000);
	}
	if (chan->timer_fd >= 0)
		(void)timerfd_settime(chan->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* No two alike; what must not be guessed is the cookie. So without random bytes, early after a boot, others will do. */
static void
make_nonce(struct conn *conn)
{
	if (getrandom(conn->nonce, sizeof(conn->nonce), GRND_NONBLOCK) != sizeof(conn->nonce))
		ist__store_u64(conn->nonce, (uint64_t)ist__now() * UINT64_C(0x9E3779B97F4A7C15) ^ (uint64_t)(uintptr_t)conn);
}

struct conn *
ist__host_dial(struct ist_chan *chan, struct peer *peer, enum class class, uint32_t root)
{
	struct conn *conn = conn_new(chan, -1);

	if (!conn)
		return NULL;
	conn->peer = peer->rank;
	conn->class = class;
	conn->root = root;
	conn->until = ist__now() + DIAL_NS;
	make_nonce(conn);
	conn->fd = socket(peer->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (conn->fd < 0 || (connect(conn->fd, (const struct sockaddr *)&peer->addr, addr_bytes(&peer->addr)) && errno != EINPROGRESS)) {
		ist__host_conn_kill(conn, errno);
		return conn;
	}
	conn_watch(chan, conn);
	timer_set(chan);
	return conn;
}

static struct conn *
oldest_pending(struct ist_chan *chan)
{
	struct conn *oldest = NULL;

	for (struct conn *conn = chan->conns; conn; conn = conn->next)
		if (conn->state == CONN_WAIT_HELLO)
			oldest = conn; /* new ones are put in front */
	return oldest;
}

/* Linux hands what befell a waiting connection to whoever takes it. */
static bool
is_passing(int sys)
{
	return sys == EINTR || sys == ECONNABORTED || sys == EPROTO || sys == ENETDOWN || sys == ENETUNREACH || sys == EHOSTDOWN ||
		sys == EHOSTUNREACH || sys == ENOPROTOOPT;
}

static void
accept_some(struct ist_chan *chan)
{
	for (int i = 0; i < 32; i++) {
		int fd = accept4(chan->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct conn *conn;

		if (fd < 0 && is_passing(errno))
			continue; /* that one's end: the next makes no edge of its own */
		if (fd < 0) {
			chan->accepting = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
			chan->starved_sys = errno;
			if (!chan->accepting || !chan->starved)
				chan->starved = chan->accepting ? ist__now() : 0;
			return;
		}
		chan->starved = 0;
		conn = conn_new(chan, fd);
		if (!conn) {
			close(fd);
			chan->turned_away = ENOMEM;
			chan->more = true; /* those behind it make no edge of their own */
			return;
		}
		conn->in = true;
		conn->state = CONN_WAIT_HELLO;
		conn->until = ist__now() + GREET_NS;
		if (++chan->n_pending > PENDING_MAX + chan->size)
			ist__host_conn_kill(oldest_pending(chan), ETIMEDOUT);
		conn_tune(chan, conn);
		if (conn->state == CONN_WAIT_HELLO && !conn_watch(chan, conn))
			chan->turned_away = conn->err;
	}
	chan->more = true;
}

static void
conn_event(struct ist_chan *chan, struct conn *conn, uint32_t events)
{
	if (conn->state == CONN_DEAD)
		return;
	if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		conn->readable = true;
	if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
		conn->writable = true;
	if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		conn->hung = true;
	if (conn->state == CONN_WAIT_HELLO)
		greet_in(chan, conn);
	else if (conn->state != CONN_READY)
		greet_out(chan, conn);
}

/* Late ones are killed, dead strangers forgotten. */
static void
sweep(struct ist_chan *chan, int64_t now)
{
	for (struct conn **at = &chan->conns; *at;) {
		struct conn *conn = *at;
		if (conn->state != CONN_READY && conn->state != CONN_DEAD && now >= conn->until)
			ist__host_conn_kill(conn, ETIMEDOUT);
		if (conn->state == CONN_DEAD && conn->peer == IST_NO_RANK) {
			*at = conn->next;
			chan->n_pending--;
			ist__free(&chan->ctx, conn);
		} else {
			at = &conn->next;
		}
	}
	timer_set(chan);
}

ist_err
ist__host_net_starved(const struct ist_chan *chan)
{
	int sys = chan->turned_away ? chan->turned_away : chan->starved && ist__now() - chan->starved >= STARVED_NS ? chan->starved_sys : 0;

	if (!sys)
		return IST_OK;
	return sys == EMFILE || sys == ENFILE || sys == ENOSPC ? IST_LIMIT : IST_NO_MEMORY;
}

void
ist__host_net_poll(struct ist_chan *chan)
{
	struct epoll_event ev[64];
	bool changed = false;
	uint64_t ticks;
	int n;

	if (chan->listen_fd < 0 && !chan->conns)
		return;
	n = epoll_wait(chan->epoll_fd, ev, 64, 0);
	for (int i = 0; i < n; i++) {
		if (ev[i].data.ptr == &chan->listen_fd) {
			chan->accepting = changed = true;
		} else if (ev[i].data.ptr == &chan->timer_fd) {
			changed = true;
			if (read(chan->timer_fd, &ticks, sizeof(ticks)) < 0)
				continue; /* set anew meanwhile */
		} else if (ev[i].data.ptr != &chan->wake_fd) {
			struct conn *conn = ev[i].data.ptr;
			changed = changed || conn->state != CONN_READY;
			conn_event(chan, conn, ev[i].events);
		}
	}
	if (chan->accepting && chan->listen_fd >= 0) {
		accept_some(chan);
		changed = true;
	}
	if (changed)
		sweep(chan, ist__now());
	if (n == 64)
		chan->more = true;
}

static int
listen_on(struct ist_chan *chan, struct sockaddr_storage *bound)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.ptr = &chan->listen_fd };
	socklen_t n = sizeof(*bound);

	chan->listen_fd = socket(chan->opt.listen.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (chan->listen_fd < 0 || bind(chan->listen_fd, (const struct sockaddr *)&chan->opt.listen, addr_bytes(&chan->opt.listen)) ||
	    listen(chan->listen_fd, 1024) || epoll_ctl(chan->epoll_fd, EPOLL_CTL_ADD, chan->listen_fd, &ev))
		return errno;
	memset(bound, 0, sizeof(*bound));
	if (getsockname(chan->listen_fd, (struct sockaddr *)bound, &n))
		return errno;
	chan->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	ev = (struct epoll_event){ .events = EPOLLIN, .data.ptr = &chan->timer_fd };
	if (chan->timer_fd < 0 || epoll_ctl(chan->epoll_fd, EPOLL_CTL_ADD, chan->timer_fd, &ev))
		return errno;
	return 0;
}

ist_err
ist__host_listen(struct ist_chan *chan, struct sockaddr_storage *bound, struct ist_status *why)
{
	char text[80];
	int err = listen_on(chan, bound);

	if (!err)
		return IST_OK;
	ist__host_unlisten(chan);
	ist__host_addr_text(&chan->opt.listen, text, sizeof(text));
	return ist__host_say(why, err == EADDRNOTAVAIL ? IST_BAD_CONFIG : err == EADDRINUSE || err == ENOSPC ? IST_LIMIT /* of ports, of watches */ : ist__host_no_room(err), IST_NO_RANK, err, "listening on %s: %s", text,
		strerror(err));
}

void
ist__host_unlisten(struct ist_chan *chan)
{
	if (chan->listen_fd >= 0)
		close(chan->listen_fd);
	if (chan->timer_fd >= 0)
		close(chan->timer_fd);
	chan->listen_fd = chan->timer_fd = -1;
}

void
ist__host_net_fini(struct ist_chan *chan)
{
	while (chan->conns) {
		struct conn *conn = chan->conns;
		chan->conns = conn->next;
		if (!atomic_load(&chan->aborted))
			ist__host_chain_bye(chan, conn);
		ist__host_conn_kill(conn, 0);
		ist__free(&chan->ctx, conn);
	}
	ist__host_unlisten(chan);
}
