/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.c - SEND and RECV between hosts: one connection for each direction of a pair, dialled by the sender at its first
 * message, and a small frame before each message.
 */
#include "backends/host/host.h"

#include "base/bytes.h"

#define FRAME_MAGIC 0x474e4553u
#define FRAME 32u

bool
ist__host_stream_send(struct ist_chan *chan, struct peer *peer)
{
	struct part *part = peer->send.first;
	const struct ist_buf *src = &part->op.src;
	struct conn *conn = peer->out;
	uint64_t body, head, n = 0;

	if (!conn)
		conn = peer->out = ist__host_dial(chan, peer, CLASS_P2P, 0);
	if (!conn) {
		ist__host_part_fail(chan, ist__host_pop(&peer->send), IST_NO_MEMORY, IST_NO_RANK, 0, "out of memory");
		return true;
	}
	if (conn->state == CONN_READY) {
		if (part->sent == 0) {
			ist__store_u32(conn->buf, FRAME_MAGIC);
			ist__store_u32(conn->buf + 4, 0);
			ist__store_u64(conn->buf + 8, conn->count);
			ist__store_u64(conn->buf + 16, part->op.seq);
			ist__store_u64(conn->buf + 24, src->bytes);
		}
		head = part->sent < FRAME ? FRAME - part->sent : 0;
		body = part->sent > FRAME ? part->sent - FRAME : 0;
		n = ist__host_conn_send(conn, conn->buf + (FRAME - head), head, (const uint8_t *)src->addr + body, least(src->bytes - body, PIECE));
		part->sent += n;
		if (n > head)
			ist__host_part_moved(chan, part, n - head);
	}
	if (part->sent == FRAME + src->bytes) {
		conn->count++;
		ist__host_part_end(chan, ist__host_pop(&peer->send));
		return true;
	}
	if (conn->state == CONN_DEAD) {
		ist__host_conn_lost(chan, ist__host_pop(&peer->send), conn);
		return true;
	}
	return n > 0;
}

/* 1: there and right. 0: not yet. -1: the part has failed and is out of the queue. */
static int
frame_read(struct ist_chan *chan, struct peer *peer, struct part *part, struct conn *conn)
{
	bool ok;

	conn->fill += ist__host_conn_recv(conn, conn->buf + conn->fill, FRAME - conn->fill);
	if (conn->fill < FRAME)
		return 0;
	ok = ist__load_u32(conn->buf) == FRAME_MAGIC && ist__load_u64(conn->buf + 8) == conn->count;
	if (!ok)
		ist__host_part_fail(chan, part, IST_ORDER_MISMATCH, peer->rank, 0, "rank %u sends something other than message %llu", peer->rank,
			(unsigned long long)conn->count);
	else
		ok = ist__host_part_fits(chan, part, peer->rank, ist__load_u64(conn->buf + 16), ist__load_u64(conn->buf + 24));
	if (ok) {
		part->phase = 1;
		return 1;
	}
	ist__host_conn_kill(conn, 0);
	ist__host_pop(&peer->recv);
	return -1;
}

bool
ist__host_stream_recv(struct ist_chan *chan, struct peer *peer)
{
	struct part *part = peer->recv.first;
	struct conn *conn = peer->in;
	uint64_t n, bytes = part->op.dst.bytes;
	bool did = false;

	if (!conn)
		return false; /* it dials when it sends */
	if (part->phase == 0 && conn->state == CONN_READY) {
		int is = frame_read(chan, peer, part, conn);
		if (is < 0)
			return true;
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
		conn->count++;
		ist__host_part_end(chan, ist__host_pop(&peer->recv));
		return true;
	}
	if (conn->state == CONN_DEAD) {
		ist__host_conn_lost(chan, ist__host_pop(&peer->recv), conn);
		return true;
	}
	return did;
}
