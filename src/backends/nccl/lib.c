/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/nccl/lib.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHOICE "ISTHMUS_NCCL_LIBRARY"
#define NCCL_SHARE "NCCL_MULTI_RANK_GPU_ENABLE"

static const char *const sonames[] = { "libnccl.so.2", "librccl.so.1" };

/* What NCCL wants alike on all ranks, since each decides by it what all do. */
static const char *const variables[] = { "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE",
	"NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_COLLNET_ENABLE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS",
	"NCCL_MAX_CTAS", "NCCL_NTHREADS", "NCCL_CROSS_NIC", "NCCL_SOCKET_FAMILY", NCCL_SHARE };
_Static_assert(sizeof(variables) / sizeof(variables[0]) + 1 == NCCL_SETTINGS, "a place for each, and one for the version");

static void
lib_init(void *p)
{
	struct nccl_lib *lib = p;

	pthread_mutex_init(&lib->lock, NULL);
	for (int i = 0; i < NCCL_GATES; i++)
		pthread_mutex_init(&lib->gates[i].calls, NULL);
}

struct nccl_lib *
ist__nccl_lib(const struct ist_host *host)
{
	return IST_HAS(host, keep) && host->keep ? host->keep(host->ctx, sonames, sizeof(struct nccl_lib), lib_init) : NULL;
}

struct nccl_gate *
ist__nccl_gate(struct nccl_lib *lib, int32_t device)
{
	return &lib->gates[(uint32_t)device % NCCL_GATES];
}

/* ---- finding ---- */

/* "libnccl.so.2", "libnccl-3f1c.so.2.28.9": under whatever name a package has it. */
static bool
is_nccl(const char *path)
{
	const char *base = strrchr(path, '/');

	base = base ? base + 1 : path;
	return (!strncmp(base, "libnccl", 7) || !strncmp(base, "librccl", 7)) && strstr(base, ".so") && !strstr(base, "-net") && !strstr(base, "isthmus");
}

/* The path of a library that this process has mapped already. */
static bool
find_mapped(char *out, size_t room)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[1024];
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f)) {
		char *path = strchr(line, '/');

		line[strcspn(line, "\n")] = 0;
		found = path && is_nccl(path) && (size_t)snprintf(out, room, "%s", path) < room;
	}
	if (f)
		fclose(f);
	return found;
}

static void *
open_loaded(void)
{
	char path[NCCL_TEXT];
	void *h = NULL;

	for (int i = 0; i < 2 && !h; i++)
		h = dlopen(sonames[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	if (!h && find_mapped(path, sizeof(path)))
		h = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	return h;
}

/* The loader's own list of what lies where, as plain bytes: the names stand in it, each with its path. */
static bool
in_cache(const char *soname, char *out, size_t room)
{
	FILE *f = fopen("/etc/ld.so.cache", "re");
	char *all = NULL, *at = NULL;
	size_t n = 0, bytes = 4 << 20;

	if (f && (all = malloc(bytes + 1)) != NULL) {
		n = fread(all, 1, bytes, f);
		all[n] = 0;
	}
	for (char *from = all; from && n > 0 && (at = memmem(from, n - (size_t)(from - all), soname, strlen(soname) + 1)) != NULL; from = at + 1)
		if (at > all && at[-1] == '/')
			break;
	if (at) {
		char *end = at;

		while (at > all && at[-1] != 0)
			at--;
		snprintf(out, room, "%.*s%s", (int)(end - at), at, soname);
	}
	free(all);
	if (f)
		fclose(f);
	return at != NULL;
}

static bool
in_folders(const char *list, const char *soname, char *out, size_t room)
{
	while (list && *list) {
		size_t n = strcspn(list, ":;");

		if (n > 0 && (size_t)snprintf(out, room, "%.*s/%s", (int)n, list, soname) < room && !access(out, R_OK))
			return true;
		list += n + (list[n] != 0);
	}
	return false;
}

static bool
guess(char *out, size_t room)
{
	const char *chosen = getenv(CHOICE);

	if (chosen && *chosen)
		return snprintf(out, room, "%s", chosen) > 0 && !access(chosen, R_OK);
	if (find_mapped(out, room))
		return true;
	for (int i = 0; i < 2; i++)
		if (in_folders(getenv("LD_LIBRARY_PATH"), sonames[i], out, room) || in_cache(sonames[i], out, room) ||
		    in_folders("/lib:/usr/lib:/lib64:/usr/lib64", sonames[i], out, room))
			return true;
	return false;
}

const char *
ist__nccl_guess(struct nccl_lib *lib)
{
	pthread_mutex_lock(&lib->lock);
	if (!lib->guess[0] && lib->loaded) /* once found it stays: others read it without the lock */
		snprintf(lib->guess, sizeof(lib->guess), "%s", lib->open.path);
	else if (!lib->guess[0] && !guess(lib->guess, sizeof(lib->guess)))
		lib->guess[0] = 0;
	pthread_mutex_unlock(&lib->lock);
	return lib->guess;
}

/* ---- opening ---- */

static bool
look_up(void *handle, struct nccl_calls *calls, char *why, size_t room)
{
	void *p;

/* POSIX promises that a function's address survives a void pointer */
#define LOOK_UP(name, symbol, result, args, must) \
	p = dlsym(handle, symbol); \
	if (!p && must) { \
		snprintf(why, room, "it has no %s: no NCCL, or one that is too old", symbol); \
		return false; \
	} \
	memcpy(&calls->name, &p, sizeof(p));
	NCCL_CALLS(LOOK_UP)
#undef LOOK_UP
	return true;
}

/* Asks the library itself where it comes from and how old it is. */
static bool
identify(void *handle, struct nccl_open *out, char *why, size_t room)
{
	Dl_info info;
	int rc;

	if (!look_up(handle, &out->calls, why, room))
		return false;
	snprintf(out->path, sizeof(out->path), "%s", dladdr(dlsym(handle, "ncclGetVersion"), &info) && info.dli_fname ? info.dli_fname : "?");
	out->rccl = strstr(out->path, "librccl") != NULL;
	rc = out->calls.get_version(&out->version);
	if (rc != NCCL_SUCCESS)
		snprintf(why, room, "%s does not tell its version: %s", out->path, out->calls.error_string(rc));
	else if (out->version < NCCL_OLDEST)
		snprintf(why, room, "%s is of version code %d; 2.18.1 (21801) is the oldest that can be aborted without its peers", out->path, out->version);
	return rc == NCCL_SUCCESS && out->version >= NCCL_OLDEST;
}

bool
ist__nccl_open_at(const char *path, struct nccl_open *out, char *why, size_t room)
{
	void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* never closed: its threads and destructors outlive us */

	if (!h) {
		snprintf(why, room, "%s", dlerror());
		return false;
	}
	return identify(h, out, why, room);
}

static bool
open_any(struct nccl_lib *lib)
{
	const char *chosen = getenv(CHOICE);
	void *h = chosen && *chosen ? NULL : open_loaded();
	char first[NCCL_TEXT] = "";

	if (h)
		return identify(h, &lib->open, lib->reason, sizeof(lib->reason));
	if (chosen && *chosen)
		return ist__nccl_open_at(chosen, &lib->open, lib->reason, sizeof(lib->reason));
	for (int i = 0; i < 2; i++) {
		h = dlopen(sonames[i], RTLD_NOW | RTLD_LOCAL);
		if (h)
			return identify(h, &lib->open, lib->reason, sizeof(lib->reason));
		if (i == 0)
			snprintf(first, sizeof(first), "%s", dlerror());
	}
	snprintf(lib->reason, sizeof(lib->reason), "%s; install NCCL, or set " CHOICE " to its file", first);
	return false;
}

bool
ist__nccl_shares(const struct nccl_open *open)
{
	const char *asked = getenv(NCCL_SHARE);

	return open->version >= NCCL_SHARES_SINCE && !open->rccl && asked && !strcmp(asked, "1");
}

/* ---- what members compare ---- */

static void
setting_add(struct nccl_lib *lib, const char *name, const char *value)
{
	char *room = lib->values[lib->n_settings];

	snprintf(room, NCCL_VALUE, "%s", value ? value : "");
	lib->settings[lib->n_settings++] = (struct ist_setting){ .name = name, .value = room };
}

static void
describe(struct nccl_lib *lib)
{
	int v = lib->open.version;

	snprintf(lib->version, sizeof(lib->version), "%d.%d.%d%s", v / 10000, v / 100 % 100, v % 100, lib->open.rccl ? " (RCCL)" : "");
	snprintf(lib->line, sizeof(lib->line), "%s%d.%d", lib->open.rccl ? "RCCL " : "", v / 10000, v / 100 % 100);
	setting_add(lib, "version", lib->line);
	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
		setting_add(lib, variables[i], getenv(variables[i]));
}

bool
ist__nccl_load(struct nccl_lib *lib, const struct ist_host *host)
{
	char line[2 * NCCL_TEXT];
	bool news = false, ok;

	pthread_mutex_lock(&lib->lock);
	if (!lib->loaded) {
		lib->loaded = news = open_any(lib);
		if (news)
			describe(lib);
	}
	ok = lib->loaded;
	pthread_mutex_unlock(&lib->lock);
	if (news) {
		snprintf(line, sizeof(line), "nccl %s from %s", lib->version, lib->open.path);
		host->log(host->ctx, 2, line);
	}
	return ok;
}
