/* SPDX-License-Identifier: Apache-2.0 */
#include "local.h"

#include "spawn.h"
#include "value.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* First port of the range from which the kernel hands out ports by itself. */
static uint32_t
ephemeral_first(void)
{
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
	unsigned first = 0;

	if (f) {
		if (fscanf(f, "%u", &first) != 1)
			first = 0;
		fclose(f);
	}
	return first > 12000 && first < 65536 ? first : 32768;
}

static bool
port_is_free(uint32_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_ANY) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool is_free = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0;

	if (fd >= 0)
		close(fd);
	return is_free;
}

/* An abstract name that goes away with us. */
static int
lock_port(uint32_t port)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	int n = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "isthmus-run-port-%u", port);
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && bind(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* MASTER_PORT is the programs' to bind, some time from now. Held open it could not be bound by all of them; so it is
 * taken from below the range that the kernel gives away by itself, and kept from other runs by a lock. */
static int
choose_master_port(struct local *l)
{
	uint32_t end = ephemeral_first(), begin = end - 10000;
	uint32_t dice = 0;

	for (int i = 0; i < 1000; i++) {
		if (getrandom(&dice, sizeof(dice), 0) != sizeof(dice))
			dice = (uint32_t)now_ns();
		l->master_port = begin + dice % 10000;
		if (l->master_port == (uint32_t)strtoul(l->port, NULL, 10))
			continue;
		l->master_lock = lock_port(l->master_port);
		if (l->master_lock >= 0 && port_is_free(l->master_port))
			return EXIT_DONE;
		if (l->master_lock >= 0)
			close(l->master_lock);
		l->master_lock = -1;
	}
	return cli_fail_code(l->cli, IST_CONFLICT, "run", "no free port from %u to %u for MASTER_PORT", begin, end - 1);
}

static int
open_store(struct local *l)
{
	struct ist_store_args args = { .struct_size = sizeof(args), .bind = "127.0.0.1:0" };
	uint64_t n = sizeof(l->address) - 1;
	struct secret secret;
	struct ist_error err;
	int status = secret_read(l->cli, &secret);

	if (status != EXIT_DONE)
		return status;
	args.secret = secret.bytes;
	args.secret_bytes = secret.n;
	ist_error_init(&err);
	if (ist_store_new(l->s.env, &args, &l->store, &err) || ist_store_address(l->store, l->address, &n, &err))
		status = cli_fail(l->cli, &err);
	secret_free(&secret);
	if (status == EXIT_DONE) {
		l->address[n] = 0;
		l->port = strrchr(l->address, ':') ? strrchr(l->address, ':') + 1 : "0";
	}
	return status;
}

int
local_open(struct local *l, struct cli *cli)
{
	int status;

	*l = (struct local){ .cli = cli, .master_lock = -1 };
	status = session_env(&l->s, cli);
	if (status == EXIT_DONE)
		status = open_store(l);
	if (status == EXIT_DONE)
		status = choose_master_port(l);
	return status;
}

void
local_close(struct local *l)
{
	if (l->store)
		ist_store_free(l->store);
	session_close(&l->s);
	if (l->master_lock >= 0)
		close(l->master_lock);
	l->master_lock = -1;
}

enum { N_SET = 7 };

struct rank_env {
	char text[N_SET][4200];
	char *set[N_SET + 1];
};

static char **
rank_env(struct local *l, struct rank_env *r, uint32_t rank, uint32_t n)
{
	const char *secret = option_text(&l->cli->o, OPT_SECRET_FILE, NULL);

	snprintf(r->text[0], sizeof(r->text[0]), "RANK=%u", rank);
	snprintf(r->text[1], sizeof(r->text[1]), "WORLD_SIZE=%u", n);
	snprintf(r->text[2], sizeof(r->text[2]), "LOCAL_RANK=%u", rank);
	snprintf(r->text[3], sizeof(r->text[3]), "MASTER_ADDR=127.0.0.1");
	snprintf(r->text[4], sizeof(r->text[4]), "MASTER_PORT=%u", l->master_port);
	snprintf(r->text[5], sizeof(r->text[5]), "ISTHMUS_PORT=%s", l->port);
	snprintf(r->text[6], sizeof(r->text[6]), "ISTHMUS_SECRET_FILE=%s", secret ? secret : "");
	for (int i = 0; i < N_SET; i++)
		r->set[i] = i < N_SET - !secret ? r->text[i] : NULL;
	return spawn_env(r->set);
}

int
local_run(struct local *l, char **argv, uint32_t n)
{
	struct child *children = calloc(n, sizeof(*children));
	struct rank_env *envs = calloc(n, sizeof(*envs));
	bool good = children && envs;
	int status;

	for (uint32_t i = 0; good && i < n; i++) {
		children[i].argv = argv;
		children[i].env = rank_env(l, &envs[i], i, n);
		good = children[i].env != NULL;
	}
	status = good ? spawn_all(l->cli, children, n, IST_NS_PER_S / 2) : cli_fail_code(l->cli, IST_NO_MEMORY, "run", "%u processes", n);
	for (uint32_t i = 0; children && i < n; i++)
		free(children[i].env);
	free(envs);
	free(children);
	return status;
}
