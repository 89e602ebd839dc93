/* SPDX-License-Identifier: Apache-2.0
 *
 * sync.h - what the files of weight sync share. One thread at a time is inside a sync; only its state is read by others.
 *
 * Ranks in errors and reports are those of the group that the caller gave (names[]). After a loss with on_loss continue
 * the sync lives on in a smaller group of its own.
 */
#ifndef ISTHMUS_SYNC_SYNC_H
#define ISTHMUS_SYNC_SYNC_H

#include "base/env.h"
#include "ckpt/checkpoint.h"
#include "sync/agree.h"
#include "sync/pace.h"
#include "sync/ring.h"
#include "sync/sinks.h"
#include "sync/stage.h"
#include "sync/table.h"

#include <pthread.h>

#define IST__LABEL_ROOM 65

struct ist__source {
	struct ist_checkpoint *ck;
	struct ist__offer offer;
};

/* Digests of the version before, in the order of the table's tensors. */
struct ist__past {
	struct ist__digest *names;   /* of the names, once named */
	bool named;
	struct ist__digest *digests;
	uint8_t *known;
	uint64_t n;
	struct ist__digest whole;
	uint64_t version;            /* 0: none */
};

/* The update under way. */
struct ist__update {
	uint64_t version;
	char label[IST__LABEL_ROOM];
	bool force;
	int64_t deadline;
	uint64_t next;               /* buckets before it are delivered here */
	uint64_t moved;              /* bytes, for progress */
	int64_t progress_at;
	bool failed;                 /* this member: */
	struct ist_error why;
	bool own;                    /* and it was its sink */
	bool may_leave;              /* all know what to do with a member that goes alone: see leave.c */
	double verify_s;
};

struct ist__sync_body {
	struct ist_sync *handle;
	struct ist_env *env;
	const struct ist__ctx *ctx;
	struct ist_group *given, *group; /* group: given, or our own after a loss */
	uint32_t *names;             /* rank in group -> rank in given */
	uint32_t *ranks;             /* rank in given -> rank in group, UINT32_MAX: lost */
	uint8_t *roles;              /* rank in given -> what is known of a lost one: see regroup.c */
	uint32_t size, first_size;   /* of group, of given */
	uint32_t rank, name;         /* mine in group, in given */
	bool leaves_out;             /* in this group a broadcast costs those who do not take it nothing */
	uint64_t *takers;            /* of this update's buckets, by rank in group; room for first_size */
	bool takes;                  /* this member is one of them */
	struct ist_rank_error lost[IST_ERROR_RANKS];
	uint32_t n_lost;
	uint32_t losses;             /* times the group got smaller */
	uint64_t left_at;            /* in the update to this version the others went on without this member; 0: no */
	int64_t default_ns;

	struct ist_sync_args args;
	struct ist__source *sources;
	uint64_t n_sources, sources_room;
	struct ist__sinks sinks;
	double register_s, gather_s, plan_s;

	struct ist__agree agree;
	struct ist__ring ring;
	struct ist__stage stage;
	struct ist__pace pace;
	struct ist__table *table;    /* NULL: nothing gathered */
	bool stale;                  /* something was registered or taken away since */
	bool gathering;
	uint64_t known_version;      /* highest committed anywhere, as heard */
	/* for the table, made with it */
	struct ist__digest *leaves;  /* of what comes in and of live memory that goes out; NULL: neither */
	struct ist__digest *digests; /* item -> its digest in this update */
	uint8_t *have;               /* item -> digests[item] is known */
	uint64_t *got;               /* item -> bytes of its leaves computed here */
	struct ist__past past;
	struct ist__update up;

	pthread_mutex_t lock;        /* the state: */
	uint32_t state;              /* enum ist_state_kind */
	uint64_t version, to;
};

struct ist_sync {
	struct ist__handle handle;
	struct ist__sync_body *body;
};

/* sync.c */
void ist__sync_set_state(struct ist__sync_body *s, uint32_t state, uint64_t version, uint64_t to);
/* Turns ranks of the group into those of the caller's group. */
void ist__sync_name_ranks(const struct ist__sync_body *s, struct ist_error *err);
/* Only those of a vote's list: what a member says of itself counts in the caller's ranks already. */
void ist__sync_name_voters(const struct ist__sync_body *s, struct ist_error *err);
bool ist__sync_is_source(const struct ist__sync_body *s);
/* Shows in the group what this member is. */
void ist__sync_show_role(struct ist__sync_body *s);
/* Makes names, ranks and agree fit s->group. */
ist_err ist__sync_adopt(struct ist__sync_body *s, struct ist_error *err);

/* takers.c: makes the ring for the plan at hand. */
ist_err ist__sync_make_ring(struct ist__sync_body *s, struct ist_error *err);
/* NO_MEMORY when it is plain that the ring for the plan of t could not be made. */
ist_err ist__sync_check_ring(const struct ist__sync_body *s, const struct ist__table *t, struct ist_error *err);
/* How far the ring reaches: when the slot of bucket b is needed again, that is for bucket b + reach or a later one. */
uint8_t ist__sync_reach(const struct ist__sync_body *s);
/* Who takes the buckets, as the table says. */
void ist__sync_set_takers(struct ist__sync_body *s);

/* gather.c. When the group failed agree.failed is set and agree.told is not, and ranks in err are the group's. */
ist_err ist__sync_gather(struct ist__sync_body *s, int64_t deadline, struct ist_error *err);

/* past.c */
void ist__past_fini(const struct ist__ctx *ctx, struct ist__past *p);
/* Brings p into the order of the table's tensors. */
bool ist__past_reorder(const struct ist__ctx *ctx, struct ist__past *p, const struct ist__table *t);
/* Digest of the whole from those of the items; no memory is taken. */
void ist__past_whole(struct ist__table *t, const struct ist__digest *digests, struct ist__digest *out);
/* Counts the tensors that differ from the version before. */
uint64_t ist__past_changed(const struct ist__past *p, const struct ist__table *t, const struct ist__digest *digests);
void ist__past_keep(struct ist__past *p, const struct ist__table *t, const struct ist__digest *digests, uint64_t version,
	const struct ist__digest *whole);

/* How a step of an update ended when it did not end well. */
enum ist__end {
	IST__END_AGREED = 1, /* all members have the same error; the group is whole */
	IST__END_BROKEN = 2, /* the group failed */
	IST__END_APART = 3,  /* members go alone, as all have heard, the others without them; err names them by their ranks in the group */
	IST__END_ALONE = 4   /* this member is one of them; err is its own */
};

/* leave.c: begins this member's record of how it stands. */
void ist__sync_say(struct ist__sync_body *s);
/* The exchange of them. */
ist_err ist__sync_hear(struct ist__sync_body *s, enum ist__end *how, struct ist_error *err);
/* EVICTED where the others have left this member behind. */
ist_err ist__sync_check_left(const struct ist__sync_body *s, const char *op, struct ist_error *err);

/* run.c: moves buckets from first on; s->up.next says how far this member got. */
ist_err ist__sync_run(struct ist__sync_body *s, uint64_t first, enum ist__end *how, struct ist_error *err);
/* Takes the digests that were left for the first update. */
ist_err ist__sync_digest_late(struct ist__sync_body *s, struct ist_error *err);
/* Digests of the live tensors that this member gave. */
ist_err ist__sync_live_digests(struct ist__sync_body *s, struct ist_error *err);
/* True when this member is the giver of bucket b. */
const struct ist__offer *ist__sync_giver(const struct ist__sync_body *s, uint64_t b);
/* Remembers the first failure of this member in this update. */
void ist__sync_fail_here(struct ist__sync_body *s, const struct ist_error *why);

enum ist__step { IST__STEP_GATHER = 0, IST__STEP_START, IST__STEP_READY, IST__STEP_MOVE, IST__STEP_PROVE, IST__STEP_VOTE, IST__STEP_DONE };

struct ist__regroup {
	enum ist__step step;  /* where this member stands; then: where all go on */
	uint64_t first;       /* bucket at which all begin to move */
	enum ist__end how;    /* how it ended if not well */
	bool stuck;           /* no smaller group could be made */
};
/* regroup.c: leaves the lost behind and agrees with those that are left on where to go on. why: how the group failed. */
ist_err ist__sync_regroup(struct ist__sync_body *s, struct ist__regroup *r, const struct ist_error *why, struct ist_error *err);

/* PEER_LOST where nobody is left that has the bytes of some tensor, or that takes any; it names all that were lost. Alike on all. */
ist_err ist__sync_has_all(struct ist__sync_body *s, struct ist_error *err);

/* Members with leaves[rank in group] can be missed: the others hold all bytes, and one of them has a sink. Then they are gone. */
bool ist__sync_can_miss(struct ist__sync_body *s, const ist_err *leaves);

/* loss.c: leaves the lost behind. why: how the group failed. IST_OK: s->group is a new one, of those that are left. */
ist_err ist__sync_shrink(struct ist__sync_body *s, const struct ist_error *why, struct ist_error *err);
/* Is it an error that a smaller group may get over? */
bool ist__sync_is_loss(const struct ist__sync_body *s, ist_err code);

#endif
