/* SPDX-License-Identifier: Apache-2.0
 *
 * req.h - the public request, and what those who make requests need. A request has two owners, the user and the maker;
 * its memory goes back (to the maker's pool, or to the env's graveyard) when both have let go. It knows nothing of
 * channels or groups: the maker's hooks do.
 */
#ifndef ISTHMUS_COLL_REQ_H
#define ISTHMUS_COLL_REQ_H

#include "base/env.h"

#include <isthmus.h>
#include <stdatomic.h>

/* All but cancel may be NULL. */
struct ist__req_ops {
	/* The user wants it undone or ended. The request's lock is held: flag, wake, return; finish it from elsewhere. */
	void (*cancel)(void *owner, struct ist_req *req);
	/* ist_req_test on a pending one: may add ranks to err, which says success. The request's lock is held. */
	void (*pending)(void *owner, struct ist_req *req, struct ist_error *err);
	/* A waiter saw that it is pending a second after its deadline: whoever should have ended it is stuck. No lock held. */
	void (*overdue)(void *owner, struct ist_req *req);
	/* A waiter is about to sleep until then: the maker may use its thread, and returns when it is done or time is up, or
	 * at once. No lock held. */
	void (*wait)(void *owner, struct ist_req *req, int64_t until);
	/* The user has freed a request that had a view. No lock held. */
	void (*release)(void *owner, struct ist_req *req);
};

struct ist__req_pool;

struct ist_req {
	struct ist__handle handle; /* first */
	const struct ist__req_ops *ops;
	void *owner;
	struct ist__req_pool *pool; /* NULL: none */
	struct ist_req *next;       /* in the pool */
	int64_t deadline;           /* the operation's own; IST__NEVER: none */
	int64_t default_ns;         /* of ist_req_wait */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	/* under lock */
	struct ist_error *err;      /* NULL with code set: there was no memory for it */
	void *payload;
	struct ist_buf view;
	int fd;                     /* -1: nobody asked */
	ist_err code;
	bool has_view;
	atomic_uint done;
	atomic_uint refs;
};

/* A request of its own, for makers without a pool. The maker must live until it has called ist__req_finish. */
ist_err ist__req_new(struct ist_env *env, const struct ist__req_ops *ops, void *owner, struct ist_req **out);
/* Ends it, once: true for the call that did. err NULL: well. Wakes all. Locks that cancel takes must not be held. */
bool ist__req_finish(struct ist_req *req, const struct ist_error *err);
/* The maker lets go, after finish. */
void ist__req_drop(struct ist_req *req);
/* Both in one, where the maker still holds it: when the user sees the end, the memory is already the user's alone, so that
 * a pool needs no more requests than users hold. */
void ist__req_end(struct ist_req *req, const struct ist_error *err);
/* Before finish: what ist_req_view shows; release will be called. */
void ist__req_lend(struct ist_req *req, const struct ist_buf *view);
/* A pointer that travels with a request that was done well (a new group); take gives it once, NULL after that. */
void ist__req_set_payload(struct ist_req *req, void *payload);
void *ist__req_take_payload(struct ist_req *req);

/* Requests that are used again and again. */
struct ist__req_pool {
	struct ist_env *env;
	uint64_t bytes;             /* of one, struct ist_req first */
	const struct ist__req_ops *ops;
	void *owner;
	void (*gone)(void *owner);  /* closed, and the last request is back: free the owner */
	pthread_mutex_t lock;
	struct ist_req *first, *last;
	uint64_t refs;
	uint64_t made;              /* requests, kept or in use */
	uint32_t alive;             /* the magic of a live handle */
	bool closed;
};

void ist__pool_init(struct ist__req_pool *pool, struct ist_env *env, uint64_t bytes, const struct ist__req_ops *ops, void *owner,
	void (*gone)(void *owner));
/* Makes n requests beforehand; false: no memory for all of them. */
bool ist__pool_fill(struct ist__req_pool *pool, uint32_t n);
uint64_t ist__pool_bytes(struct ist__req_pool *pool); /* of all its requests */
/* A fresh request, with what lies behind struct ist_req zeroed. NULL: no memory. */
struct ist_req *ist__pool_get(struct ist__req_pool *pool);
/* No more gets. Requests that users still hold stay good; the pool's memory must last until gone is called, which may
 * be at once. */
void ist__pool_close(struct ist__req_pool *pool);

#endif
