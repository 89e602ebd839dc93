/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <string.h>

/* Words separated by blanks, as an array. */
static json_t *
words(const char *text)
{
	json_t *list = json_array();

	while (*(text += strspn(text, " "))) {
		size_t n = strcspn(text, " ");

		json_array_append_new(list, json_stringn(text, n));
		text += n;
	}
	return list;
}

int
cmd_version(struct cli *cli)
{
	uint32_t min, max;

	ist_proto_range(&min, &max);
	if (cli->json)
		return cli_print(json_pack("{s:s,s:i,s:[i,i],s:o,s:s}", "version", ist_version(), "abi", (int)ist_abi_version(), "proto",
			(int)min, (int)max, "features", words(ist_features()), "build", ist_build()));
	printf("isthmus %s\nabi %u, protocol %u to %u\nbuild %s\nfeatures %s\n", ist_version(), ist_abi_version(), min, max, ist_build(),
		ist_features()[0] ? ist_features() : "(none)");
	return cli_printed();
}
