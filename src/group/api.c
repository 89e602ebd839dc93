/* SPDX-License-Identifier: Apache-2.0
 *
 * api.c - the public calls on endpoints and groups: checks, then what the files beside this one do.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/group.h"

#include <isthmus.h>

#include <stdio.h>
#include <string.h>

/* ---- endpoint ---- */

static void
end_endpoint(void *handle)
{
	ist_endpoint_free(handle);
}

ist_err
ist_endpoint_new(struct ist_env *env, const struct ist_endpoint_args *args, struct ist_endpoint **out, struct ist_error *err)
{
	struct ist_endpoint *handle;
	struct ist__ep *ep;
	ist_err e = ist__handle_check(env, IST__ENV, "endpoint_new", err);

	if (!e && !out)
		e = ist__fail(err, IST_INVALID_ARGUMENT, "endpoint_new", "out is NULL");
	if (!e)
		e = ist__ep_new(env, args, &ep, err);
	if (e)
		return e;
	handle = ist__handle_new(env, IST__ENDPOINT, sizeof(*handle));
	if (!handle) {
		ist__ep_unref(ep);
		return ist__fail_memory(err, "endpoint_new");
	}
	handle->ep = ep;
	ist__handle_owned(handle, end_endpoint);
	*out = handle;
	return IST_OK;
}

void
ist_endpoint_free(struct ist_endpoint *endpoint)
{
	if (!endpoint || !ist__handle_kill(endpoint, IST__ENDPOINT))
		return;
	ist__ep_unref(endpoint->ep);
	ist__handle_bury(endpoint);
}

ist_err
ist_endpoint_address(struct ist_endpoint *endpoint, void *room, uint64_t *bytes, struct ist_error *err)
{
	char bound[IST__BOUND];
	struct ist__card card;
	struct ist__writer w;
	ist_err e = ist__handle_check(endpoint, IST__ENDPOINT, "endpoint_address", err);

	if (!e && (!room || !bytes))
		e = ist__fail(err, IST_INVALID_ARGUMENT, "endpoint_address", "room or bytes is NULL");
	if (!e)
		e = ist__ep_listen(endpoint->ep, NULL, &card, bound, err);
	if (e)
		return e;
	ist__writer_init(&w, ist__env_ctx(endpoint->handle.env));
	ist__card_put(&w, &card);
	if (w.bad)
		e = ist__fail_memory(err, "endpoint_address");
	else if (w.bytes > *bytes)
		e = ist__fail(err, IST_INVALID_ARGUMENT, "endpoint_address", "room for %llu bytes is too small; %d are enough", (unsigned long long)*bytes, IST_ADDRESS_BYTES);
	else {
		memcpy(room, w.at, w.bytes);
		*bytes = w.bytes;
	}
	ist__writer_fini(&w);
	return e;
}

/* ---- making groups ---- */

/* Copies what the caller's struct_size covers. */
static ist_err
copy_args(const struct ist_group_args *args, struct ist_group_args *out, struct ist_error *err)
{
	if (!args || args->struct_size < offsetof(struct ist_group_args, backend))
		return ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "args is NULL or its struct_size is too small");
	memset(out, 0, sizeof(*out));
	memcpy(out, args, args->struct_size < sizeof(*out) ? args->struct_size : sizeof(*out));
	return IST_OK;
}

static ist_err
new_start(struct ist_endpoint *endpoint, const struct ist_group_args *args, bool here, struct ist_req **req, struct ist_error *err)
{
	struct ist_group_args a;
	struct ist__form_args form = { .args = &a, .here = here };
	ist_err e = ist__handle_check(endpoint, IST__ENDPOINT, "group_new", err);

	if (!e && !req)
		e = ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "req is NULL");
	if (!e)
		e = copy_args(args, &a, err);
	if (e)
		return e;
	form.ep = endpoint->ep;
	return ist__form_start(&form, req, err);
}

ist_err
ist_group_new_start(struct ist_endpoint *endpoint, const struct ist_group_args *args, struct ist_req **req, struct ist_error *err)
{
	return new_start(endpoint, args, false, req, err);
}

ist_err
ist_req_group(struct ist_req *req, struct ist_group **out, struct ist_error *err)
{
	uint32_t done = 0;
	struct ist_group *group;
	ist_err e = ist_req_test(req, &done, err);

	if (e)
		return e;
	if (!out)
		return ist__fail(err, IST_INVALID_ARGUMENT, "req_group", "out is NULL");
	if (!done)
		return ist__fail(err, IST_BAD_STATE, "req_group", "the group has not formed yet");
	group = ist__req_take_payload(req);
	if (!group)
		return ist__fail(err, IST_BAD_STATE, "req_group", "this request makes no group, or it was taken already");
	*out = group;
	return IST_OK;
}

/* Waits without a bound of its own: the forming has a deadline. */
static ist_err
finish_start(struct ist_req *req, struct ist_group **out, struct ist_error *err)
{
	ist_err e = ist_req_wait(req, -1, err);

	if (!e)
		e = ist_req_group(req, out, err);
	ist_req_free(req);
	return e;
}

ist_err
ist_group_new(struct ist_endpoint *endpoint, const struct ist_group_args *args, struct ist_group **out, struct ist_error *err)
{
	struct ist_req *req;
	ist_err e;

	if (!out)
		return ist__fail(err, IST_INVALID_ARGUMENT, "group_new", "out is NULL");
	e = new_start(endpoint, args, !ist__stack_is_small(), &req, err);
	return e ? e : finish_start(req, out, err);
}

static ist_err
check_ranks(const struct ist__group *g, const struct ist_split_args *a, uint32_t *mine, struct ist_error *err)
{
	*mine = IST_NO_RANK;
	if (!a->ranks || a->n_ranks == 0)
		return ist__fail(err, IST_INVALID_ARGUMENT, "group_split", "the list of ranks is empty");
	for (uint32_t i = 0; i < a->n_ranks; i++) {
		if (a->ranks[i] >= g->size)
			return ist__fail(err, IST_INVALID_ARGUMENT, "group_split", "rank %u in a group of %u", a->ranks[i], g->size);
		for (uint32_t k = 0; k < i; k++)
			if (a->ranks[k] == a->ranks[i])
				return ist__fail(err, IST_INVALID_ARGUMENT, "group_split", "rank %u stands twice in the list", a->ranks[i]);
		if (a->ranks[i] == g->rank)
			*mine = i;
	}
	return *mine == IST_NO_RANK ? ist__fail(err, IST_NOT_MEMBER, "group_split", "rank %u is not in the list", g->rank) : IST_OK;
}

/* As many whole characters as a half of the child's name has room for. */
static int
shown_bytes(const char *name)
{
	size_t n = name ? strlen(name) : 0;

	if (n <= 120)
		return (int)n;
	for (n = 120; n > 0 && ((unsigned char)name[n] & 0xC0) == 0x80;)
		n--;
	return (int)n;
}

static ist_err
split(struct ist__group *g, const struct ist_split_args *a, uint32_t mine, struct ist_group **out, struct ist_error *err)
{
	struct ist__card *cards = ist__alloc(g->ctx, a->n_ranks * sizeof(*cards));
	char name[256];
	struct ist_group_args args = { .struct_size = sizeof(args), .rank = mine, .size = a->n_ranks, .name = name,
		.backend_options = g->backend_options, .timeout_ns = a->timeout_ns ? a->timeout_ns : g->timeout_ns,
		.no_progress_ns = a->no_progress_ns ? a->no_progress_ns : g->no_progress_ns, .bucket_bytes = g->bucket_bytes };
	uint8_t salt[16] = { 0 };
	struct ist__form_args form = { .ep = g->ep, .args = &args, .cards = cards, .salt = salt, .here = !ist__stack_is_small(),
		.parent_backend = a->backend ? a->backend : g->backend_name, .parent = g, .parent_ranks = a->ranks };
	struct ist_req *req;
	struct ist_error why;
	ist_err e;

	ist_error_init(&why);
	ist__store_u64(salt, g->generation);
	snprintf(name, sizeof(name), "%.*s/%.*s", shown_bytes(g->name), g->name, shown_bytes(a->name), a->name ? a->name : "");
	form.attempt = ist__split_begin(g, name, a->ranks, a->n_ranks);
	for (uint32_t i = 0; cards && i < a->n_ranks; i++)
		cards[i] = g->members[a->ranks[i]].card;
	e = cards ? ist__form_start(&form, &req, &why) : ist__fail_memory(&why, "group_split");
	ist__free(g->ctx, cards);
	if (!e)
		e = finish_start(req, out, &why);
	if (e) {
		ist__split_failed(g, &form.attempt, a->ranks, a->n_ranks, mine, &why);
		ist__error_copy(err, &why);
	}
	return e;
}

ist_err
ist_group_split(struct ist_group *group, const struct ist_split_args *args, struct ist_group **out, struct ist_error *err)
{
	struct ist__group *g;
	struct ist_split_args a = { 0 };
	uint32_t mine;
	ist_err e = ist__group_use(group, "group_split", &g, err);

	if (e)
		return e;
	if (!args || !out || args->struct_size < offsetof(struct ist_split_args, name))
		e = ist__fail(err, IST_INVALID_ARGUMENT, "group_split", "args or out is NULL, or struct_size is too small");
	if (!e) {
		memcpy(&a, args, args->struct_size < sizeof(a) ? args->struct_size : sizeof(a));
		e = check_ranks(g, &a, &mine, err);
	}
	if (!e)
		e = split(g, &a, mine, out, err);
	ist__group_unref(g);
	return e;
}

/* ---- ending groups ---- */

ist_err
ist_group_free(struct ist_group *group)
{
	struct ist__group *g;

	if (!ist__handle_ok(group, IST__GROUP) || !ist__handle_kill(group, IST__GROUP))
		return IST_BAD_HANDLE;
	g = group->impl;
	ist__group_close(g);
	ist__group_unref(g);
	ist__handle_bury(group);
	return IST_OK;
}

ist_err
ist_group_abort(struct ist_group *group, const char *reason)
{
	struct ist__group *g;
	struct ist_error e;
	ist_err rc = ist__group_use(group, "abort", &g, NULL);

	if (rc)
		return rc;
	ist_error_init(&e);
	ist__fail(&e, IST_ABORTED, "abort", "rank %u aborted the group: %s", g->rank, reason ? reason : "no reason given");
	ist__fail_rank(&e, g->rank);
	ist__mesh_break(g, &e, true);
	ist__group_unref(g);
	return IST_OK;
}

void
ist_group_abort_async_signal(struct ist_group *group)
{
	if (!ist__handle_ok(group, IST__GROUP))
		return;
	ist__group_call(group->impl, IST__CALLED_ABORT); /* lock-free, so legal here */
}

/* ---- asking ---- */

ist_err
ist_group_lost(struct ist_group *group, uint32_t *ranks, uint32_t *n, struct ist_error *err)
{
	struct ist__group *g;
	uint32_t room, count = 0;
	ist_err e = ist__group_use(group, "group_lost", &g, err);

	if (e)
		return e;
	if (!n || (*n > 0 && !ranks)) {
		ist__group_unref(g);
		return ist__fail(err, IST_INVALID_ARGUMENT, "group_lost", "ranks or n is NULL");
	}
	room = *n;
	pthread_mutex_lock(&g->lock);
	for (uint32_t r = 0; r < g->size; r++)
		if (g->gone[r] != IST__HERE_STILL) {
			if (count < room)
				ranks[count] = r;
			count++;
		}
	pthread_mutex_unlock(&g->lock);
	*n = count;
	ist__group_unref(g);
	return IST_OK;
}

/* Under lock. */
static void
count_memory(struct ist__group *g, struct ist_group_info *info)
{
	uint64_t memory, shared;

	info->memory_bytes = ist__tally_bytes(g->tally) + g->life_memory;
	info->shared_bytes = g->life_shared;
	for (uint32_t i = 0; i < g->n_links; i++)
		info->memory_bytes += g->links[i].conn ? ist__conn_held(g->links[i].conn) : 0;
	if (g->line) {
		ist__line_held(g->line, &memory, &shared);
		info->memory_bytes += memory;
		info->shared_bytes += shared;
	}
}

ist_err
ist_group_info(struct ist_group *group, struct ist_group_info *out, struct ist_error *err)
{
	struct ist_group_info info;
	struct ist__group *g;
	uint64_t messages;
	ist_err e = ist__group_use(group, "group_info", &g, err);

	if (e)
		return e;
	pthread_mutex_lock(&g->lock);
	messages = g->messages;
	pthread_mutex_unlock(&g->lock);
	info = (struct ist_group_info){ .rank = g->rank, .messages = messages, .size = g->size, .generation = g->generation, .name = g->name, .backend = g->backend_name,
		.n_hosts = g->n_hosts, .n_same_host = g->n_same_host, .shm_pairs = g->shm_pairs, .tcp_pairs = g->tcp_pairs, .bucket_bytes = g->bucket_bytes,
		.timeout_ns = g->timeout_ns, .no_progress_ns = g->no_progress_ns, .proto = g->proto, .n_links = g->n_links,
		.takers = g->line && ist__line_leaves_out(g->line), .mem = g->mem, .device = g->mem ? g->ep->device : -1, .views_alone = g->views_alone,
		.broken = (uint32_t)__atomic_load_n(&g->broken_code, __ATOMIC_ACQUIRE) };
	pthread_mutex_lock(&g->lock);
	count_memory(g, &info);
	pthread_mutex_unlock(&g->lock);
	if (!out || out->struct_size < sizeof(uint32_t))
		e = ist__fail(err, IST_INVALID_ARGUMENT, "group_info", "out is NULL or its struct_size is not set");
	else {
		info.struct_size = out->struct_size < sizeof(info) ? out->struct_size : (uint32_t)sizeof(info);
		memcpy(out, &info, info.struct_size);
	}
	ist__group_unref(g);
	return e;
}

ist_err
ist_group_member(struct ist_group *group, uint32_t rank, char *room, uint64_t *bytes, struct ist_error *err)
{
	struct ist__group *g;
	char text[128];
	int n;
	ist_err e = ist__group_use(group, "group_member", &g, err);

	if (e)
		return e;
	if (!room || !bytes || rank >= g->size)
		e = ist__fail(err, IST_INVALID_ARGUMENT, "group_member", "rank %u in a group of %u, or room is NULL", rank, g->size);
	if (!e) {
		n = snprintf(text, sizeof(text), "%s:%llu", g->members[rank].card.host, (unsigned long long)g->members[rank].card.pid);
		snprintf(room, *bytes, "%s", text);
		*bytes = (uint64_t)n;
	}
	ist__group_unref(g);
	return e;
}

ist_err
ist_group_tell(struct ist_group *group, const char *state, uint64_t version, uint64_t to, uint64_t serves)
{
	struct ist__group *g;
	ist_err e = ist__group_use(group, "group_tell", &g, NULL);

	if (e)
		return e;
	ist__lease_tell(g->lease, state ? state : "CLEAN", version, to, serves);
	ist__group_unref(g);
	return IST_OK;
}

/* ---- memory of the backend ---- */

ist_err
ist_group_alloc(struct ist_group *group, uint64_t bytes, uint32_t mem, int32_t device, void **out, struct ist_error *err)
{
	struct ist__group *g;
	ist_err e = ist__group_use(group, "group_alloc", &g, err);

	if (e)
		return e;
	if (!out)
		e = ist__fail(err, IST_INVALID_ARGUMENT, "group_alloc", "out is NULL");
	pthread_mutex_lock(&g->lock);
	if (!e)
		e = ist__group_broken(g, err);
	if (!e)
		ist__line_hold(g->line);
	pthread_mutex_unlock(&g->lock);
	if (!e) {
		e = ist__line_alloc(g->line, bytes, mem, device, ist__deadline(g->timeout_ns, 0), out, err);
		ist__line_drop(g->line);
	}
	ist__group_unref(g);
	return e;
}

ist_err
ist_group_alloc_free(struct ist_group *group, void *addr)
{
	struct ist__group *g;
	ist_err e = ist__group_use(group, "group_alloc_free", &g, NULL);

	if (e)
		return e;
	e = ist__line_free_mem(g->line, addr);
	ist__group_unref(g);
	return e;
}
