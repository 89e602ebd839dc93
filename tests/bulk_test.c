/* SPDX-License-Identifier: Apache-2.0
 *
 * The bulk operations in real processes: this file's text was lost by an overwrite and must be put back. It fails until
 * then, so that nobody takes it for passing.
 */
#include <stdio.h>

int
main(void)
{
	fputs("tests/bulk_test.c was overwritten: put the original back\n", stderr);
	return 1;
}
