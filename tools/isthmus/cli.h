/* SPDX-License-Identifier: Apache-2.0
 *
 * cli.h - what the verbs share: the parsed command line, the table of verbs, messages, and how a call ends.
 *
 * Programs see public headers only. stdout holds the result, stderr everything else.
 */
#ifndef ISTHMUS_TOOL_CLI_H
#define ISTHMUS_TOOL_CLI_H

#include "options.h"

#include <isthmus.h>
#include <jansson.h>

enum exit_status { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_VERIFY = 3, EXIT_DEADLINE = 124, EXIT_SIGNAL = 128 };

struct cli;

struct verb {
	const char *name;
	const char *args;        /* as usage shows them */
	const char *summary;     /* one line, no full stop */
	const char *text;        /* paragraphs for help and man page */
	const char *example;     /* lines for both */
	uint32_t sets;           /* enum option_set */
	int args_min, args_max;  /* -1: any number, and options end at the first of them */
	bool no_deadline;        /* --timeout counts only where it is given */
	bool hidden;
	int (*run)(struct cli *cli);
};

struct cli {
	const struct verb *verb;
	struct options o;
	bool json, quiet;
	int32_t log_level;
	int64_t started_ns;
	int64_t deadline_ns;     /* INT64_MAX: none */
	int64_t no_progress_ns;
	char who[32];            /* "rank 3" once it is known */
	const char *error_to;    /* file that gets the document of an error as well; NULL: none */
};

const struct verb *verb_row(uint32_t index); /* NULL after the last */

/* What is left of the deadline, as the library wants it: -1 for ever, at least 1 ns. */
int64_t cli_left_ns(const struct cli *cli);

/* ---- messages (report.c) ---- */

void cli_say(const struct cli *cli, int32_t level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* In place: control characters become '?'. For words that came from files or from peers. */
const char *cli_plain(char *text);
/* One more line on stderr, after a message. */
void cli_add(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cli_log_sink(void *cli, int32_t level, const char *msg); /* for ist_env_args.log */
/* Tells the error on stderr, and as a document on stdout with --json. Returns the exit status that belongs to it. */
int cli_fail(const struct cli *cli, const struct ist_error *err);
int cli_fail_code(const struct cli *cli, ist_err code, const char *op, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
int cli_fail_sys(const struct cli *cli, ist_err code, int sys, const char *op, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Wrong usage: INVALID_ARGUMENT, exit status 2. */
int cli_usage(const struct cli *cli, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A failure that a setting of the caller's caused, before anybody else was involved: exit status 2. */
int cli_fail_argument(const struct cli *cli, const struct ist_error *err);

/* Prints doc with "schema" put first, and drops the reference. NULL is out of memory. Returns the exit status. */
int cli_print(json_t *doc);
/* Ends what was printed on stdout, says so if it could not be written. Returns the exit status. */
int cli_printed(void);
json_t *json_text(const char *text); /* what is not UTF-8 is replaced; "" and NULL stay strings */
json_t *json_u64(uint64_t v);
json_t *json_ops(uint64_t set); /* names of a set of operations (cmd_backends.c) */

/* ---- help (help.c) ---- */

void help_program(FILE *to);
void help_verb(FILE *to, const struct verb *verb);
void man_program(FILE *to);
void man_verb(FILE *to, const struct verb *verb);

/* ---- verbs ---- */

int cmd_version(struct cli *cli);
int cmd_backends(struct cli *cli);
int cmd_inspect(struct cli *cli);
int cmd_store(struct cli *cli);
int cmd_status(struct cli *cli);
int cmd_push(struct cli *cli);
int cmd_pull(struct cli *cli);
int cmd_bench(struct cli *cli);
int cmd_run(struct cli *cli);
int cmd_make_checkpoint(struct cli *cli);
int cmd_check(struct cli *cli);
int cmd_demo(struct cli *cli);
int cmd_demo_member(struct cli *cli);

#endif
