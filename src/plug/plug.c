/* SPDX-License-Identifier: Apache-2.0 */
#include "plug/plug.h"

#include "base/fail.h"
#include "devices/cuda.h"
#include "devices/host.h"
#include "plug/load.h"
#include "plug/services.h"
#include "plug/wrap.h"

#include <isthmus.h>

#include <stdio.h>
#include <string.h>

/* Generated: in the order of CMakeLists.txt, ends with NULL. */
extern const ist_backend_entry ist__builtin[];

struct entry {
	bool is_device, from_file, loaded; /* loaded: full is filled */
	struct ist__file_id id;
	char *path;                        /* ours; NULL: no file */
	struct ist__admitted look, full;   /* backends */
	struct ist__admitted_device device;
	struct ist__wrap *wrap;            /* made at need; not in lists */
};

struct plug {
	struct ist_env *env;
	const struct ist__ctx *ctx;
	pthread_mutex_t lock; /* entries; recursive, since a wrapper asks for what it wraps and a probe may ask for a device */
	struct ist__services *services;
	struct ist__host_device *host;
	struct ist__cuda *cuda;
	struct entry **list;
	uint64_t n, room;
};

static void
entry_free(struct plug *p, struct entry *e)
{
	ist__wrap_free(e->wrap);
	ist__free(p->ctx, e->path);
	ist__free(p->ctx, e);
}

static bool
entry_keep(struct plug *p, struct entry *e)
{
	void *array = p->list;

	if (!ist__grow(p->ctx, &array, &p->room, p->n + 1, sizeof(*p->list)))
		return false;
	p->list = array;
	p->list[p->n++] = e;
	return true;
}

static const char *
entry_name(const struct entry *e)
{
	return e->is_device ? e->device.name : e->look.name;
}

static struct entry *
find(struct plug *p, const char *name, bool is_device)
{
	for (uint64_t i = 0; i < p->n; i++)
		if (p->list[i]->is_device == is_device && !strcmp(entry_name(p->list[i]), name))
			return p->list[i];
	return NULL;
}

static const char *
text(const char *s)
{
	return s ? s : "";
}

/* Fills what the probe says, with texts that are there and bits that this library knows the meaning of. */
static void
probe(struct ist__admitted *a, uint32_t level)
{
	struct ist_probe out = { .struct_size = sizeof(out) };

	a->ops.probe(a->ops.self, a->host, level, &out);
	out.struct_size = sizeof(out);
	out.reason = text(out.reason);
	out.library = text(out.library);
	out.version = text(out.version);
	if (!out.settings)
		out.n_settings = 0;
	a->probe = out;
	a->native = out.native_ops;
	a->level = level;
}

static const struct ist_device *
device_of(void *owner, uint32_t mem)
{
	struct plug *p = owner;
	const struct ist_device *found = NULL;

	pthread_mutex_lock(&p->lock);
	for (uint64_t i = 0; i < p->n && mem < 64; i++) {
		struct entry *e = p->list[i];
		struct ist_device_probe out = { .struct_size = sizeof(out) };

		if (!e->is_device || !(e->device.ops.mem >> mem & 1))
			continue;
		e->device.ops.probe(e->device.ops.self, ist__services_host(p->services), IST_LOOK, &out);
		if (out.count > 0 || !out.reason || !*out.reason) /* 0 without a reason: not known without starting it */
			found = &e->device.ops;
	}
	pthread_mutex_unlock(&p->lock);
	return found;
}

/* Gives e what a table says, and the name it is chosen by: its own, or its path where that name is taken. */
static ist_err
entry_backend(struct plug *p, struct entry *e, const struct ist_backend *table, struct ist_error *err)
{
	struct ist__admitted *a = &e->look;
	struct entry *other;
	ist_err rc = ist__backend_admit(table, a, err);

	if (rc)
		return rc;
	a->host = ist__services_host(p->services);
	a->name = a->plain = a->ops.name;
	a->path = text(e->path);
	other = find(p, a->name, false);
	if (other && !e->from_file)
		return ist__fail(err, IST_CONFLICT, "backend_add", "there is a backend %s already%s%s", a->name, *other->look.path ? ", from " : "",
			other->look.path);
	if (other) {
		ist__log(p->ctx, IST_LOG_WARN, "backend %s is there already (%s), the one of %s is chosen by its path", a->name,
			*other->look.path ? other->look.path : "built in", a->path);
		a->name = a->path;
	}
	probe(a, IST_LOOK);
	return IST_OK;
}

static ist_err
entry_device(struct plug *p, struct entry *e, const struct ist_device *table, struct ist_error *err)
{
	struct ist__admitted_device *d = &e->device;
	struct entry *other;
	ist_err rc = ist__device_admit(table, d, err);

	if (rc)
		return rc;
	d->name = d->ops.name;
	d->path = text(e->path);
	other = find(p, d->name, true);
	if (other && !e->from_file)
		return ist__fail(err, IST_CONFLICT, "device_add", "there is a device %s already", d->name);
	if (other) {
		ist__log(p->ctx, IST_LOG_WARN, "device %s is there already (%s), the one of %s comes after it", d->name,
			*other->device.path ? other->device.path : "built in", d->path);
		d->name = d->path;
	}
	return IST_OK;
}

/* backend or device: the other is NULL. path becomes the entry's, also when it fails. */
static ist_err
admit(struct plug *p, const struct ist_backend *backend, const struct ist_device *device, char *path, const struct ist__file_id *id,
	struct entry **out, struct ist_error *err)
{
	struct entry *e = ist__alloc(p->ctx, sizeof(*e));
	ist_err rc;

	if (!e) {
		ist__free(p->ctx, path);
		return ist__fail_memory(err, "backend_add");
	}
	e->path = path;
	e->from_file = path != NULL;
	e->is_device = device != NULL;
	if (id)
		e->id = *id;
	rc = device ? entry_device(p, e, device, err) : entry_backend(p, e, backend, err);
	if (!rc && !entry_keep(p, e))
		rc = ist__fail_memory(err, "backend_add");
	if (rc) {
		entry_free(p, e);
		return rc;
	}
	if (out)
		*out = e;
	return IST_OK;
}

static void
plug_stop(struct ist_env *env, void *part)
{
	struct plug *p = part;

	(void)env;
	if (p->services)
		ist__services_end(p->services); /* its threads may still ask for devices */
	while (p->n > 0) /* wrappers come after what they wrap */
		entry_free(p, p->list[--p->n]);
	ist__free(p->ctx, p->list);
	ist__cuda_free(p->cuda);
	ist__host_device_free(p->host);
	pthread_mutex_destroy(&p->lock);
	ist__free(p->ctx, p);
}

static ist_err
admit_builtin(struct plug *p, struct ist_error *err)
{
	struct ist_device host, cuda;
	ist_err e = IST_OK;

	p->host = ist__host_device_new(p->ctx, &host);
	p->cuda = ist__cuda_new(p->ctx, &cuda);
	if (!p->host || !p->cuda)
		return ist__fail_memory(err, "env");
	e = admit(p, NULL, &host, NULL, NULL, NULL, err);
	if (!e)
		e = admit(p, NULL, &cuda, NULL, NULL, NULL, err);
	for (size_t i = 0; !e && ist__builtin[i]; i++) {
		struct entry *made = NULL;

		e = admit(p, ist__builtin[i](), NULL, NULL, NULL, &made, err);
		if (!e && made)
			made->look.builtin = true;
	}
	return e;
}

static void *
plug_make(struct ist_env *env, struct ist_error *err)
{
	const struct ist__ctx *ctx = ist__env_ctx(env);
	struct plug *p = ist__alloc(ctx, sizeof(*p));
	pthread_mutexattr_t recursive;

	if (!p) {
		ist__fail_memory(err, "env");
		return NULL;
	}
	p->env = env;
	p->ctx = ctx;
	pthread_mutexattr_init(&recursive);
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&p->lock, &recursive);
	pthread_mutexattr_destroy(&recursive);
	p->services = ist__services_new(env, device_of, p);
	if (!p->services)
		ist__fail_memory(err, "env");
	if (!p->services || admit_builtin(p, err)) {
		plug_stop(env, p);
		return NULL;
	}
	return p;
}

static struct plug *
plug_of(struct ist_env *env, struct ist_error *err)
{
	return ist__env_part(env, IST__PART_PLUG, plug_make, plug_stop, err);
}

/* With the lock held. A file that was loaded before is the same entry, whatever path leads to it. */
static ist_err
load(struct plug *p, const char *path, bool is_device, struct entry **out, struct ist_error *err)
{
	struct ist__file_id id;
	struct entry *e = NULL;
	char *real;
	void *entry;
	ist_err rc = ist__load_find(p->ctx, path, &real, &id, err);

	if (rc)
		return rc;
	for (uint64_t i = 0; i < p->n && !e; i++)
		if (p->list[i]->from_file && p->list[i]->is_device == is_device && p->list[i]->id.dev == id.dev &&
		    p->list[i]->id.ino == id.ino)
			e = p->list[i];
	if (e) {
		ist__log(p->ctx, IST_LOG_INFO, "%s is loaded already, as %s", path, entry_name(e));
		ist__free(p->ctx, real);
		*out = e;
		return IST_OK;
	}
	rc = ist__load_entry(real, is_device ? IST_DEVICE_ENTRY : IST_BACKEND_ENTRY, &entry, err);
	if (rc) {
		ist__free(p->ctx, real);
		return rc;
	}
	/* POSIX promises that a function's address survives a void pointer */
	if (is_device) {
		ist_device_entry get;

		memcpy(&get, &entry, sizeof(get));
		rc = admit(p, NULL, get(), real, &id, out, err);
	} else {
		ist_backend_entry get;

		memcpy(&get, &entry, sizeof(get));
		rc = admit(p, get(), NULL, real, &id, out, err);
	}
	if (rc == IST_BAD_PLUGIN) {
		ist__fail_prefix(err, "%s: ", path);
		ist__fail_next(err, "build it against this library's headers, run 'isthmus check' on it, and start this process again");
	} else if (!rc) {
		ist__log(p->ctx, IST_LOG_INFO, "loaded %s %s from %s", is_device ? "device" : "backend", entry_name(*out), (*out)->path);
	}
	return rc;
}

/* "trace:NAME" and "fault:SPEC:NAME"; *out stays NULL where name is neither. With the lock held. */
static ist_err
wrapped(struct plug *p, const char *name, struct entry **out, struct ist_error *err)
{
	bool fault = !strncmp(name, "fault:", 6);
	const struct ist__admitted *inner;
	char spec[256] = "";
	const char *rest = name + 6;
	struct entry *e;
	ist_err rc;

	if (!fault && strncmp(name, "trace:", 6) != 0)
		return IST_OK;
	if (fault) {
		const char *colon = strchr(rest, ':');

		if (!colon || (size_t)(colon - rest) >= sizeof(spec))
			return ist__fail(err, IST_BAD_CONFIG, "backend_get", "\"%s\": write fault:SPEC:NAME, such as fault:flip:host", name);
		memcpy(spec, rest, (size_t)(colon - rest));
		rest = colon + 1;
	}
	rc = ist__plug_get(p->env, rest, &inner, err);
	if (rc)
		return rc;
	e = ist__alloc(p->ctx, sizeof(*e));
	if (!e)
		return ist__fail_memory(err, "backend_get");
	rc = ist__wrap_new(p->ctx, name, fault ? "fault" : "trace", spec, inner, &e->wrap, err);
	if (!rc && !entry_keep(p, e))
		rc = ist__fail_memory(err, "backend_get");
	if (rc) {
		entry_free(p, e);
		return rc;
	}
	e->look = e->full = e->wrap->made;
	e->loaded = true;
	*out = e;
	return IST_OK;
}

/* With the lock held. */
static ist_err
no_such_backend(struct plug *p, const char *name, struct ist_error *err)
{
	char list[1024] = "";
	size_t n = 0;

	for (uint64_t i = 0; i < p->n; i++)
		if (!p->list[i]->is_device && !p->list[i]->wrap && n + strlen(p->list[i]->look.name) + 2 < sizeof(list))
			n += (size_t)snprintf(list + n, sizeof(list) - n, " %s", p->list[i]->look.name);
	ist__fail(err, IST_BAD_CONFIG, "backend_get", "there is no backend \"%s\"; there are:%s", name, list);
	ist__fail_next(err, "give one of these names, or the path of a plug-in");
	return IST_BAD_CONFIG;
}

/* A name that can only mean a file. */
static bool
is_path(const char *name)
{
	size_t n = strlen(name);

	return strchr(name, '/') != NULL || (n > 3 && !strcmp(name + n - 3, ".so"));
}

static ist_err
get(struct plug *p, const char *name, const struct ist__admitted **out, struct ist_error *err)
{
	struct entry *e = find(p, name, false);
	ist_err rc = e ? IST_OK : wrapped(p, name, &e, err);

	if (!rc && !e)
		rc = is_path(name) ? load(p, name, false, &e, err) : no_such_backend(p, name, err);
	if (rc)
		return rc;
	if (!e->loaded) {
		struct ist__admitted full = e->look;

		probe(&full, IST_LOAD);
		if (!full.probe.usable) /* not kept: it may be another time */
			return ist__fail(err, IST_UNSUPPORTED, "backend_get", "backend %s can't run here: %s", full.name,
				*full.probe.reason ? full.probe.reason : "it does not say why");
		if (~full.native & (UINT64_C(1) << IST_OP_SEND | UINT64_C(1) << IST_OP_RECV))
			return ist__fail(err, IST_BAD_PLUGIN, "backend_get", "backend %s does not say that it can send and receive", full.name);
		e->full = full;
		e->loaded = true;
	}
	*out = &e->full;
	return IST_OK;
}

ist_err
ist__plug_get(struct ist_env *env, const char *name, const struct ist__admitted **out, struct ist_error *err)
{
	struct plug *p = plug_of(env, err);
	ist_err e;

	if (!p)
		return IST_NO_MEMORY;
	if (!name || !*name)
		return ist__fail(err, IST_INVALID_ARGUMENT, "backend_get", "a backend's name is needed");
	pthread_mutex_lock(&p->lock);
	e = get(p, name, out, err);
	pthread_mutex_unlock(&p->lock);
	return e;
}

const struct ist__admitted *
ist__plug_nth(struct ist_env *env, uint32_t i)
{
	struct plug *p = plug_of(env, NULL);
	const struct ist__admitted *found = NULL;

	if (!p)
		return NULL;
	pthread_mutex_lock(&p->lock);
	for (uint64_t k = 0; k < p->n && !found; k++)
		if (!p->list[k]->is_device && !p->list[k]->wrap && i-- == 0)
			found = &p->list[k]->look;
	pthread_mutex_unlock(&p->lock);
	return found;
}

const struct ist_device *
ist__plug_device(struct ist_env *env, uint32_t mem)
{
	struct plug *p = plug_of(env, NULL);

	return p ? device_of(p, mem) : NULL;
}

uint32_t
ist__plug_device_count(struct ist_env *env, uint32_t mem)
{
	struct ist_device_probe probed = { .struct_size = sizeof(probed) };
	const struct ist_device *d = ist__plug_device(env, mem);
	struct plug *p = plug_of(env, NULL);

	if (!d || !p)
		return 0;
	d->probe(d->self, ist__services_host(p->services), IST_START, &probed);
	return probed.count;
}

const struct ist_host *
ist__plug_host(struct ist_env *env, struct ist_error *err)
{
	struct plug *p = plug_of(env, err);

	return p ? ist__services_host(p->services) : NULL;
}

/* ---- the front door ---- */

static ist_err
enter(struct ist_env *env, const char *op, struct plug **out, struct ist_error *err)
{
	ist_err e = ist__handle_check(env, IST__ENV, op, err);

	if (e)
		return e;
	*out = plug_of(env, err);
	return *out ? IST_OK : IST_NO_MEMORY;
}

static ist_err
load_public(struct ist_env *env, const char *path, bool is_device, const char **name, struct ist_error *err)
{
	struct entry *e;
	struct plug *p;
	ist_err rc = enter(env, is_device ? "device_load" : "backend_load", &p, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&p->lock);
	rc = load(p, path, is_device, &e, err);
	if (!rc && name)
		*name = entry_name(e);
	pthread_mutex_unlock(&p->lock);
	return rc;
}

static ist_err
add_public(struct ist_env *env, const char *op, const struct ist_backend *backend, const struct ist_device *device, struct ist_error *err)
{
	struct plug *p;
	ist_err rc = enter(env, op, &p, err);

	if (rc)
		return rc;
	if (!backend && !device)
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "table is NULL");
	pthread_mutex_lock(&p->lock);
	rc = admit(p, backend, device, NULL, NULL, NULL, err);
	pthread_mutex_unlock(&p->lock);
	return rc;
}

ist_err
ist_backend_load(struct ist_env *env, const char *path, const char **name, struct ist_error *err)
{
	return load_public(env, path, false, name, err);
}

ist_err
ist_device_load(struct ist_env *env, const char *path, const char **name, struct ist_error *err)
{
	return load_public(env, path, true, name, err);
}

ist_err
ist_backend_add(struct ist_env *env, const struct ist_backend *table, struct ist_error *err)
{
	return add_public(env, "backend_add", table, NULL, err);
}

ist_err
ist_device_add(struct ist_env *env, const struct ist_device *table, struct ist_error *err)
{
	return add_public(env, "device_add", NULL, table, err);
}

uint32_t
ist_backend_count(struct ist_env *env)
{
	struct plug *p;
	uint32_t n = 0;

	if (enter(env, "backend_count", &p, NULL))
		return 0;
	pthread_mutex_lock(&p->lock);
	for (uint64_t i = 0; i < p->n; i++)
		n += !p->list[i]->wrap;
	pthread_mutex_unlock(&p->lock);
	return n;
}

static void
backend_info(struct entry *e, struct ist_backend_info *out)
{
	const uint64_t all = (UINT64_C(2) << IST_OP_BARRIER) - (UINT64_C(1) << IST_OP_SEND); /* what a group can be asked for */

	struct ist__admitted copy = e->loaded ? e->full : e->look, *a = &copy;

	if (!e->loaded)
		probe(a, IST_LOOK); /* it may have changed since */
	out->name = a->name;
	out->kind = "backend";
	out->usable = a->probe.usable != 0;
	out->reason = a->probe.reason;
	out->library = *a->probe.library ? a->probe.library : a->path;
	out->version = a->probe.version;
	out->native_ops = a->native;
	out->composed_ops = all & ~a->native & ~(UINT64_C(1) << IST_OP_SEND | UINT64_C(1) << IST_OP_RECV);
	out->traits = a->probe.traits;
}

static void
device_info(struct plug *p, struct entry *e, struct ist_backend_info *out)
{
	struct ist_device_probe probed = { .struct_size = sizeof(probed) };

	e->device.ops.probe(e->device.ops.self, ist__services_host(p->services), IST_LOOK, &probed);
	out->name = e->device.name;
	out->kind = "device";
	out->reason = text(probed.reason);
	out->usable = probed.count > 0 || !*out->reason;
	out->library = text(probed.library);
	if (!*out->library)
		out->library = e->device.path;
	out->version = text(probed.version);
}

ist_err
ist_backend_info(struct ist_env *env, uint32_t index, struct ist_backend_info *out, struct ist_error *err)
{
	struct ist_backend_info info = { .struct_size = sizeof(info) };
	struct entry *e = NULL;
	struct plug *p;
	uint32_t size, left = index;
	ist_err rc = enter(env, "backend_info", &p, err);

	if (rc)
		return rc;
	if (!out || out->struct_size < sizeof(out->struct_size))
		return ist__fail(err, IST_INVALID_ARGUMENT, "backend_info", "out is NULL or has no struct_size");
	pthread_mutex_lock(&p->lock);
	for (uint64_t i = 0; i < p->n && !e; i++)
		if (!p->list[i]->wrap && left-- == 0)
			e = p->list[i];
	if (e && e->is_device)
		device_info(p, e, &info);
	else if (e)
		backend_info(e, &info);
	pthread_mutex_unlock(&p->lock);
	if (!e)
		return ist__fail(err, IST_INVALID_ARGUMENT, "backend_info", "index %u: there are only %u", index, ist_backend_count(env));
	size = out->struct_size < sizeof(info) ? out->struct_size : (uint32_t)sizeof(info);
	memcpy((char *)out + sizeof(size), (const char *)&info + sizeof(size), size - sizeof(size));
	return IST_OK;
}
