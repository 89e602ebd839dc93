/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_check.c - the conformance suite on a third party's file.
 */
#include "conformance.h"
#include "progress.h"
#include "session.h"
#include "spawn.h"
#include "value.h"

#include <stdlib.h>
#include <string.h>

/* The library looks at the file before it is loaded: a truncated one would kill whoever maps it. */
static int
admit(struct cli *cli, const char *path)
{
	struct session s = { .cli = cli };
	struct ist_error as_backend, as_device;
	int status = session_env(&s, cli);

	ist_error_init(&as_backend);
	ist_error_init(&as_device);
	if (status == EXIT_DONE && ist_backend_load(s.env, path, NULL, &as_backend) && ist_device_load(s.env, path, NULL, &as_device))
		status = cli_fail(cli, &as_backend);
	session_close(&s);
	return status;
}

static void
tell(void *ctx, const struct conformance_check *check)
{
	static const char *const words[] = { "ok  ", "FAIL", "skip" };
	const struct cli *cli = ctx;

	if (cli->json || (cli->quiet && check->result != CONFORMANCE_FAILED))
		return;
	printf("%s  %-32s %6.2f s%s%s\n", words[check->result <= CONFORMANCE_SKIPPED ? check->result : CONFORMANCE_FAILED], check->name, check->seconds,
		check->text[0] ? "  " : "", check->text);
	fflush(stdout);
}

static json_t *
checks_of(const struct conformance_report *r, bool failures)
{
	static const char *const words[] = { "passed", "failed", "skipped" };
	json_t *list = json_array();

	for (uint32_t i = 0; i < r->n && i < CONFORMANCE_CHECKS_MAX; i++) {
		const struct conformance_check *c = &r->checks[i];

		if (failures && c->result != CONFORMANCE_FAILED)
			continue;
		json_array_append_new(list, json_pack("{s:s,s:s,s:f,s:o}", "name", c->name, "result", words[c->result % 3], "seconds", c->seconds, "text",
			json_text(c->text)));
	}
	return list;
}

static int
print(struct cli *cli, const struct conformance_report *r)
{
	if (cli->json)
		return cli_print(json_pack("{s:o,s:s,s:i,s:i,s:i,s:o,s:o,s:o,s:o}", "name", json_text(r->name), "kind", r->kind, "passed", (int)r->passed,
			"failed", (int)r->failed, "skipped", (int)r->skipped, "native", json_ops(r->native_ops), "composed", json_ops(r->composed_ops),
			"failures", checks_of(r, true), "checks", checks_of(r, false)));
	printf("%s %s: %u passed, %u failed, %u skipped\n", r->kind, r->name, r->passed, r->failed, r->skipped);
	return cli_printed();
}

/* The processes of a check are ended with it, so nobody is left behind when a signal comes or the time is over. */
static bool
stop(void *ctx)
{
	const struct cli *cli = ctx;

	return spawn_held_signal() || now_ns() >= cli->deadline_ns;
}

static int
run(struct cli *cli, struct conformance_report *report)
{
	struct conformance_args args = { .path = cli->o.args[0], .tell = tell, .stop = stop, .ctx = cli };
	int bad, sig;

	spawn_hold_signals();
	bad = conformance_run_args(&args, report);
	sig = spawn_held_signal();
	if (sig) {
		cli_fail_code(cli, IST_ABORTED, "check", "interrupted by SIG%s; %u checks were done", sigabbrev_np(sig), report->n);
		return EXIT_SIGNAL + sig;
	}
	if (now_ns() >= cli->deadline_ns)
		return cli_fail_code(cli, IST_TIMEOUT, "check", "%u checks were done, %u of them failed", report->n, report->failed);
	return report->n && print(cli, report) != EXIT_DONE ? EXIT_FAILED : bad ? EXIT_FAILED : EXIT_DONE;
}

int
cmd_check(struct cli *cli)
{
	struct conformance_report *report = calloc(1, sizeof(*report));
	int status = report ? admit(cli, cli->o.args[0]) : cli_fail_code(cli, IST_NO_MEMORY, "check", "out of memory");

	if (status == EXIT_DONE)
		status = run(cli, report);
	free(report);
	return status;
}
