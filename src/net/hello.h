/* SPDX-License-Identifier: Apache-2.0
 *
 * hello.h - the first bytes of every connection, as pure functions: no sockets here.
 *
 *     initiator                                responder
 *        hello (128 bytes, proof 0)     --->
 *                                       <---   hello (128 bytes, proof over both hellos)
 *        proof (32 bytes)               --->
 *        frames                        <--->   frames
 *
 * The responder proves first that it knows the secret, then the initiator; before that nothing is parsed but this fixed
 * form, and nothing is told but nonces and protocol ranges. Without a secret the key is the hash of nothing: then the
 * proof shows only that the other side speaks this protocol. What follows (group, generation, members) rides on a
 * connection that stands on these proofs.
 *
 *  offset  bytes
 *       0      8  "\x89ISTHMUS" (magic; the first byte is no ASCII)
 *       8      4  bytes of this hello: 128
 *      12      4  flags: 1 a secret is set
 *      16      4  lowest protocol version spoken    20   4  highest
 *      24      8  features offered                  32   8  features required of the other side
 *      40      4  library version, major<<16|minor<<8|patch
 *      44      4  mark of the group that the visit is for: the first bytes of its key; 0: for none in particular
 *      48     32  nonce
 *      80     16  member id (random, one an endpoint)
 *      96     32  proof
 *
 * All little-endian. Golden bytes of this form are kept by a test for ever.
 */
#ifndef ISTHMUS_NET_HELLO_H
#define ISTHMUS_NET_HELLO_H

#include "base/ctx.h"

enum { IST__HELLO_BYTES = 128, IST__PROOF_BYTES = 32, IST__PROOF_AT = 96, IST__KEY_BYTES = 32, IST__MEMBER_BYTES = 16 };

enum { IST__PROTO_MIN = 1, IST__PROTO_MAX = 1 };
enum ist__feature {
	IST__FEATURE_DECIDE = 1, /* outcome of a vote asked for among survivors */
	IST__FEATURE_FDS = 2,    /* descriptors over the Unix socket of a host's first member */
	IST__FEATURE_BOARD = 4,  /* members of one host compare operations in shared memory */
	IST__FEATURE_TAKERS = 8, /* broadcasts that not everybody takes */
	IST__FEATURE_SHEETS = 16, /* with a board: short byte strings that all get lie on it, and a vote ends there */
	IST__FEATURE_LANES = 32, /* a split's connections are handed over by the parent's links; descriptors come early; vote.c */
	IST__FEATURE_UUID = 64   /* members tell what their devices call themselves, where no two may be on one */
};
#define IST__FEATURES \
	(IST__FEATURE_DECIDE | IST__FEATURE_FDS | IST__FEATURE_BOARD | IST__FEATURE_TAKERS | IST__FEATURE_SHEETS | IST__FEATURE_LANES | \
	IST__FEATURE_UUID)

/* Who we are on a connection. */
struct ist__self {
	uint32_t proto_min, proto_max;
	uint64_t features, required;
	uint8_t member[IST__MEMBER_BYTES];
	const uint8_t *key; /* IST__KEY_BYTES, locked memory; lives as long as the endpoint */
	bool has_secret;
	uint32_t group; /* mark of the group that we come for; 0: none */
};

struct ist__hello {
	uint32_t flags, proto_min, proto_max, version, group;
	uint64_t features, required;
	uint8_t member[IST__MEMBER_BYTES];
};

/* What both sides have agreed on. */
struct ist__agreed {
	uint32_t proto;
	uint64_t features;
	struct ist__hello peer;
};

void ist__hello_make(const struct ist__self *self, uint8_t out[IST__HELLO_BYTES]); /* proof left 0, fresh nonce */
/* WRONG_PEER when these can't be the first bytes of one of us: n may be fewer than a hello, then only what is there is
 * looked at. */
ist_err ist__hello_look(const uint8_t *at, uint64_t n, struct ist_error *err);
uint32_t ist__hello_group(const uint8_t at[IST__HELLO_BYTES]); /* the mark alone, whatever version speaks */
/* The whole hello: VERSION_MISMATCH with both ranges, BAD_SECRET where just one side has one. */
ist_err ist__hello_read(const struct ist__self *self, const uint8_t at[IST__HELLO_BYTES], struct ist__agreed *out, struct ist_error *err);
enum ist__side { IST__RESPONDER = 1, IST__INITIATOR = 2 };
/* first: the initiator's hello, second: the responder's; their proof fields do not count. */
void ist__hello_prove(const struct ist__self *self, enum ist__side side, const uint8_t first[IST__HELLO_BYTES],
	const uint8_t second[IST__HELLO_BYTES], uint8_t out[IST__PROOF_BYTES]);
/* BAD_SECRET when got is not the proof of that side. */
ist_err ist__hello_check(const struct ist__self *self, enum ist__side side, const uint8_t first[IST__HELLO_BYTES],
	const uint8_t second[IST__HELLO_BYTES], const uint8_t got[IST__PROOF_BYTES], struct ist_error *err);

/* The key of a secret; bytes 0: of no secret. */
void ist__hello_key(const void *secret, uint64_t bytes, uint8_t out[IST__KEY_BYTES]);

#endif
