/* SPDX-License-Identifier: Apache-2.0
 *
 * host.h - plain memory as a device, so that nobody above needs a special case for it. Kinds HOST and PINNED. With
 * IST_ALLOC_SHARE the memory is a sealed memfd, which another process of this host can map.
 */
#ifndef ISTHMUS_DEVICES_HOST_H
#define ISTHMUS_DEVICES_HOST_H

#include "base/ctx.h"

#include <isthmus/device.h>

struct ist__host_device;

/* ctx is borrowed. Fills table, whose self is what is returned. NULL: no memory. */
struct ist__host_device *ist__host_device_new(const struct ist__ctx *ctx, struct ist_device *table);
void ist__host_device_free(struct ist__host_device *d);

#endif
