/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.c - one loop for each pair of type and operation, made from a list. Loads and stores go through memcpy, since
 * callers' buffers may lie at any address; compilers turn that into plain and into vector instructions.
 */
#include "coll/reduce.h"

#include <string.h>

/* ---- half precision ---- */

static inline uint32_t
bits_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline float
float_of(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

float
ist__bf16_to_f32(uint16_t h)
{
	return float_of((uint32_t)h << 16);
}

uint16_t
ist__f32_to_bf16(float f)
{
	uint32_t u = bits_of(f);
	uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1)) >> 16;

	return (u & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0 : (uint16_t)rounded;
}

/* Normal numbers: move the exponent. Subnormal ones: let a subtraction in f32 do the shifting. */
float
ist__f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7FFFu;
	uint32_t u;

	if (rest >= 0x7C00)
		u = 0x7F800000u | (rest & 0x3FFu) << 13;
	else if (rest >= 0x400)
		u = (rest << 13) + (112u << 23);
	else
		u = bits_of(float_of((rest << 13) + (113u << 23)) - float_of(113u << 23));
	return float_of(sign | u);
}

uint16_t
ist__f32_to_f16(float f)
{
	uint32_t u = bits_of(f), sign = (u >> 16) & 0x8000u, rest = u & 0x7FFFFFFFu;
	uint32_t h;

	if (rest > 0x7F800000u)
		return 0x7E00; /* the one NaN */
	if (rest >= 0x47800000u) /* 65536 and more, infinity */
		h = 0x7C00;
	else if (rest < 0x38800000u) /* below 2^-14: adding 0.5 leaves the subnormal's bits at the bottom, rounded to even */
		h = bits_of(float_of(rest) + 0.5f) - bits_of(0.5f);
	else
		h = (rest - (112u << 23) + 0xFFFu + ((rest >> 13) & 1)) >> 13;
	return (uint16_t)(sign | h);
}

/* ---- one element ---- */

#define ADD(x, y) ((x) + (y))
#define MUL(x, y) ((x) * (y))
#define MIN_INT(x, y) ((y) < (x) ? (y) : (x))
#define MAX_INT(x, y) ((y) > (x) ? (y) : (x))
/* NaN: x + y is one, and is made the one NaN afterwards */
#define MIN_FLOAT(x, y) ((x) != (x) || (y) != (y) ? (x) + (y) : (y) < (x) ? (y) : (x))
#define MAX_FLOAT(x, y) ((x) != (x) || (y) != (y) ? (x) + (y) : (y) > (x) ? (y) : (x))

#define SAME(x) (x)
#define U8_OF(x) ((uint8_t)(x))
static inline float
quiet_f32(float f)
{
	return f != f ? float_of(0x7FC00000u) : f;
}

static inline double
quiet_f64(double f)
{
	static const uint64_t nan = UINT64_C(0x7FF8) << 48;
	double quiet;

	memcpy(&quiet, &nan, sizeof(quiet));
	return f != f ? quiet : f;
}

/* Name, type as stored, type of the sum, load, store, operation. Sums and products of integers are done unsigned: they
 * wrap. U8 is done in u32, where nothing can overflow. */
#define LOOP(name, stored, wide, load, store, op)                                           \
	static void name(void *to, const void *a, const void *b, uint64_t count)            \
	{                                                                                   \
		for (uint64_t i = 0; i < count; i++) {                                      \
			stored x, y, z;                                                     \
			wide v, w;                                                          \
			memcpy(&x, (const char *)a + i * sizeof(x), sizeof(x));             \
			memcpy(&y, (const char *)b + i * sizeof(y), sizeof(y));             \
			v = load(x), w = load(y);                                           \
			z = store(op(v, w));                                                \
			memcpy((char *)to + i * sizeof(z), &z, sizeof(z));                  \
		}                                                                           \
	}

LOOP(u8_sum, uint8_t, uint32_t, SAME, U8_OF, ADD)
LOOP(u8_prod, uint8_t, uint32_t, SAME, U8_OF, MUL)
LOOP(u8_min, uint8_t, uint8_t, SAME, SAME, MIN_INT)
LOOP(u8_max, uint8_t, uint8_t, SAME, SAME, MAX_INT)
LOOP(i32_sum, uint32_t, uint32_t, SAME, SAME, ADD)
LOOP(i32_prod, uint32_t, uint32_t, SAME, SAME, MUL)
LOOP(i32_min, int32_t, int32_t, SAME, SAME, MIN_INT)
LOOP(i32_max, int32_t, int32_t, SAME, SAME, MAX_INT)
LOOP(i64_sum, uint64_t, uint64_t, SAME, SAME, ADD)
LOOP(i64_prod, uint64_t, uint64_t, SAME, SAME, MUL)
LOOP(i64_min, int64_t, int64_t, SAME, SAME, MIN_INT)
LOOP(i64_max, int64_t, int64_t, SAME, SAME, MAX_INT)
LOOP(f32_sum, float, float, SAME, quiet_f32, ADD)
LOOP(f32_prod, float, float, SAME, quiet_f32, MUL)
LOOP(f32_min, float, float, SAME, quiet_f32, MIN_FLOAT)
LOOP(f32_max, float, float, SAME, quiet_f32, MAX_FLOAT)
LOOP(f64_sum, double, double, SAME, quiet_f64, ADD)
LOOP(f64_prod, double, double, SAME, quiet_f64, MUL)
LOOP(f64_min, double, double, SAME, quiet_f64, MIN_FLOAT)
LOOP(f64_max, double, double, SAME, quiet_f64, MAX_FLOAT)
LOOP(bf16_sum, uint16_t, float, ist__bf16_to_f32, ist__f32_to_bf16, ADD)
LOOP(bf16_prod, uint16_t, float, ist__bf16_to_f32, ist__f32_to_bf16, MUL)
LOOP(bf16_min, uint16_t, float, ist__bf16_to_f32, ist__f32_to_bf16, MIN_FLOAT)
LOOP(bf16_max, uint16_t, float, ist__bf16_to_f32, ist__f32_to_bf16, MAX_FLOAT)
LOOP(f16_sum, uint16_t, float, ist__f16_to_f32, ist__f32_to_f16, ADD)
LOOP(f16_prod, uint16_t, float, ist__f16_to_f32, ist__f32_to_f16, MUL)
LOOP(f16_min, uint16_t, float, ist__f16_to_f32, ist__f32_to_f16, MIN_FLOAT)
LOOP(f16_max, uint16_t, float, ist__f16_to_f32, ist__f32_to_f16, MAX_FLOAT)

/* ---- tables ---- */

typedef void (*loop)(void *to, const void *a, const void *b, uint64_t count);

static const struct {
	uint32_t dtype;
	loop by_reduce[4]; /* from IST_SUM on */
} kernels[] = {
	{ IST_U8, { u8_sum, u8_prod, u8_min, u8_max } },
	{ IST_I32, { i32_sum, i32_prod, i32_min, i32_max } },
	{ IST_I64, { i64_sum, i64_prod, i64_min, i64_max } },
	{ IST_F32, { f32_sum, f32_prod, f32_min, f32_max } },
	{ IST_F64, { f64_sum, f64_prod, f64_min, f64_max } },
	{ IST_BF16, { bf16_sum, bf16_prod, bf16_min, bf16_max } },
	{ IST_F16, { f16_sum, f16_prod, f16_min, f16_max } },
};

static loop
find(uint32_t dtype, uint32_t reduce)
{
	if (reduce < IST_SUM || reduce > IST_MAX)
		return NULL;
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
		if (kernels[i].dtype == dtype)
			return kernels[i].by_reduce[reduce - IST_SUM];
	return NULL;
}

bool
ist__reduce_has(uint32_t dtype, uint32_t reduce)
{
	return find(dtype, reduce) != NULL;
}

void
ist__reduce(uint32_t dtype, uint32_t reduce, void *to, const void *a, const void *b, uint64_t count)
{
	loop f = find(dtype, reduce);

	if (f && count > 0)
		f(to, a, b, count);
}

static const struct {
	uint32_t dtype, bytes;
	const char *name;
} dtypes[] = {
	{ IST_BYTES, 1, "BYTES" }, { IST_I8, 1, "I8" }, { IST_U8, 1, "U8" }, { IST_I16, 2, "I16" }, { IST_U16, 2, "U16" },
	{ IST_I32, 4, "I32" }, { IST_U32, 4, "U32" }, { IST_I64, 8, "I64" }, { IST_U64, 8, "U64" }, { IST_F16, 2, "F16" },
	{ IST_BF16, 2, "BF16" }, { IST_F32, 4, "F32" }, { IST_F64, 8, "F64" }, { IST_F8E4M3, 1, "F8E4M3" },
	{ IST_F8E5M2, 1, "F8E5M2" },
};

uint32_t
ist__elem_bytes(uint32_t dtype)
{
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
		if (dtypes[i].dtype == dtype)
			return dtypes[i].bytes;
	return 0;
}

const char *
ist__elem_name(uint32_t dtype)
{
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
		if (dtypes[i].dtype == dtype)
			return dtypes[i].name;
	return "?";
}

const char *
ist__reduce_name(uint32_t reduce)
{
	static const char *const names[] = { "sum", "prod", "min", "max" };

	return reduce >= IST_SUM && reduce <= IST_MAX ? names[reduce - IST_SUM] : "?";
}
