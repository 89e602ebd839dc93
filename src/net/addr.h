/* SPDX-License-Identifier: Apache-2.0
 *
 * addr.h - the one parser of addresses, and what the system knows of them. Everything that a user can write as an
 * address, on whatever way in, goes through here.
 */
#ifndef ISTHMUS_NET_ADDR_H
#define ISTHMUS_NET_ADDR_H

#include "base/ctx.h"

#include <sys/socket.h>

struct ist__hostport {
	char host[256]; /* without brackets */
	uint16_t port;
	bool has_port;
};

/* HOST[:PORT], [V6][:PORT]. A host that looks like a number must be a strict dotted quad; a bare IPv6 address needs
 * brackets when a port may follow. need_port: without one it is an error. INVALID_ARGUMENT, quoting the text. */
ist_err ist__hostport_parse(const char *text, bool need_port, struct ist__hostport *out, struct ist_error *err);
/* tcp://HOST:PORT, as a destination: a wildcard is refused, port 0 is too unless any_port. */
ist_err ist__tcp_url_parse(const char *url, bool any_port, struct ist__hostport *out, struct ist_error *err);
/* HOST[:PORT] that others are told to dial: the same is refused. */
ist_err ist__advertise_parse(const char *text, struct ist__hostport *out, struct ist_error *err);

union ist__sockaddr {
	struct sockaddr sa;
	struct sockaddr_storage storage;
};
struct ist__addrs {
	uint32_t n;
	union ist__sockaddr at[16];
};

socklen_t ist__sockaddr_bytes(const union ist__sockaddr *a);
/* All addresses of a name, both families. */
ist_err ist__resolve(const struct ist__hostport *hp, struct ist__addrs *out, struct ist_error *err);
bool ist__is_loopback(const union ist__sockaddr *a);
bool ist__is_wildcard(const union ist__sockaddr *a);
void ist__sockaddr_set_port(union ist__sockaddr *a, uint16_t port);
uint16_t ist__sockaddr_port(const union ist__sockaddr *a);
/* "1.2.3.4:5" or "[::1]:5"; room of 128 is enough. */
void ist__sockaddr_text(const union ist__sockaddr *a, char *room, size_t bytes);
void ist__sockaddr_host(const union ist__sockaddr *a, char *room, size_t bytes);

/* The local address that a --bind text means: ADDR[:PORT], [V6][:PORT], INTERFACE, =INTERFACE (exact), PREFIX of one,
 * CIDR; comma separated, the first that fits; ^a,b: any but those. BAD_CONFIG lists what exists. Port 0 where none is
 * said. */
ist_err ist__bind_pick(const char *text, union ist__sockaddr *out, struct ist_error *err);
/* A listening, non-blocking socket. The address it got goes back into *at. */
ist_err ist__listen(union ist__sockaddr *at, int *fd, struct ist_error *err);
/* Starts connects to all addresses, staggered, and keeps the first that stands: one attempt in all, bounded by
 * deadline. *refused: nobody listens (yet); trying again makes sense. cancel_fd: readable means ABORTED; -1: none. */
ist_err ist__dial(const struct ist__addrs *to, int64_t deadline, int cancel_fd, int *fd, bool *refused, struct ist_error *err);

#endif
