/* SPDX-License-Identifier: Apache-2.0
 *
 * local.h - ranks on this machine: a meeting place on a port bound once, a port for the programs' own store, and the
 * processes. run, bench and demo use it.
 */
#ifndef ISTHMUS_TOOL_LOCAL_H
#define ISTHMUS_TOOL_LOCAL_H

#include "session.h"

struct local {
	struct cli *cli;
	struct session s;        /* the env of the meeting place */
	struct ist_store *store;
	char address[320];       /* HOST:PORT */
	const char *port;        /* in address */
	uint32_t master_port;
	int master_lock;         /* holds the choice of master_port among runs */
};

int local_open(struct local *l, struct cli *cli);
void local_close(struct local *l);
/* Starts argv (ends in NULL) n times with the launcher's variables and waits. */
int local_run(struct local *l, char **argv, uint32_t n);

#endif
