/* SPDX-License-Identifier: Apache-2.0
 *
 * st_header.c - one object: names to {dtype, shape, data_offsets}, and "__metadata__" with texts. Unknown fields of an
 * entry are passed over, as the reference reader does.
 */
#include "ckpt/st_header.h"

#include "base/fail.h"
#include "base/json.h"

#include <string.h>

#define OP "safetensors"
#define NUMBER_MAX (UINT64_C(1) << 53) /* where readers that use doubles begin to differ */
typedef unsigned long long ull;

/* What an entry has said so far. */
struct entry {
	const char *name;
	char dtype_text[32];
	uint32_t dtype, rank;
	uint64_t shape[IST_DIMS_MAX];
	uint64_t offsets[2];
	bool has_dtype, has_shape, has_offsets;
};

static bool
pull(void *ctx, void *to, uint64_t room, uint64_t *bytes)
{
	struct ist__st_header *h = ctx;
	uint64_t n = h->left < room ? h->left : room;

	if (n > 0 && !h->source->read(h->source->ctx, h->at, to, n, h->err)) {
		h->read_failed = true;
		return false;
	}
	h->at += n;
	h->left -= n;
	*bytes = n;
	return true;
}

static ist_err
fail_json(struct ist__st_header *h, const struct ist__json *j, struct ist_error *err)
{
	ull at = j->fault_at + 8;

	switch (j->fault) {
	case IST__JSON_READ:
		return err ? err->code : IST_IO; /* filled by the source */
	case IST__JSON_MEMORY:
		return ist__fail_memory(err, OP);
	case IST__JSON_DUPLICATE:
		ist__fail(err, IST_DUPLICATE_KEY, OP, "%s: \"%.200s\" stands twice in the header, again at byte %llu", h->source->name, j->text, at);
		ist__fail_tensor(err, j->text);
		return IST_DUPLICATE_KEY;
	case IST__JSON_ENDED:
		h->cut = true;
		return ist__fail(err, IST_BAD_HEADER, OP, "%s: the JSON of the header is not complete at byte %llu", h->source->name, at);
	case IST__JSON_LIMIT:
	case IST__JSON_SYNTAX:
	case IST__JSON_SOUND:
		break;
	}
	h->nothing = at == 8;
	return ist__fail(err, IST_BAD_HEADER, OP, "%s: byte %llu of the header's JSON: %s", h->source->name, at, j->fault_text);
}

static ist_err
fail_entry(struct ist__st_header *h, const struct ist__json *j, const struct entry *t, const char *what, struct ist_error *err)
{
	if (j->fault != IST__JSON_SOUND)
		return fail_json(h, j, err);
	ist__fail(err, IST_BAD_ENTRY, OP, "%s: tensor \"%.200s\": %s (byte %llu)", h->source->name, t->name, what, (ull)j->start + 8);
	ist__fail_tensor(err, t->name);
	return IST_BAD_ENTRY;
}

/* An integer from 0 to 2^53, written as digits alone. */
static bool
number(struct ist__json *j, enum ist__json_event event, uint64_t *out)
{
	return event == IST__JSON_NUMBER && ist__json_u64(j->text, out) && *out <= NUMBER_MAX;
}

static ist_err
read_dtype(struct ist__st_header *h, struct ist__json *j, struct entry *t, struct ist_error *err)
{
	if (ist__json_next(j) != IST__JSON_STRING)
		return fail_entry(h, j, t, "dtype is no string", err);
	t->dtype = j->cut ? IST__DTYPE_NONE : ist__dtype_find(j->text, j->text_bytes);
	memcpy(t->dtype_text, j->text, strnlen(j->text, sizeof(t->dtype_text) - 1));
	t->has_dtype = true;
	return IST_OK;
}

static ist_err
read_shape(struct ist__st_header *h, struct ist__json *j, struct entry *t, struct ist_error *err)
{
	enum ist__json_event event = ist__json_next(j);

	if (event != IST__JSON_ARRAY)
		return fail_entry(h, j, t, "shape is no array", err);
	while ((event = ist__json_next(j)) != IST__JSON_ARRAY_END) {
		uint64_t dim;

		if (!number(j, event, &dim))
			return fail_entry(h, j, t, "shape holds something other than integers from 0 to 2^53", err);
		if (t->rank == IST_DIMS_MAX) {
			ist__fail(err, IST_LIMIT, OP, "%s: tensor \"%.200s\": more than 16 dimensions", h->source->name, t->name);
			ist__fail_tensor(err, t->name);
			return IST_LIMIT;
		}
		t->shape[t->rank++] = dim;
	}
	t->has_shape = true;
	return IST_OK;
}

static ist_err
read_offsets(struct ist__st_header *h, struct ist__json *j, struct entry *t, struct ist_error *err)
{
	if (ist__json_next(j) != IST__JSON_ARRAY)
		return fail_entry(h, j, t, "data_offsets is no array", err);
	for (int i = 0; i < 2; i++)
		if (!number(j, ist__json_next(j), &t->offsets[i]))
			return fail_entry(h, j, t, "data_offsets holds something other than two integers from 0 to 2^53", err);
	if (ist__json_next(j) != IST__JSON_ARRAY_END)
		return fail_entry(h, j, t, "data_offsets holds more than two values", err);
	t->has_offsets = true;
	return IST_OK;
}

/* Bounds first, dtype after: no dtype, known or not, has a way around them. */
static ist_err
check_entry(struct ist__st_header *h, const struct ist__json *j, const struct entry *t, struct ist__item *out, struct ist_error *err)
{
	uint64_t data = h->source->bytes > h->header_bytes ? h->source->bytes - h->header_bytes : 0;
	bool known = t->dtype != IST__DTYPE_NONE;

	if (!known && (t->offsets[0] > t->offsets[1] || t->offsets[1] > data)) {
		ist__fail(err, IST_BAD_OFFSETS, OP, "%s: tensor \"%.200s\": range %llu to %llu of %llu bytes of data", h->source->name,
			t->name, (ull)t->offsets[0], (ull)t->offsets[1], (ull)data);
		ist__fail_tensor(err, t->name);
		return IST_BAD_OFFSETS;
	}
	if (!known) {
		ist__fail(err, IST_UNKNOWN_DTYPE, OP, "%s: tensor \"%.200s\": unknown dtype \"%s\"", h->source->name, t->name, t->dtype_text);
		ist__fail_tensor(err, t->name);
		return IST_UNKNOWN_DTYPE;
	}
	if (t->offsets[0] > t->offsets[1])
		return fail_entry(h, j, t, "its range ends before it begins", err);
	*out = (struct ist__item){
		.name = t->name,
		.dtype = t->dtype,
		.rank = t->rank,
		.shape = t->shape,
		.offset = h->header_bytes + t->offsets[0],
		.bytes = t->offsets[1] - t->offsets[0],
		.alias = IST__NO_ALIAS,
	};
	return ist__tensor_check(out, OP, h->source->name, err);
}

static ist_err
keep_entry(struct ist__st_header *h, struct ist__item *item, struct ist_error *err)
{
	uint64_t bytes = (uint64_t)item->rank * sizeof(uint64_t);
	uint64_t *shape = ist__arena_alloc(h->arena, bytes);
	void *items = h->items;

	if (!shape || !ist__grow(h->arena->ctx, &items, &h->room, h->n + 1, sizeof(*item)))
		return ist__fail_memory(err, OP);
	h->items = items;
	memcpy(shape, item->shape, bytes);
	item->shape = shape;
	h->items[h->n++] = *item;
	return IST_OK;
}

static ist_err
read_field(struct ist__st_header *h, struct ist__json *j, struct entry *t, struct ist_error *err)
{
	if (!strcmp(j->text, "dtype") && j->text_bytes == 5)
		return read_dtype(h, j, t, err);
	if (!strcmp(j->text, "shape") && j->text_bytes == 5)
		return read_shape(h, j, t, err);
	if (!strcmp(j->text, "data_offsets") && j->text_bytes == 12)
		return read_offsets(h, j, t, err);
	return ist__json_skip(j, ist__json_next(j)) ? IST_OK : fail_json(h, j, err);
}

static ist_err
read_entry(struct ist__st_header *h, struct ist__json *j, const char *name, struct ist_error *err)
{
	struct entry t = { .name = name };
	struct ist__item item;
	enum ist__json_event event = ist__json_next(j);
	ist_err e;

	if (event != IST__JSON_OBJECT)
		return fail_entry(h, j, &t, "the entry is no object", err);
	while ((event = ist__json_next(j)) == IST__JSON_KEY) {
		e = read_field(h, j, &t, err);
		if (e)
			return e;
	}
	if (event != IST__JSON_OBJECT_END)
		return fail_json(h, j, err);
	if (!t.has_dtype || !t.has_shape || !t.has_offsets)
		return fail_entry(h, j, &t, !t.has_dtype ? "no dtype" : !t.has_shape ? "no shape" : "no data_offsets", err);
	e = check_entry(h, j, &t, &item, err);
	return e ? e : keep_entry(h, &item, err);
}

/* null, or an object of texts. */
static ist_err
read_metadata(struct ist__st_header *h, struct ist__json *j, struct ist_error *err)
{
	enum ist__json_event event = ist__json_next(j);

	if (event == IST__JSON_NULL)
		return IST_OK;
	if (event == IST__JSON_OBJECT) {
		while ((event = ist__json_next(j)) == IST__JSON_KEY && (event = ist__json_next(j)) == IST__JSON_STRING)
			;
		if (event == IST__JSON_OBJECT_END)
			return IST_OK;
	}
	if (event == IST__JSON_BAD)
		return fail_json(h, j, err);
	return ist__fail(err, IST_BAD_HEADER, OP, "%s: __metadata__ is or holds %s at byte %llu; texts are due", h->source->name,
		ist__json_event_name(event), (ull)j->start + 8);
}

static ist_err
read_name(struct ist__st_header *h, struct ist__json *j, struct ist_error *err)
{
	const char *name;

	if (j->text_bytes == 12 && !memcmp(j->text, "__metadata__", 12))
		return read_metadata(h, j, err);
	if (!ist__name_ok(j->text, j->text_bytes)) {
		ist__fail(err, IST_BAD_NAME, OP, "%s: the name at byte %llu of the file, which begins with \"%.100s\", holds a control character",
			h->source->name, (ull)j->start + 8, j->text);
		ist__fail_tensor(err, j->text);
		return IST_BAD_NAME;
	}
	name = ist__arena_text(h->arena, j->text, j->text_bytes);
	return name ? read_entry(h, j, name, err) : ist__fail_memory(err, OP);
}

static ist_err
read_all(struct ist__st_header *h, struct ist__json *j, struct ist_error *err)
{
	enum ist__json_event event = ist__json_next(j);

	if (event == IST__JSON_BAD)
		return fail_json(h, j, err);
	if (event != IST__JSON_OBJECT)
		return ist__fail(err, IST_BAD_ENTRY, OP, "%s: the header is %s, not an object of entries", h->source->name,
			ist__json_event_name(event));
	while ((event = ist__json_next(j)) == IST__JSON_KEY) {
		ist_err e = read_name(h, j, err);

		if (e)
			return e;
	}
	if (event == IST__JSON_OBJECT_END)
		event = ist__json_next(j);
	return event == IST__JSON_END ? IST_OK : fail_json(h, j, err);
}

ist_err
ist__st_header_read(struct ist__st_header *h, struct ist_error *err)
{
	struct ist_error local;
	struct ist__json j;
	ist_err e;

	ist_error_init(&local);
	h->err = err ? err : &local;
	ist__json_init(&j, h->arena->ctx, pull, h, IST__NAME_MAX);
	e = read_all(h, &j, h->err);
	if (e == IST_BAD_ENTRY && j.fault == IST__JSON_ENDED)
		h->cut = true;
	ist__json_fini(&j);
	h->err = NULL;
	return e;
}
