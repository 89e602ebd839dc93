#!/bin/sh
# headers_test.sh INCLUDE_DIR - the public headers compile alone, without a warning, with no padding, as C11 and as C++17,
# with each compiler that is there.
set -eu
inc=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0
compile()
{
	command -v "$1" > /dev/null || return 0
	"$@" -fsyntax-only -Wall -Wextra -Wpedantic -Wconversion -Wundef -Werror -I"$inc"
	n=$((n + 1))
}
for h in isthmus.h isthmus/backend.h isthmus/device.h isthmus/error.h isthmus/sync.h; do
	printf '#include <%s>\nint unused_%d;\n' "$h" $n > "$tmp/one.c"
	cp "$tmp/one.c" "$tmp/one.cc"
	for cc in gcc clang; do
		compile $cc -std=c11 -Wshadow -Wstrict-prototypes "$tmp/one.c"
		compile $cc -std=gnu17 "$tmp/one.c"
	done
	for cxx in g++ clang++; do
		compile $cxx -std=c++17 "$tmp/one.cc"
	done
done
# structs of the plug-in ABI have no holes: a field that is appended later can't hide in one
printf '#include <isthmus/device.h>\nint unused;\n' > "$tmp/abi.c"
for cc in gcc clang; do
	compile $cc -std=c11 -Wpadded "$tmp/abi.c"
done
[ $n -gt 0 ] || exit 77
echo "$n compilations without a warning"
