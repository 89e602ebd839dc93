/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/host.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/memfd.h"
#include "base/openfd.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

enum { HANDLE_MAGIC = 0x31484D49 };

/* Memory that other processes may map. Plain memory needs no note. */
struct shared {
	struct shared *next;
	uint8_t *addr;
	uint64_t bytes; /* whole pages */
	int fd;
};

struct ist__host_device {
	const struct ist__ctx *ctx;
	pthread_mutex_t lock; /* shared */
	struct shared *shared;
};

/* What share says beside the descriptor. */
struct handle {
	uint32_t magic;
	uint32_t reserved;
	uint64_t offset;
	uint64_t bytes;
};

struct event {
	int64_t at;
};

static ist_err
say(struct ist_status *why, ist_err e, int sys, const char *text)
{
	if (why) {
		why->sys = sys;
		snprintf(why->text, sizeof(why->text), "%s", text);
	}
	return e;
}

static uint64_t
page(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

static void
host_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_device_probe *out)
{
	(void)self, (void)host, (void)level;
	out->count = 1;
	out->reason = out->library = "";
	out->version = "1";
}

/* The kernel's boot id: one machine, whatever container asks. */
static void
machine_uuid(uint8_t out[16])
{
	char text[64];
	int fd = ist__open(AT_FDCWD, "/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC, 0), nibbles = 0;
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text));

	if (fd >= 0)
		close(fd);
	for (ssize_t i = 0; i < n && nibbles < 32; i++) {
		int c = text[i], v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;

		if (v < 0)
			continue;
		out[nibbles / 2] = (uint8_t)(out[nibbles / 2] << 4 | v);
		nibbles++;
	}
}

static ist_err
bad_index(int32_t index, struct ist_status *why)
{
	return index == 0 || index == -1 ? IST_OK : say(why, IST_INVALID_ARGUMENT, 0, "host memory is one device, 0");
}

static ist_err
host_info(void *self, int32_t index, struct ist_device_info *out, struct ist_status *why)
{
	struct sysinfo s;

	(void)self;
	if (bad_index(index, why))
		return IST_INVALID_ARGUMENT;
	if (sysinfo(&s))
		return say(why, IST_IO, errno, "sysinfo");
	out->numa_node = -1;
	out->bytes_free = (uint64_t)s.freeram * s.mem_unit;
	out->bytes_total = (uint64_t)s.totalram * s.mem_unit;
	out->copy_align = 1;
	machine_uuid(out->uuid);
	snprintf(out->name, sizeof(out->name), "host memory");
	return IST_OK;
}

static ist_err
host_owner(void *self, const void *addr, struct ist_buf *out, struct ist_status *why)
{
	struct ist__host_device *d = self;

	(void)why;
	*out = (struct ist_buf){ .addr = out->addr, .mem = IST_MEM_HOST, .device = -1 };
	pthread_mutex_lock(&d->lock);
	for (struct shared *s = d->shared; s; s = s->next) {
		uint64_t off = (uint64_t)((uintptr_t)addr - (uintptr_t)s->addr);

		if ((uintptr_t)addr >= (uintptr_t)s->addr && off < s->bytes) {
			out->how = IST_MEM_MAPPED;
			out->bytes = s->bytes - off;
		}
	}
	pthread_mutex_unlock(&d->lock);
	return IST_OK;
}

static ist_err
host_enter(void *self, int32_t index, void **was, struct ist_status *why)
{
	(void)self;
	if (bad_index(index, why))
		return IST_INVALID_ARGUMENT;
	*was = NULL;
	return IST_OK;
}

static void
host_leave(void *self, int32_t index, void *was)
{
	(void)self, (void)index, (void)was;
}

/* Sealed, so that a mapping of it can't be cut; reserved, so that touching it can't fail. */
static ist_err
shared_new(uint64_t bytes, struct shared *out, struct ist_status *why)
{
	int fd = ist__memfd("isthmus"), rc;
	void *p;

	if (fd < 0)
		return say(why, errno == EMFILE || errno == ENFILE ? IST_LIMIT : IST_NO_MEMORY, errno, "memfd_create");
	do
		rc = fallocate(fd, 0, 0, (off_t)bytes);
	while (rc && errno == EINTR);
	p = rc || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ?
		MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		rc = errno;
		close(fd);
		return say(why, IST_NO_MEMORY, rc, "no shared memory of that size");
	}
	*out = (struct shared){ .addr = p, .bytes = bytes, .fd = fd };
	return IST_OK;
}

static ist_err
alloc_shared(struct ist__host_device *d, uint64_t bytes, void **out, struct ist_status *why)
{
	struct shared *s;
	ist_err e;

	if (bytes == 0)
		bytes = 1;
	bytes = (bytes + page() - 1) & ~(page() - 1);
	s = ist__alloc(d->ctx, sizeof(*s));
	if (!s)
		return IST_NO_MEMORY;
	e = shared_new(bytes, s, why);
	if (e) {
		ist__free(d->ctx, s);
		return e;
	}
	pthread_mutex_lock(&d->lock);
	s->next = d->shared;
	d->shared = s;
	pthread_mutex_unlock(&d->lock);
	*out = s->addr;
	return IST_OK;
}

static ist_err
host_alloc(void *self, int32_t index, uint32_t mem, uint32_t flags, uint64_t bytes, void **out, struct ist_status *why)
{
	struct ist__host_device *d = self;
	void *p;

	if (bad_index(index, why))
		return IST_INVALID_ARGUMENT;
	if (mem != IST_MEM_HOST && mem != IST_MEM_PINNED)
		return say(why, IST_UNSUPPORTED, 0, "host memory is of kind HOST or PINNED");
	if ((flags & IST_MUST) && (flags & ~(IST_MUST | IST_ALLOC_SHARE | IST_ALLOC_WINDOW)))
		return say(why, IST_UNSUPPORTED, 0, "an unknown flag");
	if (bytes > INT64_MAX)
		return say(why, IST_NO_MEMORY, 0, "no memory of that size");
	if (flags & (IST_ALLOC_SHARE | IST_ALLOC_WINDOW))
		return alloc_shared(d, bytes, out, why);
	p = d->ctx->alloc(d->ctx->mem_ctx, bytes, page(), mem, d->ctx->numa);
	if (!p)
		return say(why, IST_NO_MEMORY, 0, "no memory of that size");
	*out = p;
	return IST_OK;
}

static void
shared_end(struct ist__host_device *d, struct shared *s)
{
	munmap(s->addr, s->bytes);
	close(s->fd);
	ist__free(d->ctx, s);
}

static void
host_free(void *self, int32_t index, uint32_t mem, void *addr)
{
	struct ist__host_device *d = self;
	struct shared **at, *s;

	(void)index, (void)mem;
	pthread_mutex_lock(&d->lock);
	for (at = &d->shared; *at && (void *)(*at)->addr != addr; at = &(*at)->next)
		;
	s = *at;
	if (s)
		*at = s->next;
	pthread_mutex_unlock(&d->lock);
	if (s)
		shared_end(d, s);
	else
		ist__free(d->ctx, addr);
}

/* The processor reaches all host memory as it is. */
static ist_err
host_pin(void *self, int32_t index, void *addr, uint64_t bytes, uint32_t flags, struct ist_status *why)
{
	(void)self, (void)flags;
	if (bad_index(index, why) || (!addr && bytes))
		return IST_INVALID_ARGUMENT;
	return IST_OK;
}

static void
host_unpin(void *self, int32_t index, void *addr, uint64_t bytes)
{
	(void)self, (void)index, (void)addr, (void)bytes;
}

/* Copies are done when copy returns, so a stream has nothing to remember: it is a name. */
static ist_err
host_stream_new(void *self, int32_t index, void **out, struct ist_status *why)
{
	struct ist__host_device *d = self;
	void *p;

	if (bad_index(index, why))
		return IST_INVALID_ARGUMENT;
	p = ist__alloc(d->ctx, 16);
	if (!p)
		return IST_NO_MEMORY;
	*out = p;
	return IST_OK;
}

static void
host_stream_free(void *self, int32_t index, void *stream)
{
	struct ist__host_device *d = self;

	(void)index;
	ist__free(d->ctx, stream);
}

static ist_err
host_copy(void *self, int32_t index, const struct ist_copy *list, uint64_t n, void *stream, struct ist_status *why)
{
	(void)self, (void)stream;
	if (bad_index(index, why))
		return IST_INVALID_ARGUMENT;
	for (uint64_t i = 0; i < n; i++)
		if (list[i].bytes > 0)
			memmove(list[i].dst, list[i].src, list[i].bytes);
	return IST_OK;
}

static ist_err
host_event_new(void *self, int32_t index, uint32_t flags, void **out, struct ist_status *why)
{
	struct ist__host_device *d = self;
	void *p;

	if (bad_index(index, why))
		return IST_INVALID_ARGUMENT;
	if (flags & (IST_EVENT_SHARE | IST_MUST))
		return say(why, IST_UNSUPPORTED, 0, "events of host memory are not shared");
	p = ist__alloc(d->ctx, sizeof(struct event));
	if (!p)
		return IST_NO_MEMORY;
	*out = p;
	return IST_OK;
}

static ist_err
host_event_record(void *self, int32_t index, void *event, void *stream, struct ist_status *why)
{
	struct event *e = event;

	(void)self, (void)stream;
	if (bad_index(index, why) || !e)
		return IST_INVALID_ARGUMENT;
	e->at = ist__now();
	return IST_OK;
}

static ist_err
host_event_query(void *self, int32_t index, void *event, uint32_t *done, struct ist_status *why)
{
	(void)self;
	if (bad_index(index, why) || !event)
		return IST_INVALID_ARGUMENT;
	*done = 1;
	return IST_OK;
}

static ist_err
host_stream_wait(void *self, int32_t index, void *stream, void *event, struct ist_status *why)
{
	(void)self, (void)stream;
	return bad_index(index, why) || !event ? IST_INVALID_ARGUMENT : IST_OK;
}

static void
host_event_free(void *self, int32_t index, void *event)
{
	struct ist__host_device *d = self;

	(void)index;
	ist__free(d->ctx, event);
}

static ist_err
host_event_ns(void *self, int32_t index, void *from, void *to, int64_t *ns, struct ist_status *why)
{
	const struct event *a = from, *b = to;

	(void)self;
	if (bad_index(index, why) || !a || !b || !a->at || !b->at)
		return IST_INVALID_ARGUMENT;
	*ns = b->at - a->at;
	return IST_OK;
}

static ist_err
host_share(void *self, const struct ist_buf *buf, void *handle, uint64_t *bytes, int32_t *fd, struct ist_status *why)
{
	struct ist__host_device *d = self;
	struct handle h = { .magic = HANDLE_MAGIC, .bytes = buf->bytes };
	int copy = -1, sys = 0;
	bool found = false;

	if (*bytes < sizeof(h))
		return say(why, IST_LIMIT, 0, "no room for the handle");
	pthread_mutex_lock(&d->lock);
	for (struct shared *s = d->shared; s && !found; s = s->next) {
		h.offset = (uint64_t)((uintptr_t)buf->addr - (uintptr_t)s->addr);
		if ((uintptr_t)buf->addr < (uintptr_t)s->addr || h.offset > s->bytes || buf->bytes > s->bytes - h.offset)
			continue;
		found = true;
		copy = fcntl(s->fd, F_DUPFD_CLOEXEC, 3);
		sys = errno;
	}
	pthread_mutex_unlock(&d->lock);
	if (!found)
		return say(why, IST_UNSUPPORTED, 0, "only memory from alloc with IST_ALLOC_SHARE can be shared");
	if (copy < 0)
		return say(why, IST_LIMIT, sys, "no descriptor left");
	memcpy(handle, &h, sizeof(h));
	*bytes = sizeof(h);
	*fd = copy;
	return IST_OK;
}

/* From another process: nothing in it is believed. */
static const char *
check_handle(const struct ist_wire *wire, struct handle *h)
{
	struct stat st;
	uint64_t end;
	int seals;

	if (wire->bytes != sizeof(*h) || wire->n_fds != 1)
		return "not a handle of host memory";
	memcpy(h, wire->addr, sizeof(*h));
	if (h->magic != HANDLE_MAGIC || h->bytes == 0)
		return "not a handle of host memory";
	seals = fcntl(wire->fds[0], F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return "the descriptor is not sealed: its memory could be cut under a reader";
	if (fstat(wire->fds[0], &st) || __builtin_add_overflow(h->offset, h->bytes, &end) || end > (uint64_t)st.st_size)
		return "the handle reaches past the end of its memory";
	return NULL;
}

static ist_err
host_map(void *self, int32_t index, const struct ist_wire *wire, struct ist_buf *out, struct ist_status *why)
{
	struct handle h;
	const char *bad = check_handle(wire, &h);
	uint64_t skip;
	uint8_t *p;

	(void)self;
	if (bad_index(index, why))
		return IST_INVALID_ARGUMENT;
	if (bad)
		return say(why, IST_INVALID_ARGUMENT, 0, bad);
	skip = h.offset & (page() - 1);
	p = mmap(NULL, skip + h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, wire->fds[0], (off_t)(h.offset - skip));
	if (p == MAP_FAILED)
		return say(why, IST_NO_MEMORY, errno, "mmap of shared memory");
	*out = (struct ist_buf){
		.addr = p + skip,
		.bytes = h.bytes,
		.mem = IST_MEM_HOST,
		.how = IST_MEM_MAPPED | IST_MEM_IMPORTED,
		.device = -1,
	};
	return IST_OK;
}

static void
host_unmap(void *self, struct ist_buf *buf)
{
	uintptr_t skip = (uintptr_t)buf->addr & (uintptr_t)(page() - 1);

	(void)self;
	munmap((uint8_t *)buf->addr - skip, skip + buf->bytes);
	buf->addr = NULL;
	buf->bytes = 0;
}

static ist_err
host_digest(void *self, int32_t index, const struct ist_copy *list, uint64_t n, void *stream, struct ist_status *why)
{
	(void)self, (void)stream;
	if (bad_index(index, why))
		return IST_INVALID_ARGUMENT;
	for (uint64_t i = 0; i < n; i++)
		ist__digest_leaves(list[i].src, list[i].bytes, list[i].dst);
	return IST_OK;
}

static const struct ist_device host_table = {
	.struct_size = sizeof(struct ist_device),
	.abi = IST_BACKEND_ABI,
	.name = "host",
	.mem = 1u << IST_MEM_HOST | 1u << IST_MEM_PINNED,
	.probe = host_probe,
	.info = host_info,
	.owner = host_owner,
	.enter = host_enter,
	.leave = host_leave,
	.alloc = host_alloc,
	.free = host_free,
	.pin = host_pin,
	.unpin = host_unpin,
	.stream_new = host_stream_new,
	.stream_free = host_stream_free,
	.copy = host_copy,
	.event_new = host_event_new,
	.event_record = host_event_record,
	.event_query = host_event_query,
	.stream_wait = host_stream_wait,
	.event_free = host_event_free,
	.share = host_share,
	.map = host_map,
	.unmap = host_unmap,
	.event_ns = host_event_ns,
	.digest = host_digest,
};

struct ist__host_device *
ist__host_device_new(const struct ist__ctx *ctx, struct ist_device *table)
{
	struct ist__host_device *d = ist__alloc(ctx, sizeof(*d));

	if (!d)
		return NULL;
	d->ctx = ctx;
	pthread_mutex_init(&d->lock, NULL);
	*table = host_table;
	table->self = d;
	return d;
}

void
ist__host_device_free(struct ist__host_device *d)
{
	if (!d)
		return;
	while (d->shared) {
		struct shared *s = d->shared;

		d->shared = s->next;
		shared_end(d, s);
	}
	pthread_mutex_destroy(&d->lock);
	ist__free(d->ctx, d);
}
