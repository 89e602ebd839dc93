/* SPDX-License-Identifier: Apache-2.0
 *
 * place.h - a name in a folder that is to become something new in one step: built beside it under ".NAME.isthmus-PID-RANDOM",
 * which its maker holds locked as long as it lives; what nobody holds is left behind by the dead, and is removed.
 */
#ifndef ISTHMUS_CKPT_PLACE_H
#define ISTHMUS_CKPT_PLACE_H

#include "base/ctx.h"

#include <isthmus/error.h>
#include <limits.h>
#include <sys/stat.h>

struct ist__place {
	const struct ist__ctx *ctx;
	char *path;              /* whole, for messages */
	char *parent_path;
	char name[NAME_MAX + 1];
	char temp[NAME_MAX + 1]; /* "" while there is none */
	int parent;              /* folder, -1: none */
	int temp_fd;             /* the temporary folder or file, locked; -1: none */
	uint32_t made;           /* folders on the way that we made, the last ones of parent_path; 0 once something is in place */
};

/* path need not exist. Its folder is made where parents says so, with all that lead to it, else it must exist. Links to
 * something are followed: what they lead to is replaced. */
ist_err ist__place_open(const struct ist__ctx *ctx, const char *path, bool parents, struct ist__place *out, struct ist_error *err);
void ist__place_fini(struct ist__place *p); /* drops what was being built, and folders made for nothing */
/* Is there something of the name? Links are not followed any more. Where that can't be seen nothing may be replaced. */
ist_err ist__place_look(const struct ist__place *p, bool *taken, struct stat *st, struct ist_error *err);
/* Removes what dead makers left beside the name. Failures are no matter: the next one tries again. */
void ist__place_sweep(const struct ist__place *p);
/* A new temporary folder (mode 0700), locked. */
ist_err ist__place_make_folder(struct ist__place *p, struct ist_error *err);
void ist__place_drop(struct ist__place *p);
/* Gives the temporary folder the mode that a new folder gets here, whatever decides it (umask, ACLs of the folder around). */
ist_err ist__place_set_mode(const struct ist__place *p, struct ist_error *err);
/* Puts the temporary in place of the name. no_replace: CONFLICT where the name is taken. What was there is removed. */
ist_err ist__place_swap(struct ist__place *p, bool no_replace, struct ist_error *err);
/* A name that nobody has, in p->temp. */
void ist__place_new_name(struct ist__place *p);

#endif
