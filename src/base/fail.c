/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"

#include "base/bytes.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct row {
	ist_err code;
	uint32_t scope;
	const char *name, *text, *next;
};

static const struct row rows[] = {
#define ROW(name, num, scope, text, next) { num, IST_SCOPE_##scope, #name, text, next },
	IST_ERR_LIST(ROW)
#undef ROW
};

static const struct row *
row_of(ist_err code)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].code == code)
			return &rows[i];
	return NULL;
}

const char *
ist_err_name(ist_err err)
{
	const struct row *row = row_of(err);

	return row ? row->name : "UNKNOWN";
}

const char *
ist_err_text(ist_err err)
{
	const struct row *row = row_of(err);

	return row ? row->text : "an error that this library does not know";
}

const char *
ist_err_next(ist_err err)
{
	const struct row *row = row_of(err);

	return row ? row->next : "";
}

uint32_t
ist_err_scope(ist_err err)
{
	const struct row *row = row_of(err);

	return row ? row->scope : (uint32_t)IST_SCOPE_CALL;
}

ist_err
ist_err_from_name(const char *name)
{
	for (size_t i = 0; name && i < sizeof(rows) / sizeof(rows[0]); i++)
		if (!strcmp(rows[i].name, name))
			return rows[i].code;
	return IST_INTERNAL;
}

void
ist_error_init(struct ist_error *err)
{
	memset(err, 0, sizeof(*err));
	err->struct_size = sizeof(*err);
	err->bucket = IST_NO_BUCKET;
}

/* Fields past a caller's struct_size are not ours to touch. A size of 0 is taken for a caller who forgot, with today's. */
static bool
has(const struct ist_error *err, size_t end)
{
	return err && (err->struct_size == 0 || err->struct_size >= end);
}
#define HAS(err, f) has(err, offsetof(struct ist_error, f) + sizeof((err)->f))

static void
copy_text(char *to, size_t room, const char *from)
{
	size_t n = strnlen(from, room - 1);

	/* never cut a UTF-8 sequence in two */
	if (from[n])
		while (n > 0 && ((unsigned char)from[n] & 0xC0) == 0x80)
			n--;
	memmove(to, from, n);
	to[n] = 0;
}

void
ist__error_copy(struct ist_error *to, const struct ist_error *from)
{
	uint32_t size, n;

	if (!to || to == from)
		return;
	n = size = to->struct_size && to->struct_size < sizeof(*to) ? to->struct_size : (uint32_t)sizeof(*to);
	if (from->struct_size && from->struct_size < n)
		n = from->struct_size; /* a caller's, who was built with a shorter one */
	memcpy(to, from, n);
	to->struct_size = size;
}

ist_err
ist__vfail(struct ist_error *err, ist_err code, const char *op, const char *fmt, va_list ap)
{
	struct ist_error e;

	if (!err)
		return code;
	ist_error_init(&e);
	e.code = code;
	e.scope = ist_err_scope(code);
	copy_text(e.op, sizeof(e.op), op ? op : "");
	copy_text(e.next, sizeof(e.next), ist_err_next(code));
	vsnprintf(e.detail, sizeof(e.detail), fmt, ap);
	ist__error_copy(err, &e);
	return code;
}

ist_err
ist__fail(struct ist_error *err, ist_err code, const char *op, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	ist__vfail(err, code, op, fmt, ap);
	va_end(ap);
	return code;
}

void
ist__fail_files(struct ist_error *err, int sys)
{
	if (sys == EMFILE)
		ist__fail_next(err, "raise the process's limit of open files (ulimit -n), or have it open fewer");
	else if (sys == ENFILE)
		ist__fail_next(err, "raise the system's limit of open files (fs.file-max), or have its processes open fewer");
	else if (sys == ENOSPC && HAS(err, next) && err->code == IST_LIMIT)
		ist__fail_next(err, "raise this user's limit of watched descriptors (sysctl fs.epoll.max_user_watches)");
}

/* What a number of the system's means whatever was tried. */
static ist_err
code_of(ist_err code, int sys)
{
	if (sys == EMFILE || sys == ENFILE)
		return IST_LIMIT;
	if (code != IST_IO)
		return code;
	switch (sys) {
	case ENOMEM:
	case ENOBUFS:
		return IST_NO_MEMORY;
	case ENOSPC:
	case EDQUOT:
		return IST_NO_SPACE;
	case EACCES:
	case EPERM:
	case EROFS:
		return IST_DENIED;
	default:
		return code;
	}
}

bool
ist__fail_is_own(ist_err code)
{
	return code == IST_NO_MEMORY || code == IST_LIMIT || code == IST_NO_SPACE || code == IST_DENIED || code == IST_IO;
}

ist_err
ist__fail_thread(struct ist_error *err, int sys, const char *op, const char *what)
{
	ist_err e = ist__fail_sys(err, sys == EAGAIN ? IST_LIMIT : IST_IO, sys, op, "%s", what);

	if (sys == EAGAIN)
		ist__fail_next(err, "raise the limit of processes and threads (ulimit -u, or the container's pids.max)");
	return e;
}

ist_err
ist__fail_sys(struct ist_error *err, ist_err code, int sys, const char *op, const char *fmt, ...)
{
	char text[128] = "";
	va_list ap;

	code = code_of(code, sys);
	va_start(ap, fmt);
	ist__vfail(err, code, op, fmt, ap);
	va_end(ap);
	ist__fail_files(err, sys);
	if (HAS(err, detail)) {
		size_t n = strlen(err->detail);
		const char *name = strerrorname_np(sys);

		/* strerror_r of glibc: thread safe, and it returns the text */
		snprintf(err->detail + n, sizeof(err->detail) - n, ": %s (%s)", strerror_r(sys, text, sizeof(text)), name ? name : "?");
	}
	if (HAS(err, sys))
		err->sys = sys;
	return code;
}

ist_err
ist__fail_memory(struct ist_error *err, const char *op)
{
	return ist__fail(err, IST_NO_MEMORY, op, "out of memory");
}

void
ist__fail_rank(struct ist_error *err, uint32_t rank)
{
	if (!HAS(err, ranks))
		return;
	for (uint32_t i = 0; i < err->n_ranks; i++)
		if (err->ranks[i] == rank)
			return;
	if (err->n_ranks < IST_ERROR_RANKS)
		err->ranks[err->n_ranks++] = rank;
}

void
ist__fail_per_rank(struct ist_error *err, uint32_t rank, ist_err code)
{
	if (HAS(err, per_rank) && err->n_per_rank < IST_ERROR_RANKS)
		err->per_rank[err->n_per_rank++] = (struct ist_rank_error){ rank, code };
}

void
ist__fail_tensor(struct ist_error *err, const char *name)
{
	if (HAS(err, tensor))
		copy_text(err->tensor, sizeof(err->tensor), name ? name : "");
}

void
ist__fail_bucket(struct ist_error *err, uint64_t bucket)
{
	if (HAS(err, bucket))
		err->bucket = bucket;
}

void
ist__fail_next(struct ist_error *err, const char *fmt, ...)
{
	va_list ap;

	if (!HAS(err, next))
		return;
	va_start(ap, fmt);
	vsnprintf(err->next, sizeof(err->next), fmt, ap);
	va_end(ap);
}

void
ist__fail_prefix(struct ist_error *err, const char *fmt, ...)
{
	char text[sizeof(err->detail)];
	size_t n;
	va_list ap;

	if (!HAS(err, detail))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	n = strlen(text);
	copy_text(text + n, sizeof(text) - n, err->detail);
	copy_text(err->detail, sizeof(err->detail), text);
}

void
ist__fail_suffix(struct ist_error *err, const char *fmt, ...)
{
	size_t n;
	va_list ap;

	if (!HAS(err, detail))
		return;
	n = strlen(err->detail);
	va_start(ap, fmt);
	vsnprintf(err->detail + n, sizeof(err->detail) - n, fmt, ap);
	va_end(ap);
}

void
ist__put_error(struct ist__writer *w, const struct ist_error *err)
{
	ist__put_u32(w, (uint32_t)err->code);
	ist__put_u32(w, err->scope);
	ist__put_u32(w, (uint32_t)err->sys);
	ist__put_u64(w, err->bucket);
	ist__put_u32(w, err->n_ranks);
	for (uint32_t i = 0; i < err->n_ranks; i++)
		ist__put_u32(w, err->ranks[i]);
	ist__put_u32(w, err->n_per_rank);
	for (uint32_t i = 0; i < err->n_per_rank; i++) {
		ist__put_u32(w, err->per_rank[i].rank);
		ist__put_u32(w, (uint32_t)err->per_rank[i].code);
	}
	ist__put_str(w, err->op);
	ist__put_str(w, err->tensor);
	ist__put_str(w, err->next);
	ist__put_str(w, err->detail);
}

bool
ist__get_error(struct ist__reader *r, struct ist_error *err)
{
	struct ist_error e;

	ist_error_init(&e);
	e.code = (ist_err)ist__get_u32(r);
	e.scope = ist__get_u32(r);
	e.sys = (int32_t)ist__get_u32(r);
	e.bucket = ist__get_u64(r);
	e.n_ranks = ist__get_u32(r);
	if (e.n_ranks > IST_ERROR_RANKS)
		return false;
	for (uint32_t i = 0; i < e.n_ranks; i++)
		e.ranks[i] = ist__get_u32(r);
	e.n_per_rank = ist__get_u32(r);
	if (e.n_per_rank > IST_ERROR_RANKS)
		return false;
	for (uint32_t i = 0; i < e.n_per_rank; i++) {
		e.per_rank[i].rank = ist__get_u32(r);
		e.per_rank[i].code = (ist_err)ist__get_u32(r);
	}
	if (!ist__get_str(r, e.op, sizeof(e.op)) || !ist__get_str(r, e.tensor, sizeof(e.tensor)) ||
	    !ist__get_str(r, e.next, sizeof(e.next)) || !ist__get_str(r, e.detail, sizeof(e.detail)) || r->bad)
		return false;
	if (e.code == IST_OK)
		e.code = IST_INTERNAL; /* somebody failed with success: still a failure */
	ist__error_copy(err, &e);
	return true;
}
