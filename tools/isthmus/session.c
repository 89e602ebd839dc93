/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include "launch.h"
#include "neighbours.h"
#include "progress.h"
#include "signals.h"
#include "value.h"

#include <stdlib.h>
#include <string.h>

enum { MEMBERS_MAX = 4096 };

static const char *
environment(const char *name)
{
	return getenv(name);
}

/* Rank and world: options, or one launcher's set. */
static int
plan_rank(struct session *s, struct cli *cli)
{
	const struct options *o = &cli->o;
	bool rank_given = option_given(o, OPT_RANK), world_given = option_given(o, OPT_WORLD);
	bool offset_given = option_given(o, OPT_RANK_OFFSET);
	struct launch launch = { .found = false };
	char text[512], name[64];
	uint64_t rank, world;

	if (rank_given && offset_given && o->v[OPT_RANK].from == o->v[OPT_RANK_OFFSET].from)
		return cli_usage(cli, "--rank says the rank itself, --rank-offset adds to the launcher's: give one of them");
	if (offset_given && !rank_given && !world_given)
		return cli_usage(cli, "--rank-offset needs --world: the launcher's count is that of its own job");
	if (!(rank_given && world_given) && !launch_read(environment, &launch, text))
		return cli_usage(cli, "%s", text);
	if (!rank_given && !launch.found)
		return cli_usage(cli, "no rank: give --rank, or start the ranks with isthmus run, torchrun, mpirun or srun");
	if (!world_given && !launch.found)
		return cli_usage(cli, "no world: give --world, the number of members of the whole group");
	rank = rank_given ? option_number(o, OPT_RANK, 0) : launch.rank + option_number(o, OPT_RANK_OFFSET, 0);
	world = option_number(o, OPT_WORLD, launch.size);
	if (world > MEMBERS_MAX)
		return cli_fail_code(cli, IST_LIMIT, "group_new", "%s says a world of %llu; a group has at most %d members",
			world_given ? option_shown(o, OPT_WORLD, name) : launch.size_from, (unsigned long long)world, MEMBERS_MAX);
	if (rank >= world)
		return cli_usage(cli, "rank %llu is not below --world %llu", (unsigned long long)rank, (unsigned long long)world);
	s->world = (uint32_t)world;
	s->rank = (uint32_t)rank;
	snprintf(cli->who, sizeof(cli->who), "rank %u", s->rank);
	if (launch.found)
		cli_say(cli, IST_LOG_INFO, "rank %u of %u: %s%s%s%s%s", s->rank, s->world, rank_given ? "--rank" : launch.rank_from,
			!rank_given && offset_given ? " plus --rank-offset" : "", ", ", world_given ? "--world" : launch.size_from,
			rank_given || world_given ? "" : " (environment)");
	return EXIT_DONE;
}

/* Without a number: the launcher's number of this process on its machine, as frameworks take it. */
int
session_plan_device(struct session *s, struct cli *cli)
{
	const char *device = option_text(&cli->o, OPT_DEVICE, "auto"), *local = getenv("LOCAL_RANK");
	size_t n = strcspn(device, ":");
	char name[64];
	uint64_t index = 0;

	s->device = -1;
	if (!strcmp(device, "auto") || !strcmp(device, "host"))
		return EXIT_DONE;
	s->mem = n == 4 && !strncmp(device, "cuda", n) ? IST_MEM_CUDA : n == 6 && !strncmp(device, "ascend", n) ? IST_MEM_ASCEND : IST_MEM_HOST;
	if (s->mem == IST_MEM_HOST || (device[n] && !value_u64(device + n + 1, &index)) || index > INT32_MAX)
		return cli_usage(cli, "%s is '%s'; expected auto, host, cuda[:N] or ascend[:N]", option_shown(&cli->o, OPT_DEVICE, name), device);
	if (!device[n] && local && (!value_u64(local, &index) || index > INT32_MAX))
		return cli_usage(cli, "LOCAL_RANK is '%s', which is no number of a device; say --device %s:N", local, device);
	s->device = (int32_t)index;
	s->device_in_turn = !device[n];
	return EXIT_DONE;
}

/* ISTHMUS_FAULT=flip puts the fault backend, which flips one byte on the way, before the chosen one: for demonstrations. */
static int
plan_backend(struct session *s, struct cli *cli)
{
	const char *name = option_text(&cli->o, OPT_BACKEND, "auto"), *fault = getenv("ISTHMUS_FAULT");

	if (fault && *fault) {
		if (strcmp(fault, "flip"))
			return cli_usage(cli, "ISTHMUS_FAULT is '%s'; expected flip", fault);
		snprintf(s->backend, sizeof(s->backend), "fault:flip:%s", strcmp(name, "auto") ? name : "host");
	} else if (strcmp(name, "auto")) {
		if ((size_t)snprintf(s->backend, sizeof(s->backend), "%s", name) >= sizeof(s->backend))
			return cli_usage(cli, "--backend is longer than %zu bytes", sizeof(s->backend) - 1);
	}
	return EXIT_DONE;
}

static int
plan_address(struct session *s, struct cli *cli)
{
	const char *at = option_text(&cli->o, OPT_AT, NULL);
	char text[512], made[320], name[64];

	if (!at && !launch_address(environment, made, text))
		return cli_usage(cli, "%s", text);
	if ((size_t)snprintf(s->at, sizeof(s->at), "%s", at ? at : made) >= sizeof(s->at))
		return cli_usage(cli, "%s is longer than %zu bytes", option_shown(&cli->o, OPT_AT, name), sizeof(s->at) - 1);
	if (strncmp(s->at, "tcp://", 6) && strncmp(s->at, "dir:", 4))
		return cli_usage(cli, "%s is '%s'; expected tcp://HOST:PORT or dir:/FOLDER", option_shown(&cli->o, OPT_AT, name), s->at);
	return EXIT_DONE;
}

int
session_plan(struct session *s, struct cli *cli)
{
	const struct options *o = &cli->o;
	int status;

	memset(s, 0, sizeof(*s));
	s->cli = cli;
	status = plan_address(s, cli);
	if (status == EXIT_DONE)
		status = plan_rank(s, cli);
	if (status == EXIT_DONE)
		status = session_plan_device(s, cli);
	if (status == EXIT_DONE)
		status = plan_backend(s, cli);
	if (status == EXIT_DONE && option_on(o, OPT_HOST_MEETING) && option_on(o, OPT_NO_HOST_MEETING) &&
	    o->v[OPT_HOST_MEETING].from == o->v[OPT_NO_HOST_MEETING].from)
		status = cli_usage(cli, "--host-meeting and --no-host-meeting exclude each other");
	return status;
}

int
session_env(struct session *s, const struct cli *cli)
{
	struct ist_env_args args = { .struct_size = sizeof(args), .log_level = cli->log_level, .log = cli_log_sink };
	struct ist_error err;

	s->cli = cli;
	args.log_ctx = (void *)(uintptr_t)cli;
	ist_error_init(&err);
	return ist_env_new(&args, &s->env, &err) ? cli_fail(cli, &err) : EXIT_DONE;
}

int
session_open(struct session *s)
{
	const struct options *o = &s->cli->o;
	struct ist_endpoint_args args = {
		.struct_size = sizeof(args),
		.insecure = option_on(o, OPT_INSECURE),
		.bind = option_text(o, OPT_BIND, NULL),
		.advertise = option_text(o, OPT_ADVERTISE, NULL),
		.device = s->device,
		.mem = s->mem,
		.transport = (uint32_t)option_number(o, OPT_TRANSPORT, IST_TRANSPORT_AUTO),
	};
	struct secret secret = { .n = 0 };
	struct ist_error err;
	uint32_t devices = 0;
	int status = secret_read(s->cli, &secret);

	if (status == EXIT_DONE)
		status = session_env(s, s->cli);
	if (status == EXIT_DONE && s->device_in_turn && !ist_device_count(s->env, s->mem, &devices, NULL) && devices > 0)
		args.device = s->device %= (int32_t)devices;
	if (status == EXIT_DONE) {
		args.secret = secret.bytes;
		args.secret_bytes = secret.n;
		ist_error_init(&err);
		if (ist_endpoint_new(s->env, &args, &s->endpoint, &err))
			status = cli_fail_argument(s->cli, &err);
	}
	secret_free(&secret);
	return status;
}

static struct ist_group_args
group_args(struct session *s)
{
	const struct options *o = &s->cli->o;
	bool yes = option_on(o, OPT_HOST_MEETING), no = option_on(o, OPT_NO_HOST_MEETING);

	if (yes && no) /* one from a variable: the line's counts */
		yes = o->v[OPT_HOST_MEETING].from == FROM_LINE, no = !yes;
	return (struct ist_group_args){
		.struct_size = sizeof(struct ist_group_args),
		.rank = s->rank,
		.size = s->world,
		.host_meeting = yes ? IST_HOST_MEETING_YES : no ? IST_HOST_MEETING_NO : IST_HOST_MEETING_AUTO,
		.name = option_text(o, OPT_GROUP, ""),
		.at = s->at,
		.backend = s->backend[0] ? s->backend : NULL,
		.timeout_ns = cli_left_ns(s->cli),
		.no_progress_ns = s->cli->no_progress_ns,
		.bucket_bytes = option_number(o, OPT_BUCKET, 0),
	};
}

int
session_start(struct session *s)
{
	struct ist_group_args args = group_args(s);
	struct ist_error err;

	s->meet_ns = now_ns();
	ist_error_init(&err);
	if (ist_group_new_start(s->endpoint, &args, &s->forming, &err))
		return cli_fail_argument(s->cli, &err);
	signals_ends(NULL, s->forming);
	return EXIT_DONE;
}

/* "waiting for ranks 2, 5" */
static void
tell_missing(const struct ist_error *err)
{
	char text[256];
	size_t n = (size_t)snprintf(text, sizeof(text), "waiting for rank%s", err->n_ranks == 1 ? "" : "s");

	for (uint32_t i = 0; i < err->n_ranks && i < IST_ERROR_RANKS && n + 16 < sizeof(text); i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s %u", i ? "," : "", err->ranks[i]);
	if (err->n_ranks)
		progress_note(text);
}

int
session_meet(struct session *s)
{
	struct neighbours others = { .next_ns = 0 };
	struct ist_error err;
	uint32_t done = 0;
	ist_err code;

	progress_start("meeting", s->cli->quiet);
	do {
		ist_error_init(&err);
		ist_req_wait(s->forming, IST_NS_PER_S / 4, NULL);
		code = ist_req_test(s->forming, &done, &err);
		if (!done && code == IST_OK) {
			tell_missing(&err);
			neighbours_look(&others, s);
		}
	} while (!done && code == IST_OK);
	if (code == IST_OK)
		code = ist_req_group(s->forming, &s->group, &err);
	progress_end();
	signals_ends(code ? NULL : s->group, NULL);
	ist_req_free(s->forming);
	s->forming = NULL;
	s->meet_s = seconds_since(s->meet_ns);
	if (code == IST_TIMEOUT && others.text[0]) {
		size_t n = strlen(err.detail);

		snprintf(err.detail + n, sizeof(err.detail) - n, "; %s", others.text);
		snprintf(err.next, sizeof(err.next), "%s", ist_err_next(IST_UNKNOWN_GROUP));
	}
	return code ? cli_fail_argument(s->cli, &err) : EXIT_DONE;
}

void
session_give_up(struct session *s, const char *reason)
{
	uint32_t done = 0;

	if (!s->forming || signals_got())
		return;
	ist_req_wait(s->forming, IST_NS_PER_S, NULL);
	if (ist_req_test(s->forming, &done, NULL) == IST_OK && done && ist_req_group(s->forming, &s->group, NULL) == IST_OK)
		ist_group_abort(s->group, reason);
}

int
session_group(struct session *s, const char *at, const char *name, uint32_t rank, uint32_t world, const char *backend,
	struct ist_group **out)
{
	struct ist_group_args args = group_args(s);
	struct ist_error err;

	args.at = at;
	args.name = name;
	args.rank = rank;
	args.size = world;
	args.backend = backend;
	ist_error_init(&err);
	return ist_group_new(s->endpoint, &args, out, &err) ? cli_fail(s->cli, &err) : EXIT_DONE;
}

void
session_close(struct session *s)
{
	signals_ends(NULL, NULL);
	if (s->forming) {
		ist_req_cancel(s->forming);
		ist_req_free(s->forming);
	}
	if (s->group)
		ist_group_free(s->group);
	if (s->endpoint)
		ist_endpoint_free(s->endpoint);
	ist_env_free(s->env);
	s->forming = NULL;
	s->group = NULL;
	s->endpoint = NULL;
	s->env = NULL;
}
