/* SPDX-License-Identifier: Apache-2.0 */
#include "net/hello.h"

#include "base/bytes.h"
#include "base/fail.h"

#include <isthmus.h>

#include <sodium.h>
#include <string.h>

#define VERSION (0u << 16 | 1u << 8 | 0u)
#define FLAG_SECRET 1u

static const uint8_t magic[8] = { 0x89, 'I', 'S', 'T', 'H', 'M', 'U', 'S' };

void
ist__hello_make(const struct ist__self *self, uint8_t out[IST__HELLO_BYTES])
{
	memset(out, 0, IST__HELLO_BYTES);
	memcpy(out, magic, sizeof(magic));
	ist__store_u32(out + 8, IST__HELLO_BYTES);
	ist__store_u32(out + 12, self->has_secret ? FLAG_SECRET : 0);
	ist__store_u32(out + 16, self->proto_min);
	ist__store_u32(out + 20, self->proto_max);
	ist__store_u64(out + 24, self->features);
	ist__store_u64(out + 32, self->required);
	ist__store_u32(out + 40, VERSION);
	ist__store_u32(out + 44, self->group);
	randombytes_buf(out + 48, 32);
	memcpy(out + 80, self->member, IST__MEMBER_BYTES);
}

ist_err
ist__hello_look(const uint8_t *at, uint64_t n, struct ist_error *err)
{
	if (memcmp(at, magic, n < sizeof(magic) ? n : sizeof(magic)) != 0 ||
	    (n >= 12 && ist__load_u32(at + 8) != IST__HELLO_BYTES))
		return ist__fail(err, IST_WRONG_PEER, "hello", "something answers, but not as Isthmus");
	return IST_OK;
}

uint32_t
ist__hello_group(const uint8_t at[IST__HELLO_BYTES])
{
	return ist__load_u32(at + 44);
}

ist_err
ist__hello_read(const struct ist__self *self, const uint8_t at[IST__HELLO_BYTES], struct ist__agreed *out, struct ist_error *err)
{
	struct ist__agreed a = { .proto = 0 };
	struct ist__hello *h = &a.peer;
	ist_err e = ist__hello_look(at, IST__HELLO_BYTES, err);

	if (e)
		return e;
	h->flags = ist__load_u32(at + 12);
	h->proto_min = ist__load_u32(at + 16);
	h->proto_max = ist__load_u32(at + 20);
	h->features = ist__load_u64(at + 24);
	h->required = ist__load_u64(at + 32);
	h->version = ist__load_u32(at + 40);
	h->group = ist__hello_group(at);
	memcpy(h->member, at + 80, IST__MEMBER_BYTES);
	a.proto = h->proto_max < self->proto_max ? h->proto_max : self->proto_max;
	a.features = h->features & self->features;
	if (a.proto < h->proto_min || a.proto < self->proto_min)
		return ist__fail(err, IST_VERSION_MISMATCH, "hello", "protocol versions do not meet: ours %u-%u, the other side's %u-%u (library %u.%u.%u)",
			self->proto_min, self->proto_max, h->proto_min, h->proto_max, h->version >> 16, h->version >> 8 & 255, h->version & 255);
	if (h->required & ~self->features)
		return ist__fail(err, IST_VERSION_MISMATCH, "hello", "the other side (library %u.%u.%u, protocol %u-%u) requires features 0x%llx that this library (protocol %u-%u) lacks",
			h->version >> 16, h->version >> 8 & 255, h->version & 255, h->proto_min, h->proto_max,
			(unsigned long long)(h->required & ~self->features), self->proto_min, self->proto_max);
	if (self->required & ~h->features)
		return ist__fail(err, IST_VERSION_MISMATCH, "hello", "features 0x%llx are required here (protocol %u-%u) and the other side (library %u.%u.%u, protocol %u-%u) lacks them",
			(unsigned long long)(self->required & ~h->features), self->proto_min, self->proto_max,
			h->version >> 16, h->version >> 8 & 255, h->version & 255, h->proto_min, h->proto_max);
	if (!(h->flags & FLAG_SECRET) != !self->has_secret)
		return ist__fail(err, IST_BAD_SECRET, "hello", self->has_secret ? "a secret is set here, and the other side has none" :
			"the other side asks for a secret, and none is set here");
	*out = a;
	return IST_OK;
}

void
ist__hello_prove(const struct ist__self *self, enum ist__side side, const uint8_t first[IST__HELLO_BYTES],
	const uint8_t second[IST__HELLO_BYTES], uint8_t out[IST__PROOF_BYTES])
{
	static const char label[] = "isthmus hello 1";
	crypto_generichash_state st;
	uint8_t which = (uint8_t)side;

	crypto_generichash_init(&st, self->key, IST__KEY_BYTES, IST__PROOF_BYTES);
	crypto_generichash_update(&st, (const uint8_t *)label, sizeof(label));
	crypto_generichash_update(&st, &which, 1);
	crypto_generichash_update(&st, first, IST__PROOF_AT);
	crypto_generichash_update(&st, second, IST__PROOF_AT);
	crypto_generichash_final(&st, out, IST__PROOF_BYTES);
}

ist_err
ist__hello_check(const struct ist__self *self, enum ist__side side, const uint8_t first[IST__HELLO_BYTES],
	const uint8_t second[IST__HELLO_BYTES], const uint8_t got[IST__PROOF_BYTES], struct ist_error *err)
{
	uint8_t want[IST__PROOF_BYTES];

	ist__hello_prove(self, side, first, second, want);
	if (sodium_memcmp(want, got, sizeof(want)) != 0)
		return ist__fail(err, IST_BAD_SECRET, "hello", "the other side's proof of the secret does not hold");
	return IST_OK;
}

void
ist__hello_key(const void *secret, uint64_t bytes, uint8_t out[IST__KEY_BYTES])
{
	static const char label[] = "isthmus key 1";

	crypto_generichash(out, IST__KEY_BYTES, secret, bytes, (const uint8_t *)label, sizeof(label));
}

void
ist_proto_range(uint32_t *min, uint32_t *max)
{
	*min = IST__PROTO_MIN;
	*max = IST__PROTO_MAX;
}

const char *
ist_features(void)
{
	return "decide fds board takers sheets"; /* enum ist__feature */
}
