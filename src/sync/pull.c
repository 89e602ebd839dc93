/* SPDX-License-Identifier: Apache-2.0
 *
 * pull.c - the taking end of a stream: what the table of a bucket says is checked as if a stranger had sent it.
 */
#include "base/dtype.h"
#include "base/fail.h"
#include "sync/plan.h"
#include "sync/stream.h"

#include <string.h>

enum { NAME_ROOM = 512, DTYPE_ROOM = 32 };

struct bucket {
	const uint8_t *at;      /* NULL: none is open */
	uint64_t payload;
	struct ist__reader table;
	uint32_t left;          /* entries not handed out */
	uint64_t index;
	struct ist__gate gate;
};

struct ist_pull {
	struct ist__handle handle;
	struct ist__stream *s;
	struct bucket now;
	struct ist__gate next;  /* of the bucket after it */
	uint64_t entry;         /* of the ledger: the tensor that is coming in */
	uint64_t filled;        /* its bytes so far */
	bool inside;            /* of a tensor */
	struct ist__digester digester;
};

static void
pull_bury(struct ist_pull *pull)
{
	const struct ist__ctx *ctx = pull->s->ctx;

	ist__stream_fini(pull->s);
	ist__free(ctx, pull->s);
	pull->s = NULL;
	ist__handle_bury(pull);
}

static void
end_pull(void *handle)
{
	if (ist__handle_kill(handle, IST__PULL))
		pull_bury(handle);
}

ist_err
ist_pull_begin(struct ist_group *group, const struct ist_stream_args *args, struct ist_pull **out, struct ist_error *err)
{
	struct ist_pull *pull;
	struct ist_env *env;
	ist_err e = ist__handle_check(group, IST__GROUP, "pull_begin", err);

	if (e)
		return e;
	if (!args || !out || args->struct_size < sizeof(*args))
		return ist__fail(err, IST_INVALID_ARGUMENT, "pull_begin", "args or out is missing, or struct_size too small");
	env = ((const struct ist__handle *)(const void *)group)->env;
	pull = ist__handle_new(env, IST__PULL, sizeof(*pull));
	if (pull)
		pull->s = ist__alloc(ist__env_ctx(env), sizeof(*pull->s));
	if (!pull || !pull->s) {
		ist__free(ist__env_ctx(env), pull);
		return ist__fail_memory(err, "pull_begin");
	}
	pull->s->ctx = ist__env_ctx(env);
	e = ist__stream_begin(pull->s, group, args, false, "pull_begin", err);
	if (e) {
		ist__handle_kill(pull, IST__PULL);
		pull_bury(pull);
		return e;
	}
	ist__handle_owned(pull, end_pull);
	*out = pull;
	return IST_OK;
}

static uint32_t
slot_of(uint64_t bucket)
{
	return (uint32_t)(bucket % IST__STREAM_SLOTS);
}

/* Stops this member, and with it all: says why at the next place where all meet. */
static ist_err
stop_all(struct ist_pull *pull, const struct ist_error *mine, const char *op, struct ist_error *err)
{
	struct ist__stream *s = pull->s;
	struct ist__gate g = { .bytes = 0 };
	struct ist_error why = *mine, late;
	ist_err e;

	ist__fail_rank(&why, s->rank);
	ist_error_init(&late); /* one of its own: a wait that ends well wipes what it is given */
	/* the root may be waiting for this bucket before it comes to the gate */
	if (pull->now.at && (e = ist__ring_release(&s->ring, slot_of(pull->now.index), ist__stream_deadline(s), &late)) != IST_OK)
		return ist__stream_stop(s, &late, err);
	pull->now.at = NULL;
	/* after gate n + 1 of the last bucket n there is only the vote */
	if (s->ended && pull->next.last == 2)
		e = ist__stream_end(s, &why, op, &why);
	else
		e = ist__stream_gate(s, &why, &g, op, &why);
	if (!e) /* no member may call a no a yes */
		ist__fail(&why, IST_INTERNAL, op, "the group agreed on success although this rank said no");
	return ist__stream_stop(s, &why, err);
}

/* Gate of the bucket after the open one, and its broadcast. */
static ist_err
pass_gate(struct ist_pull *pull, uint64_t bucket, struct ist_error *err)
{
	struct ist__stream *s = pull->s;
	struct ist_error why;
	ist_err e;

	ist_error_init(&why);
	pull->next = (struct ist__gate){ .bytes = 0 };
	e = ist__stream_gate(s, NULL, &pull->next, "pull", &why);
	if (!e && pull->next.last != 2) {
		e = ist__ring_release(&s->ring, slot_of(bucket), ist__stream_deadline(s), &why);
		if (!e)
			e = ist__ring_start(&s->ring, slot_of(bucket), s->root, false, NULL, pull->next.bytes, ist__stream_deadline(s), &why);
	}
	return e ? ist__stream_stop(s, &why, err) : IST_OK;
}

static ist_err
end_well(struct ist_pull *pull, struct ist_error *err)
{
	struct ist_error why;

	ist_error_init(&why);
	if (pull->inside) {
		ist__fail(&why, IST_INCOMPLETE, "pull", "the stream ended inside a tensor");
		ist__fail_tensor(&why, pull->s->ledger.entries[pull->entry].name);
		return stop_all(pull, &why, "pull", err);
	}
	return ist__stream_end(pull->s, NULL, "pull", &why) ? ist__stream_stop(pull->s, &why, err) : IST_OK;
}

/* Opens the next bucket; none left: ends the stream. */
static ist_err
open_bucket(struct ist_pull *pull, struct ist_error *err)
{
	struct ist__stream *s = pull->s;
	struct bucket *b = &pull->now;
	struct ist_error why;
	struct ist__digest digest;
	const uint8_t *at = NULL;
	uint64_t index = s->gates == 0 ? 0 : b->index + 1;
	ist_err e;

	if (s->gates == 0 && (e = pass_gate(pull, 0, err)) != IST_OK)
		return e;
	if (pull->next.last == 2)
		return end_well(pull, err);
	b->index = index;
	b->gate = pull->next;
	e = pass_gate(pull, index + 1, err);
	if (e)
		return e;
	ist_error_init(&why);
	e = ist__ring_take(&s->ring, slot_of(index), ist__stream_deadline(s), &at, &why);
	if (e)
		return ist__stream_stop(s, &why, err);
	b->at = at;
	b->payload = b->gate.bytes - b->gate.table_bytes;
	ist__digest_flat(at + b->payload, b->gate.table_bytes, &digest);
	if (!ist__digest_equal(&digest, &b->gate.table)) {
		ist__fail(&why, IST_DIGEST, "pull", "the table of the bucket arrived with other bytes than rank %u sent", s->root);
		ist__fail_bucket(&why, index);
		return stop_all(pull, &why, "pull", err);
	}
	ist__reader_init(&b->table, at + b->payload, b->gate.table_bytes);
	b->left = ist__get_u32(&b->table);
	return IST_OK;
}

struct entry {
	char name[NAME_ROOM], dtype[DTYPE_ROOM], alias_of[NAME_ROOM];
	struct ist_tensor t;
	uint64_t offset, bytes, at;
	bool last;
	struct ist__digest digest;
};

static bool
read_entry(struct bucket *b, struct entry *x)
{
	struct ist__reader *r = &b->table;
	const void *digest;
	uint64_t end;

	memset(&x->t, 0, sizeof(x->t));
	x->t.struct_size = sizeof(x->t);
	ist__get_str(r, x->name, sizeof(x->name));
	ist__get_str(r, x->dtype, sizeof(x->dtype));
	ist__get_str(r, x->alias_of, sizeof(x->alias_of));
	x->t.name = x->name;
	x->t.dtype = x->dtype;
	x->t.alias_of = x->alias_of;
	x->t.file = "";
	x->t.rank = ist__get_u32(r);
	if (r->bad || x->t.rank > IST_DIMS_MAX)
		return false;
	for (uint32_t i = 0; i < x->t.rank; i++)
		x->t.shape[i] = ist__get_u64(r);
	x->t.bytes = ist__get_u64(r);
	x->offset = ist__get_u64(r);
	x->bytes = ist__get_u64(r);
	x->at = ist__get_u64(r);
	x->last = ist__get_u8(r) != 0;
	digest = x->last ? ist__get_bytes(r, sizeof(x->digest.b)) : NULL;
	if (digest)
		memcpy(x->digest.b, digest, sizeof(x->digest.b));
	return !r->bad && !__builtin_add_overflow(x->at, x->bytes, &end) && end <= b->payload &&
		!__builtin_add_overflow(x->offset, x->bytes, &end) && end <= x->t.bytes && (end == x->t.bytes) == x->last;
}

static ist_err
take_entry(struct ist_pull *pull, struct entry *x, struct ist_error *why)
{
	struct ist__stream *s = pull->s;
	struct ist__digest digest;

	if (!read_entry(&pull->now, x))
		return ist__fail(why, IST_BAD_FORMAT, "pull", "the table of the bucket can't be read");
	if (pull->inside) {
		const struct ist__entry *was = &s->ledger.entries[pull->entry];

		if (strcmp(was->name, x->name) || was->bytes != x->t.bytes || x->offset != pull->filled)
			return ist__fail(why, IST_BAD_FORMAT, "pull", "the pieces of tensor %s do not follow one another", was->name);
	} else {
		ist_err e = x->offset ? ist__fail(why, IST_BAD_FORMAT, "pull", "tensor %s does not begin at its beginning", x->name)
		                      : ist__ledger_add(&s->ledger, &x->t, "pull", why);

		if (e)
			return e;
		pull->entry = s->ledger.n - 1;
		pull->inside = true;
		pull->filled = 0;
		ist__digester_init(&pull->digester);
	}
	ist__digester_add(&pull->digester, pull->now.at + x->at, x->bytes);
	pull->filled += x->bytes;
	if (!x->last)
		return IST_OK;
	pull->inside = false;
	ist__digester_end(&pull->digester, &digest);
	s->ledger.entries[pull->entry].digest = digest;
	if (!ist__digest_equal(&digest, &x->digest))
		return ist__fail(why, IST_DIGEST, "pull", "tensor %s is not what rank %u sent", x->name, s->root);
	return IST_OK;
}

static ist_err
pull_check(struct ist_pull *pull, const char *op, struct ist_error *err)
{
	ist_err e = ist__handle_check(pull, IST__PULL, op, err);

	if (!e && pull->s->failed) {
		if (err)
			ist__error_copy(err, &pull->s->why);
		e = pull->s->why.code;
	}
	return e;
}

static ist_err
hand_out(struct ist_pull *pull, struct ist_piece *out, uint32_t *more, uint32_t *bucket_end, struct ist_error *err)
{
	struct ist__stream *s = pull->s;
	struct ist_error why;
	struct entry x;
	struct ist_piece p = { .struct_size = sizeof(p) };

	ist_error_init(&why);
	if (take_entry(pull, &x, &why) != IST_OK) {
		ist__fail_bucket(&why, pull->now.index);
		ist__fail_tensor(&why, x.name);
		return stop_all(pull, &why, "pull", err);
	}
	pull->now.left--;
	p.last = x.last;
	ist__ledger_tensor(&s->ledger, pull->entry, &p.tensor);
	p.offset = x.offset;
	p.addr = pull->now.at + x.at;
	p.bytes = x.bytes;
	*out = p;
	*more = 1;
	*bucket_end = pull->now.left == 0;
	return IST_OK;
}

ist_err
ist_pull_next(struct ist_pull *pull, struct ist_piece *out, uint32_t *more, uint32_t *bucket_end, struct ist_error *err)
{
	ist_err e = pull_check(pull, "pull_next", err);

	if (e)
		return e;
	if (!out || !more || !bucket_end || out->struct_size < sizeof(*out))
		return ist__fail(err, IST_INVALID_ARGUMENT, "pull_next", "an output is missing, or struct_size too small");
	if (pull->now.at && pull->now.left == 0)
		return ist__fail(err, IST_BAD_STATE, "pull_next", "the bucket is at its end: call ist_pull_done or ist_pull_fail");
	/* a bucket may be empty: the last one of a stream that ended on a bucket's edge */
	while (!pull->s->over && !pull->now.at) {
		e = open_bucket(pull, err);
		if (!e && pull->now.at && pull->now.left == 0)
			e = ist_pull_done(pull, err);
		if (e)
			return e;
	}
	if (pull->s->over) {
		*more = *bucket_end = 0;
		return IST_OK;
	}
	return hand_out(pull, out, more, bucket_end, err);
}

ist_err
ist_pull_done(struct ist_pull *pull, struct ist_error *err)
{
	struct ist_error why;
	ist_err e = pull_check(pull, "pull_done", err);

	if (e)
		return e;
	if (!pull->now.at || pull->now.left > 0)
		return ist__fail(err, IST_BAD_STATE, "pull_done", "the bucket is not at its end");
	pull->now.at = NULL;
	ist_error_init(&why);
	/* gives the view back, so that the sender can fill the slot again */
	e = ist__ring_release(&pull->s->ring, slot_of(pull->now.index), ist__stream_deadline(pull->s), &why);
	return e ? ist__stream_stop(pull->s, &why, err) : IST_OK;
}

static void
stop_with(struct ist_pull *pull, const char *text)
{
	struct ist_error why;

	ist_error_init(&why);
	ist__fail(&why, IST_ABORTED, "pull", "%s", text);
	why.scope = IST_SCOPE_CALL; /* the group goes on */
	ist__fail_next(&why, "see the detail; the group can be used again");
	if (pull->s->gates > 0)
		ist__fail_bucket(&why, pull->now.index);
	(void)stop_all(pull, &why, "pull", NULL); /* kept: every later call returns it */
}

ist_err
ist_pull_fail(struct ist_pull *pull, const char *text)
{
	ist_err e = ist__handle_check(pull, IST__PULL, "pull_fail", NULL);

	if (e)
		return e;
	if (pull->s->over)
		return pull->s->failed ? IST_OK : IST_BAD_STATE;
	stop_with(pull, text ? text : "the receiver gave up");
	return IST_OK;
}

ist_err
ist_pull_end(struct ist_pull *pull, struct ist_report *out, struct ist_error *err)
{
	ist_err e = ist__handle_check(pull, IST__PULL, "pull_end", err);

	if (e)
		return e;
	if (!pull->s->over)
		stop_with(pull, "the receiver left before the end of the stream");
	if (!ist__handle_kill(pull, IST__PULL))
		return ist__fail(err, IST_BAD_HANDLE, "pull_end", "the handle was freed");
	e = pull->s->failed ? ist__stream_stop(pull->s, &pull->s->why, err) : ist__stream_report(pull->s, out, "pull_end", err);
	pull_bury(pull);
	return e;
}
