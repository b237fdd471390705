#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the wheel of loam-attn with pip, as a user's machine would but for CUDA, installs it into an empty
# environment in build/wheel and runs python/tests on it: test-wheel.sh [torch], then with PyTorch,
# transformers and flash-linear-attention there too (5 GB), and what Regressor and plots are tested with.
# Needs PyPI; where that is out of reach it says so and does no more.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-/usr/bin/python3}
work=$PWD/build/wheel
rm -rf "$work"
mkdir -p "$work"
"$python" -m venv "$work/env"
pip="$work/env/bin/python -m pip --disable-pip-version-check"
if ! $pip download -q --no-deps -d "$work/reached" scikit-build-core >"$work/reached.log" 2>&1; then
    echo "test-wheel: skipped, PyPI cannot be reached: $(tail -n 1 "$work/reached.log")"
    exit 0
fi
$pip wheel -q --no-deps --config-settings=cmake.define.LOAM_CUDA=OFF -w "$work/dist" .
$pip install -q "$work"/dist/loam_attn-*.whl pytest ml_dtypes
if [ "${1:-}" = torch ]; then
    $pip install -q torch transformers flash-linear-attention scikit-learn statsmodels pandas matplotlib
fi
ls -l "$work"/dist
# From elsewhere, so that nothing but the wheel can be imported.
cd "$work"
OMP_WAIT_POLICY=passive "$work/env/bin/python" -m pytest -q -rs -p no:cacheprovider "$OLDPWD/python/tests"
"$work/env/bin/python" -c 'import loam_attn; print("loam_attn", loam_attn.__version__, loam_attn.__file__)'
