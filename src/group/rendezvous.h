/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous.h - how a member finds rank 0: through a store over TCP, a shared folder, or the caller's own key-value store.
 * Nothing more is asked of a meeting place. Used by one forming thread.
 */
#ifndef ISTHMUS_GROUP_RENDEZVOUS_H
#define ISTHMUS_GROUP_RENDEZVOUS_H

#include "group/endpoint.h"

enum ist__rdv_kind { IST__RDV_NONE, IST__RDV_TCP, IST__RDV_DIR, IST__RDV_KV };

struct ist__rdv {
	enum ist__rdv_kind kind;
	struct ist__ep *ep;
	const struct ist__self *self; /* who we are there, and for which group */
	struct ist__inbox *inbox;
	const char *name, *prefix, *dir;
	uint32_t rank, size, host_meeting;
	const struct ist_kv *kv;
	struct ist__hostport hp;
	struct ist__addrs at;
	struct ist__post *post;   /* connection to the store */
	bool met;                 /* a connection stood at least once */
	bool asked;               /* PUBLISH or FIND sent on this connection */
	bool hosts;               /* the place is ours to host */
	bool published, found;
	bool rests;               /* see ist__rdv_rest */
	union ist__sockaddr local;
	struct ist__card card;    /* rank 0: ours; others: what was found */
	int64_t next;             /* when to try again */
	int64_t look_up;          /* when to ask for the addresses of the place again */
	int64_t tell;             /* when to tell for 'status' that we wait */
	uint64_t told_pid;        /* told in the folder; 0: not */
	int lock_fd;              /* dir */
	struct ist_error last;    /* why the last attempt failed */
	/* rank 0: somebody asks at our place for another name; true: it must be one of our missing members */
	bool (*stray)(void *arg, const char *name, uint32_t rank, uint32_t size);
	void *arg;
};

enum { IST__TAG_MEET = 1 };

/* Parses and resolves; hosts where that is its part. Errors of the caller (INVALID_ARGUMENT) come before any traffic. */
ist_err ist__rdv_check(const struct ist_group_args *args, struct ist_error *err);
ist_err ist__rdv_open(struct ist__rdv *rdv, const struct ist_group_args *args, struct ist_error *err);
/* Does what is due: connects, asks, reads. card: what rank 0 publishes, NULL while it is not known. Failures that time may
 * heal are kept in last. */
ist_err ist__rdv_step(struct ist__rdv *rdv, const struct ist__card *card, int64_t deadline, struct ist_error *err);
/* An event of its post. An error is final. */
ist_err ist__rdv_event(struct ist__rdv *rdv, struct ist__event *event, struct ist_error *err);
/* At the deadline: where something took the connection and never answered, last says so. */
void ist__rdv_silent(struct ist__rdv *rdv);
/* When step wants to be called at the latest. */
int64_t ist__rdv_next(const struct ist__rdv *rdv);
/* Does this member keep its connection to the store, to tell how it is? Of many only the first ones do. */
bool ist__rdv_keeps(const struct ist__rdv *rdv);
/* The others leave the store alone while (on) their connection to rank 0 stands. */
void ist__rdv_rest(struct ist__rdv *rdv, bool on);
void ist__rdv_close(struct ist__rdv *rdv);

#endif
