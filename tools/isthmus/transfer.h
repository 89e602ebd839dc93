/* SPDX-License-Identifier: Apache-2.0
 *
 * transfer.h - one update as a source or a sink, from the formed group to the report. push, pull and demo share it.
 */
#ifndef ISTHMUS_TOOL_TRANSFER_H
#define ISTHMUS_TOOL_TRANSFER_H

#include "session.h"

#include <isthmus/sync.h>

struct transfer {
	struct session s;
	struct ist_checkpoint *ck; /* a source's */
	struct ist_sink *sink;     /* a sink's */
	struct ist_sync *sync;
	struct ist_report report;
	double gather_s, update_s, register_s;
	char why[512]; /* the checkpoint or the destination could not be opened, or not be registered */
};

int transfer_open_source(struct transfer *t, const char *path);
int transfer_open_sink(struct transfer *t, const char *dest);
int transfer_update(struct transfer *t);            /* register, gather, update */
json_t *transfer_document(const struct transfer *t); /* as the contract has it, while the group lives */
int transfer_tell(const struct transfer *t);
void transfer_close(struct transfer *t);

#endif
