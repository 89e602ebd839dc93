/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <limits.h>
#include <time.h>

int64_t
ist__now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t
ist__deadline(int64_t timeout_ns, int64_t fallback_ns)
{
	int64_t at;

	if (timeout_ns == 0)
		timeout_ns = fallback_ns;
	if (timeout_ns < 0 || __builtin_add_overflow(ist__now(), timeout_ns, &at))
		return IST__NEVER;
	return at;
}

int
ist__poll_ms(int64_t deadline, int cap_ms)
{
	int64_t left;

	if (deadline == IST__NEVER)
		return cap_ms;
	left = deadline - ist__now();
	if (left <= 0)
		return 0;
	left = left / IST__MS + 1;
	if (cap_ms >= 0 && left > cap_ms)
		return cap_ms;
	return left > INT_MAX ? INT_MAX : (int)left;
}
