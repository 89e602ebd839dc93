/* SPDX-License-Identifier: Apache-2.0
 *
 * line_int.h - the inside of a line, shared by line.c (calls from outside), turn.c (one turn, and its thread), drive.c (who
 * makes the turns) and step.c (one operation).
 *
 * Who may touch what: queue, active, lent and the flags below them belong to lock; whoever has the wheel alone changes
 * active and lent, under lock, so it reads them without. An op's run belongs to the one at the wheel: that is the line's
 * thread, or a caller that waits (wheel changes hands under lock). "The thread" below is the one at the wheel. Order of
 * locks: line, then request.
 * deserted: the thread was found stuck inside the plug-in and left behind; should it come back, it returns at once and
 * touches nothing but this flag.
 */
#ifndef ISTHMUS_COLL_LINE_INT_H
#define ISTHMUS_COLL_LINE_INT_H

#include "coll/choose.h"
#include "coll/line.h"
#include "coll/takers.h"

enum {
	IST__IN_FLIGHT = 256,                       /* operations begun and not ended */
	IST__SET_WORDS = 2,                         /* of takers that lie in the operation itself */
	IST__LOOK_MS = 50,                          /* longest sleep while members are being compared: a bell may be lost */
	IST__SLICE = 256 * 1024                     /* bytes of local work between two looks at the channel */
};
#define IST__GRACE_NS (IST_NS_PER_S / 2)        /* from failed() to the line's own abort */
#define IST__ABORT_NS IST_NS_PER_S              /* from abort to the last task's end */
#define IST__STUCK_NS (IST_NS_PER_S * 6 / 5)    /* from abort until the thread itself is taken for stuck */
#define IST__CONFIRM_NS (200 * INT64_C(1000000)) /* the last of that, or of any such time, is waited for in one piece: see is_over */
#define IST__FREE_NS (2 * IST_NS_PER_S)
#define IST__NO_PROGRESS_NS (30 * IST_NS_PER_S)

enum ist__how {
	IST__PAIR,     /* one SEND or RECV of the backend */
	IST__NATIVE,   /* one operation of the backend */
	IST__COMPOSED
};

enum ist__mail { IST__MAIL_NEW = 1, IST__MAIL_STATE = 2, IST__MAIL_CANCEL = 4, IST__MAIL_RELEASE = 8, IST__MAIL_CALL = 16,
	IST__MAIL_NEWS = 32 };

enum ist__asleep { IST__AWAKE, IST__THREAD_ASLEEP, IST__DRIVER_ASLEEP };
enum ist__wheel { IST__WHEEL_FREE, IST__WHEEL_THREAD, IST__WHEEL_DRIVER };

/* One step under way. */
struct ist__leg {
	struct ist_task *task; /* NULL: nothing was to be moved, or it is over */
	bool begun, over;
};

/* A request of a line. */
struct ist__op {
	struct ist_req req; /* first */
	struct ist__line *line;
	struct ist__op *next, *prev;
	struct ist_coll_args args;
	uint64_t set[IST__SET_WORDS]; /* args.takers lies here, or where more says */
	uint64_t *more;
	void *room;            /* for bytes that come although this member does not take them */
	bool room_of_chan;     /* it is the channel's own */
	uint32_t kind;
	enum ist__how how;
	uint64_t n;
	uint64_t seq;          /* of a collective; of a pair, the number between these two */
	bool compared;         /* the group compares it */
	bool view_native;      /* the backend is asked for a view */
	bool failed;           /* a task of it has failed: no more steps */
	bool abandoned;        /* a task of it has ended so */
	uint64_t moved;        /* by the last test */
	int64_t since;         /* when that, or the steps, last changed */
	bool checked_seen;
	atomic_bool checked;
	atomic_bool cancelled; /* wanted by the user */
	atomic_bool released;  /* the user has given the view back */
	/* steps */
	const struct ist__algorithm *algorithm;
	struct ist__run run;
	uint64_t begun, done;
	uint32_t work;         /* of step begun */
	uint64_t work_at;
	struct ist__leg slots[IST__WINDOW];
};

struct ist__list {
	struct ist__op *first, *last;
	uint32_t count;
};

/* An alloc or a free on its way to the thread. */
struct ist__call {
	struct ist__call *next;
	uint64_t bytes;
	uint32_t mem;
	int32_t device;
	void *addr;            /* free: which; alloc: the outcome */
	bool is_free;
	bool over, orphan;     /* orphan: the caller did not wait, the thread frees it */
	ist_err code;
	struct ist_status status;
};

struct ist__line {
	struct ist_env *env;
	struct ist__ctx ctx;             /* a copy: a thread left behind must not look into the env */
	const struct ist_backend *ops;
	struct ist_chan *chan;
	struct ist__line_args args;
	struct ist__limits limits;
	struct ist__choice choice;
	struct ist__req_pool pool;
	pthread_t thread, reaper;
	bool started;                    /* the thread is there; under lock */
	int wake_fd;                     /* for the thread's sleep */
	int drive_fd, later_fd;          /* for a driver's; a timer for the thread's. -1: args.drive is false */
	atomic_uint holds;
	atomic_uint asleep;              /* enum ist__asleep: whom to wake for mail */
	atomic_bool deserted;
	atomic_uint mail;                /* enum ist__mail: what the thread should look at */

	pthread_mutex_t lock;
	pthread_cond_t changed;          /* calls, ends, exits, aborters */
	pthread_cond_t turn_free;        /* the thread waits for a driver to leave */
	enum ist__wheel wheel;
	bool dozing, parked;             /* the thread: asleep, and the wheel is free; waits for a driver to leave */
	struct ist__list queue, active, lent;
	struct ist__call *calls;
	struct ist_error why;            /* with aborted or failing */
	bool failing, told, aborted, stop, exited, closing; /* told: failed() was called */
	bool has_reaper;
	uint32_t aborters;               /* threads inside the plug-in's abort */
	int64_t abort_at;                /* when aborted; when to do so, with failing */
	int64_t stuck_seen, late_seen;   /* when its thread, or an operation, was first found to be over its time; 0: never */

	/* the one at the wheel's */
	bool driven;                     /* by a caller */
	int64_t drive_until, lull;       /* of the driver; since when nothing has happened, 0: something has */
	int64_t patience_ns;             /* of the lull, before the CPU is given away */
	uint32_t unsure;                 /* operations that compare has not agreed to */
	bool ending, stopping, queued;   /* its copies of aborted and stop; queue may hold something */
	bool swept;                      /* the queue was ended */
	int64_t give_up_at;              /* with ending: when tasks are left to themselves */
	int64_t suspect_at;              /* not 0: when suspect becomes the failure, if the comparison has not said more */
	struct ist_error suspect;
	uint64_t next_seq;
	uint64_t *sent, *received;       /* by peer */
	char *scratch;
	uint64_t scratch_bytes;
	struct ist__op *door;            /* begun, and not all its steps: nobody else may begin */
	uint64_t tasks;
	_Atomic uint64_t moved;          /* others only look */
	_Atomic uint64_t chan_memory, chan_shared; /* what the channel held when it was last asked; others only look */
	uint64_t ended;
	int64_t now, moved_at, looked_at;
	int64_t look_by;       /* when the clock was to be looked at next; 0: whenever */
	int64_t awake_since;   /* when the process last went on after it had stood still */
	bool busy;                       /* something happened in this turn */
	bool retry;                      /* the backend was full */
	uint32_t idle;                   /* sleeps in a row after which nothing moved */
	uint32_t hot;                    /* of these, woken at once by the channel */
};

/* line.c */
void ist__line_post(struct ist__line *line, unsigned mail);
void ist__list_add(struct ist__list *list, struct ist__op *op);
void ist__list_remove(struct ist__list *list, struct ist__op *op);
/* Keeps the first failure of a line. Any thread, no locks held. */
void ist__line_fail(struct ist__line *line, const struct ist_error *err);
/* Hands the failure to the group, once, and aborts when nobody else has done so. */
void ist__line_tell(struct ist__line *line);

/* turn.c */
void *ist__turn(void *line);
void ist__line_turn(struct ist__line *line);
/* Asks the channel what it holds. By who may call it now. */
void ist__line_look_held(struct ist__line *line);
/* The last look before sleeping; false: don't. *fd: what the backend wants to be woken by. */
bool ist__line_may_sleep(struct ist__line *line, enum ist__asleep who, int32_t *fd);

/* drive.c */
/* As ist__line_post, but leaves a moment to a caller who is about to drive. */
void ist__line_post_later(struct ist__line *line, unsigned mail);
/* Turns the line until req is done or until; returns at once where somebody else does. No locks held. */
void ist__line_drive(struct ist__line *line, struct ist_req *req, int64_t until);
void ist__line_rest(struct ist__line *line, int64_t until); /* a driver's turn brought nothing */
void ist__wheel_free(struct ist__line *line);               /* the thread, before it sleeps */
void ist__wheel_take(struct ist__line *line);               /* and after */
/* Ends an active operation; err NULL: well. On the thread. */
void ist__op_end(struct ist__line *line, struct ist__op *op, const struct ist_error *err);
/* err plus that the buffers must never be used again. */
void ist__abandon_text(struct ist_error *err, const char *backend);

/* step.c: on the thread */
void ist__op_begin(struct ist__line *line, struct ist__op *op);
void ist__op_pump(struct ist__line *line, struct ist__op *op); /* issues what can be issued; may end it */
void ist__op_look(struct ist__line *line, struct ist__op *op); /* tests its tasks */
bool ist__op_complete(const struct ist__op *op);               /* well, and agreed */
bool ist__op_quiet(const struct ist__op *op);                  /* no task of it left */
bool ist__op_issued(const struct ist__op *op);                 /* the next one may begin */

/* takers.c */
/* The operation's own copy of the set in args, without the root's bit. False: no memory. */
bool ist__op_set_takers(const struct ist__line *line, struct ist__op *op);
/* The set as the backend is told; NULL: it can't leave anybody out, all get the bytes. */
const uint64_t *ist__op_native_takers(const struct ist__line *line, const struct ist__op *op);
/* On the thread: where bytes may go that come although this member gave no room for them. left_out: none come to those who
 * do not take. False: no memory. */
bool ist__op_make_room(struct ist__line *line, struct ist__op *op, bool left_out);
/* On the thread, without locks: frees room of the channel's after a view of it was given back. */
void ist__op_free_room(struct ist__line *line, struct ist__op *op);
/* Before the request is handed back: frees what the operation keeps. keep_room: somebody may still write there. */
void ist__op_clear(struct ist__line *line, struct ist__op *op, bool keep_room);

/* late.c: on the thread. When an operation will be taken for frozen (IST__NEVER: never), and the errors. head: the
 * oldest that was begun, or NULL. err need not be set up. */
int64_t ist__op_frozen_at(const struct ist__line *line, const struct ist__op *op);
void ist__op_frozen(const struct ist__line *line, const struct ist__op *op, struct ist_error *err);
void ist__op_timeout(const struct ist__line *line, const struct ist__op *op, const struct ist__op *head, struct ist_error *err);
/* "all_reduce of 8192 bytes F32 sum" */
void ist__op_text(const struct ist__op *op, char *room, uint64_t room_bytes);

#endif
