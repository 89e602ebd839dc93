/* SPDX-License-Identifier: Apache-2.0
 *
 * plug_test.c - plug-ins from files, good and damaged; finding backends by name; what the core lends to them.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "plug/plug.h"

#include <isthmus.h>

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *good; /* a plug-in, from the command line */
static char folder[] = "/tmp/isthmus-plug-XXXXXX";
static struct ist_error err;
static _Atomic uint32_t warnings;

static void
on_log(void *ctx, int32_t level, const char *msg)
{
	(void)ctx, (void)msg;
	if (level == IST_LOG_WARN)
		atomic_fetch_add(&warnings, 1);
}

static struct ist_env *
env_new(void)
{
	struct ist_env_args args = { .struct_size = sizeof(args), .log_level = IST_LOG_TRACE, .log = on_log };
	struct ist_env *env;

	ist_error_init(&err);
	assert_int_equal(ist_env_new(&args, &env, &err), IST_OK);
	return env;
}

static char *
slurp(const char *path, size_t *bytes)
{
	struct stat st;
	FILE *f = fopen(path, "rb");
	char *p;

	assert_non_null(f);
	assert_int_equal(fstat(fileno(f), &st), 0);
	p = malloc((size_t)st.st_size + 1);
	assert_non_null(p);
	*bytes = fread(p, 1, (size_t)st.st_size, f);
	fclose(f);
	return p;
}

static const char *
spill(const char *name, const char *data, size_t bytes)
{
	static char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	unlink(path); /* a new file each time: the loader knows files that it has seen */
	f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, bytes, f), bytes);
	fclose(f);
	return path;
}

static void
refused(struct ist_env *env, const char *path, const char *word)
{
	const char *name = "untouched";

	ist_error_init(&err);
	assert_int_equal(ist_backend_load(env, path, &name, &err), IST_BAD_PLUGIN);
	assert_string_equal(name, "untouched");
	if (!strstr(err.detail, word))
		fail_msg("\"%s\" does not say \"%s\"", err.detail, word);
	if (*path && !strstr(err.detail, path))
		fail_msg("\"%s\" does not name %s", err.detail, path);
	assert_true(strlen(err.next) > 0);
}

static void
loads(struct ist_env *env, const char *path)
{
	const char *name = NULL;
	uint32_t n = ist_backend_count(env);

	if (ist_backend_load(env, path, &name, &err))
		fail_msg("%s: %s", path, err.detail);
	assert_non_null(name);
	assert_true(ist_backend_count(env) >= n);
}

/* Each kind of damage, in one env that stays usable. */
static void
damaged_files_are_refused(void **state)
{
	struct ist_env *env = env_new();
	static const char text[] = "#!/bin/sh\necho this is no plug-in, though it is long enough to hold an ELF header\n";
	size_t bytes;
	char *data = slurp(good, &bytes), *copy = malloc(bytes);
	uint32_t before = ist_backend_count(env);

	(void)state;
	assert_non_null(copy);
	refused(env, "/no/such/file.so", "No such file");
	refused(env, folder, "not a regular file");
	refused(env, "", "empty");
	refused(env, spill("empty.so", "", 0), "empty");
	refused(env, spill("text.so", text, sizeof(text)), "no ELF header");
	refused(env, spill("short.so", data, 40), "too short");
	for (size_t part = 1; part < 10; part++) /* what the loader would die of */
		refused(env, spill("cut.so", data, bytes * part / 10), "cut short");
	refused(env, spill("cut.so", data, bytes - 1), "cut short");
	memcpy(copy, data, bytes);
	copy[18] = (char)(copy[18] ^ 0x55); /* e_machine */
	refused(env, spill("machine.so", copy, bytes), "another kind of machine");
	memcpy(copy, data, bytes);
	copy[4] = 1; /* 32 bits */
	refused(env, spill("class.so", copy, bytes), "another kind of machine");
	memcpy(copy, data, bytes);
	memset(copy + 54, 0xFF, 4); /* sizes of the program headers */
	refused(env, spill("phdr.so", copy, bytes), "make no sense");
	memcpy(copy, data, bytes);
	memset(copy + 32, 0x7F, 8); /* e_phoff */
	refused(env, spill("phoff.so", copy, bytes), "cut short");
	refused(env, "/dev/null", "not a regular file");
	assert_int_equal(ist_backend_count(env), before);
	loads(env, good);
	assert_int_equal(ist_backend_count(env), before + 1);
	free(copy);
	free(data);
	ist_env_free(env);
}

/* Any cut, anywhere: in a child, since the loader might die of it. */
static void
no_cut_kills_the_process(void **state)
{
	size_t bytes;
	char *data = slurp(good, &bytes);

	(void)state;
	for (size_t at = 0; at < bytes; at += 1 + bytes / 61) {
		const char *path = spill("any.so", data, at);
		int status;
		pid_t pid = fork();

		if (pid == 0) {
			struct ist_env *env;
			const char *name;

			_exit(ist_env_new(NULL, &env, NULL) || ist_backend_load(env, path, &name, NULL) != IST_BAD_PLUGIN);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			fail_msg("cut after %zu of %zu bytes: status %d", at, bytes, status);
	}
	free(data);
}

static void
wrong_libraries_are_refused(void **state)
{
	struct ist_env *env = env_new();

	(void)state;
	refused(env, "/lib/x86_64-linux-gnu/libc.so.6", "isthmus_backend_v1");
	assert_int_equal(ist_device_load(env, good, NULL, &err), IST_BAD_PLUGIN);
	assert_non_null(strstr(err.detail, "isthmus_device_v1"));
	loads(env, good);
	ist_env_free(env);
}

static void
paths_are_paths(void **state)
{
	struct ist_env *env = env_new();
	const struct ist__admitted *a, *b;
	size_t bytes;
	char *data = slurp(good, &bytes), cwd[512], link_to[600];
	uint32_t n;

	(void)state;
	spill("mine.so", data, bytes);
	assert_non_null(getcwd(cwd, sizeof(cwd)));
	assert_int_equal(chdir(folder), 0);
	loads(env, "mine.so"); /* a bare name: of this folder, not of the loader's */
	n = ist_backend_count(env);
	loads(env, "./mine.so");
	snprintf(link_to, sizeof(link_to), "%s/link.so", folder);
	assert_int_equal(symlink("mine.so", link_to), 0);
	loads(env, link_to);
	assert_int_equal(ist_backend_count(env), n); /* the same file each time */
	assert_int_equal(ist__plug_get(env, "./mine.so", &a, &err), IST_OK);
	assert_int_equal(ist__plug_get(env, link_to, &b, &err), IST_OK);
	assert_ptr_equal(a, b);
	assert_int_equal(chdir(cwd), 0);
	refused(env, "mine.so", "No such file"); /* not here, and nowhere else is looked */
	/* a second copy is another backend of the same name: it is said, and the path chooses it */
	n = atomic_load(&warnings);
	assert_int_equal(ist__plug_get(env, spill("copy.so", data, bytes), &b, &err), IST_OK);
	assert_true(atomic_load(&warnings) > n);
	assert_ptr_not_equal(a, b);
	assert_string_equal(a->ops.name, b->ops.name);
	assert_string_equal(b->name, b->path);
	free(data);
	ist_env_free(env);
}

static void
a_hundred_envs_load_it(void **state)
{
	(void)state;
	for (int i = 0; i < 100; i++) {
		struct ist_env *env = env_new();

		loads(env, good);
		ist_env_free(env);
	}
}

static void
backends_are_found_by_name(void **state)
{
	struct ist_env *env = env_new();
	const struct ist__admitted *a;
	uint32_t i = 0;

	(void)state;
	assert_int_equal(ist__plug_get(env, "self", &a, &err), IST_OK);
	assert_string_equal(a->name, "self");
	assert_int_equal(a->native, 1u << IST_OP_SEND | 1u << IST_OP_RECV);
	assert_non_null(a->ops.drop);
	assert_int_equal(ist__plug_get(env, "nonesuch", &a, &err), IST_BAD_CONFIG);
	assert_non_null(strstr(err.detail, "self"));
	assert_int_equal(ist__plug_get(env, "", &a, &err), IST_INVALID_ARGUMENT);
	while (ist__plug_nth(env, i))
		i++;
	assert_true(i >= 1);
	assert_string_equal(ist__plug_nth(env, 0)->name, "self");
	ist_env_free(env);
}

static void
info_tells_of_each(void **state)
{
	struct ist_env *env = env_new();
	uint32_t backends = 0, devices = 0;

	(void)state;
	for (uint32_t i = 0; i < ist_backend_count(env); i++) {
		struct ist_backend_info info = { .struct_size = sizeof(info) };

		assert_int_equal(ist_backend_info(env, i, &info, &err), IST_OK);
		assert_non_null(info.name);
		assert_non_null(info.reason);
		assert_non_null(info.library);
		assert_non_null(info.version);
		backends += !strcmp(info.kind, "backend");
		devices += !strcmp(info.kind, "device");
		if (!strcmp(info.name, "self"))
			assert_true(info.composed_ops >> IST_OP_BROADCAST & 1 && !(info.composed_ops & info.native_ops));
	}
	assert_true(backends >= 1 && devices == 2); /* host and cuda */
	struct ist_backend_info shorter = { .struct_size = offsetof(struct ist_backend_info, kind), .kind = "untouched" };

	assert_int_equal(ist_backend_info(env, 0, &shorter, &err), IST_OK);
	assert_string_equal(shorter.kind, "untouched");
	assert_int_equal(ist_backend_info(env, 1000, &shorter, &err), IST_INVALID_ARGUMENT);
	assert_int_equal(ist_backend_info(NULL, 0, &shorter, &err), IST_BAD_HANDLE);
	assert_int_equal(ist_backend_load(NULL, good, NULL, &err), IST_BAD_HANDLE);
	ist_env_free(env);
}

const struct ist_backend *isthmus_backend_self(void);

static void
nowhere_probe(void *self, const struct ist_host *host, uint32_t level, struct ist_probe *out)
{
	(void)self, (void)host, (void)level;
	out->usable = 0;
	out->reason = "there is no such card here";
}

static void
tables_are_added(void **state)
{
	struct ist_env *env = env_new();
	struct ist_backend mine = *isthmus_backend_self(), nowhere = mine;
	const struct ist__admitted *a;

	(void)state;
	mine.name = "mine";
	nowhere.name = "nowhere";
	nowhere.probe = nowhere_probe;
	assert_int_equal(ist_backend_add(env, &mine, &err), IST_OK);
	assert_int_equal(ist_backend_add(env, &nowhere, &err), IST_OK);
	assert_int_equal(ist_backend_add(env, &mine, &err), IST_CONFLICT);
	assert_int_equal(ist_backend_add(env, NULL, &err), IST_INVALID_ARGUMENT);
	mine.abi = 9;
	assert_int_equal(ist_backend_add(env, &mine, &err), IST_BAD_PLUGIN);
	assert_int_equal(ist__plug_get(env, "mine", &a, &err), IST_OK);
	assert_int_equal(ist__plug_get(env, "nowhere", &a, &err), IST_UNSUPPORTED);
	assert_non_null(strstr(err.detail, "no such card"));
	ist_env_free(env);
}

/* ---- what the core lends ---- */

static _Atomic uint32_t gate, runs;

static void
wait_at_gate(void *arg)
{
	const struct ist_host *host = arg;

	atomic_fetch_add(&runs, 1);
	while (!atomic_load(&gate))
		usleep(1000);
	host->log(host->ctx, IST_LOG_WARN, "late");
	atomic_fetch_add(&runs, 1);
}

static void
memory_is_lent(void **state)
{
	struct ist_env *env = env_new();
	const struct ist_host *host = ist__plug_host(env, &err);
	const struct ist_device *device;

	(void)state;
	assert_non_null(host);
	for (uint64_t align = 1; align <= 1 << 21; align *= 2) {
		char *p = host->alloc(host->ctx, 1000, align, IST_MEM_HOST, -1);

		assert_non_null(p);
		assert_int_equal((uintptr_t)p % align, 0);
		memset(p, 1, 1000);
		host->free(host->ctx, p);
	}
	assert_null(host->alloc(host->ctx, 10, 3, IST_MEM_HOST, -1));
	assert_null(host->alloc(host->ctx, 10, 16, IST_MEM_CUDA, 0));
	char *pinned = host->alloc(host->ctx, 5000, 64, IST_MEM_PINNED, -1);

	assert_non_null(pinned);
	memset(pinned, 1, 5000);
	host->free(host->ctx, pinned);
	host->free(host->ctx, NULL);
	device = host->device(host->ctx, IST_MEM_HOST);
	assert_non_null(device);
	assert_string_equal(device->name, "host");
	assert_null(host->device(host->ctx, IST_MEM_CUDA));
	assert_null(host->device(host->ctx, 1000));
	ist_env_free(env);
}

static void
threads_may_outlive_the_env(void **state)
{
	struct ist_env *env = env_new();
	const struct ist_host *host = ist__plug_host(env, &err);
	uint32_t warned;
	int64_t at;

	(void)state;
	assert_int_equal(host->thread(host->ctx, "gate", NULL, NULL), IST_INVALID_ARGUMENT);
	assert_int_equal(host->thread(host->ctx, "gate", wait_at_gate, (void *)(uintptr_t)host), IST_OK);
	at = ist__now();
	ist_env_free(env);
	assert_true(ist__now() - at < 10000 * IST__MS); /* it waits, but not for ever */
	warned = atomic_load(&warnings);
	atomic_store(&gate, 1);
	while (atomic_load(&runs) < 2)
		usleep(1000);
	assert_int_equal(atomic_load(&warnings), warned); /* nobody listens any more */
}

static int
setup(void **state)
{
	(void)state;
	return mkdtemp(folder) ? 0 : -1;
}

static int
teardown(void **state)
{
	char command[600];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(damaged_files_are_refused),
		cmocka_unit_test(no_cut_kills_the_process),
		cmocka_unit_test(wrong_libraries_are_refused),
		cmocka_unit_test(paths_are_paths),
		cmocka_unit_test(a_hundred_envs_load_it),
		cmocka_unit_test(backends_are_found_by_name),
		cmocka_unit_test(info_tells_of_each),
		cmocka_unit_test(tables_are_added),
		cmocka_unit_test(memory_is_lent),
		cmocka_unit_test(threads_may_outlive_the_env),
	};

	if (argc < 2)
		return 2;
	good = argv[1];
	return cmocka_run_group_tests(tests, setup, teardown);
}
