/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c - no two members on one device, where the backend can't have that. Indexes say little: each process numbers what it
 * was shown. So members tell what their device calls itself, and only of those that can't the indexes on one host count.
 */
#include "base/fail.h"
#include "group/form_int.h"
#include "net/wire.h"
#include "plug/plug.h"

#include <isthmus/device.h>
#include <string.h>

enum { UUID = sizeof(((struct ist_device_info *)0)->uuid) };

static bool
minds(const struct ist__form *f)
{
	return f->features & IST__FEATURE_UUID && f->admitted->probe.traits & IST_TRAIT_ONE_RANK;
}

/* Zeros: it does not say, or there is none. */
static void
uuid_of(struct ist__form *f, uint8_t out[UUID])
{
	const struct ist_device *d = f->ep->mem == IST_MEM_HOST ? NULL : ist__plug_device(f->env, f->ep->mem);
	struct ist_device_info info = { .struct_size = sizeof(info) };
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };

	memset(out, 0, UUID);
	if (d && f->ep->device >= 0 && !d->info(d->self, f->ep->device, &info, &why))
		memcpy(out, info.uuid, UUID);
}

void
ist__form_put_device(struct ist__form *f, struct ist__writer *w)
{
	uint8_t uuid[UUID];

	if (!(f->features & IST__FEATURE_UUID))
		return;
	ist__put_u8(w, minds(f));
	if (!minds(f))
		return;
	uuid_of(f, uuid);
	ist__put_bytes(w, uuid, UUID);
}

/* What the members say; those of backends that don't mind say nothing. */
static void
get_devices(struct ist__form *f, struct ist__reader *all, uint8_t (*uuids)[UUID])
{
	for (uint32_t r = 0; r < f->args.size; r++) {
		const void *said = ist__get_u8(&all[r]) ? ist__get_bytes(&all[r], UUID) : NULL;

		if (said)
			memcpy(uuids[r], said, UUID);
	}
}

static bool
same_device(const struct ist__form *f, uint8_t (*uuids)[UUID], uint32_t a, uint32_t b)
{
	static const uint8_t unknown[UUID];

	if (f->claims[a].mem == IST_MEM_HOST || f->claims[a].mem != f->claims[b].mem)
		return false;
	if (memcmp(uuids[a], unknown, UUID) != 0 && memcmp(uuids[b], unknown, UUID) != 0)
		return !memcmp(uuids[a], uuids[b], UUID);
	return f->host[a] == f->host[b] && f->claims[a].device == f->claims[b].device;
}

static ist_err
conflict(struct ist__form *f, uint32_t a, uint32_t b, struct ist_error *err)
{
	ist__fail(err, IST_DEVICE_CONFLICT, "group_new", "ranks %u and %u use one device (%d there, %d here), and backend %s forbids that", a, b,
		f->claims[a].device, f->claims[b].device, f->admitted->plain);
	ist__fail_rank(err, a);
	ist__fail_rank(err, b);
	return IST_DEVICE_CONFLICT;
}

ist_err
ist__form_compare_devices(struct ist__form *f, struct ist__reader *all, struct ist_error *err)
{
	uint8_t(*uuids)[UUID] = ist__alloc(f->ctx, f->args.size * sizeof(*uuids));
	ist_err e = IST_OK;

	if (!uuids)
		return ist__fail_memory(err, "group_new");
	if (f->features & IST__FEATURE_UUID)
		get_devices(f, all, uuids);
	for (uint32_t r = 0; r < f->args.size && f->one_rank; r++)
		for (uint32_t q = 0; q < r && !e; q++)
			if (same_device(f, uuids, q, r))
				e = conflict(f, q, r, err);
	ist__free(f->ctx, uuids);
	return e;
}
