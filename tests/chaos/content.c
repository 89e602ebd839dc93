/* SPDX-License-Identifier: Apache-2.0 */
#include "content.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 251 }; /* prime: a piece that lands in a wrong place shows */

uint64_t
content_bytes(const struct content *c, uint32_t tensor)
{
	static const uint64_t small[CONTENT_TENSORS] = { 1, 0, 100, 65536, 0, 65537, 7, 30000, 0, 4096 };

	return tensor == 1 || tensor == 4 ? c->scale + tensor : small[tensor];
}

static void
make_block(uint32_t version, uint32_t tensor, uint8_t block[BLOCK])
{
	uint32_t x = version * 1000 + tensor + 1;

	for (uint32_t i = 0; i < BLOCK; i++) {
		x = x * 1664525u + 1013904223u;
		block[i] = (uint8_t)(x >> 24);
	}
}

bool
content_make(struct content *c, uint64_t scale, uint32_t version)
{
	memset(c, 0, sizeof(*c));
	c->scale = scale;
	for (uint32_t i = 0; i < CONTENT_TENSORS; i++) {
		uint64_t n = content_bytes(c, i);
		uint8_t block[BLOCK];

		snprintf(c->names[i], sizeof(c->names[i]), "layers.%u.weight", i);
		c->at[i] = malloc(n + 1);
		if (!c->at[i])
			return false;
		make_block(version, i, block);
		for (uint64_t k = 0; k < n; k += BLOCK)
			memcpy(c->at[i] + k, block, n - k < BLOCK ? n - k : BLOCK);
	}
	return true;
}

void
content_free(struct content *c)
{
	for (uint32_t i = 0; i < CONTENT_TENSORS; i++)
		free(c->at[i]);
	memset(c->at, 0, sizeof(c->at));
}

void
content_list(struct content *c, struct ist_tensor out[CONTENT_TENSORS])
{
	memset(out, 0, CONTENT_TENSORS * sizeof(*out));
	for (uint32_t i = 0; i < CONTENT_TENSORS; i++) {
		uint64_t n = content_bytes(c, i);

		out[i] = (struct ist_tensor){ .struct_size = sizeof(*out), .rank = 1, .name = c->names[i], .dtype = "U8", .shape = { n },
			.bytes = n, .file = "", .alias_of = "", .addr = c->at[i] };
	}
}

bool
content_tensor_is(const struct content *c, uint32_t tensor, uint32_t version, const uint8_t *bytes)
{
	uint64_t n = content_bytes(c, tensor);
	uint8_t block[BLOCK];

	make_block(version, tensor, block);
	for (uint64_t k = 0; k < n; k += BLOCK)
		if (memcmp(bytes + k, block, n - k < BLOCK ? n - k : BLOCK) != 0)
			return false;
	return true;
}

bool
content_is(const struct content *c, uint32_t version)
{
	for (uint32_t i = 0; i < CONTENT_TENSORS; i++)
		if (!content_tensor_is(c, i, version, c->at[i]))
			return false;
	return true;
}
