/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c - "key=value,..." as the user gave it, and variables that would turn a communicator into something else.
 */
#include "backends/nccl/chan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool
take(const char *key, size_t n_key, const char *value, size_t n, struct nccl_options *out)
{
	if (n_key == 7 && !strncmp(key, "library", 7)) {
		if (n == 0 || n >= sizeof(out->library))
			return false;
		memcpy(out->library, value, n);
		out->library[n] = 0;
		return true;
	}
	if (n_key != 6 || strncmp(key, "verify", 6) != 0 || n != 1 || (*value != '0' && *value != '1'))
		return false;
	out->verify = *value == '1';
	return true;
}

static ist_err
check_variables(struct ist_status *why)
{
	const char *id = getenv("NCCL_COMM_ID"), *blocking = getenv("NCCL_COMM_BLOCKING");

	if (id && *id)
		return ist__nccl_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0, "NCCL_COMM_ID is set (%.80s): all groups would meet there; unset it", id);
	if (blocking && !strcmp(blocking, "1"))
		return ist__nccl_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0, "NCCL_COMM_BLOCKING=1 makes calls that can't be ended; unset it");
	return IST_OK;
}

ist_err
ist__nccl_options(const char *text, struct nccl_options *out, struct ist_status *why)
{
	*out = (struct nccl_options){ .verify = true };
	while (text && *text) {
		size_t n = strcspn(text, ","), key = strcspn(text, "=,");

		if (n > 0 && (key == n || !take(text, key, text + key + 1, n - key - 1, out)))
			return ist__nccl_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0, "option '%.*s': there are library=PATH and verify=0 or 1",
				n < 100 ? (int)n : 100, text);
		text += n + (text[n] == ',');
	}
	return check_variables(why);
}
