/* SPDX-License-Identifier: Apache-2.0
 *
 * device_api.c - memory of a device for callers that have no library of its maker at hand: a program that only moves weights.
 */
#include "base/fail.h"
#include "plug/far.h"
#include "plug/plug.h"

#include <isthmus.h>

/* The kind of memory that is the device's own: pinned memory of the host is had from one as well. */
static uint32_t
own_kind(struct ist_env *env, uint32_t mem)
{
	const struct ist_device *d = mem == IST_MEM_PINNED ? ist__plug_device(env, mem) : NULL;

	return !d ? mem : d->mem >> IST_MEM_ASCEND & 1 ? IST_MEM_ASCEND : IST_MEM_CUDA;
}

static ist_err
find(struct ist_env *env, const char *op, uint32_t mem, int32_t device, struct ist__far *far, struct ist_error *err)
{
	ist_err e = ist__handle_check(env, IST__ENV, op, err);

	return e ? e : ist__far_find(env, own_kind(env, mem), device, op, far, err);
}

ist_err
ist_device_count(struct ist_env *env, uint32_t mem, uint32_t *out, struct ist_error *err)
{
	ist_err e = ist__handle_check(env, IST__ENV, "device_count", err);

	if (e)
		return e;
	if (!out)
		return ist__fail(err, IST_INVALID_ARGUMENT, "device_count", "out is missing");
	*out = ist__plug_device_count(env, mem);
	return IST_OK;
}

ist_err
ist_device_alloc(struct ist_env *env, uint32_t mem, int32_t device, uint64_t bytes, void **out, struct ist_error *err)
{
	struct ist__far far;
	ist_err e = find(env, "device_alloc", mem, device, &far, err);

	if (!e && (!out || bytes == 0))
		e = ist__fail(err, IST_INVALID_ARGUMENT, far.op, "out is missing, or bytes is 0");
	return e ? e : ist__far_alloc(&far, mem, 0, bytes, out, err);
}

ist_err
ist_device_free(struct ist_env *env, uint32_t mem, int32_t device, void *addr)
{
	struct ist__far far;
	ist_err e = find(env, "device_free", mem, device, &far, NULL);

	if (!e)
		ist__far_free(&far, mem, addr);
	return e;
}

ist_err
ist_device_copy(struct ist_env *env, uint32_t mem, int32_t device, void *dst, const void *src, uint64_t bytes, struct ist_error *err)
{
	struct ist_copy copy = { .dst = dst, .src = src, .bytes = bytes };
	struct ist__ferry ferry;
	ist_err e = ist__handle_check(env, IST__ENV, "device_copy", err);

	if (!e)
		e = ist__ferry_open(env, mem, device, "device_copy", &ferry, err);
	if (e)
		return e;
	if (bytes > 0)
		e = ist__ferry_copy(&ferry, &copy, 1, err);
	ist__ferry_close(&ferry);
	return e;
}
