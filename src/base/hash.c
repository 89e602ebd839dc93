/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <sys/random.h>
#include <time.h>
#include <xxhash.h>

uint64_t
ist__hash_seed(void)
{
	uint64_t seed = 0;

	if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != (ssize_t)sizeof(seed)) {
		struct timespec now; /* early boot: better than a constant */

		clock_gettime(CLOCK_MONOTONIC, &now);
		seed = (uint64_t)now.tv_nsec * UINT64_C(0x9E3779B97F4A7C15) ^ (uint64_t)now.tv_sec ^ (uint64_t)(uintptr_t)&seed;
	}
	return seed | 1;
}

uint64_t
ist__hash64(const void *addr, uint64_t bytes, uint64_t seed)
{
	return XXH3_64bits_withSeed(addr, bytes, seed);
}

void
ist__hash128(const void *addr, uint64_t bytes, uint64_t seed, uint64_t *lo, uint64_t *hi)
{
	XXH128_hash_t h = XXH3_128bits_withSeed(addr, bytes, seed);

	*lo = h.low64;
	*hi = h.high64;
}
