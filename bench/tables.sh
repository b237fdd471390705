#!/bin/sh
# SPDX-License-Identifier: MIT
# tables.sh PAGE.md RESULTS.csv...: writes the tables of the page afresh from the CSV files of loam bench,
# loam-parts, bench/sdpa.py and bench/hot_spots.py. A table stands between
#     <!-- bench: REGEX --> and <!-- /bench -->
# and shows the rows whose shape matches; `threads REGEX` shows them with one thread beside more. Instead of a
# pattern, `machine` tells where and when the results were measured, `pytorch REGEX` shows what bench/sdpa.py
# compared, `parts` what loam-parts measured, and `profile` what bench/hot_spots.py did. A page without
# markers, or a pattern without rows, is an error, and then the page stays as it is.
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
        if (file in seen || get(row, "machine") == "") continue
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
    print "| shape | kernel | median ms | quartiles | GFLOP/s | GB/s | % of roof | x softmax | iterations " \
          "| error |"
    print "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for (at = 1; at <= shapes; at++) {
        if (order[at] !~ "^(" pattern ")$") continue
        for (row = 1; row <= rows; row++)
            if (get(row, "shape") == order[at] && get(row, "loam_s") == "") { line(row); shown++ }
    }
    if (!shown) fail("no result matches the pattern " pattern)
}
function pytorch(pattern,    row, compared, shown) {
    for (row = 1; row <= rows; row++) compared += get(row, "loam_s") != ""
    if (!compared) {
        print "Not measured."
        return
    }
    print "| shape | Loam ms | PyTorch ms | PyTorch GFLOP/s | PyTorch GB/s | PyTorch / Loam |"
    print "|---|--:|--:|--:|--:|--:|"
    for (row = 1; row <= rows; row++) {
        if (get(row, "loam_s") == "" || get(row, "shape") !~ "^(" pattern ")$") continue
        shown++
        print "| " get(row, "shape") " | " scaled(row, "loam_s", 1e3, "%.3f") " | " \
            scaled(row, "median_s", 1e3, "%.3f") " | " scaled(row, "gflops", 1, "%.1f") " | " \
            scaled(row, "gbs", 1, "%.2f") " | " scaled(row, "torch_over_loam", 1, "%.2f") " |"
    }
    if (!shown) fail("no comparison matches the pattern " pattern)
}
# One line for each kernel of a shape: the run on one thread, and the one on most.
function threads(pattern,    at, row, one, most, key, order_of, shown) {
    print "| shape | kernel | 1 thread ms | threads | ms | speed-up | GFLOP/s | GB/s | % of roof " \
          "| iterations | error |"
    print "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for (row = 1; row <= rows; row++) {
        if (get(row, "shape") !~ "^(" pattern ")$") continue
        key = get(row, "shape") "," get(row, "kernel")
        if (!(key in most)) order_of[++shown] = key
        if (get(row, "threads") == 1) one[key] = row
        if (!(key in most) || get(row, "threads") > get(most[key], "threads")) most[key] = row
    }
    for (at = 1; at <= shown; at++) {
        key = order_of[at]
        row = most[key]
        print "| " get(row, "shape") " | " get(row, "kernel") " | " \
            (key in one ? scaled(one[key], "median_s", 1e3, "%.3f") : "") " | " get(row, "threads") " | " \
            scaled(row, "median_s", 1e3, "%.3f") " | " \
            (key in one ? sprintf("%.2f", get(one[key], "median_s") / get(row, "median_s")) : "") " | " \
            scaled(row, "gflops", 1, "%.1f") " | " scaled(row, "gbs", 1, "%.2f") " | " \
            scaled(row, "of_roof", 100, "%.0f") " | " scaled(row, "iterations", 1, "%.1f") " | " \
            scaled(row, "error", 1, "%.1e") " |"
    }
    if (!shown) fail("no result matches the pattern " pattern)
}
# A column for each instruction set and library; the share of the peak is that of the last instruction set.
function parts(    row, key, by, columns, column, name_of, known_part, part_row, unit, last, lines,
                   order_of, c, at, text) {
    for (row = 1; row <= rows; row++) {
        if (get(row, "part") == "") continue
        by = get(row, "by")
        if (!(by in column)) { column[by]; name_of[++columns] = by }
        if (get(row, "part") == "peak") last = by
        key = get(row, "part") (get(row, "gflops") == "" || get(row, "size") == 0 ? "" : " " get(row, "size"))
        if (!(key in known_part)) { known_part[key]; order_of[++lines] = key }
        part_row[key, by] = row
        unit[key] = get(row, "gflops") == "" ? "ns" : "GFLOP/s"
    }
    if (!lines) {
        print "Not measured."
        return
    }
    text = "| part | unit |"
    for (c = 1; c <= columns; c++) text = text " " name_of[c] " |"
    print text " % of peak |"
    text = "|---|---|"
    for (c = 1; c <= columns; c++) text = text "--:|"
    print text "--:|"
    for (at = 1; at <= lines; at++) {
        key = order_of[at]
        text = ""
        for (c = 1; c <= columns; c++) {
            row = part_row[key, name_of[c]]
            text = text " " (!row ? "" : unit[key] == "ns" ? scaled(row, "ns_each", 1, "%.3f") \
                : scaled(row, "gflops", 1, "%.1f")) " |"
        }
        row = part_row[key, last]
        print "| " key " | " unit[key] " |" text " " \
            (row ? scaled(row, "of_peak", 100, "%.0f") : "") " |"
    }
}
function profile(    row, key, at, lines, order_of, told) {
    for (row = 1; row <= rows; row++) {
        key = get(row, "profiled")
        if (key == "") continue
        if (!(key in told)) order_of[++lines] = key
        told[key] = told[key] (key in told && told[key] != "" ? ", " : "") get(row, "doing") " " \
            scaled(row, "share", 100, "%.0f") " %"
    }
    if (!lines) {
        print "Not measured."
        return
    }
    print "| shape | where the time goes |"
    print "|---|---|"
    for (at = 1; at <= lines; at++) print "| " order_of[at] " | " told[order_of[at]] " |"
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
    if (shape != "" && !(shape in known)) { known[shape]; order[++shapes] = shape }
    next
}
/^<!-- bench: .* -->$/ {
    if (inside) fail(page ":" FNR ": a table begins within another")
    inside = ++tables
    pattern = substr($0, 13, length($0) - 16)
    print
    if (pattern == "machine") machine()
    else if (pattern == "parts") parts()
    else if (pattern == "profile") profile()
    else if (sub(/^threads /, "", pattern)) threads(pattern)
    else if (sub(/^pytorch /, "", pattern)) pytorch(pattern)
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
