/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_update.c - whole updates: the first rank is the source, the others take each tensor into a place of its own.
 */
#include "bench.h"
#include "fill.h"
#include "layout.h"
#include "value.h"

#include <isthmus/sync.h>
#include <stdlib.h>
#include <string.h>

struct update {
	struct layout layout;
	struct ist_tensor *tensors;
	uint8_t *memory;
	struct ist_checkpoint *ck;
	struct ist_sink *sink;
	struct ist_sync *sync;
	double register_s, gather_s;
	struct bench_samples samples;
	struct ist_report report;
};

/* Live memory in the layout, as a trainer has it. */
static int
make_source(struct bench *b, struct update *u)
{
	const struct options *o = &b->cli->o;
	const struct model *model = layout_model((uint32_t)option_number(o, OPT_LAYOUT, 0));
	uint64_t at = 0, layers = option_given(o, OPT_LAYERS) ? option_number(o, OPT_LAYERS, 0) : option_given(o, OPT_LAYOUT) ? model->layers : 1;
	struct ist_error err;
	bool good;

	if (option_given(o, OPT_TENSORS))
		good = layout_of_tensors(&u->layout, option_number(o, OPT_TENSORS, 0), option_number(o, OPT_BYTES, UINT64_C(256) << 20));
	else
		good = layout_of_model(&u->layout, model, layers > model->layers ? model->layers : layers);
	if (!good)
		return cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "list of tensors");
	u->tensors = calloc(u->layout.n, sizeof(*u->tensors));
	u->memory = bench_buffer(u->layout.bytes);
	if (!u->tensors || !u->memory)
		return cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "%llu bytes", (unsigned long long)u->layout.bytes);
	for (uint64_t i = 0; i < u->layout.n; at += u->layout.tensors[i++].bytes) {
		const struct layout_tensor *t = &u->layout.tensors[i];

		u->tensors[i] = (struct ist_tensor){ .struct_size = sizeof(u->tensors[i]), .rank = t->rank, .name = t->name, .dtype = t->dtype,
			.shape = { t->shape[0], t->shape[1] }, .bytes = t->bytes, .addr = u->memory + at };
	}
	ist_error_init(&err);
	return ist_checkpoint_from_tensors(b->s.env, u->tensors, u->layout.n, &u->ck, &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
}

static int
open_end(struct bench *b, struct update *u)
{
	const char *path = option_text(&b->cli->o, OPT_CHECKPOINT, NULL);
	struct ist_error err;

	ist_error_init(&err);
	if (b->s.rank)
		return ist_sink_open(b->s.env, "mem:", 0, &u->sink, &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
	if (path)
		return ist_checkpoint_open(b->s.env, path, NULL, &u->ck, &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
	return make_source(b, u);
}

static int
prepare(struct bench *b, struct update *u)
{
	struct ist_sync_args args = { .struct_size = sizeof(args), .bucket_bytes = option_number(&b->cli->o, OPT_BUCKET, 0) };
	struct ist_error err;
	int64_t start = now_ns();
	ist_err code;

	ist_error_init(&err);
	code = ist_sync_new(b->s.group, &args, &u->sync, &err);
	if (code == IST_OK)
		code = u->ck ? ist_sync_source(u->sync, u->ck, 0, 0, &err) : ist_sync_sink(u->sync, u->sink, &err);
	u->register_s = seconds_since(start);
	if (code == IST_OK && bench_barrier(b) != EXIT_DONE)
		return EXIT_FAILED;
	start = now_ns();
	if (code == IST_OK)
		code = ist_sync_gather(u->sync, cli_left_ns(b->cli), &err);
	u->gather_s = seconds_since(start);
	return code ? cli_fail(b->cli, &err) : EXIT_DONE;
}

static int
update_once(struct bench *b, struct update *u, double *seconds)
{
	struct ist_update_args args = { .struct_size = sizeof(args), .timeout_ns = cli_left_ns(b->cli) };
	int status = bench_barrier(b);
	int64_t start = now_ns();
	struct ist_error err;

	ist_error_init(&err);
	u->report = (struct ist_report){ .struct_size = sizeof(u->report) };
	if (status == EXIT_DONE && ist_sync_update(u->sync, &args, &u->report, &err))
		status = cli_fail(b->cli, &err);
	return status == EXIT_DONE ? bench_slowest(b, seconds_since(start), seconds) : status;
}

static int
sample_of(struct bench *b, struct update *u, uint32_t i)
{
	int status;

	u->samples.at[i] = (double)now_ns() / 1e9;
	status = update_once(b, u, &u->samples.seconds[i]);
	return status == EXIT_DONE && b->limit.sample ? b->limit.sample(b, b->limit.arg, &u->samples.limits[i]) : status;
}

/* A row of one sample. */
static void
add_one(struct bench *b, const char *name, uint64_t bytes, double seconds)
{
	bench_add(b, name, bytes, &(struct bench_samples){ .seconds = &seconds, .n = 1 }, b->limit_gbps);
}

static int
run(struct bench *b, struct update *u)
{
	double first = 0, slow;
	int status = open_end(b, u);

	if (status == EXIT_DONE)
		status = bench_barrier(b);
	if (status == EXIT_DONE)
		status = prepare(b, u);
	if (status == EXIT_DONE)
		status = update_once(b, u, &first);
	for (uint32_t i = 0; status == EXIT_DONE && i < b->repeat; i++)
		status = sample_of(b, u, i);
	if (status == EXIT_DONE)
		status = bench_slowest(b, u->register_s, &slow);
	if (status == EXIT_DONE) {
		add_one(b, "register", 0, slow);
		status = bench_slowest(b, u->gather_s, &slow);
	}
	if (status == EXIT_DONE) {
		add_one(b, "gather", 0, slow);
		add_one(b, "update, first", u->report.bytes, first);
		if (!b->limit.sample)
			u->samples.limits = NULL;
		bench_add(b, "update", u->report.bytes, &u->samples, b->limit_gbps);
	}
	return status;
}

int
bench_update(struct bench *b)
{
	struct update u = { .samples = { .seconds = calloc(b->repeat, sizeof(double)), .at = calloc(b->repeat, sizeof(double)),
		.limits = calloc(b->repeat, sizeof(double)), .n = b->repeat } };
	double *limits = u.samples.limits;
	int status;

	if (b->s.world < 2)
		status = cli_usage(b->cli, "update needs at least 2 ranks");
	else
		status = u.samples.seconds && u.samples.at && limits ? bench_limit(b) : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");
	if (status == EXIT_DONE)
		status = run(b, &u);
	bench_limit_end(b);
	if (u.sync)
		ist_sync_free(u.sync);
	if (u.sink)
		ist_sink_free(u.sink);
	if (u.ck)
		ist_checkpoint_free(u.ck);
	layout_free(&u.layout);
	free(u.tensors);
	free(u.memory);
	free(u.samples.seconds);
	free(u.samples.at);
	free(limits);
	return status;
}
