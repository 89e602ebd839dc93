/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digest.h"

#include "base/bytes.h"
#include "base/digest_leaf.h"

#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the state's size */
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct ist__hasher), "room for a state");

static void
canonical(XXH128_hash_t h, struct ist__digest *out)
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, h);
	memcpy(out->b, c.digest, sizeof(out->b));
}

void
ist__digest_leaves(const void *addr, uint64_t bytes, struct ist__digest *out_leaves)
{
	const uint8_t *at = addr;
	bool wide = ist__leaf_avx2_usable();

	for (uint64_t i = 0; bytes > 0; i++) {
		uint64_t n = bytes < IST__LEAF_BYTES ? bytes : IST__LEAF_BYTES;

		if (wide)
			ist__leaf_avx2(at, n, out_leaves[i].b);
		else
			canonical(XXH3_128bits(at, n), &out_leaves[i]);
		at += n;
		bytes -= n;
	}
}

void
ist__digest_fold(const struct ist__digest *leaves, uint64_t bytes, struct ist__digest *out)
{
	struct ist__hasher h;
	uint8_t count[8];

	ist__hasher_init(&h);
	ist__hasher_add(&h, leaves, ist__leaf_count(bytes) * sizeof(*leaves));
	ist__store_u64(count, bytes);
	ist__hasher_add(&h, count, sizeof(count));
	ist__hasher_end(&h, out);
}

void
ist__digest_memory(const void *addr, uint64_t bytes, struct ist__digest *out)
{
	struct ist__digester d;

	ist__digester_init(&d);
	ist__digester_add(&d, addr, bytes);
	ist__digester_end(&d, out);
}

void
ist__digest_flat(const void *addr, uint64_t bytes, struct ist__digest *out)
{
	canonical(XXH3_128bits(addr, bytes), out);
}

bool
ist__digest_equal(const struct ist__digest *a, const struct ist__digest *b)
{
	return !memcmp(a->b, b->b, sizeof(a->b));
}

void
ist__digest_text(const struct ist__digest *digest, char *text)
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 0; i < 16; i++) {
		text[2 * i] = hex[digest->b[i] >> 4];
		text[2 * i + 1] = hex[digest->b[i] & 15];
	}
	text[32] = 0;
}

static int
hex_value(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool
ist__digest_parse(const char *text, struct ist__digest *out)
{
	struct ist__digest d;

	if (strnlen(text, 33) != 32)
		return false;
	for (int i = 0; i < 16; i++) {
		int hi = hex_value(text[2 * i]), lo = hex_value(text[2 * i + 1]);

		if (hi < 0 || lo < 0)
			return false;
		d.b[i] = (uint8_t)(hi << 4 | lo);
	}
	*out = d;
	return true;
}

/* ---- in pieces ---- */

static XXH3_state_t *
state_of(struct ist__hasher *h)
{
	void *p = h->state;

	return p;
}

void
ist__hasher_init(struct ist__hasher *h)
{
	memset(h, 0, sizeof(*h)); /* reset leaves the buffer alone, and end copies it */
	XXH3_INITSTATE(state_of(h));
	XXH3_128bits_reset(state_of(h));
}

void
ist__hasher_add(struct ist__hasher *h, const void *addr, uint64_t bytes)
{
	if (bytes > 0)
		XXH3_128bits_update(state_of(h), addr, bytes);
}

void
ist__hasher_end(const struct ist__hasher *h, struct ist__digest *out)
{
	struct ist__hasher copy = *h;

	canonical(XXH3_128bits_digest(state_of(&copy)), out);
}

void
ist__digester_init(struct ist__digester *d)
{
	ist__hasher_init(&d->fold);
	ist__hasher_init(&d->leaf);
	d->bytes = 0;
}

static void
end_leaf(struct ist__digester *d)
{
	struct ist__digest leaf;

	ist__hasher_end(&d->leaf, &leaf);
	ist__hasher_add(&d->fold, leaf.b, sizeof(leaf.b));
	XXH3_128bits_reset(state_of(&d->leaf));
}

void
ist__digester_add(struct ist__digester *d, const void *addr, uint64_t bytes)
{
	const uint8_t *at = addr;
	struct ist__digest leaf;

	while (bytes > 0) {
		uint64_t begun = d->bytes % IST__LEAF_BYTES, n = IST__LEAF_BYTES - begun;

		n = n < bytes ? n : bytes;
		if (n == IST__LEAF_BYTES) {
			ist__digest_leaves(at, n, &leaf);
			ist__hasher_add(&d->fold, leaf.b, sizeof(leaf.b));
		} else {
			ist__hasher_add(&d->leaf, at, n);
			if (begun + n == IST__LEAF_BYTES)
				end_leaf(d);
		}
		at += n;
		bytes -= n;
		d->bytes += n;
	}
}

void
ist__digester_end(struct ist__digester *d, struct ist__digest *out)
{
	uint8_t count[8];

	if (d->bytes % IST__LEAF_BYTES != 0)
		end_leaf(d);
	ist__store_u64(count, d->bytes);
	ist__hasher_add(&d->fold, count, sizeof(count));
	ist__hasher_end(&d->fold, out);
}

void
ist__digest_add_tensor(struct ist__hasher *h, const char *name, const char *dtype, const uint64_t *shape, uint32_t rank,
	const struct ist__digest *digest)
{
	uint8_t word[8];
	uint64_t n = strlen(name);

	ist__store_u32(word, (uint32_t)n);
	ist__hasher_add(h, word, 4);
	ist__hasher_add(h, name, n);
	ist__hasher_add(h, dtype, strlen(dtype));
	ist__store_u32(word, rank);
	ist__hasher_add(h, word, 4);
	for (uint32_t i = 0; i < rank; i++) {
		ist__store_u64(word, shape[i]);
		ist__hasher_add(h, word, 8);
	}
	ist__hasher_add(h, digest->b, sizeof(digest->b));
}
