/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.c - a fuzz target as a plain test, for any compiler: each file of the folder named goes through it as it is, then
 * changed in small ways, as many times as the time given allows (seconds; 0: as they are only). The changes follow from the
 * seed, which is printed; ISTHMUS_SEED sets it. What broke a promise lies in last-input, in the folder where it ran.
 */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 512, ROOM = 1 << 16 };

struct file {
	uint8_t *at;
	size_t bytes;
};

static struct file files[FILES];
static uint32_t n_files;

static uint64_t
next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void
read_file(const char *folder, const char *name)
{
	char path[4096];
	struct file *f = &files[n_files];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	f->at = malloc(ROOM);
	must(fd >= 0 && f->at != NULL);
	n = read(fd, f->at, ROOM);
	must(n >= 0);
	f->bytes = (size_t)n;
	n_files++;
	close(fd);
}

static void
read_folder(const char *folder)
{
	DIR *d = opendir(folder);
	struct dirent *e;

	if (!d)
		return;
	while ((e = readdir(d)) && n_files < FILES)
		if (e->d_name[0] != '.')
			read_file(folder, e->d_name);
	closedir(d);
}

/* A copy of exactly that size, so that one byte too far is seen; kept in a file until it is over. */
static void
run(int keep, const uint8_t *at, size_t n)
{
	uint8_t *copy = malloc(n ? n : 1);

	must(copy != NULL);
	if (n > 0)
		memcpy(copy, at, n);
	if (keep >= 0 && (ftruncate(keep, 0) || pwrite(keep, at, n, 0) != (ssize_t)n))
		fprintf(stderr, "the input could not be kept\n");
	LLVMFuzzerTestOneInput(copy, n);
	free(copy);
}

static size_t
change(uint8_t *to, size_t n, uint64_t *state)
{
	static const uint8_t edges[] = { 0, 1, 0x7F, 0x80, 0xFF, '"', '/', ':' };
	uint64_t times = 1 + next(state) % 4;

	for (uint64_t i = 0; i < times; i++) {
		uint64_t r = next(state), where = n ? r % n : 0, m;
		const struct file *other = &files[next(state) % n_files];

		switch ((r >> 32) % 6) {
		case 0:
			if (n)
				to[where] ^= (uint8_t)(1u << (r >> 40) % 8);
			break;
		case 1:
			if (n)
				to[where] = edges[(r >> 40) % 8];
			break;
		case 2:
			n = where;
			break;
		case 3:
			if (n)
				to[where] = (uint8_t)(r >> 48);
			break;
		case 4: /* what comes after it again */
			m = n - where < ROOM - n ? n - where : ROOM - n;
			memmove(to + n, to + where, m);
			n += m;
			break;
		default: /* goes on as another one does */
			m = other->bytes > where ? other->bytes - where : 0;
			if (m > 0)
				memcpy(to + where, other->at + where, m);
			n = m > 0 ? where + m : n;
			break;
		}
	}
	return n;
}

int
main(int argc, char **argv)
{
	const char *seed = getenv("ISTHMUS_SEED");
	double seconds = argc > 2 ? atof(argv[2]) : 0;
	uint64_t state, runs = 0;
	time_t until = time(NULL) + (time_t)seconds;
	uint8_t *room = malloc(ROOM);
	int keep = open("last-input", O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (argc < 2 || !room) {
		fprintf(stderr, "replay FOLDER [SECONDS]\n");
		return 2;
	}
	state = seed ? strtoull(seed, NULL, 10) | 1 : (uint64_t)time(NULL) * UINT64_C(2654435761) | 1;
	printf("seed %llu\n", (unsigned long long)state);
	fflush(stdout);
	read_folder(argv[1]);
	if (n_files == 0) {
		fprintf(stderr, "no inputs in %s\n", argv[1]);
		return 1;
	}
	for (uint32_t i = 0; i < n_files; i++)
		run(keep, files[i].at, files[i].bytes);
	while (seconds > 0 && time(NULL) <= until) {
		const struct file *f = &files[next(&state) % n_files];

		memcpy(room, f->at, f->bytes);
		run(keep, room, change(room, f->bytes, &state));
		runs++;
	}
	printf("%u inputs, %llu changed ones\n", n_files, (unsigned long long)runs);
	unlink("last-input");
	free(room);
	for (uint32_t i = 0; i < n_files; i++)
		free(files[i].at);
	return 0;
}
