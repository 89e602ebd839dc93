/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/plan.h"

#include "base/bytes.h"
#include "base/fail.h"

#include <string.h>

#define OP "plan"
#define FILL_MIN (UINT64_C(4) << 20)
enum { FULL_BUCKETS = 3, BUCKETS_A_PART = 16 }; /* enough for the stages to overlap; more only cost messages */

/* One set while it is packed. */
struct packer {
	struct ist__plan *plan;
	const struct ist__plan_set *set;
	uint32_t set_index;
	uint64_t bucket_bytes;
	uint64_t target;      /* a bucket this full is closed */
	uint64_t room_buckets, room_pieces;
	struct ist__plan_bucket now;
	bool open, bad;
};

/* A run of items that should share a bucket. */
struct unit {
	uint32_t first, n;
	uint64_t bytes; /* with padding */
};

static uint64_t
padded(uint64_t bytes)
{
	return (bytes + IST__PIECE_ALIGN - 1) & ~(IST__PIECE_ALIGN - 1);
}

static void
close_bucket(struct packer *p)
{
	struct ist__plan *plan = p->plan;
	void *at = plan->buckets;

	if (!p->open || p->bad)
		return;
	if (!ist__grow(plan->ctx, &at, &p->room_buckets, plan->n_buckets + 1, sizeof(*plan->buckets))) {
		p->bad = true;
		return;
	}
	plan->buckets = at;
	plan->buckets[plan->n_buckets++] = p->now;
	if (p->now.bytes > plan->slot_bytes)
		plan->slot_bytes = p->now.bytes;
	p->open = false;
}

static void
open_bucket(struct packer *p, uint64_t offset)
{
	if (p->open)
		return;
	p->now = (struct ist__plan_bucket){ .set = p->set_index, .first_piece = p->plan->n_pieces, .joined = offset > 0 };
	p->open = true;
}

static void
add_piece(struct packer *p, uint32_t item, uint64_t offset, uint64_t bytes)
{
	struct ist__plan *plan = p->plan;
	void *at = plan->pieces;

	open_bucket(p, offset);
	if (p->bad || !ist__grow(plan->ctx, &at, &p->room_pieces, plan->n_pieces + 1, sizeof(*plan->pieces))) {
		p->bad = true;
		return;
	}
	plan->pieces = at;
	plan->pieces[plan->n_pieces++] = (struct ist__plan_piece){
		.item = p->set->ids ? p->set->ids[item] : item,
		.last = offset + bytes == p->set->bytes[item],
		.offset = offset,
		.bytes = bytes,
		.at = padded(p->now.bytes),
	};
	p->now.bytes = padded(p->now.bytes) + bytes;
	p->now.n_pieces++;
}

/* Room up to limit in the bucket that is open. */
static uint64_t
room_in(const struct packer *p, uint64_t limit)
{
	uint64_t used = p->open ? padded(p->now.bytes) : 0;

	return used < limit ? limit - used : 0;
}

/* An item that no bucket may hold in one piece: it fills what is there and goes on in the next. */
static void
add_cut(struct packer *p, uint32_t item, uint64_t limit)
{
	uint64_t left = p->set->bytes[item], offset = 0;

	while (left > 0 && !p->bad) {
		uint64_t room = room_in(p, limit), take = left;

		if (left > room) {
			take = room & ~(IST__PIECE_CUT - 1);
			if (take == 0) {
				close_bucket(p);
				continue;
			}
		}
		add_piece(p, item, offset, take);
		offset += take;
		left -= take;
		if (left > 0)
			close_bucket(p);
	}
}

/* Bytes that are put whole into a bucket; more is cut. */
static uint64_t
whole_max(const struct packer *p)
{
	return p->set->parts > 1 && !p->set->whole ? p->target : p->bucket_bytes;
}

static void
add_unit(struct packer *p, const struct unit *u)
{
	uint64_t limit = whole_max(p);

	if (p->open && (p->now.bytes >= p->target || (u->bytes <= limit && u->bytes > room_in(p, p->bucket_bytes))))
		close_bucket(p);
	for (uint32_t i = u->first; i < u->first + u->n; i++)
		if (u->bytes <= limit || p->set->bytes[i] == 0)
			add_piece(p, i, 0, p->set->bytes[i]);
		else
			add_cut(p, i, limit);
}

/* A unit that no bucket can hold: neighbours that belong together are kept, the rest goes one by one. */
static void
add_wide(struct packer *p, const struct unit *u)
{
	uint32_t end = u->first + u->n;

	for (uint32_t i = u->first; i < end;) {
		struct unit one = { .first = i, .n = 1, .bytes = padded(p->set->bytes[i]) };

		while (one.first + one.n < end && p->set->mate[one.first + one.n] == i &&
		       one.bytes + padded(p->set->bytes[one.first + one.n]) <= whole_max(p)) {
			one.bytes += padded(p->set->bytes[one.first + one.n]);
			one.n++;
		}
		add_unit(p, &one);
		i += one.n;
	}
}

/* crossing[i] counts the mates that a cut before item i would tear apart, of those that a bucket can hold. sums has the
 * padded bytes before each item. */
static void
count_crossings(const struct packer *p, const uint64_t *sums, int64_t *crossing)
{
	const struct ist__plan_set *s = p->set;

	for (uint32_t i = 0; i < s->n_items; i++) {
		uint32_t a = i, b = s->mate[i];

		if (b >= s->n_items)
			continue;
		if (a > b) {
			a = b;
			b = i;
		}
		if (sums[b + 1] - sums[a] > p->bucket_bytes)
			continue;
		crossing[a + 1]++;
		crossing[b + 1]--;
	}
	for (uint32_t i = 1; i <= s->n_items; i++)
		crossing[i] += crossing[i - 1];
}

static bool
pack_mates(struct packer *p)
{
	const struct ist__plan_set *s = p->set;
	const struct ist__ctx *ctx = p->plan->ctx;
	uint64_t *sums = ist__alloc(ctx, (s->n_items + UINT64_C(1)) * sizeof(*sums));
	int64_t *crossing = ist__alloc(ctx, (s->n_items + UINT64_C(1)) * sizeof(*crossing));
	struct unit u = { .first = 0 };

	if (sums && crossing) {
		for (uint32_t i = 0; i < s->n_items; i++)
			sums[i + 1] = sums[i] + padded(s->bytes[i]);
		count_crossings(p, sums, crossing);
		for (uint32_t i = 1; i <= s->n_items; i++) {
			if (i < s->n_items && crossing[i] > 0)
				continue;
			u.n = i - u.first;
			u.bytes = sums[i] - sums[u.first];
			if (u.n > 1 && u.bytes > whole_max(p))
				add_wide(p, &u);
			else
				add_unit(p, &u);
			u.first = i;
		}
	} else {
		p->bad = true;
	}
	ist__free(ctx, sums);
	ist__free(ctx, crossing);
	return !p->bad;
}

static bool
pack_set(struct packer *p)
{
	const struct ist__plan_set *s = p->set;

	if (s->mate)
		pack_mates(p);
	else
		for (uint32_t i = 0; i < s->n_items && !p->bad; i++)
			add_unit(p, &(struct unit){ .first = i, .n = 1, .bytes = padded(s->bytes[i]) });
	close_bucket(p);
	return !p->bad;
}

/* How full the buckets of a set should be: enough of them for the stages to overlap. */
static uint64_t
target_of(const struct ist__plan_set *s, uint64_t payload, uint64_t bucket_bytes)
{
	uint64_t fill = payload / ((uint64_t)s->parts * BUCKETS_A_PART);

	if (fill < FILL_MIN)
		fill = FILL_MIN;
	if (s->parts > 1 && fill > payload / s->parts)
		fill = payload / s->parts; /* a part for each, however small the whole is */
	fill = (fill + IST__PIECE_CUT - 1) & ~(IST__PIECE_CUT - 1);
	if (fill < IST__PIECE_CUT)
		fill = IST__PIECE_CUT;
	return fill < bucket_bytes ? fill : bucket_bytes;
}

/* Each bucket to the part that has given least; what begins in mid-item stays with its beginning where it must. */
static bool
deal(struct ist__plan *plan, const struct ist__plan_set *s, uint64_t from, uint64_t to)
{
	uint64_t *given = ist__alloc(plan->ctx, s->parts * sizeof(*given));
	uint32_t part = 0;

	if (!given)
		return false;
	for (uint64_t b = from; b < to; b++) {
		if (b == from || !s->whole || !plan->buckets[b].joined) {
			part = 0;
			for (uint32_t i = 1; i < s->parts; i++)
				if (given[i] < given[part])
					part = i;
		}
		plan->buckets[b].part = part;
		given[part] += plan->buckets[b].bytes;
	}
	ist__free(plan->ctx, given);
	return true;
}

/* Mixes the sets' runs of buckets, each evenly over the whole. starts has n + 1 entries. */
static bool
mix(struct ist__plan *plan, uint32_t n, const uint64_t *starts)
{
	struct ist__plan_bucket *mixed;
	uint64_t *done;

	if (n < 2)
		return true;
	mixed = ist__alloc(plan->ctx, plan->n_buckets * sizeof(*mixed));
	done = ist__alloc(plan->ctx, n * sizeof(*done));
	if (!mixed || !done) {
		ist__free(plan->ctx, mixed);
		ist__free(plan->ctx, done);
		return false;
	}
	for (uint64_t b = 0; b < plan->n_buckets; b++) {
		uint32_t best = n;

		for (uint32_t s = 0; s < n; s++) {
			uint64_t all = starts[s + 1] - starts[s];

			if (done[s] == all)
				continue;
			/* least of (2 done + 1) / all: buckets number less than 2^32 */
			if (best == n || (2 * done[s] + 1) * (starts[best + 1] - starts[best]) < (2 * done[best] + 1) * all)
				best = s;
		}
		mixed[b] = plan->buckets[starts[best] + done[best]];
		done[best]++;
	}
	ist__free(plan->ctx, done);
	ist__free(plan->ctx, plan->buckets);
	plan->buckets = mixed;
	return true;
}

static void
hash_words(struct ist__hasher *h, const uint64_t *v, uint32_t n)
{
	uint8_t b[4 * 8];

	for (uint32_t i = 0; i < n; i++)
		ist__store_u64(b + 8 * i, v[i]);
	ist__hasher_add(h, b, 8 * n);
}

static void
digest_plan(struct ist__plan *plan, const struct ist__digest *salt)
{
	struct ist__hasher h;

	ist__hasher_init(&h);
	ist__hasher_add(&h, salt->b, sizeof(salt->b));
	hash_words(&h, &plan->bucket_bytes, 1);
	for (uint64_t b = 0; b < plan->n_buckets; b++) {
		const struct ist__plan_bucket *k = &plan->buckets[b];

		hash_words(&h, (const uint64_t[]){ (uint64_t)k->set << 32 | k->part, k->bytes }, 2);
		for (uint64_t i = k->first_piece; i < k->first_piece + k->n_pieces; i++) {
			const struct ist__plan_piece *q = &plan->pieces[i];

			hash_words(&h, (const uint64_t[]){ (uint64_t)q->item << 32 | q->last, q->offset, q->bytes, q->at }, 4);
		}
	}
	ist__hasher_end(&h, &plan->digest);
}

static ist_err
check_sums(const struct ist__plan_args *args, struct ist_error *err)
{
	uint64_t all = 0;

	for (uint32_t s = 0; s < args->n_sets; s++)
		for (uint32_t i = 0; i < args->sets[s].n_items; i++)
			if (__builtin_add_overflow(all, args->sets[s].bytes[i], &all) || all > UINT64_MAX / 4)
				return ist__fail(err, IST_OVERFLOW, OP, "the sizes of all tensors do not fit into 64 bits");
	if (all / (args->bucket_bytes ? args->bucket_bytes : 1) > UINT32_MAX / 4)
		return ist__fail(err, IST_LIMIT, OP, "%llu bytes in buckets of %llu are too many buckets", (unsigned long long)all,
			(unsigned long long)args->bucket_bytes);
	return IST_OK;
}

static uint64_t
set_payload(const struct ist__plan_set *s)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < s->n_items; i++)
		sum += s->bytes[i];
	return sum;
}

/* Bytes of a bucket at most: less than agreed where many are to be under way at once. */
static uint64_t
share_of(const struct ist__plan_args *args, uint64_t agreed)
{
	uint64_t share = args->at_once > FULL_BUCKETS ? FULL_BUCKETS * (agreed / args->at_once) & ~(IST__PIECE_CUT - 1) : agreed;

	return share > IST__BUCKET_MIN ? share : IST__BUCKET_MIN;
}

static bool
fill_plan(struct ist__plan *plan, const struct ist__plan_args *args, uint64_t *starts)
{
	struct packer p = { .plan = plan, .bucket_bytes = share_of(args, plan->bucket_bytes) };

	for (uint32_t s = 0; s < args->n_sets; s++) {
		uint64_t payload = set_payload(&args->sets[s]);

		p.set = &args->sets[s];
		p.set_index = s;
		p.target = target_of(p.set, payload, p.bucket_bytes);
		starts[s] = plan->n_buckets;
		if (!pack_set(&p) || !deal(plan, p.set, starts[s], plan->n_buckets))
			return false;
		plan->payload += payload;
	}
	starts[args->n_sets] = plan->n_buckets;
	if (!mix(plan, args->n_sets, starts))
		return false;
	digest_plan(plan, &args->salt);
	return true;
}

ist_err
ist__plan_make(const struct ist__ctx *ctx, const struct ist__plan_args *args, struct ist__plan **out, struct ist_error *err)
{
	struct ist__plan *plan;
	uint64_t *starts;
	bool ok;
	ist_err e = check_sums(args, err);

	if (e)
		return e;
	if (args->bucket_bytes < IST__BUCKET_MIN)
		return ist__fail(err, IST_INVALID_ARGUMENT, OP, "a bucket has at least %llu bytes", (unsigned long long)IST__BUCKET_MIN);
	plan = ist__alloc(ctx, sizeof(*plan));
	starts = ist__alloc(ctx, (args->n_sets + UINT64_C(1)) * sizeof(*starts));
	if (plan) {
		plan->ctx = ctx;
		plan->bucket_bytes = args->bucket_bytes & ~(IST__PIECE_CUT - 1);
	}
	ok = plan && starts && fill_plan(plan, args, starts);
	ist__free(ctx, starts);
	if (!ok) {
		ist__plan_free(plan);
		return ist__fail_memory(err, OP);
	}
	*out = plan;
	return IST_OK;
}

void
ist__plan_free(struct ist__plan *plan)
{
	if (!plan)
		return;
	ist__free(plan->ctx, plan->buckets);
	ist__free(plan->ctx, plan->pieces);
	ist__free(plan->ctx, plan);
}
