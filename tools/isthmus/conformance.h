/* SPDX-License-Identifier: Apache-2.0
 *
 * conformance.h - holds a backend or a device against the rules of isthmus/backend.h and isthmus/device.h. Every check
 * runs in a process of its own with a guard, so that a plug-in that crashes or hangs costs one check and is named. Sees
 * the plug-in headers and libc only.
 */
#ifndef ISTHMUS_TOOLS_CONFORMANCE_H
#define ISTHMUS_TOOLS_CONFORMANCE_H

#include <isthmus/backend.h>
#include <isthmus/device.h>
#include <stdbool.h>

enum conformance_result { CONFORMANCE_PASSED = 0, CONFORMANCE_FAILED = 1, CONFORMANCE_SKIPPED = 2 };
enum { CONFORMANCE_CHECKS_MAX = 96 };

struct conformance_check {
	const char *name;    /* static */
	uint32_t result;     /* enum conformance_result */
	double seconds;
	char text[512];      /* what is wrong, or why it was skipped; "" */
};

struct conformance_report {
	uint32_t passed, failed, skipped;
	uint32_t n;
	struct conformance_check checks[CONFORMANCE_CHECKS_MAX];
	char kind[16];       /* "backend" or "device" */
	char name[64];       /* what it calls itself */
	uint64_t native_ops; /* bit 1 << enum ist_op_kind */
	uint64_t composed_ops;
};

/* Checks a file (table is NULL) or a table in memory (path is for messages and may be NULL). Returns 0: nothing failed;
 * 1: something did; 2: there is nothing to check (one failed check, "loads", says why). No slot of the plug-in is called
 * in the caller's process; a file is loaded into it. */
int conformance_run(const char *path, const struct ist_backend *table, struct conformance_report *out);
int conformance_run_device(const char *path, const struct ist_device *table, struct conformance_report *out);

/* The same for more control. */
struct conformance_args {
	const char *path;
	const struct ist_backend *backend;
	const struct ist_device *device;  /* neither: whichever the file exports; both: the backend is checked, and gets this one. A
	                                   * backend that takes no host memory needs it, a double whose memory is the host's */
	const char *only;                 /* names, comma separated; NULL: all */
	const char *options;              /* for open: what the backend needs to run here; NULL: "" */
	uint32_t guard_s;                 /* most that one check may take; 0: each its own, a minute or two */
	void (*tell)(void *ctx, const struct conformance_check *check); /* after each; may be NULL */
	bool (*stop)(void *ctx);          /* asked some times a second: true ends the check under way, and all; may be NULL */
	void *ctx;
};
int conformance_run_args(const struct conformance_args *args, struct conformance_report *out);

/* "broadcast" for IST_OP_BROADCAST; NULL for a number that is none. */
const char *conformance_op_name(uint32_t kind);

#endif
