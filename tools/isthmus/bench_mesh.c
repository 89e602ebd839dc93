/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_mesh.c - what goes over the control mesh: making a group, splitting one, barriers, byte strings.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

static int
group_once(struct bench *b, void *arg)
{
	struct ist_group *group;
	int status = session_group(&b->s, b->s.at, "bench", b->s.rank, b->s.world, &group);

	(void)arg;
	if (status == EXIT_DONE)
		ist_group_free(group);
	return status;
}

static int
split_once(struct bench *b, void *arg)
{
	struct ist_split_args args = { .struct_size = sizeof(args), .n_ranks = b->s.world, .ranks = arg, .name = "bench", .timeout_ns = cli_left_ns(b->cli) };
	struct ist_group *group;
	struct ist_error err;

	ist_error_init(&err);
	if (ist_group_split(b->s.group, &args, &group, &err))
		return cli_fail(b->cli, &err);
	ist_group_free(group);
	return EXIT_DONE;
}

/* Strangers that meet; then members that part from a group they have. */
int
bench_group(struct bench *b)
{
	uint32_t *ranks = calloc(b->s.world, sizeof(*ranks));
	int status = ranks ? EXIT_DONE : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");

	for (uint32_t i = 0; ranks && i < b->s.world; i++)
		ranks[i] = i;
	if (status == EXIT_DONE)
		status = bench_measure(b, &(struct bench_row){ .name = "group", .inner = 1, .once = group_once });
	if (status == EXIT_DONE)
		status = bench_measure(b, &(struct bench_row){ .name = "split", .inner = 1, .once = split_once, .arg = ranks });
	free(ranks);
	return status;
}

static int
barrier_once(struct bench *b, void *arg)
{
	(void)arg;
	return bench_barrier(b);
}

int
bench_barriers(struct bench *b)
{
	return bench_measure(b, &(struct bench_row){ .name = "barrier", .inner = 500, .once = barrier_once });
}

struct object {
	void *addr;
	uint64_t bytes;
	struct ist_blob *out;
};

static int
all_gather_once(struct bench *b, void *arg)
{
	struct object *o = arg;
	struct ist_error err;

	ist_error_init(&err);
	if (ist_all_gather_bytes(b->s.group, o->addr, o->bytes, cli_left_ns(b->cli), o->out, &err))
		return cli_fail(b->cli, &err);
	ist_blobs_free(b->s.group, o->out, b->s.world);
	return EXIT_DONE;
}

static int
broadcast_once(struct bench *b, void *arg)
{
	struct object *o = arg;
	struct ist_error err;

	ist_error_init(&err);
	if (ist_broadcast_bytes(b->s.group, o->addr, b->s.rank ? 0 : o->bytes, 0, cli_left_ns(b->cli), o->out, &err))
		return cli_fail(b->cli, &err);
	ist_blobs_free(b->s.group, o->out, 1);
	return EXIT_DONE;
}

static int
objects_of(struct bench *b, struct object *o)
{
	struct bench_row row = { .bytes = o->bytes, .inner = o->bytes > 65536 ? 1 : 50, .arg = o };
	char name[64];
	int status;

	row.name = name;
	row.once = all_gather_once;
	snprintf(name, sizeof(name), "all_gather_bytes %llu", (unsigned long long)o->bytes);
	status = bench_measure(b, &row);
	row.once = broadcast_once;
	snprintf(name, sizeof(name), "broadcast_bytes %llu", (unsigned long long)o->bytes);
	return status == EXIT_DONE ? bench_measure(b, &row) : status;
}

int
bench_objects(struct bench *b)
{
	static const uint64_t usual[] = { 64, 1024, 65536, 1 << 20 };
	uint64_t only = option_number(&b->cli->o, OPT_SIZE, 0), max = only > usual[3] ? only : usual[3];
	struct object o = { .addr = bench_buffer(max), .out = calloc(b->s.world, sizeof(*o.out)) };
	int status = o.addr && o.out ? EXIT_DONE : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");

	for (size_t i = 0; status == EXIT_DONE && i < (only ? 1 : sizeof(usual) / sizeof(usual[0])); i++) {
		o.bytes = only ? only : usual[i];
		status = objects_of(b, &o);
	}
	free(o.addr);
	free(o.out);
	return status;
}
