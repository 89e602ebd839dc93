/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_demo.c - the main job on one machine: starts the five processes of two worlds, then compares every digest.
 */
#include "local.h"
#include "make.h"
#include "scratch.h"
#include "spawn.h"
#include "value.h"

#include <errno.h>
#include <isthmus/sync.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MEMBERS = 5, TRAINERS = 2, WORDS = 20, WORD = 4400 };

struct demo {
	struct cli *cli;
	struct local local;
	struct scratch scratch;
	const char *model;
	char made[4200], name[256];
	bool mpi;
	char source_digest[IST_DIGEST_TEXT];
	uint64_t tensors;
	json_t *first;   /* what member 0 left */
	char self[4096];
	/* command lines */
	char words[MEMBERS][WORDS][WORD];
	char *argv[MEMBERS][WORDS + 1];
	struct child children[MEMBERS];
};

static int
interrupted(int status)
{
	int sig = spawn_held_signal();

	return sig ? EXIT_SIGNAL + sig : status;
}

static int
choose(struct demo *d)
{
	const char *model = option_text(&d->cli->o, OPT_MODEL, getenv("MODEL")), *worlds = getenv("WORLD");
	uint32_t kind = (uint32_t)option_number(&d->cli->o, OPT_WORLDS, 0);
	ssize_t n = readlink("/proc/self/exe", d->self, sizeof(d->self) - 1);

	if (n < 0)
		return cli_fail_sys(d->cli, IST_IO, errno, "demo", "/proc/self/exe");
	if (!option_given(&d->cli->o, OPT_WORLDS) && worlds && *worlds && !value_choice(worlds, "isthmus|mpi", &kind))
		return cli_usage(d->cli, "WORLD is '%s'; expected isthmus or mpi", worlds);
	d->mpi = kind == 1;
	d->model = model && *model ? model : NULL;
	return EXIT_DONE;
}

/* The checkpoint, and what it must look like at the other end. */
static int
prepare_model(struct demo *d)
{
	struct ist_checkpoint *ck = NULL;
	struct ist_error err;
	uint64_t bytes = 0;
	int status = EXIT_DONE;

	ist_error_init(&err);
	if (d->model) {
		snprintf(d->made, sizeof(d->made), "%s", d->model);
		snprintf(d->name, sizeof(d->name), "%s", basename(d->made));
		if (ist_checkpoint_open(d->local.s.env, d->model, NULL, &ck, &err))
			return cli_fail(d->cli, &err);
		bytes = ist_checkpoint_bytes(ck);
		ist_checkpoint_free(ck);
	} else {
		bytes = UINT64_C(343) << 20;
		snprintf(d->name, sizeof(d->name), "qwen3-0.6b (1 layer)");
	}
	status = scratch_open(d->cli, &d->scratch, bytes * (d->model ? MEMBERS - TRAINERS : MEMBERS - TRAINERS + 1u));
	if (status == EXIT_DONE && !d->model) {
		snprintf(d->made, sizeof(d->made), "%.4000s/model", d->scratch.path);
		status = make_small(d->cli, d->made);
		d->model = d->made;
	}
	return status;
}

static void
word(struct demo *d, uint32_t child, int *n, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void
word(struct demo *d, uint32_t child, int *n, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(d->words[child][*n], WORD, fmt, ap);
	va_end(ap);
	d->argv[child][*n] = d->words[child][*n];
	d->argv[child][++*n] = NULL;
}

static void
member_words(struct demo *d, uint32_t child, int *n, const char *place)
{
	word(d, child, n, "%s", d->self);
	word(d, child, n, "demo-member");
	word(d, child, n, "%s", place);
	word(d, child, n, "--at=tcp://%s", d->local.address);
	word(d, child, n, "--group=weights");
	word(d, child, n, "--world=%d", MEMBERS);
	word(d, child, n, "--out=%s", d->scratch.path);
	word(d, child, n, "--worlds=%s", d->mpi ? "mpi" : "isthmus");
	word(d, child, n, "--log-level=%s", option_text(&d->cli->o, OPT_LOG_LEVEL, "error"));
	if (d->cli->quiet)
		word(d, child, n, "--quiet");
}

/* The engines' destination; under mpirun all have one command line, so it is told apart by the rank. */
static void
destination(const struct demo *d, uint32_t rank, char room[4200])
{
	snprintf(room, 4200, "%.4000s/engine-%c", d->scratch.path, (char)('A' + rank));
}

/* Five processes, each told its rank. */
static uint32_t
plain_worlds(struct demo *d)
{
	char place[4200];

	for (uint32_t r = 0; r < MEMBERS; r++) {
		int n = 0;

		destination(d, r, place);
		member_words(d, r, &n, r < TRAINERS ? d->model : place);
		word(d, r, &n, "--rank=%u", r);
	}
	return MEMBERS;
}

/* Two jobs of mpirun, two command lines: a rank comes from the launcher, plus an offset. */
static uint32_t
mpi_worlds(struct demo *d)
{
	char place[4200];

	for (uint32_t job = 0; job < 2; job++) {
		int n = 0;

		word(d, job, &n, "mpirun");
		word(d, job, &n, "-n");
		word(d, job, &n, "%d", job ? MEMBERS - TRAINERS : TRAINERS);
		word(d, job, &n, "--oversubscribe");
		word(d, job, &n, "--bind-to");
		word(d, job, &n, "none");
		snprintf(place, sizeof(place), "%.4000s/engine-%%", d->scratch.path);
		member_words(d, job, &n, job ? place : d->model);
		word(d, job, &n, "--rank-offset=%d", job ? TRAINERS : 0);
	}
	return 2;
}

static int
start(struct demo *d)
{
	char allow[] = "OMPI_ALLOW_RUN_AS_ROOT=1", confirm[] = "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1";
	char *const root[] = { allow, confirm, NULL }; /* mpirun, for containers */
	uint32_t n = d->mpi ? mpi_worlds(d) : plain_worlds(d);
	char **env = spawn_env(geteuid() == 0 ? root : root + 2);
	int status;

	if (!env)
		return cli_fail_code(d->cli, IST_NO_MEMORY, "demo", "out of memory");
	for (uint32_t i = 0; i < n; i++) {
		d->children[i].argv = d->argv[i];
		d->children[i].env = env;
	}
	status = spawn_all(d->cli, d->children, n, 5 * IST_NS_PER_S);
	free(env);
	return status;
}

/* What the quiet members said, when the one that talks had nothing to say. */
static void
show_logs(const struct demo *d)
{
	char path[4200], line[1024];

	if (d->children[0].status != 0 && d->children[0].status < EXIT_SIGNAL)
		return;
	for (uint32_t r = 1; r < MEMBERS; r++) {
		FILE *f;

		snprintf(path, sizeof(path), "%.4000s/member-%u.log", d->scratch.path, r);
		f = fopen(path, "re");
		while (f && fgets(line, sizeof(line), f))
			fputs(line, stderr);
		if (f)
			fclose(f);
	}
}

/* --json: what the members said, the first of them first. A deadline of our own has been told. */
static void
tell_failure(const struct demo *d, int status)
{
	json_t *doc = NULL;
	char path[4200];

	if (!d->cli->json || now_ns() >= d->cli->deadline_ns)
		return;
	for (uint32_t r = 0; r < MEMBERS && !doc; r++) {
		snprintf(path, sizeof(path), "%.4000s/member-%u.error", d->scratch.path, r);
		doc = json_load_file(path, 0, NULL);
	}
	if (doc)
		cli_print(doc);
	else
		cli_fail_code(d->cli, IST_ABORTED, "demo", "it ended with status %d, and no member said why", status);
}

static int
digest_of(struct demo *d, const char *path, char digest[IST_DIGEST_TEXT])
{
	struct ist_checkpoint *ck = NULL;
	struct ist_error err;
	ist_err code;

	ist_error_init(&err);
	code = ist_checkpoint_open(d->local.s.env, path, NULL, &ck, &err);
	d->tensors = code == IST_OK ? ist_checkpoint_count(ck) : 0;
	/* one by one, so that a signal is seen in time; of what is known the whole is only folded */
	for (uint64_t i = 0; code == IST_OK && i < d->tensors && !spawn_held_signal(); i++)
		code = ist_checkpoint_digest(ck, i, digest, &err);
	if (code == IST_OK && !spawn_held_signal())
		code = ist_checkpoint_digest(ck, IST_WHOLE, digest, &err);
	if (ck)
		ist_checkpoint_free(ck);
	return code ? cli_fail(d->cli, &err) : interrupted(EXIT_DONE);
}

/* Reads everything again, at the source and at every engine, as 'isthmus inspect --digests' does. */
static int
verify(struct demo *d)
{
	char path[4200], digest[IST_DIGEST_TEXT];
	int status = digest_of(d, d->model, d->source_digest);

	for (uint32_t r = TRAINERS; status == EXIT_DONE && r < MEMBERS; r++) {
		destination(d, r, path);
		status = digest_of(d, path, digest);
		if (status == EXIT_DONE && strcmp(digest, d->source_digest))
			status = cli_fail_code(d->cli, IST_DIGEST, "demo", "engine %c has %s, the source %s", (char)('A' + r), digest, d->source_digest);
	}
	if (status != EXIT_DONE)
		return status;
	snprintf(path, sizeof(path), "%.4000s/member-0.json", d->scratch.path);
	d->first = json_load_file(path, 0, NULL);
	return d->first ? EXIT_DONE : cli_fail_code(d->cli, IST_INTERNAL, "demo", "member 0 left no result");
}

static uint64_t
barriers(const struct demo *d)
{
	char path[4200];
	uint64_t sum = 0;

	for (uint32_t r = 0; r < MEMBERS; r++) {
		json_t *doc;

		snprintf(path, sizeof(path), "%.4000s/member-%u.json", d->scratch.path, r);
		doc = json_load_file(path, 0, NULL);
		sum += (uint64_t)json_integer_value(json_object_get(json_object_get(doc, "own_world"), "barriers"));
		json_decref(doc);
	}
	return sum;
}

static int
print(struct demo *d)
{
	json_t *seconds = json_object_get(d->first, "seconds");
	double gather = json_number_value(json_object_get(seconds, "gather")), update = json_number_value(json_object_get(seconds, "update"));
	uint64_t bytes = (uint64_t)json_integer_value(json_object_get(d->first, "bytes"));
	const char *backend = json_string_value(json_object_get(d->first, "backend"));
	char text[64], size[24];

	if (d->cli->json)
		return cli_print(json_pack("{s:o,s:i,s:s,s:s,s:o,s:o,s:f,s:f,s:n,s:b,s:s,s:o}", "model", json_text(d->name), "ranks", MEMBERS, "worlds",
			d->mpi ? "mpi" : "isthmus", "backend", backend ? backend : "", "tensors", json_u64(d->tensors), "bytes", json_u64(bytes), "gather_s", gather,
			"update_broadcast_s", update, "update_p2p_s", "verified", 1, "digest", d->source_digest, "own_world_barriers", json_u64(barriers(d))));
	printf("Trainers A, B and engines C, D, E; each world ran barriers of its own (%s) before, during and after: %llu in all.\n",
		d->mpi ? "MPI" : "Isthmus", (unsigned long long)barriers(d));
	printf("%llu tensors, %s; digest of the source and of each engine: %s\n\n", (unsigned long long)d->tensors, human_bytes(bytes, size), d->source_digest);
	printf("%-22s %-8s %-9s %-13s %-20s %-14s %s\n", "Model", "Ranks", "Backend", "GatherMetas", "Update (Broadcast)", "Update (P2P)", "Verified");
	printf("%-22s %-8s %-9s ", d->name, "2 + 3", backend ? backend : "");
	snprintf(text, sizeof(text), "%.4f s", gather);
	printf("%-13s ", text);
	snprintf(text, sizeof(text), "%.3f s (%.2f GB/s)", update, update > 0 ? (double)bytes / update / 1e9 : 0);
	printf("%-20s %-14s %s\n", text, "not built yet", "yes");
	return cli_printed();
}

int
cmd_demo(struct cli *cli)
{
	struct demo *d = calloc(1, sizeof(*d));
	int status;

	if (!d)
		return cli_fail_code(cli, IST_NO_MEMORY, "demo", "out of memory");
	d->cli = cli;
	d->local.master_lock = -1;
	spawn_hold_signals(); /* the scratch folder goes, whenever one comes */
	status = choose(d);
	if (status == EXIT_DONE)
		status = local_open(&d->local, cli);
	if (status == EXIT_DONE)
		status = prepare_model(d);
	if (status == EXIT_DONE) {
		status = start(d);
		if (status != EXIT_DONE) {
			show_logs(d);
			tell_failure(d, status);
		}
	}
	if (status == EXIT_DONE)
		status = verify(d);
	if (status == EXIT_DONE)
		status = interrupted(print(d));
	json_decref(d->first);
	scratch_close(&d->scratch);
	local_close(&d->local);
	free(d);
	return status;
}
