/* SPDX-License-Identifier: Apache-2.0
 *
 * mem_backend.h - a backend for tests: N channels of one process, SEND and RECV by memcpy between their buffers, and on
 * demand native broadcasts (by views too) and every kind of misbehaviour that a line must survive.
 */
#ifndef ISTHMUS_TESTS_MEM_BACKEND_H
#define ISTHMUS_TESTS_MEM_BACKEND_H

#include "plug/admit.h"

#include <stdbool.h>

struct mem_options {
	uint64_t native;       /* kinds said to be native: BROADCAST works, all others are refused by start */
	uint64_t traits;       /* IST_TRAIT_CAN_VIEW: BROADCAST understands IST_OP_VIEW; IST_TRAIT_TAKERS: it looks at takers */
	uint64_t max_ops;      /* 0: any; checked */
	uint32_t max_tasks;    /* 0: any; BUSY above */
	uint64_t slice;        /* 0: all; bytes that one progress moves of one message */
	bool serial;           /* a channel does its starts strictly one after the other */
	bool no_fd;            /* arm gives no descriptor */
	bool ignore_abort;     /* tasks never end */
	bool abandon;          /* after an abort tasks end ABANDONED */
	bool hold;             /* nothing moves until mem_release */
	uint64_t hold_after;   /* nothing moves after so many bytes; 0: no */
	int block_rank;        /* with block_at: the start that never returns, until mem_release */
	uint64_t block_at;     /* counted from 1; 0: none */
	int fail_rank;
	uint64_t fail_at;      /* the start that fails with fail_code; 0: none */
	ist_err fail_code;     /* IST_OK: succeeds without a task */
	bool fail_test;        /* the task of that start fails instead, a while before it is DONE */
};

struct mem_hub;

struct mem_hub *mem_hub_new(uint32_t size, const struct mem_options *options);
void mem_hub_free(struct mem_hub *hub); /* after all channels were closed */
struct ist_chan *mem_chan(struct mem_hub *hub, uint32_t rank);
const struct ist__admitted *mem_admitted(struct mem_hub *hub);
void mem_release(struct mem_hub *hub); /* ends hold and block */
uint64_t mem_starts(struct mem_hub *hub);
uint64_t mem_live_tasks(struct mem_hub *hub);
uint32_t mem_closed(struct mem_hub *hub);
uint64_t mem_turns(struct mem_hub *hub); /* calls of progress */

#endif
