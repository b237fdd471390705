#!/bin/sh
# SPDX-License-Identifier: MIT
# pretrain.sh run MINUTES CORPUS DIR SIZE SEEDS MECHANISM...: pretrains models of `loam lm train` that differ
# in their attention and seed alone, on this machine's GPU, for so many minutes at most; the same command goes
# on where it ended. SEEDS: 1,2,3, at once. Each run is in DIR/SIZE-MECHANISM-SEED, its output beside it.
# pretrain.sh publish DIR TO: puts what the runs that are done say into TO: held.csv, loss.csv, pictures of
# validation by step, and a page of tables.
set -eu
loam=${LOAM:-build/loam}

usage()
{
    sed -n '3,7s/^# //p' "$0" >&2
    exit 2
}

run()
{
    minutes=$1 corpus=$2 dir=$3 size=$4 seeds=$(echo "$5" | tr , ' ')
    shift 5
    end=$(($(date +%s) + $(awk "BEGIN { printf \"%d\", 60 * $minutes }")))
    mkdir -p "$dir"
    for mechanism; do
        left=$((end - $(date +%s)))
        [ "$left" -gt 0 ] || break
        for seed in $seeds; do
            to=$dir/$size-$mechanism-$seed
            "$loam" lm train "$corpus" --out "$to" --size "$size" --mechanism "$mechanism" --seed "$seed" \
                --backend cuda --time "$(awk "BEGIN { print $left / 60 }")" >"$to.log" 2>&1 ||
                echo "pretrain: see $to.log" >&2 &
        done
        wait
        echo "$size $mechanism: $(($(date +%s) - end + left)) s"
    done
}

# One table of all runs that are done: size,mechanism,seed before the columns of their FILE.
gather()
{
    file=$1
    head=
    for held in "$dir"/*-*-*/held.csv; do
        from=${held%/held.csv}
        name=${from##*/}
        size=${name%%-*} seed=${name##*-} mechanism=${name#*-}
        [ -n "$head" ] || { head=1; echo "size,mechanism,seed,$(sed 1q "$from/$file")"; }
        sed "1d;s/^/$size,${mechanism%-*},$seed,/" "$from/$file"
    done
}

# Bits for each byte of each corpus and of all of them: means over seeds; of all also what is less than
# softmax's, seed by seed, with its standard error.
table()
{
    awk -F, -v size="$1" '
        function name(m) {
            return m == "lla" ? "LLA" : m == "fox" ? "FoX" : m == "parallax" ? "Parallax" : \
                   m == "gated-delta" ? "Gated DeltaNet" : m
        }
        NR > 1 && $1 == size {
            if (!($2 in seen)) { seen[$2] = 1; order[++kinds] = $2 }
            if (!($4 in corpus)) { corpus[$4] = ++corpora; title[corpora] = $4 }
            if (!(($2, $3) in total)) seeds[$2]++
            total[$2, $3] += $5 * $7 / log(2)
            bytes[$2, $3] += $6
            sum[$2, corpus[$4]] += $8
            if ($3 + 0 > most) most = $3 + 0
        }
        END {
            printf "| corpus |"
            for (k = 1; k <= kinds; k++) printf " %s |", name(order[k])
            printf "\n|---|"
            for (k = 1; k <= kinds; k++) printf "--:|"
            for (c = 1; c <= corpora; c++) {
                printf "\n| %s |", title[c]
                for (k = 1; k <= kinds; k++) printf " %.3f |", sum[order[k], c] / seeds[order[k]]
            }
            printf "\n| all, by bytes |"
            for (k = 1; k <= kinds; k++) {
                mean = 0
                for (s = 1; s <= most; s++)
                    if ((order[k], s) in total) mean += total[order[k], s] / bytes[order[k], s]
                printf " %.4f |", mean / seeds[order[k]]
            }
            printf "\n| minus softmax |"
            for (k = 1; k <= kinds; k++) {
                n = 0; mean = 0; square = 0
                for (s = 1; s <= most; s++)
                    if ((order[k], s) in total && ("softmax", s) in total) {
                        less = total[order[k], s] / bytes[order[k], s]
                        less -= total["softmax", s] / bytes["softmax", s]
                        n++; mean += less; square += less * less
                    }
                if (order[k] == "softmax" || !n) printf " |"
                else if (n == 1) printf " %+.4f |", mean
                else printf " %+.4f ± %.4f |", mean / n, sqrt((square - mean * mean / n) / (n * (n - 1)))
            }
            printf "\n"
        }' "$to/held.csv"
}

# Validation by step, the mean over seeds, less that of softmax.
picture()
{
    curves=$(mktemp -d)
    awk -F, -v size="$1" -v to="$curves" '
        NR > 1 && $1 == size { sum[$2, $4] += $6; n[$2, $4]++; kind[$2] = 1; step[$4] = 1 }
        END {
            for (m in kind) for (t in step)
                if ((m, t) in n && ("softmax", t) in n && m != "softmax")
                    print t, sum[m, t] / n[m, t] - sum["softmax", t] / n["softmax", t] | "sort -n >" to "/" m
        }' "$to/loss.csv"
    {
        echo "set terminal svg size 640,400 font 'sans,13' background 'white'"
        echo "set output '$to/loss-$1.svg'"
        echo "set xlabel 'step'; set ylabel 'validation, nats for each token, less those of softmax'"
        echo "set key outside right top; set grid; set xzeroaxis lw 1.5"
        printf 'plot '
        join=
        for curve in "$curves"/*; do
            printf "%s'%s' with lines lw 2 title '%s'" "$join" "$curve" "${curve##*/}"
            join=', '
        done
        echo
    } | gnuplot
    rm -rf "$curves"
}

publish()
{
    ls "$dir"/*-*-*/held.csv >/dev/null
    mkdir -p "$to"
    gather held.csv >"$to/held.csv"
    gather loss.csv >"$to/loss.csv"
    {
        echo '# Pretrained side by side'
        echo
        echo '`tools/pretrain.sh`; what the tables say is in' \
            '[language models](../../lm.md#pretrained-side-by-side).'
        for size in $(sed 1d "$to/held.csv" | cut -d, -f1 | sort -ru); do
            picture "$size"
            printf '\n## %s\n\nBits for each byte of held-out text, means over seeds; ' "$size"
            printf 'of the differences also a standard error:\n\n'
            table "$size"
            printf '\n![validation less that of softmax](loss-%s.svg)\n' "$size"
        done
    } >"$to/README.md"
}

case "$#:${1:-}" in
7:run | 8:run | 9:run | 1[0-9]:run)
    shift
    run "$@"
    ;;
3:publish)
    dir=$2 to=$3
    publish
    ;;
*) usage ;;
esac
