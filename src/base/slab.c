/* SPDX-License-Identifier: Apache-2.0 */
#include "base/slab.h"

struct ist__piece {
	struct ist__piece *next;
	uint64_t class; /* IST__SLAB_CLASSES: too large to be kept */
};

_Static_assert(sizeof(struct ist__piece) == 16, "what follows is 16-aligned");

void
ist__slab_init(struct ist__slab *slab, const struct ist__ctx *ctx)
{
	*slab = (struct ist__slab){ .ctx = ctx };
	pthread_mutex_init(&slab->lock, NULL);
}

void
ist__slab_warm(struct ist__slab *slab, uint64_t bytes_max, uint32_t count)
{
	for (uint64_t bytes = 64; bytes <= bytes_max; bytes *= 2) {
		void *first = NULL;

		for (uint32_t i = 0; i < count; i++) { /* linked through their first bytes, so that none is handed out twice */
			void **p = ist__slab_get(slab, bytes);

			if (!p)
				break;
			*p = first;
			first = p;
		}
		while (first) {
			void *p = first;

			first = *(void **)p;
			ist__slab_put(slab, p);
		}
	}
}

void
ist__slab_fini(struct ist__slab *slab)
{
	for (int c = 0; c < IST__SLAB_CLASSES; c++)
		while (slab->free[c]) {
			struct ist__piece *p = slab->free[c];

			slab->free[c] = p->next;
			ist__free(slab->ctx, p);
		}
	pthread_mutex_destroy(&slab->lock);
}

static uint64_t
class_of(uint64_t bytes)
{
	uint64_t c = 0;

	while (c < IST__SLAB_CLASSES && (UINT64_C(64) << c) < bytes)
		c++;
	return c;
}

void *
ist__slab_get(struct ist__slab *slab, uint64_t bytes)
{
	uint64_t c = class_of(bytes), room = c < IST__SLAB_CLASSES ? UINT64_C(64) << c : bytes;
	struct ist__piece *p = NULL;

	if (room > UINT64_MAX - sizeof(*p))
		return NULL;
	if (c < IST__SLAB_CLASSES) {
		pthread_mutex_lock(&slab->lock);
		p = slab->free[c];
		if (p) {
			slab->free[c] = p->next;
			slab->kept[c]--;
		}
		pthread_mutex_unlock(&slab->lock);
	}
	if (!p)
		p = ist__alloc_aligned(slab->ctx, sizeof(*p) + room, 16);
	if (!p)
		return NULL;
	p->class = c;
	return p + 1;
}

void
ist__slab_put(struct ist__slab *slab, void *at)
{
	struct ist__piece *p;

	if (!at)
		return;
	p = (struct ist__piece *)at - 1;
	if (p->class < IST__SLAB_CLASSES) {
		pthread_mutex_lock(&slab->lock);
		if (slab->kept[p->class] < IST__SLAB_KEEP) {
			p->next = slab->free[p->class];
			slab->free[p->class] = p;
			slab->kept[p->class]++;
			p = NULL;
		}
		pthread_mutex_unlock(&slab->lock);
	}
	ist__free(slab->ctx, p);
}
