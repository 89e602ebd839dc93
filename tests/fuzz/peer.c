/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include "base/bytes.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>

enum { PATIENCE_MS = 20000 };

void
peer_init(struct ist__self *self, uint8_t key[IST__KEY_BYTES], uint8_t id)
{
	must(sodium_init() >= 0);
	ist__hello_key(NULL, 0, key);
	*self = (struct ist__self){ .proto_min = IST__PROTO_MIN, .proto_max = IST__PROTO_MAX, .features = IST__FEATURES, .key = key };
	memset(self->member, id, sizeof(self->member));
}

void
peer_put(int fd, const void *addr, size_t n)
{
	const uint8_t *at = addr;

	while (n > 0) {
		ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return; /* it has had enough of us */
		at += sent;
		n -= (size_t)sent;
	}
}

bool
peer_get(int fd, void *addr, size_t n)
{
	uint8_t *at = addr;

	while (n > 0) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int rc = poll(&p, 1, PATIENCE_MS);
		ssize_t got;

		if (rc < 0 && errno == EINTR) /* a fuzzer has a clock of its own */
			continue;
		must(rc == 1);
		got = recv(fd, at, n, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		at += got;
		n -= (size_t)got;
	}
	return true;
}

bool
peer_dials(int fd, const struct ist__self *self)
{
	uint8_t ours[IST__HELLO_BYTES], theirs[IST__HELLO_BYTES], proof[IST__PROOF_BYTES];

	ist__hello_make(self, ours);
	peer_put(fd, ours, sizeof(ours));
	if (!peer_get(fd, theirs, sizeof(theirs)))
		return false;
	ist__hello_prove(self, IST__INITIATOR, ours, theirs, proof);
	peer_put(fd, proof, sizeof(proof));
	return true;
}

bool
peer_answers(int fd, const struct ist__self *self)
{
	uint8_t ours[IST__HELLO_BYTES], theirs[IST__HELLO_BYTES], proof[IST__PROOF_BYTES];

	if (!peer_get(fd, theirs, sizeof(theirs)))
		return false;
	ist__hello_make(self, ours);
	ist__hello_prove(self, IST__RESPONDER, theirs, ours, ours + IST__PROOF_AT);
	peer_put(fd, ours, sizeof(ours));
	return peer_get(fd, proof, sizeof(proof));
}

void
peer_send(int fd, const struct peer_frame *f, const void *body, uint32_t bytes)
{
	uint8_t h[IST__FRAME_HEADER];

	ist__store_u32(h, bytes);
	h[4] = (uint8_t)f->type, h[5] = (uint8_t)(f->type >> 8);
	h[6] = (uint8_t)f->flags, h[7] = (uint8_t)(f->flags >> 8);
	ist__store_u64(h + 8, f->seq);
	ist__store_u64(h + 16, f->generation);
	ist__store_u32(h + 24, f->from);
	ist__store_u32(h + 28, f->to);
	peer_put(fd, h, sizeof(h));
	peer_put(fd, body, bytes);
}

bool
peer_next(int fd, struct peer_frame *out)
{
	uint8_t h[IST__FRAME_HEADER], rest[512];
	uint32_t left;

	if (!peer_get(fd, h, sizeof(h)))
		return false;
	out->bytes = ist__load_u32(h);
	out->type = (uint16_t)(h[4] | h[5] << 8);
	out->flags = (uint16_t)(h[6] | h[7] << 8);
	out->seq = ist__load_u64(h + 8);
	out->generation = ist__load_u64(h + 16);
	out->from = ist__load_u32(h + 24);
	out->to = ist__load_u32(h + 28);
	must(out->bytes <= IST__FRAME_MAX);
	left = out->bytes < sizeof(out->body) ? out->bytes : (uint32_t)sizeof(out->body);
	if (!peer_get(fd, out->body, left))
		return false;
	for (left = out->bytes - left; left > 0;) {
		uint32_t n = left < sizeof(rest) ? left : (uint32_t)sizeof(rest);

		if (!peer_get(fd, rest, n))
			return false;
		left -= n;
	}
	return true;
}
