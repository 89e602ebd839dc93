/* SPDX-License-Identifier: Apache-2.0
 *
 * decide_alive.c - is a member that was lost dead for certain? A connection that ends does not show it: somebody on the way
 * may have reset it between two that live. On this host the sign of life tells. On another one the member's own address is
 * dialled: where nobody listens any more, or another process answers, it is dead; whatever else comes of it shows nothing.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/group.h"
#include "net/inbox.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

enum { RETRY_MS = 20, LIFE_MS = 500 };
enum told { NOTHING, DEAD, ALIVE };

/* Who says hello over fd? */
static enum told
hear_hello(struct ist__group *g, struct ist__inbox *inbox, int fd, const struct ist__card *card, int64_t until)
{
	struct ist__conn *conn = ist__conn_new(g->loop, fd, IST__INITIATOR, &g->ep->self, until);
	struct ist__post *post = conn ? ist__inbox_add(inbox, conn, 0) : NULL;
	enum told told = NOTHING;
	struct ist__event ev;

	if (!post)
		return NOTHING;
	if (ist__inbox_wait(inbox, until, &ev, NULL) == IST_OK) {
		if (ev.kind == IST__EVENT_READY)
			told = memcmp(ist__conn_agreed(conn)->peer.member, card->id, IST__MEMBER_BYTES) ? DEAD : ALIVE;
		ist__event_done(inbox, &ev);
	}
	ist__inbox_drop(inbox, post, false);
	return told;
}

/* A process that ends closes one socket after the other: an answer that breaks off is asked for again. */
static enum told
ask(struct ist__group *g, struct ist__inbox *inbox, const struct ist__card *card, int64_t until)
{
	struct ist__hostport hp;
	struct ist__addrs at;
	enum told told = NOTHING;

	if (ist__hostport_parse(card->addr, true, &hp, NULL) || ist__resolve(&hp, &at, NULL))
		return NOTHING;
	while (told == NOTHING && ist__now() < until) {
		struct ist_error why;
		struct ist__event none;
		bool refused;
		int fd;
		ist_err e;

		ist_error_init(&why);
		e = ist__dial(&at, until, inbox->cancel_fd, &fd, &refused, &why);
		if (e)
			return why.sys == ECONNREFUSED ? DEAD : NOTHING;
		told = hear_hello(g, inbox, fd, card, until);
		if (told == NOTHING) /* nothing comes: the inbox has no connection */
			(void)ist__inbox_wait(inbox, ist__now() + RETRY_MS * IST__MS, &none, NULL);
	}
	return told;
}

/* While another one looks, the dead one's mutex seems to be held: so more than one look. */
static bool
shows_no_life(struct ist__group *g, uint32_t rank, int64_t until)
{
	int64_t end = ist__now() + LIFE_MS * IST__MS;
	enum ist__alive alive;

	while ((alive = ist__life_look(g->life, g->members[rank].slot)) == IST__ALIVE_YES && ist__now() < (end < until ? end : until))
		poll(NULL, 0, 1);
	return alive == IST__ALIVE_DEAD;
}

bool
ist__decide_died(struct ist__group *g, uint32_t rank, int64_t until)
{
	struct ist__inbox inbox;
	enum told told;

	if (g->life && g->members[rank].host == g->members[g->rank].host)
		return shows_no_life(g, rank, until);
	if (ist__inbox_init(&inbox, g->loop, NULL))
		return false;
	told = ask(g, &inbox, &g->members[rank].card, until);
	ist__inbox_fini(&inbox);
	ist__log(g->ctx, 2, "rank %u, which is lost, %s", rank, told == DEAD ? "is dead" : told == ALIVE ? "lives" : "may live");
	return told == DEAD;
}
