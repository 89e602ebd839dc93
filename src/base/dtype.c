/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"

#include <string.h>

struct dtype {
	char name[14];
	uint16_t bits;
};

/* Position is the number. */
static const struct dtype dtypes[] = {
	{ "", 0 },
	{ "BOOL", 8 },
	{ "F4", 4 },
	{ "F6_E2M3", 6 },
	{ "F6_E3M2", 6 },
	{ "U8", 8 },
	{ "I8", 8 },
	{ "F8_E5M2", 8 },
	{ "F8_E4M3", 8 },
	{ "F8_E8M0", 8 },
	{ "F8_E4M3FNUZ", 8 },
	{ "F8_E5M2FNUZ", 8 },
	{ "I16", 16 },
	{ "U16", 16 },
	{ "F16", 16 },
	{ "BF16", 16 },
	{ "I32", 32 },
	{ "U32", 32 },
	{ "F32", 32 },
	{ "C64", 64 },
	{ "F64", 64 },
	{ "I64", 64 },
	{ "U64", 64 },
};
#define N_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

uint32_t
ist__dtype_find(const char *name, uint64_t n)
{
	for (uint32_t i = 1; i < N_DTYPES; i++)
		if (strlen(dtypes[i].name) == n && !memcmp(dtypes[i].name, name, n))
			return i;
	return IST__DTYPE_NONE;
}

const char *
ist__dtype_name(uint32_t dtype)
{
	return dtype > 0 && dtype < N_DTYPES ? dtypes[dtype].name : NULL;
}

uint32_t
ist__dtype_bits(uint32_t dtype)
{
	return dtype < N_DTYPES ? dtypes[dtype].bits : 0;
}

ist_err
ist__dtype_bytes(uint32_t dtype, const uint64_t *shape, uint32_t rank, uint64_t *bytes)
{
	uint64_t n = 1, bits;

	if (ist__dtype_bits(dtype) == 0)
		return IST_UNKNOWN_DTYPE;
	for (uint32_t i = 0; i < rank; i++)
		if (__builtin_mul_overflow(n, shape[i], &n))
			return IST_OVERFLOW;
	if (__builtin_mul_overflow(n, ist__dtype_bits(dtype), &bits))
		return IST_OVERFLOW;
	if (bits % 8 != 0)
		return IST_BAD_ENTRY;
	*bytes = bits / 8;
	return IST_OK;
}
