/* SPDX-License-Identifier: Apache-2.0
 *
 * vote.c - the last step of a forming whose members all share a life segment: the vote is words there, and its outcome is one
 * that is set once. Messages are for who waits long, and for errors. Who sleeps looks at that memory from time to time: who was to
 * wake it may be stopped. shared.pml is a model of it.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/form_int.h"
#include "net/wire.h"

#include <sched.h>

enum { LOOK_NS = 300000, REASON_MS = 1000 };

/* Who has given up looking, and waits for a message, gets one. */
static void
wake_sleepers(struct ist__form *f, uint32_t step)
{
	static const uint8_t ready[1];
	struct ist__writer w;

	if (f->args.rank != 0) {
		if (ist__life_asleep(f->vote, f->slot[0]))
			ist__form_send(&f->star[0], f, IST__PHASE, step, ready, sizeof(ready));
		return;
	}
	ist__writer_init(&w, f->ctx);
	for (uint32_t r = 0; r < f->args.size; r++)
		ist__put_blob(&w, NULL, 0);
	for (uint32_t r = 1; r < f->args.size; r++)
		if (!ist__life_asleep(f->vote, f->slot[r]))
			continue;
		else if (!w.bad)
			ist__form_send(&f->star[r], f, IST__PHASE, step, w.at, w.bytes);
		else if (f->star[r].post)
			ist__conn_starve(f->star[r].post->conn); /* it looks, and has lost us */
	ist__writer_fini(&w);
}

/* All that are not lost look at the same word; for a moment it is cheaper to look than to be woken. */
static ist_err
look_at_vote(struct ist__form *f, struct ist_error *err)
{
	int64_t until = ist__now() + LOOK_NS;
	ist_err e = IST_OK;

	while (!e && !ist__life_outcome(f->vote) && ist__now() < until) {
		sched_yield();
		e = ist__form_wait(f, 0, err);
	}
	return e;
}

static ist_err
sleep_on_vote(struct ist__form *f, uint32_t step, const char *what, struct ist__reader *all, struct ist_error *err)
{
	ist__life_sleeps(f->vote);
	if (ist__life_outcome(f->vote))
		return IST_OK;
	if (f->args.rank != 0)
		return ist__form_exchange(f, step, what, IST_OK, err, NULL, 0, all, NULL);
	return ist__form_collect(f, step, what, err);
}

/* Somebody who was ready has given up. Rank 0 finds out why, or that it went; the others hear it from there. */
static ist_err
await_reason(struct ist__form *f, uint32_t step, const char *what, struct ist_error *err)
{
	int64_t own = f->deadline;
	ist_err e = IST_OK;

	f->deadline = ist__now() + REASON_MS * IST__MS;
	if (f->args.rank != 0)
		e = ist__form_await_word(f, IST__PHASE, step + 1, what, err); /* such a step never comes, but an error does */
	while (!e && ist__now() < f->deadline)
		e = ist__form_wait(f, IST__NEVER, err);
	f->deadline = own;
	return e ? e : ist__fail(err, IST_TIMEOUT, "group_new", "a member gave up in step \"%s\"", what);
}

ist_err
ist__form_vote(struct ist__form *f, struct ist__life *life, uint32_t step, const char *what, struct ist__reader *all, struct ist_error *err)
{
	enum ist__outcome word;
	struct ist_error why;
	bool first;
	ist_err e;

	ist_error_init(&why);
	f->vote = life;
	first = ist__life_vote(life);
	e = look_at_vote(f, &why);
	if (!e && !ist__life_outcome(life))
		e = sleep_on_vote(f, step, what, all, &why);
	if (e)
		word = ist__life_settle(life, IST__NO, &first);
	else if (!(word = ist__life_outcome(life)))
		word = ist__life_settle(life, IST__ALL_YES, &first); /* all have said yes */
	if (word == IST__ALL_YES) {
		if (first || f->args.rank == 0)
			wake_sleepers(f, step);
		f->vote = NULL;
		return IST_OK;
	}
	if (!e)
		e = await_reason(f, step, what, &why);
	f->vote = NULL;
	ist__error_copy(err, &why);
	return f->args.rank == 0 ? ist__form_fail_all(f, err) : e;
}
