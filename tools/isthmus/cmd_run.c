/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_run.c - N processes of one program on this machine, with a meeting place they can find.
 */
#include "local.h"
#include "spawn.h"

#include <stdlib.h>

int
cmd_run(struct cli *cli)
{
	struct local local;
	uint32_t n = (uint32_t)option_number(&cli->o, OPT_RANKS, 1);
	int status;

	if (!option_given(&cli->o, OPT_RANKS))
		return cli_usage(cli, "give -n N, the number of processes");
	status = local_open(&local, cli);
	if (status == EXIT_DONE)
		status = local_run(&local, cli->o.args, n);
	local_close(&local);
	return status;
}
