/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c - finds the verb, parses its options, runs it.
 */
#include "cli.h"
#include "progress.h"
#include "value.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define TIMEOUT_DEFAULT_S 300
#define STACK_BYTES (UINT64_C(1) << 20)

/* Words of the contract that have no code yet: they are known, so that the message can be right. */
static const char *const unbuilt[] = { "join", "serve", "update" };

int64_t
cli_left_ns(const struct cli *cli)
{
	int64_t left;

	if (cli->deadline_ns == INT64_MAX)
		return -1;
	left = cli->deadline_ns - now_ns();
	return left > 0 ? left : 1;
}

static void
settle(struct cli *cli)
{
	static const int32_t levels[] = { IST_LOG_ERROR, IST_LOG_WARN, IST_LOG_INFO, IST_LOG_DEBUG, IST_LOG_TRACE };
	const struct options *o = &cli->o;
	uint64_t fallback = cli->verb->no_deadline ? 0 : TIMEOUT_DEFAULT_S * (uint64_t)IST_NS_PER_S;
	uint64_t timeout = option_number(o, OPT_TIMEOUT, fallback);

	cli->json = option_on(o, OPT_JSON);
	cli->quiet = option_on(o, OPT_QUIET);
	cli->log_level = levels[option_number(o, OPT_LOG_LEVEL, IST_LOG_INFO)];
	if (cli->quiet && !option_given(o, OPT_LOG_LEVEL))
		cli->log_level = IST_LOG_ERROR;
	if (option_on(o, OPT_WATCH) && !option_given(o, OPT_TIMEOUT))
		timeout = 0;
	cli->deadline_ns = timeout ? cli->started_ns + (int64_t)timeout : INT64_MAX;
	cli->no_progress_ns = (int64_t)option_number(o, OPT_NO_PROGRESS, 0);
}

static int
run_verb(struct cli *cli, int argc, char **argv)
{
	const struct verb *verb = cli->verb;
	struct option_error err;
	bool man;

	cli->json = options_has_flag(argc, argv, "json");
	if (!options_parse(&cli->o, verb->sets, verb->args_max < 0, argc, argv, &err))
		return err.unsupported ? cli_fail_code(cli, IST_UNSUPPORTED, verb->name, "%s", err.text) : cli_usage(cli, "%s", err.text);
	if (option_on(&cli->o, OPT_HELP)) {
		man = !strcmp(option_text(&cli->o, OPT_HELP, ""), "man");
		(man ? man_verb : help_verb)(stdout, verb);
		return cli_printed();
	}
	settle(cli);
	if (cli->o.n_args < verb->args_min)
		return cli_usage(cli, "%s is missing", verb->args);
	if (verb->args_max >= 0 && cli->o.n_args > verb->args_max)
		return cli_usage(cli, "unexpected argument '%s'", cli->o.args[verb->args_max]);
	return verb->run(cli);
}

static const struct verb *
find_verb(const char *name)
{
	const struct verb *verb;

	for (uint32_t i = 0; (verb = verb_row(i)) != NULL; i++)
		if (!strcmp(verb->name, name))
			return verb;
	return NULL;
}

static int
no_verb(struct cli *cli, int argc, char **argv)
{
	cli->json = options_has_flag(argc, argv, "json");
	for (size_t i = 0; i < sizeof(unbuilt) / sizeof(unbuilt[0]); i++)
		if (!strcmp(argv[1], unbuilt[i]))
			return cli_fail_code(cli, IST_UNSUPPORTED, argv[1], "the verb %s is not built yet", argv[1]);
	return cli_usage(cli, "unknown verb '%s'", argv[1]);
}

static int
dispatch(struct cli *cli, int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "--help";

	if (!strcmp(word, "help") && argc > 2 && find_verb(argv[2])) {
		help_verb(stdout, find_verb(argv[2]));
	} else if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help")) {
		help_program(argc > 1 ? stdout : stderr);
		if (argc <= 1)
			return EXIT_USAGE;
	} else if (!strcmp(word, "--help=man")) {
		man_program(stdout);
	} else {
		cli->verb = find_verb(strcmp(word, "--version") ? word : "version");
		return cli->verb ? run_verb(cli, argc - 2, argv + 2) : no_verb(cli, argc, argv);
	}
	return cli_printed();
}

/* Nothing else may get the numbers of standard descriptors that the caller closed: a message would go into a file or a
 * socket. Open for reading only, so that writing to what was closed still fails. */
static void
hold_standard(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDONLY);
	while (fd >= 0 && fd <= 2);
	if (fd > 2)
		close(fd);
}

struct call {
	struct cli *cli;
	int argc, status;
	char **argv;
	sigset_t signals;
};

static void *
call_here(void *arg)
{
	struct call *call = arg;

	pthread_sigmask(SIG_SETMASK, &call->signals, NULL);
	call->status = dispatch(call->cli, call->argc, call->argv);
	return NULL;
}

/* A limit of the stack that was made for something else (ulimit -s) is too little for what is done here, and by the threads
 * that take their size from it. Signals are for the thread that does the work. */
static int
dispatch_with_room(struct cli *cli, int argc, char **argv)
{
	struct call call = { .cli = cli, .argc = argc, .argv = argv };
	struct rlimit limit;
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all;
	int sys;

	if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >= STACK_BYTES)
		return dispatch(cli, argc, argv);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &call.signals);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_setattr_default_np(&attr);
	sys = pthread_create(&thread, &attr, call_here, &call);
	pthread_attr_destroy(&attr);
	if (sys) {
		pthread_sigmask(SIG_SETMASK, &call.signals, NULL);
		return cli_fail_sys(cli, IST_LIMIT, sys, "start", "the stack's limit is %llu bytes (ulimit -s), and a thread with more can't be had",
			(unsigned long long)limit.rlim_cur);
	}
	pthread_join(thread, NULL);
	return call.status;
}

int
main(int argc, char **argv)
{
	struct cli cli = { .started_ns = now_ns(), .log_level = IST_LOG_INFO, .deadline_ns = INT64_MAX };
	int status;

	hold_standard();
	status = dispatch_with_room(&cli, argc, argv);
	progress_end();
	free(cli.o.args);
	return status;
}
