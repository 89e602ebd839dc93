/* SPDX-License-Identifier: Apache-2.0
 *
 * far.h - memory of a device, as the layers above the plug-ins see it: found by its kind and index, with errors that name
 * it. And a ferry: a stream with which bytes cross to the device or back while the caller waits.
 */
#ifndef ISTHMUS_PLUG_FAR_H
#define ISTHMUS_PLUG_FAR_H

#include "base/env.h"

#include <isthmus/device.h>
#include <pthread.h>

/* One device. dev NULL: host memory. */
struct ist__far {
	const struct ist_device *dev;
	const char *op;       /* the call of the user's that errors name */
	uint32_t mem;
	int32_t index;
};

/* Host memory, pinned or not, is reached by loads and stores. */
static inline bool
ist__is_far(uint32_t mem)
{
	return mem > IST_MEM_PINNED;
}

/* UNSUPPORTED where nobody has such a device, INVALID_ARGUMENT for a kind or an index that can't be. op must live as long. */
ist_err ist__far_find(struct ist_env *env, uint32_t mem, int32_t index, const char *op, struct ist__far *out, struct ist_error *err);

/* mem: the device's own kind, or IST_MEM_PINNED. */
ist_err ist__far_alloc(const struct ist__far *f, uint32_t mem, uint32_t flags, uint64_t bytes, void **out, struct ist_error *err);
void ist__far_free(const struct ist__far *f, uint32_t mem, void *addr);

ist_err ist__far_stream_new(const struct ist__far *f, void **out, struct ist_error *err);
void ist__far_stream_free(const struct ist__far *f, void *stream);
ist_err ist__far_event_new(const struct ist__far *f, void **out, struct ist_error *err);
void ist__far_event_free(const struct ist__far *f, void *event);
/* Copies, asynchronously; and event marks the end of all that is on the stream so far. */
ist_err ist__far_copy(const struct ist__far *f, const struct ist_copy *list, uint64_t n, void *stream, struct ist_error *err);
ist_err ist__far_digest(const struct ist__far *f, const struct ist_copy *list, uint64_t n, void *stream, struct ist_error *err);
ist_err ist__far_mark(const struct ist__far *f, void *event, void *stream, struct ist_error *err);
/* The stream goes no further before the event has come. */
ist_err ist__far_after(const struct ist__far *f, void *stream, void *event, struct ist_error *err);
/* Has it? No waiting. */
ist_err ist__far_query(const struct ist__far *f, void *event, bool *done, struct ist_error *err);
/* A moment for who asks again and again since began: the first ones are short. */
void ist__far_pause(int64_t began);
/* Until the event has come. TIMEOUT: work on the device stands still, and may still touch memory. */
ist_err ist__far_wait(const struct ist__far *f, void *event, int64_t deadline, struct ist_error *err);

struct ist__ferry {
	struct ist__far far;
	pthread_mutex_t lock; /* one crossing at a time */
	void *stream, *event;
};

ist_err ist__ferry_open(struct ist_env *env, uint32_t mem, int32_t index, const char *op, struct ist__ferry *out, struct ist_error *err);
void ist__ferry_close(struct ist__ferry *y);
/* The copies are over when it returns, in every outcome but TIMEOUT. Any thread. */
ist_err ist__ferry_copy(struct ist__ferry *y, const struct ist_copy *list, uint64_t n, struct ist_error *err);

#endif
