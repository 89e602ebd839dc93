/* SPDX-License-Identifier: Apache-2.0
 *
 * reach.c - how one member reaches another while a group forms: by the other's abstract Unix socket where both may be on
 * one host, else by its TCP address. Whoever was reached by the socket is on this host, and can be handed descriptors.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/form_int.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { CROWD_MS = 2000 };

bool
ist__may_share(const struct ist__card *a, const struct ist__card *b)
{
	/* whatever transport the data take: the sign of life serves all */
	return !memcmp(a->host_hint, b->host_hint, sizeof(a->host_hint));
}

/* *fd: a descriptor, or -1: that socket is not in sight. Waits only where too many stand before it already. LIMIT. */
static ist_err
dial_socket(struct ist__form *f, const struct ist__card *card, int *out, struct ist_error *err)
{
	struct pollfd cancel = { .fd = f->inbox.cancel_fd, .events = POLLIN };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int64_t until = ist__now() + CROWD_MS * IST__MS;
	int fd;

	*out = -1;
	do
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	while (fd < 0 && ist__loop_spares_spend(f->inbox.loop, errno));
	if (fd < 0)
		return errno == EMFILE || errno == ENFILE ? ist__fail_sys(err, IST_LIMIT, errno, "connect", "a socket for a member of this host") : IST_OK;
	memcpy(un.sun_path + 1, "isthmus-", 8);
	sodium_bin2hex(un.sun_path + 9, 33, card->local, sizeof(card->local));
	do
		if (connect(fd, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + 8 + 32)) == 0) {
			*out = fd;
			return IST_OK;
		}
	while ((errno == EAGAIN || errno == EINTR) && ist__now() < until && poll(&cancel, 1, 1) <= 0);
	close(fd);
	return IST_OK;
}

ist_err
ist__reach(struct ist__form *f, const struct ist__card *card, int64_t until, int *fd, struct ist_error *err)
{
	struct ist__hostport hp;
	struct ist__addrs at;
	bool refused;
	ist_err e;

	if (ist__may_share(card, &f->card) && ((e = dial_socket(f, card, fd, err)) || *fd >= 0))
		return e;
	e = ist__hostport_parse(card->addr, true, &hp, err);
	if (!e)
		e = ist__resolve(&hp, &at, err);
	if (!e)
		do
			e = ist__dial(&at, until < f->deadline ? until : f->deadline, f->inbox.cancel_fd, fd, &refused, err);
		while (e == IST_LIMIT && ist__loop_spares_spend(f->inbox.loop, EMFILE));
	if (e == IST_IO && !ist__may_share(card, &f->card) && ist__is_loopback(&at.at[0]))
		ist__fail_prefix(err, "a member of another host tells its loopback address (it came to the meeting place by that, and needs --bind or --advertise): ");
	return e;
}

ist_err
ist__reach_local(struct ist__form *f, const struct ist__card *card, int *fd, struct ist_error *err)
{
	ist_err e = dial_socket(f, card, fd, err);

	return e || *fd >= 0 ? e : IST_UNSUPPORTED;
}

static struct ist__spoke *
usable(struct ist__spoke *s)
{
	return s->post && ist__conn_is_unix(s->post->conn) ? s : NULL;
}

struct ist__spoke *
ist__form_near(struct ist__form *f, uint32_t rank)
{
	struct ist__spoke *s = NULL;

	if (f->args.rank == 0 || rank == 0)
		s = usable(&f->star[f->args.rank == 0 ? rank : 0]);
	if (!s)
		s = usable(&f->links[rank]);
	return s ? s : usable(&f->local[rank]);
}
