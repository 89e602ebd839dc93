/* SPDX-License-Identifier: Apache-2.0
 *
 * pin.h - bytes of a checkpoint that a device can read where they lie: tensors in host memory, pinned in place, and files of
 * memory file systems, mapped and pinned. The processor never reads such a mapping, so a file that shrinks raises no signal; the
 * pages that were pinned stay until they are let go. What can't be pinned is read and copied as ever.
 */
#ifndef ISTHMUS_CKPT_PIN_H
#define ISTHMUS_CKPT_PIN_H

#include "base/ctx.h"
#include "plug/far.h"

struct ist_checkpoint;
struct ist__checkpoint_body;

struct ist__pin_range {
	uint8_t *addr;
	uint64_t bytes;
};

struct ist__pins {
	struct ist__far far;
	struct ist__pin_range *ranges; /* by address, apart from each other */
	uint64_t n, room;
	uint8_t **files;               /* as m->files: its mapping, or NULL; all of it is pinned */
};

/* For the device of that kind and index; once a checkpoint. Not while others use it. NO_MEMORY, or what find says; ranges that the
 * device refuses are no error. */
ist_err ist__checkpoint_pin(struct ist_checkpoint *ck, uint32_t mem, int32_t device, struct ist_error *err);
void ist__checkpoint_unpin(struct ist__checkpoint_body *b);
bool ist__pins_have(const struct ist__pins *p, const void *addr, uint64_t bytes);

#endif
