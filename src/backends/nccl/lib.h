/* SPDX-License-Identifier: Apache-2.0
 *
 * lib.h - the NCCL library of this process: found, opened, asked for its version; and what all channels of one device must
 * share, since NCCL wants one thread at a time on a device. Lives in ist_host.keep: there is one an env.
 */
#ifndef ISTHMUS_NCCL_LIB_H
#define ISTHMUS_NCCL_LIB_H

#include "backends/nccl/abi.h"

#include <isthmus/backend.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { NCCL_TEXT = 256, NCCL_GATES = 64, NCCL_SETTINGS = 19, NCCL_VALUE = 200 };

/* Of one device: who is inside a call, and which channel has handed over what is not on its stream yet. */
struct nccl_gate {
	pthread_mutex_t calls;
	_Atomic(const void *) owner; /* set under calls */
};

/* An opened library. */
struct nccl_open {
	struct nccl_calls calls;
	int version;
	bool rccl;
	char path[NCCL_TEXT];
};

struct nccl_lib {
	pthread_mutex_t lock; /* what follows, up to gates */
	bool loaded;
	struct nccl_open open;
	char reason[2 * NCCL_TEXT], guess[NCCL_TEXT], version[32], line[32];
	struct ist_setting settings[NCCL_SETTINGS];
	char values[NCCL_SETTINGS][NCCL_VALUE];
	uint64_t n_settings;
	struct nccl_gate gates[NCCL_GATES];
	struct nccl_id spare; /* under lock: made for a group that came to nothing, and shown to nobody. The library can't take it */
	bool has_spare;       /* back: without this each would leave a thread and a socket behind */
};

/* NULL: a core without keep, or no memory. */
struct nccl_lib *ist__nccl_lib(const struct ist_host *host);
/* Where a library lies that would be used, without loading it; "" where there seems to be none. */
const char *ist__nccl_guess(struct nccl_lib *lib);
/* Opens it at the first call that can. False: reason says why not. */
bool ist__nccl_load(struct nccl_lib *lib, const struct ist_host *host);
/* The library at path instead. False: why (of room bytes) says why not. */
bool ist__nccl_open_at(const char *path, struct nccl_open *out, char *why, size_t room);
/* Several ranks may have one device: the user has asked NCCL for it, and it is one that can. */
bool ist__nccl_shares(const struct nccl_open *open);
struct nccl_gate *ist__nccl_gate(struct nccl_lib *lib, int32_t device);

#endif
