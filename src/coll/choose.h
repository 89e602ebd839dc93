/* SPDX-License-Identifier: Apache-2.0
 *
 * choose.h - the backend's own operation, or which algorithm over its SEND and RECV. The answer depends only on what is
 * equal on all members: the operation, its bytes, the number of ranks, what the backend says it can.
 */
#ifndef ISTHMUS_COLL_CHOOSE_H
#define ISTHMUS_COLL_CHOOSE_H

#include "coll/run.h"

/* Decided once for a channel. */
struct ist__choice {
	uint64_t native; /* bit 1 << kind */
	uint32_t size;
};

/* NULL: native. Kinds that are composed or native only. */
const struct ist__algorithm *ist__choose(const struct ist__choice *choice, uint32_t kind, uint64_t bytes);
/* The same as if nothing were native. NULL: there is none for that kind. */
const struct ist__algorithm *ist__compose(const struct ist__choice *choice, uint32_t kind, uint64_t bytes);
/* Bits of the kinds that can be composed. */
uint64_t ist__composable(void);
/* The whole table as text, a line a kind: "all_reduce: recursive doubling to 32768 bytes, ring above". Returns the bytes
 * that it needs without the closing 0; room may be NULL when room_bytes is 0. */
uint64_t ist__choose_print(const struct ist__choice *choice, char *room, uint64_t room_bytes);

/* "all_reduce" for IST_OP_ALL_REDUCE; "operation" for what is not in the list. */
const char *ist__kind_name(uint32_t kind);

#endif
