/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_frames.c - what comes in over a connection: bytes in place of a hello, or, after a good hello, bytes in place of
 * frames, which are put together to messages and read as everything that travels. First byte of the input: which.
 */
#include "peer.h"

#include "base/bytes.h"
#include "base/fail.h"
#include "group/card.h"
#include "meet/status.h"
#include "net/msg.h"

#include <isthmus.h>

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct rig {
	struct ist_env *env;
	struct ist__loop *loop;
	struct ist__self self;
	uint8_t key[IST__KEY_BYTES];
	struct ist__msg *partials;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool over;
};

static void
read_as_everything(const struct ist__msg *m)
{
	struct ist__reader r;
	struct ist__card card;
	struct ist__status status;
	struct ist_error err;
	char text[64];
	uint64_t n;

	ist_error_init(&err);
	ist__reader_init(&r, m->body, m->bytes);
	if (ist__card_get(&r, &card))
		must(memchr(card.addr, 0, sizeof(card.addr)) && memchr(card.host, 0, sizeof(card.host)));
	ist__reader_init(&r, m->body, m->bytes);
	if (ist__status_get(&r, &status))
		must(memchr(status.group, 0, sizeof(status.group)) && memchr(status.state, 0, sizeof(status.state)));
	ist__reader_init(&r, m->body, m->bytes);
	if (ist__get_error(&r, &err))
		must(err.n_ranks <= IST_ERROR_RANKS && err.n_per_rank <= IST_ERROR_RANKS && memchr(err.detail, 0, sizeof(err.detail)));
	ist__reader_init(&r, m->body, m->bytes);
	while (!r.bad && r.left > 0) {
		ist__get_str(&r, text, sizeof(text));
		if (ist__get_blob(&r, &n))
			must(n <= m->bytes);
	}
}

static void
on_frame(struct ist__conn *conn, void *owner, struct ist__frame *frame)
{
	struct rig *rig = owner;
	struct ist__msg *m = NULL;

	(void)conn;
	if (ist__msg_take(rig->loop, &rig->partials, frame, 4 << 20, &m, NULL) == IST_OK && m) {
		must(m->have == m->bytes);
		read_as_everything(m);
		ist__msg_free(rig->loop, m);
	}
}

static void
on_closed(struct ist__conn *conn, void *owner, const struct ist_error *err)
{
	struct rig *rig = owner;

	(void)conn;
	must(err && err->code != IST_OK);
	pthread_mutex_lock(&rig->lock);
	rig->over = true;
	pthread_cond_signal(&rig->cond);
	pthread_mutex_unlock(&rig->lock);
}

static struct rig *
rig_get(void)
{
	static struct rig rig = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };

	if (!rig.env) {
		must(ist_env_new(NULL, &rig.env, NULL) == IST_OK);
		rig.loop = ist__loop_get(rig.env, NULL);
		ist__hello_key(NULL, 0, rig.key);
		rig.self = (struct ist__self){ .proto_min = 1, .proto_max = 1, .features = IST__FEATURES, .key = rig.key };
	}
	rig.over = false;
	return &rig;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct ist__conn_ops ops = { .frame = on_frame, .closed = on_closed };
	struct rig *rig = rig_get();
	struct ist__conn *conn;
	int fd[2];

	if (size == 0)
		return 0;
	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0);
	conn = ist__conn_new(rig->loop, fd[0], data[0] & 1 ? IST__RESPONDER : data[0] & 2 ? IST__INITIATOR : IST__RESPONDER, &rig->self, INT64_MAX);
	must(conn != NULL);
	ist__conn_attach(conn, &ops, rig);
	if (data[0] & 1)
		(void)peer_dials(fd[1], &rig->self);
	peer_put(fd[1], data + 1, size - 1);
	shutdown(fd[1], SHUT_WR);
	pthread_mutex_lock(&rig->lock);
	while (!rig->over)
		pthread_cond_wait(&rig->cond, &rig->lock);
	pthread_mutex_unlock(&rig->lock);
	ist__conn_close(conn, false);
	close(fd[1]);
	while (rig->partials) {
		struct ist__msg *m = rig->partials;

		rig->partials = m->next;
		ist__msg_free(rig->loop, m);
	}
	return 0;
}
