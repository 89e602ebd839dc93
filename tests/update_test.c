/* SPDX-License-Identifier: Apache-2.0
 *
 * update_test.c - updates and streams between real processes, over real groups: what sync_test shows over the fake one,
 * once more with what can only be real: transports, and members that are killed. */
#include "ranks.h"

#include "sync/pace.h"

#include <isthmus/sync.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>
#include <cmocka.h>

enum { TENSORS = 12 };
#define MIB (UINT64_C(1) << 20)

struct job {
	uint32_t n_sources, transport, on_loss;
	uint64_t bucket;
	uint32_t victim;       /* is killed in its second update, at this piece; UINT32_MAX: nobody */
	uint32_t at_piece;
	ist_err want;          /* of the second update, on those that are left */
	uint32_t updates;
};

static uint64_t
size_of(uint32_t i)
{
	static const uint64_t sizes[TENSORS] = { 100, 3 * MIB + 5, 65536, 0, 1, 70000, MIB, 8, 2 * MIB, 300, 65537, 4096 };

	return sizes[i];
}

static uint8_t
byte_of(uint32_t version, uint32_t tensor, uint64_t i)
{
	return (uint8_t)(version * 7 + tensor * 131 + i % 251 + (i >> 16));
}

/* ---- a sink that keeps everything, and may kill its process ---- */

struct keep {
	uint8_t *at[TENSORS];
	uint32_t pieces, die_at;
	pid_t kills;           /* at die_at, instead of itself */
	uint64_t committed;
};

static ist_err
keep_piece(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct keep *k = ctx;

	(void)err;
	CHECK(index < TENSORS && offset + bytes <= size_of((uint32_t)index));
	if (k->die_at && ++k->pieces == k->die_at)
		kill(k->kills ? k->kills : getpid(), SIGKILL);
	memcpy(k->at[index] + offset, addr, bytes);
	return IST_OK;
}

static void
keep_commit(void *ctx, uint64_t version)
{
	((struct keep *)ctx)->committed = version;
}

static void
check_kept(const struct keep *k, uint32_t version)
{
	CHECK(k->committed == version);
	for (uint32_t i = 0; i < TENSORS; i++)
		for (uint64_t b = 0; b < size_of(i); b++)
			CHECK(k->at[i][b] == byte_of(version, i, b));
}

/* ---- a member ---- */

struct party {
	struct member m;
	struct ist_sync *sync;
	struct ist_checkpoint *ck;
	struct ist_sink *sink;
	struct keep keep;
	char names[TENSORS][32];
};

static void
set_up(struct party *p, const struct job *j, uint32_t rank)
{
	struct ist_sync_args args = { .struct_size = sizeof(args), .on_loss = j->on_loss, .bucket_bytes = j->bucket };
	struct ist_sink_ops ops = { .struct_size = sizeof(ops), .ctx = &p->keep, .piece = keep_piece, .commit = keep_commit };
	struct ist_tensor t[TENSORS];

	CHECK_ERR(IST_OK, ist_sync_new(p->m.g, &args, &p->sync, &p->m.err), &p->m.err);
	memset(t, 0, sizeof(t));
	for (uint32_t i = 0; i < TENSORS; i++) {
		p->keep.at[i] = malloc(size_of(i) + 1);
		snprintf(p->names[i], sizeof(p->names[i]), "layers.%u.weight", i);
		t[i] = (struct ist_tensor){ .struct_size = sizeof(t[i]), .rank = 1, .name = p->names[i], .dtype = "U8",
			.shape = { size_of(i) }, .bytes = size_of(i), .addr = p->keep.at[i] };
	}
	if (rank < j->n_sources) {
		CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(p->m.env, t, TENSORS, &p->ck, &p->m.err), &p->m.err);
		CHECK_ERR(IST_OK, ist_sync_source(p->sync, p->ck, 0, 0, &p->m.err), &p->m.err);
	} else {
		CHECK_ERR(IST_OK, ist_sink_custom(p->m.env, &ops, &p->sink, &p->m.err), &p->m.err);
		CHECK_ERR(IST_OK, ist_sync_sink(p->sync, p->sink, &p->m.err), &p->m.err);
	}
}

static void
tear_down(struct party *p)
{
	ist_sync_free(p->sync);
	ist_sink_free(p->sink);
	ist_checkpoint_free(p->ck);
	member_fini(&p->m);
	for (uint32_t i = 0; i < TENSORS; i++)
		free(p->keep.at[i]);
}

static void
fill(struct party *p, uint32_t version)
{
	for (uint32_t i = 0; i < TENSORS; i++)
		for (uint64_t b = 0; b < size_of(i); b++)
			p->keep.at[i][b] = byte_of(version, i, b);
}

static int
take_part(struct ranks *r, uint32_t rank, void *arg)
{
	const struct job *j = arg;
	struct party p;
	uint32_t fds = 0;

	memset(&p, 0, sizeof(p));
	member_init(&p.m, j->transport);
	CHECK_ERR(IST_OK, member_join(&p.m, r->at, "update", rank, r->n, 60, 10), &p.m.err);
	set_up(&p, j, rank);
	for (uint32_t v = 1; v <= j->updates; v++) {
		struct ist_report rep = { .struct_size = sizeof(rep) };
		ist_err want = v >= 2 && j->victim < r->n ? j->want : IST_OK;

		if (v == 2 && j->victim == rank)
			p.keep.die_at = j->at_piece;
		if (rank < j->n_sources)
			fill(&p, v);
		if (v == 1)
			CHECK_ERR(IST_OK, ist_sync_gather(p.sync, 0, &p.m.err), &p.m.err);
		CHECK_ERR(want, ist_sync_update(p.sync, NULL, &rep, &p.m.err), &p.m.err);
		if (want) {
			CHECK(p.m.err.n_ranks == 1 && p.m.err.ranks[0] == j->victim);
			break;
		}
		CHECK(rep.version == v && rep.verified && rep.tensors == TENSORS);
		if (v >= 2 && j->victim < r->n)
			CHECK(rep.n_lost == 1 && rep.lost[0].rank == j->victim);
		if (p.sink)
			check_kept(&p.keep, v);
		if (v == 2)
			fds = count_fds();
		if (v > 2)
			CHECK(count_fds() <= fds);
	}
	tear_down(&p);
	return 0;
}

static void
play(uint32_t n, struct job j)
{
	struct ranks r;

	ranks_init(&r, n);
	ranks_start_all(&r, take_part, &j);
	assert_int_equal(ranks_join(&r, 120, j.victim < n ? UINT64_C(1) << j.victim : 0), 0);
	ranks_fini(&r);
}

static void
updates_arrive(void **unused)
{
	(void)unused;
	for (uint32_t transport = IST_TRANSPORT_AUTO; transport <= IST_TRANSPORT_TCP; transport++) {
		play(2, (struct job){ .n_sources = 1, .transport = transport, .bucket = 256 << 10, .victim = UINT32_MAX, .updates = 4 });
		play(5, (struct job){ .n_sources = 2, .transport = transport, .bucket = MIB, .victim = UINT32_MAX, .updates = 4 });
		play(4, (struct job){ .n_sources = 3, .transport = transport, .bucket = 0, .victim = UINT32_MAX, .updates = 3 });
	}
}

static void
a_killed_sink_fails_all(void **unused)
{
	(void)unused;
	for (uint32_t transport = IST_TRANSPORT_SHM; transport <= IST_TRANSPORT_TCP; transport++)
		play(4, (struct job){ .n_sources = 1, .transport = transport, .bucket = 256 << 10, .victim = 2, .at_piece = 9, .want = IST_PEER_LOST, .updates = 2 });
}

static void
a_killed_sink_is_left_behind(void **unused)
{
	(void)unused;
	for (uint32_t transport = IST_TRANSPORT_SHM; transport <= IST_TRANSPORT_TCP; transport++)
		for (uint32_t piece = 1; piece < 12; piece += 5)
			play(4, (struct job){ .n_sources = 1, .transport = transport, .on_loss = IST_ON_LOSS_CONTINUE, .bucket = 256 << 10, .victim = 2,
				.at_piece = piece, .updates = 4 });
}

/* ---- called again ---- */

static int
lose_the_source(struct ranks *r, uint32_t rank, void *arg)
{
	const struct job *j = arg;
	_Atomic int32_t *pid = r->shared;
	struct party p;

	memset(&p, 0, sizeof(p));
	member_init(&p.m, j->transport);
	if (rank == 0)
		atomic_store(pid, (int32_t)getpid());
	CHECK_ERR(IST_OK, member_join(&p.m, r->at, "update", rank, r->n, 60, 10), &p.m.err);
	set_up(&p, j, rank);
	if (rank == 0)
		fill(&p, 1);
	if (rank == 1) {
		p.keep.die_at = j->at_piece;
		p.keep.kills = (pid_t)atomic_load(pid);
	}
	CHECK_ERR(IST_OK, ist_sync_gather(p.sync, 0, &p.m.err), &p.m.err);
	for (int i = 0; i < 3; i++) {
		ist_error_init(&p.m.err);
		CHECK_ERR(IST_PEER_LOST, ist_sync_update(p.sync, NULL, NULL, &p.m.err), &p.m.err);
		CHECK(p.m.err.n_ranks == 1 && p.m.err.ranks[0] == 0);
	}
	CHECK_ERR(IST_EMPTY_UPDATE, ist_sync_gather(p.sync, 0, &p.m.err), &p.m.err);
	CHECK(p.keep.committed == 0);
	tear_down(&p);
	return 0;
}

/* With on_loss continue the sinks are a group that works, in which nobody has the bytes. */
static void
called_again_without_a_source(void **unused)
{
	(void)unused;
	for (uint32_t transport = IST_TRANSPORT_SHM; transport <= IST_TRANSPORT_TCP; transport++)
		for (uint32_t piece = 1; piece < 12; piece += 5) {
			struct job j = { .n_sources = 1, .transport = transport, .on_loss = IST_ON_LOSS_CONTINUE, .bucket = 256 << 10, .at_piece = piece };
			struct ranks r;

			ranks_init(&r, 4);
			ranks_start_all(&r, lose_the_source, &j);
			assert_int_equal(ranks_join(&r, 120, 1), 0);
			ranks_fini(&r);
		}
}

/* ---- a loss before there is a plan ---- */

/* Waits until rank shows that it is in its gather, and what it is. */
static void
await_in_gather(struct party *p, uint32_t size, uint32_t rank)
{
	uint64_t words[8 * IST_MARK_WORDS];
	uint8_t known[8];

	CHECK(size <= 8);
	for (int i = 0;; i++) {
		CHECK(i < 60);
		CHECK_ERR(IST_OK, ist_group_marks(p->m.g, IST_NS_PER_S, words, known, &p->m.err), &p->m.err);
		if (words[(size_t)rank * IST_MARK_WORDS + IST__MARK_WHAT] & IST__ROLE_SHOWN)
			return;
		usleep(10000); /* nothing to wait on: asked again */
	}
}

static int
lose_one_in_gather(struct ranks *r, uint32_t rank, void *arg)
{
	const struct job *j = arg;
	_Atomic int32_t *pid = r->shared;
	struct ist_report rep = { .struct_size = sizeof(rep) };
	struct party p;

	memset(&p, 0, sizeof(p));
	member_init(&p.m, j->transport);
	CHECK_ERR(IST_OK, member_join(&p.m, r->at, "update", rank, r->n, 60, 10), &p.m.err);
	if (rank == j->victim)
		atomic_store(pid, (int32_t)getpid());
	if (rank == 0) { /* a trainer that is late, as they are */
		await_in_gather(&p, r->n, j->victim);
		kill((pid_t)atomic_load(pid), SIGKILL);
	}
	set_up(&p, j, rank);
	CHECK_ERR(j->want, ist_sync_gather(p.sync, 0, &p.m.err), &p.m.err);
	if (j->want) {
		CHECK(p.m.err.n_ranks == 1 && p.m.err.ranks[0] == j->victim);
		tear_down(&p);
		return 0;
	}
	for (uint32_t v = 1; v <= 2; v++) {
		if (p.ck)
			fill(&p, v);
		CHECK_ERR(IST_OK, ist_sync_update(p.sync, NULL, &rep, &p.m.err), &p.m.err);
		CHECK(rep.verified && rep.n_lost == 1 && rep.lost[0].rank == j->victim && rep.lost[0].code == IST_PEER_LOST);
		if (p.sink)
			check_kept(&p.keep, v);
	}
	tear_down(&p);
	return 0;
}

static void
a_sink_killed_before_the_source_came(void **unused)
{
	(void)unused;
	for (uint32_t on_loss = IST_ON_LOSS_FAIL; on_loss <= IST_ON_LOSS_CONTINUE; on_loss++) {
		struct job j = { .n_sources = 1, .on_loss = on_loss, .bucket = 256 << 10, .victim = 2,
			.want = on_loss == IST_ON_LOSS_FAIL ? IST_PEER_LOST : IST_OK };
		struct ranks r;

		ranks_init(&r, 4);
		ranks_start_all(&r, lose_one_in_gather, &j);
		assert_int_equal(ranks_join(&r, 120, UINT64_C(1) << j.victim), 0);
		ranks_fini(&r);
	}
}

/* ---- streams ---- */

static int
push_or_pull(struct ranks *r, uint32_t rank, void *arg)
{
	const struct job *j = arg;
	struct ist_stream_args args = { .struct_size = sizeof(args), .bucket_bytes = j->bucket };
	struct ist_report rep = { .struct_size = sizeof(rep) };
	struct party p;

	memset(&p, 0, sizeof(p));
	member_init(&p.m, j->transport);
	CHECK_ERR(IST_OK, member_join(&p.m, r->at, "stream", rank, r->n, 60, 10), &p.m.err);
	for (uint32_t i = 0; i < TENSORS; i++)
		p.keep.at[i] = malloc(size_of(i) + 1);
	for (uint32_t v = 1; v <= 2; v++) {
		args.version = rank ? 0 : v;
		if (rank == 0) {
			struct ist_push *push;

			fill(&p, v);
			CHECK_ERR(IST_OK, ist_push_begin(p.m.g, &args, &push, &p.m.err), &p.m.err);
			for (uint32_t i = 0; i < TENSORS; i++) {
				char name[32];
				struct ist_tensor t = { .struct_size = sizeof(t), .rank = 1, .name = name, .dtype = "U8", .shape = { size_of(i) },
					.bytes = size_of(i), .addr = p.keep.at[i] };

				snprintf(name, sizeof(name), "layers.%u.weight", i);
				CHECK_ERR(IST_OK, ist_push_tensor(push, &t, &p.m.err), &p.m.err);
			}
			CHECK_ERR(IST_OK, ist_push_end(push, &rep, &p.m.err), &p.m.err);
		} else {
			struct ist_piece piece = { .struct_size = sizeof(piece) };
			struct ist_pull *pull;
			uint32_t more = 1, end = 0, i = 0;

			CHECK_ERR(IST_OK, ist_pull_begin(p.m.g, &args, &pull, &p.m.err), &p.m.err);
			for (;;) {
				CHECK_ERR(IST_OK, ist_pull_next(pull, &piece, &more, &end, &p.m.err), &p.m.err);
				if (!more)
					break;
				CHECK(i < TENSORS && piece.tensor.bytes == size_of(i));
				memcpy(p.keep.at[i] + piece.offset, piece.addr, piece.bytes);
				i += piece.last;
				if (end)
					CHECK_ERR(IST_OK, ist_pull_done(pull, &p.m.err), &p.m.err);
			}
			CHECK_ERR(IST_OK, ist_pull_end(pull, &rep, &p.m.err), &p.m.err);
			p.keep.committed = rep.version;
			check_kept(&p.keep, v);
		}
		CHECK(rep.version == v && rep.tensors == TENSORS);
	}
	for (uint32_t i = 0; i < TENSORS; i++)
		free(p.keep.at[i]);
	member_fini(&p.m);
	return 0;
}

static void
streams_arrive(void **unused)
{
	(void)unused;
	for (uint32_t transport = IST_TRANSPORT_SHM; transport <= IST_TRANSPORT_TCP; transport++)
		for (uint64_t bucket = 128 << 10; bucket <= 8 * MIB; bucket *= 8) {
			struct job j = { .transport = transport, .bucket = bucket };
			struct ranks r;

			ranks_init(&r, 3);
			ranks_start_all(&r, push_or_pull, &j);
			assert_int_equal(ranks_join(&r, 120, 0), 0);
			ranks_fini(&r);
		}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(updates_arrive),
		cmocka_unit_test(streams_arrive),
		cmocka_unit_test(a_killed_sink_fails_all),
		cmocka_unit_test(a_killed_sink_is_left_behind),
		cmocka_unit_test(called_again_without_a_source),
		cmocka_unit_test(a_sink_killed_before_the_source_came),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
