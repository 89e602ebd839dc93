/* SPDX-License-Identifier: Apache-2.0
 *
 * coop.c - large broadcasts inside a host by all hands: root and receivers copy different pieces, each into the memory of all
 * receivers, so that every byte is read once however many want it. Only between memory of the channel's own; who has other
 * memory, or comes late, copies for itself as cast.c says.
 *
 * Who is in is the root's to say (the crew), once all have told where they want the bytes or a moment has passed. A member
 * marks a piece as claimed before it writes, and as done after. The rule that protects a receiver's memory: a member that
 * has claimed looks whether the receiver has closed its seat before it writes there; a receiver that has closed looks
 * whether claims are open before it gives its memory back. One of them sees the other. That holds for an abort as well; a
 * writer that does not come back then makes the memory ABANDONED.
 *
 * A seat's marks must last until the whole crew has left: lanes[].back says that.
 */
#include "backends/host/host.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#define COOP_MIN (UINT64_C(4) << 20)    /* below it the arrangement costs more than it saves */
#define GRACE_NS (1000 * INT64_C(1000)) /* from the posting until who has said nothing is left out */
#define GRACE_BYTES 16                  /* a nanosecond more for so many, where members have to take turns on the CPUs */
#define OUT_NS (80 * INT64_C(1000000))  /* from an abort until a claim is taken for one that stays */
#define PIECE_MIN (UINT64_C(256) << 10)
#define CREW_SAID (UINT64_C(1) << 63)
#define BITS 64u

/* One of the crew, as seen by one member. */
struct hand {
	const struct seat *seat;
	uint8_t *to;       /* where it wants the bytes; NULL: it is the root */
	struct map *map;
};

struct crew {
	struct part *part; /* NULL: over; the seat may still be needed by others */
	uint64_t key, entry;
	uint32_t publisher, mine, n;
	uint64_t takers;   /* by their place */
	uint32_t place, members; /* of this member among the crew; how many they are */
	bool joined, closed;
	bool looks_round;  /* has done its share, and now does others' */
	struct hand hands[BITS];
};

static uint64_t
key_of(uint32_t publisher, uint64_t entry)
{
	return ((uint64_t)publisher << 40 | (entry & ((UINT64_C(1) << 40) - 1))) + 1;
}

static const struct seat *
seat_of(const struct ctl *ctl, uint64_t key)
{
	for (uint32_t i = 0; i < SEATS; i++)
		if (atomic_load_explicit(&ctl->seats[i].key, memory_order_acquire) == key)
			return &ctl->seats[i];
	return NULL;
}

/* Place among the members of this host. */
static uint32_t
place_of(const struct ist_chan *chan, uint32_t rank)
{
	uint32_t n = chan->rank < rank;

	for (uint32_t i = 0; i < chan->n_near; i++)
		n += chan->near[i] < rank;
	return n;
}

static uint64_t
pieces_of(uint64_t bytes, uint64_t *piece)
{
	uint64_t each = (bytes + PIECES - 1) / PIECES;

	*piece = each < PIECE_MIN ? PIECE_MIN : (each + PIECE_MIN - 1) / PIECE_MIN * PIECE_MIN;
	return (bytes + *piece - 1) / *piece;
}

/* ---- coming and going ---- */

/* Have all who take it left that broadcast? */
static bool
all_left(const struct ist_chan *chan, const struct crew *crew)
{
	uint64_t slot = crew->entry % BOARD;

	if (crew->takers >> place_of(chan, chan->rank) & 1 &&
	    atomic_load_explicit(&chan->ctl->lanes[crew->publisher].back[slot], memory_order_acquire) <= crew->entry)
		return false;
	for (uint32_t i = 0; i < chan->n_near; i++)
		if (crew->takers >> place_of(chan, chan->near[i]) & 1 &&
		    atomic_load_explicit(&chan->peers[chan->near[i]].ctl->lanes[crew->publisher].back[slot], memory_order_acquire) <= crew->entry)
			return false;
	return true;
}

static uint64_t
places_of_takers(const struct ist_chan *chan, const struct part *part)
{
	uint64_t places = (uint64_t)ist__host_has(part->set, chan->rank) << place_of(chan, chan->rank);

	for (uint32_t i = 0; i < chan->n_near; i++)
		places |= (uint64_t)ist__host_has(part->set, chan->near[i]) << place_of(chan, chan->near[i]);
	return places;
}

static struct crew *
crew_take(struct ist_chan *chan)
{
	for (uint32_t i = 0; i < SEATS; i++) {
		struct crew *crew = chan->crews[i];

		if (crew && (crew->part || (crew->key && !all_left(chan, crew))))
			continue;
		if (!crew)
			crew = chan->crews[i] = ist__alloc(&chan->ctx, sizeof(*crew));
		if (crew)
			crew->mine = i;
		return crew;
	}
	return NULL;
}

bool
ist__host_coop_fits(const struct ist_chan *chan, const struct ist_op *op, uint64_t bytes)
{
	return chan->opt.coop && bytes >= COOP_MIN && !(op->flags & IST_OP_VIEW) && chan->n_near > 0 && chan->n_near < BITS - 2;
}

void
ist__host_coop_enter(struct ist_chan *chan, struct part *part)
{
	bool root = part->publisher == IST_NO_RANK;
	const struct ist_buf *dst = &part->op.dst;
	const struct chunk *chunk = root ? NULL : ist__host_heap_find(chan, dst);
	struct crew *crew = crew_take(chan);
	struct seat *seat;

	if (!crew)
		return; /* too much at a time: it goes without */
	seat = &chan->ctl->seats[crew->mine];
	crew->part = part;
	crew->publisher = root ? chan->rank : part->publisher;
	crew->entry = part->entry;
	crew->key = key_of(crew->publisher, part->entry);
	crew->n = 0;
	crew->takers = places_of_takers(chan, part);
	crew->joined = crew->closed = crew->looks_round = false;
	part->crew = crew;
	part->since = ist__now();
	atomic_store_explicit(&seat->key, 0, memory_order_seq_cst);
	for (uint32_t i = 0; i < PIECES / BITS; i++) {
		atomic_store_explicit(&seat->claims[i], 0, memory_order_relaxed);
		atomic_store_explicit(&seat->done[i], 0, memory_order_relaxed);
	}
	atomic_store_explicit(&seat->at, chunk ? chunk->at + (uint64_t)((const uint8_t *)dst->addr - chunk->addr) : 0, memory_order_relaxed);
	atomic_store_explicit(&seat->chunk_at, chunk ? chunk->at : 0, memory_order_relaxed);
	atomic_store_explicit(&seat->chunk_bytes, chunk ? chunk->bytes : 0, memory_order_relaxed);
	atomic_store_explicit(&seat->bytes, part->bytes, memory_order_relaxed);
	atomic_store_explicit(&seat->closed, 0, memory_order_relaxed);
	atomic_store_explicit(&seat->key, crew->key, memory_order_seq_cst);
	if (!root)
		ist__host_bell(chan, &chan->peers[crew->publisher]);
}

/* Nobody writes into this member's memory any more, nor will. */
bool
ist__host_coop_out(struct ist_chan *chan, struct part *part)
{
	struct crew *crew = part->crew;

	if (!crew)
		return true;
	if (!crew->closed)
		atomic_store_explicit(&chan->ctl->seats[crew->mine].closed, 1, memory_order_seq_cst);
	crew->closed = true;
	for (uint32_t i = 0; i < chan->n_near && part->publisher != IST_NO_RANK; i++) {
		const struct seat *seat = seat_of(chan->peers[chan->near[i]].ctl, crew->key);

		for (uint32_t w = 0; seat && w < PIECES / BITS; w++) {
			uint64_t done = atomic_load_explicit(&seat->done[w], memory_order_acquire);

			if (atomic_load_explicit(&seat->claims[w], memory_order_seq_cst) & ~done)
				return false;
		}
	}
	return true;
}

void
ist__host_coop_leave(struct part *part)
{
	struct crew *crew = part->crew;

	if (!crew)
		return;
	for (uint32_t i = 0; i < crew->n; i++)
		ist__host_unborrow(crew->hands[i].map);
	crew->n = 0;
	crew->part = NULL;
	part->crew = NULL;
}

void
ist__host_coop_fini(struct ist_chan *chan)
{
	for (uint32_t i = 0; i < SEATS; i++) {
		ist__free(&chan->ctx, chan->crews[i]);
		chan->crews[i] = NULL;
	}
}

/* ---- who is in ---- */

/* Who is left out copies everything for itself afterwards. Where members outnumber CPUs one may be late for no other reason
 * than that it waits for its turn; then half of what that copy would take is well spent on waiting. */
static int64_t
grace(const struct ist_chan *chan, uint64_t bytes)
{
	return GRACE_NS + (chan->n_near >= chan->cpus ? (int64_t)(bytes / GRACE_BYTES) : 0);
}

bool
ist__host_coop_decide(struct ist_chan *chan, struct part *part)
{
	struct posting *to = &chan->ctl->board[part->entry % BOARD];
	uint64_t crew = CREW_SAID;
	bool all = true;

	if (!part->crew || part->crew->joined || atomic_load_explicit(&to->crew, memory_order_relaxed))
		return false;
	for (uint32_t i = 0; i < chan->n_near; i++) {
		const struct seat *seat = seat_of(chan->peers[chan->near[i]].ctl, part->crew->key);

		if (!ist__host_has(part->set, chan->near[i]))
			continue;
		if (!seat)
			all = false;
		else if (atomic_load_explicit(&seat->chunk_bytes, memory_order_relaxed) &&
			 atomic_load_explicit(&seat->bytes, memory_order_relaxed) == part->bytes)
			crew |= UINT64_C(1) << place_of(chan, chan->near[i]);
	}
	if (!all && ist__now() < part->since + grace(chan, part->bytes)) {
		chan->more = true; /* there is nobody who would wake us for it */
		if (chan->n_near >= chan->cpus)
			sched_yield();
		return false;
	}
	atomic_store_explicit(&to->crew, crew, memory_order_release);
	ist__host_bell_takers(chan, part);
	return true;
}

/* That of a member which has all its bytes, and has left, before we came: nothing is to be written there, and what it has copied
 * into others' memory is copied again. */
static const struct seat empty_seat;

static ist_err
add_hand(struct ist_chan *chan, struct part *part, uint32_t rank)
{
	struct crew *crew = part->crew;
	struct hand *hand = &crew->hands[crew->n];
	struct peer *peer = &chan->peers[rank];
	struct record where = { .bytes = part->bytes };

	*hand = (struct hand){ .seat = rank == chan->rank ? &chan->ctl->seats[crew->mine] : seat_of(peer->ctl, crew->key) };
	if (!hand->seat && rank == crew->publisher)
		return IST_MISMATCH;
	if (!hand->seat) {
		hand->seat = &empty_seat;
	} else if (rank == chan->rank) {
		hand->to = part->publisher == IST_NO_RANK ? NULL : part->op.dst.addr;
	} else if (rank != crew->publisher) {
		ist_err err;

		where.at = atomic_load_explicit(&hand->seat->at, memory_order_relaxed);
		where.chunk_at = atomic_load_explicit(&hand->seat->chunk_at, memory_order_relaxed);
		where.chunk_bytes = atomic_load_explicit(&hand->seat->chunk_bytes, memory_order_relaxed);
		err = ist__host_map(chan, peer, &where, true, &hand->map);
		if (err)
			return err;
		hand->to = hand->map->addr + (where.at - hand->map->at);
	}
	crew->n++;
	return IST_OK;
}

/* False: the part's task has failed. */
static bool
join(struct ist_chan *chan, struct part *part, uint64_t said)
{
	struct crew *crew = part->crew;
	uint32_t members = (uint32_t)__builtin_popcountll(said & ~CREW_SAID) + 1, before = 0;

	for (uint32_t r = 0; r < chan->size; r++) {
		bool in = ist__host_is_near(chan, r) && (r == crew->publisher || (said >> place_of(chan, r) & 1));
		ist_err err = in ? add_hand(chan, part, r) : IST_OK;

		if (err) {
			ist__host_part_note(chan, part, err, r, errno, "rank %u's memory for a broadcast can't be reached: %s", r, ist_err_text(err));
			return false;
		}
		before += in && r < chan->rank;
	}
	crew->place = before;
	crew->members = members;
	crew->joined = true;
	return true;
}

/* ---- copying ---- */

static void
set_bit(_Atomic uint64_t *words, uint64_t bit, bool on)
{
	uint64_t was = atomic_load_explicit(&words[bit / BITS], memory_order_relaxed), one = UINT64_C(1) << (bit % BITS);

	atomic_store_explicit(&words[bit / BITS], on ? was | one : was & ~one, memory_order_seq_cst);
}

static uint64_t
claimed(const struct crew *crew, uint64_t word)
{
	uint64_t bits = 0;

	for (uint32_t i = 0; i < crew->n; i++)
		bits |= atomic_load_explicit(&crew->hands[i].seat->claims[word], memory_order_seq_cst);
	return bits;
}

static bool
all_done(const struct crew *crew, uint64_t pieces)
{
	for (uint64_t w = 0; w * BITS < pieces; w++) {
		uint64_t left = pieces - w * BITS, want = left >= BITS ? UINT64_MAX : (UINT64_C(1) << left) - 1, bits = 0;

		for (uint32_t i = 0; i < crew->n; i++)
			bits |= atomic_load_explicit(&crew->hands[i].seat->done[w], memory_order_acquire);
		if (~bits & want)
			return false;
	}
	return true;
}

/* The first piece of a range that nobody has claimed, or the last one; to: none. */
static uint64_t
find_in(const struct crew *crew, uint64_t from, uint64_t to, bool last)
{
	for (uint64_t i = from; i < to; i++) {
		uint64_t p = last ? to - 1 - (i - from) : i;

		if (!(claimed(crew, p / BITS) >> (p % BITS) & 1))
			return p;
	}
	return to;
}

/* What this member copies next; pieces: nothing is left. Each has a share of its own, always the same one, since the pages of
 * all receivers' memory have to come into its table first, and takes from the end of other shares when that is done. */
static uint64_t
find_piece(const struct crew *crew, uint64_t pieces, bool own)
{
	for (uint64_t k = own ? 0 : 1; k < (own ? 1 : crew->members); k++) {
		uint64_t who = (crew->place + k) % crew->members, from = pieces * who / crew->members, to = pieces * (who + 1) / crew->members;
		uint64_t p = find_in(crew, from, to, !own);

		if (p < to)
			return p;
	}
	return pieces;
}

/* Of two that claim a piece at the same moment one goes elsewhere; should both think so little of each other that they copy it,
 * they write the same bytes. */
static bool
gives_way(const struct crew *crew, uint64_t p)
{
	for (uint32_t i = 0; i < crew->place; i++)
		if (atomic_load_explicit(&crew->hands[i].seat->claims[p / BITS], memory_order_seq_cst) >> (p % BITS) & 1)
			return true;
	return false;
}

static void
copy_piece(struct ist_chan *chan, struct part *part, const uint8_t *from, uint64_t at, uint64_t bytes)
{
	struct crew *crew = part->crew;
	void *to[BITS];
	uint32_t n = 0;

	for (uint32_t i = 0; i < crew->n; i++) {
		const struct hand *hand = &crew->hands[i];

		if (hand->to && !atomic_load_explicit(&hand->seat->closed, memory_order_seq_cst) &&
		    atomic_load_explicit(&hand->seat->key, memory_order_acquire) == crew->key) {
			if (hand->map)
				ist__host_map_pages(hand->map, hand->to + at, bytes);
			to[n++] = hand->to + at;
		}
	}
	if (part->map)
		ist__host_map_pages(part->map, from + at, bytes);
	ist__host_move(chan, &chan->copiers->coop, part->bytes, to, n, from + at, bytes);
}

/* Copies one piece, if there is one left. */
static bool
work(struct ist_chan *chan, struct part *part, const uint8_t *from)
{
	struct crew *crew = part->crew;
	struct seat *mine = &chan->ctl->seats[crew->mine];
	uint64_t piece, pieces = pieces_of(part->bytes, &piece), p = find_piece(crew, pieces, true), at;

	if (p == pieces && !crew->looks_round) { /* the others may just be about to begin with theirs */
		crew->looks_round = chan->more = true;
		return false;
	}
	if (p == pieces && crew->members > chan->cpus)
		sched_yield(); /* whose share it is may just be waiting for a CPU */
	if (p == pieces)
		p = find_piece(crew, pieces, false);
	if (p == pieces)
		return false;
	at = p * piece;
	set_bit(mine->claims, p, true);
	if (gives_way(crew, p)) {
		set_bit(mine->claims, p, false);
	} else {
		copy_piece(chan, part, from, at, least(piece, part->bytes - at));
		set_bit(mine->done, p, true);
		chan->moved += least(piece, part->bytes - at);
	}
	if (all_done(crew, pieces))
		ist__host_bell_takers(chan, part); /* others wait for that, and for our claims */
	return true;
}

bool
ist__host_coop_give(struct ist_chan *chan, struct part *part)
{
	uint64_t said;

	if (!part->crew)
		return false;
	said = atomic_load_explicit(&chan->ctl->board[part->entry % BOARD].crew, memory_order_relaxed);
	if (!said)
		return ist__host_coop_decide(chan, part);
	if (said == CREW_SAID || part->task->result || (!part->crew->joined && !join(chan, part, said)))
		return false;
	return work(chan, part, part->op.src.addr);
}

/* The receiver's side. *over: all is here, and nobody writes there any more. */
bool
ist__host_coop_take(struct ist_chan *chan, struct part *part, uint64_t said, bool *over)
{
	uint64_t piece;
	bool did = false;

	if (!part->crew->joined && !join(chan, part, said))
		return true;
	did = work(chan, part, part->from);
	*over = all_done(part->crew, pieces_of(part->bytes, &piece)) && ist__host_coop_out(chan, part);
	return did || *over;
}

bool
ist__host_coop_in(const struct ist_chan *chan, const struct part *part, uint64_t said)
{
	return said >> place_of(chan, chan->rank) & 1 && part->crew;
}

/* ---- the end of the channel ---- */

/* After an abort: ends the tasks whose memory others have left; the rest after a while, with what that means. */
void
ist__host_coop_drain(struct ist_chan *chan, ist_err why)
{
	int64_t now = ist__now();

	for (struct part **at = &chan->casts; *at;) {
		struct part *part = *at;
		bool out = ist__host_coop_out(chan, part);

		if (!out && now < chan->aborted_at + OUT_NS) {
			at = &part->next;
			continue;
		}
		*at = part->next;
		if (!part->next)
			chan->casts_last = at;
		ist__host_coop_leave(part);
		part->task->held--;
		if (!out) {
			ist__host_task_abandon(chan, part->task, why);
		} else if (part->task->held == 0) {
			ist__host_task_end(chan, part->task, why);
		}
	}
}
