#!/bin/sh
# SPDX-License-Identifier: MIT
# layers_broken.sh LAYERS: tools/layers.sh must find each of these breaches of the law, and no breach where
# there is none.
set -eu
layers=$1
tree=$(mktemp -d "${TMPDIR:-/tmp}/loam-layers.XXXXXX")
trap 'rm -rf "$tree"' EXIT
for room in include src/base src/exact src/simd src/gpu src/local/reference src/local/cpu src/local/cuda \
    src/local/hopper src/recurrent/reference src/core io cli/attend cli/bench tests/simd bench; do
    mkdir -p "$tree/$room"
done

# expect STATUS FILE INCLUDED: the status of the check where FILE has that #include and no other file is
# there.
expect()
{
    printf '#include <stdio.h>\n  #  include "%s"\n' "$3" >"$tree/$2"
    status=0
    said=$("$layers" "$tree") || status=$?
    rm "$tree/$2"
    if [ "$status" != "$1" ]; then
        echo "$2 including $3: status $status, expected $1; it said: $said"
        exit 1
    fi
}

expect 0 src/base/a.c loam.h
expect 0 src/local/cpu/a.h src/simd/vec.h
expect 0 src/local/cpu/a.h src/local/local.h
expect 1 src/local/a.h src/local/cpu/tile.h
expect 1 src/local/a.h src/simd/vec.h
expect 1 src/local/reference/a.c src/simd/vec.h
expect 1 src/local/reference/a.c src/local/cpu/tile.h
expect 1 src/local/cpu/a.c src/local/reference/row.h
expect 0 src/local/reference/a.c src/local/local.h
expect 0 src/local/reference/a.c src/exact/cholesky.h
expect 1 src/local/reference/a.c src/base/cholesky.h
expect 1 src/local/reference/a.c src/local/decay.h
expect 1 src/local/reference/a.c src/local/score.h
expect 0 src/recurrent/reference/a.c src/exact/cholesky.h
expect 1 src/recurrent/reference/a.c src/base/cholesky.h
expect 1 src/recurrent/a.c src/exact/cholesky.h
expect 1 src/local/cpu/a.c src/exact/cholesky.h
expect 0 src/local/hopper/a.cuh src/local/cuda/stream.cuh
expect 1 src/local/cuda/a.cuh src/local/hopper/stream.cuh
expect 0 src/core/a.c src/local/local.h
expect 0 src/recurrent/a.c src/base/cholesky.h
expect 1 src/recurrent/a.c src/local/local.h
expect 1 src/local/a.c src/recurrent/recurrent.h
expect 0 cli/a.c io/npy.h
expect 0 cli/a.c cli/options.h
expect 0 tests/a.c cli/options.h
expect 1 tests/a.c src/local/local.h
expect 1 tests/a.c src/simd/vec.h
expect 0 tests/simd/a.c src/simd/vec.h
expect 1 tests/simd/a.c src/local/local.h
expect 0 bench/a.c src/simd/vec.h
expect 1 bench/a.c src/core/plan.h
expect 1 include/loam.h src/base/error.h
expect 1 src/base/a.c src/simd/vec.h
expect 1 src/simd/a.h src/local/local.h
expect 1 src/local/a.c src/core/plan.h
expect 0 src/local/cuda/a.cu src/gpu/tile.cuh
expect 1 src/gpu/a.cuh src/simd/vec.h
expect 1 src/gpu/a.cuh src/local/local.h
expect 1 src/local/a.cu src/core/plan.h
expect 1 src/local/a.inc src/linear/linear.h
expect 1 src/core/a.c io/npy.h
expect 1 src/core/a.def ../io/npy.h
expect 1 io/a.c src/base/error.h
expect 1 io/a.c cli/options.h
expect 0 cli/bench/a.c cli/options.h
expect 1 cli/bench/a.c cli/attend/attend.h
expect 1 cli/a.c src/base/error.h
expect 1 cli/a.c tests/support/data.h

mkdir "$tree/src/local/unknown"
if "$layers" "$tree" >/dev/null; then
    echo "a layer that the law does not know passed"
    exit 1
fi
