/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.c - from what each member has registered to one plan on all: who offers what, the manifests (each once), and a
 * check that all came to the same plan. When nothing has changed since the last time on any member, the first of the
 * three exchanges is the only one.
 */
#include "sync/sync.h"

#include "base/fail.h"

#include <string.h>

#define OP "sync_gather"

/* ---- first exchange ---- */

static void
say_record(struct ist__sync_body *s)
{
	struct ist__writer *w = &s->agree.w;
	static const struct ist__digest none;
	struct ist__say say = {
		.on_loss = s->args.on_loss,
		.n_sinks = (uint32_t)s->sinks.n,
		.bucket = s->args.bucket_bytes,
		.no_verify = s->args.no_verify != 0,
		.raw = s->sinks.raw,
		.in_place = s->sinks.in_place,
		.n_offers = (uint32_t)s->n_sources,
	};

	ist__agree_begin(&s->agree, NULL);
	ist__put_u64(w, s->version > s->known_version ? s->version : s->known_version);
	ist__put_bytes(w, s->table ? s->table->key.b : none.b, sizeof(none.b));
	ist__put_u32(w, s->name);
	ist__table_say(w, &say);
	for (uint64_t i = 0; i < s->n_sources; i++)
		ist__table_say_offer(w, &s->sources[i].offer);
}

/* Where the record of member i begins; *key is what it holds already. */
static bool
open_record(const struct ist__sync_body *s, uint32_t i, struct ist__reader *r, uint64_t *version, struct ist__digest *key)
{
	const void *at;

	ist__agree_reader(&s->agree, i, r);
	*version = ist__get_u64(r);
	at = ist__get_bytes(r, sizeof(key->b));
	if (at)
		memcpy(key->b, at, sizeof(key->b));
	return ist__get_u32(r) == s->names[i] && !r->bad;
}

/* Key of what all have said; *same: every member holds a table of that key. */
static ist_err
make_key(struct ist__sync_body *s, struct ist__digest *out, bool *same, struct ist_error *err)
{
	struct ist__hasher h;
	struct ist__digest key;
	struct ist__reader r;
	uint64_t version;

	ist__hasher_init(&h);
	for (uint32_t i = 0; i < s->size; i++) {
		uint8_t front[12];

		if (!open_record(s, i, &r, &version, &key))
			return ist__fail(err, IST_BAD_FORMAT, OP, "the record of rank %u can't be read", s->names[i]);
		if (version > s->known_version)
			s->known_version = version;
		ist__store_u32(front, s->names[i]);
		ist__store_u64(front + 4, r.left);
		ist__hasher_add(&h, front, sizeof(front));
		ist__hasher_add(&h, r.at, r.left);
	}
	ist__hasher_end(&h, out);
	*same = true;
	for (uint32_t i = 0; i < s->size; i++) {
		open_record(s, i, &r, &version, &key);
		*same = *same && ist__digest_equal(&key, out);
	}
	return IST_OK;
}

static ist_err
hear_records(struct ist__sync_body *s, struct ist__table *t, struct ist_error *err)
{
	struct ist__digest key;
	struct ist__reader r;
	uint64_t version;

	/* rank by rank of the first group; who is gone says nothing */
	for (uint32_t name = 0; name < s->first_size; name++) {
		uint32_t i = s->ranks[name];
		ist_err e;

		if (i == UINT32_MAX) {
			t->members[name] = (struct ist__member){ .on_loss = s->args.on_loss, .no_verify = true, .gone = true };
			continue;
		}
		open_record(s, i, &r, &version, &key);
		e = ist__table_hear(t, name, r.at, r.left, err);
		if (e)
			return e;
	}
	return ist__table_settle(t, err);
}

/* ---- second exchange ---- */

/* s->sources[index] with the digests of its items. */
static ist_err
say_manifest(struct ist__sync_body *s, const struct ist__source *source, struct ist_error *err)
{
	const struct ist__manifest *m = ist__checkpoint_manifest(source->ck);

	ist__manifest_encode(m, &s->agree.w);
	for (uint64_t i = 0; i < m->n_items && !source->offer.live; i++) {
		struct ist__digest d;

		if (!ist__checkpoint_item_digest(source->ck, i, &d))
			return ist__fail(err, IST_INTERNAL, OP, "an item has no digest");
		ist__put_bytes(&s->agree.w, d.b, sizeof(d.b));
	}
	return IST_OK;
}

static ist_err
exchange_manifests(struct ist__sync_body *s, struct ist__table *t, int64_t deadline, struct ist_error *err)
{
	struct ist_error mine;
	struct ist__reader r;
	ist_err e = IST_OK;

	ist_error_init(&mine);
	ist__agree_begin(&s->agree, NULL);
	for (uint32_t i = 0; i < t->n_offers && !e; i++)
		if (t->offers[i].member == s->name && ist__table_must_send(t, i))
			e = say_manifest(s, &s->sources[t->offers[i].index], &mine);
	if (e)
		ist__agree_begin(&s->agree, &mine);
	e = ist__agree_run(&s->agree, deadline, OP, err);
	for (uint32_t m = 0; m < s->first_size && !e; m++) {
		if (s->ranks[m] == UINT32_MAX)
			continue;
		ist__agree_reader(&s->agree, s->ranks[m], &r);
		for (uint32_t i = 0; i < t->n_offers && !e; i++)
			if (t->offers[i].member == m && ist__table_must_send(t, i))
				e = ist__table_manifest(t, i, &r, err);
	}
	return e;
}

/* ---- what a table brings along ---- */

static bool
has_live_source(const struct ist__sync_body *s)
{
	for (uint64_t i = 0; i < s->n_sources; i++)
		if (s->sources[i].offer.live)
			return true;
	return false;
}

/* Everything that an update needs, but for the ring: its slots may be most of a machine's memory, to make them takes as long as
 * to write to all of them, and who gathers may never update. The first update makes them before anything moves (READY),
 * where all hear whether it could be done. What can be seen to be too much is refused here. */
static ist_err
make_room(struct ist__sync_body *s, struct ist__table *t, struct ist_error *err)
{
	uint64_t n = t->m->n_items, leaves = t->leaf_first[n];
	bool hashes = s->sinks.n > 0 || has_live_source(s);

	ist__free(s->ctx, s->leaves);
	ist__free(s->ctx, s->digests);
	ist__free(s->ctx, s->have);
	ist__free(s->ctx, s->got);
	s->leaves = hashes ? ist__alloc(s->ctx, leaves * sizeof(*s->leaves)) : NULL;
	s->digests = ist__alloc(s->ctx, n * sizeof(*s->digests));
	s->have = ist__alloc(s->ctx, n);
	s->got = ist__alloc(s->ctx, n * sizeof(*s->got));
	if ((hashes && !s->leaves) || !s->digests || !s->have || !s->got || !ist__past_reorder(s->ctx, &s->past, t))
		return ist__fail_memory(err, OP);
	return ist__sync_check_ring(s, t, err);
}

static ist_err
build(struct ist__sync_body *s, struct ist__table *t, int64_t deadline, struct ist_error *err)
{
	int64_t began;
	ist_err e = hear_records(s, t, err);

	if (e || t->needs_digests)
		return e;
	if (!e)
		e = exchange_manifests(s, t, deadline, err);
	began = ist__now();
	if (!e)
		e = ist__table_merge(t, err);
	if (!e)
		e = ist__table_plan(t, err);
	s->plan_s = (double)(ist__now() - began) / 1e9;
	return e;
}

/* Third exchange: all have the same plan, and the memory for it, as far as it is needed by now. */
static ist_err
confirm(struct ist__sync_body *s, const struct ist__table *t, const struct ist_error *mine, int64_t deadline, struct ist_error *err)
{
	struct ist__reader r;
	ist_err e;

	ist__agree_begin(&s->agree, mine);
	if (!mine)
		ist__put_bytes(&s->agree.w, t->plan->digest.b, sizeof(t->plan->digest.b));
	e = ist__agree_run(&s->agree, deadline, OP, err);
	for (uint32_t i = 0; i < s->size && !e; i++) {
		const void *at;

		ist__agree_reader(&s->agree, i, &r);
		at = ist__get_bytes(&r, sizeof(t->plan->digest.b));
		if (at && !memcmp(at, t->plan->digest.b, sizeof(t->plan->digest.b)))
			continue;
		e = ist__fail(err, IST_MISMATCH, OP, "rank %u has made another plan of the same manifests", s->names[i]);
		ist__fail_rank(err, s->names[i]);
	}
	return e;
}

static void
forget(struct ist__sync_body *s)
{
	ist__table_free(s->table);
	s->table = NULL;
}

/* *again: what was said does not do; all have seen that, and nothing has come of it. */
static ist_err
build_and_confirm(struct ist__sync_body *s, const struct ist__digest *key, bool *again, int64_t deadline, struct ist_error *err)
{
	struct ist__table *t = ist__table_new(s->ctx, s->first_size);
	struct ist_error mine;
	ist_err e;

	ist_error_init(&mine);
	forget(s);
	if (!t) {
		ist__fail_memory(&mine, OP);
		e = IST_NO_MEMORY;
	} else {
		t->key = *key;
		t->side_by_side = s->leaves_out;
		e = build(s, t, deadline, &mine);
		*again = t->needs_digests && !s->agree.failed && e != IST_NO_MEMORY;
		if (!e && !*again)
			e = make_room(s, t, &mine);
	}
	if (*again) {
		ist__table_free(t);
		return IST_OK;
	}
	if (e == IST_NO_MEMORY && !s->agree.failed) /* of this member alone, it may be: the others must hear of it, wherever they are */
		ist__fail_rank(&mine, s->name);
	if (e && s->agree.failed) { /* they have the same error already, or none of them can be reached */
		if (err)
			ist__error_copy(err, &mine);
	} else {
		e = confirm(s, t, e ? &mine : NULL, deadline, err);
	}
	if (e) {
		ist__table_free(t);
		return e;
	}
	s->table = t;
	ist__log(s->ctx, IST_LOG_INFO, "plan: %llu tensors, %llu bytes, %llu buckets of at most %llu bytes",
		(unsigned long long)t->m->n_tensors, (unsigned long long)t->plan->payload, (unsigned long long)t->plan->n_buckets,
		(unsigned long long)t->plan->bucket_bytes);
	return IST_OK;
}

/* From what all have registered now to a plan, or to *again. mine: why this member has nothing to say. */
static ist_err
attempt(struct ist__sync_body *s, const struct ist_error *mine, bool *again, int64_t deadline, struct ist_error *err)
{
	struct ist__digest key;
	bool same;
	ist_err e;

	*again = false;
	if (mine->code)
		ist__agree_begin(&s->agree, mine);
	else
		say_record(s);
	e = ist__agree_run(&s->agree, deadline, OP, err);
	if (!e)
		e = make_key(s, &key, &same, err);
	if (!e && (!same || !s->table))
		e = build_and_confirm(s, &key, again, deadline, err);
	return e;
}

ist_err
ist__sync_gather(struct ist__sync_body *s, int64_t deadline, struct ist_error *err)
{
	struct ist_error mine;
	bool again;
	ist_err e;

	ist_error_init(&mine);
	s->plan_s = 0;
	e = attempt(s, &mine, &again, deadline, err);
	if (!e && again) { /* then none of them is late any more, and once is enough */
		(void)ist__sync_digest_late(s, &mine);
		e = attempt(s, &mine, &again, deadline, err);
	}
	if (!e && again)
		e = ist__fail(err, IST_INTERNAL, OP, "digests were asked for twice");
	s->stale = e != IST_OK;
	return e;
}
