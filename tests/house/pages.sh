#!/bin/sh
# SPDX-License-Identifier: MIT
# pages.sh SOURCE WORK CC LIBRARY PROGRAM DATA: what the pages say can be done. In every page relative links
# lead to a file. In README.md and docs/mechanisms each C example runs, and so does each `loam` command;
# elsewhere C examples compile. Of commands that need a GPU, a language model or much time, only the options
# are read. The pages of the mechanisms have the same headings.
set -eu
source=$1 work=$2 cc=$3 library=$4 program=$5 data=$6
headings='Fit|When|Arrays|Python|C|Command line|Decode|Cost|Relations'
rm -rf "$work"
mkdir -p "$work"
cd "$source"
status=0
complain()
{
    echo "pages: $1"
    status=1
}

# Examples stand between ```c and ```; what they include pages_example.c has already.
examples_of()
{
    awk -v stem="$2" '
        /^```c$/ { file = stem "_" ++n ".c"; printf "" >file; next }
        /^```$/ { file = "" }
        file != "" && !/^#include/ { print >file }' "$1"
}
compile()
{
    example=$1
    shift
    "$cc" -std=c17 -Wall -Wextra -Werror -Iinclude "-DEXAMPLE=\"$example\"" tests/house/pages_example.c "$@"
}
check_examples()
{
    stem=$work/$(echo "$1" | tr '/.' '__')
    examples_of "$1" "$stem"
    for file in "$stem"_*.c; do
        [ -f "$file" ] || continue
        case $1 in
        README.md | docs/mechanisms/*)
            if ! compile "$file" "$library" "-Wl,-rpath,${library%/*}" -o "$file.run"; then
                complain "$1: an example does not compile"
            elif ! "$file.run"; then
                complain "$1: an example fails: ${file##*/}"
            fi
            ;;
        *) compile "$file" -fsyntax-only || complain "$1: an example does not compile" ;;
        esac
    done
}

# Indented lines that begin with loam or build/loam, continued after a backslash; comments go.
commands_of()
{
    awk '/^    (build\/)?loam / || on {
        sub(/^    (build\/)?/, "")
        on = sub(/\\$/, "")
        printf "%s%s", $0, on ? "" : "\n"
    }' "$1" | sed 's/ # .*//'
}
prepare()
{
    mkdir "$1"
    cd "$1"
    "$data"
    cp "$source/tests/cli/data/inputs.safetensors" m.safetensors
    ln -s "$source/data" data
    # Sequences of 5 and 11 tokens, as int64.
    printf '\223NUMPY\001\000v\000%-117s\n' "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }" \
        >cu.npy
    {
        printf '\000\000\000\000\000\000\000\000'
        printf '\005\000\000\000\000\000\000\000'
        printf '\020\000\000\000\000\000\000\000'
    } >>cu.npy
}
check_commands()
{
    place=$work/$(echo "$1" | tr '/.' '__').d
    commands_of "$1" >"$place.list"
    (
        prepare "$place"
        while read -r _ words; do
            case $words in
            bench* | experiment* | distill* | lm* | *cuda*) words="$words --help" ;;
            esac
            eval "set -- $words"
            "$program" "$@" >out.txt 2>err.txt </dev/null || { echo "loam $words: $(cat err.txt)"; exit 1; }
        done <"$place.list"
    ) || complain "$1: a command fails"
}

check_links()
{
    grep -o '](\([^)#]*\)[^)]*)' "$1" | sed 's/^](//; s/[#)].*//' | while read -r link; do
        case $link in
        '' | http:* | https:*) ;;
        *) [ -e "$(dirname "$1")/$link" ] || echo "$1: no file $link" ;;
        esac
    done
}

pages=$(find . -name '*.md' -not -path './build/*' -not -path './out/*' -not -path './.git/*' |
    sed 's,^\./,,' | sort)
for page in $pages; do
    links=$(check_links "$page")
    [ -z "$links" ] || complain "$links"
    check_examples "$page"
done
for page in README.md docs/mechanisms/*.md; do
    check_commands "$page"
    [ "${page%README.md}" = "$page" ] || continue
    found=$(sed -n 's/^## //p' "$page" | grep -xE "$headings" | paste -sd '|')
    [ "$found" = "$headings" ] || complain "$page: expected the headings $headings, found $found"
done
exit $status
