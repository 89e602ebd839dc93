/* SPDX-License-Identifier: Apache-2.0
 *
 * scarce.c - a member that runs out of descriptors while a group forms. It lives on what the loop has held back, and uses
 * that to meet the others and to tell them, so that nobody waits for it in vain. Other trouble of its own it tells them too.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/form_int.h"
#include "net/wire.h"

#include <errno.h>
#include <poll.h>

enum { FAREWELL_MS = 1000, PAUSE_MS = 5 };

ist_err
ist__form_scarce(struct ist__form *f, struct ist_error *err)
{
	if (!f->scarce.code && !ist__loop_spares_fill(f->inbox.loop)) {
		ist_error_init(&f->scarce);
		ist__fail_sys(&f->scarce, IST_LIMIT, EMFILE, "group_new", "too few descriptors are left for a group");
	}
	if (f->scarce.code)
		ist__error_copy(err, &f->scarce);
	return f->scarce.code;
}

void
ist__form_fds_lost(struct ist__form *f, uint32_t from)
{
	if (f->scarce.code)
		return;
	ist_error_init(&f->scarce);
	ist__fail_sys(&f->scarce, IST_LIMIT, EMFILE, "group_new", "no descriptors are left for those that rank %u handed over", from);
}

bool
ist__form_tell_root(struct ist__form *f, const struct ist_error *why)
{
	struct ist__writer w;
	bool told;

	ist__writer_init(&w, f->ctx);
	ist__put_u8(&w, 1);
	ist__put_error(&w, why);
	told = !w.bad && ist__form_send(&f->star[0], f, IST__PHASE, 1, w.at, w.bytes);
	ist__writer_fini(&w);
	return told;
}

ist_err
ist__form_scarce_roll(struct ist__form *f, struct ist_error *err)
{
	struct ist_error why;
	bool reached = f->args.rank == 0 ? f->listening && (f->rdv.kind != IST__RDV_TCP || f->rdv.published) : f->star[0].post != NULL;

	ist_error_init(&why);
	if (!ist__form_scarce(f, &why))
		return IST_OK;
	if (!f->scarce_until)
		f->scarce_until = ist__now() + FAREWELL_MS * IST__MS;
	if (ist__now() >= f->scarce_until || (reached && f->args.rank == 0)) {
		ist__error_copy(err, &why);
		return why.code;
	}
	if (!reached || f->scarce_said)
		return IST_OK;
	f->scarce_said = ist__form_tell_root(f, &why);
	return IST_OK;
}

bool
ist__form_may_tell(struct ist__form *f, ist_err e)
{
	bool deaf;

	pthread_mutex_lock(&f->inbox.lock);
	deaf = f->inbox.starved;
	pthread_mutex_unlock(&f->inbox.lock);
	return !deaf && (e == IST_NO_MEMORY || e == IST_LIMIT || e == IST_NO_SPACE);
}

bool
ist__form_confess(struct ist__form *f, ist_err e, const struct ist_error *err)
{
	if (!ist__form_may_tell(f, e) || !err || err->n_ranks > 1 || (err->n_ranks == 1 && err->ranks[0] != f->args.rank))
		return false; /* not ours, or nothing can be heard any more */
	if (f->scarce_until) { /* it goes on, and so do we, for a while */
		poll(NULL, 0, PAUSE_MS);
		return ist__now() < f->scarce_until;
	}
	f->scarce = *err;
	f->scarce_until = ist__now() + FAREWELL_MS * IST__MS;
	return true;
}

void
ist__form_farewell(struct ist__form *f, struct ist_error *why)
{
	int64_t until = ist__now() + FAREWELL_MS * IST__MS;
	bool on = true;

	for (;;) {
		struct ist_error other;

		for (uint32_t r = 1; r < f->args.size; r++)
			if (f->star[r].post) {
				ist__form_send_error(&f->star[r], f, IST__FAIL, why);
				ist__spoke_clear(f, &f->star[r], true); /* what it holds is needed for the next one */
			}
		if (!on || !ist__form_misses(f) || ist__now() >= until)
			return;
		ist_error_init(&other);
		switch (ist__form_round(f, until, &other)) {
		case IST_OK: break;
		case IST_ABORTED: on = false; break;
		default:
			on = ist__form_may_tell(f, IST_LIMIT);
			poll(NULL, 0, PAUSE_MS); /* it may fail again at once */
		}
	}
}
