/* SPDX-License-Identifier: Apache-2.0 */
#include "meeting.h"

#include <sched.h>
#include <stdbool.h>
#include <time.h>

static struct entry *
toy_find(struct toy *t, const char *key, bool make)
{
	for (int i = 0; i < KEYS; i++) {
		if (!t->at[i].key[0] && make)
			snprintf(t->at[i].key, sizeof(t->at[i].key), "%s", key);
		if (!strcmp(t->at[i].key, key))
			return &t->at[i];
	}
	return NULL;
}

ist_err
toy_set(void *ctx, const char *key, const void *value, uint64_t bytes)
{
	struct toy *t = ctx;
	struct entry *e;

	while (atomic_flag_test_and_set(&t->lock))
		sched_yield();
	e = toy_find(t, key, true);
	CHECK(e && bytes <= sizeof(e->value));
	memcpy(e->value, value, bytes);
	e->bytes = (uint32_t)bytes;
	atomic_store(&e->ready, 1);
	atomic_flag_clear(&t->lock);
	return IST_OK;
}

ist_err
toy_get(void *ctx, const char *key, void *room, uint64_t *bytes, int64_t timeout_ns)
{
	struct toy *t = ctx;
	struct timespec now;
	int64_t until;

	clock_gettime(CLOCK_MONOTONIC, &now);
	until = now.tv_sec * INT64_C(1000000000) + now.tv_nsec + timeout_ns;
	atomic_fetch_add(&t->gets, 1);
	for (;;) {
		struct timespec tick = { 0, 1000000 };
		struct entry *e;

		while (atomic_flag_test_and_set(&t->lock))
			sched_yield();
		e = toy_find(t, key, false);
		if (e && e->ready) {
			CHECK(e->bytes <= *bytes);
			memcpy(room, e->value, e->bytes);
			*bytes = e->bytes;
			atomic_flag_clear(&t->lock);
			return IST_OK;
		}
		atomic_flag_clear(&t->lock);
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec * INT64_C(1000000000) + now.tv_nsec >= until)
			return IST_TIMEOUT;
		nanosleep(&tick, NULL);
	}
}

void
write_book(struct ranks *r, struct member *m, uint32_t rank)
{
	char *book = (char *)r->shared + BOOK_AT;
	uint64_t n = IST_ADDRESS_BYTES;

	CHECK_ERR(IST_OK, ist_endpoint_address(m->ep, book + 512 * rank + 8, &n, &m->err), &m->err);
	memcpy(book + 512 * rank, &n, sizeof(n));
}

struct ist_address
read_book(struct ranks *r, uint32_t rank)
{
	char *book = (char *)r->shared + BOOK_AT;
	uint64_t n;

	memcpy(&n, book + 512 * rank, sizeof(n));
	return (struct ist_address){ book + 512 * rank + 8, n };
}

struct ist_req *
begin(struct ranks *r, struct member *m, const struct place *p, const char *name, uint32_t rank, uint32_t size)
{
	struct ist_kv kv = { .struct_size = sizeof(kv), .ctx = (char *)r->shared + KV_AT, .set = toy_set, .get = toy_get };
	static struct ist_kv lent; /* until the group has formed */
	struct ist_address a[8];
	struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = rank, .size = size, .name = name, .timeout_ns = 60 * IST_NS_PER_S };
	struct ist_req *req;

	lent = kv;
	for (uint32_t i = 0; i < size; i++)
		a[i] = read_book(r, i);
	if (p->way == BY_KV)
		ga.kv = &lent, ga.prefix = "test/";
	else if (p->way == BY_ADDRESS)
		ga.addresses = a;
	else
		ga.at = p->way == BY_MEMBER ? r->at : p->at;
	if (p->way == BY_STORE)
		ga.host_meeting = IST_HOST_MEETING_NO;
	CHECK_ERR(IST_OK, ist_group_new_start(m->ep, &ga, &req, &m->err), &m->err);
	return req;
}

ist_err
end(struct member *m, struct ist_req *req)
{
	ist_err e = ist_req_wait(req, 60 * IST_NS_PER_S, &m->err);

	if (!e)
		e = ist_req_group(req, &m->g, &m->err);
	ist_req_free(req);
	return e;
}
