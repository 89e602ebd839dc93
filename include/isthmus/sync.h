/* SPDX-License-Identifier: Apache-2.0
 *
 * sync.h - weight sync: checkpoints, and updates that carry them from sources to sinks through one group.
 *
 *     source: ist_checkpoint_open -> ist_sync_new -> ist_sync_source -> ist_sync_gather -> ist_sync_update
 *     sink:   ist_sink_open       -> ist_sync_new -> ist_sync_sink   -> ist_sync_gather -> ist_sync_update
 *
 * All members of the group call gather and update, in that order and together; a member may be neither source nor sink.
 * An update succeeds on every member or on none (with on_loss continue: on every member that is left). Success means
 * that byte count and digest of every tensor matched at every sink.
 *
 * Rules of isthmus.h hold: errors, threads (one at a time a sync, ist_sync_state apart), handles, structs, time.
 */
#ifndef ISTHMUS_SYNC_H
#define ISTHMUS_SYNC_H

#include <isthmus.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- checkpoints ---- */

#define IST_DIMS_MAX 16
#define IST_DIGEST_TEXT 33 /* 32 lower-case hex digits and a 0 */

struct ist_checkpoint;

/* One tensor. name is UTF-8 without control characters; dtype a name of the safetensors format ("BF16", "F4", ...).
 * bytes = product of shape times the bits of dtype, a whole number of bytes. */
struct ist_tensor {
	uint32_t struct_size;
	uint32_t rank;             /* dimensions, at most IST_DIMS_MAX */
	const char *name;
	const char *dtype;
	uint64_t shape[IST_DIMS_MAX];
	uint64_t bytes;
	const char *file;          /* "" for memory */
	const char *alias_of;      /* name of the tensor whose bytes these are, or "" */
	const void *addr;          /* from_tensors: dense memory, any alignment; lent until the checkpoint is freed.
	                            * open: NULL, see ist_checkpoint_read */
	uint32_t mem;              /* enum ist_mem_kind: where addr points to; IST_MEM_HOST (0) where a caller's struct ends before it */
	int32_t device;            /* index among devices of that kind; of host memory it says nothing */
};

/* Where a slice lies in the tensor that it is a part of. Dimensions and dtype are those of its ist_tensor, shape is there
 * the slice's own extents. */
struct ist_slice {
	uint32_t struct_size;
	uint32_t reserved;
	uint64_t whole[IST_DIMS_MAX];  /* shape of that tensor */
	uint64_t begin[IST_DIMS_MAX];  /* index of the slice's first element there */
};

enum ist_read_how {
	IST_READ_AUTO = 0,   /* what is best here: large reads */
	IST_READ_MAP = 1,    /* accepted, and read as well: docs/decisions/0011-reading-checkpoints.md */
	IST_READ_READ = 2    /* large sequential reads, announced to the system */
};

struct ist_checkpoint_args {
	uint32_t struct_size;
	uint32_t how;               /* enum ist_read_how */
	uint64_t header_bytes_max;  /* of one file; 0: 100 MB as the reference reader has it */
	uint32_t weights_only;      /* 1: leave the other regular files of the folder behind */
	uint32_t allow_trailing;    /* 1: bytes after the last tensor are tolerated */
};

/* path: a .safetensors file, a folder (with *.index.json, or whose *.safetensors files hold unique names), or an
 * index.json. Nothing is digested yet. Errors: those of the file formats, each naming file, tensor and byte. */
IST_API ist_err ist_checkpoint_open(struct ist_env *env, const char *path, const struct ist_checkpoint_args *args,
	struct ist_checkpoint **out, struct ist_error *err);
/* Tensors in the caller's memory; the texts are copied, the bytes are not. Live: digested anew by each update. Two
 * tensors with one addr and equal bytes > 0 are aliases. */
IST_API ist_err ist_checkpoint_from_tensors(
	struct ist_env *env, const struct ist_tensor *tensors, uint64_t n, struct ist_checkpoint **out, struct ist_error *err);
/* The same of slices, for a trainer whose ranks hold a part of each tensor: tensors[i] is what slices[i] says, under the
 * name that the whole has; a slice that is all of its tensor is just a tensor. Slices are dense memory of their own; in
 * dtypes narrower than a byte their rows begin and end at whole bytes. Several of a name may be given here, and by other
 * members. What sinks get is the whole: gather fails with INCOMPLETE where an element is missing, and with OVERLAP where
 * one is given twice (by checkpoints that are not equal; equal ones share the work). Slices are never aliases. */
IST_API ist_err ist_checkpoint_from_slices(struct ist_env *env, const struct ist_tensor *tensors, const struct ist_slice *slices,
	uint64_t n, struct ist_checkpoint **out, struct ist_error *err);
IST_API void ist_checkpoint_free(struct ist_checkpoint *ck);

/* Tensors stand in manifest order: files by name, in a file by offset. */
IST_API uint64_t ist_checkpoint_count(struct ist_checkpoint *ck);
IST_API uint64_t ist_checkpoint_bytes(struct ist_checkpoint *ck); /* payload, aliases once */
IST_API ist_err ist_checkpoint_tensor(struct ist_checkpoint *ck, uint64_t index, struct ist_tensor *out, struct ist_error *err);
/* Where tensor index lies in its whole; of one that is no slice: whole is its shape. */
IST_API ist_err ist_checkpoint_slice(struct ist_checkpoint *ck, uint64_t index, struct ist_slice *out, struct ist_error *err);
/* IST_MISSING_TENSOR where there is none of that name. Of several slices of a name: the first. */
IST_API ist_err ist_checkpoint_find(struct ist_checkpoint *ck, const char *name, uint64_t *index, struct ist_error *err);
/* Copies bytes of a tensor to addr. A file that shrank or changed: FILE_CHANGED, never a signal. */
IST_API ist_err ist_checkpoint_read(
	struct ist_checkpoint *ck, uint64_t index, uint64_t offset, uint64_t bytes, void *addr, struct ist_error *err);
/* Digest of tensor index, or of the whole with IST_WHOLE; computed at need, kept for files. docs/digest.md has format
 * and test vectors. text: IST_DIGEST_TEXT bytes. */
#define IST_WHOLE UINT64_MAX
IST_API ist_err ist_checkpoint_digest(struct ist_checkpoint *ck, uint64_t index, char *text, struct ist_error *err);

/* ---- sinks ---- */

struct ist_sink;

/* What a consumer implements to take an update into its own memory. All calls come from the thread that is inside
 * ist_sync_update, in the order begin, piece..., then commit or abort. An error stops the update on every rank, and its
 * text travels; with on_loss continue it ends only this member's part, if the others can do without it. NULL slots are skipped. */
struct ist_sink_ops {
	uint32_t struct_size;
	uint32_t reserved;
	void *ctx;
	/* The whole list is known before the first byte: check it here (DTYPE_MISMATCH, MISSING_TENSOR, NO_SPACE). */
	ist_err (*begin)(void *ctx, const struct ist_tensor *tensors, uint64_t n, uint64_t version, struct ist_error *err);
	/* bytes of tensor index from offset on; addr is lent for the call. Pieces of a tensor come in rising order of offset
	 * within a source's share; of one that sources give in slices, within each slice, and a piece is no longer than what
	 * lies together in the tensor. */
	ist_err (*piece)(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err);
	/* Everything is here and every digest held: get ready, so that commit can't fail. */
	ist_err (*prepare)(void *ctx, struct ist_error *err);
	void (*commit)(void *ctx, uint64_t version);
	/* dirty: bytes of the old version were already overwritten. */
	void (*abort)(void *ctx, uint32_t dirty);
	uint32_t in_place;  /* 1: piece overwrites what is in use: a failure after the first piece leaves it DIRTY */
	uint32_t raw_files; /* 1: wants the other files and headers too (a directory) */
};

/* dest: a directory, "shm:NAME", "mem:" or "null:" (docs/cli.md says what each does). flags: enum ist_sink_flag. */
enum ist_sink_flag { IST_SINK_NO_REPLACE = 1, IST_SINK_WEIGHTS_ONLY = 2 };
IST_API ist_err ist_sink_open(struct ist_env *env, const char *dest, uint32_t flags, struct ist_sink **out, struct ist_error *err);
IST_API ist_err ist_sink_custom(struct ist_env *env, const struct ist_sink_ops *ops, struct ist_sink **out, struct ist_error *err);
IST_API void ist_sink_free(struct ist_sink *sink);
/* The same, with where and into what. mem: goes to that device's memory, or with places into memory of the caller's, an engine's
 * parameters: each tensor into the place of its name, whose dtype and bytes must fit (DTYPE_MISMATCH, MISMATCH; none of that name:
 * MISSING_TENSOR). Places are overwritten as the bytes come: a failure after the first piece leaves them DIRTY. They are lent until
 * the sink is freed, and lie on one device, or all in host memory. */
struct ist_sink_args {
	uint32_t struct_size;
	uint32_t flags;                   /* enum ist_sink_flag */
	uint32_t mem;                     /* enum ist_mem_kind; dest mem: only */
	int32_t device;
	const struct ist_tensor *places;  /* dest mem: only; NULL: the sink makes its own */
	uint64_t n_places;
};
IST_API ist_err ist_sink_open_at(
	struct ist_env *env, const char *dest, const struct ist_sink_args *args, struct ist_sink **out, struct ist_error *err);
/* mem: sinks only: where tensor name lies after a commit; the sink's until the next update. */
IST_API ist_err ist_sink_tensor(struct ist_sink *sink, const char *name, struct ist_tensor *out, struct ist_error *err);

/* ---- files into this process ---- */

struct ist_load_args {
	uint32_t struct_size;
	uint32_t threads;       /* that read; 0: one a CPU, at most 12 */
	uint64_t run_bytes;     /* of one read; 0: 4 MiB. On a device each thread has twice as much pinned memory */
	uint64_t version;       /* that the sink is told; 0: 1 */
};
/* A checkpoint of files into a sink, with no group: as an update would bring it, in parallel, onto a device by pinned memory; files that
 * are not in memory are read past the page cache. Bytes are taken as they are: digests are ist_checkpoint_digest's. args NULL: usual
 * values. The sink is the call's meanwhile; after a failure one that writes in place (places) holds a mix. Errors: those of
 * ist_checkpoint_read, MISSING_TENSOR, DTYPE_MISMATCH and MISMATCH where places don't fit, the sink's own. */
IST_API ist_err ist_checkpoint_load(struct ist_checkpoint *ck, struct ist_sink *sink, const struct ist_load_args *args, struct ist_error *err);

/* ---- sync ---- */

struct ist_sync;

enum ist_on_loss { IST_ON_LOSS_FAIL = 0, IST_ON_LOSS_CONTINUE = 1 };

struct ist_sync_args {
	uint32_t struct_size;
	uint32_t on_loss;        /* enum ist_on_loss; must be equal on all members. continue: also a member whose own sink fails is
	                          * left behind; it has the sink's error, and EVICTED from then on */
	uint64_t bucket_bytes;   /* 0: 128 MiB, less where the machine or the control group is short of memory; the minimum
	                          * over the members is used. NO_MEMORY when a control group can't hold the ring. The ring is made
	                          * when the first update begins, before anything moves */
	uint32_t no_verify;      /* 1: digests are not compared (they cost nothing to speak of) */
	uint32_t slots;          /* buckets in the ring; 0: 3 (on devices 5): one is read, one moves, one is delivered; 1: one after the other. With
	                          * several sources more, where buckets are small enough for it to need no more memory. A member
	                          * that can't have so many does with fewer, down to one, and its log says so */
	/* Called from inside update, at most every 50 ms: for progress bars. */
	void (*progress)(void *ctx, uint64_t bytes, uint64_t total);
	void *progress_ctx;
	/* With on_loss continue: a sink that every other member has waited for so long, out of twice that time, and that needs
	 * more than 4 times as long for a bucket as the middle one of the sinks, is left behind (SLOW_PEER; there: EVICTED).
	 * Never half of the sinks or more. 0: a third of the group's no-progress limit; negative: never. */
	int64_t slow_ns;
};

IST_API ist_err ist_sync_new(struct ist_group *group, const struct ist_sync_args *args, struct ist_sync **out, struct ist_error *err);
IST_API void ist_sync_free(struct ist_sync *sync);

/* part, parts: this source's share by hand; parts 0: shared equally among the sources with equal manifests. The
 * checkpoint is lent until unregister or ist_sync_free. Files are digested here, once; where buckets lie on devices that is left to the
 * first update. */
IST_API ist_err ist_sync_source(
	struct ist_sync *sync, struct ist_checkpoint *ck, uint32_t part, uint32_t parts, struct ist_error *err);
IST_API ist_err ist_sync_unregister(struct ist_sync *sync, struct ist_checkpoint *ck, struct ist_error *err);
IST_API ist_err ist_sync_sink(struct ist_sync *sync, struct ist_sink *sink, struct ist_error *err);

/* Manifests of all members become one; the plan is made and its digest agreed. Cheap when nothing changed. Errors on all
 * members alike: OVERLAP, EMPTY_UPDATE, NO_RECEIVERS, INCOMPLETE, MISMATCH. */
IST_API ist_err ist_sync_gather(struct ist_sync *sync, int64_t timeout_ns, struct ist_error *err);

struct ist_update_args {
	uint32_t struct_size;
	uint32_t force;          /* 1: a version not above the committed one is allowed */
	uint64_t version;        /* >= 1; 0: one more than any member knows. Who asks for one asks for the same, or MISMATCH */
	const char *label;       /* at most 64 bytes; travels with it */
	int64_t timeout_ns;
};

struct ist_report {
	uint32_t struct_size;
	uint32_t verified;       /* 1: every digest was compared and held */
	uint64_t version;
	uint64_t tensors;
	uint64_t bytes;          /* payload, once */
	uint64_t changed;        /* tensors whose digest differs from the version before, of those known; tensors if none was */
	uint32_t known_before;   /* 1: a version before was known */
	uint32_t n_lost;
	struct ist_rank_error lost[IST_ERROR_RANKS];
	double seconds_register;
	double seconds_gather;
	double seconds_plan;
	double seconds_update;
	double seconds_verify;
	uint64_t bucket_bytes;
	uint64_t buckets;
	char digest[IST_DIGEST_TEXT];
	char label[65];
};

IST_API ist_err ist_sync_update(
	struct ist_sync *sync, const struct ist_update_args *args, struct ist_report *out, struct ist_error *err);

enum ist_state_kind { IST_CLEAN = 0, IST_UPDATING = 1, IST_STATE_DIRTY = 2 };
/* This member's own: CLEAN(version), UPDATING or DIRTY (version -> to). Any thread, also in mid-update. */
IST_API ist_err ist_sync_state(struct ist_sync *sync, uint32_t *kind, uint64_t *version, uint64_t *to, struct ist_error *err);

/* ---- stream: named tensors one by one, bounded memory ----
 *
 * One rank puts, all others take, in the same order. For trainers that materialise one tensor at a time. */

struct ist_push;
struct ist_pull;
struct ist_stream_args {
	uint32_t struct_size;
	uint32_t root;
	uint64_t bucket_bytes;
	uint64_t version;       /* root; 0: 1 */
	int64_t timeout_ns;
};
IST_API ist_err ist_push_begin(struct ist_group *group, const struct ist_stream_args *args, struct ist_push **out, struct ist_error *err);
/* The bytes are copied before it returns. An error of any rank comes back here at the latest one bucket later. */
IST_API ist_err ist_push_tensor(struct ist_push *push, const struct ist_tensor *tensor, struct ist_error *err);
/* Ends the stream: the receivers have verified everything. push is dead after it, in every outcome. */
IST_API ist_err ist_push_end(struct ist_push *push, struct ist_report *out, struct ist_error *err);
/* Ends it badly on every rank, with this text. */
IST_API void ist_push_abort(struct ist_push *push, const char *text);

struct ist_piece {
	uint32_t struct_size;
	uint32_t last;          /* 1: the tensor ends with this piece */
	struct ist_tensor tensor;
	uint64_t offset;
	const void *addr;       /* to read, until the bucket is done */
	uint64_t bytes;
};
IST_API ist_err ist_pull_begin(struct ist_group *group, const struct ist_stream_args *args, struct ist_pull **out, struct ist_error *err);
/* *more 0: the stream has ended well and was verified. Otherwise the next piece; *bucket_end says that it is the last
 * of its bucket: then ist_pull_done or ist_pull_fail. */
IST_API ist_err ist_pull_next(struct ist_pull *pull, struct ist_piece *out, uint32_t *more, uint32_t *bucket_end, struct ist_error *err);
IST_API ist_err ist_pull_done(struct ist_pull *pull, struct ist_error *err);
/* Every rank stops at this bucket with the text. */
IST_API ist_err ist_pull_fail(struct ist_pull *pull, const char *text);
IST_API ist_err ist_pull_end(struct ist_pull *pull, struct ist_report *out, struct ist_error *err);

#ifdef __cplusplus
}
#endif
#endif
