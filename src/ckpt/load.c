/* SPDX-License-Identifier: Apache-2.0
 *
 * load.c - a checkpoint of files into a sink of this process, with no group: several threads read, each into memory of its own that is
 * pinned for the device, and what one of them has read is on its way while it reads the next. Files are cut into runs
 * that may span many small tensors or be a part of a large one.
 */
#include "base/clock.h"
#include "base/cpus.h"
#include "base/fail.h"
#include "ckpt/checkpoint.h"
#include "ckpt/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#define OP "checkpoint_load"
#define RUN_BYTES (UINT64_C(4) << 20)
#define RUN_LEAST (UINT64_C(64) << 10)
#define BLOCK UINT64_C(4096)               /* of a direct read */
#define PATIENCE_NS (60 * IST_NS_PER_S)    /* a copy that takes longer is not one that will end */
enum { THREADS_MAX = 64, THREADS_USUAL = 12 /* more bring nothing on the machines that it was measured on */, SLOTS = 2, LOOKS = 64 };

struct run {
	uint64_t item, offset; /* where it begins */
	uint64_t bytes;
};

struct load {
	struct ist_checkpoint *ck;
	const struct ist__checkpoint_body *b;
	struct ist_sink *sink;
	struct ist__far far;   /* dev NULL: the sink takes pieces */
	int *direct;           /* by file: a descriptor that reads past the page cache; -1: none */
	struct run *runs;
	uint64_t n, room, run_bytes;
	uint64_t next;         /* run to take; atomic */
	int failed;            /* atomic */
	pthread_mutex_t lock;  /* of err */
	struct ist_error err;
};

/* A reader's. */
struct slot {
	uint8_t *at;
	void *event;
	bool busy, tried, pinned;
};

struct reader {
	struct load *l;
	struct slot slots[SLOTS];
	void *stream;
	struct ist__copies copies;
};

/* ---- cutting ---- */

static bool
moves(const struct load *l, const struct ist__item *t)
{
	return t->alias == IST__NO_ALIAS && t->bytes > 0 && (!ist__item_is_raw(t) || ist__sink_wants_raw(l->sink));
}

static bool
cut(struct load *l)
{
	const struct ist__manifest *m = l->b->m;
	struct run *run = NULL;
	uint64_t due = 0; /* where the open run could go on, in its file */

	for (uint64_t i = 0; i < m->n_items; i++) {
		const struct ist__item *t = &m->items[i];

		for (uint64_t offset = 0, n; moves(l, t) && offset < t->bytes; offset += n, due = t->offset + offset) {
			void *runs = l->runs;

			if (!run || m->items[run->item].file != t->file || due != t->offset + offset || run->bytes == l->run_bytes) {
				if (!ist__grow(l->b->ctx, &runs, &l->room, l->n + 1, sizeof(*run)))
					return false;
				l->runs = runs;
				run = &l->runs[l->n++];
				*run = (struct run){ .item = i, .offset = offset };
			}
			n = l->run_bytes - run->bytes;
			n = n < t->bytes - offset ? n : t->bytes - offset;
			run->bytes += n;
		}
	}
	return true;
}

/* ---- files that lie on a disk ---- */

/* Looks at some of the pages: what is in memory already had best be taken from there. */
static bool
is_cached(int fd, uint64_t bytes)
{
	uint8_t *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	uint64_t pages = (bytes + BLOCK - 1) / BLOCK, step = pages / LOOKS + 1, seen = 0, there = 0;
	unsigned char in = 0;

	if (map == MAP_FAILED)
		return true;
	for (uint64_t i = 0; i < pages; i += step, seen++)
		there += !mincore(map + i * BLOCK, 1, &in) && in & 1;
	munmap(map, bytes);
	return 4 * there >= 3 * seen;
}

static int
open_direct(const struct ist__open_file *f)
{
	struct statfs fs;
	char path[64];

	if (f->bytes == 0 || fstatfs(f->fd, &fs) || fs.f_type == TMPFS_MAGIC || is_cached(f->fd, f->bytes))
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", f->fd);
	return open(path, O_RDONLY | O_CLOEXEC | O_DIRECT); /* not every file system can: then by way of its cache */
}

static bool
open_files(struct load *l)
{
	l->direct = ist__alloc(l->b->ctx, (l->b->m->n_files + 1) * sizeof(*l->direct));
	for (uint64_t i = 0; l->direct && i < l->b->m->n_files; i++)
		l->direct[i] = open_direct(&l->b->files[i]);
	return l->direct != NULL;
}

/* Whole blocks around the run, into a slot that has room for them; *out is where the run's bytes are. False: not this way. */
static bool
read_direct(const struct load *l, const struct run *run, uint8_t *slot, const uint8_t **out)
{
	const struct ist__item *t = &l->b->m->items[run->item];
	uint64_t from = t->offset + run->offset, first = from / BLOCK * BLOCK, end = (from + run->bytes + BLOCK - 1) / BLOCK * BLOCK, got = 0;
	int fd = l->direct[t->file];

	while (fd >= 0 && got < end - first) {
		ssize_t n = pread(fd, slot + got, end - first - got, (off_t)(first + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break; /* the file's end, or not this way */
		got += (uint64_t)n;
		if (got % BLOCK)
			break;
	}
	*out = slot + (from - first);
	return fd >= 0 && got >= from - first + run->bytes;
}

/* ---- reading ---- */

static uint64_t
slot_bytes(const struct load *l)
{
	return l->run_bytes + 2 * BLOCK;
}

static ist_err
read_run(struct load *l, const struct run *run, uint8_t *slot, const uint8_t **out, struct ist_error *err)
{
	const struct ist__item *t = &l->b->m->items[run->item];
	ist_err e;

	if (read_direct(l, run, slot, out))
		return IST_OK; /* that the file is what it was is looked at in the end */
	*out = slot;
	e = ist__checkpoint_read_file(l->b, t->file, t->offset + run->offset, run->bytes, slot, err);
	if (e)
		ist__fail_tensor(err, t->name);
	return e;
}

/* Each stretch of the run to the tensor that it belongs to. */
static ist_err
hand_on(struct reader *r, const struct run *run, const uint8_t *at, struct ist_error *err)
{
	const struct ist__item *items = r->l->b->m->items;
	uint64_t offset = run->offset, left = run->bytes;
	ist_err e = IST_OK;

	r->copies.n = 0;
	for (uint64_t i = run->item; left > 0 && !e; i++, offset = 0) {
		uint64_t n = moves(r->l, &items[i]) ? items[i].bytes - offset : 0;

		n = n < left ? n : left;
		if (n > 0 && r->l->far.dev)
			e = ist__sink_copies(r->l->sink, i, offset, at, n, &r->copies, err);
		else if (n > 0)
			e = ist__sink_piece(r->l->sink, i, offset, at, n, err);
		at += n;
		left -= n;
	}
	return e;
}

static ist_err
await(struct reader *r, struct slot *s, struct ist_error *err)
{
	if (!s->busy)
		return IST_OK;
	s->busy = false;
	return ist__far_wait(&r->l->far, s->event, ist__now() + PATIENCE_NS, err);
}

/* When something has been read into it: pages that are there are pinned ten times as fast as a device makes pinned memory. Where it
 * can't be pinned the device copies from it as it is. */
static void
pin(struct reader *r, struct slot *s)
{
	const struct ist__far *far = &r->l->far;
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };

	s->pinned = !s->tried && !far->dev->pin(far->dev->self, far->index, s->at, slot_bytes(r->l), 0, &why);
	s->tried = true;
}

static ist_err
send(struct reader *r, struct slot *s, struct ist_error *err)
{
	ist_err e;

	if (!s->tried)
		pin(r, s);
	e = ist__far_copy(&r->l->far, r->copies.at, r->copies.n, r->stream, err);

	/* also after an error: some of them may be under way */
	s->busy = ist__far_mark(&r->l->far, s->event, r->stream, e ? NULL : err) == IST_OK;
	return e || s->busy ? e : IST_IO;
}

static ist_err
do_run(struct reader *r, const struct run *run, struct slot *s, struct ist_error *err)
{
	const uint8_t *at;
	ist_err e = await(r, s, err);

	if (!e)
		e = read_run(r->l, run, s->at, &at, err);
	if (!e)
		e = hand_on(r, run, at, err);
	return e || !r->l->far.dev ? e : send(r, s, err);
}

/* ---- a reader's life ---- */

static ist_err
make_slots(struct reader *r, struct ist_error *err)
{
	const struct ist__far *far = &r->l->far;
	ist_err e = far->dev ? ist__far_stream_new(far, &r->stream, err) : IST_OK;

	for (int i = 0; i < SLOTS && !e; i++) {
		r->slots[i].at = ist__alloc_aligned(r->l->b->ctx, slot_bytes(r->l), BLOCK);
		if (!r->slots[i].at)
			e = ist__fail_memory(err, OP);
		if (!e && far->dev)
			e = ist__far_event_new(far, &r->slots[i].event, err);
	}
	return e;
}

/* What a device may still read from is left to it. */
static ist_err
drop_slots(struct reader *r, struct ist_error *err)
{
	const struct ist__far *far = &r->l->far;
	ist_err e = IST_OK;

	for (int i = 0; i < SLOTS; i++) {
		ist_err mine = await(r, &r->slots[i], e ? NULL : err);

		e = e ? e : mine;
		if (mine == IST_TIMEOUT)
			continue;
		ist__far_event_free(far, r->slots[i].event);
		if (r->slots[i].pinned)
			far->dev->unpin(far->dev->self, far->index, r->slots[i].at, slot_bytes(r->l));
		ist__free(r->l->b->ctx, r->slots[i].at);
	}
	if (e != IST_TIMEOUT)
		ist__far_stream_free(far, r->stream);
	ist__free(r->l->b->ctx, r->copies.at);
	return e;
}

static void *
read_some(void *arg)
{
	struct load *l = arg;
	struct reader r = { .l = l, .copies = { .ctx = l->b->ctx } };
	struct ist_error err;
	ist_err e, last;

	ist_error_init(&err);
	e = make_slots(&r, &err);
	for (uint32_t k = 0; !e && !__atomic_load_n(&l->failed, __ATOMIC_RELAXED); k = (k + 1) % SLOTS) {
		uint64_t i = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED);

		if (i >= l->n)
			break;
		e = do_run(&r, &l->runs[i], &r.slots[k], &err);
	}
	last = drop_slots(&r, e ? NULL : &err);
	if (!e && !last)
		return NULL;
	pthread_mutex_lock(&l->lock);
	if (!l->err.code)
		ist__error_copy(&l->err, &err);
	pthread_mutex_unlock(&l->lock);
	__atomic_store_n(&l->failed, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* The caller reads too: a system that gives no more threads costs speed only. */
static void
read_all(struct ist_env *env, struct load *l, uint32_t threads)
{
	pthread_t ids[THREADS_MAX];
	uint32_t started = 0;

	while (started + 1 < threads && started + 1 < l->n && !ist__thread(env, "load", read_some, l, &ids[started]))
		started++;
	read_some(l);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(ids[i], NULL);
}

/* ---- the call ---- */

static uint32_t
thread_count(const struct load *l, uint32_t asked)
{
	uint32_t n = asked ? asked : ist__cpus();

	if (!l->far.dev && !strcmp(l->sink->kind->name, "custom")) /* it is asked by one at a time */
		return 1;
	if (!asked && n > THREADS_USUAL)
		n = THREADS_USUAL;
	return n < THREADS_MAX ? n : THREADS_MAX;
}

static ist_err
prepare(struct load *l, const struct ist_load_args *args, struct ist_error *err)
{
	struct ist_sink *sink = l->sink;
	uint64_t run = args->run_bytes ? args->run_bytes : RUN_BYTES;
	ist_err e = IST_OK;

	if (run < RUN_LEAST)
		return ist__fail(err, IST_INVALID_ARGUMENT, OP, "runs of %llu bytes; at least %llu", (unsigned long long)run, (unsigned long long)RUN_LEAST);
	l->run_bytes = (run + BLOCK - 1) / BLOCK * BLOCK;
	if (ist__is_far(sink->mem) && ist__sink_is_on(sink, sink->mem, sink->device))
		e = ist__far_find(sink->handle.env, sink->mem, sink->device, OP, &l->far, err);
	if (e)
		l->far.dev = NULL;
	if (!e && (!cut(l) || !open_files(l)))
		e = ist__fail_memory(err, OP);
	return e;
}

static ist_err
run_load(struct load *l, const struct ist_load_args *args, struct ist_error *err)
{
	ist_err e = prepare(l, args, err);

	if (e)
		return e;
	read_all(l->ck->handle.env, l, thread_count(l, args->threads));
	if (l->err.code) {
		ist__error_copy(err, &l->err);
		return l->err.code;
	}
	e = ist__checkpoint_check(l->ck, err);
	return e ? e : ist__sink_prepare(l->sink, err);
}

ist_err
ist_checkpoint_load(struct ist_checkpoint *ck, struct ist_sink *sink, const struct ist_load_args *args, struct ist_error *err)
{
	static const struct ist_load_args usual = { .struct_size = sizeof(usual) };
	struct load l = { .ck = ck, .sink = sink };
	ist_err e = ist__handle_check(ck, IST__CHECKPOINT, OP, err);

	if (!e)
		e = ist__handle_check(sink, IST__SINK, OP, err);
	if (e)
		return e;
	if (args && args->struct_size < sizeof(*args))
		return ist__fail(err, IST_INVALID_ARGUMENT, OP, "struct_size of args is too small");
	if (ist__checkpoint_live(ck))
		return ist__fail(err, IST_UNSUPPORTED, OP, "this checkpoint is of memory; files are loaded");
	args = args ? args : &usual;
	l.b = ck->body;
	pthread_mutex_init(&l.lock, NULL);
	ist_error_init(&l.err);
	e = ist__sink_begin(sink, l.b->m, args->version ? args->version : 1, err);
	if (!e) {
		e = run_load(&l, args, err);
		if (!e)
			e = ist__sink_commit(sink, args->version ? args->version : 1, err);
		if (e)
			(void)ist__sink_abort(sink);
	}
	for (uint64_t i = 0; l.direct && i < l.b->m->n_files; i++)
		if (l.direct[i] >= 0)
			close(l.direct[i]);
	ist__free(l.b->ctx, l.direct);
	ist__free(l.b->ctx, l.runs);
	pthread_mutex_destroy(&l.lock);
	return e;
}
