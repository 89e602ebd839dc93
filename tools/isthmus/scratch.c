/* SPDX-License-Identifier: Apache-2.0 */
#include "scratch.h"

#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static bool
has_room(const char *dir, uint64_t bytes)
{
	struct statvfs s;

	return statvfs(dir, &s) == 0 && (uint64_t)s.f_bavail * s.f_frsize / 2 > bytes && access(dir, W_OK) == 0;
}

/* Pages of /dev/shm are memory: it is taken only when that is there as well. */
static bool
memory_has_room(uint64_t bytes)
{
	long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);

	return pages > 0 && page > 0 && (uint64_t)pages * (uint64_t)page / 2 > bytes;
}

int
scratch_open(const struct cli *cli, struct scratch *out, uint64_t bytes)
{
	const char *tmp = getenv("TMPDIR"), *dir = tmp && *tmp ? tmp : "/tmp";

	if (!(tmp && *tmp) && has_room("/dev/shm", bytes) && memory_has_room(bytes))
		dir = "/dev/shm";
	snprintf(out->path, sizeof(out->path), "%.4000s/isthmus-XXXXXX", dir);
	if (mkdtemp(out->path))
		return EXIT_DONE;
	out->path[0] = 0;
	return cli_fail_sys(cli, IST_IO, errno, "scratch folder", "%s", dir);
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st, (void)type, (void)at;
	remove(path);
	return 0;
}

void
scratch_close(struct scratch *scratch)
{
	if (scratch->path[0])
		nftw(scratch->path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	scratch->path[0] = 0;
}
