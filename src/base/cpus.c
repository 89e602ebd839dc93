/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cpus.h"

#include "base/cgroup.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

/* A number and what follows it; false: none, or not above 0 ("max", or -1). */
static bool
positive(const char *text, char **end, uint64_t *out)
{
	long long n = strtoll(text, end, 10);

	if (*end == text || n <= 0)
		return false;
	*out = (uint64_t)n;
	return true;
}

static bool
in_file(const char *dir, const char *name, uint64_t *out)
{
	char path[PATH_MAX], text[256], *end;

	return (size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) < sizeof(path) && ist__slurp(path, text, sizeof(text)) &&
		positive(text, &end, out);
}

/* The second version has "QUOTA PERIOD" in one file, the first one each in its own. */
static bool
quota_of(const char *dir, bool second_version, uint64_t *quota, uint64_t *period)
{
	char path[PATH_MAX], text[256], *end;

	if (!second_version)
		return in_file(dir, "cpu.cfs_quota_us", quota) && in_file(dir, "cpu.cfs_period_us", period);
	return (size_t)snprintf(path, sizeof(path), "%s/cpu.max", dir) < sizeof(path) && ist__slurp(path, text, sizeof(text)) &&
		positive(text, &end, quota) && positive(end, &end, period);
}

static void
look_at(void *ctx, const char *dir, bool second_version)
{
	uint64_t quota, period, cpus;
	uint32_t *least = ctx;

	if (!quota_of(dir, second_version, &quota, &period))
		return;
	cpus = quota / period + (quota % period > 0);
	if (cpus < *least)
		*least = (uint32_t)cpus;
}

uint32_t
ist__cpu_quota_at(const char *cgroup, const char *root)
{
	uint32_t least = UINT32_MAX;

	ist__cgroup_each(cgroup, root, "cpu", look_at, &least);
	return least;
}

uint32_t
ist__cpus_of(uint32_t quota)
{
	uint32_t allowed;
	cpu_set_t set;

	allowed = sched_getaffinity(0, sizeof(set), &set) ? 1 : (uint32_t)CPU_COUNT(&set);
	if (quota < allowed)
		allowed = quota;
	return allowed ? allowed : 1;
}

uint32_t
ist__cpus(void)
{
	return ist__cpus_of(ist__cpu_quota_at(IST__CGROUP_SELF, IST__CGROUP_ROOT));
}
