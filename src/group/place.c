/* SPDX-License-Identifier: Apache-2.0
 *
 * place.c - the public calls on meeting places: a store on its own, and asking what a place knows.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/endpoint.h"
#include "group/group.h"
#include "meet/dir.h"
#include "meet/store.h"
#include "net/wire.h"

#include <stdio.h>
#include <string.h>

struct ist_store {
	struct ist__handle handle;
	struct ist__ep *ep; /* who we are: secret and member id */
	struct ist__store *store;
	char address[128];
};

/* An endpoint that never listens: what the hello needs. */
static ist_err
identity(struct ist_env *env, const void *secret, uint64_t bytes, uint32_t insecure, struct ist__ep **out, struct ist_error *err)
{
	struct ist_endpoint_args args = { .struct_size = sizeof(args), .insecure = insecure, .secret = secret, .secret_bytes = bytes };

	return ist__ep_new(env, &args, out, err);
}

static ist_err
store_open(struct ist_store *s, const struct ist_store_args *a, struct ist_error *err)
{
	struct ist__hostport hp;
	struct ist__addrs at;
	union ist__sockaddr *where = &at.at[0];
	int fd;
	ist_err e = ist__hostport_parse(a->bind, true, &hp, err);

	if (!e)
		e = ist__resolve(&hp, &at, err);
	if (!e)
		e = ist__ep_may_use(s->ep, where, err);
	if (!e)
		e = ist__listen(where, &fd, err);
	if (e)
		return e;
	ist__sockaddr_text(where, s->address, sizeof(s->address));
	s->store = ist__store_new(&(struct ist__store_args){ .loop = s->ep->loop, .fd = fd, .self = &s->ep->self, .own = "" }, err);
	return s->store ? IST_OK : IST_IO;
}

static void
end_store(void *handle)
{
	ist_store_free(handle);
}

ist_err
ist_store_new(struct ist_env *env, const struct ist_store_args *args, struct ist_store **out, struct ist_error *err)
{
	struct ist_store *s;
	struct ist__groups *groups;
	ist_err e = ist__handle_check(env, IST__ENV, "store_new", err);

	if (!e && (!args || !out || args->struct_size < sizeof(*args) || !args->bind))
		e = ist__fail(err, IST_INVALID_ARGUMENT, "store_new", "args, its bind or out is NULL, or struct_size is too small");
	if (!e)
		e = ist__groups_get(env, &groups, err);
	if (e)
		return e;
	s = ist__handle_new(env, IST__STORE, sizeof(*s));
	if (!s)
		return ist__fail_memory(err, "store_new");
	e = identity(env, args->secret, args->secret_bytes, args->insecure, &s->ep, err);
	if (!e)
		e = store_open(s, args, err);
	if (e) {
		ist__ep_unref(s->ep);
		ist__handle_kill(s, IST__STORE);
		ist__handle_bury(s);
		return e;
	}
	ist__handle_owned(s, end_store);
	*out = s;
	return IST_OK;
}

ist_err
ist_store_address(struct ist_store *store, char *room, uint64_t *bytes, struct ist_error *err)
{
	ist_err e = ist__handle_check(store, IST__STORE, "store_address", err);

	if (e)
		return e;
	if (!room || !bytes)
		return ist__fail(err, IST_INVALID_ARGUMENT, "store_address", "room or bytes is NULL");
	snprintf(room, *bytes, "%s", store->address);
	*bytes = strlen(store->address);
	return IST_OK;
}

void
ist_store_free(struct ist_store *store)
{
	if (!store || !ist__handle_kill(store, IST__STORE))
		return;
	ist__store_free(store->store);
	ist__ep_unref(store->ep);
	ist__handle_bury(store);
}

/* ---- status ---- */

struct rows {
	const char *group;
	struct ist_member_status *out;
	uint32_t room, n;
};

static void
add_row(void *arg, const struct ist__status *s, uint64_t ms)
{
	struct rows *rows = arg;
	struct ist_member_status row = { .struct_size = sizeof(row), .rank = s->rank, .pid = (int64_t)s->pid, .version = s->version, .to = s->to,
		.serves = s->serves, .heard_s = (double)ms / 1000 };

	if (rows->group && strcmp(rows->group, s->group) != 0)
		return;
	snprintf(row.group, sizeof(row.group), "%s", s->group);
	snprintf(row.host, sizeof(row.host), "%s", s->host);
	snprintf(row.state, sizeof(row.state), "%s", s->state);
	if (rows->n < rows->room)
		rows->out[rows->n] = row;
	rows->n++;
}

static ist_err
read_rows(const struct ist__frame *f, struct rows *rows, struct ist_error *err)
{
	struct ist__reader r;

	ist__reader_init(&r, f->body, f->bytes);
	for (uint32_t n = ist__get_u32(&r); n > 0 && !r.bad; n--) {
		struct ist__status s;
		bool ok = ist__status_get(&r, &s);
		uint64_t ms = ist__get_u64(&r);

		if (ok && !r.bad)
			add_row(rows, &s, ms);
	}
	return r.bad ? ist__fail(err, IST_BAD_FORMAT, "status", "the meeting place's answer can't be read") : IST_OK;
}

static ist_err
ask(struct ist__inbox *inbox, struct ist__post *post, int64_t deadline, struct rows *rows, struct ist_error *err)
{
	struct ist__frame *f = ist__frame_new(inbox->loop, IST__LIST, "\0\0\0", 4); /* all groups; we pick */
	struct ist__event ev;
	bool done = false;
	ist_err e = IST_OK;

	if (!f)
		return ist__fail_memory(err, "status");
	ist__conn_send(post->conn, f);
	while (!e && !done) {
		e = ist__inbox_wait(inbox, deadline, &ev, err);
		if (e)
			return e;
		if (ev.kind == IST__EVENT_CLOSED) {
			if (ev.error)
				ist__error_copy(err, ev.error);
			e = ev.error ? ev.error->code : ist__fail_memory(err, "status");
		} else if (ev.kind == IST__EVENT_FRAME && ev.frame->type == IST__ROWS) {
			e = read_rows(ev.frame, rows, err);
			done = true;
		}
		ist__event_done(inbox, &ev);
	}
	return e;
}

static ist_err
status_tcp(struct ist_env *env, const struct ist_status_args *a, struct rows *rows, struct ist_error *err)
{
	int64_t deadline = ist__deadline(a->timeout_ns, 300 * IST_NS_PER_S);
	struct ist__hostport hp;
	struct ist__addrs at;
	struct ist__inbox inbox;
	union ist__sockaddr local;
	struct ist__conn *conn;
	struct ist__post *post;
	struct ist__ep *ep;
	bool refused;
	int fd;
	ist_err e = ist__tcp_url_parse(a->at, false, &hp, err);

	if (!e)
		e = ist__resolve(&hp, &at, err);
	if (!e)
		e = identity(env, a->secret, a->secret_bytes, a->insecure, &ep, err);
	if (e)
		return e;
	e = ist__inbox_init(&inbox, ep->loop, err);
	if (!e) {
		e = ist__dial(&at, deadline, -1, &fd, &refused, err);
		if (!e) {
			conn = ist__conn_new(ep->loop, fd, IST__INITIATOR, &ep->self, IST__NEVER); /* the call's deadline is asked below */
			post = conn ? ist__inbox_add(&inbox, conn, 0) : NULL;
			e = post ? IST_OK : ist__fail_memory(err, "status");
			if (!e && ist__conn_local(conn, &local))
				e = ist__ep_may_use(ep, &local, err);
			if (!e)
				e = ask(&inbox, post, deadline, rows, err);
			if (e == IST_TIMEOUT)
				ist__fail(err, e, "status", "%s:%u: something takes connections, but not as Isthmus: it says nothing", hp.host, hp.port);
		}
		ist__inbox_fini(&inbox);
	}
	ist__ep_unref(ep);
	return e;
}

ist_err
ist_status(struct ist_env *env, const struct ist_status_args *args, struct ist_member_status *out, uint32_t *n, struct ist_error *err)
{
	struct rows rows;
	struct ist__groups *groups;
	ist_err e = ist__handle_check(env, IST__ENV, "status", err);

	if (!e && (!args || args->struct_size < sizeof(*args) || !args->at || !n || (*n > 0 && !out)))
		e = ist__fail(err, IST_INVALID_ARGUMENT, "status", "args, at, out or n is NULL, or struct_size is too small");
	if (!e)
		e = ist__groups_get(env, &groups, err);
	if (e)
		return e;
	rows = (struct rows){ .group = args->group, .out = out, .room = *n };
	if (!strncmp(args->at, "dir:", 4))
		e = ist__dir_list(args->at + 4, add_row, &rows, err);
	else
		e = status_tcp(env, args, &rows, err);
	if (!e)
		*n = rows.n;
	return e;
}
