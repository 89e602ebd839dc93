/* SPDX-License-Identifier: Apache-2.0 */
#include "neighbours.h"

#include "value.h"

#include <string.h>

#define FIRST_NS (3 * IST_NS_PER_S / 2) /* a place shows who waits from a second on */
#define AGAIN_NS (3 * IST_NS_PER_S)

enum { ROOM = 64 };

static void
tell(struct neighbours *n, const struct session *s, const struct ist_member_status *rows, uint32_t count)
{
	const char *own = option_text(&s->cli->o, OPT_GROUP, ""), *other = NULL;
	char text[sizeof(n->text)] = "";
	size_t k = 0;

	for (uint32_t i = 0; i < count; i++) {
		if (strcmp(rows[i].state, "JOINING") || !strcmp(rows[i].group, own) || (other && strcmp(rows[i].group, other)))
			continue; /* of several names one is enough to show what is wrong */
		if (!other)
			k = (size_t)snprintf(text, sizeof(text), "at the same meeting place group \"%s\" waits too: rank", rows[i].group);
		if (k + 32 < sizeof(text))
			k += (size_t)snprintf(text + k, sizeof(text) - k, "%s %u", other ? "," : "", rows[i].rank);
		other = rows[i].group;
	}
	if (!text[0])
		return;
	cli_say(s->cli, IST_LOG_WARN, "group \"%s\" has not formed yet; %s", own, text);
	memcpy(n->text, text, sizeof(text));
}

void
neighbours_look(struct neighbours *n, const struct session *s)
{
	struct ist_status_args args = { .struct_size = sizeof(args), .insecure = option_on(&s->cli->o, OPT_INSECURE), .at = s->at,
		.timeout_ns = IST_NS_PER_S };
	static struct ist_member_status rows[ROOM];
	struct secret secret = { .n = 0 };
	uint32_t count = ROOM;

	if (n->next_ns == 0)
		n->next_ns = now_ns() + FIRST_NS;
	if (n->text[0] || now_ns() < n->next_ns)
		return;
	n->next_ns = now_ns() + AGAIN_NS;
	if (secret_read(s->cli, &secret) != EXIT_DONE)
		return;
	args.secret = secret.bytes;
	args.secret_bytes = secret.n;
	for (uint32_t i = 0; i < ROOM; i++)
		rows[i].struct_size = sizeof(rows[i]);
	if (ist_status(s->env, &args, rows, &count, NULL) == IST_OK)
		tell(n, s, rows, count < ROOM ? count : ROOM);
	secret_free(&secret);
}
