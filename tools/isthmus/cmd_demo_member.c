/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_demo_member.c - one process of the demo: a member of a busy world of its own, which gives or takes weights through
 * another group. Ranks 0 and 1 are the trainers A and B, the others the engines C, D, E.
 */
#include "demo.h"
#include "signals.h"
#include "transfer.h"

#include <stdlib.h>
#include <unistd.h>

#define TRAINERS 2

/* One of the five talks to the terminal; what the others say is kept in case it is needed. */
static void
keep_quiet(struct cli *cli, uint32_t rank)
{
	char path[4200];

	snprintf(path, sizeof(path), "%s/member-%u.log", option_text(&cli->o, OPT_OUT, "."), rank);
	if (rank == 0)
		return;
	cli->quiet = true;
	if (!freopen(path, "we", stderr))
		_exit(EXIT_FAILED);
}

static int
leave_result(struct cli *cli, const struct transfer *t, const struct world *w)
{
	char path[4200];
	json_t *doc = transfer_document(t);
	bool bad;

	snprintf(path, sizeof(path), "%s/member-%u.json", option_text(&cli->o, OPT_OUT, "."), t->s.rank);
	json_object_set_new(doc, "own_world", json_pack("{s:s,s:i}", "kind", w->name, "barriers", (int)atomic_load(&w->rounds)));
	bad = json_dump_file(doc, path, JSON_COMPACT) != 0;
	json_decref(doc);
	return bad ? cli_fail_code(cli, IST_IO, "demo", "%s can't be written", path) : EXIT_DONE;
}

static int
start_world(struct transfer *t, struct world *w, struct ist_group **own)
{
	bool trainer = t->s.rank < TRAINERS;
	int status;

	if (option_number(&t->s.cli->o, OPT_WORLDS, 0) == 1) {
		if (!world_mpi(w) || !world_start(w))
			return cli_fail_code(t->s.cli, IST_UNSUPPORTED, "demo", "MPI world: %s", w->text);
		return EXIT_DONE;
	}
	status = session_group(&t->s, t->s.at, trainer ? "trainers" : "engines", trainer ? t->s.rank : t->s.rank - TRAINERS,
		trainer ? TRAINERS : t->s.world - TRAINERS, NULL, own);
	if (status != EXIT_DONE)
		return status;
	world_own(w, *own);
	return world_start(w) ? EXIT_DONE : cli_fail_code(t->s.cli, IST_INTERNAL, "demo", "own world: %s", w->text);
}

/* One command line for all ranks of a job: a closing '%' stands for the member's letter. */
static const char *
place_of(const struct cli *cli, uint32_t rank, char room[4200])
{
	size_t n = (size_t)snprintf(room, 4200, "%s", cli->o.args[0]);

	if (n && n < 4200 && room[n - 1] == '%')
		room[n - 1] = (char)('A' + rank);
	return room;
}

static int
work(struct cli *cli, struct transfer *t, struct world *w, struct ist_group **own)
{
	char room[4200];
	const char *place = place_of(cli, t->s.rank, room);
	int status = session_open(&t->s);

	if (status == EXIT_DONE)
		status = start_world(t, w, own);
	if (status == EXIT_DONE)
		status = session_start(&t->s);
	if (status == EXIT_DONE)
		status = t->s.rank < TRAINERS ? transfer_open_source(t, place) : transfer_open_sink(t, place);
	if (status == EXIT_DONE)
		status = session_meet(&t->s);
	if (status == EXIT_DONE)
		status = transfer_update(t);
	/* the own worlds go on, whatever came of the weights */
	if (!signals_got() && w->running && !world_stop(w) && status == EXIT_DONE)
		status = cli_fail_code(cli, IST_INTERNAL, "demo", "own world: %s", w->text);
	return status == EXIT_DONE ? leave_result(cli, t, w) : status;
}

int
cmd_demo_member(struct cli *cli)
{
	struct transfer t = { .ck = NULL };
	struct world world = { .running = false };
	struct ist_group *own = NULL;
	int status = session_plan(&t.s, cli);
	char error_to[4200];

	if (status != EXIT_DONE)
		return status;
	snprintf(error_to, sizeof(error_to), "%s/member-%u.error", option_text(&cli->o, OPT_OUT, "."), t.s.rank);
	cli->error_to = error_to;
	keep_quiet(cli, t.s.rank);
	status = signals_start(cli);
	if (status == EXIT_DONE)
		status = work(cli, &t, &world, &own);
	if (world.running) { /* interrupted: nobody waits for the others' barriers */
		if (!own)
			_exit(signals_status(EXIT_FAILED));
		ist_group_abort(own, "the demo was interrupted");
		world_stop(&world);
	}
	if (own)
		ist_group_free(own);
	transfer_close(&t);
	cli->error_to = NULL;
	return signals_status(status);
}
