/* SPDX-License-Identifier: Apache-2.0
 *
 * plug.h - the backends and devices of an env: built in, loaded from files, added from memory. Made at first need, as a
 * part of the env. A layer whose own part opens channels must ask for this one while it makes its own (ist__plug_host
 * does), so that this one ends after it.
 */
#ifndef ISTHMUS_PLUG_PLUG_H
#define ISTHMUS_PLUG_PLUG_H

#include "base/env.h"
#include "plug/admit.h"

/* What the core lends to plug-ins. NULL: no memory, err says so. */
const struct ist_host *ist__plug_host(struct ist_env *env, struct ist_error *err);

/* The backend of that name, probed as far as IST_LOAD, usable here; *out lives as long as env and never changes.
 * name: "host", the path of a file (then it is loaded), "trace:NAME" or "fault:SPEC:NAME". Not "auto": the caller
 * chooses, with ist__plug_nth. UNSUPPORTED: not usable, and why; BAD_CONFIG: there is none of that name. */
ist_err ist__plug_get(struct ist_env *env, const char *name, const struct ist__admitted **out, struct ist_error *err);
/* The i-th backend in order of admission (built in ones first), probed no further than IST_LOOK. NULL: no more. */
const struct ist__admitted *ist__plug_nth(struct ist_env *env, uint32_t i);
/* The device that allocates that kind of memory (the last one admitted that says it can run); NULL: none. */
const struct ist_device *ist__plug_device(struct ist_env *env, uint32_t mem);
uint32_t ist__plug_device_count(struct ist_env *env, uint32_t mem);

#endif
