/* SPDX-License-Identifier: Apache-2.0
 *
 * conformance_shape.c - checks of the table and of what needs no transfer: probe, open, connect, structs, flags, codes.
 */
#include "conformance_rig.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POISON ((void *)(uintptr_t)0x7157babe0000ULL)
#define UNKNOWN_FLAG 0x00400000u

static void
table_is_complete(struct cf *t)
{
	const struct ist_backend *b = t->b;

	CF_CHECK(t, b->struct_size >= IST_BACKEND_SIZE_MIN, "struct_size is %u, at least %zu is needed", b->struct_size, IST_BACKEND_SIZE_MIN);
	CF_CHECK(t, b->abi == IST_BACKEND_ABI, "abi is %u, this is for %u", b->abi, IST_BACKEND_ABI);
	CF_CHECK(t, b->name && *b->name && strnlen(b->name, 64) < 64 && !strpbrk(b->name, ":/, \t\n") && strcmp(b->name, "auto") != 0,
		"its name must have 1 to 63 bytes, none of ':/, ', and not be \"auto\"");
	CF_CHECK(t, b->probe && b->open && b->connect && b->start && b->progress && b->arm && b->test && b->task_free && b->abort && b->close,
		"one of the mandatory slots is empty: probe open connect start progress arm test task_free abort close");
	if (IST_HAS(b, region_free))
		CF_CHECK(t, !b->region == !b->region_free, "region and region_free come together");
	if (IST_HAS(b, free))
		CF_CHECK(t, !b->alloc == !b->free, "alloc and free come together");
}

static struct ist_probe
probe_at(struct cf *t, uint32_t level)
{
	struct ist_probe p = { .struct_size = sizeof(p) };

	cf_stage(t, "probe at level %u", level);
	t->b->probe(t->b->self, &t->host, level, &p);
	return p;
}

static ist_err
open_as(struct cf *t, uint32_t rank, uint32_t size, uint32_t flags, const char *options, struct ist_chan **out, struct ist_status *st)
{
	struct cf_rank r = { .t = t, .rank = rank, .n = size, .generation = 99, .options = options };
	struct ist_open args = cf_open_args(&r);
	ist_err e;

	args.flags = flags;
	cf_status(st);
	e = t->b->open(t->b->self, &t->host, &args, out, st);
	CF_CHECK(t, e || *out, "open says OK and gives no channel");
	return e;
}

static void
shut(struct cf *t, struct ist_chan *chan)
{
	struct ist_status st;

	cf_status(&st);
	t->b->close(chan, &st);
}

/* Not a rule: what the other checks must know. */
static uint32_t
devices_of(struct cf *t)
{
	struct ist_device_probe p = { .struct_size = sizeof(p) };

	t->d->probe(t->d->self, &t->host, IST_START, &p);
	return p.count;
}

void
cf_facts(struct cf *t)
{
	struct cf_shared *s = t->shared;
	struct ist_probe p = probe_at(t, IST_START);

	s->usable = p.usable;
	s->native = p.native_ops;
	s->mem = p.mem;
	s->traits = p.traits;
	s->max_ops = p.max_ops;
	snprintf(s->reason, sizeof(s->reason), "%s", p.reason ? p.reason : "");
	s->devices = t->d ? devices_of(t) : 0;
	if (!p.usable)
		return;
	for (uint32_t n = 1; n <= CF_RANKS_MAX; n++) {
		struct ist_chan *chan = NULL;
		struct ist_status st;
		ist_err e;

		cf_stage(t, "open for a group of %u", n);
		e = open_as(t, 0, n, 0, NULL, &chan, &st);
		s->size_ok[n] = !e;
		if (e)
			snprintf(s->refusal, sizeof(s->refusal), "%s %.200s", cf_name(e), st.text);
		else
			shut(t, chan);
	}
}

static void
probe_says_what_it_can(struct cf *t)
{
	const uint64_t both = UINT64_C(1) << IST_OP_SEND | UINT64_C(1) << IST_OP_RECV;

	for (uint32_t level = IST_LOOK; level <= IST_START; level++) {
		struct ist_probe p = probe_at(t, level);

		CF_CHECK(t, p.usable <= 1, "usable is %u, it is 0 or 1", p.usable);
		CF_CHECK(t, p.usable || (p.reason && *p.reason), "it is not usable and gives no reason");
		CF_CHECK(t, p.n_settings == 0 || p.settings, "n_settings is %llu and settings is NULL", (unsigned long long)p.n_settings);
		for (uint64_t i = 0; i < p.n_settings; i++)
			CF_CHECK(t, p.settings[i].name && *p.settings[i].name && p.settings[i].value && p.settings[i].rule <= 1,
				"setting %llu has no name, no value or an unknown rule", (unsigned long long)i);
		if (level == IST_LOOK || !p.usable)
			continue;
		CF_CHECK(t, (p.native_ops & both) == both, "SEND and RECV are mandatory, native_ops is 0x%llx", (unsigned long long)p.native_ops);
		CF_CHECK(t, p.mem != 0, "it says that no kind of memory can be moved (mem is 0)");
		CF_CHECK(t, p.max_ops == 0 || p.max_ops >= 16, "max_ops is %llu, less than 16", (unsigned long long)p.max_ops);
		CF_CHECK(t, !(p.traits & IST_TRAIT_CAN_VIEW) || (IST_HAS(t->b, alloc) && t->b->alloc), "it says CAN_VIEW and has no alloc");
	}
}

static void
looking_starts_nothing(struct cf *t)
{
	uint32_t fds = cf_open_fds(), threads = cf_threads(), maps = cf_maps();

	for (int i = 0; i < 100; i++)
		probe_at(t, IST_LOOK);
	CF_CHECK(t, cf_open_fds() == fds, "probe at IST_LOOK left descriptors open: %u before, %u after", fds, cf_open_fds());
	CF_CHECK(t, cf_threads() == threads, "probe at IST_LOOK started a thread");
	CF_CHECK(t, cf_maps() <= maps + 8, "probe at IST_LOOK mapped %u things: it loads nothing", cf_maps() - maps);
	CF_CHECK(t, atomic_load(&t->blocks) == 0, "probe at IST_LOOK kept memory of the host's");
}

/* Rule 1: a callee fills fields, never the whole struct, and leaves alone what is past the size it was told. */
static void
structs_may_grow(struct cf *t)
{
	struct {
		struct ist_probe p;
		uint64_t more[8];
	} big = { .p = { .struct_size = sizeof(big) } };
	struct {
		struct ist_open a;
		uint64_t more[8];
	} args;
	struct cf_rank r = { .t = t, .n = 1, .generation = 3 };
	struct ist_chan *chan = NULL;
	struct ist_status st;
	ist_err e;

	for (int i = 0; i < 8; i++)
		big.more[i] = args.more[i] = UINT64_C(0xA5A5A5A5A5A5A5A5);
	t->b->probe(t->b->self, &t->host, IST_LOOK, &big.p);
	CF_CHECK(t, big.p.struct_size == sizeof(big), "probe wrote struct_size: it says how much room there is");
	for (int i = 0; i < 8; i++)
		CF_CHECK(t, big.more[i] == UINT64_C(0xA5A5A5A5A5A5A5A5), "probe wrote past the struct that it knows");
	r.n = cf_pair(t);
	args.a = cf_open_args(&r);
	args.a.struct_size = sizeof(args);
	cf_status(&st);
	e = t->b->open(t->b->self, &t->host, &args.a, &chan, &st);
	CF_CHECK(t, !e, "open refuses an args struct that is longer than it knows: %s", cf_name(e));
	CF_CHECK(t, st.struct_size == sizeof(st), "open wrote struct_size of a status");
	shut(t, chan);
}

static void
unknown_options_are_refused(struct cf *t)
{
	uint32_t n = cf_pair(t);
	struct ist_chan *chan = NULL;
	struct ist_status st;
	size_t bytes = 64 << 10;
	char *big = malloc(bytes);
	ist_err e = open_as(t, 0, n, 0, "no_such_key_anywhere=1", &chan, &st);

	CF_CHECK(t, e == IST_BAD_CONFIG, "an unknown option must be BAD_CONFIG, it is %s", cf_name(e));
	CF_CHECK(t, memchr(st.text, 0, sizeof(st.text)), "the text of a refusal does not end in 0");
	CF_CHECK(t, big, "the suite has no memory");
	memset(big, 'x', bytes);
	big[bytes - 1] = 0;
	cf_stage(t, "open with 64 KiB of options");
	e = open_as(t, 0, n, 0, big, &chan, &st);
	CF_CHECK(t, e == IST_BAD_CONFIG, "64 KiB of nonsense as options must be BAD_CONFIG, it is %s", cf_name(e));
	CF_CHECK(t, memchr(st.text, 0, sizeof(st.text)), "the text of a refusal does not end in 0");
	free(big);
	CF_CHECK(t, atomic_load(&t->blocks) == 0, "a refused open kept memory");
}

static void
must_flags_are_refused(struct cf *t)
{
	uint32_t n = cf_pair(t);
	struct ist_chan *chan = NULL;
	struct ist_status st;
	ist_err e = open_as(t, 0, n, UNKNOWN_FLAG, NULL, &chan, &st);

	CF_CHECK(t, !e, "open refuses an unknown flag without IST_MUST: %s", cf_name(e));
	shut(t, chan);
	chan = NULL;
	e = open_as(t, 0, n, UNKNOWN_FLAG | IST_MUST, NULL, &chan, &st);
	CF_CHECK(t, e == IST_UNSUPPORTED, "open with an unknown flag and IST_MUST must be UNSUPPORTED, it is %s", cf_name(e));
}

static void
must_flags_body(struct cf_rank *r)
{
	struct cf_buf buf = cf_buf_new(r->t, 2, 0);
	struct ist_op ops[2] = { cf_send(cf_next(r), 1, &buf.addr[0], 1), cf_recv(cf_prev(r), 1, &buf.addr[1], 1) };
	struct ist_task *task = NULL;
	struct ist_status st;
	ist_err e;

	ops[0].flags = UNKNOWN_FLAG | IST_MUST;
	e = cf_try_start(r, ops, 2, &task, &st);
	CF_CHECK(r->t, e == IST_UNSUPPORTED, "start with an unknown flag and IST_MUST must be UNSUPPORTED, it is %s", cf_name(e));
	ops[0].flags = ops[1].flags = UNKNOWN_FLAG;
	buf.addr[0] = 1;
	cf_done(r, cf_start(r, ops, 2));
	CF_CHECK(r->t, buf.addr[1] == 1, "a byte did not arrive where an unknown flag without IST_MUST was given");
	cf_buf_free(&buf);
}

static void
op_must_flags_are_refused(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, must_flags_body);
}

static void
outputs_body(struct cf_rank *r)
{
	struct ist_chan *chan = POISON;
	struct ist_task *task = POISON;
	struct ist_status st;
	char a = 0;
	struct ist_op op = cf_send(cf_next(r), 1, &a, 1);
	ist_err e = open_as(r->t, 0, r->n, 0, "no_such_key_anywhere=1", &chan, &st);

	CF_CHECK(r->t, !e || chan == POISON, "open failed with %s and wrote its output all the same", cf_name(e));
	op.kind = 60;
	e = cf_try_start(r, &op, 1, &task, &st);
	CF_CHECK(r->t, !e || task == POISON, "start failed with %s and wrote its output all the same", cf_name(e));
	r->t->b->abort(r->chan, IST_ABORTED);
	op = cf_send(cf_next(r), 1, &a, 1);
	e = cf_try_start(r, &op, 1, &task, &st);
	CF_CHECK(r->t, !e || task == POISON, "start failed with %s after an abort and wrote its output all the same", cf_name(e));
}

static void
outputs_only_on_ok(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, outputs_body);
}

static void
known(struct cf_rank *r, const char *slot, ist_err e)
{
	CF_CHECK(r->t, cf_known(e), "%s returns %d, which is not in error.h", slot, e);
}

/* Provokes every refusal that is cheap to provoke. */
static void
codes_body(struct cf_rank *r)
{
	struct ist_chan *chan = NULL;
	struct ist_status st;
	char a = 0;

	known(r, "open", open_as(r->t, 0, r->n, 0, "=,=,,=", &chan, &st));
	chan = NULL;
	known(r, "open", open_as(r->t, 5, 3, 0, NULL, &chan, &st)); /* a rank that is not in the group */
	for (uint32_t kind = 0; kind < 64; kind += 3) {
		struct ist_op op = cf_send(cf_next(r), 1, &a, 0);
		struct ist_task *task = NULL;

		if (r->t->shared->native >> kind & 1)
			continue;
		op.kind = kind;
		known(r, "start", cf_try_start(r, &op, 1, &task, &st));
	}
	struct ist_op op = cf_send(r->n + 100, 1, &a, 1);
	struct ist_task *task = NULL;
	ist_err e = cf_try_start(r, &op, 1, &task, &st);

	known(r, "start", e);
	CF_CHECK(r->t, e, "start takes a SEND to rank %u of %u", r->n + 100, r->n);
	r->t->b->abort(r->chan, IST_PEER_LOST);
	op = cf_send(cf_next(r), 1, &a, 1);
	known(r, "start after an abort", cf_try_start(r, &op, 1, &task, &st));
}

static void
codes_are_in_error_h(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, codes_body);
}

static void
refused_body(struct cf_rank *r)
{
	struct cf_buf buf = cf_buf_new(r->t, 3, 0);
	uint8_t *mark = buf.addr, *got = buf.addr + 2;
	struct ist_op ops[3] = { cf_send(cf_next(r), 1, &mark[0], 1), cf_recv(cf_prev(r), 1, got, 1), cf_send(cf_next(r), 2, &mark[0], 1) };
	struct ist_task *task = NULL;
	struct ist_status st;
	ist_err e;

	mark[0] = 0x11;
	mark[1] = 0x22;
	ops[2].kind = 60;
	e = cf_try_start(r, ops, 3, &task, &st);
	CF_CHECK(r->t, e == IST_UNSUPPORTED, "start with an unknown kind in its list must be UNSUPPORTED, it is %s", cf_name(e));
	cf_barrier(r);
	ops[0].src.addr = &mark[1];
	cf_done(r, cf_start(r, ops, 2));
	CF_CHECK(r->t, *got == 0x22, "a start that was refused as UNSUPPORTED had sent something");
	cf_buf_free(&buf);
}

static void
unsupported_leaves_nothing_begun(struct cf *t)
{
	cf_ranks(t, cf_pair(t), CF_THREADS, refused_body);
}

static void
close_takes_what_is_half_made(struct cf *t)
{
	uint32_t n = cf_pair(t), fds;
	struct ist_status st;

	cf_stage(t, "close of NULL");
	shut(t, NULL);
	for (int i = 0; i < 3; i++) { /* the first round may make what is kept for good */
		struct cf_rank r = { .t = t, .n = n, .generation = 11 };
		struct ist_task *task = NULL;
		struct ist_wire mine = { .bytes = 0 };

		fds = cf_open_fds();
		cf_stage(t, "close after open");
		if (open_as(t, 0, n, 0, NULL, &r.chan, &st))
			cf_fail(t, "open failed: %.200s", st.text);
		shut(t, r.chan);
		r.chan = NULL;
		cf_stage(t, "close after offer");
		if (open_as(t, 0, n, 0, NULL, &r.chan, &st))
			cf_fail(t, "open failed: %.200s", st.text);
		if (t->b->offer && !t->b->offer(r.chan, &mine, &task, &st) && task)
			cf_done(&r, task);
		shut(t, r.chan);
	}
	CF_CHECK(t, atomic_load(&t->blocks) == 0, "%lld pieces of memory were not given back", (long long)atomic_load(&t->blocks));
	CF_CHECK(t, cf_open_fds() == fds, "descriptors were left open: %u before, %u after", fds, cf_open_fds());
}

/* What stands in for the others' wires. */
static void
spoil(struct ist_wire *w, int how, char *room, size_t bytes)
{
	memset(room, how == 2 ? 0x5A : 0xFF, bytes);
	*w = (struct ist_wire){ .addr = room, .bytes = how == 0 ? 1 : bytes };
}

static void
drive_hostile(struct cf_rank *r, struct ist_task *task)
{
	int64_t until = cf_now() + 500 * CF_MS;
	struct ist_status st;
	ist_err e = IST_OK;

	do {
		cf_turn(r);
		cf_status(&st);
		e = r->t->b->test(r->chan, task, &st);
	} while (!e && st.state == IST_PENDING && cf_now() < until);
	CF_CHECK(r->t, e || st.state == IST_PENDING, "connect takes wires that are not its own for good ones");
	if (st.state != IST_PENDING)
		return;
	r->t->b->abort(r->chan, IST_ABORTED);
	cf_finish(r, task, &st);
}

static void
hostile_wires_are_refused(struct cf *t)
{
	char *room = malloc(64 << 10);

	CF_CHECK(t, room, "the suite has no memory");
	cf_need(t, 2);
	for (int how = 0; how < 4; how++) {
		struct cf_rank r = { .t = t, .rank = 1, .n = 2, .generation = 20 };
		struct ist_open args = cf_open_args(&r);
		struct ist_wire all[2] = { { .bytes = 0 }, { .bytes = 0 } };
		struct ist_connect with = { .struct_size = sizeof(with), .size = 2, .all = all };
		struct ist_task *task = NULL;
		struct ist_status st;
		ist_err e;

		args.deadline_ns = cf_now() + 300 * CF_MS;
		cf_status(&st);
		if (t->b->open(t->b->self, &t->host, &args, &r.chan, &st))
			cf_fail(t, "open failed: %.200s", st.text);
		if (t->b->offer && !t->b->offer(r.chan, &all[1], &task, &st) && task)
			cf_done(&r, task);
		if (all[1].bytes == 0 && all[1].n_fds == 0)
			cf_skip(t, "its members have nothing to say to each other");
		if (how < 3) /* the third: the other member says nothing */
			spoil(&all[0], how, room, how == 0 ? 1 : how == 1 ? all[1].bytes : 64 << 10);
		cf_stage(t, "connect with wires that are %s", how == 0 ? "a byte long" : how == 1 ? "all ones" : how == 2 ? "64 KiB of nonsense" : "empty");
		task = NULL;
		cf_status(&st);
		e = t->b->connect(r.chan, &with, &task, &st);
		CF_CHECK(t, cf_known(e), "connect returns %d, which is not in error.h", e);
		CF_CHECK(t, e || task, "connect says OK and gives no task");
		if (!e)
			drive_hostile(&r, task);
		shut(t, r.chan);
	}
	free(room);
}

static void
cycle_body(struct cf_rank *r)
{
	cf_ring(r, 1000, 0);
}

static void
fifty_cycles_leave_nothing(struct cf *t)
{
	uint32_t fds = 0, threads = 0, maps = 0, n = cf_pair(t);
	int64_t until;

	for (int i = 0; i < 60; i++) {
		if (i == 10) { /* what is made once for good is made by now */
			fds = cf_open_fds();
			threads = cf_threads();
			maps = cf_maps();
		}
		cf_ranks(t, n, CF_THREADS, cycle_body);
		CF_CHECK(t, atomic_load(&t->blocks) == 0 || atomic_load(&t->threads) > 0, "after close %lld pieces of memory (%lld bytes) were not given back",
			(long long)atomic_load(&t->blocks), (long long)atomic_load(&t->bytes));
	}
	until = cf_now() + 2000 * CF_MS;
	while ((cf_threads() > threads || atomic_load(&t->threads) > 0) && cf_now() < until)
		cf_pause_us(1000);
	CF_CHECK(t, cf_threads() <= threads, "50 cycles left %u threads", cf_threads() - threads);
	CF_CHECK(t, cf_open_fds() <= fds, "50 cycles left %u descriptors", cf_open_fds() - fds);
	CF_CHECK(t, cf_maps() < maps + 45, /* stacks of the suite's own threads come and go */
		"50 cycles left %u mappings", cf_maps() - maps);
	CF_CHECK(t, atomic_load(&t->blocks) == 0, "%lld pieces of memory were not given back", (long long)atomic_load(&t->blocks));
}

const struct cf_entry cf_shape_checks[] = {
	{ "table_is_complete", table_is_complete, 0 },
	{ "probe_says_what_it_can", probe_says_what_it_can, 0 },
	{ "looking_starts_nothing", looking_starts_nothing, 0 },
	{ "structs_may_grow", structs_may_grow, 0 },
	{ "unknown_options_are_refused", unknown_options_are_refused, 0 },
	{ "must_flags_are_refused", must_flags_are_refused, 0 },
	{ "op_must_flags_are_refused", op_must_flags_are_refused, 0 },
	{ "outputs_only_on_ok", outputs_only_on_ok, 0 },
	{ "codes_are_in_error_h", codes_are_in_error_h, 0 },
	{ "unsupported_leaves_nothing_begun", unsupported_leaves_nothing_begun, 0 },
	{ "close_takes_what_is_half_made", close_takes_what_is_half_made, 0 },
	{ "hostile_wires_are_refused", hostile_wires_are_refused, 0 },
	{ "fifty_cycles_leave_nothing", fifty_cycles_leave_nothing, 200 },
	{ NULL, NULL, 0 },
};
