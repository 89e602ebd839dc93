/* SPDX-License-Identifier: Apache-2.0
 *
 * load.h - opens a plug-in's file. The file is looked at before the loader sees it: a cut one would take the process
 * with it. Nothing is searched for, and what was loaded stays loaded.
 */
#ifndef ISTHMUS_PLUG_LOAD_H
#define ISTHMUS_PLUG_LOAD_H

#include "base/ctx.h"

#include <isthmus/error.h>
#include <sys/types.h>

struct ist__file_id {
	dev_t dev;
	ino_t ino;
};

/* The absolute path with links resolved, from ist__alloc, and which file it is. BAD_PLUGIN: there is no regular file. */
ist_err ist__load_find(const struct ist__ctx *ctx, const char *path, char **real, struct ist__file_id *id, struct ist_error *err);

/* Address of the function named entry in the file. BAD_PLUGIN with path and reason. */
ist_err ist__load_entry(const char *real, const char *entry, void **out, struct ist_error *err);

#endif
