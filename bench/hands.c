/* SPDX-License-Identifier: Apache-2.0
 *
 * hands.c - what copies this machine can do at best, to hold the host backend's figures against: one buffer by one thread and by
 * two, and one buffer into one or three other processes, each in the barest form that moves the bytes. No library, no
 * protocol, memory warm. GB/s of payload, median of some repeats. hands [MiB].
 */
#include "backends/host/copy.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECE (UINT64_C(256) << 10)
enum { REPEATS = 9, RECEIVERS = 3, WARM = 3 };

static double
seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int
ascending(const void *a, const void *b)
{
	double x, y;

	memcpy(&x, a, sizeof(x));
	memcpy(&y, b, sizeof(y));
	return (x > y) - (x < y);
}

static void
say(const char *name, uint64_t bytes, double *took)
{
	qsort(took, REPEATS, sizeof(*took), ascending);
	printf("%-52s %8.2f GB/s\n", name, (double)bytes / took[REPEATS / 2] * 1e-9);
	fflush(stdout);
}

static uint8_t *
memory(uint64_t bytes, bool shared)
{
	void *p;

	if (shared) { /* as a backend has it: a memory file */
		int fd = memfd_create("hands", MFD_CLOEXEC);

		if (fd < 0 || ftruncate(fd, (off_t)bytes))
			exit(1);
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
	} else {
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	if (p == MAP_FAILED)
		exit(1);
	memset(p, 1, bytes);
	return p;
}

/* ---- one process ---- */

struct half {
	uint32_t way;
	uint8_t *to;
	const uint8_t *from;
	uint64_t bytes;
};

static bool
copy(const struct half *h)
{
	return ist__host_copy_with(h->way, h->to, h->from, h->bytes);
}

static void *
copy_half(void *arg)
{
	copy(arg);
	return NULL;
}

static void
copy_by(uint32_t threads, const struct half *whole)
{
	struct half mine = *whole, other = *whole;
	pthread_t t;

	if (threads == 1) {
		copy(whole);
		return;
	}
	mine.bytes = other.bytes = whole->bytes / 2;
	other.to += mine.bytes;
	other.from += mine.bytes;
	if (pthread_create(&t, NULL, copy_half, &other))
		exit(1);
	copy(&mine);
	pthread_join(t, NULL);
}

static void
one_process(uint64_t bytes, bool shared)
{
	uint8_t *from = memory(bytes, shared), *to = memory(bytes, shared);
	char name[128];

	for (uint32_t threads = 1; threads <= 2; threads++)
		for (uint32_t way = 0; ist__host_copy_name(way); way++) {
			struct half h = { way, to, from, bytes };
			double took[REPEATS];

			if (!ist__host_copy_with(way, to, from, 4096))
				continue;
			for (int i = 0; i < REPEATS; i++) {
				took[i] = seconds();
				copy_by(threads, &h);
				took[i] = seconds() - took[i];
			}
			snprintf(name, sizeof(name), "copy, %s, %u thread%s, %s", ist__host_copy_name(way), threads, threads > 1 ? "s" : "",
				shared ? "shared" : "private");
			say(name, bytes, took);
		}
	munmap(from, bytes);
	munmap(to, bytes);
}

/* ---- several ---- */

struct shared {
	_Atomic uint32_t round, in, out;
	_Atomic uint64_t ticket;
	double took[REPEATS];
};

enum how { OWN_COPY, TOGETHER, VM_READ };

static void
gather(_Atomic uint32_t *count, uint32_t until)
{
	atomic_fetch_add(count, 1);
	for (uint32_t i = 0; atomic_load(count) < until; i++)
		if (i > 100)
			sched_yield();
}

/* One payload to all receivers: by each for himself, or by all for all, a piece at a time. */
static void
move(struct shared *s, enum how how, uint32_t rank, uint32_t receivers, uint8_t *const *to, const uint8_t *from, uint64_t bytes, pid_t root,
	struct copier *copier)
{
	void *all[RECEIVERS];

	if (how == VM_READ && rank > 0) {
		for (uint64_t at = 0; at < bytes; at += 4 * PIECE) {
			union { const uint8_t *c; void *p; } u = { .c = from + at };
			struct iovec here = { to[rank - 1] + at, 4 * PIECE }, there = { u.p, 4 * PIECE };

			if (process_vm_readv(root, &here, 1, &there, 1, 0) < 0)
				_exit(errno == EPERM ? 2 : 1);
		}
		return;
	}
	if (how == OWN_COPY && rank > 0)
		for (uint64_t at = 0; at < bytes; at += PIECE)
			ist__host_copy_many(copier, bytes, &(void *){ to[rank - 1] + at }, 1, from + at, PIECE);
	if (how != TOGETHER)
		return;
	for (uint64_t at; (at = atomic_fetch_add(&s->ticket, PIECE)) < bytes;) {
		for (uint32_t i = 0; i < receivers; i++)
			all[i] = to[i] + at;
		ist__host_copy_many(copier, bytes, all, receivers, from + at, PIECE);
	}
}

static void
member(struct shared *s, enum how how, uint32_t rank, uint32_t receivers, uint8_t *const *to, const uint8_t *from, uint64_t bytes, pid_t root)
{
	struct copier copier;
	uint32_t n = receivers + 1;

	ist__host_copier_init(&copier, true); /* the first rounds find the loop */
	for (uint64_t at = 0; at < bytes; at += 4096) { /* what fork has not mapped */
		(void)*(const volatile uint8_t *)(from + at);
		for (uint32_t k = 0; k < receivers; k++)
			if (how == TOGETHER || rank == k + 1)
				(void)*(const volatile uint8_t *)(to[k] + at);
	}
	for (uint32_t i = 0; i < REPEATS + WARM; i++) {
		double begun;

		gather(&s->in, n * (2 * i + 1));
		if (rank == 0)
			atomic_store(&s->ticket, 0);
		gather(&s->in, n * (2 * i + 2));
		begun = seconds();
		move(s, how, rank, receivers, to, from, bytes, root, &copier);
		gather(&s->out, n * (i + 1));
		if (rank == 0 && i >= WARM)
			s->took[i - WARM] = seconds() - begun;
	}
}

static void
several(const char *what, enum how how, uint32_t receivers, uint64_t bytes, bool private)
{
	struct shared *s = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint8_t *from = memory(bytes, true), *to[RECEIVERS];
	pid_t pids[RECEIVERS], root = getpid();
	bool well = true;
	char name[128];

	if (s == MAP_FAILED)
		exit(1);
	for (uint32_t i = 0; i < receivers && !private; i++)
		to[i] = memory(bytes, true);
	for (uint32_t i = 0; i < receivers; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			if (private)
				to[i] = memory(bytes, false);
			member(s, how, i + 1, receivers, to, from, bytes, root);
			_exit(0);
		}
	}
	snprintf(name, sizeof(name), "%s, 1 -> %u", what, receivers);
	if (how == VM_READ) { /* it may be forbidden: then nobody would come to the meeting */
		int status = 0;
		uint64_t word = 0;
		struct iovec here = { &word, 8 }, there = { from, 8 };

		if (process_vm_readv(pids[0], &here, 1, &there, 1, 0) < 0) {
			for (uint32_t i = 0; i < receivers; i++) {
				kill(pids[i], SIGKILL);
				waitpid(pids[i], &status, 0);
			}
			printf("%-52s %s\n", name, "not allowed here");
			return;
		}
	}
	member(s, how, 0, receivers, to, from, bytes, root);
	for (uint32_t i = 0; i < receivers; i++) {
		int status;

		well &= waitpid(pids[i], &status, 0) == pids[i] && status == 0;
	}
	if (well)
		say(name, bytes, s->took);
	munmap(from, bytes);
	for (uint32_t i = 0; i < receivers && !private; i++)
		munmap(to[i], bytes);
	munmap(s, 4096);
}

int
main(int argc, char **argv)
{
	uint64_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 64) << 20;

	if (bytes < 4 * PIECE)
		return 2;
	one_process(bytes, false);
	one_process(bytes, true);
	for (uint32_t receivers = 1; receivers <= RECEIVERS; receivers += 2) {
		several("each for himself into private memory", OWN_COPY, receivers, bytes, true);
		several("each for himself into shared memory", OWN_COPY, receivers, bytes, false);
		several("by all hands into shared memory", TOGETHER, receivers, bytes, false);
		several("process_vm_readv into private memory", VM_READ, receivers, bytes, true);
	}
	return 0;
}
