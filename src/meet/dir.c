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

/* On a shared folder a signal to the caller's thread may end these before they did anything, or in the middle. How many bytes it
 * was, fewer at the file's end; -1 and errno. */
static ssize_t
read_it(int fd, void *to, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(fd, (uint8_t *)to + done, bytes - done, (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

/* 0 or an errno. */
static int
write_it(int fd, const void *from, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = pwrite(fd, (const uint8_t *)from + done, bytes - done, (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? errno : ENOSPC;
		done += (size_t)n;
	}
	return 0;
}

static ist_err
write_file(const char *path, const void *addr, uint64_t bytes, bool sync, struct ist_error *err)
{
	char temp[PATH_MAX];
	int fd, sys;

	if (snprintf(temp, sizeof(temp), "%s.%ld", path, (long)getpid()) >= (int)sizeof(temp))
		return ist__fail(err, IST_INVALID_ARGUMENT, "meet", "%s: the path is too long", path);
	unlink(temp); /* left by a process that died and had our number; or somebody lies in wait */
	fd = open_it(temp, O_WRONLY | O_CREAT | O_EXCL);
	if (fd < 0)
		return ist__fail_sys(err, IST_IO, errno, "meet", "%s", temp);
	sys = write_it(fd, addr, bytes);
	if (!sys && sync && fsync(fd) && errno != EINVAL && errno != EROFS)
		sys = errno;
	if (close(fd) && !sys && errno != EINTR) /* some file systems say only now that there is no room */
		sys = errno;
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

/* Where the folder is another machine's the answer may not come before a signal does. */
static int
lock_it(int fd, int how, struct flock *lock)
{
	int rc;

	do
		rc = fcntl(fd, how, lock);
	while (rc && errno == EINTR);
	return rc;
}

/* An open file that may be locked or read: 0; STRANGE: it is not one of ours; else an errno. */
enum { STRANGE = -1 };

static int
check_ours(int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		return errno;
	return is_strangers(&st) ? STRANGE : 0;
}

/* 0; EAGAIN: somebody else holds it, and holder is what he says of himself; else an errno. */
static int
take_lock(int fd, char *holder, size_t room)
{
	struct flock lock = the_name();
	ssize_t n;
	int sys;

	if (!lock_it(fd, F_OFD_SETLK, &lock))
		return 0;
	sys = errno == EACCES ? EAGAIN : errno;
	n = read_it(fd, holder, room - 1);
	holder[n > 0 ? n : 0] = 0;
	return sys;
}

/* Its holder may have taken the name away between our open and our lock. 0; ENOENT: he has; else an errno. */
static int
check_named(int fd, const char *path)
{
	struct stat ours, named;

	if (fstat(fd, &ours) || stat(path, &named))
		return errno == ESTALE ? ENOENT : errno;
	return ours.st_ino == named.st_ino && ours.st_dev == named.st_dev ? 0 : ENOENT;
}

/* Opens and locks path: 0, or as above. */
static int
lock_file(const char *path, char *holder, size_t room, int *out)
{
	for (;;) {
		int fd = open_it(path, O_RDWR | O_CREAT), sys;

		if (fd < 0)
			return errno;
		sys = check_ours(fd);
		if (!sys)
			sys = take_lock(fd, holder, room);
		if (!sys) {
			sys = check_named(fd, path);
			if (sys == ENOENT) {
				close(fd);
				continue;
			}
		}
		if (sys)
			close(fd);
		else
			*out = fd;
		return sys;
	}
}

/* Does the writer of name's record still live, whichever record that is? 0 or an errno. */
static int
look_held(const char *dir, const char *name, bool *held)
{
	struct flock lock = the_record();
	char path[PATH_MAX];
	int fd, sys = 0;

	*held = false;
	if (!path_of(dir, name, "lock", path))
		return ENAMETOOLONG;
	fd = open_it(path, O_RDWR);
	if (fd < 0)
		return errno == ENOENT ? 0 : errno;
	if (lock_it(fd, F_OFD_GETLK, &lock))
		sys = errno;
	else
		*held = lock.l_type != F_UNLCK;
	close(fd);
	return sys;
}

ist_err
ist__dir_publish(const char *dir, const char *name, const char *who, const void *addr, uint64_t bytes, int *lock_fd, struct ist_error *err)
{
	char lock[PATH_MAX], path[PATH_MAX], holder[128] = "";
	struct flock record = the_record();
	ist_err e;
	int fd = -1, sys;

	if (!path_of(dir, name, "lock", lock) || !path_of(dir, name, "rank0", path))
		return ist__fail(err, IST_INVALID_ARGUMENT, "meet", "%s: the path is too long", dir);
	sys = lock_file(lock, holder, sizeof(holder), &fd);
	if (sys == STRANGE)
		return fail_stranger(err, lock);
	if (sys && sys != EAGAIN)
		return ist__fail_sys(err, IST_IO, sys, "meet", "%s", lock);
	if (sys) {
		e = ist__fail(err, IST_CONFLICT, "meet", "rank 0 of group \"%s\" is held by %s; %s claims it too", name,
			holder[0] ? holder : "another process", who);
		ist__fail_rank(err, 0);
		return e;
	}
	sys = unlink(path) && errno != ENOENT ? errno : 0; /* a dead one's */
	if (!sys && lock_it(fd, F_OFD_SETLK, &record))
		sys = errno;
	if (!sys)
		sys = ftruncate(fd, 0) ? errno : write_it(fd, who, strlen(who));
	if (sys) {
		e = ist__fail_sys(err, IST_IO, sys, "meet", "%s", lock);
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

ist_err
ist__dir_find(const char *dir, const char *name, void *room, uint64_t *bytes, struct ist_error *err)
{
	char path[PATH_MAX];
	uint64_t room_bytes = *bytes;
	bool held = false;
	ssize_t n = 0;
	int fd, sys;

	*bytes = 0;
	if (!path_of(dir, name, "rank0", path))
		return ist__fail(err, IST_INVALID_ARGUMENT, "meet", "%s: the path is too long", dir);
	fd = open_it(path, O_RDONLY);
	if (fd < 0)
		return errno == ENOENT ? IST_OK : ist__fail_sys(err, IST_IO, errno, "meet", "%s", path);
	sys = check_ours(fd);
	if (!sys) {
		n = read_it(fd, room, room_bytes);
		sys = n < 0 ? errno : look_held(dir, name, &held);
	}
	if (!sys && held) /* it may have been a dead one's, until somebody took the lock */
		sys = check_named(fd, path);
	close(fd);
	if (sys == ENOENT)
		return IST_OK;
	if (sys == STRANGE)
		return fail_stranger(err, path);
	if (sys && sys != ESTALE) /* that one was replaced meanwhile */
		return ist__fail_sys(err, IST_IO, sys, "meet", "%s", path);
	*bytes = held ? (uint64_t)n : 0; /* a dead one's record says where nobody is */
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
