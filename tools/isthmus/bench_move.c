/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_move.c - broadcast of plain memory into private copies.
 */
#include "bench.h"

#include <stdlib.h>

static int
broadcast_once(struct bench *b, void *arg)
{
	struct ist_coll_args *args = arg;
	struct ist_req *req;
	struct ist_error err;
	ist_err code;

	ist_error_init(&err);
	args->timeout_ns = cli_left_ns(b->cli);
	code = ist_broadcast(b->s.group, args, &req, &err);
	if (code == IST_OK) {
		code = ist_req_wait(req, -1, &err);
		ist_req_free(req);
	}
	return code ? cli_fail(b->cli, &err) : EXIT_DONE;
}

static int
broadcast_of(struct bench *b, void *room, uint64_t bytes)
{
	struct ist_buf buf = { .addr = room, .bytes = bytes, .device = -1 }, none = { .device = -1 };
	struct ist_coll_args args = { .struct_size = sizeof(args) };
	struct bench_row row = { .bytes = bytes, .inner = bytes < (1 << 20) ? 20 : 1, .once = broadcast_once, .arg = &args, .limit_gbps = b->copy_gbps };
	char name[64];

	args.src = b->s.rank ? none : buf;
	args.dst = b->s.rank ? buf : none;
	snprintf(name, sizeof(name), "broadcast %llu", (unsigned long long)bytes);
	row.name = name;
	return bench_measure(b, &row);
}

int
bench_broadcast(struct bench *b)
{
	static const uint64_t usual[] = { 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20 };
	size_t n = sizeof(usual) / sizeof(usual[0]);
	uint64_t only = option_number(&b->cli->o, OPT_SIZE, 0), max = only ? only : usual[n - 1];
	void *room = bench_buffer(max);
	int status = room ? bench_copy_limit(b, 64 << 20) : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "%llu bytes", (unsigned long long)max);

	for (size_t i = 0; status == EXIT_DONE && i < (only ? 1 : n); i++)
		status = broadcast_of(b, room, only ? only : usual[i]);
	free(room);
	return status;
}
