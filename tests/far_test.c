/* SPDX-License-Identifier: Apache-2.0
 *
 * far_test.c - updates from and to the memory of a device, among real processes: buckets on the devices or in host memory,
 * sources of every kind, sinks of every kind, a device without a kernel for digests, one that fails, one that stands still, and
 * members that die in the middle. With ISTHMUS_TEST_DEVICE=cuda on the first real GPU, as far as that can be asked of it.
 */
#include "far_device.h"
#include "ranks.h"

#include <ftw.h>
#include <isthmus/sync.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { TENSORS = 13, BUCKET = 256 << 10 };

enum from { FROM_HOST, FROM_FAR, FROM_FILES, FROM_BOTH };
enum to { TO_MEM, TO_PLACES, TO_FOLDER, TO_NULL, TO_HOST };

struct job {
	uint32_t n, n_sources;
	enum from from;
	enum to to;
	bool near;          /* the group's endpoints have no device: buckets lie in host memory */
	bool sources_take;  /* every source has a sink too */
	bool slices;        /* the sources hold halves of each tensor, cut along its second dimension */
	bool one_device;    /* all on device 0, else in turn */
	struct far_device_options opt;
	ist_err want;       /* of the second update */
	ist_err want_gather;
	int32_t copies;     /* that rank n - 1's device makes in the second update before it fails */
	bool stands_still;  /* it does, in the second update */
	char folder[64], other[64]; /* of files; rank 1's, if it is another */
	uint32_t of_files;  /* version that the files hold */
	uint32_t victim;
};

/* Rows and columns; bytes = rows * columns. */
static const struct {
	const char *name;
	uint64_t rows, columns;
} shapes[TENSORS] = {
	{ "a", 1, 2 }, { "b", 3, 0 }, { "c", 7, 15 }, { "d", 16, 4096 }, { "e", 17, 4097 }, { "f", 300, 4096 }, { "g", 1, 65537 }, { "h", 2, 64 },
	{ "i", 1024, 640 }, { "j", 5, 48 }, { "k", 3, 100000 }, { "l", 129, 2 }, { "m", 2, 131072 },
};

static uint64_t
bytes_of(uint32_t i)
{
	return shapes[i].rows * shapes[i].columns;
}

static uint8_t
byte_at(uint32_t tensor, uint64_t row, uint64_t column, uint32_t version)
{
	return (uint8_t)(tensor * 37 + row * 101 + column * 7 + version * 13 + (row * column >> 9));
}

/* What tensor i is in that version, from column on, width of them. */
static void
fill(uint8_t *at, uint32_t i, uint64_t column, uint64_t width, uint32_t version)
{
	for (uint64_t r = 0; r < shapes[i].rows; r++)
		for (uint64_t c = 0; c < width; c++)
			*at++ = byte_at(i, r, column + c, version);
}

struct party {
	struct member m;
	const struct job *job;
	struct far_device *d;
	int32_t index;
	uint32_t rank;
	struct ist_sync *sync;
	struct ist_checkpoint *ck;
	struct ist_sink *to;
	void *source[TENSORS], *place[TENSORS];
	uint64_t column[TENSORS], width[TENSORS]; /* of what this source holds */
	char path[160];
};

/* ---- either device ---- */

static bool
is_real(void)
{
	const char *device = getenv("ISTHMUS_TEST_DEVICE");

	return device && !strcmp(device, "cuda");
}

static void
put(struct party *p, void *to, const void *from, uint64_t bytes)
{
	if (p->d)
		far_device_put(p->d, to, from, bytes);
	else
		CHECK_ERR(IST_OK, ist_device_copy(p->m.env, IST_MEM_CUDA, p->index, to, from, bytes, &p->m.err), &p->m.err);
}

static void
fetch(struct party *p, void *to, const void *from, uint64_t bytes)
{
	if (p->d)
		far_device_get(p->d, to, from, bytes);
	else
		CHECK_ERR(IST_OK, ist_device_copy(p->m.env, IST_MEM_CUDA, p->index, to, from, bytes, &p->m.err), &p->m.err);
}

static bool
is_source(const struct party *p)
{
	return p->rank < p->job->n_sources;
}

static bool
is_far(const struct party *p, uint32_t i)
{
	return p->job->from == FROM_FAR || (p->job->from == FROM_BOTH && i % 2 == 0);
}

static void *
make(struct party *p, uint64_t bytes, bool far)
{
	void *at = NULL;

	if (bytes == 0)
		return NULL;
	if (far)
		CHECK_ERR(IST_OK, ist_device_alloc(p->m.env, IST_MEM_CUDA, p->index, bytes, &at, &p->m.err), &p->m.err);
	else
		at = malloc(bytes);
	CHECK(at != NULL);
	return at;
}

static void
drop(struct party *p, void *at, bool far)
{
	if (at && far)
		CHECK(ist_device_free(p->m.env, IST_MEM_CUDA, p->index, at) == IST_OK);
	else
		free(at);
}

/* The new content, where the source has it. */
static void
renew(struct party *p, uint32_t version)
{
	for (uint32_t i = 0; i < TENSORS && p->job->from != FROM_FILES; i++) {
		uint64_t bytes = shapes[i].rows * p->width[i];
		uint8_t *now = malloc(bytes + 1);

		CHECK(now != NULL);
		fill(now, i, p->column[i], p->width[i], version);
		if (bytes > 0 && is_far(p, i))
			put(p, p->source[i], now, bytes);
		else if (bytes > 0)
			memcpy(p->source[i], now, bytes);
		free(now);
	}
}

static struct ist_tensor
tensor_of(uint32_t i, uint64_t width)
{
	return (struct ist_tensor){ .struct_size = sizeof(struct ist_tensor), .rank = 2, .name = shapes[i].name, .dtype = "U8",
		.shape = { shapes[i].rows, width }, .bytes = shapes[i].rows * width };
}

static void
make_source(struct party *p)
{
	const struct job *j = p->job;
	struct ist_tensor t[TENSORS];
	struct ist_slice s[TENSORS];

	if (j->from == FROM_FILES) {
		const char *folder = p->rank == 1 && j->other[0] ? j->other : j->folder;

		CHECK_ERR(IST_OK, ist_checkpoint_open(p->m.env, folder, NULL, &p->ck, &p->m.err), &p->m.err);
		return;
	}
	for (uint32_t i = 0; i < TENSORS; i++) {
		uint64_t half = shapes[i].columns / 2;

		p->column[i] = j->slices && p->rank == 1 ? half : 0;
		p->width[i] = !j->slices ? shapes[i].columns : p->rank == 1 ? shapes[i].columns - half : half;
		t[i] = tensor_of(i, p->width[i]);
		p->source[i] = make(p, t[i].bytes, is_far(p, i));
		t[i].addr = p->source[i];
		t[i].mem = is_far(p, i) ? IST_MEM_CUDA : IST_MEM_HOST;
		t[i].device = p->index;
		s[i] = (struct ist_slice){ .struct_size = sizeof(s[i]), .whole = { shapes[i].rows, shapes[i].columns }, .begin = { 0, p->column[i] } };
	}
	if (j->slices)
		CHECK_ERR(IST_OK, ist_checkpoint_from_slices(p->m.env, t, s, TENSORS, &p->ck, &p->m.err), &p->m.err);
	else
		CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(p->m.env, t, TENSORS, &p->ck, &p->m.err), &p->m.err);
	renew(p, 1);
}

static void
make_sink(struct party *p)
{
	struct ist_tensor t[TENSORS];
	struct ist_sink_args args = { .struct_size = sizeof(args), .mem = IST_MEM_CUDA, .device = p->index };
	const char *dest = "mem:";

	for (uint32_t i = 0; i < TENSORS && p->job->to == TO_PLACES; i++) {
		t[i] = tensor_of(i, shapes[i].columns);
		t[i].addr = p->place[i] = make(p, t[i].bytes, true);
		t[i].mem = IST_MEM_CUDA;
		t[i].device = p->index;
		args.places = t;
		args.n_places = TENSORS;
	}
	if (p->job->to == TO_FOLDER || p->job->to == TO_NULL || p->job->to == TO_HOST) {
		args.mem = IST_MEM_HOST;
		snprintf(p->path, sizeof(p->path), "%s-%u", p->job->folder, p->rank);
		dest = p->job->to == TO_FOLDER ? p->path : p->job->to == TO_NULL ? "null:" : "mem:";
	}
	CHECK_ERR(IST_OK, ist_sink_open_at(p->m.env, dest, &args, &p->to, &p->m.err), &p->m.err);
}

/* What the sink holds of tensor i. */
static void
look(struct party *p, uint32_t i, uint8_t *out)
{
	struct ist_tensor t = { .struct_size = sizeof(t) };

	if (p->job->to == TO_PLACES) {
		if (bytes_of(i) > 0)
			fetch(p, out, p->place[i], bytes_of(i));
		return;
	}
	CHECK_ERR(IST_OK, ist_sink_tensor(p->to, shapes[i].name, &t, &p->m.err), &p->m.err);
	CHECK(t.bytes == bytes_of(i));
	if (p->job->to == TO_HOST) {
		CHECK(t.mem == IST_MEM_HOST);
		memcpy(out, t.addr, t.bytes);
		return;
	}
	CHECK(t.mem == IST_MEM_CUDA && t.device == p->index);
	fetch(p, out, t.addr, t.bytes);
}

static void
check_folder(struct party *p, uint32_t version)
{
	struct ist_checkpoint *ck;

	CHECK_ERR(IST_OK, ist_checkpoint_open(p->m.env, p->path, NULL, &ck, &p->m.err), &p->m.err);
	for (uint32_t i = 0; i < TENSORS; i++) {
		uint8_t *have = malloc(bytes_of(i) + 1), *want = malloc(bytes_of(i) + 1);
		uint64_t index;

		CHECK(have && want);
		fill(want, i, 0, shapes[i].columns, version);
		CHECK_ERR(IST_OK, ist_checkpoint_find(ck, shapes[i].name, &index, &p->m.err), &p->m.err);
		CHECK_ERR(IST_OK, ist_checkpoint_read(ck, index, 0, bytes_of(i), have, &p->m.err), &p->m.err);
		CHECK(!memcmp(have, want, bytes_of(i)));
		free(have);
		free(want);
	}
	ist_checkpoint_free(ck);
}

static void
check_sink(struct party *p, uint32_t version)
{
	if (!p->to || p->job->to == TO_NULL)
		return;
	if (p->job->to == TO_FOLDER) {
		check_folder(p, version);
		return;
	}
	for (uint32_t i = 0; i < TENSORS; i++) {
		uint8_t *have, *want;

		if (bytes_of(i) == 0)
			continue;
		have = malloc(bytes_of(i));
		want = malloc(bytes_of(i));
		CHECK(have && want);
		fill(want, i, 0, shapes[i].columns, version);
		look(p, i, have);
		CHECK(!memcmp(have, want, bytes_of(i)));
		free(have);
		free(want);
	}
}

static void
join(struct party *p, struct ranks *r)
{
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .mem = p->job->near ? IST_MEM_HOST : IST_MEM_CUDA, .device = p->index };
	struct ist_group_info info = { .struct_size = sizeof(info) };

	member_init(&p->m, IST_TRANSPORT_AUTO);
	if (p->d)
		CHECK_ERR(IST_OK, ist_device_add(p->m.env, far_device_table(p->d), &p->m.err), &p->m.err);
	ist_endpoint_free(p->m.ep);
	CHECK_ERR(IST_OK, ist_endpoint_new(p->m.env, &pa, &p->m.ep, &p->m.err), &p->m.err);
	CHECK_ERR(IST_OK, member_join(&p->m, r->at, "far", p->rank, r->n, 60, 5), &p->m.err);
	CHECK_ERR(IST_OK, ist_group_info(p->m.g, &info, &p->m.err), &p->m.err);
	CHECK(info.mem == (p->job->near ? IST_MEM_HOST : IST_MEM_CUDA) && info.device == (p->job->near ? -1 : p->index));
}

static void
set_up(struct party *p, struct ranks *r)
{
	struct ist_sync_args args = { .struct_size = sizeof(args), .bucket_bytes = BUCKET };

	p->d = is_real() ? NULL : far_device_new(&p->job->opt);
	p->index = p->job->one_device || is_real() ? 0 : (int32_t)(p->rank % 2);
	join(p, r);
	CHECK_ERR(IST_OK, ist_sync_new(p->m.g, &args, &p->sync, &p->m.err), &p->m.err);
	if (is_source(p)) {
		make_source(p);
		CHECK_ERR(IST_OK, ist_sync_source(p->sync, p->ck, 0, 0, &p->m.err), &p->m.err);
	}
	if (!is_source(p) || p->job->sources_take) {
		make_sink(p);
		CHECK_ERR(IST_OK, ist_sync_sink(p->sync, p->to, &p->m.err), &p->m.err);
	}
	CHECK_ERR(p->job->want_gather, ist_sync_gather(p->sync, 0, &p->m.err), &p->m.err);
}

static void
tear_down(struct party *p)
{
	ist_sync_free(p->sync);
	ist_sink_free(p->to);
	ist_checkpoint_free(p->ck);
	for (uint32_t i = 0; i < TENSORS; i++) {
		drop(p, p->source[i], p->source[i] && is_far(p, i));
		drop(p, p->place[i], true);
	}
	member_fini(&p->m);
	if (p->d)
		far_device_free(p->d);
}

static ist_err
update(struct party *p, uint32_t version)
{
	struct ist_report rep = { .struct_size = sizeof(rep) };
	struct ist_update_args args = { .struct_size = sizeof(args), .timeout_ns = p->job->stands_still && version == 2 ? 2 * IST_NS_PER_S : 0 };
	ist_err e;

	if (is_source(p))
		renew(p, version);
	e = ist_sync_update(p->sync, &args, &rep, &p->m.err);
	if (!e)
		CHECK(rep.verified && rep.tensors == TENSORS);
	return e;
}

static int
take_part(struct ranks *r, uint32_t rank, void *arg)
{
	struct party p = { .job = arg, .rank = rank };
	const struct job *j = arg;
	bool last = rank == j->n - 1;

	set_up(&p, r);
	for (uint32_t version = 1; version <= 3 && !j->want_gather; version++) {
		struct far_device_options none, *opt = p.d ? far_device_options(p.d) : &none;
		ist_err want = version == 2 ? j->want : IST_OK;

		opt->copies = version == 2 && last ? j->copies : 0;
		opt->stands_still = version == 2 && last && j->stands_still;
		CHECK_ERR(want, update(&p, version), &p.m.err);
		if (!want) {
			check_sink(&p, j->of_files ? j->of_files : version);
			continue;
		}
		CHECK(error_names(&p.m.err, j->n - 1));
		if (j->stands_still)
			break;
		CHECK(p.m.err.tensor[0]);
	}
	if (p.d)
		far_device_options(p.d)->stands_still = false;
	tear_down(&p);
	return 0;
}

static void
play(struct job j)
{
	struct ranks r;

	if (is_real() && (j.want || j.opt.no_digest || j.opt.no_pin))
		return; /* no real one can be asked for that */
	ranks_init(&r, j.n);
	ranks_start_all(&r, take_part, &j);
	assert_int_equal(ranks_join(&r, 120, 0), 0);
	ranks_fini(&r);
}

/* ---- deaths ---- */

struct killing {
	_Atomic uint32_t ready, again;
};

/* The victim dies in the middle of an update, whenever that is; the others say so, and go on in a group of their own. */
static int
live_on(struct ranks *r, uint32_t rank, void *arg)
{
	struct job j = *(const struct job *)arg;
	struct killing *k = r->shared;
	struct party p = { .job = &j, .rank = rank };
	struct ranks rest = *r;

	set_up(&p, r);
	for (uint32_t version = 1;; version++) {
		ist_err e = update(&p, version);

		atomic_fetch_add(&k->ready, 1);
		if (!e)
			continue;
		CHECK((e == IST_PEER_LOST || e == IST_ABORTED) && error_names(&p.m.err, j.victim));
		break;
	}
	tear_down(&p);
	p = (struct party){ .job = &j, .rank = rank > j.victim ? rank - 1 : rank };
	j.n = rest.n = j.n - 1;
	atomic_fetch_add(&k->again, 1);
	set_up(&p, &rest);
	CHECK_ERR(IST_OK, update(&p, 1), &p.m.err);
	check_sink(&p, 1);
	tear_down(&p);
	return 0;
}

static void
whoever_dies_the_others_go_on(void **unused)
{
	(void)unused;
	for (uint32_t round = 0; round < 6; round++) {
		struct job j = { .n = 4, .n_sources = 2, .from = FROM_BOTH, .to = TO_PLACES, .sources_take = true, .victim = round % 4, .one_device = true };
		struct timespec t = { .tv_nsec = (long)(round * 7919 % 30) * 1000000 };
		struct killing *k;
		struct ranks r;

		if (j.victim < j.n_sources)
			j.n_sources = 2; /* one of them is left */
		ranks_init(&r, j.n);
		k = r.shared;
		ranks_start_all(&r, live_on, &j);
		ranks_await(&k->ready, j.n);
		nanosleep(&t, NULL); /* some moment of some update */
		kill(r.pid[j.victim], SIGKILL);
		assert_int_equal(ranks_join(&r, 120, UINT64_C(1) << j.victim), 0);
		ranks_fini(&r);
	}
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st, (void)type, (void)at;
	return remove(path);
}

static void
remove_tree(const char *path)
{
	assert_int_equal(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static void
from_every_kind_of_source(void **unused)
{
	(void)unused;
	for (int near = 0; near < 2; near++) {
		play((struct job){ .n = 2, .n_sources = 1, .from = FROM_HOST, .to = TO_MEM, .near = near });
		play((struct job){ .n = 3, .n_sources = 1, .from = FROM_FAR, .to = TO_PLACES, .near = near });
		play((struct job){ .n = 3, .n_sources = 2, .from = FROM_BOTH, .to = TO_PLACES, .near = near, .one_device = true });
	}
}

/* The last one of the only file with tensors. */
static void
change_a_byte(const char *folder)
{
	char path[160];
	int fd;
	uint8_t b;
	off_t end;

	snprintf(path, sizeof(path), "%s/model.safetensors", folder);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	end = lseek(fd, -1, SEEK_END);
	assert_true(read(fd, &b, 1) == 1);
	b ^= 1;
	assert_true(pwrite(fd, &b, 1, end) == 1);
	close(fd);
}

static void
to_every_kind_of_sink(void **unused)
{
	struct job j = { .n = 3, .n_sources = 1, .from = FROM_FAR, .to = TO_FOLDER };

	(void)unused;
	for (int near = 0; near < 2; near++) {
		char folder[32] = "/tmp/far-test-XXXXXX";

		if (!near) /* files that can be pinned where they lie */
			strcpy(folder, "/dev/shm/far-test-XXXXXX");
		assert_non_null(mkdtemp(folder));
		snprintf(j.folder, sizeof(j.folder), "%s/m", folder);
		j.near = near;
		j.from = FROM_FAR;
		j.to = TO_FOLDER;
		play(j);
		play((struct job){ .n = 3, .n_sources = 1, .from = FROM_FAR, .to = TO_NULL, .near = near });
		play((struct job){ .n = 3, .n_sources = 1, .from = FROM_FAR, .to = TO_HOST, .near = near });
		/* what the first of them has made is a source of files */
		snprintf(j.folder, sizeof(j.folder), "%s/m-1", folder);
		j.from = FROM_FILES;
		j.to = TO_PLACES;
		j.n_sources = 2;
		j.of_files = 3;
		play(j); /* both have them: their digests are taken first, to see whether they are the same */
		j.n_sources = 1;
		play(j); /* on the way */
		j.opt.no_digest = true;
		play(j);
		j.opt.no_digest = false;
		j.n_sources = 2;
		snprintf(j.other, sizeof(j.other), "%s/m-2", folder);
		play(j);
		change_a_byte(j.other);
		j.want_gather = IST_OVERLAP;
		play(j);
		j.want_gather = IST_OK;
		j.other[0] = 0;
		j.of_files = 0;
		j.n_sources = 1;
		remove_tree(folder);
	}
}

static void
sources_that_take_and_slices(void **unused)
{
	(void)unused;
	for (int near = 0; near < 2; near++) {
		play((struct job){ .n = 3, .n_sources = 2, .from = FROM_BOTH, .to = TO_MEM, .sources_take = true, .near = near });
		play((struct job){ .n = 3, .n_sources = 2, .from = FROM_FAR, .to = TO_MEM, .slices = true, .near = near });
		play((struct job){ .n = 3, .n_sources = 2, .from = FROM_HOST, .to = TO_PLACES, .slices = true, .near = near });
	}
	play((struct job){ .n = 3, .n_sources = 2, .from = FROM_BOTH, .to = TO_MEM, .opt.no_pin = true });
	play((struct job){ .n = 1, .n_sources = 1, .from = FROM_HOST, .to = TO_MEM, .sources_take = true });
}

static void
without_a_kernel(void **unused)
{
	(void)unused;
	play((struct job){ .n = 3, .n_sources = 1, .from = FROM_FAR, .to = TO_PLACES, .opt.no_digest = true });
	play((struct job){ .n = 3, .n_sources = 2, .from = FROM_BOTH, .to = TO_FOLDER, .opt.no_digest = true, .folder = "/tmp/far-test-no-kernel" });
	if (!is_real())
		remove_tree("/tmp/far-test-no-kernel-2");
}

static void
a_device_that_fails(void **unused)
{
	(void)unused;
	for (int near = 0; near < 2; near++)
		for (int32_t copies = 1; copies < 8; copies += 3) {
			play((struct job){ .n = 3, .n_sources = 1, .from = FROM_FAR, .to = TO_PLACES, .near = near, .copies = copies, .want = IST_IO });
			play((struct job){ .n = 3, .n_sources = 1, .from = FROM_FAR, .to = TO_MEM, .near = near, .copies = copies, .want = IST_IO });
		}
}

static void
a_device_that_stands_still(void **unused)
{
	(void)unused;
	play((struct job){ .n = 3, .n_sources = 1, .from = FROM_FAR, .to = TO_MEM, .stands_still = true, .want = IST_TIMEOUT });
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(from_every_kind_of_source),
		cmocka_unit_test(to_every_kind_of_sink),
		cmocka_unit_test(sources_that_take_and_slices),
		cmocka_unit_test(without_a_kernel),
		cmocka_unit_test(a_device_that_fails),
		cmocka_unit_test(a_device_that_stands_still),
		cmocka_unit_test(whoever_dies_the_others_go_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
