/* SPDX-License-Identifier: Apache-2.0
 *
 * session.h - from options to a formed group: env, secret, endpoint, meeting. Each step returns an exit status and has
 * already told its error.
 */
#ifndef ISTHMUS_TOOL_SESSION_H
#define ISTHMUS_TOOL_SESSION_H

#include "cli.h"

struct secret {
	uint8_t *bytes;  /* NULL: none */
	uint64_t n;
};

/* --secret-file: less one trailing newline, at least 16 bytes, its owner's alone. */
int secret_read(const struct cli *cli, struct secret *out);
void secret_free(struct secret *secret);

struct session {
	const struct cli *cli;
	struct ist_env *env;
	struct ist_endpoint *endpoint;
	struct ist_group *group;
	struct ist_req *forming;
	uint32_t rank, world;
	char at[1024];
	char backend[512];      /* "" is auto */
	uint32_t mem;           /* enum ist_mem_kind of --device */
	int32_t device;         /* -1: none */
	bool device_in_turn;    /* no number was given: modulo the devices that there are */
	double meet_s;
	int64_t meet_ns;
};

/* Checks rank, world, address and device; touches nothing outside. */
int session_plan(struct session *s, struct cli *cli);
int session_plan_device(struct session *s, struct cli *cli); /* the last of these alone */
int session_open(struct session *s);   /* env and endpoint */
int session_start(struct session *s);  /* begins to meet; other work may be done meanwhile */
int session_meet(struct session *s);   /* waits until the group has formed */
/* This member can't go on, for a reason of its own: waits a second at most for the group to form, so that the others can be
 * told instead of waiting for us until their deadline. */
void session_give_up(struct session *s, const char *reason);
/* A second group at the same endpoint (demo: the member's own world); backend NULL: the core's choice. Blocks. */
int session_group(struct session *s, const char *at, const char *name, uint32_t rank, uint32_t world, const char *backend,
	struct ist_group **out);
/* Takes everything apart, bounded; s may be half made. */
void session_close(struct session *s);
int session_env(struct session *s, const struct cli *cli); /* an env alone, with this program's log */

#endif
