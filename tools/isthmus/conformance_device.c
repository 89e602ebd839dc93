/* SPDX-License-Identifier: Apache-2.0
 *
 * conformance_device.c - checks of a device: memory, copies, streams and events, sharing between processes.
 */
#include "conformance_rig.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
device_table_is_complete(struct cf *t)
{
	const struct ist_device *d = t->d;

	CF_CHECK(t, d->struct_size >= offsetof(struct ist_device, event_free) + sizeof(void *), "struct_size is %u: too short", d->struct_size);
	CF_CHECK(t, d->abi == IST_BACKEND_ABI, "abi is %u, this is for %u", d->abi, IST_BACKEND_ABI);
	CF_CHECK(t, d->name && *d->name && strnlen(d->name, 64) < 64, "its name must have 1 to 63 bytes");
	CF_CHECK(t, d->mem != 0, "it allocates no kind of memory (mem is 0)");
	CF_CHECK(t, d->probe && d->info && d->owner && d->enter && d->leave && d->alloc && d->free && d->pin && d->unpin && d->stream_new &&
		d->stream_free && d->copy && d->event_new && d->event_record && d->event_query && d->stream_wait && d->event_free,
		"one of the mandatory slots is empty");
}

static bool
probe(struct cf *t, uint32_t level)
{
	struct ist_device_probe p = { .struct_size = sizeof(p) };

	cf_stage(t, "probe at level %u", level);
	t->d->probe(t->d->self, &t->host, level, &p);
	CF_CHECK(t, level < IST_START || p.count > 0 || (p.reason && *p.reason), "it has no device and gives no reason");
	return p.count > 0;
}

static void
need_device(struct cf *t)
{
	if (!probe(t, IST_START))
		cf_skip(t, "there is no such device here");
}

static void
device_looking_starts_nothing(struct cf *t)
{
	uint32_t fds = cf_open_fds(), threads = cf_threads(), maps = cf_maps();

	for (int i = 0; i < 100; i++)
		probe(t, IST_LOOK);
	CF_CHECK(t, cf_open_fds() == fds && cf_threads() == threads && cf_maps() <= maps + 8, "probe at IST_LOOK opened, mapped or started something");
}

static uint32_t
kind_of(struct cf *t)
{
	for (uint32_t k = 64; k-- > 0;)
		if (t->d->mem >> k & 1 && k != IST_MEM_PINNED)
			return k;
	return IST_MEM_PINNED;
}

static void *
device_new(struct cf *t, uint64_t bytes, uint32_t flags)
{
	struct ist_status st;
	void *p = NULL;
	ist_err e;

	cf_status(&st);
	cf_stage(t, "alloc of %llu bytes", (unsigned long long)bytes);
	e = t->d->alloc(t->d->self, 0, kind_of(t), flags, bytes, &p, &st);
	CF_CHECK(t, !e && p, "alloc of %llu bytes failed: %s %.200s", (unsigned long long)bytes, e ? cf_name(e) : "OK without an address", st.text);
	return p;
}

static void
device_free(struct cf *t, void *p)
{
	t->d->free(t->d->self, 0, kind_of(t), p);
}

/* Copies and waits for it through an event. */
static void
copy_all(struct cf *t, const struct ist_copy *list, uint64_t n)
{
	const struct ist_device *d = t->d;
	int64_t until = cf_now() + CF_PATIENCE_NS;
	void *stream = NULL, *event = NULL;
	struct ist_status st;
	uint32_t done = 0;

	cf_status(&st);
	CF_CHECK(t, !d->stream_new(d->self, 0, &stream, &st) && stream, "stream_new failed: %.200s", st.text);
	CF_CHECK(t, !d->event_new(d->self, 0, 0, &event, &st) && event, "event_new failed: %.200s", st.text);
	CF_CHECK(t, !d->copy(d->self, 0, list, n, stream, &st), "copy failed: %.200s", st.text);
	CF_CHECK(t, !d->event_record(d->self, 0, event, stream, &st), "event_record failed: %.200s", st.text);
	CF_CHECK(t, !d->stream_wait(d->self, 0, stream, event, &st), "stream_wait failed: %.200s", st.text);
	while (!done) {
		CF_CHECK(t, !d->event_query(d->self, 0, event, &done, &st), "event_query failed: %.200s", st.text);
		CF_CHECK(t, cf_now() < until, "an event behind a copy did not come");
	}
	d->event_free(d->self, 0, event);
	d->stream_free(d->self, 0, stream);
}

static void
device_copies_every_byte(struct cf *t)
{
	enum { PARTS = 5 };
	static const uint64_t bytes[PARTS] = { 0, 64, 4096, 1000000, 8 << 20 };
	struct cf_buf src[PARTS], dst[PARTS];
	struct ist_copy in[PARTS], out[PARTS];

	need_device(t);
	for (int i = 0; i < PARTS; i++) {
		void *there = device_new(t, bytes[i], 0);

		src[i] = cf_buf_new(t, bytes[i], 0);
		dst[i] = cf_buf_new(t, bytes[i], 0);
		cf_fill(src[i].addr, bytes[i], (uint64_t)i);
		in[i] = (struct ist_copy){ .dst = there, .src = src[i].addr, .bytes = bytes[i] };
		out[i] = (struct ist_copy){ .dst = dst[i].addr, .src = there, .bytes = bytes[i] };
	}
	copy_all(t, in, PARTS);
	copy_all(t, out, PARTS);
	for (int i = 0; i < PARTS; i++) {
		CF_CHECK(t, cf_differs(dst[i].addr, bytes[i], (uint64_t)i) == UINT64_MAX && cf_walls_stand(&dst[i]), "a copy there and back of %llu bytes is wrong",
			(unsigned long long)bytes[i]);
		device_free(t, in[i].dst);
		cf_buf_free(&src[i]);
		cf_buf_free(&dst[i]);
	}
}

static void
device_refuses_what_it_has_not(struct cf *t)
{
	struct ist_status st;
	void *poison = (void *)(uintptr_t)0x7157babe0000ULL, *p = poison;
	struct ist_device_info info = { .struct_size = sizeof(info) };
	ist_err e;

	need_device(t);
	cf_status(&st);
	e = t->d->alloc(t->d->self, 0, 63, 0, 64, &p, &st);
	CF_CHECK(t, e && cf_known(e), "alloc of a kind of memory that there is not says %s", e ? cf_name(e) : "OK");
	CF_CHECK(t, p == poison, "alloc failed and wrote its output all the same");
	e = t->d->alloc(t->d->self, 0, kind_of(t), 0, UINT64_MAX - 4096, &p, &st);
	CF_CHECK(t, e && cf_known(e), "alloc of 16 EiB says %s", e ? cf_name(e) : "OK");
	e = t->d->alloc(t->d->self, 0, kind_of(t), IST_MUST | 0x00400000u, 64, &p, &st);
	CF_CHECK(t, e == IST_UNSUPPORTED, "alloc with an unknown flag and IST_MUST must be UNSUPPORTED, it is %s", cf_name(e));
	e = t->d->info(t->d->self, 4242, &info, &st);
	CF_CHECK(t, e && cf_known(e), "info of device 4242 says %s", e ? cf_name(e) : "OK");
	CF_CHECK(t, !t->d->info(t->d->self, 0, &info, &st) && info.bytes_total > 0 && memchr(info.name, 0, sizeof(info.name)),
		"info of device 0 failed or says nothing");
}

static void
device_knows_its_memory(struct cf *t)
{
	struct ist_buf buf = { .bytes = 1 };
	struct ist_status st;
	int local = 0;

	need_device(t);
	cf_status(&st);
	CF_CHECK(t, !t->d->owner(t->d->self, &local, &buf, &st), "owner of foreign memory failed: %.200s", st.text);
	CF_CHECK(t, buf.mem == IST_MEM_HOST && buf.bytes == 0, "memory of the stack must be HOST with 0 bytes, it is kind %u with %llu", buf.mem,
		(unsigned long long)buf.bytes);
}

static void
device_leaves_nothing(struct cf *t)
{
	uint32_t fds = 0, maps = 0;

	need_device(t);
	for (int i = 0; i < 60; i++) {
		void *p = device_new(t, 100000, i % 2 && t->d->struct_size >= sizeof(*t->d) && t->d->share ? IST_ALLOC_SHARE : 0);

		if (i == 10) {
			fds = cf_open_fds();
			maps = cf_maps();
		}
		device_free(t, p);
	}
	CF_CHECK(t, cf_open_fds() <= fds && cf_maps() <= maps + 5, "50 pieces of memory, freed again, left %d descriptors and %d mappings",
		(int)cf_open_fds() - (int)fds, (int)cf_maps() - (int)maps);
}

/* Rank 0 shares, rank 1, another process, maps, looks and writes. */
static void
share_body(struct cf_rank *r)
{
	const uint64_t bytes = 300000;
	const struct ist_device *d = r->t->d;
	uint8_t room[256];
	int32_t fd = -1;
	struct ist_wire mine = { .bytes = 0 };
	struct ist_buf buf = { .bytes = bytes, .device = 0 };
	struct cf_buf host = cf_buf_new(r->t, bytes, 0);
	struct cf_wires *w = calloc(1, sizeof(*w));
	struct ist_status st;
	ist_err e;

	CF_CHECK(r->t, w, "the suite has no memory");
	need_device(r->t);
	cf_status(&st);
	if (r->rank == 0) {
		uint64_t n = sizeof(room);

		buf.addr = device_new(r->t, bytes, IST_ALLOC_SHARE);
		buf.mem = (uint16_t)kind_of(r->t);
		cf_fill(host.addr, bytes, 8);
		copy_all(r->t, &(struct ist_copy){ .dst = buf.addr, .src = host.addr, .bytes = bytes }, 1);
		e = d->share(d->self, &buf, room, &n, &fd, &st);
		CF_CHECK(r->t, !e, "share failed: %s %.200s", cf_name(e), st.text);
		mine = (struct ist_wire){ .addr = room, .bytes = n, .fds = &fd, .n_fds = fd >= 0 };
	}
	cf_exchange(r, &mine, w);
	if (r->rank == 1) {
		struct ist_wire bad = w->all[0];

		bad.bytes /= 2;
		cf_stage(r->t, "map of half a handle");
		CF_CHECK(r->t, d->map(d->self, 0, &bad, &buf, &st), "map takes half a handle");
		cf_stage(r->t, "map");
		e = d->map(d->self, 0, &w->all[0], &buf, &st);
		CF_CHECK(r->t, !e && buf.bytes >= bytes, "map failed: %s %.200s", cf_name(e), st.text);
		copy_all(r->t, &(struct ist_copy){ .dst = host.addr, .src = buf.addr, .bytes = bytes }, 1);
		CF_CHECK(r->t, cf_differs(host.addr, bytes, 8) == UINT64_MAX, "what was mapped is not what was shared");
		d->unmap(d->self, &buf);
	}
	cf_wires_free(w, r->n);
	free(w);
	if (fd >= 0)
		close(fd);
	cf_barrier(r);
	if (r->rank == 0)
		device_free(r->t, buf.addr);
	cf_buf_free(&host);
}

static void
device_shares_memory(struct cf *t)
{
	if (!IST_HAS(t->d, unmap) || !t->d->share)
		cf_skip(t, "it shares nothing");
	cf_bare_ranks(t, 2, CF_PROCESSES, share_body);
}

const struct cf_entry cf_device_checks[] = {
	{ "device_table_is_complete", device_table_is_complete, 0 },
	{ "device_looking_starts_nothing", device_looking_starts_nothing, 0 },
	{ "device_copies_every_byte", device_copies_every_byte, 0 },
	{ "device_refuses_what_it_has_not", device_refuses_what_it_has_not, 0 },
	{ "device_knows_its_memory", device_knows_its_memory, 0 },
	{ "device_leaves_nothing", device_leaves_nothing, 0 },
	{ "device_shares_memory", device_shares_memory, 0 },
	{ NULL, NULL, 0 },
};
