/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - from the manifests of all sets to the one of the whole, and to the plan. One set: its own manifest is the
 * whole. Several: their files side by side, by name, then what lies in memory; a tensor that two sets give alike is
 * given once. Slices of a tensor are put together under an item of its own, which is what sinks see.
 */
#include "base/fail.h"
#include "ckpt/slice.h"
#include "sync/mates.h"
#include "sync/parts.h"
#include "sync/table.h"

#include <stdlib.h>
#include <string.h>

#define OP "sync_gather"

/* ---- what was sent ---- */

/* Two offers of one manifest whose contents differ: says where, and of three or more who is alone with it. */
static ist_err
fail_contents(const struct ist__table *t, uint32_t i, const struct ist__digest *theirs, struct ist_error *err)
{
	const struct ist__offer *o = &t->offers[i], *first = NULL;
	const struct ist__set *s = &t->sets[o->set];
	uint32_t with_first = 0, with_o = 0;
	uint64_t item = 0;
	bool raw;

	for (uint32_t k = 0; k < t->n_offers; k++) {
		const struct ist__offer *q = &t->offers[k];

		if (q->set != o->set)
			continue;
		if (!first)
			first = q;
		with_first += ist__digest_equal(&q->content, &first->content);
		with_o += ist__digest_equal(&q->content, &o->content);
	}
	while (item + 1 < s->m->n_items && ist__digest_equal(&s->digests[item], &theirs[item]))
		item++;
	raw = ist__item_is_raw(&s->m->items[item]);
	if (with_o > with_first) {
		const struct ist__offer *swap = o;

		o = first;
		first = swap;
	}
	ist__fail(err, IST_OVERLAP, OP, "%s %s%s differs between rank %u and rank %u%s", raw ? "file" : "tensor",
		raw ? s->m->files[s->m->items[item].file].name : s->m->items[item].name, raw ? " outside its tensors" : "", o->member, first->member,
		with_o != with_first ? "; the others agree with the latter" : "");
	ist__fail_tensor(err, s->m->items[item].name);
	ist__fail_rank(err, o->member);
	if (with_o == with_first)
		ist__fail_rank(err, first->member);
	return IST_OVERLAP;
}

static ist_err
read_digests(struct ist__table *t, uint32_t i, uint64_t n, struct ist__reader *r, struct ist_error *err)
{
	struct ist__set *s = &t->sets[t->offers[i].set];
	const void *at = ist__get_bytes(r, n * sizeof(struct ist__digest));

	if (!at)
		return ist__fail(err, IST_BAD_FORMAT, OP, "the digests of rank %u can't be read", t->offers[i].member);
	if (s->digests) {
		struct ist__digest *theirs = ist__alloc(t->ctx, n * sizeof(*theirs));
		ist_err e;

		if (!theirs)
			return ist__fail_memory(err, OP);
		memcpy(theirs, at, n * sizeof(*theirs));
		e = fail_contents(t, i, theirs, err);
		ist__free(t->ctx, theirs);
		return e;
	}
	s->digests = ist__alloc(t->ctx, n * sizeof(*s->digests));
	if (!s->digests)
		return ist__fail_memory(err, OP);
	if (n > 0)
		memcpy(s->digests, at, n * sizeof(*s->digests));
	return IST_OK;
}

ist_err
ist__table_manifest(struct ist__table *t, uint32_t i, struct ist__reader *r, struct ist_error *err)
{
	const struct ist__offer *o = &t->offers[i];
	struct ist__set *s = &t->sets[o->set];
	struct ist__manifest *m = NULL;
	struct ist__digest digest, content = { { 0 } };
	const uint8_t *from = r->at, *digests;
	ist_err e = ist__manifest_decode(t->ctx, r, &m, err);

	if (!e)
		ist__digest_flat(from, (uint64_t)(r->at - from), &digest); /* of the bytes that came, which are as they were written */
	if (!e && (!ist__digest_equal(&digest, &o->manifest) || m->n_items >= IST__NO_ITEM))
		e = ist__fail(err, IST_BAD_FORMAT, OP, "rank %u sent another manifest than it announced", o->member);
	digests = r->at;
	if (!e && !o->live) {
		uint64_t before = r->left;

		e = read_digests(t, i, m->n_items, r, err);
		if (!e) {
			ist__digest_flat(digests, before - r->left, &content);
			if (!ist__digest_equal(&content, &o->content))
				e = ist__fail(err, IST_BAD_FORMAT, OP, "rank %u sent other digests than it announced", o->member);
		}
	}
	if (e || s->m) {
		ist__manifest_free(m);
		return e;
	}
	s->m = m;
	return IST_OK;
}

/* ---- the whole ---- */

struct in_set {
	uint32_t set;
	uint64_t index; /* file */
	const char *name;
};

static int
by_file(const void *a, const void *b)
{
	const struct in_set *x = a, *y = b;
	int c = strcmp(x->name, y->name);

	return c ? c : (x->set > y->set) - (x->set < y->set);
}

struct merger {
	struct ist__table *t;
	struct ist__names names;  /* of tensors: the item of the whole */
	struct ist__names boxes;  /* of slices, with their tensor's name: the same */
	struct ist__arena keys;   /* of boxes */
	struct in_set *files;
	uint64_t n_files;
	bool slices;              /* there are some */
	bool distinct;            /* no name stands twice: nobody needs to look */
	bool flat;                /* files do not fit together: tensors only, as if of memory */
	struct ist_error *err;
};

static bool
same_tensor(const struct ist__item *a, const struct ist__item *b)
{
	return a->dtype == b->dtype && a->rank == b->rank && a->bytes == b->bytes &&
		(a->rank == 0 || memcmp(a->shape, b->shape, a->rank * sizeof(*a->shape)) == 0);
}

static ist_err
fail_overlap(struct merger *g, const char *name, uint32_t a, uint32_t b, const char *how)
{
	uint32_t x = ist__table_member_of(g->t, a), y = ist__table_member_of(g->t, b);

	ist__fail(g->err, IST_OVERLAP, OP, "tensor %s is given by rank %u and by rank %u, %s", name, x, y, how);
	ist__fail_tensor(g->err, name);
	ist__fail_rank(g->err, x);
	ist__fail_rank(g->err, y);
	return IST_OVERLAP;
}

static ist_err
add_item(struct merger *g, uint32_t set, uint64_t k, const struct ist__item *item, uint64_t *made)
{
	struct ist__table *t = g->t;

	if (!ist__manifest_borrow_item(t->made, item, made)) /* the sets live as long */
		return ist__fail_memory(g->err, OP);
	t->item_set[*made] = set;
	t->item_local[*made] = (uint32_t)k;
	return IST_OK;
}

/* ---- slices ---- */

/* The tensor of a slice, in the whole. It is made with the first one. */
static ist_err
take_tensor_of(struct merger *g, uint32_t set, uint64_t k, uint64_t *out)
{
	struct ist__table *t = g->t;
	struct ist__item item = t->sets[set].m->items[k];
	uint32_t known = IST__NO_NAME;

	item.kind = IST__ITEM_TENSOR;
	item.shape = item.whole;
	item.in_parts = true;
	if (ist__dtype_bytes(item.dtype, item.shape, item.rank, &item.bytes))
		return ist__fail(g->err, IST_INTERNAL, OP, "a slice has a tensor of no size");
	if (!ist__names_add(&g->names, item.name, strlen(item.name), (uint32_t)t->made->n_items, &known))
		return ist__fail_memory(g->err, OP);
	if (known == IST__NO_NAME)
		return add_item(g, set, k, &item, out);
	if (!same_tensor(&item, &t->made->items[known]))
		return fail_overlap(g, item.name, t->item_set[known], set, "with different shapes or dtypes");
	if (!t->made->items[known].in_parts)
		return fail_overlap(g, item.name, t->item_set[known], set, "once whole and once in slices");
	*out = known;
	return IST_OK;
}

/* Is a slice of just this box there? Then it is known, else it will be under the number given. False: no memory. */
static bool
add_box(struct merger *g, const struct ist__item *slice, uint32_t number, uint32_t *known)
{
	uint64_t name = strlen(slice->name) + 1, dims = slice->rank * sizeof(*slice->begin), bytes = name + 2 * dims;
	uint8_t *key = ist__arena_alloc(&g->keys, bytes);

	if (!key)
		return false;
	memcpy(key, slice->name, name);
	memcpy(key + name, slice->begin, dims);
	memcpy(key + name + dims, slice->shape, dims);
	return ist__names_add(&g->boxes, (const char *)key, bytes, number, known);
}

static ist_err
take_slice(struct merger *g, uint32_t set, uint64_t k)
{
	struct ist__table *t = g->t;
	struct ist__set *s = &t->sets[set];
	struct ist__item item = s->m->items[k];
	uint64_t tensor, made = 0;
	uint32_t known = IST__NO_NAME, other;
	ist_err e = take_tensor_of(g, set, k, &tensor);

	if (e)
		return e;
	if (!add_box(g, &item, (uint32_t)t->made->n_items, &known))
		return ist__fail_memory(g->err, OP);
	if (known != IST__NO_NAME) {
		other = t->item_set[known];
		/* of live ones nobody knows: they overlap, which is found and told when all are there */
		if (item.bytes == 0 || (s->digests && t->sets[other].digests)) {
			if (item.bytes > 0 && !ist__digest_equal(&s->digests[k], &t->sets[other].digests[t->item_local[known]]))
				return fail_overlap(g, item.name, other, set, "with different bytes in one slice");
			return IST_OK;
		}
	}
	item.part_of = tensor + 1;
	e = add_item(g, set, k, &item, &made);
	if (!e)
		s->whole[k] = (uint32_t)made;
	return e;
}

/* ---- items and files ---- */

/* The item at index k of set, into the whole. */
static ist_err
take_item(struct merger *g, uint32_t set, uint64_t k, uint32_t file)
{
	struct ist__table *t = g->t;
	struct ist__set *s = &t->sets[set];
	struct ist__item item = s->m->items[k];
	uint64_t made = 0;
	uint32_t known = IST__NO_NAME, other;
	ist_err e;

	if (item.kind == IST__ITEM_SLICE)
		return take_slice(g, set, k);
	if (item.kind == IST__ITEM_TENSOR && !g->distinct) {
		if (!ist__names_add(&g->names, item.name, strlen(item.name), (uint32_t)t->made->n_items, &known))
			return ist__fail_memory(g->err, OP);
		if (known != IST__NO_NAME) {
			other = t->item_set[known];
			if (!same_tensor(&item, &t->made->items[known]))
				return fail_overlap(g, item.name, other, set, "with different shapes or dtypes");
			if (t->made->items[known].in_parts)
				return fail_overlap(g, item.name, other, set, "once in slices and once whole");
			if (item.bytes > 0 && (!s->digests || !t->sets[other].digests)) {
				t->needs_digests |= s->late || t->sets[other].late;
				fail_overlap(g, item.name, other, set, "in memory, where nobody can tell whether the bytes are equal");
				ist__fail_next(g->err, IST__NEXT_ALIKE);
				return IST_OVERLAP;
			}
			if (item.bytes > 0 && !ist__digest_equal(&s->digests[k], &t->sets[other].digests[t->item_local[known]]))
				return fail_overlap(g, item.name, other, set, "with different bytes");
			s->whole[k] = IST__NO_ITEM;
			return IST_OK;
		}
	}
	item.file = file;
	if (file == IST__NO_FILE)
		item.offset = 0;
	if (item.alias != IST__NO_ALIAS)
		item.alias = s->whole[item.alias];
	e = add_item(g, set, k, &item, &made);
	if (!e)
		s->whole[k] = (uint32_t)made;
	return e;
}

/* All files of all sets by name, then by set. One of several of a name is taken. */
static ist_err
list_files(struct merger *g)
{
	struct ist__table *t = g->t;
	uint64_t n = 0;

	for (uint32_t s = 0; s < t->n_sets; s++)
		n += t->sets[s].m->n_files;
	g->files = ist__alloc(t->ctx, n * sizeof(*g->files));
	if (!g->files)
		return ist__fail_memory(g->err, OP);
	for (uint32_t s = 0; s < t->n_sets; s++)
		for (uint64_t f = 0; f < t->sets[s].m->n_files; f++)
			g->files[g->n_files++] = (struct in_set){ .set = s, .index = f, .name = t->sets[s].m->files[f].name };
	if (g->n_files > 1)
		qsort(g->files, g->n_files, sizeof(*g->files), by_file);
	return IST_OK;
}

static uint64_t
item_of_file(const struct ist__manifest *m, uint64_t file)
{
	uint64_t lo = 0, hi = m->n_items;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (m->items[mid].file < file)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Equal and without tensors: index.json, config.json. */
static bool
same_file(const struct ist__table *t, const struct in_set *a, const struct in_set *b)
{
	const struct ist__set *x = &t->sets[a->set], *y = &t->sets[b->set];
	const struct ist__file *f = &x->m->files[a->index], *g = &y->m->files[b->index];

	if (f->header_bytes || g->header_bytes || f->bytes != g->bytes || !x->digests || !y->digests)
		return false;
	return f->bytes == 0 ||
		ist__digest_equal(&x->digests[item_of_file(x->m, a->index)], &y->digests[item_of_file(y->m, b->index)]);
}

static bool
is_index(const struct ist__manifest *m, uint64_t file)
{
	uint64_t k = item_of_file(m, file);

	return k < m->n_items && m->items[k].file == file && m->items[k].kind == IST__ITEM_INDEX;
}

/* Do the files of all sets fit into one folder? Two shards or indexes of one name do not: then the tensors alone count, and
 * a folder gets them in one file. Of other files that differ (config.json) the lowest rank's is taken. */
static void
check_files(struct merger *g)
{
	const struct ist__table *t = g->t;

	for (uint64_t i = 1; i < g->n_files && !g->flat; i++) {
		const struct in_set *a = &g->files[i - 1], *b = &g->files[i];
		const struct ist__manifest *x = t->sets[a->set].m, *y = t->sets[b->set].m;

		if (strcmp(a->name, b->name) || same_file(t, a, b))
			continue;
		g->t->needs_digests |= t->sets[a->set].late || t->sets[b->set].late;
		g->flat = x->files[a->index].header_bytes || y->files[b->index].header_bytes || is_index(x, a->index) || is_index(y, b->index);
		if (t->raw)
			ist__log(t->ctx, IST_LOG_WARN, g->flat ? "rank %u and rank %u both give a file %s, and not all of their files are equal: "
				"folders get all tensors in one file, and no other files"
				: "rank %u and rank %u give another file %s each: the former's is taken",
				ist__table_member_of(t, a->set), ist__table_member_of(t, b->set), a->name);
	}
}

static ist_err
take_file(struct merger *g, uint64_t i)
{
	const struct in_set *f = &g->files[i];
	const struct ist__manifest *m = g->t->sets[f->set].m;
	bool again = i > 0 && !strcmp(g->files[i - 1].name, f->name);
	uint32_t made = 0;

	if (!again && !ist__manifest_add_file(g->t->made, &m->files[f->index], &made))
		return ist__fail_memory(g->err, OP);
	for (uint64_t k = item_of_file(m, f->index); !again && k < m->n_items && m->items[k].file == f->index; k++) {
		ist_err e = take_item(g, f->set, k, made);

		if (e)
			return e;
	}
	return IST_OK;
}

static bool
has_twice(const struct ist__table *t)
{
	struct ist__names names;
	uint64_t n = 0;
	bool twice;
	uint32_t known;

	for (uint32_t s = 0; s < t->n_sets; s++)
		n += t->sets[s].m->n_tensors;
	ist__names_init(&names, t->ctx);
	twice = !ist__names_reserve(&names, n);
	for (uint32_t s = 0; s < t->n_sets && !twice; s++)
		for (uint64_t i = 0; i < t->sets[s].m->n_tensors && !twice; i++) {
			const struct ist__item *item = &t->sets[s].m->items[t->sets[s].m->tensors[i]];

			/* no memory: the whole without files is right too, and the next step will say so */
			twice = item->kind == IST__ITEM_TENSOR &&
				(!ist__names_add(&names, item->name, strlen(item->name), 0, &known) || known != IST__NO_NAME);
		}
	ist__names_fini(&names);
	return twice;
}

static ist_err
merge_several(struct merger *g)
{
	struct ist__table *t = g->t;
	ist_err e = list_files(g);
	bool twice;

	if (e)
		return e;
	check_files(g);
	twice = has_twice(t);
	g->distinct = !twice && !g->slices;
	/* a file without one of its tensors is no file any more */
	g->flat = g->flat || twice;
	for (uint64_t i = 0; i < g->n_files && !e && !g->flat; i++)
		e = take_file(g, i);
	for (uint32_t s = 0; s < t->n_sets && !e; s++)
		for (uint64_t k = 0; k < t->sets[s].m->n_items && !e; k++)
			if (t->sets[s].m->items[k].file == IST__NO_FILE || (g->flat && t->sets[s].m->items[k].kind == IST__ITEM_TENSOR))
				e = take_item(g, s, k, IST__NO_FILE);
	if (!e)
		e = g->distinct ? ist__manifest_seal_distinct(t->made, OP, g->err) : ist__manifest_seal(t->made, OP, g->err);
	t->m = t->made;
	return e ? e : ist__parts_settle(t, g->err);
}

static ist_err
merge_one(struct ist__table *t)
{
	struct ist__set *s = &t->sets[0];

	t->m = s->m;
	for (uint64_t k = 0; k < s->m->n_items; k++) {
		s->whole[k] = (uint32_t)k;
		t->item_set[k] = 0;
		t->item_local[k] = (uint32_t)k;
	}
	return IST_OK;
}

static int
by_name(const void *a, const void *b, void *items)
{
	const struct ist__item *list = items;

	return strcmp(list[*(const uint32_t *)a].name, list[*(const uint32_t *)b].name); /* as unsigned bytes */
}

static ist_err
make_order(struct ist__table *t, struct ist_error *err)
{
	t->order = ist__alloc(t->ctx, t->m->n_tensors * sizeof(*t->order));
	if (!t->order)
		return ist__fail_memory(err, OP);
	for (uint64_t i = 0; i < t->m->n_tensors; i++)
		t->order[i] = (uint32_t)t->m->tensors[i];
	return IST_OK;
}

void
ist__table_sort(struct ist__table *t)
{
	if (!t->sorted && t->m->n_tensors > 1)
		qsort_r(t->order, t->m->n_tensors, sizeof(*t->order), by_name, t->m->items);
	t->sorted = true;
}

ist_err
ist__table_merge(struct ist__table *t, struct ist_error *err)
{
	struct merger g = { .t = t, .err = err };
	uint64_t n = 0, slices = 0;
	bool ok = true, make;
	ist_err e;

	for (uint32_t s = 0; s < t->n_sets; s++) {
		struct ist__set *set = &t->sets[s];

		if (!set->m)
			return ist__fail(err, IST_INTERNAL, OP, "a manifest was not sent");
		n += set->m->n_items;
		set->whole = ist__alloc(t->ctx, set->m->n_items * sizeof(*set->whole));
		ok = ok && set->whole;
		for (uint64_t k = 0; set->whole && k < set->m->n_items; k++)
			set->whole[k] = IST__NO_ITEM;
	}
	slices = ist__parts_count(t);
	g.slices = slices > 0;
	make = t->n_sets > 1 || slices > 0;
	n += slices; /* a tensor for each, at the most */
	t->item_set = ist__alloc(t->ctx, n * sizeof(*t->item_set));
	t->item_local = ist__alloc(t->ctx, n * sizeof(*t->item_local));
	t->made = make ? ist__manifest_new(t->ctx) : NULL;
	if (!ok || !t->item_set || !t->item_local || (make && !t->made) || n >= IST__NO_ITEM)
		return n >= IST__NO_ITEM ? ist__fail(err, IST_LIMIT, OP, "more items than 32 bits can count") : ist__fail_memory(err, OP);
	ist__names_init(&g.names, t->ctx);
	ist__names_init(&g.boxes, t->ctx);
	ist__arena_init(&g.keys, t->ctx);
	e = make ? merge_several(&g) : merge_one(t);
	ist__names_fini(&g.names);
	ist__names_fini(&g.boxes);
	ist__arena_fini(&g.keys);
	ist__free(t->ctx, g.files);
	if (!e && t->m->n_tensors == 0)
		e = ist__fail(err, IST_EMPTY_UPDATE, OP, "the sources hold no tensor");
	return e ? e : make_order(t, err);
}

/* ---- the plan ---- */

static bool
moves(const struct ist__table *t, const struct ist__item *item, uint32_t whole)
{
	return whole != IST__NO_ITEM && item->alias == IST__NO_ALIAS && !item->in_parts && (!ist__item_is_raw(item) || t->raw);
}

/* The items of a set that move. */
static bool
list_moving(struct ist__table *t, struct ist__set *s)
{
	const char **names;
	bool ok;

	s->bytes = ist__alloc(t->ctx, s->m->n_items * sizeof(*s->bytes));
	s->ids = ist__alloc(t->ctx, s->m->n_items * sizeof(*s->ids));
	s->mate = ist__alloc(t->ctx, s->m->n_items * sizeof(*s->mate));
	names = ist__alloc(t->ctx, s->m->n_items * sizeof(*names));
	ok = s->bytes && s->ids && s->mate && names;
	for (uint64_t k = 0; ok && k < s->m->n_items; k++) {
		const struct ist__item *item = &s->m->items[k];

		if (!moves(t, item, s->whole[k]))
			continue;
		s->bytes[s->n] = item->bytes;
		s->ids[s->n] = s->whole[k];
		names[s->n++] = ist__item_is_raw(item) ? NULL : item->name;
	}
	ok = ok && ist__mates_find(t->ctx, names, s->n, s->mate);
	ist__free(t->ctx, names);
	return ok;
}

static bool
index_plan(struct ist__table *t)
{
	uint64_t leaves = 0;

	t->last_bucket = ist__alloc(t->ctx, t->m->n_items * sizeof(*t->last_bucket));
	t->leaf_first = ist__alloc(t->ctx, (t->m->n_items + 1) * sizeof(*t->leaf_first));
	if (!t->last_bucket || !t->leaf_first)
		return false;
	for (uint64_t i = 0; i < t->m->n_items; i++) {
		t->leaf_first[i] = leaves;
		t->last_bucket[i] = UINT32_MAX;
		if (moves(t, &t->m->items[i], 0))
			leaves += ist__leaf_count(t->m->items[i].bytes);
	}
	t->leaf_first[t->m->n_items] = leaves;
	for (uint64_t b = 0; b < t->plan->n_buckets; b++)
		for (uint64_t i = 0; i < t->plan->buckets[b].n_pieces; i++) {
			const struct ist__plan_piece *p = &t->plan->pieces[t->plan->buckets[b].first_piece + i];

			if (p->last)
				t->last_bucket[p->item] = (uint32_t)b;
		}
	return true;
}

ist_err
ist__table_plan(struct ist__table *t, struct ist_error *err)
{
	struct ist__plan_set *sets = ist__alloc(t->ctx, t->n_sets * sizeof(*sets));
	struct ist__plan_args args = { .sets = sets, .n_sets = t->n_sets, .bucket_bytes = t->bucket_bytes, .salt = t->key,
		.at_once = t->side_by_side ? ist__table_at_once(t) : 0 };
	ist_err e = IST_OK;

	if (!sets)
		return ist__fail_memory(err, OP);
	for (uint32_t s = 0; s < t->n_sets && !e; s++) {
		struct ist__set *set = &t->sets[s];

		if (!list_moving(t, set))
			e = ist__fail_memory(err, OP);
		sets[s] = (struct ist__plan_set){
			.bytes = set->bytes,
			.mate = set->mate,
			.ids = set->ids,
			.n_items = set->n,
			.parts = set->parts,
			.whole = set->live,
		};
	}
	if (!e)
		e = ist__plan_make(t->ctx, &args, &t->plan, err);
	ist__free(t->ctx, sets);
	if (!e && !index_plan(t))
		e = ist__fail_memory(err, OP);
	return e;
}
