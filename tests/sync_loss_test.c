/* SPDX-License-Identifier: Apache-2.0
 *
 * sync_loss_test.c - members that die in the middle of an update, at every place where one can, over the fake group. */
#include "sync_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

struct plan {
	uint32_t n, n_sources, who, on_loss;
	bool disjoint, plain;
	uint64_t cast, gather, vote; /* where it dies; FAKE_NEVER: not there */
	uint32_t heard;              /* its vote was; of an exchange: mask of the ranks that got the result and went on */
	ist_err want;
	uint64_t committed;          /* version afterwards on those that are left */
};

static void
set_fault(struct kit *k, const struct plan *p)
{
	struct fake_faults *f = fake_world_faults(k->crew.world);

	fake_world_calm(k->crew.world);
	f->no_memory = p->plain;
	f->kill_rank = p->who;
	f->kill_at = p->cast;
	f->kill_gather = p->gather;
	f->kill_vote = p->vote;
	f->kill_heard = p->heard != 0;
	f->kill_told = p->gather == FAKE_NEVER ? 0 : p->heard;
}

static void
check_survivors(struct kit *k, const struct plan *p)
{
	for (uint32_t i = 0; i < p->n; i++) {
		const struct member *m = &k->members[i];

		if (i == p->who)
			continue;
		assert_int_equal(m->version, p->committed);
		assert_int_equal(m->state, IST_CLEAN);
		if (p->want == IST_OK && p->on_loss == IST_ON_LOSS_CONTINUE) {
			assert_int_equal(m->report.n_lost, 1);
			assert_int_equal(m->report.lost[0].rank, p->who);
			assert_int_equal(m->report.lost[0].code, IST_PEER_LOST);
			assert_int_equal(m->report.verified, 1);
		} else if (p->want) {
			assert_int_equal(m->error.n_ranks, 1);
			assert_int_equal(m->error.ranks[0], p->who);
		}
	}
}

/* False: the update has no such place. fresh: nothing was done before, it dies in its first gather or after it. */
static bool
lose_when(struct plan p, bool fresh)
{
	struct kit k;
	bool died;

	kit_new(&k, p.n, p.n_sources);
	k.on_loss = p.on_loss;
	k.disjoint = p.disjoint;
	k.small = p.gather == FAKE_NEVER || !p.heard; /* else so many buckets that several move between two checks */
	k.bucket = k.small ? MIB / 4 : MIB / 16;
	k.members[p.n - 1].custom = true; /* counts what comes twice */
	if (!fresh)
		kit_run(&k, IST_OK);
	set_fault(&k, &p);
	k.content = 2;
	k.no_gather = !fresh;
	k.dead_ok = UINT64_C(1) << p.who;
	kit_run(&k, p.want);
	died = fake_world_dead(k.crew.world, p.who);
	if (!died) {
		kit_free(&k);
		return false;
	}
	check_survivors(&k, &p);
	if (p.want == IST_OK)
		kit_check_sinks(&k);
	if (p.want == IST_OK && p.on_loss == IST_ON_LOSS_CONTINUE) {
		/* they go on without it: by the old plan, then by a new one */
		for (int again = 0; again < 2; again++) {
			k.content++;
			kit_run(&k, IST_OK);
			kit_check_sinks(&k);
			k.no_gather = false;
		}
		assert_int_equal(k.members[p.n - 1 - (p.who == p.n - 1)].version, p.committed + 2);
	}
	kit_free(&k);
	return true;
}

static bool
lose(struct plan p)
{
	return lose_when(p, false);
}

static void
with_fail_all_get_the_same(void **unused)
{
	(void)unused;
	assert_true(lose((struct plan){ 4, 1, 3, IST_ON_LOSS_FAIL, false, false, 3, FAKE_NEVER, FAKE_NEVER, false, IST_PEER_LOST, 1 }));
	assert_true(lose((struct plan){ 4, 1, 0, IST_ON_LOSS_FAIL, false, true, 3, FAKE_NEVER, FAKE_NEVER, false, IST_PEER_LOST, 1 }));
	assert_true(lose((struct plan){ 4, 2, 1, IST_ON_LOSS_FAIL, false, false, FAKE_NEVER, 0, FAKE_NEVER, false, IST_PEER_LOST, 1 }));
	assert_true(lose((struct plan){ 4, 2, 2, IST_ON_LOSS_FAIL, false, false, FAKE_NEVER, FAKE_NEVER, 0, false, IST_PEER_LOST, 1 }));
	assert_true(lose((struct plan){ 4, 2, 2, IST_ON_LOSS_FAIL, false, false, FAKE_NEVER, FAKE_NEVER, 0, true, IST_OK, 2 }));
}

static void
a_sink_may_die_anywhere(void **unused)
{
	uint64_t cast = 0, gather = 0;

	(void)unused;
	while (lose((struct plan){ 4, 1, 2, IST_ON_LOSS_CONTINUE, false, cast % 2, cast, FAKE_NEVER, FAKE_NEVER, false, IST_OK, 2 }))
		cast++;
	while (lose((struct plan){ 4, 1, 2, IST_ON_LOSS_CONTINUE, false, false, FAKE_NEVER, gather, FAKE_NEVER, false, IST_OK, 2 }))
		gather++;
	assert_true(cast > 8 && gather > 5);
	assert_true(lose((struct plan){ 4, 1, 3, IST_ON_LOSS_CONTINUE, false, false, FAKE_NEVER, FAKE_NEVER, 0, false, IST_OK, 2 }));
	assert_true(lose((struct plan){ 4, 1, 1, IST_ON_LOSS_CONTINUE, false, false, FAKE_NEVER, FAKE_NEVER, 0, false, IST_OK, 2 }));
}

static void
a_sink_may_die_in_the_gather(void **unused)
{
	uint64_t gather = 0;

	(void)unused;
	while (lose_when((struct plan){ 4, 1, 2, IST_ON_LOSS_CONTINUE, false, false, FAKE_NEVER, gather, FAKE_NEVER, false, IST_OK, 1 }, true))
		gather++;
	assert_true(gather > 10);
	/* some have all that they need for the update, and are in its first exchange */
	for (uint32_t told = 1; told < 8; told++)
		assert_true(lose_when((struct plan){ 4, 1, 3, IST_ON_LOSS_CONTINUE, false, false, FAKE_NEVER, 2, FAKE_NEVER, told, IST_OK, 1 }, true));
	assert_true(lose_when((struct plan){ 4, 1, 3, IST_ON_LOSS_FAIL, false, false, FAKE_NEVER, 1, FAKE_NEVER, false, IST_PEER_LOST, 0 }, true));
}

/* Who gives something is not missed before it is known what that is. */
static void
a_source_may_not(void **unused)
{
	(void)unused;
	for (uint64_t gather = 0; gather < 3; gather++) {
		assert_true(lose_when((struct plan){ 4, 1, 0, IST_ON_LOSS_CONTINUE, false, false, FAKE_NEVER, gather, FAKE_NEVER, false, IST_PEER_LOST, 0 }, true));
		assert_true(lose_when((struct plan){ 4, 2, 1, IST_ON_LOSS_CONTINUE, true, false, FAKE_NEVER, gather, FAKE_NEVER, false, IST_PEER_LOST, 0 }, true));
	}
}

static void
another_source_stands_in(void **unused)
{
	(void)unused;
	for (uint32_t who = 0; who < 2; who++) {
		uint64_t cast = 0, gather = 0;

		while (lose((struct plan){ 5, 2, who, IST_ON_LOSS_CONTINUE, false, cast % 2, cast, FAKE_NEVER, FAKE_NEVER, false, IST_OK, 2 }))
			cast++;
		while (lose((struct plan){ 5, 3, who, IST_ON_LOSS_CONTINUE, false, false, FAKE_NEVER, gather, FAKE_NEVER, false, IST_OK, 2 }))
			gather++;
		assert_true(cast > 8 && gather > 5);
	}
}

/* It dies when all are ready, and sources that have heard so have begun to give while the sinks have not. */
static void
some_have_begun_to_move(void **unused)
{
	(void)unused;
	for (uint32_t told = 1; told < 4; told++) /* exchange 0 is START's, 1 READY's */
		assert_true(lose((struct plan){ 5, 2, 3, IST_ON_LOSS_CONTINUE, false, false, FAKE_NEVER, 1, FAKE_NEVER, told, IST_OK, 2 }));
}

static void
the_only_source_can_not_be_missed(void **unused)
{
	(void)unused;
	for (uint64_t cast = 0; cast < 8; cast += 3) {
		assert_true(lose((struct plan){ 4, 1, 0, IST_ON_LOSS_CONTINUE, false, false, cast, FAKE_NEVER, FAKE_NEVER, false, IST_PEER_LOST, 1 }));
		assert_true(lose((struct plan){ 4, 2, 1, IST_ON_LOSS_CONTINUE, true, false, cast, FAKE_NEVER, FAKE_NEVER, false, IST_PEER_LOST, 1 }));
	}
	assert_true(lose((struct plan){ 4, 1, 0, IST_ON_LOSS_CONTINUE, false, false, FAKE_NEVER, 1, FAKE_NEVER, false, IST_PEER_LOST, 1 }));
	assert_true(lose((struct plan){ 4, 1, 0, IST_ON_LOSS_CONTINUE, false, false, FAKE_NEVER, FAKE_NEVER, 0, false, IST_PEER_LOST, 1 }));
}

static void
the_last_sink_can_not_be_missed(void **unused)
{
	(void)unused;
	assert_true(lose((struct plan){ 3, 2, 2, IST_ON_LOSS_CONTINUE, false, false, 3, FAKE_NEVER, FAKE_NEVER, false, IST_PEER_LOST, 1 }));
}

static void
one_after_the_other(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 6, 3);
	k.on_loss = IST_ON_LOSS_CONTINUE;
	k.bucket = MIB / 4;
	k.small = true;
	kit_run(&k, IST_OK);
	k.no_gather = true;
	for (uint32_t who = 0; who <= 3; who += 3) {
		struct plan p = { .who = who, .cast = 4, .gather = FAKE_NEVER, .vote = FAKE_NEVER };

		set_fault(&k, &p);
		k.dead_ok |= UINT64_C(1) << who;
		k.content++;
		kit_run(&k, IST_OK);
		kit_check_sinks(&k);
	}
	for (uint32_t i = 0; i < 6; i++) {
		if (k.dead_ok >> i & 1)
			continue;
		assert_int_equal(k.members[i].report.n_lost, 2);
		assert_int_equal(k.members[i].report.lost[0].rank, 0);
		assert_int_equal(k.members[i].report.lost[1].rank, 3);
		assert_int_equal(k.members[i].version, 3);
	}
	kit_free(&k);
}

static void
ranks_keep_their_names(void **unused)
{
	struct plan p = { .who = 1, .cast = 4, .gather = FAKE_NEVER, .vote = FAKE_NEVER };
	struct kit k;

	(void)unused;
	kit_new(&k, 5, 2);
	k.on_loss = IST_ON_LOSS_CONTINUE;
	k.bucket = MIB / 4;
	k.small = true;
	k.members[4].custom = true;
	kit_run(&k, IST_OK);
	k.no_gather = true;
	set_fault(&k, &p);
	k.dead_ok = 2;
	kit_run(&k, IST_OK);
	k.members[4].fail = AT_PREPARE;
	k.dead_ok |= UINT64_C(1) << 4;
	kit_run(&k, IST_OK);
	assert_int_equal(k.members[4].code, IST_NO_SPACE);
	assert_int_equal(k.members[4].error.n_ranks, 1);
	assert_int_equal(k.members[4].error.ranks[0], 4);
	for (uint32_t i = 0; i < 4; i++)
		if (i != 1) {
			assert_int_equal(k.members[i].report.n_lost, 2);
			assert_int_equal(k.members[i].report.lost[1].rank, 4);
			assert_int_equal(k.members[i].report.lost[1].code, IST_NO_SPACE);
		}
	kit_free(&k);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(with_fail_all_get_the_same),
		cmocka_unit_test(a_sink_may_die_anywhere),
		cmocka_unit_test(a_sink_may_die_in_the_gather),
		cmocka_unit_test(a_source_may_not),
		cmocka_unit_test(another_source_stands_in),
		cmocka_unit_test(some_have_begun_to_move),
		cmocka_unit_test(the_only_source_can_not_be_missed),
		cmocka_unit_test(the_last_sink_can_not_be_missed),
		cmocka_unit_test(one_after_the_other),
		cmocka_unit_test(ranks_keep_their_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
