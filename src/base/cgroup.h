/* SPDX-License-Identifier: Apache-2.0
 *
 * cgroup.h - where the control groups around this process are, in either version of their file system, for who wants to
 * read a limit there.
 */
#ifndef ISTHMUS_BASE_CGROUP_H
#define ISTHMUS_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>

#define IST__CGROUP_SELF "/proc/self/cgroup"
#define IST__CGROUP_ROOT "/sys/fs/cgroup"

/* Calls look for the group of this process and for each one around it, innermost first, in every hierarchy that may hold
 * controller ("memory", "cpu"). cgroup and root stand for the two paths above. */
void ist__cgroup_each(const char *cgroup, const char *root, const char *controller,
	void (*look)(void *ctx, const char *dir, bool second_version), void *ctx);
/* Reads a small file of the kernel, closed by a 0; false: not there, or empty. */
bool ist__slurp(const char *path, char *to, size_t room);

#endif
