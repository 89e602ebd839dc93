/* SPDX-License-Identifier: Apache-2.0
 *
 * chan.h - a channel over a communicator, and its tasks. A task goes from queued to handed over (the library may take its
 * time to put it on the stream) to issued to done; at most one of a device is handed over at a time.
 */
#ifndef ISTHMUS_NCCL_CHAN_H
#define ISTHMUS_NCCL_CHAN_H

#include "backends/nccl/comm.h"

#define NCCL_OPS (1u << IST_OP_SEND | 1u << IST_OP_RECV | 1u << IST_OP_BROADCAST | 1u << IST_OP_ALL_GATHER | 1u << IST_OP_ALL_REDUCE | \
	1u << IST_OP_REDUCE_SCATTER | 1u << IST_OP_GATHER | 1u << IST_OP_SCATTER | 1u << IST_OP_ALL_TO_ALL | 1u << IST_OP_BARRIER)
#define NCCL_NAPS (1u << IST_OP_SUSPEND | 1u << IST_OP_RESUME) /* where the library has them */

/* What members tell each other; rank 0's has the id. */
struct nccl_wire {
	uint32_t magic, version, verify, has_id;
	struct nccl_id id;
};
#define NCCL_WIRE_MAGIC 0x4c434e31u

enum nccl_step { NCCL_QUEUED, NCCL_HANDED, NCCL_RUNS, NCCL_OVER };

struct ist_task {
	struct ist_task *next, *prev; /* of the channel, oldest first */
	enum nccl_step step;
	uint32_t job;            /* offer and connect: what the thread was asked for; 0: operations */
	uint32_t state;          /* enum ist_state */
	ist_err result;
	uint32_t rank;
	int32_t sys;
	uint64_t bytes;          /* what it moves */
	void *stream, *event;    /* event: recorded behind it */
	bool on_stream;          /* a caller's */
	struct nccl_head **heads; /* pieces of NCCL_HEADS, n of them as the ops are */
	char text[200];
	uint64_t n;
	struct ist_op ops[];
};

struct nccl_options {
	char library[NCCL_TEXT];
	bool verify;
};

struct ist_chan {
	const struct ist_host *host;
	struct nccl_comm_state *c;
	struct nccl_options opt;
	struct nccl_wire mine;
	int version;             /* the least of all members' */
	bool offered, ready, suspended;
	struct ist_task *first, *last;
	uint64_t moved, ended;
	ist_err broken;          /* members disagree: the order is lost for good */
	int64_t news;            /* when something last moved */
	int64_t aborted_at, gone_at; /* seen here; and when the library had done it */
};

/* options.c */
ist_err ist__nccl_options(const char *text, struct nccl_options *out, struct ist_status *why);
/* task.c */
ist_err ist__nccl_say(struct ist_status *why, ist_err e, uint32_t rank, int32_t sys, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
struct ist_task *ist__nccl_task_new(struct ist_chan *chan, uint64_t n);
void ist__nccl_task_free(struct ist_chan *chan, struct ist_task *task);
void ist__nccl_task_fail(struct ist_chan *chan, struct ist_task *task, ist_err e, uint32_t rank, int32_t sys, const char *text);
void ist__nccl_task_end(struct ist_chan *chan, struct ist_task *task, uint32_t state);
/* ops.c: takes only what it can do. */
ist_err ist__nccl_check(const struct ist_chan *chan, const struct ist_op *op, struct ist_status *why);
bool ist__nccl_ready_heads(struct ist_chan *chan, struct ist_task *task);
/* Hands all of a task to the library; inside the gate. */
int ist__nccl_enqueue(struct ist_chan *chan, struct ist_task *task);
/* Do the RECVs that have come fit? Fails the task where one does not. */
void ist__nccl_look_heads(struct ist_chan *chan, struct ist_task *task);
/* move.c */
void ist__nccl_move(struct ist_chan *chan);
void ist__nccl_drain(struct ist_chan *chan, ist_err why);
bool ist__nccl_waits(const struct ist_chan *chan);
void ist__nccl_leave_gate(struct ist_chan *chan);

#endif
