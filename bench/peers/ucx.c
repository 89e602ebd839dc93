/* SPDX-License-Identifier: Apache-2.0
 *
 * ucx.c - a peer: UCX by itself. It has sends and one-sided reads between two processes and no collectives, so a broadcast
 * here is the first rank's send to each of the others (tag), its writes into their memory (put), or their reads from it
 * (get); over shared memory also with memory that UCX has allocated, which its processes map of each other. A barrier is an
 * all-gather of nothing.
 */
#include "crew.h"

#include <sched.h>
#include <ucp/api/ucp.h>

#define BARRIERS 500
#define GATHERS 200

struct self {
	const struct peer_args *args;
	struct crew *crew;
	int rank, ranks;
	ucp_context_h context;
	ucp_worker_h worker;
	ucp_ep_h ep[PEER_RANKS];
	struct peer_arena arena;
	struct peer_arena plain, own;    /* whose memory: the program's, UCX's */
	struct shared {
		bool made;
		ucp_mem_h mem;           /* the arena, registered */
		ucp_rkey_h rkey[PEER_RANKS];
		uint64_t base[PEER_RANKS];
	} of_plain, of_own, *shared;
};

static void
spin(struct self *self)
{
	if (!ucp_worker_progress(self->worker))
		sched_yield(); /* ranks may outnumber cores */
}

/* Waits for a request, or says that it was none. */
static bool
done(struct self *self, void *req)
{
	ucs_status_t status;

	if (!UCS_PTR_IS_PTR(req))
		return UCS_PTR_STATUS(req) == UCS_OK;
	while ((status = ucp_request_check_status(req)) == UCS_INPROGRESS)
		spin(self);
	ucp_request_free(req);
	return status == UCS_OK;
}

/* ---- making ---- */

static bool
open_worker(struct self *self)
{
	ucp_params_t cp = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA };
	ucp_worker_params_t wp = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_config_t *config;
	ucs_status_t status;

	if (ucp_config_read(NULL, NULL, &config) != UCS_OK)
		return false;
	status = ucp_init(&cp, config, &self->context);
	ucp_config_release(config);
	return status == UCS_OK && ucp_worker_create(self->context, &wp, &self->worker) == UCS_OK;
}

static bool
tell_address(struct self *self)
{
	ucp_address_t *address;
	size_t n;

	if (ucp_worker_get_address(self->worker, &address, &n) != UCS_OK)
		return false;
	if (n <= sizeof(self->crew->room[0])) {
		memcpy(self->crew->room[self->rank], address, n);
		self->crew->room_bytes[self->rank] = (uint32_t)n;
	}
	ucp_worker_release_address(self->worker, address);
	return n <= sizeof(self->crew->room[0]);
}

static bool
open_endpoints(struct self *self)
{
	for (int i = 0; i < self->ranks; i++) {
		ucp_ep_params_t ep = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = (void *)self->crew->room[i] };

		if (i != self->rank && ucp_ep_create(self->worker, &ep, &self->ep[i]) != UCS_OK)
			return false;
	}
	return true;
}

/* Everybody sends bytes to everybody. all: ranks * bytes. */
static bool
all_gather(struct self *self, const uint8_t *mine, uint8_t *all, uint64_t bytes)
{
	static const ucp_request_param_t plain;
	void *req[2 * PEER_RANKS];
	int n = 0;
	bool good = true;

	for (int i = 0; i < self->ranks; i++)
		if (i != self->rank) {
			req[n++] = ucp_tag_recv_nbx(self->worker, all + (uint64_t)i * bytes, bytes, (ucp_tag_t)i, UINT64_MAX, &plain);
			req[n++] = ucp_tag_send_nbx(self->ep[i], mine, bytes, (ucp_tag_t)self->rank, &plain);
		}
	for (int i = 0; i < n; i++)
		good = done(self, req[i]) && good;
	return good;
}

static bool
open_all(struct self *self)
{
	bool good = open_worker(self) && tell_address(self);
	uint8_t all[PEER_RANKS];

	crew_meet(self->crew);
	/* the first bytes make the connections */
	return good && open_endpoints(self) && all_gather(self, all, all, 0);
}

static void
close_all(struct self *self)
{
	ucp_request_param_t force = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE };

	crew_meet(self->crew);
	for (int i = 0; i < self->ranks; i++)
		if (self->ep[i])
			(void)done(self, ucp_ep_close_nbx(self->ep[i], &force));
	memset(self->ep, 0, sizeof(self->ep));
	crew_meet(self->crew);
	ucp_worker_destroy(self->worker);
	ucp_cleanup(self->context);
}

/* Everybody can read and write everybody's arena from here on. mp: NULL address: UCX allocates it. */
static bool
share_arena(struct self *self, struct shared *s, struct peer_arena *arena)
{
	ucp_mem_map_params_t mp = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
		.address = arena->base, .length = arena->bytes, .flags = arena->base ? 0 : UCP_MEM_MAP_ALLOCATE };
	ucp_mem_attr_t attr = { .field_mask = UCP_MEM_ATTR_FIELD_ADDRESS };
	struct crew *crew = self->crew;
	bool good = ucp_mem_map(self->context, &mp, &s->mem) == UCS_OK;
	void *packed;
	size_t n = 0;

	s->made = true;
	if (good && !arena->base) {
		good = ucp_mem_query(s->mem, &attr) == UCS_OK;
		arena->base = good ? attr.address : NULL;
		if (good)
			memset(arena->base, 0x5a, arena->bytes);
	}
	crew->word[self->rank] = (uint64_t)(uintptr_t)arena->base;
	if (good && ucp_rkey_pack(self->context, s->mem, &packed, &n) == UCS_OK) {
		good = n <= sizeof(crew->room[0]);
		memcpy(crew->room[self->rank], packed, good ? n : 0);
		ucp_rkey_buffer_release(packed);
	} else {
		good = false;
	}
	crew->mine[self->rank] = good ? 1 : 0;
	crew_meet(crew);
	for (int i = 0; i < self->ranks; i++)
		good = good && crew->mine[i] > 0;
	for (int i = 0; i < self->ranks; i++) {
		s->base[i] = crew->word[i];
		if (good && i != self->rank)
			good = ucp_ep_rkey_unpack(self->ep[i], crew->room[i], &s->rkey[i]) == UCS_OK;
	}
	crew_meet(crew);
	return good;
}

/* ---- what is measured ---- */

static bool
broadcast_tag(struct self *self, uint8_t *p, uint64_t bytes)
{
	static const ucp_request_param_t plain;
	void *req[PEER_RANKS];
	bool good = true;

	if (self->rank)
		return done(self, ucp_tag_recv_nbx(self->worker, p, bytes, 99, UINT64_MAX, &plain));
	for (int i = 1; i < self->ranks; i++)
		req[i] = ucp_tag_send_nbx(self->ep[i], p, bytes, 99, &plain);
	for (int i = 1; i < self->ranks; i++)
		good = done(self, req[i]) && good;
	return good;
}

/* The root helps until all have read; the place in its arena is known, as cuts go in step. */
static bool
broadcast_get(struct self *self, uint8_t *p, uint64_t bytes)
{
	static const ucp_request_param_t plain;
	uint8_t nothing[PEER_RANKS];
	uint64_t from = self->shared->base[0] + (uint64_t)(p - self->arena.base);

	if (self->rank && !done(self, ucp_get_nbx(self->ep[0], p, bytes, from, self->shared->rkey[0], &plain)))
		return false;
	return all_gather(self, nothing, nothing, 0);
}

/* All writes are issued before any is waited for; the flush says that they have arrived. */
static bool
broadcast_put(struct self *self, uint8_t *p, uint64_t bytes)
{
	static const ucp_request_param_t plain;
	uint8_t nothing[PEER_RANKS];
	uint64_t at = (uint64_t)(p - self->arena.base);
	void *req[PEER_RANKS];
	bool good = true;

	for (int i = 1; self->rank == 0 && i < self->ranks; i++)
		req[i] = ucp_put_nbx(self->ep[i], p, bytes, self->shared->base[i] + at, self->shared->rkey[i], &plain);
	for (int i = 1; self->rank == 0 && i < self->ranks; i++)
		good = done(self, req[i]) && good;
	if (self->rank == 0)
		good = done(self, ucp_worker_flush_nbx(self->worker, &plain)) && good;
	return all_gather(self, nothing, nothing, 0) && good;
}

static bool
broadcast_by(struct self *self, const char *how, uint8_t *p, uint64_t bytes)
{
	if (!strncmp(how, "get", 3))
		return broadcast_get(self, p, bytes);
	return !strncmp(how, "put", 3) ? broadcast_put(self, p, bytes) : broadcast_tag(self, p, bytes);
}

static int
measure(struct self *self, const struct peer_item *item, const char *how)
{
	double at[PEER_REPEAT], seconds[PEER_REPEAT];
	uint8_t mine[8192] = { 0 }, *all = malloc(PEER_RANKS * sizeof(mine));
	bool gather = !strcmp(item->what, "allgather"), barrier = !strcmp(item->what, "barrier"), good = all != NULL;
	int inner = gather ? GATHERS : barrier ? BARRIERS : 1, warm = 1;

	/* what others map comes into their page tables at first use: each cut once */
	if (strstr(how, "UCX memory") && item->bytes)
		warm = (int)(self->arena.bytes / item->bytes);

	for (int i = -warm; good && i < self->args->repeat; i++) { /* the first are to warm up */
		uint8_t *p = inner == 1 ? peer_cut(&self->arena, item->bytes) : NULL;
		double start;

		if (p && self->rank == 0)
			peer_stamp(p, item->bytes, (uint64_t)(i + warm));
		crew_meet(self->crew);
		start = peer_now();
		for (int k = 0; good && k < inner; k++)
			good = gather || barrier ? all_gather(self, mine, all, gather ? item->bytes : 0)
			     : broadcast_by(self, how, p, item->bytes);
		seconds[i < 0 ? 0 : i] = crew_slowest(self->crew, self->rank, self->ranks, peer_now() - start) / inner;
		at[i < 0 ? 0 : i] = start;
		good = good && (!p || peer_stamped(p, item->bytes, (uint64_t)(i + warm)));
	}
	free(all);
	if (!good)
		fprintf(stderr, "%s: rank %d: %s failed, or wrong bytes arrived\n", self->args->name, self->rank, item->what);
	if (good && self->rank == 0)
		peer_print(self->args, item, how, inner, at, seconds, self->args->repeat);
	return !good;
}

/* In all ways that are worth while: over TCP reads are several times slower than anything, and writes are where UCX is new. */
static int
broadcasts(struct self *self, const struct peer_item *item)
{
	bool shm = !strcmp(self->args->transport, "shm");
	int bad;

	self->arena = self->plain;
	bad = measure(self, item, "tag");
	if (!bad && !self->of_plain.made)
		bad = !share_arena(self, &self->of_plain, &self->plain);
	self->shared = &self->of_plain;
	if (!bad && shm)
		bad = measure(self, item, "get");
	if (!bad)
		bad = measure(self, item, "put");
	if (bad || !shm)
		return bad;
	if (!self->of_own.made) {
		self->own = (struct peer_arena){ .bytes = self->plain.bytes };
		bad = !share_arena(self, &self->of_own, &self->own);
	}
	self->arena = self->own;
	self->shared = &self->of_own;
	return bad || measure(self, item, "get, UCX memory") || measure(self, item, "put, UCX memory");
}

/* Context, worker, addresses, first bytes: what makes N strangers able to talk. Leaves the last one open. */
static int
create(struct self *self, const struct peer_item *item)
{
	double at[PEER_REPEAT], seconds[PEER_REPEAT];

	for (int i = 0; i < self->args->repeat; i++) {
		close_all(self);
		crew_meet(self->crew);
		at[i] = peer_now();
		if (!open_all(self))
			return 1;
		seconds[i] = crew_slowest(self->crew, self->rank, self->ranks, peer_now() - at[i]);
	}
	if (self->rank == 0)
		peer_print(self->args, item, "", 1, at, seconds, self->args->repeat);
	return 0;
}

static int
member(struct crew *crew, int rank, void *arg)
{
	struct self self = { .args = arg, .crew = crew, .rank = rank };
	int bad;

	self.ranks = self.args->ranks;
	if (!open_all(&self) || !peer_arena_new(&self.plain, self.args))
		return 1;
	self.arena = self.plain;
	bad = 0;
	for (int i = 0; !bad && i < self.args->n_items; i++) {
		const struct peer_item *item = &self.args->items[i];

		if (!strcmp(item->what, "broadcast")) {
			bad = broadcasts(&self, item);
		} else if (!strcmp(item->what, "barrier") || !strcmp(item->what, "allgather")) {
			bad = item->bytes > 8192 || measure(&self, item, "tag");
		} else if (!strcmp(item->what, "create") && !self.of_plain.made) {
			bad = create(&self, item);
		} else if (rank == 0) {
			peer_print_why(self.args, item, "UCX has nothing like it");
		}
	}
	crew_meet(crew); /* nobody leaves while another may still need its progress */
	return bad;
}

int
main(int argc, char **argv)
{
	struct peer_args args;

	return peer_parse(&args, argc, argv) ? crew_run(args.ranks, member, &args) : 2;
}
