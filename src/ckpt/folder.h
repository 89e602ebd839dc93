/* SPDX-License-Identifier: Apache-2.0
 *
 * folder.h - which files of a folder make a checkpoint, by name and role. Nothing is opened here but the folder, and the
 * index for those who ask. Names are those in the folder; links may lead wherever they like.
 */
#ifndef ISTHMUS_CKPT_FOLDER_H
#define ISTHMUS_CKPT_FOLDER_H

#include "base/arena.h"

#include <isthmus/error.h>

enum ist__role { IST__ROLE_SHARD, IST__ROLE_INDEX, IST__ROLE_OTHER };

struct ist__folder_entry {
	const char *name;
	enum ist__role role;
};

struct ist__folder {
	const struct ist__ctx *ctx;
	struct ist__arena arena;
	const char *path;      /* for messages */
	int fd;                /* of the folder; -1: none */
	struct ist__folder_entry *entries;
	uint64_t n, room;
};

/* Every regular file, or link to one, that may be part of a checkpoint: shards, indexes, others; sorted by name. Dangling
 * links count as what their name says. */
ist_err ist__folder_scan(const struct ist__ctx *ctx, const char *path, struct ist__folder *out, struct ist_error *err);
/* The same without looking at what is in it: for one file by its name. */
ist_err ist__folder_enter(const struct ist__ctx *ctx, const char *path, struct ist__folder *out, struct ist_error *err);
void ist__folder_fini(struct ist__folder *f);
bool ist__folder_add(struct ist__folder *f, const char *name, enum ist__role role);
/* Drops those entries for which keep is false, or keeps the order. */
void ist__folder_filter(struct ist__folder *f, bool (*keep)(void *ctx, const struct ist__folder_entry *entry), void *keep_ctx);

/* Opens one regular file for reading. A dangling link or no file: MISSING_SHARD, with link and target. */
ist_err ist__folder_open(const struct ist__folder *f, const char *name, int *out_fd, struct ist_error *err);
/* What a folder without any shard is: always an error, the most helpful one. */
ist_err ist__folder_explain(const struct ist__folder *f, struct ist_error *err);
bool ist__ends_with(const char *text, const char *end);

#endif
