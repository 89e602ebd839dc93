/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest.c - building, the rules, the table of names. The wire is in manifest_wire.c.
 */
#include "ckpt/manifest.h"

#include "base/fail.h"
#include "base/hash.h"
#include "ckpt/slice.h"

#include <string.h>

struct ist__manifest *
ist__manifest_new(const struct ist__ctx *ctx)
{
	struct ist__manifest *m = ist__alloc(ctx, sizeof(*m));

	if (m) {
		m->ctx = ctx;
		ist__arena_init(&m->arena, ctx);
	}
	return m;
}

void
ist__manifest_free(struct ist__manifest *m)
{
	if (!m)
		return;
	ist__arena_fini(&m->arena);
	ist__free(m->ctx, m->files);
	ist__free(m->ctx, m->items);
	ist__free(m->ctx, m->tensors);
	ist__free(m->ctx, m->table);
	ist__free(m->ctx, m);
}

bool
ist__manifest_add_file(struct ist__manifest *m, const struct ist__file *file, uint32_t *out_index)
{
	struct ist__file f = *file;
	void *files = m->files;

	f.name = ist__arena_text(&m->arena, file->name, strlen(file->name));
	if (!f.name || m->n_files >= IST__NO_FILE || !ist__grow(m->ctx, &files, &m->files_room, m->n_files + 1, sizeof(f)))
		return false;
	m->files = files;
	if (out_index)
		*out_index = (uint32_t)m->n_files;
	m->files[m->n_files++] = f;
	return true;
}

/* NULL: no memory. */
static uint64_t *
copy_dims(struct ist__manifest *m, const uint64_t *dims, uint32_t rank)
{
	uint64_t *copy = ist__arena_alloc(&m->arena, (uint64_t)rank * sizeof(*copy));

	if (copy && rank > 0)
		memcpy(copy, dims, (uint64_t)rank * sizeof(*copy));
	return copy;
}

bool
ist__manifest_borrow_item(struct ist__manifest *m, const struct ist__item *item, uint64_t *out_index)
{
	void *items = m->items;

	if (!ist__grow(m->ctx, &items, &m->items_room, m->n_items + 1, sizeof(*item)))
		return false;
	m->items = items;
	if (out_index)
		*out_index = m->n_items;
	m->items[m->n_items++] = *item;
	return true;
}

bool
ist__manifest_add_item(struct ist__manifest *m, const struct ist__item *item, uint64_t *out_index)
{
	struct ist__item t = *item;
	bool slice = t.kind == IST__ITEM_SLICE;

	t.name = item->name && item->name[0] ? ist__arena_text(&m->arena, item->name, strlen(item->name)) : "";
	t.shape = copy_dims(m, item->shape, t.rank);
	t.whole = slice ? copy_dims(m, item->whole, t.rank) : NULL;
	t.begin = slice ? copy_dims(m, item->begin, t.rank) : NULL;
	return t.name && t.shape && (!slice || (t.whole && t.begin)) && ist__manifest_borrow_item(m, &t, out_index);
}

/* ---- names ---- */

/* C0, DEL and C1. */
static bool
has_control(const uint8_t *b, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (b[i] < 0x20 || b[i] == 0x7F || (b[i] == 0xC2 && i + 1 < n && b[i + 1] < 0xA0))
			return true;
	return false;
}

bool
ist__name_ok(const char *name, uint64_t bytes)
{
	return bytes <= IST__NAME_MAX && ist__utf8_valid(name, bytes) == bytes && !has_control((const uint8_t *)name, bytes);
}

bool
ist__file_name_ok(const char *name, uint64_t bytes)
{
	return bytes > 0 && bytes <= IST__FILE_NAME_MAX && ist__name_ok(name, bytes) && !memchr(name, '/', bytes) &&
		!(name[0] == '.' && (bytes == 1 || (bytes == 2 && name[1] == '.')));
}

/* ---- rules ---- */

static ist_err
fail_tensor(const struct ist__item *t, ist_err code, const char *op, const char *where, const char *what, struct ist_error *err)
{
	ist__fail(err, code, op, "%s%stensor \"%.200s\": %s", where, *where ? ": " : "", t->name, what);
	ist__fail_tensor(err, t->name);
	return code;
}

ist_err
ist__tensor_check(const struct ist__item *t, const char *op, const char *where, struct ist_error *err)
{
	uint64_t bytes = 0;
	ist_err e;

	if (!ist__name_ok(t->name, strlen(t->name)))
		return fail_tensor(t, IST_BAD_NAME, op, where, "the name is not UTF-8, has control characters or is too long", err);
	if (t->rank > IST_DIMS_MAX)
		return fail_tensor(t, IST_LIMIT, op, where, "more than 16 dimensions", err);
	e = ist__dtype_bytes(t->dtype, t->shape, t->rank, &bytes);
	if (e == IST_UNKNOWN_DTYPE)
		return fail_tensor(t, e, op, where, "the dtype is unknown", err);
	if (e == IST_OVERFLOW)
		return fail_tensor(t, e, op, where, "the size of its shape does not fit into 64 bits", err);
	if (e)
		return fail_tensor(t, e, op, where, "its bits are no whole number of bytes", err);
	if (bytes != t->bytes) {
		ist__fail(err, IST_BAD_ENTRY, op, "%s%stensor \"%.200s\": shape and dtype make %llu bytes, given are %llu", where,
			*where ? ": " : "", t->name, (unsigned long long)bytes, (unsigned long long)t->bytes);
		ist__fail_tensor(err, t->name);
		return IST_BAD_ENTRY;
	}
	return IST_OK;
}

static ist_err
check_files(const struct ist__manifest *m, const char *op, struct ist_error *err)
{
	for (uint64_t i = 0; i < m->n_files; i++) {
		const struct ist__file *f = &m->files[i];

		if (!ist__file_name_ok(f->name, strlen(f->name)))
			return ist__fail(err, IST_BAD_NAME, op, "file \"%.255s\": a manifest can't hold this name", f->name);
		if (i > 0 && strcmp(m->files[i - 1].name, f->name) >= 0)
			return ist__fail(err, strcmp(m->files[i - 1].name, f->name) ? IST_BAD_FORMAT : IST_DUPLICATE_KEY, op,
				"file \"%s\" stands twice or out of order", f->name);
		if (f->header_bytes > f->bytes || f->bytes > INT64_MAX)
			return ist__fail(err, IST_BAD_OFFSETS, op, "file \"%s\": its sizes are impossible", f->name);
	}
	return IST_OK;
}

static ist_err
check_raw(const struct ist__manifest *m, const struct ist__item *t, const char *op, struct ist_error *err)
{
	const struct ist__file *f;

	if (t->kind > IST__ITEM_OTHER || t->file >= m->n_files || t->rank || t->dtype || t->name[0] || t->alias != IST__NO_ALIAS)
		return ist__fail(err, IST_BAD_FORMAT, op, "an item of the manifest is of no known kind");
	f = &m->files[t->file];
	if ((t->kind == IST__ITEM_HEADER && (t->offset != 0 || t->bytes != f->header_bytes || t->bytes < 8)) ||
	    (t->kind == IST__ITEM_FILLER && (f->header_bytes == 0 || t->offset < f->header_bytes)) ||
	    (t->kind >= IST__ITEM_INDEX && (f->header_bytes != 0 || t->offset != 0 || t->bytes != f->bytes)))
		return ist__fail(err, IST_BAD_OFFSETS, op, "file \"%s\": an item that is no tensor lies where it can't", f->name);
	return IST_OK;
}

static ist_err
check_slice(const struct ist__manifest *m, uint64_t i, const char *op, struct ist_error *err)
{
	const struct ist__item *t = &m->items[i];
	ist_err e;

	if (t->file != IST__NO_FILE || t->alias != IST__NO_ALIAS || t->part_of > i)
		return fail_tensor(t, IST_BAD_FORMAT, op, "", "a slice of it lies where it can't, or is an alias", err);
	e = ist__tensor_check(t, op, "", err);
	return e ? e : ist__slice_check(t, op, err);
}

static ist_err
check_alias(const struct ist__manifest *m, uint64_t i, const char *op, struct ist_error *err)
{
	const struct ist__item *t = &m->items[i], *owner;

	if (t->alias == IST__NO_ALIAS)
		return IST_OK;
	if (t->alias >= i || t->file != IST__NO_FILE)
		return fail_tensor(t, IST_BAD_FORMAT, op, "", "it is an alias of nothing that stands before it", err);
	owner = &m->items[t->alias];
	if (owner->kind != IST__ITEM_TENSOR || owner->alias != IST__NO_ALIAS || owner->file != IST__NO_FILE ||
	    owner->bytes != t->bytes)
		return fail_tensor(t, IST_BAD_FORMAT, op, "", "it is an alias of what can't be one", err);
	return IST_OK;
}

/* Where the next item of a file must begin. */
struct place {
	uint32_t file; /* IST__NO_FILE: past the files */
	uint64_t offset;
};

/* The file before must be full; those that hold nothing are passed. */
static bool
go_to_file(const struct ist__manifest *m, struct place *at, uint32_t file)
{
	uint64_t last = file == IST__NO_FILE ? m->n_files : file;

	while (at->file < last) {
		if (at->offset != m->files[at->file].bytes)
			return false;
		at->file++;
		at->offset = 0;
	}
	return at->file == last;
}

static ist_err
check_place(const struct ist__manifest *m, struct place *at, const struct ist__item *t, const char *op, struct ist_error *err)
{
	uint64_t end;
	bool in_header = t->file != IST__NO_FILE && t->kind == IST__ITEM_TENSOR && t->file < m->n_files &&
		(t->offset < m->files[t->file].header_bytes || m->files[t->file].header_bytes == 0);

	if (t->file == IST__NO_FILE)
		return t->offset == 0 && go_to_file(m, at, IST__NO_FILE)
			? IST_OK
			: fail_tensor(t, IST_BAD_OFFSETS, op, "", "a file before it is not covered", err);
	if (t->file >= m->n_files || !go_to_file(m, at, t->file) || t->offset != at->offset || in_header ||
	    __builtin_add_overflow(t->offset, t->bytes, &end) || end > m->files[t->file].bytes)
		return fail_tensor(t, IST_BAD_OFFSETS, op, t->file < m->n_files ? m->files[t->file].name : "",
			"it does not begin where the one before ends, or lies outside", err);
	at->offset = end;
	return IST_OK;
}

/* Of a slice whose tensor is here the tensor is listed. */
static bool
is_listed(const struct ist__item *t)
{
	return !ist__item_is_raw(t) && t->part_of == 0;
}

static ist_err
check_items(struct ist__manifest *m, const char *op, struct ist_error *err)
{
	struct place at = { 0, 0 };
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < m->n_items && !e; i++) {
		const struct ist__item *t = &m->items[i];
		bool over = false;

		if (t->kind == IST__ITEM_TENSOR)
			e = ist__tensor_check(t, op, t->file < m->n_files ? m->files[t->file].name : "", err);
		else if (t->kind == IST__ITEM_SLICE)
			e = check_slice(m, i, op, err);
		else
			e = check_raw(m, t, op, err);
		if (!e)
			e = check_alias(m, i, op, err);
		if (!e)
			e = check_place(m, &at, t, op, err);
		if (!e && is_listed(t)) {
			m->n_tensors++;
			if (t->alias == IST__NO_ALIAS)
				over = __builtin_add_overflow(m->payload, t->bytes, &m->payload);
		} else if (!e && ist__item_is_raw(t)) {
			over = __builtin_add_overflow(m->raw, t->bytes, &m->raw);
		}
		if (!e && (over || m->payload > INT64_MAX || m->raw > INT64_MAX))
			e = ist__fail(err, IST_OVERFLOW, op, "the checkpoint's size does not fit into 64 bits");
	}
	if (!e && !go_to_file(m, &at, IST__NO_FILE))
		e = ist__fail(err, IST_BAD_OFFSETS, op, "file \"%s\" is not covered to its end", m->files[at.file].name);
	return e;
}

/* ---- table of names ---- */

static uint64_t
place_of(const struct ist__manifest *m, const char *name)
{
	uint64_t i = ist__hash64(name, strlen(name), m->seed) & (m->table_room - 1);

	while (m->table[i] && strcmp(m->items[m->tensors[m->table[i] - 1]].name, name))
		i = (i + 1) & (m->table_room - 1);
	return i;
}

/* Two items of one name: slices of one tensor, or an error. */
static ist_err
check_namesake(const struct ist__item *a, const struct ist__item *b, const char *op, struct ist_error *err)
{
	if (a->kind != IST__ITEM_SLICE || b->kind != IST__ITEM_SLICE)
		return fail_tensor(b, IST_DUPLICATE_KEY, op, "", a->kind == b->kind ? "the name stands twice" :
			"it is there, and so is a slice of it", err);
	if (a->dtype != b->dtype || a->rank != b->rank || memcmp(a->whole, b->whole, a->rank * sizeof(*a->whole)) != 0)
		return fail_tensor(b, IST_BAD_ENTRY, op, "", "its slices do not agree on its shape or dtype", err);
	return IST_OK;
}

static ist_err
list_tensors(struct ist__manifest *m, const char *op, struct ist_error *err)
{
	uint64_t n = 0;

	m->tensors = ist__alloc(m->ctx, m->n_tensors * sizeof(*m->tensors));
	if (!m->tensors)
		return ist__fail_memory(err, op);
	for (uint64_t i = 0; i < m->n_items; i++)
		if (is_listed(&m->items[i]))
			m->tensors[n++] = i;
	return IST_OK;
}

static ist_err
make_table(struct ist__manifest *m, const char *op, struct ist_error *err)
{
	m->table_room = 16;
	while (m->table_room < 2 * m->n_tensors)
		m->table_room *= 2;
	m->table = ist__alloc(m->ctx, m->table_room * sizeof(*m->table));
	if (!m->table)
		return ist__fail_memory(err, op);
	m->seed = ist__hash_seed();
	for (uint64_t n = 0; n < m->n_tensors; n++) {
		const struct ist__item *t = &m->items[m->tensors[n]];
		uint64_t at = place_of(m, t->name);
		ist_err e = IST_OK;

		if (m->table[at])
			e = check_namesake(&m->items[m->tensors[m->table[at] - 1]], t, op, err);
		else
			m->table[at] = n + 1;
		if (e)
			return e;
	}
	return IST_OK;
}

ist_err
ist__manifest_seal_distinct(struct ist__manifest *m, const char *op, struct ist_error *err)
{
	ist_err e = check_files(m, op, err);

	if (!e)
		e = check_items(m, op, err);
	return e ? e : list_tensors(m, op, err);
}

ist_err
ist__manifest_seal(struct ist__manifest *m, const char *op, struct ist_error *err)
{
	ist_err e = ist__manifest_seal_distinct(m, op, err);

	return e ? e : make_table(m, op, err);
}

uint64_t
ist__manifest_find(const struct ist__manifest *m, const char *name)
{
	uint64_t at;

	if (!m->table)
		return UINT64_MAX;
	at = place_of(m, name);
	return m->table[at] ? m->table[at] - 1 : UINT64_MAX;
}

bool
ist__item_is_raw(const struct ist__item *item)
{
	return item->kind != IST__ITEM_TENSOR && item->kind != IST__ITEM_SLICE;
}

bool
ist__manifest_has_files(const struct ist__manifest *m)
{
	/* memory stands last */
	return m->n_files > 0 && (m->n_items == 0 || m->items[m->n_items - 1].file != IST__NO_FILE);
}

void
ist__manifest_public(const struct ist__manifest *m, uint64_t item, struct ist_tensor *out)
{
	const struct ist__item *t = &m->items[item];
	const char *dtype = ist__dtype_name(t->dtype);

	memset(out, 0, sizeof(*out));
	out->struct_size = sizeof(*out);
	out->rank = t->rank;
	out->name = t->name;
	out->dtype = dtype ? dtype : "";
	for (uint32_t i = 0; i < t->rank; i++)
		out->shape[i] = t->shape[i];
	out->bytes = t->bytes;
	out->file = t->file == IST__NO_FILE ? "" : m->files[t->file].name;
	out->alias_of = t->alias == IST__NO_ALIAS ? "" : m->items[t->alias].name;
}
