/* SPDX-License-Identifier: Apache-2.0
 *
 * chain.c - BROADCAST between hosts: from the root to the first member of the chain that takes and that nobody serves yet,
 * and so on; each forwards from its own copy as bytes arrive, so every link carries each byte once. Nobody has to know which
 * members share a host: the frame says who is served, and each adds its own host. Who takes differs from one broadcast to
 * the next, and with it who comes next. A root has connections of its own along its chains, one for each pair of members
 * that are neighbours there, dialled at the first broadcast that goes that way: so broadcasts of different roots never wait
 * for each other. Those of one root are passed on in their order, whichever way each goes.
 */
#include "backends/host/host.h"

#include "base/bytes.h"

#include <string.h>

#define FRAME_MAGIC 0x54534143u
#define BYE_MAGIC 0x20455942u
#define FRAME_HEAD 48u

enum { CHAIN_WAITS, CHAIN_COMES, CHAIN_HERE }; /* a part's phase: PHASE_NEW of cast.c, and not */

static uint64_t
frame_bytes(const struct ist_chan *chan)
{
	return FRAME_HEAD + 8 * (uint64_t)chan->words;
}

static void
frame_write(struct ist_chan *chan, const struct peer *root, const struct part *part, uint64_t bytes, uint8_t *to)
{
	ist__store_u32(to, FRAME_MAGIC);
	ist__store_u32(to + 4, root->rank);
	ist__store_u64(to + 8, part->index);
	ist__store_u64(to + 16, part->op.seq);
	ist__store_u64(to + 24, bytes);
	ist__store_u32(to + 32, part->op.flags & IST_OP_VIEW);
	ist__store_u32(to + 36, chan->words);
	ist__store_u64(to + 40, ist__host_set_print(chan, part));
	for (uint32_t i = 0; i < chan->words; i++)
		ist__store_u64(to + FRAME_HEAD + 8 * (uint64_t)i, part->set[chan->words + i]);
}

/* True: it is the frame of this broadcast. Else the part has failed. */
static bool
frame_right(struct ist_chan *chan, const struct peer *root, struct part *part, const struct conn *conn)
{
	const uint8_t *f = conn->buf;

	if (ist__load_u32(f) != FRAME_MAGIC || ist__load_u32(f + 4) != root->rank || ist__load_u64(f + 8) != part->index ||
	    ist__load_u32(f + 36) != chan->words) {
		ist__host_part_fail(chan, part, IST_ORDER_MISMATCH, conn->peer, 0, "rank %u sends something other than broadcast %llu of root %u", conn->peer,
			(unsigned long long)part->index, root->rank);
		return false;
	}
	if (!ist__host_part_fits(chan, part, conn->peer, ist__load_u64(f + 16), ist__load_u64(f + 24)))
		return false;
	if (ist__load_u32(f + 32) != (part->op.flags & IST_OP_VIEW) || ist__load_u64(f + 40) != ist__host_set_print(chan, part)) {
		ist__host_part_fail(chan, part, IST_MISMATCH, conn->peer, 0, "broadcast %llu: only one of ranks %u and %u wants a view, or they have other takers",
			(unsigned long long)part->op.seq, conn->peer, chan->rank);
		return false;
	}
	return true;
}

/* Is that a frame of a later broadcast of the root, which comes another way than this one? */
static bool
is_later(const struct peer *root, const struct part *part, const struct conn *conn)
{
	return ist__load_u32(conn->buf) == FRAME_MAGIC && ist__load_u32(conn->buf + 4) == root->rank &&
		ist__load_u64(conn->buf + 8) > part->index;
}

/* Could its frame have come from there? All that it passes on its way to us take it, but for the root. */
static bool
may_come_from(const struct ist_chan *chan, const struct part *part, uint32_t rank)
{
	uint32_t size = chan->size;

	return rank == part->op.peer || (ist__host_has(part->set, rank) &&
		(rank + size - part->first) % size < (chan->rank + size - part->first) % size);
}

/* Who waits for a frame can't know which of several members it comes from. So one that leaves in good order says so: its
 * connection is no loss to those whose frames come another way. */
void
ist__host_chain_bye(const struct ist_chan *chan, struct conn *conn)
{
	if (conn->in || conn->class != CLASS_CHAIN || conn->state != CONN_READY || conn->taken)
		return;
	memset(conn->buf, 0, frame_bytes(chan));
	ist__store_u32(conn->buf, BYE_MAGIC);
	(void)ist__host_conn_send(conn, conn->buf, frame_bytes(chan), NULL, 0); /* without room for it, it looks like a loss */
}

/* Looks for the part's frame. 1: there and right. 0: not yet. -1: the part has failed. */
static int
frame_find(struct ist_chan *chan, struct peer *root, struct part *part)
{
	uint64_t want = frame_bytes(chan);

	for (struct conn *conn = root->chains_in; conn; conn = conn->mate) {
		if (conn->taken || conn->left)
			continue;
		if (conn->state == CONN_READY)
			conn->fill += ist__host_conn_recv(conn, conn->buf + conn->fill, want - conn->fill);
		if (conn->fill == want && ist__load_u32(conn->buf) == BYE_MAGIC)
			conn->left = true;
		if (conn->left)
			continue;
		if (conn->fill == want && !is_later(root, part, conn)) {
			if (!frame_right(chan, root, part, conn)) {
				ist__host_conn_kill(conn, 0);
				return -1;
			}
			for (uint32_t i = 0; i < chan->words; i++)
				part->set[chan->words + i] = ist__load_u64(conn->buf + FRAME_HEAD + 8 * (uint64_t)i);
			conn->taken = true;
			part->in = conn;
			return 1;
		}
		if (conn->state == CONN_DEAD && conn->fill < want && may_come_from(chan, part, conn->peer)) {
			ist__host_conn_lost(chan, part, conn);
			return -1;
		}
	}
	return 0;
}

bool
ist__host_chain_receive(struct ist_chan *chan, struct part *part)
{
	struct peer *root = &chan->peers[part->op.peer];
	uint64_t n, bytes = part->op.dst.bytes;
	struct conn *conn;
	bool did = false;

	if (part->phase == CHAIN_WAITS && root->come == part->turn) {
		int is = frame_find(chan, root, part);

		if (is == 0)
			return false;
		root->come++;
		did = true;
		if (is < 0)
			return true;
		part->phase = CHAIN_COMES;
		ist__host_route(chan, part);
	}
	if (part->phase != CHAIN_COMES)
		return did;
	conn = part->in;
	if (part->got < bytes) {
		n = ist__host_conn_recv(conn, (uint8_t *)part->op.dst.addr + part->got, least(bytes - part->got, PIECE));
		part->got += n;
		ist__host_part_moved(chan, part, n);
		did = did || n > 0;
		ist__host_conn_expect(conn, bytes - part->got);
	}
	if (part->got == bytes) {
		conn->fill = 0;
		conn->taken = false;
		part->in = NULL;
		part->phase = CHAIN_HERE;
	} else if (conn->state == CONN_DEAD) {
		ist__host_conn_lost(chan, part, conn);
		did = true;
	}
	return did;
}

/* The connection to the next member of the chain. NULL: no memory. */
static struct conn *
conn_to(struct ist_chan *chan, struct peer *root, uint32_t hop)
{
	struct conn *conn = root->chains_out;

	while (conn && conn->peer != hop)
		conn = conn->mate;
	if (conn)
		return conn;
	conn = ist__host_dial(chan, &chan->peers[hop], CLASS_CHAIN, root->rank);
	if (conn) {
		conn->mate = root->chains_out;
		root->chains_out = conn;
	}
	return conn;
}

/* One step of handing frame and bytes to the kernel. */
static uint64_t
push(struct ist_chan *chan, const struct peer *root, struct part *part, const struct ist_buf *buf, uint64_t ready)
{
	uint64_t frame = frame_bytes(chan), body, n;
	struct conn *conn = part->out;

	if (conn->state != CONN_READY)
		return 0;
	if (part->sent == 0)
		frame_write(chan, root, part, buf->bytes, conn->buf);
	body = part->sent > frame ? part->sent - frame : 0;
	n = part->sent < frame ? frame - part->sent : 0;
	n = ist__host_conn_send(conn, conn->buf + (frame - n), n, (const uint8_t *)buf->addr + body, least(ready - body, PIECE));
	part->sent += n;
	conn->taken = part->sent > 0 && part->sent < frame + buf->bytes;
	if (part->sent > frame)
		ist__host_part_moved(chan, part, part->sent - frame - body);
	return n;
}

/* ready: how much of our copy there is. *over: nobody comes after us, or the kernel has it all. */
bool
ist__host_chain_forward(struct ist_chan *chan, struct part *part, uint64_t ready, bool *over)
{
	struct peer *root = &chan->peers[part->op.peer];
	const struct ist_buf *buf = root->rank == chan->rank ? &part->op.src : &part->op.dst;
	uint64_t n;

	if (!part->routed)
		return false;
	*over = part->hop == IST_NO_RANK || part->passed;
	if (*over || root->passed != part->pass)
		return false;
	if (!part->out)
		part->out = conn_to(chan, root, part->hop);
	if (!part->out) {
		ist__host_part_fail(chan, part, IST_NO_MEMORY, IST_NO_RANK, 0, "out of memory");
		return true;
	}
	n = push(chan, root, part, buf, ready);
	if (part->sent == frame_bytes(chan) + buf->bytes) {
		root->passed++;
		part->passed = *over = true;
	} else if (part->out->state == CONN_DEAD) {
		ist__host_conn_lost(chan, part, part->out);
		root->passed++;
		return true;
	}
	return n > 0;
}
