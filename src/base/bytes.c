/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"

#include "base/slab.h"

#include <string.h>

void
ist__writer_init(struct ist__writer *w, const struct ist__ctx *ctx)
{
	*w = (struct ist__writer){ .ctx = ctx };
}

void
ist__writer_init_slab(struct ist__writer *w, struct ist__slab *slab)
{
	*w = (struct ist__writer){ .ctx = slab->ctx, .slab = slab };
}

void
ist__writer_fini(struct ist__writer *w)
{
	if (w->slab)
		ist__slab_put(w->slab, w->at);
	else
		ist__free(w->ctx, w->at);
	*w = (struct ist__writer){ .ctx = w->ctx, .slab = w->slab };
}

static bool
writer_grow(struct ist__writer *w, uint64_t need)
{
	uint64_t room = w->room ? w->room * 2 : 256;
	void *at = w->at;

	if (!w->slab) {
		if (!ist__grow(w->ctx, &at, &w->room, need, 1))
			return false;
		w->at = at;
		return true;
	}
	if (need <= w->room)
		return true;
	room = room < need ? need : room;
	at = ist__slab_get(w->slab, room);
	if (!at)
		return false;
	if (w->bytes > 0)
		memcpy(at, w->at, w->bytes);
	ist__slab_put(w->slab, w->at);
	w->at = at;
	w->room = room;
	return true;
}

void
ist__put_bytes(struct ist__writer *w, const void *addr, uint64_t bytes)
{
	uint64_t need;

	if (w->bad || __builtin_add_overflow(w->bytes, bytes, &need) || !writer_grow(w, need)) {
		w->bad = true;
		return;
	}
	if (bytes > 0)
		memcpy(w->at + w->bytes, addr, bytes);
	w->bytes = need;
}

void
ist__put_u8(struct ist__writer *w, uint8_t v)
{
	ist__put_bytes(w, &v, 1);
}

void
ist__put_u16(struct ist__writer *w, uint16_t v)
{
	uint8_t b[2] = { (uint8_t)v, (uint8_t)(v >> 8) };

	ist__put_bytes(w, b, 2);
}

void
ist__put_u32(struct ist__writer *w, uint32_t v)
{
	uint8_t b[4];

	ist__store_u32(b, v);
	ist__put_bytes(w, b, 4);
}

void
ist__put_u64(struct ist__writer *w, uint64_t v)
{
	uint8_t b[8];

	ist__store_u64(b, v);
	ist__put_bytes(w, b, 8);
}

void
ist__put_blob(struct ist__writer *w, const void *addr, uint64_t bytes)
{
	ist__put_u64(w, bytes);
	ist__put_bytes(w, addr, bytes);
}

void
ist__put_str(struct ist__writer *w, const char *s)
{
	size_t n = strlen(s);

	ist__put_u32(w, (uint32_t)n);
	ist__put_bytes(w, s, n);
}

void
ist__reader_init(struct ist__reader *r, const void *addr, uint64_t bytes)
{
	*r = (struct ist__reader){ .at = addr, .left = bytes };
}

const void *
ist__get_bytes(struct ist__reader *r, uint64_t bytes)
{
	const uint8_t *at = r->at;

	if (r->bad || bytes > r->left) {
		r->bad = true;
		return NULL;
	}
	if (bytes > 0)
		r->at += bytes;
	r->left -= bytes;
	return at ? at : (const void *)"";
}

uint8_t
ist__get_u8(struct ist__reader *r)
{
	const uint8_t *b = ist__get_bytes(r, 1);

	return b ? b[0] : 0;
}

uint16_t
ist__get_u16(struct ist__reader *r)
{
	const uint8_t *b = ist__get_bytes(r, 2);

	return b ? (uint16_t)(b[0] | (uint32_t)b[1] << 8) : 0;
}

uint32_t
ist__get_u32(struct ist__reader *r)
{
	const uint8_t *b = ist__get_bytes(r, 4);

	return b ? ist__load_u32(b) : 0;
}

uint64_t
ist__get_u64(struct ist__reader *r)
{
	const uint8_t *b = ist__get_bytes(r, 8);

	return b ? ist__load_u64(b) : 0;
}

const void *
ist__get_blob(struct ist__reader *r, uint64_t *bytes)
{
	*bytes = ist__get_u64(r);
	return ist__get_bytes(r, *bytes);
}

bool
ist__get_str(struct ist__reader *r, char *to, uint64_t room)
{
	uint32_t n = ist__get_u32(r);
	const void *at = ist__get_bytes(r, n);

	if (!at || n >= room || memchr(at, 0, n)) {
		r->bad = true;
		to[0] = 0;
		return false;
	}
	memcpy(to, at, n);
	to[n] = 0;
	return true;
}

/* Bytes of the sequence at b (n are left), 0 when it is none. Unicode 15, table 3-7. */
static uint64_t
utf8_one(const uint8_t *b, uint64_t n)
{
	uint8_t lo = 0x80, hi = 0xBF;
	uint64_t more;

	if (b[0] < 0x80)
		return 1;
	if (b[0] < 0xC2 || b[0] > 0xF4)
		return 0;
	more = b[0] < 0xE0 ? 1 : b[0] < 0xF0 ? 2 : 3;
	if (n <= more)
		return 0;
	if (b[0] == 0xE0)
		lo = 0xA0;
	else if (b[0] == 0xED)
		hi = 0x9F;
	else if (b[0] == 0xF0)
		lo = 0x90;
	else if (b[0] == 0xF4)
		hi = 0x8F;
	if (b[1] < lo || b[1] > hi)
		return 0;
	for (uint64_t i = 2; i <= more; i++)
		if ((b[i] & 0xC0) != 0x80)
			return 0;
	return more + 1;
}

uint64_t
ist__utf8_valid(const void *addr, uint64_t bytes)
{
	const uint8_t *b = addr;
	uint64_t i = 0, n;

	while (i < bytes && (n = utf8_one(b + i, bytes - i)) > 0)
		i += n;
	return i;
}
