/* SPDX-License-Identifier: Apache-2.0
 *
 * host_rig.h - groups of host channels without a core: all in this process, driven in turn, or one in each of several forked
 * processes that exchange wire-ups over socket pairs. Which members get each other's descriptors is the test's to say.
 */
#ifndef TESTS_HOST_RIG_H
#define TESTS_HOST_RIG_H

#include <isthmus/backend.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define RIG_MAX 16

/* Kept in release builds; ends this process, which may be a forked member. */
#ifndef RIG_END
#define RIG_END() _exit(1)
#endif
#define CHECK(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #x); \
			RIG_END(); \
		} \
	} while (0)

const struct ist_backend *isthmus_backend_host(void);

struct node {
	struct ist_host host;
	struct ist_chan *chan;
	uint32_t rank, size;
	int64_t live;       /* allocations not freed */
	ist_err err;        /* why it did not connect */
	struct ist_status why;
};

/* Which hosts: member i lives on host hosts[i]; NULL: all on one. */
struct rig {
	uint32_t n;
	const char *options;
	const int *hosts;
	struct node node[RIG_MAX];
};

void node_open(struct node *node, uint32_t rank, uint32_t size, const char *options);
void node_close(struct node *node);            /* and checks that nothing is left allocated */
void rig_open(struct rig *rig);                /* all in this process; connected */
void rig_connect(struct rig *rig, bool must);  /* after node_open of all; must false: look at node.err */
void rig_close(struct rig *rig);

struct ist_task *begin(struct node *node, const struct ist_op *op);
struct ist_task *begin_n(struct node *node, const struct ist_op *ops, uint64_t n);
/* Drives all nodes until the tasks are done; returns the first error, of task i, and frees them. NULLs are skipped. */
ist_err rig_wait(struct rig *rig, struct ist_task **tasks);
void rig_turn(struct rig *rig, uint32_t times);
ist_err node_state(struct node *node, struct ist_task *task, struct ist_status *out);
/* As the core does: progress, test, arm, poll. Frees the task unless keep. */
ist_err node_wait(struct node *node, struct ist_task *task, struct ist_status *out, bool keep);
ist_err node_do(struct node *node, const struct ist_op *op);

/* Runs member in n forked processes, connected; true: all returned. kill_rank's end is not looked at. */
typedef void (*member)(struct node *node, void *arg);
void fork_run(const struct rig *rig, member run, void *arg, uint32_t kill_rank);

struct ist_op op_send(uint32_t to, const void *src, uint64_t bytes, uint64_t seq);
struct ist_op op_recv(uint32_t from, void *dst, uint64_t bytes, uint64_t seq);
struct ist_op op_cast(const struct node *node, uint32_t root, void *buf, uint64_t bytes, uint64_t seq, uint32_t flags);
struct ist_op op_barrier(uint64_t seq);

void fill(void *to, uint64_t bytes, uint64_t seed);
bool filled(const void *at, uint64_t bytes, uint64_t seed);
uint64_t count_fds(void);
uint64_t count_maps(void);

#endif
