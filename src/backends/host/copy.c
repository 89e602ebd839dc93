/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/host/copy.h"

#include "base/clock.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define COPY_BIG (UINT64_C(256) << 10)   /* below it libc's is as good as any */
#define COPY_TRIAL (UINT64_C(256) << 10) /* pieces that tell something about speed */
#define COPY_TRIALS 3u
#define COPY_BLOCK (UINT64_C(20) << 10)  /* stays in the innermost cache while it is written several times */
#define PAGE 4096u

static void
copy_libc(void *to, const void *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
}

#if defined(__x86_64__)
static void
copy_rep(void *to, const void *from, uint64_t bytes)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

/* Copies until to is a multiple of align; returns how many bytes that were. */
static uint64_t
copy_head(uint8_t *to, const uint8_t *from, uint64_t align)
{
	uint64_t n = (align - ((uintptr_t)to & (align - 1))) & (align - 1);

	memcpy(to, from, n);
	return n;
}

__attribute__((target("avx2"))) static void
line_avx2(uint8_t *to, const uint8_t *from)
{
	__m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from);
	__m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));

	_mm256_stream_si256((__m256i *)(void *)to, a);
	_mm256_stream_si256((__m256i *)(void *)(to + 32), b);
}

__attribute__((target("avx2"))) static void
copy_nt(void *to, const void *from, uint64_t bytes)
{
	uint8_t *d = to;
	const uint8_t *s = from;
	uint64_t n = bytes < 64 ? 0 : copy_head(d, s, 64);

	for (d += n, s += n, bytes -= n; bytes >= 64; d += 64, s += 64, bytes -= 64)
		line_avx2(d, s);
	memcpy(d, s, bytes);
	_mm_sfence();
}

/* Four pages side by side: as many streams for the hardware's prefetcher. */
__attribute__((target("avx2"))) static void
copy_nt4(void *to, const void *from, uint64_t bytes)
{
	uint8_t *d = to;
	const uint8_t *s = from;
	uint64_t n;

	if (bytes < 4 * PAGE + 64) {
		copy_nt(to, from, bytes);
		return;
	}
	n = copy_head(d, s, 64);
	for (d += n, s += n, bytes -= n; bytes >= 4 * PAGE; d += 4 * PAGE, s += 4 * PAGE, bytes -= 4 * PAGE)
		for (uint64_t i = 0; i < PAGE; i += 64) {
			line_avx2(d + i, s + i);
			line_avx2(d + PAGE + i, s + PAGE + i);
			line_avx2(d + 2 * PAGE + i, s + 2 * PAGE + i);
			line_avx2(d + 3 * PAGE + i, s + 3 * PAGE + i);
		}
	for (; bytes >= 64; d += 64, s += 64, bytes -= 64)
		line_avx2(d, s);
	memcpy(d, s, bytes);
	_mm_sfence();
}

__attribute__((target("avx512f"))) static void
copy_nt512(void *to, const void *from, uint64_t bytes)
{
	uint8_t *d = to;
	const uint8_t *s = from;
	uint64_t n = bytes < 64 ? 0 : copy_head(d, s, 64);

	for (d += n, s += n, bytes -= n; bytes >= 64; d += 64, s += 64, bytes -= 64)
		_mm512_stream_si512((__m512i *)(void *)d, _mm512_loadu_si512(s));
	memcpy(d, s, bytes);
	_mm_sfence();
}

static bool
able_avx2(void)
{
	return __builtin_cpu_supports("avx2");
}

static bool
able_avx512(void)
{
	return __builtin_cpu_supports("avx512f");
}
#endif

static bool
able(void)
{
	return true;
}

/* The first that this CPU can run is taken where nothing was measured: one stream is never far from the best, while on some
 * machines several at once cost a factor of four. */
static const struct {
	const char *name;
	void (*copy)(void *to, const void *from, uint64_t bytes);
	bool (*able)(void);
} ways[] = {
#if defined(__x86_64__)
	{ "avx2-nt", copy_nt, able_avx2 },
	{ "avx2-nt4", copy_nt4, able_avx2 },
	{ "avx512-nt", copy_nt512, able_avx512 },
	{ "rep-movsb", copy_rep, able },
#endif
	{ "libc", copy_libc, able },
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))
_Static_assert(WAYS <= COPY_WAYS, "a copier has room for all");

void
ist__host_copier_init(struct copier *copier, bool calibrate)
{
	memset(copier, 0, sizeof(*copier));
	for (uint32_t i = 0; i < WAYS; i++)
		if (ways[i].able()) {
			atomic_store(&copier->best[copier->n_ways], UINT64_MAX);
			copier->ways[copier->n_ways++] = i;
		}
	atomic_store(&copier->pick, copier->ways[0]);
	atomic_store(&copier->learning, calibrate && copier->n_ways > 1);
}

bool
ist__host_copier_fix(struct copier *copier, const char *name)
{
	for (uint32_t i = 0; i < copier->n_ways; i++)
		if (!strcmp(ways[copier->ways[i]].name, name)) {
			atomic_store(&copier->pick, copier->ways[i]);
			atomic_store(&copier->learning, false);
			return true;
		}
	return false;
}

static void
copy_all(uint32_t way, void *const *to, uint32_t n, const void *from, uint64_t bytes)
{
	uint64_t block = n > 1 ? COPY_BLOCK : bytes;

	for (uint64_t at = 0; at < bytes; at += block) {
		uint64_t k = bytes - at < block ? bytes - at : block;

		for (uint32_t i = 0; i < n; i++)
			ways[way].copy((uint8_t *)to[i] + at, (const uint8_t *)from + at, k);
	}
}

/* The least time of several trials counts: page faults and other people's work only ever add. True: it was the last one. */
static bool
copy_trial(struct copier *copier, uint32_t turn, void *const *to, uint32_t n, const void *from, uint64_t bytes)
{
	uint32_t i = turn % copier->n_ways, best = 0;
	int64_t begun = ist__now(), took;

	copy_all(copier->ways[i], to, n, from, bytes);
	took = ist__now() - begun;
	if (took > 0) {
		uint64_t per = (uint64_t)took * 1024 / (bytes / 1024 * n), was = atomic_load(&copier->best[i]);

		while (per < was && !atomic_compare_exchange_weak(&copier->best[i], &was, per))
			;
	}
	if (atomic_fetch_add(&copier->tried, 1) + 1 < COPY_TRIALS * copier->n_ways)
		return false;
	for (i = 1; i < copier->n_ways; i++)
		if (atomic_load(&copier->best[i]) < atomic_load(&copier->best[best]))
			best = i;
	atomic_store(&copier->pick, copier->ways[best]);
	atomic_store(&copier->learning, false);
	return true;
}

bool
ist__host_copy(struct copier *copier, uint64_t whole, void *to, const void *from, uint64_t bytes)
{
	if (bytes >= COPY_BIG)
		return ist__host_copy_many(copier, whole, &to, 1, from, bytes);
	memcpy(to, from, bytes);
	return false;
}

bool
ist__host_copy_many(struct copier *copier, uint64_t whole, void *const *to, uint32_t n, const void *from, uint64_t bytes)
{
	uint32_t turn;

	if (whole >= COPY_LEARN && bytes >= COPY_TRIAL && n > 0 && atomic_load_explicit(&copier->learning, memory_order_relaxed)) {
		turn = atomic_fetch_add(&copier->turns, 1);
		if (turn < COPY_TRIALS * copier->n_ways) /* else the last ones are under way in other threads */
			return copy_trial(copier, turn, to, n, from, bytes);
	}
	copy_all(atomic_load_explicit(&copier->pick, memory_order_relaxed), to, n, from, bytes);
	return false;
}

const char *
ist__host_copier_name(const struct copier *copier)
{
	return ways[atomic_load(&copier->pick)].name;
}

void
ist__host_copy_names(char *to, uint64_t room)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < WAYS; i++)
		if (ways[i].able() && at + strlen(ways[i].name) + 3 < room)
			at += (uint64_t)snprintf(to + at, room - at, "%s%s", at ? ", " : "", ways[i].name);
}

const char *
ist__host_copy_name(uint32_t way)
{
	return way < WAYS ? ways[way].name : NULL;
}

bool
ist__host_copy_with(uint32_t way, void *to, const void *from, uint64_t bytes)
{
	if (way >= WAYS || !ways[way].able())
		return false;
	ways[way].copy(to, from, bytes);
	return true;
}
