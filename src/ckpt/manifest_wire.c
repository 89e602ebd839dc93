/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest_wire.c - a manifest as bytes, and digests over it. Little-endian:
 *
 *     u32 format, u64 files, each: str name, u64 bytes, u64 header_bytes
 *     u64 items, each: u8 kind, u32 file + 1 (0: memory), u64 offset, u64 bytes
 *         and for a tensor: str name, u8 dtype, u8 rank, rank x u64, u64 alias + 1 (0: none)
 *
 * A decoder allocates no more than the bytes that are present can fill.
 */
#include "ckpt/manifest.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

#define FORMAT 1u
#define FILE_MIN (4u + 8u + 8u)
#define ITEM_MIN (1u + 4u + 8u + 8u)

static void
put_item(struct ist__writer *w, const struct ist__item *t)
{
	ist__put_u8(w, (uint8_t)t->kind);
	ist__put_u32(w, t->file + 1); /* IST__NO_FILE becomes 0 */
	ist__put_u64(w, t->offset);
	ist__put_u64(w, t->bytes);
	if (t->kind != IST__ITEM_TENSOR)
		return;
	ist__put_str(w, t->name);
	ist__put_u8(w, (uint8_t)t->dtype);
	ist__put_u8(w, (uint8_t)t->rank);
	for (uint32_t i = 0; i < t->rank; i++)
		ist__put_u64(w, t->shape[i]);
	ist__put_u64(w, t->alias + 1); /* IST__NO_ALIAS becomes 0 */
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

/* name has room for IST__NAME_MAX and its 0, shape for IST_DIMS_MAX. */
static ist_err
get_item(struct ist__manifest *m, struct ist__reader *r, char *name, uint64_t *shape, struct ist_error *err)
{
	struct ist__item t = { .name = "", .shape = shape, .alias = IST__NO_ALIAS };

	t.kind = ist__get_u8(r);
	t.file = ist__get_u32(r) - 1;
	t.offset = ist__get_u64(r);
	t.bytes = ist__get_u64(r);
	if (t.kind == IST__ITEM_TENSOR && !r->bad) {
		if (!ist__get_str(r, name, IST__NAME_MAX + 1))
			return fail_cut(err);
		t.name = name;
		t.dtype = ist__get_u8(r);
		t.rank = ist__get_u8(r);
		if (t.rank > IST_DIMS_MAX)
			return ist__fail(err, IST_LIMIT, "manifest", "tensor \"%.200s\": more than 16 dimensions", name);
		for (uint32_t i = 0; i < t.rank; i++)
			shape[i] = ist__get_u64(r);
		t.alias = ist__get_u64(r) - 1;
	}
	if (r->bad)
		return fail_cut(err);
	return ist__manifest_add_item(m, &t, NULL) ? IST_OK : ist__fail_memory(err, "manifest");
}

static ist_err
get_all(struct ist__manifest *m, struct ist__reader *r, char *name, struct ist_error *err)
{
	uint64_t shape[IST_DIMS_MAX], n;
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
		e = get_item(m, r, name, shape, err);
	return e;
}

ist_err
ist__manifest_decode(const struct ist__ctx *ctx, struct ist__reader *r, struct ist__manifest **out, struct ist_error *err)
{
	struct ist__manifest *m = ist__manifest_new(ctx);
	char *name = ist__alloc(ctx, IST__NAME_MAX + 1);
	ist_err e = m && name ? get_all(m, r, name, err) : ist__fail_memory(err, "manifest");

	if (!e)
		e = ist__manifest_seal(m, "manifest", err);
	if (!e) {
		*out = m;
		m = NULL;
	}
	ist__manifest_free(m);
	ist__free(ctx, name);
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

struct named {
	const char *name;
	uint64_t item;
};

static int
by_name(const void *a, const void *b)
{
	const struct named *x = a, *y = b;

	return strcmp(x->name, y->name); /* as unsigned bytes */
}

ist_err
ist__manifest_fold(const struct ist__manifest *m, const struct ist__digest *digests, struct ist__digest *out, struct ist_error *err)
{
	struct named *order = ist__alloc(m->ctx, m->n_tensors * sizeof(*order));
	struct ist__hasher h;

	if (!order)
		return ist__fail_memory(err, "digest");
	for (uint64_t i = 0; i < m->n_tensors; i++)
		order[i] = (struct named){ m->items[m->tensors[i]].name, m->tensors[i] };
	if (m->n_tensors > 0)
		qsort(order, m->n_tensors, sizeof(*order), by_name);
	ist__hasher_init(&h);
	for (uint64_t i = 0; i < m->n_tensors; i++) {
		const struct ist__item *t = &m->items[order[i].item];
		uint64_t owner = t->alias == IST__NO_ALIAS ? order[i].item : t->alias;

		ist__digest_add_tensor(&h, t->name, ist__dtype_name(t->dtype), t->shape, t->rank, &digests[owner]);
	}
	ist__hasher_end(&h, out);
	ist__free(m->ctx, order);
	return IST_OK;
}
