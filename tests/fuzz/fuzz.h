/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h - what the targets share: promises that abort when broken, and the input cut into numbers and pieces. A target is
 * one function; libFuzzer calls it (scripts/fuzz), or replay.c does, with what lies in tests/fuzz/corpus.
 */
#ifndef ISTHMUS_TESTS_FUZZ_H
#define ISTHMUS_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void
must(bool ok)
{
	if (!ok)
		abort();
}

struct input {
	const uint8_t *at;
	size_t left;
};

/* Zeros where the input has ended: every input means something. */
static inline uint8_t
take_u8(struct input *in)
{
	if (in->left == 0)
		return 0;
	in->left--;
	return *in->at++;
}

static inline uint16_t
take_u16(struct input *in)
{
	uint16_t low = take_u8(in);

	return (uint16_t)(low | take_u8(in) << 8);
}

static inline uint64_t
take_u64(struct input *in)
{
	uint64_t v = 0;

	for (int i = 0; i < 8; i++)
		v |= (uint64_t)take_u8(in) << (8 * i);
	return v;
}

/* At most n bytes, lent. */
static inline const uint8_t *
take(struct input *in, size_t n, size_t *got)
{
	const uint8_t *at = in->at;

	*got = n < in->left ? n : in->left;
	if (*got > 0)
		in->at += *got;
	in->left -= *got;
	return at;
}

/* A piece that says its own length, u16. */
static inline const uint8_t *
take_piece(struct input *in, size_t *got)
{
	size_t n = take_u16(in);

	return take(in, n, got);
}

#endif
