/* SPDX-License-Identifier: Apache-2.0
 *
 * lane.c - the connections of a split. Two members whom a link of the parent joins on one host need not dial: the one makes a
 * pair of sockets and hands one end over by that link. Nobody says hello, since the link's did. From then on the connection
 * is like any other: parent and child live and end apart.
 *
 * Body of LANE: u8 1 (descriptors), u16 type, u32 from, u64 generation, and the body of the first frame on it.
 */
#include "base/bytes.h"
#include "group/form_int.h"
#include "net/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD = 1 + 2 + 4 + 8 };

/* The other end, with what is said first on it. fd is taken over. */
static struct ist__frame *
their_end(struct ist__form *f, int fd, uint16_t type, const void *body, uint64_t bytes)
{
	struct ist__frame *x = ist__frame_new(f->inbox.loop, IST__LANE, NULL, HEAD + bytes);

	if (!x) {
		close(fd);
		return NULL;
	}
	x->fds[0] = fd;
	x->n_fds = 1;
	x->flags = IST__FRAME_HAS_FDS;
	x->generation = f->parent->generation;
	x->from = f->parent->rank;
	x->body[0] = 1;
	x->body[1] = (uint8_t)type;
	x->body[2] = (uint8_t)(type >> 8);
	ist__store_u32(x->body + 3, f->args.rank);
	ist__store_u64(x->body + 7, f->generation);
	if (bytes > 0)
		memcpy(x->body + HEAD, body, bytes);
	return x;
}

/* Lock of the parent held. */
static struct ist__conn *
link_to(struct ist__group *parent, uint32_t rank)
{
	int32_t at = parent->link_of[rank];
	struct ist__conn *conn = at >= 0 ? parent->links[at].conn : NULL;

	return conn && ist__conn_is_unix(conn) && ist__conn_is_ready(conn) ? conn : NULL;
}

/* What was agreed with that member of the parent. False: no link leads there. */
static bool
agreed_with(struct ist__group *parent, uint32_t rank, struct ist__agreed *out)
{
	struct ist__conn *link;

	pthread_mutex_lock(&parent->lock);
	link = link_to(parent, rank);
	if (link)
		*out = *ist__conn_agreed(link);
	pthread_mutex_unlock(&parent->lock);
	return link != NULL;
}

/* Our end, whole and watched before the other one is given away: what fails here nobody else has heard of, and it is dialled
 * instead. Were it given away first, the other side would see it end, and take us for lost. */
static struct ist__post *
our_end(struct ist__form *f, int fd, const struct ist__agreed *agreed, uint64_t tag)
{
	struct ist__conn *conn = ist__conn_handed(f->inbox.loop, fd, &f->self, agreed);
	struct ist__post *post = conn ? ist__inbox_add(&f->inbox, conn, tag) : NULL;

	if (post && ist__conn_is_over(conn)) {
		ist__inbox_drop(&f->inbox, post, false);
		return NULL;
	}
	return post;
}

/* The frame is taken over. */
static bool
give_away(struct ist__form *f, uint32_t rank, struct ist__frame *x)
{
	struct ist__conn *link;
	bool sent;

	pthread_mutex_lock(&f->parent->lock);
	link = link_to(f->parent, rank);
	sent = link && ist__conn_send(link, x);
	pthread_mutex_unlock(&f->parent->lock);
	if (!link)
		ist__frame_free(f->inbox.loop, x);
	return sent;
}

struct ist__post *
ist__form_lane(struct ist__form *f, uint32_t rank, uint64_t tag, uint16_t type, const void *body, uint64_t bytes)
{
	struct ist__agreed agreed;
	struct ist__frame *x;
	struct ist__post *post;
	int fds[2];

	if (!f->parent || !(f->parent->features & IST__FEATURE_LANES) || !agreed_with(f->parent, f->parent_ranks[rank], &agreed) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds))
		return NULL;
	x = their_end(f, fds[1], type, body, bytes);
	post = our_end(f, fds[0], &agreed, tag);
	if (x && post && give_away(f, f->parent_ranks[rank], x))
		return post;
	if (!post)
		ist__frame_free(f->inbox.loop, x);
	else
		ist__inbox_drop(&f->inbox, post, false);
	return NULL;
}

void
ist__lane_take(struct ist__group *g, struct ist__conn *conn, struct ist__frame *f)
{
	struct ist__conn *lane = NULL;
	struct ist__frame *x = NULL;

	if (f->n_fds == 1 && f->bytes >= HEAD)
		x = ist__frame_new(g->loop, (uint16_t)(f->body[1] | f->body[2] << 8), f->body + HEAD, f->bytes - HEAD);
	if (x) {
		x->from = ist__load_u32(f->body + 3);
		x->generation = ist__load_u64(f->body + 7);
		lane = ist__conn_handed(g->loop, f->fds[0], &g->ep->self, ist__conn_agreed(conn));
		f->n_fds = 0;
	}
	if (f->fds_lost) /* room for the one that comes next; whoever forms a group sees that a spare is used, and says LIMIT */
		ist__loop_spares_spend(g->loop, EMFILE);
	else if (!lane)
		ist__ep_starved(g->ep); /* the other end sees it closed, and comes again */
	ist__frame_free(g->loop, f);
	if (lane)
		ist__ep_visit(g->ep, lane, x);
	else
		ist__frame_free(g->loop, x);
}
