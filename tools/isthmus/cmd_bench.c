/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_bench.c - starts the ranks, or is one of them, and prints the rows.
 */
#include "bench.h"
#include "launch.h"
#include "local.h"
#include "signals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS_DEFAULT 2

static const struct {
	const char *name;
	int (*run)(struct bench *b);
	bool alone;
} kinds[] = {
	{ "group", bench_group, false }, { "barrier", bench_barriers, false }, { "objects", bench_objects, false },
	{ "broadcast", bench_broadcast, false }, { "gather", bench_gather, false },
	{ "update", bench_update, false }, { "load", bench_load, true },
};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const char *
environment(const char *name)
{
	return getenv(name);
}

static json_t *
machine(void)
{
	char host[256] = "", model[256] = "", line[512];
	FILE *f = fopen("/proc/cpuinfo", "re");

	gethostname(host, sizeof(host) - 1);
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
			snprintf(model, sizeof(model), "%s", strchr(line, ':') + 2);
			model[strcspn(model, "\n")] = 0;
			break;
		}
	if (f)
		fclose(f);
	return json_pack("{s:o,s:i,s:o}", "host", json_text(host), "cpus", (int)sysconf(_SC_NPROCESSORS_ONLN), "cpu", json_text(model));
}

static void
print_number(json_t *value)
{
	if (json_is_number(value))
		printf("%10.2f", json_number_value(value));
	else
		printf("%10s", "-");
}

static int
print_table(const struct bench *b, const char *backend)
{
	json_t *row, *s;
	size_t i;

	printf("%s, %u ranks, backend %s\n%-36s %12s %12s %12s %10s %10s %10s\n", b->cli->o.args[0], b->s.world ? b->s.world : 1, backend, "", "median s",
		"min s", "max s", "GB/s", "limit", "% of it");
	json_array_foreach(b->rows, i, row) {
		printf("%-36s ", json_string_value(json_object_get(row, "name")));
		if (json_object_get(row, "why")) {
			printf("%s\n", json_string_value(json_object_get(row, "why")));
			continue;
		}
		s = json_object_get(row, "seconds");
		printf("%12.9f %12.9f %12.9f ", json_number_value(json_object_get(s, "median")), json_number_value(json_object_get(s, "min")),
			json_number_value(json_object_get(s, "max")));
		print_number(json_object_get(row, "gbps"));
		putchar(' ');
		print_number(json_object_get(row, "limit_gbps"));
		putchar(' ');
		print_number(json_object_get(row, "percent_of_limit"));
		putchar('\n');
	}
	return cli_printed();
}

static int
print(struct bench *b)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	const char *backend = "";

	if (b->s.rank != 0)
		return EXIT_DONE;
	if (b->s.group && ist_group_info(b->s.group, &info, NULL) == IST_OK && info.backend)
		backend = info.backend;
	if (!b->cli->json)
		return print_table(b, backend);
	return cli_print(json_pack("{s:s,s:o,s:i,s:O,s:O}", "what", b->cli->o.args[0], "backend", json_text(backend), "ranks",
		(int)(b->s.world ? b->s.world : 1), "machine", b->machine, "rows", b->rows));
}

static int
be_rank(struct cli *cli, size_t kind)
{
	struct bench b = { .cli = cli, .repeat = (uint32_t)option_number(&cli->o, OPT_REPEAT, 5), .rows = json_array(), .machine = machine() };
	int status = kinds[kind].alone ? EXIT_DONE : session_plan(&b.s, cli);

	cli->json = cli->json && b.s.rank == 0; /* one document: what fails elsewhere fails there too */
	if (status == EXIT_DONE)
		status = signals_start(cli);
	if (status == EXIT_DONE && !kinds[kind].alone) {
		status = session_open(&b.s);
		if (status == EXIT_DONE)
			status = session_start(&b.s);
		if (status == EXIT_DONE)
			status = session_meet(&b.s);
	}
	if (status == EXIT_DONE)
		status = kinds[kind].run(&b);
	if (status == EXIT_DONE)
		status = bench_peers(&b);
	if (status == EXIT_DONE)
		status = bench_barrier(&b);
	if (status == EXIT_DONE)
		status = print(&b);
	session_close(&b.s);
	json_decref(b.rows);
	json_decref(b.machine);
	return signals_status(status);
}

/* The options of this line for the ranks, as "--name=value". */
static int
rank_argv(struct cli *cli, char *argv[OPT_COUNT + 8], char room[OPT_COUNT][4200])
{
	char *self = room[OPT_BENCH_RANKS];
	ssize_t n = readlink("/proc/self/exe", self, 4199);
	const struct option *opt;
	int k = 0;

	if (n < 0)
		return cli_fail_sys(cli, IST_IO, errno, "bench", "/proc/self/exe");
	self[n] = 0;
	argv[k++] = self;
	argv[k++] = room[OPT_HELP];
	snprintf(room[OPT_HELP], 4200, "bench");
	for (uint32_t i = 0; (opt = option_row(i)) != NULL; i++) {
		const struct option_value *v = &cli->o.v[opt->id];

		if (!(opt->sets & cli->verb->sets) || v->from != FROM_LINE || opt->id == OPT_BENCH_RANKS || opt->id == OPT_HELP)
			continue;
		snprintf(room[opt->id], 4200, "--%s=%s", opt->name, v->text);
		argv[k++] = room[opt->id];
	}
	if (!option_given(&cli->o, OPT_LOG_LEVEL)) {
		snprintf(room[OPT_LOG_LEVEL], 4200, "--log-level=error");
		argv[k++] = room[OPT_LOG_LEVEL];
	}
	argv[k++] = cli->o.args[0];
	argv[k] = NULL;
	return EXIT_DONE;
}

static int
start_ranks(struct cli *cli)
{
	char *argv[OPT_COUNT + 8], (*room)[4200] = calloc(OPT_COUNT, sizeof(*room));
	struct local local;
	int status = room ? rank_argv(cli, argv, room) : cli_fail_code(cli, IST_NO_MEMORY, "bench", "out of memory");

	if (status == EXIT_DONE) {
		status = local_open(&local, cli);
		if (status == EXIT_DONE)
			status = local_run(&local, argv, (uint32_t)option_number(&cli->o, OPT_BENCH_RANKS, RANKS_DEFAULT));
		local_close(&local);
	}
	free(room);
	return status;
}

int
cmd_bench(struct cli *cli)
{
	const struct options *o = &cli->o;
	struct launch launch;
	char text[512];
	size_t kind = 0;
	int status;

	while (kind < N_KINDS && strcmp(kinds[kind].name, o->args[0]))
		kind++;
	if (!strcmp(o->args[0], "p2p"))
		return cli_fail_code(cli, IST_UNSUPPORTED, "bench", "bench p2p is not built yet");
	if (kind == N_KINDS)
		return cli_usage(cli, "WHAT is '%s'; expected group, barrier, objects, broadcast, gather, update or load", o->args[0]);
	status = bench_peers_check(cli);
	if (status != EXIT_DONE)
		return status;
	if (kinds[kind].alone)
		return be_rank(cli, kind);
	if (o->v[OPT_BENCH_RANKS].from == FROM_LINE && (option_given(o, OPT_RANK) || option_given(o, OPT_WORLD)))
		return cli_usage(cli, "--ranks starts the ranks here, --rank and --world are one that was started elsewhere: give one of them");
	if (o->v[OPT_BENCH_RANKS].from != FROM_LINE) {
		if (option_given(o, OPT_RANK) || option_given(o, OPT_WORLD) || option_given(o, OPT_RANK_OFFSET))
			return be_rank(cli, kind);
		if (launch_read(environment, &launch, text) && launch.found)
			return be_rank(cli, kind);
	}
	return start_ranks(cli);
}
