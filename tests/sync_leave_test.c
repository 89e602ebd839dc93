/* SPDX-License-Identifier: Apache-2.0
 *
 * sync_leave_test.c - members whose own sinks fail while the others could go on (on_loss continue), over the fake group: at
 * each step, two at once, those that give too, and those that can't be missed.
 */
#include "sync_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static uint32_t
count_bits(uint64_t mask)
{
	return (uint32_t)__builtin_popcountll(mask);
}

static void
check_leaver(const struct member *m, uint32_t rank, uint64_t version)
{
	assert_int_equal(m->code, IST_NO_SPACE);
	assert_int_equal(m->error.n_ranks, 1);
	assert_int_equal(m->error.ranks[0], rank);
	assert_non_null(strstr(m->error.detail, "disk full"));
	assert_int_equal(m->state, IST_CLEAN);
	assert_int_equal(m->version, version);
	assert_int_equal(m->commits, version > 0);
}

/* Sinks of leavers fail; the others go on, tell whom they lost and why, and update once more. */
static void
leave(uint32_t n, uint32_t n_sources, uint64_t leavers, const enum when *when)
{
	struct kit k;

	kit_new(&k, n, n_sources);
	k.on_loss = IST_ON_LOSS_CONTINUE;
	k.bucket = MIB / 16;
	k.small = true;
	for (uint32_t i = 0; i < n; i++)
		if (leavers >> i & 1)
			k.members[i].custom = !(k.members[i].own_sink = k.members[i].source);
	kit_run(&k, IST_OK);
	for (uint32_t i = 0; i < n; i++)
		k.members[i].fail = leavers >> i & 1 ? *when++ : NEVER;
	k.no_gather = true;
	k.content = 2;
	k.dead_ok = leavers;
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	for (uint32_t i = 0; i < n; i++) {
		const struct member *m = &k.members[i];

		if (leavers >> i & 1) {
			check_leaver(m, i, 1);
			continue;
		}
		assert_int_equal(m->version, 2);
		assert_int_equal(m->report.verified, 1);
		assert_int_equal(m->report.n_lost, count_bits(leavers));
		for (uint32_t l = 0; l < m->report.n_lost; l++) {
			assert_true(leavers >> m->report.lost[l].rank & 1);
			assert_int_equal(m->report.lost[l].code, IST_NO_SPACE);
		}
	}
	k.no_gather = false;
	k.content = 3;
	for (uint32_t i = 0; i < n; i++)
		k.members[i].fail = NEVER;
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(k.members[i].code, leavers >> i & 1 ? IST_EVICTED : IST_OK);
	kit_free(&k);
}

static void
a_full_sink_goes_alone(void **unused)
{
	(void)unused;
	for (enum when when = AT_BEGIN; when <= AT_PREPARE; when++)
		for (uint32_t n_sources = 1; n_sources <= 2; n_sources++)
			leave(5, n_sources, UINT64_C(1) << (2 + n_sources % 2), &when);
}

static void
two_full_sinks(void **unused)
{
	static const enum when pairs[][2] = { { AT_BEGIN, AT_BEGIN }, { AT_FIRST_PIECE, AT_FIRST_PIECE }, { AT_PREPARE, AT_PREPARE },
		{ AT_BEGIN, AT_PREPARE }, { AT_LAST_PIECE, AT_FIRST_PIECE }, { AT_PREPARE, AT_LAST_PIECE } };

	(void)unused;
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		leave(5, 1, 12, pairs[i]);
}

/* Another gives what it gave. */
static void
a_source_with_a_full_sink_goes_alone(void **unused)
{
	static const enum when whens[] = { AT_BEGIN, AT_FIRST_PIECE, AT_PREPARE };

	(void)unused;
	for (size_t i = 0; i < sizeof(whens) / sizeof(whens[0]); i++)
		for (uint64_t who = 0; who < 2; who++)
			leave(5, 2, UINT64_C(1) << who, &whens[i]);
}

/* Who can't be missed takes all others along, and the group is whole for the next try. */
static void
stay(uint32_t n, uint32_t n_sources, uint64_t full, enum when when)
{
	struct kit k;

	kit_new(&k, n, n_sources);
	k.on_loss = IST_ON_LOSS_CONTINUE;
	k.bucket = MIB / 16;
	k.small = true;
	for (uint32_t i = 0; i < n; i++)
		if (full >> i & 1)
			k.members[i].custom = !(k.members[i].own_sink = k.members[i].source);
	kit_run(&k, IST_OK);
	for (uint32_t i = 0; i < n; i++)
		k.members[i].fail = full >> i & 1 ? when : NEVER;
	k.no_gather = true;
	k.content = 2;
	kit_run(&k, IST_NO_SPACE);
	for (uint32_t i = 0; i < n; i++) {
		const struct member *m = &k.members[i];

		assert_int_equal(m->error.n_ranks, 1);
		assert_true(full >> m->error.ranks[0] & 1);
		assert_int_equal(m->error.n_per_rank, count_bits(full));
		assert_int_equal(m->state, IST_CLEAN);
		assert_int_equal(m->version, 1);
	}
	for (uint32_t i = 0; i < n; i++)
		k.members[i].fail = NEVER;
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	kit_free(&k);
}

static void
who_can_not_be_missed_fails_all(void **unused)
{
	(void)unused;
	for (enum when when = AT_BEGIN; when <= AT_PREPARE; when++) {
		stay(3, 2, 4, when);  /* the only sink */
		stay(4, 1, 14, when); /* all of them */
		if (when != AT_LAST_PIECE)
			stay(4, 1, 1, when); /* the only source */
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_sink_goes_alone),
		cmocka_unit_test(two_full_sinks),
		cmocka_unit_test(a_source_with_a_full_sink_goes_alone),
		cmocka_unit_test(who_can_not_be_missed_fails_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
