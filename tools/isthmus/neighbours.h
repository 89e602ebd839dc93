/* SPDX-License-Identifier: Apache-2.0
 *
 * neighbours.h - who else waits at the meeting place for a group of another name. Two sides that spell the name differently
 * wait in two rooms, and neither is at fault on its own: only somebody who looks into both can tell them.
 */
#ifndef ISTHMUS_TOOL_NEIGHBOURS_H
#define ISTHMUS_TOOL_NEIGHBOURS_H

#include "session.h"

struct neighbours {
	int64_t next_ns;   /* when to look again; 0: not yet looked */
	char text[512];    /* "at the same meeting place group "w" waits too: rank 0"; "" */
};

/* Looks when it is due, a second at most, until there was something to say. */
void neighbours_look(struct neighbours *n, const struct session *s);

#endif
