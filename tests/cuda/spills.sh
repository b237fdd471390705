#!/bin/sh
# SPDX-License-Identifier: MIT
# spills.sh LIST CUOBJDUMP OBJECT...: no kernel uses more stack, spills more, or has products of warpgroups
# one after another, but as LIST allows it. Read off the reports that tools/ptxas-log.sh left beside the
# objects.
set -eu
list=$1
shift 2
logs=
for object; do
    [ -s "$object.ptxas" ] || { echo "$object.ptxas is not there: build again"; exit 1; }
    logs="$logs $object.ptxas"
done
# shellcheck disable=SC2086
cat $logs | awk -v list="$list" '
    BEGIN {
        while ((getline line < list) > 0) {
            words = line ~ /^#/ ? 0 : split(line, part, " ")
            if (words == 2 && part[2] == "serialised") serialised[++exceptions] = part[1]
            if (words != 3) continue
            pattern[++rules] = part[1]; stack[rules] = part[2]; spill[rules] = part[3]
        }
    }
    /\(C75[0-9][0-9]\)/ {
        split($0, quoted, "\047"); allowed = 0
        for (i = 1; i <= exceptions; i++) if (quoted[2] ~ serialised[i]) allowed = 1
        if (!allowed) { print; bad = 1 }
    }
    /Compiling entry function/ { split($0, quoted, "\047"); kernel = quoted[2]; kernels++ }
    /bytes stack frame/ {
        uses = $1 + 0
        for (i = 1; i <= NF; i++) if ($i == "spill" && $(i + 1) ~ /^stores/) spills = $(i - 2) + 0
        may_stack = 0; may_spill = 0
        for (i = 1; i <= rules; i++) if (kernel ~ pattern[i]) {
            may_stack = stack[i]; may_spill = spill[i]; break
        }
        if (uses > may_stack || spills > may_spill) {
            printf "%s: %d bytes of stack, %d of spill stores; allowed %d and %d\n",
                kernel, uses, spills, may_stack, may_spill
            bad = 1
        }
    }
    END { printf "%d kernels looked at\n", kernels; exit bad || kernels == 0 }'
