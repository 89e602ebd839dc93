/* SPDX-License-Identifier: Apache-2.0
 *
 * push.c - the giving end of a stream: tensors are copied into the bucket that is being filled, while the one before it
 * moves.
 */
#include "base/dtype.h"
#include "base/fail.h"
#include "sync/plan.h"
#include "sync/stream.h"

#include <string.h>

struct ist_push {
	struct ist__handle handle;
	struct ist__stream *s;
	struct ist__writer table;
	uint32_t in_table;
	uint64_t used;      /* bytes of pieces in the bucket */
	bool writable;      /* the slot has been released by its bucket before */
};

static void
push_kill(struct ist_push *push)
{
	const struct ist__ctx *ctx = push->s->ctx;

	ist__stream_fini(push->s);
	ist__writer_fini(&push->table);
	ist__free(ctx, push->s);
	push->s = NULL;
	ist__handle_bury(push);
}

static void
end_push(void *handle)
{
	if (ist__handle_kill(handle, IST__PUSH))
		push_kill(handle);
}

ist_err
ist_push_begin(struct ist_group *group, const struct ist_stream_args *args, struct ist_push **out, struct ist_error *err)
{
	struct ist_push *push;
	struct ist_env *env;
	ist_err e = ist__handle_check(group, IST__GROUP, "push_begin", err);

	if (e)
		return e;
	if (!args || !out || args->struct_size < sizeof(*args))
		return ist__fail(err, IST_INVALID_ARGUMENT, "push_begin", "args or out is missing, or struct_size too small");
	env = ((const struct ist__handle *)(const void *)group)->env;
	push = ist__handle_new(env, IST__PUSH, sizeof(*push));
	if (push)
		push->s = ist__alloc(ist__env_ctx(env), sizeof(*push->s));
	if (!push || !push->s) {
		ist__free(ist__env_ctx(env), push);
		return ist__fail_memory(err, "push_begin");
	}
	push->s->ctx = ist__env_ctx(env);
	ist__writer_init(&push->table, push->s->ctx);
	e = ist__stream_begin(push->s, group, args, true, "push_begin", err);
	if (e) {
		ist__handle_kill(push, IST__PUSH);
		push_kill(push);
		return e;
	}
	ist__handle_owned(push, end_push);
	*out = push;
	return IST_OK;
}

static uint32_t
slot_of(const struct ist_push *push)
{
	return (uint32_t)(push->s->gates % IST__STREAM_SLOTS);
}

static void
begin_table(struct ist_push *push)
{
	push->table.bytes = 0;
	push->table.bad = false;
	ist__put_u32(&push->table, 0);
	push->in_table = 0;
	push->used = 0;
	push->writable = false;
}

/* Sends the bucket off. */
static ist_err
flush(struct ist_push *push, uint8_t last, struct ist_error *err)
{
	struct ist__stream *s = push->s;
	struct ist__gate g = { .last = last };
	uint32_t slot = slot_of(push);
	struct ist_error why;
	ist_err e;

	ist_error_init(&why);
	if (s->why.code || push->table.bad || push->table.bytes == 0) {
		if (s->why.code)
			why = s->why;
		else
			ist__fail_memory(&why, "push");
		ist__fail_rank(&why, s->rank);
		e = ist__stream_gate(s, &why, &g, "push", &why);
		return ist__stream_stop(s, &why, err);
	}
	if (last != 2) {
		ist__store_u32(push->table.at, push->in_table);
		g.table_bytes = push->table.bytes;
		g.bytes = push->used + push->table.bytes;
		ist__digest_flat(push->table.at, push->table.bytes, &g.table);
		memcpy(s->ring.slots[slot].addr + push->used, push->table.at, push->table.bytes);
	}
	e = ist__stream_gate(s, NULL, &g, "push", &why);
	if (!e && last != 2)
		e = ist__ring_start(&s->ring, slot, s->root, true, NULL, g.bytes, ist__stream_deadline(s), &why);
	if (e)
		return ist__stream_stop(s, &why, err);
	begin_table(push);
	return IST_OK;
}

/* Makes the slot ours and the table begun. */
static ist_err
make_writable(struct ist_push *push, struct ist_error *err)
{
	struct ist__stream *s = push->s;
	struct ist_error why;

	if (push->writable)
		return IST_OK;
	ist_error_init(&why);
	if (s->why.code == IST_OK && ist__ring_release(&s->ring, slot_of(push), ist__stream_deadline(s), &why) != IST_OK)
		return ist__stream_stop(s, &why, err);
	begin_table(push);
	if (s->why.code || push->table.bad) /* no ring, or no table: the gate tells everybody */
		return flush(push, 0, err);
	push->writable = true;
	return IST_OK;
}

static void
put_entry(struct ist_push *push, const struct ist_tensor *t, uint64_t offset, uint64_t bytes, const struct ist__digest *digest)
{
	struct ist__writer *w = &push->table;

	ist__put_str(w, t->name);
	ist__put_str(w, t->dtype);
	ist__put_str(w, t->alias_of ? t->alias_of : "");
	ist__put_u32(w, t->rank);
	for (uint32_t i = 0; i < t->rank; i++)
		ist__put_u64(w, t->shape[i]);
	ist__put_u64(w, t->bytes);
	ist__put_u64(w, offset);
	ist__put_u64(w, bytes);
	ist__put_u64(w, push->used);
	ist__put_u8(w, digest != NULL);
	if (digest)
		ist__put_bytes(w, digest->b, sizeof(digest->b));
	push->in_table++;
}

static uint64_t
room_left(const struct ist_push *push)
{
	uint64_t used = push->used + IST__PIECE_ALIGN + push->table.bytes + IST__STREAM_ENTRY_ROOM;

	return used < push->s->bucket_bytes ? push->s->bucket_bytes - used : 0;
}

/* Copies what fits of t from offset on; *took says how much. */
static ist_err
put_some(struct ist_push *push, const struct ist_tensor *t, uint64_t offset, struct ist__digester *d, uint64_t *took, struct ist_error *err)
{
	struct ist__stream *s = push->s;
	uint64_t left = t->bytes - offset, room, take;
	struct ist__digest *digest = NULL;
	ist_err e = make_writable(push, err);

	if (e)
		return e;
	room = room_left(push);
	take = left <= room ? left : room & ~(IST__PIECE_CUT - 1);
	/* a tensor that fits into an empty bucket is not torn; nor is an entry put where none has room */
	if ((take < left && (take == 0 || (offset == 0 && left <= s->bucket_bytes / 2))) || room == 0) {
		*took = 0;
		return push->in_table > 0 ? flush(push, 0, err) : ist__fail(err, IST_INTERNAL, "push", "an empty bucket has no room");
	}
	push->used = (push->used + IST__PIECE_ALIGN - 1) & ~(IST__PIECE_ALIGN - 1);
	if (take > 0) {
		const uint8_t *from = t->addr;

		memcpy(s->ring.slots[slot_of(push)].addr + push->used, from + offset, take);
		/* what was sent is digested, not what the caller's memory may hold by now */
		ist__digester_add(d, s->ring.slots[slot_of(push)].addr + push->used, take);
	}
	if (take == left) {
		digest = &s->ledger.entries[s->ledger.n - 1].digest;
		ist__digester_end(d, digest);
	}
	put_entry(push, t, offset, take, digest);
	push->used += take;
	*took = take;
	return IST_OK;
}

static ist_err
push_check(struct ist_push *push, const char *op, struct ist_error *err)
{
	ist_err e = ist__handle_check(push, IST__PUSH, op, err);

	if (!e && push->s->failed) {
		if (err)
			ist__error_copy(err, &push->s->why);
		e = push->s->why.code;
	}
	return e;
}

ist_err
ist_push_tensor(struct ist_push *push, const struct ist_tensor *tensor, struct ist_error *err)
{
	struct ist__digester d;
	struct ist_tensor t = { .struct_size = 0 };
	uint64_t done = 0, took = 0;
	bool more = true;
	ist_err e = push_check(push, "push_tensor", err);

	if (e)
		return e;
	if (!tensor || tensor->struct_size < sizeof(*tensor) || (tensor->bytes > 0 && !tensor->addr))
		return ist__fail(err, IST_INVALID_ARGUMENT, "push_tensor", "the tensor or its address is missing, or struct_size too small");
	if (tensor->alias_of && strlen(tensor->alias_of) > 511)
		return ist__fail(err, IST_BAD_NAME, "push_tensor", "alias_of is longer than 511 bytes");
	e = ist__ledger_add(&push->s->ledger, tensor, "push_tensor", err);
	if (e == IST_NO_MEMORY && !push->s->why.code) { /* without this tensor the stream can't end well */
		ist__fail_memory(&push->s->why, "push_tensor");
		ist__fail_rank(&push->s->why, push->s->rank);
	}
	if (e)
		return e;
	t = *tensor;
	ist__digester_init(&d);
	while (more) {
		uint64_t in_table = push->in_table;

		e = put_some(push, &t, done, &d, &took, err);
		if (e)
			return e;
		done += took;
		more = done < t.bytes || (t.bytes == 0 && push->in_table <= in_table);
	}
	return IST_OK;
}

ist_err
ist_push_end(struct ist_push *push, struct ist_report *out, struct ist_error *err)
{
	struct ist_error why;
	struct ist__stream *s;
	ist_err e = ist__handle_check(push, IST__PUSH, "push_end", err);

	if (e)
		return e;
	if (!ist__handle_kill(push, IST__PUSH))
		return ist__fail(err, IST_BAD_HANDLE, "push_end", "the handle was freed");
	s = push->s;
	ist_error_init(&why);
	if (s->failed) {
		e = ist__stream_stop(s, &s->why, err);
	} else if (s->ledger.n == 0 && !s->why.code) {
		struct ist__gate g = { .last = 1 };

		ist__fail(&why, IST_EMPTY_UPDATE, "push_end", "no tensor was pushed");
		ist__fail_rank(&why, s->rank);
		e = ist__stream_gate(s, &why, &g, "push_end", &why);
		e = ist__stream_stop(s, &why, err);
	} else {
		e = make_writable(push, err);
		if (!e)
			e = flush(push, 1, err);
		if (!e)
			e = flush(push, 2, err);
		if (!e && (e = ist__stream_end(s, NULL, "push_end", &why)) != IST_OK)
			ist__stream_stop(s, &why, err);
	}
	if (!e)
		for (uint32_t i = 0; i < s->ring.n; i++)
			(void)ist__ring_release(&s->ring, i, ist__stream_deadline(s), NULL); /* all have said yes: nothing hangs on it */
	if (!e)
		e = ist__stream_report(s, out, "push_end", err);
	push_kill(push);
	return e;
}

void
ist_push_abort(struct ist_push *push, const char *text)
{
	struct ist_error why;
	struct ist__gate g = { .last = 1 };

	if (!ist__handle_ok(push, IST__PUSH) || !ist__handle_kill(push, IST__PUSH))
		return;
	ist_error_init(&why);
	if (!push->s->failed) {
		ist__fail(&why, IST_ABORTED, "push_abort", "%s", text ? text : "the sender gave up");
		why.scope = IST_SCOPE_CALL; /* the group goes on */
		ist__fail_next(&why, "see the detail; the group can be used again");
		ist__fail_rank(&why, push->s->rank);
		(void)ist__stream_gate(push->s, &why, &g, "push_abort", &why); /* comes back as the error it is */
		(void)ist__stream_stop(push->s, &why, NULL);
	}
	push_kill(push);
}
