/* SPDX-License-Identifier: Apache-2.0
 *
 * faults_test.c - each kind of system call fails at each of its moments in turn. Three processes live a group's life: forming,
 * byte strings, bulk, a vote, a split, an update into a folder and into memory, the end; in one of them the n-th call of
 * a kind fails, for n = 1, 2, ... until there is no n-th. Each time all come to an end long before any deadline, the
 * faulty one is well or says what failed, the others are well or name it, no file is torn, and after that the same processes make a
 * group and an update that work, and nothing is left behind. What heals by itself (EINTR, ...) nobody may notice.
 *
 * Strided; "faults_test long" (make faults) takes every moment; "faults_test ROW VICTIM tcp|auto N" shows one.
 */
#include "ckpt_help.h"
#include "faults.h"
#include "ranks.h"

#include <netdb.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

enum { SIZE = 3, SOURCE = 0, FOLDER = 1, MEMORY = 2, GUARD_S = 60, DEADLINE_S = 30, SOON_S = 5, GRACE_MS = 3000, MOST = 4000, SPARSE = 60, BIG = 300000, SMALL = 100 };

enum manner {
	WANT,      /* something is missing: told with one of the row's codes, or got over */
	STAYS,     /* the same, and from the n-th on all fail */
	BROKEN,    /* a connection: as WANT, or the member at its other end is lost, or waits for another rank 0 until its deadline */
	HEALS,     /* nobody notices */
};

struct row {
	const char *name;
	enum fault_call call;
	int sys;
	enum manner manner;
	ist_err codes[4];
};

static const struct row rows[] = {
	{ "memory", FAULT_MEMORY, ENOMEM, WANT, { IST_NO_MEMORY } },
	{ "mmap", FAULT_MMAP, ENOMEM, WANT, { IST_NO_MEMORY } },
	{ "memfd", FAULT_MEMFD, EMFILE, WANT, { IST_LIMIT } },
	{ "memfd-mem", FAULT_MEMFD, ENOMEM, WANT, { IST_NO_MEMORY } },
	{ "size", FAULT_SIZE, ENOSPC, WANT, { IST_NO_SPACE, IST_NO_MEMORY } },
	{ "reserve", FAULT_RESERVE, ENOSPC, WANT, { IST_NO_SPACE, IST_NO_MEMORY } },
	{ "reserve-intr", FAULT_RESERVE, EINTR, HEALS, { 0 } },
	{ "seal", FAULT_SEAL, EPERM, WANT, { IST_DENIED } },
	{ "eventfd", FAULT_EVENTFD, EMFILE, WANT, { IST_LIMIT } },
	{ "eventfd-mem", FAULT_EVENTFD, ENOMEM, WANT, { IST_NO_MEMORY } },
	{ "timerfd", FAULT_TIMERFD, EMFILE, WANT, { IST_LIMIT } },
	{ "timerfd-mem", FAULT_TIMERFD, ENOMEM, WANT, { IST_NO_MEMORY } },
	{ "epoll", FAULT_EPOLL, EMFILE, WANT, { IST_LIMIT } },
	{ "epoll-mem", FAULT_EPOLL, ENOMEM, WANT, { IST_NO_MEMORY } },
	{ "watch-mem", FAULT_WATCH, ENOMEM, WANT, { IST_NO_MEMORY } },
	{ "watch-full", FAULT_WATCH, ENOSPC, WANT, { IST_LIMIT } },
	{ "pair", FAULT_PAIR, EMFILE, WANT, { IST_LIMIT } },
	{ "pair-mem", FAULT_PAIR, ENOBUFS, WANT, { IST_NO_MEMORY } },
	{ "socket", FAULT_SOCKET, EMFILE, WANT, { IST_LIMIT } },
	{ "socket-mem", FAULT_SOCKET, ENOBUFS, WANT, { IST_NO_MEMORY } },
	{ "bind", FAULT_BIND, EADDRINUSE, WANT, { IST_LIMIT, IST_CONFLICT } },
	{ "listen", FAULT_LISTEN, EADDRINUSE, WANT, { IST_LIMIT, IST_CONFLICT } },
	{ "accept", FAULT_ACCEPT, EMFILE, WANT, { IST_LIMIT } },
	{ "accept-mem", FAULT_ACCEPT, ENOBUFS, HEALS, { 0 } },
	{ "accept-gone", FAULT_ACCEPT, ECONNABORTED, HEALS, { 0 } },
	{ "accept-intr", FAULT_ACCEPT, EINTR, HEALS, { 0 } },
	{ "connect", FAULT_CONNECT, EADDRNOTAVAIL, WANT, { IST_IO, IST_LIMIT } },
	{ "connect-refused", FAULT_CONNECT, ECONNREFUSED, BROKEN, { IST_IO } },
	{ "connect-mem", FAULT_CONNECT, ENOMEM, WANT, { IST_NO_MEMORY } },
	{ "connect-again", FAULT_CONNECT_HERE, EAGAIN, HEALS, { 0 } },
	{ "getsockopt", FAULT_GETSOCKOPT, ENOBUFS, WANT, { IST_NO_MEMORY, IST_IO } },
	{ "setsockopt", FAULT_SETSOCKOPT, ENOBUFS, WANT, { IST_NO_MEMORY, IST_IO } },
	{ "name", FAULT_NAME, ENOBUFS, WANT, { IST_NO_MEMORY } },
	{ "thread", FAULT_THREAD, EAGAIN, WANT, { IST_LIMIT } },
	{ "open", FAULT_OPEN, EMFILE, WANT, { IST_LIMIT } },
	{ "open-denied", FAULT_OPEN, EACCES, WANT, { IST_DENIED, IST_IO } },
	{ "open-read-only", FAULT_OPEN, EROFS, WANT, { IST_DENIED } },
	{ "open-intr", FAULT_OPEN, EINTR, HEALS, { 0 } },
	{ "read", FAULT_READ, EIO, WANT, { IST_IO } },
	{ "read-intr", FAULT_READ, EINTR, HEALS, { 0 } },
	{ "write", FAULT_WRITE, EIO, WANT, { IST_IO } },
	{ "write-full", FAULT_WRITE, ENOSPC, WANT, { IST_NO_SPACE } },
	{ "write-intr", FAULT_WRITE, EINTR, HEALS, { 0 } },
	{ "sync", FAULT_SYNC, EIO, WANT, { IST_IO } },
	{ "sync-full", FAULT_SYNC, ENOSPC, WANT, { IST_NO_SPACE } },
	{ "rename", FAULT_RENAME, EIO, WANT, { IST_IO } },
	{ "rename-unknown", FAULT_RENAME, EINVAL, WANT, { IST_IO, IST_UNSUPPORTED } },
	{ "folder", FAULT_FOLDER, ENOSPC, WANT, { IST_NO_SPACE } },
	{ "remove", FAULT_REMOVE, EIO, WANT, { IST_IO } },
	{ "mode", FAULT_MODE, EPERM, WANT, { IST_DENIED } },
	{ "stat", FAULT_STAT, EIO, WANT, { IST_IO } },
	{ "path", FAULT_PATH, ENOMEM, WANT, { IST_NO_MEMORY } },
	{ "send", FAULT_SEND, EPIPE, BROKEN, { IST_IO } },
	{ "send-mem", FAULT_SEND, ENOMEM, HEALS, { 0 } },
	{ "send-bufs", FAULT_SEND, ENOBUFS, HEALS, { 0 } },
	{ "send-intr", FAULT_SEND, EINTR, HEALS, { 0 } },
	{ "receive", FAULT_RECEIVE, ECONNRESET, BROKEN, { IST_IO } },
	{ "receive-intr", FAULT_RECEIVE, EINTR, HEALS, { 0 } },
	{ "poll-intr", FAULT_POLL, EINTR, HEALS, { 0 } },
	{ "poll-mem", FAULT_POLL, ENOMEM, HEALS, { 0 } },
	{ "dup", FAULT_DUP, EMFILE, WANT, { IST_LIMIT } },
	{ "lock", FAULT_LOCK, ENOLCK, WANT, { IST_IO } },
	{ "access", FAULT_ACCESS, EACCES, WANT, { IST_DENIED } },
	{ "advise", FAULT_ADVISE, EAGAIN, HEALS, { 0 } },
	{ "cpus", FAULT_CPUS, EINVAL, HEALS, { 0 } },
	{ "random-again", FAULT_RANDOM, EAGAIN, WANT, { IST_IO } },
	{ "interfaces", FAULT_INTERFACES, ENOMEM, WANT, { IST_NO_MEMORY } },
	{ "resolve", FAULT_RESOLVE, EAI_AGAIN, HEALS, { 0 } },
	{ "resolve-mem", FAULT_RESOLVE, EAI_MEMORY, WANT, { IST_NO_MEMORY } },
	{ "next", FAULT_NEXT, EIO, WANT, { IST_IO } },
	{ "lock-intr", FAULT_LOCK, EINTR, HEALS, { 0 } },
	{ "look", FAULT_LOOK, ENOSYS, HEALS, { 0 } },
	{ "shut", FAULT_SHUT, ENOTCONN, HEALS, { 0 } },
	{ "read-short", FAULT_READ, FAULT_SHORT, HEALS, { 0 } },
	{ "write-short", FAULT_WRITE, FAULT_SHORT, HEALS, { 0 } },
	{ "open-stays", FAULT_OPEN, EIO, STAYS, { IST_IO } },
	{ "read-stays", FAULT_READ, EIO, STAYS, { IST_IO } },
	{ "stat-stays", FAULT_STAT, EIO, STAYS, { IST_IO } },
	{ "write-full-stays", FAULT_WRITE, ENOSPC, STAYS, { IST_NO_SPACE } },
	{ "folder-stays", FAULT_FOLDER, ENOSPC, STAYS, { IST_NO_SPACE } },
	{ "lock-stays", FAULT_LOCK, ENOLCK, STAYS, { IST_IO } },
	{ "rename-stays", FAULT_RENAME, EIO, STAYS, { IST_IO } },
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

/* ---- what all see ---- */

struct seen {
	ist_err code;
	uint32_t called_off;      /* it waited for the faulty one in vain */
	uint32_t early;           /* the faulty one: its attempt never began */
	char where[32];
	uint64_t names;           /* ranks, a bit each */
	char detail[400];
};

struct all {
	pthread_barrier_t meeting;
	_Atomic uint32_t over;     /* the faulty one has given up, or is through */
	_Atomic uint32_t early;    /* it did so before it could be heard of */
	_Atomic uint32_t through;  /* there is no n-th call */
	_Atomic uint32_t row, n;   /* of the row at hand, the moment at hand */
	_Atomic uint32_t lives;    /* so far */
	struct seen seen[SIZE];
};

struct play {
	const struct row *row;
	uint32_t n_rows;    /* from there on; more than one: each with a victim and a transport of its own */
	uint32_t victim, transport;
	uint32_t at_row;
	long from, step;
	uint32_t moments;   /* at most; 0: all */
	bool tell;
	char dir[64];
	struct ranks ranks;
};

struct life {
	struct play *p;
	struct all *all;
	uint32_t rank;
	struct ist_env *env;
	struct ist_endpoint *ep;
	struct ist_error err;
	const char *where;
	uint8_t version;    /* every byte of the update */
	bool faulty;        /* while it is, and this is the faulty one */
	bool called_off;
	bool cold;          /* its pool gets nothing beforehand */
	char source[96], dest[96], at[96], shm[64], name[64];
};

/* Whoever never comes is noticed by the parent, which ends them all. */
static void
meet(struct life *l)
{
	int rc = pthread_barrier_wait(&l->all->meeting);

	CHECK(!rc || rc == PTHREAD_BARRIER_SERIAL_THREAD);
}

static ist_err
went(struct life *l, const char *where, ist_err e)
{
	l->where = e ? where : l->where;
	return e;
}

/* ---- the update's content: two tensors of the version's byte ---- */

static uint64_t
file_bytes(uint8_t version, char **out)
{
	char head[256];
	uint64_t n = (uint64_t)snprintf(head, sizeof(head), "{\"a\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]},\"b\":{\"dtype\":\"U8\",\"shape\":[%d],"
		"\"data_offsets\":[%d,%d]}}", BIG, BIG, SMALL, BIG, BIG + SMALL);
	char *at = malloc(8 + n + BIG + SMALL);

	CHECK(at);
	memcpy(at, &n, 8);
	memcpy(at + 8, head, n);
	memset(at + 8 + n, version, BIG + SMALL);
	*out = at;
	return 8 + n + BIG + SMALL;
}

static void
write_source(const struct life *l)
{
	char path[160], *at;
	uint64_t n = file_bytes(l->version, &at);
	FILE *f;

	snprintf(path, sizeof(path), "%s/model.safetensors", l->source);
	CHECK((f = fopen(path, "w")) && fwrite(at, 1, n, f) == n && !fclose(f));
	free(at);
}

/* Is the file whole, and of that version? 0: there is none. */
static bool
holds(const char *path, uint8_t version)
{
	char *want, *at;
	uint64_t n = file_bytes(version, &want);
	FILE *f = fopen(path, "r");
	bool same;

	if (!f) {
		free(want);
		return version == 0;
	}
	at = malloc(n + 1);
	CHECK(at);
	same = fread(at, 1, n + 1, f) == n && !memcmp(at, want, n);
	fclose(f);
	free(at);
	free(want);
	return same;
}

/* Of memory's tensors, in an order and with a header that are the sink's. */
static bool
holds_shm(const struct life *l)
{
	char path[160];
	uint8_t *at = malloc(BIG + SMALL);
	FILE *f;
	bool same = true;

	snprintf(path, sizeof(path), "/dev/shm/%s", l->shm);
	CHECK(at && (f = fopen(path, "r")) && !fseek(f, -(BIG + SMALL), SEEK_END) && fread(at, 1, BIG + SMALL, f) == BIG + SMALL);
	for (uint64_t i = 0; i < BIG + SMALL; i++)
		same &= at[i] == l->version;
	fclose(f);
	free(at);
	return same;
}

static bool
holds_dest(const struct life *l, uint8_t version)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/model.safetensors", l->dest);
	return holds(path, version);
}

/* ---- what is lived through ---- */

/* Whoever waits for one that has given up is called off after a while: long enough to be told of it, if it could tell. */
static ist_err
form(struct life *l, struct ist_group **out)
{
	struct ist_group_args args = { .struct_size = sizeof(args), .rank = l->rank, .size = SIZE, .name = l->name, .at = l->at,
		.timeout_ns = (l->p->row->manner == BROKEN || l->p->row->manner == STAYS ? SOON_S : DEADLINE_S) * IST_NS_PER_S, .no_progress_ns = 10 * IST_NS_PER_S };
	struct ist_req *req = NULL;
	double until = 0;
	uint32_t done = 0;
	ist_err e = ist_group_new_start(l->ep, &args, &req, &l->err);

	if (e) {
		if (l->faulty)
			atomic_store(&l->all->early, 1);
		return e;
	}
	while (!e && !done) {
		(void)ist_req_wait(req, 2 * 1000 * 1000, NULL);
		if (!until && atomic_load(&l->all->over))
			until = now_s() + (atomic_load(&l->all->early) ? 0 : GRACE_MS / 1e3);
		if (until > 0 && now_s() > until && !l->called_off) {
			l->called_off = true;
			(void)ist_req_cancel(req);
		}
		e = ist_req_test(req, &done, &l->err);
	}
	if (!e)
		e = ist_req_group(req, out, &l->err);
	ist_req_free(req);
	return e;
}

static ist_err
use_bulk(struct life *l, struct ist_group *g)
{
	enum { BYTES = 1 << 20 };
	struct ist_coll_args a = { .struct_size = sizeof(a), .peer = 1, .timeout_ns = DEADLINE_S * IST_NS_PER_S };
	struct ist_req *req = NULL;
	uint8_t *at = malloc(BYTES);
	ist_err e;

	CHECK(at);
	memset(at, l->rank == 1 ? 77 : 0, BYTES);
	a.src = a.dst = (struct ist_buf){ .addr = at, .bytes = BYTES, .device = -1 };
	e = ist_broadcast(g, &a, &req, &l->err);
	if (!e)
		e = ist_req_wait(req, DEADLINE_S * IST_NS_PER_S, &l->err);
	if (req)
		ist_req_free(req);
	if (!e)
		CHECK(at[0] == 77 && at[BYTES - 1] == 77);
	free(at);
	return e;
}

static ist_err
use_split(struct life *l, struct ist_group *g)
{
	static const uint32_t ranks[] = { 2, 1, 0 };
	struct ist_split_args split = { .struct_size = sizeof(split), .n_ranks = SIZE, .ranks = ranks, .name = "half", .timeout_ns = DEADLINE_S * IST_NS_PER_S };
	struct ist_group *child = NULL;
	ist_err e = went(l, "split", ist_group_split(g, &split, &child, &l->err));

	if (!e)
		e = went(l, "child barrier", ist_barrier(child, 0, &l->err));
	if (child)
		ist_group_free(child);
	return e;
}

static ist_err
use_bytes(struct life *l, struct ist_group *g)
{
	struct ist_blob all[SIZE] = { { 0 } }, one = { 0 };
	uint32_t doubt = 0;
	ist_err e = went(l, "all_gather", ist_all_gather_bytes(g, &l->rank, sizeof(l->rank), 0, all, &l->err));

	if (!e) {
		for (uint32_t r = 0; r < SIZE; r++)
			CHECK(all[r].bytes == sizeof(r) && !memcmp(all[r].addr, &r, sizeof(r)));
		ist_blobs_free(g, all, SIZE);
		e = went(l, "broadcast_bytes", ist_broadcast_bytes(g, "more", 4, 2, 0, &one, &l->err));
	}
	if (!e) {
		CHECK(one.bytes == 4 && !memcmp(one.addr, "more", 4));
		ist_blobs_free(g, &one, 1);
		e = went(l, "decide", ist_decide(g, NULL, 0, &doubt, &l->err));
	}
	return e;
}

static ist_err
take_part(struct life *l, struct ist_sync *sync, struct ist_checkpoint **ck, struct ist_sink **sink)
{
	char dest[160];
	ist_err e;

	if (l->rank == SOURCE) {
		e = went(l, "checkpoint_open", ist_checkpoint_open(l->env, l->source, NULL, ck, &l->err));
		return e ? e : went(l, "sync_source", ist_sync_source(sync, *ck, 0, 0, &l->err));
	}
	if (l->rank == MEMORY)
		snprintf(dest, sizeof(dest), "%s%s", l->version & 1 ? "shm:" : "mem:", l->version & 1 ? l->shm : "");
	e = went(l, "sink_open", ist_sink_open(l->env, l->rank == FOLDER ? l->dest : dest, 0, sink, &l->err));
	return e ? e : went(l, "sync_sink", ist_sync_sink(sync, *sink, &l->err));
}

static ist_err
check_memory(struct life *l, struct ist_sink *sink)
{
	struct ist_tensor t = { .struct_size = sizeof(t) };

	if (l->version & 1) {
		CHECK(holds_shm(l));
		return IST_OK;
	}
	CHECK_ERR(IST_OK, ist_sink_tensor(sink, "a", &t, &l->err), &l->err);
	for (uint64_t i = 0; i < BIG; i++)
		CHECK(((const uint8_t *)t.addr)[i] == l->version);
	return IST_OK;
}

static ist_err
use_sync(struct life *l, struct ist_group *g)
{
	struct ist_sync_args args = { .struct_size = sizeof(args), .bucket_bytes = 65536 };
	struct ist_report rep = { .struct_size = sizeof(rep) };
	struct ist_checkpoint *ck = NULL;
	struct ist_sink *sink = NULL;
	struct ist_sync *sync = NULL;
	ist_err e = went(l, "sync_new", ist_sync_new(g, &args, &sync, &l->err));

	if (!e)
		e = take_part(l, sync, &ck, &sink);
	if (!e)
		e = went(l, "gather", ist_sync_gather(sync, 0, &l->err));
	if (!e)
		e = went(l, "update", ist_sync_update(sync, NULL, &rep, &l->err));
	if (!e) {
		CHECK(rep.verified && rep.tensors == 2);
		CHECK(l->rank != FOLDER || holds_dest(l, l->version));
		if (l->rank == MEMORY)
			e = check_memory(l, sink);
	}
	ist_sync_free(sync);
	ist_sink_free(sink);
	ist_checkpoint_free(ck);
	return e;
}

static ist_err
use_group(struct life *l, struct ist_group *g)
{
	ist_err e = use_bytes(l, g);

	if (!e)
		e = went(l, "broadcast", use_bulk(l, g));
	if (!e)
		e = went(l, "barrier", ist_barrier(g, 0, &l->err));
	if (!e)
		e = use_split(l, g);
	return e ? e : use_sync(l, g);
}

static ist_err
begin(struct life *l)
{
	struct ist_env_args env = { .struct_size = sizeof(env), .alloc = fault_alloc, .free = fault_free, .mem_ctx = &l->cold };
	struct ist_endpoint_args ep = { .struct_size = sizeof(ep), .transport = l->p->transport };
	ist_err e = IST_OK;

	if (!l->env)
		e = went(l, "env_new", ist_env_new(&env, &l->env, &l->err));
	l->cold = l->p->row->call == FAULT_MEMORY;
	if (!e && !l->ep)
		e = went(l, "endpoint_new", ist_endpoint_new(l->env, &ep, &l->ep, &l->err));
	l->cold = false;
	return e;
}

/* From the beginning to the end of a group. */
static ist_err
live(struct life *l)
{
	struct ist_group *g = NULL;
	ist_err e;

	ist_error_init(&l->err);
	l->where = "well";
	l->called_off = false;
	e = begin(l);
	if (e && l->faulty)
		atomic_store(&l->all->early, 1);
	if (!e)
		e = went(l, "group_new", form(l, &g));
	if (!e)
		e = use_group(l, g);
	if (l->faulty)
		atomic_store(&l->all->over, 1);
	if (g)
		ist_group_free(g);
	return e;
}

/* ---- what may be said ---- */

static bool
among(ist_err e, const ist_err *codes)
{
	for (int i = 0; i < 4 && codes[i]; i++)
		if (e == codes[i])
			return true;
	return false;
}

static bool
is_told(const struct play *p, const struct seen *seen, uint32_t rank)
{
	const struct seen *s = &seen[rank];
	bool lost = s->code == IST_PEER_LOST || s->code == IST_PEER_LEFT || s->code == IST_EVICTED;

	if (!s->code)
		return true;
	/* It was called off, or heard that another was: it could not be told, since the faulty one never got so far, or rank 0 could
	 * not be found by anybody. */
	if (s->called_off || (s->code == IST_ABORTED && !strcmp(s->where, "group_new")))
		return !strcmp(seen[p->victim].where, "endpoint_new") || !strcmp(seen[p->victim].where, "env_new") ||
			(p->victim == 0 && !strcmp(seen[0].where, "group_new")) || p->row->manner == BROKEN || seen[p->victim].early ||
			strstr(seen[p->victim].detail, "/meet"); /* the place or what is in it: nor could it learn where the others are */
	if (p->row->manner == HEALS)
		return false;
	if (p->row->manner == BROKEN && s->code == IST_TIMEOUT && !strcmp(s->where, "group_new"))
		return true; /* cut off from rank 0 in the roll-call, it dials again: there may be another one */
	if (p->row->manner == STAYS && s->code == IST_TIMEOUT && strstr(seen[p->victim].detail, "/meet/")) /* it tried until then, and says what kept it */
		return rank == p->victim || s->names >> p->victim & 1;
	if (rank == p->victim)
		return among(s->code, p->row->codes) || (lost && p->row->manner == BROKEN);
	return (lost || among(s->code, p->row->codes)) && (p->row->manner == BROKEN || s->names >> p->victim & 1);
}

static void
show(const struct play *p, long n, const struct seen *seen, const char *word)
{
	for (uint32_t r = 0; r < SIZE; r++)
		fprintf(stderr, "%s: %s victim %u %s n %ld: rank %u%s: %s %s names %llx%s: %s\n", word, p->row->name, p->victim,
			p->transport == IST_TRANSPORT_TCP ? "tcp" : "auto", n, r, r == p->victim ? "*" : "", seen[r].where, ist_err_name(seen[r].code),
			(unsigned long long)seen[r].names, seen[r].called_off ? " (called off)" : "", seen[r].detail);
}

static void
note(struct life *l, ist_err e)
{
	struct seen *s = &l->all->seen[l->rank];

	memset(s, 0, sizeof(*s));
	s->code = e;
	s->called_off = e && l->called_off;
	s->early = l->faulty && atomic_load(&l->all->early);
	snprintf(s->where, sizeof(s->where), "%s", l->where);
	snprintf(s->detail, sizeof(s->detail), "%s", e ? l->err.detail : "");
	for (uint32_t i = 0; e && i < l->err.n_ranks && l->err.ranks[i] < SIZE; i++) /* a split's are those of the child */
		s->names |= UINT64_C(1) << (!strcmp(l->where, "split") || !strcmp(l->where, "child barrier") ? SIZE - 1 - l->err.ranks[i] : l->err.ranks[i]);
}

/* ---- one member of a play ---- */

static uint32_t
count_folder(const char *path, const char *prefix)
{
	DIR *d = opendir(path);
	struct dirent *e;
	uint32_t n = 0;

	CHECK(d);
	while ((e = readdir(d)))
		n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && !strncmp(e->d_name, prefix, strlen(prefix));
	closedir(d);
	return n;
}

static void
end(struct life *l)
{
	ist_endpoint_free(l->ep);
	ist_env_free(l->env);
	l->ep = NULL;
	l->env = NULL;
}

static void
check_clean(const struct life *l, uint32_t fds, uint32_t threads)
{
	char prefix[96];
	double until = now_s() + 10;

	while (count_threads() > threads && now_s() < until) /* one that was joined may be seen a moment longer */
		sched_yield();
	CHECK(count_threads() <= threads);
	CHECK(count_fds() <= fds);
	if (l->rank == FOLDER) {
		snprintf(prefix, sizeof(prefix), "%s/sinks", l->p->dir);
		CHECK(count_folder(prefix, "") == 1);
	}
	if (l->rank == MEMORY) { /* others have files of their own there */
		snprintf(prefix, sizeof(prefix), ".%s", l->shm);
		CHECK(count_folder("/dev/shm", l->shm) <= 1 && count_folder("/dev/shm", prefix) == 0);
	}
}

static void
set_up(struct life *l, struct play *p, uint32_t rank)
{
	memset(l, 0, sizeof(*l));
	l->p = p;
	l->all = p->ranks.shared;
	l->rank = rank;
	snprintf(l->source, sizeof(l->source), "%s/source", p->dir);
	snprintf(l->dest, sizeof(l->dest), "%s/sinks/dest", p->dir);
	snprintf(l->shm, sizeof(l->shm), "%s-shm", strrchr(p->dir, '/') + 1);
}

static void
set_place(struct life *l)
{
	if (l->p->transport == IST_TRANSPORT_TCP)
		snprintf(l->at, sizeof(l->at), "dir:%s/meet", l->p->dir);
	else
		snprintf(l->at, sizeof(l->at), "%s", l->p->ranks.at);
}

/* A life with a fault, then one without. True when there was no n-th call. */
static bool
one_moment(struct life *l, long n, uint32_t fds, uint32_t threads)
{
	struct play *p = l->p;
	bool victim = l->rank == p->victim;
	uint8_t old = l->version;
	ist_err e;

	l->version = (uint8_t)(old % 250 + 1);
	if (l->rank == SOURCE)
		write_source(l);
	atomic_store(&l->all->over, 0);
	atomic_store(&l->all->early, 0);
	atomic_store(&l->all->n, (uint32_t)n);
	atomic_store(&l->all->row, p->at_row);
	atomic_fetch_add(&l->all->lives, 1);
	meet(l);
	snprintf(l->name, sizeof(l->name), "%s%ld", p->row->name, n);
	l->faulty = victim;
	if (victim)
		fault_set(p->row->call, n, p->row->manner == STAYS, p->row->sys);
	e = live(l);
	if (victim)
		atomic_store(&l->all->through, fault_clear() < n);
	note(l, e);
	l->faulty = false;
	meet(l);
	if (l->rank == 0 && p->tell)
		show(p, n, l->all->seen, "said");
	if (!is_told(p, l->all->seen, l->rank)) {
		if (l->rank == p->victim || (is_told(p, l->all->seen, p->victim) && (l->rank == (p->victim + 1) % SIZE || is_told(p, l->all->seen, (p->victim + 1) % SIZE))))
			show(p, n, l->all->seen, "WRONG");
		_Exit(1);
	}
	if (l->rank == FOLDER)
		CHECK(holds_dest(l, old) || holds_dest(l, l->version));
	atomic_store(&l->all->over, 0);
	meet(l);
	snprintf(l->name, sizeof(l->name), "well %s%ld", p->row->name, n);
	CHECK_ERR(IST_OK, live(l), &l->err);
	end(l);
	check_clean(l, fds, threads);
	meet(l);
	return atomic_load(&l->all->through);
}

static uint32_t
transport_of(bool tcp)
{
	return tcp ? IST_TRANSPORT_TCP : IST_TRANSPORT_AUTO;
}

/* Of many rows each has a victim and a transport of its own. */
static void
cast(struct play *p, uint32_t row)
{
	p->victim = row % SIZE;
	p->transport = transport_of(row & 1);
}

static int
rank_main(struct ranks *r, uint32_t rank, void *arg)
{
	struct life l;
	struct play *p = arg; /* this process's own */
	const struct row *first = p->row;
	uint32_t fds, threads;

	(void)r;
	set_up(&l, p, rank);
	set_place(&l);
	l.version = 1;
	if (rank == SOURCE)
		write_source(&l);
	meet(&l);
	snprintf(l.name, sizeof(l.name), "first");
	CHECK_ERR(IST_OK, live(&l), &l.err); /* whatever is made once for a process */
	end(&l);
	fds = count_fds();
	threads = 3; /* this one, and . and .. */
	for (uint32_t i = 0; i < p->n_rows; i++) {
		long n = p->from;
		uint32_t moments = 0;

		p->at_row = i;
		if (p->n_rows > 1) {
			n = 1 + i % 4;
			cast(p, i);
			set_place(&l);
		}
		p->row = &first[i];
		for (; n < MOST && (!p->moments || moments < p->moments) && !one_moment(&l, n, fds, threads); moments++)
			n += p->step + n / SPARSE; /* of very many not all */
	}
	return 0;
}

static void
set_barrier(pthread_barrier_t *b)
{
	pthread_barrierattr_t attr;

	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	CHECK(pthread_barrier_init(b, &attr, SIZE) == 0);
	pthread_barrierattr_destroy(&attr);
}

/* Waits for all; after the first that ends badly the others get a moment to say what they know. Each moment of a play has
 * GUARD_S. How many ended badly by themselves. */
static int
reap(struct ranks *r)
{
	struct all *all = r->shared;
	double until = now_s() + GUARD_S;
	uint32_t left = SIZE, n = 0;
	int bad = 0, status;

	while (left > 0) {
		struct timespec t = { 0, 5000000 };
		pid_t pid = waitpid(-1, &status, WNOHANG);

		if (pid <= 0) {
			if (atomic_load(&all->lives) != n) {
				n = atomic_load(&all->lives);
				until = now_s() + GUARD_S;
			}
			for (uint32_t i = 0; i < SIZE && now_s() > until; i++)
				if (r->pid[i] > 0) {
					bad += !bad && fprintf(stderr, "hung\n");
					kill(r->pid[i], SIGKILL);
				}
			nanosleep(&t, NULL);
			continue;
		}
		for (uint32_t i = 0; i < SIZE; i++) {
			if (r->pid[i] != pid)
				continue;
			r->pid[i] = 0;
			left--;
			if (status && !bad++)
				until = now_s() + 1;
			if (status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
				fprintf(stderr, "rank %u ended with %x\n", i, (unsigned)status);
		}
	}
	return bad;
}

/* Where a play of all moments ended badly, it goes on behind the moment that it did at. How many went wrong. */
static int
play(const struct row *row, uint32_t n_rows, uint32_t victim, uint32_t transport, long from, long step, uint32_t moments)
{
	struct play p = { .row = row, .n_rows = n_rows, .victim = victim, .transport = transport, .from = from, .step = step, .moments = moments, .tell = moments == 1 };
	char path[128];
	int wrong = 0, bad;

	do {
		struct all *all;

		snprintf(p.dir, sizeof(p.dir), "/tmp/ist-faults-XXXXXX");
		CHECK(mkdtemp(p.dir));
		for (int i = 0; i < 3; i++) {
			snprintf(path, sizeof(path), "%s/%s", p.dir, i == 0 ? "source" : i == 1 ? "sinks" : "meet");
			CHECK(!mkdir(path, 0700));
		}
		ranks_init(&p.ranks, SIZE);
		all = p.ranks.shared;
		set_barrier(&all->meeting);
		ranks_start_all(&p.ranks, rank_main, &p);
		bad = reap(&p.ranks);
		wrong += bad != 0;
		if (bad && n_rows > 1)
			cast(&p, atomic_load(&all->row));
		if (bad)
			fprintf(stderr, "BAD: %s victim %u %s n %u\n", row[atomic_load(&all->row)].name, p.victim, p.transport == IST_TRANSPORT_TCP ? "tcp" : "auto",
				atomic_load(&all->n));
		p.from = (long)atomic_load(&all->n) + step;
		ranks_fini(&p.ranks);
		help_remove(p.dir);
		snprintf(path, sizeof(path), "/dev/shm/%s-shm", strrchr(p.dir, '/') + 1);
		unlink(path);
	} while (bad && !moments && p.from < MOST);
	return wrong;
}

static const struct row *
find(const char *name)
{
	for (uint32_t i = 0; i < ROWS; i++)
		if (!strcmp(rows[i].name, name))
			return &rows[i];
	return NULL;
}

int
main(int argc, char **argv)
{
	bool all = argc == 2 && !strcmp(argv[1], "long");
	int wrong = 0;

	if (argc >= 4) {
		const struct row *row = find(argv[1]);

		CHECK(row);
		return play(row, 1, (uint32_t)atoi(argv[2]), transport_of(!strcmp(argv[3], "tcp")), argc > 4 ? atol(argv[4]) : 1, 1, argc > 4) != 0;
	}
	if (!all)
		return play(rows, ROWS, 0, IST_TRANSPORT_AUTO, 1, 3, 2) != 0;
	for (uint32_t i = 0; i < ROWS; i++)
		for (uint32_t k = 0; k < 2 * SIZE; k++) {
			fprintf(stderr, "%s, victim %u, %s\n", rows[i].name, k % SIZE, k & 1 ? "tcp" : "auto");
			wrong += play(&rows[i], 1, k % SIZE, transport_of(k & 1), 1, 1, 0);
		}
	return wrong != 0;
}
