/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors.c - a file as a whole: length of the header, what else the file may be, and whether the ranges cover it.
 * The header's own grammar is in st_header.c.
 */
#include "ckpt/safetensors.h"

#include "base/fail.h"
#include "ckpt/st_header.h"

#include <stdlib.h>
#include <string.h>

#define OP "safetensors"
typedef unsigned long long ull;

/* ---- what a stranger looks like ---- */

struct magic {
	uint8_t bytes[12];
	uint8_t n;
	const char *what;
};

static const struct magic magics[] = {
	{ "PK\x03\x04", 4, "a zip file (a PyTorch checkpoint is one)" },
	{ "\x80\x02", 2, "a pickle (an old PyTorch checkpoint)" },
	{ "\x80\x03", 2, "a pickle (an old PyTorch checkpoint)" },
	{ "\x80\x04", 2, "a pickle (an old PyTorch checkpoint)" },
	{ "\x80\x05", 2, "a pickle (an old PyTorch checkpoint)" },
	{ "version http", 12, "a Git LFS pointer: the file itself was not fetched" },
	{ "\x7F" "ELF", 4, "an ELF program or library" },
	{ "GGUF", 4, "a GGUF file" },
	{ "\x89HDF", 4, "an HDF5 file" },
	{ "\x93NUMPY", 6, "a NumPy array" },
	{ "\x1F\x8B", 2, "gzip-compressed data" },
	{ "\x28\xB5\x2F\xFD", 4, "zstd-compressed data" },
	{ "<!DOCTYPE", 9, "an HTML page" },
	{ "<!doctype", 9, "an HTML page" },
	{ "<html", 5, "an HTML page" },
	{ "<?xml", 5, "an XML document" },
	{ "{\"", 2, "a JSON text" },
	{ "{\n", 2, "a JSON text" },
};

static const char *
looks_like(const uint8_t *b, uint64_t n)
{
	for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++)
		if (n >= magics[i].n && !memcmp(b, magics[i].bytes, magics[i].n))
			return magics[i].what;
	return NULL;
}

/* code, unless the file is plainly something else. */
static ist_err
fail_header(const struct ist__bytes_source *s, const uint8_t *start, uint64_t have, ist_err code, const char *what, struct ist_error *err)
{
	const char *like = looks_like(start, have);

	if (like)
		return ist__fail(err, IST_NOT_SAFETENSORS, OP, "%s: this is no safetensors file; it looks like %s", s->name, like);
	return ist__fail(err, code, OP, "%s: %s", s->name, what);
}

static ist_err
fail_truncated(const struct ist__bytes_source *s, uint64_t need, struct ist_error *err)
{
	return ist__fail(err, IST_TRUNCATED, OP, "%s: truncated, have %llu bytes, need %s%llu", s->name, (ull)s->bytes,
		need < 16 ? "at least " : "", (ull)need);
}

/* ---- ranges ---- */

static int
by_place(const void *a, const void *b)
{
	const struct ist__item *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? -1 : 1;
	return strcmp(x->name, y->name);
}

static ist_err
fail_range(const struct ist__bytes_source *s, const struct ist__item *t, uint64_t base, uint64_t due, struct ist_error *err)
{
	bool hole = t->offset > due;

	ist__fail(err, IST_BAD_OFFSETS, OP, "%s: tensor \"%.200s\" begins at %llu of the data, %llu bytes %s the end of the one before",
		s->name, t->name, (ull)(t->offset - base), (ull)(hole ? t->offset - due : due - t->offset), hole ? "after" : "before");
	ist__fail_tensor(err, t->name);
	return IST_BAD_OFFSETS;
}

/* The ranges cover the data from the first byte to the last, each byte once. */
static ist_err
check_ranges(const struct ist__bytes_source *s, const struct ist__st_args *args, struct ist__st_file *f, struct ist_error *err)
{
	uint64_t due = f->header_bytes;

	if (f->n > 0)
		qsort(f->tensors, f->n, sizeof(*f->tensors), by_place);
	for (uint64_t i = 0; i < f->n; i++) {
		if (f->tensors[i].offset != due)
			return fail_range(s, &f->tensors[i], f->header_bytes, due, err);
		due += f->tensors[i].bytes; /* at most 2^63 plus 2^53 */
		if (due > INT64_MAX)
			return ist__fail(err, IST_OVERFLOW, OP, "%s: the ranges do not fit into 64 bits", s->name);
	}
	f->data_end = due;
	if (due > s->bytes)
		return fail_truncated(s, due, err);
	if (due < s->bytes && !args->allow_trailing) {
		ist__fail(err, IST_BAD_OFFSETS, OP, "%s: %llu bytes after the last tensor%s%.200s%s", s->name, (ull)(s->bytes - due),
			f->n ? " \"" : "", f->n ? f->tensors[f->n - 1].name : "", f->n ? "\"" : "");
		ist__fail_tensor(err, f->n ? f->tensors[f->n - 1].name : "");
		return IST_BAD_OFFSETS;
	}
	return IST_OK;
}

/* ---- the file ---- */

static ist_err
parse(struct ist__arena *arena, const struct ist__bytes_source *s, uint64_t n, const uint8_t *start, uint64_t have,
	struct ist__st_file *f, bool *cut, struct ist_error *err)
{
	struct ist__st_header h = {
		.arena = arena,
		.source = s,
		.at = 8,
		.left = n < s->bytes - 8 ? n : s->bytes - 8,
		.header_bytes = n + 8,
	};
	ist_err e = ist__st_header_read(&h, err);

	*cut = h.cut;
	f->tensors = h.items;
	f->n = h.n;
	f->header_bytes = n + 8;
	/* a file that does not even begin like a header may be something with a name */
	if (e == IST_BAD_HEADER && h.nothing && looks_like(start, have))
		return fail_header(s, start, have, e, "", err);
	return e;
}

ist_err
ist__safetensors_read(struct ist__arena *arena, const struct ist__bytes_source *source, const struct ist__st_args *args,
	struct ist__st_file *out, struct ist_error *err)
{
	uint8_t start[16] = { 0 };
	uint64_t have = source->bytes < sizeof(start) ? source->bytes : sizeof(start), n;
	uint64_t max = args->header_bytes_max ? args->header_bytes_max : IST__HEADER_BYTES_MAX;
	struct ist__st_file f = { 0 };
	bool cut = false, fits;
	struct ist_error local;
	ist_err e;

	ist_error_init(&local);
	err = err ? err : &local;
	if (!source->read(source->ctx, 0, start, have, err))
		return err->code;
	if (have < 8)
		return looks_like(start, have) ? fail_header(source, start, have, IST_TRUNCATED, "", err) : fail_truncated(source, 8, err);
	n = ist__load_u64(start);
	fits = n <= source->bytes - 8;
	if (n == 0)
		return fail_header(source, start, have, IST_BAD_HEADER, "the header has no bytes", err);
	if (!fits && n > max)
		return fail_header(source, start, have, IST_BAD_HEADER, "the header is said to be longer than the file and than any header", err);
	if (n > max && start[8] != '{') /* a stranger whose first bytes happen to be a small number */
		return fail_header(source, start, have, IST_BAD_HEADER, "the header is no JSON object", err);
	if (n > max) {
		ist__fail(err, IST_LIMIT, OP, "%s: the header has %llu bytes, more than the limit of %llu", source->name, (ull)n, (ull)max);
		ist__fail_next(err, "raise header_bytes_max if this is right");
		return IST_LIMIT;
	}
	e = parse(arena, source, n, start, have, &f, &cut, err);
	if (!fits && cut)
		e = fail_truncated(source, n + 8, err); /* sound as far as it goes: the rest is missing */
	else if (!fits && (!e || e == IST_BAD_HEADER || e == IST_BAD_OFFSETS || e == IST_BAD_ENTRY))
		e = fail_header(source, start, have, IST_BAD_HEADER, "the length of the header is wrong: more than the file has", err);
	if (!e)
		e = check_ranges(source, args, &f, err);
	if (e) {
		ist__free(arena->ctx, f.tensors);
		return e;
	}
	*out = f;
	return IST_OK;
}
