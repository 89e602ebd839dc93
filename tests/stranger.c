/* SPDX-License-Identifier: Apache-2.0 */
#include "stranger.h"

#include "ranks.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000 };

void
stranger_init(struct stranger *s, const void *secret, uint64_t bytes)
{
	memset(s, 0, sizeof(*s));
	s->fd = -1;
	CHECK(sodium_init() >= 0);
	ist__hello_key(secret, bytes, s->key);
	s->self = (struct ist__self){ .proto_min = IST__PROTO_MIN, .proto_max = IST__PROTO_MAX, .features = IST__FEATURES,
		.key = s->key, .has_secret = secret != NULL };
	randombytes_buf(s->self.member, sizeof(s->self.member));
}

void
stranger_dial(struct stranger *s, const union ist__sockaddr *at)
{
	s->fd = socket(at->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(s->fd >= 0);
	CHECK(connect(s->fd, &at->sa, ist__sockaddr_bytes(at)) == 0);
}

void
stranger_send(struct stranger *s, const void *addr, uint64_t n)
{
	const uint8_t *at = addr;

	while (n > 0) {
		ssize_t sent = send(s->fd, at, n, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return;
		at += sent;
		n -= (uint64_t)sent;
	}
}

bool
stranger_read(struct stranger *s, void *addr, uint64_t n)
{
	uint8_t *at = addr;

	while (n > 0) {
		struct pollfd p = { .fd = s->fd, .events = POLLIN };
		ssize_t got;

		CHECK(poll(&p, 1, PATIENCE_MS) == 1);
		got = recv(s->fd, at, n, 0);
		if (got <= 0)
			return false;
		at += got;
		n -= (uint64_t)got;
	}
	return true;
}

bool
stranger_ended(struct stranger *s)
{
	struct pollfd p = { .fd = s->fd, .events = POLLIN };
	uint8_t room[4096];

	while (poll(&p, 1, PATIENCE_MS) == 1)
		if (recv(s->fd, room, sizeof(room), 0) <= 0)
			return true;
	return false;
}

void
stranger_close(struct stranger *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}

bool
stranger_hello(struct stranger *s)
{
	ist__hello_make(&s->self, s->said);
	stranger_send(s, s->said, sizeof(s->said));
	if (!stranger_read(s, s->heard, sizeof(s->heard)) ||
	    ist__hello_check(&s->self, IST__RESPONDER, s->said, s->heard, s->heard + IST__PROOF_AT, NULL))
		return false;
	ist__hello_prove(&s->self, IST__INITIATOR, s->said, s->heard, s->proof);
	stranger_send(s, s->proof, sizeof(s->proof));
	return true;
}

void
stranger_header(uint8_t out[IST__FRAME_HEADER], uint32_t bytes, uint16_t type, uint16_t flags, uint64_t seq, uint64_t generation,
	uint32_t from, uint32_t to)
{
	ist__store_u32(out, bytes);
	out[4] = (uint8_t)type, out[5] = (uint8_t)(type >> 8);
	out[6] = (uint8_t)flags, out[7] = (uint8_t)(flags >> 8);
	ist__store_u64(out + 8, seq);
	ist__store_u64(out + 16, generation);
	ist__store_u32(out + 24, from);
	ist__store_u32(out + 28, to);
}

void
stranger_frame(struct stranger *s, uint16_t type, uint16_t flags, uint64_t seq, const void *body, uint32_t bytes)
{
	uint8_t header[IST__FRAME_HEADER];

	stranger_header(header, bytes, type, flags, seq, 0, 0, 0);
	stranger_send(s, header, sizeof(header));
	stranger_send(s, body, bytes);
}

uint16_t
stranger_answer(struct stranger *s, void *body, uint32_t room, uint32_t *bytes)
{
	uint8_t header[IST__FRAME_HEADER];

	if (!stranger_read(s, header, sizeof(header)))
		return 0;
	*bytes = ist__load_u32(header);
	CHECK(*bytes <= room);
	if (!stranger_read(s, body, *bytes))
		return 0;
	return (uint16_t)(header[4] | header[5] << 8);
}

union ist__sockaddr
stranger_at(struct ist_endpoint *ep)
{
	uint8_t room[IST_ADDRESS_BYTES];
	uint64_t n = sizeof(room);

	CHECK(ist_endpoint_address(ep, room, &n, NULL) == IST_OK); /* listens from now on */
	return ep->ep->listeners[0].at;
}

void
stranger_group_key(const char *name, uint8_t out[IST__GROUP_KEY])
{
	static const char label[] = "isthmus group 1";
	crypto_generichash_state st;

	crypto_generichash_init(&st, NULL, 0, IST__GROUP_KEY);
	crypto_generichash_update(&st, (const uint8_t *)label, sizeof(label));
	crypto_generichash_update(&st, (const uint8_t *)name, strlen(name) + 1);
	crypto_generichash_final(&st, out, IST__GROUP_KEY);
}
