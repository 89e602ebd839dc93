/* SPDX-License-Identifier: Apache-2.0
 *
 * ranks.h - real processes for tests: fork N, each runs one function, all are reaped with a deadline. A child's exit
 * status is what its function returns; checks inside use CHECK, which a release build keeps.
 */
#ifndef ISTHMUS_TESTS_RANKS_H
#define ISTHMUS_TESTS_RANKS_H

#include <isthmus.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define CHECK(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #x); \
			fflush(NULL); \
			_Exit(1); \
		} \
	} while (0)
/* The call gives that code; else its story is printed. */
#define CHECK_ERR(want, call, err) \
	do { \
		ist_err got_ = (call); \
		if (got_ != (want)) { \
			fprintf(stderr, "%s:%d: %s: %s instead of %s: %s\n", __FILE__, __LINE__, #call, ist_err_name(got_), ist_err_name(want), (err)->detail); \
			fflush(NULL); \
			_Exit(1); \
		} \
	} while (0)

enum { RANKS_MAX = 1024 };
struct ranks {
	uint32_t n;
	pid_t pid[RANKS_MAX];
	int status[RANKS_MAX];   /* of waitpid */
	bool may_die[RANKS_MAX]; /* of SIGKILL, as those do that ranks_join is told of */
	char at[64];     /* a meeting place: tcp://127.0.0.1:PORT, free when asked for */
	void *shared;    /* 64 KiB of memory that all see, zeroed */
};

/* A port on loopback that nobody listens on: bound and kept (not listening) by the caller's process until fini. */
void ranks_init(struct ranks *r, uint32_t n);
void ranks_start(struct ranks *r, uint32_t rank, int (*run)(struct ranks *r, uint32_t rank, void *arg), void *arg);
void ranks_start_all(struct ranks *r, int (*run)(struct ranks *r, uint32_t rank, void *arg), void *arg);
/* Reaps all; kills what is left after seconds (and then fails). Returns how many did not exit with 0 though they should
 * have: killed (a bit mask of ranks; beyond 64: may_die) are allowed to die of SIGKILL. */
int ranks_join(struct ranks *r, int seconds, uint64_t killed);
void ranks_fini(struct ranks *r);

/* Spins (with sched_yield) until *flag >= value; CHECKs that it comes within 60 s. Flags lie in shared memory. */
void ranks_await(_Atomic uint32_t *flag, uint32_t value);

/* What most tests begin with. */
struct member {
	struct ist_env *env;
	struct ist_endpoint *ep;
	struct ist_group *g;
	struct ist_error err;
};
void member_init(struct member *m, uint32_t transport);
ist_err member_join(struct member *m, const char *at, const char *name, uint32_t rank, uint32_t size, double timeout_s, double no_progress_s);
void member_fini(struct member *m);
/* Open descriptors and threads of this process. */
uint32_t count_fds(void);
uint32_t count_threads(void);
/* Is rank among those that err is about? */
bool error_names(const struct ist_error *err, uint32_t rank);
double now_s(void); /* seconds of the monotonic clock */
/* Each tells its rank, and hears all others' from them; then a barrier. */
void all_gather_ranks(struct member *m, uint32_t rank, uint32_t size);

#endif
