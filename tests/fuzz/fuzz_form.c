/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_form.c - one member of two while a group forms, and the other one is the input: as rank 0's only member (it joins,
 * then says anything), or as the rank 0 that a member has dialled. The call ends, as a rule with an error, and
 * nothing of it is left.
 *
 * Input: u8 how, then steps: u8 kind, u8 sequence, u16 length and bytes. A good hello and a good beginning come first
 * where how says so.
 */
#include "peer.h"

#include "base/fail.h"
#include "group/group.h"
#include "net/wire.h"

#include <isthmus.h>

#include <arpa/inet.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STEPS = 16, OTHER = 7 };

struct rig {
	struct ist_env *env;
	struct ist_endpoint *ep;
	int listen_fd;              /* where the rank 0 that we play is dialled */
	uint8_t own[IST_ADDRESS_BYTES], other[IST_ADDRESS_BYTES];
	uint64_t own_bytes, other_bytes;
	struct ist__card card;      /* of the endpoint */
	struct ist__card played;    /* of the other one */
	struct ist__self self;
	uint8_t key[IST__KEY_BYTES];
};

static void
play(struct rig *rig)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(at);
	struct ist__writer w;
	struct ist__ctx ctx;

	rig->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(rig->listen_fd >= 0 && !bind(rig->listen_fd, (struct sockaddr *)&at, n) && !listen(rig->listen_fd, 64));
	must(!getsockname(rig->listen_fd, (struct sockaddr *)&at, &n));
	peer_init(&rig->self, rig->key, OTHER);
	memset(rig->played.id, OTHER, sizeof(rig->played.id));
	snprintf(rig->played.host, sizeof(rig->played.host), "elsewhere");
	snprintf(rig->played.addr, sizeof(rig->played.addr), "127.0.0.1:%u", ntohs(at.sin_port));
	ist__ctx_init(&ctx);
	ist__writer_init(&w, &ctx);
	ist__card_put(&w, &rig->played);
	must(!w.bad && w.bytes <= sizeof(rig->other));
	memcpy(rig->other, w.at, rig->other_bytes = w.bytes);
	ist__writer_fini(&w);
}

static struct rig *
rig_get(void)
{
	static struct rig rig;
	struct ist_endpoint_args args = { .struct_size = sizeof(args), .bind = "127.0.0.1" };
	struct ist__reader r;

	if (rig.env)
		return &rig;
	must(ist_env_new(NULL, &rig.env, NULL) == IST_OK && ist_endpoint_new(rig.env, &args, &rig.ep, NULL) == IST_OK);
	rig.own_bytes = sizeof(rig.own);
	must(ist_endpoint_address(rig.ep, rig.own, &rig.own_bytes, NULL) == IST_OK);
	ist__reader_init(&r, rig.own, rig.own_bytes);
	must(ist__card_get(&r, &rig.card));
	play(&rig);
	return &rig;
}

static int
dial(const struct ist__card *card)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const char *port = strrchr(card->addr, ':');
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	must(port != NULL);
	at.sin_port = htons((uint16_t)atoi(port + 1));
	must(fd >= 0 && !connect(fd, (struct sockaddr *)&at, sizeof(at)));
	return fd;
}

/* What rank 1 says first. key is in the member's own form: it is asked of a group that is being formed. */
static void
join(struct rig *rig, int fd, const uint8_t key[IST__GROUP_KEY])
{
	struct peer_frame f = { .type = IST__JOIN, .from = 1 };
	struct ist__writer w;
	struct ist__ctx ctx;

	ist__ctx_init(&ctx);
	ist__writer_init(&w, &ctx);
	ist__put_bytes(&w, key, IST__GROUP_KEY);
	ist__put_str(&w, "fuzz");
	ist__put_u32(&w, 1);
	ist__put_u32(&w, 2);
	ist__put_u32(&w, IST_TRANSPORT_TCP);
	ist__put_u32(&w, 0);
	ist__put_u32(&w, 0);
	ist__put_u64(&w, 0);
	ist__put_str(&w, "auto");
	ist__card_put(&w, &rig->played);
	must(!w.bad);
	peer_send(fd, &f, w.at, (uint32_t)w.bytes);
	ist__writer_fini(&w);
}

/* A roll-call of the two, as rank 0 sends it. */
static void
roll(struct rig *rig, int fd)
{
	struct peer_frame f = { .type = IST__ROLL, .generation = 42 };
	struct ist__writer w;
	struct ist__ctx ctx;

	ist__ctx_init(&ctx);
	ist__writer_init(&w, &ctx);
	ist__put_u64(&w, 42);
	ist__put_u32(&w, 1);
	ist__put_u64(&w, IST__FEATURES);
	ist__put_u64(&w, 0);
	for (uint32_t r = 0; r < 2; r++) {
		ist__put_u32(&w, IST_TRANSPORT_TCP);
		ist__put_u32(&w, 0);
		ist__put_u32(&w, 0);
		ist__put_str(&w, "auto");
		ist__card_put(&w, r ? &rig->card : &rig->played);
	}
	must(!w.bad);
	peer_send(fd, &f, w.at, (uint32_t)w.bytes);
	ist__writer_fini(&w);
}

/* Frames of forming, with the bytes of the input for a body. A step's answer may be a good one: status 0 and bytes. */
static void
say(int fd, struct input *in, uint64_t generation, uint32_t from)
{
	static const uint16_t types[] = { IST__JOIN, IST__WAIT, IST__ROLL, IST__PHASE, IST__FAIL, IST__COMMIT, IST__LINK, IST__HOSTLINK, IST__FDS,
		IST__ASK, IST__ANSWER, IST__PING, IST__ABORT, IST__VOTE, 200, IST__PHASE };
	uint8_t kind = take_u8(in), seq = take_u8(in);
	struct peer_frame f = { .type = types[kind & 15], .seq = seq & 7, .generation = generation, .from = kind & 16 ? seq : from };
	size_t n;
	const uint8_t *body = take_piece(in, &n);

	f.flags = (uint16_t)((kind & 32 ? IST__FRAME_CRITICAL : 0) | (kind & 64 ? IST__FRAME_FIRST : 0) | (kind & 128 ? IST__FRAME_MORE : 0));
	peer_send(fd, &f, body, (uint32_t)n);
}

static uint64_t
generation_of(int fd)
{
	struct peer_frame f;

	while (peer_next(fd, &f))
		if (f.type == IST__ROLL && f.bytes >= 8)
			return f.generation;
		else if (f.type == IST__FAIL)
			break;
	return 0;
}

static struct ist_req *
begin(struct rig *rig, uint32_t rank)
{
	struct ist_address all[2];
	struct ist_group_args args = { .struct_size = sizeof(args), .rank = rank, .size = 2, .name = "fuzz", .addresses = all,
		.timeout_ns = 20 * IST_NS_PER_S };
	struct ist_error err;
	struct ist_req *req = NULL;

	all[rank] = (struct ist_address){ rig->own, rig->own_bytes };
	all[!rank] = (struct ist_address){ rig->other, rig->other_bytes };
	ist_error_init(&err);
	must(ist_group_new_start(rig->ep, &args, &req, &err) == IST_OK);
	return req;
}

static void
finish(struct ist_req *req)
{
	struct ist_group *g = NULL;
	struct ist_error err;
	ist_err e;

	ist_error_init(&err);
	must(ist_req_cancel(req) != IST_BAD_HANDLE);
	e = ist_req_wait(req, 20 * IST_NS_PER_S, &err);
	must(e == err.code); /* which one, and in what words, may be the other side's own */
	if (!e) { /* the input has found all the right words */
		must(ist_req_group(req, &g, NULL) == IST_OK && ist_group_free(g) == IST_OK);
	}
	ist_req_free(req);
}

/* By what claims are matched: see make_key in src/group/form.c. */
static void
group_key(const char *name, const struct rig *rig, uint8_t out[IST__GROUP_KEY])
{
	static const char label[] = "isthmus group 1";
	crypto_generichash_state st;

	crypto_generichash_init(&st, NULL, 0, IST__GROUP_KEY);
	crypto_generichash_update(&st, (const uint8_t *)label, sizeof(label));
	crypto_generichash_update(&st, (const uint8_t *)name, strlen(name) + 1);
	crypto_generichash_update(&st, rig->card.id, IST__MEMBER_BYTES);
	crypto_generichash_update(&st, rig->played.id, IST__MEMBER_BYTES);
	crypto_generichash_final(&st, out, IST__GROUP_KEY);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rig *rig = rig_get();
	struct input in = { data, size };
	uint8_t how = take_u8(&in), key[IST__GROUP_KEY];
	uint32_t rank = how & 1;
	uint64_t generation = 0;
	struct ist_req *req = begin(rig, rank);
	int fd;

	if (rank == 0) {
		fd = dial(&rig->card);
		group_key("fuzz", rig, key);
		must(peer_dials(fd, &rig->self));
		if (how & 2) {
			join(rig, fd, key);
			generation = generation_of(fd);
		}
	} else {
		struct peer_frame f;

		do
			fd = accept4(rig->listen_fd, NULL, NULL, SOCK_CLOEXEC);
		while (fd < 0 && errno == EINTR);
		must(fd >= 0 && peer_answers(fd, &rig->self) && peer_next(fd, &f) && f.type == IST__JOIN);
		if (how & 2)
			roll(rig, fd);
		generation = how & 2 ? 42 : 0;
	}
	for (int i = 0; in.left > 0 && i < STEPS; i++)
		say(fd, &in, generation, rank == 0);
	shutdown(fd, SHUT_WR);
	finish(req);
	close(fd);
	return 0;
}
