/* SPDX-License-Identifier: Apache-2.0
 *
 * peer.h - what the peer programs written in C share: their command line, their buffers, and the lines they print. All do
 * the same things in the same way, so that only the library under them differs:
 *
 *     PROGRAM --name NAME --ranks N --repeat R --transport shm|tcp WHAT[:BYTES]...
 *
 * A sample starts behind a barrier and is the time of the slowest rank. Buffers are private, touched beforehand, and cut
 * from an arena far larger than the caches, a new cut for each sample. One JSON object a line is printed for each WHAT.
 */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PEER_ITEMS 16
#define PEER_REPEAT 64
#define PEER_RANKS 16
#define PEER_ARENA (UINT64_C(512) << 20)

struct peer_item {
	char what[32];
	uint64_t bytes;
};

struct peer_args {
	const char *name, *transport;
	int ranks, repeat, n_items;
	struct peer_item items[PEER_ITEMS];
};

struct peer_arena {
	uint8_t *base;
	uint64_t bytes, at;
};

static inline double
peer_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline bool
peer_parse(struct peer_args *a, int argc, char **argv)
{
	*a = (struct peer_args){ .name = "?", .transport = "shm", .ranks = 2, .repeat = 3 };
	for (int i = 1; i < argc; i++) {
		char *colon = strchr(argv[i], ':');
		bool more = i + 1 < argc;

		if (!strcmp(argv[i], "--name") && more)
			a->name = argv[++i];
		else if (!strcmp(argv[i], "--transport") && more)
			a->transport = argv[++i];
		else if (!strcmp(argv[i], "--ranks") && more)
			a->ranks = atoi(argv[++i]);
		else if (!strcmp(argv[i], "--repeat") && more)
			a->repeat = atoi(argv[++i]);
		else if (argv[i][0] != '-' && a->n_items < PEER_ITEMS) {
			struct peer_item *item = &a->items[a->n_items++];

			snprintf(item->what, sizeof(item->what), "%.*s", (int)(colon ? colon - argv[i] : 31), argv[i]);
			item->bytes = colon ? strtoull(colon + 1, NULL, 10) : 0;
		} else {
			fprintf(stderr, "%s: what is '%s'?\n", a->name, argv[i]);
			return false;
		}
	}
	return a->ranks >= 1 && a->ranks <= PEER_RANKS && a->repeat >= 1 && a->repeat <= PEER_REPEAT;
}

/* Private memory, every page written once. Call it after the last fork: pages shared with a parent are slower. */
static inline bool
peer_arena_new(struct peer_arena *arena, const struct peer_args *a)
{
	uint64_t bytes = 0;

	for (int i = 0; i < a->n_items; i++)
		if (a->items[i].bytes >= 1 << 20)
			bytes = bytes > PEER_ARENA ? bytes : PEER_ARENA > a->items[i].bytes ? PEER_ARENA : a->items[i].bytes;
	*arena = (struct peer_arena){ .bytes = bytes ? bytes : 1 << 20 };
	arena->base = mmap(NULL, arena->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena->base == MAP_FAILED)
		return false;
	memset(arena->base, 0x5a, arena->bytes);
	return true;
}

static inline uint8_t *
peer_cut(struct peer_arena *arena, uint64_t bytes)
{
	uint64_t at = arena->at + bytes > arena->bytes ? 0 : arena->at;

	arena->at = at + bytes;
	return arena->base + at;
}

/* The bytes of a sample are known by three words in them. */
static inline void
peer_stamp(uint8_t *p, uint64_t bytes, uint64_t sample)
{
	uint64_t word = 0x9e3779b97f4a7c15 * (sample + 1);

	for (uint64_t i = 0; bytes >= 8 && i < 3; i++)
		memcpy(p + i * ((bytes - 8) / 2), &word, 8);
}

static inline bool
peer_stamped(const uint8_t *p, uint64_t bytes, uint64_t sample)
{
	uint64_t word = 0x9e3779b97f4a7c15 * (sample + 1), got;

	for (uint64_t i = 0; bytes >= 8 && i < 3; i++) {
		memcpy(&got, p + i * ((bytes - 8) / 2), 8);
		if (got != word)
			return false;
	}
	return true;
}

static inline void
peer_list(const char *name, const double *v, int n)
{
	printf(", \"%s\": [", name);
	for (int i = 0; i < n; i++)
		printf("%s%.9f", i ? ", " : "", v[i]);
	putchar(']');
}

/* at: when a sample began, for whoever wants to know what else ran then; inner: how often the thing was done in it. */
static inline void
peer_print(const struct peer_args *a, const struct peer_item *item, const char *how, int inner, const double *at, const double *seconds, int n)
{
	printf("{\"peer\": \"%s\", \"what\": \"%s\", \"how\": \"%s\", \"bytes\": %llu, \"ranks\": %d, \"transport\": \"%s\", \"inner\": %d", a->name,
		item->what, how, (unsigned long long)item->bytes, a->ranks, a->transport, inner);
	peer_list("at", at, n);
	peer_list("seconds", seconds, n);
	puts("}");
	fflush(stdout);
}

static inline void
peer_print_why(const struct peer_args *a, const struct peer_item *item, const char *why)
{
	printf("{\"peer\": \"%s\", \"what\": \"%s\", \"bytes\": %llu, \"ranks\": %d, \"transport\": \"%s\", \"why\": \"%s\"}\n", a->name, item->what,
		(unsigned long long)item->bytes, a->ranks, a->transport, why);
	fflush(stdout);
}

#endif
