/* SPDX-License-Identifier: Apache-2.0 */
#include "far_device.h"

#include "base/digest.h"
#include "base/memfd.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MUST(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "%s:%d: the device was used wrongly: %s\n", __FILE__, __LINE__, #x); \
			abort(); \
		} \
	} while (0)

enum { DEVICES = 4, NAME = 64 };

struct piece {
	struct piece *next;
	uint8_t *addr;   /* what callers see: no access */
	uint8_t *behind; /* the same bytes, for the device */
	uint64_t bytes;
	int32_t index;
	int fd;
	bool mapped;     /* another process's */
	bool pinned;     /* host memory: addr is behind */
};

struct work {
	struct work *next;
	struct ist_copy *list;
	uint64_t n;
	bool digest;
	struct event *event;
};

struct event {
	bool recorded, done;
	struct stream *on;
};

struct stream {
	struct work *first, **last;
};

struct far_device {
	struct ist_device table;
	struct far_device_options opt;
	pthread_mutex_t lock;
	struct piece *pieces;
	uint64_t held, streams, events, pinned;
	int32_t copies;
	bool died;       /* it has stood still: what was under way then is never done */
};

/* ---- memory ---- */

static struct piece *
find(struct far_device *d, const void *addr, uint64_t bytes)
{
	const uint8_t *a = addr;

	for (struct piece *p = d->pieces; p; p = p->next)
		if (a >= p->addr && a < p->addr + p->bytes) {
			MUST(bytes <= p->bytes - (uint64_t)(a - p->addr));
			return p;
		}
	return NULL;
}

/* Where the device reads and writes; host memory as it is. */
static uint8_t *
behind(struct far_device *d, const void *addr, uint64_t bytes)
{
	struct piece *p = find(d, addr, bytes);

	return p ? p->behind + ((const uint8_t *)addr - p->addr) : (uint8_t *)(uintptr_t)addr;
}

static struct piece *
piece_new(struct far_device *d, int32_t index, uint64_t bytes, int fd)
{
	struct piece *p = calloc(1, sizeof(*p));

	MUST(p != NULL);
	*p = (struct piece){ .bytes = bytes, .index = index, .fd = fd, .next = d->pieces };
	p->addr = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	p->behind = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(p->addr != MAP_FAILED && p->behind != MAP_FAILED);
	d->pieces = p;
	return p;
}

static void
piece_drop(struct far_device *d, const void *addr, bool mapped)
{
	for (struct piece **at = &d->pieces; *at; at = &(*at)->next)
		if ((*at)->addr == addr) {
			struct piece *p = *at;

			MUST(p->mapped == mapped);
			*at = p->next;
			if (!mapped)
				d->held -= p->bytes;
			if (p->pinned) {
				free(p->addr);
			} else {
				munmap(p->addr, p->bytes);
				munmap(p->behind, p->bytes);
				close(p->fd);
			}
			free(p);
			return;
		}
	MUST(!"freed what is not there");
}

static ist_err
far_alloc(void *self, int32_t index, uint32_t mem, uint32_t flags, uint64_t bytes, void **out, struct ist_status *why)
{
	struct far_device *d = self;
	struct piece *p;

	(void)flags;
	MUST(index >= 0 && index < DEVICES && bytes > 0 && (mem == IST_MEM_CUDA || mem == IST_MEM_PINNED));
	pthread_mutex_lock(&d->lock);
	if (d->opt.room && mem == IST_MEM_CUDA && bytes > d->opt.room - (d->held < d->opt.room ? d->held : d->opt.room)) {
		pthread_mutex_unlock(&d->lock);
		snprintf(why->text, sizeof(why->text), "out of memory");
		return IST_NO_MEMORY;
	}
	if (mem == IST_MEM_PINNED) {
		p = calloc(1, sizeof(*p));
		MUST(p != NULL);
		p->addr = p->behind = aligned_alloc(4096, (bytes + 4095) & ~UINT64_C(4095));
		MUST(p->addr != NULL);
		p->pinned = true;
		p->bytes = bytes;
		p->next = d->pieces;
		d->pieces = p;
	} else {
		int fd = ist__memfd("far-device");

		MUST(fd >= 0 && !ftruncate(fd, (off_t)bytes));
		p = piece_new(d, index, bytes, fd);
	}
	d->held += bytes;
	pthread_mutex_unlock(&d->lock);
	*out = p->addr;
	return IST_OK;
}

static void
far_free(void *self, int32_t index, uint32_t mem, void *addr)
{
	struct far_device *d = self;

	(void)index, (void)mem;
	pthread_mutex_lock(&d->lock);
	piece_drop(d, addr, false);
	pthread_mutex_unlock(&d->lock);
}

static ist_err
far_pin(void *self, int32_t index, void *addr, uint64_t bytes, uint32_t flags, struct ist_status *why)
{
	struct far_device *d = self;

	(void)index, (void)why;
	MUST(addr && bytes > 0 && !(flags & ~(uint32_t)IST_PIN_READ_ONLY));
	if (d->opt.no_pin)
		return IST_UNSUPPORTED;
	pthread_mutex_lock(&d->lock);
	d->pinned += bytes;
	pthread_mutex_unlock(&d->lock);
	return IST_OK;
}

static void
far_unpin(void *self, int32_t index, void *addr, uint64_t bytes)
{
	struct far_device *d = self;

	(void)index, (void)addr;
	pthread_mutex_lock(&d->lock);
	MUST(d->pinned >= bytes);
	d->pinned -= bytes;
	pthread_mutex_unlock(&d->lock);
}

static ist_err
far_owner(void *self, const void *addr, struct ist_buf *out, struct ist_status *why)
{
	struct far_device *d = self;
	struct piece *p;

	(void)why;
	pthread_mutex_lock(&d->lock);
	p = find(d, addr, 0);
	*out = (struct ist_buf){ .addr = (void *)(uintptr_t)addr, .mem = IST_MEM_HOST, .device = -1 };
	if (p) {
		out->mem = p->pinned ? IST_MEM_PINNED : IST_MEM_CUDA;
		out->device = p->pinned ? -1 : p->index;
		out->bytes = p->bytes - (uint64_t)((const uint8_t *)addr - p->addr);
	}
	pthread_mutex_unlock(&d->lock);
	return IST_OK;
}

/* ---- streams ---- */

static void
do_copy(struct far_device *d, const struct ist_copy *c, bool digest)
{
	const uint8_t *src = behind(d, c->src, c->bytes);

	if (digest)
		ist__digest_leaves(src, c->bytes, (struct ist__digest *)(void *)behind(d, c->dst, ist__leaf_count(c->bytes) * sizeof(struct ist__digest)));
	else if (c->bytes > 0)
		memmove(behind(d, c->dst, c->bytes), src, c->bytes);
}

/* Everything up to the event, or all. */
static void
run(struct far_device *d, struct stream *s, const struct event *until)
{
	while (s->first && !(until && until->done)) {
		struct work *w = s->first;

		s->first = w->next;
		if (!s->first)
			s->last = &s->first;
		for (uint64_t i = 0; i < w->n && !d->died; i++)
			do_copy(d, &w->list[i], w->digest);
		if (w->event && w->event->on != s && w->event->on && !w->event->done)
			run(d, w->event->on, w->event); /* stream_wait */
		else if (w->event)
			w->event->done = true;
		free(w->list);
		free(w);
	}
}

static void
put_work(struct stream *s, struct work with, const struct ist_copy *list, uint64_t n)
{
	struct work *w = calloc(1, sizeof(*w));

	MUST(w != NULL);
	*w = with;
	w->next = NULL;
	w->n = n;
	w->list = calloc(n + 1, sizeof(*list));
	MUST(w->list != NULL);
	if (n > 0)
		memcpy(w->list, list, n * sizeof(*list));
	*s->last = w;
	s->last = &w->next;
}

static ist_err
far_stream_new(void *self, int32_t index, void **out, struct ist_status *why)
{
	struct far_device *d = self;
	struct stream *s = calloc(1, sizeof(*s));

	(void)why;
	MUST(s && index >= 0 && index < DEVICES);
	s->last = &s->first;
	pthread_mutex_lock(&d->lock);
	d->streams++;
	pthread_mutex_unlock(&d->lock);
	*out = s;
	return IST_OK;
}

static void
far_stream_free(void *self, int32_t index, void *stream)
{
	struct far_device *d = self;
	struct stream *s = stream;

	(void)index;
	pthread_mutex_lock(&d->lock);
	run(d, s, NULL);
	d->streams--;
	pthread_mutex_unlock(&d->lock);
	free(s);
}

static ist_err
far_copy(void *self, int32_t index, const struct ist_copy *list, uint64_t n, void *stream, struct ist_status *why)
{
	struct far_device *d = self;
	ist_err e = IST_OK;

	(void)index;
	pthread_mutex_lock(&d->lock);
	if (d->opt.copies && ++d->copies > d->opt.copies) {
		snprintf(why->text, sizeof(why->text), "an illegal memory access was encountered");
		why->sys = 700;
		e = IST_IO;
	} else {
		put_work(stream, (struct work){ .digest = false }, list, n);
	}
	pthread_mutex_unlock(&d->lock);
	return e;
}

static ist_err
far_digest(void *self, int32_t index, const struct ist_copy *list, uint64_t n, void *stream, struct ist_status *why)
{
	struct far_device *d = self;

	(void)index, (void)why;
	pthread_mutex_lock(&d->lock);
	put_work(stream, (struct work){ .digest = true }, list, n);
	pthread_mutex_unlock(&d->lock);
	return IST_OK;
}

static ist_err
far_event_new(void *self, int32_t index, uint32_t flags, void **out, struct ist_status *why)
{
	struct far_device *d = self;

	(void)index, (void)flags, (void)why;
	*out = calloc(1, sizeof(struct event));
	MUST(*out != NULL);
	pthread_mutex_lock(&d->lock);
	d->events++;
	pthread_mutex_unlock(&d->lock);
	return IST_OK;
}

static void
far_event_free(void *self, int32_t index, void *event)
{
	struct far_device *d = self;
	struct event *e = event;

	(void)index;
	pthread_mutex_lock(&d->lock);
	if (e->recorded && !e->done)
		run(d, e->on, e);
	d->events--;
	pthread_mutex_unlock(&d->lock);
	free(e);
}

static ist_err
far_event_record(void *self, int32_t index, void *event, void *stream, struct ist_status *why)
{
	struct far_device *d = self;
	struct event *e = event;

	(void)index, (void)why;
	pthread_mutex_lock(&d->lock);
	if (e->recorded && !e->done)
		run(d, e->on, e); /* it would be forgotten where it was */
	*e = (struct event){ .recorded = true, .on = stream };
	put_work(stream, (struct work){ .event = e }, NULL, 0);
	pthread_mutex_unlock(&d->lock);
	return IST_OK;
}

static ist_err
far_event_query(void *self, int32_t index, void *event, uint32_t *done, struct ist_status *why)
{
	struct far_device *d = self;
	struct event *e = event;

	(void)index, (void)why;
	pthread_mutex_lock(&d->lock);
	d->died = d->died || d->opt.stands_still;
	if (e->recorded && !e->done && !d->opt.stands_still)
		run(d, e->on, e);
	*done = e->done || !e->recorded;
	pthread_mutex_unlock(&d->lock);
	return IST_OK;
}

static ist_err
far_stream_wait(void *self, int32_t index, void *stream, void *event, struct ist_status *why)
{
	struct far_device *d = self;

	(void)index, (void)why;
	pthread_mutex_lock(&d->lock);
	put_work(stream, (struct work){ .event = event }, NULL, 0);
	pthread_mutex_unlock(&d->lock);
	return IST_OK;
}

/* ---- between processes ---- */

struct handle {
	uint64_t bytes, offset;
	int32_t pid, fd;
};

static ist_err
far_share(void *self, const struct ist_buf *buf, void *handle, uint64_t *bytes, int32_t *fd, struct ist_status *why)
{
	struct far_device *d = self;
	struct handle h = { .pid = getpid() };
	struct piece *p;

	if (d->opt.no_share) {
		snprintf(why->text, sizeof(why->text), "this device shares nothing");
		return IST_UNSUPPORTED;
	}
	pthread_mutex_lock(&d->lock);
	p = find(d, buf->addr, buf->bytes);
	MUST(p && !p->mapped && !p->pinned && *bytes >= sizeof(h));
	h.bytes = p->bytes;
	h.offset = (uint64_t)((uint8_t *)buf->addr - p->addr);
	h.fd = p->fd;
	pthread_mutex_unlock(&d->lock);
	memcpy(handle, &h, sizeof(h));
	*bytes = sizeof(h);
	*fd = -1;
	return IST_OK;
}

static ist_err
far_map(void *self, int32_t index, const struct ist_wire *handle, struct ist_buf *out, struct ist_status *why)
{
	struct far_device *d = self;
	struct handle h;
	struct piece *p;
	char path[NAME];
	int fd;

	MUST(handle->bytes == sizeof(h));
	memcpy(&h, handle->addr, sizeof(h));
	MUST(h.pid != getpid());
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", h.pid, h.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		snprintf(why->text, sizeof(why->text), "the handle's owner is gone");
		return IST_BAD_HANDLE;
	}
	pthread_mutex_lock(&d->lock);
	p = piece_new(d, index, h.bytes, fd);
	p->mapped = true;
	pthread_mutex_unlock(&d->lock);
	*out = (struct ist_buf){ .addr = p->addr + h.offset, .bytes = h.bytes - h.offset, .mem = IST_MEM_CUDA, .how = IST_MEM_IMPORTED, .device = index };
	return IST_OK;
}

static void
far_unmap(void *self, struct ist_buf *buf)
{
	struct far_device *d = self;
	struct piece *p;

	pthread_mutex_lock(&d->lock);
	p = find(d, buf->addr, 0);
	MUST(p != NULL);
	piece_drop(d, p->addr, true);
	pthread_mutex_unlock(&d->lock);
}

/* ---- the rest ---- */

static void
far_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_device_probe *out)
{
	(void)self, (void)host, (void)level;
	out->count = DEVICES;
	out->reason = out->library = "";
	out->version = "1";
}

static ist_err
far_info(void *self, int32_t index, struct ist_device_info *out, struct ist_status *why)
{
	if (index < 0 || index >= DEVICES) {
		snprintf(why->text, sizeof(why->text), "there are %d devices", DEVICES);
		return IST_INVALID_ARGUMENT;
	}
	(void)self;
	out->numa_node = -1;
	out->bytes_free = out->bytes_total = UINT64_C(1) << 40;
	out->copy_align = 1;
	memset(out->uuid, index + 1, sizeof(out->uuid));
	snprintf(out->name, sizeof(out->name), "far");
	return IST_OK;
}

static ist_err
far_enter(void *self, int32_t index, void **was, struct ist_status *why)
{
	(void)self, (void)index, (void)why;
	*was = NULL;
	return IST_OK;
}

static void
far_leave(void *self, int32_t index, void *was)
{
	(void)self, (void)index, (void)was;
}

struct far_device *
far_device_new(const struct far_device_options *options)
{
	struct far_device *d = calloc(1, sizeof(*d));

	MUST(d != NULL);
	if (options)
		d->opt = *options;
	pthread_mutex_init(&d->lock, NULL);
	d->table = (struct ist_device){ .struct_size = sizeof(d->table), .abi = IST_BACKEND_ABI, .name = "far", .self = d,
		.mem = 1u << IST_MEM_CUDA | 1u << IST_MEM_PINNED, .probe = far_probe, .info = far_info, .owner = far_owner, .enter = far_enter,
		.leave = far_leave, .alloc = far_alloc, .free = far_free, .pin = far_pin, .unpin = far_unpin, .stream_new = far_stream_new,
		.stream_free = far_stream_free, .copy = far_copy, .event_new = far_event_new, .event_record = far_event_record,
		.event_query = far_event_query, .stream_wait = far_stream_wait, .event_free = far_event_free, .share = far_share, .map = far_map,
		.unmap = far_unmap, .digest = d->opt.no_digest ? NULL : far_digest };
	return d;
}

void
far_device_free(struct far_device *d)
{
	MUST(!d->pieces && d->held == 0 && d->streams == 0 && d->events == 0 && d->pinned == 0);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

const struct ist_device *
far_device_table(struct far_device *d)
{
	return &d->table;
}

struct far_device_options *
far_device_options(struct far_device *d)
{
	return &d->opt;
}

uint64_t
far_device_held(struct far_device *d)
{
	uint64_t held;

	pthread_mutex_lock(&d->lock);
	held = d->held;
	pthread_mutex_unlock(&d->lock);
	return held;
}

void
far_device_put(struct far_device *d, void *to, const void *from, uint64_t bytes)
{
	pthread_mutex_lock(&d->lock);
	memcpy(behind(d, to, bytes), from, bytes);
	pthread_mutex_unlock(&d->lock);
}

void
far_device_get(struct far_device *d, void *to, const void *from, uint64_t bytes)
{
	pthread_mutex_lock(&d->lock);
	memcpy(to, behind(d, from, bytes), bytes);
	pthread_mutex_unlock(&d->lock);
}
