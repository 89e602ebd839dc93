/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/stage.h"

#include "base/fail.h"
#include "sync/ends.h"

#include <string.h>

#define OP "sync_update"
#define QUIET_NS (10 * IST_NS_PER_S)
#define STUCK_NS (100 * IST__MS)        /* the same for a device that has stood still before */
#define FLUSH_BYTES (UINT64_C(8) << 20) /* read by the host before the device is set to work on it */
#define GAP_BYTES IST__PIECE_ALIGN      /* between pieces: copied along rather than by a copy of their own */

/* ---- memory ---- */

static void
slot_fini(const struct ist__far *far, struct ist__stage_slot *s)
{
	ist__far_free(far, IST_MEM_PINNED, s->host);
	ist__far_free(far, IST_MEM_PINNED, s->leaves);
	ist__far_free(far, far->mem, s->leaves_far);
	ist__far_event_free(far, s->event);
	ist__far_event_free(far, s->looked);
	*s = (struct ist__stage_slot){ .busy = false };
}

void
ist__stage_fini(struct ist__stage *g)
{
	if (!g->far.dev)
		return;
	ist__stage_quiet(g);
	if (!g->stuck) {
		ist__far_stream_free(&g->far, g->in);
		ist__far_stream_free(&g->far, g->look);
		ist__far_stream_free(&g->far, g->out);
		for (uint32_t i = 0; i < IST__SLOTS_MAX; i++) {
			slot_fini(&g->far, &g->givers[i]);
			slot_fini(&g->far, &g->takers[i]);
		}
		ist__far_free(&g->far, IST_MEM_PINNED, g->room);
	}
	ist__free(g->ctx, g->copies.at);
	ist__free(g->ctx, g->digests.at);
	*g = (struct ist__stage){ .stuck = g->stuck };
}

static ist_err
slot_init(struct ist__stage *g, struct ist__stage_slot *s, struct ist_error *err)
{
	ist_err e = ist__far_event_new(&g->far, &s->event, err);
	void *leaves = NULL;

	if (!e)
		e = ist__far_event_new(&g->far, &s->looked, err);
	if (!e && g->n_leaves > 0)
		e = ist__far_alloc(&g->far, g->far.mem, 0, g->n_leaves * sizeof(struct ist__digest), &s->leaves_far, err);
	if (!e && g->n_leaves > 0)
		e = ist__far_alloc(&g->far, IST_MEM_PINNED, 0, g->n_leaves * sizeof(struct ist__digest), &leaves, err);
	s->leaves = leaves;
	return e;
}

static ist_err
want(struct ist__stage *g, uint8_t **host, struct ist_error *err)
{
	void *got = NULL;
	ist_err e = *host ? IST_OK : ist__far_alloc(&g->far, IST_MEM_PINNED, 0, g->slot_bytes, &got, err);

	if (got)
		*host = got;
	return e;
}

static uint64_t
most_leaves(const struct ist__plan *plan)
{
	uint64_t most = 0;

	for (uint64_t b = 0; b < plan->n_buckets; b++) {
		const struct ist__plan_bucket *k = &plan->buckets[b];
		uint64_t n = 0;

		for (uint32_t i = 0; i < k->n_pieces; i++)
			n += ist__leaf_count(plan->pieces[k->first_piece + i].bytes);
		most = n > most ? n : most;
	}
	return most;
}

/* A list of nothing tells. */
static bool
has_kernel(const struct ist__stage *g)
{
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	const struct ist_device *d = g->far.dev;

	if (IST_HAS(d, digest) && d->digest && d->digest(d->self, g->far.index, NULL, 0, g->in, &why) == IST_OK)
		return true;
	ist__log(g->ctx, IST_LOG_WARN, "device %s:%d takes no digests: the host does, which costs time%s%s", d->name, g->far.index,
		why.text[0] ? ": " : "", why.text);
	return false;
}

ist_err
ist__stage_prepare(struct ist__sync_body *s, struct ist_error *err)
{
	struct ist__stage *g = &s->stage;
	uint64_t n_leaves = s->table->verify ? most_leaves(s->table->plan) : 0;
	ist_err e = IST_OK;

	if (!s->ring.far.dev)
		return IST_OK;
	if (g->far.dev && g->n >= s->ring.n && g->slot_bytes >= s->ring.slot_bytes && g->n_leaves >= n_leaves)
		return IST_OK;
	ist__stage_fini(g);
	*g = (struct ist__stage){ .ctx = s->ctx, .far = s->ring.far, .n = s->ring.n, .slot_bytes = s->ring.slot_bytes, .n_leaves = n_leaves,
		.copies = { .ctx = s->ctx }, .digests = { .ctx = s->ctx } };
	e = ist__far_stream_new(&g->far, &g->in, err);
	if (!e)
		g->no_kernel = !has_kernel(g);
	if (!e)
		e = ist__far_stream_new(&g->far, &g->look, err);
	if (!e)
		e = ist__far_stream_new(&g->far, &g->out, err);
	for (uint32_t i = 0; i < g->n && !e; i++) {
		e = slot_init(g, &g->givers[i], err);
		if (!e)
			e = slot_init(g, &g->takers[i], err);
	}
	if (!e && (g->no_kernel || ist__sinks_any_near(&s->sinks, &g->far)))
		e = want(g, &g->room, err);
	if (e)
		ist__stage_fini(g);
	return e;
}

/* ---- waiting ---- */

/* A device that does not end its work is no place to free memory in. */
static ist_err
end_of(struct ist__stage *g, void *event, int64_t deadline, struct ist_error *err)
{
	ist_err e = ist__far_wait(&g->far, event, deadline, err);

	g->stuck = g->stuck || e == IST_TIMEOUT;
	return e;
}

void
ist__stage_quiet(struct ist__stage *g)
{
	void *streams[] = { g->in, g->look, g->out }, *event = g->givers[0].event;
	int64_t patience = g->stuck ? STUCK_NS : QUIET_NS;

	g->stuck = false;
	for (int i = 0; g->far.dev && event && !g->stuck && i < 3; i++)
		if (streams[i] && ist__far_mark(&g->far, event, streams[i], NULL) == IST_OK)
			(void)end_of(g, event, ist__now() + patience, NULL);
	for (uint32_t i = 0; i < IST__SLOTS_MAX; i++)
		g->givers[i].busy = g->givers[i].looking = g->takers[i].busy = false;
}

bool
ist__stage_is_done(struct ist__stage *g, const struct ist__stage_slot *slot)
{
	bool done = true;

	return !slot->busy || ist__far_query(&g->far, slot->event, &done, NULL) != IST_OK || done;
}

uint8_t *
ist__stage_room(struct ist__stage *g, struct ist_error *err)
{
	return want(g, &g->room, err) ? NULL : g->room;
}

/* ---- digests ---- */

/* From where the bytes of a bucket lie on the device to the slot's leaves; the host's way comes later. */
static ist_err
begin_digests(struct ist__stage *g, struct ist__stage_slot *slot, void *stream, struct ist_error *err)
{
	struct ist_copy back = { .dst = slot->leaves, .src = slot->leaves_far };
	ist_err e;

	if (g->digests.n == 0 || g->no_kernel)
		return IST_OK;
	for (uint64_t i = 0; i < g->digests.n; i++)
		back.bytes += ist__leaf_count(g->digests.at[i].bytes) * sizeof(struct ist__digest);
	e = ist__far_digest(&g->far, g->digests.at, g->digests.n, stream, err);
	return e ? e : ist__far_copy(&g->far, &back, 1, stream, err);
}

/* Without a kernel all bytes of the bucket come to the host, which then takes their leaves. */
static ist_err
bring_back(struct ist__stage *g, uint8_t *to, const uint8_t *from, uint64_t bytes, void *stream, struct ist_error *err)
{
	struct ist_copy back = { .dst = to, .src = from, .bytes = bytes };

	return ist__far_copy(&g->far, &back, 1, stream, err);
}

static bool
add_digest(struct ist__stage *g, struct ist__stage_slot *slot, const uint8_t *at, uint64_t bytes, uint64_t *leaf)
{
	uint8_t *to = (uint8_t *)slot->leaves_far + *leaf * sizeof(struct ist__digest);

	*leaf += ist__leaf_count(bytes);
	return bytes == 0 || ist__copies_add(&g->digests, to, at, bytes);
}

/* The leaves of piece p, of which *leaf have been taken over before; host: where the bucket's bytes are if there is no kernel. */
static void
take_over(struct ist__sync_body *s, const struct ist__stage_slot *slot, const uint8_t *host, const struct ist__plan_piece *p, uint64_t *leaf)
{
	uint64_t n = ist__leaf_count(p->bytes);

	if (s->stage.no_kernel)
		ist__digest_leaves(host + p->at, p->bytes, ist__ends_leaves(s, p));
	else if (n > 0)
		memcpy(ist__ends_leaves(s, p), slot->leaves + *leaf, n * sizeof(*slot->leaves));
	*leaf += n;
	s->got[p->item] += p->bytes;
}

/* ---- giving ---- */

/* What of a bucket is in the slot's pinned memory and not on its way yet. */
struct stretch {
	uint64_t from, to;
};

static bool
flush(struct ist__stage *g, const struct ist__stage_slot *slot, uint8_t *to, struct stretch *x, ist_err *e, struct ist_error *err)
{
	bool room = x->to == x->from || ist__copies_add(&g->copies, to + x->from, slot->host + x->from, x->to - x->from);

	if (room && g->copies.n > 0) {
		*e = ist__far_copy(&g->far, g->copies.at, g->copies.n, g->in, err);
		g->copies.n = 0;
	}
	x->from = x->to;
	if (!room)
		*e = ist__fail_memory(err, OP);
	return *e == IST_OK;
}

/* bytes at `at` of the bucket are in the slot's pinned memory now. */
static ist_err
staged(struct ist__stage *g, const struct ist__stage_slot *slot, uint8_t *to, struct stretch *x, uint64_t at, uint64_t bytes, struct ist_error *err)
{
	ist_err e = IST_OK;

	if (x->to == x->from || at < x->to || at - x->to > GAP_BYTES) {
		if (x->to > x->from && !ist__copies_add(&g->copies, to + x->from, slot->host + x->from, x->to - x->from))
			return ist__fail_memory(err, OP);
		x->from = at;
	}
	x->to = at + bytes;
	if (x->to - x->from >= FLUSH_BYTES)
		(void)flush(g, slot, to, x, &e, err);
	return e;
}

struct giving {
	struct ist__sync_body *s;
	struct ist__stage_slot *slot;
	const struct ist__source *source;
	bool memory, pinned; /* it is of tensors; some of it comes out of files that are mapped */
	uint8_t *to;
	struct stretch staged;
};

/* Pieces from p on, of left; *n: how many it was. */
static ist_err
give_pieces(struct giving *v, const struct ist__plan_piece *p, uint32_t left, uint32_t *n, struct ist_error *err)
{
	struct ist__sync_body *s = v->s;
	struct ist__stage *g = &s->stage;
	const struct ist__manifest *m = ist__checkpoint_manifest(v->source->ck);
	uint64_t local = s->table->item_local[p->item], bytes = p->bytes;
	struct ist_buf lent;
	ist_err e;

	const void *there = NULL;

	*n = 1;
	if (!v->memory) {
		*n = ist__ends_run_of_file(s->table, m, p, left, &bytes);
		there = ist__checkpoint_pinned_file(v->source->ck, m->items[local].file, m->items[local].offset + p->offset, bytes);
		v->pinned = v->pinned || there;
	} else if (ist__checkpoint_lend(v->source->ck, local, p->offset, bytes, &lent) && lent.mem != IST_MEM_HOST) {
		there = lent.addr;
	}
	if (there)
		return bytes == 0 || ist__copies_add(&g->copies, v->to + p->at, there, bytes) ? IST_OK : ist__fail_memory(err, OP);
	e = want(g, &v->slot->host, err);
	if (e)
		return e;
	if (v->memory)
		e = ist__checkpoint_fetch(v->source->ck, local, p->offset, bytes, v->slot->host + p->at, err);
	else
		e = ist__checkpoint_fetch_file(v->source->ck, m->items[local].file, m->items[local].offset + p->offset, bytes, v->slot->host + p->at, err);
	return e || bytes == 0 ? e : staged(g, v->slot, v->to, &v->staged, p->at, bytes, err);
}

/* Behind the copies, and beside those of the next buckets. */
static ist_err
begin_look(struct giving *v, const struct ist__plan_bucket *k, const struct ist__plan_piece *pieces, struct ist_error *err)
{
	struct ist__sync_body *s = v->s;
	struct ist__stage *g = &s->stage;
	uint64_t leaf = 0;
	ist_err e;

	g->digests.n = 0;
	for (uint32_t i = 0; i < k->n_pieces; i++)
		if (!add_digest(g, v->slot, v->to + pieces[i].at, pieces[i].bytes, &leaf))
			return ist__fail_memory(err, OP);
	e = ist__far_after(&g->far, g->look, v->slot->event, err);
	if (!e)
		e = begin_digests(g, v->slot, g->look, err);
	if (!e && g->no_kernel && g->digests.n > 0) {
		e = want(g, &v->slot->host, err);
		if (!e)
			e = bring_back(g, v->slot->host, v->to, k->bytes, g->look, err);
	}
	/* also after an error: some of it may be under way */
	v->slot->looking = ist__far_mark(&g->far, v->slot->looked, g->look, e ? NULL : err) == IST_OK;
	return e || v->slot->looking ? e : IST_IO;
}

/* The digests of what slot i held are taken over. */
static void
end_look(struct ist__sync_body *s, uint32_t i)
{
	struct ist__stage *g = &s->stage;
	struct ist__stage_slot *slot = &g->givers[i];
	const struct ist__plan_bucket *k = &s->table->plan->buckets[slot->bucket];
	const struct ist__plan_piece *pieces = &s->table->plan->pieces[k->first_piece];
	struct ist_error why;
	uint64_t leaf = 0;

	if (!slot->looking)
		return;
	slot->looking = false;
	ist_error_init(&why);
	if (end_of(g, slot->looked, s->up.deadline, &why)) {
		ist__ends_give_failed(s, &why, slot->bucket, pieces);
		return;
	}
	for (uint32_t p = 0; !s->up.failed && p < k->n_pieces; p++) {
		if (pieces[p].offset == 0)
			s->got[pieces[p].item] = 0; /* given before, to a group that lost a member */
		take_over(s, slot, slot->host, &pieces[p], &leaf);
	}
}

void
ist__stage_looked(struct ist__sync_body *s)
{
	struct ist__stage *g = &s->stage;

	for (uint32_t left = g->far.dev ? g->n : 0; left > 0; left--) {
		uint32_t first = IST__SLOTS_MAX;

		for (uint32_t i = 0; i < g->n; i++)
			if (g->givers[i].looking && (first == IST__SLOTS_MAX || g->givers[i].bucket < g->givers[first].bucket))
				first = i;
		if (first == IST__SLOTS_MAX)
			return;
		end_look(s, first);
	}
}

void
ist__stage_give(struct ist__sync_body *s, uint64_t b, const struct ist__offer *giver, uint32_t i)
{
	struct ist__stage *g = &s->stage;
	const struct ist__plan_bucket *k = &s->table->plan->buckets[b];
	const struct ist__plan_piece *pieces = &s->table->plan->pieces[k->first_piece];
	struct giving v = { .s = s, .slot = &g->givers[i], .source = &s->sources[giver->index], .memory = ist__checkpoint_live(s->sources[giver->index].ck),
		.to = s->ring.slots[i].addr };
	struct ist_error why;
	uint32_t at = 0, n;
	ist_err e = IST_OK;

	end_look(s, i);
	ist_error_init(&why);
	g->copies.n = 0;
	v.slot->bucket = b;
	for (; at < k->n_pieces && !e; at += e ? 0 : n)
		e = give_pieces(&v, &pieces[at], k->n_pieces - at, &n, &why);
	if (!e)
		(void)flush(g, v.slot, v.to, &v.staged, &e, &why);
	v.slot->pinned = v.pinned;
	/* also after an error: some of it may be under way */
	v.slot->busy = ist__far_mark(&g->far, v.slot->event, g->in, e ? NULL : &why) == IST_OK;
	if (!e && !v.slot->busy)
		e = IST_IO;
	if (!e && giver->live && s->table->verify)
		e = begin_look(&v, k, pieces, &why);
	if (e)
		ist__ends_give_failed(s, &why, b, &pieces[at < k->n_pieces ? at : 0]);
}

void
ist__stage_given(struct ist__sync_body *s, uint64_t b, const struct ist__offer *giver, uint32_t i)
{
	struct ist__stage *g = &s->stage;
	const struct ist__plan_bucket *k = &s->table->plan->buckets[b];
	struct ist_error why;

	if (!g->givers[i].busy)
		return;
	g->givers[i].busy = false;
	ist_error_init(&why);
	/* what was read of a file before a change is what was there before it */
	if (end_of(g, g->givers[i].event, s->up.deadline, &why) || (g->givers[i].pinned && ist__checkpoint_check(s->sources[giver->index].ck, &why)))
		ist__ends_give_failed(s, &why, b, &s->table->plan->pieces[k->first_piece]);
}

/* ---- taking ---- */

static ist_err
begin_take(struct ist__sync_body *s, const struct ist__plan_bucket *k, const uint8_t *from, bool mine, struct ist__stage_slot *slot, uint32_t *at,
	struct ist_error *err)
{
	struct ist__stage *g = &s->stage;
	const struct ist__plan_piece *pieces = &s->table->plan->pieces[k->first_piece];
	uint64_t leaf = 0;
	ist_err e = IST_OK;

	g->copies.n = g->digests.n = 0;
	for (*at = 0; *at < k->n_pieces && !e; *at += !e) {
		const struct ist__plan_piece *p = &pieces[*at];

		if (ist__ends_digests(s, p, mine) && !add_digest(g, slot, from + p->at, p->bytes, &leaf))
			return ist__fail_memory(err, OP);
		e = ist__sinks_copies(&s->sinks, &g->far, p->item, p->offset, from + p->at, p->bytes, &g->copies, err);
		s->up.own = e != IST_OK;
	}
	if (e)
		return e;
	*at = 0;
	e = ist__far_copy(&g->far, g->copies.at, g->copies.n, g->out, err);
	if (!e)
		e = begin_digests(g, slot, g->out, err);
	if (!e && g->room && (ist__sinks_any_near(&s->sinks, &g->far) || (g->no_kernel && g->digests.n > 0)))
		e = bring_back(g, g->room, from, k->bytes, g->out, err);
	return e;
}

void
ist__stage_take(struct ist__sync_body *s, uint64_t b, const uint8_t *from, bool mine, uint32_t i)
{
	struct ist__stage *g = &s->stage;
	const struct ist__plan_bucket *k = &s->table->plan->buckets[b];
	struct ist__stage_slot *slot = &g->takers[i];
	struct ist_error why;
	uint32_t at = 0;
	ist_err e;

	ist_error_init(&why);
	slot->bucket = b;
	e = begin_take(s, k, from, mine, slot, &at, &why);
	/* whatever is under way reads from the slot: it has to end before the slot is given back */
	slot->busy = ist__far_mark(&g->far, slot->event, g->out, e ? NULL : &why) == IST_OK;
	if (!e && !slot->busy)
		e = IST_IO;
	if (e)
		ist__ends_take_failed(s, &why, b, &s->table->plan->pieces[k->first_piece + at]);
}

/* Piece by piece, as on the host; what lies on the device has been copied. */
static ist_err
end_piece(struct ist__sync_body *s, const struct ist__plan_piece *p, bool mine, const struct ist__stage_slot *slot, uint64_t *leaf, struct ist_error *err)
{
	struct ist__stage *g = &s->stage;
	ist_err e;

	if (ist__ends_digests(s, p, mine))
		take_over(s, slot, g->room, p, leaf);
	e = ist__sinks_piece_near(&s->sinks, &g->far, p->item, p->offset, g->room ? g->room + p->at : NULL, p->bytes, err);
	s->up.own = e != IST_OK;
	ist__pace_piece(&s->pace);
	if (!e && p->last && s->table->verify)
		e = ist__ends_check_item(s, p, err);
	return e;
}

void
ist__stage_taken(struct ist__sync_body *s, uint64_t b, bool mine, uint32_t i)
{
	struct ist__stage *g = &s->stage;
	const struct ist__plan_bucket *k = &s->table->plan->buckets[b];
	const struct ist__plan_piece *pieces = &s->table->plan->pieces[k->first_piece];
	struct ist__stage_slot *slot = &g->takers[i];
	struct ist_error why;
	uint64_t leaf = 0;
	uint32_t at = 0;
	ist_err e;

	if (!slot->busy)
		return;
	slot->busy = false;
	if (mine)
		end_look(s, i); /* its leaves are those of what was given */
	ist_error_init(&why);
	e = end_of(g, slot->event, s->up.deadline, &why);
	for (uint32_t p = 0; p < k->n_pieces && !e && !s->up.failed; p++) {
		at = p;
		e = end_piece(s, &pieces[p], mine, slot, &leaf, &why);
	}
	if (e)
		ist__ends_take_failed(s, &why, b, &pieces[at]);
}
