/* SPDX-License-Identifier: Apache-2.0 */
#include "group/life.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* Linux 5.16 */
#endif

enum { MAGIC = 0x4C494645, SLOT = 64, WATCHED = 128 /* as many as the kernel takes in one wait */ };

struct slot {
	pthread_mutex_t mutex;
	atomic_uint held; /* 0 never, 1 held, 2 left, 3 seen dead: a mutex tells that only to the first who look */
	atomic_uint yes, asleep; /* a vote of all: this one's, and whether it has to be woken */
	uint8_t pad[SLOT - sizeof(pthread_mutex_t) - 3 * sizeof(atomic_uint)];
};
_Static_assert(sizeof(struct slot) == SLOT, "one cache line");

struct segment {
	uint32_t magic, n;
	atomic_uint outcome; /* of the vote; enum ist__outcome, set once */
	uint8_t pad[SLOT - 12];
	struct slot slots[];
};

enum what { HOLD, LEAVE };

struct task {
	struct task *next;
	enum what what;
	bool done;
	int rc;
};

struct ist__life {
	struct task task; /* the one that the keeper has, or had last; the keeper's lock */
	const struct ist__ctx *ctx;
	struct segment *seg;
	size_t bytes;
	struct ist__keeper *keeper;
	uint32_t mine, n; /* mine: n when none */
	bool made;        /* the segment, by this member */
	uint32_t refs;
};

struct ist__vigil {
	struct ist__vigil *next, **link; /* the keeper's lock */
	struct ist__life *life;
	struct ist__watched *watched;
	uint32_t n;
};

/* ---- the keeper: holds what this process holds, and waits for what others hold ---- */

/* What futex_waitv takes; the kernel's own header is newer than some systems. */
struct wait_on {
	uint64_t val, uaddr;
	uint32_t flags, reserved;
};
enum { WAIT_U32 = 2, WAIT_PRIVATE = 128 };

struct ist__keeper {
	struct ist_env *env;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t done;
	struct task *first, **last;
	struct ist__vigil *vigils, **vigils_last; /* oldest first: what comes and goes is seldom what is waited for */
	const struct ist__watched *awaited[WATCHED];
	uint32_t n_awaited;
	bool stop, waits; /* waits: the kernel can wait for many at once */
	_Atomic uint32_t bell; /* counted up when there is something new */
	void (*died)(void *arg);
	void *arg;
};

/* The word that the kernel marks when the owner of a robust mutex is gone: glibc keeps the owner's thread there. */
static _Atomic uint32_t *
word_of(struct slot *s)
{
	return (_Atomic uint32_t *)(void *)&s->mutex.__data.__lock;
}

static void
wake_all(_Atomic uint32_t *word, int flags)
{
	syscall(SYS_futex, word, FUTEX_WAKE | flags, INT_MAX, NULL, NULL, 0);
}

static void
unmap(struct ist__life *life)
{
	munmap(life->seg, life->bytes);
	ist__free(life->ctx, life);
}

/* True: nobody waits for its end, and it is gone. */
static bool
run_task(struct task *t)
{
	struct ist__life *life = (struct ist__life *)(void *)t;
	struct slot *mine = &life->seg->slots[life->mine];

	if (t->what == LEAVE) {
		pthread_mutex_unlock(&mine->mutex);
		unmap(life);
		return true;
	}
	t->rc = pthread_mutex_lock(&mine->mutex);
	atomic_store(&mine->held, 1);
	return false;
}

/* True: it has nothing more to tell. Else *word is what it stands at, marked so that the kernel wakes us. */
static bool
look_at(struct slot *s, uint32_t *value, bool *dead)
{
	_Atomic uint32_t *word = word_of(s);
	uint32_t v = atomic_load(word);

	*dead = atomic_load(&s->held) == 3;
	if (*dead)
		*value = 0;
	if (atomic_load(&s->held) != 1)
		return true; /* left; or never came so far, then its connections tell */
	while (v && !(v & FUTEX_OWNER_DIED) && !(v & FUTEX_WAITERS) && !atomic_compare_exchange_weak(word, &v, v | FUTEX_WAITERS))
		;
	*dead = v == 0 ? atomic_load(&s->held) == 1 : (v & FUTEX_OWNER_DIED) != 0;
	*value = v | FUTEX_WAITERS;
	return *dead || v == 0;
}

static bool
waits_for(const struct ist__keeper *k, uint64_t who)
{
	for (uint32_t i = 1; i < k->n_awaited; i++)
		if (k->awaited[i]->who == who)
			return true;
	return false;
}

/* Whom to wait for, one slot a process. Lock held. *dead: somebody is gone. */
static void
fill(struct ist__keeper *k, struct wait_on *on, bool *dead)
{
	k->n_awaited = 1;
	for (struct ist__vigil *v = k->vigils; v; v = v->next)
		for (uint32_t i = 0; i < v->n && k->n_awaited < WATCHED; i++) {
			struct ist__watched *w = &v->watched[i];
			struct slot *s = &v->life->seg->slots[w->slot];
			uint32_t value = 0;
			bool died = false;

			if (w->over || waits_for(k, w->who))
				continue;
			w->over = look_at(s, &value, &died);
			if (died)
				wake_all(word_of(s), 0); /* the kernel woke one of those who wait */
			*dead |= died;
			if (w->over)
				continue;
			k->awaited[k->n_awaited] = w;
			on[k->n_awaited++] = (struct wait_on){ .val = value, .uaddr = (uintptr_t)word_of(s), .flags = WAIT_U32 };
		}
}

/* Lock held, let go meanwhile. */
static void
await_news(struct ist__keeper *k)
{
	uint32_t bell = atomic_load(&k->bell), n;
	struct wait_on on[WATCHED];
	bool dead = false, waits = k->waits;

	if (waits)
		fill(k, on, &dead);
	n = k->n_awaited;
	pthread_mutex_unlock(&k->lock);
	if (dead && k->died) {
		k->died(k->arg); /* there may be more */
	} else if (!waits) {
		syscall(SYS_futex, &k->bell, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, bell, NULL, NULL, 0);
	} else {
		on[0] = (struct wait_on){ .val = bell, .uaddr = (uintptr_t)&k->bell, .flags = WAIT_U32 | WAIT_PRIVATE };
		if (syscall(SYS_futex_waitv, on, n, 0, NULL, 0) < 0 && errno != EAGAIN && errno != EINTR &&
		    errno != EFAULT) /* a vigil that ended meanwhile, and rang */
			waits = false; /* forbidden, say by a filter: the mesh looks by itself */
	}
	pthread_mutex_lock(&k->lock);
	k->waits = waits;
}

static void *
keeper_main(void *arg)
{
	struct ist__keeper *k = arg;

	pthread_mutex_lock(&k->lock);
	while (!k->stop || k->first) {
		struct task *t = k->first;
		bool gone;

		if (!t) {
			await_news(k);
			continue;
		}
		k->first = t->next;
		if (!k->first)
			k->last = &k->first;
		pthread_mutex_unlock(&k->lock);
		gone = run_task(t);
		pthread_mutex_lock(&k->lock);
		if (gone)
			continue;
		t->done = true;
		pthread_cond_broadcast(&k->done);
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

static void
ring(struct ist__keeper *k)
{
	atomic_fetch_add(&k->bell, 1);
	wake_all(&k->bell, FUTEX_PRIVATE_FLAG);
}

static void
hand_in(struct ist__keeper *k, struct ist__life *life, enum what what)
{
	pthread_mutex_lock(&k->lock);
	life->task = (struct task){ .what = what };
	*k->last = &life->task;
	k->last = &life->task.next;
	pthread_mutex_unlock(&k->lock);
	ring(k); /* not under the lock, which the woken one would run into */
}

struct ist__keeper *
ist__keeper_new(struct ist_env *env, void (*died)(void *arg), void *arg, struct ist_error *err)
{
	struct ist__keeper *k = ist__alloc(ist__env_ctx(env), sizeof(*k));
	int rc;

	if (!k) {
		ist__fail_memory(err, "life");
		return NULL;
	}
	k->env = env;
	k->last = &k->first;
	k->vigils_last = &k->vigils;
	k->n_awaited = 1;
	k->died = died;
	k->arg = arg;
	k->waits = syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0) < 0 && errno == EINVAL; /* known, though not with these arguments */
	pthread_mutex_init(&k->lock, NULL);
	pthread_cond_init(&k->done, NULL);
	rc = ist__thread(env, "life", keeper_main, k, &k->thread);
	if (rc) {
		ist__free(ist__env_ctx(env), k);
		ist__fail_thread(err, rc, "life", "the thread that keeps this process's sign of life");
		return NULL;
	}
	return k;
}

bool
ist__keeper_waits(struct ist__keeper *k)
{
	bool waits;

	pthread_mutex_lock(&k->lock);
	waits = k->waits;
	pthread_mutex_unlock(&k->lock);
	return waits;
}

void
ist__keeper_free(struct ist__keeper *k)
{
	if (!k)
		return;
	pthread_mutex_lock(&k->lock);
	k->stop = true;
	pthread_mutex_unlock(&k->lock);
	ring(k);
	pthread_join(k->thread, NULL);
	pthread_mutex_destroy(&k->lock);
	pthread_cond_destroy(&k->done);
	ist__free(ist__env_ctx(k->env), k);
}

/* ---- segments ---- */

static size_t
segment_bytes(uint32_t n, uint64_t more)
{
	return sizeof(struct segment) + n * sizeof(struct slot) + more;
}

static ist_err
map(const struct ist__ctx *ctx, int fd, uint32_t n, uint64_t more, struct ist__life **out, struct ist_error *err)
{
	struct ist__life *life = ist__alloc(ctx, sizeof(*life));

	if (!life)
		return ist__fail_memory(err, "life");
	*life = (struct ist__life){ .ctx = ctx, .bytes = segment_bytes(n, more), .mine = n, .n = n, .refs = 1 };
	life->seg = mmap(NULL, life->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (life->seg == MAP_FAILED) {
		int sys = errno;

		ist__free(ctx, life);
		return ist__fail_sys(err, IST_IO, sys, "life", "mapping the sign of life");
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
ist__life_new(const struct ist__ctx *ctx, uint32_t n, uint64_t more, struct ist__life **out, int *out_fd, struct ist_error *err)
{
	off_t bytes = (off_t)segment_bytes(n, more);
	int fd = ist__memfd("isthmus-life");
	struct ist__life *life = NULL;
	int rc;
	ist_err e;

	if (fd < 0)
		return ist__fail_sys(err, ist__memfd_is_forbidden(errno) ? IST_UNSUPPORTED : IST_IO, errno, "life", "memfd_create");
	if (ftruncate(fd, bytes)) {
		e = ist__fail_sys(err, IST_NO_SPACE, errno, "life", "room for the sign of life");
		goto out;
	}
	do
		rc = posix_fallocate(fd, 0, bytes); /* reserved now, so that touching it can't fail */
	while (rc == EINTR);
	if (rc) {
		e = ist__fail_sys(err, IST_NO_SPACE, rc, "life", "room for the sign of life");
		goto out;
	}
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) { /* nobody would take it */
		e = ist__fail_sys(err, IST_IO, errno, "life", "sealing the sign of life");
		goto out;
	}
	e = map(ctx, fd, n, more, &life, err);
	if (!e)
		e = slots_init(life, err);
	if (!e) {
		life->made = true;
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
ist__life_map(const struct ist__ctx *ctx, int fd, uint32_t n, uint64_t more, struct ist__life **out, struct ist_error *err)
{
	size_t bytes = segment_bytes(n, more);
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);
	ist_err e;

	/* it must be a segment that can't shrink under us, of the size that follows from the members */
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || (size_t)st.st_size != bytes || seals < 0 || !(seals & F_SEAL_SHRINK))
		return ist__fail(err, IST_BAD_HANDLE, "life", "the descriptor is no sealed segment of %zu bytes", bytes);
	e = map(ctx, fd, n, more, out, err);
	if (!e && ((*out)->seg->magic != MAGIC || (*out)->seg->n != n)) {
		ist__life_free(*out);
		*out = NULL;
		return ist__fail(err, IST_BAD_HANDLE, "life", "the segment is of another kind");
	}
	return e;
}

void
ist__life_held(const struct ist__life *life, uint64_t *memory, uint64_t *shared)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	*memory = sizeof(*life);
	*shared = life->made ? (life->bytes + page - 1) & ~(page - 1) : 0;
}

void *
ist__life_more(struct ist__life *life)
{
	return &life->seg->slots[life->n];
}

void
ist__life_hold(struct ist__life *life, struct ist__keeper *keeper, uint32_t i)
{
	life->mine = i;
	life->keeper = keeper;
	hand_in(keeper, life, HOLD);
}

ist_err
ist__life_await_hold(struct ist__life *life, struct ist_error *err)
{
	struct ist__keeper *k = life->keeper;
	int rc;

	pthread_mutex_lock(&k->lock);
	while (!life->task.done)
		pthread_cond_wait(&k->done, &k->lock);
	rc = life->task.rc;
	pthread_mutex_unlock(&k->lock);
	return rc ? ist__fail_sys(err, IST_CONFLICT, rc, "life", "slot %u", life->mine) : IST_OK;
}

struct ist__life *
ist__life_share(struct ist__life *life)
{
	if (life)
		__atomic_add_fetch(&life->refs, 1, __ATOMIC_RELAXED);
	return life;
}

struct ist__vigil *
ist__life_watch(struct ist__life *life, struct ist__watched *watched, uint32_t n)
{
	struct ist__keeper *k = life->keeper;
	struct ist__vigil *v = ist__alloc(life->ctx, sizeof(*v));
	bool news = false;

	if (!v) {
		ist__free(life->ctx, watched);
		return NULL;
	}
	*v = (struct ist__vigil){ .life = life, .watched = watched, .n = n };
	pthread_mutex_lock(&k->lock);
	v->link = k->vigils_last;
	*k->vigils_last = v;
	k->vigils_last = &v->next;
	for (uint32_t i = 0; i < n && !news; i++)
		news = !waits_for(k, watched[i].who);
	news = news && k->waits;
	pthread_mutex_unlock(&k->lock);
	if (news)
		ring(k);
	return v;
}

uint64_t
ist__vigil_memory(const struct ist__vigil *v)
{
	return v ? sizeof(*v) + v->n * sizeof(*v->watched) : 0;
}

void
ist__vigil_end(struct ist__vigil *v)
{
	struct ist__keeper *k;
	bool news = false;

	if (!v)
		return;
	k = v->life->keeper;
	pthread_mutex_lock(&k->lock);
	*v->link = v->next;
	if (v->next)
		v->next->link = v->link;
	else
		k->vigils_last = v->link;
	for (uint32_t i = 1; i < k->n_awaited; i++)
		if (k->awaited[i] >= v->watched && k->awaited[i] < v->watched + v->n) {
			news = true; /* it may be waited for by way of others */
			k->awaited[i] = k->awaited[--k->n_awaited];
			i--;
		}
	pthread_mutex_unlock(&k->lock);
	if (news)
		ring(k);
	ist__free(v->life->ctx, v->watched);
	ist__free(v->life->ctx, v);
}

enum ist__alive
ist__life_look(struct ist__life *life, uint32_t i)
{
	struct slot *s = &life->seg->slots[i];
	unsigned held = atomic_load(&s->held);
	int rc;

	if (held == 3)
		return IST__ALIVE_DEAD;
	if (held == 0)
		return IST__ALIVE_YES; /* it has not come this far; then its connections tell */
	if (held == 2)
		return IST__ALIVE_LEFT; /* its life thread may not have let go yet */
	rc = pthread_mutex_trylock(&s->mutex);
	if (rc == EBUSY)
		return IST__ALIVE_YES;
	if (rc == 0 || rc == EOWNERDEAD)
		pthread_mutex_unlock(&s->mutex); /* not made consistent */
	if (atomic_load(&s->held) == 2)
		return IST__ALIVE_LEFT; /* else it is dead: a living one has it while held is 1 */
	atomic_store(&s->held, 3);
	return IST__ALIVE_DEAD;
}

/* ---- a vote of all ---- */

enum ist__outcome
ist__life_outcome(struct ist__life *life)
{
	return atomic_load(&life->seg->outcome);
}

enum ist__outcome
ist__life_settle(struct ist__life *life, enum ist__outcome wish, bool *first)
{
	unsigned was = IST__OPEN;

	*first = atomic_compare_exchange_strong(&life->seg->outcome, &was, (unsigned)wish);
	return *first ? wish : (enum ist__outcome)was;
}

bool
ist__life_vote(struct ist__life *life)
{
	bool first;

	atomic_store(&life->seg->slots[life->mine].yes, 1);
	for (uint32_t i = 0; i < life->n; i++)
		if (!ist__life_voted(life, i))
			return false; /* then that one will see that all have */
	ist__life_settle(life, IST__ALL_YES, &first);
	return first;
}

bool
ist__life_voted(struct ist__life *life, uint32_t i)
{
	return atomic_load(&life->seg->slots[i].yes) == 1;
}

void
ist__life_sleeps(struct ist__life *life)
{
	atomic_store(&life->seg->slots[life->mine].asleep, 1);
}

bool
ist__life_asleep(struct ist__life *life, uint32_t i)
{
	return atomic_load(&life->seg->slots[i].asleep) == 1;
}

void
ist__life_free(struct ist__life *life)
{
	if (!life || __atomic_sub_fetch(&life->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	if (!life->keeper || ist__life_await_hold(life, NULL)) {
		unmap(life);
		return;
	}
	atomic_store(&life->seg->slots[life->mine].held, 2);
	hand_in(life->keeper, life, LEAVE);
}
