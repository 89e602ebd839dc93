/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch.h - a folder for demo and bench, in memory where that has room, which is gone afterwards.
 */
#ifndef ISTHMUS_TOOL_SCRATCH_H
#define ISTHMUS_TOOL_SCRATCH_H

#include "cli.h"

struct scratch {
	char path[4096]; /* "": none */
};

int scratch_open(const struct cli *cli, struct scratch *out, uint64_t bytes);
void scratch_close(struct scratch *scratch);

#endif
