/* SPDX-License-Identifier: Apache-2.0
 *
 * crew.h - N threads, each with an env and its member of one fake group, that run one function. CHECK ends the process:
 * a failed check in one thread must not leave the others waiting.
 */
#ifndef ISTHMUS_TESTS_CREW_H
#define ISTHMUS_TESTS_CREW_H

#include "fake_group.h"

#include <isthmus/sync.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(x)                                                                              \
	do {                                                                                  \
		if (!(x)) {                                                                   \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #x);     \
			abort();                                                              \
		}                                                                             \
	} while (0)
/* The same for a call that fills e. */
#define CHECK_CODE(call, want, e)                                                             \
	do {                                                                                  \
		ist_err got_ = (call);                                                        \
		if (got_ != (want)) {                                                         \
			fprintf(stderr, "%s:%d: %s: %s, not %s: %s\n", __FILE__, __LINE__, #call, ist_err_name(got_), \
				ist_err_name(want), (e)->detail);                             \
			abort();                                                              \
		}                                                                             \
	} while (0)

struct crew;
struct hand {
	struct crew *crew;
	uint32_t rank;
	struct ist_env *env;
	struct ist_group *group;
	uint64_t allocs;       /* calls of the env's allocator so far */
	uint32_t pages_max;    /* so many pieces that begin with a page it gives at a time; 0: any number */
	void *pages[16];       /* these, with pages_max */
	char log[8192];        /* warnings and worse */
	void *keep;            /* the test's own, from one run to the next */
};

struct crew {
	struct fake_world *world;
	uint32_t n;
	struct hand hands[FAKE_RANKS];
	void (*run)(struct hand *hand, void *arg);
	void *arg;
};

void crew_new(struct crew *crew, uint32_t n);
/* Runs f in n threads and waits for all. */
void crew_run(struct crew *crew, void (*f)(struct hand *hand, void *arg), void *arg);
void crew_free(struct crew *crew);

#endif
