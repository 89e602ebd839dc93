/* SPDX-License-Identifier: Apache-2.0 */
#include "host_rig.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#define GUARD_NS (40 * INT64_C(1000000000)) /* hang guard; nothing here takes a tenth of it */

static int64_t
now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

static void
rig_log(void *ctx, int32_t level, const char *msg)
{
	(void)ctx, (void)level;
	if (getenv("RIG_LOG"))
		fprintf(stderr, "log %d: %s\n", level, msg);
}

static void *
rig_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t mem, int32_t device)
{
	struct node *node = ctx;
	void *p = NULL;

	(void)mem, (void)device;
	if (posix_memalign(&p, align < 16 ? 16 : align, bytes ? bytes : 1))
		return NULL;
	node->live++;
	return p;
}

static void
rig_free(void *ctx, void *p)
{
	struct node *node = ctx;

	node->live -= p != NULL;
	free(p);
}

void
node_open(struct node *node, uint32_t rank, uint32_t size, const char *options)
{
	struct ist_open args = { .struct_size = sizeof(args), .rank = rank, .size = size, .device = -1, .group = 7, .generation = 42,
		.deadline_ns = now() + GUARD_NS, .options = options ? options : "" };

	memset(node, 0, sizeof(*node));
	node->why.struct_size = sizeof(node->why);
	node->host = (struct ist_host){ .struct_size = sizeof(node->host), .abi = IST_BACKEND_ABI, .ctx = node, .log = rig_log,
		.alloc = rig_alloc, .free = rig_free };
	node->rank = rank;
	node->size = size;
	node->err = isthmus_backend_host()->open(NULL, &node->host, &args, &node->chan, &node->why);
}

void
node_close(struct node *node)
{
	CHECK(isthmus_backend_host()->close(node->chan, NULL) == IST_OK);
	node->chan = NULL;
	CHECK(node->live == 0);
}

static bool
near(const struct rig *rig, uint32_t a, uint32_t b)
{
	return !rig->hosts || rig->hosts[a] == rig->hosts[b];
}

ist_err
node_state(struct node *node, struct ist_task *task, struct ist_status *out)
{
	memset(out, 0, sizeof(*out));
	out->struct_size = sizeof(*out);
	out->rank = IST_NO_RANK;
	return isthmus_backend_host()->test(node->chan, task, out);
}

static bool
turn(struct node *node)
{
	struct ist_progress p = { .struct_size = sizeof(p) };

	CHECK(isthmus_backend_host()->progress(node->chan, &p) == IST_OK);
	return p.more;
}

void
rig_turn(struct rig *rig, uint32_t times)
{
	for (uint32_t t = 0; t < times; t++)
		for (uint32_t i = 0; i < rig->n; i++)
			if (rig->node[i].chan)
				turn(&rig->node[i]);
}

void
rig_connect(struct rig *rig, bool must)
{
	const struct ist_backend *b = isthmus_backend_host();
	struct ist_wire wires[RIG_MAX], seen[RIG_MAX];
	struct ist_task *tasks[RIG_MAX] = { NULL };

	for (uint32_t i = 0; i < rig->n; i++) {
		struct ist_task *task = NULL;
		struct node *node = &rig->node[i];
		CHECK(node->chan);
		CHECK(b->offer(node->chan, &wires[i], &task, &node->why) == IST_OK && task);
		CHECK(node_state(node, task, &node->why) == IST_OK && node->why.state == IST_DONE);
		b->task_free(node->chan, task);
	}
	for (uint32_t i = 0; i < rig->n; i++) {
		struct ist_connect args = { .struct_size = sizeof(args), .size = rig->n, .all = seen };
		for (uint32_t j = 0; j < rig->n; j++) {
			seen[j] = wires[j];
			if (!near(rig, i, j))
				seen[j].n_fds = 0;
		}
		rig->node[i].err = b->connect(rig->node[i].chan, &args, &tasks[i], &rig->node[i].why);
		CHECK(!must || rig->node[i].err == IST_OK);
	}
	if (must)
		CHECK(rig_wait(rig, tasks) == IST_OK);
	else
		for (uint32_t i = 0; i < rig->n; i++)
			if (!rig->node[i].err) {
				rig_turn(rig, 3);
				rig->node[i].err = node_state(&rig->node[i], tasks[i], &rig->node[i].why);
			}
}

void
rig_open(struct rig *rig)
{
	for (uint32_t i = 0; i < rig->n; i++)
		node_open(&rig->node[i], i, rig->n, rig->options);
	rig_connect(rig, true);
}

void
rig_close(struct rig *rig)
{
	for (uint32_t i = 0; i < rig->n; i++)
		node_close(&rig->node[i]);
}

struct ist_task *
begin_n(struct node *node, const struct ist_op *ops, uint64_t n)
{
	const struct ist_op *list[64];
	struct ist_task *task = NULL;

	CHECK(n <= 64);
	for (uint64_t i = 0; i < n; i++)
		list[i] = &ops[i];
	node->err = isthmus_backend_host()->start(node->chan, list, n, &task, &node->why);
	return node->err ? NULL : task;
}

struct ist_task *
begin(struct node *node, const struct ist_op *op)
{
	struct ist_task *task = begin_n(node, op, 1);

	if (!task)
		fprintf(stderr, "rank %u: start: %s: %s\n", node->rank, ist_err_name(node->err), node->why.text);
	CHECK(task);
	return task;
}

ist_err
rig_wait(struct rig *rig, struct ist_task **tasks)
{
	int64_t until = now() + GUARD_NS;
	struct ist_status st;
	ist_err first = IST_OK;
	uint32_t left;

	do {
		left = 0;
		rig_turn(rig, 1);
		for (uint32_t i = 0; i < rig->n; i++) {
			ist_err err = tasks[i] ? node_state(&rig->node[i], tasks[i], &st) : IST_OK;
			if (err && !first) {
				first = err;
				rig->node[i].why = st;
			}
			if (!tasks[i])
				continue;
			if (st.state == IST_DONE) {
				isthmus_backend_host()->task_free(rig->node[i].chan, tasks[i]);
				tasks[i] = NULL;
			} else {
				left++;
			}
		}
		CHECK(now() < until);
	} while (left && !first);
	return first;
}

ist_err
node_wait(struct node *node, struct ist_task *task, struct ist_status *out, bool keep)
{
	const struct ist_backend *b = isthmus_backend_host();
	int64_t until = now() + GUARD_NS;
	struct ist_status local;
	int32_t fd;
	ist_err err;

	out = out ? out : &local;
	for (;;) {
		bool more = turn(node);
		err = node_state(node, task, out);
		if (out->state == IST_DONE || err)
			break;
		CHECK(now() < until);
		if (more || b->arm(node->chan, &fd) == IST_BUSY)
			continue;
		struct pollfd p = { .fd = fd, .events = POLLIN };
		CHECK(poll(&p, 1, 20000) == 1 || errno == EINTR);
	}
	if (!keep && out->state == IST_DONE)
		b->task_free(node->chan, task);
	return err;
}

ist_err
node_do(struct node *node, const struct ist_op *op)
{
	return node_wait(node, begin(node, op), NULL, false);
}

/* ---- forked members ---- */

static void
wire_send(int sock, const struct ist_wire *wire, bool with_fds)
{
	char control[CMSG_SPACE(8 * sizeof(int))] = { 0 };
	union { const void *c; void *p; } u = { .c = wire->addr };
	struct iovec iov = { .iov_base = u.p, .iov_len = wire->bytes };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (with_fds && wire->n_fds) {
		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(wire->n_fds * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(wire->n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), wire->fds, wire->n_fds * sizeof(int));
	}
	CHECK(sendmsg(sock, &msg, MSG_NOSIGNAL) == (ssize_t)wire->bytes);
}

static void
wire_recv(int sock, uint8_t *room, int32_t *fds, struct ist_wire *out)
{
	char control[CMSG_SPACE(8 * sizeof(int))];
	struct iovec iov = { .iov_base = room, .iov_len = 4096 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	CHECK(n > 0);
	*out = (struct ist_wire){ .addr = room, .bytes = (uint64_t)n, .fds = fds };
	if (c) {
		out->n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(c), out->n_fds * sizeof(int));
	}
}

static void
member_connect(const struct rig *rig, struct node *node, int socks[RIG_MAX][RIG_MAX])
{
	static uint8_t rooms[RIG_MAX][4096];
	int32_t fds[RIG_MAX][8];
	struct ist_wire wires[RIG_MAX];
	struct ist_task *task = NULL;
	const struct ist_backend *b = isthmus_backend_host();
	uint32_t me = node->rank;

	CHECK(b->offer(node->chan, &wires[me], &task, &node->why) == IST_OK);
	b->task_free(node->chan, task);
	for (uint32_t j = 0; j < rig->n; j++)
		if (j != me)
			wire_send(socks[me][j], &wires[me], near(rig, me, j));
	for (uint32_t j = 0; j < rig->n; j++)
		if (j != me)
			wire_recv(socks[me][j], rooms[j], fds[j], &wires[j]);
	struct ist_connect args = { .struct_size = sizeof(args), .size = rig->n, .all = wires };
	CHECK(b->connect(node->chan, &args, &task, &node->why) == IST_OK);
	for (uint32_t j = 0; j < rig->n; j++)
		for (uint64_t k = 0; j != me && k < wires[j].n_fds; k++)
			close(fds[j][k]);
	CHECK(node_wait(node, task, &node->why, false) == IST_OK);
}

void
fork_run(const struct rig *rig, member run, void *arg, uint32_t kill_rank)
{
	int socks[RIG_MAX][RIG_MAX];
	pid_t pids[RIG_MAX];
	bool good = true;

	for (uint32_t i = 0; i < rig->n; i++)
		for (uint32_t j = i + 1; j < rig->n; j++) {
			int pair[2];
			CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
			socks[i][j] = pair[0];
			socks[j][i] = pair[1];
		}
	for (uint32_t i = 0; i < rig->n; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0);
		if (pids[i] == 0) {
			struct node node;
			alarm(120);
			node_open(&node, i, rig->n, rig->options);
			CHECK(node.chan);
			member_connect(rig, &node, socks);
			run(&node, arg);
			node_close(&node);
			_exit(0);
		}
	}
	for (uint32_t i = 0; i < rig->n; i++)
		for (uint32_t j = 0; j < rig->n; j++)
			if (i != j)
				close(socks[i][j]);
	for (uint32_t i = 0; i < rig->n; i++) {
		int status = 0;
		CHECK(waitpid(pids[i], &status, 0) == pids[i]);
		if (status != 0 && i != kill_rank) {
			fprintf(stderr, "rank %u ended with status 0x%x\n", i, (unsigned)status);
			good = false;
		}
	}
	CHECK(good);
}

/* ---- small things ---- */

struct ist_op
op_send(uint32_t to, const void *src, uint64_t bytes, uint64_t seq)
{
	union { const void *c; void *p; } u = { .c = src };

	return (struct ist_op){ .struct_size = sizeof(struct ist_op), .kind = IST_OP_SEND, .peer = to, .seq = seq,
		.src = { .addr = u.p, .bytes = bytes, .device = -1 } };
}

struct ist_op
op_recv(uint32_t from, void *dst, uint64_t bytes, uint64_t seq)
{
	return (struct ist_op){ .struct_size = sizeof(struct ist_op), .kind = IST_OP_RECV, .peer = from, .seq = seq,
		.dst = { .addr = dst, .bytes = bytes, .device = -1 } };
}

struct ist_op
op_cast(const struct node *node, uint32_t root, void *buf, uint64_t bytes, uint64_t seq, uint32_t flags)
{
	struct ist_op op = { .struct_size = sizeof(struct ist_op), .kind = IST_OP_BROADCAST, .peer = root, .seq = seq, .flags = flags };
	struct ist_buf b = { .addr = buf, .bytes = bytes, .device = -1 };

	if (node->rank == root)
		op.src = b;
	else
		op.dst = b;
	return op;
}

struct ist_op
op_barrier(uint64_t seq)
{
	return (struct ist_op){ .struct_size = sizeof(struct ist_op), .kind = IST_OP_BARRIER, .seq = seq };
}

static uint64_t
word_of(uint64_t i, uint64_t seed)
{
	uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ seed * UINT64_C(0xc2b2ae3d27d4eb4f);

	return x ^ x >> 29;
}

void
fill(void *to, uint64_t bytes, uint64_t seed)
{
	uint8_t *p = to;

	for (uint64_t i = 0; i * 8 < bytes; i++) {
		uint64_t w = word_of(i, seed), n = bytes - i * 8 < 8 ? bytes - i * 8 : 8;
		memcpy(p + i * 8, &w, n);
	}
}

bool
filled(const void *at, uint64_t bytes, uint64_t seed)
{
	const uint8_t *p = at;

	for (uint64_t i = 0; i * 8 < bytes; i++) {
		uint64_t w = word_of(i, seed), n = bytes - i * 8 < 8 ? bytes - i * 8 : 8;
		if (memcmp(p + i * 8, &w, n)) {
			fprintf(stderr, "bytes from %llu of %llu on differ\n", (unsigned long long)i * 8, (unsigned long long)bytes);
			return false;
		}
	}
	return true;
}

uint64_t
count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	uint64_t n = 0;

	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

uint64_t
count_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	uint64_t n = 0;
	int c;

	CHECK(f);
	while ((c = getc(f)) != EOF)
		n += c == '\n';
	fclose(f);
	return n;
}
