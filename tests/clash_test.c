/* SPDX-License-Identifier: Apache-2.0
 *
 * A host whose own functions carry the names of what libisthmus.so holds inside, all exported, all fatal. The library is
 * loaded at run time, forms a group, and opens and digests a checkpoint: it must never meet any of them.
 *
 * usage: clash_test LIBISTHMUS.SO
 */
#include <isthmus/sync.h>
#include <isthmus.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FATAL(name) \
	void name(void); \
	__attribute__((visibility("default"))) void name(void) \
	{ \
		fprintf(stderr, "%s of the host was called\n", #name); \
		abort(); \
	}

FATAL(XXH3_128bits)
FATAL(XXH3_128bits_withSeed)
FATAL(XXH3_128bits_reset)
FATAL(XXH3_128bits_update)
FATAL(XXH3_128bits_digest)
FATAL(XXH128_canonicalFromHash)
FATAL(XXH3_64bits)
FATAL(XXH_versionNumber)
FATAL(sodium_init)
FATAL(sodium_malloc)
FATAL(sodium_free)
FATAL(sodium_memcmp)
FATAL(sodium_memzero)
FATAL(sodium_bin2hex)
FATAL(randombytes_buf)
FATAL(crypto_generichash)
FATAL(crypto_generichash_init)
FATAL(crypto_generichash_update)
FATAL(crypto_generichash_final)
FATAL(json_loads)
FATAL(json_loadb)
FATAL(json_object_get)
FATAL(json_object_iter_next)
FATAL(json_decref)
FATAL(json_delete)
FATAL(curl_easy_init)
FATAL(MHD_start_daemon)

#define CHECK(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #x, err.detail); \
			return 1; \
		} \
	} while (0)
/* The library's function of that name, with its type. */
#define GET(name) \
	__typeof__(name) *p_##name; \
	do { \
		void *at_ = dlsym(lib, #name); \
		if (!at_) { \
			fprintf(stderr, "%s is missing\n", #name); \
			return 1; \
		} \
		memcpy(&p_##name, &at_, sizeof(at_)); \
	} while (0)

static int
write_checkpoint(char *path)
{
	static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
	unsigned char length[8] = { sizeof(header) - 1 };
	int fd = mkstemps(path, 12);

	return fd >= 0 && write(fd, length, 8) == 8 && write(fd, header, sizeof(header) - 1) == (ssize_t)sizeof(header) - 1 &&
		write(fd, "abcd", 4) == 4 && close(fd) == 0;
}

int
main(int argc, char **argv)
{
	char path[] = "/tmp/isthmus-clash-XXXXXX.safetensors", digest[IST_DIGEST_TEXT], room[IST_ADDRESS_BYTES];
	struct ist_address a = { room, sizeof(room) };
	struct ist_group_args ga = { .struct_size = sizeof(ga), .size = 1, .addresses = &a };
	struct ist_error err = { .struct_size = sizeof(err) };
	struct ist_checkpoint *ck;
	struct ist_endpoint *ep;
	struct ist_group *g;
	struct ist_blob one;
	struct ist_env *env;
	void *lib;

	if (argc != 2)
		return 2;
	lib = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	GET(ist_env_new);
	GET(ist_env_free);
	GET(ist_endpoint_new);
	GET(ist_endpoint_address);
	GET(ist_endpoint_free);
	GET(ist_group_new);
	GET(ist_group_free);
	GET(ist_broadcast_bytes);
	GET(ist_blobs_free);
	GET(ist_checkpoint_open);
	GET(ist_checkpoint_count);
	GET(ist_checkpoint_digest);
	GET(ist_checkpoint_free);
	CHECK(p_ist_env_new(NULL, &env, &err) == IST_OK);
	CHECK(p_ist_endpoint_new(env, NULL, &ep, &err) == IST_OK);
	CHECK(p_ist_endpoint_address(ep, room, &a.bytes, &err) == IST_OK);
	CHECK(p_ist_group_new(ep, &ga, &g, &err) == IST_OK);
	CHECK(p_ist_broadcast_bytes(g, "x", 1, 0, 0, &one, &err) == IST_OK);
	p_ist_blobs_free(g, &one, 1);
	CHECK(write_checkpoint(path));
	CHECK(p_ist_checkpoint_open(env, path, NULL, &ck, &err) == IST_OK);
	CHECK(p_ist_checkpoint_count(ck) == 1);
	CHECK(p_ist_checkpoint_digest(ck, IST_WHOLE, digest, &err) == IST_OK && strlen(digest) == 32);
	p_ist_checkpoint_free(ck);
	CHECK(p_ist_group_free(g) == IST_OK);
	p_ist_endpoint_free(ep);
	p_ist_env_free(env);
	unlink(path);
	return 0;
}
