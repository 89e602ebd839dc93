/* SPDX-License-Identifier: Apache-2.0
 *
 * admit.h - turns a plug-in's table, older or newer than this library, into one with no NULL slot. The only place that
 * knows that versions of the ABI exist. What an empty slot now answers is UNSUPPORTED; slots says which are real.
 */
#ifndef ISTHMUS_PLUG_ADMIT_H
#define ISTHMUS_PLUG_ADMIT_H

#include <isthmus/backend.h>
#include <isthmus/device.h>
#include <stdbool.h>

/* Optional slots that are the plug-in's own. */
enum ist__slot {
	IST__SLOT_OFFER = 1, /* without it the member's wire is empty; ops.offer answers UNSUPPORTED */
	IST__SLOT_REGION = 2,
	IST__SLOT_DROP = 4,
	IST__SLOT_ALLOC = 8
};

struct ist__admitted {
	struct ist_backend ops;      /* no NULL slot */
	uint64_t native;             /* bit 1 << enum ist_op_kind: the probe's native_ops */
	uint32_t slots;              /* enum ist__slot */
	uint32_t level;              /* enum ist_level: how far the probe below went */
	struct ist_probe probe;      /* texts are never NULL */
	const struct ist_host *host; /* to be handed to probe and open */
	const char *name;            /* what it is chosen by; ops.name is what it calls itself */
	const char *plain;           /* ops.name of the innermost one where this is a wrapper: compare this with the others */
	const char *path;            /* of its file; "" when built in or added */
	bool builtin;                /* ours, unwrapped: no slot of it ever blocks, and its close comes back */
};

struct ist__admitted_device {
	struct ist_device ops; /* no NULL slot */
	uint32_t slots;        /* enum ist__device_slot */
	uint32_t level;
	const char *name;
	const char *path;
};

enum ist__device_slot {
	IST__DEVICE_SHARE = 1,
	IST__DEVICE_EVENT_SHARE = 2,
	IST__DEVICE_EVENT_NS = 4,
	IST__DEVICE_DIGEST = 8
};

/* Fills out->ops and out->slots alone. BAD_PLUGIN says what is wrong with the table. */
ist_err ist__backend_admit(const struct ist_backend *table, struct ist__admitted *out, struct ist_error *err);
ist_err ist__device_admit(const struct ist_device *table, struct ist__admitted_device *out, struct ist_error *err);

#endif
