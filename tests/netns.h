/* SPDX-License-Identifier: Apache-2.0
 *
 * netns.h - a network of this process's own: lo, and an interface with 10.77.0.1/24. For children of tests only; needs
 * root and iproute2.
 */
#ifndef ISTHMUS_TESTS_NETNS_H
#define ISTHMUS_TESTS_NETNS_H

#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

/* False: not possible here; then nothing has changed but perhaps the namespace. */
static inline bool
netns_enter(void)
{
	if (unshare(CLONE_NEWNET))
		return false;
	return system("exec >/dev/null 2>&1; ip link set lo up && "
		"{ ip link add far0 type dummy || ip link add far0 type veth peer name far1; } && "
		"ip addr add 10.77.0.1/24 dev far0 && ip link set far0 up") == 0;
}

#endif
