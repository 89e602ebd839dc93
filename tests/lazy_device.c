/* SPDX-License-Identifier: Apache-2.0 */
#include "lazy_device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
	struct job *next;
	void (*run)(void *arg);
	void *arg;
};

struct stream {
	pthread_mutex_t lock;
	pthread_cond_t news;
	pthread_t thread;
	struct job *first, **last;
	bool held, stop;
	struct stream *next; /* of the process; under streams_lock */
};

struct event {
	_Atomic uint64_t asked, done; /* records */
};

int lazy_twin = -1;
static _Atomic int live;
static _Thread_local int current = -1;
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams;

int cuLaunchHostFunc(void *stream, void (*run)(void *), void *arg);
int cuCtxGetDevice(int *out);

static ist_err
say(struct ist_status *why, ist_err e, const char *text)
{
	if (why)
		snprintf(why->text, sizeof(why->text), "%s", text);
	return e;
}

/* ---- streams ---- */

static void *
stream_main(void *arg)
{
	struct stream *s = arg;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct job *job = s->held ? NULL : s->first;

		if (!job && s->stop && !s->first)
			break;
		if (!job) {
			pthread_cond_wait(&s->news, &s->lock);
			continue;
		}
		s->first = job->next;
		if (!s->first)
			s->last = &s->first;
		pthread_mutex_unlock(&s->lock);
		job->run(job->arg);
		free(job);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static bool
is_stream(const struct stream *s)
{
	bool found = false;

	pthread_mutex_lock(&streams_lock);
	for (const struct stream *at = streams; at && !found; at = at->next)
		found = at == s;
	pthread_mutex_unlock(&streams_lock);
	return found;
}

/* 0, or CUDA_ERROR_INVALID_HANDLE. */
static int
put(void *stream, void (*run)(void *), void *arg)
{
	struct stream *s = stream;
	struct job *job = is_stream(s) ? malloc(sizeof(*job)) : NULL;

	if (!job)
		return 400;
	*job = (struct job){ .run = run, .arg = arg };
	pthread_mutex_lock(&s->lock);
	*s->last = job;
	s->last = &job->next;
	pthread_cond_signal(&s->news);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

__attribute__((visibility("default"))) int
cuLaunchHostFunc(void *stream, void (*run)(void *), void *arg)
{
	return put(stream, run, arg);
}

__attribute__((visibility("default"))) int
cuCtxGetDevice(int *out)
{
	*out = current;
	return current < 0 ? 201 : 0;
}

static ist_err
lazy_stream_new(void *self, int32_t index, void **out, struct ist_status *why)
{
	struct stream *s = calloc(1, sizeof(*s));

	(void)self, (void)index;
	if (!s)
		return IST_NO_MEMORY;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->news, NULL);
	s->last = &s->first;
	if (pthread_create(&s->thread, NULL, stream_main, s)) {
		free(s);
		return say(why, IST_LIMIT, "no thread for a stream");
	}
	pthread_mutex_lock(&streams_lock);
	s->next = streams;
	streams = s;
	pthread_mutex_unlock(&streams_lock);
	atomic_fetch_add(&live, 1);
	*out = s;
	return IST_OK;
}

static void
stream_set(struct stream *s, bool held, bool stop)
{
	pthread_mutex_lock(&s->lock);
	s->held = held;
	s->stop = s->stop || stop;
	pthread_cond_signal(&s->news);
	pthread_mutex_unlock(&s->lock);
}

void
lazy_hold(void *stream)
{
	stream_set(stream, true, false);
}

void
lazy_release(void *stream)
{
	stream_set(stream, false, false);
}

/* Waits for what is on it, as the real one may. */
static void
lazy_stream_free(void *self, int32_t index, void *stream)
{
	struct stream *s = stream, **at;

	(void)self, (void)index;
	stream_set(s, false, true);
	pthread_join(s->thread, NULL);
	pthread_mutex_lock(&streams_lock);
	for (at = &streams; *at != s; at = &(*at)->next)
		;
	*at = s->next;
	pthread_mutex_unlock(&streams_lock);
	pthread_cond_destroy(&s->news);
	pthread_mutex_destroy(&s->lock);
	free(s);
	atomic_fetch_sub(&live, 1);
}

/* ---- memory ---- */

static void
lazy_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_device_probe *out)
{
	(void)self, (void)host, (void)level;
	out->count = LAZY_DEVICES;
	out->reason = out->library = "";
	out->version = "1";
}

static ist_err
lazy_info(void *self, int32_t index, struct ist_device_info *out, struct ist_status *why)
{
	(void)self, (void)why;
	out->numa_node = -1;
	out->bytes_free = out->bytes_total = UINT64_MAX;
	out->copy_align = 1;
	memset(out->uuid, 0x11, sizeof(out->uuid));
	out->uuid[0] = (uint8_t)(lazy_twin >= 0 ? lazy_twin : index);
	snprintf(out->name, sizeof(out->name), "lazy device %d", index);
	return IST_OK;
}

static ist_err
lazy_owner(void *self, const void *addr, struct ist_buf *out, struct ist_status *why)
{
	(void)self, (void)addr, (void)why;
	out->mem = IST_MEM_HOST;
	out->bytes = 0;
	out->device = -1;
	return IST_OK;
}

static ist_err
lazy_enter(void *self, int32_t index, void **was, struct ist_status *why)
{
	(void)self, (void)why;
	*was = (void *)(intptr_t)(current + 1);
	current = index;
	return IST_OK;
}

static void
lazy_leave(void *self, int32_t index, void *was)
{
	(void)self, (void)index;
	current = (int)(intptr_t)was - 1;
}

static ist_err
lazy_alloc(void *self, int32_t index, uint32_t mem, uint32_t flags, uint64_t bytes, void **out, struct ist_status *why)
{
	void *p;

	(void)self, (void)index, (void)mem, (void)flags;
	if (posix_memalign(&p, 256, bytes ? bytes : 1))
		return say(why, IST_NO_MEMORY, "no memory of that size");
	memset(p, 0xD7, bytes);
	atomic_fetch_add(&live, 1);
	*out = p;
	return IST_OK;
}

static void
lazy_free(void *self, int32_t index, uint32_t mem, void *addr)
{
	(void)self, (void)index, (void)mem;
	free(addr);
	atomic_fetch_sub(&live, 1);
}

static ist_err
lazy_pin(void *self, int32_t index, void *addr, uint64_t bytes, uint32_t flags, struct ist_status *why)
{
	(void)self, (void)index, (void)addr, (void)bytes, (void)flags, (void)why;
	return IST_OK;
}

static void
lazy_unpin(void *self, int32_t index, void *addr, uint64_t bytes)
{
	(void)self, (void)index, (void)addr, (void)bytes;
}

static void
copy_main(void *arg)
{
	struct ist_copy *c = arg;

	memmove(c->dst, c->src, c->bytes);
	free(c);
}

static ist_err
lazy_copy(void *self, int32_t index, const struct ist_copy *list, uint64_t n, void *stream, struct ist_status *why)
{
	(void)self, (void)index;
	for (uint64_t i = 0; i < n; i++) {
		struct ist_copy *c = malloc(sizeof(*c));

		if (!c)
			return IST_NO_MEMORY;
		*c = list[i];
		if (put(stream, copy_main, c)) {
			free(c);
			return say(why, IST_INVALID_ARGUMENT, "this is no stream");
		}
	}
	return IST_OK;
}

/* ---- events ---- */

static ist_err
lazy_event_new(void *self, int32_t index, uint32_t flags, void **out, struct ist_status *why)
{
	struct event *e = calloc(1, sizeof(*e));

	(void)self, (void)index, (void)flags, (void)why;
	if (!e)
		return IST_NO_MEMORY;
	atomic_fetch_add(&live, 1);
	*out = e;
	return IST_OK;
}

static void
event_main(void *arg)
{
	struct event *e = arg;

	atomic_fetch_add(&e->done, 1);
}

static ist_err
lazy_event_record(void *self, int32_t index, void *event, void *stream, struct ist_status *why)
{
	struct event *e = event;

	(void)self, (void)index;
	atomic_fetch_add(&e->asked, 1);
	if (put(stream, event_main, e) == 0)
		return IST_OK;
	atomic_fetch_sub(&e->asked, 1);
	return say(why, IST_INVALID_ARGUMENT, "this is no stream");
}

static ist_err
lazy_event_query(void *self, int32_t index, void *event, uint32_t *done, struct ist_status *why)
{
	struct event *e = event;

	(void)self, (void)index, (void)why;
	*done = atomic_load(&e->asked) == atomic_load(&e->done);
	return IST_OK;
}

static ist_err
lazy_stream_wait(void *self, int32_t index, void *stream, void *event, struct ist_status *why)
{
	(void)self, (void)index, (void)stream, (void)event;
	return say(why, IST_UNSUPPORTED, "the lazy device orders no streams");
}

static void
lazy_event_free(void *self, int32_t index, void *event)
{
	(void)self, (void)index;
	free(event);
	atomic_fetch_sub(&live, 1);
}

int
lazy_live(void)
{
	return atomic_load(&live);
}

const struct ist_device lazy_device = {
	.struct_size = sizeof(struct ist_device),
	.abi = IST_BACKEND_ABI,
	.name = "lazy",
	.mem = 1u << IST_MEM_CUDA | 1u << IST_MEM_PINNED,
	.probe = lazy_probe,
	.info = lazy_info,
	.owner = lazy_owner,
	.enter = lazy_enter,
	.leave = lazy_leave,
	.alloc = lazy_alloc,
	.free = lazy_free,
	.pin = lazy_pin,
	.unpin = lazy_unpin,
	.stream_new = lazy_stream_new,
	.stream_free = lazy_stream_free,
	.copy = lazy_copy,
	.event_new = lazy_event_new,
	.event_record = lazy_event_record,
	.event_query = lazy_event_query,
	.stream_wait = lazy_stream_wait,
	.event_free = lazy_event_free,
};
