/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memroom.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Small files of the kernel; false: not there, or empty. Closed by a 0. */
static bool
slurp(const char *path, char *to, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t n = 0;
	ssize_t got = 0;

	if (fd < 0)
		return false;
	while (n + 1 < room && (got = read(fd, to + n, room - 1 - n)) > 0)
		n += (size_t)got;
	close(fd);
	to[n] = 0;
	return n > 0 && got >= 0;
}

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
	if (!slurp(path, text, sizeof(text)))
		return false;
	max = strtoull(text, &end, 10);
	if (end == text || max >= INT64_MAX - 65536) /* "max", or what the first version calls so */
		return false;
	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	if (slurp(path, text, sizeof(text)))
		for (int i = 0; i < 3 && names->used[i]; i++)
			used += field(text, names->used[i]);
	*limit = max;
	*room = used < max ? max - used : 0;
	return true;
}

/* A group and those around it: the tightest counts. dir is cut on the way up, to no less than top bytes. */
static bool
look_up(char *dir, size_t top, const struct names *names, uint64_t *limit, uint64_t *room)
{
	bool found = false;

	for (;;) {
		uint64_t l = 0, r = 0;
		char *slash;

		if (look(dir, names, &l, &r) && (!found || r < *room)) {
			*limit = l;
			*room = r;
			found = true;
		}
		slash = strrchr(dir, '/');
		if (!slash || (size_t)(slash - dir) < top)
			return found;
		*slash = 0;
	}
}

/* The path that a line of /proc/self/cgroup gives: "0::PATH", or "N:...memory...:PATH". */
static const char *
path_in(char *line, const struct names **names)
{
	char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;

	if (!path)
		return NULL;
	*path++ = 0;
	*names = list[1] ? &v1 : &v2;
	for (char *save = NULL, *one = strtok_r(list + 1, ",", &save); list[1] && one; one = strtok_r(NULL, ",", &save))
		if (!strcmp(one, "memory"))
			return path;
	return list[1] ? NULL : path;
}

bool
ist__memory_room_at(const char *cgroup, const char *root, uint64_t *limit, uint64_t *room)
{
	char text[8192], dir[PATH_MAX], *save = NULL;
	bool found = false;

	if (!slurp(cgroup, text, sizeof(text)))
		return false;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		const struct names *names;
		const char *path = path_in(line, &names), *under = names == &v1 ? "/memory" : "";
		uint64_t l = 0, r = 0;

		if (!path)
			continue;
		snprintf(dir, sizeof(dir), "%s%s%s", root, under, strcmp(path, "/") ? path : "");
		if (look_up(dir, strlen(root) + strlen(under), names, &l, &r) && (!found || r < *room)) {
			*limit = l;
			*room = r;
			found = true;
		}
	}
	return found;
}

bool
ist__memory_room(uint64_t *limit, uint64_t *room)
{
	return ist__memory_room_at("/proc/self/cgroup", "/sys/fs/cgroup", limit, room);
}
