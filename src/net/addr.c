/* SPDX-License-Identifier: Apache-2.0 */
#include "net/addr.h"

#include "base/fail.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Would an old resolver take it for a number? Then only the four-part form will do ("482" is 0.0.1.226 to it). */
static bool
looks_numeric(const char *host)
{
	const char *dot = strrchr(host, '.'), *last = dot ? dot + 1 : host;

	if (!*last && dot)
		return false;
	if (last[0] == '0' && (last[1] == 'x' || last[1] == 'X'))
		return strspn(last + 2, "0123456789abcdefABCDEF") == strlen(last + 2);
	return strspn(last, "0123456789") == strlen(last);
}

static bool
host_chars_ok(const char *host, bool v6)
{
	for (const char *p = host; *p; p++)
		if (!isalnum((unsigned char)*p) && !strchr(v6 ? ":.%-_" : ".-_", *p))
			return false;
	return *host != 0;
}

static bool
v6_ok(const char *host)
{
	char plain[256];
	struct in6_addr a;

	snprintf(plain, sizeof(plain), "%s", host);
	plain[strcspn(plain, "%")] = 0; /* a scope may follow */
	return inet_pton(AF_INET6, plain, &a) == 1;
}

static bool
port_parse(const char *s, uint16_t *out)
{
	size_t n = strlen(s);
	long v;

	if (n == 0 || n > 5 || strspn(s, "0123456789") != n)
		return false;
	v = strtol(s, NULL, 10);
	if (v > 65535)
		return false;
	*out = (uint16_t)v;
	return true;
}

ist_err
ist__hostport_parse(const char *text, bool need_port, struct ist__hostport *out, struct ist_error *err)
{
	struct ist__hostport hp = { .port = 0 };
	const char *host = text, *end, *port = NULL;
	struct in_addr quad;
	size_t n;
	bool v6 = false;

	if (!text || !*text)
		return ist__fail(err, IST_INVALID_ARGUMENT, "address", "an address is empty; HOST:PORT is expected");
	if (*text == '[') {
		v6 = true;
		host = text + 1;
		end = strchr(host, ']');
		if (!end || (end[1] && end[1] != ':'))
			return ist__fail(err, IST_INVALID_ARGUMENT, "address", "\"%s\": [IPV6]:PORT is expected", text);
		port = end[1] ? end + 2 : NULL;
	} else {
		end = strchr(host, ':');
		if (end && strchr(end + 1, ':')) {
			if (need_port || !v6_ok(text))
				return ist__fail(err, IST_INVALID_ARGUMENT, "address", "\"%s\": an IPv6 address goes into brackets, [::1]:PORT", text);
			v6 = true;
			end = NULL;
		}
		port = end ? end + 1 : NULL;
		if (!end)
			end = host + strlen(host);
	}
	n = (size_t)(end - host);
	if (n == 0 || n >= sizeof(hp.host))
		return ist__fail(err, IST_INVALID_ARGUMENT, "address", "\"%s\": the host is missing or too long", text);
	memcpy(hp.host, host, n);
	if (!host_chars_ok(hp.host, v6) || (v6 && !v6_ok(hp.host)))
		return ist__fail(err, IST_INVALID_ARGUMENT, "address", "\"%s\": \"%s\" is no host", text, hp.host);
	if (!v6 && looks_numeric(hp.host) && inet_pton(AF_INET, hp.host, &quad) != 1)
		return ist__fail(err, IST_INVALID_ARGUMENT, "address", "\"%s\": \"%s\" is no address; four parts are expected", text, hp.host);
	if (port && !port_parse(port, &hp.port))
		return ist__fail(err, IST_INVALID_ARGUMENT, "address", "\"%s\": \"%s\" is no port", text, port);
	if (!port && need_port)
		return ist__fail(err, IST_INVALID_ARGUMENT, "address", "\"%s\": the port is missing", text);
	hp.has_port = port != NULL;
	*out = hp;
	return IST_OK;
}

/* Can it be dialled? text: what the caller wrote. */
static ist_err
destination_ok(const char *text, const struct ist__hostport *hp, bool any_port, struct ist_error *err)
{
	struct in_addr v4;
	struct in6_addr v6;

	if (hp->has_port && hp->port == 0 && !any_port)
		return ist__fail(err, IST_INVALID_ARGUMENT, "address", "\"%s\": port 0 can't be dialled", text);
	if ((inet_pton(AF_INET, hp->host, &v4) == 1 && v4.s_addr == INADDR_ANY) ||
	    (inet_pton(AF_INET6, hp->host, &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6)))
		return ist__fail(err, IST_INVALID_ARGUMENT, "address", "\"%s\": a wildcard is no destination; name an address that the others can reach", text);
	return IST_OK;
}

ist_err
ist__tcp_url_parse(const char *url, bool any_port, struct ist__hostport *out, struct ist_error *err)
{
	struct ist__hostport hp;
	ist_err e;

	if (strncmp(url, "tcp://", 6) != 0)
		return ist__fail(err, IST_INVALID_ARGUMENT, "address", "\"%s\": tcp://HOST:PORT or dir:/FOLDER is expected", url);
	e = ist__hostport_parse(url + 6, true, &hp, err);
	if (!e)
		e = destination_ok(url, &hp, any_port, err);
	if (!e)
		*out = hp;
	return e;
}

ist_err
ist__advertise_parse(const char *text, struct ist__hostport *out, struct ist_error *err)
{
	struct ist__hostport hp;
	ist_err e = ist__hostport_parse(text, false, &hp, err);

	if (!e)
		e = destination_ok(text, &hp, false, err);
	if (!e)
		*out = hp;
	return e;
}

socklen_t
ist__sockaddr_bytes(const union ist__sockaddr *a)
{
	return a->sa.sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

/* Access by copy: a sockaddr_storage is not the object that it is read as. */
static struct sockaddr_in
as_v4(const union ist__sockaddr *a)
{
	struct sockaddr_in v4;

	memcpy(&v4, a, sizeof(v4));
	return v4;
}

static struct sockaddr_in6
as_v6(const union ist__sockaddr *a)
{
	struct sockaddr_in6 v6;

	memcpy(&v6, a, sizeof(v6));
	return v6;
}

void
ist__sockaddr_set_port(union ist__sockaddr *a, uint16_t port)
{
	struct sockaddr_in v4 = as_v4(a); /* the port lies at the same place in both */

	v4.sin_port = htons(port);
	memcpy(a, &v4, offsetof(struct sockaddr_in, sin_addr));
}

uint16_t
ist__sockaddr_port(const union ist__sockaddr *a)
{
	return ntohs(as_v4(a).sin_port);
}

bool
ist__is_loopback(const union ist__sockaddr *a)
{
	struct sockaddr_in6 v6 = as_v6(a);

	if (a->sa.sa_family == AF_INET)
		return ntohl(as_v4(a).sin_addr.s_addr) >> 24 == 127;
	return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) || (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == 127);
}

bool
ist__is_wildcard(const union ist__sockaddr *a)
{
	struct sockaddr_in6 v6 = as_v6(a);

	return a->sa.sa_family == AF_INET ? as_v4(a).sin_addr.s_addr == INADDR_ANY : IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
}

void
ist__sockaddr_host(const union ist__sockaddr *a, char *room, size_t bytes)
{
	struct sockaddr_in6 v6 = as_v6(a);
	struct sockaddr_in v4 = as_v4(a);
	bool is_v6 = a->sa.sa_family == AF_INET6;
	size_t n;

	if (!getnameinfo(&a->sa, ist__sockaddr_bytes(a), room, (socklen_t)bytes, NULL, 0, NI_NUMERICHOST))
		return;
	/* for want of memory or of a descriptor: this needs neither */
	if (!inet_ntop(is_v6 ? AF_INET6 : AF_INET, is_v6 ? (const void *)&v6.sin6_addr : &v4.sin_addr, room, (socklen_t)bytes)) {
		snprintf(room, bytes, "?");
		return;
	}
	n = strlen(room);
	if (is_v6 && v6.sin6_scope_id)
		snprintf(room + n, bytes - n, "%%%u", v6.sin6_scope_id);
}

void
ist__sockaddr_text(const union ist__sockaddr *a, char *room, size_t bytes)
{
	char host[NI_MAXHOST];

	ist__sockaddr_host(a, host, sizeof(host));
	snprintf(room, bytes, a->sa.sa_family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, ist__sockaddr_port(a));
}

ist_err
ist__resolve(const struct ist__hostport *hp, struct ist__addrs *out, struct ist_error *err)
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV }, *list = NULL;
	char port[8];
	int rc;

	snprintf(port, sizeof(port), "%u", hp->port);
	rc = getaddrinfo(hp->host, port, &hints, &list);
	if (rc == EAI_SYSTEM)
		return ist__fail_sys(err, IST_IO, errno, "resolve", "host %s", hp->host);
	if (rc) {
		ist_err e = ist__fail(err, rc == EAI_MEMORY ? IST_NO_MEMORY : IST_IO, "resolve", "host %s: %s", hp->host, gai_strerror(rc));

		if (e == IST_IO)
			ist__fail_next(err, "see that the name is right, and that this host's name server knows it");
		return e;
	}
	out->n = 0;
	for (struct addrinfo *a = list; a && out->n < sizeof(out->at) / sizeof(out->at[0]); a = a->ai_next)
		if (a->ai_family == AF_INET || a->ai_family == AF_INET6) {
			memset(&out->at[out->n], 0, sizeof(out->at[0]));
			memcpy(&out->at[out->n++], a->ai_addr, a->ai_addrlen);
		}
	freeaddrinfo(list);
	if (out->n == 0)
		return ist__fail(err, IST_IO, "resolve", "host %s has no IPv4 or IPv6 address", hp->host);
	return IST_OK;
}

/* ---- choosing a local address ---- */

struct net {
	union ist__sockaddr base;
	unsigned bits;
};

static bool
cidr_parse(const char *text, struct net *out)
{
	char host[64];
	const char *slash = strchr(text, '/');
	struct in_addr v4;
	struct in6_addr v6;
	uint16_t bits;

	if (!slash || (size_t)(slash - text) >= sizeof(host) || !port_parse(slash + 1, &bits))
		return false;
	memcpy(host, text, (size_t)(slash - text));
	host[slash - text] = 0;
	memset(out, 0, sizeof(*out));
	out->bits = bits;
	if (inet_pton(AF_INET, host, &v4) == 1 && bits <= 32) {
		struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = v4 };

		memcpy(&out->base, &a, sizeof(a));
		return true;
	}
	if (inet_pton(AF_INET6, host, &v6) == 1 && bits <= 128) {
		struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_addr = v6 };

		memcpy(&out->base, &a, sizeof(a));
		return true;
	}
	return false;
}

static bool
in_net(const union ist__sockaddr *a, const struct net *net)
{
	uint8_t x[16], y[16];
	unsigned bits = net->bits;

	if (a->sa.sa_family != net->base.sa.sa_family)
		return false;
	if (a->sa.sa_family == AF_INET) {
		memcpy(x, &(struct in_addr){ as_v4(a).sin_addr.s_addr }, 4);
		memcpy(y, &(struct in_addr){ as_v4(&net->base).sin_addr.s_addr }, 4);
	} else {
		memcpy(x, as_v6(a).sin6_addr.s6_addr, 16);
		memcpy(y, as_v6(&net->base).sin6_addr.s6_addr, 16);
	}
	if (memcmp(x, y, bits / 8) != 0)
		return false;
	return bits % 8 == 0 || ((x[bits / 8] ^ y[bits / 8]) >> (8 - bits % 8)) == 0;
}

/* Does interface ifa fit one word of the grammar? */
static bool
word_fits(const char *word, const struct ifaddrs *ifa, const union ist__sockaddr *a)
{
	struct net net;

	if (cidr_parse(word, &net))
		return in_net(a, &net);
	if (*word == '=')
		return !strcmp(word + 1, ifa->ifa_name);
	return !strncmp(word, ifa->ifa_name, strlen(word));
}

static bool
list_fits(const char *list, const struct ifaddrs *ifa, const union ist__sockaddr *a)
{
	char copy[512], *save = NULL;

	snprintf(copy, sizeof(copy), "%s", list);
	for (char *w = strtok_r(copy, ",", &save); w; w = strtok_r(NULL, ",", &save))
		if (word_fits(w, ifa, a))
			return true;
	return false;
}

static bool
usable(const struct ifaddrs *ifa, union ist__sockaddr *out)
{
	if (!ifa->ifa_addr || !(ifa->ifa_flags & IFF_UP) || (ifa->ifa_addr->sa_family != AF_INET && ifa->ifa_addr->sa_family != AF_INET6))
		return false;
	memset(out, 0, sizeof(*out));
	memcpy(out, ifa->ifa_addr, ifa->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
	return true;
}

static ist_err
bind_bad(const char *text, const char *why, const struct ifaddrs *list, struct ist_error *err)
{
	char have[1024] = "", one[192], host[128];
	size_t n = 0;
	union ist__sockaddr a;

	for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
		if (!usable(i, &a))
			continue;
		ist__sockaddr_host(&a, host, sizeof(host));
		snprintf(one, sizeof(one), "%s%s %s", n ? ", " : "", i->ifa_name, host);
		if (n + strlen(one) < sizeof(have))
			n += (size_t)snprintf(have + n, sizeof(have) - n, "%s", one);
	}
	return ist__fail(err, IST_BAD_CONFIG, "bind", "\"%s\": %s; here are: %s", text, why, n ? have : "no addresses");
}

static bool
literal(const char *word, union ist__sockaddr *out)
{
	struct ist__hostport hp;
	struct ist__addrs found;
	struct in_addr v4;

	if (strchr(word, '/') || ist__hostport_parse(word, false, &hp, NULL))
		return false;
	if (inet_pton(AF_INET, hp.host, &v4) != 1 && !v6_ok(hp.host) && strcmp(hp.host, "localhost") != 0)
		return false;
	if (ist__resolve(&hp, &found, NULL))
		return false;
	*out = found.at[0];
	return true;
}

/* Is it an address of this machine, or one that the kernel lets us use all the same? */
static bool
is_here(const union ist__sockaddr *at)
{
	union ist__sockaddr any = *at;
	int fd = socket(at->sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool here;

	ist__sockaddr_set_port(&any, 0);
	here = fd < 0 || bind(fd, &any.sa, ist__sockaddr_bytes(&any)) == 0 || errno != EADDRNOTAVAIL;
	if (fd >= 0)
		close(fd);
	return here;
}

ist_err
ist__bind_pick(const char *text, union ist__sockaddr *out, struct ist_error *err)
{
	struct ifaddrs *list = NULL;
	char copy[512], *save = NULL;
	union ist__sockaddr a;
	ist_err e;

	if (getifaddrs(&list))
		return ist__fail_sys(err, IST_IO, errno, "bind", "the list of interfaces");
	if (!*text || strlen(text) >= sizeof(copy)) {
		e = bind_bad(text, "an address, an interface or a CIDR is expected", list, err);
		goto out;
	}
	e = IST_OK;
	if (*text == '^') {
		for (struct ifaddrs *i = list; i; i = i->ifa_next)
			if (usable(i, &a) && !list_fits(text + 1, i, &a) && !(i->ifa_flags & IFF_LOOPBACK)) {
				*out = a;
				goto out;
			}
		e = bind_bad(text, "nothing is left", list, err);
		goto out;
	}
	snprintf(copy, sizeof(copy), "%s", text);
	for (char *w = strtok_r(copy, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
		if (literal(w, &a)) {
			if (!is_here(&a))
				continue;
			*out = a;
			goto out;
		}
		for (struct ifaddrs *i = list; i; i = i->ifa_next)
			if (usable(i, &a) && word_fits(w, i, &a)) {
				*out = a;
				goto out;
			}
	}
	e = bind_bad(text, "no address, interface or network of that name", list, err);
out:
	freeifaddrs(list);
	return e;
}

ist_err
ist__listen(union ist__sockaddr *at, int *out, struct ist_error *err)
{
	char text[128];
	socklen_t n = sizeof(at->storage);
	int fd, one = 1, sys;

	ist__sockaddr_text(at, text, sizeof(text));
	fd = socket(at->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return ist__fail_sys(err, IST_IO, errno, "listen", "socket for %s", text);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)); /* connections of a dead predecessor may linger; a live one still clashes */
	if (at->sa.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	if (bind(fd, &at->sa, ist__sockaddr_bytes(at)) || listen(fd, 1024) || getsockname(fd, &at->sa, &n)) {
		sys = errno;
		close(fd);
		if (sys == EADDRINUSE && ist__sockaddr_port(at) == 0) { /* no port is free */
			ist__fail_sys(err, IST_LIMIT, sys, "listen", "no port is left for %s", text);
			ist__fail_next(err, "widen the range of ports (net.ipv4.ip_local_port_range), or end what holds them");
			return IST_LIMIT;
		}
		return ist__fail_sys(err, sys == EADDRINUSE ? IST_CONFLICT : IST_IO, sys, "listen", "%s", text);
	}
	*out = fd;
	return IST_OK;
}
