/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.c - SEND and RECV inside a host. Each member has a ring to each other one, of which it alone writes bytes and head;
 * the reader's tail is in the reader's own segment. A large message from the channel's own memory takes no ring at all: the
 * record says where it lies, and the sender waits until the reader has copied it.
 */
#include "backends/host/host.h"

#include <string.h>

enum { PHASE_NEW, PHASE_BYTES, PHASE_WAIT };

static uint64_t
ring_at(const struct ist_chan *chan, uint64_t position)
{
	return position & (chan->lay.ring_bytes - 1);
}

static uint8_t *
ring_to(const struct ist_chan *chan, const struct peer *peer)
{
	return (uint8_t *)chan->ctl + chan->lay.rings_at + chan->lay.ring_bytes * peer->rank;
}

static void
fail_first(struct ist_chan *chan, struct queue *q, struct peer *peer, const char *what)
{
	struct part *part = ist__host_pop(q);

	peer->broken = true;
	ist__host_part_fail(chan, part, IST_MISMATCH, peer->rank, 0, "rank %u's ring %s", peer->rank, what);
}

static void
set_head(struct ist_chan *chan, struct peer *peer, uint64_t head)
{
	peer->head = head;
	atomic_store_explicit(&chan->ctl->lanes[peer->rank].head, head, memory_order_release);
	ist__host_bell(chan, peer);
}

static void
set_tail(struct ist_chan *chan, struct peer *peer, uint64_t tail)
{
	peer->tail = tail;
	atomic_store_explicit(&chan->ctl->lanes[peer->rank].tail, tail, memory_order_release);
	ist__host_bell(chan, peer);
}

static void
send_record(struct ist_chan *chan, struct peer *peer, struct part *part)
{
	const struct ist_buf *src = &part->op.src;
	const struct chunk *chunk = src->bytes >= DIRECT_MIN ? ist__host_heap_find(chan, src) : NULL;
	struct record rec = { .seq = part->op.seq, .bytes = src->bytes, .mode = chunk ? MODE_DIRECT : MODE_STAGED };

	if (chunk) {
		rec.at = chunk->at + (uint64_t)((const uint8_t *)src->addr - chunk->addr);
		rec.chunk_at = chunk->at;
		rec.chunk_bytes = chunk->bytes;
	}
	memcpy(ring_to(chan, peer) + ring_at(chan, peer->head), &rec, sizeof(rec));
	part->phase = chunk ? PHASE_WAIT : PHASE_BYTES;
	part->mark = peer->head + sizeof(rec);
	if (chunk || src->bytes == 0)
		set_head(chan, peer, part->mark);
	else
		peer->head = part->mark; /* told with the first bytes */
}

static void
send_bytes(struct ist_chan *chan, struct peer *peer, struct part *part, uint64_t room)
{
	uint64_t at = ring_at(chan, peer->head);
	uint64_t piece = least(PIECE, chan->lay.ring_bytes / 4);
	uint64_t n = least(least(part->op.src.bytes - part->sent, room), least(piece, chan->lay.ring_bytes - at));

	memcpy(ring_to(chan, peer) + at, (const uint8_t *)part->op.src.addr + part->sent, n);
	part->sent += n;
	ist__host_part_moved(chan, part, n);
	set_head(chan, peer, peer->head + round_line(n));
}

bool
ist__host_ring_send(struct ist_chan *chan, struct peer *peer)
{
	struct part *part = peer->send.first;
	uint64_t tail = atomic_load_explicit(&peer->ctl->lanes[chan->rank].tail, memory_order_acquire);
	uint64_t room = chan->lay.ring_bytes - (peer->head - tail);

	if (peer->broken || peer->head - tail > chan->lay.ring_bytes || tail % LINE) {
		fail_first(chan, &peer->send, peer, "is out of order");
		return true;
	}
	if (part->phase == PHASE_NEW) {
		if (room < sizeof(struct record))
			return false;
		send_record(chan, peer, part);
		room -= sizeof(struct record);
	} else if (part->phase == PHASE_BYTES && room == 0) {
		return false;
	} else if (part->phase == PHASE_WAIT && tail < part->mark) {
		return false;
	}
	if (part->phase == PHASE_WAIT && tail >= part->mark) {
		ist__host_part_moved(chan, part, part->op.src.bytes);
		part->sent = part->op.src.bytes;
		part->phase = PHASE_BYTES;
	}
	if (part->phase == PHASE_BYTES && part->sent < part->op.src.bytes && room > 0)
		send_bytes(chan, peer, part, room);
	if (part->phase == PHASE_BYTES && part->sent == part->op.src.bytes)
		ist__host_part_end(chan, ist__host_pop(&peer->send));
	return true;
}

/* False: the part has failed and is out of the queue. */
static bool
recv_record(struct ist_chan *chan, struct peer *peer, struct part *part)
{
	struct record rec;
	bool ok;

	memcpy(&rec, peer->ring + ring_at(chan, peer->tail), sizeof(rec));
	ok = ist__host_part_fits(chan, part, peer->rank, rec.seq, rec.bytes);
	if (ok && rec.mode == MODE_DIRECT) {
		part->from = ist__host_borrow(chan, peer, part, &rec, &part->map);
		ok = part->from != NULL;
	} else if (ok && rec.mode != MODE_STAGED) {
		ist__host_part_fail(chan, part, IST_MISMATCH, peer->rank, 0, "rank %u's ring holds a record of no known kind", peer->rank);
		ok = false;
	}
	if (!ok) {
		ist__host_pop(&peer->recv);
		peer->broken = true;
		return false;
	}
	part->phase = part->from ? PHASE_WAIT : PHASE_BYTES;
	if (!part->from)
		peer->tail += sizeof(rec); /* told with the first bytes, or below */
	return true;
}

static void
recv_ringed(struct ist_chan *chan, struct peer *peer, struct part *part, uint64_t there)
{
	uint64_t at = ring_at(chan, peer->tail);
	uint64_t piece = least(PIECE, chan->lay.ring_bytes / 4);
	uint64_t n = least(least(part->op.dst.bytes - part->got, there), least(piece, chan->lay.ring_bytes - at));

	ist__host_move(chan, &chan->copiers->out, part->op.dst.bytes, &(void *){ (uint8_t *)part->op.dst.addr + part->got }, 1, peer->ring + at, n);
	part->got += n;
	ist__host_part_moved(chan, part, n);
	set_tail(chan, peer, peer->tail + round_line(n));
}

static void
recv_direct(struct ist_chan *chan, struct peer *peer, struct part *part)
{
	uint64_t n = least(part->op.dst.bytes - part->got, PIECE);

	ist__host_move(chan, &chan->copiers->direct, part->op.dst.bytes, &(void *){ (uint8_t *)part->op.dst.addr + part->got }, 1,
		part->from + part->got, n);
	part->got += n;
	ist__host_part_moved(chan, part, n);
	if (part->got < part->op.dst.bytes)
		return;
	ist__host_unborrow(part->map);
	part->map = NULL;
	set_tail(chan, peer, peer->tail + sizeof(struct record));
}

bool
ist__host_ring_recv(struct ist_chan *chan, struct peer *peer)
{
	struct part *part = peer->recv.first;
	uint64_t head = atomic_load_explicit(&peer->ctl->lanes[chan->rank].head, memory_order_acquire);
	uint64_t there = head - peer->tail;

	if (peer->broken || there > chan->lay.ring_bytes || there % LINE) {
		fail_first(chan, &peer->recv, peer, "is out of order");
		return true;
	}
	if (part->phase == PHASE_NEW) {
		if (there == 0)
			return false;
		if (!recv_record(chan, peer, part))
			return true;
		if (part->phase == PHASE_BYTES) {
			there -= sizeof(struct record);
			if (part->op.dst.bytes == 0)
				set_tail(chan, peer, peer->tail);
		}
	} else if (part->phase == PHASE_BYTES && there == 0) {
		return false;
	}
	if (part->phase == PHASE_WAIT)
		recv_direct(chan, peer, part);
	else if (there > 0 && part->got < part->op.dst.bytes)
		recv_ringed(chan, peer, part, there);
	if (part->got == part->op.dst.bytes)
		ist__host_part_end(chan, ist__host_pop(&peer->recv));
	return true;
}

/* A member's messages to itself. */
bool
ist__host_self_step(struct ist_chan *chan)
{
	struct peer *self = &chan->peers[chan->rank];
	struct part *s = self->send.first, *r = self->recv.first;
	uint64_t n;

	if (!s || !r)
		return false;
	if (r->phase == PHASE_NEW && !ist__host_part_fits(chan, r, chan->rank, s->op.seq, s->op.src.bytes)) {
		ist__host_pop(&self->recv);
		return true;
	}
	r->phase = PHASE_BYTES;
	n = least(s->op.src.bytes - s->sent, PIECE);
	if (n > 0)
		memmove((uint8_t *)r->op.dst.addr + r->got, (const uint8_t *)s->op.src.addr + s->sent, n);
	s->sent += n;
	r->got += n;
	ist__host_part_moved(chan, s, n);
	ist__host_part_moved(chan, r, n);
	if (s->sent < s->op.src.bytes)
		return true;
	ist__host_part_end(chan, ist__host_pop(&self->send));
	ist__host_part_end(chan, ist__host_pop(&self->recv));
	return true;
}
