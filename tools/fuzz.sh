#!/bin/sh
# SPDX-License-Identifier: MIT
# fuzz.sh BUILD SECONDS: fuzzes each reader for so long, from the corpus in the repository. What it finds new
# it keeps in BUILD/found, and a crash leaves its input there.
set -eu
build=$1 seconds=$2
corpus=$(dirname "$0")/../tests/fuzz/corpus
for fuzzer in "$build"/tests/fuzz/fuzz_*; do
    [ -f "$fuzzer" ] || continue
    format=${fuzzer##*/fuzz_}
    found=$build/found/$format
    mkdir -p "$found"
    echo "fuzzing $format for $seconds seconds"
    "$fuzzer" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
        -print_final_stats=1 -artifact_prefix="$found/crash-" "$found" "$corpus/$format" 2>"$found.log" || {
        tail -n 40 "$found.log"
        echo "fuzz: $format failed; its input is in $found" >&2
        exit 1
    }
    grep -e number_of_executed_units -e new_units_added -e peak_rss "$found.log"
done
