#!/bin/sh
# SPDX-License-Identifier: MIT
# forced.sh LOAM ISA COMMAND...: runs the command with the library held back to one instruction set. Status 77
# where `loam info` does not name it: then the command would test a lesser one.
set -eu
loam=$1
LOAM_ISA=$2
export LOAM_ISA
shift 2
features=$("$loam" info | sed -n 's/^features *//p')
case "$LOAM_ISA $features " in
portable\ none:* | *" $LOAM_ISA "*) exec "$@" ;;
esac
echo "LOAM_ISA=$LOAM_ISA: this machine's features are: $features"
exit 77
