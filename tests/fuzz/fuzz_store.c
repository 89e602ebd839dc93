/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_store.c - a meeting place and three visitors who say what the input wants, in its order: questions of the protocol
 * with a few names, frames of any kind, plain bytes, and going away in the middle. Whoever is still there in the end has an
 * answer to ASK, and the place comes down with nothing left.
 *
 * Input: steps of u8 (visitor, what), then what that needs.
 */
#include "peer.h"

#include "meet/store.h"
#include "net/wire.h"

#include <isthmus.h>

#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { VISITORS = 3, LAST = 0xE0D };

static struct ist__loop *
loop_get(void)
{
	static struct ist_env *env;

	if (!env)
		must(ist_env_new(NULL, &env, NULL) == IST_OK);
	return ist__loop_get(env, NULL);
}

static int
listen_here(struct sockaddr_un *at, socklen_t *bytes)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	*at = (struct sockaddr_un){ .sun_family = AF_UNIX };
	must(fd >= 0 && bind(fd, (struct sockaddr *)at, sizeof(at->sun_family)) == 0 && listen(fd, 16) == 0); /* a name of the kernel's choice */
	*bytes = sizeof(*at);
	must(getsockname(fd, (struct sockaddr *)at, bytes) == 0);
	return fd;
}

static void
put_name(struct ist__writer *w, uint8_t which)
{
	static const char *const names[] = { "", "own", "a", "another group", "\xc3\xa9", "a/b", "own ", "x" };

	ist__put_str(w, names[which % 8]);
}

/* A question as a member would put it. */
static void
ask(int fd, struct input *in)
{
	static const uint16_t types[] = { IST__PUBLISH, IST__FIND, IST__TELL, IST__LIST, IST__NOTE, IST__ASK, IST__ANSWER, 200 };
	struct peer_frame f = { .type = types[take_u8(in) % 8] };
	struct ist__writer w;
	struct ist__ctx ctx;
	uint8_t name = take_u8(in), number = take_u8(in);

	ist__ctx_init(&ctx);
	ist__writer_init(&w, &ctx);
	f.seq = number;
	f.flags = name >> 7;
	put_name(&w, name);
	if (f.type == IST__PUBLISH) {
		ist__put_str(&w, "host");
		ist__put_u64(&w, number);
		ist__put_blob(&w, "card", 4);
	} else if (f.type == IST__TELL) {
		ist__put_str(&w, "host");
		ist__put_str(&w, "CLEAN");
		ist__put_u32(&w, number % 4);
		for (int i = 0; i < 4; i++)
			ist__put_u64(&w, number);
	} else if (f.type == IST__FIND || f.type == IST__NOTE) {
		ist__put_u32(&w, number % 4);
		ist__put_u32(&w, 4);
	}
	peer_send(fd, &f, w.at, (uint32_t)w.bytes);
	ist__writer_fini(&w);
}

static void
say(int fd, struct input *in)
{
	struct peer_frame f = { .type = take_u8(in) };
	size_t n;
	const uint8_t *at;

	f.flags = take_u8(in) & (0xFF & ~IST__FRAME_HAS_FDS);
	f.seq = take_u8(in);
	at = take_piece(in, &n);
	peer_send(fd, &f, at, (uint32_t)n);
}

static int
come(const struct sockaddr_un *at, socklen_t bytes, uint8_t id)
{
	uint8_t key[IST__KEY_BYTES];
	struct ist__self self;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	must(fd >= 0 && connect(fd, (const struct sockaddr *)at, bytes) == 0);
	peer_init(&self, key, id);
	must(peer_dials(fd, &self));
	return fd;
}

static void
go(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void
await_last(int fd)
{
	struct peer_frame ask = { .type = IST__ASK, .seq = LAST }, f;

	peer_send(fd, &ask, NULL, 0);
	while (peer_next(fd, &f) && (f.type != IST__ANSWER || f.seq != LAST))
		continue;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct ist__loop *loop = loop_get();
	uint8_t key[IST__KEY_BYTES];
	struct ist__self self;
	struct ist__store_args args = { .loop = loop, .self = &self, .own = take_u8(&in) & 1 ? "own" : "" };
	struct ist__store *store;
	struct sockaddr_un at;
	socklen_t bytes;
	int fd[VISITORS] = { -1, -1, -1 };

	peer_init(&self, key, 99);
	args.fd = listen_here(&at, &bytes);
	store = ist__store_new(&args, NULL);
	must(store != NULL);
	for (int steps = 0; in.left > 0 && steps < 64; steps++) {
		uint8_t how = take_u8(&in), who = how % VISITORS;
		size_t n;

		if (fd[who] < 0)
			fd[who] = come(&at, bytes, how & 4 ? who : 1);
		switch (how >> 5) {
		case 0:
			go(&fd[who]);
			break;
		case 1:
			say(fd[who], &in);
			break;
		case 2: {
			const uint8_t *p = take_piece(&in, &n);

			peer_put(fd[who], p, n);
			go(&fd[who]); /* where it stands in a frame nobody knows */
			break;
		}
		default:
			ask(fd[who], &in);
			break;
		}
	}
	for (int i = 0; i < VISITORS; i++)
		if (fd[i] >= 0)
			await_last(fd[i]);
	ist__store_free(store);
	for (int i = 0; i < VISITORS; i++)
		go(&fd[i]);
	return 0;
}
