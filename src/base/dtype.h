/* SPDX-License-Identifier: Apache-2.0
 *
 * dtype.h - the dtypes of the safetensors format: names and widths in bits. The numbers travel in manifests: never reuse
 * one. Sizes are counted in bits until the end, since F4 and F6 share bytes with their neighbours.
 */
#ifndef ISTHMUS_BASE_DTYPE_H
#define ISTHMUS_BASE_DTYPE_H

#include <isthmus/error.h>
#include <stdbool.h>
#include <stdint.h>

/* 0 is no dtype. */
#define IST__DTYPE_NONE 0u

/* The number of a name of n bytes, IST__DTYPE_NONE where there is none such. */
uint32_t ist__dtype_find(const char *name, uint64_t n);
/* NULL for a number that is none. */
const char *ist__dtype_name(uint32_t dtype);
/* 0 for a number that is none. */
uint32_t ist__dtype_bits(uint32_t dtype);

/* Bytes of a tensor: IST_OK; IST_OVERFLOW where its bits (multiplied from the left) need more than 64; IST_BAD_ENTRY where
 * they are no whole number of bytes; IST_UNKNOWN_DTYPE. */
ist_err ist__dtype_bytes(uint32_t dtype, const uint64_t *shape, uint32_t rank, uint64_t *bytes);

#endif
