#!/bin/sh
# SPDX-License-Identifier: MIT
# install.sh CMAKE BUILD CONSUMER CC VERSION: installs into a prefix inside the build tree, then builds and
# runs a stranger's project against it: by find_package and by pkg-config, shared and static.
set -eu
cmake=$1 build=$2 consumer=$3 cc=$4 version=$5
place=$build/house
prefix=$place/prefix
rm -rf "$place"
mkdir -p "$place"

fail()
{
    echo "install: $1"
    exit 1
}
says_version()
{
    said=$("$@") || fail "$* failed"
    [ "$said" = "$version" ] || fail "$* says '$said', expected $version"
}

# Installed elsewhere first: a package must bear being moved.
$cmake --install "$build" --prefix "$place/elsewhere" >"$place/install.log" ||
    fail "$(cat "$place/install.log")"
mv "$place/elsewhere" "$prefix"
for file in include/loam.h lib/libloam.a lib/libloam.so lib/libloam.so.$version bin/loam \
    share/man/man1/loam.1; do
    [ -n "$(find "$prefix" -path "$prefix/$file")" ] || fail "$file is not there"
done
[ "$("$prefix/bin/loam" --version)" = "loam $version" ] ||
    fail "loam --version says $("$prefix/bin/loam" --version)"

$cmake -S "$consumer" -B "$place/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    -DLOAM_WANTED="$version" >"$place/cmake.log" 2>&1 || fail "$(cat "$place/cmake.log")"
$cmake --build "$place/cmake" >>"$place/cmake.log" 2>&1 || fail "$(cat "$place/cmake.log")"
says_version "$place/cmake/consumer_loam"
says_version "$place/cmake/consumer_loam_static"
ldd "$place/cmake/consumer_loam" | grep -q "libloam.so.0 => $prefix" ||
    fail "consumer_loam does not use libloam.so.0"
ldd "$place/cmake/consumer_loam_static" | grep -q libloam && fail "consumer_loam_static uses libloam.so"
$cmake -S "$consumer" -B "$place/newer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    -DLOAM_WANTED=99.0 >"$place/newer.log" 2>&1 && fail "find_package(loam 99.0) was satisfied"

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name loam.pc)")
export PKG_CONFIG_PATH
[ "$(pkg-config --modversion loam)" = "$version" ] || fail "pkg-config says $(pkg-config --modversion loam)"
libdir=$(pkg-config --variable=libdir loam)
# shellcheck disable=SC2046
"$cc" -std=c11 $(pkg-config --cflags loam) "$consumer/consumer.c" $(pkg-config --libs loam) -o "$place/shared"
says_version env LD_LIBRARY_PATH="$libdir" "$place/shared"
# shellcheck disable=SC2046
"$cc" -std=c11 $(pkg-config --cflags loam) "$consumer/consumer.c" \
    $(pkg-config --static --libs loam | sed 's/-lloam/-l:libloam.a/') -o "$place/static"
says_version "$place/static"
