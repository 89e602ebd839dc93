/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"
#include "signals.h"
#include "value.h"

static int
announce(struct cli *cli, struct ist_store *store)
{
	char address[320], at[336];
	uint64_t n = sizeof(address) - 1;
	struct ist_error err;

	ist_error_init(&err);
	if (ist_store_address(store, address, &n, &err))
		return cli_fail(cli, &err);
	address[n] = 0;
	snprintf(at, sizeof(at), "tcp://%s", address);
	if (cli->json)
		return cli_print(json_pack("{s:s}", "address", at));
	printf("%s\n", at);
	return cli_printed();
}

static int
serve(struct cli *cli, struct session *s)
{
	struct ist_store_args args = { .struct_size = sizeof(args), .insecure = option_on(&cli->o, OPT_INSECURE) };
	struct ist_store *store = NULL;
	struct secret secret;
	struct ist_error err;
	int status = secret_read(cli, &secret);

	args.bind = option_text(&cli->o, OPT_STORE_BIND, NULL);
	args.secret = secret.bytes;
	args.secret_bytes = secret.n;
	ist_error_init(&err);
	if (status == EXIT_DONE && ist_store_new(s->env, &args, &store, &err))
		status = cli_fail_argument(cli, &err);
	secret_free(&secret);
	if (status == EXIT_DONE)
		status = announce(cli, store);
	if (status == EXIT_DONE && !signals_wait(cli_left_ns(cli))) {
		cli->json = false; /* its document has been told */
		status = cli_fail_code(cli, IST_TIMEOUT, "store", "served for as long as --timeout says");
	}
	if (store)
		ist_store_free(store);
	return status;
}

int
cmd_store(struct cli *cli)
{
	struct session s = { .cli = cli };
	int status;

	if (!option_given(&cli->o, OPT_STORE_BIND))
		return cli_usage(cli, "no address: give --bind HOST:PORT (port 0: any)");
	status = signals_start(cli);
	if (status == EXIT_DONE)
		status = session_env(&s, cli);
	if (status == EXIT_DONE)
		status = serve(cli, &s);
	session_close(&s);
	return signals_status(status);
}
