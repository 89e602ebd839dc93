/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c - "key=value,..." as the user gave it. Addresses are numeric: a look-up of a name may block.
 */
#include "backends/host/host.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool
parse_addr(const char *text, struct sockaddr_storage *out)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
	char bare[64];
	size_t n = strlen(text);

	memset(out, 0, sizeof(*out));
	if (n > 2 && text[0] == '[' && text[n - 1] == ']') {
		text++;
		n -= 2;
	}
	if (n == 0 || n >= sizeof(bare))
		return false;
	memcpy(bare, text, n);
	bare[n] = 0;
	if (inet_pton(AF_INET, bare, &v4.sin_addr) == 1)
		memcpy(out, &v4, sizeof(v4));
	else if (inet_pton(AF_INET6, bare, &v6.sin6_addr) == 1)
		memcpy(out, &v6, sizeof(v6));
	else
		return false;
	return true;
}

static bool
parse_number(const char *text, uint32_t max, uint32_t *out)
{
	char *end;
	unsigned long v;

	if (text[0] < '0' || text[0] > '9')
		return false;
	errno = 0;
	v = strtoul(text, &end, 10);
	if (errno || *end || v > max)
		return false;
	*out = (uint32_t)v;
	return true;
}

static bool
parse_transport(const char *text, uint32_t *out)
{
	static const char *const names[] = { "auto", "shm", "tcp" };

	for (uint32_t i = 0; i < 3; i++)
		if (!strcmp(text, names[i])) {
			*out = i;
			return true;
		}
	return false;
}

static bool
parse_one(const char *key, const char *value, struct options *out, bool *known)
{
	uint32_t n;

	if (!strcmp(key, "transport"))
		return parse_transport(value, &out->transport);
	if (!strcmp(key, "listen"))
		return parse_addr(value, &out->listen);
	if (!strcmp(key, "advertise"))
		return out->has_advertise = parse_addr(value, &out->advertise);
	if (!strcmp(key, "coop"))
		return parse_number(value, 1, &out->coop);
	if (!strcmp(key, "copy"))
		return value[0] && (size_t)snprintf(out->copy, sizeof(out->copy), "%s", value) < sizeof(out->copy);
	if (!strcmp(key, "calibrate"))
		return parse_number(value, 1, &out->calibrate);
	if (!strcmp(key, "user_timeout")) {
		if (!parse_number(value, 1000000, &n))
			return false;
		out->user_timeout_ms = n * 1000;
		return true;
	}
	return *known = false;
}

static bool
is_any(const struct sockaddr_storage *addr)
{
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;

	if (addr->ss_family == AF_INET) {
		memcpy(&v4, addr, sizeof(v4));
		return v4.sin_addr.s_addr == htonl(INADDR_ANY);
	}
	memcpy(&v6, addr, sizeof(v6));
	return IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
}

ist_err
ist__host_options(const struct ist_open *args, struct options *out, struct ist_status *why)
{
	struct options opt = { .calibrate = 1, .coop = 1 };
	const char *text = args->options;
	char item[256];

	parse_addr("127.0.0.1", &opt.listen);
	if (IST_HAS(args, listen) && args->listen && !parse_addr(args->listen, &opt.listen))
		return ist__host_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0, "'%s' is no numeric address to listen on", args->listen);
	if (IST_HAS(args, advertise) && args->advertise && !(opt.has_advertise = parse_addr(args->advertise, &opt.advertise)))
		return ist__host_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0, "'%s' is no numeric address to advertise", args->advertise);
	if (IST_HAS(args, transport) && args->transport <= IST_WAY_NETWORK)
		opt.transport = args->transport;
	while (text && *text) {
		size_t n = strcspn(text, ",");
		char *eq;
		bool known = true;

		if (n >= sizeof(item))
			return ist__host_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0, "an option of %zu bytes", n);
		memcpy(item, text, n);
		item[n] = 0;
		text += n + (text[n] == ',');
		if (n == 0)
			continue;
		eq = strchr(item, '=');
		if (eq)
			*eq = 0;
		if (!eq || !parse_one(item, eq + 1, &opt, &known)) {
			if (known)
				return ist__host_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0, "option %s: bad value '%s'", item, eq ? eq + 1 : "");
			return ist__host_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0,
				"no option '%s'; there are transport, listen, advertise, calibrate, copy, coop and user_timeout", item);
		}
	}
	if (is_any(&opt.listen) && !opt.has_advertise && opt.transport != TRANSPORT_SHM)
		return ist__host_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0, "listening on every address needs advertise=IP, for the others to dial");
	*out = opt;
	return IST_OK;
}

void
ist__host_addr_text(const struct sockaddr_storage *addr, char *to, size_t room)
{
	char host[INET6_ADDRSTRLEN] = "?";
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;

	if (addr->ss_family == AF_INET) {
		memcpy(&v4, addr, sizeof(v4));
		inet_ntop(AF_INET, &v4.sin_addr, host, sizeof(host));
		snprintf(to, room, "%s:%u", host, ntohs(v4.sin_port));
	} else if (addr->ss_family == AF_INET6) {
		memcpy(&v6, addr, sizeof(v6));
		inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof(host));
		snprintf(to, room, "[%s]:%u", host, ntohs(v6.sin6_port));
	} else {
		snprintf(to, room, "no address");
	}
}
