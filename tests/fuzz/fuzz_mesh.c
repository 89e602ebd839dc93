/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_mesh.c - a member of a formed group, and what its neighbours send: frames of the mesh, of byte strings and votes,
 * of comparisons, in any order and cut in any way, and links that end. The member is in an operation of its own and takes
 * from what has come; in the end it leaves.
 *
 * Input: u8 size of the group, then steps of u8 (link, what).
 */
#include "fuzz.h"

#include "base/fail.h"
#include "group/group.h"
#include "mem_backend.h"
#include "net/wire.h"

#include <sys/socket.h>
#include <unistd.h>

enum { GENERATION = 42, STEPS = 64, PAIRS = 16 };

struct rig {
	struct ist_env *env;
	struct ist_endpoint *ep;
	struct ist__group *g;
	struct mem_hub *hub;
	int far[PAIRS]; /* the neighbours' ends, never read */
};

struct step {
	struct rig *rig;
	struct ist__link *link;
	struct ist__frame *frame; /* NULL: the link ends */
};

static void
start(struct rig *rig)
{
	struct ist_endpoint_args args = { .struct_size = sizeof(args), .bind = "127.0.0.1" };

	if (rig->env)
		return;
	must(ist_env_new(NULL, &rig->env, NULL) == IST_OK);
	must(ist_endpoint_new(rig->env, &args, &rig->ep, NULL) == IST_OK);
	must(ist__groups_get(rig->env, &(struct ist__groups *){ NULL }, NULL) == IST_OK);
}

static void
link_up(struct rig *rig, uint32_t i, uint32_t to)
{
	struct ist__group *g = rig->g;
	int fd[2];

	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd) == 0);
	rig->far[i] = fd[1];
	g->links[i] = (struct ist__link){ .group = g, .rank = to };
	g->links[i].conn = ist__conn_new(g->loop, fd[0], IST__RESPONDER, &g->ep->self, INT64_MAX);
	must(g->links[i].conn != NULL);
	g->link_of[to] = (int32_t)i;
}

static void
make(struct rig *rig, uint32_t size)
{
	static const struct mem_options plain = { .fail_rank = -1, .block_rank = -1 };
	struct ist__line_args line = { .env = rig->env, .rank = 0, .size = size };
	struct ist__group *g = rig->g = ist__group_make(rig->ep->ep, size, NULL);
	uint32_t nb[64], n = ist__mesh_neighbours(0, size, nb);

	must(g != NULL && n <= PAIRS);
	g->timeout_ns = g->no_progress_ns = IST_NS_PER_S;
	g->generation = GENERATION;
	g->name = ist__strdup(g->ctx, "fuzz");
	g->links = ist__alloc(g->ctx, n * sizeof(*g->links));
	must(g->name && g->links);
	must(ist__check_prepare(g, NULL) == IST_OK);
	for (uint32_t r = 0; r < size; r++)
		g->link_of[r] = -1;
	for (uint32_t i = 0; i < n; i++)
		link_up(rig, i, nb[i]);
	g->n_links = n;
	rig->hub = mem_hub_new(size, &plain);
	line.backend = mem_admitted(rig->hub);
	line.chan = mem_chan(rig->hub, 0);
	must(ist__line_new(&line, &g->line, NULL) == IST_OK);
	ist__line_hold(g->line);
}

static void
unmake(struct rig *rig)
{
	uint32_t n = rig->g->n_links;

	ist__group_close(rig->g);
	ist__group_unref(rig->g);
	mem_hub_free(rig->hub);
	for (uint32_t i = 0; i < n; i++)
		close(rig->far[i]);
}

static void
happen(void *arg)
{
	struct step *s = arg;
	struct ist_error e;

	if (s->frame) {
		ist__link_ops.frame(s->link->conn, s->link, s->frame);
		return;
	}
	ist_error_init(&e);
	ist__fail(&e, IST_PEER_LOST, "fuzz", "the link ended");
	ist__link_ops.closed(s->link->conn, s->link, &e);
}

/* Mostly what the mesh knows, from and to members that there are. */
static struct ist__frame *
frame_of(struct rig *rig, struct input *in)
{
	static const uint16_t types[] = { IST__PING, IST__LOST, IST__LEFT, IST__ABORT, IST__CHECK, IST__WHO, IST__HERE, IST__HELD, IST__HELD_ASK,
		IST__BARRIER, IST__BROADCAST, IST__GATHER, IST__ALL_GATHER, IST__SEND, IST__VOTE, 999 };
	uint8_t type = take_u8(in), flags = take_u8(in), seq = take_u8(in), who = take_u8(in);
	size_t n;
	const uint8_t *body = take_piece(in, &n);
	struct ist__frame *f = ist__frame_new(rig->g->loop, types[type % 16], body, n);

	must(f != NULL);
	f->flags = (uint16_t)((flags & (IST__FRAME_CRITICAL | IST__FRAME_FIRST | IST__FRAME_MORE | IST__FRAME_URGENT)) | (flags >> 5) << 8);
	f->seq = f->type >= IST__BARRIER && f->type != IST__SEND ? (uint64_t)seq >> 2 << 8 | (seq & 1u) | (seq & 2u) << 5 : seq % 8;
	f->generation = type & 0x40 ? seq : GENERATION;
	f->from = who & 0x80 ? UINT32_MAX - who : (who & 15) % rig->g->size;
	f->to = type & 0x10 ? IST__ALL : who & 0x40 ? who : ((who >> 4) & 3) % rig->g->size;
	return f;
}

/* The operation at hand looks at what has come, and ends. */
static void
take_part(struct rig *rig, uint64_t seq, uint16_t type)
{
	struct ist__group *g = rig->g;
	struct ist_blob *have = calloc(g->size, sizeof(*have));
	bool *is = calloc(g->size, sizeof(*is));
	struct ist_error e;

	must(have && is);
	ist_error_init(&e);
	ist__fail(&e, IST_ABORTED, "fuzz", "enough");
	ist__mesh_break(g, &e, true);
	must(ist__objects_all_gather(g, type, seq, "mine", 4, 0, have, is, &e) == e.code);
	(void)ist__objects_barrier(g, type, seq, 0, NULL);
	ist__objects_end(g);
	for (uint32_t r = 0; r < g->size; r++)
		must(!is[r] || have[r].addr);
	ist__objects_drop(g, have, g->size);
	free(have);
	free(is);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct rig rig;
	struct input in = { data, size };
	uint8_t how = take_u8(&in), print[IST__PRINT_BYTES];
	uint16_t type = how & 0x40 ? IST__VOTE : IST__ALL_GATHER;
	uint64_t seq = 0, entered = 0;

	start(&rig);
	make(&rig, 2 + how % 7);
	if (ist__objects_begin(rig.g, "fuzz", type, 0, &seq, NULL) != IST_OK)
		abort();
	for (int i = 0; in.left > 0 && i < STEPS; i++) {
		uint8_t what = take_u8(&in);
		struct step s = { .rig = &rig, .link = &rig.g->links[(what & 15) % rig.g->n_links] };

		if (what >> 5 == 7) { /* enters a bulk operation */
			memset(print, what & 3, sizeof(print));
			ist__check_entered(rig.g, entered++, print);
			continue;
		}
		if (!s.link->conn)
			continue;
		if (what >> 5 != 6)
			s.frame = frame_of(&rig, &in);
		ist__loop_run(rig.g->loop, happen, &s);
	}
	take_part(&rig, seq, type);
	unmake(&rig);
	return 0;
}
