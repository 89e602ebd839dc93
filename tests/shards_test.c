/* SPDX-License-Identifier: Apache-2.0
 *
 * shards_test.c - tensors that sources hold in slices, between real processes: every kind of sink gets what a whole push
 * gives, whoever holds which slice in whatever order; what is missing or there twice is told alike on all ranks. */
#include "ranks.h"

#include <isthmus/sync.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { SOURCES = 3, SINKS = 4, RANKS = SOURCES + SINKS, SLICES = 8 };

/* One tensor, cut into parts along dimensions; the product of parts is SLICES, or 1: it is given whole by rank 0. */
struct layout {
	const char *name, *dtype;
	uint32_t rank;
	uint64_t whole[3], parts[3];
};

static const struct layout layouts[] = {
	{ "a.rows", "F32", 2, { 64, 48 }, { 8, 1 } },
	{ "b.columns", "BF16", 2, { 300, 1024 }, { 1, 8 } },
	{ "c.thin", "U8", 2, { 3000, 16 }, { 1, 8 } },    /* runs of two bytes */
	{ "d.grid", "F32", 2, { 96, 80 }, { 4, 2 } },
	{ "e.norm", "F32", 1, { 300 }, { 1 } },
	{ "f.middle", "BF16", 3, { 8, 40, 30 }, { 1, 8, 1 } },
	{ "g.cube", "F64", 3, { 6, 10, 14 }, { 2, 2, 2 } },
	{ "h.big", "F32", 2, { 512, 1024 }, { 1, 8 } },   /* slices larger than the bucket */
	{ "i.few", "F32", 1, { 7 }, { 8 } },              /* one of them is empty */
	{ "j.empty", "F32", 2, { 8, 0 }, { 8, 1 } },
	{ "k.narrow", "F4", 2, { 64, 64 }, { 1, 8 } },
	{ "l.scalar", "F32", 0, { 0 }, { 0 } },
	{ "m.last", "I64", 2, { 16, 16 }, { 8, 1 } },
};
#define TENSORS (sizeof(layouts) / sizeof(layouts[0]))

enum flaw { SOUND = 0, ONE_MISSING, TWO_OVERLAP, TWICE, OTHER_SHAPE, WHOLE_TOO };

struct job {
	uint64_t bucket;
	uint32_t shift, reverse, transport, updates;
	uint32_t replicas;      /* each slice is held by all sources, in checkpoints that are equal */
	uint32_t die_at;        /* the custom sink is killed at this piece of the second update; the others go on */
	enum flaw flaw;
	const char *backend;    /* NULL: the usual one */
	ist_err want;
	const char *tensor, *text;
	char dir[64];
};

static uint64_t
bits_of(const struct layout *l)
{
	return !strcmp(l->dtype, "F4") ? 4 : !strcmp(l->dtype, "U8") ? 8 : !strcmp(l->dtype, "BF16") ? 16 : !strcmp(l->dtype, "F32") ? 32 : 64;
}

static uint64_t
count_of(const struct layout *l, const uint64_t *dims)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < l->rank; d++)
		n *= dims[d];
	return n;
}

static uint8_t
byte_of(uint32_t version, uint64_t tensor, uint64_t i)
{
	return (uint8_t)(version * 7 + tensor * 131 + i % 251 + (i >> 8) * 3);
}

/* ---- what a source holds ---- */

/* From cut number k of n on; the last ones may be shorter, or empty. */
static uint64_t
cut_at(uint64_t whole, uint64_t n, uint64_t k)
{
	uint64_t each = (whole + n - 1) / n;

	return k * each < whole ? k * each : whole;
}

static void
slice_of(const struct layout *l, uint32_t number, uint64_t *begin, uint64_t *extent)
{
	for (uint32_t d = l->rank; d-- > 0;) {
		uint64_t k = number % l->parts[d];

		number /= (uint32_t)l->parts[d];
		begin[d] = cut_at(l->whole[d], l->parts[d], k);
		extent[d] = cut_at(l->whole[d], l->parts[d], k + 1) - begin[d];
	}
}

/* The bytes of a slice, element by element; two at a time where they are narrower than a byte. */
static void
fill_slice(const struct layout *l, uint64_t tensor, uint32_t version, const struct ist_tensor *t, const struct ist_slice *s, uint8_t *to)
{
	uint64_t elem = bits_of(l) / 8, pair = elem ? 1 : 2;

	elem = elem ? elem : 1;
	for (uint64_t b = 0; b < t->bytes; b++) {
		uint64_t i = b / elem, at = 0, stride = elem;

		for (uint32_t d = l->rank; d-- > 0;) {
			uint64_t f = d + 1 == l->rank ? pair : 1;

			at += (s->begin[d] / f + i % (t->shape[d] / f)) * stride;
			stride *= s->whole[d] / f;
			i /= t->shape[d] / f;
		}
		to[b] = byte_of(version, tensor, at + b % elem);
	}
}

struct shards {
	struct ist_tensor t[TENSORS * SLICES];
	struct ist_slice s[TENSORS * SLICES];
	uint64_t of[TENSORS * SLICES]; /* tensor */
	uint8_t *at[TENSORS * SLICES];
	uint32_t n;
};

static void
add_slice(struct shards *p, uint64_t tensor, const uint64_t *begin, const uint64_t *extent, const uint64_t *whole)
{
	const struct layout *l = &layouts[tensor];
	uint32_t k = p->n++;

	p->of[k] = tensor;
	p->t[k] = (struct ist_tensor){ .struct_size = sizeof(p->t[k]), .rank = l->rank, .name = l->name, .dtype = l->dtype };
	p->s[k] = (struct ist_slice){ .struct_size = sizeof(p->s[k]) };
	for (uint32_t d = 0; d < l->rank; d++) {
		p->t[k].shape[d] = extent[d];
		p->s[k].begin[d] = begin[d];
		p->s[k].whole[d] = whole[d];
	}
	p->t[k].bytes = count_of(l, extent) * bits_of(l) / 8;
	p->at[k] = malloc(p->t[k].bytes + 1);
	p->t[k].addr = p->at[k];
}

static void
list_slices(const struct job *j, uint32_t rank, struct shards *p)
{
	static const uint64_t zero[3];

	for (uint64_t x = 0; x < TENSORS; x++) {
		const struct layout *l = &layouts[x];
		uint64_t n = count_of(l, l->parts), begin[3], extent[3], whole[3];

		for (uint32_t i = 0; i < n; i++) {
			uint32_t k = j->reverse ? (uint32_t)n - 1 - i : i;

			if (!j->replicas && (n == 1 ? 0 : (k + j->shift) % SOURCES) != rank)
				continue;
			if (n == 1) {
				add_slice(p, x, zero, l->whole, l->whole);
				continue;
			}
			slice_of(l, k, begin, extent);
			memcpy(whole, l->whole, sizeof(whole));
			if (j->flaw == ONE_MISSING && x == 3 && k == 5)
				continue;
			if (j->flaw == TWO_OVERLAP && x == 1 && k == 3) {
				begin[1] -= 28;
				extent[1] += 28;
			}
			if (j->flaw == OTHER_SHAPE && x == 0 && rank == 2)
				whole[0]++;
			add_slice(p, x, begin, extent, whole);
		}
		if (j->flaw == TWICE && x == 0 && rank == 2 && n == SLICES) {
			slice_of(l, 2, begin, extent); /* rank 1 has it with this shift */
			add_slice(p, x, begin, extent, l->whole);
		}
	}
}

static void
fill(struct shards *p, uint32_t version)
{
	for (uint32_t k = 0; k < p->n; k++)
		fill_slice(&layouts[p->of[k]], p->of[k], version, &p->t[k], &p->s[k], p->at[k]);
}

static void
drop_shards(struct shards *p)
{
	for (uint32_t k = 0; k < p->n; k++)
		free(p->at[k]);
	p->n = 0;
}

/* ---- sinks ---- */

/* A sink of one's own, which also sees that every byte comes once. */
struct keep {
	uint8_t *at[TENSORS], *seen[TENSORS];
	uint64_t bytes[TENSORS], left, longest;
	uint32_t die_at, pieces;
};

static ist_err
keep_begin(void *ctx, const struct ist_tensor *tensors, uint64_t n, uint64_t version, struct ist_error *err)
{
	struct keep *k = ctx;

	(void)err, (void)version;
	CHECK(n == TENSORS);
	k->left = k->longest = 0;
	for (uint64_t i = 0; i < n; i++) {
		const struct layout *l = &layouts[i];

		CHECK(!strcmp(tensors[i].name, l->name) && !strcmp(tensors[i].dtype, l->dtype) && tensors[i].rank == l->rank);
		CHECK(!memcmp(tensors[i].shape, l->whole, l->rank * sizeof(l->whole[0])));
		CHECK(tensors[i].bytes == count_of(l, l->whole) * bits_of(l) / 8);
		free(k->at[i]);
		free(k->seen[i]);
		k->bytes[i] = tensors[i].bytes;
		k->at[i] = calloc(1, k->bytes[i] + 1);
		k->seen[i] = calloc(1, k->bytes[i] + 1);
		k->left += k->bytes[i];
	}
	return IST_OK;
}

static ist_err
keep_piece(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct keep *k = ctx;

	(void)err;
	if (k->die_at && ++k->pieces == k->die_at)
		raise(SIGKILL);
	CHECK(index < TENSORS && offset <= k->bytes[index] && bytes <= k->bytes[index] - offset);
	for (uint64_t b = offset; b < offset + bytes; b++)
		CHECK(!k->seen[index][b]++);
	memcpy(k->at[index] + offset, addr, bytes);
	k->left -= bytes;
	if (index == 0 && bytes > k->longest)
		k->longest = bytes;
	return IST_OK;
}

static ist_err
keep_prepare(void *ctx, struct ist_error *err)
{
	(void)err;
	CHECK(((struct keep *)ctx)->left == 0);
	return IST_OK;
}

static bool
has_bytes(uint64_t tensor, uint32_t version, const uint8_t *at)
{
	uint64_t n = count_of(&layouts[tensor], layouts[tensor].whole) * bits_of(&layouts[tensor]) / 8;

	for (uint64_t b = 0; b < n; b++)
		if (at[b] != byte_of(version, tensor, b))
			return false;
	return true;
}

static void
check_kept(const struct keep *k, uint32_t version)
{
	for (uint64_t i = 0; i < TENSORS; i++)
		CHECK(has_bytes(i, version, k->at[i]));
	CHECK(k->longest == 8 * 48 * 4); /* rows come in one piece */
}

static void
check_mem(struct ist_sink *sink, uint32_t version, struct ist_error *err)
{
	for (uint64_t i = 0; i < TENSORS; i++) {
		struct ist_tensor t = { .struct_size = sizeof(t) };

		CHECK_ERR(IST_OK, ist_sink_tensor(sink, layouts[i].name, &t, err), err);
		CHECK(t.rank == layouts[i].rank && !memcmp(t.shape, layouts[i].whole, t.rank * sizeof(t.shape[0])));
		CHECK(has_bytes(i, version, t.addr));
	}
}

static uint8_t *
read_all(const char *path, uint64_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	uint8_t *at;

	CHECK(fd >= 0 && !fstat(fd, &st));
	*bytes = (uint64_t)st.st_size;
	at = malloc(*bytes + 1);
	CHECK(read(fd, at, *bytes) == (ssize_t)*bytes);
	close(fd);
	return at;
}

static void
check_same(const char *a, const char *b)
{
	uint64_t n, m;
	uint8_t *x = read_all(a, &n), *y = read_all(b, &m);

	CHECK(n == m && n > 0 && !memcmp(x, y, n));
	free(x);
	free(y);
}

/* The tensors stand back to back at its end. */
static void
check_file(const char *path, uint32_t version)
{
	uint64_t n, at, all = 0;
	uint8_t *bytes = read_all(path, &n);

	for (uint64_t i = 0; i < TENSORS; i++)
		all += count_of(&layouts[i], layouts[i].whole) * bits_of(&layouts[i]) / 8;
	CHECK(n > all);
	at = n - all;
	for (uint64_t i = 0; i < TENSORS; i++) {
		CHECK(has_bytes(i, version, bytes + at));
		at += count_of(&layouts[i], layouts[i].whole) * bits_of(&layouts[i]) / 8;
	}
	free(bytes);
}

/* ---- a member ---- */

struct party {
	struct member m;
	struct ist_sync *sync, *plain;
	struct ist_checkpoint *ck[SLICES], *all;
	struct ist_sink *sink, *copy;
	struct shards mine, whole;
	struct keep keep;
	char dest[160], file[200], as_whole[160], whole_file[200];
};

static void
join(struct party *p, const struct job *j, struct ranks *r, uint32_t rank)
{
	struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = rank, .size = RANKS, .name = "shards", .at = r->at, .backend = j->backend,
		.timeout_ns = INT64_C(60000000000), .no_progress_ns = INT64_C(20000000000) };
	struct ist_sync_args args = { .struct_size = sizeof(args), .bucket_bytes = j->bucket,
		.on_loss = j->die_at ? IST_ON_LOSS_CONTINUE : IST_ON_LOSS_FAIL };

	member_init(&p->m, j->transport);
	CHECK_ERR(IST_OK, ist_group_new(p->m.ep, &ga, &p->m.g, &p->m.err), &p->m.err);
	CHECK_ERR(IST_OK, ist_sync_new(p->m.g, &args, &p->sync, &p->m.err), &p->m.err);
	CHECK_ERR(IST_OK, ist_sync_new(p->m.g, &args, &p->plain, &p->m.err), &p->m.err);
}

/* Replicas: the slices of several checkpoints, and each of those at all sources. */
static void
open_source(struct party *p, const struct job *j, uint32_t rank)
{
	uint32_t n = j->replicas ? 3 : 1, done = 0;

	list_slices(j, rank, &p->mine);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = (rank + i) % n, end = p->mine.n * (k + 1) / n, first = p->mine.n * k / n;

		CHECK_ERR(IST_OK, ist_checkpoint_from_slices(p->m.env, &p->mine.t[first], &p->mine.s[first], end - first, &p->ck[i], &p->m.err),
			&p->m.err);
		CHECK_ERR(IST_OK, ist_sync_source(p->sync, p->ck[i], 0, 0, &p->m.err), &p->m.err);
		done += end - first;
	}
	CHECK(done == p->mine.n);
	if (rank > 0)
		return;
	/* the same as a whole push has it */
	for (uint64_t x = 0; x < TENSORS; x++) {
		static const uint64_t zero[3];

		add_slice(&p->whole, x, zero, layouts[x].whole, layouts[x].whole);
	}
	CHECK_ERR(IST_OK, ist_checkpoint_from_tensors(p->m.env, p->whole.t, p->whole.n, &p->all, &p->m.err), &p->m.err);
	CHECK_ERR(IST_OK, ist_sync_source(j->flaw == WHOLE_TOO ? p->sync : p->plain, p->all, 0, 0, &p->m.err), &p->m.err);
}

static void
open_sink(struct party *p, const struct job *j, uint32_t rank)
{
	struct ist_sink_ops ops = { .struct_size = sizeof(ops), .ctx = &p->keep, .begin = keep_begin, .piece = keep_piece, .prepare = keep_prepare };

	snprintf(p->as_whole, sizeof(p->as_whole), "%s/whole-%u", j->dir, rank);
	snprintf(p->whole_file, sizeof(p->whole_file), "%s/model.safetensors", p->as_whole);
	if (rank == SOURCES) {
		snprintf(p->dest, sizeof(p->dest), "%s/slices", j->dir);
		snprintf(p->file, sizeof(p->file), "%s/model.safetensors", p->dest);
	} else if (rank == SOURCES + 1) {
		snprintf(p->dest, sizeof(p->dest), "shm:isthmus-shards-%d", (int)getpid());
		snprintf(p->file, sizeof(p->file), "/dev/shm/isthmus-shards-%d", (int)getpid());
	} else {
		snprintf(p->dest, sizeof(p->dest), "mem:");
	}
	if (rank == RANKS - 1)
		CHECK_ERR(IST_OK, ist_sink_custom(p->m.env, &ops, &p->sink, &p->m.err), &p->m.err);
	else
		CHECK_ERR(IST_OK, ist_sink_open(p->m.env, p->dest, 0, &p->sink, &p->m.err), &p->m.err);
	CHECK_ERR(IST_OK, ist_sync_sink(p->sync, p->sink, &p->m.err), &p->m.err);
	CHECK_ERR(IST_OK, ist_sink_open(p->m.env, p->as_whole, 0, &p->copy, &p->m.err), &p->m.err);
	CHECK_ERR(IST_OK, ist_sync_sink(p->plain, p->copy, &p->m.err), &p->m.err);
}

static void
tear_down(struct party *p)
{
	ist_sync_free(p->sync);
	ist_sync_free(p->plain);
	ist_sink_free(p->sink);
	ist_sink_free(p->copy);
	for (uint32_t i = 0; i < SLICES; i++)
		ist_checkpoint_free(p->ck[i]);
	ist_checkpoint_free(p->all);
	member_fini(&p->m);
	drop_shards(&p->mine);
	drop_shards(&p->whole);
	for (uint64_t i = 0; i < TENSORS; i++) {
		free(p->keep.at[i]);
		free(p->keep.seen[i]);
	}
}

static void
check_arrived(struct party *p, uint32_t rank, uint32_t version)
{
	if (rank < SOURCES)
		return;
	if (p->file[0])
		check_same(p->file, p->whole_file);
	else if (rank == RANKS - 1)
		check_kept(&p->keep, version);
	else
		check_mem(p->sink, version, &p->m.err);
}

static void
check_story(const struct party *p, const struct job *j)
{
	CHECK(!strcmp(p->m.err.tensor, j->tensor));
	if (j->want != IST_DIGEST) /* rank 0 gives the tensor both ways */
		CHECK(p->m.err.n_ranks == (j->want == IST_INCOMPLETE ? 0 : j->flaw == WHOLE_TOO ? 1 : 2));
	CHECK(j->flaw != TWICE || strstr(p->m.err.next, "of its own"));
	if (!strstr(p->m.err.detail, j->text)) {
		fprintf(stderr, "\"%s\" does not say \"%s\"\n", p->m.err.detail, j->text);
		CHECK(false);
	}
}

static int
take_part(struct ranks *r, uint32_t rank, void *arg)
{
	const struct job *j = arg;
	struct ist_report rep = { .struct_size = sizeof(rep) }, plain = { .struct_size = sizeof(plain) };
	struct party *p = calloc(1, sizeof(*p));
	char digest[IST_DIGEST_TEXT] = "";
	ist_err e;

	join(p, j, r, rank);
	if (rank < SOURCES)
		open_source(p, j, rank);
	else
		open_sink(p, j, rank);
	if (rank < SOURCES)
		fill(&p->mine, 1);
	if (j->want) {
		e = ist_sync_gather(p->sync, 0, &p->m.err);
		if (!e)
			e = ist_sync_update(p->sync, NULL, &rep, &p->m.err);
		CHECK_ERR(j->want, e, &p->m.err);
		check_story(p, j);
	}
	for (uint32_t v = 1; v <= j->updates; v++) {
		if (rank < SOURCES)
			fill(&p->mine, v == 3 ? 2 : v); /* the third one changes nothing */
		if (rank == 0)
			fill(&p->whole, v == 3 ? 2 : v);
		CHECK_ERR(IST_OK, ist_sync_gather(p->sync, 0, &p->m.err), &p->m.err);
		if (v == 2)
			p->keep.die_at = j->die_at;
		CHECK_ERR(IST_OK, ist_sync_update(p->sync, NULL, &rep, &p->m.err), &p->m.err);
		if (v == 2 && j->die_at) { /* a loss ends the group that the other sync has */
			CHECK(rep.n_lost == 1 && rep.lost[0].rank == RANKS - 1 && rep.verified && rep.tensors == TENSORS);
			if (p->file[0])
				check_file(p->file, 2);
			else if (rank >= SOURCES)
				check_mem(p->sink, 2, &p->m.err);
			break;
		}
		CHECK_ERR(IST_OK, ist_sync_gather(p->plain, 0, &p->m.err), &p->m.err);
		CHECK_ERR(IST_OK, ist_sync_update(p->plain, NULL, &plain, &p->m.err), &p->m.err);
		CHECK(rep.verified && rep.tensors == TENSORS && plain.tensors == TENSORS && rep.bytes == plain.bytes);
		CHECK(v != 3 || (rep.changed == 0 && !strcmp(digest, rep.digest)));
		CHECK(v != 2 || (rep.changed == TENSORS - 1 && strcmp(digest, rep.digest))); /* but the empty one */
		memcpy(digest, rep.digest, sizeof(digest));
		check_arrived(p, rank, v == 3 ? 2 : v);
	}
	if (rank == SOURCES + 1 && j->updates)
		CHECK(!unlink(p->file));
	tear_down(p);
	free(p);
	return 0;
}

static void
remove_tree(const char *dir)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	assert_int_equal(system(command), 0);
}

static void
play(struct job j)
{
	struct ranks r;

	snprintf(j.dir, sizeof(j.dir), "/tmp/isthmus-shards-XXXXXX");
	assert_non_null(mkdtemp(j.dir));
	ranks_init(&r, RANKS);
	ranks_start_all(&r, take_part, &j);
	assert_int_equal(ranks_join(&r, 120, j.die_at ? UINT64_C(1) << (RANKS - 1) : 0), 0);
	ranks_fini(&r);
	remove_tree(j.dir);
}

static void
slices_become_the_whole(void **unused)
{
	(void)unused;
	play((struct job){ .bucket = 64 << 10, .updates = 3 });
	play((struct job){ .bucket = 1 << 20, .updates = 1, .shift = 1, .reverse = 1, .transport = IST_TRANSPORT_TCP });
	play((struct job){ .updates = 2, .shift = 2 });
}

static void
equal_checkpoints_share_their_slices(void **unused)
{
	(void)unused;
	play((struct job){ .bucket = 64 << 10, .updates = 3, .replicas = 1 });
}

static void
a_killed_sink_is_left_behind(void **unused)
{
	(void)unused;
	for (uint32_t piece = 1; piece < 12000; piece = piece * 20 + 7)
		play((struct job){ .bucket = 64 << 10, .updates = 2, .die_at = piece, .replicas = piece > 1 });
}

static void
a_missing_slice_is_named(void **unused)
{
	(void)unused;
	/* of a grid of 4 by 2 the sixth: row 2, column 1 */
	play((struct job){ .flaw = ONE_MISSING, .want = IST_INCOMPLETE, .tensor = "d.grid", .text = "[48:72, 40:80]" });
}

static void
what_is_there_twice_is_named(void **unused)
{
	(void)unused;
	/* slice 2 is with rank 2, the wider slice 3 with rank 0 */
	play((struct job){ .flaw = TWO_OVERLAP, .want = IST_OVERLAP, .tensor = "b.columns",
		.text = "[0:300, 356:384] of tensor b.columns is given by rank 2 and by rank 0" });
	play((struct job){ .flaw = TWICE, .want = IST_OVERLAP, .shift = 2, .tensor = "a.rows",
		.text = "[16:24, 0:48] of tensor a.rows is given by rank 1 and by rank 2" });
	play((struct job){ .flaw = OTHER_SHAPE, .want = IST_OVERLAP, .tensor = "a.rows", .text = "with different shapes" });
	play((struct job){ .flaw = WHOLE_TOO, .want = IST_OVERLAP, .tensor = "a.rows", .text = "whole" });
}

static void
a_changed_byte_has_a_name(void **unused)
{
	(void)unused;
	play((struct job){ .bucket = 64 << 10, .want = IST_DIGEST, .backend = "fault:flip=9:host", .tensor = "h.big", .text = "tensor h.big" });
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slices_become_the_whole),
		cmocka_unit_test(equal_checkpoints_share_their_slices),
		cmocka_unit_test(a_killed_sink_is_left_behind),
		cmocka_unit_test(a_missing_slice_is_named),
		cmocka_unit_test(what_is_there_twice_is_named),
		cmocka_unit_test(a_changed_byte_has_a_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
