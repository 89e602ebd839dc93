/* SPDX-License-Identifier: Apache-2.0
 *
 * channel.c - the backend's channel of a group that forms: chosen, opened and offered; then, when it is known what all
 * have offered, compared and connected.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/form_int.h"
#include "net/wire.h"
#include "plug/plug.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_NS = 200000, BUNDLED = 5 /* bytes about one member's descriptors */ };

/* Explicit wishes must be one; "auto" follows them. */
static ist_err
choose(struct ist__form *f, char *out, size_t room, struct ist_error *err)
{
	const char *wish = NULL;
	uint32_t who = 0;

	for (uint32_t r = 0; r < f->args.size; r++) {
		const char *w = f->claims[r].backend;

		if (!strcmp(w, "auto"))
			continue;
		if (!wish) {
			wish = w;
			who = r;
		} else if (!strchr(w, '/') && !strchr(wish, '/') && strcmp(w, wish) != 0) {
			ist__fail(err, IST_MISMATCH, "group_new", "rank %u asks for backend %s, rank %u for %s", who, wish, r, w);
			ist__fail_rank(err, who);
			ist__fail_rank(err, r);
			return IST_MISMATCH;
		}
	}
	if (strcmp(f->claims[f->args.rank].backend, "auto") != 0)
		wish = f->claims[f->args.rank].backend; /* a plug-in may lie elsewhere on every host */
	snprintf(out, room, "%s", wish ? wish : "host");
	return IST_OK;
}

/* Names are for people; a backend gets what it can dial without asking anybody. */
static bool
numeric(const char *addr, char *room, size_t bytes)
{
	struct ist__hostport hp;
	struct ist__addrs at;

	if (ist__hostport_parse(addr, true, &hp, NULL) || ist__resolve(&hp, &at, NULL))
		return false;
	ist__sockaddr_host(&at.at[0], room, bytes);
	return true;
}

static ist_err
why_not(struct ist__form *f, ist_err e, const struct ist_status *why, const char *what, struct ist_error *err)
{
	ist__fail(err, e, "group_new", "backend %s: %s: %s", f->admitted->name, what, why->text[0] ? why->text : ist_err_text(e));
	if (why->rank != IST_NO_RANK && why->rank < f->args.size)
		ist__fail_rank(err, why->rank);
	if (err)
		err->sys = why->sys;
	if (e == IST_LIMIT)
		ist__fail_files(err, why->sys);
	return e;
}

/* Runs one task of the channel to its end, and looks at the star meanwhile. */
static ist_err
run_task(struct ist__form *f, struct ist_task *task, const char *what, struct ist_error *err)
{
	const struct ist_backend *ops = &f->admitted->ops;
	struct ist_status st = { .struct_size = sizeof(st), .rank = IST_NO_RANK };
	bool aborted = false;
	int64_t give_up = IST__NEVER, patience = ist__now() + LOOK_NS;
	ist_err e = IST_OK, failed = IST_OK;

	for (;;) {
		struct ist_progress p = { .struct_size = sizeof(p) };
		struct pollfd fds[2] = { { .fd = -1, .events = POLLIN }, { .fd = f->inbox.cancel_fd, .events = POLLIN } };
		ist_err armed;

		e = ops->progress(f->chan, &p);
		if (!e) {
			st = (struct ist_status){ .struct_size = sizeof(st), .rank = IST_NO_RANK };
			e = ops->test(f->chan, task, &st);
		}
		if (st.state >= IST_DONE)
			break;
		if (e && !failed)
			failed = why_not(f, e, &st, what, err);
		if (!failed && ist__now() >= f->deadline)
			failed = ist__fail(err, IST_TIMEOUT, "group_new", "backend %s did not finish \"%s\" in time", f->admitted->name, what);
		if (!failed)
			failed = ist__form_wait(f, 0, err);
		if (failed && !aborted) {
			ops->abort(f->chan, failed);
			aborted = true;
			give_up = ist__now() + 1000 * IST__MS;
		}
		if (ist__now() >= give_up)
			return failed; /* close frees the task */
		if (!p.more && !aborted && ist__now() < patience) { /* what it waits for are others who do the same just now */
			sched_yield();
			continue;
		}
		armed = p.more ? IST_BUSY : ops->arm(f->chan, &fds[0].fd);
		if (armed != IST_BUSY)
			poll(fds, aborted ? 1 : 2, fds[0].fd >= 0 ? 10 : 1);
	}
	ops->task_free(f->chan, task);
	if (failed)
		return failed;
	return e ? why_not(f, e, &st, what, err) : IST_OK;
}

static ist_err
open_channel(struct ist__form *f, struct ist_error *err)
{
	char name[256], shown[IST__BOUND];
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	struct ist_open args = { .struct_size = sizeof(args), .rank = f->args.rank, .size = f->args.size, .mem = f->ep->mem,
		.device = f->ep->device, .generation = f->generation, .deadline_ns = f->deadline, .options = f->options,
		.listen = f->bound, .transport = f->ep->transport };
	ist_err e = choose(f, name, sizeof(name), err);

	if (!e)
		e = ist__plug_get(f->env, name, &f->admitted, err);
	if (e)
		return e;
	if (f->ep->advertise[0] && numeric(f->card.addr, shown, sizeof(shown)))
		args.advertise = shown;
	memcpy(&args.group, f->key, sizeof(args.group));
	e = f->admitted->ops.open(f->admitted->ops.self, f->admitted->host, &args, &f->chan, &why);
	if (!e && !f->chan)
		e = IST_BAD_PLUGIN;
	if (e) {
		f->chan = NULL;
		return why_not(f, e, &why, "open", err);
	}
	return IST_OK;
}

static void
describe(struct ist__form *f, struct ist__writer *mine)
{
	ist__put_str(mine, f->admitted->plain);
	ist__put_str(mine, f->admitted->probe.version);
	ist__put_u64(mine, f->admitted->probe.traits);
	ist__put_u32(mine, (uint32_t)f->admitted->probe.n_settings);
	for (uint64_t i = 0; i < f->admitted->probe.n_settings; i++) {
		ist__put_str(mine, f->admitted->probe.settings[i].name);
		ist__put_str(mine, f->admitted->probe.settings[i].value);
	}
	ist__put_str(mine, f->admitted->probe.library);
	ist__form_put_device(f, mine);
}

static bool
is_number(const char *text)
{
	char *end;

	(void)strtoull(text, &end, 0);
	return text[0] >= '0' && text[0] <= '9' && *end == 0;
}

/* The value of setting i that holds for all: equal everywhere, or the least. */
static ist_err
agree_setting(struct ist__form *f, const struct ist_setting *ours, struct ist__reader *rest, char out[IST__SETTING], struct ist_error *err)
{
	char first[IST__SETTING] = "", name[IST__SETTING], value[IST__SETTING];

	for (uint32_t r = 0; r < f->args.size; r++) {
		ist__get_str(&rest[r], name, sizeof(name));
		ist__get_str(&rest[r], value, sizeof(value));
		if (rest[r].bad || strcmp(name, ours->name) != 0) {
			ist__fail(err, IST_MISMATCH, "group_new", "backend %s of rank %u knows no setting %s", f->admitted->name, r, ours->name);
			ist__fail_rank(err, r);
			return IST_MISMATCH;
		}
		if (ours->rule == 1 && !is_number(value)) {
			ist__fail(err, IST_MISMATCH, "group_new", "setting %s of backend %s: rank %u has \"%s\", which is no number", ours->name,
				f->admitted->name, r, value);
			ist__fail_rank(err, r);
			return IST_MISMATCH;
		}
		if (r == 0)
			snprintf(first, sizeof(first), "%s", value);
		else if (ours->rule == 0 && strcmp(first, value) != 0) {
			ist_err code = strcmp(ours->name, "version") != 0 ? IST_MISMATCH : IST_VERSION_MISMATCH;

			ist__fail(err, code, "group_new", "setting %s of backend %s: rank 0 has \"%s\", rank %u has \"%s\"", ours->name, f->admitted->name, first, r, value);
			ist__fail_rank(err, 0);
			ist__fail_rank(err, r);
			ist__fail_next(err, code == IST_MISMATCH ? "set %s alike on all members" : "install the same %s on all members", ours->name);
			return code;
		} else if (ours->rule == 1 && strtoull(value, NULL, 0) < strtoull(first, NULL, 0))
			snprintf(first, sizeof(first), "%s", value);
	}
	snprintf(out, IST__SETTING, "%s", first);
	return IST_OK;
}

/* The first rank whose version is of another line than rank 0's. */
struct odd {
	uint32_t rank; /* 0: none */
	char first[128], other[128];
};

static void
look_at_version(struct odd *odd, uint32_t r, const char *version)
{
	if (r == 0)
		snprintf(odd->first, sizeof(odd->first), "%s", version);
	else if (!odd->rank && version[0] >= '0' && version[0] <= '9' && odd->first[0] >= '0' && odd->first[0] <= '9' &&
		 strtoull(version, NULL, 10) != strtoull(odd->first, NULL, 10)) {
		odd->rank = r;
		snprintf(odd->other, sizeof(odd->other), "%s", version);
	}
}

/* all has come to the paths of the libraries. A loader that picked another file than was meant shows there. */
static ist_err
fail_version(struct ist__form *f, const struct odd *odd, struct ist__reader *all, struct ist_error *err)
{
	char first[256], other[256];

	ist__get_str(&all[0], first, sizeof(first));
	ist__get_str(&all[odd->rank], other, sizeof(other));
	ist__fail(err, IST_VERSION_MISMATCH, "group_new", "backend %s: rank 0 has version %s (%s), rank %u has %s (%s)", f->admitted->plain, odd->first,
		first, odd->rank, odd->other, other);
	ist__fail_rank(err, 0);
	ist__fail_rank(err, odd->rank);
	return IST_VERSION_MISMATCH;
}

static ist_err
agree(struct ist__form *f, struct ist__reader *all, struct ist_setting *agreed, char values[][IST__SETTING], struct ist_error *err)
{
	char plain[128], version[128];
	struct odd odd = { .rank = 0 };
	ist_err e = IST_OK;

	for (uint32_t r = 0; r < f->args.size; r++) {
		uint64_t traits;

		ist__get_str(&all[r], plain, sizeof(plain));
		ist__get_str(&all[r], version, sizeof(version));
		traits = ist__get_u64(&all[r]);
		if (ist__get_u32(&all[r]) != f->admitted->probe.n_settings || all[r].bad || strcmp(plain, f->admitted->plain) != 0) {
			ist__fail(err, IST_MISMATCH, "group_new", "rank %u uses backend %s %s, rank %u uses %s %s", r, plain, version, f->args.rank,
				f->admitted->plain, f->admitted->probe.version);
			ist__fail_rank(err, r);
			return IST_MISMATCH;
		}
		if (strcmp(version, f->admitted->probe.version) != 0)
			ist__log(f->ctx, 1, "backend %s: rank %u has version %s, this one %s (%s)", plain, r, version, f->admitted->probe.version, f->admitted->probe.library);
		look_at_version(&odd, r, version);
		f->takers_differ = f->takers_differ || ((traits ^ f->admitted->probe.traits) & IST_TRAIT_TAKERS);
		f->one_rank = f->one_rank || traits & IST_TRAIT_ONE_RANK;
	}
	for (uint64_t i = 0; !e && i < f->admitted->probe.n_settings && i < IST__SETTINGS; i++) {
		agreed[i] = f->admitted->probe.settings[i];
		e = agree_setting(f, &f->admitted->probe.settings[i], all, values[i], err);
		agreed[i].value = values[i];
	}
	return e || !odd.rank ? e : fail_version(f, &odd, all, err);
}

/* Descriptors for members of this room go by way of its first member. What it passes on are those of several in one frame. */
static void
add_fds(struct ist__frame *x, uint32_t from, const int32_t *fds, uint32_t n)
{
	memcpy(x->fds + x->n_fds, fds, n * sizeof(*fds));
	x->n_fds += n;
	ist__store_u32(x->body + x->bytes, from);
	x->body[x->bytes + 4] = (uint8_t)n;
	x->bytes += BUNDLED;
	x->body[0] = (uint8_t)x->n_fds;
}

static ist_err
lend_fds(struct ist__spoke *s, struct ist__frame *x, struct ist_error *err)
{
	int sys = ist__conn_send_lent(s->post->conn, x);

	return sys ? ist__fail_sys(err, IST_LIMIT, sys, "group_new", "passing descriptors on") : IST_OK;
}

static struct ist__frame *
fds_frame(struct ist__form *f, uint64_t room)
{
	struct ist__frame *x = ist__frame_new(f->inbox.loop, IST__FDS, NULL, 1 + room);

	if (x) {
		x->bytes = 1;
		x->body[0] = 0;
		x->flags = IST__FRAME_HAS_FDS;
		x->from = f->args.rank;
		x->lent = true;
	}
	return x;
}

static ist_err
send_fds(struct ist__form *f, struct ist__spoke *s, uint32_t from, const int32_t *fds, uint32_t n, struct ist_error *err)
{
	struct ist__frame *x = fds_frame(f, BUNDLED);

	if (!x)
		return ist__fail_memory(err, "group_new");
	add_fds(x, from, fds, n);
	x->from = from;
	x->bytes = 1; /* that one's */
	return lend_fds(s, x, err);
}

/* The first member of a room: what all others of it have offered goes to one of them. */
static ist_err
send_bundles(struct ist__form *f, uint32_t to, struct ist_error *err)
{
	struct ist__spoke *s = ist__form_near(f, to);
	struct ist__frame *x = NULL;
	ist_err e = IST_OK;

	for (uint32_t r = 0; !e && r < f->args.size; r++) {
		bool ours = r == f->args.rank;
		const int32_t *fds = ours ? f->offered.fds : f->wires[r].fd;
		uint32_t n = ours ? (uint32_t)f->offered.n_fds : f->wires[r].n;

		if (r == to || f->room[r] != f->args.rank || n == 0)
			continue;
		if (x && x->n_fds + n > IST__FRAME_FDS) {
			e = lend_fds(s, x, err);
			x = NULL;
		}
		if (!e && !x)
			x = fds_frame(f, IST__FRAME_FDS * BUNDLED);
		if (!e && !x)
			e = ist__fail_memory(err, "group_new");
		if (!e)
			add_fds(x, r, fds, n);
	}
	if (!e && x)
		return lend_fds(s, x, err);
	ist__frame_free(f->inbox.loop, x);
	return e;
}

static bool
owes_fds(const struct ist__form *f, const uint32_t *n_fds, uint32_t r)
{
	return r != f->args.rank && f->room[r] == f->room[f->args.rank] && n_fds[r] > 0 && !f->wires[r].came;
}

/* Whoever passes them on is to blame where even its own are missing, else those whose are. */
static ist_err
fds_late(const struct ist__form *f, const uint32_t *n_fds, struct ist_error *err)
{
	uint32_t first = f->room[f->args.rank];

	ist__fail(err, IST_TIMEOUT, "group_new", "descriptors of members of this host did not come in time");
	for (uint32_t r = 0; r < f->args.size; r++)
		if (owes_fds(f, n_fds, r) && (r == first || !owes_fds(f, n_fds, first)))
			ist__fail_rank(err, r);
	return IST_TIMEOUT;
}

ist_err
ist__form_give_fds(struct ist__form *f, struct ist_error *err)
{
	uint32_t first = ist__form_room(f, f->args.rank);
	struct ist__spoke *s = first != f->args.rank && f->offered.n_fds > 0 && f->features & IST__FEATURE_LANES ? ist__form_near(f, first) : NULL;
	ist_err e;

	if (!s || f->gave)
		return IST_OK;
	e = send_fds(f, s, f->args.rank, f->offered.fds, (uint32_t)f->offered.n_fds, err);
	f->gave = !e;
	return e;
}

/* Waits until all of our room have shown theirs. */
static ist_err
await_fds(struct ist__form *f, struct ist_error *err)
{
	for (;;) {
		bool waits = false;
		ist_err e;

		for (uint32_t r = 0; r < f->args.size; r++)
			waits = waits || owes_fds(f, f->n_fds, r);
		if (!waits)
			return IST_OK;
		if (ist__now() >= f->deadline)
			return fds_late(f, f->n_fds, err);
		e = ist__form_scarce(f, err);
		if (!e)
			e = ist__form_wait(f, IST__NEVER, err);
		if (e)
			return e;
	}
}

static ist_err
bundle_all(struct ist__form *f, struct ist_error *err)
{
	ist_err e = IST_OK;

	for (uint32_t to = 0; !e && to < f->args.size; to++)
		if (to != f->args.rank && f->room[to] == f->args.rank)
			e = send_bundles(f, to, err);
	return e;
}

/* Where somebody knows no bundles: a frame for each two members. */
static ist_err
send_all(struct ist__form *f, struct ist_error *err)
{
	uint32_t me = f->args.rank;
	ist_err e = IST_OK;

	for (uint32_t r = 0; !e && r < f->args.size; r++)
		for (uint32_t to = 0; !e && to < f->args.size; to++) {
			const int32_t *fds = r == me ? f->offered.fds : f->wires[r].fd;
			uint32_t n = r == me ? (uint32_t)f->offered.n_fds : f->wires[r].n;

			if (to != r && to != me && f->room[to] == me && f->room[r] == me && n > 0)
				e = send_fds(f, ist__form_near(f, to), r, fds, n, err);
		}
	return e;
}

ist_err
ist__form_pass(struct ist__form *f, struct ist__reader *all, struct ist_error *err)
{
	uint32_t me = f->args.rank, first = f->room[me];
	ist_err e = IST_OK;

	for (uint32_t r = 0; r < f->args.size; r++)
		f->n_fds[r] = ist__get_u32(&all[r]);
	if (f->n_here == 1)
		return IST_OK;
	if (first != me && f->offered.n_fds > 0 && !f->gave)
		e = send_fds(f, ist__form_near(f, first), me, f->offered.fds, (uint32_t)f->offered.n_fds, err);
	if (!e)
		e = await_fds(f, err);
	if (!e && first == me)
		e = f->features & IST__FEATURE_LANES ? bundle_all(f, err) : send_all(f, err);
	return e;
}

static ist_err
offer(struct ist__form *f, struct ist_wire *mine, struct ist_error *err)
{
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	struct ist_task *task = NULL;
	ist_err e;

	if (!(f->admitted->slots & IST__SLOT_OFFER))
		return IST_OK;
	e = f->admitted->ops.offer(f->chan, mine, &task, &why);
	if (!e && !task)
		e = IST_BAD_PLUGIN;
	if (e)
		return why_not(f, e, &why, "offer", err);
	e = run_task(f, task, "offer", err);
	if (!e && (mine->bytes > 65536 || mine->n_fds > IST__OFFER_FDS))
		e = ist__fail(err, IST_BAD_PLUGIN, "group_new", "backend %s offers %llu bytes and %llu descriptors; at most 65536 and 8 are allowed", f->admitted->name,
			(unsigned long long)mine->bytes, (unsigned long long)mine->n_fds);
	return e;
}

ist_err
ist__form_connect(struct ist__form *f, struct ist__reader *all, const struct ist__settings *settings, struct ist_error *err)
{
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	struct ist_wire *wires = ist__alloc(f->ctx, f->args.size * sizeof(*wires));
	struct ist_connect args = { .struct_size = sizeof(args), .size = f->args.size, .all = wires, .agreed = settings->agreed,
		.n_agreed = f->admitted->probe.n_settings };
	struct ist_task *task = NULL;
	ist_err e;

	if (!wires)
		return ist__fail_memory(err, "group_new");
	for (uint32_t r = 0; r < f->args.size; r++) {
		wires[r].bytes = all[r].left;
		wires[r].addr = all[r].at;
		if (r == f->args.rank)
			wires[r] = f->offered;
		else if (f->wires[r].came && f->room[r] == f->room[f->args.rank]) { /* else it gave them before it knew */
			wires[r].fds = f->wires[r].fd;
			wires[r].n_fds = f->wires[r].n;
		}
	}
	e = f->admitted->ops.connect(f->chan, &args, &task, &why);
	if (!e && !task)
		e = IST_BAD_PLUGIN;
	e = e ? why_not(f, e, &why, "connect", err) : run_task(f, task, "connect", err);
	ist__free(f->ctx, wires);
	return e;
}

bool
ist__form_at_once(const struct ist__form *f)
{
	for (uint32_t r = 0; r < f->args.size; r++)
		if (strcmp(f->claims[r].backend, "auto") != 0 && strcmp(f->claims[r].backend, "host") != 0)
			return false;
	return true;
}

ist_err
ist__form_open(struct ist__form *f, struct ist__writer *w, struct ist_error *err)
{
	ist_err e = open_channel(f, err);

	if (e)
		return e;
	describe(f, w);
	return w->bad ? ist__fail_memory(err, "group_new") : IST_OK;
}

ist_err
ist__form_offer(struct ist__form *f, struct ist__writer *w, struct ist_error *err)
{
	ist_err e = offer(f, &f->offered, err);

	if (e)
		return e;
	ist__put_u32(w, (uint32_t)f->offered.n_fds);
	ist__put_bytes(w, f->offered.addr, f->offered.bytes);
	return w->bad ? ist__fail_memory(err, "group_new") : IST_OK;
}

ist_err
ist__form_compare(struct ist__form *f, struct ist__reader *all, struct ist__settings *out, struct ist_error *err)
{
	ist_err e = agree(f, all, out->agreed, out->values, err);

	for (uint32_t r = 0; !e && r < f->args.size; r++)
		ist__get_bytes(&all[r], ist__get_u32(&all[r])); /* the library's path, as in fail_version */
	return e ? e : ist__form_compare_devices(f, all, err);
}
