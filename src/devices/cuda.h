/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.h - NVIDIA's GPUs as a device. Nothing of it is touched before somebody asks for a GPU: no library is loaded, no
 * context made. The context is the primary one of each GPU, which frameworks use as well.
 */
#ifndef ISTHMUS_DEVICES_CUDA_H
#define ISTHMUS_DEVICES_CUDA_H

#include "base/ctx.h"

#include <isthmus/device.h>

struct ist__cuda;

/* Fills the table, whose self is the result. NULL: no memory. */
struct ist__cuda *ist__cuda_new(const struct ist__ctx *ctx, struct ist_device *table);
/* Gives the contexts back; all memory of them must be. */
void ist__cuda_free(struct ist__cuda *c);

#endif
