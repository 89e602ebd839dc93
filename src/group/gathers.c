/* SPDX-License-Identifier: Apache-2.0
 *
 * gathers.c - byte strings of all members: to one of them (gather), or to each (all_gather).
 *
 *   gather       the tree of a broadcast, backwards
 *   all_gather   in round k send all that is held to r - 2^k, take from r + 2^k (Bruck et al., 1997)
 *
 * Where a group has sheets (sheets.c) all_gather is no message at all: each writes its string down and enters the operation;
 * who sees that all have entered reads. Only strings that are too long for a sheet go by messages, and only if there are any
 * the rounds take place, with these alone in them. Who has a long one, or sees one, knows that they will, and does not wait for
 * the others before it begins.
 */
#include "base/fail.h"
#include "group/group.h"
#include "net/wire.h"

#include <string.h>

enum { NO_STEP = 0xFF /* of a message that nobody sends */ };

/* A gathered set: u32 count, then rank, blob each. Of this rank and those above it (modulo size) first ones. */
static ist_err
put_set(struct ist__group *g, struct ist__writer *w, uint32_t first, const struct ist_blob *have, const bool *is, struct ist_error *err)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < first; i++)
		n += is[(g->rank + i) % g->size];
	ist__put_u32(w, n);
	for (uint32_t i = 0; i < first; i++) {
		uint32_t r = (g->rank + i) % g->size;

		if (is[r]) {
			ist__put_u32(w, r);
			ist__put_blob(w, have[r].addr, have[r].bytes);
		}
	}
	return w->bad ? ist__fail_memory(err, "gather_bytes") : IST_OK;
}

static ist_err
get_set(struct ist__group *g, const struct ist__msg *m, struct ist_blob *have, bool *is, struct ist_error *err)
{
	struct ist__reader r;
	ist_err e = IST_OK;

	ist__reader_init(&r, m->body, m->bytes);
	for (uint32_t n = ist__get_u32(&r); !e && n > 0; n--) {
		uint32_t rank = ist__get_u32(&r);
		uint64_t bytes;
		const void *at = ist__get_blob(&r, &bytes);

		if (r.bad || rank >= g->size)
			return ist__fail(err, IST_BAD_FORMAT, "gather_bytes", "what rank %u gathered can't be read", m->from);
		if (is[rank] || rank == g->rank)
			continue;
		e = ist__objects_blob(g, at, bytes, &have[rank], err);
		is[rank] = !e;
	}
	return e;
}

static ist_err
gather(struct ist__group *g, uint64_t seq, uint32_t root, int64_t deadline, struct ist_blob *have, bool *is, struct ist_error *err)
{
	uint32_t v = (g->rank + g->size - root) % g->size, step = 1, top;
	struct ist__writer w;
	ist_err e = IST_OK;

	while (step <= v)
		step *= 2;
	for (top = step; v + top < g->size; top *= 2)
		continue;
	for (top /= 2; !e && top >= step; top /= 2) { /* children, the farthest (smallest tree) first */
		struct ist__msg *m = NULL;

		e = ist__objects_recv(g, IST__GATHER, seq << 8, (v + top + root) % g->size, deadline, &m, err);
		if (!e)
			e = get_set(g, m, have, is, err);
		ist__msg_free(g->loop, m);
	}
	if (e || v == 0)
		return e;
	ist__writer_init_slab(&w, ist__loop_slab(g->loop));
	e = put_set(g, &w, g->size, have, is, err);
	if (!e)
		e = ist__objects_send(g, IST__GATHER, seq << 8, (v - step / 2 + root) % g->size, w.at, w.bytes, err);
	ist__writer_fini(&w);
	return e;
}

/* What is held in the beginning is ours, or nothing. */
static ist_err
all_gather(struct ist__group *g, uint16_t type, uint64_t seq, int64_t deadline, struct ist_blob *have, bool *is, struct ist_error *err)
{
	ist_err e = IST_OK;

	for (uint32_t k = 0, step = 1; !e && step < g->size; k++, step *= 2) {
		uint32_t to = (g->rank + g->size - step) % g->size, from = (g->rank + step) % g->size;
		struct ist__msg *m = NULL;
		struct ist__writer w;

		ist__writer_init_slab(&w, ist__loop_slab(g->loop));
		/* in the last round the other one has some of it: no string goes to anybody twice */
		e = put_set(g, &w, step < g->size - step ? step : g->size - step, have, is, err);
		if (!e)
			e = ist__objects_send(g, type, seq << 8 | k, to, w.at, w.bytes, err);
		ist__writer_fini(&w);
		if (!e)
			e = ist__objects_recv(g, type, seq << 8 | k, from, deadline, &m, err);
		if (!e)
			e = get_set(g, m, have, is, err);
		ist__msg_free(g->loop, m);
	}
	return e;
}

/* ---- on sheets ---- */

static ist_err
enter(struct ist__group *g, uint64_t seq, uint16_t type, struct ist_error *err)
{
	ist_err e;

	pthread_mutex_lock(&g->lock);
	e = ist__group_broken(g, err);
	if (!e)
		ist__board_enter(g, seq, type, g->op_root);
	pthread_mutex_unlock(&g->lock);
	return e;
}

/* Of those that have written already, ours too. */
static bool
any_long(const struct ist__group *g, uint64_t seq)
{
	const void *at;
	uint64_t bytes;

	for (uint32_t r = 0; r < g->size; r++)
		if (ist__sheet_get(g, seq, r, &at, &bytes) && !at)
			return true;
	return false;
}

/* Rank has entered operation seq. */
static ist_err
take_sheet(struct ist__group *g, uint16_t type, uint64_t seq, uint32_t rank, int64_t deadline, struct ist_blob *out, struct ist_error *err)
{
	struct ist__msg *m = NULL;
	const void *at = NULL;
	uint64_t bytes;
	ist_err e;

	if (!ist__sheet_get(g, seq, rank, &at, &bytes)) {
		/* it was in another operation, and so long ago that the board does not tell which: its messages do */
		e = ist__objects_recv(g, type, seq << 8 | NO_STEP, rank, deadline, &m, err);
		ist__msg_free(g->loop, m);
		if (e)
			return e;
	}
	if (!at) {
		ist__fail(err, IST_BAD_FORMAT, "gather_bytes", "what rank %u wrote down can't be read", rank);
		ist__fail_rank(err, rank);
		return IST_BAD_FORMAT;
	}
	return ist__objects_blob(g, at, bytes, out, err);
}

static ist_err
all_gather_sheets(struct ist__group *g, uint16_t type, uint64_t seq, int64_t deadline, struct ist_blob *have, bool *is, struct ist_error *err)
{
	bool fits = ist__sheet_put(g, seq, have[g->rank].addr, have[g->rank].bytes), rounds;
	ist_err e = enter(g, seq, type, err);

	rounds = any_long(g, seq);
	if (!e && !rounds) {
		e = ist__objects_await_all(g, type, deadline, err);
		rounds = any_long(g, seq);
	}
	is[g->rank] = !fits;
	if (!e && rounds)
		e = all_gather(g, type, seq, deadline, have, is, err);
	is[g->rank] = true;
	for (uint32_t r = 0; !e && r < g->size; r++)
		if (!is[r]) {
			e = take_sheet(g, type, seq, r, deadline, &have[r], err);
			is[r] = !e;
		}
	return e;
}

/* ---- parts of an operation ---- */

ist_err
ist__objects_all_gather(struct ist__group *g, uint16_t type, uint64_t seq, const void *addr, uint64_t bytes, int64_t deadline,
	struct ist_blob *have, bool *is, struct ist_error *err)
{
	ist_err e = ist__objects_blob(g, addr, bytes, &have[g->rank], err);

	is[g->rank] = !e;
	if (e)
		return e;
	return g->sheets ? all_gather_sheets(g, type, seq, deadline, have, is, err) : all_gather(g, type, seq, deadline, have, is, err);
}

ist_err
ist__objects_gather(struct ist__group *g, uint64_t seq, const void *addr, uint64_t bytes, uint32_t root, int64_t deadline,
	struct ist_blob *have, bool *is, struct ist_error *err)
{
	ist_err e = ist__objects_blob(g, addr, bytes, &have[g->rank], err);

	is[g->rank] = !e;
	return e ? e : gather(g, seq, root, deadline, have, is, err);
}
