/* SPDX-License-Identifier: Apache-2.0
 *
 * lazy_device.h - a CUDA device for tests that need no driver: memory is the host's, streams are threads that do what was put
 * on them later and in order. Programs that link it export what doubles of libraries ask for: cuLaunchHostFunc and
 * cuCtxGetDevice.
 */
#ifndef ISTHMUS_TESTS_LAZY_DEVICE_H
#define ISTHMUS_TESTS_LAZY_DEVICE_H

#include <isthmus/device.h>

enum { LAZY_DEVICES = 16 };

/* Allocates IST_MEM_CUDA and IST_MEM_PINNED. */
extern const struct ist_device lazy_device;
/* Nothing put on that stream from now on is done until it is released. */
void lazy_hold(void *stream);
void lazy_release(void *stream);
/* Index that info's uuid of every device is told to be; -1: each its own. */
extern int lazy_twin;
/* Live streams, events and pieces of memory of this process. */
int lazy_live(void);

#endif
