/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_peers.c - the same measurements by other libraries, in the same run: what bench/install has installed is listed in
 * $XDG_CACHE_HOME/isthmus/bench/peers.json with the command that runs it. A command is given the ranks, the samples, the
 * transport and what to measure, and prints one JSON object a line (bench/peers/peer.h). Rank 0 runs them, on its machine,
 * when its own rows are done; the other ranks sleep meanwhile.
 */
#include "bench.h"
#include "signals.h"
#include "value.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ITEMS_MAX 16u
#define WORDS_MAX 8u             /* of a command */
#define ONE_NS (INT64_C(120) * IST_NS_PER_S)
#define LINE_BYTES 65536u

extern char **environ;

/* Our rows, and what peers call the same thing. */
static const struct {
	const char *row, *item;
} same[] = { { "broadcast ", "broadcast:" }, { "all_gather_bytes ", "allgather:" }, { "barrier", "barrier" }, { "group", "create" }, { "split", "split" } };

struct items {
	char text[ITEMS_MAX][48];
	uint32_t n;
};

static void
items_of(const json_t *rows, struct items *out)
{
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row) {
		const char *name = json_string_value(json_object_get(row, "name"));

		for (size_t k = 0; out->n < ITEMS_MAX && k < sizeof(same) / sizeof(same[0]); k++) {
			size_t n = strlen(same[k].row);
			bool sized = same[k].row[n - 1] == ' ';

			if (sized ? strncmp(name, same[k].row, n) != 0 : strcmp(name, same[k].row) != 0)
				continue;
			/* as many bytes as peers have room for in their byte strings */
			if (!strcmp(same[k].item, "allgather:") && strtoull(name + n, NULL, 10) > 8192)
				continue;
			snprintf(out->text[out->n++], sizeof(out->text[0]), "%s%s", same[k].item, sized ? name + n : "");
		}
	}
}

static json_t *
read_list(const struct cli *cli)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char path[4096];
	json_error_t bad;
	json_t *list;

	if (cache && cache[0] == '/')
		snprintf(path, sizeof(path), "%s/isthmus/bench/peers.json", cache);
	else
		snprintf(path, sizeof(path), "%s/.cache/isthmus/bench/peers.json", home ? home : "");
	list = json_load_file(path, 0, &bad);
	if (!json_is_array(json_object_get(list, "peers"))) {
		cli_fail_code(cli, IST_BAD_CONFIG, "bench", "no list of peers in %s: bench/install makes it (make bench does)", path);
		json_decref(list);
		return NULL;
	}
	return list;
}

/* ---- one peer ---- */

static void
add_why(struct bench *b, const char *peer, const char *what, const char *why)
{
	char name[192];

	snprintf(name, sizeof(name), "%s%s%s", peer, what[0] ? ": " : "", what);
	json_array_append_new(b->rows, json_pack("{s:o,s:o,s:o}", "name", json_text(name), "peer", json_text(peer), "why", json_text(why)));
}

static uint32_t
numbers(const json_t *list, double *out, uint32_t max)
{
	uint32_t n = 0;

	for (size_t i = 0; i < json_array_size(list) && n < max; i++)
		out[n++] = json_number_value(json_array_get(list, i));
	return n;
}

static void
add_line(struct bench *b, const char *peer, const char *line)
{
	json_t *said = json_loads(line, 0, NULL), *row;
	const char *what = json_string_value(json_object_get(said, "what")), *how = json_string_value(json_object_get(said, "how"));
	const char *why = json_string_value(json_object_get(said, "why")), *transport = json_string_value(json_object_get(said, "transport"));
	uint64_t bytes = (uint64_t)json_integer_value(json_object_get(said, "bytes"));
	double seconds[256], at[256];
	struct bench_samples samples = { .seconds = seconds, .at = at, .inner = (uint32_t)json_integer_value(json_object_get(said, "inner")) };
	char name[192], size[32] = "";

	if (bytes)
		snprintf(size, sizeof(size), " %llu", (unsigned long long)bytes);
	if (what && why) {
		snprintf(name, sizeof(name), "%s%s", what, size);
		add_why(b, peer, name, why);
	} else if (what) {
		samples.n = numbers(json_object_get(said, "seconds"), seconds, 256);
		if (numbers(json_object_get(said, "at"), at, 256) != samples.n)
			samples.at = NULL;
		snprintf(name, sizeof(name), "%s: %s%s%s%s%s", peer, what, size, how && how[0] ? " (" : "", how ? how : "", how && how[0] ? ")" : "");
		if (samples.n) {
			bench_add(b, name, strcmp(what, "broadcast") ? 0 : bytes, &samples, strcmp(what, "broadcast") ? 0 : b->limit_gbps);
			row = json_array_get(b->rows, json_array_size(b->rows) - 1);
			json_object_set_new(row, "peer", json_text(peer));
			json_object_set_new(row, "transport", json_text(transport ? transport : ""));
		}
	}
	json_decref(said);
}

/* Reads until the peer is done; false: its time is over, or we are told to end. */
static bool
read_lines(struct bench *b, const char *peer, int fd, int64_t until)
{
	char *room = malloc(LINE_BYTES), *end;
	size_t n = 0;
	bool good = room != NULL;

	while (good) {
		struct pollfd look = { .fd = fd, .events = POLLIN };
		ssize_t got;

		good = now_ns() < until && !signals_got();
		if (!good || poll(&look, 1, 100) <= 0)
			continue;
		got = read(fd, room + n, LINE_BYTES - 1 - n);
		if (got <= 0)
			break;
		n += (size_t)got;
		room[n] = 0;
		while ((end = strchr(room, '\n')) != NULL) {
			*end++ = 0;
			add_line(b, peer, room);
			n -= (size_t)(end - room);
			memmove(room, end, n + 1);
		}
		if (n == LINE_BYTES - 1) /* a line that long is none of ours */
			n = 0;
	}
	free(room);
	return good;
}

static int
start(char **argv, int out, pid_t *pid)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none;
	int sys;

	sigemptyset(&none);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setpgroup(&attr, 0); /* so that what it starts ends with it */
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
	sys = posix_spawnp(pid, argv[0], &files, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	return sys;
}

static void
run_peer(struct bench *b, const char *peer, const json_t *command, struct items *items)
{
	char ranks[16], repeat[16], *argv[WORDS_MAX + ITEMS_MAX + 8];
	const char *transport = option_text(&b->cli->o, OPT_TRANSPORT, "auto");
	int64_t left = cli_left_ns(b->cli), until = now_ns() + (left >= 0 && left < ONE_NS ? left : ONE_NS);
	size_t k = 0, had = json_array_size(b->rows);
	int fds[2], status = 0, sys;
	pid_t pid;

	for (size_t i = 0; i < json_array_size(command) && k < WORDS_MAX; i++)
		argv[k++] = (char *)(uintptr_t)json_string_value(json_array_get(command, i));
	snprintf(ranks, sizeof(ranks), "%u", b->s.world);
	snprintf(repeat, sizeof(repeat), "%u", b->repeat < 64 ? b->repeat : 64);
	argv[k++] = (char *)(uintptr_t)"--ranks";
	argv[k++] = ranks;
	argv[k++] = (char *)(uintptr_t)"--repeat";
	argv[k++] = repeat;
	argv[k++] = (char *)(uintptr_t)"--transport";
	argv[k++] = (char *)(uintptr_t)(strcmp(transport, "tcp") ? "shm" : "tcp");
	for (uint32_t i = 0; i < items->n; i++)
		argv[k++] = items->text[i];
	argv[k] = NULL;
	if (!argv[0] || pipe2(fds, O_CLOEXEC)) {
		add_why(b, peer, "", "can't be started");
		return;
	}
	sys = start(argv, fds[1], &pid);
	close(fds[1]);
	if (sys) {
		add_why(b, peer, "", strerror(sys));
	} else {
		bool good = read_lines(b, peer, fds[0], until);

		if (!good)
			kill(-pid, SIGKILL);
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		kill(-pid, SIGKILL);
		if (!good)
			add_why(b, peer, "", "its time was over");
		else if (status && json_array_size(b->rows) == had)
			add_why(b, peer, "", "it failed; stderr says why");
	}
	close(fds[0]);
}

/* ---- the list ---- */

static bool
is_wanted(const char *wanted, const char *name)
{
	size_t n = strlen(name);

	if (!strcmp(wanted, "all"))
		return true;
	for (const char *p = wanted; *p; p += strcspn(p, ","), p += *p == ',')
		if (strcspn(p, ",") == n && !memcmp(p, name, n))
			return true;
	return false;
}

static void
run_listed(struct bench *b, const json_t *list, const char *wanted)
{
	struct items items = { .n = 0 };
	json_t *one;
	size_t i;

	items_of(b->rows, &items);
	json_array_foreach(json_object_get(list, "peers"), i, one) {
		const char *name = json_string_value(json_object_get(one, "name")), *why = json_string_value(json_object_get(one, "why"));

		if (!name || signals_got() || !is_wanted(wanted, name))
			continue;
		if (why)
			add_why(b, name, "", why);
		else if (items.n)
			run_peer(b, name, json_object_get(one, "command"), &items);
		else
			add_why(b, name, "", "no peer has anything like it");
	}
}

/* The names of --peers; NULL: there are none to be run. */
static const char *
wanted_of(const struct cli *cli)
{
	const char *wanted = option_text(&cli->o, OPT_PEERS, NULL);

	return wanted && strcmp(wanted, "none") ? wanted : NULL;
}

static bool
is_listed(const json_t *list, const char *name, size_t n)
{
	json_t *one;
	size_t i;

	json_array_foreach(json_object_get(list, "peers"), i, one) {
		const char *had = json_string_value(json_object_get(one, "name"));

		if (had && strlen(had) == n && !memcmp(had, name, n))
			return true;
	}
	return false;
}

int
bench_peers_check(const struct cli *cli)
{
	const char *wanted = wanted_of(cli);
	json_t *list = wanted ? read_list(cli) : NULL;
	int status = !wanted || list ? EXIT_DONE : EXIT_FAILED;

	for (const char *p = wanted; list && status == EXIT_DONE && strcmp(wanted, "all"); p += *p == ',') {
		size_t n = strcspn(p, ",");

		if (!is_listed(list, p, n))
			status = cli_usage(cli, "--peers has '%.*s', which bench/install has not listed; expected all, none, or names", (int)n, p);
		p += n;
		if (!*p)
			break;
	}
	json_decref(list);
	return status;
}

int
bench_peers(struct bench *b)
{
	const char *wanted = wanted_of(b->cli);
	json_t *list;

	if (!wanted || b->s.rank != 0)
		return EXIT_DONE;
	list = read_list(b->cli);
	if (!list)
		return EXIT_FAILED;
	run_listed(b, list, wanted);
	json_decref(list);
	return EXIT_DONE;
}
