/* SPDX-License-Identifier: Apache-2.0
 *
 * decide_test.c - who is dead for certain, as a vote asks it of a member on another host: where the member itself answers it
 * lives, where nobody listens or another one answers it is dead, and where somebody listens and says nothing, or a stranger
 * answers, nobody can know. The votes themselves: group_test.c with processes, decide.pml with every order of events.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "group/group.h"
#include "net/addr.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct host {
	struct ist_env *env;
	struct ist__ep *ep;
	struct ist__card card;
};

static void
host_open(struct host *h, const char *secret)
{
	struct ist_env_args ea = { .struct_size = sizeof(ea) };
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .secret = secret, .secret_bytes = secret ? strlen(secret) : 0 };
	char bound[IST__BOUND];

	assert_int_equal(ist_env_new(&ea, &h->env, NULL), IST_OK);
	assert_int_equal(ist__ep_new(h->env, &pa, &h->ep, NULL), IST_OK);
	assert_int_equal(ist__ep_listen(h->ep, NULL, &h->card, bound, NULL), IST_OK);
}

static void
host_close(struct host *h)
{
	ist__ep_unref(h->ep);
	ist_env_free(h->env);
}

/* As member 0 of a group of two, whose other member is on another host and was last seen with this card. */
static bool
died(struct host *us, const struct ist__card *them, int64_t ms)
{
	struct ist__member members[2] = { { .card = us->card, .host = 0 }, { .card = *them, .host = 1 } };
	struct ist__group g = { .env = us->env, .ctx = ist__env_ctx(us->env), .ep = us->ep, .loop = us->ep->loop, .size = 2, .members = members };

	return ist__decide_died(&g, 1, ist__now() + ms * IST__MS);
}

static void
who_answers_lives(void **unused)
{
	struct host us, them;

	(void)unused;
	host_open(&us, NULL);
	host_open(&them, NULL);
	assert_false(died(&us, &them.card, 10000));
	host_close(&them);
	host_close(&us);
}

static void
nobody_there_is_dead(void **unused)
{
	struct host us, them;

	(void)unused;
	host_open(&us, NULL);
	host_open(&them, NULL);
	host_close(&them);
	assert_true(died(&us, &them.card, 10000));
	host_close(&us);
}

static void
another_one_there_is_dead(void **unused)
{
	struct host us, them;
	struct ist__card old;

	(void)unused;
	host_open(&us, NULL);
	host_open(&them, NULL);
	old = them.card;
	old.id[0] ^= 1;
	assert_true(died(&us, &old, 10000));
	host_close(&them);
	host_close(&us);
}

/* A listener that never accepts: the kernel takes the connection. */
static void
silence_shows_nothing(void **unused)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct ist__card card;
	struct host us;

	(void)unused;
	host_open(&us, NULL);
	assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof(a)) && !listen(fd, 8) && !getsockname(fd, (struct sockaddr *)&a, &n));
	card = us.card;
	snprintf(card.addr, sizeof(card.addr), "127.0.0.1:%u", ntohs(a.sin_port));
	assert_false(died(&us, &card, 200));
	close(fd);
	host_close(&us);
}

static void
a_stranger_shows_nothing(void **unused)
{
	struct host us, them;

	(void)unused;
	host_open(&us, NULL);
	host_open(&them, "another secret than ours");
	assert_false(died(&us, &them.card, 200));
	host_close(&them);
	host_close(&us);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_answers_lives),
		cmocka_unit_test(nobody_there_is_dead),
		cmocka_unit_test(another_one_there_is_dead),
		cmocka_unit_test(silence_shows_nothing),
		cmocka_unit_test(a_stranger_shows_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
