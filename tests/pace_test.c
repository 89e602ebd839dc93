/* SPDX-License-Identifier: Apache-2.0
 *
 * pace_test.c - members that hold up the others: who is given up, who is not, and what everybody hears of it. The verdict
 * alone, and then real processes whose sinks take their time. */
#include "ranks.h"

#include "sync/pace.h"

#include <isthmus/sync.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define MS INT64_C(1000000)

/* ---- the verdict ---- */

enum { SOURCE = IST__ROLE_SOURCE, SINK = IST__ROLE_SINK, IDLE = 0, SEEN = 8 };

/* Seconds of a window of 20. */
struct seen {
	uint32_t role;
	enum ist__pace_state state;
	uint64_t done, busy_s, wait_s, still_s;
};

static ist_err
judge(const struct seen *seen, uint32_t n, uint32_t knows, uint64_t *given_up)
{
	uint64_t words[SEEN * IST_MARK_WORDS];
	uint8_t known[SEEN], out[SEEN];
	struct ist__pace_view v = { .slow_ns = 10 * IST_NS_PER_S, .still_ns = 30 * IST_NS_PER_S, .epoch = 7, .size = n, .words = words,
		.known = known };
	ist_err e;

	memset(words, 0, sizeof(words));
	for (uint32_t r = 0; r < n; r++) {
		uint64_t *w = words + (size_t)r * IST_MARK_WORDS;

		known[r] = knows >> r & 1 ? IST_MARK_NOW : IST_MARK_ONCE;
		w[IST__MARK_WHAT] = seen[r].role | (uint64_t)seen[r].state << 8;
		w[IST__MARK_EPOCH] = seen[r].state == IST__PACE_OFF ? 0 : 7;
		w[IST__MARK_DONE] = seen[r].done;
		w[IST__MARK_BUSY] = seen[r].busy_s * 1000000000;
		w[IST__MARK_WAIT] = seen[r].wait_s * 1000000000;
		w[IST__MARK_STILL] = seen[r].still_s * 1000000000;
	}
	e = ist__pace_judge(&v, out);
	*given_up = 0;
	for (uint32_t r = 0; r < n; r++)
		*given_up |= (uint64_t)out[r] << r;
	return e;
}

#define WORK IST__PACE_WORK
#define WAIT IST__PACE_WAIT

static void
who_is_too_slow(void **unused)
{
	const struct seen fast = { SINK, WAIT, 20, 1, 18, 1 }, slow = { SINK, WORK, 18, 19, 0, 1 }, source = { SOURCE, WAIT, 20, 2, 18, 1 };
	const struct seen stuck = { SINK, WORK, 0, 11, 0, 11 };
	uint64_t up;

	(void)unused;
	assert_int_equal(judge((struct seen[]){ source, fast, slow, fast }, 4, 15, &up), IST_SLOW_PEER);
	assert_int_equal(up, 4);
	assert_int_equal(judge((struct seen[]){ source, fast, slow, fast, stuck }, 5, 31, &up), IST_SLOW_PEER);
	assert_int_equal(up, 4 | 16);
	assert_int_equal(judge((struct seen[]){ source, fast, slow }, 3, 7, &up), IST_SLOW_PEER);
	assert_int_equal(up, 4);
	assert_int_equal(judge((struct seen[]){ source, { IDLE, WAIT, 20, 0, 19, 1 }, fast, stuck }, 4, 15, &up), IST_SLOW_PEER);
	assert_int_equal(up, 8);
}

static void
who_is_not(void **unused)
{
	const struct seen fast = { SINK, WAIT, 20, 1, 18, 1 }, slow = { SINK, WORK, 18, 19, 0, 1 }, source = { SOURCE, WAIT, 20, 2, 18, 1 };
	const struct seen busy_source = { SOURCE, WORK, 20, 19, 1, 1 }, both = { SOURCE | SINK, WORK, 18, 19, 0, 1 };
	const struct seen twice = { SINK, WORK, 20, 3, 16, 1 }, brief = { SINK, WAIT, 20, 1, 5, 1 }, done = { SINK, IST__PACE_OFF, 0, 0, 0, 0 };
	uint64_t up;

	(void)unused;
	assert_int_equal(judge((struct seen[]){ source, slow }, 2, 3, &up), IST_OK);              /* the only sink */
	assert_int_equal(judge((struct seen[]){ source, slow, slow }, 3, 7, &up), IST_OK);        /* all */
	assert_int_equal(judge((struct seen[]){ source, slow, fast, slow }, 4, 15, &up), IST_OK); /* most */
	assert_int_equal(judge((struct seen[]){ busy_source, fast, slow }, 3, 7, &up), IST_OK);   /* nobody waits for it alone */
	assert_int_equal(judge((struct seen[]){ source, fast, both }, 3, 7, &up), IST_OK);        /* gives, too */
	assert_int_equal(judge((struct seen[]){ source, fast, twice }, 3, 7, &up), IST_OK);       /* but it waits as well */
	assert_int_equal(judge((struct seen[]){ source, brief, slow }, 3, 7, &up), IST_OK);       /* not long enough */
	assert_int_equal(judge((struct seen[]){ source, fast, slow }, 3, 3, &up), IST_OK);        /* it does not answer */
	assert_int_equal(judge((struct seen[]){ source, done, slow }, 3, 7, &up), IST_OK);        /* not all are in it */
	assert_int_equal(up, 0);
}

static void
who_stands_still(void **unused)
{
	const struct seen waits = { SINK, WAIT, 0, 0, 20, 28 }, source = { SOURCE, WAIT, 0, 0, 20, 28 }, still = { SINK, WORK, 0, 20, 0, 31 };
	const struct seen moves = { SINK, WORK, 0, 20, 0, 2 }, reads = { SOURCE, WORK, 0, 20, 0, 31 };
	uint64_t up;

	(void)unused;
	assert_int_equal(judge((struct seen[]){ source, still }, 2, 3, &up), IST_NO_PROGRESS);
	assert_int_equal(up, 2);
	assert_int_equal(judge((struct seen[]){ source, still, waits, still, still }, 5, 31, &up), IST_NO_PROGRESS);
	assert_int_equal(up, 2 | 8 | 16);
	assert_int_equal(judge((struct seen[]){ source, moves }, 2, 3, &up), IST_OK);
	assert_int_equal(judge((struct seen[]){ source, still, moves, still }, 4, 15, &up), IST_OK);
	assert_int_equal(judge((struct seen[]){ reads, waits }, 2, 3, &up), IST_OK);
	assert_int_equal(up, 0);
}

/* ---- real members ---- */

enum { TENSORS = 24, EACH = 65536, NONE = 99 };

enum manner { QUICK = 0, DAWDLES, HANGS, STOPS, STOPS_ALL };

struct job {
	uint32_t n_sources, on_loss;
	uint32_t victim;
	enum manner manner;        /* of the victim, in its second update */
	enum manner others;        /* of the other sinks */
	int64_t dawdle_ns, slow_ns;
	double no_progress_s;
	ist_err want, lost;        /* on the others: how it ends, and what the victim is reported with */
	ist_err own;               /* on the victim */
};

/* What all see. */
struct board {
	_Atomic uint32_t over;     /* members that are through with the second update */
	_Atomic int32_t pid;       /* of one that has stopped */
	_Atomic int32_t pids[8];
};

struct sink {
	struct board *board;
	enum manner manner;
	int64_t dawdle_ns;
	uint32_t others;           /* members but this one */
	uint64_t pieces, committed;
	uint8_t last;
};

/* Somebody outside the group stops all its members, and lets them go on after a while. */
static void
stop_all(struct board *board)
{
	const struct timespec t = { .tv_sec = 1, .tv_nsec = 500 * MS };
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (child == 0) {
		for (int turn = 0; turn < 2; turn++) {
			for (int i = 0; i < 8; i++)
				if (board->pids[i] > 0)
					kill(board->pids[i], turn == 0 ? SIGSTOP : SIGCONT);
			if (turn == 0)
				nanosleep(&t, NULL);
		}
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static ist_err
take(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct sink *k = ctx;
	struct timespec t = { .tv_nsec = (long)k->dawdle_ns };

	(void)err;
	CHECK(index < TENSORS && offset == 0 && bytes == EACH);
	k->last = *(const uint8_t *)addr;
	k->pieces++;
	if (k->manner == DAWDLES)
		nanosleep(&t, NULL);
	if (k->manner == HANGS && k->pieces == 5)
		ranks_await(&k->board->over, k->others);
	if (k->manner == STOPS && k->pieces == 5) {
		atomic_store(&k->board->pid, (int32_t)getpid());
		raise(SIGSTOP);
	}
	if (k->manner == STOPS_ALL && k->pieces == 5) {
		nanosleep(&t, NULL); /* the others come to where they wait for this one */
		stop_all(k->board);
	}
	return IST_OK;
}

static void
committed(void *ctx, uint64_t version)
{
	((struct sink *)ctx)->committed = version;
}

struct party {
	struct member m;
	struct ist_sync *sync;
	struct ist_checkpoint *ck;
	struct ist_sink *to;
	struct sink sink;
	uint8_t *memory;
};

static void
set_up(struct party *p, const struct job *j, struct ranks *r, uint32_t rank)
{
	struct ist_sync_args args = { .struct_size = sizeof(args), .on_loss = j->on_loss, .bucket_bytes = EACH, .slow_ns = j->slow_ns };
	struct ist_sink_ops ops = { .struct_size = sizeof(ops), .ctx = &p->sink, .piece = take, .commit = committed };
	struct ist_tensor t[TENSORS];
	char names[TENSORS][16];

	CHECK_ERR(IST_OK, ist_sync_new(p->m.g, &args, &p->sync, &p->m.err), &p->m.err);
	p->memory = malloc((size_t)TENSORS * EACH);
	p->sink.board = r->shared;
	p->sink.others = r->n - 1;
	p->sink.dawdle_ns = j->dawdle_ns;
	memset(t, 0, sizeof(t));
	for (uint32_t i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "t.%u", i);
		t[i] = (struct ist_tensor){ .struct_size = sizeof(t[i]), .rank = 1, .name = names[i], .dtype = "U8", .shape = { EACH }, .bytes = EACH,
			.addr = p->memory + (size_t)i * EACH };
	}
	if (rank < j->n_sources) {
		CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(p->m.env, t, TENSORS, &p->ck, &p->m.err), &p->m.err);
		CHECK_ERR(IST_OK, ist_sync_source(p->sync, p->ck, 0, 0, &p->m.err), &p->m.err);
	} else {
		CHECK_ERR(IST_OK, ist_sink_custom(p->m.env, &ops, &p->to, &p->m.err), &p->m.err);
		CHECK_ERR(IST_OK, ist_sync_sink(p->sync, p->to, &p->m.err), &p->m.err);
	}
	CHECK_ERR(IST_OK, ist_sync_gather(p->sync, 0, &p->m.err), &p->m.err);
}

static void
tear_down(struct party *p)
{
	ist_sync_free(p->sync);
	ist_sink_free(p->to);
	ist_checkpoint_free(p->ck);
	member_fini(&p->m);
	free(p->memory);
}

static ist_err
update(struct party *p, uint32_t version, struct ist_report *rep)
{
	memset(p->memory, (int)version, (size_t)TENSORS * EACH);
	*rep = (struct ist_report){ .struct_size = sizeof(*rep) };
	p->sink.pieces = 0;
	return ist_sync_update(p->sync, NULL, rep, &p->m.err);
}

static void
check_victim(struct party *p, uint32_t rank)
{
	uint32_t kind;
	uint64_t version;

	CHECK(p->m.err.n_ranks == 1 && p->m.err.ranks[0] == rank);
	CHECK(p->m.err.n_per_rank == 1 && p->m.err.per_rank[0].rank == rank);
	CHECK(p->m.err.per_rank[0].code == IST_SLOW_PEER || p->m.err.per_rank[0].code == IST_NO_PROGRESS);
	CHECK(ist_sync_state(p->sync, &kind, &version, NULL, NULL) == IST_OK);
	CHECK(kind == IST_CLEAN && version == 1 && p->sink.committed == 1);
}

static int
take_part(struct ranks *r, uint32_t rank, void *arg)
{
	const struct job *j = arg;
	struct board *board = r->shared;
	struct ist_report rep;
	struct party p;
	bool victim = rank == j->victim;
	ist_err want = victim ? j->own : j->want;

	memset(&p, 0, sizeof(p));
	member_init(&p.m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&p.m, r->at, "pace", rank, r->n, 60, j->no_progress_s), &p.m.err);
	atomic_store(&board->pids[rank], (int32_t)getpid());
	set_up(&p, j, r, rank);
	CHECK_ERR(IST_OK, update(&p, 1, &rep), &p.m.err);
	p.sink.manner = victim ? j->manner : j->others;
	CHECK_ERR(want, update(&p, 2, &rep), &p.m.err);
	atomic_fetch_add(&board->over, 1);
	if (victim && want) {
		check_victim(&p, rank);
		tear_down(&p);
		return 0;
	}
	if (want) {
		CHECK(p.m.err.n_ranks == 1 && p.m.err.ranks[0] == j->victim);
	} else {
		CHECK(rep.version == 2 && rep.verified && rep.n_lost == (j->lost ? 1u : 0u));
		CHECK(!j->lost || (rep.lost[0].rank == j->victim && rep.lost[0].code == j->lost));
		CHECK(!p.to || (p.sink.committed == 2 && p.sink.last == 2));
		p.sink.manner = QUICK;
		CHECK_ERR(IST_OK, update(&p, 3, &rep), &p.m.err); /* they go on, without it */
		CHECK(!p.to || (p.sink.committed == 3 && p.sink.last == 3));
	}
	if (rank == 0 && atomic_load(&board->pid) > 0)
		kill((pid_t)atomic_load(&board->pid), SIGKILL);
	tear_down(&p);
	return 0;
}

static void
play(uint32_t n, struct job j)
{
	struct ranks r;

	ranks_init(&r, n);
	ranks_start_all(&r, take_part, &j);
	assert_int_equal(ranks_join(&r, 120, j.manner == STOPS ? UINT64_C(1) << j.victim : 0), 0);
	ranks_fini(&r);
}

static void
a_slow_reader_is_left_behind(void **unused)
{
	(void)unused;
	play(4, (struct job){ .n_sources = 1, .on_loss = IST_ON_LOSS_CONTINUE, .victim = 2, .manner = DAWDLES, .dawdle_ns = 150 * MS,
		.slow_ns = 400 * MS, .no_progress_s = 20, .lost = IST_SLOW_PEER, .own = IST_EVICTED });
	play(4, (struct job){ .n_sources = 2, .on_loss = IST_ON_LOSS_CONTINUE, .victim = 3, .manner = HANGS, .slow_ns = 300 * MS, .no_progress_s = 20,
		.lost = IST_SLOW_PEER, .own = IST_EVICTED });
}

static void
the_limit_comes_from_no_progress(void **unused)
{
	(void)unused;
	play(4, (struct job){ .n_sources = 1, .on_loss = IST_ON_LOSS_CONTINUE, .victim = 1, .manner = HANGS, .no_progress_s = 3,
		.lost = IST_SLOW_PEER, .own = IST_EVICTED });
}

static void
slowness_alone_is_no_failure(void **unused)
{
	struct job j = { .n_sources = 1, .victim = 2, .manner = DAWDLES, .dawdle_ns = 60 * MS, .slow_ns = 200 * MS, .no_progress_s = 20 };

	(void)unused;
	play(4, j); /* on_loss fail */
	j.on_loss = IST_ON_LOSS_CONTINUE;
	play(3, (struct job){ .n_sources = 2, .on_loss = IST_ON_LOSS_CONTINUE, .victim = 2, .manner = DAWDLES, .dawdle_ns = 60 * MS, .slow_ns = 200 * MS,
		.no_progress_s = 20 }); /* the only sink */
	j.slow_ns = -1;
	play(4, j); /* never */
	j.slow_ns = IST_NS_PER_S / 2;
	j.others = DAWDLES;
	play(4, j); /* all of them */
}

static void
one_that_stands_still_is_told_from_a_slow_one(void **unused)
{
	(void)unused;
	play(4, (struct job){ .n_sources = 1, .victim = 2, .manner = HANGS, .no_progress_s = 2, .want = IST_NO_PROGRESS, .own = IST_EVICTED });
	play(4, (struct job){ .n_sources = 1, .on_loss = IST_ON_LOSS_CONTINUE, .victim = 2, .manner = HANGS, .no_progress_s = 2, .slow_ns = -1,
		.lost = IST_NO_PROGRESS, .own = IST_EVICTED });
}

static void
a_stopped_process_is_no_slow_one(void **unused)
{
	(void)unused;
	play(4, (struct job){ .n_sources = 1, .victim = 2, .manner = STOPS, .no_progress_s = 2, .want = IST_NO_PROGRESS });
	play(4, (struct job){ .n_sources = 1, .on_loss = IST_ON_LOSS_CONTINUE, .victim = 2, .manner = STOPS, .no_progress_s = 2, .slow_ns = 300 * MS,
		.lost = IST_NO_PROGRESS });
}

static void
all_that_were_stopped_are_no_slow_ones(void **unused)
{
	(void)unused;
	play(4, (struct job){ .n_sources = 1, .on_loss = IST_ON_LOSS_CONTINUE, .victim = 2, .manner = STOPS_ALL, .dawdle_ns = 100 * MS,
		.slow_ns = 400 * MS, .no_progress_s = 20 });
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_is_too_slow),
		cmocka_unit_test(who_is_not),
		cmocka_unit_test(who_stands_still),
		cmocka_unit_test(a_slow_reader_is_left_behind),
		cmocka_unit_test(the_limit_comes_from_no_progress),
		cmocka_unit_test(slowness_alone_is_no_failure),
		cmocka_unit_test(one_that_stands_still_is_told_from_a_slow_one),
		cmocka_unit_test(a_stopped_process_is_no_slow_one),
		cmocka_unit_test(all_that_were_stopped_are_no_slow_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
