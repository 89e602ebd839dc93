/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_gather.c - members tell each other what they hold: every rank is a source of tensors that nobody else has, the last
 * one takes all. Each sample is a sync of its own, so nothing is known from the one before. No byte of a tensor moves.
 */
#include "bench.h"
#include "layout.h"
#include "value.h"

#include <isthmus/sync.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS 400u
#define TENSOR_BYTES 4096u

struct gather {
	struct layout layout;
	struct ist_tensor *tensors;
	char (*names)[32];
	uint8_t *memory;
	struct ist_checkpoint *ck;
	struct ist_sink *sink;
};

static int
open_all(struct bench *b, struct gather *g)
{
	uint64_t n = option_number(&b->cli->o, OPT_TENSORS, TENSORS), bytes = option_number(&b->cli->o, OPT_BYTES, n * TENSOR_BYTES), at = 0;
	struct ist_error err;

	ist_error_init(&err);
	if (layout_of_tensors(&g->layout, n, bytes)) {
		g->tensors = calloc(n, sizeof(*g->tensors));
		g->names = calloc(n, sizeof(*g->names));
		g->memory = bench_buffer(bytes);
	}
	if (!g->tensors || !g->names || !g->memory)
		return cli_fail_code(b->cli, IST_NO_MEMORY, "bench", "%llu tensors", (unsigned long long)n);
	for (uint64_t i = 0; i < n; at += g->layout.tensors[i++].bytes) {
		const struct layout_tensor *t = &g->layout.tensors[i];

		snprintf(g->names[i], sizeof(g->names[i]), "%u.%s", b->s.rank, t->name);
		g->tensors[i] = (struct ist_tensor){ .struct_size = sizeof(g->tensors[i]), .rank = t->rank, .name = g->names[i], .dtype = t->dtype,
			.shape = { t->shape[0] }, .bytes = t->bytes, .addr = g->memory + at };
	}
	if (ist_checkpoint_from_tensors(b->s.env, g->tensors, n, &g->ck, &err))
		return cli_fail(b->cli, &err);
	if (b->s.rank + 1 == b->s.world && ist_sink_open(b->s.env, "null:", 0, &g->sink, &err))
		return cli_fail(b->cli, &err);
	return EXIT_DONE;
}

static int
gather_once(struct bench *b, void *arg)
{
	struct gather *g = arg;
	struct ist_sync *sync = NULL;
	struct ist_error err;
	ist_err code;

	ist_error_init(&err);
	code = ist_sync_new(b->s.group, NULL, &sync, &err);
	if (code == IST_OK)
		code = ist_sync_source(sync, g->ck, 0, 0, &err);
	if (code == IST_OK && g->sink)
		code = ist_sync_sink(sync, g->sink, &err);
	if (code == IST_OK)
		code = ist_sync_gather(sync, cli_left_ns(b->cli), &err);
	if (sync)
		ist_sync_free(sync);
	return code ? cli_fail(b->cli, &err) : EXIT_DONE;
}

int
bench_gather(struct bench *b)
{
	struct gather g = { .ck = NULL };
	int status = b->s.world < 2 ? cli_usage(b->cli, "gather needs at least 2 ranks") : open_all(b, &g);

	if (status == EXIT_DONE)
		status = bench_measure(b, &(struct bench_row){ .name = "gather", .inner = 1, .once = gather_once, .arg = &g });
	if (g.sink)
		ist_sink_free(g.sink);
	if (g.ck)
		ist_checkpoint_free(g.ck);
	layout_free(&g.layout);
	free(g.tensors);
	free(g.names);
	free(g.memory);
	return status;
}
