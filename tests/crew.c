/* SPDX-License-Identifier: Apache-2.0 */
#include "crew.h"

#include <stdlib.h>
#include <string.h>

/* Of the hand's own thread alone. */
static bool
keep_page(struct hand *h, const void *old, void *new)
{
	uint32_t i = 0, max = old ? 16 : h->pages_max;

	while (i < max && h->pages[i] != old)
		i++;
	if (i < max)
		h->pages[i] = new;
	return i < max;
}

static void *
count_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	struct hand *h = ctx;
	void *p = NULL;

	(void)kind, (void)numa;
	__atomic_add_fetch(&h->allocs, 1, __ATOMIC_RELAXED);
	if (posix_memalign(&p, align < 16 ? 16 : align, bytes ? bytes : 1))
		return NULL;
	if (h->pages_max && align == 4096 && !keep_page(h, NULL, p)) {
		free(p);
		return NULL;
	}
	return p;
}

static void
count_free(void *ctx, void *p)
{
	struct hand *h = ctx;

	if (h->pages_max && p)
		(void)keep_page(h, p, NULL);
	free(p);
}

static void
keep_log(void *ctx, int32_t level, const char *msg)
{
	struct hand *h = ctx;
	size_t n = strlen(h->log);

	(void)level;
	snprintf(h->log + n, sizeof(h->log) - n, "%s\n", msg);
}

void
crew_new(struct crew *crew, uint32_t n)
{
	memset(crew, 0, sizeof(*crew));
	crew->world = fake_world_new(n);
	crew->n = n;
	for (uint32_t i = 0; i < n; i++) {
		struct hand *h = &crew->hands[i];
		struct ist_env_args args = {
			.struct_size = sizeof(args),
			.log_level = IST_LOG_WARN,
			.log = keep_log,
			.log_ctx = h,
			.alloc = count_alloc,
			.free = count_free,
			.mem_ctx = h,
		};

		h->crew = crew;
		h->rank = i;
		CHECK(ist_env_new(&args, &h->env, NULL) == IST_OK);
		h->group = fake_group_new(h->env, crew->world, i);
	}
}

static void *
one_hand(void *arg)
{
	struct hand *h = arg;

	h->crew->run(h, h->crew->arg);
	return NULL;
}

void
crew_run(struct crew *crew, void (*f)(struct hand *hand, void *arg), void *arg)
{
	pthread_t threads[FAKE_RANKS];

	crew->run = f;
	crew->arg = arg;
	for (uint32_t i = 0; i < crew->n; i++)
		CHECK(pthread_create(&threads[i], NULL, one_hand, &crew->hands[i]) == 0);
	for (uint32_t i = 0; i < crew->n; i++)
		pthread_join(threads[i], NULL);
}

void
crew_free(struct crew *crew)
{
	for (uint32_t i = 0; i < crew->n; i++) {
		(void)ist_group_free(crew->hands[i].group);
		ist_env_free(crew->hands[i].env);
	}
	fake_world_free(crew->world);
}
