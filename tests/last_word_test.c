/* SPDX-License-Identifier: Apache-2.0
 *
 * Rank 0 is stopped between its last words: who has not heard that all have voted yes hears it from those who have the group, or
 * from the memory that all look at, and nobody waits for rank 0. Its words are counted, and its own vote in memory held back
 * until the others sleep, so that it is always the same moment.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "group/endpoint.h"
#include "group/form_int.h"
#include "group/life.h"
#include "net/wire.h"
#include "ranks.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMBERS = 4, FIRST = 1, SECOND = 2 };

struct course {
	bool apart;     /* as if each were on a host of its own */
	uint32_t before; /* which of its last words rank 0 is stopped before */
};

static uint32_t stop_before; /* 0: not armed */
static uint32_t words;

bool __real_ist__msg_send(struct ist__conn *conn, const struct ist__msg *head, const void *body, uint64_t bytes);
bool __wrap_ist__msg_send(struct ist__conn *conn, const struct ist__msg *head, const void *body, uint64_t bytes);
bool __real_ist__life_vote(struct ist__life *life);
bool __wrap_ist__life_vote(struct ist__life *life);

bool
__wrap_ist__msg_send(struct ist__conn *conn, const struct ist__msg *head, const void *body, uint64_t bytes)
{
	if (stop_before && head->type == IST__PHASE && head->seq == IST__STEP_VOTE && ++words == stop_before) {
		stop_before = 0;
		kill(getpid(), SIGSTOP);
	}
	return __real_ist__msg_send(conn, head, body, bytes);
}

/* The last vote is rank 0's, and it is given when the others wait for a message. */
bool
__wrap_ist__life_vote(struct ist__life *life)
{
	for (uint32_t i = 1; stop_before && i < MEMBERS; i++)
		while (!ist__life_asleep(life, i))
			sched_yield();
	return __real_ist__life_vote(life);
}

static void
arm(const struct course *c, uint32_t rank)
{
	words = 0;
	stop_before = rank == 0 ? c->before : 0;
}

static int
member(struct ranks *r, uint32_t rank, void *arg)
{
	static const uint32_t ranks[MEMBERS] = { 0, 1, 2, 3 };
	const struct course *c = arg;
	struct ist_split_args a = { .struct_size = sizeof(a), .n_ranks = MEMBERS, .ranks = ranks, .name = "part", .timeout_ns = 40 * INT64_C(1000000000) };
	_Atomic uint32_t *through = r->shared;
	struct ist_group *part;
	struct member m;

	member_init(&m, IST_TRANSPORT_AUTO);
	if (c->apart)
		memset(m.ep->ep->card.host_hint, (int)rank + 1, sizeof(m.ep->ep->card.host_hint));
	arm(c, rank);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "words", rank, MEMBERS, 40, 60), &m.err);
	atomic_fetch_add(&through[0], rank != 0);
	all_gather_ranks(&m, rank, MEMBERS); /* with rank 0, which goes on when the others are through */
	arm(c, rank);
	CHECK_ERR(IST_OK, ist_group_split(m.g, &a, &part, &m.err), &m.err);
	atomic_fetch_add(&through[1], rank != 0);
	CHECK_ERR(IST_OK, ist_barrier(part, 0, &m.err), &m.err);
	ist_group_free(part);
	member_fini(&m);
	return 0;
}

static void
run(bool apart, uint32_t before)
{
	struct course c = { .apart = apart, .before = before };
	_Atomic uint32_t *through;
	struct ranks r;

	ranks_init(&r, MEMBERS);
	through = r.shared;
	ranks_start_all(&r, member, &c);
	for (int i = 0; i < 2; i++) {
		int status;

		assert_int_equal(waitpid(r.pid[0], &status, WUNTRACED), r.pid[0]);
		assert_true(WIFSTOPPED(status));
		ranks_await(&through[i], MEMBERS - 1);
		kill(r.pid[0], SIGCONT);
	}
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* One member has heard it, by a message; the others hear it from that one. */
static void
who_has_the_group_tells_those_who_wait(void **state)
{
	(void)state;
	run(true, SECOND);
}

/* All look at one memory, and sleep: the one that is woken tells the others, or nobody is, and each looks for itself. */
static void
the_outcome_in_memory_is_found_by_who_sleeps(void **state)
{
	(void)state;
	run(false, SECOND);
	run(false, FIRST);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_has_the_group_tells_those_who_wait),
		cmocka_unit_test(the_outcome_in_memory_is_found_by_who_sleeps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
