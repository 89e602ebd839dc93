/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <string.h>

static const struct {
	const char *name;
	uint32_t kind;
} ops[] = {
	{ "send", IST_OP_SEND }, { "recv", IST_OP_RECV }, { "broadcast", IST_OP_BROADCAST }, { "all_gather", IST_OP_ALL_GATHER },
	{ "all_reduce", IST_OP_ALL_REDUCE }, { "reduce_scatter", IST_OP_REDUCE_SCATTER }, { "gather", IST_OP_GATHER },
	{ "scatter", IST_OP_SCATTER }, { "all_to_all", IST_OP_ALL_TO_ALL }, { "barrier", IST_OP_BARRIER }, { "read", IST_OP_READ },
};

json_t *
json_ops(uint64_t set)
{
	json_t *list = json_array();

	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
		if (set >> ops[i].kind & 1)
			json_array_append_new(list, json_string(ops[i].name));
	return list;
}

static json_t *
row(const struct ist_backend_info *info)
{
	return json_pack("{s:o,s:o,s:b,s:o,s:o,s:o,s:o,s:o}", "name", json_text(info->name), "kind", json_text(info->kind), "usable",
		(int)info->usable, "reason", json_text(info->reason), "library", json_text(info->library), "version",
		json_text(info->version), "native", json_ops(info->native_ops), "composed", json_ops(info->composed_ops));
}

static void
tell_ops(const char *what, json_t *list)
{
	json_t *name;
	size_t i;

	if (json_array_size(list))
		printf("  %s:", what);
	json_array_foreach(list, i, name)
		printf(" %s", json_string_value(name));
	if (json_array_size(list))
		putchar('\n');
}

static const char *
text_of(json_t *row_object, const char *key)
{
	const char *text = json_string_value(json_object_get(row_object, key));

	return text ? text : "";
}

static int
tell(json_t *rows)
{
	json_t *r;
	size_t i;

	json_array_foreach(rows, i, r) {
		bool usable = json_is_true(json_object_get(r, "usable"));

		printf("%-10s %-8s %s%s%s  %s%s%s\n", text_of(r, "name"), text_of(r, "kind"), usable ? "usable" : "not usable",
			usable || !text_of(r, "reason")[0] ? "" : ": ", usable ? "" : text_of(r, "reason"), text_of(r, "library"),
			text_of(r, "library")[0] ? " " : "", text_of(r, "version"));
		tell_ops("native", json_object_get(r, "native"));
		tell_ops("composed", json_object_get(r, "composed"));
	}
	json_decref(rows);
	return cli_printed();
}

int
cmd_backends(struct cli *cli)
{
	struct session s = { .cli = cli };
	struct ist_backend_info info;
	struct ist_error err;
	json_t *rows = json_array();
	int status = session_env(&s, cli);

	for (uint32_t i = 0; status == EXIT_DONE && i < ist_backend_count(s.env); i++) {
		info = (struct ist_backend_info){ .struct_size = sizeof(info) };
		ist_error_init(&err);
		if (ist_backend_info(s.env, i, &info, &err))
			status = cli_fail(cli, &err);
		else
			json_array_append_new(rows, row(&info));
	}
	session_close(&s);
	if (status != EXIT_DONE)
		json_decref(rows);
	else
		status = cli->json ? cli_print(json_pack("{s:o}", "rows", rows)) : tell(rows);
	return status;
}
