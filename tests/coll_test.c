/* SPDX-License-Identifier: Apache-2.0
 *
 * Every collective against a plain loop over arrays, over backends that are quick, slow, full, or strictly serial.
 */
#include "mem_world.h"

#include "coll/reduce.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

static uint64_t seed = 20240607;

static uint32_t
next(void)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (uint32_t)(seed >> 33);
}

/* What every rank starts with, what it must end with, what it got. Blocks of memory have their exact size, so that ASan
 * sees one byte too many, and begin at an odd address. */
struct arrays {
	uint32_t kind, size, root, dtype, reduce;
	uint64_t n;
	char *src[WORLD_MAX], *dst[WORLD_MAX], *want[WORLD_MAX];
	uint64_t src_bytes[WORLD_MAX], dst_bytes[WORLD_MAX];
};

enum { ODD = 1 };

static char *
block(uint64_t bytes)
{
	char *p = malloc(bytes + ODD);

	assert_non_null(p);
	memset(p, 0xEE, bytes + ODD);
	return p + ODD;
}

static void
sizes(struct arrays *a)
{
	for (uint32_t r = 0; r < a->size; r++) {
		uint64_t all = a->n * a->size, src = a->n, dst = a->n;
		bool root = r == a->root;

		switch (a->kind) {
		case IST_OP_BROADCAST: src = root ? a->n : 0, dst = root ? 0 : a->n; break;
		case IST_OP_GATHER: dst = root ? all : 0; break;
		case IST_OP_SCATTER: src = root ? all : 0; break;
		case IST_OP_ALL_GATHER: dst = all; break;
		case IST_OP_ALL_TO_ALL: src = dst = all; break;
		case IST_OP_REDUCE_SCATTER: src = all; break;
		case IST_OP_BARRIER: src = dst = 0; break;
		default: break;
		}
		a->src_bytes[r] = src;
		a->dst_bytes[r] = dst;
	}
}

/* Small whole numbers: sums and products of eight are exact in every type, so the order does not matter. */
static void
fill(const struct arrays *a, char *p, uint64_t bytes)
{
	uint32_t elem = a->dtype ? ist__elem_bytes(a->dtype) : 4;

	for (uint64_t i = 0; i < bytes % 4 && !a->dtype; i++)
		p[bytes - 1 - i] = (char)next();
	for (uint64_t i = 0; i < bytes / elem; i++) {
		uint32_t any = next(), v = a->reduce == IST_PROD ? 1 + any % 2 : any % 16;
		float f = (float)v;
		double d = v;
		uint16_t h = a->dtype == IST_BF16 ? ist__f32_to_bf16(f) : ist__f32_to_f16(f);
		uint64_t u = v;

		if (!a->dtype)
			memcpy(p + i * 4, &any, 4);
		else
			memcpy(p + i * elem, a->dtype == IST_F32 ? (void *)&f : a->dtype == IST_F64 ? (void *)&d :
				a->dtype == IST_BF16 || a->dtype == IST_F16 ? (void *)&h : (void *)&u, elem);
	}
}

/* The plain loop. */
static void
expect(struct arrays *a)
{
	uint64_t n = a->n;
	uint32_t size = a->size, elem = a->dtype ? ist__elem_bytes(a->dtype) : 1;

	for (uint32_t r = 0; r < size; r++) {
		char *w = a->want[r];

		for (uint32_t from = 0; from < size; from++)
			switch (a->kind) {
			case IST_OP_BROADCAST:
				if (from == a->root && r != a->root)
					memcpy(w, a->src[from], n);
				break;
			case IST_OP_GATHER:
				if (r == a->root)
					memcpy(w + from * n, a->src[from], n);
				break;
			case IST_OP_SCATTER:
				if (from == a->root)
					memcpy(w, a->src[from] + r * n, n);
				break;
			case IST_OP_ALL_GATHER: memcpy(w + from * n, a->src[from], n); break;
			case IST_OP_ALL_TO_ALL: memcpy(w + from * n, a->src[from] + r * n, n); break;
			default: {
				const char *s = a->src[from] + (a->kind == IST_OP_REDUCE_SCATTER ? r * n : 0);

				if (from == 0)
					memcpy(w, s, n);
				else
					ist__reduce(a->dtype, a->reduce, w, w, s, n / elem);
			}
			}
	}
}

static void
make(struct arrays *a)
{
	sizes(a);
	for (uint32_t r = 0; r < a->size; r++) {
		a->src[r] = block(a->src_bytes[r]);
		a->dst[r] = block(a->dst_bytes[r]);
		a->want[r] = block(a->dst_bytes[r]);
		fill(a, a->src[r], a->src_bytes[r]);
	}
	if (a->kind != IST_OP_BARRIER)
		expect(a);
}

static void
unmake(struct arrays *a)
{
	for (uint32_t r = 0; r < a->size; r++) {
		free(a->src[r] - ODD);
		free(a->dst[r] - ODD);
		free(a->want[r] - ODD);
	}
}

static void
args_of(const struct arrays *a, bool in_place, struct ist_coll_args *args)
{
	for (uint32_t r = 0; r < a->size; r++) {
		args[r] = (struct ist_coll_args){ .struct_size = sizeof(args[r]), .peer = a->root, .dtype = a->dtype, .reduce = a->reduce,
			.src = { .addr = a->src[r], .bytes = a->src_bytes[r], .device = -1 },
			.dst = { .addr = in_place ? a->src[r] : a->dst[r], .bytes = a->dst_bytes[r], .device = -1 } };
	}
}

static void
one(struct world *w, uint32_t kind, uint64_t n, uint32_t root, uint32_t dtype, uint32_t reduce, bool in_place)
{
	struct arrays a = { .kind = kind, .size = w->size, .root = root, .dtype = dtype, .reduce = reduce, .n = n };
	struct ist_coll_args args[WORLD_MAX];
	struct ist_req *reqs[WORLD_MAX];
	struct ist_error err = { .struct_size = sizeof(err) };
	ist_err e;

	make(&a);
	args_of(&a, in_place, args);
	world_submit(w, kind, args, reqs);
	ist_error_init(&err);
	e = world_wait(w, reqs, &err);
	if (e)
		fail_msg("kind %u, %u ranks, n %llu: %s: %s", kind, w->size, (unsigned long long)n, ist_err_name(e), err.detail);
	for (uint32_t r = 0; r < w->size; r++) {
		const char *got = in_place ? a.src[r] : a.dst[r];

		if (memcmp(got, a.want[r], a.dst_bytes[r]))
			fail_msg("kind %u, %u ranks, n %llu, root %u, dtype %u, reduce %u: wrong on rank %u", kind, w->size, (unsigned long long)n,
				root, dtype, reduce, r);
	}
	unmake(&a);
}

static const uint32_t all_sizes[] = { 1, 2, 3, 4, 7, 8 };

static const uint32_t moves[] = { IST_OP_BROADCAST, IST_OP_ALL_GATHER, IST_OP_GATHER, IST_OP_SCATTER, IST_OP_ALL_TO_ALL };

static void
every_kind(struct world *w, uint64_t n)
{
	for (size_t k = 0; k < sizeof(moves) / sizeof(moves[0]); k++)
		one(w, moves[k], n, (uint32_t)(next() % w->size), 0, 0, false);
	one(w, IST_OP_ALL_REDUCE, n * 4, 0, IST_I32, IST_SUM, false);
	one(w, IST_OP_ALL_REDUCE, n * 2, 0, IST_BF16, IST_SUM, true);
	one(w, IST_OP_REDUCE_SCATTER, n * 4, 0, IST_F32, IST_SUM, false);
	one(w, IST_OP_BARRIER, 0, 0, 0, 0, false);
}

/* Around the switch from one algorithm to the next, in one piece. */
static void
small_ones(struct world *w)
{
	static const uint64_t ns[] = { 0, 1, 3, 64, 1001, 8 * 1024 + 1, 32 * 1024, 32 * 1024 + 1 };

	for (size_t i = 0; i < sizeof(ns) / sizeof(ns[0]); i++)
		every_kind(w, ns[i]);
}

/* Fewer pieces than the window, just one more, and many, with an odd end. */
static void
big_ones(struct world *w)
{
	static const uint64_t ns[] = { 256 * 1024, 3 * 256 * 1024 + 5, 5 * 256 * 1024 + 1 };

	for (size_t i = 0; i < sizeof(ns) / sizeof(ns[0]); i++) {
		uint64_t n = ns[i];

		one(w, IST_OP_BROADCAST, n, (uint32_t)(next() % w->size), 0, 0, false);
		one(w, IST_OP_ALL_GATHER, n, 0, 0, 0, false);
		one(w, IST_OP_ALL_REDUCE, n / 4 * 4 * w->size, 0, IST_I32, IST_SUM, i == 1);
		one(w, IST_OP_REDUCE_SCATTER, n / 4 * 4, 0, IST_I32, IST_MAX, false);
	}
	one(w, IST_OP_ALL_TO_ALL, 300001, 0, 0, 0, false);
	one(w, IST_OP_GATHER, 300001, 1, 0, 0, false);
	one(w, IST_OP_SCATTER, 300001, 1, 0, 0, false);
}

static void
collectives_equal_a_plain_loop(void **state)
{
	(void)state;
	for (size_t s = 0; s < sizeof(all_sizes) / sizeof(all_sizes[0]); s++) {
		struct world w;

		world_open(&w, all_sizes[s], NULL, 0);
		small_ones(&w);
		if (all_sizes[s] == 3)
			big_ones(&w);
		assert_true(world_close(&w));
	}
}

static void
every_dtype_and_reduction(void **state)
{
	static const uint32_t dtypes[] = { IST_U8, IST_I32, IST_I64, IST_F16, IST_BF16, IST_F32, IST_F64 };
	struct world w;

	(void)state;
	world_open(&w, 3, NULL, 0);
	for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
		for (uint32_t reduce = IST_SUM; reduce <= IST_MAX; reduce++) {
			uint32_t elem = ist__elem_bytes(dtypes[d]);

			one(&w, IST_OP_ALL_REDUCE, 7 * elem, 0, dtypes[d], reduce, true);
			one(&w, IST_OP_ALL_REDUCE, 20001 * elem, 0, dtypes[d], reduce, false);
			one(&w, IST_OP_REDUCE_SCATTER, 1001 * elem, 0, dtypes[d], reduce, false);
		}
	assert_true(world_close(&w));
}

/* Roots all around, and few elements for many ranks. */
static void
every_root(void **state)
{
	struct world w;

	(void)state;
	world_open(&w, 7, NULL, 0);
	for (uint32_t root = 0; root < 7; root++) {
		one(&w, IST_OP_BROADCAST, 100, root, 0, 0, false);
		one(&w, IST_OP_BROADCAST, 600 * 1024, root, 0, 0, false);
		one(&w, IST_OP_GATHER, 100, root, 0, 0, false);
		one(&w, IST_OP_SCATTER, 100, root, 0, 0, false);
		one(&w, IST_OP_ALL_REDUCE, root, 0, IST_U8, IST_SUM, false);
	}
	assert_true(world_close(&w));
}

static void
over_backends_of_every_temper(void **state)
{
	static const struct mem_options tempers[] = {
		{ .serial = true },
		{ .serial = true, .slice = 10000 },
		{ .max_tasks = 1 },
		{ .max_ops = 2, .max_tasks = 2, .serial = true },
		{ .slice = 4096, .no_fd = true },
		{ .native = 1u << IST_OP_BROADCAST },
		{ .native = 1u << IST_OP_BROADCAST | 1u << IST_OP_ALL_REDUCE | 1u << IST_OP_BARRIER | 1u << IST_OP_ALL_GATHER }, /* three refused */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(tempers) / sizeof(tempers[0]); i++)
		for (uint32_t size = 2; size <= 5; size += size == 3 ? 2 : 1) {
			struct world w;

			world_open(&w, size, &tempers[i], 0);
			every_kind(&w, 1001);
			every_kind(&w, 33 * 1024);
			if (size == (tempers[i].serial ? 3 : 2))
				big_ones(&w);
			assert_true(world_close(&w));
		}
}

/* ---- broadcasts that not everybody takes ---- */

/* One broadcast of n bytes to the ranks in set. room: those who do not take have some, else dst is NULL there. Takers must have
 * the bytes; the others' room is theirs where nobody has to be given what he does not want. */
static void
one_set(struct world *w, uint64_t n, uint32_t root, uint64_t set, bool room, bool leaves_out)
{
	struct arrays a = { .kind = IST_OP_BROADCAST, .size = w->size, .root = root, .n = n };
	struct ist_coll_args args[WORLD_MAX];
	struct ist_req *reqs[WORLD_MAX];
	struct ist_error err;
	uint64_t sets[WORLD_MAX];
	char *poison = block(n);
	ist_err e;

	set &= (UINT64_C(1) << w->size) - 1;
	make(&a);
	args_of(&a, false, args);
	for (uint32_t r = 0; r < w->size; r++) {
		sets[r] = r % 2 ? set | UINT64_C(1) << root : set & ~(UINT64_C(1) << root); /* the root's bit says nothing */
		args[r].takers = &sets[r];
		memcpy(a.dst[r], poison, a.dst_bytes[r]);
		if (!room && r != root && !(set >> r & 1))
			args[r].dst.addr = NULL;
	}
	world_submit(w, IST_OP_BROADCAST, args, reqs);
	memset(sets, 0xFF, sizeof(sets)); /* read during the call only */
	ist_error_init(&err);
	e = world_wait(w, reqs, &err);
	if (e)
		fail_msg("%u ranks, n %llu, root %u, set %llx: %s: %s", w->size, (unsigned long long)n, root, (unsigned long long)set, ist_err_name(e),
			err.detail);
	for (uint32_t r = 0; r < w->size; r++) {
		bool takes = r != root && set >> r & 1;

		if (takes && memcmp(a.dst[r], a.want[r], n))
			fail_msg("%u ranks, n %llu, root %u, set %llx: wrong on rank %u", w->size, (unsigned long long)n, root, (unsigned long long)set, r);
		if (!takes && r != root && leaves_out && memcmp(a.dst[r], poison, n))
			fail_msg("%u ranks, n %llu, root %u, set %llx: rank %u does not take, and got bytes", w->size, (unsigned long long)n, root,
				(unsigned long long)set, r);
	}
	free(poison - ODD);
	unmake(&a);
}

static void
sets_of_every_shape(void **state)
{
	static const struct mem_options tempers[] = {
		{ .native = 0 }, { .serial = true }, { .max_ops = 2, .max_tasks = 2, .serial = true }, { .slice = 4096, .no_fd = true },
		{ .native = 1u << IST_OP_BROADCAST },                                /* everybody gets the bytes */
		{ .native = 1u << IST_OP_BROADCAST, .traits = IST_TRAIT_TAKERS },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(tempers) / sizeof(tempers[0]); i++)
		for (uint32_t size = 1; size <= 5; size += size == 3 ? 2 : 1) {
			bool leaves_out = !tempers[i].native || tempers[i].traits;
			struct world w;

			world_open(&w, size, &tempers[i], 0);
			for (uint64_t set = 0; set < UINT64_C(1) << size; set++)
				for (uint32_t root = 0; root < size; root++) {
					one_set(&w, root % 2 ? 1001 : 0, root, set, set % 2, leaves_out);
					if (root == set % size)
						one_set(&w, 33 * 1024, root, set, true, leaves_out);
				}
			one_set(&w, 5 * 256 * 1024 + 1, size - 1, 0x5, false, leaves_out);
			one_set(&w, 3 * 256 * 1024, 0, 0x1A, true, leaves_out);
			assert_true(world_close(&w));
		}
}

/* Trees and chains with gaps. */
static void
random_sets_of_eight(void **state)
{
	struct world w;

	(void)state;
	world_open(&w, 8, NULL, 0);
	for (int i = 0; i < 200; i++)
		one_set(&w, next() % 3 ? next() % 40000 : next() % 1000000, next() % 8, next() % 256, next() % 2, true);
	assert_true(world_close(&w));
}

/* A view is lent to those who take, and costs those who don't nothing. */
static void
views_of_a_set(void **state)
{
	static const uint64_t traits[] = { IST_TRAIT_CAN_VIEW, IST_TRAIT_CAN_VIEW | IST_TRAIT_TAKERS, IST_TRAIT_TAKERS };

	(void)state;
	for (size_t i = 0; i < sizeof(traits) / sizeof(traits[0]); i++) {
		const struct mem_options o = { .native = 1u << IST_OP_BROADCAST, .traits = traits[i] };
		struct arrays a = { .kind = IST_OP_BROADCAST, .size = 4, .root = 1, .n = 70000 };
		struct ist_coll_args args[WORLD_MAX];
		struct ist_req *reqs[WORLD_MAX];
		uint64_t set = 0x5;
		struct world w;

		world_open(&w, 4, &o, 0);
		make(&a);
		args_of(&a, false, args);
		for (uint32_t r = 0; r < 4; r++) {
			args[r].flags = IST_OP_VIEW;
			args[r].takers = &set;
		}
		args[3].dst.addr = NULL;
		world_submit(&w, IST_OP_BROADCAST, args, reqs);
		for (uint32_t r = 0; r < 4; r += r ? 1 : 2) {
			struct ist_buf view = { .bytes = 0 };

			assert_int_equal(ist_req_wait(reqs[r], 20 * IST_NS_PER_S, NULL), IST_OK);
			if (r == 3)
				break;
			assert_int_equal(ist_req_view(reqs[r], &view, NULL), IST_OK);
			assert_int_equal(view.bytes, a.n);
			assert_memory_equal(view.addr, a.src[1], a.n);
		}
		for (uint32_t r = 0; r < 4; r++)
			if (r != 1)
				assert_int_equal(ist_req_free(reqs[r]), IST_OK);
		assert_int_equal(ist_req_wait(reqs[1], 20 * IST_NS_PER_S, NULL), IST_OK);
		assert_int_equal(ist_req_free(reqs[1]), IST_OK);
		unmake(&a);
		assert_true(world_close(&w));
	}
}

/* Who has another set in mind is named, with both sets. */
static void
different_sets_are_named(void **state)
{
	struct arrays a = { .kind = IST_OP_BROADCAST, .size = 4, .root = 0, .n = 1001 };
	struct ist_coll_args args[WORLD_MAX];
	struct ist_req *reqs[WORLD_MAX];
	struct ist_error err;
	uint64_t set = 0x6, other = 0xA;
	struct world w;

	(void)state;
	world_open(&w, 4, NULL, 0);
	make(&a);
	args_of(&a, false, args);
	for (uint32_t r = 0; r < 4; r++)
		args[r].takers = r == 2 ? &other : &set;
	world_submit(&w, IST_OP_BROADCAST, args, reqs);
	ist_error_init(&err);
	assert_int_equal(world_wait(&w, reqs, &err), IST_MISMATCH);
	assert_non_null(strstr(err.detail, "to ranks 1, 2"));
	assert_non_null(strstr(err.detail, "to ranks 1, 3"));
	world_close(&w);
	unmake(&a);
}

/* Many at once, of all kinds: order within the line, and nothing mixed up. */
static void
many_in_flight(void **state)
{
	enum { MANY = 400, SIZE = 4 };
	static struct arrays a[MANY];
	static struct ist_req *reqs[MANY][WORLD_MAX];
	static const uint32_t kinds[] = { IST_OP_BROADCAST, IST_OP_ALL_GATHER, IST_OP_ALL_REDUCE, IST_OP_ALL_TO_ALL, IST_OP_REDUCE_SCATTER,
		IST_OP_GATHER, IST_OP_SCATTER };
	struct world w;

	(void)state;
	world_open(&w, SIZE, NULL, 0);
	for (int i = 0; i < MANY; i++) {
		struct ist_coll_args args[WORLD_MAX];

		a[i] = (struct arrays){ .kind = kinds[next() % 7], .size = SIZE, .root = next() % SIZE, .dtype = IST_I32, .reduce = IST_SUM,
			.n = next() % 3000 * 4 };
		make(&a[i]);
		args_of(&a[i], false, args);
		world_submit(&w, a[i].kind, args, reqs[i]);
	}
	for (int i = 0; i < MANY; i++) {
		assert_int_equal(world_wait(&w, reqs[i], NULL), IST_OK);
		for (uint32_t r = 0; r < SIZE; r++)
			assert_memory_equal(a[i].dst[r], a[i].want[r], a[i].dst_bytes[r]);
		unmake(&a[i]);
	}
	assert_true(world_close(&w));
}

/* The same bits on all ranks and in all runs, with numbers whose sum depends on the order. */
static void
sums_have_the_same_bits_everywhere(void **state)
{
	enum { COUNT = 20000, SIZE = 5 };
	static float src[SIZE][COUNT], dst[2][SIZE][COUNT];
	struct world w;

	(void)state;
	for (int r = 0; r < SIZE; r++)
		for (int i = 0; i < COUNT; i++)
			src[r][i] = (float)next() / (float)(1 + next() % 100000) * (next() % 2 ? 1.0f : -1.0f);
	world_open(&w, SIZE, NULL, 0);
	for (int count = 1000; count <= COUNT; count += COUNT - 1000)
		for (int run = 0; run < 2; run++) {
			struct ist_coll_args args[WORLD_MAX];
			struct ist_req *reqs[WORLD_MAX];

			for (int r = 0; r < SIZE; r++)
				args[r] = (struct ist_coll_args){ .struct_size = sizeof(args[r]), .dtype = IST_F32, .reduce = IST_SUM,
					.src = { .addr = src[r], .bytes = (uint64_t)count * 4 }, .dst = { .addr = dst[run][r], .bytes = (uint64_t)count * 4 } };
			world_submit(&w, IST_OP_ALL_REDUCE, args, reqs);
			assert_int_equal(world_wait(&w, reqs, NULL), IST_OK);
			for (int r = 0; r < SIZE; r++)
				assert_memory_equal(dst[run][r], dst[0][0], (size_t)count * 4);
		}
	assert_true(world_close(&w));
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(collectives_equal_a_plain_loop),
		cmocka_unit_test(every_dtype_and_reduction),
		cmocka_unit_test(every_root),
		cmocka_unit_test(over_backends_of_every_temper),
		cmocka_unit_test(sets_of_every_shape),
		cmocka_unit_test(random_sets_of_eight),
		cmocka_unit_test(views_of_a_set),
		cmocka_unit_test(different_sets_are_named),
		cmocka_unit_test(many_in_flight),
		cmocka_unit_test(sums_have_the_same_bits_everywhere),
	};

	world_drive = argc > 1 && !strcmp(argv[1], "drive");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
