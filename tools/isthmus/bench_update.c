/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_update.c - whole updates: the first ranks are sources, each of its share of the tensors, the others take each tensor
 * into a place of its own, in their own memory or on a device.
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
	uint8_t *memory, *far;
	struct ist_checkpoint *ck;
	struct ist_sink *sink;
	struct ist_sync *sync;
	uint32_t n_sources;
	uint64_t n_places;
	double register_s, gather_s;
	struct bench_samples samples;
	struct ist_report report;
};

static int
make_layout(struct bench *b, struct update *u)
{
	const struct options *o = &b->cli->o;
	const struct model *model = layout_model((uint32_t)option_number(o, OPT_LAYOUT, 0));
	uint64_t layers = option_given(o, OPT_LAYERS) ? option_number(o, OPT_LAYERS, 0) : option_given(o, OPT_LAYOUT) ? model->layers : 1;
	bool good;

	if (option_given(o, OPT_TENSORS))
		good = layout_of_tensors(&u->layout, option_number(o, OPT_TENSORS, 0), option_number(o, OPT_BYTES, UINT64_C(256) << 20));
	else
		good = layout_of_model(&u->layout, model, layers > model->layers ? model->layers : layers);
	u->tensors = good ? calloc(u->layout.n + 1, sizeof(*u->tensors)) : NULL;
	if (!u->tensors)
		return cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "list of tensors");
	for (uint64_t i = 0; i < u->layout.n; i++) {
		const struct layout_tensor *t = &u->layout.tensors[i];

		u->tensors[i] = (struct ist_tensor){ .struct_size = sizeof(u->tensors[i]), .rank = t->rank, .name = t->name, .dtype = t->dtype,
			.shape = { t->shape[0], t->shape[1] }, .bytes = t->bytes };
	}
	return EXIT_DONE;
}

/* The source's tensors lie there, one behind the other. */
static ist_err
onto_device(struct bench *b, struct update *u, uint64_t bytes, struct ist_error *err)
{
	void *at = NULL;
	ist_err e = ist_device_alloc(b->s.env, b->s.mem, b->s.device, bytes ? bytes : 1, &at, err);

	if (e)
		return e;
	u->far = at;
	return ist_device_copy(b->s.env, b->s.mem, b->s.device, u->far, u->memory, bytes, err);
}

/* Live memory in the layout, as a trainer has it: of this source's share, the tensors whose middle lies in it. */
static int
make_source(struct bench *b, struct update *u)
{
	uint64_t at = 0, bytes = 0, n = 0, seen = 0, whole = u->layout.bytes ? u->layout.bytes : 1;
	struct ist_error err;

	for (uint64_t i = 0; i < u->layout.n; seen += u->layout.tensors[i++].bytes)
		if ((uint64_t)((double)(seen + u->tensors[i].bytes / 2) / (double)whole * u->n_sources) == b->s.rank) {
			u->tensors[n++] = u->tensors[i];
			bytes += u->tensors[n - 1].bytes;
		}
	u->memory = bench_buffer(bytes);
	if (!u->memory)
		return cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "%llu bytes", (unsigned long long)bytes);
	ist_error_init(&err);
	if (option_number(&b->cli->o, OPT_SOURCES_ON, 0) && onto_device(b, u, bytes, &err))
		return cli_fail(b->cli, &err);
	for (uint64_t i = 0; i < n; at += u->tensors[i++].bytes) {
		u->tensors[i].addr = (u->far ? u->far : u->memory) + at;
		u->tensors[i].mem = u->far ? b->s.mem : IST_MEM_HOST;
		u->tensors[i].device = b->s.device;
	}
	return ist_checkpoint_from_tensors(b->s.env, u->tensors, n, &u->ck, &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
}

/* An engine's parameters: each in memory of its own on the device. */
static int
make_places(struct bench *b, struct update *u)
{
	struct ist_sink_args args = { .struct_size = sizeof(args), .mem = b->s.mem, .device = b->s.device, .places = u->tensors, .n_places = u->layout.n };
	struct ist_error err;

	ist_error_init(&err);
	for (uint64_t i = 0; i < u->layout.n; i++) {
		void *at = NULL;

		u->tensors[i].mem = b->s.mem;
		u->tensors[i].device = b->s.device;
		if (u->tensors[i].bytes > 0 && ist_device_alloc(b->s.env, b->s.mem, b->s.device, u->tensors[i].bytes, &at, &err))
			return cli_fail(b->cli, &err);
		u->tensors[i].addr = at;
		u->n_places = i + 1;
	}
	return ist_sink_open_at(b->s.env, "mem:", &args, &u->sink, &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
}

static void
free_places(struct bench *b, struct update *u)
{
	for (uint64_t i = 0; i < u->n_places; i++)
		(void)ist_device_free(b->s.env, b->s.mem, b->s.device, (void *)(uintptr_t)u->tensors[i].addr);
	if (u->far)
		(void)ist_device_free(b->s.env, b->s.mem, b->s.device, u->far);
}

static int
open_end(struct bench *b, struct update *u)
{
	const char *path = option_text(&b->cli->o, OPT_CHECKPOINT, NULL);
	bool source = b->s.rank < u->n_sources;
	struct ist_error err;

	ist_error_init(&err);
	if (source && path)
		return ist_checkpoint_open(b->s.env, path, NULL, &u->ck, &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
	if (!source && (path || b->s.mem == IST_MEM_HOST)) {
		struct ist_sink_args args = { .struct_size = sizeof(args), .mem = b->s.mem, .device = b->s.device };

		return ist_sink_open_at(b->s.env, "mem:", &args, &u->sink, &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
	}
	if (make_layout(b, u) != EXIT_DONE)
		return EXIT_FAILED;
	return source ? make_source(b, u) : make_places(b, u);
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
		bench_add_one(b, "register", 0, slow);
		status = bench_slowest(b, u->gather_s, &slow);
	}
	if (status == EXIT_DONE) {
		bench_add_one(b, "gather", 0, slow);
		bench_add_one(b, "update, first", u->report.bytes, first);
		if (!b->limit.sample)
			u->samples.limits = NULL;
		bench_add(b, "update", u->report.bytes, &u->samples, b->limit_gbps);
	}
	return status;
}

static int
limit_of(struct bench *b, const struct update *u)
{
	return b->s.mem == IST_MEM_HOST ? bench_limit(b) : bench_device_limit(b, u->n_sources, !option_number(&b->cli->o, OPT_SOURCES_ON, 0));
}

int
bench_update(struct bench *b)
{
	struct update u = { .samples = { .seconds = calloc(b->repeat, sizeof(double)), .at = calloc(b->repeat, sizeof(double)),
		.limits = calloc(b->repeat, sizeof(double)), .n = b->repeat } };
	double *limits = u.samples.limits;
	int status;

	u.n_sources = (uint32_t)option_number(&b->cli->o, OPT_SOURCES, 1);
	if (option_number(&b->cli->o, OPT_SOURCES_ON, 0) && b->s.mem == IST_MEM_HOST)
		status = cli_usage(b->cli, "--sources-on device needs --device");
	else if (b->s.world < 2 || u.n_sources >= b->s.world)
		status = cli_usage(b->cli, "update needs at least 2 ranks, and one more than --sources");
	else
		status = u.samples.seconds && u.samples.at && limits ? limit_of(b, &u) : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");
	if (status == EXIT_DONE)
		status = run(b, &u);
	bench_limit_end(b);
	if (u.sync)
		ist_sync_free(u.sync);
	if (u.sink)
		ist_sink_free(u.sink);
	if (u.ck)
		ist_checkpoint_free(u.ck);
	free_places(b, &u);
	layout_free(&u.layout);
	free(u.tensors);
	free(u.memory);
	free(u.samples.seconds);
	free(u.samples.at);
	free(limits);
	return status;
}
