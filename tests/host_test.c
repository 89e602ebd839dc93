/* SPDX-License-Identifier: Apache-2.0
 *
 * host_test.c - the host backend: every operation over shared memory, TCP and both, in one process and in forked ones.
 * What goes wrong on purpose is in host_bad_test.c.
 */
#include "host_rig.h"

#include "backends/host/host.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

static const int one_each[RIG_MAX] = { 0, 1, 2, 3, 4, 5, 6, 7 };
static const int two_two[RIG_MAX] = { 0, 0, 1, 1 };
static const int one_three[RIG_MAX] = { 0, 1, 1, 1 };
static const int mixed_up[RIG_MAX] = { 0, 1, 0, 1, 2, 0 };

static const struct rig shapes[] = {
	{ .n = 1 },
	{ .n = 2 },
	{ .n = 3 },
	{ .n = 4 },
	{ .n = 7 },
	{ .n = 2, .options = "transport=tcp" },
	{ .n = 4, .options = "transport=tcp,listen=127.0.0.1" },
	{ .n = 2, .hosts = one_each },
	{ .n = 4, .hosts = two_two },
	{ .n = 4, .hosts = one_three },
	{ .n = 6, .hosts = mixed_up, .options = "calibrate=0" },
	{ .n = 3, .options = "transport=shm" },
	{ .n = 2, .options = "transport=tcp,listen=[::1]" },
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* around a cache line, a page, the smallest direct message, a piece, ring and stage */
static const uint64_t sizes[] = { 0, 1, 7, 63, 64, 65, 4095, 4096, 65535, 65536, 100003, 1048575, 1048577, 4194303, 4194304, 8388607,
	8388609, 9000001 };
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void *
take(struct node *node, uint64_t bytes)
{
	void *p = NULL;
	ist_err err = isthmus_backend_host()->alloc(node->chan, bytes, IST_MEM_HOST, -1, &p, &node->why);

	CHECK(err == IST_OK || err == IST_UNSUPPORTED);
	if (!p)
		p = malloc(bytes ? bytes : 1);
	CHECK(p);
	return p;
}

static void
give(struct node *node, void *p)
{
	/* the backend ignores what it has not given */
	void *mine = NULL;
	ist_err err = isthmus_backend_host()->alloc(node->chan, 1, IST_MEM_HOST, -1, &mine, NULL);

	isthmus_backend_host()->free(node->chan, p);
	if (err)
		free(p);
	else
		isthmus_backend_host()->free(node->chan, mine);
}

/* ---- in one process ---- */

static void
pairs(struct rig *rig, uint64_t bytes, bool own)
{
	uint64_t seed = bytes + 1;

	for (uint32_t a = 0; a < rig->n; a++)
		for (uint32_t b = 0; b < rig->n; b++) {
			struct ist_task *tasks[RIG_MAX] = { NULL };
			uint8_t *src = own ? take(&rig->node[a], bytes + 8) : malloc(bytes + 8), *dst = malloc(bytes + 9);
			CHECK(src && dst);
			fill(src + 3, bytes, seed);
			memset(dst, 0xAA, bytes + 9);
			struct ist_op s = op_send(b, src + 3, bytes, seed), r = op_recv(a, dst + 5, bytes, seed);
			if (a == b) {
				struct ist_op both[2] = { r, s };
				tasks[a] = begin_n(&rig->node[a], both, 2);
			} else {
				tasks[a] = begin(&rig->node[a], &s);
				tasks[b] = begin(&rig->node[b], &r);
			}
			CHECK(rig_wait(rig, tasks) == IST_OK);
			CHECK(filled(dst + 5, bytes, seed));
			CHECK(dst[4] == 0xAA && dst[bytes + 5] == 0xAA);
			if (own)
				give(&rig->node[a], src);
			else
				free(src);
			free(dst);
		}
}

static void
casts(struct rig *rig, uint64_t bytes, bool own, uint32_t flags)
{
	for (uint32_t root = 0; root < rig->n; root++) {
		struct ist_task *tasks[RIG_MAX] = { NULL };
		uint8_t *buf[RIG_MAX];
		for (uint32_t i = 0; i < rig->n; i++) {
			buf[i] = own ? take(&rig->node[i], bytes + 2) : malloc(bytes + 2);
			CHECK(buf[i]);
			memset(buf[i], 0x55, bytes + 2);
			if (i == root)
				fill(buf[i] + 1, bytes, root + bytes);
			struct ist_op op = op_cast(&rig->node[i], root, buf[i] + 1, bytes, 9 + root, flags);
			tasks[i] = begin(&rig->node[i], &op);
		}
		CHECK(rig_wait(rig, tasks) == IST_OK);
		for (uint32_t i = 0; i < rig->n; i++) {
			CHECK(filled(buf[i] + 1, bytes, root + bytes));
			CHECK(buf[i][0] == 0x55 && buf[i][bytes + 1] == 0x55);
			if (own)
				give(&rig->node[i], buf[i]);
			else
				free(buf[i]);
		}
	}
}

static void
all_shapes_all_sizes(void **state)
{
	(void)state;
	for (uint32_t s = 0; s < SHAPES; s++) {
		struct rig rig = shapes[s];
		rig_open(&rig);
		for (uint32_t z = 0; z < SIZES; z++) {
			if ((rig.n > 4 && sizes[z] > 65536) || (rig.n > 2 && sizes[z] > 1048577 && sizes[z] != 9000001))
				continue; /* n squared of them */
			pairs(&rig, sizes[z], z % 2);
			casts(&rig, sizes[z], false, 0);
			casts(&rig, sizes[z], true, 0);
		}
		rig_close(&rig);
	}
}

/* Pieces that a member has copied in the broadcast that its seats remember. */
static uint64_t
pieces_by(const struct ist_chan *chan)
{
	uint64_t n = 0;

	for (uint32_t s = 0; s < SEATS; s++)
		for (uint32_t w = 0; w < PIECES / 64; w++)
			n += (uint64_t)__builtin_popcountll(chan->ctl->seats[s].done[w]);
	return n;
}

/* Large, in the channel's own memory: root and receivers all copy. One with other memory, and one that comes late, get it too. */
static void
all_hands_copy(void **state)
{
	enum { N = 4 };
	static const uint64_t large[] = { 4 << 20, (4 << 20) + 5, (17 << 20) + 1 };

	(void)state;
	for (int odd = 0; odd < 4; odd++) { /* 0: nobody, 1: plain memory, 2: late, 3: both, and all of them forbid it */
		struct rig rig = { .n = N, .options = odd == 3 ? "coop=0" : NULL };

		rig_open(&rig);
		for (uint32_t k = 0; k < 3 * N; k++) {
			struct ist_task *tasks[RIG_MAX] = { NULL };
			uint64_t bytes = large[k % 3];
			uint32_t root = k % N, plain = odd & 1 ? (root + 1) % N : N, late = odd & 2 ? (root + 2) % N : N;
			uint8_t *buf[N];

			for (uint32_t i = 0; i < N; i++) {
				buf[i] = i == plain ? malloc(bytes + 2) : take(&rig.node[i], bytes + 2);
				memset(buf[i], 0x55, bytes + 2);
				if (i == root)
					fill(buf[i] + 1, bytes, k);
			}
			for (uint32_t pass = 0; pass < 2; pass++) {
				for (uint32_t i = 0; i < N; i++) {
					struct ist_op op = op_cast(&rig.node[i], root, buf[i] + 1, bytes, k, 0);

					if ((i == late) == (pass == 1))
						tasks[i] = begin(&rig.node[i], &op);
				}
				for (int t = 0; t < 5 && pass == 0 && late < N; t++) {
					rig_turn(&rig, 1);
					poll(NULL, 0, 1);
				}
			}
			CHECK(rig_wait(&rig, tasks) == IST_OK);
			for (uint32_t i = 0; i < N; i++) {
				CHECK(filled(buf[i] + 1, bytes, k));
				CHECK(buf[i][0] == 0x55 && buf[i][bytes + 1] == 0x55);
				if (i == plain)
					free(buf[i]);
				else
					give(&rig.node[i], buf[i]);
			}
			CHECK((pieces_by(rig.node[root].chan) > 0) == (odd != 3));
			CHECK((pieces_by(rig.node[(root + 3) % N].chan) > 0) == (odd != 3));
		}
		rig_close(&rig);
	}
}

/* More of them than there are seats, from all members at once. */
static void
all_hands_at_many_things(void **state)
{
	enum { N = 3, MANY = 12 };
	const uint64_t bytes = 5 << 20;
	struct rig rig = { .n = N };
	struct ist_task *tasks[MANY][RIG_MAX] = { { NULL } };
	uint8_t *buf[MANY][N];

	(void)state;
	rig_open(&rig);
	for (uint32_t k = 0; k < MANY; k++)
		for (uint32_t i = 0; i < N; i++) {
			struct ist_op op;

			buf[k][i] = take(&rig.node[i], bytes);
			memset(buf[k][i], 0x77, bytes);
			if (i == k % N)
				fill(buf[k][i], bytes, k);
			op = op_cast(&rig.node[i], k % N, buf[k][i], bytes, k, 0);
			tasks[k][i] = begin(&rig.node[i], &op);
		}
	for (uint32_t k = 0; k < MANY; k++) {
		CHECK(rig_wait(&rig, tasks[k]) == IST_OK);
		for (uint32_t i = 0; i < N; i++)
			CHECK(filled(buf[k][i], bytes, k));
	}
	rig_close(&rig);
}

/* Views: who shares memory with the one that has the bytes gets no copy, the others their own. */
static void
views_are_lent_until_freed(void **state)
{
	const struct ist_backend *b = isthmus_backend_host();
	const uint64_t bytes = 1500001;

	(void)state;
	for (uint32_t s = 0; s < SHAPES; s++) {
		struct rig rig = shapes[s];
		if (rig.n < 2)
			continue;
		rig_open(&rig);
		uint8_t *buf[RIG_MAX];
		for (uint32_t i = 0; i < rig.n; i++)
			buf[i] = take(&rig.node[i], bytes);
		for (uint32_t turn = 0; turn < 10; turn++) {
			struct ist_task *tasks[RIG_MAX];
			struct ist_status st;
			uint32_t root = turn % rig.n, done = 0, lent = 0;
			bool over[RIG_MAX] = { false };
			fill(buf[root], bytes, turn);
			for (uint32_t i = 0; i < rig.n; i++) {
				struct ist_op op = op_cast(&rig.node[i], root, buf[i], bytes, turn, IST_OP_VIEW);
				tasks[i] = begin(&rig.node[i], &op);
			}
			for (uint32_t round = 0; done < rig.n && round < 1000000; round++) {
				rig_turn(&rig, 1);
				for (uint32_t i = 0; i < rig.n; i++) {
					if (over[i])
						continue;
					CHECK(node_state(&rig.node[i], tasks[i], &st) == IST_OK);
					if (st.state != IST_DONE)
						continue;
					CHECK(st.view.bytes == bytes && filled(st.view.addr, bytes, turn));
					if (st.view.addr != buf[i]) {
						struct ist_status other;
						lent++;
						/* the root's memory is in use as long as somebody looks at it; here the lender is the root or a relay */
						if (!rig.hosts) {
							rig_turn(&rig, 5);
							CHECK(!over[root]);
							CHECK(node_state(&rig.node[root], tasks[root], &other) == IST_OK && other.state != IST_DONE);
						}
					}
					b->task_free(rig.node[i].chan, tasks[i]);
					over[i] = true;
					done++;
				}
			}
			CHECK(done == rig.n);
			if (rig.options && strstr(rig.options, "tcp"))
				CHECK(lent == 0);
			else if (!rig.hosts)
				CHECK(lent == rig.n - 1);
		}
		for (uint32_t i = 0; i < rig.n; i++)
			give(&rig.node[i], buf[i]);
		rig_close(&rig);
	}
}

/* A broadcast of every root in one start, own and foreign memory mixed, several starts under way, more than a board holds. */
static void
many_broadcasts_at_once(void **state)
{
	enum { STARTS = 30 };
	const uint64_t bytes = 100007;

	(void)state;
	for (uint32_t s = 0; s < SHAPES; s++) {
		struct rig rig = shapes[s];
		rig_open(&rig);
		struct ist_task *tasks[STARTS][RIG_MAX] = { { NULL } };
		uint8_t *mem[RIG_MAX];
		for (uint32_t i = 0; i < rig.n; i++)
			mem[i] = take(&rig.node[i], bytes * rig.n * STARTS);
		for (uint32_t k = 0; k < STARTS; k++)
			for (uint32_t i = 0; i < rig.n; i++) {
				struct ist_op ops[RIG_MAX];
				for (uint32_t root = 0; root < rig.n; root++) {
					uint8_t *at = mem[i] + bytes * (k * rig.n + root);
					if (root == i)
						fill(at, bytes, k * 100 + root);
					ops[root] = op_cast(&rig.node[i], root, at, bytes - k, k * rig.n + root, 0);
				}
				tasks[k][i] = begin_n(&rig.node[i], ops, rig.n);
				CHECK(tasks[k][i]);
			}
		for (uint32_t k = 0; k < STARTS; k++)
			CHECK(rig_wait(&rig, tasks[k]) == IST_OK);
		for (uint32_t i = 0; i < rig.n; i++)
			for (uint32_t k = 0; k < STARTS; k++)
				for (uint32_t root = 0; root < rig.n; root++)
					CHECK(filled(mem[i] + bytes * (k * rig.n + root), bytes - k, k * 100 + root));
		for (uint32_t i = 0; i < rig.n; i++)
			give(&rig.node[i], mem[i]);
		rig_close(&rig);
	}
}

/* One member begins the second broadcast only after the first has ended; the others began both. */
static void
later_broadcast_does_not_block_earlier(void **state)
{
	const uint64_t bytes = 20000003; /* more than sockets and stages hold */

	(void)state;
	for (uint32_t s = 0; s < SHAPES; s++) {
		struct rig rig = shapes[s];
		if (rig.n < 3)
			continue;
		rig_open(&rig);
		struct ist_task *first[RIG_MAX] = { NULL }, *second[RIG_MAX] = { NULL };
		uint8_t *x[RIG_MAX], *y[RIG_MAX];
		uint32_t late = rig.n - 1;
		for (uint32_t i = 0; i < rig.n; i++) {
			x[i] = malloc(bytes);
			y[i] = malloc(bytes);
			CHECK(x[i] && y[i]);
			memset(i == 0 ? x[i] : y[i], 1 + (i == 0), bytes);
			struct ist_op op = op_cast(&rig.node[i], 0, x[i], bytes, 1, 0), op2 = op_cast(&rig.node[i], 1, y[i], bytes, 2, 0);
			if (i != 0)
				first[i] = begin(&rig.node[i], &op);
			if (i != late) {
				if (i == 0)
					first[i] = begin(&rig.node[i], &op);
				second[i] = begin(&rig.node[i], &op2);
			}
		}
		rig_turn(&rig, 50);
		CHECK(rig_wait(&rig, first) == IST_OK);
		struct ist_op op2 = op_cast(&rig.node[late], 1, y[late], bytes, 2, 0);
		second[late] = begin(&rig.node[late], &op2);
		CHECK(rig_wait(&rig, second) == IST_OK);
		for (uint32_t i = 0; i < rig.n; i++) {
			CHECK(x[i][0] == 2 && !memcmp(x[i], x[i] + 1, bytes - 1) && y[i][0] == 1 && !memcmp(y[i], y[i] + 1, bytes - 1));
			free(x[i]);
			free(y[i]);
		}
		rig_close(&rig);
	}
}

static void
barriers(void **state)
{
	(void)state;
	for (uint32_t s = 0; s < SHAPES; s++) {
		struct rig rig = shapes[s];
		bool native = rig.n == 1 || (!rig.hosts && !(rig.options && strstr(rig.options, "tcp")));
		rig_open(&rig);
		for (uint64_t k = 0; k < 50; k++) {
			struct ist_task *tasks[RIG_MAX] = { NULL };
			struct ist_op op = op_barrier(k);
			struct ist_status st;
			if (!native) {
				for (uint32_t i = 0; i < rig.n; i++) {
					CHECK(!begin_n(&rig.node[i], &op, 1));
					CHECK(rig.node[i].err == IST_UNSUPPORTED);
				}
				continue;
			}
			for (uint32_t i = 1; i < rig.n; i++)
				tasks[i] = begin(&rig.node[i], &op);
			rig_turn(&rig, 3);
			for (uint32_t i = 1; i < rig.n; i++)
				CHECK(node_state(&rig.node[i], tasks[i], &st) == IST_OK && st.state == IST_PENDING);
			tasks[0] = begin(&rig.node[0], &op);
			CHECK(rig_wait(&rig, tasks) == IST_OK);
		}
		/* more under way than there are places */
		struct ist_task *many[40][RIG_MAX] = { { NULL } };
		for (uint64_t k = 0; native && k < 40; k++)
			for (uint32_t i = 0; i < rig.n; i++) {
				struct ist_op op = op_barrier(1000 + k);
				many[k][i] = begin(&rig.node[i], &op);
			}
		for (uint64_t k = 0; native && k < 40; k++)
			CHECK(rig_wait(&rig, many[k]) == IST_OK);
		rig_close(&rig);
	}
}

/* What the others do not do holds nothing up: a pair, the other direction, another peer. */
static void
peers_are_independent(void **state)
{
	static const struct rig two[] = { { .n = 3 }, { .n = 3, .options = "transport=tcp" }, { .n = 3, .hosts = two_two } };
	const uint64_t bytes = 30000000;

	(void)state;
	for (uint32_t s = 0; s < 3; s++) {
		struct rig rig = two[s];
		struct ist_status st;
		rig_open(&rig);
		uint8_t *a = malloc(bytes), *b = malloc(bytes), *c = malloc(bytes);
		CHECK(a && b && c);
		fill(a, bytes, 1);
		/* 0 sends to 1, which takes nothing yet, and to 2, in one start; and gets from 1 */
		struct ist_op out[3] = { op_send(1, a, bytes, 1), op_send(2, a, bytes, 1), op_recv(1, c, 1000, 5) };
		struct ist_op in2 = op_recv(0, b, bytes, 1), out1 = op_send(0, a, 1000, 5);
		struct ist_task *t0 = begin_n(&rig.node[0], out, 3);
		struct ist_task *rest[RIG_MAX] = { NULL };
		rest[2] = begin(&rig.node[2], &in2);
		rest[1] = begin(&rig.node[1], &out1);
		CHECK(rig_wait(&rig, rest) == IST_OK);
		CHECK(filled(b, bytes, 1));
		CHECK(node_state(&rig.node[0], t0, &st) == IST_OK && st.state == IST_PENDING && st.moved > 1000);
		memset(b, 0, bytes);
		struct ist_op in1 = op_recv(0, b, bytes, 1);
		struct ist_task *last[RIG_MAX] = { t0, begin(&rig.node[1], &in1) };
		CHECK(rig_wait(&rig, last) == IST_OK);
		CHECK(filled(b, bytes, 1) && filled(c, 1000, 1));
		free(a);
		free(b);
		free(c);
		rig_close(&rig);
	}
}

/* ---- idle ---- */

static void
an_idle_channel_sleeps(void **state)
{
	static const struct rig kinds[] = { { .n = 2 }, { .n = 2, .options = "transport=tcp" } };
	const struct ist_backend *b = isthmus_backend_host();

	(void)state;
	for (uint32_t s = 0; s < 2; s++) {
		struct rig rig = kinds[s];
		char x[2] = "ab", y[2];
		int32_t fd = -1;
		rig_open(&rig);
		for (int k = 0; k < 20; k++) {
			struct ist_op so = op_send(1, x, 2, 1), ro = op_recv(0, y, 2, 1);
			struct pollfd p = { .events = POLLIN };
			struct ist_task *t[RIG_MAX] = { NULL }, *r[RIG_MAX] = { NULL };
			ist_err err = IST_BUSY;
			r[1] = begin(&rig.node[1], &ro);
			for (int i = 0; i < 100 && err == IST_BUSY; i++) {
				rig_turn(&rig, 1);
				err = b->arm(rig.node[1].chan, &fd);
			}
			CHECK(err == IST_OK && fd >= 0);
			p.fd = fd;
			CHECK(poll(&p, 1, 0) == 0);
			/* only the sender runs; the receiver's descriptor must tell */
			t[0] = begin(&rig.node[0], &so);
			for (int i = 0; i < 1000 && poll(&p, 1, k == 0 ? 10 : 1) == 0; i++) {
				struct ist_progress out = { .struct_size = sizeof(out) };
				CHECK(b->progress(rig.node[0].chan, &out) == IST_OK);
			}
			CHECK(poll(&p, 1, 20000) == 1);
			CHECK(rig_wait(&rig, t) == IST_OK);
			CHECK(rig_wait(&rig, r) == IST_OK);
			CHECK(!memcmp(x, y, 2));
		}
		rig_close(&rig);
	}
}

/* ---- forked ---- */

static void
forked_member(struct node *node, void *arg)
{
	const struct rig *rig = arg;
	bool native = !rig->hosts && !(rig->options && strstr(rig->options, "tcp"));
	uint64_t big = UINT64_C(64) << 20;
	uint8_t *mine = take(node, big), *plain = malloc(big);

	CHECK(plain);
	for (uint64_t k = 0; k < 60; k++) {
		uint64_t bytes = k == 59 ? big : sizes[k % SIZES];
		uint32_t root = (uint32_t)k % node->size;
		uint8_t *buf = k % 3 ? plain : mine;
		uint32_t next = (node->rank + 1) % node->size, before = (node->rank + node->size - 1) % node->size;
		struct ist_op op = op_cast(node, root, buf, bytes, k, 0);

		memset(buf, 0, bytes);
		if (root == node->rank)
			fill(buf, bytes, k);
		CHECK(node_do(node, &op) == IST_OK);
		CHECK(filled(buf, bytes, k));
		if (native) {
			op = op_barrier(1000 + k);
			CHECK(node_do(node, &op) == IST_OK);
		}
		if (bytes > 10000000)
			continue;
		/* around the ring, both at once */
		struct ist_op ring[2] = { op_send(next, buf, bytes, k), op_recv(before, (buf == plain ? mine : plain), bytes, k) };
		CHECK(node_wait(node, begin_n(node, ring, 2), NULL, false) == IST_OK);
		CHECK(filled(ring[1].dst.addr, bytes, k));
	}
	/* views, two slots deep */
	const uint64_t slot = 1 << 20;
	for (uint64_t k = 0; k < 40; k++) {
		uint8_t *buf = mine + slot * (k % 2);
		struct ist_op op = op_cast(node, 0, buf, slot, 5000 + k, IST_OP_VIEW);
		struct ist_status st;
		if (node->rank == 0)
			fill(buf, slot, k);
		struct ist_task *task = begin(node, &op);
		CHECK(node_wait(node, task, &st, true) == IST_OK);
		CHECK(st.view.bytes == slot && filled(st.view.addr, slot, k));
		isthmus_backend_host()->task_free(node->chan, task);
	}
	/* nobody leaves before all have got everything */
	for (uint32_t i = 1; i < node->size && node->rank == 0; i++) {
		struct ist_op op = op_recv(i, plain, 1, 9000);
		CHECK(node_do(node, &op) == IST_OK);
	}
	for (uint32_t i = 1; i < node->size && node->rank == 0; i++) {
		struct ist_op op = op_send(i, plain, 1, 9001);
		CHECK(node_do(node, &op) == IST_OK);
	}
	if (node->rank) {
		struct ist_op op = op_send(0, plain, 1, 9000);
		CHECK(node_do(node, &op) == IST_OK);
		op = op_recv(0, plain, 1, 9001);
		CHECK(node_do(node, &op) == IST_OK);
	}
	give(node, mine);
	free(plain);
}

static void
forked_processes(void **state)
{
	(void)state;
	for (uint32_t s = 1; s < SHAPES; s++) {
		struct rig rig = shapes[s];
		if (rig.n <= 4)
			fork_run(&rig, forked_member, &rig, IST_NO_RANK);
	}
}

/* More than 4 GiB without the memory: the source is empty pages but for three bytes, the sink one piece mapped again and again. */
static void
large_member(struct node *node, void *arg)
{
	const uint64_t bytes = (UINT64_C(4) << 30) + 5, piece = UINT64_C(64) << 20, room = (UINT64_C(4) << 30) + piece;
	int fd = memfd_create("again", MFD_CLOEXEC);
	uint8_t *at;

	(void)arg;
	CHECK(fd >= 0 && !ftruncate(fd, (off_t)piece));
	at = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(at != MAP_FAILED);
	if (node->rank == 0) {
		at[0] = 7;
		at[(UINT64_C(4) << 30) - 1] = 8;
		at[bytes - 1] = 9;
	} else {
		for (uint64_t o = 0; o < room; o += piece)
			CHECK(mmap(at + o, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
	}
	struct ist_status st;
	struct ist_op op = op_cast(node, 0, at, bytes, 1, 0);
	struct ist_task *task = begin(node, &op);
	CHECK(node_wait(node, task, &st, true) == IST_OK);
	CHECK(st.moved == bytes);
	isthmus_backend_host()->task_free(node->chan, task);
	if (node->rank)
		CHECK(at[4] == 9 && at[piece - 1] == 8);
	op = node->rank ? op_send(0, at, 1, 2) : op_recv(1, at, 1, 2);
	CHECK(node_do(node, &op) == IST_OK);
	munmap(at, room);
	close(fd);
}

static void
more_than_4_gib(void **state)
{
	static const struct rig kinds[] = { { .n = 2 }, { .n = 2, .options = "transport=tcp" } };

	(void)state;
	for (uint32_t s = 0; s < 2; s++)
		fork_run(&kinds[s], large_member, NULL, IST_NO_RANK);
}

/* ---- parts ---- */

static void
every_copy_loop_copies(void **state)
{
	enum { ROOM = 200000 };
	uint8_t *a = malloc(ROOM), *b = malloc(ROOM);
	struct copier copier;

	(void)state;
	CHECK(a && b);
	fill(a, ROOM, 3);
	for (uint32_t way = 0; ist__host_copy_name(way); way++)
		for (uint64_t off = 0; off < 130; off += 13)
			for (uint64_t n = 0; n < 70000; n = n < 140 ? n + 1 : n * 2 + 1) {
				memset(b, 0xEE, ROOM);
				if (!ist__host_copy_with(way, b + off, a + off / 3, n))
					break;
				CHECK(!memcmp(b + off, a + off / 3, n));
				CHECK(b[off + n] == 0xEE && (off == 0 || b[off - 1] == 0xEE));
			}
	free(a);
	free(b);
	ist__host_copier_init(&copier, true);
	CHECK(copier.n_ways >= 1);
	a = malloc(1 << 20);
	b = malloc(1 << 20);
	CHECK(a && b);
	fill(a, 1 << 20, 4);
	for (int i = 0; i < 40; i++) {
		memset(b, 0, 1 << 20);
		ist__host_copy(&copier, 64 << 20, b, a, 1 << 20);
		CHECK(!memcmp(a, b, 1 << 20));
	}
	CHECK(!copier.learning && ist__host_copier_name(&copier));
	free(a);
	free(b);
}

static void
options_are_checked(void **state)
{
	static const struct { const char *text; ist_err err; } rows[] = {
		{ "", IST_OK }, { "transport=auto,", IST_OK }, { "transport=shm,calibrate=0", IST_OK }, { "listen=127.0.0.1", IST_OK },
		{ "listen=0.0.0.0,advertise=10.0.0.1", IST_OK }, { "listen=::,advertise=[fe80::1]", IST_OK }, { "user_timeout=30", IST_OK },
		{ "transport=ib", IST_BAD_CONFIG }, { "transport", IST_BAD_CONFIG }, { "listen=here", IST_BAD_CONFIG },
		{ "listen=", IST_BAD_CONFIG }, { "listen=0.0.0.0", IST_BAD_CONFIG }, { "calibrate=2", IST_BAD_CONFIG },
		{ "copy=libc", IST_OK }, { "copy=", IST_BAD_CONFIG }, { "copy=quickest", IST_BAD_CONFIG },
		{ "copy=a-name-that-is-longer-than-any-loop-has", IST_BAD_CONFIG },
		{ "calibrate=-1", IST_BAD_CONFIG }, { "speed=high", IST_BAD_CONFIG }, { "=", IST_BAD_CONFIG }, { "user_timeout=1e3", IST_BAD_CONFIG },
	};

	(void)state;
	for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct node node;
		node_open(&node, 0, 1, rows[i].text);
		if (node.err != rows[i].err)
			fprintf(stderr, "'%s': %s, %s\n", rows[i].text, ist_err_name(node.err), node.why.text);
		CHECK(node.err == rows[i].err);
		CHECK(node.err == IST_OK || node.why.text[0]);
		if (!node.err)
			node_close(&node);
		CHECK(node.live == 0);
	}
}

static void
nothing_is_left_after_close(void **state)
{
	uint64_t fds = 0, maps = 0;

	(void)state;
	for (int k = 0; k < 200; k++) {
		struct rig rig = shapes[(size_t)k % 4 == 0 ? 1 : (size_t)k % 4 == 1 ? 6 : (size_t)k % 4 == 2 ? 8 : 2];
		rig_open(&rig);
		casts(&rig, 70000, k % 2, 0);
		pairs(&rig, 1000, k % 2);
		if (k % 3 == 0) { /* what is left is freed there */
			struct ist_op op = op_cast(&rig.node[0], 0, &rig, 100, 99, 0);
			void *p;
			(void)begin(&rig.node[0], &op);
			(void)isthmus_backend_host()->alloc(rig.node[0].chan, 5000, IST_MEM_HOST, -1, &p, NULL);
		}
		rig_close(&rig);
		if (k == 20) {
			fds = count_fds();
			maps = count_maps();
		}
	}
	CHECK(count_fds() == fds);
	CHECK(count_maps() <= maps + 4); /* the allocator's own */
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_are_checked),
		cmocka_unit_test(every_copy_loop_copies),
		cmocka_unit_test(all_shapes_all_sizes),
		cmocka_unit_test(all_hands_copy),
		cmocka_unit_test(all_hands_at_many_things),
		cmocka_unit_test(views_are_lent_until_freed),
		cmocka_unit_test(many_broadcasts_at_once),
		cmocka_unit_test(later_broadcast_does_not_block_earlier),
		cmocka_unit_test(barriers),
		cmocka_unit_test(peers_are_independent),
		cmocka_unit_test(an_idle_channel_sleeps),
		cmocka_unit_test(forked_processes),
		cmocka_unit_test(more_than_4_gib),
		cmocka_unit_test(nothing_is_left_after_close),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
