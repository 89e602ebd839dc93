/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/agree.h"

#include "base/fail.h"
#include "sync/ring.h"

#include <string.h>

enum { WELL = 1, ILL = 2, LEAVES = 3 };

static void
drop_blobs(struct ist__agree *a)
{
	if (a->filled)
		ist_blobs_free(a->group, a->blobs, a->size);
	a->filled = false;
}

ist_err
ist__agree_init(struct ist__agree *a, const struct ist__ctx *ctx, struct ist_group *group, const uint32_t *names, struct ist_error *err)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	ist_err e = ist_group_info(group, &info, err);

	if (e)
		return e;
	*a = (struct ist__agree){ .ctx = ctx, .group = group, .names = names, .size = info.size };
	ist__writer_init(&a->w, ctx);
	a->blobs = ist__alloc(ctx, info.size * sizeof(*a->blobs));
	a->leaves = ist__alloc(ctx, info.size * sizeof(*a->leaves));
	return a->blobs && a->leaves ? IST_OK : ist__fail_memory(err, "agree");
}

void
ist__agree_fini(struct ist__agree *a)
{
	if (!a->ctx)
		return;
	drop_blobs(a);
	ist__writer_fini(&a->w);
	ist__free(a->ctx, a->blobs);
	ist__free(a->ctx, a->leaves);
	*a = (struct ist__agree){ .ctx = NULL };
}

void
ist__agree_begin(struct ist__agree *a, const struct ist_error *mine)
{
	a->w.bytes = 0;
	a->w.bad = a->failed = false;
	ist__put_u8(&a->w, mine ? ILL : WELL);
	if (mine)
		ist__put_error(&a->w, mine);
}

void
ist__agree_leave(struct ist__agree *a)
{
	if (!a->w.bad)
		a->w.at[0] = LEAVES;
}

static uint32_t
name_of(const struct ist__agree *a, uint32_t i)
{
	return a->names ? a->names[i] : i;
}

/* What member i said about itself: true when it is well. */
static bool
verdict(struct ist__agree *a, uint32_t i, const char *op, struct ist_error *e)
{
	struct ist__reader r;
	uint8_t how;

	ist__reader_init(&r, a->blobs[i].addr, a->blobs[i].bytes);
	if (r.left == 0) {
		ist__fail(e, IST_NO_MEMORY, op, "rank %u has no memory to say how it stands", name_of(a, i));
		ist__fail_rank(e, name_of(a, i));
		return false;
	}
	how = ist__get_u8(&r);
	if (how == WELL)
		return true;
	if ((how != ILL && how != LEAVES) || !ist__get_error(&r, e) || !e->code) {
		ist__fail(e, IST_BAD_FORMAT, op, "rank %u sent a record that can't be read", name_of(a, i));
		ist__fail_rank(e, name_of(a, i));
	} else if (how == LEAVES) {
		a->leaves[i] = e->code;
	}
	return false;
}

/* A digest that does not hold may be what follows from another failure in the same bucket: a source that could not read
 * sends what happens to be there. */
static bool
comes_first(const struct ist_error *a, const struct ist_error *b)
{
	if ((a->code == IST_DIGEST) != (b->code == IST_DIGEST))
		return b->code == IST_DIGEST;
	return a->bucket < b->bucket;
}

static ist_err
judge(struct ist__agree *a, const char *op, struct ist_error *err)
{
	struct ist_error worst, one;
	struct ist_rank_error list[IST_ERROR_RANKS];
	uint32_t n = 0, leave = 0, ill = 0;

	ist_error_init(&worst);
	memset(a->leaves, 0, a->size * sizeof(*a->leaves));
	for (uint32_t i = 0; i < a->size; i++) {
		ist_error_init(&one);
		if (verdict(a, i, op, &one))
			continue;
		ill++;
		leave += a->leaves[i] != 0;
		if (n < IST_ERROR_RANKS)
			list[n++] = (struct ist_rank_error){ name_of(a, i), one.code };
		if (!worst.code || comes_first(&one, &worst))
			worst = one;
	}
	a->n_leave = leave == ill ? leave : 0;
	if (!worst.code)
		return IST_OK;
	if (worst.n_per_rank == 0)
		for (uint32_t i = 0; i < n; i++)
			ist__fail_per_rank(&worst, list[i].rank, list[i].code);
	if (err)
		ist__error_copy(err, &worst);
	return worst.code;
}

ist_err
ist__agree_run(struct ist__agree *a, int64_t deadline, const char *op, struct ist_error *err)
{
	ist_err e;

	drop_blobs(a);
	a->failed = true;
	a->told = false;
	a->n_leave = 0;
	e = ist_all_gather_bytes(a->group, a->w.at, a->w.bad ? 0 : a->w.bytes, ist__left(deadline), a->blobs, err);
	if (e)
		return e;
	a->filled = true;
	e = judge(a, op, err);
	a->told = e != IST_OK;
	a->failed = a->told;
	return e;
}

void
ist__agree_reader(const struct ist__agree *a, uint32_t i, struct ist__reader *r)
{
	ist__reader_init(r, a->blobs[i].addr, a->blobs[i].bytes);
	(void)ist__get_u8(r);
}
