/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "value.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MOVERS (SET_PUSH | SET_PULL)
#define FOR_SECRET (SET_NET | SET_STORE | SET_STATUS | SET_SECRET)

static const struct option rows[] = {
	/* where the members meet */
	{ OPT_AT, TYPE_TEXT, 0, SET_MEET | SET_STATUS, 0, 0, "at", "ADDR",
		"meeting place: tcp://HOST:PORT or dir:/shared/folder; default tcp://$MASTER_ADDR:$ISTHMUS_PORT" },
	{ OPT_GROUP, TYPE_NAME, 0, SET_MEET | SET_STATUS, 0, 255, "group", "NAME", "name of the group; default \"\" (status: all)" },
	{ OPT_WORLD, TYPE_NUMBER, 0, SET_MEET, 1, 0, "world", "N",
		"members of the whole group, at most 4096; default: the launcher's count, unless --rank-offset is given" },
	{ OPT_RANK, TYPE_NUMBER, 0, SET_MEET, 0, 4095, "rank", "R", "rank of this process; default: the launcher's, plus --rank-offset" },
	{ OPT_RANK_OFFSET, TYPE_NUMBER, 0, SET_MEET, 0, 4095, "rank-offset", "K",
		"added to the launcher's rank, so that two launchers' jobs become one group; needs --world" },
	{ OPT_HOST_MEETING, TYPE_FLAG, 0, SET_MEET, 0, 0, "host-meeting", NULL, "this process hosts the meeting place; default: rank 0 does" },
	{ OPT_NO_HOST_MEETING, TYPE_FLAG, 0, SET_MEET, 0, 0, "no-host-meeting", NULL, "this process does not host it, a store does" },
	/* addresses and secret */
	{ OPT_BIND, TYPE_TEXT, 0, SET_NET, 0, 0, "bind", "ADDR",
		"where to listen: ADDR[:PORT], INTERFACE or CIDR, comma separated; default: the address that reaches the meeting place" },
	{ OPT_STORE_BIND, TYPE_TEXT, 0, SET_STORE, 0, 0, "bind", "HOST:PORT", "where to listen; port 0: any" },
	{ OPT_ADVERTISE, TYPE_TEXT, 0, SET_NET, 0, 0, "advertise", "HOST[:PORT]", "address to tell the others (behind NAT)" },
	{ OPT_SECRET_FILE, TYPE_TEXT, 0, FOR_SECRET, 0, 0, "secret-file", "FILE",
		"shared secret, at least 16 bytes, readable by its owner only; required off loopback" },
	{ OPT_INSECURE, TYPE_FLAG, 0, FOR_SECRET, 0, 0, "insecure", NULL, "go without a secret off loopback" },
	/* how bytes move */
	{ OPT_BACKEND, TYPE_TEXT, 0, SET_MOVE, 0, 0, "backend", "NAME", "backend, or the path of a plug-in; default auto" },
	{ OPT_DEVICE, TYPE_TEXT, 0, SET_MOVE, 0, 0, "device", "DEVICE", "where the buckets live, and a sink mem: has its tensors: auto, host, cuda[:N] or ascend[:N]; default auto: host" },
	{ OPT_TRANSPORT, TYPE_CHOICE, 0, SET_MOVE, 0, 0, "transport", "auto|shm|tcp", "forces shared memory or TCP; default auto" },
	{ OPT_BUCKET, TYPE_BYTES, 0, SET_MOVE, 65536, 0, "bucket", "SIZE", "bytes of one bucket; the least of all members counts; default 128MiB" },
	/* updates */
	{ OPT_PART, TYPE_PART, 0, SET_PUSH, 0, 0, "part", "I/N", "this source gives share I (from 0) of N equal ones; default: shared by agreement" },
	{ OPT_VERSION, TYPE_NUMBER, 0, MOVERS, 1, 0, "version", "V", "version of the update; default: one more than any member knows" },
	{ OPT_LABEL, TYPE_NAME, 0, SET_PUSH, 0, 64, "label", "TEXT", "travels with the version; at most 64 bytes" },
	{ OPT_ON_LOSS, TYPE_CHOICE, 0, MOVERS, 0, 0, "on-loss", "fail|continue",
		"when a sink is lost: all fail, or the others go on; equal on all members; default fail" },
	{ OPT_SLOW_AFTER, TYPE_SECONDS, 0, MOVERS, 0, 0, "slow-after", "SECONDS",
		"with --on-loss continue: leave a sink behind that all others have waited for so long; default a third of --no-progress" },
	{ OPT_FORCE, TYPE_FLAG, 0, MOVERS, 0, 0, "force", NULL, "allow a version that is not above the committed one" },
	{ OPT_WEIGHTS_ONLY, TYPE_FLAG, 0, MOVERS, 0, 0, "weights-only", NULL, "leave the folder's other files behind" },
	{ OPT_NO_REPLACE, TYPE_FLAG, 0, SET_PULL, 0, 0, "no-replace", NULL, "an existing DEST is a CONFLICT" },
	/* single verbs */
	{ OPT_DIGESTS, TYPE_FLAG, 0, SET_INSPECT, 0, 0, "digests", NULL, "read everything and show the digests" },
	{ OPT_WATCH, TYPE_FLAG, 0, SET_STATUS, 0, 0, "watch", NULL, "ask again every second until interrupted" },
	{ OPT_VERSION_AT_LEAST, TYPE_NUMBER, 0, SET_STATUS, 1, 0, "version-at-least", "V", "only members that may be trusted with version V" },
	{ OPT_RANKS, TYPE_NUMBER, 'n', SET_RUN, 1, 4096, "ranks", "N", "processes to start" },
	{ OPT_BENCH_RANKS, TYPE_NUMBER, 'n', SET_BENCH, 1, 4096, "ranks", "N",
		"start N processes on this machine; default: the launcher's, or 2 where there is none" },
	{ OPT_REPEAT, TYPE_NUMBER, 0, SET_BENCH, 1, 100000, "repeat", "N", "times each row is measured; default 5" },
	{ OPT_SIZE, TYPE_BYTES, 0, SET_BENCH, 1, 0, "size", "SIZE", "broadcast, objects: one size instead of the usual row of sizes" },
	{ OPT_SOURCES, TYPE_NUMBER, 0, SET_BENCH, 1, 4095, "sources", "N", "update: the first N ranks give, each its share of the tensors; default 1" },
	{ OPT_SOURCES_ON, TYPE_CHOICE, 0, SET_BENCH, 0, 0, "sources-on", "host|device", "update: where the sources have their tensors; default host" },
	{ OPT_CHECKPOINT, TYPE_TEXT, 0, SET_BENCH, 0, 0, "checkpoint", "PATH", "load, update: measure with this checkpoint" },
	{ OPT_PEERS, TYPE_TEXT, 0, SET_BENCH, 0, 0, "peers", "LIST",
		"run these beside: all, none, or names such as openmpi,gloo, as bench/install has installed them; default none" },
	{ OPT_LAYOUT, TYPE_CHOICE, 0, SET_MAKE | SET_BENCH, 0, 0, "layout", "qwen3-0.6b|qwen3-8b|qwen3-30b-a3b", "tensor names and shapes of a known model" },
	{ OPT_LAYERS, TYPE_NUMBER, 0, SET_MAKE | SET_BENCH, 0, 1000, "layers", "N", "cut the layout to N layers" },
	{ OPT_TENSORS, TYPE_NUMBER, 0, SET_MAKE | SET_BENCH, 1, 10000000, "tensors", "N", "no layout: N tensors of about equal size" },
	{ OPT_BYTES, TYPE_BYTES, 0, SET_MAKE | SET_BENCH, 0, 0, "bytes", "SIZE", "no layout: bytes of all tensors together" },
	{ OPT_SEED, TYPE_NUMBER, 0, SET_MAKE, 0, 0, "seed", "N", "equal seeds give equal bytes; default 1" },
	{ OPT_MODEL, TYPE_TEXT, 0, SET_DEMO, 0, 0, "model", "DIR", "checkpoint to push; default: $MODEL, else one is made (about 340 MB)" },
	{ OPT_WORLDS, TYPE_CHOICE, 0, SET_DEMO | SET_MEMBER, 0, 0, "worlds", "isthmus|mpi", "what the two worlds are; default: $WORLD, else isthmus" },
	{ OPT_OUT, TYPE_TEXT, 0, SET_MEMBER, 0, 0, "out", "DIR", "demo: where a member leaves its results" },
	/* every verb */
	{ OPT_TIMEOUT, TYPE_SECONDS, 0, SET_COMMON, 0, 0, "timeout", "SECONDS",
		"deadline of the whole call; default 300 (run, store, demo and --watch: none)" },
	{ OPT_NO_PROGRESS, TYPE_SECONDS, 0, SET_COMMON, 0, 0, "no-progress", "SECONDS", "how long a member may be silent; default 30" },
	{ OPT_LOG_LEVEL, TYPE_CHOICE, 0, SET_COMMON, 0, 0, "log-level", "error|warn|info|debug|trace", "what is told on stderr; default info" },
	{ OPT_JSON, TYPE_FLAG, 0, SET_COMMON, 0, 0, "json", NULL, "one JSON document on stdout, nothing else there" },
	{ OPT_QUIET, TYPE_FLAG, 'q', SET_COMMON, 0, 0, "quiet", NULL, "errors only; no progress" },
	{ OPT_HELP, TYPE_FLAG, 'h', SET_COMMON, 0, 0, "help", NULL, "this text" },
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

const struct option *
option_row(uint32_t index)
{
	return index < N_ROWS ? &rows[index] : NULL;
}

const char *
option_variable(const struct option *opt, char room[64])
{
	int n = snprintf(room, 64, "ISTHMUS_%s", opt->name);

	for (int i = 8; i < n; i++)
		room[i] = opt->name[i - 8] == '-' ? '_' : (char)toupper((unsigned char)opt->name[i - 8]);
	return room;
}

const char *
option_shown(const struct options *o, enum option_id id, char room[64])
{
	const struct option *opt = rows;

	while (opt->id != id)
		opt++;
	if (o->v[id].from == FROM_VARIABLE)
		return option_variable(opt, room);
	snprintf(room, 64, "--%s", opt->name);
	return room;
}

static bool refuse(struct option_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool
refuse(struct option_error *err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	return false;
}

static const struct option *
find(uint32_t sets, const char *name, size_t n, char letter)
{
	for (size_t i = 0; i < N_ROWS; i++) {
		if (!(rows[i].sets & sets))
			continue;
		if (letter ? rows[i].letter == letter : strlen(rows[i].name) == n && !memcmp(rows[i].name, name, n))
			return &rows[i];
	}
	return NULL;
}

static const char *
expected(const struct option *opt, char room[160])
{
	switch ((enum option_type)opt->type) {
	case TYPE_NUMBER:
		if (opt->max)
			snprintf(room, 160, "a whole number from %llu to %llu", (unsigned long long)opt->min, (unsigned long long)opt->max);
		else
			snprintf(room, 160, "a whole number from %llu on", (unsigned long long)opt->min);
		break;
	case TYPE_BYTES:
		snprintf(room, 160, "a size such as 65536, 64KiB, 128MiB or 2GiB%s", opt->min > 1 ? ", at least 64KiB" : "");
		break;
	case TYPE_SECONDS:
		snprintf(room, 160, "seconds above 0, such as 30 or 0.5");
		break;
	case TYPE_CHOICE:
		snprintf(room, 160, "one of %s", opt->value);
		break;
	case TYPE_PART:
		snprintf(room, 160, "I/N with 0 <= I < N");
		break;
	case TYPE_FLAG:
		snprintf(room, 160, "1 or 0");
		break;
	case TYPE_TEXT:
	case TYPE_UNBUILT:
		snprintf(room, 160, "a text that is not empty");
		break;
	case TYPE_NAME:
		snprintf(room, 160, "a text in UTF-8 of at most %llu bytes", (unsigned long long)opt->max);
		break;
	}
	return room;
}

static bool
in_range(const struct option *opt, uint64_t v)
{
	return v >= opt->min && (opt->max == 0 || v <= opt->max);
}

/* Parses text into *out as the row says. */
static bool
convert(const struct option *opt, const char *text, struct option_value *out)
{
	uint32_t choice = 0, part = 0;
	int64_t ns = 0;
	bool on = false, good = false;

	out->text = text;
	switch ((enum option_type)opt->type) {
	case TYPE_FLAG:
		good = value_flag(text, &on);
		out->number = on;
		break;
	case TYPE_TEXT:
	case TYPE_UNBUILT:
		good = *text != 0;
		break;
	case TYPE_NAME:
		good = strlen(text) <= opt->max && value_utf8(text);
		break;
	case TYPE_NUMBER:
		good = value_u64(text, &out->number) && in_range(opt, out->number);
		break;
	case TYPE_BYTES:
		good = value_bytes(text, &out->number) && in_range(opt, out->number);
		break;
	case TYPE_SECONDS:
		good = value_seconds(text, &ns);
		out->number = (uint64_t)ns;
		break;
	case TYPE_CHOICE:
		good = value_choice(text, opt->value, &choice);
		out->number = choice;
		break;
	case TYPE_PART:
		good = value_part(text, &part, &out->parts);
		out->number = part;
		break;
	}
	return good;
}

static bool
take(struct options *o, const struct option *opt, const char *shown, const char *text, enum option_origin from, struct option_error *err)
{
	struct option_value v = { .from = from };
	char room[160];

	if (opt->type == TYPE_UNBUILT) {
		err->unsupported = true;
		return refuse(err, "%s is not built yet", shown);
	}
	if (!convert(opt, text, &v))
		return refuse(err, "%s is '%s'; expected %s", shown, text, expected(opt, room));
	o->v[opt->id] = v;
	return true;
}

/* One argument that begins with '-'. *i moves on when its value is the next argument. */
static bool
take_argument(struct options *o, uint32_t sets, int argc, char **argv, int *i, struct option_error *err)
{
	char *arg = argv[*i], shown[80];
	bool is_long = arg[1] == '-';
	const char *name = arg + 1 + is_long, *equals = strchr(name, '=');
	size_t n = is_long && equals ? (size_t)(equals - name) : strlen(name);
	const struct option *opt = find(sets, name, n, is_long ? 0 : name[0]);
	const char *text;

	if (!opt || n == 0)
		return refuse(err, "unknown option %.*s; --help lists what there is", (int)(n + 1 + is_long), arg);
	snprintf(shown, sizeof(shown), "--%s", opt->name);
	if (is_long && equals)
		text = equals + 1;
	else if (!is_long && name[1] && opt->type != TYPE_FLAG)
		text = name + 1;
	else if (!is_long && name[1])
		return refuse(err, "unknown option %s; --help lists what there is", arg);
	else if (opt->type == TYPE_FLAG)
		text = "1";
	else if (*i + 1 < argc)
		text = argv[++*i];
	else
		return refuse(err, "%s needs a value: %s", shown, opt->value);
	if (opt->id == OPT_HELP) { /* --help=man: the same as a man page */
		o->v[OPT_HELP] = (struct option_value){ .text = text, .number = 1, .from = FROM_LINE };
		return true;
	}
	return take(o, opt, shown, text, FROM_LINE, err);
}

/* ISTHMUS_* for whatever the line did not give. An empty variable counts as not set. */
static bool
take_variables(struct options *o, uint32_t sets, struct option_error *err)
{
	char name[64];

	for (size_t i = 0; i < N_ROWS; i++) {
		const char *text;

		if (!(rows[i].sets & sets) || rows[i].id == OPT_HELP || rows[i].type == TYPE_UNBUILT || o->v[rows[i].id].from != FROM_DEFAULT)
			continue;
		text = getenv(option_variable(&rows[i], name));
		if (text && *text && !take(o, &rows[i], name, text, FROM_VARIABLE, err))
			return false;
	}
	return true;
}

bool
options_parse(struct options *o, uint32_t sets, bool rest, int argc, char **argv, struct option_error *err)
{
	int i = 0;

	memset(o, 0, sizeof(*o));
	memset(err, 0, sizeof(*err));
	o->args = calloc((size_t)argc + 1, sizeof(*o->args));
	if (!o->args)
		return refuse(err, "out of memory");
	for (; i < argc; i++) {
		if (!strcmp(argv[i], "--")) {
			i++;
			break;
		}
		if (argv[i][0] == '-' && argv[i][1]) {
			if (!take_argument(o, sets, argc, argv, &i, err))
				return false;
		} else {
			o->args[o->n_args++] = argv[i];
			if (rest) {
				i++;
				break;
			}
		}
	}
	for (; i < argc; i++)
		o->args[o->n_args++] = argv[i];
	return option_on(o, OPT_HELP) || take_variables(o, sets, err);
}

bool
options_has_flag(int argc, char **argv, const char *name)
{
	for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
		if (!strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, name))
			return true;
	return false;
}
