#!/bin/sh
# SPDX-License-Identifier: MIT
# corpora.sh [OUT]: about 90 MB of English prose from Debian packages as tokens in the folder OUT, out/corpora
# by default. The packages are downloaded and unpacked beside it, in OUT.packages, and not installed; what is
# there already is not fetched again. LOAM is the program, CORPORA the names of the corpora where not all are
# wanted.
set -eu
loam=${LOAM:-build/loam} out=${1:-out/corpora}
files=$out.packages root=$out.packages/root made=$out.packages/made

# corpus, package, what it is read from: kind and folder in the package, or what made_CORPUS makes of it
table='
linux       linux-doc-6.1           :html=usr/share/doc/linux-doc-6.1/html
anarchism   anarchism               :html=usr/share/doc/anarchism/html
python      python3.11-doc          :html=usr/share/doc/python3.11/html
postgresql  postgresql-doc-15       :html=usr/share/doc/postgresql-doc-15/html
rust        rust-doc                :html=usr/share/doc/rust-doc/html
libreoffice libreoffice-help-en-us  :html=usr/share/libreoffice/help/en-US
git         git-doc                 :html=usr/share/doc/git-doc
handbook    debian-handbook         :html=usr/share/doc/debian-handbook/html/en-US
perl        perl-doc                :pod=usr/share/perl
gcide       dict-gcide              made
wordnet     wordnet-base            made
bible       bible-kjv-text          made
'
corpora=${CORPORA:-$(echo "$table" | awk '{print $1}')}

fail()
{
    echo "corpora: $1" >&2
    exit 1
}

# Downloaded and unpacked, by any user.
fetch()
{
    [ -e "$files/$1.unpacked" ] && return
    echo "Fetching $1"
    (cd "$files" && apt-get -q download "$1" >fetch.log 2>&1) ||
        fail "apt-get download $1: $(tail -n 1 "$files/fetch.log"); expected Debian 12, after apt-get update"
    dpkg-deb -x "$files/$1"_*.deb "$root"
    touch "$files/$1.unpacked"
}

version() { dpkg-deb -f "$files"/"$1"_*.deb Version; }

# An entry a line: it begins at the left margin after a blank line. Without braces and pronunciations.
made_gcide()
{
    gzip -dc <"$root/usr/share/dictd/gcide.dict.dz" | awk '
        function tell() { if (entry != "" && entry !~ /^00-database/) print entry }
        /^[^ ]/ && blank { tell(); entry = "" }
        { blank = $0 ~ /^[ \t]*$/; gsub(/[{}]/, ""); entry = entry " " $0 }
        END { tell() }
        ' | sed 's/\\[^\\]*\\//g; s/  */ /g; s/ \([,;.]\)/\1/g' >"$1/gcide.dictionary"
}

# "word, word (noun): gloss"
made_wordnet()
{
    for part in noun verb adj adv; do
        awk -v part=$part '!/^  / && (bar = index($0, " | ")) {
            words = ""
            split("0x" $4, digits, ""); n = 16 * (index("0123456789abcdef", digits[3]) - 1) \
                + index("0123456789abcdef", digits[4]) - 1
            for (i = 0; i < n; i++) words = words (i ? ", " : "") $(5 + 2 * i)
            gsub(/_/, " ", words); gsub(/\([a-z]+\)/, "", words)
            gloss = substr($0, bar + 3); sub(/ +$/, "", gloss)
            print words " (" part "): " gloss
        }' "$root/usr/share/wordnet/data.$part"
    done >"$1/wordnet.dictionary"
}

# A file for a chapter, its verses one after another.
made_bible()
{
    fetch bible-kjv
    mkdir -p "$1/bible"
    "$root/usr/bin/bible" -p "$root/usr/lib" -f gen1:1-rev22:21 | awk -v folder="$1/bible" '
        { reference = $1; sub(/:.*/, "", reference); $1 = "" }
        reference ~ /[0-9]$/ { print substr($0, 2) >>(folder "/" reference ".txt") }'
}

place_of() { echo "$table" | awk -v name="$1" '$1 == name { print $2, $3 }'; }

[ -x "$loam" ] || fail "there is no program $loam; expected that of make build, or LOAM"
for name in $corpora; do
    [ -n "$(place_of "$name")" ] ||
        fail "no corpus is called $name; expected $(echo "$table" | awk 'NF { printf "%s ", $1 }')"
done
mkdir -p "$root" "$made"
set --
packages=
for name in $corpora; do
    place=$(place_of "$name")
    package=${place% *} place=${place#* }
    fetch "$package"
    if [ "$place" = made ]; then
        rm -rf "${made:?}/$name"
        mkdir -p "$made/$name"
        "made_$name" "$made/$name"
        place="=$made/$name"
    else
        place=${place%%=*}=$root/${place#*=}
    fi
    set -- "$@" "$name$place"
    packages=$packages,$name="$package $(version "$package")"
done
# With this seed 1 to 4 % of each corpus are held out; with 0 nothing of anarchism is.
set -- "$@" --out "$out" --seed 3 --packages "${packages#,}"
echo "$loam lm data $*"
exec "$loam" lm data "$@"
