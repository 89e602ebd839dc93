/* SPDX-License-Identifier: Apache-2.0
 *
 * form_int.h - a group while it forms, shared by form.c (who is there), wire_up.c (links, hosts), channel.c (the
 * backend's channel) and star.c (rank 0 asks, all answer).
 *
 * Forming is written from top to bottom for one thread: the caller's, or one of the library's ("ist-new") where the
 * caller does not wait. Rank 0 holds a connection to every member (the star). After the roll-call both steps are the same
 * exchange: each member gives a status and some bytes, rank 0 hands the bytes of all to all, or one error to all. The
 * second step is the vote: what rank 0 says then is final, and nobody has success before everybody voted.
 */
#ifndef ISTHMUS_GROUP_FORM_INT_H
#define ISTHMUS_GROUP_FORM_INT_H

#include "group/group.h"
#include "group/rendezvous.h"

enum { IST__OFFER_FDS = 8 /* of one member, at most */ };
enum { IST__TAG_STAR = 2, IST__TAG_LINK = 3, IST__TAG_LOCAL = 4 };
#define IST__TAG(kind, rank) ((uint64_t)(kind) << 32 | (rank))

enum { IST__STEP_VOTE = 3 /* the last one */ };

/* What a member says when it joins. */
struct ist__claim {
	struct ist__card card;
	uint32_t rank, size, transport, mem;
	int32_t device;
	uint64_t bucket_bytes;
	char backend[256];
};

/* A connection of the star, a link, or one to a host's first member, while forming. */
struct ist__spoke {
	struct ist__post *post;
	struct ist__msg *partials;
	struct ist__msg *phase;        /* the message of the step at hand */
	struct ist__frame *later, **later_last; /* what belongs to the mesh */
	bool ready;
	bool lane;  /* handed over by the parent's link, see lane.c */
	bool dialled;
	uint32_t tries; /* how often it ended before the other side had taken it */
	bool ended; /* it closed: rank 0 will say why, or, after our vote, the group will hear of it */
};

struct ist__contest { /* a second claimant of a rank waits for the first one's answer */
	struct ist__contest *next;
	struct ist__spoke spoke;
	struct ist__claim claim;
	int64_t until;
};

enum { IST__SETTING = 256, IST__SETTINGS = 32 };
struct ist__settings { /* of the backend, as all have agreed on them */
	struct ist_setting agreed[IST__SETTINGS];
	char values[IST__SETTINGS][IST__SETTING];
};

struct ist__form {
	struct ist_env *env;
	const struct ist__ctx *ctx;
	struct ist__ep *ep;
	struct ist__inbox inbox;
	struct ist_req *req;
	pthread_t thread;
	int64_t deadline;

	struct ist_group_args args;    /* texts are copies */
	char *name, *at, *prefix, *backend, *options;
	uint8_t key[IST__GROUP_KEY];
	struct ist__self self;         /* the endpoint's, with the mark of this group */
	struct ist__card *cards;       /* known beforehand, or NULL */
	struct ist__group *parent;     /* of a split: it knows who is gone; lent, as is the list */
	const uint32_t *parent_ranks;
	struct ist__attempt attempt; /* a split's */
	int64_t left_at;               /* when one of us was seen to have left the parent */
	struct ist__card card;         /* ours */
	char bound[IST__BOUND];        /* local address, without port */
	bool listening;
	struct ist__rdv rdv;
	bool by_parent;                /* the parent's link to rank 0 was tried */
	uint8_t dialled[IST__MEMBER_BYTES]; /* the member that star[0] was dialled as */
	struct ist__expect expect;
	bool expecting;
	uint32_t starved;              /* visitors in a row who could not be let in for want of memory; loop's thread */
	uint64_t generation;           /* atomic: the endpoint's visitors are matched by it on the loop's thread */

	struct ist__spoke *star;       /* rank 0: [size]; others: [1] */
	struct ist__claim *claims;     /* [size]; after the roll-call on all */
	struct ist__contest *contests;
	struct ist__spoke *links;      /* [size] */
	struct ist__spoke *local;      /* [size]; first member of a host: its others; others: the first */
	struct ist_error rumour;       /* a link ended: who began it, rank 0 knows better; ... */
	int64_t rumour_until;          /* ... if it says nothing by then, this is the error */
	bool stands;                   /* we have said that we stand together with the first of our host and room */
	bool voted;                    /* our last vote is given: from here on only rank 0's word counts, or the outcome in vote */
	bool others_through;           /* somebody has the group: all have voted yes, whether rank 0 says so or not */
	struct ist__life *vote;        /* the last step is a vote in this memory; lent */
	uint32_t *host, *slot;         /* [size]: first member of its host, place among that host's members */
	uint32_t *room;                /* [size]: first member of its room: who shares descriptors, see first_of_room */
	uint32_t n_here;               /* members of our host */
	struct { uint32_t n; int32_t fd[IST__OFFER_FDS]; bool came; } *wires; /* [size] descriptors of the offers */

	uint32_t proto;
	uint64_t features, bucket_bytes;
	bool one_rank;                 /* some member's backend allows no two ranks on one device */
	bool takers_differ;            /* only some members' backends look at the takers of a broadcast */
	struct ist_error stray;        /* UNKNOWN_GROUP */
	pthread_mutex_t missing_lock;
	struct ist_error refused;      /* a member of another version */
	struct ist_error passer;       /* the first who was refused; told at the deadline, when somebody is missing */
	uint8_t *missing;              /* [size]; for poll */
	struct ist_wire offered;       /* our wire-up */
	struct ist__settings *settings; /* lent by the steps */
	bool gave;                     /* the first member of our room has our descriptors */
	uint32_t *n_fds;               /* [size]: how many each has offered */
	struct ist__life *life;
	int life_fd;
	bool lifeless;                 /* our host's first member can make no memory file: there is no segment */
	struct ist_error scarce;       /* LIMIT: descriptors that came could not be had, or the last ones are in use */
	int64_t scarce_until;          /* in the roll-call: how long others are looked for, to be told */
	bool scarce_said;              /* rank 0 was told */
	bool told;                     /* rank 0 has heard of another's failure outside the exchange */
	struct ist__group *group;
	struct ist_chan *chan;
	const struct ist__admitted *admitted;
};

/* ---- star.c ---- */
/* Waits for one event, at most until then, and sorts it. IST_OK also when nothing came in time. Errors: ABORTED
 * (cancelled), PEER_LOST of the star, what rank 0 said (FAIL). */
ist_err ist__form_wait(struct ist__form *f, int64_t until, struct ist_error *err);
void ist__spoke_clear(struct ist__form *f, struct ist__spoke *spoke, bool linger);
/* False: there was no memory for it, and the connection ends. */
bool ist__form_send(struct ist__spoke *spoke, struct ist__form *f, uint16_t type, uint64_t seq, const void *body, uint64_t bytes);
void ist__form_send_error(struct ist__spoke *spoke, struct ist__form *f, uint16_t type, const struct ist_error *err);
/* What rank 0 does when it has heard all and before it hands that on: what is sent there comes before the step ends. */
typedef ist_err ist__form_between(struct ist__form *f, struct ist__reader *all, struct ist_error *err);
/* One step: status and bytes of all. mine_err: our own failure (then the step fails everywhere with it). *all: readers
 * over the bytes by rank, valid until the next exchange; owner keeps the message. */
ist_err ist__form_exchange(struct ist__form *f, uint32_t step, const char *what, ist_err mine, struct ist_error *err,
	const void *bytes, uint64_t n, struct ist__reader *all, ist__form_between *between);
/* The halves of it: rank 0 hears all, or the first failure; a member waits for rank 0's word. */
ist_err ist__form_collect(struct ist__form *f, uint32_t step, const char *what, struct ist_error *err);
ist_err ist__form_await_word(struct ist__form *f, uint16_t type, uint64_t seq, const char *what, struct ist_error *err);
/* vote.c: the last step where all members share life: we are ready. What rank 0 says is known to be the outcome in that memory. */
ist_err ist__form_vote(struct ist__form *f, struct ist__life *life, uint32_t step, const char *what, struct ist__reader *all, struct ist_error *err);
/* What was our own failure gets our rank. */
void ist__form_own(struct ist__form *f, struct ist_error *err);
/* Rank 0: all are told, of our own failure with our rank. */
ist_err ist__form_fail_all(struct ist__form *f, struct ist_error *err);
bool ist__form_is_missing(struct ist__form *f, uint32_t rank);
/* Rank 0 turned somebody away: no reason to end, but worth telling should somebody stay away. Any thread. */
void ist__form_note_refused(struct ist__form *f, const struct ist_error *err);

/* ---- scarce.c ---- */
/* LIMIT when this member has run out of descriptors: some that came for it were lost, or it lives on what was held back for
 * telling so. Others hear it by the step at hand. */
ist_err ist__form_scarce(struct ist__form *f, struct ist_error *err);
/* Descriptors from that rank could not be had. It may be between two steps of ours: who waits for them asks form_scarce. */
void ist__form_fds_lost(struct ist__form *f, uint32_t from);
/* The same in the roll-call: LIMIT once the others can be told of it, or can't be reached for a while. Rank 0 is found by
 * its card; a member tells rank 0 as it would in a step, and hears the same back. */
ist_err ist__form_scarce_roll(struct ist__form *f, struct ist_error *err);
/* A member, before its first step: why it can't take part. False: there was no memory to say so. */
bool ist__form_tell_root(struct ist__form *f, const struct ist_error *why);
/* Rank 0: tells all that are here and, for a while, who comes late. */
/* Is that trouble of our own, and can others still be heard? */
bool ist__form_may_tell(struct ist__form *f, ist_err e);
/* A member's own trouble before rank 0 knows of it: true while it may still be told there. */
bool ist__form_confess(struct ist__form *f, ist_err e, const struct ist_error *err);
void ist__form_farewell(struct ist__form *f, struct ist_error *why);

/* ---- form.c ---- */
/* One round of waiting for others: whatever is due, then one event. */
ist_err ist__form_round(struct ist__form *f, int64_t cap, struct ist_error *err);
bool ist__form_misses(struct ist__form *f); /* is anybody missing? */

/* ---- reach.c ---- */
bool ist__may_share(const struct ist__card *a, const struct ist__card *b); /* may they be on one host? */
ist_err ist__reach(struct ist__form *f, const struct ist__card *card, int64_t until, int *fd, struct ist_error *err);
/* By its Unix socket alone. UNSUPPORTED, without words: there is none in sight. */
ist_err ist__reach_local(struct ist__form *f, const struct ist__card *card, int *fd, struct ist_error *err);
/* The Unix socket that joins us and rank, whatever else it serves for; NULL: there is none. */
struct ist__spoke *ist__form_near(struct ist__form *f, uint32_t rank);

/* ---- lane.c ---- */
/* In a split: a ready connection to that rank of the new group, whose other end goes to it by the parent's link together with
 * what would be said first. NULL: there is no such link, or nothing to make it of; then it is dialled. */
struct ist__post *ist__form_lane(struct ist__form *f, uint32_t rank, uint64_t tag, uint16_t type, const void *body, uint64_t bytes);

/* ---- wire_up.c ---- */
/* First member of the room that rank will be in, should all of its host stand together. */
uint32_t ist__form_room(const struct ist__form *f, uint32_t rank);
ist_err ist__form_dial_links(struct ist__form *f, struct ist_error *err);
/* A connection that was handed over has ended: the other may have had no descriptor for it. It is dialled, which tells. */
ist_err ist__form_redial(struct ist__form *f, uint64_t tag, struct ist_error *err);
/* Waits for those to the first members of our host and room; all: for every one that the mesh will have. */
ist_err ist__form_await_links(struct ist__form *f, bool all, struct ist_error *err);
/* Do we stand together with the first members of our host and room? */
bool ist__form_together(struct ist__form *f);
ist_err ist__form_hosts(struct ist__form *f, struct ist__reader *all, struct ist_error *err);

/* ---- channel.c ---- */
/* May the channel be opened and offered in one step? Where all use our own backend; a plug-in offers nothing before it is
 * known that the plug-ins fit each other. */
bool ist__form_at_once(const struct ist__form *f);
/* Opens the backend's channel and adds to w what it is. */
ist_err ist__form_open(struct ist__form *f, struct ist__writer *w, struct ist_error *err);
/* Adds its wire-up. */
ist_err ist__form_offer(struct ist__form *f, struct ist__writer *w, struct ist_error *err);
/* Hands our descriptors, once offered, to the first member of our room, before it knows who all of that are. */
ist_err ist__form_give_fds(struct ist__form *f, struct ist_error *err);
/* all: what everybody has added to w, in that order. */
ist_err ist__form_compare(struct ist__form *f, struct ist__reader *all, struct ist__settings *out, struct ist_error *err);
/* ---- device.c ---- */
/* Adds what our device calls itself, where the backend minds and all know that this may come. */
void ist__form_put_device(struct ist__form *f, struct ist__writer *w);
ist_err ist__form_compare_devices(struct ist__form *f, struct ist__reader *all, struct ist_error *err);

/* ---- channel.c again ---- */
/* Hands descriptors over; all: from how many there are on. */
ist_err ist__form_pass(struct ist__form *f, struct ist__reader *all, struct ist_error *err);
/* Connects; all: the rest. */
ist_err ist__form_connect(struct ist__form *f, struct ist__reader *all, const struct ist__settings *settings, struct ist_error *err);

/* ---- finish.c ---- */
ist_err ist__form_finish(struct ist__form *f, struct ist_group **out, struct ist_error *err);

#endif
