/* SPDX-License-Identifier: Apache-2.0
 *
 * dial.c - one attempt to reach any of several addresses. They are started 100 ms apart, so that a black hole in one
 * family costs nothing, and the first that stands wins (the idea of RFC 8305).
 */
#include "base/clock.h"
#include "base/fail.h"
#include "net/addr.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STAGGER_MS = 100, TRIES = 16 };

struct dial {
	const struct ist__addrs *to;
	int fd[TRIES];  /* -1: not started, or over */
	int sys[TRIES]; /* why it is over; 0: under way or not started */
	uint32_t started, over;
};

/* A port of the ephemeral range on which nobody listens can be met by the very socket that dials it. */
static bool
met_itself(int fd)
{
	union ist__sockaddr us = { .sa = { 0 } }, them = { .sa = { 0 } };
	socklen_t n = sizeof(us.storage), m = sizeof(them.storage);

	return !getsockname(fd, &us.sa, &n) && !getpeername(fd, &them.sa, &m) && n == m && !memcmp(&us, &them, n);
}

/* True when it stands at once. */
static bool
start_one(struct dial *d, uint32_t i)
{
	const union ist__sockaddr *a = &d->to->at[i];

	d->fd[i] = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (d->fd[i] >= 0 && connect(d->fd[i], &a->sa, ist__sockaddr_bytes(a)) == 0)
		return true;
	if (d->fd[i] >= 0 && errno == EINPROGRESS)
		return false;
	d->sys[i] = errno;
	if (d->fd[i] >= 0)
		close(d->fd[i]);
	d->fd[i] = -1;
	d->over++;
	return false;
}

/* After poll said something of attempt i: true when it stands. */
static bool
settle_one(struct dial *d, uint32_t i)
{
	int sys = 0;
	socklen_t n = sizeof(sys);

	if (getsockopt(d->fd[i], SOL_SOCKET, SO_ERROR, &sys, &n))
		sys = errno;
	if (sys == 0 && met_itself(d->fd[i]))
		sys = ECONNREFUSED;
	if (sys == 0)
		return true;
	d->sys[i] = sys;
	close(d->fd[i]);
	d->fd[i] = -1;
	d->over++;
	return false;
}

static ist_err
report(struct dial *d, ist_err code, bool *refused, struct ist_error *err)
{
	char list[2048] = "", one[160], at[128];
	size_t n = 0;
	int first = 0;

	*refused = true;
	for (uint32_t i = 0; i < d->to->n; i++) {
		const char *name = d->sys[i] ? strerrorname_np(d->sys[i]) : NULL;

		ist__sockaddr_text(&d->to->at[i], at, sizeof(at));
		snprintf(one, sizeof(one), "%s%s: %s", n ? ", " : "", at, name ? name : i < d->started ? "no answer" : "not tried");
		if (n + strlen(one) < sizeof(list))
			n += (size_t)snprintf(list + n, sizeof(list) - n, "%s", one);
		if (!first)
			first = d->sys[i];
	}
	if (first == EMFILE || first == ENFILE)
		code = IST_LIMIT; /* ours: nobody was asked */
	else if (first == ENOMEM || first == ENOBUFS)
		code = IST_NO_MEMORY;
	ist__fail(err, code, "connect", "%s", list);
	ist__fail_files(err, first);
	if (err && first && err->struct_size >= sizeof(*err))
		err->sys = first;
	return code;
}

ist_err
ist__dial(const struct ist__addrs *to, int64_t deadline, int cancel_fd, int *out, bool *refused, struct ist_error *err)
{
	struct dial d = { .to = to };
	struct pollfd p[TRIES + 1];
	uint32_t at[TRIES + 1];
	int64_t next = 0;
	int won = -1, one = 1;
	ist_err e = IST_OK;

	for (int i = 0; i < TRIES; i++)
		d.fd[i] = -1;
	while (won < 0) {
		nfds_t n = 0;
		int64_t now = ist__now();

		if (d.started < to->n && (now >= next || d.over == d.started)) {
			if (start_one(&d, d.started))
				won = (int)d.started;
			d.started++;
			next = now + STAGGER_MS * IST__MS;
			continue;
		}
		if (d.over == to->n) {
			e = report(&d, IST_IO, refused, err);
			break;
		}
		if (now >= deadline) {
			e = report(&d, IST_TIMEOUT, refused, err);
			break;
		}
		for (uint32_t i = 0; i < d.started; i++)
			if (d.fd[i] >= 0) {
				at[n] = i;
				p[n++] = (struct pollfd){ .fd = d.fd[i], .events = POLLOUT };
			}
		p[n] = (struct pollfd){ .fd = cancel_fd, .events = POLLIN };
		poll(p, n + 1, ist__poll_ms(d.started < to->n && next < deadline ? next : deadline, 1000));
		if (cancel_fd >= 0 && p[n].revents) {
			e = ist__fail(err, IST_ABORTED, "connect", "cancelled");
			break;
		}
		for (nfds_t i = 0; i < n && won < 0; i++)
			if (p[i].revents && settle_one(&d, at[i]))
				won = (int)at[i];
	}
	for (uint32_t i = 0; i < d.started; i++)
		if (d.fd[i] >= 0 && (int)i != won)
			close(d.fd[i]);
	if (won >= 0) {
		setsockopt(d.fd[won], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		*out = d.fd[won];
	}
	return e;
}
