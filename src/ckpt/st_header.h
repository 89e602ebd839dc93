/* SPDX-License-Identifier: Apache-2.0
 *
 * st_header.h - the JSON of a safetensors header. Private to safetensors.c.
 */
#ifndef ISTHMUS_CKPT_ST_HEADER_H
#define ISTHMUS_CKPT_ST_HEADER_H

#include "ckpt/safetensors.h"

struct ist__st_header {
	struct ist__arena *arena;
	const struct ist__bytes_source *source;
	uint64_t at, left;       /* the JSON in the file */
	uint64_t header_bytes;   /* where the data begin */

	struct ist__item *items; /* in the order of the header, also after an error; freed by the caller */
	uint64_t n, room;
	bool cut;                /* the JSON was sound and ended too early */
	bool nothing;            /* not even its first byte was right */
	struct ist_error *err;   /* the reader's, while it reads */
	bool read_failed;
};

ist_err ist__st_header_read(struct ist__st_header *h, struct ist_error *err);

#endif
