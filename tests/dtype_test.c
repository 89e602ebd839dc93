/* SPDX-License-Identifier: Apache-2.0
 *
 * dtype_test.c - names, widths, and sizes counted in bits.
 */
#include "ckpt_help.h"

#include "base/dtype.h"

static uint32_t
find(const char *name)
{
	return ist__dtype_find(name, strlen(name));
}

static void
knows_all_of_the_format(void **state)
{
	static const struct {
		const char *name;
		uint32_t bits;
	} all[] = { { "BOOL", 8 }, { "F4", 4 }, { "F6_E2M3", 6 }, { "F6_E3M2", 6 }, { "U8", 8 }, { "I8", 8 }, { "F8_E5M2", 8 },
		{ "F8_E4M3", 8 }, { "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 }, { "I16", 16 }, { "U16", 16 }, { "F16", 16 },
		{ "BF16", 16 }, { "I32", 32 }, { "U32", 32 }, { "F32", 32 }, { "C64", 64 }, { "F64", 64 }, { "I64", 64 }, { "U64", 64 } };

	(void)state;
	for (uint32_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		assert_int_equal(find(all[i].name), i + 1); /* wire numbers: never move */
		assert_int_equal(ist__dtype_bits(i + 1), all[i].bits);
		assert_string_equal(ist__dtype_name(i + 1), all[i].name);
	}
	assert_int_equal(find("F3"), IST__DTYPE_NONE);
	assert_int_equal(find("f32"), IST__DTYPE_NONE);
	assert_int_equal(find("F32 "), IST__DTYPE_NONE);
	assert_int_equal(find(""), IST__DTYPE_NONE);
	assert_int_equal(ist__dtype_find("F32\0", 4), IST__DTYPE_NONE);
	assert_null(ist__dtype_name(0));
	assert_null(ist__dtype_name(23));
	assert_int_equal(ist__dtype_bits(23), 0);
}

static void
sizes(void **state)
{
	static const struct {
		const char *name;
		uint32_t rank;
		uint64_t shape[3];
		ist_err code;
		uint64_t bytes;
	} rows[] = {
		{ "F4", 2, { 2, 8 }, IST_OK, 8 },
		{ "F4", 2, { 3, 3 }, IST_BAD_ENTRY, 0 },
		{ "F6_E2M3", 2, { 4, 2 }, IST_OK, 6 },
		{ "F6_E3M2", 1, { 3 }, IST_BAD_ENTRY, 0 },
		{ "F8_E8M0", 1, { 5 }, IST_OK, 5 },
		{ "F3", 1, { 5 }, IST_UNKNOWN_DTYPE, 0 },
		{ "F32", 0, { 0 }, IST_OK, 4 },
		{ "F4", 0, { 0 }, IST_BAD_ENTRY, 0 },
		{ "F64", 3, { 3, 0, 5 }, IST_OK, 0 },
		{ "U8", 2, { UINT64_C(1) << 32, UINT64_C(1) << 32 }, IST_OVERFLOW, 0 },
		{ "U8", 3, { UINT64_C(1) << 32, UINT64_C(1) << 32, 0 }, IST_OVERFLOW, 0 },
		{ "F64", 1, { UINT64_C(1) << 58 }, IST_OVERFLOW, 0 },
		{ "F64", 1, { UINT64_C(1) << 57 }, IST_OK, UINT64_C(1) << 60 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint64_t bytes = 99;

		assert_int_equal(ist__dtype_bytes(find(rows[i].name), rows[i].shape, rows[i].rank, &bytes), rows[i].code);
		assert_true(bytes == (rows[i].code ? 99 : rows[i].bytes));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(knows_all_of_the_format), cmocka_unit_test(sizes) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
