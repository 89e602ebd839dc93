/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.h - measuring: every sample starts behind a barrier and is the time of the slowest rank, so that rates are bytes
 * over one common stretch of wall time.
 */
#ifndef ISTHMUS_TOOL_BENCH_H
#define ISTHMUS_TOOL_BENCH_H

#include "session.h"

struct bench {
	struct cli *cli;
	struct session s;
	uint32_t repeat;
	json_t *rows;           /* rank 0 fills them; the others keep theirs empty */
	json_t *machine;
	double copy_gbps;       /* payload that each receiver can copy while all of them copy; 0: not measured */
};

struct bench_row {
	const char *name;
	uint64_t bytes;         /* payload of one sample; 0: no rate */
	uint32_t inner;         /* times the thing is done in a sample */
	double limit_gbps;      /* 0: none */
	int (*once)(struct bench *b, void *arg); /* an exit status, error told */
	void *arg;
};

int bench_measure(struct bench *b, const struct bench_row *row);
/* A row from samples that were taken otherwise (already those of the slowest rank). */
void bench_add(struct bench *b, const char *name, uint64_t bytes, double *seconds, uint32_t n, double limit_gbps);
int bench_slowest(struct bench *b, double mine, double *out);
int bench_barrier(struct bench *b);
/* Fills copy_gbps: all ranks but the first copy bytes at once, behind a barrier. */
int bench_copy_limit(struct bench *b, uint64_t bytes);
void *bench_buffer(uint64_t bytes); /* touched, 4 KiB aligned; free() */

int bench_group(struct bench *b);
int bench_barriers(struct bench *b);
int bench_objects(struct bench *b);
int bench_broadcast(struct bench *b);
int bench_update(struct bench *b);
int bench_load(struct bench *b); /* needs no group */

#endif
