/* SPDX-License-Identifier: Apache-2.0 */
#include "group/life.h"

#include "base/clock.h"
#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 0x4C494645, SLOT = 64 };

struct slot {
	pthread_mutex_t mutex;
	atomic_uint held; /* 0 never, 1 held, 2 left */
	uint8_t pad[SLOT - sizeof(pthread_mutex_t) - sizeof(atomic_uint)];
};
_Static_assert(sizeof(struct slot) == SLOT, "one cache line");

struct segment {
	uint32_t magic, n;
	uint8_t pad[SLOT - 8];
	struct slot slots[];
};

struct ist__life {
	const struct ist__ctx *ctx;
	struct segment *seg;
	size_t bytes;
	struct ist__keeper *keeper;
	uint32_t mine, n; /* mine: n when none */
};

/* ---- the keeper: does what must be done on the one thread that holds the mutexes ---- */

struct task {
	struct task *next;
	struct slot *slot;
	bool lock, done;
	int rc;
};

struct ist__keeper {
	struct ist_env *env;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	struct task *first, **last;
	bool stop;
};

static void
run_task(struct task *t)
{
	if (t->lock) {
		t->rc = pthread_mutex_lock(&t->slot->mutex);
		atomic_store(&t->slot->held, 1);
	} else {
		atomic_store(&t->slot->held, 2);
		t->rc = pthread_mutex_unlock(&t->slot->mutex);
	}
}

static void *
keeper_main(void *arg)
{
	struct ist__keeper *k = arg;

	pthread_mutex_lock(&k->lock);
	while (!k->stop || k->first) {
		struct task *t = k->first;

		if (!t) {
			pthread_cond_wait(&k->work, &k->lock);
			continue;
		}
		k->first = t->next;
		if (!k->first)
			k->last = &k->first;
		pthread_mutex_unlock(&k->lock);
		run_task(t);
		pthread_mutex_lock(&k->lock);
		t->done = true;
		pthread_cond_broadcast(&k->done);
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

static int
keep(struct ist__keeper *k, struct slot *slot, bool lock)
{
	struct task t = { .slot = slot, .lock = lock };

	pthread_mutex_lock(&k->lock);
	*k->last = &t;
	k->last = &t.next;
	pthread_cond_signal(&k->work);
	while (!t.done)
		pthread_cond_wait(&k->done, &k->lock);
	pthread_mutex_unlock(&k->lock);
	return t.rc;
}

struct ist__keeper *
ist__keeper_new(struct ist_env *env, struct ist_error *err)
{
	struct ist__keeper *k = ist__alloc(ist__env_ctx(env), sizeof(*k));
	int rc;

	if (!k) {
		ist__fail_memory(err, "life");
		return NULL;
	}
	k->env = env;
	k->last = &k->first;
	pthread_mutex_init(&k->lock, NULL);
	pthread_cond_init(&k->work, NULL);
	pthread_cond_init(&k->done, NULL);
	rc = ist__thread(env, "life", keeper_main, k, &k->thread);
	if (rc) {
		ist__free(ist__env_ctx(env), k);
		ist__fail_sys(err, IST_NO_MEMORY, rc, "life", "the thread that keeps this process's sign of life");
		return NULL;
	}
	return k;
}

void
ist__keeper_free(struct ist__keeper *k)
{
	if (!k)
		return;
	pthread_mutex_lock(&k->lock);
	k->stop = true;
	pthread_cond_signal(&k->work);
	pthread_mutex_unlock(&k->lock);
	pthread_join(k->thread, NULL);
	pthread_mutex_destroy(&k->lock);
	pthread_cond_destroy(&k->work);
	pthread_cond_destroy(&k->done);
	ist__free(ist__env_ctx(k->env), k);
}

/* ---- segments ---- */

static ist_err
map(const struct ist__ctx *ctx, int fd, uint32_t n, struct ist__life **out, struct ist_error *err)
{
	struct ist__life *life = ist__alloc(ctx, sizeof(*life));

	if (!life)
		return ist__fail_memory(err, "life");
	*life = (struct ist__life){ .ctx = ctx, .bytes = sizeof(struct segment) + n * sizeof(struct slot), .mine = n, .n = n };
	life->seg = mmap(NULL, life->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (life->seg == MAP_FAILED) {
		int sys = errno;

		ist__free(ctx, life);
		return ist__fail_sys(err, sys == ENOMEM ? IST_NO_MEMORY : IST_IO, sys, "life", "mapping the sign of life");
	}
	madvise(life->seg, life->bytes, MADV_DONTFORK);
	*out = life;
	return IST_OK;
}

static ist_err
slots_init(struct ist__life *life, struct ist_error *err)
{
	pthread_mutexattr_t attr;
	int rc = pthread_mutexattr_init(&attr);

	if (rc == 0)
		rc = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	if (rc == 0)
		rc = pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	for (uint32_t i = 0; rc == 0 && i < life->n; i++)
		rc = pthread_mutex_init(&life->seg->slots[i].mutex, &attr);
	pthread_mutexattr_destroy(&attr);
	life->seg->magic = MAGIC;
	life->seg->n = life->n;
	return rc ? ist__fail_sys(err, IST_IO, rc, "life", "robust mutexes") : IST_OK;
}

ist_err
ist__life_new(const struct ist__ctx *ctx, uint32_t n, struct ist__life **out, int *out_fd, struct ist_error *err)
{
	off_t bytes = (off_t)(sizeof(struct segment) + n * sizeof(struct slot));
	int fd = memfd_create("isthmus-life", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct ist__life *life = NULL;
	int rc;
	ist_err e;

	if (fd < 0)
		return ist__fail_sys(err, IST_IO, errno, "life", "memfd_create");
	if (ftruncate(fd, bytes)) {
		e = ist__fail_sys(err, IST_NO_SPACE, errno, "life", "room for the sign of life");
		goto out;
	}
	rc = posix_fallocate(fd, 0, bytes); /* reserved now, so that touching it can't fail */
	if (rc) {
		e = ist__fail_sys(err, IST_NO_SPACE, rc, "life", "room for the sign of life");
		goto out;
	}
	fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	e = map(ctx, fd, n, &life, err);
	if (!e)
		e = slots_init(life, err);
	if (!e) {
		*out = life;
		*out_fd = fd;
		return IST_OK;
	}
	ist__life_free(life);
out:
	close(fd);
	return e;
}

ist_err
ist__life_map(const struct ist__ctx *ctx, int fd, uint32_t n, struct ist__life **out, struct ist_error *err)
{
	size_t bytes = sizeof(struct segment) + n * sizeof(struct slot);
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);
	ist_err e;

	/* it must be a segment that can't shrink under us, of the size that follows from the members */
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || (size_t)st.st_size != bytes || seals < 0 || !(seals & F_SEAL_SHRINK))
		return ist__fail(err, IST_BAD_HANDLE, "life", "the descriptor is no sealed segment of %zu bytes", bytes);
	e = map(ctx, fd, n, out, err);
	if (!e && ((*out)->seg->magic != MAGIC || (*out)->seg->n != n)) {
		ist__life_free(*out);
		*out = NULL;
		return ist__fail(err, IST_BAD_HANDLE, "life", "the segment is of another kind");
	}
	return e;
}

ist_err
ist__life_hold(struct ist__life *life, struct ist__keeper *keeper, uint32_t i, struct ist_error *err)
{
	int rc = keep(keeper, &life->seg->slots[i], true);

	if (rc)
		return ist__fail_sys(err, IST_CONFLICT, rc, "life", "slot %u", i);
	life->keeper = keeper;
	life->mine = i;
	return IST_OK;
}

enum ist__alive
ist__life_look(struct ist__life *life, uint32_t i)
{
	struct slot *s = &life->seg->slots[i];
	int rc;

	if (atomic_load(&s->held) == 0)
		return IST__ALIVE_YES; /* it has not come this far; then its connections tell */
	rc = pthread_mutex_trylock(&s->mutex);
	if (rc == EBUSY)
		return IST__ALIVE_YES;
	if (rc == 0) {
		pthread_mutex_unlock(&s->mutex);
		return atomic_load(&s->held) == 2 ? IST__ALIVE_LEFT : IST__ALIVE_YES;
	}
	if (rc == EOWNERDEAD)
		pthread_mutex_unlock(&s->mutex); /* not made consistent: from now on ENOTRECOVERABLE for everybody */
	return IST__ALIVE_DEAD;
}

void
ist__life_free(struct ist__life *life)
{
	if (!life)
		return;
	if (life->mine < life->n)
		keep(life->keeper, &life->seg->slots[life->mine], false);
	munmap(life->seg, life->bytes);
	ist__free(life->ctx, life);
}
