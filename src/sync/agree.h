/* SPDX-License-Identifier: Apache-2.0
 *
 * agree.h - one exchange of short records among all members, each with "all is well" or an error in front. When one
 * member says no, all members get the same error: of those that failed, the one at the lowest bucket (digests after all
 * others), then of the lowest rank; per_rank lists them all. A member may say that it is the only one that can't go on.
 */
#ifndef ISTHMUS_SYNC_AGREE_H
#define ISTHMUS_SYNC_AGREE_H

#include "base/bytes.h"

#include <isthmus.h>

struct ist__agree {
	const struct ist__ctx *ctx;
	struct ist_group *group;
	const uint32_t *names;   /* ranks to call the members by in errors; NULL: the group's own */
	uint32_t size;
	struct ist__writer w;    /* what this member says */
	struct ist_blob *blobs;  /* what each member said */
	ist_err *leaves;         /* by member: the code of one that wants to go alone, else 0 */
	uint32_t n_leave;        /* those that do; 0 too where somebody else said no */
	bool filled;
	bool failed;             /* the last exchange did, or a member said no in it */
	bool told;               /* a member said no: all have the same error, and the group is whole */
};

ist_err ist__agree_init(struct ist__agree *a, const struct ist__ctx *ctx, struct ist_group *group, const uint32_t *names, struct ist_error *err);
void ist__agree_fini(struct ist__agree *a);

/* Begins a record; the caller then puts what it likes into a->w. mine: NULL or why this member can't go on. */
void ist__agree_begin(struct ist__agree *a, const struct ist_error *mine);
/* After it, with an error: only this member can't go on, the others may without it. */
void ist__agree_leave(struct ist__agree *a);
/* The exchange. IST_OK: everybody is well and ist__agree_reader gives the records. */
ist_err ist__agree_run(struct ist__agree *a, int64_t deadline, const char *op, struct ist_error *err);
/* A reader of what member i put; lent until the next ist__agree_begin. */
void ist__agree_reader(const struct ist__agree *a, uint32_t i, struct ist__reader *r);

#endif
