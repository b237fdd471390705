#!/bin/sh
# SPDX-License-Identifier: MIT
# demo.sh PROGRAM SOURCE: runs the demo with few sequences in a folder of its own; every picture and link of
# its page exists, page and pictures are well-formed, and a result that is missing is an error.
set -eu
program=$1 source=$2
place=$(mktemp -d "${TMPDIR:-/tmp}/loam-demo.XXXXXX")
trap 'rm -rf "$place"' EXIT
for name in README.md data docs include tools; do
    ln -s "$source/$name" "$place/$name"
done
cd "$place"

fail()
{
    echo "demo: $1"
    exit 1
}

# Tags that open close, in order; attributes are quoted; no stray < or &.
well_formed()
{
    awk '
        { text = text $0 "\n" }
        function wrong(why) { print FILENAME ": " why; failed = 1; exit 1 }
        END {
            if (failed) exit 1
            while ((start = index(text, "<!--")) > 0) {
                rest = substr(text, start + 4)
                if (!(end = index(rest, "-->"))) wrong("a comment without an end")
                text = substr(text, 1, start - 1) substr(rest, end + 3)
            }
            while ((start = index(text, "<")) > 0) {
                if (substr(text, 1, start - 1) ~ /&([^a-z#]|$)/) wrong("a stray &")
                text = substr(text, start + 1)
                if (!(end = index(text, ">"))) wrong("a tag without an end")
                tag = substr(text, 1, end - 1)
                text = substr(text, end + 1)
                if (tag ~ /^[!?]/) continue
                name = tag
                sub(/^\//, "", name)
                sub(/[ \t\n\/].*/, "", name)
                if (name !~ /^[A-Za-z][A-Za-z0-9:]*$/) wrong("a stray < before " substr(tag, 1, 20))
                if (tag ~ /^\//) {
                    if (depth == 0 || open[depth--] != name) wrong("</" name "> closes no such tag")
                    continue
                }
                attributes = tag
                gsub(/"[^"]*"|\047[^\047]*\047/, "", attributes)
                if (attributes ~ /["\047<]|=[^ \t\n\/]*[A-Za-z0-9]+[ \t\n\/]*$/)
                    wrong("an attribute of <" name "> without quotes")
                if (tag !~ /\/$/) open[++depth] = name
                if (depth == 1 && tag !~ /\/$/) root = name
            }
            if (depth > 0) wrong("<" open[depth] "> is never closed")
            if (root != wanted) wrong("the outermost tag is " root ", expected " wanted)
        }' wanted="$1" "$2"
}

LOAM=$program RECALL="--steps 20" tools/demo.sh --sequences 2 >demo.txt 2>errors.txt ||
    fail "the demo failed: $(cat errors.txt)"
[ ! -s errors.txt ] || fail "the demo complains: $(cat errors.txt)"
well_formed html out/index.html || fail "out/index.html is not well-formed"

# Names in the page, without what leads out of the machine.
names=$(grep -o '\(src\|href\)="[^"]*"' out/index.html | sed 's/^[a-z]*="//; s/"$//; s/#.*//' | sort -u)
for name in $names; do
    [ -s "out/$name" ] || fail "the page names $name, which is not there"
    case $name in
    *.svg) well_formed svg "out/$name" || fail "$name is not well-formed" ;;
    esac
done
pictures=$(echo "$names" | grep -c '\.svg$')
[ "$pictures" -eq 60 ] || fail "the page shows $pictures pictures, expected 60"
for file in "$source"/docs/pictures/*.svg; do
    well_formed svg "$file" || fail "$file is not well-formed"
done

# The captions: each ranking has all eight, and the least error stands first.
rankings=$(grep -c '^d = [0-9]*: .*<br/>$\|^d = [0-9]*: .*\.$' out/index.html)
[ "$rankings" -eq 9 ] || fail "the page has $rankings rankings, expected 9"
first=$(awk -F, '$1 == 2 && (!n++ || $6 < least) { least = $6; who = $2 } END { print who }' \
    out/smooth/summary.csv)
said=$(sed -n 's/^d = 2: \([^ ]*\) .*/\1/p' out/index.html | tr 'A-Z' 'a-z')
[ "$first" = "$said" ] || fail "the least error at d = 2 is that of $first, the page says $said"

# What the caption says of training is in its table.
last=$(awk -F, '$2 == "lla" { x = $10 } END { printf "%.1f", 100 * x }' out/recall/runs.csv)
grep -q "LLA not in 20 steps, $last % in the end" out/index.html ||
    fail "the caption of recall does not say $last %"

# A table without a cell that the page speaks of.
grep -v '^16,256,hidden' out/regression/summary.csv >short.csv
cp short.csv out/regression/summary.csv
tools/page.sh out >/dev/null 2>&1 && fail "a page without its results passed"
for broken in '<svg><g></svg>' '<svg>' '<svg a=b></svg>' '<svg>&</svg>' '<g></g>' '<svg></svg></svg>'; do
    echo "$broken" >broken.svg
    well_formed svg broken.svg >/dev/null && fail "$broken passed as well-formed"
done
exit 0
