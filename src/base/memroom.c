/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memroom.h"

#include "base/cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "NAME number" at the beginning of a line; 0 where there is none. */
static uint64_t
field(const char *text, const char *name)
{
	size_t n = strlen(name);

	while (text && *text) {
		if (!strncmp(text, name, n) && text[n] == ' ')
			return strtoull(text + n + 1, NULL, 10);
		text = strchr(text, '\n');
		text = text ? text + 1 : NULL;
	}
	return 0;
}

struct names {
	const char *limit;
	const char *used[3];
};

static const struct names v2 = { "memory.max", { "anon", "shmem", "kernel" } };
static const struct names v1 = { "memory.limit_in_bytes", { "total_rss", "total_shmem", NULL } };

/* One group. False: it sets no limit. */
static bool
look(const char *dir, const struct names *names, uint64_t *limit, uint64_t *room)
{
	char path[PATH_MAX], text[8192], *end;
	uint64_t used = 0, max;

	snprintf(path, sizeof(path), "%s/%s", dir, names->limit);
	if (!ist__slurp(path, text, sizeof(text)))
		return false;
	max = strtoull(text, &end, 10);
	if (end == text || max >= INT64_MAX - 65536) /* "max", or what the first version calls so */
		return false;
	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	if (ist__slurp(path, text, sizeof(text)))
		for (int i = 0; i < 3 && names->used[i]; i++)
			used += field(text, names->used[i]);
	*limit = max;
	*room = used < max ? max - used : 0;
	return true;
}

struct tightest {
	bool found;
	uint64_t limit, room;
};

static void
look_at(void *ctx, const char *dir, bool second_version)
{
	struct tightest *t = ctx;
	uint64_t limit = 0, room = 0;

	if (!look(dir, second_version ? &v2 : &v1, &limit, &room) || (t->found && room >= t->room))
		return;
	*t = (struct tightest){ .found = true, .limit = limit, .room = room };
}

bool
ist__memory_room_at(const char *cgroup, const char *root, uint64_t *limit, uint64_t *room)
{
	struct tightest t = { .found = false };

	ist__cgroup_each(cgroup, root, "memory", look_at, &t);
	if (t.found) {
		*limit = t.limit;
		*room = t.room;
	}
	return t.found;
}

bool
ist__memory_room(uint64_t *limit, uint64_t *room)
{
	return ist__memory_room_at(IST__CGROUP_SELF, IST__CGROUP_ROOT, limit, room);
}

uint64_t
ist__memory_left(void)
{
	uint64_t limit, room, left = UINT64_MAX;
	const char *at;
	char text[8192];

	if (ist__slurp("/proc/meminfo", text, sizeof(text)) && (at = strstr(text, "MemAvailable:")))
		left = strtoull(at + strlen("MemAvailable:"), NULL, 10) * 1024;
	if (ist__memory_room(&limit, &room) && room < left)
		left = room;
	return left;
}
