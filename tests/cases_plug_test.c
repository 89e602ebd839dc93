/* SPDX-License-Identifier: Apache-2.0
 *
 * Backends that say of themselves what others must know: versions, settings that both ends share, devices that are not
 * shared, one group only. Each is the host backend with another face.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "far_device.h"
#include "lazy_device.h"
#include "ranks.h"

#include <stdbool.h>

const struct ist_backend *isthmus_backend_host(void);

struct face {
	const char *version, *library;
	struct ist_setting settings[2];
	uint64_t n_settings, traits;
	bool opens_once;
	/* what came of it */
	uint32_t opened, offered;
	char agreed[2][32];
	struct ist_backend table;
	bool lazy;                /* its device is tests/lazy_device.c, and not a far_device */
	struct far_device *device;
};

static struct face *wears; /* one a process: the slots after open get no self */

static void
face_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_probe *out)
{
	struct face *f = self;

	isthmus_backend_host()->probe(NULL, host, level, out);
	out->version = f->version ? f->version : "1";
	out->library = f->library ? f->library : "";
	out->settings = f->settings;
	out->n_settings = f->n_settings;
	out->traits |= f->traits;
}

static ist_err
face_open(void *self, const struct ist_host *host, const struct ist_open *args, struct ist_chan **out, struct ist_status *why)
{
	struct face *f = self;
	ist_err e;

	if (f->opens_once && f->opened > 0) {
		snprintf(why->text, sizeof(why->text), "one group at a time");
		return IST_LIMIT;
	}
	e = isthmus_backend_host()->open(NULL, host, args, out, why);
	f->opened += !e;
	return e;
}

static ist_err
face_offer(struct ist_chan *chan, struct ist_wire *mine, struct ist_task **out, struct ist_status *why)
{
	wears->offered++;
	return isthmus_backend_host()->offer(chan, mine, out, why);
}

static ist_err
face_connect(struct ist_chan *chan, const struct ist_connect *args, struct ist_task **out, struct ist_status *why)
{
	struct ist_connect plain = *args;

	CHECK(args->n_agreed == wears->n_settings);
	for (uint64_t i = 0; i < args->n_agreed && i < 2; i++)
		snprintf(wears->agreed[i], sizeof(wears->agreed[i]), "%s=%s", args->agreed[i].name, args->agreed[i].value);
	plain.n_agreed = 0;
	return isthmus_backend_host()->connect(chan, &plain, out, why);
}

static ist_err
face_close(struct ist_chan *chan, struct ist_status *why)
{
	wears->opened--;
	return isthmus_backend_host()->close(chan, why);
}

/* A member whose backend "face" is f, on device where the device is not negative. */
static void
face_init(struct member *m, struct face *f, int32_t device)
{
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .mem = device < 0 ? IST_MEM_HOST : IST_MEM_CUDA, .device = device };

	memset(m, 0, sizeof(*m));
	ist_error_init(&m->err);
	f->table = *isthmus_backend_host();
	f->table.name = "face";
	f->table.self = f;
	f->table.probe = face_probe;
	f->table.open = face_open;
	f->table.offer = face_offer;
	f->table.connect = face_connect;
	f->table.close = face_close;
	wears = f;
	CHECK_ERR(IST_OK, ist_env_new(NULL, &m->env, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_backend_add(m->env, &f->table, &m->err), &m->err);
	if (device >= 0 && f->lazy) {
		CHECK_ERR(IST_OK, ist_device_add(m->env, &lazy_device, &m->err), &m->err);
	} else if (device >= 0) {
		f->device = far_device_new(NULL);
		CHECK_ERR(IST_OK, ist_device_add(m->env, far_device_table(f->device), &m->err), &m->err);
	}
	CHECK_ERR(IST_OK, ist_endpoint_new(m->env, &pa, &m->ep, &m->err), &m->err);
}

static void
face_fini(struct member *m, struct face *f)
{
	member_fini(m);
	if (f->device)
		far_device_free(f->device);
}

static ist_err
face_join(struct member *m, struct ranks *r, const char *name, uint32_t rank)
{
	struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = rank, .size = r->n, .name = name, .at = r->at, .backend = "face",
		.timeout_ns = 30 * IST_NS_PER_S };

	return ist_group_new(m->ep, &ga, &m->g, &m->err);
}

static void
play(uint32_t n, int (*run)(struct ranks *r, uint32_t rank, void *arg))
{
	struct ranks r;

	ranks_init(&r, n);
	ranks_start_all(&r, run, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* ---- versions ---- */

static int
has_another_version(struct ranks *r, uint32_t rank, void *arg)
{
	struct face f = { .version = rank == 1 ? "1.9" : "2.1", .library = rank == 1 ? "/opt/old/libface.so" : "/opt/new/libface.so" };
	struct member m;

	(void)arg;
	face_init(&m, &f, -1);
	CHECK_ERR(IST_VERSION_MISMATCH, face_join(&m, r, "versions", rank), &m.err);
	CHECK(error_names(&m.err, 0) && error_names(&m.err, 1) && !error_names(&m.err, 2));
	CHECK(strstr(m.err.detail, "2.1") && strstr(m.err.detail, "1.9"));
	CHECK(strstr(m.err.detail, "/opt/old/libface.so") && strstr(m.err.detail, "/opt/new/libface.so"));
	CHECK(f.offered == 0); /* the backend never started */
	face_fini(&m, &f);
	CHECK(f.opened == 0);
	return 0;
}

static void
versions_that_do_not_fit(void **state)
{
	(void)state;
	play(3, has_another_version);
}

/* Of one line of versions: good enough. */
static int
has_a_later_version(struct ranks *r, uint32_t rank, void *arg)
{
	struct face f = { .version = rank == 1 ? "2.1.7" : "2.1.5" };
	struct member m;

	(void)arg;
	face_init(&m, &f, -1);
	CHECK_ERR(IST_OK, face_join(&m, r, "versions", rank), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	CHECK(f.offered == 1);
	face_fini(&m, &f);
	return 0;
}

static void
versions_that_fit(void **state)
{
	(void)state;
	play(2, has_a_later_version);
}

/* A backend whose versions fit where more than the first number is equal says how much is, as a setting. */
static int
has_another_line(struct ranks *r, uint32_t rank, void *arg)
{
	struct face f = { .settings = { { "version", rank == 1 ? "2.19" : "2.28", 0 } }, .n_settings = 1 };
	struct member m;

	(void)arg;
	face_init(&m, &f, -1);
	CHECK_ERR(IST_VERSION_MISMATCH, face_join(&m, r, "line", rank), &m.err);
	CHECK(m.err.n_ranks == 2 && error_names(&m.err, 0) && error_names(&m.err, 1));
	CHECK(strstr(m.err.detail, "2.19") && strstr(m.err.detail, "2.28"));
	CHECK(f.offered == 0);
	member_fini(&m);
	return 0;
}

static void
a_setting_that_is_a_version(void **state)
{
	(void)state;
	play(2, has_another_line);
}

/* ---- settings ---- */

static int
has_another_setting(struct ranks *r, uint32_t rank, void *arg)
{
	struct face f = { .settings = { { "FACE_X", rank == 2 ? "1" : "0", 0 } }, .n_settings = 1 };
	struct member m;

	(void)arg;
	face_init(&m, &f, -1);
	CHECK_ERR(IST_MISMATCH, face_join(&m, r, "settings", rank), &m.err);
	CHECK(error_names(&m.err, 2) && strstr(m.err.detail, "FACE_X") && strstr(m.err.detail, "\"0\"") && strstr(m.err.detail, "\"1\""));
	CHECK(f.offered == 0);
	face_fini(&m, &f);
	return 0;
}

static void
settings_that_must_be_equal(void **state)
{
	(void)state;
	play(3, has_another_setting);
}

static int
has_a_small_frame(struct ranks *r, uint32_t rank, void *arg)
{
	struct face f = { .settings = { { "FACE_X", "same", 0 }, { "FACE_MTU", rank == 1 ? "1024" : "4096", 1 } }, .n_settings = 2 };
	struct member m;

	(void)arg;
	face_init(&m, &f, -1);
	CHECK_ERR(IST_OK, face_join(&m, r, "settings", rank), &m.err);
	CHECK(!strcmp(f.agreed[0], "FACE_X=same") && !strcmp(f.agreed[1], "FACE_MTU=1024"));
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	face_fini(&m, &f);
	return 0;
}

static void
settings_of_which_the_least_holds(void **state)
{
	(void)state;
	play(3, has_a_small_frame);
}

/* A number that is none would otherwise pass for 0, the least of all. */
static int
has_no_number(struct ranks *r, uint32_t rank, void *arg)
{
	struct face f = { .settings = { { "FACE_MTU", rank == 1 ? "jumbo" : "4096", 1 } }, .n_settings = 1 };
	struct member m;

	(void)arg;
	face_init(&m, &f, -1);
	CHECK_ERR(IST_MISMATCH, face_join(&m, r, "settings", rank), &m.err);
	CHECK(error_names(&m.err, 1) && strstr(m.err.detail, "FACE_MTU") && strstr(m.err.detail, "jumbo"));
	CHECK(f.offered == 0);
	face_fini(&m, &f);
	return 0;
}

static void
settings_that_are_no_numbers(void **state)
{
	(void)state;
	play(2, has_no_number);
}

/* ---- devices ---- */

static int
shares_a_device(struct ranks *r, uint32_t rank, void *arg)
{
	static const int32_t device[] = { 0, 1, 2, 1 };
	struct face f = { .traits = IST_TRAIT_ONE_RANK };
	struct member m;

	(void)arg;
	face_init(&m, &f, device[rank]);
	CHECK_ERR(IST_DEVICE_CONFLICT, face_join(&m, r, "devices", rank), &m.err);
	CHECK(m.err.n_ranks == 2 && m.err.ranks[0] == 1 && m.err.ranks[1] == 3);
	CHECK(f.offered == 0);
	face_fini(&m, &f);
	return 0;
}

static void
two_ranks_on_one_device(void **state)
{
	(void)state;
	play(4, shares_a_device);
}

/* Indexes are a process's own: the same card may be 1 here and 0 there, and all may call theirs 0. */
static int
has_one_card_twice(struct ranks *r, uint32_t rank, void *arg)
{
	static const int card[] = { 5, 6, 7, 6 };
	struct face f = { .traits = IST_TRAIT_ONE_RANK, .lazy = true };
	struct member m;

	(void)arg;
	lazy_twin = card[rank];
	face_init(&m, &f, (int32_t)rank);
	CHECK_ERR(IST_DEVICE_CONFLICT, face_join(&m, r, "card", rank), &m.err);
	CHECK(m.err.n_ranks == 2 && m.err.ranks[0] == 1 && m.err.ranks[1] == 3);
	CHECK(f.offered == 0);
	member_fini(&m);
	return 0;
}

static void
one_device_under_two_indexes(void **state)
{
	(void)state;
	play(4, has_one_card_twice);
}

static int
calls_all_zero(struct ranks *r, uint32_t rank, void *arg)
{
	struct face f = { .traits = IST_TRAIT_ONE_RANK, .lazy = true };
	struct member m;

	(void)arg;
	lazy_twin = (int)rank;
	face_init(&m, &f, 0);
	CHECK_ERR(IST_OK, face_join(&m, r, "zero", rank), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	member_fini(&m);
	return 0;
}

static void
two_devices_under_one_index(void **state)
{
	(void)state;
	play(3, calls_all_zero);
}

/* Who forbids nothing takes the same layout; and members without a device have none in common. */
static int
minds_no_device(struct ranks *r, uint32_t rank, void *arg)
{
	struct face f = { .traits = 0 };
	struct member m;

	(void)arg;
	face_init(&m, &f, 1);
	CHECK_ERR(IST_OK, face_join(&m, r, "devices", rank), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	face_fini(&m, &f);
	f = (struct face){ .traits = IST_TRAIT_ONE_RANK };
	face_init(&m, &f, -1);
	CHECK_ERR(IST_OK, face_join(&m, r, "none", rank), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	face_fini(&m, &f);
	return 0;
}

static void
one_device_where_that_is_allowed(void **state)
{
	(void)state;
	play(2, minds_no_device);
}

/* ---- one group at a time ---- */

static int
opens_once(struct ranks *r, uint32_t rank, void *arg)
{
	struct face f = { .opens_once = rank == 1 };
	struct ist_group *first;
	struct member m;

	(void)arg;
	face_init(&m, &f, -1);
	CHECK_ERR(IST_OK, face_join(&m, r, "first", rank), &m.err);
	first = m.g;
	CHECK_ERR(IST_LIMIT, face_join(&m, r, "second", rank), &m.err);
	CHECK(error_names(&m.err, 1) && strstr(m.err.detail, "one group at a time"));
	CHECK_ERR(IST_OK, ist_barrier(first, 0, &m.err), &m.err); /* the first one goes on */
	CHECK(ist_group_free(first) == IST_OK);
	CHECK_ERR(IST_OK, face_join(&m, r, "third", rank), &m.err);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	face_fini(&m, &f);
	return 0;
}

static void
a_backend_for_one_group(void **state)
{
	(void)state;
	play(2, opens_once);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(versions_that_do_not_fit),
		cmocka_unit_test(versions_that_fit),
		cmocka_unit_test(a_setting_that_is_a_version),
		cmocka_unit_test(settings_that_must_be_equal),
		cmocka_unit_test(settings_of_which_the_least_holds),
		cmocka_unit_test(settings_that_are_no_numbers),
		cmocka_unit_test(two_ranks_on_one_device),
		cmocka_unit_test(one_device_under_two_indexes),
		cmocka_unit_test(two_devices_under_one_index),
		cmocka_unit_test(one_device_where_that_is_allowed),
		cmocka_unit_test(a_backend_for_one_group),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
