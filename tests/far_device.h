/* SPDX-License-Identifier: Apache-2.0
 *
 * far_device.h - a device for tests: four of kind CUDA whose memory the host can't touch (a load or store there is a signal),
 * whose streams do nothing before somebody asks whether they have come to an event, and whose memory other processes can map.
 * Copies are held against what was allocated: one that reaches beyond it, or from freed memory, ends the process.
 */
#ifndef ISTHMUS_TESTS_FAR_DEVICE_H
#define ISTHMUS_TESTS_FAR_DEVICE_H

#include <isthmus/device.h>
#include <stdbool.h>

struct far_device;

struct far_device_options {
	bool no_digest;     /* it has no kernel */
	bool no_share, no_pin;
	uint64_t room;      /* bytes there are; 0: no limit */
	int32_t copies;     /* so many copies, then they fail; 0: no limit */
	bool stands_still;  /* from then on no event comes; may be set at any time */
};

struct far_device *far_device_new(const struct far_device_options *options);
/* Everything must have been given back: memory, streams, events, mappings. */
void far_device_free(struct far_device *d);
const struct ist_device *far_device_table(struct far_device *d);
struct far_device_options *far_device_options(struct far_device *d);
/* Bytes there are in use, of both kinds of memory. */
uint64_t far_device_held(struct far_device *d);
/* Copies between the host and the device's memory, at once. */
void far_device_put(struct far_device *d, void *to, const void *from, uint64_t bytes);
void far_device_get(struct far_device *d, void *to, const void *from, uint64_t bytes);

#endif
