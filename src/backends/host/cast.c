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

/* The first member of this host in the order of the chain, which goes up from the root. */
static uint32_t
relay_of(const struct ist_chan *chan, uint32_t root)
{
	uint32_t best = chan->rank, size = chan->size;

	for (uint32_t i = 0; i < chan->n_near; i++)
		if ((chan->near[i] + size - root) % size < (best + size - root) % size)
			best = chan->near[i];
	return best;
}

/* Who gives this host's members a root's bytes. */
static uint32_t
publisher_of(const struct ist_chan *chan, uint32_t root)
{
	return ist__host_is_near(chan, root) ? root : relay_of(chan, root);
}

static const struct ist_buf *
buf_of(const struct ist_chan *chan, const struct ist_op *op)
{
	return op->peer == chan->rank ? &op->src : &op->dst;
}

ist_err
ist__host_cast_ready(struct ist_chan *chan, const struct ist_op *op, struct ist_status *why)
{
	const struct ist_buf *buf = buf_of(chan, op);

	if (chan->n_near == 0 || buf->bytes == 0 || publisher_of(chan, op->peer) != chan->rank ||
	    ist__host_heap_find(chan, buf->addr, buf->bytes))
		return IST_OK;
	return ist__host_reserve_stage(chan, why);
}

void
ist__host_cast_start(struct ist_chan *chan, struct part *part)
{
	uint32_t publisher = publisher_of(chan, part->op.peer);

	part->index = chan->peers[part->op.peer].index++;
	part->publisher = publisher == chan->rank ? IST_NO_RANK : publisher;
	if (part->publisher != IST_NO_RANK)
		part->entry = chan->peers[publisher].entries++;
	else if (chan->n_near)
		part->entry = chan->entries++;
	part->bytes = buf_of(chan, &part->op)->bytes;
	if (publisher == part->op.peer && part->publisher != IST_NO_RANK && ist__host_coop_fits(chan, &part->op, part->bytes))
		ist__host_coop_enter(chan, part);
	part->next = NULL;
	*chan->casts_last = part;
	chan->casts_last = &part->next;
}

/* ---- the publisher's side ---- */

/* Have all readers given back what was in that place of the board? value: what they say then, or more where they are ahead. */
static bool
all_back(const struct ist_chan *chan, uint64_t slot, uint64_t value)
{
	for (uint32_t i = 0; i < chan->n_near; i++) {
		const struct lane *lane = &chan->peers[chan->near[i]].ctl->lanes[chan->rank];
		if (atomic_load_explicit(&lane->back[slot], memory_order_acquire) < value)
			return false;
	}
	return true;
}

static bool
post(struct ist_chan *chan, struct part *part)
{
	const struct ist_buf *buf = buf_of(chan, &part->op);
	const struct chunk *chunk = buf->bytes ? ist__host_heap_find(chan, buf->addr, buf->bytes) : NULL;
	uint64_t slot = part->entry % BOARD;
	struct posting *to = &chan->ctl->board[slot];

	if (part->entry != chan->posted || (part->entry >= BOARD && !all_back(chan, slot, part->entry - BOARD + 1)))
		return false;
	part->mode = chunk ? MODE_DIRECT : MODE_STAGED;
	if (chunk && part->op.peer == chan->rank && ist__host_coop_fits(chan, &part->op, part->bytes))
		ist__host_coop_enter(chan, part);
	part->at = chunk ? chunk->at + (uint64_t)((const uint8_t *)buf->addr - chunk->addr) : chan->stage_end;
	if (!chunk)
		chan->stage_end += round_line(buf->bytes);
	atomic_store_explicit(&to->mark, 0, memory_order_relaxed);
	atomic_store_explicit(&to->seq, part->op.seq, memory_order_relaxed);
	atomic_store_explicit(&to->bytes, buf->bytes, memory_order_relaxed);
	atomic_store_explicit(&to->at, part->at, memory_order_relaxed);
	atomic_store_explicit(&to->chunk_at, chunk ? chunk->at : 0, memory_order_relaxed);
	atomic_store_explicit(&to->chunk_bytes, chunk ? chunk->bytes : 0, memory_order_relaxed);
	atomic_store_explicit(&to->crew, 0, memory_order_relaxed);
	atomic_store_explicit(&to->what, (uint64_t)part->op.peer << 32 | (uint64_t)(part->op.flags & IST_OP_VIEW) << 8 |
		(uint64_t)(part->crew ? MODE_COOP : (enum mode)part->mode), memory_order_relaxed);
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

static uint64_t
least_taken(const struct ist_chan *chan)
{
	uint64_t taken = UINT64_MAX;

	for (uint32_t i = 0; i < chan->n_near; i++)
		taken = least(taken, atomic_load_explicit(&chan->peers[chan->near[i]].ctl->lanes[chan->rank].taken, memory_order_acquire));
	return taken;
}

static bool
stage_piece(struct ist_chan *chan, struct part *part, uint64_t ready)
{
	const struct layout *lay = &chan->lay;
	uint64_t position = part->at + part->mark, taken = least_taken(chan), at = position & (lay->stage_bytes - 1), n;

	if (taken > position || position - taken >= lay->stage_bytes)
		return false; /* ahead of us can only be a liar, whom nothing here depends on */
	n = least(least(ready - part->mark, lay->stage_bytes - (position - taken)), least(lay->stage_bytes / 8, lay->stage_bytes - at));
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

	if (chan->n_near == 0) {
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
		ist__host_bell_near(chan);
	if (part->crew && ist__host_coop_give(chan, part))
		return true;
	*over = part->mark == bytes && (part->mode == MODE_STAGED || all_back(chan, part->entry % BOARD, part->entry + 1));
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
	if (what >> 32 != part->op.peer || (what >> 8 & 0xffffff) != (part->op.flags & IST_OP_VIEW)) {
		ist__host_part_fail(chan, part, IST_MISMATCH, peer->rank, 0, "broadcast %llu: rank %u has root %u, rank %u root %u, or only one wants a view",
			(unsigned long long)rec.seq, peer->rank, (uint32_t)(what >> 32), chan->rank, part->op.peer);
		return false;
	}
	if (part->mode != MODE_COOP || part->task->result) {
		(void)ist__host_coop_out(chan, part); /* nobody was told to write there */
		ist__host_coop_leave(part);
	}
	part->mode = part->mode == MODE_COOP ? MODE_DIRECT : part->mode;
	if (part->mode == MODE_DIRECT) {
		part->from = ist__host_borrow(chan, peer, part, &rec, &part->map);
		if (!part->from)
			return false;
	} else if (part->mode != MODE_STAGED) {
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
	ist__host_copy(&chan->copy_direct, (uint8_t *)part->op.dst.addr + part->got, part->from + part->got, n);
	part->got += n;
	ist__host_part_moved(chan, part, n);
	return true;
}

static bool
read_staged(struct ist_chan *chan, struct peer *peer, struct part *part, uint64_t mark)
{
	uint64_t room = chan->lay.stage_bytes, at = (part->at + part->got) & (room - 1), n;
	_Atomic uint64_t *taken = &chan->ctl->lanes[peer->rank].taken;

	if (part->at + part->got != peer->taken)
		return false; /* an earlier one comes first */
	n = mark > part->got ? least(least(mark - part->got, PIECE), room - at) : 0;
	if (n > 0)
		ist__host_copy(&chan->copy_out, (uint8_t *)part->op.dst.addr + part->got, peer->stage + at, n);
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
	if (posted <= part->entry)
		return false;
	if (part->phase == PHASE_NEW) {
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
