/* SPDX-License-Identifier: Apache-2.0
 *
 * meeting.h - members that meet by whatever way a test says: the caller's key-value store (a toy one in shared memory),
 * addresses handed over in shared memory, a folder, rank 0, or a store of its own.
 */
#ifndef ISTHMUS_TESTS_MEETING_H
#define ISTHMUS_TESTS_MEETING_H

#include "ranks.h"

#include <stdatomic.h>

enum { KEYS = 64, BOOK_AT = 4096, KV_AT = 16384 }; /* in the shared memory of ranks.h */

struct entry {
	_Atomic uint32_t ready;
	uint32_t bytes;
	char key[128];
	uint8_t value[IST_ADDRESS_BYTES];
};

struct toy {
	atomic_flag lock;
	_Atomic uint32_t gets;
	struct entry at[KEYS];
};

enum way { BY_KV, BY_ADDRESS, BY_DIR, BY_MEMBER, BY_STORE, WAYS };

struct place {
	enum way way;
	char at[128];       /* dir or store */
	uint32_t order[8];  /* by rank: when it starts */
	uint32_t turn;      /* number of the order, for what is kept by turn */
};

ist_err toy_set(void *ctx, const char *key, const void *value, uint64_t bytes);
ist_err toy_get(void *ctx, const char *key, void *room, uint64_t *bytes, int64_t timeout_ns);
/* A member's address, where the others find it. */
void write_book(struct ranks *r, struct member *m, uint32_t rank);
struct ist_address read_book(struct ranks *r, uint32_t rank);
/* Starts to form; for BY_ADDRESS the book is full. */
struct ist_req *begin(struct ranks *r, struct member *m, const struct place *p, const char *name, uint32_t rank, uint32_t size);
ist_err end(struct member *m, struct ist_req *req);

#endif
