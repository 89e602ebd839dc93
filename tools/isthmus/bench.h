/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.h - measuring: every sample starts behind a barrier and is the time of the slowest rank, so that rates are bytes
 * over one common stretch of wall time. Limits are measured among the same ranks: which way is best before the rows, how
 * fast it is beside each of their samples, since what a machine's memory moves in a second changes from minute to minute.
 */
#ifndef ISTHMUS_TOOL_BENCH_H
#define ISTHMUS_TOOL_BENCH_H

#include "session.h"

#define BENCH_ARENA (UINT64_C(256) << 20) /* far more than the caches: a piece of it that comes round again is cold */

struct bench;

/* What a broadcast can't beat, ready to be measured once more. */
struct bench_limit {
	int (*sample)(struct bench *b, void *arg, double *gbps);
	void (*close)(void *arg);
	void *arg;
};

struct bench {
	struct cli *cli;
	struct session s;
	uint32_t repeat;
	json_t *rows;           /* rank 0 fills them; the others keep theirs empty */
	json_t *machine;
	double limit_gbps;      /* payload to every other rank at once, at best (bench_limit); 0: not measured */
	struct bench_limit limit; /* sample NULL: none */
};

struct bench_row {
	const char *name;
	uint64_t bytes;         /* payload of one sample; 0: no rate */
	uint32_t inner;         /* times the thing is done in a sample */
	double limit_gbps;      /* 0: none */
	uint32_t warm;          /* samples that are not counted; 0: one */
	bool limited;           /* by b->limit, measured beside each sample */
	int (*once)(struct bench *b, void *arg); /* an exit status, error told */
	void *arg;
};

/* Seconds of each sample, and when it began (CLOCK_MONOTONIC), both as the slowest rank and rank 0 have it. */
struct bench_samples {
	double *seconds, *at;
	double *limits;         /* GB/s, measured beside each; may be NULL */
	uint32_t n, inner;
};

int bench_measure(struct bench *b, const struct bench_row *row);
/* One sample outside of any row. */
int bench_sample(struct bench *b, const struct bench_row *row, double *seconds);
/* A row from samples that were taken otherwise (already those of the slowest rank). at may be NULL. */
void bench_add(struct bench *b, const char *name, uint64_t bytes, const struct bench_samples *samples, double limit_gbps);
/* A row of one sample. */
void bench_add_one(struct bench *b, const char *name, uint64_t bytes, double seconds);
int bench_slowest(struct bench *b, double mine, double *out);
int bench_barrier(struct bench *b);
/* For what one process does alone, where no operation of a group ends it: EXIT_DONE until a signal comes or time is over. */
int bench_goes_on(struct bench *b);
/* The same bytes from every rank, in order of rank; *out is freed with ist_blobs_free. */
int bench_tell(struct bench *b, const void *addr, uint64_t bytes, struct ist_blob *out);
void *bench_buffer(uint64_t bytes); /* touched, 4 KiB aligned; free() */

/* Fills limit_gbps and limit for a broadcast from rank 0: through memory where all ranks share it, else over sockets. */
int bench_limit(struct bench *b);
/* The same on devices: the first n_sources ranks bring memory of the host onto theirs, or (from_host false) the others copy out of
 * theirs. GB/s of all payload, or of what each receiver gets. */
int bench_device_limit(struct bench *b, uint32_t n_sources, bool from_host);
void bench_limit_end(struct bench *b);
/* Both in GB/s of payload at each receiver; 0: could not be measured. What was found is noted in b->machine. */
int bench_memory_limit(struct bench *b, double *out);
int bench_socket_limit(struct bench *b, double *out);
/* Beside what this run has measured: the peers of --peers, as far as they are installed (bench/install). */
int bench_peers(struct bench *b);
/* Before anything is measured: are they listed? */
int bench_peers_check(const struct cli *cli);

int bench_group(struct bench *b);
int bench_barriers(struct bench *b);
int bench_objects(struct bench *b);
int bench_broadcast(struct bench *b);
int bench_gather(struct bench *b);
int bench_update(struct bench *b);
int bench_load(struct bench *b); /* needs no group */
struct ist_checkpoint;
/* Its rows of loads into each tensor's place. limit: GB/s of the best other way; on a device a limit of its own is measured. */
int bench_load_into(struct bench *b, struct ist_checkpoint *ck, double limit);

#endif
