/* SPDX-License-Identifier: Apache-2.0
 *
 * backend.h - what a transport or a collective library provides. Read this if you write a backend.
 *
 * A backend opens channels. A channel belongs to one group; it starts tasks, moves them on, says how they
 * stand, and stops them all when told to. That is everything. What a backend does not do natively the core
 * composes from its SEND and RECV.
 *
 * Rules, each checked by a test:
 *   1. every struct that may grow starts with struct_size. Handed in, it is the size of what was filled. To be
 *      filled, the caller sets it to the room there is and zeroes the rest; the callee writes only fields for
 *      which IST_HAS holds, never the whole struct. ist_buf, ist_wire, ist_setting and ist_copy lie inside
 *      others and in arrays: they never change;
 *   2. fields are only appended, have a fixed width, and leave no padding;
 *   3. a reader uses IST_HAS before it touches a field that came after version 1;
 *   4. unknown flag bits are ignored, with IST_MUST beside them refused (IST_UNSUPPORTED);
 *   5. what a slot hands out through a pointer is written only when it returns IST_OK. IST_OK with a NULL
 *      channel or task, and a value that is not in error.h, are IST_BAD_PLUGIN and end the channel;
 *   6. a plug-in is never unloaded.
 *
 * Threads: the core calls one channel from one thread at a time, not always the same one: rely on no
 * thread-local state, put back the current device. Different channels run side by side, except those of one
 * device whose backend says IST_TRAIT_ONE_ORDER: these are called from one thread at a time, and nothing is
 * started on the second while a task of the first is not ISSUED. abort alone may come from any thread, even
 * from a signal handler, while another slot of that channel runs: it stores, writes to a descriptor, returns.
 * No abort runs or comes when close is called. No slot is called in a forked child. The core wakes its own
 * thread after start: a slot that starts something needn't wake anybody.
 * Time: progress about 1 ms, every other slot 10 ms, close 1 s, abort or no abort. What may take longer
 * (loading a library, a context, a unique id, a first connection, pinning) is a task, on a thread got from
 * ist_host.thread.
 */
#ifndef ISTHMUS_BACKEND_H
#define ISTHMUS_BACKEND_H

#include <isthmus/error.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IST_EXPORT __attribute__((visibility("default")))
#define IST_HAS(p, f) \
	((size_t)(p)->struct_size >= offsetof(__typeof__(*(p)), f) + sizeof((p)->f))
#define IST_MUST 0x80000000u
#define IST_NO_RANK UINT32_MAX

enum ist_op_kind {
	IST_OP_SEND = 1, IST_OP_RECV, IST_OP_BROADCAST, IST_OP_ALL_GATHER, IST_OP_ALL_REDUCE,
	IST_OP_REDUCE_SCATTER, IST_OP_GATHER, IST_OP_SCATTER, IST_OP_ALL_TO_ALL, IST_OP_BARRIER,
	IST_OP_READ,                   /* one-sided: from a peer's region, by the region's handle */
	IST_OP_SUSPEND, IST_OP_RESUME  /* all members, nothing else under way: give device memory back, take it again */
};

/* Numbers are ABI. Moves are bytes; a dtype is for reductions. A backend refuses what it can't reduce. */
enum ist_dtype {
	IST_BYTES = 0, IST_I8, IST_U8, IST_I16, IST_U16, IST_I32, IST_U32, IST_I64, IST_U64,
	IST_F16 = 16, IST_BF16, IST_F32, IST_F64, IST_F8E4M3, IST_F8E5M2
};
enum ist_reduce { IST_SUM = 1, IST_PROD, IST_MIN, IST_MAX };

enum ist_mem_kind { IST_MEM_HOST = 0, IST_MEM_PINNED = 1, IST_MEM_CUDA = 2, IST_MEM_ASCEND = 3 };
enum ist_mem_how {
	IST_MEM_PLAIN = 1,     /* one allocation that legacy IPC can export */
	IST_MEM_MAPPED = 2,    /* virtual memory management: exported by file descriptor, a chunk each */
	IST_MEM_POOL = 4, IST_MEM_MANAGED = 8, /* not exportable */
	IST_MEM_IMPORTED = 16  /* another process's: not exported again */
};

/* A piece of memory and where it lives. */
struct ist_buf {
	void *addr;      /* any alignment; never written through when it is a src */
	uint64_t bytes;  /* may be 0; addr is then ignored */
	uint16_t mem;    /* enum ist_mem_kind */
	uint16_t how;    /* enum ist_mem_how, 0: unknown */
	int32_t device;  /* index among devices of that kind; -1: host */
};

/* Bytes for another member, and descriptors, which reach only those on the same host; of more than 64 there, some. */
struct ist_wire {
	const void *addr;
	uint64_t bytes;      /* at most 64 KiB; 0: nothing to say */
	const int32_t *fds;
	uint64_t n_fds;      /* at most 8 */
};

/* What the core lends. Valid until the last channel is closed and the last thread got from it has returned; a
 * thread that close had to leave behind calls log only. Any thread, any time. */
struct ist_host {
	uint32_t struct_size;
	uint32_t abi;        /* the core's version of this header */
	void *ctx;
	void (*log)(void *ctx, int32_t level, const char *msg); /* msg is copied, errno kept */
	void *(*alloc)(void *ctx, uint64_t bytes, uint64_t align, uint32_t mem, int32_t device); /* host memory: device is the NUMA node */
	void (*free)(void *ctx, void *p);
	const struct ist_device *(*device)(void *ctx, uint32_t mem); /* NULL: absent; never goes away */
	ist_err (*thread)(void *ctx, const char *name, void (*run)(void *arg), void *arg); /* signals blocked, named ist-NAME, the env's CPUs */
	/* Memory of the env that all channels of a backend share (what was found out about this machine, say): made at the
	 * first call with that key, zeros and then init (may be NULL), the same at later ones; freed after the env's last
	 * channel. key: an address of the backend's own. NULL: no memory. Absent from older cores. */
	void *(*keep)(void *ctx, const void *key, uint64_t bytes, void (*init)(void *p));
};

enum ist_state {
	IST_PENDING = 0,
	IST_ISSUED = 1,    /* on its stream: what is put there from now on runs after it. Without a stream: skipped */
	IST_DONE = 2,      /* the result is here and the buffers are the caller's again */
	IST_ABANDONED = 3  /* failed, and the device or a peer may still touch the buffers: never free or reuse them */
};

/* How a task stands, or why a slot failed (then only rank, sys and text). */
struct ist_status {
	uint32_t struct_size;
	uint32_t state;      /* enum ist_state; only grows */
	uint32_t rank;       /* whose fault; the core sets IST_NO_RANK before the call */
	int32_t sys;         /* errno, ncclResult_t, CUresult, ...; 0: none */
	uint64_t moved;      /* bytes of this task so far, both directions; never falls */
	struct ist_buf view; /* IST_OP_VIEW: what is lent */
	char text[240];      /* for a person, in the library's words; always ends in 0 */
};

/* How a channel stands, since open. */
struct ist_progress {
	uint32_t struct_size;
	uint32_t more;       /* 1: it stopped for its time, not for want of work */
	uint64_t moved;      /* bytes, all tasks; the core's NO_PROGRESS looks at this */
	uint64_t ended;      /* tasks that have come to ISSUED, DONE or ABANDONED: test them when it has changed */
	/* What the channel holds now, for who asks how much memory a group takes. Left alone: not known. */
	uint64_t memory;     /* bytes of this process alone: from ist_host.alloc, or the library's */
	uint64_t shared;     /* bytes of shared memory that it has made, what alloc gave among them; not that of its peers */
};

/* A setting that both ends must share (an environment variable, an MTU): compared by the core before offer. */
struct ist_setting {
	const char *name;
	const char *value;
	uint64_t rule;       /* 0: must be equal everywhere; 1: a number, the minimum is used */
};

/* How far probe may go. */
enum ist_level {
	IST_LOOK = 0,  /* load nothing: a library loaded before the framework's own is the one that the framework then gets */
	IST_LOAD = 1,  /* may load the library, the copy already in the process first; starts nothing */
	IST_START = 2  /* may initialise it: the user asked, this process won't fork */
};

enum ist_trait {
	IST_TRAIT_ONE_ORDER = 1,   /* one issue order a device, across channels, the same on all ranks */
	IST_TRAIT_ONE_RANK = 2,    /* no two ranks on one device: the core says DEVICE_CONFLICT before offer */
	IST_TRAIT_NO_ABORT = 4,    /* after an abort tasks may end ABANDONED */
	IST_TRAIT_TELLS_LOSS = 8,  /* PEER_LOST can come from here, not from the mesh alone */
	IST_TRAIT_CAN_VIEW = 16,   /* knows IST_OP_VIEW, and has alloc */
	IST_TRAIT_WANTS_FDS = 32,  /* hands descriptors to members of the same host */
	IST_TRAIT_TAKERS = 64,     /* BROADCAST looks at ist_op.takers; without it everybody gets the bytes */
	IST_TRAIT_FAR_VIEWS = 128  /* device memory: only broadcasts with IST_OP_VIEW of what its alloc gave, and on one host */
};

/* Can it run here? Strings belong to the backend and live as long as it is loaded. */
struct ist_probe {
	uint32_t struct_size;
	uint32_t usable;           /* 0: reason says why not, in words for a user; at IST_LOOK 1 is a guess */
	const char *reason;
	const char *library;       /* file that would be used, or "" */
	const char *version;
	uint64_t native_ops;       /* bit 1 << enum ist_op_kind: what start accepts; SEND and RECV are mandatory */
	uint64_t mem;              /* bit 1 << enum ist_mem_kind: where buffers may lie */
	uint64_t traits;           /* enum ist_trait */
	uint64_t max_ops;          /* what one start takes, at least 2 * (size - 1) or 16; 0: any number */
	const struct ist_setting *settings;
	uint64_t n_settings;
};

/* One group's channel. The generation tells this group from any earlier one of the same name. */
struct ist_open {
	uint32_t struct_size;
	uint32_t rank;
	uint32_t size;
	uint32_t mem;              /* kind of the device */
	int32_t device;            /* -1: none */
	uint32_t flags;
	uint64_t group;
	uint64_t generation;
	int64_t deadline_ns;       /* CLOCK_MONOTONIC; of opening and connecting together */
	const char *options;       /* "key=value,..." given by the user, or ""; an unknown key is BAD_CONFIG */
	const char *listen;        /* numeric address, without port, that this member may listen on; NULL: loopback */
	const char *advertise;     /* numeric address that the others dial instead; NULL: the same */
	uint32_t transport;        /* enum ist_way: what the user allows */
	uint32_t reserved;
};

enum ist_way { IST_WAY_ANY = 0, IST_WAY_MEMORY = 1, IST_WAY_NETWORK = 2 };

/* What all members have said; valid during the call only: copy, dup. It came from other processes: check it. */
struct ist_connect {
	uint32_t struct_size;
	uint32_t size;
	const struct ist_wire *all;        /* size entries, by rank, one's own too; most may be empty */
	const struct ist_setting *agreed;  /* the probe's settings, each with the value that now holds */
	uint64_t n_agreed;
};

enum ist_op_flag {
	/* BROADCAST: a receiver need not have a copy of its own. Set on all members or on none; the root's src lies in
	 * memory from this channel's alloc (or is empty). A receiver gives as dst room of its own, from alloc too;
	 * status.view then says where the bytes are: there, or lent by another member, to read, until task_free. The
	 * root's src is in use until every receiver has given its view back. */
	IST_OP_VIEW = 1
};

/* One operation. New needs become new fields here, not new slots below.
 *
 *                 src                       dst
 * SEND, RECV      n                         n
 * BROADCAST       root: what                others: where
 * GATHER          all: n bytes              root: size * n, by rank
 * SCATTER         root: size * n            all: n
 * ALL_GATHER      n                         size * n
 * ALL_TO_ALL      size * n                  size * n; never in place
 * REDUCE_SCATTER  size * n                  n
 * ALL_REDUCE      n                         n; may be src
 *
 * The SENDs to a peer meet its RECVs from us in the order in which each side started them; seq and bytes must
 * then be equal (else ORDER_MISMATCH, MISMATCH; the channel is of no use after either). DONE at a sender: src is
 * free; not that the peer has it. No backend may need more memory for that than it had after connect. Different
 * peers, and the two directions with one peer, never wait for each other within one start.
 */
struct ist_op {
	uint32_t struct_size;
	uint32_t kind;             /* enum ist_op_kind */
	uint32_t peer;             /* rank: the peer, or the root */
	uint32_t flags;
	uint32_t dtype;
	uint32_t reduce;
	uint64_t seq;              /* equal on all members of a collective, on a SEND and its RECV: checked, not matched; below 2^40 */
	struct ist_buf src;
	struct ist_buf dst;
	const void *region;        /* READ: the peer's handle */
	uint64_t region_bytes;
	uint64_t offset;           /* READ: into the region */
	void *stream;              /* the vendor's handle: after what is on it at start, before what is put on it after
	                            * ISSUED; the work may run on a stream of the backend's. NULL: none; CUDA's default
	                            * stream is (void *)1; (void *)2, a thread's own, is refused */
	/* BROADCAST, from backends with IST_TRAIT_TAKERS alone: who takes the bytes, bit rank % 64 of word rank / 64, in
	 * (size + 63) / 64 words. Equal on all members; copied by start. NULL: all; the root's bit says nothing. The others start
	 * the operation too, in its order, and have nothing to wait for: dst has the bytes but perhaps no addr, nothing is
	 * written there, and with IST_OP_VIEW nothing is lent. */
	const uint64_t *takers;
};

struct ist_chan;   /* the backend's own; the core never looks inside */
struct ist_task;
struct ist_region;
enum { IST_REGION_ALL = 1 };

struct ist_backend {
	uint32_t struct_size;
	uint32_t abi;              /* version of this header that the backend was compiled with */
	const char *name;
	void *self;                /* handed to probe and open: state of a backend that is not static */

	/* Never fails. What level forbids stays unknown: "" or 0. */
	void (*probe)(void *self, const struct ist_host *host, uint32_t level, struct ist_probe *out);

	/* Local and cheap: makes the channel, takes nothing that a failure elsewhere would leave behind. */
	ist_err (*open)(void *self, const struct ist_host *host, const struct ist_open *args, struct ist_chan **out,
	                struct ist_status *why);

	/* This member's wire-up: NCCL and HCCL, all but rank 0: nothing. Called once, when every member has opened and
	 * settings agree, because an id may be impossible to take back. A task; *mine is written before it is DONE,
	 * and is the channel's until close. NULL: nothing to say. */
	ist_err (*offer)(struct ist_chan *chan, struct ist_wire *mine, struct ist_task **out, struct ist_status *why);

	/* A task, done when this member can reach all and is warm: the first operation waits for no set-up. */
	ist_err (*connect)(struct ist_chan *chan, const struct ist_connect *args, struct ist_task **out, struct ist_status *why);

	/* Begin n operations as one task, which ends when all have. They are issued together: none waits for another of
	 * the same start; two starts may be done strictly one after the other. The list and its structs are copied; the
	 * buffers are the backend's until DONE. Whether IST_UNSUPPORTED comes depends only on what is equal on all
	 * members. UNSUPPORTED and BUSY (full: again after a task was freed) leave nothing begun. */
	ist_err (*start)(struct ist_chan *chan, const struct ist_op *const *ops, uint64_t n, struct ist_task **out,
	                 struct ist_status *why);

	/* Move all tasks of the channel on, offer's and connect's too. The only slot that moves bytes. */
	ist_err (*progress)(struct ist_chan *chan, struct ist_progress *out);

	/* About to sleep. IST_OK: *fd becomes readable (level-triggered; emptied by progress) when progress is needed;
	 * -1: none, progress is called every now and then. IST_BUSY: something has come, don't sleep. */
	ist_err (*arm)(struct ist_chan *chan, int32_t *fd);

	/* Look, don't move. Returns the task's failure as soon as it is known, perhaps before DONE: then abort and go on
	 * testing, the buffers come back with DONE. May be asked again until task_free. */
	ist_err (*test)(struct ist_chan *chan, struct ist_task *task, struct ist_status *out);
	void (*task_free)(struct ist_chan *chan, struct ist_task *task); /* DONE or ABANDONED only; gives a view back */

	/* End every task with why (never IST_OK; the first abort's counts) within 100 ms: DONE once the hardware has let
	 * go of its buffers, else ABANDONED; make arm's descriptor readable; start refuses with the same. Local: the
	 * peers hear it from the mesh. Then only progress, arm, test, the frees, abort and close are legal. */
	void (*abort)(struct ist_chan *chan, ist_err why);

	/* Never waits for a peer; frees tasks and regions that are left; NULL is allowed. Bytes that a peer has not
	 * received may be lost: in good order the core first agrees on the mesh that all tasks are DONE. IST_BUSY: a
	 * thread, memory or buffers had to be left behind, why says which. */
	ist_err (*close)(struct ist_chan *chan, struct ist_status *why);

	/* ---- optional ---- */

	/* Memory made known beforehand; NULL: one-sided reads are staged through SEND and RECV. A task (pinning 8 GB
	 * takes a second). IST_REGION_ALL: all members call it, in the order of their starts, and operations on this
	 * memory may then be faster (NCCL windows); otherwise local, and handle (at most 256 bytes) is for READ. */
	ist_err (*region)(struct ist_chan *chan, const struct ist_buf *buf, uint32_t flags, struct ist_region **out,
	                  struct ist_wire *handle, struct ist_task **task, struct ist_status *why);
	void (*region_free)(struct ist_chan *chan, struct ist_region *region);

	/* End the tasks with this peer (PEER_LOST), refuse new ones, leave the others alone; collectives end too. NULL: the
	 * core opens a new channel without that member. */
	ist_err (*drop)(struct ist_chan *chan, uint32_t rank);

	/* Memory that this channel moves best (a shared segment, a registered window); mem and device as in ist_buf. The
	 * channel keeps the right to refuse (IST_UNSUPPORTED: plain memory does as well). alloc reserves the space, so
	 * that touching it can't fail later. free: no task uses it any more. May take long; not during a start. What is
	 * left at close is freed there. */
	ist_err (*alloc)(struct ist_chan *chan, uint64_t bytes, uint32_t mem, int32_t device, void **out, struct ist_status *why);
	void (*free)(struct ist_chan *chan, void *addr);
};

/* The shortest table that is still admitted: it ends with close. Frozen with version 1; never sizeof, which grows. */
#define IST_BACKEND_SIZE_MIN (offsetof(struct ist_backend, close) + sizeof(void *))

/* The one symbol that a plug-in exports. */
#define IST_BACKEND_ABI 1u
#define IST_BACKEND_ENTRY "isthmus_backend_v1"
typedef const struct ist_backend *(*ist_backend_entry)(void);

/* Last line of a backend: IST_BACKEND_DEFINE(my_table). A build that puts several backends into one library gives each
 * a name of its own with -DIST_BUILTIN=isthmus_backend_NAME; then nothing is exported. */
#ifdef IST_BUILTIN
#define IST_BACKEND_DEFINE(table) \
	const struct ist_backend *IST_BUILTIN(void); \
	const struct ist_backend *IST_BUILTIN(void) { return &(table); } \
	_Static_assert(sizeof(table) == sizeof(struct ist_backend), "a backend table")
#else
IST_EXPORT const struct ist_backend *isthmus_backend_v1(void);
#define IST_BACKEND_DEFINE(table) \
	const struct ist_backend *isthmus_backend_v1(void) { return &(table); } \
	_Static_assert(sizeof(table) == sizeof(struct ist_backend), "a backend table")
#endif

#ifdef __cplusplus
}
#endif
#endif
