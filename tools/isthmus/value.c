/* SPDX-License-Identifier: Apache-2.0 */
#include "value.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Reads leading digits; returns how many characters, 0 when there is none or it does not fit. */
static size_t
digits(const char *text, uint64_t *out)
{
	uint64_t v = 0;
	size_t n = 0;

	for (; text[n] >= '0' && text[n] <= '9'; n++)
		if (__builtin_mul_overflow(v, (uint64_t)10, &v) || __builtin_add_overflow(v, (uint64_t)(text[n] - '0'), &v))
			return 0;
	*out = v;
	return n;
}

bool
value_u64(const char *text, uint64_t *out)
{
	uint64_t v;
	size_t n = digits(text, &v);

	if (n == 0 || text[n])
		return false;
	*out = v;
	return true;
}

bool
value_bytes(const char *text, uint64_t *out)
{
	static const struct {
		const char *unit;
		uint32_t shift;
	} units[] = { { "", 0 }, { "B", 0 }, { "KiB", 10 }, { "MiB", 20 }, { "GiB", 30 }, { "TiB", 40 } };
	uint64_t v;
	size_t n = digits(text, &v);

	for (size_t i = 0; n && i < sizeof(units) / sizeof(units[0]); i++) {
		if (strcmp(text + n, units[i].unit))
			continue;
		if (v > UINT64_MAX >> units[i].shift)
			return false;
		*out = v << units[i].shift;
		return true;
	}
	return false;
}

bool
value_seconds(const char *text, int64_t *out_ns)
{
	uint64_t whole, ns = 0, scale = 100000000;
	size_t n = digits(text, &whole);

	if (n == 0 || whole >= 1000000000)
		return false;
	if (text[n] == '.') {
		if (text[++n] == 0)
			return false;
		for (; text[n] >= '0' && text[n] <= '9'; n++, scale /= 10)
			ns += scale * (uint64_t)(text[n] - '0');
	}
	if (text[n] || (whole == 0 && ns == 0))
		return false;
	*out_ns = (int64_t)(whole * 1000000000 + ns);
	return true;
}

bool
value_choice(const char *text, const char *choices, uint32_t *index)
{
	size_t want = strlen(text);
	uint32_t i = 0;

	for (const char *at = choices; *at; i++) {
		size_t n = strcspn(at, "|");

		if (n == want && !memcmp(at, text, n)) {
			*index = i;
			return true;
		}
		at += n + (at[n] == '|');
	}
	return false;
}

bool
value_flag(const char *text, bool *out)
{
	uint32_t i;

	if (!value_choice(text, "0|1|false|true|no|yes|off|on", &i))
		return false;
	*out = i % 2 == 1;
	return true;
}

bool
value_utf8(const char *text)
{
	json_t *t = json_string(text); /* takes nothing else */

	json_decref(t);
	return t != NULL;
}

bool
value_part(const char *text, uint32_t *part, uint32_t *parts)
{
	uint64_t i, n;
	size_t at = digits(text, &i);

	if (at == 0 || text[at] != '/' || !value_u64(text + at + 1, &n) || n == 0 || n > UINT32_MAX || i >= n)
		return false;
	*part = (uint32_t)i;
	*parts = (uint32_t)n;
	return true;
}

int64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double
seconds_since(int64_t start_ns)
{
	return (double)(now_ns() - start_ns) / 1e9;
}

const char *
human_bytes(uint64_t bytes, char room[24])
{
	static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
	double v = (double)bytes;
	size_t i = 0;

	for (; v >= 1000 && i + 1 < sizeof(units) / sizeof(units[0]); i++)
		v /= 1000;
	snprintf(room, 24, i && v < 100 ? "%.2f %s" : "%.0f %s", v, units[i]);
	return room;
}
