/* SPDX-License-Identifier: Apache-2.0
 *
 * secret.c - the shared secret comes from a file and from nowhere else: not from argv, which every user of the machine
 * can read, and not from a variable, which children inherit.
 */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET_MIN 16
#define SECRET_MAX 4096

static int
check_file(const struct cli *cli, const char *path, int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		return cli_fail_sys(cli, IST_IO, errno, "secret", "secret file %s", path);
	if (!S_ISREG(st.st_mode))
		return cli_fail_code(cli, IST_BAD_CONFIG, "secret", "secret file %s is not a regular file", path);
	if (st.st_mode & (S_IRWXG | S_IRWXO))
		return cli_fail_code(cli, IST_DENIED, "secret", "secret file %s has mode %04o, open to group or others; run: chmod 600 %s", path,
			(unsigned)st.st_mode & 07777, path);
	return EXIT_DONE;
}

static int
read_all(const struct cli *cli, const char *path, int fd, struct secret *out)
{
	uint8_t *room = malloc(SECRET_MAX + 2);
	uint64_t n = 0;

	if (!room)
		return cli_fail_code(cli, IST_NO_MEMORY, "secret", "out of memory");
	out->bytes = room;
	while (n < SECRET_MAX + 2) {
		ssize_t got = read(fd, room + n, SECRET_MAX + 2 - n);

		if (got == 0)
			break;
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return cli_fail_sys(cli, IST_IO, errno, "secret", "secret file %s", path);
		n += (uint64_t)got;
	}
	if (n && room[n - 1] == '\n')
		n--;
	out->n = n;
	if (n < SECRET_MIN || n > SECRET_MAX)
		return cli_fail_code(cli, IST_BAD_CONFIG, "secret", "secret file %s holds %s than %u bytes (a trailing newline not counted)", path,
			n < SECRET_MIN ? "fewer" : "more", n < SECRET_MIN ? SECRET_MIN : SECRET_MAX);
	return EXIT_DONE;
}

int
secret_read(const struct cli *cli, struct secret *out)
{
	const char *path = option_text(&cli->o, OPT_SECRET_FILE, NULL);
	int fd, status;

	*out = (struct secret){ .n = 0 };
	if (!path)
		return EXIT_DONE;
	fd = (int)TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
	if (fd < 0)
		return cli_fail_sys(cli, IST_IO, errno, "secret", "secret file %s", path);
	status = check_file(cli, path, fd);
	if (status == EXIT_DONE)
		status = read_all(cli, path, fd, out);
	close(fd);
	if (status != EXIT_DONE)
		secret_free(out);
	return status;
}

void
secret_free(struct secret *secret)
{
	if (secret->bytes)
		explicit_bzero(secret->bytes, SECRET_MAX + 2);
	free(secret->bytes);
	*secret = (struct secret){ .n = 0 };
}
