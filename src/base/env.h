/* SPDX-License-Identifier: Apache-2.0
 *
 * env.h - the one value that everything hangs from, and the handles that hang from it. It knows nothing of the layers
 * above: each keeps its own part here, made at first need and ended in reverse order of making.
 */
#ifndef ISTHMUS_BASE_ENV_H
#define ISTHMUS_BASE_ENV_H

#include "base/ctx.h"

#include <pthread.h>

enum ist__kind {
	IST__ENV = 1, IST__ENDPOINT, IST__GROUP, IST__REQ, IST__CHECKPOINT, IST__SINK, IST__SYNC, IST__PUSH, IST__PULL, IST__STORE
};

/* First member of every public object. A dead one keeps its memory for a while (the env's graveyard), so that a freed
 * handle is recognised. The object behind it is small: what is big hangs from it and is freed at once. */
struct ist__handle {
	uint32_t magic; /* IST__ALIVE or IST__DEAD */
	uint32_t kind;  /* enum ist__kind */
	struct ist_env *env;
	struct ist__handle *next; /* in the graveyard, or among those that env ends */
	struct ist__handle **link;
	void (*end)(void *handle);
	void (*left)(void *handle);
};

/* Allocates a zeroed object of bytes, whose first member is the handle. NULL: no memory. */
void *ist__handle_new(struct ist_env *env, enum ist__kind kind, uint64_t bytes);
/* ist_env_free ends it where nobody has: calls end, newest first, before the parts stop; end may be NULL where a part's
 * own stop sees to it. The memory goes with env. Once, before the handle is given out. */
void ist__handle_owned(void *handle, void (*end)(void *handle));
/* The same for what only its user ends (a request): left is called after the parts have stopped, when nothing moves any more,
 * and lets go for the user. It buries the handle, unless somebody who is stuck still has it. */
void ist__handle_left(void *handle, void (*left)(void *handle));
/* True for a live handle of that kind in the process that made it. Reads nothing else. */
bool ist__handle_ok(const void *handle, enum ist__kind kind);
/* The same; BAD_HANDLE and what was wrong with it. */
ist_err ist__handle_check(const void *handle, enum ist__kind kind, const char *op, struct ist_error *err);
/* Atomically ends it: true for the one caller that did. The memory goes to the graveyard with ist__handle_bury. */
bool ist__handle_kill(void *handle, enum ist__kind kind);
void ist__handle_bury(void *handle);

/* What a layer keeps in an env. */
enum ist__part_id { IST__PART_PLUG, IST__PART_NET, IST__PART_GROUP, IST__PARTS };

/* Returns part id of env, made by make at the first call (under the env's lock; NULL: it failed and filled err). stop is
 * called by ist_env_free, last made first. */
void *ist__env_part(struct ist_env *env, enum ist__part_id id, void *(*make)(struct ist_env *env, struct ist_error *err),
	void (*stop)(struct ist_env *env, void *part), struct ist_error *err);
/* The part, or NULL where it was never made. */
void *ist__env_has(struct ist_env *env, enum ist__part_id id);
const struct ist__ctx *ist__env_ctx(struct ist_env *env);

/* Has the caller's thread, by ulimit -s, a stack that is too small for what goes deep? Threads of ours have more. */
bool ist__stack_is_small(void);
/* Starts a library thread: all signals blocked, named ist-NAME (15 bytes in all), on the env's CPUs. 0 or an errno. */
int ist__thread(struct ist_env *env, const char *name, void *(*run)(void *), void *arg, pthread_t *out);

#endif
