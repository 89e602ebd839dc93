/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cgroup.h"
#include "base/openfd.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool
ist__slurp(const char *path, char *to, size_t room)
{
	int fd = ist__open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
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

/* The path that a line of /proc/self/cgroup gives: "0::PATH", or "N:...CONTROLLER...:PATH". */
static const char *
path_in(char *line, const char *controller, bool *second_version)
{
	char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;

	if (!path)
		return NULL;
	*path++ = 0;
	*second_version = !list[1];
	if (*second_version)
		return path;
	for (char *save = NULL, *one = strtok_r(list + 1, ",", &save); one; one = strtok_r(NULL, ",", &save))
		if (!strcmp(one, controller))
			return path;
	return NULL;
}

void
ist__cgroup_each(const char *cgroup, const char *root, const char *controller,
	void (*look)(void *ctx, const char *dir, bool second_version), void *ctx)
{
	char text[8192], dir[PATH_MAX], *save = NULL;

	if (!ist__slurp(cgroup, text, sizeof(text)))
		return;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		bool second = false;
		const char *path = path_in(line, controller, &second);
		size_t top;

		if (!path)
			continue;
		snprintf(dir, sizeof(dir), "%s%s%s%s", root, second ? "" : "/", second ? "" : controller, strcmp(path, "/") ? path : "");
		top = strlen(root) + (second ? 0 : 1 + strlen(controller));
		for (char *slash = dir + strlen(dir); slash && (size_t)(slash - dir) >= top; slash = strrchr(dir, '/')) {
			*slash = 0;
			look(ctx, dir, second);
		}
	}
}
