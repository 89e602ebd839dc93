/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memfd.h"

#include <errno.h>
#include <sys/mman.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

int
ist__memfd(const char *name)
{
	/* vm.memfd_noexec=2 allows no other; kernels before 6.3 don't know it */
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	return fd < 0 && errno == EINVAL ? memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

bool
ist__memfd_is_forbidden(int sys)
{
	return sys == EPERM || sys == EACCES || sys == ENOSYS;
}
