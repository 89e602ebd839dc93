/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_kit.h"

#include "coll/reduce.h"
#include "group/group.h"
#include "plug/plug.h"

#include <isthmus.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE (60 * IST_NS_PER_S)

bool
kit_is_double(void)
{
	const char *v = getenv("NCCL_DOUBLE");

	return v && *v;
}

/* ---- is there anything to test on ---- */

static uint32_t devices = LAZY_DEVICES;

struct answer {
	uint32_t devices;
	char why[256];
};

static void
look(struct answer *a)
{
	struct ist_device_probe p = { .struct_size = sizeof(p) };
	const struct ist__admitted *nccl;
	const struct ist_device *d;
	struct ist_error err;
	struct ist_env *env;

	ist_error_init(&err);
	CHECK_ERR(IST_OK, ist_env_new(NULL, &env, &err), &err);
	d = ist__plug_device(env, IST_MEM_CUDA);
	if (!d) {
		snprintf(a->why, sizeof(a->why), "there is no CUDA device here");
		return;
	}
	d->probe(d->self, ist__plug_host(env, &err), IST_START, &p);
	if (p.count == 0)
		snprintf(a->why, sizeof(a->why), "%s", p.reason ? p.reason : "no device");
	else if (ist__plug_get(env, "nccl", &nccl, &err))
		snprintf(a->why, sizeof(a->why), "%.250s", err.detail);
	else
		a->devices = p.count;
}

uint32_t
kit_devices(char why[256])
{
	struct answer *a;
	uint32_t n;
	int status;
	pid_t pid;

	if (kit_is_double())
		return LAZY_DEVICES;
	a = mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(a != MAP_FAILED);
	pid = fork();
	if (pid == 0) {
		look(a);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	snprintf(why, 256, "%s", a->why[0] ? a->why : "looking for devices ended the process");
	n = devices = a->devices;
	munmap(a, sizeof(*a));
	return n;
}

uint32_t
kit_ranks(uint32_t n)
{
	const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE");

	return kit_is_double() || !shared || strcmp(shared, "1") != 0 ? n : 4 * n;
}

/* ---- members ---- */

static void
on_log(void *ctx, int32_t level, const char *msg)
{
	struct kit *k = ctx;

	if (strstr(msg, "could not close everything"))
		atomic_fetch_add(&k->busy, 1);
	if (getenv("TEST_LOG"))
		fprintf(stderr, "[%d] %d: %s\n", (int)getpid(), level, msg);
}

void
kit_init(struct kit *k, uint32_t rank)
{
	struct ist_env_args ea = { .struct_size = sizeof(ea), .log_level = IST_LOG_INFO, .log = on_log, .log_ctx = k };
	struct ist_endpoint_args pa = { .struct_size = sizeof(pa), .mem = IST_MEM_CUDA, .device = (int32_t)(rank % devices) };
	struct ist_status why = { .struct_size = sizeof(why) };

	memset(k, 0, sizeof(*k));
	k->device = pa.device;
	ist_error_init(&k->m.err);
	CHECK_ERR(IST_OK, ist_env_new(&ea, &k->m.env, &k->m.err), &k->m.err);
	if (kit_is_double())
		CHECK_ERR(IST_OK, ist_device_add(k->m.env, &lazy_device, &k->m.err), &k->m.err);
	CHECK_ERR(IST_OK, ist_endpoint_new(k->m.env, &pa, &k->m.ep, &k->m.err), &k->m.err);
	k->d = ist__plug_device(k->m.env, IST_MEM_CUDA);
	CHECK(k->d && !k->d->stream_new(k->d->self, k->device, &k->stream, &why));
	CHECK(!k->d->event_new(k->d->self, k->device, 0, &k->event, &why));
}

ist_err
kit_join(struct kit *k, struct ranks *r, const char *name, uint32_t rank, const char *options)
{
	struct ist_group_args ga = { .struct_size = sizeof(ga), .rank = rank, .size = r->n, .name = name, .at = r->at, .backend = "nccl",
		.backend_options = options, .timeout_ns = PATIENCE };

	return ist_group_new(k->m.ep, &ga, &k->m.g, &k->m.err);
}

void
kit_leave(struct kit *k)
{
	if (k->m.g)
		CHECK(ist_group_free(k->m.g) == IST_OK);
	k->m.g = NULL;
}

void
kit_fini(struct kit *k)
{
	k->d->event_free(k->d->self, k->device, k->event);
	k->d->stream_free(k->d->self, k->device, k->stream);
	member_fini(&k->m);
}

/* In good order: nobody goes while another still asks for something. */
void
kit_part(struct kit *k)
{
	CHECK_ERR(IST_OK, ist_barrier(k->m.g, 0, &k->m.err), &k->m.err);
	kit_leave(k);
}

static void
ask_double(int *comms, int *ids, int *running)
{
	void *h = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), *p = h ? dlsym(h, "fake_nccl_left") : NULL;
	void (*left)(int *, int *, int *);

	CHECK(p);
	memcpy(&left, &p, sizeof(left));
	left(comms, ids, running);
	dlclose(h);
}

void
kit_left(int *comms, int *ids)
{
	int running;

	ask_double(comms, ids, &running);
}

void
kit_await_running(void)
{
	double until = now_s() + 30;
	int comms, ids, running = 0;

	while (running == 0) {
		CHECK(now_s() < until);
		ask_double(&comms, &ids, &running);
		sched_yield();
	}
}

/* ---- memory ---- */

struct ist_buf
kit_buf(struct kit *k, uint64_t bytes)
{
	struct ist_buf b = { .bytes = bytes, .mem = IST_MEM_CUDA, .device = k->device };
	struct ist_status why = { .struct_size = sizeof(why) };

	CHECK(!k->d->alloc(k->d->self, k->device, IST_MEM_CUDA, 0, bytes ? bytes : 1, &b.addr, &why));
	return b;
}

void
kit_free(struct kit *k, struct ist_buf *buf)
{
	k->d->free(k->d->self, k->device, IST_MEM_CUDA, buf->addr);
	buf->addr = NULL;
}

static void
copy(struct kit *k, void *to, const void *from, uint64_t bytes)
{
	struct ist_copy c = { .dst = to, .src = from, .bytes = bytes };
	struct ist_status why = { .struct_size = sizeof(why) };
	double until = now_s() + 60;
	uint32_t done = 0;

	if (bytes == 0)
		return;
	CHECK(!k->d->copy(k->d->self, k->device, &c, 1, k->stream, &why));
	CHECK(!k->d->event_record(k->d->self, k->device, k->event, k->stream, &why));
	while (!done) {
		CHECK(now_s() < until && !k->d->event_query(k->d->self, k->device, k->event, &done, &why));
		sched_yield();
	}
}

void
kit_up(struct kit *k, const struct ist_buf *to, const void *from)
{
	copy(k, to->addr, from, to->bytes);
}

void
kit_down(struct kit *k, void *to, const struct ist_buf *from)
{
	copy(k, to, from->addr, from->bytes);
}

/* ---- operations ---- */

ist_err
kit_start(struct kit *k, uint32_t kind, const struct ist_coll_args *args, struct ist_req **req)
{
	static ist_err (*const calls[])(struct ist_group *, const struct ist_coll_args *, struct ist_req **, struct ist_error *) = {
		[IST_OP_SEND] = ist_send, [IST_OP_RECV] = ist_recv, [IST_OP_BROADCAST] = ist_broadcast, [IST_OP_ALL_GATHER] = ist_all_gather,
		[IST_OP_ALL_REDUCE] = ist_all_reduce, [IST_OP_REDUCE_SCATTER] = ist_reduce_scatter, [IST_OP_GATHER] = ist_gather,
		[IST_OP_SCATTER] = ist_scatter, [IST_OP_ALL_TO_ALL] = ist_all_to_all };

	return calls[kind](k->m.g, args, req, &k->m.err);
}

ist_err
kit_wait(struct kit *k, struct ist_req *req)
{
	ist_err e = ist_req_wait(req, PATIENCE, &k->m.err);

	CHECK(ist_req_free(req) == IST_OK);
	return e;
}

ist_err
kit_do(struct kit *k, uint32_t kind, const struct ist_coll_args *args)
{
	struct ist_req *req;
	ist_err e = kit_start(k, kind, args, &req);

	return e ? e : kit_wait(k, req);
}

/* ---- numbers ---- */

uint32_t
kit_elem(uint32_t dtype)
{
	return dtype ? ist__elem_bytes(dtype) : 1;
}

/* v has few bits: exponent and what stands behind the first of them. */
static uint8_t
tiny(uint32_t v, int fraction, int bias)
{
	int e = 31 - __builtin_clz(v | 1);

	if (v == 0)
		return 0;
	return (uint8_t)(((uint32_t)(e + bias) << fraction | (v << fraction >> e & ((1u << fraction) - 1))) & 0xff);
}

void
kit_put(uint32_t dtype, void *at, uint32_t v)
{
	float f = (float)v;
	double d = v;
	uint64_t whole = v;
	uint16_t half = dtype == IST_BF16 ? ist__f32_to_bf16(f) : ist__f32_to_f16(f);
	uint8_t byte = dtype == IST_F8E4M3 ? tiny(v, 3, 7) : tiny(v, 2, 15);

	switch (dtype) {
	case IST_F32: memcpy(at, &f, 4); break;
	case IST_F64: memcpy(at, &d, 8); break;
	case IST_F16:
	case IST_BF16: memcpy(at, &half, 2); break;
	case IST_F8E4M3:
	case IST_F8E5M2: memcpy(at, &byte, 1); break;
	default: memcpy(at, &whole, kit_elem(dtype));
	}
}
