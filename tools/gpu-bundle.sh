#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu-bundle.sh BUILD DIRECTORY [PROGRAM...]: what tools/gpu-check.sh needs, for a machine with a GPU that has
# neither this tree nor its libraries: the tests, the program, further ones of the build tree
# (tests/accuracy/loam-accuracy), the shared libraries that they use (but the C library's), the data of a
# trained model, tiny models and the script itself.
set -eu
build=$1 to=$2
shift 2
mkdir -p "$to/bin" "$to/lib" "$to/data"
for program in tests/check/loam-check tests/parallel/test_parallel_bits \
    tests/solver/test_solver_hard tests/cuda/test_cuda_launch \
    tests/cuda/test_cuda_contract tests/cuda/test_cuda_rope tests/cuda/test_cuda_large \
    tests/recurrent/test_recurrent_bits tests/recurrent/test_recurrent_rows \
    tests/train/test_train_cuda_data tests/train/test_train_cuda_trainer \
    tests/train/test_train_cuda_ops tests/train/test_train_cuda_weights \
    tests/train/test_train_cuda_model tests/train/test_train_cuda_features \
    tests/distill/test_distill_cuda tests/lm/test_lm_cuda tests/lm/test_lm_tune_cuda \
    loam tests/cli/test_cli_cuda \
    "$@"; do
    install -s "$build/$program" "$to/bin/"
done
ldd "$to"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread)\.so' | xargs -I '{}' cp -L '{}' "$to/lib/"
cp -R "$(dirname "$0")/../data/smollm2" "$to/data/"
cp -R "$(dirname "$0")/../tests/lm/data" "$to/data/lm"
cp "$(dirname "$0")/gpu-check.sh" "$to/"
du -sh "$to"
