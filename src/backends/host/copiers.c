/* SPDX-License-Identifier: Apache-2.0
 *
 * copiers.c - which copy loops a channel uses: those of its env, which are tried once however many channels there are, or,
 * where somebody has named a loop, that one. Nothing is tried before the first large transfer.
 */
#include "backends/host/host.h"

#include <stdlib.h>
#include <string.h>

static const char key_of_copiers; /* its address says whose memory of the env it is */

static void
init(void *p)
{
	struct copiers *c = p;

	ist__host_copier_init(&c->out, true);
	ist__host_copier_init(&c->direct, true);
	ist__host_copier_init(&c->coop, true);
}

ist_err
ist__host_copiers_open(struct ist_chan *chan, struct ist_status *why)
{
	const char *named = chan->opt.copy, *from = "option copy";
	char names[160];

	if (!named[0]) {
		const char *variable = getenv("ISTHMUS_COPY");

		named = variable ? variable : "";
		from = "ISTHMUS_COPY";
	}
	chan->copiers = NULL;
	if (!named[0] && chan->opt.calibrate && IST_HAS(chan->host, keep) && chan->host->keep)
		chan->copiers = chan->host->keep(chan->host->ctx, &key_of_copiers, sizeof(*chan->copiers), init);
	if (chan->copiers)
		return IST_OK;
	chan->copiers = &chan->own_copiers;
	init(chan->copiers);
	if (!named[0] && chan->opt.calibrate)
		return IST_OK;
	if (!named[0])
		named = ist__host_copier_name(&chan->copiers->out);
	if (ist__host_copier_fix(&chan->copiers->out, named) && ist__host_copier_fix(&chan->copiers->direct, named) &&
	    ist__host_copier_fix(&chan->copiers->coop, named))
		return IST_OK;
	ist__host_copy_names(names, sizeof(names));
	return ist__host_say(why, IST_BAD_CONFIG, IST_NO_RANK, 0, "%s is '%.32s', which is none of the copy loops that this CPU can run: %s", from, named,
		names);
}

void
ist__host_move(struct ist_chan *chan, struct copier *copier, uint64_t whole, void *const *to, uint32_t n, const void *from, uint64_t bytes)
{
	bool chosen = n == 1 ? ist__host_copy(copier, whole, to[0], from, bytes) : ist__host_copy_many(copier, whole, to, n, from, bytes);

	if (chosen)
		ist__log(&chan->ctx, 2, "copy loop %s, %s", copier == &chan->copiers->coop ? "by all hands" : copier == &chan->copiers->out ? "out of rings" :
			"from memory to memory", ist__host_copier_name(copier));
}
