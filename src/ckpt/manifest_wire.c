/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest_wire.c - a manifest as bytes, and digests over it. Little-endian:
 *
 *     u32 format, u64 files, each: str name, u64 bytes, u64 header_bytes
 *     u64 items, each: u8 kind, u32 file + 1 (0: memory), u64 offset, u64 bytes
 *         and for a tensor: str name, u8 dtype, u8 rank, rank x u64, u64 alias + 1 (0: none)
 *         and for a slice: str name, u8 dtype, u8 rank, rank x u64 extents, rank x u64 begin, rank x u64 shape of the whole
 *
 * A decoder allocates no more than the bytes that are present can fill.
 */
#include "ckpt/manifest.h"

#include "base/fail.h"
#include "ckpt/slice.h"

#include <stdlib.h>
#include <string.h>

#define FORMAT 1u
#define FILE_MIN (4u + 8u + 8u)
#define ITEM_MIN (1u + 4u + 8u + 8u)

static void
put_dims(struct ist__writer *w, const uint64_t *dims, uint32_t rank)
{
	for (uint32_t i = 0; i < rank; i++)
		ist__put_u64(w, dims[i]);
}

static void
put_item(struct ist__writer *w, const struct ist__item *t)
{
	ist__put_u8(w, (uint8_t)t->kind);
	ist__put_u32(w, t->file + 1); /* IST__NO_FILE becomes 0 */
	ist__put_u64(w, t->offset);
	ist__put_u64(w, t->bytes);
	if (ist__item_is_raw(t))
		return;
	ist__put_str(w, t->name);
	ist__put_u8(w, (uint8_t)t->dtype);
	ist__put_u8(w, (uint8_t)t->rank);
	put_dims(w, t->shape, t->rank);
	if (t->kind == IST__ITEM_TENSOR) {
		ist__put_u64(w, t->alias + 1); /* IST__NO_ALIAS becomes 0 */
		return;
	}
	put_dims(w, t->begin, t->rank);
	put_dims(w, t->whole, t->rank);
}

void
ist__manifest_encode(const struct ist__manifest *m, struct ist__writer *w)
{
	ist__put_u32(w, FORMAT);
	ist__put_u64(w, m->n_files);
	for (uint64_t i = 0; i < m->n_files; i++) {
		ist__put_str(w, m->files[i].name);
		ist__put_u64(w, m->files[i].bytes);
		ist__put_u64(w, m->files[i].header_bytes);
	}
	ist__put_u64(w, m->n_items);
	for (uint64_t i = 0; i < m->n_items; i++)
		put_item(w, &m->items[i]);
}

static ist_err
fail_cut(struct ist_error *err)
{
	return ist__fail(err, IST_BAD_FORMAT, "manifest", "the manifest is cut off or malformed");
}

static ist_err
get_file(struct ist__manifest *m, struct ist__reader *r, struct ist_error *err)
{
	char name[IST__FILE_NAME_MAX + 1];
	struct ist__file f = { .name = name };

	if (!ist__get_str(r, name, sizeof(name)))
		return fail_cut(err);
	f.bytes = ist__get_u64(r);
	f.header_bytes = ist__get_u64(r);
	if (r->bad)
		return fail_cut(err);
	return ist__manifest_add_file(m, &f, NULL) ? IST_OK : ist__fail_memory(err, "manifest");
}

/* What an item is read into before it is copied. */
struct room {
	char *name; /* IST__NAME_MAX and its 0 */
	uint64_t shape[IST_DIMS_MAX], begin[IST_DIMS_MAX], whole[IST_DIMS_MAX];
};

static void
get_dims(struct ist__reader *r, uint64_t *dims, uint32_t rank)
{
	for (uint32_t i = 0; i < rank; i++)
		dims[i] = ist__get_u64(r);
}

static ist_err
get_tensor(struct ist__reader *r, struct room *at, struct ist__item *t, struct ist_error *err)
{
	if (!ist__get_str(r, at->name, IST__NAME_MAX + 1))
		return fail_cut(err);
	t->name = at->name;
	t->dtype = ist__get_u8(r);
	t->rank = ist__get_u8(r);
	if (t->rank > IST_DIMS_MAX)
		return ist__fail(err, IST_LIMIT, "manifest", "tensor \"%.200s\": more than 16 dimensions", t->name);
	get_dims(r, at->shape, t->rank);
	if (t->kind == IST__ITEM_TENSOR) {
		t->alias = ist__get_u64(r) - 1;
		return IST_OK;
	}
	get_dims(r, at->begin, t->rank);
	get_dims(r, at->whole, t->rank);
	return IST_OK;
}

static ist_err
get_item(struct ist__manifest *m, struct ist__reader *r, struct room *at, struct ist_error *err)
{
	struct ist__item t = { .name = "", .shape = at->shape, .begin = at->begin, .whole = at->whole, .alias = IST__NO_ALIAS };
	ist_err e = IST_OK;

	t.kind = ist__get_u8(r);
	t.file = ist__get_u32(r) - 1;
	t.offset = ist__get_u64(r);
	t.bytes = ist__get_u64(r);
	if (!ist__item_is_raw(&t) && !r->bad)
		e = get_tensor(r, at, &t, err);
	if (e)
		return e;
	if (r->bad)
		return fail_cut(err);
	return ist__manifest_add_item(m, &t, NULL) ? IST_OK : ist__fail_memory(err, "manifest");
}

static ist_err
get_all(struct ist__manifest *m, struct ist__reader *r, struct room *at, struct ist_error *err)
{
	uint64_t n;
	uint32_t format = ist__get_u32(r);
	ist_err e = IST_OK;

	n = ist__get_u64(r);
	if (r->bad || n > r->left / FILE_MIN)
		return fail_cut(err);
	if (format != FORMAT)
		return ist__fail(err, IST_VERSION_MISMATCH, "manifest", "a manifest of format %u; this side reads format %u", format, FORMAT);
	for (uint64_t i = 0; i < n && !e; i++)
		e = get_file(m, r, err);
	if (e)
		return e;
	n = ist__get_u64(r);
	if (r->bad || n > r->left / ITEM_MIN)
		return fail_cut(err);
	for (uint64_t i = 0; i < n && !e; i++)
		e = get_item(m, r, at, err);
	return e;
}

ist_err
ist__manifest_decode(const struct ist__ctx *ctx, struct ist__reader *r, struct ist__manifest **out, struct ist_error *err)
{
	struct ist__manifest *m = ist__manifest_new(ctx);
	struct room at = { .name = ist__alloc(ctx, IST__NAME_MAX + 1) };
	ist_err e = m && at.name ? get_all(m, r, &at, err) : ist__fail_memory(err, "manifest");

	if (!e)
		e = ist__manifest_seal(m, "manifest", err);
	if (!e) {
		*out = m;
		m = NULL;
	}
	ist__manifest_free(m);
	ist__free(ctx, at.name);
	return e;
}

ist_err
ist__manifest_digest(const struct ist__manifest *m, struct ist__digest *out, struct ist_error *err)
{
	struct ist__writer w;
	ist_err e = IST_OK;

	ist__writer_init(&w, m->ctx);
	ist__manifest_encode(m, &w);
	if (w.bad)
		e = ist__fail_memory(err, "manifest");
	else
		ist__digest_flat(w.at, w.bytes, out);
	ist__writer_fini(&w);
	return e;
}

/* ---- digest of a checkpoint ---- */

static int
by_name(const void *a, const void *b)
{
	const struct ist__item *x = *(const struct ist__item *const *)a, *y = *(const struct ist__item *const *)b;
	int c = strcmp(x->name, y->name); /* as unsigned bytes */

	if (c || x->kind != IST__ITEM_SLICE || y->kind != IST__ITEM_SLICE)
		return c;
	c = ist__slice_order(x, y);
	return c ? c : (x > y) - (x < y);
}

static const struct ist__digest *
digest_of(const struct ist__manifest *m, const struct ist__item *t, const struct ist__digest *digests)
{
	return &digests[t->alias == IST__NO_ALIAS ? (uint64_t)(t - m->items) : t->alias];
}

/* The tensor of the slices that stand at the front of list: one record. Returns how many they are. */
static uint64_t
fold_slices(const struct ist__manifest *m, const struct ist__item *const *list, uint64_t n, const struct ist__digest *digests,
	struct ist__hasher *h)
{
	const struct ist__item *first = list[0];
	struct ist__hasher parts;
	struct ist__digest digest;
	uint64_t i = 0;

	ist__hasher_init(&parts);
	for (; i < n && list[i]->kind == IST__ITEM_SLICE && !strcmp(list[i]->name, first->name); i++)
		ist__slice_hash(&parts, list[i], digest_of(m, list[i], digests));
	ist__hasher_end(&parts, &digest);
	ist__digest_add_tensor(h, first->name, ist__dtype_name(first->dtype), first->whole, first->rank, &digest);
	return i;
}

ist_err
ist__manifest_fold(const struct ist__manifest *m, const struct ist__digest *digests, struct ist__digest *out, struct ist_error *err)
{
	const struct ist__item **order = ist__alloc(m->ctx, m->n_tensors * sizeof(*order));
	struct ist__hasher h;

	if (!order)
		return ist__fail_memory(err, "digest");
	for (uint64_t i = 0; i < m->n_tensors; i++)
		order[i] = &m->items[m->tensors[i]];
	if (m->n_tensors > 0)
		qsort(order, m->n_tensors, sizeof(*order), by_name);
	ist__hasher_init(&h);
	for (uint64_t i = 0, n = 1; i < m->n_tensors; i += n) {
		const struct ist__item *t = order[i];

		n = 1;
		if (t->kind == IST__ITEM_SLICE)
			n = fold_slices(m, &order[i], m->n_tensors - i, digests, &h);
		else
			ist__digest_add_tensor(&h, t->name, ist__dtype_name(t->dtype), t->shape, t->rank, digest_of(m, t, digests));
	}
	ist__hasher_end(&h, out);
	ist__free(m->ctx, order);
	return IST_OK;
}
