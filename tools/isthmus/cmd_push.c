/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_push.c - push and pull: the same call, as a source and as a sink.
 *
 * Meeting goes on while the checkpoint or the destination is opened: when that fails the others hear of it at once.
 */
#include "signals.h"
#include "transfer.h"

static int
carry(struct cli *cli, int (*open_end)(struct transfer *t, const char *path))
{
	struct transfer t = { .ck = NULL };
	int status = session_plan(&t.s, cli);

	if (status != EXIT_DONE)
		return status;
	status = signals_start(cli);
	if (status == EXIT_DONE)
		status = session_open(&t.s);
	if (status == EXIT_DONE)
		status = session_start(&t.s);
	if (status == EXIT_DONE) {
		status = open_end(&t, cli->o.args[0]);
		if (status != EXIT_DONE)
			session_give_up(&t.s, t.why);
	}
	if (status == EXIT_DONE)
		status = session_meet(&t.s);
	if (status == EXIT_DONE)
		status = transfer_update(&t);
	if (status == EXIT_DONE)
		status = transfer_tell(&t);
	transfer_close(&t);
	return signals_status(status);
}

int
cmd_push(struct cli *cli)
{
	return carry(cli, transfer_open_source);
}

int
cmd_pull(struct cli *cli)
{
	return carry(cli, transfer_open_sink);
}
