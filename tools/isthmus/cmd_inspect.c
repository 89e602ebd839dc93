/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"
#include "session.h"
#include "value.h"

#include <isthmus/sync.h>


struct view {
	struct cli *cli;
	struct ist_checkpoint *ck;
	json_t *tensors; /* NULL: printed as it goes */
};

static json_t *
shape_of(const struct ist_tensor *t)
{
	json_t *shape = json_array();

	for (uint32_t i = 0; i < t->rank && i < IST_DIMS_MAX; i++)
		json_array_append_new(shape, json_u64(t->shape[i]));
	return shape;
}

static void
print_tensor(const struct ist_tensor *t, const char *digest)
{
	char shape[IST_DIMS_MAX * 21 + 3] = "[";
	size_t n = 1;

	for (uint32_t i = 0; i < t->rank && i < IST_DIMS_MAX; i++)
		n += (size_t)snprintf(shape + n, sizeof(shape) - n, "%s%llu", i ? ", " : "", (unsigned long long)t->shape[i]);
	snprintf(shape + n, sizeof(shape) - n, "]");
	printf("%-52s %-8s %-18s %14llu  %s%s%s%s%s\n", t->name, t->dtype, shape, (unsigned long long)t->bytes, t->file,
		digest[0] ? "  " : "", digest, t->alias_of && t->alias_of[0] ? "  = " : "", t->alias_of ? t->alias_of : "");
}

static int
view_tensor(struct view *v, uint64_t index)
{
	struct ist_tensor t = { .struct_size = sizeof(t) };
	char digest[IST_DIGEST_TEXT] = "";
	struct ist_error err;
	ist_err code;

	ist_error_init(&err);
	code = ist_checkpoint_tensor(v->ck, index, &t, &err);
	if (code == IST_OK && option_on(&v->cli->o, OPT_DIGESTS))
		code = ist_checkpoint_digest(v->ck, index, digest, &err);
	if (code)
		return cli_fail(v->cli, &err);
	if (!v->tensors)
		print_tensor(&t, digest);
	else
		json_array_append_new(v->tensors,
			json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "name", json_text(t.name), "dtype", json_text(t.dtype), "shape", shape_of(&t),
				"bytes", json_u64(t.bytes), "file", json_text(t.file), "alias_of",
				t.alias_of && t.alias_of[0] ? json_text(t.alias_of) : json_null(), "digest", digest[0] ? json_string(digest) : json_null()));
	return EXIT_DONE;
}

static int
view_totals(struct view *v, uint64_t n)
{
	uint64_t bytes = ist_checkpoint_bytes(v->ck);
	char digest[IST_DIGEST_TEXT] = "", room[24];
	struct ist_error err;

	ist_error_init(&err);
	if (option_on(&v->cli->o, OPT_DIGESTS) && ist_checkpoint_digest(v->ck, IST_WHOLE, digest, &err))
		return cli_fail(v->cli, &err);
	if (v->tensors)
		return cli_print(json_pack("{s:O,s:{s:o,s:o,s:o}}", "tensors", v->tensors, "totals", "tensors", json_u64(n), "bytes",
			json_u64(bytes), "digest", digest[0] ? json_string(digest) : json_null()));
	printf("%llu tensors, %llu bytes (%s)%s%s\n", (unsigned long long)n, (unsigned long long)bytes, human_bytes(bytes, room),
		digest[0] ? ", digest " : "", digest);
	return cli_printed();
}

static int
view_all(struct view *v)
{
	uint64_t n = ist_checkpoint_count(v->ck), total = ist_checkpoint_bytes(v->ck), seen = 0;
	bool digests = option_on(&v->cli->o, OPT_DIGESTS);
	int status = EXIT_DONE;

	progress_start("digests", v->cli->quiet || !digests || !v->tensors);
	for (uint64_t i = 0; status == EXIT_DONE && i < n; i++) {
		struct ist_tensor t = { .struct_size = sizeof(t) };

		status = view_tensor(v, i);
		if (status == EXIT_DONE && digests && ist_checkpoint_tensor(v->ck, i, &t, NULL) == IST_OK)
			progress_bytes(NULL, seen += t.bytes, total);
		if (status == EXIT_DONE && now_ns() > v->cli->deadline_ns)
			status = cli_fail_code(v->cli, IST_TIMEOUT, "inspect", "%llu of %llu tensors were read", (unsigned long long)i + 1, (unsigned long long)n);
	}
	progress_end();
	return status == EXIT_DONE ? view_totals(v, n) : status;
}

int
cmd_inspect(struct cli *cli)
{
	struct session s = { .cli = cli };
	struct view v = { .cli = cli, .tensors = cli->json ? json_array() : NULL };
	struct ist_error err;
	int status = session_env(&s, cli);

	ist_error_init(&err);
	if (status == EXIT_DONE && ist_checkpoint_open(s.env, cli->o.args[0], NULL, &v.ck, &err))
		status = cli_fail(cli, &err);
	if (status == EXIT_DONE)
		status = view_all(&v);
	if (v.ck)
		ist_checkpoint_free(v.ck);
	session_close(&s);
	json_decref(v.tensors);
	return status;
}
