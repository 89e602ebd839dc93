/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_nccl.c - a libnccl.so.2 for tests without a GPU. Communicators between real processes (and threads) over shared memory;
 * buffers are host memory. What a call puts on a stream runs there, by the device double's cuLaunchHostFunc: later, on
 * another thread, for as long as its peers need. A call that is forbidden ends the process with a word on stderr.
 *
 * Forbidden: two threads inside one communicator, or issuing on two of one device, at once; any call but GetAsyncError, Abort
 * and Destroy while one is in progress; GroupEnd without GroupStart; a communicator after its end; at exit, communicators
 * and ids that were never ended or used (FAKE_NCCL_LEAKS=1 allows them).
 *
 * fake_nccl_left says how many communicators and ids there are that nobody has ended or used, and how many groups of operations
 * have begun on a stream and are not over.
 *
 * Environment, read at each use:
 *   FAKE_NCCL_VERSION   version code, 22809; of the library built with FAKE_NCCL_OLD, which has nothing that came after 2.19, 21903.
 *                       Below 22803 gather, scatter and all-to-all are forbidden
 *   FAKE_NCCL_POLLS     how often a call says InProgress before it is done, 3
 *   FAKE_NCCL_TELLS     1: a peer whose process has died is a remote error; else, as over NVLink, nothing happens
 *   FAKE_NCCL_ABORT     "hangs": Abort never returns; "stuck": it returns, and what is on streams stays there
 *   FAKE_NCCL_STOP      bytes of a message after which this process goes no further with it, until an abort
 *   FAKE_NCCL_FINALIZE  "waits": Finalize is in progress until all ranks have called it
 *   FAKE_NCCL_FAIL      CALL=RESULT, such as init=3: that call (id, init, group, ready, poll) answers so
 * Messages that don't fit each other wait for ever, as they may in the real one.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fake_sum.h"

#define API __attribute__((visibility("default")))
#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* the vendor's header would have them */

enum { RANKS = 16, RING = 1 << 20, OK = 0, REMOTE = 6, IN_PROGRESS = 7, INTERNAL = 3, BAD_ARGUMENT = 4, BAD_USAGE = 5 };
enum kind { SEND, RECV, BROADCAST, GATHER_ALL, REDUCE_ALL, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER };

typedef struct { char bytes[128]; } id_t_; /* by value, as in the real one */

struct ring {
	_Alignas(64) _Atomic uint64_t head; /* bytes written, ever */
	_Alignas(64) _Atomic uint64_t tail; /* bytes read, ever */
	uint8_t data[RING];
};

struct room {
	_Atomic uint32_t n, joined, finalized;
	_Atomic int32_t pid[RANKS], device[RANKS];
	_Atomic uint32_t taken[RANKS];
	struct ring ring[RANKS][RANKS]; /* [from][to] */
};

struct op {
	enum kind kind;
	const char *src;
	char *dst;
	size_t count;
	int type, reduce, root;
	struct comm *comm;
	void *stream;
};

struct kernel {
	struct comm *comm;
	size_t n;
	struct op *ops;
};

struct comm {
	uint32_t magic; /* LIVE or DEAD; never freed */
	struct comm *next;
	struct room *room;
	uint32_t rank, n;
	int device;
	_Atomic uint32_t inside, abort, dead;
	_Atomic int async;   /* an error that stays */
	int polls;           /* left, of what is in progress; 0: nothing is */
	bool joining, ended, asleep;
	_Atomic uint32_t running;
	struct kernel *wait; /* to be put on its stream */
};
enum { LIVE = 0x4c495645, DEAD = 0x44454144 };

static struct {
	pthread_mutex_t lock;
	struct comm *comms;
	_Atomic int live, ids, running;
	_Atomic uint32_t issuing[64]; /* by device */
	int fds[256];
	int n_fds;
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Of a thread: what it has said since GroupStart. */
struct group {
	uint32_t depth;
	size_t n, room;
	struct op *ops;
	int failed;
};

/* ---- words and wishes ---- */

#ifdef FAKE_NCCL_OLD
enum { VERSION = 21903 };
#else
enum { VERSION = 22809 };
#endif

static void
forbidden(const char *what)
{
	fprintf(stderr, "fake nccl: forbidden: %s\n", what);
	fflush(stderr);
	abort();
}

static int
number(const char *name, int fallback)
{
	const char *v = getenv(name);

	return v && *v ? atoi(v) : fallback;
}

static bool
says(const char *name, const char *word)
{
	const char *v = getenv(name);

	return v && !strcmp(v, word);
}

static void
end_group(void *arg)
{
	struct group *g = arg;

	if (g->depth > 0)
		forbidden("a thread ends inside a group");
	free(g->ops);
	free(g);
}

static pthread_key_t group_key;
static pthread_once_t group_once = PTHREAD_ONCE_INIT;

static void
make_key(void)
{
	if (pthread_key_create(&group_key, end_group))
		forbidden("no key left");
}

static struct group *
my_group(void)
{
	struct group *g;

	pthread_once(&group_once, make_key);
	g = pthread_getspecific(group_key);
	if (!g && (g = calloc(1, sizeof(*g))) != NULL)
		pthread_setspecific(group_key, g);
	if (!g)
		forbidden("no memory left");
	return g;
}

/* What FAKE_NCCL_FAIL wants of this call. */
static int
wish(const char *call)
{
	const char *v = getenv("FAKE_NCCL_FAIL");
	size_t n = strlen(call);

	return v && !strncmp(v, call, n) && v[n] == '=' ? atoi(v + n + 1) : OK;
}

/* ---- the device double ---- */

static void *
device_call(const char *name)
{
	void *p = dlsym(RTLD_DEFAULT, name), *h = p ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	p = p || !h ? p : dlsym(h, name);
	if (!p)
		forbidden("there is no device double");
	return p;
}

static int
current_device(void)
{
	int (*get)(int *) = NULL, device = -1;
	void *p = device_call("cuCtxGetDevice");

	memcpy(&get, &p, sizeof(get));
	return get(&device) == 0 ? device : -1;
}

static void
launch(void *stream, void (*run)(void *), void *arg)
{
	int (*put)(void *, void (*)(void *), void *) = NULL;
	void *p = device_call("cuLaunchHostFunc");

	memcpy(&put, &p, sizeof(put));
	if (put(stream, run, arg))
		forbidden("nothing can be put on that stream");
}

/* ---- moving bytes ---- */

/* One way to one peer: a head, then the bytes. */
struct flow {
	bool out, begun, over;
	uint32_t peer;
	enum kind kind;
	char *at;
	size_t left, whole;
};

struct head {
	uint32_t kind, type;
	uint64_t bytes;
};

/* As a device writes: words at once, while somebody may already be looking. */
static void
device_copy(char *to, const uint8_t *from, size_t n)
{
	if (n > 64 || ((uintptr_t)to | n) % 8 != 0) {
		memcpy(to, from, n);
		return;
	}
	for (size_t i = 0; i < n; i += 8) {
		uint64_t word;

		memcpy(&word, from + i, 8);
		__atomic_store_n((uint64_t *)(void *)(to + i), word, __ATOMIC_RELEASE);
	}
}

static size_t
put_some(struct ring *r, const void *from, size_t n)
{
	uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed), room = RING - (head - atomic_load_explicit(&r->tail, memory_order_acquire));

	n = n < room ? n : room;
	for (size_t i = 0; i < n;) {
		size_t at = (head + i) % RING, most = RING - at < n - i ? RING - at : n - i;

		memcpy(r->data + at, (const char *)from + i, most);
		i += most;
	}
	atomic_store_explicit(&r->head, head + n, memory_order_release);
	return n;
}

static size_t
get_some(struct ring *r, void *to, size_t n)
{
	uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed), there = atomic_load_explicit(&r->head, memory_order_acquire) - tail;

	n = n < there ? n : there;
	for (size_t i = 0; i < n;) {
		size_t at = (tail + i) % RING, most = RING - at < n - i ? RING - at : n - i;

		device_copy((char *)to + i, r->data + at, most);
		i += most;
	}
	atomic_store_explicit(&r->tail, tail + n, memory_order_release);
	return n;
}

static bool
begin_out(struct ring *r, struct flow *f)
{
	struct head h = { .kind = f->kind, .bytes = f->whole };

	if (RING - (atomic_load(&r->head) - atomic_load(&r->tail)) < sizeof(h))
		return false;
	put_some(r, &h, sizeof(h));
	return f->begun = true;
}

/* What does not fit stays where it is, and nobody goes on. */
static bool
begin_in(struct ring *r, struct flow *f)
{
	uint64_t tail = atomic_load(&r->tail);
	enum kind want = f->kind == RECV ? SEND : f->kind;
	struct head h;

	if (atomic_load(&r->head) - tail < sizeof(h))
		return false;
	get_some(r, &h, sizeof(h));
	if (h.kind != want || h.bytes != f->whole) {
		atomic_store(&r->tail, tail);
		return false;
	}
	return f->begun = true;
}

static bool
flow_step(struct comm *c, struct flow *f, size_t stop)
{
	struct ring *r = f->out ? &c->room->ring[c->rank][f->peer] : &c->room->ring[f->peer][c->rank];
	size_t n;

	if (!f->begun && !(f->out ? begin_out(r, f) : begin_in(r, f)))
		return false;
	n = stop && f->whole > stop ? f->left - (f->whole - stop) : f->left;
	n = f->out ? put_some(r, f->at, n) : get_some(r, f->at, n);
	f->at += n;
	f->left -= n;
	f->over = f->left == 0;
	return n > 0 || f->over;
}

/* A wait that is over when the others say so. */
static bool
give_way(struct comm *c, uint32_t *idle)
{
	if ((*idle)++ < 200)
		sched_yield();
	else
		nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
	return !atomic_load(&c->abort);
}

/* All of them, those to one peer in their order. False: aborted. */
static bool
run_flows(struct comm *c, struct flow *flows, size_t n)
{
	size_t stop = (size_t)number("FAKE_NCCL_STOP", 0);
	uint32_t idle = 0;

	for (size_t left = n; left > 0;) {
		uint64_t seen[2] = { 0, 0 };
		bool moved = false;

		for (size_t i = 0; i < n; i++) {
			struct flow *f = &flows[i];
			uint64_t bit = UINT64_C(1) << f->peer;

			if (f->over || seen[f->out] & bit)
				continue;
			moved = flow_step(c, f, stop) || moved;
			left -= f->over;
			if (!f->over)
				seen[f->out] |= bit;
		}
		if (moved)
			idle = 0;
		else if (left > 0 && !give_way(c, &idle))
			return false;
	}
	return !atomic_load(&c->abort);
}

static struct flow
flow(bool out, uint32_t peer, enum kind kind, const void *at, size_t bytes)
{
	return (struct flow){ .out = out, .peer = peer, .kind = kind, .at = (char *)(uintptr_t)at, .left = bytes, .whole = bytes };
}

/* ---- collectives ---- */

static void *
memory(size_t bytes)
{
	void *p = malloc(bytes ? bytes : 1);

	if (!p)
		forbidden("no memory left");
	return p;
}

/* Everybody's part for us, in order of ranks, then summed up. */
static bool
run_reduction(struct comm *c, const struct op *o)
{
	size_t n = o->count * fake_bytes(o->type), k = 0;
	char *parts = memory(n * c->n);
	struct flow f[2 * RANKS];
	bool ok;

	for (uint32_t r = 0; r < c->n; r++) {
		const char *mine = o->src + (o->kind == REDUCE_SCATTER ? r * n : 0);

		if (r == c->rank) {
			memcpy(parts + r * n, mine, n);
			continue;
		}
		f[k++] = flow(true, r, o->kind, mine, n);
		f[k++] = flow(false, r, o->kind, parts + r * n, n);
	}
	ok = run_flows(c, f, k);
	if (ok)
		memcpy(o->dst, parts, n);
	for (uint32_t r = 1; ok && r < c->n; r++)
		fake_reduce(o->type, o->reduce, o->dst, parts + r * n, o->count);
	free(parts);
	return ok;
}

static bool
run_move(struct comm *c, const struct op *o)
{
	size_t n = o->count * fake_bytes(o->type), k = 0;
	bool root = o->root == (int)c->rank, rooted = o->kind == BROADCAST || o->kind == SCATTER || o->kind == GATHER;
	bool gives = o->kind == GATHER || !rooted || root, takes = o->kind != GATHER || root;
	struct flow f[2 * RANKS];

	for (uint32_t r = 0; r < c->n; r++) {
		const char *from = o->src + (o->kind == SCATTER || o->kind == ALL_TO_ALL ? r * n : 0);
		char *to = o->dst + (o->kind == GATHER || o->kind == GATHER_ALL || o->kind == ALL_TO_ALL ? r * n : 0);

		if (r == c->rank) {
			if (gives && takes && from != to)
				memmove(to, from, n);
			continue;
		}
		if (gives && (o->kind != GATHER || (int)r == o->root))
			f[k++] = flow(true, r, o->kind, from, n);
		if (takes && ((o->kind != BROADCAST && o->kind != SCATTER) || (int)r == o->root))
			f[k++] = flow(false, r, o->kind, to, n);
	}
	return run_flows(c, f, k);
}

/* Messages of one group: none waits for another, but for those before it to the same peer. */
static bool
run_pairs(struct comm *c, const struct kernel *k)
{
	struct flow *f = memory(k->n * sizeof(*f));
	size_t n = 0;
	bool ok;

	for (size_t i = 0; i < k->n; i++) {
		const struct op *o = &k->ops[i];

		if (o->kind == SEND || o->kind == RECV)
			f[n++] = flow(o->kind == SEND, (uint32_t)o->root, o->kind, o->kind == SEND ? o->src : o->dst, o->count * fake_bytes(o->type));
	}
	ok = run_flows(c, f, n);
	free(f);
	return ok;
}

static void
kernel_main(void *arg)
{
	struct kernel *k = arg;
	struct comm *c = k->comm;
	bool ok = true;

	atomic_fetch_add(&all.running, 1);
	for (size_t i = 0; i < k->n && ok; i++)
		if (k->ops[i].kind == REDUCE_ALL || k->ops[i].kind == REDUCE_SCATTER)
			ok = run_reduction(c, &k->ops[i]);
		else if (k->ops[i].kind != SEND && k->ops[i].kind != RECV)
			ok = run_move(c, &k->ops[i]);
	if (ok)
		ok = run_pairs(c, k);
	while (!ok && says("FAKE_NCCL_ABORT", "stuck"))
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	free(k->ops);
	free(k);
	atomic_fetch_sub(&all.running, 1);
	atomic_fetch_sub(&c->running, 1);
}

/* ---- communicators ---- */

static void
enter(struct comm *c, bool any_time)
{
	uint32_t none = 0;

	if (!c || (c->magic != LIVE && c->magic != DEAD))
		forbidden("this is no communicator");
	if (c->magic == DEAD)
		forbidden("this communicator has been ended");
	if (!atomic_compare_exchange_strong(&c->inside, &none, 1))
		forbidden("two threads inside one communicator");
	if (!any_time && c->polls > 0)
		forbidden("another call is in progress on this communicator");
}

static void
leave(struct comm *c)
{
	atomic_store(&c->inside, 0);
}

static bool
is_dead(int32_t pid)
{
	char path[64], text[256];
	FILE *f;
	bool dead = true;
	const char *at;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "re");
	if (f && fgets(text, sizeof(text), f) && (at = strrchr(text, ')')) != NULL)
		dead = at[2] == 'Z' || at[2] == 'X';
	if (f)
		fclose(f);
	return dead;
}

static void
look_for_the_dead(struct comm *c)
{
	for (uint32_t r = 0; r < c->n && says("FAKE_NCCL_TELLS", "1"); r++)
		if (is_dead(atomic_load(&c->room->pid[r])))
			atomic_store(&c->async, REMOTE);
}

/* The room belongs to its id: a descriptor of whoever made it, held until all are in. */
struct id {
	uint32_t magic;
	int32_t pid, fd;
	uint32_t reserved;
};
enum { ID = 0x66616b65 };

static struct room *
open_room(const struct id *id)
{
	char path[64];
	struct room *room;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", id->pid, id->fd);
	fd = id->magic == ID ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return NULL;
	room = mmap(NULL, sizeof(*room), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return room == MAP_FAILED ? NULL : room;
}

/* The maker's descriptor goes when nobody will ask for it any more. */
static void
drop_id(const struct comm *c)
{
	pthread_mutex_lock(&all.lock);
	for (int i = 0; i < all.n_fds; i++) {
		struct stat a;
		struct room *room = mmap(NULL, sizeof(*room), PROT_READ | PROT_WRITE, MAP_SHARED, all.fds[i], 0);
		bool full = room != MAP_FAILED && atomic_load(&room->joined) == atomic_load(&room->n) && atomic_load(&room->n) > 0;

		if (room != MAP_FAILED)
			munmap(room, sizeof(*room));
		if (full && !fstat(all.fds[i], &a)) {
			close(all.fds[i]);
			all.fds[i--] = all.fds[--all.n_fds];
			atomic_fetch_sub(&all.ids, 1);
		}
	}
	pthread_mutex_unlock(&all.lock);
	(void)c;
}

static int
join(struct comm *c, const struct id *id, int n, int rank)
{
	uint32_t none = 0, size = (uint32_t)n;

	c->room = open_room(id);
	if (!c->room)
		return 2;
	if (!atomic_compare_exchange_strong(&c->room->n, &none, size) && none != size)
		forbidden("ranks disagree on their number");
	none = 0;
	if (!atomic_compare_exchange_strong(&c->room->taken[rank], &none, 1))
		forbidden("a rank came twice");
	atomic_store(&c->room->pid[rank], getpid());
	atomic_store(&c->room->device[rank], c->device);
	atomic_fetch_add(&c->room->joined, 1);
	return OK;
}

static bool
shares_a_device(const struct comm *c)
{
	for (uint32_t r = 0; r < c->n; r++)
		if (r != c->rank && atomic_load(&c->room->device[r]) == c->device)
			return true;
	return false;
}

/* One look at what is in progress. */
static void
poll_comm(struct comm *c)
{
	int bad = wish(c->joining ? "ready" : "poll");

	look_for_the_dead(c);
	if (bad)
		atomic_store(&c->async, bad);
	if (c->polls == 0 || atomic_load(&c->async))
		return;
	if (c->joining && atomic_load(&c->room->joined) < c->n)
		return;
	if (c->ended && says("FAKE_NCCL_FINALIZE", "waits") && atomic_load(&c->room->finalized) < c->n)
		return;
	if (--c->polls > 0)
		return;
	if (c->joining && shares_a_device(c))
		atomic_store(&c->async, BAD_USAGE);
	c->joining = false;
	drop_id(c);
	if (c->wait) {
		atomic_fetch_add(&c->running, 1);
		launch(c->wait->ops[0].stream, kernel_main, c->wait);
		c->wait = NULL;
	}
}

static int
begin(struct comm *c)
{
	c->polls = 1 + number("FAKE_NCCL_POLLS", 3);
	return IN_PROGRESS;
}

API int
ncclGetVersion(int *version)
{
	*version = number("FAKE_NCCL_VERSION", VERSION);
	return OK;
}

API const char *
ncclGetErrorString(int result)
{
	static const char *const words[] = { "no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument",
		"invalid usage", "remote process exited or there was a network error", "NCCL operation in progress" };

	return result >= 0 && result < 8 ? words[result] : "unknown result code";
}

API const char *
ncclGetLastError(struct comm *c)
{
	return c && atomic_load(&c->async) == REMOTE ? "peer is gone (double)" : "";
}

API int
ncclGetUniqueId(id_t_ *out)
{
	struct id id = { .magic = ID, .pid = getpid() };
	int bad = wish("id");

	if (bad)
		return bad;
	id.fd = memfd_create("fake-nccl", MFD_CLOEXEC);
	if (id.fd < 0 || ftruncate(id.fd, sizeof(struct room)))
		return 2;
	memset(out, 0, sizeof(*out));
	memcpy(out->bytes, &id, sizeof(id));
	pthread_mutex_lock(&all.lock);
	if (all.n_fds == 256)
		forbidden("256 ids are open");
	all.fds[all.n_fds++] = id.fd;
	atomic_fetch_add(&all.ids, 1);
	pthread_mutex_unlock(&all.lock);
	return OK;
}

struct config {
	size_t size;
	unsigned magic, version;
	int blocking, cga, min_ctas, max_ctas;
};

API int
ncclCommInitRankConfig(struct comm **out, int n, id_t_ by_value, int rank, const struct config *config)
{
	struct comm *c;
	struct id id;
	int bad = wish("init"), rc;

	memcpy(&id, by_value.bytes, sizeof(id));
	if (config->magic != 0xcafebeefu || config->blocking != 0 || config->max_ctas == 0)
		forbidden("a configuration that is not filled in, or a blocking one");
	if (n < 1 || n > RANKS || rank < 0 || rank >= n)
		return BAD_ARGUMENT;
	if (bad)
		return bad;
	c = calloc(1, sizeof(*c));
	if (!c)
		return 2;
	c->magic = LIVE;
	c->rank = (uint32_t)rank;
	c->n = (uint32_t)n;
	c->device = current_device();
	if (c->device < 0)
		forbidden("no device is current");
	rc = join(c, &id, n, rank);
	if (rc) {
		free(c);
		return rc;
	}
	c->joining = true;
	pthread_mutex_lock(&all.lock);
	c->next = all.comms;
	all.comms = c;
	pthread_mutex_unlock(&all.lock);
	atomic_fetch_add(&all.live, 1);
	*out = c;
	return begin(c);
}

API int
ncclCommGetAsyncError(struct comm *c, int *result)
{
	enter(c, true);
	poll_comm(c);
	*result = atomic_load(&c->async) ? atomic_load(&c->async) : c->polls > 0 ? IN_PROGRESS : OK;
	leave(c);
	return OK;
}

static void
bury(struct comm *c)
{
	if (c->wait) {
		free(c->wait->ops);
		free(c->wait);
	}
	c->wait = NULL;
	while (atomic_load(&c->running) && !says("FAKE_NCCL_ABORT", "stuck"))
		nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
	if (!atomic_load(&c->running))
		munmap(c->room, sizeof(*c->room));
	c->magic = DEAD;
	atomic_fetch_sub(&all.live, 1);
}

API int
ncclCommAbort(struct comm *c)
{
	enter(c, true);
	while (says("FAKE_NCCL_ABORT", "hangs"))
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	atomic_store(&c->abort, 1);
	bury(c);
	drop_id(c);
	leave(c);
	return OK;
}

API int
ncclCommFinalize(struct comm *c)
{
	enter(c, false);
	if (c->ended)
		forbidden("finalized twice");
	c->ended = true;
	atomic_fetch_add(&c->room->finalized, 1);
	leave(c);
	return begin(c);
}

API int
ncclCommDestroy(struct comm *c)
{
	enter(c, true);
	if (!c->ended)
		forbidden("destroyed before it was finalized");
	bury(c);
	leave(c);
	return OK;
}

#ifndef FAKE_NCCL_OLD
API int
ncclCommSuspend(struct comm *c, int flags)
{
	enter(c, false);
	if (flags != 1 || c->asleep || atomic_load(&c->running))
		forbidden("suspended twice, or while something runs");
	c->asleep = true;
	leave(c);
	return begin(c);
}

API int
ncclCommResume(struct comm *c)
{
	enter(c, false);
	if (!c->asleep)
		forbidden("resumed and not suspended");
	c->asleep = false;
	leave(c);
	return begin(c);
}
#endif

/* ---- issuing ---- */

API int
ncclGroupStart(void)
{
	my_group()->depth++;
	return OK;
}

static void
hold_device(struct comm *c, uint32_t want)
{
	uint32_t old = !want;

	if (!atomic_compare_exchange_strong(&all.issuing[c->device % 64], &old, want))
		forbidden("two threads issue on one device");
}

API int
ncclGroupEnd(void)
{
	struct group *g = my_group();
	struct kernel *k;
	struct comm *c;
	int failed = g->failed, bad = wish("group");

	if (g->depth == 0)
		forbidden("GroupEnd without GroupStart");
	if (--g->depth > 0 || g->n == 0)
		return OK;
	c = g->ops[0].comm;
	enter(c, false);
	hold_device(c, 1);
	k = memory(sizeof(*k));
	*k = (struct kernel){ .comm = c, .n = g->n, .ops = g->ops };
	g->ops = NULL;
	g->n = g->room = 0;
	g->failed = OK;
	c->wait = k;
	failed = failed ? failed : bad;
	if (!failed)
		failed = begin(c);
	else
		atomic_store(&c->async, failed);
	hold_device(c, 0);
	leave(c);
	return failed;
}

static int
add(struct op o)
{
	struct group *g = my_group();
	int rc = OK;

	enter(o.comm, false);
	if (o.comm->asleep || o.comm->ended)
		forbidden("an operation on a communicator that is suspended or finalized");
	for (size_t i = 0; i < g->n; i++)
		if (g->ops[i].comm != o.comm)
			forbidden("the double takes one communicator a group");
	if (g->depth == 0)
		forbidden("an operation outside of a group");
	if (g->n == g->room) {
		g->room = g->room ? 2 * g->room : 16;
		g->ops = realloc(g->ops, g->room * sizeof(o));
		if (!g->ops)
			forbidden("no memory left");
	}
	if (o.root < 0 || o.root >= (int)o.comm->n || fake_bytes(o.type) == 0 || (o.type > 9 && number("FAKE_NCCL_VERSION", VERSION) < 22400))
		rc = g->failed = BAD_ARGUMENT;
	g->ops[g->n++] = o;
	leave(o.comm);
	return rc;
}

API int
ncclSend(const void *src, size_t n, int type, int peer, struct comm *c, void *stream)
{
	return add((struct op){ .kind = SEND, .src = src, .count = n, .type = type, .root = peer, .comm = c, .stream = stream });
}

API int
ncclRecv(void *dst, size_t n, int type, int peer, struct comm *c, void *stream)
{
	return add((struct op){ .kind = RECV, .dst = dst, .count = n, .type = type, .root = peer, .comm = c, .stream = stream });
}

API int
ncclBroadcast(const void *src, void *dst, size_t n, int type, int root, struct comm *c, void *stream)
{
	return add((struct op){ .kind = BROADCAST, .src = src, .dst = dst, .count = n, .type = type, .root = root, .comm = c, .stream = stream });
}

API int
ncclAllGather(const void *src, void *dst, size_t n, int type, struct comm *c, void *stream)
{
	return add((struct op){ .kind = GATHER_ALL, .src = src, .dst = dst, .count = n, .type = type, .comm = c, .stream = stream });
}

API int
ncclAllReduce(const void *src, void *dst, size_t n, int type, int reduce, struct comm *c, void *stream)
{
	return add((struct op){ .kind = REDUCE_ALL, .src = src, .dst = dst, .count = n, .type = type, .reduce = reduce, .comm = c, .stream = stream });
}

API int
ncclReduceScatter(const void *src, void *dst, size_t n, int type, int reduce, struct comm *c, void *stream)
{
	return add((struct op){ .kind = REDUCE_SCATTER, .src = src, .dst = dst, .count = n, .type = type, .reduce = reduce, .comm = c, .stream = stream });
}

API void
fake_nccl_left(int *comms, int *ids, int *running)
{
	*comms = atomic_load(&all.live);
	*ids = atomic_load(&all.ids);
	*running = atomic_load(&all.running);
}

#ifndef FAKE_NCCL_OLD
static void
need_2_28(void)
{
	if (number("FAKE_NCCL_VERSION", VERSION) < 22803)
		forbidden("gather, scatter and all-to-all came with 2.28.3");
}

API int
ncclAlltoAll(const void *src, void *dst, size_t n, int type, struct comm *c, void *stream)
{
	need_2_28();
	return add((struct op){ .kind = ALL_TO_ALL, .src = src, .dst = dst, .count = n, .type = type, .comm = c, .stream = stream });
}

API int
ncclGather(const void *src, void *dst, size_t n, int type, int root, struct comm *c, void *stream)
{
	need_2_28();
	return add((struct op){ .kind = GATHER, .src = src, .dst = dst, .count = n, .type = type, .root = root, .comm = c, .stream = stream });
}

API int
ncclScatter(const void *src, void *dst, size_t n, int type, int root, struct comm *c, void *stream)
{
	need_2_28();
	return add((struct op){ .kind = SCATTER, .src = src, .dst = dst, .count = n, .type = type, .root = root, .comm = c, .stream = stream });
}
#endif

__attribute__((destructor)) static void
count_what_is_left(void)
{
	if (says("FAKE_NCCL_LEAKS", "1"))
		return;
	if (atomic_load(&all.live))
		forbidden("communicators that were never ended, at exit");
	if (atomic_load(&all.ids))
		forbidden("ids that were never used, at exit");
}
