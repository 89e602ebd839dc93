/* SPDX-License-Identifier: Apache-2.0
 *
 * demo.h - a world of a member's own that is busy while weights move through another group: barriers before, during and
 * after. One thread owns it from beginning to end.
 */
#ifndef ISTHMUS_TOOL_DEMO_H
#define ISTHMUS_TOOL_DEMO_H

#include "session.h"

#include <pthread.h>
#include <stdatomic.h>

struct world {
	const char *name;
	/* Ends when every member says so: all see the same round. False: it broke, text says how. */
	bool (*round)(struct world *w, bool stop, bool *all_stop);
	bool (*open)(struct world *w);
	void (*close)(struct world *w);
	void *self;
	pthread_t thread;
	bool running;
	atomic_bool stop, ready;
	atomic_uint rounds;     /* barriers that held */
	atomic_bool broken;
	char text[256];
};

/* Starts the thread and waits for the first barriers; then it goes on by itself. */
bool world_start(struct world *w);
/* Stops it together with the other members, after some more barriers. Safe when it never started. */
bool world_stop(struct world *w);

bool world_mpi(struct world *w);  /* Open MPI's, found at run time; false: none here, text says why */
void world_own(struct world *w, struct ist_group *group);

#endif
