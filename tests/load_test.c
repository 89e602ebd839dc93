/* SPDX-License-Identifier: Apache-2.0
 *
 * Nobody is taken for dead because the machine is busy or the network bad: many processes on few CPUs, each computing besides
 * with a thread of its own, work together at the default limits, and not one of them is lost. Once more where every hundredth
 * packet is lost and large broadcasts go on all the time.
 *
 *     load_test [SECONDS MEMBERS]     without numbers a short run; with them only the broadcasts, for so long
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "netns.h"
#include "ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMBERS = 64, LOAD_S = 8, BULK = 64 << 10, AT_LEAST = 3 };

static atomic_bool enough;
static volatile uint64_t work; /* so that the compiler keeps it */

static void *
compute(void *arg)
{
	uint64_t x = 1;

	(void)arg;
	while (!atomic_load_explicit(&enough, memory_order_relaxed))
		for (int i = 0; i < 100000; i++)
			x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
	work = x;
	return NULL;
}

/* One of everything: a barrier, bytes of all, bytes of one, bulk bytes. */
static void
work_together(struct member *m, uint32_t rank, uint32_t n, uint32_t round)
{
	struct ist_coll_args ca = { .struct_size = sizeof(ca), .peer = round % n };
	struct ist_blob all[MEMBERS];
	uint8_t *buf = malloc(BULK);
	struct ist_req *req;

	CHECK(buf);
	CHECK_ERR(IST_OK, ist_barrier(m->g, 0, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_all_gather_bytes(m->g, &rank, sizeof(rank), 0, all, &m->err), &m->err);
	for (uint32_t r = 0; r < n; r++)
		CHECK(all[r].bytes == sizeof(r) && !memcmp(all[r].addr, &r, sizeof(r)));
	ist_blobs_free(m->g, all, n);
	memset(buf, rank == ca.peer ? (int)(round & 255) : 0, BULK);
	ca.src = ca.dst = (struct ist_buf){ .addr = buf, .bytes = BULK, .device = -1 };
	CHECK_ERR(IST_OK, ist_broadcast(m->g, &ca, &req, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_req_wait(req, 0, &m->err), &m->err);
	ist_req_free(req);
	for (uint32_t i = 0; i < BULK; i++)
		CHECK(buf[i] == (round & 255));
	free(buf);
}

static int
busy_member(struct ranks *r, uint32_t rank, void *arg)
{
	double start;
	uint32_t n = MEMBERS, lost[MEMBERS];
	uint8_t more = 1;
	pthread_t thread;
	struct member m;

	(void)arg;
	CHECK(pthread_create(&thread, NULL, compute, NULL) == 0);
	member_init(&m, IST_TRANSPORT_AUTO);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "load", rank, r->n, 0, 0), &m.err); /* the defaults */
	start = now_s();
	for (uint32_t round = 0; more; round++) {
		struct ist_blob blob;

		work_together(&m, rank, r->n, round);
		more = round + 1 < AT_LEAST || now_s() - start < LOAD_S;
		CHECK_ERR(IST_OK, ist_broadcast_bytes(m.g, &more, 1, 0, 0, &blob, &m.err), &m.err);
		more = *(uint8_t *)blob.addr;
		ist_blobs_free(m.g, &blob, 1);
		if (rank == 0 && !more && getenv("TEST_LOG"))
			fprintf(stderr, "%u rounds in %.1f s\n", round + 1, now_s() - start);
	}
	CHECK_ERR(IST_OK, ist_group_lost(m.g, lost, &n, &m.err), &m.err);
	CHECK(n == 0);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	atomic_store(&enough, true);
	pthread_join(thread, NULL);
	member_fini(&m);
	return 0;
}

static void
nobody_is_lost_under_load(void **state)
{
	struct ranks r;

	(void)state;
	ranks_init(&r, MEMBERS);
	ranks_start_all(&r, busy_member, NULL);
	assert_int_equal(ranks_join(&r, 200, 0), 0);
	ranks_fini(&r);
}

/* ---- a bad network ---- */

#define CAST (UINT64_C(16) << 20)

struct bad {
	uint32_t members;
	double seconds;
};

/* Every hundredth packet that arrives, by whichever of the two means there is. */
static bool
lose_packets(void)
{
	return system("exec >/dev/null 2>&1; iptables -A INPUT -i lo -p tcp -m statistic --mode random --probability 0.01 -j DROP || "
		"{ tc qdisc add dev lo clsact && "
		"tc filter add dev lo ingress pref 1 bpf da bytecode '4,32 0 0 4294963256,37 0 1 4252017622,6 0 0 2,6 0 0 4294967295'; }") == 0;
}

/* Segments that had to be sent again, in this network. */
static uint64_t
sent_again(void)
{
	char line[512], names[512] = "";
	unsigned long long n = 0;
	FILE *f = fopen("/proc/thread-self/net/snmp", "re");

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		char *name_at, *value_at, *name, *value;

		if (strncmp(line, "Tcp:", 4) != 0)
			continue;
		if (!names[0]) {
			memcpy(names, line, sizeof(names));
			continue;
		}
		for (name = strtok_r(names, " \n", &name_at), value = strtok_r(line, " \n", &value_at); name && value;
			name = strtok_r(NULL, " \n", &name_at), value = strtok_r(NULL, " \n", &value_at))
			if (!strcmp(name, "RetransSegs"))
				n = strtoull(value, NULL, 10);
	}
	fclose(f);
	return n;
}

static void
cast_and_look(struct member *m, uint8_t *buf, uint32_t rank, uint32_t root, uint8_t fill)
{
	struct ist_coll_args ca = { .struct_size = sizeof(ca), .peer = root };
	struct ist_req *req;

	memset(buf, rank == root ? fill : 0, CAST);
	ca.src = ca.dst = (struct ist_buf){ .addr = buf, .bytes = CAST, .device = -1 };
	CHECK_ERR(IST_OK, ist_broadcast(m->g, &ca, &req, &m->err), &m->err);
	CHECK_ERR(IST_OK, ist_req_wait(req, 0, &m->err), &m->err);
	ist_req_free(req);
	CHECK(buf[0] == fill && !memcmp(buf, buf + 1, CAST - 1));
}

static int
member_in_the_rain(struct ranks *r, uint32_t rank, void *arg)
{
	const struct bad *b = arg;
	uint32_t n = r->n, *lost = calloc(n, sizeof(*lost)), round = 0;
	uint8_t more = 1, *buf = malloc(CAST);
	struct member m;
	double start;

	CHECK(buf && lost);
	member_init(&m, IST_TRANSPORT_TCP);
	CHECK_ERR(IST_OK, member_join(&m, r->at, "rain", rank, r->n, 0, 0), &m.err); /* the defaults */
	start = now_s();
	for (; more; round++) {
		struct ist_blob blob;

		cast_and_look(&m, buf, rank, round % r->n, (uint8_t)(round + 1));
		more = now_s() - start < b->seconds;
		CHECK_ERR(IST_OK, ist_broadcast_bytes(m.g, &more, 1, 0, 0, &blob, &m.err), &m.err);
		more = *(uint8_t *)blob.addr;
		ist_blobs_free(m.g, &blob, 1);
	}
	CHECK_ERR(IST_OK, ist_group_lost(m.g, lost, &n, &m.err), &m.err);
	CHECK(n == 0);
	CHECK_ERR(IST_OK, ist_barrier(m.g, 0, &m.err), &m.err);
	if (rank == 0) {
		printf("%u members, %u broadcasts of 16 MiB in %.1f s, %llu segments sent again, nobody lost\n", r->n, round, now_s() - start,
			(unsigned long long)sent_again());
		fflush(stdout);
		CHECK(sent_again() > 0);
	}
	member_fini(&m);
	free(buf);
	free(lost);
	return 0;
}

/* In a network of its own: 0, or 77 where none can be had. */
static int
rain(const struct bad *b)
{
	struct ranks r;
	int bad;

	if (!netns_enter() || !lose_packets())
		return 77;
	ranks_init(&r, b->members);
	ranks_start_all(&r, member_in_the_rain, (void *)(uintptr_t)b);
	bad = ranks_join(&r, (int)b->seconds * 2 + 180, 0);
	ranks_fini(&r);
	return bad != 0;
}

static int
apart(const struct bad *b)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(rain(b));
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void
nobody_is_lost_in_the_rain(void **state)
{
	static const struct bad b = { .members = 8, .seconds = 8 };
	int status = apart(&b);

	(void)state;
	if (status == 77) {
		print_message("no network that loses packets can be made here\n");
		skip();
	}
	assert_int_equal(status, 0);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_is_lost_under_load),
		cmocka_unit_test(nobody_is_lost_in_the_rain),
	};

	if (argc == 3) {
		struct bad b = { .seconds = strtod(argv[1], NULL), .members = (uint32_t)strtoul(argv[2], NULL, 10) };

		return apart(&b);
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
