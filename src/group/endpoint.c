/* SPDX-License-Identifier: Apache-2.0 */
#include "group/endpoint.h"

#include "base/clock.h"
#include "base/fail.h"
#include "meet/store.h"
#include "net/wire.h"
#include "plug/far.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PARKED = 4096, UNHEARD_MS = 60000 };

struct ist__parked {
	struct ist__parked *next, **link;
	struct ist__ep *ep;
	struct ist__conn *conn;
	struct ist__frame *frame, *fds; /* what it came for, and the descriptors that it brought */
};

struct ist__hosted {
	struct ist__hosted *next;
	struct ist__store *store;
	union ist__sockaddr at;
};

static const struct ist__ctx *
ctx_of(const struct ist__ep *ep)
{
	return ist__env_ctx(ep->env);
}

/* ---- visitors ---- */

static void
on_starved(void *owner, uint32_t group)
{
	struct ist__ep *ep = owner;
	bool heard = false;

	for (struct ist__expect *e = ep->expects; e; e = e->next)
		heard |= e->starved && e->starved(e, group);
	if (group && !heard)
		ep->starved_group = group;
}

static void
parked_remove(struct ist__parked *p)
{
	*p->link = p->next;
	if (p->next)
		p->next->link = p->link;
	p->ep->n_parked--;
	ist__free(ctx_of(p->ep), p);
}

/* We could not keep it. Whoever wants to join dials again; all others take themselves for let in. */
static void
turn_away(struct ist__ep *ep, const struct ist__conn *conn, const struct ist__frame *frame)
{
	on_starved(ep, frame->type == IST__JOIN ? 0 : ist__conn_group(conn));
}

static void
parked_closed(struct ist__conn *conn, void *owner, const struct ist_error *err)
{
	struct ist__parked *p = owner;

	if (ist__fail_is_own(err->code))
		turn_away(p->ep, conn, p->frame);
	ist__frame_free(p->ep->loop, p->frame);
	ist__frame_free(p->ep->loop, p->fds);
	parked_remove(p);
	ist__conn_close(conn, false);
}

static void
parked_frame(struct ist__conn *conn, void *owner, struct ist__frame *frame)
{
	struct ist__parked *p = owner;

	/* a member that waits has nothing more to say but that; heartbeats are fine */
	(void)conn;
	if (frame->type == IST__FDS && !p->fds && p->frame->type != IST__JOIN)
		p->fds = frame;
	else
		ist__frame_free(p->ep->loop, frame);
}

static const struct ist__conn_ops parked_ops = { .frame = parked_frame, .closed = parked_closed };

static void
park(struct ist__ep *ep, struct ist__conn *conn, struct ist__frame *frame)
{
	struct ist__parked *p = ep->n_parked < PARKED ? ist__alloc(ctx_of(ep), sizeof(*p)) : NULL;

	if (!p) {
		turn_away(ep, conn, frame);
		ist__frame_free(ep->loop, frame);
		ist__conn_close(conn, false);
		return;
	}
	*p = (struct ist__parked){ .ep = ep, .conn = conn, .frame = frame, .next = ep->parked, .link = &ep->parked };
	if (p->next)
		p->next->link = &p->next;
	ep->parked = p;
	ep->n_parked++;
	ist__conn_give(conn, &parked_ops, p);
}

static bool
offer(struct ist__ep *ep, struct ist__conn *conn, struct ist__frame *frame)
{
	for (struct ist__expect *e = ep->expects; e; e = e->next)
		if (e->take(e, conn, frame))
			return true;
	return false;
}

static bool
on_visitor(void *owner, struct ist__conn *conn, struct ist__frame *frame)
{
	struct ist__ep *ep = owner;

	if (frame->type != IST__JOIN && frame->type != IST__LINK && frame->type != IST__HOSTLINK) {
		bool critical = frame->flags & IST__FRAME_CRITICAL;

		ist__frame_free(ep->loop, frame);
		if (critical)
			ist__conn_close(conn, false);
		return critical;
	}
	if (!offer(ep, conn, frame))
		park(ep, conn, frame);
	return true;
}

static void
on_refused(void *owner, const struct ist_error *err, bool proven, uint32_t group)
{
	struct ist__ep *ep = owner;

	bool heard = false;

	if (!proven && err->code != IST_BAD_SECRET)
		return;
	if (!proven)
		group = 0;
	for (struct ist__expect *e = ep->expects; e; e = e->next)
		heard |= e->refused && e->refused(e, err, group);
	if (heard || (group == 0 && ep->expects)) /* of no group: all that form have been told */
		return;
	/* a member may come, and give up, before our side of the group begins to form */
	if (!ep->unheard)
		ep->unheard = ist__alloc(ctx_of(ep), sizeof(*ep->unheard));
	if (ep->unheard)
		*ep->unheard = *err;
	ep->unheard_at = ist__now();
	ep->unheard_group = group;
}

void
ist__ep_starved(struct ist__ep *ep)
{
	on_starved(ep, 0);
}

struct asking {
	struct ist__ep *ep;
	uint32_t group;
	bool has;
};

static void
ask_here(void *arg)
{
	struct asking *a = arg;

	a->has = a->ep->starved_group == a->group;
	if (a->has)
		a->ep->starved_group = 0;
}

bool
ist__ep_has_starved(struct ist__ep *ep, uint32_t group)
{
	struct asking a = { ep, group, false };

	ist__loop_run(ep->loop, ask_here, &a);
	return a.has;
}

static void
arrival_closed(struct ist__conn *conn, void *owner, const struct ist_error *err)
{
	bool *gone = owner;

	(void)conn, (void)err;
	*gone = true;
}

static const struct ist__conn_ops arrival_ops = { .closed = arrival_closed }; /* until somebody takes it, in the same turn */

void
ist__ep_visit(struct ist__ep *ep, struct ist__conn *conn, struct ist__frame *frame)
{
	bool gone = false;

	ist__conn_attach(conn, &arrival_ops, &gone);
	if (!gone && on_visitor(ep, conn, frame))
		return;
	if (gone)
		ist__frame_free(ep->loop, frame);
	ist__conn_close(conn, false);
}

static void
tell_unheard(struct ist__ep *ep, struct ist__expect *e)
{
	bool old = ist__now() - ep->unheard_at > UNHEARD_MS * IST__MS;

	if (!ep->unheard || (!old && (!e->refused || (!e->refused(e, ep->unheard, ep->unheard_group) && ep->unheard_group != 0))))
		return;
	ist__free(ctx_of(ep), ep->unheard);
	ep->unheard = NULL;
}

static void
offer_parked_here(void *arg)
{
	struct ist__ep *ep = arg;

	for (struct ist__parked *p = ep->parked, *next; p; p = next) {
		next = p->next;
		if (!offer(ep, p->conn, p->frame))
			continue;
		if (p->fds)
			ist__conn_replay(p->conn, p->fds);
		parked_remove(p);
	}
}

void
ist__ep_offer_parked(struct ist__ep *ep)
{
	ist__loop_run(ep->loop, offer_parked_here, ep);
}

struct expecting {
	struct ist__ep *ep;
	struct ist__expect *expect;
};

static void
expect_here(void *arg)
{
	struct expecting *x = arg;
	struct ist__expect **last = &x->ep->expects;

	while (*last) /* first come, first served */
		last = &(*last)->next;
	x->expect->next = NULL;
	*last = x->expect;
	tell_unheard(x->ep, x->expect);
	offer_parked_here(x->ep);
}

static void
unexpect_here(void *arg)
{
	struct expecting *x = arg;

	for (struct ist__expect **p = &x->ep->expects; *p; p = &(*p)->next)
		if (*p == x->expect) {
			*p = x->expect->next;
			break;
		}
}

void
ist__ep_expect(struct ist__ep *ep, struct ist__expect *expect)
{
	struct expecting x = { ep, expect };

	ist__loop_run(ep->loop, expect_here, &x);
}

void
ist__ep_unexpect(struct ist__ep *ep, struct ist__expect *expect)
{
	struct expecting x = { ep, expect };

	ist__loop_run(ep->loop, unexpect_here, &x);
}

/* ---- listening ---- */

ist_err
ist__ep_may_use(const struct ist__ep *ep, const union ist__sockaddr *at, struct ist_error *err)
{
	char text[128];

	if (ep->self.has_secret || ep->insecure || ist__is_loopback(at))
		return IST_OK;
	ist__sockaddr_text(at, text, sizeof(text));
	return ist__fail(err, IST_INSECURE, "listen", "%s is not loopback, and no secret is set", text);
}

static ist_err
advertised(const struct ist__ep *ep, const union ist__sockaddr *at, char *room, size_t bytes, struct ist_error *err)
{
	struct ist__hostport hp;
	ist_err e;

	if (!ep->advertise[0]) {
		if (ist__is_wildcard(at))
			return ist__fail(err, IST_BAD_CONFIG, "listen", "bound to a wildcard: say with --advertise where the others reach it");
		ist__sockaddr_text(at, room, bytes);
		return IST_OK;
	}
	e = ist__advertise_parse(ep->advertise, &hp, err);
	if (e)
		return e;
	if (!hp.has_port)
		hp.port = ist__sockaddr_port(at);
	snprintf(room, bytes, strchr(hp.host, ':') ? "[%s]:%u" : "%s:%u", hp.host, hp.port);
	return IST_OK;
}

static ist_err
listen_at(struct ist__ep *ep, union ist__sockaddr *at, int fd, uint32_t *slot, struct ist_error *err)
{
	struct ist__acceptor_args args = { .loop = ep->loop, .self = &ep->self, .owner = ep, .visitor = on_visitor, .refused = on_refused, .starved = on_starved };
	struct ist_error why;
	char text[128];
	ist_err e;

	if (ep->n_listeners == IST__LISTENERS)
		e = ist__fail(err, IST_LIMIT, "listen", "an endpoint listens on at most %d addresses", IST__LISTENERS);
	else
		e = ist__ep_may_use(ep, at, err);
	if (e) {
		if (fd >= 0)
			close(fd);
		return e;
	}
	ist_error_init(&why);
	while (fd < 0 && (e = ist__listen(at, &fd, &why)))
		if (!ist__loop_spares_spend(ep->loop, why.sys)) {
			ist__error_copy(err, &why);
			return e;
		}
	e = advertised(ep, at, ep->listeners[ep->n_listeners].addr, sizeof(ep->listeners[0].addr), err);
	if (e) {
		close(fd);
		return e;
	}
	args.fd = fd;
	ist_error_init(&why);
	ep->listeners[ep->n_listeners].acceptor = ist__acceptor_new(&args, &why);
	if (!ep->listeners[ep->n_listeners].acceptor) {
		ist__error_copy(err, &why);
		return why.code;
	}
	ep->listeners[ep->n_listeners].at = *at;
	*slot = ep->n_listeners++;
	ist__sockaddr_text(at, text, sizeof(text));
	ist__log(ctx_of(ep), 2, "listening on %s%s%s", text, ep->advertise[0] ? ", told to the others as " : "",
		ep->advertise[0] ? ep->listeners[*slot].addr : "");
	return IST_OK;
}

static bool
same_host(const union ist__sockaddr *a, const union ist__sockaddr *b)
{
	union ist__sockaddr x = *a, y = *b;

	ist__sockaddr_set_port(&x, 0);
	ist__sockaddr_set_port(&y, 0);
	return x.sa.sa_family == y.sa.sa_family && !memcmp(&x, &y, ist__sockaddr_bytes(&x));
}

static ist_err
listen_locked(struct ist__ep *ep, const union ist__sockaddr *like, uint32_t *slot, struct ist_error *err)
{
	struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	union ist__sockaddr at = { .sa = { 0 } };
	int fd = ep->listen_fd;
	socklen_t n = sizeof(at.storage);
	ist_err e;

	if (fd >= 0) {
		ep->listen_fd = -1;
		if (getsockname(fd, &at.sa, &n)) {
			close(fd);
			return ist__fail_sys(err, IST_IO, errno, "listen", "listen_fd");
		}
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
		fcntl(fd, F_SETFD, FD_CLOEXEC);
		return listen_at(ep, &at, fd, slot, err);
	}
	if (ep->bind[0]) {
		if (ep->n_listeners > 0) {
			*slot = 0;
			return IST_OK;
		}
		e = ist__bind_pick(ep->bind, &at, err);
		return e ? e : listen_at(ep, &at, -1, slot, err);
	}
	if (like)
		at = *like;
	else if (ep->n_listeners > 0) {
		*slot = 0;
		return IST_OK;
	} else
		memcpy(&at, &loopback, sizeof(loopback));
	ist__sockaddr_set_port(&at, 0);
	for (uint32_t i = 0; i < ep->n_listeners; i++)
		if (same_host(&ep->listeners[i].at, &at)) {
			*slot = i;
			return IST_OK;
		}
	return listen_at(ep, &at, -1, slot, err);
}

/* Linux's abstract names belong to a network namespace and vanish with their socket. */
static ist_err
listen_local(struct ist__ep *ep, struct ist_error *err)
{
	struct ist__acceptor_args args = { .loop = ep->loop, .self = &ep->self, .owner = ep, .visitor = on_visitor, .refused = on_refused, .starved = on_starved };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd;

	do
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	while (fd < 0 && ist__loop_spares_spend(ep->loop, errno));
	if (fd < 0)
		return errno == EMFILE || errno == ENFILE ? ist__fail_sys(err, IST_LIMIT, errno, "listen", "a socket for members of this host") : IST_OK;
	memcpy(un.sun_path + 1, "isthmus-", 8);
	sodium_bin2hex(un.sun_path + 9, 33, ep->card.local, sizeof(ep->card.local));
	if (bind(fd, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + 8 + 32)) || listen(fd, 1024)) {
		close(fd);
		return IST_OK; /* then this member is alone on its host, and TCP serves */
	}
	args.fd = fd;
	ep->local = ist__acceptor_new(&args, NULL);
	return IST_OK;
}

ist_err
ist__ep_listen(struct ist__ep *ep, const union ist__sockaddr *like, struct ist__card *card, char bound[IST__BOUND],
	struct ist_error *err)
{
	uint32_t slot = 0;
	ist_err e;

	pthread_mutex_lock(&ep->lock);
	e = listen_locked(ep, like, &slot, err);
	if (!e && !ep->local)
		e = listen_local(ep, err);
	if (!e) {
		*card = ep->card;
		snprintf(card->addr, sizeof(card->addr), "%s", ep->listeners[slot].addr);
		ist__sockaddr_host(&ep->listeners[slot].at, bound, IST__BOUND);
	}
	pthread_mutex_unlock(&ep->lock);
	return e;
}

ist_err
ist__ep_host(struct ist__ep *ep, const struct ist__addrs *to, const char *own, bool *fresh, struct ist_error *err)
{
	struct ist__hosted *h;
	ist_err e = IST_OK;
	int fd = -1;

	*fresh = false;
	pthread_mutex_lock(&ep->lock);
	for (h = ep->hosted; h; h = h->next)
		for (uint32_t i = 0; i < to->n; i++)
			if (!memcmp(&h->at, &to->at[i], ist__sockaddr_bytes(&to->at[i])))
				goto out;
	h = ist__alloc(ctx_of(ep), sizeof(*h));
	if (!h) {
		e = ist__fail_memory(err, "meet");
		goto out;
	}
	for (uint32_t i = 0; i < to->n && fd < 0; i++) { /* the first family that the kernel takes */
		h->at = to->at[i];
		e = ist__ep_may_use(ep, &h->at, err);
		if (!e)
			do
				e = ist__listen(&h->at, &fd, err);
			while (e == IST_LIMIT && ist__loop_spares_spend(ep->loop, EMFILE));
		if (e == IST_CONFLICT || e == IST_INSECURE)
			break;
	}
	if (!e) {
		/* who is refused there is most likely a member of ours that is too new or too old */
		struct ist__store_args args = { .loop = ep->loop, .fd = fd, .self = &ep->self, .own = own, .refused = on_refused, .owner = ep };

		h->store = ist__store_new(&args, err);
		e = h->store ? IST_OK : err ? err->code : IST_NO_MEMORY;
	}
	if (e) {
		ist__free(ctx_of(ep), h);
		goto out;
	}
	h->next = ep->hosted;
	ep->hosted = h;
	*fresh = true;
out:
	pthread_mutex_unlock(&ep->lock);
	return e;
}

/* ---- life ---- */

static ist_err
set_secret(struct ist__ep *ep, const struct ist_endpoint_args *a, struct ist_error *err)
{
	if (a->secret && a->secret_bytes < 16)
		return ist__fail(err, IST_INVALID_ARGUMENT, "endpoint", "a secret has at least 16 bytes");
	if (sodium_init() < 0)
		return ist__fail(err, IST_INTERNAL, "endpoint", "no randomness");
	ep->key = sodium_malloc(IST__KEY_BYTES); /* locked where the limit allows, kept out of core dumps */
	if (!ep->key)
		return ist__fail_memory(err, "endpoint");
	ist__hello_key(a->secret, a->secret ? a->secret_bytes : 0, ep->key);
	ep->self = (struct ist__self){ .proto_min = IST__PROTO_MIN, .proto_max = IST__PROTO_MAX, .features = IST__FEATURES,
		.key = ep->key, .has_secret = a->secret != NULL };
	randombytes_buf(ep->self.member, sizeof(ep->self.member));
	memcpy(ep->card.id, ep->self.member, sizeof(ep->card.id));
	randombytes_buf(ep->card.local, sizeof(ep->card.local));
	return IST_OK;
}

static void
ep_free(struct ist__ep *ep)
{
	for (uint32_t i = 0; i < ep->n_listeners; i++)
		ist__acceptor_free(ep->listeners[i].acceptor);
	ist__acceptor_free(ep->local);
	while (ep->hosted) {
		struct ist__hosted *h = ep->hosted;

		ep->hosted = h->next;
		ist__store_free(h->store);
		ist__free(ctx_of(ep), h);
	}
	while (ep->parked) {
		struct ist__parked *p = ep->parked;
		struct ist__conn *conn = p->conn;

		ist__conn_close(conn, false); /* no callback of it comes any more */
		ist__frame_free(ep->loop, p->frame);
		ist__frame_free(ep->loop, p->fds);
		parked_remove(p);
	}
	if (ep->listen_fd >= 0)
		close(ep->listen_fd);
	ist__free(ctx_of(ep), ep->unheard);
	sodium_free(ep->key);
	pthread_mutex_destroy(&ep->lock);
	ist__free(ctx_of(ep), ep);
}

/* Told here: a socket on which nothing ever arrives would otherwise be a member that nobody can reach. */
static ist_err
check_listens(int fd, struct ist_error *err)
{
	union ist__sockaddr at = { .sa = { 0 } };
	int type = 0, listens = 0;
	socklen_t n = sizeof(at.storage), k = sizeof(int), l = sizeof(int);

	if (getsockname(fd, &at.sa, &n) || (at.sa.sa_family != AF_INET && at.sa.sa_family != AF_INET6) ||
	    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &k) || type != SOCK_STREAM)
		return ist__fail(err, IST_INVALID_ARGUMENT, "endpoint", "listen_fd %d is no TCP socket", fd);
	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &l) || !listens)
		return ist__fail(err, IST_INVALID_ARGUMENT, "endpoint", "listen_fd %d does not listen", fd);
	return IST_OK;
}

ist_err
ist__ep_new(struct ist_env *env, const struct ist_endpoint_args *args, struct ist__ep **out, struct ist_error *err)
{
	static const struct ist_endpoint_args none = { .struct_size = sizeof(none) };
	const struct ist_endpoint_args *a = args ? args : &none;
	struct ist__loop *loop;
	struct ist__hostport hp;
	struct ist_error why;
	struct ist__ep *ep;
	struct ist__far far;
	union ist__sockaddr at;
	ist_err e;

	ist_error_init(&why);
	loop = ist__loop_get(env, &why);
	if (!loop) {
		ist__error_copy(err, &why);
		return why.code;
	}
	if (a->struct_size < sizeof(*a))
		return ist__fail(err, IST_INVALID_ARGUMENT, "endpoint", "struct_size %u is too small", a->struct_size);
	if (a->transport > IST_TRANSPORT_TCP)
		return ist__fail(err, IST_INVALID_ARGUMENT, "endpoint", "transport %u is not known", a->transport);
	if (a->listen_fd > 0 && (e = check_listens(a->listen_fd, err)))
		return e;
	if ((a->bind && strlen(a->bind) >= sizeof(ep->bind)) || (a->advertise && strlen(a->advertise) >= sizeof(ep->advertise)))
		return ist__fail(err, IST_INVALID_ARGUMENT, "endpoint", "bind or advertise is longer than %zu or %zu bytes", sizeof(ep->bind) - 1, sizeof(ep->advertise) - 1);
	ep = ist__alloc(ist__env_ctx(env), sizeof(*ep));
	if (!ep)
		return ist__fail_memory(err, "endpoint");
	ep->env = env;
	ep->loop = loop;
	ep->refs = 1;
	ep->insecure = a->insecure;
	ep->transport = a->transport;
	ep->mem = a->mem;
	ep->device = a->mem == IST_MEM_HOST ? -1 : a->device;
	ep->listen_fd = a->listen_fd > 0 ? a->listen_fd : -1;
	pthread_mutex_init(&ep->lock, NULL);
	snprintf(ep->bind, sizeof(ep->bind), "%s", a->bind ? a->bind : "");
	snprintf(ep->advertise, sizeof(ep->advertise), "%s", a->advertise ? a->advertise : "");
	ist__card_here(&ep->card);
	e = set_secret(ep, a, err);
	if (!e && a->mem != IST_MEM_HOST)
		e = ist__far_find(env, a->mem, a->device, "endpoint", &far, err);
	if (!e && a->bind) {
		e = ist__bind_pick(a->bind, &at, err); /* a bad value fails here, not at the first group */
		if (!e)
			e = ist__ep_may_use(ep, &at, err);
	}
	if (!e && a->advertise && *a->advertise)
		e = ist__advertise_parse(a->advertise, &hp, err);
	if (e) {
		ep->listen_fd = -1; /* still the caller's */
		ep_free(ep);
		return e;
	}
	*out = ep;
	return IST_OK;
}

void
ist__ep_ref(struct ist__ep *ep)
{
	__atomic_add_fetch(&ep->refs, 1, __ATOMIC_RELAXED);
}

void
ist__ep_unref(struct ist__ep *ep)
{
	if (ep && __atomic_sub_fetch(&ep->refs, 1, __ATOMIC_ACQ_REL) == 0)
		ep_free(ep);
}
