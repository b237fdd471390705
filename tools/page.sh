#!/bin/sh
# SPDX-License-Identifier: MIT
# page.sh OUT: the page of the demo, on standard output, from what tools/demo.sh left in OUT. Whatever a
# caption says of a result, order and numbers, is read here from the tables of the same run.
set -eu
out=$1

# Awk functions for all that follows: names as in the pictures, numbers of three digits.
functions='
function name_of(e) {
    return e == "lla" ? "LLA" : e == "mesa" ? "MesaNet" : e == "linear" ? "linear attention" \
         : e == "delta" ? "DeltaNet" \
         : e == "gated-delta" ? "Gated DeltaNet" : e == "kda" ? "KDA" : e == "random" ? "a random guess" : e
}
function show(x,  p) {
    if (x >= 100) { p = 10 ^ (int(log(x) / log(10) + 1e-9) - 2); return sprintf("%d", int(x / p + 0.5) * p) }
    if (x >= 0.001) return sprintf("%.3g", x)
    p = int(log(x) / log(10)) - 1
    return sprintf("%.1f&#215;10<sup>&#8722;%d</sup>", x / 10 ^ p, -p)
}
NR == 1 { for (c = 1; c <= NF; c++) column[$c] = c; next }'

# ranking TABLE CONDITION COLUMN: "LLA 0.0105, softmax 0.0143, ...", from the least to the most.
ranking()
{
    awk -F, "$functions $2 { value[++n] = \$column[\"$3\"]; who[n] = name_of(\$column[\"estimator\"]) }
        END { for (i = 1; i <= n; i++) { least = 0
                  for (j = 1; j <= n; j++) if (!(j in done) && (!least || value[j] < value[least])) least = j
                  done[least]; printf \"%s%s %s\", (i > 1 ? \", \" : \"\"), who[least], show(value[least]) }
              exit !n }" "$1" || echo @missing@
}
smooth() { ranking "$out/smooth/summary.csv" "\$1 == $1" mse_late; }
segments() { ranking "$out/regression/summary.csv" "\$1 == $1 && \$2 == $2 && \$3 == \"$3\"" "$4"; }

# ratio INPUTS A B: the late error of A over that of B.
ratio()
{
    awk -F, "$functions \$1 == $1 { late[\$2] = \$column[\"mse_late\"] }
        END { print show(late[\"$2\"] / late[\"$3\"]) }" "$out/smooth/summary.csv" || echo @missing@
}
bandwidth()
{
    awk -F 'bandwidth ' "/^$1,$2,/ { print \$2 + 0; n++ } END { exit !n }" "$out/smooth/summary.csv" ||
        echo @missing@
}

# The best of each cell with the own pair hidden, and the place of LLA: rows are segment sizes, columns
# dimensions.
winners()
{
    awk -F, "$functions"'
        $3 == "hidden" {
            x = $column["mse"]; cell = $2 "," $1
            if (!($1 in seen_d)) { seen_d[$1]; d[++ds] = $1 }
            if (!($2 in seen_s)) { seen_s[$2]; s[++ss] = $2 }
            if (!(cell in least) || x < least[cell]) { least[cell] = x; best[cell] = name_of($4) }
            n[cell]++; value[cell, n[cell]] = x
            if ($4 == "lla") lla[cell] = x
        }
        END {
            printf "<tr><th>S</th>"
            for (j = 1; j <= ds; j++) printf "<th>d = %s</th>", d[j]
            print "</tr>"
            for (i = 1; i <= ss; i++) {
                printf "<tr><th>%s</th>", s[i]
                for (j = 1; j <= ds; j++) {
                    cell = s[i] "," d[j]; place = 1
                    for (k = 1; k <= n[cell]; k++) place += value[cell, k] < lla[cell]
                    printf "<td>%s %s", best[cell], show(least[cell])
                    if (place > 1) printf "<br/>LLA %s, place %d", show(lla[cell]), place
                    printf "</td>"
                }
                print "</tr>"
            }
            exit !ss
        }' "$out/regression/summary.csv" || echo @missing@
}

# The smallest and the largest magnitude: magnitude, local constant, local line.
lag()
{
    awk -F, "$functions"'
        {
            row[NR] = sprintf("at magnitude %.1f the constant says %.0f and the line %.0f", $1,
                              $column["constant_fit"], $column["linear_fit"])
        }
        END { print row[2] "; " row[NR]; exit NR < 3 }' "$out/lag.csv" || echo @missing@
}
left_out()
{
    awk '/^ *leave-one-out/ { print $(NF - 1) " for the constant, " $NF " for the line"; n++ }
        END { exit !n }' "$out/$1.txt" || echo @missing@
}

# When more than half of the answers were right, and how many in the end.
learned()
{
    awk -F, "$functions"'
        {
            m = $column["mechanism"]
            if (!(m in right)) who[++n] = m
            right[m] = $column["accuracy"]; steps = $column["step"]
            if (!(m in half) && right[m] > 0.5) half[m] = "at step " steps
        }
        END {
            for (i = 1; i <= n; i++) {
                m = who[i]
                printf "%s%s %s, %.1f %% in the end", (i > 1 ? "; " : ""), name_of(m),
                       (m in half ? half[m] : "not in " steps " steps"), 100 * right[m]
            }
            exit !n
        }' "$out/recall/runs.csv" || echo @missing@
}

escape() { sed 's/&/\&amp;/g; s/</\&lt;/g' "$1"; }
# picture FILE TEXT: an image that opens alone.
picture() { echo "<a href=\"$1\"><img src=\"$1\" alt=\"$2\" loading=\"lazy\"/></a>"; }
# weights NAME PAGE TITLE
weights()
{
    echo "<figure>$(picture "weights/weights-$1.svg" "weights of $3")\
<figcaption><a href=\"../docs/mechanisms/$2.md\">$3</a></figcaption></figure>"
}
gallery()
{
    # By d, then by S: as numbers.
    for file in $(cd "$out/regression" && printf '%s\n' "$1"-*-"$2".svg | sort -V); do
        picture "regression/$file" "$3, ${file%.svg}"
    done
}
swatch() { echo "<li><span style=\"background:$1\"></span>$2</li>"; }

page()
{
    cat <<HTML
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>Loam: attention as local regression</title>
<style>
  body { font: 17px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 1.5rem auto; padding: 0 1rem;
         color: #1e1e1e; background: #fff }
  a { color: #00558c } h2 { margin-top: 2.5rem } p, figcaption, li { max-width: 46rem }
  figure { margin: 1.5rem 0 } figcaption { margin-top: .5rem }
  img { width: 100%; height: auto; display: block }
  .row { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)) }
  .two { grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)) }
  .small { grid-template-columns: repeat(auto-fill, minmax(min(46%, 13rem), 1fr)) }
  .small figure { margin: 0 }
  pre, .wide { overflow-x: auto } pre { background: #f6f6f6; padding: 1rem; font-size: 13px }
  table { border-collapse: collapse }
  th, td { border: 1px solid #ccc; padding: .3rem .6rem; text-align: left; white-space: nowrap }
  .key { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem }
  .key span { display: inline-block; width: 1rem; height: 1rem; margin-right: .4rem; vertical-align: -.12rem }
</style>
</head>
<body>
<h1>Loam: attention as local regression</h1>
<p>Loam is a C library and a program for attention, the part of a language model in which each token looks
back at those before it. It treats attention as regression: from the pairs of a key and a value seen so far,
predict the value that belongs to a query.</p>
<p>Softmax attention fits a <em>constant</em> around each query, Local Linear Attention (LLA) fits a
<em>line</em> there; linear attention, the delta rules (DeltaNet, Gated DeltaNet, KDA) and MesaNet fit one
linear map to all that came before. This page compares them. Its pictures and numbers were made on this
machine just now, but for those of the last section, which come with Loam.</p>
<p>To read on: <a href="../README.md">how to use Loam</a>, <a href="../docs/mechanisms/README.md">a page for
each mechanism</a>, <a href="../include/loam.h">the C interface</a>, <a href="../docs/mathematics.md">the
mathematics</a>, <a href="../docs/experiment.md">these experiments</a>,
<a href="../docs/regress.md">regression of tables</a>, <a href="../docs/performance.md">how fast</a>,
<a href="../docs/accuracy.md">how exact</a>, <a href="../docs/gpu.md">GPUs</a>,
<a href="../docs/training.md">training</a>.</p>
<p>One colour is one kind of fit in all pictures:</p>
<ul class="key">
$(swatch '#0072B2' 'LLA, a local line')
$(swatch '#D55E00' 'softmax, a local constant')
$(swatch '#009E73' 'MesaNet')
$(swatch '#E69F00' 'linear attention')
$(swatch '#CC79A7' 'DeltaNet')
$(swatch '#56B4E9' 'Gated DeltaNet')
$(swatch '#882255' 'KDA')
$(swatch '#8C8C8C' 'data, or a random guess')
</ul>

<h2>1. A line against a constant, on real data</h2>
<div class="row two">
<figure>$(picture quakes.svg 'stations against magnitude, two fits')
<figcaption>How many stations report an earthquake near Fiji, by its magnitude (1000 earthquakes, one
bandwidth for both fits). At the ends all neighbours lie on one side, and their mean is pulled that way; a
line follows the slope: $(lag). Errors on left-out rows (root mean square):
$(left_out quakes).</figcaption></figure>
<figure>$(picture mcycle.svg 'acceleration against time, two fits')
<figcaption>Acceleration of the head in a helmet after an impact (133 readings). Each fit has the bandwidth
that predicts left-out readings best; their errors (root mean square):
$(left_out mcycle).</figcaption></figure>
</div>

<h2>2. A smooth map seen through noise: where a local fit is at home</h2>
<p>Keys are points with d inputs; a value is a smooth, bent function of the key, plus noise of half its
standard deviation. Each position predicts from the pairs before it, and the error is the distance from the
function without the noise, as a share of the function's variance: 1 is what saying nothing gets. Each
mechanism has the settings that did best on other sequences.</p>
<figure><div class="row">
$(for d in 2 4 8; do picture "smooth/smooth-d$d.svg" "error by position, smooth map of $d inputs"; done)
</div>
<figcaption>Over the last quarter of the positions, from the least error to the most:<br/>
d = 2: $(smooth 2).<br/>
d = 4: $(smooth 4).<br/>
d = 8: $(smooth 8).<br/>
<b>Why.</b> No linear map follows a bent function, so the errors of linear attention, the delta rules and
MesaNet stop falling at what the best linear map leaves over, however many pairs come. A local fit only needs
the function to be simple nearby, and each new pair brings nearer neighbours. A line removes the slope that
biases a mean of neighbours; so it can afford a wider neighbourhood, in which more noise averages out
(bandwidths chosen for d = 2, 4, 8: LLA $(bandwidth 2 lla), $(bandwidth 4 lla), $(bandwidth 8 lla); softmax
$(bandwidth 2 softmax), $(bandwidth 4 softmax), $(bandwidth 8 softmax)). In more dimensions neighbours are
farther away: LLA's error over MesaNet's is $(ratio 2 lla mesa), $(ratio 4 lla mesa) and $(ratio 8 lla mesa)
for d = 2, 4 and 8, and over softmax's $(ratio 2 lla softmax), $(ratio 4 lla softmax) and
$(ratio 8 lla softmax).</figcaption></figure>

<h2>3. Linear maps that change, without noise: what a delta rule is made for</h2>
<p>The task of Zuo et al. 2025. Within a segment of S pairs the value is exactly a linear map of the key, of d
channels each; at the next segment map and keys change. Settings are the paper's or fixed. The squared error
is summed over the channels.</p>
<figure><div class="row two">
$(picture regression/position-d16-S256-hidden.svg 'error by position, d = 16, own pair hidden')
$(picture regression/position-d64-S256-hidden.svg 'error by position, d = 64, own pair hidden')
</div>
<figcaption>Each position predicts from the pairs before it. In the first segment, from the least error to the
most:<br/>
d = 16: $(segments 16 256 hidden mse_first).<br/>
d = 64: $(segments 64 256 hidden mse_first).<br/>
In the segments after it:<br/>
d = 16: $(segments 16 256 hidden mse_later).<br/>
d = 64: $(segments 64 256 hidden mse_later).<br/>
<b>Why.</b> In a segment one linear map explains every pair exactly. A delta rule corrects its map by what
each pair shows to be wrong, so it approaches the new map and overwrites the old one; there is no noise that
it could learn by mistake. MesaNet solves for the one map that fits all pairs best, which is the right answer
as long as there is one map, and a compromise after the first change. A local fit pays for locality: it learns
from few pairs near the query, though far ones would tell as much.</figcaption></figure>
<p>The mechanism with the least error over all positions, and LLA where it is another (own pair hidden):</p>
<div class="wide"><table>
$(winners)
</table></div>
<figure><div class="row two">
$(gallery ratio hidden 'error over that of LLA')
</div>
<figcaption>The errors of the others over that of LLA, own pair hidden: a curve below 1 does better than LLA.
S is the length of a segment; the sequences have 1024 pairs, so at S = 1024 the map never
changes.</figcaption></figure>

<h2>4. The same, when the answer is in sight</h2>
<p>In the paper a position also sees its own pair, whose value is the one asked for.</p>
<figure><div class="row two">
$(picture regression/position-d16-S256-visible.svg 'error by position, d = 16, own pair visible')
$(picture regression/position-d64-S256-visible.svg 'error by position, d = 64, own pair visible')
</div>
<figcaption>Over all positions, from the least error to the most:<br/>
d = 16: $(segments 16 256 visible mse).<br/>
d = 64: $(segments 64 256 visible mse).<br/>
<b>Why.</b> The task is now to find one's own pair again. The delta rules have written it an instant ago, with
the strength that makes the map exact for this key: what is left of their error is rounding. The own pair's
weight in softmax and LLA grows with d, and so the two find it better. Linear attention and MesaNet give it no
such weight.</figcaption></figure>
<figure><div class="row two">
$(gallery ratio visible 'error over that of LLA')
</div>
<figcaption>The errors of the others over that of LLA, own pair visible: above 1 LLA does better, below 1 the
other.</figcaption></figure>
<details><summary>Error by position for every d and S</summary>
<p>Own pair hidden:</p>
<div class="row">
$(gallery position hidden 'error by position')
</div>
<p>Own pair visible:</p>
<div class="row">
$(gallery position visible 'error by position')
</div>
</details>

<h2>5. Models that learn to look things up</h2>
<p>Here queries, keys and values are learned. A small model, two layers of 64 channels with nothing but
attention in them, reads 16 words, among which are 4 pairs of a key and its value, and is to say the value
when a key comes again. All that differs is the attention.</p>
<figure><div class="row two">
$(picture recall/steps-L16-N4.svg 'accuracy against steps of training, softmax, LLA, Gated DeltaNet')
</div>
<figcaption>The test was right for more than half of the answers: $(learned).<br/>
<b>Why.</b> Which four words are values of a sequence is learned first; who knows no more is right a quarter
of the time. The plateau ends when the first layer tells each word what stands before it, and the second looks
for the word that stands after the key.</figcaption></figure>

<h2>6. Whom a token listens to</h2>
<p>The weights that each mechanism gives to the tokens before, on one example of 32 tokens: a cycle of eight
keys shown four times; each token asks for the key five tokens before it, which was also there 13, 21 and 29
tokens before. A row is a query, a column a key; the full colour is weight 1, black is -1. Recurrences that
overwrite keep the latest answer; those that sum or solve keep all.</p>
<div class="row small">
$(weights softmax softmax softmax; weights parallax parallax Parallax; weights lla lla LLA)
$(weights fox fox FoX; weights path path PaTH; weights rope rope RoPE)
$(weights linear linear 'linear attention'; weights retention retention RetNet)
$(weights ssd ssd 'Mamba-2 (SSD)'; weights gla gla GLA; weights delta delta DeltaNet)
$(weights gated_delta gated_delta 'Gated DeltaNet'; weights kda kda KDA; weights mesa mesa MesaNet)
</div>

<h2>The tables</h2>
<p>As files: <a href="smooth/summary.csv">smooth</a>, <a href="smooth/smooth.csv">by position</a>;
<a href="regression/summary.csv">segments</a>, <a href="regression/regression.csv">by position</a>;
<a href="quakes.csv">earthquakes</a>, <a href="mcycle.csv">helmet</a>;
<a href="recall/runs.csv">recall</a>.</p>
<pre>
$(escape "$out/smooth.txt")
$(escape "$out/regression.txt")
$(escape "$out/recall.txt")
</pre>
</body>
</html>
HTML
}

# A command that fails in a here-document ends nothing: look for its mark.
page | awk '{ print } /@missing@/ { missing = 1 } END { exit missing }'
