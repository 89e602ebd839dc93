/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.h - tensor names and shapes of known models, and of plain rows of tensors. Nothing here touches a file.
 */
#ifndef ISTHMUS_TOOL_LAYOUT_H
#define ISTHMUS_TOOL_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

struct model {
	const char *name, *class_name, *type;
	uint64_t hidden, layers, heads, kv_heads, head_dim, inter, vocab;
	uint64_t experts, experts_per_token, moe_inter; /* 0: dense */
	bool tied;
};

struct layout_tensor {
	char *name;
	uint32_t rank;
	uint64_t shape[2];
	const char *dtype;
	uint64_t bytes;
	uint64_t file, offset; /* the writer's */
};

struct layout {
	const struct model *model; /* NULL: none */
	uint64_t layers;
	struct layout_tensor *tensors;
	uint64_t n, room;
	uint64_t bytes;
};

const struct model *layout_model(uint32_t index); /* in the order of --layout's choices */
bool layout_of_model(struct layout *l, const struct model *model, uint64_t layers); /* false: out of memory */
bool layout_of_tensors(struct layout *l, uint64_t n, uint64_t bytes);
void layout_free(struct layout *l);

#endif
