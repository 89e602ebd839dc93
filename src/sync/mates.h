/* SPDX-License-Identifier: Apache-2.0
 *
 * mates.h - which tensors are a scale of which other one, by name. A loader that sees one without the other may compute
 * nonsense, so the plan keeps the two in one bucket where they fit.
 */
#ifndef ISTHMUS_SYNC_MATES_H
#define ISTHMUS_SYNC_MATES_H

#include "sync/names.h"

#define IST__NO_MATE UINT32_MAX

/* mate[i] becomes the number of the tensor that names[i] belongs to, or IST__NO_MATE. names[i] may be NULL: not a
 * tensor. False: no memory. */
bool ist__mates_find(const struct ist__ctx *ctx, const char *const *names, uint32_t n, uint32_t *mate);

#endif
