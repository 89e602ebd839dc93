/* SPDX-License-Identifier: Apache-2.0
 *
 * api.c - the public bulk operations: find the group's line, put the operation there.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "coll/choose.h"
#include "coll/line.h"

static ist_err
put(struct ist_group *group, uint32_t kind, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err)
{
	const char *op = ist__kind_name(kind);
	struct ist_error mine = { .struct_size = sizeof(mine) };
	struct ist__line *line;
	uint32_t peer = IST_NO_RANK;
	int64_t timeout = 0;
	ist_err e;

	if (kind == IST_OP_SEND && args && IST_HAS(args, peer))
		peer = args->peer;
	if (kind == IST_OP_RECV) /* its bytes may be here although it has left */
		peer = IST__ANY_PEER;
	line = ist__group_line(group, op, peer, err ? err : &mine);
	if (!line)
		return err ? err->code : mine.code;
	if (!out) {
		ist__line_drop(line);
		return ist__fail(err, IST_INVALID_ARGUMENT, op, "out is NULL");
	}
	if (args && IST_HAS(args, timeout_ns))
		timeout = args->timeout_ns;
	e = ist__line_submit(line, kind, args, ist__deadline(timeout, ist__group_timeout(group)), out, err);
	ist__line_drop(line);
	return e;
}

ist_err
ist_broadcast(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err)
{
	return put(group, IST_OP_BROADCAST, args, out, err);
}

ist_err
ist_all_gather(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err)
{
	return put(group, IST_OP_ALL_GATHER, args, out, err);
}

ist_err
ist_gather(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err)
{
	return put(group, IST_OP_GATHER, args, out, err);
}

ist_err
ist_scatter(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err)
{
	return put(group, IST_OP_SCATTER, args, out, err);
}

ist_err
ist_all_to_all(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err)
{
	return put(group, IST_OP_ALL_TO_ALL, args, out, err);
}

ist_err
ist_all_reduce(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err)
{
	return put(group, IST_OP_ALL_REDUCE, args, out, err);
}

ist_err
ist_reduce_scatter(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err)
{
	return put(group, IST_OP_REDUCE_SCATTER, args, out, err);
}

ist_err
ist_send(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err)
{
	return put(group, IST_OP_SEND, args, out, err);
}

ist_err
ist_recv(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err)
{
	return put(group, IST_OP_RECV, args, out, err);
}
