/* SPDX-License-Identifier: Apache-2.0
 *
 * large_test.c - byte strings at the limit: all-gathered ones that are more than 2^31 bytes together arrive whole, and one that
 * is too long is refused before anybody waits for it. What is given are pages that were never touched, with marks in them.
 */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <cmocka.h>

/* Together 2^31 + 2^20 - 128; what members hold of it at a time needs about NEED. */
#define LONG (IST_OBJECT_BYTES_MAX - 64)
#define SHORT (UINT64_C(1) << 20)
#define NEED_GIB 15.0
enum { MEMBERS = 3, MARKS = 5 };

static uint64_t
bytes_of(uint32_t rank)
{
	return rank < 2 ? LONG : SHORT;
}

/* Head, the seams of frames and pages, tail. */
static uint64_t
mark_at(uint64_t bytes, uint32_t i)
{
	const uint64_t at[MARKS] = { 0, (256 << 10) - 9, bytes / 2 + 1, bytes - 4097, bytes - 1 };

	return at[i];
}

static uint8_t *
sparse(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static void
check_string(const struct ist_blob *b, uint32_t from)
{
	const uint8_t *at = b->addr;
	uint64_t sum = 0;

	CHECK(b->bytes == bytes_of(from));
	for (uint32_t i = 0; i < MARKS; i++)
		CHECK(at[mark_at(b->bytes, i)] == 16 * (from + 1) + i);
	for (uint64_t i = 0; i + 8 <= b->bytes; i += 8) { /* and nothing else is in it */
		uint64_t word;

		memcpy(&word, at + i, 8);
		sum += word != 0;
	}
	CHECK(sum >= MARKS - 1 && sum <= MARKS);
}

static int
gathers(struct ranks *r, uint32_t rank, void *arg)
{
	uint64_t bytes = bytes_of(rank);
	uint8_t *give = sparse(bytes);
	struct ist_blob all[MEMBERS];
	struct member m;

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "large", rank, r->n, 200, 60), &m.err);
	for (uint32_t i = 0; i < MARKS; i++)
		give[mark_at(bytes, i)] = (uint8_t)(16 * (rank + 1) + i);
	CHECK_ERR(IST_OK, ist_all_gather_bytes(m.g, give, bytes, 0, all, &m.err), &m.err);
	for (uint32_t i = 0; i < r->n; i++)
		check_string(&all[i], i);
	ist_blobs_free(m.g, all, r->n);
	all_gather_ranks(&m, rank, r->n);
	munmap(give, bytes);
	member_fini(&m);
	return 0;
}

static double
gib_available(void)
{
	unsigned long kib = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f) && sscanf(line, "MemAvailable: %lu", &kib) != 1)
		continue;
	if (f)
		fclose(f);
	return (double)kib / (1 << 20);
}

static void
more_than_31_bits_together(void **state)
{
	double gib = gib_available();
	struct ranks r;

	(void)state;
	if (gib < NEED_GIB) {
		print_message("%.1f GiB are available here, and this needs %.0f\n", gib, NEED_GIB);
		skip();
	}
	ranks_init(&r, MEMBERS);
	ranks_start_all(&r, gathers, NULL);
	assert_int_equal(ranks_join(&r, 200, 0), 0);
	ranks_fini(&r);
}

/* Whatever takes a byte string says so, with both numbers; the group goes on, since nobody had entered. */
static int
refuses(struct ranks *r, uint32_t rank, void *arg)
{
	const uint64_t longer[] = { IST_OBJECT_BYTES_MAX + 1, (UINT64_C(1) << 31) + 5, (UINT64_C(1) << 32) + 1 };
	uint8_t *give = sparse(longer[2]);
	struct ist_blob out[2];
	struct member m;
	char text[32];

	(void)arg;
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "long", rank, r->n, 60, 30), &m.err);
	for (int i = 0; i < 3; i++) {
		snprintf(text, sizeof(text), "%llu bytes", (unsigned long long)longer[i]);
		CHECK_ERR(IST_LIMIT, ist_all_gather_bytes(m.g, give, longer[i], 0, out, &m.err), &m.err);
		CHECK(strstr(m.err.detail, text) && strstr(m.err.detail, "1073741824"));
		CHECK_ERR(IST_LIMIT, ist_gather_bytes(m.g, give, longer[i], 0, 0, out, &m.err), &m.err);
		CHECK_ERR(IST_LIMIT, ist_broadcast_bytes(m.g, give, longer[i], rank, 0, out, &m.err), &m.err);
		CHECK_ERR(IST_LIMIT, ist_send_bytes(m.g, give, longer[i], 1 - rank, 0, &m.err), &m.err);
		CHECK(strstr(m.err.detail, text));
	}
	all_gather_ranks(&m, rank, r->n);
	munmap(give, longer[2]);
	member_fini(&m);
	return 0;
}

static void
one_that_is_too_long_is_refused(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, 2);
	ranks_start_all(&r, refuses, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_that_is_too_long_is_refused),
		cmocka_unit_test(more_than_31_bits_together),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
