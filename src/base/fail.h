/* SPDX-License-Identifier: Apache-2.0
 *
 * fail.h - filling struct ist_error. The first function that decides which error it is calls ist__fail; callers forward
 * the code and may add what they know (ranks, tensor, bucket). Every function here takes err == NULL.
 */
#ifndef ISTHMUS_BASE_FAIL_H
#define ISTHMUS_BASE_FAIL_H

#include <isthmus/error.h>
#include <stdarg.h>
#include <stdbool.h>

/* Sets code, scope and next from the list, op and detail as given; the rest is cleared. Returns code. */
ist_err ist__fail(struct ist_error *err, ist_err code, const char *op, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
ist_err ist__vfail(struct ist_error *err, ist_err code, const char *op, const char *fmt, va_list ap) __attribute__((format(printf, 4, 0)));
/* The same with the system's error number; its text is appended to the detail. Want of descriptors is LIMIT in any case;
 * where the caller knows no better than IO, want of memory, of space and of rights have their own codes too. */
ist_err ist__fail_sys(struct ist_error *err, ist_err code, int sys, const char *op, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
/* Is it a code of what this process lacks, or may not do? Nobody else is to blame where it names nobody. */
bool ist__fail_is_own(ist_err code);
/* A thread that can't be made. */
ist_err ist__fail_thread(struct ist_error *err, int sys, const char *op, const char *what);
/* Where sys is want of descriptors: what to do about it. */
void ist__fail_files(struct ist_error *err, int sys);
/* What memory shortage says. */
ist_err ist__fail_memory(struct ist_error *err, const char *op);
void ist__fail_rank(struct ist_error *err, uint32_t rank);                    /* adds a rank, once */
void ist__fail_per_rank(struct ist_error *err, uint32_t rank, ist_err code);
void ist__fail_tensor(struct ist_error *err, const char *name);
void ist__fail_bucket(struct ist_error *err, uint64_t bucket);
void ist__fail_next(struct ist_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Puts text before what the detail says already. */
void ist__fail_prefix(struct ist_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ist__fail_suffix(struct ist_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Copies as much as to has room for by its struct_size. */
void ist__error_copy(struct ist_error *to, const struct ist_error *from);

/* Errors on the wire (fixed order, texts cut at 4 KiB). See bytes.h. */
struct ist__writer;
struct ist__reader;
void ist__put_error(struct ist__writer *w, const struct ist_error *err);
bool ist__get_error(struct ist__reader *r, struct ist_error *err);

#endif
