/* SPDX-License-Identifier: Apache-2.0 */
#include "meet/dir.h"

#include "base/fail.h"
#include "base/openfd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A shared folder may hold what others put there under our names: a link, or a pipe whose opening would wait for ever. */
#define O_NO_SURPRISE (O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

enum { RECORD = 1024 };

/* A group's name may hold any characters; its files are named by its hash. */
static bool
path_of(const char *dir, const char *name, const char *suffix, char out[PATH_MAX])
{
	uint8_t hash[16];
	char hex[33];

	crypto_generichash(hash, sizeof(hash), (const uint8_t *)name, strlen(name), NULL, 0);
	sodium_bin2hex(hex, sizeof(hex), hash, sizeof(hash));
	return snprintf(out, PATH_MAX, "%s/isthmus-%s.%s", dir, hex, suffix) < PATH_MAX;
}

static int
open_it(const char *path, int flags)
{
	return ist__open(AT_FDCWD, path, flags | O_NO_SURPRISE, 0600);
}

/* On a shared folder a signal to the caller's thread may end these before they did anything. */
static ssize_t
read_it(int fd, void *to, size_t bytes)
{
	ssize_t n;

	do
		n = pread(fd, to, bytes, 0);
	while (n < 0 && errno == EINTR);
	return n;
}

static ssize_t
write_it(int fd, const void *from, size_t bytes)
{
	ssize_t n;

	do
		n = pwrite(fd, from, bytes, 0);
	while (n < 0 && errno == EINTR);
	return n;
}

static ist_err
write_file(const char *path, const void *addr, uint64_t bytes, bool sync, struct ist_error *err)
{
	char temp[PATH_MAX];
	int fd, sys = 0;
	ssize_t n;

	if (snprintf(temp, sizeof(temp), "%s.%ld", path, (long)getpid()) >= (int)sizeof(temp))
		return ist__fail(err, IST_INVALID_ARGUMENT, "meet", "%s: the path is too long", path);
	unlink(temp); /* left by a process that died and had our number; or somebody lies in wait */
	fd = open_it(temp, O_WRONLY | O_CREAT | O_EXCL);
	if (fd < 0)
		return ist__fail_sys(err, IST_IO, errno, "meet", "%s", temp);
	n = write_it(fd, addr, bytes);
	if (n != (ssize_t)bytes)
		sys = n < 0 ? errno : ENOSPC;
	else if (sync && fsync(fd) && errno != EINVAL && errno != EROFS)
		sys = errno;
	close(fd);
	if (!sys && rename(temp, path))
		sys = errno;
	if (sys) {
		unlink(temp);
		return ist__fail_sys(err, IST_IO, sys, "meet", "%s", path);
	}
	return IST_OK;
}

/* Locks of open files: they end with the process that holds them, work on a shared folder as well, and can be asked
 * for without being taken. Who has the first byte has the name; who has the rest as well stands behind what the record says, and
 * takes it only when a dead one's record is gone. */
static struct flock
the_name(void)
{
	return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
}

static struct flock
the_record(void)
{
	return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1 };
}

/* In a folder where all may write somebody else may have taken the name first. Ours are open to nobody but their owner,
 * who has another number than we where a file system maps users. */
static bool
is_strangers(const struct stat *st)
{
	return !S_ISREG(st->st_mode) || (st->st_uid != geteuid() && (st->st_mode & 077) != 0);
}

static ist_err
fail_stranger(struct ist_error *err, const char *path)
{
	struct stat st;

	if (!lstat(path, &st) && !S_ISREG(st.st_mode))
		return ist__fail(err, IST_IO, "meet", "%s: this is no file of ours: something else lies where it should be", path);
	return ist__fail(err, IST_DENIED, "meet", "%s: another user made this file, and others than he may change it", path);
}

/* Opens and locks path; -1 and errno. EAGAIN: somebody else holds it, and holder is what he says of himself. EPERM: it is not
 * one of ours. */
static int
lock_file(const char *path, char *holder, size_t room)
{
	for (;;) {
		struct flock lock = the_name();
		struct stat ours, named;
		int fd = open_it(path, O_RDWR | O_CREAT), sys;

		if (fd < 0)
			return -1;
		sys = fstat(fd, &ours) ? errno : is_strangers(&ours) ? EPERM : 0;
		if (sys) {
			close(fd);
			errno = sys;
			return -1;
		}
		if (fcntl(fd, F_OFD_SETLK, &lock)) {
			ssize_t n;

			sys = errno == EACCES ? EAGAIN : errno;
			n = read_it(fd, holder, room - 1);
			holder[n > 0 ? n : 0] = 0;
			close(fd);
			errno = sys;
			return -1;
		}
		sys = stat(path, &named) ? errno : 0;
		if (!sys && ours.st_ino == named.st_ino && ours.st_dev == named.st_dev)
			return fd;
		close(fd); /* its holder took the name away between our open and our lock */
		if (sys && sys != ENOENT) {
			errno = sys;
			return -1;
		}
	}
}

/* Does the writer of name's record still live, whichever record that is? */
static bool
is_held(const char *dir, const char *name)
{
	struct flock lock = the_record();
	char path[PATH_MAX];
	bool held;
	int fd;

	if (!path_of(dir, name, "lock", path))
		return false;
	fd = open_it(path, O_RDWR);
	if (fd < 0)
		return false;
	held = fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
	close(fd);
	return held;
}

ist_err
ist__dir_publish(const char *dir, const char *name, const char *who, const void *addr, uint64_t bytes, int *lock_fd, struct ist_error *err)
{
	char lock[PATH_MAX], path[PATH_MAX], holder[128] = "";
	struct flock record = the_record();
	ist_err e;
	int fd;

	if (!path_of(dir, name, "lock", lock) || !path_of(dir, name, "rank0", path))
		return ist__fail(err, IST_INVALID_ARGUMENT, "meet", "%s: the path is too long", dir);
	fd = lock_file(lock, holder, sizeof(holder));
	if (fd < 0 && errno == EPERM)
		return fail_stranger(err, lock);
	if (fd < 0 && errno != EAGAIN)
		return ist__fail_sys(err, IST_IO, errno, "meet", "%s", lock);
	if (fd < 0) {
		e = ist__fail(err, IST_CONFLICT, "meet", "rank 0 of group \"%s\" is held by %s; %s claims it too", name,
			holder[0] ? holder : "another process", who);
		ist__fail_rank(err, 0);
		return e;
	}
	if ((unlink(path) && errno != ENOENT) || fcntl(fd, F_OFD_SETLK, &record) || ftruncate(fd, 0) || write_it(fd, who, strlen(who)) < 0) {
		e = ist__fail_sys(err, IST_IO, errno, "meet", "%s", lock);
		close(fd);
		return e;
	}
	e = write_file(path, addr, bytes, true, err);
	if (e) {
		close(fd);
		return e;
	}
	*lock_fd = fd;
	return IST_OK;
}

void
ist__dir_withdraw(const char *dir, const char *name, int lock_fd)
{
	char path[PATH_MAX];

	if (path_of(dir, name, "rank0", path))
		unlink(path);
	if (path_of(dir, name, "lock", path))
		unlink(path); /* still locked: whoever opened it before locks a file without a name, and tries again */
	close(lock_fd);
}

/* Is what was opened still what path names? */
static bool
is_there(const char *path, const struct stat *opened)
{
	struct stat st;

	return stat(path, &st) == 0 && st.st_ino == opened->st_ino && st.st_dev == opened->st_dev;
}

ist_err
ist__dir_find(const char *dir, const char *name, void *room, uint64_t *bytes, struct ist_error *err)
{
	char path[PATH_MAX];
	struct stat st;
	ssize_t n;
	int fd, sys;

	if (!path_of(dir, name, "rank0", path))
		return ist__fail(err, IST_INVALID_ARGUMENT, "meet", "%s: the path is too long", dir);
	fd = open_it(path, O_RDONLY);
	if (fd < 0) {
		*bytes = 0;
		return errno == ENOENT ? IST_OK : ist__fail_sys(err, IST_IO, errno, "meet", "%s", path);
	}
	sys = fstat(fd, &st) ? errno : 0;
	if (sys || is_strangers(&st)) {
		close(fd);
		*bytes = 0;
		return sys ? ist__fail_sys(err, IST_IO, sys, "meet", "%s", path) : fail_stranger(err, path);
	}
	n = read_it(fd, room, *bytes);
	/* a dead one's record says where nobody is; with a new holder it is gone */
	*bytes = n > 0 && is_held(dir, name) && is_there(path, &st) ? (uint64_t)n : 0;
	close(fd);
	return IST_OK;
}

static bool
tell_path(const char *dir, const struct ist__status *s, char out[PATH_MAX])
{
	char suffix[64];

	snprintf(suffix, sizeof(suffix), "member-%u-%llu", s->rank, (unsigned long long)s->pid);
	return path_of(dir, s->group, suffix, out);
}

void
ist__dir_tell(const char *dir, const struct ist__ctx *ctx, const struct ist__status *status)
{
	struct ist__writer w;
	char path[PATH_MAX];

	ist__writer_init(&w, ctx);
	ist__status_put(&w, status);
	if (!w.bad && w.bytes <= RECORD && tell_path(dir, status, path))
		write_file(path, w.at, w.bytes, false, NULL); /* on the loop's thread, which must not wait for a disk */
	ist__writer_fini(&w);
}

void
ist__dir_untell(const char *dir, const struct ist__status *status)
{
	char path[PATH_MAX];

	if (tell_path(dir, status, path))
		unlink(path);
}

ist_err
ist__dir_list(const char *dir, void (*each)(void *arg, const struct ist__status *status, uint64_t ms), void *arg, struct ist_error *err)
{
	DIR *d = opendir(dir);
	struct dirent *entry;

	if (!d)
		return ist__fail_sys(err, IST_IO, errno, "status", "%s", dir);
	while ((entry = readdir(d))) {
		uint8_t room[RECORD];
		struct ist__reader r;
		struct ist__status s;
		struct timespec now;
		struct stat st;
		ssize_t n;
		int fd;

		if (strncmp(entry->d_name, "isthmus-", 8) != 0 || !strstr(entry->d_name, ".member-"))
			continue;
		fd = ist__open(dirfd(d), entry->d_name, O_RDONLY | O_NO_SURPRISE, 0);
		if (fd < 0)
			continue;
		n = read_it(fd, room, sizeof(room));
		clock_gettime(CLOCK_REALTIME, &now);
		if (n > 0 && fstat(fd, &st) == 0 && !is_strangers(&st)) {
			int64_t ms = (now.tv_sec - st.st_mtim.tv_sec) * 1000 + (now.tv_nsec - st.st_mtim.tv_nsec) / 1000000;

			ist__reader_init(&r, room, (uint64_t)n);
			if (ist__status_get(&r, &s) && ms <= IST__LEASE_NS / 1000000)
				each(arg, &s, ms > 0 ? (uint64_t)ms : 0);
		}
		close(fd);
	}
	closedir(d);
	return IST_OK;
}
