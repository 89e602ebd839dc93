/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_world.c - the busy thread, and the world that is an Isthmus group.
 */
#include "demo.h"

#include "signals.h"

#include <string.h>
#include <unistd.h>

#define ROUNDS_AROUND 100 /* before and after, at least */

static void *
busy(void *arg)
{
	struct world *w = arg;
	unsigned after = 0;
	bool all_stop = false, good = !w->open || w->open(w);

	while (good && !all_stop) {
		bool stop = atomic_load(&w->stop) && ++after > ROUNDS_AROUND;

		good = w->round(w, stop, &all_stop);
		if (good && atomic_fetch_add(&w->rounds, 1) + 1 == ROUNDS_AROUND)
			atomic_store(&w->ready, true);
		usleep(200); /* busy, but the demo's two cores are for the weights */
	}
	if (!good)
		atomic_store(&w->broken, true);
	if (w->close)
		w->close(w);
	return NULL;
}

bool
world_start(struct world *w)
{
	if (pthread_create(&w->thread, NULL, busy, w)) {
		snprintf(w->text, sizeof(w->text), "no thread");
		return false;
	}
	w->running = true;
	while (!atomic_load(&w->ready) && !atomic_load(&w->broken) && !signals_got())
		usleep(1000);
	return !atomic_load(&w->broken);
}

bool
world_stop(struct world *w)
{
	if (!w->running)
		return false;
	atomic_store(&w->stop, true);
	pthread_join(w->thread, NULL);
	w->running = false;
	return !atomic_load(&w->broken);
}

/* A barrier, then who wants to stop: all of them, and it is over. */
static bool
own_round(struct world *w, bool stop, bool *all_stop)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	struct ist_blob blobs[64];
	struct ist_error err;
	uint8_t mine = stop;

	ist_error_init(&err);
	if (ist_barrier(w->self, 0, &err) || ist_group_info(w->self, &info, &err) || info.size > 64 ||
	    ist_all_gather_bytes(w->self, &mine, 1, 0, blobs, &err)) {
		snprintf(w->text, sizeof(w->text), "%s: %.200s", ist_err_name(err.code), err.detail);
		return false;
	}
	*all_stop = true;
	for (uint32_t i = 0; i < info.size; i++)
		*all_stop &= blobs[i].bytes == 1 && *(uint8_t *)blobs[i].addr;
	ist_blobs_free(w->self, blobs, info.size);
	return true;
}

void
world_own(struct world *w, struct ist_group *group)
{
	*w = (struct world){ .name = "isthmus", .round = own_round, .self = group };
}
