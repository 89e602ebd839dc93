/* SPDX-License-Identifier: Apache-2.0
 *
 * given_up.c - what a member may be told of itself. That it is lost is the others' view: to itself it lives, and the word
 * for that is EVICTED, whichever way the news takes (LOST or ABORT of a group, rank 0's word while one forms). And who tells
 * of a loss is not lost.
 */
#include "base/fail.h"
#include "group/group.h"

void
ist__given_up(struct ist_error *err, uint32_t self, const char *op)
{
	struct ist_error view = *err;

	ist__fail(err, IST_EVICTED, op, "the others have given this member up: %s: %s", ist_err_name(view.code), view.detail);
	ist__fail_rank(err, self);
	ist__fail_per_rank(err, self, view.code);
}

/* Somebody ran out of something, and it is said who. */
static bool
is_want(const struct ist_error *err)
{
	return err->n_ranks > 0 && (err->code == IST_NO_MEMORY || err->code == IST_LIMIT || err->code == IST_NO_SPACE);
}

static bool
is_loss(ist_err code)
{
	return code == IST_PEER_LOST || code == IST_NO_PROGRESS || code == IST_SLOW_PEER;
}

void
ist__fail_told_by(struct ist_error *err, uint32_t rank)
{
	if (err->n_ranks == 0 || (!is_loss(err->code) && !is_want(err) && err->code != IST_TIMEOUT && err->code != IST_PEER_LEFT))
		ist__fail_rank(err, rank);
	ist__fail_per_rank(err, rank, err->code);
	ist__fail_prefix(err, "rank %u: ", rank);
}

/* EVICTED is what the lost one says of itself; to all others it is lost. */
static void
hear_eviction(struct ist_error *err, uint32_t self, const char *op)
{
	struct ist_error said = *err;

	if (err->code != IST_EVICTED || (err->n_ranks == 1 && err->ranks[0] == self))
		return;
	ist__fail(err, IST_PEER_LOST, op, "%s", said.detail);
	for (uint32_t i = 0; i < said.n_ranks; i++)
		ist__fail_rank(err, said.ranks[i]);
	for (uint32_t i = 0; i < said.n_per_rank; i++)
		ist__fail_per_rank(err, said.per_rank[i].rank, said.per_rank[i].code);
}

bool
ist__hear_loss(struct ist_error *err, uint32_t self, const char *op)
{
	hear_eviction(err, self, op);
	for (uint32_t i = 0; i < err->n_ranks && is_loss(err->code); i++)
		if (err->ranks[i] == self) {
			ist__given_up(err, self, op);
			return true;
		}
	return false;
}
