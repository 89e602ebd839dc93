/* SPDX-License-Identifier: Apache-2.0
 *
 * status.h - what a meeting place knows of one member, and how that looks on the wire and in a shared folder.
 */
#ifndef ISTHMUS_MEET_STATUS_H
#define ISTHMUS_MEET_STATUS_H

#include "base/bytes.h"

#define IST__LEASE_NS (INT64_C(15) * 1000000000)
#define IST__LEASE_RENEW_NS (INT64_C(5) * 1000000000)

struct ist__status {
	char group[256];
	char host[64];
	char state[16];
	uint32_t rank;
	uint64_t pid, version, to, serves;
};

void ist__status_put(struct ist__writer *w, const struct ist__status *s);
bool ist__status_get(struct ist__reader *r, struct ist__status *s);

#endif
