#!/bin/sh
# SPDX-License-Identifier: MIT
# The demo: two regression tasks at test time, local regression of real tables, and small models that learn;
# leaves out/index.html. Options go to the larger task, and those of $RECALL to the training:
# RECALL='--steps 20' tools/demo.sh --sequences 4
set -eu

loam=${LOAM:-build/demo/loam}
out=out
tools=$(dirname "$0")
mkdir -p "$out/weights"

echo "1. A smooth map seen through noise"
"$loam" experiment smooth --out "$out/smooth" >"$out/smooth.txt"
sed '/^$/d; /^Results/d; s/^/   /' "$out/smooth.txt"

echo "2. Linear maps that change, without noise: the task of Zuo et al. 2025 (half a minute)"
"$loam" experiment regression --out "$out/regression" "$@" >"$out/regression.txt"
# The middle segment size is enough to read here; the file has all.
awk '/^Mean/ || $1 == "d" || $2 == 256 { print "   " $0 }' "$out/regression.txt"

echo "3. Local regression of real tables"
# Columns are named as the axes should be.
sed '1s/.*/latitude,longitude,depth (km),magnitude (Richter),stations that report it/' data/quakes.csv \
    >"$out/quakes-named.csv"
sed '1s/.*/time after the impact (ms),acceleration of the head (g)/' data/mcycle.csv >"$out/mcycle-named.csv"
quakes()
{
    "$loam" regress "$out/quakes-named.csv" --x 'magnitude (Richter)' --y 'stations that report it' \
        --bandwidth 0.24 "$@"
}
quakes --out "$out/quakes.csv" --plot "$out/quakes.svg" >"$out/quakes.txt"
quakes --grid 7 --out "$out/lag.csv" >"$out/lag.txt"
"$loam" regress "$out/mcycle-named.csv" --x 'time after the impact (ms)' --y 'acceleration of the head (g)' \
    --out "$out/mcycle.csv" --plot "$out/mcycle.svg" >"$out/mcycle.txt"
sed 's/^/   /' "$out/quakes.txt" "$out/mcycle.txt"

echo "4. Small models learn to find again what they have read (three quarters of a minute)"
# shellcheck disable=SC2086
"$loam" experiment recall --out "$out/recall" ${RECALL:-} >"$out/recall.txt"
sed -n '/^Accuracy/,/^$/{ /^$/d; s/^/   /; p; }' "$out/recall.txt"

cp docs/pictures/weights-*.svg "$out/weights/"
"$tools/page.sh" "$out" >"$out/index.html.new"
mv "$out/index.html.new" "$out/index.html"
echo
echo "Pictures and tables: file://$(pwd)/$out/index.html"
