#!/bin/sh
# SPDX-License-Identifier: MIT
# sweep.sh run MINUTES DIR: the reduced sweep of all four experiments with training on this machine's GPU, for
# so many minutes at most; the same command goes on where it ended, here or on a machine that was given DIR.
# Results of each experiment NAME are in DIR/NAME, its plan and its table in DIR/NAME.txt.
# sweep.sh publish DIR TO: draws what a machine without gnuplot left out of a sweep that is done, and puts all
# results into TO, with a page of tables and pictures.
set -eu
loam=${LOAM:-build/loam}

usage()
{
    sed -n '3,7s/^# //p' "$0" >&2
    exit 2
}

# The options that a state belongs to.
experiment()
{
    name=$1
    shift
    "$loam" experiment "$name" --reduced --backend cuda --out "$dir/$name" "$@" >"$dir/$name.txt"
}

run()
{
    end=$(($(date +%s) + $(awk "BEGIN { printf \"%d\", 60 * $1 }")))
    mkdir -p "$dir"
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >"$dir/device.txt"
    for name in probe context recall swaps; do
        left=$((end - $(date +%s)))
        [ ! -e "$dir/$name/index.html" ] || continue
        [ "$left" -gt 0 ] || break
        experiment "$name" --time "$(awk "BEGIN { print $left / 60 }")"
        cat "$dir/$name.txt"
        echo "$name: $(($(date +%s) - end + left)) s"
    done
    du -sh "$dir"
}

# Its table and its verdicts, without the plan before them; its pictures.
section()
{
    printf '\n## %s\n\n```\n' "$1"
    sed -n '/^Accuracy/,$p; /^Mean/,$p; /^arm /,$p' "$dir/$1.txt" |
        sed '/^There is no gnuplot/d; /^Results and/d' | cat -s
    echo '```'
    for picture in "$to/$1"/*.svg; do
        [ ! -e "$picture" ] || printf '\n![%s](%s)\n' "$(basename "$picture" .svg)" "$1/${picture##*/}"
    done
}

publish()
{
    mkdir -p "$to"
    for name in context recall swaps probe; do
        [ -e "$dir/$name/index.html" ] || { echo "sweep: $dir/$name is not done" >&2; exit 1; }
        [ ! -d "$dir/$name/state" ] || experiment "$name"
        rm -rf "${to:?}/$name"
        cp -R "$dir/$name" "$to/"
    done
    {
        echo '# The reduced sweep'
        printf "\n\`tools/sweep.sh run\` on one %s; what the tables say is in [training](../training.md).\n" \
            "$(sed 's/,/, driver/' "$dir/device.txt")"
        for name in context recall swaps probe; do section "$name"; done
    } >"$to/README.md"
    du -sh "$to"
}

[ $# = 3 ] || usage
case $1 in
run)
    dir=$3
    run "$2"
    ;;
publish)
    dir=$2 to=$3
    publish
    ;;
*) usage ;;
esac
