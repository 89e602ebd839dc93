/* SPDX-License-Identifier: Apache-2.0 */
#include "meet/status.h"

void
ist__status_put(struct ist__writer *w, const struct ist__status *s)
{
	ist__put_str(w, s->group);
	ist__put_str(w, s->host);
	ist__put_str(w, s->state);
	ist__put_u32(w, s->rank);
	ist__put_u64(w, s->pid);
	ist__put_u64(w, s->version);
	ist__put_u64(w, s->to);
	ist__put_u64(w, s->serves);
}

bool
ist__status_get(struct ist__reader *r, struct ist__status *s)
{
	bool ok = ist__get_str(r, s->group, sizeof(s->group)) && ist__get_str(r, s->host, sizeof(s->host)) &&
		ist__get_str(r, s->state, sizeof(s->state));

	s->rank = ist__get_u32(r);
	s->pid = ist__get_u64(r);
	s->version = ist__get_u64(r);
	s->to = ist__get_u64(r);
	s->serves = ist__get_u64(r);
	return ok && !r->bad;
}
