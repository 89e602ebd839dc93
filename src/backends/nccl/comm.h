/* SPDX-License-Identifier: Apache-2.0
 *
 * comm.h - a communicator and the thread that does for it what may take long: an id, the set-up, an abort, the end. The
 * channel's slots use the communicator in between. Both hold this memory, which the last one frees: a thread that is stuck in
 * the library must not hold up a channel that closes.
 */
#ifndef ISTHMUS_NCCL_COMM_H
#define ISTHMUS_NCCL_COMM_H

#include "backends/nccl/lib.h"

#include <isthmus/device.h>
#include <semaphore.h>
#include <stdatomic.h>

/* What the thread is asked for, and what it has done. */
enum { NCCL_JOB_ID = 1, NCCL_JOB_JOIN = 2, NCCL_JOB_END = 4, NCCL_JOB_ABORT = 8 /* done alone: by aborted it is asked */ };

/* A SEND goes with one of these, its RECV gets it: the library itself does not notice when the two don't fit. */
struct nccl_head {
	uint64_t seq, bytes; /* each ^ NCCL_HEAD_WORD: 0 is what has not come yet */
};
#define NCCL_HEAD_WORD UINT64_C(0xe973746800000000)
enum { NCCL_HEADS = 32 /* lent together */ };

/* Pinned memory, cut into heads. */
struct nccl_pin {
	struct nccl_pin *next;
	void *addr;
};
enum { NCCL_PIN_BYTES = 64 << 10 };

struct nccl_heads {
	struct nccl_heads *next; /* while it is free: in its first word */
};

struct nccl_comm_state {
	_Atomic uint32_t refs;
	sem_t bell;               /* the thread sleeps on it; abort may ring it from a signal handler */
	pthread_mutex_t lock;     /* comm and the calls made with it; left; over */
	pthread_cond_t ended;
	const struct nccl_calls *calls;
	struct nccl_calls own;    /* where calls points: the env may go before the thread does */
	bool own_library;
	struct nccl_lib *lib;
	struct nccl_gate *gate;
	const struct ist_device *device;
	int32_t index;
	uint32_t rank, size;
	int64_t deadline;
	int timer_fd;             /* wakes whoever turns the channel */
	_Atomic ist_err aborted;
	_Atomic uint32_t asked, done; /* jobs */
	bool running;             /* the thread was started */
	bool over;                /* it has ended */
	_Atomic bool left;        /* the channel has gone without it */
	bool stuck;               /* tasks were abandoned: nothing of the device's may be freed */

	nccl_comm_t comm;         /* NULL: none, or aborted */
	struct nccl_id id;
	void *stream;
	int32_t *scratch;         /* device memory: a number for barriers, bytes for empty messages */
	struct nccl_pin *pins;
	struct nccl_heads *heads; /* free ones */
	void **events, **spare;   /* all that were made; those that nobody uses */
	uint64_t n_events, n_spare, events_room;

	ist_err failed;           /* of id or join, once that is done */
	int32_t sys;
	char text[200];
};

struct nccl_comm_state *ist__nccl_comm_new(const struct nccl_open *open, struct nccl_lib *lib, const struct ist_device *device,
	const struct ist_open *args);
/* Starts the thread where there is none, and asks it for job. */
ist_err ist__nccl_ask(struct nccl_comm_state *c, const struct ist_host *host, uint32_t job);
bool ist__nccl_did(struct nccl_comm_state *c, uint32_t job);
/* Ends all with a deadline and drops the channel's hold. IST_BUSY: what is left, in text. */
ist_err ist__nccl_comm_close(struct nccl_comm_state *c, char *text, size_t room);
/* Makes timer_fd readable after ns; 0: never. */
void ist__nccl_wake_in(const struct nccl_comm_state *c, int64_t ns);
/* "unhandled cuda error: ...": what the library says of a result. */
void ist__nccl_words(const struct nccl_calls *calls, nccl_comm_t comm, int result, char *out, size_t room);
ist_err ist__nccl_code(int result);
/* Room for NCCL_HEADS heads that are all 0; NULL: no pinned memory. */
struct nccl_head *ist__nccl_heads(struct nccl_comm_state *c);
void ist__nccl_heads_back(struct nccl_comm_state *c, struct nccl_head *heads);
ist_err ist__nccl_event(struct nccl_comm_state *c, void **out, struct ist_status *why);
void ist__nccl_event_back(struct nccl_comm_state *c, void *event);

#endif
