/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer.h"

#include "progress.h"
#include "signals.h"
#include "value.h"

#include <string.h>

int
transfer_open_source(struct transfer *t, const char *path)
{
	const struct cli *cli = t->s.cli;
	struct ist_checkpoint_args args = { .struct_size = sizeof(args), .weights_only = option_on(&cli->o, OPT_WEIGHTS_ONLY) };
	struct ist_error err;

	ist_error_init(&err);
	if (!ist_checkpoint_open(t->s.env, path, &args, &t->ck, &err))
		return EXIT_DONE;
	snprintf(t->why, sizeof(t->why), "its checkpoint can't be opened: %s", err.detail);
	return cli_fail(cli, &err);
}

int
transfer_open_sink(struct transfer *t, const char *dest)
{
	const struct cli *cli = t->s.cli;
	struct ist_sink_args args = { .struct_size = sizeof(args), .device = -1 };
	struct ist_error err;

	if (option_on(&cli->o, OPT_NO_REPLACE))
		args.flags |= IST_SINK_NO_REPLACE;
	if (option_on(&cli->o, OPT_WEIGHTS_ONLY))
		args.flags |= IST_SINK_WEIGHTS_ONLY;
	if (!strcmp(dest, "mem:")) {
		args.mem = t->s.mem;
		args.device = t->s.device;
	}
	ist_error_init(&err);
	if (!ist_sink_open_at(t->s.env, dest, &args, &t->sink, &err))
		return EXIT_DONE;
	snprintf(t->why, sizeof(t->why), "its destination can't be opened: %s", err.detail);
	return cli_fail_argument(cli, &err);
}

static ist_err
register_with(struct transfer *t, struct ist_error *err)
{
	const struct options *o = &t->s.cli->o;
	struct ist_sync_args args = {
		.struct_size = sizeof(args),
		.on_loss = (uint32_t)option_number(o, OPT_ON_LOSS, IST_ON_LOSS_FAIL),
		.bucket_bytes = option_number(o, OPT_BUCKET, 0),
		.progress = progress_bytes,
		.slow_ns = (int64_t)option_number(o, OPT_SLOW_AFTER, 0),
	};
	ist_err code = ist_sync_new(t->s.group, &args, &t->sync, err);

	if (code == IST_OK && t->ck)
		code = ist_sync_source(t->sync, t->ck, (uint32_t)option_number(o, OPT_PART, 0), o->v[OPT_PART].parts, err);
	if (code == IST_OK && t->sink)
		code = ist_sync_sink(t->sync, t->sink, err);
	return code;
}

int
transfer_update(struct transfer *t)
{
	const struct cli *cli = t->s.cli;
	struct ist_update_args args = {
		.struct_size = sizeof(args),
		.force = option_on(&cli->o, OPT_FORCE),
		.version = option_number(&cli->o, OPT_VERSION, 0),
		.label = option_text(&cli->o, OPT_LABEL, NULL),
	};
	int64_t start = now_ns();
	struct ist_error err;
	ist_err code;

	ist_error_init(&err);
	progress_start(t->ck ? "push" : "pull", cli->quiet);
	code = register_with(t, &err);
	if (code && !signals_got()) { /* the others are told why, instead of only that we have left */
		snprintf(t->why, sizeof(t->why), "what it has can't be registered: %s", err.detail);
		ist_group_abort(t->s.group, t->why);
	}
	t->register_s = seconds_since(start);
	start = now_ns();
	if (code == IST_OK)
		code = ist_sync_gather(t->sync, cli_left_ns(cli), &err);
	t->gather_s = seconds_since(start);
	start = now_ns();
	t->report = (struct ist_report){ .struct_size = sizeof(t->report) };
	args.timeout_ns = cli_left_ns(cli);
	if (code == IST_OK)
		code = ist_sync_update(t->sync, &args, &t->report, &err);
	t->update_s = seconds_since(start);
	progress_end();
	return code ? cli_fail(cli, &err) : EXIT_DONE;
}

static json_t *
lost_of(const struct ist_report *r)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < r->n_lost && i < IST_ERROR_RANKS; i++)
		json_array_append_new(list, json_pack("{s:i,s:s}", "rank", (int)r->lost[i].rank, "code", ist_err_name(r->lost[i].code)));
	return list;
}

static json_t *
seconds_of(const struct transfer *t)
{
	const struct ist_report *r = &t->report;

	return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "meet", t->s.meet_s, "register", r->seconds_register > 0 ? r->seconds_register : t->register_s,
		"gather", r->seconds_gather > 0 ? r->seconds_gather : t->gather_s, "plan", r->seconds_plan, "update",
		r->seconds_update > 0 ? r->seconds_update : t->update_s, "verify", r->seconds_verify, "total", seconds_since(t->s.cli->started_ns));
}

json_t *
transfer_document(const struct transfer *t)
{
	struct ist_group_info info = { .struct_size = sizeof(info) };
	const struct ist_report *r = &t->report;
	json_t *doc;

	ist_group_info(t->s.group, &info, NULL);
	doc = json_pack("{s:o,s:i,s:i,s:o,s:{s:i,s:i},s:o,s:o,s:o,s:o}", "group", json_text(info.name), "rank", (int)t->s.rank, "world",
		(int)t->s.world, "backend", json_text(info.backend), "transport", "shm", (int)info.shm_pairs, "tcp", (int)info.tcp_pairs,
		"version", json_u64(r->version), "label", json_text(r->label), "tensors", json_u64(r->tensors), "bytes", json_u64(r->bytes));
	if (!doc)
		return NULL;
	json_object_set_new(doc, "changed", r->known_before ? json_u64(r->changed) : json_null());
	json_object_set_new(doc, "bucket_bytes", json_u64(r->bucket_bytes));
	json_object_set_new(doc, "buckets", json_u64(r->buckets));
	json_object_set_new(doc, "memory", json_pack("{s:o,s:o}", "private", json_u64(info.memory_bytes), "shared", json_u64(info.shared_bytes)));
	json_object_set_new(doc, "seconds", seconds_of(t));
	json_object_set_new(doc, "digest", json_text(r->digest));
	json_object_set_new(doc, "verified", json_boolean(r->verified));
	json_object_set_new(doc, "lost", lost_of(r));
	return doc;
}

static void
tell_lost(const struct ist_report *r)
{
	for (uint32_t i = 0; i < r->n_lost && i < IST_ERROR_RANKS; i++)
		cli_add("  lost: rank %u, %s\n", r->lost[i].rank, ist_err_name(r->lost[i].code));
}

int
transfer_tell(const struct transfer *t)
{
	const struct cli *cli = t->s.cli;
	const struct ist_report *r = &t->report;
	double update_s = r->seconds_update > 0 ? r->seconds_update : t->update_s;
	char size[24], rate[24], label[sizeof(r->label)];

	tell_lost(r);
	memcpy(label, r->label, sizeof(label));
	if (cli->json)
		return cli_print(transfer_document(t));
	if (cli->quiet)
		return EXIT_DONE;
	printf("version %llu%s%s: %llu tensors, %s in %.3f s (%s/s)%s, digest %s\n", (unsigned long long)r->version, r->label[0] ? " " : "",
		cli_plain(label), (unsigned long long)r->tensors, human_bytes(r->bytes, size), update_s,
		human_bytes(update_s > 0 ? (uint64_t)((double)r->bytes / update_s) : 0, rate), r->verified ? ", verified" : ", NOT verified", r->digest);
	if (r->known_before)
		printf("  %llu of %llu tensors changed\n", (unsigned long long)r->changed, (unsigned long long)r->tensors);
	return cli_printed();
}

void
transfer_close(struct transfer *t)
{
	signals_ends(NULL, NULL);
	if (t->sync)
		ist_sync_free(t->sync);
	if (t->sink)
		ist_sink_free(t->sink);
	if (t->ck)
		ist_checkpoint_free(t->ck);
	session_close(&t->s);
}
