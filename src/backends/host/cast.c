/* SPDX-License-Identifier: Apache-2.0
 *
 * cast.c - BROADCAST inside a host. The root, or on other hosts the member that the chain reaches first, posts each
 * broadcast on its board; the others read it where it lies (own memory of the channel) or through the stage, a ring of
 * pieces in the publisher's segment. Postings and readers' operations match by order, which is the same on all members.
 */
#include "backends/host/host.h"

#include <string.h>

enum { PHASE_NEW, PHASE_FOLLOW };

bool
ist__host_is_near(const struct ist_chan *chan, uint32_t rank)
{
	return rank == chan->rank || chan->peers[rank].near;
}

static const struct ist_buf *
buf_of(const struct ist_chan *chan, const struct ist_op *op)
{
	return op->peer == chan->rank ? &op->src : &op->dst;
}

ist_err
ist__host_cast_ready(struct ist_chan *chan, const struct part *part, struct ist_status *why)
{
	const struct ist_buf *buf = buf_of(chan, &part->op);

	if (buf->bytes == 0 || ist__host_publisher(chan, part) != chan->rank || ist__host_readers(chan, part, chan->rank) == 0 ||
	    ist__host_heap_find(chan, buf))
		return IST_OK;
	if (ist__host_is_far(buf))
		return ist__host_say(why, IST_UNSUPPORTED, IST_NO_RANK, 0, "device memory that is not this channel's own");
	return ist__host_reserve_stage(chan, why);
}

/* What is counted of a broadcast is counted by all members of its host alike, whether they take it or not. */
void
ist__host_cast_start(struct ist_chan *chan, struct part *part)
{
	struct peer *root = &chan->peers[part->op.peer];
	uint32_t publisher = ist__host_publisher(chan, part);
	bool mine = publisher == chan->rank, takes = ist__host_has(part->set, chan->rank);

	part->index = root->index++;
	part->publisher = mine ? IST_NO_RANK : publisher;
	part->readers = publisher == IST_NO_RANK ? 0 : ist__host_readers(chan, part, publisher);
	if (part->readers > 0)
		part->entry = mine ? chan->entries++ : chan->peers[publisher].entries++;
	part->bytes = buf_of(chan, &part->op)->bytes;
	if (!mine && !takes) { /* nobody waits for us, and we for nobody */
		ist__host_part_end(chan, part);
		return;
	}
	if (!mine)
		part->turn = chan->peers[publisher].turns++;
	else if (root->rank != chan->rank)
		part->turn = root->coming++;
	else
		ist__host_route(chan, part);
	if (publisher == part->op.peer && !mine && ist__host_coop_fits(chan, &part->op, part->bytes))
		ist__host_coop_enter(chan, part);
	part->next = NULL;
	*chan->casts_last = part;
	chan->casts_last = &part->next;
}

/* ---- the publisher's side ---- */

/* Has that reader given our posting back, or is it ahead? */
static bool
is_back(const struct ist_chan *chan, uint32_t rank, uint64_t slot, uint64_t value)
{
	return atomic_load_explicit(&chan->peers[rank].ctl->lanes[chan->rank].back[slot], memory_order_acquire) >= value;
}

/* Have all readers given this one back? */
static bool
all_back(const struct ist_chan *chan, const struct part *part)
{
	for (uint32_t i = 0; i < chan->n_near; i++)
		if (ist__host_has(part->set, chan->near[i]) && !is_back(chan, chan->near[i], part->entry % BOARD, part->entry + 1))
			return false;
	return true;
}

/* Have all readers given back what was in that place of the board before? */
static bool
is_free(const struct ist_chan *chan, uint64_t slot)
{
	for (uint32_t i = 0; i < chan->n_near; i++)
		if (!is_back(chan, chan->near[i], slot, chan->peers[chan->near[i]].given[slot]))
			return false;
	return true;
}

/* What publisher and readers must agree on, but for the mode. */
static uint64_t
what_of(const struct ist_chan *chan, const struct part *part)
{
	return (uint64_t)part->op.peer << 32 | (ist__host_set_print(chan, part) & 0xffff) << 16 | (uint64_t)(part->op.flags & IST_OP_VIEW) << 8;
}

/* In the heap, or in the device's memory. */
static uint64_t
place_of(const struct chunk *chunk, const struct ist_buf *buf)
{
	if (chunk->far.addr)
		return (uint64_t)((const uint8_t *)buf->addr - (const uint8_t *)chunk->far.addr);
	return chunk->at + (uint64_t)((const uint8_t *)buf->addr - chunk->addr);
}

static bool
post(struct ist_chan *chan, struct part *part)
{
	const struct ist_buf *buf = buf_of(chan, &part->op);
	const struct chunk *chunk = buf->bytes ? ist__host_heap_find(chan, buf) : NULL;
	uint64_t slot = part->entry % BOARD;
	struct posting *to = &chan->ctl->board[slot];

	if (part->entry != chan->posted || !is_free(chan, slot))
		return false;
	part->mode = chunk ? MODE_DIRECT : MODE_STAGED;
	if (chunk && !chunk->far.addr && part->op.peer == chan->rank && ist__host_coop_fits(chan, &part->op, part->bytes))
		ist__host_coop_enter(chan, part);
	for (uint32_t i = 0; i < chan->n_near; i++)
		if (ist__host_has(part->set, chan->near[i]))
			chan->peers[chan->near[i]].given[slot] = part->entry + 1;
	part->at = chunk ? place_of(chunk, buf) : chan->stage_end;
	chan->posts[slot].at = part->at;
	chan->posts[slot].staged = !chunk;
	if (!chunk)
		chan->stage_end += round_line(buf->bytes);
	atomic_store_explicit(&to->mark, 0, memory_order_relaxed);
	atomic_store_explicit(&to->seq, part->op.seq, memory_order_relaxed);
	atomic_store_explicit(&to->bytes, buf->bytes, memory_order_relaxed);
	atomic_store_explicit(&to->at, part->at, memory_order_relaxed);
	atomic_store_explicit(&to->chunk_at, chunk ? chunk->at : 0, memory_order_relaxed);
	atomic_store_explicit(&to->chunk_bytes, chunk ? chunk->bytes : 0, memory_order_relaxed);
	atomic_store_explicit(&to->crew, 0, memory_order_relaxed);
	atomic_store_explicit(&to->what, what_of(chan, part) | (uint64_t)(part->crew ? MODE_COOP : chunk && chunk->far.addr ? MODE_FAR : (enum mode)part->mode), memory_order_relaxed);
	atomic_store_explicit(&chan->ctl->posted, ++chan->posted, memory_order_release);
	part->posted = true;
	return true;
}

static void
set_mark(struct ist_chan *chan, struct part *part, uint64_t mark)
{
	part->mark = mark;
	atomic_store_explicit(&chan->ctl->board[part->entry % BOARD].mark, mark, memory_order_release);
}

/* Stream position from which on readers still need the stage; position, or less. A reader need not have read what lies
 * between the postings that it takes. One that says more than it can know harms itself. */
static uint64_t
needed_from(const struct ist_chan *chan, uint64_t position)
{
	uint64_t from = position;

	for (uint32_t i = 0; i < chan->n_near; i++) {
		const struct peer *peer = &chan->peers[chan->near[i]];
		uint64_t taken = atomic_load_explicit(&peer->ctl->lanes[chan->rank].taken, memory_order_acquire);

		for (uint64_t slot = 0; slot < BOARD && taken < from; slot++)
			if (chan->posts[slot].staged && !is_back(chan, peer->rank, slot, peer->given[slot]))
				from = least(from, chan->posts[slot].at > taken ? chan->posts[slot].at : taken);
	}
	return from;
}

static bool
stage_piece(struct ist_chan *chan, struct part *part, uint64_t ready)
{
	const struct layout *lay = &chan->lay;
	uint64_t position = part->at + part->mark, from = needed_from(chan, position), at = position & (lay->stage_bytes - 1), n;

	if (position - from >= lay->stage_bytes)
		return false;
	n = least(least(ready - part->mark, lay->stage_bytes - (position - from)), least(lay->stage_bytes / 8, lay->stage_bytes - at));
	if (n == 0)
		return false;
	memcpy((uint8_t *)chan->ctl + lay->stage_at + at, (const uint8_t *)buf_of(chan, &part->op)->addr + part->mark, n);
	set_mark(chan, part, part->mark + n);
	ist__host_part_moved(chan, part, n);
	return true;
}

/* ready: bytes of our own copy that are there. *over: no reader of this host needs it any more. */
static bool
publish(struct ist_chan *chan, struct part *part, uint64_t ready, bool *over)
{
	uint64_t bytes = buf_of(chan, &part->op)->bytes;
	bool did = false;

	if (part->readers == 0) {
		*over = true;
		return false;
	}
	if (!part->posted) {
		if (!post(chan, part))
			return false;
		did = true;
	}
	if (part->mark < ready && part->mode == MODE_DIRECT) {
		set_mark(chan, part, ready);
		did = true;
	} else if (part->mark < ready && stage_piece(chan, part, ready)) {
		did = true;
	}
	if (did)
		ist__host_bell_takers(chan, part);
	if (part->crew && ist__host_coop_give(chan, part))
		return true;
	*over = part->mark == bytes && (part->mode == MODE_STAGED || all_back(chan, part));
	return did;
}

/* ---- the reader's side ---- */

void
ist__host_cast_back(struct ist_chan *chan, struct part *part)
{
	struct peer *peer = &chan->peers[part->publisher];

	ist__host_unborrow(part->map);
	part->map = NULL;
	part->viewed = false;
	if (!chan->ctl || !peer->ctl)
		return;
	atomic_store_explicit(&chan->ctl->lanes[peer->rank].back[part->entry % BOARD], part->entry + 1, memory_order_release);
	ist__host_bell(chan, peer);
}

/* Reads the posting, once. False: the part has failed. */
static bool
follow_begin(struct ist_chan *chan, struct peer *peer, struct part *part)
{
	const struct posting *from = &peer->ctl->board[part->entry % BOARD];
	uint64_t what = atomic_load_explicit(&from->what, memory_order_relaxed);
	struct record rec = {
		.seq = atomic_load_explicit(&from->seq, memory_order_relaxed),
		.bytes = atomic_load_explicit(&from->bytes, memory_order_relaxed),
		.at = atomic_load_explicit(&from->at, memory_order_relaxed),
		.chunk_at = atomic_load_explicit(&from->chunk_at, memory_order_relaxed),
		.chunk_bytes = atomic_load_explicit(&from->chunk_bytes, memory_order_relaxed),
	};

	if (!ist__host_part_fits(chan, part, peer->rank, rec.seq, rec.bytes))
		return false;
	part->mode = what & 0xff;
	part->at = rec.at;
	if (what >> 8 != what_of(chan, part) >> 8) {
		ist__host_part_fail(chan, part, IST_MISMATCH, peer->rank, 0,
			"broadcast %llu: rank %u has root %u, rank %u root %u, or other takers, or only one wants a view",
			(unsigned long long)rec.seq, peer->rank, (uint32_t)(what >> 32), chan->rank, part->op.peer);
		return false;
	}
	if (part->mode != MODE_COOP || part->task->result) {
		(void)ist__host_coop_out(chan, part); /* nobody was told to write there */
		ist__host_coop_leave(part);
	}
	part->mode = part->mode == MODE_COOP ? MODE_DIRECT : part->mode;
	if ((part->mode == MODE_FAR) != ist__host_is_far(&part->op.dst)) {
		ist__host_part_fail(chan, part, IST_MISMATCH, peer->rank, 0, "broadcast %llu: the memory of rank %u and that of rank %u are not both a device's",
			(unsigned long long)rec.seq, peer->rank, chan->rank);
		return false;
	}
	if (part->mode == MODE_DIRECT || part->mode == MODE_FAR) {
		part->from = part->mode == MODE_FAR ? ist__host_far_borrow(chan, peer, part, &rec, &part->map) : ist__host_borrow(chan, peer, part, &rec, &part->map);
		part->mode = MODE_DIRECT;
		if (!part->from)
			return false;
	} else if (part->mode == MODE_STAGED) {
		part->after = peer->staged;
		peer->staged = part->at + round_line(part->op.dst.bytes);
	} else {
		ist__host_part_fail(chan, part, IST_MISMATCH, peer->rank, 0, "rank %u's board holds a posting of no known kind", peer->rank);
		return false;
	}
	part->phase = PHASE_FOLLOW;
	return true;
}

static bool
read_direct(struct ist_chan *chan, struct part *part, uint64_t mark)
{
	uint64_t n = mark > part->got ? least(mark - part->got, PIECE) : 0;

	if (n == 0)
		return false;
	ist__host_move(chan, &chan->copiers->direct, part->op.dst.bytes, &(void *){ (uint8_t *)part->op.dst.addr + part->got }, 1,
		part->from + part->got, n);
	part->got += n;
	ist__host_part_moved(chan, part, n);
	return true;
}

static bool
read_staged(struct ist_chan *chan, struct peer *peer, struct part *part, uint64_t mark)
{
	uint64_t room = chan->lay.stage_bytes, at = (part->at + part->got) & (room - 1), n;
	_Atomic uint64_t *taken = &chan->ctl->lanes[peer->rank].taken;

	if (!part->placed) {
		if (peer->taken != part->after)
			return false; /* an earlier one comes first */
		part->placed = true;
		peer->taken = part->at; /* what lies between was for others */
	}
	n = mark > part->got ? least(least(mark - part->got, PIECE), room - at) : 0;
	if (n > 0)
		ist__host_move(chan, &chan->copiers->out, part->op.dst.bytes, &(void *){ (uint8_t *)part->op.dst.addr + part->got }, 1, peer->stage + at, n);
	part->got += n;
	peer->taken += n;
	if (part->got == part->op.dst.bytes)
		peer->taken = part->at + round_line(part->got);
	ist__host_part_moved(chan, part, n);
	atomic_store_explicit(taken, peer->taken, memory_order_release);
	if (n > 0 && part->got < part->op.dst.bytes)
		ist__host_bell(chan, peer);
	return n > 0;
}

static void
lend(struct ist_chan *chan, struct part *part)
{
	struct ist_buf view = part->op.dst;
	union { const uint8_t *c; void *p; } u = { .c = part->from };

	view.addr = u.p;
	part->task->view = view;
	part->viewed = true;
	part->got = view.bytes;
	ist__host_part_moved(chan, part, view.bytes);
}

/* *over: the part has ended, well or not. */
static bool
follow(struct ist_chan *chan, struct part *part, bool *over)
{
	struct peer *peer = &chan->peers[part->publisher];
	uint64_t posted = atomic_load_explicit(&peer->ctl->posted, memory_order_acquire), mark, bytes = part->op.dst.bytes, said = 0;
	bool did = false, all = false;

	if (part->crew && part->task->result) {
		if (!ist__host_coop_out(chan, part))
			return false;
		ist__host_coop_leave(part);
		ist__host_part_end(chan, part);
		return *over = true;
	}
	if (posted <= part->entry || (part->phase == PHASE_NEW && peer->begun != part->turn))
		return false;
	if (part->phase == PHASE_NEW) {
		peer->begun++;
		if (!follow_begin(chan, peer, part)) {
			*over = part->ended;
			return true;
		}
		did = true;
	}
	mark = atomic_load_explicit(&peer->ctl->board[part->entry % BOARD].mark, memory_order_acquire);
	if (mark > bytes) {
		ist__host_part_fail(chan, part, IST_MISMATCH, peer->rank, 0, "rank %u has %llu bytes of %llu", peer->rank, (unsigned long long)mark,
			(unsigned long long)bytes);
		*over = part->ended;
		return true;
	}
	if (part->mode == MODE_STAGED) {
		if (read_staged(chan, peer, part, mark))
			did = true;
		if (part->got < bytes || peer->taken != part->at + round_line(bytes))
			return did;
	} else if (part->op.flags & IST_OP_VIEW) {
		if (mark < bytes)
			return did;
		lend(chan, part);
	} else if (part->crew && !(said = atomic_load_explicit(&peer->ctl->board[part->entry % BOARD].crew, memory_order_acquire))) {
		return did; /* the root has yet to say who is in */
	} else if (part->crew && ist__host_coop_in(chan, part, said)) {
		if (ist__host_coop_take(chan, part, said, &all))
			did = true;
		if (!all)
			return did;
		ist__host_coop_leave(part);
		part->got = bytes;
		ist__host_part_moved(chan, part, bytes);
	} else {
		(void)ist__host_coop_out(chan, part);
		ist__host_coop_leave(part);
		if (read_direct(chan, part, mark))
			did = true;
		if (part->got < bytes)
			return did;
	}
	if (!part->viewed) {
		if (part->op.flags & IST_OP_VIEW)
			part->task->view = part->op.dst;
		ist__host_cast_back(chan, part);
	}
	ist__host_part_end(chan, part);
	return *over = true;
}

/* ---- all ---- */

/* Gives and forwards what is there; *over: everybody who depends on us has it. */
static bool
give(struct ist_chan *chan, struct part *part, uint64_t ready, bool *over)
{
	bool here = false, away = false, did = publish(chan, part, ready, &here);

	if (ist__host_chain_forward(chan, part, ready, &away))
		did = true;
	*over = here && away && ready == buf_of(chan, &part->op)->bytes;
	return did;
}

static bool
step(struct ist_chan *chan, struct part *part, bool *over)
{
	bool did = false;

	if (part->publisher != IST_NO_RANK)
		return follow(chan, part, over);
	if (part->op.peer == chan->rank) {
		did = give(chan, part, part->op.src.bytes, over);
	} else {
		did = ist__host_chain_receive(chan, part);
		if (!part->ended && give(chan, part, part->got, over))
			did = true;
		*over = *over && part->phase != PHASE_NEW; /* of no bytes at all the frame must still come */
	}
	if (*over && !part->ended) {
		if (part->mode == MODE_DIRECT)
			ist__host_part_moved(chan, part, part->mark);
		if (part->op.flags & IST_OP_VIEW)
			part->task->view = *buf_of(chan, &part->op);
		ist__host_part_end(chan, part);
	}
	*over = part->ended;
	if (part->ended)
		ist__host_coop_leave(part);
	return did || *over;
}

bool
ist__host_cast_step(struct ist_chan *chan)
{
	bool did = false;

	for (struct part **at = &chan->casts; *at && !(did && ist__now() >= chan->until);) {
		struct part *part = *at;
		bool over = false;
		if (step(chan, part, &over))
			did = true;
		if (!over) {
			at = &part->next;
			continue;
		}
		*at = part->next;
		if (!part->next)
			chan->casts_last = at;
	}
	return did;
}
