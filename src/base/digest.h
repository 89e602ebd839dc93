/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.h - the digests that prove arrival; docs/digest.md has the format. A leaf covers 64 KiB (the last one what is
 * left); leaves are computed on their own, in any order, by anybody, and folded in order into the digest of a tensor.
 * XXH3-128 finds damage, not malice.
 */
#ifndef ISTHMUS_BASE_DIGEST_H
#define ISTHMUS_BASE_DIGEST_H

#include <stdbool.h>
#include <stdint.h>

#define IST__LEAF_BYTES UINT64_C(65536)

/* Canonical: big-endian, as the text has it. */
struct ist__digest {
	uint8_t b[16];
};

static inline uint64_t
ist__leaf_count(uint64_t bytes)
{
	return bytes / IST__LEAF_BYTES + (bytes % IST__LEAF_BYTES != 0);
}

/* Leaves of bytes at addr, which begins on a leaf's boundary: ist__leaf_count(bytes) of them. Any alignment. */
void ist__digest_leaves(const void *addr, uint64_t bytes, struct ist__digest *out_leaves);
/* Tensor of bytes from its leaves. */
void ist__digest_fold(const struct ist__digest *leaves, uint64_t bytes, struct ist__digest *out);
/* Tensor in memory, at once. */
void ist__digest_memory(const void *addr, uint64_t bytes, struct ist__digest *out);
/* Any bytes, flat: what manifests and plans are compared by. */
void ist__digest_flat(const void *addr, uint64_t bytes, struct ist__digest *out);

bool ist__digest_equal(const struct ist__digest *a, const struct ist__digest *b);
/* 32 lower-case hex digits and a 0. */
void ist__digest_text(const struct ist__digest *digest, char *text);
bool ist__digest_parse(const char *text, struct ist__digest *out);

/* A hash that takes its bytes bit by bit: for streams whose pieces keep to no boundary. */
struct ist__hasher {
	_Alignas(64) uint8_t state[576];
};
void ist__hasher_init(struct ist__hasher *h);
void ist__hasher_add(struct ist__hasher *h, const void *addr, uint64_t bytes);
void ist__hasher_end(const struct ist__hasher *h, struct ist__digest *out);

/* A tensor whose bytes come in order in pieces of any size. */
struct ist__digester {
	struct ist__hasher fold, leaf;
	uint64_t bytes;
};
void ist__digester_init(struct ist__digester *d);
void ist__digester_add(struct ist__digester *d, const void *addr, uint64_t bytes);
void ist__digester_end(struct ist__digester *d, struct ist__digest *out);

/* One tensor of a checkpoint's digest: the caller adds them sorted by the bytes of their names. */
void ist__digest_add_tensor(struct ist__hasher *h, const char *name, const char *dtype, const uint64_t *shape, uint32_t rank,
	const struct ist__digest *digest);

#endif
