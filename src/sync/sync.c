/* SPDX-License-Identifier: Apache-2.0
 *
 * sync.c - the handle: what is registered, and the state that others may ask for at any time.
 */
#include "sync/sync.h"

#include "base/fail.h"

#include <string.h>

/* One for each stage: a bucket that is lent to the sinks keeps its slot until all have delivered it. */
enum { SLOTS = 3, SLOTS_FAR = 5 /* on devices what is to come is on its way as well, and what was given waits to be given back */ };

/* ---- state ---- */

void
ist__sync_set_state(struct ist__sync_body *s, uint32_t state, uint64_t version, uint64_t to)
{
	static const char *const names[] = { "CLEAN", "UPDATING", "DIRTY" };
	bool serves = s->n_sources > 0 || s->sinks.n > 0;

	pthread_mutex_lock(&s->lock);
	s->state = state;
	s->version = version;
	s->to = to;
	pthread_mutex_unlock(&s->lock);
	if (state == IST_STATE_DIRTY || (state == IST_UPDATING && s->sinks.in_place))
		serves = false;
	(void)ist_group_tell(s->group, names[state], version, to, serves ? version : 0); /* best effort, as status is */
}

ist_err
ist_sync_state(struct ist_sync *sync, uint32_t *kind, uint64_t *version, uint64_t *to, struct ist_error *err)
{
	ist_err e = ist__handle_check(sync, IST__SYNC, "sync_state", err);

	if (e)
		return e;
	pthread_mutex_lock(&sync->body->lock);
	if (kind)
		*kind = sync->body->state;
	if (version)
		*version = sync->body->version;
	if (to)
		*to = sync->body->to;
	pthread_mutex_unlock(&sync->body->lock);
	return IST_OK;
}

void
ist__sync_name_ranks(const struct ist__sync_body *s, struct ist_error *err)
{
	if (!err || s->group == s->given)
		return;
	for (uint32_t i = 0; i < err->n_ranks; i++)
		if (err->ranks[i] < s->size)
			err->ranks[i] = s->names[err->ranks[i]];
	ist__sync_name_voters(s, err);
}

void
ist__sync_name_voters(const struct ist__sync_body *s, struct ist_error *err)
{
	for (uint32_t i = 0; i < err->n_per_rank && s->group != s->given; i++)
		if (err->per_rank[i].rank < s->size)
			err->per_rank[i].rank = s->names[err->per_rank[i].rank];
}

bool
ist__sync_is_source(const struct ist__sync_body *s)
{
	return s->n_sources > 0;
}

void
ist__sync_show_role(struct ist__sync_body *s)
{
	ist__pace_role(&s->pace, s->group, (s->stale && !s->gathering ? 0 : IST__ROLE_SHOWN) | (s->n_sources > 0 ? IST__ROLE_SOURCE : 0) |
		(s->sinks.n > 0 ? IST__ROLE_SINK : 0));
}

/* ---- making ---- */

/* A third of the limit for those that stand still: who is slow is noticed before it is taken for frozen. */
static int64_t
default_slow(int64_t no_progress_ns)
{
	return no_progress_ns > 0 ? no_progress_ns / 3 : 10 * IST_NS_PER_S;
}

ist_err
ist__sync_adopt(struct ist__sync_body *s, struct ist_error *err)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	ist_err e = ist_group_info(s->group, &info, err);

	if (e)
		return e;
	s->rank = info.rank;
	s->size = info.size;
	s->leaves_out = IST_HAS(&info, takers) && info.takers;
	ist__agree_fini(&s->agree);
	return ist__agree_init(&s->agree, s->ctx, s->group, s->names, err);
}

static void
body_free(struct ist__sync_body *s)
{
	if (!s)
		return;
	ist__pace_fini(&s->pace);
	ist__stage_fini(&s->stage);
	ist__ring_fini(&s->ring);
	ist__agree_fini(&s->agree);
	if (s->group != s->given)
		(void)ist_group_free(s->group); /* ours alone */
	ist__table_free(s->table);
	ist__past_fini(s->ctx, &s->past);
	ist__sinks_fini(&s->sinks);
	ist__free(s->ctx, s->sources);
	ist__free(s->ctx, s->names);
	ist__free(s->ctx, s->ranks);
	ist__free(s->ctx, s->roles);
	ist__free(s->ctx, s->takers);
	ist__free(s->ctx, s->leaves);
	ist__free(s->ctx, s->digests);
	ist__free(s->ctx, s->have);
	ist__free(s->ctx, s->got);
	pthread_mutex_destroy(&s->lock);
	ist__free(s->ctx, s);
}

static ist_err
check_args(const struct ist_sync_args *a, struct ist_error *err)
{
	if (!a)
		return IST_OK;
	if (a->struct_size < offsetof(struct ist_sync_args, progress))
		return ist__fail(err, IST_INVALID_ARGUMENT, "sync_new", "struct_size %u is too small", a->struct_size);
	if (a->on_loss > IST_ON_LOSS_CONTINUE)
		return ist__fail(err, IST_INVALID_ARGUMENT, "sync_new", "on_loss %u is none", a->on_loss);
	if (a->bucket_bytes && a->bucket_bytes < IST__BUCKET_MIN)
		return ist__fail(err, IST_INVALID_ARGUMENT, "sync_new", "a bucket has at least %llu bytes", (unsigned long long)IST__BUCKET_MIN);
	if (a->slots > IST__SLOTS_MAX)
		return ist__fail(err, IST_INVALID_ARGUMENT, "sync_new", "a ring has at most %d buckets", IST__SLOTS_MAX);
	return IST_OK;
}

static ist_err
body_new(struct ist_group *group, const struct ist_sync_args *args, struct ist__sync_body **out, struct ist_error *err)
{
	struct ist_env *env = ((const struct ist__handle *)(const void *)group)->env;
	const struct ist__ctx *ctx = ist__env_ctx(env);
	struct ist_group_info info = { .struct_size = sizeof(info) };
	struct ist__sync_body *s;
	ist_err e = ist_group_info(group, &info, err);

	if (e)
		return e;
	s = ist__alloc(ctx, sizeof(*s));
	if (!s)
		return ist__fail_memory(err, "sync_new");
	s->env = env;
	s->ctx = ctx;
	s->given = s->group = group;
	s->size = s->first_size = info.size;
	s->name = info.rank;
	s->default_ns = info.timeout_ns > 0 ? info.timeout_ns : 300 * IST_NS_PER_S;
	pthread_mutex_init(&s->lock, NULL);
	if (args)
		memcpy(&s->args, args, args->struct_size < sizeof(s->args) ? args->struct_size : sizeof(s->args));
	if (s->args.slots == 0)
		s->args.slots = ist__is_far(info.mem) ? SLOTS_FAR : SLOTS;
	if (s->args.slots == 1)
		ist__log(ctx, IST_LOG_INFO, "a ring of one bucket: serial, one is read, moved and delivered before the next");
	if (s->args.bucket_bytes == 0)
		s->args.bucket_bytes = info.bucket_bytes >= IST__BUCKET_MIN ? info.bucket_bytes : ist__ring_bucket(s->args.slots, info.n_same_host);
	s->names = ist__alloc(ctx, info.size * sizeof(*s->names));
	s->ranks = ist__alloc(ctx, info.size * sizeof(*s->ranks));
	s->roles = ist__alloc(ctx, info.size);
	s->takers = ist__alloc(ctx, (info.size + UINT64_C(63)) / 64 * sizeof(*s->takers));
	ist__sinks_init(&s->sinks, ctx);
	ist_error_init(&s->up.why);
	e = s->names && s->ranks && s->roles && s->takers && ist__pace_init(&s->pace, env, info.size) ? IST_OK : ist__fail_memory(err, "sync_new");
	for (uint32_t i = 0; !e && i < info.size; i++)
		s->names[i] = s->ranks[i] = i;
	s->pace.slow_ns = s->args.slow_ns > 0 ? s->args.slow_ns : default_slow(info.no_progress_ns);
	s->pace.still_ns = info.no_progress_ns > 0 ? info.no_progress_ns : 0;
	s->pace.evicts = s->args.on_loss == IST_ON_LOSS_CONTINUE && s->args.slow_ns >= 0;
	if (!e)
		e = ist__sync_adopt(s, err);
	if (e)
		body_free(s);
	else
		*out = s;
	return e;
}

static void
end_sync(void *handle)
{
	ist_sync_free(handle);
}

ist_err
ist_sync_new(struct ist_group *group, const struct ist_sync_args *args, struct ist_sync **out, struct ist_error *err)
{
	struct ist_sync *sync;
	struct ist__sync_body *body = NULL;
	ist_err e = ist__handle_check(group, IST__GROUP, "sync_new", err);

	if (!e)
		e = out ? check_args(args, err) : ist__fail(err, IST_INVALID_ARGUMENT, "sync_new", "out is NULL");
	if (!e)
		e = body_new(group, args, &body, err);
	if (e)
		return e;
	sync = ist__handle_new(body->env, IST__SYNC, sizeof(*sync));
	if (!sync) {
		body_free(body);
		return ist__fail_memory(err, "sync_new");
	}
	sync->body = body;
	body->handle = sync;
	ist__handle_owned(sync, end_sync);
	*out = sync;
	return IST_OK;
}

void
ist_sync_free(struct ist_sync *sync)
{
	if (!ist__handle_ok(sync, IST__SYNC) || !ist__handle_kill(sync, IST__SYNC))
		return;
	body_free(sync->body);
	sync->body = NULL;
	ist__handle_bury(sync);
}

/* ---- registering ---- */

/* Digests of the items of a file checkpoint, as one: what the content is. */
static ist_err
content_digest(struct ist__sync_body *s, struct ist_checkpoint *ck, struct ist__digest *out, struct ist_error *err)
{
	uint64_t n = ist__checkpoint_manifest(ck)->n_items;
	struct ist__digest *all = ist__alloc(s->ctx, n * sizeof(*all));

	if (!all)
		return ist__fail_memory(err, "sync_source");
	for (uint64_t i = 0; i < n; i++)
		if (!ist__checkpoint_item_digest(ck, i, &all[i])) {
			ist__free(s->ctx, all);
			return ist__fail(err, IST_INTERNAL, "sync_source", "item %llu has no digest", (unsigned long long)i);
		}
	ist__digest_flat(all, n * sizeof(*all), out);
	ist__free(s->ctx, all);
	return IST_OK;
}

static ist_err
digest_now(struct ist__sync_body *s, struct ist_checkpoint *ck, struct ist__offer *o, struct ist_error *err)
{
	ist_err e = ist__checkpoint_digest_all(ck, 0, err);

	if (!e)
		e = content_digest(s, ck, &o->content, err);
	if (!e)
		o->live = o->late = false;
	return e;
}

/* Where buckets lie on devices their bytes had best come from where they are, and digests are had there for nothing, on the way. */
static ist_err
make_offer(struct ist__sync_body *s, struct ist_checkpoint *ck, struct ist__offer *o, struct ist_error *err)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	bool far = ist_group_info(s->group, &info, NULL) == IST_OK && ist__is_far(info.mem); /* what is wrong with it the next call says */
	ist_err e = ist__manifest_digest(ist__checkpoint_manifest(ck), &o->manifest, err);

	o->live = ist__checkpoint_live(ck);
	if (!e && far)
		e = ist__checkpoint_pin(ck, info.mem, info.device, err);
	if (e || o->live)
		return e;
	o->live = o->late = far && !ist__checkpoint_digested(ck);
	return o->late ? IST_OK : digest_now(s, ck, o, err);
}

ist_err
ist__sync_digest_late(struct ist__sync_body *s, struct ist_error *err)
{
	ist_err e = IST_OK;

	for (uint64_t i = 0; i < s->n_sources && !e; i++)
		if (s->sources[i].offer.late)
			e = digest_now(s, s->sources[i].ck, &s->sources[i].offer, err);
	return e;
}

ist_err
ist_sync_source(struct ist_sync *sync, struct ist_checkpoint *ck, uint32_t part, uint32_t parts, struct ist_error *err)
{
	struct ist__sync_body *s;
	struct ist__source source = { .ck = ck, .offer = { .part = part, .parts = parts } };
	int64_t began = ist__now();
	void *at;
	ist_err e = ist__handle_check(sync, IST__SYNC, "sync_source", err);

	if (!e)
		e = ist__handle_check(ck, IST__CHECKPOINT, "sync_source", err);
	if (e)
		return e;
	s = sync->body;
	if (parts ? part >= parts : part != 0)
		return ist__fail(err, IST_INVALID_ARGUMENT, "sync_source", "part %u/%u is none", part, parts);
	if (parts > 65536)
		return ist__fail(err, IST_LIMIT, "sync_source", "%u parts are more than 65536", parts);
	if (s->state == IST_STATE_DIRTY)
		return ist__fail(err, IST_DIRTY, "sync_source", "this member holds version %llu half overwritten by version %llu",
			(unsigned long long)s->version, (unsigned long long)s->to);
	for (uint64_t i = 0; i < s->n_sources; i++)
		if (s->sources[i].ck == ck)
			return ist__fail(err, IST_CONFLICT, "sync_source", "this checkpoint is registered already");
	e = make_offer(s, ck, &source.offer, err);
	if (e)
		return e;
	at = s->sources;
	if (!ist__grow(s->ctx, &at, &s->sources_room, s->n_sources + 1, sizeof(*s->sources)))
		return ist__fail_memory(err, "sync_source");
	s->sources = at;
	s->sources[s->n_sources++] = source;
	s->stale = true;
	ist__sync_show_role(s);
	s->register_s += (double)(ist__now() - began) / 1e9;
	return IST_OK;
}

ist_err
ist_sync_unregister(struct ist_sync *sync, struct ist_checkpoint *ck, struct ist_error *err)
{
	struct ist__sync_body *s;
	ist_err e = ist__handle_check(sync, IST__SYNC, "sync_unregister", err);

	if (e)
		return e;
	s = sync->body;
	for (uint64_t i = 0; i < s->n_sources; i++)
		if (s->sources[i].ck == ck) {
			memmove(&s->sources[i], &s->sources[i + 1], (s->n_sources - i - 1) * sizeof(*s->sources));
			s->n_sources--;
			s->stale = true;
			ist__sync_show_role(s);
			return IST_OK;
		}
	return ist__fail(err, IST_BAD_STATE, "sync_unregister", "this checkpoint is not registered");
}

ist_err
ist_sync_sink(struct ist_sync *sync, struct ist_sink *sink, struct ist_error *err)
{
	ist_err e = ist__handle_check(sync, IST__SYNC, "sync_sink", err);

	if (!e)
		e = ist__handle_check(sink, IST__SINK, "sync_sink", err);
	if (!e)
		e = ist__sinks_add(&sync->body->sinks, sink, err);
	if (!e) {
		sync->body->stale = true;
		ist__sync_show_role(sync->body);
	}
	return e;
}

/* Again and again, as long as members are lost that can be missed. */
static ist_err
gather_all(struct ist__sync_body *s, int64_t deadline, struct ist_error *err)
{
	struct ist__regroup r = { .how = IST__END_BROKEN };
	ist_err e;

	s->up = (struct ist__update){ .deadline = deadline };
	ist_error_init(&s->up.why);
	s->gathering = true;
	ist__sync_show_role(s);
	e = ist__sync_gather(s, deadline, err);
	while (e && s->agree.failed && !s->agree.told && ist__sync_is_loss(s, e)) {
		struct ist_error why = *err;

		r.step = IST__STEP_GATHER;
		e = ist__sync_regroup(s, &r, &why, err);
		if (e)
			break;
		e = ist__sync_gather(s, deadline, err);
	}
	s->gathering = false;
	if (e && s->agree.failed && !s->agree.told)
		ist__sync_name_ranks(s, err);
	return e;
}

ist_err
ist_sync_gather(struct ist_sync *sync, int64_t timeout_ns, struct ist_error *err)
{
	struct ist_error why;
	int64_t began = ist__now();
	ist_err e = ist__handle_check(sync, IST__SYNC, "sync_gather", err);

	if (!e)
		e = ist__sync_check_left(sync->body, "sync_gather", err);
	if (e)
		return e;
	ist_error_init(&why);
	e = gather_all(sync->body, ist__deadline(timeout_ns, sync->body->default_ns), &why);
	sync->body->gather_s = (double)(ist__now() - began) / 1e9;
	if (e && err)
		ist__error_copy(err, &why);
	return e;
}
