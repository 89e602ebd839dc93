/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include "fill.h"
#include "signals.h"
#include "value.h"

#include <stdlib.h>
#include <string.h>

void *
bench_buffer(uint64_t bytes)
{
	void *p = NULL;

	if (posix_memalign(&p, 4096, bytes ? bytes : 1))
		return NULL;
	fill_bytes(fill_key(1, "bench"), 0, p, bytes);
	return p;
}

int
bench_barrier(struct bench *b)
{
	struct ist_error err;

	if (!b->s.group)
		return EXIT_DONE;
	ist_error_init(&err);
	return ist_barrier(b->s.group, cli_left_ns(b->cli), &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
}

int
bench_goes_on(struct bench *b)
{
	if (signals_got())
		return EXIT_SIGNAL + signals_got();
	if (now_ns() >= b->cli->deadline_ns)
		return cli_fail_code(b->cli, IST_TIMEOUT, "bench", "%zu rows were measured", json_array_size(b->rows));
	return EXIT_DONE;
}

int
bench_tell(struct bench *b, const void *addr, uint64_t bytes, struct ist_blob *out)
{
	struct ist_error err;

	ist_error_init(&err);
	return ist_all_gather_bytes(b->s.group, addr, bytes, cli_left_ns(b->cli), out, &err) ? cli_fail(b->cli, &err) : EXIT_DONE;
}

int
bench_slowest(struct bench *b, double mine, double *out)
{
	struct ist_blob *blobs;
	double max = mine, one;
	int status;

	*out = mine;
	if (!b->s.group || b->s.world == 1)
		return EXIT_DONE;
	blobs = calloc(b->s.world, sizeof(*blobs));
	if (!blobs)
		return cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");
	status = bench_tell(b, &mine, sizeof(mine), blobs);
	if (status == EXIT_DONE) {
		for (uint32_t i = 0; i < b->s.world; i++) {
			if (blobs[i].bytes != sizeof(one))
				continue;
			memcpy(&one, blobs[i].addr, sizeof(one));
			max = one > max ? one : max;
		}
		ist_blobs_free(b->s.group, blobs, b->s.world);
		*out = max;
	}
	free(blobs);
	return status;
}

static int
by_size(const void *a, const void *b)
{
	double x, y;

	memcpy(&x, a, sizeof(x));
	memcpy(&y, b, sizeof(y));
	return (x > y) - (x < y);
}

static json_t *
list_of(const double *v, uint32_t n)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list, json_real(v[i]));
	return list;
}

static double
median_of(const double *sorted, uint32_t n)
{
	return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

void
bench_add(struct bench *b, const char *name, uint64_t bytes, const struct bench_samples *samples, double limit_gbps)
{
	uint32_t n = samples->n;
	double *sorted = calloc(n ? n : 1, sizeof(*sorted)), median, gbps;
	json_t *row;

	if (!sorted || !n) {
		free(sorted);
		return;
	}
	if (samples->limits) {
		memcpy(sorted, samples->limits, n * sizeof(*sorted));
		qsort(sorted, n, sizeof(*sorted), by_size);
		limit_gbps = median_of(sorted, n);
	}
	memcpy(sorted, samples->seconds, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), by_size);
	median = median_of(sorted, n);
	gbps = bytes && median > 0 ? (double)bytes / median / 1e9 : 0;
	row = json_pack("{s:s,s:o,s:{s:f,s:f,s:f}}", "name", name, "bytes", json_u64(bytes), "seconds", "median", median, "min", sorted[0], "max",
		sorted[n - 1]);
	json_object_set_new(row, "gbps", gbps > 0 ? json_real(gbps) : json_null());
	json_object_set_new(row, "limit_gbps", gbps > 0 && limit_gbps > 0 ? json_real(limit_gbps) : json_null());
	json_object_set_new(row, "percent_of_limit", gbps > 0 && limit_gbps > 0 ? json_real(100 * gbps / limit_gbps) : json_null());
	json_object_set_new(row, "samples", list_of(samples->seconds, n));
	if (samples->at)
		json_object_set_new(row, "at", list_of(samples->at, n));
	if (samples->limits)
		json_object_set_new(row, "limits", list_of(samples->limits, n));
	json_object_set_new(row, "inner", json_integer(samples->inner ? samples->inner : 1));
	json_array_append_new(b->rows, row);
	free(sorted);
}

void
bench_add_one(struct bench *b, const char *name, uint64_t bytes, double seconds)
{
	bench_add(b, name, bytes, &(struct bench_samples){ .seconds = &seconds, .n = 1 }, b->limit_gbps);
}

int
bench_sample(struct bench *b, const struct bench_row *row, double *seconds)
{
	int status = bench_barrier(b);
	int64_t start = now_ns();

	for (uint32_t i = 0; status == EXIT_DONE && i < row->inner; i++)
		status = row->once(b, row->arg);
	if (status == EXIT_DONE)
		status = bench_slowest(b, seconds_since(start) / row->inner, seconds);
	return status;
}

int
bench_measure(struct bench *b, const struct bench_row *row)
{
	struct bench_samples samples = { .seconds = calloc(b->repeat + 1, sizeof(double)), .at = calloc(b->repeat + 1, sizeof(double)),
		.n = b->repeat, .inner = row->inner };
	bool limited = row->limited && b->limit.sample;
	double *limits = calloc(b->repeat + 1, sizeof(double));
	int status = samples.seconds && samples.at && limits ? EXIT_DONE : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");

	for (uint32_t i = 1; status == EXIT_DONE && i < row->warm; i++)
		status = bench_sample(b, row, samples.seconds);
	/* the first is to warm up, and is not counted */
	for (uint32_t i = 0; status == EXIT_DONE && i <= b->repeat; i++) {
		samples.at[i ? i - 1 : 0] = (double)now_ns() / 1e9;
		status = bench_sample(b, row, &samples.seconds[i ? i - 1 : 0]);
		if (status == EXIT_DONE && limited)
			status = b->limit.sample(b, b->limit.arg, &limits[i ? i - 1 : 0]);
	}
	samples.limits = limited ? limits : NULL;
	if (status == EXIT_DONE)
		bench_add(b, row->name, row->bytes, &samples, row->limit_gbps);
	free(samples.seconds);
	free(samples.at);
	free(limits);
	return status;
}
