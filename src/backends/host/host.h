/* SPDX-License-Identifier: Apache-2.0
 *
 * host.h - the host backend's own types: a channel that moves bytes through shared memory inside a host and through
 * TCP between hosts. Every word in a segment is written by its owner alone and read-only to the others (the bytes of the
 * heap alone are written by all hands, see coop.c); what is read
 * from there is never trusted with a length or an offset.
 */
#ifndef IST_HOST_H
#define IST_HOST_H

#include <isthmus/backend.h>

#include "backends/host/copy.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/tally.h"

#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define HOST_VERSION 3u
#define HOST_MAGIC UINT64_C(0x31676573686d7469)
#define BOARD 16u                       /* broadcasts of one publisher under way at a time */
#define GATES 16u                       /* barriers under way at a time */
#define SEATS 8u                        /* broadcasts by all hands that a member is in at a time */
#define PIECES 512u                     /* of one of them, at most */
#define LINE UINT64_C(64)               /* records and stream positions are multiples of it */
#define PIECE (UINT64_C(1) << 20)       /* the most that is moved between two looks at the clock */
#define SLICE_NS (800 * INT64_C(1000))  /* of one progress */
#define MAP_STRETCH (UINT64_C(256) << 10) /* a multiple of what the kernel maps around a fault */
#define COOKIE 32u
#define MAC 16u
#define DIRECT_MIN (UINT64_C(64) << 10) /* below it a message is cheaper through the ring */

/* ---- what lies in a segment ---- */

/* What the owner of a segment tells one peer. */
struct lane {
	_Atomic uint64_t bell;        /* counts up with every news for that peer */
	_Atomic uint64_t attached;    /* enum link: whether the owner could map that peer's segment */
	_Atomic uint64_t head;        /* ring to the peer: bytes put in since connect */
	_Atomic uint64_t tail;        /* ring from the peer: bytes taken out since connect */
	_Atomic uint64_t taken;       /* the peer's stage: stream position up to which the owner has read */
	uint64_t spare[3];
	_Atomic uint64_t back[BOARD]; /* back[i % BOARD] is i + 1 once the owner is done with the peer's posting i */
};

enum link { LINK_NONE, LINK_YES, LINK_REFUSED };
enum mode { MODE_STAGED = 1, MODE_DIRECT = 2, MODE_COOP = 3, MODE_FAR = 4 }; /* through the ring or stage; read where the sender has
                                                   * it; the same, and written by all hands; looked at in a device's memory */

/* One broadcast on offer by a root, or by the member of this host that the bytes come to. */
struct posting {
	_Atomic uint64_t mark;        /* bytes that may be read by now */
	_Atomic uint64_t seq, bytes;
	_Atomic uint64_t at;          /* STAGED: position in the stage's stream; DIRECT: offset in the owner's heap; FAR: in the memory */
	_Atomic uint64_t chunk_at, chunk_bytes; /* DIRECT, FAR: the piece of heap to map */
	_Atomic uint64_t what;        /* root << 32 | some bits of the takers' print << 16 | flags << 8 | enum mode */
	_Atomic uint64_t crew;        /* by all hands: bit 63 once it is known who is in, and a bit for each */
};

/* What a member has to do with one broadcast by all hands: see coop.c. */
struct seat {
	_Atomic uint64_t key;         /* which; 0: none */
	_Atomic uint64_t at, chunk_at, chunk_bytes; /* where the owner wants the bytes, in its heap; chunk_bytes 0: nowhere */
	_Atomic uint64_t bytes, closed; /* of the broadcast; nobody may write there any more */
	uint64_t spare[2];
	_Atomic uint64_t claims[PIECES / 64], done[PIECES / 64]; /* pieces that the owner copies, has copied */
};

struct ctl {
	uint64_t magic;
	uint32_t version, rank, size, spare;
	uint64_t group, generation, bytes;
	_Alignas(64) _Atomic uint64_t armed;  /* 0: awake; else a number that is new each time: write to my eventfd */
	_Alignas(64) _Atomic uint64_t posted; /* postings made since connect */
	_Alignas(64) _Atomic uint64_t entered; /* barriers entered since connect */
	_Atomic uint64_t gate_seq[GATES];
	_Alignas(64) struct posting board[BOARD];
	_Alignas(64) struct seat seats[SEATS];
	_Alignas(64) struct lane lanes[];      /* one for each rank, then the set of ranks that the owner could map */
};

/* A message in a ring: this, then (STAGED) its bytes, each rounded up to LINE. */
struct record {
	uint64_t seq, bytes, mode, at, chunk_at, chunk_bytes, spare[2];
};

_Static_assert(sizeof(struct lane) == 192 && sizeof(struct posting) == 64 && sizeof(struct record) == 64 && sizeof(struct seat) == 192,
	"segment layout");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "counters are shared between processes");

/* Where things lie; a function of the group's size alone, so that no offset has to be believed. */
struct layout {
	uint64_t set_at, stage_at, stage_bytes, rings_at, ring_bytes, bytes, page;
};

/* ---- what a process keeps ---- */

enum transport { TRANSPORT_AUTO, TRANSPORT_SHM, TRANSPORT_TCP };

struct options {
	uint32_t transport;
	uint32_t calibrate;
	char copy[32];             /* name of a copy loop; "": the fastest */
	uint32_t coop;             /* large broadcasts by all hands: others may write into this member's heap */
	uint32_t user_timeout_ms;
	bool has_advertise;
	struct sockaddr_storage listen, advertise; /* ports 0 */
};

/* One operation of a task. */
struct part {
	struct part *next;
	struct ist_task *task;
	struct ist_op op;
	uint64_t got;      /* bytes received or read */
	uint64_t sent;     /* bytes handed on, frame included where it is TCP */
	uint64_t mark;     /* broadcast: bytes made readable to this host; message: ring position after its record */
	uint64_t entry;    /* broadcast: which posting of the publisher; barrier: which */
	uint64_t index;    /* broadcast: which of this root */
	uint64_t *set;     /* broadcast: who takes; behind it who is served by those before us. Here, or of its own */
	uint64_t set_here[2];
	uint64_t turn;     /* broadcast: among those that we read from this publisher; between hosts, that come from this root */
	uint64_t after;    /* broadcast: staged: stream position up to which we read before it */
	uint64_t at;       /* where the bytes lie in stream or heap */
	struct map *map;   /* piece of a peer's heap in use */
	const uint8_t *from;
	struct crew *crew; /* broadcast by all hands */
	uint64_t bytes;    /* of it */
	int64_t since;
	uint32_t publisher; /* broadcast: who gives it to us on this host, IST_NO_RANK: TCP or ourselves */
	uint32_t readers;  /* broadcast: of this host, when we publish it */
	uint32_t first;    /* broadcast: where its chain begins */
	uint32_t hop;      /* broadcast: who comes after us, IST_NO_RANK: nobody; once routed */
	uint64_t pass;     /* broadcast: among those of this root that we pass on */
	struct conn *in, *out;
	uint8_t phase, mode;
	bool posted, viewed, ended, placed, routed, passed;
};

struct queue {
	struct part *first, **last;
};

struct ist_task {
	struct ist_task *next, *prev;
	uint32_t state; /* enum ist_state */
	ist_err result;
	uint32_t rank;
	int32_t sys;
	uint64_t moved, left, n, room;
	uint64_t held;     /* after an abort: parts whose memory others may be writing to */
	struct ist_buf view;
	char text[240];
	struct part parts[];
};

/* Own memory for others to read. */
struct chunk {
	struct chunk *next;
	uint64_t at, bytes;
	uint8_t *addr;
	struct ist_buf far; /* addr not NULL: it stands for this memory of a device, see far.c */
};

/* A peer's chunk, mapped here. */
struct map {
	struct map *next;
	uint64_t at, bytes;
	uint8_t *addr;
	uint32_t refs;
	bool write;
	struct ist_buf far; /* addr not NULL: the device's memory that it stands for, mapped too */
	uint64_t paged[]; /* a bit for each stretch of MAP_STRETCH bytes whose pages are in this process's table */
};

enum class { CLASS_P2P = 1, CLASS_CHAIN = 2 };
enum conn_state { CONN_DIALING, CONN_WAIT_REPLY, CONN_WAIT_HELLO, CONN_READY, CONN_DEAD };

/* A TCP connection: bytes go one way, from who dialled. */
struct conn {
	struct conn *next;
	struct conn *mate; /* CHAIN: the next one of that root in this direction */
	bool taken;        /* CHAIN: in: a part of ours has its frame; out: a frame and its bytes are not all out */
	bool left;         /* CHAIN, in: nothing more will come, in good order */
	int fd;
	uint32_t peer, root, class, state; /* root: CHAIN */
	bool in, readable, writable, hung;
	int low;           /* bytes to be told of */
	bool local;        /* both ends are on this host */
	int err;           /* errno of its death, 0: the other side closed */
	int64_t choked;    /* since when the kernel has no memory for what we send; 0: it has */
	bool *more;        /* the channel's: look again before sleeping */
	int64_t until;     /* not READY by then: dropped */
	uint64_t fill;     /* bytes of buf that are there */
	uint64_t count;    /* messages begun */
	uint8_t nonce[8];
	uint8_t *buf;      /* hello, reply, or a frame */
};

struct peer {
	uint32_t rank;
	bool near;                 /* reached through shared memory */
	bool broken;               /* an order or size did not match: nothing that comes after makes sense */
	/* shared memory */
	const struct ctl *ctl;
	const uint8_t *stage, *ring;
	int heap_fd, wake_fd;
	uint64_t seen, rung, woken; /* bell read; bell rung; armed number answered */
	uint64_t head, tail, taken; /* our own words, of which the segment has copies */
	bool ring_ready;
	struct map *maps;
	uint64_t n_maps;
	uint64_t entries;          /* its postings matched to operations */
	uint64_t turns, begun;     /* of those, read by us: matched, begun */
	uint64_t staged;           /* stream position after the last staged one that we have begun */
	uint64_t given[BOARD];     /* our postings: given[i % BOARD] is i + 1 for the last one there that it takes */
	struct queue send, recv;
	/* TCP */
	uint8_t cookie[COOKIE];
	struct sockaddr_storage addr;
	struct conn *out, *in;
	/* as a root: its broadcasts; those that come to us from another host, of which begun; those we pass on, of which passed */
	struct conn *chains_out, *chains_in;
	uint64_t index, coming, come, passing, passed;
};

struct ist_chan {
	struct ist__ctx ctx;
	struct ist__tally *tally; /* counts what ctx gives */
	uint64_t shared;          /* bytes of memory files that were reserved and not given back */
	const struct ist_host *host;
	uint32_t rank, size, words;
	uint64_t group, generation;
	int64_t deadline;
	struct options opt;
	_Atomic ist_err aborted;
	bool abort_told, fresh, more, armed, offered, connected, shm;
	int wake_fd, epoll_fd;     /* from open to close, so that abort may use them at any time */
	int ctl_fd, heap_fd, listen_fd, timer_fd;
	struct layout lay;
	struct ctl *ctl;
	bool stage_ready;
	uint64_t epoch;
	int64_t until;             /* of this progress */
	uint32_t turn;             /* peer that is looked at first */
	bool casts_first;
	struct ist_task *linking;  /* connect's, while it waits for the others */
	uint8_t cookie[COOKIE];
	uint8_t *wire;
	int32_t wire_fds[3];
	struct peer *peers;
	uint32_t *near, n_near;    /* ranks of the other members on this host */
	uint32_t cpus;
	struct chunk *chunks;
	uint64_t heap_end;
	struct part *casts, **casts_last;
	struct queue gates;
	uint64_t entries, posted;  /* broadcasts to publish: started, posted */
	uint64_t stage_end;        /* stream position where the next one begins */
	struct { uint64_t at; bool staged; } posts[BOARD]; /* where those on the board lie in it */
	uint64_t gates_started, gates_entered, gates_done;
	struct ist_task *tasks, *spare;
	uint64_t n_spare;
	struct conn *conns;
	uint64_t n_pending;
	bool accepting;            /* connections may wait to be accepted */
	int64_t starved;           /* since when they can't be, for want of descriptors or memory; 0: they can */
	int starved_sys;
	int turned_away;           /* why one that was taken could not be kept: its other end won't come again; 0: none */
	uint64_t moved, ended;
	struct crew *crews[SEATS]; /* one for each seat, made at need */
	int64_t aborted_at;
	struct copiers *copiers, own_copiers; /* the env's; or its own, where a loop was named */
};

/* ---- task.c ---- */
/* Says why a slot failed. Returns err. */
ist_err ist__host_say(struct ist_status *why, ist_err err, uint32_t rank, int32_t sys, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
struct ist_task *ist__host_task_new(struct ist_chan *chan, uint64_t n);
void ist__host_tasks_warm(struct ist_chan *chan);
void ist__host_sets_free(const struct ist_chan *chan, struct ist_task *task); /* of its parts; task_free does that too */
void ist__host_task_free(struct ist_chan *chan, struct ist_task *task);
void ist__host_task_end(struct ist_chan *chan, struct ist_task *task, ist_err result);
/* The part is over, well or not; it must be out of its queue. */
void ist__host_part_end(struct ist_chan *chan, struct part *part);
/* Notes the first failure of the part's task, and ends the part: at once, or when others have left its memory. */
void ist__host_part_fail(struct ist_chan *chan, struct part *part, ist_err err, uint32_t rank, int32_t sys, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));
/* Notes it alone: the part goes on until it can end. */
void ist__host_part_note(struct ist_chan *chan, struct part *part, ist_err err, uint32_t rank, int32_t sys, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));
void ist__host_task_abandon(struct ist_chan *chan, struct ist_task *task, ist_err why);
void ist__host_part_moved(struct ist_chan *chan, struct part *part, uint64_t bytes);
/* Compares what the other side says with what was asked for here; false: the part has failed. */
bool ist__host_part_fits(struct ist_chan *chan, struct part *part, uint32_t rank, uint64_t seq, uint64_t bytes);
void ist__host_push(struct queue *q, struct part *part);
struct part *ist__host_pop(struct queue *q);
/* After an abort: all tasks are over. */
void ist__host_end_all(struct ist_chan *chan, ist_err why);

/* ---- options.c ---- */
ist_err ist__host_options(const struct ist_open *args, struct options *out, struct ist_status *why);
/* "1.2.3.4:5" for messages. */
void ist__host_addr_text(const struct sockaddr_storage *addr, char *to, size_t room);

/* ---- segment.c ---- */
void ist__host_layout(uint32_t size, struct layout *out);
ist_err ist__host_segment_new(struct ist_chan *chan, struct ist_status *why);
void ist__host_segment_free(struct ist_chan *chan);
/* Takes a peer's descriptors and maps what is needed of them. BAD_HANDLE: they are not what they should be; UNSUPPORTED:
 * this process can't (then TCP). */
ist_err ist__host_attach(struct ist_chan *chan, struct peer *peer, const int32_t *fds, uint64_t n_fds, struct ist_status *why);
void ist__host_detach(struct ist_chan *chan, struct peer *peer);
/* Space for the ring to that peer and for the stage: from then on writing there can't fail. */
ist_err ist__host_reserve_ring(struct ist_chan *chan, struct peer *peer, struct ist_status *why);
ist_err ist__host_reserve_stage(struct ist_chan *chan, struct ist_status *why);
void ist__host_bell(struct ist_chan *chan, struct peer *peer);
void ist__host_bell_near(struct ist_chan *chan);
void ist__host_hear(struct ist_chan *chan);    /* notes all bells */
bool ist__host_arm(struct ist_chan *chan);     /* false: something has come meanwhile */
void ist__host_disarm(struct ist_chan *chan);
/* ENOSPC and its like in our words. */
ist_err ist__host_no_room(int sys);
/* 0, or the errno: end bytes of file are reserved from at on. Never raises SIGXFSZ. */
int ist__host_reserve(int fd, uint64_t at, uint64_t bytes);

/* ---- heap.c ---- */
ist_err ist__host_heap_alloc(struct ist_chan *chan, uint64_t bytes, int32_t numa, void **out, struct ist_status *why);
void ist__host_heap_free(struct ist_chan *chan, const void *addr);
const struct chunk *ist__host_heap_find(const struct ist_chan *chan, const struct ist_buf *buf);
void ist__host_heap_fini(struct ist_chan *chan);
/* A peer's bytes, mapped read-only. *out holds a reference. NULL: the part has failed. */
const uint8_t *ist__host_borrow(struct ist_chan *chan, struct peer *peer, struct part *part, const struct record *where,
	struct map **out);
/* The same without a part: for writing too. Holds a reference. */
ist_err ist__host_map(struct ist_chan *chan, struct peer *peer, const struct record *where, bool write, struct map **out);
/* Puts the pages of a range into this process's table, so that copying meets no page faults. Costs nothing the second time. */
void ist__host_map_pages(struct map *map, const uint8_t *from, uint64_t bytes);
void ist__host_unborrow(struct map *map);
void ist__host_maps_fini(struct ist_chan *chan, struct peer *peer);

/* ---- far.c ---- */
static inline bool
ist__host_is_far(const struct ist_buf *buf)
{
	return buf->mem > IST_MEM_PINNED && buf->bytes > 0;
}
ist_err ist__host_far_alloc(struct ist_chan *chan, uint64_t bytes, uint32_t mem, int32_t device, void **out, struct ist_status *why);
void ist__host_far_free(struct ist_chan *chan, struct chunk *chunk); /* the device's memory, if it stands for some */
/* As ist__host_borrow. The first time may take the device's library some milliseconds. */
const uint8_t *ist__host_far_borrow(struct ist_chan *chan, struct peer *peer, struct part *part, const struct record *rec, struct map **out);
void ist__host_far_drop(struct ist_chan *chan, struct map *map);

/* ---- wire.c ---- */
ist_err ist__host_offer(struct ist_chan *chan, struct ist_wire *mine, struct ist_status *why);
ist_err ist__host_connect(struct ist_chan *chan, const struct ist_connect *args, struct ist_status *why);
/* True once it is known who is near. Fails chan->linking. */
bool ist__host_link(struct ist_chan *chan);

/* ---- ring.c, stream.c: one step of the first SEND or RECV with a peer; true: something moved ---- */
bool ist__host_ring_send(struct ist_chan *chan, struct peer *peer);
bool ist__host_ring_recv(struct ist_chan *chan, struct peer *peer);
bool ist__host_self_step(struct ist_chan *chan);
bool ist__host_stream_send(struct ist_chan *chan, struct peer *peer);
bool ist__host_stream_recv(struct ist_chan *chan, struct peer *peer);

/* ---- takers.c ---- */
/* Notes who takes; op.takers is not looked at any more. False: no memory. */
bool ist__host_set_takers(const struct ist_chan *chan, struct part *part);
void ist__host_set_free(const struct ist_chan *chan, struct part *part);
/* Is there a bit for rank in a set of ranks? */
static inline bool
ist__host_has(const uint64_t *set, uint32_t rank)
{
	return set[rank / 64] >> (rank % 64) & 1;
}
/* Who gives this host's members the bytes: the root, or the first of the chain that takes. IST_NO_RANK: nobody takes here. */
uint32_t ist__host_publisher(const struct ist_chan *chan, const struct part *part);
/* How many members of this host read from that publisher. */
uint32_t ist__host_readers(const struct ist_chan *chan, const struct part *part, uint32_t publisher);
/* Adds this host to those who are served and finds who comes next. */
void ist__host_route(const struct ist_chan *chan, struct part *part);
uint64_t ist__host_set_print(const struct ist_chan *chan, const struct part *part);
void ist__host_bell_takers(struct ist_chan *chan, const struct part *part); /* of this host; the root too */

/* ---- cast.c, chain.c ---- */
ist_err ist__host_cast_ready(struct ist_chan *chan, const struct part *part, struct ist_status *why);
void ist__host_cast_start(struct ist_chan *chan, struct part *part);
bool ist__host_cast_step(struct ist_chan *chan);
void ist__host_cast_back(struct ist_chan *chan, struct part *part);
bool ist__host_is_near(const struct ist_chan *chan, uint32_t rank);
bool ist__host_chain_receive(struct ist_chan *chan, struct part *part);
bool ist__host_chain_forward(struct ist_chan *chan, struct part *part, uint64_t ready, bool *over);
void ist__host_chain_bye(const struct ist_chan *chan, struct conn *conn); /* before it is closed: nothing more will come */

/* ---- copiers.c ---- */
ist_err ist__host_copiers_open(struct ist_chan *chan, struct ist_status *why);
/* A piece of a transfer of whole bytes to n places, with one of the channel's copiers. */
void ist__host_move(struct ist_chan *chan, struct copier *copier, uint64_t whole, void *const *to, uint32_t n, const void *from, uint64_t bytes);

/* ---- coop.c ---- */
bool ist__host_coop_fits(const struct ist_chan *chan, const struct ist_op *op, uint64_t bytes);
/* Takes a seat: says where this member wants the bytes, if it can be written there. Without a free one part->crew stays NULL. */
void ist__host_coop_enter(struct ist_chan *chan, struct part *part);
bool ist__host_coop_decide(struct ist_chan *chan, struct part *part);
bool ist__host_coop_give(struct ist_chan *chan, struct part *part);
bool ist__host_coop_in(const struct ist_chan *chan, const struct part *part, uint64_t said);
bool ist__host_coop_take(struct ist_chan *chan, struct part *part, uint64_t said, bool *over);
bool ist__host_coop_out(struct ist_chan *chan, struct part *part);
void ist__host_coop_leave(struct part *part);
void ist__host_coop_drain(struct ist_chan *chan, ist_err why);
void ist__host_coop_fini(struct ist_chan *chan);

/* ---- barrier.c ---- */
void ist__host_gate_start(struct ist_chan *chan, struct part *part);
bool ist__host_gate_step(struct ist_chan *chan);
void ist__host_gate_spin(struct ist_chan *chan);

/* ---- net.c ---- */
ist_err ist__host_listen(struct ist_chan *chan, struct sockaddr_storage *bound, struct ist_status *why);
void ist__host_unlisten(struct ist_chan *chan);
/* The connection of that class to peer, dialled if there is none. NULL: no memory. */
struct conn *ist__host_dial(struct ist_chan *chan, struct peer *peer, enum class class, uint32_t root);
void ist__host_net_poll(struct ist_chan *chan);
ist_err ist__host_net_starved(const struct ist_chan *chan); /* LIMIT, NO_MEMORY: for too long no connection could be taken, or one not kept */
void ist__host_net_fini(struct ist_chan *chan);
void ist__host_conn_kill(struct conn *conn, int err);
/* Fails the part with what befell the connection. */
void ist__host_conn_lost(struct ist_chan *chan, struct part *part, const struct conn *conn);
/* As recv and sendmsg without waiting: bytes moved; 0: not now, or the connection is dead (state says). */
uint64_t ist__host_conn_recv(struct conn *conn, void *to, uint64_t bytes);
/* left bytes of a message are still missing: 0 after the last. */
void ist__host_conn_expect(struct conn *conn, uint64_t left);
/* Makes the next reads look whether something has come; false: nobody here is in the middle of a long message. */
bool ist__host_net_look(struct ist_chan *chan);
uint64_t ist__host_conn_send(struct conn *conn, const void *head, uint64_t head_bytes, const void *body, uint64_t body_bytes);
uint64_t ist__host_conn_buf(const struct ist_chan *chan); /* bytes of conn.buf */

/* ---- mac.c ---- */
void ist__host_mac(const uint8_t from[COOKIE], const uint8_t to[COOKIE], const void *msg, uint64_t bytes, uint8_t out[MAC]);
bool ist__host_equal(const void *a, const void *b, uint64_t bytes); /* in a time that does not depend on the bytes */

static inline uint64_t
round_line(uint64_t n)
{
	return (n + LINE - 1) & ~(LINE - 1);
}

static inline uint64_t
least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

#endif
