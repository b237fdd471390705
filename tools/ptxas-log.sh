#!/bin/sh
# SPDX-License-Identifier: MIT
# ptxas-log.sh NVCC ARGUMENT...: runs the CUDA compiler; what ptxas says of registers, stack and spills goes
# to OBJECT.ptxas, where a test reads it (tests/cuda/code.sh), everything else to stderr. Set before the
# compiler by CMake.
set -u
object=
last=
for word; do
    [ "$last" = -o ] && object=$word
    last=$word
done
said=$(mktemp "${TMPDIR:-/tmp}/loam-ptxas.XXXXXX")
trap 'rm -f "$said"' EXIT
status=0
"$@" 2>"$said" || status=$?
report='^ptxas info|^ *[0-9]+ bytes stack frame|^ptxas *: *info'
if [ -n "$object" ]; then
    grep -E "$report" "$said" >"$object.ptxas"
fi
grep -vE "$report" "$said" >&2
exit "$status"
