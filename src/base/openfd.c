/* SPDX-License-Identifier: Apache-2.0 */
#include "base/openfd.h"

#include <errno.h>
#include <fcntl.h>

int
ist__open(int folder, const char *path, int flags, unsigned mode)
{
	int fd;

	do
		fd = openat(folder, path, flags, (mode_t)mode);
	while (fd < 0 && errno == EINTR);
	return fd;
}
