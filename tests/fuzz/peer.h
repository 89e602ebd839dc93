/* SPDX-License-Identifier: Apache-2.0
 *
 * peer.h - the other end of a connection for fuzz targets: blocking sockets, a hello that holds, and frames of any kind. A
 * connection that ends while something is sent is no failure; one that stays silent for long is.
 */
#ifndef ISTHMUS_TESTS_FUZZ_PEER_H
#define ISTHMUS_TESTS_FUZZ_PEER_H

#include "fuzz.h"

#include "net/conn.h"

struct peer_frame {
	uint32_t bytes, from, to;
	uint16_t type, flags;
	uint64_t seq, generation;
	uint8_t body[4096]; /* what is longer is cut off */
};

/* A member of this version without a secret. id: which, so that two can be one. */
void peer_init(struct ist__self *self, uint8_t key[IST__KEY_BYTES], uint8_t id);
void peer_put(int fd, const void *addr, size_t n);
bool peer_get(int fd, void *addr, size_t n);           /* false: it ended before */
bool peer_dials(int fd, const struct ist__self *self); /* the initiator's half of the hello */
bool peer_answers(int fd, const struct ist__self *self);
void peer_send(int fd, const struct peer_frame *head, const void *body, uint32_t bytes);
/* False: the connection has ended. */
bool peer_next(int fd, struct peer_frame *out);

#endif
