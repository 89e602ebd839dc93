/* SPDX-License-Identifier: Apache-2.0
 *
 * isthmus.h - the front door: join processes that already have worlds of their own into one group, and let the
 * group move bytes. Read from the top and stop when satisfied. Weight sync is in isthmus/sync.h, what a backend
 * author needs in isthmus/backend.h, the errors in isthmus/error.h.
 *
 *     ist_env       one in a process, or several: log, allocator, admitted backends, library threads
 *     ist_endpoint  where this process can be reached, and the secret that strangers must know
 *     ist_group     a value: my rank, the others, a control mesh, one open channel of a backend
 *     ist_req       an operation under way
 *
 * Rules for every call here
 *   errors     returns 0 (IST_OK) or a code; err, where it is given, is filled in full (it may be NULL); outputs are
 *              written only on success.
 *   threads    any call, any handle, any thread. Calls on one group are taken one after the other where order
 *              matters. A handle must not be freed while another thread is inside a call with it, ist_group_abort
 *              and ist_group_free apart: those wake the others (ABORTED) first.
 *   handles    NULL, a freed handle, one of another kind, and any handle in a forked child are BAD_HANDLE, and are
 *              not touched. A freed handle is recognised until 512 more of its env were freed.
 *   structs    every args, out and error struct begins with its own size in bytes; set it with sizeof. A zeroed rest
 *              means defaults.
 *   time       timeouts are in nanoseconds; 0: the default (the group's; 300 s); negative: wait for ever.
 */
#ifndef ISTHMUS_H
#define ISTHMUS_H

#include <isthmus/backend.h>
#include <isthmus/device.h>
#include <isthmus/error.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IST_ABI_VERSION 1u
#define IST_NS_PER_S INT64_C(1000000000)

/* ---- the library ---- */

IST_API uint32_t ist_abi_version(void);     /* IST_ABI_VERSION of the library */
IST_API const char *ist_version(void);      /* "0.1.0" */
IST_API void ist_proto_range(uint32_t *min, uint32_t *max);
IST_API const char *ist_features(void);     /* names of the wire features, separated by blanks */
IST_API const char *ist_build(void);        /* compiler and flags, for bug reports */

/* ---- env ---- */

struct ist_env;
enum ist_log_level { IST_LOG_ERROR = 0, IST_LOG_WARN = 1, IST_LOG_INFO = 2, IST_LOG_DEBUG = 3, IST_LOG_TRACE = 4 };

struct ist_env_args {
	uint32_t struct_size;
	int32_t log_level;                         /* up to which; without a sink the library is silent */
	void (*log)(void *ctx, int32_t level, const char *msg); /* any thread; msg is lent for the call */
	void *log_ctx;
	/* Big memory (buckets, segments' private halves). kind: enum ist_mem_kind; numa: -1, any. NULL: malloc and mmap. */
	void *(*alloc)(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa);
	void (*free)(void *ctx, void *p);
	void *mem_ctx;
	const char *cpus;                          /* CPU list of the library's threads, "0-3,8"; NULL: as inherited */
	int32_t numa;                              /* node of big memory; 0 with numa_set 0: any */
	uint32_t numa_set;
};

/* Starts the library's threads lazily, at the first endpoint. args may be NULL. */
IST_API ist_err ist_env_new(const struct ist_env_args *args, struct ist_env **out, struct ist_error *err);
/* Frees everything that hangs from env: its groups are aborted, its handles are dead, requests too. Bounded; NULL is allowed. */
IST_API void ist_env_free(struct ist_env *env);

/* Admits a third party's backend or device: a file (an explicit path, never a search), or a table in memory, which
 * must outlive env. *name, where asked for, is the name it can then be chosen by; it lives as long as env. */
IST_API ist_err ist_backend_load(struct ist_env *env, const char *path, const char **name, struct ist_error *err);
IST_API ist_err ist_backend_add(struct ist_env *env, const struct ist_backend *table, struct ist_error *err);
IST_API ist_err ist_device_load(struct ist_env *env, const char *path, const char **name, struct ist_error *err);
IST_API ist_err ist_device_add(struct ist_env *env, const struct ist_device *table, struct ist_error *err);

/* How many devices there are whose memory is of that kind (enum ist_mem_kind); 0 also where there is no such library. Starts it. */
IST_API ist_err ist_device_count(struct ist_env *env, uint32_t mem, uint32_t *out, struct ist_error *err);
/* Memory there, for programs that don't use the maker's own library; or, with mem IST_MEM_PINNED, memory of the host that the device
 * copies from and to at its full speed. bytes > 0. Freed by its owner before env. */
IST_API ist_err ist_device_alloc(struct ist_env *env, uint32_t mem, int32_t device, uint64_t bytes, void **out, struct ist_error *err);
IST_API ist_err ist_device_free(struct ist_env *env, uint32_t mem, int32_t device, void *addr);
/* To it, from it or inside it; over when it returns. */
IST_API ist_err ist_device_copy(
	struct ist_env *env, uint32_t mem, int32_t device, void *dst, const void *src, uint64_t bytes, struct ist_error *err);

/* What is there, usable or not. Strings live as long as env. */
struct ist_backend_info {
	uint32_t struct_size;
	uint32_t usable;
	const char *name;
	const char *kind;      /* "backend" or "device" */
	const char *reason;    /* why not usable, or "" */
	const char *library;
	const char *version;
	uint64_t native_ops;   /* bit 1 << enum ist_op_kind */
	uint64_t composed_ops; /* what the core composes from send and recv */
	uint64_t traits;
};
IST_API uint32_t ist_backend_count(struct ist_env *env);
IST_API ist_err ist_backend_info(struct ist_env *env, uint32_t index, struct ist_backend_info *out, struct ist_error *err);

/* ---- endpoint ---- */

struct ist_endpoint;

struct ist_endpoint_args {
	uint32_t struct_size;
	uint32_t insecure;      /* 1: no secret is asked for off loopback */
	const char *bind;       /* ADDR[:PORT], INTERFACE or CIDR, comma separated; NULL: the local address of the
	                         * connection that reaches the meeting place, loopback if that is loopback */
	const char *advertise;  /* HOST[:PORT] to tell the others (NAT); NULL: what is bound */
	const void *secret;     /* at least 16 bytes; copied into locked memory; NULL: none */
	uint64_t secret_bytes;
	int32_t listen_fd;      /* an already listening TCP socket, taken over on success; 0: none */
	int32_t device;         /* index; with mem below */
	uint32_t mem;           /* enum ist_mem_kind of the device; IST_MEM_HOST: none */
	uint32_t transport;     /* enum ist_transport */
};
enum ist_transport { IST_TRANSPORT_AUTO = 0, IST_TRANSPORT_SHM = 1, IST_TRANSPORT_TCP = 2 };

IST_API ist_err ist_endpoint_new(
	struct ist_env *env, const struct ist_endpoint_args *args, struct ist_endpoint **out, struct ist_error *err);
IST_API void ist_endpoint_free(struct ist_endpoint *endpoint);
#define IST_ADDRESS_BYTES 256
/* Opaque bytes to hand to the others by whatever means. *bytes: room in, length out. */
IST_API ist_err ist_endpoint_address(struct ist_endpoint *endpoint, void *room, uint64_t *bytes, struct ist_error *err);

/* ---- group ---- */

struct ist_group;
struct ist_req;

/* A caller's own key-value store (etcd, Redis, torch's store, ...). Called from a library thread. */
struct ist_kv {
	uint32_t struct_size;
	uint32_t reserved;
	void *ctx;
	ist_err (*set)(void *ctx, const char *key, const void *value, uint64_t bytes);
	/* Waits until key is there, at most timeout_ns (then IST_TIMEOUT). *bytes: room in, length out. */
	ist_err (*get)(void *ctx, const char *key, void *room, uint64_t *bytes, int64_t timeout_ns);
};

struct ist_address {
	const void *addr;
	uint64_t bytes;
};

enum ist_host_meeting { IST_HOST_MEETING_AUTO = 0 /* rank 0 hosts */, IST_HOST_MEETING_YES = 1, IST_HOST_MEETING_NO = 2 };

/* One of at, kv, addresses says how the members meet. Position in the list is the rank. */
struct ist_group_args {
	uint32_t struct_size;
	uint32_t rank;
	uint32_t size;
	uint32_t host_meeting;           /* enum ist_host_meeting, with at = tcp:// */
	const char *name;                /* at most 255 bytes of UTF-8; NULL: "" */
	const char *at;                  /* "tcp://HOST:PORT" or "dir:/shared/folder" */
	const struct ist_kv *kv;         /* lent until the group has formed */
	const char *prefix;              /* of kv's keys */
	const struct ist_address *addresses; /* size entries */
	const char *backend;             /* a name, the path of a plug-in, or NULL: "auto" */
	const char *backend_options;     /* "key=value,..." */
	int64_t timeout_ns;              /* of creation, and the default of the group's calls */
	int64_t no_progress_ns;          /* 0: 30 s */
	uint64_t bucket_bytes;           /* a wish of weight sync, agreed in the roll-call; 0: none */
};

/* Blocks until every member has voted ready, or fails on all: with TIMEOUT and the missing ranks, CONFLICT, ... */
IST_API ist_err ist_group_new(
	struct ist_endpoint *endpoint, const struct ist_group_args *args, struct ist_group **out, struct ist_error *err);
/* The same without waiting. *req is tested (PENDING: err->ranks lists who is missing), waited for, cancelled and
 * freed as any other; when it is done well ist_req_group gives the group, once. */
IST_API ist_err ist_group_new_start(
	struct ist_endpoint *endpoint, const struct ist_group_args *args, struct ist_req **req, struct ist_error *err);
IST_API ist_err ist_req_group(struct ist_req *req, struct ist_group **out, struct ist_error *err);

/* A new group of the ranks listed, in the order listed. Only they call it; others may be asleep or dead. A caller that
 * is not in the list gets NOT_MEMBER. Lives of parent and child are independent. */
struct ist_split_args {
	uint32_t struct_size;
	uint32_t n_ranks;
	const uint32_t *ranks;
	const char *name;
	const char *backend;      /* NULL: the parent's */
	int64_t timeout_ns;
	int64_t no_progress_ns;   /* 0: the parent's */
};
IST_API ist_err ist_group_split(
	struct ist_group *group, const struct ist_split_args *args, struct ist_group **out, struct ist_error *err);

/* Leaves in good order: the others are told PEER_LEFT. Waits for nobody. A second free is BAD_HANDLE. */
IST_API ist_err ist_group_free(struct ist_group *group);
/* Ends everything under way, on all members, with ABORTED and the reason. Any thread; free comes later. */
IST_API ist_err ist_group_abort(struct ist_group *group, const char *reason);
/* The local half only, from a signal handler: flags the group, wakes a library thread, which tells the others. */
IST_API void ist_group_abort_async_signal(struct ist_group *group);
/* Flags every group of env first, tells and frees afterwards. */
IST_API ist_err ist_abort_all(struct ist_env *env, const char *reason);
/* Ranks known to be gone. *n: room in, count out. */
IST_API ist_err ist_group_lost(struct ist_group *group, uint32_t *ranks, uint32_t *n, struct ist_error *err);

/* A few words that this member keeps for the others, in the caller's own terms (weight sync says here how it gets on).
 * Heartbeats carry them to some of the others; they are no event and wake nobody. */
#define IST_MARK_WORDS 6
enum ist_mark_known { IST_MARK_NONE = 0, IST_MARK_ONCE = 1 /* heard some time ago */, IST_MARK_NOW = 2 /* answered just now */ };
IST_API ist_err ist_group_mark(struct ist_group *group, const uint64_t *words);
/* Everybody's: words has size * IST_MARK_WORDS entries by rank, known size of enum ist_mark_known. ask_ns > 0: all are asked,
 * and get so long to answer, whatever their users' threads do. 0: what is known here; also of a group that has failed. */
IST_API ist_err ist_group_marks(struct ist_group *group, int64_t ask_ns, uint64_t *words, uint8_t *known, struct ist_error *err);
/* Gives a member up, as if it were lost: the group ends on all others with why's code, naming it, and there with EVICTED. */
IST_API ist_err ist_group_evict(struct ist_group *group, uint32_t rank, const struct ist_error *why, struct ist_error *err);

struct ist_group_info {
	uint32_t struct_size;
	uint32_t rank;
	uint32_t size;
	uint32_t broken;          /* ist_err that ended it, 0: alive */
	uint64_t generation;      /* of this group, equal on all members, never used again */
	const char *name;         /* these live as long as the handle */
	const char *backend;
	uint32_t n_hosts;
	uint32_t n_same_host;     /* members on this host, this one too */
	uint32_t shm_pairs;       /* peers reached over shared memory */
	uint32_t tcp_pairs;
	uint64_t bucket_bytes;    /* agreed */
	int64_t timeout_ns;
	int64_t no_progress_ns;
	uint32_t proto;           /* version the group runs at */
	uint32_t n_links;         /* control connections of this member */
	uint64_t messages;        /* sent over them so far, for itself or others; heartbeats apart */
	uint32_t takers;          /* 1: a broadcast with takers costs those who are not among them nothing; equal on all members */
	/* The kind of device that every member's endpoint has, if this group carries its memory from one to the other; else
	 * IST_MEM_HOST. Equal on all members. */
	uint32_t mem;
	/* Memory that this member's side of the group holds now, as far as its backend tells; freeing the group gives it back.
	 * Not the env's own, which serves all its groups: its loop, what it keeps for the next message, the meeting place. */
	uint64_t memory_bytes;    /* of this process alone */
	uint64_t shared_bytes;    /* shared memory that this member has made, ist_group_alloc's too: the sum over the members of a host is what it has less */
	int32_t device;           /* this member's, of kind mem; -1: none */
	uint32_t views_alone;     /* 1: memory of kind mem only as views of ist_group_alloc's (IST_OP_VIEW) */
};
IST_API ist_err ist_group_info(struct ist_group *group, struct ist_group_info *out, struct ist_error *err);
/* Who a member is, for messages: "host:pid". *bytes: room in, length out, without the closing 0. */
IST_API ist_err ist_group_member(struct ist_group *group, uint32_t rank, char *room, uint64_t *bytes, struct ist_error *err);
/* What 'status' shows of this member; best effort. state: "CLEAN", "UPDATING", "DIRTY"; serves: newest version, 0: none. */
IST_API ist_err ist_group_tell(struct ist_group *group, const char *state, uint64_t version, uint64_t to, uint64_t serves);

/* ---- byte strings and barrier: over the control mesh, small, always there ---- */

struct ist_blob {
	void *addr;       /* freed with ist_blobs_free */
	uint64_t bytes;
};
#define IST_OBJECT_BYTES_MAX (UINT64_C(1) << 30)

IST_API ist_err ist_barrier(struct ist_group *group, int64_t timeout_ns, struct ist_error *err);
/* root gives bytes; every rank, root too, gets its own copy in *out. */
IST_API ist_err ist_broadcast_bytes(struct ist_group *group, const void *addr, uint64_t bytes, uint32_t root, int64_t timeout_ns,
	struct ist_blob *out, struct ist_error *err);
/* out: size entries by rank. gather fills it on root only (elsewhere out may be NULL). */
IST_API ist_err ist_all_gather_bytes(
	struct ist_group *group, const void *addr, uint64_t bytes, int64_t timeout_ns, struct ist_blob *out, struct ist_error *err);
IST_API ist_err ist_gather_bytes(struct ist_group *group, const void *addr, uint64_t bytes, uint32_t root, int64_t timeout_ns,
	struct ist_blob *out, struct ist_error *err);
/* send returns when the bytes are the library's; it waits only for a receiver with 64 MiB unread. */
IST_API ist_err ist_send_bytes(
	struct ist_group *group, const void *addr, uint64_t bytes, uint32_t to, int64_t timeout_ns, struct ist_error *err);
IST_API ist_err ist_recv_bytes(struct ist_group *group, uint32_t from, int64_t timeout_ns, struct ist_blob *out, struct ist_error *err);
/* One outcome for all. Every member gives its vote: NULL is yes, an error is no. IST_OK on every member when all have
 * voted yes; else the same error on every member (a no with its rank and text, or with the ranks that it names itself; or
 * PEER_LOST). A member lost meanwhile: the others ask each other; whoever holds "yes from all" makes all say yes, nobody
 * holding it means no. Only a member that can reach nobody is left in doubt: *doubt = 1, and an error. *doubt = 2: only
 * members that are lost and may live (frozen, cut off, or a connection was reset) may hold the other outcome. */
IST_API ist_err ist_decide(struct ist_group *group, const struct ist_error *vote, int64_t timeout_ns, uint32_t *doubt, struct ist_error *err);
IST_API void ist_blobs_free(struct ist_group *group, struct ist_blob *blobs, uint64_t n);

/* ---- bulk operations: over the backend, started here, ended by ist_req_wait ----
 *
 *                  src                     dst                      done means
 * broadcast        root: n bytes           others: n                root: src is free; others: dst is filled
 * all_gather       n                       size * n                 dst is filled, src is free
 * gather           n                       root: size * n           root: filled; others: src is free
 * scatter          root: size * n          n                        likewise
 * all_to_all       size * n                size * n, not src        dst is filled, src is free
 * all_reduce       n                       n, may be src            likewise
 * reduce_scatter   size * n                n                        likewise
 * send, recv       n                       n                        send: src is free, not that the peer has it
 *
 * n may be 0. bytes may pass 2^32. Moves ignore dtype. Reductions: I32 I64 U8 F32 F64 BF16 F16 (the last two
 * accumulate in f32 and are rounded once); bits may differ between group sizes, not between ranks or runs.
 * Buffers belong to the library until the request is done, in every outcome; after an error their content is
 * unspecified. All members issue the operations of a group in one order; kind, bytes, dtype, reduction, root and takers
 * are compared (MISMATCH, ORDER_MISMATCH on all members).
 */
struct ist_coll_args {
	uint32_t struct_size;
	uint32_t peer;        /* root, or the other end */
	uint32_t dtype;       /* enum ist_dtype; reductions */
	uint32_t reduce;      /* enum ist_reduce */
	uint32_t flags;       /* enum ist_op_flag, enum ist_coll_flag */
	uint32_t reserved;
	struct ist_buf src;
	struct ist_buf dst;
	void *stream;
	int64_t timeout_ns;
	/* broadcast: who takes the bytes, bit rank % 64 of word rank / 64, in (size + 63) / 64 words; read during the call. Equal on
	 * all members. NULL: all. The root's bit says nothing, and nobody at all is legal. The others call it too, and are done
	 * when all is known to agree: their dst says n, and is room that may be overwritten (a backend that can leave nobody out
	 * gives everybody the bytes), or NULL: then the library has room of its own where it needs any. Their views are of no use. */
	const uint64_t *takers;
};
/* The operation is not compared among the members beforehand: the caller has agreed on it otherwise. Set on all. */
enum ist_coll_flag { IST_COLL_AGREED = 0x10000 };

IST_API ist_err ist_broadcast(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err);
IST_API ist_err ist_all_gather(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err);
IST_API ist_err ist_gather(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err);
IST_API ist_err ist_scatter(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err);
IST_API ist_err ist_all_to_all(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err);
IST_API ist_err ist_all_reduce(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err);
IST_API ist_err ist_reduce_scatter(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err);
IST_API ist_err ist_send(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err);
IST_API ist_err ist_recv(struct ist_group *group, const struct ist_coll_args *args, struct ist_req **out, struct ist_error *err);

/* A request is done once, well or not. test looks; wait looks until done or the time is over (TIMEOUT: the request
 * goes on; its own deadline is another matter). Both return the operation's result once it is done. */
IST_API ist_err ist_req_test(struct ist_req *req, uint32_t *done, struct ist_error *err);
IST_API ist_err ist_req_wait(struct ist_req *req, int64_t timeout_ns, struct ist_error *err);
/* Not begun: undone. Begun: the group is aborted, since half an operation breaks its order. Returns at once; the
 * buffers come back when the request is done. */
IST_API ist_err ist_req_cancel(struct ist_req *req);
/* Gives the handle back; a request under way is cancelled and waited for (bounded). Gives a view back. */
IST_API ist_err ist_req_free(struct ist_req *req);
/* A descriptor that is readable when done, the request's until it is freed: for poll and event loops. */
IST_API ist_err ist_req_fd(struct ist_req *req, int32_t *fd, struct ist_error *err);
/* After an operation with IST_OP_VIEW: where the bytes are, until ist_req_free. */
IST_API ist_err ist_req_view(struct ist_req *req, struct ist_buf *out, struct ist_error *err);

/* Memory that this group's backend moves best (a shared segment, a registered window): what a root needs for
 * IST_OP_VIEW. UNSUPPORTED: plain memory does as well. Freed with the group at the latest. */
IST_API ist_err ist_group_alloc(struct ist_group *group, uint64_t bytes, uint32_t mem, int32_t device, void **out, struct ist_error *err);
IST_API ist_err ist_group_alloc_free(struct ist_group *group, void *addr);

/* ---- a meeting place on its own ---- */

struct ist_store;
struct ist_store_args {
	uint32_t struct_size;
	uint32_t insecure;
	const char *bind;      /* HOST:PORT; port 0: any */
	const void *secret;
	uint64_t secret_bytes;
};
IST_API ist_err ist_store_new(struct ist_env *env, const struct ist_store_args *args, struct ist_store **out, struct ist_error *err);
/* "HOST:PORT" as bound. *bytes: room in, length out. */
IST_API ist_err ist_store_address(struct ist_store *store, char *room, uint64_t *bytes, struct ist_error *err);
IST_API void ist_store_free(struct ist_store *store);

/* What a meeting place knows of the members: best effort, never more than the lease (15 s) old. */
struct ist_member_status {
	uint32_t struct_size;
	uint32_t rank;
	char group[256];
	char host[256];
	int64_t pid;
	char state[16];        /* "CLEAN", "UPDATING", "DIRTY"; "JOINING": its group forms */
	uint64_t version;      /* committed; 0: none */
	uint64_t to;           /* UPDATING, DIRTY: to which */
	uint64_t serves;
	double heard_s;        /* seconds since it was heard */
};
struct ist_status_args {
	uint32_t struct_size;
	uint32_t insecure;
	const char *at;        /* "tcp://HOST:PORT" or "dir:/shared/folder" */
	const char *group;     /* NULL: all */
	const void *secret;
	uint64_t secret_bytes;
	int64_t timeout_ns;
};
/* *n: room in, count out (which may be more than the room). */
IST_API ist_err ist_status(
	struct ist_env *env, const struct ist_status_args *args, struct ist_member_status *out, uint32_t *n, struct ist_error *err);

#ifdef __cplusplus
}
#endif
#endif
