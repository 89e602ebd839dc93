/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_json.c - the reader side by side with jansson: both take a text or both refuse it, but for what jansson leaves to its
 * limits (size of numbers, depth, NUL in texts), and where the input is cut into pieces does not matter.
 */
#include "base/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct pieces {
	struct ist__json_memory m;
	uint64_t step;
};

static bool
in_pieces(void *ctx, void *to, uint64_t room, uint64_t *bytes)
{
	struct pieces *p = ctx;

	return ist__json_from_memory(&p->m, to, p->step < room ? p->step : room, bytes);
}

static enum ist__json_fault
run(const uint8_t *data, size_t size, uint64_t step, uint64_t *events)
{
	struct pieces p = { { data, size }, step };
	enum ist__json_event event;
	enum ist__json_fault fault;
	struct ist__ctx ctx;
	struct ist__json j;

	ist__ctx_init(&ctx);
	ist__json_init(&j, &ctx, in_pieces, &p, 1 << 20);
	*events = 0;
	do {
		event = ist__json_next(&j);
		*events += 1;
		if ((event == IST__JSON_KEY || event == IST__JSON_STRING || event == IST__JSON_NUMBER) && j.text[j.text_bytes] != 0)
			abort();
	} while (event != IST__JSON_BAD && event != IST__JSON_END);
	fault = j.fault;
	if ((event == IST__JSON_END) != (fault == IST__JSON_SOUND) || j.fault_at > size)
		abort();
	ist__json_fini(&j);
	return fault;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t events, again;
	enum ist__json_fault fault = run(data, size, UINT64_MAX, &events);
	json_error_t error;
	json_t *tree;

	if (run(data, size, 1 + size % 7, &again) != fault || events != again)
		abort();
	if (memchr(data, 0, size)) { /* jansson loses one that follows a number */
		if (fault == IST__JSON_SOUND)
			abort();
		return 0;
	}
	if (fault == IST__JSON_LIMIT || fault == IST__JSON_MEMORY)
		return 0;
	tree = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
	if (tree && fault != IST__JSON_SOUND)
		abort();
	if (!tree && fault == IST__JSON_SOUND) {
		enum json_error_code code = json_error_code(&error);

		if (code != json_error_numeric_overflow && code != json_error_stack_overflow && code != json_error_null_byte_in_key &&
		    code != json_error_null_character)
			abort();
	}
	json_decref(tree);
	return 0;
}
