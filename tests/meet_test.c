/* SPDX-License-Identifier: Apache-2.0
 *
 * Every way to meet, in every order; meeting places that die and come back; records that outlived their writer; ranks
 * whose holder died; forming without waiting.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "meeting.h"

#include "group/endpoint.h"
#include "meet/dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a store of its own, in a process of its own ---- */

static int
be_store(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_store_args sa = { .struct_size = sizeof(sa), .bind = strncmp(r->at, "tcp://", 6) ? r->at : r->at + 6 };
	_Atomic uint32_t *flags = r->shared;
	struct ist_store *store;
	struct ist_error err;
	struct ist_env *env;

	(void)rank, (void)arg;
	ist_error_init(&err);
	CHECK_ERR(IST_OK, ist_env_new(NULL, &env, &err), &err);
	CHECK_ERR(IST_OK, ist_store_new(env, &sa, &store, &err), &err);
	atomic_fetch_add(&flags[100], 1); /* up */
	ranks_await(&flags[101], 1);      /* down */
	ist_store_free(store);
	ist_env_free(env);
	return 0;
}

static void
folder_init(char at[128])
{
	char dir[64] = "/tmp/isthmus-meet-XXXXXX";

	assert_non_null(mkdtemp(dir));
	snprintf(at, 128, "dir:%s", dir);
}

/* Nothing may be left in it but what members that were killed had written. */
static uint32_t
folder_fini(const char *at)
{
	DIR *d = opendir(at + 4);
	struct dirent *e;
	uint32_t n = 0;

	assert_non_null(d);
	while ((e = readdir(d)))
		if (e->d_name[0] != '.') {
			n++;
			unlinkat(dirfd(d), e->d_name, 0);
		}
	closedir(d);
	assert_int_equal(rmdir(at + 4), 0);
	return n;
}

/* ---- all ways, all orders ---- */

static int
meets(struct ranks *r, uint32_t rank, void *arg)
{
	const struct place *p = arg;
	_Atomic uint32_t *flags = r->shared;
	uint32_t size = p->way == BY_STORE ? r->n - 1 : r->n;
	struct ist_req *req;
	struct member m;

	if (rank == size)
		return be_store(r, rank, NULL);
	member_init(&m, IST_TRANSPORT_AUTO);
	if (p->way == BY_ADDRESS) {
		write_book(r, &m, rank);
		atomic_fetch_add(&flags[1], 1);
		ranks_await(&flags[1], size);
	}
	ranks_await(&flags[0], p->order[rank]);
	req = begin(r, &m, p, "meets", rank, size);
	atomic_fetch_add(&flags[0], 1);
	CHECK_ERR(IST_OK, end(&m, req), &m.err);
	all_gather_ranks(&m, rank, size);
	member_fini(&m);
	if (atomic_fetch_add(&flags[2], 1) + 1 == size)
		atomic_store(&flags[101], 1);
	return 0;
}

static void
meets_every_way_in_every_order(void **state)
{
	static const uint32_t orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };

	(void)state;
	for (enum way way = 0; way < WAYS; way++)
		for (uint32_t i = 0; i < 6; i++) {
			struct place p = { .way = way, .turn = i };
			struct ranks r;

			memcpy(p.order, orders[i], sizeof(orders[i]));
			ranks_init(&r, way == BY_STORE ? 4 : 3);
			if (way == BY_DIR)
				folder_init(p.at);
			else
				snprintf(p.at, sizeof(p.at), "%s", r.at);
			ranks_start_all(&r, meets, &p);
			if (ranks_join(&r, 60, 0) != 0)
				fail_msg("way %d order %u", way, i);
			if (way == BY_DIR)
				assert_int_equal(folder_fini(p.at), 0);
			ranks_fini(&r);
		}
}

/* ---- one store, several groups; status ---- */

enum { GROUPS = 3, EACH = 2 };

static uint32_t
status_of(struct member *m, const char *at, const char *group, struct ist_member_status *rows, uint32_t room)
{
	struct ist_status_args sa = { .struct_size = sizeof(sa), .at = at, .group = group, .timeout_ns = 20 * IST_NS_PER_S };
	uint32_t n = room;

	CHECK_ERR(IST_OK, ist_status(m->env, &sa, rows, &n, &m->err), &m->err);
	return n;
}

static void
await_rows(struct member *m, const char *at, const char *group, uint32_t n, struct ist_member_status *rows, uint32_t room)
{
	for (int i = 0; status_of(m, at, group, rows, room) != n; i++) {
		CHECK(i < 1000);
		usleep(20000);
	}
}

static int
one_of_many(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	const struct place *p = arg;
	struct ist_member_status rows[16];
	char name[16];
	struct ist_req *req;
	struct member m;

	if (rank == GROUPS * EACH && p->way == BY_STORE)
		return be_store(r, rank, NULL);
	member_init(&m, IST_TRANSPORT_AUTO);
	snprintf(name, sizeof(name), "group%u", rank % GROUPS);
	if (p->way == BY_STORE)
		ranks_await(&flags[100], 1);
	req = begin(r, &m, p, name, rank / GROUPS, EACH);
	CHECK_ERR(IST_OK, end(&m, req), &m.err);
	all_gather_ranks(&m, rank / GROUPS, EACH);
	CHECK(ist_group_tell(m.g, "UPDATING", 3, 4, 3) == IST_OK);
	atomic_fetch_add(&flags[0], 1);
	ranks_await(&flags[0], GROUPS * EACH);
	if (rank == 0) {
		await_rows(&m, p->at, NULL, GROUPS * EACH, rows, 16);
		CHECK(status_of(&m, p->at, NULL, rows, 2) == GROUPS * EACH); /* says how many there are */
		CHECK(status_of(&m, p->at, "nobody", rows, 16) == 0);
		for (int i = 0;; i++) { /* what was told arrives a little later */
			CHECK(i < 1000);
			await_rows(&m, p->at, "group1", EACH, rows, 16);
			if (!strcmp(rows[0].state, "UPDATING") && !strcmp(rows[1].state, "UPDATING"))
				break;
			usleep(20000);
		}
		for (uint32_t i = 0; i < EACH; i++)
			CHECK(!strcmp(rows[i].group, "group1") && rows[i].rank < EACH && rows[i].version == 3 && rows[i].to == 4 &&
				rows[i].serves == 3 && rows[i].pid > 1 && rows[i].host[0] && rows[i].heard_s >= 0 && rows[i].heard_s <= 15);
		CHECK(rows[0].rank != rows[1].rank && rows[0].pid != rows[1].pid);
		atomic_store(&flags[1], 1);
	}
	ranks_await(&flags[1], 1);
	CHECK(ist_group_free(m.g) == IST_OK); /* what was told goes with it */
	m.g = NULL;
	atomic_fetch_add(&flags[2], 1);
	ranks_await(&flags[2], GROUPS * EACH);
	if (rank == 0) {
		await_rows(&m, p->at, NULL, 0, rows, 16);
		atomic_store(&flags[101], 1);
	}
	ranks_await(&flags[101], 1);
	member_fini(&m);
	return 0;
}

static void
shows_who_is_there(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct place p = { .way = i ? BY_DIR : BY_STORE };
		struct ranks r;

		ranks_init(&r, GROUPS * EACH + (i ? 0 : 1));
		if (i)
			folder_init(p.at);
		else
			snprintf(p.at, sizeof(p.at), "%s", r.at);
		ranks_start_all(&r, one_of_many, &p);
		assert_int_equal(ranks_join(&r, 100, 0), 0);
		if (i)
			assert_int_equal(folder_fini(p.at), 0);
		ranks_fini(&r);
	}
}

/* ---- the store dies, and comes back ---- */

static int
outlives_the_store(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct place p = { .way = BY_STORE };
	static const uint32_t all[] = { 0, 1, 2 };
	struct ist_split_args split = { .struct_size = sizeof(split), .n_ranks = 3, .ranks = all, .name = "half" };
	struct ist_group *half = NULL;
	struct ist_member_status rows[8];
	char pid[32];
	struct member m;

	(void)arg;
	if (rank == 3)
		return be_store(r, rank, NULL);
	snprintf(p.at, sizeof(p.at), "%s", r->at);
	member_init(&m, IST_TRANSPORT_AUTO);
	if (rank == 4) { /* comes late, for a rank that is held */
		ranks_await(&flags[3], 1);
		CHECK_ERR(IST_CONFLICT, end(&m, begin(r, &m, &p, "outlives", 1, 3)), &m.err);
		snprintf(pid, sizeof(pid), "pid %u", flags[4]);
		CHECK(strstr(m.err.detail, pid));
		atomic_store(&flags[101], 1);
		member_fini(&m);
		return 0;
	}
	ranks_await(&flags[100], 1);
	CHECK_ERR(IST_OK, end(&m, begin(r, &m, &p, "outlives", rank, 3)), &m.err);
	if (rank == 1)
		atomic_store(&flags[4], (uint32_t)getpid());
	atomic_fetch_add(&flags[0], 1);
	ranks_await(&flags[1], 1); /* the store is dead */
	all_gather_ranks(&m, rank, 3);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	CHECK_ERR(IST_OK, ist_group_split(m.g, &split, &half, &m.err), &m.err); /* nor does a new group of these need it */
	CHECK_ERR(IST_OK, ist_barrier(half, 0, &m.err), &m.err);
	ist_group_free(half);
	atomic_fetch_add(&flags[2], 1);
	ranks_await(&flags[100], 2); /* and there again */
	if (rank == 0) {
		await_rows(&m, p.at, "outlives", 3, rows, 8);
		atomic_store(&flags[3], 1);
	}
	ranks_await(&flags[101], 1);
	all_gather_ranks(&m, rank, 3);
	member_fini(&m);
	return 0;
}

static void
goes_on_without_its_store(void **state)
{
	_Atomic uint32_t *flags;
	struct ranks r;

	(void)state;
	ranks_init(&r, 5);
	flags = r.shared;
	ranks_start_all(&r, outlives_the_store, NULL);
	ranks_await(&flags[0], 3);
	kill(r.pid[3], SIGKILL);
	assert_int_equal(waitpid(r.pid[3], NULL, 0), r.pid[3]);
	atomic_store(&flags[1], 1);
	ranks_await(&flags[2], 3);
	ranks_start(&r, 3, be_store, NULL); /* the same port */
	assert_int_equal(ranks_join(&r, 100, 0), 0);
	ranks_fini(&r);
}

/* ---- records of the dead ---- */

struct stale {
	struct place p;
	int rogue;
};

/* rank 0: publishes and dies; rank 1: comes next and finds what is left; rank 2: is rank 0 of the new group. */
static int
finds_a_stale_record(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct stale *s = arg;
	struct toy *toy = (struct toy *)(void *)((char *)r->shared + KV_AT);
	union ist__sockaddr at;
	struct ist_req *req;
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	if (rank == 0) {
		uint32_t done = 0;

		write_book(r, &m, 0);
		at = m.ep->ep->listeners[0].at;
		atomic_store(&flags[1], ist__sockaddr_port(&at));
		req = begin(r, &m, &s->p, "stale", 0, 2);
		for (;;) { /* until it is published */
			char path[160];

			CHECK_ERR(IST_OK, ist_req_test(req, &done, &m.err), &m.err);
			snprintf(path, sizeof(path), "ls %s/*.rank0 >/dev/null 2>&1", s->p.at + 4);
			if (s->p.way == BY_KV ? toy->at[0].ready != 0 : system(path) == 0)
				break;
			usleep(1000);
		}
		atomic_store(&flags[0], 1);
		for (;;)
			pause();
	}
	ranks_await(&flags[2], rank);
	req = begin(r, &m, &s->p, "stale", rank == 2 ? 0 : 1, 2);
	atomic_fetch_add(&flags[3], 1);
	CHECK_ERR(IST_OK, end(&m, req), &m.err);
	all_gather_ranks(&m, rank == 2 ? 0 : 1, 2);
	member_fini(&m);
	return 0;
}

static void
passes_over_records_of_the_dead(void **state)
{
	(void)state;
	for (enum way way = BY_KV; way <= BY_DIR; way += 2) {
		struct stale s = { .p.way = way };
		uint8_t got[4096];
		_Atomic uint32_t *flags;
		union ist__sockaddr at = { .sa = { 0 } };
		struct ist__hostport hp = { .host = "127.0.0.1" };
		struct ist__addrs addrs;
		struct toy *toy;
		struct ranks r;
		int fd, in = -1, conn;

		ranks_init(&r, 3);
		flags = r.shared;
		toy = (struct toy *)(void *)((char *)r.shared + KV_AT);
		if (way == BY_DIR)
			folder_init(s.p.at);
		ranks_start_all(&r, finds_a_stale_record, &s);
		ranks_await(&flags[0], 1);
		kill(r.pid[0], SIGKILL);
		assert_int_equal(waitpid(r.pid[0], NULL, 0), r.pid[0]);
		r.pid[0] = 0;
		/* somebody else gets its port, and is silent */
		assert_int_equal(ist__resolve(&hp, &addrs, NULL), IST_OK);
		at = addrs.at[0];
		ist__sockaddr_set_port(&at, (uint16_t)flags[1]);
		assert_int_equal(ist__listen(&at, &fd, NULL), IST_OK);
		if (way == BY_DIR) {
			in = inotify_init1(IN_CLOEXEC);
			assert_true(inotify_add_watch(in, s.p.at + 4, IN_OPEN) >= 0);
		}
		atomic_store(&flags[2], 1);
		ranks_await(&flags[3], 1);
		if (way == BY_DIR) /* it has looked several times */
			for (size_t seen = 0; seen < 8 * sizeof(struct inotify_event);) {
				ssize_t n = read(in, got, sizeof(got));

				assert_true(n > 0);
				seen += (size_t)n;
			}
		else
			ranks_await(&toy->gets, 3);
		atomic_store(&flags[2], 2); /* the new rank 0 comes */
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		conn = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (way == BY_DIR)
			assert_true(conn < 0); /* nobody dialled the dead one: its lock was free */
		else {
			ssize_t n = recv(conn, got, sizeof(got), 0); /* a hello, and no word more */

			assert_int_equal(n, IST__HELLO_BYTES);
		}
		if (conn >= 0)
			close(conn);
		close(fd);
		if (in >= 0)
			close(in);
		if (way == BY_DIR)
			folder_fini(s.p.at);
		ranks_fini(&r);
	}
}

/* Who takes a dead one's name has its lock before it has written a record of its own: until then nobody is to be found. */
static void
finds_no_dead_ones_record_under_a_new_holders_lock(void **state)
{
	struct flock name = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
	char room[64], lock[256] = "";
	uint64_t bytes = sizeof(room);
	struct place p = { .way = BY_DIR };
	struct ist_error err;
	int held, fd;
	glob_t found;

	(void)state;
	ist_error_init(&err);
	folder_init(p.at);
	assert_int_equal(ist__dir_publish(p.at + 4, "heir", "a dead one", "dead", 4, &held, &err), IST_OK);
	assert_int_equal(ist__dir_find(p.at + 4, "heir", room, &bytes, &err), IST_OK);
	assert_int_equal(bytes, 4);
	close(held); /* as its death does */
	snprintf(lock, sizeof(lock), "%s/*.lock", p.at + 4);
	assert_int_equal(glob(lock, 0, NULL, &found), 0);
	fd = open(found.gl_pathv[0], O_RDWR | O_CLOEXEC);
	globfree(&found);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &name), 0); /* the heir's first step, and it comes no further yet */
	bytes = sizeof(room);
	assert_int_equal(ist__dir_find(p.at + 4, "heir", room, &bytes, &err), IST_OK);
	assert_int_equal(bytes, 0);
	assert_int_equal(ist__dir_publish(p.at + 4, "heir", "a rival", "rival", 5, &held, &err), IST_CONFLICT);
	close(fd);
	assert_int_equal(ist__dir_publish(p.at + 4, "heir", "an heir", "alive", 5, &held, &err), IST_OK);
	bytes = sizeof(room);
	assert_int_equal(ist__dir_find(p.at + 4, "heir", room, &bytes, &err), IST_OK);
	assert_int_equal(bytes, 5);
	assert_memory_equal(room, "alive", 5);
	ist__dir_withdraw(p.at + 4, "heir", held);
	folder_fini(p.at);
}

/* ---- names that meet at one moment ---- */

/* {0,3} and {1,2} under one name at the same moment, again and again. */
static int
pairs_at_once(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	uint32_t partner = 3 - rank, mine = rank < partner ? 0 : 1;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	write_book(r, &m, rank);
	for (uint32_t round = 0; round < 100; round++) {
		struct ist_address a[2];
		struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = mine, .size = 2, .addresses = a, .timeout_ns = 60 * IST_NS_PER_S };
		struct ist_blob all[2];

		atomic_fetch_add(&flags[0], 1);
		ranks_await(&flags[0], 4 * (round + 1));
		a[mine] = read_book(r, rank);
		a[1 - mine] = read_book(r, partner);
		CHECK_ERR(IST_OK, ist_group_new(m.ep, &ga, &m.g, &m.err), &m.err);
		CHECK_ERR(IST_OK, ist_all_gather_bytes(m.g, &rank, sizeof(rank), 0, all, &m.err), &m.err);
		CHECK(!memcmp(all[mine].addr, &rank, sizeof(rank)) && !memcmp(all[1 - mine].addr, &partner, sizeof(partner)));
		ist_blobs_free(m.g, all, 2);
		CHECK(ist_group_free(m.g) == IST_OK);
		m.g = NULL;
	}
	member_fini(&m);
	return 0;
}

static void
keeps_pairs_apart(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, pairs_at_once, NULL);
	assert_int_equal(ranks_join(&r, 200, 0), 0);
	ranks_fini(&r);
}

/* Destroyed and made again at once, each member at its own moment. */
static int
comes_again(struct ranks *r, uint32_t rank, void *arg)
{
	const struct place *p = arg;
	_Atomic uint32_t *flags = r->shared;
	unsigned seed = (unsigned)getpid();
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	if (p->way == BY_ADDRESS) {
		write_book(r, &m, rank);
		atomic_fetch_add(&flags[0], 1);
		ranks_await(&flags[0], r->n);
	}
	for (uint32_t round = 0; round < 40; round++) {
		usleep((useconds_t)(rand_r(&seed) % 20000)); /* the moment is this test's input */
		CHECK_ERR(IST_OK, end(&m, begin(r, &m, p, "again", rank, r->n)), &m.err);
		all_gather_ranks(&m, rank, r->n);
		CHECK(ist_group_free(m.g) == IST_OK);
		m.g = NULL;
	}
	member_fini(&m);
	return 0;
}

static void
makes_the_same_name_again(void **state)
{
	(void)state;
	for (enum way way = 0; way < BY_STORE; way++) {
		struct place p = { .way = way };
		struct ranks r;

		ranks_init(&r, 4);
		if (way == BY_DIR)
			folder_init(p.at);
		ranks_start_all(&r, comes_again, &p);
		if (ranks_join(&r, 100, 0) != 0)
			fail_msg("way %d", way);
		if (way == BY_DIR)
			assert_int_equal(folder_fini(p.at), 0);
		ranks_fini(&r);
	}
}

/* ---- a rank whose holder died ---- */

/* Members 0 and 1 of three hold their ranks; member `victim` is killed, and process 3 takes its place; then 2 comes. */
static int
takes_over(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	const struct place *p = arg;
	uint32_t victim = p->turn, mine = rank == 3 ? victim : rank, done = 0;
	struct ist_req *req;
	struct member m;

	if (rank == 4)
		return be_store(r, rank, NULL);
	member_init(&m, IST_TRANSPORT_AUTO);
	if (p->way == BY_STORE)
		ranks_await(&flags[100], 1);
	if (rank >= 2)
		ranks_await(&flags[1], rank == 3 ? 1 : 2);
	req = begin(r, &m, p, "heir", mine, 3);
	for (;;) { /* the roll-call says who is there */
		CHECK_ERR(IST_OK, ist_req_test(req, &done, &m.err), &m.err);
		if (done || (m.err.n_ranks == 1 && m.err.ranks[0] == 2))
			break;
		usleep(1000);
	}
	if (rank == 3)
		atomic_store(&flags[1], 2);
	else
		atomic_fetch_or(&flags[0], 1u << rank);
	CHECK_ERR(IST_OK, end(&m, req), &m.err);
	all_gather_ranks(&m, mine, 3);
	member_fini(&m);
	if (atomic_fetch_add(&flags[5], 1) + 1 == 3)
		atomic_store(&flags[101], 1);
	return 0;
}

static void
gives_a_dead_ones_rank_away(void **state)
{
	static const enum way ways[] = { BY_MEMBER, BY_STORE, BY_KV, BY_DIR };

	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		struct place p = { .way = ways[i / 2], .turn = i % 2 };
		_Atomic uint32_t *flags;
		struct ranks r;
		int bad;

		ranks_init(&r, 5);
		flags = r.shared;
		if (p.way == BY_DIR)
			folder_init(p.at);
		else
			snprintf(p.at, sizeof(p.at), "%s", r.at);
		for (uint32_t k = 0; k < (p.way == BY_STORE ? 5u : 4u); k++)
			ranks_start(&r, k, takes_over, &p);
		while (flags[0] != 3)
			sched_yield();
		kill(r.pid[p.turn], SIGKILL);
		atomic_store(&flags[1], 1);
		bad = ranks_join(&r, 60, UINT64_C(1) << p.turn);
		if (bad)
			fail_msg("way %d, rank %u", p.way, p.turn);
		if (p.way == BY_DIR)
			folder_fini(p.at);
		ranks_fini(&r);
	}
}

/* The holder lives, and the group is not complete: the second one is told, the first is not disturbed. */
static int
is_refused(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	struct place p = { .way = BY_MEMBER };
	uint32_t mine = *(uint32_t *)arg, done = 0;
	char pid[32];
	struct ist_req *req;
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	if (rank == 3) {
		ranks_await(&flags[0], 2);
		CHECK_ERR(IST_CONFLICT, end(&m, begin(r, &m, &p, "held", mine, 3)), &m.err);
		snprintf(pid, sizeof(pid), "pid %u", flags[1 + mine]);
		CHECK(m.err.n_ranks == 1 && m.err.ranks[0] == mine && strstr(m.err.detail, pid) && strstr(m.err.detail, "host "));
		atomic_store(&flags[4], 1);
	} else {
		if (rank == 2)
			ranks_await(&flags[4], 1);
		req = begin(r, &m, &p, "held", rank, 3);
		while (rank < 2) {
			CHECK_ERR(IST_OK, ist_req_test(req, &done, &m.err), &m.err);
			CHECK(!done);
			if (m.err.n_ranks == 1 && m.err.ranks[0] == 2)
				break;
			usleep(1000);
		}
		if (rank < 2) {
			atomic_store(&flags[1 + rank], (uint32_t)getpid());
			atomic_fetch_add(&flags[0], 1);
		}
		CHECK_ERR(IST_OK, end(&m, req), &m.err);
		all_gather_ranks(&m, rank, 3);
	}
	member_fini(&m);
	return 0;
}

static void
keeps_a_living_ones_rank(void **state)
{
	(void)state;
	for (uint32_t mine = 0; mine < 2; mine++) {
		struct ranks r;

		ranks_init(&r, 4);
		ranks_start_all(&r, is_refused, &mine);
		assert_int_equal(ranks_join(&r, 60, 0), 0);
		ranks_fini(&r);
	}
}

/* Rank 0 of two keeps its group after the other one has left it, as one does that slept meanwhile; the other one makes a
 * group of that name with process 2. Process 3 may be the place. */
static int
goes_on_elsewhere(struct ranks *r, uint32_t rank, void *arg)
{
	_Atomic uint32_t *flags = r->shared;
	const struct place *p = arg;
	struct member m;

	if (rank == 3)
		return be_store(r, rank, NULL);
	member_init(&m, IST_TRANSPORT_AUTO);
	if (p->way == BY_STORE)
		ranks_await(&flags[100], 1);
	if (rank < 2)
		CHECK_ERR(IST_OK, end(&m, begin(r, &m, p, "slept", rank, 2)), &m.err);
	if (rank == 1) {
		CHECK(ist_group_free(m.g) == IST_OK);
		atomic_store(&flags[0], 1);
	}
	if (rank > 0) {
		ranks_await(&flags[0], 1);
		CHECK_ERR(IST_OK, end(&m, begin(r, &m, p, "slept", rank - 1, 2)), &m.err);
		all_gather_ranks(&m, rank - 1, 2);
	}
	atomic_fetch_add(&flags[1], 1);
	ranks_await(&flags[1], 3);
	member_fini(&m);
	if (rank == 0)
		atomic_store(&flags[101], 1);
	return 0;
}

static void
who_is_left_alone_gives_the_name_up(void **state)
{
	static const enum way ways[] = { BY_MEMBER, BY_STORE };

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		struct place p = { .way = ways[i] };
		struct ranks r;

		ranks_init(&r, 4);
		snprintf(p.at, sizeof(p.at), "%s", r.at);
		for (uint32_t k = 0; k < (p.way == BY_STORE ? 4u : 3u); k++)
			ranks_start(&r, k, goes_on_elsewhere, &p);
		if (ranks_join(&r, 60, 0) != 0)
			fail_msg("way %d", p.way);
		ranks_fini(&r);
	}
}

/* ---- forming without waiting ---- */

/* Rank 2 of three never comes, and rank 0 has enough of it. */
static int
is_called_off(struct ranks *r, uint32_t rank, void *arg)
{
	struct place p = { .way = BY_MEMBER };
	uint32_t done = 0;
	struct ist_req *req;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	req = begin(r, &m, &p, "off", rank, 3);
	while (rank == 0 && !(m.err.n_ranks == 1 && m.err.ranks[0] == 2)) {
		CHECK_ERR(IST_OK, ist_req_test(req, &done, &m.err), &m.err);
		CHECK(!done);
		usleep(1000);
	}
	if (rank == 0)
		CHECK(ist_req_cancel(req) == IST_OK);
	CHECK_ERR(IST_ABORTED, end(&m, req), &m.err);
	CHECK(rank == 0 || (m.err.n_ranks == 1 && m.err.ranks[0] == 0));
	member_fini(&m);
	return 0;
}

static void
names_who_called_it_off(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 2);
	ranks_start_all(&r, is_called_off, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

static void
forms_in_the_background(void **state)
{
	struct place p = { .way = BY_MEMBER };
	uint32_t done = 0, fds, threads;
	struct ist_req *req;
	struct member m;
	struct ranks r;

	(void)state;
	ranks_init(&r, 1);
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r.at, "first", 0, 1, 20, 30), &m.err); /* whatever is made once, is */
	CHECK(ist_group_free(m.g) == IST_OK);
	m.g = NULL;
	fds = count_fds();
	threads = count_threads();
	for (uint32_t rank = 0; rank < 2; rank++) {
		req = begin(&r, &m, &p, "never", rank ? 3 : 0, 5);
		for (;;) {
			CHECK_ERR(IST_OK, ist_req_test(req, &done, &m.err), &m.err);
			assert_false(done);
			if (m.err.n_ranks == 4)
				break;
			usleep(1000);
		}
		for (uint32_t i = 0, at = 0; i < 5; i++)
			if (i != (rank ? 3u : 0u))
				assert_int_equal(m.err.ranks[at++], i);
		assert_int_equal(ist_req_group(req, &m.g, &m.err), IST_BAD_STATE);
		/* another group of the same endpoint does not mind */
		CHECK_ERR(IST_OK, member_join(&m, r.at, "meanwhile", 0, 1, 20, 30), &m.err);
		CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
		CHECK(ist_group_free(m.g) == IST_OK);
		m.g = NULL;
		CHECK(ist_req_cancel(req) == IST_OK);
		CHECK_ERR(IST_ABORTED, ist_req_wait(req, 20 * IST_NS_PER_S, &m.err), &m.err);
		CHECK(ist_req_free(req) == IST_OK);
		assert_int_equal(ist_req_test(req, &done, &m.err), IST_BAD_HANDLE);
	}
	/* what was held comes back; a connection that lingers does so for a second at most */
	for (int i = 0; i < 3000 && (count_fds() > fds || count_threads() > threads); i++)
		usleep(5000);
	assert_true(count_fds() <= fds);
	assert_true(count_threads() <= threads);
	req = begin(&r, &m, &p, "never", 0, 5); /* freed without a word */
	CHECK(ist_req_free(req) == IST_OK);
	member_fini(&m);
	ranks_fini(&r);
}

static void
refuses_a_wrong_way(void **state)
{
	struct ist_kv half = { .struct_size = sizeof(half), .set = toy_set };
	struct ist_kv kv = { .struct_size = sizeof(kv), .set = toy_set, .get = toy_get };
	struct ist_address a[2] = { { "x", 1 }, { "y", 1 } };
	struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = 0, .size = 2 };
	char mine[IST_ADDRESS_BYTES], prefix[2000];
	uint64_t n = sizeof(mine);
	struct member m;

	(void)state;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_new(m.ep, &ga, &m.g, &m.err), &m.err); /* none */
	ga.at = "tcp://127.0.0.1:1";
	ga.addresses = a;
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_new(m.ep, &ga, &m.g, &m.err), &m.err); /* two */
	ga.at = NULL;
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_new(m.ep, &ga, &m.g, &m.err), &m.err); /* no addresses */
	CHECK_ERR(IST_OK, ist_endpoint_address(m.ep, mine, &n, &m.err), &m.err);
	a[0] = a[1] = (struct ist_address){ mine, n };
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_new(m.ep, &ga, &m.g, &m.err), &m.err); /* one twice */
	for (uint64_t k = 0; k < n; k++) { /* cut anywhere */
		a[0].bytes = k;
		CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_new(m.ep, &ga, &m.g, &m.err), &m.err);
	}
	ga.addresses = NULL;
	ga.kv = &half;
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_new(m.ep, &ga, &m.g, &m.err), &m.err);
	ga.kv = &kv;
	memset(prefix, 'p', sizeof(prefix));
	prefix[sizeof(prefix) - 1] = 0;
	ga.prefix = prefix;
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_new(m.ep, &ga, &m.g, &m.err), &m.err);
	ga.kv = NULL;
	ga.at = "dir:";
	CHECK_ERR(IST_INVALID_ARGUMENT, ist_group_new(m.ep, &ga, &m.g, &m.err), &m.err);
	ga.at = "dir:/nonexistent/folder";
	CHECK_ERR(IST_IO, ist_group_new(m.ep, &ga, &m.g, &m.err), &m.err);
	assert_non_null(strstr(m.err.detail, "/nonexistent/folder"));
	member_fini(&m);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refuses_a_wrong_way),
		cmocka_unit_test(meets_every_way_in_every_order),
		cmocka_unit_test(shows_who_is_there),
		cmocka_unit_test(goes_on_without_its_store),
		cmocka_unit_test(passes_over_records_of_the_dead),
		cmocka_unit_test(finds_no_dead_ones_record_under_a_new_holders_lock),
		cmocka_unit_test(keeps_pairs_apart),
		cmocka_unit_test(makes_the_same_name_again),
		cmocka_unit_test(gives_a_dead_ones_rank_away),
		cmocka_unit_test(keeps_a_living_ones_rank),
		cmocka_unit_test(who_is_left_alone_gives_the_name_up),
		cmocka_unit_test(names_who_called_it_off),
		cmocka_unit_test(forms_in_the_background),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
