#!/bin/sh
# SPDX-License-Identifier: MIT
# instructions.sh LIST CUOBJDUMP OBJECT...: the kernels have the instructions that LIST says. 77: there is no
# cuobjdump, which not every toolkit has (docs/gpu.md says where else it is).
set -eu
list=$1 cuobjdump=$2
shift 2
if ! command -v "$cuobjdump" >/dev/null; then
    echo "skipped: no cuobjdump"
    exit 77
fi
code=$(mktemp "${TMPDIR:-/tmp}/loam-sass.XXXXXX")
trap 'rm -f "$code"' EXIT
for object; do
    "$cuobjdump" -sass "$object" >>"$code" || {
        echo "skipped: cuobjdump cannot disassemble here (it needs nvdisasm)"
        exit 77
    }
done
awk -v list="$list" '
    BEGIN {
        while ((getline line < list) > 0) {
            if (line ~ /^#/ || line ~ /^ *$/) continue
            rule[++rules] = line
        }
    }
    # "Function : NAME", then lines "/*0010*/  INSTRUCTION operands ;"
    /Function : / { kernel = $NF; name[++kernels] = kernel; next }
    kernel != "" && match($0, /^ *\/\*[0-9a-f]+\*\/ +(@!?U?P[0-9T]+ +)?[A-Z][A-Z0-9_.]*/) {
        word = substr($0, RSTART, RLENGTH); sub(/.* /, "", word)
        if (!((kernel, word) in seen)) { seen[kernel, word] = 1; words[kernel] = words[kernel] " " word " " }
    }
    END {
        for (r = 1; r <= rules; r++) {
            n = split(rule[r], part, " "); matched = 0
            for (k = 1; k <= kernels; k++) {
                if (name[k] !~ part[1]) continue
                matched++
                for (i = 2; i <= n; i++) if (words[name[k]] !~ (" " part[i])) {
                    print name[k] ": no " part[i]; bad = 1
                }
            }
            if (!matched) { print "no kernel is named " part[1]; bad = 1 }
        }
        printf "%d kernels, %d rules\n", kernels, rules
        exit bad || kernels == 0
    }' "$code"
