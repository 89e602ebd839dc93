/* SPDX-License-Identifier: Apache-2.0
 *
 * card.h - what a member tells of itself so that others can reach it: the opaque bytes of ist_endpoint_address.
 */
#ifndef ISTHMUS_GROUP_CARD_H
#define ISTHMUS_GROUP_CARD_H

#include "base/bytes.h"
#include "net/hello.h"

struct ist__card {
	uint8_t id[IST__MEMBER_BYTES];
	uint8_t host_hint[16]; /* equal on members that may share a host: boot and network namespace */
	uint8_t local[16];     /* random name of the abstract Unix socket */
	uint64_t pid;
	char host[64];
	char addr[96];         /* HOST:PORT as advertised */
};

void ist__card_put(struct ist__writer *w, const struct ist__card *card);
bool ist__card_get(struct ist__reader *r, struct ist__card *card);
/* host_hint, pid and host of this process. */
void ist__card_here(struct ist__card *card);

#endif
