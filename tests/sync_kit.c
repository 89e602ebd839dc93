/* SPDX-License-Identifier: Apache-2.0 */
#include "sync_kit.h"

#include <ftw.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- what there is ---- */

static uint64_t
count_of(const struct kit *k)
{
	return k->tiny ? k->tiny : KIT_TENSORS;
}

/* The last is an alias of the one before it. */
static bool
is_alias(const struct kit *k, uint64_t i)
{
	return !k->tiny && i == KIT_TENSORS - 1;
}

static uint64_t
size_of(const struct kit *k, uint64_t i)
{
	static const uint64_t sizes[KIT_TENSORS] = { 0, 100, 65536, 65537, 5 * MIB + 3, 7, 300000, 200, 0, 65536 * 3, 9, 2 * MIB, 1, 64, 63,
		100000, 40000, 40000, 40000, 5000, 5000 };

	if (k->tiny)
		return k->each ? k->each : 4096;
	return k->small && sizes[i] > MIB ? sizes[i] / 4 : sizes[i];
}

static uint8_t
byte_of(const struct kit *k, uint64_t tensor, uint64_t i)
{
	uint64_t seed = is_alias(k, tensor) ? tensor - 1 : tensor;

	return (uint8_t)(k->content * 7 + seed * 131 + i % 251 + (i >> 16) + (k->change_one == tensor && i == 70000));
}

uint64_t
kit_bytes(const struct kit *k)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < count_of(k); i++)
		sum += is_alias(k, i) ? 0 : size_of(k, i);
	return sum;
}

uint64_t
kit_nonempty(const struct kit *k)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < count_of(k); i++)
		n += size_of(k, i) > 0;
	return n;
}

/* ---- sources ---- */

static void
own_range(struct member *m)
{
	struct kit *k = m->kit;
	uint32_t me = (uint32_t)(m - k->members);
	uint64_t all = count_of(k);

	m->first = k->disjoint ? all * me / k->n_sources : 0;
	m->n = (k->disjoint ? all * (me + 1) / k->n_sources : all) - m->first;
}

static void
make_memory(struct hand *h, struct member *m)
{
	struct kit *k = m->kit;
	struct ist_tensor *t;

	own_range(m);
	t = calloc(m->n, sizeof(*t));
	m->tensors = calloc(m->n, sizeof(*m->tensors));
	m->names = calloc(m->n, sizeof(*m->names));
	for (uint64_t i = 0; i < m->n; i++) {
		uint64_t bytes = size_of(k, m->first + i);

		snprintf(m->names[i], sizeof(m->names[i]), "t.%llu", (unsigned long long)(m->first + i));
		m->tensors[i] = is_alias(k, m->first + i) ? m->tensors[i - 1] : malloc(bytes + 1);
		t[i] = (struct ist_tensor){
			.struct_size = sizeof(*t),
			.rank = m->odd_shape && bytes == 0 ? 2 : 1,
			.name = m->names[i],
			.dtype = "U8",
			.shape = { bytes, 3 },
			.bytes = bytes,
			.addr = m->tensors[i],
		};
	}
	CHECK_CODE(ist_checkpoint_from_tensors(h->env, t, m->n, &m->ck, &m->error), IST_OK, &m->error);
	free(t);
}

static void
fill_memory(struct member *m)
{
	for (uint64_t i = 0; m->tensors && i < m->n; i++)
		for (uint64_t b = 0; b < size_of(m->kit, m->first + i); b++)
			m->tensors[i][b] = byte_of(m->kit, m->first + i, b);
}

static void
drop_memory(struct member *m)
{
	for (uint64_t i = 0; m->tensors && i < m->n; i++)
		if (!is_alias(m->kit, m->first + i))
			free(m->tensors[i]);
	free(m->tensors);
	free(m->names);
	m->tensors = NULL;
	m->names = NULL;
}

/* ---- a sink of our own ---- */

static ist_err
disk_full(struct ist_error *err)
{
	err->code = IST_NO_SPACE;
	snprintf(err->detail, sizeof(err->detail), "disk full");
	return IST_NO_SPACE;
}

static void
drop_taken(struct member *m)
{
	for (uint64_t i = 0; m->tensors && i < m->n_taken; i++)
		free(m->tensors[i]);
	free(m->tensors);
	free(m->filled);
	m->tensors = NULL;
	m->filled = NULL;
}

static ist_err
take_begin(void *ctx, const struct ist_tensor *tensors, uint64_t n, uint64_t version, struct ist_error *err)
{
	struct member *m = ctx;

	CHECK(version > 0 && n == count_of(m->kit));
	if (m->fail == AT_BEGIN)
		return disk_full(err);
	if (m->n_taken == 0) {
		m->n_taken = n;
		m->tensors = calloc(n, sizeof(*m->tensors));
		m->filled = calloc(n, sizeof(*m->filled));
		for (uint64_t i = 0; i < n; i++)
			m->tensors[i] = calloc(1, tensors[i].bytes + 1);
	}
	m->left = 0;
	m->last_index = 0;
	m->in_order = true;
	for (uint64_t i = 0; i < n; i++) {
		char name[32];

		snprintf(name, sizeof(name), "t.%llu", (unsigned long long)i);
		m->in_order = m->in_order && !strcmp(tensors[i].name, name);
		m->filled[i] = 0;
		m->left += tensors[i].bytes;
	}
	return IST_OK;
}

static ist_err
take_piece(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct member *m = ctx;
	struct timespec t = { .tv_nsec = (long)m->piece_ns };

	if (m->piece_ns)
		nanosleep(&t, NULL);
	CHECK(index < m->n_taken && offset + bytes <= size_of(m->kit, index));
	if (m->fail == AT_FIRST_PIECE)
		return disk_full(err);
	m->in_order = m->in_order && index >= m->last_index && offset == m->filled[index];
	m->last_index = index;
	m->filled[index] += bytes;
	CHECK(m->filled[index] <= size_of(m->kit, index)); /* nothing twice */
	memcpy(m->tensors[index] + offset, addr, bytes);
	m->left -= bytes;
	return m->left == 0 && m->fail == AT_LAST_PIECE ? disk_full(err) : IST_OK;
}

static ist_err
take_prepare(void *ctx, struct ist_error *err)
{
	struct member *m = ctx;

	CHECK(m->left == 0);
	return m->fail == AT_PREPARE ? disk_full(err) : IST_OK;
}

static void
take_commit(void *ctx, uint64_t version)
{
	struct member *m = ctx;

	CHECK(version > 0);
	m->commits++;
}

static void
take_abort(void *ctx, uint32_t dirty)
{
	struct member *m = ctx;

	CHECK(dirty == 0 || m->in_place);
	m->aborts++;
}

/* ---- a source's own ---- */

static ist_err
watch_begin(void *ctx, const struct ist_tensor *tensors, uint64_t n, uint64_t version, struct ist_error *err)
{
	struct member *m = ctx;

	(void)tensors, (void)version;
	m->left = n;
	return m->fail == AT_BEGIN ? disk_full(err) : IST_OK;
}

static ist_err
watch_piece(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	const struct member *m = ctx;

	(void)index, (void)offset, (void)addr, (void)bytes;
	return m->fail == AT_FIRST_PIECE ? disk_full(err) : IST_OK;
}

static ist_err
watch_prepare(void *ctx, struct ist_error *err)
{
	const struct member *m = ctx;

	return m->fail == AT_PREPARE ? disk_full(err) : IST_OK;
}

static void
open_own_sink(struct hand *h, struct member *m)
{
	struct ist_sink_ops ops = { .struct_size = sizeof(ops), .ctx = m, .begin = watch_begin, .piece = watch_piece, .prepare = watch_prepare,
		.commit = take_commit, .abort = take_abort };

	CHECK_CODE(ist_sink_custom(h->env, &ops, &m->to, &m->error), IST_OK, &m->error);
	CHECK_CODE(ist_sync_sink(m->sync, m->to, &m->error), IST_OK, &m->error);
}

/* ---- a member's way ---- */

static void
open_source(struct hand *h, struct member *m)
{
	struct kit *k = m->kit;
	char path[256];

	if (k->from_folder) {
		snprintf(path, sizeof(path), "%s/old-%u", k->tmp, k->own_folders && h->rank > 0 ? h->rank : 1);
		CHECK_CODE(ist_checkpoint_open(h->env, path, NULL, &m->ck, &m->error), IST_OK, &m->error);
	} else {
		make_memory(h, m);
	}
	CHECK_CODE(ist_sync_source(m->sync, m->ck, m->part, m->parts, &m->error), IST_OK, &m->error);
}

static void
open_sink(struct hand *h, struct member *m)
{
	struct kit *k = m->kit;
	struct ist_sink_ops ops = {
		.struct_size = sizeof(ops),
		.ctx = m,
		.begin = take_begin,
		.piece = take_piece,
		.prepare = take_prepare,
		.commit = take_commit,
		.abort = take_abort,
		.in_place = m->in_place,
	};
	char dest[256] = "mem:";

	if (k->null_sinks)
		snprintf(dest, sizeof(dest), "null:");
	if (k->folders)
		snprintf(dest, sizeof(dest), "%s/%s-%u", k->tmp, k->from_folder ? "new" : "old", h->rank);
	if (m->custom)
		CHECK_CODE(ist_sink_custom(h->env, &ops, &m->to, &m->error), IST_OK, &m->error);
	else
		CHECK_CODE(ist_sink_open(h->env, dest, 0, &m->to, &m->error), IST_OK, &m->error);
	CHECK_CODE(ist_sync_sink(m->sync, m->to, &m->error), IST_OK, &m->error);
}

static void
set_up(struct hand *h, struct member *m)
{
	struct kit *k = m->kit;
	struct ist_sync_args args = {
		.struct_size = sizeof(args),
		.on_loss = m->on_loss ? m->on_loss : k->on_loss,
		.bucket_bytes = m->bucket ? m->bucket : k->bucket,
		.slots = k->slots,
	};

	CHECK_CODE(ist_sync_new(h->group, &args, &m->sync, &m->error), IST_OK, &m->error);
	if (m->source)
		open_source(h, m);
	if (m->sink)
		open_sink(h, m);
	if (m->own_sink)
		open_own_sink(h, m);
}

static void
run_member(struct hand *h, void *arg)
{
	struct kit *k = arg;
	struct member *m = &k->members[h->rank];
	struct ist_update_args args = { .struct_size = sizeof(args), .version = k->wish, .force = k->force, .label = k->label };

	if (k->other_wish && h->rank + 1 == k->n)
		args.version = k->other_wish;
	ist_error_init(&m->error);
	if (!m->sync)
		set_up(h, m);
	if (m->source)
		fill_memory(m);
	if (m->register_again) {
		struct ist_sink *extra;

		m->register_again = false;
		CHECK(ist_sink_open(h->env, "null:", 0, &extra, NULL) == IST_OK);
		CHECK(ist_sync_sink(m->sync, extra, NULL) == IST_OK);
		h->keep = extra;
	}
	m->report = (struct ist_report){ .struct_size = sizeof(m->report) };
	m->code = IST_OK;
	if (!k->no_gather)
		m->code = ist_sync_gather(m->sync, 0, &m->error);
	if (!m->code)
		m->code = ist_sync_update(m->sync, &args, &m->report, &m->error);
	CHECK(ist_sync_state(m->sync, &m->state, &m->version, &m->to_, NULL) == IST_OK);
	if (!(k->dead_ok >> h->rank & 1))
		CHECK_CODE(m->code, k->want, &m->error);
}

void
kit_run(struct kit *k, ist_err want)
{
	k->want = want;
	crew_run(&k->crew, run_member, k);
}

/* ---- afterwards ---- */

static const uint8_t *
taken_at(struct member *m, uint64_t i)
{
	struct ist_tensor t = { .struct_size = sizeof(t) };
	char name[32];

	if (m->custom)
		return m->tensors[i];
	snprintf(name, sizeof(name), "t.%llu", (unsigned long long)i);
	CHECK_CODE(ist_sink_tensor(m->to, name, &t, &m->error), IST_OK, &m->error);
	CHECK(t.bytes == size_of(m->kit, i));
	return t.addr;
}

void
kit_check_sinks(struct kit *k)
{
	uint32_t checked = 0;

	for (uint32_t r = 0; r < k->n; r++) {
		struct member *m = &k->members[r];

		if (!m->sink || (k->dead_ok >> r & 1))
			continue;
		checked++;
		for (uint64_t i = 0; i < count_of(k); i++) {
			const uint8_t *at = taken_at(m, i);

			for (uint64_t b = 0; b < size_of(k, i); b++)
				if (at[b] != byte_of(k, i, b)) {
					fprintf(stderr, "rank %u tensor %llu byte %llu\n", r, (unsigned long long)i, (unsigned long long)b);
					CHECK(at[b] == byte_of(k, i, b));
				}
		}
	}
	CHECK(checked > 0);
}

void
kit_offer_from(struct kit *k, uint32_t rank, ist_err want)
{
	struct ist_tensor t = { .struct_size = sizeof(t), .name = "x", .dtype = "U8", .rank = 1, .shape = { 1 }, .bytes = 1, .addr = "x" };
	struct ist_checkpoint *ck;
	struct ist_error e;

	ist_error_init(&e);
	CHECK_CODE(ist_checkpoint_from_tensors(k->crew.hands[rank].env, &t, 1, &ck, &e), IST_OK, &e);
	CHECK_CODE(ist_sync_source(k->members[rank].sync, ck, 0, 0, &e), want, &e);
	if (!want)
		CHECK_CODE(ist_sync_unregister(k->members[rank].sync, ck, &e), IST_OK, &e);
	ist_checkpoint_free(ck);
}

void
kit_new(struct kit *k, uint32_t n, uint32_t n_sources)
{
	memset(k, 0, sizeof(*k));
	crew_new(&k->crew, n);
	k->n = n;
	k->n_sources = n_sources;
	k->content = 1;
	for (uint32_t i = 0; i < n; i++) {
		struct member *m = &k->members[i];

		m->kit = k;
		m->source = i < n_sources;
		m->sink = !m->source;
	}
}

static void
drop_member(struct hand *h, struct member *m)
{
	ist_sync_free(m->sync);
	ist_sink_free(m->to);
	ist_sink_free(h->keep);
	ist_checkpoint_free(m->ck);
	if (m->custom)
		drop_taken(m);
	else
		drop_memory(m);
	m->sync = NULL;
	m->to = NULL;
	m->ck = NULL;
	h->keep = NULL;
}

static int
remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

void
kit_free(struct kit *k)
{
	for (uint32_t i = 0; i < k->n; i++)
		drop_member(&k->crew.hands[i], &k->members[i]);
	crew_free(&k->crew);
	if (k->tmp[0])
		nftw(k->tmp, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- folders ---- */

void
kit_folders(struct kit *k)
{
	snprintf(k->tmp, sizeof(k->tmp), "/tmp/ist-sync-test-XXXXXX");
	CHECK(mkdtemp(k->tmp));
	k->folders = true;
}

void
kit_from_folder(struct kit *k, uint32_t n_sources)
{
	for (uint32_t i = 0; i < k->n; i++) {
		drop_member(&k->crew.hands[i], &k->members[i]);
		k->members[i].source = i < n_sources;
		k->members[i].sink = !k->members[i].source;
	}
	k->from_folder = true;
	k->n_sources = n_sources;
}

bool
kit_same_file(const char *a, const char *b)
{
	FILE *x = fopen(a, "rb"), *y = fopen(b, "rb");
	bool same = x && y;
	int c = 0;

	while (same && c != EOF) {
		c = getc(x);
		same = c == getc(y);
	}
	if (x)
		fclose(x);
	if (y)
		fclose(y);
	return same;
}

const char *
kit_digest_of(struct kit *k, const char *path)
{
	struct ist_checkpoint *ck;
	struct ist_error e;

	ist_error_init(&e);
	CHECK_CODE(ist_checkpoint_open(k->crew.hands[0].env, path, NULL, &ck, &e), IST_OK, &e);
	CHECK_CODE(ist_checkpoint_digest(ck, IST_WHOLE, k->digest, &e), IST_OK, &e);
	ist_checkpoint_free(ck);
	return k->digest;
}

void
kit_flip_at_end(const char *path, long before)
{
	FILE *f = fopen(path, "r+b");
	int c;

	CHECK(f && fseek(f, -before, SEEK_END) == 0);
	c = getc(f);
	CHECK(fseek(f, -before, SEEK_END) == 0);
	CHECK(putc(c ^ 1, f) != EOF);
	CHECK(fclose(f) == 0);
}
