/* SPDX-License-Identifier: Apache-2.0
 *
 * index.h - an index.json: which file holds which tensor. "metadata" and whatever else it says are not believed.
 */
#ifndef ISTHMUS_CKPT_INDEX_H
#define ISTHMUS_CKPT_INDEX_H

#include "base/arena.h"
#include "ckpt/safetensors.h"

struct ist__index_row {
	const char *tensor;
	const char *file;
	bool found;
};

/* Sorted by tensor. Texts lie in the arena. */
struct ist__index {
	struct ist__index_row *rows; /* freed with ist__free */
	uint64_t n, room;
};

ist_err ist__index_read(
	struct ist__arena *arena, const struct ist__bytes_source *source, struct ist__index *out, struct ist_error *err);
/* NULL where it has no such tensor. */
struct ist__index_row *ist__index_find(const struct ist__index *index, const char *tensor);

#endif
