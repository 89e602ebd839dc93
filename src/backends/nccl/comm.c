/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/nccl/comm.h"

#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS (200 * INT64_C(1000))  /* between two looks at what the library does by itself */
#define ORDERLY_NS (300 * IST__MS)     /* for an end in good order; after it the communicator is aborted */
#define CLOSE_NS (900 * IST__MS)       /* for all of close */

/* ---- life ---- */

static void
comm_drop(struct nccl_comm_state *c)
{
	if (atomic_fetch_sub(&c->refs, 1) != 1)
		return;
	for (struct nccl_pin *p = c->pins, *next; p; p = next) {
		next = p->next;
		free(p);
	}
	if (c->timer_fd >= 0)
		close(c->timer_fd);
	pthread_cond_destroy(&c->ended);
	pthread_mutex_destroy(&c->lock);
	sem_destroy(&c->bell);
	free(c->events);
	free(c->spare);
	free(c);
}

struct nccl_comm_state *
ist__nccl_comm_new(const struct nccl_open *open, struct nccl_lib *lib, const struct ist_device *device, const struct ist_open *args)
{
	struct nccl_comm_state *c = calloc(1, sizeof(*c)); /* not the host's: the thread may outlive the channel */
	pthread_condattr_t attr;

	if (!c)
		return NULL;
	c->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (c->timer_fd < 0) {
		free(c);
		return NULL;
	}
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->ended, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&c->lock, NULL);
	sem_init(&c->bell, 0, 0);
	atomic_store(&c->refs, 1);
	c->own = open->calls;
	c->calls = &c->own;
	c->lib = lib;
	c->gate = ist__nccl_gate(lib, args->device);
	c->device = device;
	c->index = args->device;
	c->rank = args->rank;
	c->size = args->size;
	c->deadline = args->deadline_ns > 0 ? args->deadline_ns : IST__NEVER;
	return c;
}

void
ist__nccl_wake_in(const struct nccl_comm_state *c, int64_t ns)
{
	struct itimerspec at = { .it_value = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 } };

	timerfd_settime(c->timer_fd, 0, &at, NULL); /* can't fail: the descriptor is a timer's, the time a time */
}

/* ---- words ---- */

ist_err
ist__nccl_code(int result)
{
	static const ist_err codes[] = { [NCCL_SUCCESS] = IST_OK, [NCCL_CUDA_ERROR] = IST_IO, [NCCL_SYSTEM_ERROR] = IST_IO,
		[NCCL_INTERNAL_ERROR] = IST_IO, [NCCL_INVALID_ARGUMENT] = IST_INVALID_ARGUMENT, [NCCL_INVALID_USAGE] = IST_BAD_STATE,
		[NCCL_REMOTE_ERROR] = IST_PEER_LOST, [NCCL_IN_PROGRESS] = IST_BUSY, [NCCL_TIMEOUT] = IST_TIMEOUT };

	return result >= 0 && (size_t)result < sizeof(codes) / sizeof(codes[0]) ? codes[result] : IST_IO;
}

void
ist__nccl_words(const struct nccl_calls *calls, nccl_comm_t comm, int result, char *out, size_t room)
{
	const char *what = calls->error_string(result), *last = calls->last_error(comm);

	snprintf(out, room, "%s%s%s", what ? what : "unknown result", last && *last ? ": " : "", last ? last : "");
	for (char *p = out; *p; p++) /* of several lines */
		if (*p == '\n')
			*p = ' ';
}

__attribute__((format(printf, 4, 5))) static void
fail(struct nccl_comm_state *c, ist_err e, int32_t sys, const char *fmt, ...)
{
	va_list ap;

	if (c->failed)
		return;
	va_start(ap, fmt);
	vsnprintf(c->text, sizeof(c->text), fmt, ap);
	va_end(ap);
	c->sys = sys;
	c->failed = e;
}

/* A call of the library that should have been well. */
static bool
good(struct nccl_comm_state *c, const char *what, int rc)
{
	char words[160];

	if (rc == NCCL_SUCCESS || rc == NCCL_IN_PROGRESS)
		return true;
	ist__nccl_words(c->calls, c->comm, rc, words, sizeof(words));
	fail(c, ist__nccl_code(rc), rc, "%s: %s", what, words);
	return false;
}

static bool
good_device(struct nccl_comm_state *c, const char *what, ist_err e, const struct ist_status *why)
{
	if (e)
		fail(c, e, why->sys, "%s on device %d: %.150s", what, c->index, why->text);
	return !e;
}

/* ---- memory of the device ---- */

static bool
pin_more(struct nccl_comm_state *c, struct ist_status *why)
{
	struct nccl_pin *p = malloc(sizeof(*p));

	if (!p)
		return false;
	if (c->device->alloc(c->device->self, c->index, IST_MEM_PINNED, 0, NCCL_PIN_BYTES, &p->addr, why)) {
		free(p);
		return false;
	}
	p->next = c->pins;
	c->pins = p;
	for (char *at = p->addr, *end = at + NCCL_PIN_BYTES; at < end; at += NCCL_HEADS * sizeof(struct nccl_head))
		ist__nccl_heads_back(c, (struct nccl_head *)(void *)at);
	return true;
}

struct nccl_head *
ist__nccl_heads(struct nccl_comm_state *c)
{
	struct ist_status why = { .struct_size = sizeof(why) };
	struct nccl_heads *h;

	if (!c->heads && !pin_more(c, &why))
		return NULL;
	h = c->heads;
	c->heads = h->next;
	return memset(h, 0, NCCL_HEADS * sizeof(struct nccl_head));
}

void
ist__nccl_heads_back(struct nccl_comm_state *c, struct nccl_head *heads)
{
	struct nccl_heads *h = (struct nccl_heads *)(void *)heads;

	h->next = c->heads;
	c->heads = h;
}

static bool
more_events(struct nccl_comm_state *c)
{
	uint64_t room = c->events_room ? 2 * c->events_room : 32;
	void **all = realloc(c->events, room * sizeof(*all)), **spare;

	if (!all)
		return false;
	c->events = all;
	spare = realloc(c->spare, room * sizeof(*spare));
	if (!spare)
		return false;
	c->spare = spare;
	c->events_room = room;
	return true;
}

/* One that nobody uses; all are freed at the end. */
ist_err
ist__nccl_event(struct nccl_comm_state *c, void **out, struct ist_status *why)
{
	ist_err e;

	if (c->n_spare > 0) {
		*out = c->spare[--c->n_spare];
		return IST_OK;
	}
	if (c->n_events == c->events_room && !more_events(c))
		return IST_NO_MEMORY;
	e = c->device->event_new(c->device->self, c->index, 0, out, why);
	if (!e)
		c->events[c->n_events++] = *out;
	return e;
}

void
ist__nccl_event_back(struct nccl_comm_state *c, void *event)
{
	c->spare[c->n_spare++] = event;
}

/* ---- waiting for the library ---- */

/* Until somebody wants something, or a moment. The library has nothing to sleep on. */
static void
nap(struct nccl_comm_state *c)
{
	struct timespec at;
	int64_t until;

	clock_gettime(CLOCK_MONOTONIC, &at);
	until = (int64_t)at.tv_sec * 1000000000 + at.tv_nsec + POLL_NS;
	at = (struct timespec){ .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
	while (sem_clockwait(&c->bell, CLOCK_MONOTONIC, &at) && errno == EINTR)
		;
}

/* Somebody has given up on what is under way. */
static bool
unwanted(struct nccl_comm_state *c)
{
	return atomic_load(&c->aborted) || atomic_load(&c->asked) & NCCL_JOB_END;
}

/* Until the communicator has done what it was told. */
static bool
await(struct nccl_comm_state *c, const char *what)
{
	int rc = NCCL_IN_PROGRESS, now;

	while (!unwanted(c)) {
		now = c->calls->async_error(c->comm, &rc);
		if (!good(c, what, now) || !good(c, what, rc))
			return false;
		if (rc == NCCL_SUCCESS)
			return true;
		if (ist__now() >= c->deadline) {
			fail(c, IST_TIMEOUT, 0, "%s: not all %u ranks have come in time", what, c->size);
			return false;
		}
		nap(c);
	}
	fail(c, IST_ABORTED, 0, "%s: given up", what);
	return false;
}

/* ---- jobs ---- */

static void
get_id(struct nccl_comm_state *c)
{
	bool spare = false;

	pthread_mutex_lock(&c->lib->lock);
	if (!c->own_library && c->lib->has_spare) {
		c->id = c->lib->spare;
		c->lib->has_spare = false;
		spare = true;
	}
	pthread_mutex_unlock(&c->lib->lock);
	if (!spare)
		good(c, "a unique id", c->calls->get_unique_id(&c->id));
}

static struct nccl_config
config_of(struct nccl_comm_state *c)
{
	struct nccl_config g = { .size = sizeof(g), .magic = NCCL_CONFIG_MAGIC };
	int version = NCCL_CONFIG_VERSION, *first = &g.cga_cluster_size;

	c->calls->get_version(&version);
	g.version = (unsigned)(version < NCCL_CONFIG_VERSION ? version : NCCL_CONFIG_VERSION);
	first[0] = first[1] = first[2] = g.split_share = g.traffic_class = INT_MIN;
	for (int *p = &g.collnet_enable; p <= &g.padding; p++)
		*p = INT_MIN;
	g.blocking = 0;
	return g;
}

/* Each of these may take seconds; who closed meanwhile may have taken the devices along. */
static bool
make_memory(struct nccl_comm_state *c)
{
	struct ist_status why = { .struct_size = sizeof(why) };
	const struct ist_device *d = c->device;
	void *scratch = NULL;

	if (!good_device(c, "a stream", d->stream_new(d->self, c->index, &c->stream, &why), &why))
		return false;
	if (!unwanted(c) && good_device(c, "memory", d->alloc(d->self, c->index, IST_MEM_CUDA, 0, 4096, &scratch, &why), &why))
		c->scratch = scratch;
	if (c->scratch && !unwanted(c) && !pin_more(c, &why))
		fail(c, IST_NO_MEMORY, why.sys, "pinned memory for device %d: %.150s", c->index, why.text);
	if (unwanted(c))
		fail(c, IST_ABORTED, 0, "the communicator: given up");
	return !c->failed;
}

/* An exchange with everybody, so that the first operation finds all connections made. */
static bool
warm_up(struct nccl_comm_state *c)
{
	struct ist_status why = { .struct_size = sizeof(why) };
	const struct ist_device *d = c->device;
	uint32_t over = 0;
	void *event;
	int rc, end;

	pthread_mutex_lock(&c->gate->calls);
	rc = c->calls->group_start();
	if (rc == NCCL_SUCCESS) {
		rc = c->calls->all_reduce(c->scratch, c->scratch, 1, NCCL_I32, NCCL_SUM, c->comm, c->stream);
		end = c->calls->group_end();
		rc = rc == NCCL_SUCCESS ? end : rc;
	}
	pthread_mutex_unlock(&c->gate->calls);
	if (!good(c, "the first exchange", rc) || !await(c, "the first exchange") ||
	    !good_device(c, "an event", ist__nccl_event(c, &event, &why), &why) ||
	    !good_device(c, "an event", d->event_record(d->self, c->index, event, c->stream, &why), &why))
		return false;
	for (;;) {
		if (!good_device(c, "the first exchange", d->event_query(d->self, c->index, event, &over, &why), &why))
			return false;
		if (over)
			return true;
		if (!await(c, "the first exchange")) /* an error of it, or nobody wants it any more */
			return false;
		nap(c);
	}
}

static void
join(struct nccl_comm_state *c)
{
	struct nccl_config config = config_of(c);
	int rc;

	if (!make_memory(c))
		return;
	pthread_mutex_lock(&c->gate->calls);
	rc = c->calls->init_rank_config(&c->comm, (int)c->size, c->id, (int)c->rank, &config);
	pthread_mutex_unlock(&c->gate->calls);
	if (good(c, "the communicator", rc) && await(c, "the communicator"))
		warm_up(c);
}

static nccl_comm_t
take_comm(struct nccl_comm_state *c)
{
	nccl_comm_t comm;

	pthread_mutex_lock(&c->lock); /* no slot is inside a call with it now, and none will be */
	comm = c->comm;
	c->comm = NULL;
	pthread_mutex_unlock(&c->lock);
	return comm;
}

static void
give_up(struct nccl_comm_state *c)
{
	nccl_comm_t comm = take_comm(c);

	if (comm)
		c->calls->abort(comm);
}

/* In good order where that takes a moment only: it may need the others. */
static void
end_comm(struct nccl_comm_state *c)
{
	int64_t until = ist__now() + ORDERLY_NS;
	nccl_comm_t comm = take_comm(c);
	int rc = comm && !c->failed && !atomic_load(&c->aborted) ? c->calls->finalize(comm) : NCCL_INTERNAL_ERROR;

	while (rc == NCCL_IN_PROGRESS && ist__now() < until && !atomic_load(&c->aborted)) {
		nap(c);
		if (c->calls->async_error(comm, &rc) != NCCL_SUCCESS)
			rc = NCCL_INTERNAL_ERROR;
	}
	if (comm && rc == NCCL_SUCCESS)
		c->calls->destroy(comm);
	else if (comm)
		c->calls->abort(comm);
}

static bool
wants(struct nccl_comm_state *c, uint32_t job)
{
	return atomic_load(&c->asked) & ~atomic_load(&c->done) & job;
}

static void
did(struct nccl_comm_state *c, uint32_t job)
{
	atomic_fetch_or(&c->done, job);
	pthread_mutex_lock(&c->lock);
	if (!atomic_load(&c->left))
		ist__nccl_wake_in(c, 1);
	pthread_mutex_unlock(&c->lock);
}

/* One thing that is asked for. False: nothing is. */
static bool
work(struct nccl_comm_state *c)
{
	bool aborted = atomic_load(&c->aborted), lost = aborted || c->failed;

	if (aborted && !ist__nccl_did(c, NCCL_JOB_ABORT)) {
		give_up(c);
		did(c, NCCL_JOB_ABORT);
	} else if (wants(c, NCCL_JOB_ID)) {
		if (!lost)
			get_id(c);
		did(c, NCCL_JOB_ID);
	} else if (wants(c, NCCL_JOB_JOIN)) {
		if (!lost)
			join(c);
		if (c->failed)
			give_up(c);
		did(c, NCCL_JOB_JOIN);
	} else {
		return false;
	}
	return true;
}

/* Behind a kernel that never ends these calls may not come back. Who has left in the meantime may have taken the devices along. */
static void
free_all(struct nccl_comm_state *c)
{
	const struct ist_device *d = c->device;

	if (c->stream && !atomic_load(&c->left))
		d->stream_free(d->self, c->index, c->stream);
	for (uint64_t i = 0; i < c->n_events && !atomic_load(&c->left); i++)
		d->event_free(d->self, c->index, c->events[i]);
	for (struct nccl_pin *p = c->pins; p && !atomic_load(&c->left); p = p->next)
		d->free(d->self, c->index, IST_MEM_PINNED, p->addr);
	if (c->scratch && !atomic_load(&c->left))
		d->free(d->self, c->index, IST_MEM_CUDA, c->scratch);
}

static void
comm_main(void *arg)
{
	struct nccl_comm_state *c = arg;
	struct ist_status why = { .struct_size = sizeof(why) };
	void *was = NULL;
	bool entered = good_device(c, "a context", c->device->enter(c->device->self, c->index, &was, &why), &why);

	while (!wants(c, NCCL_JOB_END))
		if (!work(c)) /* the bell is rung after a wish is noted: none is slept through */
			while (sem_wait(&c->bell) && errno == EINTR)
				;
	end_comm(c);
	if (!c->stuck)
		free_all(c);
	if (entered && !atomic_load(&c->left))
		c->device->leave(c->device->self, c->index, was);
	pthread_mutex_lock(&c->lock);
	c->over = true;
	pthread_cond_broadcast(&c->ended);
	pthread_mutex_unlock(&c->lock);
	comm_drop(c);
}

/* ---- the channel's side ---- */

bool
ist__nccl_did(struct nccl_comm_state *c, uint32_t job)
{
	return atomic_load(&c->done) & job;
}

ist_err
ist__nccl_ask(struct nccl_comm_state *c, const struct ist_host *host, uint32_t job)
{
	ist_err e;

	atomic_fetch_or(&c->asked, job);
	if (c->running) {
		sem_post(&c->bell);
		return IST_OK;
	}
	atomic_fetch_add(&c->refs, 1);
	e = host->thread(host->ctx, "nccl", comm_main, c);
	if (e)
		atomic_fetch_sub(&c->refs, 1);
	else
		c->running = true;
	return e;
}

/* True: the thread has ended, and with it the communicator. */
static bool
await_end(struct nccl_comm_state *c)
{
	int64_t until = ist__now() + CLOSE_NS;
	struct timespec at = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
	bool over;

	pthread_mutex_lock(&c->lock);
	while (!c->over && pthread_cond_timedwait(&c->ended, &c->lock, &at) != ETIMEDOUT)
		;
	over = c->over;
	atomic_store(&c->left, !over);
	pthread_mutex_unlock(&c->lock);
	return over;
}

/* Nobody has seen it: rank 0 shows it to the others and connects in one go. */
static void
keep_id(struct nccl_comm_state *c)
{
	if (c->own_library || c->failed || !ist__nccl_did(c, NCCL_JOB_ID) || atomic_load(&c->asked) & NCCL_JOB_JOIN)
		return;
	pthread_mutex_lock(&c->lib->lock);
	if (!c->lib->has_spare)
		c->lib->spare = c->id;
	c->lib->has_spare = true;
	pthread_mutex_unlock(&c->lib->lock);
}

ist_err
ist__nccl_comm_close(struct nccl_comm_state *c, char *text, size_t room)
{
	ist_err e = c->stuck ? IST_BUSY : IST_OK;

	if (e)
		snprintf(text, room, "the device still holds operations of rank %u that were given up: its stream and %llu events are left", c->rank,
			(unsigned long long)c->n_events);
	if (c->running) {
		atomic_fetch_or(&c->asked, NCCL_JOB_END);
		sem_post(&c->bell);
		if (!await_end(c)) {
			snprintf(text, room, "the library has not let go of rank %u's communicator within %d ms: it, its thread, its stream and %llu events are left",
				c->rank, (int)(CLOSE_NS / IST__MS), (unsigned long long)c->n_events);
			e = IST_BUSY;
		} else {
			keep_id(c);
			close(c->timer_fd); /* now, and not when the thread has come to its last line */
			c->timer_fd = -1;
		}
	}
	comm_drop(c);
	return e;
}
