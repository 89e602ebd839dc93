/* SPDX-License-Identifier: Apache-2.0
 *
 * conn_test.c - connections on the library's own thread, where one may end before it has begun: an acceptor that closes
 * with a visitor just come. And messages put together from frames, whose sender may claim any length.
 */
#include "base/bytes.h"
#include "net/conn.h"
#include "net/msg.h"

#include <isthmus.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

enum { ROUNDS = 20 };

struct world {
	struct ist__loop *loop;
	struct ist__self self;
	struct ist__job after;
	int ran, closed, other;
};

static void
count(struct ist__job *job)
{
	struct world *w = (struct world *)(void *)((char *)job - offsetof(struct world, after));

	w->ran++;
}

static void
on_frame(struct ist__conn *conn, void *owner, struct ist__frame *frame)
{
	(void)owner;
	ist__frame_free(ist__conn_loop(conn), frame);
}

static void
on_closed(struct ist__conn *conn, void *owner, const struct ist_error *err)
{
	(void)conn;
	(void)err;
	((struct world *)owner)->closed++;
}

static const struct ist__conn_ops ops = { .frame = on_frame, .closed = on_closed };

/* On the loop's thread: attaching is asked for, and closed before it was done; a job stands behind. */
static void
begin_and_end(void *arg)
{
	struct world *w = arg;
	int fd[2];
	struct ist__conn *conn;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd))
		return;
	w->other = fd[1];
	conn = ist__conn_new(w->loop, fd[0], IST__RESPONDER, &w->self, INT64_MAX);
	if (!conn)
		return;
	ist__conn_attach(conn, &ops, w);
	ist__loop_post(w->loop, &w->after);
	ist__conn_close(conn, false);
}

static void
nothing(void *arg)
{
	(void)arg;
}

static void
may_end_before_it_begins(void **unused)
{
	static const uint8_t key[64];
	struct ist_env *env;

	(void)unused;
	assert_int_equal(ist_env_new(NULL, &env, NULL), IST_OK);
	for (int i = 0; i < ROUNDS; i++) {
		struct world w = { .loop = ist__loop_get(env, NULL), .self = { .proto_min = 1, .proto_max = 1, .key = key }, .after.run = count, .other = -1 };
		char end;

		assert_non_null(w.loop);
		ist__loop_run(w.loop, begin_and_end, &w);
		ist__loop_run(w.loop, nothing, NULL);
		ist__loop_run(w.loop, nothing, NULL);
		assert_int_equal(w.ran, 1);
		assert_int_equal(w.closed, 0); /* who closes is not told */
		assert_int_equal(read(w.other, &end, 1), 0);
		close(w.other);
	}
	ist_env_free(env);
}

static struct ist__loop *
loop_of(struct ist_env **env)
{
	struct ist__loop *loop;

	assert_int_equal(ist_env_new(NULL, env, NULL), IST_OK);
	loop = ist__loop_get(*env, NULL);
	assert_non_null(loop);
	return loop;
}

static void
memory_comes_with_the_bytes(void **unused)
{
	struct ist_env *env;
	struct ist__loop *loop = loop_of(&env);
	struct ist__msg *partials = NULL, *done = NULL;
	struct ist__frame *f = ist__frame_new(loop, 77, NULL, 8 + 100);

	(void)unused;
	assert_non_null(f);
	memset(f->body, 1, f->bytes);
	ist__store_u64(f->body, UINT64_C(1) << 32);
	f->flags = IST__FRAME_FIRST | IST__FRAME_MORE;
	assert_int_equal(ist__msg_take(loop, &partials, f, UINT64_MAX, &done, NULL), IST_OK);
	assert_null(done);
	assert_non_null(partials);
	assert_true(partials->room <= 1000);
	ist__msg_free(loop, partials);
	ist_env_free(env);
}

struct taker {
	struct ist__loop *loop;
	struct ist__msg *partials, *done;
	int frames;
};

static bool
take(void *arg, struct ist__frame *f)
{
	struct taker *t = arg;

	assert_null(t->done);
	t->frames++;
	return ist__msg_take(t->loop, &t->partials, f, UINT64_MAX, &t->done, NULL) == IST_OK;
}

static void
many_pieces_are_one_message(void **unused)
{
	enum { BYTES = 7 * IST__MSG_PIECE + 13 };
	struct ist_env *env;
	struct taker t = { .loop = loop_of(&env) };
	const struct ist__msg head = { .type = 77, .seq = 3, .from = 1 };
	uint8_t *body = malloc(BYTES);

	(void)unused;
	assert_non_null(body);
	for (size_t i = 0; i < BYTES; i++)
		body[i] = (uint8_t)(i * 31 >> 3);
	assert_true(ist__msg_cut(t.loop, &head, body, BYTES, take, &t));
	assert_int_equal(t.frames, 8);
	assert_null(t.partials);
	assert_non_null(t.done);
	assert_int_equal(t.done->bytes, BYTES);
	assert_memory_equal(t.done->body, body, BYTES);
	ist__msg_free(t.loop, t.done);
	free(body);
	ist_env_free(env);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(may_end_before_it_begins),
		cmocka_unit_test(memory_comes_with_the_bytes),
		cmocka_unit_test(many_pieces_are_one_message),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
