#!/bin/sh
# SPDX-License-Identifier: MIT
# pretrain.sh SOURCE: runs of a program that stands for `loam lm train` are started with the options of one
# size, go on where they ended, and their table has means, differences and errors as reckoned by hand.
set -eu
source=$1
place=$(mktemp -d "${TMPDIR:-/tmp}/loam-pretrain.XXXXXX")
trap 'rm -rf "$place"' EXIT
cd "$place"

fail()
{
    echo "pretrain: $1"
    exit 1
}

# Two corpora; a nat for each token with softmax, seed / 100 less with LLA; eight tokens on eight bytes.
cat >loam <<'END'
#!/bin/sh
[ "$1 $2 $3 $4 $6 $8 ${10}" = "lm train corpus --out --size --mechanism --seed" ] || exit 2
[ "${12} ${13} ${14}" = "--backend cuda --time" ] || exit 2
to=$5 mechanism=$9 seed=${11}
mkdir -p "$to"
echo "$7 $mechanism $seed" >>"$to/started"
[ "$mechanism" != broken ] || exit 3
nll=$(awk "BEGIN { print log(2) * (1 - (\"$mechanism\" == \"lla\") * $seed / 100) }")
echo corpus,tokens,bytes,nll,bits_per_byte >"$to/held.csv"
for corpus in a b; do
    echo "$corpus,8,8,$nll,$(awk "BEGIN { print $nll / log(2) }")" >>"$to/held.csv"
done
printf 'step,train,validation,gradient\n50,3,2.5,1\n100,2,%s,1\n' "$nll" >"$to/loss.csv"
END
chmod +x loam
LOAM=$place/loam
export LOAM

for piece in 1 2; do
    "$source/tools/pretrain.sh" run 1 corpus runs tiny 1,2,3 softmax lla >"out$piece" || fail "a run failed"
done
[ "$(cat runs/tiny-lla-3/started)" = "$(printf 'tiny lla 3\ntiny lla 3')" ] ||
    fail "a run was not started twice"
"$source/tools/pretrain.sh" run 1 corpus runs tiny 1 broken 2>&1 | grep -q 'see runs/tiny-broken-1.log' ||
    fail "a failure is not told"
"$source/tools/pretrain.sh" run 0 corpus runs tiny 4 softmax
[ ! -e runs/tiny-softmax-4 ] || fail "a run starts when no time is left"

"$source/tools/pretrain.sh" publish runs page || fail "there is no page"
for line in '| corpus | LLA | softmax |' '| a | 0.980 | 1.000 |' '| all, by bytes | 0.9800 | 1.0000 |' \
    '| minus softmax | -0.0200 ± 0.0058 | |'; do
    grep -qxF "$line" page/README.md || fail "the page lacks $line"
done
[ "$(wc -l <page/held.csv)" = 13 ] || fail "held.csv has not all rows"
[ "$(wc -l <page/loss.csv)" = 13 ] || fail "loss.csv has not all rows"
grep -q '<svg' page/loss-tiny.svg || fail "there is no picture"
"$source/tools/pretrain.sh" run 1 corpus runs 2>/dev/null && fail "a call without mechanisms is taken"
"$source/tools/pretrain.sh" publish nothing elsewhere 2>/dev/null && fail "what is not there is published"
[ ! -e elsewhere ] || fail "half a page is left"
exit 0
