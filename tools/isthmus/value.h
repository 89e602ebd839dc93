/* SPDX-License-Identifier: Apache-2.0
 *
 * value.h - texts that users type, parsed whole or refused: numbers, sizes, seconds, parts. Nothing is guessed, and
 * nothing is cut out of a longer text.
 */
#ifndef ISTHMUS_TOOL_VALUE_H
#define ISTHMUS_TOOL_VALUE_H

#include <stdbool.h>
#include <stdint.h>

bool value_u64(const char *text, uint64_t *out);          /* decimal digits and nothing else */
bool value_bytes(const char *text, uint64_t *out);        /* digits, then nothing, B, KiB, MiB, GiB or TiB */
bool value_seconds(const char *text, int64_t *out_ns);    /* digits with at most one point; 0 < value < 10^9 */
bool value_flag(const char *text, bool *out);             /* 1 0 true false yes no on off */
bool value_utf8(const char *text);
bool value_part(const char *text, uint32_t *part, uint32_t *parts); /* "i/n", i from 0 */
/* True when text stands in choices, "a|b|c". */
bool value_choice(const char *text, const char *choices, uint32_t *index);

int64_t now_ns(void);
double seconds_since(int64_t start_ns);
/* "1.50 GB", "312 kB": decimal, for people. */
const char *human_bytes(uint64_t bytes, char room[24]);

#endif
