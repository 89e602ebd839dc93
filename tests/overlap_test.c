/* SPDX-License-Identifier: Apache-2.0
 *
 * overlap_test.c - the stages of an update work at the same time: reading at the source, the way there, delivery at the
 * sink. Each takes a fixed time here; what counts is that the whole takes as long as one of them and not as all three.
 */
#include "sync_kit.h"

#include "base/clock.h"

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

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_stages_overlap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
