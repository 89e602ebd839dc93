/* SPDX-License-Identifier: Apache-2.0
 *
 * regroup.c - after a loss: a smaller group, and where those that are left go on in it. With a plan at hand that is the
 * earliest step and bucket that any of them stands at, if what the lost were to give has another giver. Before there is
 * a plan nobody can know what a lost one would have given; then all gather again, provided that it was no source. What
 * it was its mark says, which it shows when it enters a gather: its neighbours have it from its heartbeats.
 */
#include "sync/sync.h"

#include "base/fail.h"

#include <string.h>

#define OP "sync_update"
enum { KNOWN = 0x80 /* a role was shown */, SETTLED = 0x40 /* its loss has been got over */ };

/* What this member has heard of the others' roles, before the group that told it goes. */
static ist_err
note_roles(struct ist__sync_body *s, struct ist_error *err)
{
	uint64_t *words = ist__alloc(s->ctx, s->size * sizeof(*words) * IST_MARK_WORDS);
	uint8_t *known = ist__alloc(s->ctx, s->size);
	ist_err e = words && known ? ist_group_marks(s->group, 0, words, known, err) : ist__fail_memory(err, OP);

	for (uint32_t i = 0; i < s->size && !e; i++) {
		uint64_t what = words[(uint64_t)i * IST_MARK_WORDS + IST__MARK_WHAT];

		s->roles[s->names[i]] = known[i] != IST_MARK_NONE && what & IST__ROLE_SHOWN ? KNOWN | (uint8_t)(what & IST__ROLE_MASK) : 0;
	}
	ist__free(s->ctx, words);
	ist__free(s->ctx, known);
	return e;
}

static void
put_stand(struct ist__sync_body *s, const struct ist__regroup *r)
{
	uint64_t all = s->table ? s->table->plan->n_buckets : UINT64_MAX;

	ist__agree_begin(&s->agree, s->up.failed && s->ring.n == 0 ? &s->up.why : NULL); /* no memory for the new ring */
	ist__put_u8(&s->agree.w, (uint8_t)r->step);
	ist__put_u64(&s->agree.w, s->sinks.n > 0 ? s->up.next : all);
	ist__put_u8(&s->agree.w, s->ring.from_group);
	for (uint32_t name = 0; name < s->first_size; name++)
		ist__put_u8(&s->agree.w, s->ranks[name] == UINT32_MAX ? s->roles[name] : 0);
	ist__put_u8(&s->agree.w, s->table ? ist__sync_reach(s) : 0);
	ist__put_u32(&s->agree.w, s->n_lost);
	for (uint32_t i = 0; i < s->n_lost; i++) {
		ist__put_u32(&s->agree.w, s->lost[i].rank);
		ist__put_u32(&s->agree.w, (uint32_t)s->lost[i].code);
	}
}

/* Why they were lost, as member i knows it, behind all else that it says; an older one says nothing. One may have heard that a
 * member goes alone, and why, while another saw its process end. Who first knows more than "lost" is right for all. */
static void
hear_codes(struct ist__sync_body *s, struct ist__reader *r, bool *known)
{
	uint32_t n = r->left > 0 ? ist__get_u32(r) : 0;

	for (uint32_t k = 0; k < n && !r->bad; k++) {
		uint32_t rank = ist__get_u32(r), code = ist__get_u32(r);

		for (uint32_t i = 0; i < s->n_lost && !r->bad && code > 0 && code != IST_PEER_LOST; i++)
			if (s->lost[i].rank == rank && !known[i]) {
				s->lost[i].code = (ist_err)code;
				known[i] = true;
			}
	}
}

/* What member i said. False: it can't be read. */
static bool
hear_stand(struct ist__sync_body *s, uint32_t i, struct ist__regroup *r, bool *view, bool *known)
{
	struct ist__reader in;
	uint8_t step;
	uint64_t bucket;

	ist__agree_reader(&s->agree, i, &in);
	step = ist__get_u8(&in);
	bucket = ist__get_u64(&in);
	*view = ist__get_u8(&in) == 1 && *view;
	for (uint32_t name = 0; name < s->first_size; name++) {
		uint8_t role = ist__get_u8(&in);

		if (s->ranks[name] == UINT32_MAX)
			s->roles[name] |= role;
	}
	ist__ring_hear(&s->ring, i == 0, &in);
	hear_codes(s, &in, known);
	if (step < (uint8_t)r->step)
		r->step = (enum ist__step)step;
	if (i == 0 || bucket < r->first)
		r->first = bucket;
	return !in.bad;
}

static ist_err
name_lost(struct ist__sync_body *s, struct ist_error *err, ist_err e)
{
	for (uint32_t i = 0; i < s->n_lost; i++)
		ist__fail_rank(err, s->lost[i].rank);
	return e;
}

ist_err
ist__sync_has_all(struct ist__sync_body *s, struct ist_error *err)
{
	const struct ist__table *t = s->table;
	uint32_t sinks = 0;

	for (uint32_t m = 0; m < t->n_members; m++)
		sinks += t->members[m].gone ? 0 : t->members[m].n_sinks;
	for (uint32_t set = 0; set < t->n_sets; set++) {
		if (ist__table_giver(t, set, 0))
			continue;
		ist__fail(err, IST_PEER_LOST, OP, "the only source of tensor %s is lost", t->sets[set].m->n_tensors
			? t->sets[set].m->items[t->sets[set].m->tensors[0]].name : "?");
		return name_lost(s, err, IST_PEER_LOST);
	}
	if (sinks == 0)
		return name_lost(s, err, ist__fail(err, IST_PEER_LOST, OP, "all sinks are lost"));
	return IST_OK;
}

bool
ist__sync_can_miss(struct ist__sync_body *s, const ist_err *leaves)
{
	struct ist__member *m = s->table->members;
	bool ok;

	for (uint32_t i = 0; i < s->size; i++)
		m[s->names[i]].gone = leaves[i] != 0;
	ok = ist__sync_has_all(s, NULL) == IST_OK;
	for (uint32_t i = 0; i < s->size && !ok; i++)
		m[s->names[i]].gone = false;
	return ok;
}

/* There is no plan yet: the lost must be known to have had nothing to give. */
static ist_err
check_roles(struct ist__sync_body *s, struct ist_error *err)
{
	for (uint32_t name = 0; name < s->first_size; name++) {
		uint8_t role = s->roles[name];
		ist_err e;

		if (s->ranks[name] != UINT32_MAX || role & SETTLED)
			continue;
		if (role & KNOWN && !(role & IST__ROLE_SOURCE))
			continue;
		e = ist__fail(err, IST_PEER_LOST, "sync_gather", "rank %u is lost before all knew %s", name,
			role & KNOWN ? "what it gives" : "whether it gives anything");
		ist__fail_rank(err, name);
		return e;
	}
	return IST_OK;
}

/* In the new group: everybody goes back to where the one stands that got least far. */
static ist_err
meet_again(struct ist__sync_body *s, struct ist__regroup *r, struct ist_error *err)
{
	bool view = true, ok = true, known[IST_ERROR_RANKS] = { false };
	ist_err e;

	put_stand(s, r);
	e = ist__agree_run(&s->agree, s->up.deadline, OP, err);
	r->how = s->agree.told ? IST__END_AGREED : IST__END_BROKEN;
	if (e)
		return e;
	for (uint32_t i = 0; i < s->size && ok; i++) {
		ok = hear_stand(s, i, r, &view, known);
		if (!ok)
			e = ist__fail(err, IST_BAD_FORMAT, OP, "the record of rank %u can't be read", s->names[i]);
	}
	s->ring.view = view;
	if (!e)
		e = r->step == IST__STEP_GATHER ? check_roles(s, err) : ist__sync_has_all(s, err);
	if (e) {
		r->how = IST__END_AGREED; /* all come to it by themselves, from equal records */
		return e;
	}
	if (r->step < IST__STEP_MOVE)
		r->first = 0;
	for (uint32_t name = 0; name < s->first_size; name++)
		s->roles[name] |= s->ranks[name] == UINT32_MAX ? SETTLED : 0;
	return IST_OK;
}

ist_err
ist__sync_regroup(struct ist__sync_body *s, struct ist__regroup *r, const struct ist_error *why, struct ist_error *err)
{
	struct ist_error last = *why;
	ist_err e;

	for (;;) {
		r->how = IST__END_BROKEN;
		e = note_roles(s, err);
		if (!e)
			e = ist__sync_shrink(s, &last, err);
		r->stuck = e != IST_OK;
		if (e)
			return e;
		e = meet_again(s, r, err);
		if (!e || r->how != IST__END_BROKEN || !ist__sync_is_loss(s, e) || ist__now() >= s->up.deadline)
			return e;
		last = *err;
	}
}
