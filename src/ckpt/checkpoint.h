/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.h - what the sync engine and the tools of this layer see of a checkpoint: its manifest, its bytes, its digests.
 * Bytes come through reads into the caller's memory, never through mapped pages: a file that shrinks is an error then, not
 * a signal.
 */
#ifndef ISTHMUS_CKPT_CHECKPOINT_H
#define ISTHMUS_CKPT_CHECKPOINT_H

#include "base/env.h"
#include "ckpt/manifest.h"
#include "ckpt/pin.h"

#include <pthread.h>
#include <sys/stat.h>

/* A file as it was when it was opened. */
struct ist__open_file {
	int fd;
	uint64_t bytes;
	struct timespec mtime;
};

struct ist__checkpoint_body {
	const struct ist__ctx *ctx;
	struct ist__manifest *m;
	struct ist__open_file *files;   /* as m->files */
	const void **addrs;             /* memory: as m->items; else NULL */
	uint8_t *far;                   /* as m->items: addrs[i] is memory of the ferry's device; NULL: none is */
	struct ist__ferry *ferry;
	struct ist__pins pins;          /* far.dev NULL: nothing is pinned */
	struct ist__digest *digests;    /* as m->items; of files only */
	uint8_t *known;                 /* as m->items: digests[i] is there */
	pthread_mutex_t lock;           /* of digests and known */
	char *path;
};

/* The object; what is big hangs from it, and goes when it is freed. */
struct ist_checkpoint {
	struct ist__handle handle;
	struct ist__checkpoint_body *body;
};

/* Sealed; lives as long as ck. */
const struct ist__manifest *ist__checkpoint_manifest(const struct ist_checkpoint *ck);
/* True: the bytes are the caller's memory and may change between updates. */
bool ist__checkpoint_live(const struct ist_checkpoint *ck);

/* Are all files what they were? FILE_CHANGED naming the first that is not. Cheap: one fstat a file. */
ist_err ist__checkpoint_check(const struct ist_checkpoint *ck, struct ist_error *err);
/* Copies bytes of an item from offset on. Any thread, many at once. FILE_CHANGED also when the file changed meanwhile. */
ist_err ist__checkpoint_fetch(
	const struct ist_checkpoint *ck, uint64_t item, uint64_t offset, uint64_t bytes, void *to, struct ist_error *err);
/* The same for a run of a file that spans items: those of a file lie back to back, so many small ones are one read. */
ist_err ist__checkpoint_fetch_file(
	const struct ist_checkpoint *ck, uint32_t file, uint64_t offset, uint64_t bytes, void *to, struct ist_error *err);
/* Memory only: where the bytes are, and of which kind (enum ist_mem_kind) and device. False: fetch them. */
bool ist__checkpoint_lend(const struct ist_checkpoint *ck, uint64_t item, uint64_t offset, uint64_t bytes, struct ist_buf *out);

/* What bytes of a file are where a device can read them; NULL: fetch them. */
const void *ist__checkpoint_pinned_file(const struct ist_checkpoint *ck, uint32_t file, uint64_t offset, uint64_t bytes);

/* Digests every item of the files that has none yet, raw ones too; threads 0: as many as there are CPUs, at most 8.
 * Nothing to do for memory. */
ist_err ist__checkpoint_digest_all(struct ist_checkpoint *ck, uint32_t threads, struct ist_error *err);
/* Are those of all items known? Never of memory. */
bool ist__checkpoint_digested(struct ist_checkpoint *ck);
/* False: not known (not digested yet, or memory). Of an alias: its owner's. */
bool ist__checkpoint_item_digest(struct ist_checkpoint *ck, uint64_t item, struct ist__digest *out);

/* Between the files of this layer. */
ist_err ist__checkpoint_make(struct ist_env *env, struct ist__checkpoint_body *body, struct ist_checkpoint **out, struct ist_error *err);
struct ist__checkpoint_body *ist__checkpoint_body_new(const struct ist__ctx *ctx, struct ist_error *err);
void ist__checkpoint_body_free(struct ist__checkpoint_body *b);
/* Digests of items [first, end) into digests (indexed like items), from leaves computed by threads. */
ist_err ist__checkpoint_digest_items(struct ist_env *env, const struct ist__checkpoint_body *b, uint64_t first, uint64_t end,
	uint32_t threads, struct ist__digest *digests, struct ist_error *err);
ist_err ist__checkpoint_read_file(
	const struct ist__checkpoint_body *b, uint32_t file, uint64_t offset, uint64_t bytes, void *to, struct ist_error *err);
/* Of memory: item owns its bytes. */
ist_err ist__checkpoint_read_memory(
	const struct ist__checkpoint_body *b, uint64_t item, uint64_t offset, uint64_t bytes, void *to, struct ist_error *err);
/* all of [offset, offset + bytes) of fd, or false: *sys an errno, 0: the file ended. */
bool ist__pread_all(int fd, uint64_t offset, void *to, uint64_t bytes, int *sys);

#endif
