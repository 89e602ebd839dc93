/* SPDX-License-Identifier: Apache-2.0
 *
 * leave.c - a member whose own sink fails while the others could go on (on_loss continue): a full disk is its trouble, not
 * theirs, and so is the want of memory for its buckets. It says so in the exchange that ends a step, where all hear it alike,
 * and goes with its own error; the others leave it behind as they would have left it had it died. Where it can't be missed (it
 * is the last sink, or the only source of a tensor) all fail with that error, as with on_loss fail.
 */
#include "sync/sync.h"

#include "base/fail.h"

#define OP "sync_update"

void
ist__sync_say(struct ist__sync_body *s)
{
	ist__agree_begin(&s->agree, s->up.failed ? &s->up.why : NULL);
	if (s->up.failed && s->up.own && s->up.may_leave)
		ist__agree_leave(&s->agree);
}

/* As if the group had lost them: ranks are the group's. */
static void
name_leavers(const struct ist__sync_body *s, struct ist_error *err)
{
	struct ist_error why = *err;

	why.n_ranks = why.n_per_rank = 0;
	for (uint32_t i = 0; i < s->size; i++) {
		if (!s->agree.leaves[i])
			continue;
		ist__fail_rank(&why, i);
		ist__fail_per_rank(&why, i, s->agree.leaves[i]);
	}
	*err = why;
}

ist_err
ist__sync_hear(struct ist__sync_body *s, enum ist__end *how, struct ist_error *err)
{
	ist_err e = ist__agree_run(&s->agree, s->up.deadline, OP, err);

	*how = s->agree.told ? IST__END_AGREED : IST__END_BROKEN;
	if (!s->agree.told || s->agree.n_leave == 0 || s->agree.n_leave > IST_ERROR_RANKS || !ist__sync_can_miss(s, s->agree.leaves))
		return e;
	if (!s->agree.leaves[s->rank]) {
		*how = IST__END_APART;
		name_leavers(s, err);
		return e;
	}
	*how = IST__END_ALONE;
	s->left_at = s->up.version;
	ist__error_copy(err, &s->up.why);
	return err->code;
}

ist_err
ist__sync_check_left(const struct ist__sync_body *s, const char *op, struct ist_error *err)
{
	if (!s->left_at)
		return IST_OK;
	ist__fail(err, IST_EVICTED, op, "the others left this member behind in the update to version %llu, when its sink or its memory failed",
		(unsigned long long)s->left_at);
	ist__fail_rank(err, s->name);
	return IST_EVICTED;
}
