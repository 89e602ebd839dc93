/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_memory.c - how fast bytes of one rank can get into memory of all others, had nobody to agree on anything: the
 * best of three ways, each with the best of three copies. A broadcast through shared memory can't beat it.
 *
 *     together   all ranks, the first too, take pieces from one counter and write each to all the others, one after the other
 *     at once    the same, but each word that was read is written to all of them
 *     apart      each of the others copies the whole out of the first one's memory
 */
#include "bench.h"
#include "fill.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define BYTES (UINT64_C(64) << 20)
#define PIECE (UINT64_C(256) << 10)
#define PAGE 4096u
#define TRIES 4
#define RANKS_MAX 16u        /* of one machine; more would only tell how they queue */

typedef void copy_fn(uint8_t *to, const uint8_t *from);

struct shared {
	uint8_t *mem[RANKS_MAX];     /* of each rank; the first is the source, and has the counter behind it */
	atomic_ullong *ticket;
	uint8_t *own;                /* private */
	uint32_t n, rank;
	copy_fn *copy;
	bool alone;
	int (*once)(struct bench *b, void *arg); /* the best way */
};

/* ---- copies of one piece ---- */

static void
piece_libc(uint8_t *to, const uint8_t *from)
{
	memcpy(to, from, PIECE);
}

#if defined(__x86_64__)
static void
piece_rep(uint8_t *to, const uint8_t *from)
{
	uint64_t bytes = PIECE;

	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

__attribute__((target("avx2"))) static void
piece_stream(uint8_t *to, const uint8_t *from)
{
	for (uint64_t i = 0; i < PIECE; i += 32)
		_mm256_stream_si256((__m256i *)(void *)(to + i), _mm256_loadu_si256((const __m256i *)(const void *)(from + i)));
	_mm_sfence();
}
#endif

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void
piece_to_all(const struct shared *s, uint64_t at)
{
	for (uint64_t i = at; i < at + PIECE; i += 64) {
		__m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(s->mem[0] + i));
		__m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(s->mem[0] + i + 32));

		for (uint32_t k = 1; k < s->n; k++) {
			_mm256_stream_si256((__m256i *)(void *)(s->mem[k] + i), a);
			_mm256_stream_si256((__m256i *)(void *)(s->mem[k] + i + 32), b);
		}
	}
	_mm_sfence();
}
#endif

static uint32_t
copies(copy_fn *out[3])
{
	uint32_t n = 0;

	out[n++] = piece_libc;
#if defined(__x86_64__)
	out[n++] = piece_rep;
	if (__builtin_cpu_supports("avx2"))
		out[n++] = piece_stream;
#endif
	return n;
}

/* ---- everybody's memory, in everybody's sight ---- */

static uint8_t *
map_path(const char *path, uint64_t bytes)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);

	if (fd >= 0)
		close(fd);
	return p == MAP_FAILED ? NULL : p;
}

/* What a rank tells of its memory. The token lies in it too: a path may name something else where others look. */
struct said {
	char path[56];
	uint64_t token;
};

static bool
map_said(struct shared *s, uint32_t rank, const struct ist_blob *blob)
{
	struct said said;
	uint64_t token;

	if (blob->bytes != sizeof(said))
		return false;
	memcpy(&said, blob->addr, sizeof(said));
	said.path[sizeof(said.path) - 1] = 0;
	s->mem[rank] = said.path[0] ? map_path(said.path, BYTES + PAGE) : NULL;
	if (!s->mem[rank])
		return false;
	memcpy(&token, s->mem[rank] + BYTES + 64, sizeof(token));
	return token == said.token;
}

static void
make_own(int fd, struct said *said)
{
	uint8_t *p;

	*said = (struct said){ .path = "" };
	if (fd < 0 || ftruncate(fd, (off_t)(BYTES + PAGE)) || getrandom(&said->token, sizeof(said->token), 0) != sizeof(said->token))
		return;
	if (pwrite(fd, &said->token, sizeof(said->token), (off_t)(BYTES + 64)) != sizeof(said->token))
		return;
	p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return;
	fill_bytes(fill_key(1, "bench"), 0, p, BYTES);
	munmap(p, BYTES);
	snprintf(said->path, sizeof(said->path), "/proc/%ld/fd/%d", (long)getpid(), fd);
}

/* *shared is the same on all ranks; false: they may not look at each other. */
static int
share(struct bench *b, struct shared *s, bool *shared)
{
	struct ist_blob *blobs = calloc(b->s.world, sizeof(*blobs));
	int fd = memfd_create("isthmus-bench", MFD_CLOEXEC), status;
	struct said own;
	double worst = 2;
	bool good = true;

	make_own(fd, &own);
	status = blobs ? bench_tell(b, &own, sizeof(own), blobs) : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");
	if (status == EXIT_DONE) {
		for (uint32_t i = 0; i < s->n; i++)
			good = map_said(s, i, &blobs[i]) && good;
		ist_blobs_free(b->s.group, blobs, b->s.world);
		status = bench_slowest(b, good ? 1 : 2, &worst);
	}
	*shared = status == EXIT_DONE && worst < 1.5;
	if (*shared)
		s->ticket = (atomic_ullong *)(void *)(s->mem[0] + BYTES);
	free(blobs);
	if (fd >= 0)
		close(fd);
	return status;
}

static void
unshare(struct shared *s)
{
	for (uint32_t i = 0; i < s->n; i++)
		if (s->mem[i])
			munmap(s->mem[i], BYTES + PAGE);
	free(s->own);
}

/* ---- the ways ---- */

static int
together_once(struct bench *b, void *arg)
{
	struct shared *s = arg;
	uint64_t i;

	(void)b;
	while ((i = atomic_fetch_add(s->ticket, 1)) < BYTES / PIECE)
		for (uint32_t k = 1; k < s->n; k++)
			s->copy(s->mem[k] + i * PIECE, s->mem[0] + i * PIECE);
	return EXIT_DONE;
}

static int
at_once_once(struct bench *b, void *arg)
{
	struct shared *s = arg;
	uint64_t i;

	(void)b;
#if defined(__x86_64__)
	while (__builtin_cpu_supports("avx2") && (i = atomic_fetch_add(s->ticket, 1)) < BYTES / PIECE)
		piece_to_all(s, i * PIECE);
#endif
	/* elsewhere, or what is left */
	while ((i = atomic_fetch_add(s->ticket, 1)) < BYTES / PIECE)
		for (uint32_t k = 1; k < s->n; k++)
			s->copy(s->mem[k] + i * PIECE, s->mem[0] + i * PIECE);
	return EXIT_DONE;
}

static int
apart_once(struct bench *b, void *arg)
{
	struct shared *s = arg;

	(void)b;
	if (s->alone ? s->rank == 0 : s->rank > 0)
		for (uint64_t at = 0; at < BYTES; at += PIECE)
			s->copy(s->own + at, s->mem[0] + at);
	return EXIT_DONE;
}

static double
best_of(struct bench *b, struct shared *s, int (*once)(struct bench *b, void *arg), copy_fn **with, int *status)
{
	struct bench_row row = { .inner = 1, .once = once, .arg = s };
	copy_fn *fn[3];
	uint32_t n = copies(fn);
	double best = 0, t;

	for (uint32_t i = 0; *status == EXIT_DONE && i < n * TRIES; i++) {
		s->copy = fn[i % n];
		/* all have left the last sample, and none has begun this one */
		if (s->rank == 0)
			atomic_store(s->ticket, 0);
		*status = bench_sample(b, &row, &t);
		if (*status == EXIT_DONE && i >= n && (best == 0 || t < best)) {
			best = t;
			*with = s->copy;
		}
	}
	return best > 0 ? (double)BYTES / best / 1e9 : 0;
}

static int
sample(struct bench *b, void *arg, double *gbps)
{
	struct shared *s = arg;
	struct bench_row row = { .inner = 1, .once = s->once, .arg = s };
	double t = 0;
	int status;

	if (s->rank == 0)
		atomic_store(s->ticket, 0);
	status = bench_sample(b, &row, &t);
	*gbps = t > 0 ? (double)BYTES / t / 1e9 : 0;
	return status;
}

static void
end(void *arg)
{
	unshare(arg);
	free(arg);
}

/* All ranks find the same: what they compare are the slowest one's times. */
static int
find_best(struct bench *b, struct shared *s, double *out)
{
	static int (*const ways[])(struct bench *b, void *arg) = { apart_once, together_once, at_once_once };
	int status = EXIT_DONE;
	copy_fn *with = piece_libc, *best = piece_libc;
	double alone, gbps[3];

	s->alone = true;
	alone = best_of(b, s, apart_once, &with, &status);
	s->alone = false;
	for (int i = 0; i < 3; i++) {
		gbps[i] = best_of(b, s, ways[i], &with, &status);
		if (gbps[i] > *out) {
			*out = gbps[i];
			best = with;
			s->once = ways[i];
		}
	}
	s->copy = best;
	json_object_set_new(b->machine, "copy_gbps", json_real(alone));
	json_object_set_new(b->machine, "copy_apart_gbps", json_real(gbps[0]));
	json_object_set_new(b->machine, "copy_together_gbps", json_real(gbps[1] > gbps[2] ? gbps[1] : gbps[2]));
	return status;
}

int
bench_memory_limit(struct bench *b, double *out)
{
	struct shared *s;
	bool shared = false;
	int status;

	*out = 0;
	if (b->s.world < 2 || b->s.world > RANKS_MAX)
		return EXIT_DONE;
	s = calloc(1, sizeof(*s));
	if (!s)
		return cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");
	s->n = b->s.world;
	s->rank = b->s.rank;
	status = share(b, s, &shared);
	s->own = bench_buffer(BYTES);
	if (status == EXIT_DONE && shared && !s->own)
		status = cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "a buffer of %llu bytes", (unsigned long long)BYTES);
	if (status == EXIT_DONE && shared)
		status = find_best(b, s, out);
	if (status == EXIT_DONE && s->once)
		b->limit = (struct bench_limit){ .sample = sample, .close = end, .arg = s };
	else
		end(s);
	return status;
}
