/* SPDX-License-Identifier: Apache-2.0
 *
 * mac.c - proof that both ends of a connection know the cookies which travelled over the authenticated mesh: SipHash-2-4
 * (Aumasson and Bernstein, 2012), once keyed from each cookie. The cookies themselves never go over a data connection.
 */
#include "backends/host/host.h"

#include "base/bytes.h"

static inline uint64_t
turn(uint64_t x, unsigned by)
{
	return x << by | x >> (64 - by);
}

static void
sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = turn(v[1], 13) ^ v[0];
	v[0] = turn(v[0], 32);
	v[2] += v[3];
	v[3] = turn(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = turn(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = turn(v[1], 17) ^ v[2];
	v[2] = turn(v[2], 32);
}

static void
sip_word(uint64_t v[4], uint64_t m)
{
	v[3] ^= m;
	sip_round(v);
	sip_round(v);
	v[0] ^= m;
}

/* Of whole words of msg, then what is left with the length in the top byte. */
static uint64_t
sip(const uint8_t key[16], const uint8_t *msg, uint64_t bytes)
{
	uint64_t k0 = ist__load_u64(key), k1 = ist__load_u64(key + 8), last = bytes << 56;
	uint64_t v[4] = { k0 ^ UINT64_C(0x736f6d6570736575), k1 ^ UINT64_C(0x646f72616e646f6d),
		k0 ^ UINT64_C(0x6c7967656e657261), k1 ^ UINT64_C(0x7465646279746573) };

	for (; bytes >= 8; msg += 8, bytes -= 8)
		sip_word(v, ist__load_u64(msg));
	for (uint64_t i = 0; i < bytes; i++)
		last |= (uint64_t)msg[i] << (8 * i);
	sip_word(v, last);
	v[2] ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void
ist__host_mac(const uint8_t from[COOKIE], const uint8_t to[COOKIE], const void *msg, uint64_t bytes, uint8_t out[MAC])
{
	const uint8_t *m = msg;
	uint8_t key[16];

	for (int i = 0; i < 16; i++)
		key[i] = from[i] ^ to[16 + i];
	ist__store_u64(out, sip(key, m, bytes));
	for (int i = 0; i < 16; i++)
		key[i] = from[16 + i] ^ to[i];
	ist__store_u64(out + 8, sip(key, m, bytes));
}

bool
ist__host_equal(const void *a, const void *b, uint64_t bytes)
{
	const volatile uint8_t *x = a, *y = b;
	uint8_t diff = 0;

	for (uint64_t i = 0; i < bytes; i++)
		diff |= x[i] ^ y[i];
	return diff == 0;
}
