/* SPDX-License-Identifier: Apache-2.0
 *
 * make.c - the writer: files of at most 5 GB, an index where there are several, config.json where there is a model.
 */
#include "make.h"

#include "fill.h"
#include "progress.h"
#include "signals.h"
#include "value.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FILE_BYTES UINT64_C(5000000000)
#define PIECE (UINT64_C(4) << 20)

struct make {
	const struct cli *cli;
	struct layout *layout;
	uint64_t seed, files, written;
	const char *dir;
	char parent[3072], tmp[4096];
	unsigned made; /* folders on the way that were missing, the last ones of parent */
	uint8_t *piece;
};

/* Shares the tensors out to files, in order. A tensor above the limit gets a file of its own. */
static void
place(struct make *m)
{
	uint64_t file = 0, offset = 0;

	for (uint64_t i = 0; i < m->layout->n; i++) {
		struct layout_tensor *t = &m->layout->tensors[i];

		if (offset && offset + t->bytes > FILE_BYTES) {
			file++;
			offset = 0;
		}
		t->file = file;
		t->offset = offset;
		offset += t->bytes;
	}
	m->files = file + 1;
}

static void
file_name(const struct make *m, uint64_t file, char room[64])
{
	if (m->files == 1)
		snprintf(room, 64, "model.safetensors");
	else
		snprintf(room, 64, "model-%05llu-of-%05llu.safetensors", (unsigned long long)file + 1, (unsigned long long)m->files);
}

static json_t *
header_entry(const struct layout_tensor *t)
{
	json_t *shape = json_array();

	for (uint32_t i = 0; i < t->rank; i++)
		json_array_append_new(shape, json_u64(t->shape[i]));
	return json_pack("{s:s,s:o,s:[o,o]}", "dtype", t->dtype, "shape", shape, "data_offsets", json_u64(t->offset), json_u64(t->offset + t->bytes));
}

/* The JSON of one file's header; to be freed. */
static char *
header_text(const struct make *m, uint64_t file)
{
	json_t *doc = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	char *text;

	for (uint64_t i = 0; i < m->layout->n; i++)
		if (m->layout->tensors[i].file == file)
			json_object_set_new(doc, m->layout->tensors[i].name, header_entry(&m->layout->tensors[i]));
	text = json_dumps(doc, JSON_COMPACT);
	json_decref(doc);
	return text;
}

static int
write_all(const struct make *m, int fd, const void *addr, uint64_t bytes)
{
	const uint8_t *at = addr;

	while (bytes) {
		ssize_t n = write(fd, at, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return cli_fail_sys(m->cli, errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? IST_NO_SPACE : IST_IO, errno, "make-checkpoint", "writing %s", m->tmp);
		at += n;
		bytes -= (uint64_t)n;
	}
	return EXIT_DONE;
}

static int
write_header(const struct make *m, int fd, uint64_t file)
{
	static const char blanks[8] = "        ";
	char *text = header_text(m, file);
	uint64_t n, padded;
	uint8_t length[8];
	int status;

	if (!text)
		return cli_fail_code(m->cli, IST_NO_MEMORY, "make-checkpoint", "header of file %llu", (unsigned long long)file);
	n = strlen(text);
	padded = (n + 7) & ~UINT64_C(7);
	for (int i = 0; i < 8; i++)
		length[i] = (uint8_t)(padded >> (8 * i));
	status = write_all(m, fd, length, sizeof(length));
	if (status == EXIT_DONE)
		status = write_all(m, fd, text, n);
	if (status == EXIT_DONE)
		status = write_all(m, fd, blanks, padded - n);
	free(text);
	return status;
}

static int
write_tensor(struct make *m, int fd, const struct layout_tensor *t)
{
	uint64_t key = fill_key(m->seed, t->name);

	for (uint64_t at = 0; at < t->bytes; at += PIECE) {
		uint64_t n = t->bytes - at < PIECE ? t->bytes - at : PIECE;
		int status;

		fill_bytes(key, at, m->piece, n);
		status = write_all(m, fd, m->piece, n);
		if (status != EXIT_DONE)
			return status;
		if (signals_got())
			return EXIT_FAILED;
		if (now_ns() > m->cli->deadline_ns)
			return cli_fail_code(m->cli, IST_TIMEOUT, "make-checkpoint", "%llu bytes were written", (unsigned long long)m->written);
		m->written += n;
		progress_bytes(NULL, m->written, m->layout->bytes);
	}
	return EXIT_DONE;
}

static int
open_file(const struct make *m, const char *name, int *fd)
{
	char path[4200];

	snprintf(path, sizeof(path), "%s/%s", m->tmp, name);
	*fd = (int)TEMP_FAILURE_RETRY(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
	return *fd < 0 ? cli_fail_sys(m->cli, IST_IO, errno, "make-checkpoint", "%s", path) : EXIT_DONE;
}

/* first: index of the file's first tensor; moved on to the next file's. */
static int
write_file(struct make *m, uint64_t file, uint64_t *first)
{
	char name[64];
	int fd, status;

	file_name(m, file, name);
	status = open_file(m, name, &fd);
	if (status != EXIT_DONE)
		return status;
	status = write_header(m, fd, file);
	for (; status == EXIT_DONE && *first < m->layout->n && m->layout->tensors[*first].file == file; ++*first)
		status = write_tensor(m, fd, &m->layout->tensors[*first]);
	if (close(fd) && status == EXIT_DONE)
		status = cli_fail_sys(m->cli, IST_IO, errno, "make-checkpoint", "%s/%s", m->tmp, name);
	return status;
}

static int
write_json(struct make *m, const char *name, json_t *doc)
{
	char *text = json_dumps(doc, JSON_INDENT(2));
	int fd, status;

	json_decref(doc);
	if (!text)
		return cli_fail_code(m->cli, IST_NO_MEMORY, "make-checkpoint", "%s", name);
	status = open_file(m, name, &fd);
	if (status == EXIT_DONE) {
		status = write_all(m, fd, text, strlen(text));
		close(fd);
	}
	free(text);
	return status;
}

static json_t *
index_document(const struct make *m)
{
	json_t *map = json_object();
	char name[64];

	for (uint64_t i = 0; i < m->layout->n; i++) {
		file_name(m, m->layout->tensors[i].file, name);
		json_object_set_new(map, m->layout->tensors[i].name, json_string(name));
	}
	return json_pack("{s:{s:o},s:o}", "metadata", "total_size", json_u64(m->layout->bytes), "weight_map", map);
}

static json_t *
config_document(const struct layout *l)
{
	const struct model *c = l->model;
	json_t *doc = json_pack("{s:[s],s:s,s:s,s:s,s:b}", "architectures", c->class_name, "model_type", c->type, "torch_dtype", "bfloat16",
		"hidden_act", "silu", "tie_word_embeddings", c->tied);
	const struct {
		const char *key;
		uint64_t value;
	} numbers[] = { { "hidden_size", c->hidden }, { "num_hidden_layers", l->layers }, { "num_attention_heads", c->heads },
		{ "num_key_value_heads", c->kv_heads }, { "head_dim", c->head_dim }, { "intermediate_size", c->inter }, { "vocab_size", c->vocab },
		{ "max_position_embeddings", 40960 }, { "max_window_layers", l->layers }, { "rope_theta", 1000000 }, { "bos_token_id", 151643 },
		{ "eos_token_id", 151645 } };

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		json_object_set_new(doc, numbers[i].key, json_u64(numbers[i].value));
	json_object_set_new(doc, "rms_norm_eps", json_real(1e-6));
	json_object_set_new(doc, "attention_bias", json_false());
	json_object_set_new(doc, "use_sliding_window", json_false());
	if (c->experts) {
		json_object_set_new(doc, "num_experts", json_u64(c->experts));
		json_object_set_new(doc, "num_experts_per_tok", json_u64(c->experts_per_token));
		json_object_set_new(doc, "moe_intermediate_size", json_u64(c->moe_inter));
		json_object_set_new(doc, "decoder_sparse_step", json_integer(1));
		json_object_set_new(doc, "norm_topk_prob", json_true());
		json_object_set_new(doc, "mlp_only_layers", json_array());
	}
	return doc;
}

static void
remove_tmp(const struct make *m)
{
	DIR *d = opendir(m->tmp);
	struct dirent *e;

	while (d && (e = readdir(d)) != NULL)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(m->tmp);
}

static int
in_the_way(const struct make *m)
{
	DIR *d = opendir(m->dir);
	struct dirent *e;
	int n = 0;

	if (!d && errno == ENOENT)
		return EXIT_DONE;
	if (!d)
		return cli_fail_sys(m->cli, errno == ENOTDIR ? IST_CONFLICT : IST_IO, errno, "make-checkpoint", "%s", m->dir);
	while ((e = readdir(d)) != NULL)
		n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
	closedir(d);
	return n ? cli_fail_code(m->cli, IST_CONFLICT, "make-checkpoint", "%s exists and is not empty; remove it or choose another name", m->dir) : EXIT_DONE;
}

/* What can't fit is told before anything is written. Who can't tell (a file system without numbers) is tried. */
static int
room_for_it(const struct make *m)
{
	uint64_t need = m->layout->bytes, have;
	struct statvfs fs;

	if (statvfs(m->tmp, &fs) || fs.f_blocks == 0)
		return EXIT_DONE;
	have = (uint64_t)(geteuid() == 0 ? fs.f_bfree : fs.f_bavail) * fs.f_frsize;
	return have >= need ? EXIT_DONE : cli_fail_code(m->cli, IST_NO_SPACE, "make-checkpoint", "%s needs %llu bytes, and there are %llu",
		m->dir, (unsigned long long)need, (unsigned long long)have);
}

static int
write_folder(struct make *m)
{
	uint64_t first = 0;
	int status = room_for_it(m);

	for (uint64_t file = 0; status == EXIT_DONE && file < m->files; file++)
		status = write_file(m, file, &first);
	if (status == EXIT_DONE && m->files > 1)
		status = write_json(m, "model.safetensors.index.json", index_document(m));
	if (status == EXIT_DONE && m->layout->model)
		status = write_json(m, "config.json", config_document(m->layout));
	if (status == EXIT_DONE && rename(m->tmp, m->dir))
		status = cli_fail_sys(m->cli, errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR ? IST_CONFLICT : IST_IO, errno, "make-checkpoint", "%s",
			m->dir);
	return status;
}

/* Like mkdir -p. */
static int
make_folders(struct make *m)
{
	for (char *at = m->parent; *at; at++) {
		char *end = strchr(at + 1, '/');
		int rc;

		if (end)
			*end = 0;
		rc = mkdir(m->parent, 0777) ? errno : 0;
		m->made += rc == 0;
		if (end)
			*end = '/';
		if (rc && rc != EEXIST && !end)
			return cli_fail_sys(m->cli, IST_IO, rc, "make-checkpoint", "%s", m->parent);
		at = end ? end - 1 : at + strlen(at) - 1;
	}
	return EXIT_DONE;
}

static void
remove_folders(struct make *m)
{
	char *slash;

	while (m->made) {
		if (!rmdir(m->parent))
			m->made--;
		else if (errno != ENOENT)
			break;
		slash = strrchr(m->parent, '/');
		if (!slash || slash == m->parent)
			break;
		*slash = 0;
	}
}

/* parent/.name.isthmus-make-PID */
static int
name_tmp(struct make *m)
{
	char base[3072];
	size_t n = (size_t)snprintf(m->parent, sizeof(m->parent), "%s", m->dir);

	if (n == 0 || n >= sizeof(m->parent))
		return cli_usage(m->cli, "DIR is empty or longer than %zu bytes", sizeof(m->parent) - 1);
	snprintf(base, sizeof(base), "%s", m->dir);
	snprintf(m->tmp, sizeof(m->tmp), "%s/.%.200s.isthmus-make-%ld", dirname(m->parent), basename(base), (long)getpid());
	return EXIT_DONE;
}

int
make_checkpoint(const struct cli *cli, const char *dir, struct layout *layout, uint64_t seed)
{
	struct make m = { .cli = cli, .layout = layout, .seed = seed, .dir = dir };
	int status = name_tmp(&m);

	if (status == EXIT_DONE)
		status = in_the_way(&m);
	if (status != EXIT_DONE)
		return status;
	place(&m);
	m.piece = malloc(PIECE);
	if (!m.piece)
		return cli_fail_code(cli, IST_NO_MEMORY, "make-checkpoint", "out of memory");
	progress_start("make-checkpoint", cli->quiet);
	if (strcmp(m.parent, "."))
		status = make_folders(&m);
	if (status != EXIT_DONE) {
		remove_folders(&m);
	} else if (mkdir(m.tmp, 0777)) {
		status = cli_fail_sys(cli, IST_IO, errno, "make-checkpoint", "%s", m.tmp);
	} else {
		status = write_folder(&m);
		if (status != EXIT_DONE) {
			remove_tmp(&m);
			remove_folders(&m);
		}
	}
	progress_end();
	free(m.piece);
	return status;
}

int
make_small(const struct cli *cli, const char *dir)
{
	struct layout layout;
	int status;

	if (!layout_of_model(&layout, layout_model(0), 1))
		return cli_fail_code(cli, IST_NO_MEMORY, "make-checkpoint", "list of tensors");
	status = make_checkpoint(cli, dir, &layout, 1);
	layout_free(&layout);
	return status;
}
