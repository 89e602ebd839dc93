/* SPDX-License-Identifier: Apache-2.0
 *
 * open.c - from a path to a sealed manifest and open files: which files count (choose), what each holds (add).
 */
#include "ckpt/checkpoint.h"

#include "base/fail.h"
#include "ckpt/folder.h"
#include "ckpt/index.h"
#include "ckpt/open.h"
#include "ckpt/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OP "checkpoint_open"
typedef unsigned long long ull;

struct opening {
	struct ist__checkpoint_body *b;
	const struct ist__open_args *args;
	struct ist__folder folder;
	struct ist__index index;
	bool has_index;
	uint64_t others;     /* bytes of index and other files */
	uint64_t files_room;
	uint64_t ignored;    /* tensors that the index gives to another file */
	uint64_t strays;     /* files that the index does not name */
};

/* ---- sources of bytes ---- */

static bool
read_fd(void *ctx, uint64_t offset, void *to, uint64_t bytes, struct ist_error *err)
{
	const int *fd = ctx;
	int sys;

	if (ist__pread_all(*fd, offset, to, bytes, &sys))
		return true;
	if (sys)
		ist__fail_sys(err, IST_IO, sys, OP, "can't read %llu bytes at %llu", (ull)bytes, (ull)offset);
	else
		ist__fail(err, IST_FILE_CHANGED, OP, "the file became shorter while it was read");
	return false;
}

/* ---- which index ---- */

static ist_err
read_index(struct opening *o, const char *name, struct ist_error *err)
{
	struct ist__bytes_source s = { .read = read_fd, .name = name };
	struct stat st;
	int fd;
	ist_err e = ist__folder_open(&o->folder, name, &fd, err);

	if (e)
		return e;
	s.ctx = &fd;
	if (fstat(fd, &st))
		e = ist__fail_sys(err, IST_IO, errno, OP, "%s/%s", o->folder.path, name);
	else if ((uint64_t)st.st_size > IST__OTHERS_MAX)
		e = ist__fail(err, IST_LIMIT, OP, "%s/%s: an index of %llu bytes; at most 64 MiB are read", o->folder.path, name, (ull)st.st_size);
	s.bytes = e ? 0 : (uint64_t)st.st_size;
	if (!e)
		e = ist__index_read(&o->folder.arena, &s, &o->index, err);
	close(fd);
	return e;
}

static bool
index_is_ours(const struct ist__index *x)
{
	for (uint64_t i = 0; i < x->n; i++)
		if (!ist__ends_with(x->rows[i].file, ".safetensors"))
			return false;
	return true;
}

/* The one of this name, or the usual one, or the only one. NULL: none. */
static ist_err
pick_index(struct opening *o, const char **name, struct ist_error *err)
{
	const struct ist__folder *f = &o->folder;
	const char *other = NULL;
	uint64_t n = 0;

	*name = o->args->index;
	for (uint64_t i = 0; i < f->n && !*name; i++) {
		const char *this = f->entries[i].name;

		if (f->entries[i].role != IST__ROLE_INDEX || !ist__ends_with(this, ".safetensors.index.json"))
			continue;
		if (!strcmp(this, "model.safetensors.index.json"))
			*name = this;
		other = this;
		n++;
	}
	if (!*name && n > 1)
		return ist__fail(err, IST_BAD_FORMAT, OP, "%s holds %llu indexes; give the path of the one that counts", f->path, (ull)n);
	if (!*name)
		*name = other;
	return *name ? read_index(o, *name, err) : IST_OK;
}

/* An index under another name counts when all it names are safetensors files; else it is just a file. */
static ist_err
pick_other_index(struct opening *o, const char **name, struct ist_error *err)
{
	const struct ist__folder *f = &o->folder;

	for (uint64_t i = 0; i < f->n && !*name; i++) {
		ist_err e;

		if (f->entries[i].role != IST__ROLE_INDEX)
			continue;
		e = read_index(o, f->entries[i].name, NULL); /* what it is not, is no error */
		if (e == IST_NO_MEMORY)
			return ist__fail_memory(err, OP);
		if (e)
			continue;
		if (o->index.n > 0 && index_is_ours(&o->index)) {
			*name = f->entries[i].name;
			continue;
		}
		ist__free(o->b->ctx, o->index.rows);
		o->index = (struct ist__index){ 0 };
	}
	return IST_OK;
}

/* ---- which files ---- */

static int
by_text(const void *a, const void *b)
{
	const char *const *x = a, *const *y = b;

	return strcmp(*x, *y);
}

static int
by_name(const void *a, const void *b)
{
	const struct ist__folder_entry *x = a, *y = b;

	return strcmp(x->name, y->name);
}

struct wanted {
	struct opening *o;
	const char *index;
	const char **shards; /* that the index names, sorted, each once */
	uint64_t n;
};

static bool
is_wanted(const struct wanted *w, const char *name)
{
	return w->n > 0 && bsearch(&name, w->shards, w->n, sizeof(*w->shards), by_text);
}

static bool
keep(void *ctx, const struct ist__folder_entry *entry)
{
	const struct wanted *w = ctx;

	if (w->index && !strcmp(entry->name, w->index))
		return false; /* comes back with its role */
	if (w->index && is_wanted(w, entry->name))
		return false;
	if (entry->role == IST__ROLE_SHARD) {
		if (w->index)
			w->o->strays++;
		return !w->index;
	}
	return !w->o->args->weights_only;
}

static ist_err
wanted_shards(struct wanted *w, struct ist_error *err)
{
	const struct ist__index *x = &w->o->index;
	uint64_t n = 0;

	w->shards = ist__alloc(w->o->b->ctx, x->n * sizeof(*w->shards));
	if (!w->shards)
		return ist__fail_memory(err, OP);
	for (uint64_t i = 0; i < x->n; i++)
		w->shards[i] = x->rows[i].file;
	qsort(w->shards, x->n, sizeof(*w->shards), by_text);
	for (uint64_t i = 0; i < x->n; i++)
		if (n == 0 || strcmp(w->shards[n - 1], w->shards[i]))
			w->shards[n++] = w->shards[i];
	w->n = n;
	return IST_OK;
}

static ist_err
choose_in_folder(struct opening *o, struct ist_error *err)
{
	struct wanted w = { .o = o };
	bool ok = true;
	uint64_t shards = 0;
	ist_err e = pick_index(o, &w.index, err);

	if (!e && !w.index)
		e = pick_other_index(o, &w.index, err);
	o->has_index = w.index != NULL;
	if (!e)
		e = wanted_shards(&w, err);
	if (!e) {
		ist__folder_filter(&o->folder, keep, &w);
		for (uint64_t i = 0; i < w.n && ok; i++)
			ok = ist__folder_add(&o->folder, w.shards[i], IST__ROLE_SHARD);
		if (ok && w.index)
			ok = ist__folder_add(&o->folder, w.index, IST__ROLE_INDEX);
		e = ok ? IST_OK : ist__fail_memory(err, OP);
	}
	ist__free(o->b->ctx, w.shards);
	if (e)
		return e;
	for (uint64_t i = 0; i < o->folder.n; i++)
		shards += o->folder.entries[i].role == IST__ROLE_SHARD;
	if (shards == 0 && !w.index)
		return ist__folder_explain(&o->folder, err);
	if (o->folder.n > 0)
		qsort(o->folder.entries, o->folder.n, sizeof(*o->folder.entries), by_name);
	return IST_OK;
}

/* ---- what each holds ---- */

static bool
add_item(struct opening *o, uint32_t kind, uint32_t file, uint64_t offset, uint64_t bytes)
{
	struct ist__item t = { .name = "", .kind = kind, .file = file, .offset = offset, .bytes = bytes, .alias = IST__NO_ALIAS };

	return bytes == 0 || ist__manifest_add_item(o->b->m, &t, NULL);
}

/* Bytes that no tensor of ours has become fillers, each as long as it can be. */
static ist_err
add_tensors(struct opening *o, uint32_t file, const char *name, const struct ist__st_file *st, struct ist_error *err)
{
	uint64_t filler = st->header_bytes, total = o->b->m->files[file].bytes;
	bool ok = add_item(o, IST__ITEM_HEADER, file, 0, st->header_bytes);

	for (uint64_t i = 0; i < st->n && ok; i++) {
		struct ist__item *t = &st->tensors[i];
		struct ist__index_row *row = o->has_index ? ist__index_find(&o->index, t->name) : NULL;

		if (o->has_index && (!row || strcmp(row->file, name))) {
			o->ignored++;
			continue;
		}
		if (row)
			row->found = true;
		t->file = file;
		ok = add_item(o, IST__ITEM_FILLER, file, filler, t->offset - filler) && ist__manifest_add_item(o->b->m, t, NULL);
		filler = t->offset + t->bytes;
	}
	ok = ok && add_item(o, IST__ITEM_FILLER, file, filler, total - filler);
	return ok ? IST_OK : ist__fail_memory(err, OP);
}

static ist_err
add_shard(struct opening *o, const char *name, const char *as, int *fd, uint64_t bytes, struct ist_error *err)
{
	struct ist__bytes_source s = { .ctx = fd, .read = read_fd, .bytes = bytes, .name = name };
	struct ist__st_args args = { .header_bytes_max = o->args->header_bytes_max, .allow_trailing = o->args->allow_trailing };
	struct ist__file file = { .name = as, .bytes = bytes };
	struct ist__st_file st = { 0 };
	struct ist__arena arena;
	uint32_t index;
	ist_err e;

	ist__arena_init(&arena, o->b->ctx);
	e = ist__safetensors_read(&arena, &s, &args, &st, err);
	file.header_bytes = st.header_bytes;
	if (!e && !ist__manifest_add_file(o->b->m, &file, &index))
		e = ist__fail_memory(err, OP);
	if (!e)
		e = add_tensors(o, index, name, &st, err);
	ist__free(o->b->ctx, st.tensors);
	ist__arena_fini(&arena);
	return e;
}

static ist_err
add_other(struct opening *o, const struct ist__folder_entry *entry, uint64_t bytes, struct ist_error *err)
{
	struct ist__file file = { .name = entry->name, .bytes = bytes };
	uint32_t kind = entry->role == IST__ROLE_INDEX && o->has_index ? IST__ITEM_INDEX : IST__ITEM_OTHER;
	uint32_t index;

	if (bytes > IST__OTHERS_MAX || o->others + bytes > IST__OTHERS_MAX) {
		ist__fail(err, IST_LIMIT, OP, "%s: the files beside the weights have more than 64 MiB together; %s is the one too many, with %llu bytes",
			o->folder.path, entry->name, (ull)bytes);
		ist__fail_next(err, "move large files elsewhere, or send the weights only");
		return IST_LIMIT;
	}
	o->others += bytes;
	if (!ist__manifest_add_file(o->b->m, &file, &index) || !add_item(o, kind, index, 0, bytes))
		return ist__fail_memory(err, OP);
	return IST_OK;
}

static ist_err
keep_file(struct opening *o, int fd, struct stat *st, struct ist_error *err)
{
	void *files = o->b->files;
	uint64_t n = o->b->m->n_files;

	if (fstat(fd, st))
		return ist__fail_sys(err, IST_IO, errno, OP, "%s", o->folder.path);
	if (!ist__grow(o->b->ctx, &files, &o->files_room, n + 1, sizeof(*o->b->files)))
		return ist__fail_memory(err, OP);
	o->b->files = files;
	if (o->args->how == IST_READ_READ)
		posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL); /* a wish */
	o->b->files[n] = (struct ist__open_file){ .fd = fd, .bytes = (uint64_t)st->st_size, .mtime = st->st_mtim };
	return IST_OK;
}

static ist_err
add_entry(struct opening *o, const struct ist__folder_entry *entry, struct ist_error *err)
{
	uint64_t before = o->b->m->n_files;
	const char *as = o->args->file && !ist__ends_with(entry->name, ".safetensors") ? "model.safetensors" : entry->name;
	struct stat st;
	int fd;
	ist_err e = ist__folder_open(&o->folder, entry->name, &fd, err);

	if (e)
		return e;
	e = keep_file(o, fd, &st, err);
	if (!e && entry->role == IST__ROLE_SHARD)
		e = add_shard(o, entry->name, as, &fd, (uint64_t)st.st_size, err);
	else if (!e)
		e = add_other(o, entry, (uint64_t)st.st_size, err);
	if (o->b->m->n_files == before)
		close(fd); /* not the body's yet */
	return e;
}

/* ---- across files ---- */

static ist_err
check_index(const struct opening *o, struct ist_error *err)
{
	for (uint64_t i = 0; i < o->index.n; i++) {
		const struct ist__index_row *row = &o->index.rows[i];

		if (row->found)
			continue;
		ist__fail(err, IST_MISSING_TENSOR, OP, "%s: the index says that %s holds \"%.200s\", which it does not", o->folder.path, row->file, row->tensor);
		ist__fail_tensor(err, row->tensor);
		return IST_MISSING_TENSOR;
	}
	return IST_OK;
}

static int
by_item_name(const void *a, const void *b)
{
	const struct ist__item *const *x = a, *const *y = b;
	int c = strcmp((*x)->name, (*y)->name);

	return c ? c : (*x)->file < (*y)->file ? -1 : (*x)->file > (*y)->file;
}

static ist_err
check_unique(const struct opening *o, struct ist_error *err)
{
	const struct ist__manifest *m = o->b->m;
	const struct ist__item **order = ist__alloc(m->ctx, m->n_items * sizeof(*order));
	uint64_t n = 0;
	ist_err e = IST_OK;

	if (!order)
		return ist__fail_memory(err, OP);
	for (uint64_t i = 0; i < m->n_items; i++)
		if (m->items[i].kind == IST__ITEM_TENSOR)
			order[n++] = &m->items[i];
	if (n > 0)
		qsort(order, n, sizeof(*order), by_item_name);
	for (uint64_t i = 1; i < n && !e; i++)
		if (!strcmp(order[i - 1]->name, order[i]->name)) {
			e = ist__fail(err, IST_DUPLICATE_ACROSS_FILES, OP, "%s: tensor \"%.200s\" stands in %s and in %s, and no index says which counts",
				o->folder.path, order[i]->name, m->files[order[i - 1]->file].name, m->files[order[i]->file].name);
			ist__fail_tensor(err, order[i]->name);
		}
	ist__free(m->ctx, order);
	return e;
}

static void
tell(const struct opening *o)
{
	if (o->strays || o->ignored)
		ist__log(o->b->ctx, 2, "%s: ignored %llu files that the index does not name and %llu tensors that it gives to another file",
			o->folder.path, (ull)o->strays, (ull)o->ignored);
}

ist_err
ist__checkpoint_open_body(struct ist__checkpoint_body *b, const struct ist__open_args *args, struct ist_error *err)
{
	struct opening o = { .b = b, .args = args };
	ist_err e = (args->file ? ist__folder_enter : ist__folder_scan)(b->ctx, args->folder, &o.folder, err);

	if (!e && args->file) {
		e = ist__folder_add(&o.folder, args->file, IST__ROLE_SHARD) ? IST_OK : ist__fail_memory(err, OP);
	} else if (!e) {
		e = choose_in_folder(&o, err);
	}
	for (uint64_t i = 0; !e && i < o.folder.n; i++)
		e = add_entry(&o, &o.folder.entries[i], err);
	if (!e && o.has_index)
		e = check_index(&o, err);
	else if (!e && !args->file)
		e = check_unique(&o, err);
	if (!e)
		e = ist__manifest_seal(b->m, OP, err);
	if (!e)
		tell(&o);
	ist__free(b->ctx, o.index.rows);
	ist__folder_fini(&o.folder);
	return e;
}
