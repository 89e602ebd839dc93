/* SPDX-License-Identifier: Apache-2.0
 *
 * hash.h - hashes for tables inside one process. What travels or is shown is in digest.h.
 */
#ifndef ISTHMUS_BASE_HASH_H
#define ISTHMUS_BASE_HASH_H

#include <stdint.h>

/* Random, never 0. */
uint64_t ist__hash_seed(void);
uint64_t ist__hash64(const void *addr, uint64_t bytes, uint64_t seed);
void ist__hash128(const void *addr, uint64_t bytes, uint64_t seed, uint64_t *lo, uint64_t *hi);

#endif
