/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_hello.c - any bytes as the first ones of a connection: what is agreed on lies within what both sides said, and no
 * proof holds that was not made with the key, over these hellos, for that side.
 */
#include "fuzz.h"

#include "net/hello.h"

#include <sodium.h>

static void
look_everywhere(const uint8_t *at)
{
	bool good = true;

	for (uint64_t n = 0; n <= IST__HELLO_BYTES; n++) {
		bool now = ist__hello_look(at, n, NULL) == IST_OK;

		must(good || !now); /* more bytes never make it better */
		good = now;
	}
}

static void
check_agreed(const struct ist__self *self, const struct ist__agreed *a)
{
	must(a->proto >= self->proto_min && a->proto <= self->proto_max);
	must(a->proto >= a->peer.proto_min && a->proto <= a->peer.proto_max);
	must((a->features & ~self->features) == 0 && (a->features & ~a->peer.features) == 0);
	must((self->required & ~a->features) == 0 && (a->peer.required & ~self->features) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	uint8_t key[IST__KEY_BYTES], other[IST__KEY_BYTES], theirs[IST__HELLO_BYTES] = { 0 }, ours[IST__HELLO_BYTES], proof[IST__PROOF_BYTES];
	uint8_t how = take_u8(&in);
	enum ist__side side = how & 2 ? IST__INITIATOR : IST__RESPONDER;
	struct ist__self self = { .proto_min = 1, .proto_max = 1 + (how >> 6), .features = IST__FEATURES | 4, .required = how & 4, .key = key,
		.has_secret = how & 1 };
	struct ist__self stranger = self;
	struct ist__agreed agreed;
	struct ist_error err;
	size_t n;
	const uint8_t *at = take(&in, sizeof(theirs), &n);
	ist_err e;

	if (n > 0)
		memcpy(theirs, at, n);
	must(sodium_init() >= 0);
	ist__hello_key("a secret of enough bytes", 24, key);
	ist__hello_key("another one of enough bytes", 27, other);
	stranger.key = other;
	look_everywhere(theirs);
	ist_error_init(&err);
	e = ist__hello_read(&self, theirs, &agreed, &err);
	must(e == err.code && (e == IST_OK || e == IST_WRONG_PEER || e == IST_VERSION_MISMATCH || e == IST_BAD_SECRET));
	if (!e)
		check_agreed(&self, &agreed);
	ist__hello_make(&self, ours);
	must(ist__hello_check(&self, side, ours, theirs, theirs + IST__PROOF_AT, NULL) == IST_BAD_SECRET);
	ist__hello_prove(&self, side, ours, theirs, proof);
	must(ist__hello_check(&self, side, ours, theirs, proof, NULL) == IST_OK);
	must(ist__hello_check(&self, side == IST__INITIATOR ? IST__RESPONDER : IST__INITIATOR, ours, theirs, proof, NULL) == IST_BAD_SECRET);
	must(ist__hello_check(&stranger, side, ours, theirs, proof, NULL) == IST_BAD_SECRET);
	proof[how % IST__PROOF_BYTES] ^= 1;
	must(ist__hello_check(&self, side, ours, theirs, proof, NULL) == IST_BAD_SECRET);
	return 0;
}
