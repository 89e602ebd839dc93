/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.h - what the two ends of a stream share. A stream is a row of buckets, each one broadcast: the pieces first,
 * the table of what they are behind them. Before bucket n moves all members meet once (a "gate"): the root says how long
 * it is and what the table's digest is, and everybody how bucket n - 2 went. A receiver opens gate n + 1 before it hands bucket n to its consumer, so
 * the next bucket is filled and moved meanwhile. After the last bucket stands one more gate; then the vote.
 */
#ifndef ISTHMUS_SYNC_STREAM_H
#define ISTHMUS_SYNC_STREAM_H

#include "base/env.h"
#include "sync/agree.h"
#include "sync/ledger.h"
#include "sync/ring.h"

#include <isthmus/sync.h>

enum { IST__STREAM_SLOTS = 2, IST__STREAM_ENTRY_ROOM = 2048 /* the longest entry of a table */ };
#define IST__STREAM_BUCKET_MIN (UINT64_C(128) << 10)

struct ist__stream {
	const struct ist__ctx *ctx;
	struct ist_group *group;
	struct ist__agree agree;
	struct ist__ring ring;
	struct ist__ledger ledger;
	uint32_t rank, root;
	uint64_t bucket_bytes, version;
	int64_t timeout_ns;      /* of each wait; 0: the group's own */
	int64_t default_ns;
	int64_t began, last_gate;
	uint64_t gates;          /* passed so far */
	bool ended;              /* the root has said that gate was the last bucket's */
	bool over;               /* stream has ended, well or not */
	bool failed;
	struct ist_error why;    /* when failed */
};

/* What gate n says of bucket n. */
struct ist__gate {
	uint64_t bytes, table_bytes;
	uint64_t version;
	struct ist__digest table; /* of the table's bytes */
	uint8_t last;            /* 1: the last bucket; 2: there is none, it was the one before */
};

int64_t ist__stream_deadline(const struct ist__stream *s);
/* Agrees on root and bucket size with all members, and makes the ring. */
ist_err ist__stream_begin(struct ist__stream *s, struct ist_group *group, const struct ist_stream_args *args, bool pushes, const char *op,
	struct ist_error *err);
void ist__stream_fini(struct ist__stream *s);
/* Passes the next gate; says and hears what g has (root says). mine: NULL, or why this member stops the stream. */
ist_err ist__stream_gate(struct ist__stream *s, const struct ist_error *mine, struct ist__gate *g, const char *op, struct ist_error *err);
/* The vote. */
ist_err ist__stream_end(struct ist__stream *s, const struct ist_error *mine, const char *op, struct ist_error *err);
/* Remembers the end that was a failure, and lets what is under way run out. Returns the code. */
ist_err ist__stream_stop(struct ist__stream *s, const struct ist_error *why, struct ist_error *err);
ist_err ist__stream_report(struct ist__stream *s, struct ist_report *out, const char *op, struct ist_error *err);

#endif
