/* SPDX-License-Identifier: Apache-2.0
 *
 * sync_test.c - whole updates over the fake group: roles, agreement, proof, transactions, versions. Losses are in
 * sync_loss_test.c. */
#include "sync_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- the plain way ---- */

static void
arrives(uint64_t bucket, bool plain, uint32_t n_sources)
{
	struct kit k;

	kit_new(&k, 5, n_sources);
	k.bucket = bucket;
	fake_world_faults(k.crew.world)->no_memory = plain;
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	for (uint32_t i = 0; i < 5; i++) {
		const struct member *m = &k.members[i];

		assert_int_equal(m->report.version, 1);
		assert_int_equal(m->report.tensors, KIT_TENSORS);
		assert_int_equal(m->report.bytes, kit_bytes(&k));
		assert_int_equal(m->report.verified, 1);
		assert_int_equal(m->report.n_lost, 0);
		assert_string_equal(m->report.digest, k.members[0].report.digest);
		assert_int_equal(m->state, IST_CLEAN);
		assert_int_equal(m->version, 1);
		assert_string_equal(fake_world_told(k.crew.world, i), "UPDATING 0->1;CLEAN 1;");
	}
	k.content = 2;
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	assert_int_equal(k.members[4].report.version, 2);
	assert_int_equal(k.members[4].report.known_before, 1);
	assert_int_equal(k.members[4].report.changed, kit_nonempty(&k));
	kit_free(&k);
}

static void
every_bucket_size_and_number_of_sources(void **unused)
{
	(void)unused;
	for (uint32_t n = 1; n <= 3; n++)
		for (int plain = 0; plain < 2; plain++) {
			arrives(64 << 10, plain, n);
			arrives(MIB + 4096, plain, n);
			arrives(0, plain, n);
		}
}

static void
a_member_may_be_both_or_neither(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 4, 2);
	k.members[1].sink = true;  /* a source too */
	k.members[2].sink = false; /* idle */
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	k.content = 2;
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	kit_free(&k);
}

/* Sources that only give and who is idle get none of the bytes, a source with a sink gets the others'; where a group can leave
 * nobody out all get them, and the outcome is the same. */
static void
buckets_go_to_who_takes_them(void **unused)
{
	(void)unused;
	for (int all_take = 0; all_take < 2; all_take++) {
		struct kit k;
		uint64_t bytes;

		kit_new(&k, 7, 4);
		fake_world_faults(k.crew.world)->all_take = all_take;
		k.bucket = 256 << 10;
		k.members[3].sink = true;  /* gives and takes */
		k.members[4].sink = false; /* idle */
		kit_run(&k, IST_OK);
		kit_check_sinks(&k);
		bytes = fake_world_bytes(k.crew.world);
		if (all_take) {
			assert_int_equal(fake_world_taken(k.crew.world), 6 * bytes);
		} else {
			assert_true(fake_world_taken(k.crew.world) < 3 * bytes); /* three sinks, of which one has a share of its own */
			assert_true(fake_world_taken(k.crew.world) > 2 * bytes);
		}
		k.content = 2;
		kit_run(&k, IST_OK);
		kit_check_sinks(&k);
		kit_free(&k);
	}
}

static void
alone_with_itself(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 1, 1);
	k.members[0].sink = true;
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	kit_free(&k);
}

static void
disjoint_sources_make_one(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 4, 2);
	k.disjoint = true;
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	assert_int_equal(k.members[3].report.tensors, KIT_TENSORS);
	assert_int_equal(k.members[3].report.bytes, kit_bytes(&k));
	kit_free(&k);
}

static void
parts_by_hand(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 4, 2);
	k.members[0].part = 1;
	k.members[0].parts = k.members[1].parts = 2;
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	kit_free(&k);
}

static void
smallest_bucket_wins(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 3, 1);
	k.members[0].bucket = 64 * MIB;
	k.members[1].bucket = 2 * MIB;
	k.members[2].bucket = UINT64_C(1) << 30;
	kit_run(&k, IST_OK);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(k.members[i].report.bucket_bytes, 2 * MIB);
	kit_free(&k);
}

/* ---- what can't go on ---- */

static void
errors_are_alike_on_all(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 3, 0);
	kit_run(&k, IST_EMPTY_UPDATE);
	kit_free(&k);

	kit_new(&k, 3, 3);
	kit_run(&k, IST_NO_RECEIVERS);
	kit_free(&k);

	kit_new(&k, 3, 1);
	k.members[2].on_loss = IST_ON_LOSS_CONTINUE;
	kit_run(&k, IST_MISMATCH);
	assert_int_equal(k.members[0].error.ranks[0], 2);
	kit_free(&k);

	kit_new(&k, 3, 2);
	k.members[0].parts = k.members[1].parts = 3;
	k.members[1].part = 2;
	kit_run(&k, IST_INCOMPLETE);
	assert_non_null(strstr(k.members[2].error.detail, "part 1/3"));
	kit_free(&k);

	kit_new(&k, 3, 2);
	k.members[1].parts = 2;
	kit_run(&k, IST_MISMATCH);
	kit_free(&k);

	/* the same names, another shape */
	kit_new(&k, 3, 2);
	k.members[1].odd_shape = true;
	kit_run(&k, IST_OVERLAP);
	for (uint32_t i = 0; i < 3; i++) {
		assert_string_equal(k.members[i].error.tensor, "t.0");
		assert_string_equal(k.members[i].error.detail, k.members[0].error.detail);
	}
	kit_free(&k);
}

static void
registered_since_the_gather(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 3, 1);
	kit_run(&k, IST_OK);
	k.members[2].register_again = true;
	k.no_gather = true;
	kit_run(&k, IST_BAD_STATE);
	assert_int_equal(k.members[0].error.ranks[0], 2);
	k.no_gather = false;
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	kit_free(&k);
}

/* ---- proof ---- */

static void
a_changed_byte_is_named(void **unused)
{
	(void)unused;
	for (int plain = 0; plain < 2; plain++) {
		struct kit k;

		kit_new(&k, 4, 1);
		k.bucket = 256 << 10;
		kit_run(&k, IST_OK);
		k.content = 2;
		fake_world_calm(k.crew.world);
		fake_world_faults(k.crew.world)->no_memory = plain;
		fake_world_faults(k.crew.world)->flip_rank = 2;
		fake_world_faults(k.crew.world)->flip_at = 3;
		fake_world_faults(k.crew.world)->flip_byte = 70000;
		kit_run(&k, IST_DIGEST);
		for (uint32_t i = 0; i < 4; i++) {
			const struct member *m = &k.members[i];

			assert_int_equal(m->error.n_ranks, 1);
			assert_int_equal(m->error.ranks[0], 2);
			assert_string_equal(m->error.tensor, "t.4"); /* the large one */
			assert_true(m->error.bucket >= 3 && m->error.bucket != IST_NO_BUCKET);
			assert_int_equal(m->state, IST_CLEAN);
			assert_int_equal(m->version, 1);
		}
		/* nobody has the new one; the same version again, whole */
		k.content = 1;
		kit_check_sinks(&k);
		k.content = 2;
		k.wish = 2;
		fake_world_calm(k.crew.world);
		kit_run(&k, IST_OK);
		kit_check_sinks(&k);
		assert_int_equal(fake_world_bytes(k.crew.world) >= kit_bytes(&k), 1);
		kit_free(&k);
	}
}

static void
a_backend_that_moves_nothing(void **unused)
{
	(void)unused;
	for (int plain = 0; plain < 2; plain++) {
		struct kit k;

		kit_new(&k, 3, 1);
		fake_world_faults(k.crew.world)->no_memory = plain;
		k.bucket = 8 * MIB; /* few buckets: each lies again where it lay before */
		kit_run(&k, IST_OK);
		fake_world_faults(k.crew.world)->do_nothing = true;
		for (int i = 0; i < 2; i++) {
			kit_run(&k, IST_DIGEST);
			assert_string_equal(k.members[0].error.tensor, "t.1"); /* the first with bytes */
		}
		kit_free(&k);
	}
}

/* ---- sinks that fail ---- */

static void
sink_says(enum when when, bool in_place, uint32_t want_state)
{
	struct kit k;
	const struct member *b;

	kit_new(&k, 4, 1);
	k.bucket = 256 << 10;
	k.members[2].custom = k.members[3].custom = true;
	k.members[3].in_place = in_place;
	kit_run(&k, IST_OK);
	kit_check_sinks(&k);
	k.content = 2;
	k.members[3].fail = when;
	kit_run(&k, IST_NO_SPACE);
	for (uint32_t i = 0; i < 4; i++) {
		assert_string_equal(k.members[i].error.detail, when == AT_PREPARE ? "rank 3: disk full" : "disk full"); /* a vote is told by name */
		assert_int_equal(k.members[i].error.n_ranks, 1);
		assert_int_equal(k.members[i].error.ranks[0], 3);
		assert_int_equal(k.members[i].version, 1);
		if (i < 3)
			assert_int_equal(k.members[i].state, IST_CLEAN);
	}
	b = &k.members[3];
	assert_int_equal(b->state, want_state);
	if (want_state == IST_STATE_DIRTY)
		assert_int_equal(b->to_, 2);
	if (when == AT_LAST_PIECE)
		assert_true(b->error.bucket == k.members[0].error.bucket && b->error.bucket != IST_NO_BUCKET);
	assert_int_equal(k.members[2].commits, 1);
	/* the same version again */
	k.members[3].fail = NEVER;
	k.wish = 2;
	fake_world_calm(k.crew.world);
	kit_run(&k, IST_OK);
	assert_true(fake_world_bytes(k.crew.world) >= kit_bytes(&k));
	kit_check_sinks(&k);
	assert_int_equal(k.members[3].state, IST_CLEAN);
	assert_int_equal(k.members[3].version, 2);
	kit_free(&k);
}

static void
a_sink_error_reaches_all(void **unused)
{
	(void)unused;
	sink_says(AT_BEGIN, true, IST_CLEAN);
	sink_says(AT_FIRST_PIECE, false, IST_CLEAN);
	sink_says(AT_FIRST_PIECE, true, IST_STATE_DIRTY);
	sink_says(AT_LAST_PIECE, false, IST_CLEAN);
	sink_says(AT_LAST_PIECE, true, IST_STATE_DIRTY);
	sink_says(AT_PREPARE, false, IST_CLEAN);
	sink_says(AT_PREPARE, true, IST_STATE_DIRTY);
}

static void
all_stop_long_before_the_end(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 3, 1);
	k.bucket = 64 << 10;
	k.members[2].custom = true;
	k.members[2].fail = AT_FIRST_PIECE;
	kit_run(&k, IST_NO_SPACE);
	assert_true(fake_world_bytes(k.crew.world) < kit_bytes(&k) / 3);
	kit_free(&k);
}

static void
a_dirty_member_offers_nothing(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 3, 1);
	k.members[2].custom = k.members[2].in_place = true;
	kit_run(&k, IST_OK);
	k.members[2].fail = AT_LAST_PIECE;
	kit_run(&k, IST_NO_SPACE);
	assert_non_null(strstr(fake_world_told(k.crew.world, 2), "CLEAN 1;UPDATING 1->2;DIRTY 1->2;"));
	kit_offer_from(&k, 2, IST_DIRTY);
	k.members[2].fail = NEVER;
	kit_run(&k, IST_OK);
	kit_offer_from(&k, 2, IST_OK);
	kit_free(&k);
}

static void
the_order_at_a_sink_is_the_manifests(void **unused)
{
	(void)unused;
	for (uint32_t n = 1; n <= 3; n++) {
		uint64_t buckets[] = { 64 << 10, MIB, 128 * MIB };

		for (int i = 0; i < 3; i++) {
			struct kit k;

			kit_new(&k, 4, n);
			k.bucket = buckets[i];
			k.members[3].custom = true;
			kit_run(&k, IST_OK);
			assert_true(k.members[3].in_order);
			kit_free(&k);
		}
	}
}

/* ---- versions ---- */

static void
versions_go_up(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 3, 1);
	k.wish = 7;
	k.label = "step-700";
	kit_run(&k, IST_OK);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(k.members[i].report.version, 7);
		assert_string_equal(k.members[i].report.label, "step-700");
	}
	k.content = 2;
	kit_run(&k, IST_OLD_VERSION);
	k.wish = 3;
	kit_run(&k, IST_OLD_VERSION);
	assert_non_null(strstr(k.members[0].error.detail, "version 7"));
	k.content = 1;
	kit_check_sinks(&k);
	k.content = 2;
	k.force = 1;
	kit_run(&k, IST_OK);
	assert_int_equal(k.members[1].version, 3);
	assert_non_null(strstr(k.crew.hands[1].log, "forced"));
	kit_check_sinks(&k);
	k.force = 0;
	k.wish = 0;
	kit_run(&k, IST_OK);
	assert_int_equal(k.members[1].version, 4);
	k.label = "12345678901234567890123456789012345678901234567890123456789012345";
	kit_run(&k, IST_INVALID_ARGUMENT);
	kit_free(&k);
}

/* One wish is all members', two are nobody's: the sink that waits for version 4 must not take version 3 for it. */
static void
different_wishes_are_told(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 3, 1);
	k.other_wish = 4;
	kit_run(&k, IST_OK);
	assert_int_equal(k.members[0].report.version, 4);
	k.wish = 5;
	k.other_wish = 6;
	k.content = 2;
	kit_run(&k, IST_MISMATCH);
	for (uint32_t i = 0; i < 3; i++) {
		const struct ist_error *err = &k.members[i].error;

		assert_string_equal(err->detail, "rank 0 asks for version 5, rank 2 for version 6");
		assert_true(err->n_ranks == 2 && err->ranks[0] == 0 && err->ranks[1] == 2);
		assert_int_equal(k.members[i].state, IST_CLEAN);
		assert_int_equal(k.members[i].version, 4);
	}
	k.content = 1;
	kit_check_sinks(&k);
	k.other_wish = 0;
	k.content = 2;
	kit_run(&k, IST_OK);
	assert_int_equal(k.members[2].report.version, 5);
	kit_check_sinks(&k);
	kit_free(&k);
}

static void
a_version_that_changes_nothing_is_told(void **unused)
{
	struct kit k;
	char digest[IST_DIGEST_TEXT];

	(void)unused;
	kit_new(&k, 4, 2);
	kit_run(&k, IST_OK);
	assert_int_equal(k.members[3].report.known_before, 0);
	assert_int_equal(k.members[3].report.changed, KIT_TENSORS);
	memcpy(digest, k.members[3].report.digest, sizeof(digest));
	kit_run(&k, IST_OK);
	assert_string_equal(k.members[3].report.digest, digest);
	assert_int_equal(k.members[3].report.changed, 0);
	assert_string_equal(k.crew.hands[0].log, "version 2 equals version 1\n");
	for (uint32_t i = 1; i < 4; i++)
		assert_string_equal(k.crew.hands[i].log, "");
	k.change_one = 6;
	kit_run(&k, IST_OK);
	assert_int_equal(k.members[3].report.changed, 1);
	kit_check_sinks(&k);
	kit_free(&k);
}

/* ---- costs ---- */

static void
nothing_is_allocated_after_the_first(void **unused)
{
	struct kit k;
	uint64_t before[4];

	(void)unused;
	kit_new(&k, 4, 2);
	k.null_sinks = true;
	kit_run(&k, IST_OK);
	k.no_gather = true;
	kit_run(&k, IST_OK);
	for (uint32_t i = 0; i < 4; i++)
		before[i] = k.crew.hands[i].allocs;
	for (int i = 0; i < 9; i++)
		kit_run(&k, IST_OK);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(k.crew.hands[i].allocs, before[i]);
	kit_free(&k);
}

static void
a_gather_of_the_same_costs_one_exchange(void **unused)
{
	struct kit k;
	uint64_t gathers;

	(void)unused;
	kit_new(&k, 3, 1);
	kit_run(&k, IST_OK);
	fake_world_calm(k.crew.world);
	k.no_gather = true;
	kit_run(&k, IST_OK);
	gathers = fake_world_gathers(k.crew.world);
	fake_world_calm(k.crew.world);
	k.no_gather = false;
	kit_run(&k, IST_OK);
	assert_int_equal(fake_world_gathers(k.crew.world), gathers + 1);
	kit_free(&k);
}

static void
no_message_for_a_tensor(void **unused)
{
	struct kit k;

	(void)unused;
	kit_new(&k, 3, 1);
	k.tiny = 20000;
	kit_run(&k, IST_OK);
	assert_true(fake_world_gathers(k.crew.world) <= k.members[0].report.buckets + 20);
	kit_check_sinks(&k);
	kit_free(&k);
}

/* ---- files ---- */

static void
files_come_out_as_they_were(void **unused)
{
	struct kit k;
	char a[300], b[300];

	(void)unused;
	kit_new(&k, 4, 1);
	kit_folders(&k);
	kit_run(&k, IST_OK); /* memory becomes a folder on ranks 1 to 3 */
	kit_from_folder(&k, 2);  /* two sources of files, ranks 2 and 3 sinks */
	kit_run(&k, IST_OK);
	snprintf(a, sizeof(a), "%s/new-2/model.safetensors", k.tmp);
	snprintf(b, sizeof(b), "%s/old-1/model.safetensors", k.tmp);
	assert_true(kit_same_file(a, b));
	assert_string_equal(k.members[3].report.digest, kit_digest_of(&k, a));
	kit_free(&k);
}

static void
the_odd_one_out_is_named(void **unused)
{
	struct kit k;
	char path[300];

	(void)unused;
	kit_new(&k, 4, 1);
	kit_folders(&k);
	kit_run(&k, IST_OK);
	snprintf(path, sizeof(path), "%s/old-2/model.safetensors", k.tmp);
	kit_flip_at_end(path, 1000);
	kit_from_folder(&k, 3);
	k.own_folders = true; /* ranks 0 and 1 give old-1, rank 2 old-2 */
	kit_run(&k, IST_OVERLAP);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(k.members[i].error.n_ranks, 1);
		assert_int_equal(k.members[i].error.ranks[0], 2);
		assert_string_not_equal(k.members[i].error.tensor, "");
	}
	kit_free(&k);
}

/* ---- several folders become one ---- */

struct shards {
	char tmp[64];
	const char *dest;       /* "dir": a folder; else a sink's own text */
	const char *other[2];   /* what each source's config.json holds */
	const char *tensor[2];  /* in a-<rank>.safetensors, 1000 bytes */
	uint8_t byte[2];
	bool one_name;          /* both call their shard a-0.safetensors */
	bool flat;              /* a folder can't hold the files as they are */
	ist_err want;
	struct ist_error error;
	struct ist_report report;
};

static void
write_file(const char *folder, const char *name, const void *front, uint64_t front_bytes, const void *at, uint64_t bytes)
{
	char path[400];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "wb");
	CHECK(f && fwrite(front, 1, front_bytes, f) == front_bytes && fwrite(at, 1, bytes, f) == bytes && fclose(f) == 0);
}

static void
write_shard(const struct shards *x, uint32_t rank, char *folder)
{
	char head[200], name[40], data[1000];
	uint64_t n;

	snprintf(folder, 100, "%s/from-%u", x->tmp, rank);
	CHECK(mkdir(folder, 0755) == 0);
	memset(head, 0, 8);
	snprintf(head + 8, sizeof(head) - 8, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1000],\"data_offsets\":[0,1000]}}", x->tensor[rank]);
	n = strlen(head + 8);
	head[0] = (char)n;
	memset(data, x->byte[rank], sizeof(data));
	snprintf(name, sizeof(name), "a-%u.safetensors", x->one_name ? 0 : rank);
	write_file(folder, name, head, n + 8, data, sizeof(data));
	write_file(folder, "config.json", "", 0, x->other[rank], strlen(x->other[rank]));
}

static void
gather_shards(struct hand *h, void *arg)
{
	struct shards *x = arg;
	struct ist_report r = { .struct_size = sizeof(r) };
	struct ist_checkpoint *ck = NULL;
	struct ist_sink *sink = NULL;
	struct ist_sync *sync;
	struct ist_error e;
	char folder[100], dest[100];
	ist_err code;

	ist_error_init(&e);
	CHECK_CODE(ist_sync_new(h->group, NULL, &sync, &e), IST_OK, &e);
	if (h->rank < 2) {
		write_shard(x, h->rank, folder);
		CHECK_CODE(ist_checkpoint_open(h->env, folder, NULL, &ck, &e), IST_OK, &e);
		CHECK_CODE(ist_sync_source(sync, ck, 0, 0, &e), IST_OK, &e);
	} else {
		snprintf(dest, sizeof(dest), "%s/to", x->tmp);
		CHECK_CODE(ist_sink_open(h->env, strcmp(x->dest, "dir") ? x->dest : dest, 0, &sink, &e), IST_OK, &e);
		CHECK_CODE(ist_sync_sink(sync, sink, &e), IST_OK, &e);
	}
	code = ist_sync_gather(sync, 0, &e);
	if (!code)
		code = ist_sync_update(sync, NULL, &r, &e);
	CHECK_CODE(code, x->want, &e);
	if (h->rank == 2) {
		x->error = e;
		x->report = r;
	}
	ist_sync_free(sync);
	ist_sink_free(sink);
	ist_checkpoint_free(ck);
}

static void
check_files(const char *tmp)
{
	char a[300], b[300];

	for (int i = 0; i < 2; i++) {
		snprintf(a, sizeof(a), "%s/from-%d/a-%d.safetensors", tmp, i, i);
		snprintf(b, sizeof(b), "%s/to/a-%d.safetensors", tmp, i);
		assert_true(kit_same_file(a, b));
	}
	snprintf(a, sizeof(a), "%s/from-0/config.json", tmp); /* where they differ: the lowest rank's */
	snprintf(b, sizeof(b), "%s/to/config.json", tmp);
	assert_true(kit_same_file(a, b));
}

/* All tensors in one file, and nothing else. */
static void
check_flat(const char *tmp, const struct shards *x)
{
	char path[300];
	struct ist_env *env;
	struct ist_checkpoint *ck;

	snprintf(path, sizeof(path), "%s/to/config.json", tmp);
	assert_int_equal(access(path, F_OK), -1);
	snprintf(path, sizeof(path), "%s/to/a-0.safetensors", tmp);
	assert_int_equal(access(path, F_OK), -1);
	snprintf(path, sizeof(path), "%s/to/model.safetensors", tmp);
	assert_int_equal(ist_env_new(NULL, &env, NULL), IST_OK);
	assert_int_equal(ist_checkpoint_open(env, path, NULL, &ck, NULL), IST_OK);
	for (int i = 0; i < 2; i++) {
		uint8_t got[1000];
		uint64_t n = 0;

		assert_int_equal(ist_checkpoint_find(ck, x->tensor[i], &n, NULL), IST_OK);
		assert_int_equal(ist_checkpoint_read(ck, n, 0, sizeof(got), got, NULL), IST_OK);
		for (uint32_t k = 0; k < sizeof(got); k++)
			assert_int_equal(got[k], x->byte[i]);
	}
	ist_checkpoint_free(ck);
	ist_env_free(env);
}

static void
run_shards(struct shards *x)
{
	struct kit k;

	kit_new(&k, 3, 0);
	kit_folders(&k);
	snprintf(x->tmp, sizeof(x->tmp), "%s", k.tmp);
	crew_run(&k.crew, gather_shards, x);
	if (x->want == IST_OK && !strcmp(x->dest, "dir")) {
		if (x->flat)
			check_flat(k.tmp, x);
		else
			check_files(k.tmp);
	}
	kit_free(&k);
}

static void
folders_become_one(void **unused)
{
	struct shards x = { .dest = "dir", .other = { "{}", "{}" }, .tensor = { "x", "y" }, .byte = { 1, 2 } };

	(void)unused;
	run_shards(&x);
	assert_int_equal(x.report.tensors, 2);
	assert_int_equal(x.report.bytes, 2000);
	/* one file, two contents: the first one's; two shards of one name: the tensors alone */
	x.other[1] = "{ }";
	run_shards(&x);
	x.one_name = x.flat = true;
	run_shards(&x);
	assert_int_equal(x.report.tensors, 2);
	x.dest = "mem:";
	x.want = IST_OK;
	run_shards(&x);
	assert_int_equal(x.report.tensors, 2);
	/* one tensor, the same bytes: given once; other bytes: named */
	x.tensor[1] = "x";
	x.byte[1] = 1;
	run_shards(&x);
	assert_int_equal(x.report.tensors, 1);
	assert_int_equal(x.report.bytes, 1000);
	x.dest = "dir";
	run_shards(&x);
	x.one_name = false; /* in two files: neither may stay as it was */
	run_shards(&x);
	assert_int_equal(x.report.bytes, 1000);
	x.byte[1] = 2;
	x.want = IST_OVERLAP;
	run_shards(&x);
	assert_string_equal(x.error.tensor, "x");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_bucket_size_and_number_of_sources),
		cmocka_unit_test(a_member_may_be_both_or_neither),
		cmocka_unit_test(buckets_go_to_who_takes_them),
		cmocka_unit_test(alone_with_itself),
		cmocka_unit_test(disjoint_sources_make_one),
		cmocka_unit_test(parts_by_hand),
		cmocka_unit_test(smallest_bucket_wins),
		cmocka_unit_test(errors_are_alike_on_all),
		cmocka_unit_test(registered_since_the_gather),
		cmocka_unit_test(a_changed_byte_is_named),
		cmocka_unit_test(a_backend_that_moves_nothing),
		cmocka_unit_test(a_sink_error_reaches_all),
		cmocka_unit_test(all_stop_long_before_the_end),
		cmocka_unit_test(a_dirty_member_offers_nothing),
		cmocka_unit_test(the_order_at_a_sink_is_the_manifests),
		cmocka_unit_test(versions_go_up),
		cmocka_unit_test(different_wishes_are_told),
		cmocka_unit_test(a_version_that_changes_nothing_is_told),
		cmocka_unit_test(nothing_is_allocated_after_the_first),
		cmocka_unit_test(a_gather_of_the_same_costs_one_exchange),
		cmocka_unit_test(no_message_for_a_tensor),
		cmocka_unit_test(files_come_out_as_they_were),
		cmocka_unit_test(the_odd_one_out_is_named),
		cmocka_unit_test(folders_become_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
