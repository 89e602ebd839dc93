/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn.h - child processes that do not outlive us. Each has a process group of its own, so that what it starts ends with
 * it; a keeper process ends the groups when we are killed outright.
 */
#ifndef ISTHMUS_TOOL_SPAWN_H
#define ISTHMUS_TOOL_SPAWN_H

#include "cli.h"

#include <sys/types.h>

struct child {
	char **argv;
	char **env;       /* whole environment, ends in NULL */
	pid_t pid;        /* 0: not started */
	int status;       /* exit status, 128+n when ended by signal n */
	bool ended;
	int64_t forget_ns; /* from when on its group is not ours to signal */
};

/* environ, less what set replaces, plus set ("NAME=value", ends in NULL). To be freed; its strings are lent. */
char **spawn_env(char *const *set);
/* For who has something to tidy up: from now on the signals that end a program wait for spawn_all, or until they are asked
 * for. Children are not touched by it. */
void spawn_hold_signals(void);
/* The first of them that came, 0: none. */
int spawn_held_signal(void);
/* Starts all and waits for all. Signals are passed on. When one fails the others, which mostly fail by themselves and can
 * say why, are ended after last_words_ns. Returns 0, the first failed
 * child's status, 128+n after signal n, or 124 when the deadline passed. */
int spawn_all(const struct cli *cli, struct child *children, uint32_t n, int64_t last_words_ns);

#endif
