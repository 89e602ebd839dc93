/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/pace.h"

#include "base/fail.h"

#include <string.h>

#define ASK_NS (600 * IST__MS)
#define WAKE_MIN_NS (2 * IST__MS)
#define STALL_NS (250 * IST__MS) /* that a busy machine may keep a thread from running */
enum { JUDGES = 8 }; /* ranks after which all look at the same time */

static int64_t
shorter_limit(const struct ist__pace *p)
{
	return p->still_ns > 0 && p->still_ns < p->slow_ns ? p->still_ns : p->slow_ns;
}

static int64_t
wake_every(const struct ist__pace *p)
{
	return shorter_limit(p) / 8 > WAKE_MIN_NS ? shorter_limit(p) / 8 : WAKE_MIN_NS;
}

/* ---- the account; lock held ---- */

/* Our thread counts at every waking. Where it did not come to that for long, this process was stopped, maybe all were: who
 * was stopped itself has nobody to blame for that time. */
static void
count(struct ist__pace *p, int64_t now)
{
	struct ist__pace_slice *slice = &p->slices[p->at];
	int64_t passed = now - p->counted;

	if (p->state == IST__PACE_WORK)
		slice->busy += passed;
	else if (p->state == IST__PACE_WAIT && passed > 3 * wake_every(p) + STALL_NS)
		p->moved += passed;
	else if (p->state == IST__PACE_WAIT)
		slice->wait += passed;
	p->counted = now;
}

/* The window goes on: its oldest part is forgotten. */
static void
turn_over(struct ist__pace *p, int64_t now)
{
	int64_t each = p->slow_ns / (IST__PACE_SLICES / 2);

	count(p, now);
	if (now < p->slice_end)
		return;
	p->slice_end = now + each;
	p->at = (p->at + 1) % IST__PACE_SLICES;
	p->slices[p->at] = (struct ist__pace_slice){ .busy = 0 };
}

static void
add_up(const struct ist__pace *p, int64_t now, uint64_t *words)
{
	memset(words, 0, IST_MARK_WORDS * sizeof(*words));
	words[IST__MARK_WHAT] = p->role | (uint64_t)p->state << 8;
	if (!p->group)
		return;
	words[IST__MARK_EPOCH] = p->epoch;
	for (uint32_t i = 0; i < IST__PACE_SLICES; i++) {
		words[IST__MARK_DONE] += p->slices[i].done;
		words[IST__MARK_BUSY] += (uint64_t)p->slices[i].busy;
		words[IST__MARK_WAIT] += (uint64_t)p->slices[i].wait;
	}
	words[IST__MARK_STILL] = (uint64_t)(now - p->moved);
}

void
ist__pace_state(struct ist__pace *p, enum ist__pace_state state)
{
	int64_t now = ist__now();

	pthread_mutex_lock(&p->lock);
	count(p, now);
	if (p->state != state)
		p->moved = now;
	p->state = state;
	pthread_mutex_unlock(&p->lock);
}

void
ist__pace_piece(struct ist__pace *p)
{
	int64_t now = ist__now();

	pthread_mutex_lock(&p->lock);
	p->moved = now;
	pthread_mutex_unlock(&p->lock);
}

void
ist__pace_bucket(struct ist__pace *p)
{
	pthread_mutex_lock(&p->lock);
	p->slices[p->at].done++;
	pthread_mutex_unlock(&p->lock);
}

/* ---- the verdict ---- */

static const uint64_t *
mark_of(const struct ist__pace_view *v, uint32_t r)
{
	return v->words + (uint64_t)r * IST_MARK_WORDS;
}

static uint64_t
cost_of(const uint64_t *mark)
{
	return mark[IST__MARK_BUSY] / (mark[IST__MARK_DONE] ? mark[IST__MARK_DONE] : 1);
}

static bool
is_sink(const uint64_t *mark)
{
	return mark[IST__MARK_WHAT] & IST__ROLE_SINK;
}

static uint32_t
state_of(const uint64_t *mark)
{
	return (uint32_t)(mark[IST__MARK_WHAT] >> 8) & 0xFF;
}

/* All have just answered, and are in the same move. */
static bool
all_in(const struct ist__pace_view *v)
{
	for (uint32_t r = 0; r < v->size; r++)
		if (v->known[r] != IST_MARK_NOW || mark_of(v, r)[IST__MARK_EPOCH] != v->epoch)
			return false;
	return true;
}

/* What a bucket costs the middle one of the sinks, the lower one of two: less than half of them are dearer. */
static uint64_t
middle_cost(const struct ist__pace_view *v)
{
	uint32_t sinks = 0;

	for (uint32_t r = 0; r < v->size; r++)
		sinks += is_sink(mark_of(v, r));
	for (uint32_t r = 0; r < v->size; r++) {
		uint64_t cost = cost_of(mark_of(v, r));
		uint32_t less = 0, same = 0;

		if (!is_sink(mark_of(v, r)))
			continue;
		for (uint32_t k = 0; k < v->size; k++) {
			less += is_sink(mark_of(v, k)) && cost_of(mark_of(v, k)) < cost;
			same += is_sink(mark_of(v, k)) && cost_of(mark_of(v, k)) == cost;
		}
		if (less <= (sinks - 1) / 2 && (sinks - 1) / 2 < less + same)
			return cost;
	}
	return UINT64_MAX; /* there are none */
}

static bool
is_slow(const struct ist__pace_view *v, const uint64_t *mark, uint64_t middle)
{
	return (mark[IST__MARK_WHAT] & IST__ROLE_MASK) == IST__ROLE_SINK && state_of(mark) == IST__PACE_WORK &&
		cost_of(mark) / IST__PACE_TIMES > middle && mark[IST__MARK_WAIT] < (uint64_t)v->slow_ns / 4;
}

static uint32_t
find_slow(const struct ist__pace_view *v, uint8_t *out)
{
	uint64_t middle = middle_cost(v);
	uint32_t n = 0;

	for (uint32_t r = 0; r < v->size; r++) {
		out[r] = middle < UINT64_MAX && is_slow(v, mark_of(v, r), middle);
		n += out[r];
	}
	/* the others' words may be an eighth of the time old */
	for (uint32_t r = 0; r < v->size && n > 0; r++)
		if (!out[r] && mark_of(v, r)[IST__MARK_WAIT] < (uint64_t)v->slow_ns / 4 * 3)
			return 0;
	return n;
}

static uint32_t
find_still(const struct ist__pace_view *v, uint8_t *out)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < v->size; r++) {
		const uint64_t *mark = mark_of(v, r);

		out[r] = is_sink(mark) && state_of(mark) == IST__PACE_WORK && mark[IST__MARK_STILL] >= (uint64_t)v->still_ns;
		n += out[r];
		if (!out[r] && (state_of(mark) != IST__PACE_WAIT || mark[IST__MARK_STILL] < (uint64_t)v->still_ns / 2))
			return 0;
	}
	return n < v->size ? n : 0;
}

ist_err
ist__pace_judge(const struct ist__pace_view *v, uint8_t *out)
{
	memset(out, 0, v->size);
	if (!all_in(v))
		return IST_OK;
	if (v->slow_ns > 0 && find_slow(v, out) > 0)
		return IST_SLOW_PEER;
	if (v->still_ns > 0 && find_still(v, out) > 0)
		return IST_NO_PROGRESS;
	memset(out, 0, v->size);
	return IST_OK;
}

/* ---- the thread ---- */

static void
give_up(struct ist__pace *p, struct ist_group *group, const struct ist__pace_view *v, ist_err code, const uint8_t *out)
{
	for (uint32_t r = 0; r < v->size; r++) {
		const uint64_t *mark = mark_of(v, r);
		struct ist_error why;
		ist_err e;

		if (!out[r])
			continue;
		ist_error_init(&why);
		if (code == IST_SLOW_PEER)
			ist__fail(&why, code, "sync_update", "all others wait for it: its sink was at work for %.1f s of the last %.1f s and finished %llu buckets",
				(double)mark[IST__MARK_BUSY] / 1e9, (double)v->slow_ns * 2 / 1e9, (unsigned long long)mark[IST__MARK_DONE]);
		else
			ist__fail(&why, code, "sync_update", "its sink has a bucket in hand and has taken no piece of it for %.1f s",
				(double)mark[IST__MARK_STILL] / 1e9);
		e = ist_group_evict(group, r, &why, NULL);
		if (e)
			ist__log(p->ctx, IST_LOG_WARN, "rank %u of this group could not be given up: %s", r, ist_err_name(e));
	}
}

/* Has this member waited long enough to ask the others? Lock held. */
static bool
has_waited(const struct ist__pace *p, int64_t now, const uint64_t *mine)
{
	bool long_enough = p->evicts && mine[IST__MARK_WAIT] >= (uint64_t)p->slow_ns;

	if (p->still_ns > 0 && p->state == IST__PACE_WAIT && now - p->moved >= p->still_ns / 2)
		long_enough = true;
	return long_enough && now >= p->ask_at;
}

static void
look(struct ist__pace *p, int64_t now)
{
	struct ist_group *group = p->group;
	uint64_t mine[IST_MARK_WORDS];
	struct ist__pace_view v = { .epoch = p->epoch, .size = p->size, .slow_ns = p->evicts ? p->slow_ns : 0,
		.still_ns = p->still_ns, .words = p->words, .known = p->known };
	uint8_t *out = p->known + p->size;
	bool ask;

	turn_over(p, now);
	add_up(p, now, mine);
	ask = has_waited(p, now, mine);
	p->looking = true;
	pthread_mutex_unlock(&p->lock);
	(void)ist_group_mark(group, mine); /* fails when the group is gone, and then nobody asks */
	if (ask && ist_group_marks(group, ASK_NS, p->words, p->known, NULL) == IST_OK) {
		ist_err code = ist__pace_judge(&v, out);

		if (code)
			give_up(p, group, &v, code, out);
	}
	pthread_mutex_lock(&p->lock);
	if (ask) {
		p->ask_at = ist__now() + p->ask_gap;
		if (p->ask_gap < p->slow_ns)
			p->ask_gap *= 2;
	}
	p->looking = false;
	pthread_cond_broadcast(&p->cond);
}

static void *
watch(void *arg)
{
	struct ist__pace *p = arg;

	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		int64_t next = ist__now() + wake_every(p);
		struct timespec at = { .tv_sec = (time_t)(next / 1000000000), .tv_nsec = (long)(next % 1000000000) };

		if (!p->group) {
			pthread_cond_wait(&p->cond, &p->lock);
			continue;
		}
		if (pthread_cond_timedwait(&p->cond, &p->lock, &at) != 0 && p->group)
			look(p, ist__now());
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* ---- from outside ---- */

bool
ist__pace_init(struct ist__pace *p, struct ist_env *env, uint32_t size)
{
	pthread_condattr_t attr;

	*p = (struct ist__pace){ .env = env, .ctx = ist__env_ctx(env), .made = true };
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->cond, &attr);
	pthread_condattr_destroy(&attr);
	p->words = ist__alloc(p->ctx, size * sizeof(*p->words) * IST_MARK_WORDS);
	p->known = ist__alloc(p->ctx, size * UINT64_C(2)); /* and the verdict */
	return p->words && p->known;
}

void
ist__pace_fini(struct ist__pace *p)
{
	if (!p->made)
		return;
	ist__pace_end(p);
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->cond);
	pthread_mutex_unlock(&p->lock);
	if (p->started)
		pthread_join(p->thread, NULL);
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->cond);
	ist__free(p->ctx, p->words);
	ist__free(p->ctx, p->known);
	p->made = false;
}

void
ist__pace_role(struct ist__pace *p, struct ist_group *group, uint32_t role)
{
	uint64_t mine[IST_MARK_WORDS];

	pthread_mutex_lock(&p->lock);
	p->role = role;
	add_up(p, ist__now(), mine);
	pthread_mutex_unlock(&p->lock);
	(void)ist_group_mark(group, mine); /* of a group that is gone nobody asks */
}

bool
ist__pace_begin(struct ist__pace *p, struct ist_group *group, uint32_t rank, uint32_t size, uint64_t epoch)
{
	int64_t now = ist__now();

	pthread_mutex_lock(&p->lock);
	p->group = group;
	p->rank = rank;
	p->size = size;
	p->epoch = epoch;
	p->state = IST__PACE_WORK;
	p->counted = p->moved = now;
	memset(p->slices, 0, sizeof(p->slices));
	p->slice_end = now + p->slow_ns / (IST__PACE_SLICES / 2);
	/* one judge is enough: the lowest that has nothing else to do */
	p->ask_at = now + shorter_limit(p) / 2 + wake_every(p) * (rank < JUDGES ? rank : JUDGES);
	p->ask_gap = shorter_limit(p) / 2;
	if (!p->started)
		p->started = ist__thread(p->env, "pace", watch, p, &p->thread) == 0;
	pthread_cond_broadcast(&p->cond);
	pthread_mutex_unlock(&p->lock);
	return p->started;
}

void
ist__pace_end(struct ist__pace *p)
{
	struct ist_group *group;
	uint64_t mine[IST_MARK_WORDS];

	pthread_mutex_lock(&p->lock);
	group = p->group;
	p->group = NULL;
	p->state = IST__PACE_OFF;
	while (p->looking)
		pthread_cond_wait(&p->cond, &p->lock);
	add_up(p, ist__now(), mine);
	pthread_mutex_unlock(&p->lock);
	if (group)
		(void)ist_group_mark(group, mine); /* not in a move; a group that is gone needs it no more */
}
