/* SPDX-License-Identifier: Apache-2.0 */
#include "group/board.h"

#include "base/clock.h"
#include "base/fail.h"
#include "group/group.h"
#include "net/hello.h"
#include "net/wire.h"

#include <sched.h>
#include <string.h>

#define LINGER_NS (200 * INT64_C(1000)) /* of giving the CPU away, before this thread sleeps */

uint64_t
ist__board_bytes(uint32_t n, uint64_t features)
{
	if (!(features & IST__FEATURE_BOARD))
		return 0;
	return n * sizeof(struct ist__desk) + (features & IST__FEATURE_SHEETS ? ist__sheets_bytes(n) : 0);
}

void
ist__board_share(struct ist__group *g, void *at)
{
	g->board = at;
	if (g->features & IST__FEATURE_SHEETS)
		g->sheets = (uint8_t *)(g->board + g->size);
}

static void
bell(struct ist__group *g, uint32_t rank)
{
	struct ist__msg head = { .type = IST__BELL, .flags = IST__FRAME_URGENT, .generation = g->generation, .from = g->rank, .to = rank };

	ist__mesh_send(g, &head, NULL, 0); /* no memory: the sleeper looks again at its next tick */
}

/* ---- byte strings and barriers ---- */

static bool
ended_before(const struct ist__desk *desk, uint64_t seq)
{
	uint64_t broken = atomic_load(&desk->broken);

	return broken != 0 && broken <= seq;
}

uint32_t
ist__board_absent(const struct ist__group *g, uint64_t seq)
{
	for (uint32_t r = 0; r < g->size; r++)
		if (atomic_load_explicit(&g->board[r].op, memory_order_seq_cst) < seq || ended_before(&g->board[r], seq))
			return r;
	return IST_NO_RANK;
}

void
ist__board_break(struct ist__group *g)
{
	/* what all have entered is complete for all, whatever comes after it */
	bool open = g->op_type != 0 && ist__board_absent(g, g->op_seq) != IST_NO_RANK;

	atomic_store(&g->board[g->rank].broken, open ? g->op_seq : g->op_seq + 1);
}

/* What rank has entered as seq, or 0: it has not, or that was long ago (then messages tell). */
static uint64_t
op_word(const struct ist__group *g, uint32_t rank, uint64_t seq)
{
	uint64_t word = atomic_load_explicit(&g->board[rank].ops[seq % IST__BOARD_OPS], memory_order_acquire);

	return word >> 24 == (seq & (UINT64_MAX >> 24)) ? word : 0;
}

static bool
is_other(uint64_t theirs, uint64_t ours)
{
	return theirs != ours && theirs != 0 && ours != 0;
}

/* Who goes to sleep says so and then looks; who enters says so and then looks for sleepers: one of them sees the other. */
void
ist__board_enter(struct ist__group *g, uint64_t seq, uint16_t type, uint32_t root)
{
	struct ist__desk *mine = &g->board[g->rank];
	uint64_t least = UINT64_MAX, word = seq << 24 | (uint64_t)type << 8 | (root & 0xFF);

	atomic_store_explicit(&mine->ops[seq % IST__BOARD_OPS], word, memory_order_release);
	atomic_store_explicit(&mine->op, seq, memory_order_seq_cst);
	for (uint32_t r = 0; r < g->size; r++) {
		uint64_t op = atomic_load_explicit(&g->board[r].op, memory_order_seq_cst);

		least = op < least ? op : least;
	}
	for (uint32_t r = 0; r < g->size; r++) {
		uint64_t waits = atomic_load_explicit(&g->board[r].op_sleeper, memory_order_seq_cst);

		/* a sleeper also wants to know of somebody who is in something else */
		if (waits != 0 && (waits <= least || is_other(op_word(g, r, seq), word)) && atomic_exchange(&g->board[r].op_sleeper, 0) != 0)
			bell(g, r);
	}
}

bool
ist__board_clash(struct ist__group *g, uint64_t seq, struct ist__msg *out)
{
	for (uint32_t r = 0; r < g->size; r++) {
		uint64_t *seen = &g->ops_compared[r], op = atomic_load_explicit(&g->board[r].op, memory_order_acquire);

		if (seq > IST__BOARD_OPS && *seen < seq - IST__BOARD_OPS)
			*seen = seq - IST__BOARD_OPS;
		for (; *seen < seq && *seen < op; ++*seen) {
			uint64_t ours = op_word(g, g->rank, *seen + 1), theirs = op_word(g, r, *seen + 1);

			if (!is_other(theirs, ours))
				continue;
			*out = (struct ist__msg){ .type = (uint16_t)(theirs >> 8), .flags = (uint16_t)((theirs & 0xFF) << 8), .seq = (*seen + 1) << 8, .from = r };
			return true;
		}
	}
	return false;
}

bool
ist__board_linger(const struct ist__group *g, uint64_t seq)
{
	int64_t until = 0;

	for (uint32_t i = 0;; i++) {
		if (ist__board_absent(g, seq) == IST_NO_RANK)
			return true;
		if (__atomic_load_n(&g->broken_code, __ATOMIC_RELAXED))
			return false;
		if (i < g->patience) {
#if defined(__x86_64__)
			__builtin_ia32_pause();
#endif
			continue;
		}
		if (until == 0)
			until = ist__now() + LINGER_NS;
		else if (ist__now() >= until)
			return false;
		sched_yield();
	}
}

void
ist__board_sleep(struct ist__group *g, uint64_t seq, bool on)
{
	atomic_store_explicit(&g->board[g->rank].op_sleeper, on ? seq : 0, memory_order_seq_cst);
}

/* ---- prints ---- */

void
ist__board_print(struct ist__group *g, uint64_t seq, const uint8_t print[IST__PRINT_BYTES])
{
	struct ist__desk *mine = &g->board[g->rank];
	uint64_t n = atomic_load_explicit(&mine->prints_made, memory_order_relaxed), words[IST__PRINT_WORDS] = { seq }, least = UINT64_MAX;

	memcpy(words + 1, print, IST__PRINT_BYTES);
	/* released one by one: who reads a word of this round sees that the round has begun, see read_print */
	for (uint32_t i = 0; i < IST__PRINT_WORDS; i++)
		atomic_store_explicit(&mine->prints[n % IST__BOARD_PRINTS][i], words[i], memory_order_release);
	atomic_store_explicit(&mine->prints_made, n + 1, memory_order_seq_cst);
	for (uint32_t r = 0; r < g->size; r++) {
		uint64_t made = atomic_load_explicit(&g->board[r].prints_made, memory_order_seq_cst);

		least = made < least ? made : least;
	}
	for (uint32_t r = 0; r < g->size; r++) {
		uint64_t waits = atomic_load_explicit(&g->board[r].prints_sleeper, memory_order_seq_cst);

		if (waits == 0 || waits > least || atomic_exchange(&g->board[r].prints_sleeper, 0) == 0)
			continue;
		pthread_mutex_lock(&g->lock);
		bell(g, r);
		pthread_mutex_unlock(&g->lock);
	}
}

/* False: that member has gone round the board since, which it does only once it knows that this one agrees. */
static bool
read_print(const struct ist__desk *desk, uint64_t n, uint64_t words[IST__PRINT_WORDS])
{
	for (uint32_t i = 0; i < IST__PRINT_WORDS; i++)
		words[i] = atomic_load_explicit(&desk->prints[n % IST__BOARD_PRINTS][i], memory_order_acquire);
	return atomic_load_explicit(&desk->prints_made, memory_order_acquire) < n + IST__BOARD_PRINTS;
}

static ist_err
compare_with(struct ist__group *g, uint32_t rank, uint64_t n, struct ist_error *err)
{
	uint64_t ours[IST__PRINT_WORDS], theirs[IST__PRINT_WORDS];
	uint8_t a[IST__PRINT_BYTES], b[IST__PRINT_BYTES];

	if (!read_print(&g->board[g->rank], n, ours) || !read_print(&g->board[rank], n, theirs) || !memcmp(ours, theirs, sizeof(ours)))
		return IST_OK;
	memcpy(a, ours + 1, IST__PRINT_BYTES);
	memcpy(b, theirs + 1, IST__PRINT_BYTES);
	if (memcmp(a, b, IST__PRINT_BYTES) != 0)
		return ist__print_compare(g->rank, a, rank, b, ours[0], err);
	ist__fail(err, IST_ORDER_MISMATCH, "check", "rank %u is in operation %llu, rank %u in operation %llu", g->rank, (unsigned long long)ours[0], rank,
		(unsigned long long)theirs[0]);
	ist__fail_rank(err, g->rank);
	ist__fail_rank(err, rank);
	return IST_ORDER_MISMATCH;
}

/* *least: how many of our prints all others have made too. */
static ist_err
compare_all(struct ist__group *g, uint64_t mine, uint64_t *least, struct ist_error *err)
{
	*least = mine;
	for (uint32_t r = 0; r < g->size; r++) {
		uint64_t made = atomic_load_explicit(&g->board[r].prints_made, memory_order_seq_cst), *seen = &g->compared[r];

		for (; *seen < made && *seen < mine && r != g->rank; ++*seen) {
			ist_err e = compare_with(g, r, *seen, err);

			if (e)
				return e;
		}
		if (r != g->rank && *seen < *least)
			*least = *seen;
	}
	return IST_OK;
}

ist_err
ist__board_compare(struct ist__group *g, bool asleep, uint64_t *agreed, struct ist_error *err)
{
	struct ist__desk *desk = &g->board[g->rank];
	uint64_t mine = atomic_load_explicit(&desk->prints_made, memory_order_relaxed), least;
	ist_err e = compare_all(g, mine, &least, err);

	if (!e && asleep && least < mine) {
		atomic_store_explicit(&desk->prints_sleeper, least + 1, memory_order_seq_cst);
		e = compare_all(g, mine, &least, err);
	} else if (atomic_load_explicit(&desk->prints_sleeper, memory_order_relaxed) != 0) {
		atomic_store_explicit(&desk->prints_sleeper, 0, memory_order_relaxed);
	}
	if (!e && least > 0)
		*agreed = atomic_load_explicit(&desk->prints[(least - 1) % IST__BOARD_PRINTS][0], memory_order_relaxed) + 1;
	return e;
}
