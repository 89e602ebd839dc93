/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c - how this program speaks: messages and errors on stderr, one document on stdout with --json.
 */
#include "cli.h"
#include "progress.h"
#include "value.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *const level_names[] = { "error", "warning", "info", "debug", "trace" };

/* Names in files and words of peers may hold what steers a terminal, or looks like a line of ours. */
const char *
cli_plain(char *text)
{
	for (unsigned char *c = (unsigned char *)text; *c; c++)
		if (*c < 0x20 || *c == 0x7F || (*c == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0)) {
			if (*c == 0xC2) /* one of those beyond ASCII, in UTF-8 */
				*c++ = '?';
			*c = '?';
		}
	return text;
}

static void
line(const struct cli *cli, int32_t level, const char *text)
{
	bool bare = level == IST_LOG_INFO;
	char shown[8192];

	snprintf(shown, sizeof(shown), "%s", text);

	progress_hide();
	if (!progress_room())
		return;
	fprintf(stderr, "isthmus%s%s%s%s: %s%s%s\n", cli->verb ? " " : "", cli->verb ? cli->verb->name : "", cli->who[0] ? " " : "",
		cli->who, bare ? "" : level_names[level], bare ? "" : ": ", cli_plain(shown));
}

void
cli_say(const struct cli *cli, int32_t level, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	if (level > cli->log_level)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	line(cli, level, text);
}

void
cli_log_sink(void *ctx, int32_t level, const char *msg)
{
	const struct cli *cli = ctx;

	/* a failure comes back to us, and is told then, with all that is known about it */
	if (level == IST_LOG_ERROR && cli->log_level < IST_LOG_DEBUG)
		return;
	if (level >= IST_LOG_ERROR && level <= IST_LOG_TRACE && level <= cli->log_level)
		line(cli, level, msg);
}

/* jansson's integers end at 2^63 - 1. A larger one stands in a document as its digits in an object with the empty key, which
 * no document of ours has, and print_text takes that wrapping off. Within a string the quotes would be escaped. */
#define BIG_BEGIN "{\"\": \""
#define BIG_END "\"}"

json_t *
json_u64(uint64_t v)
{
	char text[24];

	if (v <= INT64_MAX)
		return json_integer((json_int_t)v);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
	return json_pack("{s:s}", "", text);
}

static bool
print_text(const char *text)
{
	const char *big;

	while ((big = strstr(text, BIG_BEGIN)) != NULL) {
		const char *number = big + sizeof(BIG_BEGIN) - 1, *end = strstr(number, BIG_END);

		if (!end || fwrite(text, 1, (size_t)(big - text), stdout) != (size_t)(big - text) ||
		    fwrite(number, 1, (size_t)(end - number), stdout) != (size_t)(end - number))
			return false;
		text = end + sizeof(BIG_END) - 1;
	}
	return fputs(text, stdout) != EOF;
}

json_t *
json_text(const char *text)
{
	json_t *t = json_string(text ? text : "");
	char clean[4096];
	size_t n = 0;

	if (t)
		return t;
	/* not UTF-8, say a path: what is outside ASCII becomes '?' */
	for (; text[n] && n + 1 < sizeof(clean); n++)
		clean[n] = (unsigned char)text[n] < 0x80 ? text[n] : '?';
	clean[n] = 0;
	return json_string(clean);
}

static json_t *
text_or_null(const char *text)
{
	return text[0] ? json_text(text) : json_null();
}

static const char *
scope_name(uint32_t scope)
{
	static const char *const names[] = { "call", "peer", "group", "backend" };

	return scope < 4 ? names[scope] : "call";
}

static json_t *
error_document(const struct ist_error *err)
{
	json_t *ranks = json_array(), *per_rank = json_array();

	for (uint32_t i = 0; i < err->n_ranks && i < IST_ERROR_RANKS; i++)
		json_array_append_new(ranks, json_integer(err->ranks[i]));
	for (uint32_t i = 0; i < err->n_per_rank && i < IST_ERROR_RANKS; i++)
		json_array_append_new(per_rank,
			json_pack("{s:i,s:s}", "rank", (int)err->per_rank[i].rank, "code", ist_err_name(err->per_rank[i].code)));
	return json_pack("{s:{s:s,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}}", "error", "code", ist_err_name(err->code), "scope",
		scope_name(err->scope), "op", text_or_null(err->op), "ranks", ranks, "tensor", text_or_null(err->tensor), "bucket",
		err->bucket == IST_NO_BUCKET ? json_null() : json_u64(err->bucket), "errno",
		err->sys ? json_integer(err->sys) : json_null(), "next", text_or_null(err->next), "detail", text_or_null(err->detail),
		"per_rank", per_rank);
}

int
cli_print(json_t *doc)
{
	json_t *out = json_pack("{s:i}", "schema", 1);
	char *text = doc && out && json_object_update(out, doc) == 0 ? json_dumps(out, JSON_REAL_PRECISION(9)) : NULL;
	int bad = !text || !print_text(text);

	bad |= putchar('\n') == EOF;
	free(text);
	json_decref(out);
	json_decref(doc);
	return cli_printed() == EXIT_DONE && !bad ? EXIT_DONE : EXIT_FAILED;
}

int
cli_printed(void)
{
	bool before = ferror(stdout), now;

	errno = 0;
	now = fflush(stdout) != 0;
	if (!before && !now)
		return EXIT_DONE;
	/* a reader who has seen enough is no fault worth words */
	if (errno != EPIPE && progress_room())
		fprintf(stderr, "isthmus: error: standard output can't be written%s%s\n", errno ? ": " : "", errno ? strerror(errno) : "");
	return EXIT_FAILED;
}

void
cli_add(const char *fmt, ...)
{
	va_list ap;

	if (!progress_room())
		return;
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
}

static void
tell_ranks(const struct ist_error *err)
{
	char text[16 * IST_ERROR_RANKS] = "";
	size_t n = 0;

	for (uint32_t i = 0; i < err->n_ranks && i < IST_ERROR_RANKS; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%u", i ? ", " : "", err->ranks[i]);
	if (n)
		cli_add("  ranks:  %s\n", text);
	for (uint32_t i = 0; i < err->n_per_rank && i < IST_ERROR_RANKS; i++)
		cli_add("  rank %u: %s\n", err->per_rank[i].rank, ist_err_name(err->per_rank[i].code));
}

static void
tell_error(const struct cli *cli, const struct ist_error *err)
{
	char text[512], shown[sizeof(err->detail)];

	snprintf(text, sizeof(text), "%s: %s", ist_err_name(err->code), ist_err_text(err->code));
	line(cli, IST_LOG_ERROR, text);
	if (err->detail[0])
		cli_add("  %s\n", (snprintf(shown, sizeof(shown), "%s", err->detail), cli_plain(shown)));
	tell_ranks(err);
	if (err->tensor[0])
		cli_add("  tensor: %s\n", (snprintf(shown, sizeof(shown), "%s", err->tensor), cli_plain(shown)));
	if (err->bucket != IST_NO_BUCKET)
		cli_add("  bucket: %llu\n", (unsigned long long)err->bucket);
	if (err->op[0])
		cli_add("  while:  %s\n", err->op);
	if (err->next[0])
		cli_add("  next:   %s\n", err->next);
	if (cli->error_to) {
		json_t *doc = error_document(err);

		json_dump_file(doc, cli->error_to, JSON_COMPACT);
		json_decref(doc);
	}
	if (cli->json)
		cli_print(error_document(err));
}

int
cli_fail(const struct cli *cli, const struct ist_error *err)
{
	tell_error(cli, err);
	switch (err->code) {
	case IST_TIMEOUT:
		return EXIT_DEADLINE;
	case IST_DIGEST:
	case IST_INCOMPLETE:
		return EXIT_VERIFY;
	default:
		return EXIT_FAILED;
	}
}

int
cli_fail_argument(const struct cli *cli, const struct ist_error *err)
{
	int status = cli_fail(cli, err);

	return (err->code == IST_INVALID_ARGUMENT || err->code == IST_BAD_CONFIG) && err->n_ranks == 0 ? EXIT_USAGE : status;
}

/* The library speaks of members and backends; what fails here knows neither. */
static const char *
next_of(ist_err code)
{
	switch (code) {
	case IST_TIMEOUT:
		return "give more time with --timeout";
	case IST_UNSUPPORTED:
		return "'isthmus --help' and 'isthmus VERB --help' list what is built";
	case IST_ABORTED:
		return "run it again";
	default:
		return ist_err_next(code);
	}
}

static void
fill(struct ist_error *err, ist_err code, const char *op)
{
	ist_error_init(err);
	err->code = code;
	err->scope = ist_err_scope(code);
	snprintf(err->op, sizeof(err->op), "%s", op ? op : "");
	snprintf(err->next, sizeof(err->next), "%s", next_of(code));
}

int
cli_fail_code(const struct cli *cli, ist_err code, const char *op, const char *fmt, ...)
{
	struct ist_error err;
	va_list ap;

	fill(&err, code, op);
	va_start(ap, fmt);
	vsnprintf(err.detail, sizeof(err.detail), fmt, ap);
	va_end(ap);
	return cli_fail(cli, &err);
}

int
cli_fail_sys(const struct cli *cli, ist_err code, int sys, const char *op, const char *fmt, ...)
{
	struct ist_error err;
	size_t n;
	va_list ap;

	fill(&err, code, op);
	va_start(ap, fmt);
	vsnprintf(err.detail, sizeof(err.detail), fmt, ap);
	va_end(ap);
	n = strlen(err.detail);
	snprintf(err.detail + n, sizeof(err.detail) - n, ": %s (%s)", strerror(sys), strerrorname_np(sys));
	err.sys = sys;
	return cli_fail(cli, &err);
}

int
cli_usage(const struct cli *cli, const char *fmt, ...)
{
	struct ist_error err;
	va_list ap;

	fill(&err, IST_INVALID_ARGUMENT, cli->verb ? cli->verb->name : "isthmus");
	snprintf(err.next, sizeof(err.next), "see 'isthmus %s%s--help'", cli->verb ? cli->verb->name : "", cli->verb ? " " : "");
	va_start(ap, fmt);
	vsnprintf(err.detail, sizeof(err.detail), fmt, ap);
	va_end(ap);
	tell_error(cli, &err);
	return EXIT_USAGE;
}
