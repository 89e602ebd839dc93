/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/sinks.h"

#include "base/fail.h"

void
ist__sinks_init(struct ist__sinks *k, const struct ist__ctx *ctx)
{
	*k = (struct ist__sinks){ .ctx = ctx };
}

void
ist__sinks_fini(struct ist__sinks *k)
{
	ist__free(k->ctx, k->list);
	*k = (struct ist__sinks){ .ctx = k->ctx };
}

ist_err
ist__sinks_add(struct ist__sinks *k, struct ist_sink *sink, struct ist_error *err)
{
	void *at = k->list;

	for (uint64_t i = 0; i < k->n; i++)
		if (k->list[i] == sink)
			return ist__fail(err, IST_CONFLICT, "sync_sink", "this sink is registered already");
	if (!ist__grow(k->ctx, &at, &k->room, k->n + 1, sizeof(struct ist_sink *)))
		return ist__fail_memory(err, "sync_sink");
	k->list = at;
	k->list[k->n++] = sink;
	k->raw = k->raw || sink->raw;
	k->in_place = k->in_place || sink->in_place;
	return IST_OK;
}

ist_err
ist__sinks_begin(struct ist__sinks *k, const struct ist__manifest *m, uint64_t version, struct ist_error *err)
{
	k->begun = 0;
	for (uint64_t i = 0; i < k->n; i++) {
		ist_err e = ist__handle_check(k->list[i], IST__SINK, "sync_update", err);

		if (!e)
			e = ist__sink_begin(k->list[i], m, version, err);
		if (e)
			return e;
		k->begun = i + 1;
	}
	return IST_OK;
}

ist_err
ist__sinks_piece(struct ist__sinks *k, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < k->begun && !e; i++)
		e = ist__sink_piece(k->list[i], item, offset, addr, bytes, err);
	return e;
}

ist_err
ist__sinks_copies(struct ist__sinks *k, const struct ist__far *far, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes,
	struct ist__copies *out, struct ist_error *err)
{
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < k->begun && !e; i++)
		if (ist__sink_is_on(k->list[i], far->mem, far->index))
			e = ist__sink_copies(k->list[i], item, offset, addr, bytes, out, err);
	return e;
}

ist_err
ist__sinks_piece_near(struct ist__sinks *k, const struct ist__far *far, uint64_t item, uint64_t offset, const void *addr, uint64_t bytes,
	struct ist_error *err)
{
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < k->begun && !e; i++)
		if (!ist__sink_is_on(k->list[i], far->mem, far->index))
			e = ist__sink_piece(k->list[i], item, offset, addr, bytes, err);
	return e;
}

bool
ist__sinks_any_near(const struct ist__sinks *k, const struct ist__far *far)
{
	bool any = false;

	for (uint64_t i = 0; i < k->n; i++)
		any = any || !ist__sink_is_on(k->list[i], far->mem, far->index);
	return any;
}

ist_err
ist__sinks_prepare(struct ist__sinks *k, struct ist_error *err)
{
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < k->begun && !e; i++)
		e = ist__sink_prepare(k->list[i], err);
	return e;
}

ist_err
ist__sinks_commit(struct ist__sinks *k, uint64_t version, struct ist_error *err)
{
	ist_err first = IST_OK;

	for (uint64_t i = 0; i < k->begun; i++) {
		ist_err e = ist__sink_commit(k->list[i], version, first ? NULL : err);

		if (!first)
			first = e;
	}
	k->begun = 0;
	return first;
}

bool
ist__sinks_abort(struct ist__sinks *k)
{
	bool dirty = false;

	for (uint64_t i = 0; i < k->begun; i++)
		dirty = ist__sink_abort(k->list[i]) || dirty;
	k->begun = 0;
	return dirty;
}
