/* SPDX-License-Identifier: Apache-2.0
 *
 * conformance_ranks.c - several ranks in one check: threads of one process or processes of their own. The thread that
 * started them passes their wires around, as the core would over its mesh.
 */
#include "conformance_rig.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WIRE_MAX = 64 << 10 };

struct letter {
	uint32_t bytes, n_fds;
	char data[WIRE_MAX];
	int32_t fds[8];
};

/* 1: sent or received; 0: the other side is gone. */
static int
letter_send(int sock, const struct letter *l)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(8 * sizeof(int32_t))];
	} control = { .room = { 0 } };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)l, .iov_len = offsetof(struct letter, data) + l->bytes };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (l->n_fds > 0) {
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(l->n_fds * sizeof(int32_t));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(l->n_fds * sizeof(int32_t));
		memcpy(CMSG_DATA(&control.head), l->fds, l->n_fds * sizeof(int32_t));
	}
	do
		n = sendmsg(sock, &m, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n >= 0;
}

static int
letter_recv(int sock, struct letter *l)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(8 * sizeof(int32_t))];
	} control;
	struct iovec iov = { .iov_base = l, .iov_len = offsetof(struct letter, fds) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	ssize_t n;

	l->n_fds = l->bytes = 0;
	do
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return 0;
	l->n_fds = 0;
	c = CMSG_FIRSTHDR(&m);
	if (c && c->cmsg_type == SCM_RIGHTS) {
		l->n_fds = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int32_t));
		memcpy(l->fds, CMSG_DATA(c), l->n_fds * sizeof(int32_t));
	}
	return 1;
}

static void
letter_close(struct letter *l)
{
	for (uint32_t i = 0; i < l->n_fds; i++)
		close(l->fds[i]);
	l->n_fds = 0;
}

/* Collects a letter of each and gives everybody all of them, round after round, until all have gone. */
static void
run_hub(const int *socks, uint32_t n)
{
	struct letter *all = calloc(n, sizeof(*all));
	uint32_t here = n;

	while (all && here == n) {
		here = 0;
		for (uint32_t i = 0; i < n; i++)
			here += (uint32_t)letter_recv(socks[i], &all[i]);
		for (uint32_t i = 0; i < n && here == n; i++)
			for (uint32_t k = 0; k < n; k++)
				letter_send(socks[i], &all[k]);
		for (uint32_t k = 0; k < n; k++)
			letter_close(&all[k]);
	}
	free(all);
}

void
cf_exchange(struct cf_rank *r, const struct ist_wire *mine, struct cf_wires *out)
{
	struct letter *l = calloc(1, sizeof(*l));

	CF_CHECK(r->t, l, "the suite has no memory");
	CF_CHECK(r->t, mine->bytes <= WIRE_MAX && mine->n_fds <= 8, "rank %u offers %llu bytes and %llu descriptors, at most 64 KiB and 8 are allowed",
		r->rank, (unsigned long long)mine->bytes, (unsigned long long)mine->n_fds);
	l->bytes = (uint32_t)mine->bytes;
	l->n_fds = (uint32_t)mine->n_fds;
	if (l->bytes > 0)
		memcpy(l->data, mine->addr, l->bytes);
	if (l->n_fds > 0)
		memcpy(l->fds, mine->fds, l->n_fds * sizeof(int32_t));
	letter_send(r->hub, l);
	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < r->n; i++) {
		void *copy;

		CF_CHECK(r->t, letter_recv(r->hub, l), "another rank ended early");
		copy = malloc(l->bytes + 1);
		CF_CHECK(r->t, copy, "the suite has no memory");
		memcpy(copy, l->data, l->bytes);
		memcpy(out->fds[i], l->fds, sizeof(l->fds));
		out->all[i] = (struct ist_wire){ .addr = copy, .bytes = l->bytes, .fds = out->fds[i], .n_fds = l->n_fds };
	}
	free(l);
}

/* What was lent for a call is spoiled after it. */
void
cf_wires_free(struct cf_wires *w, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		void *p = (void *)(uintptr_t)w->all[i].addr;

		if (p)
			memset(p, 0xDB, w->all[i].bytes);
		for (uint64_t k = 0; k < w->all[i].n_fds; k++)
			close(w->all[i].fds[k]);
		free(p);
	}
	memset(w, 0, sizeof(*w));
}

void
cf_barrier(struct cf_rank *r)
{
	struct cf_wires *w = calloc(1, sizeof(*w));

	CF_CHECK(r->t, w, "the suite has no memory");
	cf_exchange(r, &(struct ist_wire){ .bytes = 0 }, w);
	cf_wires_free(w, r->n);
	free(w);
}

struct ist_open
cf_open_args(const struct cf_rank *r)
{
	return (struct ist_open){
		.struct_size = sizeof(struct ist_open),
		.rank = r->rank,
		.size = r->n,
		.mem = cf_mem(r->t),
		.device = cf_device(r),
		.group = 7,
		.generation = r->generation,
		.deadline_ns = cf_now() + CF_PATIENCE_NS,
		.options = r->options ? r->options : r->t->options,
	};
}

static void
offer(struct cf_rank *r, struct ist_wire *mine)
{
	struct ist_task *task = NULL;
	struct ist_status st;
	ist_err e;

	memset(mine, 0, sizeof(*mine));
	if (!r->t->b->offer)
		return;
	cf_stage(r->t, "offer");
	cf_status(&st);
	e = r->t->b->offer(r->chan, mine, &task, &st);
	if (e == IST_UNSUPPORTED)
		return; /* as an empty slot: nothing to say */
	CF_CHECK(r->t, !e && task, "offer failed on rank %u of %u: %s %.200s", r->rank, r->n, e ? cf_name(e) : "OK without a task", st.text);
	cf_done(r, task);
}

void
cf_join(struct cf_rank *r)
{
	struct ist_open args = cf_open_args(r);
	struct ist_connect with = { .struct_size = sizeof(with), .size = r->n };
	struct ist_probe probe = { .struct_size = sizeof(probe) };
	struct cf_wires *w = calloc(1, sizeof(*w));
	struct ist_task *task = NULL;
	struct ist_wire mine;
	struct ist_status st;
	ist_err e;

	CF_CHECK(r->t, w, "the suite has no memory");
	cf_status(&st);
	cf_stage(r->t, "open");
	e = r->t->b->open(r->t->b->self, &r->t->host, &args, &r->chan, &st);
	CF_CHECK(r->t, !e && r->chan, "open failed on rank %u of %u: %s %.200s", r->rank, r->n, e ? cf_name(e) : "OK without a channel", st.text);
	offer(r, &mine);
	cf_exchange(r, &mine, w);
	r->t->b->probe(r->t->b->self, &r->t->host, IST_START, &probe);
	with.all = w->all;
	with.agreed = probe.settings;
	with.n_agreed = probe.settings ? probe.n_settings : 0;
	cf_stage(r->t, "connect");
	cf_status(&st);
	e = r->t->b->connect(r->chan, &with, &task, &st);
	cf_wires_free(w, r->n);
	free(w);
	CF_CHECK(r->t, !e && task, "connect failed on rank %u of %u: %s %.200s", r->rank, r->n, e ? cf_name(e) : "OK without a task", st.text);
	cf_done(r, task);
}

void
cf_leave(struct cf_rank *r)
{
	struct ist_status st;
	ist_err e;

	cf_stage(r->t, "close");
	cf_status(&st);
	e = r->t->b->close(r->chan, &st);
	r->chan = NULL;
	CF_CHECK(r->t, !e || e == IST_BUSY, "close failed: %s %.200s", cf_name(e), st.text);
}

struct rank_thread {
	struct cf_rank r;
	void (*body)(struct cf_rank *r);
	bool bare;
	pthread_t id;
};

static void
run_rank(struct rank_thread *a)
{
	if (!a->bare)
		cf_join(&a->r);
	a->body(&a->r);
	if (a->r.chan) {
		cf_barrier(&a->r); /* in good order: all are done */
		cf_leave(&a->r);
	}
	close(a->r.hub);
}

static void *
rank_main(void *arg)
{
	run_rank(arg);
	return NULL;
}

/* Waits for the processes; the first that ends badly decides, the others are then only in the way. */
static void
reap(struct cf *t, const pid_t *pids, uint32_t n)
{
	for (uint32_t left = n; left > 0; left--) {
		int status = 0;
		pid_t pid = waitpid(-1, &status, 0);
		uint32_t rank = 0;

		while (rank < n && pids[rank] != pid)
			rank++;
		if (rank == n || (WIFSIGNALED(status) && atomic_load(&t->shared->cell[CF_CELLS - 1]) == rank + 1))
			continue; /* killed by the check itself */
		if (WIFSIGNALED(status))
			cf_fail(t, "rank %u of %u was ended by signal %d (%s) in: %s", rank, n, WTERMSIG(status), strsignal(WTERMSIG(status)),
				t->shared->stage);
		if (WEXITSTATUS(status) != 0)
			_exit(WEXITSTATUS(status));
	}
}

static void
run_processes(struct cf *t, struct rank_thread *ranks, int (*socks)[2], uint32_t n)
{
	pid_t pids[CF_RANKS_MAX] = { 0 };
	int hub[CF_RANKS_MAX];

	for (uint32_t i = 0; i < n; i++) {
		pids[i] = fork();
		CF_CHECK(t, pids[i] >= 0, "the suite can't fork");
		if (pids[i] == 0) {
			for (uint32_t k = 0; k < n; k++) {
				close(socks[k][0]);
				if (k != i)
					close(socks[k][1]);
			}
			run_rank(&ranks[i]);
			_exit(0);
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		close(socks[i][1]);
		hub[i] = socks[i][0];
	}
	run_hub(hub, n);
	for (uint32_t i = 0; i < n; i++)
		close(hub[i]);
	reap(t, pids, n);
}

static void
run(struct cf *t, uint32_t n, enum cf_how how, void (*body)(struct cf_rank *r), bool bare)
{
	static _Atomic uint64_t generations = 1;
	uint64_t generation = atomic_fetch_add(&generations, 1);
	struct rank_thread ranks[CF_RANKS_MAX];
	int socks[CF_RANKS_MAX][2], hub[CF_RANKS_MAX];

	CF_CHECK(t, n <= CF_RANKS_MAX, "the suite runs at most %d ranks", CF_RANKS_MAX);
	if (how == CF_THREADS && !bare && cf_mem(t) != IST_MEM_HOST && t->shared->devices && t->shared->devices < CF_RANKS_MAX)
		how = CF_PROCESSES; /* of one process two ranks on a device would wait for each other; and devices don't survive a fork after it */
	for (uint32_t i = 0; i < n; i++) {
		CF_CHECK(t, !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks[i]), "the suite has no sockets");
		ranks[i] = (struct rank_thread){ .r = { .t = t, .rank = i, .n = n, .hub = socks[i][1], .generation = generation, .seq = 1 } };
		ranks[i].body = body;
		ranks[i].bare = bare;
		hub[i] = socks[i][0];
	}
	if (how == CF_PROCESSES) {
		run_processes(t, ranks, socks, n);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		CF_CHECK(t, !pthread_create(&ranks[i].id, NULL, rank_main, &ranks[i]), "the suite has no threads");
	run_hub(hub, n);
	for (uint32_t i = 0; i < n; i++) {
		pthread_join(ranks[i].id, NULL);
		close(hub[i]);
	}
}

void
cf_ranks(struct cf *t, uint32_t n, enum cf_how how, void (*body)(struct cf_rank *r))
{
	run(t, n, how, body, false);
}

void
cf_bare_ranks(struct cf *t, uint32_t n, enum cf_how how, void (*body)(struct cf_rank *r))
{
	run(t, n, how, body, true);
}

uint32_t
cf_pair(struct cf *t)
{
	return t->shared->size_ok[2] ? 2 : 1;
}

void
cf_need(struct cf *t, uint32_t n)
{
	if (!t->shared->size_ok[n])
		cf_skip(t, "it takes no group of %u: %s", n, t->shared->refusal);
}
