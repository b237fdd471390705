#!/bin/sh
# SPDX-License-Identifier: MIT
# coverage.sh BUILD: runs the tests of a build made with -DLOAM_COVERAGE=ON, prints the covered lines and
# branches of the library and the readers, and fails below the bounds.
set -eu
lines=95
branches=85
build=$1
root=$(cd "$(dirname "$0")/.." && pwd)

find "$build" -name '*.gcda' -delete
ctest --test-dir "$build" --output-on-failure --label-exclude 'house|accuracy'
gcovr --root "$root" --object-directory "$build" --filter "$root/src/" --filter "$root/io/" \
    --exclude-unreachable-branches --html-details "$build/coverage.html" --print-summary \
    --fail-under-line $lines --fail-under-branch $branches
echo "the same by file and line: $build/coverage.html"
