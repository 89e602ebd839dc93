/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h - the one table of options. Parsing, ISTHMUS_* variables, help texts and man pages all come from it; a verb
 * says which sets it takes.
 */
#ifndef ISTHMUS_TOOL_OPTIONS_H
#define ISTHMUS_TOOL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum option_id {
	OPT_AT, OPT_GROUP, OPT_WORLD, OPT_RANK, OPT_RANK_OFFSET, OPT_HOST_MEETING, OPT_NO_HOST_MEETING,
	OPT_BIND, OPT_STORE_BIND, OPT_ADVERTISE, OPT_SECRET_FILE, OPT_INSECURE,
	OPT_BACKEND, OPT_DEVICE, OPT_TRANSPORT, OPT_BUCKET,
	OPT_PART, OPT_VERSION, OPT_LABEL, OPT_ON_LOSS, OPT_SLOW_AFTER, OPT_FORCE, OPT_WEIGHTS_ONLY, OPT_NO_REPLACE,
	OPT_DIGESTS, OPT_WATCH, OPT_VERSION_AT_LEAST,
	OPT_RANKS, OPT_BENCH_RANKS, OPT_REPEAT, OPT_SIZE, OPT_SOURCES, OPT_SOURCES_ON, OPT_CHECKPOINT, OPT_PEERS,
	OPT_LAYOUT, OPT_LAYERS, OPT_TENSORS, OPT_BYTES, OPT_SEED,
	OPT_MODEL, OPT_WORLDS, OPT_OUT,
	OPT_TIMEOUT, OPT_NO_PROGRESS, OPT_LOG_LEVEL, OPT_JSON, OPT_QUIET, OPT_HELP,
	OPT_COUNT
};

/* Which verbs take an option. */
enum option_set {
	SET_COMMON = 1 << 0, SET_MEET = 1 << 1, SET_NET = 1 << 2, SET_MOVE = 1 << 3, SET_PUSH = 1 << 4, SET_PULL = 1 << 5,
	SET_INSPECT = 1 << 6, SET_STATUS = 1 << 7, SET_RUN = 1 << 8, SET_BENCH = 1 << 9, SET_MAKE = 1 << 10, SET_DEMO = 1 << 11,
	SET_STORE = 1 << 12, SET_SECRET = 1 << 13, SET_MEMBER = 1 << 14
};

enum option_type {
	TYPE_FLAG, TYPE_TEXT, TYPE_NUMBER, TYPE_BYTES, TYPE_SECONDS, TYPE_CHOICE, TYPE_PART,
	TYPE_NAME,   /* UTF-8, may be empty; max: bytes */
	TYPE_UNBUILT /* known, refused as UNSUPPORTED, not in any help */
};

enum option_origin { FROM_DEFAULT = 0, FROM_VARIABLE = 1, FROM_LINE = 2 };

struct option {
	uint8_t id;
	uint8_t type;
	char letter;            /* 0: none */
	uint32_t sets;
	uint64_t min, max;      /* of a number or size; 0, 0: any */
	const char *name;
	const char *value;      /* what help calls the value; of a choice: the choices */
	const char *help;
};

/* One value. text is as typed; number holds numbers, bytes, nanoseconds, choices and i of i/n; parts its n. */
struct option_value {
	const char *text;
	uint64_t number;
	uint32_t parts;
	enum option_origin from;
};

struct options {
	struct option_value v[OPT_COUNT];
	char **args;            /* what is no option, in order */
	int n_args;
};

/* How parsing failed; text is for a person. */
struct option_error {
	bool unsupported;
	char text[512];
};

/* Parses argv[0 .. argc) (without the verb). rest: stop at the first argument that is no option. */
bool options_parse(struct options *o, uint32_t sets, bool rest, int argc, char **argv, struct option_error *err);
/* True when an option with that name or letter is anywhere before "--"; for what must hold even when parsing fails. */
bool options_has_flag(int argc, char **argv, const char *name);

static inline bool
option_on(const struct options *o, enum option_id id)
{
	return o->v[id].from != FROM_DEFAULT && o->v[id].number;
}

static inline bool
option_given(const struct options *o, enum option_id id)
{
	return o->v[id].from != FROM_DEFAULT;
}

static inline const char *
option_text(const struct options *o, enum option_id id, const char *otherwise)
{
	return o->v[id].from != FROM_DEFAULT ? o->v[id].text : otherwise;
}

static inline uint64_t
option_number(const struct options *o, enum option_id id, uint64_t otherwise)
{
	return o->v[id].from != FROM_DEFAULT ? o->v[id].number : otherwise;
}

/* The table, for help.c. */
const struct option *option_row(uint32_t index); /* NULL after the last */
/* "ISTHMUS_LOG_LEVEL" */
const char *option_variable(const struct option *opt, char room[64]);
/* Where the value came from, as the user knows it: "--log-level" or "ISTHMUS_LOG_LEVEL". */
const char *option_shown(const struct options *o, enum option_id id, char room[64]);

#endif
