/* SPDX-License-Identifier: Apache-2.0
 *
 * signals.h - SIGINT, SIGTERM and SIGHUP end a call in good order. One thread waits for them; nothing runs in a handler.
 *
 * The first one aborts the group under way (the peers are told who and why) and lets the verb clean up. The second
 * shortens the wait for that. When even then the verb hasn't come back the process ends where it stands.
 */
#ifndef ISTHMUS_TOOL_SIGNALS_H
#define ISTHMUS_TOOL_SIGNALS_H

#include "cli.h"

/* Before any other thread is made: they inherit the blocked signals. */
int signals_start(const struct cli *cli);
/* What the first signal ends. NULL, NULL: nothing; returns only when the watcher is no longer inside the old ones. */
void signals_ends(struct ist_group *group, struct ist_req *req);
int signals_got(void); /* the first one, 0: none */
/* Waits until a signal comes or the time is over (negative: for ever). Returns signals_got(). */
int signals_wait(int64_t timeout_ns);
/* status, or 128+n when a signal came. */
int signals_status(int status);
/* In a child between fork and exec: the signals as they were. */
void signals_restore(void);

#endif
