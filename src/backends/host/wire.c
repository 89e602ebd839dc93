/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.c - what members tell each other before they are connected, and the agreement on who is near. Being able to map
 * each other must be an equivalence, or a broadcast would reach somebody twice or not at all: so two members count as
 * near only when both could map exactly the same set of members.
 */
#include "backends/host/host.h"

#include "base/bytes.h"
#include "base/cgroup.h"
#include "base/cpus.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define WIRE_SHM 1u

struct said {
	uint32_t version, rank, size, flags;
	uint64_t pid, group, generation, ctl_bytes;
	const uint8_t *cookie;
	struct sockaddr_storage addr;
};

static void
put_addr(struct ist__writer *w, const struct sockaddr_storage *addr)
{
	uint8_t raw[16] = { 0 };
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;

	if (addr->ss_family == AF_INET) {
		memcpy(&v4, addr, sizeof(v4));
		memcpy(raw, &v4.sin_addr, 4);
		ist__put_u8(w, 4);
		ist__put_u16(w, ntohs(v4.sin_port));
	} else if (addr->ss_family == AF_INET6) {
		memcpy(&v6, addr, sizeof(v6));
		memcpy(raw, &v6.sin6_addr, 16);
		ist__put_u8(w, 6);
		ist__put_u16(w, ntohs(v6.sin6_port));
	} else {
		ist__put_u8(w, 0);
		ist__put_u16(w, 0);
	}
	ist__put_bytes(w, raw, sizeof(raw));
}

static void
get_addr(struct ist__reader *r, struct sockaddr_storage *out)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
	uint8_t family = ist__get_u8(r);
	uint16_t port = ist__get_u16(r);
	const void *raw = ist__get_bytes(r, 16);

	memset(out, 0, sizeof(*out));
	if (!raw || port == 0)
		return;
	if (family == 4) {
		v4.sin_port = htons(port);
		memcpy(&v4.sin_addr, raw, 4);
		memcpy(out, &v4, sizeof(v4));
	} else if (family == 6) {
		v6.sin6_port = htons(port);
		memcpy(&v6.sin6_addr, raw, 16);
		memcpy(out, &v6, sizeof(v6));
	}
}

static ist_err
wire_new(struct ist_chan *chan, const struct sockaddr_storage *addr)
{
	struct ist__writer w;

	ist__writer_init(&w, &chan->ctx);
	ist__put_u64(&w, HOST_MAGIC);
	ist__put_u32(&w, HOST_VERSION);
	ist__put_u32(&w, chan->rank);
	ist__put_u32(&w, chan->size);
	ist__put_u32(&w, chan->shm ? WIRE_SHM : 0);
	ist__put_u64(&w, (uint64_t)getpid());
	ist__put_u64(&w, chan->group);
	ist__put_u64(&w, chan->generation);
	ist__put_u64(&w, chan->lay.bytes);
	ist__put_bytes(&w, chan->cookie, COOKIE);
	put_addr(&w, addr);
	if (!w.bad && (chan->wire = ist__alloc(&chan->ctx, w.bytes)))
		memcpy(chan->wire, w.at, w.bytes);
	ist__writer_fini(&w);
	return chan->wire ? IST_OK : IST_NO_MEMORY;
}

#define WIRE_BYTES (8u + 4u * 4u + 8u * 4u + COOKIE + 3u + 16u)

static bool
wire_read(const struct ist_wire *wire, struct said *out)
{
	struct ist__reader r;

	if (wire->bytes < WIRE_BYTES || !wire->addr)
		return false;
	ist__reader_init(&r, wire->addr, wire->bytes);
	if (ist__get_u64(&r) != HOST_MAGIC)
		return false;
	out->version = ist__get_u32(&r);
	out->rank = ist__get_u32(&r);
	out->size = ist__get_u32(&r);
	out->flags = ist__get_u32(&r);
	out->pid = ist__get_u64(&r);
	out->group = ist__get_u64(&r);
	out->generation = ist__get_u64(&r);
	out->ctl_bytes = ist__get_u64(&r);
	out->cookie = ist__get_bytes(&r, COOKIE);
	get_addr(&r, &out->addr);
	return !r.bad;
}

static void
set_port(struct sockaddr_storage *addr, const struct sockaddr_storage *from)
{
	/* both kinds have the port in the same place */
	memcpy(&((struct sockaddr_in *)(void *)addr)->sin_port, &((const struct sockaddr_in *)(const void *)from)->sin_port, 2);
}

ist_err
ist__host_offer(struct ist_chan *chan, struct ist_wire *mine, struct ist_status *why)
{
	struct sockaddr_storage addr = { .ss_family = AF_UNSPEC }, bound;
	ist_err err;

	if (getrandom(chan->cookie, COOKIE, GRND_NONBLOCK) != COOKIE)
		return ist__host_say(why, IST_IO, IST_NO_RANK, errno, "no random bytes");
	if (chan->opt.transport != TRANSPORT_TCP && chan->size > 1) {
		err = ist__host_segment_new(chan, why);
		if (err && (chan->opt.transport == TRANSPORT_SHM || err == IST_LIMIT)) /* tcp needs descriptors as well */
			return err;
		if (err)
			ist__log(&chan->ctx, 1, "no shared memory, tcp only: %s", why && IST_HAS(why, text) ? why->text : ist_err_name(err));
	}
	if (chan->opt.transport != TRANSPORT_SHM && chan->size > 1) {
		err = ist__host_listen(chan, &bound, why);
		if (err && (!chan->shm || err == IST_LIMIT)) /* whoever shares no memory with us would be blamed for it */
			return err;
		if (err) {
			ist__log(&chan->ctx, 1, "can't listen, shared memory only: %s", why && IST_HAS(why, text) ? why->text : ist_err_name(err));
		} else {
			addr = chan->opt.has_advertise ? chan->opt.advertise : bound;
			set_port(&addr, &bound);
		}
	}
	err = wire_new(chan, &addr);
	if (err)
		return err;
	*mine = (struct ist_wire){ .addr = chan->wire, .bytes = WIRE_BYTES, .fds = chan->wire_fds, .n_fds = chan->shm ? 3 : 0 };
	return IST_OK;
}

static ist_err
check_said(const struct ist_chan *chan, uint32_t rank, const struct said *said, struct ist_status *why)
{
	if (said->version != HOST_VERSION)
		return ist__host_say(why, IST_VERSION_MISMATCH, rank, 0, "rank %u speaks version %u of the host backend, rank %u version %u", rank,
			said->version, chan->rank, HOST_VERSION);
	if (said->rank != rank || said->size != chan->size || said->group != chan->group || said->generation != chan->generation)
		return ist__host_say(why, IST_MISMATCH, rank, 0, "rank %u's wire-up is of another group: rank %u of %u", rank, said->rank, said->size);
	return IST_OK;
}

/* A member that can't be mapped here is reached through TCP; one whose descriptors are wrong ends it all. */
static ist_err
meet_near(struct ist_chan *chan, struct peer *peer, const struct ist_wire *wire, struct ist_status *why)
{
	const uint64_t one = 1;
	ist_err err;

	if (!chan->shm || wire->n_fds == 0)
		return chan->opt.transport == TRANSPORT_SHM ? ist__host_say(why, IST_UNSUPPORTED, peer->rank, 0,
			"rank %u is not on this host, or shares no memory, and transport=shm was asked for", peer->rank) : IST_OK;
	err = ist__host_attach(chan, peer, wire->fds, wire->n_fds, why);
	if ((err == IST_UNSUPPORTED || err == IST_NO_MEMORY) && chan->opt.transport != TRANSPORT_SHM) {
		ist__log(&chan->ctx, 1, "rank %u is reached through tcp: %s", peer->rank, why && IST_HAS(why, text) ? why->text : "");
		atomic_store_explicit(&chan->ctl->lanes[peer->rank].attached, LINK_REFUSED, memory_order_seq_cst);
		/* its armed number can't be read: wake it in any case */
		if (write(wire->fds[2], &one, sizeof(one)) < 0)
			return IST_OK;
		return IST_OK;
	}
	return err;
}

static uint64_t
set_word(const struct ist_chan *chan, const struct ctl *ctl, uint32_t word)
{
	const _Atomic uint64_t *set = (const _Atomic uint64_t *)(const void *)((const uint8_t *)ctl + chan->lay.set_at);

	return atomic_load_explicit(&set[word], memory_order_relaxed);
}

/* One's own set, oneself included; then the flags that say that it is there. */
static void
publish_set(struct ist_chan *chan)
{
	_Atomic uint64_t *set = (_Atomic uint64_t *)(void *)((uint8_t *)chan->ctl + chan->lay.set_at);

	for (uint32_t r = 0; r < chan->size; r++)
		if (r == chan->rank || chan->peers[r].ctl)
			set[r / 64] |= UINT64_C(1) << (r % 64);
	for (uint32_t r = 0; r < chan->size; r++)
		if (chan->peers[r].ctl) {
			atomic_store_explicit(&chan->ctl->lanes[r].attached, LINK_YES, memory_order_seq_cst);
			ist__host_bell(chan, &chan->peers[r]);
		}
}

static const char key_of_quota; /* its address says whose memory of the env it is */

static void
look_at_quota(void *p)
{
	*(uint32_t *)p = ist__cpu_quota_at(IST__CGROUP_SELF, IST__CGROUP_ROOT);
}

/* What a container leaves stands in several files: they are read once for the env, however many channels there are. */
static uint32_t
cpus_of(const struct ist_chan *chan)
{
	const uint32_t *quota = NULL;

	if (IST_HAS(chan->host, keep) && chan->host->keep)
		quota = chan->host->keep(chan->host->ctx, &key_of_quota, sizeof(*quota), look_at_quota);
	return quota ? ist__cpus_of(*quota) : ist__cpus();
}

ist_err
ist__host_connect(struct ist_chan *chan, const struct ist_connect *args, struct ist_status *why)
{
	struct said said;
	ist_err err;

	if (args->size != chan->size)
		return ist__host_say(why, IST_INVALID_ARGUMENT, IST_NO_RANK, 0, "wire-up of %u members, the group has %u", args->size, chan->size);
	for (uint32_t r = 0; r < chan->size; r++) {
		struct peer *peer = &chan->peers[r];
		if (r == chan->rank)
			continue;
		if (!wire_read(&args->all[r], &said))
			return ist__host_say(why, IST_MISMATCH, r, 0, "rank %u's wire-up of %llu bytes is not the host backend's", r,
				(unsigned long long)args->all[r].bytes);
		err = check_said(chan, r, &said, why);
		if (err)
			return err;
		memcpy(peer->cookie, said.cookie, COOKIE);
		peer->addr = said.addr;
		err = meet_near(chan, peer, &args->all[r], why);
		if (err)
			return err;
	}
	if (chan->ctl)
		publish_set(chan);
	chan->cpus = cpus_of(chan);
	return IST_OK;
}

static bool
same_set(const struct ist_chan *chan, const struct peer *peer)
{
	for (uint32_t i = 0; i < chan->words; i++)
		if (set_word(chan, chan->ctl, i) != set_word(chan, peer->ctl, i))
			return false;
	return true;
}

static void
link_fail(struct ist_chan *chan, ist_err err, uint32_t rank, const char *text)
{
	struct ist_task *task = chan->linking;

	task->rank = rank;
	strncpy(task->text, text, sizeof(task->text) - 1);
	chan->linking = NULL;
	ist__host_task_end(chan, task, err);
}

static void
settle(struct ist_chan *chan)
{
	for (uint32_t r = 0; r < chan->size; r++) {
		struct peer *peer = &chan->peers[r];
		if (!peer->ctl)
			continue;
		peer->near = atomic_load_explicit(&peer->ctl->lanes[chan->rank].attached, memory_order_acquire) == LINK_YES && same_set(chan, peer);
		if (peer->near)
			chan->near[chan->n_near++] = r;
		else
			ist__host_detach(chan, peer);
	}
}

bool
ist__host_link(struct ist_chan *chan)
{
	for (uint32_t r = 0; r < chan->size; r++) {
		struct peer *peer = &chan->peers[r];
		if (!peer->ctl || atomic_load_explicit(&peer->ctl->lanes[chan->rank].attached, memory_order_acquire) != LINK_NONE)
			continue;
		if (ist__now() > chan->deadline)
			link_fail(chan, IST_TIMEOUT, r, "this member on the same host has not mapped our segment in time");
		return false;
	}
	settle(chan);
	for (uint32_t r = 0; r < chan->size; r++)
		if (r != chan->rank && !chan->peers[r].near && (chan->listen_fd < 0 || chan->peers[r].addr.ss_family == AF_UNSPEC)) {
			link_fail(chan, IST_UNSUPPORTED, r, "this member can't be reached: no shared memory with it, and it or this member speaks no tcp");
			return false;
		}
	if (chan->n_near + 1 == chan->size)
		ist__host_unlisten(chan); /* nobody will dial */
	ist__log(&chan->ctx, 2, "rank %u of %u: %u members share memory, %u over tcp", chan->rank, chan->size, chan->n_near,
		chan->size - 1 - chan->n_near);
	chan->connected = true;
	ist__host_task_end(chan, chan->linking, IST_OK);
	chan->linking = NULL;
	return true;
}
