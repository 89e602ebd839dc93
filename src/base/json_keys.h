/* SPDX-License-Identifier: Apache-2.0
 *
 * json_keys.h - which keys the open objects hold already. Private to the JSON reader.
 */
#ifndef ISTHMUS_BASE_JSON_KEYS_H
#define ISTHMUS_BASE_JSON_KEYS_H

#include "base/json.h"

enum ist__json_keys_answer { IST__JSON_KEYS_NEW, IST__JSON_KEYS_TWICE, IST__JSON_KEYS_MEMORY };

enum ist__json_keys_answer ist__json_keys_add(struct ist__json *j, uint64_t object, const char *key, uint64_t bytes);
/* Drops every key after the first n: their object has closed. */
void ist__json_keys_forget(struct ist__json *j, uint64_t n);

#endif
