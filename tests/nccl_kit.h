/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_kit.h - a member of a group whose backend is nccl, with memory on its device. Over the doubles where NCCL_DOUBLE names the
 * library's; else over the real device and library, one rank a device.
 */
#ifndef ISTHMUS_TESTS_NCCL_KIT_H
#define ISTHMUS_TESTS_NCCL_KIT_H

#include "lazy_device.h"
#include "ranks.h"

struct kit {
	struct member m;
	const struct ist_device *d;
	int32_t device;
	void *stream;           /* for copies */
	void *event;
	_Atomic uint32_t busy;  /* log lines of channels that could not close everything */
};

bool kit_is_double(void);
/* How many devices there are; 0: none, why says why not. Asked in a process of its own, since CUDA does not survive a fork. */
uint32_t kit_devices(char why[256]);
/* How many ranks they can have: more than one each only where NCCL was told so (NCCL_MULTI_RANK_GPU_ENABLE). */
uint32_t kit_ranks(uint32_t devices);

void kit_init(struct kit *k, uint32_t rank);
ist_err kit_join(struct kit *k, struct ranks *r, const char *name, uint32_t rank, const char *options);
void kit_leave(struct kit *k); /* frees the group */
void kit_part(struct kit *k);  /* the same, when all are done with it */
void kit_fini(struct kit *k);

/* Doubles: what the library still has of this process. */
void kit_left(int *comms, int *ids);
/* Doubles: until an operation of this process is under way on its stream. */
void kit_await_running(void);

struct ist_buf kit_buf(struct kit *k, uint64_t bytes);
void kit_free(struct kit *k, struct ist_buf *buf);
void kit_up(struct kit *k, const struct ist_buf *to, const void *from);
void kit_down(struct kit *k, void *to, const struct ist_buf *from);

/* Starts an operation; and waits for its end. */
ist_err kit_start(struct kit *k, uint32_t kind, const struct ist_coll_args *args, struct ist_req **req);
ist_err kit_wait(struct kit *k, struct ist_req *req);
ist_err kit_do(struct kit *k, uint32_t kind, const struct ist_coll_args *args);

/* Small whole numbers in any dtype; and the bytes of one. */
uint32_t kit_elem(uint32_t dtype);
void kit_put(uint32_t dtype, void *at, uint32_t v);

#endif
