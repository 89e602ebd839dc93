/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/reduce.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

/* f16 as a double, from the definition. */
static double
f16_value(uint16_t h)
{
	int e = h >> 10 & 31, m = h & 1023;
	double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);

	return h & 0x8000 ? -v : v;
}

static void
f16_to_f32_is_exact(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 65536; h++) {
		double want = f16_value((uint16_t)h);
		float got = ist__f16_to_f32((uint16_t)h);

		assert_true(isnan(want) ? isnan(got) : (double)got == want && !signbit(got) == !signbit(want));
		if (!isnan(want))
			assert_int_equal(ist__f32_to_f16(got), h); /* and back */
	}
}

/* Every point halfway between two neighbours, and the floats beside it. */
static void
f32_to_f16_rounds_to_nearest_even(void **state)
{
	(void)state;
	for (uint16_t h = 0; h < 0x7BFF; h++) {
		float half = (float)((f16_value(h) + f16_value((uint16_t)(h + 1))) / 2);

		assert_int_equal(ist__f32_to_f16(half), h % 2 ? h + 1 : h);
		assert_int_equal(ist__f32_to_f16(nextafterf(half, INFINITY)), h + 1);
		assert_int_equal(ist__f32_to_f16(nextafterf(half, 0)), h);
		assert_int_equal(ist__f32_to_f16(-half), (h % 2 ? h + 1 : h) | 0x8000);
	}
	assert_int_equal(ist__f32_to_f16(65519.996f), 0x7BFF);
	assert_int_equal(ist__f32_to_f16(65520.0f), 0x7C00);
	assert_int_equal(ist__f32_to_f16(1e30f), 0x7C00);
	assert_int_equal(ist__f32_to_f16(-INFINITY), 0xFC00);
	assert_int_equal(ist__f32_to_f16(NAN), 0x7E00);
}

static void
f32_to_bf16_rounds_to_nearest_even(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 0x7F7F; h++) {
		float a = ist__bf16_to_f32((uint16_t)h), half;
		uint32_t u = h << 16 | 0x8000;

		memcpy(&half, &u, sizeof(half));
		assert_int_equal(ist__f32_to_bf16(a), h);
		assert_int_equal(ist__f32_to_bf16(half), h % 2 ? h + 1 : h);
		assert_int_equal(ist__f32_to_bf16(nextafterf(half, INFINITY)), h + 1);
		assert_int_equal(ist__f32_to_bf16(nextafterf(half, 0)), h);
	}
	assert_int_equal(ist__f32_to_bf16(3.4e38f), 0x7F80);
	assert_int_equal(ist__f32_to_bf16(NAN), 0x7FC0);
	assert_int_equal(ist__f32_to_bf16(-NAN), 0x7FC0);
}

static void
integers_wrap(void **state)
{
	int32_t a = INT32_MAX, b = 2, c;
	int64_t d = INT64_MIN, e = -1, f;
	uint8_t g = 200, h = 100, i;

	(void)state;
	ist__reduce(IST_I32, IST_SUM, &c, &a, &b, 1);
	assert_int_equal(c, INT32_MIN + 1);
	ist__reduce(IST_I32, IST_PROD, &c, &a, &b, 1);
	assert_int_equal(c, -2);
	ist__reduce(IST_I64, IST_SUM, &f, &d, &e, 1);
	assert_true(f == INT64_MAX);
	ist__reduce(IST_I64, IST_PROD, &f, &d, &e, 1);
	assert_true(f == INT64_MIN);
	ist__reduce(IST_U8, IST_SUM, &i, &g, &h, 1);
	assert_int_equal(i, 44);
	ist__reduce(IST_U8, IST_MIN, &i, &g, &h, 1);
	assert_int_equal(i, 100);
	ist__reduce(IST_I32, IST_MIN, &c, &(int32_t){ -5 }, &(int32_t){ 3 }, 1); /* signed */
	assert_int_equal(c, -5);
	ist__reduce(IST_I64, IST_MAX, &f, &e, &(int64_t){ 0 }, 1);
	assert_true(f == 0);
}

static void
nan_on_either_side_gives_the_one_nan(void **state)
{
	static const uint32_t quiet = 0x7FC00000, odd = 0xFFC12345;
	uint32_t one, out;
	float f = 1.0f;

	(void)state;
	memcpy(&one, &f, sizeof(one));
	for (uint32_t r = IST_SUM; r <= IST_MAX; r++) {
		ist__reduce(IST_F32, r, &out, &odd, &one, 1);
		assert_int_equal(out, quiet);
		ist__reduce(IST_F32, r, &out, &one, &odd, 1);
		assert_int_equal(out, quiet);
		for (int side = 0; side < 2; side++) {
			uint16_t nan = 0xFFC1, plain = 0x3C00, h;
			double d = -NAN, e = 2, g;
			uint64_t bits;

			ist__reduce(IST_BF16, r, &h, side ? &nan : &plain, side ? &plain : &nan, 1);
			assert_int_equal(h, 0x7FC0);
			ist__reduce(IST_F16, r, &h, side ? &nan : &plain, side ? &plain : &nan, 1);
			assert_int_equal(h, 0x7E00);
			ist__reduce(IST_F64, r, &g, side ? &d : &e, side ? &e : &d, 1);
			memcpy(&bits, &g, sizeof(bits));
			assert_true(bits == UINT64_C(0x7FF8) << 48);
		}
	}
}

static void
half_types_are_rounded_once(void **state)
{
	uint16_t a = ist__f32_to_bf16(256.0f), b = ist__f32_to_bf16(1.0f), c;

	(void)state;
	ist__reduce(IST_BF16, IST_SUM, &c, &a, &b, 1); /* 257: halfway between 256 and 258 */
	assert_int_equal(c, a);
	a = ist__f32_to_f16(2048.0f), b = ist__f32_to_f16(3.0f);
	ist__reduce(IST_F16, IST_SUM, &c, &a, &b, 1); /* 2051: halfway, even is 2052 */
	assert_true(ist__f16_to_f32(c) == 2052.0f);
}

/* Vector loops and their ends, at any address, in place on either side. */
static void
any_length_any_address(void **state)
{
	enum { MOST = 67 };
	static char room[3][MOST * 4 + 4];

	(void)state;
	for (uint64_t count = 0; count < MOST; count++)
		for (unsigned at = 0; at < 4; at++)
			for (int place = 0; place < 3; place++) {
				char *a = room[0] + at, *b = room[1] + (at + 1) % 4, *to = room[place] + (place == 0 ? at : place == 1 ? (at + 1) % 4 : 3);

				for (uint64_t i = 0; i < count; i++) {
					float x = (float)i, y = 2 * (float)i;

					memcpy(a + i * 4, &x, 4);
					memcpy(b + i * 4, &y, 4);
				}
				memset(to + count * 4, 0x55, 1);
				ist__reduce(IST_F32, IST_SUM, to, a, b, count);
				for (uint64_t i = 0; i < count; i++) {
					float z;

					memcpy(&z, to + i * 4, 4);
					assert_true(z == 3 * (float)i);
				}
				assert_int_equal(to[count * 4], 0x55);
			}
}

static void
what_can_be_reduced(void **state)
{
	(void)state;
	assert_true(ist__reduce_has(IST_BF16, IST_MAX));
	assert_false(ist__reduce_has(IST_F8E4M3, IST_SUM));
	assert_false(ist__reduce_has(IST_BYTES, IST_SUM));
	assert_false(ist__reduce_has(IST_I32, 0));
	assert_false(ist__reduce_has(IST_I32, 5));
	assert_int_equal(ist__elem_bytes(IST_F64), 8);
	assert_int_equal(ist__elem_bytes(99), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(f16_to_f32_is_exact),
		cmocka_unit_test(f32_to_f16_rounds_to_nearest_even),
		cmocka_unit_test(f32_to_bf16_rounds_to_nearest_even),
		cmocka_unit_test(integers_wrap),
		cmocka_unit_test(nan_on_either_side_gives_the_one_nan),
		cmocka_unit_test(half_types_are_rounded_once),
		cmocka_unit_test(any_length_any_address),
		cmocka_unit_test(what_can_be_reduced),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
