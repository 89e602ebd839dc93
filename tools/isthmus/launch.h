/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.h - which rank of how many a launcher made us. A launcher's variables count as one set or not at all: a rank
 * from one and a count from another is how one process comes to wait for three that never start.
 */
#ifndef ISTHMUS_TOOL_LAUNCH_H
#define ISTHMUS_TOOL_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

struct launch {
	bool found;
	uint32_t rank, size;
	const char *rank_from, *size_from; /* names of the variables */
};

typedef const char *launch_getenv(const char *name);

/* Looks at torchrun's and run's set, Open MPI's, PMI's, Slurm's, in this order; the first of which anything is set
 * counts. False: text says what is wrong with it. */
bool launch_read(launch_getenv *get, struct launch *out, char text[512]);

/* The meeting place's address from MASTER_ADDR and ISTHMUS_PORT into at. False: text says why there is none. */
bool launch_address(launch_getenv *get, char at[320], char text[512]);

#endif
