/* SPDX-License-Identifier: Apache-2.0
 *
 * update.c - one update as a transaction: all members agree on the version, move the buckets, prove what arrived, vote,
 * and commit or take back. The steps, each ended by an exchange that all take part in:
 *
 *     START  who wants which version; plans are equal     READY  sinks have begun, memory is there
 *     MOVE   the buckets (run.c)                          PROVE  digests of live memory; sinks are prepared
 *     VOTE   one outcome for all
 *
 * With on_loss continue a loss in any of them leads to a smaller group (regroup.c), which goes on at the earliest step
 * and bucket that any survivor stands at.
 */
#include "sync/sync.h"

#include "base/fail.h"
#include "sync/report.h"

#include <stdio.h>
#include <string.h>

#define OP "sync_update"


/* What a step needs to say how it ended. */
struct way {
	struct ist__sync_body *s;
	const struct ist_update_args *args;
	struct ist_error *err;
	enum ist__end how;
	uint32_t old_state;         /* before this update */
	uint64_t old_version, old_to;
	bool begun;                 /* sinks have */
	bool prepared;
	bool doubt;
	bool perhaps;               /* we went on without one that fell silent and may have committed */
	bool stuck;                 /* no smaller group could be made */
	uint64_t first;             /* bucket at which all begin to move */
	struct ist_error local;     /* what was wrong with the call; the others hear of it */
};

static ist_err
run_agree(struct way *w)
{
	return ist__sync_hear(w->s, &w->how, w->err);
}

/* An error that every member comes to by itself, from equal records. */
static ist_err
all_alike(struct way *w, ist_err e)
{
	w->how = IST__END_AGREED;
	return e;
}

/* ---- START ---- */

struct wish {
	uint64_t version, committed;
	bool force, source, leaves;
	const char *label;
};

static void
put_wish(struct way *w)
{
	struct ist__sync_body *s = w->s;
	struct ist__writer *p = &s->agree.w;
	const struct ist_update_args *a = w->args;

	ist__put_bytes(p, s->table->plan->digest.b, sizeof(s->table->plan->digest.b));
	ist__put_u64(p, a ? a->version : 0);
	ist__put_u64(p, w->old_version > s->known_version ? w->old_version : s->known_version);
	ist__put_u8(p, a && a->force);
	ist__put_u8(p, ist__sync_is_source(s));
	ist__put_str(p, a && a->label ? a->label : "");
	ist__put_u8(p, s->args.on_loss == IST_ON_LOSS_CONTINUE); /* may others go alone? An older one doesn't say */
}

static ist_err
read_wish(struct way *w, uint32_t i, struct wish *out, char *label)
{
	struct ist__sync_body *s = w->s;
	struct ist__reader r;
	const void *plan;

	ist__agree_reader(&s->agree, i, &r);
	plan = ist__get_bytes(&r, sizeof(s->table->plan->digest.b));
	*out = (struct wish){ .version = ist__get_u64(&r) };
	out->committed = ist__get_u64(&r);
	out->force = ist__get_u8(&r) != 0;
	out->source = ist__get_u8(&r) != 0;
	ist__get_str(&r, label, IST__LABEL_ROOM);
	out->leaves = r.left > 0 && ist__get_u8(&r) == 1;
	if (r.bad)
		return ist__fail(w->err, IST_BAD_FORMAT, OP, "the record of rank %u can't be read", s->names[i]);
	if (!memcmp(plan, s->table->plan->digest.b, sizeof(s->table->plan->digest.b)))
		return IST_OK;
	ist__fail(w->err, IST_MISMATCH, OP, "rank %u would follow another plan: all members call gather before update", s->names[i]);
	ist__fail_rank(w->err, s->names[i]);
	return IST_MISMATCH;
}

static ist_err
two_wishes(struct way *w, uint32_t a, uint64_t one, uint32_t b, uint64_t other)
{
	ist__fail(w->err, IST_MISMATCH, OP, "rank %u asks for version %llu, rank %u for version %llu", a, (unsigned long long)one, b,
		(unsigned long long)other);
	ist__fail_rank(w->err, a);
	ist__fail_rank(w->err, b);
	return IST_MISMATCH;
}

/* What some ask for, who must ask for the same: who wants one version must not take another for it. Else one more than
 * anybody knows. */
static ist_err
settle_version(struct way *w)
{
	struct ist__sync_body *s = w->s;
	uint64_t wished = 0, committed = 0;
	uint32_t holder = 0, wisher = 0;
	bool force = false, labelled = false;

	s->up.label[0] = 0;
	s->up.may_leave = true;
	for (uint32_t i = 0; i < s->size; i++) {
		char label[IST__LABEL_ROOM];
		struct wish x;
		ist_err e = read_wish(w, i, &x, label);

		if (e)
			return e;
		if (x.version && wished && x.version != wished)
			return two_wishes(w, wisher, wished, s->names[i], x.version);
		if (!wished) {
			wished = x.version;
			wisher = s->names[i];
		}
		if (x.committed > committed) {
			committed = x.committed;
			holder = s->names[i];
		}
		force = force || x.force;
		s->up.may_leave = s->up.may_leave && x.leaves;
		if (label[0] && (s->up.label[0] == 0 || (x.source && !labelled))) {
			memcpy(s->up.label, label, sizeof(label));
			labelled = x.source;
		}
	}
	s->known_version = committed;
	s->up.version = wished;
	if (s->up.version == 0) {
		if (committed == UINT64_MAX)
			return ist__fail(w->err, IST_LIMIT, OP, "there is no version after %llu", (unsigned long long)committed);
		s->up.version = committed + 1;
	}
	if (s->up.version <= committed && !force) {
		ist__fail(w->err, IST_OLD_VERSION, OP, "version %llu is not above version %llu, which rank %u has", (unsigned long long)s->up.version,
			(unsigned long long)committed, holder);
		return IST_OLD_VERSION;
	}
	if (s->up.version <= committed)
		ist__log(s->ctx, IST_LOG_WARN, "version %llu is forced over version %llu", (unsigned long long)s->up.version,
			(unsigned long long)committed);
	return IST_OK;
}

static ist_err
step_start(struct way *w)
{
	struct ist__sync_body *s = w->s;
	ist_err e;

	if (w->begun) {
		(void)ist__sinks_abort(&s->sinks); /* no piece has come yet */
		w->begun = false;
	}
	ist__agree_begin(&s->agree, w->local.code ? &w->local : NULL);
	if (!w->local.code)
		put_wish(w);
	e = run_agree(w);
	if (e)
		return e;
	e = settle_version(w);
	/* who called again after a loss that could not be borne: the others are a group that works, and still can't */
	return all_alike(w, e ? e : ist__sync_has_all(s, w->err));
}

/* ---- READY ---- */

static void
reset_digests(struct ist__sync_body *s)
{
	const struct ist__table *t = s->table;

	memset(s->got, 0, t->m->n_items * sizeof(*s->got));
	for (uint64_t i = 0; i < t->m->n_items; i++) {
		s->have[i] = ist__table_digest(t, i, &s->digests[i]);
		if (!s->have[i])
			memset(&s->digests[i], 0, sizeof(s->digests[i]));
	}
}

static ist_err
check_sources(struct ist__sync_body *s, struct ist_error *err)
{
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < s->n_sources && !e; i++) {
		e = ist__handle_check(s->sources[i].ck, IST__CHECKPOINT, OP, err);
		if (!e)
			e = ist__checkpoint_check(s->sources[i].ck, err);
	}
	return e;
}

/* All have room and have begun; the ring's kind of memory is agreed. */
static ist_err
step_ready(struct way *w)
{
	struct ist__sync_body *s = w->s;
	struct ist_error why;
	bool view = true;
	ist_err e;

	ist_error_init(&why);
	if (!w->begun) {
		ist__sync_set_state(s, IST_UPDATING, w->old_version, s->up.version);
		reset_digests(s);
		e = check_sources(s, &why);
		if (!e) {
			e = ist__sync_make_ring(s, &why);
			if (!e)
				e = ist__sinks_begin(&s->sinks, s->table->m, s->up.version, &why);
			s->up.own = e != IST_OK;
		}
		if (e)
			ist__sync_fail_here(s, &why);
		w->begun = true;
	}
	ist__sync_say(s);
	ist__put_u8(&s->agree.w, s->ring.from_group);
	ist__put_u8(&s->agree.w, ist__sync_reach(s));
	e = run_agree(w);
	for (uint32_t i = 0; i < s->size && !e; i++) {
		struct ist__reader r;

		ist__agree_reader(&s->agree, i, &r);
		view = ist__get_u8(&r) == 1 && view;
		ist__ring_hear(&s->ring, i == 0, &r);
	}
	s->ring.view = view;
	return e;
}

/* ---- PROVE ---- */

static ist_err
put_live_digests(struct ist__sync_body *s, struct ist_error *why)
{
	const struct ist__table *t = s->table;
	uint32_t count = 0;
	ist_err e = ist__sync_live_digests(s, why);

	if (e)
		return e;
	for (int put = 0; put < 2; put++) {
		if (put)
			ist__put_u32(&s->agree.w, count);
		for (uint32_t i = 0; i < t->m->n_items; i++) {
			const struct ist__offer *o;

			if (!t->verify || t->last_bucket[i] == UINT32_MAX || t->sets[t->item_set[i]].digests)
				continue;
			o = ist__sync_giver(s, t->last_bucket[i]);
			if (!o || o->member != s->name)
				continue;
			count += !put;
			if (put) {
				ist__put_u32(&s->agree.w, i);
				ist__put_bytes(&s->agree.w, s->digests[i].b, sizeof(s->digests[i].b));
			}
		}
	}
	return IST_OK;
}

/* What member i says its live tensors are; a sink compares. */
static ist_err
read_live_digests(struct ist__sync_body *s, uint32_t i, struct ist_error *why)
{
	const struct ist__table *t = s->table;
	struct ist__reader r;
	uint32_t n;

	ist__agree_reader(&s->agree, i, &r);
	n = ist__get_u32(&r);
	for (uint32_t k = 0; k < n && !r.bad; k++) {
		uint32_t item = ist__get_u32(&r);
		const void *at = ist__get_bytes(&r, sizeof(s->digests[0].b));
		struct ist__digest theirs;

		if (!at || item >= t->m->n_items || t->last_bucket[item] == UINT32_MAX)
			break;
		memcpy(theirs.b, at, sizeof(theirs.b));
		if (s->sinks.begun > 0 && !ist__digest_equal(&theirs, &s->digests[item])) {
			ist__fail(why, IST_DIGEST, OP, "tensor %s arrived with other bytes than rank %u has", t->m->items[item].name, s->names[i]);
			ist__fail_tensor(why, t->m->items[item].name);
			ist__fail_bucket(why, t->last_bucket[item]);
			return IST_DIGEST;
		}
		s->digests[item] = theirs;
		s->have[item] = 1;
	}
	return r.bad ? ist__fail(why, IST_BAD_FORMAT, OP, "the record of rank %u can't be read", s->names[i]) : IST_OK;
}

/* Every byte of every item, and every digest. */
static ist_err
check_complete(struct ist__sync_body *s, struct ist_error *why)
{
	const struct ist__table *t = s->table;

	for (uint64_t i = 0; i < t->m->n_items; i++) {
		const struct ist__item *item = &t->m->items[i];

		if (t->last_bucket[i] == UINT32_MAX)
			continue;
		if (t->verify && !s->have[i])
			ist__fail(why, IST_INCOMPLETE, OP, "the digest of tensor %s was not sent", item->name);
		else if (t->verify && s->sinks.begun > 0 && s->got[i] < item->bytes)
			ist__fail(why, IST_INCOMPLETE, OP, "tensor %s: %llu of %llu bytes came", item->name, (unsigned long long)s->got[i],
				(unsigned long long)item->bytes);
		else
			continue;
		ist__fail_tensor(why, item->name);
		return IST_INCOMPLETE;
	}
	return IST_OK;
}

static ist_err
step_prove(struct way *w)
{
	struct ist__sync_body *s = w->s;
	int64_t began = ist__now();
	struct ist_error why;
	ist_err e = IST_OK;

	ist_error_init(&why);
	ist__sync_say(s);
	if (!s->up.failed) {
		e = put_live_digests(s, &why);
		if (e) {
			ist__sync_fail_here(s, &why);
			ist__sync_say(s);
		}
	}
	ist__pace_state(&s->pace, IST__PACE_WAIT);
	e = run_agree(w);
	ist__pace_end(&s->pace);
	if (e)
		return e;
	/* from here on a failure is told by the vote, or where members may leave before it */
	for (uint32_t i = 0; i < s->size && !e; i++)
		e = read_live_digests(s, i, &why);
	if (!e)
		e = check_complete(s, &why);
	if (!e && !w->prepared && !s->up.failed) {
		e = ist__sinks_prepare(&s->sinks, &why);
		w->prepared = e == IST_OK;
		s->up.own = !w->prepared;
	}
	if (e)
		ist__sync_fail_here(s, &why);
	s->up.verify_s += (double)(ist__now() - began) / 1e9;
	if (!s->up.may_leave)
		return IST_OK;
	ist__sync_say(s);
	return run_agree(w);
}

/* ---- VOTE ---- */

/* Did the group fail, or did a member? */
static bool
voted_no(const struct ist_error *e)
{
	switch (e->code) {
	case IST_PEER_LOST:
	case IST_PEER_LEFT:
	case IST_NO_PROGRESS:
	case IST_SLOW_PEER:
	case IST_ABORTED:
	case IST_TIMEOUT:
		return false;
	default:
		return true;
	}
}

static ist_err
step_vote(struct way *w)
{
	struct ist__sync_body *s = w->s;
	struct ist_error no = s->up.why;
	uint32_t doubt = 0;
	ist_err e;

	no.n_per_rank = 0; /* the vote makes a list of its own */
	if (s->up.failed)
		ist__fail_prefix(&no, "rank %u: ", s->name);
	e = ist_decide(s->group, s->up.failed ? &no : NULL, ist__left(s->up.deadline), &doubt, w->err);

	/* in doubt nothing more may be tried: the others may have the new version. Those that are lost are left behind by
	 * on_loss continue, whatever they have */
	w->doubt = e && (doubt == 1 || (doubt == 2 && s->args.on_loss != IST_ON_LOSS_CONTINUE));
	w->perhaps |= e && doubt == 2;
	w->how = e && !w->doubt && !voted_no(w->err) ? IST__END_BROKEN : IST__END_AGREED;
	if (e && voted_no(w->err))
		ist__sync_name_voters(s, w->err);
	else if (e && w->how == IST__END_AGREED)
		ist__sync_name_ranks(s, w->err);
	return e;
}

/* ---- the way through ---- */

static ist_err
take_step(struct way *w, enum ist__step step)
{
	struct ist__sync_body *s = w->s;
	ist_err e;

	switch (step) {
	case IST__STEP_GATHER: /* others had not finished it when somebody was lost */
		e = ist__sync_gather(s, s->up.deadline, w->err);
		w->how = s->agree.failed && !s->agree.told ? IST__END_BROKEN : IST__END_AGREED;
		return e;
	case IST__STEP_START:
		return step_start(w);
	case IST__STEP_READY:
		return step_ready(w);
	case IST__STEP_MOVE:
		return ist__sync_run(s, w->first, &w->how, w->err);
	case IST__STEP_PROVE:
		return step_prove(w);
	case IST__STEP_VOTE:
		return step_vote(w);
	case IST__STEP_DONE:
		break;
	}
	return IST_OK;
}

/* Leaves the lost behind; *step is then where to go on. */
static ist_err
get_over_loss(struct way *w, enum ist__step *step)
{
	struct ist__sync_body *s = w->s;
	struct ist__regroup r = { .step = *step };
	struct ist_error why = *w->err;
	ist_err e = ist__sync_regroup(s, &r, &why, w->err);

	w->stuck = r.stuck;
	w->how = r.how;
	w->first = r.first;
	*step = r.step;
	if (e || *step < IST__STEP_MOVE)
		return e; /* some had begun to move, others had not heard that all are ready: once more, all from w->first on */
	/* who stands further on has proved and prepared for a group that is no more; buckets it holds are not taken twice */
	if (*step == IST__STEP_MOVE || w->first < s->table->plan->n_buckets) {
		*step = IST__STEP_MOVE;
		e = ist__sync_run(s, w->first, &w->how, w->err);
		if (!e)
			*step = IST__STEP_PROVE;
	}
	return e;
}

static ist_err
go_through(struct way *w)
{
	enum ist__step step = IST__STEP_START;

	while (step != IST__STEP_DONE) {
		ist_err e = take_step(w, step);

		while (e && !w->stuck && (w->how == IST__END_APART || (w->how == IST__END_BROKEN && ist__sync_is_loss(w->s, e)))) {
			e = get_over_loss(w, &step);
			if (!e)
				e = take_step(w, step);
		}
		if (e)
			return e;
		step++;
	}
	return IST_OK;
}

/* ---- the end ---- */

static void
take_back(struct way *w, const struct ist_error *why)
{
	struct ist__sync_body *s = w->s;
	bool torn = ist__sinks_abort(&s->sinks);

	ist__stage_quiet(&s->stage);
	ist__ring_drop(&s->ring);
	if (torn || w->doubt || w->perhaps)
		ist__sync_set_state(s, IST_STATE_DIRTY, w->old_version, s->up.version);
	else if (s->state == IST_UPDATING)
		ist__sync_set_state(s, w->old_state, w->old_version, w->old_to); /* a torn one stays torn */
	ist__log(s->ctx, IST_LOG_ERROR, "update to version %llu failed: %s: %s", (unsigned long long)s->up.version, ist_err_name(why->code),
		why->detail);
}

static bool
speaks_for_all(const struct ist__sync_body *s)
{
	for (uint32_t i = 0; i < s->table->n_offers; i++)
		if (!s->table->members[s->table->offers[i].member].gone)
			return s->table->offers[i].member == s->name;
	return false;
}

static ist_err
commit(struct way *w, struct ist_report *r)
{
	struct ist__sync_body *s = w->s;
	struct ist__table *t = s->table;
	struct ist__digest whole;
	ist_err e = ist__sinks_commit(&s->sinks, s->up.version, w->err);

	if (e) { /* all others have the new version; this one has what its sink says */
		ist__sync_set_state(s, IST_STATE_DIRTY, w->old_version, s->up.version);
		ist__fail_prefix(w->err, "version %llu is committed, but not here: ", (unsigned long long)s->up.version);
		ist__fail_rank(w->err, s->name);
		return e;
	}
	s->known_version = s->up.version;
	ist__sync_set_state(s, IST_CLEAN, s->up.version, 0);
	if (!t->verify)
		return IST_OK;
	ist__past_whole(t, s->digests, &whole);
	r->known_before = s->past.version != 0;
	r->changed = ist__past_changed(&s->past, t, s->digests);
	if (r->known_before && ist__digest_equal(&whole, &s->past.whole) && speaks_for_all(s))
		ist__log(s->ctx, IST_LOG_WARN, "version %llu equals version %llu", (unsigned long long)s->up.version,
			(unsigned long long)s->past.version);
	ist__past_keep(&s->past, t, s->digests, s->up.version, &whole);
	ist__digest_text(&whole, r->digest);
	return IST_OK;
}

static void
fill_report(const struct ist__sync_body *s, int64_t began, struct ist_report *r)
{
	const struct ist__table *t = s->table;
	double total = (double)(ist__now() - began) / 1e9;

	r->verified = t->verify;
	r->version = s->up.version;
	r->tensors = t->m->n_tensors;
	r->bytes = t->m->payload;
	r->n_lost = s->n_lost;
	memcpy(r->lost, s->lost, s->n_lost * sizeof(*s->lost));
	r->seconds_register = s->register_s;
	r->seconds_gather = s->gather_s;
	r->seconds_plan = s->plan_s;
	r->seconds_verify = s->up.verify_s;
	r->seconds_update = total - s->up.verify_s;
	r->bucket_bytes = t->plan->bucket_bytes;
	r->buckets = t->plan->n_buckets;
	memcpy(r->label, s->up.label, sizeof(s->up.label));
}

static void
check_call(struct way *w)
{
	const struct ist_update_args *a = w->args;

	if (a && a->struct_size < sizeof(*a))
		ist__fail(&w->local, IST_INVALID_ARGUMENT, OP, "struct_size %u is too small", a->struct_size);
	else if (a && a->label && strlen(a->label) >= IST__LABEL_ROOM)
		ist__fail(&w->local, IST_INVALID_ARGUMENT, OP, "a label has at most %d bytes", IST__LABEL_ROOM - 1);
	else if (!w->s->table || w->s->stale)
		ist__fail(&w->local, IST_BAD_STATE, OP, "%s: call ist_sync_gather on all members",
			w->s->table ? "sources or sinks were registered or taken away since the last gather" : "nothing was gathered");
	else
		return;
	ist__fail_rank(&w->local, w->s->name);
}

ist_err
ist_sync_update(struct ist_sync *sync, const struct ist_update_args *args, struct ist_report *out, struct ist_error *err)
{
	struct ist_report r = { .struct_size = sizeof(r) };
	struct ist_error why;
	struct way w = { .args = args, .err = &why };
	struct ist__sync_body *s;
	int64_t began = ist__now();
	ist_err e = ist__handle_check(sync, IST__SYNC, OP, err);

	if (!e)
		e = ist__sync_check_left(sync->body, OP, err);
	if (e)
		return e;
	ist_error_init(&why);
	ist_error_init(&w.local);
	w.s = s = sync->body;
	w.old_state = s->state;
	w.old_version = s->version;
	w.old_to = s->to;
	check_call(&w);
	s->up = (struct ist__update){ .deadline = ist__deadline(args && !w.local.code ? args->timeout_ns : 0, s->default_ns) };
	ist_error_init(&s->up.why);
	r.changed = s->table ? s->table->m->n_tensors : 0;
	e = go_through(&w);
	ist__pace_end(&s->pace);
	if (e) {
		if (w.how == IST__END_BROKEN)
			ist__sync_name_ranks(s, &why);
		take_back(&w, &why);
	} else {
		e = commit(&w, &r);
	}
	if (e) {
		if (err)
			ist__error_copy(err, &why);
		return e;
	}
	if (out) {
		fill_report(s, began, &r);
		ist__report_copy(out, &r);
	}
	return IST_OK;
}
