/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_avx2.c - compiled with -mavx2 on x86-64. The C library knows what CPU this is, so nothing is remembered here.
 */
#include "base/digest_leaf.h"

#if defined(__AVX2__) && defined(__x86_64__) && defined(__has_include)
#if __has_include(<sys/platform/x86.h>)
#define HAVE_AVX2 1
#endif
#endif

#ifdef HAVE_AVX2
#include <string.h>
#include <sys/platform/x86.h>

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include <xxhash.h>

bool
ist__leaf_avx2_usable(void)
{
	return CPU_FEATURE_ACTIVE(AVX2);
}

void
ist__leaf_avx2(const void *addr, uint64_t bytes, uint8_t *out)
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, XXH3_128bits(addr, bytes));
	memcpy(out, c.digest, sizeof(c.digest));
}
#else
bool
ist__leaf_avx2_usable(void)
{
	return false;
}

void
ist__leaf_avx2(const void *addr, uint64_t bytes, uint8_t *out)
{
	(void)addr, (void)bytes, (void)out;
}
#endif
