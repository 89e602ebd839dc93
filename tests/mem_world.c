/* SPDX-License-Identifier: Apache-2.0 */
#include "mem_world.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #x), abort()))

static void *
count_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	struct world *w = ctx;
	void *p = NULL;

	(void)kind, (void)numa;
	if (++w->allocs == w->fail_at)
		return NULL;
	w->live++;
	return posix_memalign(&p, align < 16 ? 16 : align, bytes ? bytes : 1) ? NULL : p;
}

static void
count_free(void *ctx, void *p)
{
	((struct world *)ctx)->live -= p != NULL;
	free(p);
}

static void
on_failed(void *owner, const struct ist_error *err)
{
	struct member *m = owner;
	struct world *w = m->world;
	bool first, deaf;

	pthread_mutex_lock(&w->lock);
	first = w->n_failed++ == 0;
	if (first)
		w->first = *err;
	deaf = w->deaf;
	pthread_mutex_unlock(&w->lock);
	for (uint32_t i = 0; i < w->size && !deaf; i++)
		if (w->lines[i])
			ist__line_abort(w->lines[i], err);
}

static void
on_entered(void *owner, uint64_t seq, const uint8_t print[IST__PRINT_BYTES])
{
	struct member *m = owner;
	struct world *w = m->world;
	uint32_t all = (1u << w->size) - 1, at = (uint32_t)(seq % WORLD_SEQ);
	struct ist_error err = { .struct_size = sizeof(err) };
	bool complete;
	ist_err e = IST_OK;

	ist_error_init(&err);
	pthread_mutex_lock(&w->lock);
	memcpy(w->prints[at][m->rank], print, IST__PRINT_BYTES);
	w->entered[at] |= 1u << m->rank;
	w->n_entered++;
	complete = w->entered[at] == all;
	for (uint32_t i = 1; complete && !e && i < w->size; i++)
		e = ist__print_compare(0, w->prints[at][0], i, w->prints[at][i], seq, &err);
	if (complete)
		w->entered[at] = 0;
	complete = complete && !w->mute;
	pthread_mutex_unlock(&w->lock);
	for (uint32_t i = 0; complete && i < w->size; i++)
		ist__line_checked(w->lines[i], seq, e ? &err : NULL);
}

static uint32_t
on_absent(void *owner, uint64_t seq, uint32_t *ranks, uint32_t room)
{
	struct member *m = owner;
	struct world *w = m->world;
	uint32_t n = 0;

	pthread_mutex_lock(&w->lock);
	for (uint32_t i = 0; i < w->size && n < room; i++)
		if (!(w->entered[seq % WORLD_SEQ] >> i & 1))
			ranks[n++] = i;
	pthread_mutex_unlock(&w->lock);
	return n;
}

void
world_env(struct world *w)
{
	struct ist_env_args args = { .struct_size = sizeof(args), .alloc = count_alloc, .free = count_free, .mem_ctx = w };

	memset(w, 0, sizeof(*w));
	CHECK(ist_env_new(&args, &w->env, NULL) == IST_OK);
}

bool world_drive;

void
world_open(struct world *w, uint32_t size, const struct mem_options *options, int64_t no_progress_ns)
{
	world_env(w);
	pthread_mutex_init(&w->lock, NULL);
	w->size = size;
	w->hub = mem_hub_new(size, options);
	for (uint32_t i = 0; i < size; i++) {
		struct ist__line_args a = { .env = w->env, .backend = mem_admitted(w->hub), .chan = mem_chan(w->hub, i), .rank = i, .size = size,
			.no_progress_ns = no_progress_ns, .owner = &w->members[i], .failed = on_failed, .entered = on_entered, .absent = on_absent,
			.drive = world_drive };

		w->members[i] = (struct member){ .world = w, .rank = i };
		CHECK(ist__line_new(&a, &w->lines[i], NULL) == IST_OK);
	}
}

bool
world_close(struct world *w)
{
	bool well = true;

	for (uint32_t i = 0; i < w->size; i++)
		well &= ist__line_free(w->lines[i]);
	ist_env_free(w->env);
	if (well) {
		CHECK(mem_closed(w->hub) == w->size);
		CHECK(w->live == 0);
		mem_hub_free(w->hub);
		pthread_mutex_destroy(&w->lock);
	}
	return well;
}

void
world_submit(struct world *w, uint32_t kind, const struct ist_coll_args *args, struct ist_req **reqs)
{
	struct ist_error err = { .struct_size = sizeof(err) };

	ist_error_init(&err);
	for (uint32_t i = 0; i < w->size; i++)
		if (ist__line_submit(w->lines[i], kind, &args[i], ist__now() + 60 * IST_NS_PER_S, &reqs[i], &err)) {
			fprintf(stderr, "rank %u: %s\n", i, err.detail);
			abort();
		}
}

ist_err
world_wait(struct world *w, struct ist_req **reqs, struct ist_error *err)
{
	ist_err first = IST_OK;

	for (uint32_t i = 0; i < w->size; i++) {
		ist_err e = ist_req_wait(reqs[i], 100 * IST_NS_PER_S, first ? NULL : err);

		if (!first)
			first = e;
		CHECK(ist_req_free(reqs[i]) == IST_OK);
	}
	return first;
}
