#!/bin/sh
# SPDX-License-Identifier: MIT
# sweep.sh PROGRAM SOURCE: the sweep in pieces, on what passes for a GPU and has no gnuplot, moved in between,
# then published elsewhere; it comes to the results of one piece.
set -eu
program=$1 source=$2
place=$(mktemp -d "${TMPDIR:-/tmp}/loam-sweep.XXXXXX")
trap 'rm -rf "$place"' EXIT
cd "$place"

fail()
{
    echo "sweep: $1"
    exit 1
}

# In the place of the program: few steps on the CPU. Of nvidia-smi: a name.
mkdir bin
cat >bin/loam <<END
#!/bin/sh
[ "\$3 \$4 \$5" = "--reduced --backend cuda" ] || exit 2
name=\$2
shift 5
case \$name in
probe) set -- --steps 4 --tests 2 "\$@" ;;
context) set -- --mechanism softmax,linear --steps 20 --tests 2 "\$@" ;;
*) set -- --mechanism softmax --steps 4 --tests 2 "\$@" ;;
esac
[ -z "\${NO_PLOT:-}" ] || PATH=/nowhere
exec "$program" experiment "\$name" "\$@"
END
printf '#!/bin/sh\necho "GPU of a test, 1.2.3"\n' >bin/nvidia-smi
chmod +x bin/loam bin/nvidia-smi
PATH=$place/bin:$PATH
LOAM=$place/bin/loam
export PATH LOAM

NO_PLOT=1 "$source/tools/sweep.sh" run 10 whole >whole.txt || fail "a sweep in one piece failed"
pieces=0
while [ ! -e there/swaps/index.html ]; do
    [ "$pieces" -lt 100 ] || fail "the sweep does not come to its end in pieces"
    [ ! -e there ] || mv there moved
    [ ! -e moved ] || mv moved there
    NO_PLOT=1 "$source/tools/sweep.sh" run 0.02 there >piece.txt || fail "piece $pieces failed"
    pieces=$((pieces + 1))
done
[ "$pieces" -gt 1 ] || fail "the sweep was one piece"
"$source/tools/sweep.sh" publish there published >/dev/null || fail "a sweep in pieces is not published"
"$source/tools/sweep.sh" publish whole twin >/dev/null || fail "a sweep in one piece is not published"
diff -r -x times.csv published twin || fail "pieces come to something else"
for name in context recall swaps probe; do
    grep -q "^## $name" published/README.md || fail "the page has no section $name"
    [ ! -e "published/$name/state" ] || fail "the state of $name is published"
done
pictures=$(find published -name '*.svg' | wc -l)
[ "$pictures" -ge 3 ] || fail "there are only $pictures pictures"
[ "$(grep -c '^!\[' published/README.md)" = "$pictures" ] || fail "the page does not show all pictures"
[ "$(grep -c '^held\|^not' published/README.md)" -ge 10 ] || fail "there are fewer than 10 verdicts"
grep -q 'one GPU of a test, driver 1.2.3;' published/README.md || fail "the page does not name the GPU"
"$source/tools/sweep.sh" publish nothing published 2>/dev/null && fail "what is not there is published"
exit 0
