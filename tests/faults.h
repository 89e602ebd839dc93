/* SPDX-License-Identifier: Apache-2.0
 *
 * faults.h - system calls that fail when a test says so: the n-th of a kind in this process, or all from the n-th on. The
 * calls of the test and of what is linked in are led here by the linker (--wrap, see ISTHMUS_FAULTS in CMakeLists.txt); libc's own
 * are not.
 */
#ifndef ISTHMUS_TESTS_FAULTS_H
#define ISTHMUS_TESTS_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

/* For sys: what is read or written succeeds, with a single byte of it. Not for sockets: there the kernel says when the rest can
 * move, and would not for what never was in the way. */
enum { FAULT_SHORT = -1 };

/* What fails together. read and write are those of files alone: an eventfd of ours knows no failure. */
enum fault_call {
	FAULT_NONE,
	FAULT_MEMORY,     /* what fault_alloc gives */
	FAULT_MMAP,
	FAULT_MEMFD,      /* memfd_create */
	FAULT_SIZE,       /* ftruncate */
	FAULT_RESERVE,    /* fallocate, posix_fallocate; not the giving back of pages */
	FAULT_SEAL,       /* fcntl F_ADD_SEALS */
	FAULT_EVENTFD,
	FAULT_TIMERFD,
	FAULT_EPOLL,      /* epoll_create1 */
	FAULT_WATCH,      /* epoll_ctl EPOLL_CTL_ADD */
	FAULT_SOCKET,
	FAULT_BIND,
	FAULT_LISTEN,
	FAULT_ACCEPT,     /* accept4 */
	FAULT_CONNECT,
	FAULT_CONNECT_HERE, /* of a socket of this host's */
	FAULT_GETSOCKOPT,
	FAULT_SETSOCKOPT,
	FAULT_NAME,       /* getsockname, getpeername */
	FAULT_THREAD,     /* pthread_create */
	FAULT_OPEN,       /* open, openat */
	FAULT_READ,       /* read, pread */
	FAULT_WRITE,      /* write, pwrite */
	FAULT_SYNC,       /* fsync */
	FAULT_RENAME,     /* rename, renameat, renameat2, linkat */
	FAULT_FOLDER,     /* mkdir, mkdirat, opendir, fdopendir */
	FAULT_REMOVE,     /* unlink, unlinkat, rmdir */
	FAULT_MODE,       /* fchmod */
	FAULT_STAT,       /* stat, lstat, fstatat, fstatvfs, and fstat of what lies on a disk */
	FAULT_PATH,       /* realpath, readlink, readlinkat */
	FAULT_LOCK,       /* flock, and of fcntl F_OFD_SETLK and F_OFD_GETLK */
	FAULT_NEXT,       /* readdir */
	FAULT_ACCESS,     /* access */
	FAULT_ADVISE,     /* madvise, posix_fadvise */
	FAULT_LOOK,       /* what only asks: getrlimit, sysinfo, fstatfs, gethostname, getnameinfo */
	FAULT_SHUT,       /* shutdown */
	FAULT_PAIR,       /* socketpair */
	FAULT_SEND,       /* sendmsg, send */
	FAULT_RECEIVE,    /* recvmsg, recv */
	FAULT_POLL,       /* poll, epoll_wait */
	FAULT_DUP,        /* fcntl F_DUPFD_CLOEXEC */
	FAULT_CPUS,       /* sched_getaffinity */
	FAULT_RANDOM,     /* getrandom */
	FAULT_INTERFACES, /* getifaddrs */
	FAULT_RESOLVE,    /* getaddrinfo; sys is its own error number */
};

/* For an env: its calls are counted like any others. cold: what a pool would keep for later is not to be had, so that all that
 * is needed later is asked for then. */
void *fault_alloc(void *cold, uint64_t bytes, uint64_t align, uint32_t what, int32_t numa);
void fault_free(void *cold, void *at);
/* From now on calls of that kind are counted; the at-th fails with sys, and with for_good all after it. */
void fault_set(enum fault_call call, long at, bool for_good, int sys);
/* Nothing fails any more. How many calls of the kind there were. */
long fault_clear(void);

#endif
