#!/bin/sh
# nccl_header_test.sh SOURCE_DIR - our declarations of NCCL hold against every nccl.h that is found: in the folders of NCCL_INCLUDE
# (separated by colons), of the system, of a CUDA toolkit, of Python's packages. Skipped where there is none.
set -eu
src=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# what nccl.h takes of CUDA's headers, so that these are not needed
cat > "$tmp/cuda_runtime.h" << 'END'
#pragma once
#include <cstddef>
#include <cstdint>
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
END
echo '#pragma once' > "$tmp/cuda_fp16.h"
printf '#pragma once\n#define __CUDA_BF16_TYPES_EXIST__ 1\n' > "$tmp/cuda_bf16.h"
cp "$tmp/cuda_fp16.h" "$tmp/cuda_fp8.h"
packages=$(python3 -c 'import site; print(":".join(p + "/nvidia/nccl/include" for p in site.getsitepackages()))' 2> /dev/null || true)
folders=${NCCL_INCLUDE:-}:/usr/include:/usr/local/include:/usr/local/cuda/include:$packages
n=0
IFS=:
for dir in $folders; do
	[ -n "$dir" ] && [ -f "$dir/nccl.h" ] || continue
	mkdir -p "$tmp/one"
	cp "$dir"/nccl*.h "$tmp/one/" # alone: the toolkit's own headers beside it are not looked at
	for cxx in g++ clang++; do
		command -v $cxx > /dev/null || continue
		$cxx -std=c++17 -fsyntax-only -D__CUDA_BF16_TYPES_EXIST__=1 -Wno-invalid-offsetof -I"$tmp" -I"$tmp/one" -I"$src/src" "$src/tests/nccl_header.cc"
		n=$((n + 1))
	done
	echo "$dir: $(sed -n 's/.*define NCCL_VERSION_CODE *//p' "$dir/nccl.h")"
	rm -rf "$tmp/one"
done
[ $n -gt 0 ] || {
	echo "skipped: no nccl.h here; NCCL_INCLUDE may name folders"
	exit 77
}
echo "$n compilations"
