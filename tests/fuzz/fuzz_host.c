/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_host.c - the host backend and members that lie. First byte: a wire-up and descriptors that are not what they
 * should be; a segment whose owner writes anything anywhere while we receive from it; bytes over TCP in place of a greeting
 * or, after a good one, in place of messages. Refused or an error that names the member, nothing written outside the
 * receivers' buffers, and after close nothing is left.
 */
#include "fuzz.h"

#include "backends/host/host.h"
#include "base/bytes.h"
#include "host_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

enum { ROOM = 8192, FENCE = 64, TURNS = 6 };

static const struct ist_backend *
host(void)
{
	return isthmus_backend_host();
}

static void
turns(struct node *node, int n)
{
	struct ist_progress p = { .struct_size = sizeof(p) };

	for (int i = 0; i < n; i++)
		(void)host()->progress(node->chan, &p);
}

static void
offer_all(struct rig *rig, struct ist_wire *wires)
{
	for (uint32_t i = 0; i < rig->n; i++) {
		struct ist_task *task = NULL;

		node_open(&rig->node[i], i, rig->n, rig->options);
		must(rig->node[i].chan && host()->offer(rig->node[i].chan, &wires[i], &task, NULL) == IST_OK);
		host()->task_free(rig->node[i].chan, task);
	}
}

static ist_err
connect_one(struct node *node, const struct ist_wire *wires, uint32_t n)
{
	struct ist_connect args = { .struct_size = sizeof(args), .size = n, .all = wires };
	struct ist_task *task = NULL;

	return host()->connect(node->chan, &args, &task, &node->why); /* its task goes with the channel */
}

/* ---- a wire-up ---- */

static int
some_fd(uint8_t which, const struct node *node)
{
	int fd;

	switch (which % 6) {
	case 0:
		return open("/dev/null", O_RDWR | O_CLOEXEC);
	case 1:
		return eventfd(0, EFD_CLOEXEC | (which & 64 ? EFD_NONBLOCK : 0));
	case 2:
		return open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	case 3:
	case 4:
		fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		must(fd >= 0);
		if (which & 64)
			must(!ftruncate(fd, (off_t)node->chan->lay.bytes));
		if (which & 128)
			must(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | (which % 6 == 3 ? F_SEAL_GROW : 0)));
		return fd;
	default:
		return -1;
	}
}

static void
lying_wire(struct input *in)
{
	static const char *const options[] = { NULL, "transport=shm", "transport=tcp" };
	uint8_t how = take_u8(in);
	struct rig rig = { .n = 2, .options = options[how % 3] };
	struct ist_wire wires[2];
	int32_t fds[4] = { -1, -1, -1, -1 }, mine[4] = { -1, -1, -1, -1 };
	uint8_t bytes[512] = { 0 };
	ist_err e;

	offer_all(&rig, wires);
	must(wires[1].bytes <= sizeof(bytes));
	memcpy(bytes, wires[1].addr, wires[1].bytes);
	memcpy(fds, wires[1].fds, wires[1].n_fds * sizeof(*fds));
	wires[1].fds = fds;
	if (how & 8)
		wires[1].n_fds = take_u8(in) % 5;
	for (int i = 0; (how & 16) && i < 4; i++) {
		uint8_t which = take_u8(in);

		if (which < 32)
			continue;
		fds[i] = mine[i] = some_fd(which, &rig.node[0]);
	}
	if (how & 32)
		wires[1].bytes = take_u16(in) % sizeof(bytes);
	while (in->left >= 2) {
		uint8_t at = take_u8(in); /* the wire-up is shorter than that */

		bytes[at] ^= take_u8(in);
	}
	wires[1].addr = bytes;
	e = connect_one(&rig.node[0], wires, 2);
	must(e != IST_INTERNAL);
	if (e)
		must(rig.node[0].why.text[0] != 0);
	else
		turns(&rig.node[0], TURNS);
	rig_close(&rig);
	for (int i = 0; i < 4; i++)
		if (mine[i] >= 0)
			close(mine[i]);
}

/* ---- receiving ---- */

struct landing {
	uint8_t room[ROOM + FENCE];
	uint64_t bytes;
};

static void
landing_init(struct landing *l, uint16_t bytes)
{
	l->bytes = bytes % ROOM;
	memset(l->room, 0xCC, sizeof(l->room));
}

static void
landing_check(const struct landing *l)
{
	for (uint64_t i = l->bytes; i < sizeof(l->room); i++)
		must(l->room[i] == 0xCC);
}

static void
begin_op(struct node *node, uint8_t what, struct landing *l, uint16_t bytes, uint64_t seq)
{
	struct ist_op op;

	landing_init(l, bytes);
	switch (what % 5) {
	case 0:
		op = op_recv(1, l->room, l->bytes, seq);
		break;
	case 1:
		op = op_cast(node, 1, l->room, l->bytes, seq, what & 16 ? IST_OP_VIEW : 0);
		break;
	case 2:
		op = op_barrier(seq);
		break;
	case 3:
		op = op_send(1, l->room, l->bytes, seq);
		break;
	default:
		op = op_cast(node, 0, l->room, l->bytes, seq, 0);
		break;
	}
	(void)begin_n(node, &op, 1);
}

/* ---- a segment ---- */

/* Words of the control segment that belong to us, the liar's counters and board, or the head of the ring to us. */
static uint64_t *
word_at(struct ist_chan *liar, uint16_t where)
{
	uint64_t head = sizeof(struct ctl) + 2 * sizeof(struct lane) + 64, n = where & 0x7FFF;
	uint8_t *base = (uint8_t *)liar->ctl;

	if (where & 0x8000)
		return (uint64_t *)(void *)(base + liar->lay.rings_at + n % 512 * 8);
	return (uint64_t *)(void *)(base + n * 8 % head);
}

static void
lying_segment(struct input *in)
{
	static const uint64_t edges[] = { 0, 1, 64, 65, 4096, UINT64_C(1) << 20, UINT64_C(1) << 40, UINT64_MAX, UINT64_MAX - 63, INT64_MAX };
	struct rig rig = { .n = 2 };
	struct landing landing[4];
	uint32_t n = 0;

	rig_open(&rig);
	must(!host()->alloc(rig.node[1].chan, 65536, IST_MEM_HOST, -1, &(void *){ NULL }, NULL));
	must(!ist__host_reserve_ring(rig.node[1].chan, &rig.node[1].chan->peers[0], NULL));
	for (int steps = 0; in->left > 0 && steps < 128; steps++) {
		uint8_t what = take_u8(in);

		if (what < 32 && n < 4) {
			begin_op(&rig.node[0], what, &landing[n], take_u16(in), 1 + (what >> 4));
			n++;
		} else if (what < 64) {
			turns(&rig.node[0], 1);
		} else if (what < 80) { /* an honest operation of the liar's, to lie about */
			static uint8_t honest[ROOM];
			struct ist_op op = what & 1 ? op_send(0, honest, take_u16(in) % ROOM, 1) : op_cast(&rig.node[1], 1, honest, take_u16(in) % ROOM, 1, 0);

			(void)begin_n(&rig.node[1], &op, 1);
			turns(&rig.node[1], 1);
		} else {
			uint64_t *word = word_at(rig.node[1].chan, take_u16(in));

			__atomic_store_n(word, what & 1 ? take_u64(in) : what & 2 ? take_u16(in) : edges[take_u8(in) % 10], __ATOMIC_SEQ_CST);
		}
	}
	turns(&rig.node[0], TURNS);
	for (uint32_t i = 0; i < n; i++)
		landing_check(&landing[i]);
	/* the liar itself may not stumble over what it wrote */
	rig.node[1].chan->ctl->magic = 0;
	rig_close(&rig);
}

/* ---- TCP ---- */

static int
dial(const struct sockaddr_storage *at)
{
	int fd = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	must(fd >= 0 && connect(fd, (const struct sockaddr *)at, sizeof(struct sockaddr_in)) == 0);
	return fd;
}

/* As rank 1 or 2 would say it; see hello_write in net.c. */
static void
greet(const struct ist_chan *to, const struct ist_chan *from, uint32_t class, uint32_t root, int fd)
{
	uint8_t h[56 + MAC] = { 0 };

	ist__store_u64(h, HOST_MAGIC);
	ist__store_u32(h + 8, HOST_VERSION);
	ist__store_u32(h + 12, class);
	ist__store_u32(h + 16, from->rank);
	ist__store_u32(h + 20, to->rank);
	ist__store_u32(h + 24, root);
	ist__store_u32(h + 28, to->size);
	ist__store_u64(h + 32, to->group);
	ist__store_u64(h + 40, to->generation);
	ist__host_mac(from->cookie, to->cookie, h, 56, h + 56);
	must(write(fd, h, sizeof(h)) == (ssize_t)sizeof(h));
}

static void
lying_stream(struct input *in)
{
	struct rig rig = { .n = 3, .options = "transport=tcp" };
	struct landing landing[4];
	struct ist_wire wires[3];
	struct sockaddr_storage at;
	socklen_t bytes = sizeof(at);
	uint8_t how = take_u8(in);
	int fd[2];

	offer_all(&rig, wires);
	must(!connect_one(&rig.node[0], wires, 3));
	turns(&rig.node[0], 2);
	must(!getsockname(rig.node[0].chan->listen_fd, (struct sockaddr *)&at, &bytes));
	for (uint32_t i = 0; i < 2; i++) {
		uint16_t words = take_u16(in);

		fd[i] = dial(&at);
		if (how & (1 << i))
			greet(rig.node[0].chan, rig.node[1 + i % 2].chan, how & (4 << i) ? CLASS_CHAIN : CLASS_P2P, how & (16 << i) ? 1 : 2, fd[i]);
		begin_op(&rig.node[0], (uint8_t)(words >> 13), &landing[i], words & 0x1FFF, 1 + (how >> 7));
	}
	turns(&rig.node[0], TURNS);
	for (int steps = 0; in->left > 0 && steps < 16; steps++) {
		uint8_t who = take_u8(in) & 1;
		size_t n;
		const uint8_t *p = take_piece(in, &n);

		if (n > 0 && send(fd[who], p, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			must(errno == EPIPE || errno == ECONNRESET || errno == EAGAIN);
		turns(&rig.node[0], 2);
	}
	close(fd[0]);
	turns(&rig.node[0], TURNS);
	landing_check(&landing[0]);
	landing_check(&landing[1]);
	rig_close(&rig);
	close(fd[1]);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };

	switch (take_u8(&in) % 3) {
	case 0:
		lying_wire(&in);
		break;
	case 1:
		lying_segment(&in);
		break;
	default:
		lying_stream(&in);
		break;
	}
	return 0;
}
