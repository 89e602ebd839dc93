/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_load_into.c - a checkpoint's files into each tensor's place, in this process's memory or on a device, by as many threads as the
 * library thinks fit. On a device beside what one copy of pinned memory onto it carries.
 */
#include "bench.h"
#include "value.h"

#include <isthmus/sync.h>
#include <stdlib.h>
#include <string.h>

#define COPY (UINT64_C(512) << 20)

struct into {
	struct ist_checkpoint *ck;
	struct ist_sink *sink;
	struct ist_tensor *places;
	uint64_t n, run_bytes;
	uint8_t *arena;
	void *from, *to; /* of the limit */
};

static bool
is_far(const struct bench *b)
{
	return b->s.mem != IST_MEM_HOST;
}

static int
arena_of(struct bench *b, struct into *x, uint64_t bytes)
{
	struct ist_error err;
	void *at = NULL;

	ist_error_init(&err);
	if (is_far(b) && ist_device_alloc(b->s.env, b->s.mem, b->s.device, bytes, &at, &err))
		return cli_fail(b->cli, &err);
	x->arena = is_far(b) ? at : bench_buffer(bytes);
	return x->arena ? EXIT_DONE : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "%llu bytes", (unsigned long long)bytes);
}

static int
make_places(struct bench *b, struct into *x)
{
	struct ist_sink_args args = { .struct_size = sizeof(args), .mem = b->s.mem, .device = b->s.device };
	uint64_t bytes = 1;
	struct ist_error err;
	int status;

	ist_error_init(&err);
	x->n = ist_checkpoint_count(x->ck);
	x->places = calloc(x->n + 1, sizeof(*x->places));
	if (!x->places)
		return cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "list of tensors");
	for (uint64_t i = 0; i < x->n; i++) {
		x->places[i].struct_size = sizeof(x->places[i]);
		if (ist_checkpoint_tensor(x->ck, i, &x->places[i], &err))
			return cli_fail(b->cli, &err);
		bytes += (x->places[i].bytes + 255) & ~UINT64_C(255);
	}
	status = arena_of(b, x, bytes);
	bytes = 0;
	for (uint64_t i = 0; status == EXIT_DONE && i < x->n; bytes += (x->places[i++].bytes + 255) & ~UINT64_C(255)) {
		x->places[i].addr = x->arena + bytes;
		x->places[i].mem = b->s.mem;
		x->places[i].device = b->s.device;
	}
	args.places = x->places;
	args.n_places = x->n;
	if (status == EXIT_DONE && ist_sink_open_at(b->s.env, "mem:", &args, &x->sink, &err))
		status = cli_fail(b->cli, &err);
	return status;
}

static int
load_once(struct bench *b, void *arg)
{
	struct into *x = arg;
	struct ist_load_args args = { .struct_size = sizeof(args), .run_bytes = x->run_bytes };
	struct ist_error err;

	ist_error_init(&err);
	return ist_checkpoint_load(x->ck, x->sink, &args, &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
}

static int
copy_once(struct bench *b, void *arg)
{
	struct into *x = arg;
	struct ist_error err;

	ist_error_init(&err);
	return ist_device_copy(b->s.env, b->s.mem, b->s.device, x->to, x->from, COPY, &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
}

/* The best of some copies, in GB/s. */
static int
limit_of(struct bench *b, struct into *x, double *gbps)
{
	struct bench_row row = { .inner = 1, .once = copy_once, .arg = x };
	struct ist_error err;
	double s = 0;
	int status = EXIT_DONE;

	*gbps = 0;
	ist_error_init(&err);
	if (ist_device_alloc(b->s.env, IST_MEM_PINNED, b->s.device, COPY, &x->from, &err) || ist_device_alloc(b->s.env, b->s.mem, b->s.device, COPY, &x->to, &err))
		return cli_fail(b->cli, &err);
	for (int i = 0; i < 5 && status == EXIT_DONE; i++) {
		status = bench_sample(b, &row, &s);
		*gbps = s > 0 && (double)COPY / s / 1e9 > *gbps ? (double)COPY / s / 1e9 : *gbps;
	}
	return status;
}

static void
end(struct bench *b, struct into *x)
{
	if (x->sink)
		ist_sink_free(x->sink);
	if (is_far(b)) {
		if (x->from)
			(void)ist_device_free(b->s.env, IST_MEM_PINNED, b->s.device, x->from);
		if (x->to)
			(void)ist_device_free(b->s.env, b->s.mem, b->s.device, x->to);
		if (x->arena)
			(void)ist_device_free(b->s.env, b->s.mem, b->s.device, x->arena);
	} else {
		free(x->arena);
	}
	free(x->places);
}

int
bench_load_into(struct bench *b, struct ist_checkpoint *ck, double limit)
{
	struct into x = { .ck = ck, .run_bytes = option_number(&b->cli->o, OPT_BUCKET, 0) };
	struct bench_row row = { .name = is_far(b) ? "load onto the device" : "load into places", .bytes = ist_checkpoint_bytes(ck), .inner = 1,
		.once = load_once, .arg = &x };
	double first = 0;
	int status = make_places(b, &x);

	if (status == EXIT_DONE && is_far(b))
		status = limit_of(b, &x, &limit);
	row.limit_gbps = b->limit_gbps = limit;
	if (status == EXIT_DONE)
		status = bench_sample(b, &row, &first);
	if (status == EXIT_DONE) {
		bench_add_one(b, "load, first", row.bytes, first);
		status = bench_measure(b, &row);
	}
	end(b, &x);
	return status;
}
