/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_text.c - what a user types as an address: HOST:PORT, tcp:// and --advertise, --bind, the host backend's options.
 * First byte: which. No name is looked up here.
 */
#include "fuzz.h"

#include "backends/host/host.h"
#include "net/addr.h"

#include <netinet/in.h>
#include <stdio.h>

/* What was read says the same when it is written and read again. */
static void
again(const struct ist__hostport *hp)
{
	struct ist__hostport twice;
	char text[300];
	bool v6 = strchr(hp->host, ':') != NULL;

	must(hp->host[0] && memchr(hp->host, 0, sizeof(hp->host)));
	if (hp->has_port)
		snprintf(text, sizeof(text), v6 ? "[%s]:%u" : "%s:%u", hp->host, hp->port);
	else
		snprintf(text, sizeof(text), v6 ? "[%s]" : "%s", hp->host);
	must(ist__hostport_parse(text, hp->has_port, &twice, NULL) == IST_OK);
	must(!strcmp(twice.host, hp->host) && twice.port == hp->port && twice.has_port == hp->has_port);
}

static void
addresses(uint8_t which, const char *text)
{
	struct ist__hostport hp = { .port = 0 };
	struct ist_error err;
	ist_err e;

	ist_error_init(&err);
	if (which == 0)
		e = ist__hostport_parse(text, true, &hp, &err);
	else if (which == 1)
		e = ist__hostport_parse(text, false, &hp, &err);
	else if (which == 2)
		e = ist__tcp_url_parse(text, false, &hp, &err);
	else
		e = ist__advertise_parse(text, &hp, &err);
	must(e == err.code && (e == IST_OK || e == IST_INVALID_ARGUMENT));
	if (!e)
		again(&hp);
	if (!e && which >= 2)
		must(!hp.has_port || hp.port != 0);
}

static void
bind_to(const char *text)
{
	union ist__sockaddr at = { .sa = { .sa_family = AF_UNSPEC } };
	struct ist_error err;
	ist_err e;

	if (strstr(text, "localhost")) /* the one name that is looked up */
		return;
	ist_error_init(&err);
	e = ist__bind_pick(text, &at, &err);
	must(e == err.code && (e == IST_OK || e == IST_BAD_CONFIG));
	must(e != IST_OK || at.sa.sa_family == AF_INET || at.sa.sa_family == AF_INET6);
}

static void
backend_options(const char *text)
{
	struct ist_open args = { .struct_size = sizeof(args), .size = 2, .device = -1, .options = text };
	struct ist_status why = { .struct_size = sizeof(why) };
	struct options out;

	memset(&out, 0, sizeof(out));
	if (ist__host_options(&args, &out, &why) == IST_OK)
		must(out.transport <= TRANSPORT_TCP && out.listen.ss_family != AF_UNSPEC);
	else
		must(why.text[0] != 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	uint8_t which = take_u8(&in) % 6;
	char *text = malloc(in.left + 1);

	must(text != NULL);
	if (in.left > 0)
		memcpy(text, in.at, in.left);
	text[in.left] = 0;
	if (which < 4)
		addresses(which, text);
	else if (which == 4)
		bind_to(text);
	else
		backend_options(text);
	free(text);
	return 0;
}
