/* SPDX-License-Identifier: Apache-2.0
 *
 * segment.c - this member's segment and the view of the others'. The control segment (counters, rings, stage) has a fixed
 * size, is sealed, and is read-only to everybody else; space in it is reserved at first use. The heap is a second file
 * that grows. Sealing against shrinking is what keeps a reader from SIGBUS, so an unsealed file is refused.
 */
#include "backends/host/host.h"

#include "base/memfd.h"
#include "base/openfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define RINGS_BYTES (UINT64_C(8) << 20) /* of all rings of a member together */
#define RING_MAX (UINT64_C(4) << 20)
#define RING_MIN (UINT64_C(32) << 10)
#define SEALS (F_SEAL_SHRINK | F_SEAL_SEAL)

void
ist__host_layout(uint32_t size, struct layout *out)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), others = size > 1 ? size - 1 : 1, ring = RING_MAX;

	while (ring > RING_MIN && ring * others > RINGS_BYTES)
		ring /= 2;
	while (ring < page)
		ring *= 2;
	out->page = page;
	out->set_at = sizeof(struct ctl) + (uint64_t)size * sizeof(struct lane);
	out->stage_at = (out->set_at + ((uint64_t)size + 63) / 64 * 8 + page - 1) & ~(page - 1);
	out->stage_bytes = UINT64_C(8) << 20;
	if (size > 8)
		out->stage_bytes = UINT64_C(4) << 20;
	if (size > 32)
		out->stage_bytes = UINT64_C(2) << 20;
	out->rings_at = out->stage_at + out->stage_bytes;
	out->ring_bytes = ring;
	out->bytes = out->rings_at + ring * size;
}

/* The kernel answers a file size past the limit with a signal. */
static bool
size_allowed(uint64_t bytes)
{
	struct rlimit lim;

	return bytes <= INT64_MAX && (getrlimit(RLIMIT_FSIZE, &lim) || lim.rlim_cur == RLIM_INFINITY || bytes <= lim.rlim_cur);
}

int
ist__host_reserve(int fd, uint64_t at, uint64_t bytes)
{
	uint64_t end;
	int err;

	if (__builtin_add_overflow(at, bytes, &end) || !size_allowed(end))
		return EFBIG;
	do
		err = fallocate(fd, 0, (off_t)at, (off_t)bytes) ? errno : 0;
	while (err == EINTR);
	return err;
}

ist_err
ist__host_no_room(int sys)
{
	switch (sys) {
	case ENOSPC:
	case EFBIG:
	case EDQUOT:
		return IST_NO_SPACE;
	case ENOMEM:
	case ENOBUFS:
		return IST_NO_MEMORY;
	case EMFILE:
	case ENFILE:
		return IST_LIMIT;
	default:
		return IST_IO;
	}
}

/* A descriptor of the heap to hand out: read-only where /proc is there, so that a peer can't even try to write. */
static int
read_only(int fd)
{
	char path[32];
	int ro;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ro = ist__open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	return ro < 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : ro;
}

static int
make_ctl(struct ist_chan *chan)
{
	const struct layout *lay = &chan->lay;
	void *at;
	int err;

	chan->ctl_fd = ist__memfd("isthmus");
	if (chan->ctl_fd < 0)
		return errno;
	if (!size_allowed(lay->bytes))
		return EFBIG;
	if (ftruncate(chan->ctl_fd, (off_t)lay->bytes))
		return errno;
	err = ist__host_reserve(chan->ctl_fd, 0, lay->stage_at);
	if (err)
		return err;
	chan->shared += lay->stage_at;
	at = mmap(NULL, lay->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, chan->ctl_fd, 0);
	if (at == MAP_FAILED)
		return errno;
	chan->ctl = at;
	madvise(at, lay->bytes, MADV_DONTFORK);
	/* from now on nobody else can map it for writing */
	if (!fcntl(chan->ctl_fd, F_ADD_SEALS, SEALS | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)) {
		chan->wire_fds[0] = chan->ctl_fd;
		return 0;
	}
	if (fcntl(chan->ctl_fd, F_ADD_SEALS, SEALS | F_SEAL_GROW)) /* kernels before 5.1 don't know the other */
		return errno;
	chan->wire_fds[0] = read_only(chan->ctl_fd);
	return chan->wire_fds[0] < 0 ? errno : 0;
}

static int
make_files(struct ist_chan *chan)
{
	int err = make_ctl(chan);

	if (err)
		return err;
	chan->heap_fd = ist__memfd("isthmus-heap");
	if (chan->heap_fd < 0 || fcntl(chan->heap_fd, F_ADD_SEALS, SEALS))
		return errno;
	/* large broadcasts are written by all hands, unless the user doesn't want that */
	chan->wire_fds[1] = chan->opt.coop ? chan->heap_fd : read_only(chan->heap_fd);
	chan->wire_fds[2] = chan->wake_fd;
	return chan->wire_fds[1] < 0 ? errno : 0;
}

ist_err
ist__host_segment_new(struct ist_chan *chan, struct ist_status *why)
{
	int err = make_files(chan);

	if (err) {
		ist__host_segment_free(chan);
		return ist__host_say(why, ist__host_no_room(err), IST_NO_RANK, err, "shared memory of %llu bytes: %s",
			(unsigned long long)chan->lay.bytes, strerror(err));
	}
	chan->ctl->magic = HOST_MAGIC;
	chan->ctl->version = HOST_VERSION;
	chan->ctl->rank = chan->rank;
	chan->ctl->size = chan->size;
	chan->ctl->group = chan->group;
	chan->ctl->generation = chan->generation;
	chan->ctl->bytes = chan->lay.bytes;
	chan->shm = true;
	return IST_OK;
}

static void
close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void
ist__host_segment_free(struct ist_chan *chan)
{
	if (chan->ctl)
		munmap(chan->ctl, chan->lay.bytes);
	chan->ctl = NULL;
	chan->shm = false;
	chan->shared = 0;
	if (chan->wire_fds[0] != chan->ctl_fd)
		close_fd(&chan->wire_fds[0]);
	if (chan->wire_fds[1] != chan->heap_fd)
		close_fd(&chan->wire_fds[1]);
	close_fd(&chan->ctl_fd);
	close_fd(&chan->heap_fd);
	chan->wire_fds[0] = chan->wire_fds[1] = chan->wire_fds[2] = -1;
}

/* A file that can't be cut under our feet. */
static bool
sealed_file(int fd, uint64_t *bytes)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < 0 || seals < 0 || !(seals & F_SEAL_SHRINK))
		return false;
	*bytes = (uint64_t)st.st_size;
	return true;
}

/* Writing to it must not block nor raise a signal. Of the files that are of no kind only an eventfd takes eight bytes of zero,
 * and nobody notices. */
static bool
event_file(int fd)
{
	const uint64_t zero = 0;
	struct stat st;
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || !(flags & O_NONBLOCK) || fstat(fd, &st) || (st.st_mode & S_IFMT) != 0)
		return false;
	return write(fd, &zero, sizeof(zero)) == sizeof(zero) || errno == EAGAIN; /* full: it wakes as it is */
}

static void *
map_shared(int fd, uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_DONTFORK);
	return p;
}

static bool
ctl_right(const struct ist_chan *chan, const struct peer *peer, const struct ctl *ctl)
{
	return ctl->magic == HOST_MAGIC && ctl->version == HOST_VERSION && ctl->rank == peer->rank && ctl->size == chan->size &&
		ctl->group == chan->group && ctl->generation == chan->generation && ctl->bytes == chan->lay.bytes;
}

static ist_err
map_peer(struct ist_chan *chan, struct peer *peer, int fd, struct ist_status *why)
{
	const struct layout *lay = &chan->lay;
	const uint8_t *at = map_shared(fd, lay->bytes);
	int err = errno;

	if (!at) /* no room here is our trouble, not the peer's */
		return ist__host_say(why, err == ENOMEM ? IST_NO_MEMORY : IST_UNSUPPORTED, err == ENOMEM ? chan->rank : peer->rank, err,
			"can't map rank %u's segment: %s", peer->rank, strerror(err));
	peer->ctl = (const void *)at;
	peer->ring = at + lay->rings_at + lay->ring_bytes * chan->rank;
	peer->stage = at + lay->stage_at;
	if (!ctl_right(chan, peer, peer->ctl))
		return ist__host_say(why, IST_BAD_HANDLE, peer->rank, 0, "rank %u's segment is not of this group", peer->rank);
	return IST_OK;
}

ist_err
ist__host_attach(struct ist_chan *chan, struct peer *peer, const int32_t *fds, uint64_t n_fds, struct ist_status *why)
{
	uint64_t ctl_bytes, heap_bytes;
	ist_err err;

	if (n_fds != 3 || !sealed_file(fds[0], &ctl_bytes) || !sealed_file(fds[1], &heap_bytes) || !event_file(fds[2]))
		return ist__host_say(why, IST_BAD_HANDLE, peer->rank, 0, "rank %u's descriptors are not two sealed memory files and an eventfd",
			peer->rank);
	if (ctl_bytes != chan->lay.bytes)
		return ist__host_say(why, IST_BAD_HANDLE, peer->rank, 0, "rank %u's segment has %llu bytes, not %llu", peer->rank,
			(unsigned long long)ctl_bytes, (unsigned long long)chan->lay.bytes);
	peer->heap_fd = fcntl(fds[1], F_DUPFD_CLOEXEC, 0);
	peer->wake_fd = fcntl(fds[2], F_DUPFD_CLOEXEC, 0);
	if (peer->heap_fd < 0 || peer->wake_fd < 0)
		err = ist__host_say(why, ist__host_no_room(errno), chan->rank, errno, "copies of rank %u's descriptors: %s", peer->rank, strerror(errno));
	else
		err = map_peer(chan, peer, fds[0], why);
	if (err)
		ist__host_detach(chan, peer);
	return err;
}

static void
unmap(const void *at, uint64_t bytes)
{
	union { const void *c; void *p; } u = { .c = at };

	if (at)
		munmap(u.p, bytes);
}

void
ist__host_detach(struct ist_chan *chan, struct peer *peer)
{
	ist__host_maps_fini(chan, peer);
	unmap(peer->ctl, chan->lay.bytes);
	peer->ctl = NULL;
	peer->ring = peer->stage = NULL;
	close_fd(&peer->heap_fd);
	close_fd(&peer->wake_fd);
}

static ist_err
reserve(struct ist_chan *chan, uint64_t at, uint64_t bytes, struct ist_status *why)
{
	int err = ist__host_reserve(chan->ctl_fd, at, bytes);

	chan->shared += err ? 0 : bytes;
	return err ? ist__host_say(why, ist__host_no_room(err), IST_NO_RANK, err, "%llu bytes of shared memory: %s",
		(unsigned long long)bytes, strerror(err)) : IST_OK;
}

ist_err
ist__host_reserve_ring(struct ist_chan *chan, struct peer *peer, struct ist_status *why)
{
	ist_err err = peer->ring_ready ? IST_OK :
		reserve(chan, chan->lay.rings_at + chan->lay.ring_bytes * peer->rank, chan->lay.ring_bytes, why);

	peer->ring_ready = !err;
	return err;
}

ist_err
ist__host_reserve_stage(struct ist_chan *chan, struct ist_status *why)
{
	ist_err err = chan->stage_ready ? IST_OK : reserve(chan, chan->lay.stage_at, chan->lay.stage_bytes, why);

	chan->stage_ready = !err;
	return err;
}

/* The order is what makes sleeping safe: bell, then armed here; armed, then bells at the sleeper (arm). */
void
ist__host_bell(struct ist_chan *chan, struct peer *peer)
{
	const uint64_t one = 1;
	uint64_t armed;

	atomic_store_explicit(&chan->ctl->lanes[peer->rank].bell, ++peer->rung, memory_order_seq_cst);
	armed = atomic_load_explicit(&peer->ctl->armed, memory_order_seq_cst);
	if (armed == 0 || armed == peer->woken)
		return;
	peer->woken = armed;
	if (write(peer->wake_fd, &one, sizeof(one)) < 0)
		return; /* full: it is readable as it is */
}

void
ist__host_bell_near(struct ist_chan *chan)
{
	for (uint32_t i = 0; i < chan->n_near; i++)
		ist__host_bell(chan, &chan->peers[chan->near[i]]);
}

/* Before the work, so that what rings meanwhile is heard by arm. */
void
ist__host_hear(struct ist_chan *chan)
{
	for (uint32_t r = 0; r < chan->size; r++) {
		struct peer *peer = &chan->peers[r];
		if (peer->ctl)
			peer->seen = atomic_load_explicit(&peer->ctl->lanes[chan->rank].bell, memory_order_seq_cst);
	}
}

bool
ist__host_arm(struct ist_chan *chan)
{
	chan->armed = true;
	if (!chan->ctl)
		return true;
	atomic_store_explicit(&chan->ctl->armed, ++chan->epoch, memory_order_seq_cst);
	for (uint32_t r = 0; r < chan->size; r++) {
		struct peer *peer = &chan->peers[r];
		if (peer->ctl && peer->seen != atomic_load_explicit(&peer->ctl->lanes[chan->rank].bell, memory_order_seq_cst)) {
			ist__host_disarm(chan);
			return false;
		}
	}
	return true;
}

void
ist__host_disarm(struct ist_chan *chan)
{
	uint64_t n;

	chan->armed = false;
	if (chan->ctl)
		atomic_store_explicit(&chan->ctl->armed, 0, memory_order_relaxed);
	if (read(chan->wake_fd, &n, sizeof(n)) < 0)
		return; /* nobody wrote */
}
