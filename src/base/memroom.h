/* SPDX-License-Identifier: Apache-2.0
 *
 * memroom.h - how much memory the control groups around this process still allow. The machine may have plenty and a
 * container little: who asks for more is killed, not refused.
 */
#ifndef ISTHMUS_BASE_MEMROOM_H
#define ISTHMUS_BASE_MEMROOM_H

#include <stdbool.h>
#include <stdint.h>

/* Of the tightest group, with what can't be dropped (anonymous memory, shared memory, the kernel's) counted as used. False:
 * no limit, or none that can be read. */
bool ist__memory_room(uint64_t *limit, uint64_t *room);
/* The same with /proc/self/cgroup and /sys/fs/cgroup elsewhere. */
bool ist__memory_room_at(const char *cgroup, const char *root, uint64_t *limit, uint64_t *room);
/* What both the machine and the control groups have left; UINT64_MAX: unknown. */
uint64_t ist__memory_left(void);

#endif
