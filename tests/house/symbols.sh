#!/bin/sh
# SPDX-License-Identifier: MIT
# symbols.sh NM SHARED STATIC HEADER: each library exports the functions that the header declares and no
# others.
set -eu
declared=$(grep '^LOAM_API' "$4" | grep -o 'loam_[a-z0-9_]*(' | tr -d '(' | sort)

check()
{
    if [ "$2" != "$declared" ]; then
        printf '%s exports:\n%s\n\ndeclared:\n%s\n' "$1" "$2" "$declared"
        exit 1
    fi
}
check "$2" "$("$1" -D --defined-only "$2" | awk '{print $3}' | sort)"
check "$3" "$("$1" -g --defined-only "$3" | awk 'NF == 3 {print $3}' | sort)"
