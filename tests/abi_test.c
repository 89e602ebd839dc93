/* SPDX-License-Identifier: Apache-2.0
 *
 * abi_test.c - what is frozen of the plug-in ABI: offsets and sizes of version 1 on a 64-bit machine, and that tables of
 * other lengths are admitted for what they have.
 */
#include "base/fail.h"
#include "plug/admit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct field {
	const char *name;
	size_t offset, bytes;
};
#define F(s, f, o, b) { #s "." #f, offsetof(struct s, f), sizeof(((struct s *)0)->f) }, { "", o, b }

/* Pairs: as compiled, as frozen. Only lines may be added, for fields that were. */
static const struct field frozen[] = {
	F(ist_buf, addr, 0, 8), F(ist_buf, bytes, 8, 8), F(ist_buf, mem, 16, 2), F(ist_buf, how, 18, 2), F(ist_buf, device, 20, 4),
	F(ist_wire, addr, 0, 8), F(ist_wire, bytes, 8, 8), F(ist_wire, fds, 16, 8), F(ist_wire, n_fds, 24, 8),
	F(ist_host, abi, 4, 4), F(ist_host, ctx, 8, 8), F(ist_host, log, 16, 8), F(ist_host, alloc, 24, 8), F(ist_host, free, 32, 8),
	F(ist_host, device, 40, 8), F(ist_host, thread, 48, 8),
	F(ist_status, state, 4, 4), F(ist_status, rank, 8, 4), F(ist_status, sys, 12, 4), F(ist_status, moved, 16, 8),
	F(ist_status, view, 24, 24), F(ist_status, text, 48, 240),
	F(ist_progress, more, 4, 4), F(ist_progress, moved, 8, 8), F(ist_progress, ended, 16, 8), F(ist_progress, memory, 24, 8),
	F(ist_progress, shared, 32, 8),
	F(ist_setting, name, 0, 8), F(ist_setting, value, 8, 8), F(ist_setting, rule, 16, 8),
	F(ist_probe, usable, 4, 4), F(ist_probe, reason, 8, 8), F(ist_probe, library, 16, 8), F(ist_probe, version, 24, 8),
	F(ist_probe, native_ops, 32, 8), F(ist_probe, mem, 40, 8), F(ist_probe, traits, 48, 8), F(ist_probe, max_ops, 56, 8),
	F(ist_probe, settings, 64, 8), F(ist_probe, n_settings, 72, 8),
	F(ist_open, rank, 4, 4), F(ist_open, size, 8, 4), F(ist_open, mem, 12, 4), F(ist_open, device, 16, 4), F(ist_open, flags, 20, 4),
	F(ist_open, group, 24, 8), F(ist_open, generation, 32, 8), F(ist_open, deadline_ns, 40, 8), F(ist_open, options, 48, 8),
	F(ist_open, listen, 56, 8), F(ist_open, advertise, 64, 8), F(ist_open, transport, 72, 4), F(ist_open, reserved, 76, 4),
	F(ist_connect, size, 4, 4), F(ist_connect, all, 8, 8), F(ist_connect, agreed, 16, 8), F(ist_connect, n_agreed, 24, 8),
	F(ist_op, kind, 4, 4), F(ist_op, peer, 8, 4), F(ist_op, flags, 12, 4), F(ist_op, dtype, 16, 4), F(ist_op, reduce, 20, 4),
	F(ist_op, seq, 24, 8), F(ist_op, src, 32, 24), F(ist_op, dst, 56, 24), F(ist_op, region, 80, 8), F(ist_op, region_bytes, 88, 8),
	F(ist_op, offset, 96, 8), F(ist_op, stream, 104, 8),
	F(ist_backend, abi, 4, 4), F(ist_backend, name, 8, 8), F(ist_backend, self, 16, 8), F(ist_backend, probe, 24, 8),
	F(ist_backend, open, 32, 8), F(ist_backend, offer, 40, 8), F(ist_backend, connect, 48, 8), F(ist_backend, start, 56, 8),
	F(ist_backend, progress, 64, 8), F(ist_backend, arm, 72, 8), F(ist_backend, test, 80, 8), F(ist_backend, task_free, 88, 8),
	F(ist_backend, abort, 96, 8), F(ist_backend, close, 104, 8), F(ist_backend, region, 112, 8), F(ist_backend, region_free, 120, 8),
	F(ist_backend, drop, 128, 8), F(ist_backend, alloc, 136, 8), F(ist_backend, free, 144, 8),
	F(ist_device, abi, 4, 4), F(ist_device, name, 8, 8), F(ist_device, self, 16, 8), F(ist_device, mem, 24, 8),
	F(ist_device, probe, 32, 8), F(ist_device, info, 40, 8), F(ist_device, owner, 48, 8), F(ist_device, enter, 56, 8),
	F(ist_device, leave, 64, 8), F(ist_device, alloc, 72, 8), F(ist_device, free, 80, 8), F(ist_device, pin, 88, 8),
	F(ist_device, unpin, 96, 8), F(ist_device, stream_new, 104, 8), F(ist_device, stream_free, 112, 8), F(ist_device, copy, 120, 8),
	F(ist_device, event_new, 128, 8), F(ist_device, event_record, 136, 8), F(ist_device, event_query, 144, 8),
	F(ist_device, stream_wait, 152, 8), F(ist_device, event_free, 160, 8), F(ist_device, share, 168, 8), F(ist_device, map, 176, 8),
	F(ist_device, unmap, 184, 8), F(ist_device, event_share, 192, 8), F(ist_device, event_map, 200, 8), F(ist_device, event_ns, 208, 8),
	F(ist_device, digest, 216, 8),
	F(ist_device_probe, count, 4, 4), F(ist_device_probe, reason, 8, 8), F(ist_device_probe, library, 16, 8),
	F(ist_device_probe, version, 24, 8),
	F(ist_device_info, numa_node, 4, 4), F(ist_device_info, bytes_free, 8, 8), F(ist_device_info, bytes_total, 16, 8),
	F(ist_device_info, copy_align, 24, 8), F(ist_device_info, uuid, 32, 16), F(ist_device_info, name, 48, 64),
	F(ist_copy, dst, 0, 8), F(ist_copy, src, 8, 8), F(ist_copy, bytes, 16, 8),
};

static void
fields_stay_where_they_are(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(frozen) / sizeof(frozen[0]); i += 2)
		if (frozen[i].offset != frozen[i + 1].offset || frozen[i].bytes != frozen[i + 1].bytes)
			fail_msg("%s is at %zu with %zu bytes, frozen at %zu with %zu", frozen[i].name, frozen[i].offset, frozen[i].bytes,
				frozen[i + 1].offset, frozen[i + 1].bytes);
	assert_int_equal(IST_BACKEND_SIZE_MIN, 112);
	/* these lie in arrays and inside others: they never grow */
	assert_int_equal(sizeof(struct ist_buf), 24);
	assert_int_equal(sizeof(struct ist_wire), 32);
	assert_int_equal(sizeof(struct ist_setting), 24);
	assert_int_equal(sizeof(struct ist_copy), 24);
}

static void
numbers_stay_what_they_are(void **state)
{
	(void)state;
	assert_int_equal(IST_OP_SEND, 1);
	assert_int_equal(IST_OP_BARRIER, 10);
	assert_int_equal(IST_OP_RESUME, 13);
	assert_int_equal(IST_F16, 16);
	assert_int_equal(IST_F8E5M2, 21);
	assert_int_equal(IST_MAX, 4);
	assert_int_equal(IST_MEM_ASCEND, 3);
	assert_int_equal(IST_ABANDONED, 3);
	assert_int_equal(IST_TRAIT_WANTS_FDS, 32);
	assert_int_equal(IST_OP_VIEW, 1);
	assert_int_equal(IST_MUST, 0x80000000u);
	assert_string_equal(IST_BACKEND_ENTRY, "isthmus_backend_v1");
	assert_string_equal(IST_DEVICE_ENTRY, "isthmus_device_v1");
}

/* self, built in: a table to cut and stretch */
const struct ist_backend *isthmus_backend_self(void);

static void
an_old_table_is_completed(void **state)
{
	struct ist_backend cut = *isthmus_backend_self();
	void *old = malloc(IST_BACKEND_SIZE_MIN); /* not a byte more, so that a read past its end is noticed */
	struct ist__admitted a = { .slots = 99 };
	struct ist_error err;

	(void)state;
	ist_error_init(&err);
	assert_non_null(old);
	cut.struct_size = IST_BACKEND_SIZE_MIN;
	memcpy(old, &cut, IST_BACKEND_SIZE_MIN);
	assert_int_equal(ist__backend_admit(old, &a, &err), IST_OK);
	assert_int_equal(a.slots, 0);
	assert_int_equal(a.ops.struct_size, sizeof(struct ist_backend));
	assert_int_equal(a.ops.offer(NULL, NULL, NULL, NULL), IST_UNSUPPORTED);
	assert_int_equal(a.ops.region(NULL, NULL, 0, NULL, NULL, NULL, NULL), IST_UNSUPPORTED);
	a.ops.region_free(NULL, NULL);
	assert_int_equal(a.ops.drop(NULL, 0), IST_UNSUPPORTED);
	assert_int_equal(a.ops.alloc(NULL, 0, 0, 0, NULL, NULL), IST_UNSUPPORTED);
	a.ops.free(NULL, NULL);
	free(old);
}

static void
a_newer_table_is_clipped(void **state)
{
	struct {
		struct ist_backend table;
		void (*more[4])(void);
	} newer = { .table = *isthmus_backend_self() };
	struct ist__admitted a;

	(void)state;
	newer.table.struct_size = sizeof(newer);
	assert_int_equal(ist__backend_admit(&newer.table, &a, NULL), IST_OK);
	assert_int_equal(a.ops.struct_size, sizeof(struct ist_backend));
	assert_ptr_equal(a.ops.start, newer.table.start);
}

static void
refused(struct ist_backend *table, const char *word)
{
	struct ist__admitted a = { .slots = 77 };
	struct ist_error err;

	ist_error_init(&err);
	assert_int_equal(ist__backend_admit(table, &a, &err), IST_BAD_PLUGIN);
	assert_int_equal(err.code, IST_BAD_PLUGIN);
	assert_int_equal(err.scope, IST_SCOPE_BACKEND);
	if (!strstr(err.detail, word))
		fail_msg("\"%s\" does not say \"%s\"", err.detail, word);
	assert_int_equal(a.slots, 77); /* written on success alone */
}

static ist_err
some_alloc(struct ist_chan *chan, uint64_t bytes, uint32_t mem, int32_t device, void **out, struct ist_status *why)
{
	(void)chan, (void)bytes, (void)mem, (void)device, (void)out, (void)why;
	return IST_UNSUPPORTED;
}

static void
bad_tables_are_refused(void **state)
{
	struct ist_backend t;

	(void)state;
	refused(NULL, "no table");
#define WITH(change, word) \
	t = *isthmus_backend_self(); \
	change; \
	refused(&t, word)
	WITH(t.abi = 2, "abi version 2");
	WITH(t.abi = 0, "abi version 0");
	WITH(t.struct_size = IST_BACKEND_SIZE_MIN - 1, "111 bytes");
	WITH(t.struct_size = 0, "0 bytes");
	WITH(t.name = NULL, "name");
	WITH(t.name = "", "name");
	WITH(t.name = "a:b", "name");
	WITH(t.name = "auto", "name");
	WITH(t.probe = NULL, "slot probe");
	WITH(t.open = NULL, "slot open");
	WITH(t.connect = NULL, "slot connect");
	WITH(t.start = NULL, "slot start");
	WITH(t.progress = NULL, "slot progress");
	WITH(t.arm = NULL, "slot arm");
	WITH(t.test = NULL, "slot test");
	WITH(t.task_free = NULL, "slot task_free");
	WITH(t.abort = NULL, "slot abort");
	WITH(t.close = NULL, "slot close");
	WITH(t.alloc = some_alloc, "alloc");
#undef WITH
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fields_stay_where_they_are),
		cmocka_unit_test(numbers_stay_what_they_are),
		cmocka_unit_test(an_old_table_is_completed),
		cmocka_unit_test(a_newer_table_is_clipped),
		cmocka_unit_test(bad_tables_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
