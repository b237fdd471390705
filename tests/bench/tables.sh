#!/bin/sh
# SPDX-License-Identifier: MIT
# tables.sh SCRIPT: bench/tables.sh writes tables between their markers, the same ones when run again, and
# leaves a page alone where something is wrong.
set -eu
script=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail()
{
    echo "$1"
    exit 1
}

header=shape,kernel,median_s,quartile1_s,quartile3_s,gflops,gbs,of_roof,times_softmax,iterations,exact,error
run=machine,features,threads,compiler,commit,date,sgemm_gflops,read_gbs,copy_gbs
where=CPU,avx2,2,gcc,abc,today,100.4,20,30
cat >one.csv <<END
$header,$run
soft-a,fast,0.0015,0.001,0.002,50.25,1.5,0.625,1,,,1.5e-06,$where
lla-a,fast,0.0300,0.029,0.031,40,0.1,0.5,20,12.5,0.25,,$where
soft-b,fast,0.0020,0.002,0.002,60,1.5,0.7,1,,,,$where
END
# Columns in another order, and some missing.
cat >two.csv <<END
kernel,shape,median_s,$run
other,soft-a,0.003,$where
END
cat >three.csv <<END
shape,kernel,median_s,gflops,gbs,loam_s,torch_over_loam,$run
soft-a,torch,0.003,25,0.75,0.0015,2,$where
soft-c,torch,0.007,25,0.75,0.0035,2,$where
END
cat >page.md <<'END'
before
<!-- bench: machine -->
<!-- /bench -->
<!-- bench: soft-[ab] -->
old
<!-- /bench -->
<!-- bench: pytorch soft-a -->
<!-- /bench -->
after
END

cat >four.csv <<END
shape,kernel,median_s,threads,gflops,error
soft-a,fast,0.0030,1,25,
soft-a,fast,0.0015,2,50,2e-06
soft-c,fast,0.0040,4,60,
END
cat >parts.csv <<END
part,size,by,gflops,of_peak,ns_each,machine
peak,0,little,50,0.5,,CPU
scores,64,little,40,0.4,,CPU
exp,4096,little,,,0.5,CPU
peak,0,big,100,1,,CPU
scores,64,big,90,0.9,,CPU
scores,64,other,70,0.7,,CPU
END
cat >profile.csv <<END
profiled,doing,share
soft-a,product: sums,0.6
soft-a,exp,0.25
END
cat >more.md <<'END'
<!-- bench: threads soft-.* -->
<!-- /bench -->
<!-- bench: parts -->
<!-- /bench -->
<!-- bench: profile -->
<!-- /bench -->
<!-- bench: machine -->
<!-- /bench -->
END
"$script" more.md four.csv parts.csv profile.csv
says()
{
    grep -qxF "$1" more.md || fail "no line '$1' in: $(cat more.md)"
}
says '| soft-a | fast | 3.000 | 2 | 1.500 | 2.00 | 50.0 |  |  |  | 2.0e-06 |'
says '| soft-c | fast |  | 4 | 4.000 |  | 60.0 |  |  |  |  |'
says '| part | unit | little | big | other | % of peak |'
says '| peak | GFLOP/s | 50.0 | 100.0 |  | 100 |'
says '| scores 64 | GFLOP/s | 40.0 | 90.0 | 70.0 | 90 |'
says '| exp | ns | 0.500 |  |  |  |'
says '| soft-a | product: sums 60 %, exp 25 % |'
! grep -q '^| profile.csv' more.md || fail "results that name no machine have a line"

"$script" page.md one.csv two.csv three.csv
grep -q '^before$' page.md && grep -q '^after$' page.md || fail "text beside the tables is lost"
! grep -q '^old$' page.md || fail "the old table is still there"
! grep -q 'lla-a' page.md || fail "a row that does not match is shown"
grep -q '^| soft-a | fast | 1.500 | 1.000 to 2.000 | 50.2 | 1.50 | 62 | 1.00 |  | 1.5e-06 |$' page.md ||
    fail "the row of soft-a is not as expected: $(grep soft-a page.md)"
grep -q '^| soft-a | other | 3.000 |' page.md || fail "the second file is not read by its own header"
grep -q '^| soft-a | 1.500 | 3.000 | 25.0 | 0.75 | 2.00 |$' page.md ||
    fail "the comparison is not as expected"
! grep -q '^| soft-c' page.md || fail "a comparison that does not match is shown"
grep -q '^| one.csv | CPU, avx2 | 2 | gcc | abc | today | 100 | 20.0 | 30.0 |$' page.md || fail "no machine"
order=$(grep -o '^| soft-[ab] | [a-z][a-z]*' page.md | tr -d '|\n')
[ "$order" = ' soft-a  fast soft-a  other soft-b  fast' ] || fail "the rows are, in order:$order"

cp page.md again.md
"$script" again.md one.csv two.csv three.csv
cmp -s page.md again.md || fail "a second run changes the page"

refused()
{
    cp "$1" copy.md
    if "$script" "$1" one.csv 2>errors; then fail "$2 is accepted"; fi
    cmp -s "$1" copy.md || fail "$2 changes the page"
    grep -q "$3" errors || fail "$2: the message is $(cat errors)"
    [ "$(find . -name "$1.*" | wc -l)" = 0 ] || fail "$2 leaves a temporary file"
}
printf 'nothing\n' >empty.md
refused empty.md "a page without tables" "no <!-- bench"
printf '<!-- bench: none-.* -->\n<!-- /bench -->\n' >none.md
refused none.md "a pattern without rows" "no result matches"
printf '<!-- bench: pytorch soft-.* -->\n<!-- /bench -->\n' >alone.md
"$script" alone.md one.csv
grep -q '^Not measured.$' alone.md || fail "a comparison that was not made is not told"
printf '<!-- bench: pytorch none-.* -->\n<!-- /bench -->\n' >none.md
if "$script" none.md one.csv three.csv 2>errors; then fail "a pattern without comparisons is accepted"; fi
grep -q "no comparison matches" errors || fail "a pattern without comparisons: the message is $(cat errors)"
printf '<!-- bench: parts -->\n<!-- /bench -->\n<!-- bench: profile -->\n<!-- /bench -->\n' >parts.md
"$script" parts.md one.csv
[ "$(grep -c '^Not measured.$' parts.md)" = 2 ] || fail "parts that were not measured are not told"
printf '<!-- bench: threads none-.* -->\n<!-- /bench -->\n' >threads.md
refused threads.md "a pattern of threads without rows" "no result matches"
printf '<!-- bench: soft-a -->\n' >open.md
refused open.md "a table without end" "does not end"
printf '<!-- /bench -->\n' >end.md
refused end.md "an end without table" "did not begin"
