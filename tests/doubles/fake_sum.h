/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_sum.h - NCCL's types and reductions, the slow way: every number becomes a whole one or a double and goes back.
 */
#ifndef ISTHMUS_TESTS_FAKE_SUM_H
#define ISTHMUS_TESTS_FAKE_SUM_H

#include <stdint.h>
#include <string.h>

/* 0: no such type */
static inline size_t
fake_bytes(int type)
{
	static const uint8_t bytes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };

	return type >= 0 && type < 12 ? bytes[type] : 0;
}

/* Sign, exponent, fraction: of any small float. special: the largest exponent is no number (not so in e4m3). */
static inline double
fake_decode(uint32_t bits, int exponent, int fraction)
{
	int e = (int)(bits >> fraction & ((1u << exponent) - 1)), bias = (1 << (exponent - 1)) - 1;
	double f = (double)(bits & ((1u << fraction) - 1)) / (1u << fraction), v = e ? 1 + f : f;

	for (int i = e ? e : 1; i < bias; i++)
		v /= 2;
	for (int i = e ? e : 1; i > bias; i--)
		v *= 2;
	return bits >> (exponent + fraction) & 1 ? -v : v;
}

/* The nearest there is, by halving: they are in order. Ties go to the even one. */
static inline uint32_t
fake_encode(double v, int exponent, int fraction)
{
	uint32_t sign = v < 0, low = 0, high = ((1u << exponent) - 1) << fraction;
	double a = v < 0 ? -v : v, below, above;

	while (high - low > 1) {
		uint32_t mid = (low + high) / 2;

		if (fake_decode(mid, exponent, fraction) <= a)
			low = mid;
		else
			high = mid;
	}
	below = a - fake_decode(low, exponent, fraction);
	above = fake_decode(low + 1, exponent, fraction) - a;
	if (above < below || (above == below && low & 1))
		low++;
	return low | sign << (exponent + fraction);
}

static inline double
fake_double(int type, const void *p)
{
	static const int shape[12][2] = { [6] = { 5, 10 }, [9] = { 8, 7 }, [10] = { 4, 3 }, [11] = { 5, 2 } };
	uint16_t h = 0;
	float f;
	double d;

	if (type == 7)
		return memcpy(&f, p, 4), (double)f;
	if (type == 8)
		return memcpy(&d, p, 8), d;
	memcpy(&h, p, fake_bytes(type));
	return fake_decode(h, shape[type][0], shape[type][1]);
}

static inline void
fake_store(int type, void *p, double v)
{
	static const int shape[12][2] = { [6] = { 5, 10 }, [9] = { 8, 7 }, [10] = { 4, 3 }, [11] = { 5, 2 } };
	float f = (float)v;
	uint16_t h;

	if (type == 7) {
		memcpy(p, &f, 4);
	} else if (type == 8) {
		memcpy(p, &v, 8);
	} else {
		h = (uint16_t)fake_encode(v, shape[type][0], shape[type][1]);
		memcpy(p, &h, fake_bytes(type));
	}
}

static inline uint64_t
fake_whole(int type, const void *p)
{
	size_t n = fake_bytes(type);
	uint64_t v = 0;

	memcpy(&v, p, n);
	if (type % 2 == 0 && n < 8 && v >> (8 * n - 1))
		v |= ~UINT64_C(0) << 8 * n;
	return v;
}

/* 0 sum, 1 product, 2 the larger, 3 the smaller */
static inline uint64_t
fake_whole_of(int type, int reduce, uint64_t a, uint64_t b)
{
	int less = type % 2 ? a < b : (int64_t)a < (int64_t)b;

	return reduce == 0 ? a + b : reduce == 1 ? a * b : (reduce == 2) == less ? b : a;
}

static inline void
fake_reduce(int type, int reduce, char *to, const char *with, size_t count)
{
	size_t n = fake_bytes(type);

	for (size_t i = 0; i < count; i++, to += n, with += n)
		if (type < 6) {
			uint64_t v = fake_whole_of(type, reduce, fake_whole(type, to), fake_whole(type, with));

			memcpy(to, &v, n);
		} else {
			double a = fake_double(type, to), b = fake_double(type, with);

			fake_store(type, to, reduce == 0 ? a + b : reduce == 1 ? a * b : (reduce == 2) == (a < b) ? b : a);
		}
}

#endif
