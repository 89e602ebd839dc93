/* SPDX-License-Identifier: Apache-2.0 */
#include "plug/services.h"

#include "base/clock.h"

#include <isthmus.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Device memory that a plug-in got through alloc; host memory needs no such note. */
struct lent {
	struct lent *next;
	void *addr;
	const struct ist_device *device;
	uint32_t mem;
	int32_t index;
};

/* Memory that a backend shares between its channels. */
struct kept {
	struct kept *next;
	const void *key;
	uint64_t bytes;
	_Alignas(64) uint8_t room[];
};

struct ist__services {
	struct ist_host host;
	struct ist_env *env;
	struct ist__ctx ctx; /* a copy, for whoever outlives the env */
	const struct ist_device *(*device)(void *owner, uint32_t mem);
	void *owner;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	uint64_t threads;
	bool over; /* the env is gone */
	struct lent *lent;
	struct kept *kept;
};

static bool
is_over(struct ist__services *s)
{
	bool over;

	pthread_mutex_lock(&s->lock);
	over = s->over;
	pthread_mutex_unlock(&s->lock);
	return over;
}

static void
host_log(void *ctx, int32_t level, const char *msg)
{
	struct ist__services *s = ctx;
	int saved = errno;

	if (msg && !is_over(s))
		ist__log(&s->ctx, level < IST_LOG_ERROR ? IST_LOG_ERROR : level, "%s", msg);
	errno = saved;
}

static void *
device_alloc(struct ist__services *s, uint64_t bytes, uint32_t mem, int32_t index)
{
	const struct ist_device *d = s->device(s->owner, mem);
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	struct lent *l;
	void *p = NULL;

	if (!d)
		return NULL;
	l = ist__alloc(&s->ctx, sizeof(*l));
	if (!l)
		return NULL;
	if (d->alloc(d->self, index, mem, 0, bytes, &p, &why) || !p) {
		ist__free(&s->ctx, l);
		return NULL;
	}
	*l = (struct lent){ .addr = p, .device = d, .mem = mem, .index = index };
	pthread_mutex_lock(&s->lock);
	l->next = s->lent;
	s->lent = l;
	pthread_mutex_unlock(&s->lock);
	return p;
}

static void *
host_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t mem, int32_t device)
{
	struct ist__services *s = ctx;

	if (align == 0)
		align = 16;
	if ((align & (align - 1)) != 0)
		return NULL;
	if (mem != IST_MEM_HOST)
		return device_alloc(s, bytes, mem, device);
	return s->ctx.alloc(s->ctx.mem_ctx, bytes, align, mem, device >= 0 ? device : s->ctx.numa);
}

static void
host_free(void *ctx, void *p)
{
	struct ist__services *s = ctx;
	struct lent **at, *l = NULL;

	if (!p)
		return;
	pthread_mutex_lock(&s->lock);
	for (at = &s->lent; *at && (*at)->addr != p; at = &(*at)->next)
		;
	if (*at) {
		l = *at;
		*at = l->next;
	}
	pthread_mutex_unlock(&s->lock);
	if (l)
		l->device->free(l->device->self, l->index, l->mem, p);
	ist__free(&s->ctx, l ? (void *)l : p);
}

static const struct ist_device *
host_device(void *ctx, uint32_t mem)
{
	struct ist__services *s = ctx;

	return s->device(s->owner, mem);
}

struct job {
	struct ist__services *services;
	void (*run)(void *arg);
	void *arg;
};

static void *
host_keep(void *ctx, const void *key, uint64_t bytes, void (*init)(void *p))
{
	struct ist__services *s = ctx;
	struct kept *k;
	uint64_t whole;

	if (!key || __builtin_add_overflow(bytes, sizeof(*k) + 64, &whole))
		return NULL;
	pthread_mutex_lock(&s->lock);
	for (k = s->kept; k && k->key != key; k = k->next)
		;
	if (!k && (k = aligned_alloc(64, whole & ~UINT64_C(63))) != NULL) {
		memset(k, 0, whole & ~UINT64_C(63));
		k->next = s->kept;
		k->key = key;
		k->bytes = bytes;
		if (init)
			init(k->room);
		s->kept = k;
	}
	pthread_mutex_unlock(&s->lock);
	return k && k->bytes >= bytes ? k->room : NULL;
}

static void
services_free(struct ist__services *s)
{
	for (struct kept *k = s->kept, *next; k; k = next) {
		next = k->next;
		free(k);
	}
	pthread_cond_destroy(&s->ended);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static void *
job_main(void *arg)
{
	struct job job = *(struct job *)arg;
	struct ist__services *s = job.services;
	bool last;

	free(arg);
	job.run(job.arg);
	pthread_mutex_lock(&s->lock);
	last = --s->threads == 0 && s->over; /* the env did not wait for us: what is left is ours to free */
	pthread_cond_broadcast(&s->ended);
	pthread_mutex_unlock(&s->lock);
	if (last)
		services_free(s);
	return NULL;
}

static ist_err
host_thread(void *ctx, const char *name, void (*run)(void *arg), void *arg)
{
	struct ist__services *s = ctx;
	struct job *job;
	pthread_t thread;
	int rc = 0;

	if (!name || !run)
		return IST_INVALID_ARGUMENT;
	job = malloc(sizeof(*job)); /* freed by a thread that may outlive the env's allocator */
	if (!job)
		return IST_NO_MEMORY;
	*job = (struct job){ .services = s, .run = run, .arg = arg };
	pthread_mutex_lock(&s->lock);
	rc = s->over ? ECANCELED : ist__thread(s->env, name, job_main, job, &thread);
	if (rc == 0) {
		pthread_detach(thread); /* it can't end before it gets the lock, so the id still means it */
		s->threads++;
	}
	pthread_mutex_unlock(&s->lock);
	if (rc) {
		free(job);
		return rc == EAGAIN ? IST_LIMIT : rc == ENOMEM ? IST_NO_MEMORY : IST_IO;
	}
	return IST_OK;
}

struct ist__services *
ist__services_new(struct ist_env *env, const struct ist_device *(*device)(void *owner, uint32_t mem), void *owner)
{
	struct ist__services *s = calloc(1, sizeof(*s)); /* may outlive the env, and its allocator with it */
	pthread_condattr_t attr;

	if (!s)
		return NULL;
	s->host = (struct ist_host){
		.struct_size = sizeof(s->host),
		.abi = IST_BACKEND_ABI,
		.ctx = s,
		.log = host_log,
		.alloc = host_alloc,
		.free = host_free,
		.device = host_device,
		.thread = host_thread,
		.keep = host_keep,
	};
	s->env = env;
	s->ctx = *ist__env_ctx(env);
	s->device = device;
	s->owner = owner;
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->ended, &attr);
	pthread_condattr_destroy(&attr);
	return s;
}

void
ist__services_end(struct ist__services *s)
{
	int64_t until = ist__now() + 1000 * IST__MS;
	struct timespec at = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
	bool left;

	pthread_mutex_lock(&s->lock);
	while (s->threads > 0 && pthread_cond_timedwait(&s->ended, &s->lock, &at) != ETIMEDOUT)
		;
	s->over = true;
	left = s->threads > 0;
	pthread_mutex_unlock(&s->lock);
	if (left)
		return; /* the last of the threads frees it */
	services_free(s);
}

const struct ist_host *
ist__services_host(struct ist__services *s)
{
	return &s->host;
}
