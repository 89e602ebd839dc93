/* SPDX-License-Identifier: Apache-2.0
 *
 * past.c - the digests of the version before: how many tensors an update has changed, and whether it changed any.
 */
#include "sync/names.h"
#include "sync/parts.h"
#include "sync/sync.h"

#include <string.h>

void
ist__past_fini(const struct ist__ctx *ctx, struct ist__past *p)
{
	ist__free(ctx, p->names);
	ist__free(ctx, p->digests);
	ist__free(ctx, p->known);
	*p = (struct ist__past){ .n = 0 };
}

static const struct ist__item *
tensor_of(const struct ist__table *t, uint64_t i)
{
	return &t->m->items[t->m->tensors[i]];
}

/* The item whose bytes tensor i has. */
static uint64_t
owner_of(const struct ist__table *t, uint64_t i)
{
	const struct ist__item *item = tensor_of(t, i);

	return item->alias == IST__NO_ALIAS ? t->m->tensors[i] : item->alias;
}

/* Puts what is known of the old names where the new ones stand. */
static bool
carry_over(const struct ist__ctx *ctx, const struct ist__past *from, struct ist__past *to)
{
	struct ist__names names;
	uint32_t known;
	bool ok = true;

	ist__names_init(&names, ctx);
	for (uint64_t i = 0; ok && i < from->n; i++)
		if (from->known[i])
			ok = ist__names_add(&names, (const char *)from->names[i].b, sizeof(from->names[i].b), (uint32_t)i, &known);
	for (uint64_t i = 0; ok && i < to->n; i++) {
		uint32_t k = ist__names_find(&names, (const char *)to->names[i].b, sizeof(to->names[i].b));

		if (k == IST__NO_NAME)
			continue;
		to->digests[i] = from->digests[k];
		to->known[i] = 1;
	}
	ist__names_fini(&names);
	return ok;
}

static void
name_all(struct ist__past *p, const struct ist__table *t)
{
	for (uint64_t i = 0; i < p->n; i++)
		ist__digest_flat(tensor_of(t, i)->name, strlen(tensor_of(t, i)->name), &p->names[i]);
	p->named = true;
}

bool
ist__past_reorder(const struct ist__ctx *ctx, struct ist__past *p, const struct ist__table *t)
{
	struct ist__past now = { .n = t->m->n_tensors, .whole = p->whole, .version = p->version };

	now.names = ist__alloc(ctx, now.n * sizeof(*now.names));
	now.digests = ist__alloc(ctx, now.n * sizeof(*now.digests));
	now.known = ist__alloc(ctx, now.n);
	if (!now.names || !now.digests || !now.known) {
		ist__past_fini(ctx, &now);
		return false;
	}
	if (p->version != 0) /* else there is nothing to carry over, and the names wait until there is */
		name_all(&now, t);
	if (p->version != 0 && !carry_over(ctx, p, &now)) {
		ist__past_fini(ctx, &now);
		return false;
	}
	ist__past_fini(ctx, p);
	*p = now;
	return true;
}

void
ist__past_whole(struct ist__table *t, const struct ist__digest *digests, struct ist__digest *out)
{
	struct ist__hasher h;

	ist__table_sort(t);
	ist__hasher_init(&h);
	for (uint64_t i = 0; i < t->m->n_tensors; i++) {
		const struct ist__item *item = &t->m->items[t->order[i]];
		uint64_t owner = item->alias == IST__NO_ALIAS ? t->order[i] : item->alias;
		struct ist__digest digest;

		ist__parts_digest(t, digests, owner, &digest);
		ist__digest_add_tensor(&h, item->name, ist__dtype_name(item->dtype), item->shape, item->rank, &digest);
	}
	ist__hasher_end(&h, out);
}

uint64_t
ist__past_changed(const struct ist__past *p, const struct ist__table *t, const struct ist__digest *digests)
{
	uint64_t changed = 0;

	if (p->version == 0)
		return t->m->n_tensors;
	for (uint64_t i = 0; i < p->n; i++) {
		struct ist__digest now;

		ist__parts_digest(t, digests, owner_of(t, i), &now);
		changed += p->known[i] && !ist__digest_equal(&p->digests[i], &now);
	}
	return changed;
}

void
ist__past_keep(struct ist__past *p, const struct ist__table *t, const struct ist__digest *digests, uint64_t version,
	const struct ist__digest *whole)
{
	if (!p->named)
		name_all(p, t);
	for (uint64_t i = 0; i < p->n; i++) {
		ist__parts_digest(t, digests, owner_of(t, i), &p->digests[i]);
		p->known[i] = 1;
	}
	p->version = version;
	p->whole = *whole;
}
