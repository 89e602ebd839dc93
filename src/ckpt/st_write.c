/* SPDX-License-Identifier: Apache-2.0
 *
 * st_write.c - the header of a safetensors file of our own.
 */
#include "ckpt/safetensors.h"

#include "base/fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void
put_text(struct ist__writer *w, const char *s)
{
	ist__put_bytes(w, s, strlen(s));
}

static void
put_number(struct ist__writer *w, uint64_t v)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
	put_text(w, text);
}

/* Names hold no control characters: quote and backslash are all there is to escape. */
static void
put_quoted(struct ist__writer *w, const char *s)
{
	ist__put_u8(w, '"');
	while (*s) {
		size_t n = strcspn(s, "\"\\");

		ist__put_bytes(w, s, n);
		s += n;
		if (*s) {
			ist__put_u8(w, '\\');
			ist__put_u8(w, (uint8_t)*s++);
		}
	}
	ist__put_u8(w, '"');
}

static void
put_entry(struct ist__writer *w, const struct ist__item *t, uint64_t begin)
{
	put_quoted(w, t->name);
	put_text(w, ":{\"dtype\":\"");
	put_text(w, ist__dtype_name(t->dtype));
	put_text(w, "\",\"shape\":[");
	for (uint32_t i = 0; i < t->rank; i++) {
		if (i > 0)
			ist__put_u8(w, ',');
		put_number(w, t->shape[i]);
	}
	put_text(w, "],\"data_offsets\":[");
	put_number(w, begin);
	ist__put_u8(w, ',');
	put_number(w, begin + t->bytes);
	put_text(w, "]}");
}

ist_err
ist__safetensors_header(
	const struct ist__manifest *m, struct ist__writer *w, uint64_t *offsets, uint64_t *out_bytes, struct ist_error *err)
{
	uint64_t first = w->bytes, at = 0;

	ist__put_u64(w, 0); /* its length, below */
	put_text(w, "{\"__metadata__\":{\"format\":\"pt\"}");
	for (uint64_t i = 0; i < m->n_tensors; i++) {
		uint64_t item = m->tensors[i];

		ist__put_u8(w, ',');
		put_entry(w, &m->items[item], at);
		offsets[item] = at;
		if (__builtin_add_overflow(at, m->items[item].bytes, &at) || at > INT64_MAX)
			return ist__fail(err, IST_OVERFLOW, "safetensors", "the tensors together do not fit into one file");
	}
	ist__put_u8(w, '}');
	while (!w->bad && (w->bytes - first) % 8 != 0)
		ist__put_u8(w, ' ');
	if (w->bad)
		return ist__fail_memory(err, "safetensors");
	ist__store_u64(w->at + first, w->bytes - first - 8);
	for (uint64_t i = 0; i < m->n_tensors; i++)
		offsets[m->tensors[i]] += w->bytes - first;
	if (__builtin_add_overflow(at, w->bytes - first, out_bytes) || *out_bytes > INT64_MAX)
		return ist__fail(err, IST_OVERFLOW, "safetensors", "the tensors together do not fit into one file");
	return IST_OK;
}
