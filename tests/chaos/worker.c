/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.c - one member of the groups that chaos breaks. Reads a line a round on stdin (key=value ...), goes through
 * create, split, gather, update, free, and tells what came of each as JSON lines on stdout; "quit" ends it. It judges
 * nothing: judge.py does. With lie= it tells or does something wrong, so that the judge can be tested.
 *
 *     worker transport=auto bind=127.0.0.1 advertise= insecure=1
 */
#include "content.h"
#include "harm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 16, WORDS = 64, LINE = 4096 };

struct words {
	char line[LINE];
	char *word[WORDS];
	int n;
};

struct round {
	const struct words *w;
	const char *role, *dest, *lie;
	uint32_t rank, size, version, old;
	bool failed;
	struct ist_group *group, *child;
	struct ist_sync *sync;
	struct ist_checkpoint *ck;
	struct ist_sink *sink;
	struct content content; /* a source's, or what is in a sink that keeps it */
	struct ist_error err;
	double began;
};

static struct ist_env *env;
static struct ist_endpoint *endpoint;

/* ---- words ---- */

static bool
split_words(struct words *w)
{
	w->n = 0;
	for (char *p = strtok(w->line, " \n"); p && w->n < WORDS; p = strtok(NULL, " \n"))
		w->word[w->n++] = p;
	return w->n > 0;
}

static const char *
word(const struct words *w, const char *key)
{
	size_t n = strlen(key);

	for (int i = 0; i < w->n; i++)
		if (!strncmp(w->word[i], key, n) && w->word[i][n] == '=')
			return w->word[i] + n + 1;
	return "";
}

static uint32_t
number(const struct words *w, const char *key)
{
	return (uint32_t)strtoul(word(w, key), NULL, 10);
}

static int64_t
seconds(const struct words *w, const char *key)
{
	return (int64_t)(strtod(word(w, key), NULL) * 1e9);
}

static bool
read_line(struct words *w)
{
	return fgets(w->line, sizeof(w->line), stdin) && split_words(w);
}

/* ---- telling ---- */

static void
escape(char *out, size_t room, const char *in)
{
	size_t n = 0;

	for (; *in && n + 8 < room; in++) {
		unsigned char c = (unsigned char)*in;

		if (c == '"' || c == '\\')
			out[n++] = '\\';
		if (c < 0x20)
			n += (size_t)snprintf(out + n, room - n, "\\u%04x", c);
		else
			out[n++] = (char)c;
	}
	out[n] = 0;
}

static void
list_ranks(char *out, size_t room, const uint32_t *ranks, uint32_t n)
{
	size_t at = 0;

	*out = 0;
	for (uint32_t i = 0; i < n && at + 12 < room; i++)
		at += (size_t)snprintf(out + at, room - at, "%s%u", i ? "," : "", ranks[i]);
}

static bool
lies(const struct round *r, const char *how)
{
	return !strcmp(r->lie, how);
}

/* A liar names another than it should. */
static void
misname(struct round *r, struct ist_error *e)
{
	uint32_t size = r->size, wrong = size;

	for (uint32_t i = 0; i < size && wrong == size; i++) {
		bool named = i == r->rank;

		for (uint32_t k = 0; k < e->n_ranks; k++)
			named |= e->ranks[k] == i;
		if (!named)
			wrong = i;
	}
	e->n_ranks = 1;
	e->ranks[0] = lies(r, "misname-self") ? r->rank : wrong;
	e->n_per_rank = 0;
}

static void
tell(struct round *r, enum phase phase, ist_err code)
{
	struct ist_error *e = &r->err;
	uint32_t per[IST_ERROR_RANKS];
	char detail[2048], ranks[512], per_rank[512];

	if (code && (lies(r, "misname") || lies(r, "misname-self")))
		misname(r, e);
	if (code && (lies(r, "nameless") || (phase == RETRY && lies(r, "nameless-retry"))))
		e->n_ranks = e->n_per_rank = 0;
	if (code && ((phase == UPDATE && lies(r, "alone")) || (phase == SPLIT && lies(r, "alone-split"))))
		code = IST_OK;
	for (uint32_t i = 0; code && i < e->n_per_rank; i++)
		per[i] = e->per_rank[i].rank;
	list_ranks(ranks, sizeof(ranks), e->ranks, code ? e->n_ranks : 0);
	list_ranks(per_rank, sizeof(per_rank), per, code ? e->n_per_rank : 0);
	escape(detail, sizeof(detail), code ? e->detail : "");
	say("{\"ev\":\"done\",\"phase\":\"%s\",\"code\":\"%s\",\"same\":%s,\"op\":\"%s\",\"ranks\":[%s],\"per\":[%s],\"ms\":%.3f,\"t\":%.6f,\"detail\":\"%s\"}",
		phase_names[phase], ist_err_name(code), !code || code == e->code ? "true" : "false", code ? e->op : "", ranks, per_rank,
		(now_s() - r->began) * 1e3, now_s(), detail);
	r->failed |= code != IST_OK;
}

static void
enter(struct round *r, enum phase phase)
{
	struct words go;

	if (!strcmp(word(r->w, "hold"), phase_names[phase])) {
		say("{\"ev\":\"hold\",\"phase\":\"%s\"}", phase_names[phase]);
		read_line(&go);
	}
	ist_error_init(&r->err);
	say("{\"ev\":\"at\",\"phase\":\"%s\",\"t\":%.6f}", phase_names[phase], now_s());
	r->began = now_s();
	harm_phase(phase);
	while (lies(r, "hang") && phase == UPDATE)
		pause();
}

/* ---- a sink that keeps what it takes, in place ---- */

static ist_err
keep_piece(void *ctx, uint64_t index, uint64_t offset, const void *addr, uint64_t bytes, struct ist_error *err)
{
	struct round *r = ctx;
	struct timespec t = { .tv_nsec = (long)number(r->w, "slow_us") * 1000 };

	(void)err;
	if (index >= CONTENT_TENSORS || offset + bytes > content_bytes(&r->content, (uint32_t)index))
		return IST_INTERNAL;
	if (t.tv_nsec)
		nanosleep(&t, NULL);
	if (!lies(r, "unmoved"))
		memcpy(r->content.at[index] + offset, addr, bytes);
	return IST_OK;
}

/* Which version the sink's memory holds; 0: none of the two, that is, torn. Files are looked at by others: -1. */
static int
held_version(struct round *r)
{
	uint32_t versions[2] = { r->version, r->old };

	if (!r->sink || (strcmp(r->dest, "keep") != 0 && strcmp(r->dest, "mem:") != 0))
		return -1;
	for (int v = 0; v < 2; v++) {
		bool is = true;

		for (uint32_t i = 0; i < CONTENT_TENSORS && is; i++) {
			struct ist_tensor t = { .struct_size = sizeof(t), .addr = r->content.at[i] };

			if (!strcmp(r->dest, "mem:") && ist_sink_tensor(r->sink, r->content.names[i], &t, NULL) != IST_OK)
				return -1; /* nothing was ever committed */
			is = content_tensor_is(&r->content, i, versions[v], t.addr);
		}
		if (is)
			return (int)versions[v];
	}
	return 0;
}

/* ---- the phases ---- */

/* The same by a request, which another thread may cancel. */
static ist_err
form_async(struct round *r, const struct ist_group_args *a)
{
	struct ist_req *req;
	ist_err e = ist_group_new_start(endpoint, a, &req, &r->err);

	if (e)
		return e;
	harm_forming(req);
	e = ist_req_wait(req, -1, &r->err);
	harm_forming(NULL);
	if (!e)
		e = ist_req_group(req, &r->group, &r->err);
	ist_req_free(req);
	return e;
}

static bool
do_create(struct round *r)
{
	const struct words *w = r->w;
	struct ist_group_args a = { .struct_size = sizeof(a), .rank = r->rank, .size = r->size, .name = word(w, "group"), .at = word(w, "at"),
		.backend = *word(w, "backend") ? word(w, "backend") : NULL, .timeout_ns = seconds(w, "timeout"), .no_progress_ns = seconds(w, "noprog") };

	if (!strcmp(word(w, "host"), "no"))
		a.host_meeting = IST_HOST_MEETING_NO;
	enter(r, CREATE);
	tell(r, CREATE, number(w, "async") ? form_async(r, &a) : ist_group_new(endpoint, &a, &r->group, &r->err));
	harm_group(r->group);
	return r->group;
}

/* Outside the child: in the parent still, until it is told to go or killed. */
static void
linger(void)
{
	struct words go;

	say("{\"ev\":\"linger\"}");
	read_line(&go);
}

/* True: go on with the child. */
static bool
do_split(struct round *r)
{
	struct ist_split_args a = { .struct_size = sizeof(a), .name = "child" };
	char text[256], *p = text;
	uint32_t ranks[RANKS];
	bool in = false;

	snprintf(text, sizeof(text), "%s", word(r->w, "split"));
	if (!*text)
		return true;
	while (*p && a.n_ranks < RANKS) {
		ranks[a.n_ranks] = (uint32_t)strtoul(p, &p, 10);
		in |= ranks[a.n_ranks++] == r->rank;
		p += *p == ',';
	}
	if (!in) {
		if (number(r->w, "linger"))
			linger();
		return false;
	}
	a.ranks = ranks;
	enter(r, SPLIT);
	tell(r, SPLIT, ist_group_split(r->group, &a, &r->child, &r->err));
	if (r->child)
		harm_group(r->child);
	return r->child;
}

static ist_err
open_source(struct round *r)
{
	struct ist_tensor t[CONTENT_TENSORS];
	ist_err e;

	content_list(&r->content, t);
	e = ist_checkpoint_from_tensors(env, t, CONTENT_TENSORS, &r->ck, &r->err);
	return e ? e : ist_sync_source(r->sync, r->ck, 0, 0, &r->err);
}

static ist_err
open_sink(struct round *r)
{
	struct ist_sink_ops ops = { .struct_size = sizeof(ops), .ctx = r, .piece = keep_piece, .in_place = 1 };
	ist_err e = !strcmp(r->dest, "keep") ? ist_sink_custom(env, &ops, &r->sink, &r->err) :
		ist_sink_open(env, lies(r, "unmoved") ? "null:" : r->dest, 0, &r->sink, &r->err);

	return e ? e : ist_sync_sink(r->sync, r->sink, &r->err);
}

static bool
do_gather(struct round *r)
{
	struct ist_sync_args a = { .struct_size = sizeof(a), .bucket_bytes = (uint64_t)number(r->w, "bucket_kb") << 10,
		.on_loss = !strcmp(word(r->w, "on_loss"), "continue") ? IST_ON_LOSS_CONTINUE : IST_ON_LOSS_FAIL };
	bool source = !strcmp(r->role, "source");
	ist_err e;

	enter(r, GATHER);
	e = ist_sync_new(r->child ? r->child : r->group, &a, &r->sync, &r->err);
	if (!e)
		e = source ? open_source(r) : open_sink(r);
	if (!e)
		e = ist_sync_gather(r->sync, 0, &r->err);
	tell(r, GATHER, e);
	return e == IST_OK;
}

/* phase: UPDATE, or RETRY for the one at once after a failure. */
static ist_err
update_once(struct round *r, enum phase phase)
{
	struct ist_update_args a = { .struct_size = sizeof(a), .version = r->version };
	struct ist_report rep = { .struct_size = sizeof(rep) };
	uint32_t kind = 0, lost[IST_ERROR_RANKS];
	uint64_t version = 0, to = 0;
	char list[512];
	ist_err e;

	enter(r, UPDATE);
	e = ist_sync_update(r->sync, &a, &rep, &r->err);
	tell(r, phase, e);
	for (uint32_t i = 0; !e && i < rep.n_lost; i++)
		lost[i] = lies(r, "mislost") ? r->rank : rep.lost[i].rank; /* itself, which goes on */
	list_ranks(list, sizeof(list), lost, e ? 0 : rep.n_lost);
	ist_sync_state(r->sync, &kind, &version, &to, NULL);
	say("{\"ev\":\"state\",\"of\":\"%s\",\"kind\":%u,\"version\":%llu,\"to\":%llu,\"held\":%d,\"verified\":%u,\"lost\":[%s]}", phase_names[phase], kind, (unsigned long long)version,
		(unsigned long long)to, held_version(r), rep.verified, list);
	return e;
}

static void
do_update(struct round *r)
{
	if (update_once(r, UPDATE) != IST_OK && number(r->w, "retry"))
		update_once(r, RETRY);
}

static void
do_free(struct round *r)
{
	ist_err e = IST_OK;

	enter(r, FREE);
	ist_sync_free(r->sync);
	ist_sink_free(r->sink);
	ist_checkpoint_free(r->ck);
	harm_group(NULL);
	if (r->child)
		e = ist_group_free(r->child);
	if (r->group && !e)
		e = ist_group_free(r->group);
	r->err.code = e;
	tell(r, FREE, e);
}

/* ---- planted faults ---- */

static void
litter(const struct round *r)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX, .sun_path = "\0isthmus-left" };
	int fd = -1;

	if (!strncmp(r->lie, "litter-shm", 10))
		close(open("/dev/shm/left", O_CREAT | O_CLOEXEC | O_WRONLY, 0600));
	else if (!strncmp(r->lie, "litter-dest", 11)) {
		char path[LINE];

		snprintf(path, sizeof(path), "%s/.left", word(r->w, "folder"));
		close(open(path, O_CREAT | O_CLOEXEC | O_WRONLY, 0600));
	} else if (!strncmp(r->lie, "litter-fd", 9))
		fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	else if (!strncmp(r->lie, "litter-socket", 13)) {
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (bind(fd, (struct sockaddr *)&un, sizeof(sa_family_t) + 13))
			fd = -1;
	}
	(void)fd; /* kept, that is the fault */
}

/* ---- a round ---- */

static bool
go_round(const struct words *w)
{
	struct round r = { .w = w, .role = word(w, "role"), .dest = word(w, "dest"), .lie = word(w, "lie"), .rank = number(w, "rank"),
		.size = number(w, "world"), .version = number(w, "version"), .old = number(w, "old") };
	bool source = !strcmp(r.role, "source");
	struct harm harm;

	ist_error_init(&r.err);
	if (!harm_parse(&harm, word(w, "harm")) || !harm_start(&harm) ||
	    !content_make(&r.content, (uint64_t)number(w, "kb") << 10, source ? r.version : r.old))
		return false;
	litter(&r);
	if (do_create(&r) && do_split(&r) && do_gather(&r))
		do_update(&r);
	do_free(&r);
	harm_phase(IDLE);
	harm_stop();
	content_free(&r.content);
	say("{\"ev\":\"idle\",\"t\":%.6f}", now_s());
	return true;
}

/* ---- the process ---- */

static void
on_log(void *ctx, int32_t level, const char *msg)
{
	(void)ctx;
	fprintf(stderr, "%.6f %d: %s\n", now_s(), level, msg);
}

static int
count(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static void
tell_open(void)
{
	char path[64], at[256];
	DIR *d = opendir("/proc/self/fd");

	for (struct dirent *x; d && (x = readdir(d));) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%.20s", x->d_name);
		n = readlink(path, at, sizeof(at) - 1);
		if (n > 0)
			fprintf(stderr, "open at the end: %s %.*s\n", x->d_name, (int)n, at);
	}
	if (d)
		closedir(d);
}

/* Library threads that were told to end may need a moment; what is left after a second is left. */
static void
tell_end(int fds, int threads)
{
	struct timespec t = { .tv_nsec = 2000000 };
	int now_fds = 0, now_threads = 0;

	for (double until = now_s() + 1; now_s() < until; nanosleep(&t, NULL)) {
		now_fds = count("/proc/self/fd");
		now_threads = count("/proc/self/task");
		if (now_fds <= fds && now_threads <= threads)
			break;
	}
	if (now_fds > fds)
		tell_open();
	say("{\"ev\":\"end\",\"fds\":%d,\"threads\":%d}", now_fds - fds, now_threads - threads);
}

static bool
set_up(const struct words *w, struct ist_error *err)
{
	struct ist_env_args ea = { .struct_size = sizeof(ea), .log_level = IST_LOG_DEBUG, .log = on_log, .alloc = harm_alloc, .free = harm_free };
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .insecure = number(w, "insecure"),
		.bind = *word(w, "bind") ? word(w, "bind") : NULL, .advertise = *word(w, "advertise") ? word(w, "advertise") : NULL };

	if (!strcmp(word(w, "transport"), "shm"))
		pa.transport = IST_TRANSPORT_SHM;
	else if (!strcmp(word(w, "transport"), "tcp"))
		pa.transport = IST_TRANSPORT_TCP;
	return ist_env_new(&ea, &env, err) == IST_OK && ist_endpoint_new(env, &pa, &endpoint, err) == IST_OK;
}

#ifdef __SANITIZE_THREAD__
static void *
nothing(void *arg)
{
	return arg;
}
#endif

/* The thread sanitizer makes a thread of its own with the first one of ours: it is no leftover. */
static void
warm_up(void)
{
#ifdef __SANITIZE_THREAD__
	pthread_t t;

	if (pthread_create(&t, NULL, nothing, NULL) == 0)
		pthread_join(t, NULL);
#endif
}

int
main(int argc, char **argv)
{
	struct words w = { .n = 0 }, mine = { .n = 0 };
	int fds, threads;
	struct ist_error err;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setvbuf(stdin, malloc(LINE), _IOFBF, LINE);
	setvbuf(stderr, malloc(LINE), _IOLBF, LINE);
	for (int i = 1; i < argc && i < WORDS; i++)
		mine.word[mine.n++] = argv[i];
	warm_up();
	fds = count("/proc/self/fd");
	threads = count("/proc/self/task");
	ist_error_init(&err);
	if (!set_up(&mine, &err)) {
		fprintf(stderr, "worker: %s\n", err.detail);
		return 3;
	}
	say("{\"ev\":\"up\",\"t\":%.6f}", now_s());
	while (read_line(&w) && strcmp(w.word[0], "quit") != 0)
		if (!go_round(&w))
			return 3;
	ist_endpoint_free(endpoint);
	ist_env_free(env);
	tell_end(fds, threads);
	return 0;
}
