/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/index.h"

#include "base/fail.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#define OP "index"
typedef unsigned long long ull;

struct pull {
	const struct ist__bytes_source *source;
	uint64_t at;
	struct ist_error *err;
};

static bool
pull(void *ctx, void *to, uint64_t room, uint64_t *bytes)
{
	struct pull *p = ctx;
	uint64_t left = p->source->bytes - p->at, n = left < room ? left : room;

	if (n > 0 && !p->source->read(p->source->ctx, p->at, to, n, p->err))
		return false;
	p->at += n;
	*bytes = n;
	return true;
}

static ist_err
fail_json(const struct ist__bytes_source *s, const struct ist__json *j, struct ist_error *err)
{
	if (j->fault == IST__JSON_READ)
		return err->code;
	if (j->fault == IST__JSON_MEMORY)
		return ist__fail_memory(err, OP);
	if (j->fault == IST__JSON_DUPLICATE) {
		ist__fail(err, IST_DUPLICATE_KEY, OP, "%s: \"%.200s\" stands twice, again at byte %llu", s->name, j->text, (ull)j->fault_at);
		ist__fail_tensor(err, j->text);
		return IST_DUPLICATE_KEY;
	}
	return ist__fail(err, j->fault == IST__JSON_ENDED ? IST_TRUNCATED : IST_BAD_FORMAT, OP, "%s: byte %llu: %s", s->name,
		(ull)j->fault_at, j->fault_text);
}

static ist_err
add_row(struct ist__arena *arena, struct ist__index *x, const char *tensor, const char *file, struct ist_error *err)
{
	void *rows = x->rows;

	if (!tensor || !file || !ist__grow(arena->ctx, &rows, &x->room, x->n + 1, sizeof(*x->rows)))
		return ist__fail_memory(err, OP);
	x->rows = rows;
	x->rows[x->n++] = (struct ist__index_row){ .tensor = tensor, .file = file };
	return IST_OK;
}

/* last: the file of the row before, which is the same one most of the time. */
static ist_err
read_row(struct ist__arena *arena, const struct ist__bytes_source *s, struct ist__json *j, struct ist__index *x, const char **last,
	struct ist_error *err)
{
	const char *tensor;

	if (!ist__name_ok(j->text, j->text_bytes)) {
		ist__fail(err, IST_BAD_NAME, OP, "%s: the name at byte %llu, \"%.100s\", holds a control character", s->name, (ull)j->start, j->text);
		ist__fail_tensor(err, j->text);
		return IST_BAD_NAME;
	}
	tensor = ist__arena_text(arena, j->text, j->text_bytes);
	if (!tensor)
		return ist__fail_memory(err, OP);
	if (ist__json_next(j) != IST__JSON_STRING) {
		if (j->fault != IST__JSON_SOUND)
			return fail_json(s, j, err);
		ist__fail(err, IST_BAD_FORMAT, OP, "%s: tensor \"%.200s\": its file is no text", s->name, tensor);
		ist__fail_tensor(err, tensor);
		return IST_BAD_FORMAT;
	}
	if (!ist__file_name_ok(j->text, j->text_bytes)) {
		ist__fail(err, IST_BAD_NAME, OP, "%s: tensor \"%.200s\": \"%.200s\" is no name of a file beside the index", s->name, tensor, j->text);
		ist__fail_tensor(err, tensor);
		return IST_BAD_NAME;
	}
	if (!*last || strcmp(*last, j->text))
		*last = ist__arena_text(arena, j->text, j->text_bytes);
	return add_row(arena, x, tensor, *last, err);
}

static ist_err
read_map(struct ist__arena *arena, const struct ist__bytes_source *s, struct ist__json *j, struct ist__index *x, struct ist_error *err)
{
	enum ist__json_event event = ist__json_next(j);
	const char *last = NULL;

	if (event == IST__JSON_BAD)
		return fail_json(s, j, err);
	if (event != IST__JSON_OBJECT)
		return ist__fail(err, IST_BAD_FORMAT, OP, "%s: weight_map is %s, not an object", s->name, ist__json_event_name(event));
	while ((event = ist__json_next(j)) == IST__JSON_KEY) {
		ist_err e = read_row(arena, s, j, x, &last, err);

		if (e)
			return e;
	}
	return event == IST__JSON_OBJECT_END ? IST_OK : fail_json(s, j, err);
}

static ist_err
read_all(struct ist__arena *arena, const struct ist__bytes_source *s, struct ist__json *j, struct ist__index *x, struct ist_error *err)
{
	enum ist__json_event event = ist__json_next(j);
	bool map = false;
	ist_err e = IST_OK;

	if (event == IST__JSON_BAD)
		return fail_json(s, j, err);
	if (event != IST__JSON_OBJECT)
		return ist__fail(err, IST_BAD_FORMAT, OP, "%s: the index is %s, not an object", s->name, ist__json_event_name(event));
	while (!e && (event = ist__json_next(j)) == IST__JSON_KEY) {
		if (j->text_bytes == 10 && !memcmp(j->text, "weight_map", 10)) {
			map = true;
			e = read_map(arena, s, j, x, err);
		} else if (!ist__json_skip(j, ist__json_next(j))) {
			e = fail_json(s, j, err);
		}
	}
	if (e)
		return e;
	if (event != IST__JSON_OBJECT_END || ist__json_next(j) != IST__JSON_END)
		return fail_json(s, j, err);
	return map ? IST_OK : ist__fail(err, IST_BAD_FORMAT, OP, "%s: there is no weight_map in it", s->name);
}

static int
by_tensor(const void *a, const void *b)
{
	const struct ist__index_row *x = a, *y = b;

	return strcmp(x->tensor, y->tensor);
}

ist_err
ist__index_read(struct ist__arena *arena, const struct ist__bytes_source *source, struct ist__index *out, struct ist_error *err)
{
	struct ist__index x = { 0 };
	struct ist_error local;
	struct pull p = { .source = source };
	struct ist__json j;
	ist_err e;

	ist_error_init(&local);
	err = err ? err : &local;
	p.err = err;
	ist__json_init(&j, arena->ctx, pull, &p, IST__NAME_MAX);
	e = read_all(arena, source, &j, &x, err);
	ist__json_fini(&j);
	if (e) {
		ist__free(arena->ctx, x.rows);
		return e;
	}
	if (x.n > 0)
		qsort(x.rows, x.n, sizeof(*x.rows), by_tensor);
	*out = x;
	return IST_OK;
}

struct ist__index_row *
ist__index_find(const struct ist__index *index, const char *tensor)
{
	struct ist__index_row key = { .tensor = tensor };

	return index->n ? bsearch(&key, index->rows, index->n, sizeof(key), by_tensor) : NULL;
}
