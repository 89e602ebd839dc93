/* SPDX-License-Identifier: Apache-2.0
 *
 * make.h - writes a layout as a folder of safetensors files. demo and bench make their checkpoints with it too.
 */
#ifndef ISTHMUS_TOOL_MAKE_H
#define ISTHMUS_TOOL_MAKE_H

#include "cli.h"
#include "layout.h"

/* dir must not exist or be empty. Written beside it, then renamed. Returns an exit status, its error already told. */
int make_checkpoint(const struct cli *cli, const char *dir, struct layout *layout, uint64_t seed);

/* Qwen3-0.6B cut to one layer, about 340 MB: what demo and bench use where none is given. */
int make_small(const struct cli *cli, const char *dir);

#endif
