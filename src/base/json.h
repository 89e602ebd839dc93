/* SPDX-License-Identifier: Apache-2.0
 *
 * json.h - a strict reader of JSON (RFC 8259) that pulls its input through a small window. It keeps no tree: the caller asks
 * for one event after the other. Memory: the window, one text, and 16 bytes for each key of an object that is open.
 * Keys are compared after unescaping; a key that stands twice in one object is a fault. Numbers stay text.
 */
#ifndef ISTHMUS_BASE_JSON_H
#define ISTHMUS_BASE_JSON_H

#include "base/ctx.h"

#define IST__JSON_DEPTH 128

enum ist__json_event {
	IST__JSON_BAD,   /* a fault; it stays */
	IST__JSON_END,   /* one whole document and nothing but white space after it */
	IST__JSON_OBJECT,
	IST__JSON_OBJECT_END,
	IST__JSON_ARRAY,
	IST__JSON_ARRAY_END,
	IST__JSON_KEY,
	IST__JSON_STRING,
	IST__JSON_NUMBER,
	IST__JSON_TRUE,
	IST__JSON_FALSE,
	IST__JSON_NULL
};

enum ist__json_fault {
	IST__JSON_SOUND,
	IST__JSON_SYNTAX,
	IST__JSON_ENDED,     /* the input ends inside the document, and was sound so far */
	IST__JSON_DUPLICATE, /* text is the key */
	IST__JSON_LIMIT,     /* too deep, or a key or number too long */
	IST__JSON_MEMORY,
	IST__JSON_READ       /* the source failed */
};

/* Puts at most room bytes at to; *bytes 0: the input has ended. False: it failed. */
typedef bool (*ist__json_source)(void *ctx, void *to, uint64_t room, uint64_t *bytes);

struct ist__json_mark {
	uint64_t lo, hi;
};

struct ist__json {
	/* of the last event */
	uint64_t start;        /* its first byte */
	const char *text;      /* KEY, STRING: unescaped, may hold 0; NUMBER: as it stands. Closed by a 0; until the next event */
	uint64_t text_bytes;
	bool cut;              /* STRING: longer than text_max, this is how it begins */
	/* of a fault */
	enum ist__json_fault fault;
	uint64_t fault_at;
	const char *fault_text;

	/* private */
	const struct ist__ctx *ctx;
	ist__json_source source;
	void *source_ctx;
	uint8_t *window;
	uint64_t pos, have, base; /* next byte and bytes in the window; bytes before it */
	bool ended;
	uint8_t state;
	uint32_t depth;
	uint64_t kinds[IST__JSON_DEPTH / 64]; /* a bit for each open container: 1 object */
	char *room;
	uint64_t room_bytes, text_max;
	uint64_t seed, objects;
	uint64_t serial[IST__JSON_DEPTH];     /* of the open objects */
	uint64_t first[IST__JSON_DEPTH];      /* their first key in keys */
	struct ist__json_mark *keys, *table;
	uint64_t n_keys, keys_room, table_room;
};

/* text_max: bytes of the longest key; longer strings are cut. Nothing is allocated or read yet. */
void ist__json_init(
	struct ist__json *j, const struct ist__ctx *ctx, ist__json_source source, void *source_ctx, uint64_t text_max);
void ist__json_fini(struct ist__json *j);
enum ist__json_event ist__json_next(struct ist__json *j);
/* Runs to the end of the value that event began. False: fault. */
bool ist__json_skip(struct ist__json *j, enum ist__json_event event);
/* What event is called in messages: "an object", "a string". */
const char *ist__json_event_name(enum ist__json_event event);
/* A NUMBER that is digits alone and fits. */
bool ist__json_u64(const char *text, uint64_t *out);

/* A source over memory. */
struct ist__json_memory {
	const uint8_t *at;
	uint64_t left;
};
bool ist__json_from_memory(void *memory, void *to, uint64_t room, uint64_t *bytes);

#endif
