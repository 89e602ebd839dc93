#!/bin/sh
# outside_test.sh BUILD_DIR SOURCE_DIR - a third party's view: install to a folder, build the example backend against what
# was installed and nothing else, load it by path from a program built the same way, and run the suite on it.
set -eu
build=$1
src=$2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export PKG_CONFIG_PATH=
cc=${CC:-cc}

cmake --install "$build" --prefix "$tmp/usr" > "$tmp/log" 2>&1 || {
	cat "$tmp/log"
	exit 1
}
pc=$(find "$tmp/usr" -name isthmus.pc)
export PKG_CONFIG_PATH=${pc%/isthmus.pc}
mv "$tmp/usr" "$tmp/moved" # nothing in it may know where it was put
PKG_CONFIG_PATH=$(echo "$PKG_CONFIG_PATH" | sed "s|^$tmp/usr|$tmp/moved|")
[ "$(pkg-config --modversion isthmus)" = "$(sed -n 's/^project(isthmus VERSION \([0-9.]*\).*/\1/p' "$src/CMakeLists.txt")" ]

mkdir "$tmp/work"
cd "$tmp/work"
cp "$src/examples/03_backend.c" mine.c
# shellcheck disable=SC2046
$cc -std=c11 -Wall -Wextra -Werror -shared -fPIC $(pkg-config --cflags isthmus) mine.c -o mine.so
[ "$(nm -D --defined-only mine.so | awk '$2 == "T" {print $3}')" = isthmus_backend_v1 ] || {
	echo "mine.so exports more than one symbol"
	exit 1
}

cat > use.c << 'END'
#include <isthmus.h>
#include <stdio.h>
#include <string.h>

static struct ist_error err = { .struct_size = sizeof(err) };

static int
fail(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", what, ist_err_name(err.code), err.detail);
	return 1;
}

int
main(int argc, char **argv)
{
	struct ist_env_args args = { .struct_size = sizeof(args) };
	struct ist_env *env;

	if (ist_env_new(&args, &env, &err))
		return fail("env");
	for (int i = 1; i < argc; i++) {
		const char *name;
		int found = 0;

		if (ist_backend_load(env, argv[i], &name, &err))
			return fail(argv[i]);
		for (uint32_t k = 0; k < ist_backend_count(env); k++) {
			struct ist_backend_info info = { .struct_size = sizeof(info) };

			if (ist_backend_info(env, k, &info, &err))
				return fail("info");
			found += !strcmp(info.name, name) && !strcmp(info.kind, "backend") && info.usable;
		}
		if (found != 1 || strcmp(name, "wire") != 0)
			return fprintf(stderr, "%s: name %s found %d times\n", argv[i], name, found), 1;
	}
	ist_env_free(env);
	puts("loaded");
	return 0;
}
END
# A sanitized library needs its runtime loaded first; then what is built here is sanitized too.
san=
if nm -D "$tmp"/moved/lib*/libisthmus.so "$tmp"/moved/lib/*/libisthmus.so 2> /dev/null | grep -q __asan_init; then
	san=-fsanitize=address,undefined
fi
# shellcheck disable=SC2046
if $cc -std=c11 $san $(pkg-config --cflags isthmus) use.c -o use $(pkg-config --libs isthmus) -Wl,-rpath,"$(pkg-config --variable=libdir isthmus)" 2> link.log; then
	[ "$(./use ./mine.so mine.so "$PWD/mine.so")" = loaded ]
else
	cat link.log
	exit 1
fi
cli=$(find "$tmp/moved" "$build/bin" -type f -name isthmus -perm -u+x | head -n 1)
if [ -n "$cli" ] && "$cli" --help 2>&1 | grep -q '^ *check'; then
	"$cli" check ./mine.so
else
	"$build/bin/check_test" "$PWD/mine.so"
fi
echo outside: well
