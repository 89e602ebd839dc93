/* SPDX-License-Identifier: Apache-2.0 */
#include "spawn.h"

#include "progress.h"
#include "value.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE_NS (10 * IST_NS_PER_S)      /* after the first signal, or the first failure */
#define GRACE_SHORT_NS (IST_NS_PER_S)     /* after the second */

struct pack {
	const struct cli *cli;
	struct child *children;
	uint32_t n, alive;
	sigset_t before, childs; /* masks: what to come back to, what children start with */
	int signals;             /* descriptor */
	int keeper_pipe;         /* closes with us */
	pid_t keeper;
	pid_t *groups;           /* shared with the keeper: the groups that may still hold somebody, 0: none */
	int got, result;
	int64_t term_at_ns;      /* INT64_MAX: nobody is to be ended */
	int64_t kill_at_ns;
	int64_t last_words_ns;
};

static struct {
	bool on;
	int got;
	sigset_t set, before;
} held;

/* Adds those of the signals that are to be taken. nohup: a hangup that is ignored stays ignored. A shell's '&' makes SIGINT
 * ignored too, but whoever sends that to us by hand means it. */
static void
take_over(sigset_t *set, const int *signals, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct sigaction now;

		if (signals[i] == SIGHUP && sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN)
			continue;
		sigaddset(set, signals[i]);
		signal(signals[i], SIG_DFL);
	}
}

void
spawn_hold_signals(void)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };

	sigemptyset(&held.set);
	take_over(&held.set, ends, sizeof(ends) / sizeof(ends[0]));
	sigprocmask(SIG_BLOCK, &held.set, &held.before);
	held.on = true;
}

int
spawn_held_signal(void)
{
	struct timespec now = { .tv_sec = 0 };
	int sig = held.got || !held.on ? 0 : sigtimedwait(&held.set, NULL, &now);

	if (sig > 0)
		held.got = sig;
	return held.got;
}

char **
spawn_env(char *const *set)
{
	size_t n = 0, k = 0, at = 0;
	char **env;

	while (environ[n])
		n++;
	while (set[k])
		k++;
	env = calloc(n + k + 1, sizeof(*env));
	for (size_t i = 0; env && i < n; i++) {
		size_t name = strcspn(environ[i], "=") + 1;
		bool replaced = false;

		for (size_t j = 0; j < k; j++)
			replaced |= !strncmp(environ[i], set[j], name);
		if (!replaced)
			env[at++] = environ[i];
	}
	for (size_t j = 0; env && j < k; j++)
		env[at++] = set[j];
	return env;
}

static void
signal_groups(struct pack *p, int sig)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->groups[i] > 0)
			kill(-p->groups[i], sig);
}

/* Says why there is no program, with calls that a child between fork and exec may make. */
static void
cant_start(const char *name, int sys)
{
	const char *text = sys == ENOENT ? ": no such program\n" : ": can't be started\n";
	ssize_t n = write(STDERR_FILENO, name, strlen(name));

	n += write(STDERR_FILENO, text, strlen(text));
	_exit(n < 0 || sys == ENOENT ? 127 : 126);
}

/* The child's half: async-signal-safe calls only, since the parent may have threads. */
static void
become(const struct pack *p, const struct child *c, pid_t parent)
{
	int fd;

	setpgid(0, 0);
	/* SIGTERM, so that a member leaves in good order; the keeper comes with SIGKILL */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(EXIT_FAILED);
	fd = open("/dev/null", O_RDONLY);
	/* a group in the background that reads the terminal is stopped: it gets nothing to read */
	if (fd >= 0 && isatty(STDIN_FILENO))
		dup2(fd, STDIN_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
	sigprocmask(SIG_SETMASK, &p->childs, NULL);
	execvpe(c->argv[0], c->argv, c->env);
	cant_start(c->argv[0], errno);
}

static int
start_child(struct pack *p, struct child *c)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		return cli_fail_sys(p->cli, IST_IO, errno, "run", "fork");
	if (pid == 0)
		become(p, c, parent);
	setpgid(pid, pid); /* both sides do it: whoever comes first */
	c->pid = pid;
	p->groups[c - p->children] = pid;
	p->alive++;
	return EXIT_DONE;
}

/* A process that sleeps until we are gone, then ends what is left. It is told the groups before it starts. */
static int
start_keeper(struct pack *p)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC))
		return cli_fail_sys(p->cli, IST_IO, errno, "run", "pipe");
	p->keeper = fork();
	if (p->keeper == 0) {
		struct pollfd nothing = { .fd = -1 };
		char byte;

		setsid();
		/* nobody must take an open socket or pipe of ours for a sign of life */
		close_range(0, (unsigned)fds[0] - 1, 0);
		close_range((unsigned)fds[0] + 1, ~0u, 0);
		while (read(fds[0], &byte, 1) < 0 && errno == EINTR)
			;
		signal_groups(p, SIGTERM);
		poll(&nothing, 1, 1000);
		signal_groups(p, SIGKILL);
		_exit(0);
	}
	close(fds[0]);
	p->keeper_pipe = fds[1];
	return p->keeper < 0 ? cli_fail_sys(p->cli, IST_IO, errno, "run", "fork") : EXIT_DONE;
}

static void
end_others(struct pack *p, int64_t grace_ns)
{
	int64_t at = now_ns() + grace_ns;

	if (at < p->kill_at_ns)
		p->kill_at_ns = at;
}

static void
ended(struct pack *p, struct child *c, int how)
{
	c->status = WIFSIGNALED(how) ? EXIT_SIGNAL + WTERMSIG(how) : WEXITSTATUS(how);
	c->ended = true;
	c->forget_ns = now_ns() + IST_NS_PER_S;
	p->alive--;
	kill(-c->pid, SIGTERM); /* what it left running in its group */
	if (c->status && !p->result && !p->got) {
		p->result = c->status;
		if (p->alive)
			cli_say(p->cli, IST_LOG_WARN, "process %u ended with status %d; ending the others", (unsigned)(c - p->children), c->status);
		p->term_at_ns = now_ns() + p->last_words_ns;
		end_others(p, GRACE_NS);
	}
}

static void
reap(struct pack *p)
{
	for (uint32_t i = 0; i < p->n; i++) {
		struct child *c = &p->children[i];
		int how;

		if (c->pid > 0 && !c->ended && waitpid(c->pid, &how, WNOHANG) == c->pid)
			ended(p, c, how);
		/* later its number may be somebody else's */
		if (c->ended && p->groups[i] && now_ns() >= c->forget_ns) {
			kill(-p->groups[i], SIGKILL);
			p->groups[i] = 0;
		}
	}
}

static void
take_signal(struct pack *p, int sig)
{
	bool ends = sig == SIGINT || sig == SIGTERM || sig == SIGHUP || sig == SIGQUIT;

	signal_groups(p, sig);
	if (!ends)
		return;
	end_others(p, p->got ? GRACE_SHORT_NS : GRACE_NS);
	if (!p->got)
		p->got = sig;
}

static void
read_signals(struct pack *p)
{
	struct signalfd_siginfo info;

	while (read(p->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
		if (info.ssi_signo != SIGCHLD)
			take_signal(p, (int)info.ssi_signo);
}

/* Until something is due: a second at most, so that what is to be forgotten is forgotten in time. */
static int
sleep_ms(const struct pack *p)
{
	int64_t next = p->kill_at_ns < p->term_at_ns ? p->kill_at_ns : p->term_at_ns, left;

	if (!p->result && p->cli->deadline_ns < next)
		next = p->cli->deadline_ns;
	left = next - now_ns();
	return next == INT64_MAX || left > IST_NS_PER_S ? 1000 : left <= 0 ? 0 : (int)(left / 1000000) + 1;
}

static void
what_is_due(struct pack *p)
{
	int64_t now = now_ns();

	if (now >= p->cli->deadline_ns && !p->result) {
		p->result = cli_fail_code(p->cli, IST_TIMEOUT, "run", "%u of %u processes were still running", p->alive, p->n);
		p->term_at_ns = now;
		end_others(p, GRACE_SHORT_NS);
	}
	if (now >= p->term_at_ns) {
		signal_groups(p, SIGTERM);
		p->term_at_ns = INT64_MAX;
	}
	if (now >= p->kill_at_ns) {
		signal_groups(p, SIGKILL);
		p->kill_at_ns = now + IST_NS_PER_S / 10; /* again, until all are gone */
	}
}

static void
wait_all(struct pack *p)
{
	while (p->alive) {
		struct pollfd fd = { .fd = p->signals, .events = POLLIN };

		poll(&fd, 1, sleep_ms(p));
		read_signals(p);
		reap(p);
		if (p->alive)
			what_is_due(p);
	}
}

static int
block_signals(struct pack *p)
{
	static const int ours[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD };
	sigset_t set;

	sigemptyset(&set);
	take_over(&set, ours, sizeof(ours) / sizeof(ours[0]));
	sigprocmask(SIG_BLOCK, &set, &p->before);
	p->childs = held.on ? held.before : p->before;
	p->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return p->signals < 0 ? cli_fail_sys(p->cli, IST_IO, errno, "run", "signalfd") : EXIT_DONE;
}

/* The groups are empty now, or what is left in them has had its time. */
static void
finish(struct pack *p)
{
	signal_groups(p, SIGKILL);
	if (p->keeper > 0) {
		kill(p->keeper, SIGKILL);
		waitpid(p->keeper, NULL, 0);
		close(p->keeper_pipe);
	}
	munmap(p->groups, p->n * sizeof(*p->groups));
	if (p->signals >= 0)
		close(p->signals);
	sigprocmask(SIG_SETMASK, &p->before, NULL);
}

int
spawn_all(const struct cli *cli, struct child *children, uint32_t n, int64_t last_words_ns)
{
	struct pack p = { .cli = cli, .children = children, .n = n, .signals = -1, .term_at_ns = INT64_MAX, .kill_at_ns = INT64_MAX,
		.last_words_ns = last_words_ns };
	int status;

	p.groups = mmap(NULL, n * sizeof(*p.groups), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p.groups == MAP_FAILED)
		return cli_fail_sys(cli, IST_NO_MEMORY, errno, "run", "%u processes", n);
	status = block_signals(&p);
	for (uint32_t i = 0; status == EXIT_DONE && i < n; i++)
		status = start_child(&p, &children[i]);
	if (status == EXIT_DONE)
		status = start_keeper(&p);
	if (status != EXIT_DONE) {
		p.result = status;
		p.kill_at_ns = 0;
	}
	wait_all(&p);
	finish(&p);
	return p.got ? EXIT_SIGNAL + p.got : p.result;
}
