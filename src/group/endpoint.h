/* SPDX-License-Identifier: Apache-2.0
 *
 * endpoint.h - where this process can be reached. Visitors are sorted by what they ask for: they go to the group that is
 * being formed, or wait here for it (parked) as long as they hold the line.
 */
#ifndef ISTHMUS_GROUP_ENDPOINT_H
#define ISTHMUS_GROUP_ENDPOINT_H

#include "group/card.h"
#include "net/accept.h"
#include "net/inbox.h"

#include <isthmus.h>

enum { IST__GROUP_KEY = 32, IST__LISTENERS = 8 };

/* Somebody that expects visitors. on the loop's thread, under no lock: true when it takes them. */
struct ist__expect {
	struct ist__expect *next;
	bool (*take)(struct ist__expect *expect, struct ist__conn *conn, struct ist__frame *frame);
	/* A visitor is proven, but of another version, or has another secret (then nothing else that it says counts, the mark
	 * neither: group is 0); may be NULL. group: the mark of the group that it came for. True: that is ours. */
	bool (*refused)(struct ist__expect *expect, const struct ist_error *err, uint32_t group);
	/* A visitor could not be let in for want of memory; may be NULL. group: the mark of the group that it came for, if it had
	 * said that and takes itself for let in; else 0: it will come again. True: that is ours. */
	bool (*starved)(struct ist__expect *expect, uint32_t group);
};

struct ist__parked;

struct ist__ep {
	struct ist_env *env;
	struct ist__loop *loop;
	struct ist__self self;
	struct ist__card card;
	uint8_t *key; /* sodium memory */
	bool insecure;
	char bind[512], advertise[256];
	uint32_t transport, mem;
	int32_t device;
	int listen_fd; /* given by the caller, -1: none or used */
	pthread_mutex_t lock;
	struct { union ist__sockaddr at; struct ist__acceptor *acceptor; char addr[96]; } listeners[IST__LISTENERS];
	uint32_t n_listeners;
	struct ist__acceptor *local; /* the abstract Unix socket */
	struct ist__expect *expects; /* loop's thread */
	struct ist__parked *parked;  /* loop's thread */
	uint32_t n_parked;
	struct ist_error *unheard;   /* a refusal that came before anybody expected visitors; loop's thread */
	int64_t unheard_at;
	uint32_t unheard_group;
	uint32_t starved_group;      /* a visitor for that one was lost before anybody expected it, and won't come again; loop's thread */
	uint32_t refs;               /* groups and formings */
	struct ist__hosted *hosted;  /* meeting places */
};

struct ist_endpoint {
	struct ist__handle handle;
	struct ist__ep *ep;
};

ist_err ist__ep_new(struct ist_env *env, const struct ist_endpoint_args *args, struct ist__ep **out, struct ist_error *err);
void ist__ep_ref(struct ist__ep *ep);
void ist__ep_unref(struct ist__ep *ep); /* the last one frees it; not on the loop's thread */

/* Listens where told; else on the local address like (loopback where NULL). card: where others reach it; bound: the local
 * address without port. INSECURE. */
enum { IST__BOUND = 96 };
ist_err ist__ep_listen(struct ist__ep *ep, const union ist__sockaddr *like, struct ist__card *card, char bound[IST__BOUND],
	struct ist_error *err);
/* Off loopback without a secret is refused unless insecure was said. */
ist_err ist__ep_may_use(const struct ist__ep *ep, const union ist__sockaddr *at, struct ist_error *err);

/* Loop's thread is used inside; any thread. expect looks at what is parked as well. */
void ist__ep_expect(struct ist__ep *ep, struct ist__expect *expect);
void ist__ep_unexpect(struct ist__ep *ep, struct ist__expect *expect);
/* Somebody came by another way than a socket that listens: conn is ready and nobody's yet, frame is what it says. Both are
 * taken. Loop's thread. */
void ist__ep_visit(struct ist__ep *ep, struct ist__conn *conn, struct ist__frame *frame);
/* A visitor, who will come again, could not be let in for want of memory. Loop's thread. */
void ist__ep_starved(struct ist__ep *ep);
/* Something changed: parked visitors are offered again. Any thread. */
void ist__ep_offer_parked(struct ist__ep *ep);
/* Was a visitor with that mark lost here since this was last asked? Any thread. */
bool ist__ep_has_starved(struct ist__ep *ep, uint32_t group);

/* A meeting place at hp, hosted by this endpoint until it is freed. CONFLICT: the port is taken (by whom is not known).
 * *fresh: false when this endpoint hosts it already. */
ist_err ist__ep_host(struct ist__ep *ep, const struct ist__addrs *at, const char *own, bool *fresh, struct ist_error *err);

#endif
