/* SPDX-License-Identifier: Apache-2.0
 *
 * report.h - handing a report out to a caller that may know fewer fields.
 */
#ifndef ISTHMUS_SYNC_REPORT_H
#define ISTHMUS_SYNC_REPORT_H

#include <isthmus/sync.h>
#include <string.h>

static inline void
ist__report_copy(struct ist_report *to, const struct ist_report *from)
{
	uint32_t size = to->struct_size < from->struct_size ? to->struct_size : from->struct_size;

	if (size < sizeof(uint32_t))
		return;
	memcpy(to, from, size);
	to->struct_size = size;
}

#endif
