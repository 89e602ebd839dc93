/* SPDX-License-Identifier: Apache-2.0
 *
 * fill.h - pseudo-random bytes, fast, and the same for the same seed, name and place in whatever order they are asked for.
 */
#ifndef ISTHMUS_TOOL_FILL_H
#define ISTHMUS_TOOL_FILL_H

#include <stdint.h>

uint64_t fill_key(uint64_t seed, const char *name);
/* Bytes [offset, offset + bytes) of key's stream; offset is a multiple of 8. */
void fill_bytes(uint64_t key, uint64_t offset, void *addr, uint64_t bytes);

#endif
