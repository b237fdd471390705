#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu-check.sh [-n CASES] [-s SEED] [-q] [DIRECTORY]: all tests of the CUDA back end on this machine's GPU,
# then compute-sanitizer's four tools on small cases, and one table. DIRECTORY is a build tree, by default
# build, or what tools/gpu-bundle.sh made of one elsewhere. -q leaves out the large arrays and the accuracy
# table (which needs loam-accuracy there), and does fewer cases under the sanitizer. Logs go to
# DIRECTORY/gpu-check. Exit status: 0 all is well, 1 something is not, 77 no GPU.
set -u
cases=300 seed=1 quick=0
while getopts n:s:q option; do
    case $option in
        n) cases=$OPTARG ;;
        s) seed=$OPTARG ;;
        q) quick=1 ;;
        *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
place=$(cd "${1:-build}" && pwd)
logs=$place/gpu-check
mkdir -p "$logs"
[ -d "$place/lib" ] && export LD_LIBRARY_PATH="$place/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
[ -d "$place/data" ] && export LOAM_TEST_DATA="$place/data"
OMP_WAIT_POLICY=passive
export OMP_WAIT_POLICY

# The program NAME in the bundle, or in the build tree; not in another build inside it.
program()
{
    find "$place/bin/$1" "$place/$1" "$place/tests" -maxdepth 2 -type f -name "$1" 2>/dev/null | head -n 1
}

if ! "$(program loam-check)" --list -k cuda >"$logs/rows"; then
    echo "no row of CUDA can run here"
    exit 77
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

failed=0
# step NAME COMMAND...: one line of the table; 77 is no failure.
step()
{
    name=$1
    shift
    begun=$(date +%s)
    status=0
    "$@" >"$logs/$name.log" 2>&1 || status=$?
    case $status in
        0) verdict=ok ;;
        77) verdict=skipped ;;
        *) verdict="FAILED ($status)" failed=1 ;;
    esac
    printf '%-34s %-12s %4d s   %s\n' "$name" "$verdict" "$(($(date +%s) - begun))" \
        "$(tail -n 1 "$logs/$name.log" | cut -c1-110)"
}

while read -r row; do
    step "check-$row" "$(program loam-check)" -k "$row" -n "$cases" --seed "$seed"
done <"$logs/rows"
step full "$(program loam-check)" -k cuda --full
step bits "$(program test_parallel_bits)"
step solver "$(program test_solver_hard)"
step recurrent-bits "$(program test_recurrent_bits)"
step recurrent-rows "$(program test_recurrent_rows)"
step launch "$(program test_cuda_launch)"
step contract "$(program test_cuda_contract)"
step rope "$(program test_cuda_rope)"
step train-data "$(program test_train_cuda_data)"
step train-ops "$(program test_train_cuda_ops)"
step train-weights "$(program test_train_cuda_weights)"
step train-model "$(program test_train_cuda_model)"
step train-features "$(program test_train_cuda_features)"
step distill "$(program test_distill_cuda)"
step train-trainer "$(program test_train_cuda_trainer)"
LOAM="$(program loam)" step lm "$(program test_lm_cuda)"
LOAM="$(program loam)" step tune "$(program test_lm_tune_cuda)"
LOAM="$(program loam)" step program "$(program test_cli_cuda)"
if [ "$quick" = 0 ]; then
    step large "$(program test_cuda_large)"
    [ -n "$(program loam-accuracy)" ] && step accuracy "$(program loam-accuracy)" --cuda
fi

sanitizer=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer)
if [ -z "$sanitizer" ]; then
    echo "no compute-sanitizer on this machine"
    exit 1
fi
few=$((quick ? 6 : 25))
# Exact allocations and no poison: reads outside arrays, and of what nothing wrote, are the sanitizer's to
# find.
LOAM_CHECK_TIGHT=1
export LOAM_CHECK_TIGHT
for tool in memcheck racecheck synccheck initcheck; do
    while read -r row; do
        step "$tool-$row" "$sanitizer" --tool "$tool" --error-exitcode 1 \
            "$(program loam-check)" -k "$row" -n "$few" --seed "$((seed + 1))" --budget 3e5
    done <"$logs/rows"
done
[ "$failed" = 0 ] && echo "all is well" || echo "logs of what failed are in $logs"
exit "$failed"
