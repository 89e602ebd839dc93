/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include "value.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define EVERY_TTY_NS 100000000
#define EVERY_LINE_NS 1000000000
#define SAME_NOTE_NS 10000000000
#define READER_MS 1000

static struct {
	pthread_mutex_t lock;
	bool on, tty, shown;
	char what[64], note[256];
	int64_t start_ns, last_ns, note_ns;
} bar = { .lock = PTHREAD_MUTEX_INITIALIZER };

bool
progress_room(void)
{
	static atomic_bool full;
	struct pollfd fd = { .fd = STDERR_FILENO, .events = POLLOUT };
	int n = poll(&fd, 1, atomic_load(&full) ? 0 : READER_MS);
	bool room = n > 0 || (n < 0 && errno == EINTR);

	atomic_store(&full, !room);
	return room;
}

/* Takes the bar off the screen. Locked. */
static void
hide(void)
{
	if (bar.shown && bar.tty && progress_room())
		fputs("\r\033[K\033[?25h", stderr);
	bar.shown = false;
}

static uint32_t
columns(void)
{
	struct winsize w;

	return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= 40 ? w.ws_col : 80;
}

/* Locked. On a terminal the line is cut to its width, so that it can be overwritten. */
static void
show(const char *text)
{
	if (!progress_room())
		return;
	if (!bar.tty) {
		fprintf(stderr, "%s: %s\n", bar.what, text);
	} else {
		uint32_t room = columns() - 1;

		fprintf(stderr, "\033[?25l\r%.*s\033[K", (int)room, text);
		bar.shown = true;
	}
	fflush(stderr);
}

static bool
due(void)
{
	int64_t now = now_ns();

	if (!bar.on || now - bar.last_ns < (bar.tty ? EVERY_TTY_NS : EVERY_LINE_NS))
		return false;
	bar.last_ns = now;
	return true;
}

void
progress_start(const char *what, bool quiet)
{
	pthread_mutex_lock(&bar.lock);
	hide();
	bar.on = !quiet;
	bar.tty = isatty(STDERR_FILENO) && ttyname(STDERR_FILENO);
	snprintf(bar.what, sizeof(bar.what), "%s", what);
	bar.start_ns = bar.last_ns = now_ns();
	pthread_mutex_unlock(&bar.lock);
}

static void
draw(uint64_t bytes, uint64_t total)
{
	double seconds = seconds_since(bar.start_ns), part = total ? (double)bytes / (double)total : 0;
	char a[24], b[24], c[24], text[256], blocks[33];
	uint32_t full = (uint32_t)((part < 0 ? 0 : part > 1 ? 1 : part) * 32);

	memset(blocks, ' ', 32);
	memset(blocks, '#', full);
	blocks[32] = 0;
	human_bytes(bytes, a);
	human_bytes(total, b);
	human_bytes(seconds > 0 ? (uint64_t)((double)bytes / seconds) : 0, c);
	if (bar.tty)
		snprintf(text, sizeof(text), "%s [%s] %3.0f %%  %s of %s  %s/s", bar.what, blocks, part * 100, a, b, c);
	else
		snprintf(text, sizeof(text), "%.0f %%  %s of %s  %s/s", part * 100, a, b, c);
	show(text);
}

void
progress_bytes(void *unused, uint64_t bytes, uint64_t total)
{
	(void)unused;
	pthread_mutex_lock(&bar.lock);
	if (due())
		draw(bytes, total);
	pthread_mutex_unlock(&bar.lock);
}

/* The same words again are worth a line every now and then. Locked. */
static bool
said_lately(const char *text)
{
	bool same = !bar.tty && !strcmp(text, bar.note) && now_ns() - bar.note_ns < SAME_NOTE_NS;

	if (!same) {
		snprintf(bar.note, sizeof(bar.note), "%s", text);
		bar.note_ns = now_ns();
	}
	return same;
}

void
progress_note(const char *text)
{
	char whole[512];

	pthread_mutex_lock(&bar.lock);
	if (due() && !said_lately(text)) {
		if (bar.tty)
			snprintf(whole, sizeof(whole), "%s: %s", bar.what, text);
		show(bar.tty ? whole : text);
	}
	pthread_mutex_unlock(&bar.lock);
}

void
progress_hide(void)
{
	pthread_mutex_lock(&bar.lock);
	hide();
	pthread_mutex_unlock(&bar.lock);
}

void
progress_end(void)
{
	pthread_mutex_lock(&bar.lock);
	hide();
	bar.on = false;
	pthread_mutex_unlock(&bar.lock);
}
