/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance_rig.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WALL = 64, WALL_BYTE = 0xA7, EMPTY_BYTE = 0xE5 };

/* The first to speak is heard; the others were mostly hurt by what it found. */
static void put_text(struct cf *t, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

static void
put_text(struct cf *t, const char *fmt, va_list ap)
{
	uint32_t none = 0;

	if (atomic_compare_exchange_strong(&t->shared->told, &none, CF_TELLING)) {
		vsnprintf(t->shared->text, sizeof(t->shared->text), fmt, ap);
		atomic_store(&t->shared->told, CF_TOLD);
		return;
	}
	/* somebody else has more to say, and what ends us ends him too: but he may have died over it */
	for (int64_t until = cf_now() + 1000 * CF_MS; atomic_load(&t->shared->told) == CF_TELLING && cf_now() < until;)
		sched_yield();
}

void
cf_fail(struct cf *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_text(t, fmt, ap);
	va_end(ap);
	_exit(CF_EXIT_FAILED);
}

void
cf_skip(struct cf *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_text(t, fmt, ap);
	va_end(ap);
	_exit(CF_EXIT_SKIPPED);
}

void
cf_stage(struct cf *t, const char *fmt, ...)
{
	va_list ap;

	if (atomic_exchange(&t->shared->staging, 1)) /* another rank says something: as good */
		return;
	va_start(ap, fmt);
	vsnprintf(t->shared->stage, sizeof(t->shared->stage), fmt, ap);
	va_end(ap);
	atomic_store(&t->shared->staging, 0);
}

int64_t
cf_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void
cf_pause_us(uint32_t us)
{
	nanosleep(&(struct timespec){ .tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000 }, NULL);
}

static const char *const err_names[] = {
#define NAME(name, num, scope, text, next) [num] = #name,
	IST_ERR_LIST(NAME)
#undef NAME
};

bool
cf_known(ist_err e)
{
	return e >= 0 && (size_t)e < sizeof(err_names) / sizeof(err_names[0]) && err_names[e];
}

const char *
cf_name(ist_err e)
{
	return cf_known(e) ? err_names[e] : "a value that is not in error.h";
}

static uint32_t
count_entries(const char *path)
{
	DIR *d = opendir(path);
	uint32_t n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

uint32_t
cf_open_fds(void)
{
	return count_entries("/proc/self/fd");
}

uint32_t
cf_threads(void)
{
	return count_entries("/proc/self/task");
}

uint32_t
cf_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	uint32_t n = 0;
	int c;

	while (f && (c = fgetc(f)) != EOF)
		n += c == '\n';
	if (f)
		fclose(f);
	return n;
}

/* ---- host services ---- */

struct block {
	uint64_t magic, bytes;
	void *base;
	uint64_t reserved;
};

#define BLOCK_MAGIC UINT64_C(0x6b636f6c62666363)

static void *
host_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t mem, int32_t device)
{
	struct cf *t = ctx;
	struct block *b;
	void *base;

	(void)device;
	if (align == 0)
		align = 16;
	CF_CHECK(t, (align & (align - 1)) == 0, "it asks the host for memory aligned to %llu", (unsigned long long)align);
	if (align < sizeof(*b))
		align = sizeof(*b);
	if ((mem != IST_MEM_HOST && mem != IST_MEM_PINNED) || bytes > UINT64_MAX / 2 || posix_memalign(&base, align, bytes + align))
		return NULL;
	b = (struct block *)(void *)((char *)base + align) - 1;
	*b = (struct block){ .magic = BLOCK_MAGIC, .bytes = bytes, .base = base };
	memset(b + 1, 0xCD, bytes);
	atomic_fetch_add(&t->blocks, 1);
	atomic_fetch_add(&t->bytes, (int64_t)bytes);
	atomic_fetch_add(&t->allocs, 1);
	return b + 1;
}

static void
host_free(void *ctx, void *p)
{
	struct cf *t = ctx;
	struct block *b = p;

	if (!p)
		return;
	b--;
	CF_CHECK(t, b->magic == BLOCK_MAGIC, "it gives the host memory back that the host did not lend");
	b->magic = 0;
	atomic_fetch_sub(&t->blocks, 1);
	atomic_fetch_sub(&t->bytes, (int64_t)b->bytes);
	free(b->base);
}

static void
host_log(void *ctx, int32_t level, const char *msg)
{
	(void)ctx, (void)level, (void)msg;
}

static const struct ist_device *
host_device(void *ctx, uint32_t mem)
{
	const struct cf *t = ctx;

	return t->b && t->d && mem < 64 && (t->d->mem >> mem & 1) ? t->d : NULL;
}

struct cf_kept {
	struct cf_kept *next;
	const void *key;
	_Alignas(64) char room[];
};

/* Until the process of the check ends, as it would be until the env does. */
static void *
host_keep(void *ctx, const void *key, uint64_t bytes, void (*init)(void *p))
{
	struct cf *t = ctx;
	struct cf_kept *k;

	pthread_mutex_lock(&t->lock);
	for (k = t->kept; k && k->key != key; k = k->next)
		;
	if (!k && (k = aligned_alloc(64, (sizeof(*k) + bytes + 63) & ~UINT64_C(63))) != NULL) {
		memset(k, 0, (sizeof(*k) + bytes + 63) & ~UINT64_C(63));
		k->next = t->kept;
		k->key = key;
		if (init)
			init(k->room);
		t->kept = k;
	}
	pthread_mutex_unlock(&t->lock);
	return k ? k->room : NULL;
}

struct job {
	struct cf *t;
	void (*run)(void *arg);
	void *arg;
};

static void *
job_main(void *arg)
{
	struct job job = *(struct job *)arg;

	free(arg);
	job.run(job.arg);
	atomic_fetch_sub(&job.t->threads, 1);
	return NULL;
}

static ist_err
host_thread(void *ctx, const char *name, void (*run)(void *arg), void *arg)
{
	struct cf *t = ctx;
	struct job *job = malloc(sizeof(*job));
	sigset_t all, old;
	pthread_t id;
	char full[16];
	int rc;

	if (!job)
		return IST_NO_MEMORY;
	*job = (struct job){ .t = t, .run = run, .arg = arg };
	atomic_fetch_add(&t->threads, 1);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&id, NULL, job_main, job);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc) {
		atomic_fetch_sub(&t->threads, 1);
		free(job);
		return IST_LIMIT;
	}
	snprintf(full, sizeof(full), "ist-%s", name);
	pthread_setname_np(id, full);
	pthread_detach(id);
	return IST_OK;
}

void
cf_init(struct cf *t, const struct ist_backend *b, const struct ist_device *d, const char *options, struct cf_shared *shared)
{
	memset(t, 0, sizeof(*t));
	t->b = b;
	t->d = d;
	t->options = options ? options : "";
	t->shared = shared;
	t->host = (struct ist_host){
		.struct_size = sizeof(t->host),
		.abi = IST_BACKEND_ABI,
		.ctx = t,
		.log = host_log,
		.alloc = host_alloc,
		.free = host_free,
		.device = host_device,
		.thread = host_thread,
		.keep = host_keep,
	};
	pthread_mutex_init(&t->lock, NULL);
}

uint32_t
cf_mem(const struct cf *t)
{
	uint32_t kind = IST_MEM_HOST;

	while (kind < 63 && t->shared->mem && !(t->shared->mem >> kind & 1))
		kind++;
	return kind;
}

int32_t
cf_device(const struct cf_rank *r)
{
	uint32_t devices = r->t->shared->devices;

	return cf_mem(r->t) == IST_MEM_HOST ? -1 : (int32_t)(devices ? r->rank % devices : r->rank);
}

/* ---- operations ---- */

void
cf_status(struct ist_status *st)
{
	*st = (struct ist_status){ .struct_size = sizeof(*st), .rank = IST_NO_RANK };
}

uint32_t
cf_next(const struct cf_rank *r)
{
	return (r->rank + 1) % r->n;
}

uint32_t
cf_prev(const struct cf_rank *r)
{
	return (r->rank + r->n - 1) % r->n;
}

struct ist_op
cf_send(uint32_t peer, uint64_t seq, const void *addr, uint64_t bytes)
{
	struct ist_op op = { .struct_size = sizeof(op), .kind = IST_OP_SEND, .peer = peer, .seq = seq };

	op.src = (struct ist_buf){ .addr = (void *)(uintptr_t)addr, .bytes = bytes, .device = -1 };
	op.dst.device = -1;
	return op;
}

struct ist_op
cf_recv(uint32_t peer, uint64_t seq, void *addr, uint64_t bytes)
{
	struct ist_op op = { .struct_size = sizeof(op), .kind = IST_OP_RECV, .peer = peer, .seq = seq };

	op.dst = (struct ist_buf){ .addr = addr, .bytes = bytes, .device = -1 };
	op.src.device = -1;
	return op;
}

ist_err
cf_try_start(struct cf_rank *r, const struct ist_op *ops, uint64_t n, struct ist_task **out, struct ist_status *st)
{
	const struct ist_op *list[512];
	struct ist_op copies[512];
	ist_err e;

	CF_CHECK(r->t, n <= 512, "the suite starts at most 512 operations at once");
	for (uint64_t i = 0; i < n; i++) {
		copies[i] = ops[i];
		list[i] = &copies[i];
		if (cf_mem(r->t) == IST_MEM_HOST)
			continue;
		copies[i].src.mem = copies[i].dst.mem = (uint16_t)cf_mem(r->t);
		copies[i].src.device = copies[i].dst.device = cf_device(r);
	}
	cf_status(st);
	e = r->t->b->start(r->chan, list, n, out, st);
	memset(copies, 0xDB, sizeof(copies)); /* the list and its structs are the backend's to copy */
	memset(list, 0xDB, sizeof(list));
	return e;
}

struct ist_task *
cf_start(struct cf_rank *r, const struct ist_op *ops, uint64_t n)
{
	int64_t until = cf_now() + CF_PATIENCE_NS;
	struct ist_task *task = NULL;
	struct ist_status st;
	ist_err e;

	while ((e = cf_try_start(r, ops, n, &task, &st)) == IST_BUSY && cf_now() < until)
		cf_turn(r);
	CF_CHECK(r->t, !e, "start of %llu operations failed on rank %u: %s %.200s", (unsigned long long)n, r->rank, cf_name(e), st.text);
	CF_CHECK(r->t, task, "start says OK and gives no task");
	return task;
}

void
cf_progress(struct cf_rank *r, struct ist_progress *out)
{
	ist_err e;

	*out = (struct ist_progress){ .struct_size = sizeof(*out) };
	e = r->t->b->progress(r->chan, out);
	CF_CHECK(r->t, !e, "progress failed on rank %u: %s", r->rank, cf_name(e));
}

void
cf_turn(struct cf_rank *r)
{
	struct ist_progress p;
	int32_t fd = -1;

	cf_progress(r, &p);
	if (p.more || r->t->b->arm(r->chan, &fd))
		return;
	poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, fd >= 0, 1);
}

ist_err
cf_finish(struct cf_rank *r, struct ist_task *task, struct ist_status *st)
{
	int64_t until = cf_now() + CF_PATIENCE_NS;
	struct ist_progress p;
	uint64_t seen = 0;
	bool aborted = false;

	for (;;) {
		ist_err e;

		cf_progress(r, &p);
		if (p.moved != seen) {
			seen = p.moved;
			until = cf_now() + CF_PATIENCE_NS;
		}
		cf_status(st);
		e = r->t->b->test(r->chan, task, st);
		if (st->state == IST_DONE || st->state == IST_ABANDONED)
			return e;
		if (e && !aborted) {
			aborted = true;
			r->t->b->abort(r->chan, e);
		}
		CF_CHECK(r->t, cf_now() < until, "rank %u of %u: a task did not end, %llu bytes of it moved", r->rank, r->n,
			(unsigned long long)st->moved);
		if (!p.more)
			cf_turn(r);
	}
}

void
cf_done(struct cf_rank *r, struct ist_task *task)
{
	struct ist_status st;
	ist_err e = cf_finish(r, task, &st);

	CF_CHECK(r->t, !e, "rank %u of %u: a task failed: %s %.200s", r->rank, r->n, cf_name(e), st.text);
	CF_CHECK(r->t, st.state == IST_DONE, "rank %u: a task that did not fail ended ABANDONED", r->rank);
	r->t->b->task_free(r->chan, task);
}

void
cf_ring(struct cf_rank *r, uint64_t bytes, uint32_t skew)
{
	struct cf_buf src = cf_buf_new(r->t, bytes, skew), dst = cf_buf_new(r->t, bytes, skew + 1);
	uint64_t seq = r->seq++, at;

	cf_stage(r->t, "an exchange of %llu bytes", (unsigned long long)bytes);
	cf_fill(src.addr, bytes, seq * 16 + r->rank);
	struct ist_op ops[2] = { cf_send(cf_next(r), seq, src.addr, bytes), cf_recv(cf_prev(r), seq, dst.addr, bytes) };

	cf_done(r, cf_start(r, ops, 2));
	at = cf_differs(dst.addr, bytes, seq * 16 + cf_prev(r));
	CF_CHECK(r->t, at == UINT64_MAX, "of %llu bytes, byte %llu arrived wrong", (unsigned long long)bytes, (unsigned long long)at);
	cf_buf_free(&src);
	cf_buf_free(&dst);
}

/* ---- buffers ---- */

/* Memory that a backend for devices reaches as well: pinned by the device that it was lent, if that can. */
static void *
buf_alloc(struct cf *t, uint64_t bytes, const struct ist_device **pinned)
{
	const struct ist_device *d = t->b && cf_mem(t) != IST_MEM_HOST ? t->d : NULL;
	struct ist_status why;
	void *p = NULL;

	*pinned = d && t->shared->devices && d->mem >> IST_MEM_PINNED & 1 ? d : NULL;
	cf_status(&why);
	if (*pinned ? d->alloc(d->self, 0, IST_MEM_PINNED, 0, bytes, &p, &why) : posix_memalign(&p, 64, bytes))
		cf_fail(t, "the suite has no memory for %llu bytes %s", (unsigned long long)bytes, why.text);
	return p;
}

struct cf_buf
cf_buf_new(struct cf *t, uint64_t bytes, uint32_t skew)
{
	struct cf_buf b = { .bytes = bytes };

	skew %= 64;
	b.base = buf_alloc(t, bytes + 2 * WALL + 64, &b.pinned);
	b.addr = b.base + WALL + skew;
	memset(b.base, WALL_BYTE, WALL + skew);
	memset(b.addr, EMPTY_BYTE, bytes);
	memset(b.addr + bytes, WALL_BYTE, WALL + 64 - skew);
	return b;
}

void
cf_buf_free(struct cf_buf *b)
{
	if (b->pinned)
		b->pinned->free(b->pinned->self, 0, IST_MEM_PINNED, b->base);
	else
		free(b->base);
	b->base = b->addr = NULL;
}

bool
cf_walls_stand(const struct cf_buf *b)
{
	const uint8_t *end = b->base + b->bytes + 2 * WALL + 64;

	for (const uint8_t *p = b->base; p < b->addr; p++)
		if (*p != WALL_BYTE)
			return false;
	for (const uint8_t *p = b->addr + b->bytes; p < end; p++)
		if (*p != WALL_BYTE)
			return false;
	return true;
}

static uint64_t
word(uint64_t seed, uint64_t i)
{
	uint64_t x = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15) + i * UINT64_C(0xD1342543DE82EF95);

	x ^= x >> 29;
	return x * UINT64_C(0xBF58476D1CE4E5B9);
}

void
cf_fill(void *addr, uint64_t bytes, uint64_t seed)
{
	uint8_t *p = addr;

	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t w = word(seed, i / 8);

		memcpy(p + i, &w, bytes - i < 8 ? bytes - i : 8);
	}
}

uint64_t
cf_differs(const void *addr, uint64_t bytes, uint64_t seed)
{
	const uint8_t *p = addr;

	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t w = word(seed, i / 8), n = bytes - i < 8 ? bytes - i : 8;

		if (memcmp(p + i, &w, n) == 0)
			continue;
		for (uint64_t k = 0; k < n; k++)
			if (p[i + k] != ((const uint8_t *)&w)[k])
				return i + k;
	}
	return UINT64_MAX;
}
