/* SPDX-License-Identifier: Apache-2.0
 *
 * chain.c - BROADCAST between hosts: from the root to the next member up from it that nobody serves yet, and so on; each
 * forwards from its own copy as bytes arrive, so every link carries each byte once. Nobody has to know which members share
 * a host: the frame says who is served, and each adds its own host. A root has connections of its own along its chain, so
 * that broadcasts of different roots never wait for each other.
 */
#include "backends/host/host.h"

#include "base/bytes.h"

#include <string.h>

#define FRAME_MAGIC 0x54534143u
#define FRAME_HEAD 48u

static uint64_t
frame_bytes(const struct ist_chan *chan)
{
	return FRAME_HEAD + 8 * (uint64_t)chan->words;
}

static bool
served_has(const uint64_t *served, uint32_t rank)
{
	return served[rank / 64] >> (rank % 64) & 1;
}

/* Notes who has it before us, adds this host, and finds who comes next. */
static void
set_served(struct ist_chan *chan, struct peer *root, uint64_t *served)
{
	root->served = served;
	root->hop = IST_NO_RANK;
	for (uint32_t r = 0; r < chan->size; r++)
		if (ist__host_is_near(chan, r))
			served[r / 64] |= UINT64_C(1) << (r % 64);
	for (uint32_t i = 1; i < chan->size && root->hop == IST_NO_RANK; i++) {
		uint32_t r = (root->rank + i) % chan->size;
		if (!served_has(served, r))
			root->hop = r;
	}
}

ist_err
ist__host_chain_root(struct ist_chan *chan)
{
	uint64_t *served = ist__alloc(&chan->ctx, 8 * (uint64_t)chan->words);

	if (!served)
		return IST_NO_MEMORY;
	set_served(chan, &chan->peers[chan->rank], served);
	return IST_OK;
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
	ist__store_u64(to + 40, 0);
	for (uint32_t i = 0; i < chan->words; i++)
		ist__store_u64(to + FRAME_HEAD + 8 * (uint64_t)i, root->served[i]);
}

/* True: it is the frame of this broadcast. Else the part has failed. */
static bool
frame_right(struct ist_chan *chan, struct peer *root, struct part *part, const struct conn *conn)
{
	const uint8_t *f = conn->buf;
	uint64_t *served;

	if (ist__load_u32(f) != FRAME_MAGIC || ist__load_u32(f + 4) != root->rank || ist__load_u64(f + 8) != part->index ||
	    ist__load_u32(f + 36) != chan->words) {
		ist__host_part_fail(chan, part, IST_ORDER_MISMATCH, conn->peer, 0, "rank %u sends something other than broadcast %llu of root %u", conn->peer,
			(unsigned long long)part->index, root->rank);
		return false;
	}
	if (!ist__host_part_fits(chan, part, conn->peer, ist__load_u64(f + 16), ist__load_u64(f + 24)))
		return false;
	if (ist__load_u32(f + 32) != (part->op.flags & IST_OP_VIEW)) {
		ist__host_part_fail(chan, part, IST_MISMATCH, conn->peer, 0, "only one of ranks %u and %u wants a view of broadcast %llu", conn->peer, chan->rank,
			(unsigned long long)part->op.seq);
		return false;
	}
	if (root->served)
		return true;
	served = ist__alloc(&chan->ctx, 8 * (uint64_t)chan->words);
	if (!served) {
		ist__host_part_fail(chan, part, IST_NO_MEMORY, IST_NO_RANK, 0, "out of memory");
		return false;
	}
	for (uint32_t i = 0; i < chan->words; i++)
		served[i] = ist__load_u64(f + FRAME_HEAD + 8 * (uint64_t)i);
	set_served(chan, root, served);
	return true;
}

/* 1: there and right. 0: not yet. -1: the part has failed. */
static int
frame_read(struct ist_chan *chan, struct peer *root, struct part *part, struct conn *conn)
{
	uint64_t want = frame_bytes(chan);

	conn->fill += ist__host_conn_recv(conn, conn->buf + conn->fill, want - conn->fill);
	if (conn->fill < want)
		return 0;
	if (!frame_right(chan, root, part, conn)) {
		ist__host_conn_kill(conn, 0);
		return -1;
	}
	part->phase = 1;
	return 1;
}

bool
ist__host_chain_receive(struct ist_chan *chan, struct part *part)
{
	struct peer *root = &chan->peers[part->op.peer];
	struct conn *conn = root->chain_in;
	uint64_t n, bytes = part->op.dst.bytes;
	bool did = false;

	if (!conn || root->index_in != part->index)
		return false;
	if (part->phase == 0 && conn->state == CONN_READY) {
		int is = frame_read(chan, root, part, conn);
		if (is < 0) {
			root->index_in++;
			return true;
		}
		did = is > 0;
	}
	if (part->phase == 1 && part->got < bytes) {
		n = ist__host_conn_recv(conn, (uint8_t *)part->op.dst.addr + part->got, least(bytes - part->got, PIECE));
		part->got += n;
		ist__host_part_moved(chan, part, n);
		did = did || n > 0;
		ist__host_conn_expect(conn, bytes - part->got);
	}
	if (part->phase == 1 && part->got == bytes) {
		conn->fill = 0;
		root->index_in++;
	} else if (conn->state == CONN_DEAD) {
		ist__host_conn_lost(chan, part, conn);
		root->index_in++;
		did = true;
	}
	return did;
}

/* ready: how much of our copy there is. *over: nobody comes after us, or the kernel has it all. */
bool
ist__host_chain_forward(struct ist_chan *chan, struct part *part, uint64_t ready, bool *over)
{
	struct peer *root = &chan->peers[part->op.peer];
	const struct ist_buf *buf = root->rank == chan->rank ? &part->op.src : &part->op.dst;
	uint64_t frame = frame_bytes(chan), body, n;

	if (!root->served)
		return false;
	*over = root->hop == IST_NO_RANK || root->index_out > part->index;
	if (*over || root->index_out != part->index)
		return false;
	if (!root->chain_out)
		root->chain_out = ist__host_dial(chan, &chan->peers[root->hop], CLASS_CHAIN, root->rank);
	if (!root->chain_out) {
		ist__host_part_fail(chan, part, IST_NO_MEMORY, IST_NO_RANK, 0, "out of memory");
		return true;
	}
	if (root->chain_out->state == CONN_READY) {
		if (part->sent == 0)
			frame_write(chan, root, part, buf->bytes, root->chain_out->buf);
		body = part->sent > frame ? part->sent - frame : 0;
		n = part->sent < frame ? frame - part->sent : 0;
		n = ist__host_conn_send(root->chain_out, root->chain_out->buf + (frame - n), n, (const uint8_t *)buf->addr + body,
			least(ready - body, PIECE));
		part->sent += n;
		if (part->sent > frame)
			ist__host_part_moved(chan, part, part->sent - frame - body);
	} else {
		n = 0;
	}
	if (root->chain_out->state == CONN_DEAD) {
		ist__host_conn_lost(chan, part, root->chain_out);
		root->index_out++;
		return true;
	}
	if (part->sent == frame + buf->bytes) {
		root->index_out++;
		*over = true;
	}
	return n > 0;
}
