#!/bin/sh
# SPDX-License-Identifier: MIT
# manual.sh PROGRAM PAGE VERSION: the manual page knows each command and each option that --help prints, under
# the heading of its command, tells of no other option, names this version and renders without a warning.
set -eu
program=$1 page=$2 version=$3
failed=0
complain()
{
    echo "$1"
    failed=1
}

grep -q "\"loam $version\"" "$page" || complain "$page does not say \"loam $version\" in its .TH line"

commands=$("$program" --help | awk '/^commands:/ { on = 1; next } on && NF == 0 { exit } on { print $1 }')
[ -n "$commands" ] || complain "$program --help lists no commands"
# An experiment has options of its own, and so has what is done with a language model.
experiments=$(printf 'experiment %s\\n' regression smooth rates memory context recall swaps probe ridge graft)
models=$(printf 'lm %s\\n' info eval generate embed data items train tune)
commands=$(echo "$commands" | sed "s/^experiment\$/${experiments%??}/; s/^lm\$/${models%??}/")
IFS='
'
for words in $commands; do
    unset IFS
    # shellcheck disable=SC2086
    printed=$("$program" $words --help | grep -o '^  --[a-z][a-z-]*' | tr -d ' ' | sort -u)
    # Roff writes a dash as \-.
    section=$(awk -v heading=".SS loam $words" '
        /^\.S[SH]/ { on = index($0, heading) == 1 } on' "$page" | sed 's/\\-/-/g')
    [ -n "$section" ] || complain "$page has no section '.SS loam $words'"
    written=$(echo "$section" | sed -n 's/^\.BI\{0,1\}R\{0,1\} "\{0,1\}\(--[a-z][a-z-]*\).*/\1/p' | sort -u)
    for option in $printed; do
        [ "$option" = --help ] && continue
        echo "$written" | grep -qx -e "$option" || complain "loam $words $option is not in $page"
    done
    for option in $written; do
        echo "$printed" | grep -qx -e "$option" ||
            complain "$page tells of loam $words $option, --help does not"
    done
done

if command -v man >/dev/null; then
    warnings=$(MANROFFOPT= MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null) ||
        failed=1
    [ -z "$warnings" ] || complain "$warnings"
fi
exit $failed
