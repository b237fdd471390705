#!/bin/sh
# SPDX-License-Identifier: MIT
# The dependency law, read off the #include lines: a file may include its own layer and those that the law
# names after it, and nothing else of this tree. layers.sh [TREE]; by default the tree of this script.
set -eu
cd "${1:-$(dirname "$0")/..}"

# layer, then what it may include besides itself: just these rooms, not the rooms within them. A directory
# with a line of its own is no part of the one around it. The families of src never include each other. A file
# after a minus is of an allowed room, and yet not to be included: what serves kernels does not serve the
# reference that they are checked by.
law="
include
src/base  include
src/simd  include src/base
src/gpu   include src/base
src/exact
src/local include src/base
src/local/reference include src/base src/exact src/local -src/base/cholesky.h \
                    -src/local/decay.h -src/local/score.h -src/local/path_batch.h
src/local/cpu       include src/base src/simd src/local
src/local/cuda      include src/base src/gpu src/local
src/local/cuda/path include src/base src/gpu src/local src/local/cuda
src/local/hopper    include src/base src/gpu src/local src/local/cuda
src/recurrent include src/base
src/recurrent/reference   include src/base src/exact src/recurrent -src/base/cholesky.h
src/recurrent/cpu         include src/base src/simd src/recurrent
src/recurrent/cuda        include src/base src/gpu src/recurrent
src/recurrent/hopper      include src/base src/gpu src/recurrent
src/recurrent/hopper/mesa include src/base src/gpu src/recurrent/cuda src/recurrent/hopper
src/rope  include src/base src/simd src/gpu
src/projection include src/base random
src/core  include src/base src/gpu src/local src/recurrent
io        include
random
text      include io
corpus    include io random text
train     include io random train/cpu train/cuda
train/cpu include train
train/cuda include train
train/cuda/hopper include src/gpu train/cuda
lm        include io train text random
dof       include io random train lm
distill   include io random train lm dof
regress   io
cli       include io
cli/attend     include io cli
cli/bench      include io cli random
cli/experiment include io cli random
cli/training   include io cli cli/experiment train
cli/lm         include io cli cli/training text corpus lm train
cli/ridge      include io cli cli/experiment cli/training cli/lm text lm train
cli/graft      include io cli cli/experiment cli/training cli/lm cli/ridge text lm train
cli/tune       include io cli cli/experiment cli/training cli/lm cli/graft text lm train
cli/dof        include io cli cli/experiment cli/training cli/lm cli/ridge text train lm dof
cli/distill    include io cli cli/experiment cli/training cli/lm cli/ridge cli/graft cli/tune \
          text train lm dof distill
cli/regress    include io cli regress
tests     include io random train text corpus lm cli cli/attend cli/bench cli/experiment cli/training \
          cli/regress cli/ridge cli/graft cli/distill cli/tune dof distill regress
tests/simd include src/base src/simd tests
bench     include io cli cli/bench train random src/base src/simd
examples  include
python    include io regress
"

layers=$(echo "$law" | awk '{ printf "%s ", $1 }')

# "file: included path" of every quoted include; loam.h stands for include/loam.h.
includes()
{
    find "$1" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' -o -name '*.def' | sort |
        xargs -r awk '/^[ \t]*#[ \t]*include[ \t]*"/ {
            split($0, part, "\""); path = part[2] == "loam.h" ? "include/loam.h" : part[2]
            print FILENAME ":" FNR, path
        }'
}

for directory in $(find src -mindepth 1 -type d | sort); do
    if ! echo "$law" | grep -qE "^$directory( |$)"; then
        echo "layers: $directory is not in the law; add its line to tools/layers.sh"
        exit 1
    fi
done

broken=$(echo "$law" | while read -r layer allowed; do
    [ -d "$layer" ] || continue
    includes "$layer" | awk -v layer="$layer" -v allowed="$layer $allowed" -v layers="$layers" '
        # The innermost layer that a path lies in.
        function room(path,    i, found) {
            for (i = 1; i <= m; i++)
                if (index(path, others[i] "/") == 1 && length(others[i]) > length(found)) found = others[i]
            return found
        }
        BEGIN { n = split(allowed, may, " "); m = split(layers, others, " ") }
        {
            if (room($1) != layer) next
            for (i = 1; i <= n && may[i] != "-" $2; i++) continue
            for (k = 1; i > n && k <= n; k++) if (room($2) == may[k]) next
            print $1 ": " layer " must not include \"" $2 "\" (it may: " allowed ")"
        }'
done)
if [ -n "$broken" ]; then
    echo "$broken"
    exit 1
fi
