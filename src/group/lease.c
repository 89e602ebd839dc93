/* SPDX-License-Identifier: Apache-2.0
 *
 * lease.c - what a member of a formed group keeps telling its meeting place: best effort, never waited for. On rank 0 it
 * also holds the place by which late members find the group; a meeting place that was restarted is filled again.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "group/group.h"
#include "group/rendezvous.h"
#include "meet/dir.h"
#include "net/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAR_MS = 10 };

struct ist__lease {
	struct ist__group *group;
	struct ist__loop *loop;
	struct ist__timer timer, answer;
	struct ist__conn *conn; /* loop's thread */
	struct ist__addrs at;
	uint32_t next;          /* which address to try */
	char *dir;
	int lock_fd;
	pthread_mutex_t lock;   /* status */
	struct ist__status status;
};

static void
tell_store(struct ist__lease *l)
{
	struct ist__writer w;
	struct ist__frame *f = NULL;

	if (!l->conn)
		return;
	ist__writer_init_slab(&w, ist__loop_slab(l->loop));
	pthread_mutex_lock(&l->lock);
	ist__status_put(&w, &l->status);
	pthread_mutex_unlock(&l->lock);
	if (!w.bad)
		f = ist__frame_new(l->loop, IST__TELL, w.at, w.bytes);
	ist__writer_fini(&w);
	if (f)
		ist__conn_send(l->conn, f);
}

static void
publish_again(struct ist__lease *l)
{
	const struct ist__card *card = &l->group->members[0].card;
	struct ist__writer w, c;
	struct ist__frame *f = NULL;

	ist__writer_init_slab(&w, ist__loop_slab(l->loop));
	ist__writer_init_slab(&c, ist__loop_slab(l->loop));
	ist__card_put(&c, card);
	ist__put_str(&w, l->group->name);
	ist__put_str(&w, card->host);
	ist__put_u64(&w, card->pid);
	ist__put_blob(&w, c.at, c.bytes);
	if (!w.bad && !c.bad)
		f = ist__frame_new(l->loop, IST__PUBLISH, w.at, w.bytes);
	ist__writer_fini(&c);
	ist__writer_fini(&w);
	if (f)
		ist__conn_send(l->conn, f);
}

static void
on_ready(struct ist__conn *conn, void *owner)
{
	struct ist__lease *l = owner;

	(void)conn;
	if (l->group->rank == 0 && !ist__mesh_is_over(l->group))
		publish_again(l);
	tell_store(l);
}

static void
on_frame(struct ist__conn *conn, void *owner, struct ist__frame *f)
{
	struct ist__lease *l = owner;

	(void)conn;
	if (f->type == IST__ASK)
		ist__timer_set(l->loop, &l->answer, ist__now() + HEAR_MS * IST__MS);
	ist__frame_free(l->loop, f);
}

/* Somebody wants the name. Who slept until the others had gone on gives it up: with the connection the place forgets it. What
 * they said meanwhile may have come with the question, and was heard before this. */
static void
on_answer(struct ist__timer *timer)
{
	struct ist__lease *l = (struct ist__lease *)(void *)((char *)timer - offsetof(struct ist__lease, answer));
	struct ist__frame *back;

	if (!l->conn)
		return;
	if (ist__mesh_is_over(l->group)) {
		ist__conn_close(l->conn, false);
		l->conn = NULL;
		return;
	}
	back = ist__frame_new(l->loop, IST__ANSWER, NULL, 0);
	if (back)
		ist__conn_send(l->conn, back);
	else
		ist__conn_starve(l->conn);
}

static void
on_closed(struct ist__conn *conn, void *owner, const struct ist_error *err)
{
	struct ist__lease *l = owner;

	(void)err; /* it may come back; until then only status is poorer */
	l->conn = NULL;
	ist__conn_close(conn, false);
}

static const struct ist__conn_ops lease_ops = { on_ready, on_frame, on_closed };

static void
reconnect(struct ist__lease *l)
{
	const union ist__sockaddr *a;
	int fd;

	if (l->at.n == 0)
		return;
	a = &l->at.at[l->next++ % l->at.n];
	fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return;
	if (connect(fd, &a->sa, ist__sockaddr_bytes(a)) && errno != EINPROGRESS) {
		close(fd);
		return;
	}
	l->conn = ist__conn_new(l->loop, fd, IST__INITIATOR, &l->group->ep->self, ist__now() + IST__LEASE_RENEW_NS - 500 * IST__MS);
	if (l->conn)
		ist__conn_attach(l->conn, &lease_ops, l);
}

static void
tell_dir(struct ist__lease *l)
{
	struct ist__status s;

	pthread_mutex_lock(&l->lock);
	s = l->status;
	pthread_mutex_unlock(&l->lock);
	if (l->dir)
		ist__dir_tell(l->dir, l->group->ctx, &s);
}

static void
on_timer(struct ist__timer *timer)
{
	struct ist__lease *l = (struct ist__lease *)(void *)((char *)timer - offsetof(struct ist__lease, timer));

	if (l->dir)
		tell_dir(l);
	else if (l->conn)
		tell_store(l);
	else
		reconnect(l);
	ist__timer_set(l->loop, timer, ist__now() + IST__LEASE_RENEW_NS);
}

struct taking {
	struct ist__lease *l;
};

static void
take_conn(void *arg, struct ist__conn *conn, struct ist__frame *frames, bool gone)
{
	struct ist__lease *l = ((struct taking *)arg)->l;

	while (frames) {
		struct ist__frame *f = frames;

		frames = f->next;
		ist__frame_free(l->loop, f);
	}
	if (gone) {
		ist__conn_close(conn, false);
		return;
	}
	l->conn = conn;
	ist__conn_give(conn, &lease_ops, l);
	tell_store(l);
}

static void
start_here(void *arg)
{
	struct ist__lease *l = arg;

	ist__timer_set(l->loop, &l->timer, ist__now() + IST__LEASE_RENEW_NS);
}

struct ist__lease *
ist__lease_new(struct ist__group *g, struct ist__rdv *rdv)
{
	struct ist__lease *l = ist__alloc(g->ctx, sizeof(*l));
	struct taking taking = { l };

	if (!l)
		return NULL;
	l->group = g;
	l->loop = g->loop;
	l->timer.on = on_timer;
	l->answer.on = on_answer;
	l->lock_fd = -1;
	l->at = rdv->at;
	pthread_mutex_init(&l->lock, NULL);
	l->status = (struct ist__status){ .rank = g->rank, .pid = g->members[g->rank].card.pid };
	snprintf(l->status.group, sizeof(l->status.group), "%s", g->name);
	snprintf(l->status.host, sizeof(l->status.host), "%s", g->members[g->rank].card.host);
	snprintf(l->status.state, sizeof(l->status.state), "CLEAN");
	if (rdv->kind == IST__RDV_DIR) {
		l->dir = ist__strdup(g->ctx, rdv->dir);
		l->lock_fd = rdv->lock_fd;
		rdv->lock_fd = -1;
		rdv->told_pid = 0; /* the same file from now on */
		tell_dir(l);
	}
	if (rdv->post) {
		ist__inbox_release(rdv->inbox, rdv->post, take_conn, &taking);
		rdv->post = NULL;
	}
	ist__loop_run(l->loop, start_here, l);
	return l;
}

static void
tell_here(void *arg)
{
	tell_store(arg);
}

void
ist__lease_tell(struct ist__lease *l, const char *state, uint64_t version, uint64_t to, uint64_t serves)
{
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	snprintf(l->status.state, sizeof(l->status.state), "%s", state);
	l->status.version = version;
	l->status.to = to;
	l->status.serves = serves;
	pthread_mutex_unlock(&l->lock);
	if (l->dir)
		tell_dir(l);
	else
		ist__loop_run(l->loop, tell_here, l);
}

static void
stop_here(void *arg)
{
	struct ist__lease *l = arg;

	ist__timer_stop(&l->timer);
	ist__timer_stop(&l->answer);
	if (l->conn)
		ist__conn_close(l->conn, true);
	l->conn = NULL;
}

void
ist__lease_free(struct ist__lease *l)
{
	if (!l)
		return;
	ist__loop_run(l->loop, stop_here, l);
	if (l->dir)
		ist__dir_untell(l->dir, &l->status);
	if (l->lock_fd >= 0)
		ist__dir_withdraw(l->dir, l->group->name, l->lock_fd);
	pthread_mutex_destroy(&l->lock);
	ist__free(l->group->ctx, l->dir);
	ist__free(l->group->ctx, l);
}
