/* SPDX-License-Identifier: Apache-2.0
 *
 * check.h - is an operation well formed, and is it the same on all members? Both before a byte moves; neither knows of
 * channels or requests.
 */
#ifndef ISTHMUS_COLL_CHECK_H
#define ISTHMUS_COLL_CHECK_H

#include <isthmus.h>
#include <stdbool.h>

/* What the checks need to know of a channel. */
struct ist__limits {
	uint32_t rank, size;
	uint64_t mem;      /* bit 1 << enum ist_mem_kind: where buffers may lie */
	uint64_t native;   /* bit 1 << kind */
	bool far_views;    /* memory of devices: broadcasts with views alone */
	bool takers;       /* all members know of sets of takers; else everybody takes */
	bool leaves_out;   /* so does the way in which broadcasts go: who does not take gets no bytes */
};

/* Copies what the caller's struct_size covers, checks it, and gives n of the table in isthmus.h. Buffers that the
 * operation does not use on this rank come out empty. */
ist_err ist__coll_check(const struct ist__limits *limits, uint32_t kind, const struct ist_coll_args *args, struct ist_coll_args *out,
	uint64_t *n, struct ist_error *err);

/* What must be equal on all members: little-endian kind u32, root u32, bytes u64, dtype u32, reduce u32, flags u64; of a
 * broadcast that not everybody takes the set in place of dtype and reduce, and in the flags how many they are. */
#define IST__PRINT_BYTES 32
void ist__print_make(uint32_t kind, const struct ist_coll_args *args, uint32_t size, uint64_t n, uint8_t out[IST__PRINT_BYTES]);
/* "all_reduce of 8192 bytes F32 sum". Any 32 bytes are legal. */
void ist__print_text(const uint8_t print[IST__PRINT_BYTES], char *room, uint64_t room_bytes);
/* IST_OK when equal. Else MISMATCH (same kind) or ORDER_MISMATCH, filled with both ranks and what each does. */
ist_err ist__print_compare(uint32_t rank_a, const uint8_t a[IST__PRINT_BYTES], uint32_t rank_b, const uint8_t b[IST__PRINT_BYTES],
	uint64_t seq, struct ist_error *err);

#endif
