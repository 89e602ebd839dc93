/* SPDX-License-Identifier: Apache-2.0
 *
 * ckpt_help.h - for the tests of checkpoints and sinks: a folder that goes away, files made from a header's text, an env
 * whose allocations can be made to fail.
 */
#ifndef ISTHMUS_TESTS_CKPT_HELP_H
#define ISTHMUS_TESTS_CKPT_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <isthmus/sync.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct help {
	struct ist_env *env;
	char dir[64];
	char paths[8][512];
	unsigned next;
	/* of the allocator */
	long allocations, fail_at, live;
};

static void *
help_alloc(void *ctx, uint64_t bytes, uint64_t align, uint32_t kind, int32_t numa)
{
	struct help *h = ctx;
	void *p = NULL;

	(void)kind, (void)numa;
	if (__atomic_add_fetch(&h->allocations, 1, __ATOMIC_SEQ_CST) == h->fail_at)
		return NULL;
	if (posix_memalign(&p, align < 16 ? 16 : align, bytes ? bytes : 1))
		return NULL;
	__atomic_add_fetch(&h->live, 1, __ATOMIC_SEQ_CST);
	return p;
}

static void
help_free(void *ctx, void *p)
{
	struct help *h = ctx;

	__atomic_sub_fetch(&h->live, 1, __ATOMIC_SEQ_CST);
	free(p);
}

static int
help_unlink(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

static inline void
help_remove(const char *path)
{
	nftw(path, help_unlink, 16, FTW_DEPTH | FTW_PHYS);
}

static inline int
help_setup(void **state)
{
	struct help *h = calloc(1, sizeof(*h));
	struct ist_env_args args = { .struct_size = sizeof(args), .alloc = help_alloc, .free = help_free, .mem_ctx = h };

	snprintf(h->dir, sizeof(h->dir), "/tmp/ist-test-XXXXXX");
	assert_non_null(mkdtemp(h->dir));
	assert_int_equal(ist_env_new(&args, &h->env, NULL), IST_OK);
	*state = h;
	return 0;
}

static inline int
help_teardown(void **state)
{
	struct help *h = *state;

	help_remove(h->dir);
	ist_env_free(h->env);
	assert_int_equal(h->live, 0);
	free(h);
	return 0;
}

/* dir/name; good for a few calls. */
static inline const char *
help_path(struct help *h, const char *name)
{
	char *to = h->paths[h->next++ % 8];

	snprintf(to, sizeof(h->paths[0]), "%s/%s", h->dir, name);
	return to;
}

static inline void
help_write(const char *path, const void *addr, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, addr, bytes), (ssize_t)bytes);
	close(fd);
}

/* A safetensors file: the header's length as n says, its text, and data bytes that count up from first. */
static inline void
help_raw(const char *path, uint64_t n, const char *header, size_t header_bytes, size_t data, uint8_t first)
{
	uint8_t *b = malloc(8 + header_bytes + data);

	for (int i = 0; i < 8; i++)
		b[i] = (uint8_t)(n >> (8 * i));
	memcpy(b + 8, header, header_bytes);
	for (size_t i = 0; i < data; i++)
		b[8 + header_bytes + i] = (uint8_t)(first + i);
	help_write(path, b, 8 + header_bytes + data);
	free(b);
}

static inline void
help_st(const char *path, const char *header, size_t data, uint8_t first)
{
	help_raw(path, strlen(header), header, strlen(header), data, first);
}

/* The whole of a file; freed by the caller. */
static inline uint8_t *
help_slurp(const char *path, size_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	uint8_t *b;

	if (fd < 0 || fstat(fd, &st))
		return NULL;
	b = malloc((size_t)st.st_size + 1);
	assert_int_equal(read(fd, b, (size_t)st.st_size), st.st_size);
	close(fd);
	*bytes = (size_t)st.st_size;
	return b;
}

static inline bool
help_same_file(const char *a, const char *b)
{
	size_t n = 0, m = 1;
	uint8_t *x = help_slurp(a, &n), *y = help_slurp(b, &m);
	bool same = x && y && n == m && !memcmp(x, y, n);

	free(x);
	free(y);
	return same;
}

/* Entries of a folder with part in their name. */
static inline unsigned
help_count_like(const char *dir, const char *part)
{
	DIR *d = opendir(dir);
	struct dirent *entry;
	unsigned n = 0;

	assert_non_null(d);
	while ((entry = readdir(d)))
		n += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && strstr(entry->d_name, part);
	closedir(d);
	return n;
}

static inline unsigned
help_count_entries(const char *dir)
{
	return help_count_like(dir, "");
}

/* Opens and says the code; an open one is closed again. */
static inline ist_err
help_open(struct help *h, const char *path, const struct ist_checkpoint_args *args, struct ist_error *err)
{
	struct ist_checkpoint *ck = NULL;
	ist_err e;

	ist_error_init(err);
	e = ist_checkpoint_open(h->env, path, args, &ck, err);
	assert_true((e == IST_OK) == (ck != NULL));
	assert_int_equal(err->code, e);
	if (e)
		assert_true(err->detail[0] && err->next[0]);
	ist_checkpoint_free(ck);
	return e;
}

#endif
