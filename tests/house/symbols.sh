#!/bin/sh
# SPDX-License-Identifier: MIT
# symbols.sh NM LIBRARY HEADER: the shared library exports the functions that the header declares and no others.
set -eu
exported=$("$1" -D --defined-only "$2" | awk '{print $3}' | sort)
declared=$(grep '^LOAM_API' "$3" | grep -o 'loam_[a-z0-9_]*(' | tr -d '(' | sort)
if [ "$exported" != "$declared" ]; then
    printf 'exported:\n%s\ndeclared:\n%s\n' "$exported" "$declared"
    exit 1
fi
