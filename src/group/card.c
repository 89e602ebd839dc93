/* SPDX-License-Identifier: Apache-2.0 */
#include "group/card.h"

#include "base/openfd.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CARD_VERSION = 1 };

void
ist__card_put(struct ist__writer *w, const struct ist__card *card)
{
	ist__put_u8(w, CARD_VERSION);
	ist__put_bytes(w, card->id, sizeof(card->id));
	ist__put_bytes(w, card->host_hint, sizeof(card->host_hint));
	ist__put_bytes(w, card->local, sizeof(card->local));
	ist__put_u64(w, card->pid);
	ist__put_str(w, card->host);
	ist__put_str(w, card->addr);
}

static void
get_array(struct ist__reader *r, void *to, uint64_t bytes)
{
	const void *at = ist__get_bytes(r, bytes);

	if (at)
		memcpy(to, at, bytes);
}

bool
ist__card_get(struct ist__reader *r, struct ist__card *card)
{
	memset(card, 0, sizeof(*card));
	if (ist__get_u8(r) != CARD_VERSION)
		r->bad = true;
	get_array(r, card->id, sizeof(card->id));
	get_array(r, card->host_hint, sizeof(card->host_hint));
	get_array(r, card->local, sizeof(card->local));
	card->pid = ist__get_u64(r);
	ist__get_str(r, card->host, sizeof(card->host));
	ist__get_str(r, card->addr, sizeof(card->addr));
	return !r->bad;
}

/* Two processes may share a host when the kernel booted once for both and one sees the other's abstract sockets. That
 * they do is shown later, by handing over a descriptor. */
static void
host_hint(uint8_t out[16])
{
	crypto_generichash_state st;
	char boot[64] = "";
	struct stat ns;
	int fd = ist__open(AT_FDCWD, "/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC, 0);

	if (fd >= 0) {
		ssize_t n = read(fd, boot, sizeof(boot) - 1);

		(void)n;
		close(fd);
	}
	crypto_generichash_init(&st, NULL, 0, 16);
	crypto_generichash_update(&st, (const uint8_t *)boot, sizeof(boot));
	if (stat("/proc/self/ns/net", &ns) == 0) {
		uint64_t where[2] = { (uint64_t)ns.st_dev, (uint64_t)ns.st_ino };

		crypto_generichash_update(&st, (const uint8_t *)where, sizeof(where));
	} else
		crypto_generichash_update(&st, (const uint8_t *)&(pid_t){ getpid() }, sizeof(pid_t)); /* unknown: alone */
	crypto_generichash_final(&st, out, 16);
}

void
ist__card_here(struct ist__card *card)
{
	host_hint(card->host_hint);
	card->pid = (uint64_t)getpid();
	gethostname(card->host, sizeof(card->host) - 1);
}
