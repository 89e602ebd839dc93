/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include "fill.h"
#include "value.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
bench_slowest(struct bench *b, double mine, double *out)
{
	struct ist_blob *blobs;
	struct ist_error err;
	double max = mine, one;
	int status = EXIT_DONE;

	*out = mine;
	if (!b->s.group || b->s.world == 1)
		return EXIT_DONE;
	blobs = calloc(b->s.world, sizeof(*blobs));
	if (!blobs)
		return cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");
	ist_error_init(&err);
	if (ist_all_gather_bytes(b->s.group, &mine, sizeof(mine), cli_left_ns(b->cli), blobs, &err)) {
		status = cli_fail(b->cli, &err);
	} else {
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

void
bench_add(struct bench *b, const char *name, uint64_t bytes, double *seconds, uint32_t n, double limit_gbps)
{
	double median, gbps;
	json_t *row;

	qsort(seconds, n, sizeof(*seconds), by_size);
	median = n % 2 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2;
	gbps = bytes && median > 0 ? (double)bytes / median / 1e9 : 0;
	row = json_pack("{s:s,s:o,s:{s:f,s:f,s:f}}", "name", name, "bytes", json_u64(bytes), "seconds", "median", median, "min", seconds[0], "max",
		seconds[n - 1]);
	json_object_set_new(row, "gbps", gbps > 0 ? json_real(gbps) : json_null());
	json_object_set_new(row, "limit_gbps", gbps > 0 && limit_gbps > 0 ? json_real(limit_gbps) : json_null());
	json_object_set_new(row, "percent_of_limit", gbps > 0 && limit_gbps > 0 ? json_real(100 * gbps / limit_gbps) : json_null());
	json_array_append_new(b->rows, row);
}

static int
sample(struct bench *b, const struct bench_row *row, double *out)
{
	int status = bench_barrier(b);
	int64_t start = now_ns();

	for (uint32_t i = 0; status == EXIT_DONE && i < row->inner; i++)
		status = row->once(b, row->arg);
	if (status == EXIT_DONE)
		status = bench_slowest(b, seconds_since(start) / row->inner, out);
	return status;
}

int
bench_measure(struct bench *b, const struct bench_row *row)
{
	double *seconds = calloc(b->repeat + 1, sizeof(*seconds));
	int status = seconds ? EXIT_DONE : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "out of memory");

	/* the first is to warm up, and is not counted */
	for (uint32_t i = 0; status == EXIT_DONE && i <= b->repeat; i++)
		status = sample(b, row, &seconds[i ? i - 1 : 0]);
	if (status == EXIT_DONE)
		bench_add(b, row->name, row->bytes, seconds, b->repeat, row->limit_gbps);
	free(seconds);
	return status;
}

/* ---- what memory allows ---- */

struct copy {
	void *to, *from;
	uint64_t bytes;
	bool idle;
};

static int
copy_once(struct bench *b, void *arg)
{
	struct copy *c = arg;

	(void)b;
	if (!c->idle)
		memcpy(c->to, c->from, c->bytes);
	return EXIT_DONE;
}

static double
best_copy_gbps(struct bench *b, struct copy *c, int *status)
{
	struct bench_row row = { .inner = 1, .once = copy_once, .arg = c };
	double best = 0, t;

	for (int i = 0; *status == EXIT_DONE && i < 8; i++) {
		*status = sample(b, &row, &t);
		if (*status == EXIT_DONE && i && (best == 0 || t < best))
			best = t;
	}
	return best > 0 ? (double)c->bytes / best / 1e9 : 0;
}

/* The first rank's pages, for all of them to copy from, as a broadcast through shared memory would have it. NULL: they
 * are on several hosts, or may not look at each other. */
static void *
shared_source(struct bench *b, uint64_t bytes, int *fd)
{
	char path[64] = "";
	struct ist_blob blob = { .addr = NULL };
	void *p = MAP_FAILED;

	*fd = -1;
	if (b->s.rank == 0) {
		*fd = memfd_create("isthmus-bench", MFD_CLOEXEC);
		if (*fd >= 0 && ftruncate(*fd, (off_t)bytes) == 0)
			snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long)getpid(), *fd);
	}
	if (ist_broadcast_bytes(b->s.group, path, b->s.rank ? 0 : strlen(path) + 1, 0, cli_left_ns(b->cli), &blob, NULL))
		return NULL;
	if (b->s.rank && blob.bytes && blob.bytes <= sizeof(path)) {
		memcpy(path, blob.addr, blob.bytes);
		path[blob.bytes - 1] = 0;
		*fd = path[0] ? open(path, O_RDWR | O_CLOEXEC) : -1;
	}
	ist_blobs_free(b->s.group, &blob, 1);
	if (*fd >= 0)
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (p == MAP_FAILED)
		return NULL;
	if (b->s.rank == 0)
		fill_bytes(fill_key(1, "bench"), 0, p, bytes);
	return p;
}

/* One rank alone, then all receivers at once; both as bytes of payload a second. */
int
bench_copy_limit(struct bench *b, uint64_t bytes)
{
	int fd;
	void *shared = shared_source(b, bytes, &fd), *own = shared ? NULL : bench_buffer(bytes);
	struct copy c = { .to = bench_buffer(bytes), .from = shared ? shared : own, .bytes = bytes };
	int status = c.to && c.from ? EXIT_DONE : cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "two buffers of %llu bytes", (unsigned long long)bytes);
	double alone;

	c.idle = b->s.rank != 0;
	alone = best_copy_gbps(b, &c, &status);
	c.idle = b->s.world > 1 && b->s.rank == 0;
	b->copy_gbps = best_copy_gbps(b, &c, &status);
	json_object_set_new(b->machine, "memcpy_gbps", json_real(alone));
	json_object_set_new(b->machine, "memcpy_all_receivers_gbps", json_real(b->copy_gbps * (b->s.world > 1 ? b->s.world - 1 : 1)));
	if (shared)
		munmap(shared, bytes);
	if (fd >= 0)
		close(fd);
	free(own);
	free(c.to);
	return status;
}
