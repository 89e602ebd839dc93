/* SPDX-License-Identifier: Apache-2.0
 *
 * group.h - a group inside: its members, its mesh of control connections, its line. One lock guards what the loop's
 * thread and the users' threads share; it is never held around a call into the line, the backend or a user's code.
 *
 * The mesh. Member r is linked with r +- 1, r +- 2, r +- 4, ... (modulo size): O(log n) connections each. A barrier, a
 * broadcast and a gather use exactly these edges; a message to anybody else is passed on by the neighbour nearest to
 * him; a loss or an abort is flooded. Each link carries heartbeats, and neighbours time each other.
 */
#ifndef ISTHMUS_GROUP_GROUP_H
#define ISTHMUS_GROUP_GROUP_H

#include "base/tally.h"
#include "coll/line.h"
#include "group/board.h"
#include "group/card.h"
#include "group/endpoint.h"
#include "group/life.h"
#include "net/msg.h"

struct ist__lease;

/* SILENT is lost too, but may live: frozen, or on the other side of a cut. */
/* SILENT: lost for its silence. What a vote finds out of the others that were lost: DIED for certain, CUT: it may live. */
enum ist__gone { IST__HERE_STILL = 0, IST__GONE_LOST = 1, IST__GONE_LEFT = 2, IST__GONE_SILENT = 3, IST__GONE_DIED = 4, IST__GONE_CUT = 5 };

enum ist__called { IST__CALLED_ABORT = 1, IST__CALLED_LOOK = 2 };

struct ist__member {
	struct ist__card card;
	uint32_t host;        /* rank of the first member of its host */
	uint32_t slot;        /* in that host's life segment */
};

struct ist__link {
	struct ist__group *group;
	struct ist__conn *conn; /* NULL: ended; under the lock */
	uint32_t rank;
	int64_t sent;           /* when a heartbeat last went out */
	struct ist__msg *partials;
};

struct ist__print { /* fingerprints of operation seq: ours, and what neighbours sent; see check.c */
	uint64_t seq;
	bool used, entered;
	uint32_t got;       /* bit k: round k came */
	uint32_t sent;      /* rounds sent so far */
	uint8_t ours[IST__PRINT_BYTES];
	uint8_t theirs[32][IST__PRINT_BYTES];
};
enum { IST__PRINTS = 512 };

/* What members answered to "how far are you?". */
struct ist__here {
	uint64_t round;
	uint64_t op, coll; /* operations entered so far */
};

/* What a member wants the others to know, in words of its user's own. */
struct ist__mark {
	uint64_t word[IST_MARK_WORDS];
	bool known;
};

/* A split that was tried: see split.c. */
enum { IST__TRIES = 8 };
struct ist__try {
	uint64_t key;
	uint32_t ours, theirs; /* attempts begun here; the one that a member failed in */
	uint32_t from;         /* that member */
	ist_err code;
	char detail[256], next[160];
};
struct ist__attempt {
	uint64_t key;
	uint32_t n;
};

struct ist__group {
	struct ist_env *env;
	struct ist__tally *tally;      /* counts what ctx gives: all that lives as long as the group */
	const struct ist__ctx *ctx;
	struct ist__loop *loop;
	struct ist__ep *ep;
	struct ist__group *next, **link_in; /* of the env */
	struct ist__groups *groups;    /* the env's, once published */
	uint32_t refs;

	uint32_t rank, size, rounds;   /* rounds: ceil(log2(size)) */
	uint64_t generation;
	uint8_t key[IST__GROUP_KEY];
	char *name, *backend_name, *backend_options;
	struct ist__member *members;   /* [size] */
	int64_t timeout_ns, no_progress_ns;
	uint64_t bucket_bytes;
	uint32_t proto, n_hosts, n_same_host, shm_pairs, tcp_pairs;
	uint32_t mem;                  /* as in struct ist_group_info */
	bool views_alone;
	uint64_t features;
	const struct ist__admitted *backend;
	struct ist__line *line;
	struct ist__life *life;
	struct ist__vigil *vigil;
	uint64_t life_memory, life_shared; /* what it takes */
	struct ist__lease *lease;
	struct ist__expect expect;     /* late claimants, on rank 0 */
	struct ist__timer tick;
	int64_t ticked_at, awake_since; /* loop: the last tick; when this process last went on after it had stood still */
	uint32_t glance;               /* loop: whose sign of life is looked at next, of many */

	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct ist__link *links;       /* [n_links]; fixed after forming */
	uint32_t n_links;
	int32_t *link_of;              /* [size]: index in links, or -1 */
	uint8_t *gone;                 /* [size], enum ist__gone */
	bool leaving, closed;
	int called;                    /* atomic, enum ist__called: what the loop should do */
	struct ist_error *broken;      /* what ended the group; NULL: alive. It lies in broken_room, since memory may be what ended it */
	struct ist_error broken_room;
	bool starved;                  /* a link ended for want of memory */
	ist_err broken_code;
	struct ist__msg *arrived, **arrived_last;
	uint32_t waiters;              /* threads inside an object operation */
	pthread_mutex_t op_lock;       /* one object operation at a time */
	uint64_t op_seq;               /* of the one at hand */
	uint16_t op_type, prev_type, last_type; /* op: 0 between operations; prev: the newest; last: the one before it */
	uint32_t op_root, prev_root, last_root;
	uint64_t *p2p_out, *p2p_in;    /* [size] */
	uint64_t coll_entered;         /* operations of the line that this member has entered */
	struct ist__print *prints;     /* [IST__PRINTS]; NULL where there is a board */
	struct ist__desk *board;       /* [size], in life's memory; NULL: none. See board.h */
	uint8_t *sheets;               /* [size][2], behind the board; NULL: none. See sheets.c */
	uint64_t sheets_used;          /* operations that had one; who is in one */
	uint64_t *ops_compared;        /* [size]: byte-string operations of each that were compared with ours; who is in one */
	uint64_t *compared;            /* [size]: prints of each that were compared with ours; the line's */
	uint32_t patience;             /* looks at the board before the CPU is given away */
	struct ist__here *here;        /* [size] */
	struct ist__mark *marks;       /* [size]; ours too: see marks.c */
	uint64_t messages;             /* of the mesh, sent by this member, heartbeats apart */
	uint64_t *who_seen;            /* [size]: last round of each asker */
	uint64_t who_round;
	/* votes: see decide.c */
	uint64_t held;                 /* the last vote known to have got yes from all */
	uint64_t frozen;               /* the vote in which this member saw a loss and holds nothing; 0: none */
	uint8_t *answers;              /* [size]: 1 answered "nothing" in the vote at hand */
	uint64_t answers_vote;
	bool given_up;                 /* the others have told that they lost this member */
	struct ist__try tries[IST__TRIES];
	uint32_t next_try;
	int64_t left_since;            /* when the first member left, for operations that it leaves hanging */
	uint64_t moved_seen;
};

struct ist_group {
	struct ist__handle handle;
	struct ist__group *impl;
};

/* ---- group.c ---- */
struct ist__groups; /* the env's */
ist_err ist__groups_get(struct ist_env *env, struct ist__groups **out, struct ist_error *err);
struct ist__keeper *ist__groups_keeper(struct ist__groups *groups);
void ist__groups_form_began(struct ist__groups *groups, struct ist_req *req);
void ist__groups_form_ended(struct ist__groups *groups, struct ist_req *req);
/* Makes the value that a forming fills in; free with ist__group_unref. */
struct ist__group *ist__group_make(struct ist__ep *ep, uint32_t size, struct ist_error *err);
void ist__group_unref(struct ist__group *g);
/* Adds a complete one to the env, starts its clock, and gives the handle. */
ist_err ist__group_publish(struct ist__group *g, struct ist_group **out, struct ist_error *err);
/* Leaves: says LEFT unless the group is broken, ends line and links. Not on the loop's thread. */
void ist__group_close(struct ist__group *g);
/* Has the loop do it soon. Any thread, a signal handler too. */
void ist__group_call(struct ist__group *g, int what);
/* Live, or BAD_HANDLE. Held until ist__group_unref. */
ist_err ist__group_use(struct ist_group *handle, const char *op, struct ist__group **out, struct ist_error *err);

/* ---- mesh.c: loop's thread unless said otherwise ---- */
extern const struct ist__conn_ops ist__link_ops;
/* Neighbours of rank in a group of size; returns how many (at most 64). */
uint32_t ist__mesh_neighbours(uint32_t rank, uint32_t size, uint32_t *out);
void ist__mesh_start(struct ist__group *g);
void ist__mesh_stop(struct ist__group *g);
/* Looks who of this host is dead. */
void ist__mesh_look(struct ist__group *g);
/* It is broken, or all others have left or are lost: nothing can come of it any more. Takes the lock. */
bool ist__mesh_is_over(struct ist__group *g);
/* Any thread. Ends the group with err, here and (flood) on all members. The first call counts. */
void ist__mesh_break(struct ist__group *g, const struct ist_error *err, bool flood);
/* Waits, at most 100 ms, until the group has ended or rank is known to be gone: how. Not on the loop's thread. */
enum ist__gone ist__mesh_await_news(struct ist__group *g, uint32_t rank);
/* A member is gone. */
void ist__mesh_lost(struct ist__group *g, uint32_t rank, const struct ist_error *err, bool flood);
/* Any thread, lock held: sends a message towards head->to. False: no way there. */
bool ist__mesh_send(struct ist__group *g, const struct ist__msg *head, const void *body, uint64_t bytes);
bool ist__mesh_starved(struct ist__group *g, uint32_t to); /* why it could not: no memory for the frame */
uint64_t ist__mesh_queued(struct ist__group *g, uint32_t to); /* bytes that wait on the way there; lock held */
/* Any thread, lock held: to all neighbours but one (size: to all). */
void ist__mesh_flood(struct ist__group *g, uint16_t type, uint16_t flags, uint64_t seq, uint32_t from, const void *body, uint64_t bytes,
	uint32_t but);
/* Lock held: the error that ended the group goes to err; IST_OK when it lives. */
ist_err ist__group_broken(struct ist__group *g, struct ist_error *err);
/* Any thread, lock held and let go meanwhile: asks all members how far they are. Waits until all have answered that are
 * not known to be gone, at most for_ns. An answer has g->who_round as its round. */
void ist__mesh_ask(struct ist__group *g, int64_t for_ns);
/* Any thread, no lock: asks all members how far they are and adds those who are behind to err (at most 600 ms). */
void ist__mesh_name_absent(struct ist__group *g, uint64_t op, uint64_t coll, struct ist_error *err);

/* ---- given_up.c ---- */
/* The others take this member, rank self, for lost: err says so, in their words, and becomes EVICTED. */
void ist__given_up(struct ist_error *err, uint32_t self, const char *op);
/* The same for an error of others that is such a loss; EVICTED of another is its loss. False: it is not this member's. */
bool ist__hear_loss(struct ist_error *err, uint32_t self, const char *op);
/* Rank tells of err, which happened to it: it is named too, unless the error is that others are lost or late. */
void ist__fail_told_by(struct ist_error *err, uint32_t rank);

/* ---- marks.c: lock held ---- */
/* Body of PING and HERE: how far this member is, and its mark. */
enum { IST__FAR_BYTES = 16 + 8 * IST_MARK_WORDS };
void ist__mark_put(const struct ist__group *g, uint8_t body[IST__FAR_BYTES]);
void ist__mark_take(struct ist__group *g, uint32_t from, const uint8_t *body, uint64_t bytes);

/* ---- check.c ---- */
/* Room for what members without a board tell each other. */
ist_err ist__check_prepare(struct ist__group *g, struct ist_error *err);
void ist__check_entered(void *group, uint64_t seq, const uint8_t print[IST__PRINT_BYTES]);
ist_err ist__check_compare(void *group, bool asleep, uint64_t *agreed, struct ist_error *err);
uint32_t ist__check_absent(void *group, uint64_t seq, uint32_t *ranks, uint32_t room);
void ist__check_take(struct ist__group *g, const struct ist__msg *msg); /* loop's thread, no lock */

/* ---- objects.c ---- */
/* Lock held: a message of an object operation has come. The caller wakes who waits, after the lock. */
void ist__objects_take(struct ist__group *g, struct ist__msg *msg);
/* Lock held: the first message of that type, sequence and sender, taken out; NULL: not here. */
struct ist__msg *ist__objects_find(struct ist__group *g, uint16_t type, uint64_t seq, uint32_t from);
/* Waits for it. No lock held. */
ist_err ist__objects_recv(struct ist__group *g, uint16_t type, uint64_t seq, uint32_t from, int64_t deadline, struct ist__msg **out,
	struct ist_error *err);
ist_err ist__objects_send(struct ist__group *g, uint16_t type, uint64_t seq, uint32_t to, const void *addr, uint64_t bytes, struct ist_error *err);
/* Bytes as a blob of their own. */
ist_err ist__objects_blob(struct ist__group *g, const void *addr, uint64_t bytes, struct ist_blob *out, struct ist_error *err);
/* With a board: waits until all have entered the operation at hand. */
ist_err ist__objects_await_all(struct ist__group *g, uint16_t type, int64_t deadline, struct ist_error *err);
/* An operation that has sheets is entered by its first all-gather, not by this. */
ist_err ist__objects_begin(struct ist__group *g, const char *op, uint16_t type, uint32_t root, uint64_t *seq, struct ist_error *err);
void ist__objects_end(struct ist__group *g);
/* The end of a vote. */
ist_err ist__objects_barrier(struct ist__group *g, uint16_t type, uint64_t seq, int64_t deadline, struct ist_error *err);
void ist__objects_drop(struct ist__group *g, struct ist_blob *blobs, uint64_t n);

/* ---- gathers.c ---- */
/* Parts of an operation that was begun. have, is: [size], zeroed; the blobs are freed with ist__objects_drop. */
ist_err ist__objects_all_gather(struct ist__group *g, uint16_t type, uint64_t seq, const void *addr, uint64_t bytes, int64_t deadline,
	struct ist_blob *have, bool *is, struct ist_error *err);
ist_err ist__objects_gather(struct ist__group *g, uint64_t seq, const void *addr, uint64_t bytes, uint32_t root, int64_t deadline,
	struct ist_blob *have, bool *is, struct ist_error *err);

/* ---- decide.c ---- */
void ist__decide_take(struct ist__group *g, struct ist__msg *msg); /* loop's thread, lock held; the message stays the caller's */

/* ---- decide_alive.c ---- */
/* Is that lost member dead for certain? Takes until then at most; no lock held. */
bool ist__decide_died(struct ist__group *g, uint32_t rank, int64_t until);

/* ---- lane.c ---- */
/* A neighbour hands an end of a pair of sockets over. Loop's thread; the frame is taken. */
void ist__lane_take(struct ist__group *g, struct ist__conn *conn, struct ist__frame *frame);

/* ---- form.c ---- */
struct ist__form;
/* What every way of forming needs. */
struct ist__form_args {
	struct ist__ep *ep;
	const struct ist_group_args *args;  /* copied */
	const struct ist__card *cards;      /* addresses known beforehand, [size]; NULL: meet */
	const char *parent_backend;         /* for a split */
	struct ist__group *parent;          /* for a split, and by rank who its members are there: lent until the request is done; NULL */
	const uint32_t *parent_ranks;
	struct ist__attempt attempt;        /* for a split */
	const uint8_t *salt;                /* 16 bytes that belong to the key (a split: parent's generation); NULL */
	bool here;                          /* by the calling thread, which waits anyway; else by one of the library's */
};
ist_err ist__form_start(const struct ist__form_args *args, struct ist_req **out, struct ist_error *err);

/* ---- split.c: any thread ---- */
/* An attempt at this list of parent's ranks begins; who fails in it tells the others of the list why, where only it can know. */
struct ist__attempt ist__split_begin(struct ist__group *g, const char *name, const uint32_t *ranks, uint32_t n);
void ist__split_failed(struct ist__group *g, const struct ist__attempt *a, const uint32_t *ranks, uint32_t n, uint32_t mine, const struct ist_error *err);
void ist__split_take(struct ist__group *g, const struct ist__msg *m);
/* Has somebody said that he can't take part? */
ist_err ist__split_look(struct ist__group *g, const struct ist__attempt *a, const uint32_t *ranks, uint32_t n, struct ist_error *err);

/* ---- lease.c ---- */
struct ist__rdv;
/* Takes over the connection or the lock by which rank 0's place is held. NULL: no memory, nothing is told then. */
struct ist__lease *ist__lease_new(struct ist__group *g, struct ist__rdv *rdv);
void ist__lease_tell(struct ist__lease *lease, const char *state, uint64_t version, uint64_t to, uint64_t serves);
void ist__lease_free(struct ist__lease *lease);

#endif
