/* SPDX-License-Identifier: Apache-2.0
 *
 * outfile.h - files that are being written: room for all bytes is taken first, so that there is no surprise half way.
 */
#ifndef ISTHMUS_CKPT_OUTFILE_H
#define ISTHMUS_CKPT_OUTFILE_H

#include "ckpt/safetensors.h"
#include "ckpt/slice.h"

/* Makes fd exactly bytes long with its blocks reserved. NO_SPACE where they are not to be had. */
ist_err ist__file_reserve(int fd, uint64_t bytes, const char *name, struct ist_error *err);
ist_err ist__file_write(int fd, uint64_t offset, const void *addr, uint64_t bytes, const char *name, struct ist_error *err);

/* All tensors of a manifest as one safetensors file. */
struct ist__one_file {
	const struct ist__ctx *ctx;
	uint64_t *offsets;  /* by item: in the file */
	int fd;             /* lent */
	uint8_t *window;    /* where short runs of slices are put together; NULL: there are no slices */
};
/* Reserves the file and writes its header. */
ist_err ist__one_file_begin(struct ist__one_file *f, const struct ist__manifest *m, int fd, const char *name, struct ist_error *err);
ist_err ist__one_file_piece(const struct ist__one_file *f, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes,
	const char *name, struct ist_error *err);
/* The runs of a slice. Short ones close to each other are written together with what lies between them: one caller at a
 * time. */
ist_err ist__one_file_runs(struct ist__one_file *f, uint64_t item, const struct ist__runs *r, const void *addr, const char *name,
	struct ist_error *err);
void ist__one_file_fini(struct ist__one_file *f);

#endif
