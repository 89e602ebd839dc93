/* SPDX-License-Identifier: Apache-2.0 */
#include "net/msg.h"

#include "base/bytes.h"
#include "base/fail.h"

#include <string.h>

enum { GROWTH = 4 /* times what has come: so much a sender's word is good for */ };

void
ist__msg_free(struct ist__loop *loop, struct ist__msg *msg)
{
	if (!msg)
		return;
	ist__slab_put(ist__loop_slab(loop), msg->body);
	ist__slab_put(ist__loop_slab(loop), msg);
}

bool
ist__msg_cut(struct ist__loop *loop, const struct ist__msg *head, const void *body, uint64_t bytes,
	bool (*put)(void *arg, struct ist__frame *frame), void *arg)
{
	const uint8_t *at = body;
	bool first = true, many = bytes > IST__MSG_PIECE;

	do {
		uint64_t n = bytes < IST__MSG_PIECE ? bytes : IST__MSG_PIECE, prefix = first && many ? 8 : 0;
		struct ist__frame *f = ist__frame_new(loop, head->type, NULL, n + prefix);

		if (!f)
			return false;
		if (prefix)
			ist__store_u64(f->body, bytes);
		if (n > 0)
			memcpy(f->body + prefix, at, n);
		f->flags = (uint16_t)(head->flags | (prefix ? IST__FRAME_FIRST : 0) | (n < bytes ? IST__FRAME_MORE : 0));
		f->seq = head->seq;
		f->generation = head->generation;
		f->from = head->from;
		f->to = head->to;
		if (!put(arg, f))
			return false;
		if (at)
			at += n;
		bytes -= n;
		first = false;
	} while (bytes > 0);
	return true;
}

static bool
put_conn(void *arg, struct ist__frame *frame)
{
	return ist__conn_send(arg, frame);
}

bool
ist__msg_send(struct ist__conn *conn, const struct ist__msg *head, const void *body, uint64_t bytes)
{
	bool sent = ist__msg_cut(ist__conn_loop(conn), head, body, bytes, put_conn, conn);

	if (!sent)
		ist__conn_starve(conn); /* does nothing where it is over already */
	return sent;
}

void
ist__msg_try(struct ist__conn *conn, const struct ist__msg *head, const void *body, uint64_t bytes)
{
	struct ist__frame *f = ist__frame_new(ist__conn_loop(conn), head->type, body, bytes);

	if (!f)
		return;
	f->flags = head->flags;
	f->seq = head->seq;
	f->generation = head->generation;
	f->from = head->from;
	f->to = head->to;
	ist__conn_send(conn, f);
}

static struct ist__msg *
msg_new(struct ist__loop *loop, const struct ist__frame *f, uint64_t bytes)
{
	struct ist__msg *m = ist__slab_get(ist__loop_slab(loop), sizeof(*m));

	if (!m)
		return NULL;
	*m = (struct ist__msg){ .type = f->type, .flags = f->flags, .seq = f->seq, .generation = f->generation,
		.from = f->from, .to = f->to, .bytes = bytes };
	return m;
}

/* For n bytes more, which the message has still to come. */
static bool
make_room(struct ist__loop *loop, struct ist__msg *m, uint64_t n)
{
	uint64_t room = GROWTH * (m->have + n);
	uint8_t *body;

	if (m->have + n <= m->room)
		return true;
	if (room > m->bytes)
		room = m->bytes;
	body = ist__slab_get(ist__loop_slab(loop), room);
	if (!body)
		return false;
	if (m->have > 0)
		memcpy(body, m->body, m->have);
	ist__slab_put(ist__loop_slab(loop), m->body);
	m->body = body;
	m->room = room;
	return true;
}

static struct ist__msg **
partial_of(struct ist__msg **partials, const struct ist__frame *f)
{
	while (*partials && !((*partials)->type == f->type && (*partials)->seq == f->seq && (*partials)->from == f->from))
		partials = &(*partials)->next;
	return partials;
}

ist_err
ist__msg_take(struct ist__loop *loop, struct ist__msg **partials, struct ist__frame *f, uint64_t limit,
	struct ist__msg **done, struct ist_error *err)
{
	struct ist__msg **at = partial_of(partials, f), *m = *at;
	const uint8_t *body = f->body;
	uint64_t n = f->bytes, total = n;
	ist_err e = IST_OK;

	*done = NULL;
	if (f->flags & IST__FRAME_FIRST) {
		total = n >= 8 ? ist__load_u64(body) : 0;
		body += 8;
		n -= n >= 8 ? 8 : n;
		if (m || total < n) {
			e = ist__fail(err, IST_BAD_FORMAT, "message", "a message begins twice, or is longer than it says");
			goto out;
		}
	}
	if (!m) {
		if (total > limit) {
			e = ist__fail(err, IST_LIMIT, "message", "a message of %llu bytes is over the limit of %llu", (unsigned long long)total, (unsigned long long)limit);
			goto out;
		}
		m = msg_new(loop, f, total);
		if (!m) {
			e = ist__fail_memory(err, "message");
			goto out;
		}
		m->next = NULL;
		*at = m;
	}
	if (n > m->bytes - m->have) {
		e = ist__fail(err, IST_BAD_FORMAT, "message", "a message is longer than it says");
		goto out;
	}
	if (!make_room(loop, m, n)) {
		e = ist__fail_memory(err, "message");
		goto out;
	}
	if (n > 0)
		memcpy(m->body + m->have, body, n);
	m->have += n;
	if (!(f->flags & IST__FRAME_MORE)) {
		if (m->have != m->bytes) {
			e = ist__fail(err, IST_BAD_FORMAT, "message", "a message is shorter than it says");
			goto out;
		}
		*at = m->next;
		m->next = NULL;
		*done = m;
	}
out:
	ist__frame_free(loop, f);
	return e;
}
