/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_line.c - a command line, and a secret file. First byte: 0 the rest is the file, else the words of a line, one in a
 * row, for a verb that takes those sets of options. The parser of tools/isthmus, with its messages cut off.
 */
#include "fuzz.h"

#include "session.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORDS = 64 };

int
cli_fail_code(const struct cli *cli, ist_err code, const char *op, const char *fmt, ...)
{
	(void)cli, (void)op, (void)fmt;
	return code == IST_BAD_CONFIG || code == IST_DENIED ? EXIT_FAILED : EXIT_USAGE;
}

int
cli_fail_sys(const struct cli *cli, ist_err code, int sys, const char *op, const char *fmt, ...)
{
	(void)cli, (void)code, (void)sys, (void)op, (void)fmt;
	return EXIT_USAGE;
}

static void
secret(const struct input *in)
{
	struct cli cli = { .quiet = true };
	struct secret s;
	char path[32];
	size_t due = in->left;
	int fd = memfd_create("secret", MFD_CLOEXEC), status;

	if (due > 0 && in->at[due - 1] == '\n')
		due--;
	must(fd >= 0 && fchmod(fd, 0600) == 0 && write(fd, in->at, in->left) == (ssize_t)in->left);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	cli.o.v[OPT_SECRET_FILE] = (struct option_value){ .text = path, .from = FROM_LINE };
	status = secret_read(&cli, &s);
	must(status == (due >= 16 && due <= 4096 ? EXIT_DONE : EXIT_FAILED));
	if (status == EXIT_DONE)
		must(s.n == due && !memcmp(s.bytes, in->at, due));
	else
		must(!s.bytes && s.n == 0);
	secret_free(&s);
	close(fd);
}

static void
check_values(const struct options *o, int argc)
{
	must(o->n_args >= 0 && o->n_args <= argc);
	for (uint32_t i = 0; option_row(i); i++) {
		const struct option *row = option_row(i);
		const struct option_value *v = &o->v[row->id];

		if (v->from == FROM_DEFAULT || row->type == TYPE_FLAG)
			continue;
		must(v->text != NULL && row->type != TYPE_UNBUILT);
		if ((row->type == TYPE_NUMBER || row->type == TYPE_BYTES) && (row->min || row->max))
			must(v->number >= row->min && (!row->max || v->number <= row->max));
		if (row->type == TYPE_PART)
			must(v->parts > 0 && v->number < v->parts);
	}
}

static void
line(struct input *in, uint8_t how)
{
	char *text = malloc(in->left + 1), *words[WORDS], *save = NULL;
	uint32_t sets = (uint32_t)take_u16(in) | SET_COMMON;
	struct option_error err = { .text = "" };
	struct options o;
	size_t n = in->left;
	int argc = 0;

	must(text != NULL);
	if (n > 0)
		memcpy(text, in->at, n);
	text[n] = 0;
	for (char *w = strtok_r(text, "\n", &save); w && argc < WORDS - 1; w = strtok_r(NULL, "\n", &save))
		words[argc++] = w;
	words[argc] = NULL;
	(void)options_has_flag(argc, words, "json");
	memset(&o, 0, sizeof(o));
	if (options_parse(&o, sets, how & 2, argc, words, &err))
		check_values(&o, argc);
	else
		must(err.text[0] && memchr(err.text, 0, sizeof(err.text)));
	free(o.args);
	free(text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	uint8_t how = take_u8(&in);

	if (how == 0)
		secret(&in);
	else
		line(&in, how);
	return 0;
}
