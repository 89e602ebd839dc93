/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_int.h - what the files of the CUDA device share.
 */
#ifndef ISTHMUS_DEVICES_CUDA_INT_H
#define ISTHMUS_DEVICES_CUDA_INT_H

#include "devices/cuda.h"
#include "devices/cuda_api.h"

#include <pthread.h>
#include <stdbool.h>

enum { IST__CUDA_DEVICES = 64 };

struct ist__cuda_pin {
	struct ist__cuda_pin *next;
	void *addr;
	uint64_t bytes;
};

struct ist__cuda {
	const struct ist__ctx *ctx;
	pthread_mutex_t lock;   /* all that follows; what is set once is read without it after start */
	bool looked;            /* api was looked for with permission to load: state is final */
	int state;              /* CU_OK: started; else why not */
	int count;
	char reason[256], version[32];
	struct ist__cuda_api api;
	struct {
		int device;         /* CUdevice */
		void *context;      /* NULL: not retained yet */
		void *module, *digest;
		int module_state;   /* CU_OK with digest NULL: not tried */
	} at[IST__CUDA_DEVICES];
	struct ist__cuda_pin *pins;
};

/* Loads and starts the library, once. */
ist_err ist__cuda_start(struct ist__cuda *c, struct ist_status *why);
/* The device's context becomes current on this thread until leave. */
ist_err ist__cuda_enter(struct ist__cuda *c, int32_t index, struct ist_status *why);
void ist__cuda_leave(struct ist__cuda *c);
/* An error of the library in our words. CU_OK: IST_OK. */
ist_err ist__cuda_said(const struct ist__cuda *c, int code, const char *what, struct ist_status *why);
ist_err ist__cuda_say(struct ist_status *why, ist_err e, int sys, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static inline cu_ptr
ist__cu(const void *p)
{
	return (cu_ptr)(uintptr_t)p;
}

/* cuda_mem.c, cuda_share.c, cuda_digest.c: their slots. */
void ist__cuda_mem_slots(struct ist_device *table);
void ist__cuda_share_slots(struct ist_device *table);
void ist__cuda_digest_slots(struct ist_device *table);

/* digest_ptx.c, made from digest.cu. */
extern const char ist__cuda_digest_ptx[];

#endif
