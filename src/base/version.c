/* SPDX-License-Identifier: Apache-2.0
 *
 * version.c - what this library is.
 */
#include <isthmus.h>

uint32_t
ist_abi_version(void)
{
	return IST_ABI_VERSION;
}

const char *
ist_version(void)
{
	return IST_VERSION_TEXT;
}

const char *
ist_build(void)
{
	return IST_BUILD_TEXT;
}
