/* SPDX-License-Identifier: Apache-2.0
 *
 * fill.c - a counter run through the finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
 * generators, 2014): every word depends on its place alone.
 */
#include "fill.h"

#include <string.h>

#define STEP UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t
mix(uint64_t z)
{
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

uint64_t
fill_key(uint64_t seed, const char *name)
{
	uint64_t key = mix(seed + STEP);

	for (; *name; name++)
		key = mix(key + STEP + (unsigned char)*name);
	return key;
}

void
fill_bytes(uint64_t key, uint64_t offset, void *addr, uint64_t bytes)
{
	uint64_t at = key + offset / 8 * STEP, word;
	char *to = addr;

	for (; bytes >= 8; bytes -= 8, to += 8, at += STEP) {
		word = mix(at);
		memcpy(to, &word, 8);
	}
	word = mix(at);
	memcpy(to, &word, bytes);
}
