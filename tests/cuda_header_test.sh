#!/bin/sh
# cuda_header_test.sh ROOT - our declarations of the CUDA driver agree with cuda.h, where one is found: in CUDA_HOME, in
# /usr/local/cuda, in /usr.
set -eu
cxx=${CXX:-c++}
command -v "$cxx" >/dev/null || { echo "no C++ compiler"; exit 77; }
for home in "${CUDA_HOME:-}" /usr/local/cuda /usr; do
	[ -n "$home" ] && [ -e "$home/include/cuda.h" ] || continue
	version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$home/include/cuda.h")
	[ "$version" -ge 12080 ] || continue
	"$cxx" -std=c++17 -fsyntax-only -Wall -Wextra -isystem "$home/include" -I"$1/src" -I"$1/include" "$1/tests/cuda_header.cc"
	echo "agrees with the cuda.h of CUDA $version"
	exit 0
done
echo "there is no cuda.h of CUDA 12.8 or newer here"
exit 77
