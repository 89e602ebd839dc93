/* SPDX-License-Identifier: Apache-2.0
 *
 * mem_world.h - N lines over a mem_backend in one process, with what a group does for them: prints are compared, the
 * first failure ends all. One test thread submits for all ranks.
 */
#ifndef ISTHMUS_TESTS_MEM_WORLD_H
#define ISTHMUS_TESTS_MEM_WORLD_H

#include "coll/line.h"
#include "mem_backend.h"

enum { WORLD_MAX = 8, WORLD_SEQ = 4096 };

struct world;

struct member {
	struct world *world;
	uint32_t rank;
};

struct world {
	struct ist_env *env;
	struct mem_hub *hub;
	uint32_t size;
	struct ist__line *lines[WORLD_MAX];
	struct member members[WORLD_MAX];
	pthread_mutex_t lock;
	uint8_t prints[WORLD_SEQ][WORLD_MAX][IST__PRINT_BYTES]; /* by seq modulo */
	uint32_t entered[WORLD_SEQ];                            /* bit by rank */
	uint32_t n_entered;
	bool mute;                                              /* the group never says that prints are equal */
	bool deaf;                                              /* failed() does nothing */
	uint32_t n_failed;
	struct ist_error first;
	_Atomic int64_t allocs;                                 /* of the env, ever and now */
	_Atomic int64_t live;
	_Atomic int64_t fail_at;                                /* this one fails, counted like allocs; 0: none */
};

extern bool world_drive; /* lines let those who wait turn them */

void world_env(struct world *w); /* the counting env alone */
void world_open(struct world *w, uint32_t size, const struct mem_options *options, int64_t no_progress_ns);
bool world_close(struct world *w); /* true: all lines ended in good order */

/* One operation on every rank; args by rank. */
void world_submit(struct world *w, uint32_t kind, const struct ist_coll_args *args, struct ist_req **reqs);
/* Waits for all, frees all, returns the first code that is not 0. */
ist_err world_wait(struct world *w, struct ist_req **reqs, struct ist_error *err);

#endif
