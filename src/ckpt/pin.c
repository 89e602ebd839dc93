/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/pin.h"

#include "base/fail.h"
#include "ckpt/checkpoint.h"

#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#define OP "sync_source"
#define LEAST_BYTES (UINT64_C(64) << 10) /* below it a copy by the processor costs less than a range of its own */

static int
by_address(const void *a, const void *b)
{
	const struct ist__pin_range *x = a, *y = b;

	return x->addr < y->addr ? -1 : x->addr > y->addr;
}

bool
ist__pins_have(const struct ist__pins *p, const void *addr, uint64_t bytes)
{
	const uint8_t *a = addr;
	uint64_t lo = 0, hi = p->n;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (p->ranges[mid].addr <= a)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo > 0 && bytes <= p->ranges[lo - 1].bytes && (uint64_t)(a - p->ranges[lo - 1].addr) <= p->ranges[lo - 1].bytes - bytes;
}

static ist_err
pin(const struct ist__pins *p, const struct ist__ctx *ctx, void *addr, uint64_t bytes, uint32_t flags, const char *what)
{
	struct ist_status why = { .struct_size = sizeof(why), .rank = IST_NO_RANK };
	const struct ist_device *d = p->far.dev;
	ist_err e = d->pin(d->self, p->far.index, addr, bytes, flags, &why);

	if (e)
		ist__log(ctx, IST_LOG_INFO, "%s: %llu bytes are not pinned where they lie, and are copied on their way: %s", what,
			(unsigned long long)bytes, why.text[0] ? why.text : ist_err_name(e));
	return e;
}

/* ---- tensors ---- */

static bool
add_range(const struct ist__ctx *ctx, struct ist__pins *p, const void *addr, uint64_t bytes)
{
	void *at = p->ranges;

	if (!ist__grow(ctx, &at, &p->room, p->n + 1, sizeof(*p->ranges)))
		return false;
	p->ranges = at;
	p->ranges[p->n++] = (struct ist__pin_range){ .addr = (uint8_t *)(uintptr_t)addr, .bytes = bytes };
	return true;
}

/* Tensors that share a page or are neighbours are one range. */
static void
join(struct ist__pins *p)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n = 0;

	if (p->n > 0)
		qsort(p->ranges, p->n, sizeof(*p->ranges), by_address);
	for (uint64_t i = 0; i < p->n; i++) {
		struct ist__pin_range *r = &p->ranges[i], *last = n > 0 ? &p->ranges[n - 1] : NULL;
		uint8_t *end = last ? last->addr + last->bytes : NULL;

		if (last && (r->addr <= end || (uintptr_t)r->addr / page <= (uintptr_t)(end - 1) / page + 1)) {
			if (r->addr + r->bytes > end)
				last->bytes = (uint64_t)(r->addr + r->bytes - last->addr);
		} else {
			p->ranges[n++] = *r;
		}
	}
	p->n = n;
}

static ist_err
pin_tensors(const struct ist__checkpoint_body *b, struct ist__pins *p, struct ist_error *err)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < b->m->n_items; i++)
		if (b->m->items[i].alias == IST__NO_ALIAS && b->m->items[i].bytes > 0 && !(b->far && b->far[i]) &&
		    !add_range(b->ctx, p, b->addrs[i], b->m->items[i].bytes))
			return ist__fail_memory(err, OP);
	join(p);
	for (uint64_t i = 0; i < p->n; i++)
		if (p->ranges[i].bytes >= LEAST_BYTES && pin(p, b->ctx, p->ranges[i].addr, p->ranges[i].bytes, 0, "tensors in memory") == IST_OK)
			p->ranges[n++] = p->ranges[i];
	p->n = n;
	return IST_OK;
}

/* ---- files ---- */

/* Pages of these are memory, and stay where they are. */
static bool
is_memory(int fd)
{
	struct statfs st;

	return !fstatfs(fd, &st) && (st.f_type == TMPFS_MAGIC || st.f_type == HUGETLBFS_MAGIC || st.f_type == RAMFS_MAGIC);
}

static uint8_t *
map_file(const struct ist__checkpoint_body *b, const struct ist__pins *p, uint64_t i)
{
	uint64_t bytes = b->files[i].bytes;
	void *at;

	if (bytes < LEAST_BYTES || !is_memory(b->files[i].fd))
		return NULL;
	at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, b->files[i].fd, 0);
	if (at == MAP_FAILED)
		return NULL;
	madvise(at, bytes, MADV_DONTFORK);
	if (pin(p, b->ctx, at, bytes, IST_PIN_READ_ONLY, b->m->files[i].name)) {
		munmap(at, bytes);
		return NULL;
	}
	return at;
}

static ist_err
pin_files(const struct ist__checkpoint_body *b, struct ist__pins *p, struct ist_error *err)
{
	p->files = ist__alloc(b->ctx, (b->m->n_files ? b->m->n_files : 1) * sizeof(*p->files));
	if (!p->files)
		return ist__fail_memory(err, OP);
	for (uint64_t i = 0; i < b->m->n_files; i++)
		p->files[i] = map_file(b, p, i);
	return IST_OK;
}

/* ---- all ---- */

ist_err
ist__checkpoint_pin(struct ist_checkpoint *ck, uint32_t mem, int32_t device, struct ist_error *err)
{
	struct ist__checkpoint_body *b = ck->body;
	ist_err e;

	if (b->pins.far.dev)
		return IST_OK;
	e = ist__far_find(ck->handle.env, mem, device, OP, &b->pins.far, err);
	if (e)
		return e;
	return b->addrs ? pin_tensors(b, &b->pins, err) : pin_files(b, &b->pins, err);
}

void
ist__checkpoint_unpin(struct ist__checkpoint_body *b)
{
	struct ist__pins *p = &b->pins;
	const struct ist_device *d = p->far.dev;

	for (uint64_t i = 0; d && i < p->n; i++)
		d->unpin(d->self, p->far.index, p->ranges[i].addr, p->ranges[i].bytes);
	for (uint64_t i = 0; d && p->files && i < b->m->n_files; i++)
		if (p->files[i]) {
			d->unpin(d->self, p->far.index, p->files[i], b->files[i].bytes);
			munmap(p->files[i], b->files[i].bytes);
		}
	ist__free(b->ctx, p->ranges);
	ist__free(b->ctx, p->files);
	*p = (struct ist__pins){ .n = 0 };
}
