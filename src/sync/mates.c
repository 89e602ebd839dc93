/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/mates.h"

#include <string.h>

enum { NAME_ROOM = 1024 };

/* What the weight beside a scale is called, tried in this order after the name's stem. */
static const char *const endings[] = { "", ".weight", ".qweight", "_blocks", "_packed", ".weight_packed" };

static uint32_t
find_with(const struct ist__names *set, const char *stem, uint64_t stem_bytes, const char *ending)
{
	uint64_t n = strlen(ending);
	char full[NAME_ROOM];

	if (stem_bytes + n > sizeof(full))
		return IST__NO_NAME;
	memcpy(full, stem, stem_bytes);
	memcpy(full + stem_bytes, ending, n);
	return ist__names_find(set, full, stem_bytes + n);
}

/* Bytes before the last "_scale" or ".scale" of a name; 0: it is no scale. */
static uint64_t
stem_of(const char *name)
{
	const char *at = NULL, *next = name;

	while ((next = strstr(next, "scale")) != NULL) {
		if (next > name + 1 && (next[-1] == '_' || next[-1] == '.'))
			at = next - 1;
		next += 5;
	}
	return at ? (uint64_t)(at - name) : 0;
}

static uint32_t
mate_of(const struct ist__names *set, const char *name)
{
	uint64_t stem = stem_of(name);
	const char *dot;

	if (stem == 0)
		return IST__NO_MATE;
	for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
		uint32_t id = find_with(set, name, stem, endings[i]);

		if (id != IST__NO_NAME)
			return id;
	}
	/* "layer.input_scale" goes with "layer.weight" */
	dot = memrchr(name, '.', stem);
	return dot ? find_with(set, name, (uint64_t)(dot - name), ".weight") : IST__NO_MATE;
}

bool
ist__mates_find(const struct ist__ctx *ctx, const char *const *names, uint32_t n, uint32_t *mate)
{
	struct ist__names set;
	uint32_t known, scales = 0;
	bool ok;

	for (uint32_t i = 0; i < n; i++) {
		mate[i] = IST__NO_MATE;
		scales += names[i] && stem_of(names[i]) > 0;
	}
	if (scales == 0)
		return true;
	ist__names_init(&set, ctx);
	ok = ist__names_reserve(&set, n);
	for (uint32_t i = 0; ok && i < n; i++)
		if (names[i])
			ok = ist__names_add(&set, names[i], strlen(names[i]), i, &known);
	for (uint32_t i = 0; ok && i < n; i++) {
		mate[i] = names[i] ? mate_of(&set, names[i]) : IST__NO_MATE;
		if (mate[i] == i)
			mate[i] = IST__NO_MATE;
	}
	ist__names_fini(&set);
	return ok;
}
