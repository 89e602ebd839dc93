/* SPDX-License-Identifier: Apache-2.0
 *
 * conformance_move.c - checks of what SEND and RECV promise: every byte, in order, nothing outside, and honest numbers.
 */
#include "conformance_rig.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t sizes[] = { 0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 1000, 4095, 4096, 4097, 32767, 32768, 65535, 65536, 65537,
	100003, 262143, 262144, 262145, 1048575, 1048576, 1048577, 3000001 };
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void
every_byte_body(struct cf_rank *r)
{
	for (uint32_t i = 0; i < N_SIZES; i++)
		cf_ring(r, sizes[i], i);
	for (uint32_t skew = 0; skew < 16; skew++)
		cf_ring(r, 5000 + skew, skew);
}

static void
every_byte_arrives(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, every_byte_body);
}

static void
every_byte_arrives_across_processes(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_PROCESSES, every_byte_body);
}

static void
three_body(struct cf_rank *r)
{
	static const uint64_t some[] = { 0, 1, 4097, 1000003 };

	for (uint32_t i = 0; i < 4; i++)
		cf_ring(r, some[i], i);
}

static void
groups_of_many(struct cf *t)
{
	static const uint32_t ranks[] = { 3, 4, 7 };

	cf_need(t, 3);
	for (int i = 0; i < 3; i++) {
		if (!t->shared->size_ok[ranks[i]])
			continue;
		cf_ranks(t, ranks[i], CF_THREADS, three_body);
		cf_ranks(t, ranks[i], CF_PROCESSES, three_body);
	}
}

static void
group_of_one(struct cf *t)
{
	cf_need(t, 1);
	cf_ranks(t, 1, CF_THREADS, three_body);
}

static void
big_body(struct cf_rank *r)
{
	cf_ring(r, (UINT64_C(64) << 20) + 5, 3);
}

static void
big_messages_arrive(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, big_body);
}

/* Only the walls are looked at here: what arrives is the business of others. */
static void
walls_body(struct cf_rank *r)
{
	for (uint32_t i = 0; i < N_SIZES; i++) {
		struct cf_buf src = cf_buf_new(r->t, sizes[i], i), dst = cf_buf_new(r->t, sizes[i], 2 * i + 1);
		struct ist_op ops[2] = { cf_send(cf_next(r), i, src.addr, sizes[i]), cf_recv(cf_prev(r), i, dst.addr, sizes[i]) };

		cf_stage(r->t, "an exchange of %llu bytes", (unsigned long long)sizes[i]);
		cf_fill(src.addr, sizes[i], i);
		cf_done(r, cf_start(r, ops, 2));
		CF_CHECK(r->t, cf_walls_stand(&dst), "a RECV of %llu bytes wrote outside of its buffer", (unsigned long long)sizes[i]);
		CF_CHECK(r->t, cf_walls_stand(&src) && cf_differs(src.addr, sizes[i], i) == UINT64_MAX, "a SEND wrote to its src");
		cf_buf_free(&src);
		cf_buf_free(&dst);
	}
}

static void
nothing_is_written_outside(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, walls_body);
}

static void
nowhere_body(struct cf_rank *r)
{
	struct ist_op ops[2] = { cf_send(cf_next(r), 1, NULL, 0), cf_recv(cf_prev(r), 1, NULL, 0) };

	cf_stage(r->t, "an exchange of no bytes without an address");
	cf_done(r, cf_start(r, ops, 2));
	cf_ring(r, 100, 0);
}

static void
zero_bytes_need_no_address(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, nowhere_body);
}

enum { ORDER = 96, ORDER_BYTES = 512 };

/* All are under way at once, each a start of its own. */
static void
order_body(struct cf_rank *r)
{
	static const uint64_t bytes[2] = { ORDER_BYTES, 300 << 10 };
	bool in_turn = r->t->shared->traits & IST_TRAIT_ONE_ORDER; /* what is started later may wait: a SEND and a RECV go together */

	for (int round = 0; round < 2; round++) {
		struct ist_task *sends[ORDER], *recvs[ORDER];
		struct cf_buf src[ORDER], dst[ORDER];
		uint64_t n = round == 0 ? ORDER : 8;

		cf_stage(r->t, "%llu messages of %llu bytes one behind the other", (unsigned long long)n, (unsigned long long)bytes[round]);
		for (uint64_t i = 0; i < n; i++) {
			src[i] = cf_buf_new(r->t, bytes[round], 0);
			dst[i] = cf_buf_new(r->t, bytes[round], 0);
			cf_fill(src[i].addr, bytes[round], 1000 * (r->rank + 1) + i);
		}
		for (uint64_t i = 0; i < n; i++) {
			struct ist_op s = cf_send(cf_next(r), 10 + i, src[i].addr, bytes[round]);
			struct ist_op v = cf_recv(cf_prev(r), 10 + i, dst[i].addr, bytes[round]);

			sends[i] = in_turn ? cf_start(r, (struct ist_op[]){ s, v }, 2) : cf_start(r, &s, 1);
			recvs[i] = in_turn ? NULL : cf_start(r, &v, 1);
		}
		for (uint64_t i = 0; i < n; i++) {
			cf_done(r, in_turn ? sends[i] : recvs[i]);
			CF_CHECK(r->t, cf_differs(dst[i].addr, bytes[round], 1000 * (cf_prev(r) + 1) + i) == UINT64_MAX,
				"message %llu did not arrive in its turn", (unsigned long long)i);
			if (!in_turn)
				cf_done(r, sends[i]);
			cf_buf_free(&src[i]);
			cf_buf_free(&dst[i]);
		}
	}
}

static void
messages_keep_their_order(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, order_body);
}

/* RECVs stand first in the list, and everybody sends 8 MiB to everybody: none may wait for another of the same start. */
static void
together_body(struct cf_rank *r)
{
	uint64_t bytes = r->n <= 2 ? 2 << 20 : 300000, n = 0, per = 4;
	struct ist_op ops[2 * 4 * CF_RANKS_MAX];
	struct cf_buf src[4], dst[4 * CF_RANKS_MAX];
	uint32_t k = 0;

	for (uint32_t i = 0; i < per; i++) {
		src[i] = cf_buf_new(r->t, bytes + i, i);
		cf_fill(src[i].addr, bytes + i, 50 + 10 * r->rank + i);
	}
	for (uint32_t peer = 0; peer < r->n; peer++)
		for (uint32_t i = 0; i < per && (r->n == 1 || peer != r->rank); i++, k++) {
			dst[k] = cf_buf_new(r->t, bytes + i, 1);
			ops[n++] = cf_recv(peer, i, dst[k].addr, bytes + i);
		}
	for (uint32_t peer = r->n; peer-- > 0;)
		for (uint32_t i = 0; i < per && (r->n == 1 || peer != r->rank); i++)
			ops[n++] = cf_send(peer, i, src[i].addr, bytes + i);
	cf_stage(r->t, "%llu operations in one start", (unsigned long long)n);
	cf_done(r, cf_start(r, ops, n));
	for (uint32_t i = 0; i < k; i++) {
		CF_CHECK(r->t, cf_differs(dst[i].addr, dst[i].bytes, 50 + 10 * ops[i].peer + i % per) == UINT64_MAX,
			"operation %u of one start of %llu arrived wrong", i, (unsigned long long)n);
		cf_buf_free(&dst[i]);
	}
	for (uint32_t i = 0; i < per; i++)
		cf_buf_free(&src[i]);
}

static void
operations_of_a_start_run_together(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, together_body);
	if (t->shared->size_ok[3] && (t->shared->max_ops == 0 || t->shared->max_ops >= 16))
		cf_ranks(t, 3, CF_THREADS, together_body);
}

static void
max_ops_body(struct cf_rank *r)
{
	uint64_t max = r->t->shared->max_ops, half = (max == 0 || max > 256 ? 256 : max) / 2;
	struct cf_buf src = cf_buf_new(r->t, 128, 0), dst = cf_buf_new(r->t, 128, 0);
	struct ist_op ops[256] = { { 0 } };

	half = half > 128 ? 128 : half;
	for (uint64_t i = 0; i < half; i++) {
		src.addr[i] = (uint8_t)(i + 1);
		ops[i] = cf_send(cf_next(r), i, &src.addr[i], 1);
		ops[half + i] = cf_recv(cf_prev(r), i, &dst.addr[i], 1);
	}
	cf_done(r, cf_start(r, ops, 2 * half));
	CF_CHECK(r->t, memcmp(src.addr, dst.addr, half) == 0, "a start of %llu operations moved wrong bytes", (unsigned long long)(2 * half));
	cf_buf_free(&src);
	cf_buf_free(&dst);
}

static void
a_start_takes_max_ops(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, max_ops_body);
}

/* Rank 0 sends, the last one receives and is the one that can see it; the sender may be done long before. It stays until
 * the receiver has seen it, since an abort may take on its way what was not sent yet. */
static void
mismatch(struct cf_rank *r, int cell, uint64_t send_seq, uint64_t send_bytes, uint64_t recv_seq, uint64_t recv_bytes, ist_err want,
	const char *what)
{
	struct cf_buf src = cf_buf_new(r->t, send_bytes, 0), dst = cf_buf_new(r->t, recv_bytes, 0);
	struct ist_op s = cf_send(r->n - 1, send_seq, src.addr, send_bytes), v = cf_recv(0, recv_seq, dst.addr, recv_bytes);
	struct ist_task *sent = NULL, *got = NULL;
	struct ist_status st;

	cf_stage(r->t, "a SEND of %llu bytes, seq %llu, against a RECV of %llu, seq %llu", (unsigned long long)send_bytes,
		(unsigned long long)send_seq, (unsigned long long)recv_bytes, (unsigned long long)recv_seq);
	if (r->rank == 0)
		sent = cf_start(r, &s, 1);
	if (r->rank == r->n - 1) {
		got = cf_start(r, &v, 1);
		ist_err e = cf_finish(r, got, &st);

		CF_CHECK(r->t, e == want, "%s must be %s at the receiver, it is %s", what, cf_name(want), cf_name(e));
		CF_CHECK(r->t, memchr(st.text, 0, sizeof(st.text)), "the text of a failure does not end in 0");
		CF_CHECK(r->t, cf_walls_stand(&dst), "%s: it wrote outside of the receiver's buffer", what);
		r->t->b->task_free(r->chan, got);
		atomic_store(&r->t->shared->cell[cell], 1);
	}
	while (!atomic_load(&r->t->shared->cell[cell]))
		cf_turn(r);
	if (sent) {
		r->t->b->abort(r->chan, IST_ABORTED);
		cf_finish(r, sent, &st);
		r->t->b->task_free(r->chan, sent);
	}
	cf_buf_free(&src);
	cf_buf_free(&dst);
}

static void
more_body(struct cf_rank *r)
{
	mismatch(r, 0, 5, 1000, 5, 999, IST_MISMATCH, "a message longer than the receiver's buffer");
}

static void
fewer_body(struct cf_rank *r)
{
	mismatch(r, 1, 5, 999, 5, 200000, IST_MISMATCH, "a message shorter than the receiver's buffer");
}

static void
seq_body(struct cf_rank *r)
{
	mismatch(r, 2, 5, 1000, 6, 1000, IST_ORDER_MISMATCH, "another seq");
}

static void
different_bytes_are_noticed(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, more_body);
	cf_ranks(t, cf_pair(t), CF_THREADS, fewer_body);
}

static void
different_seq_is_noticed(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, seq_body);
}

/* moved of a task and of the channel, looked at on every turn. */
static void
moved_body(struct cf_rank *r)
{
	static const uint64_t some[] = { 0, 1, 4097, 6 << 20 };
	uint64_t chan_moved = 0;

	for (int i = 0; i < 4; i++) {
		struct cf_buf src = cf_buf_new(r->t, some[i], 0), dst = cf_buf_new(r->t, some[i], 0);
		struct ist_op ops[2] = { cf_send(cf_next(r), (uint64_t)i, src.addr, some[i]), cf_recv(cf_prev(r), (uint64_t)i, dst.addr, some[i]) };
		struct ist_task *task = cf_start(r, ops, 2);
		int64_t until = cf_now() + CF_PATIENCE_NS;
		uint64_t last = 0, before = chan_moved;
		struct ist_progress p;
		struct ist_status st;

		do {
			cf_progress(r, &p);
			CF_CHECK(r->t, p.moved >= chan_moved, "moved of the channel fell from %llu to %llu", (unsigned long long)chan_moved,
				(unsigned long long)p.moved);
			chan_moved = p.moved;
			cf_status(&st);
			CF_CHECK(r->t, !r->t->b->test(r->chan, task, &st), "a task failed: %.200s", st.text);
			CF_CHECK(r->t, st.moved >= last, "moved of a task fell from %llu to %llu", (unsigned long long)last, (unsigned long long)st.moved);
			last = st.moved;
			CF_CHECK(r->t, cf_now() < until, "a task did not end");
			if (st.state != IST_DONE && !p.more)
				cf_turn(r);
		} while (st.state != IST_DONE);
		CF_CHECK(r->t, last == 2 * some[i], "a SEND and a RECV of %llu bytes are done and moved says %llu", (unsigned long long)some[i],
			(unsigned long long)last);
		CF_CHECK(r->t, some[i] == 0 || chan_moved > before, "%llu bytes moved and the channel's moved stood still", (unsigned long long)some[i]);
		r->t->b->task_free(r->chan, task);
		cf_buf_free(&src);
		cf_buf_free(&dst);
	}
}

static void
moved_counts_and_never_falls(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, moved_body);
}

static void
ended_body(struct cf_rank *r)
{
	enum { TASKS = 10 };
	struct cf_buf src = cf_buf_new(r->t, TASKS, 0), dst = cf_buf_new(r->t, TASKS, 0);
	struct ist_task *tasks[TASKS];
	struct ist_progress p;
	uint64_t before, last;

	cf_progress(r, &p);
	before = last = p.ended;
	for (uint64_t i = 0; i < TASKS; i++) {
		struct ist_op ops[2] = { cf_send(cf_next(r), i, &src.addr[i], 1), cf_recv(cf_prev(r), i, &dst.addr[i], 1) };

		tasks[i] = cf_start(r, ops, 2);
	}
	for (uint64_t i = 0; i < TASKS; i++) {
		struct ist_status st;
		ist_err e = cf_finish(r, tasks[i], &st);

		CF_CHECK(r->t, !e, "a task failed: %s", cf_name(e));
		cf_progress(r, &p);
		CF_CHECK(r->t, p.ended >= last, "ended fell from %llu to %llu", (unsigned long long)last, (unsigned long long)p.ended);
		last = p.ended;
	}
	CF_CHECK(r->t, last - before == TASKS, "%d tasks are done and ended rose by %llu", TASKS, (unsigned long long)(last - before));
	for (uint64_t i = 0; i < TASKS; i++) {
		struct ist_status st;

		cf_status(&st); /* may be asked again */
		CF_CHECK(r->t, !r->t->b->test(r->chan, tasks[i], &st) && st.state == IST_DONE, "a task that was DONE is no more when asked again");
		r->t->b->task_free(r->chan, tasks[i]);
	}
	cf_buf_free(&src);
	cf_buf_free(&dst);
}

static void
ended_counts_tasks(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, ended_body);
}

/* Two groups of the same name and other generations, their operations mixed. */
static void
two_groups_body(struct cf_rank *r)
{
	struct cf_rank other = *r;

	other.generation += 1000;
	other.chan = NULL;
	cf_join(&other);
	for (uint64_t i = 0; i < 30; i++) {
		struct cf_buf src[2] = { cf_buf_new(r->t, 3000, 0), cf_buf_new(r->t, 3000, 0) };
		struct cf_buf dst[2] = { cf_buf_new(r->t, 3000, 0), cf_buf_new(r->t, 3000, 0) };
		struct cf_rank *at[2] = { r, &other };
		struct ist_task *tasks[2];

		for (int k = 0; k < 2; k++) {
			struct ist_op ops[2] = { cf_send(cf_next(r), i, src[k].addr, 3000), cf_recv(cf_prev(r), i, dst[k].addr, 3000) };

			cf_fill(src[k].addr, 3000, 100 * (uint64_t)k + i);
			tasks[k] = cf_start(at[k], ops, 2);
		}
		for (int k = 1; k >= 0; k--) {
			cf_done(at[k], tasks[k]);
			CF_CHECK(r->t, cf_differs(dst[k].addr, 3000, 100 * (uint64_t)k + i) == UINT64_MAX, "bytes of one group arrived in another");
		}
		for (int k = 0; k < 2; k++) {
			cf_buf_free(&src[k]);
			cf_buf_free(&dst[k]);
		}
	}
	cf_barrier(r);
	cf_leave(&other);
	cf_ring(r, 10, 0);
}

static void
two_groups_side_by_side(struct cf *t)
{
	if (t->shared->traits & IST_TRAIT_ONE_ORDER)
		cf_skip(t, "it allows one order a device (IST_TRAIT_ONE_ORDER)");
	cf_ranks(t, cf_pair(t), CF_THREADS, two_groups_body);
}

const struct cf_entry cf_move_checks[] = {
	{ "every_byte_arrives", every_byte_arrives, 0 },
	{ "every_byte_arrives_across_processes", every_byte_arrives_across_processes, 0 },
	{ "group_of_one", group_of_one, 0 },
	{ "groups_of_many", groups_of_many, 0 },
	{ "big_messages_arrive", big_messages_arrive, 120 },
	{ "nothing_is_written_outside", nothing_is_written_outside, 0 },
	{ "zero_bytes_need_no_address", zero_bytes_need_no_address, 0 },
	{ "messages_keep_their_order", messages_keep_their_order, 0 },
	{ "operations_of_a_start_run_together", operations_of_a_start_run_together, 0 },
	{ "a_start_takes_max_ops", a_start_takes_max_ops, 0 },
	{ "different_bytes_are_noticed", different_bytes_are_noticed, 0 },
	{ "different_seq_is_noticed", different_seq_is_noticed, 0 },
	{ "moved_counts_and_never_falls", moved_counts_and_never_falls, 0 },
	{ "ended_counts_tasks", ended_counts_tasks, 0 },
	{ "two_groups_side_by_side", two_groups_side_by_side, 0 },
	{ NULL, NULL, 0 },
};
