/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors.h - one file of the safetensors format: its header is read and checked in full, its data are not touched.
 * What the reference reader (0.8) takes is taken; stricter than it on purpose: names that are equal after unescaping,
 * control characters in names, numbers above 2^53, more than 16 dimensions.
 */
#ifndef ISTHMUS_CKPT_SAFETENSORS_H
#define ISTHMUS_CKPT_SAFETENSORS_H

#include "ckpt/manifest.h"

#define IST__HEADER_BYTES_MAX UINT64_C(100000000) /* as the reference reader has it */

/* Where the bytes come from: all of [offset, offset + bytes) or false, with err filled. */
struct ist__bytes_source {
	void *ctx;
	bool (*read)(void *ctx, uint64_t offset, void *to, uint64_t bytes, struct ist_error *err);
	uint64_t bytes;      /* of the whole file */
	const char *name;    /* for messages */
};

struct ist__st_args {
	uint64_t header_bytes_max; /* 0: IST__HEADER_BYTES_MAX */
	bool allow_trailing;
};

/* Sorted by offset, then bytes, then name. Offsets are those in the file. Names and shapes lie in the arena. */
struct ist__st_file {
	struct ist__item *tensors; /* freed with ist__free */
	uint64_t n;
	uint64_t header_bytes;     /* with the 8 of its length */
	uint64_t data_end;         /* less than the file only with allow_trailing */
};

ist_err ist__safetensors_read(struct ist__arena *arena, const struct ist__bytes_source *source, const struct ist__st_args *args,
	struct ist__st_file *out, struct ist_error *err);

/* The header of one file that holds all tensors of m packed in manifest order, an alias as a copy of its own, padded to
 * a multiple of 8. offsets: room for one for each item of m, filled with the tensor's offset in the file; *out_bytes is
 * the whole file's size. w->bad after it: no memory. IST_OVERFLOW where the sum needs more than 63 bits. */
ist_err ist__safetensors_header(
	const struct ist__manifest *m, struct ist__writer *w, uint64_t *offsets, uint64_t *out_bytes, struct ist_error *err);

#endif
