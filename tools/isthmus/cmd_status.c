/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"
#include "session.h"
#include "signals.h"
#include "value.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_MAX (1u << 16)

struct query {
	struct cli *cli;
	struct ist_env *env;
	struct ist_status_args args;
	struct ist_member_status *rows;
	uint32_t room, n;
};

static const char *
environment(const char *name)
{
	return getenv(name);
}

/* Only a member whose last commit was good, and new enough, may be trusted. */
static bool
wanted(const struct query *q, const struct ist_member_status *m)
{
	uint64_t least = option_number(&q->cli->o, OPT_VERSION_AT_LEAST, 0);

	return !least || (!strcmp(m->state, "CLEAN") && m->version >= least);
}

static json_t *
member(const struct ist_member_status *m)
{
	return json_pack("{s:i,s:o,s:o,s:I,s:o,s:o,s:o,s:o,s:f}", "rank", (int)m->rank, "group", json_text(m->group), "host", json_text(m->host),
		"pid", (json_int_t)m->pid, "state", json_text(m->state), "version", json_u64(m->version), "to",
		m->to ? json_u64(m->to) : json_null(), "serves", m->serves ? json_u64(m->serves) : json_null(), "heard_s", m->heard_s);
}

static void
state_text(const struct ist_member_status *m, char room[64])
{
	if (m->to)
		snprintf(room, 64, "%s %llu->%llu", m->state, (unsigned long long)m->version, (unsigned long long)m->to);
	else if (m->version)
		snprintf(room, 64, "%s %llu", m->state, (unsigned long long)m->version);
	else
		snprintf(room, 64, "%s", m->state);
}

static int
show(struct query *q)
{
	json_t *list = q->cli->json ? json_array() : NULL;
	char state[64];

	if (!list)
		printf("%-5s %-16s %-24s %8s  %-18s %8s %8s\n", "rank", "group", "host", "pid", "state", "serves", "heard s");
	for (uint32_t i = 0; i < q->n; i++) {
		struct ist_member_status *m = &q->rows[i];

		if (!wanted(q, m))
			continue;
		if (list) {
			json_array_append_new(list, member(m));
			continue;
		}
		state_text(m, state);
		printf("%-5u %-16s %-24s %8lld  %-18s %8llu %8.1f\n", m->rank, cli_plain(m->group), cli_plain(m->host), (long long)m->pid, cli_plain(state),
			(unsigned long long)m->serves, m->heard_s);
	}
	if (list)
		return cli_print(json_pack("{s:o}", "members", list));
	return cli_printed();
}

static int
by_rank(const void *a, const void *b)
{
	const struct ist_member_status *x = a, *y = b;
	int groups = strcmp(x->group, y->group);

	return groups ? groups : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Asks with more room until all fit. */
static int
ask(struct query *q)
{
	struct ist_error err;

	for (;;) {
		struct ist_member_status *rows;
		uint32_t n = q->room;

		for (uint32_t i = 0; i < q->room; i++)
			q->rows[i].struct_size = sizeof(q->rows[i]);
		q->args.timeout_ns = cli_left_ns(q->cli);
		if (q->args.timeout_ns < 0)
			q->args.timeout_ns = 30 * IST_NS_PER_S;
		ist_error_init(&err);
		if (ist_status(q->env, &q->args, q->rows, &n, &err))
			return cli_fail_argument(q->cli, &err);
		q->n = n < q->room ? n : q->room;
		if (n <= q->room || n > ROOM_MAX) {
			qsort(q->rows, q->n, sizeof(*q->rows), by_rank);
			return EXIT_DONE;
		}
		rows = realloc(q->rows, n * sizeof(*rows));
		if (!rows)
			return cli_fail_code(q->cli, IST_NO_MEMORY, "status", "%u members", n);
		memset(rows, 0, n * sizeof(*rows));
		q->rows = rows;
		q->room = n;
	}
}

static int
watch(struct query *q)
{
	int status;

	do {
		status = ask(q);
		if (status == EXIT_DONE)
			status = show(q);
	} while (status == EXIT_DONE && option_on(&q->cli->o, OPT_WATCH) && now_ns() < q->cli->deadline_ns && !signals_wait(IST_NS_PER_S));
	return status;
}

int
cmd_status(struct cli *cli)
{
	struct session s = { .cli = cli };
	struct query q = { .cli = cli, .room = 64 };
	char at[320], text[512];
	struct secret secret = { .n = 0 };
	int status;

	q.args = (struct ist_status_args){ .struct_size = sizeof(q.args), .insecure = option_on(&cli->o, OPT_INSECURE) };
	q.args.at = option_text(&cli->o, OPT_AT, NULL);
	q.args.group = option_text(&cli->o, OPT_GROUP, NULL);
	if (!q.args.at && !launch_address(environment, at, text))
		return cli_usage(cli, "%s", text);
	if (!q.args.at)
		q.args.at = at;
	q.rows = calloc(q.room, sizeof(*q.rows));
	status = q.rows ? signals_start(cli) : cli_fail_code(cli, IST_NO_MEMORY, "status", "out of memory");
	if (status == EXIT_DONE)
		status = secret_read(cli, &secret);
	if (status == EXIT_DONE)
		status = session_env(&s, cli);
	q.env = s.env;
	q.args.secret = secret.bytes;
	q.args.secret_bytes = secret.n;
	if (status == EXIT_DONE)
		status = watch(&q);
	secret_free(&secret);
	session_close(&s);
	free(q.rows);
	return signals_status(status);
}
