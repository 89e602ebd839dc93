/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_move.c - broadcasts of memory: into private copies, out of and into plain memory, or memory of the group
 * (ist_group_alloc) at both ends; and as views, which receivers read where the root has them. Buffers are cut from an arena
 * far larger than the caches, touched beforehand, a new cut for each broadcast. What has arrived is looked at. On a device: between
 * memory of the members' devices.
 */
#include "bench.h"
#include "fill.h"

#include <stdlib.h>
#include <string.h>

struct move {
	uint8_t *arena;
	uint64_t room, at, bytes;
	bool shared;             /* pages of each cut come into the others' tables at its first use: that is no sample */
	bool view, read;         /* receivers get a view; and read all of it */
	uint64_t sum;            /* keeps the reading from being left out */
};

static uint8_t *
cut(struct move *m)
{
	uint8_t *p;

	if (m->at + m->bytes > m->room)
		m->at = 0;
	p = m->arena + m->at;
	m->at += (m->bytes + 4095) & ~UINT64_C(4095);
	return p;
}

static void
read_all(struct move *m, const struct ist_buf *view)
{
	const uint8_t *p = view->addr;
	uint64_t word;

	for (uint64_t i = 0; i + 8 <= view->bytes; i += 8) {
		memcpy(&word, p + i, 8);
		m->sum += word;
	}
}

static int
broadcast_once(struct bench *b, void *arg)
{
	struct move *m = arg;
	struct ist_buf none = { .device = -1 }, buf = { .mem = (uint16_t)b->s.mem, .device = b->s.device };
	struct ist_coll_args args = { .struct_size = sizeof(args), .flags = m->view ? IST_OP_VIEW : 0, .timeout_ns = cli_left_ns(b->cli) };
	struct ist_req *req;
	struct ist_error err;
	ist_err code;

	ist_error_init(&err);
	buf.bytes = m->bytes;
	buf.addr = cut(m);
	args.src = b->s.rank ? none : buf;
	args.dst = b->s.rank ? buf : none;
	code = ist_broadcast(b->s.group, &args, &req, &err);
	if (code == IST_OK) {
		code = ist_req_wait(req, -1, &err);
		if (code == IST_OK && b->s.rank && m->view)
			code = ist_req_view(req, &buf, &err);
		if (code == IST_OK && b->s.rank && m->read)
			read_all(m, &buf);
		ist_req_free(req);
	}
	return code ? cli_fail(b->cli, &err) : EXIT_DONE;
}

static int
row_of(struct bench *b, struct move *m, const char *what, uint64_t bytes)
{
	struct bench_row row = { .bytes = m->view && !m->read ? 0 : bytes, .inner = bytes < (1 << 20) || (m->view && !m->read) ? 20 : 1,
		.once = broadcast_once, .arg = m, .limited = !m->view && bytes >= (16 << 20),
		.limit_gbps = m->view ? 0 : b->limit_gbps };
	char name[64];

	m->bytes = bytes;
	m->at = 0;
	if (m->shared && bytes >= (1 << 20))
		row.warm = (uint32_t)(m->room / ((bytes + 4095) & ~UINT64_C(4095)));
	snprintf(name, sizeof(name), "%s %llu", what, (unsigned long long)bytes);
	row.name = name;
	return bench_measure(b, &row);
}

/* Memory of the group on all ranks, touched; *out NULL on all of them where one can't have it. */
static int
group_memory(struct bench *b, uint64_t bytes, void **out)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	double all = ist_group_info(b->s.group, &info, NULL) == IST_OK && !info.tcp_pairs ? 1 : 2;
	void *own = NULL;
	int status;

	*out = NULL;
	if (all < 1.5 && ist_group_alloc(b->s.group, bytes, IST_MEM_HOST, -1, &own, NULL))
		all = 2;
	if (own)
		fill_bytes(fill_key(1, "bench"), 0, own, bytes);
	status = bench_slowest(b, all, &all);
	if (own && (status != EXIT_DONE || all > 1.5))
		ist_group_alloc_free(b->s.group, own);
	else
		*out = own;
	return status;
}

/* The same broadcasts, and views, between memory of the group, which not every backend has, and not every way. */
static int
rows_of_group(struct bench *b, const uint64_t *sizes, size_t n, uint64_t room)
{
	struct move m = { .room = room, .shared = true }, v = { .room = sizes[n - 1], .view = true };
	void *own;
	int status = group_memory(b, room, &own);

	if (!own)
		return status;
	m.arena = v.arena = own;
	for (size_t i = 0; status == EXIT_DONE && i < n; i++)
		status = row_of(b, &m, "broadcast, group memory", sizes[i]);
	/* others need a place as well, should a view not be had */
	if (status == EXIT_DONE)
		status = row_of(b, &v, "view", v.room);
	v.read = true;
	if (status == EXIT_DONE)
		status = row_of(b, &v, "view, read", v.room);
	ist_group_alloc_free(b->s.group, own);
	return status;
}

/* Memory to cut from; on a device it is written to once, so that it is there. */
static int
arena_of(struct bench *b, struct move *m)
{
	void *host = bench_buffer(m->room), *far = NULL;
	struct ist_error err;
	ist_err e = IST_OK;

	ist_error_init(&err);
	m->arena = host;
	if (!host)
		return cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "%llu bytes", (unsigned long long)m->room);
	if (b->s.mem == IST_MEM_HOST)
		return EXIT_DONE;
	e = ist_device_alloc(b->s.env, b->s.mem, b->s.device, m->room, &far, &err);
	if (!e)
		e = ist_device_copy(b->s.env, b->s.mem, b->s.device, far, host, m->room, &err);
	free(host);
	m->arena = far;
	return e ? cli_fail(b->cli, &err) : EXIT_DONE;
}

static void
arena_free(struct bench *b, struct move *m)
{
	if (b->s.mem == IST_MEM_HOST)
		free(m->arena);
	else if (m->arena)
		(void)ist_device_free(b->s.env, b->s.mem, b->s.device, m->arena);
}

int
bench_broadcast(struct bench *b)
{
	static const uint64_t usual[] = { 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20 };
	uint64_t only = option_number(&b->cli->o, OPT_SIZE, 0);
	const uint64_t *sizes = only ? &only : usual;
	size_t n = only ? 1 : sizeof(usual) / sizeof(usual[0]);
	struct move m = { .room = sizes[n - 1] > BENCH_ARENA ? sizes[n - 1] : BENCH_ARENA };
	bool far = b->s.mem != IST_MEM_HOST;
	int status = far ? bench_device_limit(b, 1, false) : bench_limit(b);

	if (status == EXIT_DONE)
		status = arena_of(b, &m);
	for (size_t i = 0; status == EXIT_DONE && i < n; i++)
		status = row_of(b, &m, "broadcast", sizes[i]);
	arena_free(b, &m);
	if (status == EXIT_DONE && b->s.world > 1 && !far)
		status = rows_of_group(b, sizes, n, m.room);
	bench_limit_end(b);
	return status;
}
