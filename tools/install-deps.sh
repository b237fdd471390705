#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs the Debian packages that a task needs and that are missing: tools/install-deps.sh
# [build|test|demo|demo-lm|lint|wheel] Where all is there it does nothing, offline.
set -eu

# package, the tasks that need it, and why.
table='
gcc                 build,test,demo,lint   compiles everything
libc6-dev           build,test,demo,lint   the C library
make                build,test,demo,lint   runs the Makefile
cmake               build,test,demo,lint   configures the build
ninja-build         build,test,demo,lint   runs the build
pkg-config          build,test,demo,lint   finds the libraries below
libjansson-dev      build,test,demo,lint   JSON: headers of .safetensors, tokenizers, results of experiments
libpcre2-dev        build,test,demo,lint   splits texts by the patterns of tokenizers
libutf8proc-dev     build,test,demo,lint   Unicode: normal forms, classes of characters, lower case
libcsv-dev          build,test,demo,lint   reads tables for loam regress
librandom123-dev    build,test,demo,lint   random numbers by counter: the same for any number of threads
libopenblas-dev     build,test,demo,lint   matrix products in experiments and training, the yardstick of speed
liblapacke-dev      build,test,demo,lint   factorisations in the experiments and the tests
gnuplot-nox         build,test,demo,lint   draws the pictures
libcmocka-dev       test,lint              the test framework
g++                 test,lint              compiles the public header as C++
man-db              test,lint              renders the manual page
python3             test,lint              reads the sources for tools/house.py
python3-dev         test,lint              the headers of Python, for loam_attn
python3-numpy       test                   the arrays of loam_attn
python3-pytest      test                   runs python/tests
python3-venv        wheel                  the environments of the wheel and of the documentation
clang               lint                   the second compiler, ThreadSanitizer and libFuzzer
libclang-rt-14-dev  lint                   run-time libraries of the sanitizers
libomp-14-dev       lint                   OpenMP for clang, with Archer that explains it to ThreadSanitizer
clang-format        lint                   checks the look
clang-tidy          lint                   finds what warnings miss
gcovr               lint                   counts covered lines and branches
mmdebstrap          lint                   makes the bare Debian of tools/bare.sh
python3-pip         demo-lm                fetches a language model by its package
'

task=${1:-build}
case $task in
build | test | demo | demo-lm | lint | wheel) ;;
*)
    echo "install-deps: unknown task '$task', expected build, test, demo, demo-lm, lint or wheel" >&2
    exit 2
    ;;
esac

fail()
{
    echo "install-deps: $1" >&2
    exit 1
}

rows=$(printf '%s' "$table" | awk -v task="$task" '$2 ~ task')
if ! command -v dpkg-query >/dev/null; then
    echo "install-deps: no Debian package manager here; these must be there already:" \
        $(echo "$rows" | awk '{print $1}')
    exit 0
fi
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' | awk '$1 == "installed" {print $2}')
missing=$(echo "$rows" | awk -v installed="$installed" '
    BEGIN { n = split(installed, names, "\n"); for (i = 1; i <= n; i++) have[names[i]] = 1 }
    !($1 in have)')
[ -n "$missing" ] || exit 0

echo "Loam needs these Debian packages (${task}); installing:"
echo "$missing" | awk '{ name = $1; $1 = $2 = ""; printf "  %-19s %s\n", name, substr($0, 3) }'

if [ "$(id -u)" = 0 ]; then
    sudo=
elif command -v sudo >/dev/null; then
    sudo=sudo
else
    fail "not root and no sudo: run as root: apt-get install $(echo "$missing" | awk '{printf "%s ", $1}')"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt()
{
    # The lock may be held by a machine that has just started.
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1
}
names=$(echo "$missing" | awk '{print $1}')
# The package lists of a fresh machine are empty or old, so a first failure only means: update them.
# shellcheck disable=SC2086
if ! apt install -y --no-install-recommends $names; then
    apt update || fail "apt-get update failed: $(grep -m 1 '^[EW]:' "$log" || tail -n 1 "$log")"
    apt install -y --no-install-recommends $names ||
        fail "apt-get install failed: $(grep -m 1 '^E:' "$log" || tail -n 1 "$log")"
fi
