/* SPDX-License-Identifier: Apache-2.0
 *
 * How many CPUs a container allows, read from control groups of both versions that are laid out in a folder.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cpus.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64] = "/tmp/isthmus-cpus-XXXXXX";

static void
put(const char *name, const char *text)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *s = strchr(path + 1, '/'); s; s = strchr(s + 1, '/')) {
		*s = 0;
		assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
		*s = '/';
	}
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static uint32_t
quota(const char *self)
{
	char path[256];

	put("self", self);
	snprintf(path, sizeof(path), "%s/self", root);
	return ist__cpu_quota_at(path, root);
}

static void
the_tightest_quota_counts(void **state)
{
	(void)state;
	assert_int_equal(quota("0::/a/b\n"), UINT32_MAX); /* nothing there */
	put("a/b/cpu.max", "max 100000\n");
	assert_int_equal(quota("0::/a/b\n"), UINT32_MAX);
	put("a/b/cpu.max", "400000 100000\n");
	assert_int_equal(quota("0::/a/b\n"), 4);
	put("a/cpu.max", "150000 100000\n"); /* a part counts as one */
	assert_int_equal(quota("0::/a/b\n"), 2);
	put("a/b/cpu.max", "50000 100000\n");
	assert_int_equal(quota("0::/a/b\n"), 1);
	/* the first version, beside an empty second one */
	put("cpu/c/cpu.cfs_quota_us", "-1\n");
	put("cpu/c/cpu.cfs_period_us", "100000\n");
	assert_int_equal(quota("4:cpu,cpuacct:/c\n0::/\n"), UINT32_MAX);
	put("cpu/c/cpu.cfs_quota_us", "300000\n");
	assert_int_equal(quota("4:cpu,cpuacct:/c\n0::/\n"), 3);
	assert_int_equal(quota("4:cpuset:/c\n0::/\n"), UINT32_MAX); /* another controller */
}

static void
nonsense_is_no_quota(void **state)
{
	static const char *const texts[] = { "", "\n", "x y\n", "0 100000\n", "100000 0\n", "100000\n", "-5 100000\n" };

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		put("n/cpu.max", texts[i]);
		assert_int_equal(quota("0::/n\n"), UINT32_MAX);
	}
	put("n/cpu.max", "9223372036854775807 1\n");
	assert_int_equal(quota("0::/n\n"), UINT32_MAX);
	assert_int_equal(quota(""), UINT32_MAX);
	assert_int_equal(quota("::\n:\nnothing\n"), UINT32_MAX);
}

static void
affinity_counts_too(void **state)
{
	cpu_set_t before, one;
	size_t first = 0;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	assert_in_range(ist__cpus(), 1, CPU_COUNT(&before));
	while (!CPU_ISSET(first, &before))
		first++;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(ist__cpus(), 1);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_tightest_quota_counts),
		cmocka_unit_test(nonsense_is_no_quota),
		cmocka_unit_test(affinity_counts_too),
	};
	char command[128];
	int failed;

	if (!mkdtemp(root))
		return 1;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	snprintf(command, sizeof(command), "rm -rf %s", root);
	return system(command) ? 1 : failed;
}
