/* SPDX-License-Identifier: Apache-2.0
 *
 * stranger.h - the other end of a connection, byte by byte: blocking sockets and the pure functions of the hello, to say
 * what no library of ours would say. Every read has a deadline of 20 s.
 */
#ifndef ISTHMUS_TESTS_STRANGER_H
#define ISTHMUS_TESTS_STRANGER_H

#include "group/endpoint.h"

struct stranger {
	int fd;
	struct ist__self self;
	uint8_t key[IST__KEY_BYTES];
	uint8_t said[IST__HELLO_BYTES], heard[IST__HELLO_BYTES], proof[IST__PROOF_BYTES];
};

/* One of this version with a random member id. secret may be NULL. */
void stranger_init(struct stranger *s, const void *secret, uint64_t bytes);
void stranger_dial(struct stranger *s, const union ist__sockaddr *at);
void stranger_send(struct stranger *s, const void *at, uint64_t n); /* a connection that has ended is no failure here */
bool stranger_read(struct stranger *s, void *at, uint64_t n);       /* false: it ended before */
bool stranger_ended(struct stranger *s);                             /* reads to the end; false: none in time */
void stranger_close(struct stranger *s);
/* The initiator's side; true when the responder's proof holds. The own proof is sent. */
bool stranger_hello(struct stranger *s);
void stranger_header(uint8_t out[IST__FRAME_HEADER], uint32_t bytes, uint16_t type, uint16_t flags, uint64_t seq, uint64_t generation,
	uint32_t from, uint32_t to);
void stranger_frame(struct stranger *s, uint16_t type, uint16_t flags, uint64_t seq, const void *body, uint32_t bytes);
/* Reads one frame: its type, 0 when the connection ended. */
uint16_t stranger_answer(struct stranger *s, void *body, uint32_t room, uint32_t *bytes);
/* Where an endpoint listens. */
union ist__sockaddr stranger_at(struct ist_endpoint *ep);
/* By what members of a group that meets under a name are matched. */
void stranger_group_key(const char *name, uint8_t out[IST__GROUP_KEY]);

#endif
