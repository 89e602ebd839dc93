/* SPDX-License-Identifier: Apache-2.0
 *
 * conformance_rig.h - what the checks stand on: failing by name, host services that count, ranks as threads or processes
 * that exchange wires, buffers with walls around them. Private to the suite.
 */
#ifndef ISTHMUS_TOOLS_CONFORMANCE_RIG_H
#define ISTHMUS_TOOLS_CONFORMANCE_RIG_H

#include <isthmus/backend.h>
#include <isthmus/device.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { CF_CELLS = 16, CF_RANKS_MAX = 8, CF_EXIT_FAILED = 40, CF_EXIT_SKIPPED = 41, CF_TELLING = 1, CF_TOLD = 2 };

#define CF_MS INT64_C(1000000)
#define CF_PATIENCE_NS (20000 * CF_MS) /* what should take milliseconds has hung after this */

/* Seen by all processes of a check, and by the one that waits for it. */
struct cf_shared {
	_Atomic uint32_t told, staging; /* told: 0, CF_TELLING, CF_TOLD */
	char text[512];
	char stage[256];
	_Atomic uint64_t cell[CF_CELLS]; /* for the check's own use; 0 at its start */
	/* facts, from the first check */
	uint64_t native, mem, traits, max_ops;
	uint32_t usable;
	uint32_t devices;                /* of the device that is lent to the backend; 0: none is */
	uint32_t size_ok[CF_RANKS_MAX + 1]; /* open takes a group of that size */
	char reason[256];
	char refusal[256];                  /* what it said where it takes no group of two */
};

struct cf {
	const struct ist_backend *b;
	const struct ist_device *d;
	const char *options;
	struct cf_shared *shared;
	struct ist_host host;
	_Atomic int64_t blocks, bytes, threads; /* lent to the plug-in now */
	_Atomic uint64_t allocs;
	pthread_mutex_t lock;                   /* kept */
	struct cf_kept *kept;
};

/* Where buffers lie: the host's memory where the plug-in takes it; else they are said to be d's, and are pinned by it where it can
 * do that: the suite reads and writes them as its own. */
uint32_t cf_mem(const struct cf *t);

void cf_fail(struct cf *t, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));
void cf_skip(struct cf *t, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));
void cf_stage(struct cf *t, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* what a hang or crash was in */
#define CF_CHECK(t, what, ...)            \
	do {                              \
		if (!(what))              \
			cf_fail(t, __VA_ARGS__); \
	} while (0)

void cf_init(struct cf *t, const struct ist_backend *b, const struct ist_device *d, const char *options, struct cf_shared *shared);
int64_t cf_now(void);
void cf_pause_us(uint32_t us);
bool cf_known(ist_err e); /* in error.h */
const char *cf_name(ist_err e);
uint32_t cf_open_fds(void);
uint32_t cf_threads(void);
uint32_t cf_maps(void);

/* ---- ranks ---- */

struct cf_rank {
	struct cf *t;
	uint32_t rank, n;
	int hub;                 /* socket to whoever passes wires around */
	uint64_t generation, seq;
	struct ist_chan *chan;
	const char *options;
};

enum cf_how { CF_THREADS = 1, CF_PROCESSES = 2 };

/* Runs body for ranks 0 to n - 1 at the same time; each has a connected channel, which is closed after it. */
void cf_ranks(struct cf *t, uint32_t n, enum cf_how how, void (*body)(struct cf_rank *r));
/* The same, with no channel opened. */
void cf_bare_ranks(struct cf *t, uint32_t n, enum cf_how how, void (*body)(struct cf_rank *r));
/* How many ranks a check of two uses: 2, or 1 for a backend that takes no more. */
uint32_t cf_pair(struct cf *t);
/* Skips the check unless a group of n is possible. */
void cf_need(struct cf *t, uint32_t n);

/* Each gives bytes and descriptors and gets everybody's; what comes is the receiver's own. Also a barrier. */
struct cf_wires {
	struct ist_wire all[CF_RANKS_MAX];
	int32_t fds[CF_RANKS_MAX][8];
};
void cf_exchange(struct cf_rank *r, const struct ist_wire *mine, struct cf_wires *out);
void cf_wires_free(struct cf_wires *w, uint32_t n);
void cf_barrier(struct cf_rank *r);

void cf_status(struct ist_status *st);
struct ist_open cf_open_args(const struct cf_rank *r);
void cf_join(struct cf_rank *r);  /* open, offer, exchange, connect */
void cf_leave(struct cf_rank *r); /* close */

/* Whose memory this rank's buffers are: -1 of the host, else ranks take turns over the devices that there are. */
int32_t cf_device(const struct cf_rank *r);
uint32_t cf_next(const struct cf_rank *r);
uint32_t cf_prev(const struct cf_rank *r);

/* ---- operations ---- */

struct ist_op cf_send(uint32_t peer, uint64_t seq, const void *addr, uint64_t bytes);
struct ist_op cf_recv(uint32_t peer, uint64_t seq, void *addr, uint64_t bytes);
/* start that must succeed; BUSY is waited out. */
struct ist_task *cf_start(struct cf_rank *r, const struct ist_op *ops, uint64_t n);
ist_err cf_try_start(struct cf_rank *r, const struct ist_op *ops, uint64_t n, struct ist_task **out, struct ist_status *st);
void cf_progress(struct cf_rank *r, struct ist_progress *out);
/* Progress once and rest a little if nothing is to be done. */
void cf_turn(struct cf_rank *r);
/* Drives the channel until the task has ended and returns its result, st filled. A failure is answered with an abort. */
ist_err cf_finish(struct cf_rank *r, struct ist_task *task, struct ist_status *st);
/* cf_finish that must end well, and task_free. */
void cf_done(struct cf_rank *r, struct ist_task *task);
/* One exchange around the ring, of bytes each way, with the content verified. */
void cf_ring(struct cf_rank *r, uint64_t bytes, uint32_t skew);

/* ---- buffers ---- */

struct cf_buf {
	uint8_t *addr;
	uint64_t bytes;
	uint8_t *base;
	const struct ist_device *pinned; /* whose it is; NULL: the C library's */
};
/* skew: how far off a 64-byte boundary. Filled with a byte that no pattern is likely to keep. */
struct cf_buf cf_buf_new(struct cf *t, uint64_t bytes, uint32_t skew);
void cf_buf_free(struct cf_buf *b);
void cf_fill(void *addr, uint64_t bytes, uint64_t seed);
/* Index of the first byte that is not the pattern's; UINT64_MAX: all are. */
uint64_t cf_differs(const void *addr, uint64_t bytes, uint64_t seed);
bool cf_walls_stand(const struct cf_buf *b);

/* ---- checks, by theme ---- */

struct cf_entry {
	const char *name;
	void (*run)(struct cf *t);
	uint32_t guard_s; /* 0: 60 */
};
extern const struct cf_entry cf_shape_checks[], cf_move_checks[], cf_end_checks[], cf_native_checks[], cf_device_checks[];
void cf_facts(struct cf *t);

#endif
