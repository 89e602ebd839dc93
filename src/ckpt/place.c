/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/place.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/openfd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define OP "sink"
#define MARK ".isthmus-"
#define SUFFIX_MAX (1 + sizeof(MARK) - 1 + 20 + 1 + 16) /* what the temporary name adds */
#define PROBE ".mode"                                   /* a folder in the temporary one, for a moment */
#define KEPT_MAX (NAME_MAX - SUFFIX_MAX)                /* of the name, in the temporary one */

static ist_err
fail_sys(int sys, const struct ist__place *p, const char *what, struct ist_error *err)
{
	return ist__fail_sys(err, IST_IO, sys, OP, "%s: %s", p->path, what);
}

/* ---- where ---- */

/* The folders that lead to a file of that folder, as far as they are missing; *made counts them. */
static int
make_folders(char *path, uint32_t *made)
{
	if (strlen(path) >= PATH_MAX)
		return ENAMETOOLONG;
	for (char *at = path; *at; at++) {
		char *end = strchr(at + 1, '/'), *cut = end ? end : at + strlen(at);
		char was = *cut;
		int rc;

		*cut = 0;
		rc = mkdir(path, 0777) ? errno : 0;
		*cut = was;
		if (!rc)
			++*made;
		else if (rc != EEXIST && !(was && (rc == EROFS || rc == EACCES || rc == EPERM))) /* it may be there and not ours to write in */
			return rc;
		at = cut - 1;
	}
	return 0;
}

/* Whom nothing was put into, from the end. Others may have come to use them: those stay. */
static void
remove_made(struct ist__place *p)
{
	char *slash;

	while (p->made) {
		if (!rmdir(p->parent_path))
			p->made--;
		else if (errno != ENOENT) /* where the making stopped half way, the last ones are not there */
			break;
		slash = strrchr(p->parent_path, '/');
		if (!slash || slash == p->parent_path)
			break;
		*slash = 0;
	}
	p->made = 0;
}

/* The folder and the name of a path that does not exist yet, without closing slashes. */
static ist_err
split(struct ist__place *p, const char *path, bool parents, struct ist_error *err)
{
	char *copy = ist__strdup(p->ctx, path), *slash, *name, *real;
	size_t n = strlen(path);
	int sys;
	ist_err e = IST_OK;

	if (!copy)
		return ist__fail_memory(err, OP);
	while (n > 1 && copy[n - 1] == '/')
		copy[--n] = 0;
	slash = strrchr(copy, '/');
	name = slash ? slash + 1 : copy;
	if (slash)
		*slash = 0;
	if (!*name || !strcmp(name, ".") || !strcmp(name, "..")) {
		e = ist__fail(err, IST_INVALID_ARGUMENT, OP, "%s: the last part of the path is no name for a new folder", path);
	} else if (strlen(name) > NAME_MAX) {
		e = fail_sys(ENAMETOOLONG, p, "the last part of the path", err);
	} else {
		snprintf(p->name, sizeof(p->name), "%s", name);
		real = realpath(!slash ? "." : slash == copy ? "/" : copy, NULL);
		if (!real && errno == ENOENT && parents && slash && slash != copy) {
			errno = make_folders(copy, &p->made);
			real = errno ? NULL : realpath(copy, NULL);
		}
		sys = errno;
		if (real || p->made)
			p->parent_path = ist__strdup(p->ctx, real ? real : copy);
		if (!real)
			e = fail_sys(sys, p, "the folder around it", err);
		else if (!p->parent_path)
			e = ist__fail_memory(err, OP);
		free(real);
	}
	ist__free(p->ctx, copy);
	return e;
}

/* path with links followed, as far as it exists. */
static ist_err
resolve(struct ist__place *p, const char *path, bool parents, struct ist_error *err)
{
	struct stat st;
	char *real;
	ist_err e;

	if (stat(path, &st)) {
		if (errno != ENOENT)
			return fail_sys(errno, p, "can't be looked at", err);
		if (!lstat(path, &st))
			return ist__fail(err, IST_CONFLICT, OP, "%s is a link that leads nowhere", path);
		return split(p, path, parents, err);
	}
	real = realpath(path, NULL);
	if (!real)
		return fail_sys(errno, p, "can't be looked at", err);
	e = split(p, real, false, err);
	free(real);
	return e;
}

ist_err
ist__place_open(const struct ist__ctx *ctx, const char *path, bool parents, struct ist__place *out, struct ist_error *err)
{
	struct ist__place p = { .ctx = ctx, .parent = -1, .temp_fd = -1 };
	ist_err e;

	p.path = ist__strdup(ctx, path);
	if (!p.path)
		return ist__fail_memory(err, OP);
	e = resolve(&p, path, parents, err);
	if (!e) {
		p.parent = ist__open(AT_FDCWD, p.parent_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
		if (p.parent < 0)
			e = fail_sys(errno, &p, "the folder around it", err);
	}
	if (e)
		ist__place_fini(&p);
	else
		*out = p;
	return e;
}

void
ist__place_fini(struct ist__place *p)
{
	if (!p->ctx)
		return;
	ist__place_drop(p);
	if (p->parent >= 0)
		close(p->parent);
	if (p->parent_path)
		remove_made(p);
	ist__free(p->ctx, p->path);
	ist__free(p->ctx, p->parent_path);
	memset(p, 0, sizeof(*p));
	p->parent = p->temp_fd = -1;
}

ist_err
ist__place_look(const struct ist__place *p, bool *taken, struct stat *st, struct ist_error *err)
{
	*taken = !fstatat(p->parent, p->name, st, AT_SYMLINK_NOFOLLOW);
	return *taken || errno == ENOENT ? IST_OK : fail_sys(errno, p, "can't be looked at", err);
}

/* ---- removing ---- */

static void
remove_entry(int folder, const char *name)
{
	if (unlinkat(folder, name, 0) && !strcmp(name, PROBE))
		unlinkat(folder, name, AT_REMOVEDIR);
}

/* A folder of files: any other folder inside stays, and with it everything that is not ours to remove. */
static bool
remove_folder(int parent, const char *name)
{
	int fd = ist__open(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while ((d = readdir(dir)))
		if (strcmp(d->d_name, ".") && strcmp(d->d_name, ".."))
			remove_entry(dirfd(dir), d->d_name);
	closedir(dir);
	return !unlinkat(parent, name, AT_REMOVEDIR);
}

static bool
remove_any(int parent, const char *name)
{
	return !unlinkat(parent, name, 0) || (errno == EISDIR && remove_folder(parent, name)) ||
		(errno == EPERM && remove_folder(parent, name));
}

/* ---- the dead ---- */

/* The pid in a temporary name of ours; 0: it is none. */
static long
pid_in(const struct ist__place *p, const char *entry)
{
	size_t n = strnlen(p->name, KEPT_MAX), m = sizeof(MARK) - 1;
	char *end;
	long pid;

	if (entry[0] != '.' || strncmp(entry + 1, p->name, n) || strncmp(entry + 1 + n, MARK, m))
		return 0;
	entry += 1 + n + m;
	if (*entry < '0' || *entry > '9')
		return 0;
	pid = strtol(entry, &end, 10);
	return *end == '-' && strlen(end) == 17 && strspn(end + 1, "0123456789abcdef") == 16 ? pid : 0;
}

/* Its maker's lock is gone. Where locks are not to be had, its maker's pid. */
static bool
is_dead(const struct ist__place *p, const char *entry, long pid)
{
	int fd = ist__open(p->parent, entry, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	bool dead;

	if (fd < 0)
		return false;
	if (!flock(fd, LOCK_EX | LOCK_NB))
		dead = true;
	else
		dead = errno != EWOULDBLOCK && kill((pid_t)pid, 0) && errno == ESRCH;
	close(fd);
	return dead;
}

void
ist__place_sweep(const struct ist__place *p)
{
	int fd = ist__open(p->parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((d = readdir(dir))) {
		long pid = pid_in(p, d->d_name);

		if (pid <= 0 || !is_dead(p, d->d_name, pid))
			continue;
		if (remove_any(p->parent, d->d_name))
			ist__log(p->ctx, 2, "removed what process %ld left: %s/%s", pid, p->parent_path, d->d_name);
	}
	closedir(dir);
}

/* ---- making ---- */

void
ist__place_new_name(struct ist__place *p)
{
	snprintf(p->temp, sizeof(p->temp), ".%.*s" MARK "%ld-%016llx", (int)KEPT_MAX, p->name, (long)getpid(),
		(unsigned long long)ist__hash_seed());
}

/* Between making and locking somebody may have taken it for a dead one's: EBUSY. 0 or an errno. */
static int
check_ours(const struct ist__place *p)
{
	struct stat at, held;

	if (fstatat(p->parent, p->temp, &at, AT_SYMLINK_NOFOLLOW) || fstat(p->temp_fd, &held))
		return errno == ENOENT ? EBUSY : errno;
	return at.st_ino == held.st_ino && at.st_dev == held.st_dev ? 0 : EBUSY;
}

/* Opens and locks what was just made: 0 or an errno. Where locks are not to be had there is none. */
static int
take_folder(struct ist__place *p)
{
	p->temp_fd = ist__open(p->parent, p->temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (p->temp_fd < 0)
		return errno;
	if (flock(p->temp_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		return EBUSY;
	return check_ours(p);
}

ist_err
ist__place_make_folder(struct ist__place *p, struct ist_error *err)
{
	int sys = EBUSY;

	for (int tries = 0; tries < 8; tries++) {
		ist__place_new_name(p);
		if (mkdirat(p->parent, p->temp, 0700)) {
			sys = errno;
			p->temp[0] = 0;
			if (sys != EEXIST)
				break;
			continue;
		}
		sys = take_folder(p);
		if (!sys)
			return IST_OK;
		ist__place_drop(p);
	}
	return fail_sys(sys, p, "can't make a folder beside it", err);
}

void
ist__place_drop(struct ist__place *p)
{
	if (p->temp[0] && !remove_any(p->parent, p->temp) && errno != ENOENT)
		ist__log(p->ctx, 1, "can't remove %s/%s: %s", p->parent_path, p->temp, strerrordesc_np(errno));
	p->temp[0] = 0;
	if (p->temp_fd >= 0)
		close(p->temp_fd);
	p->temp_fd = -1;
}

/* What a folder gets is asked by making one. It must not stay: the next update would find what is no checkpoint's. */
static int
ask_mode(int fd, mode_t *mode)
{
	struct stat st;
	int sys = 0;

	if (mkdirat(fd, PROBE, 0777))
		return errno;
	if (fstatat(fd, PROBE, &st, AT_SYMLINK_NOFOLLOW))
		sys = errno;
	else
		*mode = st.st_mode & 07777;
	if (unlinkat(fd, PROBE, AT_REMOVEDIR))
		sys = errno;
	return sys;
}

ist_err
ist__place_set_mode(const struct ist__place *p, struct ist_error *err)
{
	mode_t mode = 0755;
	int sys = ask_mode(p->temp_fd, &mode);

	if (!sys && fchmod(p->temp_fd, mode))
		sys = errno;
	return sys ? fail_sys(sys, p, "can't be given a new folder's mode", err) : IST_OK;
}

/* ---- the one step ---- */

/* File systems that can't exchange: two renames, with a moment in which the name is missing. */
static int
swap_in_two(struct ist__place *p)
{
	char mine[sizeof(p->temp)], old[sizeof(p->temp)];

	memcpy(mine, p->temp, sizeof(mine));
	ist__place_new_name(p);
	memcpy(old, p->temp, sizeof(old));
	memcpy(p->temp, mine, sizeof(mine));
	if (renameat(p->parent, p->name, p->parent, old))
		return -1;
	if (renameat(p->parent, mine, p->parent, p->name)) {
		int sys = errno;

		renameat(p->parent, old, p->parent, p->name);
		errno = sys;
		return -1;
	}
	memcpy(p->temp, old, sizeof(old)); /* to be removed */
	return 0;
}

ist_err
ist__place_swap(struct ist__place *p, bool no_replace, struct ist_error *err)
{
	int rc = renameat2(p->parent, p->temp, p->parent, p->name, RENAME_NOREPLACE);
	bool taken = true;
	struct stat st;

	if (rc && errno == EINVAL) {
		ist_err e = ist__place_look(p, &taken, &st, err);

		if (e)
			return e;
		errno = EINVAL;
	}
	if (!taken)
		rc = renameat(p->parent, p->temp, p->parent, p->name);
	if (!rc) {
		p->temp[0] = 0;
	} else {
		if ((errno == EEXIST || errno == EINVAL) && no_replace)
			return ist__fail(err, IST_CONFLICT, OP, "%s exists", p->path);
		if (errno == EEXIST || errno == EINVAL)
			rc = renameat2(p->parent, p->temp, p->parent, p->name, RENAME_EXCHANGE);
		if (rc && errno == EINVAL)
			rc = swap_in_two(p);
		if (rc)
			return fail_sys(errno, p, "can't be put in place", err);
	}
	p->made = 0;
	if (fsync(p->parent))
		ist__log(p->ctx, 1, "%s is in place, but its folder could not be synced", p->path);
	ist__place_drop(p); /* what was there before */
	return IST_OK;
}
