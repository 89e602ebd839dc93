/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/stream.h"

#include "base/fail.h"
#include "sync/plan.h"
#include "sync/report.h"

#include <string.h>

int64_t
ist__stream_deadline(const struct ist__stream *s)
{
	return ist__deadline(s->timeout_ns, s->default_ns);
}

static uint64_t
bucket_wish(const struct ist_stream_args *args, uint32_t members)
{
	uint64_t wish = args->bucket_bytes ? args->bucket_bytes : ist__ring_bucket(IST__STREAM_SLOTS, members);

	return wish > IST__STREAM_BUCKET_MIN ? wish & ~(IST__PIECE_CUT - 1) : IST__STREAM_BUCKET_MIN;
}

/* What all have said: one root, who is it, how large are the buckets. */
static ist_err
settle(struct ist__stream *s, const char *op, struct ist_error *err)
{
	struct ist__reader r;
	ist_err e;

	for (uint32_t i = 0; i < s->agree.size; i++) {
		uint32_t root;
		uint64_t bucket, version;
		uint8_t pushes;

		ist__agree_reader(&s->agree, i, &r);
		pushes = ist__get_u8(&r);
		root = ist__get_u32(&r);
		bucket = ist__get_u64(&r);
		version = ist__get_u64(&r);
		if (i == s->root)
			s->version = version;
		if (r.bad || bucket < IST__STREAM_BUCKET_MIN)
			return ist__fail(err, IST_BAD_FORMAT, op, "rank %u sent a record that can't be read", i);
		if (bucket < s->bucket_bytes)
			s->bucket_bytes = bucket;
		if (root == s->root && (pushes != 0) == (i == root))
			continue;
		e = ist__fail(err, IST_MISMATCH, op, "rank %u %s with root %u, rank %u knows root %u: one rank pushes, the root", i,
			pushes ? "pushes" : "pulls", root, s->rank, s->root);
		ist__fail_rank(err, i);
		return e;
	}
	return IST_OK;
}

ist_err
ist__stream_begin(struct ist__stream *s, struct ist_group *group, const struct ist_stream_args *args, bool pushes, const char *op,
	struct ist_error *err)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	struct ist_error mine;
	bool bad = false;
	ist_err e = ist_group_info(group, &info, err);

	if (e)
		return e;
	*s = (struct ist__stream){
		.ctx = s->ctx,
		.group = group,
		.rank = info.rank,
		.root = args->root,
		.bucket_bytes = bucket_wish(args, info.n_same_host),
		.version = args->version ? args->version : 1,
		.timeout_ns = args->timeout_ns,
		.default_ns = info.timeout_ns > 0 ? info.timeout_ns : 300 * IST_NS_PER_S,
		.began = ist__now(),
	};
	ist_error_init(&s->why);
	ist_error_init(&mine);
	if (info.size < 2) /* nobody to tell */
		return ist__fail(err, IST_NO_RECEIVERS, op, "the group has no other member");
	ist__ledger_init(&s->ledger, s->ctx);
	e = ist__agree_init(&s->agree, s->ctx, group, NULL, err);
	if (e)
		return e;
	if (args->root >= info.size || (args->root == info.rank) != pushes) {
		ist__fail(&mine, IST_MISMATCH, op, "rank %u of %u %s with root %u", info.rank, info.size, pushes ? "pushes" : "pulls", args->root);
		ist__fail_rank(&mine, info.rank);
		bad = true;
	}
	ist__agree_begin(&s->agree, bad ? &mine : NULL);
	ist__put_u8(&s->agree.w, pushes);
	ist__put_u32(&s->agree.w, s->root);
	ist__put_u64(&s->agree.w, s->bucket_bytes);
	ist__put_u64(&s->agree.w, s->version);
	e = ist__agree_run(&s->agree, ist__stream_deadline(s), op, err);
	if (!e)
		e = settle(s, op, err);
	if (e)
		return e;
	if (ist__ring_prepare(&s->ring, s->ctx, group, IST__STREAM_SLOTS, IST__STREAM_SLOTS, s->bucket_bytes, &s->why) != IST_OK)
		ist__fail_rank(&s->why, s->rank); /* the first gate tells the others */
	(void)ist_group_tell(group, "UPDATING", 0, s->version, 0); /* best effort */
	return IST_OK;
}

void
ist__stream_fini(struct ist__stream *s)
{
	ist__ring_fini(&s->ring);
	ist__agree_fini(&s->agree);
	ist__ledger_fini(&s->ledger);
}

static ist_err
hear(struct ist__stream *s, struct ist__gate *g, const char *op, struct ist_error *err)
{
	struct ist__reader r;
	const void *table;
	bool view = true;

	for (uint32_t i = 0; i < s->agree.size; i++) {
		ist__agree_reader(&s->agree, i, &r);
		view = ist__get_u8(&r) == 1 && view;
		if (i == s->root && s->rank != s->root) {
			g->bytes = ist__get_u64(&r);
			g->table_bytes = ist__get_u64(&r);
			g->version = ist__get_u64(&r);
			table = ist__get_bytes(&r, sizeof(g->table.b));
			if (table)
				memcpy(g->table.b, table, sizeof(g->table.b));
			g->last = ist__get_u8(&r);
		}
		if (r.bad)
			return ist__fail(err, IST_BAD_FORMAT, op, "rank %u sent a record that can't be read", i);
	}
	if (s->gates == 0)
		s->ring.view = view;
	if (g->bytes > s->bucket_bytes || g->table_bytes > g->bytes || g->version == 0 || g->last > 2)
		return ist__fail(err, IST_BAD_FORMAT, op, "the root announced a bucket that can't be");
	return IST_OK;
}

ist_err
ist__stream_gate(struct ist__stream *s, const struct ist_error *mine, struct ist__gate *g, const char *op, struct ist_error *err)
{
	ist_err e;

	if (!mine && s->why.code)
		mine = &s->why; /* no memory for the ring */
	ist__agree_begin(&s->agree, mine);
	ist__put_u8(&s->agree.w, s->ring.from_group);
	if (s->rank == s->root) {
		ist__put_u64(&s->agree.w, g->bytes);
		ist__put_u64(&s->agree.w, g->table_bytes);
		ist__put_u64(&s->agree.w, s->version);
		ist__put_bytes(&s->agree.w, g->table.b, sizeof(g->table.b));
		ist__put_u8(&s->agree.w, g->last);
		g->version = s->version;
	}
	e = ist__agree_run(&s->agree, ist__stream_deadline(s), op, err);
	if (!e)
		e = hear(s, g, op, err);
	if (e)
		return e;
	s->version = g->version;
	s->ended = s->ended || g->last > 0;
	s->gates++;
	return IST_OK;
}

ist_err
ist__stream_end(struct ist__stream *s, const struct ist_error *mine, const char *op, struct ist_error *err)
{
	uint32_t doubt = 0;
	ist_err e = ist_decide(s->group, mine, ist__left(ist__stream_deadline(s)), &doubt, err);

	if (e && doubt)
		ist__fail_prefix(err, "%s: whether the others took the stream is not known: ", op);
	if (e)
		return e;
	s->over = true;
	(void)ist_group_tell(s->group, "CLEAN", s->version, 0, s->version); /* best effort */
	return IST_OK;
}

ist_err
ist__stream_stop(struct ist__stream *s, const struct ist_error *why, struct ist_error *err)
{
	int64_t deadline = ist__stream_deadline(s);

	if (!s->failed) {
		s->failed = s->over = true;
		s->why = *why;
		/* all members have started what is under way: let it end, so that the group stays whole */
		for (uint32_t i = 0; i < s->ring.n; i++)
			if (ist__ring_release(&s->ring, i, deadline, NULL) != IST_OK)
				break;
		ist__ring_drop(&s->ring);
		/* a consumer may have put some of it into place */
		if (s->rank != s->root && s->gates > 0)
			(void)ist_group_tell(s->group, "DIRTY", 0, s->version, 0); /* best effort */
		else
			(void)ist_group_tell(s->group, "CLEAN", 0, 0, 0);
	}
	if (err)
		ist__error_copy(err, &s->why);
	return s->why.code;
}

ist_err
ist__stream_report(struct ist__stream *s, struct ist_report *out, const char *op, struct ist_error *err)
{
	struct ist_report r = { .struct_size = sizeof(r) };
	struct ist__digest digest;

	if (!out)
		return IST_OK;
	if (!ist__ledger_digest(&s->ledger, &digest))
		return ist__fail_memory(err, op);
	r.verified = 1;
	r.version = s->version;
	r.tensors = s->ledger.n;
	r.changed = s->ledger.n;
	r.bytes = s->ledger.bytes;
	r.seconds_update = (double)(ist__now() - s->began) / 1e9;
	r.bucket_bytes = s->bucket_bytes;
	r.buckets = s->gates > 0 ? s->gates - 1 : 0;
	ist__digest_text(&digest, r.digest);
	ist__report_copy(out, &r);
	return IST_OK;
}
