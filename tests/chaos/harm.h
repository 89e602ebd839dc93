/* SPDX-License-Identifier: Apache-2.0
 *
 * harm.h - what a chaos worker does to itself: dies, freezes, aborts or runs out of memory, at a moment that was planned,
 * to the microsecond. One harm a round.
 */
#ifndef ISTHMUS_TESTS_CHAOS_HARM_H
#define ISTHMUS_TESTS_CHAOS_HARM_H

#include <isthmus.h>
#include <stdbool.h>

enum phase { CREATE = 0, SPLIT, GATHER, UPDATE, FREE, IDLE, RETRY /* told only: a harm takes it for UPDATE */, PHASES };
extern const char *const phase_names[PHASES];

struct harm {
	char kind[16];       /* kill, exit, stop, abort, alloc, storm, clock; "": none */
	enum phase phase;
	int64_t after_us;    /* alloc: which allocation from the beginning of the phase on fails */
	uint32_t arg;        /* alloc: how many in a row; 0: all until the round ends; clock: twice the seconds, odd: back */
};

/* One line on stdout, whole, from any thread. */
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
double now_s(void);

/* "KIND:PHASE:US:ARG". False: not that. */
bool harm_parse(struct harm *h, const char *text);
/* Starts the thread that does it; without a kind there is none. */
bool harm_start(const struct harm *h);
/* The round is in that phase now; IDLE ends it, nothing happens any more. */
void harm_phase(enum phase phase);
/* The group that an abort would hit. */
void harm_group(struct ist_group *group);
/* While there is no group yet: its forming. */
void harm_forming(struct ist_req *req);
void harm_stop(void);

/* For ist_env_args. */
void *harm_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa);
void harm_free(void *ctx, void *p);

#endif
