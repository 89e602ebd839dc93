/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest.h - the list of everything that an update moves, in the one order that all members share. Items of files stand
 * by file name, then by offset, and cover each file from its first byte to its last, so that a receiver can write the
 * file again. Items of memory stand after them, in their owner's order. Built and sealed here, or decoded from the wire;
 * both ways hold to the same rules. Sealed ones are read by any number of threads.
 */
#ifndef ISTHMUS_CKPT_MANIFEST_H
#define ISTHMUS_CKPT_MANIFEST_H

#include "base/arena.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/dtype.h"

#include <isthmus/sync.h>

#define IST__NAME_MAX 65536u               /* bytes of a tensor's name */
#define IST__FILE_NAME_MAX 255u
#define IST__NO_FILE UINT32_MAX
#define IST__NO_ALIAS UINT64_MAX
#define IST__OTHERS_MAX (UINT64_C(64) << 20) /* of index and other files together */

/* Wire numbers. All but TENSOR and SLICE are "raw": only folders want them. */
enum ist__item_kind {
	IST__ITEM_TENSOR = 0,
	IST__ITEM_HEADER = 1, /* length and header of a safetensors file */
	IST__ITEM_FILLER = 2, /* bytes of it that belong to no tensor of this checkpoint */
	IST__ITEM_INDEX = 3,  /* the index.json that says which copy counts */
	IST__ITEM_OTHER = 4,  /* another file of the folder */
	IST__ITEM_SLICE = 5   /* a box of a tensor, in memory; several may have one name */
};

struct ist__file {
	const char *name;
	uint64_t bytes;
	uint64_t header_bytes; /* with the 8 of its length; 0: no safetensors file */
};

struct ist__item {
	const char *name;      /* "" for raw ones */
	const uint64_t *shape; /* rank of them */
	uint64_t offset;       /* in the file; 0 for memory */
	uint64_t bytes;
	uint64_t alias;        /* the item whose bytes these are, an earlier one; IST__NO_ALIAS: it has its own */
	uint32_t file;         /* IST__NO_FILE: memory */
	uint32_t dtype;        /* number in base/dtype.h; raw ones none */
	uint32_t kind;         /* enum ist__item_kind */
	uint32_t rank;
	/* SLICE; shape has its own extents: */
	const uint64_t *whole; /* shape of its tensor */
	const uint64_t *begin; /* where it begins there */
	uint64_t part_of;      /* the item of its tensor, plus 1, in the manifest of a whole update; else 0 */
	bool in_parts;         /* TENSOR there: its bytes are those of slices */
};

struct ist__manifest {
	struct ist__file *files;
	struct ist__item *items;
	uint64_t *tensors;     /* items that are tensors or slices of tensors that are not here: index of the public API -> item */
	uint64_t n_files, n_items, n_tensors;
	uint64_t payload;      /* bytes of those, aliases once */
	uint64_t raw;          /* bytes of raw items */

	/* private */
	const struct ist__ctx *ctx;
	struct ist__arena arena;
	uint64_t files_room, items_room;
	uint64_t *table;       /* name -> number in tensors, plus 1 */
	uint64_t table_room, seed;
};

/* NULL: no memory. */
struct ist__manifest *ist__manifest_new(const struct ist__ctx *ctx);
void ist__manifest_free(struct ist__manifest *m); /* NULL is allowed */

/* Building: names and shapes are copied. False: no memory. *out_index, where asked for, is what was given. */
bool ist__manifest_add_file(struct ist__manifest *m, const struct ist__file *file, uint32_t *out_index);
bool ist__manifest_add_item(struct ist__manifest *m, const struct ist__item *item, uint64_t *out_index);
/* The same, but name and shapes are the caller's, who keeps them as long as m lives. */
bool ist__manifest_borrow_item(struct ist__manifest *m, const struct ist__item *item, uint64_t *out_index);
/* Ends building: checks every rule and makes the table of names. The errors are those of the file formats. */
ist_err ist__manifest_seal(struct ist__manifest *m, const char *op, struct ist_error *err);

/* The same where it is known that no name stands twice, and nobody will ask for one: there is no table. */
ist_err ist__manifest_seal_distinct(struct ist__manifest *m, const char *op, struct ist_error *err);

/* Number in tensors, or UINT64_MAX. Of slices: the first one's. */
uint64_t ist__manifest_find(const struct ist__manifest *m, const char *name);
bool ist__item_is_raw(const struct ist__item *item);
/* True when every tensor lies in a file: then a folder can be made equal to the source's. */
bool ist__manifest_has_files(const struct ist__manifest *m);
/* Public form of item. Raw ones: name and dtype "". Texts live as long as m. */
void ist__manifest_public(const struct ist__manifest *m, uint64_t item, struct ist_tensor *out);

/* The rules for one tensor; name, shape and bytes are from outside. where goes before the detail: a file, or "". */
ist_err ist__tensor_check(const struct ist__item *t, const char *op, const char *where, struct ist_error *err);
/* UTF-8 without control characters, at most IST__NAME_MAX bytes. */
bool ist__name_ok(const char *name, uint64_t bytes);
/* The same and fit for one place in a folder: no '/', neither "", "." nor "..", at most IST__FILE_NAME_MAX bytes. */
bool ist__file_name_ok(const char *name, uint64_t bytes);

/* Canonical: equal manifests have equal bytes. w->bad: no memory. */
void ist__manifest_encode(const struct ist__manifest *m, struct ist__writer *w);
/* Reads one manifest, seals it. Whatever the bytes are: a sealed manifest or an error. */
ist_err ist__manifest_decode(const struct ist__ctx *ctx, struct ist__reader *r, struct ist__manifest **out, struct ist_error *err);
/* XXH3-128 of the encoding. */
ist_err ist__manifest_digest(const struct ist__manifest *m, struct ist__digest *out, struct ist_error *err);
/* Digest of the checkpoint from those of its items (indexed like items; aliases: that of their owner is taken). */
ist_err ist__manifest_fold(const struct ist__manifest *m, const struct ist__digest *digests, struct ist__digest *out, struct ist_error *err);

#endif
