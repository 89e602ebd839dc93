/* SPDX-License-Identifier: Apache-2.0
 *
 * check_test.c - the conformance suite against backends whose faults are known: exactly the checks named must fail, and
 * none on a good one. Usage: check_test PLUGIN.so [CHECK,CHECK...]. Built with CHECK_BACKEND and CHECK_DEVICE it takes that
 * built-in backend with that double of a device, or with the real GPUs if ISTHMUS_TEST_DEVICE is cuda, and the first argument is
 * only its name.
 */
#include "conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef CHECK_BACKEND
#include "devices/cuda.h"
#include "lazy_device.h"
const struct ist_backend *CHECK_BACKEND(void);

/* No context is made before a check's own process asks for one. */
static const struct ist_device *
device(void)
{
	const char *which = getenv("ISTHMUS_TEST_DEVICE");
	static struct ist_device cuda;
	static struct ist__ctx ctx;

	if (!which || strcmp(which, "cuda") != 0)
		return &CHECK_DEVICE;
	ist__ctx_init(&ctx);
	return ist__cuda_new(&ctx, &cuda) ? &cuda : NULL;
}
#endif

static struct conformance_report report;

static void
tell(void *ctx, const struct conformance_check *c)
{
	static const char *const words[] = { "passed", "FAILED", "skipped" };

	(void)ctx;
	printf("%-38s %-8s %6.2f s  %s\n", c->name, words[c->result], c->seconds, c->text);
	fflush(stdout);
}

static int
listed(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (const char *at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
		if (!strncmp(at, name, n) && (at[n] == ',' || at[n] == 0))
			return 1;
	return 0;
}

static uint32_t
count(const char *list)
{
	uint32_t n = *list != 0;

	for (; *list; list++)
		n += *list == ',';
	return n;
}

int
main(int argc, char **argv)
{
	const char *want = argc > 2 ? argv[2] : "";
	struct conformance_args args = { .guard_s = getenv("ISTHMUS_TEST_DEVICE") ? 300 : 45, .tell = tell };
	int wrong = 0;

	if (argc < 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	args.path = argv[1];
#ifdef CHECK_BACKEND
	args.backend = CHECK_BACKEND();
	args.device = device();
	args.only = getenv("CHECK_ONLY");
#endif
	conformance_run_args(&args, &report);
	for (uint32_t i = 0; i < report.n; i++) {
		const struct conformance_check *c = &report.checks[i];
		int fails = c->result == CONFORMANCE_FAILED;

		if (fails != listed(want, c->name)) {
			printf("%s: %s %s\n", argv[1], c->name, fails ? "failed and should not have" : "should have failed");
			wrong++;
		}
		if (fails && !*c->text) {
			printf("%s: %s gives no reason\n", argv[1], c->name);
			wrong++;
		}
	}
	if (report.failed != count(want) || report.passed < 20) {
		printf("%s: %u passed, %u failed, %u were to fail\n", argv[1], report.passed, report.failed, count(want));
		wrong++;
	}
	return wrong != 0;
}
