/* SPDX-License-Identifier: Apache-2.0
 *
 * conn_test.c - connections on the library's own thread, where one may end before it has begun: an acceptor that closes
 * with a visitor just come. And messages put together from frames, whose sender may claim any length.
 */
#include "base/bytes.h"
#include "net/conn.h"
#include "net/msg.h"

#include <isthmus.h>

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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

/* ---- descriptors that are lent ---- */

/* A pair: a connection that is ready, and a plain socket to look at what it sends. */
static struct ist__conn *
open_pair(struct world *w)
{
	static const uint8_t key[64];
	static const struct ist__agreed agreed;
	struct ist__conn *conn;
	int fd[2];

	w->self = (struct ist__self){ .proto_min = 1, .proto_max = 1, .key = key };
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd), 0);
	w->other = fd[1];
	conn = ist__conn_handed(w->loop, fd[0], &w->self, &agreed);
	assert_non_null(conn);
	ist__conn_attach(conn, &ops, w);
	return conn;
}

static struct ist__frame *
with_fd(struct ist__loop *loop, int fd)
{
	struct ist__frame *f = ist__frame_new(loop, 77, "\1", 1);

	assert_non_null(f);
	f->flags = IST__FRAME_HAS_FDS;
	f->fds[0] = fd;
	f->n_fds = 1;
	return f;
}

/* Reads until a descriptor comes, which must be that of one_byte. */
static void
expect_fd(int sock)
{
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
	static char room[65536];
	int fd = -1;
	char x = 0;

	for (;;) {
		struct iovec v = { room, sizeof(room) };
		struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes) };
		struct pollfd p = { .fd = sock, .events = POLLIN };

		assert_int_equal(poll(&p, 1, 10000), 1);
		assert_true(recvmsg(sock, &m, 0) > 0);
		if (!CMSG_FIRSTHDR(&m))
			continue;
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
		break;
	}
	assert_int_equal(read(fd, &x, 1), 1);
	assert_int_equal(x, 'x');
	close(fd);
}

/* The read end of a pipe with one byte in it. */
static int
one_byte(void)
{
	int fd[2];

	assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
	assert_int_equal(write(fd[1], "x", 1), 1);
	close(fd[1]);
	return fd[0];
}

/* Frames until some wait for room. */
static void
fill(struct ist__loop *loop, struct ist__conn *conn)
{
	while (ist__conn_queued(conn) == 0) {
		struct ist__frame *f = ist__frame_new(loop, 77, NULL, 65536);

		assert_non_null(f);
		memset(f->body, 0, f->bytes);
		assert_true(ist__conn_send(conn, f));
	}
}

/* The number that the next descriptor gets: it tells whether one more is open. */
static int
next_fd(void)
{
	int fd = dup(0);

	assert_true(fd >= 0);
	close(fd);
	return fd;
}

static void
lent_descriptors_are_copied_only_where_they_wait(void **unused)
{
	struct ist_env *env;
	struct world w = { .loop = loop_of(&env) };
	struct ist__conn *conn = open_pair(&w);
	int fd = one_byte(), next = next_fd();

	(void)unused;
	assert_int_equal(ist__conn_send_lent(conn, with_fd(w.loop, fd)), 0);
	assert_int_equal(next_fd(), next); /* nothing was copied */
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC); /* nor closed */
	expect_fd(w.other);
	close(fd);
	fill(w.loop, conn);
	fd = one_byte();
	assert_int_equal(ist__conn_send_lent(conn, with_fd(w.loop, fd)), 0);
	close(fd); /* the lender's; what waits has its own */
	expect_fd(w.other);
	ist__conn_close(conn, false);
	close(w.other);
	ist_env_free(env);
}

static void
lent_descriptors_that_cant_be_copied_are_told(void **unused)
{
	struct ist_env *env;
	struct world w = { .loop = loop_of(&env) };
	struct ist__conn *conn = open_pair(&w);
	int fd = one_byte();
	struct rlimit was, none;
	uint64_t queued;

	(void)unused;
	fill(w.loop, conn);
	queued = ist__conn_queued(conn);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
	none = (struct rlimit){ .rlim_cur = 0, .rlim_max = was.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_not_equal(ist__conn_send_lent(conn, with_fd(w.loop, fd)), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
	assert_int_equal(ist__conn_queued(conn), queued); /* nothing of it is on its way */
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(ist__conn_send_lent(conn, with_fd(w.loop, fd)), 0); /* and the connection lives */
	expect_fd(w.other);
	close(fd);
	ist__conn_close(conn, false);
	close(w.other);
	ist_env_free(env);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(may_end_before_it_begins),
		cmocka_unit_test(memory_comes_with_the_bytes),
		cmocka_unit_test(many_pieces_are_one_message),
		cmocka_unit_test(lent_descriptors_are_copied_only_where_they_wait),
		cmocka_unit_test(lent_descriptors_that_cant_be_copied_are_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
