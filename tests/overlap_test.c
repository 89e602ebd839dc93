/* SPDX-License-Identifier: Apache-2.0
 *
 * overlap_test.c - the stages of an update work at the same time: reading at the source, the way there, delivery at the
 * sink. Each takes a fixed time here; what counts is that the whole takes as long as one of them and not as all three.
 */
#include "sync_kit.h"

#include "base/clock.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { BUCKETS = 50, STAGE_MS = 20 };

/* Seconds of an update of 50 buckets, 20 ms in each stage: at best 1.04. Serial it would be 3. */
static double
seconds_of(bool plain)
{
	struct kit k;
	double seconds;

	kit_new(&k, 3, 1);
	k.tiny = BUCKETS;
	k.each = k.bucket = 65536;
	k.members[1].custom = k.members[2].custom = true;
	fake_world_faults(k.crew.world)->no_memory = plain;
	kit_run(&k, IST_OK); /* the table, and pages that were never touched */
	assert_int_equal(k.members[0].report.buckets, BUCKETS);
	k.content++;
	k.no_gather = true;
	k.members[1].piece_ns = k.members[2].piece_ns = STAGE_MS * IST__MS;
	fake_world_faults(k.crew.world)->cast_ns = STAGE_MS * IST__MS;
	fake_fetch_takes(STAGE_MS * IST__MS);
	kit_run(&k, IST_OK);
	fake_fetch_takes(0);
	kit_check_sinks(&k);
	seconds = k.members[0].report.seconds_update;
	printf("%s: %.2f s\n", plain ? "copies" : "views", seconds);
	kit_free(&k);
	return seconds;
}

/* The guard is wide, since a busy machine adds to each stage; two stages in a row would take 2 s. */
static void
the_stages_overlap(void **unused)
{
	(void)unused;
	assert_true(seconds_of(false) < 1.9);
	assert_true(seconds_of(true) < 1.9);
}

/* With one bucket, asked for or all that there is memory for, nothing overlaps and everything arrives: from one source, and
 * from several with checks among the buckets. scarce: of these members' hands, the others have all they want. */
static void
one_bucket(uint32_t n, uint32_t n_sources, uint32_t slots, uint32_t scarce)
{
	struct kit k;

	kit_new(&k, n, n_sources);
	k.tiny = BUCKETS;
	k.each = k.bucket = 65536;
	k.slots = slots;
	fake_world_faults(k.crew.world)->no_memory = scarce != 0;
	for (uint32_t r = 0; r < n; r++)
		k.crew.hands[r].pages_max = scarce >> r & 1;
	for (int i = 0; i < 2; i++) {
		k.content++;
		kit_run(&k, IST_OK);
		kit_check_sinks(&k);
		assert_true(k.members[n - 1].report.buckets >= BUCKETS / n_sources);
	}
	for (uint32_t r = 0; r < n; r++)
		assert_int_equal(strstr(k.crew.hands[r].log, "serial") != NULL, scarce >> r & 1);
	kit_free(&k);
}

static void
one_bucket_is_enough(void **unused)
{
	(void)unused;
	for (uint32_t sources = 1; sources <= 3; sources++) {
		one_bucket(5, sources, 1, 0);
		for (uint32_t scarce = 1; scarce < 1u << 5; scarce += 3) /* of all kinds of members some */
			one_bucket(5, sources, 0, scarce);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_stages_overlap),
		cmocka_unit_test(one_bucket_is_enough),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
