/* SPDX-License-Identifier: Apache-2.0
 *
 * content.h - the weights of the chaos workers: a few tensors of odd sizes whose bytes follow from a version, so that
 * anybody (contents.py too) can say which version it looks at, or that it is torn.
 */
#ifndef ISTHMUS_TESTS_CHAOS_CONTENT_H
#define ISTHMUS_TESTS_CHAOS_CONTENT_H

#include <isthmus/sync.h>
#include <stdbool.h>

enum { CONTENT_TENSORS = 10 };

struct content {
	uint64_t scale;                  /* bytes of the two large tensors */
	uint8_t *at[CONTENT_TENSORS];
	char names[CONTENT_TENSORS][24];
	bool torn;                       /* committed bytes were of no version */
};

uint64_t content_bytes(const struct content *c, uint32_t tensor);
/* Memory for all, holding that version. False: no memory. */
bool content_make(struct content *c, uint64_t scale, uint32_t version);
void content_free(struct content *c);
/* As ist_checkpoint_from_tensors wants it. */
void content_list(struct content *c, struct ist_tensor out[CONTENT_TENSORS]);
bool content_is(const struct content *c, uint32_t version);
bool content_tensor_is(const struct content *c, uint32_t tensor, uint32_t version, const uint8_t *bytes);

#endif
