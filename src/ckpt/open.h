/* SPDX-License-Identifier: Apache-2.0
 *
 * open.h - opening what a path names, between checkpoint.c and open.c.
 */
#ifndef ISTHMUS_CKPT_OPEN_H
#define ISTHMUS_CKPT_OPEN_H

#include "ckpt/checkpoint.h"

struct ist__open_args {
	const char *folder;
	const char *file;          /* this one alone; NULL: the folder */
	const char *index;         /* name of the index that counts; NULL: found */
	uint64_t header_bytes_max;
	uint32_t how;              /* enum ist_read_how */
	bool weights_only, allow_trailing;
};

/* Fills b: manifest (sealed) and open files. After an error b is to be freed all the same. */
ist_err ist__checkpoint_open_body(struct ist__checkpoint_body *b, const struct ist__open_args *args, struct ist_error *err);

#endif
