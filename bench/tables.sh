#!/bin/sh
# SPDX-License-Identifier: MIT
# tables.sh PAGE.md RESULTS.csv...: writes the tables of the page afresh from the CSV files of loam bench and
# bench/sdpa.py. A table stands between
#     <!-- bench: REGEX --> and <!-- /bench -->
# and shows the rows whose shape matches; `machine` instead of a pattern tells where and when they were measured, and
# `pytorch` shows what bench/sdpa.py compared.
# A page without markers, or a pattern without rows, is an error, and then the page stays as it is.
set -eu
if [ $# -lt 2 ]; then
    echo "usage: tables.sh PAGE.md RESULTS.csv..." >&2
    exit 2
fi
page=$1
shift
new=$(mktemp "$page.XXXXXX")
trap 'rm -f "$new"' EXIT

awk -F , -v page="$page" '
function fail(text) {
    print "tables.sh: " text > "/dev/stderr"
    failed = 1
    exit 1
}
function get(row, name) { return cell[row, name] }
function scaled(row, name, unit, format) {
    return get(row, name) == "" ? "" : sprintf(format, get(row, name) * unit)
}
function machine(    row, file, seen) {
    print "| results | machine | threads | compiler | commit | date | sgemm GFLOP/s | read GB/s | copy GB/s |"
    print "|---|---|---|---|---|---|---|---|---|"
    for (row = 1; row <= rows; row++) {
        file = source[row]
        if (file in seen) continue
        seen[file]
        print "| " file " | " get(row, "machine") ", " get(row, "features") " | " get(row, "threads") " | " \
            get(row, "compiler") " | " get(row, "commit") " | " get(row, "date") " | " \
            scaled(row, "sgemm_gflops", 1, "%.0f") " | " scaled(row, "read_gbs", 1, "%.1f") " | " \
            scaled(row, "copy_gbs", 1, "%.1f") " |"
    }
}
function line(row) {
    print "| " get(row, "shape") " | " get(row, "kernel") " | " scaled(row, "median_s", 1e3, "%.3f") " | " \
        scaled(row, "quartile1_s", 1e3, "%.3f") " to " scaled(row, "quartile3_s", 1e3, "%.3f") " | " \
        scaled(row, "gflops", 1, "%.1f") " | " scaled(row, "gbs", 1, "%.2f") " | " \
        scaled(row, "of_roof", 100, "%.0f") " | " scaled(row, "times_softmax", 1, "%.2f") " | " \
        scaled(row, "iterations", 1, "%.1f") " | " scaled(row, "error", 1, "%.1e") " |"
}
# Rows of one shape stand together, in the order in which the shapes were first seen.
function table(pattern,    at, row, shown) {
    print "| shape | kernel | median ms | quartiles | GFLOP/s | GB/s | % of roof | x softmax | iterations | error |"
    print "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for (at = 1; at <= shapes; at++) {
        if (order[at] !~ "^(" pattern ")$") continue
        for (row = 1; row <= rows; row++)
            if (get(row, "shape") == order[at] && get(row, "loam_s") == "") { line(row); shown++ }
    }
    if (!shown) fail("no result matches the pattern " pattern)
}
function pytorch(    row, compared) {
    for (row = 1; row <= rows; row++) compared += get(row, "loam_s") != ""
    if (!compared) {
        print "Not measured."
        return
    }
    print "| shape | Loam ms | PyTorch ms | PyTorch GFLOP/s | PyTorch GB/s | PyTorch / Loam |"
    print "|---|--:|--:|--:|--:|--:|"
    for (row = 1; row <= rows; row++) {
        if (get(row, "loam_s") == "") continue
        print "| " get(row, "shape") " | " scaled(row, "loam_s", 1e3, "%.3f") " | " \
            scaled(row, "median_s", 1e3, "%.3f") " | " scaled(row, "gflops", 1, "%.1f") " | " \
            scaled(row, "gbs", 1, "%.2f") " | " scaled(row, "torch_over_loam", 1, "%.2f") " |"
    }
}
FILENAME != page && FNR == 1 {
    delete name
    for (c = 1; c <= NF; c++) name[c] = $c
    next
}
FILENAME != page {
    rows++
    source[rows] = FILENAME
    sub(/.*\//, "", source[rows])
    for (c = 1; c <= NF; c++) cell[rows, name[c]] = $c
    shape = get(rows, "shape")
    if (!(shape in known)) { known[shape]; order[++shapes] = shape }
    next
}
/^<!-- bench: .* -->$/ {
    if (inside) fail(page ":" FNR ": a table begins within another")
    inside = ++tables
    pattern = substr($0, 13, length($0) - 16)
    print
    if (pattern == "machine") machine()
    else if (pattern == "pytorch") pytorch()
    else table(pattern)
    next
}
/^<!-- \/bench -->$/ {
    if (!inside) fail(page ":" FNR ": a table ends that did not begin")
    inside = 0
}
!inside { print }
END {
    if (failed) exit 1
    if (inside) fail(page ": the last table does not end")
    if (!tables) fail(page ": no <!-- bench: ... --> in it")
}' "$@" "$page" >"$new"
chmod --reference="$page" "$new"
mv "$new" "$page"
