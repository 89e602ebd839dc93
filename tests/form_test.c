/* SPDX-License-Identifier: Apache-2.0
 *
 * What forming takes: a split dials nobody whom the parent's links lead to, and neither it nor a new group costs more because
 * others exist. Counts only, no times. And the vote in shared memory that ends it, by processes that vote, give up and die:
 * ist__form_vote itself, with what it sends, is in shared.pml, and in the tests of groups whose members die.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/env.h"
#include "group/life.h"
#include "ranks.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* From now on this thread can dial nobody. */
static void
forbid_connect(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_connect, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ECONNREFUSED),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { .len = sizeof(code) / sizeof(code[0]), .filter = code };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog, 0, 0));
	CHECK(connect(fd, (struct sockaddr *)&un, sizeof(un)) < 0 && errno == ECONNREFUSED);
	close(fd);
}

static void
split(struct member *m, uint32_t n, const uint32_t *ranks, struct ist_group **out)
{
	struct ist_split_args a = { .struct_size = sizeof(a), .n_ranks = n, .ranks = ranks, .name = "part", .timeout_ns = 60 * INT64_C(1000000000) };

	CHECK_ERR(IST_OK, ist_group_split(m->g, &a, out, &m->err), &m->err);
}

static int
splits_without_dialling(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t turned[] = { 2, 0, 3, 1 }, some[] = { 3, 1 };
	struct ist_group *all, *two = NULL;
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "whole", rank, r->n, 60, 30), &m.err);
	forbid_connect();
	split(&m, 4, turned, &all);
	CHECK_ERR(IST_OK, ist_barrier(all, 0, &m.err), &m.err);
	if (rank % 2)
		split(&m, 2, some, &two);
	/* each lives for itself: the parent's end is not the end of its children */
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	ist_group_free(m.g);
	m.g = NULL;
	CHECK_ERR(IST_OK, ist_barrier(all, 0, &m.err), &m.err);
	if (two) {
		CHECK_ERR(IST_OK, ist_barrier(two, 0, &m.err), &m.err);
		ist_group_free(two);
	}
	CHECK_ERR(IST_OK, ist_barrier(all, 0, &m.err), &m.err);
	ist_group_free(all);
	member_fini(&m);
	return 0;
}

static void
a_split_dials_nobody(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, splits_without_dialling, NULL);
	assert_int_equal(ranks_join(&r, 100, 0), 0);
	ranks_fini(&r);
}

/* Connections of a group that has just ended linger until both sides have closed: they must go, and so many must be left. */
static void
await_fds(struct member *m, uint32_t want)
{
	time_t until = time(NULL) + 60;

	while (count_fds() != want && time(NULL) < until)
		sched_yield();
	if (count_fds() != want)
		fprintf(stderr, "%u descriptors are open, not %u\n", count_fds(), want);
	CHECK(count_fds() == want);
	CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
}

/* The least that is seen after all are there. */
static uint32_t
least_fds(struct member *m)
{
	uint32_t least = UINT32_MAX;

	CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
	for (int same = 0; same < 300; same++) { /* so often in a row, nothing more went */
		uint32_t n = count_fds();

		if (n < least)
			same = 0;
		least = n < least ? n : least;
		sched_yield();
	}
	CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
	return least;
}

struct cost {
	uint32_t made, split; /* descriptors */
	uint64_t messages;
};

static struct cost
cost_now(struct ranks *r, struct member *m, uint32_t rank, uint32_t before)
{
	static const uint32_t ranks[] = { 0, 1, 2, 3 };
	struct ist_group *whole = m->g, *part;
	struct ist_group_info info = { .struct_size = sizeof(info) };
	struct cost c;

	CHECK_ERR(IST_OK, member_join(m, r->at, "probe", rank, r->n, 60, 30), &m->err);
	c.made = least_fds(m) - before;
	ist_group_free(m->g);
	m->g = whole;
	await_fds(m, before);
	split(m, 4, ranks, &part);
	CHECK_ERR(IST_OK, ist_group_info(part, &info, &m->err), &m->err);
	c.messages = info.messages;
	c.split = least_fds(m) - before;
	ist_group_free(part);
	await_fds(m, before);
	return c;
}

enum { OTHERS = 20 };

static int
costs_the_same(struct ranks *r, uint32_t rank, void *arg)
{
	struct ist_group *others[OTHERS], *whole;
	struct cost alone, among;
	struct member m;
	uint32_t before;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "whole", rank, r->n, 60, 30), &m.err);
	before = least_fds(&m);
	alone = cost_now(r, &m, rank, before);
	whole = m.g;
	for (uint32_t i = 0; i < OTHERS; i++) {
		char name[32];

		snprintf(name, sizeof(name), "other %u", i);
		CHECK_ERR(IST_OK, member_join(&m, r->at, name, rank, r->n, 60, 30), &m.err);
		others[i] = m.g;
	}
	m.g = whole;
	await_fds(&m, before + OTHERS * alone.made);
	among = cost_now(r, &m, rank, before + OTHERS * alone.made);
	if (rank == 0)
		printf("descriptors of a new group: %u, of a split: %u; messages %llu; with %d other groups: %u, %u; %llu\n", alone.made, alone.split,
			(unsigned long long)alone.messages, OTHERS, among.made, among.split, (unsigned long long)among.messages);
	CHECK(alone.made > 0 && alone.split > 0);
	CHECK(alone.made == among.made && alone.split == among.split && alone.messages == among.messages);
	for (uint32_t i = 0; i < OTHERS; i++)
		ist_group_free(others[i]);
	ist_group_free(m.g);
	m.g = NULL;
	member_fini(&m);
	return 0;
}

static void
others_cost_nothing(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 4);
	ranks_start_all(&r, costs_the_same, NULL);
	assert_int_equal(ranks_join(&r, 200, 0), 0);
	ranks_fini(&r);
}

enum { ROUNDS = 60, VOTERS = 3 };

struct ballot { /* in shared memory */
	_Atomic uint32_t ready, voted;
	_Atomic uint32_t saw[VOTERS]; /* enum ist__outcome, as each found it in the end */
};

struct polling {
	int fd;
	uint32_t round;
};

/* What a member does in a round follows from its number: it votes, gives up instead, votes and gives up, or dies before or after. */
enum { VOTES, REFUSES, GIVES_UP, DIES_FIRST, DIES_AFTER, WAYS };

static uint32_t
way_of(uint32_t round, uint32_t rank)
{
	return round % 3 == 0 ? (rank == round / 3 % VOTERS ? round / 9 % WAYS : VOTES) : (round / 7 + rank * (round % 5 + 1)) % WAYS;
}

static int
votes(struct ranks *r, uint32_t rank, void *arg)
{
	const struct polling *p = arg;
	struct ballot *b = (struct ballot *)r->shared + p->round;
	struct ist__life *life = NULL;
	enum ist__outcome seen;
	struct ist__keeper *k;
	struct ist_error err;
	struct ist_env *env;
	bool first;
	uint32_t way = way_of(p->round, rank);

	ist_error_init(&err);
	CHECK_ERR(IST_OK, ist_env_new(&(struct ist_env_args){ .struct_size = sizeof(struct ist_env_args) }, &env, &err), &err);
	CHECK((k = ist__keeper_new(env, NULL, NULL, &err)) != NULL);
	CHECK_ERR(IST_OK, ist__life_map(ist__env_ctx(env), p->fd, VOTERS, 0, &life, &err), &err);
	ist__life_hold(life, k, rank);
	CHECK_ERR(IST_OK, ist__life_await_hold(life, &err), &err);
	b->ready++;
	ranks_await(&b->ready, VOTERS);
	if (way == DIES_FIRST)
		raise(SIGKILL);
	if (way == REFUSES) {
		b->saw[rank] = ist__life_settle(life, IST__NO, &first);
		CHECK(b->saw[rank] == IST__NO); /* without its vote there is no yes */
	} else {
		ist__life_vote(life);
		b->voted++;
		if (way == DIES_AFTER)
			raise(SIGKILL);
		if (way == GIVES_UP)
			ist__life_settle(life, IST__NO, &first);
		while (!(seen = ist__life_outcome(life)))
			if (ist__life_look(life, (rank + 1) % VOTERS) == IST__ALIVE_DEAD || ist__life_look(life, (rank + 2) % VOTERS) == IST__ALIVE_DEAD)
				ist__life_settle(life, IST__NO, &first); /* whoever sees that: the word counts, not the sight */
			else
				sched_yield();
		b->saw[rank] = seen;
	}
	ist__life_free(life);
	ist__keeper_free(k);
	ist_env_free(env);
	return 0;
}

/* All that live have seen one and the same outcome, and yes only where all had voted. */
static void
count(const struct ballot *b, uint32_t round, uint32_t *yes, uint32_t *no)
{
	uint32_t said[3] = { 0 }, all = 0, living = 0;

	for (uint32_t i = 0; i < VOTERS; i++) {
		uint32_t way = way_of(round, i);

		said[b->saw[i]]++;
		living += way != DIES_FIRST && way != DIES_AFTER;
		all += way == VOTES;
	}
	assert_int_equal(said[IST__OPEN], VOTERS - living);
	assert_true(said[IST__ALL_YES] == 0 || said[IST__NO] == 0);
	assert_true(said[IST__ALL_YES] == 0 || b->voted == VOTERS);
	if (all == VOTERS)
		assert_int_equal(said[IST__ALL_YES], VOTERS);
	*yes += said[IST__ALL_YES] > 0;
	*no += said[IST__NO] > 0;
}

static void
nobody_is_in_doubt(void **state)
{
	struct ist_env *env;
	struct ist__life *life;
	uint32_t yes = 0, no = 0;
	struct ranks r;

	(void)state;
	_Static_assert(ROUNDS * sizeof(struct ballot) <= 65536, "fits");
	assert_int_equal(ist_env_new(&(struct ist_env_args){ .struct_size = sizeof(struct ist_env_args) }, &env, NULL), IST_OK);
	ranks_init(&r, VOTERS);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct polling p = { .round = i };
		uint64_t dying = 0;

		assert_int_equal(ist__life_new(ist__env_ctx(env), VOTERS, 0, &life, &p.fd, NULL), IST_OK);
		for (uint32_t v = 0; v < VOTERS; v++)
			dying |= (way_of(i, v) >= DIES_FIRST ? UINT64_C(1) : 0) << v;
		ranks_start_all(&r, votes, &p);
		assert_int_equal(ranks_join(&r, 60, dying), 0);
		count((struct ballot *)r.shared + i, i, &yes, &no);
		ist__life_free(life);
		close(p.fd);
	}
	assert_true(yes > 0 && no > 0);
	ranks_fini(&r);
	ist_env_free(env);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_split_dials_nobody),
		cmocka_unit_test(others_cost_nothing),
		cmocka_unit_test(nobody_is_in_doubt),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
