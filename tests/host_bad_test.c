/* SPDX-License-Identifier: Apache-2.0
 *
 * host_bad_test.c - the host backend when something is wrong: members that disagree, die, lie in shared memory, do not read,
 * or are no members at all; limits; aborts from anywhere.
 */
#include "host_rig.h"

#include "backends/host/host.h"
#include "base/bytes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#include <cmocka.h>

static const struct rig shm2 = { .n = 2 }, tcp2 = { .n = 2, .options = "transport=tcp" };

/* ---- members that disagree ---- */

static void
disagree(const struct rig *kind, bool cast, uint64_t b0, uint64_t s0, uint64_t b1, uint64_t s1, ist_err want)
{
	struct rig rig = *kind;
	uint8_t *a = calloc(1, b0 + 1), *b = malloc(b1 + 1);
	struct ist_task *tasks[RIG_MAX] = { NULL };

	CHECK(a && b);
	rig_open(&rig);
	memset(b, 0xCC, b1 + 1);
	struct ist_op o0 = cast ? op_cast(&rig.node[0], 0, a, b0, s0, 0) : op_send(1, a, b0, s0);
	struct ist_op o1 = cast ? op_cast(&rig.node[1], 0, b, b1, s1, 0) : op_recv(0, b, b1, s1);
	struct ist_task *t0 = begin(&rig.node[0], &o0);
	tasks[1] = begin(&rig.node[1], &o1);
	rig_turn(&rig, 10);
	CHECK(rig_wait(&rig, tasks) == want);
	CHECK(rig.node[1].why.rank == 0);
	/* the text names both numbers */
	char number[24];
	snprintf(number, sizeof(number), "%llu", (unsigned long long)(b0 == b1 ? s0 : b0));
	CHECK(strstr(rig.node[1].why.text, number));
	snprintf(number, sizeof(number), "%llu", (unsigned long long)(b0 == b1 ? s1 : b1));
	CHECK(strstr(rig.node[1].why.text, number));
	for (uint64_t i = 0; i <= b1; i++)
		CHECK(b[i] == 0xCC);
	(void)t0;
	rig_close(&rig);
	free(a);
	free(b);
}

static void
mismatches_are_told(void **state)
{
	static const struct rig *const kinds[] = { &shm2, &tcp2 };

	(void)state;
	for (int k = 0; k < 2; k++)
		for (int cast = 0; cast < 2; cast++) {
			disagree(kinds[k], cast, 8192, 1, 4096, 1, IST_MISMATCH);
			disagree(kinds[k], cast, 4096, 1, 8192, 1, IST_MISMATCH);
			disagree(kinds[k], cast, 0, 1, 77, 1, IST_MISMATCH);
			disagree(kinds[k], cast, 77, 1, 0, 1, IST_MISMATCH);
			disagree(kinds[k], cast, 100, 41, 100, 42, IST_ORDER_MISMATCH);
		}
	struct rig rig = shm2;
	struct ist_task *tasks[RIG_MAX] = { NULL };
	rig_open(&rig);
	struct ist_op a = op_barrier(5), b = op_barrier(6);
	tasks[0] = begin(&rig.node[0], &a);
	tasks[1] = begin(&rig.node[1], &b);
	CHECK(rig_wait(&rig, tasks) == IST_ORDER_MISMATCH);
	rig_close(&rig);
	/* only one wants a view */
	char x[8] = "", y[8];
	rig = shm2;
	rig_open(&rig);
	a = op_cast(&rig.node[0], 0, x, 8, 1, IST_OP_VIEW);
	b = op_cast(&rig.node[1], 0, y, 8, 1, 0);
	tasks[0] = begin(&rig.node[0], &a);
	tasks[1] = begin(&rig.node[1], &b);
	CHECK(rig_wait(&rig, tasks) == IST_MISMATCH);
	rig_close(&rig);
}

/* ---- arguments ---- */

static void
wrong_arguments_begin_nothing(void **state)
{
	struct rig rig = shm2;
	char x[8];

	(void)state;
	rig_open(&rig);
	struct ist_op good = op_recv(1, x, 8, 1);
	struct { struct ist_op op; ist_err err; } rows[] = {
		{ op_send(2, x, 8, 1), IST_INVALID_ARGUMENT }, { op_send(1, NULL, 8, 1), IST_INVALID_ARGUMENT },
		{ op_send(1, x, UINT64_MAX, 1), IST_INVALID_ARGUMENT }, { op_send(1, x, 8, 1), IST_UNSUPPORTED },
		{ op_send(1, x, 8, 1), IST_UNSUPPORTED }, { op_send(1, x, 8, 1), IST_UNSUPPORTED }, { op_send(1, x, 8, 1), IST_UNSUPPORTED },
		{ op_send(1, x, 8, 1), IST_UNSUPPORTED },
	};
	rows[3].op.kind = IST_OP_ALL_REDUCE;
	rows[4].op.kind = 4000000000u;
	rows[5].op.flags = IST_MUST | 64;
	rows[6].op.stream = x;
	rows[7].op.src.mem = IST_MEM_CUDA;
	for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct ist_op two[2] = { good, rows[i].op };
		CHECK(!begin_n(&rig.node[0], two, 2));
		CHECK(rig.node[0].err == rows[i].err);
	}
	/* nothing was left in the queues: this is the first message */
	char y[8] = "1234567";
	struct ist_op s = op_send(0, y, 8, 1);
	struct ist_task *tasks[RIG_MAX] = { begin(&rig.node[0], &good), begin(&rig.node[1], &s) };
	CHECK(rig_wait(&rig, tasks) == IST_OK && !memcmp(x, y, 8));
	/* no operations at all */
	tasks[0] = begin_n(&rig.node[0], NULL, 0);
	CHECK(tasks[0] && rig_wait(&rig, tasks) == IST_OK);
	/* more memory than there is */
	void *p = NULL;
	CHECK(isthmus_backend_host()->alloc(rig.node[0].chan, UINT64_MAX, IST_MEM_HOST, -1, &p, &rig.node[0].why) == IST_NO_MEMORY);
	CHECK(isthmus_backend_host()->alloc(rig.node[0].chan, INT64_MAX, IST_MEM_HOST, -1, &p, &rig.node[0].why) != IST_OK);
	CHECK(!p && rig.node[0].why.text[0]);
	rig_close(&rig);
}

/* ---- wire-ups that lie ---- */

static void
offer_all(struct rig *rig, struct ist_wire *wires)
{
	for (uint32_t i = 0; i < rig->n; i++) {
		struct ist_task *task;
		node_open(&rig->node[i], i, rig->n, rig->options);
		CHECK(isthmus_backend_host()->offer(rig->node[i].chan, &wires[i], &task, NULL) == IST_OK);
		isthmus_backend_host()->task_free(rig->node[i].chan, task);
	}
}

static ist_err
connect_one(struct rig *rig, const struct ist_wire *wires)
{
	struct ist_connect args = { .struct_size = sizeof(args), .size = rig->n, .all = wires };
	struct ist_task *task = NULL;

	return isthmus_backend_host()->connect(rig->node[0].chan, &args, &task, &rig->node[0].why);
}

static void
forged_descriptors_are_refused(void **state)
{
	uint64_t before = count_fds();

	(void)state;
	for (int how = 0; how < 13; how++) {
		struct rig rig = shm2;
		struct ist_wire wires[2];
		int32_t fds[3];
		int pipes[2], extra = -1;
		offer_all(&rig, wires);
		memcpy(fds, wires[1].fds, sizeof(fds));
		wires[1].fds = fds;
		CHECK(!pipe2(pipes, O_CLOEXEC | O_NONBLOCK));
		switch (how) {
		case 0: fds[0] = pipes[0]; break;
		case 1: fds[1] = pipes[1]; break;
		case 2: fds[2] = pipes[1]; break; /* writing there would raise a signal one day */
		case 3: fds[0] = 9999; break;
		case 4: fds[2] = -1; break;
		case 5: wires[1].n_fds = 2; break;
		case 6: /* can shrink */
		case 7: /* empty */
		case 8: /* too short */
		case 9: /* right size, holds nothing */
			extra = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
			if (how != 7)
				CHECK(!ftruncate(extra, (off_t)(rig.node[0].chan->lay.bytes / (how == 8 ? 2 : 1))));
			if (how != 6)
				CHECK(!fcntl(extra, F_ADD_SEALS, F_SEAL_SHRINK));
			fds[0] = extra;
			break;
		case 10: /* blocks when it is full */
			extra = eventfd(0, EFD_CLOEXEC);
			fds[2] = extra;
			break;
		case 11: /* another member's */
			fds[0] = wires[0].fds[0];
			break;
		case 12: /* of no kind either, but nobody can wake anybody by it */
			extra = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
			fds[2] = extra;
			break;
		}
		CHECK(connect_one(&rig, wires) == IST_BAD_HANDLE);
		CHECK(rig.node[0].why.rank == 1 && rig.node[0].why.text[0]);
		close(pipes[0]);
		close(pipes[1]);
		if (extra >= 0)
			close(extra);
		rig_close(&rig);
	}
	CHECK(count_fds() == before);
}

static void
forged_wires_are_refused(void **state)
{
	(void)state;
	for (uint64_t cut = 0; cut < 140; cut++) {
		struct rig rig = shm2;
		struct ist_wire wires[2];
		uint8_t copy[512];
		offer_all(&rig, wires);
		CHECK(wires[1].bytes <= sizeof(copy));
		memcpy(copy, wires[1].addr, wires[1].bytes);
		if (cut < wires[1].bytes) {
			wires[1].addr = copy;
			wires[1].bytes = cut;
			CHECK(connect_one(&rig, wires) == IST_MISMATCH);
		}
		rig_close(&rig);
	}
	static const struct { uint32_t at; ist_err err; } rows[] = { { 0, IST_MISMATCH }, { 8, IST_VERSION_MISMATCH }, { 12, IST_MISMATCH },
		{ 16, IST_MISMATCH }, { 32, IST_MISMATCH }, { 40, IST_MISMATCH } };
	for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct rig rig = shm2;
		struct ist_wire wires[2];
		uint8_t copy[512];
		offer_all(&rig, wires);
		memcpy(copy, wires[1].addr, wires[1].bytes);
		copy[rows[i].at] ^= 0x10;
		wires[1].addr = copy;
		CHECK(connect_one(&rig, wires) == rows[i].err);
		CHECK(rig.node[0].why.rank == 1);
		rig_close(&rig);
	}
	/* shared memory alone, and a member that gave none */
	struct rig rig = { .n = 2, .options = "transport=shm" };
	struct ist_wire wires[2];
	offer_all(&rig, wires);
	wires[1].n_fds = 0;
	CHECK(connect_one(&rig, wires) == IST_UNSUPPORTED && rig.node[0].why.rank == 1);
	rig_close(&rig);
}

/* Who can map whom is no equivalence here (0 and 2 can't): everybody must see that alike and go on. */
static void
partial_sight_falls_back_to_tcp(void **state)
{
	struct rig rig = { .n = 3 };
	struct ist_wire wires[3], seen[3];
	struct ist_task *tasks[RIG_MAX] = { NULL };
	char x[4] = "abc", y[4];

	(void)state;
	offer_all(&rig, wires);
	for (uint32_t i = 0; i < 3; i++) {
		struct ist_connect args = { .struct_size = sizeof(args), .size = 3, .all = seen };
		memcpy(seen, wires, sizeof(seen));
		if (i == 0)
			seen[2].n_fds = 0;
		if (i == 2)
			seen[0].n_fds = 0;
		CHECK(isthmus_backend_host()->connect(rig.node[i].chan, &args, &tasks[i], NULL) == IST_OK);
	}
	CHECK(rig_wait(&rig, tasks) == IST_OK);
	CHECK(rig.node[0].chan->n_near == 0 && rig.node[1].chan->n_near == 0 && rig.node[2].chan->n_near == 0);
	struct ist_op s = op_send(2, x, 4, 1), r = op_recv(1, y, 4, 1);
	tasks[1] = begin(&rig.node[1], &s);
	tasks[2] = begin(&rig.node[2], &r);
	CHECK(rig_wait(&rig, tasks) == IST_OK && !strcmp(y, "abc"));
	rig_close(&rig);
}

/* ---- a segment that lies ---- */

static void
lying_segments_do_no_harm(void **state)
{
	enum { LIES = 14 };
	const uint64_t bytes = 200000;

	(void)state;
	for (int lie = 0; lie < LIES; lie++) {
		struct rig rig = shm2;
		struct ist_status st;
		uint8_t *dst = malloc(bytes);
		void *own = NULL;
		struct ist_task *task = NULL;
		CHECK(dst);
		memset(dst, 0xCC, bytes);
		rig_open(&rig);
		struct ist_chan *liar = rig.node[1].chan;
		struct posting *board = &liar->ctl->board[0];
		struct lane *lane = &liar->ctl->lanes[0];
		CHECK(isthmus_backend_host()->alloc(liar, bytes, IST_MEM_HOST, -1, &own, NULL) == IST_OK);
		bool cast = lie >= 6;
		struct ist_op op = cast ? op_cast(&rig.node[0], 1, dst, bytes, 3, 0) : op_recv(1, dst, bytes, 3);
		if (lie == 4 || lie == 5)
			op = op_send(1, dst, bytes, 3);
		if (cast) {
			struct ist_op real = op_cast(&rig.node[1], 1, own, bytes, 3, 0);
			(void)begin(&rig.node[1], &real);
			struct ist_progress out = { .struct_size = sizeof(out) };
			CHECK(isthmus_backend_host()->progress(liar, &out) == IST_OK);
			CHECK(board->bytes == bytes);
		} else if (lie == 2 || lie == 3) {
			struct ist_op real = op_send(0, own, bytes, 3);
			(void)begin(&rig.node[1], &real);
			struct ist_progress out = { .struct_size = sizeof(out) };
			CHECK(isthmus_backend_host()->progress(liar, &out) == IST_OK);
		}
		struct record *rec = (struct record *)(void *)((uint8_t *)liar->ctl + liar->lay.rings_at);
		switch (lie) {
		case 0: lane->head = UINT64_MAX - 63; break;
		case 1: lane->head = 65; break;
		case 2: rec->at = UINT64_MAX - 10; break;
		case 3: rec->mode = 77; break;
		case 4: lane->tail = UINT64_C(1) << 40; break;
		case 5: lane->tail = 128; break;
		case 6: board->mark = UINT64_MAX; break;
		case 7: board->at = 4096; break;                       /* runs past its chunk */
		case 8: board->chunk_at = UINT64_MAX - 4095; board->at = UINT64_MAX - 4095; break;
		case 9: board->chunk_bytes = UINT64_C(1) << 40; break; /* more than the file has */
		case 10: board->chunk_at = 1; break;
		case 11: board->what = board->what ^ 0x10; break;
		case 12: board->bytes = UINT64_MAX; break;
		case 13: board->what = board->what ^ UINT64_C(1) << 32; break;
		}
		task = begin(&rig.node[0], &op);
		ist_err err = node_wait(&rig.node[0], task, &st, true);
		if (err == IST_OK || st.rank != 1)
			fprintf(stderr, "lie %d: %s, rank %u\n", lie, ist_err_name(err), st.rank);
		CHECK(err != IST_OK && st.rank == 1 && st.text[0]);
		if (lie != 4 && lie != 5)
			for (uint64_t i = 0; i < bytes && lie != 6; i++)
				CHECK(dst[i] == 0xCC);
		rig_close(&rig);
		free(dst);
	}
}

/* A peer can't write to us: its descriptors don't allow it. */
static void
segments_are_read_only_to_others(void **state)
{
	struct rig rig = shm2;
	struct ist_wire wires[2];

	(void)state;
	offer_all(&rig, wires);
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, wires[1].fds[0], 0) == MAP_FAILED);
	CHECK(ftruncate(wires[1].fds[0], 0));
	rig_close(&rig);
	rig.options = "coop=0"; /* then not to the heap either */
	offer_all(&rig, wires);
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, wires[1].fds[1], 0) == MAP_FAILED);
	CHECK(ftruncate(wires[1].fds[1], 1 << 20));
	rig_close(&rig);
}

/* Where a receiver wants the bytes is looked at before anybody writes there; one that lies, or is in another operation, harms
 * nobody's memory. */
static void
lying_seats_do_no_harm(void **state)
{
	const uint64_t bytes = UINT64_C(5) << 20;

	(void)state;
	for (int lie = 0; lie < 5; lie++) {
		struct rig rig = { .n = 3 };
		struct ist_task *tasks[3];
		uint8_t *buf[3];

		rig_open(&rig);
		for (uint32_t i = 0; i < 3; i++) {
			void *p = NULL;

			CHECK(isthmus_backend_host()->alloc(rig.node[i].chan, bytes + 4096, IST_MEM_HOST, -1, &p, NULL) == IST_OK);
			buf[i] = p;
			memset(p, 0xCC, bytes + 4096);
		}
		for (uint32_t i = 0; i < 3; i++) {
			struct ist_op op = op_cast(&rig.node[i], 0, buf[i], i == 1 && lie == 4 ? bytes - 64 : bytes, i == 1 && lie == 3 ? 8 : 7, 0);

			tasks[i] = begin(&rig.node[i], &op);
		}
		struct seat *seat = &rig.node[1].chan->ctl->seats[0];
		CHECK(seat->chunk_bytes > bytes);
		switch (lie) {
		case 0: seat->at = seat->chunk_at + 8192; break; /* runs past its chunk */
		case 1: seat->chunk_bytes = UINT64_C(1) << 40; break;
		case 2: seat->chunk_at = seat->at = UINT64_MAX - 4095; break;
		}
		rig_turn(&rig, 200);
		for (uint32_t i = 0; i < 3; i++) {
			struct ist_status st;
			ist_err err = node_state(&rig.node[i], tasks[i], &st);

			if (lie < 3 && i != 1)
				CHECK(err == IST_BAD_HANDLE && st.rank == 1);
			if (lie == 3 && i == 1)
				CHECK(err == IST_ORDER_MISMATCH && st.state == IST_DONE);
			if (lie == 4 && i == 1)
				CHECK(err == IST_MISMATCH && st.state == IST_DONE);
			if (lie >= 3 && i == 2)
				CHECK(err == IST_OK);
			for (uint64_t at = i == 1 && lie == 4 ? bytes - 64 : bytes; at < bytes + 4096; at++)
				CHECK(buf[i][at] == 0xCC);
			isthmus_backend_host()->abort(rig.node[i].chan, IST_ABORTED);
		}
		rig_turn(&rig, 2);
		for (uint32_t i = 0; i < 3; i++) {
			struct ist_status st;

			(void)node_state(&rig.node[i], tasks[i], &st);
			CHECK(st.state == IST_DONE);
		}
		rig_close(&rig);
	}
}

/* ---- strangers ---- */

static int
dial(const struct ist_chan *chan)
{
	struct sockaddr_in addr;
	socklen_t n = sizeof(addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(!getsockname(chan->listen_fd, (struct sockaddr *)&addr, &n));
	CHECK(fd >= 0 && !connect(fd, (const struct sockaddr *)&addr, sizeof(addr)));
	return fd;
}

static uint64_t
conns_of(const struct ist_chan *chan)
{
	uint64_t n = 0;

	for (const struct conn *c = chan->conns; c; c = c->next)
		n += c->state != CONN_DEAD;
	return n;
}

static void
strangers_are_dropped(void **state)
{
	struct rig rig = tcp2;
	int fds[200];
	char junk[200], x[4] = "abc", y[4], c;

	(void)state;
	memset(junk, 'x', sizeof(junk));
	rig_open(&rig);
	struct ist_chan *chan = rig.node[0].chan;
	/* wrong bytes: dropped at once */
	fds[0] = dial(chan);
	CHECK(send(fds[0], junk, sizeof(junk), MSG_NOSIGNAL) == sizeof(junk));
	for (int i = 0; i < 1000 && recv(fds[0], &c, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN; i++) {
		rig_turn(&rig, 1);
		poll(NULL, 0, 1);
	}
	CHECK(recv(fds[0], &c, 1, MSG_DONTWAIT) <= 0 && errno != EAGAIN);
	close(fds[0]);
	CHECK(conns_of(chan) == 0);
	/* a hello that is right but for its proof */
	uint8_t hello[72] = { 0 };
	ist__store_u64(hello, HOST_MAGIC);
	ist__store_u32(hello + 8, HOST_VERSION);
	ist__store_u32(hello + 12, CLASS_P2P);
	ist__store_u32(hello + 16, 1);
	ist__store_u32(hello + 20, 0);
	ist__store_u32(hello + 28, 2);
	ist__store_u64(hello + 32, 7);
	ist__store_u64(hello + 40, 42);
	fds[0] = dial(chan);
	CHECK(send(fds[0], hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello));
	for (int i = 0; i < 1000 && recv(fds[0], &c, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN; i++) {
		rig_turn(&rig, 1);
		poll(NULL, 0, 1);
	}
	CHECK(conns_of(chan) == 0 && !chan->peers[1].in);
	close(fds[0]);
	/* many that say nothing: there is a limit, and members get through */
	for (int i = 0; i < 200; i++) {
		fds[i] = dial(chan);
		rig_turn(&rig, 2);
		CHECK(conns_of(chan) <= 70);
	}
	struct ist_op s = op_send(0, x, 4, 1), r = op_recv(1, y, 4, 1);
	struct ist_task *tasks[RIG_MAX] = { begin(&rig.node[0], &r), begin(&rig.node[1], &s) };
	CHECK(rig_wait(&rig, tasks) == IST_OK && !strcmp(y, "abc"));
	/* their time runs out, and the descriptor says so */
	int32_t fd = -1;
	for (struct conn *conn = chan->conns; conn; conn = conn->next)
		if (conn->state == CONN_WAIT_HELLO)
			conn->until = ist__now();
	rig_turn(&rig, 1);
	int last = dial(chan);
	for (int i = 0; i < 1000 && conns_of(chan) != 2; i++) {
		rig_turn(&rig, 1);
		poll(NULL, 0, 1);
	}
	CHECK(conns_of(chan) == 2); /* the member's, and the newest */
	for (int i = 0; i < 20 && conns_of(chan) == 2; i++) {
		CHECK(isthmus_backend_host()->arm(chan, &fd) == IST_OK);
		struct pollfd p = { .fd = fd, .events = POLLIN };
		CHECK(poll(&p, 1, 50000) == 1);
		rig_turn(&rig, 1);
	}
	CHECK(conns_of(chan) == 1);
	close(last);
	for (int i = 0; i < 200; i++)
		close(fds[i]);
	rig_close(&rig);
}

/* ---- slow readers ---- */

static void
a_slow_reader_costs_bounded_memory(void **state)
{
	const uint64_t bytes = UINT64_C(40) << 20;
	struct rig rig = { .n = 3 };
	uint8_t *buf[3];
	struct ist_task *tasks[3];
	struct ist_status st;

	(void)state;
	rig_open(&rig);
	for (uint32_t i = 0; i < 3; i++) {
		buf[i] = calloc(1, bytes);
		CHECK(buf[i]);
		struct ist_op op = op_cast(&rig.node[i], 0, buf[i], bytes, 1, 0);
		if (i == 0)
			fill(buf[i], bytes, 8);
		tasks[i] = begin(&rig.node[i], &op);
	}
	struct ist_chan *slow = rig.node[2].chan;
	rig.node[2].chan = NULL; /* reads nothing */
	rig_turn(&rig, 2000);
	CHECK(node_state(&rig.node[0], tasks[0], &st) == IST_OK && st.state == IST_PENDING);
	CHECK(rig.node[0].chan->stage_end - 0 >= bytes && tasks[0]->parts[0].mark <= rig.node[0].chan->lay.stage_bytes);
	CHECK(rig.node[0].chan->lay.bytes <= UINT64_C(24) << 20);
	rig.node[2].chan = slow;
	struct ist_task *all[RIG_MAX] = { tasks[0], tasks[1], tasks[2] };
	CHECK(rig_wait(&rig, all) == IST_OK);
	for (uint32_t i = 0; i < 3; i++) {
		CHECK(filled(buf[i], bytes, 8));
		free(buf[i]);
	}
	rig_close(&rig);
}

/* ---- death and abort ---- */

static struct ist_chan *to_abort;

static void
on_alarm(int sig)
{
	(void)sig;
	isthmus_backend_host()->abort(to_abort, IST_PEER_LOST);
}

/* Rank 1 dies in the middle. Over TCP the others are told; in shared memory the abort comes from outside, here a signal. */
static void
death_member(struct node *node, void *arg)
{
	const struct rig *rig = arg;
	bool tcp = rig->options != NULL;
	const uint64_t bytes = UINT64_C(64) << 20;
	uint8_t *buf = malloc(bytes);
	struct ist_status st;
	ist_err err = IST_OK;

	CHECK(buf);
	memset(buf, 1, bytes);
	if (!tcp && node->rank != 1) {
		struct sigaction sa = { .sa_handler = on_alarm };
		struct itimerval soon = { .it_value = { .tv_usec = 300000 } };
		to_abort = node->chan;
		CHECK(!sigaction(SIGALRM, &sa, NULL) && !setitimer(ITIMER_REAL, &soon, NULL));
	}
	for (uint64_t k = 0; k < 100000 && !err; k++) {
		struct ist_op op = op_cast(node, 0, buf, bytes, k, 0);
		struct ist_task *task;
		if (node->rank == 1 && k == 2) {
			struct ist_progress p = { .struct_size = sizeof(p) };
			(void)begin(node, &op);
			for (int i = 0; i < 5; i++)
				CHECK(isthmus_backend_host()->progress(node->chan, &p) == IST_OK);
			raise(SIGKILL);
		}
		task = begin_n(node, &op, 1);
		err = task ? node_wait(node, task, &st, true) : node->err;
		if (task && err) {
			CHECK(err == IST_PEER_LOST);
			if (tcp)
				CHECK(st.rank == 1 && st.text[0]);
			isthmus_backend_host()->abort(node->chan, IST_ABORTED);
			(void)node_state(node, task, &st);
			CHECK(st.state == IST_DONE);
		}
		if (task)
			isthmus_backend_host()->task_free(node->chan, task);
	}
	CHECK(err == IST_PEER_LOST);
	free(buf);
}

static void
a_member_is_killed(void **state)
{
	static const struct rig kinds[] = { { .n = 3 }, { .n = 2, .options = "transport=tcp" }, { .n = 3, .options = "transport=tcp" } };

	(void)state;
	for (int k = 0; k < 3; k++)
		fork_run(&kinds[k], death_member, (void *)(uintptr_t)&kinds[k], 1);
}

/* All copy into each other's memory when the channel is aborted, at another moment on each and each time. Whoever has its
 * memory back uses it for something else, and finds that untouched when all have ended. In every fourth round one is killed
 * instead; then memory that it may have been writing to is ABANDONED. */
struct late {
	_Atomic uint32_t ended;
	uint32_t round;
};

static void
late_member(struct node *node, void *arg)
{
	const struct ist_backend *b = isthmus_backend_host();
	struct late *late = arg;
	const uint64_t bytes = UINT64_C(24) << 20;
	bool kill = late->round % 4 == 3;
	struct itimerval soon = { .it_value = { .tv_usec = 1 + (late->round * 7919 + node->rank * 4001) % 15000 } };
	struct sigaction sa = { .sa_handler = on_alarm };
	struct ist_status st = { .state = IST_PENDING };
	void *buf = NULL;

	CHECK(b->alloc(node->chan, bytes, IST_MEM_HOST, -1, &buf, NULL) == IST_OK);
	memset(buf, 1, bytes);
	to_abort = node->chan;
	sa.sa_handler = kill && node->rank == 1 ? SIG_DFL : on_alarm;
	CHECK(!sigaction(SIGALRM, &sa, NULL) && !setitimer(ITIMER_REAL, &soon, NULL));
	for (uint64_t k = 0; k < 100000; k++) {
		struct ist_op op = op_cast(node, k % 3 == 1 ? 2 : 0, buf, bytes, k, 0);
		struct ist_task *task = begin_n(node, &op, 1);
		ist_err err = task ? node_wait(node, task, &st, true) : node->err;

		if (task)
			b->task_free(node->chan, task);
		if (!err)
			continue;
		CHECK(err == IST_PEER_LOST && (!task || st.state == IST_DONE || (kill && st.state == IST_ABANDONED)));
		break;
	}
	if (st.state != IST_ABANDONED)
		memset(buf, 0x40 + (int)node->rank, bytes);
	late->ended++;
	while (late->ended < (kill ? 2u : 3u))
		poll(NULL, 0, 1);
	for (uint64_t i = 0; i < bytes && st.state != IST_ABANDONED; i++)
		CHECK(((uint8_t *)buf)[i] == 0x40 + node->rank);
	late->ended += 8;
	while (late->ended < (kill ? 18u : 27u)) /* its memory stays until all have looked */
		poll(NULL, 0, 1);
}

static void
nobody_writes_after_the_end(void **state)
{
	static const struct rig shm3 = { .n = 3 };
	struct late *late = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	(void)state;
	CHECK(late != MAP_FAILED);
	for (uint32_t round = 0; round < 24; round++) {
		late->ended = 0;
		late->round = round;
		fork_run(&shm3, late_member, late, round % 4 == 3 ? 1 : IST_NO_RANK);
	}
	munmap(late, 4096);
}

static void *
abort_soon(void *chan)
{
	struct timespec ts = { .tv_nsec = 50000000 };

	nanosleep(&ts, NULL);
	isthmus_backend_host()->abort(chan, IST_TIMEOUT);
	return NULL;
}

static void
abort_wakes_and_ends_all(void **state)
{
	static const struct rig *const kinds[] = { &shm2, &tcp2 };
	const struct ist_backend *b = isthmus_backend_host();

	(void)state;
	for (int k = 0; k < 2; k++) {
		struct rig rig = *kinds[k];
		struct node *node = &rig.node[0];
		struct ist_status st;
		pthread_t thread;
		char x[100];
		int32_t fd;
		rig_open(&rig);
		struct ist_op ops[3] = { op_recv(1, x, 100, 1), op_cast(node, 1, x, 100, 1, 0), op_send(1, x, 100, 2) };
		struct ist_task *task = begin_n(node, ops, 3), *second = begin_n(node, ops, 1);
		CHECK(task && second);
		CHECK(!pthread_create(&thread, NULL, abort_soon, node->chan));
		CHECK(node_wait(node, task, &st, true) == IST_TIMEOUT && st.state == IST_DONE);
		CHECK(!pthread_join(thread, NULL));
		CHECK(node_state(node, second, &st) == IST_TIMEOUT && st.state == IST_DONE);
		CHECK(!begin_n(node, ops, 1) && node->err == IST_TIMEOUT);
		b->abort(node->chan, IST_ABORTED); /* the first one's reason stays */
		CHECK(node_state(node, second, &st) == IST_TIMEOUT);
		rig_turn(&rig, 1);
		for (int i = 0; i < 5; i++) { /* what is under way between the two comes to rest */
			CHECK(b->arm(node->chan, &fd) == IST_OK);
			rig_turn(&rig, 1);
		}
		struct pollfd p = { .fd = fd, .events = POLLIN };
		CHECK(b->arm(node->chan, &fd) == IST_OK && poll(&p, 1, 0) == 0);
		b->task_free(node->chan, task);
		b->task_free(node->chan, second);
		rig_close(&rig);
	}
	/* before anything, and NULL */
	struct node node;
	node_open(&node, 0, 2, "");
	b->abort(node.chan, IST_ABORTED);
	struct ist_wire w;
	struct ist_task *task;
	CHECK(b->offer(node.chan, &w, &task, NULL) == IST_ABORTED);
	node_close(&node);
	CHECK(b->close(NULL, NULL) == IST_OK);
}

/* A connection attempt that nobody answers, and a member that closes in good order with nothing under way. */
static void
lost_connections_are_named(void **state)
{
	struct rig rig = tcp2;
	char x[4] = "abc", y[4];
	struct ist_task *tasks[RIG_MAX] = { NULL };
	struct ist_status st;

	(void)state;
	rig_open(&rig);
	struct ist_op s = op_send(1, x, 4, 1), r = op_recv(0, y, 4, 1);
	tasks[0] = begin(&rig.node[0], &s);
	tasks[1] = begin(&rig.node[1], &r);
	CHECK(rig_wait(&rig, tasks) == IST_OK);
	node_close(&rig.node[1]);
	struct ist_op again = op_send(1, x, 4, 2), back = op_recv(1, y, 4, 9);
	struct ist_task *task = begin(&rig.node[0], &again);
	CHECK(node_wait(&rig.node[0], task, &st, false) == IST_PEER_LOST && st.rank == 1);
	CHECK(strstr(st.text, "rank 1") && strstr(st.text, "127.0.0.1:"));
	/* it never dialled us: nothing is known of it here, the mesh must tell */
	task = begin(&rig.node[0], &back);
	rig.n = 1;
	rig_turn(&rig, 10);
	CHECK(node_state(&rig.node[0], task, &st) == IST_OK && st.state == IST_PENDING);
	/* a broadcast dials anew, where nobody listens any more */
	struct ist_op cast = op_cast(&rig.node[0], 0, x, 4, 3, 0);
	task = begin(&rig.node[0], &cast);
	CHECK(node_wait(&rig.node[0], task, &st, false) == IST_PEER_LOST && st.rank == 1 && st.sys == ECONNREFUSED);
	node_close(&rig.node[0]);
}

/* ---- limits of the process ---- */

static void
limits(void)
{
	struct rlimit none = { 0, 0 }, small = { 1 << 20, 1 << 20 }, files = { 64, 64 };
	struct rig rig = shm2;
	void *p = NULL;

	CHECK(!setrlimit(RLIMIT_MEMLOCK, &none));
	rig_open(&rig);
	CHECK(isthmus_backend_host()->alloc(rig.node[0].chan, 1 << 19, IST_MEM_HOST, -1, &p, NULL) == IST_OK);
	memset(p, 1, 1 << 19);
	rig_close(&rig);
	/* a file that may not grow: an error, not SIGXFSZ; tcp goes on */
	CHECK(!setrlimit(RLIMIT_FSIZE, &small));
	rig = shm2;
	rig_open(&rig);
	CHECK(rig.node[0].chan->n_near == 0);
	rig_close(&rig);
	struct node node;
	struct ist_wire w;
	struct ist_task *task;
	node_open(&node, 0, 2, "transport=shm");
	CHECK(isthmus_backend_host()->offer(node.chan, &w, &task, &node.why) == IST_NO_SPACE && node.why.text[0]);
	node_close(&node);
	/* no descriptors */
	CHECK(!setrlimit(RLIMIT_NOFILE, &files));
	while (dup(2) >= 0)
		;
	node_open(&node, 0, 2, "");
	CHECK(node.err == IST_LIMIT);
	CHECK(node.live == 0);
}

static void
limits_are_errors(void **state)
{
	int status;
	pid_t pid = fork();

	(void)state;
	CHECK(pid >= 0);
	if (pid == 0) {
		alarm(60);
		limits();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(status == 0);
}

/* A forked child has neither the segment nor the memory in it. */
static void
memory_is_not_inherited(void **state)
{
	struct rig rig = shm2;
	void *p = NULL;
	unsigned char there;
	int status;

	(void)state;
	rig_open(&rig);
	CHECK(isthmus_backend_host()->alloc(rig.node[0].chan, 4096, IST_MEM_HOST, -1, &p, NULL) == IST_OK);
	CHECK(!mincore(p, 4096, &there));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		_exit(mincore(p, 4096, &there) && mincore(rig.node[0].chan->ctl, 4096, &there) ? 0 : 1);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	/* freed memory is given back, and comes again clean */
	isthmus_backend_host()->free(rig.node[0].chan, p);
	CHECK(mincore(p, 4096, &there));
	rig_close(&rig);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mismatches_are_told),
		cmocka_unit_test(wrong_arguments_begin_nothing),
		cmocka_unit_test(forged_descriptors_are_refused),
		cmocka_unit_test(forged_wires_are_refused),
		cmocka_unit_test(partial_sight_falls_back_to_tcp),
		cmocka_unit_test(lying_segments_do_no_harm),
		cmocka_unit_test(segments_are_read_only_to_others),
		cmocka_unit_test(lying_seats_do_no_harm),
		cmocka_unit_test(nobody_writes_after_the_end),
		cmocka_unit_test(strangers_are_dropped),
		cmocka_unit_test(a_slow_reader_costs_bounded_memory),
		cmocka_unit_test(a_member_is_killed),
		cmocka_unit_test(abort_wakes_and_ends_all),
		cmocka_unit_test(lost_connections_are_named),
		cmocka_unit_test(limits_are_errors),
		cmocka_unit_test(memory_is_not_inherited),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
