/* SPDX-License-Identifier: Apache-2.0 */
#include "make.h"
#include "signals.h"
#include "value.h"

static int
plan(struct cli *cli, struct layout *l)
{
	const struct options *o = &cli->o;
	bool named = option_given(o, OPT_LAYOUT), plain = option_given(o, OPT_TENSORS) || option_given(o, OPT_BYTES);
	const struct model *model;
	bool good;

	if (named == plain)
		return cli_usage(cli, "give --layout, or --tensors and --bytes");
	if (plain && !(option_given(o, OPT_TENSORS) && option_given(o, OPT_BYTES)))
		return cli_usage(cli, "--tensors and --bytes belong together");
	if (plain && option_given(o, OPT_LAYERS))
		return cli_usage(cli, "--layers cuts a --layout");
	if (named) {
		model = layout_model((uint32_t)option_number(o, OPT_LAYOUT, 0));
		if (option_number(o, OPT_LAYERS, 0) > model->layers)
			return cli_usage(cli, "%s has %llu layers", model->name, (unsigned long long)model->layers);
		good = layout_of_model(l, model, option_number(o, OPT_LAYERS, model->layers));
	} else {
		good = layout_of_tensors(l, option_number(o, OPT_TENSORS, 1), option_number(o, OPT_BYTES, 0));
	}
	return good ? EXIT_DONE : cli_fail_code(cli, IST_NO_MEMORY, "make-checkpoint", "list of tensors");
}

int
cmd_make_checkpoint(struct cli *cli)
{
	struct layout layout = { .n = 0 };
	int64_t start = now_ns();
	char room[24];
	int status = plan(cli, &layout);

	if (status == EXIT_DONE)
		status = signals_start(cli);
	if (status == EXIT_DONE)
		status = make_checkpoint(cli, cli->o.args[0], &layout, option_number(&cli->o, OPT_SEED, 1));
	if (status == EXIT_DONE && cli->json)
		status = cli_print(json_pack("{s:o,s:o,s:o,s:f}", "path", json_text(cli->o.args[0]), "tensors", json_u64(layout.n), "bytes",
			json_u64(layout.bytes), "seconds", seconds_since(start)));
	else if (status == EXIT_DONE && !cli->quiet) {
		printf("%s: %llu tensors, %s in %.1f s\n", cli->o.args[0], (unsigned long long)layout.n, human_bytes(layout.bytes, room), seconds_since(start));
		status = cli_printed();
	}
	layout_free(&layout);
	return signals_status(status);
}
