/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_test.c - the CUDA device on a real GPU: memory, pinned memory, copies between all kinds, events across streams, whose an
 * address is, sharing with another process, and digests of every length against the host's. Without a GPU it says so, and
 * only what can be said without one is checked. With an argument it measures: cuda_test bench [GB].
 */
#include "base/ctx.h"
#include "base/digest.h"
#include "devices/cuda.h"
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

static struct ist_device d;
static struct ist_status why = { .struct_size = sizeof(why) };

#define GOOD(call) \
	do { \
		ist_err e_ = (call); \
		if (e_) { \
			fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, ist_err_name(e_), why.text); \
			fflush(NULL); \
			_Exit(1); \
		} \
	} while (0)

static void *
sys_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	void *p = NULL;

	(void)ctx, (void)kind, (void)numa;
	return posix_memalign(&p, align < 16 ? 16 : align, bytes ? bytes : 1) ? NULL : p;
}

static void
sys_free(void *ctx, void *p)
{
	(void)ctx;
	free(p);
}

static const struct ist__ctx ctx = { .log_level = INT32_MAX, .numa = -1, .alloc = sys_alloc, .free = sys_free };

static bool
open_device(struct ist__cuda **c)
{
	struct ist_device_probe p = { .struct_size = sizeof(p) };

	*c = ist__cuda_new(&ctx, &d);
	CHECK(*c != NULL);
	d.probe(d.self, NULL, IST_LOOK, &p);
	CHECK(p.count == 0 && p.reason);
	d.probe(d.self, NULL, IST_START, &p);
	CHECK(p.count > 0 || *p.reason);
	if (p.count == 0)
		fprintf(stderr, "no GPU here: %s\n", p.reason);
	return p.count > 0;
}

static void *
get(uint32_t mem, uint64_t bytes)
{
	void *p = NULL;

	GOOD(d.alloc(d.self, 0, mem, 0, bytes, &p, &why));
	return p;
}

static void
give(uint32_t mem, void *p)
{
	d.free(d.self, 0, mem, p);
}

static void
await(void *event)
{
	for (uint32_t done = 0; !done;)
		GOOD(d.event_query(d.self, 0, event, &done, &why));
}

static void
move(void *to, const void *from, uint64_t bytes)
{
	struct ist_copy c = { .dst = to, .src = from, .bytes = bytes };
	void *s, *e;

	GOOD(d.stream_new(d.self, 0, &s, &why));
	GOOD(d.event_new(d.self, 0, 0, &e, &why));
	GOOD(d.copy(d.self, 0, &c, 1, s, &why));
	GOOD(d.event_record(d.self, 0, e, s, &why));
	await(e);
	d.event_free(d.self, 0, e);
	d.stream_free(d.self, 0, s);
}

static void
fill(uint8_t *p, uint64_t n, uint64_t seed)
{
	for (uint64_t i = 0; i < n; i++) {
		seed = seed * UINT64_C(6364136223846793005) + 1;
		p[i] = (uint8_t)(seed >> 33);
	}
}

/* ---- without a GPU ---- */

static void
says_why_there_is_none(void **unused)
{
	struct ist_device_info info = { .struct_size = sizeof(info) };
	struct ist__cuda *c;
	struct ist_buf buf;
	int here = 0;
	void *p = NULL;

	(void)unused;
	if (!open_device(&c)) {
		assert_int_equal(d.alloc(d.self, 0, IST_MEM_CUDA, 0, 64, &p, &why), IST_UNSUPPORTED);
		assert_true(why.text[0]);
		assert_int_equal(d.info(d.self, 0, &info, &why), IST_UNSUPPORTED);
	}
	assert_int_equal(d.owner(d.self, &here, &buf, &why), IST_OK);
	assert_int_equal(buf.mem, IST_MEM_HOST);
	assert_int_equal(buf.bytes, 0);
	ist__cuda_free(c);
}

/* ---- with one ---- */

static void
copies_and_owners(void **unused)
{
	enum { N = 3000001 };
	struct ist_device_info info = { .struct_size = sizeof(info) };
	struct ist__cuda *c;
	uint8_t *plain = malloc(N), *back = calloc(1, N), *pinned, *far, *far2;
	struct ist_buf buf;

	(void)unused;
	if (open_device(&c)) {
		GOOD(d.info(d.self, 0, &info, &why));
		assert_true(info.bytes_total > 0 && info.name[0]);
		assert_int_equal(d.info(d.self, 4242, &info, &why), IST_INVALID_ARGUMENT);
		pinned = get(IST_MEM_PINNED, N);
		far = get(IST_MEM_CUDA, N);
		far2 = get(IST_MEM_CUDA, N);
		fill(plain, N, 1);
		move(far + 1, plain + 1, N - 1);
		move(far2 + 1, far + 1, N - 1);
		move(pinned + 1, far2 + 1, N - 1);
		move(far + 1, pinned + 1, N - 1);
		move(back + 1, far + 1, N - 1);
		assert_memory_equal(plain + 1, back + 1, N - 1);
		GOOD(d.owner(d.self, far + 5, &buf, &why));
		assert_true(buf.mem == IST_MEM_CUDA && buf.device == 0 && buf.how == IST_MEM_PLAIN && buf.bytes >= N - 5);
		GOOD(d.owner(d.self, pinned + 5, &buf, &why));
		assert_true(buf.mem == IST_MEM_PINNED && buf.bytes >= N - 5);
		GOOD(d.owner(d.self, plain, &buf, &why));
		assert_true(buf.mem == IST_MEM_HOST);
		GOOD(d.pin(d.self, 0, plain + 100, N - 100, 0, &why));
		GOOD(d.owner(d.self, plain + 200, &buf, &why));
		assert_int_equal(buf.mem, IST_MEM_PINNED);
		GOOD(d.pin(d.self, 0, plain + 4096, 100000, 0, &why)); /* a part of what is pinned */
		d.unpin(d.self, 0, plain + 4096, 100000);
		move(far, plain + 100, N - 100);
		d.unpin(d.self, 0, plain + 100, N - 100);
		GOOD(d.owner(d.self, plain + 200, &buf, &why));
		assert_int_equal(buf.mem, IST_MEM_HOST);
		give(IST_MEM_CUDA, far);
		give(IST_MEM_CUDA, far2);
		give(IST_MEM_PINNED, pinned);
	}
	free(plain);
	free(back);
	ist__cuda_free(c);
}

static void
one_stream_waits_for_another(void **unused)
{
	enum { ROUNDS = 50 };
	uint64_t bytes = 64 * MIB;
	struct ist__cuda *c;

	(void)unused;
	if (open_device(&c)) {
		uint8_t *a = get(IST_MEM_CUDA, bytes), *b = get(IST_MEM_CUDA, bytes), *host = get(IST_MEM_PINNED, bytes), *out = get(IST_MEM_PINNED, bytes);
		void *one, *two, *mid, *end;

		GOOD(d.stream_new(d.self, 0, &one, &why));
		GOOD(d.stream_new(d.self, 0, &two, &why));
		GOOD(d.event_new(d.self, 0, 0, &mid, &why));
		GOOD(d.event_new(d.self, 0, 0, &end, &why));
		for (int i = 0; i < ROUNDS; i++) {
			memset(host, i, bytes);
			GOOD(d.copy(d.self, 0, &(struct ist_copy){ .dst = a, .src = host, .bytes = bytes }, 1, one, &why));
			GOOD(d.event_record(d.self, 0, mid, one, &why));
			GOOD(d.stream_wait(d.self, 0, two, mid, &why));
			GOOD(d.copy(d.self, 0, (struct ist_copy[]){ { .dst = b, .src = a, .bytes = bytes } }, 1, two, &why));
			GOOD(d.copy(d.self, 0, &(struct ist_copy){ .dst = out, .src = b, .bytes = bytes }, 1, two, &why));
			GOOD(d.event_record(d.self, 0, end, two, &why));
			await(end);
			for (uint64_t k = 0; k < bytes; k += 65537)
				CHECK(out[k] == (uint8_t)i);
		}
		d.event_free(d.self, 0, mid);
		d.event_free(d.self, 0, end);
		d.stream_free(d.self, 0, one);
		d.stream_free(d.self, 0, two);
		give(IST_MEM_CUDA, a);
		give(IST_MEM_CUDA, b);
		give(IST_MEM_PINNED, host);
		give(IST_MEM_PINNED, out);
	}
	ist__cuda_free(c);
}

static void
digests_of_every_length(void **unused)
{
	enum { MOST = 5 * 65536 + 777, LISTED = 400 };
	struct ist__cuda *c;

	(void)unused;
	if (open_device(&c)) {
		uint8_t *host = malloc(MOST + 16), *far = get(IST_MEM_CUDA, MOST + 16), *leaves = get(IST_MEM_CUDA, LISTED * 6 * 16);
		struct ist__digest *have = malloc(LISTED * 6 * sizeof(*have)), want[6];
		struct ist_copy list[LISTED];
		uint64_t lengths[LISTED], n = 0;
		void *s, *e;

		fill(host, MOST + 16, 7);
		move(far, host, MOST + 16);
		GOOD(d.stream_new(d.self, 0, &s, &why));
		GOOD(d.event_new(d.self, 0, 0, &e, &why));
		for (uint64_t i = 1; n < 330; i++)
			lengths[n++] = i;
		for (uint64_t i = 0; n < LISTED; i++)
			lengths[n++] = i < 20 ? 65536 + i - 10 : i < 40 ? (i - 19) * 1024 + i % 3 - 1 : MOST - i * 4711;
		for (uint32_t odd = 0; odd < 9; odd += odd ? 7 : 1) {
			for (uint64_t i = 0; i < n; i++)
				list[i] = (struct ist_copy){ .dst = leaves + i * 6 * 16, .src = far + odd, .bytes = lengths[i] };
			GOOD(d.digest(d.self, 0, list, n, s, &why));
			GOOD(d.event_record(d.self, 0, e, s, &why));
			await(e);
			move(have, leaves, n * 6 * 16);
			for (uint64_t i = 0; i < n; i++) {
				ist__digest_leaves(host + odd, lengths[i], want);
				for (uint64_t k = 0; k < ist__leaf_count(lengths[i]); k++)
					if (memcmp(&want[k], &have[i * 6 + k], 16)) {
						fprintf(stderr, "leaf %llu of %llu bytes at +%u is another\n", (unsigned long long)k, (unsigned long long)lengths[i], odd);
						CHECK(false);
					}
			}
		}
		d.event_free(d.self, 0, e);
		d.stream_free(d.self, 0, s);
		give(IST_MEM_CUDA, far);
		give(IST_MEM_CUDA, leaves);
		free(host);
		free(have);
	}
	ist__cuda_free(c);
}

struct letter {
	_Atomic uint32_t sent, done;
	uint64_t bytes;
	uint8_t handle[256];
};

static int
child(struct ranks *r, uint32_t rank, void *arg)
{
	struct letter *l = r->shared;
	struct ist__cuda *c;
	uint64_t bytes = 3 * MIB;
	uint8_t *host = malloc(bytes);

	(void)arg;
	CHECK(open_device(&c));
	if (rank == 0) {
		uint8_t *far = get(IST_MEM_CUDA, 8 * MIB);
		struct ist_buf buf = { .addr = far + MIB, .bytes = bytes, .mem = IST_MEM_CUDA, .device = 0 };
		int32_t fd;

		fill(host, bytes, 99);
		move(far + MIB, host, bytes);
		l->bytes = sizeof(l->handle);
		GOOD(d.share(d.self, &buf, l->handle, &l->bytes, &fd, &why));
		CHECK(fd == -1);
		atomic_store(&l->sent, 1);
		ranks_await(&l->done, 1);
		move(host, far + MIB, 16);
		CHECK(host[0] == 42 && host[15] == 42);
		give(IST_MEM_CUDA, far);
	} else {
		uint8_t *want = malloc(bytes);
		struct ist_wire w = { .addr = l->handle };
		struct ist_buf buf;

		ranks_await(&l->sent, 1);
		w.bytes = l->bytes;
		GOOD(d.map(d.self, 0, &w, &buf, &why));
		CHECK(buf.bytes == bytes && buf.mem == IST_MEM_CUDA && buf.how == IST_MEM_IMPORTED);
		move(host, buf.addr, bytes);
		fill(want, bytes, 99);
		CHECK(!memcmp(host, want, bytes));
		memset(want, 42, 16);
		move(buf.addr, want, 16);
		d.unmap(d.self, &buf);
		atomic_store(&l->done, 1);
		free(want);
	}
	free(host);
	ist__cuda_free(c);
	return 0;
}

static void
another_process_maps_it(void **unused)
{
	struct ranks r;
	int fd = access("/dev/nvidiactl", F_OK);

	(void)unused;
	if (fd)
		return; /* said so above; the driver must not be started before a fork */
	ranks_init(&r, 2);
	ranks_start_all(&r, child, NULL);
	assert_int_equal(ranks_join(&r, 60, 0), 0);
	ranks_fini(&r);
}

/* ---- measuring ---- */

static double
rate(const char *what, uint64_t bytes, struct ist_copy *list, uint64_t n, bool digest, int times)
{
	void *s, *from, *to;
	double best = 0;
	int64_t ns;

	GOOD(d.stream_new(d.self, 0, &s, &why));
	GOOD(d.event_new(d.self, 0, IST_EVENT_TIME, &from, &why));
	GOOD(d.event_new(d.self, 0, IST_EVENT_TIME, &to, &why));
	for (int i = 0; i < times; i++) {
		GOOD(d.event_record(d.self, 0, from, s, &why));
		GOOD(digest ? d.digest(d.self, 0, list, n, s, &why) : d.copy(d.self, 0, list, n, s, &why));
		GOOD(d.event_record(d.self, 0, to, s, &why));
		await(to);
		GOOD(d.event_ns(d.self, 0, from, to, &ns, &why));
		if (i > 0 && (double)bytes / (double)ns > best)
			best = (double)bytes / (double)ns;
	}
	printf("%-44s %9.1f GB/s\n", what, best);
	d.event_free(d.self, 0, from);
	d.event_free(d.self, 0, to);
	d.stream_free(d.self, 0, s);
	return best;
}

static void
bench_pin(const char *what, uint64_t bytes, bool file)
{
	int fd = file ? open("/dev/shm/isthmus-cuda-bench", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
	uint8_t *p;
	double at;

	CHECK(!file || (fd >= 0 && !ftruncate(fd, (off_t)bytes)));
	unlink("/dev/shm/isthmus-cuda-bench");
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, (file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS), fd, 0);
	CHECK(p != MAP_FAILED);
	memset(p, 1, bytes);
	at = now_s();
	GOOD(d.pin(d.self, 0, p, bytes, 0, &why));
	at = now_s() - at;
	printf("%-44s %9.3f s\n", what, at);
	d.unpin(d.self, 0, p, bytes);
	if (file) {
		munmap(p, bytes);
		p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
		CHECK(p != MAP_FAILED);
		at = now_s();
		if (d.pin(d.self, 0, p, bytes, IST_PIN_READ_ONLY, &why))
			printf("%-44s %s\n", "  the same, mapped read-only", why.text);
		else
			printf("%-44s %9.3f s\n", "  the same, mapped read-only", now_s() - at);
		d.unpin(d.self, 0, p, bytes);
		close(fd);
	}
	munmap(p, bytes);
}

static int
bench(double gb)
{
	uint64_t bytes = (uint64_t)(gb * 1e9) & ~UINT64_C(65535);
	struct ist__cuda *c;
	double at = now_s();
	uint8_t *a, *b, *leaves, *host;

	if (!open_device(&c))
		return 0;
	a = get(IST_MEM_CUDA, bytes);
	printf("%-44s %9.3f s\n", "start, first memory", now_s() - at);
	b = get(IST_MEM_CUDA, bytes);
	leaves = get(IST_MEM_CUDA, bytes / 65536 * 16);
	at = now_s();
	host = get(IST_MEM_PINNED, 1024 * MIB);
	printf("%-44s %9.3f s\n", "1 GiB of pinned memory", now_s() - at);
	rate("host to device, pinned, 1 GiB", 1024 * MIB, &(struct ist_copy){ .dst = a, .src = host, .bytes = 1024 * MIB }, 1, false, 5);
	rate("device to host, pinned, 1 GiB", 1024 * MIB, &(struct ist_copy){ .dst = host, .src = a, .bytes = 1024 * MIB }, 1, false, 5);
	rate("inside the device, bytes read and written", 2 * bytes, &(struct ist_copy){ .dst = b, .src = a, .bytes = bytes }, 1, false, 5);
	rate("digests, all in one", bytes, &(struct ist_copy){ .dst = leaves, .src = a, .bytes = bytes }, 1, true, 5);
	rate("digests, 128 MiB", 128 * MIB, &(struct ist_copy){ .dst = leaves, .src = a, .bytes = 128 * MIB }, 1, true, 20);
	bench_pin("pinning memory in place, 8.2 GB", UINT64_C(8200000000), false);
	bench_pin("pinning a file of /dev/shm in place, 8.2 GB", UINT64_C(8200000000), true);
	give(IST_MEM_CUDA, a);
	give(IST_MEM_CUDA, b);
	give(IST_MEM_CUDA, leaves);
	give(IST_MEM_PINNED, host);
	ist__cuda_free(c);
	return 0;
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(another_process_maps_it), /* before the driver is started here: it does not outlive a fork */
		cmocka_unit_test(says_why_there_is_none),
		cmocka_unit_test(copies_and_owners),
		cmocka_unit_test(one_stream_waits_for_another),
		cmocka_unit_test(digests_of_every_length),
	};

	if (argc > 1 && !strcmp(argv[1], "bench"))
		return bench(argc > 2 ? atof(argv[2]) : 16);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
