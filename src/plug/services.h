/* SPDX-License-Identifier: Apache-2.0
 *
 * services.h - what the core lends to plug-ins (struct ist_host), made from an env: log, memory, devices, threads. It may
 * outlive the env: a thread that a plug-in left behind still finds its log, which then says nothing.
 */
#ifndef ISTHMUS_PLUG_SERVICES_H
#define ISTHMUS_PLUG_SERVICES_H

#include "base/env.h"

#include <isthmus/backend.h>
#include <isthmus/device.h>

struct ist__services;

/* device answers ist_host.device. NULL: no memory. */
struct ist__services *ist__services_new(
	struct ist_env *env, const struct ist_device *(*device)(void *owner, uint32_t mem), void *owner);
/* Waits up to a second for threads that plug-ins started, then leaves what they still need to them. */
void ist__services_end(struct ist__services *s);
const struct ist_host *ist__services_host(struct ist__services *s);

#endif
