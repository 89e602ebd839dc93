/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/check.h"

#include "base/bytes.h"
#include "base/digest.h"
#include "base/fail.h"
#include "coll/choose.h"
#include "coll/reduce.h"
#include "coll/takers.h"

#include <stdio.h>
#include <string.h>

static bool
has_root(uint32_t kind)
{
	return kind == IST_OP_BROADCAST || kind == IST_OP_GATHER || kind == IST_OP_SCATTER;
}

static bool
is_pair(uint32_t kind)
{
	return kind == IST_OP_SEND || kind == IST_OP_RECV;
}

static bool
is_reduction(uint32_t kind)
{
	return kind == IST_OP_ALL_REDUCE || kind == IST_OP_REDUCE_SCATTER;
}

/* ---- arguments ---- */

static ist_err
take(const struct ist_coll_args *args, struct ist_coll_args *out, const char *op, struct ist_error *err)
{
	uint32_t size;

	if (!args)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "args is NULL");
	size = args->struct_size;
	if (size < offsetof(struct ist_coll_args, stream))
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "struct_size %u is too small", size);
	memset(out, 0, sizeof(*out));
	memcpy(out, args, size < sizeof(*out) ? size : sizeof(*out));
	out->struct_size = sizeof(*out);
	return IST_OK;
}

static ist_err
check_peer(const struct ist__limits *l, uint32_t kind, const struct ist_coll_args *a, const char *op, struct ist_error *err)
{
	if (!has_root(kind) && !is_pair(kind))
		return IST_OK;
	if (a->peer >= l->size)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "%s %u is outside the group of %u", has_root(kind) ? "root" : "peer", a->peer,
			l->size);
	if (is_pair(kind) && a->peer == l->rank && l->size > 1)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "peer %u is this member itself", a->peer);
	return IST_OK;
}

static ist_err
check_flags(uint32_t kind, const struct ist_coll_args *a, const char *op, struct ist_error *err)
{
	uint32_t unknown = a->flags & ~((uint32_t)IST_OP_VIEW | (uint32_t)IST_COLL_AGREED);

	if (unknown)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "unknown flags 0x%x", unknown);
	if ((a->flags & IST_OP_VIEW) && kind != IST_OP_BROADCAST)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "IST_OP_VIEW is for broadcast alone");
	return IST_OK;
}

/* The set of takers; one that has everybody in it becomes NULL, so that it is the same as none given. */
static ist_err
check_takers(const struct ist__limits *l, uint32_t kind, struct ist_coll_args *a, const char *op, struct ist_error *err)
{
	uint32_t over = l->size % 64;

	if (!a->takers)
		return IST_OK;
	if (kind != IST_OP_BROADCAST)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "takers are for broadcast alone");
	if (over && a->takers[l->size / 64] >> over)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "takers lists ranks outside the group of %u", l->size);
	if (!l->takers || ist__takers_count(a->takers, a->peer, l->size) == l->size - 1)
		a->takers = NULL;
	return IST_OK;
}

/* What this rank does not use is emptied, so that nobody looks at it. */
static void
drop_unused(const struct ist__limits *l, uint32_t kind, struct ist_coll_args *a)
{
	bool root = l->rank == a->peer, src = true, dst = true;

	switch (kind) {
	case IST_OP_SEND: dst = false; break;
	case IST_OP_RECV: src = false; break;
	case IST_OP_BROADCAST: src = root, dst = !root; break;
	case IST_OP_GATHER: dst = root; break;
	case IST_OP_SCATTER: src = root; break;
	case IST_OP_BARRIER: src = dst = false; break;
	default: break;
	}
	if (!src)
		a->src = (struct ist_buf){ .device = -1 };
	if (!dst)
		a->dst = (struct ist_buf){ .device = -1 };
	if (!has_root(kind) && !is_pair(kind))
		a->peer = 0;
	if (!is_reduction(kind))
		a->dtype = a->reduce = 0;
}

/* whole must be size blocks of n bytes. */
static ist_err
check_blocks(const struct ist__limits *l, const char *which, uint64_t whole, uint64_t n, const char *op, struct ist_error *err)
{
	uint64_t need;

	if (__builtin_mul_overflow(n, (uint64_t)l->size, &need))
		return ist__fail(err, IST_OVERFLOW, op, "%u blocks of %llu bytes do not fit into 64 bits", l->size, (unsigned long long)n);
	if (whole != need)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "%s holds %llu bytes, not %u blocks of %llu", which, (unsigned long long)whole,
			l->size, (unsigned long long)n);
	return IST_OK;
}

static ist_err
check_sizes(const struct ist__limits *l, uint32_t kind, const struct ist_coll_args *a, uint64_t *n, const char *op, struct ist_error *err)
{
	bool root = l->rank == a->peer;

	switch (kind) {
	case IST_OP_SEND: *n = a->src.bytes; return IST_OK;
	case IST_OP_RECV: *n = a->dst.bytes; return IST_OK;
	case IST_OP_BARRIER: *n = 0; return IST_OK;
	case IST_OP_BROADCAST: *n = root ? a->src.bytes : a->dst.bytes; return IST_OK;
	case IST_OP_GATHER: *n = a->src.bytes; return root ? check_blocks(l, "dst", a->dst.bytes, *n, op, err) : IST_OK;
	case IST_OP_SCATTER: *n = a->dst.bytes; return root ? check_blocks(l, "src", a->src.bytes, *n, op, err) : IST_OK;
	case IST_OP_ALL_GATHER: *n = a->src.bytes; return check_blocks(l, "dst", a->dst.bytes, *n, op, err);
	case IST_OP_REDUCE_SCATTER: *n = a->dst.bytes; return check_blocks(l, "src", a->src.bytes, *n, op, err);
	default: break;
	}
	if (a->src.bytes != a->dst.bytes) /* ALL_REDUCE, ALL_TO_ALL */
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "src holds %llu bytes, dst %llu", (unsigned long long)a->src.bytes,
			(unsigned long long)a->dst.bytes);
	*n = a->src.bytes;
	if (kind == IST_OP_ALL_REDUCE)
		return IST_OK;
	*n /= l->size;
	return check_blocks(l, "src", a->src.bytes, *n, op, err);
}

static ist_err
check_reduction(const struct ist__limits *l, uint32_t kind, const struct ist_coll_args *a, uint64_t n, const char *op, struct ist_error *err)
{
	uint32_t elem = ist__elem_bytes(a->dtype);

	if (!is_reduction(kind))
		return IST_OK;
	if (a->reduce < IST_SUM || a->reduce > IST_MAX)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "reduce %u is none of sum, prod, min, max", a->reduce);
	if (elem == 0)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "unknown dtype %u", a->dtype);
	if (n % elem != 0)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "%llu bytes are no whole number of %s", (unsigned long long)n,
			ist__elem_name(a->dtype));
	if (!(l->native >> kind & 1) && !ist__reduce_has(a->dtype, a->reduce)) {
		ist_err e = ist__fail(err, IST_UNSUPPORTED, op, "%s of %s can't be computed", ist__reduce_name(a->reduce), ist__elem_name(a->dtype));

		ist__fail_next(err, "reduce I32, I64, U8, F32, F64, BF16 or F16");
		return e;
	}
	return IST_OK;
}

/* Where the buffers of this operation may lie. */
static uint64_t
memory_of(const struct ist__limits *l, uint32_t kind, const struct ist_coll_args *a)
{
	if (l->far_views && !(kind == IST_OP_BROADCAST && a->flags & IST_OP_VIEW))
		return l->mem & (1u << IST_MEM_HOST | 1u << IST_MEM_PINNED);
	return l->mem;
}

static ist_err
check_buf(uint64_t mem, const char *which, const struct ist_buf *buf, const char *op, struct ist_error *err)
{
	static const char *const names[] = { "host", "pinned host", "CUDA", "Ascend" };

	if (buf->bytes == 0)
		return IST_OK;
	if (!buf->addr)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "%s is NULL and holds %llu bytes", which, (unsigned long long)buf->bytes);
	if ((uintptr_t)buf->addr + buf->bytes < (uintptr_t)buf->addr)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "%s ends behind the end of memory", which);
	if (buf->mem > IST_MEM_ASCEND)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "%s lies in memory of unknown kind %u", which, buf->mem);
	if (!(mem >> buf->mem & 1))
		return ist__fail(err, IST_UNSUPPORTED, op, "%s lies in %s memory, which this backend can't reach", which, names[buf->mem]);
	return IST_OK;
}

static const uint64_t *
args_takers(const struct ist_coll_args *args)
{
	return IST_HAS(args, takers) ? args->takers : NULL;
}

/* Of a member that does not take and gives no room: if it is needed it will be plain memory of the line's. */
static ist_err
check_room(const struct ist__limits *l, struct ist_coll_args *a, const char *op, struct ist_error *err)
{
	if (!l->leaves_out && !(l->mem >> IST_MEM_HOST & 1))
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "dst is NULL, and this backend gives the bytes to all members, in device memory");
	a->dst = (struct ist_buf){ .bytes = a->dst.bytes, .device = -1 };
	return IST_OK;
}

static ist_err
check_overlap(uint32_t kind, const struct ist_coll_args *a, const char *op, struct ist_error *err)
{
	uintptr_t src = (uintptr_t)a->src.addr, dst = (uintptr_t)a->dst.addr;

	if (a->src.bytes == 0 || a->dst.bytes == 0 || a->src.mem != a->dst.mem || a->src.device != a->dst.device)
		return IST_OK;
	if (src + a->src.bytes <= dst || dst + a->dst.bytes <= src || (kind == IST_OP_ALL_REDUCE && src == dst))
		return IST_OK;
	return ist__fail(err, IST_INVALID_ARGUMENT, op, "src and dst overlap%s", kind == IST_OP_ALL_REDUCE ? " and are not the same" : "");
}

ist_err
ist__coll_check(const struct ist__limits *limits, uint32_t kind, const struct ist_coll_args *args, struct ist_coll_args *out, uint64_t *n,
	struct ist_error *err)
{
	const char *op = ist__kind_name(kind);
	struct ist_coll_args a;
	uint64_t bytes = 0;
	ist_err e = take(args, &a, op, err);

	if (!e)
		e = check_peer(limits, kind, &a, op, err);
	if (!e)
		e = check_flags(kind, &a, op, err);
	if (e)
		return e;
	e = check_takers(limits, kind, &a, op, err);
	if (e)
		return e;
	drop_unused(limits, kind, &a);
	e = check_sizes(limits, kind, &a, &bytes, op, err);
	if (!e)
		e = check_reduction(limits, kind, &a, bytes, op, err);
	if (!e)
		e = check_buf(memory_of(limits, kind, &a), "src", &a.src, op, err);
	if (!e && kind == IST_OP_BROADCAST && !a.dst.addr && a.peer != limits->rank && !ist__takes(args_takers(args), a.peer, limits->rank))
		e = check_room(limits, &a, op, err);
	else if (!e)
		e = check_buf(memory_of(limits, kind, &a), "dst", &a.dst, op, err);
	if (!e)
		e = check_overlap(kind, &a, op, err);
	if (e)
		return e;
	*out = a;
	*n = bytes;
	return IST_OK;
}

/* ---- fingerprints ---- */

enum { TAKERS_LISTED = 2, TAKERS_DIGEST = 4, TAKERS_COUNT_AT = 32 }; /* among the flags: what the word of the set is */

/* A broadcast has no dtype and no reduction: in their place the set itself, or a digest of one that is larger. */
static void
print_takers(const struct ist_coll_args *args, uint32_t size, uint8_t out[IST__PRINT_BYTES])
{
	uint64_t word = size > 64 || args->peer > 63 ? args->takers[0] : args->takers[0] & ~(UINT64_C(1) << args->peer);
	uint64_t flags = ist__load_u64(out + 24);
	struct ist__digest digest;

	if (size > 64) {
		ist__digest_flat(args->takers, ist__takers_words(size) * sizeof(word), &digest);
		memcpy(&word, digest.b, sizeof(word));
	}
	flags |= (size > 64 ? TAKERS_DIGEST : TAKERS_LISTED) | (uint64_t)ist__takers_count(args->takers, args->peer, size) << TAKERS_COUNT_AT;
	ist__store_u64(out + 16, word);
	ist__store_u64(out + 24, flags);
}

/* " to ranks 1, 4" */
static void
text_takers(const uint8_t print[IST__PRINT_BYTES], char *room, size_t room_bytes)
{
	uint64_t word = ist__load_u64(print + 16), flags = ist__load_u64(print + 24);
	size_t at;

	if (flags & TAKERS_DIGEST)
		snprintf(room, room_bytes, " to %u ranks (set %016llx)", (uint32_t)(flags >> TAKERS_COUNT_AT), (unsigned long long)word);
	if (!(flags & TAKERS_LISTED))
		return;
	at = (size_t)snprintf(room, room_bytes, word ? " to ranks" : " to nobody");
	for (uint32_t r = 0; r < 64 && at + 8 < room_bytes; r++)
		if (word >> r & 1)
			at += (size_t)snprintf(room + at, room_bytes - at, "%s %u", at > sizeof(" to ranks") - 1 ? "," : "", r);
}

void
ist__print_make(uint32_t kind, const struct ist_coll_args *args, uint32_t size, uint64_t n, uint8_t out[IST__PRINT_BYTES])
{
	ist__store_u32(out, kind);
	ist__store_u32(out + 4, has_root(kind) ? args->peer : 0);
	ist__store_u64(out + 8, n);
	ist__store_u32(out + 16, is_reduction(kind) ? args->dtype : 0);
	ist__store_u32(out + 20, is_reduction(kind) ? args->reduce : 0);
	ist__store_u64(out + 24, args->flags & IST_OP_VIEW);
	if (kind == IST_OP_BROADCAST && args->takers)
		print_takers(args, size, out);
}

void
ist__print_text(const uint8_t print[IST__PRINT_BYTES], char *room, uint64_t room_bytes)
{
	uint32_t kind = ist__load_u32(print);
	char more[64] = "", takers[96] = "";

	if (has_root(kind))
		snprintf(more, sizeof(more), " %s %u", kind == IST_OP_GATHER ? "to" : "from", ist__load_u32(print + 4));
	else if (is_reduction(kind))
		snprintf(more, sizeof(more), " %s %s", ist__elem_name(ist__load_u32(print + 16)), ist__reduce_name(ist__load_u32(print + 20)));
	if (kind == IST_OP_BROADCAST)
		text_takers(print, takers, sizeof(takers));
	snprintf(room, room_bytes, "%s of %llu bytes%s%s%s", ist__kind_name(kind), (unsigned long long)ist__load_u64(print + 8), more, takers,
		ist__load_u64(print + 24) & IST_OP_VIEW ? " by views" : "");
}

ist_err
ist__print_compare(uint32_t rank_a, const uint8_t a[IST__PRINT_BYTES], uint32_t rank_b, const uint8_t b[IST__PRINT_BYTES], uint64_t seq,
	struct ist_error *err)
{
	uint32_t kind = ist__load_u32(a);
	char text_a[160], text_b[160];
	ist_err e;

	if (!memcmp(a, b, IST__PRINT_BYTES))
		return IST_OK;
	ist__print_text(a, text_a, sizeof(text_a));
	ist__print_text(b, text_b, sizeof(text_b));
	e = ist__fail(err, kind == ist__load_u32(b) ? IST_MISMATCH : IST_ORDER_MISMATCH, ist__kind_name(kind),
		"operation %llu: rank %u: %s; rank %u: %s", (unsigned long long)seq, rank_a, text_a, rank_b, text_b);
	ist__fail_rank(err, rank_a);
	ist__fail_rank(err, rank_b);
	return e;
}
