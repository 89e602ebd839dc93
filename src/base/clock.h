/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h - CLOCK_MONOTONIC in nanoseconds, and deadlines as points on it. INT64_MAX: never.
 */
#ifndef ISTHMUS_BASE_CLOCK_H
#define ISTHMUS_BASE_CLOCK_H

#include <stdint.h>

#define IST__MS INT64_C(1000000)
#define IST__NEVER INT64_MAX

int64_t ist__now(void);
/* timeout_ns as the public headers have it: 0: fallback_ns; negative: never. */
int64_t ist__deadline(int64_t timeout_ns, int64_t fallback_ns);
/* Milliseconds until then for poll: 0 when it has passed, rounded up, at most cap_ms; -1 (for ever) only when cap_ms < 0. */
int ist__poll_ms(int64_t deadline, int cap_ms);

#endif
