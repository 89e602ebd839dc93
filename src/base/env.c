/* SPDX-License-Identifier: Apache-2.0 */
#include "base/env.h"

#include "base/fail.h"

#include <isthmus.h>

#include <ctype.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define ALIVE 0x1574A11Eu
#define DEAD 0x1574DEADu

enum { GRAVES = 512, STACK_MIN = 1 << 20, STACK_SMALL = 512 << 10 };

struct part {
	void *ptr;
	void (*stop)(struct ist_env *env, void *part);
};

struct ist_env {
	struct ist__handle handle;
	struct ist__ctx ctx;
	pthread_mutex_t lock; /* parts */
	pthread_mutex_t grave_lock;
	struct ist__handle *oldest, *newest;
	uint32_t graves;
	struct ist__handle *owned; /* newest first */
	uint32_t n_parts;
	struct part parts[IST__PARTS];
	enum ist__part_id order[IST__PARTS];
	cpu_set_t cpus;
	bool has_cpus;
	atomic_int *here; /* 1; a forked child finds the page wiped */
};

/* "0-3,8" as in the kernel's CPU lists. */
static bool
cpus_parse(const char *s, cpu_set_t *out)
{
	CPU_ZERO(out);
	while (*s) {
		char *end;
		unsigned long a, b;

		if (!isdigit((unsigned char)*s))
			return false;
		a = b = strtoul(s, &end, 10);
		if (*end == '-' && isdigit((unsigned char)end[1]))
			b = strtoul(end + 1, &end, 10);
		if (b < a || b >= CPU_SETSIZE || (*end && *end != ','))
			return false;
		for (unsigned long i = a; i <= b; i++)
			CPU_SET(i, out);
		s = *end == ',' ? end + 1 : end;
	}
	return CPU_COUNT(out) > 0;
}

static ist_err
env_args(struct ist_env *env, const struct ist_env_args *a, struct ist_error *err)
{
	if (!a)
		return IST_OK;
	if (a->struct_size < offsetof(struct ist_env_args, log_ctx))
		return ist__fail(err, IST_INVALID_ARGUMENT, "env_new", "struct_size %u is too small", a->struct_size);
	if (!a->alloc != !a->free)
		return ist__fail(err, IST_INVALID_ARGUMENT, "env_new", "alloc and free come together");
	if (a->log) {
		env->ctx.log = a->log;
		env->ctx.log_ctx = a->log_ctx;
		env->ctx.log_level = a->log_level;
	}
	if (a->alloc) {
		env->ctx.alloc = a->alloc;
		env->ctx.free = a->free;
		env->ctx.mem_ctx = a->mem_ctx;
	}
	if (a->numa_set)
		env->ctx.numa = a->numa;
	if (a->cpus) {
		if (!cpus_parse(a->cpus, &env->cpus))
			return ist__fail(err, IST_BAD_CONFIG, "env_new", "cpus \"%s\" is not a CPU list such as 0-3,8", a->cpus);
		env->has_cpus = true;
	}
	return IST_OK;
}

ist_err
ist_env_new(const struct ist_env_args *args, struct ist_env **out, struct ist_error *err)
{
	struct ist_env *env;
	long page = sysconf(_SC_PAGESIZE);
	pthread_mutexattr_t recursive;
	ist_err e;

	if (!out)
		return ist__fail(err, IST_INVALID_ARGUMENT, "env_new", "out is NULL");
	env = calloc(1, sizeof(*env)); /* the env's own memory is the one thing that can't come from itself */
	if (!env)
		return ist__fail_memory(err, "env_new");
	ist__ctx_init(&env->ctx);
	e = env_args(env, args, err);
	if (e) {
		free(env);
		return e;
	}
	env->here = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (env->here == MAP_FAILED) {
		free(env);
		return ist__fail_memory(err, "env_new");
	}
	madvise(env->here, (size_t)page, MADV_WIPEONFORK);
	atomic_store(env->here, 1);
	pthread_mutexattr_init(&recursive); /* one part's make may ask for another part */
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&env->lock, &recursive);
	pthread_mutexattr_destroy(&recursive);
	pthread_mutex_init(&env->grave_lock, NULL);
	env->handle = (struct ist__handle){ .magic = ALIVE, .kind = IST__ENV, .env = env };
	*out = env;
	return IST_OK;
}

static void
end_owned(struct ist_env *env)
{
	for (;;) {
		struct ist__handle *h;

		pthread_mutex_lock(&env->grave_lock);
		for (h = env->owned; h && !h->end; h = h->next)
			continue;
		pthread_mutex_unlock(&env->grave_lock);
		if (!h)
			return;
		h->end(h); /* buries it */
	}
}

static void
unlink_owned(struct ist__handle *h)
{
	*h->link = h->next;
	if (h->next)
		h->next->link = h->link;
	h->link = NULL;
}

/* What users kept. Out of the list first: who is stuck may have it for ever. */
static void
end_left(struct ist_env *env)
{
	uint64_t n = 0;

	for (;;) {
		struct ist__handle *h;

		pthread_mutex_lock(&env->grave_lock);
		for (h = env->owned; h && !h->left; h = h->next)
			continue;
		if (h)
			unlink_owned(h);
		pthread_mutex_unlock(&env->grave_lock);
		if (!h)
			break;
		h->left(h);
		n++;
	}
	if (n > 0)
		ist__log(&env->ctx, 2, "%llu requests were freed with their env, by nobody before", (unsigned long long)n);
}

static void
free_list(struct ist_env *env, struct ist__handle *h)
{
	while (h) {
		struct ist__handle *next = h->next;

		ist__free(&env->ctx, h);
		h = next;
	}
}

void
ist_env_free(struct ist_env *env)
{
	if (!env || !ist__handle_ok(env, IST__ENV))
		return;
	end_owned(env);
	while (env->n_parts > 0) {
		struct part *p = &env->parts[env->order[--env->n_parts]];

		p->stop(env, p->ptr);
		p->ptr = NULL;
	}
	end_left(env);
	free_list(env, env->oldest);
	free_list(env, env->owned);
	env->handle.magic = DEAD;
	munmap(env->here, (size_t)sysconf(_SC_PAGESIZE));
	pthread_mutex_destroy(&env->lock);
	pthread_mutex_destroy(&env->grave_lock);
	free(env);
}

void *
ist__handle_new(struct ist_env *env, enum ist__kind kind, uint64_t bytes)
{
	struct ist__handle *h = ist__alloc(&env->ctx, bytes);

	if (h)
		*h = (struct ist__handle){ .magic = ALIVE, .kind = (uint32_t)kind, .env = env };
	return h;
}

static void
own(struct ist__handle *h, void (*end)(void *handle), void (*left)(void *handle))
{
	struct ist_env *env = h->env;

	pthread_mutex_lock(&env->grave_lock);
	h->end = end;
	h->left = left;
	h->next = env->owned;
	h->link = &env->owned;
	if (h->next)
		h->next->link = &h->next;
	env->owned = h;
	pthread_mutex_unlock(&env->grave_lock);
}

void
ist__handle_owned(void *handle, void (*end)(void *handle))
{
	own(handle, end, NULL);
}

void
ist__handle_left(void *handle, void (*left)(void *handle))
{
	own(handle, NULL, left);
}

static uint32_t
magic_of(const void *handle)
{
	return __atomic_load_n((const uint32_t *)handle, __ATOMIC_ACQUIRE); /* pairs with ist__handle_kill */
}

bool
ist__handle_ok(const void *handle, enum ist__kind kind)
{
	const struct ist__handle *h = handle;

	return h && magic_of(h) == ALIVE && h->kind == (uint32_t)kind && atomic_load_explicit(h->env->here, memory_order_relaxed) == 1;
}

ist_err
ist__handle_check(const void *handle, enum ist__kind kind, const char *op, struct ist_error *err)
{
	const struct ist__handle *h = handle;
	const char *why;

	if (ist__handle_ok(handle, kind))
		return IST_OK;
	if (!h)
		why = "the handle is NULL";
	else if (magic_of(h) == DEAD)
		why = "the handle was freed";
	else if (magic_of(h) != ALIVE)
		why = "this is not a handle";
	else if (h->kind != (uint32_t)kind)
		why = "the handle is of another kind";
	else
		why = "the handle belongs to the parent process; after fork make a new env";
	return ist__fail(err, IST_BAD_HANDLE, op, "%s", why);
}

bool
ist__handle_kill(void *handle, enum ist__kind kind)
{
	uint32_t alive = ALIVE;

	return ist__handle_ok(handle, kind) &&
		__atomic_compare_exchange_n((uint32_t *)handle, &alive, DEAD, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

void
ist__handle_bury(void *handle)
{
	struct ist__handle *h = handle, *old = NULL;
	struct ist_env *env = h->env;

	pthread_mutex_lock(&env->grave_lock);
	if (h->link)
		unlink_owned(h);
	h->next = NULL;
	if (env->newest)
		env->newest->next = h;
	else
		env->oldest = h;
	env->newest = h;
	if (++env->graves > GRAVES) {
		old = env->oldest;
		env->oldest = old->next;
		env->graves--;
	}
	pthread_mutex_unlock(&env->grave_lock);
	ist__free(&env->ctx, old);
}

void *
ist__env_part(struct ist_env *env, enum ist__part_id id, void *(*make)(struct ist_env *env, struct ist_error *err),
	void (*stop)(struct ist_env *env, void *part), struct ist_error *err)
{
	void *ptr;

	pthread_mutex_lock(&env->lock);
	ptr = env->parts[id].ptr;
	if (!ptr && (ptr = make(env, err))) {
		__atomic_store_n(&env->parts[id].ptr, ptr, __ATOMIC_RELEASE); /* pairs with ist__env_has */
		env->parts[id].stop = stop;
		env->order[env->n_parts++] = id;
	}
	pthread_mutex_unlock(&env->lock);
	return ptr;
}

void *
ist__env_has(struct ist_env *env, enum ist__part_id id)
{
	return __atomic_load_n(&env->parts[id].ptr, __ATOMIC_ACQUIRE);
}

const struct ist__ctx *
ist__env_ctx(struct ist_env *env)
{
	return &env->ctx;
}

/* glibc takes the default from the caller's limit, which is made for the caller's own: a few KiB would end the process. */
static void
give_stack(pthread_attr_t *attr)
{
	size_t bytes;

	if (pthread_attr_getstacksize(attr, &bytes) == 0 && bytes < STACK_MIN)
		pthread_attr_setstacksize(attr, STACK_MIN);
}

bool
ist__stack_is_small(void)
{
	struct rlimit limit;

	return !getrlimit(RLIMIT_STACK, &limit) && limit.rlim_cur < STACK_SMALL;
}

int
ist__thread(struct ist_env *env, const char *name, void *(*run)(void *), void *arg, pthread_t *out)
{
	sigset_t all, old;
	pthread_attr_t attr;
	char full[16];
	int rc;

	rc = pthread_attr_init(&attr);
	if (rc)
		return rc;
	give_stack(&attr);
	if (env->has_cpus)
		pthread_attr_setaffinity_np(&attr, sizeof(env->cpus), &env->cpus);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old); /* inherited, so that no signal finds the new thread unready */
	rc = pthread_create(out, &attr, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (rc == 0) {
		snprintf(full, sizeof(full), "ist-%s", name);
		pthread_setname_np(*out, full);
	}
	return rc;
}
