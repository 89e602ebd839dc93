/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_leaf.h - the same leaf with wider instructions, where the CPU and the system have them. Private to digest.c.
 */
#ifndef ISTHMUS_BASE_DIGEST_LEAF_H
#define ISTHMUS_BASE_DIGEST_LEAF_H

#include <stdbool.h>
#include <stdint.h>

bool ist__leaf_avx2_usable(void);
void ist__leaf_avx2(const void *addr, uint64_t bytes, uint8_t *out);

#endif
