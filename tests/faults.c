/* SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/vfs.h>
#include <sys/timerfd.h>
#include <unistd.h>

static _Atomic int kind, sys_of;
static _Atomic long due, seen;
static atomic_bool lasting;

void
fault_set(enum fault_call call, long at, bool for_good, int sys)
{
	atomic_store(&kind, FAULT_NONE);
	atomic_store(&seen, 0);
	atomic_store(&due, at);
	atomic_store(&lasting, for_good);
	atomic_store(&sys_of, sys);
	atomic_store(&kind, (int)call);
}

long
fault_clear(void)
{
	atomic_store(&kind, FAULT_NONE);
	return atomic_load(&seen);
}

static bool
strikes(enum fault_call call)
{
	long n, at = atomic_load(&due);

	if (atomic_load(&kind) != (int)call)
		return false;
	n = atomic_fetch_add(&seen, 1) + 1;
	if (n != at && !(atomic_load(&lasting) && n > at))
		return false;
	errno = atomic_load(&sys_of);
	return true;
}

/* For what moves a file's bytes: how many it may move now; 0: it fails. Of a byte alone there is nothing to be left out. */
static size_t
let_through(enum fault_call call, size_t n)
{
	if (atomic_load(&sys_of) == FAULT_SHORT && n < 2)
		return n;
	if (!strikes(call))
		return n;
	return atomic_load(&sys_of) == FAULT_SHORT;
}

int __real_fstat(int fd, struct stat *st);

static bool
is_file(int fd)
{
	int keep = errno;
	struct stat st;
	bool is = atomic_load(&kind) != FAULT_NONE && !__real_fstat(fd, &st) && S_ISREG(st.st_mode);

	errno = keep;
	return is;
}

int __real_fcntl(int fd, int cmd, ...);

/* Not memory of the kernel's own, of which there is nothing to be read. */
static bool
is_on_disk(int fd)
{
	struct stat st;

	return atomic_load(&kind) == FAULT_STAT && !__real_fstat(fd, &st) && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) && __real_fcntl(fd, F_GET_SEALS) < 0;
}

void *
fault_alloc(void *cold, uint64_t bytes, uint64_t align, uint32_t what, int32_t numa)
{
	uint64_t room = bytes - 16; /* behind the head of a piece of the pool */
	void *at = NULL;

	(void)what, (void)numa;
	if (*(bool *)cold && bytes > 16 && room >= 64 && !(room & (room - 1)))
		return NULL;
	return strikes(FAULT_MEMORY) || posix_memalign(&at, align < 16 ? 16 : align, bytes ? bytes : 1) ? NULL : at;
}

void
fault_free(void *cold, void *at)
{
	(void)cold;
	free(at);
}

/* The linker's names of a call: what is asked for, and what there is. */
#define WRAP(call, type, fail, name, params, args) \
	type __real_##name params; \
	type __wrap_##name params; \
	type __wrap_##name params \
	{ \
		return strikes(call) ? fail : __real_##name args; \
	}
#define WRAP_IF(cond, call, type, fail, name, params, args) \
	type __real_##name params; \
	type __wrap_##name params; \
	type __wrap_##name params \
	{ \
		return (cond) && strikes(call) ? fail : __real_##name args; \
	}

WRAP(FAULT_MMAP, void *, MAP_FAILED, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t off), (at, n, prot, flags, fd, off))
WRAP(FAULT_MEMFD, int, -1, memfd_create, (const char *name, unsigned flags), (name, flags))
WRAP(FAULT_SIZE, int, -1, ftruncate, (int fd, off_t n), (fd, n))
WRAP_IF(!(mode & FALLOC_FL_PUNCH_HOLE), FAULT_RESERVE, int, -1, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
WRAP(FAULT_RESERVE, int, errno, posix_fallocate, (int fd, off_t at, off_t n), (fd, at, n))
WRAP(FAULT_EVENTFD, int, -1, eventfd, (unsigned n, int flags), (n, flags))
WRAP(FAULT_TIMERFD, int, -1, timerfd_create, (int clock, int flags), (clock, flags))
WRAP(FAULT_EPOLL, int, -1, epoll_create1, (int flags), (flags))
WRAP_IF(op == EPOLL_CTL_ADD, FAULT_WATCH, int, -1, epoll_ctl, (int ep, int op, int fd, struct epoll_event *ev), (ep, op, fd, ev))
WRAP(FAULT_SOCKET, int, -1, socket, (int family, int type, int proto), (family, type, proto))
WRAP(FAULT_BIND, int, -1, bind, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
WRAP(FAULT_LISTEN, int, -1, listen, (int fd, int n), (fd, n))
WRAP(FAULT_ACCEPT, int, -1, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags))
WRAP_IF(a->sa_family == AF_UNIX || atomic_load(&kind) != FAULT_CONNECT_HERE, atomic_load(&kind) == FAULT_CONNECT_HERE ? FAULT_CONNECT_HERE : FAULT_CONNECT, int, -1,
	connect, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
WRAP(FAULT_GETSOCKOPT, int, -1, getsockopt, (int fd, int level, int name, void *at, socklen_t *n), (fd, level, name, at, n))
WRAP(FAULT_SETSOCKOPT, int, -1, setsockopt, (int fd, int level, int name, const void *at, socklen_t n), (fd, level, name, at, n))
WRAP(FAULT_NAME, int, -1, getsockname, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
WRAP(FAULT_NAME, int, -1, getpeername, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
WRAP(FAULT_THREAD, int, errno, pthread_create, (pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg), (out, attr, run, arg))
WRAP(FAULT_SYNC, int, -1, fsync, (int fd), (fd))
WRAP(FAULT_RENAME, int, -1, rename, (const char *from, const char *to), (from, to))
WRAP(FAULT_RENAME, int, -1, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
WRAP(FAULT_RENAME, int, -1, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
WRAP(FAULT_RENAME, int, -1, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
WRAP(FAULT_FOLDER, int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(FAULT_FOLDER, int, -1, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode))
WRAP(FAULT_FOLDER, DIR *, NULL, opendir, (const char *path), (path))
WRAP(FAULT_FOLDER, DIR *, NULL, fdopendir, (int fd), (fd))
WRAP(FAULT_REMOVE, int, -1, unlink, (const char *path), (path))
WRAP(FAULT_REMOVE, int, -1, unlinkat, (int fd, const char *path, int flags), (fd, path, flags))
WRAP(FAULT_REMOVE, int, -1, rmdir, (const char *path), (path))
WRAP(FAULT_LOCK, int, -1, flock, (int fd, int how), (fd, how))
WRAP(FAULT_ACCESS, int, -1, access, (const char *path, int how), (path, how))
WRAP(FAULT_ADVISE, int, -1, madvise, (void *at, size_t n, int how), (at, n, how))
WRAP(FAULT_PAIR, int, -1, socketpair, (int family, int type, int proto, int fds[2]), (family, type, proto, fds))
WRAP(FAULT_MODE, int, -1, fchmod, (int fd, mode_t mode), (fd, mode))
WRAP(FAULT_STAT, int, -1, stat, (const char *path, struct stat *st), (path, st))
WRAP(FAULT_STAT, int, -1, lstat, (const char *path, struct stat *st), (path, st))
WRAP_IF(is_on_disk(fd), FAULT_STAT, int, -1, fstat, (int fd, struct stat *st), (fd, st))
WRAP(FAULT_STAT, int, -1, fstatat, (int fd, const char *path, struct stat *st, int flags), (fd, path, st, flags))
WRAP(FAULT_STAT, int, -1, fstatvfs, (int fd, struct statvfs *st), (fd, st))
WRAP(FAULT_PATH, char *, NULL, realpath, (const char *path, char *to), (path, to))
WRAP(FAULT_PATH, ssize_t, -1, readlink, (const char *path, char *to, size_t n), (path, to, n))
WRAP(FAULT_PATH, ssize_t, -1, readlinkat, (int fd, const char *path, char *to, size_t n), (fd, path, to, n))
WRAP(FAULT_SEND, ssize_t, -1, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
WRAP(FAULT_SEND, ssize_t, -1, send, (int fd, const void *at, size_t n, int flags), (fd, at, n, flags))
WRAP(FAULT_RECEIVE, ssize_t, -1, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
WRAP(FAULT_RECEIVE, ssize_t, -1, recv, (int fd, void *at, size_t n, int flags), (fd, at, n, flags))
WRAP(FAULT_POLL, int, -1, poll, (struct pollfd *p, nfds_t n, int ms), (p, n, ms))
WRAP(FAULT_POLL, int, -1, epoll_wait, (int fd, struct epoll_event *ev, int n, int ms), (fd, ev, n, ms))
WRAP(FAULT_NEXT, struct dirent *, NULL, readdir, (DIR *d), (d))
WRAP(FAULT_ADVISE, int, errno, posix_fadvise, (int fd, off_t at, off_t n, int how), (fd, at, n, how))
WRAP(FAULT_LOOK, int, -1, getrlimit, (int what, struct rlimit *to), (what, to))
WRAP(FAULT_LOOK, int, -1, sysinfo, (struct sysinfo *to), (to))
WRAP(FAULT_LOOK, int, -1, fstatfs, (int fd, struct statfs *to), (fd, to))
WRAP(FAULT_LOOK, int, -1, gethostname, (char *to, size_t room), (to, room))
WRAP(FAULT_LOOK, int, EAI_MEMORY, getnameinfo, (const struct sockaddr *a, socklen_t n, char *host, socklen_t h, char *port, socklen_t p, int flags), (a, n, host, h, port, p, flags))
WRAP(FAULT_SHUT, int, -1, shutdown, (int fd, int how), (fd, how))
WRAP(FAULT_CPUS, int, -1, sched_getaffinity, (pid_t pid, size_t n, cpu_set_t *set), (pid, n, set))
WRAP(FAULT_RANDOM, ssize_t, -1, getrandom, (void *at, size_t n, unsigned flags), (at, n, flags))
WRAP(FAULT_INTERFACES, int, -1, getifaddrs, (struct ifaddrs **out), (out))
WRAP(FAULT_RESOLVE, int, errno, getaddrinfo, (const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out), (host, port, hints, out))

/* What a file's bytes move with, wholly or in part. */
#define WRAP_MOVE(cond, call, name, params, some) \
	ssize_t __real_##name params; \
	ssize_t __wrap_##name params; \
	ssize_t __wrap_##name params \
	{ \
		size_t k = (cond) ? let_through(call, n) : n; \
 \
		return n && !k ? -1 : __real_##name some; \
	}

WRAP_MOVE(is_file(fd), FAULT_READ, read, (int fd, void *to, size_t n), (fd, to, k))
WRAP_MOVE(is_file(fd), FAULT_READ, pread, (int fd, void *to, size_t n, off_t at), (fd, to, k, at))
WRAP_MOVE(is_file(fd), FAULT_WRITE, write, (int fd, const void *from, size_t n), (fd, from, k))
WRAP_MOVE(is_file(fd), FAULT_WRITE, pwrite, (int fd, const void *from, size_t n, off_t at), (fd, from, k, at))

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __real_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...);
int __wrap_fcntl(int fd, int cmd, ...);

int
__wrap_open(const char *path, int flags, ...)
{
	va_list ap;
	mode_t mode;

	va_start(ap, flags);
	mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0;
	va_end(ap);
	return strikes(FAULT_OPEN) ? -1 : __real_open(path, flags, mode);
}

int
__wrap_openat(int dir, const char *path, int flags, ...)
{
	va_list ap;
	mode_t mode;

	va_start(ap, flags);
	mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0;
	va_end(ap);
	return strikes(FAULT_OPEN) ? -1 : __real_openat(dir, path, flags, mode);
}

int
__wrap_fcntl(int fd, int cmd, ...)
{
	va_list ap;
	void *arg; /* or an int, which every ABI that we know passes alike */

	va_start(ap, cmd);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (((cmd == F_OFD_SETLK || cmd == F_OFD_GETLK) && strikes(FAULT_LOCK)) || (cmd == F_DUPFD_CLOEXEC && strikes(FAULT_DUP)) || (cmd == F_ADD_SEALS && strikes(FAULT_SEAL)))
		return -1;
	return __real_fcntl(fd, cmd, arg);
}
