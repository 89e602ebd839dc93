/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes.h - little-endian encoding and decoding with bounds. A writer grows; after its memory failed it stays bad and
 * keeps nothing. A reader that was asked for more than there is stays bad and gives zeros: check bad once, at the end.
 */
#ifndef ISTHMUS_BASE_BYTES_H
#define ISTHMUS_BASE_BYTES_H

#include "base/ctx.h"

struct ist__slab;

struct ist__writer {
	const struct ist__ctx *ctx;
	struct ist__slab *slab; /* where memory comes from instead, if not NULL */
	uint8_t *at;
	uint64_t bytes, room;
	bool bad;
};

void ist__writer_init(struct ist__writer *w, const struct ist__ctx *ctx);
void ist__writer_init_slab(struct ist__writer *w, struct ist__slab *slab); /* for what is written again and again */
void ist__writer_fini(struct ist__writer *w);
void ist__put_u8(struct ist__writer *w, uint8_t v);
void ist__put_u16(struct ist__writer *w, uint16_t v);
void ist__put_u32(struct ist__writer *w, uint32_t v);
void ist__put_u64(struct ist__writer *w, uint64_t v);
void ist__put_bytes(struct ist__writer *w, const void *addr, uint64_t bytes);  /* as they are */
void ist__put_blob(struct ist__writer *w, const void *addr, uint64_t bytes);   /* u64 length first */
void ist__put_str(struct ist__writer *w, const char *s);                       /* u32 length first, no 0 */

struct ist__reader {
	const uint8_t *at;
	uint64_t left;
	bool bad;
};

void ist__reader_init(struct ist__reader *r, const void *addr, uint64_t bytes);
uint8_t ist__get_u8(struct ist__reader *r);
uint16_t ist__get_u16(struct ist__reader *r);
uint32_t ist__get_u32(struct ist__reader *r);
uint64_t ist__get_u64(struct ist__reader *r);
const void *ist__get_bytes(struct ist__reader *r, uint64_t bytes);             /* lent; NULL when bad */
const void *ist__get_blob(struct ist__reader *r, uint64_t *bytes);
/* Into room with a closing 0. False, and bad, when it does not fit or holds a 0. */
bool ist__get_str(struct ist__reader *r, char *to, uint64_t room);

static inline void
ist__store_u32(uint8_t *to, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		to[i] = (uint8_t)(v >> (8 * i));
}

static inline void
ist__store_u64(uint8_t *to, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		to[i] = (uint8_t)(v >> (8 * i));
}

static inline uint32_t
ist__load_u32(const uint8_t *at)
{
	return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t
ist__load_u64(const uint8_t *at)
{
	return (uint64_t)ist__load_u32(at) | (uint64_t)ist__load_u32(at + 4) << 32;
}

/* Length of the longest prefix that is valid UTF-8 (no surrogates, no overlong forms, at most U+10FFFF). */
uint64_t ist__utf8_valid(const void *addr, uint64_t bytes);

#endif
