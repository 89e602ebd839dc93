/* SPDX-License-Identifier: Apache-2.0
 *
 * digests.c - digests of a checkpoint, computed by several threads. Work is cut into runs of a file, a few MiB long, that
 * may span many small tensors or be a part of a large one, but always begin and end on a leaf's boundary: one run is one
 * read, whatever the tensors' sizes are.
 */
#include "ckpt/checkpoint.h"

#include "base/cpus.h"
#include "base/fail.h"

#include <string.h>

#define OP "checkpoint_digest"
#define RUN_BYTES (UINT64_C(4) << 20)
#define THREADS_MAX 64u

struct run {
	uint64_t item, offset; /* where it begins */
	uint64_t bytes;
};

struct work {
	const struct ist__checkpoint_body *b;
	uint64_t first;             /* of the items */
	struct run *runs;
	uint64_t n, room;
	struct ist__digest *leaves;
	uint64_t *leaf_base;        /* of item first + i */
	uint64_t next;              /* run to take; atomic */
	int failed;                 /* atomic */
	pthread_mutex_t lock;       /* of err */
	struct ist_error err;
};

static bool
has_own_bytes(const struct ist__item *t)
{
	return t->alias == IST__NO_ALIAS && t->bytes > 0;
}

/* ---- cutting ---- */

/* How much of the left bytes of an item goes into a run that has room for fits more: all, or whole leaves. */
static uint64_t
piece(uint64_t left, uint64_t fits)
{
	return left <= fits ? left : fits / IST__LEAF_BYTES * IST__LEAF_BYTES;
}

static bool
cut(struct work *w, uint64_t end)
{
	const struct ist__item *items = w->b->m->items;
	struct run *run = NULL;
	uint64_t due = 0; /* where the open run could go on, in its file */

	for (uint64_t i = w->first; i < end; i++) {
		const struct ist__item *t = &items[i];
		uint64_t offset = 0;

		while (has_own_bytes(t) && offset < t->bytes) {
			bool goes_on = run && t->file != IST__NO_FILE && items[run->item].file == t->file && due == t->offset + offset;
			uint64_t n = goes_on ? piece(t->bytes - offset, RUN_BYTES - run->bytes) : 0;
			void *runs = w->runs;

			if (n == 0) {
				if (!ist__grow(w->b->ctx, &runs, &w->room, w->n + 1, sizeof(*run)))
					return false;
				w->runs = runs;
				run = &w->runs[w->n++];
				*run = (struct run){ .item = i, .offset = offset };
				n = piece(t->bytes - offset, RUN_BYTES);
			}
			run->bytes += n;
			offset += n;
			due = t->offset + offset;
		}
	}
	return true;
}

static bool
prepare(struct work *w, uint64_t end)
{
	const struct ist__item *items = w->b->m->items;
	uint64_t leaves = 0;

	w->leaf_base = ist__alloc(w->b->ctx, (end - w->first) * sizeof(*w->leaf_base));
	if (!w->leaf_base)
		return false;
	for (uint64_t i = w->first; i < end; i++) {
		w->leaf_base[i - w->first] = leaves;
		leaves += has_own_bytes(&items[i]) ? ist__leaf_count(items[i].bytes) : 0;
	}
	w->leaves = ist__alloc(w->b->ctx, leaves * sizeof(*w->leaves));
	return w->leaves && cut(w, end);
}

/* ---- working ---- */

/* The bytes of a run, each stretch into the leaves of its item. */
static void
digest_run(const struct work *w, const struct run *run, const uint8_t *at)
{
	const struct ist__item *items = w->b->m->items;
	uint64_t i = run->item, offset = run->offset, left = run->bytes;

	while (left > 0) {
		uint64_t n = has_own_bytes(&items[i]) ? items[i].bytes - offset : 0;

		n = n < left ? n : left;
		if (n > 0)
			ist__digest_leaves(at, n, w->leaves + w->leaf_base[i - w->first] + offset / IST__LEAF_BYTES);
		at += n;
		left -= n;
		i++;
		offset = 0;
	}
}

static ist_err
do_run(struct work *w, const struct run *run, uint8_t *buffer, struct ist_error *err)
{
	const struct ist__item *t = &w->b->m->items[run->item];
	ist_err e;

	if (t->file == IST__NO_FILE && !(w->b->far && w->b->far[run->item])) {
		digest_run(w, run, (const uint8_t *)w->b->addrs[run->item] + run->offset);
		return IST_OK;
	}
	if (t->file == IST__NO_FILE)
		e = ist__checkpoint_read_memory(w->b, run->item, run->offset, run->bytes, buffer, err);
	else
		e = ist__checkpoint_read_file(w->b, t->file, t->offset + run->offset, run->bytes, buffer, err);
	if (e)
		ist__fail_tensor(err, t->name);
	else
		digest_run(w, run, buffer);
	return e;
}

static void *
worker(void *arg)
{
	struct work *w = arg;
	uint8_t *buffer = ist__alloc_aligned(w->b->ctx, RUN_BYTES, 4096);
	struct ist_error err;
	ist_err e = IST_OK;

	ist_error_init(&err);
	if (!buffer)
		e = ist__fail_memory(&err, OP);
	while (!e && !__atomic_load_n(&w->failed, __ATOMIC_RELAXED)) {
		uint64_t i = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);

		if (i >= w->n)
			break;
		e = do_run(w, &w->runs[i], buffer, &err);
	}
	ist__free(w->b->ctx, buffer);
	if (e) {
		pthread_mutex_lock(&w->lock);
		if (!w->err.code)
			ist__error_copy(&w->err, &err);
		pthread_mutex_unlock(&w->lock);
		__atomic_store_n(&w->failed, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* The caller works too: a system that gives no more threads costs speed only. */
static void
work_all(struct ist_env *env, struct work *w, uint32_t threads)
{
	pthread_t ids[THREADS_MAX];
	uint32_t started = 0;

	while (started + 1 < threads && started + 1 < w->n && !ist__thread(env, "digest", worker, w, &ids[started]))
		started++;
	worker(w);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(ids[i], NULL);
}

static uint32_t
thread_count(uint32_t asked)
{
	if (asked == 0) {
		asked = ist__cpus();
		if (asked > 8)
			asked = 8;
	}
	return asked > THREADS_MAX ? THREADS_MAX : asked;
}

ist_err
ist__checkpoint_digest_items(struct ist_env *env, const struct ist__checkpoint_body *b, uint64_t first, uint64_t end,
	uint32_t threads, struct ist__digest *digests, struct ist_error *err)
{
	struct work w = { .b = b, .first = first };
	ist_err e = IST_OK;

	pthread_mutex_init(&w.lock, NULL);
	ist_error_init(&w.err);
	if (!prepare(&w, end))
		e = ist__fail_memory(err, OP);
	else if (w.n > 0)
		work_all(env, &w, thread_count(threads));
	if (!e && w.err.code) {
		e = w.err.code;
		ist__error_copy(err, &w.err);
	}
	for (uint64_t i = first; i < end && !e; i++)
		if (b->m->items[i].alias == IST__NO_ALIAS)
			ist__digest_fold(w.leaves + w.leaf_base[i - first], b->m->items[i].bytes, &digests[i]);
	ist__free(b->ctx, w.leaves);
	ist__free(b->ctx, w.leaf_base);
	ist__free(b->ctx, w.runs);
	pthread_mutex_destroy(&w.lock);
	return e;
}

/* ---- of files: kept ---- */

static bool
all_known(const struct ist__checkpoint_body *b, uint64_t first, uint64_t end)
{
	return end == first || !memchr(b->known + first, 0, end - first);
}

/* Also when all are known: they count only while the files are what they were. */
static ist_err
keep_digests(struct ist_checkpoint *ck, uint64_t first, uint64_t end, uint32_t threads, struct ist_error *err)
{
	struct ist__checkpoint_body *b = ck->body;
	ist_err e = IST_OK;

	pthread_mutex_lock(&b->lock);
	if (!all_known(b, first, end)) {
		e = ist__checkpoint_digest_items(ck->handle.env, b, first, end, threads, b->digests, err);
		if (!e)
			memset(b->known + first, 1, end - first);
	}
	pthread_mutex_unlock(&b->lock);
	return e ? e : ist__checkpoint_check(ck, err);
}

ist_err
ist__checkpoint_digest_all(struct ist_checkpoint *ck, uint32_t threads, struct ist_error *err)
{
	return ck->body->addrs ? IST_OK : keep_digests(ck, 0, ck->body->m->n_items, threads, err);
}

bool
ist__checkpoint_digested(struct ist_checkpoint *ck)
{
	struct ist__checkpoint_body *b = ck->body;
	bool all;

	pthread_mutex_lock(&b->lock);
	all = !b->addrs && all_known(b, 0, b->m->n_items);
	pthread_mutex_unlock(&b->lock);
	return all;
}

bool
ist__checkpoint_item_digest(struct ist_checkpoint *ck, uint64_t item, struct ist__digest *out)
{
	struct ist__checkpoint_body *b = ck->body;
	bool known;

	if (b->addrs || item >= b->m->n_items)
		return false;
	pthread_mutex_lock(&b->lock);
	known = b->known[item];
	if (known)
		*out = b->digests[item];
	pthread_mutex_unlock(&b->lock);
	return known;
}

/* ---- the public face ---- */

static ist_err
digest_files(struct ist_checkpoint *ck, uint64_t index, struct ist__digest *out, struct ist_error *err)
{
	const struct ist__manifest *m = ck->body->m;
	uint64_t item;
	ist_err e;

	if (index == IST_WHOLE) {
		e = keep_digests(ck, 0, m->n_items, 0, err);
		return e ? e : ist__manifest_fold(m, ck->body->digests, out, err);
	}
	item = m->tensors[index];
	e = keep_digests(ck, item, item + 1, 0, err);
	if (!e)
		*out = ck->body->digests[item];
	return e;
}

static ist_err
digest_far(struct ist_checkpoint *ck, uint64_t item, struct ist__digest *out, struct ist_error *err)
{
	struct ist__digest *one = ist__alloc(ck->body->ctx, (item + 1) * sizeof(*one));
	ist_err e = one ? ist__checkpoint_digest_items(ck->handle.env, ck->body, item, item + 1, 0, one, err) : ist__fail_memory(err, OP);

	if (!e)
		*out = one[item];
	ist__free(ck->body->ctx, one);
	return e;
}

static ist_err
digest_memory(struct ist_checkpoint *ck, uint64_t index, struct ist__digest *out, struct ist_error *err)
{
	const struct ist__manifest *m = ck->body->m;
	struct ist__digest *all;
	uint64_t item;
	ist_err e;

	if (index != IST_WHOLE) {
		item = m->tensors[index];
		item = m->items[item].alias == IST__NO_ALIAS ? item : m->items[item].alias;
		if (ck->body->far && ck->body->far[item])
			return digest_far(ck, item, out, err);
		ist__digest_memory(ck->body->addrs[item], m->items[item].bytes, out);
		return IST_OK;
	}
	all = ist__alloc(m->ctx, m->n_items * sizeof(*all));
	if (!all)
		return ist__fail_memory(err, OP);
	e = ist__checkpoint_digest_items(ck->handle.env, ck->body, 0, m->n_items, 0, all, err);
	if (!e)
		e = ist__manifest_fold(m, all, out, err);
	ist__free(m->ctx, all);
	return e;
}

ist_err
ist_checkpoint_digest(struct ist_checkpoint *ck, uint64_t index, char *text, struct ist_error *err)
{
	struct ist__digest d;
	ist_err e = ist__handle_check(ck, IST__CHECKPOINT, OP, err);

	if (!e && (!text || (index != IST_WHOLE && index >= ck->body->m->n_tensors)))
		e = ist__fail(err, IST_INVALID_ARGUMENT, OP, "text is missing, or there is no tensor %llu", (unsigned long long)index);
	if (!e)
		e = ck->body->addrs ? digest_memory(ck, index, &d, err) : digest_files(ck, index, &d, err);
	if (!e)
		ist__digest_text(&d, text);
	return e;
}
