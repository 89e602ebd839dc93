/* SPDX-License-Identifier: Apache-2.0
 *
 * host_takers_test.c - broadcasts of the host backend that not everybody takes: sets of all kinds one after the other and
 * at once, over shared memory, TCP and both, in one process and in forked ones.
 */
#include "host_rig.h"

#include "backends/host/host.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int one_each[RIG_MAX] = { 0, 1, 2, 3, 4, 5, 6, 7 };
static const int two_two[RIG_MAX] = { 0, 0, 1, 1 };
static const int mixed_up[RIG_MAX] = { 0, 1, 0, 1, 2, 0 };
static const int owners_apart[RIG_MAX] = { 0, 0, 1, 1, 2, 2, 3 };

static const struct rig shapes[] = {
	{ .n = 2 },
	{ .n = 4 },
	{ .n = 7 },
	{ .n = 4, .options = "transport=tcp" },
	{ .n = 4, .hosts = one_each },
	{ .n = 4, .hosts = two_two },
	{ .n = 6, .hosts = mixed_up },
	{ .n = 7, .hosts = owners_apart },
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static uint64_t seed = 11;

static uint32_t
next(void)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (uint32_t)(seed >> 33);
}

/* One broadcast under way on all members of a rig. */
struct cast {
	uint32_t root, flags;
	uint64_t set, bytes, seq;
	bool own;
	uint8_t *buf[RIG_MAX];
	struct ist_task *tasks[RIG_MAX];
	bool over[RIG_MAX];
};

static bool
takes(const struct cast *c, uint32_t rank)
{
	return rank == c->root || c->set >> rank & 1;
}

static void
cast_make(struct rig *rig, struct cast *c)
{
	for (uint32_t i = 0; i < rig->n; i++) {
		void *p = NULL;

		if (c->own)
			CHECK(isthmus_backend_host()->alloc(rig->node[i].chan, c->bytes + 1, IST_MEM_HOST, -1, &p, NULL) == IST_OK || !p);
		c->buf[i] = p ? p : malloc(c->bytes + 1);
		CHECK(c->buf[i]);
		memset(c->buf[i], 0x5A, c->bytes + 1);
		if (i == c->root)
			fill(c->buf[i], c->bytes, c->seq);
	}
}

static void
cast_begin(struct rig *rig, struct cast *c, uint32_t i)
{
	struct ist_op op = op_cast(&rig->node[i], c->root, c->buf[i], c->bytes, c->seq, c->flags);
	uint64_t set = c->set;

	if (!takes(c, i) && c->seq % 2)
		op.dst.addr = NULL;
	op.takers = &set;
	c->tasks[i] = begin(&rig->node[i], &op);
	set = 0; /* it was copied */
}

/* Takers have the bytes, others' memory is as it was. Ends the tasks that are done; true: all are. */
static bool
cast_look(struct rig *rig, struct cast *c)
{
	bool all = true;

	for (uint32_t i = 0; i < rig->n; i++) {
		struct ist_status st;

		if (!c->tasks[i])
			continue;
		CHECK(node_state(&rig->node[i], c->tasks[i], &st) == IST_OK);
		if (st.state != IST_DONE) {
			all = false;
			continue;
		}
		if (takes(c, i))
			CHECK(filled(c->flags && i != c->root ? st.view.addr : c->buf[i], c->bytes, c->seq));
		else
			CHECK(c->buf[i][0] == 0x5A && !memcmp(c->buf[i], c->buf[i] + 1, c->bytes));
		CHECK(i == c->root || c->buf[i][c->bytes] == 0x5A);
		isthmus_backend_host()->task_free(rig->node[i].chan, c->tasks[i]);
		c->tasks[i] = NULL;
	}
	return all;
}

static void
cast_unmake(struct rig *rig, struct cast *c)
{
	for (uint32_t i = 0; i < rig->n; i++)
		if (ist__host_heap_find(rig->node[i].chan, &(struct ist_buf){ .addr = c->buf[i], .bytes = c->bytes + 1 }))
			isthmus_backend_host()->free(rig->node[i].chan, c->buf[i]);
		else
			free(c->buf[i]);
}

static void
cast_whole(struct rig *rig, struct cast *c)
{
	cast_make(rig, c);
	for (uint32_t i = 0; i < rig->n; i++)
		cast_begin(rig, c, i);
	for (int t = 0; !cast_look(rig, c); t++) {
		CHECK(t < 10000000);
		rig_turn(rig, 1);
	}
	cast_unmake(rig, c);
}

static void
every_set_of_four(void **state)
{
	static const uint64_t sizes[] = { 0, 1, 65536, 1048577 };

	(void)state;
	for (uint32_t s = 0; s < SHAPES; s++) {
		struct rig rig = shapes[s];
		uint64_t seq = 0;

		if (rig.n > 4)
			continue;
		rig_open(&rig);
		for (uint32_t z = 0; z < 4; z++)
			for (uint64_t set = 0; set < UINT64_C(1) << rig.n; set++)
				for (uint32_t root = 0; root < rig.n; root += z == 3 ? 3 : 1)
					for (uint32_t own = 0; own < 3; own += z == 3 ? 1 : 2)
						cast_whole(&rig, &(struct cast){ .root = root, .set = set, .bytes = sizes[z], .seq = seq++, .own = own > 0,
							.flags = own == 2 ? IST_OP_VIEW : 0 });
		rig_close(&rig);
	}
}

/* More at once than a board has places, through stage, heap, views and by all hands, with other sets and roots; some members are
 * late. Nothing may get lost or end up with somebody else. */
static void
many_sets_at_once(void **state)
{
	enum { MANY = 60 };
	static const uint64_t sizes[] = { 0, 5, 4097, 70000, 1048577, (4 << 20) + 5 };
	static struct cast casts[MANY];

	(void)state;
	for (uint32_t s = 0; s < SHAPES; s++) {
		struct rig rig = shapes[s];
		uint32_t begun[RIG_MAX] = { 0 }, left = MANY * rig.n;

		rig_open(&rig);
		for (uint32_t k = 0; k < MANY; k++) {
			casts[k] = (struct cast){ .root = next() % rig.n, .set = next() % (1u << rig.n), .bytes = sizes[next() % 6], .seq = k,
				.own = next() % 2, .flags = next() % 4 == 0 ? IST_OP_VIEW : 0 };
			casts[k].own = casts[k].own || casts[k].flags; /* a view's root has memory of the channel's */
			cast_make(&rig, &casts[k]);
		}
		for (int t = 0; left > 0; t++) {
			uint32_t i = next() % rig.n;

			CHECK(t < 10000000);
			for (uint32_t n = next() % 8; n > 0 && begun[i] < MANY; n--, left--)
				cast_begin(&rig, &casts[begun[i]++], i);
			rig_turn(&rig, next() % 3);
			for (uint32_t k = 0; k < MANY; k++)
				(void)cast_look(&rig, &casts[k]);
		}
		for (uint32_t k = 0; k < MANY; k++) {
			for (int t = 0; !cast_look(&rig, &casts[k]); t++) {
				CHECK(t < 10000000);
				rig_turn(&rig, 1);
			}
			cast_unmake(&rig, &casts[k]);
		}
		rig_close(&rig);
	}
}

/* Who does not take is done though nobody else has come, and a root whom nobody listens to as well. */
static void
who_does_not_take_waits_for_nobody(void **state)
{
	(void)state;
	for (uint32_t s = 0; s < SHAPES; s++) {
		struct rig rig = shapes[s];
		uint32_t last = rig.n - 1;
		uint8_t bytes[100];
		uint64_t set = 0;

		rig_open(&rig);
		for (uint32_t k = 0; k < 50; k++) {
			struct ist_op op = op_cast(&rig.node[last], k % 2 ? 0 : last, bytes, sizeof(bytes), k, 0);
			struct ist_task *task;
			struct ist_status st;

			op.takers = &set;
			task = begin(&rig.node[last], &op);
			rig_turn(&rig, 2);
			CHECK(node_state(&rig.node[last], task, &st) == IST_OK && st.state == IST_DONE);
			isthmus_backend_host()->task_free(rig.node[last].chan, task);
		}
		rig_close(&rig);
	}
}

/* The stage holds 8 MiB at most here. Rank 1 gets 40 MiB through it while rank 2, who takes only what comes after, is not there. */
static void
the_stage_is_not_held_for_others(void **state)
{
	enum { N = 3, BEFORE = 10 };
	struct rig rig = { .n = N };
	static struct cast casts[BEFORE + 1];

	(void)state;
	rig_open(&rig);
	for (uint32_t k = 0; k <= BEFORE; k++) {
		casts[k] = (struct cast){ .set = k == 0 || k == BEFORE ? 0x6 : 0x2, .bytes = k == BEFORE ? 3 << 20 : 4 << 20, .seq = k };
		cast_make(&rig, &casts[k]);
		for (uint32_t i = 0; i < 2; i++)
			cast_begin(&rig, &casts[k], i);
		if (k == 0) { /* all are in the first one */
			cast_begin(&rig, &casts[k], 2);
			for (int t = 0; !cast_look(&rig, &casts[0]); t++) {
				CHECK(t < 1000000);
				rig_turn(&rig, 1);
			}
		}
	}
	for (uint32_t k = 1; k < BEFORE; k++)
		for (int t = 0; !cast_look(&rig, &casts[k]); t++) {
			CHECK(t < 1000000);
			rig_turn(&rig, 1);
		}
	for (uint32_t k = 1; k <= BEFORE; k++)
		cast_begin(&rig, &casts[k], 2);
	for (uint32_t k = 1; k <= BEFORE; k++) {
		for (int t = 0; !cast_look(&rig, &casts[k]); t++) {
			CHECK(t < 1000000);
			rig_turn(&rig, 1);
		}
		cast_unmake(&rig, &casts[k]);
	}
	cast_unmake(&rig, &casts[0]);
	rig_close(&rig);
}

static uint32_t
chains(const struct ist_chan *chan, bool out)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < chan->size; r++)
		for (const struct conn *conn = out ? chan->peers[r].chains_out : chan->peers[r].chains_in; conn; conn = conn->mate)
			n++;
	return n;
}

/* Four owners, four who take: nothing comes to an owner, each sends what is its own once and to another one than the next, and
 * each of those who take passes on the shares of three. */
static void
owners_spread_over_who_takes(void **state)
{
	enum { N = 8, ROUNDS = 5 };
	struct rig rig = { .n = N, .hosts = one_each };
	const uint64_t bytes = 1 << 20;
	uint64_t before[N];

	(void)state;
	rig_open(&rig);
	for (uint32_t i = 0; i < N; i++)
		before[i] = rig.node[i].chan->moved;
	for (uint32_t k = 0; k < ROUNDS * 4; k++)
		cast_whole(&rig, &(struct cast){ .root = k % 4, .set = 0xF0, .bytes = bytes, .seq = k });
	for (uint32_t i = 0; i < N; i++) {
		uint64_t moved = rig.node[i].chan->moved - before[i]; /* both directions */

		assert_int_equal(moved, i < 4 ? ROUNDS * bytes : ROUNDS * bytes * (4 + 3));
		assert_int_equal(chains(rig.node[i].chan, true), i < 4 ? 1 : 3);
		assert_int_equal(chains(rig.node[i].chan, false), i < 4 ? 0 : 4);
	}
	rig_close(&rig);
}

/* Who disagrees on the set is told, where bytes meet. */
static void
other_takers_are_a_mismatch(void **state)
{
	(void)state;
	for (uint32_t s = 0; s < SHAPES; s++) {
		struct rig rig = shapes[s];
		struct ist_task *tasks[RIG_MAX] = { NULL };
		uint8_t buf[3][64] = { { 0 } };
		uint64_t sets[3] = { 0x6, 0x6, 0x4 };

		if (rig.n < 3)
			continue;
		rig_open(&rig);
		for (uint32_t i = 0; i < 3; i++) {
			struct ist_op op = op_cast(&rig.node[i], 0, buf[i], 64, 1, 0);

			op.takers = &sets[i];
			tasks[i] = begin(&rig.node[i], &op);
		}
		for (int t = 0;; t++) {
			struct ist_status st = { .struct_size = sizeof(st) };
			ist_err e = node_state(&rig.node[2], tasks[2], &st);

			CHECK(t < 1000000);
			if (e) {
				CHECK(e == IST_MISMATCH);
				break;
			}
			CHECK(st.state != IST_DONE);
			rig_turn(&rig, 1);
		}
		for (uint32_t i = 0; i < rig.n; i++)
			isthmus_backend_host()->abort(rig.node[i].chan, IST_ABORTED);
		rig_turn(&rig, 3);
		rig_close(&rig);
	}
}

/* ---- in processes ---- */

struct forked {
	uint32_t dies;
};

static void
forked_member(struct node *node, void *arg)
{
	const struct forked *f = arg;
	uint64_t sets[] = { 0xC, 0x8, 0x4, 0xE, 0x0 };
	const uint64_t bytes = 3 << 20;
	void *mem[2] = { NULL, malloc(bytes) };

	CHECK(isthmus_backend_host()->alloc(node->chan, bytes, IST_MEM_HOST, -1, &mem[0], NULL) == IST_OK || (mem[0] = malloc(bytes)));
	for (uint32_t k = 0; k < 200; k++) {
		uint64_t set = f->dies < node->size ? 0xC : sets[k % 5];
		uint32_t root = f->dies < node->size ? 0 : k % 3 == 2 ? 3 : k % 3;
		struct ist_op op = op_cast(node, root, mem[k % 2], bytes - k, k, 0);

		if (k == 20 && f->dies == node->rank)
			raise(SIGKILL);
		if (root == node->rank)
			fill(mem[k % 2], bytes - k, k);
		op.takers = &set;
		CHECK(node_do(node, &op) == IST_OK);
		if (root != node->rank && set >> node->rank & 1)
			CHECK(filled(mem[k % 2], bytes - k, k));
	}
	free(mem[1]);
}

static void
in_processes(void **state)
{
	(void)state;
	for (uint32_t s = 0; s < SHAPES; s++)
		if (shapes[s].n == 4)
			fork_run(&shapes[s], forked_member, &(struct forked){ .dies = IST_NO_RANK }, IST_NO_RANK);
}

/* Its death is the mesh's to tell; what goes on between others does not stop for it. */
static void
the_death_of_one_who_does_not_take(void **state)
{
	(void)state;
	for (uint32_t s = 0; s < SHAPES; s++)
		if (shapes[s].n == 4)
			fork_run(&shapes[s], forked_member, &(struct forked){ .dies = 1 }, 1);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_set_of_four),
		cmocka_unit_test(many_sets_at_once),
		cmocka_unit_test(who_does_not_take_waits_for_nobody),
		cmocka_unit_test(the_stage_is_not_held_for_others),
		cmocka_unit_test(owners_spread_over_who_takes),
		cmocka_unit_test(other_takers_are_a_mismatch),
		cmocka_unit_test(in_processes),
		cmocka_unit_test(the_death_of_one_who_does_not_take),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
