/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/cuda_api.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"

struct call {
	const char *name;
	size_t at;
};

static const struct call calls[] = {
#define F(member, name, args) { name, offsetof(struct ist__cuda_api, member) },
	IST__CUDA_CALLS(F)
#undef F
};

static int
find(struct ist__cuda_api *api, void *lib, const char *name, size_t at)
{
	void *found = dlsym(lib, name);

	if (found)
		memcpy((char *)api + at, &found, sizeof(found));
	return found != NULL;
}

enum ist__cuda_load
ist__cuda_load(struct ist__cuda_api *api, int may_load, char *text, size_t room)
{
	void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	struct link_map *map = NULL;

	if (!lib && may_load)
		lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(text, room, "%s", may_load ? dlerror() : LIBRARY " is not loaded");
		return IST__CUDA_NONE;
	}
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (!find(api, lib, calls[i].name, calls[i].at)) {
			snprintf(text, room, "the driver is too old: its %s has no %s", LIBRARY, calls[i].name);
			return IST__CUDA_OLD;
		}
	if (!find(api, lib, "cuDeviceGetUuid_v2", offsetof(struct ist__cuda_api, device_uuid)) &&
	    !find(api, lib, "cuDeviceGetUuid", offsetof(struct ist__cuda_api, device_uuid))) {
		snprintf(text, room, "the driver is too old: its %s has no cuDeviceGetUuid", LIBRARY);
		return IST__CUDA_OLD;
	}
	snprintf(api->library, sizeof(api->library), "%s", !dlinfo(lib, RTLD_DI_LINKMAP, &map) && map && map->l_name ? map->l_name : LIBRARY);
	return IST__CUDA_LOADED;
}
