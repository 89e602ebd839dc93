/* SPDX-License-Identifier: Apache-2.0
 *
 * crew.h - N processes made by fork, with a page that all of them see: for the peers that bring no launcher. Rank 0 is a
 * child like the others; the parent waits, and ends them all when one fails or the time is over.
 */
#ifndef BENCH_CREW_H
#define BENCH_CREW_H

#include "peer.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct crew {
	pthread_barrier_t barrier;
	double mine[PEER_RANKS];
	uint64_t word[PEER_RANKS];         /* whatever a rank tells the others */
	uint8_t room[PEER_RANKS][8192];    /* likewise */
	uint32_t room_bytes[PEER_RANKS];
};

static inline void
crew_meet(struct crew *crew)
{
	pthread_barrier_wait(&crew->barrier);
}

/* The slowest rank's time, on all of them. */
static inline double
crew_slowest(struct crew *crew, int rank, int ranks, double seconds)
{
	double max = 0;

	crew->mine[rank] = seconds;
	crew_meet(crew);
	for (int i = 0; i < ranks; i++)
		max = crew->mine[i] > max ? crew->mine[i] : max;
	crew_meet(crew);
	return max;
}

static inline int
crew_run(int ranks, int (*member)(struct crew *crew, int rank, void *arg), void *arg)
{
	struct crew *crew = mmap(NULL, sizeof(*crew), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_t attr;
	pid_t pid[PEER_RANKS];
	int status, worst = 0;

	if (crew == MAP_FAILED)
		return 1;
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&crew->barrier, &attr, (unsigned)ranks);
	fflush(stdout);
	for (int i = 0; i < ranks; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(member(crew, i, arg));
		}
		if (pid[i] < 0)
			worst = 1;
	}
	for (int left = ranks; left > 0 && wait(&status) > 0; left--)
		if (status) { /* the others would wait for it at the barrier */
			worst = 1;
			for (int i = 0; i < ranks; i++)
				if (pid[i] > 0)
					kill(pid[i], SIGKILL);
		}
	return worst;
}

#endif
