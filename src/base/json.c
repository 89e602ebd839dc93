/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - the grammar. One state machine over containers; values are read by the small functions before it.
 */
#include "base/json.h"

#include "base/bytes.h"
#include "base/json_keys.h"

#include <string.h>

#define WINDOW (UINT64_C(32) * 1024)
#define NUMBER_MAX 1024

enum state { VALUE, FIRST_VALUE, FIRST_KEY, AFTER, DONE, FAULT };

void
ist__json_init(
	struct ist__json *j, const struct ist__ctx *ctx, ist__json_source source, void *source_ctx, uint64_t text_max)
{
	memset(j, 0, sizeof(*j));
	j->ctx = ctx;
	j->source = source;
	j->source_ctx = source_ctx;
	j->text_max = text_max;
	j->text = "";
	j->fault_text = "";
	j->state = VALUE;
}

void
ist__json_fini(struct ist__json *j)
{
	ist__free(j->ctx, j->window);
	ist__free(j->ctx, j->room);
	ist__free(j->ctx, j->keys);
	ist__free(j->ctx, j->table);
	memset(j, 0, sizeof(*j));
}

static bool
fault(struct ist__json *j, enum ist__json_fault what, const char *text)
{
	j->state = FAULT;
	j->fault = what;
	j->fault_at = j->base + j->pos;
	j->fault_text = text;
	return false;
}

/* ---- input ---- */

static bool
refill(struct ist__json *j)
{
	uint64_t n = 0;

	if (j->ended || j->state == FAULT)
		return false;
	if (!j->window) {
		j->window = ist__alloc_aligned(j->ctx, WINDOW, 16);
		if (!j->window)
			return fault(j, IST__JSON_MEMORY, "out of memory");
	}
	j->base += j->have;
	j->pos = j->have = 0;
	if (!j->source(j->source_ctx, j->window, WINDOW, &n))
		return fault(j, IST__JSON_READ, "can't be read");
	j->have = n;
	j->ended = n == 0;
	return n > 0;
}

/* The next byte without taking it; -1 at the end, and after a fault. */
static int
peek(struct ist__json *j)
{
	return j->pos < j->have || refill(j) ? j->window[j->pos] : -1;
}

static bool
ended(struct ist__json *j)
{
	return j->state == FAULT ? false : fault(j, IST__JSON_ENDED, "the document is cut off");
}

static bool
wrong(struct ist__json *j, const char *text)
{
	return peek(j) < 0 ? ended(j) : fault(j, IST__JSON_SYNTAX, text);
}

static int
peek_after_space(struct ist__json *j)
{
	int c;

	while ((c = peek(j)) == ' ' || c == '\n' || c == '\r' || c == '\t')
		j->pos++;
	return c;
}

/* ---- texts ---- */

static bool
room_for(struct ist__json *j, uint64_t bytes)
{
	void *room = j->room;
	bool ok = ist__grow(j->ctx, &room, &j->room_bytes, bytes + 1, 1);

	j->room = room;
	return ok || fault(j, IST__JSON_MEMORY, "out of memory");
}

/* One piece of a text: whole UTF-8 sequences. What does not fit under text_max is dropped and marked. */
static bool
put(struct ist__json *j, const void *addr, uint64_t bytes)
{
	if (j->cut || bytes > j->text_max - j->text_bytes) {
		j->cut = true;
		return true;
	}
	if (!room_for(j, j->text_bytes + bytes))
		return false;
	memcpy(j->room + j->text_bytes, addr, bytes);
	j->text_bytes += bytes;
	return true;
}

static bool
hex4(struct ist__json *j, uint32_t *out)
{
	uint32_t v = 0;

	for (int i = 0; i < 4; i++) {
		int c = peek(j);

		if (c >= '0' && c <= '9')
			v = v << 4 | (uint32_t)(c - '0');
		else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f' && c > 0)
			v = v << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
		else
			return wrong(j, "four hex digits are due after \\u");
		j->pos++;
	}
	*out = v;
	return true;
}

static bool
put_code(struct ist__json *j, uint32_t c)
{
	uint8_t b[4];

	if (c < 0x80) {
		b[0] = (uint8_t)c;
		return put(j, b, 1);
	}
	if (c < 0x800) {
		b[0] = (uint8_t)(0xC0 | c >> 6);
		b[1] = (uint8_t)(0x80 | (c & 0x3F));
		return put(j, b, 2);
	}
	if (c < 0x10000) {
		b[0] = (uint8_t)(0xE0 | c >> 12);
		b[1] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
		b[2] = (uint8_t)(0x80 | (c & 0x3F));
		return put(j, b, 3);
	}
	b[0] = (uint8_t)(0xF0 | c >> 18);
	b[1] = (uint8_t)(0x80 | (c >> 12 & 0x3F));
	b[2] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
	b[3] = (uint8_t)(0x80 | (c & 0x3F));
	return put(j, b, 4);
}

static bool
take(struct ist__json *j, int c, const char *text)
{
	if (peek(j) != c)
		return wrong(j, text);
	j->pos++;
	return true;
}

static bool
unicode_escape(struct ist__json *j)
{
	uint32_t c, low;

	if (!hex4(j, &c))
		return false;
	if (c >= 0xDC00 && c <= 0xDFFF)
		return fault(j, IST__JSON_SYNTAX, "the second half of a surrogate pair stands alone");
	if (c >= 0xD800 && c <= 0xDBFF) {
		if (!take(j, '\\', "the first half of a surrogate pair stands alone") ||
		    !take(j, 'u', "the first half of a surrogate pair stands alone") || !hex4(j, &low))
			return false;
		if (low < 0xDC00 || low > 0xDFFF)
			return fault(j, IST__JSON_SYNTAX, "the first half of a surrogate pair stands alone");
		c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
	}
	return put_code(j, c);
}

static bool
escape(struct ist__json *j)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	int c = peek(j);
	const char *at = c > 0 ? strchr(from, c) : NULL;

	if (c == 'u') {
		j->pos++;
		return unicode_escape(j);
	}
	if (!at)
		return wrong(j, "there is no such escape");
	j->pos++;
	return put(j, &to[at - from], 1);
}

/* A sequence of more than one byte, which may lie across two windows. */
static bool
utf8(struct ist__json *j)
{
	uint8_t b[4] = { 0 };
	int first = peek(j);
	uint64_t n = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;

	for (uint64_t i = 0; i < n; i++) {
		int c = peek(j);

		if (c < 0)
			return ended(j);
		if (i > 0 && (c & 0xC0) != 0x80)
			return fault(j, IST__JSON_SYNTAX, "a text is not UTF-8");
		b[i] = (uint8_t)c;
		j->pos++;
	}
	if (ist__utf8_valid(b, n) != n) {
		j->pos--;
		return fault(j, IST__JSON_SYNTAX, "a text is not UTF-8");
	}
	return put(j, b, n);
}

/* Bytes from pos on in the window that stand for themselves. */
static uint64_t
plain_run(const struct ist__json *j)
{
	uint64_t i = j->pos;

	while (i < j->have && j->window[i] >= 0x20 && j->window[i] < 0x80 && j->window[i] != '"' && j->window[i] != '\\')
		i++;
	return i - j->pos;
}

/* ASCII may be cut anywhere. */
static bool
put_plain(struct ist__json *j, uint64_t n)
{
	uint64_t fits = j->text_max - j->text_bytes;
	bool ok = put(j, j->window + j->pos, j->cut || n <= fits ? n : fits);

	j->cut = j->cut || n > fits;
	j->pos += n;
	return ok;
}

/* After the opening quote. */
static bool
string(struct ist__json *j)
{
	j->text_bytes = 0;
	j->cut = false;
	if (!room_for(j, 0))
		return false;
	for (;;) {
		int c = peek(j);
		bool ok;

		if (c < 0)
			return ended(j);
		if (c == '"')
			break;
		if (c < 0x20)
			return fault(j, IST__JSON_SYNTAX, "a control character stands in a text");
		if (c == '\\') {
			j->pos++;
			ok = escape(j);
		} else {
			ok = c >= 0x80 ? utf8(j) : put_plain(j, plain_run(j));
		}
		if (!ok)
			return false;
	}
	j->pos++;
	j->room[j->text_bytes] = 0;
	j->text = j->room;
	return true;
}

/* ---- numbers and words ---- */

static bool
number_byte(struct ist__json *j)
{
	if (j->text_bytes >= NUMBER_MAX)
		return fault(j, IST__JSON_LIMIT, "a number is too long");
	if (!room_for(j, j->text_bytes + 1))
		return false;
	j->room[j->text_bytes++] = (char)j->window[j->pos++];
	return true;
}

static bool
digits(struct ist__json *j)
{
	int c = peek(j);

	if (c < '0' || c > '9')
		return wrong(j, "a digit is due");
	while ((c = peek(j)) >= '0' && c <= '9')
		if (!number_byte(j))
			return false;
	return true;
}

static bool
number(struct ist__json *j)
{
	int c = peek(j);

	j->text_bytes = 0;
	j->cut = false;
	if (c == '-') {
		if (!number_byte(j))
			return false;
		c = peek(j);
	}
	if (c == '0') {
		if (!number_byte(j))
			return false;
		c = peek(j);
		if (c >= '0' && c <= '9')
			return fault(j, IST__JSON_SYNTAX, "a number begins with 0");
	} else if (!digits(j)) {
		return false;
	}
	if (peek(j) == '.' && (!number_byte(j) || !digits(j)))
		return false;
	if ((peek(j) | 0x20) == 'e' && peek(j) > 0) {
		if (!number_byte(j))
			return false;
		c = peek(j);
		if ((c == '+' || c == '-') && !number_byte(j))
			return false;
		if (!digits(j))
			return false;
	}
	if (j->state == FAULT)
		return false;
	j->room[j->text_bytes] = 0;
	j->text = j->room;
	return true;
}

static enum ist__json_event
word(struct ist__json *j, const char *text, enum ist__json_event event)
{
	for (; *text; text++)
		if (!take(j, *text, "a value is due"))
			return IST__JSON_BAD;
	return event;
}

bool
ist__json_u64(const char *text, uint64_t *out)
{
	uint64_t v = 0;

	for (const char *p = text; *p; p++)
		if (*p < '0' || *p > '9' || __builtin_mul_overflow(v, UINT64_C(10), &v) ||
		    __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
			return false;
	if (!*text)
		return false;
	*out = v;
	return true;
}

/* ---- containers ---- */

static bool
in_object(const struct ist__json *j)
{
	return j->depth > 0 && (j->kinds[(j->depth - 1) / 64] >> ((j->depth - 1) % 64) & 1);
}

static enum ist__json_event
open_container(struct ist__json *j, bool object)
{
	uint64_t bit = UINT64_C(1) << (j->depth % 64);

	if (j->depth == IST__JSON_DEPTH) {
		fault(j, IST__JSON_LIMIT, "the document is nested too deeply");
		return IST__JSON_BAD;
	}
	j->pos++;
	if (object) {
		j->kinds[j->depth / 64] |= bit;
		j->serial[j->depth] = j->objects++;
		j->first[j->depth] = j->n_keys;
	} else {
		j->kinds[j->depth / 64] &= ~bit;
	}
	j->depth++;
	j->state = object ? FIRST_KEY : FIRST_VALUE;
	return object ? IST__JSON_OBJECT : IST__JSON_ARRAY;
}

static enum ist__json_event
close_container(struct ist__json *j)
{
	bool object = in_object(j);

	j->pos++;
	j->depth--;
	if (object)
		ist__json_keys_forget(j, j->first[j->depth]);
	j->state = j->depth > 0 ? AFTER : DONE;
	return object ? IST__JSON_OBJECT_END : IST__JSON_ARRAY_END;
}

static enum ist__json_event
key(struct ist__json *j)
{
	enum ist__json_keys_answer answer;

	j->start = j->base + j->pos;
	if (!take(j, '"', "a key in quotes is due") || !string(j))
		return IST__JSON_BAD;
	if (j->cut) {
		fault(j, IST__JSON_LIMIT, "a key is too long");
		j->fault_at = j->start;
		return IST__JSON_BAD;
	}
	answer = ist__json_keys_add(j, j->serial[j->depth - 1], j->text, j->text_bytes);
	if (answer != IST__JSON_KEYS_NEW) {
		fault(j, answer == IST__JSON_KEYS_TWICE ? IST__JSON_DUPLICATE : IST__JSON_MEMORY,
			answer == IST__JSON_KEYS_TWICE ? "a key stands twice" : "out of memory");
		j->fault_at = j->start;
		return IST__JSON_BAD;
	}
	peek_after_space(j);
	if (!take(j, ':', "a colon is due"))
		return IST__JSON_BAD;
	j->state = VALUE;
	return IST__JSON_KEY;
}

static enum ist__json_event
scalar(struct ist__json *j, int c)
{
	enum ist__json_event event;

	if (c == '"') {
		j->pos++;
		event = string(j) ? IST__JSON_STRING : IST__JSON_BAD;
	} else if (c == '-' || (c >= '0' && c <= '9')) {
		event = number(j) ? IST__JSON_NUMBER : IST__JSON_BAD;
	} else if (c == 't') {
		event = word(j, "true", IST__JSON_TRUE);
	} else if (c == 'f') {
		event = word(j, "false", IST__JSON_FALSE);
	} else if (c == 'n') {
		event = word(j, "null", IST__JSON_NULL);
	} else {
		wrong(j, "a value is due");
		event = IST__JSON_BAD;
	}
	if (event != IST__JSON_BAD)
		j->state = j->depth > 0 ? AFTER : DONE;
	return event;
}

static enum ist__json_event
value(struct ist__json *j, int c)
{
	j->start = j->base + j->pos;
	if (c == '{' || c == '[')
		return open_container(j, c == '{');
	return scalar(j, c);
}

static enum ist__json_event
after(struct ist__json *j, int c)
{
	bool object = in_object(j);

	if (c == (object ? '}' : ']'))
		return close_container(j);
	if (!take(j, ',', object ? "a comma or } is due" : "a comma or ] is due"))
		return IST__JSON_BAD;
	c = peek_after_space(j);
	return object ? key(j) : value(j, c);
}

enum ist__json_event
ist__json_next(struct ist__json *j)
{
	int c;

	if (j->state == FAULT)
		return IST__JSON_BAD;
	c = peek_after_space(j);
	j->start = j->base + j->pos;
	switch ((enum state)j->state) {
	case VALUE:
		return value(j, c);
	case FIRST_VALUE:
		return c == ']' ? close_container(j) : value(j, c);
	case FIRST_KEY:
		return c == '}' ? close_container(j) : key(j);
	case AFTER:
		return after(j, c);
	case DONE:
		if (c >= 0)
			fault(j, IST__JSON_SYNTAX, "something stands after the document");
		return j->state == FAULT ? IST__JSON_BAD : IST__JSON_END;
	case FAULT:
		break;
	}
	return IST__JSON_BAD;
}

bool
ist__json_skip(struct ist__json *j, enum ist__json_event event)
{
	uint32_t depth = j->depth;

	if (event == IST__JSON_OBJECT || event == IST__JSON_ARRAY)
		while (j->depth >= depth && event != IST__JSON_BAD)
			event = ist__json_next(j);
	return event != IST__JSON_BAD;
}

const char *
ist__json_event_name(enum ist__json_event event)
{
	static const char *const names[] = { "malformed", "nothing", "an object", "the end of an object", "an array",
		"the end of an array", "a key", "a string", "a number", "true", "false", "null" };

	return names[event];
}

bool
ist__json_from_memory(void *memory, void *to, uint64_t room, uint64_t *bytes)
{
	struct ist__json_memory *m = memory;
	uint64_t n = m->left < room ? m->left : room;

	if (n > 0) {
		memcpy(to, m->at, n);
		m->at += n;
	}
	m->left -= n;
	*bytes = n;
	return true;
}
