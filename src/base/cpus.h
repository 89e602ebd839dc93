/* SPDX-License-Identifier: Apache-2.0
 *
 * cpus.h - how many CPUs this process may keep busy: those that it may run on, and no more than the quota of the control
 * groups around it. The machine's own number is neither.
 */
#ifndef ISTHMUS_BASE_CPUS_H
#define ISTHMUS_BASE_CPUS_H

#include <stdint.h>

/* At least 1; a part of a CPU counts as one. */
uint32_t ist__cpus(void);
/* The same where the quota is known already. */
uint32_t ist__cpus_of(uint32_t quota);
/* What the quota alone allows, with /proc/self/cgroup and /sys/fs/cgroup elsewhere; UINT32_MAX: there is none. */
uint32_t ist__cpu_quota_at(const char *cgroup, const char *root);

#endif
