/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.h - element-wise combination of two vectors in host memory, for I32 I64 U8 F32 F64 BF16 F16.
 *
 * Integers wrap. BF16 and F16 are combined in f32 and rounded once, to nearest even. A NaN on either side gives the one
 * quiet NaN of that type, for MIN and MAX too. Of two zeros MIN and MAX give a's. So the same two vectors in the same
 * order give the same bits on every machine.
 */
#ifndef ISTHMUS_COLL_REDUCE_H
#define ISTHMUS_COLL_REDUCE_H

#include <isthmus/backend.h>
#include <stdbool.h>

/* Bytes of an element, also of types that can't be reduced; 0: unknown. */
uint32_t ist__elem_bytes(uint32_t dtype);
const char *ist__elem_name(uint32_t dtype);   /* "F32"; "?" */
const char *ist__reduce_name(uint32_t reduce); /* "sum"; "?" */
bool ist__reduce_has(uint32_t dtype, uint32_t reduce);
/* to[i] = a[i] op b[i]. to may be a or b, else no overlap; any alignment. Only where ist__reduce_has. */
void ist__reduce(uint32_t dtype, uint32_t reduce, void *to, const void *a, const void *b, uint64_t count);

uint16_t ist__f32_to_f16(float f);
float ist__f16_to_f32(uint16_t h);
uint16_t ist__f32_to_bf16(float f);
float ist__bf16_to_f32(uint16_t h);

#endif
