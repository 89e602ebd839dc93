/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.cu - XXH3-128 (seed 0, canonical) of each leaf of 64 KiB, on a GPU. Eight lanes of a warp share a leaf, and each keeps one
 * of the eight sums that the algorithm has, so that a warp reads four leaves at once, 64 bytes of each at a time. Made into
 * digest_ptx.c by scripts/gen-ptx; nothing of it needs a header of CUDA's. Compiled as C, with CHECK_ON_HOST, it is the same
 * arithmetic lane by lane (tests/cuda_digest_test.c).
 */
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef CHECK_ON_HOST
#define DEVICE static
#define APART static
#define TABLE static const
#else
#define DEVICE __attribute__((device)) static inline
#define APART __attribute__((device, noinline)) static
#define TABLE __attribute__((device)) static const
#endif

#define LEAF 65536ull
#define STRIPE 64u
#define BLOCK 16u /* stripes */

struct hash {
	u64 low, high;
};

/* The algorithm's default secret, as little-endian words. */
TABLE u64 secret_words[24] = {
	0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
	0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
	0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
	0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
	0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
	0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};

#define P32_1 0x9E3779B1u
#define P32_2 0x85EBCA77u
#define P32_3 0xC2B2AE3Du
#define P64_1 0x9E3779B185EBCA87ull
#define P64_2 0xC2B2AE3D27D4EB4Full
#define P64_3 0x165667B19E3779F9ull
#define P64_4 0x85EBCA77C2B2AE63ull
#define P64_5 0x27D4EB2F165667C5ull
#define MX1 0x165667919E3779F9ull
#define MX2 0x9FB21C651E98DF25ull

TABLE u64 first_sums[8] = { P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1 };

/* ---- reading ---- */

/* Of any alignment. The loads lie within the word's own bytes. */
DEVICE u64
word(const u8 *p)
{
	u64 w = 0;

	for (u32 i = 0; i < 8; i++)
		w |= (u64)p[i] << 8 * i;
	return w;
}

DEVICE u64
aligned_word(const u8 *p)
{
	return *(const u64 *)(const void *)p;
}

DEVICE u32
half(const u8 *p)
{
	return (u32)p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
}

DEVICE u64
secret(u32 at)
{
	u32 w = at / 8, shift = at % 8 * 8;

	return shift ? secret_words[w] >> shift | secret_words[w + 1] << (64 - shift) : secret_words[w];
}

/* ---- arithmetic ---- */

DEVICE u64
swap64(u64 x)
{
	x = (x & 0x00FF00FF00FF00FFull) << 8 | (x >> 8 & 0x00FF00FF00FF00FFull);
	x = (x & 0x0000FFFF0000FFFFull) << 16 | (x >> 16 & 0x0000FFFF0000FFFFull);
	return x << 32 | x >> 32;
}

DEVICE struct hash
wide(u64 a, u64 b)
{
	unsigned __int128 m = (unsigned __int128)a * b;
	struct hash h = { (u64)m, (u64)(m >> 64) };

	return h;
}

DEVICE u64
fold(u64 a, u64 b)
{
	struct hash h = wide(a, b);

	return h.low ^ h.high;
}

DEVICE u64
spread(u64 h)
{
	h ^= h >> 37;
	h *= MX1;
	return h ^ h >> 32;
}

DEVICE u64
spread64(u64 h)
{
	h ^= h >> 33;
	h *= P64_2;
	h ^= h >> 29;
	h *= P64_3;
	return h ^ h >> 32;
}

/* ---- up to 16 bytes ---- */

DEVICE struct hash
of_1_to_3(const u8 *p, u32 n)
{
	u32 low = (u32)p[0] << 16 | (u32)p[n / 2] << 24 | (u32)p[n - 1] | n << 8;
	u32 turned = (u32)(swap64(low) >> 32), high = turned << 13 | turned >> 19;
	struct hash h = { spread64((u64)low ^ ((u32)secret(0) ^ (u32)(secret(0) >> 32))), spread64((u64)high ^ ((u32)secret(8) ^ (u32)(secret(8) >> 32))) };

	return h;
}

DEVICE struct hash
of_4_to_8(const u8 *p, u32 n)
{
	u64 both = half(p) + ((u64)half(p + n - 4) << 32);
	struct hash m = wide(both ^ secret(16) ^ secret(24), P64_1 + ((u64)n << 2));

	m.high += m.low << 1;
	m.low ^= m.high >> 3;
	m.low ^= m.low >> 35;
	m.low *= MX2;
	m.low ^= m.low >> 28;
	m.high = spread(m.high);
	return m;
}

DEVICE struct hash
of_9_to_16(const u8 *p, u32 n)
{
	u64 low = word(p), high = word(p + n - 8);
	struct hash m = wide(low ^ high ^ secret(32) ^ secret(40), P64_1), h;

	m.low += (u64)(n - 1) << 54;
	high ^= secret(48) ^ secret(56);
	m.high += high + (u64)(u32)high * (P32_2 - 1);
	m.low ^= swap64(m.high);
	h = wide(m.low, P64_2);
	h.high += m.high * P64_2;
	h.low = spread(h.low);
	h.high = spread(h.high);
	return h;
}

/* ---- up to 240 bytes ---- */

DEVICE u64
mix16(const u8 *p, u32 s)
{
	return fold(word(p) ^ secret(s), word(p + 8) ^ secret(s + 8));
}

DEVICE void
mix32(struct hash *h, const u8 *a, const u8 *b, u32 s)
{
	h->low += mix16(a, s);
	h->low ^= word(b) + word(b + 8);
	h->high += mix16(b, s + 16);
	h->high ^= word(a) + word(a + 8);
}

DEVICE struct hash
end_of_middle(struct hash sum, u32 n)
{
	struct hash h = { spread(sum.low + sum.high), 0 - spread(sum.low * P64_1 + sum.high * P64_4 + (u64)n * P64_2) };

	return h;
}

DEVICE struct hash
of_17_to_128(const u8 *p, u32 n)
{
	struct hash sum = { n * P64_1, 0 };

	if (n > 96)
		mix32(&sum, p + 48, p + n - 64, 96);
	if (n > 64)
		mix32(&sum, p + 32, p + n - 48, 64);
	if (n > 32)
		mix32(&sum, p + 16, p + n - 32, 32);
	mix32(&sum, p, p + n - 16, 0);
	return end_of_middle(sum, n);
}

DEVICE struct hash
of_129_to_240(const u8 *p, u32 n)
{
	struct hash sum = { n * P64_1, 0 };
	u32 i;

	for (i = 32; i < 160; i += 32)
		mix32(&sum, p + i - 32, p + i - 16, i - 32);
	sum.low = spread(sum.low);
	sum.high = spread(sum.high);
	for (i = 160; i <= n; i += 32)
		mix32(&sum, p + i - 32, p + i - 16, 3 + i - 160);
	mix32(&sum, p + n - 16, p + n - 32, 136 - 17 - 16);
	return end_of_middle(sum, n);
}

APART struct hash
of_short(const u8 *p, u32 n)
{
	struct hash none = { spread64(secret(64) ^ secret(72)), spread64(secret(80) ^ secret(88)) };

	return n == 0 ? none : n < 4 ? of_1_to_3(p, n) : n < 9 ? of_4_to_8(p, n) : n < 17 ? of_9_to_16(p, n) : n < 129 ? of_17_to_128(p, n) : of_129_to_240(p, n);
}

/* ---- longer ---- */

/* What one lane's sum takes from a stripe: its own word, and its neighbour's. */
DEVICE u64
take(u64 sum, u64 own, u64 neighbours, u64 key)
{
	u64 keyed = own ^ key;

	return sum + neighbours + (u64)(u32)keyed * (keyed >> 32);
}

DEVICE u64
scramble(u64 sum, u32 lane)
{
	sum ^= sum >> 47;
	sum ^= secret(128 + 8 * lane);
	return sum * P32_1;
}

DEVICE u64
merge(const u64 *sums, u32 s, u64 start)
{
	for (u32 i = 0; i < 8; i += 2)
		start += fold(sums[i] ^ secret(s + 8 * i), sums[i + 1] ^ secret(s + 8 * i + 8));
	return spread(start);
}

DEVICE struct hash
end_of_long(const u64 *sums, u64 n)
{
	struct hash h = { merge(sums, 11, n * P64_1), merge(sums, 192 - 64 - 11, ~(n * P64_2)) };

	return h;
}

DEVICE void
put(u8 *to, struct hash h)
{
	for (u32 i = 0; i < 8; i++) {
		to[i] = (u8)(h.high >> (56 - 8 * i));
		to[8 + i] = (u8)(h.low >> (56 - 8 * i));
	}
}

#ifndef CHECK_ON_HOST

#define ENTRIES 140u

/* As in cuda_digest.c: a whole argument of a kernel may have 4 KiB. */
struct batch {
	u32 n, leaves;
	u32 first[ENTRIES + 2]; /* leaf that entry i begins with; behind the last one: leaves */
	u64 src[ENTRIES], dst[ENTRIES], bytes[ENTRIES];
};

DEVICE u64
from_neighbour(u64 x, u32 mask)
{
	u32 low = (u32)__nvvm_shfl_sync_bfly_i32((int)mask, (int)(u32)x, 1, 0x1f), high = (u32)__nvvm_shfl_sync_bfly_i32((int)mask, (int)(u32)(x >> 32), 1, 0x1f);

	return (u64)high << 32 | low;
}

DEVICE u64
from_lane(u64 x, u32 lane, u32 mask)
{
	u32 low = (u32)__nvvm_shfl_sync_idx_i32((int)mask, (int)(u32)x, (int)lane, 0x181f), high = (u32)__nvvm_shfl_sync_idx_i32((int)mask, (int)(u32)(x >> 32), (int)lane, 0x181f);

	return (u64)high << 32 | low;
}

/* Blocks of an aligned leaf: all of a block's words are on their way before the first is looked at. */
DEVICE u64
sum_of_blocks(u64 sum, const u8 *at, u64 blocks, u32 lane, u32 mask)
{
	u64 keys[BLOCK];

#pragma unroll
	for (u32 i = 0; i < BLOCK; i++)
		keys[i] = secret_words[lane + i];
	for (u64 b = 0; b < blocks; b++, at += BLOCK * STRIPE) {
		u64 words[BLOCK];

#pragma unroll
		for (u32 i = 0; i < BLOCK; i++)
			words[i] = aligned_word(at + i * STRIPE);
#pragma unroll
		for (u32 i = 0; i < BLOCK; i++)
			sum = take(sum, words[i], from_neighbour(words[i], mask), keys[i]);
		sum = scramble(sum, lane);
	}
	return sum;
}

/* The sum of this lane over a leaf of more than 240 bytes. */
DEVICE u64
sum_of(const u8 *p, u64 n, u32 lane, u32 mask)
{
	u64 sum = first_sums[lane], last;
	u64 blocks = (n - 1) / (BLOCK * STRIPE), stripes = (n - 1 - blocks * BLOCK * STRIPE) / STRIPE;
	const u8 *at = p + 8 * lane;

	if (((u64)p & 7) == 0) {
		sum = sum_of_blocks(sum, at, blocks, lane, mask);
		at += blocks * BLOCK * STRIPE;
		blocks = 0;
	}
#pragma unroll 1
	for (u64 i = 0; i < blocks * BLOCK; i++, at += STRIPE) {
		u64 own = word(at);

		sum = take(sum, own, from_neighbour(own, mask), secret_words[lane + i % BLOCK]);
		if (i % BLOCK == BLOCK - 1)
			sum = scramble(sum, lane);
	}
#pragma unroll 1
	for (u64 i = 0; i < stripes; i++) {
		u64 own = word(at + i * STRIPE);

		sum = take(sum, own, from_neighbour(own, mask), secret_words[lane + i]);
	}
	last = word(p + n - STRIPE + 8 * lane);
	return take(sum, last, from_neighbour(last, mask), secret(192 - 64 - 7 + 8 * lane));
}

DEVICE u32
entry_of(const struct batch *b, u32 leaf)
{
	u32 lo = 0, hi = b->n;

	while (hi - lo > 1) {
		u32 mid = (lo + hi) / 2;

		if (b->first[mid] <= leaf)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

extern "C" __attribute__((global)) void
isthmus_digest(struct batch b)
{
	u32 thread = (u32)__nvvm_read_ptx_sreg_ctaid_x() * (u32)__nvvm_read_ptx_sreg_ntid_x() + (u32)__nvvm_read_ptx_sreg_tid_x();
	u32 leaf = thread / 8, lane = thread % 8, mask = 0xFFu << (thread & 24), e;
	u64 offset, n, sums[8], sum;
	const u8 *p;

	if (leaf >= b.leaves)
		return;
	e = entry_of(&b, leaf);
	offset = (u64)(leaf - b.first[e]) * LEAF;
	n = b.bytes[e] - offset < LEAF ? b.bytes[e] - offset : LEAF;
	p = (const u8 *)b.src[e] + offset;
	if (n <= 240) {
		if (lane == 0)
			put((u8 *)b.dst[e] + (u64)(leaf - b.first[e]) * 16, of_short(p, (u32)n));
		return;
	}
	sum = sum_of(p, n, lane, mask);
#pragma unroll
	for (u32 i = 0; i < 8; i++)
		sums[i] = from_lane(sum, i, mask);
	if (lane == 0)
		put((u8 *)b.dst[e] + (u64)(leaf - b.first[e]) * 16, end_of_long(sums, n));
}
#endif
