/* SPDX-License-Identifier: Apache-2.0
 *
 * full_test.c - sinks that fail at one member alone, between real processes: a folder where no more fits, a consumer that
 * says no, a folder that can't be committed; and a disk that takes longer to sync than a member may stand still. */
#include "ranks.h"

#include "base/clock.h"

#include <isthmus/sync.h>
#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)
#define BYTES (3 * MIB + 17)
enum { TENSORS = 3 };

enum trouble { FOLDER_FULL, PIECE_FAILS, PREPARE_FAILS, COMMIT_FAILS, SYNC_IS_SLOW };

struct job {
	enum trouble how;
	uint32_t on_loss, transport;
	uint64_t who;       /* bit r: it happens to rank r, in its second update */
	double no_progress;
	uint32_t at_piece;
};

struct party {
	struct member m;
	struct ist_sync *sync;
	struct ist_checkpoint *ck;
	struct ist_sink *sink, *folder;
	const struct job *job;
	bool now;           /* it happens in this update */
	uint32_t pieces;
	uint64_t committed;
	char tmp[64], names[TENSORS][16];
	uint8_t *at[TENSORS];
};

static uint8_t
byte_of(uint32_t version, uint32_t tensor, uint64_t i)
{
	return (uint8_t)(version * 7 + tensor * 131 + i % 251 + (i >> 16));
}

/* ---- a sink ---- */

static ist_err
no_space(struct ist_error *err)
{
	snprintf(err->detail, sizeof(err->detail), "nothing fits in here");
	return err->code = IST_NO_SPACE;
}

static ist_err
take_piece(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct party *p = ctx;

	CHECK(index < TENSORS && offset + bytes <= BYTES);
	if (p->now && p->job->how == PIECE_FAILS && ++p->pieces == p->job->at_piece)
		return no_space(err);
	memcpy(p->at[index] + offset, addr, bytes);
	return IST_OK;
}

static ist_err
take_prepare(void *ctx, struct ist_error *err)
{
	const struct party *p = ctx;
	struct timespec t = { .tv_sec = (time_t)(2 * p->job->no_progress + 1) };

	if (p->now && p->job->how == SYNC_IS_SLOW)
		nanosleep(&t, NULL); /* a disk with much to write */
	return p->now && p->job->how == PREPARE_FAILS ? no_space(err) : IST_OK;
}

static int
remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

/* What the folder was being built in goes away before it can be given its name. */
static void
remove_built(const struct party *p)
{
	DIR *dir = opendir(p->tmp);
	struct dirent *d;
	uint32_t removed = 0;

	CHECK(dir);
	while ((d = readdir(dir))) {
		char path[400];

		if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, "..") || !strcmp(d->d_name, "copy"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", p->tmp, d->d_name);
		removed += nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0;
	}
	closedir(dir);
	CHECK(removed > 0);
}

static void
take_commit(void *ctx, uint64_t version)
{
	struct party *p = ctx;

	if (p->now && p->job->how == COMMIT_FAILS)
		remove_built(p);
	p->committed = version;
}

/* ---- a member ---- */

static void
set_up(struct party *p, uint32_t rank)
{
	struct ist_sync_args args = { .struct_size = sizeof(args), .on_loss = p->job->on_loss, .bucket_bytes = 128 << 10 };
	struct ist_sink_ops ops = { .struct_size = sizeof(ops), .ctx = p, .piece = take_piece, .prepare = take_prepare, .commit = take_commit };
	struct ist_tensor t[TENSORS];
	char dest[80];

	CHECK_ERR(IST_OK, ist_sync_new(p->m.g, &args, &p->sync, &p->m.err), &p->m.err);
	for (uint32_t i = 0; i < TENSORS; i++) {
		p->at[i] = malloc(BYTES);
		snprintf(p->names[i], sizeof(p->names[i]), "t.%u", i);
		t[i] = (struct ist_tensor){ .struct_size = sizeof(t[i]), .rank = 1, .name = p->names[i], .dtype = "U8", .shape = { BYTES }, .bytes = BYTES,
			.addr = p->at[i] };
	}
	if (rank == 0) {
		CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(p->m.env, t, TENSORS, &p->ck, &p->m.err), &p->m.err);
		CHECK_ERR(IST_OK, ist_sync_source(p->sync, p->ck, 0, 0, &p->m.err), &p->m.err);
		return;
	}
	CHECK_ERR(IST_OK, ist_sink_custom(p->m.env, &ops, &p->sink, &p->m.err), &p->m.err);
	CHECK_ERR(IST_OK, ist_sync_sink(p->sync, p->sink, &p->m.err), &p->m.err);
	if (!(p->job->who >> rank & 1) || (p->job->how != FOLDER_FULL && p->job->how != COMMIT_FAILS))
		return;
	snprintf(p->tmp, sizeof(p->tmp), "/tmp/ist-full-test-XXXXXX");
	CHECK(mkdtemp(p->tmp));
	snprintf(dest, sizeof(dest), "%s/copy", p->tmp);
	CHECK_ERR(IST_OK, ist_sink_open(p->m.env, dest, 0, &p->folder, &p->m.err), &p->m.err);
	CHECK_ERR(IST_OK, ist_sync_sink(p->sync, p->folder, &p->m.err), &p->m.err);
}

static void
tear_down(struct party *p)
{
	ist_sync_free(p->sync);
	ist_sink_free(p->sink);
	ist_sink_free(p->folder);
	ist_checkpoint_free(p->ck);
	member_fini(&p->m);
	for (uint32_t i = 0; i < TENSORS; i++)
		free(p->at[i]);
	if (p->tmp[0])
		CHECK(nftw(p->tmp, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0);
}

static ist_err
update(struct party *p, uint32_t version, struct ist_report *rep)
{
	for (uint32_t i = 0; p->ck && i < TENSORS; i++)
		for (uint64_t b = 0; b < BYTES; b++)
			p->at[i][b] = byte_of(version, i, b);
	*rep = (struct ist_report){ .struct_size = sizeof(*rep) };
	return ist_sync_update(p->sync, NULL, rep, &p->m.err);
}

static void
check_taken(const struct party *p, uint32_t version)
{
	CHECK(!p->sink || p->committed == version);
	for (uint32_t i = 0; p->sink && i < TENSORS; i++)
		for (uint64_t b = 0; b < BYTES; b++)
			CHECK(p->at[i][b] == byte_of(version, i, b));
}

static void
check_state(struct party *p, uint32_t kind, uint64_t version)
{
	uint32_t state;
	uint64_t v;

	CHECK_ERR(IST_OK, ist_sync_state(p->sync, &state, &v, NULL, &p->m.err), &p->m.err);
	CHECK(state == kind && v == version);
}

/* The second update of the one it happens to. */
static void
meet_trouble(struct party *p, uint32_t rank, struct ist_report *rep)
{
	static const char *const says[] = { "model.safetensors", "nothing fits", "nothing fits", "is committed, but not here" };
	struct rlimit limit = { .rlim_cur = MIB, .rlim_max = RLIM_INFINITY };
	ist_err e;

	p->now = true;
	if (p->job->how == FOLDER_FULL)
		CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur = MIB) && setrlimit(RLIMIT_FSIZE, &limit) == 0);
	e = update(p, 2, rep);
	p->now = false;
	if (p->job->how == SYNC_IS_SLOW) {
		CHECK_ERR(IST_OK, e, &p->m.err);
		return;
	}
	CHECK(e != IST_OK && p->m.err.n_ranks == 1 && p->m.err.ranks[0] == rank);
	CHECK(strstr(p->m.err.detail, says[p->job->how]));
	if (p->job->how == COMMIT_FAILS) {
		check_state(p, IST_STATE_DIRTY, 1);
		return;
	}
	CHECK_ERR(IST_NO_SPACE, e, &p->m.err);
	check_state(p, IST_CLEAN, 1);
}

/* It has no part any more, and is told so at once. */
static void
check_out(struct party *p)
{
	struct ist_report rep;

	CHECK_ERR(IST_EVICTED, ist_sync_gather(p->sync, 0, &p->m.err), &p->m.err);
	CHECK_ERR(IST_EVICTED, update(p, 3, &rep), &p->m.err);
}

static bool
goes_alone(const struct job *j)
{
	return j->how <= PREPARE_FAILS;
}

static int
take_part(struct ranks *r, uint32_t rank, void *arg)
{
	const struct job *j = arg;
	bool hit = j->who >> rank & 1;
	struct ist_report rep;
	struct party p;

	memset(&p, 0, sizeof(p));
	p.job = j;
	member_init(&p.m, j->transport);
	CHECK_ERR(IST_OK, member_join(&p.m, r->at, "full", rank, r->n, 60, j->no_progress), &p.m.err);
	set_up(&p, rank);
	CHECK_ERR(IST_OK, ist_sync_gather(p.sync, 0, &p.m.err), &p.m.err);
	CHECK_ERR(IST_OK, update(&p, 1, &rep), &p.m.err);
	check_taken(&p, 1);
	if (hit) {
		meet_trouble(&p, rank, &rep);
	} else {
		uint32_t n = goes_alone(j) ? (uint32_t)__builtin_popcountll(j->who) : 0;

		CHECK_ERR(IST_OK, update(&p, 2, &rep), &p.m.err);
		CHECK(rep.verified && rep.n_lost == n);
		for (uint32_t i = 0; i < n; i++)
			CHECK(j->who >> rep.lost[i].rank & 1 && rep.lost[i].code == IST_NO_SPACE);
		check_taken(&p, 2);
	}
	if (hit && goes_alone(j)) {
		check_out(&p);
	} else {
		for (uint32_t v = 3; v <= 4; v++) {
			CHECK_ERR(IST_OK, update(&p, v, &rep), &p.m.err);
			check_taken(&p, v);
			check_state(&p, IST_CLEAN, v);
			CHECK_ERR(IST_OK, ist_sync_gather(p.sync, 0, &p.m.err), &p.m.err);
		}
	}
	tear_down(&p);
	return 0;
}

static void
play(uint32_t n, struct job j)
{
	struct ranks r;

	if (j.no_progress == 0)
		j.no_progress = 10;
	ranks_init(&r, n);
	ranks_start_all(&r, take_part, &j);
	assert_int_equal(ranks_join(&r, 120, 0), 0);
	ranks_fini(&r);
}

static void
a_full_sink_goes_alone(void **unused)
{
	(void)unused;
	for (uint32_t transport = IST_TRANSPORT_SHM; transport <= IST_TRANSPORT_TCP; transport++) {
		play(4, (struct job){ .how = FOLDER_FULL, .on_loss = IST_ON_LOSS_CONTINUE, .transport = transport, .who = 1 << 2 });
		play(4, (struct job){ .how = PIECE_FAILS, .on_loss = IST_ON_LOSS_CONTINUE, .transport = transport, .who = 1 << 1, .at_piece = 30 });
		play(4, (struct job){ .how = PREPARE_FAILS, .on_loss = IST_ON_LOSS_CONTINUE, .transport = transport, .who = 1 << 3 });
	}
}

static void
two_at_once(void **unused)
{
	(void)unused;
	for (enum trouble how = FOLDER_FULL; how <= PREPARE_FAILS; how++)
		play(4, (struct job){ .how = how, .on_loss = IST_ON_LOSS_CONTINUE, .who = 1 << 1 | 1 << 3, .at_piece = 1 });
}

static void
what_can_not_be_committed_is_one_members_trouble(void **unused)
{
	(void)unused;
	for (uint32_t on_loss = IST_ON_LOSS_FAIL; on_loss <= IST_ON_LOSS_CONTINUE; on_loss++)
		play(3, (struct job){ .how = COMMIT_FAILS, .on_loss = on_loss, .who = 1 << 2 });
}

static void
a_slow_disk_is_not_frozen(void **unused)
{
	(void)unused;
	for (uint32_t on_loss = IST_ON_LOSS_FAIL; on_loss <= IST_ON_LOSS_CONTINUE; on_loss++)
		play(3, (struct job){ .how = SYNC_IS_SLOW, .on_loss = on_loss, .who = 1 << 1, .no_progress = 2 });
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_sink_goes_alone),
		cmocka_unit_test(two_at_once),
		cmocka_unit_test(what_can_not_be_committed_is_one_members_trouble),
		cmocka_unit_test(a_slow_disk_is_not_frozen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
