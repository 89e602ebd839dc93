/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_mesh.c - what goes over the control mesh: making a group, splitting one, barriers, byte strings.
 */
#include "bench.h"
#include "value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Making one and ending it are two rows: *group is made by the first, and ended by the second. */
struct made {
	uint32_t *ranks;
	struct ist_group *group;
};

static int
group_once(struct bench *b, void *arg)
{
	struct made *made = arg;

	return session_group(&b->s, b->s.at, "bench", b->s.rank, b->s.world, b->s.backend[0] ? b->s.backend : NULL, &made->group);
}

static int
split_once(struct bench *b, void *arg)
{
	struct made *made = arg;
	struct ist_split_args args = { .struct_size = sizeof(args), .n_ranks = b->s.world, .ranks = made->ranks, .name = "bench", .timeout_ns = cli_left_ns(b->cli) };
	struct ist_error err;

	ist_error_init(&err);
	return ist_group_split(b->s.group, &args, &made->group, &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
}

static int
free_once(struct bench *b, void *arg)
{
	struct made *made = arg;

	(void)b;
	ist_group_free(made->group);
	made->group = NULL;
	return EXIT_DONE;
}

/* Two rows: what make makes, and its end. The first of each is to warm up, and not counted; on a device it is a row of its own. */
static int
make_and_free(struct bench *b, const char *name, int (*make)(struct bench *b, void *arg), struct made *made)
{
	double *room = calloc(4 * (b->repeat + 1), sizeof(double));
	uint32_t n = b->repeat;
	double first = 0;
	struct bench_samples makes = { .seconds = room, .at = room ? room + n + 1 : NULL, .n = n };
	struct bench_samples frees = { .seconds = room ? room + 2 * (n + 1) : NULL, .at = room ? room + 3 * (n + 1) : NULL, .n = n };
	struct bench_row make_row = { .inner = 1, .once = make, .arg = made }, free_row = { .inner = 1, .once = free_once, .arg = made };
	int status = room ? EXIT_DONE : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");
	char text[64];

	for (uint32_t i = 0; status == EXIT_DONE && i <= n; i++) {
		uint32_t k = i ? i - 1 : 0;

		makes.at[k] = (double)now_ns() / 1e9;
		status = bench_sample(b, &make_row, &makes.seconds[k]);
		first = i ? first : makes.seconds[k];
		frees.at[k] = (double)now_ns() / 1e9;
		if (status == EXIT_DONE)
			status = bench_sample(b, &free_row, &frees.seconds[k]);
	}
	snprintf(text, sizeof(text), "first %s", name);
	if (status == EXIT_DONE && b->s.mem != IST_MEM_HOST) /* it opens libraries, and wakes the device */
		bench_add_one(b, text, 0, first);
	snprintf(text, sizeof(text), "free %s", name);
	if (status == EXIT_DONE) {
		bench_add(b, name, 0, &makes, 0);
		bench_add(b, text, 0, &frees, 0);
	}
	free(room);
	return status;
}

/* Strangers that meet; then members that part from a group they have. */
int
bench_group(struct bench *b)
{
	struct made made = { .ranks = calloc(b->s.world, sizeof(uint32_t)) };
	int status = made.ranks ? EXIT_DONE : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");

	for (uint32_t i = 0; made.ranks && i < b->s.world; i++)
		made.ranks[i] = i;
	if (status == EXIT_DONE)
		status = make_and_free(b, "group", group_once, &made);
	if (status == EXIT_DONE)
		status = make_and_free(b, "split", split_once, &made);
	free(made.ranks);
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
